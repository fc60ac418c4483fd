/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parsing documents.  The getters are in docget.c, overrides and output in docedit.c. */
#include "base/docimpl.h"
#include "base/file.h"
#include "base/utf8.h"

#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>

/* Limits on what a file may ask of us (more in docimpl.h); far above any job, plan or model. */
#define TEXT_MAX ((size_t)64 << 20)
#define ANCHORS_MAX 256

struct anchor {
    const char *name;
    const struct dt_value *value; /* NULL while the value is being read: no cycles */
};

struct frame { /* a map or sequence being read */
    struct dt_value *v;
    size_t base;      /* its children are stack[base..] */
    ptrdiff_t anchor; /* -1: none */
    bool has_key;     /* the last entry of the stack is a key that waits for its value */
};

struct builder {
    struct dt_arena *arena;
    struct dt_error *err;
    const char *file;
    int col_offset; /* added to columns of line 1 */
    struct fy_parser *fyp;
    uint64_t values;
    struct frame frame[DT_DOC_DEPTH_MAX];
    int depth;
    struct dt_doc_pair *stack;
    size_t n_stack, cap_stack;
    struct anchor anchor[ANCHORS_MAX];
    size_t n_anchors;
    const struct dt_value *root;
    struct dt_doc_place last; /* of the last event */
    int documents;
};

static enum dt_status fail(struct builder *b, struct dt_doc_place at, const char *message)
{
    return dt_error_at(b->err, DT_ERR_INPUT, at.file, at.line, at.col, "%s", message);
}

static struct dt_doc_place place_of(const struct builder *b, const struct fy_mark *mark)
{
    struct dt_doc_place at = {b->file, 0, 0};

    if (mark && mark->line >= 0 && mark->column >= 0) {
        at.line = mark->line + 1;
        at.col = mark->column + 1 + (mark->line == 0 ? b->col_offset : 0);
    }
    return at;
}

/* ---- building values ---- */

static int by_key(const void *a, const void *b)
{
    const struct dt_doc_pair *x = *(const struct dt_doc_pair *const *)a;
    const struct dt_doc_pair *y = *(const struct dt_doc_pair *const *)b;
    int c = strcmp(x->key, y->key);

    return c ? c : (x > y) - (x < y);
}

/* The first key (in document order of the repetition) that a map holds twice, or NULL. */
static enum dt_status check_duplicates(struct builder *b, const struct dt_doc_pair *pairs, size_t n)
{
    const struct dt_doc_pair **sorted, *again = NULL;

    if (n < 2)
        return DT_OK;
    sorted = dt_malloc(n * sizeof(*sorted));
    if (!sorted)
        return dt_error_nomem(b->err, "the keys of a map");
    for (size_t i = 0; i < n; i++)
        sorted[i] = &pairs[i];
    qsort(sorted, n, sizeof(*sorted), by_key);
    for (size_t i = 1; i < n; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0 && (!again || sorted[i] < again))
            again = sorted[i];
    dt_free(sorted);
    if (again)
        return dt_error_at(b->err, DT_ERR_INPUT, again->at.file, again->at.line, again->at.col,
                           "key \"%s\" appears twice in this map", again->key);
    return DT_OK;
}

bool dt_value_finish(struct dt_value *v, const struct dt_doc_pair *child, size_t n)
{
    v->child = child;
    v->n = (uint32_t)n;
    v->weight = 1;
    v->height = 1;
    for (size_t i = 0; i < n; i++) {
        v->weight += child[i].value->weight;
        if (child[i].value->height >= DT_DOC_DEPTH_MAX || v->weight > DT_DOC_VALUES_MAX)
            return false;
        if (child[i].value->height >= v->height)
            v->height = (unsigned char)(child[i].value->height + 1);
    }
    return true;
}

static enum dt_status push(struct builder *b, struct dt_doc_pair entry)
{
    void *p = b->stack;

    if (dt_grow(&p, &b->cap_stack, b->n_stack + 1, sizeof(*b->stack)))
        return dt_error_nomem(b->err, "a document");
    b->stack = p;
    b->stack[b->n_stack++] = entry;
    return DT_OK;
}

/* A value is complete: hand it to the map or sequence it is in. */
static enum dt_status add_value(struct builder *b, const struct dt_value *v)
{
    struct frame *f = b->depth ? &b->frame[b->depth - 1] : NULL;

