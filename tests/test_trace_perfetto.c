/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Perfetto's format, read back by a decoder of its own: slices nest, bear the timeline's times, are
 * as many as its ops, and flows join every SEND to its RECV. */
#include "base/mem.h"
#include "report/runs.h"
#include "report/trace_export.h"
#include "synth.h"
#include "test_util.h"

#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

enum { TRACKS_MAX = 4096 };

/* ---- protobuf, read ---- */

struct view {
    const uint8_t *p, *end;
};
struct field {
    unsigned number, wire;
    uint64_t value;   /* of varint and fixed64 */
    struct view data; /* of bytes */
};

static uint64_t varint(struct view *v)
{
    uint64_t x = 0;
    unsigned shift = 0;

    for (;; shift += 7) {
        ck_assert(v->p < v->end && shift < 64);
        x |= (uint64_t)(*v->p & 0x7f) << shift;
        if (!(*v->p++ & 0x80))
            return x;
    }
}

static bool next(struct view *v, struct field *f)
{
    uint64_t key, n;

    if (v->p == v->end)
        return false;
    key = varint(v);
    f->number = (unsigned)(key >> 3);
    f->wire = (unsigned)(key & 7);
    f->value = 0;
    ck_assert(f->number > 0);
    if (f->wire == 0) {
        f->value = varint(v);
    } else if (f->wire == 1) {
        ck_assert(v->end - v->p >= 8);
        for (int i = 0; i < 8; i++)
            f->value |= (uint64_t)*v->p++ << 8 * i;
    } else {
        ck_assert_uint_eq(f->wire, 2);
        n = varint(v);
        ck_assert(n <= (uint64_t)(v->end - v->p));
        f->data = (struct view){v->p, v->p + n};
        v->p += n;
    }
    return true;
}

static void text(struct view v, char *out, size_t size)
{
    snprintf(out, size, "%.*s", (int)(v.end - v.p), (const char *)v.p);
}

/* ---- the trace, read ---- */

struct slice {
    uint64_t track;
    int64_t begin_ns, end_ns;
    uint64_t flow;
    bool sends, receives;
    char name[64], category[32];
};
struct track {
    uint64_t uuid, parent;
    int64_t pid, tid; /* tid -1 = a process */
    char name[96];
    int open;        /* slice that has not ended; -1 */
    int64_t last_ns; /* time of its last event */
};
struct trace {
    struct track track[TRACKS_MAX];
    int n_tracks, n_processes;
    struct slice *slice;
    int n_slices;
};

static struct track *find_track(struct trace *t, uint64_t uuid)
{
    for (int i = 0; i < t->n_tracks; i++)
        if (t->track[i].uuid == uuid)
            return &t->track[i];
    return NULL;
}

static void read_descriptor(struct trace *t, struct view v)
{
    struct track k = {.tid = -1, .open = -1};
    struct field f, g;

    while (next(&v, &f)) {
        if (f.number == 1)
            k.uuid = f.value;
        if (f.number == 5)
            k.parent = f.value;
        if (f.number == 3 || f.number == 4)
            while (next(&f.data, &g)) {
                if (g.number == 1)
                    k.pid = (int64_t)g.value;
                if (g.number == 2 && f.number == 4)
                    k.tid = (int64_t)g.value;
                if (g.number == (f.number == 3 ? 6u : 5u))
                    text(g.data, k.name, sizeof(k.name));
            }
    }
    ck_assert(k.uuid != 0 && k.pid > 0 && k.name[0]);
    ck_assert_msg(!find_track(t, k.uuid), "two tracks of uuid %" PRIu64, k.uuid);
    if (k.tid < 0) {
        t->n_processes++;
    } else {
        struct track *parent = find_track(t, k.parent);

        ck_assert(parent && parent->tid < 0);
        ck_assert_int_eq(parent->pid, k.pid);
        ck_assert_int_ne(k.tid, k.pid);
    }
    ck_assert_int_lt(t->n_tracks, TRACKS_MAX);
    t->track[t->n_tracks++] = k;
}

