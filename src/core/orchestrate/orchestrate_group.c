/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which of a plan's broker groups stand for it where it is timed by some of its replicas.
 *
 * Groups meet at the end of the iteration alone, so a plan takes what its slowest group takes.  Where samples are dealt to groups
 * by their cost all of them are alike.  Where they are taken as they come some group has the largest ones, and by how much it is
 * slower than others is not alike for all plans: any group but the slowest compares plans by chance. */
#include "base/number.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>

/* Every sample's work in module m to its mean, by FLOPs: of t tokens a t + b t^2, exact for a transformer and near enough for a
 * U-Net.  NULL: out of memory, and t->nomem. */
static const double *load_of(struct dt_orch_table *t, int m)
{
    const struct dt_module *mod = &t->in->model->modules[m];
    int64_t n = t->in->policy.global_batch;
    struct dt_work mean, more;
    double flops, square, sum = 0;

    if (t->load[m])
        return t->load[m];
    t->load[m] = DT_ARENA_NEW(&t->arena, double, n);
    if (!t->load[m]) {
        t->nomem = true;
        return NULL;
    }
    dt_search_mean_work(t->in, m, &mean);
    if (mean.tokens < 1)
        return t->load[m]; /* it has nothing to do */
    more = mean;
    more.tokens_sq *= 2;
    flops = dt_module_flops(mod, &mean);
    square = (dt_module_flops(mod, &more) - flops) / (double)mean.tokens_sq;
    for (int64_t i = 0; i < n; i++) {
        struct dt_work w;

        dt_sample_work(t->in->samples, i, mod, &w);
        t->load[m][i] =
            (flops - square * (double)mean.tokens_sq) / (double)mean.tokens * (double)w.tokens +
            square * (double)w.tokens_sq;
        sum += t->load[m][i];
    }
    for (int64_t i = 0; i < n && sum > 0; i++)
        t->load[m][i] *= (double)n / sum;
    return t->load[m];
}

static int groups_of(const struct dt_plan *p)
{
    int n = 0;

    for (int m = 0; m < p->n_modules; m++)
        n = dt_number_gcd(p->modules[m].layout.dp, n);
    return n;
}

struct dealt { /* how a module's replicas take samples */
    const double *load;
    double stage_s; /* of a mean sample in a stage */
    int dp;
    bool together; /* the replicas of a group share out its images */
    bool guest;
};

static bool look_at(struct dt_orch_table *t, const struct dt_plan *p, int m, struct dealt *d)
{
    const int llm = t->in->model->llm;
    const struct dt_plan_layout *l = &p->modules[m].layout;
    const struct dt_orch_times *x = dt_orch_plan_times(t, p, m);

    *d = (struct dealt){
        .dp = l->dp, .together = dt_plan_window(p, llm, m) > 0, .guest = dt_plan_host(p, m) != m};
    if (!x || (!d->together && l->dp > dt_plan_slot_samples(p, llm)))
        return false;
    d->stage_s = x->sample_s / l->pp;
    d->load = load_of(t, m);
    return d->load != NULL;
}

/* What the slowest of a group's replicas has to do of samples [from, from + n) of the batch, the group's of a slot. */
static double slowest_replica(const struct dealt *d, int groups, int64_t from, int64_t n)
{
    int replicas = d->dp / groups;
    double most = 0, all = 0;

    for (int r = 0; r < replicas; r++) {
        double sum = 0;

        for (int64_t i = r * n / replicas; i < (r + 1) * n / replicas; i++)
            sum += d->load[from + i];
        most = fmax(most, sum);
        all += sum;
    }
    return d->stage_s * (d->together ? all / replicas : most);
}

/* A group's time, near enough: of each slot, the module that takes longest; guests take turns with the LLM. */
static double group_s(const struct dt_plan *p, const struct dealt *d, int llm, int groups, int g)
{
    int64_t slot = dt_plan_slot_samples(p, llm), slots = dt_plan_slots(p, llm), n = slot / groups;
    double sum = 0;

    for (int64_t k = 0; k < slots; k++) {
        double host = 0, most = 0;

        for (int m = 0; m < p->n_modules; m++) {
            double s = slowest_replica(&d[m], groups, k * slot + g * n, n);

            if (m == llm || d[m].guest)
                host += s;
            else
                most = fmax(most, s);
        }
        sum += fmax(host, most);
    }
    return sum;
}

void dt_orch_slowest_groups(struct dt_orch_table *t, const struct dt_plan *p, struct dt_plan *part)
{
    const int llm = t->in->model->llm;
    struct dealt d[DT_MAX_MODULES];
    int groups = groups_of(p), kept = groups_of(part), slowest = 0;
    double most = 0;

    if (p->policy.intra_reorder || p->policy.batch_reorder ||
        p->policy.assignment != DT_ASSIGNMENT_SLOTS)
        return;
    for (int m = 0; m < p->n_modules; m++)
        if (!look_at(t, p, m, &d[m]))
            return;
    for (int g = 0; g < groups; g++) {
        double s = group_s(p, d, llm, groups, g);

        if (s > most) {
            most = s;
            slowest = g;
        }
    }
    part->first_group = 1 + (slowest < groups - kept ? slowest : groups - kept);
}

/* ---- where it lies ---- */

/* On the first GPUs a guest that does not begin where its host does stays on the same stages. */
enum dt_status dt_orch_place_share(const struct dt_plan *p, const struct dt_cluster *cluster,
                                   struct dt_error *err, struct dt_plan *part)
{
    if (!dt_plan_shares(p)) {
        part->in_place = groups_of(part);
        return DT_OK;
    }
    dt_plan_unpin(part);
    DT_TRY(dt_plan_place(part, cluster, err));
    for (int m = 0; m < p->n_modules; m++) {
        int host = dt_plan_host(p, m);
        const struct dt_plan_layout *all = &p->modules[host].layout;
        int64_t from = p->modules[m].layout.first_gpu - all->first_gpu;

        if (host != m && p->modules[m].pinned)
            part->modules[m].layout.first_gpu =
                part->modules[host].layout.first_gpu +
                (int)(from * part->modules[host].layout.dp / all->dp);
    }
    return DT_OK;
}
