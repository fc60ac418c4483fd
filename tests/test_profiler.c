/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows of whole blocks: what the cost model makes of them; keys; statistics; messages between ranks
 * that are threads.  Measuring blocks is run by tests/test_profile_job.sh. */
#include "core/model/block_key.h"
#include "cost_fixture.h"
#include "exec/train/profiler.h"
#include "exec/train/profiler_comm.h"
#include "test_util.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

enum { HIDDEN = 64, BLOCKS = 3 };

static const struct dt_block_shard alone = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};

/* Two equal transformer blocks and a third one, of a module of their own. */
static void make_model(struct fixture *f, struct dt_block *b)
{
    struct dt_module *m = &f->model.modules[0];

    memset(b, 0, BLOCKS * sizeof(*b));
    for (int i = 0; i < BLOCKS; i++) {
        b[i].kind = DT_BLOCK_TRANSFORMER;
        b[i].hidden = HIDDEN;
        b[i].ffn = i < 2 ? 4 * HIDDEN : 3 * HIDDEN;
        b[i].heads = b[i].kv_heads = 4;
        b[i].head_dim = 16;
        b[i].causal = true;
    }
    memset(&f->model, 0, sizeof(f->model));
    snprintf(m->name, sizeof(m->name), "llm");
    m->role = DT_ROLE_LLM;
    m->n_blocks = BLOCKS;
    m->blocks = b;
    f->model.n_modules = 1;
}

static struct dt_block_shard as(struct dt_block_shard s, enum dt_block_recompute r)
{
    s.recompute = r;
    return s;
}

static double time_of(int kind, int phase, int64_t tokens)
{
    return 1000.0 * (kind + 1) * (phase + 2) + (double)tokens * 37 * (kind + 2) * (phase + 1);
}

static void add_rows(struct fixture *f, const struct dt_block *b, enum dt_block_recompute r)
{
    const struct dt_block_shard shard = as(alone, r);

    for (int kind = 0; kind < 2; kind++)
        for (int phase = 0; phase < DT_PHASE_N; phase++)
            for (int64_t tokens = 64; tokens <= 1024; tokens *= 4) {
                int64_t d[] = {tokens, dt_block_key(&b[kind ? 2 : 0], &shard)};

                fx_row(f, DT_KOP_BLOCK, phase, DT_ROW_MEASURED, d, 2, time_of(kind, phase, tokens));
            }
    fx_index(f);
}

static struct dt_cost_stage cost_of(struct fixture *f, enum dt_block_recompute r,
                                    const struct dt_block_shard *s, int64_t tokens, bool upstream)
{
    const struct dt_cost_options o = {.allow_analytical = true};
    const struct dt_block_shard shard = as(*s, r);
    struct dt_work w = {1, tokens, tokens * tokens, tokens};
    struct dt_cost_stage out;
    struct dt_error err;
    struct dt_cost *c;

    dt_assert_ok(dt_cost_new(&f->model, &f->cluster, &f->profile, &o, &err, &c), err);
    dt_cost_stage(c, 0, 0, BLOCKS, &shard, &w, NULL, upstream, &out);
    dt_assert_ok(dt_cost_survey(c, &(struct dt_cost_modes){1, {1U << r}}, &err), err);
    dt_cost_free(c);
    return out;
}

