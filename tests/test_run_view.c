/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One iteration of a run as pictures and sums see it: the same from memory and from the runs file; each instant of each
 * GPU counted once. */
#include "base/mem.h"
#include "base/rng.h"
#include "report/breakdown.h"
#include "report/runs.h"
#include "report/timeline_draw.h"
#include "synth.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

static struct dt_error err;
static struct dt_model model;

static void name_modules(int n)
{
    model.n_modules = n;
    for (int m = 0; m < n; m++)
        snprintf(model.modules[m].name, sizeof model.modules[m].name, "m%d", m);
}

static void evaluate(struct synth *x, struct dt_timeline *t)
{
    struct dt_timeline_topo topo = {0};

    memset(t, 0, sizeof *t);
    dt_assert_ok(dt_timeline_topo_build(&x->p, &err, &topo), err);
    dt_assert_ok(dt_timeline_eval(&x->p, &topo, x->dur.ns, &err, t), err);
    dt_timeline_topo_free(&topo);
}

static void pipeline(int stages, int replicas, struct synth *x, struct dt_timeline *t)
{
    const struct synth_pipeline c = {.stages = stages,
                                     .replicas = replicas,
                                     .microbatches = 6,
                                     .lane_gpus = 2,
                                     .fwd_ns = 1000,
                                     .bwd_ns = 2000,
                                     .alpha_ns = 10,
                                     .transfer_ns = 100,
                                     .sync_ns = 500,
                                     .bytes = 64,
                                     .sync_bytes = 640,
                                     .spread = 0.3,
                                     .seed = dt_test_seed()};

    name_modules(1);
    synth_1f1b(&c, x);
    evaluate(x, t);
}

/* ---- from memory and from the runs file ---- */

START_TEST(a_view_is_the_same_from_the_runs_file)
{
    char path[] = "/tmp/test_run_view.XXXXXX";
    int fd = mkstemp(path);
    struct dt_run_ref ref = {.id = 1};
    struct dt_run_view a, b;
    struct dt_timeline t;
    struct synth x;
    int64_t id;

    ck_assert_int_ge(fd, 0);
    close(fd);
    pipeline(3, 2, &x, &t);
    struct dt_run_record run = {.kind = DT_RUN_SIMULATED,
                                .job_name = "job",
                                .started = "2026-01-01T00:00:00Z",
                                .version = "0",
                                .model = &model,
                                .program = &x.p,
                                .timeline = &t,
                                .ops = true};
    dt_assert_ok(dt_runs_add(path, &run, &err, &id), err);
    snprintf(ref.file, sizeof ref.file, "%s", path);
    dt_assert_ok(dt_run_view_of(&x.p, &model, &t, &err, &a), err);
    dt_assert_ok(dt_run_view_read(&ref, &err, &b), err);
    ck_assert_int_eq(a.n_lanes, b.n_lanes);
    ck_assert_int_eq(a.n_ops, b.n_ops);
    ck_assert_int_eq(a.makespan_ns, b.makespan_ns);
    ck_assert_int_eq(a.gpus, 3 * 2 * 2);
    ck_assert_int_eq(b.gpus, a.gpus);
    ck_assert_int_eq(a.module[0].replicas, 2);
    ck_assert_int_eq(a.module[0].stages, 3);
    for (int k = 0; k < a.n_lanes; k++) {
        const struct dt_run_view_lane *p = &a.lane[k], *q = &b.lane[k];

        ck_assert(p->module == q->module && p->replica == q->replica && p->stage == q->stage &&
                  p->gpus == q->gpus && p->first_gpu == q->first_gpu && p->first == q->first &&
                  p->n == q->n);
    }
    for (uint32_t i = 0; i < a.n_ops; i++) {
        const struct dt_run_view_op *p = &a.op[i], *q = &b.op[i];

        ck_assert(p->kind == q->kind && p->mb == q->mb && p->peer == q->peer &&
                  p->bytes == q->bytes && p->begin_ns == q->begin_ns && p->end_ns == q->end_ns);
    }
    dt_run_view_free(&a);
    dt_run_view_free(&b);
    dt_timeline_free(&t);
    synth_free(&x);
    unlink(path);
}
END_TEST

