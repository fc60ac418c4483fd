/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Profile rows as the cost model sees them: grouped by the dims which model and shard fix, and the
 * choice of the groups around a query: multilinear corners when the rows form a grid there, else
 * the nearest ones by inverse distance. */
#include "core/cost/cost_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N DIM_NONE
#define F DIM_FAST
#define S DIM_SCALE
#define C DIM_CLASS
const struct dt_cost_family_desc dt_cost_family[DT_KOP_FAMILY_N] = {
    [DT_KOP_GEMM] = {{F, S, S}, 1, true},
    [DT_KOP_ATTN_CAUSAL] = {{F, F, S, S, S}, 2, true},
    [DT_KOP_ATTN_FULL] = {{F, F, S, S, S}, 2, true},
    [DT_KOP_ATTN_CROSS] = {{F, F, S, S, S}, 2, true},
    [DT_KOP_CONV2D] = {{F, S, S, C, C}, 1, true},
    [DT_KOP_NORM] = {{F, S}, 1, false},
    [DT_KOP_GROUPNORM] = {{F, S}, 1, false},
    [DT_KOP_ACT] = {{F, S, C}, 1, false},
    [DT_KOP_ADD] = {{F, S}, 1, false},
    [DT_KOP_ROPE] = {{F, S}, 1, false},
    [DT_KOP_EMBED] = {{F, S}, 1, false},
    [DT_KOP_XENT] = {{F, S}, 1, false},
    [DT_KOP_ADAMW] = {{F}, 1, false},
    [DT_KOP_ALL_REDUCE] = {{S, N, F}, 1, false},
    [DT_KOP_ALL_GATHER] = {{S, N, F}, 1, false},
    [DT_KOP_REDUCE_SCATTER] = {{S, N, F}, 1, false},
    [DT_KOP_ALL_TO_ALL] = {{S, N, F}, 1, false},
    [DT_KOP_SEND_RECV] = {{C, F}, 1, false},
    [DT_KOP_BLOCK] = {{F, C}, 1, false},
    [DT_KOP_CPU_PREP] = {{C, F}, 1, false},
    [DT_KOP_CARRY] = {{S, C, F}, 1, false},
};
#undef N
#undef F
#undef S
#undef C

/* Distance (in log units) added per dim class that differs: one e-fold is nearer than another
 * kernel size. */
#define CLASS_DISTANCE 3.0

bool dt_cost_is_slow(int family, int i)
{
    int r = dt_cost_family[family].role[i];

    return r == DIM_SCALE || r == DIM_CLASS;
}

/* Rows that measure something else than the family means are left out: collectives across nodes
 * depend on the NICs of the machine they were measured on, which this cluster need not have. */
static bool usable(const struct dt_profile_row *r)
{
    if (!(r->median_ns > 0) || dt_cost_units(r->family, r->d) <= 0)
        return false;
    if (dt_cost_is_collective(r->family) && r->family != DT_KOP_SEND_RECV)
        return r->d[1] <= 0 || r->d[0] <= r->d[1];
    return true;
}

