/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A whole tensor comes to where this rank keeps it, or some of it.
 *
 *   values (host)   [ row 0: mine | theirs | row 1: mine | theirs | .. ]
 *   a buffer        [ row 0 | row 1 | .. ]       one copy: a member's slice lies without gaps
 *
 * The copies of a tensor may still be under way when the next one is put. */
#include "exec/program/execute_whole.h"

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

/* What the optimizer keeps of it, segment by segment. */
static enum dt_status put_moments(struct dt_exec_whole_impl *impl, const struct dt_optimizer *o,
                                  const struct dt_param *p, const float *values, float *moments,
                                  struct dt_error *err)
{
    for (int i = 0; moments && i < o->n_segments; i++) {
        const struct dt_optimizer_segment *s = &o->segments[i];
        size_t lo = s->at > p->at ? s->at : p->at, end = p->at + p->n;
        size_t hi = s->at + s->n < end ? s->at + s->n : end;

        if (hi > lo)
            DT_TRY(put_slice(impl, p, values, lo - p->at, hi - p->at,
                             moments + s->moment + (lo - s->at), err));
    }
    return DT_OK;
}

enum dt_status dt_exec_put(const struct dt_exec_part *part, enum dt_param_what what, int param,
                           const float *values, struct dt_error *err)
{
    struct dt_exec_whole_impl *impl = part->impl;
    int here = ((const struct dt_exec_whole_own *)part->own)->here[param];

    for (int r = 0; r < impl->x->env.dp[part->module]; r++) {
        struct dt_exec_vstage *vs = dt_exec_vs(&impl->x->stages, part->module, r, part->v);
        const struct dt_param *p;
        int n;

        if (!vs->stage || here < 0)
            continue;
        p = &dt_stage_params(vs->stage, &n)[here];
        if (what == DT_PARAM_VALUE)
            DT_TRY(put_slice(impl, p, values, 0, p->n, dt_stage_master(vs->stage) + p->at, err));
        else
            DT_TRY(put_moments(impl, &vs->opt, p, values,
                               what == DT_PARAM_AVG ? vs->opt.exp_avg : vs->opt.exp_avg_sq, err));
    }
    return DT_OK;
}

enum dt_status dt_exec_put_end(struct dt_exec *x, struct dt_error *err)
{
    DT_TRY(x->env.dev->queue_sync(x->env.q, err));
    return dt_exec_changed(x, err);
}