/* ---- where the time goes ---- */

static void check_sums(const struct dt_run_view *v, const struct dt_report_breakdown *b)
{
    double all[DT_SPENT_N] = {0}, sum = 0;
    int64_t gpus = 0;

    for (int i = 0; i < b->n; i++) {
        double of = 0;

        for (int k = 0; k < DT_SPENT_N; k++) {
            ck_assert_msg(b->seat[i].gpu_ns[k] >= 0, "%s is negative",
                          dt_report_spent_kinds[k].name);
            of += b->seat[i].gpu_ns[k];
            all[k] += b->seat[i].gpu_ns[k];
        }
        ck_assert_double_eq_tol(of, (double)(b->seat[i].gpus * v->makespan_ns), 1e-6 * of + 1);
        gpus += b->seat[i].gpus;
    }
    for (int k = 0; k < DT_SPENT_N; k++) {
        ck_assert_double_eq_tol(all[k], b->all.gpu_ns[k], 1e-9 * all[k] + 1);
        sum += dt_report_spent_share(&b->all, (enum dt_report_spent)k);
    }
    ck_assert_double_eq_tol(sum, 1, 1e-9);
    ck_assert_int_eq(gpus, v->gpus);
}

/* What computes is what the summary of the timeline says, which looks at dependencies and not at when ops end. */
START_TEST(the_parts_are_the_whole)
{
    printf("seed %" PRIu64 "\n", dt_test_seed());
    for (int n = 0; n < 60; n++) {
        struct dt_timeline_summary s;
        struct dt_report_breakdown b;
        struct dt_run_view v;
        struct dt_timeline t;
        struct synth x;
        double busy = 0;

        if (n % 2) {
            pipeline(1 + n % 7, 1 + n % 3, &x, &t);
        } else {
            name_modules(DT_MAX_MODULES);
            synth_random(dt_test_seed() + (uint64_t)n, 16, &x);
            evaluate(&x, &t);
        }
        dt_assert_ok(dt_run_view_of(&x.p, &model, &t, &err, &v), err);
        if (v.makespan_ns > 0) {
            dt_assert_ok(dt_report_breakdown_of(&v, &err, &b), err);
            check_sums(&v, &b);
            dt_assert_ok(dt_timeline_summarise(&x.p, &t, &err, &s), err);
            for (int k = 0; k < DT_SPENT_EXPOSED; k++)
                busy += dt_report_spent_share(&b.all, (enum dt_report_spent)k);
            ck_assert_msg(n % 2 == 0 || fabs(1 - busy - s.bubble_fraction) < 1e-9,
                          "%g busy, bubbles %g", busy, s.bubble_fraction);
            dt_report_breakdown_free(&b);
        }
        dt_run_view_free(&v);
        dt_timeline_free(&t);
        synth_free(&x);
    }
}
END_TEST

/* Two stages by hand, and a module on the GPUs of the first:
 *
 *   time          0    10   20   30   40   50   60   70   80   90  100
 *   llm stage 0   |guest| F0      .......... [recv] B0  [sync]    STEP
 *   llm stage 1   |            [recv] F0 B0  ........[sync] .....  STEP
 */
static struct dt_run_view_op hand[] = {
    {.kind = DT_OP_FORWARD, .mb = 0, .peer = -1, .begin_ns = 10, .end_ns = 20},
    {.kind = DT_OP_RECV, .mb = 0, .peer = 1, .begin_ns = 52, .end_ns = 55},
    {.kind = DT_OP_BACKWARD, .mb = 0, .peer = -1, .begin_ns = 55, .end_ns = 70},
    {.kind = DT_OP_GRAD_SYNC, .mb = -1, .peer = -1, .begin_ns = 70, .end_ns = 90},
    {.kind = DT_OP_STEP, .mb = -1, .peer = -1, .begin_ns = 95, .end_ns = 100},
    {.kind = DT_OP_RECV, .mb = 0, .peer = 0, .begin_ns = 20, .end_ns = 24},
    {.kind = DT_OP_FORWARD, .mb = 0, .peer = -1, .begin_ns = 24, .end_ns = 34},
    {.kind = DT_OP_BACKWARD, .mb = 0, .peer = -1, .begin_ns = 34, .end_ns = 52},
    {.kind = DT_OP_GRAD_SYNC, .mb = -1, .peer = -1, .begin_ns = 60, .end_ns = 80},
    {.kind = DT_OP_STEP, .mb = -1, .peer = -1, .begin_ns = 95, .end_ns = 100},
    {.kind = DT_OP_FORWARD, .mb = 0, .peer = -1, .begin_ns = 0, .end_ns = 9},
};
static struct dt_run_view_lane hand_lanes[] = {
    {0, 0, 0, 4, 0, 0, 5}, {0, 0, 1, 4, 4, 5, 5}, {1, 0, 0, 2, 0, 10, 1}};

