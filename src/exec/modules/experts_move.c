/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows of an expert group on their way to experts and back.
 *
 *   own choices, in order   [ e0 e1 | e2 e3 ]                  experts 0, 1 are member 0's, 2, 3 member 1's
 *                                | all-to-all
 *   came (at member 0)      [ e0 e1 | e0 e1 ]                  from member 0, from member 1
 *                                | copies
 *   taken                   [ e0 e0 | e1 e1 ]                  an expert's rows lie together */
#include "exec/modules/experts.h"

/* Bytes that go to every member, and come from it. */
static void count_bytes(const struct dt_nn_call *c, const struct dt_nn_experts *d, size_t each)
{
    struct dt_nn_routing *r = c->s->routing;
    int me = dt_tp_rank(c->s->ep);

    for (int k = 0; k < dt_tp_size(c->s->ep); k++) {
        r->send[k] = r->recv[k] = 0;
        for (int e = 0; r->well && e < d->here; e++) {
            r->send[k] += (size_t)r->count[me * d->n + k * d->here + e] * each;
            r->recv[k] += (size_t)r->count[k * d->n + me * d->here + e] * each;
        }
    }
}

/* Between `came` and `taken`. */
static void regroup(struct dt_nn_call *c, const struct dt_nn_experts *d, char *came, char *taken,
                    size_t each, bool back)
{
    struct dt_nn_routing *r = c->s->routing;
    int members = dt_tp_size(c->s->ep), n = 0;
    size_t from = 0;

    for (int k = 0; k < members; k++)
        for (int e = 0; e < d->here; e++) {
            size_t bytes = r->well ? (size_t)r->count[k * d->n + d->first + e] * each : 0, to = 0;

            for (int f = 0; f < e; f++) /* experts before it */
                to += (size_t)r->rows[f] * each;
            for (int j = 0; r->well && j < k; j++) /* and members */
                to += (size_t)r->count[j * d->n + d->first + e] * each;
            r->parts[n++] =
                back ? (struct dt_kernel_copy_part){(int64_t)bytes, taken + to, came + from}
                     : (struct dt_kernel_copy_part){(int64_t)bytes, came + from, taken + to};
            from += bytes;
        }
    c->k->copy(c->q, n, r->parts);
}

void dt_nn_experts_send(struct dt_nn_call *c, const struct dt_nn_experts *d, const char *sorted,
                        char *taken, char *came, size_t each)
{
    struct dt_nn_routing *r = c->s->routing;

    count_bytes(c, d, each);
    dt_tp_all_to_all(c->q, c->s->ep, sorted, r->send, came, r->recv);
    regroup(c, d, came, taken, each, false);
}

void dt_nn_experts_return(struct dt_nn_call *c, const struct dt_nn_experts *d, const char *taken,
                          char *sorted, char *came, size_t each)
{
    struct dt_nn_routing *r = c->s->routing;

    regroup(c, d, came, (char *)(uintptr_t)taken, each, true);
    count_bytes(c, d, each);
    dt_tp_all_to_all(c->q, c->s->ep, came, r->recv, sorted, r->send);
}
