/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "mutate.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bytes_free(struct bytes *b)
{
    free(b->at);
    *b = (struct bytes){0};
}

static void reserve(struct bytes *b, size_t n)
{
    if (n <= b->cap)
        return;
    b->cap = 2 * n;
    b->at = realloc(b->at, b->cap);
    if (!b->at)
        abort();
}

bool bytes_read(const char *path, struct bytes *b)
{
    FILE *f = fopen(path, "rb");
    size_t got;

    if (!f)
        return false;
    b->n = 0;
    do {
        reserve(b, b->n + 65536);
        got = fread(b->at + b->n, 1, 65536, f);
        b->n += got;
    } while (got > 0 && b->n <= MUTANT_MAX);
    return fclose(f) == 0;
}

bool bytes_write(const char *path, const struct bytes *b)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(b->at, 1, b->n, f) == b->n;

    return f && fclose(f) == 0 && ok;
}

void bytes_replace(struct bytes *b, size_t at, size_t len, const void *from, size_t n)
{
    if (b->n - len + n > MUTANT_MAX)
        return;
    reserve(b, b->n - len + n + 1);
    memmove(b->at + at + n, b->at + at + len, b->n - at - len);
    if (n)
        memcpy(b->at + at, from, n);
    b->n = b->n - len + n;
}

static size_t below(struct dt_rng *r, size_t n)
{
    return n ? (size_t)dt_rng_below(r, n) : 0;
}

static void put(struct bytes *b, size_t at, size_t len, const char *s)
{
    bytes_replace(b, at, len, s, strlen(s));
}

/* ---- changes of bytes ---- */

static void flip_bits(struct dt_rng *r, struct bytes *b)
{
    for (size_t k = 1 + below(r, 8); k-- && b->n;)
        b->at[below(r, b->n)] ^= (unsigned char)(1u << below(r, 8));
}

static void cut_end(struct dt_rng *r, struct bytes *b)
{
    b->n = below(r, b->n + 1);
}

static void drop_piece(struct dt_rng *r, struct bytes *b)
{
    size_t at = below(r, b->n), len = below(r, b->n - at < 512 ? b->n - at : 512);

    bytes_replace(b, at, len, "", 0);
}

static void double_piece(struct dt_rng *r, struct bytes *b)
{
    size_t at = below(r, b->n), len = below(r, b->n - at < 4096 ? b->n - at : 4096);
    unsigned char copy[4096];

    if (len)
        memcpy(copy, b->at + at, len);
    bytes_replace(b, at, 0, copy, len);
}

/* A 4-byte or 8-byte number of either order: sizes, counts and offsets of binary formats. */
static void set_integer(struct dt_rng *r, struct bytes *b)
{
    static const uint64_t values[] = {0,          1,          0x7f,       0xff,
                                      0x7fff,     0xffff,     0x7fffffff, 0x80000000,
                                      0xffffffff, UINT64_MAX, INT64_MAX,  UINT64_C(1) << 63};
    uint64_t v = values[below(r, sizeof(values) / sizeof(values[0]))];
    size_t n = below(r, 2) ? 4 : 8, at = below(r, b->n);
    bool big = below(r, 2);

    for (size_t k = 0; k < n && at + k < b->n; k++)
        b->at[at + k] = (unsigned char)(v >> 8 * (big ? n - 1 - k : k));
}

static void insert_odd_bytes(struct dt_rng *r, struct bytes *b)
{
    static const struct {
        const char *s;
        size_t n;
    } odd[] = {{"\0", 1},           {"\xff\xfe", 2},     {"\xc0\xaf", 2},     {"\xed\xa0\x80", 3},
               {"\xf5\x80", 2},     {"\xef\xbb\xbf", 3}, {"\xe2\x80\xae", 3}, {"\x1b[2J", 4},
               {"\r\n", 2},         {"\t", 1},           {"\x85", 1},         {"\xc2\x85", 2},
               {"\xe2\x80\xa8", 3}, {"\xcc\x81", 2}};
    size_t k = below(r, sizeof(odd) / sizeof(odd[0]));

    bytes_replace(b, below(r, b->n + 1), 0, odd[k].s, odd[k].n);
}

/* ---- changes of lines ---- */

/* A random line, with its end. */
static void pick_line(struct dt_rng *r, const struct bytes *b, size_t *at, size_t *len)
{
    size_t p = below(r, b->n), q;

    for (q = p; q < b->n && b->at[q] != '\n'; q++)
        ;
    while (p > 0 && b->at[p - 1] != '\n')
        p--;
    *at = p;
    *len = (q < b->n ? q + 1 : q) - p;
}

static void drop_line(struct dt_rng *r, struct bytes *b)
{
    size_t at, len;

    pick_line(r, b, &at, &len);
    bytes_replace(b, at, len, "", 0);
}

/* Copies one line to before another. */
static void copy_line(struct dt_rng *r, struct bytes *b)
{
    size_t at, len, to, unused;
    unsigned char *copy;

    pick_line(r, b, &at, &len);
    pick_line(r, b, &to, &unused);
    copy = malloc(len + 1);
    if (!copy)
        abort();
    if (len)
        memcpy(copy, b->at + at, len);
    bytes_replace(b, to, 0, copy, len);
    free(copy);
}

