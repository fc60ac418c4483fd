/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Changing documents (command line overrides) and writing them as JSON. */
#include "base/docimpl.h"
#include "base/json.h"
#include "base/number.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- overrides ---- */

struct override {
    struct dt_arena *arena;
    struct dt_error *err;
    const char *text; /* the whole assignment */
    const struct dt_value *value;
};

static enum dt_status override_fail(const struct override *o, size_t col, const char *part,
                                    size_t len, const char *why)
{
    return dt_error_at(o->err, DT_ERR_INPUT, "command line", 1, (int)col, "in \"%s\": \"%.*s\" %s",
                       o->text, (int)len, part, why);
}

/* Index of the child that a path component names in v; v->n = a new key of a map. */
static enum dt_status override_index(const struct override *o, const struct dt_value *v,
                                     const char *part, size_t len, size_t *index)
{
    size_t col = (size_t)(part - o->text) + 1;
    char *end;
    unsigned long i;

    if (v->kind == DT_VALUE_MAP) {
        for (*index = 0; *index < v->n; (*index)++)
            if (strlen(v->child[*index].key) == len && memcmp(v->child[*index].key, part, len) == 0)
                break;
        return DT_OK;
    }
    i = part[0] >= '0' && part[0] <= '9' ? strtoul(part, &end, 10) : ULONG_MAX;
    if (i == ULONG_MAX || end != part + len)
        return override_fail(o, col, part, len, "must be an index: the value is a sequence");
    if (i >= v->n)
        return override_fail(o, col, part, len, "is past the end of the sequence");
    *index = i;
    return DT_OK;
}

/* A copy of v (NULL or null: an empty map) in which `path` has the new value.  Values are shared,
 * so the old tree stays whole and a failure changes nothing. */
static enum dt_status override_at(const struct override *o, const struct dt_value *v,
                                  const char *path, int level, const struct dt_value **out)
{
    static const struct dt_value empty = {.kind = DT_VALUE_MAP, .at = {"command line", 1, 1}};
    size_t len = strcspn(path, ".="), index = 0, n;
    size_t col = (size_t)(path - o->text) + 1;
    const struct dt_value *old, *child = o->value;
    struct dt_doc_pair *pairs;
    struct dt_value *copy;

    if (!v || dt_value_is_null(v))
        v = &empty;
    if (len == 0)
        return override_fail(o, col, path, len, "is not a key");
    if (level >= DT_DOC_DEPTH_MAX)
        return override_fail(o, col, path, len, "is nested too deeply");
    if (v->kind == DT_VALUE_SCALAR)
        return override_fail(o, col, path, len, "cannot be set: the value above it is not a map");
    DT_TRY(override_index(o, v, path, len, &index));
    old = index < v->n ? v->child[index].value : NULL;
    if (path[len] == '.')
        DT_TRY(override_at(o, old, path + len + 1, level + 1, &child));

    n = v->n + (index == v->n);
    pairs = DT_ARENA_NEW(o->arena, struct dt_doc_pair, n);
    copy = DT_ARENA_NEW(o->arena, struct dt_value, 1);
    if (!pairs || !copy)
        return dt_error_nomem(o->err, "an override");
    if (v->n > 0)
        memcpy(pairs, v->child, v->n * sizeof(*pairs));
    if (index == v->n) {
        char *key = dt_arena_alloc(o->arena, len + 1, 1);

        if (!key)
            return dt_error_nomem(o->err, "an override");
        memcpy(key, path, len);
        pairs[index].key = key;
        pairs[index].at = (struct dt_doc_place){"command line", 1, (int)col};
    }
    pairs[index].value = child;
    *copy = *v;
    if (!dt_value_finish(copy, pairs, n))
        return override_fail(o, col, path, len, "makes the document too large or too deep");
    *out = copy;
    return DT_OK;
}

enum dt_status dt_doc_override(struct dt_doc *doc, const char *assignment, struct dt_error *err)
{
    struct override o = {.arena = &doc->arena, .err = err};
    const char *equals = strchr(assignment, '=');
    const struct dt_value *root;
    char *text;

    if (!equals || equals == assignment)
        return dt_error_set(err, DT_ERR_USAGE, "expected KEY=VALUE, found \"%s\"", assignment);
    text = dt_arena_strdup(&doc->arena, assignment);
    if (!text)
        return dt_error_nomem(err, "an override");
    o.text = text;
    equals = strchr(text, '=');
    if (equals[1 + strspn(equals + 1, " \t")] == '\0')
        return dt_error_at(err, DT_ERR_INPUT, "command line", 1, (int)(equals - text) + 2,
                           "in \"%s\": a value must follow the '='", text);
    DT_TRY(dt_doc_build(&doc->arena, "command line", (int)(equals - text) + 1, equals + 1,
                        strlen(equals + 1), err, &o.value));
    DT_TRY(override_at(&o, doc->root, text, 0, &root));
    doc->root = root;
    return DT_OK;
}

