/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The fault hook.  Plain variables: the hook is for single-threaded tests, and a lost count in a
 * threaded caller does no harm while it is off. */
static uint64_t mem_tried;
static uint64_t mem_fail_at;

static bool fault(void)
{
    mem_tried++;
    return mem_fail_at != 0 && mem_tried == mem_fail_at;
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

/* malloc(0) may return NULL, which our callers take for a failure: ask for one byte instead. */
void *dt_malloc(size_t size)
{
    return fault() ? NULL : malloc(size ? size : 1);
}

void *dt_calloc(size_t n, size_t size)
{
    size_t bytes;

    if (fault() || __builtin_mul_overflow(n, size, &bytes))
        return NULL;
    return calloc(1, bytes ? bytes : 1);
}

void *dt_realloc(void *p, size_t size)
{
    return fault() ? NULL : realloc(p, size ? size : 1);
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
