/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Check of a program: every forward and backward exactly once, data from where it is produced,
 * in-flight bounds. */
#include "core/schedule/program_check_impl.h"

#include <string.h>

struct data {
    const struct dt_program *p;
    struct dt_sched *s;
    struct dt_error *err;
    uint32_t *last_part;  /* per op: the last part of the forward or backward that starts here */
    uint64_t recvs, used; /* RECVs and FETCHes in the program, those accounted for */
};

static bool is_work(const struct dt_op *op)
{
    return op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD;
}

static int vstage(const struct dt_sched_module *m, const struct dt_op *op)
{
    return op->chunk * m->pp + op->stage;
}

/* Finds every forward and backward; parts of one microbatch follow each other. */
static enum dt_status index_lane(struct data *d, const struct dt_lane *l)
{
    struct dt_sched_module *m = &d->s->m[l->module];
    uint32_t n = m->mb_first[l->replica + 1] - m->mb_first[l->replica], part = 0, start = 0;

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &d->p->ops[i];
        uint32_t *at;

        if (op->mb != DT_NONE && op->mb >= n)
            return dt_check_fail(d->err, d->p, i, "is of a microbatch that does not exist");
        d->recvs += op->kind == DT_OP_RECV || op->kind == DT_OP_FETCH;
        if (!is_work(op))
            continue;
        if (op->mb == DT_NONE)
            return dt_check_fail(d->err, d->p, i, "is of no microbatch");
        if (op->part != part || op->parts == 0 || op->part >= op->parts)
            return dt_check_fail(d->err, d->p, i, "its parts are out of order");
        if (part > 0 &&
            (op->kind != d->p->ops[start].kind || op->mb != d->p->ops[start].mb ||
             op->chunk != d->p->ops[start].chunk || op->parts != d->p->ops[start].parts))
            return dt_check_fail(d->err, d->p, i, "stands between the parts of another op");
        at = (op->kind == DT_OP_FORWARD ? m->f_idx : m->b_idx) +
             dt_sched_at(m, l->replica, vstage(m, op), op->mb);
        if (part == 0) {
            if (*at != DT_NONE)
                return dt_check_fail(d->err, d->p, i, "happens twice");
            if (op->kind == DT_OP_BACKWARD && !m->v[vstage(m, op)].backward)
                return dt_check_fail(d->err, d->p, i, "is a backward where nothing is trained");
            *at = start = i;
        }
        d->last_part[start] = i;
        part = op->part + 1u == op->parts ? 0 : part + 1;
    }
    if (part != 0)
        return dt_check_fail(d->err, d->p, start, "lacks parts");
    return DT_OK;
}

static enum dt_status check_complete(struct data *d, const struct dt_sched_module *m)
{
    for (int r = 0; r < m->dp; r++)
        for (int v = 0; v < m->n_v; v++)
            for (uint32_t k = 0; k < m->mb_first[r + 1] - m->mb_first[r]; k++) {
                size_t at = dt_sched_at(m, r, v, k);
                bool lost =
                    m->f_idx[at] == DT_NONE || (m->v[v].backward && m->b_idx[at] == DT_NONE);

                if (lost || (m->v[v].backward && m->b_idx[at] < m->f_idx[at]))
                    return dt_error_set(d->err, DT_ERR_INTERNAL,
                                        "program: module %s, replica %d, virtual stage %d, "
                                        "microbatch %u: %s",
                                        m->mod->name, r, v, k,
                                        lost ? "a forward or backward is missing"
                                             : "the backward is before the forward");
            }
    return DT_OK;
}

/* The RECVs and FETCHes that op i waits for directly. */
static uint32_t recv_deps(const struct dt_program *p, uint32_t i)
{
    const struct dt_op *op = &p->ops[i];
    uint32_t n = 0;

    for (int k = 1; k < 3; k++)
        n += op->dep[k] != DT_NONE && dt_op_resource(p->ops[op->dep[k]].kind) == DT_RES_P2P_IN;
    for (uint32_t k = 0; k < op->more_n; k++)
        n += dt_op_resource(p->ops[p->deps[op->more_first + k]].kind) == DT_RES_P2P_IN;
    return n;
}

