/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tensor parallelism changes nothing but the order of sums: members that are threads, against one
 * alone.  And: what they keep is what the memory model says, their slices make up the whole, and
 * start from the same values. */
#include "module_util.h"

/* Every kind with members that its heads allow; a U-Net takes any number, also more than there are
 * heads or groups.  Rows (14, and of images more) divide by none of them but 2. */
static const struct tp_case {
    enum mu_kind kind;
    int heads, kv_heads, tp;
    bool whole_rows; /* without sequence parallelism */
} cases[] = {
    {MU_LLAMA, 4, 2, 2, false},        {MU_LLAMA, 8, 4, 4, false},
    {MU_QWEN, 4, 4, 4, false},         {MU_GPT2, 4, 4, 2, false},
    {MU_GPT2, 3, 3, 3, false},         {MU_VIT, 4, 4, 4, false},
    {MU_VIT, 3, 3, 3, false},          {MU_VIT_BARE, 4, 4, 2, false},
    {MU_UNET, 2, 2, 2, false},         {MU_UNET, 5, 5, 3, false},
    {MU_UNET, 2, 2, 4, false},         {MU_UNET_SELF, 3, 3, 2, false},
    {MU_UNET_SELF, 2, 2, 3, false},    {MU_QWEN, 4, 2, 2, true},
    {MU_GPT2, 3, 3, 3, true},          {MU_VIT, 4, 4, 2, true},
    {MU_LLAMA3, 4, 2, 2, false},       {MU_LINEAR, 4, 4, 4, false},
    {MU_GPT2_IDLE, 4, 4, 2, false},    {MU_CLIP, 4, 4, 2, false},
    {MU_UNET_SINE, 2, 2, 2, false},    {MU_MOE, 4, 4, 2, false},
    {MU_MOE, 4, 4, 4, true},           {MU_MIXTRAL, 4, 4, 2, false},
    {MU_MOE_GATE, 4, 4, 4, false},     {MU_MERGE, 4, 4, 2, false},
    {MU_MOE_BIAS, 4, 4, 2, false},     {MU_MOE_GATE_BIAS, 4, 4, 4, true},
    {MU_MIXTRAL_BIAS, 4, 4, 2, false}, {MU_MOE_GATE_BIAS, 4, 4, 2, false},
    {MU_MERGE, 3, 3, 3, true},         {MU_MERGE_LINEAR, 4, 4, 2, false},
    {MU_QWEN_VL, 3, 3, 3, false},      {MU_MERGE_MEAN, 4, 4, 2, false},
    {MU_MERGE_MEAN, 3, 3, 3, true},    {MU_QWEN25_VL, 3, 3, 3, false},
    {MU_QWEN25_VL, 4, 4, 2, true},     {MU_WINDOWS, 4, 4, 2, false},
};
#define FP32_BOUND 1e-4 /* sums in another order; doc/modules.md has what is seen */
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

static int open_case(struct mu *u, int i, uint64_t more)
{
    const struct tp_case *c = &cases[i % CASES];

    mu_open_heads(u, c->kind, dt_test_seed() + more, c->heads, c->kv_heads);
    for (int k = 0; k < u->m.n_blocks; k++)
        u->m.blocks[k].no_seqpar = c->whole_rows;
    return c->tp;
}

/* All parameters moved by 2^bits of themselves. */
static void move(struct mu *u, uint64_t pass, int bits)
{
    for (int i = 0; i < u->n; i++)
        for (int64_t k = 0; k < u->t[i].n; k++)
            u->t[i].v[k] *=
                1 +
                ldexp(dt_rng_normal_at(u->seed + 1, 100 * pass + (uint64_t)i, (uint64_t)k), bits);
}

/* Largest relative difference of a tensor's gradient, of the outputs and of the input's gradient,
 * by norm; and of the loss. */
struct distance {
    double loss, out, in, grad;
    const char *worst;
};

static double apart(const double *a, const double *b, int64_t n, double floor)
{
    double d = 0, sum = 0;

    for (int64_t i = 0; i < n; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        sum += b[i] * b[i];
    }
    return n > 0 ? sqrt(d) / (1e-30 + floor + sqrt(sum)) : 0;
}

static struct distance distance(const struct mu *u, const struct mu_result *a,
                                const struct mu_result *b)
{
    struct distance d = {.worst = "none"};
    double all = 0;
    int64_t n = 0;

    d.loss = fabs(a->loss - b->loss) / (1e-3 + fabs(b->loss));
    d.out = apart(a->out, b->out, u->n_out, 0);
    d.in = apart(a->d_in, b->d_in, u->n_in, 1e-12);
    for (int i = 0; i < u->n; i++, n++)
        for (int64_t k = 0; k < u->t[i].n; k++)
            all += b->g[i][k] * b->g[i][k];
    for (int i = 0; i < u->n; i++) { /* a tensor far below the others is noise of theirs */
        double x = apart(a->g[i], b->g[i], u->t[i].n, 1e-3 * sqrt(all / (double)n));

        if (!(x <= d.grad)) {
            d.grad = x;
            d.worst = u->t[i].name;
        }
    }
    return d;
}

