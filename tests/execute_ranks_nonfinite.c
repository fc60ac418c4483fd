/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A step that is not made leaves no trace, on no rank.
 *
 * One value of one rank's parameters becomes NaN for an iteration: nobody steps, everybody says
 * where it is, and when it is mended all go on as ranks do that declined the step for no reason, to
 * the bit. */
#include "execute_ranks.h"

static struct outcome {
    double loss, norm;                  /* of the step after */
    uint64_t bits;                      /* of all parameters here and of the moments, in the end */
    char culprit[160];                  /* that this rank has spoiled; "" = none */
    struct dt_exec_culprit param, grad; /* what it was told */
    bool applied;
} outcomes[2][RANKS_MAX];
static bool spoiling;

/* ---- bits of what a rank owns ---- */

static void hash(uint64_t *h, const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;

        memcpy(&u, &v[i], sizeof(u));
        *h = (*h ^ u) * UINT64_C(0x100000001b3);
    }
}

static void hash_stage(uint64_t *h, const struct exec_fixture *f, int m, int r, int v, bool all)
{
    struct dt_stage *s = dt_exec_stage(f->x, m, r, v);
    const struct dt_optimizer *o = dt_exec_optimizer(f->x, m, r, v);
    const float *master, *avg, *avg_sq;
    const struct dt_param *p;
    int n;

    if (!s)
        return;
    p = dt_stage_params(s, &n);
    master = dt_test_host(dt_stage_master(s));
    avg = dt_test_host(o->exp_avg);
    avg_sq = dt_test_host(o->exp_avg_sq);
    for (int i = 0; all && i < n; i++)
        hash(h, master + p[i].at, p[i].n);
    for (int i = 0; i < o->n_segments; i++) {
        hash(h, master + o->segments[i].at, o->segments[i].n);
        hash(h, avg + o->segments[i].moment, o->segments[i].n);
        hash(h, avg_sq + o->segments[i].moment, o->segments[i].n);
    }
}

/* `all`: also what others step, which must have been gathered. */
static uint64_t hash_rank(const struct exec_fixture *f, bool all)
{
    uint64_t h = 1;

    for (int m = 0; m < f->model->n_modules; m++) {
        const struct dt_plan_layout *l = &f->plan.modules[m].layout;

        for (int r = 0; r < l->dp; r++)
            for (int v = 0; v < l->pp * l->vpp; v++)
                hash_stage(&h, f, m, r, v, all);
    }
    return h;
}

/* ---- spoiling ---- */

struct victim {
    struct dt_stage *stage;
    const struct dt_param *p;
    size_t at;
};

/* A value that this rank owns and every sequence of text reads: of the LLM, of no table. */
static bool pick_of(const struct exec_fixture *f, int m, int r, int v, struct victim *out)
{
    struct dt_stage *s = dt_exec_stage(f->x, m, r, v);
    const struct dt_optimizer *o = dt_exec_optimizer(f->x, m, r, v);
    const struct dt_param *p;
    int n;

    if (!s)
        return false;
    p = dt_stage_params(s, &n);
    for (int i = 0; i < n; i++) {
        if (p[i].tied || f->model->modules[m].blocks[p[i].block].kind == DT_BLOCK_EMBEDDING)
            continue;
        *out = (struct victim){s, &p[i], p[i].at};
        if (!dt_stage_trained(s, p[i].block))
            return true;
        for (int k = 0; k < o->n_segments; k++) {
            const struct dt_optimizer_segment *x = &o->segments[k];

            if (x->at < p[i].at + p[i].n && p[i].at < x->at + x->n) {
                out->at = x->at > p[i].at ? x->at : p[i].at;
                return true;
            }
        }
    }
    return false;
}

static bool pick(const struct exec_fixture *f, struct victim *out)
{
    for (int m = 0; m < f->model->n_modules; m++) {
        const struct dt_plan_layout *l = &f->plan.modules[m].layout;

        if (f->model->modules[m].role == DT_ROLE_LLM)
            for (int r = 0; r < l->dp; r++)
                for (int v = 0; v < l->pp * l->vpp; v++)
                    if (pick_of(f, m, r, v, out))
                        return true;
    }
    return false;
}

/* The rank of the layout whose turn it is, of those that can. */
static bool my_turn(struct exec_fixture *f, bool can, int rank, int ranks)
{
    double all[RANKS_MAX] = {0};
    int n = 0, k = 0, turn;

    all[rank] = can;
    dt_assert_ok(dt_exec_sum(f->x, all, (size_t)ranks, &f->err), f->err);
    for (int r = 0; r < ranks; r++)
        n += all[r] > 0;
    ck_assert_int_gt(n, 0);
    turn = ranks % n;
    for (int r = 0; r < rank; r++)
        k += all[r] > 0;
    return can && k == turn;
}

