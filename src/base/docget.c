/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading values out of documents. */
#include "base/docimpl.h"
#include "base/number.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

/* YAML 1.2 core schema (section 10.3.2) */
bool dt_value_is_null(const struct dt_value *v)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL", NULL};

    return v->kind == DT_VALUE_SCALAR && v->plain && is_one_of(v->text, words);
}

int dt_value_truth(const struct dt_value *v)
{
    static const char *const yes[] = {"true", "True", "TRUE", NULL};
    static const char *const no[] = {"false", "False", "FALSE", NULL};

    if (v->kind != DT_VALUE_SCALAR || !v->plain)
        return -1;
    return is_one_of(v->text, yes) ? 1 : is_one_of(v->text, no) ? 0 : -1;
}

bool dt_node_present(struct dt_node n)
{
    return n.value != NULL;
}

bool dt_node_is_map(struct dt_node n)
{
    return n.value && n.value->kind == DT_VALUE_MAP;
}

bool dt_node_is_seq(struct dt_node n)
{
    return n.value && n.value->kind == DT_VALUE_SEQ;
}

bool dt_node_is_scalar(struct dt_node n)
{
    return n.value && n.value->kind == DT_VALUE_SCALAR;
}

bool dt_node_is_null(struct dt_node n)
{
    return n.value && dt_value_is_null(n.value);
}

const char *dt_node_text(struct dt_node n)
{
    return dt_node_is_scalar(n) ? n.value->text : NULL;
}

void dt_node_where(struct dt_node n, const char **file, int *line, int *col)
{
    *file = n.value ? n.value->at.file : n.doc ? n.doc->name : "";
    *line = n.value ? n.value->at.line : 0;
    *col = n.value ? n.value->at.col : 0;
}

enum dt_status dt_node_error(struct dt_node n, struct dt_error *err, const char *fmt, ...)
{
    char message[sizeof(err->message)];
    const char *file;
    int line, col;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof(message), fmt, ap);
    va_end(ap);
    dt_node_where(n, &file, &line, &col);
    return dt_error_at(err, DT_ERR_INPUT, file, line, col, "%s", message);
}

static const struct dt_doc_pair *find_pair(struct dt_node map, const char *key)
{
    if (!dt_node_is_map(map))
        return NULL;
    for (size_t i = 0; i < map.value->n; i++)
        if (strcmp(map.value->child[i].key, key) == 0)
            return &map.value->child[i];
    return NULL;
}

struct dt_node dt_map_get(struct dt_node map, const char *key)
{
    const struct dt_doc_pair *p = find_pair(map, key);

    return (struct dt_node){map.doc, p ? p->value : NULL};
}

size_t dt_map_size(struct dt_node map)
{
    return dt_node_is_map(map) ? map.value->n : 0;
}

void dt_map_at(struct dt_node map, size_t i, const char **key, struct dt_node *value)
{
    bool there = i < dt_map_size(map);

    if (key)
        *key = there ? map.value->child[i].key : NULL;
    if (value)
        *value = (struct dt_node){map.doc, there ? map.value->child[i].value : NULL};
}

size_t dt_seq_size(struct dt_node seq)
{
    return dt_node_is_seq(seq) ? seq.value->n : 0;
}

struct dt_node dt_seq_at(struct dt_node seq, size_t i)
{
    bool there = i < dt_seq_size(seq);

    return (struct dt_node){seq.doc, there ? seq.value->child[i].value : NULL};
}

/* ---- checks ---- */

