/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/schedule/supply.h"

#include "base/heap.h"
#include "base/mem.h"
#include "core/model/samples_sound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const dt_sched_supply_names[DT_SCHED_SUPPLY_N + 1] = {"none", "colocated",
                                                                  "disaggregated", NULL};

const char *const dt_sched_supply_reads_names[DT_SCHED_READS_N + 1] = {"own", "slot", NULL};

/* Rates of a core: tests/bench/bench_data.c on an x86-64 machine, doc/calibration.md.  Text: English has about four
 * bytes a token (assumed). */
#define DECODE_PX_PER_S 210e6
#define RESIZE_PX_PER_S 400e6
#define TOKENIZE_BYTES_PER_S 54e6
#define SOUND_S_PER_S 90.0 /* of 44.1 kHz, stereo */
#define BYTES_PER_TOKEN 4.0
#define BYTES_PER_PIXEL 3.0 /* uint8 red, green, blue */
#define BYTES_PER_ID 4.0
#define BYTES_PER_VALUE 4.0 /* floats of spectrograms */
#define MEL_BINS 128        /* BEATs' (published), where the tokens of a clip are stated */

void dt_sched_supply_defaults(struct dt_sched_supply *s)
{
    *s = (struct dt_sched_supply){.prefetch = 1,
                                  .slow_factor = 1,
                                  .decode_px_per_s = DECODE_PX_PER_S,
                                  .resize_px_per_s = RESIZE_PX_PER_S,
                                  .tokenize_bytes_per_s = TOKENIZE_BYTES_PER_S,
                                  .sound_s_per_s = SOUND_S_PER_S};
}

static bool has_sound(const struct dt_model *m)
{
    for (int i = 0; i < m->n_modules; i++)
        if (m->modules[i].modality == DT_MODALITY_AUDIO)
            return true;
    return false;
}

enum dt_status dt_sched_supply_rates(const struct dt_profile *p, const struct dt_model *m,
                                     struct dt_error *err, struct dt_sched_supply *s)
{
    static const char *const what[DT_CPU_PREP_N] = {[DT_CPU_PREP_DECODE] = "decode",
                                                    [DT_CPU_PREP_RESIZE] = "resize",
                                                    [DT_CPU_PREP_TOKENIZE] = "tokenize",
                                                    [DT_CPU_PREP_SOUND] = "sound"};
    double rate[DT_CPU_PREP_N] = {0};

    for (int64_t i = p->first[DT_KOP_CPU_PREP][DT_PHASE_FWD];
         i < p->first[DT_KOP_CPU_PREP][DT_PHASE_FWD + 1]; i++) {
        const struct dt_profile_row *r = &p->rows[i];

        if (r->d[0] < DT_CPU_PREP_N && r->d[1] > 0)
            rate[r->d[0]] = 1e9 * (double)r->d[1] / r->median_ns;
    }
    for (int k = DT_CPU_PREP_DECODE; k < DT_CPU_PREP_N; k++)
        if (!(rate[k] > 0) && (k != DT_CPU_PREP_SOUND || has_sound(m)))
            return dt_error_set(err, DT_ERR_INPUT,
                                "the profile has no row of cpu_prep %d (%s); disttrain profile "
                                "--data JOB measures them",
                                k, what[k]);
    s->decode_px_per_s = rate[DT_CPU_PREP_DECODE];
    s->resize_px_per_s = rate[DT_CPU_PREP_RESIZE];
    s->tokenize_bytes_per_s = rate[DT_CPU_PREP_TOKENIZE];
    if (rate[DT_CPU_PREP_SOUND] > 0)
        s->sound_s_per_s = 1e-3 * rate[DT_CPU_PREP_SOUND];
    s->measured = true;
    return DT_OK;
}

/* ---- what there is to do ---- */

struct piece { /* an image or a text of a FETCH */
    int64_t need_ns;
    uint32_t op, at; /* at: its place within the op */
    int64_t core_ns;
    double bytes;
    int node, group; /* that fetches it; whose cores make it */
};
struct part { /* of a sample, for a module */
    double core_s, bytes;
};

