/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Training from a job: going on exactly where it stopped, logs, and what is refused. */
#include "base/file.h"
#include "base/mem.h"
#include "report/report.h"
#include "base/rng.h"
#include "comm/transport.h"
#include "exec/data/image.h"
#include "exec/data/shard.h"
#include "exec/program/batching.h"
#include "exec/train/train.h"
#include "exec/train/train_speed.h"
#include "kernels/kernels.h"
#include "fake_device.h"
#include "test_util.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static char dir[64];
static struct dt_error err;

/* Pictures of 8 x 8 pixels, dark or light, with a word for it; from `odd` on four of another word. */
static void make_pictures(const char *name, int n, int odd)
{
    struct dt_shard_writer *w;
    char prefix[128];
    struct dt_rng r;

    snprintf(prefix, sizeof(prefix), "%s/%s", dir, name);
    dt_rng_init(&r, 1, 1);
    dt_assert_ok(dt_shard_writer_open(prefix, 1000, 1 << 20, false, &err, &w), err);
    for (int i = 0; i < n; i++) {
        bool light = odd < 0 && i % 2;
        const char *word = i >= odd && i < odd + 4 && odd >= 0 ? "QXZW" : light ? "light" : "dark";
        struct dt_image img;
        struct dt_shard_member m[2] = {{.ext = "png"}, {.ext = "txt"}};
        uint8_t *png;
        char key[16];

        dt_assert_ok(dt_image_new(8, 8, &err, &img), err);
        for (int k = 0; k < 64; k++)
            memset(img.px + 3 * k, (int)dt_rng_below(&r, 100) + (light ? 150 : 0), 3);
        dt_assert_ok(dt_image_encode_png(&img, 1, &err, &png, &m[0].len), err);
        m[0].data = png;
        m[1].data = (const uint8_t *)word;
        m[1].len = strlen(word);
        snprintf(key, sizeof(key), "%04d", i);
        dt_assert_ok(dt_shard_write(w, key, m, 2, &err), err);
        dt_free(png);
        dt_image_free(&img);
    }
    dt_assert_ok(dt_shard_writer_close(w, &err, NULL), err);
}

