/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Days, money and energy of a result; which points are evaluated; which one is the answer.
 *
 * The least number of GPUs that will do is looked for without assuming that more are faster: some numbers do not
 * divide the work, or fit no plan at all.  From below, the work itself bounds them: no GPU does more than its peak.
 *
 *   least by FLOPs ----all sizes in turn, 16 at a time----> the first that meets the target ... at quick effort
 *                     it, and smaller ones that would do as well as the best size does --normal effort--> the answer */
#include "cli/whatif.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 16, SIZES_MAX = 512, WIDER = 4, GPUS_MAX = 1 << 21 };
#define DAY 86400.0
#define NEAR                                                                                       \
    1.02 /* a longer search beats the best use of GPUs at another size by less than this, nearly always */

/* ---- derived numbers ---- */

/* Factor on the predicted time of all iterations at the upper end of the asked interval: the two ends of the 80 % one are
 * known, and the upper half is taken for log-normal where another is asked for. */
static double upper(const struct dt_whatif *w, const struct dt_sweep_result *r)
{
    double ratio = r->iteration_s_mean_p90 / r->iteration_s_mean;

    if (fabs(w->goal.confidence - 0.8) < 1e-9)
        return ratio;
    return exp(log(ratio) * dt_normal_quantile(0.5 + w->goal.confidence / 2) /
               dt_normal_quantile(0.9));
}

static double per_day(const struct dt_sweep_result *r)
{
    return r->price_per_gpu_hour > 0 ? r->price_per_gpu_hour * r->gpus * 24 : NAN;
}

void dt_whatif_derive(const struct dt_whatif *w, struct dt_whatif_point *p)
{
    const struct dt_sweep_result *r = &p->r;
    const struct dt_whatif_goal *g = &w->goal;

    p->days = p->days_low = p->days_high = p->days_sure = NAN;
    p->money = p->money_low = p->money_high = p->money_sure = NAN;
    p->tokens_sure = p->mwh = p->co2_t = NAN;
    p->meets = false;
    if (!r->feasible || !g->any)
        return;
    /* the whole of a run that no goodput ends is never done */
    double iterations = g->tokens > 0 ? ceil(g->tokens / r->tokens) : NAN;
    double sure_s = r->iteration_s_mean * upper(w, r);

    if (g->tokens > 0) {
        double days_per_s = iterations / r->goodput / DAY;

        p->days = r->iteration_s_mean * days_per_s;
        p->days_low = r->iteration_s_mean_p10 * days_per_s;
        p->days_high = r->iteration_s_mean_p90 * days_per_s;
        p->days_sure = sure_s * days_per_s;
    } else {
        double days = g->days > 0 ? g->days : INFINITY;

        if (g->budget > 0)
            days = fmin(days, g->budget / per_day(r));
        p->tokens_sure = floor(days * DAY * r->goodput / sure_s) * r->tokens;
        p->days = p->days_low = p->days_high = p->days_sure = days;
    }
    p->money = p->days * per_day(r);
    p->money_low = p->days_low * per_day(r);
    p->money_high = p->days_high * per_day(r);
    p->money_sure = p->days_sure * per_day(r);
    if (r->watts_per_gpu > 0)
        p->mwh = r->watts_per_gpu * r->gpus * (r->pue > 0 ? r->pue : 1) * p->days * 24 * 1e-6;
    if (r->grams_co2_per_kwh > 0)
        p->co2_t = p->mwh * r->grams_co2_per_kwh * 1e-3;
    p->meets = r->goodput > 0 && (g->days == 0 || p->days_sure <= g->days) &&
               (g->budget == 0 || p->money_sure <= g->budget * (1 + 1e-12));
}

/* ---- the front and the answers ---- */

static enum dt_status mark_front(struct dt_whatif *w, struct dt_error *err)
{
    enum { GOALS = 3 };
    double *goal = dt_malloc((size_t)w->n * GOALS * sizeof *goal + 1);
    bool *front = dt_malloc((size_t)w->n + 1), priced = false;

