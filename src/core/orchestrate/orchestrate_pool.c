/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The candidates that a search keeps: the k best, of each kind a few at most, so that many variants of one
 * layout do not crowd out what the timeline may like better. */
#include "core/orchestrate/orchestrate_search.h"

#include <math.h>

static bool same_key(const struct dt_orch_cand *a, const struct dt_orch_cand *b, int llm)
{
    const struct dt_orch_choice *x = &a->of[llm], *y = &b->of[llm];

    return a->pipe == b->pipe && a->microbatch == b->microbatch && x->lane == y->lane &&
           x->dp == y->dp && x->pp == y->pp && x->zero == y->zero;
}

/* The entry that a newcomer with this key would have to displace, or -1 when there is room. */
static int victim(const struct dt_orch_pool *p, const struct dt_orch_cand *c, int llm)
{
    int keys = 0, worst = -1;

    for (int i = 0; i < p->n; i++)
        if (same_key(&p->c[i], c, llm)) {
            keys++;
            worst = i;
        }
    if (keys >= p->per_key)
        return worst;
    return p->n < p->k ? -1 : p->n - 1;
}

double dt_orch_pool_threshold(const struct dt_orch_pool *p)
{
    double full = p->n < p->k ? p->limit : p->c[p->n - 1].score;

    if (p->margin <= 0 || p->n < p->sure)
        return full;
    return fmin(full, fmax(p->c[0].score * (1 + p->margin), p->c[p->sure - 1].score));
}

double dt_orch_pool_key_threshold(const struct dt_orch_pool *p, const struct dt_orch_cand *c,
                                  int llm)
{
    int v = victim(p, c, llm);

    return fmin(v < 0 ? HUGE_VAL : p->c[v].score, dt_orch_pool_threshold(p));
}

void dt_orch_pool_add(struct dt_orch_pool *p, const struct dt_orch_cand *c, int llm)
{
    int at = victim(p, c, llm);

    if (at >= 0 && !dt_orch_cand_better(c, &p->c[at]))
        return;
    if (at < 0)
        at = p->n++;
    for (; at > 0 && dt_orch_cand_better(c, &p->c[at - 1]); at--)
        p->c[at] = p->c[at - 1];
    p->c[at] = *c;
}
