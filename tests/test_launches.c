/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a step puts on a device's queues, counted: as much for a microbatch of many documents and images of all sizes as
 * for one of each, but for convolutions, which take images of one size.  What it does not do after the first steps:
 * allocate, or wait for tensor parallelism.  And what it takes for waiting. */
#include "exec_fixture.h"

#include "base/clock.h"
#include "comm/transport.h"

#include <inttypes.h>
#include <pthread.h>

enum { WARM = 2, RANKS = 2, SEQS = 8, WAITS = 256, PLACE_ALLOCATIONS = 2 /* host and device */ };

static const char model[] =
    EF_ENCODER ", " EF_LLM ", "
               "generator: {kind: unet, channels: [8, 16], attention: [false, true], head_dim: 8, "
               "res_blocks: 1, in_channels: 1, out_channels: 1, context_dim: 24, context_len: 3, "
               "latent_scale: 1}";

/* ---- samples: documents of a caption, a drawing and text each ---- */

static void add_image(struct dt_sequence *s, uint32_t flag, int w, int h)
{
    struct dt_sequence_item *it = &s->items[s->n_items++];

    *it = (struct dt_sequence_item){.w = w, .h = h, .flags = flag, .doc = (uint32_t)s->n_docs};
    it->px = dt_calloc((size_t)(w * h), 3);
    ck_assert_ptr_nonnull(it->px);
    for (int i = 0; i < 3 * w * h; i++)
        ((uint8_t *)it->px)[i] = (uint8_t)(7 * i + w);
    if (flag != DT_ITEM_ENCODE)
        return;
    it->first = (uint32_t)s->n_tokens + 1;
    it->n = (uint32_t)((w + 3) / 4 * ((h + 3) / 4));
}

/* Its two images are of w x h and of h x w pixels. */
static void add_document(struct dt_sequence *s, int w, int h, int text)
{
    struct dt_sequence_doc *d = &s->docs[s->n_docs];
    int at = s->n_tokens;

    *d = (struct dt_sequence_doc){.task = DT_TASK_CAPTION, .first = (uint32_t)at};
    add_image(s, DT_ITEM_ENCODE, w, h);
    add_image(s, DT_ITEM_GENERATE, h, w);
    s->ids[at++] = 1;
    at += (int)s->items[s->n_items - 2].n;
    for (int i = 0; i < text; i++)
        s->ids[at++] = 3 + i;
    d->n = (uint32_t)(at - s->n_tokens);
    for (int i = s->n_tokens; i < at; i++) {
        s->doc_of[i] = s->n_docs;
        s->labels[i] = i + 1 < at && i >= at - text ? s->ids[i + 1] : -1;
    }
    s->n_tokens = at;
    s->n_docs++;
}

/* n sequences of `docs` documents, whose images have `kinds` sizes in turn. */
static void add_sequences(struct exec_fixture *f, int n, int docs, int kinds)
{
    static const int sizes[][2] = {{8, 8}, {4, 12}, {16, 4}, {8, 12}, {12, 8}, {20, 4}};

    for (int k = 0; k < n; k++) {
        struct dt_sequence *s = dt_calloc(1, sizeof(*s));

        ck_assert_ptr_nonnull(s);
        s->index = k;
        s->seq_len = EF_SEQ_LEN;
        s->ids = dt_calloc(3 * EF_SEQ_LEN, sizeof(int32_t));
        s->docs = dt_calloc(8, sizeof(*s->docs));
        s->items = dt_calloc(8, sizeof(*s->items));
        ck_assert(s->ids && s->docs && s->items);
        s->labels = s->ids + EF_SEQ_LEN;
        s->doc_of = s->ids + 2 * EF_SEQ_LEN;
        for (int d = 0; d < docs; d++)
            add_document(s, sizes[(k * docs + d) % kinds][0], sizes[(k * docs + d) % kinds][1],
                         4 + d);
        s->text_tokens = s->n_tokens;
        f->seqs[k] = s;
    }
    f->n_seqs = n;
}

/* ---- counts ---- */

struct counts {
    struct dt_fake_count of[DT_FAKE_COUNTS];
    int n;
    uint64_t allocations;
};

static struct counts counts_of(const struct dt_device *dev)
{
    struct counts c = {.allocations = dt_fake_allocations(dev)};

    c.n = dt_fake_counts(dev, c.of);
    return c;
}

