/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The inner part of the search: a module's layouts, their Pareto front, and all combinations of
 * fronts. */
#include "core/mem.h"
#include "core/orchestrate_search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- fronts ---- */

static int by_gpus(const void *pa, const void *pb)
{
    const struct dt_option *a = pa, *b = pb;

    if (a->gpus != b->gpus)
        return a->gpus < b->gpus ? -1 : 1;
    if (a->interval != b->interval)
        return a->interval < b->interval ? -1 : 1;
    if (a->warm != b->warm)
        return a->warm < b->warm ? -1 : 1;
    return a->pp - b->pp;
}

static void cost_option(const struct dt_search_state *s, int m, int pp, int dp, double stage_s,
                        struct dt_option *o)
{
    double c = s->sample_s[m];

    o->pp = pp;
    o->dp = dp;
    o->gpus = (1 << s->c->tpi[m]) * pp * dp;
    if (s->t->in->opt.uniform) { /* the published formula: uniform stages, fractional samples */
        o->warm = (double)s->slot * c / dp;
        o->interval = o->warm / pp;
    } else {
        double k = (double)dt_samples_per_replica(s->slot, dp);

        o->warm = k * c;
        o->interval = k * stage_s;
    }
}

/* Least dp whose replicas may meet the interval. */
static int64_t least_dp(const struct dt_search_state *s, int m, int pp, double stage_s,
                        double interval_max)
{
    double k_max; /* samples a replica may take per slot */

    if (s->t->in->opt.uniform)
        stage_s = s->sample_s[m] / pp;
    if (stage_s <= 0 || interval_max >= (double)s->slot * stage_s)
        return 1;
    k_max = interval_max / stage_s;
    if (!s->t->in->opt.uniform)
        k_max = floor(k_max);
    if (k_max <= 0)
        return INT64_MAX;
    return (int64_t)fmin(ceil((double)s->slot / k_max), 1e18);
}

static bool push(struct dt_search_state *s, const struct dt_option *o)
{
    void *p = s->raw.o;

    if (dt_grow(&p, &s->raw.cap, s->raw.n + 1, sizeof(*o)) != 0) {
        s->t->nomem = true;
        return false;
    }
    s->raw.o = p;
    s->raw.o[s->raw.n++] = *o;
    return true;
}

/* All (pp, dp) of module m within the interval and the GPUs.  Unless `uniform`, only the least dp
 * of each number of samples per replica is worth its GPUs: about 2*sqrt(slot) of them. */
static void list_options(struct dt_search_state *s, int m, int pp_max, double interval_max,
                         int gpus_max)
{
    const int tp = 1 << s->c->tpi[m];

    s->raw.n = 0;
    for (int pp = 1; pp <= pp_max && tp * pp <= gpus_max; pp++) {
        const struct dt_stage_entry *e = dt_table_stage(s->t, m, s->c->tpi[m], pp, 1);
        int64_t dp, dp_max = gpus_max / (tp * pp);

        if (!e)
            return;
        if (dp_max > s->slot)
            dp_max = s->slot;
        for (dp = least_dp(s, m, pp, e->max_s, interval_max * (1 + 1e-12)); dp <= dp_max;) {
            int64_t k = dt_samples_per_replica(s->slot, (int)dp);
            struct dt_option o;

            s->stats->candidates++;
            cost_option(s, m, pp, (int)dp, e->max_s, &o);
            if (!push(s, &o))
                return;
            if (s->t->in->opt.uniform)
                dp++;
            else
                dp = k > 1 ? (s->slot + k - 2) / (k - 1) : dp_max + 1;
        }
    }
}

static bool dominated(const struct dt_front *f, const struct dt_option *o)
{
    for (size_t i = f->l.n; i-- > 0;)
        if (f->l.o[i].warm <= o->warm && f->l.o[i].interval <= o->interval)
            return true;
    return false;
}

/* Sorted by GPUs, an option is dominated exactly if an earlier one has neither more warm-up nor a
 * longer interval.  Memory is asked only of options that are not. */
