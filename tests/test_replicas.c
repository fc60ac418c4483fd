/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * More encoder replicas than a slot has samples: with transfers that take no time they do not make an iteration
 * longer.
 *
 * Samples are alike here.  Where they are not, replicas that take samples in turn may get the large ones together, and
 * one replica more can make that worse. */
#include "random_plan.h"

static struct sched_fixture s; /* large: not on the stack */

/* Of the order that a program takes when a list schedule is shorter than 1F1B: the list schedule of a few replicas may be
 * lucky and that of a few more not, which are slower then but still no slower than by 1F1B. */
#define LUCK 1.06
#define ROUNDING 1.0001 /* one nanosecond an op */

static void equal_samples(int64_t n, int images)
{
    uint64_t at = 0;

    ck_assert_int_le((int64_t)(images + 1) * n, SF_ITEMS_MAX);
    sf_samples(&s, n, 0, 0, false, 1);
    for (int64_t i = 0; i < n; i++) {
        s.item_first[i] = at;
        for (int k = 0; k <= images; k++)
            s.items[at++] =
                (struct dt_sample_item){.w = 128,
                                        .h = 128,
                                        .kind = DT_MODALITY_IMAGE,
                                        .flags = k < images ? DT_ITEM_ENCODE : DT_ITEM_GENERATE};
    }
    s.item_first[n] = at;
}

/* Of a checked program, with free transfers, collectives and steps. */
static int64_t iteration_ns(struct dt_cost *cost)
{
    struct dt_durations d;
    int64_t ns;

    sf_assign(&s);
    dt_assert_ok(dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &s.p),
                 s.err);
    dt_assert_ok(dt_program_check(s.p, &s.f.model, &s.err), s.err);
    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                 s.err);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (dt_op_resource(s.p->ops[i].kind) != DT_RES_COMPUTE || s.p->ops[i].kind == DT_OP_STEP)
            d.ns[i] = 0;
    ns = sf_makespan(&s, d.ns);
    dt_durations_free(&d);
    sf_free_program(&s);
    return ns;
}

struct shape {
    int enc_layers, enc_tp, enc_pp, images; /* encoder */
    int layers, pp, dp, microbatch, slots;  /* LLM */
    int gen_layers, gen_pp, gen_dp;         /* generator; 0 layers: none */
    bool frozen;                            /* the encoder */
};

static struct shape random_shape(struct dt_rng *r)
{
    struct shape x = {.enc_layers = 2 + sf_below(r, 7),
                      .enc_tp = 1 << sf_below(r, 2),
                      .enc_pp = 1 + sf_below(r, 2),
                      .images = 1 + sf_below(r, 6),
                      .layers = 4 + sf_below(r, 7),
                      .pp = 1 + sf_below(r, 4),
                      .dp = 1 + sf_below(r, 4),
                      .microbatch = 1 + sf_below(r, 2),
                      .slots = 2 + sf_below(r, 12),
                      .frozen = sf_below(r, 4) == 0};

    if (sf_below(r, 2)) {
        x.gen_layers = 2 + sf_below(r, 4);
        x.gen_pp = 1 + sf_below(r, 2);
        x.gen_dp = 1 + sf_below(r, x.dp * x.microbatch);
    }
    return x;
}

static struct dt_cost *build(const struct shape *x)
{
    const struct dt_cost_options free_of_gaps = {.allow_analytical = true};
    struct dt_cost *cost;
    int64_t batch = (int64_t)x->slots * x->dp * x->microbatch;
    int e, llm;

    sf_init(&s);
    fx_profile(&s.f, false);
    e = sf_encoder(&s, "encoder", x->enc_layers);
    llm = sf_llm(&s, x->layers);
    sf_edge(&s, e, llm);
    if (x->gen_layers > 0) {
        sf_generator(&s, "generator", x->gen_layers);
        sf_edge(&s, llm, llm + 1);
    }
    sf_plan(&s, batch, x->microbatch, DT_SCHED_1F1B);
    sf_layout(&s, llm, 1, x->pp, 1, x->dp);
    if (x->gen_layers > 0)
        sf_layout(&s, llm + 1, 1, x->gen_pp, 1, x->gen_dp);
    s.plan.modules[e].frozen = x->frozen;
    equal_samples(batch, x->images);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &free_of_gaps, &s.err, &cost),
                 s.err);
    return cost;
}

static int64_t with_encoders(const struct shape *x, struct dt_cost *cost, int dp)
{
    sf_layout(&s, 0, x->enc_tp, x->enc_pp, 1, dp);
    return iteration_ns(cost);
}

START_TEST(more_encoders_are_not_slower)
{
    uint64_t seed = dt_test_seed();
    int tried = 0, slower = 0;

    for (int round = 0; round < 80; round++) {
        struct dt_cost *cost;
        struct dt_rng r;
        struct shape x;
        int64_t least = INT64_MAX;
        int slot;

        dt_rng_init(&r, seed, 9000 + (uint64_t)round);
        x = random_shape(&r);
        cost = build(&x);
        slot = x.dp * x.microbatch;
        for (int dp = 1; dp <= 3 * slot && dp <= x.slots * slot; dp++) {
            int64_t ns = with_encoders(&x, cost, dp);

            ck_assert_msg((double)ns <= (dp > slot ? LUCK : ROUNDING) * (double)least,
                          "seed %" PRIu64 " round %d: %d encoder replicas for slots of %d take "
                          "%.3f ms, fewer %.3f ms",
                          seed, round, dp, slot, (double)ns * 1e-6, (double)least * 1e-6);
            tried += dp > slot;
            slower += (double)ns > ROUNDING * (double)least;
            least = ns < least ? ns : least;
        }
        dt_cost_free(cost);
        sf_free(&s);
    }
    ck_assert_msg(slower * 20 <= tried,
                  "seed %" PRIu64 ": slower than with fewer in %d of %d cases", seed, slower,
                  tried);
}
END_TEST

/* Ratios that do not divide and ratios that do; more than a slot has samples changes nothing where the LLM binds. */
START_TEST(beyond_the_slot_the_llm_binds)
{
    static const int replicas[] = {5, 6, 7, 8, 11, 12};
    const struct shape x = {.enc_layers = 2,
                            .enc_tp = 1,
                            .enc_pp = 1,
                            .images = 1,
                            .layers = 10,
                            .pp = 4,
                            .dp = 4,
                            .microbatch = 1,
                            .slots = 12};
    struct dt_cost *cost = build(&x);
    int64_t slot = with_encoders(&x, cost, 4);

    for (size_t i = 0; i < sizeof(replicas) / sizeof(replicas[0]); i++)
        ck_assert_double_eq_tol((double)with_encoders(&x, cost, replicas[i]), (double)slot,
                                1e-4 * (double)slot);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("replicas");
    TCase *c = dt_test_case(u, "replicas", 120);

    tcase_add_test(c, more_encoders_are_not_slower);
    tcase_add_test(c, beyond_the_slot_the_llm_binds);
    return dt_test_run(u);
}
