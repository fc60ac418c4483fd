/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The times of one block: its kernels, its tensor-parallel collectives, and what StepCCL hides of
 * them.
 *
 * StepCCL (DistTrain): an all-gather before a GEMM, or a reduce-scatter after one, is cut into c
 * chunks that run on the copy engines, so they take no SM, in a pipeline with the GEMM's chunks (r
 * = layout remap of one chunk):
 *
 *   copy engines  | g0 | g1 | g2 | g3 |
 *   SMs                | G0 r | G1 r | G2 r | G3 r |        total = g + (c-1) max(g, G+r) + (G+r)
 *
 * The exposed time is total - GEMM; a chunk pays the collective's latency in full and the GEMM's
 * efficiency at m/c rows; c in {1, 2, 4, 8} is chosen to minimise it.  c = 1 is no overlap.
 * Where c is stated, all pairs go in c chunks, as the executor runs them (exec/modules/tp_chunks.c): r
 * is paid in the backward, too.  On CPUs the cores do both, one after the other.
 *
 * Backward of an all-gather is a reduce-scatter after the same GEMM's input gradient, and the
 * reverse.  Under sequence parallelism the input of a column-parallel GEMM is gathered again for
 * its weight gradient; Megatron-LM overlaps that with the input-gradient GEMM, so only what sticks
 * out is charged, with StepCCL or without. */
#include "core/cost/cost_internal.h"

#include <string.h>

#define REMAP_HBM_EFFICIENCY 0.80 /* assumed: a strided copy */

/* A GEMM whose n or k is no multiple of 8 two-byte elements (16 bytes) loses the wide loads of the
 * tensor-core kernels (published: NVIDIA's guide to matrix multiplication: pad the vocabulary). */
#define ALIGN_ELEMENTS 8
#define TP_SKEW_MIN_BYTES 65536 /* below: scalars of the loss, one by one on ranks in step */

struct dt_cost_shard_key dt_cost_shard_key(const struct dt_block_shard *s)
{
    struct dt_cost_shard_key k;

    memset(&k, 0, sizeof(k));
    k.tp = (uint16_t)s->tp;
    k.cp = (uint16_t)s->cp;
    k.ep = (uint16_t)s->ep;
    k.ip = (uint16_t)s->ip;
    k.ahead = (uint16_t)s->ahead;
    k.seqpar = s->seqpar;
    k.recompute = (uint32_t)s->recompute;
    return k;
}

/* Surfaces of the block's kernels: the same from one microbatch to the next, as only fast dims
 * change, and for every mode of recomputation. */
static void find_surfaces(struct dt_cost_block_kernels *b, int module, int class_,
                          const struct dt_cost_shard_key *shard)
{
    struct dt_cost *c = b->c;
    uint64_t h = dt_hash_word((uint64_t)module << 32 | (uint64_t)class_, 0x2545f4914f6cdd1dULL);
    struct dt_cost_recipe *r;

    h = dt_hash_word(h, (uint64_t)shard->tp << 48 | (uint64_t)shard->cp << 32 |
                            (uint64_t)shard->ep << 16 | shard->ip);
    r = &c->recipes[(h >> 7) & (RECIPES - 1)];
    if (!r->used || r->module != module || r->class_ != class_ ||
        memcmp(&r->shard, shard, sizeof(*shard))) {
        memset(r, 0, sizeof(*r));
        r->used = true;
        r->module = module;
        r->class_ = class_;
        r->shard = *shard;
        for (int i = 0; i < DT_MAX_KOPS; i++)
            r->kernel[i].family = -1;
    }
    for (int i = 0; i < b->n; i++) {
        const struct dt_kop *k = &b->k[i];
        bool same = r->kernel[i].family == (int)k->family;

        if (dt_cost_is_collective((int)k->family))
            continue;
        for (int d = 0; same && d < 6; d++)
            same = !dt_cost_is_slow((int)k->family, d) || r->kernel[i].d[d] == k->d[d];
        if (!same) {
            r->kernel[i].family = (int)k->family;
            memcpy(r->kernel[i].d, k->d, sizeof(k->d));
            for (int p = 0; p < DT_PHASE_N; p++)
                r->kernel[i].s[p] = dt_cost_kernel_surface(c, k, (enum dt_kop_phase)p);
        }
        memcpy(b->s[i], r->kernel[i].s, sizeof(b->s[i]));
    }
}

static double gemm_as_trained(const struct dt_cost_tuning *t, const struct dt_kop *k)
{
    bool aligned = k->d[1] % ALIGN_ELEMENTS == 0 && k->d[2] % ALIGN_ELEMENTS == 0;

    return k->core ? 1 : t->gemm * (aligned ? 1 : t->misaligned);
}