static struct dt_run_view by_hand(void)
{
    struct dt_run_view v = {.n_modules = 2,
                            .n_lanes = 3,
                            .module = {{.name = "llm"}, {.name = "encoder"}},
                            .lane = hand_lanes,
                            .n_ops = 11,
                            .op = hand,
                            .makespan_ns = 100};

    dt_assert_ok(dt_run_view_seat(&v, &err), err);
    return v;
}

START_TEST(each_instant_has_its_cause)
{
    const struct dt_run_view v = by_hand();
    /* of the GPUs of stage 0: two of them have the guest */
    const double first[DT_SPENT_N] = {[DT_SPENT_FORWARD] = 4 * 10 + 2 * 9,
                                      [DT_SPENT_BACKWARD] = 4 * 15,
                                      [DT_SPENT_STEP] = 4 * 5,
                                      [DT_SPENT_TRANSFER] = 4 * 3,
                                      [DT_SPENT_SYNC] = 4 * 20,
                                      [DT_SPENT_STAGE] = 4 * 32,
                                      [DT_SPENT_DRAIN] = 4 * 5,
                                      [DT_SPENT_FILL] = 2 * 10,
                                      [DT_SPENT_OTHER] = 2 * 1};
    const double second[DT_SPENT_N] = {
        [DT_SPENT_FORWARD] = 4 * 10, [DT_SPENT_BACKWARD] = 4 * 18, [DT_SPENT_STEP] = 4 * 5,
        [DT_SPENT_TRANSFER] = 4 * 4, [DT_SPENT_SYNC] = 4 * 20,     [DT_SPENT_FILL] = 4 * 20,
        [DT_SPENT_DRAIN] = 4 * 23};
    struct dt_report_breakdown b;

    ck_assert_int_eq(v.gpus, 8);
    ck_assert_int_eq(v.module[1].host, 0);
    dt_assert_ok(dt_report_breakdown_of(&v, &err, &b), err);
    check_sums(&v, &b);
    ck_assert_int_eq(b.n, 2);
    for (int k = 0; k < DT_SPENT_N; k++) {
        ck_assert_msg(b.seat[0].gpu_ns[k] == first[k], "stage 0, %s: %g, not %g",
                      dt_report_spent_kinds[k].name, b.seat[0].gpu_ns[k], first[k]);
        ck_assert_msg(b.seat[1].gpu_ns[k] == second[k], "stage 1, %s: %g, not %g",
                      dt_report_spent_kinds[k].name, b.seat[1].gpu_ns[k], second[k]);
    }
    dt_report_breakdown_free(&b);
}
END_TEST

/* Both modules of a GPU sync, and their steps wait for both:
 *
 *   time     0    10      15          35    40   42   44
 *   llm      | B  | [sync]                  |STEP|
 *   encoder              [    sync    ]          |STEP|
 */
