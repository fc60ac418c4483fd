/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a device finds out by measuring (struct dt_device_notes), in a file (core/profile/profile_notes.h). */
#ifndef DT_EXEC_TRAIN_PROFILER_NOTES_H
#define DT_EXEC_TRAIN_PROFILER_NOTES_H

#include "kernels/device.h"

/* Reads all notes of the file, which is made with the first one that is kept, if it is not there.  Each is written at
 * once; what cannot be written is said to `warn` (NULL: nobody listens), once, and is used all the same.  The
 * result is for struct dt_device_options, whose device closes it; `path` and `warn` live as long. */
enum dt_status dt_profiler_notes_open(const char *path, bool at_once, const struct dt_warn *warn,
                                      struct dt_error *err, const struct dt_device_notes **out);

#endif