START_TEST(blocks_cost_what_was_measured)
{
    struct dt_block b[BLOCKS];
    struct dt_cost_stage got;
    struct fixture f;

    fx_init(&f);
    make_model(&f, b);
    add_rows(&f, b, DT_RECOMPUTE_FULL);
    for (int64_t tokens = 64; tokens <= 1024; tokens *= 4) {
        got = cost_of(&f, DT_RECOMPUTE_FULL, &alone, tokens, true);
        ck_assert_double_eq_tol(got.fwd.ns, 2 * time_of(0, 0, tokens) + time_of(1, 0, tokens),
                                1e-6 * got.fwd.ns);
        /* what is computed again is inside the measured backward */
        ck_assert_double_eq_tol(got.dgrad.ns, 2 * time_of(0, 1, tokens) + time_of(1, 1, tokens),
                                1e-6 * got.dgrad.ns);
        ck_assert_double_eq_tol(got.wgrad.ns, 2 * time_of(0, 2, tokens) + time_of(1, 2, tokens),
                                1e-6 * got.wgrad.ns);
        ck_assert_double_eq_tol(got.fwd.prov[DT_PROV_MEASURED], got.fwd.ns, 1e-6 * got.fwd.ns);
    }
    /* between rows: between their times, and called interpolated */
    got = cost_of(&f, DT_RECOMPUTE_FULL, &alone, 512, true);
    ck_assert_double_gt(got.fwd.ns, 2 * time_of(0, 0, 256) + time_of(1, 0, 256));
    ck_assert_double_lt(got.fwd.ns, 2 * time_of(0, 0, 1024) + time_of(1, 0, 1024));
    ck_assert_double_eq_tol(got.fwd.prov[DT_PROV_INTERPOLATED], got.fwd.ns, 1e-6 * got.fwd.ns);
    /* nothing trained upstream: the first block owes no input gradient */
    got = cost_of(&f, DT_RECOMPUTE_FULL, &alone, 256, false);
    ck_assert_double_eq_tol(got.dgrad.ns, time_of(0, 1, 256) + time_of(1, 1, 256),
                            1e-6 * got.dgrad.ns);
    free(f.profile.rows);
}
END_TEST

/* Iterations are sums, and so blocks cost their means: 30 % of the 10th, 40 % of the 50th, 30 % of the 90th percentile. */
START_TEST(blocks_cost_their_means)
{
    struct dt_block b[BLOCKS];
    struct dt_cost_stage even, tailed;
    struct fixture f;

    fx_init(&f);
    make_model(&f, b);
    add_rows(&f, b, DT_RECOMPUTE_NONE);
    even = cost_of(&f, DT_RECOMPUTE_NONE, &alone, 256, true);
    for (int64_t i = 0; i < f.profile.n_rows; i++) {
        f.profile.rows[i].p10_ns *= 0.9;
        f.profile.rows[i].p90_ns *= 1.5;
    }
    tailed = cost_of(&f, DT_RECOMPUTE_NONE, &alone, 256, true);
    ck_assert_double_eq_tol(tailed.fwd.ns, (0.3 * 0.9 + 0.4 + 0.3 * 1.5) * even.fwd.ns,
                            1e-6 * even.fwd.ns);
    free(f.profile.rows);
}
END_TEST

/* A layer of hidden 64 and ffn 256 or 192: 2 (4 h^2 + 2 h f) a token, and causal attention 2 h a pair of tokens (FACTS
 * "per-block"), so tokens of long sequences count for more; 10 ns for each that counts. */
START_TEST(tokens_of_long_sequences_cost_more)
{
    static const struct dt_work works[] = {
        {64, 256, 256, 1}, {4, 256, 4 * 64 * 64, 64}, {1, 256, 256 * 256, 256}};
    struct dt_block b[BLOCKS];
    struct fixture f;

    fx_init(&f);
    make_model(&f, b);
    for (int kind = 0; kind < 2; kind++)
        for (int phase = 0; phase < DT_PHASE_N; phase++)
            for (int64_t at = 64; at <= 1024; at *= 4) {
                int64_t d[] = {at, dt_block_work_key(&b[kind ? 2 : 0], &alone)};

                fx_row(&f, DT_KOP_BLOCK, phase, DT_ROW_MEASURED, d, 2, 10.0 * (double)at);
            }
    fx_index(&f);
    for (int i = 0; i < 3; i++) {
        const struct dt_work *w = &works[i];
        const struct dt_cost_options o = {.allow_analytical = true};
        struct dt_cost_stage got;
        struct dt_error err;
        struct dt_cost *c;
        double want = 0;

        for (int k = 0; k < BLOCKS; k++) {
            double token = 2.0 * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * (k < 2 ? 256 : 192));

            want += 10 * 256 * (token * 256 + 2.0 * HIDDEN * (double)w->tokens_sq) /
                    (token * 256 + 2.0 * HIDDEN * 256);
        }
        dt_assert_ok(dt_cost_new(&f.model, &f.cluster, &f.profile, &o, &err, &c), err);
        dt_cost_stage(c, 0, 0, BLOCKS, &alone, w, NULL, true, &got);
        dt_cost_free(c);
        ck_assert_double_eq_tol(got.fwd.ns, want, 10.0 * BLOCKS); /* places are whole numbers */
        ck_assert_double_eq_tol(got.wgrad.ns, want, 10.0 * BLOCKS);
    }
    free(f.profile.rows);
}
END_TEST

