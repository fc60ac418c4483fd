/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/pack_captions.h"

#include "base/doc.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

enum { FIELDS_MAX = 256, BYTES_MAX = 1 << 30 };

struct dt_pack_captions {
    const char *path;
    char *owned;           /* the bytes, where they are ours */
    struct dt_arena texts; /* of JSON */
    struct dt_pack_caption *row;
    size_t n, cap;
    size_t *chain; /* [size]: 1 + a row, 0 = none; size a power of two above twice the rows */
    size_t size;
};

struct reader {
    struct dt_pack_captions *c;
    struct dt_data_report *report;
    struct dt_error *err;
    const char *name_key, *text_key;
    char *p, *end, *line_begin;
    int line;
};

static enum dt_status fail(const struct reader *r, int line, int col, const char *what)
{
    return dt_error_at(r->err, DT_ERR_INPUT, r->c->path, line, col, "%s", what);
}

const char *dt_pack_captions_quote(const char *name, char *buf, size_t size)
{
    snprintf(buf, size, "%s", name);
    for (char *c = buf; *c; c++)
        *c = *c == '\n' || *c == '\r' ? '?' : *c;
    return buf;
}

/* ---- rows ---- */

static bool is_text(const char *s, size_t len)
{
    for (size_t i = 0, n; i < len; i += n) {
        n = dt_utf8_length(s + i, len - i);
        if (n == 0 || s[i] == '\0')
            return false;
    }
    return true;
}

/* Counted, with its place. */
static enum dt_status not_text(struct reader *r, int line, int col, const char *what)
{
    struct dt_error why;

    dt_error_at(&why, DT_ERR_INPUT, r->c->path, line, col, "%s is not UTF-8 text", what);
    if (dt_data_bad(r->report, DT_BAD_CAPTION, &why) == DT_OK)
        return DT_OK;
    return dt_error_pass(r->err, &why);
}

static enum dt_status add(struct reader *r, struct dt_pack_caption row, size_t name_len)
{
    struct dt_pack_captions *c = r->c;

    if (strlen(row.name) != name_len || !is_text(row.name, name_len))
        return not_text(r, row.line, row.col, "this name");
    while (row.name[0] == '.' && row.name[1] == '/')
        row.name += 2;
    if (row.name[0] == '\0')
        return fail(r, row.line, row.col, "the name of an image is empty");
    if (!is_text(row.text, row.len))
        return not_text(r, row.line, row.col, "the caption in this line");
    if (dt_grow((void **)&c->row, &c->cap, c->n + 1, sizeof *c->row))
        return dt_error_nomem(r->err, "captions");
    c->row[c->n++] = row;
    return DT_OK;
}

static size_t *slot(const struct dt_pack_captions *c, const char *name)
{
    size_t i = (size_t)dt_hash_spread(dt_hash_text(DT_HASH_START, name)) & (c->size - 1);

    while (c->chain[i] && strcmp(c->row[c->chain[i] - 1].name, name) != 0)
        i = (i + 1) & (c->size - 1);
    return &c->chain[i];
}

static enum dt_status link_names(struct reader *r)
{
    struct dt_pack_captions *c = r->c;

    for (c->size = 16; c->size < 2 * c->n;)
        c->size *= 2;
    c->chain = dt_calloc(c->size, sizeof *c->chain);
    if (!c->chain)
        return dt_error_nomem(r->err, "captions");
    for (size_t i = 0; i < c->n; i++) {
        size_t *at = slot(c, c->row[i].name);
        char name[200];

        if (*at)
            return dt_error_at(r->err, DT_ERR_INPUT, c->path, c->row[i].line, c->row[i].col,
                               "a second caption for %s; the first is in line %d",
                               dt_pack_captions_quote(c->row[i].name, name, sizeof name),
                               c->row[*at - 1].line);
        *at = i + 1;
    }
    return DT_OK;
}

/* ---- CSV ---- */

struct field {
    char *s;
    size_t len;
    int line, col;
};

static bool at_newline(const struct reader *r)
{
    return *r->p == '\n' || (*r->p == '\r' && (r->p + 1 == r->end || r->p[1] == '\n'));
}

static void begin_line(struct reader *r)
{
    r->line++;
    r->line_begin = r->p;
}

/* Its text moves together where quotes were written twice. */
static enum dt_status quoted(struct reader *r, struct field *f)
{
    char *to = ++r->p;