    if (!goal || !front) {
        dt_free(goal);
        dt_free(front);
        return dt_error_nomem(err, "the front");
    }
    for (int i = 0; i < w->n; i++)
        priced |= w->point[i].r.feasible && w->point[i].r.price_per_gpu_hour > 0;
    for (int i = 0; i < w->n; i++) {
        const struct dt_sweep_result *r = &w->point[i].r;
        bool counts = r->feasible && !w->point[i].passed_over;
        double s = counts ? dt_sweep_token_s(r) : NAN;

        goal[i * GOALS] = s;
        goal[i * GOALS + 1] = counts ? r->gpus : NAN;
        goal[i * GOALS + 2] = priced ? s * per_day(r) : 0;
    }
    dt_sweep_front(goal, w->n, GOALS, front);
    for (int i = 0; i < w->n; i++)
        w->point[i].front = front[i];
    dt_free(goal);
    dt_free(front);
    return DT_OK;
}

/* Is a the better answer: the fewest GPUs where a time is asked for, else the shortest time, or the most tokens. */
static bool better(const struct dt_whatif *w, const struct dt_whatif_point *a,
                   const struct dt_whatif_point *b)
{
    if (w->goal.tokens == 0)
        return a->tokens_sure > b->tokens_sure;
    if (w->goal.days > 0 && a->r.gpus != b->r.gpus)
        return a->r.gpus < b->r.gpus;
    if (a->days_sure != b->days_sure)
        return a->days_sure < b->days_sure;
    return a->effort && b->effort && strcmp(a->effort, b->effort) < 0; /* normal before quick */
}

/* The best that meets the target, of one group; -1. */
static int best_of(const struct dt_whatif *w, int group)
{
    int best = -1;

    for (int i = 0; i < w->n; i++)
        if (w->point[i].group == group && w->point[i].r.feasible && w->point[i].meets &&
            (best < 0 || better(w, &w->point[i], &w->point[best])))
            best = i;
    return best;
}

/* ---- given points ---- */

/* Points of a grid that differ in the cluster's size alone are one group; without such sizes all are. */
static void group(struct dt_whatif *w)
{
    int64_t values = 1, inner = 1; /* of the size; of the axes behind it, which are faster */
    bool sized = !w->sample && w->size_axis >= 0;

    if (sized)
        values = dt_job_axis_grid(&w->axis[w->size_axis]);
    for (int a = w->size_axis + 1; sized && a < w->n_axes; a++)
        inner *= dt_job_axis_grid(&w->axis[a]);
    for (int i = 0; i < w->n; i++)
        w->point[i].group = sized ? (int)(i / (inner * values) * inner + i % inner) : 0;
    w->groups = sized ? (int)(w->n / values) : 1;
}

static enum dt_status add_given(struct dt_whatif *w, struct dt_error *err)
{
    struct dt_job_points p;
    enum dt_status st = DT_OK;

    if (w->sample)
        DT_TRY(dt_job_points_sample(w->axis, w->n_axes, (int)w->sample, w->seed, err, &p));
    else
        DT_TRY(dt_job_points_grid(w->axis, w->n_axes, err, &p));
    for (int i = 0; i < p.n && st == DT_OK; i++) {
        const char *value[DT_JOB_AXES_MAX + 1];

        for (int a = 0; a < p.n_axes; a++) {
            value[a] = dt_arena_strdup(&w->arena, p.value[i * p.n_axes + a]);
            if (!value[a])
                st = dt_error_nomem(err, "points");
        }
        if (st == DT_OK)
            st = dt_whatif_add(w, value, w->quick ? "quick" : NULL, err);
    }
    dt_job_points_free(&p);
    return st;
}

/* ---- the search for a size ---- */

struct search { /* of one group */
    struct dt_whatif *w;
    const char **value; /* [n_axes], that of the size to be filled in */
    int group, first;   /* its points begin there */
    int per_node;
    double peak_flops;
    bool cpu;
    int own; /* nodes that the job has */
    int from, to, step;
};

static enum dt_status add_size(struct search *s, int nodes, const char *effort,
                               struct dt_error *err)
{
    struct dt_whatif *w = s->w;
    bool in_nodes = strcmp(w->axis[w->size_axis].key, "cluster.nodes") == 0;
    char text[32];

