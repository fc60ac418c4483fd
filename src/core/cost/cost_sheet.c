/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A stage's time for many works.  Samples of a large batch are all different, but most of what they
 * ask for is not: of a transformer block only attention looks at the lengths of the sequences, all
 * other kernels at the sum of tokens.
 *
 *   works not in the memo --by tokens--> groups
 *   group: a sheet for each kind of block: its kernels, and what each adds to the block's times
 *   work:  the kernels that vary with tokens_sq once more; the sums over blocks and stage
 *
 * The search asks for the same blocks in stages of other lengths: what a block's new sheet came to is remembered, once for all
 * that may be recomputed, as its kernels are the same.
 *
 * Sums are taken in the order of dt_cost_block and by dt_cost_stage's own function, so the results are
 * the same to the last bit. */
#include "core/cost/cost_internal.h"

#include "base/mem.h"

struct addend { /* what a kernel adds to its block's times, or the sum of several */
    double fwd, dgrad, wgrad, wgrad_only, recompute;
    double calls, calls_dgrad, calls_wgrad, calls_again;
};
struct
    dt_cost_sheet_sum { /* what a block's sheet came to, with selective recomputation unless it is measured as one */
    uint64_t a, b; /* what it is of: no two share both; 0, 0: free */
    struct addend of;
};
enum { SUMS_BITS = 16 }; /* of places: of a search on a thousand GPUs some thirty thousand differ */
struct sheet {           /* a kind of block */
    int class_;
    bool made, whole; /* whole: measured as one, so there are no kernels */
    bool measured;    /* and that is known before */
    bool by_items;
    int n_live, live[DT_MAX_KOPS]; /* kernels that vary with tokens_sq, and what depends on them */
    struct dt_work work;           /* that t is for */
    struct dt_cost_block_times t;  /* durations alone: nobody asks what they stand on */
    struct addend before;          /* sum of the kernels in front of the first that varies */
    struct addend part[DT_MAX_KOPS];
    struct dt_cost_block_kernels b;
};
enum { AHEAD = 8 }; /* works to fetch ahead: their order is not that of memory */

struct batch { /* a stage, as asked */
    struct dt_cost *c;
    bool remember; /* the memo holds a batch of this size */
    int module;
    struct dt_block_shard shard;
    int n_runs, n_sheets;
    struct dt_cost_stage_run *run;
    struct sheet **of_run, *sheet;
    bool by_items; /* of any block */
    struct dt_arena arena;
};

static void add(struct addend *a, const struct addend *b)
{
    a->fwd += b->fwd;
    a->dgrad += b->dgrad;
    a->wgrad += b->wgrad;
    a->wgrad_only += b->wgrad_only;
    a->recompute += b->recompute;
    a->calls += b->calls;
    a->calls_dgrad += b->calls_dgrad;
    a->calls_wgrad += b->calls_wgrad;
    a->calls_again += b->calls_again;
}

static void make_part(struct sheet *s, int i)
{
    struct dt_cost_block_times t;

    memset(&t, 0, sizeof(t));
    dt_cost_kernel_add(&s->b, i, &t);
    s->part[i] =
        (struct addend){t.fwd.ns, t.dgrad.ns,    t.wgrad.ns,    t.wgrad_only.ns, t.recompute.ns,
                        t.calls,  t.calls_dgrad, t.calls_wgrad, t.calls_again};
}

/* A block's times in its mode of recomputation, which decides nothing but what runs again. */
static void set_times(struct sheet *s, const struct addend *a, enum dt_block_recompute r)
{
    bool full = r == DT_RECOMPUTE_FULL && !s->whole, none = r == DT_RECOMPUTE_NONE && !s->whole;

    s->t.fwd.ns = a->fwd;
    s->t.dgrad.ns = a->dgrad;
    s->t.wgrad.ns = a->wgrad;
    s->t.wgrad_only.ns = a->wgrad_only;
    s->t.recompute.ns = full ? a->fwd : none ? 0 : a->recompute;
    s->t.calls = a->calls;
    s->t.calls_dgrad = a->calls_dgrad;
    s->t.calls_wgrad = a->calls_wgrad;
    s->t.calls_again = full ? a->calls : none ? 0 : a->calls_again;
}

static struct addend sum_of(const struct sheet *s)
{
    struct addend a = s->before;

    for (int i = s->n_live ? s->live[0] : s->b.n; i < s->b.n; i++)
        add(&a, &s->part[i]);
    return a;
}

