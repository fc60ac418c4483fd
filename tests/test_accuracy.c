/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Measured tables: reading, jobs, errors; and the kernels of unfused blocks. */
#include "fit/accuracy.h"
#include "core/cost/cost.h"
#include "core/job/job.h"

#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dt_accuracy_measured_table parse(const char *text)
{
    struct dt_accuracy_measured_table t;
    struct dt_error err = {0};

    ck_assert_msg(dt_accuracy_measured_parse("dir/t.csv", text, strlen(text), &err, &t) == DT_OK,
                  "%s", err.message);
    return t;
}

START_TEST(test_headers)
{
    struct dt_accuracy_measured_table t =
        parse("layers,hidden,heads,gpus,tp,micro_batch,global_batch,measured_iter_s,recompute\n"
              "30,3072,24,16,4,2,64,1.25,full\n"
              "30,3072,24,16,4,2,64,,\n");

    ck_assert_str_eq(t.name, "t");
    ck_assert_int_eq(t.format, DT_MEASURED_CSV);
    ck_assert_int_eq(t.n, 2);
    ck_assert_int_eq(t.rows[0].ffn, 4 * 3072);
    ck_assert_int_eq(t.rows[0].dp, 4);
    ck_assert_int_eq(t.rows[0].seq, 2048);
    ck_assert_int_eq(t.rows[0].kv_groups, 24);
    ck_assert_int_eq(t.rows[0].recompute, DT_RECOMPUTE_FULL);
    ck_assert_double_eq_tol(t.rows[0].measured_s, 1.25, 1e-12);
    ck_assert_int_eq(t.rows[1].recompute, DT_RECOMPUTE_NONE);
    ck_assert(t.rows[1].measured_s == 0);
    ck_assert(!t.rows[0].fp16);
    dt_accuracy_measured_free(&t);

    /* a Llama on an A100 ran with flash attention, a GPT there did not */
    t = parse("layers,hidden,ffn,heads,kv_groups,gpus,micro_batch,global_batch\n"
              "32,4096,11008,32,32,8,1,64\n32,4096,,32,32,8,1,64\n32,4096,,32,8,8,1,64\n");
    ck_assert(!t.rows[0].unfused && t.rows[0].distributed && t.rows[0].seqpar);
    ck_assert(t.rows[1].unfused && !t.rows[1].distributed && !t.rows[1].seqpar);
    ck_assert(!t.rows[2].unfused);
    dt_accuracy_measured_free(&t);

    t = parse("source,layers,hidden,heads,gpus,micro_batch,global_batch\n"
              "recalled,30,3072,24,1,2,64\n,30,3072,24,1,2,64\n");
    ck_assert_str_eq(t.rows[0].source, "recalled");
    ck_assert_str_eq(t.rows[1].source, "");
    ck_assert(t.peers == NULL);
    dt_accuracy_measured_free(&t);

    t = parse(
        "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,"
        "tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)\n"
        "8,16,2,1024,16,24,1024,2,2,2,123.5\n");
    ck_assert_int_eq(t.format, DT_MEASURED_VTRAIN);
    ck_assert_int_eq(t.rows[0].layers, 24);
    ck_assert_int_eq(t.rows[0].gpus, 8);
    ck_assert_double_eq_tol(t.rows[0].measured_s, 0.1235, 1e-12);
    ck_assert(t.rows[0].fp16 && t.rows[0].unfused && !t.rows[0].seqpar);
    dt_assert_has(t.peers, "8.37");
    dt_accuracy_measured_free(&t);

    t = parse("model,hidden,heads,layers,seq,gpus,tp,pp,dp,batch,microbatch,interleave,recompute,"
              "iteration_s\nm,6144,64,48,2048,8,8,1,1,4,4,1,seqsel,1.5\n");
    ck_assert_int_eq(t.format, DT_MEASURED_MEGATRON);
    ck_assert_int_eq(t.rows[0].recompute, DT_RECOMPUTE_SELECTIVE);
    ck_assert(t.rows[0].seqpar);
    dt_accuracy_measured_free(&t);
}
END_TEST

