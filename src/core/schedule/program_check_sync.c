/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Check of a program: collectives have the right members and sizes; gathers come before the first
 * use of the parameters, syncs after the last gradient, the norm after all syncs, the step after the
 * norm. */
#include "core/schedule/program_check_impl.h"

#include <string.h>

/* ---- groups ---- */

static enum dt_status check_group(struct dt_check *c, uint32_t g, uint8_t *member)
{
    const struct dt_program *p = c->p;
    const struct dt_group *x = &p->groups[g];

    if (x->n == 0 || (uint64_t)x->first + x->n > p->n_group_ops)
        return dt_error_set(c->err, DT_ERR_INTERNAL, "program: group %u has no members", g);
    for (uint32_t k = 0; k < x->n; k++) {
        uint32_t i = p->group_ops[x->first + k];
        const struct dt_op *op, *one = &p->ops[p->group_ops[x->first]];

        if (i >= p->n_ops)
            return dt_error_set(c->err, DT_ERR_INTERNAL,
                                "program: group %u names op %u; there are %u", g, i, p->n_ops);
        op = &p->ops[i];
        if (member[i]++)
            return dt_check_fail(c, i, "is in two groups, or twice in one");
        if (op->kind != x->kind || op->peer != g)
            return dt_check_fail(c, i,
                                 "is listed in group %u, which is of another kind or which it "
                                 "does not name",
                                 g);
        if (op->bytes != one->bytes || op->flags != one->flags)
            return dt_check_fail(c, i,
                                 "is of %llu bytes, another member of its group of %llu, or "
                                 "one is tied",
                                 (unsigned long long)op->bytes, (unsigned long long)one->bytes);
    }
    return DT_OK;
}

enum dt_status dt_check_groups(struct dt_check *c)
{
    uint8_t *member = DT_ARENA_NEW(&c->arena, uint8_t, (size_t)c->p->n_ops + 1);

    if (!member)
        return dt_error_nomem(c->err, "check of a program");
    for (uint32_t g = 0; g < c->p->n_groups; g++)
        DT_TRY(check_group(c, g, member));
    for (uint32_t i = 0; i < c->p->n_ops; i++)
        if (dt_op_resource(c->p->ops[i].kind) == DT_RES_COLL && !member[i])
            return dt_check_fail(c, i, "is in no group");
    return DT_OK;
}

/* One op of each replica of the same stage, in their order. */
static enum dt_status check_replicas(struct dt_check *c, uint32_t i)
{
    const struct dt_op *op = &c->p->ops[i], *x;
    const struct dt_group *g = &c->p->groups[op->peer];

    if (g->n != (uint32_t)c->m[op->module].dp)
        return dt_check_fail(c, i, "is in a group of %u lanes; its stage has %d replicas", g->n,
                             c->m[op->module].dp);
    for (uint32_t k = 0; k < g->n; k++) {
        x = &c->p->ops[c->p->group_ops[g->first + k]];
        if (x->module != op->module || x->stage != op->stage || x->chunk != op->chunk ||
            x->part != op->part || x->parts != op->parts || x->mb != op->mb || x->replica != k)
            return dt_check_fail(c, i, "meets what is not the same of replica %u", k);
    }
    return DT_OK;
}

/* ---- lanes ---- */

struct lane {
    struct dt_check *c;
    const struct dt_lane *l;
    const struct dt_check_module *m;
    uint32_t first_work, last_work, last_b;
    uint32_t norm, step;                                      /* DT_NONE = none yet */
    uint8_t synced[DT_MAX_VSTAGES], gathered[DT_MAX_VSTAGES]; /* per chunk: a bit for each bucket */
    bool tied;
};

enum { OWN_GATHER_F, OWN_GATHER_B, OWN_SYNC }; /* in dt_check_work.own */

/* Collectives of each microbatch on a lane, while its compute is walked. */
struct own {
    uint32_t *gather, *sync; /* per op of the lane: of this part; DT_NONE */
    uint32_t part[2];        /* the last part, and the one before */
    uint32_t left[2];        /* the last sync, and the one before */
};

