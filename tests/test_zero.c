/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * ZeRO 2 and 3: collectives of each microbatch, their volumes and times, what they save, who may not. */
#include "base/mem.h"
#include "core/schedule/timeline.h"
#include "random_plan.h"
#include "sim/engine.h"
#include "sim/network.h"

#include <math.h>
#include <stdio.h>

static struct sched_fixture s; /* large: not on the stack */

enum { SLOTS = 6, REPLICAS = 3 };

static void open_llm(int zero, bool overlap, int vpp)
{
    sf_init(&s);
    sf_llm(&s, 14);
    sf_plan(&s, (int64_t)SLOTS * REPLICAS, 1, vpp > 1 ? DT_SCHED_INTERLEAVED : DT_SCHED_1F1B);
    fx_modes(&s.plan, DT_RECOMPUTE_NONE, zero);
    s.plan.policy.overlap_grad = s.plan.policy.overlap_param = overlap;
    sf_layout(&s, 0, 1, 2, vpp, REPLICAS);
    sf_samples(&s, (int64_t)SLOTS * REPLICAS, 0, 0, false, 15);
}

/* Bytes of a lane's collectives of a kind. */
static uint64_t volume(uint32_t lane, enum dt_op_kind kind)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].lane == lane && s.p->ops[i].kind == kind)
            sum += s.p->ops[i].bytes;
    return sum;
}

/* 4 bytes per parameter and backward, 2 per parameter, forward and backward; ZeRO 1 the same once an iteration. */
START_TEST(volumes)
{
    uint64_t params[2] = {0};

    for (int zero = 0; zero <= 3; zero++)
        for (int overlap = 0; overlap < 2; overlap++)
            for (int vpp = 1; vpp <= 2; vpp++) {
                open_llm(zero, overlap, vpp);
                sf_compile(&s);
                for (uint32_t stage = 0; stage < 2; stage++) {
                    params[stage] = 0;
                    for (int v = (int)stage; v < 2 * vpp; v += 2)
                        for (int b = s.plan.modules[0].split[v]; b < s.plan.modules[0].split[v + 1];
                             b++)
                            params[stage] +=
                                (uint64_t)dt_block_params(&s.f.model.modules[0].blocks[b]);
                    ck_assert_uint_eq(volume(stage, DT_OP_GRAD_SYNC),
                                      (zero > 1 ? SLOTS : 1) * 4 * params[stage]);
                    ck_assert_uint_eq(volume(stage, DT_OP_PARAM_GATHER), (zero == 0   ? 0
                                                                          : zero == 3 ? 2 * SLOTS
                                                                                      : 1) *
                                                                             2 * params[stage]);
                }
                sf_free(&s);
            }
}
END_TEST

/* What is frozen is gathered too, but nothing is reduced; and nothing backwards where no backward runs. */
START_TEST(frozen_modules_gather)
{
    open_llm(3, true, 1);
    s.plan.modules[0].frozen = true;
    sf_compile(&s);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_GRAD_SYNC), 0);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_PARAM_GATHER), 2 * REPLICAS * SLOTS * DT_PLAN_BUCKETS);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        ck_assert(s.p->ops[i].kind != DT_OP_PARAM_GATHER || s.p->ops[i].flags == 0);
    sf_free(&s);
}
END_TEST

/* Copies of the parameters may be ranks of one lane alone. */
START_TEST(context_parallel_ranks_share)
{
    open_llm(3, true, 1);
    s.plan.modules[0].layout.dp = 1;
    s.plan.modules[0].layout.cp = REPLICAS;
    s.f.cluster.gpus_per_node = 2 * REPLICAS;
    sf_compile(&s);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_GRAD_SYNC),
                      2 * SLOTS * REPLICAS * DT_PLAN_BUCKETS); /* all slots are one lane's */
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_PARAM_GATHER),
                      2 * 2 * SLOTS * REPLICAS * DT_PLAN_BUCKETS);
    sf_free(&s);
    open_llm(3, true, 1); /* nobody to share with */
    s.plan.modules[0].layout.dp = 1;
    sf_compile(&s);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_GRAD_SYNC) + sf_count(s.p, 0, DT_OP_PARAM_GATHER), 0);
    sf_free(&s);
}
END_TEST