static void make_shard(void)
{
    snprintf(dir, sizeof(dir), "/tmp/dt-train-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    make_pictures("small", 60, -1);
}

static void remove_all(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

static const char job_text[] =
    "model:\n"
    "  name: small\n"
    "  modules:\n"
    "    encoder: {kind: encoder, layers: 1, hidden: 16, ffn: 32, heads: 2, patch: 4, channels: "
    "1,\n"
    "      positions: 4}\n"
    "    llm: {kind: llm, layers: 2, hidden: 32, ffn: 48, heads: 2, vocab: 264}\n"
    "    generator: {kind: unet, channels: [8, 16], attention: [false, true], head_dim: 8,\n"
    "      res_blocks: 1, in_channels: 1, out_channels: 1, context_dim: 16, context_len: 4,\n"
    "      latent_scale: 1, resize: 8}\n"
    "cluster: {device: cpu, nodes: 1, gpus_per_node: 16, peak_flops: 1 GFLOP/s, memory: 64 GB,\n"
    "  memory_reserve: 0 B, hbm_bandwidth: 1 GB/s, nvlink_bandwidth: 1 GB/s, nvlink_latency: 1 "
    "us,\n"
    "  nics_per_node: 1, nic_bandwidth: 1 Gb/s, nic_efficiency: 0.9, nic_latency: 1 us}\n"
    "samples: {distribution: {fill: text}}\n"
    "train: {global_batch: 4, microbatch: 2, seq_len: 48, recompute: none}\n"
    "search: {allow_analytical: true}\n"
    "run: {steps: 6, lr: 3e-3, warmup_steps: 2, precision: fp32, threads: 1, data_threads: 2}\n";

struct world {
    struct dt_job *job;
    struct dt_device *device;
    struct dt_setup setup;
};

static enum dt_status open_world(struct world *w, const char *const *over, int n)
{
    struct dt_device_options o;
    char data[128];
    const char *all[16];

    memset(w, 0, sizeof(*w));
    snprintf(data, sizeof(data), "run.data=%s", dir);
    all[0] = data;
    for (int i = 0; i < n; i++)
        all[i + 1] = over[i];
    dt_assert_ok(dt_job_parse("job", job_text, strlen(job_text), all, n + 1, false, &err, &w->job),
                 err);
    dt_setup_device(w->job, &o);
    dt_assert_ok(dt_test_device_open(&o, &err, &w->device), err);
    return dt_setup_open(w->job, w->device, true, &err, &w->setup);
}

static void close_world(struct world *w)
{
    dt_setup_close(&w->setup);
    w->device->close(w->device);
    dt_job_free(w->job);
}

static volatile sig_atomic_t stop;
static bool stop_at_event;
static int64_t stop_after;
static double losses[64];

static void on_step(void *ctx, const struct dt_train_step *s)
{
    (void)ctx;
    ck_assert_int_lt(s->step, 64);
    losses[s->step] = s->r.loss;
    if (s->step == stop_after)
        stop = 1;
}

static void on_event(void *ctx, const struct dt_train_event *e)
{
    (void)ctx;
    (void)e;
    if (stop_at_event)
        stop = 1;
}

/* One run with these overrides; stops by signal after `after` steps (0 = never). */
static struct dt_train_summary run(const char *const *over, int n, int64_t after)
{
    struct dt_train_options o = {.stop = &stop, .on_step = on_step, .on_event = on_event};
    struct dt_train_summary s;
    struct world w;

    stop = 0;
    stop_after = after;
    dt_assert_ok(open_world(&w, over, n), err);
    o.setup = &w.setup;
    dt_assert_ok(dt_train(&o, &err, &s), err);
    dt_train_summary_free(&s);
    close_world(&w);
    return s;
}

static void same_file(const char *a, const char *b, const char *name)
{
    char path[1400], *x, *y;
    size_t nx, ny;

    snprintf(path, sizeof(path), "%s/%s", a, name);
    dt_assert_ok(dt_file_read(path, 1 << 26, &err, &x, &nx), err);
    snprintf(path, sizeof(path), "%s/%s", b, name);
    dt_assert_ok(dt_file_read(path, 1 << 26, &err, &y, &ny), err);
    ck_assert_msg(nx == ny && memcmp(x, y, nx) == 0, "%s differs", name);
    dt_free(x);
    dt_free(y);
}

START_TEST(goes_on_exactly)
{
    char whole[160], parts[160];
    const char *one[] = {whole, "run.dropout=0.2"}, *two[] = {parts, one[1]};
    struct dt_train_summary a, b;
    double direct[7];

    make_shard();
    snprintf(whole, sizeof(whole), "run.checkpoint={dir: %s/whole}", dir);
    snprintf(parts, sizeof(parts), "run.checkpoint={dir: %s/parts, interval: 2}", dir);
    a = run(one, 2, 0);
    ck_assert_int_eq(a.last_step, 6);
    ck_assert_int_eq(a.loading.batches, 6);
    ck_assert_int_le(a.loading.waits, 5);
    ck_assert(!a.stopped && !a.resumed);
    ck_assert_double_gt(losses[1], losses[6]);
    memcpy(direct, losses, sizeof(direct));
    b = run(two, 2, 3);
    ck_assert_int_eq(b.last_step, 3);
    ck_assert(b.stopped);
    b = run(two, 2, 0);
    ck_assert(b.resumed && !b.stopped);
    ck_assert_int_eq(b.first_step, 3);
    ck_assert_int_eq(b.last_step, 6);
    ck_assert_int_eq(b.samples, 24);
    ck_assert_int_eq(b.tokens, a.tokens);
    for (int i = 1; i <= 6; i++)
        ck_assert_double_eq(losses[i], direct[i]);
    same_file(a.checkpoint, b.checkpoint, "model.safetensors");
    same_file(a.checkpoint, b.checkpoint, "optimizer.safetensors");
    /* nothing is left to do */
    b = run(two, 2, 0);
    ck_assert_int_eq(b.first_step, 6);
    ck_assert_int_eq(b.loading.batches, 0);
    ck_assert_int_eq(b.last_step, 6);
    remove_all();
}
END_TEST

/* Batch 41 is of words that nobody has seen.  Stopped right then, the run goes on from step 40 with the data behind that
 * batch, which counts. */
START_TEST(a_stop_where_it_rolls_back)
{
    char checkpoint[160], data[160];
    const char *over[] = {checkpoint,
                          data,
                          "run.steps=45",
                          "run.lr=1e-2",
                          "run.decay=constant",
                          "run.generate=0",
                          "run.packed=false",
                          "run.shuffle=false",
                          "run.spike={action: rollback, deviations: 3, window: 16}"};
    enum { N = sizeof(over) / sizeof(over[0]) };
    struct dt_train_summary s;

    make_shard();
    make_pictures("odd", 220, 160);
    snprintf(data, sizeof(data), "run.data=%s/odd-000000.tar", dir);
    snprintf(checkpoint, sizeof(checkpoint), "run.checkpoint={dir: %s/c, interval: 10}", dir);
    stop_at_event = true;
    s = run(over, N, 0);
    ck_assert(s.stopped);
    ck_assert_int_eq(s.trouble.rollbacks, 1);
    ck_assert_int_eq(s.last_step, 40);
    ck_assert_int_eq(s.samples, 41 * 4);
    stop_at_event = false;
    s = run(over, N, 0);
    ck_assert(s.resumed);
    ck_assert_int_eq(s.first_step, 40);
    ck_assert_int_eq(s.last_step, 45);
    ck_assert_int_eq(s.samples, 46 * 4);
    ck_assert_double_lt(losses[41], 2 * losses[40]);
    remove_all();
}
END_TEST

struct train_rank {
    const char *const *over;
    int n;
    struct dt_transport *t;
    struct dt_train_summary s;
    pthread_t thread;
};

static void *train_rank(void *arg)
{
    struct dt_train_options o = {.stop = &stop, .on_step = on_step};
    struct train_rank *r = arg;
    struct dt_error e;
    struct world w;

    dt_assert_ok(open_world(&w, r->over, r->n), err);
    o.setup = &w.setup;
    o.transport = r->t;
    dt_assert_ok(dt_train(&o, &e, &r->s), e);
    dt_train_summary_free(&r->s);
    close_world(&w);
    r->t->close(r->t);
    return NULL;
}

/* The same by two ranks; rank 0's summary. */
static struct dt_train_summary run_ranks(const char *const *over, int n, int64_t after)
{
    struct train_rank r[2] = {{over, n, NULL, {0}, 0}, {over, n, NULL, {0}, 0}};
    struct dt_transport *t[2];

    stop = 0;
    stop_after = after;
    dt_assert_ok(dt_transport_open_threads(2, &err, t), err);
    for (int k = 0; k < 2; k++) {
        r[k].t = t[k];
        ck_assert_int_eq(pthread_create(&r[k].thread, NULL, train_rank, &r[k]), 0);
    }
    for (int k = 0; k < 2; k++)
        pthread_join(r[k].thread, NULL);
    return r[0].s;
}

/* Two ranks, a module's tensors dealt to both, moments of the others shared out: what they save together and take
 * apart again is all that there is. */
START_TEST(ranks_go_on_exactly)
{
    char whole[160], parts[160];
    const char *one[] = {
        whole,
        "run.dropout=0.2",
        "search.strategy=manual",
        "train.microbatch=1",
        "train.zero=1",
        "plan={colocated: true, encoder: {dp: 2}, llm: {tp: 2}, generator: {dp: 2}}",
        _i ? "run.precision=bf16" : "run.precision=fp32"};
    const char *two[] = {parts, one[1], one[2], one[3], one[4], one[5], one[6]};
    struct dt_train_summary a, b;
    double direct[7];

    make_shard();
    if (_i == 0 || dt_test_has_bf16()) {
        snprintf(whole, sizeof(whole), "run.checkpoint={dir: %s/whole}", dir);
        snprintf(parts, sizeof(parts), "run.checkpoint={dir: %s/parts, interval: 2}", dir);
        a = run_ranks(one, 7, 0);
        ck_assert_int_eq(a.last_step, 6);
        ck_assert_int_eq(a.ranks, 2);
        memcpy(direct, losses, sizeof(direct));
        b = run_ranks(two, 7, 2); /* the request travels with the losses of the next step */
        ck_assert(b.stopped && b.last_step == 3);
        b = run_ranks(two, 7, 0);
        ck_assert(b.resumed && b.first_step == 3 && b.last_step == 6);
        for (int i = 1; i <= 6; i++)
            ck_assert_double_eq(losses[i], direct[i]);
        same_file(a.checkpoint, b.checkpoint, "model.safetensors");
        same_file(a.checkpoint, b.checkpoint, "optimizer.safetensors");
    }
    remove_all();
}
END_TEST

/* Stages and replicas change neither data nor noise nor what is dropped: one lane per module, or
 * three replicas and two stages of the LLM. */
START_TEST(plans_train_alike)
{
    static const char *const over[] = {
        "run.dropout=0.2", "search.strategy=manual", "train.microbatch=1",
        "plan={encoder: {dp: 2}, llm: {pp: 2, dp: 2}, generator: {dp: 4}}"};
    double direct[7], kept;

    make_shard();
    run(NULL, 0, 0);
    kept = losses[1];
    run(over, 1, 0);
    memcpy(direct, losses, sizeof(direct));
    ck_assert_double_gt(fabs(direct[1] - kept), 1e-4 * kept);
    run(over, 4, 0);
    ck_assert_double_eq_tol(losses[1], direct[1], 1e-5 * direct[1]);
    for (int i = 2; i <= 6; i++)
        ck_assert_double_eq_tol(losses[i], direct[i], 1e-3 * direct[i]);
    remove_all();
}
END_TEST

START_TEST(learns_and_logs)
{
    char log[160], path[160], *text, *at;
    const char *over[] = {log, "run.steps=40", "run.log_interval=10", "run.generate=0.3"};
    size_t n;
    int lines = 0;

    make_shard();
    snprintf(log, sizeof(log), "run.log_dir=%s/a/b", dir);
    run(over, 4, 0);
    ck_assert_double_lt(losses[40], 0.5 * losses[1]);
    snprintf(path, sizeof(path), "%s/a/b/metrics.jsonl", dir);
    dt_assert_ok(dt_file_read(path, 1 << 20, &err, &text, &n), err);
    for (at = text; (at = strstr(at, "\"loss_text\":")); at++)
        lines++;
    ck_assert_int_eq(lines, 4);
    dt_assert_has(text, "\"step\":40");
    dt_free(text);
    remove_all();
}
END_TEST

START_TEST(refuses)
{
    static const char *const no_data[] = {"run.data=/nowhere/at-all.tar"};
    static const char *const vocab[] = {"model.modules.llm.vocab=100"};
    char checkpoint[160];
    const char *keep[] = {checkpoint}, *other[] = {checkpoint, "run.seed=9"};
    struct dt_train_options o = {0};
    struct dt_train_summary s;
    struct world w;

    make_shard();
    ck_assert_int_ne(open_world(&w, no_data, 1), DT_OK);
    ck_assert_int_eq(dt_status_exit_code(err.status) > 0, 1);
    close_world(&w);
    ck_assert_int_eq(open_world(&w, vocab, 1), DT_ERR_INPUT);
    dt_assert_has(err.message, "vocabulary of 100");
    close_world(&w);
    /* a checkpoint of another run */
    snprintf(checkpoint, sizeof(checkpoint), "run.checkpoint={dir: %s/c}", dir);
    run(keep, 1, 1);
    dt_assert_ok(open_world(&w, other, 2), err);
    o.setup = &w.setup;
    ck_assert_int_eq(dt_train(&o, &err, &s), DT_ERR_INPUT);
    dt_assert_has(err.message, "--from-scratch");
    o.from_scratch = true;
    dt_assert_ok(dt_train(&o, &err, &s), err);
    dt_train_summary_free(&s);
    close_world(&w);
    remove_all();
}
END_TEST

START_TEST(run_map_errors_have_places)
{
    static const struct {
        const char *over, *says;
    } bad[] = {
        {"run.lrr=1", "lr"},
        {"run.lr=-1", "lr"},
        {"run.decay=cosin", "cosine"},
        {"run.precision=fp16", "precision"},
        {"run.checkpoint={interval: 4}", "dir"},
        {"run.data=[]", "data"},
        {"run.generate=1.5", "generate"},
        {"run.dropout=1", "dropout"},
    };
    struct dt_job *j;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ck_assert_int_eq(
            dt_job_parse("job", job_text, strlen(job_text), &bad[i].over, 1, true, &err, &j),
            DT_ERR_INPUT);
        dt_assert_has(err.message, bad[i].says);
        ck_assert_str_eq(err.file, "command line");
        ck_assert_int_gt(err.line, 0);
    }
}
END_TEST

static const char *const replicas[] = {
    "search.strategy=manual", "train.microbatch=1",
    "plan={encoder: {dp: 2}, llm: {pp: 2, dp: 2}, generator: {dp: 4}}"};

static void open_ahead(struct world *w, int64_t epochs, int64_t count, struct dt_loader **loader,
                       struct dt_prefetch **ahead)
{
    struct dt_loader_options l;

    dt_assert_ok(open_world(w, replicas, 3), err);
    l = w->setup.loader;
    l.epochs = epochs;
    dt_assert_ok(dt_loader_open(&l, &err, loader), err);
    dt_assert_ok(dt_prefetch_open(&w->setup, &(struct dt_prefetch_data){.loader = *loader}, count,
                                  &err, ahead),
                 err);
}

/* A step that lasts until `made` batches are there, which nothing here makes; the limit is for a
 * thread that does not. */
static void step_until(struct dt_prefetch *a, int64_t made)
{
    for (int i = 0; i < 60000 && dt_prefetch_made(a) < made; i++)
        usleep(1000);
    ck_assert_int_eq(dt_prefetch_made(a), made);
}

/* Of the batch that comes next, made here: its program in each plan. */
static void digests_here(const struct dt_setup *s, struct dt_loader *l, const struct dt_plan *plan,
                         int plans, uint64_t *digest, struct dt_data_cursor *behind)
{
    const struct dt_model *m = s->job->model;
    struct dt_sequence *seqs[4];
    struct dt_assignment *assignment;
    struct dt_samples *samples;
    struct dt_program *p;

    for (int i = 0; i < 4; i++)
        dt_assert_ok(dt_loader_next(l, &err, &seqs[i]), err);
    dt_loader_cursor(l, behind);
    dt_assert_ok(dt_batching_samples((const struct dt_sequence *const *)seqs, 4, &err, &samples),
                 err);
    for (int k = 0; k < plans; k++) {
        dt_assert_ok(dt_assign(&plan[k], m, s->cost, samples, 0, &err, &assignment), err);
        dt_assert_ok(dt_sched_compile(&plan[k], m, &s->job->cluster, assignment, s->cost, &err, &p),
                     err);
        digest[k] = dt_program_digest(p);
        dt_program_free(p);
        dt_assign_free(assignment);
    }
    dt_samples_free(samples);
    for (int i = 0; i < 4; i++)
        dt_sequence_free(seqs[i]);
}

static uint64_t digest_here(const struct dt_setup *s, struct dt_loader *l,
                            struct dt_data_cursor *behind)
{
    uint64_t digest;

    digests_here(s, l, &s->plan, 1, &digest, behind);
    return digest;
}

/* What the thread did last, one after the other: of each batch its load, then its order. */
static void check_spans(const struct dt_prefetch *a, int64_t made)
{
    struct dt_prefetch_span s[DT_PREFETCH_SPANS];
    int n = dt_prefetch_spans(a, s);

    ck_assert_int_eq(n, DT_PREFETCH_SPANS);
    for (int i = 0; i < n; i++) {
        ck_assert_int_eq(s[i].batch, made - DT_PREFETCH_BATCHES - 1 + i / DT_DATA_WORK_N);
        ck_assert_int_eq(s[i].work, i % DT_DATA_WORK_N ? DT_DATA_ORDER : DT_DATA_LOAD);
        ck_assert_uint_le(s[i].begin_ns, s[i].end_ns);
        ck_assert_uint_le(i > 0 ? s[i - 1].end_ns : 1, s[i].begin_ns);
    }
}

/* While a step runs the next batches are loaded, put in order and compiled, two of them and no
 * more; they are what the same thread would have made. */
START_TEST(batches_are_made_beside_the_steps)
{
    enum { STEPS = 8 };
    struct dt_prefetch_report r;
    struct world w, here;
    struct dt_loader *loader, *own;
    struct dt_prefetch *a;

    make_shard();
    open_ahead(&w, 0, STEPS, &loader, &a);
    ck_assert(w.setup.plan.policy.intra_reorder && w.setup.cost);
    dt_assert_ok(open_world(&here, replicas, 3), err);
    dt_assert_ok(dt_loader_open(&here.setup.loader, &err, &own), err);
    for (int64_t k = 1; k <= STEPS; k++) {
        struct dt_prefetch_batch *b;
        struct dt_data_cursor behind;

        dt_assert_ok(dt_prefetch_take(a, &err, &b), err);
        ck_assert_uint_eq(dt_program_digest(b->program), digest_here(&here.setup, own, &behind));
        dt_assert_cursor_eq(b->cursor, behind);
        step_until(a, k + DT_PREFETCH_BATCHES < STEPS ? k + DT_PREFETCH_BATCHES : STEPS);
        dt_prefetch_batch_free(b);
    }
    dt_prefetch_report(a, &r);
    ck_assert_int_eq(r.batches, STEPS);
    ck_assert_int_eq(r.waits, 0);
    ck_assert(r.load_s > 0 && r.order_s > 0);
    ck_assert_int_eq(dt_prefetch_take(a, &err, &(struct dt_prefetch_batch *){NULL}),
                     DT_ERR_INTERNAL);
    dt_prefetch_stop(a);
    check_spans(a, STEPS);
    dt_prefetch_close(a);
    dt_loader_close(loader);
    dt_loader_close(own);
    close_world(&w);
    close_world(&here);
    remove_all();
}
END_TEST

/* Orders in turn: each batch comes in all of them, and again in the next round. */
START_TEST(orders_take_turns)
{
    enum { WARM_UP = 1, BATCHES = 2, ROUNDS = 3 };
    static struct dt_train_turns t;
    uint64_t digest[WARM_UP + BATCHES][DT_WAY_N];
    struct dt_data_cursor behind[WARM_UP + BATCHES];
    struct dt_loader *loader, *own;
    struct dt_prefetch *a;
    struct world w;

    make_shard();
    dt_assert_ok(open_world(&w, replicas, 3), err);
    dt_train_turns_ways(&t, w.job->model, &w.setup.plan);
    ck_assert_int_eq(t.n, 4); /* replicas differ: not Entrain's */
    t.warm_up = WARM_UP;
    t.batches = BATCHES;
    t.rounds = ROUNDS;
    dt_assert_ok(dt_loader_open(&w.setup.loader, &err, &own), err);
    for (int i = 0; i < WARM_UP + BATCHES; i++)
        digests_here(&w.setup, own, t.plan, t.n, digest[i], &behind[i]);
    dt_assert_ok(dt_loader_open(&w.setup.loader, &err, &loader), err);
    dt_assert_ok(dt_prefetch_open(&w.setup,
                                  &(struct dt_prefetch_data){.loader = loader, .turns = &t},
                                  dt_train_turns_steps(&t), &err, &a),
                 err);
    for (int64_t s = 0; s < dt_train_turns_steps(&t); s++) {
        struct dt_prefetch_batch *b;
        struct dt_train_turn now;

        dt_train_turn(&t, s, &now);
        dt_assert_ok(dt_prefetch_take(a, &err, &b), err);
        if (s == 7) { /* made anew, as when an image cannot be decoded, from the middle of it all */
            dt_assert_ok(dt_prefetch_again(a, b, NULL, 0, &err), err);
            dt_assert_ok(dt_prefetch_take(a, &err, &b), err);
        }
        ck_assert_uint_eq(dt_program_digest(b->program), digest[now.batch][now.order]);
        dt_assert_cursor_eq(b->cursor, behind[now.batch]);
        ck_assert(b->how.by_batch && b->how.way == t.way[now.order]);
        dt_prefetch_batch_free(b);
    }
    dt_prefetch_close(a);
    dt_loader_close(loader);
    dt_loader_close(own);
    close_world(&w);
    remove_all();
}
END_TEST

/* What is wrong with a batch is said when it is asked for, not while an earlier one trains; batches
 * that nobody takes are no loss. */
START_TEST(errors_come_with_their_batch)
{
    struct dt_prefetch_batch *b;
    struct dt_loader *loader;
    struct dt_prefetch *a;
    struct world w;
    enum dt_status st;
    int64_t n = 0;

    make_shard();
    open_ahead(&w, 1, INT64_MAX, &loader, &a);
    while ((st = dt_prefetch_take(a, &err, &b)) == DT_OK) {
        dt_prefetch_batch_free(b);
        n++;
    }
    ck_assert_int_eq(st, DT_ERR_INPUT);
    dt_assert_has(err.message, "the data ends after");
    ck_assert_int_ge(n, 1);
    ck_assert_int_eq(dt_prefetch_made(a), n);
    dt_prefetch_close(a);
    dt_loader_close(loader);
    close_world(&w);
    open_ahead(&w, 0, INT64_MAX, &loader, &a);
    step_until(a, DT_PREFETCH_BATCHES);
    dt_prefetch_close(a);
    dt_loader_close(loader);
    close_world(&w);
    remove_all();
}
END_TEST

/* What is kept of a run was done for batches behind those waiting at its last iteration, while that
 * ran. */
START_TEST(keeps_what_ran_beside_the_last_step)
{
    static const char *const over[] = {"run.steps=3"};
    struct dt_train_options o = {0};
    struct dt_train_summary s;
    struct world w;

    make_shard();
    dt_assert_ok(open_world(&w, over, 1), err);
    o.setup = &w.setup;
    dt_assert_ok(dt_train(&o, &err, &s), err);
    ck_assert_int_eq(s.last_step, 3);
    ck_assert_int_eq(s.loading.batches, 3);
    ck_assert_int_gt(s.timeline.origin_ns, 0);
    for (int64_t i = 0; i < s.n_beside; i++) {
        const struct dt_run_data *d = &s.beside[i];

        ck_assert_int_eq(d->rank, 0);
        ck_assert(d->batch > s.last_step && d->batch <= s.last_step + DT_PREFETCH_BATCHES);
        ck_assert_int_le(d->begin_ns, d->end_ns);
        ck_assert_int_lt(d->begin_ns, s.timeline.makespan_ns);
        ck_assert_int_gt(d->end_ns, 0);
    }
    dt_train_summary_free(&s);
    close_world(&w);
    remove_all();
}
END_TEST

/* What training predicts of a lane is what a simulation of the same program says. */
START_TEST(predicts_memory_as_a_simulation_does)
{
    static const char *const over[] = {
        "search.strategy=manual", "train.microbatch=1",
        "plan={encoder: {dp: 2}, llm: {pp: 2, dp: 2}, generator: {dp: 4}}", "train.zero=0",
        "run.steps=1"};
    struct dt_train_options o = {0};
    struct dt_train_summary s;
    double bytes[16];
    struct world w;

    make_shard();
    dt_assert_ok(open_world(&w, over, 5), err);
    ck_assert(dt_cluster_is_cpu(&w.job->cluster));
    o.setup = &w.setup;
    dt_assert_ok(dt_train(&o, &err, &s), err);
    ck_assert_int_eq(s.program->n_lanes, 10);
    dt_assert_ok(dt_report_lane_memory(s.program, w.job->model, &w.job->cluster, &err, bytes), err);
    for (int i = 0; i < s.program->n_lanes; i++) {
        ck_assert_int_gt(s.lanes[i].predicted_bytes, 1000);
        ck_assert_int_gt(s.lanes[i].allocated_bytes, 1000);
        /* the cluster is one of CPUs, so on another device the simulation speaks of others */
        if (w.device->info.packs)
            ck_assert_int_eq(s.lanes[i].predicted_bytes, (int64_t)bytes[i]);
    }
    dt_train_summary_free(&s);
    close_world(&w);
    remove_all();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("train");
    TCase *tc = dt_test_case(suite, "loop", 600);

    tcase_add_test(tc, goes_on_exactly);
    tcase_add_test(tc, a_stop_where_it_rolls_back);
    tcase_add_loop_test(tc, ranks_go_on_exactly, 0, 2);
    tcase_add_test(tc, plans_train_alike);
    tcase_add_test(tc, learns_and_logs);
    tcase_add_test(tc, refuses);
    tcase_add_test(tc, run_map_errors_have_places);
    tcase_add_test(tc, batches_are_made_beside_the_steps);
    tcase_add_test(tc, orders_take_turns);
    tcase_add_test(tc, errors_come_with_their_batch);
    tcase_add_test(tc, keeps_what_ran_beside_the_last_step);
    tcase_add_test(tc, predicts_memory_as_a_simulation_does);
    return dt_test_run(suite);
}
