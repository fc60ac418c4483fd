/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/profiler.h"

#include "core/model/block_key.h"
#include "base/mem.h"
#include "base/clock.h"
#include "base/quantile.h"
#include "exec/train/profiler_comm.h"
#include "exec/train/profiler_speed.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPEATS = 15, REPEATS_MAX = 400, WARM_UP = 2 };
/* Repeats come in bursts of about so long, each between two runs of the reference kernel, which leaves other things in the
 * caches than training does: the first repeat behind it does not count, unless it is too long to notice. */
#define BURST_NS 40e6
#define UNNOTICED_NS 20e6
/* A burst in which the core changed its speed is repeated, up to so many times. */
enum { AGAIN_MAX = 40 };
enum { PARAMS_MIN = 1 << 12, PARAMS_MAX = 1 << 22, PARAMS_STEP = 8 };
enum { MESSAGE_MIN = 1 << 20, MESSAGE_MAX = 1 << 26 };

struct series { /* times of one block and phase */
    double *ns;
    size_t cap;
    int n;
};

struct profiler {
    const struct dt_profiler_options *o;
    const struct dt_setup *s;
    const struct dt_device *dev;
    struct dt_device_queue *q;
    struct dt_profile_table *out;
    int device, dtype, source;
    struct dt_profiler_speed speed; /* zero on a card */
    double repack_ns, repacked;     /* of all weights after a step; floats of these */
    int64_t floats_max;             /* of one module's parameters */
    int done, all;
};

/* One module, one microbatch. */
struct bench {
    struct profiler *p;
    int module, n_blocks;
    const struct dt_module *mod;
    struct dt_work work;
    struct dt_batch_limits max;
    struct dt_stage *stage[2]; /* all trained; nothing trained */
    struct dt_batch *batch;
    struct dt_nn_run run;
    void *saved[2], *in, *out, *dout, *din;
    double forward_ns;            /* of all blocks, the last time */
    struct series *t[DT_PHASE_N]; /* [n_blocks]; DGRAD: backward without, WGRAD: with weights */
};

/* ---- numbers ---- */

void dt_profiler_statistics(double *ns, int n, struct dt_profile_row *row)
{
    row->n = n;
    row->median_ns = dt_median(ns, (size_t)n); /* and they are sorted */
    row->p10_ns = ns[(n - 1) / 10];
    row->p90_ns = ns[n - 1 - (n - 1) / 10];
    row->p10_ns = row->p10_ns < 1 ? 1 : row->p10_ns;
    row->median_ns = row->median_ns < row->p10_ns ? row->p10_ns : row->median_ns;
    row->p90_ns = row->p90_ns < row->median_ns ? row->median_ns : row->p90_ns;
}

static enum dt_status note(struct series *s, uint64_t ns, struct dt_error *err)
{
    if (dt_grow((void **)&s->ns, &s->cap, (size_t)s->n + 1, sizeof(*s->ns)))
        return dt_error_nomem(err, "times");
    s->ns[s->n++] = (double)ns;
    return DT_OK;
}

/* ---- building ---- */

static enum dt_status room(struct bench *b, size_t bytes, struct dt_error *err, void **out)
{
    return b->p->dev->alloc(b->p->dev, bytes > 0 ? bytes : 64, err, out);
}

/* Small numbers, so that nothing overflows or becomes denormal on the way. */
static enum dt_status random_room(struct bench *b, size_t bytes, uint64_t stream,
                                  struct dt_error *err, void **out)
{
    enum dt_dtype type = b->p->s->dtype;

    DT_TRY(room(b, bytes, err, out));
    b->p->dev->k->normal(b->p->q, type, (int64_t)(bytes / dt_dtype_bytes(type)), 1, stream, 0, 1,
                         *out);
    return DT_OK;
}

static enum dt_block_recompute recompute_of(const struct bench *b)
{
    return b->p->s->plan.modules[b->mod - b->p->s->job->model->modules].recompute;
}

static enum dt_status make_stage(struct bench *b, bool trained, struct dt_error *err,
                                 struct dt_stage **out)
{
    unsigned char *flags = dt_malloc((size_t)b->n_blocks + 1);
    struct dt_stage_spec spec = {.model = b->p->s->job->model,
                                 .module = b->mod,
                                 .last = b->n_blocks,
                                 .dtype = b->p->s->dtype,
                                 .recompute = recompute_of(b),
                                 .trained = flags,
                                 .upstream_trained = true,
                                 .max = b->max};
    enum dt_status st;