static struct dt_cost *cost;

static int64_t span(void)
{
    struct dt_timeline_topo topo = {0};
    struct dt_timeline line = {0}, walked = {0};
    struct dt_durations d = {0};
    struct dt_engine *e = NULL;
    int64_t ns;

    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, true, &s.err, &d),
                 s.err);
    dt_assert_ok(dt_timeline_topo_build(s.p, &s.err, &topo), s.err);
    dt_assert_ok(dt_timeline_eval(s.p, &topo, d.ns, &s.err, &line), s.err);
    dt_assert_ok(dt_engine_new(&s.err, &e), s.err);
    dt_assert_ok(dt_engine_run(e, s.p, &d, NULL, NULL, &s.err, &walked), s.err);
    for (uint32_t i = 0; i < s.p->n_ops; i++) /* both evaluators, to the nanosecond */
        ck_assert(line.begin_ns[i] == walked.begin_ns[i] && line.end_ns[i] == walked.end_ns[i]);
    ns = line.makespan_ns;
    dt_engine_free(e);
    dt_timeline_free(&line);
    dt_timeline_free(&walked);
    dt_timeline_topo_free(&topo);
    dt_durations_free(&d);
    return ns;
}

static int64_t time_of(int zero, bool overlap, int vpp)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    int64_t ns;

    open_llm(zero, overlap, vpp);
    fx_profile(&s.f, true);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost), s.err);
    sf_compile(&s);
    ns = span();
    dt_cost_free(cost);
    sf_free(&s);
    return ns;
}

/* Cutting an op rounds its parts to whole nanoseconds. */
START_TEST(more_sharding_takes_longer)
{
    for (int vpp = 1; vpp <= 2; vpp++) {
        int64_t one = time_of(1, false, vpp), two = time_of(2, false, vpp),
                three = time_of(3, false, vpp);

        printf("vpp %d: ZeRO 1 %lld ns, 2 %lld ns, 3 %lld ns; overlapping %lld, %lld, %lld ns\n",
               vpp, (long long)one, (long long)two, (long long)three,
               (long long)time_of(1, true, vpp), (long long)time_of(2, true, vpp),
               (long long)time_of(3, true, vpp));
        ck_assert_int_lt(one, two);
        ck_assert_int_lt(two, three);
        for (int zero = 1; zero <= 3; zero++) /* under compute */
            ck_assert_int_lt(time_of(zero, true, vpp), time_of(zero, false, vpp));
    }
}
END_TEST

/* Of any graph of modules: both evaluators agree, and no stage holds more with more sharding. */
START_TEST(random_graphs)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    uint64_t seed = dt_test_seed();
    int own = 0;

    for (int round = 0; round < 150; round++) {
        sf_random(&s, seed, round, round % 2);
        fx_profile(&s.f, true);
        dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost),
                     s.err);
        sf_compile(&s);
        for (uint32_t i = 0; i < s.p->n_ops; i++)
            own += dt_op_resource(s.p->ops[i].kind) == DT_RES_COLL && s.p->ops[i].mb != DT_NONE;
        span();
        dt_cost_free(cost);
        for (int m = 0; m < s.plan.n_modules; m++)
            for (int stage = 0; stage < s.plan.modules[m].layout.pp; stage++) {
                double last = HUGE_VAL;

                for (int zero = 0; zero <= 3; zero++) {
                    struct dt_work w = {2, 2048, 2048 * 1024, 1024};
                    struct dt_memory mem;

                    s.plan.modules[m].zero = zero;
                    s.plan.modules[m].zero_group = 0;
                    dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, m, stage, &w, 8, &mem);
                    ck_assert_msg(mem.total <= last,
                                  "seed %" PRIu64 " round %d: %s/%d: ZeRO %d holds %.0f, %d %.0f",
                                  seed, round, s.plan.module_names[m], stage, zero, mem.total,
                                  zero - 1, last);
                    ck_assert(mem.whole >= 0 && mem.whole <= mem.params + mem.grads);
                    last = mem.total;
                }
            }
        sf_free(&s);
    }
    ck_assert_int_gt(own, 1000);
}
END_TEST

