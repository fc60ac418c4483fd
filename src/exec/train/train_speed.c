/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_speed.h"

enum dt_status dt_train_speed_open(const struct dt_train_options *o, struct dt_error *err,
                                   struct dt_load_reference **out)
{
    const struct dt_device_info *d = &o->setup->device->info;

    *out = NULL;
    if (o->reference_every <= 0)
        return DT_OK;
    if (d->id[0])
        return dt_error_set(err, DT_ERR_INPUT,
                            "the reference kernel says how fast a CPU is; training is on %s",
                            d->name);
    return dt_load_reference_new(d->threads, err, out);
}

bool dt_train_speed_due(const struct dt_load_reference *r, const struct dt_train_options *o,
                        int64_t step)
{
    return r && step % o->reference_every == 0;
}

void dt_train_speed_before(struct dt_load_reference *r, struct dt_train_step *s)
{
    s->reference_s[0] = dt_load_reference_s(r);
}

enum dt_status dt_train_speed_after(struct dt_load_reference *r, struct dt_exec *x, int ranks,
                                    struct dt_error *err, struct dt_train_step *s)
{
    s->reference_s[1] = dt_load_reference_s(r);
    if (ranks > 1)
        DT_TRY(dt_exec_sum(x, s->reference_s, 2, err));
    for (int k = 0; k < 2; k++)
        s->reference_s[k] /= ranks;
    s->reference_steady = dt_load_reference_steady(s->reference_s[0], s->reference_s[1]);
    return DT_OK;
}