static int cmp_row(const void *pa, const void *pb)
{
    const struct dt_profile_row *a = *(const struct dt_profile_row *const *)pa;
    const struct dt_profile_row *b = *(const struct dt_profile_row *const *)pb;

    for (int i = 0; i < 6; i++) {
        if (dt_cost_is_slow(a->family, i) && a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    }
    for (int i = 0; i < 6; i++) {
        if (dt_cost_family[a->family].role[i] == DIM_FAST && a->d[i] != b->d[i])
            return a->d[i] < b->d[i] ? -1 : 1;
    }
    /* the same point twice: better kind first, then more observations, then faster */
    if (a->kind != b->kind)
        return a->kind - b->kind;
    if (a->n != b->n)
        return a->n > b->n ? -1 : 1;
    return a->median_ns < b->median_ns ? -1 : a->median_ns > b->median_ns;
}

static bool same_dims(const struct dt_profile_row *a, const struct dt_profile_row *b, bool slow)
{
    for (int i = 0; i < 6; i++) {
        bool key =
            slow ? dt_cost_is_slow(a->family, i) : dt_cost_family[a->family].role[i] == DIM_FAST;

        if (key && a->d[i] != b->d[i])
            return false;
    }
    return true;
}

static void groups_fill(struct dt_cost_group_table *t)
{
    int kept = 0;

    for (int i = 0; i < t->n_rows; i++) {
        const struct dt_profile_row *r = t->sorted[i];
        bool new_group = kept == 0 || !same_dims(t->sorted[kept - 1], r, true);
        double eff = dt_cost_units(r->family, r->d) / dt_cost_row_ns(r);

        if (!new_group && same_dims(t->sorted[kept - 1], r, false))
            continue;
        if (new_group) {
            struct dt_cost_group *g = &t->groups[t->n_groups++];

            g->first = kept;
            g->n = 0;
            for (int d = 0; d < 6; d++)
                g->slow[d] = dt_cost_is_slow(r->family, d) ? r->d[d] : 0;
        }
        t->sorted[kept++] = r;
        t->groups[t->n_groups - 1].n++;
        if (t->min_ns == 0 || dt_cost_row_ns(r) < t->min_ns)
            t->min_ns = dt_cost_row_ns(r);
        if (eff > t->max_eff)
            t->max_eff = eff;
    }
    t->n_rows = kept;
}

const struct dt_cost_group_table *dt_cost_groups(struct dt_cost *c, int family, int phase)
{
    struct dt_cost_group_table *t = &c->groups[family][phase];
    int64_t first = c->profile->first[family][phase], last = c->profile->first[family][phase + 1];
    int n = 0;

    if (t->built)
        return t;
    t->built = true;
    for (int64_t i = first; i < last; i++)
        n += usable(&c->profile->rows[i]);
    if (n == 0)
        return t;
    t->sorted = DT_ARENA_NEW(&c->arena, const struct dt_profile_row *, n);
    t->groups = DT_ARENA_NEW(&c->arena, struct dt_cost_group, n);
    if (!t->sorted || !t->groups) {
        c->oom = true;
        return t;
    }
    for (int64_t i = first; i < last; i++) {
        if (usable(&c->profile->rows[i]))
            t->sorted[t->n_rows++] = &c->profile->rows[i];
    }
    qsort(t->sorted, (size_t)t->n_rows, sizeof(t->sorted[0]), cmp_row);
    groups_fill(t);
    return t;
}

/* ---- choosing the groups around a query ---- */

/* Neighbours of q among the values of dim i over the groups whose class dims match. */
static void bracket(const struct dt_cost_group_table *t, const unsigned char *ok, int i, int64_t q,
                    int64_t *lo, int64_t *hi)
{
    int64_t below = INT64_MIN, above = INT64_MAX, least = INT64_MAX, most = INT64_MIN;

    for (int g = 0; g < t->n_groups; g++) {
        int64_t v = t->groups[g].slow[i];

        if (!ok[g])
            continue;
        if (v <= q && v > below)
            below = v;
        if (v >= q && v < above)
            above = v;
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    *lo = below == INT64_MIN ? least : below;
    *hi = above == INT64_MAX ? most : above;
}

static const struct dt_cost_group *find_group(const struct dt_cost_group_table *t,
                                              const int64_t *slow)
{
    for (int g = 0; g < t->n_groups; g++) {
        if (!memcmp(t->groups[g].slow, slow, sizeof(t->groups[g].slow)))
            return &t->groups[g];
    }
    return NULL;
}

/* Multilinear corners; 0 when the rows are no grid around q. */
static int grid_corners(const struct dt_cost_group_table *t, const unsigned char *ok,
                        struct dt_cost_surface *s, struct dt_cost_corner *out)
{
    int64_t lo[6], hi[6];
    int dims[6], n_dims = 0, n = 0;

    s->slow_inside = true;
    for (int i = 0; i < 6; i++) {
        lo[i] = hi[i] = s->slow[i];
        if (dt_cost_family[s->family].role[i] != DIM_SCALE)
            continue;
        bracket(t, ok, i, s->slow[i], &lo[i], &hi[i]);
        if (lo[i] > s->slow[i] || hi[i] < s->slow[i]) {
            s->slow_inside = false;
            lo[i] = hi[i] = lo[i] > s->slow[i] ? lo[i] : hi[i];
        }
        if (lo[i] != hi[i])
            dims[n_dims++] = i;
    }
    if (n_dims > 3)
        return 0;
    for (int bits = 0; bits < 1 << n_dims; bits++) {
        int64_t slow[6];
        double w = 1;

        memcpy(slow, lo, sizeof(slow));
        for (int k = 0; k < n_dims; k++) {
            int i = dims[k];
            double f = (dt_cost_log_dim(s->slow[i]) - dt_cost_log_dim(lo[i])) /
                       (dt_cost_log_dim(hi[i]) - dt_cost_log_dim(lo[i]));

            slow[i] = bits >> k & 1 ? hi[i] : lo[i];
            w *= bits >> k & 1 ? f : 1 - f;
        }
        out[n].g = find_group(t, slow);
        out[n].w = w;
        if (!out[n].g)
            return 0;
        n++;
    }
    s->slow_exact = n_dims == 0 && s->slow_inside;
    return n;
}

static double group_distance(const struct dt_cost_surface *s, const struct dt_cost_group *g)
{
    double sum = 0;

    for (int i = 0; i < 6; i++) {
        int role = dt_cost_family[s->family].role[i];
        double d = dt_cost_log_dim(s->slow[i]) - dt_cost_log_dim(g->slow[i]);

        if (role == DIM_SCALE)
            sum += d * d;
        else if (role == DIM_CLASS && s->slow[i] != g->slow[i])
            sum += CLASS_DISTANCE * CLASS_DISTANCE;
    }
    return sqrt(sum);
}

/* The nearest groups, weighted by inverse squared distance. */
static int near_corners(const struct dt_cost_group_table *t, struct dt_cost_surface *s,
                        struct dt_cost_corner *out)
{
    double dist[COST_NEAREST], total = 0;
    int n = 0;

    for (int g = 0; g < t->n_groups; g++) {
        double d = group_distance(s, &t->groups[g]);
        int at = n < COST_NEAREST ? n++ : COST_NEAREST;

        while (at > 0 && dist[at - 1] > d) {
            if (at < COST_NEAREST) {
                dist[at] = dist[at - 1];
                out[at] = out[at - 1];
            }
            at--;
        }
        if (at < COST_NEAREST) {
            dist[at] = d;
            out[at].g = &t->groups[g];
        }
    }
    if (n > 0 && dist[0] < 1e-9) {
        s->slow_exact = true;
        out[0].w = 1;
        return 1;
    }
    for (int i = 0; i < n; i++)
        total += 1 / (dist[i] * dist[i]);
    for (int i = 0; i < n; i++)
        out[i].w = 1 / (dist[i] * dist[i]) / total;
    return n;
}

int dt_cost_corners(struct dt_cost *c, const struct dt_cost_group_table *t,
                    struct dt_cost_surface *s, struct dt_cost_corner *out)
{
    unsigned char *ok = dt_calloc((size_t)t->n_groups, 1);
    bool any = false;
    int n = 0;

    if (!ok) {
        c->oom = true;
        return 0;
    }
    for (int g = 0; g < t->n_groups; g++) {
        ok[g] = 1;
        for (int i = 0; i < 6; i++) {
            if (dt_cost_family[s->family].role[i] == DIM_CLASS &&
                t->groups[g].slow[i] != s->slow[i])
                ok[g] = 0;
        }
        any |= ok[g];
    }
    if (any)
        n = grid_corners(t, ok, s, out);
    if (n == 0) {
        if (!any)
            s->slow_inside = false;
        n = near_corners(t, s, out);
    }
    dt_free(ok);
    return n;
}
