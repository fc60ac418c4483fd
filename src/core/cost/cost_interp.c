/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * From scattered profile rows to smooth curves: efficiency in log-log space.
 *
 * Rows that share the dims which model and shard fix (n and k of a GEMM, heads of an attention)
 * form a group: a curve over tokens, or over (batch, seq) for attention.  A query between groups
 * blends them (cost_rows.c).  The result is a GSL interpolant over the union of the knots, so a
 * query at a row's own dims returns that row. */
#include "core/cost/cost_internal.h"

#include <gsl/gsl_errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- knots ---- */

static int fast_dim(int family, int which)
{
    for (int i = 0; i < 6; i++) {
        if (dt_cost_family[family].role[i] == DIM_FAST && which-- == 0)
            return i;
    }
    return -1;
}

static double row_log_eff(const struct dt_profile_row *r)
{
    return log(dt_cost_units(r->family, r->d) / dt_cost_row_ns(r));
}

/* Log efficiency of a group at (u, v): its row there, else linear in log between its neighbours
 * (one axis) or inverse distance over its nearest rows (two axes). */
static double group_eval(const struct dt_cost_group_table *t, const struct dt_cost_group *g, int fu,
                         int fv, double lu, double lv, unsigned char *kind)
{
    double dist[COST_NEAREST], z[COST_NEAREST], total = 0, sum = 0;
    unsigned char kinds[COST_NEAREST];
    bool above = false, under = false; /* rows at least / at most as large on both axes */
    const struct dt_profile_row *const *r = t->sorted + g->first;
    int n = 0;

    if (fv < 0) {
        int i = 0;

        while (i < g->n - 1 && dt_cost_log_dim(r[i + 1]->d[fu]) <= lu + 1e-12)
            i++;
        *kind = (unsigned char)r[i]->kind;
        if (fabs(dt_cost_log_dim(r[i]->d[fu]) - lu) < 1e-12)
            return row_log_eff(r[i]);
        if (i == g->n - 1 || lu < dt_cost_log_dim(r[i]->d[fu])) {
            *kind |= ROW_BEYOND;
            return row_log_eff(r[i]);
        }
        *kind |= ROW_FILLED;
        double a = dt_cost_log_dim(r[i]->d[fu]), b = dt_cost_log_dim(r[i + 1]->d[fu]),
               f = (lu - a) / (b - a);

        return (1 - f) * row_log_eff(r[i]) + f * row_log_eff(r[i + 1]);
    }
    for (int i = 0; i < g->n; i++) {
        double du = dt_cost_log_dim(r[i]->d[fu]) - lu, dv = dt_cost_log_dim(r[i]->d[fv]) - lv;
        double d = du * du + dv * dv;
        int at = n < COST_NEAREST ? n++ : COST_NEAREST;

        if (d < 1e-18) {
            *kind = (unsigned char)r[i]->kind;
            return row_log_eff(r[i]);
        }
        above |= du > -1e-12 && dv > -1e-12;
        under |= du < 1e-12 && dv < 1e-12;
        while (at > 0 && dist[at - 1] > d) {
            if (at < COST_NEAREST) {
                dist[at] = dist[at - 1];
                z[at] = z[at - 1];
                kinds[at] = kinds[at - 1];
            }
            at--;
        }
        if (at < COST_NEAREST) {
            dist[at] = d;
            z[at] = row_log_eff(r[i]);
            kinds[at] = (unsigned char)r[i]->kind;
        }
    }
    *kind = 0;
    for (int i = 0; i < n; i++) {
        total += 1 / dist[i];
        sum += z[i] / dist[i];
        if (kinds[i] > *kind)
            *kind = kinds[i];
    }
    *kind |= above && under ? ROW_FILLED : ROW_BEYOND;
    return sum / total;
}

static int cmp_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* Distinct values of dim `dim` over the rows of the corners, as logs. */
static int axis(struct dt_cost *c, const struct dt_cost_group_table *t,
                const struct dt_cost_corner *k, int n, int dim, double **out)
{
    int rows = 0, m = 0;
    int64_t *v;

    for (int i = 0; i < n; i++)
        rows += k[i].g->n;
    v = dt_malloc((size_t)rows * sizeof(*v));
    if (!v)
        return 0;
    rows = 0;
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < k[i].g->n; r++)
            v[rows++] = t->sorted[k[i].g->first + r]->d[dim];
    }
    qsort(v, (size_t)rows, sizeof(*v), cmp_i64);
    for (int i = 0; i < rows; i++) {
        if (i == 0 || v[i] != v[m - 1])
            v[m++] = v[i];
    }
    *out = DT_ARENA_NEW(&c->arena, double, m);
    for (int i = 0; *out && i < m; i++)
        (*out)[i] = dt_cost_log_dim(v[i]);
    dt_free(v);
    return *out ? m : 0;
}