/* A collective that is pipelined with a varying kernel varies too. */
static bool varies(const struct dt_cost_block_kernels *b, int i)
{
    int first, last;

    if (b->k[i].by_sq)
        return true;
    if (b->k[i].again && b->c->opt.cp_ring)
        return i + 1 < b->n && b->k[i + 1].by_sq;
    if (!dt_cost_is_collective((int)b->k[i].family) || !dt_cost_partner(b, i, &first, &last))
        return false;
    for (int k = first; k < last; k++)
        if (b->k[k].by_sq)
            return true;
    return false;
}

/* What it comes to goes to *sum. */
static void make_sheet(const struct batch *q, struct sheet *s, const struct dt_work *work,
                       struct addend *sum)
{
    const struct dt_cost_block_times *t = &s->t;

    s->made = true;
    s->n_live = 0;
    memset(&s->t, 0, sizeof(s->t));
    s->whole = dt_cost_whole_block(q->c, q->module, s->class_, &q->shard, work, &s->t);
    if (s->whole) {
        *sum = (struct addend){t->fwd.ns,        t->dgrad.ns,     t->wgrad.ns,
                               t->wgrad_only.ns, t->recompute.ns, t->calls,
                               t->calls_dgrad,   t->calls_wgrad,  t->calls_again};
        return;
    }
    dt_cost_block_kernels(q->c, q->module, s->class_, &q->shard, work, &s->b);
    s->b.recompute = DT_RECOMPUTE_SELECTIVE;
    memset(&s->before, 0, sizeof(s->before));
    for (int i = 0; i < s->b.n; i++) {
        make_part(s, i);
        if (varies(&s->b, i))
            s->live[s->n_live++] = i;
        if (s->n_live == 0)
            add(&s->before, &s->part[i]);
    }
    *sum = sum_of(s);
    set_times(s, sum, q->shard.recompute);
}

/* The kernel's surfaces: those it had, unless a dim that fixes them has changed. */
static void find_surfaces(struct sheet *s, int i, const int64_t *before)
{
    const struct dt_kop *k = &s->b.k[i];

    for (int d = 0; d < 6; d++) {
        if (k->d[d] == before[d] || !dt_cost_is_slow((int)k->family, d))
            continue;
        for (int p = 0; p < DT_PHASE_N; p++)
            s->b.s[i][p] = dt_cost_kernel_surface(s->b.c, k, (enum dt_kop_phase)p);
        return;
    }
}

static void change_sheet(const struct batch *q, struct sheet *s, const struct dt_work *work)
{
    int64_t d[DT_MAX_KOPS][6];
    struct addend sum;

    for (int l = 0; l < s->n_live; l++)
        memcpy(d[l], s->b.k[s->live[l]].d, sizeof(d[l]));
    dt_block_kops_again(s->b.block, &q->shard, work, s->b.k);
    for (int l = 0; l < s->n_live; l++) {
        if (!s->b.k[s->live[l]].by_sq)
            continue;
        find_surfaces(s, s->live[l], d[l]);
        dt_cost_kernel_times(&s->b, s->live[l]);
    }
    for (int l = 0; l < s->n_live; l++)
        make_part(s, s->live[l]);
    sum = sum_of(s);
    set_times(s, &sum, q->shard.recompute);
}

/* ---- sheets that were made before ---- */

bool dt_cost_sheet_sums_init(struct dt_memo *m)
{
    return dt_memo_init(m, SUMS_BITS, sizeof(struct dt_cost_sheet_sum));
}

static void mix(struct dt_cost_sheet_sum *x, uint64_t word)
{
    x->a = dt_hash_word(x->a, word);
    x->b = dt_hash_spread(x->b ^ word);
}

/* The hash of the sum's place, and in *of what it is of. */
static uint64_t hash_of(const struct batch *q, const struct sheet *s, const struct dt_work *work,
                        struct dt_cost_sheet_sum *of)
{
    const struct dt_block_shard *d = &q->shard;

    *of = (struct dt_cost_sheet_sum){.a = 1, .b = 2};
    mix(of, (uint64_t)q->module << 32 | (uint64_t)s->class_);
    mix(of, (uint64_t)d->tp << 32 | (uint64_t)d->cp);
    mix(of, (uint64_t)d->ahead << 48 | (uint64_t)d->ep << 32 | (uint64_t)d->ip);
    mix(of, (uint64_t)d->seqpar << 8 | (uint64_t)(s->measured ? d->recompute + 1 : 0));
    mix(of, (uint64_t)work->n);
    mix(of, (uint64_t)work->tokens);
    mix(of, (uint64_t)work->tokens_sq);
    mix(of, (uint64_t)work->tokens_max);
    return dt_hash_finish(of->a);
}

