/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Character classes, UTF-8, and normalisation form C (Unicode Standard Annex 15; Hangul by
 * arithmetic, Unicode Standard section 3.12). */
#include "exec/data/unicode.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "exec/data/unicode_table.h"

#include <string.h>

enum {
    BAD = 0x110000, /* malformed bytes travel as BAD + byte */
    S_BASE = 0xac00,
    L_BASE = 0x1100,
    V_BASE = 0x1161,
    T_BASE = 0x11a7,
    L_COUNT = 19,
    V_COUNT = 21,
    T_COUNT = 28,
    S_COUNT = L_COUNT * V_COUNT * T_COUNT
};

static bool in_ranges(const struct dt_unicode_range *r, size_t n, uint32_t c)
{
    size_t lo = 0;
    while (n > 0) {
        size_t half = n / 2;
        if (r[lo + half].last < c) {
            lo += half + 1;
            n -= half + 1;
        } else if (r[lo + half].first <= c) {
            return true;
        } else {
            n = half;
        }
    }
    return false;
}

bool dt_unicode_letter(uint32_t c)
{
    if (c < 0x80)
        return (c | 32) >= 'a' && (c | 32) <= 'z';
    return in_ranges(dt_unicode_letters, dt_unicode_letters_n, c);
}

bool dt_unicode_number(uint32_t c)
{
    if (c < 0x80)
        return c >= '0' && c <= '9';
    return in_ranges(dt_unicode_numbers, dt_unicode_numbers_n, c);
}

bool dt_unicode_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

size_t dt_unicode_get(const char *s, size_t left, uint32_t *c)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t n;
    if (u[0] < 0x80) {
        *c = u[0];
        return 1;
    }
    n = dt_utf8_length(s, left);
    if (n == 2)
        *c = (u[0] & 31u) << 6 | (u[1] & 63u);
    else if (n == 3)
        *c = (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u);
    else if (n == 4)
        *c = (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u);
    else
        *c = BAD;
    return n ? n : 1;
}