static void look_at(struct lane *x)
{
    x->first_work = x->last_work = x->last_b = x->norm = x->step = DT_NONE;
    for (uint32_t i = x->l->first; i < x->l->first + x->l->n; i++) {
        const struct dt_op *op = &x->c->p->ops[i];

        if (!dt_check_is_work(op))
            continue;
        x->first_work = x->first_work == DT_NONE ? i : x->first_work;
        x->last_work = i;
        x->last_b = op->kind == DT_OP_FORWARD ? x->last_b : i;
    }
}

/* Number on the lane, as programs are printed. */
static uint32_t number(const struct lane *x, uint32_t i)
{
    return i - x->l->first;
}

/* First parts of the first forward and the last backward of a chunk; DT_NONE = none. */
static void ends(const struct lane *x, int v, uint32_t *first_f, uint32_t *last_b)
{
    const uint32_t *first = &x->m->a->mb_first[x->l->replica];

    *first_f = *last_b = DT_NONE;
    for (uint32_t mb = first[0]; mb < first[1]; mb++) {
        const struct dt_check_work *w = dt_check_at(x->c, x->l->module, mb, v);

        *first_f = w->f < *first_f ? w->f : *first_f;
        if (w->b != DT_NONE && (*last_b == DT_NONE || dt_check_gradients(&x->m->v[v], w) > *last_b))
            *last_b = dt_check_gradients(&x->m->v[v], w);
    }
}

/* Blocks of bucket k, in the order of the forward. */
static void bucket(const struct dt_check_vstage *v, int k, int parts, int *first, int *n)
{
    *first = v->first + v->n * k / parts;
    *n = v->first + v->n * (k + 1) / parts - *first;
}

/* Is op i the only one of its bucket, of the right number, size and members?  `k`: the bucket; `all`: also of what is
 * not trained. */
static enum dt_status check_bucket(struct lane *x, uint32_t i, int parts, int k, bool all,
                                   uint64_t each, uint64_t vectors, uint8_t *seen)
{
    const struct dt_op *op = &x->c->p->ops[i];
    int first, n;

    if (op->parts != parts || op->part >= parts)
        return dt_check_fail(x->c, i, "is part %u of %u; its chunk has %d such parts", op->part,
                             op->parts, parts);
    bucket(&x->m->v[dt_check_v(x->c, op)], k, parts, &first, &n);
    if (op->bytes == 0 ||
        !dt_check_bytes(x->c, op->module, first, n, all, each, vectors, op->bytes))
        return dt_check_fail(x->c, i, "is of %llu bytes, which blocks %d to %d do not have",
                             (unsigned long long)op->bytes, first, first + n - 1);
    if (!dt_check_expert_bytes(x->c, op->module, first, n, all, each, vectors,
                               x->c->p->groups[op->peer].expert_bytes))
        return dt_check_fail(x->c, i, "is in a group that has %llu bytes of experts",
                             (unsigned long long)x->c->p->groups[op->peer].expert_bytes);
    if (*seen & 1u << op->part)
        return dt_check_fail(x->c, i, "is the second of its part");
    *seen |= (uint8_t)(1u << op->part);
    return check_replicas(x->c, i);
}

/* Where a collective is noted: of its microbatch, or of the iteration. */
static enum dt_status place_of(struct lane *x, uint32_t i, bool each, int own, uint8_t *once,
                               uint8_t **seen)
{
    const struct dt_op *op = &x->c->p->ops[i];
    uint32_t n = dt_check_count(x->c, op->module, op->replica);

    if (!each && op->mb != DT_NONE)
        return dt_check_fail(x->c, i, "is of one microbatch; the plan has it once an iteration");
    if (each && op->mb >= n)
        return dt_check_fail(x->c, i, "is of no microbatch of its replica, which has 0 to %d",
                             (int)n - 1);
    *seen =
        each ? &dt_check_at(x->c, op->module, dt_check_mb(x->c, op), dt_check_v(x->c, op))->own[own]
             : &once[op->chunk];
    return DT_OK;
}