static void open_sheet(const struct batch *q, struct sheet *s, const struct dt_work *work)
{
    struct dt_cost_sheet_sum of, *e;
    uint64_t h = hash_of(q, s, work, &of);

    e = dt_memo_at(&q->c->sheet_sums, h);
    if (e && e->a == of.a && e->b == of.b) {
        s->made = false; /* there is nothing to be changed for another work */
        s->whole = s->measured;
        set_times(s, &e->of, q->shard.recompute);
        return;
    }
    make_sheet(q, s, work, &of.of);
    if (s->whole == s->measured && (e = dt_memo_place(&q->c->sheet_sums, h)) != NULL)
        *e = of;
}

static const struct dt_cost_block_times *block_of(const struct batch *q, struct sheet *s,
                                                  const struct dt_work *work)
{
    bool same =
        s->made && s->work.tokens == work->tokens && (!s->by_items || s->work.n == work->n) &&
        /* what was measured as one has no kernels to change: its place depends on all of the work */
        (!s->whole || memcmp(&s->work, work, sizeof(*work)) == 0) &&
        (q->shard.ip <= 1 || s->work.tokens_max == work->tokens_max);

    if (!same)
        open_sheet(q, s, work);
    else if (s->n_live > 0 && s->work.tokens_sq != work->tokens_sq)
        change_sheet(q, s, work);
    s->work = *work;
    return &s->t;
}

static struct dt_cost_stage_ns stage_of(const struct batch *q, const struct dt_work *work)
{
    struct dt_cost_stage sum;

    memset(&sum, 0, sizeof(sum));
    for (int r = 0; r < q->n_runs; r++)
        dt_cost_stage_add(q->c, &q->run[r], block_of(q, q->of_run[r], work), &sum);
    return (struct dt_cost_stage_ns){sum.fwd.ns, sum.dgrad.ns + sum.wgrad.ns, sum.later_ns,
                                     sum.again_ns};
}

/* ---- the stage as runs of blocks ---- */

static bool find_runs(struct batch *q, int first, int n, const unsigned char *trainable,
                      bool upstream)
{
    int at = first, *class_;

    q->run = DT_ARENA_NEW(&q->arena, struct dt_cost_stage_run, n);
    q->of_run = DT_ARENA_NEW(&q->arena, struct sheet *, n);
    class_ = DT_ARENA_NEW(&q->arena, int, n);
    if (!q->run || !q->of_run || !class_)
        return false;
    while (dt_cost_stage_run(q->c, q->module, first + n, trainable, &at, &upstream,
                             &q->run[q->n_runs])) {
        int k = 0, of = q->run[q->n_runs++].class_;

        while (k < q->n_sheets && class_[k] != of)
            k++;
        if (k == q->n_sheets)
            class_[q->n_sheets++] = of;
    }
    q->sheet = dt_arena_alloc_raw(&q->arena, (size_t)q->n_sheets, sizeof(*q->sheet)); /* large */
    if (!q->sheet)
        return false;
    for (int k = 0; k < q->n_sheets; k++) {
        q->sheet[k].class_ = class_[k];
        q->sheet[k].made = q->sheet[k].whole = false;
        memset(&q->sheet[k].t, 0, sizeof(q->sheet[k].t));
        q->sheet[k].by_items =
            dt_block_by_items(&q->c->model->modules[q->module].blocks[class_[k]]);
        q->by_items |= q->sheet[k].by_items;
        q->sheet[k].measured = dt_cost_block_measured(
            q->c, &q->c->model->modules[q->module].blocks[class_[k]], &q->shard);
    }
    for (int r = 0; r < q->n_runs; r++)
        for (int k = 0; k < q->n_sheets; k++)
            if (class_[k] == q->run[r].class_)
                q->of_run[r] = &q->sheet[k];
    return true;
}

/* ---- works in an order in which sheets last ---- */

static bool share_sheets(const struct batch *q, const struct dt_work *a, const struct dt_work *b)
{
    return a->tokens == b->tokens && (!q->by_items || a->n == b->n) &&
           (q->shard.ip <= 1 || a->tokens_max == b->tokens_max);
}