static struct part sound_part(const struct dt_sched_supply *s, const struct dt_module *m,
                              const struct dt_sample_item *it)
{
    return (struct part){0.01 * it->w / s->sound_s_per_s,
                         BYTES_PER_VALUE * (double)dt_sample_sound_frames(it->w) *
                             (m->mel_bins > 0 ? m->mel_bins : MEL_BINS)};
}

static struct part image_part(const struct dt_sched_supply *s, const struct dt_module *m,
                              const struct dt_sample_item *it)
{
    double px = (double)it->w * it->h, out = m->resize ? (double)m->resize * m->resize : px;

    return (struct part){px / s->decode_px_per_s + (m->resize ? px / s->resize_px_per_s : 0),
                         BYTES_PER_PIXEL * out};
}

static struct part text_part(const struct dt_sched_supply *s, const struct dt_module *m,
                             const struct dt_samples *set, int64_t i)
{
    double tokens = m->role == DT_ROLE_LLM ? set->seq_tokens[i] : set->text_tokens[i];

    return (struct part){BYTES_PER_TOKEN * set->text_tokens[i] / s->tokenize_bytes_per_s,
                         BYTES_PER_ID * tokens};
}

/* Calls fn with each image or text of sample i for the module; `item`: only that one of its items, DT_NONE: all. */
typedef void part_fn(void *ctx, struct part part);
static void for_parts(const struct dt_sched_supply *s, const struct dt_module *m,
                      const struct dt_samples *set, int64_t i, uint32_t item, part_fn *fn,
                      void *ctx)
{
    unsigned flag = m->role == DT_ROLE_ENCODER ? DT_ITEM_ENCODE : DT_ITEM_GENERATE;
    uint32_t n = 0;

    i %= set->n;
    if (m->role == DT_ROLE_LLM || m->modality == DT_MODALITY_TEXT) {
        fn(ctx, text_part(s, m, set, i));
        return;
    }
    for (uint64_t k = set->item_first[i]; k < set->item_first[i + 1]; k++) {
        const struct dt_sample_item *it = &set->items[k];

        if (!(it->flags & flag) || it->kind != (unsigned)m->modality)
            continue;
        if (item == DT_NONE || item == n)
            fn(ctx, it->kind == DT_MODALITY_AUDIO ? sound_part(s, m, it) : image_part(s, m, it));
        n++;
    }
}

static void add_core_s(void *ctx, struct part part)
{
    *(double *)ctx += part.core_s;
}

double dt_sched_supply_core_s(const struct dt_sched_supply *s, const struct dt_model *m,
                              const struct dt_samples *set, int64_t first, int64_t n)
{
    double sum = 0;

    for (int64_t i = first; i < first + n; i++)
        for (int k = 0; k < m->n_modules; k++)
            for_parts(s, &m->modules[k], set, i, DT_NONE, add_core_s, &sum);
    return sum;
}

/* ---- the queues ---- */

struct free_core {
    int64_t ns; /* when it is free */
    int core;
};
#define SOONER(ctx, a, b) ((a).ns != (b).ns ? (a).ns < (b).ns : (a).core < (b).core)
DT_HEAP(cores, const void *, struct free_core, 2, SOONER, DT_HEAP_SET)

struct sent { /* a piece on its way */
    int64_t made_ns;
    size_t k;
};
struct supply {
    const struct dt_sched_supply *s;
    const struct dt_program *p;
    const struct dt_model *m;
    const struct dt_samples *set;
    const int64_t *dur_ns;
    int gpus_per_node, n_nodes, n_groups, cores_each;
    struct piece *piece;
    size_t n, cap;
    bool oom;
    struct piece proto;     /* of the FETCH at hand */
    struct free_core *core; /* [n_groups * cores_each], a heap for each group */
    struct sent *sent;      /* [n] */
    int64_t *link_ns;       /* [n_nodes] when the link into the node is free */
    int64_t *ready_ns;      /* [n_ops] of FETCHes: on the clock of all iterations */
    int64_t *before_ns;     /* [n_ops] releases of the iteration before */
    struct dt_arena arena;
};

