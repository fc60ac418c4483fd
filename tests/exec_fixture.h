/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A small world for tests of the executor: models from text, random sequences, one iteration at a
 * time. */
#ifndef DT_TESTS_EXEC_FIXTURE_H
#define DT_TESTS_EXEC_FIXTURE_H

#include "base/mem.h"
#include "core/cost/memory.h"
#include "base/rng.h"
#include "core/schedule/schedule.h"
#include "exec/program/execute.h"
#include "fake_device.h"
#include "plan_modes.h"
#include "test_util.h"

#include <pthread.h>
#include <stdio.h>

enum { EF_SEQS_MAX = 32, EF_SEQ_LEN = 48, EF_SIDE = 8 };

struct exec_fixture {
    struct dt_doc *doc;
    struct dt_model *model;
    struct dt_cluster cluster;
    struct dt_device *dev;
    bool shared; /* with others, who close it */
    pthread_barrier_t
        *together; /* before anything is freed, all of those who share it have come to an end */
    struct dt_plan plan;
    struct dt_diffusion diffusion;
    struct dt_sequence *seqs[EF_SEQS_MAX];
    int n_seqs;
    struct dt_exec *x;
    struct dt_transport *transport; /* NULL = alone */
    struct dt_transport *data;      /* NULL = staged over it, or as `over` says */
    enum dt_transport_over over;
    double limit_s;
    enum dt_status expected;   /* of a step; not DT_OK: its result is empty */
    struct dt_profile profile; /* empty */
    struct dt_cost *cost;      /* NULL: the order of samples stays, and turns know no times */
    struct dt_exec_options opt;
    struct dt_timeline timeline;
    const struct dt_device *host; /* of what is offloaded; NULL: the executor opens one */
    double dropout;
    enum dt_dtype dtype;
    bool no_clip; /* of gradients */
    dt_exec_accept_fn *accept;
    uint64_t sends_bytes, gathers_bytes; /* of the last program, all lanes */
    int64_t deferred;                    /* microbatches of Entrain's, of all steps */
    int64_t moved;                       /* ops of guests that lie in bubbles, of all steps */
    double compute_s, waited_s;          /* of the last step */
    /* Of its reductions of gradients, those that began before their lane's last backward had ended;
     * of its gathers of parameters, those that ended after its first forward had begun. */
    int syncs, syncs_under, gathers, gathers_under;
    struct dt_error err;
};

#define EF_LLM "llm: {kind: llm, layers: 3, hidden: 32, ffn: 48, heads: 4, kv_heads: 2, vocab: 61}"
#define EF_ENCODER                                                                                 \
    "encoder: {kind: encoder, layers: 2, hidden: 24, ffn: 40, heads: 2, patch: 4, positions: 16}"
#define EF_UNET                                                                                    \
    "generator: {kind: unet, channels: [8, 16], attention: [false, true], head_dim: 8, "           \
    "res_blocks: 1, in_channels: 1, out_channels: 1, context_dim: 24, context_len: 3, "            \
    "latent_scale: 1, resize: 8}"

static inline void ef_model(struct exec_fixture *f, const char *modules)
{
    char text[2048];

    snprintf(text, sizeof(text), "{name: small, modules: {%s}}", modules);
    dt_assert_ok(dt_doc_parse("model", text, strlen(text), &f->err, &f->doc), f->err);
    dt_assert_ok(dt_model_read(dt_doc_root(f->doc), &f->err, &f->model), f->err);
}

/* threads 0 = as many as there are. */
static inline void ef_init(struct exec_fixture *f, const char *modules, int threads)
{
    struct dt_device_options o = {.threads = threads, .no_bf16 = true};

    memset(f, 0, sizeof(*f));
    ef_model(f, modules);
    f->cluster = (struct dt_cluster){.nodes = 1,
                                     .gpus_per_node = 64,
                                     .peak_flops = 1e11,
                                     .mem_bytes = 1e12,
                                     .hbm_bytes_per_s = 1e10,
                                     .nvlink_bytes_per_s = 1e9,
                                     .nvlink_latency_s = 1e-6,
                                     .nics_per_node = 1,
                                     .nic_bytes_per_s = 1e9,
                                     .nic_efficiency = 1,
                                     .nic_latency_s = 1e-6,
                                     .host_bytes_per_s = 1e9,
                                     .host_mem_bytes_per_s = 1e10,
                                     .fabric_oversubscription = 1};
    snprintf(f->cluster.name, sizeof(f->cluster.name), "here");
    dt_assert_ok(dt_test_device_open(&o, &f->err, &f->dev), f->err);
    dt_assert_ok(dt_diffusion_init(&f->diffusion, DT_NOISE_COSINE, 1000, &f->err), f->err);
}