static double largest(const struct distance *d)
{
    return fmax(fmax(d->loss, d->out), fmax(d->in, d->grad));
}

/* b is of `run`.  A network may be more sensitive than most: then the bound is four times what
 * rounding all parameters once more does to it. */
static void near(struct mu *u, const char *why, const struct mu_result *a,
                 const struct mu_result *b, const struct mu_run *run, double bound)
{
    struct distance d = distance(u, a, b);
    struct mu_run alone = *run;
    struct mu_result moved;
    bool may = bound >= FP32_BOUND;

    alone.tp = 0;
    for (uint64_t pass = 0; pass < 10 && may && largest(&d) > bound; pass++) {
        struct distance m;
        double *kept[512];

        ck_assert_int_lt(u->n, 512);
        for (int i = 0; i < u->n; i++) {
            kept[i] = malloc((size_t)u->t[i].n * sizeof(double) + 1);
            memcpy(kept[i], u->t[i].v, (size_t)u->t[i].n * sizeof(double));
        }
        move(u, pass, -24);
        mu_execute(u, &alone, &moved);
        m = distance(u, &moved, b);
        bound = fmax(bound, 4 * largest(&m));
        for (int i = 0; i < u->n; i++) {
            memcpy(u->t[i].v, kept[i], (size_t)u->t[i].n * sizeof(double));
            free(kept[i]);
        }
    }
    ck_assert_msg(d.loss <= bound && d.out <= bound && d.in <= bound && d.grad <= bound,
                  "%s, %s, seed %llu: loss %g, output %g, input's gradient %g, %s %g, bound %g",
                  mu_names[u->kind], why, (unsigned long long)u->seed, d.loss, d.out, d.in, d.worst,
                  d.grad, bound);
}

START_TEST(members_compute_what_one_does)
{
    for (uint64_t s = 0; s < 2; s++) {
        struct mu_run run = {.upstream = true};
        struct mu_result one, all;
        struct mu u;
        int tp = open_case(&u, _i, s);

        run.dropout = s == 1 && u.m.blocks[0].hidden % 4 == 0 ? 0.25f : 0;
        mu_execute(&u, &run, &one);
        run.tp = tp;
        mu_execute(&u, &run, &all);
        near(&u, "members", &all, &one, &run, FP32_BOUND);
        if (one.best)
            for (int r = 0; r < u.llm.rows; r++)
                ck_assert_int_eq(one.best[r], all.best[r]);
        mu_close(&u);
    }
}
END_TEST

START_TEST(recompute_cuts_and_later_weights_go_with_members)
{
    struct mu_run run = {.upstream = true, .n_cuts = 2};
    struct mu_result one, all, again;
    struct mu u;
    int tp = open_case(&u, _i, 7);

    run.cuts[0] = u.m.n_blocks / 3;
    run.cuts[1] = u.m.n_blocks / 2 + 1;
    mu_execute(&u, &run, &one);
    run.tp = tp;
    for (int i = 0; i < 6; i++) {
        run.recompute = (enum dt_block_recompute)(i % 3);
        run.split_backward = i >= 3;
        run.parts = i == 1;
        mu_execute(&u, &run, &again);
        near(&u, dt_block_recompute_names[i % 3], &again, &one, &run, FP32_BOUND);
        if (i == 0)
            all = again;
        else /* the same numbers in the same order but for sums of weight gradients */
            near(&u, "with everything kept", &again, &all, &run, 1e-6);
    }
    mu_close(&u);
}
END_TEST

START_TEST(frozen_blocks_go_with_members)
{
    struct mu_run run = {.frozen = true};
    struct mu_result one, all;
    struct mu u;
    int tp = open_case(&u, _i, 11), n = u.m.n_blocks;

    for (int i = 0; i < 3; i++) {
        run.upstream = i == 1;
        run.freeze_from = i == 2 ? 0 : n / 3;
        run.freeze_to = i == 2 ? n : n - 1;
        run.tp = 0;
        mu_execute(&u, &run, &one);
        run.tp = tp;
        mu_execute(&u, &run, &all);
        near(&u, "frozen", &all, &one, &run, FP32_BOUND);
        for (int k = 0; k < u.n; k++)
            ck_assert_int_eq(one.has[k], all.has[k]);
    }
    mu_close(&u);
}
END_TEST

