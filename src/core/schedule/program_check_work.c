/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Check of a program: every forward and backward exactly once, and what lanes hold meanwhile. */
#include "core/cost/memory.h"
#include "core/schedule/program_check_impl.h"

#include <string.h>

/* ---- once each ---- */

/* First and last part of an op, where they are noted. */
static void noted(struct dt_check *c, const struct dt_op *op, uint32_t **first, uint32_t **last)
{
    struct dt_check_work *w = dt_check_at(c, op->module, dt_check_mb(c, op), dt_check_v(c, op));

    *first = op->kind == DT_OP_FORWARD ? &w->f : op->kind == DT_OP_BACKWARD ? &w->b : &w->w;
    *last = op->kind == DT_OP_FORWARD    ? &w->f_end
            : op->kind == DT_OP_BACKWARD ? &w->b_end
                                         : &w->w_end;
}

/* Parts lie side by side, each of the same op. */
static enum dt_status check_parts(struct dt_check *c, const struct dt_lane *l, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i];

    if (op->part != 0 || op->parts == 0)
        return dt_check_fail(c, i, "is part %u of %u; parts begin with 0 and follow each other",
                             op->part, op->parts);
    for (uint32_t k = 1; k < op->parts; k++) {
        const struct dt_op *x = &c->p->ops[i + k];

        if (i + k >= l->first + l->n || x->kind != op->kind || x->mb != op->mb ||
            x->chunk != op->chunk || x->parts != op->parts || x->part != k)
            return dt_check_fail(c, i, "is cut into %u parts, of which number %u does not follow",
                                 op->parts, k);
    }
    return DT_OK;
}

static enum dt_status note_op(struct dt_check *c, const struct dt_lane *l, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i];
    uint32_t *first, *last, n = dt_check_count(c, l->module, l->replica);
    const struct dt_check_vstage *v;
    struct dt_check_work *w;

    if (op->mb >= n)
        return dt_check_fail(c, i, "is of no microbatch of its replica, which has 0 to %d",
                             (int)n - 1);
    DT_TRY(check_parts(c, l, i));
    noted(c, op, &first, &last);
    w = dt_check_at(c, op->module, dt_check_mb(c, op), dt_check_v(c, op));
    if (*first != DT_NONE)
        return dt_check_fail(c, i, "happens twice: op %u of the lane is the same",
                             *first - l->first);
    v = &c->m[op->module].v[dt_check_v(c, op)];
    if (op->kind == DT_OP_BACKWARD && !v->backward)
        return dt_check_fail(c, i, "is a backward where nothing is trained, nor upstream of it");
    if (op->kind == DT_OP_BACKWARD && w->f == DT_NONE)
        return dt_check_fail(c, i, "comes before its forward");
    if (op->kind == DT_OP_WEIGHT_GRAD && !v->split)
        return dt_check_fail(c, i,
                             "is apart from its backward, which the schedule does not split, or "
                             "has nothing to train");
    if (op->kind == DT_OP_WEIGHT_GRAD && w->b == DT_NONE)
        return dt_check_fail(c, i, "comes before its backward");
    *first = i;
    *last = i + op->parts - 1u;
    return DT_OK;
}

static enum dt_status note_lane(struct dt_check *c, const struct dt_lane *l)
{
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &c->p->ops[i];

        if (!dt_check_is_work(op))
            continue;
        DT_TRY(note_op(c, l, i));
        i += op->parts - 1u;
    }
    return DT_OK;
}

static enum dt_status check_cut(const struct dt_check *c, uint32_t i, int parts)
{
    if (c->p->ops[i].parts == parts)
        return DT_OK;
    return dt_check_fail(c, i, "is cut into %u parts, not into %d", c->p->ops[i].parts, parts);
}

/* All of virtual stage v of one replica; which forward and backward are cut into buckets. */
static enum dt_status check_stage(struct dt_check *c, int module, int replica, int v)
{
    const struct dt_check_module *m = &c->m[module];
    const struct dt_check_vstage *x = &m->v[v];
    uint32_t first_f = DT_NONE, last = 0;

    for (uint32_t mb = m->a->mb_first[replica]; mb < m->a->mb_first[replica + 1]; mb++) {
        const struct dt_check_work *w = dt_check_at(c, module, mb, v);
        const char *lacks = w->f == DT_NONE                  ? "forward"
                            : x->backward && w->b == DT_NONE ? "backward"
                            : x->split && w->w == DT_NONE    ? "weight gradient"
                                                             : NULL;

        if (lacks)
            return dt_error_set(c->err, DT_ERR_INTERNAL,
                                "program: %s/%d.%d, chunk %d: microbatch %u has no %s",
                                c->model->modules[module].name, replica, v % m->pp, v / m->pp,
                                mb - m->a->mb_first[replica], lacks);
        first_f = w->f < first_f ? w->f : first_f;
        last = x->backward && dt_check_gradients(x, w) > last ? dt_check_gradients(x, w) : last;
    }
    for (uint32_t mb = m->a->mb_first[replica]; mb < m->a->mb_first[replica + 1]; mb++) {
        const struct dt_check_work *w = dt_check_at(c, module, mb, v);
        int f = (w->f == first_f || x->gather_each) && x->gather_parts > 0 ? x->gather_parts : 1;
        bool each = x->sync_each || x->gather_each;
        int g = x->gather_each ? x->gather_parts : x->sync_parts > 0 ? x->sync_parts : 1;

        DT_TRY(check_cut(c, w->f, f));
        if (x->split)
            DT_TRY(check_cut(c, w->b, 1));
        if (x->backward)
            DT_TRY(check_cut(c, dt_check_gradients(x, w),
                             dt_check_gradients(x, w) == last || each ? g : 1));
    }
    return DT_OK;
}

