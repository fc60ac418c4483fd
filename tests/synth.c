/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "synth.h"

#include "base/mem.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

/* Ops are added in topological order on any lane, and sorted by lane at the end. */
struct builder {
    struct dt_op *ops;
    int64_t *ns, *alpha;
    size_t n, cap, ns_cap, alpha_cap;
    uint32_t *deps;
    size_t n_deps, deps_cap;
    struct dt_group *groups;
    size_t n_groups, groups_cap;
    uint32_t *group_ops;
    size_t n_group_ops, group_ops_cap;
    struct dt_lane *lanes;
    uint32_t (*last)[DT_RES_N]; /* per lane: last op of each resource */
    int n_lanes;
};

static void grow(void *p, size_t *cap, size_t need, size_t elem)
{
    if (dt_grow((void **)p, cap, need, elem))
        abort();
}

static void builder_init(struct builder *b, int n_lanes)
{
    memset(b, 0, sizeof *b);
    b->n_lanes = n_lanes;
    b->lanes = dt_calloc((size_t)n_lanes, sizeof *b->lanes);
    b->last = dt_malloc((size_t)n_lanes * sizeof *b->last);
    if (!b->lanes || !b->last)
        abort();
    memset(b->last, 0xff, (size_t)n_lanes * sizeof *b->last);
}

static uint32_t add_op(struct builder *b, int lane, enum dt_op_kind kind, int64_t ns)
{
    uint32_t id = (uint32_t)b->n;
    enum dt_op_resource res = dt_op_resource(kind);

    grow(&b->ops, &b->cap, b->n + 1, sizeof *b->ops);
    grow(&b->ns, &b->ns_cap, b->n + 1, sizeof *b->ns);
    grow(&b->alpha, &b->alpha_cap, b->n + 1, sizeof *b->alpha);
    b->ops[id] = (struct dt_op){
        .kind = (uint8_t)kind,
        .lane = (uint32_t)lane,
        .parts = 1,
        .mb = DT_NONE,
        .stage = b->lanes[lane].stage,
        .replica = b->lanes[lane].replica,
        .peer = DT_NONE,
        .dep = {b->last[lane][res], DT_NONE, DT_NONE},
    };
    b->ns[id] = ns;
    b->alpha[id] = 0;
    b->last[lane][res] = id;
    b->n++;
    return id;
}

/* Extra dependencies must follow the op at once: an op's list in deps[] is contiguous. */
static void add_dep(struct builder *b, uint32_t op, uint32_t dep)
{
    struct dt_op *o = &b->ops[op];

    for (int k = 1; k < 3; k++) {
        if (o->dep[k] == DT_NONE) {
            o->dep[k] = dep;
            return;
        }
    }
    if (o->more_n == 0)
        o->more_first = (uint32_t)b->n_deps;
    grow(&b->deps, &b->deps_cap, b->n_deps + 1, sizeof *b->deps);
    b->deps[b->n_deps++] = dep;
    o->more_n++;
}

static uint32_t add_send(struct builder *b, int lane, int64_t alpha, int64_t transfer,
                         uint64_t bytes)
{
    uint32_t s = add_op(b, lane, DT_OP_SEND, alpha + transfer);

    b->alpha[s] = alpha;
    b->ops[s].bytes = bytes;
    return s;
}

static uint32_t add_recv(struct builder *b, int lane, uint32_t send)
{
    uint32_t r = add_op(b, lane, DT_OP_RECV, 0);

    b->ops[r].peer = send;
    b->ops[r].bytes = b->ops[send].bytes;
    b->ops[send].peer = r;
    return r;
}

static uint32_t open_group(struct builder *b, enum dt_op_kind kind)
{
    grow(&b->groups, &b->groups_cap, b->n_groups + 1, sizeof *b->groups);
    b->groups[b->n_groups] = (struct dt_group){
        .first = (uint32_t)b->n_group_ops, .kind = (uint8_t)kind, .per_node = 1, .share = 1};
    return (uint32_t)b->n_groups++;
}