/* "a, b, c" from a NULL-terminated list, cut off when it does not fit. */
static const char *join(const char *const *words, char *buf, size_t size)
{
    size_t used = 0;

    buf[0] = '\0';
    for (size_t i = 0; words[i] && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%s", i ? ", " : "", words[i]);
    return buf;
}

/* What a value is, for "…, found X". */
static const char *describe(const struct dt_value *v, char *buf, size_t size)
{
    if (v->kind == DT_VALUE_MAP)
        snprintf(buf, size, "a map");
    else if (v->kind == DT_VALUE_SEQ)
        snprintf(buf, size, "a sequence");
    else if (dt_value_is_null(v))
        snprintf(buf, size, "null");
    else
        snprintf(buf, size, "%s\"%.80s\"", v->plain ? "" : "the string ", v->text);
    return buf;
}

enum dt_status dt_map_check(struct dt_node map, const char *what, const char *const *keys,
                            struct dt_error *err)
{
    char list[2048], found[128];

    if (!dt_node_present(map))
        return DT_OK;
    if (!dt_node_is_map(map))
        return dt_node_error(map, err, "%s: expected a map with keys %s; found %s", what,
                             join(keys, list, sizeof(list)),
                             describe(map.value, found, sizeof(found)));
    for (size_t i = 0; i < map.value->n; i++) {
        const struct dt_doc_pair *p = &map.value->child[i];
        const char *near;

        if (is_one_of(p->key, keys))
            continue;
        near = dt_suggest(p->key, keys);
        if (near)
            return dt_error_at(err, DT_ERR_INPUT, p->at.file, p->at.line, p->at.col,
                               "unknown key \"%s\" in %s; did you mean \"%s\"?", p->key, what,
                               near);
        return dt_error_at(err, DT_ERR_INPUT, p->at.file, p->at.line, p->at.col,
                           "unknown key \"%s\" in %s; its keys are %s", p->key, what,
                           join(keys, list, sizeof(list)));
    }
    return DT_OK;
}

enum dt_status dt_map_require(struct dt_node map, const char *what, const char *key,
                              struct dt_error *err)
{
    if (find_pair(map, key))
        return DT_OK;
    return dt_node_error(map, err, "%s: key \"%s\" is missing", what, key);
}

/* ---- typed getters ---- */

static enum dt_status wrong(struct dt_node n, const char *key, const char *expected,
                            struct dt_error *err)
{
    char found[128];

    return dt_node_error(n, err, "%s: expected %s, found %s", key, expected,
                         describe(n.value, found, sizeof(found)));
}

/* Integers may be written as 8192, 8192.0 or 1e6, as long as they are whole. */
static bool value_int(const struct dt_value *v, int64_t *out)
{
    double d;

    if (v->kind != DT_VALUE_SCALAR || !v->plain)
        return false;
    if (dt_number_int(v->text, out))
        return true;
    if (!dt_number_double(v->text, &d) || d != floor(d) || fabs(d) > 0x1p53)
        return false;
    *out = (int64_t)d;
    return true;
}

enum dt_status dt_get_int(struct dt_node map, const char *key, int64_t min, int64_t max,
                          int64_t *out, struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);
    char expected[96];
    int64_t v;

    if (!n.value)
        return DT_OK;
    if (value_int(n.value, &v) && v >= min && v <= max) {
        *out = v;
        return DT_OK;
    }
    if (max == INT64_MAX || max == INT_MAX)
        snprintf(expected, sizeof(expected), "an integer of at least %lld", (long long)min);
    else
        snprintf(expected, sizeof(expected), "an integer from %lld to %lld", (long long)min,
                 (long long)max);
    return wrong(n, key, expected, err);
}

enum dt_status dt_get_i32(struct dt_node map, const char *key, int min, int max, int *out,
                          struct dt_error *err)
{
    int64_t v = *out;

    DT_TRY(dt_get_int(map, key, min, max, &v, err));
    *out = (int)v;
    return DT_OK;
}

enum dt_status dt_get_double(struct dt_node map, const char *key, double min, double max,
                             double *out, struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);
    char expected[96];
    double v;

    if (!n.value)
        return DT_OK;
    if (n.value->kind == DT_VALUE_SCALAR && n.value->plain && dt_number_double(n.value->text, &v) &&
        v >= min && v <= max) {
        *out = v;
        return DT_OK;
    }
    if (isfinite(min) && isfinite(max))
        snprintf(expected, sizeof(expected), "a number from %g to %g", min, max);
    else if (isfinite(min))
        snprintf(expected, sizeof(expected), "a number of at least %g", min);
    else
        snprintf(expected, sizeof(expected), "a number");
    return wrong(n, key, expected, err);
}

enum dt_status dt_get_bool(struct dt_node map, const char *key, bool *out, struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);

    if (!n.value)
        return DT_OK;
    if (dt_value_truth(n.value) < 0)
        return wrong(n, key, "true or false", err);
    *out = dt_value_truth(n.value);
    return DT_OK;
}

enum dt_status dt_get_string(struct dt_node map, const char *key, char *buf, size_t size,
                             struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);

    if (!n.value)
        return DT_OK;
    if (n.value->kind != DT_VALUE_SCALAR || dt_value_is_null(n.value))
        return wrong(n, key, "a string", err);
    if (strlen(n.value->text) + 1 > size)
        return dt_node_error(n, err, "%s: longer than %zu characters", key, size - 1);
    memcpy(buf, n.value->text, strlen(n.value->text) + 1);
    return DT_OK;
}