/* All gradients together. */
static double relative(const struct mu *u, const struct mu_result *a, const struct mu_result *b)
{
    double d = 0, n = 0;

    for (int i = 0; i < u->n; i++)
        for (int64_t k = 0; k < u->t[i].n; k++) {
            d += (a->g[i][k] - b->g[i][k]) * (a->g[i][k] - b->g[i][k]);
            n += b->g[i][k] * b->g[i][k];
        }
    return sqrt(d / n);
}

/* The bounds of one member in bf16 (test_modules_stage.c) hold for several. */
START_TEST(members_in_bf16_are_near_fp32)
{
    struct mu_run run = {.upstream = true};
    struct mu_result full, all, moved;
    double bound = 0, in = 0, out = 0;
    struct mu u;
    int tp;

    if (!dt_test_has_bf16())
        return;
    tp = open_case(&u, _i, 13);
    mu_execute(&u, &run, &full);
    run.dtype = DT_BF16;
    run.tp = tp;
    mu_execute(&u, &run, &all);
    run.dtype = DT_F32;
    run.tp = 0;
    for (uint64_t pass = 0; pass < 3; pass++) {
        struct distance d;

        move(&u, pass, -9);
        mu_execute(&u, &run, &moved);
        d = distance(&u, &moved, &full);
        bound = fmax(bound, relative(&u, &moved, &full));
        in = fmax(in, d.in);
        out = fmax(out, d.out);
    }
    struct distance d = distance(&u, &all, &full);
    double all_of_it = relative(&u, &all, &full);

    ck_assert_msg(d.loss < 0.02 && d.out < 4 * out + 0.005 && d.in < 4 * in + 0.005 &&
                      all_of_it < 4 * bound,
                  "%s: members: loss %g, output %g, input %g, gradients %g; moved: %g, %g, %g",
                  mu_names[u.kind], d.loss, d.out, d.in, all_of_it, out, in, bound);
    ck_assert(all_of_it > 1e-4);
    mu_close(&u);
}
END_TEST

/* ---- memory, slices and first values: these need no collectives ---- */

struct rig {
    struct dt_device *dev;
    struct dt_device_queue *q;
    struct dt_stage *stage;
    struct dt_tp tp;
    struct dt_error err;
};

static void rig_open(struct rig *r, const struct mu *u, struct dt_stage_spec spec, int tp, int rank)
{
    struct dt_device_options opt = {.threads = 1};

    memset(r, 0, sizeof(*r));
    dt_assert_ok(dt_test_device_open(&opt, &r->err, &r->dev), r->err);
    dt_assert_ok(r->dev->queue_new(r->dev, false, &r->err, &r->q), r->err);
    r->tp = (struct dt_tp){.rank = rank, .size = tp};
    spec.module = &u->m;
    spec.last = u->m.n_blocks;
    spec.max = u->max;
    spec.tp = &r->tp;
    dt_assert_ok(dt_stage_new(r->dev, &spec, &r->err, &r->stage), r->err);
}

static void rig_close(struct rig *r)
{
    dt_stage_free(r->stage);
    r->dev->queue_free(r->q);
    r->dev->close(r->dev);
}

/* The widest member (0) keeps what the model says where rows divide; the others no more. */
START_TEST(saved_memory_is_the_models_figure)
{
    struct mu u;
    int tp = open_case(&u, _i, 0);
    const struct dt_block_shard shard = {
        .tp = tp, .cp = 1, .ep = 1, .ip = 1, .seqpar = true, .any_routing = true};
    const struct dt_work w = {3, 96, 3 * 32 * 32, 32};
    const struct dt_batch b = {.module = &u.m, .rows = 96, .n_seq = 3, .max_len = 32};

    for (int i = 0; i < (dt_test_has_bf16() ? 6 : 3); i++) {
        struct dt_stage_spec spec = {.recompute = (enum dt_block_recompute)(i % 3),
                                     .dtype = i < 3 ? DT_F32 : DT_BF16};

        for (int rank = 0; rank < tp; rank++) {
            struct rig r;

            rig_open(&r, &u, spec, tp, rank);
            for (int k = 0; k < u.m.n_blocks; k++) {
                double want = dt_block_act_bytes_of(&u.m.blocks[k], &shard, &w, spec.recompute,
                                                    (int)dt_dtype_bytes(spec.dtype));
                double got = (double)dt_stage_block_bytes(r.stage, &b, k);

                ck_assert_msg(rank == 0 ? got == want : got <= want,
                              "%s, tp %d, member %d, block %d (%s), %s, %s: %.0f bytes, model %.1f",
                              mu_names[u.kind], tp, rank, k, dt_block_kind_name(u.m.blocks[k].kind),
                              dt_block_recompute_names[spec.recompute],
                              spec.dtype ? "bf16" : "fp32", got, want);
            }
            rig_close(&r);
        }
    }
    mu_close(&u);
}
END_TEST

