/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A streaming JSON writer into a growing buffer.  Numbers are printed so that they read back exactly
 * where they are integers, and with %.9g otherwise (byte-stable; LC_ALL does not matter: '.' always).
 * NaN and infinities become null.  Errors (out of memory) are sticky and reported by dt_json_finish. */
#ifndef DT_BASE_JSON_H
#define DT_BASE_JSON_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_json {
    char *buf;
    size_t len, cap;
    int depth;
    bool failed, pretty;
    unsigned char state[64]; /* per depth: kind and whether an element was written */
};

void dt_json_init(struct dt_json *j, bool pretty);
void dt_json_begin_object(struct dt_json *j);
void dt_json_end_object(struct dt_json *j);
void dt_json_begin_array(struct dt_json *j);
void dt_json_end_array(struct dt_json *j);
void dt_json_key(struct dt_json *j, const char *key);
void dt_json_string(struct dt_json *j, const char *s); /* NULL -> null */
void dt_json_int(struct dt_json *j, int64_t v);
void dt_json_double(struct dt_json *j, double v);
void dt_json_bool(struct dt_json *j, bool v);
void dt_json_null(struct dt_json *j);
/* A value that is JSON text already (a number copied from a document); not checked. */
void dt_json_raw(struct dt_json *j, const char *text);
/* key + value in one call */
void dt_json_kv_string(struct dt_json *j, const char *key, const char *s);
void dt_json_kv_int(struct dt_json *j, const char *key, int64_t v);
void dt_json_kv_double(struct dt_json *j, const char *key, double v);
void dt_json_kv_bool(struct dt_json *j, const char *key, bool v);
/* Gives the NUL-terminated text to the caller (dt_free), or DT_ERR_NOMEM.  The writer is spent. */
enum dt_status dt_json_finish(struct dt_json *j, struct dt_error *err, char **out);
void dt_json_discard(struct dt_json *j);

#endif
