/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/breakdown.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { WORK_MAX = 64 << 20, SHARING_MAX = 4096 }; /* ops looked at; lanes on one GPU */

const struct dt_report_spent_kind dt_report_spent_kinds[DT_SPENT_N] = {
    {"forward", "forward passes", DT_CHART_SKY},
    {"backward", "backward passes, recomputation included", DT_CHART_BLUE},
    {"weight gradient", "weight gradients that the schedule puts off", DT_CHART_GREEN},
    {"optimizer step", "the optimizer's update", DT_CHART_RED},
    {"exposed: between stages", "messages between stages of a module that computation waits for",
     DT_CHART_PURPLE},
    {"exposed: between modules", "messages between modules that computation waits for",
     DT_CHART_PLUM},
    {"exposed: parameter gather", "all-gathers of parameters that computation waits for",
     DT_CHART_ORANGE},
    {"exposed: gradient sync", "gradient reductions that the optimizer waits for", DT_CHART_AMBER},
    {"exposed: gradient norm", "the all-reduce of the gradient norm", DT_CHART_ORANGE},
    {"data", "waiting for input data", DT_CHART_OLIVE},
    {"exposed: host link", "parameters on their way back from the host that computation waits for",
     DT_CHART_PLUM},
    {"host: optimizer step", "the optimizer's update by the host's cores, while the GPU is idle",
     DT_CHART_RED},
    {"bubble: pipeline fills", "before the first op of a GPU has its input", DT_CHART_SILVER},
    {"bubble: other stages", "waiting for another stage of the module", DT_CHART_GREY},
    {"bubble: other modules", "waiting for another module", DT_CHART_SLATE},
    {"bubble: pipeline drains", "waiting for the slowest after the last backward pass",
     DT_CHART_STONE},
    {"between ops", "idle for nothing that the run records", DT_CHART_SAND},
};

double dt_report_spent_share(const struct dt_report_seat *s, enum dt_report_spent k)
{
    double sum = 0;

    for (int i = 0; i < DT_SPENT_N; i++)
        sum += s->gpu_ns[i];
    return sum > 0 ? s->gpu_ns[k] / sum : 0;
}

void dt_report_breakdown_free(struct dt_report_breakdown *b)
{
    dt_free(b->seat);
    memset(b, 0, sizeof *b);
}

/* ---- one GPU ---- */

struct work { /* an op of computation, or what it may wait for */
    int64_t begin_ns, end_ns;
    uint32_t op;
    int lane;
};
struct gpu {
    const struct dt_run_view *v;
    struct work *compute; /* of all its lanes, in order of time */
    struct work *comm;    /* messages received, data, collectives: in order of lane and end */
    struct work *coll;    /* collectives, and optimizer steps of the host, in order of time */
    size_t n_compute, n_comm, n_coll, cap_compute, cap_comm, cap_coll;
    double ns[DT_SPENT_N];
};

static int by_begin(const void *va, const void *vb)
{
    const struct work *a = va, *b = vb;

    if (a->begin_ns != b->begin_ns)
        return a->begin_ns < b->begin_ns ? -1 : 1;
    if (a->end_ns != b->end_ns)
        return a->end_ns < b->end_ns ? -1 : 1;
    return a->op < b->op ? -1 : a->op > b->op;
}

static int by_lane_and_end(const void *va, const void *vb)
{
    const struct work *a = va, *b = vb;

    if (a->lane != b->lane)
        return a->lane < b->lane ? -1 : 1;
    if (a->end_ns != b->end_ns)
        return a->end_ns < b->end_ns ? -1 : 1;
    return a->op < b->op ? -1 : a->op > b->op;
}

static int put(struct work **list, size_t *n, size_t *cap, const struct work *w)
{
    if (dt_grow((void **)list, cap, *n + 1, sizeof **list) != 0)
        return -1;
    (*list)[(*n)++] = *w;
    return 0;
}

static enum dt_status collect(struct gpu *g, int lane, struct dt_error *err)
{
    const struct dt_run_view_lane *l = &g->v->lane[lane];

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_run_view_op *o = &g->v->op[i];
        enum dt_op_resource res = dt_op_resource((enum dt_op_kind)o->kind);
        const struct work w = {o->begin_ns, o->end_ns, i, lane};
        bool host = o->kind == DT_OP_STEP && g->v->module[l->module].steps_on_host;

