/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A file of captions, for packing: which caption belongs to which image.
 *
 *   CSV    RFC 4180: a header line that names the columns; fields with commas, line ends or quotes are
 *          quoted, and a quote in them is written twice; LF or CRLF; a byte-order mark may begin it
 *   JSONL  a JSON object a line
 *
 * It is JSONL if its first character is '{'.  Empty lines are passed over. */
#ifndef DT_EXEC_DATA_PACK_CAPTIONS_H
#define DT_EXEC_DATA_PACK_CAPTIONS_H

#include "exec/data/report.h"
#include <stddef.h>

/* What Hugging Face's image folders call them. */
#define DT_PACK_NAME_KEY "file_name"
#define DT_PACK_CAPTION_KEY "text"

struct dt_pack_caption {
    const char *name, *text; /* they end with NUL; the text holds none */
    size_t len;              /* of the text */
    int line, col;           /* of the name */
    bool used;
};
struct dt_pack_captions;

/* Columns or members `name_key` and `text_key`.  A caption that is not UTF-8 is counted in `report`,
 * and so is a whole line of JSON; anything else that is wrong is DT_ERR_INPUT with its place.  A name
 * may stand there once. */
enum dt_status dt_pack_captions_read(const char *path, const char *name_key, const char *text_key,
                                     struct dt_data_report *report, struct dt_error *err,
                                     struct dt_pack_captions **out);
/* The same of bytes in memory, which are changed and must outlive it; they end with a NUL that `len`
 * does not count. */
enum dt_status dt_pack_captions_parse(const char *path, char *bytes, size_t len,
                                      const char *name_key, const char *text_key,
                                      struct dt_data_report *report, struct dt_error *err,
                                      struct dt_pack_captions **out);
/* NULL = none. */
struct dt_pack_caption *dt_pack_captions_find(const struct dt_pack_captions *c, const char *name);
size_t dt_pack_captions_count(const struct dt_pack_captions *c);
/* The i-th in the order of the file. */
struct dt_pack_caption *dt_pack_captions_at(const struct dt_pack_captions *c, size_t i);
/* A name, for a message: on one line, and cut to the buffer. */
const char *dt_pack_captions_quote(const char *name, char *buf, size_t size);
const char *dt_pack_captions_path(const struct dt_pack_captions *c);
void dt_pack_captions_free(struct dt_pack_captions *c);

#endif
