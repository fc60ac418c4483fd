/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Samples from CSV (RFC 4180 quoting; LF or CRLF; UTF-8 byte-order mark allowed; empty lines and
 * lines that start with '#' are skipped).  Columns, in any order, named by the first line:
 *
 *   text_tokens   required; 0 to seq_len
 *   sample        optional whole number, a label for people
 *   images        optional "WxH;WxH;...": pixels, encoded and read by the LLM
 *   gen_images    optional "WxH;...": targets.  An entry that equals an entry of images (each used
 *                 once) marks that image as a target too; any other is a target only
 *   audio_s       optional "10;7.25;...": seconds of clips, encoded and read by the LLM
 *   gen_audio_s   optional, to audio_s what gen_images is to images
 *   seq_tokens    optional; default seq_len (the sequence is padded)
 *
 * One pass, no copies of the text: linear in its length. */
#include "core/model/samples.h"

#include "base/doc.h"
#include "base/mem.h"
#include "core/model/samples_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum column {
    COL_SAMPLE,
    COL_TEXT,
    COL_IMAGES,
    COL_AUDIO,
    COL_GEN_IMAGES,
    COL_GEN_AUDIO,
    COL_SEQ,
    COL_N
};
static const char *const column_names[] = {"sample",     "text_tokens", "images",     "audio_s",
                                           "gen_images", "gen_audio_s", "seq_tokens", NULL};
enum { MAX_FIELDS = 32 };

struct field { /* bytes [begin, end) of the text, surrounding quotes removed */
    const char *begin, *end;
    int line, col;
};

struct parser {
    const char *name;
    const char *p, *end;
    const char *line_begin;
    int line;
    int seq_len;
    struct dt_samples_image image;
    int n_columns;
    int column_of[MAX_FIELDS]; /* field index -> enum column */
    struct dt_error *err;
    struct dt_samples_builder b;
};

static int column_at(const struct parser *ps, const char *p)
{
    return (int)(p - ps->line_begin) + 1;
}

static enum dt_status fail_field(const struct parser *ps, const struct field *f, const char *at,
                                 const char *what)
{
    int shown = (int)(f->end - f->begin > 40 ? 40 : f->end - f->begin);
    return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, f->line, f->col + (int)(at - f->begin),
                       "%s, found '%.*s'", what, shown, f->begin);
}

/* ---- lines and fields ---- */

static void skip_newline(struct parser *ps)
{
    if (ps->p < ps->end && *ps->p == '\r')
        ps->p++;
    if (ps->p < ps->end && *ps->p == '\n')
        ps->p++;
    ps->line++;
    ps->line_begin = ps->p;
}

static bool at_newline(const struct parser *ps)
{
    return *ps->p == '\n' || (*ps->p == '\r' && (ps->p + 1 == ps->end || ps->p[1] == '\n'));
}

/* Moves to the next line with content; false at the end of the text. */
static bool next_record(struct parser *ps)
{
    while (ps->p < ps->end) {
        if (at_newline(ps)) {
            skip_newline(ps);
        } else if (*ps->p == '#') {
            while (ps->p < ps->end && *ps->p != '\n')
                ps->p++;
            skip_newline(ps);
        } else {
            return true;
        }
    }
    return false;
}

static enum dt_status quoted_field(struct parser *ps, struct field *f)
{
    f->begin = ++ps->p;
    while (ps->p < ps->end && *ps->p != '"' && *ps->p != '\n')
        ps->p++;
    if (ps->p == ps->end || *ps->p != '"')
        return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, f->line, f->col, "quote is not closed");
    f->end = ps->p++;
    f->col++;
    if (ps->p < ps->end && *ps->p != ',' && !at_newline(ps))
        return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, ps->line, column_at(ps, ps->p),
                           "expected ',' or the end of the line after a quoted field");
    return DT_OK;
}

/* One field; ps->p is left at ',' or at a newline or at the end. */
static enum dt_status next_field(struct parser *ps, struct field *f)
{
    f->line = ps->line;
    f->col = column_at(ps, ps->p);
    if (ps->p < ps->end && *ps->p == '"') {
        DT_TRY(quoted_field(ps, f));
    } else {
        f->begin = ps->p;
        while (ps->p < ps->end && *ps->p != ',' && !at_newline(ps))
            ps->p++;
        f->end = ps->p;
    }
    while (f->begin < f->end && (*f->begin == ' ' || *f->begin == '\t')) {
        f->begin++;
        f->col++;
    }
    while (f->begin < f->end && (f->end[-1] == ' ' || f->end[-1] == '\t'))
        f->end--;
    return DT_OK;
}