static void as_trained(const struct dt_cost_block_kernels *b, int i, struct dt_cost_time *t)
{
    const struct dt_kop *k = &b->k[i];
    const struct dt_cost_tuning *tune = &b->c->tuning;
    double f = k->family == DT_KOP_GEMM  ? gemm_as_trained(tune, k)
               : k->family == DT_KOP_ADD ? (k->core ? tune->core : 1)
                                         : 1;

    if (!b->block->unfused)
        return;
    if (dt_cost_is_collective((int)k->family) && k->d[2] > TP_SKEW_MIN_BYTES) {
        struct dt_cost_time skew;

        dt_cost_time_set(&skew, tune->tp_skew_ns * (k->family == DT_KOP_ALL_REDUCE ? 1 : 0.5),
                         DT_PROV_ASSUMED);
        dt_cost_scale(b->c, (int)k->family, &skew);
        dt_cost_time_add(t, &skew, 1);
    } else if (f != 1) {
        t->ns *= f;
        for (int p = 0; p < DT_PROV_N; p++)
            t->prov[p] *= f;
    }
}

void dt_cost_kernel_times(struct dt_cost_block_kernels *b, int i)
{
    int phases = dt_cost_is_collective((int)b->k[i].family) ? 1 : DT_PHASE_N;

    for (int p = 0; p < DT_PHASE_N; p++) {
        struct dt_cost_time one;

        b->t[i][p] = (struct dt_cost_time){0};
        if (p >= phases)
            continue;
        dt_cost_kernel_one(b->c, &b->k[i], (enum dt_kop_phase)p, b->s[i][p], &one);
        as_trained(b, i, &one);
        dt_cost_time_add(&b->t[i][p], &one,
                         p != DT_PHASE_FWD && b->k[i].own_back ? b->k[i].back : b->k[i].count);
    }
}

/* The GEMMs that run right after an all-gather, or the one right before a reduce-scatter: [first,
 * last). */
bool dt_cost_partner(const struct dt_cost_block_kernels *b, int i, int *first, int *last)
{
    int before = i - 1;

    *first = *last = i;
    while (before >= 0 && b->k[before].wgrad_only) /* not of the forward's order */
        before--;
    if (b->k[i].family == DT_KOP_ALL_GATHER) {
        *first = *last = i + 1;
        while (*last < b->n && b->k[*last].family == DT_KOP_GEMM &&
               b->k[*last].count == b->k[i].count)
            ++*last;
    } else if (b->k[i].family == DT_KOP_REDUCE_SCATTER && before >= 0 &&
               b->k[before].family == DT_KOP_GEMM && b->k[before].count == b->k[i].count) {
        *first = before;
        *last = before + 1;
    }
    return *last > *first;
}

static int mirror(int family)
{
    return family == DT_KOP_ALL_GATHER       ? DT_KOP_REDUCE_SCATTER
           : family == DT_KOP_REDUCE_SCATTER ? DT_KOP_ALL_GATHER
                                             : family;
}

/* Bytes that a layout remap of the pair moves, read and written: either side of the GEMMs can
 * be put in order, the gathered one (whole width, once) or the sharded one (of every GEMM); the
 * smaller is taken.  The executor puts the sharded one in order. */
static double remap_bytes(const struct dt_cost_block_kernels *b, int coll, int first, int last)
{
    double elem = b->c->opt.fp32 ? 4 : 2, whole = b->k[coll].bytes / elem, sharded = 0;

    for (int i = first; i < last; i++)
        sharded += (double)b->k[i].d[0] *
                   (double)(b->k[coll].family == DT_KOP_ALL_GATHER ? b->k[i].d[1] : b->k[i].d[2]);
    return 2 * elem * (whole < sharded && !b->c->opt.stepccl_chunks ? whole : sharded);
}

/* Time of the partner GEMMs on m/c rows. */
static double chunk_gemm_ns(struct dt_cost_block_kernels *b, int first, int last,
                            enum dt_kop_phase phase, int chunks)
{
    double sum = 0;

    for (int i = first; i < last; i++) {
        struct dt_kop part = b->k[i];
        struct dt_cost_time t;

        part.d[0] = (part.d[0] + chunks - 1) / chunks;
        part.flops /= chunks;
        part.bytes =
            2.0 * (double)(part.d[0] * part.d[2] + part.d[2] * part.d[1] + part.d[0] * part.d[1]);
        dt_cost_kernel_one(b->c, &part, phase, b->s[i][phase], &t);
        as_trained(b, i, &t);
        sum += t.ns;
    }
    return sum;
}