    if (!f) {
        b->root = v;
        return DT_OK;
    }
    if (f->v->kind == DT_VALUE_SEQ)
        return push(b, (struct dt_doc_pair){NULL, v->at, v});
    if (f->has_key) {
        b->stack[b->n_stack - 1].value = v;
        f->has_key = false;
        return DT_OK;
    }
    if (v->kind != DT_VALUE_SCALAR)
        return fail(b, v->at, "a key must be a word, not a map or a sequence");
    f->has_key = true;
    return push(b, (struct dt_doc_pair){v->text, v->at, NULL});
}

/* Where the key of the next value is, or the map or sequence around it. */
static struct dt_doc_place enclosing_place(const struct builder *b)
{
    if (b->depth == 0)
        return (struct dt_doc_place){b->file, 1, 1 + b->col_offset};
    if (b->frame[b->depth - 1].has_key)
        return b->stack[b->n_stack - 1].at;
    return b->frame[b->depth - 1].v->at;
}

static enum dt_status new_value(struct builder *b, enum dt_value_kind kind, struct dt_doc_place at,
                                struct fy_token *tag, struct dt_value **out)
{
    struct dt_value *v;

    if (tag)
        return fail(b, place_of(b, fy_token_start_mark(tag)), "tags are not supported here");
    if (++b->values > DT_DOC_VALUES_MAX)
        return fail(b, at, "too many values in one document");
    v = DT_ARENA_NEW(b->arena, struct dt_value, 1);
    if (!v)
        return dt_error_nomem(b->err, "a document");
    v->kind = kind;
    v->at = at;
    v->weight = 1;
    v->height = 1;
    *out = v;
    return DT_OK;
}

/* Token text as a string in the arena. */
static enum dt_status token_text(struct builder *b, struct fy_token *t, struct dt_doc_place at,
                                 const char **out)
{
    size_t n = 0;
    const char *text = t ? fy_token_get_text(t, &n) : "";
    char *copy;

    if (!text && n > 0)
        return dt_error_nomem(b->err, "a document");
    if (n > 0 && memchr(text, '\0', n))
        return fail(b, at, "a string must not contain the NUL character");
    copy = dt_arena_alloc(b->arena, n + 1, 1);
    if (!copy)
        return dt_error_nomem(b->err, "a document");
    if (n > 0)
        memcpy(copy, text, n);
    *out = copy;
    return DT_OK;
}

static enum dt_status add_anchor(struct builder *b, struct fy_token *t, struct dt_doc_place at,
                                 const struct dt_value *v, ptrdiff_t *index)
{
    const char *name;

    *index = -1;
    if (!t)
        return DT_OK;
    if (b->n_anchors == ANCHORS_MAX)
        return fail(b, at, "too many anchors in one document");
    DT_TRY(token_text(b, t, at, &name));
    b->anchor[b->n_anchors] = (struct anchor){name, v};
    *index = (ptrdiff_t)b->n_anchors++;
    return DT_OK;
}

/* ---- events ---- */

static enum dt_status on_scalar(struct builder *b, struct fy_event *e, struct dt_doc_place at)
{
    struct fy_token *token = e->scalar.value;
    struct dt_value *v;
    ptrdiff_t index;
    enum fy_scalar_style style = token ? fy_token_scalar_style(token) : FYSS_PLAIN;

    /* libfyaml's mark is behind the opening quote */
    if ((style == FYSS_SINGLE_QUOTED || style == FYSS_DOUBLE_QUOTED) && at.col > 1)
        at.col--;
    DT_TRY(new_value(b, DT_VALUE_SCALAR, at, e->scalar.tag, &v));
    v->plain = style == FYSS_PLAIN;
    DT_TRY(token_text(b, token, at, &v->text));
    DT_TRY(add_anchor(b, e->scalar.anchor, at, v, &index));
    return add_value(b, v);
}

static enum dt_status on_alias(struct builder *b, struct fy_event *e, struct dt_doc_place at)
{
    const char *name;

    DT_TRY(token_text(b, e->alias.anchor, at, &name));
    for (size_t i = b->n_anchors; i > 0; i--) {
        const struct anchor *a = &b->anchor[i - 1];

        if (strcmp(a->name, name) != 0)
            continue;
        if (!a->value)
            return fail(b, at, "an alias cannot be inside the value that it names");
        b->values += a->value->weight;
        if (b->values > DT_DOC_VALUES_MAX)
            return fail(b, at, "too many values in one document once its aliases are expanded");
        return add_value(b, a->value);
    }
    return dt_error_at(b->err, DT_ERR_INPUT, at.file, at.line, at.col,
                       "alias \"%s\" names no anchor before it", name);
}

static enum dt_status on_start(struct builder *b, enum dt_value_kind kind, struct fy_token *tag,
                               struct fy_token *anchor, struct dt_doc_place at)
{
    struct frame *f;
    struct dt_value *v;
    ptrdiff_t index;

