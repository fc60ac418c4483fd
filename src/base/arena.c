/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/mem.h"

#include <stdbool.h>
#include <string.h>

#define ALIGNMENT 16
#define BLOCK_MIN ((size_t)4 << 10)
#define BLOCK_MAX ((size_t)4 << 20)

/* head -> newest block -> ... -> oldest.  Requests larger than a block get a block of their own,
 * which goes behind the head so that the head's free tail stays in use. */
struct dt_arena_block {
    struct dt_arena_block *next;
    size_t size, used; /* of data[] */
    _Alignas(ALIGNMENT) unsigned char data[];
};

static struct dt_arena_block *block_new(size_t size)
{
    struct dt_arena_block *b;
    size_t bytes;

    if (__builtin_add_overflow(size, sizeof(*b), &bytes))
        return NULL;
    b = dt_malloc(bytes);
    if (!b)
        return NULL;
    b->next = NULL;
    b->size = size;
    b->used = 0;
    return b;
}

static void *take(struct dt_arena_block *b, size_t bytes, bool zero)
{
    void *p = b->data + b->used;

    b->used += bytes;
    return zero ? memset(p, 0, bytes) : p;
}

static void *alloc(struct dt_arena *a, size_t n, size_t size, bool zero)
{
    struct dt_arena_block *b = a->head;
    size_t bytes, block;

    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX - ALIGNMENT)
        return NULL;
    bytes = bytes ? (bytes + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1) : ALIGNMENT;
    if (b && b->size - b->used >= bytes)
        return take(b, bytes, zero);

    block = b ? b->size * 2 : BLOCK_MIN;
    if (block > BLOCK_MAX)
        block = BLOCK_MAX;
    if (bytes <= block / 2) {
        b = block_new(block);
        if (!b)
            return NULL;
        b->next = a->head;
        a->head = b;
    } else {
        b = block_new(bytes);
        if (!b)
            return NULL;
        if (a->head) {
            b->next = a->head->next;
            a->head->next = b;
        } else {
            a->head = b;
        }
    }
    a->total_bytes += b->size + sizeof(*b);
    return take(b, bytes, zero);
}

void *dt_arena_alloc(struct dt_arena *a, size_t n, size_t size)
{
    return alloc(a, n, size, true);
}

void *dt_arena_alloc_raw(struct dt_arena *a, size_t n, size_t size)
{
    return alloc(a, n, size, false);
}

char *dt_arena_strdup(struct dt_arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = dt_arena_alloc(a, n, 1);

    if (copy)
        memcpy(copy, s, n);
    return copy;
}

void dt_arena_free(struct dt_arena *a)
{
    struct dt_arena_block *b = a->head, *next;

    for (; b; b = next) {
        next = b->next;
        dt_free(b);
    }
    a->head = NULL;
    a->total_bytes = 0;
}