/* Does `consumer` wait for a RECV whose SEND waits for `producer` and carries `bytes`? */
static bool fed_by(const struct dt_program *p, uint32_t consumer, uint32_t producer, uint64_t bytes,
                   unsigned flags)
{
    const struct dt_op *op = &p->ops[consumer];

    for (uint32_t k = 1; k < 3u + op->more_n; k++) {
        uint32_t r = k < 3 ? op->dep[k] : p->deps[op->more_first + k - 3];
        const struct dt_op *recv = r == DT_NONE ? NULL : &p->ops[r];

        if (recv && recv->kind == DT_OP_RECV && recv->bytes == bytes && recv->flags == flags &&
            recv->lane == op->lane && p->ops[recv->peer].dep[1] == producer)
            return true;
    }
    return false;
}

/* Does the forward wait for the FETCH of its own samples? */
static bool fetched(const struct dt_program *p, uint32_t forward)
{
    const struct dt_op *op = &p->ops[forward];

    for (uint32_t k = 1; k < 3u + op->more_n; k++) {
        uint32_t d = k < 3 ? op->dep[k] : p->deps[op->more_first + k - 3];

        if (d != DT_NONE && p->ops[d].kind == DT_OP_FETCH && p->ops[d].lane == op->lane &&
            p->ops[d].mb == op->mb)
            return true;
    }
    return false;
}

/* Inputs of the forward (or gradient of the backward) of virtual stage v from its neighbour `from`.
 */
static enum dt_status check_inner(struct data *d, const struct dt_sched_module *m, int r, int v,
                                  int from, uint32_t k, bool grad)
{
    uint32_t mb = m->mb_first[r] + k;
    const uint32_t *idx = grad ? m->b_idx : m->f_idx;
    uint32_t op = idx[dt_sched_at(m, r, v, k)], before = idx[dt_sched_at(m, r, from, k)];
    const struct dt_vstage *wire = &m->v[from < v ? from : v];

    if (m->pp == 1) {
        if (before > op)
            return dt_check_fail(d->err, d->p, op, "runs before the virtual stage that feeds it");
    } else if (dt_vstage_bytes(wire, &d->s->a->m[m->index].work[mb]) > 0) {
        if (!fed_by(d->p, op, d->last_part[before],
                    dt_vstage_bytes(wire, &d->s->a->m[m->index].work[mb]), grad ? DT_OPF_GRAD : 0))
            return dt_check_fail(d->err, d->p, op,
                                 "does not receive from the virtual stage that feeds it");
        d->used++;
    }
    return DT_OK;
}

static enum dt_status check_inputs(struct data *d, const struct dt_sched_module *m, int r, int v,
                                   uint32_t k)
{
    uint64_t used = d->used;
    uint32_t f = m->f_idx[dt_sched_at(m, r, v, k)], b = m->b_idx[dt_sched_at(m, r, v, k)];

    if (v > 0)
        DT_TRY(check_inner(d, m, r, v, v - 1, k, false));
    if (v == 0 && d->s->a->m[m->index].mb[m->mb_first[r] + k].n > 0) {
        if (!fetched(d->p, f))
            return dt_check_fail(d->err, d->p, f, "does not wait for its samples");
        d->used++;
    }
    for (uint32_t mb = m->mb_first[r] + k, i = m->in_first[mb]; v == 0 && i < m->in_first[mb + 1];
         i++) {
        const struct dt_transfer *t = &d->s->transfers[m->in[i]];
        const struct dt_sched_module *u = &d->s->m[t->u];
        int ur = u->replica_of[t->u_mb];

        if (!fed_by(
                d->p, f,
                d->last_part[u->f_idx[dt_sched_at(u, ur, u->n_v - 1, t->u_mb - u->mb_first[ur])]],
                t->bytes, DT_OPF_BOUNDARY))
            return dt_check_fail(d->err, d->p, f, "lacks a transfer from an upstream module");
        d->used++;
    }
    if (recv_deps(d->p, f) != d->used - used)
        return dt_check_fail(d->err, d->p, f, "waits for messages that are not its own");
    if (!m->v[v].backward)
        return DT_OK;
    used = d->used;
    if (v < m->n_v - 1)
        DT_TRY(check_inner(d, m, r, v, v + 1, k, true));
    for (uint32_t mb = m->mb_first[r] + k, i = m->out_first[mb];
         v == m->n_v - 1 && i < m->out_first[mb + 1]; i++) {
        const struct dt_transfer *t = &d->s->transfers[m->out[i]];
        const struct dt_sched_module *x = &d->s->m[t->d];
        int xr = x->replica_of[t->d_mb];

        if (!fed_by(d->p, b,
                    d->last_part[x->b_idx[dt_sched_at(x, xr, 0, t->d_mb - x->mb_first[xr])]],
                    t->bytes, DT_OPF_BOUNDARY | DT_OPF_GRAD))
            return dt_check_fail(d->err, d->p, b, "lacks gradients from a downstream module");
        d->used++;
    }
    if (recv_deps(d->p, b) != d->used - used)
        return dt_check_fail(d->err, d->p, b, "waits for messages that are not its own");
    return DT_OK;
}