static uint64_t count(const struct counts *c, const char *what)
{
    for (int k = 0; k < c->n; k++)
        if (strcmp(c->of[k].what, what) == 0)
            return c->of[k].n;
    return 0;
}

/* Of the step after WARM others. */
static struct counts counts_of_step(struct exec_fixture *f)
{
    struct counts before, after;

    for (int i = 1; i <= WARM; i++)
        ef_step(f, i);
    before = counts_of(f->dev);
    ef_step(f, WARM + 1);
    after = counts_of(f->dev);
    for (int k = 0; k < after.n; k++)
        after.of[k].n -= count(&before, after.of[k].what);
    after.allocations -= before.allocations;
    return after;
}

/* A step of one rank. */
struct step {
    int n, docs; /* sequences, documents of each */
    int kinds;   /* of sizes of images */
    int microbatch;
    int dp; /* of the LLM; the other modules have one replica */
    double dropout;
    bool full; /* everything is recomputed */
};

static struct counts step_of(const struct step *s)
{
    const struct ef_layout layout[] = {{1, 1, 0}, {1, s->dp, 0}, {1, 1, 0}};
    struct exec_fixture f;
    struct counts c;

    ef_init(&f, model, 1);
    add_sequences(&f, s->n, s->docs, s->kinds);
    f.dropout = s->dropout;
    ef_plan(&f, s->microbatch, layout, s->dp == 1, DT_SCHED_1F1B);
    if (s->full)
        fx_modes(&f.plan, DT_RECOMPUTE_FULL, 1);
    ef_open(&f);
    c = counts_of_step(&f);
    ef_free(&f);
    return c;
}

static bool convolves(const char *what)
{
    return strncmp(what, "conv_", 5) == 0;
}

/* Loop: without and with dropout, nothing and everything recomputed.  The images of the second step are of one size,
 * those of the third of six in turn: a convolution takes a run of images of one size. */
START_TEST(launches_do_not_grow_with_what_a_microbatch_holds)
{
    struct step s = {1, 1, 1, 1, 1, _i % 2 ? 0.25 : 0, _i / 2};
    struct counts one = step_of(&s), alike, many;
    int kinds = 0;

    s.n = s.microbatch = 4;
    s.docs = 3;
    alike = step_of(&s);
    s.kinds = 6;
    many = step_of(&s);
    ck_assert_int_eq(one.n, many.n);
    for (int k = 0; k < many.n; k++) {
        const char *what = many.of[k].what;
        uint64_t n = count(&one, what), runs = convolves(what) ? 12 : 1;

        ck_assert_msg(count(&alike, what) == n && many.of[k].n == n * runs,
                      "%s: %" PRIu64 " of a microbatch of one document, %" PRIu64
                      " of twelve, %" PRIu64 " with images of six sizes",
                      what, n, count(&alike, what), many.of[k].n);
        kinds += many.of[k].n > 0;
    }
    ck_assert_int_gt(kinds, 20);
    ck_assert_uint_eq(count(&one, "dropout") > 0, s.dropout > 0);
}
END_TEST

/* Three modules of one stage each, M microbatches. */
START_TEST(a_step_is_few_launches)
{
    const int m = 1 + _i;
    const struct step s = {4, 2, 6, 4 / m, 1, 0, false};
    struct counts c = step_of(&s);

    ck_assert_uint_eq(count(&c, "adamw"), 3); /* all tensors of a stage at once */
    ck_assert_uint_eq(count(&c, "sum_sq"), 3);
    ck_assert_uint_eq(count(&c, "clip_coef"), 1);
    /* a batch of a module; losses of a microbatch, and the norm */
    ck_assert_uint_eq(count(&c, dt_fake_copy_names[DT_COPY_TO_DEVICE]), 3 * m);
    ck_assert_uint_eq(count(&c, dt_fake_copy_names[DT_COPY_TO_HOST]), 2 * m + 1);
    /* the spare place of a module's batches comes when the device is behind for the first time */
    ck_assert_uint_le(c.allocations, 3 * PLACE_ALLOCATIONS);
}
END_TEST

/* Microbatches of the encoder and the generator have samples of two replicas of the LLM, every other one: of each there
 * is one copy from module to module and back, however many samples it has. */
