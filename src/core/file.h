/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small file helpers: whole-file read with a limit, and atomic write (temp file, fsync, rename). */
#ifndef DT_CORE_FILE_H
#define DT_CORE_FILE_H

#include "core/status.h"
#include <stddef.h>

/* Reads the file ("-" = stdin) into a NUL-terminated buffer (dt_free).  DT_ERR_INPUT when it cannot be
 * opened or is larger than `limit` bytes. */
enum dt_status dt_file_read(const char *path, size_t limit, struct dt_error *err, char **out,
                            size_t *len);
/* Writes all or nothing; path "-" = stdout. */
enum dt_status dt_file_write(const char *path, const char *text, size_t len, struct dt_error *err);
/* Finds a shipped file: NAME as given if it exists (and contains '/' or '.'), else
 * $DISTTRAIN_TRACES/kind/NAME.ext, else the build-time source and install dirs.  `kind` is "models", "clusters", …
 * `ext` ".yaml"/".sql"/".csv".  On failure DT_ERR_INPUT, message lists the presets of that kind. */
enum dt_status dt_file_find(const char *kind, const char *name, const char *ext,
                            struct dt_error *err, char *path, size_t size);

#endif
