/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Perfetto's trace format, written by hand: protobuf needs but two kinds of field here.
 *
 *   Trace { packet = 1 }
 *   TracePacket { timestamp = 8 [ns], trusted_packet_sequence_id = 10, track_event = 11,
 *                 track_descriptor = 60 }
 *   TrackDescriptor { uuid = 1, process = 3 { pid = 1, process_name = 6 },
 *                     thread = 4 { pid = 1, tid = 2, thread_name = 5 }, parent_uuid = 5 }
 *   TrackEvent { debug_annotations = 4 { int_value = 4, name = 10 }, type = 9, track_uuid = 11,
 *                categories = 22, name = 23, flow_ids = 47 [fixed64], terminating_flow_ids = 48 }
 *
 * Field numbers: perfetto, protos/perfetto/trace/trace_packet.proto and track_event/
 * {track_event,track_descriptor,process_descriptor,thread_descriptor,debug_annotation}.proto.
 * Numbers are little-endian in base 128, the high bit says that more follow; a message within a
 * message is its length, then its bytes. */
#include "report/trace_export.h"

#include "base/mem.h"
#include "report/trace_read.h"

#include <stdio.h>
#include <string.h>

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2 };
enum { SLICE_BEGIN = 1, SLICE_END = 2 }; /* TrackEvent.Type */
/* Tracks of a resource whose ops overlap (several transfers in flight); the last takes the rest. */
enum { SUB_MAX = 8 };

struct bytes {
    uint8_t *p;
    size_t n, cap;
    bool failed;
};
struct small { /* a message that goes into another; names are at most 96 bytes */
    uint8_t p[768];
    size_t n;
};
struct perfetto {
    int lane, n_lanes, rank; /* rank: the last that was named; -1 = none */
    struct bytes out;
    int64_t
        *free_ns; /* [n_lanes][DT_RES_N][SUB_MAX]: end of the track's last slice, -1 = no slice */
};

/* ---- protobuf ---- */

static void varint(struct small *m, uint64_t v)
{
    do {
        m->p[m->n++] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
    } while (v > 0);
}

static void put_int(struct small *m, unsigned field, uint64_t v)
{
    varint(m, field << 3 | WIRE_VARINT);
    varint(m, v);
}

static void put_fixed64(struct small *m, unsigned field, uint64_t v)
{
    varint(m, field << 3 | WIRE_FIXED64);
    for (int i = 0; i < 8; i++)
        m->p[m->n++] = (uint8_t)(v >> 8 * i);
}

static void put_bytes(struct small *m, unsigned field, const void *p, size_t n)
{
    varint(m, field << 3 | WIRE_BYTES);
    varint(m, n);
    memcpy(m->p + m->n, p, n);
    m->n += n;
}

static void put_text(struct small *m, unsigned field, const char *text)
{
    put_bytes(m, field, text, strlen(text));
}

static void put_packet(struct perfetto *t, const struct small *packet)
{
    struct small head = {.n = 0};
    struct bytes *o = &t->out;

    varint(&head, 1 << 3 | WIRE_BYTES);
    varint(&head, packet->n);
    if (o->failed || dt_grow((void **)&o->p, &o->cap, o->n + head.n + packet->n, 1)) {
        o->failed = true;
        return;
    }
    memcpy(o->p + o->n, head.p, head.n);
    memcpy(o->p + o->n + head.n, packet->p, packet->n);
    o->n += head.n + packet->n;
}

/* ---- tracks ---- */

static uint64_t process_uuid(int lane)
{
    return (uint64_t)lane + 1; /* 0 is the trace's own track */
}

static uint64_t thread_uuid(const struct perfetto *t, size_t track)
{
    return (uint64_t)t->n_lanes + 1 + track;
}

static void put_track(struct perfetto *t, const struct small *descriptor)
{
    struct small packet = {.n = 0};

    put_int(&packet, 10, 1);
    put_bytes(&packet, 60, descriptor->p, descriptor->n);
    put_packet(t, &packet);
}

/* Its pid is its uuid. */
static void put_process(struct perfetto *t, uint64_t uuid, const char *name)
{
    struct small process = {.n = 0}, track = {.n = 0};

    put_int(&process, 1, uuid);
    put_text(&process, 6, name);
    put_int(&track, 1, uuid);
    put_bytes(&track, 3, process.p, process.n);
    put_track(t, &track);
}

/* Its tid is its uuid: one that equals a pid would be that process's main thread. */
static void put_thread(struct perfetto *t, uint64_t process, uint64_t uuid, const char *name)
{
    struct small thread = {.n = 0}, track = {.n = 0};

    put_int(&thread, 1, process);
    put_int(&thread, 2, uuid);
    put_text(&thread, 5, name);
    put_int(&track, 1, uuid);
    put_bytes(&track, 4, thread.p, thread.n);
    put_int(&track, 5, process);
    put_track(t, &track);
}

static void name_lane(void *ctx, int lane, const char *module, int replica, int stage)
{
    struct perfetto *t = ctx;
    char name[96];

    if (t->lane >= 0 && lane != t->lane)
        return;
    snprintf(name, sizeof(name), "%.60s/%d.%d", module, replica, stage);
    put_process(t, process_uuid(lane), name);
}

static void name_thread(struct perfetto *t, int lane, enum dt_op_resource r, int sub, size_t index)
{
    char name[32];

    snprintf(name, sizeof(name), sub > 0 ? "%s %d" : "%s", dt_trace_threads[r], sub + 1);
    put_thread(t, process_uuid(lane), thread_uuid(t, index), name);
}