static const struct {
    const char *text, *says;
} bad[] = {
    {"layers,hidden\n1,2\n", "no column"},
    {"layers,hidden,heads,gpus,micro_batch,global_batch\n", "no rows"},
    {"layers,hidden,heads,gpus,micro_batch,global_batch\n2,64,4,8,,8\n", "no default"},
    {"layers,hidden,heads,gpus,micro_batch,global_batch\n2,64,4,8,1.5,8\n", "whole number"},
    {"layers,hidden,heads,gpus,micro_batch,global_batch,tp\n2,64,4,8,1,8,3\n", "GPUs"},
    {"layers,hidden,heads,gpus,micro_batch,global_batch,recompute\n2,64,4,8,1,8,ful\n",
     "did you mean"},
};

START_TEST(test_bad_tables)
{
    struct dt_accuracy_measured_table t;
    struct dt_error err = {0};

    ck_assert_int_eq(
        dt_accuracy_measured_parse("t.csv", bad[_i].text, strlen(bad[_i].text), &err, &t),
        DT_ERR_INPUT);
    ck_assert_msg(strstr(err.message, bad[_i].says) != NULL, "%s", err.message);
}
END_TEST

/* The job says what the row says. */
START_TEST(test_job)
{
    struct dt_accuracy_measured_table t =
        parse("layers,hidden,heads,kv_groups,ffn,vocab,seq,gpus,tp,pp,vpp,micro_batch,global_batch,"
              "gpu_type,recompute,measured_iter_s\n"
              "30,3072,24,24,12288,51200,1024,24,4,3,1,2,44,A100,full,1\n"
              "32,4096,32,8,14336,128256,8192,64,4,4,2,1,128,H100,none,1\n");
    char text[DT_MEASURED_JOB_MAX];
    const char *profile;
    struct dt_error err = {0};
    struct dt_job *j;

    for (int i = 0; i < t.n; i++) {
        const struct dt_accuracy_measured_row *r = &t.rows[i];
        const struct dt_block *b;

        ck_assert_int_eq(dt_accuracy_measured_job(r, &err, text, sizeof text, &profile), DT_OK);
        ck_assert_msg(dt_job_parse("row", text, strlen(text), NULL, 0, true, &err, &j) == DT_OK,
                      "%s in %s", err.message, text);
        b = &j->model->modules[0].blocks[1];
        ck_assert_int_eq(j->model->modules[0].n_blocks, r->layers + 2);
        ck_assert_int_eq(b->kv_heads, r->kv_groups);
        ck_assert_int_eq(b->unfused, i == 0);
        ck_assert_int_eq(b->gated, i == 1);
        ck_assert_int_eq(j->zero[0], i);
        ck_assert_int_eq(j->recompute[0], r->recompute);
        ck_assert_str_eq(profile, i ? "h100" : "a100");
        ck_assert_int_eq(j->plan.modules[0].split[1], 1 + r->layers / (r->pp * r->vpp));
        ck_assert_int_eq(j->plan.modules[0].split[r->pp * r->vpp], r->layers + 2);
        dt_job_free(j);
    }
    dt_accuracy_measured_free(&t);
}
END_TEST

