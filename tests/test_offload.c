/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Optimizer's states in the host's memory (plan.MODULE.offload): the plan file, memory of GPUs and hosts against sums over
 * blocks and GPUs, the step's time against chunks that go through three queues, and the op of the timeline. */
#include "base/json.h"
#include "core/cost/memory.h"
#include "core/schedule/schedule_impl.h"
#include "core/schedule/timeline.h"
#include "random_plan.h"

#include <math.h>
#include <stdio.h>

enum { ROUNDS = 60 };

static struct sched_fixture s; /* large: not on the stack */

static void random_world(uint64_t seed, int round)
{
    struct dt_rng r;

    sf_random(&s, seed, round, true);
    s.f.cluster.host_bytes_per_s = 25e9;
    s.f.cluster.host_mem_bytes_per_s = 200e9;
    dt_rng_init(&r, seed, 4200000 + (uint64_t)round);
    for (int m = 0; m < s.plan.n_modules; m++) {
        s.plan.modules[m].offload = sf_below(&r, 3) ? DT_OFFLOAD_OPTIMIZER : DT_OFFLOAD_NONE;
        s.plan.modules[m].frozen = sf_below(&r, 4) == 0;
    }
}

/* ---- plan.json ---- */

START_TEST(plan_files_have_it)
{
    char *text, *again, *wrong, *at;
    struct dt_plan back;

    random_world(dt_test_seed(), 0);
    for (int m = 0; m < s.plan.n_modules; m++)
        s.plan.modules[m].offload = m == 0 ? DT_OFFLOAD_OPTIMIZER : DT_OFFLOAD_NONE;
    dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
    dt_assert_ok(dt_plan_to_json(&s.plan, &s.err, &text), s.err);
    dt_assert_ok(dt_plan_parse("plan.json", text, strlen(text), &s.err, &back), s.err);
    for (int m = 0; m < s.plan.n_modules; m++)
        ck_assert_int_eq(back.modules[m].offload, s.plan.modules[m].offload);
    dt_assert_ok(dt_plan_to_json(&back, &s.err, &again), s.err);
    ck_assert_str_eq(text, again);
    at = strstr(text, "\"offload\": \"optimizer\"");
    ck_assert_ptr_nonnull(at);
    ck_assert_ptr_null(strstr(at + 1, "\"offload\"")); /* none is not written */
    wrong = strstr(text, "\"optimizer\"");
    memcpy(wrong, "\"optimizes\"", 11);
    ck_assert_int_eq(dt_plan_parse("plan.json", text, strlen(text), &s.err, &back), DT_ERR_INPUT);
    dt_assert_has(s.err.message, "did you mean \"optimizer\"");
    ck_assert_int_gt(s.err.line, 1);
    dt_free(text);
    dt_free(again);
    sf_free(&s);
}
END_TEST

START_TEST(the_way_to_the_host_must_be_known)
{
    sf_init(&s);
    sf_llm(&s, 4);
    sf_plan(&s, 4, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 2, 1, 1);
    s.plan.modules[0].offload = DT_OFFLOAD_OPTIMIZER;
    dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
    s.f.cluster.host_bytes_per_s = 0;
    ck_assert_int_eq(dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err), DT_ERR_INPUT);
    dt_assert_has(s.err.message, "cluster.host_bandwidth");
    s.f.cluster.host_bytes_per_s = 1e9;
    dt_assert_ok(dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err), s.err);
    sf_free(&s);
}
END_TEST

/* ---- memory ---- */

/* 12 bytes of every trained parameter of the stage, over those that share them. */
static double states(int m, int stage)
{
    const struct dt_plan_module *mp = &s.plan.modules[m];
    const struct dt_plan_layout *l = &mp->layout;
    double shards = mp->zero == 0 ? 1 : mp->zero_group > 0 ? mp->zero_group : l->dp * l->cp * l->ip;
    double sum = 0;

    for (int v = stage; v < l->pp * l->vpp; v += l->pp)
        for (int b = mp->split[v]; b < mp->split[v + 1]; b++) {
            const struct dt_block *x = &s.f.model.modules[m].blocks[b];
            double experts = (double)dt_block_expert_params(x) / (l->tp * l->ep);
            double dense = dt_memory_params(x, l) - experts;

            if (x->kind == DT_BLOCK_LM_HEAD && x->tied && l->pp * l->vpp > 1)
                dense += (double)x->vocab * x->hidden / l->tp;
            if (dt_plan_trained(&s.plan, &s.f.model, m, b))
                sum += 12 * (dense / shards + experts * (shards > 1 ? l->ep : 1) / shards);
        }
    return sum;
}

