/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_speed.h"

#include "base/mem.h"
#include "comm/reference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct dt_train_speed {
    struct dt_load_reference *reference;
    int64_t every;
    int rank, ranks;
    double before_s; /* of this rank */
    double *both_s;  /* [ranks][2]: before, after */
    double *mean_s;  /* [ranks] */
};

enum dt_status dt_train_speed_open(const struct dt_train_options *o, int ranks,
                                   struct dt_error *err, struct dt_train_speed **out)
{
    const struct dt_device_info *d = &o->setup->device->info;
    struct dt_train_speed *p;
    enum dt_status st;

    *out = NULL;
    if (o->reference_every <= 0)
        return DT_OK;
    if (d->id[0])
        return dt_error_set(err, DT_ERR_INPUT,
                            "the reference kernel says how fast a CPU is; training is on %s",
                            d->name);
    p = dt_calloc(1, sizeof(*p) + 3 * (size_t)ranks * sizeof(double));
    if (!p)
        return dt_error_nomem(err, "the speed of ranks");
    p->both_s = (double *)(p + 1);
    p->mean_s = p->both_s + 2 * ranks;
    p->every = o->reference_every;
    p->rank = o->transport ? o->transport->rank : 0;
    p->ranks = ranks;
    st = dt_load_reference_new(d->threads, err, &p->reference);
    if (st == DT_OK)
        *out = p;
    else
        dt_free(p);
    return st;
}

void dt_train_speed_close(struct dt_train_speed *p)
{
    if (!p)
        return;
    dt_load_reference_free(p->reference);
    dt_free(p);
}

bool dt_train_speed_due(const struct dt_train_speed *p, int64_t step)
{
    return p && step % p->every == 0;
}

void dt_train_speed_before(struct dt_train_speed *p)
{
    p->before_s = dt_load_reference_s(p->reference);
}

enum dt_status dt_train_speed_after(struct dt_train_speed *p, struct dt_exec *x,
                                    struct dt_error *err, struct dt_train_step *s)
{
    memset(p->both_s, 0, 2 * (size_t)p->ranks * sizeof(*p->both_s));
    p->both_s[2 * p->rank] = p->before_s;
    p->both_s[2 * p->rank + 1] = dt_load_reference_s(p->reference);
    if (p->ranks > 1)
        DT_TRY(dt_exec_sum(x, p->both_s, 2 * (size_t)p->ranks, err));
    for (int r = 0; r < p->ranks; r++) {
        for (int k = 0; k < 2; k++)
            s->reference_s[k] += p->both_s[2 * r + k] / p->ranks;
        p->mean_s[r] = sqrt(p->both_s[2 * r] * p->both_s[2 * r + 1]);
    }
    s->reference_rank_s = p->mean_s;
    s->reference_ranks = p->ranks;
    s->reference_steady = dt_load_reference_steady(s->reference_s[0], s->reference_s[1]);
    return DT_OK;
}

double dt_train_mfu(const struct dt_train_options *o, struct dt_train_summary *sum, int64_t step,
                    double model_flops, double seconds)
{
    double rate = seconds > 0 ? model_flops / seconds : 0, mfu = rate / sum->gemm_peak_flops;
    char what[64] = "there is";

    if (mfu <= 1)
        return mfu;
    if (step > 0)
        snprintf(what, sizeof(what), "step %lld has", (long long)step);
    if (step == 0 || !sum->mfu_refused)
        dt_warn(
            o->warn,
            "%s no MFU: the model's %.4g TFLOP in %.4g s are %.4g TFLOP/s, %.0f %% of the "
            "%.4g TFLOP/s at which products of %d x %d were measured before training; something "
            "else used the device then, or they are too small for it",
            what, 1e-12 * model_flops, seconds, 1e-12 * rate, 100 * mfu,
            1e-12 * sum->gemm_peak_flops, sum->gemm_peak_side, sum->gemm_peak_side);
    if (step > 0)
        sum->mfu_refused = true;
    return NAN;
}