static void read_event(struct trace *t, struct view v, int64_t at_ns)
{
    struct slice s = {.begin_ns = at_ns};
    struct track *k;
    uint64_t type = 0;
    struct field f;

    while (next(&v, &f)) {
        if (f.number == 9)
            type = f.value;
        if (f.number == 11)
            s.track = f.value;
        if (f.number == 22)
            text(f.data, s.category, sizeof(s.category));
        if (f.number == 23)
            text(f.data, s.name, sizeof(s.name));
        if (f.number == 47 || f.number == 48) {
            ck_assert_uint_eq(f.wire, 1);
            s.flow = f.value;
            s.sends = f.number == 47;
            s.receives = f.number == 48;
        }
    }
    k = find_track(t, s.track);
    ck_assert_msg(k && k->tid >= 0, "an event of a track that was not described");
    ck_assert_msg(at_ns >= k->last_ns, "time goes back on track %s", k->name);
    k->last_ns = at_ns;
    if (type == 1) {
        ck_assert_msg(k->open < 0, "two slices at once on track %s", k->name);
        k->open = t->n_slices;
        t->slice = dt_realloc(t->slice, ((size_t)t->n_slices + 1) * sizeof(*t->slice));
        ck_assert(t->slice);
        t->slice[t->n_slices++] = s;
    } else {
        ck_assert_uint_eq(type, 2);
        ck_assert_msg(k->open >= 0, "an end without a begin on track %s", k->name);
        t->slice[k->open].end_ns = at_ns;
        k->open = -1;
    }
}

static void read_trace(const char *bytes, size_t size, struct trace *t)
{
    struct view v = {(const uint8_t *)bytes, (const uint8_t *)bytes + size};
    struct field packet, f, event;

    memset(t, 0, sizeof(*t));
    while (next(&v, &packet)) {
        int64_t at_ns = -1;
        uint64_t sequence = 0;

        ck_assert_uint_eq(packet.number, 1);
        event.number = 0;
        while (next(&packet.data, &f)) {
            if (f.number == 8)
                at_ns = (int64_t)f.value;
            if (f.number == 10)
                sequence = f.value;
            if (f.number == 60)
                read_descriptor(t, f.data);
            if (f.number == 11)
                event = f;
        }
        ck_assert_uint_ne(sequence, 0); /* or Perfetto would drop the packet */
        if (event.number) {
            ck_assert_int_ge(at_ns, 0);
            read_event(t, event.data, at_ns);
        }
    }
    for (int i = 0; i < t->n_tracks; i++)
        ck_assert_msg(t->track[i].open < 0, "a slice without end on track %s", t->track[i].name);
}

/* ---- a run, written and read ---- */

static struct synth x;
static struct dt_timeline timeline;
static struct dt_model model;
static struct dt_run_ref ref;

static void evaluate(void)
{
    struct dt_timeline_topo topo = {0};
    struct dt_error err;

    dt_assert_ok(dt_timeline_topo_build(&x.p, &err, &topo), err);
    dt_assert_ok(dt_timeline_eval(&x.p, &topo, x.dur.ns, &err, &timeline), err);
    dt_timeline_topo_free(&topo);
}

/* Of rank 0, which has lane 0, one that began before the iteration; of rank 2, which has no lane. */
static const struct dt_run_data beside[] = {{0, 8, DT_DATA_LOAD, -500, 1000},
                                            {0, 8, DT_DATA_ORDER, 1001, 1200},
                                            {2, 8, DT_DATA_LOAD, 30, 4001},
                                            {2, 8, DT_DATA_ORDER, 4001, 4001}};
enum { BESIDE = 4 };

static void keep(uint64_t seed)
{
    static const char *const hosts[] = {"north", "south"};
    int *rank = dt_calloc((size_t)x.p.n_lanes, sizeof(*rank));
    struct dt_error err;
    struct dt_run_record run = {.kind = DT_RUN_EXECUTED,
                                .job_name = "job",
                                .started = "2026-01-01T00:00:00Z",
                                .version = "0",
                                .seed = seed,
                                .model = &model,
                                .program = &x.p,
                                .timeline = &timeline,
                                .lane_rank = rank,
                                .rank_host = hosts,
                                .data = beside,
                                .n_data = BESIDE,
                                .ops = true};

    model.n_modules = 1;
    for (int m = 0; m < DT_MAX_MODULES; m++)
        snprintf(model.modules[m].name, sizeof(model.modules[m].name), "module%d", m);
    snprintf(ref.file, sizeof(ref.file), "test_trace_perfetto.%ld.db", (long)getpid());
    unlink(ref.file);
    for (int k = 0; k < x.p.n_lanes; k++)
        rank[k] = k % 2;
    dt_assert_ok(dt_runs_add(ref.file, &run, &err, &ref.id), err);
    dt_free(rank);
}