START_TEST(syncs_of_all_modules_of_a_gpu_count)
{
    struct dt_run_view_op ops[] = {
        {.kind = DT_OP_BACKWARD, .mb = 0, .peer = -1, .begin_ns = 0, .end_ns = 10},
        {.kind = DT_OP_GRAD_SYNC, .mb = -1, .peer = -1, .begin_ns = 10, .end_ns = 15},
        {.kind = DT_OP_STEP, .mb = -1, .peer = -1, .begin_ns = 40, .end_ns = 42},
        {.kind = DT_OP_GRAD_SYNC, .mb = -1, .peer = -1, .begin_ns = 14, .end_ns = 35},
        {.kind = DT_OP_STEP, .mb = -1, .peer = -1, .begin_ns = 42, .end_ns = 44},
    };
    struct dt_run_view_lane lanes[] = {{0, 0, 0, 2, 0, 0, 3}, {1, 0, 0, 2, 0, 3, 2}};
    struct dt_run_view v = {.n_modules = 2,
                            .n_lanes = 2,
                            .module = {{.name = "llm"}, {.name = "encoder"}},
                            .lane = lanes,
                            .n_ops = 5,
                            .op = ops,
                            .makespan_ns = 44};
    const double want[DT_SPENT_N] = {[DT_SPENT_BACKWARD] = 2 * 10,
                                     [DT_SPENT_SYNC] = 2 * 25,
                                     [DT_SPENT_DRAIN] = 2 * 5,
                                     [DT_SPENT_STEP] = 2 * 4};
    struct dt_report_breakdown b;

    dt_assert_ok(dt_run_view_seat(&v, &err), err);
    dt_assert_ok(dt_report_breakdown_of(&v, &err, &b), err);
    check_sums(&v, &b);
    for (int k = 0; k < DT_SPENT_N; k++)
        ck_assert_msg(b.all.gpu_ns[k] == want[k], "%s: %g, not %g", dt_report_spent_kinds[k].name,
                      b.all.gpu_ns[k], want[k]);
    dt_report_breakdown_free(&b);

    /* the encoder's optimizer is on the host: its step is none of the GPU's */
    v.module[1].steps_on_host = true;
    dt_assert_ok(dt_report_breakdown_of(&v, &err, &b), err);
    check_sums(&v, &b);
    ck_assert(b.all.gpu_ns[DT_SPENT_STEP] == 2 * 2);
    ck_assert(b.all.gpu_ns[DT_SPENT_HOST_STEP] == 2 * 2);
    ck_assert(b.all.gpu_ns[DT_SPENT_DRAIN] == 2 * 5);
    dt_report_breakdown_free(&b);
}
END_TEST

START_TEST(a_run_without_ops_has_no_causes)
{
    struct dt_run_view v = by_hand();
    struct dt_report_breakdown b;

    v.n_ops = 0;
    ck_assert_int_eq(dt_report_breakdown_of(&v, &err, &b), DT_ERR_RANGE);
    dt_assert_has(err.message, "no ops");
}
END_TEST

/* ---- pictures ---- */

static int count(const char *text, const char *part)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        n++;
    return n;
}

/* Modules that are cut alike and share all of their GPUs are named together. */
START_TEST(rows_are_named_after_all_of_their_modules)
{
    struct dt_run_view_lane lanes[] = {
        {.module = 0, .stage = 0, .gpus = 2, .first_gpu = 0},
        {.module = 0, .stage = 1, .gpus = 2, .first_gpu = 2},
        {.module = 1, .stage = 0, .gpus = 2, .first_gpu = 0},
        {.module = 1, .stage = 1, .gpus = 2, .first_gpu = 2},
        {.module = 2, .stage = 0, .gpus = 4, .first_gpu = 0},
    };
    struct dt_run_view v = {.n_modules = 3,
                            .n_lanes = 5,
                            .module = {{.name = "encoder"}, {.name = "llm"}, {.name = "generator"}},
                            .lane = lanes,
                            .makespan_ns = 100};
    struct dt_run_view_row *rows;
    char text[128];
    int n, more;

    dt_assert_ok(dt_run_view_seat(&v, &err), err);
    dt_assert_ok(dt_run_view_rows(&v, &err, &rows, &n, &more), err);
    ck_assert_int_eq(n, 2);
    dt_run_view_modules_name(&v, v.lane[rows[1].lane].module, text, sizeof text);
    ck_assert_str_eq(text, "encoder + llm");
    dt_run_view_stage_name(&v, 0, 1, text, sizeof text);
    ck_assert_str_eq(text, "encoder + llm stage 1");
    dt_run_view_row_name(&v, &rows[1], text, sizeof text);
    ck_assert_str_eq(text, "encoder + llm stage 1");
    dt_run_view_row_note(&v, &rows[1], "GPU", text, sizeof text);
    ck_assert_str_eq(text, "2 of 4 GPUs, with generator");
    dt_run_view_row_name(&v, &rows[1], text, 12); /* as much as there is room for */
    ck_assert_str_eq(text, "encoder + l");
    dt_free(rows);
    /* the plan says whose GPUs they are */
    v = (struct dt_run_view){.n_modules = 3,
                             .n_lanes = 5,
                             .module = {{.name = "encoder", .guest = true},
                                        {.name = "llm"},
                                        {.name = "generator", .guest = true}},
                             .lane = lanes,
                             .makespan_ns = 100};
    dt_assert_ok(dt_run_view_seat(&v, &err), err);
    ck_assert(v.module[0].host == 1 && v.module[1].host == 1 && v.module[2].host == 1);
    dt_assert_ok(dt_run_view_rows(&v, &err, &rows, &n, &more), err);
    ck_assert_int_eq(n, 2);
    dt_run_view_row_name(&v, &rows[1], text, sizeof text);
    ck_assert_str_eq(text, "llm + encoder stage 1");
    dt_free(rows);
}
END_TEST