enum dt_status dt_check_compute(struct dt_check *c)
{
    for (int l = 0; l < c->p->n_lanes; l++)
        DT_TRY(note_lane(c, &c->p->lanes[l]));
    for (int i = 0; i < c->model->n_modules; i++)
        for (int r = 0; r < c->m[i].dp; r++)
            for (int v = 0; v < c->m[i].n_v; v++)
                DT_TRY(check_stage(c, i, r, v));
    return DT_OK;
}

/* ---- what lanes hold ---- */

static bool forward_only(const struct dt_check *c, const struct dt_lane *l)
{
    for (int v = l->stage; v < c->m[l->module].n_v; v += c->m[l->module].pp)
        if (c->m[l->module].v[v].backward)
            return false;
    return true;
}

/* The other part of a microbatch's position, where what the LLM takes later is apart (Entrain), or DT_NONE. */
static uint32_t other_part(const struct dt_check *c, const struct dt_op *op, bool *second)
{
    const struct dt_assignment_module *a = c->m[op->module].a;
    const uint32_t *first = &a->mb_first[op->replica];
    uint32_t mb = dt_check_mb(c, op);

    *second = dt_assignment_deferred(a, first[0], first[1], mb);
    if (!dt_plan_defers(c->p->plan, c->model, op->module))
        return DT_NONE;
    if (*second)
        return mb - 1;
    return dt_assignment_deferred(a, first[0], first[1], mb + 1) ? mb + 1 : DT_NONE;
}

/* What forward or backward i changes in the positions that its lane holds: one is held from the first forward of its parts
 * to their last backward. */
static uint32_t held_more(const struct dt_check *c, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i];
    bool second;
    uint32_t other = other_part(c, op, &second);
    const struct dt_check_work *w =
        other == DT_NONE ? NULL : dt_check_at(c, op->module, other, dt_check_v(c, op));

    if (op->kind == DT_OP_FORWARD)
        return !w || i < w->f;
    if (op->kind == DT_OP_BACKWARD)
        return !w || i > w->b ? UINT32_MAX : 0;
    return 0;
}

/* Microbatches between forward and backward, backward and weight gradient, and all of them, within their
 * bounds. */
static enum dt_status check_in_flight(struct dt_check *c, uint32_t lane)
{
    const struct dt_lane *l = &c->p->lanes[lane];
    uint32_t n = dt_check_count(c, l->module, l->replica), held = 0, put_off = 0;
    uint32_t most_off = (uint32_t)dt_memory_deferred(c->p->plan, c->model, l->module, l->stage, n);
    uint32_t most = (uint32_t)dt_memory_held(c->p->plan, c->model, l->module, l->stage, n);

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &c->p->ops[i];
        const struct dt_check_vstage *v = &c->m[op->module].v[dt_check_v(c, op)];

        if (!dt_check_is_work(op) || op->part > 0 || !v->backward)
            continue;
        held += held_more(c, i);
        if (v->split && op->kind != DT_OP_FORWARD)
            put_off += op->kind == DT_OP_BACKWARD ? 1 : UINT32_MAX;
        if (held > l->in_flight_max)
            return dt_check_fail(c, i, "makes the lane hold %u microbatches; memory is for %u",
                                 held, l->in_flight_max);
        if (put_off > most_off || (v->split && held + put_off > most))
            return dt_check_fail(
                c, i,
                "makes %u weight gradients and %u backwards wait; memory is for %u "
                "and %u, %u in all",
                put_off, held, most_off, l->in_flight_max, most);
    }
    return DT_OK;
}

/* The consumer of what a SEND of activations carries. */
static uint32_t consumer_of(const struct dt_check *c, uint32_t send)
{
    const struct dt_op *recv = &c->p->ops[c->p->ops[send].peer];

    return dt_check_at(c, recv->module, dt_check_mb(c, recv), dt_check_v(c, recv))->f_end;
}

