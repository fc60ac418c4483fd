/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * job.json: what of its job a checkpoint holds to. */
#include "exec/checkpoint/checkpoint_impl.h"

#include "base/mem.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define JOB_FORMAT "disttrain-job"

enum { NAMED_MAX = 3 /* differences in a message */, PIECE = 400 /* of dt_text_add */ };

void dt_ckpt_job_free(struct dt_ckpt_job *j)
{
    dt_free(j->model);
    dt_free(j->training);
    *j = (struct dt_ckpt_job){.model = NULL};
}

/* ---- lines ---- */

struct line {
    const char *name, *value;
    size_t name_len, value_len;
};

static bool next_line(const char **at, struct line *out)
{
    const char *end = strchr(*at, '\n'), *space = strchr(*at, ' ');

    if (!end || !space || space > end)
        return false;
    *out = (struct line){*at, space + 1, (size_t)(space - *at), (size_t)(end - space - 1)};
    *at = end + 1;
    return true;
}

static bool same(const char *a, size_t a_len, const char *b, size_t b_len)
{
    return a_len == b_len && memcmp(a, b, a_len) == 0;
}

static bool find(const char *lines, const struct line *name, struct line *out)
{
    while (next_line(&lines, out))
        if (same(out->name, out->name_len, name->name, name->name_len))
            return true;
    return false;
}

static void put_value(struct dt_text *t, const struct line *l)
{
    enum { SHOWN_MAX = 80 };

    if (!l)
        dt_text_add(t, "not stated");
    else
        dt_text_add(t, "%.*s%s", (int)(l->value_len < SHOWN_MAX ? l->value_len : SHOWN_MAX),
                    l->value, l->value_len > SHOWN_MAX ? " ..." : "");
}

static void put_difference(struct dt_text *t, int k, const struct line *name,
                           const struct line *theirs, const struct line *ours)
{
    if (k >= NAMED_MAX)
        return;
    dt_text_add(t, "%s%.*s is ", k > 0 ? ", " : "", (int)name->name_len, name->name);
    put_value(t, theirs);
    dt_text_add(t, " there and ");
    put_value(t, ours);
    dt_text_add(t, " in the job");
}

/* Adds what differs to `t`; returns how much that is. */
static int compare(const char *theirs, const char *ours, int k, struct dt_text *t)
{
    struct line l, other;

    for (const char *at = ours; next_line(&at, &l);) {
        bool there = find(theirs, &l, &other);

        if (!there || !same(l.value, l.value_len, other.value, other.value_len))
            put_difference(t, k++, &l, there ? &other : NULL, &l);
    }
    for (const char *at = theirs; next_line(&at, &l);)
        if (!find(ours, &l, &other))
            put_difference(t, k++, &l, &l, NULL);
    if (k > NAMED_MAX)
        dt_text_add(t, " and %d more", k - NAMED_MAX);
    return k;
}

enum dt_status dt_ckpt_job_compare(const struct dt_ckpt_job *theirs, const struct dt_ckpt_job *ours,
                                   bool training, struct dt_error *err, char **differ)
{
    struct dt_text t = {.s = NULL};
    int n = compare(theirs->model, ours->model, 0, &t);

    if (n == 0 && training)
        n = compare(theirs->training, ours->training, 0, &t);
    *differ = NULL;
    return n > 0 ? dt_text_finish(&t, err, differ) : DT_OK;
}

void dt_ckpt_job_digest(const struct dt_ckpt_job *j, char *buf, size_t size)
{
    char part[2][40];

    dt_ckpt_digest(j->model, strlen(j->model), part[0], sizeof(part[0]));
    dt_ckpt_digest(j->training, strlen(j->training), part[1], sizeof(part[1]));
    snprintf(buf, size, "%s-%s", part[0], part[1]);
}

/* ---- the file ---- */

/* A copy's names and values end with NULs. */
static enum dt_status write_lines(struct dt_json *j, const char *key, const char *lines,
                                  struct dt_error *err)
{
    char *copy = dt_strdup(lines);
    const char *at = lines;
    struct line l;

    if (!copy)
        return dt_error_nomem(err, "what a checkpoint is of");
    dt_json_key(j, key);
    dt_json_begin_object(j);
    while (next_line(&at, &l)) {
        char *name = copy + (l.name - lines), *value = copy + (l.value - lines);

        name[l.name_len] = value[l.value_len] = '\0';
        dt_json_kv_string(j, name, value);
    }
    dt_json_end_object(j);
    dt_free(copy);
    return DT_OK;
}

enum dt_status dt_ckpt_job_write(const char *dir, const struct dt_ckpt_state *s,
                                 struct dt_ckpt_manifest *m, struct dt_error *err)
{
    enum dt_status st;
    struct dt_json j;
    char *text;

    if (!s->job)
        return DT_OK;
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "format", JOB_FORMAT);
    dt_json_kv_int(&j, "version", 1);
    st = write_lines(&j, "model", s->job->model, err);
    if (st == DT_OK)
        st = write_lines(&j, "training", s->job->training, err);
    if (st != DT_OK) {
        dt_json_discard(&j);
        return st;
    }
    dt_json_end_object(&j);
    DT_TRY(dt_json_finish(&j, err, &text));
    return dt_ckpt_manifest_add_text(m, dir, "job.json", text, err);
}

static enum dt_status read_lines(struct dt_node map, struct dt_error *err, char **out)
{
    struct dt_text t = {.s = NULL};

    if (!dt_node_is_map(map))
        return dt_node_error(map, err, "expected a map from names to values");
    for (size_t i = 0; i < dt_map_size(map); i++) {
        struct dt_node value;
        const char *name, *text;

        dt_map_at(map, i, &name, &value);
        text = dt_node_text(value);
        if (!text || strpbrk(name, " \n") || strchr(text, '\n')) {
            dt_free(t.s);
            return dt_node_error(value, err, "not what a save writes");
        }
        dt_text_add(&t, "%s ", name);
        for (size_t at = 0, n = strlen(text); at < n; at += PIECE)
            dt_text_add(&t, "%.*s", PIECE, text + at);
        dt_text_add(&t, "\n");
    }
    return dt_text_finish(&t, err, out);
}

static enum dt_status parse(struct dt_node root, struct dt_error *err, struct dt_ckpt_job *out)
{
    static const char *const keys[] = {"format", "version", "model", "training", NULL};
    const char *format = dt_node_text(dt_map_get(root, "format"));
    int version = 0;

    if (!format || strcmp(format, JOB_FORMAT) != 0)
        return dt_node_error(root, err, "not the job of a checkpoint");
    DT_TRY(dt_map_check(root, "job", keys, err));
    for (int i = 0; keys[i]; i++)
        DT_TRY(dt_map_require(root, "job", keys[i], err));
    DT_TRY(dt_get_i32(root, "version", 1, 1, &version, err));
    DT_TRY(read_lines(dt_map_get(root, "model"), err, &out->model));
    return read_lines(dt_map_get(root, "training"), err, &out->training);
}

enum dt_status dt_ckpt_job_read(const char *dir, struct dt_error *err, struct dt_ckpt_job *out)
{
    struct dt_ckpt_job got = {.model = NULL};
    struct dt_doc *doc;
    enum dt_status st;

    DT_TRY(dt_ckpt_read_doc(dir, "job.json", err, &doc));
    st = parse(dt_doc_root(doc), err, &got);
    dt_doc_free(doc);
    if (st == DT_OK)
        *out = got;
    else
        dt_ckpt_job_free(&got);
    return st;
}