START_TEST(slices_start_as_the_whole)
{
    struct mu u;
    int tp = open_case(&u, _i, 0), n, m;
    struct dt_stage_spec spec = {0};
    const struct dt_param *p, *q;
    struct rig whole, part;
    const float *a, *b;
    int *seen;

    rig_open(&whole, &u, spec, 1, 0);
    dt_stage_init(whole.q, whole.stage, 99);
    p = dt_stage_params(whole.stage, &n);
    seen = calloc(dt_stage_param_floats(whole.stage), sizeof(*seen));
    for (int rank = 0; rank < tp; rank++) {
        rig_open(&part, &u, spec, tp, rank);
        dt_stage_init(part.q, part.stage, 99);
        q = dt_stage_params(part.stage, &m);
        ck_assert_int_eq(m, n);
        a = dt_test_host(dt_stage_master(whole.stage));
        b = dt_test_host(dt_stage_master(part.stage));
        for (int i = 0; i < n; i++) {
            struct dt_param_range r = dt_stage_range(part.stage, q[i].block);
            size_t held = 0;

            ck_assert_str_eq(p[i].name, q[i].name);
            ck_assert_int_eq(memcmp(p[i].shape, q[i].shape, sizeof(p[i].shape)), 0);
            ck_assert(q[i].replicated == (q[i].n_pieces == 0));
            ck_assert(q[i].n == 0 || q[i].at < r.at + r.n_experts ||
                      q[i].replicated == (q[i].at >= r.replicated_at &&
                                          q[i].at < r.replicated_at + r.n_replicated));
            ck_assert(q[i].at >= r.at + (q[i].decay ? 0 : r.n_decay) ||
                      (q[i].at >= r.at && q[i].at + q[i].n <= r.at + r.n_experts));
            ck_assert_uint_le(q[i].at + q[i].n, r.at + (q[i].decay ? r.n_decay : r.n));
            for (int64_t k = 0; k < dt_param_runs(&q[i]); k++) {
                struct dt_param_run run = dt_param_run(&q[i], k);
                size_t at = p[i].at + run.whole;

                ck_assert_uint_le(run.whole + run.n, p[i].n);
                ck_assert_int_eq(memcmp(a + at, b + q[i].at + run.at, run.n * 4), 0);
                for (size_t j = 0; j < run.n; j++)
                    seen[at + j]++;
                held += run.n;
            }
            ck_assert_uint_eq(held, q[i].n);
        }
        for (int i = 0; rank == tp - 1 && i < n; i++)
            for (size_t j = 0; j < p[i].n; j++)
                ck_assert_int_eq(seen[p[i].at + j], q[i].replicated ? tp : 1);
        rig_close(&part);
    }
    free(seen);
    rig_close(&whole);
    mu_close(&u);
}
END_TEST

START_TEST(heads_that_members_do_not_divide_are_refused)
{
    struct dt_device_options opt = {.threads = 1};
    struct dt_tp tp = {.rank = 0, .size = 4};
    struct dt_stage_spec spec = {.tp = &tp};
    struct dt_device *dev = NULL;
    struct dt_stage *s = NULL;
    struct dt_error err;
    struct mu u;

    mu_open(&u, MU_LLAMA, 1);
    spec.module = &u.m;
    spec.last = u.m.n_blocks;
    spec.max = u.max;
    dt_assert_ok(dt_test_device_open(&opt, &err, &dev), err);
    ck_assert_int_eq(dt_stage_new(dev, &spec, &err, &s), DT_ERR_INPUT);
    dt_assert_has(err.message, "tp 4 does not divide the 4 heads (2 key/value heads)");
    dev->close(dev);
    mu_close(&u);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("modules_tp");
    TCase *c = dt_test_case(s, "members", 240);

    tcase_add_loop_test(c, members_compute_what_one_does, 0, CASES);
    tcase_add_loop_test(c, recompute_cuts_and_later_weights_go_with_members, 0, CASES);
    tcase_add_loop_test(c, frozen_blocks_go_with_members, 0, CASES);
    tcase_add_loop_test(c, members_in_bf16_are_near_fp32, 0, CASES);
    tcase_add_loop_test(c, saved_memory_is_the_models_figure, 0, CASES);
    tcase_add_loop_test(c, slices_start_as_the_whole, 0, CASES);
    tcase_add_test(c, heads_that_members_do_not_divide_are_refused);
    return dt_test_run(s);
}
