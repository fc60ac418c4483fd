/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fit and resample: measured rows of several published tables -> one profile of one device on our
 * own grids.
 *
 * Every family is fitted in log space over a simple model of its time (profile_local.h), validated
 * by k-fold hold-out, and resampled; what no table has is derived from what one has, and says so in
 * its kind and source note. */
#ifndef DT_FIT_PROFILE_FIT_H
#define DT_FIT_PROFILE_FIT_H

#include "fit/profile_local.h"
#include "core/profile/profile_schema.h"

struct dt_fit_score {
    char what[64];
    struct dt_fit_local_score s; /* relative errors */
};
struct dt_fit_report {
    int n;
    struct dt_fit_score score[32];
};

/* Devices that can be fitted, NULL past the end. */
const char *dt_fit_device(int i);

/* `in`: measured rows of all devices.  `device`: one of dt_fit_device().  Adds rows to `out` (an
 * empty table). Missing families are one DT_ERR_INPUT naming the table to import. */
enum dt_status dt_fit_profile(const struct dt_profile_table *in, const char *device,
                              struct dt_error *err, struct dt_profile_table *out,
                              struct dt_fit_report *report);

#endif
