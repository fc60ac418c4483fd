/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A memo: answers by the hash of what was asked.  A newcomer takes the place of the answer that was there, so that no more are
 * kept than there are places; memory is used as answers come, and they lie side by side as they came.  Who asks compares the
 * whole question, which is part of the entry. */
#ifndef DT_BASE_MEMO_H
#define DT_BASE_MEMO_H

#include "base/mem.h"

#include <stdbool.h>

enum { DT_MEMO_CHUNK_BITS = 10 }; /* entries that are allocated together */

struct dt_memo {
    uint32_t *at; /* [places]: number of the entry + 1, or 0 */
    unsigned char **chunk;
    size_t entry_bytes;
    uint32_t places, n;
    struct dt_arena arena;
};

/* For 1 << bits entries, bits at least DT_MEMO_CHUNK_BITS; false when out of memory. */
bool dt_memo_init(struct dt_memo *m, unsigned bits, size_t entry_bytes);
void dt_memo_free(struct dt_memo *m);

/* The place of the hash's lowest bits, where there is no entry, gets one of zeros; NULL when out of memory. */
void *dt_memo_new(struct dt_memo *m, uint64_t hash);

/* The entry at the place of the hash's lowest bits, of this question or of another; NULL: none. */
static inline void *dt_memo_at(const struct dt_memo *m, uint64_t hash)
{
    uint32_t i = m->at[hash & (m->places - 1)];

    if (i == 0)
        return NULL;
    return m->chunk[(i - 1) >> DT_MEMO_CHUNK_BITS] +
           ((i - 1) & ((1U << DT_MEMO_CHUNK_BITS) - 1)) * m->entry_bytes;
}

/* The same, a new one of zeros where there is none; NULL when out of memory. */
static inline void *dt_memo_place(struct dt_memo *m, uint64_t hash)
{
    void *e = dt_memo_at(m, hash);

    return e ? e : dt_memo_new(m, hash);
}

#endif