/* By hand: 8 equal layers on one of 4 replicas, in 4 buckets of 2. */
START_TEST(what_a_rank_keeps)
{
    static const double params[] = {2, 2, 2, 2. / 4 + 2 * 2. / 4},
                        grads[] = {4, 4, 4. / 4 + 2 * 4. / 4, 4. / 4 + 2 * 4. / 4},
                        optimizer[] = {12, 3, 3, 3};
    struct dt_work w = {1, 512, 512 * 512, 512};
    double n;

    sf_init(&s);
    sf_llm(&s, 10); /* an embedding and a head at the ends */
    sf_plan(&s, 32, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 3, 1, 4);
    memcpy(s.plan.modules[0].split, (uint16_t[]){0, 1, 9, (uint16_t)s.f.model.modules[0].n_blocks},
           4 * sizeof(uint16_t));
    n = 8.0 * (double)dt_block_params(&s.f.model.modules[0].blocks[1]);
    for (int zero = 0; zero <= 3; zero++) {
        struct dt_memory mem;

        s.plan.modules[0].zero = zero;
        dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 0, 1, &w, 8, &mem);
        ck_assert_double_eq_tol(mem.params, params[zero] * n, 1e-9 * n);
        ck_assert_double_eq_tol(mem.grads, grads[zero] * n, 1e-9 * n);
        ck_assert_double_eq_tol(mem.optimizer, optimizer[zero] * n, 1e-9 * n);
        /* a process of the executor keeps what it keeps with ZeRO 1 */
        dt_memory_stage_on(DT_MEMORY_CPU, &s.plan, &s.f.model, &s.f.cluster, 0, 1, &w, 8, &mem);
        ck_assert_double_eq_tol(mem.grads, 4 * n, 1e-9 * n);
    }
    fx_free(&s.f);
}
END_TEST

/* What a search takes collectives for at least, before it knows where modules begin, is no more than what they take wherever
 * that is. */
START_TEST(least_of_all_places)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};

    for (int i = 0; i < 12; i++) {
        static const int replicas[] = {3, 4, 8, 9, 12, 13};
        int dp = replicas[i % 6], tp = 1 + i / 6;
        double least = INFINITY, most = 0;

        for (int first = 0; first < 8; first += tp) {
            struct dt_durations d;
            double sum = 0, bound;

            sf_init(&s);
            sf_llm(&s, 6);
            sf_plan(&s, 2 * dp, 1, DT_SCHED_1F1B);
            sf_layout(&s, 0, tp, 1, 1, dp);
            s.plan.modules[0].zero = 3;
            s.plan.modules[0].layout.first_gpu = first;
            s.plan.modules[0].pinned = true;
            sf_samples(&s, 2 * dp, 0, 0, false, 15);
            fx_profile(&s.f, true);
            dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost),
                         s.err);
            sf_compile(&s);
            dt_assert_ok(
                dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                s.err);
            for (uint32_t k = s.p->lanes[0].first; k < s.p->lanes[0].first + s.p->lanes[0].n; k++)
                sum += s.p->ops[k].kind == DT_OP_GRAD_SYNC || s.p->ops[k].kind == DT_OP_PARAM_GATHER
                           ? 1e-9 * (double)d.ns[k]
                           : 0;
            bound = dt_sched_collectives_s(&s.plan, &s.f.model, &s.f.cluster, cost, 0, 2);
            ck_assert_msg(bound <= sum + 1e-7, "tp %d, dp %d, at GPU %d: %g s, at least %g", tp, dp,
                          first, sum, bound);
            least = fmin(least, sum);
            most = fmax(most, sum);
            dt_durations_free(&d);
            dt_cost_free(cost);
            sf_free(&s);
        }
        ck_assert_msg(most > 1.2 * least, "tp %d, dp %d: where it begins makes no difference", tp,
                      dp);
    }
}
END_TEST

/* ---- groups ---- */