bool dt_front_build(struct dt_search_state *s, int m, int pp_max, double interval_max, int gpus_max)
{
    struct dt_front *f = &s->front[m];
    void *p = f->l.o;

    list_options(s, m, pp_max, interval_max, gpus_max);
    if (s->t->nomem || dt_grow(&p, &f->l.cap, s->raw.n + 1, sizeof(*f->l.o)) != 0) {
        s->t->nomem = true;
        return false;
    }
    f->l.o = p;
    f->l.n = 0;
    f->warm_min = f->interval_min = HUGE_VAL;
    if (s->raw.n > 1)
        qsort(s->raw.o, s->raw.n, sizeof(*s->raw.o), by_gpus);
    for (size_t i = 0; i < s->raw.n; i++) {
        const struct dt_option *o = &s->raw.o[i];

        if (dominated(f, o) || !dt_table_fits(s->t, m, s->c->tpi[m], o->pp, o->dp, s->c->dp_lm,
                                              s->pp_lm, s->c->vpp, s->gen_pp))
            continue;
        f->l.o[f->l.n++] = *o;
        f->warm_min = fmin(f->warm_min, o->warm);
        f->interval_min = fmin(f->interval_min, o->interval);
    }
    return f->l.n > 0;
}

/* ---- combinations ---- */

static void take_leaf(struct dt_search_state *s, int gpus, double total)
{
    struct dt_cand c;

    memset(&c, 0, sizeof(c));
    c.total_s = total;
    c.score = s->lean ? gpus : total;
    c.gpus = gpus;
    c.vpp = s->c->vpp;
    c.lower_bound_s = s->cell_bound;
    memcpy(c.tpi, s->c->tpi, sizeof(c.tpi));
    c.pp[s->llm] = (int16_t)s->pp_lm;
    c.dp[s->llm] = s->c->dp_lm;
    for (int i = 0; i < s->n_others; i++) {
        c.pp[s->others[i]] = (int16_t)s->pick[i]->pp;
        c.dp[s->others[i]] = s->pick[i]->dp;
    }
    if (s->found && !dt_cand_better(&c, &s->best))
        return;
    s->best = c;
    s->found = true;
    if (!s->lean)
        s->threshold = total;
}

/* Is the deepest generator exactly gen_pp deep?  If not, a smaller depth has seen this combination
 * already. */
static bool depth_reached(const struct dt_search_state *s)
{
    int deepest = s->n_gens ? 0 : s->gen_pp;

    for (int i = 0; i < s->n_gens; i++)
        if (s->pick[i]->pp > deepest)
            deepest = s->pick[i]->pp;
    return deepest == s->gen_pp;
}

/* Modules others[i..] remain; `left` GPUs, warm-up and longest interval so far, GPUs used so far.
 */
static void combine(struct dt_search_state *s, int i, int left, double warm, double interval,
                    int used)
{
    double rest_warm = 0, rest_interval = 0;
    int rest_gpus = 0;
    const struct dt_front *f;

    if (i == s->n_others) {
        s->stats->candidates++;
        if (depth_reached(s))
            take_leaf(s, used, s->base + warm + s->steps * interval);
        return;
    }
    for (int j = i + 1; j < s->n_others; j++) {
        const struct dt_front *g = &s->front[s->others[j]];

        rest_warm += g->warm_min;
        rest_interval = fmax(rest_interval, g->interval_min);
        rest_gpus += g->l.o[0].gpus;
    }
    f = &s->front[s->others[i]];
    for (size_t a = f->l.n; a-- > 0;) { /* most GPUs first: a good incumbent early */
        const struct dt_option *o = &f->l.o[a];
        double longest = fmax(interval, o->interval);
        double bound =
            s->base + warm + o->warm + rest_warm + s->steps * fmax(longest, rest_interval);

        if (o->gpus + rest_gpus > left || bound > s->threshold * (1 + 1e-15))
            continue;
        if (s->lean && s->found && used + o->gpus + rest_gpus >= s->best.gpus)
            continue;
        s->pick[i] = o;
        combine(s, i + 1, left - o->gpus, warm + o->warm, longest, used + o->gpus);
    }
}

void dt_front_combine(struct dt_search_state *s, int left, double interval, int used)
{
    combine(s, 0, left, 0, interval, used);
}
