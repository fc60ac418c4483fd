/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * ZeRO-1 in bf16: matrices travel rounded, and it makes no difference.
 *
 * Without ZeRO every rank steps, and so knows, all parameters in fp32.  With it a rank knows its
 * own and what it is sent.  Gradients are the same sums of the same parts, in the same order; so
 * unless something else than a product reads what has been rounded, both train alike to the bit. */
#include "base/bf16.h"
#include "execute_ranks.h"

enum { STEPS = 3 };
enum { SHARDED, WHOLE, APART, WAYS };

static struct outcome {
    double text[STEPS], image[STEPS], norm[STEPS];
    uint64_t parameters;   /* of all stages here, a hash of their bits */
    size_t rounded, exact; /* floats of others' matrices, and of others' other parameters */
} outcomes[WAYS][RANKS_MAX];

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static bool owns(const struct dt_optimizer *o, size_t at)
{
    for (int i = 0; i < o->n_segments; i++)
        if (at >= o->segments[i].at && at < o->segments[i].at + o->segments[i].n)
            return true;
    return false;
}

/* What others have stepped came rounded where products read it, and only there.  A stage that keeps a rounded copy
 * has it there instead, and has rounded what it has stepped itself. */
static void look_at_stage(struct dt_stage *s, const struct dt_optimizer *opt, struct outcome *o)
{
    const uint16_t *copy = dt_stage_rounded(s) ? dt_test_host(dt_stage_rounded(s)) : NULL;
    const float *w = dt_test_host(dt_stage_master(s));
    int n;
    const struct dt_param *p = dt_stage_params(s, &n);

    for (int i = 0; i < n; i++)
        for (size_t k = p[i].at; opt->sharded && k < p[i].at + p[i].n; k++) {
            bool behind = copy && !p[i].looked_up;

            if (!dt_stage_trained(s, p[i].block))
                continue;
            if (owns(opt, k)) {
                ck_assert_msg(!copy || copy[k] == dt_bf16_from_f32(w[k]), "%s[%zu] is %a, not %a",
                              p[i].name, k - p[i].at, (double)dt_bf16_to_f32(copy[k]),
                              (double)w[k]);
                continue;
            }
            o->rounded += p[i].rounded;
            o->exact += !p[i].rounded && bits_of(w[k]) & 0xffff;
            ck_assert_msg(!p[i].rounded || p[i].tied || behind || (bits_of(w[k]) & 0xffff) == 0,
                          "%s[%zu] is %a", p[i].name, k - p[i].at, (double)w[k]);
        }
}

static void hash_stage(struct dt_stage *s, struct outcome *o)
{
    const float *w = dt_test_host(dt_stage_master(s));
    int n;
    const struct dt_param *p = dt_stage_params(s, &n);

    for (int i = 0; i < n; i++)
        for (size_t k = p[i].at; k < p[i].at + p[i].n; k++)
            o->parameters = (o->parameters ^ bits_of(w[k])) * UINT64_C(0x100000001b3);
}

/* Replicas here share what the first of them owns. */
static void each_stage(struct exec_fixture *f, bool hash, struct outcome *o)
{
    for (int m = 0; m < f->model->n_modules; m++) {
        const struct dt_plan_layout *l = &f->plan.modules[m].layout;

        for (int v = 0; v < l->pp * l->vpp; v++) {
            const struct dt_optimizer *leads = NULL;

            for (int r = 0; r < l->dp; r++) {
                struct dt_stage *s = dt_exec_stage(f->x, m, r, v);

                if (!s)
                    continue;
                leads = leads ? leads : dt_exec_optimizer(f->x, m, r, v);
                if (hash)
                    hash_stage(s, o);
                else
                    look_at_stage(s, leads, o);
            }
        }
    }
}

