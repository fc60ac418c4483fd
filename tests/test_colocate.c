/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Colocated modules: lanes that share GPUs take turns, whatever the durations are. */
#include "random_plan.h"

#include "core/schedule/timeline.h"

#include <math.h>
#include <stdio.h>

static struct sched_fixture s; /* large: not on the stack */

static bool is_compute(uint32_t i)
{
    return dt_op_resource(s.p->ops[i].kind) == DT_RES_COMPUTE;
}

static bool share_gpu(uint32_t i, uint32_t j)
{
    const struct dt_lane *a = &s.p->lanes[s.p->ops[i].lane], *b = &s.p->lanes[s.p->ops[j].lane];

    return a->first_gpu < b->first_gpu + b->gpus && b->first_gpu < a->first_gpu + a->gpus;
}

/* Random durations: no two compute ops of a GPU overlap. */
static void check_turns(struct dt_rng *r)
{
    int64_t *ns = calloc((size_t)s.p->n_ops + 1, sizeof(*ns));
    struct dt_timeline_topo topo = {0};
    struct dt_timeline t = {0};

    ck_assert_ptr_nonnull(ns);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        ns[i] = s.p->ops[i].kind == DT_OP_RECV ? 0 : 1 + (int64_t)dt_rng_below(r, 1000);
    for (uint32_t g = 0; g < s.p->n_groups; g++) /* members of a group last equally long */
        for (uint32_t k = 1; k < s.p->groups[g].n; k++)
            ns[s.p->group_ops[s.p->groups[g].first + k]] = ns[s.p->group_ops[s.p->groups[g].first]];
    dt_assert_ok(dt_timeline_topo_build(s.p, &s.err, &topo), s.err);
    dt_assert_ok(dt_timeline_eval(s.p, &topo, ns, &s.err, &t), s.err);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        for (uint32_t j = i + 1; j < s.p->n_ops; j++)
            if (is_compute(i) && is_compute(j) && share_gpu(i, j))
                ck_assert_msg(t.end_ns[i] <= t.begin_ns[j] || t.end_ns[j] <= t.begin_ns[i],
                              "ops %u and %u overlap", i, j);
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&t);
    free(ns);
}

static void build(int pe, int pl, int pg, int de, int dl, int dg, int n,
                  enum dt_pipe_schedule schedule)
{
    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, (int64_t)n * dl, 1, schedule);
    sf_layout(&s, 0, 1, pe, 1, de);
    sf_layout(&s, 1, 1, pl, 1, dl);
    sf_layout(&s, 2, 1, pg, 1, dg);
    s.plan.colocated = true;
    sf_samples(&s, (int64_t)n * dl, 2, 1, true, 5);
    sf_compile(&s);
}

START_TEST(lanes_of_a_gpu_never_overlap)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;

    dt_rng_init(&r, seed, 21);
    for (int c = 0; c < 40; c++) {
        int v[6];

        for (int k = 0; k < 6; k++)
            v[k] = 1 + (int)dt_rng_below(&r, k < 3 ? 3 : 2);
        printf("seed %" PRIu64 " case %d: pp %d %d %d dp %d %d %d\n", seed, c, v[0], v[1], v[2],
               v[3], v[4], v[5]);
        build(v[0], v[1], v[2], v[3], v[4], v[5], 2 + (int)dt_rng_below(&r, 5),
              c % 5 == 4 ? DT_SCHED_GPIPE : DT_SCHED_1F1B);
        check_turns(&r);
        sf_free(&s);
    }
}
END_TEST

/* The same for plans in which some modules are guests and others are not, with durations from costs or without. */
START_TEST(guests_and_hosts_never_overlap)
{
    uint64_t seed = dt_test_seed();
    int guests = 0;
    struct dt_rng r;

    dt_rng_init(&r, seed, 23);
    for (int round = 0; round < 150; round++) {
        sf_random(&s, seed, round, true);
        printf("seed %" PRIu64 " round %d\n", seed, round);
        sf_compile(&s);
        for (int m = 0; m < s.plan.n_modules; m++)
            guests += s.plan.modules[m].with > 0;
        if (s.p->n_ops < 1000)
            check_turns(&r);
        sf_free(&s);
    }
    ck_assert_int_gt(guests, 10);
}
END_TEST

