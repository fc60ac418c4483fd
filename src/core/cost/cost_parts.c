/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A stage's time dealt to its kernels, and the profile rows that a kernel's time stands on: what
 * explanations and intervals are made of. */
#include "core/cost/cost_internal.h"

#include <math.h>
#include <string.h>

const char *const dt_cost_direction_names[DT_DIR_N + 1] = {
    "forward", "input gradient", "weight gradient", "recompute", NULL,
};

struct parts { /* a block, and who hears of its kernels */
    struct dt_cost *c;
    dt_cost_part_fn *fn;
    void *ctx;
    int n;
    struct dt_kop kop[DT_MAX_KOPS];
    struct dt_cost_block_times part[DT_MAX_KOPS];
};

static const struct dt_cost_time *time_of(const struct dt_cost_block_times *t,
                                          enum dt_cost_direction dir)
{
    return dir == DT_DIR_FWD     ? &t->fwd
           : dir == DT_DIR_DGRAD ? &t->dgrad
           : dir == DT_DIR_WGRAD ? &t->wgrad
                                 : &t->recompute;
}

static double sum_of(const struct parts *p, enum dt_cost_direction dir)
{
    double sum = 0;

    for (int i = 0; i < p->n; i++)
        sum += time_of(&p->part[i], dir)->ns;
    return sum;
}

/* The block's time in a direction, `total` (k blocks together), dealt as the kernels' own times. */
static void emit_direction(const struct parts *p, enum dt_cost_direction dir, double k,
                           double total)
{
    double sum = sum_of(p, dir);

    for (int i = 0; i < p->n && sum > 0 && total > 0; i++) {
        const struct dt_cost_time *t = time_of(&p->part[i], dir);
        struct dt_cost_time one = {0};

        if (!(t->ns > 0))
            continue;
        dt_cost_time_add(&one, t, k * total / sum);
        p->fn(p->ctx, &p->kop[i], dir, &one);
    }
}

static void emit_host(const struct parts *p, enum dt_cost_direction dir, double ns)
{
    struct dt_cost_time host;

    if (!(ns > 0))
        return;
    dt_cost_time_set(&host, ns, DT_PROV_ASSUMED);
    p->fn(p->ctx, NULL, dir, &host);
}

/* Of a p-norm T of device time D and host time H, D^p / T^p belongs to the device: what T moves by
 * when D does.  The host gets the rest. */
static void emit_run(struct parts *p, const struct dt_cost_block_times *t, bool above, bool trained,
                     double k)
{
    double ns[DT_DIR_N] = {0}, wait_fwd = 0, wait = 0, device = 0, share;

    ns[DT_DIR_FWD] = t->fwd.ns;
    ns[DT_DIR_DGRAD] = above ? t->dgrad.ns : 0;
    ns[DT_DIR_WGRAD] = trained ? t->wgrad.ns + (above ? 0 : t->wgrad_only.ns) : 0;
    ns[DT_DIR_RECOMPUTE] = above || trained ? t->recompute.ns : 0;
    if (p->c->opt.dispatch_ns > 0)
        wait = dt_cost_host_wait(p->c, t, above, trained, &wait_fwd);
    for (int d = 0; d < DT_DIR_N; d++)
        device += ns[d];
    share = wait > 0 ? pow(device / (device + wait), p->c->tuning.host_norm - 1) : 1;
    for (int d = 0; d < DT_DIR_N; d++)
        emit_direction(p, (enum dt_cost_direction)d, k, share * ns[d]);
    emit_host(p, DT_DIR_FWD, k * (wait_fwd + (1 - share) * ns[DT_DIR_FWD]));
    emit_host(p, above ? DT_DIR_DGRAD : DT_DIR_WGRAD,
              k * (wait - wait_fwd + (1 - share) * (device - ns[DT_DIR_FWD])));
}

void dt_cost_stage_parts(struct dt_cost *c, int module, int first, int n,
                         const struct dt_block_shard *shard, const struct dt_work *work,
                         const unsigned char *trainable, bool upstream, dt_cost_part_fn *fn,
                         void *ctx)
{
    const uint16_t *class_of = c->class_of[module];
    struct parts p = {.c = c, .fn = fn, .ctx = ctx};
    struct dt_cost_block_times t;
    bool above = upstream;

    memset(&t, 0, sizeof(t));
    for (int b = first; b < first + n;) {
        bool trained = !trainable || trainable[b];
        int end = b + 1;

        while (end < first + n && class_of[end] == class_of[b] &&
               (!trainable || !!trainable[end] == trained) && (above || !trained))
            end++;
        dt_cost_block(c, module, class_of[b], shard, work, &t);
        p.n = dt_cost_block_parts(c, module, class_of[b], shard, work, p.kop, p.part);
        emit_run(&p, &t, above, trained, end - b);
        above |= trained;
        b = end;
    }
}

/* The row nearest to the kernel among those that its surface is made of. */
static const struct dt_profile_row *nearest_row(struct dt_cost *c, const struct dt_kop *op,
                                                int family, enum dt_kop_phase phase)
{
    const struct dt_cost_group_table *t = dt_cost_groups(c, family, (int)phase);
    struct dt_cost_corner corner[COST_MAX_CORNERS];
    struct dt_cost_surface s = {.family = family, .phase = (int)phase};
    const struct dt_profile_row *best = NULL;
    const struct dt_cost_group *g = NULL;
    double least = INFINITY, w = 0;
    int n;

    for (int i = 0; i < 6; i++)
        s.slow[i] = dt_cost_is_slow(family, i) ? op->d[i] : 0;
    n = t->n_groups > 0 ? dt_cost_corners(c, t, &s, corner) : 0;
    for (int i = 0; i < n; i++)
        if (corner[i].w > w) {
            w = corner[i].w;
            g = corner[i].g;
        }
    for (int r = 0; g && r < g->n; r++) {
        const struct dt_profile_row *row = t->sorted[g->first + r];
        double d = 0;

        for (int i = 0; i < 6; i++)
            if (dt_cost_family[family].role[i] == DIM_FAST)
                d += pow(dt_cost_log_dim(row->d[i]) - dt_cost_log_dim(op->d[i]), 2);
        if (d < least) {
            least = d;
            best = row;
        }
    }
    return best;
}

/* Distance of the 10th from the 90th percentile of a normal distribution in standard deviations. */
#define P10_TO_P90 2.5631

void dt_cost_origin(struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                    struct dt_cost_origin *out)
{
    const struct dt_profile_row *row = NULL;
    int family = dt_cost_family_source(c, (int)op->family);

    if (dt_cost_is_collective((int)op->family)) {
        phase = DT_PHASE_FWD;
        *out = (struct dt_cost_origin){.source = "link arithmetic", .kind = -1};
        if (op->family != DT_KOP_SEND_RECV && dt_cost_leaves_node(c, op))
            return;
    }
    if (family >= 0)
        row = nearest_row(c, op, family, phase);
    if (family >= 0 && !row)
        row = nearest_row(c, op, family, DT_PHASE_FWD);
    *out = (struct dt_cost_origin){.source = "roofline", .kind = -1};
    if (!row)
        return;
    out->kind = row->kind;
    if (row->source >= 0 && row->source < c->profile->n_sources)
        out->source = c->profile->sources[row->source].name;
    if (row->p90_ns > row->p10_ns && row->p10_ns > 0)
        out->sigma = log(row->p90_ns / row->p10_ns) / P10_TO_P90;
}
