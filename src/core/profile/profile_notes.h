/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What devices found out by measuring, in an SQLite file: one of its own, or a profile's .db, whose other tables stay
 * as they are.
 *
 * Table `note`: device, library (its version), what, value, ns, first_ns; one row for each (device, library, what). */
#ifndef DT_CORE_PROFILE_PROFILE_NOTES_H
#define DT_CORE_PROFILE_PROFILE_NOTES_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DT_PROFILE_NOTE_BYTES = 256, DT_PROFILE_NOTE_TEXT = 512 }; /* less of each is a note */

struct dt_profile_note {
    const char *device, *what;
    int64_t library;
    const void *value;
    size_t bytes;
    double ns, first_ns; /* what it takes, and what the library's own choice took */
};

struct dt_profile_notes;
/* Makes the file where it is not there.  DT_ERR_INPUT where it is something else. */
enum dt_status dt_profile_notes_open(const char *path, struct dt_error *err,
                                     struct dt_profile_notes **out);
void dt_profile_notes_close(struct dt_profile_notes *n); /* NULL is ignored */
/* All rows; false from `take`: out of memory. */
typedef bool dt_profile_note_fn(void *ctx, const struct dt_profile_note *note);
enum dt_status dt_profile_notes_read(struct dt_profile_notes *n, dt_profile_note_fn *take,
                                     void *ctx, struct dt_error *err);
/* One row, in a transaction.  Where there is one for the same, the faster one stays. */
enum dt_status dt_profile_notes_write(struct dt_profile_notes *n,
                                      const struct dt_profile_note *note, struct dt_error *err);

#endif