        if (res == DT_RES_P2P_OUT || o->begin_ns < 0 || o->end_ns < o->begin_ns)
            continue;
        if ((res == DT_RES_COMPUTE && !host &&
             put(&g->compute, &g->n_compute, &g->cap_compute, &w) != 0) ||
            (res != DT_RES_COMPUTE && put(&g->comm, &g->n_comm, &g->cap_comm, &w) != 0) ||
            ((res == DT_RES_COLL || host) && put(&g->coll, &g->n_coll, &g->cap_coll, &w) != 0))
            return dt_error_nomem(err, "where the time goes");
    }
    return DT_OK;
}

static enum dt_report_spent spent_of(const struct dt_run_view *v, const struct work *w)
{
    const struct dt_run_view_op *o = &v->op[w->op];

    switch ((enum dt_op_kind)o->kind) {
    case DT_OP_FORWARD:
        return DT_SPENT_FORWARD;
    case DT_OP_BACKWARD:
        return DT_SPENT_BACKWARD;
    case DT_OP_WEIGHT_GRAD:
        return DT_SPENT_WEIGHT_GRAD;
    case DT_OP_STEP:
        return v->module[v->lane[w->lane].module].steps_on_host ? DT_SPENT_HOST_STEP
                                                                : DT_SPENT_STEP;
    case DT_OP_SEND:
    case DT_OP_RECV:
        return o->peer >= 0 && v->lane[o->peer].module != v->lane[w->lane].module
                   ? DT_SPENT_BOUNDARY
                   : DT_SPENT_TRANSFER;
    case DT_OP_PARAM_GATHER:
        return DT_SPENT_GATHER;
    case DT_OP_GRAD_SYNC:
        return DT_SPENT_SYNC;
    case DT_OP_GRAD_NORM:
        return DT_SPENT_NORM;
    case DT_OP_FETCH:
        return DT_SPENT_DATA;
    case DT_OP_OFFLOAD:
    case DT_OP_RELOAD:
        return DT_SPENT_HOST;
    case DT_OP_KIND_N:
        break;
    }
    return DT_SPENT_OTHER;
}

/* What the lane's op `x` waited for last: of its messages, data, gathers and parameters from the host the one that ended last, if that was while
 * its GPU was idle. */
static const struct work *gate(const struct gpu *g, const struct work *x, int64_t idle_ns)
{
    const struct dt_run_view_op *o = &g->v->op[x->op];
    size_t low = 0, high = g->n_comm;

    while (low < high) { /* the first of the lane that ended after the op began */
        size_t mid = (low + high) / 2;
        const struct work *w = &g->comm[mid];

        if (w->lane < x->lane || (w->lane == x->lane && w->end_ns <= x->begin_ns))
            low = mid + 1;
        else
            high = mid;
    }
    for (; low > 0; low--) {
        const struct work *w = &g->comm[low - 1];
        const struct dt_run_view_op *c = &g->v->op[w->op];

        if (w->lane != x->lane || w->end_ns <= idle_ns)
            return NULL;
        if (c->kind == DT_OP_PARAM_GATHER ||
            (c->kind == DT_OP_RELOAD && o->kind == DT_OP_BACKWARD) ||
            ((c->kind == DT_OP_RECV || c->kind == DT_OP_FETCH) && c->mb == o->mb))
            return w;
    }
    return NULL;
}

/* From the last backward to an optimizer step, and after it: collectives of the GPU's lanes by kind, for all of which its
 * steps wait, and steps of the host; else other GPUs are waited for. */
static void drain(struct gpu *g, int64_t from, int64_t to)
{
    int64_t at = from;

    for (size_t i = 0; i < g->n_coll; i++) {
        const struct work *w = &g->coll[i];
        int64_t begin = w->begin_ns > at ? w->begin_ns : at, end = w->end_ns < to ? w->end_ns : to;

        if (end <= begin)
            continue;
        g->ns[DT_SPENT_DRAIN] += (double)(begin - at);
        g->ns[spent_of(g->v, w)] += (double)(end - begin);
        at = end;
    }
    g->ns[DT_SPENT_DRAIN] += (double)(to - at);
}

