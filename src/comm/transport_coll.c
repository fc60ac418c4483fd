/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives made of messages: those that only move bytes.
 *
 *   broadcast    down a binomial tree, in chunks that follow one another through it
 *   all-gather   everybody sends its piece to everybody, beginning with its neighbour
 *   all-to-all   the same with pieces of their own */
#include "comm/transport_impl.h"

#include "base/mem.h"

/* A broadcast's chunk: long enough to hide what a message costs (measured: some 2 us, or 0.2 us per
 * KiB), short enough that four of them fill a tree early. */
enum { BROADCAST_CHUNK = 512 << 10 };

/* at[k] becomes the sum of counts[0..k). */
static enum dt_status offsets(const size_t *counts, int n, struct dt_error *err, size_t **at,
                              size_t *cap)
{
    if (dt_grow((void **)at, cap, (size_t)n + 1, sizeof(**at)) != 0)
        return dt_error_nomem(err, "the pieces of a collective");
    (*at)[0] = 0;
    for (int k = 0; k < n; k++)
        (*at)[k + 1] = (*at)[k] + counts[k];
    return DT_OK;
}

enum dt_status dt_coll_new(struct dt_comm *c, const struct dt_coll *kind, void *buf,
                           const size_t *counts, struct dt_device_queue *q, struct dt_error *err,
                           struct dt_req **out)
{
    struct dt_req *r;
    enum dt_status st;

    DT_TRY(dt_req_begin(c->t, q, err));
    DT_TRY(dt_req_new(c->t, q, err, &r));
    r->coll = kind;
    r->comm = c;
    r->seq = atomic_fetch_add_explicit(&c->seq, 1, memory_order_relaxed);
    r->buf = buf;
    st = counts ? offsets(counts, c->n, err, &r->at, &r->at_cap) : DT_OK;
    if (st == DT_OK &&
        dt_grow((void **)&r->parts, &r->parts_cap, (size_t)c->n, sizeof(*r->parts)) != 0)
        st = dt_error_nomem(err, "the members of a collective");
    if (st) {
        dt_req_release(r);
        return st;
    }
    *out = r;
    return DT_OK;
}

/* Room, then off it goes; a request that cannot is released. */
enum dt_status dt_coll_post(struct dt_req *r, int n_strands, int max_xfers, size_t scratch_strand,
                            struct dt_error *err, struct dt_req **out)
{
    enum dt_status st = dt_req_room(r, n_strands, max_xfers, scratch_strand, err);

    if (st) {
        dt_req_release(r);
        return st;
    }
    return dt_req_post(r, err, out);
}

static void nothing(struct dt_req *r, struct dt_coll_strand *s, int strand)
{
    (void)r;
    (void)s;
    (void)strand;
}

/* ---- broadcast ----
 * Counted from the root, member v > 0 has its parent at v with its lowest bit taken away, and its
 * children at v + 1, v + 2, v + 4 … below that bit.  Even rounds bring a chunk, odd ones hand it
 * on.
 */

static bool broadcast_begin(struct dt_req *r, struct dt_coll_strand *s, int strand,
                            struct dt_error *err)
{
    int n = r->comm->n, v = (r->comm->me - r->root + n) % n, low = v ? v & -v : n;
    size_t from = ((size_t)(s->round / 2) * (size_t)r->n_strands + (size_t)strand) * r->chunk;
    size_t bytes;

    if (from >= r->n)
        return false;
    bytes = r->n - from < r->chunk ? r->n - from : r->chunk;
    if (s->round % 2 == 0)
        return v == 0 ||
               dt_coll_recv(r, s, strand, (v - low + r->root) % n, r->buf + from, bytes, err);
    /* the far children first: they have the most to hand on */
    for (int step = 1 << 30; step; step >>= 1)
        if (step < low && step < n - v &&
            !dt_coll_send(r, s, strand, (v + step + r->root) % n, r->buf + from, bytes, err))
            return false;
    return true;
}

