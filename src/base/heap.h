/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Heaps in an array of the caller's: the first element under an order of the caller's is h[0].
 *
 *     #define EARLIER(ctx, a, b) ((a).ns != (b).ns ? (a).ns < (b).ns : (a).op < (b).op)
 *     DT_HEAP(events, void *, struct event, 2, EARLIER, DT_HEAP_SET)
 *
 *     events_push(NULL, h, n++, e);
 *     e = events_pop(NULL, h, n--);
 *
 * The order is to be strict and total: what comes up then does not depend on the order of pushes, so
 * every user breaks ties by an index.  The functions are inline and compare without a call.  ARITY is
 * the number of children: 2, or 4 where the elements of a family fit a cache line, so that a level
 * costs one miss.  Every move goes through SET(ctx, h, i, e), for those who keep where each element
 * is; ctx is whatever BEFORE and SET need beside the elements. */
#ifndef DT_BASE_HEAP_H
#define DT_BASE_HEAP_H

#include <stdint.h>

#define DT_HEAP_SET(ctx, h, i, e) ((void)(ctx), (h)[i] = (e))

/* Nobody needs all of them. */
#define DT_HEAP_FN static inline __attribute__((unused))

#define DT_HEAP(name, context, type, ARITY, BEFORE, SET)                                           \
    /* e goes to i or above it */                                                                  \
    DT_HEAP_FN uint32_t name##_up(context ctx, type *h, uint32_t i, type e)                        \
    {                                                                                              \
        while (i > 0 && BEFORE(ctx, e, h[(i - 1) / (ARITY)])) {                                    \
            SET(ctx, h, i, h[(i - 1) / (ARITY)]);                                                  \
            i = (i - 1) / (ARITY);                                                                 \
        }                                                                                          \
        SET(ctx, h, i, e);                                                                         \
        return i;                                                                                  \
    }                                                                                              \
    /* e goes to i or below it, in a heap of n */                                                  \
    DT_HEAP_FN void name##_down(context ctx, type *h, uint32_t n, uint32_t i, type e)              \
    {                                                                                              \
        for (;;) {                                                                                 \
            uint32_t c = (ARITY)*i + 1, best = c, last = c + (ARITY) < n ? c + (ARITY) : n;        \
            if (c >= n)                                                                            \
                break;                                                                             \
            for (uint32_t k = c + 1; k < last; k++)                                                \
                best = BEFORE(ctx, h[k], h[best]) ? k : best;                                      \
            if (!BEFORE(ctx, h[best], e))                                                          \
                break;                                                                             \
            SET(ctx, h, i, h[best]);                                                               \
            i = best;                                                                              \
        }                                                                                          \
        SET(ctx, h, i, e);                                                                         \
    }                                                                                              \
    /* into a heap of n, which has room for one more */                                            \
    DT_HEAP_FN void name##_push(context ctx, type *h, uint32_t n, type e)                          \
    {                                                                                              \
        name##_up(ctx, h, n, e);                                                                   \
    }                                                                                              \
    /* the first of n > 0; n - 1 are left */                                                       \
    DT_HEAP_FN type name##_pop(context ctx, type *h, uint32_t n)                                   \
    {                                                                                              \
        type first = h[0];                                                                         \
        if (n > 1)                                                                                 \
            name##_down(ctx, h, n - 1, 0, h[n - 1]);                                               \
        return first;                                                                              \
    }                                                                                              \
    /* of n that stand in any order */                                                             \
    DT_HEAP_FN void name##_make(context ctx, type *h, uint32_t n)                                  \
    {                                                                                              \
        for (uint32_t i = (n + (ARITY)-2) / (ARITY); i-- > 0;)                                     \
            name##_down(ctx, h, n, i, h[i]);                                                       \
    }

#endif
