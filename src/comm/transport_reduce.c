/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives made of messages: those that sum.
 *
 * Every sum is formed by one member, from all parts, in the order of members, whatever the length
 * and the cut: a layout's result does not hang on sizes or on timing.
 *
 *   reduce-scatter  chunk by chunk: everybody sends the owner its part, the owner sums
 *   all-reduce      short: everybody sends everybody all of it, and all sum alike.
 *                   Long: per chunk a reduce-scatter, then an all-gather; as many bytes as a ring
 *                   moves, in two rounds instead of 2 (n - 1). */
#include "comm/transport_impl.h"

enum {
    /* All-reduce, bytes.  Up to here one round of the whole vector: measured on shared memory, the
     * second round of messages costs more than the other half of the bytes. */
    SHORT = 16 << 10,
    /* Except where halves (of two members) go at once and the whole does not: Open MPI's shared
     * memory sends up to 4,096 bytes with its header without asking the receiver first. */
    AT_ONCE = 4000,
    /* A chunk, per member: long enough that waiting for one another at its end does not count.
     * Measured on 2 ranks with busy neighbours, 16 to 64 MiB: 256 KiB take twice as long. */
    CHUNK_MAX = 1 << 20,
    CHUNK_MIN = 64 << 10,
    CHUNK_ALL = 8 << 20, /* of all members, which is the memory of a strand */
};

static size_t lesser(size_t a, size_t b)
{
    return a < b ? a : b;
}

static bool in_one_round(size_t bytes, int members)
{
    return bytes <= AT_ONCE || (bytes <= SHORT && bytes / (size_t)members > AT_ONCE);
}

static size_t chunk_bytes(int members)
{
    size_t even = CHUNK_ALL / (size_t)members;

    return even < CHUNK_MIN ? CHUNK_MIN : lesser(even, CHUNK_MAX);
}

/* Member k's piece of n things. */
static size_t piece(size_t n, int members, int k)
{
    size_t q = n / (size_t)members, r = n % (size_t)members;

    return (size_t)k * q + lesser((size_t)k, r);
}

/* Sums the n elements at x and the others' parts, which lie in the strand's scratch one after
 * another, `stride` bytes apart. */
static void sum_parts(const struct dt_req *r, int strand, char *x, size_t n, size_t stride)
{
    const struct dt_transport_wire *w = dt_transport_base(r->t)->wire;
    const char *scratch = r->scratch + (size_t)strand * r->scratch_strand;
    int members = r->comm->n, me = r->comm->me;

    for (int k = 0; k < members; k++)
        r->parts[k] = scratch + (size_t)k * stride;
    if (w->sum)
        w->sum(r->t, r->type, x, r->parts, members, me, n, r->q);
    else
        dt_reduce_parts(r->type, x, r->parts, members, me, n);
}

/* Scratch of a strand: a part per member (its own stays unused). */
static size_t scratch_bytes(const struct dt_comm *c, size_t part_bytes)
{
    size_t part = (part_bytes + 63) / 64 * 64;

    return (size_t)c->n * part + 64;
}

static size_t stride_of(size_t part_bytes)
{
    return (part_bytes + 63) / 64 * 64;
}

/* ---- reduce-scatter ---- */

/* Chunk of member k's piece in this round: where it begins in buf and how long it is, elements. */
static size_t scatter_chunk(const struct dt_req *r, const struct dt_coll_strand *s, int strand,
                            int k, size_t *n)
{
    size_t from = ((size_t)s->round * (size_t)r->n_strands + (size_t)strand) * r->chunk;
    size_t len = r->at[k + 1] - r->at[k];

    *n = from < len ? lesser(len - from, r->chunk) : 0;
    return r->at[k] + (from < len ? from : 0);
}

static bool scatter_begin(struct dt_req *r, struct dt_coll_strand *s, int strand,
                          struct dt_error *err)
{
    int n = r->comm->n, me = r->comm->me;
    size_t e = dt_reduce_bytes(r->type), len;
    char *scratch = r->scratch + (size_t)strand * r->scratch_strand;

    if (((size_t)s->round * (size_t)r->n_strands + (size_t)strand) * r->chunk >= r->n)
        return false;
    scatter_chunk(r, s, strand, me, &len);
    for (int d = 1; d < n; d++) {
        int k = (me - d + n) % n;

        if (!dt_coll_recv(r, s, strand, k, scratch + (size_t)k * stride_of(r->chunk * e), len * e,
                          err))
            return false;
    }
    for (int d = 1; d < n; d++) {
        int k = (me + d) % n;
        size_t at = scatter_chunk(r, s, strand, k, &len);

        if (!dt_coll_send(r, s, strand, k, r->buf + at * e, len * e, err))
            return false;
    }
    return true;
}

static void scatter_end(struct dt_req *r, struct dt_coll_strand *s, int strand)
{
    size_t e = dt_reduce_bytes(r->type), len, at = scatter_chunk(r, s, strand, r->comm->me, &len);

    if (len)
        sum_parts(r, strand, r->buf + at * e, len, stride_of(r->chunk * e));
}

static const struct dt_coll reduce_scatter = {"reduce-scatter", scatter_begin, scatter_end};

enum dt_status dt_coll_reduce_scatter(struct dt_comm *c, enum dt_reduce_type type, void *buf,
                                      const size_t *counts, struct dt_device_queue *q,
                                      struct dt_error *err, struct dt_req **out)
{
    struct dt_req *r;
    size_t e = dt_reduce_bytes(type), longest = 0;

