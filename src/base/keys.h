/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Keys of documents as rows of tables.  One row says all that is known of a key: where its value goes, what it may be,
 * what it means.  The reader below, messages, `disttrain keys`, the completion and the tests of the pages take it from
 * there: a new key is one row, and a reader of its own if its value is none of these types. */
#ifndef DT_BASE_KEYS_H
#define DT_BASE_KEYS_H

#include "base/doc.h"

enum dt_key_type {
    DT_KEY_INTEGER,  /* into an int or an int64_t */
    DT_KEY_NUMBER,   /* into a double */
    DT_KEY_BOOL,     /* into a bool */
    DT_KEY_STRING,   /* into a char array */
    DT_KEY_WORD,     /* one of `words`; its number, into an int, an enum or a bool */
    DT_KEY_QUANTITY, /* a number with a unit of dimension `unit` (dt_get_quantity), into a double */
    DT_KEY_MAP,      /* a map of `keys`, into the struct at `at` */
    DT_KEY_OWN       /* `read` reads it, or whoever else if that is NULL */
};

/* What a text may name.  Who may set keys but not open files (src/serve) goes by it. */
enum dt_key_file {
    DT_KEY_NO_FILE,
    DT_KEY_PRESET, /* a shipped preset by a plain name, or a file */
    DT_KEY_FILE    /* a file or folder, here or inside the value */
};

struct dt_key {
    const char *name; /* NULL ends a table */
    enum dt_key_type type;
    size_t at, size; /* of the value inside the struct that is read into: DT_KEY_INTO */
    double min, max; /* of numbers */
    double scale;    /* of quantities: what is kept is so many times the base unit; 0 = 1 */
    const char *unit;
    const char *form; /* what a string or an own value is, such as "list of paths" */
    enum dt_key_file file;
    const char *const *words;   /* also words that an own value may be */
    const char *const *glosses; /* one line for each word; NULL: they speak for themselves */
    const struct dt_key *keys;  /* also keys that an own value may have */
    const void *
        base; /* what `keys` are read into, with the defaults, where that is no part of the struct */
    bool any; /* the name, in capitals, stands for any name (of a module) or place in a list */
    enum dt_status (*read)(struct dt_node map, const struct dt_key *key, void *into,
                           struct dt_error *err);
    const char *needed;   /* must be stated somewhere; such as this (dt_keys_missing) */
    const char *fallback; /* the default in words; NULL: the value in the defaults */
    const char *help;     /* one line for people */
};
#define DT_KEY_NO_LIMIT 0x1p63 /* .max of integers */
/* .at and .size of a row */
#define DT_KEY_INTO(type, member) .at = offsetof(type, member), .size = sizeof(((type *)0)->member)

/* Reads the map into the struct `into`: unknown keys, wrong types and ranges are errors at their place; keys that are
 * absent leave their value as it is.  Rows are read in their order.  An absent map is no error. */
enum dt_status dt_keys_read(struct dt_node map, const char *what, const struct dt_key *keys,
                            void *into, struct dt_error *err);
/* Only whether all keys are known. */
enum dt_status dt_keys_check(struct dt_node map, const char *what, const struct dt_key *keys,
                             struct dt_error *err);
/* Only the row of this name, which the table has, for keys whose turn depends on others. */
enum dt_status dt_keys_get(struct dt_node map, const struct dt_key *keys, const char *name,
                           void *into, struct dt_error *err);
/* Whether the map has all keys that are needed. */
enum dt_status dt_keys_require(struct dt_node map, const char *what, const struct dt_key *keys,
                               struct dt_error *err);
/* The first row that is needed and whose value is still all zero; NULL if none. */
const struct dt_key *dt_keys_missing(const struct dt_key *keys, const void *in);

/* Calls fn with every row, maps' rows after their map's, with the path ("train.reorder.intra") and the struct of
 * defaults that its place is in. */
typedef void dt_key_fn(void *ctx, const char *path, const struct dt_key *key, const void *defaults);
void dt_keys_walk(const struct dt_key *keys, const void *defaults, dt_key_fn *fn, void *ctx);
/* The row at a path, or NULL; any name goes for one in capitals. */
const struct dt_key *dt_keys_at(const struct dt_key *keys, const char *path);
/* The row's path that is probably meant by one that leads to none, into buf: its first part that is no name set right, or
 * ("nodes") the only row that ends so.  Returns buf, or NULL where nothing is near. */
const char *dt_keys_suggest(const struct dt_key *keys, const char *path, char *buf, size_t size);
/* Is `path`, as the walk has it, what is asked for or inside it. */
bool dt_keys_inside(const char *path, const char *asked);
/* Does the path, as the walk has it, lead through a name in capitals. */
bool dt_keys_open(const char *path);

/* "integer", "number", "bool", "string", "word", "quantity", "map" or "own" */
const char *dt_key_type_name(const struct dt_key *key);
/* For lists of keys: "integer", "one of a, b", ...; the range, with its unit, or ""; and the default, with `defaults`
 * a struct that holds them, or "".  Each returns buf. */
const char *dt_key_type_text(const struct dt_key *key, char *buf, size_t size);
const char *dt_key_range_text(const struct dt_key *key, char *buf, size_t size);
const char *dt_key_default_text(const struct dt_key *key, const void *defaults, char *buf,
                                size_t size);
/* The value in the struct `in`, as it would be stated; "" of maps and own values.  Returns buf. */
const char *dt_key_value_text(const struct dt_key *key, const void *in, char *buf, size_t size);

#endif
