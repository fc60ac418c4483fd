/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which way of ordering suits a batch depends on its samples: where they are alike reordering gains less than it costs to
 * put samples of equal size into one slot, and where one replica has all of the large images it saves most of what is waited for.  So
 * each batch is tried in all of them. */
#include "core/schedule/assign_choose.h"

#include "base/mem.h"
#include "core/cost/memory.h"
#include "core/schedule/schedule.h"
#include "core/schedule/timeline.h"

#include <math.h>

const char *const dt_assign_way_names[DT_WAY_N + 1] = {
#define DT_X(name, text) [DT_WAY_##name] = text,
    DT_ASSIGN_WAYS(DT_X)
#undef DT_X
};

void dt_assign_way_plan(const struct dt_plan *p, enum dt_assign_way way, struct dt_plan *out)
{
    *out = *p;
    out->policy.batch_reorder = false;
    out->policy.assignment = way == DT_WAY_ENTRAIN ? DT_ASSIGNMENT_ENTRAIN : DT_ASSIGNMENT_SLOTS;
    out->policy.intra_reorder = way == DT_WAY_INTRA || way == DT_WAY_BOTH;
    out->policy.inter_reorder = way == DT_WAY_INTER || way == DT_WAY_BOTH;
}

static enum dt_assign_way stated(const struct dt_plan_policy *y)
{
    if (y->assignment == DT_ASSIGNMENT_ENTRAIN)
        return DT_WAY_ENTRAIN;
    if (y->intra_reorder)
        return y->inter_reorder ? DT_WAY_BOTH : DT_WAY_INTRA;
    return y->inter_reorder ? DT_WAY_INTER : DT_WAY_NONE;
}

/* Does each GPU hold these microbatches? */
static enum dt_status check_memory(const struct dt_plan *p, const struct dt_model *m,
                                   const struct dt_cluster *cluster, const struct dt_assignment *a,
                                   struct dt_error *err)
{
    struct dt_work work[DT_MAX_MODULES];
    struct dt_plan *ahead;
    double bytes;
    enum dt_status st;

    for (int i = 0; i < a->n_modules; i++)
        work[i] = dt_assignment_charged(p, a, i);
    DT_TRY(dt_sched_ahead(p, m, cluster, a, err, &ahead));
    st = dt_memory_check(ahead ? ahead : p, m, cluster, work, &bytes, err);
    dt_free(ahead);
    return st;
}

/* Of its program, nearly: a forward and a backward of each microbatch on every stage, and what takes it from one to the next
 * and back. */
static double count_ops(const struct dt_plan *p, const struct dt_assignment *a)
{
    enum { OPS = 6 };
    double n = 0;

    for (int i = 0; i < a->n_modules; i++) {
        const struct dt_plan_layout *l = &p->modules[i].layout;

        n += (double)OPS * l->pp * l->vpp * a->m[i].mb_first[a->m[i].n_replicas];
    }
    return n;
}

/* Of the program that would run, on the timeline without contention. */
static enum dt_status time_program(const struct dt_plan *p, const struct dt_model *m,
                                   const struct dt_cluster *cluster, struct dt_cost *cost,
                                   const struct dt_assignment *a, struct dt_error *err, int64_t *ns)
{
    struct dt_durations d = {0};
    struct dt_program *program;
    enum dt_status st;

    DT_TRY(dt_sched_compile(p, m, cluster, a, cost, err, &program));
    st = dt_durations_compute(program, m, cluster, cost, false, err, &d);
    if (st == DT_OK)
        st = dt_timeline_makespan(program, NULL, d.ns, err, ns);
    dt_durations_free(&d);
    dt_program_free(program);
    return st;
}

/* One way: *a NULL where the plan has it not or memory does not hold it. */
static enum dt_status try_way(const struct dt_plan *p, const struct dt_model *m,
                              const struct dt_cluster *cluster, struct dt_cost *cost,
                              const struct dt_samples *s, int64_t first, struct dt_error *err,
                              struct dt_assignment **a, int64_t *ns)
{
    struct dt_error why;
    enum dt_status st;

    *a = NULL;
    *ns = INT64_MAX;
    if (p->policy.assignment == DT_ASSIGNMENT_ENTRAIN && dt_plan_check_entrain(p, m, NULL) != DT_OK)
        return DT_OK;
    DT_TRY(dt_assign(p, m, cost, s, first, err, a));
    st = check_memory(p, m, cluster, *a, &why);
    if (st == DT_OK)
        st = time_program(p, m, cluster, cost, *a, &why, ns);
    if (st == DT_OK)
        return DT_OK;
    dt_assign_free(*a);
    *a = NULL;
    *ns = INT64_MAX;
    return st == DT_ERR_INFEASIBLE ? DT_OK : dt_error_pass(err, &why);
}

static enum dt_status fastest(const struct dt_plan *p, const struct dt_model *m,
                              const struct dt_cluster *cluster, struct dt_cost *cost,
                              const struct dt_samples *s, int64_t first, struct dt_error *err,
                              struct dt_assignment **best, struct dt_assign_choice *o)
{
    double left = p->policy.reorder_budget_s / DT_ASSIGN_OP_S;

    *best = NULL;
    for (int k = 0; k < DT_WAY_N && (!*best || left > 0); k++) {
        struct dt_plan way;
        struct dt_assignment *a;
        enum dt_status st;

        dt_assign_way_plan(p, (enum dt_assign_way)k, &way);
        st = try_way(&way, m, cluster, cost, s, first, err, &a, &o->ns[k]);
        if (st != DT_OK) {
            dt_assign_free(*best);
            return st;
        }
        if (!a)
            continue;
        left -= count_ops(p, a);
        if (*best && o->ns[k] >= o->ns[o->way]) {
            dt_assign_free(a);
            continue;
        }
        dt_assign_free(*best);
        *best = a;
        o->way = (enum dt_assign_way)k;
    }
    return DT_OK;
}

enum dt_status dt_assign_choose(const struct dt_plan *p, const struct dt_model *m,
                                const struct dt_cluster *cluster, struct dt_cost *cost,
                                const struct dt_samples *s, int64_t first_sample,
                                struct dt_error *err, struct dt_assignment **a,
                                struct dt_assign_choice *out)
{
    struct dt_assign_choice o = {.by_batch = p->policy.batch_reorder, .way = stated(&p->policy)};

    *a = NULL;
    for (int k = 0; k < DT_WAY_N; k++)
        o.ns[k] = INT64_MAX;
    if (o.by_batch)
        DT_TRY(fastest(p, m, cluster, cost, s, first_sample, err, a, &o));
    if (!*a) /* stated; or memory holds the batch in no way, as whoever checks it will say */
        DT_TRY(dt_assign(p, m, cost, s, first_sample, err, a));
    if (out)
        *out = o;
    return DT_OK;
}