/* A member of context parallelism has its share of the rows, and gathers keys and values, in bf16, forwards and
 * backwards, where it sums gradients, too; one of image parallelism has its images. */
START_TEST(members_cost_their_share)
{
    const struct dt_block_shard cut = {.tp = 1, .cp = 2, .ep = 1, .ip = 1};
    const struct dt_block_shard dealt = {.tp = 1, .cp = 1, .ep = 1, .ip = 4};
    const struct dt_cost_options o = {.allow_analytical = true};
    struct dt_cost_time gather, sum;
    struct dt_block b[BLOCKS];
    struct dt_cost_stage got;
    struct dt_error err;
    struct fixture f;
    struct dt_cost *c;

    fx_init(&f);
    make_model(&f, b);
    add_rows(&f, b, DT_RECOMPUTE_NONE);
    dt_assert_ok(dt_cost_new(&f.model, &f.cluster, &f.profile, &o, &err, &c), err);
    dt_cost_collective(c, DT_KOP_ALL_GATHER, 2, 2, 1, 2 * 512 * 2 * b[0].kv_heads * b[0].head_dim,
                       &gather);
    dt_cost_collective(c, DT_KOP_REDUCE_SCATTER, 2, 2, 1,
                       2 * 512 * 2 * b[0].kv_heads * b[0].head_dim, &sum);
    dt_cost_free(c);
    got = cost_of(&f, DT_RECOMPUTE_NONE, &cut, 512, true);
    ck_assert_double_eq_tol(got.fwd.ns,
                            2 * time_of(0, 0, 256) + time_of(1, 0, 256) + BLOCKS * gather.ns,
                            1e-6 * got.fwd.ns);
    ck_assert_double_eq_tol(
        got.dgrad.ns, 2 * time_of(0, 1, 256) + time_of(1, 1, 256) + BLOCKS * (gather.ns + sum.ns),
        1e-6 * got.dgrad.ns);
    ck_assert_double_eq_tol(got.wgrad.ns, 2 * time_of(0, 2, 256) + time_of(1, 2, 256),
                            1e-6 * got.wgrad.ns);
    /* one image, which is not cut, is at one of the four */
    got = cost_of(&f, DT_RECOMPUTE_NONE, &dealt, 256, true);
    ck_assert_double_eq_tol(got.fwd.ns, 2 * time_of(0, 0, 256) + time_of(1, 0, 256),
                            1e-6 * got.fwd.ns);
    free(f.profile.rows);
}
END_TEST

/* Rows of another split, or of another kind of recomputation, are rows of another block. */
START_TEST(other_blocks_are_not_taken)
{
    const struct dt_block_shard half = {.tp = 2, .cp = 1, .ep = 1, .ip = 1, .seqpar = true};
    struct dt_block b[BLOCKS];
    struct dt_cost_stage got;
    struct fixture f;

    fx_init(&f);
    make_model(&f, b);
    add_rows(&f, b, DT_RECOMPUTE_FULL);
    got = cost_of(&f, DT_RECOMPUTE_NONE, &alone, 256, true);
    ck_assert_double_eq_tol(got.fwd.prov[DT_PROV_MEASURED], 0, 1e-9);
    got = cost_of(&f, DT_RECOMPUTE_FULL, &half, 256, true);
    ck_assert_double_eq_tol(got.fwd.prov[DT_PROV_MEASURED], 0, 1e-9);
    free(f.profile.rows);
}
END_TEST