static uint32_t join_group(struct builder *b, uint32_t g, int lane, int64_t ns, uint64_t bytes)
{
    uint32_t op = add_op(b, lane, b->groups[g].kind, ns);

    b->ops[op].peer = g;
    b->ops[op].bytes = bytes;
    grow(&b->group_ops, &b->group_ops_cap, b->n_group_ops + 1, sizeof *b->group_ops);
    b->group_ops[b->n_group_ops++] = op;
    b->groups[g].n++;
    return op;
}

static void *own(struct dt_program *p, size_t n, size_t size)
{
    void *m = dt_arena_alloc(&p->arena, n + 1, size);

    if (!m)
        abort();
    return m;
}

static uint32_t mapped(const uint32_t *map, uint32_t op)
{
    return op == DT_NONE ? op : map[op];
}

/* Sort by lane (stable), renumber every reference, hand over. */
static void finish(struct builder *b, struct synth *out)
{
    struct dt_program *p = &out->p;

    memset(out, 0, sizeof *out);
    p->n_lanes = b->n_lanes;
    p->n_ops = (uint32_t)b->n;
    p->n_deps = (uint32_t)b->n_deps;
    p->n_groups = (uint32_t)b->n_groups;
    p->n_group_ops = (uint32_t)b->n_group_ops;
    p->lanes = own(p, (size_t)b->n_lanes, sizeof *p->lanes);
    p->ops = own(p, b->n, sizeof *p->ops);
    p->deps = own(p, b->n_deps, sizeof *p->deps);
    p->groups = own(p, b->n_groups, sizeof *p->groups);
    p->group_ops = own(p, b->n_group_ops, sizeof *p->group_ops);
    out->order = own(p, b->n, sizeof *out->order);
    out->dur.ns = own(p, b->n, sizeof *out->dur.ns);
    out->dur.alpha_ns = own(p, b->n, sizeof *out->dur.alpha_ns);
    out->dur.core_ns = own(p, b->n, sizeof *out->dur.core_ns);

    for (size_t i = 0; i < b->n; i++)
        b->lanes[b->ops[i].lane].n++;
    uint32_t first = 0, *at = own(p, (size_t)b->n_lanes, sizeof *at);
    for (int l = 0; l < b->n_lanes; l++) {
        b->lanes[l].first = at[l] = first;
        first += b->lanes[l].n;
    }
    memcpy(p->lanes, b->lanes, (size_t)b->n_lanes * sizeof *p->lanes);
    for (size_t i = 0; i < b->n; i++)
        out->order[i] = at[b->ops[i].lane]++;
    for (size_t i = 0; i < b->n; i++) {
        struct dt_op o = b->ops[i];
        for (int k = 0; k < 3; k++)
            o.dep[k] = mapped(out->order, o.dep[k]);
        if (o.kind == DT_OP_SEND || o.kind == DT_OP_RECV)
            o.peer = mapped(out->order, o.peer);
        p->ops[out->order[i]] = o;
        out->dur.ns[out->order[i]] = b->ns[i];
        out->dur.alpha_ns[out->order[i]] = b->alpha[i];
        out->dur.core_ns[out->order[i]] = b->ns[i] - b->alpha[i];
    }
    for (size_t i = 0; i < b->n_deps; i++)
        p->deps[i] = mapped(out->order, b->deps[i]);
    for (size_t i = 0; i < b->n_group_ops; i++)
        p->group_ops[i] = out->order[b->group_ops[i]];
    if (b->n_groups)
        memcpy(p->groups, b->groups, b->n_groups * sizeof *p->groups);

    dt_free(b->ops);
    dt_free(b->ns);
    dt_free(b->alpha);
    dt_free(b->deps);
    dt_free(b->groups);
    dt_free(b->group_ops);
    dt_free(b->lanes);
    dt_free(b->last);
}

void synth_free(struct synth *s)
{
    dt_arena_free(&s->p.arena);
    memset(s, 0, sizeof *s);
}

/* ---- 1F1B ---- */

struct pipe {
    const struct synth_pipeline *c;
    struct builder b;
    struct dt_rng rng;
    /* [replica][stage][mb]: the SEND of a forward / backward that has been added */
    uint32_t *sent[2];
    uint32_t *fwd_of; /* the forward ops themselves, for the last stage's backward */
    int *next;        /* per lane: position in its compute order */
};