/* v without its child `index` (drop), or with `child` in its place. */
static const struct dt_value *copy_with(struct dt_arena *arena, const struct dt_value *v,
                                        size_t index, const struct dt_value *child)
{
    size_t n = v->n - (child == NULL);
    struct dt_doc_pair *pairs = DT_ARENA_NEW(arena, struct dt_doc_pair, n ? n : 1);
    struct dt_value *copy = DT_ARENA_NEW(arena, struct dt_value, 1);

    if (!pairs || !copy)
        return NULL;
    for (size_t i = 0, k = 0; i < v->n; i++) {
        if (i == index && !child)
            continue;
        pairs[k] = v->child[i];
        if (i == index)
            pairs[k].value = child;
        k++;
    }
    *copy = *v;
    dt_value_finish(copy, pairs, n); /* no larger and no deeper than it was */
    return copy;
}

static bool is_listed(const char *key, const char *const *keys)
{
    for (; *keys; keys++)
        if (strcmp(key, *keys) == 0)
            return true;
    return false;
}

enum dt_status dt_doc_keep(struct dt_doc *doc, const char *map, const char *const *keys,
                           struct dt_error *err)
{
    const struct dt_value *root = doc->root, *kept;
    size_t at = 0;

    while (root->kind == DT_VALUE_MAP && at < root->n && strcmp(root->child[at].key, map) != 0)
        at++;
    if (root->kind != DT_VALUE_MAP || at == root->n || root->child[at].value->kind != DT_VALUE_MAP)
        return DT_OK;
    kept = root->child[at].value;
    for (size_t i = kept->n; kept && i-- > 0;)
        if (!is_listed(kept->child[i].key, keys))
            kept = copy_with(&doc->arena, kept, i, NULL);
    root = kept ? copy_with(&doc->arena, root, at, kept) : NULL;
    if (!root)
        return dt_error_nomem(err, "a document");
    doc->root = root;
    return DT_OK;
}

/* ---- JSON ---- */

/* JSON's own grammar is narrower than ours: no '+', no bare '.', no leading zeros. */
static bool is_json_number(const char *s)
{
    double v;
    size_t sign = s[0] == '-', n = strlen(s);

    if (!dt_number_double(s, &v) || s[0] == '+' || s[sign] == '.' || s[n - 1] == '.' ||
        strstr(s, ".e") || strstr(s, ".E"))
        return false;
    return s[sign] != '0' || s[sign + 1] == '\0' || strchr(".eE", s[sign + 1]);
}

static void scalar_to_json(const struct dt_value *v, struct dt_json *j)
{
    double number;
    char text[40];

    if (!v->plain) {
        dt_json_string(j, v->text);
    } else if (dt_value_is_null(v)) {
        dt_json_null(j);
    } else if (dt_value_truth(v) >= 0) {
        dt_json_bool(j, dt_value_truth(v));
    } else if (is_json_number(v->text)) {
        dt_json_raw(j, v->text); /* not a digit is lost */
    } else if (dt_number_double(v->text, &number)) {
        /* the same number in JSON's grammar: drop '+', pad a bare '.', strip zeros */
        bool negative = v->text[0] == '-';
        const char *s = v->text + (negative || v->text[0] == '+');

        while (s[0] == '0' && s[1] >= '0' && s[1] <= '9')
            s++;
        snprintf(text, sizeof(text), "%s%s%s", negative ? "-" : "", s[0] == '.' ? "0" : "", s);
        if (is_json_number(text) && strlen(text) + 1 < sizeof(text))
            dt_json_raw(j, text);
        else
            dt_json_double(j, number);
    } else {
        dt_json_string(j, v->text);
    }
}

static void value_to_json(const struct dt_value *v, struct dt_json *j)
{
    if (v->kind == DT_VALUE_SCALAR) {
        scalar_to_json(v, j);
        return;
    }
    if (v->kind == DT_VALUE_MAP)
        dt_json_begin_object(j);
    else
        dt_json_begin_array(j);
    for (size_t i = 0; i < v->n; i++) {
        if (v->kind == DT_VALUE_MAP)
            dt_json_key(j, v->child[i].key);
        value_to_json(v->child[i].value, j);
    }
    if (v->kind == DT_VALUE_MAP)
        dt_json_end_object(j);
    else
        dt_json_end_array(j);
}

enum dt_status dt_doc_to_json(const struct dt_doc *doc, struct dt_error *err, char **out)
{
    struct dt_json j;

    dt_json_init(&j, true);
    value_to_json(doc->root, &j);
    return dt_json_finish(&j, err, out);
}

enum dt_status dt_node_to_json(struct dt_node n, struct dt_error *err, char **out)
{
    struct dt_json j;

    dt_json_init(&j, false);
    if (n.value)
        value_to_json(n.value, &j);
    else
        dt_json_null(&j);
    return dt_json_finish(&j, err, out);
}
