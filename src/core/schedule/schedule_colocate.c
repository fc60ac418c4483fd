/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Lanes that share GPUs take turns.
 *
 * Every lane keeps its own order; this pass merges the orders of the lanes of a GPU into one, by
 * running the program once.  A free GPU takes, of the compute ops that are ready, the first by a rule.
 * Each op then waits for the one before it on its GPUs, as an explicit dependency: simulator and
 * executor need not know what a GPU is.  The dependencies follow an order that has just been run, so
 * they close no cycle, and they only delay, so what a lane holds in flight stays within its bound.
 * A GPU with one lane gets none.
 *
 * Rules:
 *
 *     oldest    a backward first, then the lowest slot, then the upstream module, then the lower op
 *     longest   the op behind which most time passes to the end of the iteration, on the longest path
 *
 * Colocated plans (`colocated: true`) take "oldest" in turns of equal length, communication being over
 * at once.  Plans with guests are run with the durations of their ops, by both rules, and the run
 * that ends first gives the order ("oldest" unless the other is faster): "oldest" is right where all
 * modules meet on one GPU, but on the GPUs of a deep pipeline it runs a guest's backward as soon as it
 * can, before a forward of the host that the next stage waits for.  "Longest" wins most often and so goes
 * first: there is no other run where no turns could end much sooner, and one ends where what is behind an op shows
 * that it will take longer.
 *
 * With durations, an op that is first by the rule but finds some of its GPUs busy keeps the others for
 * itself: narrow guests would else take the GPUs of a wide lane in turn, and it would never run. */
#include "core/schedule/schedule_bubbles.h"

#include "base/mem.h"

#include <string.h>

/* Of the iteration, what bounds have to leave open for a second rule, unless a run of the program costs nothing: where it was less,
 * that rule gained 0.04 % in one of 378 runs (doc/performance.md). */
#define OPEN 0.02
enum { CHEAP = 4096 }; /* ops */

/* ---- what a run leaves ---- */

enum dt_status dt_sched_turns_new(const struct dt_program *p, bool silent, struct dt_error *err,
                                  struct dt_sched_turns *out)
{
    *out = (struct dt_sched_turns){.end_ns = INT64_MAX};
    out->order = dt_malloc(((size_t)p->n_ops + 1) * sizeof(*out->order));
    if (!silent)
        out->before_n = dt_calloc((size_t)p->n_ops + 1, sizeof(*out->before_n));
    if (out->order && (silent || out->before_n))
        return DT_OK;
    dt_sched_turns_free(out);
    return dt_error_nomem(err, "turns of colocated modules");
}

void dt_sched_turns_free(struct dt_sched_turns *t)
{
    dt_free(t->before);
    dt_free(t->before_n);
    dt_free(t->order);
    *t = (struct dt_sched_turns){.end_ns = INT64_MAX};
}

/* ---- writing the dependencies ---- */

/* Lists longer than an op's own three places are contiguous, so the table is written anew. */
static int write_deps(struct dt_program *p, const struct dt_sched_turns *t)
{
    uint32_t *old = p->deps, at = 0;
    uint32_t *deps = DT_ARENA_NEW(&p->arena, uint32_t, (size_t)p->n_deps + t->n + 1);

    if (!deps)
        return -1;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct dt_op *op = &p->ops[i];

        if (op->more_n > 0) {
            memcpy(deps + at, old + op->more_first, op->more_n * sizeof(*deps));
            op->more_first = at;
            at += op->more_n;
        }
        if (t->before_n[i] == 0)
            continue;
        if (op->more_n == 0)
            op->more_first = at;
        at += t->before_n[i]; /* room for all of them; what fits into dep[] is given back below */
    }
    for (uint32_t k = 0; k < t->n; k++) {
        struct dt_op *op = &p->ops[t->before[k][0]];
        uint32_t *free_dep = op->dep[1] == DT_NONE   ? &op->dep[1]
                             : op->dep[2] == DT_NONE ? &op->dep[2]
                                                     : &deps[op->more_first + op->more_n++];

        *free_dep = t->before[k][1];
    }
    p->deps = deps;
    p->n_deps = at;
    return 0;
}

