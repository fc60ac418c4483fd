/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The regular expressions that cut text into words (tokenizer_impl.h), by hand.  Alternatives are
 * tried in the order written; each is greedy, and backs off only where a comment says so. */
#include "exec/data/tokenizer_impl.h"
#include "exec/data/unicode.h"

#include <string.h>

enum kind { LETTER, NUMBER, SPACE, OTHER, END };

struct peeked {
    enum kind kind;
    uint32_t c;
    size_t n; /* bytes */
};

static struct peeked peek(const char *s, size_t at, size_t left)
{
    struct peeked p = {END, 0, 0};
    if (at >= left)
        return p;
    p.n = dt_unicode_get(s + at, left - at, &p.c);
    p.kind = dt_unicode_letter(p.c)   ? LETTER
             : dt_unicode_number(p.c) ? NUMBER
             : dt_unicode_space(p.c)  ? SPACE
                                      : OTHER;
    return p;
}

/* Bytes of the run of `kind` at `at`; at most `max` characters. */
static size_t run(const char *s, size_t at, size_t left, enum kind kind, size_t max)
{
    size_t begin = at;
    struct peeked p;
    while (max-- > 0 && (p = peek(s, at, left)).kind == kind)
        at += p.n;
    return at - begin;
}

/* 's 't 're 've 'm 'll 'd; s[0] is the apostrophe.  Without regard to case, U+017F (long s) is an
 * s. */
static size_t contraction(const char *s, size_t left, bool any_case)
{
    static const char *const ends[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    for (size_t k = 0; k < sizeof ends / sizeof ends[0]; k++) {
        size_t n = strlen(ends[k]), i = 0;
        if (left < n + 1)
            continue;
        while (i < n &&
               (s[1 + i] == ends[k][i] || (any_case && s[1 + i] >= 'A' && s[1 + i] <= 'Z' &&
                                           s[1 + i] + ('a' - 'A') == ends[k][i])))
            i++;
        if (i == n)
            return n + 1;
    }
    return any_case && left >= 3 && memcmp(s + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

/* \s+(?!\S)|\s+ : white space, but the last character is left to the word behind it. */
static size_t white(const char *s, size_t left)
{
    size_t n = 0, last = 0;
    struct peeked p;
    while ((p = peek(s, n, left)).kind == SPACE) {
        last = p.n;
        n += p.n;
    }
    return p.kind == END || n == last ? n : n - last;
}

static size_t gpt2(const char *s, size_t left)
{
    struct peeked p = peek(s, 0, left), q;
    size_t at, n;
    if (p.c == '\'' && (n = contraction(s, left, false)))
        return n;
    at = p.c == ' ' ? 1 : 0;
    q = at ? peek(s, 1, left) : p;
    if (q.kind == SPACE || q.kind == END)
        return white(s, left);
    return at + run(s, at, left, q.kind, SIZE_MAX);
}

static bool newline(uint32_t c)
{
    return c == '\r' || c == '\n';
}

static size_t cl100k(const char *s, size_t left, int digits)
{
    struct peeked p = peek(s, 0, left), q;
    size_t n, at = 0, last = 0;
    if (p.c == '\'' && (n = contraction(s, left, true)))
        return n;
    if (p.kind == LETTER)
        return run(s, 0, left, LETTER, SIZE_MAX);
    if (p.kind == NUMBER)
        return run(s, 0, left, NUMBER, (size_t)digits);
    q = peek(s, p.n, left);
    if (!newline(p.c) && q.kind == LETTER)
        return p.n + run(s, p.n, left, LETTER, SIZE_MAX);
    if (p.kind == OTHER || (p.c == ' ' && q.kind == OTHER)) {
        n = p.kind == OTHER ? 0 : 1;
        n += run(s, n, left, OTHER, SIZE_MAX);
        while (n < left && newline((unsigned char)s[n]))
            n++;
        return n;
    }
    /* \s*[\r\n]+ : \s* takes all white space and backs off to the last line end in it */
    while ((q = peek(s, at, left)).kind == SPACE) {
        at += q.n;
        if (newline(q.c))
            last = at;
    }
    return last ? last : white(s, left);
}

size_t dt_tokenizer_pretoken_length(enum dt_data_split split, int digits, const char *s,
                                    size_t left)
{
    switch (split) {
    case DT_SPLIT_GPT2:
        return gpt2(s, left);
    case DT_SPLIT_CL100K:
        return cl100k(s, left, digits);
    case DT_SPLIT_NONE:
        break;
    }
    return left;
}