static int64_t spread(struct pipe *x, int64_t ns)
{
    return x->c->spread > 0 ? (int64_t)((double)ns * (1 + x->c->spread * dt_rng_uniform(&x->rng)))
                            : ns;
}

/* The k-th compute op of a 1F1B lane: warm-up forwards, then one forward and one backward in turn,
 * then the rest. */
static bool is_forward(int k, int warm, int n, int *mb)
{
    if (k < warm) {
        *mb = k;
        return true;
    }
    int j = k - warm;
    if (j < 2 * (n - warm)) {
        *mb = j % 2 == 0 ? warm + j / 2 : j / 2;
        return j % 2 == 0;
    }
    *mb = n - warm + (j - 2 * (n - warm));
    return false;
}

/* Adds the lane's next op with its transfers if its input has been sent. */
static bool advance(struct pipe *x, int r, int s)
{
    const struct synth_pipeline *c = x->c;
    int n = c->microbatches, p = c->stages, lane = s * c->replicas + r, mb;
    int warm = p - 1 - s < n ? p - 1 - s : n;

    if (x->next[lane] == 2 * n)
        return false;
    bool fwd = is_forward(x->next[lane], warm, n, &mb);
    int from = fwd ? s - 1 : s + 1, to = fwd ? s + 1 : s - 1;
    size_t row = (size_t)r * (size_t)p, here = (row + (size_t)s) * (size_t)n + (size_t)mb;
    uint32_t in = DT_NONE;
    if (from >= 0 && from < p) {
        uint32_t send = x->sent[!fwd][(row + (size_t)from) * (size_t)n + (size_t)mb];
        if (send == DT_NONE)
            return false;
        in = add_recv(&x->b, lane, send);
        x->b.ops[in].flags = fwd ? 0 : DT_OPF_GRAD;
    }
    uint32_t op = add_op(&x->b, lane, fwd ? DT_OP_FORWARD : DT_OP_BACKWARD,
                         spread(x, fwd ? c->fwd_ns : c->bwd_ns));
    x->b.ops[op].mb = (uint32_t)mb;
    if (in != DT_NONE)
        add_dep(&x->b, op, in);
    if (fwd)
        x->fwd_of[here] = op;
    else
        add_dep(&x->b, op, x->fwd_of[here]);
    if (to >= 0 && to < p) {
        uint32_t out = add_send(&x->b, lane, c->alpha_ns, c->transfer_ns, c->bytes);
        x->b.ops[out].flags = fwd ? 0 : DT_OPF_GRAD;
        add_dep(&x->b, out, op);
        x->sent[!fwd][here] = out;
    }
    x->next[lane]++;
    return true;
}

static void add_tail(struct pipe *x)
{
    const struct synth_pipeline *c = x->c;
    struct builder *b = &x->b;
    uint32_t *sync = dt_malloc((size_t)b->n_lanes * sizeof *sync);

    if (!sync)
        abort();
    for (int s = 0; s < c->stages; s++) {
        uint32_t g = open_group(b, DT_OP_GRAD_SYNC);
        for (int r = 0; r < c->replicas; r++) {
            int lane = s * c->replicas + r;
            uint32_t last = b->last[lane][DT_RES_COMPUTE];
            sync[lane] = join_group(b, g, lane, c->sync_ns, c->sync_bytes);
            add_dep(b, sync[lane], last);
        }
    }
    uint32_t g = open_group(b, DT_OP_GRAD_NORM);
    for (int l = 0; l < b->n_lanes; l++) {
        uint32_t norm = join_group(b, g, l, 20000, 4);
        add_dep(b, norm, sync[l]);
    }
    for (int l = 0; l < b->n_lanes; l++) {
        uint32_t norm = b->last[l][DT_RES_COLL];
        add_dep(b, add_op(b, l, DT_OP_STEP, 1000000), norm);
    }
    dt_free(sync);
}