/* ---- which order ---- */

/* Durations where there are no costs: turns of equal length, or a forward of 1 and a backward of 2. */
static int64_t *nominal_ns(struct dt_sched *s, const struct dt_program *p, bool equal)
{
    int64_t *ns = DT_ARENA_NEW(&s->arena, int64_t, (size_t)p->n_ops + 1);

    for (uint32_t i = 0; ns && i < p->n_ops; i++) {
        bool whole = p->ops[i].kind == DT_OP_BACKWARD && !equal;

        ns[i] = dt_op_resource(p->ops[i].kind) == DT_RES_COMPUTE ? 1 + whole : 0;
    }
    return ns;
}

/* Ranks of expert parallelism begin together in a run, so that none is taken from the others, but on a timeline they need not wait for
 * each other: what a run takes is no less than the makespan then. */
static bool binds_experts(const struct dt_sched *s)
{
    for (int m = 0; m < s->n_modules; m++)
        if (s->plan->modules[m].layout.ep > 1)
            return true;
    return false;
}

/* Is the time alone asked, and does a run tell it? */
static bool is_silent(const struct dt_sched *s)
{
    return s->makespan_only && !s->plan->colocated && s->cost && !binds_experts(s);
}

/* The turns of modules that all share all GPUs. */
static enum dt_status run_colocated(struct dt_sched_turns_runs *g, struct dt_error *err,
                                    struct dt_sched_turns *best)
{
    const struct dt_sched_turns_rule oldest = {.limit_ns = INT64_MAX};

    return dt_sched_turns_run(g, &oldest, err, best);
}

/* Do bounds leave the other rule so little to gain that its run is not worth its time? */
static bool is_near_bounds(const struct dt_sched_turns_runs *g, const struct dt_program *p,
                           int64_t end_ns)
{
    struct dt_sched_bubbles x;
    int64_t least;

    if (p->n_ops <= CHEAP || end_ns == INT64_MAX)
        return false;
    dt_sched_bubbles_bounds(g, &x);
    least = x.chain_ns > x.work_ns ? x.chain_ns : x.work_ns;
    return (double)end_ns <= (1 + OPEN) * (double)least;
}

/* The turns of the rule by which the run ends first. */
static enum dt_status run_rules(struct dt_sched_turns_runs *g, const struct dt_program *p,
                                struct dt_sched *s, bool binds, struct dt_error *err,
                                struct dt_sched_turns *best)
{
    int64_t limit_ns = s->limit_ns > 0 && !binds ? s->limit_ns : INT64_MAX;
    struct dt_sched_turns_rule rule = {
        .longest = true, .keeps = true, .silent = is_silent(s), .limit_ns = limit_ns};
    struct dt_sched_turns oldest;
    bool given_up;
    enum dt_status st;

    dt_sched_turns_find_behind(g);
    DT_TRY(dt_sched_turns_run(g, &rule, err, best));
    if (!binds && is_near_bounds(g, p, best->end_ns))
        return DT_OK;
    s->first_ns = !binds && dt_sched_turns_are_dense(g, best->end_ns) ? best->end_ns : 0;
    if (s->rough_ns > 0 && s->first_ns > s->rough_ns)
        return DT_OK;
    given_up = best->end_ns == INT64_MAX;
    rule.longest = false;
    rule.limit_ns = best->end_ns < limit_ns ? best->end_ns : limit_ns;
    DT_TRY(dt_sched_turns_new(p, rule.silent, err, &oldest));
    st = dt_sched_turns_run(g, &rule, err, &oldest);
    if (st == DT_OK && oldest.end_ns <= best->end_ns) {
        struct dt_sched_turns longest = *best;

        *best = oldest;
        oldest = longest;
        s->bubbles_left |=
            given_up; /* without a limit the first rule might have been near enough */
    }
    dt_sched_turns_free(&oldest);
    return st;
}

