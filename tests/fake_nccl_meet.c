/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What members of a communicator of tests do together. */
#include "fake_nccl_impl.h"

#include <stdlib.h>
#include <string.h>

struct world *fake_nccl_worlds;
const char *const fake_nccl_kinds[] = {"AllReduce", "Reduce",    "ReduceScatter",
                                       "AllGather", "Broadcast", "Send and Recv"};

/* ---- worlds ---- */

void fake_nccl_world_leave(struct world *w) /* locked */
{
    if (--w->users > 0)
        return;
    for (struct world **at = &fake_nccl_worlds; *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    for (struct meeting *m = w->meetings, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    free(w);
}

/* ---- meetings ---- */

static size_t bytes_of(int type)
{
    switch (type) {
    case DT_NCCL_INT8:
        return 1;
    case DT_NCCL_BFLOAT16:
        return 2;
    case DT_NCCL_FLOAT32:
        return 4;
    case DT_NCCL_FLOAT64:
    case DT_NCCL_UINT64:
        return 8;
    default:
        fake_nccl_stop("no data have type %d here", type);
    }
}

static float wide(const char *p)
{
    uint16_t h;
    uint32_t u;
    float f;

    memcpy(&h, p, 2);
    u = (uint32_t)h << 16;
    memcpy(&f, &u, 4);
    return f;
}

static void narrow(char *p, float f)
{
    uint32_t u;
    uint16_t h;

    memcpy(&u, &f, 4);
    h = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
    memcpy(p, &h, 2);
}

#define FOLD(T)                                                                                    \
    do {                                                                                           \
        T sum, x;                                                                                  \
        memcpy(&sum, m->in[0] + at, sizeof(T));                                                    \
        for (int k = 1; k < n; k++) {                                                              \
            memcpy(&x, m->in[k] + at, sizeof(T));                                                  \
            sum = m->op == DT_NCCL_SUM ? sum + x : x > sum ? x : sum;                              \
        }                                                                                          \
        memcpy(to, &sum, sizeof(T));                                                               \
    } while (0)

/* Element at byte `at` of all members, in their order. */
static void fold(const struct meeting *m, int n, size_t at, char *to)
{
    float wide_sum;

    switch (m->type) {
    case DT_NCCL_FLOAT32:
        FOLD(float);
        return;
    case DT_NCCL_FLOAT64:
        FOLD(double);
        return;
    case DT_NCCL_UINT64:
        FOLD(uint64_t);
        return;
    case DT_NCCL_BFLOAT16:
        wide_sum = wide(m->in[0] + at);
        for (int k = 1; k < n; k++)
            wide_sum += wide(m->in[k] + at);
        narrow(to, wide_sum);
        return;
    default:
        fake_nccl_stop("%s of type %d", fake_nccl_kinds[m->kind], m->type);
    }
}

/* Sums of elements [first, first + count) of all members. */
static char *fold_range(const struct meeting *m, int n, size_t first, size_t count)
{
    size_t b = bytes_of(m->type);
    char *sum = fake_nccl_zeroed(count * b + 1);

    for (size_t i = 0; i < count; i++)
        fold(m, n, (first + i) * b, sum + i * b);
    return sum;
}

/* All have come: everybody gets what is his.  Sums are formed before anything is written, as buffers may be one. */
static void hold(struct meeting *m, int n)
{
    size_t bytes = m->n * bytes_of(m->type);
    char *all;

    switch (m->kind) {
    case ALL_REDUCE:
        all = fold_range(m, n, 0, m->n);
        for (int k = 0; k < n; k++)
            memcpy(m->out[k], all, bytes);
        break;
    case REDUCE:
        all = fold_range(m, n, 0, m->n);
        memcpy(m->out[m->root], all, bytes);
        break;
    case REDUCE_SCATTER:
        all = fold_range(m, n, 0, m->n * (size_t)n);
        for (int k = 0; k < n; k++)
            memcpy(m->out[k], all + (size_t)k * bytes, bytes);
        break;
    case ALL_GATHER:
        all = fake_nccl_zeroed(bytes * (size_t)n + 1);
        for (int k = 0; k < n; k++)
            memcpy(all + (size_t)k * bytes, m->in[k], bytes);
        for (int k = 0; k < n; k++)
            memcpy(m->out[k], all, bytes * (size_t)n);
        break;
    case BROADCAST:
        all = NULL;
        for (int k = 0; k < n; k++)
            if (m->out[k] != m->in[m->root])
                memcpy(m->out[k], m->in[m->root], bytes);
        break;
    case MESSAGE:
    default:
        all = NULL;
        memcpy(m->out[m->to], m->in[m->from], bytes);
        break;
    }
    free(all);
    m->over = true;
    pthread_cond_broadcast(&fake_nccl_change);
}

static struct meeting *meeting_of(struct world *w, const struct part *p) /* locked */
{
    struct meeting *m = w->meetings;

    while (m && (m->number != p->number || (m->kind == MESSAGE) != (p->kind == MESSAGE) ||
                 (p->kind == MESSAGE && (m->from != p->from || m->to != p->to))))
        m = m->next;
    if (m)
        return m;
    m = fake_nccl_zeroed(sizeof(*m));
    *m = (struct meeting){.next = w->meetings,
                          .number = p->number,
                          .kind = p->kind,
                          .from = p->from,
                          .to = p->to,
                          .n = p->n,
                          .type = p->type,
                          .op = p->op,
                          .root = p->root};
    w->meetings = m;
    return m;
}

struct meeting *fake_nccl_come(struct world *w, int me, const struct part *p) /* locked */
{
    struct meeting *m = meeting_of(w, p);

    if (m->kind != p->kind || m->n != p->n || m->type != p->type || m->op != p->op ||
        m->root != p->root)
        fake_nccl_stop(
            "member %d of %d calls %s of %zu elements of type %d (operation %d, root %d), but "
            "another one %s of %zu of type %d (operation %d, root %d)",
            me, w->n, fake_nccl_kinds[p->kind], p->n, p->type, p->op, p->root,
            fake_nccl_kinds[m->kind], m->n, m->type, m->op, m->root);
    if (p->in)
        m->in[me] = p->in;
    if (p->out)
        m->out[me] = p->out;
    if (++m->came == (m->kind == MESSAGE ? 2 : w->n))
        hold(m, w->n);
    return m;
}

void fake_nccl_meeting_leave(struct world *w, struct meeting *m) /* locked */
{
    if (++m->left < m->came || !m->over)
        return;
    for (struct meeting **at = &w->meetings; *at; at = &(*at)->next)
        if (*at == m) {
            *at = m->next;
            free(m);
            return;
        }
}