void synth_1f1b(const struct synth_pipeline *c, struct synth *out)
{
    struct pipe x = {.c = c};
    size_t cells = (size_t)c->stages * (size_t)c->replicas * (size_t)c->microbatches;

    dt_rng_init(&x.rng, c->seed, 77);
    builder_init(&x.b, c->stages * c->replicas);
    for (int l = 0; l < x.b.n_lanes; l++) {
        x.b.lanes[l].stage = (uint16_t)(l / c->replicas);
        x.b.lanes[l].replica = (uint16_t)(l % c->replicas);
        x.b.lanes[l].gpus = (uint16_t)c->lane_gpus;
        x.b.lanes[l].first_gpu = (uint32_t)(l * c->lane_gpus);
    }
    x.sent[0] = dt_malloc(cells * sizeof(uint32_t));
    x.sent[1] = dt_malloc(cells * sizeof(uint32_t));
    x.fwd_of = dt_malloc(cells * sizeof(uint32_t));
    x.next = dt_calloc((size_t)x.b.n_lanes, sizeof *x.next);
    if (!x.sent[0] || !x.sent[1] || !x.fwd_of || !x.next)
        abort();
    memset(x.sent[0], 0xff, cells * sizeof(uint32_t));
    memset(x.sent[1], 0xff, cells * sizeof(uint32_t));
    for (bool any = true; any;) {
        any = false;
        for (int r = 0; r < c->replicas; r++)
            for (int s = 0; s < c->stages; s++)
                while (advance(&x, r, s))
                    any = true;
    }
    add_tail(&x);
    finish(&x.b, out);
    dt_free(x.sent[0]);
    dt_free(x.sent[1]);
    dt_free(x.fwd_of);
    dt_free(x.next);
}

/* ---- random ---- */

static int64_t random_ns(struct dt_rng *r)
{
    switch (dt_rng_below(r, 4)) {
    case 0:
        return 0;
    case 1:
        return (int64_t)dt_rng_below(r, 4);
    case 2:
        return 1000 * (int64_t)dt_rng_below(r, 3);
    default:
        return (int64_t)dt_rng_below(r, 1000003);
    }
}

static void random_deps(struct builder *b, struct dt_rng *r, uint32_t op, uint32_t before)
{
    for (uint64_t k = dt_rng_below(r, 6); before > 0 && k > 2; k--)
        add_dep(b, op, (uint32_t)dt_rng_below(r, before));
}

static void random_group(struct builder *b, struct dt_rng *r)
{
    static const enum dt_op_kind kinds[3] = {DT_OP_GRAD_SYNC, DT_OP_PARAM_GATHER, DT_OP_GRAD_NORM};
    uint32_t before = (uint32_t)b->n, g = open_group(b, kinds[dt_rng_below(r, 3)]);
    uint64_t bytes = dt_rng_below(r, 2) * dt_rng_below(r, 1 << 26);
    int lane = (int)dt_rng_below(r, (uint64_t)b->n_lanes);

    do {
        random_deps(b, r, join_group(b, g, lane, random_ns(r), bytes), before);
        lane += 1 + (int)dt_rng_below(r, 3);
    } while (lane < b->n_lanes);
}

static void random_step(struct builder *b, struct dt_rng *r)
{
    static const enum dt_op_kind kinds[5] = {DT_OP_FORWARD, DT_OP_BACKWARD, DT_OP_WEIGHT_GRAD,
                                             DT_OP_STEP, DT_OP_FETCH};
    int lane = (int)dt_rng_below(r, (uint64_t)b->n_lanes);
    uint32_t before = (uint32_t)b->n;

    switch (dt_rng_below(r, 8)) {
    case 0:
        random_group(b, r);
        return;
    case 1:
    case 2:
    case 3: {
        int to = (int)dt_rng_below(r, (uint64_t)b->n_lanes);
        uint32_t send = add_send(b, lane, random_ns(r), random_ns(r), dt_rng_below(r, 1 << 26));
        random_deps(b, r, send, before);
        if (to == lane)
            to = (to + 1) % b->n_lanes;
        random_deps(b, r, add_recv(b, to, send), before);
        return;
    }
    default:
        random_deps(b, r, add_op(b, lane, kinds[dt_rng_below(r, 5)], random_ns(r)), before);
    }
}

