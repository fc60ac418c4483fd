/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Assignment: what goes in (works and costs of the batch's samples) and what comes out (lists of
 * microbatches).  assign_slots.c, or assign_shift.c, decides in between.
 *
 *   slot k       | LLM replica 0 | LLM replica 1 | LLM replica 2 | LLM replica 3 |  S = DP_lm * M samples
 *   position j   |  0 .. M-1     |  M .. 2M-1    |  2M .. 3M-1   |  3M .. 4M-1   |
 *   encoder      |           replica 0           |           replica 1           |  DP_enc = 2
 *   brokers      |            group 0            |            group 1            |  gcd of all DP
 */
#include "core/schedule/assign_build.h"

#include "base/mem.h"
#include "base/number.h"

#include <limits.h>
#include <string.h>

/* ---- in ---- */

static enum dt_status measure(struct dt_assign_job *j, const struct dt_plan *p,
                              struct dt_error *err)
{
    const struct dt_plan_policy *pol = &p->policy;
    int64_t dp = p->modules[j->model->llm].layout.dp, size = dp * pol->microbatch;
    if (dp < 1 || pol->microbatch < 1 || pol->global_batch < 1 || pol->global_batch > INT_MAX / 8)
        return dt_error_set(err, DT_ERR_INPUT,
                            "assignment: the LLM's dp, the microbatch and the global batch must be "
                            "positive");
    if (pol->global_batch % size)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "global batch %lld is not a multiple of the LLM's dp %lld x microbatch %d",
            (long long)pol->global_batch, (long long)dp, pol->microbatch);
    j->batch = (int)pol->global_batch;
    j->slot_size = (int)size;
    j->slots = j->batch / j->slot_size;
    j->groups = (int)dp;
    for (int m = 0; m < j->model->n_modules; m++) {
        int d = p->modules[m].layout.dp;
        j->m[m].window = (int)dt_plan_window(p, j->model->llm, m);
        if (d < 1)
            return dt_error_set(err, DT_ERR_INPUT, "module %s: dp %d must be at least 1",
                                j->model->modules[m].name, d);
        j->m[m].dp = d;
        j->m[m].spread = d > j->slot_size && j->m[m].window == 0;
        j->groups = dt_number_gcd(j->groups, d);
    }
    j->group_size = j->slot_size / j->groups;
    for (int m = 0; m < j->model->n_modules; m++)
        j->m[m].share = j->m[m].dp / j->groups;
    return DT_OK;
}

/* Forward and backward FLOPs where no cost is at hand: one forward; one more for the gradients of
 * inputs and one for those of weights where they are computed. */
static void flops_of(const struct dt_assign_job *j, int m, const unsigned char *trained, bool above,
                     struct dt_cost_stage_ns *out)
{
    const struct dt_module *mod = &j->model->modules[m];
    bool any = false;
    for (int b = 0; b < mod->n_blocks && !any; b++)
        any = trained[b];
    for (int i = 0; i < j->batch; i++) {
        const struct dt_work *w = &j->m[m].work[i];
        double f = w->n > 0 ? dt_module_flops(mod, w) : 0;
        out[i] = (struct dt_cost_stage_ns){.fwd = f, .bwd = f * ((any || above) + any)};
    }
}

static enum dt_status read_samples(struct dt_assign_job *j, const struct dt_samples *s,
                                   struct dt_error *err)
{
    if (!s || s->n < 1 || j->first < 0)
        return dt_error_set(err, DT_ERR_INPUT, "assignment: no samples");
    for (int m = 0; m < j->model->n_modules; m++) {
        struct dt_work *w = DT_ARENA_NEW(j->scratch, struct dt_work, j->batch);
        if (!w)
            return dt_error_nomem(err, "assignment");
        for (int i = 0; i < j->batch; i++)
            dt_sample_work(s, dt_assign_sample(j, i), &j->model->modules[m], &w[i]);
        j->m[m].work = w;
    }
    return DT_OK;
}

