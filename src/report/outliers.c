/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/outliers.h"

#include "core/schedule/assign.h"
#include "base/mem.h"
#include "base/quantile.h"
#include "core/model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LANE_FACTOR 1.08
#define OP_FACTOR 1.5
#define OP_SHARE 0.01 /* of the iteration */
#define DEVIATIONS 6.0
#define NORMAL_MAD 1.4826 /* of a normal distribution: standard deviation / MAD */
enum { OPS_LIKE_MIN = 4 };

struct item {      /* an op, or a lane */
    uint64_t like; /* equal: comparable */
    double rate; /* of an op: ns per token; of a lane: median of its ops' rates over their like's */
    double ns;
    uint32_t lane, op;
    double pace; /* of an op: its rate over the median of its like */
};

static double tokens_of(const struct dt_program *p, const struct dt_op *op)
{
    const struct dt_assignment_module *a;

    if (!p->assignment)
        return 1;
    a = &p->assignment->m[op->module];
    return a->work[a->mb_first[op->replica] + op->mb].tokens;
}

static int by_like(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    if (x->like != y->like)
        return x->like < y->like ? -1 : 1;
    return (x->op > y->op) - (x->op < y->op);
}

/* Of n rates, beyond what an item stands out. */
static double limit(double *rate, size_t n, double factor, double *usual)
{
    double far;

    *usual = dt_median(rate, n);
    for (size_t i = 0; i < n; i++)
        rate[i] = fabs(rate[i] - *usual);
    far = *usual + DEVIATIONS * NORMAL_MAD * dt_median(rate, n);
    return fmax(far, factor * *usual);
}

/* The costliest first. */
static void keep(struct dt_outlier *v, int *n, const struct item *x, double usual)
{
    struct dt_outlier o = {x->lane, x->op, x->ns, x->ns * usual / x->rate};
    int i;

    if (*n < DT_OUTLIERS_MAX)
        (*n)++;
    else if (v[DT_OUTLIERS_MAX - 1].ns - v[DT_OUTLIERS_MAX - 1].usual >= o.ns - o.usual)
        return;
    for (i = *n - 1; i > 0 && v[i - 1].ns - v[i - 1].usual < o.ns - o.usual; i--)
        v[i] = v[i - 1];
    v[i] = o;
}

/* Each lane against the other replicas. */
static void lanes_like(const struct item *v, size_t n, double *room, bool *straggler,
                       struct dt_outliers *out)
{
    for (size_t i = 0; i < n && n > 1; i++) {
        size_t k = 0;
        double usual, most;

        for (size_t j = 0; j < n; j++)
            if (j != i)
                room[k++] = v[j].rate;
        most = limit(room, k, LANE_FACTOR, &usual);
        if (v[i].rate <= most)
            continue;
        straggler[v[i].lane] = true;
        keep(out->lane, &out->n_lanes, &v[i], usual);
    }
}

static void ops_like(const struct item *v, size_t n, double *room, const bool *straggler,
                     double least_ns, struct dt_outliers *out)
{
    double usual, most;

    for (size_t i = 0; i < n; i++)
        room[i] = v[i].rate;
    most = limit(room, n, OP_FACTOR, &usual);
    for (size_t i = 0; i < n && n >= OPS_LIKE_MIN; i++)
        if (v[i].rate > most && v[i].ns * (1 - usual / v[i].rate) > least_ns &&
            !straggler[v[i].lane])
            keep(out->op, &out->n_ops, &v[i], usual);
}

static bool counts(const struct dt_program *p, uint32_t i)
{
    const struct dt_op *op = &p->ops[i];

    return dt_op_resource((enum dt_op_kind)op->kind) == DT_RES_COMPUTE && op->mb != DT_NONE &&
           tokens_of(p, op) > 0;
}

static size_t op_items(const struct dt_program *p, const struct dt_timeline *t, struct item *v)
{
    size_t n = 0;

    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *op = &p->ops[i];

        if (!counts(p, i) || t->end_ns[i] <= t->begin_ns[i])
            continue;
        v[n] = (struct item){.like = (uint64_t)op->module << 48 | (uint64_t)op->stage << 32 |
                                     (uint64_t)op->chunk << 16 | (uint64_t)op->part << 8 | op->kind,
                             .ns = (double)(t->end_ns[i] - t->begin_ns[i]),
                             .lane = op->lane,
                             .op = i};
        v[n].rate = v[n].ns / tokens_of(p, op);
        n++;
    }
    return n;
}

