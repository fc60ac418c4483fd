/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of each rank: what it allocated, beside what the memory model charges its lanes. */
#include "exec/train/train_memory.h"

#include "base/mem.h"
#include "core/cost/memory.h"
#include "exec/program/placement.h"

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void dt_train_memory_see(struct dt_train_memory_seen *seen, const struct dt_program *p)
{
    for (int m = 0; m < p->plan->n_modules; m++) {
        const struct dt_assignment_module *a = &p->assignment->m[m];

        for (uint32_t i = 0; i < a->mb_first[a->n_replicas]; i++) {
            struct dt_work w = dt_assignment_held(a, i);

            dt_work_most(&seen->most[m], &w);
        }
        for (int r = 0; r < a->n_replicas; r++)
            seen->n[m] = larger(seen->n[m], dt_assignment_positions(a, r));
    }
}

/* ZeRO's pieces are of ranks, where the model (a GPU per replica) has them of replicas: a rank's
 * first replica holds its piece, and what it gathers, for the others there; on one rank alone
 * nothing is cut.  Returns by what the optimizer's share differs; *gathers: the lane does. */
static double share_of(const struct dt_setup *s, const struct dt_placement *place,
                       const struct dt_lane *l, bool *gathers)
{
    const struct dt_plan_module *mp = &s->plan.modules[l->module];
    int copies = (int)dt_plan_layout_copies(&mp->layout), ranks = 0, last = -1, group;
    int own = dt_placement_rank(place, l->module, l->replica, l->stage, 0);
    bool leads = true;

    *gathers = true;
    if (mp->zero == 0)
        return 1;
    for (int i = 0; i < copies; i++) { /* replicas of a rank follow each other */
        int cp = mp->layout.cp, r = i / cp;
        int rank = dt_placement_rank(place, l->module, r, l->stage, i % cp * mp->layout.tp);

        ranks += rank != last;
        leads &= rank != own || r >= l->replica;
        last = rank;
    }
    group = mp->zero_group > 0 ? mp->zero_group * ranks / copies : ranks;
    *gathers = group > 1 && leads;
    if (group > 1 && !leads)
        return 0;
    /* what a GPU keeps is of as many shards as there are GPUs in a group */
    return (double)dt_plan_shards(mp) / (group > 1 ? group : 1);
}

/* Of a lane: on the device, and in *host, which is beside it, on the host. */
static double total(const struct dt_setup *s, enum dt_memory_device kind,
                    const struct dt_placement *place, const struct dt_lane *l,
                    const struct dt_memory *c, double *host)
{
    bool gathers;
    double share = share_of(s, place, l, &gathers), all = c->total - c->logits_workspace;

    *host = (c->host - c->away_host) * share + c->away_host;
    all -= kind == DT_MEMORY_CPU ? c->host : 0;
    return all - c->optimizer + c->optimizer * share - (gathers ? 0 : c->wire);
}

static enum dt_memory_device kind_of(const struct dt_device *d)
{
    return d->info.id[0] ? DT_MEMORY_CARD : d->info.packs ? DT_MEMORY_CPU : DT_MEMORY_EXECUTOR;
}

/* Of a GPU with guests whose parameters leave it for a time: either they are there or all that their host holds. */
struct shared {
    double away, beside;
    int rank;
};

static struct shared *shared_new(const struct dt_program *p)
{
    uint32_t n = 0;

    for (int i = 0; i < p->n_lanes; i++)
        if (p->lanes[i].first_gpu + p->lanes[i].gpus > n)
            n = p->lanes[i].first_gpu + p->lanes[i].gpus;
    return dt_calloc((size_t)n + 1, sizeof(struct shared));
}

static void take_off(const struct dt_program *p, const struct shared *gpu,
                     struct dt_train_rank_memory *ranks)
{
    uint32_t seen = 0;

    for (int i = 0; i < p->n_lanes; i++)
        for (; seen < p->lanes[i].first_gpu + p->lanes[i].gpus; seen++) {
            const struct shared *g = &gpu[seen];

            ranks[g->rank].predicted_bytes -= (int64_t)(g->away < g->beside ? g->away : g->beside);
        }
}

/* Lanes of a rank add up; one scratch serves them all. */
static void predict(const struct dt_setup *s, const struct dt_train_memory_seen *seen,
                    const struct dt_program *p, const struct dt_placement *place, double *scratch,
                    struct shared *gpu, struct dt_train_rank_memory *ranks,
                    struct dt_train_lane_memory *lanes)
{
    for (int i = 0; i < p->n_lanes; i++) {
        const struct dt_lane *l = &p->lanes[i];
        struct dt_memory c;
        int64_t bytes;
        double host;

        dt_memory_stage_on(kind_of(s->device), &s->plan, s->job->model, &s->job->cluster, l->module,
                           l->stage, &seen->most[l->module], seen->n[l->module], &c);
        bytes = (int64_t)total(s, kind_of(s->device), place, l, &c, &host);
        lanes[i].rank = dt_placement_rank(place, l->module, l->replica, l->stage, 0);
        lanes[i].predicted_bytes = bytes;
        for (int t = 0; t < dt_plan_layout_lane_gpus(&s->plan.modules[l->module].layout); t++) {
            int r = dt_placement_rank(place, l->module, l->replica, l->stage, t);

            gpu[l->first_gpu + (uint32_t)t].away += c.away;
            gpu[l->first_gpu + (uint32_t)t].beside += c.beside;
            gpu[l->first_gpu + (uint32_t)t].rank = r;
            ranks[r].predicted_bytes += bytes;
            ranks[r].predicted_host_bytes += (int64_t)host;
            scratch[r] = c.logits_workspace > scratch[r] ? c.logits_workspace : scratch[r];
        }
    }
}

enum dt_status dt_train_predict_memory(const struct dt_setup *s,
                                       const struct dt_train_memory_seen *seen,
                                       const struct dt_program *p, int n_ranks,
                                       struct dt_error *err, struct dt_train_rank_memory *ranks,
                                       struct dt_train_lane_memory *lanes)
{
    double *scratch = dt_calloc((size_t)n_ranks, sizeof(*scratch));
    struct shared *gpu = shared_new(p);
    struct dt_placement place;
    enum dt_status st;

    if (!scratch || !gpu) {
        dt_free(scratch);
        dt_free(gpu);
        return dt_error_nomem(err, "ranks");
    }
    st = dt_placement_init(&place, &s->plan, n_ranks, err);
    if (st == DT_OK) {
        for (int r = 0; r < n_ranks; r++)
            ranks[r].predicted_bytes = ranks[r].predicted_host_bytes = 0;
        predict(s, seen, p, &place, scratch, gpu, ranks, lanes);
        take_off(p, gpu, ranks);
        for (int r = 0; r < n_ranks; r++)
            ranks[r].predicted_bytes += (int64_t)scratch[r];
        for (int r = 0; dt_plan_steps_on_host(&s->plan, s->job->model) && r < n_ranks; r++)
            ranks[r].predicted_host_bytes += (int64_t)DT_MEMORY_HOST_ROOM;
        dt_placement_free(&place);
    }
    dt_free(scratch);
    dt_free(gpu);
    return st;
}

void dt_train_memory_note(const struct dt_exec *x, const struct dt_program *p, int64_t *of_lane)
{
    for (int i = 0; i < p->n_lanes; i++) {
        const struct dt_lane *l = &p->lanes[i];

        of_lane[i] = larger(of_lane[i], dt_exec_lane_memory(x, l->module, l->replica, l->stage));
    }
}