/* Does forward i wait for the consumer of every message that forward `before` sent?  SENDs of a
 * forward follow it up to the next compute op. */
static bool has_credit(const struct data *d, const struct dt_lane *l, uint32_t before, uint32_t i)
{
    for (uint32_t j = before + 1; j < l->first + l->n; j++) {
        const struct dt_op *op = &d->p->ops[j], *in;
        const struct dt_sched_module *m;

        if (is_work(op) && op->part == 0)
            break;
        if (op->kind != DT_OP_SEND)
            continue;
        in = &d->p->ops[op->peer];
        m = &d->s->m[in->module];
        if (!dt_check_waits(
                d->p, i,
                d->last_part[m->f_idx[dt_sched_at(m, in->replica, vstage(m, in), in->mb)]]))
            return false;
    }
    return true;
}

/* Activations held for backwards; without any, the k-th forward waits until what forward k - bound
 * sent is consumed. */
static enum dt_status check_in_flight(struct data *d, uint32_t lane)
{
    const struct dt_lane *l = &d->p->lanes[lane];
    const struct dt_sched_module *m = &d->s->m[l->module];
    uint32_t n = m->mb_first[l->replica + 1] - m->mb_first[l->replica], held = 0, done = 0;
    bool forward_only = true;
    uint32_t *ran = dt_malloc(((size_t)n * (uint32_t)m->vpp + 1) * sizeof(*ran));

    if (!ran)
        return dt_error_nomem(d->err, "check of a program");
    if (l->in_flight_max !=
        (uint32_t)dt_memory_in_flight(d->p->plan, d->s->model, l->module, l->stage, n)) {
        dt_free(ran);
        return dt_error_set(d->err, DT_ERR_INTERNAL,
                            "program: lane %u: its in-flight bound is not the memory model's",
                            lane);
    }
    for (int v = l->stage; v < m->n_v; v += m->pp)
        forward_only &= !m->v[v].backward;
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &d->p->ops[i];
        const char *wrong = NULL;

        if (!is_work(op) || op->part > 0)
            continue;
        if (forward_only) {
            if (l->in_flight_max > 0 && done >= l->in_flight_max &&
                !has_credit(d, l, ran[done - l->in_flight_max], i))
                wrong = "runs ahead of what has consumed its output";
            ran[done++] = i;
        } else if (m->v[vstage(m, op)].backward) {
            held += op->kind == DT_OP_FORWARD ? 1 : UINT32_MAX;
            if (held > l->in_flight_max && held < DT_NONE / 2)
                wrong = "holds more microbatches than memory was charged for";
        }
        if (wrong) {
            dt_free(ran);
            return dt_check_fail(d->err, d->p, i, wrong);
        }
    }
    dt_free(ran);
    return DT_OK;
}

/* No message waits at a lane that the memory model did not charge for: a lane with backwards has
 * unread at most what it holds (`held` at most, of this chunk), one without what its credits allow;
 * what the receiver holds itself counts as activations. */