static void idle(struct gpu *g, const struct work *next, int64_t from)
{
    const struct work *w;
    int64_t begin, end, to = next->begin_ns;

    if (g->v->op[next->op].kind == DT_OP_STEP) {
        drain(g, from, to);
        return;
    }
    w = gate(g, next, from);
    if (!w) {
        g->ns[from == 0 ? DT_SPENT_FILL : DT_SPENT_OTHER] += (double)(to - from);
        return;
    }
    begin = w->begin_ns > from ? w->begin_ns : from;
    end = w->end_ns;
    g->ns[spent_of(g->v, w)] += (double)(end - begin);
    g->ns[DT_SPENT_OTHER] += (double)(to - end);
    if (from == 0)
        g->ns[DT_SPENT_FILL] += (double)(begin - from);
    else
        switch (spent_of(g->v, w)) {
        case DT_SPENT_TRANSFER:
            g->ns[DT_SPENT_STAGE] += (double)(begin - from);
            break;
        case DT_SPENT_BOUNDARY:
            g->ns[DT_SPENT_MODULE] += (double)(begin - from);
            break;
        case DT_SPENT_DATA:
            g->ns[DT_SPENT_DATA] += (double)(begin - from);
            break;
        case DT_SPENT_FORWARD:
        case DT_SPENT_BACKWARD:
        case DT_SPENT_WEIGHT_GRAD:
        case DT_SPENT_STEP:
        case DT_SPENT_GATHER:
        case DT_SPENT_SYNC:
        case DT_SPENT_NORM:
        case DT_SPENT_HOST:
        case DT_SPENT_HOST_STEP:
        case DT_SPENT_FILL:
        case DT_SPENT_STAGE:
        case DT_SPENT_MODULE:
        case DT_SPENT_DRAIN:
        case DT_SPENT_OTHER:
        case DT_SPENT_N:
            g->ns[DT_SPENT_OTHER] += (double)(begin - from);
        }
}

static enum dt_status one_gpu(struct gpu *g, const int *lanes, int n, struct dt_error *err)
{
    int64_t free_ns = 0, end_ns = g->v->makespan_ns;

    g->n_compute = g->n_comm = g->n_coll = 0;
    memset(g->ns, 0, sizeof g->ns);
    for (int i = 0; i < n; i++)
        DT_TRY(collect(g, lanes[i], err));
    if (g->n_compute)
        qsort(g->compute, g->n_compute, sizeof *g->compute, by_begin);
    if (g->n_comm)
        qsort(g->comm, g->n_comm, sizeof *g->comm, by_lane_and_end);
    if (g->n_coll)
        qsort(g->coll, g->n_coll, sizeof *g->coll, by_begin);
    for (size_t i = 0; i < g->n_compute; i++) {
        const struct work *w = &g->compute[i];

        if (w->begin_ns > free_ns)
            idle(g, w, free_ns);
        if (w->begin_ns > free_ns)
            free_ns = w->begin_ns;
        if (w->end_ns > free_ns) { /* what two lanes do at once counts once */
            g->ns[spent_of(g->v, w)] += (double)(w->end_ns - free_ns);
            free_ns = w->end_ns;
        }
    }
    if (end_ns > free_ns)
        drain(g, free_ns, end_ns);
    return DT_OK;
}

/* ---- all of them ---- */

struct edge { /* a lane's GPUs begin or end here */
    int64_t gpu;
    int lane;
    bool begins;
};

static int by_gpu(const void *va, const void *vb)
{
    const struct edge *a = va, *b = vb;

    if (a->gpu != b->gpu)
        return a->gpu < b->gpu ? -1 : 1;
    if (a->begins != b->begins)
        return a->begins ? 1 : -1;
    return a->lane < b->lane ? -1 : a->lane > b->lane;
}

static enum dt_status seat_of(struct dt_report_breakdown *b, size_t *cap, int module, int stage,
                              struct dt_error *err, struct dt_report_seat **out)
{
    int at = 0;