    snprintf(text, sizeof text, "%d", in_nodes ? nodes : nodes * s->per_node);
    s->value[w->size_axis] = dt_arena_strdup(&w->arena, text);
    if (!s->value[w->size_axis])
        return dt_error_nomem(err, "points");
    for (int i = s->first; i < w->n; i++) /* there already */
        if (strcmp(w->point[i].value[w->size_axis], text) == 0 && w->point[i].effort == effort)
            return DT_OK;
    DT_TRY(dt_whatif_add(w, s->value, effort, err));
    w->point[w->n - 1].group = s->group;
    w->point[w->n - 1].order = nodes;
    return DT_OK;
}

static const char *first_effort(const struct search *s)
{
    return s->w->quick ? "quick" : NULL;
}

static enum dt_status see_cluster(void *ctx, const struct dt_session *session,
                                  const struct dt_sim_result *r, struct dt_error *err)
{
    struct search *s = ctx;
    const struct dt_cluster *c = &session->job->cluster;

    (void)r;
    (void)err;
    s->per_node = c->gpus_per_node;
    s->peak_flops = c->peak_flops;
    s->own = c->nodes;
    s->cpu = dt_cluster_is_cpu(c);
    return DT_OK;
}

/* The cluster of this group, its size aside. */
static enum dt_status read_cluster(struct search *s, struct dt_error *err)
{
    struct dt_whatif *w = s->w;
    const char *overrides[DT_CLI_MAX_ARGS + 8 + DT_JOB_AXES_MAX];
    struct dt_arena arena = {0};
    int n = w->n_overrides;
    enum dt_status st = DT_OK;

    memcpy((void *)overrides, (const void *)w->overrides, (size_t)n * sizeof *overrides);
    for (int a = 0; a < w->n_axes && st == DT_OK; a++) {
        size_t size = strlen(w->axis[a].key) + (s->value[a] ? strlen(s->value[a]) : 0) + 2;
        char *text = a == w->size_axis ? NULL : dt_arena_alloc(&arena, size, 1);

        if (a != w->size_axis && !text)
            st = dt_error_nomem(err, "points");
        if (text) {
            snprintf(text, size, "%s=%s", w->axis[a].key, s->value[a]);
            overrides[n++] = text;
        }
    }
    if (st == DT_OK)
        st = dt_points_check(w->points, overrides, n, see_cluster, s, err);
    dt_arena_free(&arena);
    return st;
}

/* A point that has a result, for what an iteration is; sizes double until one fits.  *found = -1: none. */
static enum dt_status probe(struct search *s, struct dt_error *err, int *found)
{
    *found = -1;
    for (int nodes = s->own; (int64_t)nodes * s->per_node <= GPUS_MAX && nodes <= 64 * s->own;
         nodes *= 2) {
        DT_TRY(add_size(s, nodes, first_effort(s), err));
        DT_TRY(dt_whatif_evaluate_all(s->w, err));
        for (int i = s->first; i < s->w->n; i++)
            if (s->w->point[i].r.feasible)
                *found = i;
        if (*found >= 0)
            return DT_OK;
        /* what is refused for another reason than its size is refused at any */
        if (s->w->point[s->w->n - 1].r.status != DT_ERR_INFEASIBLE)
            return DT_OK;
    }
    return DT_OK;
}

/* The sizes to look at, from the FLOPs of an iteration. */
static void bound(struct search *s, const struct dt_sweep_result *r)
{
    const struct dt_whatif_goal *g = &s->w->goal;
    double flops = r->mfu * r->iteration_s * r->gpus_used * s->peak_flops, least = 1;
    int64_t most, limit = GPUS_MAX / s->per_node;

    if (g->days > 0 && !s->cpu)
        least = ceil(ceil(g->tokens / r->tokens) * flops / (s->peak_flops * g->days * DAY) /
                         s->per_node -
                     1e-6);
    least = fmin(fmax(least, 1), (double)limit);
    most = (int64_t)fmax(WIDER * least, g->days > 0 ? s->own : WIDER * (double)s->own);
    s->from = (int)least;
    s->to = (int)(most < limit ? most : limit);
    s->step = (s->to - s->from) / SIZES_MAX + 1;
}