    if (!flags)
        return dt_error_nomem(err, "a stage");
    memset(flags, trained, (size_t)b->n_blocks);
    st = dt_stage_new(b->p->dev, &spec, err, out);
    dt_free(flags);
    if (st == DT_OK)
        dt_stage_init(b->p->q, *out, b->p->s->job->run.seed);
    return st;
}

static enum dt_status make_batch(struct bench *b, int n, struct dt_error *err)
{
    const struct dt_model *m = b->p->s->job->model;
    struct dt_batch *x;

    DT_TRY(dt_batch_new(b->p->dev, b->mod, &b->max, err, &b->batch));
    x = b->batch;
    x->train = true;
    x->noise_seed = b->p->s->job->run.seed;
    x->loss_scale = 1;
    DT_TRY(dt_batching_fill(m, b->module, b->p->o->seqs, n, x, err));
    if (b->mod->role == DT_ROLE_GENERATOR)
        dt_batch_diffuse(x, &b->p->s->diffusion, x->noise_seed, 1);
    DT_TRY(dt_batch_upload(b->p->q, x, err));
    dt_batch_work(x, &b->work);
    return DT_OK;
}

static enum dt_status bench_open(struct bench *b, int n, struct dt_error *err)
{
    DT_TRY(make_stage(b, true, err, &b->stage[0]));
    DT_TRY(make_stage(b, false, err, &b->stage[1]));
    DT_TRY(make_batch(b, n, err));
    for (int k = 0; k < 2; k++)
        DT_TRY(room(b, dt_stage_saved_bytes(b->stage[k], b->batch), err, &b->saved[k]));
    DT_TRY(random_room(b, dt_stage_in_bytes(b->stage[0], b->batch), 1, err, &b->in));
    DT_TRY(random_room(b, dt_stage_out_bytes(b->stage[0], b->batch), 2, err, &b->dout));
    DT_TRY(room(b, dt_stage_out_bytes(b->stage[0], b->batch), err, &b->out));
    DT_TRY(room(b, dt_stage_in_bytes(b->stage[0], b->batch), err, &b->din));
    b->run = (struct dt_nn_run){
        .batch = b->batch, .in = b->in, .out = b->out, .dout = b->dout, .din = b->din};
    for (int k = 0; k < DT_PHASE_N; k++) {
        b->t[k] = dt_calloc((size_t)b->n_blocks, sizeof(*b->t[k]));
        if (!b->t[k])
            return dt_error_nomem(err, "times");
    }
    return b->p->dev->queue_sync(b->p->q, err);
}

static void bench_close(struct bench *b)
{
    const struct dt_device *dev = b->p->dev;
    void *p[] = {b->saved[0], b->saved[1], b->in, b->out, b->dout, b->din};

    for (size_t i = 0; i < sizeof(p) / sizeof(p[0]); i++)
        dev->free(dev, p[i]);
    dt_batch_free(b->batch);
    for (int k = 0; k < 2; k++)
        dt_stage_free(b->stage[k]);
    for (int k = 0; k < DT_PHASE_N; k++) {
        for (int i = 0; b->t[k] && i < b->n_blocks; i++)
            dt_free(b->t[k][i].ns);
        dt_free(b->t[k]);
    }
}

/* ---- measuring ---- */

static enum dt_status forward(struct bench *b, int which, bool keep, struct dt_error *err)
{
    const struct dt_device *dev = b->p->dev;

    b->run.saved = b->saved[which];
    b->forward_ns = 0;
    for (int i = 0; i < b->n_blocks; i++) {
        uint64_t t0 = dt_clock_ns(), t1;

        dt_stage_forward(b->p->q, b->stage[which], &b->run, i, i + 1);
        DT_TRY(dev->queue_sync(b->p->q, err));
        t1 = dt_clock_ns();
        b->forward_ns += (double)(t1 - t0);
        if (keep && which == 0)
            DT_TRY(note(&b->t[DT_PHASE_FWD][i], t1 - t0, err));
    }
    return DT_OK;
}

static enum dt_status backward(struct bench *b, int which, bool keep, struct dt_error *err)
{
    const struct dt_device *dev = b->p->dev;

    for (int i = b->n_blocks - 1; i >= 0; i--) {
        uint64_t t0 = dt_clock_ns(), t1;

        dt_stage_backward(b->p->q, b->stage[which], &b->run, i, i + 1, DT_BACKWARD_BOTH);
        DT_TRY(dev->queue_sync(b->p->q, err));
        t1 = dt_clock_ns();
        if (keep)
            DT_TRY(note(&b->t[which == 0 ? DT_PHASE_WGRAD : DT_PHASE_DGRAD][i], t1 - t0, err));
    }
    return DT_OK;
}