/* Each device has its own links. */
START_TEST(test_devices)
{
    static const struct {
        const char *type, *device, *profile;
        double nvlink;
    } is[] = {{"A100", "A100-SXM4-80GB", "a100", 240e9},
              {"A800", "A800-SXM4-80GB", "a800", 160e9},
              {"H100", "H100-SXM5-80GB", "h100", 371e9},
              {"H800", "H800-SXM5-80GB", "h100", 165e9}};

    for (size_t i = 0; i < sizeof is / sizeof is[0]; i++) {
        char row[256], text[DT_MEASURED_JOB_MAX];
        struct dt_accuracy_measured_table t;
        const char *profile;
        struct dt_error err = {0};
        struct dt_job *j;

        snprintf(row, sizeof row,
                 "layers,hidden,heads,gpus,tp,micro_batch,global_batch,gpu_type\n"
                 "32,4096,32,8,8,1,32,%s\n",
                 is[i].type);
        t = parse(row);
        dt_assert_ok(dt_accuracy_measured_job(&t.rows[0], &err, text, sizeof text, &profile), err);
        dt_assert_ok(dt_job_parse("row", text, strlen(text), NULL, 0, true, &err, &j), err);
        ck_assert_str_eq(j->cluster.device, is[i].device);
        ck_assert_str_eq(profile, is[i].profile);
        ck_assert_double_eq_tol(j->cluster.nvlink_bytes_per_s / is[i].nvlink, 1, 1e-12);
        dt_job_free(j);
        dt_accuracy_measured_free(&t);
    }
}
END_TEST

START_TEST(test_unknown_gpu)
{
    struct dt_accuracy_measured_row r = {.layers = 2, .pp = 1, .vpp = 1, .gpu_type = "B42"};
    char text[DT_MEASURED_JOB_MAX];
    const char *profile;
    struct dt_error err = {0};

    ck_assert_int_eq(dt_accuracy_measured_job(&r, &err, text, sizeof text, &profile), DT_ERR_INPUT);
    ck_assert(strstr(err.message, "B42") != NULL);
}
END_TEST

START_TEST(test_summary)
{
    const struct dt_accuracy_row rows[] = {
        {2.0, 2.2, 2.1, 2.3},  /* +10 %, outside */
        {4.0, 3.0, 2.5, 4.5},  /* -25 %, inside */
        {0, 9, 8, 10},         /* not measured */
        {1.0, 1.05, 0.9, 1.2}, /* +5 %, inside */
    };
    struct dt_accuracy a;
    struct dt_error err = {0};

    ck_assert_int_eq(dt_accuracy_summary(rows, 4, &err, &a), DT_OK);
    ck_assert_int_eq(a.n, 3);
    ck_assert_double_eq_tol(a.mape, 0.40 / 3, 1e-12);
    ck_assert_double_eq_tol(a.median, 0.10, 1e-12);
    ck_assert_double_eq_tol(a.max, 0.25, 1e-12);
    ck_assert_double_eq_tol(a.bias, -0.10 / 3, 1e-12);
    ck_assert_double_eq_tol(a.cover80, 2.0 / 3, 1e-12);
}
END_TEST

/* An unfused causal block has the model FLOPs of a fused one, and its kernels the masked half
 * besides. */
START_TEST(test_unfused_flops)
{
    struct dt_block b = {.kind = DT_BLOCK_TRANSFORMER,
                         .hidden = 1536,
                         .ffn = 6144,
                         .heads = 12,
                         .kv_heads = 12,
                         .head_dim = 128,
                         .max_pos = 1024,
                         .causal = true,
                         .bias = true,
                         .layernorm = true};
    const struct dt_work w = {3, 3 * 896, 3 * 896 * 896, 896};
    const struct dt_block_shard shard = {.tp = 4, .cp = 1, .ep = 1, .ip = 1, .seqpar = true};
    struct dt_kop k[DT_MAX_KOPS];
    double fused = dt_block_flops(&b, &w), core = 0;
    double fused_bytes = dt_block_act_bytes(&b, &shard, &w, DT_RECOMPUTE_SELECTIVE);
    int n, reduces = 0, gathers = 0;

    b.unfused = true;
    ck_assert_double_eq_tol(dt_block_flops(&b, &w) / fused, 1, 1e-12);
    ck_assert_double_eq_tol((dt_block_run_flops(&b, &w) - fused) / (2.0 * 3 * 896 * 896 * 1536), 1,
                            1e-9);
    b.no_seqpar = true;
    n = dt_block_kops(&b, &shard, &w, k);
    ck_assert_int_le(n, DT_MAX_KOPS);
    for (int i = 0; i < n; i++) {
        core += k[i].core && k[i].family == DT_KOP_GEMM ? k[i].flops * k[i].count : 0;
        reduces += k[i].family == DT_KOP_ALL_REDUCE;
        gathers += k[i].family == DT_KOP_ALL_GATHER || k[i].family == DT_KOP_REDUCE_SCATTER;
    }
    ck_assert_double_eq_tol(core, 4.0 * 3 * 896 * 896 * 1536 / 4, 1e3);
    ck_assert_int_eq(reduces, 2);
    ck_assert_int_eq(gathers, 0);
    /* whole norms and dropout masks on every rank: more than with sequence parallelism */
    ck_assert(dt_block_act_bytes(&b, &shard, &w, DT_RECOMPUTE_SELECTIVE) > fused_bytes);
    ck_assert_double_eq_tol(dt_block_act_bytes(&b, &shard, &w, DT_RECOMPUTE_NONE) -
                                dt_block_act_bytes(&b, &shard, &w, DT_RECOMPUTE_SELECTIVE),
                            5.0 * 3 * 896 * 896 * 12 / 4, 1e-3);
}
END_TEST