START_TEST(keys_tell_blocks_apart)
{
    struct dt_block b[BLOCKS], c;
    struct dt_block_shard s = alone;
    struct fixture f;
    int64_t key;

    fx_init(&f);
    make_model(&f, b);
    key = dt_block_key(&b[0], &s);
    ck_assert_int_gt(key, 0);
    ck_assert_int_le(key, INT64_C(1) << 48);
    ck_assert_int_eq(key, dt_block_key(&b[1], &s));
    ck_assert_int_ne(key, dt_block_key(&b[2], &s));
    s.recompute = DT_RECOMPUTE_FULL;
    ck_assert_int_ne(key, dt_block_key(&b[0], &s));
    s.recompute = DT_RECOMPUTE_NONE;
    /* every byte that is set in a block counts */
    for (size_t at = 0; at < sizeof(c); at += sizeof(int)) {
        int one = 1;

        memset(&c, 0, sizeof(c));
        key = dt_block_key(&c, &s);
        memcpy((char *)&c + at, &one, sizeof(one));
        ck_assert_msg(key != dt_block_key(&c, &s) || at == offsetof(struct dt_block, class_tokens),
                      "byte %zu of struct dt_block does not matter to its key", at);
    }
    s.tp = 2;
    ck_assert_int_ne(dt_block_key(&b[0], &alone), dt_block_key(&b[0], &s));
    free(f.profile.rows);
}
END_TEST

START_TEST(statistics_are_order_statistics)
{
    double ns[] = {50, 10, 1e9, 30, 20, 40, 0.1, 60, 70, 80, 90};
    struct dt_profile_row row = {0};

    dt_profiler_statistics(ns, 11, &row);
    ck_assert_int_eq(row.n, 11);
    ck_assert_double_eq_tol(row.median_ns, 50, 1e-9); /* the outlier moves nothing */
    ck_assert_double_eq_tol(row.p10_ns, 10, 1e-9);
    ck_assert_double_eq_tol(row.p90_ns, 90, 1e-9);
    ns[0] = 0.25;
    dt_profiler_statistics(ns, 1, &row);
    ck_assert(row.p10_ns >= 1 && row.p10_ns <= row.median_ns && row.median_ns <= row.p90_ns);
    ns[0] = 4;
    ns[1] = 2;
    dt_profiler_statistics(ns, 2, &row);
    ck_assert_double_eq_tol(row.median_ns, 3, 1e-9);
}
END_TEST

/* ---- messages ---- */

enum { RANKS = 3, MESSAGES_MAX = 16384 };

struct rank {
    struct dt_transport *t;
    struct dt_profile_table *out;
    struct dt_error err;
    enum dt_status st;
};

static void *measure_messages(void *arg)
{
    struct rank *r = arg;
    struct dt_profiler_comm_options o = {
        .transport = r->t, .bytes_max = MESSAGES_MAX, .repeats = 3};

    r->st = dt_profiler_comm(&o, 0, 0, 0, &r->err, r->out);
    return NULL;
}

