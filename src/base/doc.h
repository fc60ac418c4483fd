/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * YAML 1.2 / JSON documents with positions.  Only doc.c knows libfyaml, whose events it turns into
 * a tree of its own, so that every access is O(1) (maps: linear in their keys).
 *
 * Limits: 64 MiB of text, 4 Mi values (aliases counted as often as they are used), 60 levels.  Tags,
 * several documents in one file, duplicate keys and keys that are not words are errors.
 *
 * Every getter reports a wrong value as file:line:col with what was wrong and what would be right.
 * Unknown keys are errors with a "did you mean" suggestion. */
#ifndef DT_BASE_DOC_H
#define DT_BASE_DOC_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_doc;
struct dt_value;
struct dt_node { /* a value inside a document; valid until the document is overridden or freed */
    const struct dt_doc *doc;
    const struct dt_value *value; /* NULL = absent */
};

/* Read a file ("-" = stdin).  Missing file -> DT_ERR_INPUT.  A limit of 64 MiB holds. */
enum dt_status dt_doc_read(const char *path, struct dt_error *err, struct dt_doc **out);
/* Parse text; `name` is used in messages. */
enum dt_status dt_doc_parse(const char *name, const char *text, size_t len, struct dt_error *err,
                            struct dt_doc **out);
/* Apply "a.b.c=VALUE" (VALUE is YAML); creates missing maps.  Positions inside VALUE are reported
 * with file "command line". */
enum dt_status dt_doc_override(struct dt_doc *doc, const char *assignment, struct dt_error *err);
/* Of the map at the root's key `map`, only these keys (NULL-terminated) remain; nothing happens where
 * no map is. */
enum dt_status dt_doc_keep(struct dt_doc *doc, const char *map, const char *const *keys,
                           struct dt_error *err);
void dt_doc_free(struct dt_doc *doc);
const char *dt_doc_name(const struct dt_doc *doc);
struct dt_node dt_doc_root(const struct dt_doc *doc);
/* The document as canonical JSON text (keys in document order); caller frees with dt_free. */
enum dt_status dt_doc_to_json(const struct dt_doc *doc, struct dt_error *err, char **out);
/* The same of one value, on one line; "null" of an absent one. */
enum dt_status dt_node_to_json(struct dt_node n, struct dt_error *err, char **out);

bool dt_node_present(struct dt_node n);
bool dt_node_is_map(struct dt_node n);
bool dt_node_is_seq(struct dt_node n);
bool dt_node_is_scalar(struct dt_node n);
bool dt_node_is_null(struct dt_node n); /* explicit null or ~ */
/* Scalar text (NUL-terminated, owned by the doc) or NULL if not a scalar. */
const char *dt_node_text(struct dt_node n);
void dt_node_where(struct dt_node n, const char **file, int *line, int *col);
/* dt_error_at() at the node's place. */
enum dt_status dt_node_error(struct dt_node n, struct dt_error *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

struct dt_node dt_map_get(struct dt_node map, const char *key); /* absent node if none */
size_t dt_map_size(struct dt_node map);
/* i-th pair in document order. */
void dt_map_at(struct dt_node map, size_t i, const char **key, struct dt_node *value);
size_t dt_seq_size(struct dt_node seq);
struct dt_node dt_seq_at(struct dt_node seq, size_t i);

/* Require a map whose keys are all in the NULL-terminated list; `what` names the map in messages. */
enum dt_status dt_map_check(struct dt_node map, const char *what, const char *const *keys,
                            struct dt_error *err);

/* Typed getters of map[key].  `*_opt`-style: if the key is absent *out is left untouched (so preset it
 * to the default) and DT_OK is returned.  Required variants: check with dt_map_require() first. */
enum dt_status dt_map_require(struct dt_node map, const char *what, const char *key,
                              struct dt_error *err);
enum dt_status dt_get_int(struct dt_node map, const char *key, int64_t min, int64_t max,
                          int64_t *out, struct dt_error *err);
enum dt_status dt_get_i32(struct dt_node map, const char *key, int min, int max, int *out,
                          struct dt_error *err);
enum dt_status dt_get_double(struct dt_node map, const char *key, double min, double max,
                             double *out, struct dt_error *err);
enum dt_status dt_get_bool(struct dt_node map, const char *key, bool *out, struct dt_error *err);
/* String copied into buf (error if longer). */
enum dt_status dt_get_string(struct dt_node map, const char *key, char *buf, size_t size,
                             struct dt_error *err);
/* One of a NULL-terminated list of words; *out is its index. */
enum dt_status dt_get_enum(struct dt_node map, const char *key, const char *const *words, int *out,
                           struct dt_error *err);
/* A number with a unit: "80 GB", "400 Gb/s", "21 us", or a bare number in the base unit.
 * `dimension` is "bytes" (B kB MB GB TB KiB MiB GiB TiB), "bytes/s" (…B/s and …b/s), "s" (ns us ms s min
 * h d), "flop/s" (GFLOP/s TFLOP/s PFLOP/s).  Result in bytes, bytes/s, seconds, flop/s. */
enum dt_status dt_get_quantity(struct dt_node map, const char *key, const char *dimension,
                               double min, double max, double *out, struct dt_error *err);

/* Nearest word of a NULL-terminated list by edit distance, or NULL if none is near. */
const char *dt_suggest(const char *word, const char *const *words);

#endif
