/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/run_view.h"

#include "base/mem.h"
#include "base/text.h"
#include "report/chart_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- from a program and its timeline ---- */

static void copy_lane(const struct dt_program *p, const struct dt_timeline *t, int k,
                      struct dt_run_view *v)
{
    const struct dt_lane *l = &p->lanes[k];

    v->lane[k] = (struct dt_run_view_lane){.module = l->module,
                                           .replica = l->replica,
                                           .stage = l->stage,
                                           .gpus = l->gpus,
                                           .first_gpu = l->first_gpu,
                                           .first = l->first,
                                           .n = l->n};
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *o = &p->ops[i];
        bool message = o->kind == DT_OP_SEND || o->kind == DT_OP_RECV;

        v->op[i] = (struct dt_run_view_op){
            .kind = o->kind,
            .chunk = o->chunk,
            .part = o->part,
            .mb = o->mb == DT_NONE ? -1 : (int32_t)o->mb,
            .peer = message && o->peer < p->n_ops ? (int32_t)p->ops[o->peer].lane : -1,
            .bytes = (int64_t)o->bytes,
            .begin_ns = t->begin_ns[i],
            .end_ns = t->end_ns[i]};
    }
}

void dt_run_view_offload(struct dt_run_view *v, const struct dt_plan *p)
{
    for (int m = 0; m < v->n_modules; m++)
        for (int k = 0; k < p->n_modules; k++)
            if (strcmp(v->module[m].name, p->module_names[k]) == 0)
                v->module[m].steps_on_host = dt_plan_offloads_optimizer(&p->modules[k]);
}

enum dt_status dt_run_view_of(const struct dt_program *p, const struct dt_model *m,
                              const struct dt_timeline *t, struct dt_error *err,
                              struct dt_run_view *out)
{
    struct dt_run_view v = {.n_modules = m->n_modules,
                            .n_lanes = p->n_lanes,
                            .n_ops = p->n_ops,
                            .makespan_ns = t->makespan_ns};
    enum dt_status st = DT_OK;

    v.lane = dt_calloc((size_t)p->n_lanes + 1, sizeof *v.lane);
    v.op = dt_calloc((size_t)p->n_ops + 1, sizeof *v.op);
    if (!v.lane || !v.op)
        st = dt_error_nomem(err, "a picture of the run");
    for (int i = 0; i < m->n_modules; i++)
        snprintf(v.module[i].name, sizeof v.module[i].name, "%s", m->modules[i].name);
    for (int i = 0; p->plan && i < p->plan->n_modules; i++)
        v.module[i].guest = p->plan->modules[i].with != 0;
    if (p->steps_on_hosts)
        dt_run_view_offload(&v, p->plan);
    for (int k = 0; st == DT_OK && k < p->n_lanes; k++)
        copy_lane(p, t, k, &v);
    if (st == DT_OK)
        st = dt_run_view_seat(&v, err);
    if (st == DT_OK)
        *out = v;
    else
        dt_run_view_free(&v);
    return st;
}

void dt_run_view_free(struct dt_run_view *v)
{
    dt_free(v->lane);
    dt_free(v->op);
    memset(v, 0, sizeof *v);
}

/* ---- who shares GPUs ---- */

struct range {
    int64_t from, to;
    int lane;
};

static int by_place(const void *va, const void *vb)
{
    const struct range *a = va, *b = vb;

    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    return a->lane < b->lane ? -1 : a->lane > b->lane;
}

/* Which modules share GPUs: a lane meets one before it of a module whose lanes so far reach beyond its first GPU. */
static void mark_shared(const struct dt_run_view *v, const struct range *r,
                        bool shared[DT_MAX_MODULES][DT_MAX_MODULES])
{
    int64_t reached[DT_MAX_MODULES] = {0};

    for (int i = 0; i < v->n_lanes; i++) {
        int a = v->lane[r[i].lane].module;

        for (int b = 0; b < v->n_modules; b++)
            if (b != a && reached[b] > r[i].from)
                shared[a][b] = shared[b][a] = true;
        reached[a] = r[i].to > reached[a] ? r[i].to : reached[a];
    }
}

/* Of modules that share GPUs, whose rows the others are drawn on: one that the plan does not lay on another's, with more GPUs,
 * or else with more stages, or wider lanes. */
static bool comes_first(const struct dt_run_view_module *a, const struct dt_run_view_module *b)
{
    if (a->guest != b->guest)
        return b->guest;
    if (a->gpus != b->gpus)
        return a->gpus > b->gpus;
    return a->stages != b->stages ? a->stages > b->stages : a->replicas < b->replicas;
}

