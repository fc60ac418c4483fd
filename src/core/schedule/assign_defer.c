/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a heavy microbatch may defer to a light one (subset sums), and which of them pair up (bottleneck matching). */
#include "core/schedule/assign_entrain.h"

#include <math.h>

/* ---- subset sums ----
 *
 * Sums are counted in 1/1024 of what all items have together: beyond that the order of two plans is a matter of the cost
 * model's error (ours; the source has "quantised" without a number).  A sum is reached by its first item in order, so each
 * has one subset, and that subset's true sum is kept beside it. */

enum { UNITS = 1024 };

struct sum {
    int item; /* its last one, or -1: the empty set */
    int from; /* the sum without it */
    int nearest,
        after;   /* sums that can be reached: the last up to this one, the first behind it or -1 */
    double load; /* of its items, not rounded */
};

struct dt_assign_subsets {
    const int *items;
    double unit;
    int top; /* the largest sum */
    struct sum *at;
};

static int in_units(double load, double unit)
{
    double u = load > 0 ? nearbyint(load / unit) : 0;

    return load <= 0 ? 0 : u < 1 ? 1 : (int)u;
}

static void reach(struct dt_assign_subsets *s, int n, const double *llm)
{
    s->at[0] = (struct sum){.item = -1};
    for (int i = 1; i <= s->top; i++)
        s->at[i].item = -2; /* not reached */
    for (int k = 0; k < n; k++) {
        double load = llm[s->items[k]];
        int u = in_units(load, s->unit);

        for (int i = s->top - u; u > 0 && i >= 0; i--)
            if (s->at[i].item != -2 && s->at[i + u].item == -2)
                s->at[i + u] = (struct sum){.item = k, .from = i, .load = s->at[i].load + load};
    }
    for (int i = 0, last = 0; i <= s->top; i++) {
        last = s->at[i].item != -2 ? i : last;
        s->at[i].nearest = last;
    }
    for (int i = s->top, next = -1; i >= 0; i--) {
        s->at[i].after = next;
        next = s->at[i].item != -2 ? i : next;
    }
}

enum dt_status dt_assign_subsets_new(const int *items, int n, const double *llm,
                                     struct dt_arena *arena, struct dt_assign_subsets **out)
{
    struct dt_assign_subsets *s = DT_ARENA_NEW(arena, struct dt_assign_subsets, 1);
    double sum = 0;

    if (!s)
        return DT_ERR_NOMEM;
    for (int k = 0; k < n; k++)
        sum += llm[items[k]];
    s->items = items;
    s->unit = sum > 0 ? sum / UNITS : 1;
    for (int k = 0; k < n; k++)
        s->top += in_units(llm[items[k]], s->unit);
    s->at = dt_arena_alloc_raw(arena, (size_t)s->top + 1, sizeof(*s->at));
    if (!s->at)
        return DT_ERR_NOMEM;
    reach(s, n, llm);
    *out = s;
    return DT_OK;
}

double dt_assign_subsets_near(const struct dt_assign_subsets *s, double want, int *name)
{
    double u = want > 0 ? want / s->unit : 0;
    int at = u < s->top ? (int)u : s->top, below = s->at[at].nearest, above = s->at[at].after;

    *name = above >= 0 && above - u < u - below ? above : below;
    return s->at[*name].load;
}

int dt_assign_subsets_take(const struct dt_assign_subsets *s, int name, bool *deferred)
{
    int n = 0;

    for (int at = name; at > 0; at = s->at[at].from, n++)
        deferred[s->items[s->at[at].item]] = true;
    return n;
}

/* ---- bottleneck matching ---- */

struct matching {
    int n;
    const double *cost, *alone;
    double limit;
    int *of, *taken_by; /* column of each row, row of each column; -1: none */
    int *seen, stamp;   /* columns that this search has tried */
};

/* Finds a column for the row, moving others where that is what it takes.  Of several the last: callers have the heavier row
 * first and the lightest column last, and far apart is where most is evened out. */
static bool find_column(struct matching *m, int row)
{
    const double *cost = m->cost + (size_t)row * (size_t)m->n;

    for (int j = m->n - 1; j >= 0; j--)
        if (cost[j] <= m->limit && m->taken_by[j] < 0) {
            m->taken_by[j] = row;
            m->of[row] = j;
            return true;
        }
    for (int j = m->n - 1; j >= 0; j--) {
        if (cost[j] > m->limit || m->seen[j] == m->stamp)
            continue;
        m->seen[j] = m->stamp;
        if (find_column(m, m->taken_by[j])) {
            m->taken_by[j] = row;
            m->of[row] = j;
            return true;
        }
    }
    return false;
}

/* Does every row that is above the limit alone find a column? */
static bool feasible(struct matching *m, double limit)
{
    m->limit = limit;
    for (int j = 0; j < m->n; j++)
        m->of[j] = m->taken_by[j] = -1;
    for (int i = 0; i < m->n; i++) {
        m->stamp++;
        if (m->alone[i] > limit && !find_column(m, i))
            return false;
    }
    return true;
}

/* No limit below this one is feasible: every row is alone or with the best of its columns. */
static double lower_bound(const struct matching *m, double least)
{
    for (int i = 0; i < m->n; i++) {
        double best = m->alone[i];

        for (int j = 0; j < m->n; j++)
            best = fmin(best, m->cost[(size_t)i * (size_t)m->n + (size_t)j]);
        least = fmax(least, best);
    }
    return least;
}

/* Values between the two, not these themselves; returns their number. */
static size_t between(const double *values, size_t n, double low, double high, double *out)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++)
        if (values[i] > low && values[i] < high)
            out[k++] = values[i];
    return k;
}

static double middle_of_three(double a, double b, double c)
{
    return fmax(fmin(a, b), fmin(fmax(a, b), c));
}

enum dt_status dt_assign_bottleneck(int n, const double *cost, const double *alone, double least,
                                    struct dt_arena *arena, int *of, double *t)
{
    struct matching m = {.n = n, .cost = cost, .alone = alone, .of = of};
    size_t all = (size_t)n * (size_t)n + (size_t)n, k;
    double *values = DT_ARENA_NEW(arena, double, all + 1), low, high = least;

    m.taken_by = DT_ARENA_NEW(arena, int, n + 1);
    m.seen = DT_ARENA_NEW(arena, int, n + 1);
    if (!values || !m.taken_by || !m.seen)
        return DT_ERR_NOMEM;
    for (int i = 0; i < n; i++)
        high = fmax(high, alone[i]); /* nothing is deferred */
    low = lower_bound(&m, least);
    if (feasible(&m, low)) {
        *t = low;
        return DT_OK;
    }
    k = between(cost, (size_t)n * (size_t)n, low, high, values);
    k += between(alone, (size_t)n, low, high, values + k);
    while (
        k >
        0) { /* low is not feasible, high is; the least feasible one is high or among the values */
        double pivot = middle_of_three(values[0], values[k / 2], values[k - 1]);

        if (feasible(&m, pivot))
            high = pivot;
        else
            low = pivot;
        k = between(values, k, low, high, values);
    }
    feasible(&m, high);
    *t = high;
    return DT_OK;
}
