/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Byte-pair encoding of one word: the pair of lowest rank is merged first, the leftmost of equals.
 */
#include "exec/data/tokenizer_impl.h"

#include "base/hash.h"
#include "base/heap.h"

#include <string.h>

enum { SHORT = 32 }; /* symbols up to which a plain search beats the heap */

struct dt_tokenizer_bpe_symbol { /* a list; id -1 = merged into the symbol before it */
    int32_t id, prev, next;
};
struct dt_tokenizer_bpe_entry { /* a pair that may be merged */
    int32_t rank, at, left, right, made;
};

void dt_tokenizer_bpe_scratch_free(struct dt_tokenizer_bpe_scratch *s)
{
    dt_free(s->symbol);
    dt_free(s->heap);
}

int dt_tokenizer_ids_push(struct dt_tokenizer_ids *ids, int32_t id)
{
    void *p = ids->id;
    if (dt_grow(&p, &ids->cap, ids->n + 1, sizeof *ids->id))
        return -1;
    ids->id = p;
    ids->id[ids->n++] = id;
    return 0;
}

uint64_t dt_tokenizer_bpe_hash(const char *bytes, size_t len)
{
    uint64_t h = dt_hash_bytes(DT_HASH_START, bytes, len);

    return h ^ h >> 29;
}

int32_t dt_tokenizer_bpe_find(const struct dt_tokenizer *t, const char *bytes, size_t len)
{
    uint32_t i = (uint32_t)dt_tokenizer_bpe_hash(bytes, len) & t->word_mask;
    for (; t->words[i] >= 0; i = (i + 1) & t->word_mask) {
        const struct dt_tokenizer_token *k = &t->token[t->words[i]];
        if (k->len == len && memcmp(k->bytes, bytes, len) == 0)
            return t->words[i];
    }
    return -1;
}

uint32_t dt_tokenizer_merge_entry(const struct dt_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = (uint32_t)(key * DT_HASH_GOLDEN >> 32) & t->merge_mask;
    while (t->merge[i].rank >= 0 && (t->merge[i].left != left || t->merge[i].right != right))
        i = (i + 1) & t->merge_mask;
    return i;
}

static int short_word(const struct dt_tokenizer *t, const char *word, size_t len,
                      struct dt_tokenizer_ids *ids)
{
    int32_t id[SHORT], rank[SHORT], made[SHORT];
    int n = (int)len;
    for (int i = 0; i < n; i++)
        id[i] = t->byte_id[(unsigned char)word[i]];
    for (int i = 0; i + 1 < n; i++) {
        const struct dt_tokenizer_merge *m =
            &t->merge[dt_tokenizer_merge_entry(t, id[i], id[i + 1])];
        rank[i] = m->rank >= 0 ? m->rank : INT32_MAX;
        made[i] = m->id;
    }
    for (;;) {
        int best = -1;
        int32_t lowest = INT32_MAX;
        for (int i = 0; i + 1 < n; i++)
            if (rank[i] < lowest) {
                lowest = rank[i];
                best = i;
            }
        if (best < 0)
            break;
        id[best] = made[best];
        n--;
        for (int i = best + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i] = rank[i + 1];
            made[i] = made[i + 1];
        }
        for (int i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct dt_tokenizer_merge *m =
                &t->merge[dt_tokenizer_merge_entry(t, id[i], id[i + 1])];
            rank[i] = m->rank >= 0 ? m->rank : INT32_MAX;
            made[i] = m->id;
        }
    }
    for (int i = 0; i < n; i++)
        if (dt_tokenizer_ids_push(ids, id[i]))
            return -1;
    return 0;
}

/* ---- long words: a heap of pairs, stale entries skipped ---- */

#define BEFORE(ctx, a, b) ((a).rank != (b).rank ? (a).rank < (b).rank : (a).at < (b).at)
DT_HEAP(pairs, const void *, struct dt_tokenizer_bpe_entry, 2, BEFORE, DT_HEAP_SET)

static int pairs_add(struct dt_tokenizer_bpe_scratch *s, uint32_t *n,
                     struct dt_tokenizer_bpe_entry e)
{
    void *p = s->heap;

    if (dt_grow(&p, &s->cap_heap, (size_t)*n + 1, sizeof *s->heap))
        return -1;
    s->heap = p;
    pairs_push(NULL, s->heap, (*n)++, e);
    return 0;
}

/* Puts the pair of symbol `at` and the next on the heap, if there is a merge for it. */
static int offer(const struct dt_tokenizer *t, struct dt_tokenizer_bpe_scratch *s, uint32_t *n,
                 int32_t at)
{
    const struct dt_tokenizer_bpe_symbol *a;
    const struct dt_tokenizer_merge *m;
    if (at < 0 || s->symbol[at].next < 0)
        return 0;
    a = &s->symbol[at];
    m = &t->merge[dt_tokenizer_merge_entry(t, a->id, s->symbol[a->next].id)];
    if (m->rank < 0)
        return 0;
    return pairs_add(s, n, (struct dt_tokenizer_bpe_entry){m->rank, at, m->left, m->right, m->id});
}

static int long_word(const struct dt_tokenizer *t, struct dt_tokenizer_bpe_scratch *s,
                     const char *word, size_t len, struct dt_tokenizer_ids *ids)
{
    void *p = s->symbol;
    uint32_t n = 0;
    if (dt_grow(&p, &s->cap_symbol, len, sizeof *s->symbol))
        return -1;
    s->symbol = p;
    for (size_t i = 0; i < len; i++)
        s->symbol[i] = (struct dt_tokenizer_bpe_symbol){
            t->byte_id[(unsigned char)word[i]], (int32_t)i - 1, i + 1 < len ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i < len; i++)
        if (offer(t, s, &n, (int32_t)i))
            return -1;
    while (n > 0) {
        struct dt_tokenizer_bpe_entry e = pairs_pop(NULL, s->heap, n--);
        struct dt_tokenizer_bpe_symbol *a = &s->symbol[e.at], *b;
        if (a->id != e.left || a->next < 0 || s->symbol[a->next].id != e.right)
            continue; /* one of the two was merged since */
        b = &s->symbol[a->next];
        b->id = -1;
        a->id = e.made;
        a->next = b->next;
        if (b->next >= 0)
            s->symbol[b->next].prev = e.at;
        if (offer(t, s, &n, e.at) || offer(t, s, &n, a->prev))
            return -1;
    }
    for (int32_t i = 0; i >= 0; i = s->symbol[i].next)
        if (dt_tokenizer_ids_push(ids, s->symbol[i].id))
            return -1;
    return 0;
}

int dt_tokenizer_bpe_word(const struct dt_tokenizer *t, struct dt_tokenizer_bpe_scratch *scratch,
                          const char *word, size_t len, struct dt_tokenizer_ids *ids)
{
    int32_t id;
    if (len == 1)
        return dt_tokenizer_ids_push(ids, t->byte_id[(unsigned char)word[0]]);
    if (t->ignore_merges && (id = dt_tokenizer_bpe_find(t, word, len)) >= 0)
        return dt_tokenizer_ids_push(ids, id);
    return len <= SHORT ? short_word(t, word, len, ids) : long_word(t, scratch, word, len, ids);
}
