/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory-bound ops: time against bytes moved, per kind of op, resampled on tokens x width. */
#include "fit/profile_fit_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int grid_tokens[] = {1, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576};
static const int grid_width[] = {64, 256, 1024, 2048, 4096, 8192, 16384, 32768};
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

struct family_traffic {
    int family;
    double fwd, dgrad,
        wgrad; /* passes over tokens x width elements of 2 bytes; 0 = no such phase */
    const char *name;
};
/* Forward passes: reads + writes.  Gradients are scaled by passes (assumed): NORM reads x and dy
 * and writes dx; with the small weight part the whole backward is 1.7 x forward, as NeuSight's
 * training graphs have it (derived from its per-op table). ACT (gated) reads two inputs and dy and
 * writes two.  ADD hands the gradient on to both branches and sums; ROPE rotates back; EMBED
 * scatters with a read-modify-write. */
static const struct family_traffic traffic[] = {
    {DT_KOP_NORM, 2, 3, 0.4, "norm"},      {DT_KOP_ACT, 3, 5, 0, "activation"},
    {DT_KOP_ADD, 3, 3, 1, "residual add"}, {DT_KOP_ROPE, 2, 2, 0, "rope"},
    {DT_KOP_EMBED, 2, 0, 4, "embedding"},
};

struct curve {
    struct dt_fit_local l;
    const struct dt_fit_device *dev;
};

static double model(const struct dt_fit_device *dev, double bytes)
{
    return dev->launch_ns + bytes / dev->hbm_bytes_per_ns;
}

static enum dt_status load(struct dt_fit *f, const struct family_traffic *t, struct curve *c)
{
    memset(c, 0, sizeof *c);
    c->l.dim = 1;
    c->l.near = 40; /* the tables' clock ticks in us: many neighbours average that out */
    c->dev = dt_fit_find_device(f->dev->base);
    for (size_t i = 0;
         (i = dt_fit_next(f, i, c->dev->name, "bf16", t->family, DT_PHASE_FWD)) < f->in->n_rows;
         i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double passes = t->family == DT_KOP_ACT && !r->d[2] ? 2 : t->fwd;
        double bytes = 2 * passes * (double)r->d[0] * (double)r->d[1], x = log2(bytes);
        const long long key[1] = {r->d[0]};
        DT_TRY(dt_fit_local_add(&c->l, &x, log(r->median_ns / model(c->dev, bytes)),
                                dt_fit_local_fold(key, 1), f->err));
    }
    return c->l.n >= 20 ? DT_OK : dt_fit_missing(f, f->dev->base, "layer ops", "vidur-layer");
}

static void time_of(const struct curve *c, double bytes, struct dt_fit_estimate *e)
{
    struct dt_fit_local_value v;
    double x = log2(bytes);

    dt_fit_local_eval(&c->l, &x, -1, &v);
    e->ns = exp(v.y) * model(c->dev, bytes);
    e->lo = exp(v.lo);
    e->hi = exp(v.hi);
    e->n = v.n;
}

/* One family and phase over the grid: `passes` of 2 bytes per element, on the curve of the fitted
 * family. */
static enum dt_status resample(struct dt_fit *f, const struct curve *c, int family, int phase,
                               int kind, int source, double passes, int64_t gated)
{
    for (int a = 0; a < COUNT(grid_tokens); a++)
        for (int b = 0; b < COUNT(grid_width); b++) {
            struct dt_fit_row row = {family, phase,       kind,
                                     source, f->out_bf16, {grid_tokens[a], grid_width[b], gated},
                                     0};
            double bytes = 2 * passes * grid_tokens[a] * (double)grid_width[b];
            struct dt_fit_estimate e;
            row.floor_ns = bytes / f->dev->hbm_bytes_per_ns;
            time_of(c, bytes, &e);
            DT_TRY(dt_fit_emit(f, &row, &e));
        }
    return DT_OK;
}

static enum dt_status one_family(struct dt_fit *f, const struct family_traffic *t,
                                 const struct curve *c, int fwd, int back)
{
    DT_TRY(resample(f, c, t->family, DT_PHASE_FWD, DT_ROW_FITTED, fwd, t->fwd,
                    t->family == DT_KOP_ACT));
    if (t->dgrad > 0)
        DT_TRY(resample(f, c, t->family, DT_PHASE_DGRAD, DT_ROW_ASSUMED, back, t->dgrad,
                        t->family == DT_KOP_ACT));
    if (t->wgrad > 0)
        DT_TRY(resample(f, c, t->family, DT_PHASE_WGRAD, DT_ROW_ASSUMED, back, t->wgrad, 0));
    if (t->family != DT_KOP_ACT)
        return DT_OK;
    /* Plain activation: x -> y; backward reads x and dy and writes dx. */
    DT_TRY(resample(f, c, DT_KOP_ACT, DT_PHASE_FWD, DT_ROW_DERIVED, back, 2, 0));
    return resample(f, c, DT_KOP_ACT, DT_PHASE_DGRAD, DT_ROW_ASSUMED, back, 3, 0);
}