/* A picture to read is `width` pixels wide. */
static inline void ef_doc(struct dt_sequence *s, struct dt_rng *r, enum dt_sequence_task task,
                          int text, int width, int vocab)
{
    struct dt_sequence_doc *d = &s->docs[s->n_docs];
    int at = s->n_tokens, w = task == DT_TASK_CAPTION ? width : EF_SIDE;
    int patches = w / 4 * (EF_SIDE / 4);

    *d = (struct dt_sequence_doc){.task = task, .first = (uint32_t)at};
    s->ids[at++] = 1;
    if (task != DT_TASK_TEXT) {
        struct dt_sequence_item *it = &s->items[s->n_items++];

        *it = (struct dt_sequence_item){.w = w, .h = EF_SIDE, .doc = (uint32_t)s->n_docs};
        it->flags = task == DT_TASK_CAPTION ? DT_ITEM_ENCODE : DT_ITEM_GENERATE;
        uint8_t *px = it->px = dt_malloc((size_t)w * EF_SIDE * 3);
        ck_assert_ptr_nonnull(px);
        for (int i = 0; i < w * EF_SIDE; i++)
            memset(px + 3 * i, (int)dt_rng_below(r, 256), 3);
        if (task == DT_TASK_CAPTION) {
            it->first = (uint32_t)at;
            it->n = (uint32_t)patches;
            for (int i = 0; i < patches; i++)
                s->ids[at++] = 0;
        }
    }
    for (int i = 0; i < text; i++)
        s->ids[at++] = 3 + (int)dt_rng_below(r, (uint64_t)vocab - 3);
    s->ids[at++] = 2;
    d->n = (uint32_t)(at - s->n_tokens);
    for (int i = s->n_tokens; i < at; i++) {
        s->doc_of[i] = s->n_docs;
        s->labels[i] =
            i + 1 < at && i >= at - 1 - text - (task == DT_TASK_CAPTION) ? s->ids[i + 1] : -1;
    }
    s->n_tokens = at;
    s->n_docs++;
}

/* The pictures to read become sounds of as many patches: one row of them, from 2 to 7 frames. */
static inline void ef_hear(const struct dt_module *m, struct dt_sequence *s, struct dt_rng *r)
{
    for (int i = 0; i < s->n_items && m->mel_bins > 0; i++) {
        struct dt_sequence_item *it = &s->items[i];
        float *x;

        if (!(it->flags & DT_ITEM_ENCODE))
            continue;
        dt_free(it->px);
        it->sound = true;
        it->w = m->mel_bins;
        it->h = 2 + (int)dt_rng_below(r, 6);
        it->px = x = dt_malloc(dt_sequence_bytes(true, it->w, it->h));
        ck_assert_ptr_nonnull(x);
        for (int k = 0; k < it->w * it->h; k++)
            x[k] = (float)dt_rng_normal(r);
    }
}

/* What sequences hold: all kinds; text; no picture to draw; none to see; pictures in one only. */
/* EF_PICTURED: each has a picture to read, then text of any length */
enum ef_data { EF_MIXED, EF_TEXT, EF_CAPTIONS, EF_DRAWINGS, EF_ONE, EF_PICTURED };

static inline enum dt_sequence_task ef_task(const struct exec_fixture *f, struct dt_rng *r,
                                            enum ef_data data, int k)
{
    bool encodes = f->model->llm > 0 && data != EF_TEXT && data != EF_DRAWINGS;
    bool draws = f->model->llm + 1 < f->model->n_modules && data != EF_TEXT && data != EF_CAPTIONS;
    enum dt_sequence_task task = DT_TASK_TEXT;

    if (data == EF_ONE ? k == 4 : k % 3 != 2 && dt_rng_below(r, 4) > 0)
        task = dt_rng_below(r, 2) ? DT_TASK_CAPTION : DT_TASK_GENERATE;
    if ((task == DT_TASK_CAPTION && !encodes) || (task == DT_TASK_GENERATE && !draws))
        task = DT_TASK_TEXT;
    return task;
}

