/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Durations of ops and what they stand on; model FLOPs, MFU, HFU. */
#include "sched_fixture.h"

#include <math.h>
#include <stdio.h>

static struct sched_fixture s;

/* A chain with a made-up profile; the analytical fallback covers what the profile lacks. */
static struct dt_cost *costed_chain(enum dt_block_recompute recompute)
{
    struct dt_cost_options opt = {.allow_analytical = true};
    struct dt_cost *cost = NULL;

    sf_init(&s);
    sf_chain(&s, 6);
    fx_profile(&s.f, true);
    sf_plan(&s, 36, 1, DT_SCHED_1F1B);
    fx_modes(&s.plan, recompute, 1);
    sf_layout(&s, 0, 1, 2, 1, 2);
    sf_layout(&s, 1, 2, 2, 1, 3);
    sf_layout(&s, 2, 1, 1, 1, 1);
    sf_samples(&s, 36, 2, 1, true, 51);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost), s.err);
    sf_compile(&s);
    return cost;
}

static struct dt_block_shard shard_of(const struct dt_op *op)
{
    const struct dt_plan_module *mp = &s.plan.modules[op->module];
    const struct dt_plan_layout *l = &mp->layout;

    return (struct dt_block_shard){.tp = l->tp,
                                   .cp = l->cp,
                                   .ep = l->ep,
                                   .ip = l->ip,
                                   .seqpar = l->tp > 1,
                                   .recompute = mp->recompute};
}

START_TEST(durations_are_the_costs)
{
    struct dt_cost *cost = costed_chain(DT_RECOMPUTE_NONE);
    struct dt_durations d = {0};
    double compute = 0, prov = 0;

    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, true, &s.err, &d),
                 s.err);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];
        const struct dt_assignment_module *a = &s.a->m[op->module];
        const uint16_t *split = s.plan.modules[op->module].split;
        struct dt_block_shard shard = shard_of(op);
        struct dt_cost_stage_ns want;
        struct dt_cost_time t;
        double alpha, rate;

        ck_assert_int_ge(d.ns[i], 0);
        compute += (double)d.ns[i];
        switch (op->kind) {
        case DT_OP_FORWARD:
        case DT_OP_BACKWARD:
            if (op->parts > 1)
                break;
            want = dt_cost_stage_ns(
                cost, op->module, split[op->stage], split[op->stage + 1] - split[op->stage], &shard,
                &a->work[a->mb_first[op->replica] + op->mb], NULL,
                dt_plan_upstream_trained(&s.plan, &s.f.model, op->module, split[op->stage]));
            ck_assert_int_eq(d.ns[i], llround(op->kind == DT_OP_FORWARD ? want.fwd : want.bwd));
            break;
        case DT_OP_SEND: {
            const struct dt_lane *x = &s.p->lanes[op->lane];
            const struct dt_lane *y = &s.p->lanes[s.p->ops[op->peer].lane];

            dt_cost_p2p(cost, x->first_gpu / 8 == y->first_gpu / 8,
                        x->gpus < y->gpus ? x->gpus : y->gpus, (double)op->bytes, &t, &alpha,
                        &rate);
            ck_assert_int_eq(d.ns[i], llround(t.ns));
            ck_assert_int_gt(d.ns[i], 0);
            ck_assert(d.alpha_ns[i] >= 0 && d.alpha_ns[i] <= d.ns[i]);
            break;
        }
        case DT_OP_RECV:
        case DT_OP_FETCH:
            ck_assert_int_eq(d.ns[i], 0);
            break;
        default:
            ck_assert_int_gt(d.ns[i], 0);
            break;
        }
    }
    for (int k = 0; k < DT_PROV_N; k++)
        prov += d.prov.prov[k];
    ck_assert_double_eq_tol(prov, d.prov.ns, 1e-9 * prov);
    ck_assert_double_eq_tol(d.prov.ns, compute, 1e-3 * compute); /* rounding of short ops */
    ck_assert_double_gt(d.prov.prov[DT_PROV_INTERPOLATED] + d.prov.prov[DT_PROV_MEASURED], 0);
    dt_durations_free(&d);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