/* A lane without backwards: its k-th forward waits until what forward k - bound sent is consumed. */
static enum dt_status check_credit(struct dt_check *c, uint32_t lane)
{
    const struct dt_lane *l = &c->p->lanes[lane];
    uint32_t n = dt_check_count(c, l->module, l->replica), chunks = (uint32_t)c->m[l->module].vpp,
             done = 0;
    uint32_t *ran = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)n * chunks + 1);
    uint32_t *ordinal = DT_ARENA_NEW(&c->arena, uint32_t, (size_t)n * chunks + 1);

    if (!ran || !ordinal)
        return dt_error_nomem(c->err, "check of a program");
    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (c->p->ops[i].kind == DT_OP_FORWARD && c->p->ops[i].part == 0) {
            ordinal[c->p->ops[i].chunk * n + c->p->ops[i].mb] = done;
            ran[done++] = i;
        }
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &c->p->ops[i];
        uint32_t k;

        if (op->kind != DT_OP_SEND || l->in_flight_max == 0)
            continue;
        k = ordinal[op->chunk * n + op->mb] + l->in_flight_max;
        if (k < done && !dt_check_after(c, ran[k], consumer_of(c, i)))
            return dt_check_fail(c, ran[k],
                                 "does not wait until what was sent %u forwards before is consumed",
                                 l->in_flight_max);
    }
    return DT_OK;
}

/* ---- messages that are not read yet ---- */

/* Do slots of all replicas of all modules compare: microbatch k is slot k, and no sample leaves its
 * slot between modules? */
static bool slots_compare(const struct dt_check *c)
{
    for (int i = 0; i < c->model->n_modules; i++)
        for (int r = 0; r < c->m[i].dp; r++) {
            const uint32_t *first = &c->m[i].a->mb_first[r];

            if (first[1] - first[0] != (uint32_t)c->p->assignment->n_slots)
                return false;
            for (uint32_t mb = first[0]; mb < first[1]; mb++)
                if (c->m[i].a->mb[mb].slot != mb - first[0])
                    return false;
        }
    for (uint32_t t = 0; t < c->n_transfers; t++) {
        const struct dt_check_transfer *x = &c->transfer[t];

        if (c->m[x->u].a->mb[x->u_mb].slot != c->m[x->d].a->mb[x->d_mb].slot)
            return false;
    }
    return true;
}

/* A lane with backwards has unread at most what it holds, for the backward that frees it comes after
 * the consumer's: `held` at most of this chunk.  One without has what its credits allow.  What the
 * receiver holds itself is charged as activations. */
static enum dt_status check_buffers(struct dt_check *c, const struct dt_lane *from, uint32_t send,
                                    uint32_t held)
{
    const struct dt_lane *to = &c->p->lanes[c->p->ops[c->p->ops[send].peer].lane];
    const struct dt_check_module *m = &c->m[to->module];
    uint32_t keeps = 0;
    uint32_t room = (uint32_t)dt_memory_queue(c->p->plan, c->model, to->module, to->stage,
                                              dt_check_count(c, to->module, to->replica));

    for (int v = to->stage; v < m->n_v; v += m->pp)
        keeps += m->v[v].backward;
    if (forward_only(c, from))
        held = from->in_flight_max < held ? from->in_flight_max : held;
    else if (keeps > 0)
        room += to->in_flight_max / (from->module == to->module ? 1 : keeps);
    if (held > room)
        return dt_check_fail(
            c, send, "can be one of %u unread messages; the receiver has room for %u", held, room);
    return DT_OK;
}

static enum dt_status check_unread(struct dt_check *c, uint32_t lane, bool aligned)
{
    const struct dt_lane *l = &c->p->lanes[lane];
    const struct dt_check_module *m = &c->m[l->module];
    uint32_t held[DT_MAX_VSTAGES] = {0}, most[DT_MAX_VSTAGES] = {0};

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &c->p->ops[i];

        if (!dt_check_is_work(op) || op->part > 0)
            continue;
        held[op->chunk] += held_more(c, i);
        most[op->chunk] = held[op->chunk] > most[op->chunk] ? held[op->chunk] : most[op->chunk];
    }
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *op = &c->p->ops[i];

        if (op->kind != DT_OP_SEND || (op->flags & DT_OPF_GRAD))
            continue;
        /* a chunk without backward on a lane with some is bounded by the order of the others;
         * slots of different numbers of samples do not compare */
        if (!m->v[dt_check_v(c, op)].backward && l->in_flight_max < most[op->chunk] && m->vpp > 1)
            continue;
        if (aligned || !(op->flags & DT_OPF_BOUNDARY))
            DT_TRY(check_buffers(c, l, i, most[op->chunk]));
    }
    return DT_OK;
}

enum dt_status dt_check_held(struct dt_check *c)
{
    bool aligned = slots_compare(c);

    for (uint32_t l = 0; l < (uint32_t)c->p->n_lanes; l++) {
        if (forward_only(c, &c->p->lanes[l]))
            DT_TRY(check_credit(c, l));
        else
            DT_TRY(check_in_flight(c, l));
        DT_TRY(check_unread(c, l, aligned));
    }
    return DT_OK;
}