enum { GROUP_DP = 16, GROUP_TP = 2 };

static void open_groups(int group, int first_gpu)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};

    sf_init(&s);
    sf_llm(&s, 6);
    sf_plan(&s, 32, 1, DT_SCHED_1F1B);
    s.plan.policy.overlap_grad = s.plan.policy.overlap_param = false;
    sf_layout(&s, 0, GROUP_TP, 1, 1, GROUP_DP);
    s.plan.modules[0].zero_group = group;
    s.plan.modules[0].layout.first_gpu = first_gpu;
    s.plan.modules[0].pinned = true;
    sf_samples(&s, 32, 0, 0, false, 15);
    fx_profile(&s.f, true);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost), s.err);
    sf_compile(&s);
}

/* What one collective takes; ranks are `apart` GPUs from each other, on nodes of eight. */
static double collective_ns(enum dt_kop_family family, int ranks, int apart, double bytes)
{
    int near = apart < 8 ? 8 / apart : 1;
    struct dt_cost_time t;

    dt_cost_collective(cost, family, ranks, near < ranks ? near : ranks, apart < 8 ? apart : 8,
                       bytes, &t);
    return t.ns;
}

/* Sums are scattered in each group and then summed over groups, shard by shard; parameters come from the group; a rank
 * steps and keeps moments of a shard of the group. */
START_TEST(groups_of_shards)
{
    static const int groups[] = {1, 2, 4, 8, 16};

    for (int g = 0; g < 5; g++) {
        int group = groups[g], over = GROUP_DP / group;
        struct dt_work w = {1, SF_SEQ, (int64_t)SF_SEQ * SF_SEQ, SF_SEQ};
        double sync, gather, params;
        struct dt_durations d;
        struct dt_cost_time step;
        struct dt_memory mem;

        open_groups(group, 0);
        params = (double)dt_module_params(&s.f.model.modules[0]) / GROUP_TP;
        sync = collective_ns(DT_KOP_REDUCE_SCATTER, group, GROUP_TP, 4 * params) +
               collective_ns(DT_KOP_ALL_REDUCE, over, GROUP_TP * group, 4 * params / group);
        gather = collective_ns(DT_KOP_ALL_GATHER, group, GROUP_TP, 2 * params);
        dt_cost_optimizer(cost, params / group, &step);
        dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                     s.err);
        ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_PARAM_GATHER), group > 1 ? GROUP_DP : 0);
        for (uint32_t i = 0; i < s.p->n_ops; i++) {
            const struct dt_op *op = &s.p->ops[i];
            double want = op->kind == DT_OP_GRAD_SYNC      ? sync
                          : op->kind == DT_OP_PARAM_GATHER ? gather
                          : op->kind == DT_OP_STEP         ? step.ns
                                                           : (double)d.ns[i];

            ck_assert_double_eq_tol((double)d.ns[i], want, 2 + 1e-6 * want);
        }
        dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 0, 0, &w, 2, &mem);
        ck_assert_double_eq_tol(mem.optimizer, 12 * params / group, 1e-6 * params);
        dt_durations_free(&d);
        span(); /* both evaluators agree */
        dt_cost_free(cost);
        sf_free(&s);
    }
}
END_TEST

/* The same at the second rank of a node of four, by hand: all groups of four have three ranks in one node and one in the next;
 * of the groups of two every other one has one in each, and sums over groups of a place that is alone there begin with either
 * of two places, which have room for two each. */
