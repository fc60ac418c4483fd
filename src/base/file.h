/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Small file helpers: whole-file read with a limit, and atomic write (temp file, fsync, rename). */
#ifndef DT_BASE_FILE_H
#define DT_BASE_FILE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

/* Opens a file for reading, a regular one only: a named pipe could be waited for for ever, and a
 * device never end.  With `stream` also what the user has opened for us, by the names /dev/stdin
 * and /dev/fd/N (which the shell's <(...) gives), be it a pipe or a device.  Never waits. */
enum dt_status dt_file_open(const char *path, bool stream, struct dt_error *err, int *fd);
/* For a library that opens the file itself: DT_ERR_INPUT if there is something else than a regular
 * file; nothing at all is left to the library. */
enum dt_status dt_file_check(const char *path, struct dt_error *err);
/* Is it "-", /dev/stdin or the like, which only this process can read, and once? */
bool dt_file_is_stream(const char *path);
/* Reads the file ("-" = stdin; /dev/stdin and /dev/fd/N as they are) into a NUL-terminated buffer
 * (dt_free).  DT_ERR_INPUT when it cannot be opened or is larger than `limit` bytes. */
enum dt_status dt_file_read(const char *path, size_t limit, struct dt_error *err, char **out,
                            size_t *len);
/* Makes a new, empty file beside `target`, "TARGET.tmp.PID" or, where that name is taken,
 * "TARGET.tmp.PID.N", and opens it for writing: never one that is there already, nor what a link or
 * a pipe of that name leads to.  `temp` gets its name; the caller renames or removes it. */
enum dt_status dt_file_temp(const char *target, struct dt_error *err, char *temp, size_t size,
                            int *fd);
/* Writes all or nothing; path "-" = stdout. */
enum dt_status dt_file_write(const char *path, const char *text, size_t len, struct dt_error *err);
/* Finds a shipped file: NAME as given if it exists (and contains '/' or '.'), else
 * $DISTTRAIN_TRACES/kind/NAME.ext, else the build-time source and install dirs.  `kind` is "models", "clusters", …
 * `ext` ".yaml"/".sql"/".csv".  On failure DT_ERR_INPUT, message lists the presets of that kind. */
enum dt_status dt_file_find(const char *kind, const char *name, const char *ext,
                            struct dt_error *err, char *path, size_t size);

/* Names of the shipped files of a kind, ascending: *out[*n], each and the list for dt_free.  None is no error. */
enum dt_status dt_file_presets(const char *kind, const char *ext, struct dt_error *err, char ***out,
                               size_t *n);

#endif
