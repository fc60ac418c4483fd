/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A hash table that only grows: entries of one size, each beginning with its key of two words, of which the first is not 0.
 * Open addressing with linear probing, at most half full; entries move when it grows. */
#ifndef DT_BASE_HASHTABLE_H
#define DT_BASE_HASHTABLE_H

#include "base/hash.h"

#include <stdbool.h>

struct dt_hash_table { /* zero: empty */
    unsigned char *at;
    size_t cap, n; /* cap: a power of two, or 0 */
};

/* Makes room for one entry more of `size` bytes, for at least `least` entries (a power of two) at first; false when out of
 * memory, and nothing is changed then. */
bool dt_hash_table_grow(struct dt_hash_table *t, size_t size, size_t least);

void dt_hash_table_free(struct dt_hash_table *t);

/* Where the entry of the key is, or goes. */
static inline void *dt_hash_table_place(const struct dt_hash_table *t, size_t size,
                                        const uint64_t key[2])
{
    size_t i = (size_t)dt_hash_spread(dt_hash_word(key[0], key[1])) & (t->cap - 1);

    for (;; i = (i + 1) & (t->cap - 1)) {
        uint64_t have[2];

        memcpy(have, t->at + i * size, sizeof(have));
        if (!have[0] || (have[0] == key[0] && have[1] == key[1]))
            return t->at + i * size;
    }
}

/* The entry of the key, a new one zero but for it (*isnew, which may be NULL); NULL when out of memory.  Valid until the next
 * call.  `size` and `least` are always the same of one table. */
static inline void *dt_hash_table_of(struct dt_hash_table *t, size_t size, size_t least,
                                     const uint64_t key[2], bool *isnew)
{
    unsigned char *e;
    uint64_t first;

    if ((t->n + 1) * 2 > t->cap && !dt_hash_table_grow(t, size, least))
        return NULL;
    e = dt_hash_table_place(t, size, key);
    memcpy(&first, e, sizeof(first));
    if (isnew)
        *isnew = !first;
    if (!first) {
        memcpy(e, key, 2 * sizeof(*key));
        t->n++;
    }
    return e;
}

#endif