START_TEST(rows_of_many_samples_are_one_copy)
{
    const char *on_device = dt_fake_copy_names[DT_COPY_ON_DEVICE];
    const struct step s[] = {{4, 1, 6, 2, 2, 0, false}, {16, 1, 6, 8, 2, 0, false}};
    struct counts few = step_of(&s[0]), many = step_of(&s[1]);

    ck_assert_uint_gt(count(&few, "copy"), 0);
    ck_assert_uint_eq(count(&few, "copy"), count(&many, "copy"));
    ck_assert_uint_eq(count(&few, on_device), count(&many, on_device));
}
END_TEST

/* ---- two ranks on one device, over its queues ---- */

struct rank {
    struct exec_fixture f;
    struct dt_transport *t, *data;
    struct dt_device *dev;
    pthread_barrier_t *together;
    pthread_t thread;
    int tp, pp;
    bool ring; /* of keys and values */
    uint64_t allocations;
    double wall_s; /* of the last step */
    uint64_t
        asked; /* times at which the main thread asked in it whether something of the data transport is over */
    enum dt_status (*test)(struct dt_transport *t, struct dt_req *r, bool *done,
                           struct dt_error *err); /* of the data transport, as what follows */
    enum dt_status (*connect)(struct dt_transport *t, const struct dt_transport_edge *edges, int n,
                              struct dt_error *err);
    int connects;
};

static struct rank ranks[RANKS];

static enum dt_status counting_test(struct dt_transport *t, struct dt_req *req, bool *done,
                                    struct dt_error *err)
{
    struct rank *r = &ranks[t->rank];

    r->asked += pthread_equal(pthread_self(), r->thread) != 0;
    return r->test(t, req, done, err);
}

static enum dt_status counting_connect(struct dt_transport *t,
                                       const struct dt_transport_edge *edges, int n,
                                       struct dt_error *err)
{
    struct rank *r = &ranks[t->rank];

    r->connects++;
    return r->connect(t, edges, n, err);
}

static void *live(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = &r->f;
    struct ef_layout layout[] = {{r->pp, 1, 1}};
    uint64_t t0;

    ef_init(f, EF_LLM, 1);
    f->dev->close(f->dev);
    f->dev = r->dev;
    f->shared = true;
    f->together = r->together;
    ef_seqs_of(f, SEQS, 5, EF_TEXT);
    ef_plan(f, 1, layout, false, DT_SCHED_1F1B);
    f->plan.modules[0].layout.tp = r->tp;
    f->plan.modules[0].layout.cp = RANKS / (r->tp * r->pp);
    f->plan.policy.cp_comm = r->ring ? DT_CP_COMM_RING : DT_CP_COMM_GATHER;
    dt_assert_ok(dt_plan_place(&f->plan, &f->cluster, &f->err), f->err);
    f->transport = r->t;
    f->data = r->data;
    ef_open(f);
    for (int i = 1; i <= WARM; i++)
        ef_step(f, i);
    pthread_barrier_wait(r->together);
    if (r->t->rank == 0)
        dt_fake_waits(r->dev, NULL, 0);
    r->allocations = dt_fake_allocations(r->dev);
    r->thread = pthread_self();
    r->asked = 0;
    pthread_barrier_wait(r->together);
    t0 = dt_clock_ns();
    ef_step(f, WARM + 1);
    r->wall_s = (double)(dt_clock_ns() - t0) * 1e-9;
    pthread_barrier_wait(r->together);
    r->allocations = dt_fake_allocations(r->dev) - r->allocations;
    pthread_barrier_wait(r->together);
    ef_free(f);
    return NULL;
}

/* Steps with delays; *waits of the last one, and how many.  Data goes over the device's queues, or by the host. */
static size_t run_both(int tp, int pp /* else cp */, bool ring, bool staged,
                       struct dt_fake_wait waits[WAITS])
{
    const struct dt_device_options o = {.threads = 1, .no_bf16 = true};
    struct dt_transport *t[RANKS], *data[RANKS];
    const struct dt_device *devices[RANKS];
    struct dt_device *dev;
    pthread_barrier_t together;
    struct dt_error err;
    size_t n;