    f->s = to;
    for (; r->p < r->end; r->p++) {
        if (*r->p == '"' && (r->p + 1 == r->end || r->p[1] != '"'))
            break;
        r->p += *r->p == '"';
        *to++ = *r->p;
        if (*r->p == '\n') {
            r->line++;
            r->line_begin = r->p + 1;
        }
    }
    if (r->p == r->end)
        return fail(r, f->line, f->col, "this quote is not closed");
    f->len = (size_t)(to - f->s);
    r->p++;
    if (r->p < r->end && *r->p != ',' && !at_newline(r))
        return fail(r, r->line, (int)(r->p - r->line_begin) + 1,
                    "expected a comma or the end of the line after a quoted field; a quote inside "
                    "of one is written twice");
    return DT_OK;
}

static enum dt_status plain(struct reader *r, struct field *f)
{
    f->s = r->p;
    for (; r->p < r->end && *r->p != ',' && !at_newline(r); r->p++)
        if (*r->p == '"')
            return fail(r, r->line, (int)(r->p - r->line_begin) + 1,
                        "a quote inside of a field; quote the whole field, and write its quotes "
                        "twice");
    f->len = (size_t)(r->p - f->s);
    return DT_OK;
}

/* One record; its fields end with NUL only when the reader has gone on. */
static enum dt_status record(struct reader *r, struct field f[FIELDS_MAX], int *n_out)
{
    for (int n = 0;; r->p++) {
        if (n == FIELDS_MAX)
            return fail(r, r->line, (int)(r->p - r->line_begin) + 1, "more than 256 fields");
        f[n].line = r->line;
        f[n].col = (int)(r->p - r->line_begin) + 1;
        DT_TRY(r->p < r->end && *r->p == '"' ? quoted(r, &f[n]) : plain(r, &f[n]));
        n++;
        if (r->p == r->end || *r->p != ',') {
            *n_out = n;
            return DT_OK;
        }
    }
}

/* To the next line with something in it; false at the end. */
static bool next_line(struct reader *r)
{
    while (r->p < r->end && at_newline(r)) {
        r->p += *r->p == '\r';
        r->p += r->p < r->end;
        begin_line(r);
    }
    return r->p < r->end;
}

static enum dt_status column(const struct reader *r, const struct field *f, int n, const char *key,
                             int *out)
{
    char list[512] = "", names[512];
    size_t used = 0;

    for (int i = 0; i < n; i++) {
        if (f[i].len == strlen(key) && memcmp(f[i].s, key, f[i].len) == 0) {
            *out = i;
            return DT_OK;
        }
        if (used < sizeof list - 1)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%.*s", i ? ", " : "",
                                     (int)(f[i].len < 60 ? f[i].len : 60), f[i].s);
    }
    return dt_error_at(
        r->err, DT_ERR_INPUT, r->c->path, f[0].line, 1,
        "no column \"%s\"; the first line names %s (--name-key and --caption-key say "
        "which to take)",
        key, dt_pack_captions_quote(list, names, sizeof names));
}

static enum dt_status csv_row(struct reader *r, struct field *f, int n, int columns, int name,
                              int text)
{
    char what[80];

    if (n != columns) {
        snprintf(what, sizeof what, "%d fields; the first line has %d", n, columns);
        return fail(r, f[0].line, f[n - 1].col, what);
    }
    f[name].s[f[name].len] = f[text].s[f[text].len] = '\0'; /* a comma, quote or end of line */
    return add(r,
               (struct dt_pack_caption){.name = f[name].s,
                                        .text = f[text].s,
                                        .len = f[text].len,
                                        .line = f[name].line,
                                        .col = f[name].col},
               f[name].len);
}

/* The row is taken once the reader is behind its line end, which becomes a NUL. */
static enum dt_status csv(struct reader *r)
{
    struct field f[FIELDS_MAX];
    int columns, name, text, n;

    if (!next_line(r))
        return fail(r, 1, 1, "no captions: the file is empty");
    DT_TRY(record(r, f, &columns));
    DT_TRY(column(r, f, columns, r->name_key, &name));
    DT_TRY(column(r, f, columns, r->text_key, &text));
    if (name == text)
        return fail(r, f[0].line, 1, "the name and the caption are the same column");
    while (next_line(r)) {
        DT_TRY(record(r, f, &n));
        next_line(r);
        DT_TRY(csv_row(r, f, n, columns, name, text));
    }
    return DT_OK;
}

/* ---- JSONL ---- */