/* A microbatch as training runs it: every module forwards, then backwards from the last, so that
 * what a block finds in the caches is what the others left there. */
static enum dt_status once(struct bench *b, int n, int which, bool keep, struct dt_error *err)
{
    for (int m = 0; m < n; m++)
        DT_TRY(forward(&b[m], which, keep, err));
    for (int m = n - 1; m >= 0; m--)
        DT_TRY(backward(&b[m], which, keep, err));
    return DT_OK;
}

/* What packing weights anew costs the first forward after a step: medians of forwards that follow one, and of those
 * that do not, in turns.  In the smallest microbatches that have something for all modules, where it weighs most. */
static enum dt_status repack(struct bench *b, int n, struct dt_error *err)
{
    enum { TURNS = 15 };
    double fresh[DT_MAX_MODULES][TURNS], warm[DT_MAX_MODULES][TURNS], factor;

    dt_profiler_speed_factor(&b->p->speed, NULL);
    for (int k = -WARM_UP; k < TURNS; k++) {
        DT_TRY(once(b, n, 0, false, err)); /* behind the reference kernel */
        for (int m = 0; m < n; m++)
            dt_stage_stepped(b[m].p->q, b[m].stage[0], 0, b[m].n_blocks);
        DT_TRY(once(b, n, 0, false, err));
        for (int m = 0; m < n && k >= 0; m++)
            fresh[m][k] = b[m].forward_ns;
        DT_TRY(once(b, n, 0, false, err));
        for (int m = 0; m < n && k >= 0; m++)
            warm[m][k] = b[m].forward_ns;
        factor = dt_profiler_speed_factor(&b->p->speed, NULL);
        for (int m = 0; m < n && k >= 0; m++) {
            fresh[m][k] *= factor;
            warm[m][k] *= factor;
        }
    }
    for (int m = 0; m < n; m++) {
        double more = dt_median(fresh[m], TURNS) - dt_median(warm[m], TURNS);

        b->p->repack_ns += more > 0 ? more : 0;
        b->p->repacked += (double)dt_stage_param_floats(b[m].stage[0]);
        if ((int64_t)dt_stage_param_floats(b[m].stage[0]) > b->p->floats_max)
            b->p->floats_max = (int64_t)dt_stage_param_floats(b[m].stage[0]);
    }
    return DT_OK;
}

/* The times that repeats of one stage or the other leave. */
static bool is_of(int phase, int which)
{
    return (phase == DT_PHASE_DGRAD) == (which == 1);
}

/* Of those times all but the first `from` become so many times as long. */
static void scale(struct bench *b, int n, int which, int from, double factor)
{
    for (int m = 0; m < n; m++)
        for (int i = 0; i < b[m].n_blocks; i++)
            for (int phase = 0; phase < DT_PHASE_N; phase++)
                for (int k = from; is_of(phase, which) && k < b[m].t[phase][i].n; k++)
                    b[m].t[phase][i].ns[k] *= factor;
}

/* All but the first `from` do not count. */
static void forget(struct bench *b, int n, int which, int from)
{
    for (int m = 0; m < n; m++)
        for (int i = 0; i < b[m].n_blocks; i++)
            for (int phase = 0; phase < DT_PHASE_N; phase++)
                if (is_of(phase, which))
                    b[m].t[phase][i].n = from;
}

/* Repeats of the stage that is trained or the one that is not, on top of *done. */
static enum dt_status burst(struct bench *b, int n, int which, int *done, int *again,
                            struct dt_error *err)
{
    uint64_t begin = dt_clock_ns();
    int k = 1;
    double factor;
    bool steady;

    DT_TRY(once(b, n, which, true, err));
    if ((double)(dt_clock_ns() - begin) < UNNOTICED_NS) {
        forget(b, n, which, *done);
        k = 0;
    }
    while (k == 0 || ((double)(dt_clock_ns() - begin) < BURST_NS && *done + k < REPEATS_MAX)) {
        DT_TRY(once(b, n, which, true, err));
        k++;
    }
    factor = dt_profiler_speed_factor(&b->p->speed, &steady);
    if (!steady && (*again)++ < AGAIN_MAX) {
        forget(b, n, which, *done);
        return DT_OK;
    }
    scale(b, n, which, *done, factor);
    *done += k;
    return DT_OK;
}