static const struct dt_coll broadcast = {"broadcast", broadcast_begin, nothing};

enum dt_status dt_coll_broadcast(struct dt_comm *c, int root, void *buf, size_t bytes,
                                 struct dt_device_queue *q, struct dt_error *err,
                                 struct dt_req **out)
{
    struct dt_req *r;

    if (root < 0 || root >= c->n)
        return dt_error_set(err, DT_ERR_INTERNAL, "there is no member %d among %d", root, c->n);
    DT_TRY(dt_coll_new(c, &broadcast, buf, NULL, q, err, &r));
    r->root = root;
    r->n = c->n > 1 ? bytes : 0;
    r->bytes = r->n;
    r->chunk = BROADCAST_CHUNK;
    if (c->n == 2) /* nobody to hand it on to */
        r->chunk = bytes ? bytes : 1;
    return dt_coll_post(r, r->n > r->chunk ? DT_STRANDS : 1, 32, 0, err, out);
}

/* ---- all-gather and all-to-all: one round ---- */

static bool gather_begin(struct dt_req *r, struct dt_coll_strand *s, int strand,
                         struct dt_error *err)
{
    int n = r->comm->n, me = r->comm->me;

    if (s->round > 0)
        return false;
    for (int d = 1; d < n; d++) {
        int k = (me - d + n) % n;

        if (!dt_coll_recv(r, s, strand, k, r->buf + r->at[k], r->at[k + 1] - r->at[k], err))
            return false;
    }
    for (int d = 1; d < n; d++)
        if (!dt_coll_send(r, s, strand, (me + d) % n, r->buf + r->at[me], r->at[me + 1] - r->at[me],
                          err))
            return false;
    return true;
}

static const struct dt_coll gather = {"all-gather", gather_begin, nothing};

enum dt_status dt_coll_all_gather(struct dt_comm *c, void *buf, const size_t *bytes,
                                  struct dt_device_queue *q, struct dt_error *err,
                                  struct dt_req **out)
{
    struct dt_req *r;

    DT_TRY(dt_coll_new(c, &gather, buf, bytes, q, err, &r));
    r->bytes = r->at[c->n];
    return dt_coll_post(r, 1, 2 * c->n, 0, err, out);
}

static bool to_all_begin(struct dt_req *r, struct dt_coll_strand *s, int strand,
                         struct dt_error *err)
{
    int n = r->comm->n, me = r->comm->me;

    if (s->round > 0)
        return false;
    for (int d = 0; d < n; d++) { /* to itself too */
        int k = (me - d + n) % n;

        if (!dt_coll_recv(r, s, strand, k, r->buf + r->at[k], r->at[k + 1] - r->at[k], err))
            return false;
    }
    for (int d = 0; d < n; d++) {
        int k = (me + d) % n;

        if (!dt_coll_send(r, s, strand, k, r->send + r->at_send[k],
                          r->at_send[k + 1] - r->at_send[k], err))
            return false;
    }
    return true;
}

static const struct dt_coll to_all = {"all-to-all", to_all_begin, nothing};

enum dt_status dt_coll_all_to_all(struct dt_comm *c, const void *send, const size_t *send_bytes,
                                  void *recv, const size_t *recv_bytes, struct dt_device_queue *q,
                                  struct dt_error *err, struct dt_req **out)
{
    struct dt_req *r;
    enum dt_status st;

    if (send_bytes[c->me] != recv_bytes[c->me])
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "all-to-all: %zu bytes to oneself, but %zu bytes from oneself",
                            send_bytes[c->me], recv_bytes[c->me]);
    DT_TRY(dt_coll_new(c, &to_all, recv, recv_bytes, q, err, &r));
    r->send = send;
    st = offsets(send_bytes, c->n, err, &r->at_send, &r->at_send_cap);
    if (st) {
        dt_req_release(r);
        return st;
    }
    r->bytes = r->at[c->n] + r->at_send[c->n];
    return dt_coll_post(r, 1, 2 * c->n, 0, err, out);
}