/* Every constant has a line, is positive, and is the one that the cost model uses. */
START_TEST(test_constants)
{
    static const char row[] = "layers,hidden,heads,gpus,tp,pp,micro_batch,global_batch,vocab\n"
                              "8,2048,16,8,4,2,2,16,50257\n";
    struct dt_accuracy_measured_table t = parse(row);
    struct dt_work w = {2, 4096, 4096 * 2048, 2048};
    struct dt_block_shard shard = {.tp = 4, .cp = 1, .ep = 1, .ip = 1};
    struct dt_cost_tuning tune;
    struct dt_cost_stage base, moved;
    char text[DT_MEASURED_JOB_MAX];
    struct dt_error err = {0};
    const char *profile;
    struct dt_cost *c;
    struct dt_job *j;

    ck_assert_int_eq(dt_accuracy_measured_job(&t.rows[0], &err, text, sizeof text, &profile),
                     DT_OK);
    dt_assert_ok(dt_job_parse("row", text, strlen(text), NULL, 0, false, &err, &j), err);
    for (int i = -1; i < DT_COST_CONSTANTS; i++) {
        tune = dt_cost_tuning_default;
        if (i >= 0) {
            ck_assert(dt_cost_constants[i].name && dt_cost_constants[i].unit &&
                      dt_cost_constants[i].source && dt_cost_constants[i].meaning);
            ck_assert_double_gt(*dt_cost_tuning_at(&tune, i), 0);
            *dt_cost_tuning_at(&tune, i) *= 1.1;
        }
        j->cost_opt.tuning = i >= 0 ? &tune : NULL;
        dt_assert_ok(dt_cost_new(j->model, &j->cluster, j->profile, &j->cost_opt, &err, &c), err);
        dt_cost_stage(c, 0, 0, j->model->modules[0].n_blocks, &shard, &w, NULL, true,
                      i < 0 ? &base : &moved);
        if (i >= 0 && strcmp(dt_cost_constants[i].name, "host_norm") == 0)
            ck_assert_double_lt(moved.fwd.ns, base.fwd.ns); /* nearer to the maximum of the two */
        else if (i >= 0)
            ck_assert_msg(moved.fwd.ns + moved.dgrad.ns > base.fwd.ns + base.dgrad.ns, "%s",
                          dt_cost_constants[i].name);
        dt_cost_free(c);
    }
    dt_job_free(j);
    dt_accuracy_measured_free(&t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("accuracy");
    TCase *t = dt_test_case(s, "tables", 0);

    tcase_add_test(t, test_headers);
    tcase_add_loop_test(t, test_bad_tables, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_test(t, test_job);
    tcase_add_test(t, test_devices);
    tcase_add_test(t, test_unknown_gpu);
    tcase_add_test(t, test_summary);
    tcase_add_test(t, test_constants);
    tcase_add_test(t, test_unfused_flops);
    return dt_test_run(s);
}