/* Both stages in turns: the weight gradient is their difference. */
static enum dt_status measure(struct bench *b, int n, struct dt_error *err)
{
    int least = b->p->o->repeats > 0 ? b->p->o->repeats : REPEATS, done[2] = {0, 0}, again = 0;
    int warm_up = b->p->dev->info.library[0] ? DT_KERNEL_SETTLES : WARM_UP;
    double seconds = n * b->p->o->seconds;
    uint64_t begin;

    for (int which = 0; which < 2; which++) {
        for (int m = 0; m < n; m++)
            dt_stage_grads_begin(b[m].stage[which]);
        for (int i = 0; i < warm_up; i++)
            DT_TRY(once(b, n, which, false, err));
    }
    b->p->dev->settle(b->p->dev);
    for (int which = 0; which < 2; which++)
        DT_TRY(once(b, n, which, false, err));
    begin = dt_clock_ns();
    dt_profiler_speed_factor(&b->p->speed, NULL);
    for (bool more = true; more;) {
        bool time_left = (double)(dt_clock_ns() - begin) * 1e-9 < seconds;

        if ((double)(dt_clock_ns() - begin) * 1e-9 > 3 * seconds)
            again = AGAIN_MAX; /* a pass takes long here */
        for (int which = 0; which < 2; which++)
            if (done[which] < least || (time_left && done[which] < REPEATS_MAX))
                DT_TRY(burst(b, n, which, &done[which], &again, err));
        more = done[0] < least || done[1] < least ||
               (time_left && (done[0] < REPEATS_MAX || done[1] < REPEATS_MAX));
    }
    return DT_OK;
}

/* ---- rows ---- */

static enum dt_status add_row(struct profiler *p, int family, int phase, int64_t d0, int64_t d1,
                              const struct dt_profile_row *times, struct dt_error *err)
{
    struct dt_profile_table_row row = {.r = *times, .device = p->device, .dtype = p->dtype};

    row.r.family = family;
    row.r.phase = phase;
    row.r.kind = DT_ROW_MEASURED;
    row.r.source = p->source;
    row.r.d[0] = d0;
    row.r.d[1] = d1;
    return dt_profile_table_add(p->out, &row, err);
}

/* Equal blocks pool their times. */
static enum dt_status pool(struct bench *b, int first, int64_t key,
                           const struct dt_block_shard *shard, int phase, struct dt_error *err)
{
    struct series *all = &b->t[phase][first];

    for (int i = first + 1; i < b->n_blocks; i++)
        if (dt_block_work_key(&b->mod->blocks[i], shard) == key)
            for (int k = 0; k < b->t[phase][i].n; k++)
                DT_TRY(note(all, (uint64_t)b->t[phase][i].ns[k], err));
    return DT_OK;
}

/* The backward with weight gradients, less the one without: nothing is left of a block that has no
 * weights, and its row is not written. */
static void less(struct dt_profile_row *a, const struct dt_profile_row *b)
{
    a->median_ns -= b->median_ns;
    a->p10_ns = a->p10_ns - b->median_ns < 1 ? 1 : a->p10_ns - b->median_ns;
    a->p90_ns -= b->median_ns;
}

static enum dt_status block_rows(struct bench *b, int i, int64_t key,
                                 const struct dt_block_shard *shard, struct dt_error *err)
{
    int64_t at = llround(dt_block_equivalent_tokens(&b->mod->blocks[i], &b->work));
    struct dt_profile_row row[DT_PHASE_N];

    for (int k = 0; k < DT_PHASE_N; k++) {
        memset(&row[k], 0, sizeof(row[k]));
        DT_TRY(pool(b, i, key, shard, k, err));
        dt_profiler_statistics(b->t[k][i].ns, b->t[k][i].n, &row[k]);
    }
    less(&row[DT_PHASE_WGRAD], &row[DT_PHASE_DGRAD]);
    for (int k = 0; k < DT_PHASE_N; k++)
        if (row[k].median_ns >= row[k].p10_ns)
            DT_TRY(add_row(b->p, DT_KOP_BLOCK, k, at, key, &row[k], err));
    return DT_OK;
}

static enum dt_status all_rows(struct bench *b, struct dt_error *err)
{
    const struct dt_block_shard shard = {
        .tp = 1, .cp = 1, .ep = 1, .ip = 1, .recompute = recompute_of(b)};

