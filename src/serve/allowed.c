/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "serve/allowed.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>

enum { PATH_MAX_BYTES = 512 };

/* The row that says what a value at `path` is: its own, or that of the list or of the value with a form of its own
 * that it is in.  NULL = there is no such key. */
static const struct dt_key *row_at(const struct dt_key *keys, const char *path)
{
    const struct dt_key *row = dt_keys_at(keys, path);
    char part[PATH_MAX_BYTES];
    bool places = true; /* in lists, all that was left off */

    snprintf(part, sizeof(part), "%s", path);
    while (!row) {
        char *dot = strrchr(part, '.');

        if (!dot)
            return NULL;
        places = places && dot[1] && dot[1 + strspn(dot + 1, "0123456789")] == '\0';
        *dot = '\0';
        row = dt_keys_at(keys, part);
        if (row && row->keys && (!places || row->type == DT_KEY_MAP))
            return NULL;
    }
    return row;
}

/* Letters, digits, '-' and '_' only: such a name is looked for among the shipped presets. */
static bool is_plain(const char *name)
{
    return name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")] ==
           '\0';
}

static enum dt_status refuse(const char *path, const char *why, struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_USAGE,
                        "%s: %s, and none is opened over HTTP; state it where 'disttrain serve' is "
                        "started",
                        path, why);
}

static enum dt_status check_scalar(const struct dt_key *row, const char *path, const char *text,
                                   struct dt_error *err)
{
    double number;

    if (row->file == DT_KEY_FILE)
        return refuse(path, "names a file", err);
    if (is_plain(text) || (row->file == DT_KEY_NO_FILE && !row->keys))
        return DT_OK;
    if (row->file == DT_KEY_NO_FILE && dt_number_double(text, &number))
        return DT_OK;
    return refuse(path, "what is no plain name of a preset names a file", err);
}

static enum dt_status check(const struct dt_key *keys, const char *path, struct dt_node n,
                            struct dt_error *err)
{
    const struct dt_key *row = row_at(keys, path);
    size_t size = dt_node_is_map(n) ? dt_map_size(n) : dt_seq_size(n);
    char below[PATH_MAX_BYTES];

    if (!row)
        return dt_error_set(err, DT_ERR_INPUT,
                            "\"%.200s\" is no key of a job (see 'disttrain keys')", path);
    if (dt_node_is_null(n))
        return DT_OK;
    if (dt_node_is_scalar(n))
        return check_scalar(row, path, dt_node_text(n), err);
    if ((row->file == DT_KEY_FILE && !row->keys) ||
        (row->file != DT_KEY_NO_FILE && dt_node_is_seq(n))) /* a list of files */
        return refuse(path, "names files", err);
    for (size_t i = 0; i < size; i++) {
        struct dt_node child;
        const char *key = NULL;
        int len;

        if (dt_node_is_map(n)) {
            dt_map_at(n, i, &key, &child);
            len = snprintf(below, sizeof(below), "%s.%s", path, key);
        } else {
            child = dt_seq_at(n, i);
            len = snprintf(below, sizeof(below), "%s.%zu", path, i);
        }
        if (len < 0 || (size_t)len >= sizeof(below) || (key && strchr(key, '.')))
            return dt_error_set(err, DT_ERR_INPUT, "%s: no key has such a name", path);
        DT_TRY(check(keys, below, child, err));
    }
    return DT_OK;
}

enum dt_status dt_serve_allowed(const struct dt_key *keys, const char *override,
                                struct dt_error *err)
{
    const char *equals = strchr(override, '=');
    char path[PATH_MAX_BYTES];
    struct dt_doc *doc = NULL;
    enum dt_status st;

    if (!equals || equals == override || (size_t)(equals - override) >= sizeof(path))
        return dt_error_set(err, DT_ERR_INPUT, "expected KEY=VALUE, found \"%.200s\"", override);
    snprintf(path, sizeof(path), "%.*s", (int)(equals - override), override);
    st = dt_doc_parse(path, equals + 1, strlen(equals + 1), err, &doc);
    if (st == DT_OK)
        st = check(keys, path, dt_doc_root(doc), err);
    dt_doc_free(doc);
    return st;
}