static enum dt_status member(const struct reader *r, struct dt_node root, const char *key,
                             const char **out)
{
    struct dt_node n = dt_map_get(root, key);

    *out = dt_node_present(n) && !dt_node_is_null(n) ? dt_node_text(n) : NULL;
    if (*out)
        return DT_OK;
    return dt_node_error(dt_node_present(n) ? n : root, r->err,
                         "no text \"%s\" in this line (--name-key and --caption-key say which "
                         "members to take)",
                         key);
}

static enum dt_status json_row(struct reader *r, const struct dt_doc *doc)
{
    struct dt_node root = dt_doc_root(doc);
    const char *name, *text;
    struct dt_pack_caption row = {.line = r->line};
    const char *file;
    int line;

    if (!dt_node_is_map(root))
        return dt_node_error(root, r->err, "expected a JSON object in each line");
    DT_TRY(member(r, root, r->name_key, &name));
    DT_TRY(member(r, root, r->text_key, &text));
    dt_node_where(dt_map_get(root, r->name_key), &file, &line, &row.col);
    row.name = dt_arena_strdup(&r->c->texts, name);
    row.text = dt_arena_strdup(&r->c->texts, text);
    row.len = strlen(text);
    return row.name && row.text ? add(r, row, strlen(name)) : dt_error_nomem(r->err, "captions");
}

static enum dt_status json_line(struct reader *r, const char *text, size_t len)
{
    struct dt_doc *doc;
    enum dt_status st;

    if (!is_text(text, len))
        return not_text(r, r->line, 1, "this line");
    st = dt_doc_parse(r->c->path, text, len, r->err, &doc);
    if (st == DT_OK) {
        st = json_row(r, doc);
        dt_doc_free(doc);
    }
    if (st != DT_OK && r->err && r->err->line == 1) /* of the line, which was parsed alone */
        r->err->line = r->line;
    return st;
}

static enum dt_status jsonl(struct reader *r)
{
    while (next_line(r)) {
        char *end = memchr(r->p, '\n', (size_t)(r->end - r->p));
        size_t len = (size_t)((end ? end : r->end) - r->p);

        DT_TRY(json_line(r, r->p, len));
        r->p += len;
    }
    return DT_OK;
}

/* ---- all ---- */

enum dt_status dt_pack_captions_parse(const char *path, char *bytes, size_t len,
                                      const char *name_key, const char *text_key,
                                      struct dt_data_report *report, struct dt_error *err,
                                      struct dt_pack_captions **out)
{
    struct dt_pack_captions *c = dt_calloc(1, sizeof *c);
    struct reader r = {.c = c,
                       .report = report,
                       .err = err,
                       .name_key = name_key,
                       .text_key = text_key,
                       .p = bytes,
                       .end = bytes + len,
                       .line = 1};
    enum dt_status st;

    if (!c)
        return dt_error_nomem(err, "captions");
    c->path = path;
    if (len >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)
        r.p += 3;
    r.line_begin = r.p;
    next_line(&r);
    st = r.p < r.end && *r.p == '{' ? jsonl(&r) : csv(&r);
    if (st == DT_OK)
        st = link_names(&r);
    if (st == DT_OK)
        *out = c;
    else
        dt_pack_captions_free(c);
    return st;
}

enum dt_status dt_pack_captions_read(const char *path, const char *name_key, const char *text_key,
                                     struct dt_data_report *report, struct dt_error *err,
                                     struct dt_pack_captions **out)
{
    enum dt_status st;
    char *bytes;
    size_t len;

    DT_TRY(dt_file_read(path, BYTES_MAX, err, &bytes, &len));
    st = dt_pack_captions_parse(path, bytes, len, name_key, text_key, report, err, out);
    if (st == DT_OK)
        (*out)->owned = bytes;
    else
        dt_free(bytes);
    return st;
}

struct dt_pack_caption *dt_pack_captions_find(const struct dt_pack_captions *c, const char *name)
{
    size_t at = *slot(c, name);

    return at ? &c->row[at - 1] : NULL;
}

size_t dt_pack_captions_count(const struct dt_pack_captions *c)
{
    return c->n;
}

struct dt_pack_caption *dt_pack_captions_at(const struct dt_pack_captions *c, size_t i)
{
    return &c->row[i];
}

const char *dt_pack_captions_path(const struct dt_pack_captions *c)
{
    return c->path;
}

void dt_pack_captions_free(struct dt_pack_captions *c)
{
    if (!c)
        return;
    dt_arena_free(&c->texts);
    dt_free(c->owned);
    dt_free(c->chain);
    dt_free(c->row);
    dt_free(c);
}