/* Sizes from `from` on; with a time asked for only up to the first that will do. */
static enum dt_status walk(struct search *s, int from, int to, int step, struct dt_error *err)
{
    bool all = s->w->goal.days == 0;

    for (int nodes = from; nodes <= to;) {
        for (int k = 0; nodes <= to && (all || k < CHUNK); k++, nodes += step)
            DT_TRY(add_size(s, nodes, first_effort(s), err));
        DT_TRY(dt_whatif_evaluate_all(s->w, err));
        if (!all && best_of(s->w, s->group) >= 0 &&
            s->w->point[best_of(s->w, s->group)].r.gpus < nodes * s->per_node)
            break;
    }
    return DT_OK;
}

static int nodes_of(const struct search *s, int point)
{
    return s->w->point[point].r.gpus / s->per_node;
}

static void say_searched(struct search *s, bool found)
{
    struct dt_whatif *w = s->w;
    bool bounded = w->goal.days > 0 && !s->cpu && s->from > 1;
    char upto[64] = "the first size that meets the target", every[64] = "every size";

    if (w->searched[0]) /* of the first of several searches */
        return;
    if (!found || w->goal.days == 0)
        snprintf(upto, sizeof upto, "%d GPUs", s->to * s->per_node);
    if (s->step > 1)
        snprintf(every, sizeof every, "every size in steps of %d nodes", s->step);
    snprintf(w->searched, sizeof w->searched,
             "searched: clusters of whole nodes of %d GPUs, %s from %d GPUs%s up to %s%s",
             s->per_node, every, s->from * s->per_node,
             bounded ? " (fewer cannot do the work even at their peak FLOP/s)" : "", upto,
             s->step > 1 && found ? ", then all sizes next to it" : "");
}

static enum dt_status search_group(struct search *s, struct dt_error *err)
{
    struct dt_whatif *w = s->w;
    int found, best;

    DT_TRY(read_cluster(s, err));
    DT_TRY(probe(s, err, &found));
    if (found < 0)
        return DT_OK;
    bound(s, &w->point[found].r);
    DT_TRY(walk(s, s->from, s->to, s->step, err));
    best = best_of(w, s->group);
    if (best >= 0 && s->step > 1) { /* between the sizes looked at */
        int at = nodes_of(s, best), low = at - s->step + 1;

        DT_TRY(walk(s, low < s->from ? s->from : low, w->goal.days > 0 ? at - 1 : at + s->step - 1,
                    1, err));
    }
    say_searched(s, best >= 0);
    return DT_OK;
}

/* The best use of the cluster's GPUs that a plan of the group makes. */
static double best_mfu(const struct dt_whatif *w, int group_)
{
    double best = 0;

    for (int i = 0; i < w->n; i++)
        if (w->point[i].group == group_ && w->point[i].r.feasible)
            best = fmax(best, w->point[i].r.mfu_cluster);
    return best;
}

/* Might a longer search find a plan with which fewer GPUs than those of the best meet the target: with the best use of
 * GPUs that any size has made. */
static bool might_do(const struct dt_whatif *w, const struct dt_whatif_point *p,
                     const struct dt_whatif_point *best, double mfu)
{
    double faster = fmin(p->r.mfu_cluster / mfu, 1) / NEAR;

    return w->goal.days > 0 && w->goal.tokens > 0 && (!best || p->r.gpus < best->r.gpus) &&
           p->days_sure * faster <= w->goal.days &&
           (w->goal.budget == 0 || p->money_sure * faster <= w->goal.budget);
}

/* The best at quick effort, and smaller ones that might do, at normal effort. */
static enum dt_status refine(struct dt_whatif *w, int group_, struct dt_error *err)
{
    int best = best_of(w, group_), n = w->n;
    double mfu = best_mfu(w, group_);