static bool decline(void *ctx, const struct dt_exec_result *r)
{
    (void)ctx;
    ck_assert(isfinite(r->loss) && isfinite(r->grad_norm));
    return false;
}

static void write_value(const struct exec_fixture *f, const struct victim *v, float x)
{
    struct dt_device_queue *q;

    (void)f;
    ((float *)dt_test_host(dt_stage_master(v->stage)))[v->at] = x;
    dt_assert_ok(f->dev->queue_new(f->dev, false, (struct dt_error *)&f->err, &q), f->err);
    dt_stage_changed(q, v->stage, v->p->block, v->p->block + 1);
    f->dev->queue_free(q);
}

/* An iteration that is not applied. */
static void idle(struct exec_fixture *f, struct rank *r, struct outcome *o)
{
    struct victim v = {0};
    bool turn = spoiling && my_turn(f, pick(f, &v), r->t->rank, r->w->ranks);
    float was = turn ? ((float *)dt_test_host(dt_stage_master(v.stage)))[v.at] : 0;
    uint64_t before = hash_rank(f, false);

    if (turn) {
        snprintf(o->culprit, sizeof(o->culprit), "llm.%s", v.p->name);
        write_value(f, &v, NAN);
    }
    f->accept = spoiling ? NULL : decline;
    o->applied = ef_step(f, 2).applied;
    f->accept = NULL;
    if (spoiling)
        dt_assert_ok(dt_exec_find_nonfinite(f->x, &f->err, &o->param, &o->grad), f->err);
    if (turn)
        write_value(f, &v, was);
    ck_assert_msg(hash_rank(f, false) == before, "rank %d has stepped", r->t->rank);
}

static void *skip_a_step(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    struct outcome *o = &outcomes[spoiling][r->t->rank];
    struct dt_exec_result x;

    ck_assert_ptr_nonnull(f);
    *o = (struct outcome){0};
    open_rank(f, r);
    ef_open(f);
    ck_assert(ef_step(f, 1).applied);
    idle(f, r, o);
    x = ef_step(f, 3);
    ck_assert(x.applied);
    o->loss = x.loss;
    o->norm = x.grad_norm;
    dt_assert_ok(dt_exec_gather(f->x, &f->err), f->err);
    o->bits = hash_rank(f, true);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

START_TEST(a_step_that_is_not_made_leaves_no_trace)
{
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    const char *culprit = "";
    struct ranks_case c;

    ck_assert_ptr_nonnull(ranks);
    read_layout(_i, &c);
    if (!is_looked_at(&c, _i, ODD)) {
        free(ranks);
        return;
    }
    for (int k = 0; k < 2; k++) {
        spoiling = k;
        run_ranks(&(struct world){.c = &c, .ranks = ranks_of(&c)}, ranks, skip_a_step);
    }
    for (int k = 0; k < ranks_of(&c); k++)
        culprit = outcomes[1][k].culprit[0] ? outcomes[1][k].culprit : culprit;
    for (int k = 0; k < ranks_of(&c); k++) {
        const struct outcome *a = &outcomes[0][k], *b = &outcomes[1][k];

        ck_assert_msg(!a->applied && !b->applied, "%s: rank %d stepped", c.name, k);
        ck_assert_msg(strcmp(b->param.name, culprit) == 0, "%s: rank %d: \"%s\", not \"%s\"",
                      c.name, k, b->param.name, culprit);
        ck_assert_uint_eq(dt_nonfinite_all(&b->param.bad), 1);
        ck_assert_uint_ge(b->grad.values, dt_nonfinite_all(&b->grad.bad));
        ck_assert(!b->grad.name[0] == !b->grad.values);
        ck_assert_msg(a->loss == b->loss && a->norm == b->norm,
                      "%s: rank %d: loss %.17g and norm %.17g, not %.17g and %.17g", c.name, k,
                      b->loss, b->norm, a->loss, a->norm);
        ck_assert_msg(a->bits == b->bits, "%s: parameters on rank %d differ", c.name, k);
    }
    free(ranks);
}
END_TEST

void add_nonfinite_tests(TCase *t)
{
    tcase_add_loop_test(t, a_step_that_is_not_made_leaves_no_trace, 0, n_rows());
}
