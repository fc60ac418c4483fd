/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A hash table that only grows: growing. */
#include "base/hashtable.h"
#include "base/mem.h"

bool dt_hash_table_grow(struct dt_hash_table *t, size_t size, size_t least)
{
    struct dt_hash_table bigger = {.cap = t->cap ? 2 * t->cap : least, .n = t->n};

    bigger.at = dt_calloc(bigger.cap, size);
    if (!bigger.at)
        return false;
    for (size_t i = 0; i < t->cap; i++) {
        uint64_t key[2];

        memcpy(key, t->at + i * size, sizeof(key));
        if (key[0])
            memcpy(dt_hash_table_place(&bigger, size, key), t->at + i * size, size);
    }
    dt_free(t->at);
    *t = bigger;
    return true;
}

void dt_hash_table_free(struct dt_hash_table *t)
{
    dt_free(t->at);
    *t = (struct dt_hash_table){.cap = 0};
}