enum dt_status dt_get_enum(struct dt_node map, const char *key, const char *const *words, int *out,
                           struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);
    char list[1024], expected[1200];
    const char *near = NULL;

    if (!n.value)
        return DT_OK;
    if (n.value->kind == DT_VALUE_SCALAR) {
        for (int i = 0; words[i]; i++) {
            if (strcmp(n.value->text, words[i]) == 0) {
                *out = i;
                return DT_OK;
            }
        }
        near = dt_suggest(n.value->text, words);
    }
    if (near)
        return dt_node_error(n, err, "%s: unknown value \"%s\"; did you mean \"%s\"? (one of %s)",
                             key, n.value->text, near, join(words, list, sizeof(list)));
    snprintf(expected, sizeof(expected), "one of %s", join(words, list, sizeof(list)));
    return wrong(n, key, expected, err);
}

/* ---- quantities ---- */

struct unit {
    const char *name;
    double factor; /* of the base unit */
};

static const struct unit units_bytes[] = {
    {"B", 1},        {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}, {"PB", 1e15},
    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {NULL, 0}};
static const struct unit units_bytes_per_s[] = {
    {"B/s", 1},        {"kB/s", 1e3},     {"MB/s", 1e6},     {"GB/s", 1e9},  {"TB/s", 1e12},
    {"KiB/s", 0x1p10}, {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {"b/s", 0.125}, {"kb/s", 125},
    {"Mb/s", 125e3},   {"Gb/s", 125e6},   {"Tb/s", 125e9},   {NULL, 0}};
static const struct unit units_s[] = {{"ns", 1e-9}, {"us", 1e-6}, {"\xC2\xB5s", 1e-6},
                                      {"ms", 1e-3}, {"s", 1},     {"min", 60},
                                      {"h", 3600},  {"d", 86400}, {NULL, 0}};
static const struct unit units_flop_per_s[] = {
    {"FLOP/s", 1},     {"MFLOP/s", 1e6},  {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12},
    {"PFLOP/s", 1e15}, {"EFLOP/s", 1e18}, {NULL, 0}};

static const struct {
    const char *name;
    const struct unit *units;
    const char *example;
} dimensions[] = {{"bytes", units_bytes, "80 GB"},
                  {"bytes/s", units_bytes_per_s, "400 Gb/s"},
                  {"s", units_s, "21 us"},
                  {"flop/s", units_flop_per_s, "312 TFLOP/s"}};

#define UNITS_MAX 16

static enum dt_status wrong_unit(struct dt_node n, const char *key, const char *unit,
                                 const char *dimension, const struct unit *units,
                                 struct dt_error *err)
{
    const char *names[UNITS_MAX + 1], *near;
    char list[256];
    size_t k;

    for (k = 0; units[k].name && k < UNITS_MAX; k++)
        names[k] = units[k].name;
    names[k] = NULL;
    near = dt_suggest(unit, names);
    return dt_node_error(n, err, "%s: \"%.40s\" is not a unit of %s%s%s%s (units: %s)", key, unit,
                         dimension, near ? "; did you mean \"" : "", near ? near : "",
                         near ? "\"?" : "", join(names, list, sizeof(list)));
}

enum dt_status dt_get_quantity(struct dt_node map, const char *key, const char *dimension,
                               double min, double max, double *out, struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key);
    const struct unit *unit = NULL, *u;
    const char *example = "", *rest;
    char expected[160];
    size_t used = 0;
    double v = 0, factor = 1;

    for (size_t i = 0; i < sizeof(dimensions) / sizeof(dimensions[0]); i++) {
        if (strcmp(dimensions[i].name, dimension) == 0) {
            unit = dimensions[i].units;
            example = dimensions[i].example;
        }
    }
    if (!unit)
        return dt_error_set(err, DT_ERR_INTERNAL, "\"%s\" is not a dimension", dimension);
    if (!n.value)
        return DT_OK;
    if (n.value->kind == DT_VALUE_SCALAR)
        used = dt_number_scan(n.value->text, &v);
    if (used == 0) {
        snprintf(expected, sizeof(expected), "a quantity in %s such as \"%s\"", dimension, example);
        return wrong(n, key, expected, err);
    }
    rest = n.value->text + used;
    rest += strspn(rest, " ");
    if (*rest) {
        for (u = unit; u->name && strcmp(u->name, rest) != 0; u++)
            ;
        if (!u->name)
            return wrong_unit(n, key, rest, dimension, unit, err);
        factor = u->factor;
    }
    v *= factor;
    if (!isfinite(v) || v < min || v > max) {
        snprintf(expected, sizeof(expected), "%g to %g %s", min, max, dimension);
        return wrong(n, key, expected, err);
    }
    *out = v;
    return DT_OK;
}