/* A whole record into f[]; *n_out fields. */
static enum dt_status read_record(struct parser *ps, struct field *f, int *n_out)
{
    for (int n = 0;;) {
        if (n == MAX_FIELDS)
            return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, ps->line, column_at(ps, ps->p),
                               "more than %d fields in a line", (int)MAX_FIELDS);
        DT_TRY(next_field(ps, &f[n]));
        n++;
        if (ps->p < ps->end && *ps->p == ',') {
            ps->p++;
            continue;
        }
        *n_out = n;
        return DT_OK;
    }
}

/* ---- the header ---- */

static int find_column(const struct field *f)
{
    size_t len = (size_t)(f->end - f->begin);
    for (int c = 0; c < COL_N; c++)
        if (strlen(column_names[c]) == len && memcmp(column_names[c], f->begin, len) == 0)
            return c;
    return -1;
}

static enum dt_status unknown_column(const struct parser *ps, const struct field *f)
{
    char word[64];
    snprintf(word, sizeof(word), "%.*s", (int)(f->end - f->begin > 60 ? 60 : f->end - f->begin),
             f->begin);
    const char *near = dt_suggest(word, column_names);
    return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, f->line, f->col,
                       "unknown column '%s'%s%s%s; columns are sample, text_tokens, images, "
                       "audio_s, gen_images, gen_audio_s, seq_tokens",
                       word, near ? " (did you mean '" : "", near ? near : "", near ? "'?)" : "");
}

/* The number behind `name` in a line of a scan. */
static int scanned_with(const char *line, const char *name, int otherwise)
{
    const char *at = strstr(line, name);

    return at ? (int)strtol(at + strlen(name), NULL, 10) : otherwise;
}

/* Rows that were packed with other tokens than the model makes are not those that it is trained on. */
static enum dt_status check_scanned(const struct parser *ps)
{
    const struct dt_samples_image *m = &ps->image;
    char line[200];
    size_t n = 0;
    int patch, bins, side;

    for (; n < sizeof(line) - 1 && ps->p + n < ps->end && ps->p[n] != '\n'; n++)
        line[n] = ps->p[n];
    line[n] = '\0';
    if (strncmp(line, DT_SAMPLES_SCANNED, strlen(DT_SAMPLES_SCANNED)) != 0)
        return DT_OK;
    patch = scanned_with(line, ", patch ", DT_SAMPLES_PATCH); /* before it was stated it was this */
    bins = scanned_with(line, ", mel_bins ", 0);
    side = bins > 0 ? m->sound_patch : m->patch;
    if (side == 0 || (patch == side && (bins <= 0 || bins == m->mel_bins)))
        return DT_OK;
    if (bins > 0)
        return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, ps->line, 1,
                           "these sequences were packed with patches of %d x %d of %d filters, and "
                           "the model's encoder takes %d x %d of %d; \"disttrain data scan --job "
                           "JOB\" packs them for a job",
                           patch, patch, bins, side, side, m->mel_bins);
    return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, ps->line, 1,
                       "these sequences were packed with a token for %d x %d pixels of an image, "
                       "and the model's encoder makes one of %d x %d; \"disttrain data scan "
                       "--patch %d\" packs them for it, or --job JOB for a job",
                       patch, patch, side, side, side);
}

static enum dt_status read_header(struct parser *ps)
{
    struct field f[MAX_FIELDS];
    unsigned seen = 0;
    if (ps->end - ps->p >= 3 && memcmp(ps->p, "\xef\xbb\xbf", 3) == 0)
        ps->line_begin = ps->p += 3;
    DT_TRY(check_scanned(ps));
    if (!next_record(ps))
        return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, ps->line, 1,
                           "no header line; the first line names the columns, e.g. "
                           "sample,text_tokens,images");
    int line = ps->line;
    DT_TRY(read_record(ps, f, &ps->n_columns));
    for (int i = 0; i < ps->n_columns; i++) {
        int c = find_column(&f[i]);
        if (c < 0)
            return unknown_column(ps, &f[i]);
        if (seen & 1u << c)
            return fail_field(ps, &f[i], f[i].begin, "column named twice");
        seen |= 1u << c;
        ps->column_of[i] = c;
    }
    if (!(seen & 1u << COL_TEXT))
        return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, line, 1,
                           "the header lacks the column 'text_tokens'");
    return DT_OK;
}