    if (!w->quick)
        return DT_OK;
    for (int i = 0; i < n; i++) {
        const struct dt_whatif_point *p = &w->point[i];
        int order = p->order;

        if (p->group != group_ || !p->r.feasible)
            continue;
        if (i != best && !might_do(w, p, best < 0 ? NULL : &w->point[best], mfu))
            continue;
        DT_TRY(dt_whatif_add(w, p->value, "normal", err));
        w->point[w->n - 1].group = group_;
        w->point[w->n - 1].order = order;
        w->point[i].again = w->n - 1;
    }
    DT_TRY(dt_whatif_evaluate_all(w, err));
    for (int i = 0; i < n; i++)
        if (w->point[i].group == group_ && w->point[i].again > 0) {
            struct dt_whatif_point *quick = &w->point[i], *longer = &w->point[quick->again];
            bool slower =
                longer->r.feasible && dt_sweep_token_s(&longer->r) > dt_sweep_token_s(&quick->r);

            longer->passed_over = slower || !longer->r.feasible;
            quick->passed_over = !longer->passed_over;
        }
    return DT_OK;
}

static enum dt_status scan(struct dt_whatif *w, struct dt_error *err)
{
    struct dt_job_points others;
    enum dt_status st = DT_OK;

    /* the size is the last axis */
    DT_TRY(dt_job_points_grid(w->axis, w->n_axes - 1, err, &others));
    for (int i = 0; i < others.n && st == DT_OK; i++) {
        const char *value[DT_JOB_AXES_MAX + 1] = {NULL};
        struct search s = {.w = w, .value = value, .group = i, .first = w->n};

        for (int a = 0; a < others.n_axes; a++) {
            value[a] = dt_arena_strdup(&w->arena, others.value[i * others.n_axes + a]);
            if (!value[a])
                st = dt_error_nomem(err, "points");
        }
        if (st == DT_OK)
            st = search_group(&s, err);
    }
    w->groups = others.n;
    dt_job_points_free(&others);
    return st;
}

static enum dt_status check_prices(const struct dt_whatif *w, struct dt_error *err)
{
    bool priced = false, feasible = false;

    for (int i = 0; i < w->n; i++) {
        feasible |= w->point[i].r.feasible;
        priced |= w->point[i].r.feasible && w->point[i].r.price_per_gpu_hour > 0;
    }
    if (w->goal.budget > 0 && feasible && !priced)
        return dt_error_set(err, DT_ERR_USAGE,
                            "--budget needs the price of a GPU for an hour, in the budget's "
                            "currency: cluster.price_per_gpu_hour=PRICE; there is no default");
    return DT_OK;
}

/* Before anything is evaluated, where it can be told. */
static enum dt_status check_price_stated(const struct dt_whatif *w, struct dt_error *err)
{
    bool varies = w->job.cluster.price_per_gpu_hour > 0;

    for (int a = 0; a < w->n_axes; a++)
        varies |= strcmp(w->axis[a].key, "cluster.price_per_gpu_hour") == 0 ||
                  strcmp(w->axis[a].key, "cluster") == 0;
    if (w->goal.budget > 0 && !varies)
        return dt_error_set(err, DT_ERR_USAGE,
                            "--budget needs the price of a GPU for an hour, in the budget's "
                            "currency: cluster.price_per_gpu_hour=PRICE; there is no default");
    return DT_OK;
}

enum dt_status dt_whatif_points(struct dt_whatif *w, struct dt_error *err)
{
    DT_TRY(check_price_stated(w, err));
    if (w->scan) {
        DT_TRY(scan(w, err));
    } else {
        DT_TRY(add_given(w, err));
        group(w);
        DT_TRY(dt_whatif_evaluate_all(w, err));
    }
    DT_TRY(check_prices(w, err));
    if (w->goal.days > 0 || w->goal.budget > 0)
        for (int g = 0; g < w->groups; g++) {
            DT_TRY(refine(w, g, err));
            if (best_of(w, g) >= 0)
                w->point[best_of(w, g)].answer = true;
        }
    for (int i = 0; i < w->n; i++)
        if (w->point[i].r.feasible)
            snprintf(w->point[i].label, sizeof w->point[i].label, "%d GPUs", w->point[i].r.gpus);
    return mark_front(w, err);
}