void synth_random(uint64_t seed, int gpus, struct synth *out)
{
    static const int widths[4] = {1, 2, 4, 8};
    struct builder b;
    struct dt_rng r;
    int gpu = 0;

    dt_rng_init(&r, seed, 78);
    builder_init(&b, 2 + (int)dt_rng_below(&r, 11));
    for (int l = 0; l < b.n_lanes; l++) {
        int w = widths[dt_rng_below(&r, 4)];
        gpu = (gpu + w - 1) / w * w; /* lanes are aligned to their width */
        if (gpu + w > gpus)
            gpu = 0; /* wrap: colocated lanes */
        b.lanes[l].stage = (uint16_t)l;
        b.lanes[l].gpus = (uint16_t)w;
        b.lanes[l].first_gpu = (uint32_t)gpu;
        gpu += w;
    }
    for (uint64_t k = 1 + dt_rng_below(&r, 300); k > 0; k--)
        random_step(&b, &r);
    finish(&b, out);
}

void synth_release(uint64_t seed, struct synth *s)
{
    int64_t *release = DT_ARENA_NEW(&s->p.arena, int64_t, s->p.n_ops + 1), all = 1;
    struct dt_rng r;

    if (!release)
        abort();
    dt_rng_init(&r, seed, 79);
    for (uint32_t i = 0; i < s->p.n_ops; i++)
        all += s->dur.ns[i];
    for (uint32_t i = 0; i < s->p.n_ops; i++)
        if (s->p.ops[i].kind == DT_OP_FETCH)
            release[i] = (int64_t)dt_rng_below(&r, 4) * (all / 4) +
                         (int64_t)dt_rng_below(&r, 2) * (int64_t)dt_rng_below(&r, (uint64_t)all);
    s->p.release_ns = release;
}

/* ---- the rules, plainly ---- */

static int64_t end_of_deps(const struct dt_program *p, const struct dt_op *o, const int64_t *end)
{
    int64_t t = 0;

    for (int k = 0; k < 3; k++)
        if (o->dep[k] != DT_NONE && end[o->dep[k]] > t)
            t = end[o->dep[k]];
    for (uint32_t m = 0; m < o->more_n; m++)
        if (end[p->deps[o->more_first + m]] > t)
            t = end[p->deps[o->more_first + m]];
    return t;
}

void synth_reference(const struct synth *s, int64_t *begin, int64_t *end)
{
    const struct dt_program *p = &s->p;

    for (uint32_t k = 0; k < p->n_ops; k++) {
        uint32_t i = s->order[k];
        const struct dt_op *o = &p->ops[i];
        begin[i] = end_of_deps(p, o, end);
        end[i] = begin[i] + s->dur.ns[i];
        if (o->kind == DT_OP_FETCH && p->release_ns && begin[i] < p->release_ns[i])
            end[i] = p->release_ns[i] + s->dur.ns[i];
        if (o->kind == DT_OP_RECV) {
            begin[i] = begin[o->peer] > begin[i] ? begin[o->peer] : begin[i];
            end[i] = end[o->peer] > begin[i] ? end[o->peer] : begin[i];
        }
        if (dt_op_resource(o->kind) != DT_RES_COLL)
            continue;
        /* Members follow one another in the order of construction: the last one settles the group.
         */
        const struct dt_group *g = &p->groups[o->peer];
        if (p->group_ops[g->first + g->n - 1] != i)
            continue;
        int64_t b = 0, d = 0;
        for (uint32_t m = 0; m < g->n; m++) {
            uint32_t op = p->group_ops[g->first + m];
            b = begin[op] > b ? begin[op] : b;
            d = s->dur.ns[op] > d ? s->dur.ns[op] : d;
        }
        for (uint32_t m = 0; m < g->n; m++) {
            begin[p->group_ops[g->first + m]] = b;
            end[p->group_ops[g->first + m]] = b + d;
        }
    }
}

uint64_t synth_seed(uint64_t standard)
{
    const char *s = getenv("DT_TEST_SEED");

    return s && *s ? strtoull(s, NULL, 0) : standard;
}
