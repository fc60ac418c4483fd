/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Stages: sums of block times under freezing, and the memo that the search and the compiler live
 * on. */
#include "core/cost/cost_internal.h"

#include <math.h>
#include <string.h>

/* The host issues the kernels of a block, forward and backward, while the device works through
 * those that it has: whoever is later sets the pace.  Nothing makes them wait for each other
 * between forward and backward, so both count together; stretches with a late host and stretches
 * with a late device lie side by side, hence a p-norm instead of the maximum.  Blocks are taken one
 * kind at a time: the host does not catch up during the head what it lost in the layers before. A
 * backward kernel is issued by the autograd engine, a forward one by Python code around it. */
double dt_cost_host_wait(const struct dt_cost *c, const struct dt_cost_block_times *t, bool above,
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

static void add_wait(struct dt_cost_time *t, double ns)
{
    t->ns += ns;
    t->prov[DT_PROV_ASSUMED] += ns;
}

bool dt_cost_stage_run(const struct dt_cost *c, int module, int end, const unsigned char *trainable,
                       int *at, bool *above, struct dt_cost_stage_run *run)
{
    const uint16_t *class_of = c->class_of[module];
    int b = *at, to = b + 1;
    bool trained;

    if (b >= end)
        return false;
    trained = !trainable || trainable[b];
    while (to < end && class_of[to] == class_of[b] && (!trainable || !!trainable[to] == trained) &&
           (*above || !trained))
        to++;
    *run = (struct dt_cost_stage_run){class_of[b], to - b, *above, trained,
                                      c->model->modules[module].blocks[b].kind == DT_BLOCK_LM_HEAD};
    *above |= trained;
    *at = to;
    return true;
}

void dt_cost_stage_add(const struct dt_cost *c, const struct dt_cost_stage_run *run,
                       const struct dt_cost_block_times *t, struct dt_cost_stage *out)
{
    bool above = run->above, trained = run->trained;
    double k = run->n, wait, wait_fwd;

    dt_cost_time_add(&out->fwd, &t->fwd, k);
    if (above || trained)
        dt_cost_time_add(&out->dgrad, &t->recompute, k);
    if (above)
        dt_cost_time_add(&out->dgrad, &t->dgrad, k);
    if (trained)
        dt_cost_time_add(&out->wgrad, &t->wgrad, k);
    if (trained && !above)
        dt_cost_time_add(&out->wgrad, &t->wgrad_only, k);
    if (trained && !run->head) {
        out->later_ns += k * (t->wgrad.ns + (above ? 0 : t->wgrad_only.ns));
        out->again_ns += k * t->recompute.ns;
    }
    if (c->opt.dispatch_ns > 0) {
        wait = dt_cost_host_wait(c, t, above, trained, &wait_fwd);
        add_wait(&out->fwd, k * wait_fwd);
        add_wait(above ? &out->dgrad : &out->wgrad, k * (wait - wait_fwd));
    }
}

void dt_cost_stage(struct dt_cost *c, int module, int first, int n,
                   const struct dt_block_shard *shard, const struct dt_work *work,
                   const unsigned char *trainable, bool upstream, struct dt_cost_stage *out)
{
    struct dt_cost_block_times t;
    struct dt_cost_stage_run run;
    bool above = upstream;
    int b = first;

    memset(out, 0, sizeof(*out));
    memset(&t, 0, sizeof(t));
    while (dt_cost_stage_run(c, module, first + n, trainable, &b, &above, &run)) {
        dt_cost_block(c, module, run.class_, shard, work, &t);
        dt_cost_stage_add(c, &run, &t, out);
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
        h = dt_hash_word(h, word);
        p += 8;
        n -= 8;
    }
    word = all;
    for (int i = 0; i < n; i++)
        ((unsigned char *)&word)[i] = p[i];
    every &= word == all;
    h = dt_hash_word(h, word);
    return every ? 0 : h | 1;
}

int dt_cost_stage_like(const struct dt_cost *c, int module, int first, int n)
{
    const uint16_t *alike = c->alike[module];
    int like = n > 0 ? c->class_of[module][first] : first;

    return n > 0 && alike[first] >= n && alike[like] >= n ? like : first;
}

void dt_cost_stage_key(const struct dt_cost *c, struct dt_cost_stage_key *key, int module,
                       int first, int n, const struct dt_block_shard *shard,
                       const unsigned char *trainable, bool upstream)
{
    key->flags = trainable ? pattern(trainable, first, n) : 0;
    key->shard = dt_cost_shard_key(shard);
    key->module = module;
    key->first = dt_cost_stage_like(c, module, first, n);
    key->n = n;
    key->upstream = upstream;
}

uint64_t dt_cost_stage_hash(const struct dt_cost_stage_key *key)
{
    const struct dt_work *work = &key->work;
    uint64_t h;

    h = dt_hash_word(key->flags ^ key->shard.ahead,
                     (uint64_t)key->module << 48 | (uint64_t)key->first << 24 |
                         (uint64_t)key->n << 1 | (uint64_t)key->upstream);
    h = dt_hash_word(h, (uint64_t)work->tokens);
    h = dt_hash_word(h, (uint64_t)work->tokens_sq ^ (uint64_t)work->n << 44 ^
                            (uint64_t)work->tokens_max << 20);
    h = dt_hash_word(h, (uint64_t)key->shard.tp << 48 | (uint64_t)key->shard.cp << 32 |
                            (uint64_t)key->shard.ep << 16 | (uint64_t)key->shard.ip << 3 |
                            key->shard.recompute << 1 | key->shard.seqpar);
    return h | 1;
}

struct dt_cost_stage_ns dt_cost_stage_ns(struct dt_cost *c, int module, int first, int n,
                                         const struct dt_block_shard *shard,
                                         const struct dt_work *work, const unsigned char *trainable,
                                         bool upstream)
{
    struct dt_cost_stage_key key;
    struct dt_cost_stage_ns ns;
    struct dt_cost_stage full;
    const struct dt_cost_stage_entry *e;
    uint64_t h;

    if (work->n <= 0 || work->tokens <= 0 || n <= 0)
        return (struct dt_cost_stage_ns){0};
    dt_cost_stage_key(c, &key, module, first, n, shard, trainable, upstream);
    key.work = *work;
    h = dt_cost_stage_hash(&key);
    e = dt_memo_at(&c->stages, h >> DT_COST_STAGE_SHIFT);
    if (dt_cost_stage_known(e, &key, h))
        return e->ns;
    if (!dt_cost_stages_ns(c, module, first, n, shard, work, 1, trainable, upstream, &ns)) {
        /* no memory for sheets */
        dt_cost_stage(c, module, first, n, shard, work, trainable, upstream, &full);
        ns = (struct dt_cost_stage_ns){full.fwd.ns, full.dgrad.ns + full.wgrad.ns, full.later_ns,
                                       full.again_ns};
    }
    return ns;
}