/* The parts of a backward take as long as the whole, to the rounding of each. */
START_TEST(parts_add_up)
{
    struct dt_cost *cost = costed_chain(DT_RECOMPUTE_NONE);
    struct dt_durations d = {0};
    int split_ops = 0;

    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                 s.err);
    ck_assert_ptr_null(d.alpha_ns);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];
        int64_t sum = 0, whole = -1;

        if (op->kind != DT_OP_BACKWARD || op->parts == 1 || op->part > 0 || op->module != 1)
            continue;
        for (int k = 0; k < op->parts; k++)
            sum += d.ns[i + (uint32_t)k];
        for (uint32_t j = s.p->lanes[op->lane].first; j < i; j++) /* LLM microbatches are alike */
            if (s.p->ops[j].kind == DT_OP_BACKWARD)
                whole = d.ns[j];
        ck_assert_int_gt(whole, 0);
        ck_assert(llabs(sum - whole) <= op->parts);
        split_ops++;
    }
    ck_assert_int_gt(split_ops, 0);
    dt_durations_free(&d);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

START_TEST(durations_without_memory)
{
    struct dt_cost *cost = costed_chain(DT_RECOMPUTE_NONE);
    uint64_t k = 1;

    for (;; k++) {
        struct dt_durations d = {0};
        enum dt_status st;

        dt_mem_fail_at(k);
        st = dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, true, &s.err, &d);
        if (st == DT_OK) {
            dt_durations_free(&d);
            if (dt_mem_count() < k)
                break;
            continue; /* a memo of the cost model may do without */
        }
        ck_assert_int_eq(st, DT_ERR_NOMEM);
        ck_assert_ptr_null(d.ns);
    }
    dt_mem_fail_at(0);
    ck_assert_uint_gt(k, 3);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

/* ---- FLOPs ---- */

static double forward_flops(int module)
{
    double sum = 0;

    for (int i = 0; i < s.a->n_samples; i++) {
        struct dt_work w;

        dt_sample_work(&s.samples, i, &s.f.model.modules[module], &w);
        sum += dt_module_flops(&s.f.model.modules[module], &w);
    }
    return sum;
}

/* Of fused attention: two products over all pairs of a sequence's tokens, of half of them where it is causal. */
static double attention_flops(int module)
{
    const struct dt_module *m = &s.f.model.modules[module];
    double sum = 0;

    for (int i = 0; i < s.a->n_samples; i++) {
        struct dt_work w;

        dt_sample_work(&s.samples, i, m, &w);
        for (int b = 0; b < m->n_blocks; b++)
            if (m->blocks[b].kind == DT_BLOCK_TRANSFORMER)
                sum += (m->blocks[b].causal ? 2.0 : 4.0) * m->blocks[b].heads *
                       m->blocks[b].head_dim * (double)w.tokens_sq;
    }
    return sum;
}

/* A backward of attention makes the scores again: five products for the forward's two, also where no weights are trained. */
START_TEST(frozen_modules_count_less)
{
    double flops[DT_MAX_MODULES], hardware, e, l, again = 0;

    sf_init(&s);
    sf_chain(&s, 5);
    sf_plan(&s, 24, 1, DT_SCHED_1F1B);
    for (int m = 0; m < 3; m++)
        sf_layout(&s, m, 1, 1, 1, 1);
    sf_samples(&s, 24, 2, 1, false, 52);
    sf_assign(&s);
    e = forward_flops(0);
    l = forward_flops(1);
    dt_report_flops(&s.plan, &s.f.model, s.a, flops, &hardware);
    ck_assert_double_eq_tol(flops[0], 3 * e, 1e-9 * e);
    ck_assert_double_eq_tol(flops[1], 3 * l, 1e-9 * l);
    for (int m = 0; m < 3; m++)
        again += 0.5 * attention_flops(m);
    ck_assert_double_gt(again, 0);
    ck_assert_double_eq_tol(hardware, flops[0] + flops[1] + flops[2] + again, 1e-9 * hardware);
    s.plan.modules[0].frozen = s.plan.modules[1].frozen = true;
    dt_report_flops(&s.plan, &s.f.model, s.a, flops, &hardware);
    ck_assert_double_gt(flops[0], e); /* the projector is trained: three times its share */
    ck_assert_double_lt(flops[0], 1.2 * e);
    ck_assert_double_eq_tol(flops[1], 2 * l, 1e-9 * l); /* the projector upstream needs gradients */
    again = 1.5 * attention_flops(1) + 0.5 * attention_flops(2);
    ck_assert_double_eq_tol(hardware, flops[0] + flops[1] + flops[2] + again, 1e-9 * hardware);
    sf_free(&s);
}
END_TEST