enum dt_status dt_run_view_seat(struct dt_run_view *v, struct dt_error *err)
{
    bool shared[DT_MAX_MODULES][DT_MAX_MODULES] = {{false}}, seated[DT_MAX_MODULES] = {false};
    struct range *r = dt_malloc(((size_t)v->n_lanes + 1) * sizeof *r);
    int64_t end = 0;

    if (!r)
        return dt_error_nomem(err, "a picture of the run");
    for (int k = 0; k < v->n_lanes; k++) {
        const struct dt_run_view_lane *l = &v->lane[k];
        struct dt_run_view_module *m = &v->module[l->module];

        r[k] = (struct range){l->first_gpu, l->first_gpu + l->gpus, k};
        m->gpus += l->gpus;
        m->replicas = l->replica + 1 > m->replicas ? l->replica + 1 : m->replicas;
        m->stages = l->stage + 1 > m->stages ? l->stage + 1 : m->stages;
    }
    qsort(r, (size_t)v->n_lanes, sizeof *r, by_place);
    for (int k = 0; k < v->n_lanes; k++) {
        int64_t from = r[k].from > end ? r[k].from : end;

        v->gpus += r[k].to > from ? r[k].to - from : 0;
        end = r[k].to > end ? r[k].to : end;
    }
    mark_shared(v, r, shared);
    dt_free(r);
    for (;;) { /* each host takes those that it meets */
        int most = -1;

        for (int m = 0; m < v->n_modules; m++)
            if (!seated[m] && (most < 0 || comes_first(&v->module[m], &v->module[most])))
                most = m;
        if (most < 0)
            return DT_OK;
        seated[most] = true;
        v->module[most].host = most;
        for (int m = 0; m < v->n_modules; m++)
            if (!seated[m] && shared[most][m]) {
                seated[m] = true;
                v->module[m].host = most;
            }
    }
}

/* ---- rows ---- */

/* A lane of a host and one of a guest that share GPUs. */
struct meeting {
    int host, guest;
};
struct seating {
    const struct dt_run_view *v;
    struct meeting *m; /* by host */
    size_t n, cap;
    size_t *first; /* [n_lanes + 1] of a lane's in m */
    int *stage;    /* [n_lanes] of each, numbered over all modules */
    bool *shown;   /* [n_lanes] of guests, by that number: rows of the stage at hand have it */
};
struct numbered { /* a lane, to be sorted by its stage */
    int module, stage, lane;
};

static int by_stage(const void *va, const void *vb)
{
    const struct numbered *a = va, *b = vb;

    if (a->module != b->module)
        return a->module < b->module ? -1 : 1;
    return a->stage != b->stage ? (a->stage < b->stage ? -1 : 1) : a->lane - b->lane;
}

/* A file may say of a lane that its stage is any number. */
static enum dt_status number_stages(struct seating *s, struct dt_error *err)
{
    const struct dt_run_view *v = s->v;
    struct numbered *x = dt_malloc(((size_t)v->n_lanes + 1) * sizeof *x);

    if (!x)
        return dt_error_nomem(err, "a picture of the run");
    for (int k = 0; k < v->n_lanes; k++)
        x[k] = (struct numbered){v->lane[k].module, v->lane[k].stage, k};
    qsort(x, (size_t)v->n_lanes, sizeof *x, by_stage);
    for (int k = 0, n = 0; k < v->n_lanes; k++) {
        n += k > 0 && (x[k].module != x[k - 1].module || x[k].stage != x[k - 1].stage);
        s->stage[x[k].lane] = n;
    }
    dt_free(x);
    return DT_OK;
}

static int by_host(const void *va, const void *vb)
{
    const struct meeting *a = va, *b = vb;

    return a->host != b->host ? a->host - b->host : a->guest - b->guest;
}

static bool is_host(const struct dt_run_view *v, int lane)
{
    return v->module[v->lane[lane].module].host == v->lane[lane].module;
}

static bool same_stage(const struct dt_run_view *v, int a, int b)
{
    return v->lane[a].module == v->lane[b].module && v->lane[a].stage == v->lane[b].stage;
}

/* More than any plan of ours has; a damaged file may have more. */
enum { MEETINGS_MAX = 1 << 22, GUESTS_MAX = 4096 /* of a lane */ };

static enum dt_status too_many(struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_RANGE, "too many lanes share GPUs for a picture");
}