static size_t run_of(const struct item *v, size_t n)
{
    size_t k = 1;

    while (k < n && v[k].like == v[0].like)
        k++;
    return k;
}

static void set_paces(struct item *v, size_t n, double *room)
{
    double usual;

    for (size_t i = 0; i < n; i++)
        room[i] = v[i].rate;
    usual = dt_median(room, n);
    for (size_t i = 0; i < n; i++)
        v[i].pace = v[i].rate / usual;
}

static int by_lane(const void *a, const void *b)
{
    const struct item *x = a, *y = b;

    return (x->lane > y->lane) - (x->lane < y->lane);
}

/* From ops by lane to the lanes that have any: a lane's rate is its median op's, which a few slow
 * ops do not move. */
static size_t lane_items(const struct dt_program *p, const struct item *op, size_t n, double *room,
                         struct item *out)
{
    size_t n_out = 0, k;

    for (size_t i = 0; i < n; i += k) {
        const struct dt_lane *l = &p->lanes[op[i].lane];
        struct item *x = &out[n_out++];

        *x = (struct item){
            .like = (uint64_t)l->module << 32 | l->stage, .lane = op[i].lane, .op = DT_NONE};
        for (k = 0; i + k < n && op[i + k].lane == op[i].lane; k++) {
            room[k] = op[i + k].pace;
            x->ns += op[i + k].ns;
        }
        x->rate = dt_median(room, k);
    }
    return n_out;
}

static void find(const struct dt_program *p, const struct dt_timeline *t, struct item *ops,
                 struct item *lanes, double *room, bool *straggler, struct dt_outliers *out)
{
    size_t n = op_items(p, t, ops), n_lanes, k;

    qsort(ops, n, sizeof(*ops), by_like);
    for (size_t i = 0; i < n; i += k)
        set_paces(&ops[i], k = run_of(&ops[i], n - i), room);
    qsort(ops, n, sizeof(*ops), by_lane);
    n_lanes = lane_items(p, ops, n, room, lanes);
    qsort(lanes, n_lanes, sizeof(*lanes), by_like);
    for (size_t i = 0; i < n_lanes; i += k)
        lanes_like(&lanes[i], k = run_of(&lanes[i], n_lanes - i), room, straggler, out);
    qsort(ops, n, sizeof(*ops), by_like);
    for (size_t i = 0; i < n; i += k)
        ops_like(&ops[i], k = run_of(&ops[i], n - i), room, straggler,
                 OP_SHARE * (double)t->makespan_ns, out);
}

enum dt_status dt_outliers_find(const struct dt_program *p, const struct dt_timeline *t,
                                struct dt_error *err, struct dt_outliers *out)
{
    size_t n_lanes = (size_t)p->n_lanes + 1, n = (size_t)p->n_ops + n_lanes;
    struct item *ops = dt_calloc(n, sizeof(*ops)), *lanes = dt_calloc(n_lanes, sizeof(*lanes));
    double *room = dt_malloc(n * sizeof(*room));
    bool *straggler = dt_calloc(n_lanes, sizeof(*straggler));
    enum dt_status st =
        ops && lanes && room && straggler ? DT_OK : dt_error_nomem(err, "what stands out");

    memset(out, 0, sizeof(*out));
    if (st == DT_OK)
        find(p, t, ops, lanes, room, straggler, out);
    dt_free(ops);
    dt_free(lanes);
    dt_free(room);
    dt_free(straggler);
    return st;
}

void dt_outlier_text(const struct dt_program *p, const struct dt_model *m,
                     const struct dt_outlier *o, const char *place, char *buf, size_t size)
{
    const struct dt_lane *l = &p->lanes[o->lane];
    const char *module = m->modules[l->module].name, *sep = place ? ": " : "";
    const struct dt_op *op;

    place = place ? place : "";
    if (o->op == DT_NONE) {
        snprintf(buf, size, "%s%s%s/%u.%u takes %.2f times as long per token as its replicas",
                 place, sep, module, l->replica, l->stage, o->ns / o->usual);
        return;
    }
    op = &p->ops[o->op];
    snprintf(buf, size, "%s%s%s/%u.%u %s of microbatch %u: %.3f ms instead of %.3f", place, sep,
             module, l->replica, l->stage, dt_op_kind_names[op->kind], op->mb, o->ns * 1e-6,
             o->usual * 1e-6);
}