/* Replicas of the LLM on 8 GPUs each: the first and the last without guests, the second with eight replicas of the encoder,
 * the third with both stages of the generator. */
START_TEST(guests_of_all_replicas_are_shown)
{
    enum { LLM, ENCODER, GENERATOR };
    struct dt_run_view_lane lanes[4 + 8 + 2] = {{0}};
    struct dt_run_view v = {.n_modules = 3,
                            .n_lanes = 4 + 8 + 2,
                            .module = {{.name = "llm"}, {.name = "encoder"}, {.name = "generator"}},
                            .lane = lanes,
                            .makespan_ns = 100};
    struct dt_run_view_row *rows;
    char text[128];
    int n, more;

    for (int k = 0; k < 4; k++)
        lanes[k] = (struct dt_run_view_lane){
            .module = LLM, .replica = k, .gpus = 8, .first_gpu = 8 * (int64_t)k};
    for (int k = 0; k < 8; k++)
        lanes[4 + k] = (struct dt_run_view_lane){
            .module = ENCODER, .replica = k, .gpus = 1, .first_gpu = 8 + (int64_t)k};
    for (int k = 0; k < 2; k++)
        lanes[12 + k] = (struct dt_run_view_lane){
            .module = GENERATOR, .stage = k, .gpus = 4, .first_gpu = 16 + 4 * (int64_t)k};
    dt_assert_ok(dt_run_view_seat(&v, &err), err);
    dt_assert_ok(dt_run_view_rows(&v, &err, &rows, &n, &more), err);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(more, 0);
    ck_assert_int_eq(rows[0].lane, 2);
    ck_assert_int_eq(rows[0].n_guests, 2);
    ck_assert_int_eq(rows[0].guest[0], 12);
    ck_assert_int_eq(rows[0].guest[1], 13);
    ck_assert(!dt_run_view_row_again(&v, &rows[0], 1));
    ck_assert_int_eq(rows[1].lane, 1);
    ck_assert_int_eq(rows[1].n_guests, 8);
    for (int k = 0; k < 8; k++) {
        ck_assert_int_eq(rows[1].guest[k], 4 + k);
        ck_assert(dt_run_view_row_again(&v, &rows[1], k) == (k > 0));
    }
    dt_run_view_row_name(&v, &rows[1], text, sizeof text);
    ck_assert_str_eq(text, "llm replica 1");
    dt_run_view_row_note(&v, &rows[1], "GPU", text, sizeof text);
    ck_assert_str_eq(text, "8 of 32 GPUs, replica 1 of 4, with encoder");
    dt_free(rows);
}
END_TEST