START_TEST(recompute_counts_for_the_hardware_only)
{
    double none[DT_MAX_MODULES], full[DT_MAX_MODULES], h_none, h_full;

    sf_llm_only(&s, 2, 1, 1, 6, DT_SCHED_1F1B);
    dt_report_flops(&s.plan, &s.f.model, s.a, none, &h_none);
    s.plan.modules[0].recompute = DT_RECOMPUTE_FULL;
    dt_report_flops(&s.plan, &s.f.model, s.a, full, &h_full);
    ck_assert_double_eq(none[0], full[0]);
    ck_assert_double_eq_tol(h_full, none[0] * 4 / 3 + 0.5 * attention_flops(0), 1e-9 * h_full);
    s.plan.modules[0].recompute = DT_RECOMPUTE_SELECTIVE;
    dt_report_flops(&s.plan, &s.f.model, s.a, full, &h_full);
    ck_assert_double_ge(h_full, h_none);
    ck_assert_double_lt(h_full, h_none * 1.05);
    sf_free(&s);
}
END_TEST

START_TEST(report_is_consistent)
{
    struct dt_cost *cost = costed_chain(DT_RECOMPUTE_NONE);
    struct dt_durations d = {0};
    struct dt_timeline_topo topo = {0};
    struct dt_timeline t = {0};
    struct dt_report r;
    double model = 0, shares = 0;

    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                 s.err);
    dt_assert_ok(dt_timeline_topo_build(s.p, &s.err, &topo), s.err);
    dt_assert_ok(dt_timeline_eval(s.p, &topo, d.ns, &s.err, &t), s.err);
    dt_assert_ok(dt_report_fill(s.p, &s.f.model, &s.f.cluster, &d, &t, &s.err, &r), s.err);
    for (int m = 0; m < 3; m++) {
        model += r.model_flops[m];
        ck_assert_double_gt(r.memory.of_module[m], 0);
        ck_assert(r.timeline.utilisation[m] > 0 && r.timeline.utilisation[m] < 1);
    }
    for (int k = 0; k < DT_PROV_N; k++)
        shares += r.prov_share[k];
    ck_assert_double_eq_tol(shares, 1, 1e-9);
    ck_assert_int_eq(r.gpus_used, 4 + 12 + 1);
    ck_assert_int_eq(r.gpus, 512 * 8);
    ck_assert_double_eq_tol(r.iteration_s, 1e-9 * (double)t.makespan_ns, 1e-15);
    ck_assert_double_eq_tol(r.mfu, model / (17 * 312e12 * r.iteration_s), 1e-12);
    ck_assert_double_eq_tol(r.mfu_cluster, r.mfu * 17 / 4096, 1e-12);
    ck_assert(r.hfu > r.mfu && r.hfu < 1.05 * r.mfu); /* scores of attention once more */
    ck_assert(r.mfu > 0 && r.mfu < 1);
    ck_assert_double_eq_tol(r.samples_per_s, 36 / r.iteration_s, 1e-9);
    ck_assert_double_eq_tol(r.tokens_per_s, 36 * SF_SEQ / r.iteration_s, 1e-9);
    ck_assert_uint_eq(r.ops, s.p->n_ops);
    t.n_ops--;
    ck_assert_int_eq(dt_report_fill(s.p, &s.f.model, &s.f.cluster, &d, &t, &s.err, &r),
                     DT_ERR_INTERNAL);
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&t);
    dt_durations_free(&d);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

/* The list schedule asks the cost model for the length of forwards and backwards. */
START_TEST(list_schedule_by_costs)
{
    struct dt_cost *cost = costed_chain(DT_RECOMPUTE_NONE);
    struct dt_program *p = NULL;

    sf_free_program(&s);
    sf_layout(&s, 0, 1, 2, 1, 7); /* more replicas than samples in a slot */
    sf_assign(&s);
    dt_assert_ok(dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, cost, &s.err, &p), s.err);
    dt_assert_ok(dt_program_check(p, &s.f.model, &s.err), s.err);
    dt_program_free(p);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("report");
    TCase *c = dt_test_case(u, "report", 120);

    tcase_add_test(c, durations_are_the_costs);
    tcase_add_test(c, parts_add_up);
    tcase_add_test(c, durations_without_memory);
    tcase_add_test(c, frozen_modules_count_less);
    tcase_add_test(c, recompute_counts_for_the_hardware_only);
    tcase_add_test(c, report_is_consistent);
    tcase_add_test(c, list_schedule_by_costs);
    return dt_test_run(u);
}