static enum dt_status check_sync(struct lane *x, uint32_t i)
{
    const struct dt_op *op = &x->c->p->ops[i];
    const struct dt_plan_policy *y = &x->c->p->plan->policy;
    int v = dt_check_v(x->c, op), parts = x->m->v[v].sync_parts;
    bool each = x->m->v[v].sync_each;
    uint32_t first_f, last_b;
    uint8_t *seen;

    DT_TRY(place_of(x, i, each, OWN_SYNC, x->synced, &seen));
    DT_TRY(check_bucket(x, i, parts, parts - 1 - op->part, false, dt_plan_policy_grad_bytes(y), 0,
                        seen));
    if (each)
        return DT_OK; /* check_own */
    ends(x, v, &first_f, &last_b);
    if (last_b != DT_NONE && !dt_check_after(x->c, i, last_b + op->part))
        return dt_check_fail(x->c, i,
                             "does not wait for op %u of its lane, which completes its "
                             "gradients",
                             number(x, last_b + op->part));
    if (!y->overlap_grad && x->last_work != DT_NONE && !dt_check_after(x->c, i, x->last_work))
        return dt_check_fail(x->c, i,
                             "does not wait for op %u, the last of its lane's compute; "
                             "overlap_grad is off",
                             number(x, x->last_work));
    return DT_OK;
}

/* The table that the first and the last stage of a replica share: their gradients are added up after
 * all replicas' are. */
static enum dt_status check_tied(struct lane *x, uint32_t i)
{
    const struct dt_program *p = x->c->p;
    const struct dt_op *op = &p->ops[i];
    const struct dt_group *g = &p->groups[op->peer];
    const struct dt_block *table = &x->c->model->modules[op->module].blocks[0];
    uint64_t bytes = dt_plan_policy_grad_bytes(&p->plan->policy) * (uint64_t)table->vocab *
                     (uint64_t)table->hidden / (uint64_t)p->plan->modules[op->module].layout.tp;
    uint32_t first_f, last_b;

    if (x->tied)
        return dt_check_fail(x->c, i, "is the second of its lane");
    x->tied = true;
    if (op->bytes != bytes)
        return dt_check_fail(x->c, i, "is of %llu bytes, the shared table of %llu",
                             (unsigned long long)op->bytes, (unsigned long long)bytes);
    if (g->n != 2)
        return dt_check_fail(x->c, i, "is in a group of %u lanes, not of the first and last stage",
                             g->n);
    for (uint32_t k = 0; k < 2; k++) {
        const struct dt_op *o = &p->ops[p->group_ops[g->first + k]];

        if (o->module != op->module || o->replica != op->replica ||
            dt_check_v(x->c, o) != (k == 0 ? 0 : x->m->n_v - 1))
            return dt_check_fail(x->c, i, "is not shared by the first and last virtual stage");
    }
    ends(x, dt_check_v(x->c, op), &first_f, &last_b);
    if (last_b != DT_NONE && !dt_check_after(x->c, i, last_b + x->c->p->ops[last_b].parts - 1u))
        return dt_check_fail(x->c, i,
                             "does not wait for op %u of its lane, the last backward of the "
                             "table's chunk",
                             number(x, last_b));
    return DT_OK;
}

static enum dt_status check_gather(struct lane *x, uint32_t i)
{
    const struct dt_op *op = &x->c->p->ops[i];
    const struct dt_plan_policy *y = &x->c->p->plan->policy;
    bool exact = !y->fp32 && y->exact_vectors; /* norms and biases travel in fp32 */
    int v = dt_check_v(x->c, op), parts = x->m->v[v].gather_parts;
    bool each = x->m->v[v].gather_each, grad = op->flags & DT_OPF_GRAD;
    uint32_t first_f, last_b;
    uint8_t *seen;