START_TEST(groups_in_the_middle_of_a_node)
{
    static const struct {
        int group;
        struct dt_cost_members inside, over;
    } cases[] = {{4, {4, 4, 1, 2}, {4, 1, 0, 8}}, {2, {2, 4, 3, 2}, {8, 2, 1, 4}}};

    for (int i = 0; i < 2; i++) {
        struct dt_cost_time scatter, sum, gather;
        struct dt_durations d;
        double params;

        open_groups(cases[i].group, GROUP_TP);
        params = (double)dt_module_params(&s.f.model.modules[0]) / GROUP_TP;
        dt_cost_collective_of(cost, DT_KOP_REDUCE_SCATTER, &cases[i].inside, 4 * params, &scatter);
        dt_cost_collective_of(cost, DT_KOP_ALL_REDUCE, &cases[i].over, 4 * params / cases[i].group,
                              &sum);
        dt_cost_collective_of(cost, DT_KOP_ALL_GATHER, &cases[i].inside, 2 * params, &gather);
        dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                     s.err);
        for (uint32_t k = 0; k < s.p->n_ops; k++) {
            if (s.p->ops[k].kind == DT_OP_GRAD_SYNC)
                ck_assert_double_eq_tol((double)d.ns[k], scatter.ns + sum.ns, 2);
            if (s.p->ops[k].kind == DT_OP_PARAM_GATHER)
                ck_assert_double_eq_tol((double)d.ns[k], gather.ns, 2);
        }
        dt_durations_free(&d);
        dt_cost_free(cost);
        sf_free(&s);
    }
}
END_TEST

static struct dt_durations durations(void)
{
    struct dt_durations d;

    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, true, &s.err, &d),
                 s.err);
    return d;
}

/* Two stages that share a node gather at the same time.  In groups inside nodes they do not meet on its NICs, so both
 * engines agree; in groups over nodes they do. */
START_TEST(groups_inside_nodes_load_no_nics)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    static const int groups[] = {2, 4, 12};

    for (int g = 0; g < 3; g++) {
        struct dt_timeline line = {0};
        struct dt_network *net = NULL;
        struct dt_engine *e = NULL;
        struct dt_durations d;
        int slower = 0, gathers = 0;

        sf_init(&s);
        sf_llm(&s, 6);
        sf_plan(&s, 48, 1, DT_SCHED_1F1B);
        s.plan.policy.overlap_grad = s.plan.policy.overlap_param = false;
        s.f.cluster.gpus_per_node = 8;
        sf_layout(&s, 0, 1, 2, 1, 12);
        s.plan.modules[0].zero_group = groups[g];
        sf_samples(&s, 48, 0, 0, false, 15);
        fx_profile(&s.f, true);
        dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost),
                     s.err);
        sf_compile(&s);
        d = durations();
        dt_assert_ok(dt_network_new(&s.f.cluster, &s.err, &net), s.err);
        dt_assert_ok(dt_engine_new(&s.err, &e), s.err);
        dt_assert_ok(dt_engine_run(e, s.p, &d, net, NULL, &s.err, &line), s.err);
        for (uint32_t i = 0; i < s.p->n_ops; i++)
            if (s.p->ops[i].kind == DT_OP_PARAM_GATHER) {
                gathers++;
                slower += line.end_ns[i] - line.begin_ns[i] > d.ns[i] + d.ns[i] / 10;
            }
        ck_assert_int_gt(gathers, 0);
        ck_assert_msg(groups[g] < 12 ? slower == 0 : slower > 0, "groups of %d: %d of %d slower",
                      groups[g], slower, gathers);
        dt_engine_free(e);
        dt_network_free(net);
        dt_timeline_free(&line);
        dt_durations_free(&d);
        dt_cost_free(cost);
        sf_free(&s);
    }
}
END_TEST

/* What cores do for messages, so that it differs by family, ranks and bytes: rows of all of them. */
static double carried_ns(int sums, int ranks, double bytes)
{
    return ranks < 2 ? 0 : bytes * ranks * (sums + 1) * 1e-6;
}

static void carry_rows(struct fixture *f)
{
    for (int64_t n = 1; n <= GROUP_DP * 2; n *= 2)
        for (int64_t sums = 0; sums <= (n > 1 ? 2 : 0); sums++)
            for (int64_t bytes = 4096; bytes <= 1 << 28; bytes *= 16) {
                const int64_t d[] = {n, sums, bytes};

                fx_row(f, DT_KOP_CARRY, DT_PHASE_FWD, DT_ROW_MEASURED, d, 3,
                       (double)bytes * (double)n * (double)(sums + 1) * 1e-6);
            }
    fx_index(f);
}

/* On CPUs a core works for the collectives of its group and for the sum over groups, not for one of all ranks; without
 * rows for all that such collectives take beyond their latencies. */
