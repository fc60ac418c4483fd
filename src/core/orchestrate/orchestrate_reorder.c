/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which reordering of samples the best plan takes.
 *
 * Reordering can lose: dealing the samples of a batch to replicas by their cost evens out what the replicas do, but puts
 * samples of like cost into the same slot, and an order of microbatches that fits one replica's encoder may starve the
 * others that share it.  So the plan's timeline decides, over several global batches.  What suits one plan does not suit
 * another: the search compares all in one way, so those that come near the best are compared once more, each in its own. */
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <string.h>

enum { BATCHES_MIN = 2, BATCHES_MAX = 4 };
/* Ways this close are equally fast; the one that reorders less is better. */
#define TIE 1e-4
/* Plans this close are, as orchestrate_rank.c has it. */
#define PLANS_TIE 1e-3
/* A share of the replicas tells ways no better apart (doc/planner.md, 8: measured on MLLM-72B). */
#define SHARE_TIE 5e-3

const char *const dt_orch_reorder_names[DT_REORDER_N + 1] = {
    [DT_REORDER_NONE] = "none",
    [DT_REORDER_INTER] = "inter",
    [DT_REORDER_INTRA] = "intra",
    [DT_REORDER_BOTH] = "both",
};

int dt_orch_way_of(const struct dt_plan_policy *y)
{
    return y->inter_reorder * DT_REORDER_INTER + y->intra_reorder * DT_REORDER_INTRA;
}

void dt_orch_set_way(struct dt_plan_policy *y, int way)
{
    y->inter_reorder = way & DT_REORDER_INTER;
    y->intra_reorder = way & DT_REORDER_INTRA;
}

int dt_orch_distinct_batches(const struct dt_search_input *in, int most)
{
    int64_t at = 0;
    int n = 0;

    do {
        at = (at + in->policy.global_batch) % in->samples->n;
        n++;
    } while (at != 0 && n < most);
    return n;
}

/* How many global batches each of so many ways is timed with.  A quick search takes one where no share of the replicas stands
 * for a long program: all of them even out what differs between batches. */
static int batches_of(const struct dt_orch_effort *effort, double ops, int ways)
{
    int least = effort->most_ops > 0 && ops > effort->most_ops ? 1 : BATCHES_MIN;

    return (int)fmax(least, fmin(BATCHES_MAX, effort->reorder_ops / (ops * ways)));
}

/* What stands for the plan: the plan, or where its program is long as many of its broker groups (*share) as plans are ranked
 * by.  More of them tell the ways no better apart, as all have them in the same place. */
static enum dt_status stand_in(const struct dt_search_input *in, const struct dt_plan *p,
                               struct dt_error *err, struct dt_plan *out, bool *share)
{
    const struct dt_orch_effort *e = dt_orch_effort_of(in);
    int llm = in->model->llm;

    *share = dt_orch_plan_ops(p, llm) > e->reorder_program &&
             dt_orch_plan_share(p, llm, fmin(e->reorder_program, e->rank_ops), out);
    if (!*share) {
        *out = *p;
        return DT_OK;
    }
    return dt_orch_place_share(p, in->cluster, err, out);
}

/* Mean over the batches; INFINITY where the microbatches of one do not fit.  *first_s and *mem_bytes are the first one's, as
 * all else that is said of a plan. */
static enum dt_status time_way(const struct dt_search_input *in, const struct dt_plan *p,
                               const struct dt_plan *run, int batches, struct dt_error *err,
                               double *mean_s, double *first_s, double *mem_bytes)
{
    double sum = 0, bytes = 0;

    *mem_bytes = 0;
    for (int b = 0; b < batches; b++) {
        double s = INFINITY;
        struct dt_error why;
        enum dt_status st = dt_orch_run_timeline_s(in, p, run, DT_ORCH_EXACT, HUGE_VAL, HUGE_VAL,
                                                   b * p->policy.global_batch, &why, &s, &bytes);

        if (st != DT_OK && st != DT_ERR_INFEASIBLE)
            return dt_error_pass(err, &why);
        sum += s;
        *first_s = b == 0 ? s : *first_s;
        *mem_bytes = b == 0 ? bytes : *mem_bytes;
    }
    *mean_s = sum / batches;
    return DT_OK;
}

/* The plan in that way.  Its time, `first_s` and `bytes` of what stood for it, is that of all replicas where these were timed
 * before; should memory not hold their microbatches this way, or all of them take longer than as it was, the plan stays so. */
static enum dt_status take_way(const struct dt_search_input *in, struct dt_plan *p, int way,
                               bool share, double first_s, double bytes, struct dt_error *err)
{
    struct dt_plan other = *p;

    dt_orch_set_way(&other.policy, way);
    if (share && in->opt.effort ==
                     DT_EFFORT_QUICK) { /* of the other replicas it has what is to be expected */
        bytes = fmax(other.predicted.mem_bytes_max, bytes);
    } else if (share) {
        struct dt_error why;
        enum dt_status st = dt_orch_plan_timeline_s(in, &other, 0, &why, &first_s, &bytes);

        if (st == DT_ERR_INFEASIBLE ||
            (st == DT_OK && p->predicted.timeline_s > 0 && first_s > p->predicted.timeline_s))
            return DT_OK;
        if (st != DT_OK)
            return dt_error_pass(err, &why);
    }
    other.predicted.timeline_s = first_s;
    other.predicted.mem_bytes_max = bytes;
    *p = other;
    return DT_OK;
}