/* Where layers attend to windows, pictures are of more than one, and not as wide as whole ones: else none would change
 * the order of patches.  As many tokens remain for text as a sequence has room for. */
static inline int ef_width(const struct dt_module *m)
{
    for (int b = 0; b < m->n_blocks; b++)
        if (m->blocks[b].window > 0)
            return EF_SIDE + 4;
    return EF_SIDE;
}

/* Sequences of random documents; of EF_MIXED every third one is text only. */
static inline void ef_seqs_of(struct exec_fixture *f, int n, uint64_t seed, enum ef_data data)
{
    struct dt_rng r;
    int vocab = f->model->modules[f->model->llm].blocks[0].vocab;
    int width = ef_width(&f->model->modules[0]);
    uint64_t text = width > EF_SIDE ? 7 : 9;

    dt_rng_init(&r, seed, 3);
    for (int k = 0; k < n; k++) {
        struct dt_sequence *s = dt_calloc(1, sizeof(*s));

        ck_assert_ptr_nonnull(s);
        s->index = k;
        s->seq_len = EF_SEQ_LEN;
        s->ids = dt_calloc(3 * EF_SEQ_LEN, sizeof(int32_t)); /* one block, as the loader's */
        ck_assert_ptr_nonnull(s->ids);
        s->labels = s->ids + EF_SEQ_LEN;
        s->doc_of = s->ids + 2 * EF_SEQ_LEN;
        s->docs = dt_calloc(8, sizeof(*s->docs));
        s->items = dt_calloc(8, sizeof(*s->items));
        for (int d = 0, docs = 1 + (int)dt_rng_below(&r, 3); d < docs; d++) {
            enum dt_sequence_task task = data != EF_PICTURED ? ef_task(f, &r, data, k)
                                         : d == 0            ? DT_TASK_CAPTION
                                                             : DT_TASK_TEXT;

            ef_doc(s, &r, task, 1 + (int)dt_rng_below(&r, text), width, vocab);
        }
        s->text_tokens = s->n_tokens;
        ef_hear(&f->model->modules[0], s, &r);
        f->seqs[k] = s;
    }
    f->n_seqs = n;
}

static inline void ef_seqs(struct exec_fixture *f, int n, uint64_t seed)
{
    ef_seqs_of(f, n, seed, EF_MIXED);
}

struct ef_layout {
    int pp, dp, vpp; /* vpp 0 = 1 */
};
static inline void ef_plan(struct exec_fixture *f, int microbatch, const struct ef_layout *l,
                           bool colocated, enum dt_pipe_schedule schedule)
{
    struct dt_plan_policy y = {.global_batch = f->n_seqs,
                               .microbatch = microbatch,
                               .seq_len = EF_SEQ_LEN,
                               .schedule = schedule,
                               .overlap_grad = true,
                               .overlap_param = true,
                               .fp32 = true};
    double cost[64];

    for (int i = 0; i < 64; i++)
        cost[i] = 1;
    dt_plan_init(&f->plan, f->model, &y);
    fx_modes(&f->plan, DT_RECOMPUTE_NONE, 1);
    f->plan.colocated = colocated;
    for (int m = 0; m < f->model->n_modules; m++) {
        int vpp = l[m].vpp > 0 ? l[m].vpp : 1;

        f->plan.modules[m].layout = (struct dt_plan_layout){1, 1, 1, l[m].pp, vpp, l[m].dp, 1, 0};
        dt_plan_split_blocks(cost, f->model->modules[m].n_blocks, l[m].pp * vpp,
                             f->plan.modules[m].split);
    }
    dt_assert_ok(dt_plan_place(&f->plan, &f->cluster, &f->err), f->err);
    dt_assert_ok(dt_plan_validate(&f->plan, f->model, &f->cluster, &f->err), f->err);
}

/* What FLOPs tell. */
static inline void ef_cost(struct exec_fixture *f)
{
    struct dt_cost_options o = {.allow_analytical = true};

    dt_assert_ok(dt_cost_new(f->model, &f->cluster, &f->profile, &o, &f->err, &f->cost), f->err);
}