    DT_TRY(dt_coll_new(c, &reduce_scatter, buf, counts, q, err, &r));
    r->type = type;
    for (int k = 0; k < c->n; k++)
        if (counts[k] > longest)
            longest = counts[k];
    r->n = c->n > 1 ? longest : 0; /* the rounds go on until the longest piece is through */
    r->bytes = r->at[c->n] * e;
    r->chunk = lesser(chunk_bytes(c->n) / e, longest ? longest : 1);
    return dt_coll_post(r, r->n > r->chunk ? 2 : 1, 2 * c->n, scratch_bytes(c, r->chunk * e), err,
                        out);
}

/* ---- all-reduce, short ---- */

static bool exchange_begin(struct dt_req *r, struct dt_coll_strand *s, int strand,
                           struct dt_error *err)
{
    int n = r->comm->n, me = r->comm->me;
    size_t bytes = r->n * dt_reduce_bytes(r->type);
    char *scratch = r->scratch + (size_t)strand * r->scratch_strand;

    if (s->round > 0)
        return false;
    for (int d = 1; d < n; d++) {
        int k = (me - d + n) % n;

        if (!dt_coll_recv(r, s, strand, k, scratch + (size_t)k * stride_of(bytes), bytes, err))
            return false;
    }
    for (int d = 1; d < n; d++)
        if (!dt_coll_send(r, s, strand, (me + d) % n, r->buf, bytes, err))
            return false;
    return true;
}

static void exchange_end(struct dt_req *r, struct dt_coll_strand *s, int strand)
{
    (void)s;
    sum_parts(r, strand, r->buf, r->n, stride_of(r->n * dt_reduce_bytes(r->type)));
}

static const struct dt_coll exchange = {"all-reduce", exchange_begin, exchange_end};

/* ---- all-reduce, long: even rounds scatter a chunk, odd ones gather it ---- */

static size_t reduce_chunk(const struct dt_req *r, const struct dt_coll_strand *s, int strand,
                           size_t *n)
{
    size_t from = ((size_t)(s->round / 2) * (size_t)r->n_strands + (size_t)strand) * r->chunk;

    *n = from < r->n ? lesser(r->n - from, r->chunk) : 0;
    return from;
}

static bool reduce_begin(struct dt_req *r, struct dt_coll_strand *s, int strand,
                         struct dt_error *err)
{
    int n = r->comm->n, me = r->comm->me;
    size_t e = dt_reduce_bytes(r->type), len, from = reduce_chunk(r, s, strand, &len);
    size_t mine = piece(len, n, me), my_len = piece(len, n, me + 1) - mine;
    size_t stride = stride_of((r->chunk / (size_t)n + 1) * e);
    char *scratch = r->scratch + (size_t)strand * r->scratch_strand, *x = r->buf + from * e;
    bool gather = s->round % 2;

    if (!len)
        return false;
    for (int d = 1; d < n; d++) {
        int k = (me - d + n) % n;
        size_t at = piece(len, n, k), k_len = piece(len, n, k + 1) - at;

        if (!dt_coll_recv(r, s, strand, k, gather ? x + at * e : scratch + (size_t)k * stride,
                          (gather ? k_len : my_len) * e, err))
            return false;
    }
    for (int d = 1; d < n; d++) {
        int k = (me + d) % n;
        size_t at = piece(len, n, k), k_len = piece(len, n, k + 1) - at;

        if (!dt_coll_send(r, s, strand, k, x + (gather ? mine : at) * e,
                          (gather ? my_len : k_len) * e, err))
            return false;
    }
    return true;
}

static void reduce_end(struct dt_req *r, struct dt_coll_strand *s, int strand)
{
    int n = r->comm->n, me = r->comm->me;
    size_t e = dt_reduce_bytes(r->type), len, from = reduce_chunk(r, s, strand, &len);
    size_t mine = piece(len, n, me), my_len = piece(len, n, me + 1) - mine;

    if (s->round % 2 == 0 && my_len)
        sum_parts(r, strand, r->buf + (from + mine) * e, my_len,
                  stride_of((r->chunk / (size_t)n + 1) * e));
}

static const struct dt_coll all_reduce = {"all-reduce", reduce_begin, reduce_end};

enum dt_status dt_coll_all_reduce(struct dt_comm *c, enum dt_reduce_type type, void *buf, size_t n,
                                  struct dt_device_queue *q, struct dt_error *err,
                                  struct dt_req **out)
{
    size_t e = dt_reduce_bytes(type);
    bool brief = in_one_round(n * e, c->n);
    struct dt_req *r;
    int strands;

    if (n > SIZE_MAX / e)
        return dt_error_set(err, DT_ERR_INTERNAL, "all-reduce of %zu elements", n);
    DT_TRY(dt_coll_new(c, brief ? &exchange : &all_reduce, buf, NULL, q, err, &r));
    r->type = type;
    r->n = c->n > 1 ? n : 0;
    r->bytes = r->n * e;
    if (brief)
        return dt_coll_post(r, 1, 2 * c->n, scratch_bytes(c, r->bytes), err, out);
    r->chunk = lesser((size_t)c->n * (chunk_bytes(c->n) / e), n);
    strands = r->n > r->chunk ? 2 : 1;
    return dt_coll_post(r, strands, 2 * c->n, scratch_bytes(c, (r->chunk / (size_t)c->n + 1) * e),
                        err, out);
}