/* Guests' work into bubbles, and what is to be told of that. */
static enum dt_status fill_bubbles(struct dt_sched *s, struct dt_sched_turns_runs *g,
                                   const struct dt_program *p, struct dt_error *err,
                                   struct dt_sched_turns *t)
{
    size_t bytes = p->n_ops * sizeof(*t->order);
    uint32_t *before = s->tells ? dt_malloc(bytes + 1) : NULL;
    enum dt_status st = DT_OK;

    if (s->tells && !before)
        return dt_error_nomem(err, "turns of colocated modules");
    if (before)
        memcpy(before, t->order, bytes);
    if (!s->rules_alone && dt_sched_bubbles_matter(g, &s->bubbles))
        st = dt_sched_bubbles_fill(g, is_silent(s), err, t);
    s->bubbles.ns = t->end_ns;
    if (st == DT_OK && before)
        st = dt_sched_bubbles_explain(g, before, t, err, &s->bubbles);
    dt_free(before);
    return st;
}

static enum dt_status run_guests(struct dt_sched *s, struct dt_sched_turns_runs *g,
                                 const struct dt_program *p, bool binds, struct dt_error *err,
                                 struct dt_sched_turns *best)
{
    DT_TRY(run_rules(g, p, s, binds, err, best));
    if (!s->cost || best->end_ns == INT64_MAX)
        return DT_OK;
    dt_sched_bubbles_bounds(g, &s->bubbles);
    s->bubbles.rules_ns = best->end_ns;
    s->bubbles_left |= s->rules_alone && dt_sched_bubbles_matter(g, &s->bubbles);
    return fill_bubbles(s, g, p, err, best);
}

static enum dt_status find_turns(struct dt_sched *s, struct dt_sched_turns_runs *g,
                                 const struct dt_program *p, struct dt_error *err,
                                 struct dt_sched_turns *best)
{
    if (!g)
        return dt_error_nomem(err, "turns of colocated modules");
    return s->plan->colocated ? run_colocated(g, err, best)
                              : run_guests(s, g, p, binds_experts(s), err, best);
}

/* The dependencies of the turns into the program, and what their runs tell about it into s. */
static enum dt_status take_turns(struct dt_sched *s, struct dt_program *p, struct dt_sched_turns *t,
                                 struct dt_error *err)
{
    struct dt_durations d = {0};
    bool timed = !s->plan->colocated && s->cost, binds = binds_experts(s);
    struct dt_sched_turns_runs *g;
    const int64_t *ns;
    enum dt_status st;

    if (timed)
        DT_TRY(dt_sched_durations(s, p, err, &d));
    ns = timed ? d.ns : nominal_ns(s, p, s->plan->colocated);
    g = ns ? dt_sched_turns_prepare(s, p, ns) : NULL;
    if (is_silent(s)) /* nobody asks for them again: the passes into bubbles have their memory */
        dt_durations_free(&d);
    st = find_turns(s, g, p, err, t);
    if (st == DT_OK && timed &&
        !binds) /* what the turns make wait adds no more: every op began as soon as it could */
        s->makespan_ns = t->end_ns;
    if (st == DT_OK && !(timed && !binds && (s->makespan_only || t->end_ns == INT64_MAX)) &&
        write_deps(p, t) != 0)
        st = dt_error_nomem(err, "turns of colocated modules");
    if (st != DT_OK) {
        dt_durations_free(&d);
        return st;
    }
    s->dur = d;
    s->order = t->order;
    t->order = NULL;
    return DT_OK;
}

enum dt_status dt_sched_colocate(struct dt_sched *s, struct dt_program *p, struct dt_error *err)
{
    struct dt_sched_turns t;
    enum dt_status st;

    if (!dt_plan_shares(s->plan))
        return DT_OK;
    DT_TRY(dt_sched_turns_new(p, is_silent(s), err, &t));
    st = take_turns(s, p, &t, err);
    dt_sched_turns_free(&t);
    return st;
}
