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

#include "base/hash.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "report/trace_read.h"

#include <stdio.h>
#include <string.h>

enum { SLICE_BEGIN = 1, SLICE_END = 2 }; /* TrackEvent.Type */
/* Tracks of a resource whose ops overlap (several transfers in flight); the last takes the rest. */
enum { SUB_MAX = 8 };

struct perfetto {
    int lane, n_lanes, rank; /* rank: the last that was named; -1 = none */
    struct dt_pb out;
    int64_t
        *free_ns; /* [n_lanes][DT_RES_N][SUB_MAX]: end of the track's last slice, -1 = no slice */
};

/* A message that goes into another: names are at most 96 bytes. */
#define SMALL(name)                                                                                \
    uint8_t name##_room[768];                                                                      \
    struct dt_pb name = DT_PB_IN(name##_room)

static void put_packet(struct perfetto *t, const struct dt_pb *packet)
{
    dt_pb_message(&t->out, 1, packet);
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

static void put_track(struct perfetto *t, const struct dt_pb *descriptor)
{
    SMALL(packet);

    dt_pb_int(&packet, 10, 1);
    dt_pb_message(&packet, 60, descriptor);
    put_packet(t, &packet);
}

/* Its pid is its uuid. */
static void put_process(struct perfetto *t, uint64_t uuid, const char *name)
{
    SMALL(process);
    SMALL(track);

    dt_pb_int(&process, 1, uuid);
    dt_pb_text(&process, 6, name);
    dt_pb_int(&track, 1, uuid);
    dt_pb_message(&track, 3, &process);
    put_track(t, &track);
}

/* Its tid is its uuid: one that equals a pid would be that process's main thread. */
static void put_thread(struct perfetto *t, uint64_t process, uint64_t uuid, const char *name)
{
    SMALL(thread);
    SMALL(track);

    dt_pb_int(&thread, 1, process);
    dt_pb_int(&thread, 2, uuid);
    dt_pb_text(&thread, 5, name);
    dt_pb_int(&track, 1, uuid);
    dt_pb_message(&track, 4, &thread);
    dt_pb_int(&track, 5, process);
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

static void annotate(struct dt_pb *event, const char *name, int64_t v)
{
    SMALL(a);

    dt_pb_text(&a, 10, name);
    dt_pb_int(&a, 4, (uint64_t)v);
    dt_pb_message(event, 4, &a);
}

static void put_event(struct perfetto *t, int64_t at_ns, const struct dt_pb *event)
{
    SMALL(packet);

    dt_pb_int(&packet, 8, (uint64_t)at_ns);
    dt_pb_int(&packet, 10, 1);
    dt_pb_message(&packet, 11, event);
    put_packet(t, &packet);
}

/* The same at both ends of a message and at no other: 20 bits of the one lane, 20 of the other, 24
 * of its number, mixed without a loss. */
static uint64_t flow_id(const struct dt_trace_op *op)
{
    uint64_t x = ((uint64_t)op->from << 44) ^ ((uint64_t)op->to << 24) ^ (uint64_t)op->nth;

    return dt_hash_spread(x);
}

static void add_op(void *ctx, const struct dt_trace_op *op)
{
    struct perfetto *t = ctx;
    SMALL(begin);
    SMALL(end);
    uint64_t track;
    char name[64];

    if (t->lane >= 0 && t->lane != op->lane)
        return;
    snprintf(name, sizeof(name), op->mb >= 0 ? "%.40s %d" : "%.40s", op->name, op->mb);
    track = track_of(t, op);
    dt_pb_int(&begin, 9, SLICE_BEGIN);
    dt_pb_int(&begin, 11, track);
    dt_pb_text(&begin, 22, dt_trace_threads[dt_op_resource(op->kind)]);
    dt_pb_text(&begin, 23, name);
    annotate(&begin, "chunk", op->chunk);
    annotate(&begin, "part", op->part);
    annotate(&begin, "bytes", op->bytes);
    if (op->from >= 0 && t->lane < 0)
        dt_pb_fixed64(&begin, op->kind == DT_OP_SEND ? 47 : 48, flow_id(op));
    put_event(t, op->begin_ns, &begin);
    dt_pb_int(&end, 9, SLICE_END);
    dt_pb_int(&end, 11, track);
    put_event(t, op->end_ns, &end);
}

static void add_data(void *ctx, const struct dt_trace_data *d)
{
    struct perfetto *t = ctx;
    SMALL(begin);
    SMALL(end);
    uint64_t track = rank_uuid(t, d->rank) + 1;
    char name[64];

    if (t->lane >= 0 && t->lane != d->lane)
        return;
    if (t->rank != d->rank)
        name_rank(t, d->rank);
    snprintf(name, sizeof(name), "%.30s batch %lld", d->work, (long long)d->batch);
    dt_pb_int(&begin, 9, SLICE_BEGIN);
    dt_pb_int(&begin, 11, track);
    dt_pb_text(&begin, 22, "data");
    dt_pb_text(&begin, 23, name);
    annotate(&begin, "all_ns", d->end_ns - d->begin_ns);
    put_event(t, d->shown_ns, &begin);
    dt_pb_int(&end, 9, SLICE_END);
    dt_pb_int(&end, 11, track);
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