/* ---- changes of words, numbers and values ---- */

static bool is_word(unsigned char c)
{
    return isalnum(c) || c == '_' || c == '-' || c == '.' || c == '+';
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

/* A run of such characters, from a random place on. */
static bool pick_run(struct dt_rng *r, const struct bytes *b, bool (*in)(unsigned char), size_t *at,
                     size_t *len)
{
    size_t p = below(r, b->n), q;

    while (p < b->n && !in(b->at[p]))
        p++;
    while (p > 0 && p < b->n && in(b->at[p - 1]))
        p--;
    for (q = p; q < b->n && in(b->at[q]); q++)
        ;
    *at = p;
    *len = q - p;
    return q > p;
}

static void set_number(struct dt_rng *r, struct bytes *b)
{
    static const char *const numbers[] = {"0",
                                          "-1",
                                          "1",
                                          "-0",
                                          "2147483648",
                                          "4294967296",
                                          "1e308",
                                          "1e-320",
                                          "1e999",
                                          "-1e999",
                                          "9223372036854775807",
                                          "9223372036854775808",
                                          "nan",
                                          "-nan",
                                          "inf",
                                          "0x10",
                                          "18446744073709551616",
                                          "99999999999999999999999999",
                                          "1.5",
                                          ".5",
                                          "1.",
                                          "00000001",
                                          "1e",
                                          "--1",
                                          "1_000",
                                          "٣",
                                          "0.1e-5",
                                          "65536",
                                          "1000000007",
                                          "-9223372036854775808"};
    size_t at, len;

    if (pick_run(r, b, is_digit, &at, &len))
        put(b, at, len, numbers[below(r, sizeof(numbers) / sizeof(numbers[0]))]);
}

static void set_word(struct dt_rng *r, struct bytes *b)
{
    static const char *const words[] = {
        "",   "null", "true",     "[]", "{}",      "\"\"", "~",    "- x",    "*a",
        "&a", "!!x",  "'",        "\"", "/",       "../x", "%s%n", "$1",     ",",
        ": ", "#",    "{a: [1]}", "..", "\\u0000", "<<",   "%",    "\\ud800"};
    size_t at, len;

    if (pick_run(r, b, is_word, &at, &len))
        put(b, at, len, words[below(r, sizeof(words) / sizeof(words[0]))]);
}

static void set_long_word(struct dt_rng *r, struct bytes *b)
{
    static const size_t lengths[] = {17, 65, 129, 257, 1025, 4097, 70000};
    size_t at, len, n = lengths[below(r, sizeof(lengths) / sizeof(lengths[0]))];
    char *s = malloc(n);

    if (!s)
        abort();
    memset(s, below(r, 3) ? 'a' + (int)below(r, 26) : '9', n);
    if (pick_run(r, b, is_word, &at, &len))
        bytes_replace(b, at, len, s, n);
    free(s);
}

static void swap_words(struct dt_rng *r, struct bytes *b)
{
    size_t at, len, to, old;
    unsigned char copy[256];

    if (!pick_run(r, b, is_word, &at, &len) || len > sizeof(copy))
        return;
    memcpy(copy, b->at + at, len);
    if (pick_run(r, b, is_word, &to, &old))
        bytes_replace(b, to, old, copy, len);
}

static void nest_deep(struct dt_rng *r, struct bytes *b)
{
    static const char *const open[] = {"[", "{\"a\": ", "{a: ", "- ", "[[", "("};
    const char *s = open[below(r, sizeof(open) / sizeof(open[0]))];
    size_t at, len, depth = below(r, 4) ? 10 + below(r, 300) : 20000;

    if (!pick_run(r, b, is_word, &at, &len))
        at = b->n;
    for (size_t k = 0; k < depth; k++)
        put(b, at, 0, s);
}

/* A member of a list or map: from a comma to the next. */
static void drop_member(struct dt_rng *r, struct bytes *b)
{
    size_t p = below(r, b->n), q;

    while (p < b->n && b->at[p] != ',')
        p++;
    for (q = p + 1; q < b->n && b->at[q] != ','; q++)
        ;
    if (q < b->n)
        bytes_replace(b, p, q - p, "", 0);
}

static void double_member(struct dt_rng *r, struct bytes *b)
{
    size_t p = below(r, b->n), q;
    unsigned char copy[2048];

    while (p < b->n && b->at[p] != ',')
        p++;
    for (q = p + 1; q < b->n && b->at[q] != ','; q++)
        ;
    if (q >= b->n || q - p > sizeof(copy))
        return;
    memcpy(copy, b->at + p, q - p);
    bytes_replace(b, p, 0, copy, q - p);
}

static const struct {
    const char *name;
    void (*change)(struct dt_rng *r, struct bytes *b);
} changes[] = {
    {"bits", flip_bits},
    {"end cut off", cut_end},
    {"piece left out", drop_piece},
    {"piece twice", double_piece},
    {"integer", set_integer},
    {"odd bytes", insert_odd_bytes},
    {"line left out", drop_line},
    {"line moved", copy_line},
    {"number", set_number},
    {"number", set_number},
    {"word", set_word},
    {"long word", set_long_word},
    {"words swapped", swap_words},
    {"nested", nest_deep},
    {"member left out", drop_member},
    {"member twice", double_member},
};
enum { CHANGES = sizeof(changes) / sizeof(changes[0]) };

void mutate(struct dt_rng *r, struct bytes *b, const struct bytes *other, const char **what)
{
    for (size_t k = 1 + below(r, 3); k--;) {
        size_t c = below(r, CHANGES + 1);

        if (c < CHANGES) {
            changes[c].change(r, b);
            *what = changes[c].name;
        } else if (other->n) { /* its end in place of ours */
            size_t at = below(r, b->n), from = below(r, other->n);

            bytes_replace(b, at, b->n - at, other->at + from, other->n - from);
            *what = "spliced";
        }
    }
}

/* ---- what was printed ---- */

static size_t utf8_length(const unsigned char *s, size_t n)
{
    unsigned c = s[0];
    size_t len = c < 0x80                ? 1
                 : c >= 0xc2 && c < 0xe0 ? 2
                 : c >= 0xe0 && c < 0xf0 ? 3
                 : c >= 0xf0 && c < 0xf5 ? 4
                                         : 0;

    if (len == 0 || len > n)
        return 0;
    for (size_t k = 1; k < len; k++)
        if ((s[k] & 0xc0) != 0x80)
            return 0;
    if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] >= 0xa0) || (c == 0xf0 && s[1] < 0x90) ||
        (c == 0xf4 && s[1] >= 0x90))
        return 0;
    return len;
}