START_TEST(one_gpu_holds_one_microbatch)
{
    uint32_t at = DT_NONE;
    uint64_t work = 0;
    int64_t f[DT_MAX_VSTAGES] = {300}, b[DT_MAX_VSTAGES] = {700}, *ns;

    build(1, 1, 1, 1, 1, 1, 6, DT_SCHED_1F1B);
    ck_assert_int_eq(dt_plan_gpus(&s.plan), 1);
    for (int l = 0; l < s.p->n_lanes; l++)
        ck_assert_uint_eq(s.p->lanes[l].in_flight_max, 1);
    /* Every backward follows what its microbatch ran forward, before the next one begins. */
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].module == 1 && s.p->ops[i].kind == DT_OP_FORWARD) {
            ck_assert(at == DT_NONE || s.p->ops[i].dep[0] == at);
            at = i;
            while (s.p->ops[at].kind != DT_OP_BACKWARD)
                at++;
        }
    ns = sf_durations(s.p, f, b);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        work += (uint64_t)ns[i];
    ck_assert_int_eq(sf_makespan(&s, ns), (int64_t)work);
    free(ns);
    sf_free(&s);
}
END_TEST

/* A turn that is lost is found, unless others imply it: then nothing overlaps without it either. */
START_TEST(check_finds_a_lost_turn)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    int found = 0;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&r, seed, 22);
    build(1, 2, 1, 1, 1, 1, 4, DT_SCHED_1F1B);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        for (int k = 1; k < 3; k++) {
            struct dt_op *op = &s.p->ops[i];
            uint32_t d = op->dep[k];

            if (d == DT_NONE || !is_compute(i) || !is_compute(d) || op->more_n > 0)
                continue;
            op->dep[k] = DT_NONE;
            if (dt_program_check(s.p, &s.f.model, &s.err) == DT_ERR_INTERNAL)
                found++;
            else
                for (int t = 0; t < 50; t++)
                    check_turns(&r);
            op->dep[k] = d;
        }
    ck_assert_int_gt(found, 5);
    dt_assert_ok(dt_program_check(s.p, &s.f.model, &s.err), s.err);
    sf_free(&s);
}
END_TEST

START_TEST(same_program_every_time)
{
    uint64_t digest;

    build(2, 3, 1, 2, 1, 2, 5, DT_SCHED_1F1B);
    digest = dt_program_digest(s.p);
    sf_free(&s);
    build(2, 3, 1, 2, 1, 2, 5, DT_SCHED_1F1B);
    ck_assert_uint_eq(digest, dt_program_digest(s.p));
    sf_free(&s);
}
END_TEST

START_TEST(plan_json_keeps_the_flag)
{
    struct dt_plan p;
    char *text, *again;

    build(1, 1, 1, 1, 1, 1, 2, DT_SCHED_1F1B);
    dt_assert_ok(dt_plan_to_json(&s.plan, &s.err, &text), s.err);
    dt_assert_has(text, "\"colocated\": true");
    dt_assert_ok(dt_plan_parse("p", text, strlen(text), &s.err, &p), s.err);
    ck_assert(p.colocated);
    dt_assert_ok(dt_plan_to_json(&p, &s.err, &again), s.err);
    ck_assert_str_eq(text, again);
    p.colocated = false;
    ck_assert_int_eq(dt_plan_validate(&p, &s.f.model, &s.f.cluster, &s.err), DT_ERR_INPUT);
    dt_assert_has(s.err.message, "share GPUs");
    dt_free(text);
    dt_free(again);
    sf_free(&s);
}
END_TEST