START_TEST(guests_are_on_their_hosts_row)
{
    const struct dt_report_timeline_text words = {"a title", "and more", "GPU", 0};
    const struct dt_chart_terminal plain = {.width = 60}, coloured = {.width = 60, .colour = true};
    const struct dt_run_view v = by_hand();
    struct dt_run_view_row *rows;
    char text[128], *svg, *chars;
    int n, more;

    ck_assert_int_eq(v.n_modules, 2);
    ck_assert_int_eq(v.module[0].host, 0);
    ck_assert_int_eq(v.module[1].host, 0);
    dt_assert_ok(dt_run_view_rows(&v, &err, &rows, &n, &more), err);
    ck_assert_int_eq(n, 2);
    ck_assert_int_eq(more, 0);
    ck_assert_int_eq(rows[0].n_guests, 1);
    ck_assert_int_eq(rows[0].guest[0], 2);
    ck_assert_int_eq(rows[1].n_guests, 0);
    dt_run_view_row_name(&v, &rows[1], text, sizeof text);
    ck_assert_str_eq(text, "llm stage 1");
    dt_run_view_row_note(&v, &rows[0], "GPU", text, sizeof text);
    ck_assert_str_eq(text, "4 of 8 GPUs, with encoder");
    dt_free(rows);
    dt_assert_ok(dt_report_timeline_svg(&v, &words, DT_CHART_FILE, NULL, &err, &svg), err);
    ck_assert_int_eq(count(svg, "<title>"), 11);
    ck_assert_int_eq(count(svg, "(encoder)</title>"), 1);
    ck_assert_int_eq(count(svg, "recv microbatch 0 from llm stage"), 2);
    ck_assert_int_eq(count(svg, ">weight gradient<"), 0);
    ck_assert_int_eq(count(svg, ">transfers<"), 1);
    dt_free(svg);
    dt_assert_ok(dt_report_timeline_text(&v, &words, &plain, &err, &chars), err);
    dt_assert_has(chars, "llm stage 0 │");
    dt_assert_has(chars, "with encoder");
    ck_assert_ptr_null(strchr(chars, '\x1b'));
    dt_free(chars);
    dt_assert_ok(dt_report_timeline_text(&v, &words, &coloured, &err, &chars), err);
    ck_assert_ptr_nonnull(strchr(chars, '\x1b'));
    dt_free(chars);
}
END_TEST

/* A program of a million ops makes a picture that a browser opens. */
START_TEST(pictures_of_long_programs_stay_small)
{
    enum { OPS = 300000 };
    const struct dt_report_timeline_text words = {"t", NULL, "GPU", 0};
    struct dt_run_view_op *op = dt_calloc(OPS, sizeof *op);
    struct dt_run_view_lane lane = {0, 0, 0, 1, 0, 0, OPS};
    struct dt_run_view v = {.n_modules = 1,
                            .n_lanes = 1,
                            .module = {{.name = "llm"}},
                            .lane = &lane,
                            .n_ops = OPS,
                            .op = op,
                            .makespan_ns = 10 * OPS};
    char *svg;

    ck_assert_ptr_nonnull(op);
    for (int i = 0; i < OPS; i++)
        op[i] = (struct dt_run_view_op){.kind = i % 2 ? DT_OP_BACKWARD : DT_OP_FORWARD,
                                        .mb = i / 2,
                                        .peer = -1,
                                        .begin_ns = 10 * i,
                                        .end_ns = 10 * i + 10};
    dt_assert_ok(dt_run_view_seat(&v, &err), err);
    dt_assert_ok(dt_report_timeline_svg(&v, &words, DT_CHART_FILE, NULL, &err, &svg), err);
    ck_assert_int_lt((int)strlen(svg), 2000000);
    dt_assert_has(svg, "and others");
    dt_free(svg);
    dt_free(op);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("run_view");
    TCase *c = dt_test_case(s, "view", 60);

    tcase_add_test(c, a_view_is_the_same_from_the_runs_file);
    c = dt_test_case(s, "breakdown", 60);
    tcase_add_test(c, the_parts_are_the_whole);
    tcase_add_test(c, each_instant_has_its_cause);
    tcase_add_test(c, syncs_of_all_modules_of_a_gpu_count);
    tcase_add_test(c, a_run_without_ops_has_no_causes);
    c = dt_test_case(s, "pictures", 60);
    tcase_add_test(c, rows_are_named_after_all_of_their_modules);
    tcase_add_test(c, guests_of_all_replicas_are_shown);
    tcase_add_test(c, guests_are_on_their_hosts_row);
    tcase_add_test(c, pictures_of_long_programs_stay_small);
    return dt_test_run(s);
}