    for (int i = 0; i < b->n_blocks; i++) {
        int64_t key = dt_block_work_key(&b->mod->blocks[i], &shard);
        int first = 0;

        while (dt_block_work_key(&b->mod->blocks[first], &shard) != key)
            first++;
        if (first == i)
            DT_TRY(block_rows(b, i, key, &shard, err));
    }
    return DT_OK;
}

/* Microbatches of n sequences, all modules that have anything in them. */
static enum dt_status one_size(struct profiler *p, int n, bool last, struct dt_error *err)
{
    const struct dt_model *model = p->s->job->model;
    struct bench bench[DT_MAX_MODULES];
    enum dt_status st = DT_OK;
    int open = 0;

    if (p->o->progress)
        p->o->progress(p->o->ctx, &(struct dt_profiler_progress){n, p->done, p->all});
    p->done++;
    for (int m = 0; m < model->n_modules && st == DT_OK; m++) {
        struct bench *b = &bench[open];

        *b = (struct bench){
            .p = p, .module = m, .mod = &model->modules[m], .n_blocks = model->modules[m].n_blocks};
        dt_batching_limits(model, m, p->o->seqs, n, NULL, &b->max);
        if (b->max.rows == 0)
            continue; /* no image among these */
        open++;
        st = bench_open(b, n, err);
    }
    if (st == DT_OK)
        st = measure(bench, open, err);
    if (st == DT_OK && p->repacked == 0 && (open == model->n_modules || last))
        st = repack(bench, open, err);
    for (int k = 0; k < open; k++) {
        if (st == DT_OK)
            st = all_rows(&bench[k], err);
        bench_close(&bench[k]);
    }
    return st;
}

/* ---- the optimizer ---- */

static enum dt_status adamw(struct profiler *p, int64_t n, struct dt_error *err)
{
    const struct dt_kernel_adamw h = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 10};
    struct dt_profile_row row = {0};
    double ns[REPEATS], factor;
    float *x[4], coef = 1;
    enum dt_status st = DT_OK;
    void *one = NULL, *copy = NULL;

    memset(x, 0, sizeof(x));
    for (int i = 0; i < 4 && st == DT_OK; i++) {
        st = p->dev->alloc(p->dev, (size_t)n * sizeof(float), err, (void **)&x[i]);
        if (st == DT_OK)
            p->dev->k->normal(p->q, DT_F32, n, 1, (uint64_t)i, 0, 1, x[i]);
    }
    if (st == DT_OK)
        st = p->dev->alloc(p->dev, sizeof(float), err, &one);
    if (st == DT_OK && p->s->dtype == DT_BF16 && !p->dev->info.packs) /* as stages keep one */
        st = p->dev->alloc(p->dev, (size_t)n * dt_dtype_bytes(DT_BF16), err, &copy);
    if (st == DT_OK) {
        p->dev->copy(p->q, one, &coef, sizeof(coef), DT_COPY_TO_DEVICE);
        p->dev->k->normal(p->q, DT_F32, n, 1, 5, 0, 1e-3f, x[1]);
        p->dev->zero(p->q, x[3], (size_t)n * sizeof(float)); /* no negative squares */
        st = p->dev->queue_sync(p->q, err);
    }
    dt_profiler_speed_factor(&p->speed, NULL);
    for (int i = -WARM_UP; i < REPEATS && st == DT_OK; i++) {
        const struct dt_kernel_adamw_part all = {n, x[0], x[1], x[2], x[3], copy, true};
        uint64_t t0 = dt_clock_ns();

        p->dev->k->adamw(p->q, &h, 1, &all, one);
        st = p->dev->queue_sync(p->q, err);
        if (i >= 0)
            ns[i] = (double)(dt_clock_ns() - t0);
    }
    for (int i = 0; i < 4; i++)
        p->dev->free(p->dev, x[i]);
    p->dev->free(p->dev, one);
    p->dev->free(p->dev, copy);
    DT_TRY(st);
    factor = dt_profiler_speed_factor(&p->speed, NULL);
    for (int i = 0; i < REPEATS; i++)
        ns[i] = ns[i] * factor + (p->repacked > 0 ? p->repack_ns / p->repacked * (double)n : 0);
    dt_profiler_statistics(ns, REPEATS, &row);
    return add_row(p, DT_KOP_ADAMW, DT_PHASE_FWD, n, 0, &row, err);
}

/* ---- where from ---- */

static void cpu_name(char *buf, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");

    snprintf(buf, size, "CPU");
    while (f && fgets(line, sizeof(line), f)) {
        char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value[strcspn(value, "\n")] = '\0';
        snprintf(buf, size, "%s", value + 2);
        break;
    }
    if (f)
        fclose(f);
}