static enum dt_status cost_samples(struct dt_assign_job *j, struct dt_error *err)
{
    struct dt_cost_stage_ns *t = DT_ARENA_NEW(j->scratch, struct dt_cost_stage_ns, j->batch);
    if (!t)
        return dt_error_nomem(err, "assignment");
    for (int m = 0; m < j->model->n_modules; m++) {
        struct dt_assign_module *am = &j->m[m];
        const struct dt_module *mod = &j->model->modules[m];
        struct dt_block_shard shard = dt_plan_shard(&j->plan->modules[m]);
        bool above = dt_plan_upstream_trained(j->plan, j->model, m, 0);
        unsigned char *trained = dt_arena_alloc(j->scratch, (size_t)mod->n_blocks + 1, 1);
        am->fwd = DT_ARENA_NEW(j->scratch, double, j->batch);
        am->bwd = DT_ARENA_NEW(j->scratch, double, j->batch);
        if (!trained || !am->fwd || !am->bwd)
            return dt_error_nomem(err, "assignment");
        dt_plan_trainable(j->plan, j->model, m, trained);
        if (!j->cost)
            flops_of(j, m, trained, above, t);
        else if (!dt_cost_stages_ns(j->cost, m, 0, mod->n_blocks, &shard, am->work,
                                    (size_t)j->batch, trained, above, t))
            return dt_error_nomem(err, "assignment");
        for (int i = 0; i < j->batch; i++) {
            am->fwd[i] = t[i].fwd;
            am->bwd[i] = t[i].bwd;
        }
    }
    return DT_OK;
}

/* ---- out ---- */

/* A microbatch for every (replica, slot). */
static void write_aligned(const struct dt_assign_job *j, int m, int64_t first,
                          struct dt_assignment_module *out)
{
    const struct dt_assign_module *am = &j->m[m];
    const int n = j->slots, size = j->slot_size;
    const int *replica = j->replica + (size_t)m * j->batch;
    for (int r = 0; r <= am->dp; r++)
        out->mb_first[r] = (uint32_t)(r * n);
    for (int k = 0; k < n; k++)
        for (int p = k * size; p < (k + 1) * size; p++)
            out->mb[replica[p] * n + k].n++;
    uint32_t at = 0;
    for (int b = 0; b < am->dp * n; b++) {
        out->mb[b].first = at;
        out->mb[b].slot = (uint32_t)(b % n);
        at += out->mb[b].n;
        out->mb[b].n = 0;
    }
    for (int k = 0; k < n; k++)
        for (int p = k * size; p < (k + 1) * size; p++) {
            int b = replica[p] * n + k;
            out->sample_work[out->mb[b].first + out->mb[b].n] = am->work[j->at[p]];
            out->samples[out->mb[b].first + out->mb[b].n++] = first + j->at[p];
            dt_work_add(&out->work[b], &am->work[j->at[p]]);
        }
}

/* More replicas than samples in a slot: one sample to a microbatch, replicas in turn. */
static void write_spread(const struct dt_assign_job *j, int m, int64_t first,
                         struct dt_assignment_module *out)
{
    const struct dt_assign_module *am = &j->m[m];
    uint32_t at = 0;
    for (int r = 0; r < am->dp; r++) {
        out->mb_first[r] = at;
        for (int p = r; p < j->batch; p += am->dp, at++) {
            out->mb[at] = (struct dt_microbatch){at, 1, (uint32_t)(p / j->slot_size)};
            out->samples[at] = first + j->at[p];
            out->work[at] = out->sample_work[at] = am->work[j->at[p]];
        }
    }
    out->mb_first[am->dp] = at;
}

static enum dt_status write_slots(const struct dt_assign_job *j, int64_t first,
                                  struct dt_error *err, struct dt_assignment *a)
{
    for (int m = 0; m < a->n_modules; m++) {
        struct dt_assignment_module *ma = &a->m[m];
        if (j->m[m].window > 0) {
            DT_TRY(dt_assign_items(j, m, err, a));
            continue;
        }
        size_t n = j->m[m].spread ? (size_t)j->batch : (size_t)j->m[m].dp * (size_t)j->slots;
        ma->n_replicas = j->m[m].dp;
        ma->mb_first = DT_ARENA_NEW(&a->arena, uint32_t, j->m[m].dp + 1);
        ma->mb = DT_ARENA_NEW(&a->arena, struct dt_microbatch, n);
        ma->work = DT_ARENA_NEW(&a->arena, struct dt_work, n);
        ma->samples = DT_ARENA_NEW(&a->arena, int64_t, j->batch);
        ma->sample_work = DT_ARENA_NEW(&a->arena, struct dt_work, j->batch);
        if (!ma->mb_first || !ma->mb || !ma->work || !ma->samples || !ma->sample_work)
            return dt_error_nomem(err, "assignment");
        if (j->m[m].spread)
            write_spread(j, m, first, ma);
        else
            write_aligned(j, m, first, ma);
    }
    return DT_OK;
}