    if ((op->flags & ~(unsigned)DT_OPF_GRAD) || (grad && !(each && x->m->v[v].backward)))
        return dt_check_fail(x->c, i, "is for a backward that does not gather");
    DT_TRY(place_of(x, i, each, grad ? OWN_GATHER_B : OWN_GATHER_F, x->gathered, &seen));
    DT_TRY(check_bucket(x, i, parts, grad ? parts - 1 - op->part : op->part, each, y->fp32 ? 4 : 2,
                        exact ? 2 : 0, seen));
    if (each)
        return DT_OK; /* check_own */
    ends(x, v, &first_f, &last_b);
    if (first_f != DT_NONE && !dt_check_after(x->c, first_f + op->part, i))
        return dt_check_fail(x->c, first_f + op->part,
                             "does not wait for op %u of its lane, which gathers its parameters",
                             number(x, i));
    if (!y->overlap_param && x->first_work != DT_NONE && !dt_check_after(x->c, x->first_work, i))
        return dt_check_fail(x->c, x->first_work,
                             "does not wait for op %u of its lane, a gather; overlap_param is off",
                             number(x, i));
    return DT_OK;
}

static enum dt_status check_norm(struct lane *x, uint32_t i)
{
    const struct dt_op *op = &x->c->p->ops[i];

    if (x->norm != DT_NONE)
        return dt_check_fail(x->c, i, "is the second of its lane");
    if (op->bytes != 4)
        return dt_check_fail(x->c, i, "is of %llu bytes, not of 4", (unsigned long long)op->bytes);
    if (x->last_b != DT_NONE && !dt_check_after(x->c, i, x->last_b))
        return dt_check_fail(x->c, i, "does not wait for op %u, the last backward of its lane",
                             number(x, x->last_b));
    x->norm = i;
    return DT_OK;
}

static enum dt_status check_op(struct lane *x, uint32_t i)
{
    const struct dt_op *op = &x->c->p->ops[i];

    if ((op->kind == DT_OP_GRAD_SYNC || op->kind == DT_OP_PARAM_GATHER) && x->norm != DT_NONE)
        return dt_check_fail(x->c, i, "comes after op %u, the gradient norm", number(x, x->norm));
    if ((op->kind == DT_OP_GRAD_NORM || (op->flags & DT_OPF_TIED)) && op->mb != DT_NONE)
        return dt_check_fail(x->c, i, "is of one microbatch, not of all");
    switch ((enum dt_op_kind)op->kind) {
    case DT_OP_GRAD_SYNC:
        if (op->flags & DT_OPF_TIED)
            return check_tied(x, i);
        if (x->tied)
            return dt_check_fail(x->c, i, "comes after that of the shared table");
        return check_sync(x, i);
    case DT_OP_PARAM_GATHER:
        return check_gather(x, i);
    case DT_OP_GRAD_NORM:
        return check_norm(x, i);
    case DT_OP_STEP:
        if (x->step != DT_NONE)
            return dt_check_fail(x->c, i, "is the second of its lane");
        if (x->last_work != DT_NONE && x->last_work > i)
            return dt_check_fail(x->c, i, "comes before op %u, which uses the parameters",
                                 number(x, x->last_work));
        x->step = i;
        return DT_OK;
    case DT_OP_FORWARD:
    case DT_OP_BACKWARD:
    case DT_OP_WEIGHT_GRAD:
    case DT_OP_SEND:
    case DT_OP_RECV:
    case DT_OP_FETCH:
    case DT_OP_OFFLOAD:
    case DT_OP_RELOAD:
    case DT_OP_KIND_N:
        break;
    }
    return DT_OK;
}

static enum dt_status lacks(const struct lane *x, const char *what, int chunk)
{
    return dt_error_set(x->c->err, DT_ERR_INTERNAL, "program: %s/%d.%d, chunk %d lacks a %s",
                        x->c->model->modules[x->l->module].name, x->l->replica, x->l->stage, chunk,
                        what);
}

/* Parts, counted from the last bucket where `reversed`, that have parameters to share. */
static unsigned wanted(const struct lane *x, const struct dt_check_vstage *v, int parts, bool all,
                       bool reversed)
{
    unsigned mask = 0;
    int first, n;

    for (int k = 0; k < parts; k++) {
        bucket(v, reversed ? parts - 1 - k : k, parts, &first, &n);
        mask |= dt_check_shared(x->c, x->l->module, first, n, all) ? 1u << k : 0;
    }
    return mask;
}