/* What a GPU is without the host has, and nothing else changes. */
START_TEST(what_leaves_the_gpu_is_on_the_host)
{
    uint64_t seed = dt_test_seed();
    const struct dt_work w = {2, 2 * SF_SEQ, 2 * SF_SEQ * SF_SEQ, SF_SEQ};
    double moved = 0;

    for (int round = 0; round < ROUNDS; round++) {
        random_world(seed, round);
        for (int m = 0; m < s.plan.n_modules; m++)
            for (int stage = 0; stage < s.plan.modules[m].layout.pp; stage++) {
                struct dt_plan without = s.plan;
                struct dt_memory is, was;

                without.modules[m].offload = DT_OFFLOAD_NONE;
                dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, m, stage, &w, 4, &is);
                dt_memory_stage(&without, &s.f.model, &s.f.cluster, m, stage, &w, 4, &was);
                ck_assert(was.host == 0);
                if (s.plan.modules[m].offload == DT_OFFLOAD_NONE)
                    ck_assert_mem_eq(&is, &was, sizeof(is));
                else
                    ck_assert_msg(fabs(is.host - states(m, stage)) <= 1e-6 * was.total &&
                                      fabs(is.total + is.host - was.total) <= 1e-6 * was.total &&
                                      fabs(is.optimizer) <= 1e-6 * was.total,
                                  "seed %llu, round %d: module %d stage %d: %g on the host, not %g",
                                  (unsigned long long)seed, round, m, stage, is.host,
                                  states(m, stage));
                moved += is.host;
            }
        sf_free(&s);
    }
    ck_assert_double_gt(moved, 0);
}
END_TEST

/* Of every GPU one by one. */
static void by_gpus(const struct dt_work *w, double *gpu, double *node, double *all)
{
    int gpus = s.f.cluster.nodes * s.f.cluster.gpus_per_node;
    double *of = calloc((size_t)gpus, sizeof(*of));

    ck_assert_ptr_nonnull(of);
    for (int m = 0; m < s.plan.n_modules; m++) {
        const struct dt_plan_layout *l = &s.plan.modules[m].layout;

        for (int stage = 0; stage < l->pp; stage++)
            for (int r = 0; r < l->dp; r++)
                for (int k = 0; k < l->tp * l->cp * l->ip; k++) {
                    struct dt_memory mem;

                    dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, m, stage, &w[m], 1, &mem);
                    of[dt_plan_lane_gpu(&s.plan, m, r, stage) + k] += mem.host;
                }
    }
    *gpu = *node = *all = 0;
    for (int n = 0; n < s.f.cluster.nodes; n++) {
        double sum = 0;

        for (int k = 0; k < s.f.cluster.gpus_per_node; k++) {
            *gpu = fmax(*gpu, of[n * s.f.cluster.gpus_per_node + k]);
            sum += of[n * s.f.cluster.gpus_per_node + k];
        }
        *node = fmax(*node, sum);
        *all += sum;
    }
    free(of);
}

START_TEST(hosts_have_what_their_gpus_offload)
{
    uint64_t seed = dt_test_seed();
    struct dt_work w[DT_MAX_MODULES];
    int held = 0;

    for (int m = 0; m < DT_MAX_MODULES; m++)
        w[m] = (struct dt_work){1, SF_SEQ, SF_SEQ * SF_SEQ, SF_SEQ};
    for (int round = 0; round < ROUNDS; round++) {
        struct dt_memory_host h;
        double gpu, node, all, room = DT_MEMORY_HOST_ROOM;

        random_world(seed, round);
        dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
        by_gpus(w, &gpu, &node, &all);
        dt_assert_ok(dt_memory_host(&s.plan, &s.f.model, &s.f.cluster, w, &s.err, &h), s.err);
        if (node == 0) {
            ck_assert(h.gpu_bytes == 0 && h.node_bytes == 0 && h.all_bytes == 0);
        } else {
            ck_assert_double_le(fabs(h.gpu_bytes - room - gpu), 1e-6 * gpu);
            ck_assert_double_le(fabs(h.node_bytes - s.f.cluster.gpus_per_node * room - node),
                                1e-6 * node);
            ck_assert_double_le(fabs(h.all_bytes - all), 1e-6 * all);
            held++;
        }
        sf_free(&s);
    }
    ck_assert_int_gt(held, 0);
}
END_TEST