/* Group norm on the norm's curve: reads twice (statistics, then values), writes once. */
static enum dt_status group_norm(struct dt_fit *f, const struct curve *norm, int source)
{
    DT_TRY(resample(f, norm, DT_KOP_GROUPNORM, DT_PHASE_FWD, DT_ROW_DERIVED, source, 3, 0));
    DT_TRY(resample(f, norm, DT_KOP_GROUPNORM, DT_PHASE_DGRAD, DT_ROW_ASSUMED, source, 5, 0));
    return resample(f, norm, DT_KOP_GROUPNORM, DT_PHASE_WGRAD, DT_ROW_ASSUMED, source, 0.4, 0);
}

/* Softmax cross-entropy: bf16 logits in, fp32 probabilities kept (6 bytes per element); backward 4
 * in, 2 out. AdamW: fp32 gradient, master, m, v in; master, m, v and the bf16 parameter out: 30
 * bytes per parameter. */
static enum dt_status loss_and_optimizer(struct dt_fit *f, const struct curve *add, int source)
{
    static const int tokens[] = {1, 64, 1024, 4096, 16384, 65536},
                     vocab[] = {1024, 4096, 16384, 32768, 131072, 262144};

    for (int phase = DT_PHASE_FWD; phase <= DT_PHASE_DGRAD; phase++)
        for (int a = 0; a < COUNT(tokens); a++)
            for (int b = 0; b < COUNT(vocab); b++) {
                struct dt_fit_row row = {
                    DT_KOP_XENT,           phase, DT_ROW_ASSUMED, source, f->out_bf16,
                    {tokens[a], vocab[b]}, 0};
                struct dt_fit_estimate e;
                time_of(add, 6.0 * tokens[a] * vocab[b], &e);
                row.floor_ns = 6.0 * tokens[a] * vocab[b] / f->dev->hbm_bytes_per_ns;
                DT_TRY(dt_fit_emit(f, &row, &e));
            }
    for (int k = 10; k <= 34; k += 2) {
        double params = ldexp(1, k);
        struct dt_fit_row row = {DT_KOP_ADAMW,
                                 DT_PHASE_FWD,
                                 DT_ROW_ASSUMED,
                                 source,
                                 f->out_bf16,
                                 {INT64_C(1) << k},
                                 30 * params / f->dev->hbm_bytes_per_ns};
        struct dt_fit_estimate e;
        time_of(add, 30 * params, &e);
        DT_TRY(dt_fit_emit(f, &row, &e));
    }
    return DT_OK;
}

enum dt_status dt_fit_pointwise(struct dt_fit *f)
{
    const struct dt_fit_from from = {f->dev->base, "bf16", DT_KOP_NORM, DT_PHASE_FWD};
    enum dt_status status;
    int fwd, back;

    DT_TRY(dt_fit_source(
        f, "fit: memory-bound ops",
        "time against bytes moved, per op; one width per op in the table, others by bytes", &from,
        1, &fwd));
    DT_TRY(dt_fit_source(
        f, "fit: memory-bound ops, gradients and kin",
        "the forward curve at the bytes that the op moves (passes assumed, see doc/formats.md)",
        &from, 1, &back));
    for (int i = 0; i < COUNT(traffic); i++) {
        struct curve c;
        char what[64];
        status = load(f, &traffic[i], &c);
        if (status == DT_OK) {
            snprintf(what, sizeof what, "%s fwd (5 folds by tokens)", traffic[i].name);
            status = dt_fit_score(f, what, &c.l, 1000);
        }
        if (status == DT_OK)
            status = one_family(f, &traffic[i], &c, fwd, back);
        if (status == DT_OK && traffic[i].family == DT_KOP_NORM)
            status = group_norm(f, &c, back);
        if (status == DT_OK && traffic[i].family == DT_KOP_ADD)
            status = loss_and_optimizer(f, &c, back);
        dt_fit_local_free(&c.l);
        DT_TRY(status);
    }
    return DT_OK;
}
