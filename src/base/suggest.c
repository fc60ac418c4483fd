/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * "Did you mean": the nearest word by edit distance. */
#include "base/doc.h"

#include <ctype.h>
#include <string.h>

#define WORD_MAX 64

/* Damerau's distance restricted to adjacent swaps (optimal string alignment), case ignored, '-' and
 * '_' taken for the same; words longer than WORD_MAX are not compared. */
static size_t distance(const char *a, size_t na, const char *b, size_t nb)
{
    unsigned char row[3][WORD_MAX + 1];
    unsigned char *before = row[0], *last = row[1], *now = row[2];

#define AT(s, i) ((s)[i] == '-' ? '_' : tolower((unsigned char)(s)[i]))
    for (size_t k = 0; k <= nb; k++)
        last[k] = (unsigned char)k;
    for (size_t i = 1; i <= na; i++) {
        unsigned char *spare = before;

        now[0] = (unsigned char)i;
        for (size_t k = 1; k <= nb; k++) {
            int best = last[k - 1] + (AT(a, i - 1) != AT(b, k - 1));

            if (last[k] + 1 < best)
                best = last[k] + 1;
            if (now[k - 1] + 1 < best)
                best = now[k - 1] + 1;
            if (i > 1 && k > 1 && AT(a, i - 1) == AT(b, k - 2) && AT(a, i - 2) == AT(b, k - 1) &&
                before[k - 2] + 1 < best)
                best = before[k - 2] + 1;
            now[k] = (unsigned char)best;
        }
        before = last;
        last = now;
        now = spare;
    }
#undef AT
    return last[nb];
}

const char *dt_suggest(const char *word, const char *const *words)
{
    size_t n = strlen(word), best = (size_t)-1;
    const char *found = NULL;

    if (n == 0 || n > WORD_MAX)
        return NULL;
    for (; *words; words++) {
        size_t m = strlen(*words), d, longer = m > n ? m : n;

        if (m == 0 || m > WORD_MAX)
            continue;
        d = distance(word, n, *words, m);
        /* near: at most a third of the longer word changed (and always one letter), or the one is
         * the beginning of the other */
        if (d * 3 > longer && d > 1 && !(n >= 3 && strncmp(word, *words, m < n ? m : n) == 0))
            continue;
        if (d >= longer) /* nothing in common */
            continue;
        if (d < best) {
            best = d;
            found = *words;
        }
    }
    return found;
}