size_t dt_unicode_put(uint32_t c, char *out)
{
    unsigned char *u = (unsigned char *)out;
    if (c < 0x80) {
        u[0] = (unsigned char)c;
        return 1;
    }
    if (c < 0x800) {
        u[0] = (unsigned char)(0xc0 | c >> 6);
        u[1] = (unsigned char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        u[0] = (unsigned char)(0xe0 | c >> 12);
        u[1] = (unsigned char)(0x80 | (c >> 6 & 63));
        u[2] = (unsigned char)(0x80 | (c & 63));
        return 3;
    }
    u[0] = (unsigned char)(0xf0 | c >> 18);
    u[1] = (unsigned char)(0x80 | (c >> 12 & 63));
    u[2] = (unsigned char)(0x80 | (c >> 6 & 63));
    u[3] = (unsigned char)(0x80 | (c & 63));
    return 4;
}

/* ---- NFC ---- */

static unsigned combining_class(uint32_t c)
{
    const struct dt_unicode_class *r = dt_unicode_classes;
    size_t lo = 0, n = dt_unicode_classes_n;
    if (c < 0x300) /* the first combining character */
        return 0;
    while (n > 0) {
        size_t half = n / 2;
        if (r[lo + half].last < c) {
            lo += half + 1;
            n -= half + 1;
        } else if (r[lo + half].first <= c) {
            return r[lo + half].ccc;
        } else {
            n = half;
        }
    }
    return 0;
}

static const struct dt_unicode_pair *decomposition(uint32_t c)
{
    size_t lo = 0, hi = dt_unicode_decompositions_n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const struct dt_unicode_pair *p = &dt_unicode_decompositions[mid];
        if (p->c == c)
            return p;
        if (p->c < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

/* The character that a followed by b makes, or 0. */
static uint32_t composition(uint32_t a, uint32_t b)
{
    size_t lo = 0, hi = dt_unicode_compositions_n;
    if (a >= L_BASE && a < L_BASE + L_COUNT && b >= V_BASE && b < V_BASE + V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a >= S_BASE && a < S_BASE + S_COUNT && (a - S_BASE) % T_COUNT == 0 && b > T_BASE &&
        b < T_BASE + T_COUNT)
        return a + (b - T_BASE);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        const struct dt_unicode_pair *p = &dt_unicode_compositions[mid];
        if (p->a == a && p->b == b)
            return p->c;
        if (p->a < a || (p->a == a && p->b < b))
            lo = mid + 1;
        else
            hi = mid;
    }
    return 0;
}

struct chars {
    uint32_t *c;
    size_t n, cap;
};

static int push(struct chars *s, uint32_t c)
{
    void *p = s->c;
    if (dt_grow(&p, &s->cap, s->n + 1, sizeof *s->c))
        return -1;
    s->c = p;
    s->c[s->n++] = c;
    return 0;
}

static int decompose(struct chars *s, uint32_t c)
{
    const struct dt_unicode_pair *p;
    if (c >= S_BASE && c < S_BASE + S_COUNT) {
        uint32_t k = c - S_BASE;
        if (push(s, L_BASE + k / (V_COUNT * T_COUNT)) ||
            push(s, V_BASE + k % (V_COUNT * T_COUNT) / T_COUNT))
            return -1;
        return k % T_COUNT ? push(s, T_BASE + k % T_COUNT) : 0;
    }
    p = c < 0xc0 ? NULL : decomposition(c); /* U+00C0 is the first that decomposes */
    if (p)                                  /* chains are at most four long */
        return decompose(s, p->a) || (p->b && decompose(s, p->b)) ? -1 : 0;
    return push(s, c);
}

/* Stable sort by class of a run of combining characters. */
static int order_run(uint32_t *c, size_t n)
{
    size_t start[257] = {0};
    uint32_t *copy = dt_malloc(n * sizeof *copy);
    if (!copy)
        return -1;
    memcpy(copy, c, n * sizeof *copy);
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

/* In place. */
static void compose(struct chars *s)
{
    size_t out = 0, starter = 0;
    bool has_starter = false;
    unsigned last = 0; /* class of the last character kept after the starter; 256 = blocks all */
    for (size_t i = 0; i < s->n; i++) {
        uint32_t c = s->c[i], made;
        unsigned ccc = combining_class(c);
        bool blocked = has_starter && out - 1 > starter && (last == 0 || last >= ccc);
        if (has_starter && !blocked && (made = composition(s->c[starter], c))) {
            s->c[starter] = made;
            continue;
        }
        if (ccc == 0) {
            starter = out;
            has_starter = true;
        }
        last = ccc;
        s->c[out++] = c;
    }
    s->n = out;
}

enum dt_status dt_unicode_nfc(const char *text, size_t len, struct dt_error *err, char **out,
                              size_t *out_len)
{
    struct chars s = {0};
    char *buf;
    size_t n = 0, i = 0;
    /* below U+0300 every character is in NFC and none combines */
    while (i < len && (unsigned char)text[i] < 0xcc)
        i++;
    if (i == len) {
        *out = NULL;
        return DT_OK;
    }
    for (i = 0; i < len;) {
        uint32_t c;
        size_t k = dt_unicode_get(text + i, len - i, &c);
        if (c == BAD ? push(&s, BAD + (unsigned char)text[i]) : decompose(&s, c))
            goto nomem;
        i += k;
    }
    if (order(&s))
        goto nomem;
    compose(&s);
    buf = dt_malloc(s.n * 4 + 1);
    if (!buf)
        goto nomem;
    for (i = 0; i < s.n; i++) {
        if (s.c[i] >= BAD)
            buf[n++] = (char)(s.c[i] - BAD);
        else
            n += dt_unicode_put(s.c[i], buf + n);
    }
    buf[n] = '\0';
    dt_free(s.c);
    *out = buf;
    *out_len = n;
    return DT_OK;
nomem:
    dt_free(s.c);
    return dt_error_nomem(err, "a normalised text");
}
