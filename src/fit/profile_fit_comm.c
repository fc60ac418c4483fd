/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives and point-to-point: per (operation, GPUs) a curve over the message size, smoothed
 * around alpha + beta x bytes and resampled at powers of two. */
#include "fit/profile_fit_priv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_LOG2 = 10, LAST_LOG2 = 32 };   /* 1 KiB .. 4 GiB */
enum { LARGE_LOG2 = 23, LARGE_MAX = 1024 }; /* from 8 MiB a collective is bandwidth, not latency */

struct large { /* held-out errors of large buffers, over all collectives and GPU counts */
    size_t n;
    double e[LARGE_MAX];
};

struct curve {
    struct dt_fit_local l;
    double alpha_ns, beta_ns_per_byte; /* floor; slope of the plateau */
    double max_bytes;
};

struct size_range {
    double min_bytes, max_bytes, alpha, beta;
};

/* alpha: shortest of the small messages; beta: slope at the largest message, alpha taken off. */
static bool range_of(const struct dt_fit *f, int family, const int64_t *d, int n_dims,
                     struct size_range *out)
{
    struct size_range s = {.min_bytes = INFINITY, .alpha = INFINITY};
    double at_max = 0;

    for (size_t i = 0;
         (i = dt_fit_next(f, i, f->dev->base, "any", family, DT_PHASE_FWD)) < f->in->n_rows; i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double bytes = (double)r->d[n_dims];
        if (memcmp(r->d, d, (size_t)n_dims * sizeof *d) != 0)
            continue;
        s.min_bytes = fmin(s.min_bytes, bytes);
        if (bytes <= 8192)
            s.alpha = fmin(s.alpha, r->median_ns);
        if (bytes > s.max_bytes) {
            s.max_bytes = bytes;
            at_max = r->median_ns;
        }
    }
    if (!isfinite(s.alpha) || s.max_bytes < 1 << 20)
        return false;
    s.beta = (at_max - s.alpha) / s.max_bytes;
    *out = s;
    return s.beta > 0;
}

static enum dt_status load(struct dt_fit *f, int family, const int64_t *d, int n_dims,
                           struct curve *c, bool *found)
{
    struct size_range s;

    memset(c, 0, sizeof *c);
    *found = range_of(f, family, d, n_dims, &s);
    if (!*found)
        return DT_OK;
    c->l.dim = 1;
    c->l.near = 5;
    c->alpha_ns = s.alpha;
    c->beta_ns_per_byte = s.beta;
    c->max_bytes = s.max_bytes;
    for (size_t i = 0;
         (i = dt_fit_next(f, i, f->dev->base, "any", family, DT_PHASE_FWD)) < f->in->n_rows; i++) {
        const struct dt_profile_row *r = &f->in->rows[i].r;
        double bytes = (double)r->d[n_dims], x = log2(bytes);
        const char *origin = f->in->sources[r->source].origin;
        const long long key[1] = {r->d[n_dims]};
        if (memcmp(r->d, d, (size_t)n_dims * sizeof *d) != 0)
            continue;
        if (family != DT_KOP_SEND_RECV &&
            strstr(origin, "vidur")) /* coarser clock; single source per curve */
            continue;
        DT_TRY(dt_fit_local_add(&c->l, &x, log(r->median_ns / (s.alpha + s.beta * bytes)),
                                dt_fit_local_fold(key, 1), f->err));
    }
    if (family == DT_KOP_SEND_RECV)
        c->l.near = 24; /* densely and linearly spaced sizes */
    *found = c->l.n >= 8;
    return DT_OK;
}