static void sql(const char *text)
{
    sqlite3 *db;

    ck_assert_int_eq(sqlite3_open(ref.file, &db), SQLITE_OK);
    ck_assert_int_eq(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void get(int lane, struct trace *t)
{
    struct dt_error err;
    size_t size;
    char *bytes;

    dt_assert_ok(dt_trace_perfetto(&ref, lane, &err, &bytes, &size), err);
    read_trace(bytes, size, t);
    dt_free(bytes);
}

static void end(struct trace *t)
{
    dt_free(t->slice);
    dt_timeline_free(&timeline);
    synth_free(&x);
    unlink(ref.file);
}

/* Behind the ops: what rank k did is on its one thread, and in the trace of its first lane only. */
static int check_data(struct trace *t, int lane, int n)
{
    static const char *const names[BESIDE] = {"load batch 8", "order batch 8", "load batch 8",
                                              "order batch 8"};
    int found = 0;

    for (int i = 0; i < BESIDE; i++) {
        const struct dt_run_data *d = &beside[i];

        if (lane > 0 || (lane == 0 && d->rank != 0))
            continue;
        ck_assert_int_lt(n + found, t->n_slices);
        const struct slice *s = &t->slice[n + found++];
        const struct track *k = find_track(t, s->track);

        ck_assert_str_eq(s->name, names[i]);
        ck_assert_str_eq(s->category, "data");
        ck_assert_str_eq(k->name, "data");
        ck_assert_str_eq(find_track(t, k->parent)->name, d->rank ? "rank 2" : "rank 0");
        ck_assert_int_eq(s->begin_ns, d->begin_ns > 0 ? d->begin_ns : 0);
        ck_assert_int_eq(s->end_ns, d->end_ns);
    }
    return found;
}

/* The slices are the timeline's ops, in its order, of the lane's process. */
static void check_ops(struct trace *t, int lane, uint64_t seed)
{
    int n = 0;

    for (uint32_t i = 0; i < x.p.n_ops; i++) {
        const struct dt_op *op = &x.p.ops[i];
        char name[64];

        if (lane >= 0 && op->lane != (uint32_t)lane)
            continue;
        ck_assert_msg(n < t->n_slices, "seed %" PRIu64 ": %d slices", seed, t->n_slices);
        const struct slice *s = &t->slice[n++];

        snprintf(name, sizeof(name), op->mb == DT_NONE ? "%s" : "%s %u", dt_op_kind_names[op->kind],
                 op->mb);
        ck_assert_str_eq(s->name, name);
        ck_assert_msg(s->begin_ns == timeline.begin_ns[i] && s->end_ns == timeline.end_ns[i],
                      "seed %" PRIu64 " op %u: %" PRId64 "..%" PRId64, seed, i, s->begin_ns,
                      s->end_ns);
        ck_assert_int_eq(find_track(t, s->track)->pid, (int64_t)op->lane + 1);
        ck_assert(strncmp(find_track(t, s->track)->name, s->category, strlen(s->category)) == 0);
        ck_assert(s->sends == (lane < 0 && op->kind == DT_OP_SEND));
        ck_assert(s->receives == (lane < 0 && op->kind == DT_OP_RECV));
    }
    n += check_data(t, lane, n);
    ck_assert_int_eq(n, t->n_slices);
}

/* A flow has one beginning and one end, which are peers. */
static void check_flows(const struct trace *t)
{
    for (uint32_t i = 0; i < x.p.n_ops; i++) {
        int others = 0;

        if (x.p.ops[i].kind != DT_OP_SEND)
            continue;
        ck_assert_uint_eq(t->slice[i].flow, t->slice[x.p.ops[i].peer].flow);
        for (uint32_t k = 0; k < x.p.n_ops; k++)
            others += k != i && t->slice[k].flow == t->slice[i].flow &&
                      (t->slice[k].sends || t->slice[k].receives);
        ck_assert_int_eq(others, 1);
    }
}

static struct trace t; /* large */

/* Ranks and hosts of lanes are kept. */
static void check_places(void)
{
    sqlite3_stmt *s = NULL;
    sqlite3 *db;
    int n = 0;

    ck_assert_int_eq(sqlite3_open_v2(ref.file, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    ck_assert_int_eq(
        sqlite3_prepare_v2(db, "SELECT lane, rank, host FROM place ORDER BY lane", -1, &s, NULL),
        SQLITE_OK);
    for (; sqlite3_step(s) == SQLITE_ROW; n++) {
        ck_assert_int_eq(sqlite3_column_int(s, 0), n);
        ck_assert_int_eq(sqlite3_column_int(s, 1), n % 2);
        ck_assert_str_eq((const char *)sqlite3_column_text(s, 2), n % 2 ? "south" : "north");
    }
    ck_assert_int_eq(n, x.p.n_lanes);
    sqlite3_finalize(s);
    sqlite3_close(db);
}

/* So is what they did meanwhile. */
static void check_beside(void)
{
    static const char *const work[DT_DATA_WORK_N] = {"load", "order"};
    sqlite3_stmt *s = NULL;
    sqlite3 *db;
    int n = 0;

    ck_assert_int_eq(sqlite3_open_v2(ref.file, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_prepare_v2(db,
                                        "SELECT rank, batch, work, begin_ns, end_ns FROM data "
                                        "WHERE run = 1 ORDER BY rank, batch, work",
                                        -1, &s, NULL),
                     SQLITE_OK);
    for (; sqlite3_step(s) == SQLITE_ROW; n++) {
        ck_assert_int_lt(n, BESIDE);
        ck_assert_int_eq(sqlite3_column_int(s, 0), beside[n].rank);
        ck_assert_int_eq(sqlite3_column_int64(s, 1), beside[n].batch);
        ck_assert_str_eq((const char *)sqlite3_column_text(s, 2), work[beside[n].work]);
        ck_assert_int_eq(sqlite3_column_int64(s, 3), beside[n].begin_ns);
        ck_assert_int_eq(sqlite3_column_int64(s, 4), beside[n].end_ns);
    }
    ck_assert_int_eq(n, BESIDE);
    sqlite3_finalize(s);
    sqlite3_close(db);
}

START_TEST(a_pipeline_comes_back)
{
    const struct synth_pipeline c = {.stages = 4,
                                     .replicas = 2,
                                     .microbatches = 6,
                                     .lane_gpus = 2,
                                     .fwd_ns = 1000003,
                                     .bwd_ns = 2000011,
                                     .alpha_ns = 1009,
                                     .transfer_ns = 50021,
                                     .sync_ns = 300007,
                                     .bytes = 4096,
                                     .sync_bytes = 1 << 20,
                                     .spread = 0.2,
                                     .seed = dt_test_seed()};

    synth_1f1b(&c, &x);
    evaluate();
    keep(c.seed);
    get(-1, &t);
    ck_assert_int_eq(t.n_processes, 8 + 2);
    check_ops(&t, -1, c.seed);
    check_flows(&t);
    dt_free(t.slice);
    check_places();
    check_beside();
    get(5, &t);
    ck_assert_int_eq(t.n_processes, 1);
    check_ops(&t, 5, c.seed);
    dt_free(t.slice);
    get(0, &t);
    ck_assert_int_eq(t.n_processes, 2);
    check_ops(&t, 0, c.seed);
    end(&t);
}
END_TEST

/* Runs files of before have fewer tables. */
START_TEST(older_files_come_back)
{
    static const char *const drop[] = {"DROP TABLE data", "DROP TABLE place"};

    synth_random(1, 16, &x);
    evaluate();
    keep(1);
    for (int i = 0; i < 2; i++) {
        sql(drop[i]);
        get(-1, &t);
        ck_assert_int_eq(t.n_processes, x.p.n_lanes);
        ck_assert_int_eq(t.n_slices, x.p.n_ops);
        dt_free(t.slice);
        t.slice = NULL;
    }
    end(&t);
}
END_TEST

START_TEST(random_programs_come_back)
{
    uint64_t seed = dt_test_seed();

    for (uint64_t round = 0; round < 8; round++) {
        synth_random(seed + round, 16, &x);
        evaluate();
        keep(seed + round);
        get(-1, &t);
        ck_assert_int_eq(t.n_processes, x.p.n_lanes + 2);
        check_ops(&t, -1, seed + round);
        end(&t);
    }
}
END_TEST

/* Three transfers in flight: each has a track while it lasts, and tracks are used again. */
START_TEST(overlapping_ops_get_tracks_of_their_own)
{
    const struct synth_pipeline c = {.stages = 2,
                                     .replicas = 1,
                                     .microbatches = 4,
                                     .lane_gpus = 1,
                                     .fwd_ns = 100,
                                     .bwd_ns = 200,
                                     .transfer_ns = 10,
                                     .bytes = 8,
                                     .seed = 1};
    int sends = 0;

    synth_1f1b(&c, &x);
    evaluate();
    for (uint32_t i = 0; i < x.p.n_ops; i++)
        if (x.p.ops[i].lane == 0 && x.p.ops[i].kind == DT_OP_SEND) {
            timeline.begin_ns[i] = 100 * sends++;
            timeline.end_ns[i] = timeline.begin_ns[i] + 250;
        }
    ck_assert_int_eq(sends, 4);
    keep(1);
    get(-1, &t);
    check_ops(&t, -1, 1);
    sends = 0;
    for (int i = 0; i < t.n_slices; i++) {
        static const char *const names[] = {"send", "send 2", "send 3", "send"};
        const struct track *k = find_track(&t, t.slice[i].track);

        if (k->pid == 1 && t.slice[i].sends)
            ck_assert_str_eq(k->name, names[sends++]);
    }
    ck_assert_int_eq(sends, 4);
    end(&t);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("trace_perfetto");
    TCase *c = dt_test_case(u, "trace_perfetto", 60);

    tcase_add_test(c, a_pipeline_comes_back);
    tcase_add_test(c, random_programs_come_back);
    tcase_add_test(c, older_files_come_back);
    tcase_add_test(c, overlapping_ops_get_tracks_of_their_own);
    return dt_test_run(u);
}