/* Orders by cost. */
static inline void ef_reorder(struct exec_fixture *f)
{
    f->plan.policy.intra_reorder = f->plan.policy.inter_reorder = true;
    ef_cost(f);
}

static inline void ef_open(struct exec_fixture *f)
{
    f->opt = (struct dt_exec_options){.device = f->dev,
                                      .model = f->model,
                                      .plan = &f->plan,
                                      .transport = f->transport,
                                      .data = f->data,
                                      .over = f->over,
                                      .limit_s = f->limit_s,
                                      .dtype = f->dtype,
                                      .diffusion = &f->diffusion,
                                      .text_weight = 1,
                                      .image_weight = 1,
                                      .dropout = f->dropout,
                                      .seed = 42,
                                      .host = f->host,
                                      .host_threads = 1,
                                      .ferry_bytes = 4096}; /* a tensor is several */
    dt_optimizer_defaults(&f->opt.optimizer);
    f->opt.optimizer.decay = DT_LR_CONSTANT;
    f->opt.optimizer.lr = 3e-3;
    if (f->no_clip)
        f->opt.optimizer.clip = 0;
    dt_assert_ok(dt_exec_new(&f->opt, &f->err, &f->x), f->err);
}

static inline void ef_count_overlap(struct exec_fixture *f, const struct dt_program *p)
{
    const struct dt_timeline *t = &f->timeline;

    for (int l = 0; l < p->n_lanes; l++) {
        uint32_t first = p->lanes[l].first, end = first + p->lanes[l].n;
        int64_t forward = INT64_MAX, backward = 0;

        for (uint32_t i = first; i < end; i++) {
            if (p->ops[i].kind == DT_OP_FORWARD && t->begin_ns[i] < forward)
                forward = t->begin_ns[i];
            if (p->ops[i].kind == DT_OP_BACKWARD && t->end_ns[i] > backward)
                backward = t->end_ns[i];
        }
        for (uint32_t i = first; i < end; i++) {
            f->syncs += p->ops[i].kind == DT_OP_GRAD_SYNC;
            f->syncs_under += p->ops[i].kind == DT_OP_GRAD_SYNC && t->begin_ns[i] < backward;
            f->gathers += p->ops[i].kind == DT_OP_PARAM_GATHER;
            f->gathers_under += p->ops[i].kind == DT_OP_PARAM_GATHER && t->end_ns[i] > forward;
        }
    }
}

/* Lanes that share GPUs, but not their first one: each records what its own first member has seen. */
static inline bool ef_members_differ(const struct dt_lane *a, const struct dt_lane *b)
{
    return a->first_gpu != b->first_gpu && a->first_gpu < b->first_gpu + b->gpus &&
           b->first_gpu < a->first_gpu + a->gpus;
}

static inline int64_t ef_deferred(const struct dt_assignment *a, int n_modules)
{
    int64_t n = 0;

    for (int m = 0; m < n_modules; m++)
        for (int r = 0; r < a->m[m].n_replicas; r++)
            n += a->m[m].mb_first[r + 1] - a->m[m].mb_first[r] -
                 dt_assignment_positions(&a->m[m], r);
    return n;
}

/* Microbatches that a lane may hold which holds so many positions: those of an encoder may be in two parts (Entrain). */
static inline int ef_parts(const struct dt_assignment_module *a, int replica, int positions)
{
    uint32_t first = a->mb_first[replica], end = a->mb_first[replica + 1], n[64] = {0}, most = 0;
    int at = -1;

    for (uint32_t b = first; b < end; b++) {
        at += !dt_assignment_deferred(a, first, end, b);
        ck_assert_int_lt(at, 64);
        n[at]++;
    }
    for (int i = 0; i <= at; i++) {
        uint32_t sum = 0;

        for (int k = i; k <= at && k < i + positions; k++)
            sum += n[k];
        most = sum > most ? sum : most;
    }
    return (int)most;
}