/* Lanes of hosts do not meet each other, so in the order of their GPUs those that a guest meets follow each other. */
static enum dt_status meet(struct seating *s, const struct range *host, size_t hosts, int guest,
                           struct dt_error *err)
{
    const struct dt_run_view_lane *g = &s->v->lane[guest];
    size_t low = 0, high = hosts;

    while (low < high) { /* the first that ends behind the guest's begin */
        size_t mid = (low + high) / 2;

        if (host[mid].to <= g->first_gpu)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < hosts && host[low].from < g->first_gpu + g->gpus; low++) {
        if (s->v->module[g->module].host != s->v->lane[host[low].lane].module)
            continue;
        if (s->n == MEETINGS_MAX)
            return too_many(err);
        if (dt_grow((void **)&s->m, &s->cap, s->n + 1, sizeof *s->m) != 0)
            return dt_error_nomem(err, "a picture of the run");
        s->m[s->n++] = (struct meeting){host[low].lane, guest};
    }
    return DT_OK;
}

static enum dt_status find_guests(struct seating *s, struct range *host, struct dt_error *err)
{
    const struct dt_run_view *v = s->v;
    size_t hosts = 0, i = 0;

    for (int k = 0; k < v->n_lanes; k++)
        if (is_host(v, k))
            host[hosts++] =
                (struct range){v->lane[k].first_gpu, v->lane[k].first_gpu + v->lane[k].gpus, k};
    qsort(host, hosts, sizeof *host, by_place);
    for (int k = 0; k < v->n_lanes; k++)
        if (!is_host(v, k))
            DT_TRY(meet(s, host, hosts, k, err));
    if (s->n)
        qsort(s->m, s->n, sizeof *s->m, by_host);
    for (int k = 0; k < v->n_lanes; k++) {
        while (i < s->n && s->m[i].host == k)
            i++;
        s->first[k + 1] = i;
        if (i - s->first[k] > GUESTS_MAX)
            return too_many(err);
    }
    return DT_OK;
}

static bool *shown(const struct seating *s, size_t meeting)
{
    return &s->shown[s->stage[s->m[meeting].guest]];
}

/* How many stages of guests are on the lane that no row has yet. */
static int unseen(const struct seating *s, int lane)
{
    int n = 0;

    for (size_t i = s->first[lane]; i < s->first[lane + 1]; i++) {
        size_t same = s->first[lane];

        while (!same_stage(s->v, s->m[same].guest, s->m[i].guest))
            same++;
        n += same == i && !*shown(s, i);
    }
    return n;
}

/* Replicas of a stage need not have the same guests: the one that has most of those which no row has yet, or `otherwise`. */
static int next_replica(const struct seating *s, int first, int otherwise)
{
    int most = 0, best = otherwise;

    for (int k = first; k < s->v->n_lanes; k++) {
        int n = same_stage(s->v, k, first) ? unseen(s, k) : 0;

        if (n > most) {
            most = n;
            best = k;
        }
    }
    return best;
}

/* Rows first, then the guests of all lanes. */
static struct dt_run_view_row *rows_new(const struct seating *s, int **guests)
{
    struct dt_run_view_row *rows =
        dt_calloc(1, DT_RUN_VIEW_ROWS_MAX * sizeof *rows + (s->n + 1) * sizeof(int));

    *guests = rows ? (int *)(void *)(rows + DT_RUN_VIEW_ROWS_MAX) : NULL;
    for (size_t i = 0; rows && i < s->n; i++)
        (*guests)[i] = s->m[i].guest;
    return rows;
}

static enum dt_status fill_rows(struct seating *s, struct range *scratch, struct dt_error *err,
                                struct dt_run_view_row **out, int *n, int *more)
{
    const struct dt_run_view *v = s->v;
    struct dt_run_view_row *rows;
    int found = 0, *guests;

    DT_TRY(number_stages(s, err));
    DT_TRY(find_guests(s, scratch, err));
    rows = rows_new(s, &guests);
    if (!rows)
        return dt_error_nomem(err, "a picture of the run");
    *more = 0;
    for (int k = 0; k < v->n_lanes; k++) {
        if (v->lane[k].replica != 0 || !is_host(v, k))
            continue;
        if (found == DT_RUN_VIEW_ROWS_MAX) {
            ++*more;
            continue;
        }
        memset(s->shown, 0, (size_t)v->n_lanes * sizeof *s->shown);
        for (int l = next_replica(s, k, k); l >= 0 && found < DT_RUN_VIEW_ROWS_MAX;
             l = next_replica(s, k, -1)) {
            for (size_t i = s->first[l]; i < s->first[l + 1]; i++)
                *shown(s, i) = true;
            rows[found++] =
                (struct dt_run_view_row){.lane = l,
                                         .n_guests = (int)(s->first[l + 1] - s->first[l]),
                                         .guest = guests + s->first[l]};
        }
    }
    *out = rows;
    *n = found;
    return DT_OK;
}