/* Held against what a node has where that is stated. */
START_TEST(a_node_may_have_too_little)
{
    struct dt_work w[DT_MAX_MODULES] = {{1, SF_SEQ, SF_SEQ * SF_SEQ, SF_SEQ}};
    struct dt_memory_host h;
    struct dt_error err;
    double most;

    sf_init(&s);
    sf_llm(&s, 4);
    sf_plan(&s, 4, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 2, 1, 2);
    s.plan.modules[0].offload = DT_OFFLOAD_OPTIMIZER;
    s.f.cluster.host_bytes_per_s = 1e9;
    dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
    dt_assert_ok(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, &most, &err), err);
    dt_assert_ok(dt_memory_host(&s.plan, &s.f.model, &s.f.cluster, w, &err, &h), err);
    s.f.cluster.host_mem_bytes = h.node_bytes;
    dt_assert_ok(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, &most, &err), err);
    s.f.cluster.host_mem_bytes = h.node_bytes - 1;
    ck_assert_int_eq(dt_memory_check(&s.plan, &s.f.model, &s.f.cluster, w, &most, &err),
                     DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "of its host's memory");
    sf_free(&s);
}
END_TEST

/* ---- time ---- */

/* Chunks through three queues, each of which takes one at a time. */
static double walked(const double part[3], int chunks)
{
    double free_at[3] = {0};

    for (int c = 0; c < chunks; c++) {
        double t = 0;

        for (int q = 0; q < 3; q++)
            t = free_at[q] = fmax(t, free_at[q]) + part[q] / chunks;
    }
    return free_at[2];
}

START_TEST(chunks_go_through_three_queues)
{
    struct dt_cost_options o = {.allow_analytical = true};
    uint64_t seed = dt_test_seed();
    struct dt_cost *cost;
    struct dt_rng r;

    dt_rng_init(&r, seed, 5);
    sf_init(&s);
    sf_llm(&s, 2);
    for (int round = 0; round < ROUNDS; round++) {
        int chunks = 1 + sf_below(&r, 40);
        double params = (double)chunks * DT_PLAN_OFFLOAD_CHUNK, grad = sf_below(&r, 2) ? 4 : 2;
        double elem = sf_below(&r, 2) ? 4 : 2, rate, part[3];
        struct dt_cost_time t;
        int ranks = 1 + sf_below(&r, 8);

        s.f.cluster.host_bytes_per_s = 1e9 * (1 + sf_below(&r, 60));
        s.f.cluster.host_mem_bytes_per_s = 1e10 * (1 + sf_below(&r, 60));
        rate = s.f.cluster.host_mem_bytes_per_s / ranks;
        part[0] = grad * params / s.f.cluster.host_bytes_per_s;
        part[1] = (24 + 2 * grad + 2 * elem) * params / rate;
        part[2] = elem * params / s.f.cluster.host_bytes_per_s;
        dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &o, &s.err, &cost), s.err);
        dt_cost_optimizer_host(cost, params, ranks, grad, elem, &t);
        ck_assert_msg(fabs(1e-9 * t.ns / walked(part, chunks) - 1) < 1e-9,
                      "seed %llu, round %d: %g s, not %g", (unsigned long long)seed, round,
                      1e-9 * t.ns, walked(part, chunks));
        ck_assert_double_le(fabs(t.prov[DT_PROV_COMPUTED] + t.prov[DT_PROV_ASSUMED] - t.ns),
                            1e-9 * t.ns);
        dt_cost_optimizer_host(cost, 0, ranks, grad, elem, &t);
        ck_assert(t.ns == 0);
        dt_cost_free(cost);
    }
    sf_free(&s);
}
END_TEST

