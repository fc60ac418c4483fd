/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Transfers between modules, derived from samples in common.
 *
 *   upstream microbatches      [ s0 s1 s2 | s3 s4 s5 ]
 *                                 |  |   \    |   |  |
 *   downstream microbatches    [ s0 s1 | s2 s3 | s4 s5 ]
 *
 * There is one transfer per pair of microbatches with samples in common (four here); its bytes are
 * those of these samples.
 *
 * With DP_u upstream and DP_d downstream replicas the transfers of one slot fall into
 * gcd(DP_u, DP_d) groups that share no lane (the brokers of DistTrain); the dependency graph needs
 * no node for them. */
#include "core/schedule/schedule_impl.h"

#include <string.h>

/* Bytes of sample `pos` of a microbatch on the edge u -> d. */
struct edge_bytes {
    const struct dt_assignment_module *of; /* whose work counts: u's tokens or d's items */
    uint64_t width;                        /* bytes per row, or per item when `items` */
    bool items;
    int merged; /* u's tokens that leave as one row */
};

static struct edge_bytes edge_bytes(const struct dt_sched *s, const struct dt_model_edge *e)
{
    const struct dt_module *u = &s->model->modules[e->src], *d = &s->model->modules[e->dst];
    int per_item = d->out_tokens_per_item ? d->out_tokens_per_item : u->out_tokens_per_item;
    uint64_t elem = (uint64_t)dt_plan_policy_elem_bytes(&s->plan->policy);
    struct edge_bytes b = {&s->a->m[e->src], elem * (uint64_t)u->out_width, false,
                           dt_module_merged(u)};

    /* A generator is conditioned on a fixed number of LLM states for each item that it generates.
     */
    if (d->role == DT_ROLE_GENERATOR && per_item > 0) {
        b.of = &s->a->m[e->dst];
        b.width *= (uint64_t)per_item;
        b.items = true;
    }
    return b;
}

static uint64_t sample_bytes(const struct edge_bytes *b, uint32_t mb, uint32_t pos)
{
    const struct dt_microbatch *x = &b->of->mb[mb];
    const struct dt_work *w;
    uint64_t total;

    if (b->of->sample_work) {
        w = &b->of->sample_work[x->first + pos];
        return b->width * (uint64_t)(b->items ? w->n : w->tokens / b->merged);
    }
    w = &b->of->work[mb];
    total = (uint64_t)(b->items ? w->n : w->tokens / b->merged);
    return b->width * (total * (pos + 1) / x->n - total * pos / x->n);
}

/* Where samples sit in the upstream module: place[first[x] .. first[x + 1]) of sample x.  One place, or where its
 * replicas share items one for each item. */
struct place {
    uint32_t mb, pos;
};
struct places {
    uint32_t *first; /* [samples + 2] */
    struct place *place;
    size_t cap;
};

/* Counts the places of every sample into first[x + 2]. */
static enum dt_status count_places(const struct dt_sched *s, int module, struct places *at,
                                   struct dt_error *err)
{
    const struct dt_sched_module *m = &s->m[module];
    const struct dt_assignment_module *a = &s->a->m[module];
    int64_t seen = 0;

    memset(at->first, 0, ((size_t)s->a->n_samples + 2) * sizeof(*at->first));
    for (uint32_t mb = 0; mb < m->n_mb; mb++)
        for (uint32_t i = 0; i < a->mb[mb].n; i++) {
            int64_t x = a->samples[a->mb[mb].first + i] - s->a->first_sample;

            if (x < 0 || x >= s->a->n_samples || (!a->items && at->first[x + 2] > 0))
                return dt_error_set(
                    err, DT_ERR_INTERNAL,
                    "assignment: module %s has sample %lld twice or outside the batch",
                    m->mod->name, (long long)(x + s->a->first_sample));
            at->first[x + 2]++;
            seen++;
        }
    if (!a->items && seen != s->a->n_samples)
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "assignment: module %s holds %lld of %lld samples", m->mod->name,
                            (long long)seen, (long long)s->a->n_samples);
    return DT_OK;
}

static enum dt_status locate(const struct dt_sched *s, int module, struct places *at,
                             struct dt_error *err)
{
    const struct dt_assignment_module *a = &s->a->m[module];
    size_t n = (size_t)s->a->n_samples;

    DT_TRY(count_places(s, module, at, err));
    for (size_t x = 2; x < n + 2; x++)
        at->first[x] += at->first[x - 1];
    if (dt_grow((void **)&at->place, &at->cap, at->first[n + 1] + 1u, sizeof(*at->place)) != 0)
        return dt_error_nomem(err, "samples of a schedule");
    for (uint32_t mb = 0; mb < s->m[module].n_mb; mb++)
        for (uint32_t i = 0; i < a->mb[mb].n; i++) {
            int64_t x = a->samples[a->mb[mb].first + i] - s->a->first_sample;

            at->place[at->first[x + 1]++] = (struct place){mb, i};
        }
    return DT_OK;
}

struct growing {
    struct dt_sched_transfer *t;
    size_t n, cap;
};

/* Adds to the transfer from u_mb, or makes it: from `first` on they are in the order of their upstream microbatches. */
static int add_bytes(struct growing *g, size_t first, const struct dt_sched_transfer *x)
{
    size_t k = g->n;

    while (k > first && g->t[k - 1].u_mb > x->u_mb)
        k--;
    if (k > first && g->t[k - 1].u_mb == x->u_mb) {
        g->t[k - 1].bytes += x->bytes;
        return 0;
    }
    if (dt_grow((void **)&g->t, &g->cap, g->n + 1, sizeof(*g->t)) != 0)
        return -1;
    memmove(&g->t[k + 1], &g->t[k], (g->n - k) * sizeof(*g->t));
    g->t[k] = *x;
    g->n++;
    return 0;
}