void dt_profiler_origin(const struct dt_device_info *i, char *buf, size_t size)
{
    char host[64] = "this host", cpu[96];

    gethostname(host, sizeof(host) - 1);
    if (i && i->id[0]) {
        snprintf(buf, size, "measured on %s, %s (%s), %s", host, i->name, i->isa, i->versions);
        return;
    }
    cpu_name(cpu, sizeof(cpu));
    snprintf(buf, size, "measured on %s, %s", host, cpu);
}

static enum dt_status name_source(struct profiler *p, struct dt_error *err)
{
    struct dt_profile_source s = {.name = "disttrain profile", .licence = "own measurement"};
    const struct dt_device_info *i = &p->dev->info;
    char recompute[128], speed[64] = "";

    if (p->speed.base_s > 0)
        snprintf(speed, sizeof speed, "; at the speed of reference kernels of %.3f ms",
                 1e3 * p->speed.base_s);
    dt_profiler_origin(i, s.origin, sizeof(s.origin));
    dt_clock_utc(s.date, sizeof(s.date));
    snprintf(s.note, sizeof(s.note),
             "%s, %s, %d thread%s, recompute %s; adamw with the packing of weights%s", i->isa,
             p->s->dtype == DT_BF16 ? "bf16" : "fp32", i->threads, i->threads == 1 ? "" : "s",
             dt_plan_recompute_text(&p->s->plan, recompute, sizeof(recompute)), speed);
    DT_TRY(dt_profile_table_device(p->out, p->o->device, err, &p->device));
    DT_TRY(dt_profile_table_dtype(p->out, "any", err, &p->dtype));
    return dt_profile_table_source(p->out, &s, err, &p->source);
}

static enum dt_status all(struct profiler *p, struct dt_error *err)
{
    int most = p->o->sequences_max > 0 ? p->o->sequences_max : p->o->n_seqs, sizes = 0;

    most = most < p->o->n_seqs ? most : p->o->n_seqs;
    for (int n = 1; n <= most; n *= 2)
        sizes++;
    p->all = sizes;
    for (int n = 1; n <= most; n *= 2)
        DT_TRY(one_size(p, n, 2 * n > most, err));
    for (int64_t n = PARAMS_MIN; n <= PARAMS_MAX; n *= PARAMS_STEP)
        DT_TRY(adamw(p, n, err));
    return DT_OK;
}

static double messages_to_base(void *ctx)
{
    return dt_profiler_speed_factor(ctx, NULL);
}

/* Up to the gradients of the largest module, the longest thing that is sent. */
static enum dt_status messages(struct profiler *p, struct dt_error *err)
{
    struct dt_profiler_comm_options o = {.transport = p->o->transport,
                                         .bytes_max = MESSAGE_MIN,
                                         .to_base = messages_to_base,
                                         .ctx = &p->speed};

    if (!o.transport || o.transport->size < 2)
        return DT_OK;
    while (o.bytes_max < MESSAGE_MAX && o.bytes_max < p->floats_max * (int64_t)sizeof(float))
        o.bytes_max *= 4;
    return dt_profiler_comm(&o, p->device, p->dtype, p->source, err, p->out);
}

static enum dt_status at_one_speed(struct profiler *p, struct dt_error *err)
{
    enum dt_status st;

    DT_TRY(name_source(p, err));
    DT_TRY(p->dev->queue_new(p->dev, false, err, &p->q));
    st = all(p, err);
    if (st == DT_OK)
        st = messages(p, err);
    p->dev->queue_free(p->q);
    return st;
}

enum dt_status dt_profiler_blocks(const struct dt_profiler_options *o, struct dt_error *err,
                                  struct dt_profile_table *out, double *reference_s)
{
    struct profiler p = {.o = o, .s = o->setup, .dev = o->setup->device, .out = out};
    enum dt_status st;

    *reference_s = 0;
    if (o->n_seqs < 1)
        return dt_error_set(err, DT_ERR_INPUT, "there is no sequence to measure with");
    if (p.dev->info.id[0] && o->reference_s > 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "the reference kernel says how fast a CPU is; this would measure %s",
                            p.dev->info.name);
    if (!p.dev->info.id[0])
        DT_TRY(dt_profiler_speed_open(o->reference_s, p.dev->info.threads, err, &p.speed));
    st = at_one_speed(&p, err);
    *reference_s = p.speed.base_s;
    dt_profiler_speed_close(&p.speed);
    return st;
}
