/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Housekeeping in a runs file: tags, and runs that go.  Each call is one transaction that waits for other programs as
 * writers do; the file then gives back the space (VACUUM), unless somebody reads it all the time. */
#ifndef DT_REPORT_RUNS_EDIT_H
#define DT_REPORT_RUNS_EDIT_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names the run; a tag that names another moves. */
enum dt_status dt_runs_tag(const char *path, const char *tag, int64_t id, struct dt_error *err);
enum dt_status dt_runs_untag(const char *path, const char *tag, struct dt_error *err);

struct dt_runs_removed {
    int64_t *id; /* in the order in which they went */
    int n;
    size_t cap;
    int64_t bytes_before,
        bytes_after;          /* of the file's content; of what it would be without the rest */
    char not_given_back[512]; /* why the file is still as large; "" = it is not */
};
void dt_runs_removed_free(struct dt_runs_removed *r);

/* All or none: DT_ERR_INPUT if one is not there, or has a tag and `tagged` does not say that it goes too. */
enum dt_status dt_runs_remove(const char *path, const int64_t *id, int n, bool tagged,
                              struct dt_error *err, struct dt_runs_removed *out);

/* Runs with a tag stay, whatever the limits; a run that one of the limits is against goes, the oldest first. */
struct dt_runs_limits {
    int64_t keep;       /* all but the newest so many; -1 = no limit */
    const char *before; /* started before this instant, ISO 8601 UTC; NULL */
    int64_t bytes;      /* until the content takes no more; -1 */
    bool ops;           /* only the ops go: runs stay, with their numbers and lanes */
    bool dry_run;       /* nothing goes */
};
enum dt_status dt_runs_prune(const char *path, const struct dt_runs_limits *l, struct dt_error *err,
                             struct dt_runs_removed *out);

#endif