    while (at < b->n && (b->seat[at].module < module ||
                         (b->seat[at].module == module && b->seat[at].stage < stage)))
        at++;
    if (at == b->n || b->seat[at].module != module || b->seat[at].stage != stage) {
        if (dt_grow((void **)&b->seat, cap, (size_t)b->n + 1, sizeof *b->seat) != 0)
            return dt_error_nomem(err, "where the time goes");
        memmove(&b->seat[at + 1], &b->seat[at], (size_t)(b->n - at) * sizeof *b->seat);
        b->seat[at] = (struct dt_report_seat){.module = module, .stage = stage};
        b->n++;
    }
    *out = &b->seat[at];
    return DT_OK;
}

/* The lane of the module that these GPUs belong to. */
static int host_of(const struct dt_run_view *v, const int *lanes, int n)
{
    for (int i = 0; i < n; i++)
        if (v->module[v->lane[lanes[i]].module].host == v->lane[lanes[i]].module)
            return lanes[i];
    return lanes[0];
}

static enum dt_status add(struct gpu *g, const int *lanes, int n, int64_t gpus,
                          struct dt_report_breakdown *b, size_t *cap, struct dt_error *err)
{
    const struct dt_run_view_lane *host = &g->v->lane[host_of(g->v, lanes, n)];
    struct dt_report_seat *seat = NULL;

    DT_TRY(one_gpu(g, lanes, n, err));
    DT_TRY(seat_of(b, cap, host->module, host->stage, err, &seat));
    seat->gpus += gpus;
    b->all.gpus += gpus;
    for (int k = 0; k < DT_SPENT_N; k++) {
        seat->gpu_ns[k] += (double)gpus * g->ns[k];
        b->all.gpu_ns[k] += (double)gpus * g->ns[k];
    }
    return DT_OK;
}

/* GPUs between two edges have the same lanes. */
static enum dt_status sweep(struct gpu *g, const struct edge *e, int n, struct dt_error *err,
                            struct dt_report_breakdown *b)
{
    int lanes[SHARING_MAX], on = 0;
    int64_t work = 0;
    size_t cap = 0;

    for (int i = 0; i < n; i++) {
        if (on > 0 && i > 0 && e[i].gpu > e[i - 1].gpu) {
            for (int k = 0; k < on; k++)
                work += g->v->lane[lanes[k]].n;
            if (work > WORK_MAX)
                return dt_error_set(err, DT_ERR_RANGE,
                                    "too many lanes share GPUs to say where the time goes");
            DT_TRY(add(g, lanes, on, e[i].gpu - e[i - 1].gpu, b, &cap, err));
        }
        if (e[i].begins) {
            if (on == SHARING_MAX)
                return dt_error_set(err, DT_ERR_RANGE,
                                    "more than %d lanes share a GPU: where the time goes is not "
                                    "worked out",
                                    SHARING_MAX);
            lanes[on++] = e[i].lane;
        } else {
            int k = 0;

            while (lanes[k] != e[i].lane)
                k++;
            memmove(&lanes[k], &lanes[k + 1], (size_t)(on - k - 1) * sizeof *lanes);
            on--;
        }
    }
    return DT_OK;
}

enum dt_status dt_report_breakdown_of(const struct dt_run_view *v, struct dt_error *err,
                                      struct dt_report_breakdown *out)
{
    struct dt_report_breakdown b = {.all = {.module = -1, .stage = -1}};
    struct gpu g = {.v = v};
    struct edge *e;
    enum dt_status st;

    if (v->n_ops == 0 || v->makespan_ns <= 0)
        return dt_error_set(err, DT_ERR_RANGE, "the run has kept no ops");
    e = dt_malloc(2 * (size_t)v->n_lanes * sizeof *e);
    if (!e)
        return dt_error_nomem(err, "where the time goes");
    for (int k = 0; k < v->n_lanes; k++) {
        const struct dt_run_view_lane *l = &v->lane[k];

        e[2 * k] = (struct edge){l->first_gpu, k, true};
        e[2 * k + 1] = (struct edge){l->first_gpu + l->gpus, k, false};
    }
    qsort(e, 2 * (size_t)v->n_lanes, sizeof *e, by_gpu);
    st = sweep(&g, e, 2 * v->n_lanes, err, &b);
    dt_free(e);
    dt_free(g.compute);
    dt_free(g.comm);
    dt_free(g.coll);
    if (st == DT_OK)
        *out = b;
    else
        dt_report_breakdown_free(&b);
    return st;
}