/* ---- values ---- */

/* A whole number in [min, max] at *p, which moves past it. */
static bool read_uint(const char **p, const char *end, int64_t max, int64_t *out)
{
    const char *q = *p;
    int64_t v = 0;
    while (q < end && *q >= '0' && *q <= '9') {
        v = v * 10 + (*q++ - '0');
        if (v > max)
            return false;
    }
    if (q == *p)
        return false;
    *p = q;
    *out = v;
    return true;
}

static enum dt_status whole_field(const struct parser *ps, const struct field *f, int64_t max,
                                  int64_t *out)
{
    const char *p = f->begin;
    char what[80];
    if (read_uint(&p, f->end, max, out) && p == f->end)
        return DT_OK;
    snprintf(what, sizeof(what), "expected a whole number from 0 to %lld", (long long)max);
    return fail_field(ps, f, p < f->end ? p : f->begin, what);
}

/* "WxH" at *p. */
static enum dt_status read_image(const struct parser *ps, const struct field *f, const char **p,
                                 struct dt_sample_item *it)
{
    int64_t w = 0, h = 0;
    const char *q = *p;
    bool ok = read_uint(&q, f->end, DT_SAMPLES_SIDE_MAX, &w) && w > 0 && q < f->end && *q == 'x';
    if (ok) {
        q++;
        ok = read_uint(&q, f->end, DT_SAMPLES_SIDE_MAX, &h) && h > 0;
    }
    if (!ok)
        return fail_field(ps, f, q, "expected images as WxH;WxH with sides of 1 to 16384 pixels");
    *it = (struct dt_sample_item){(uint16_t)w, (uint16_t)h, DT_MODALITY_IMAGE, 0};
    *p = q;
    return DT_OK;
}

/* Seconds with up to two decimals that count (further digits are dropped) at *p. */
static enum dt_status read_clip(const struct parser *ps, const struct field *f, const char **p,
                                struct dt_sample_item *it)
{
    int64_t whole = 0, cs = 0;
    const char *q = *p;
    bool ok = read_uint(&q, f->end, DT_SAMPLES_AUDIO_CS_MAX / 100, &whole);
    if (ok) {
        cs = whole * 100;
        if (q < f->end && *q == '.') {
            q++;
            for (int64_t unit = 10; q < f->end && *q >= '0' && *q <= '9'; unit /= 10, q++)
                cs += (*q - '0') * unit;
        }
        ok = cs > 0 && cs <= DT_SAMPLES_AUDIO_CS_MAX;
    }
    if (!ok)
        return fail_field(ps, f, q < f->end ? q : f->begin,
                          "expected clip lengths in seconds as S;S, each 0.01 to 655.35");
    *it = (struct dt_sample_item){(uint16_t)cs, 0, DT_MODALITY_AUDIO, 0};
    *p = q;
    return DT_OK;
}

/* Targets: mark an equal encoded item that is no target yet, else a target of its own. */
static enum dt_status add_target(struct parser *ps, uint64_t first, struct dt_sample_item it)
{
    struct dt_sample_item *items = ps->b.s->items;
    for (uint64_t i = first; i < ps->b.n_items; i++)
        if (items[i].flags == DT_ITEM_ENCODE && items[i].kind == it.kind && items[i].w == it.w &&
            items[i].h == it.h) {
            items[i].flags |= DT_ITEM_GENERATE;
            return DT_OK;
        }
    it.flags = DT_ITEM_GENERATE;
    return dt_samples_builder_item(&ps->b, it, ps->err);
}

