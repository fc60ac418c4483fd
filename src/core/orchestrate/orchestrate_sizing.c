/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How many samples make a layout, and which one.  Published are the trials and the doubling; ours are the rounding by
 * largest remainder, the end on a boundary, and that samples are drawn with replacement, each draw from a stream of its
 * own. */
#include "core/orchestrate/orchestrate_sizing.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { ENTRAIN_STREAM = 0x656e7472 }; /* apart from other users of the seed */

void dt_orch_allocate(int n, const double *load, int units, int *out)
{
    double exact[DT_MAX_MODULES], sum = 0;
    int used = 0;

    for (int m = 0; m < n; m++)
        sum += load[m];
    for (int m = 0; m < n; m++) {
        exact[m] = sum > 0 ? load[m] / sum * units : (double)units / n;
        out[m] = exact[m] < 1 ? 1 : (int)exact[m];
        used += out[m];
    }
    for (; used != units; used += used < units ? 1 : -1) {
        int more = used < units ? 1 : -1, best = -1;

        for (int m = 0; m < n; m++) {
            if (more < 0 && out[m] == 1)
                continue;
            if (best < 0 || more * (exact[m] - out[m]) > more * (exact[best] - out[best]))
                best = m;
        }
        out[best] += more;
    }
}

enum dt_status dt_orch_sample_loads(const struct dt_plan *p, const struct dt_model *model,
                                    struct dt_cost *cost, const struct dt_samples *samples,
                                    int64_t n, struct dt_error *err, double *load)
{
    struct dt_arena arena = {0};
    struct dt_work *work = DT_ARENA_NEW(&arena, struct dt_work, n);
    struct dt_cost_stage_ns *ns = DT_ARENA_NEW(&arena, struct dt_cost_stage_ns, n);
    unsigned char *trained = DT_ARENA_NEW(&arena, unsigned char, UINT16_MAX);
    bool ok = work && ns && trained;

    for (int m = 0; m < model->n_modules && ok; m++) {
        struct dt_block_shard shard = dt_plan_shard(&p->modules[m]);

        for (int64_t i = 0; i < n; i++)
            dt_sample_work(samples, i, &model->modules[m], &work[i]);
        dt_plan_trainable(p, model, m, trained);
        ok = dt_cost_stages_ns(cost, m, 0, model->modules[m].n_blocks, &shard, work, (size_t)n,
                               trained, dt_plan_upstream_trained(p, model, m, 0), ns);
        for (int64_t i = 0; i < n && ok; i++)
            load[m * n + i] =
                (ns[i].fwd + ns[i].bwd) * dt_plan_layout_lane_gpus(&p->modules[m].layout);
    }
    dt_arena_free(&arena);
    return ok ? DT_OK : dt_error_nomem(err, "loads of samples");
}

int dt_orch_sizing_trials(double confidence, double p_error)
{
    /* 1 - 0.95 is not 0.05 to the last digit */
    return (int)ceil(log(1 - confidence) / log(1 - p_error) - 1e-9);
}

/* The allocation that one draw of n samples gives. */
static void draw(const struct dt_orch_loads *in, int units, int64_t n, int trial, int *out)
{
    double load[DT_MAX_MODULES] = {0};
    struct dt_rng r;

    dt_rng_init(&r, in->seed, (uint64_t)ENTRAIN_STREAM << 32 ^ (uint64_t)n << 12 ^ (uint64_t)trial);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = (int64_t)dt_rng_below(&r, (uint64_t)in->n);

        for (int m = 0; m < in->n_modules; m++)
            load[m] += in->load[m * in->n + i];
    }
    dt_orch_allocate(in->n_modules, load, units, out);
}

static void first_samples(const struct dt_orch_loads *in, int64_t n, double *load)
{
    memset(load, 0, DT_MAX_MODULES * sizeof(*load));
    for (int m = 0; m < in->n_modules; m++)
        for (int64_t i = 0; i < n; i++)
            load[m] += in->load[m * in->n + i];
}

/* Draws of n samples: how many of all differ from the first, and between what each module lies. */
static void try_size(const struct dt_orch_loads *in, int units, int64_t n, int trials,
                     struct dt_orch_sizing *out, struct dt_orch_sizing_step *step)
{
    int got[DT_MAX_MODULES];
    size_t size = (size_t)in->n_modules * sizeof(*got);

    *step = (struct dt_orch_sizing_step){.samples = n};
    draw(in, units, n, 0, out->units);
    memcpy(step->least, out->units, size);
    memcpy(step->most, out->units, size);
    for (int trial = 1; trial <= trials; trial++) {
        draw(in, units, n, trial, got);
        step->others += memcmp(got, out->units, size) != 0;
        for (int m = 0; m < in->n_modules; m++) {
            step->least[m] = got[m] < step->least[m] ? got[m] : step->least[m];
            step->most[m] = got[m] > step->most[m] ? got[m] : step->most[m];
        }
    }
}