static enum dt_status check_queue(struct data *d, const struct dt_lane *from, uint32_t send,
                                  uint32_t held)
{
    const struct dt_plan *p = d->p->plan;
    const struct dt_lane *to = &d->p->lanes[d->p->ops[d->p->ops[send].peer].lane];
    const struct dt_sched_module *u = &d->s->m[from->module], *m = &d->s->m[to->module];
    int64_t n = m->mb_first[to->replica + 1] - m->mb_first[to->replica];
    uint32_t room = (uint32_t)dt_memory_queue(p, d->s->model, to->module, to->stage, n), keeps = 0;
    bool backward = false;

    for (int v = from->stage; v < u->n_v; v += u->pp)
        backward |= u->v[v].backward;
    for (int v = to->stage; v < m->n_v; v += m->pp)
        keeps += m->v[v].backward;
    if (!backward)
        held = from->in_flight_max < held ? from->in_flight_max : held;
    else if (keeps > 0)
        room += to->in_flight_max / (from->module == to->module ? 1 : keeps);
    return held <= room ? DT_OK
                        : dt_check_fail(d->err, d->p, send,
                                        "sends more than the receiver's buffers were charged for");
}

/* Forward messages of one lane that can be unread at once, per chunk. */
static enum dt_status check_messages(struct data *d, uint32_t lane)
{
    const struct dt_lane *l = &d->p->lanes[lane];
    const struct dt_sched_module *m = &d->s->m[l->module];
    uint32_t held[DT_MAX_VSTAGES] = {0}, most[DT_MAX_VSTAGES] = {0};

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &d->p->ops[i];

        if (!is_work(op) || op->part > 0)
            continue;
        held[op->chunk] += op->kind == DT_OP_FORWARD ? 1 : UINT32_MAX;
        most[op->chunk] = held[op->chunk] > most[op->chunk] ? held[op->chunk] : most[op->chunk];
    }
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &d->p->ops[i];

        /* a chunk without backward on a lane with some is bounded by the order of the others */
        if (op->kind != DT_OP_SEND || (op->flags & DT_OPF_GRAD) ||
            (!m->v[vstage(m, op)].backward && l->in_flight_max < most[op->chunk] && m->vpp > 1))
            continue;
        /* slots of different numbers of samples do not compare */
        if (d->s->aligned || !(op->flags & DT_OPF_BOUNDARY))
            DT_TRY(check_queue(d, l, i, most[op->chunk]));
    }
    return DT_OK;
}

enum dt_status dt_check_data(const struct dt_program *p, struct dt_sched *s, struct dt_error *err)
{
    struct data d = {.p = p, .s = s, .err = err};

    d.last_part = DT_ARENA_NEW(&s->arena, uint32_t, p->n_ops + 1);
    if (!d.last_part)
        return dt_error_nomem(err, "check of a program");
    for (int i = 0; i < s->n_modules; i++) {
        memset(s->m[i].f_idx, 0xff, (size_t)s->m[i].n_mb * s->m[i].n_v * sizeof(uint32_t));
        memset(s->m[i].b_idx, 0xff, (size_t)s->m[i].n_mb * s->m[i].n_v * sizeof(uint32_t));
    }
    if ((uint32_t)p->n_lanes != s->n_lanes)
        return dt_error_set(err, DT_ERR_INTERNAL, "program: %d lanes, the plan has %u", p->n_lanes,
                            s->n_lanes);
    for (uint32_t l = 0; l < s->n_lanes; l++) {
        const struct dt_lane *x = &p->lanes[l];
        const struct dt_sched_module *m = &s->m[x->module];

        if (x->replica >= m->dp || x->stage >= m->pp ||
            l != m->lane_base + (uint32_t)x->replica * (uint32_t)m->pp + x->stage)
            return dt_error_set(err, DT_ERR_INTERNAL, "program: lane %u is not the plan's", l);
        DT_TRY(index_lane(&d, x));
    }
    for (int i = 0; i < s->n_modules; i++)
        DT_TRY(check_complete(&d, &s->m[i]));
    for (int i = 0; i < s->n_modules; i++)
        for (int r = 0; r < s->m[i].dp; r++)
            for (int v = 0; v < s->m[i].n_v; v++)
                for (uint32_t k = 0; k < s->m[i].mb_first[r + 1] - s->m[i].mb_first[r]; k++)
                    DT_TRY(check_inputs(&d, &s->m[i], r, v, k));
    if (d.used != d.recvs)
        return dt_error_set(err, DT_ERR_INTERNAL, "program: %llu messages or fetches feed nothing",
                            (unsigned long long)(d.recvs - d.used));
    for (uint32_t l = 0; l < s->n_lanes; l++)
        DT_TRY(check_in_flight(&d, l));
    for (uint32_t l = 0; l < s->n_lanes; l++)
        DT_TRY(check_messages(&d, l));
    return DT_OK;
}
