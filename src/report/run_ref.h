/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How people name a run of a runs file: by its number, as the last one or the one before it, or by a tag. */
#ifndef DT_REPORT_RUN_REF_H
#define DT_REPORT_RUN_REF_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct dt_run_ref {
    char file[1024];
    int64_t id;
};
enum { DT_RUN_TAG_SIZE = 64 };

/* "ID", "last", "last-1" (the one before) or a tag, of `file`, or of FILE with "FILE:" before it. */
enum dt_status dt_run_find(const char *text, const char *file, struct dt_error *err,
                           struct dt_run_ref *out);
/* A letter, then letters, digits, '.', '_' and '-', at most 63 in all; not "last" or "last-N". */
bool dt_run_tag_valid(const char *name);

#endif
