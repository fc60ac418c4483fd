/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/trace_export.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "report/trace_read.h"

#include <stdio.h>

struct chrome {
    int lane, n_lanes, rank; /* rank: the last that was named; -1 = none */
    struct dt_text text;
    bool first;
};

static void begin_event(struct chrome *t)
{
    dt_text_add(&t->text, t->first ? "\n" : ",\n");
    t->first = false;
}

static enum dt_status begin(void *ctx, const struct dt_trace_run *run, struct dt_error *err)
{
    struct chrome *t = ctx;

    (void)err;
    dt_text_add(&t->text,
                "{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"distributedInfo\": "
                "{\"backend\": \"%s\", \"rank\": %d, \"world_size\": %d},\n\"traceEvents\": [",
                run->executed ? "mpi" : "simulated", t->lane >= 0 ? t->lane : 0, run->n_lanes);
    t->first = true;
    t->n_lanes = run->n_lanes;
    return DT_OK;
}

/* A JSON string: names come from a file that may hold anything. */
static void add_string(struct chrome *t, const char *text)
{
    struct dt_json j;
    char *quoted;

    dt_json_init(&j, false);
    dt_json_string(&j, text);
    if (dt_json_finish(&j, NULL, &quoted) != DT_OK) {
        t->text.failed = true;
        return;
    }
    dt_text_add(&t->text, "%s", quoted);
    dt_free(quoted);
}

static void name_lane(void *ctx, int lane, const char *module, int replica, int stage)
{
    struct chrome *t = ctx;
    char name[96];

    if (t->lane >= 0 && lane != t->lane)
        return;
    snprintf(name, sizeof(name), "%.60s/%d.%d", module, replica, stage);
    begin_event(t);
    dt_text_add(
        &t->text,
        "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": ", lane);
    add_string(t, name);
    dt_text_add(&t->text, "}}");
    for (int r = 0; r < DT_RES_N; r++) {
        begin_event(t);
        dt_text_add(&t->text,
                    "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, "
                    "\"args\": {\"name\": \"%s\"}}",
                    lane, r, dt_trace_threads[r]);
    }
}

static void arrow(struct chrome *t, const struct dt_trace_op *op)
{
    bool send = op->kind == DT_OP_SEND;

    begin_event(t);
    dt_text_add(&t->text,
                "{\"ph\": \"%s\", \"cat\": \"message\", \"name\": \"message\", \"id\": "
                "\"%d-%d-%lld\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f%s}",
                send ? "s" : "f", op->from, op->to, (long long)op->nth, op->lane,
                (int)dt_op_resource(op->kind), 1e-3 * (double)(send ? op->begin_ns : op->end_ns),
                send ? "" : ", \"bp\": \"e\"");
}

static void add_op(void *ctx, const struct dt_trace_op *op)
{
    struct chrome *t = ctx;
    enum dt_op_resource r = dt_op_resource(op->kind);

    if (t->lane >= 0 && t->lane != op->lane)
        return;
    begin_event(t);
    dt_text_add(&t->text, "{\"ph\": \"X\", \"cat\": \"%s\", \"name\": \"%s", dt_trace_threads[r],
                op->name);
    if (op->mb >= 0)
        dt_text_add(&t->text, " %d", op->mb);
    dt_text_add(&t->text,
                "\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"args\": "
                "{\"chunk\": %d, \"part\": %d, \"bytes\": %lld}}",
                op->lane, (int)r, 1e-3 * (double)op->begin_ns,
                1e-3 * (double)(op->end_ns - op->begin_ns), op->chunk, op->part,
                (long long)op->bytes);
    if (op->from >= 0 && t->lane < 0)
        arrow(t, op);
}

/* Ranks are processes of their own, behind the lanes. */
static void name_rank(struct chrome *t, int rank)
{
    begin_event(t);
    dt_text_add(&t->text,
                "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": "
                "\"rank %d\"}}",
                t->n_lanes + rank, rank);
    begin_event(t);
    dt_text_add(&t->text,
                "{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": 0, \"args\": "
                "{\"name\": \"data\"}}",
                t->n_lanes + rank);
    t->rank = rank;
}

static void add_data(void *ctx, const struct dt_trace_data *d)
{
    struct chrome *t = ctx;
    char name[64];

    if (t->lane >= 0 && t->lane != d->lane)
        return;
    if (t->rank != d->rank)
        name_rank(t, d->rank);
    snprintf(name, sizeof(name), "%.31s batch %lld", d->work, (long long)d->batch);
    begin_event(t);
    dt_text_add(&t->text, "{\"ph\": \"X\", \"cat\": \"data\", \"name\": ");
    add_string(t, name);
    dt_text_add(&t->text,
                ", \"pid\": %d, \"tid\": 0, \"ts\": %.3f, \"dur\": %.3f, \"args\": "
                "{\"all_ns\": %lld}}",
                t->n_lanes + d->rank, 1e-3 * (double)d->shown_ns,
                1e-3 * (double)(d->end_ns - d->shown_ns), (long long)(d->end_ns - d->begin_ns));
}

enum dt_status dt_trace_chrome(const struct dt_run_ref *run, int lane, struct dt_error *err,
                               char **out)
{
    struct chrome t = {.lane = lane, .rank = -1};
    struct dt_trace_sink sink = {&t, begin, name_lane, add_op, add_data};
    enum dt_status st = dt_trace_read(run, &sink, err, NULL);

    if (st == DT_OK) {
        dt_text_add(&t.text, "\n]}\n");
        st = dt_text_finish(&t.text, err, out);
    }
    dt_free(t.text.s);
    return st;
}

enum dt_status dt_trace_lanes(const struct dt_run_ref *run, struct dt_error *err, int *n)
{
    struct dt_trace_run info;

    DT_TRY(dt_trace_read(run, NULL, err, &info));
    *n = info.n_lanes;
    return DT_OK;
}