static double remap_ns(const struct dt_cost *c, double bytes)
{
    return 1e9 * bytes / (c->cluster->hbm_bytes_per_s * REMAP_HBM_EFFICIENCY);
}

/* As the executor cuts them: no more than a member has rows, and a head's not at all. */
static int stated_chunks(const struct dt_cost_block_kernels *b, int i, int first)
{
    int64_t rows = b->k[first].d[0] / b->k[i].d[0];

    if (b->block->kind == DT_BLOCK_LM_HEAD)
        return 1;
    return rows < b->c->opt.stepccl_chunks ? (int)rows : b->c->opt.stepccl_chunks;
}

/* What is left of collective i in the phase when it is pipelined with its GEMMs; its full time if
 * it has none. */
static double exposed_ns(struct dt_cost_block_kernels *b, int i, enum dt_kop_phase phase,
                         const struct dt_cost_time *full, bool remap_hidden)
{
    struct dt_cost *c = b->c;
    int family = phase == DT_PHASE_FWD ? (int)b->k[i].family : mirror((int)b->k[i].family);
    double best = full->ns, count = b->k[i].count, gemm = 0, comm, alpha, remap;
    bool cpu = dt_cluster_is_cpu(c->cluster);
    int first, last, stated = c->opt.stepccl_chunks;

    if (!c->opt.stepccl || full->ns <= 0 || !dt_cost_partner(b, i, &first, &last) ||
        (cpu && !stated))
        return best;
    if (stated)
        stated = stated_chunks(b, i, first);
    comm = full->ns / count;
    alpha = dt_cost_collective_alpha_ns(c, family, (int)b->k[i].d[0]);
    if (alpha > comm)
        alpha = comm;
    for (int k = first; k < last; k++)
        gemm += b->t[k][phase].ns / count;
    remap = remap_hidden && !stated ? 0 : remap_bytes(b, i, first, last);
    for (int chunks = stated ? stated : 2; chunks > 1 && chunks <= (stated ? stated : 8);
         chunks *= 2) {
        double g = alpha + (comm - alpha) / chunks, step, total;

        step = chunk_gemm_ns(b, first, last, phase, chunks);
        step += remap_ns(c, remap / chunks);
        total = cpu ? chunks * (g + step) : g + (chunks - 1) * (g > step ? g : step) + step;
        if ((total - gemm) * count < best || stated)
            best = (total - gemm) * count;
    }
    return best > 0 ? best : 0;
}

/* Adds `ns` with the provenance mix of t. */
static void add_part(struct dt_cost_time *sum, const struct dt_cost_time *t, double ns)
{
    if (t->ns > 0)
        dt_cost_time_add(sum, t, ns / t->ns);
}

static void forward_collective(struct dt_cost_block_kernels *b, int i,
                               struct dt_cost_block_times *out)
{
    const struct dt_cost_time *t = &b->t[i][DT_PHASE_FWD];

    add_part(&out->fwd, t, exposed_ns(b, i, DT_PHASE_FWD, t, false));
}

/* How often a collective, or its mirror, runs in the backward. */
static double times_back(const struct dt_kop *k)
{
    return k->own_back ? k->back : k->count;
}

static void backward_collective(struct dt_cost_block_kernels *b, int i,
                                struct dt_cost_block_times *out)
{
    const struct dt_kop *k = &b->k[i];
    struct dt_kop rev = *k;
    struct dt_cost_time t = {0}, one;
    double gemm = 0, rest;
    int first, last;

    rev.family = (enum dt_kop_family)mirror((int)k->family);
    dt_cost_kernel_one(b->c, &rev, DT_PHASE_FWD, NULL, &one);
    as_trained(b, i, &one);
    dt_cost_time_add(&t, &one, times_back(k));
    if (k->again)
        dt_cost_time_add(&t, &b->t[i][DT_PHASE_FWD], 1);
    /* the remap runs beside the weight-gradient GEMM (recalled from the paper's StepCCL appendix)
     */
    add_part(&out->dgrad, &t, exposed_ns(b, i, DT_PHASE_DGRAD, &t, true));
    if (k->family ==
        DT_KOP_REDUCE_SCATTER) /* the weight gradient needs the gathered output gradient */
        dt_cost_time_add(&out->wgrad_only, &t, 1);
    if (k->family == DT_KOP_REDUCE_SCATTER && b->c->opt.stepccl && b->c->opt.stepccl_chunks &&
        dt_cost_partner(b, i, &first, &last) && stated_chunks(b, i, first) > 1)
        add_part(&out->wgrad, &t, k->count * remap_ns(b->c, 2 * k->bytes)); /* in order of rows */
    if (k->family != DT_KOP_ALL_GATHER || !dt_cost_partner(b, i, &first, &last))
        return;
    for (int g = first; g < last; g++)
        gemm += b->t[g][DT_PHASE_DGRAD].ns;
    rest = b->t[i][DT_PHASE_FWD].ns - gemm;
    add_part(&out->wgrad, &b->t[i][DT_PHASE_FWD], rest > 0 ? rest : 0);
    add_part(&out->wgrad_only, &b->t[i][DT_PHASE_FWD],
             b->t[i][DT_PHASE_FWD].ns - (rest > 0 ? rest : 0));
}

