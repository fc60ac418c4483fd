/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Has the stream settled?  The same batches come over and over, and a pass over them is a function of its state: when each core
 * and link is free and when the last iterations began, all from the begin of the next iteration on.  (Cores of a group are alike,
 * and what is free before the next batch may be begun is as good as free then.)  So passes repeat for ever
 *
 *   - when a state comes again, after one pass or several (Brent 1980: the state is compared with a mark, which moves up
 *     whenever twice as many passes have gone by);
 *   - when no input was waited for since the mark, and nothing in the state is later than it was there.  Each piece is then made no
 *     later than before: a queue of several cores, first come, first served, is monotone in when they are free (Kiefer and
 *     Wolfowitz 1955), and so is the end of all that goes over a link.  So all input is there again, and so on.
 *
 * That releases repeat says little: behind input that nobody waits for yet, a queue may grow by a little in each pass, and be
 * waited for after hundreds.  But any state may be where training began, so a drift that has not shown for a window of passes
 * is carried on by many windows at once; where that goes too far the next iteration waits, and it is back. */
#include "core/schedule/supply_parts.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_AHEAD = 8, MORE_AHEAD = 8 };

static size_t n_cores(const struct dt_sched_stream *x)
{
    return (size_t)x->n_groups * (size_t)x->cores_each;
}
static size_t n_state(const struct dt_sched_stream *x)
{
    return n_cores(x) + (size_t)x->n_nodes + (size_t)x->s->prefetch;
}

static int by_value(const void *va, const void *vb)
{
    const int64_t *a = va, *b = vb;

    return *a < *b ? -1 : *a > *b;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The state now: cores of each group in order, links, begins of iterations. */
static void look(const struct dt_sched_stream *x, int64_t *state)
{
    int64_t start = dt_sched_stream_start(x);
    size_t cores = n_cores(x), each = (size_t)x->cores_each;

    for (size_t k = 0; k < cores; k++)
        state[k] = later(x->core[k].ns, start) - x->now_ns;
    for (size_t k = 0; k < cores; k += each)
        qsort(state + k, each, sizeof *state, by_value);
    state += cores;
    for (int k = 0; k < x->n_nodes; k++)
        *state++ = later(x->link_ns[k], start) - x->now_ns;
    for (int64_t k = x->t - x->s->prefetch; k < x->t; k++)
        *state++ = (k < 0 ? 0 : x->begin_ns[k % dt_sched_stream_ring(x)]) - x->now_ns;
}

static bool same_begins(const struct dt_sched_stream *x, const int64_t *a, const int64_t *b)
{
    size_t first = n_cores(x) + (size_t)x->n_nodes;

    return memcmp(a + first, b + first, (size_t)x->s->prefetch * sizeof *a) == 0;
}

static bool none_later(const struct dt_sched_stream *x, const int64_t *mark, const int64_t *now)
{
    for (size_t k = 0; k < n_state(x); k++)
        if (now[k] > mark[k])
            return false;
    return true;
}

/* ---- drifts ---- */

/* So much later, but no later than where the next iteration certainly waits. */
static int64_t shifted(const struct dt_sched_stream *x, int64_t ns, int64_t by)
{
    int64_t most = later(ns, x->now_ns + x->settling.longest_ns);

    ns = later(ns, dt_sched_stream_start(x)) + by;
    return later(ns < most ? ns : most, dt_sched_stream_start(x));
}

/* A drift of n things together, over so many windows; more than any iteration lasts is enough. */
static int64_t mean_drift(int64_t sum, size_t n, int64_t windows)
{
    double ns = (double)sum / (double)n * (double)windows;

    return (int64_t)fmax(-(double)DT_TIME_MAX_NS, fmin((double)DT_TIME_MAX_NS, ns));
}

/* By that many windows like the last one.  Of a group the cores' mean: among themselves they only change places. */
static void carry_on(struct dt_sched_stream *x, const int64_t *now, int64_t windows)
{
    const int64_t *mark = x->settling.mark;
    size_t each = (size_t)x->cores_each;

    for (size_t k = 0; k < n_cores(x); k += each) {
        int64_t sum = 0;

        for (size_t i = k; i < k + each; i++)
            sum += now[i] - mark[i];
        for (size_t i = k; i < k + each; i++)
            x->core[i].ns = shifted(x, x->core[i].ns, mean_drift(sum, each, windows));
    }
    for (int k = 0; k < x->n_nodes; k++) {
        size_t i = n_cores(x) + (size_t)k;

        x->link_ns[k] = shifted(x, x->link_ns[k], mean_drift(now[i] - mark[i], 1, windows));
    }
}

/* ---- windows ---- */

static void begin_window(struct dt_sched_stream *x, int passes)
{
    struct dt_sched_settling *w = &x->settling;

    look(x, w->mark);
    w->passes = 0;
    w->window = passes;
    w->there = w->calm = true;
    w->longest_ns = 0;
}

static void end_window(struct dt_sched_stream *x, const int64_t *now)
{
    struct dt_sched_settling *w = &x->settling;

    if (w->window > 1 && w->calm && same_begins(x, w->mark, now)) {
        carry_on(x, now, w->ahead);
        w->ahead *= MORE_AHEAD;
    }
    begin_window(x, 2 * w->window);
}

void dt_sched_stream_note(struct dt_sched_stream *x, int64_t iteration_ns)
{
    x->settling.times = dt_hash_word(x->settling.times, (uint64_t)iteration_ns);
    x->settling.longest_ns = later(x->settling.longest_ns, iteration_ns);
}

static void end_pass(struct dt_sched_settling *w)
{
    if (w->passes++ == 0)
        w->first_times = w->times;
    w->calm &= w->times == w->first_times;
    w->times = DT_HASH_START;
}

enum dt_status dt_sched_stream_settled(struct dt_sched_stream *x, struct dt_error *err, bool *yes)
{
    struct dt_sched_settling *w = &x->settling;
    bool first = !w->mark;
    int64_t *now;

    if (first) /* the mark, and room for the state */
        w->mark = dt_malloc(2 * (n_state(x) + 1) * sizeof *w->mark);
    if (!w->mark)
        return dt_error_nomem(err, "the state of preprocessing");
    *yes = false;
    if (first) {
        w->ahead = FIRST_AHEAD;
        w->times = DT_HASH_START;
        begin_window(x, 1);
        return DT_OK;
    }
    now = w->mark + n_state(x) + 1;
    look(x, now);
    end_pass(w);
    *yes = memcmp(now, w->mark, n_state(x) * sizeof *now) == 0 ||
           (w->there && same_begins(x, w->mark, now) && none_later(x, w->mark, now));
    if (!*yes && w->passes == w->window)
        end_window(x, now);
    return DT_OK;
}