/* GPU by GPU: on the node of a stage's that has most of them. */
static int stepping(int module, int stage)
{
    int per_node = s.f.cluster.gpus_per_node, gpus = s.f.cluster.nodes * per_node, most = 0;
    const struct dt_plan_layout *l;
    char *steps = calloc((size_t)gpus, 1), *own = calloc((size_t)gpus, 1);

    ck_assert(steps && own);
    for (int m = 0; m < s.plan.n_modules; m++)
        for (int st = 0; l = &s.plan.modules[m].layout, st < l->pp; st++)
            for (int r = 0; r < l->dp; r++)
                for (int k = 0; k < l->tp * l->cp * l->ip; k++) {
                    int gpu = dt_plan_lane_gpu(&s.plan, m, r, st) + k;

                    steps[gpu] |= s.plan.modules[m].offload != DT_OFFLOAD_NONE && states(m, st) > 0;
                    own[gpu] |= m == module && st == stage;
                }
    for (int n = 0; n < s.f.cluster.nodes; n++) {
        int here = 0, any = 0;

        for (int k = n * per_node; k < (n + 1) * per_node; k++) {
            here += steps[k];
            any |= own[k];
        }
        most = any && here > most ? here : most;
    }
    free(steps);
    free(own);
    return most;
}

START_TEST(gpus_of_a_node_share_its_memory)
{
    uint64_t seed = dt_test_seed();
    int some = 0, all = 0;

    for (int round = 0; round < ROUNDS; round++) {
        random_world(seed, round);
        dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
        for (int m = 0; m < s.plan.n_modules; m++)
            for (int stage = 0; stage < s.plan.modules[m].layout.pp; stage++) {
                int n;

                if (s.plan.modules[m].offload == DT_OFFLOAD_NONE || states(m, stage) == 0)
                    continue;
                n = dt_sched_host_ranks(&s.plan, &s.f.model, &s.f.cluster, m, stage,
                                        DT_SCHED_HOST_STEPS);
                ck_assert_msg(n == stepping(m, stage),
                              "seed %llu, round %d: module %d stage %d is one of %d, not %d",
                              (unsigned long long)seed, round, m, stage, n, stepping(m, stage));
                some += n < s.f.cluster.gpus_per_node;
                all += n == s.f.cluster.gpus_per_node;
            }
        sf_free(&s);
    }
    ck_assert_int_gt(some, 0);
    ck_assert_int_gt(all, 0);
}
END_TEST

/* The op of the step lasts as long, of what its ranks share: two stages of two replicas are four GPUs of the node. */
START_TEST(it_is_in_the_timeline)
{
    struct dt_cost_options o = {.allow_analytical = true};
    struct dt_durations d;
    struct dt_cost_time t;
    struct dt_cost *cost;
    int seen = 0;

    sf_init(&s);
    s.f.cluster.host_bytes_per_s = 10e9;
    s.f.cluster.host_mem_bytes_per_s = 100e9;
    sf_llm(&s, 4);
    sf_plan(&s, 8, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 2, 1, 2);
    s.plan.modules[0].offload = DT_OFFLOAD_OPTIMIZER;
    sf_samples(&s, 8, 0, 0, false, 3);
    sf_compile(&s);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &o, &s.err, &cost), s.err);
    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                 s.err);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        if (s.p->ops[i].kind != DT_OP_STEP)
            continue;
        dt_cost_optimizer_host(cost, states(0, s.p->ops[i].stage) / 12, 4, 4, 2, &t);
        ck_assert_double_le(fabs((double)d.ns[i] - t.ns), 2);
        dt_cost_optimizer(cost, states(0, s.p->ops[i].stage) / 12, &t);
        ck_assert_double_gt((double)d.ns[i], 5 * t.ns);
        seen++;
    }
    ck_assert_int_eq(seen, 4);
    dt_durations_free(&d);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offload");
    TCase *t = dt_test_case(suite, "offload", 60);

    tcase_add_test(t, plan_files_have_it);
    tcase_add_test(t, the_way_to_the_host_must_be_known);
    tcase_add_test(t, what_leaves_the_gpu_is_on_the_host);
    tcase_add_test(t, hosts_have_what_their_gpus_offload);
    tcase_add_test(t, a_node_may_have_too_little);
    tcase_add_test(t, chunks_go_through_three_queues);
    tcase_add_test(t, gpus_of_a_node_share_its_memory);
    tcase_add_test(t, it_is_in_the_timeline);
    return dt_test_run(suite);
}