/* What keys and values take on a ring of ranks beyond attention, which works on those at hand meanwhile (Liu et al. 2023, ring
 * attention, arXiv 2310.01889).  A rank attends in as many steps as there are ranks, each to one rank's keys, and passes
 * them on in all but the last; backwards their gradients go with them, and one hop more, home.  The slowest hop is that
 * which leaves a node.  Processes of CPUs, which carry the bytes themselves, hide nothing. */
static void ring(const struct dt_cost_block_kernels *b, int i, struct dt_cost_block_times *out)
{
    const struct dt_kop *k = &b->k[i];
    double n = (double)k->d[0], forward = 0, backward = 0, bytes = (double)k->d[2] / n;
    double apart = k->d[3] > 1 ? (double)k->d[3] : 1;
    bool near = n * apart <= b->c->cluster->gpus_per_node;
    bool cpu = dt_cluster_is_cpu(b->c->cluster);
    struct dt_cost_time there, both, back = {0};

    for (int a = i + 1; !cpu && a < b->n && (a == i + 1 || b->k[a].core); a++) {
        forward += b->t[a][DT_PHASE_FWD].ns / n;
        backward += b->t[a][DT_PHASE_DGRAD].ns / n;
    }
    dt_cost_p2p(b->c, near, 1, bytes, &there, NULL, NULL);
    dt_cost_p2p(b->c, near, 1, 2 * bytes, &both, NULL, NULL);
    add_part(&out->fwd, &there, there.ns > forward ? (n - 1) * (there.ns - forward) : 0);
    add_part(&back, &both, both.ns > backward ? (n - 1) * (both.ns - backward) : 0);
    add_part(&back, &there, there.ns);
    dt_cost_time_add(&out->dgrad, &back, 1);
}

/* Kernels that the host issues: one per phase that there is, unless the list says more. */
static void count_calls(const struct dt_cost_block_kernels *b, int i,
                        struct dt_cost_block_times *out)
{
    const struct dt_kop *k = &b->k[i];
    double n = k->count > 1 ? k->count : 1, fwd = n, dgrad, wgrad = 0;
    enum dt_block_recompute r = b->recompute;

    if (k->own_calls) {
        fwd = k->calls;
        dgrad = k->wgrad_only ? 0 : k->calls_back;
        wgrad = k->wgrad_only ? k->calls_back : 0;
    } else if (dt_cost_is_collective((int)k->family)) {
        double each = 1 + b->c->tuning.call_per_rank * (double)k->d[0];

        fwd = k->count > 0 ? n * each : 0;
        dgrad = k->own_back ? k->back * each : fwd;
        dgrad *= k->again ? 2 : 1;
    } else {
        bool two = k->family == DT_KOP_GEMM && !k->has_weight; /* a gradient of each operand */

        dgrad = b->t[i][DT_PHASE_DGRAD].ns > 0 ? (two ? 2 * n : n) : 0;
        wgrad = b->t[i][DT_PHASE_WGRAD].ns > 0 ? n : 0;
    }
    out->calls += fwd;
    out->calls_dgrad += dgrad;
    out->calls_wgrad += wgrad;
    if (r == DT_RECOMPUTE_FULL || dt_kop_recomputed(r, b->block, k))
        out->calls_again += fwd;
}