/* Shares of all samples: the ratio of sums, which is what GPUs see, and the mean of the samples' own ratios. */
static void shares(const struct dt_orch_loads *in, struct dt_orch_sizing *out)
{
    double load[DT_MAX_MODULES], sum = 0;

    first_samples(in, in->n, load);
    for (int m = 0; m < in->n_modules; m++)
        sum += load[m];
    for (int m = 0; m < in->n_modules; m++)
        out->share[m] = sum > 0 ? load[m] / sum : 0;
    for (int64_t i = 0; i < in->n; i++) {
        double of = 0;

        for (int m = 0; m < in->n_modules; m++)
            of += in->load[m * in->n + i];
        for (int m = 0; m < in->n_modules && of > 0; m++)
            out->mean_share[m] += in->load[m * in->n + i] / of / (double)in->n;
    }
}

void dt_orch_size(const struct dt_orch_loads *in, int units, struct dt_orch_sizing *out)
{
    double load[DT_MAX_MODULES];
    int64_t n = 1;

    *out = (struct dt_orch_sizing){.n_modules = in->n_modules, .of_units = units};
    shares(in, out);
    if (in->profile > 0) {
        out->samples = in->profile < in->n ? in->profile : in->n;
        first_samples(in, out->samples, load);
        dt_orch_allocate(in->n_modules, load, units, out->units);
        return;
    }
    out->trials = dt_orch_sizing_trials(in->confidence, in->p_error);
    for (; out->n_steps < DT_ORCH_SIZING_STEPS; n *= 2) {
        struct dt_orch_sizing_step *step = &out->step[out->n_steps++];

        try_size(in, units, n, out->trials, out, step);
        out->samples = n;
        out->boundary = step->others > 0;
        if (!out->boundary || n >= in->n)
            break;
    }
    if (!out->boundary)
        return;
    first_samples(in, in->n, load); /* no size decides: all samples do */
    dt_orch_allocate(in->n_modules, load, units, out->units);
}

/* ---- how sure it is ---- */

enum { STABLE_DRAWS = 400, STABLE_STREAM = 1 << 11 /* behind the trials of b_min */ };

static void count_other(struct dt_orch_sizing_stable *x, const int *units, size_t size)
{
    int k = 0;

    while (k < x->n_others && memcmp(x->other[k].units, units, size) != 0)
        k++;
    if (k == DT_ORCH_SIZING_OTHERS) /* as rare as the rarest of those kept, or rarer */
        return;
    if (k == x->n_others) {
        memcpy(x->other[k].units, units, size);
        x->other[x->n_others++].draws = 0;
    }
    x->other[k].draws++;
    for (; k > 0 && x->other[k - 1].draws < x->other[k].draws; k--) {
        int draws = x->other[k].draws, swap[DT_MAX_MODULES];

        memcpy(swap, x->other[k].units, sizeof(swap));
        x->other[k] = x->other[k - 1];
        x->other[k - 1].draws = draws;
        memcpy(x->other[k - 1].units, swap, sizeof(swap));
    }
}

/* Is the division of all samples another one when this share is the module's no longer, but the other's? */
static bool changes(const struct dt_orch_sizing *z, int from, int to, double share)
{
    double load[DT_MAX_MODULES];
    int was[DT_MAX_MODULES], is[DT_MAX_MODULES];

    dt_orch_allocate(z->n_modules, z->share, z->of_units, was);
    memcpy(load, z->share, (size_t)z->n_modules * sizeof(*load));
    load[from] -= share;
    load[to] += share;
    dt_orch_allocate(z->n_modules, load, z->of_units, is);
    return memcmp(is, was, (size_t)z->n_modules * sizeof(*was)) != 0;
}

/* The least share that moves from one module to the other and changes the division; infinite where not even all that the
 * first one has does: bisected, as whatever changes it stays changed. */
static double margin_of(const struct dt_orch_sizing *z, int from, int to)
{
    double low = 0, high = z->share[from];

    if (!changes(z, from, to, high))
        return INFINITY;
    for (int step = 0; step < 40; step++) {
        double middle = (low + high) / 2;

        *(changes(z, from, to, middle) ? &high : &low) = middle;
    }
    return high;
}

void dt_orch_size_stable(const struct dt_orch_loads *in, int64_t batch, struct dt_orch_sizing *out)
{
    struct dt_orch_sizing_stable *x = &out->stable;
    size_t size = (size_t)in->n_modules * sizeof(*out->units);

    *x = (struct dt_orch_sizing_stable){.batch = batch, .draws = STABLE_DRAWS, .margin = INFINITY};
    for (int t = 0; t < STABLE_DRAWS; t++) {
        int units[DT_MAX_MODULES];

        draw(in, out->of_units, batch, STABLE_STREAM + t, units);
        if (memcmp(units, out->units, size) == 0)
            x->same++;
        else
            count_other(x, units, size);
    }
    for (int a = 0; a < in->n_modules; a++)
        for (int b = 0; b < in->n_modules; b++) {
            double m = a == b ? INFINITY : margin_of(out, a, b);

            if (m < x->margin) {
                x->margin = m;
                x->from = a;
                x->to = b;
            }
        }
}