static bool fill_knots(struct dt_cost *c, const struct dt_cost_group_table *t,
                       const struct dt_cost_corner *k, int n, struct dt_cost_surface *s)
{
    int fu = fast_dim(s->family, 0), fv = fast_dim(s->family, 1);

    s->nu = axis(c, t, k, n, fu, &s->lu);
    s->nv = 1;
    if (s->nu && fv >= 0)
        s->nv = axis(c, t, k, n, fv, &s->lv);
    if (s->nu == 0 || s->nv == 0)
        return false;
    s->z = DT_ARENA_NEW(&c->arena, double, (size_t)s->nu *(size_t)s->nv);
    s->kind = DT_ARENA_NEW(&c->arena, unsigned char, (size_t)s->nu *(size_t)s->nv);
    if (!s->z || !s->kind)
        return false;
    for (int iv = 0; iv < s->nv; iv++) {
        for (int iu = 0; iu < s->nu; iu++) {
            unsigned char worst = 0, flags = 0;
            double z = 0;

            for (int i = 0; i < n; i++) {
                unsigned char kind;

                z +=
                    k[i].w * group_eval(t, k[i].g, fu, fv, s->lu[iu], s->lv ? s->lv[iv] : 0, &kind);
                flags |= kind & ROW_FLAGS;
                kind &= (unsigned char)~ROW_FLAGS;
                worst = kind > worst ? kind : worst;
            }
            s->z[iv * s->nu + iu] = z;
            s->kind[iv * s->nu + iu] = worst | flags;
        }
    }
    return true;
}

/* GSL interpolants: Steffen (monotone between knots, exact on them) for curves, bilinear for two
 * axes. */
static bool make_interpolant(struct dt_cost_surface *s)
{
    gsl_error_handler_t *old = gsl_set_error_handler_off();
    bool ok = true;

    if (s->nu > 1)
        ok = (s->au = gsl_interp_accel_alloc()) != NULL;
    if (s->nv > 1)
        ok = ok && (s->av = gsl_interp_accel_alloc());
    if (s->nu > 1 && s->nv > 1) {
        s->i2 = gsl_interp2d_alloc(gsl_interp2d_bilinear, (size_t)s->nu, (size_t)s->nv);
        ok = ok && s->i2 &&
             !gsl_interp2d_init(s->i2, s->lu, s->lv, s->z, (size_t)s->nu, (size_t)s->nv);
    } else if (s->nu > 1 || s->nv > 1) {
        const double *knots = s->nu > 1 ? s->lu : s->lv;
        size_t n = (size_t)(s->nu > 1 ? s->nu : s->nv);

        s->i1 = gsl_interp_alloc(n >= 3 ? gsl_interp_steffen : gsl_interp_linear, n);
        ok = ok && s->i1 && !gsl_interp_init(s->i1, knots, s->z, n);
    }
    gsl_set_error_handler(old);
    return ok;
}

static struct dt_cost_surface *surface_new(struct dt_cost *c, int family, int phase,
                                           const int64_t *slow)
{
    const struct dt_cost_group_table *t = dt_cost_groups(c, family, phase);
    struct dt_cost_corner corners[COST_MAX_CORNERS];
    struct dt_cost_surface *s;
    int n;

    if (t->n_groups == 0)
        return NULL;
    s = DT_ARENA_NEW(&c->arena, struct dt_cost_surface, 1);
    if (!s) {
        c->oom = true;
        return NULL;
    }
    s->next = c->surfaces;
    c->surfaces = s;
    s->family = family;
    s->phase = phase;
    s->min_ns = t->min_ns;
    memcpy(s->slow, slow, sizeof(s->slow));
    n = dt_cost_corners(c, t, s, corners);
    if (n == 0 || !fill_knots(c, t, corners, n, s) || !make_interpolant(s)) {
        c->oom = true;
        return NULL;
    }
    return s;
}

struct dt_cost_surface *dt_cost_surface(struct dt_cost *c, int family, int phase, const int64_t *d)
{
    int64_t slow[6];
    uint64_t h = dt_hash_word((uint64_t)family << 8 | (uint64_t)phase, DT_HASH_GOLDEN);
    struct dt_cost_surface *s;
    int at;