    setenv("DISTTRAIN_FAKE_DELAY_US", "300", 1);
    setenv("DISTTRAIN_FAKE_SHARE", "32", 1);
    dt_assert_ok(dt_fake_device_open(&o, &err, &dev), err);
    for (int k = 0; k < RANKS; k++)
        devices[k] = dev;
    dt_fake_share(dev);
    pthread_barrier_init(&together, NULL, RANKS);
    dt_assert_ok(dt_transport_open_threads(RANKS, &err, t), err);
    if (!staged)
        dt_assert_ok(dt_transport_open_threads_on(RANKS, devices, &err, data), err);
    for (int k = 0; k < RANKS && staged; k++)
        dt_assert_ok(dt_transport_open_staged(t[k], dev, &err, &data[k]), err);
    ck_assert(data[0]->on_queue == !staged);
    for (int k = 0; k < RANKS; k++) {
        ranks[k] = (struct rank){.t = t[k], .data = data[k], .dev = dev, .together = &together};
        ranks[k].tp = tp;
        ranks[k].pp = pp;
        ranks[k].ring = ring;
        ranks[k].test = data[k]->test;
        data[k]->test = counting_test;
        ranks[k].connect = data[k]->connect;
        data[k]->connect = counting_connect;
    }
    for (int k = 0; k < RANKS; k++) {
        ck_assert_int_eq(pthread_create(&ranks[k].thread, NULL, live, &ranks[k]), 0);
    }
    for (int k = 0; k < RANKS; k++)
        pthread_join(ranks[k].thread, NULL);
    n = dt_fake_waits(dev, waits, WAITS);
    ck_assert_uint_le(n, WAITS);
    for (int k = 0; k < RANKS; k++) {
        data[k]->close(data[k]);
        t[k]->close(t[k]);
    }
    pthread_barrier_destroy(&together);
    dev->close(dev);
    return n;
}

/* Of every layer and microbatch there are three collectives and more: waits and memory for them would be hundreds.
 * Loop: over queues, by the host; of tensor parallelism, of context parallelism, of it on a ring. */
START_TEST(what_a_lane_shares_neither_waits_nor_allocates)
{
    struct dt_fake_wait waits[WAITS];
    static const char *const names[] = {"tensor", "context", "context, on a ring,"};
    size_t n = run_both(_i / 2 > 0 ? 1 : RANKS, 1, _i / 2 == 2, _i % 2 == 1, waits), syncs = 0;

    for (size_t k = 0; k < n; k++)
        syncs += waits[k].kind != DT_FAKE_EVENT_SYNC;
    printf("%s parallelism: %zu waits of %d ranks, %zu of them for queues\n", names[_i / 2], n,
           RANKS, syncs);
    /* losses and norm, the end of the step, the queues of the communication thread; places of batches */
    ck_assert_uint_le(syncs, 16 * RANKS);
    ck_assert_uint_le(n - syncs, SEQS * RANKS);
    for (int k = 0; k < RANKS; k++) {
        /* of both: a spare place, a request that is the first of its queue */
        ck_assert_uint_le(ranks[k].allocations, 2 * PLACE_ALLOCATIONS * RANKS);
        ck_assert_uint_eq(ranks[k].asked, 0);
        ck_assert_int_eq(ranks[k].connects, WARM + 1); /* before each step, over queues or not */
    }
}
END_TEST

/* The host, which is ahead, waits for nearly all of the step; the compute queue only where it has nothing to do. */
START_TEST(waiting_is_that_of_the_compute_queue)
{
    struct dt_fake_wait waits[WAITS];

    run_both(1, RANKS, false, false, waits);
    for (int k = 0; k < RANKS; k++) {
        const struct exec_fixture *f = &ranks[k].f;

        printf("stage %d: %.2f ms of compute and %.2f ms of waiting in %.2f ms\n", k,
               f->compute_s * 1e3, f->waited_s * 1e3, ranks[k].wall_s * 1e3);
        ck_assert_double_gt(f->compute_s, 0);
        ck_assert_double_gt(f->waited_s, 0);
        ck_assert_double_le(f->compute_s + f->waited_s, ranks[k].wall_s);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("launches");
    TCase *t = dt_test_case(s, "launches", 120);

    setenv("DISTTRAIN_FAKE_DEVICE", "1", 1);
    tcase_add_loop_test(t, launches_do_not_grow_with_what_a_microbatch_holds, 0, 4);
    tcase_add_loop_test(t, a_step_is_few_launches, 0, 2);
    tcase_add_test(t, rows_of_many_samples_are_one_copy);
    tcase_add_loop_test(t, what_a_lane_shares_neither_waits_nor_allocates, 0, 6);
    tcase_add_test(t, waiting_is_that_of_the_compute_queue);
    return dt_test_run(s);
}