bool is_plain_text(const unsigned char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        len = utf8_length(s + i, n - i);
        if (len == 0 || (s[i] < ' ' && s[i] != '\n' && s[i] != '\t') || s[i] == 127 ||
            (len == 2 && s[i] == 0xc2 && s[i + 1] < 0xa0)) /* C1 control characters */
            return false;
    }
    return true;
}

struct scan {
    const unsigned char *s;
    size_t n, i;
};

static void skip_space(struct scan *p)
{
    while (p->i < p->n && strchr(" \t\r\n", p->s[p->i]) && p->s[p->i])
        p->i++;
}

static bool take(struct scan *p, const char *word)
{
    size_t n = strlen(word);

    if (p->n - p->i < n || memcmp(p->s + p->i, word, n) != 0)
        return false;
    p->i += n;
    return true;
}

static bool take_string(struct scan *p)
{
    if (!take(p, "\""))
        return false;
    while (p->i < p->n && p->s[p->i] != '"') {
        if (p->s[p->i] < ' ')
            return false;
        if (p->s[p->i++] != '\\')
            continue;
        if (p->i >= p->n || !strchr("\"\\/bfnrtu", p->s[p->i]) || !p->s[p->i])
            return false;
        if (p->s[p->i++] == 'u')
            for (int k = 0; k < 4; k++, p->i++)
                if (p->i >= p->n || !isxdigit(p->s[p->i]))
                    return false;
    }
    return take(p, "\"");
}

static bool take_digits(struct scan *p)
{
    size_t from = p->i;

    while (p->i < p->n && is_digit(p->s[p->i]))
        p->i++;
    return p->i > from;
}

static bool take_number(struct scan *p)
{
    take(p, "-");
    if (!take(p, "0") && !take_digits(p))
        return false;
    if (take(p, ".") && !take_digits(p))
        return false;
    if (take(p, "e") || take(p, "E")) {
        if (!take(p, "+"))
            take(p, "-");
        return take_digits(p);
    }
    return true;
}

static bool take_value(struct scan *p, int depth);

static bool take_members(struct scan *p, bool map, const char *end, int depth)
{
    skip_space(p);
    if (take(p, end))
        return true;
    do {
        skip_space(p);
        if (map) {
            if (!take_string(p))
                return false;
            skip_space(p);
            if (!take(p, ":"))
                return false;
        }
        if (!take_value(p, depth + 1))
            return false;
        skip_space(p);
    } while (take(p, ","));
    return take(p, end);
}

static bool take_value(struct scan *p, int depth)
{
    skip_space(p);
    if (depth > 200 || p->i >= p->n)
        return false;
    if (take(p, "{"))
        return take_members(p, true, "}", depth);
    if (take(p, "["))
        return take_members(p, false, "]", depth);
    if (p->s[p->i] == '"')
        return take_string(p);
    return take(p, "true") || take(p, "false") || take(p, "null") || take_number(p);
}

bool is_json(const unsigned char *s, size_t n)
{
    struct scan p = {s, n, 0};

    if (!take_value(&p, 0))
        return false;
    skip_space(&p);
    for (size_t i = 0, len; i < n; i += len)
        if ((len = utf8_length(s + i, n - i)) == 0)
            return false;
    return p.i == n;
}