    if (b->depth == DT_DOC_DEPTH_MAX)
        return fail(b, at, "nested too deeply");
    DT_TRY(new_value(b, kind, at, tag, &v));
    DT_TRY(add_anchor(b, anchor, at, NULL, &index));
    f = &b->frame[b->depth++];
    *f = (struct frame){.v = v, .base = b->n_stack, .anchor = index};
    return DT_OK;
}

static enum dt_status on_end(struct builder *b)
{
    struct frame *f = &b->frame[b->depth - 1];
    size_t n = b->n_stack - f->base;
    struct dt_doc_pair *child = NULL;

    if (n > 0) {
        child = DT_ARENA_NEW(b->arena, struct dt_doc_pair, n);
        if (!child)
            return dt_error_nomem(b->err, "a document");
        memcpy(child, b->stack + f->base, n * sizeof(*child));
    }
    if (f->v->kind == DT_VALUE_MAP)
        DT_TRY(check_duplicates(b, child, n));
    if (!dt_value_finish(f->v, child, n))
        return fail(b, f->v->at,
                    "nested too deeply, or too many values, once aliases are expanded");
    if (f->anchor >= 0)
        b->anchor[f->anchor].value = f->v;
    b->n_stack = f->base;
    b->depth--;
    return add_value(b, f->v);
}

static enum dt_status on_event(struct builder *b, struct fy_event *e)
{
    struct dt_doc_place at = place_of(b, fy_event_start_mark(e));

    if (at.line > 0)
        b->last = at;
    else /* an empty value has no token of its own */
        at = enclosing_place(b);
    switch ((int)e->type) { /* not ours: a later libfyaml may have more */
    case FYET_DOCUMENT_START:
        if (++b->documents > 1)
            return fail(b, at, "a second document begins here; a file holds one");
        return DT_OK;
    case FYET_SCALAR:
        return on_scalar(b, e, at);
    case FYET_ALIAS:
        return on_alias(b, e, at);
    case FYET_MAPPING_START:
        return on_start(b, DT_VALUE_MAP, e->mapping_start.tag, e->mapping_start.anchor, at);
    case FYET_SEQUENCE_START:
        return on_start(b, DT_VALUE_SEQ, e->sequence_start.tag, e->sequence_start.anchor, at);
    case FYET_MAPPING_END:
    case FYET_SEQUENCE_END:
        return on_end(b);
    default:
        return DT_OK;
    }
}

/* The parser has stopped: say why, in our form, if it was an error. */
static enum dt_status stream_status(struct builder *b, struct fy_diag *diag)
{
    struct fy_diag_error *e;
    void *prev = NULL;

    while ((e = fy_diag_errors_iterate(diag, &prev)) != NULL)
        if (e->type >= FYET_ERROR)
            return dt_error_at(b->err, DT_ERR_INPUT, b->file, e->line,
                               e->column + (e->line == 1 ? b->col_offset : 0), "%s",
                               e->msg ? e->msg : "not well-formed YAML");
    if (fy_parser_get_stream_error(b->fyp)) /* of which the library says nothing */
        return fail(b, b->last, "not well-formed YAML from here on");
    return DT_OK;
}

static enum dt_status run_parser(struct builder *b, struct fy_diag *diag)
{
    struct fy_event *e;
    enum dt_status st;

    while ((e = fy_parser_parse(b->fyp)) != NULL) {
        st = on_event(b, e);
        fy_parser_event_free(b->fyp, e);
        if (st != DT_OK)
            return st;
    }
    DT_TRY(stream_status(b, diag));
    if (!b->root)
        return dt_error_at(b->err, DT_ERR_INPUT, b->file, 1, 1, "the document is empty");
    return DT_OK;
}

/* Whether s[len], what follows a colon, is white space with a tab in it and then an indicator.  YAML forbids the tab
 * there; libfyaml 0.7.12 says so, but below an explicit key it first frees the key before the colon twice (mended in
 * 0.8: "Fix double free in case of a bad key"). */
static bool is_tabbed_indicator(const char *s, size_t len)
{
    bool tab = false;
    size_t i = 0;

    for (; i < len && (s[i] == ' ' || s[i] == '\t'); i++)
        tab |= s[i] == '\t';
    if (!tab || i == len)
        return false;
    return strchr("?:|>", s[i]) || (s[i] == '-' && (i + 1 == len || strchr(" \t\r\n", s[i + 1])));
}

/* Bytes that libfyaml would guess an encoding from, or pass through, are refused before it sees
 * them: text is UTF-8 without NUL. */
