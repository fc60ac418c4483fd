/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/memo.h"

bool dt_memo_init(struct dt_memo *m, unsigned bits, size_t entry_bytes)
{
    *m = (struct dt_memo){.entry_bytes = entry_bytes, .places = 1U << bits};
    m->at = dt_calloc(m->places, sizeof(*m->at));
    m->chunk = dt_calloc((size_t)m->places >> DT_MEMO_CHUNK_BITS, sizeof(*m->chunk));
    if (m->at && m->chunk)
        return true;
    dt_memo_free(m);
    return false;
}

void dt_memo_free(struct dt_memo *m)
{
    dt_free(m->at);
    dt_free(m->chunk);
    dt_arena_free(&m->arena);
    *m = (struct dt_memo){0};
}

void *dt_memo_new(struct dt_memo *m, uint64_t hash)
{
    uint32_t number = m->n >> DT_MEMO_CHUNK_BITS;

    if (!m->chunk[number])
        m->chunk[number] =
            dt_arena_alloc(&m->arena, (size_t)1 << DT_MEMO_CHUNK_BITS, m->entry_bytes);
    if (!m->chunk[number])
        return NULL;
    m->at[hash & (m->places - 1)] = ++m->n;
    return dt_memo_at(m, hash);
}
