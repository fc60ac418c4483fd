/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* state[depth]: depth 0 is the document itself */
#define STATE_OBJECT 1u
#define STATE_FILLED 2u /* an element was written */
#define STATE_KEYED 4u  /* a key waits for its value */

#define DEPTH_MAX ((int)sizeof(((struct dt_json *)0)->state) - 1)

/* Above this, doubles do not hold every integer and "%.17g" is what reads back exactly. */
#define INT_EXACT_MAX 9007199254740992.0 /* 2^53 */
#define NINE_DIGITS 999999999.5          /* above, %.9g rounds to 1e+09 */

static void put(struct dt_json *j, const char *s, size_t n)
{
    void *buf = j->buf;

    if (j->failed)
        return;
    if (dt_grow(&buf, &j->cap, j->len + n + 1, 1)) {
        j->failed = true;
        return;
    }
    j->buf = buf;
    memcpy(j->buf + j->len, s, n);
    j->len += n;
    j->buf[j->len] = '\0';
}

static void newline(struct dt_json *j)
{
    if (!j->pretty)
        return;
    put(j, "\n", 1);
    for (int i = 0; i < j->depth; i++)
        put(j, "  ", 2);
}

/* Separator before a value (or, for an object, before a key). */
static void separate(struct dt_json *j)
{
    unsigned char *st = &j->state[j->depth];

    if (*st & STATE_KEYED) {
        *st &= (unsigned char)~STATE_KEYED;
        return;
    }
    if (*st & STATE_FILLED)
        put(j, ",", 1);
    *st |= STATE_FILLED;
    if (j->depth > 0)
        newline(j);
}

static void value(struct dt_json *j, const char *text)
{
    separate(j);
    put(j, text, strlen(text));
}

static void begin(struct dt_json *j, const char *open, unsigned char kind)
{
    value(j, open);
    if (j->depth >= DEPTH_MAX) {
        j->failed = true;
        return;
    }
    j->state[++j->depth] = kind;
}

static void end(struct dt_json *j, const char *close)
{
    bool filled = j->state[j->depth] & STATE_FILLED;

    if (j->depth == 0) {
        j->failed = true;
        return;
    }
    j->depth--;
    if (filled)
        newline(j);
    put(j, close, 1);
}

static void put_escaped(struct dt_json *j, const char *s)
{
    static const char *const named[] = {
        ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f",
        ['\r'] = "\\r", ['"'] = "\\\"", ['\\'] = "\\\\"};
    const unsigned char *p = (const unsigned char *)s;
    size_t left = strlen(s);
    char code[8];

    put(j, "\"", 1);
    while (*p) {
        size_t n = dt_utf8_length((const char *)p, left);

        if (n == 0) { /* not UTF-8: JSON has no bytes, show the replacement character */
            put(j, "\xEF\xBF\xBD", 3);
            n = 1;
        } else if (*p < sizeof(named) / sizeof(named[0]) && named[*p]) {
            put(j, named[*p], 2);
        } else if (*p < 0x20 || *p == 0x7F) {
            snprintf(code, sizeof(code), "\\u%04x", (unsigned)*p);
            put(j, code, 6);
        } else {
            put(j, (const char *)p, n);
        }
        p += n;
        left -= n;
    }
    put(j, "\"", 1);
}

void dt_json_init(struct dt_json *j, bool pretty)
{
    memset(j, 0, sizeof(*j));
    j->pretty = pretty;
}

void dt_json_begin_object(struct dt_json *j)
{
    begin(j, "{", STATE_OBJECT);
}

void dt_json_end_object(struct dt_json *j)
{
    end(j, "}");
}

void dt_json_begin_array(struct dt_json *j)
{
    begin(j, "[", 0);
}

void dt_json_end_array(struct dt_json *j)
{
    end(j, "]");
}

void dt_json_key(struct dt_json *j, const char *key)
{
    separate(j);
    put_escaped(j, key);
    put(j, ": ", j->pretty ? 2 : 1);
    j->state[j->depth] |= STATE_KEYED;
}

void dt_json_string(struct dt_json *j, const char *s)
{
    if (!s) {
        dt_json_null(j);
        return;
    }
    separate(j);
    put_escaped(j, s);
}

void dt_json_int(struct dt_json *j, int64_t v)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRId64, v);
    value(j, text);
}

void dt_json_double(struct dt_json *j, double v)
{
    char text[40], *p, *q;

    if (!isfinite(v)) {
        dt_json_null(j);
        return;
    }
    if (v == floor(v) && fabs(v) < INT_EXACT_MAX) {
        dt_json_int(j, (int64_t)v);
        return;
    }
    /* nine digits, but never fewer than a whole number of that size gets: read and written again it
     * stays the same text */
    snprintf(text, sizeof(text), fabs(v) < NINE_DIGITS ? "%.9g" : "%.17g", v);
    /* Whatever the locale's decimal point is, write '.'. */
    for (p = q = text; *p; p++) {
        if (strchr("+-0123456789e", *p))
            *q++ = *p;
        else if (q == text || q[-1] != '.')
            *q++ = '.';
    }
    *q = '\0';
    value(j, text);
}

void dt_json_bool(struct dt_json *j, bool v)
{
    value(j, v ? "true" : "false");
}

void dt_json_null(struct dt_json *j)
{
    value(j, "null");
}

void dt_json_raw(struct dt_json *j, const char *text)
{
    value(j, text);
}

void dt_json_kv_string(struct dt_json *j, const char *key, const char *s)
{
    dt_json_key(j, key);
    dt_json_string(j, s);
}

void dt_json_kv_int(struct dt_json *j, const char *key, int64_t v)
{
    dt_json_key(j, key);
    dt_json_int(j, v);
}

void dt_json_kv_double(struct dt_json *j, const char *key, double v)
{
    dt_json_key(j, key);
    dt_json_double(j, v);
}

void dt_json_kv_bool(struct dt_json *j, const char *key, bool v)
{
    dt_json_key(j, key);
    dt_json_bool(j, v);
}

enum dt_status dt_json_finish(struct dt_json *j, struct dt_error *err, char **out)
{
    bool whole = j->depth == 0 && (j->state[0] & STATE_FILLED);

    if (j->failed || !whole) {
        bool nomem = j->failed && j->depth < DEPTH_MAX;

        dt_json_discard(j);
        if (nomem)
            return dt_error_nomem(err, "JSON text");
        return dt_error_set(err, DT_ERR_INTERNAL, "JSON text was not built as one whole value");
    }
    if (j->pretty)
        put(j, "\n", 1);
    if (j->failed) {
        dt_json_discard(j);
        return dt_error_nomem(err, "JSON text");
    }
    *out = j->buf;
    memset(j, 0, sizeof(*j));
    return DT_OK;
}

void dt_json_discard(struct dt_json *j)
{
    dt_free(j->buf);
    memset(j, 0, sizeof(*j));
}