static enum dt_status check_text(struct builder *b, const char *text, size_t len)
{
    bool explicit_key = false; /* a "?" that may begin one stands further up */
    int line = 1;
    size_t start = 0;

    if (len > TEXT_MAX)
        return dt_error_at(b->err, DT_ERR_INPUT, b->file, 0, 0,
                           "larger than the limit of %zu bytes", TEXT_MAX);
    for (size_t i = 0, n; i < len; i += n) {
        n = text[i] ? dt_utf8_length(text + i, len - i) : 0;
        if (n == 0)
            return dt_error_at(b->err, DT_ERR_INPUT, b->file, line, (int)(i - start) + 1,
                               "byte 0x%02x is not UTF-8 text", (unsigned char)text[i]);
        explicit_key |= text[i] == '?' && (i + 1 == len || strchr(" \t\r\n", text[i + 1]));
        if (explicit_key && text[i] == ':' && is_tabbed_indicator(text + i + 1, len - i - 1))
            return dt_error_at(
                b->err, DT_ERR_INPUT, b->file, line, (int)(i - start) + 2,
                "a tab between ':' and an indicator; write a space, or begin a line");
        if (text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    return DT_OK;
}

enum dt_status dt_doc_build(struct dt_arena *arena, const char *file, int col_offset,
                            const char *text, size_t len, struct dt_error *err,
                            const struct dt_value **out)
{
    struct fy_diag_cfg diag_cfg;
    struct fy_parse_cfg cfg;
    struct fy_diag *diag;
    struct builder *b;
    enum dt_status st;

    b = dt_calloc(1, sizeof(*b));
    if (!b)
        return dt_error_nomem(err, "a document");
    b->arena = arena;
    b->err = err;
    b->file = file;
    b->col_offset = col_offset;
    b->last = (struct dt_doc_place){file, 1, 1 + col_offset};
    st = check_text(b, text, len);
    if (st != DT_OK)
        goto free_builder;

    st = dt_error_nomem(err, "the YAML parser");
    fy_diag_cfg_default(&diag_cfg);
    diag_cfg.fp = NULL; /* nothing may reach stderr: errors are collected */
    diag_cfg.output_fn = NULL;
    diag_cfg.level = FYET_ERROR;
    diag = fy_diag_create(&diag_cfg);
    if (!diag)
        goto free_builder;
    fy_diag_set_collect_errors(diag, true);
    memset(&cfg, 0, sizeof(cfg));
    cfg.flags = FYPCF_JSON_NONE | FYPCF_DEFAULT_VERSION_1_2;
    cfg.diag = diag;
    b->fyp = fy_parser_create(&cfg);
    if (!b->fyp)
        goto destroy_diag;
    /* an empty string is refused as "no input", a blank line is an empty document */
    if (fy_parser_set_string(b->fyp, len ? text : "\n", len ? len : 1) != 0)
        goto destroy_parser;
    st = run_parser(b, diag);
    if (st == DT_OK)
        *out = b->root;

destroy_parser:
    fy_parser_destroy(b->fyp);
destroy_diag:
    fy_diag_destroy(diag);
free_builder:
    dt_free(b->stack);
    dt_free(b);
    return st;
}

/* ---- documents ---- */

enum dt_status dt_doc_parse(const char *name, const char *text, size_t len, struct dt_error *err,
                            struct dt_doc **out)
{
    struct dt_doc *doc = dt_calloc(1, sizeof(*doc));
    enum dt_status st;

    if (!doc)
        return dt_error_nomem(err, "a document");
    doc->name = dt_arena_strdup(&doc->arena, name);
    if (!doc->name)
        st = dt_error_nomem(err, "a document");
    else
        st = dt_doc_build(&doc->arena, doc->name, 0, text, len, err, &doc->root);
    if (st != DT_OK) {
        dt_doc_free(doc);
        return st;
    }
    *out = doc;
    return DT_OK;
}

enum dt_status dt_doc_read(const char *path, struct dt_error *err, struct dt_doc **out)
{
    enum dt_status st;
    char *text;
    size_t len;

    DT_TRY(dt_file_read(path, TEXT_MAX, err, &text, &len));
    st = dt_doc_parse(strcmp(path, "-") == 0 ? "standard input" : path, text, len, err, out);
    dt_free(text);
    return st;
}

void dt_doc_free(struct dt_doc *doc)
{
    if (!doc)
        return;
    dt_arena_free(&doc->arena);
    dt_free(doc);
}

const char *dt_doc_name(const struct dt_doc *doc)
{
    return doc->name;
}

struct dt_node dt_doc_root(const struct dt_doc *doc)
{
    return (struct dt_node){doc, doc->root};
}
