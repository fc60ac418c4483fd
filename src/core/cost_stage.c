/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Stages: sums of block times under freezing, and the memo that the search and the compiler live
 * on. */
#include "core/cost_internal.h"

#include <math.h>
#include <string.h>

static void empty_block(struct block_times *t)
{
    memset(t, 0, sizeof(*t));
}

/* A backward kernel is issued by the autograd engine, a forward one by Python code around it; ratio
 * fitted on the single-node GPT table (doc/calibration.md). */
#define BACKWARD_CALL 0.26
/* Stretches of a stage in which the host is late and others in which the device is lie side by
 * side: the p-norm of both times, p of the same fit, instead of their maximum. */
#define HOST_NORM 3.0

/* The host issues `calls` kernels, the device needs t and others_ns for them. */
static void host_floor(const struct dt_cost *c, double calls, struct dt_time *t, double others_ns)
{
    double device = others_ns + t->ns, host = calls * c->opt.dispatch_ns;
    double rest = pow(pow(device, HOST_NORM) + pow(host, HOST_NORM), 1 / HOST_NORM) - device;

    if (rest > 0) {
        t->ns += rest;
        t->prov[DT_PROV_ASSUMED] += rest;
    }
}

void dt_cost_stage(struct dt_cost *c, int module, int first, int n, const struct dt_shard *shard,
                   const struct dt_work *work, const unsigned char *trainable, bool upstream,
                   struct dt_stage_cost *out)
{
    const uint16_t *class_of = c->class_of[module];
    struct block_times t;
    bool above = upstream;
    double calls = 0, calls_back = 0;

    memset(out, 0, sizeof(*out));
    empty_block(&t);
    for (int b = first; b < first + n;) {
        bool trained = !trainable || trainable[b];
        int end = b + 1;
        double k;

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
        calls += k * t.calls;
        calls_back +=
            k * ((above || trained ? t.calls_again : 0) +
                 BACKWARD_CALL * ((above ? t.calls_dgrad : 0) + (trained ? t.calls_wgrad : 0)));
        above |= trained;
        b = end;
    }
    if (c->opt.dispatch_ns > 0) {
        host_floor(c, calls, &out->fwd, 0);
        host_floor(c, calls_back, above ? &out->dgrad : &out->wgrad,
                   above ? out->wgrad.ns : out->dgrad.ns);
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