/* Every bucket that has parameters is shared, and nothing else happens. */
static enum dt_status check_buckets(struct lane *x, int chunk)
{
    int at = chunk * x->m->pp + x->l->stage;
    const struct dt_check_vstage *v = &x->m->v[at];
    const uint32_t *first = &x->m->a->mb_first[x->l->replica];
    unsigned sync = wanted(x, v, v->sync_parts, false, true);
    unsigned f = wanted(x, v, v->gather_parts, v->gather_each, false);
    unsigned b = v->backward ? wanted(x, v, v->gather_parts, true, true) : 0;

    if (!v->sync_each && x->synced[chunk] != sync)
        return lacks(x, "gradient sync", chunk);
    if (!v->gather_each && x->gathered[chunk] != f)
        return lacks(x, "parameter gather", chunk);
    for (uint32_t mb = first[0]; mb < first[1]; mb++) {
        const struct dt_check_work *w = dt_check_at(x->c, x->l->module, mb, at);

        if (v->sync_each && w->own[OWN_SYNC] != sync)
            return lacks(x, "gradient sync of a microbatch", chunk);
        if (v->gather_each && (w->own[OWN_GATHER_F] != f || w->own[OWN_GATHER_B] != b))
            return lacks(x, "parameter gather of a microbatch", chunk);
    }
    return DT_OK;
}

/* ---- collectives of each microbatch ---- */

/* The op that a collective is for: the part that uses what it gathers, or makes what it reduces. */
static uint32_t part_of(const struct lane *x, const struct dt_op *op)
{
    const struct dt_check_work *w =
        dt_check_at(x->c, op->module, dt_check_mb(x->c, op), dt_check_v(x->c, op));
    uint32_t first = op->kind == DT_OP_GRAD_SYNC
                         ? dt_check_gradients(&x->m->v[dt_check_v(x->c, op)], w)
                     : op->flags & DT_OPF_GRAD ? w->b
                                               : w->f;

    return first + op->part;
}

/* A part waits for its gather, which waits until no more parts are gathered than there is room for; a sync waits for its
 * part, and a part until no more gradients than there is room for are not reduced.  Where they do not overlap with
 * compute there is room for one, and what comes next waits. */
static enum dt_status check_own_part(struct lane *x, struct own *o, uint32_t i)
{
    const struct dt_op *op = &x->c->p->ops[i];
    const struct dt_plan_policy *y = &x->c->p->plan->policy;
    const struct dt_check_vstage *v = &x->m->v[dt_check_v(x->c, op)];
    uint32_t gather = o->gather[number(x, i)], sync = o->sync[number(x, i)];
    uint32_t used = o->part[y->overlap_param], *left = o->left;
    bool reduces = (v->sync_each || v->gather_each) && v->backward &&
                   op->kind == (v->split ? DT_OP_WEIGHT_GRAD : DT_OP_BACKWARD);
    uint32_t before = left[reduces && y->overlap_grad && op->parts > 1];

    if (gather != DT_NONE && !dt_check_after(x->c, i, gather))
        return dt_check_fail(x->c, i, "does not wait for op %u, which gathers its parameters",
                             number(x, gather));
    if (gather != DT_NONE && used != DT_NONE && !dt_check_after(x->c, gather, used))
        return dt_check_fail(x->c, gather, "does not wait for op %u, whose parameters it replaces",
                             number(x, used));
    if (sync != DT_NONE && !dt_check_after(x->c, sync, i))
        return dt_check_fail(x->c, sync, "does not wait for op %u, which makes its gradients",
                             number(x, i));
    if ((reduces || !y->overlap_grad) && before != DT_NONE && !dt_check_after(x->c, i, before))
        return dt_check_fail(x->c, i, "does not wait for op %u, which reduces gradients before",
                             number(x, before));
    o->part[1] = o->part[0];
    o->part[0] = i;
    if (reduces) {
        left[1] = left[0];
        left[0] = sync;
    }
    return DT_OK;
}

static enum dt_status check_own(struct lane *x)
{
    struct own o = {.part = {DT_NONE, DT_NONE}, .left = {DT_NONE, DT_NONE}};
    const struct dt_program *p = x->c->p;
    bool any = false;

