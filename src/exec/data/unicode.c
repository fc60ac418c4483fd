/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Character classes, UTF-8, and normalisation form C (Unicode Standard Annex 15), from libutf8proc's
 * tables.  utf8proc_map would do all of the last; but it sorts marks by exchanging neighbours, so a
 * long run of them costs the square of its length, and it refuses malformed text. */
#include "exec/data/unicode.h"

#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

static const utf8proc_option_t form = (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

enum {
    BAD = 0x110000,   /* malformed */
    BEFORE_T = 0x11a7 /* the vowel just before Hangul's trailing consonants */
};
/* A text in NFC has at most three times its bytes in UTF-8 (Unicode Standard Annex 15, section 12). */
enum { NFC_GROWTH = 3 };

bool dt_unicode_letter(uint32_t c)
{
    utf8proc_category_t k;

    if (c < 0x80)
        return (c | 32) >= 'a' && (c | 32) <= 'z';
    k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool dt_unicode_number(uint32_t c)
{
    utf8proc_category_t k;

    if (c < 0x80)
        return c >= '0' && c <= '9';
    k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

/* The separators (Z*) and, of the control characters, tab to carriage return and next line. */
bool dt_unicode_space(uint32_t c)
{
    utf8proc_category_t k;

    if (c < 0x80)
        return (c >= 9 && c <= 13) || c == ' ';
    k = utf8proc_category((utf8proc_int32_t)c);
    return c == 0x85 || (k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP);
}

size_t dt_unicode_get(const char *s, size_t left, uint32_t *c)
{
    utf8proc_int32_t got;
    utf8proc_ssize_t n;

    if ((unsigned char)s[0] < 0x80) {
        *c = (unsigned char)s[0];
        return 1;
    }
    n = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)(left < 4 ? left : 4),
                         &got);
    *c = n > 0 ? (uint32_t)got : BAD;
    return n > 0 ? (size_t)n : 1;
}

size_t dt_unicode_put(uint32_t c, char *out)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

/* ---- NFC ---- */

struct chars {
    utf8proc_int32_t *c;
    size_t n, cap;
};

static int decompose(struct chars *s, uint32_t c)
{
    utf8proc_int32_t parts[8]; /* canonical decompositions have 4 at most */
    utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)c, parts, 8, form, NULL);
    void *p = s->c;

    if (dt_grow(&p, &s->cap, s->n + 8, sizeof(*s->c)))
        return -1;
    s->c = p;
    for (utf8proc_ssize_t i = 0; i < k && i < 8; i++)
        s->c[s->n++] = parts[i];
    return 0;
}

static size_t combining_class(utf8proc_int32_t c)
{
    return (size_t)utf8proc_get_property(c)->combining_class;
}

/* Stable sort by class of a run of combining characters. */
static int order_run(utf8proc_int32_t *c, size_t n)
{
    size_t start[257] = {0};
    utf8proc_int32_t *copy = dt_malloc(n * sizeof(*copy));

    if (!copy)
        return -1;
    memcpy(copy, c, n * sizeof(*copy));
    for (size_t i = 0; i < n; i++)
        start[combining_class(c[i]) + 1]++;
    for (size_t k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++)
        c[start[combining_class(copy[i])]++] = copy[i];
    dt_free(copy);
    return 0;
}

/* Canonical order. */
static int order(struct chars *s)
{
    for (size_t i = 0, end; i < s->n; i = end + 1) {
        bool sorted = true;

        for (end = i; end < s->n && combining_class(s->c[end]); end++)
            sorted = sorted &&
                     (end == i || combining_class(s->c[end - 1]) <= combining_class(s->c[end]));
        if (!sorted && order_run(s->c + i, end - i))
            return -1;
    }
    return 0;
}

/* Ends a stretch: neither moves nor composes.  utf8proc 2.8 takes BEFORE_T for a trailing consonant
 * and drops it behind a syllable. */
static bool stands_alone(uint32_t c)
{
    return c == BAD || c == BEFORE_T;
}

/* The characters up to one that stands alone, in NFC, to *out; *used: their bytes in `text`. */
static int stretch(const char *text, size_t len, struct chars *s, char *out, size_t *used,
                   size_t *written)
{
    utf8proc_ssize_t n;
    uint32_t c;

    s->n = *used = *written = 0;
    while (*used < len) {
        size_t k = dt_unicode_get(text + *used, len - *used, &c);

        if (stands_alone(c))
            break;
        if (decompose(s, c))
            return -1;
        *used += k;
    }
    if (s->n == 0)
        return 0;
    if (order(s))
        return -1;
    n = utf8proc_normalize_utf32(s->c, (utf8proc_ssize_t)s->n, form);
    for (utf8proc_ssize_t i = 0; i < n; i++)
        *written += dt_unicode_put((uint32_t)s->c[i], out + *written);
    return 0;
}

enum dt_status dt_unicode_nfc(const char *text, size_t len, struct dt_error *err, char **out,
                              size_t *out_len)
{
    struct chars s = {0};
    char *buf;
    size_t n = 0, i = 0, used, written;

    /* below U+0300 every character is in NFC and none combines */
    while (i < len && (unsigned char)text[i] < 0xcc)
        i++;
    if (i == len) {
        *out = NULL;
        return DT_OK;
    }
    buf = dt_malloc(NFC_GROWTH * len + 1);
    for (i = 0; buf && i < len; i += used, n += written) {
        if (stretch(text + i, len - i, &s, buf + n, &used, &written)) {
            dt_free(buf);
            buf = NULL;
        } else if (i + used < len) { /* what stands alone behind it stays as it is */
            uint32_t c;
            size_t k = dt_unicode_get(text + i + used, len - i - used, &c);

            memcpy(buf + n + written, text + i + used, k);
            used += k;
            written += k;
        }
    }
    dt_free(s.c);
    if (!buf)
        return dt_error_nomem(err, "a normalised text");
    buf[n] = '\0';
    *out = buf;
    *out_len = n;
    return DT_OK;
}