/* The transfers into one downstream microbatch. */
static int collect(const struct dt_sched *s, const struct dt_model_edge *e, uint32_t d_mb,
                   const struct places *at, struct growing *g)
{
    const struct dt_assignment_module *d = &s->a->m[e->dst];
    struct edge_bytes b = edge_bytes(s, e);
    size_t first = g->n;

    for (uint32_t i = 0; i < d->mb[d_mb].n; i++) {
        int64_t x = d->samples[d->mb[d_mb].first + i] - s->a->first_sample;

        for (uint32_t k = at->first[x]; k < at->first[x + 1]; k++) {
            const struct place *p = &at->place[k];
            struct dt_sched_transfer t = {.u_mb = p->mb,
                                          .d_mb = d_mb,
                                          .u = (uint8_t)e->src,
                                          .d = (uint8_t)e->dst,
                                          .grad = s->m[e->src].mirrored_out};

            t.bytes = b.items ? sample_bytes(&b, d_mb, i) : sample_bytes(&b, p->mb, p->pos);
            if (t.bytes > 0 && add_bytes(g, first, &t) != 0)
                return -1;
        }
    }
    return 0;
}

/* Both directions as offset arrays.  Transfers come edge by edge, downstream microbatches
 * ascending, so that every list below is in (edge, microbatch) order. */
static int index_transfers(struct dt_sched *s)
{
    for (int i = 0; i < s->n_modules; i++) {
        struct dt_sched_module *m = &s->m[i];

        m->in_first = DT_ARENA_NEW(&s->arena, uint32_t, m->n_mb + 1);
        m->out_first = DT_ARENA_NEW(&s->arena, uint32_t, m->n_mb + 1);
        m->gin_n = DT_ARENA_NEW(&s->arena, uint32_t, m->n_mb + 1);
        if (!m->in_first || !m->out_first || !m->gin_n)
            return -1;
    }
    for (uint32_t t = 0; t < s->n_transfers; t++) {
        struct dt_sched_transfer *x = &s->transfers[t];

        x->in_rank = s->m[x->d].in_first[x->d_mb + 1]++;
        x->out_rank = s->m[x->u].out_first[x->u_mb + 1]++;
        if (x->grad)
            x->gin_rank = s->m[x->d].gin_n[x->d_mb]++;
    }
    for (int i = 0; i < s->n_modules; i++) {
        struct dt_sched_module *m = &s->m[i];

        for (uint32_t k = 0; k < m->n_mb; k++) {
            m->in_first[k + 1] += m->in_first[k];
            m->out_first[k + 1] += m->out_first[k];
        }
        m->in = DT_ARENA_NEW(&s->arena, uint32_t, m->in_first[m->n_mb] + 1);
        m->out = DT_ARENA_NEW(&s->arena, uint32_t, m->out_first[m->n_mb] + 1);
        if (!m->in || !m->out)
            return -1;
    }
    for (uint32_t t = 0; t < s->n_transfers; t++) {
        struct dt_sched_transfer *x = &s->transfers[t];

        s->m[x->d].in[s->m[x->d].in_first[x->d_mb] + x->in_rank] = t;
        s->m[x->u].out[s->m[x->u].out_first[x->u_mb] + x->out_rank] = t;
    }
    return 0;
}

/* Aligned: every replica of every module has slots 0, 1, ... n-1 in this order and no transfer
 * leaves its slot. */
static bool is_aligned(const struct dt_sched *s)
{
    uint32_t n = (uint32_t)s->a->n_slots;

    for (int i = 0; i < s->n_modules; i++) {
        const struct dt_sched_module *m = &s->m[i];

        for (int r = 0; r < m->dp; r++) {
            if (m->mb_first[r + 1] - m->mb_first[r] != n)
                return false;
            for (uint32_t k = 0; k < n; k++)
                if (s->a->m[i].mb[m->mb_first[r] + k].slot != k)
                    return false;
        }
    }
    for (uint32_t t = 0; t < s->n_transfers; t++) {
        const struct dt_sched_transfer *x = &s->transfers[t];

        if (s->a->m[x->u].mb[x->u_mb].slot != s->a->m[x->d].mb[x->d_mb].slot)
            return false;
    }
    return true;
}

enum dt_status dt_sched_transfers(struct dt_sched *s, struct dt_error *err)
{
    struct growing g = {0};
    struct places at = {dt_malloc(((size_t)s->a->n_samples + 2) * sizeof(*at.first)), NULL, 0};
    enum dt_status st = at.first ? DT_OK : dt_error_nomem(err, "samples of a schedule");

    for (int e = 0; e < s->model->n_edges && st == DT_OK; e++) {
        const struct dt_model_edge *edge = &s->model->edges[e];

        st = locate(s, edge->dst, &at, err); /* every sample that we look up exists */
        if (st == DT_OK)
            st = locate(s, edge->src, &at, err);
        for (uint32_t mb = 0; st == DT_OK && mb < s->m[edge->dst].n_mb; mb++)
            if (collect(s, edge, mb, &at, &g) != 0)
                st = dt_error_nomem(err, "transfers of a schedule");
    }
    if (st == DT_OK) {
        s->n_transfers = (uint32_t)g.n;
        s->transfers = DT_ARENA_NEW(&s->arena, struct dt_sched_transfer, g.n + 1);
        if (s->transfers && g.n > 0)
            memcpy(s->transfers, g.t, g.n * sizeof(*g.t));
        if (!s->transfers || index_transfers(s) != 0)
            st = dt_error_nomem(err, "transfers of a schedule");
    }
    if (st == DT_OK)
        s->aligned = is_aligned(s);
    dt_free(g.t);
    dt_free(at.first);
    dt_free(at.place);
    return st;
}