/* What kernel i adds to each time of its block. */
void dt_cost_kernel_add(struct dt_cost_block_kernels *b, int i, struct dt_cost_block_times *out)
{
    const struct dt_kop *k = &b->k[i];
    enum dt_block_recompute r = b->recompute;

    count_calls(b, i, out);
    if (k->again && b->c->opt.cp_ring) {
        ring(b, i, out);
    } else if (dt_cost_is_collective((int)k->family)) {
        forward_collective(b, i, out);
        backward_collective(b, i, out);
    } else {
        dt_cost_time_add(&out->fwd, &b->t[i][DT_PHASE_FWD], 1);
        dt_cost_time_add(k->wgrad_only ? &out->wgrad : &out->dgrad, &b->t[i][DT_PHASE_DGRAD], 1);
        dt_cost_time_add(&out->wgrad, &b->t[i][DT_PHASE_WGRAD], 1);
        if (r == DT_RECOMPUTE_SELECTIVE && dt_kop_recomputed(r, b->block, k))
            dt_cost_time_add(&out->recompute, &b->t[i][DT_PHASE_FWD], 1);
    }
}

/* Blocks count messages in bf16. */
static void widen_collectives(struct dt_cost_block_kernels *b)
{
    for (int i = 0; i < b->n; i++)
        if (dt_cost_is_collective((int)b->k[i].family)) {
            b->k[i].d[2] *= 2;
            b->k[i].bytes *= 2;
        }
}

void dt_cost_block_kernels(struct dt_cost *c, int module, int class_,
                           const struct dt_block_shard *shard, const struct dt_work *work,
                           struct dt_cost_block_kernels *b)
{
    struct dt_cost_shard_key key = dt_cost_shard_key(shard);

    key.recompute = 0;
    b->c = c;
    b->recompute = shard->recompute;
    b->block = &c->model->modules[module].blocks[class_];
    b->n = dt_block_kops(b->block, shard, work, b->k);
    if (c->opt.fp32)
        widen_collectives(b);
    memset(b->s, 0, sizeof(b->s[0]) * (size_t)b->n);
    find_surfaces(b, module, class_, &key);
    for (int i = 0; i < b->n; i++)
        dt_cost_kernel_times(b, i);
}

int dt_cost_block_parts(struct dt_cost *c, int module, int class_,
                        const struct dt_block_shard *shard, const struct dt_work *work,
                        struct dt_kop *kop, struct dt_cost_block_times *part)
{
    struct dt_cost_block_kernels b;

    dt_cost_block_kernels(c, module, class_, shard, work, &b);
    for (int i = 0; i < b.n; i++) {
        kop[i] = b.k[i];
        if (b.k[i].again && c->opt.cp_ring) /* what it is, for people */
            kop[i].family = DT_KOP_SEND_RECV;
        memset(&part[i], 0, sizeof(part[i]));
        dt_cost_kernel_add(&b, i, &part[i]);
        if (shard->recompute == DT_RECOMPUTE_FULL)
            part[i].recompute = part[i].fwd;
    }
    return b.n;
}

void dt_cost_block(struct dt_cost *c, int module, int class_, const struct dt_block_shard *shard,
                   const struct dt_work *work, struct dt_cost_block_times *out)
{
    struct dt_cost_shard_key key = dt_cost_shard_key(shard);
    uint64_t h = dt_hash_word((uint64_t)module << 32 | (uint64_t)class_, DT_HASH_GOLDEN);
    struct dt_cost_block_entry *e;
    struct dt_cost_block_kernels b;

    h = dt_hash_word(h, (uint64_t)key.tp << 48 | (uint64_t)key.cp << 32 | (uint64_t)key.ep << 16 |
                            key.ip);
    h = dt_hash_word(h, ((uint64_t)work->tokens << 3 | key.recompute << 1 | key.seqpar) ^
                            (uint64_t)key.ahead << 48);
    h = dt_hash_word(h, (uint64_t)work->tokens_sq);
    h = dt_hash_word(h, (uint64_t)work->n << 40 ^ (uint64_t)work->tokens_max);
    h |= 1;
    e = &c->blocks[(h >> 9) & (BLOCK_ENTRIES - 1)];
    if (e->hash == h && e->module == module && e->class_ == class_ &&
        !memcmp(&e->shard, &key, sizeof(key)) && !memcmp(&e->work, work, sizeof(*work))) {
        *out = e->t;
        return;
    }
    memset(out, 0, sizeof(*out));
    if (!dt_cost_whole_block(c, module, class_, shard, work, out)) {
        dt_cost_block_kernels(c, module, class_, shard, work, &b);
        for (int i = 0; i < b.n; i++)
            dt_cost_kernel_add(&b, i, out);
        if (shard->recompute == DT_RECOMPUTE_FULL) /* collectives run again too */
            out->recompute = out->fwd;
    }
    e->hash = h;
    e->module = module;
    e->class_ = class_;
    e->shard = key;
    e->work = *work;
    e->t = *out;
}
