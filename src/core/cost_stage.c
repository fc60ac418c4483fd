/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Stages: sums of block times under freezing, and the memo that the search and the compiler live
 * on. */
#include "core/cost_internal.h"

#include <math.h>
#include <string.h>

/* The host issues the kernels of a block, forward and backward, while the device works through
 * those that it has: whoever is later sets the pace.  Nothing makes them wait for each other
 * between forward and backward, so both count together; stretches with a late host and stretches
 * with a late device lie side by side, hence a p-norm instead of the maximum.  Blocks are taken one
 * kind at a time: the host does not catch up during the head what it lost in the layers before. A
 * backward kernel is issued by the autograd engine, a forward one by Python code around it. */
double cost_host_wait(const struct dt_cost *c, const struct block_times *t, bool above,
                      bool trained, double *fwd_ns)
{
    const struct dt_cost_tuning *tune = &c->tuning;
    double back = (above ? t->calls_dgrad : 0) + (trained ? t->calls_wgrad : 0);
    double again = above || trained ? t->calls_again : 0;
    double host_f = t->calls * c->opt.dispatch_ns;
    double host = host_f + (again + tune->backward_call * back) * c->opt.dispatch_ns;
    double device = t->fwd.ns, p = tune->host_norm, rest;

    *fwd_ns = 0;
    if (!(host > 0))
        return 0;
    device += above || trained ? t->recompute.ns : 0;
    device += above ? t->dgrad.ns : 0;
    device += trained ? t->wgrad.ns : 0;
    device += trained && !above ? t->wgrad_only.ns : 0;
    rest = pow(pow(device, p) + pow(host, p), 1 / p) - device;
    if (!(rest > 0))
        return 0;
    *fwd_ns = rest * host_f / host;
    return rest;
}

static void add_wait(struct dt_time *t, double ns)
{
    t->ns += ns;
    t->prov[DT_PROV_ASSUMED] += ns;
}

void dt_cost_stage(struct dt_cost *c, int module, int first, int n, const struct dt_shard *shard,
                   const struct dt_work *work, const unsigned char *trainable, bool upstream,
                   struct dt_stage_cost *out)
{
    const uint16_t *class_of = c->class_of[module];
    struct block_times t;
    bool above = upstream;

    memset(out, 0, sizeof(*out));
    memset(&t, 0, sizeof(t));
    for (int b = first; b < first + n;) {
        bool trained = !trainable || trainable[b];
        int end = b + 1;
        double k, wait, wait_fwd;

        /* a run of identical blocks in the same state is costed once */
        while (end < first + n && class_of[end] == class_of[b] &&
               (!trainable || !!trainable[end] == trained) && (above || !trained))
            end++;
        k = end - b;
        cost_block(c, module, class_of[b], shard, work, &t);
        dt_time_add(&out->fwd, &t.fwd, k);
        if (above || trained)
            dt_time_add(&out->dgrad, &t.recompute, k);
        if (above)
            dt_time_add(&out->dgrad, &t.dgrad, k);
        if (trained)
            dt_time_add(&out->wgrad, &t.wgrad, k);
        if (trained && !above)
            dt_time_add(&out->wgrad, &t.wgrad_only, k);
        if (c->opt.dispatch_ns > 0) {
            wait = cost_host_wait(c, &t, above, trained, &wait_fwd);
            add_wait(&out->fwd, k * wait_fwd);
            add_wait(above ? &out->dgrad : &out->wgrad, k * (wait - wait_fwd));
        }
        above |= trained;
        b = end;
    }
}

/* Digest of the trainable pattern over the range; 0 = all trained. */
static uint64_t pattern(const unsigned char *trainable, int first, int n)
{
    uint64_t h = 0x6a09e667f3bcc909ULL, word, all = 0x0101010101010101ULL;
    const unsigned char *p = trainable + first;
    bool every = true;

    while (n >= 8) {
        memcpy(&word, p, 8);
        every &= word == all;
        h = cost_mix(h, word);
        p += 8;
        n -= 8;
    }
    word = all;
    for (int i = 0; i < n; i++)
        ((unsigned char *)&word)[i] = p[i];
    every &= word == all;
    h = cost_mix(h, word);
    return every ? 0 : h | 1;
}

struct dt_stage_ns dt_cost_stage_ns(struct dt_cost *c, int module, int first, int n,
                                    const struct dt_shard *shard, const struct dt_work *work,
                                    const unsigned char *trainable, bool upstream)
{
    struct stage_key key;
    struct dt_stage_cost full;
    struct stage_entry *e;
    uint64_t h;

    if (work->n <= 0 || work->tokens <= 0 || n <= 0)
        return (struct dt_stage_ns){0, 0};
    key.flags = trainable ? pattern(trainable, first, n) : 0;
    key.work = *work;
    key.shard = cost_shard_key(shard);
    key.module = module;
    key.first = first;
    key.n = n;
    key.upstream = upstream;
    h = cost_mix(key.flags,
                 (uint64_t)module << 48 | (uint64_t)first << 24 | (uint64_t)n << 1 | upstream);
    h = cost_mix(h, (uint64_t)work->tokens);
    h = cost_mix(h, (uint64_t)work->tokens_sq ^ (uint64_t)work->n << 44 ^
                        (uint64_t)work->tokens_max << 20);
    h = cost_mix(h, (uint64_t)key.shard.tp << 48 | (uint64_t)key.shard.cp << 32 |
                        (uint64_t)key.shard.ep << 16 | (uint64_t)key.shard.ip << 1 |
                        key.shard.seqpar);
    h |= 1;
    e = &c->stages[(h >> 11) & (STAGE_SLOTS - 1)];
    if (e->hash == h && !memcmp(&e->key, &key, sizeof(key)))
        return e->ns;
    dt_cost_stage(c, module, first, n, shard, work, trainable, upstream, &full);
    e->hash = h;
    e->key = key;
    e->ns.fwd = full.fwd.ns;
    e->ns.bwd = full.dgrad.ns + full.wgrad.ns;
    return e->ns;
}
