/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Context parallelism: who has which rows of a sequence.
 *
 * Every document is cut by itself, into 2n chunks of len / 2n rows, of which member k has k and 2n - 1 - k: so all have as
 * much of each document's causal triangle to do, which cutting the packed sequence as a whole would not give them.  The
 * len mod 2n rows that are left over make as many chunks longer by one, in turn over members, documents and sequences:
 * members' rows of a sequence differ by one at most.
 *
 *   documents of 9 and 5 rows, n = 2     0 0 0 | 1 1 | 1 1 | 0 0      one is left over, for member 0
 *                                        0 | 1 1 | 1 | 0              one is left over, for member 1 */
#include "exec/program/batching.h"

void dt_batching_deal_begin(struct dt_batching_deal *d, int n, const struct dt_sequence *q)
{
    *d = (struct dt_batching_deal){.n = n, .turn = (int)(q->index % n)};
}

void dt_batching_deal_next(struct dt_batching_deal *d, int64_t len)
{
    d->turn = (int)((d->turn + d->len % (2 * (int64_t)d->n)) % d->n);
    d->len = len;
}

int64_t dt_batching_deal_rows(const struct dt_batching_deal *d, int member, int half)
{
    int64_t chunks = 2 * (int64_t)d->n, over = d->len % chunks;
    int64_t lap = (member - d->turn + d->n) % d->n;

    return d->len / chunks + (lap + (int64_t)half * d->n < over);
}

int64_t dt_batching_cut_rows(const struct dt_sequence *q, int n, int member, int half)
{
    struct dt_batching_deal d;
    int64_t rows = 0;

    dt_batching_deal_begin(&d, n, q);
    for (int i = 0; i < q->n_docs; i++) {
        dt_batching_deal_next(&d, q->docs[i].n);
        rows += dt_batching_deal_rows(&d, member, half);
    }
    return rows;
}

/* ---- chunk by chunk ---- */

void dt_batching_chunks_begin(struct dt_batching_chunks *c, int n, const struct dt_sequence *q)
{
    *c = (struct dt_batching_chunks){.q = q, .n = n, .chunk = 2 * n - 1, .doc = -1};
    if (n > 1)
        dt_batching_deal_begin(&c->deal, n, q);
}

static bool whole(struct dt_batching_chunks *c)
{
    c->first = c->end;
    c->end = c->q->n_tokens;
    return c->first < c->end;
}

bool dt_batching_chunks_next(struct dt_batching_chunks *c)
{
    if (c->n < 2)
        return whole(c);
    do {
        if (++c->chunk == 2 * c->n) {
            if (++c->doc == c->q->n_docs)
                return false;
            dt_batching_deal_next(&c->deal, c->q->docs[c->doc].n);
            c->chunk = 0;
        }
        c->half = c->chunk >= c->n;
        c->member = c->half ? 2 * c->n - 1 - c->chunk : c->chunk;
        c->first = c->end;
        c->end += dt_batching_deal_rows(&c->deal, c->member, c->half);
    } while (c->first == c->end);
    return true;
}
