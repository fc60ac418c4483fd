/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Allocation: a checked malloc family with a fault hook for tests, and arenas. */
#ifndef DT_BASE_MEM_H
#define DT_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* All of core/, sim/ and cli/ allocate through these.  They return NULL on failure (never abort). */
void *dt_malloc(size_t size);
void *dt_calloc(size_t n, size_t size); /* overflow-checked */
void *dt_realloc(void *p, size_t size);
char *dt_strdup(const char *s);
void dt_free(void *p);

/* Test hook: the k-th allocation from now (1-based) fails, once.  0 switches it off.
 * dt_mem_count() is the number of allocations tried since the last call of dt_mem_fail_at(). */
void dt_mem_fail_at(uint64_t k);
uint64_t dt_mem_count(void);

/* For programs, called once at their start: memory that is freed stays with the process, so that the
 * next large array does not have its pages cleared again.  Does nothing where the C library has no
 * such setting. */
void dt_mem_keep(void);
/* After it: the heap becomes three times as large, by `most` bytes at most, and its pages are there: twice the need,
 * and as much again for the gaps between what stays.  For a process that has done what it will do again, perhaps with
 * more. */
void dt_mem_keep_more(size_t most);

/* Grow an array geometrically to hold at least `need` elements of `elem` bytes.
 * *p and *cap are updated; returns 0 on success, -1 when out of memory (both unchanged). */
int dt_grow(void **p, size_t *cap, size_t need, size_t elem);

/* Arena: many objects, one lifetime.  Blocks double up to 4 MiB.  Zero-initialised struct is valid. */
struct dt_arena {
    struct dt_arena_block *head;
    size_t total_bytes;
};
/* Zeroed memory, 16-byte aligned; NULL when out of memory or on overflow of n*size. */
void *dt_arena_alloc(struct dt_arena *a, size_t n, size_t size);
/* The same, but not zeroed: for large arrays of which the caller writes every byte. */
void *dt_arena_alloc_raw(struct dt_arena *a, size_t n, size_t size);
char *dt_arena_strdup(struct dt_arena *a, const char *s);
void dt_arena_free(struct dt_arena *a);
#define DT_ARENA_NEW(a, type, n) ((type *)dt_arena_alloc((a), (size_t)(n), sizeof(type)))

#endif