START_TEST(cores_work_for_groups)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    static const int groups[] = {0, 1, 2, 4, 8, 16};

    for (int g = 0; g < 12; g++) {
        int group = groups[g / 2], of = group > 0 ? group : GROUP_DP, over = GROUP_DP / of;
        bool measured = g % 2;
        double params, sync, gather;
        struct dt_durations d;
        int seen = 0;

        open_groups(group, 0);
        dt_cost_free(cost);
        s.f.cluster.cores_per_node = 8;
        if (measured)
            carry_rows(&s.f);
        dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost),
                     s.err);
        d = durations();
        params = (double)dt_module_params(&s.f.model.modules[0]) / GROUP_TP;
        sync = carried_ns(1, of, 4 * params) + carried_ns(2, over, 4 * params / of);
        gather = carried_ns(0, of, 2 * params);
        for (uint32_t i = 0; i < s.p->n_ops; i++) {
            const struct dt_op *op = &s.p->ops[i];
            bool syncs = op->kind == DT_OP_GRAD_SYNC;
            double want = syncs ? sync : gather;

            if (!syncs && op->kind != DT_OP_PARAM_GATHER)
                continue;
            if (!measured) {
                want = (double)d.ns[i];
                if (of > 1)
                    want -= dt_cost_collective_alpha_ns(
                        cost, syncs ? DT_KOP_REDUCE_SCATTER : DT_KOP_ALL_GATHER, of);
                if (syncs && over > 1)
                    want -= dt_cost_collective_alpha_ns(cost, DT_KOP_ALL_REDUCE, over);
            }
            ck_assert_double_lt(want, (double)d.ns[i]);
            ck_assert_double_eq_tol((double)d.core_ns[i], want, 2 + 1e-6 * want);
            seen++;
        }
        ck_assert_int_eq(seen, of > 1 ? 2 * GROUP_DP : GROUP_DP);
        dt_durations_free(&d);
        dt_cost_free(cost);
        sf_free(&s);
    }
}
END_TEST

/* ---- who may not ---- */

static void refused(const char *why)
{
    dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
    ck_assert_int_eq(dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err), DT_ERR_INPUT);
    dt_assert_has(s.err.message, why);
    fx_free(&s.f);
}

START_TEST(plans_that_are_refused)
{
    open_llm(2, true, 1);
    s.f.cluster.cores_per_node = 8;
    refused("zero 2: on CPUs gradients and parameters are not sharded");
    open_llm(3, true, 1);
    s.plan.policy.schedule = DT_SCHED_ZB_H1;
    refused("zero 3 gathers parameters for a forward and a backward, and schedule zb-h1 splits");
    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 8, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 1, 1, 4);
    sf_layout(&s, 1, 1, 1, 1, 2);
    sf_layout(&s, 2, 1, 1, 1, 1);
    s.plan.modules[1].zero = 2;
    refused("the 4 replicas of ");
    open_llm(1, true, 1);
    s.plan.modules[0].zero_group = 2;
    refused("zero_group 2 does not divide dp*cp*ip = 3");
    open_llm(2, true, 1);
    s.plan.modules[0].zero_group = 3;
    refused("it takes zero 1 and ep 1, not zero 2 and ep 1");
}
END_TEST

int main(void)
{
    Suite *u = suite_create("zero");
    TCase *c = dt_test_case(u, "zero", 300);

    tcase_add_test(c, volumes);
    tcase_add_test(c, frozen_modules_gather);
    tcase_add_test(c, context_parallel_ranks_share);
    tcase_add_test(c, more_sharding_takes_longer);
    tcase_add_test(c, random_graphs);
    tcase_add_test(c, what_a_rank_keeps);
    tcase_add_test(c, least_of_all_places);
    tcase_add_test(c, groups_of_shards);
    tcase_add_test(c, groups_in_the_middle_of_a_node);
    tcase_add_test(c, groups_inside_nodes_load_no_nics);
    tcase_add_test(c, cores_work_for_groups);
    tcase_add_test(c, plans_that_are_refused);
    return dt_test_run(u);
}