/* at[n], numbers of works, by group; groups and their members in the order of first sight. */
static bool group_works(struct batch *q, const struct dt_work *work, uint32_t *at, uint32_t n)
{
    uint32_t size = 16, n_groups = 0, sum = 0, *entry, *group, *fill, *sorted;

    while (size < 2 * n)
        size *= 2;
    entry = DT_ARENA_NEW(&q->arena, uint32_t, size); /* a group's first work + 1 */
    group = DT_ARENA_NEW(&q->arena, uint32_t, n);
    fill = DT_ARENA_NEW(&q->arena, uint32_t, n);
    sorted = DT_ARENA_NEW(&q->arena, uint32_t, n);
    if (!entry || !group || !fill || !sorted)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        const struct dt_work *w = &work[at[i]];
        uint64_t h = dt_hash_word((uint64_t)w->tokens, DT_HASH_GOLDEN);
        uint32_t k;

        if (q->by_items)
            h = dt_hash_word(h, (uint64_t)w->n);
        if (q->shard.ip > 1)
            h = dt_hash_word(h, (uint64_t)w->tokens_max);
        k = (uint32_t)(h >> 9) & (size - 1);
        while (entry[k] && !share_sheets(q, &work[at[entry[k] - 1]], w))
            k = (k + 1) & (size - 1);
        if (!entry[k]) {
            entry[k] = i + 1;
            group[i] = n_groups++;
        } else {
            group[i] = group[entry[k] - 1];
        }
        fill[group[i]]++;
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        uint32_t members = fill[g];

        fill[g] = sum;
        sum += members;
    }
    for (uint32_t i = 0; i < n; i++)
        sorted[fill[group[i]]++] = at[i];
    memcpy(at, sorted, n * sizeof(*at));
    return true;
}

/* What the memo knows; the rest goes to at[].  The number of those. */
static uint32_t ask_memo(const struct batch *q, struct dt_cost_stage_key *key,
                         const struct dt_work *work, size_t n, uint32_t *at,
                         struct dt_cost_stage_ns *out)
{
    uint32_t left = 0;

    for (size_t i = 0; i < n; i++) {
        const struct dt_cost_stage_entry *e;
        uint64_t h;

        out[i] = (struct dt_cost_stage_ns){0};
        if (work[i].n <= 0 || work[i].tokens <= 0 || key->n <= 0)
            continue;
        if (q->remember) {
            key->work = work[i];
            h = dt_cost_stage_hash(key);
            e = dt_memo_at(&q->c->stages, h >> DT_COST_STAGE_SHIFT);
            if (dt_cost_stage_known(e, key, h)) {
                out[i] = e->ns;
                continue;
            }
        }
        at[left++] = (uint32_t)i;
    }
    return left;
}

static struct dt_cost_stage_ns answer(struct batch *q, struct dt_cost_stage_key *key,
                                      const struct dt_work *w)
{
    struct dt_cost_stage_entry *e;
    uint64_t h;

    if (!q->remember)
        return stage_of(q, w);
    key->work = *w;
    h = dt_cost_stage_hash(key);
    e = dt_memo_place(&q->c->stages, h >> DT_COST_STAGE_SHIFT);
    if (!e) /* no memory for more answers */
        return stage_of(q, w);
    if (!dt_cost_stage_known(e, key, h)) /* an equal work may have been here meanwhile */
        *e = (struct dt_cost_stage_entry){h, *key, stage_of(q, w)};
    return e->ns;
}

static void answer_all(struct batch *q, struct dt_cost_stage_key *key, const struct dt_work *work,
                       const uint32_t *at, uint32_t n, struct dt_cost_stage_ns *out)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct dt_work *w = &work[at[i]];

        if (i + AHEAD < n) {
            __builtin_prefetch(&work[at[i + AHEAD]]);
            __builtin_prefetch(&out[at[i + AHEAD]], 1);
        }
        if (i > 0 && !memcmp(w, &work[at[i - 1]], sizeof(*w)))
            out[at[i]] = out[at[i - 1]];
        else
            out[at[i]] = answer(q, key, w);
    }
}

bool dt_cost_stages_ns(struct dt_cost *c, int module, int first, int n,
                       const struct dt_block_shard *shard, const struct dt_work *work,
                       size_t n_works, const unsigned char *trainable, bool upstream,
                       struct dt_cost_stage_ns *out)
{
    struct batch q = {
        .c = c, .module = module, .shard = *shard, .remember = n_works <= (size_t)1 << STAGE_BITS};
    uint32_t *at = n_works < UINT32_MAX / 4 ? dt_malloc((n_works + 1) * sizeof(*at)) : NULL;
    struct dt_cost_stage_key key;
    uint32_t left;
    bool ok;

    if (!at)
        return false;
    dt_cost_stage_key(c, &key, module, first, n, shard, trainable, upstream);
    left = ask_memo(&q, &key, work, n_works, at, out);
    ok = left == 0 ||
         (find_runs(&q, first, n, trainable, upstream) && group_works(&q, work, at, left));
    if (ok)
        answer_all(&q, &key, work, at, left, out);
    dt_arena_free(&q.arena);
    dt_free(at);
    return ok;
}