    for (int v = x->l->stage; v < x->m->n_v; v += x->m->pp)
        any |= x->m->v[v].sync_each || x->m->v[v].gather_each;
    if (!any)
        return DT_OK;
    o.gather = dt_arena_alloc(&x->c->arena, (size_t)x->l->n + 1, 2 * sizeof(*o.gather));
    if (!o.gather)
        return dt_error_nomem(x->c->err, "check of a program");
    memset(o.gather, 0xff, ((size_t)x->l->n + 1) * 2 * sizeof(*o.gather));
    o.sync = o.gather + x->l->n + 1;
    for (uint32_t i = x->l->first; i < x->l->first + x->l->n; i++)
        if (dt_op_resource(p->ops[i].kind) == DT_RES_COLL && p->ops[i].mb != DT_NONE)
            (p->ops[i].kind == DT_OP_GRAD_SYNC ? o.sync
                                               : o.gather)[number(x, part_of(x, &p->ops[i]))] = i;
    for (uint32_t i = x->l->first; i < x->l->first + x->l->n; i++)
        if (dt_check_is_work(&p->ops[i]))
            DT_TRY(check_own_part(x, &o, i));
    return DT_OK;
}

/* Do the first and last stage of the module hold copies of one trained table? */
static bool shares_table(const struct dt_check *c, int module)
{
    const struct dt_module *mod = &c->model->modules[module];
    const struct dt_block *head = &mod->blocks[mod->n_blocks - 1];

    return module == c->model->llm && c->m[module].pp > 1 && head->kind == DT_BLOCK_LM_HEAD &&
           head->tied && mod->blocks[0].kind == DT_BLOCK_EMBEDDING &&
           dt_plan_trained(c->p->plan, c->model, module, 0);
}

static enum dt_status check_lane(struct dt_check *c, uint32_t lane, uint32_t *norms)
{
    struct lane x = {.c = c, .l = &c->p->lanes[lane]};
    bool trains = false, ends_share;

    x.m = &c->m[x.l->module];
    ends_share = shares_table(c, x.l->module) && (x.l->stage == 0 || x.l->stage == x.m->pp - 1);
    look_at(&x);
    for (uint32_t i = x.l->first; i < x.l->first + x.l->n; i++)
        DT_TRY(check_op(&x, i));
    for (int k = 0; k < x.m->vpp; k++) {
        trains |= x.m->v[k * x.m->pp + x.l->stage].trains;
        DT_TRY(check_buckets(&x, k));
    }
    DT_TRY(check_own(&x));
    if (x.tied != ends_share)
        return x.tied ? dt_error_set(c->err, DT_ERR_INTERNAL,
                                     "program: %s/%d.%d shares a table with no other stage",
                                     c->model->modules[x.l->module].name, x.l->replica, x.l->stage)
                      : lacks(&x, "sync of the shared table", 0);
    if ((x.norm != DT_NONE) != trains || (x.step != DT_NONE) != trains)
        return dt_error_set(c->err, DT_ERR_INTERNAL,
                            "program: %s/%d.%d trains %s and has %s gradient norm and %s step",
                            c->model->modules[x.l->module].name, x.l->replica, x.l->stage,
                            trains ? "parameters" : "nothing", x.norm != DT_NONE ? "a" : "no",
                            x.step != DT_NONE ? "a" : "no");
    if (trains && !dt_check_after(c, x.step, x.norm))
        return dt_check_fail(c, x.step, "does not wait for op %u of its lane, the gradient norm",
                             number(&x, x.norm));
    *norms += trains;
    return DT_OK;
}

enum dt_status dt_check_sync(struct dt_check *c)
{
    uint32_t norms = 0;

    for (int l = 0; l < c->p->n_lanes; l++)
        DT_TRY(check_lane(c, (uint32_t)l, &norms));
    for (uint32_t i = 0; i < c->p->n_ops; i++)
        if (c->p->ops[i].kind == DT_OP_GRAD_NORM && c->p->groups[c->p->ops[i].peer].n != norms)
            return dt_check_fail(c, i, "is over %u lanes; %u train something",
                                 c->p->groups[c->p->ops[i].peer].n, norms);
    return DT_OK;
}
