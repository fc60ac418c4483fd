/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Attention: surfaces over (sequence, batch x heads, query heads per key/value head) per head
 * width; what a device has no table for is derived through the ratio of two surfaces of the H100 at
 * the same shape. */
#include "base/mem.h"
#include "fit/profile_fit_priv.h"

#include <gsl/gsl_fit.h>
#include <math.h>
#include <string.h>

/* Rows are stored at the head counts that models and their tensor-parallel shards have, so that a
 * query meets its heads exactly and interpolates over batch and sequence only; the surfaces know
 * only batch x heads. */
static const struct {
    int q, kv;
} causal_heads[] = {
    {1, 1},   {2, 2},   {4, 4},   {5, 5},   {8, 8},   {10, 10}, {12, 12}, {16, 16}, {20, 20},
    {24, 24}, {32, 32}, {40, 40}, {48, 48}, {64, 64}, {96, 96}, {8, 1},   {16, 2},  {32, 4},
    {40, 5},  {64, 8},  {96, 12}, {4, 1},   {8, 2},   {16, 4},  {32, 8},
};
static const int full_heads[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32};
static const int cross_heads[] = {1, 2, 4, 5, 8, 10, 16, 20};
static const int causal_seq[] = {64, 256, 1024, 2048, 4096, 8192, 16384, 32768};
static const int full_seq[] = {64, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const int cross_seq[] = {64, 256, 1024, 4096, 16384}, cross_kv[] = {64, 128, 512};
static const int causal_batch[] = {1, 2, 8, 32}, full_batch[] = {1, 4, 16, 64, 256};
static const int cross_batch[] = {1, 4, 16, 64};
static const int causal_dims[] = {64, 128}, full_dims[] = {64, 72, 80, 128};
enum { CROSS_DIM = 64 };
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

struct surfaces {
    struct dt_fit_local h_causal64, h_causal128, a_causal128,
        h_full[3];         /* h_full: head widths 64, 72, 80 */
    double full_cap;       /* largest share of peak that a derived bidirectional row may reach */
    double ratio[2];       /* ln(backward / forward) = ratio[0] + ratio[1] log2(flops) */
    double ratio_range[2]; /* of log2(flops) */
    double ratio_spread;
};

static double flops(double seq, double heads, double dim, bool causal)
{
    return (causal ? 2 : 4) * heads * seq * seq * dim;
}

static double model(const struct dt_fit_device *dev, double seq, double heads, double group,
                    double dim, bool causal)
{
    double bytes = 2 * seq * heads * dim * (2 + 2 / group);
    return 2 * dev->launch_ns + flops(seq, heads, dim, causal) / dev->flops_per_ns +
           bytes / dev->hbm_bytes_per_ns;
}

static void log_shape(double seq, double heads, double group, double *x)
{
    x[0] = log2(seq);
    x[1] = log2(heads);
    x[2] = 0.5 * log2(group); /* matters less: farther neighbours are fine */
}

static enum dt_status load(struct dt_fit *f, const struct dt_fit_device *dev, bool causal, int dim,
                           struct dt_fit_local *l)
{
    int family = causal ? DT_KOP_ATTN_CAUSAL : DT_KOP_ATTN_FULL;

    l->dim = causal ? 3 : 2;
    l->near = causal ? 28 : 20;
    for (size_t i = 0;
         (i = dt_fit_next(f, i, dev->name, "bf16", family, DT_PHASE_FWD)) < f->in->n_rows; i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double seq = (double)r->d[1], heads = (double)r->d[0] * (double)r->d[2], x[3];
        double group = (double)r->d[2] / fmax((double)r->d[3], 1);
        const long long key[2] = {r->d[1], r->d[0] * r->d[2]};
        if (r->d[4] != dim || r->d[1] < 16)
            continue;
        log_shape(seq, heads, group, x);
        DT_TRY(dt_fit_local_add(l, x,
                                log(r->median_ns / model(dev, seq, heads, group, dim, causal)),
                                dt_fit_local_fold(key, 2), f->err));
    }
    return l->n >= 100
               ? DT_OK
               : dt_fit_missing(f, dev->name, causal ? "causal attention" : "full attention",
                                causal ? "aic-causal-attn" : "aic-full-attn");
}

static void surface(const struct dt_fit_local *l, const struct dt_fit_device *dev, bool causal,
                    double dim, double seq, double heads, double group, struct dt_fit_estimate *e)
{
    struct dt_fit_local_value v;
    double x[3];

    log_shape(seq, heads, group, x);
    dt_fit_local_eval(l, x, -1, &v);
    e->ns = exp(v.y) * model(dev, seq, heads, group, dim, causal);
    e->lo = exp(v.lo);
    e->hi = exp(v.hi);
    e->n = v.n;
}

/* e *= a / b, spreads combined as independent. */
static void times_ratio(struct dt_fit_estimate *e, const struct dt_fit_estimate *a,
                        const struct dt_fit_estimate *b)
{
    e->ns *= a->ns / b->ns;
    e->lo = exp(-sqrt(pow(log(e->lo), 2) + pow(log(a->lo), 2) + pow(log(b->hi), 2)));
    e->hi = exp(sqrt(pow(log(e->hi), 2) + pow(log(a->hi), 2) + pow(log(b->lo), 2)));
}

static bool on_a100(const struct dt_fit *f)
{
    return strcmp(f->dev->base, DT_FIT_A100) == 0;
}

static void causal(const struct dt_fit *f, const struct surfaces *s, int dim, double seq,
                   double heads, double group, struct dt_fit_estimate *e)
{
    struct dt_fit_estimate h64, h128;

    if (!on_a100(f)) {
        surface(dim == 64 ? &s->h_causal64 : &s->h_causal128, f->h100, true, dim, seq, heads, group,
                e);
        return;
    }
    surface(&s->a_causal128, f->a100, true, 128, seq, heads, group, e);
    if (dim == 128)
        return;
    surface(&s->h_causal64, f->h100, true, 64, seq, heads, group, &h64);
    surface(&s->h_causal128, f->h100, true, 128, seq, heads, group, &h128);
    times_ratio(e, &h64, &h128);
}

/* Largest share of the device's peak in a table. */
static double best_share(const struct dt_fit *f, const struct dt_fit_device *dev, bool causal,
                         int dim)
{
    int family = causal ? DT_KOP_ATTN_CAUSAL : DT_KOP_ATTN_FULL;
    double best = 0;

    for (size_t i = 0;
         (i = dt_fit_next(f, i, dev->name, "bf16", family, DT_PHASE_FWD)) < f->in->n_rows; i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double work = flops((double)r->d[1], (double)r->d[0] * (double)r->d[2], dim, causal);
        if (r->d[4] == dim)
            best = fmax(best, work / (r->median_ns * dev->flops_per_ns));
    }
    return best;
}

/* A product of ratios can promise more than the card does: derived rows stay under this card's best
 * causal share times what the absence of a mask gains at best on the H100. */
static double full_cap(const struct dt_fit *f)
{
    const struct dt_fit_device *base = dt_fit_find_device(f->dev->base);

    return best_share(f, base, true, 128) * best_share(f, f->h100, false, 64) /
           best_share(f, f->h100, true, 64);
}

/* H100: its own table for 64, 72, 80; width 128 through causal 128 / causal 64.  A100: causal 128 x
 * H100's full / causal 128. */
static void full(const struct dt_fit *f, const struct surfaces *s, int dim, double seq,
                 double heads, struct dt_fit_estimate *e)
{
    struct dt_fit_estimate c64, c128, h;
    int i = dim == 72 ? 1 : dim == 80 ? 2 : 0;

    surface(&s->h_full[i], f->h100, false, i == 0 ? 64 : dim, seq, heads, 1, &h);
    surface(&s->h_causal128, f->h100, true, 128, seq, heads, 1, &c128);
    if (dim == 128) {
        surface(&s->h_causal64, f->h100, true, 64, seq, heads, 1, &c64);
        times_ratio(&h, &c128, &c64);
    }
    *e = h;
    if (on_a100(f)) {
        surface(&s->a_causal128, f->a100, true, 128, seq, heads, 1, e);
        times_ratio(e, &h, &c128);
    }
    if (on_a100(f) || dim == 128)
        e->ns = fmax(e->ns, flops(seq, heads, dim, false) / (s->full_cap * f->dev->flops_per_ns));
}

/* Flash attention walks kv blocks for each block of queries, so `heads` sequences of q queries
 * against kv keys do the block work of heads q/kv sequences of kv queries against kv keys. */
static void cross(const struct dt_fit *f, const struct surfaces *s, int dim, double seq,
                  double heads, double kv, struct dt_fit_estimate *e)
{
    full(f, s, dim, kv, fmax(heads * seq / kv, 1), e);
    e->lo *= 0.8; /* assumed: 20 % for a shape that no table has */
    e->hi *= 1.2;
}

static enum dt_status fit_backward(struct dt_fit *f, struct surfaces *s)
{
    enum { MAX = 64 };
    double x[MAX], y[MAX], c00, c01, c11, sum;
    size_t n = 0, i = 0;

    s->ratio_range[0] = INFINITY;
    s->ratio_range[1] = -INFINITY;
    for (; n < MAX && (i = dt_fit_next(f, i, DT_FIT_A100_PCIE, "bf16", DT_KOP_ATTN_CAUSAL,
                                       DT_PHASE_DGRAD)) < f->in->n_rows;
         i++) {
        const struct dt_profile_row *b = &f->in->rows[i].r;
        size_t j = 0;
        while ((j = dt_fit_next(f, j, DT_FIT_A100_PCIE, "bf16", DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD)) <
                   f->in->n_rows &&
               memcmp(f->in->rows[j].r.d, b->d, sizeof b->d) != 0)
            j++;
        if (j == f->in->n_rows)
            continue;
        x[n] =
            log2(flops((double)b->d[1], (double)b->d[0] * (double)b->d[2], (double)b->d[4], true));
        y[n] = log(b->median_ns / f->in->rows[j].r.median_ns);
        s->ratio_range[0] = fmin(s->ratio_range[0], x[n]);
        s->ratio_range[1] = fmax(s->ratio_range[1], x[n]);
        n++;
    }
    if (n < 4)
        return dt_fit_missing(f, DT_FIT_A100_PCIE, "attention backward", "simumax-attn");
    gsl_fit_linear(x, 1, y, 1, n, &s->ratio[0], &s->ratio[1], &c00, &c01, &c11, &sum);
    s->ratio_spread = sqrt(sum / (double)(n - 2));
    struct dt_fit_local_score score;
    double e[MAX];
    for (size_t k = 0; k < n; k++)
        e[k] = fabs(exp(s->ratio[0] + s->ratio[1] * x[k] - y[k]) - 1);
    dt_fit_local_score(e, n, &score);
    dt_fit_add_score(f, "attention backward/forward ratio (in sample)", &score);
    return DT_OK;
}

static void backward(const struct surfaces *s, double work, struct dt_fit_estimate *e)
{
    double w = fmin(fmax(log2(work), s->ratio_range[0]), s->ratio_range[1]);

    e->ns *= exp(s->ratio[0] + s->ratio[1] * w);
    e->lo *= exp(-2 * s->ratio_spread);
    e->hi *= exp(2 * s->ratio_spread);
}

/* Forward and backward rows of one shape.  The backward does five products for the forward's two.
 */
static enum dt_status emit_both(struct dt_fit *f, const struct surfaces *s, struct dt_fit_row *row,
                                const int *source, int fwd_kind, double work,
                                struct dt_fit_estimate *e)
{
    row->phase = DT_PHASE_FWD;
    row->kind = fwd_kind;
    row->source = source[0];
    row->floor_ns = work / f->dev->flops_per_ns;
    DT_TRY(dt_fit_emit(f, row, e));
    backward(s, work, e);
    row->phase = DT_PHASE_DGRAD;
    row->kind = DT_ROW_DERIVED;
    row->source = source[1];
    row->floor_ns = 2.5 * work / f->dev->flops_per_ns;
    return dt_fit_emit(f, row, e);
}

static enum dt_status resample_causal(struct dt_fit *f, const struct surfaces *s, const int *source,
                                      int derived_source)
{
    for (int d = 0; d < COUNT(causal_dims); d++)
        for (int h = 0; h < COUNT(causal_heads); h++)
            for (int b = 0; b < COUNT(causal_batch); b++)
                for (int a = 0; a < COUNT(causal_seq); a++) {
                    int dim = causal_dims[d], seq = causal_seq[a], q = causal_heads[h].q,
                        kv = causal_heads[h].kv;
                    double heads = (double)causal_batch[b] * q;
                    bool own = dim == 128 || !on_a100(f);
                    struct dt_fit_row row = {DT_KOP_ATTN_CAUSAL,
                                             0,
                                             0,
                                             0,
                                             f->out_bf16,
                                             {causal_batch[b], seq, q, kv, dim},
                                             0};
                    const int sources[2] = {own ? source[0] : derived_source, source[1]};
                    struct dt_fit_estimate e;
                    causal(f, s, dim, seq, heads, (double)q / kv, &e);
                    DT_TRY(emit_both(f, s, &row, sources, own ? DT_ROW_FITTED : DT_ROW_DERIVED,
                                     flops(seq, heads, dim, true), &e));
                }
    return DT_OK;
}

static enum dt_status resample_full(struct dt_fit *f, const struct surfaces *s, const int *source,
                                    int derived_source)
{
    for (int d = 0; d < COUNT(full_dims); d++)
        for (int h = 0; h < COUNT(full_heads); h++)
            for (int b = 0; b < COUNT(full_batch); b++)
                for (int a = 0; a < COUNT(full_seq); a++) {
                    int dim = full_dims[d], seq = full_seq[a], q = full_heads[h];
                    double heads = (double)full_batch[b] * q;
                    bool own = !on_a100(f) && dim != 128;
                    struct dt_fit_row row = {
                        DT_KOP_ATTN_FULL, 0, 0, 0, f->out_bf16, {full_batch[b], seq, q, q, dim}, 0};
                    const int sources[2] = {own ? source[0] : derived_source, source[1]};
                    struct dt_fit_estimate e;
                    full(f, s, dim, seq, heads, &e);
                    DT_TRY(emit_both(f, s, &row, sources, own ? DT_ROW_FITTED : DT_ROW_DERIVED,
                                     flops(seq, heads, dim, false), &e));
                }
    return DT_OK;
}

static enum dt_status resample_cross(struct dt_fit *f, const struct surfaces *s, const int *source)
{
    for (int h = 0; h < COUNT(cross_heads); h++)
        for (int b = 0; b < COUNT(cross_batch); b++)
            for (int a = 0; a < COUNT(cross_seq); a++)
                for (int k = 0; k < COUNT(cross_kv); k++) {
                    int seq = cross_seq[a], kv = cross_kv[k];
                    double heads = (double)cross_batch[b] * cross_heads[h];
                    struct dt_fit_row row = {DT_KOP_ATTN_CROSS,
                                             0,
                                             0,
                                             0,
                                             f->out_bf16,
                                             {cross_batch[b], seq, cross_heads[h], kv, CROSS_DIM},
                                             0};
                    struct dt_fit_estimate e;
                    cross(f, s, CROSS_DIM, seq, heads, kv, &e);
                    DT_TRY(emit_both(f, s, &row, source, DT_ROW_DERIVED,
                                     4 * heads * seq * kv * CROSS_DIM, &e));
                }
    return DT_OK;
}

static enum dt_status resample(struct dt_fit *f, const struct surfaces *s)
{
    const char *base = f->dev->base;
    const struct dt_fit_from own_causal = {base, "bf16", DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD};
    const struct dt_fit_from h_full = {DT_FIT_H100, "bf16", DT_KOP_ATTN_FULL, DT_PHASE_FWD};
    const struct dt_fit_from h_causal = {DT_FIT_H100, "bf16", DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD};
    const struct dt_fit_from back = {DT_FIT_A100_PCIE, "bf16", DT_KOP_ATTN_CAUSAL, DT_PHASE_DGRAD};
    const struct dt_fit_from derived[] = {own_causal, h_full, h_causal},
                             grad[] = {own_causal, back};
    int causal_src[2], full_src[2], cross_src[2], width_src, cross_full;

    DT_TRY(dt_fit_source(f, "fit: causal attention forward",
                         "local log-linear fit over sequence, batch x heads, GQA group",
                         &own_causal, 1, &causal_src[0]));
    DT_TRY(dt_fit_source(
        f, "fit: attention backward",
        "forward x backward/forward ratio of FlashAttention on A100 PCIe (five products for two, "
        "checked in the origin's benchmark); used for every mask",
        grad, 2, &causal_src[1]));
    DT_TRY(
        dt_fit_source(f, "fit: causal attention of other head widths",
                      "width 128 x ratio of the H100's surfaces of both widths at the same shape",
                      derived, 3, &width_src));
    DT_TRY(dt_fit_source(f, "fit: bidirectional attention forward",
                         "local log-linear fit over sequence, batch x heads", &h_full, 1,
                         &full_src[0]));
    full_src[1] = causal_src[1];
    DT_TRY(dt_fit_source(
        f, "fit: bidirectional attention, derived",
        on_a100(f) ? "causal width 128 of this card x H100's bidirectional/causal at the same shape"
                   : "width 64 x causal width 128 / causal width 64 at the same shape",
        derived, 3, &cross_full));
    DT_TRY(resample_causal(f, s, causal_src, width_src));
    DT_TRY(resample_full(f, s, full_src, cross_full));
    DT_TRY(dt_fit_source(
        f, "fit: cross attention",
        "bidirectional attention with the same blocks of queries x keys; 20 % spread assumed",
        derived, 3, &cross_src[0]));
    cross_src[1] = causal_src[1];
    return resample_cross(f, s, cross_src);
}

enum dt_status dt_fit_attention(struct dt_fit *f)
{
    static const int widths[] = {64, 72, 80};
    struct surfaces *s = dt_calloc(1, sizeof *s);
    enum dt_status status = s ? DT_OK : dt_error_nomem(f->err, "attention surfaces");

    if (!s)
        return status;
    status = load(f, f->h100, true, 64, &s->h_causal64);
    if (status == DT_OK)
        status = load(f, f->h100, true, 128, &s->h_causal128);
    if (status == DT_OK)
        status = load(f, f->a100, true, 128, &s->a_causal128);
    for (int i = 0; i < 3 && status == DT_OK; i++)
        status = load(f, f->h100, false, widths[i], &s->h_full[i]);
    if (status == DT_OK) {
        s->full_cap = full_cap(f);
        status = fit_backward(f, s);
    }
    if (status == DT_OK && on_a100(f))
        status =
            dt_fit_score(f, "attn causal fwd d=128 (5 folds by seq, heads)", &s->a_causal128, 1500);
    if (status == DT_OK && !on_a100(f))
        status =
            dt_fit_score(f, "attn causal fwd d=128 (5 folds by seq, heads)", &s->h_causal128, 1500);
    if (status == DT_OK)
        status = dt_fit_score(f, "attn full fwd d=80, H100 (5 folds by seq, heads)", &s->h_full[2],
                              1500);
    if (status == DT_OK)
        status = resample(f, s);
    dt_fit_local_free(&s->h_causal64);
    dt_fit_local_free(&s->h_causal128);
    dt_fit_local_free(&s->a_causal128);
    for (int i = 0; i < 3; i++)
        dt_fit_local_free(&s->h_full[i]);
    dt_free(s);
    return status;
}