/* Behind all that lanes may have; its one thread has the next. */
static uint64_t rank_uuid(const struct perfetto *t, int rank)
{
    return thread_uuid(t, (size_t)t->n_lanes * DT_RES_N * SUB_MAX) + 2 * (uint64_t)rank;
}

static void name_rank(struct perfetto *t, int rank)
{
    char name[32];

    snprintf(name, sizeof(name), "rank %d", rank);
    put_process(t, rank_uuid(t, rank), name);
    put_thread(t, rank_uuid(t, rank), rank_uuid(t, rank) + 1, "data");
    t->rank = rank;
}

/* The first track of the op's resource that is free at its begin; introduced at its first use. */
static uint64_t track_of(struct perfetto *t, const struct dt_trace_op *op)
{
    enum dt_op_resource r = dt_op_resource(op->kind);
    size_t first = ((size_t)op->lane * DT_RES_N + r) * SUB_MAX;
    int sub = 0;

    while (sub + 1 < SUB_MAX && t->free_ns[first + (size_t)sub] > op->begin_ns)
        sub++;
    if (t->free_ns[first + (size_t)sub] < 0)
        name_thread(t, op->lane, r, sub, first + (size_t)sub);
    t->free_ns[first + (size_t)sub] = op->end_ns;
    return thread_uuid(t, first + (size_t)sub);
}

/* ---- slices ---- */

static void annotate(struct small *event, const char *name, int64_t v)
{
    struct small a = {.n = 0};

    put_text(&a, 10, name);
    put_int(&a, 4, (uint64_t)v);
    put_bytes(event, 4, a.p, a.n);
}

static void put_event(struct perfetto *t, int64_t at_ns, const struct small *event)
{
    struct small packet = {.n = 0};

    put_int(&packet, 8, (uint64_t)at_ns);
    put_int(&packet, 10, 1);
    put_bytes(&packet, 11, event->p, event->n);
    put_packet(t, &packet);
}

/* The same at both ends of a message and at no other: 20 bits of the one lane, 20 of the other, 24
 * of its number, mixed by splitmix64's finaliser, which loses nothing. */
static uint64_t flow_id(const struct dt_trace_op *op)
{
    uint64_t x = ((uint64_t)op->from << 44) ^ ((uint64_t)op->to << 24) ^ (uint64_t)op->nth;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void add_op(void *ctx, const struct dt_trace_op *op)
{
    struct perfetto *t = ctx;
    struct small begin = {.n = 0}, end = {.n = 0};
    uint64_t track;
    char name[64];

    if (t->lane >= 0 && t->lane != op->lane)
        return;
    snprintf(name, sizeof(name), op->mb >= 0 ? "%.40s %d" : "%.40s", op->name, op->mb);
    track = track_of(t, op);
    put_int(&begin, 9, SLICE_BEGIN);
    put_int(&begin, 11, track);
    put_text(&begin, 22, dt_trace_threads[dt_op_resource(op->kind)]);
    put_text(&begin, 23, name);
    annotate(&begin, "chunk", op->chunk);
    annotate(&begin, "part", op->part);
    annotate(&begin, "bytes", op->bytes);
    if (op->from >= 0 && t->lane < 0)
        put_fixed64(&begin, op->kind == DT_OP_SEND ? 47 : 48, flow_id(op));
    put_event(t, op->begin_ns, &begin);
    put_int(&end, 9, SLICE_END);
    put_int(&end, 11, track);
    put_event(t, op->end_ns, &end);
}

static void add_data(void *ctx, const struct dt_trace_data *d)
{
    struct perfetto *t = ctx;
    struct small begin = {.n = 0}, end = {.n = 0};
    uint64_t track = rank_uuid(t, d->rank) + 1;
    char name[64];

    if (t->lane >= 0 && t->lane != d->lane)
        return;
    if (t->rank != d->rank)
        name_rank(t, d->rank);
    snprintf(name, sizeof(name), "%.30s batch %lld", d->work, (long long)d->batch);
    put_int(&begin, 9, SLICE_BEGIN);
    put_int(&begin, 11, track);
    put_text(&begin, 22, "data");
    put_text(&begin, 23, name);
    annotate(&begin, "all_ns", d->end_ns - d->begin_ns);
    put_event(t, d->shown_ns, &begin);
    put_int(&end, 9, SLICE_END);
    put_int(&end, 11, track);
    put_event(t, d->end_ns, &end);
}

static enum dt_status begin_trace(void *ctx, const struct dt_trace_run *run, struct dt_error *err)
{
    struct perfetto *t = ctx;
    size_t n = (size_t)run->n_lanes * DT_RES_N * SUB_MAX;

    t->n_lanes = run->n_lanes;
    t->free_ns = dt_calloc(n + 1, sizeof(*t->free_ns));
    if (!t->free_ns)
        return dt_error_nomem(err, "tracks");
    for (size_t i = 0; i < n; i++)
        t->free_ns[i] = -1;
    return DT_OK;
}

enum dt_status dt_trace_perfetto(const struct dt_run_ref *run, int lane, struct dt_error *err,
                                 char **out, size_t *size)
{
    struct perfetto t = {.lane = lane, .rank = -1};
    struct dt_trace_sink sink = {&t, begin_trace, name_lane, add_op, add_data};
    enum dt_status st = dt_trace_read(run, &sink, err, NULL);

    dt_free(t.free_ns);
    if (st == DT_OK && t.out.failed)
        st = dt_error_nomem(err, "trace");
    if (st != DT_OK) {
        dt_free(t.out.p);
        return st;
    }
    *out = (char *)t.out.p;
    *size = t.out.n;
    return DT_OK;
}