START_TEST(plan_json_names_the_host)
{
    char *text, *again, *with;
    struct dt_plan p;

    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 4, 1, DT_SCHED_1F1B);
    sf_layout(&s, 1, 1, 2, 1, 2);
    s.plan.modules[0].with = 2;
    dt_assert_ok(dt_plan_to_json(&s.plan, &s.err, &text), s.err);
    dt_assert_has(text, "\"with\": \"llm\"");
    dt_assert_ok(dt_plan_parse("p", text, strlen(text), &s.err, &p), s.err);
    ck_assert_int_eq(p.modules[0].with, 2);
    ck_assert_int_eq(p.modules[1].with, 0);
    dt_assert_ok(dt_plan_to_json(&p, &s.err, &again), s.err);
    ck_assert_str_eq(text, again);
    with = strstr(text, "\"llm\"");
    memcpy(with, "\"lln\"", 5); /* the host, of the first module */
    ck_assert_int_eq(dt_plan_parse("p", text, strlen(text), &s.err, &p), DT_ERR_INPUT);
    dt_assert_has(s.err.message, "the plan has no module 'lln'");
    dt_free(text);
    dt_free(again);
    sf_free(&s);
}
END_TEST

START_TEST(memory_of_a_gpu_adds_up)
{
    struct dt_work w[3] = {{1, 256, 65536, 256}, {1, 256, 65536, 256}, {1, 64, 4096, 64}};
    double apart = 0, together = 0, sum = 0;

    build(1, 1, 1, 1, 1, 1, 2, DT_SCHED_1F1B);
    dt_assert_ok(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, &together, &s.err), s.err);
    for (int m = 0; m < 3; m++) {
        struct dt_memory mem;

        dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, m, 0, &w[m], 2, &mem);
        apart = mem.total > apart ? mem.total : apart;
        sum += mem.total - (m > 0 ? mem.reserve : 0);
    }
    ck_assert_double_gt(together, apart);
    ck_assert_double_eq_tol(together, sum, 1);
    s.f.cluster.mem_bytes = together - 1;
    ck_assert_int_eq(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, NULL, &s.err),
                     DT_ERR_INFEASIBLE);
    sf_free(&s);
}
END_TEST

/* The encoder on the GPUs of the LLM's second stage, the generator on its own: the sum is that of those two stages, and the
 * message names them. */
START_TEST(memory_of_a_guest_adds_to_its_host)
{
    struct dt_work w[3] = {{1, 256, 65536, 256}, {1, 256, 65536, 256}, {1, 64, 4096, 64}};
    double bytes[3] = {0}, most = 0;

    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 4, 1, DT_SCHED_1F1B);
    sf_layout(&s, 1, 1, 2, 1, 2);
    sf_layout(&s, 0, 1, 1, 1, 2);
    s.plan.modules[0].with = 2;
    s.plan.modules[0].pinned = true;
    s.plan.modules[0].layout.first_gpu = 2;
    dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
    dt_assert_ok(dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err), s.err);
    dt_assert_ok(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, &most, &s.err), s.err);
    for (int k = 0; k < 3; k++) { /* encoder, LLM stage 0, LLM stage 1 */
        struct dt_memory mem;

        dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, k > 0, k > 1, &w[k > 0], 2, &mem);
        bytes[k] = mem.total - (k == 0 ? mem.reserve : 0);
    }
    ck_assert_double_eq_tol(most, fmax(bytes[0] + bytes[2], bytes[1]), 1);
    s.f.cluster.mem_bytes = bytes[0] + bytes[2] - 1;
    ck_assert_double_gt(s.f.cluster.mem_bytes, fmax(bytes[1], bytes[2]));
    ck_assert_int_eq(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, NULL, &s.err),
                     DT_ERR_INFEASIBLE);
    dt_assert_has(s.err.message, "of GPU 2");
    dt_assert_has(s.err.message, "encoder stage 0");
    dt_assert_has(s.err.message, "llm stage 1");
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("colocate");
    TCase *tc = dt_test_case(suite, "turns", 120);

    tcase_add_test(tc, lanes_of_a_gpu_never_overlap);
    tcase_add_test(tc, guests_and_hosts_never_overlap);
    tcase_add_test(tc, one_gpu_holds_one_microbatch);
    tcase_add_test(tc, check_finds_a_lost_turn);
    tcase_add_test(tc, same_program_every_time);
    tcase_add_test(tc, plan_json_keeps_the_flag);
    tcase_add_test(tc, plan_json_names_the_host);
    tcase_add_test(tc, memory_of_a_gpu_adds_up);
    tcase_add_test(tc, memory_of_a_guest_adds_to_its_host);
    return dt_test_run(suite);
}