static enum dt_status resample(struct dt_fit *f, const struct curve *c, int family,
                               const int64_t *d, int n_dims, bool nvlink, int kind, int source)
{
    for (int k = FIRST_LOG2; k <= LAST_LOG2; k++) {
        double bytes = ldexp(1, k), x = k;
        struct dt_fit_row row = {family, DT_PHASE_FWD, kind, source, f->out_any, {0}, 0};
        struct dt_fit_local_value v;
        struct dt_fit_estimate e;
        dt_fit_local_eval(&c->l, &x, -1, &v);
        e.ns = exp(v.y) * (c->alpha_ns + c->beta_ns_per_byte * bytes);
        e.lo = exp(v.lo);
        e.hi = exp(v.hi);
        e.n = v.n;
        if (nvlink && f->dev->nvlink_slowdown != 1) {
            /* Only the plateau's slope stretches with the links; latency and ramp stay.  The other
             * extreme, all of the time stretched, is the 90th percentile. */
            double base = e.ns;
            e.ns += (f->dev->nvlink_slowdown - 1) * c->beta_ns_per_byte * bytes;
            e.hi = fmax(e.hi, base * f->dev->nvlink_slowdown / e.ns);
        }
        memcpy(row.d, d, (size_t)n_dims * sizeof *d);
        row.d[n_dims] = (int64_t)bytes;
        DT_TRY(dt_fit_emit(f, &row, &e));
    }
    return DT_OK;
}

static enum dt_status one(struct dt_fit *f, int family, const int64_t *d, int n_dims, bool nvlink,
                          int source, bool score, struct large *large, bool *found)
{
    struct curve c;
    char what[64];
    enum dt_status status = load(f, family, d, n_dims, &c, found);

    if (status == DT_OK && *found) {
        int kind = nvlink && f->dev->nvlink_slowdown != 1 ? DT_ROW_DERIVED : DT_ROW_FITTED;
        snprintf(what, sizeof what, "%s %lld (5 folds by size)", dt_kop_family_names[family],
                 (long long)d[0]);
        status = resample(f, &c, family, d, n_dims, nvlink, kind, source);
        if (status == DT_OK && score)
            status = dt_fit_score(f, what, &c.l, 1000);
        if (large)
            large->n +=
                dt_fit_local_errors(&c.l, 1, LARGE_LOG2, large->e + large->n, LARGE_MAX - large->n);
    }
    dt_fit_local_free(&c.l);
    return status;
}

enum dt_status dt_fit_collectives(struct dt_fit *f)
{
    static const int families[] = {DT_KOP_ALL_REDUCE, DT_KOP_ALL_GATHER, DT_KOP_REDUCE_SCATTER,
                                   DT_KOP_ALL_TO_ALL};
    static const int64_t gpus[] = {2, 4, 8};
    const struct dt_fit_from nccl = {f->dev->base, "any", DT_KOP_ALL_GATHER, DT_PHASE_FWD};
    const struct dt_fit_from p2p = {f->dev->base, "any", DT_KOP_SEND_RECV, DT_PHASE_FWD};
    bool scaled = f->dev->nvlink_slowdown != 1, found;
    int source, p2p_source;
    struct large large = {.n = 0};
    struct dt_fit_local_score s;

    DT_TRY(dt_fit_source(
        f, "fit: NCCL collectives of one node",
        scaled ? "A100 curve, its bandwidth part x 600/400 (NVLink of the A800), latency kept; "
                 "p90: all "
                 "of it x 600/400"
               : "alpha + beta x bytes, smoothed; beyond 512 MiB at the plateau's slope",
        &nccl, 1, &source));
    for (int i = 0; i < 4; i++)
        for (int g = 0; g < 3; g++) {
            const int64_t d[2] = {gpus[g], gpus[g]};
            DT_TRY(one(f, families[i], d, 2, true, source, i < 2 && g == 2, &large, &found));
            if (!found)
                return dt_fit_missing(f, f->dev->base, "NCCL collectives on 2, 4 and 8 GPUs",
                                      "aic-nccl");
        }
    dt_fit_local_score(large.e, large.n, &s);
    dt_fit_add_score(f, "collectives on 2, 4, 8 GPUs, from 8 MiB (5 folds)", &s);
    DT_TRY(dt_fit_source(
        f, "fit: send/recv",
        scaled ? "A100; inside a node the bandwidth part x 600/400; between nodes as measured on a "
                 "cloud NIC"
               : "inside a node (2) and between nodes (1, the cloud NIC of the origin)",
        &p2p, 1, &p2p_source));
    for (int64_t per_node = 1; per_node <= 2; per_node++) {
        DT_TRY(one(f, DT_KOP_SEND_RECV, &per_node, 1, per_node == 2, p2p_source, per_node == 2,
                   NULL, &found));
        if (!found && per_node == 2)
            return dt_fit_missing(f, f->dev->base, "send/recv inside a node", "vidur-send-recv");
    }
    return DT_OK;
}