    for (int i = 0; i < 6; i++) {
        slow[i] = dt_cost_is_slow(family, i) ? d[i] : 0;
        h = dt_hash_word(h, (uint64_t)slow[i]);
    }
    for (at = (int)(h & (SURFACE_ENTRIES - 1)); (s = c->surface[at]);
         at = (at + 1) & (SURFACE_ENTRIES - 1)) {
        if (s->hash == h && s->family == family && s->phase == phase &&
            !memcmp(s->slow, slow, sizeof(slow)))
            return s;
    }
    if (c->n_surfaces >= SURFACE_ENTRIES / 2) /* no program asks for thousands of shapes */
        return NULL;
    s = surface_new(c, family, phase, slow);
    if (s) {
        s->hash = h;
        c->surface[at] = s;
        c->n_surfaces++;
    }
    return s;
}

/* ---- evaluation ---- */

static double clamp_axis(const double *x, int n, double q, bool *below, bool *outside)
{
    if (q < x[0]) {
        *below |= q < x[0] - 1e-9;
        *outside |= q < x[0] - 1e-9;
        return x[0];
    }
    if (q > x[n - 1]) {
        *outside |= q > x[n - 1] + 1e-9;
        return x[n - 1];
    }
    return q;
}

static enum dt_cost_prov prov_of(const struct dt_cost_surface *s, unsigned char kind, bool exact,
                                 bool outside)
{
    unsigned char row = kind & (unsigned char)~ROW_FLAGS;

    if (row == DT_ROW_ASSUMED)
        return DT_PROV_ASSUMED;
    if (outside || !s->slow_inside || (kind & ROW_BEYOND))
        return DT_PROV_EXTRAPOLATED;
    if (row == DT_ROW_DERIVED)
        return DT_PROV_COMPUTED;
    return exact && s->slow_exact && kind == DT_ROW_MEASURED ? DT_PROV_MEASURED
                                                             : DT_PROV_INTERPOLATED;
}

static unsigned char worse(unsigned char a, unsigned char b)
{
    unsigned char ra = a & (unsigned char)~ROW_FLAGS, rb = b & (unsigned char)~ROW_FLAGS;

    return (ra > rb ? ra : rb) | ((a | b) & ROW_FLAGS);
}

/* The knots of one axis around q, which lies inside: one and the same where q is a knot. */
struct around {
    int lo, hi;
};

static struct around knots_around(const double *x, int n, double q, gsl_interp_accel *a)
{
    int i;

    if (n == 1)
        return (struct around){0, 0};
    i = (int)gsl_interp_accel_find(a, x, (size_t)n, q);
    return (struct around){i + (x[i + 1] - q < 1e-12), i + (q - x[i] >= 1e-12)};
}

double dt_cost_surface_eval(struct dt_cost_surface *s, double lu, double lv,
                            enum dt_cost_prov *prov, bool *below)
{
    bool outside = false;
    struct around u, v = {0, 0};
    const unsigned char *lo, *hi;

    *below = false;
    /* an axis of one knot too: another length or batch than the measured one was not measured */
    lu = clamp_axis(s->lu, s->nu, lu, below, &outside);
    u = knots_around(s->lu, s->nu, lu, s->au);
    if (s->lv) {
        lv = clamp_axis(s->lv, s->nv, lv, below, &outside);
        v = knots_around(s->lv, s->nv, lv, s->av);
    }
    lo = s->kind + (size_t)v.lo * (size_t)s->nu;
    hi = s->kind + (size_t)v.hi * (size_t)s->nu;
    *prov = prov_of(s, worse(worse(lo[u.lo], lo[u.hi]), worse(hi[u.lo], hi[u.hi])),
                    u.lo == u.hi && v.lo == v.hi, outside);
    if (s->i2)
        return gsl_interp2d_eval(s->i2, s->lu, s->lv, s->z, lu, lv, s->au, s->av);
    if (s->i1)
        return s->nu > 1 ? gsl_interp_eval(s->i1, s->lu, s->z, lu, s->au)
                         : gsl_interp_eval(s->i1, s->lv, s->z, lv, s->av);
    return s->z[0];
}

void dt_cost_surfaces_free(struct dt_cost *c)
{
    for (struct dt_cost_surface *s = c->surfaces; s; s = s->next) {
        if (s->i1)
            gsl_interp_free(s->i1);
        if (s->i2)
            gsl_interp2d_free(s->i2);
        if (s->au)
            gsl_interp_accel_free(s->au);
        if (s->av)
            gsl_interp_accel_free(s->av);
    }
}
