/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/profiler_speed.h"

#include <math.h>

enum dt_status dt_profiler_speed_open(double base_s, int threads, struct dt_error *err,
                                      struct dt_profiler_speed *out)
{
    *out = (struct dt_profiler_speed){0};
    DT_TRY(dt_load_reference_new(threads, err, &out->reference));
    out->last_s = dt_load_reference_s(out->reference);
    out->base_s = base_s > 0 ? base_s : out->last_s;
    return DT_OK;
}

void dt_profiler_speed_close(struct dt_profiler_speed *s)
{
    dt_load_reference_free(s->reference);
}

double dt_profiler_speed_factor(struct dt_profiler_speed *s, bool *steady)
{
    double before = s->last_s;

    if (steady)
        *steady = true;
    if (!s->reference)
        return 1;
    s->last_s = dt_load_reference_s(s->reference);
    if (steady)
        *steady = dt_load_reference_steady(before, s->last_s);
    return s->base_s / sqrt(before * s->last_s);
}