enum dt_status dt_orch_choose_reorder(const struct dt_search_input *in, struct dt_plan *p,
                                      struct dt_error *err, struct dt_orch_reorder *out)
{
    struct dt_orch_reorder r = {.batches = 0};
    double first[DT_REORDER_N] = {0}, bytes[DT_REORDER_N] = {0}, best = INFINITY, ops;
    bool intra = in->opt.free_intra && in->policy.intra_reorder;
    bool inter = in->opt.free_inter && in->policy.inter_reorder;
    int stated = dt_orch_way_of(&p->policy);
    struct dt_plan run;

    *out = r;
    if (!in->opt.rank || p->policy.batch_reorder || (!intra && !inter))
        return DT_OK;
    if (p->n_modules ==
        1) { /* samples are sequences of one length, and nobody around has more to do for some */
        dt_orch_set_way(&p->policy,
                        stated & ~(intra * DT_REORDER_INTRA + inter * DT_REORDER_INTER));
        return DT_OK;
    }
    DT_TRY(stand_in(in, p, err, &run, &r.share));
    ops = dt_orch_plan_ops(&run, in->model->llm);
    r.batches = batches_of(dt_orch_effort_of(in), ops, intra && inter ? 4 : 2);
    r.batches = dt_orch_distinct_batches(in, r.batches);
    for (int way = 0; way < DT_REORDER_N; way++) {
        r.mean_s[way] = NAN;
        if ((!intra && (way ^ stated) & DT_REORDER_INTRA) ||
            (!inter && (way ^ stated) & DT_REORDER_INTER))
            continue;
        dt_orch_set_way(&run.policy, way);
        DT_TRY(time_way(in, p, &run, r.batches, err, &r.mean_s[way], &first[way], &bytes[way]));
        best = fmin(best, r.mean_s[way]);
    }
    if (isinf(best)) /* what was ranked fits its first batch; nothing here fits all of them */
        return DT_OK;
    while (!(r.mean_s[r.choice] <= best * (1 + TIE)))
        r.choice++;
    if (r.share && r.mean_s[stated] <= best * (1 + SHARE_TIE))
        r.choice = stated;
    if (r.choice != stated || !r.share) /* a share says nothing new of the plan as it stands */
        DT_TRY(take_way(in, p, r.choice, r.share, first[r.choice], bytes[r.choice], err));
    r.choice = dt_orch_way_of(&p->policy);
    *out = r;
    return DT_OK;
}

/* Ops that choosing the plan's way takes. */
static double cost_of(const struct dt_search_input *in, const struct dt_plan *p, int batches)
{
    bool intra = in->opt.free_intra && in->policy.intra_reorder;
    bool inter = in->opt.free_inter && in->policy.inter_reorder;

    return dt_orch_plan_ops(p, in->model->llm) * (intra && inter ? 4 : 2) * batches;
}

/* The way of one more plan, which becomes the best one if it is faster in it than the best is in its own.  *found: it is. */
static enum dt_status try_plan(const struct dt_search_input *in, struct dt_plan *p,
                               struct dt_search_result *r, struct dt_error *err, bool *found)
{
    struct dt_orch_reorder how;

    DT_TRY(dt_orch_choose_reorder(in, p, err, &how));
    *found = how.batches == r->reorder.batches && !how.share &&
             how.mean_s[how.choice] < r->reorder.mean_s[r->reorder.choice] * (1 - PLANS_TIE);
    if (*found)
        r->reorder = how;
    return DT_OK;
}

/* Those beside the list that descents came by. */
static enum dt_status try_near(struct dt_orch_table *t, double limit, double *spent,
                               struct dt_search_result *r, struct dt_error *err)
{
    for (int i = 0; i < t->n_near; i++) {
        struct dt_plan p = t->near[i];
        bool found;

        if (p.predicted.timeline_s > limit || dt_orch_plan_listed(r->plans, r->n, &p))
            continue;
        *spent += cost_of(t->in, &p, r->reorder.batches);
        if (*spent > dt_orch_effort_of(t->in)->reorder_ops)
            break;
        DT_TRY(try_plan(t->in, &p, r, err, &found));
        if (found)
            r->plans[0] = p; /* they are alike */
    }
    return DT_OK;
}

enum dt_status dt_orch_reorder_best(struct dt_orch_table *t, struct dt_search_result *r,
                                    struct dt_error *err)
{
    const struct dt_search_input *in = t->in;
    const struct dt_orch_effort *e = dt_orch_effort_of(in);
    double limit = r->plans[0].predicted.timeline_s * (1 + e->close), spent;

    DT_TRY(dt_orch_choose_reorder(in, &r->plans[0], err, &r->reorder));
    if (r->reorder.batches == 0 || r->reorder.share || r->n_classes > 0 ||
        in->opt.effort == DT_EFFORT_QUICK)
        return DT_OK;
    spent = cost_of(in, &r->plans[0], r->reorder.batches);
    DT_TRY(try_near(t, limit, &spent, r, err));
    for (int i = 1; i < r->n && r->plans[i].predicted.timeline_s > 0; i++) {
        struct dt_plan p = r->plans[i];
        bool found;

        spent += cost_of(in, &p, r->reorder.batches);
        if (p.predicted.timeline_s > limit || spent > e->reorder_ops)
            break;
        DT_TRY(try_plan(in, &p, r, err, &found));
        if (!found)
            continue;
        memmove(r->plans + 1, r->plans, (size_t)i * sizeof(p));
        r->plans[0] = p;
    }
    return DT_OK;
}