static enum dt_status by_slots(struct dt_assign_job *j, int64_t first, struct dt_error *err,
                               struct dt_assignment *a)
{
    if (j->plan->policy.intra_reorder || j->plan->policy.inter_reorder)
        DT_TRY(cost_samples(j, err));
    DT_TRY(dt_assign_deal(j, err));
    DT_TRY(dt_assign_share(j, err));
    if (j->plan->policy.inter_reorder)
        DT_TRY(dt_assign_order(j, err));
    return write_slots(j, first, err, a);
}

static enum dt_status shifted(struct dt_assign_job *j, struct dt_error *err,
                              struct dt_assignment *a)
{
    DT_TRY(cost_samples(j, err));
    return dt_assign_shift(j, err, a);
}

static enum dt_status build(struct dt_assign_job *j, int64_t first, struct dt_error *err,
                            struct dt_assignment **out)
{
    struct dt_assignment *a = dt_calloc(1, sizeof(*a));
    enum dt_status st;

    if (!a)
        return dt_error_nomem(err, "assignment");
    a->n_modules = j->model->n_modules;
    a->first_sample = first;
    a->n_samples = j->batch;
    a->n_slots = j->slots;
    st = j->plan->policy.assignment == DT_ASSIGNMENT_ENTRAIN ? shifted(j, err, a)
                                                             : by_slots(j, first, err, a);
    if (st == DT_OK)
        *out = a;
    else
        dt_assign_free(a);
    return st;
}

enum dt_status dt_assign(const struct dt_plan *p, const struct dt_model *m, struct dt_cost *cost,
                         const struct dt_samples *s, int64_t first_sample, struct dt_error *err,
                         struct dt_assignment **out)
{
    struct dt_arena scratch = {0};
    struct dt_assign_job j = {
        .plan = p, .model = m, .set = s, .first = first_sample, .cost = cost, .scratch = &scratch};
    enum dt_status st = measure(&j, p, err);
    if (st == DT_OK)
        st = read_samples(&j, s, err);
    if (st == DT_OK)
        st = build(&j, first_sample, err, out);
    dt_arena_free(&scratch);
    return st;
}

void dt_assign_free(struct dt_assignment *a)
{
    if (!a)
        return;
    dt_arena_free(&a->arena);
    dt_free(a);
}

/* ---- check ---- */

/* Of every sample the items 0, 1, ... n-1, once each. */
static enum dt_status check_items(const struct dt_assignment *a, int m, uint32_t n,
                                  struct dt_error *err)
{
    const struct dt_assignment_module *ma = &a->m[m];
    uint32_t *first = dt_calloc((size_t)a->n_samples + 2, sizeof(*first));
    unsigned char *seen = dt_calloc((size_t)n + 1, 1);
    enum dt_status st = first && seen ? DT_OK : dt_error_nomem(err, "assignment check");

    for (uint32_t k = 0; k < n && st == DT_OK; k++) {
        int64_t i = ma->samples[k] - a->first_sample;

        if (i < 0 || i >= a->n_samples)
            st = dt_error_set(err, DT_ERR_INTERNAL, "module %d: sample %lld is not of the batch", m,
                              (long long)ma->samples[k]);
        else
            first[i + 1]++;
    }
    for (int64_t i = 0; i < a->n_samples && st == DT_OK; i++)
        first[i + 1] += first[i];
    for (uint32_t k = 0; k < n && st == DT_OK; k++) {
        int64_t i = ma->samples[k] - a->first_sample;

        if (ma->items[k] >= first[i + 1] - first[i] || seen[first[i] + ma->items[k]]++)
            st = dt_error_set(err, DT_ERR_INTERNAL,
                              "module %d: an item of sample %lld comes twice, another never", m,
                              (long long)ma->samples[k]);
    }
    dt_free(first);
    dt_free(seen);
    return st;
}