static void *train_in_bf16(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    struct outcome *o = &outcomes[r->w->way][r->t->rank];

    ck_assert_ptr_nonnull(f);
    *o = (struct outcome){0};
    open_rank(f, r);
    if (r->w->open) {
        f->dev->close(f->dev);
        dt_assert_ok(r->w->open(&(struct dt_device_options){.threads = 1}, &f->err, &f->dev),
                     f->err);
    }
    f->no_clip = true; /* the norm is a sum over owners, in another order */
    ef_open(f);
    for (int i = 0; i < STEPS; i++) {
        struct dt_exec_result x = ef_step(f, i + 1);

        o->text[i] = x.loss_text;
        o->image[i] = x.loss_image;
        o->norm[i] = x.grad_norm;
    }
    each_stage(f, false, o);
    dt_assert_ok(dt_exec_gather(f->x, &f->err), f->err);
    each_stage(f, true, o);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

static bool gathers(const struct ranks_case *c)
{
    for (int m = 0; m < MODULES; m++)
        if (c->l[m].dp > 1 && c->zero[m] > 0)
            return true;
    return c->cp > 1 && c->mpi; /* a share of what else gathers */
}

/* Groups add up in another order than all ranks at once. */
static bool in_groups(const struct ranks_case *c)
{
    return c->zero_group[0] > 0 || c->zero_group[1] > 0 || c->zero_group[2] > 0;
}

/* Optimizer states sharded or not, of all modules or of some: the same bits. */
START_TEST(rounding_what_is_gathered_changes_nothing)
{
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    size_t rounded = 0, exact = 0;
    struct ranks_case c;

    ck_assert_ptr_nonnull(ranks);
    read_layout(_i, &c);
    if (gathers(&c) && !in_groups(&c) && is_looked_at(&c, _i, ODD) && dt_test_has_bf16()) {
        c.bf16 = true;
        for (int way = 0; way < WAYS; way++) {
            for (int m = 0; m < MODULES; m++)
                c.zero[m] = way == APART ? m % 2 : way == SHARDED;
            run_ranks(&(struct world){.c = &c, .ranks = ranks_of(&c), .way = way}, ranks,
                      train_in_bf16);
        }
        for (int i = 0; i < (WAYS - 1) * ranks_of(&c); i++) {
            int k = i % ranks_of(&c);
            const struct outcome *a = &outcomes[SHARDED][k];
            const struct outcome *b = &outcomes[WHOLE + i / ranks_of(&c)][k];

            for (int t = 0; t < STEPS; t++)
                ck_assert_msg(a->text[t] == b->text[t] && a->image[t] == b->image[t],
                              "%s: step %d on rank %d: losses %.17g and %.17g, not %.17g and %.17g",
                              c.name, t + 1, k, a->text[t], a->image[t], b->text[t], b->image[t]);
            ck_assert_msg(a->parameters == b->parameters, "%s: parameters on rank %d differ",
                          c.name, k);
            rounded += a->rounded;
            exact += a->exact;
        }
        /* where ranks have several GPUs, one may have all replicas of its stages: nothing is gathered then */
        ck_assert_msg(rounded > 1000 || c.ranks > 0, "%s: nothing was gathered", c.name);
        ck_assert_msg(exact > 10 || c.ranks > 0, "%s: nothing was gathered exactly", c.name);
    }
    free(ranks);
}
END_TEST

/* A device that packs weights and one on which stages keep a rounded copy, which AdamW writes and ZeRO-1 gathers:
 * the same bits. */
START_TEST(a_rounded_copy_changes_nothing)
{
    static enum dt_status (*const open[])(const struct dt_device_options *, struct dt_error *,
                                          struct dt_device **) = {dt_device_open_cpu,
                                                                  dt_fake_device_open};
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    struct ranks_case c;
    int i = 0;

    ck_assert_ptr_nonnull(ranks);
    for (read_layout(0, &c); strcmp(c.name, "fan-in 4/2/1") != 0; read_layout(++i, &c))
        ck_assert_int_lt(i, n_layouts());
    c.bf16 = true;
    for (int way = 0; way < 2 && dt_test_has_bf16(); way++)
        run_ranks(
            &(struct world){
                .c = &c, .ranks = ranks_of(&c), .way = way, .own_devices = true, .open = open[way]},
            ranks, train_in_bf16);
    for (int k = 0; k < ranks_of(&c) && dt_test_has_bf16(); k++) {
        const struct outcome *a = &outcomes[0][k], *b = &outcomes[1][k];

        for (int t = 0; t < STEPS; t++) {
            ck_assert(a->text[t] == b->text[t]);
            ck_assert(a->image[t] == b->image[t]);
        }
        ck_assert_msg(a->parameters == b->parameters, "parameters on rank %d differ", k);
    }
    free(ranks);
}
END_TEST

/* Losses and gradients of keys and values that go round are those of keys and values that are gathered.  Both round to bf16
 * (2^-9) what they keep, the ring each part's gradients of queries, too; the first step's gradients come of the same
 * parameters, the others' of ones that differ by a step's rounding. */
START_TEST(a_ring_is_near_to_gathering)
{
    static const char *const names[] = {"cp 2, ring", "cp 4, ring", "cp 2, ring, pp 2"};
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    struct ranks_case c;
    int i = 0;

    ck_assert_ptr_nonnull(ranks);
    for (read_layout(0, &c); strcmp(c.name, names[_i]) != 0; read_layout(++i, &c))
        ck_assert_int_lt(i, n_layouts());
    ck_assert(c.ring);
    c.bf16 = true;
    for (int way = 0; way < 2 && dt_test_has_bf16(); way++) {
        c.ring = way == 0;
        run_ranks(&(struct world){.c = &c, .ranks = ranks_of(&c), .way = way}, ranks,
                  train_in_bf16);
    }
    for (int t = 0; t < STEPS && dt_test_has_bf16(); t++) {
        const struct outcome *a = &outcomes[0][0], *b = &outcomes[1][0];

        printf("%s, step %d: losses %.6f %.6f (gathered %.6f %.6f), norm %.6f (%.6f)\n", c.name,
               t + 1, a->text[t], a->image[t], b->text[t], b->image[t], a->norm[t], b->norm[t]);
        ck_assert_double_gt(b->norm[t], 0);
        ck_assert_double_lt(fabs(a->text[t] / b->text[t] - 1), 0x1p-9);
        ck_assert_double_lt(fabs(a->image[t] / b->image[t] - 1), 0x1p-9);
        ck_assert_double_lt(fabs(a->norm[t] / b->norm[t] - 1), t == 0 ? 0x1p-11 : 0x1p-7);
    }
    free(ranks);
}
END_TEST

void add_bf16_tests(TCase *t)
{
    tcase_add_test(t, a_rounded_copy_changes_nothing);
    tcase_add_loop_test(t, rounding_what_is_gathered_changes_nothing, 0, n_rows());
}

void add_ring_tests(TCase *t)
{
    tcase_add_loop_test(t, a_ring_is_near_to_gathering, 0, 3);
}
