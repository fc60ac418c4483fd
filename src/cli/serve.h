/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What disttrain serve says: answers to settings, and the keys that its page offers. */
#ifndef DT_CLI_SERVE_H
#define DT_CLI_SERVE_H

#include "cli/point.h"
#include "serve/worker.h"

struct dt_cli_served {
    const char *job, *plan_file;  /* as they were given; plan_file NULL = none */
    const char *const *overrides; /* given beside the job */
    int n_overrides;
    struct dt_points *points;
};

/* For struct dt_serve_program, with a struct dt_cli_served. */
enum dt_status dt_cli_serve_answer(void *ctx, const struct dt_serve_question *q,
                                   struct dt_error *err, char **text);
/* keys.json: the job, and every key that may be set over HTTP, with its value in the job. */
enum dt_status dt_cli_serve_keys(const struct dt_cli_served *d, struct dt_error *err, char **text);

#endif