static bool disaggregated(const struct supply *x)
{
    return x->s->mode == DT_SCHED_SUPPLY_DISAGGREGATED;
}

/* How many times as long as they should the cores of a group take. */
static double slowness(const struct supply *x, int group)
{
    return disaggregated(x) && group < x->s->slow_nodes ? x->s->slow_factor : 1;
}

static void add_piece(void *ctx, struct part part)
{
    struct supply *x = ctx;

    if (x->oom || dt_grow((void **)&x->piece, &x->cap, x->n + 1, sizeof *x->piece) != 0) {
        x->oom = true;
        return;
    }
    x->piece[x->n] = x->proto;
    x->piece[x->n].core_ns = llround(1e9 * part.core_s * slowness(x, x->proto.group));
    x->piece[x->n++].bytes = part.bytes;
    x->proto.at++;
}

static int by_need(const void *va, const void *vb)
{
    const struct piece *a = va, *b = vb;

    if (a->need_ns != b->need_ns)
        return a->need_ns < b->need_ns ? -1 : 1;
    if (a->op != b->op)
        return a->op < b->op ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* When the forward begins that a FETCH is for, with all input there. */
static int64_t need_ns(const struct dt_program *p, const struct dt_timeline *t, uint32_t fetch)
{
    const struct dt_lane *l = &p->lanes[p->ops[fetch].lane];

    for (uint32_t i = fetch + 1; i < l->first + l->n; i++)
        if (p->ops[i].kind == DT_OP_FORWARD && p->ops[i].mb == p->ops[fetch].mb)
            return t->begin_ns[i];
    return t->begin_ns[fetch];
}

/* All parts of a sample as one piece. */
static void add_sample(struct supply *x, const struct dt_module *m, int64_t sample)
{
    double core_s = 0;

    for_parts(x->s, m, x->set, sample, DT_NONE, add_core_s, &core_s);
    add_piece(x, (struct part){core_s, 0});
}

/* What all replicas do in the slot of FETCH i. */
static void pieces_of_slot(struct supply *x, uint32_t slot, int module)
{
    const struct dt_assignment_module *a = &x->p->assignment->m[module];

    for (uint32_t b = 0; b < a->mb_first[a->n_replicas]; b++)
        for (uint32_t k = a->mb[b].first; a->mb[b].slot == slot && k < a->mb[b].first + a->mb[b].n;
             k++)
            if (!a->items || k == a->mb[b].first || a->samples[k] != a->samples[k - 1])
                add_sample(x, &x->m->modules[module], a->samples[k]);
}

static void pieces_of(struct supply *x, const struct dt_timeline *t, uint32_t i)
{
    const struct dt_op *op = &x->p->ops[i];
    const struct dt_assignment_module *a = &x->p->assignment->m[op->module];
    const struct dt_microbatch *mb = &a->mb[a->mb_first[op->replica] + op->mb];

    int node = (int)(x->p->lanes[op->lane].first_gpu / (uint32_t)x->gpus_per_node);

    x->proto = (struct piece){.need_ns = need_ns(x->p, t, i), .op = i, .node = node, .group = node};
    if (x->s->reads == DT_SCHED_READS_SLOT) {
        pieces_of_slot(x, mb->slot, op->module);
        return;
    }
    for (uint32_t k = mb->first; k < mb->first + mb->n; k++) {
        if (disaggregated(x))
            x->proto.group = (int)(a->samples[k] % x->s->cpu_nodes);
        for_parts(x->s, &x->m->modules[op->module], x->set, a->samples[k],
                  a->items ? a->items[k] : DT_NONE, add_piece, x);
    }
}

static enum dt_status find_pieces(struct supply *x, const struct dt_timeline *t,
                                  struct dt_error *err)
{
    for (uint32_t i = 0; i < x->p->n_ops; i++)
        if (x->p->ops[i].kind == DT_OP_FETCH)
            pieces_of(x, t, i);
    if (x->oom)
        return dt_error_nomem(err, "pieces of input");
    for (size_t k = 0; k < x->n; k++)
        x->n_nodes = x->piece[k].node >= x->n_nodes ? x->piece[k].node + 1 : x->n_nodes;
    if (x->n > 0)
        qsort(x->piece, x->n, sizeof *x->piece, by_need);
    return DT_OK;
}

static enum dt_status find_cores(struct supply *x, struct dt_error *err)
{
    size_t n_ops = x->p->n_ops, cores;

    x->n_groups = disaggregated(x) ? x->s->cpu_nodes : x->n_nodes;
    x->cores_each = disaggregated(x) ? x->s->cores_per_cpu_node : x->s->cores_per_node;
    cores = (size_t)x->n_groups * (size_t)x->cores_each;
    x->core = DT_ARENA_NEW(&x->arena, struct free_core, cores + 1);
    x->sent = DT_ARENA_NEW(&x->arena, struct sent, x->n + 1);
    x->link_ns = DT_ARENA_NEW(&x->arena, int64_t, (size_t)x->n_nodes + 1);
    x->ready_ns = DT_ARENA_NEW(&x->arena, int64_t, n_ops + 1);
    x->before_ns = DT_ARENA_NEW(&x->arena, int64_t, n_ops + 1);
    if (!x->core || !x->sent || !x->link_ns || !x->ready_ns || !x->before_ns)
        return dt_error_nomem(err, "cores for input");
    for (size_t k = 0; k < cores; k++)
        x->core[k] = (struct free_core){INT64_MIN / 2, (int)(k % (size_t)x->cores_each)};
    for (int k = 0; k < x->n_nodes; k++)
        x->link_ns[k] = INT64_MIN / 2;
    return DT_OK;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int by_made(const void *va, const void *vb)
{
    const struct sent *a = va, *b = vb;

    if (a->made_ns != b->made_ns)
        return a->made_ns < b->made_ns ? -1 : 1;
    return a->k < b->k ? -1 : a->k > b->k;
}

/* What was made goes over the link of its node, what was made first before the rest: a CPU node that is late holds up no
 * other one. */
static void send_batch(struct supply *x)
{
    if (x->n > 0)
        qsort(x->sent, x->n, sizeof *x->sent, by_made);
    for (size_t i = 0; i < x->n; i++) {
        const struct piece *w = &x->piece[x->sent[i].k];
        int64_t *link = &x->link_ns[w->node];

        *link = later(x->sent[i].made_ns, *link) + llround(1e9 * w->bytes / x->s->bw_bytes_per_s);
        x->ready_ns[w->op] = later(x->ready_ns[w->op], *link + llround(1e9 * x->s->latency_s));
    }
}

/* Makes one batch, none of it before start_ns. */
static void make_batch(struct supply *x, int64_t start_ns)
{
    for (uint32_t i = 0; i < x->p->n_ops; i++)
        x->ready_ns[i] = INT64_MIN;
    for (size_t k = 0; k < x->n; k++) {
        const struct piece *w = &x->piece[k];
        struct free_core *heap = &x->core[(size_t)w->group * (size_t)x->cores_each];
        struct free_core c = cores_pop(NULL, heap, (uint32_t)x->cores_each);

        c.ns = later(c.ns, start_ns) + w->core_ns;
        cores_push(NULL, heap, (uint32_t)x->cores_each - 1, c);
        if (disaggregated(x))
            x->sent[k] = (struct sent){c.ns, k};
        else
            x->ready_ns[w->op] = later(x->ready_ns[w->op], c.ns);
    }
    if (disaggregated(x))
        send_batch(x);
}

/* What the busiest cores, or the busiest link, need for a batch. */
static double busiest_ns(const struct supply *x, struct dt_sched_supplied *out)
{
    double most = 0, *work = dt_calloc((size_t)(x->n_groups + x->n_nodes) + 1, sizeof *work);
    double *sent;

    if (!work)
        return NAN;
    sent = work + x->n_groups;
    for (size_t k = 0; k < x->n; k++) {
        const struct piece *w = &x->piece[k];

        out->core_s += 1e-9 * (double)w->core_ns / slowness(x, w->group);
        out->bytes += disaggregated(x) ? w->bytes : 0;
        work[w->group] += (double)w->core_ns / x->cores_each;
        sent[w->node] += 1 + w->bytes; /* above 0: the node fetches */
    }
    for (int k = 0; k < x->n_groups; k++)
        most = fmax(most, work[k]);
    for (int k = 0; k < x->n_nodes; k++) {
        out->nodes += sent[k] > 0;
        if (disaggregated(x))
            most = fmax(most, 1e9 * sent[k] / x->s->bw_bytes_per_s);
    }
    dt_free(work);
    out->cores = x->cores_each * (disaggregated(x) ? x->n_groups : out->nodes);
    return most;
}

/* Releases of an iteration that begins at begin_ns; false where they are those of the one before. */
static bool set_releases(struct supply *x, int64_t begin_ns, int64_t *release_ns)
{
    bool changed = false;

    for (uint32_t i = 0; i < x->p->n_ops; i++) {
        release_ns[i] = x->ready_ns[i] > begin_ns ? x->ready_ns[i] - begin_ns : 0;
        changed |= release_ns[i] != x->before_ns[i];
        x->before_ns[i] = release_ns[i];
    }
    return changed;
}

/* Iteration after iteration of the same batch.  Cores that are fast enough have `prefetch` batches ready to begin with,
 * slower ones none: so both begin near where they end up. */
static enum dt_status iterate(struct supply *x, int64_t free_ns, bool slow, struct dt_error *err,
                              int64_t *release_ns, struct dt_sched_supplied *out)
{
    enum { ITERATIONS_MAX = 64, RING = DT_SCHED_SUPPLY_PREFETCH_MAX + 1 };
    struct dt_program p = *x->p;
    int64_t begin[RING], now = 0, ns;
    int d = x->s->prefetch;

    p.release_ns = release_ns;
    for (int k = 0; k <= d; k++) /* begin[t % (d + 1)]; those before the first */
        begin[k] = slow || k == 0 ? 0 : -(int64_t)(d + 1 - k) * free_ns;
    for (int t = 0; t < ITERATIONS_MAX; t++) {
        begin[t % (d + 1)] = now;
        make_batch(x, begin[(t + 1) % (d + 1)]); /* of iteration t - d */
        out->iterations = t + 1;
        if (!set_releases(x, now, release_ns) && t > 0)
            break;
        DT_TRY(dt_timeline_makespan(&p, NULL, x->dur_ns, err, &ns));
        now += ns;
    }
    return DT_OK;
}

static enum dt_status release(struct supply *x, struct dt_error *err, int64_t *release_ns,
                              struct dt_sched_supplied *out)
{
    struct dt_program p = *x->p;
    struct dt_timeline t = {0};
    enum dt_status st;
    int64_t free_ns;
    double most;

    p.release_ns = NULL;
    st = dt_timeline_once(&p, x->dur_ns, err, &t);
    if (st == DT_OK)
        st = find_pieces(x, &t, err);
    free_ns = t.makespan_ns;
    dt_timeline_free(&t);
    DT_TRY(st);
    DT_TRY(find_cores(x, err));
    most = busiest_ns(x, out);
    if (isnan(most))
        return dt_error_nomem(err, "cores for input");
    return iterate(x, free_ns, most > (double)free_ns, err, release_ns, out);
}

enum dt_status dt_sched_supply_release(const struct dt_sched_supply *s, const struct dt_program *p,
                                       const struct dt_model *m, const struct dt_cluster *c,
                                       const struct dt_samples *set, const int64_t *dur_ns,
                                       struct dt_error *err, int64_t *release_ns,
                                       struct dt_sched_supplied *out)
{
    struct supply x = {
        .s = s, .p = p, .m = m, .set = set, .dur_ns = dur_ns, .gpus_per_node = c->gpus_per_node};
    struct dt_sched_supplied done = {0};
    enum dt_status st = release(&x, err, release_ns, &done);

    dt_arena_free(&x.arena);
    dt_free(x.piece);
    if (st == DT_OK)
        *out = done;
    return st;
}
