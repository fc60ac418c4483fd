/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A whole tensor comes to where this rank keeps it, or some of it.
 *
 *   values (host)   [ row 0: mine | theirs | row 1: mine | theirs | .. ]
 *   a buffer        [ row 0 | row 1 | .. ]       one copy: a member's slice lies without gaps
 *
 * The copies of a tensor may still be under way when the next one is put. */
#include "exec/program/execute_whole.h"

#include "base/bf16.h"

#include <string.h>

/* Elements [lo, hi) of a member's parameter, out of the whole tensor. */
static void slice(const struct dt_param *p, const float *values, size_t lo, size_t hi, float *to)
{
    for (int64_t k = 0; k < dt_param_runs(p); k++) {
        struct dt_param_run r = dt_param_run(p, k);
        size_t a = r.at > lo ? r.at : lo, b = r.at + r.n < hi ? r.at + r.n : hi;

        if (b > a)
            memcpy(to + (a - lo), values + r.whole + (a - r.at), (b - a) * sizeof(*to));
    }
}

/* The same to device memory, in stretches. */
static enum dt_status put_slice(struct dt_exec_whole_impl *impl, const struct dt_param *p,
                                const float *values, size_t lo, size_t hi, float *to,
                                struct dt_error *err)
{
    size_t most = impl->ferry.bytes / sizeof(float);

    for (size_t at = lo; at < hi; at += most) {
        size_t n = hi - at < most ? hi - at : most;
        void *room;

        DT_TRY(dt_ferry_room(&impl->ferry, err, &room));
        slice(p, values, at, at + n, room);
        dt_ferry_in(&impl->ferry, to + (at - lo), n * sizeof(float));
    }
    return DT_OK;
}

/* The same rounded to bf16: the rounded copies of a stage without masters. */
static enum dt_status put_rounded(struct dt_exec_whole_impl *impl, const struct dt_param *p,
                                  const float *values, uint16_t *to, struct dt_error *err)
{
    size_t most = impl->ferry.bytes / sizeof(float);

    for (size_t at = 0; at < p->n; at += most) {
        size_t n = p->n - at < most ? p->n - at : most;
        uint16_t *out;
        float *in;
        void *room;

        DT_TRY(dt_ferry_room(&impl->ferry, err, &room));
        in = room;
        out = room;
        slice(p, values, at, at + n, in);
        for (size_t i = 0; i < n; i++) { /* what is written has been read */
            float x;

            memcpy(&x, &in[i], sizeof(x));
            out[i] = dt_bf16_from_f32(x);
        }
        dt_ferry_in(&impl->ferry, to + at, n * sizeof(*out));
    }
    return DT_OK;
}

/* The parameter as the device keeps it. */
static enum dt_status put_value(struct dt_exec_whole_impl *impl, struct dt_stage *s,
                                const struct dt_param *p, const float *values, struct dt_error *err)
{
    float *exact = dt_stage_exact(s, p);

    if (!dt_stage_master(s))
        DT_TRY(put_rounded(impl, p, values, (uint16_t *)dt_stage_rounded(s) + p->at, err));
    return exact ? put_slice(impl, p, values, 0, p->n, exact, err) : DT_OK;
}

/* What of it lies in a segment of what an optimizer keeps. */
static enum dt_status put_segment(struct dt_exec_whole_impl *impl, const struct dt_optimizer *o,
                                  const struct dt_optimizer_segment *s, const struct dt_param *p,
                                  const float *values, float *kept, struct dt_error *err)
{
    size_t lo = s->at > p->at ? s->at : p->at, end = p->at + p->n;
    size_t hi = s->at + s->n < end ? s->at + s->n : end;
    float *to = kept + s->moment + (lo - s->at);

    if (hi <= lo)
        return DT_OK;
    if (!o->host)
        return put_slice(impl, p, values, lo - p->at, hi - p->at, to, err);
    slice(p, values, lo - p->at, hi - p->at, to);
    return DT_OK;
}

/* Moments, or the masters of an optimizer that steps on the host. */
static enum dt_status put_kept(struct dt_exec_whole_impl *impl, const struct dt_optimizer *o,
                               const struct dt_param *p, const float *values, float *kept,
                               struct dt_error *err)
{
    for (int i = 0; kept && i < o->n_segments; i++)
        DT_TRY(put_segment(impl, o, &o->segments[i], p, values, kept, err));
    for (int i = 0; kept && kept == o->master && i < o->n_kept; i++)
        DT_TRY(put_segment(impl, o, &o->kept[i], p, values, kept, err));
    return DT_OK;
}

static enum dt_status put_in(struct dt_exec_whole_impl *impl, struct dt_exec_vstage *vs,
                             enum dt_param_what what, const struct dt_param *p, const float *values,
                             struct dt_error *err)
{
    float *const kept[DT_PARAM_WHAT_N] = {[DT_PARAM_VALUE] = vs->opt.master,
                                          [DT_PARAM_AVG] = vs->opt.exp_avg,
                                          [DT_PARAM_AVG_SQ] = vs->opt.exp_avg_sq};

    if (what == DT_PARAM_VALUE)
        DT_TRY(put_value(impl, vs->stage, p, values, err));
    return put_kept(impl, &vs->opt, p, values, kept[what], err);
}

enum dt_status dt_exec_put(const struct dt_exec_part *part, enum dt_param_what what, int param,
                           const float *values, struct dt_error *err)
{
    struct dt_exec_whole_impl *impl = part->impl;
    int here = ((const struct dt_exec_whole_own *)part->own)->here[param];

    for (int r = 0; r < impl->x->env.dp[part->module]; r++) {
        struct dt_exec_vstage *vs = dt_exec_vs(&impl->x->stages, part->module, r, part->v);
        int n;

        if (vs->stage && here >= 0)
            DT_TRY(put_in(impl, vs, what, &dt_stage_params(vs->stage, &n)[here], values, err));
    }
    return DT_OK;
}

enum dt_status dt_exec_put_end(struct dt_exec *x, struct dt_error *err)
{
    DT_TRY(x->env.dev->queue_sync(x->env.q, err));
    return dt_exec_changed(x, err);
}