static enum dt_status check_module(const struct dt_assignment *a, int m, unsigned char *seen,
                                   struct dt_error *err)
{
    const struct dt_assignment_module *ma = &a->m[m];
    uint32_t next = 0;
    memset(seen, 0, (size_t)a->n_samples);
    if (ma->mb_first[0] != 0)
        return dt_error_set(err, DT_ERR_INTERNAL, "module %d: first microbatch is %u", m,
                            ma->mb_first[0]);
    for (int r = 0; r < ma->n_replicas; r++)
        for (uint32_t b = ma->mb_first[r]; b < ma->mb_first[r + 1]; b++) {
            const struct dt_microbatch *mb = &ma->mb[b];
            if (mb->first != next || (!ma->items && mb->n > a->n_samples - next))
                return dt_error_set(err, DT_ERR_INTERNAL,
                                    "module %d replica %d: microbatch %u does not follow on", m, r,
                                    b - ma->mb_first[r]);
            bool ahead = b > ma->mb_first[r] && mb->slot <= ma->mb[b - 1].slot;

            ahead =
                ahead && !dt_assignment_deferred(ma, ma->mb_first[r], ma->mb_first[r + 1], b - 1);
            if (mb->slot >= (uint32_t)a->n_slots || ahead)
                return dt_error_set(
                    err, DT_ERR_INTERNAL,
                    "module %d replica %d: microbatch %u in slot %u is out of order", m, r,
                    b - ma->mb_first[r], mb->slot);
            next += mb->n;
        }
    if (ma->items)
        return check_items(a, m, next, err);
    if (next != (uint64_t)a->n_samples)
        return dt_error_set(err, DT_ERR_INTERNAL, "module %d: %u samples instead of %lld", m, next,
                            (long long)a->n_samples);
    for (uint32_t k = 0; k < next; k++) {
        int64_t i = ma->samples[k] - a->first_sample;
        if (i < 0 || i >= a->n_samples || seen[i]++)
            return dt_error_set(err, DT_ERR_INTERNAL, "module %d: sample %lld %s", m,
                                (long long)ma->samples[k],
                                i < 0 || i >= a->n_samples ? "is not of the batch" : "comes twice");
    }
    return DT_OK;
}

enum dt_status dt_assign_check(const struct dt_assignment *a, struct dt_error *err)
{
    unsigned char *seen = dt_malloc(a->n_samples > 0 ? (size_t)a->n_samples : 1);
    if (!seen)
        return dt_error_nomem(err, "assignment check");
    enum dt_status st = DT_OK;
    for (int m = 0; m < a->n_modules && st == DT_OK; m++)
        st = check_module(a, m, seen, err);
    dt_free(seen);
    return st;
}

/* ---- what memory is charged ---- */

static struct dt_work mean_of(const struct dt_assignment_module *a, int replica)
{
    struct dt_work w = {0, 0, 0, 0};
    int64_t n = a->mb_first[replica + 1] - a->mb_first[replica];

    for (uint32_t b = a->mb_first[replica]; b < a->mb_first[replica + 1]; b++)
        dt_work_add(&w, &a->work[b]);
    if (n > 1) {
        w.n = (w.n + n - 1) / n;
        w.tokens = (w.tokens + n - 1) / n;
        w.tokens_sq = (w.tokens_sq + n - 1) / n;
    }
    return w;
}

struct dt_work dt_assignment_charged(const struct dt_plan *p, const struct dt_assignment *a,
                                     int module)
{
    const struct dt_assignment_module *ma = &a->m[module];
    struct dt_work most = {0, 0, 0, 0};

    for (int r = 0; p->modules[module].phases && r < ma->n_replicas; r++) {
        struct dt_work w = mean_of(ma, r);

        most = w.tokens > most.tokens ? w : most;
    }
    for (uint32_t b = 0; !p->modules[module].phases && b < ma->mb_first[ma->n_replicas]; b++) {
        struct dt_work w = dt_assignment_held(ma, b);

        most = w.tokens > most.tokens ? w : most;
    }
    return most;
}