/* One list column.  `first` = the sample's first item. */
static enum dt_status read_items(struct parser *ps, const struct field *f, int column,
                                 uint64_t first, int64_t *tokens)
{
    bool image = column == COL_IMAGES || column == COL_GEN_IMAGES;
    bool target = column == COL_GEN_IMAGES || column == COL_GEN_AUDIO;
    for (const char *p = f->begin; p < f->end;) {
        struct dt_sample_item it;
        const char *begin = p;
        DT_TRY(image ? read_image(ps, f, &p, &it) : read_clip(ps, f, &p, &it));
        if (p < f->end && *p != ';')
            return fail_field(ps, f, p, "expected ';' between entries");
        if (p < f->end && ++p == f->end)
            return fail_field(ps, f, p - 1, "expected an entry after ';'");
        if (ps->b.n_items - first >= (uint64_t)ps->seq_len)
            return fail_field(ps, f, begin, "more images and clips than the sequence has tokens");
        if (target) {
            DT_TRY(add_target(ps, first, it));
            continue;
        }
        it.flags = DT_ITEM_ENCODE;
        *tokens += image ? dt_samples_image_tokens(&ps->image, &it)
                         : dt_samples_sound_tokens(&ps->image, it.w, DT_SAMPLES_AUDIO_TOKENS_PER_S);
        DT_TRY(dt_samples_builder_item(&ps->b, it, ps->err));
    }
    return DT_OK;
}

static enum dt_status read_row(struct parser *ps)
{
    struct field f[MAX_FIELDS];
    const struct field *by_column[COL_N] = {NULL};
    int n = 0, line = ps->line;
    int64_t label = 0, text = 0, seq = ps->seq_len, tokens = 0;
    DT_TRY(read_record(ps, f, &n));
    if (n != ps->n_columns)
        return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, line, f[n - 1].col,
                           "%d fields where the header has %d columns", n, ps->n_columns);
    for (int i = 0; i < n; i++)
        by_column[ps->column_of[i]] = &f[i];

    DT_TRY(whole_field(ps, by_column[COL_TEXT], ps->seq_len, &text));
    if (by_column[COL_SAMPLE])
        DT_TRY(whole_field(ps, by_column[COL_SAMPLE], INT64_MAX / 16, &label));
    if (by_column[COL_SEQ] && by_column[COL_SEQ]->begin < by_column[COL_SEQ]->end)
        DT_TRY(whole_field(ps, by_column[COL_SEQ], ps->seq_len, &seq));
    tokens = text;
    uint64_t first = ps->b.n_items;
    static const int lists[] = {COL_IMAGES, COL_AUDIO, COL_GEN_IMAGES, COL_GEN_AUDIO};
    for (int k = 0; k < 4; k++)
        if (by_column[lists[k]])
            DT_TRY(read_items(ps, by_column[lists[k]], lists[k], first, &tokens));
    if (tokens > seq || seq == 0)
        return dt_error_at(ps->err, DT_ERR_INPUT, ps->name, line, 1,
                           "text, images (one token per %d-px patch) and clips come to %lld "
                           "tokens, more than the sequence's %lld (train.seq_len %d)",
                           ps->image.patch, (long long)tokens, (long long)seq, ps->seq_len);
    return dt_samples_builder_end(&ps->b, (uint32_t)text, (uint32_t)seq, ps->err);
}

enum dt_status dt_samples_parse_csv(const char *name, const char *text, size_t len, int seq_len,
                                    const struct dt_samples_image *image, struct dt_error *err,
                                    struct dt_samples **out)
{
    struct parser ps = {.name = name,
                        .p = text,
                        .end = text + len,
                        .line_begin = text,
                        .line = 1,
                        .seq_len = seq_len,
                        .err = err};
    if (image)
        ps.image = *image;
    if (seq_len < 1 || seq_len > DT_SAMPLES_SEQ_MAX)
        return dt_error_set(err, DT_ERR_INPUT, "samples: seq_len must be 1 to %d",
                            (int)DT_SAMPLES_SEQ_MAX);
    DT_TRY(dt_samples_builder_init(&ps.b, 0, err));
    enum dt_status st = read_header(&ps);
    if (ps.image.patch == 0)
        ps.image.patch = DT_SAMPLES_PATCH;
    while (st == DT_OK && next_record(&ps))
        st = read_row(&ps);
    if (st == DT_OK && ps.b.s->n == 0)
        st = dt_error_at(err, DT_ERR_INPUT, name, ps.line, 1, "no samples after the header line");
    if (st != DT_OK) {
        dt_samples_builder_drop(&ps.b);
        return st;
    }
    const char *slash = strrchr(name, '/');
    snprintf(ps.b.s->name, sizeof(ps.b.s->name), "%.47s", slash ? slash + 1 : name);
    snprintf(ps.b.s->source, sizeof(ps.b.s->source), "sizes listed in %.200s", name);
    *out = dt_samples_builder_take(&ps.b);
    (*out)->generate = -1;
    return DT_OK;
}