/* Assigns, compiles, checks and runs one iteration over all sequences. */
static inline struct dt_exec_result ef_step(struct exec_fixture *f, int64_t step)
{
    const struct dt_sequence *seqs[EF_SEQS_MAX];
    struct dt_exec_input in = {.seqs = seqs, .n = f->n_seqs, .step = step, .accept = f->accept};
    struct dt_exec_result r = {0};
    struct dt_samples *samples;
    enum dt_status st;
    struct dt_sched_bubbles bubbles;
    struct dt_assignment *a;
    struct dt_program *p;

    for (int i = 0; i < f->n_seqs; i++)
        seqs[i] = f->seqs[i];
    dt_assert_ok(dt_batching_samples(seqs, f->n_seqs, &f->err, &samples), f->err);
    dt_assert_ok(dt_assign(&f->plan, f->model, f->cost, samples, 0, &f->err, &a), f->err);
    dt_assert_ok(dt_sched_compile_turns(&f->plan, f->model, &f->cluster, a, f->cost, false, &f->err,
                                        &bubbles, &p),
                 f->err);
    f->moved += bubbles.moved;
    dt_assert_ok(dt_program_check(p, f->model, &f->err), f->err);
    f->deferred += ef_deferred(a, f->model->n_modules);
    f->sends_bytes = f->gathers_bytes = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        f->sends_bytes += p->ops[i].kind == DT_OP_SEND ? p->ops[i].bytes : 0;
        f->gathers_bytes += p->ops[i].kind == DT_OP_PARAM_GATHER ? p->ops[i].bytes : 0;
    }
    st = dt_exec_run(f->x, p, &in, &f->err, &f->timeline, &r);
    ck_assert_msg(st == f->expected, "step %d: %s", (int)step, f->err.message);
    if (st == DT_OK && (!f->transport || f->transport->rank == 0))
        ef_count_overlap(f, p);
    f->compute_s = r.compute_s;
    f->waited_s = r.waited_s;
    r.compute_s = r.waited_s = 0; /* the rest is equal from run to run */
    /* what was measured, on all ranks together, follows the program */
    for (uint32_t i = 0; st == DT_OK && (!f->transport || f->transport->rank == 0) && i < p->n_ops;
         i++) {
        const struct dt_op *op = &p->ops[i];

        ck_assert_int_le(f->timeline.begin_ns[i], f->timeline.end_ns[i]);
        for (int k = 0; k < 3 && dt_op_resource(op->kind) != DT_RES_COLL; k++)
            ck_assert_msg(
                op->dep[k] == DT_NONE ||
                    f->timeline.end_ns[op->dep[k]] <= f->timeline.begin_ns[i] ||
                    ef_members_differ(&p->lanes[p->ops[op->dep[k]].lane], &p->lanes[op->lane]),
                "op %u (%s) began before op %u (%s) had ended", i, dt_op_kind_names[op->kind],
                op->dep[k], dt_op_kind_names[p->ops[op->dep[k]].kind]);
    }
    for (int l = 0; l < p->n_lanes; l++) { /* chunk-microbatches held at once */
        const struct dt_lane *x = &p->lanes[l];
        const struct dt_plan_layout *y = &f->plan.modules[x->module].layout;
        int held = 0;

        for (int v = x->stage; v < y->pp * y->vpp; v += y->pp)
            if (dt_exec_stage(f->x, x->module, x->replica, v) && y->vpp == 1 &&
                dt_stage_has_backward(dt_exec_stage(f->x, x->module, x->replica, v)))
                held += dt_exec_in_flight(f->x, x->module, x->replica, v);
        if (held <= (int)x->in_flight_max ||
            held <= ef_parts(&a->m[x->module], x->replica, (int)x->in_flight_max))
            continue;
        /* more only until weight gradients that are put off */
        ck_assert_int_le(held, dt_memory_held(&f->plan, f->model, x->module, x->stage,
                                              a->m[x->module].mb_first[x->replica + 1] -
                                                  a->m[x->module].mb_first[x->replica]));
    }
    dt_program_free(p);
    dt_assign_free(a);
    dt_samples_free(samples);
    return r;
}

static inline void ef_close(struct exec_fixture *f)
{
    if (f->x && f->together)
        pthread_barrier_wait(f->together);
    dt_exec_free(f->x);
    f->x = NULL;
}

static inline void ef_free(struct exec_fixture *f)
{
    ef_close(f);
    for (int i = 0; i < f->n_seqs; i++)
        dt_sequence_free(f->seqs[i]);
    dt_timeline_free(&f->timeline);
    dt_diffusion_free(&f->diffusion);
    dt_cost_free(f->cost);
    dt_model_free(f->model);
    dt_doc_free(f->doc);
    if (!f->shared)
        f->dev->close(f->dev);
}

#endif