enum dt_status dt_run_view_rows(const struct dt_run_view *v, struct dt_error *err,
                                struct dt_run_view_row **out, int *n, int *more)
{
    struct seating s = {.v = v};
    struct range *scratch = dt_malloc(((size_t)v->n_lanes + 1) * sizeof *scratch);
    enum dt_status st;

    s.first = dt_calloc((size_t)v->n_lanes + 1, sizeof *s.first);
    s.stage = dt_calloc((size_t)v->n_lanes + 1, sizeof *s.stage);
    s.shown = dt_malloc(((size_t)v->n_lanes + 1) * sizeof *s.shown);
    st = s.first && s.stage && s.shown && scratch ? fill_rows(&s, scratch, err, out, n, more)
                                                  : dt_error_nomem(err, "a picture of the run");
    dt_free(s.m);
    dt_free(s.first);
    dt_free(s.stage);
    dt_free(s.shown);
    dt_free(scratch);
    return st;
}

bool dt_run_view_row_again(const struct dt_run_view *v, const struct dt_run_view_row *r, int guest)
{
    int k = 0;

    while (!same_stage(v, r->guest[k], r->guest[guest]))
        k++;
    return k < guest;
}

/* Has the row an earlier guest of this one's module? */
static bool named(const struct dt_run_view *v, const struct dt_run_view_row *r, int guest)
{
    int k = 0;

    while (v->lane[r->guest[k]].module != v->lane[r->guest[guest]].module)
        k++;
    return k < guest;
}

/* Is it cut as its host is, and so shares all of its GPUs? */
static bool alike(const struct dt_run_view *v, int host, int module)
{
    const struct dt_run_view_module *a = &v->module[host], *b = &v->module[module];

    return module != host && b->host == host && a->gpus == b->gpus && a->stages == b->stages &&
           a->replicas == b->replicas;
}

void dt_run_view_modules_name(const struct dt_run_view *v, int module, char *buf, size_t size)
{
    int n = snprintf(buf, size, "%s", v->module[module].name);

    for (int m = 0; m < v->n_modules && n > 0 && (size_t)n < size; m++)
        if (alike(v, module, m))
            n += snprintf(buf + n, size - (size_t)n, " + %s", v->module[m].name);
}

void dt_run_view_stage_name(const struct dt_run_view *v, int module, int stage, char *buf,
                            size_t size)
{
    size_t n;

    dt_run_view_modules_name(v, module, buf, size);
    n = strlen(buf);
    if (v->module[module].stages > 1)
        snprintf(buf + n, size - n, " stage %d", stage);
}

void dt_run_view_row_name(const struct dt_run_view *v, const struct dt_run_view_row *r, char *buf,
                          size_t size)
{
    const struct dt_run_view_lane *l = &v->lane[r->lane];
    size_t n;

    dt_run_view_stage_name(v, l->module, l->stage, buf, size);
    n = strlen(buf);
    if (l->replica > 0)
        snprintf(buf + n, size - n, " replica %d", l->replica);
}

void dt_run_view_row_note(const struct dt_run_view *v, const struct dt_run_view_row *r,
                          const char *unit, char *buf, size_t size)
{
    const struct dt_run_view_lane *l = &v->lane[r->lane];
    const struct dt_run_view_module *m = &v->module[l->module];
    const char *s = m->gpus == 1 ? "" : strcmp(unit, "process") == 0 ? "es" : "s";
    char all[32];
    int n, others = 0;

    dt_chart_value((double)m->gpus, NULL, all, sizeof all);
    if (m->gpus == l->gpus)
        n = snprintf(buf, size, "%d %s%s", l->gpus, unit, s);
    else if (m->replicas == 1)
        n = snprintf(buf, size, "%d of %s %s%s", l->gpus, all, unit, s);
    else
        n = snprintf(buf, size, "%d of %s %s%s, replica %d of %d", l->gpus, all, unit, s,
                     l->replica, m->replicas);
    for (int k = 0; k < r->n_guests && n > 0 && (size_t)n < size; k++)
        if (!alike(v, l->module, v->lane[r->guest[k]].module) && !named(v, r, k))
            n += snprintf(buf + n, size - (size_t)n, "%s%s", others++ ? ", " : ", with ",
                          v->module[v->lane[r->guest[k]].module].name);
}