/* Sizes 4 and 16 KiB of every op, among 2 and among all ranks, each with what a core did for it. */
START_TEST(messages_between_ranks_are_measured)
{
    struct dt_transport *t[RANKS];
    struct dt_profile_source from = {.name = "test", .origin = "here"};
    struct rank r[RANKS];
    pthread_t id[RANKS];
    struct dt_profile_table out = {0};
    struct dt_error err;
    int seen[DT_KOP_FAMILY_N] = {0}, number;

    dt_assert_ok(dt_profile_table_device(&out, "cpu", &err, &number), err);
    dt_assert_ok(dt_profile_table_dtype(&out, "any", &err, &number), err);
    dt_assert_ok(dt_profile_table_source(&out, &from, &err, &number), err);
    dt_assert_ok(dt_transport_open_threads(RANKS, &err, t), err);
    for (int k = 0; k < RANKS; k++) {
        r[k] = (struct rank){.t = t[k], .out = k == 0 ? &out : NULL};
        ck_assert_int_eq(pthread_create(&id[k], NULL, measure_messages, &r[k]), 0);
    }
    for (int k = 0; k < RANKS; k++) {
        pthread_join(id[k], NULL);
        dt_assert_ok(r[k].st, r[k].err);
    }
    for (int k = 0; k < RANKS; k++)
        t[k]->close(t[k]);
    for (size_t i = 0; i < out.n_rows; i++) {
        const struct dt_profile_row *row = &out.rows[i].r;
        bool p2p = row->family == DT_KOP_SEND_RECV;

        seen[row->family]++;
        ck_assert_int_eq(row->n, 3);
        ck_assert_double_gt(row->p10_ns, 0);
        ck_assert_int_ge(row->d[p2p ? 1 : 2], 4096 - 4096 % (3 * 4));
        ck_assert_int_le(row->d[p2p ? 1 : 2], MESSAGES_MAX);
        /* one end, or a member of a collective that adds 0, 1 or 2 times */
        if (row->family == DT_KOP_CARRY)
            ck_assert(row->d[0] == 1 ? row->d[1] == 0 : row->d[0] <= RANKS && row->d[1] <= 2);
        else
            ck_assert(p2p ? row->d[0] == 2 : row->d[0] == row->d[1]);
        /* no more than the time of what it is a part of */
        if (i > 0 && row->family == DT_KOP_CARRY)
            ck_assert_double_le(row->p10_ns, out.rows[i - 1].r.p90_ns * (row->d[0] == 1 ? 2 : 1));
    }
    ck_assert_int_eq(seen[DT_KOP_SEND_RECV], 2);
    ck_assert_int_eq(seen[DT_KOP_ALL_REDUCE], 4);
    ck_assert_int_eq(seen[DT_KOP_REDUCE_SCATTER], 4);
    ck_assert_int_eq(seen[DT_KOP_ALL_GATHER], 4);
    ck_assert_int_eq(seen[DT_KOP_CARRY], 14);
    ck_assert_uint_eq(out.n_rows, 28);
    dt_profile_table_free(&out);
}
END_TEST

START_TEST(one_rank_has_no_messages)
{
    struct dt_profiler_comm_options o = {.bytes_max = MESSAGES_MAX};
    struct dt_profile_table out = {0};
    struct dt_error err;

    dt_assert_ok(dt_transport_open_self(&err, &o.transport), err);
    ck_assert_int_eq(dt_profiler_comm(&o, 0, 0, 0, &err, &out), DT_ERR_INPUT);
    o.transport->close(o.transport);
}
END_TEST

/* Times of a card are of the card, and of what drives it. */
START_TEST(origin_names_what_was_measured)
{
    const struct dt_device_info cpu = {.name = "cpu", .isa = "AVX2"};
    const struct dt_device_info card = {.name = "NVIDIA H100 80GB HBM3",
                                        .isa = "sm_90",
                                        .id = "0000:1b:00.0",
                                        .versions = "driver 580.65.06 for CUDA 13.0"};
    char text[256], host[64] = "", want[256];

    gethostname(host, sizeof(host) - 1);
    dt_profiler_origin(&card, text, sizeof(text));
    snprintf(want, sizeof(want),
             "measured on %s, NVIDIA H100 80GB HBM3 (sm_90), driver 580.65.06 for CUDA 13.0", host);
    ck_assert_str_eq(text, want);
    dt_profiler_origin(NULL, want, sizeof(want));
    dt_profiler_origin(&cpu, text, sizeof(text));
    ck_assert_str_eq(text, want);
    ck_assert_msg(!strstr(text, "cpu,") && !strstr(text, "AVX2"), "%s", text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("profiler");
    TCase *c = dt_test_case(s, "profiler", 0);

    tcase_add_test(c, blocks_cost_what_was_measured);
    tcase_add_test(c, blocks_cost_their_means);
    tcase_add_test(c, members_cost_their_share);
    tcase_add_test(c, tokens_of_long_sequences_cost_more);
    tcase_add_test(c, other_blocks_are_not_taken);
    tcase_add_test(c, keys_tell_blocks_apart);
    tcase_add_test(c, statistics_are_order_statistics);
    tcase_add_test(c, messages_between_ranks_are_measured);
    tcase_add_test(c, one_rank_has_no_messages);
    tcase_add_test(c, origin_names_what_was_measured);
    return dt_test_run(s);
}
