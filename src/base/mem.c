/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/mem.h"

#include <limits.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The fault hook is for single-threaded tests.  Threaded callers only pass by: relaxed loads and
 * stores keep that free of a data race and cost nothing; a lost count does no harm. */
static _Atomic uint64_t mem_tried;
static _Atomic uint64_t mem_fail_at;

static bool fault(void)
{
    uint64_t tried = atomic_load_explicit(&mem_tried, memory_order_relaxed) + 1;
    uint64_t fail_at = atomic_load_explicit(&mem_fail_at, memory_order_relaxed);

    atomic_store_explicit(&mem_tried, tried, memory_order_relaxed);
    return fail_at != 0 && tried == fail_at;
}

void dt_mem_fail_at(uint64_t k)
{
    mem_fail_at = k;
    mem_tried = 0;
}

uint64_t dt_mem_count(void)
{
    return mem_tried;
}

void dt_mem_keep(void)
{
#ifdef __GLIBC__
    /* Everything below 1 GiB from the heap, and the heap never given back. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, 1 << 20);
#endif
}

/* Asks for pages of 2 MiB (where the system leaves the choice to programs): arrays of a million ops are walked in
 * turns by lane, and what small pages cost there, at the first touch and in misses of the TLB, is a fifth of the time. */
static void *in_large_pages(void *p, size_t size)
{
#ifdef MADV_HUGEPAGE
    enum { LARGE = 2 << 20 };
    uintptr_t first = ((uintptr_t)p + LARGE - 1) & ~(uintptr_t)(LARGE - 1);
    uintptr_t end = ((uintptr_t)p + size) & ~(uintptr_t)(LARGE - 1);

    if (p && size >= 2 * LARGE && end > first)
        madvise((char *)p + (first - (uintptr_t)p), end - first,
                MADV_HUGEPAGE); /* advice: may fail */
#else
    (void)size;
#endif
    return p;
}

void dt_mem_keep_more(size_t most)
{
#ifdef __GLIBC__
    enum { PAGE = 4096 };
    struct mallinfo2 now = mallinfo2();
    size_t n = now.keepcost +
               (now.arena < most / 2 ? 2 * now.arena : most); /* beside what is free at its end */
    volatile char *p = in_large_pages(malloc(n), n);

    for (size_t i = 0; p && i < n; i += PAGE)
        p[i] = 0;
    free((void *)p);
#else
    (void)most;
#endif
}

/* malloc(0) may return NULL, which our callers take for a failure: ask for one byte instead. */
void *dt_malloc(size_t size)
{
    return fault() ? NULL : in_large_pages(malloc(size ? size : 1), size);
}

void *dt_calloc(size_t n, size_t size)
{
    size_t bytes;

    if (fault() || __builtin_mul_overflow(n, size, &bytes))
        return NULL;
    return in_large_pages(calloc(1, bytes ? bytes : 1), bytes);
}

void *dt_realloc(void *p, size_t size)
{
    return fault() ? NULL : in_large_pages(realloc(p, size ? size : 1), size);
}

char *dt_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = dt_malloc(n);

    if (copy)
        memcpy(copy, s, n);
    return copy;
}

void dt_free(void *p)
{
    free(p);
}

int dt_grow(void **p, size_t *cap, size_t need, size_t elem)
{
    size_t want = *cap, bytes;
    void *q;

    if (need <= *cap)
        return 0;
    if (want < 8)
        want = 8;
    while (want < need) {
        if (want > SIZE_MAX / 2) {
            want = need;
            break;
        }
        want *= 2;
    }
    if (__builtin_mul_overflow(want, elem, &bytes))
        return -1;
    q = dt_realloc(*p, bytes);
    if (!q)
        return -1;
    *p = q;
    *cap = want;
    return 0;
}
