/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * When input is there: closed forms of queues on one lane, and random plans beside queues that are walked one piece at
 * a time, as plainly as possible. */
#include "core/schedule/supply.h"

#include "random_plan.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 120, SIDE = 640, PIECES_MAX = 1 << 16, CORES_MAX = 64, NODES_MAX = 512 };
enum { ITERATIONS_MAX = 64 };

/* ---- one encoder on a node of its own, the LLM on another; n samples of k equal images ---- */

static void row(struct sched_fixture *s, int n, int k)
{
    sf_init(s);
    sf_encoder(s, "encoder", 2);
    sf_llm(s, 2);
    sf_edge(s, 0, 1);
    sf_plan(s, n, 1, DT_SCHED_1F1B);
    sf_layout(s, 0, 8, 1, 1, 1);
    sf_layout(s, 1, 8, 1, 1, 1);
    sf_samples(s, n, 1, 0, false, 1);
    for (int i = 0; i < n; i++)
        s->item_first[i] = (uint64_t)(i * k);
    s->item_first[n] = (uint64_t)(n * k);
    for (int i = 0; i < n * k; i++)
        s->items[i] = (struct dt_sample_item){SIDE, SIDE, DT_MODALITY_IMAGE, DT_ITEM_ENCODE};
    sf_compile(s);
}

/* An image takes 1 ms; texts take no time. */
static struct dt_sched_supply millisecond(enum dt_sched_supply_mode mode)
{
    struct dt_sched_supply y;

    dt_sched_supply_defaults(&y);
    y.mode = mode;
    y.decode_px_per_s = 1e3 * SIDE * SIDE;
    y.tokenize_bytes_per_s = 1e30;
    return y;
}

struct ran {
    int64_t *ns, *release;  /* [n_ops] */
    int64_t fed_ns, all_ns; /* the iteration without and with releases */
    int64_t total_ns;       /* all iterations until then */
    int iterations;         /* until releases repeated */
    struct dt_sched_supplied done;
};

static struct dt_sched_stream *stream_of(struct sched_fixture *s, const struct dt_sched_supply *y)
{
    struct dt_sched_stream *x;

    dt_assert_ok(dt_sched_stream_new(y, &s->f.model, &s->f.cluster, &s->samples, &s->err, &x),
                 s->err);
    return x;
}

/* One more iteration of it; how long it takes. */
static int64_t flow(struct sched_fixture *s, struct dt_sched_stream *x, struct dt_program *p,
                    const int64_t *ns, int64_t *release, struct dt_sched_supplied *done)
{
    int64_t span;

    dt_assert_ok(dt_sched_stream_next(x, p, ns, &s->err, release, done), s->err);
    p->release_ns = release;
    dt_assert_ok(dt_timeline_makespan(p, NULL, ns, &s->err, &span), s->err);
    p->release_ns = NULL;
    dt_sched_stream_ran(x, span);
    return span;
}

/* The same batch until its releases repeat. */
static void settle(struct sched_fixture *s, const struct dt_sched_supply *y, struct ran *r)
{
    struct dt_sched_stream *x = stream_of(s, y);
    size_t bytes = s->p->n_ops * sizeof *r->release;
    int64_t *before = calloc(s->p->n_ops + 1, sizeof *before);

    r->iterations = 0;
    r->total_ns = 0;
    do {
        memcpy(before, r->release, bytes);
        r->all_ns = flow(s, x, s->p, r->ns, r->release, &r->done);
        r->total_ns += r->all_ns;
    } while ((++r->iterations == 1 || memcmp(before, r->release, bytes) != 0) &&
             r->iterations < ITERATIONS_MAX);
    free(before);
    dt_sched_stream_free(x);
}

/* Forwards of the encoder take f ns, all else nothing. */
static void run_row(struct sched_fixture *s, const struct dt_sched_supply *y, int64_t f,
                    struct ran *r)
{
    r->ns = calloc(s->p->n_ops + 1, sizeof *r->ns);
    r->release = calloc(s->p->n_ops + 1, sizeof *r->release);
    ck_assert(r->ns && r->release);
    for (uint32_t i = 0; i < s->p->n_ops; i++)
        if (s->p->ops[i].kind == DT_OP_FORWARD && s->p->ops[i].module == 0)
            r->ns[i] = f;
    dt_assert_ok(dt_timeline_makespan(s->p, NULL, r->ns, &s->err, &r->fed_ns), s->err);
    settle(s, y, r);
}

static void drop(struct ran *r)
{
    free(r->ns);
    free(r->release);
}

static int64_t release_of(const struct sched_fixture *s, const struct ran *r, int module,
                          uint32_t mb)
{
    for (uint32_t i = 0; i < s->p->n_ops; i++)
        if (s->p->ops[i].kind == DT_OP_FETCH && s->p->ops[i].module == module &&
            s->p->ops[i].mb == mb)
            return r->release[i];
    ck_abort_msg("no FETCH of microbatch %u", mb);
    return -1;
}

/* Of images of 1 ms on c cores the q-th is there after ceil(q / c) ms. */
START_TEST(without_prefetch_cores_set_the_pace)
{
    for (int c = 1; c <= 9; c++) {
        struct dt_sched_supply y = millisecond(DT_SCHED_SUPPLY_COLOCATED);
        struct sched_fixture s;
        struct ran r;
        int n = 7, k = 3;

        row(&s, n, k);
        y.prefetch = 0;
        y.cores_per_node = c;
        run_row(&s, &y, 0, &r);
        for (int j = 0; j < n; j++)
            ck_assert_int_eq(release_of(&s, &r, 0, (uint32_t)j),
                             (((j + 1) * k + c - 1) / c) * INT64_C(1000000));
        ck_assert_int_eq(r.all_ns, ((n * k + c - 1) / c) * INT64_C(1000000));
        ck_assert_double_eq_tol(r.done.core_s, 1e-3 * n * k, 1e-12);
        ck_assert_int_eq(r.iterations, 2);
        drop(&r);
        sf_free(&s);
    }
}
END_TEST

/* Clips of different lengths, one a sample: seconds of a core are seconds of sound over the rate, and what is sent are
 * the values of their spectrograms. */
START_TEST(sounds_take_their_seconds)
{
    for (int bins = 0; bins <= 64; bins += 64) {
        struct dt_sched_supply y = millisecond(DT_SCHED_SUPPLY_DISAGGREGATED);
        struct sched_fixture s;
        struct ran r;
        double sound_s = 0, bytes = 0, texts = 0;
        int n = 6;

        row(&s, n, 1);
        s.f.model.modules[0].modality = DT_MODALITY_AUDIO;
        s.f.model.modules[0].mel_bins = bins;
        for (int i = 0; i < n; i++) {
            int cs = 100 + 137 * i;

            s.items[i] =
                (struct dt_sample_item){(uint16_t)cs, 0, DT_MODALITY_AUDIO, DT_ITEM_ENCODE};
            sound_s += cs / 100.0;
            bytes += 4.0 * (cs - 2) * (bins > 0 ? bins : 128);
            texts += 4.0 * s.samples.seq_tokens[i];
        }
        y.cpu_nodes = y.cores_per_cpu_node = 1;
        y.bw_bytes_per_s = 1e30;
        y.prefetch = 0;
        y.sound_s_per_s = 50;
        run_row(&s, &y, 0, &r);
        ck_assert_double_eq_tol(r.done.core_s, sound_s / 50, 1e-9);
        ck_assert_double_eq_tol(r.done.bytes, bytes + texts, 0.5);
        ck_assert_int_eq(r.all_ns, llround(1e9 * sound_s / 50));
        drop(&r);
        sf_free(&s);
    }
}
END_TEST

/* Cores that need C for a batch, longer than the GPUs, set the length of the iteration: C, whatever is made ahead. */
START_TEST(slow_cores_set_the_length_of_the_iteration)
{
    for (int d = 1; d <= 3; d++) {
        struct dt_sched_supply y = millisecond(DT_SCHED_SUPPLY_COLOCATED);
        struct sched_fixture s;
        struct ran r;

        row(&s, 8, 6);
        y.prefetch = d;
        y.cores_per_node = 4;
        run_row(&s, &y, 700000, &r);
        ck_assert_int_eq(r.fed_ns, 8 * 700000);
        ck_assert_int_eq(r.all_ns, 8 * 6 / 4 * 1000000);
        ck_assert_int_lt(r.iterations, ITERATIONS_MAX);
        drop(&r);
        sf_free(&s);
    }
}
END_TEST

START_TEST(fast_cores_with_prefetch_are_not_waited_for)
{
    struct dt_sched_supply y = millisecond(DT_SCHED_SUPPLY_COLOCATED);
    struct sched_fixture s;
    struct ran r;

    row(&s, 8, 6);
    y.cores_per_node = 4;
    run_row(&s, &y, 1600000, &r); /* 12.8 ms against 12 */
    ck_assert_int_eq(r.all_ns, r.fed_ns);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        ck_assert_int_eq(r.release[i], 0);
    drop(&r);
    sf_free(&s);
}
END_TEST

/* Four replicas on one node, each of which decodes what all four need: four times the work. */
START_TEST(lanes_that_read_the_whole_slot_repeat_each_others_work)
{
    struct dt_sched_supply y = millisecond(DT_SCHED_SUPPLY_COLOCATED);
    struct sched_fixture s;
    struct ran r;

    sf_init(&s);
    sf_encoder(&s, "encoder", 2);
    sf_llm(&s, 2);
    sf_edge(&s, 0, 1);
    sf_plan(&s, 20, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 2, 1, 1, 4);
    sf_layout(&s, 1, 2, 1, 1, 4);
    sf_samples(&s, 20, 1, 0, false, 1);
    for (int i = 0; i <= 20; i++)
        s.item_first[i] = (uint64_t)(3 * i);
    for (int i = 0; i < 60; i++)
        s.items[i] = (struct dt_sample_item){SIDE, SIDE, DT_MODALITY_IMAGE, DT_ITEM_ENCODE};
    sf_compile(&s);
    y.cores_per_node = 5;
    y.prefetch = 0;
    y.reads = DT_SCHED_READS_SLOT;
    run_row(&s, &y, 0, &r);
    ck_assert_double_eq_tol(r.done.core_s, 4 * 60e-3, 1e-12);
    /* 4 lanes x 4 samples of 3 ms a slot, 5 slots, on 5 cores */
    ck_assert_int_eq(r.all_ns, 4 * 4 * 5 / 5 * 3000000);
    drop(&r);
    y.reads = DT_SCHED_READS_OWN;
    run_row(&s, &y, 0, &r);
    ck_assert_double_eq_tol(r.done.core_s, 60e-3, 1e-12);
    ck_assert_int_eq(r.all_ns, 60 / 5 * 1000000);
    drop(&r);
    sf_free(&s);
}
END_TEST

/* With a core for each image all are made after 1 ms; then the link sends one after the other. */
START_TEST(a_link_sends_one_by_one)
{
    struct dt_sched_supply y = millisecond(DT_SCHED_SUPPLY_DISAGGREGATED);
    const double bytes = 3.0 * SIDE * SIDE;
    struct sched_fixture s;
    struct ran r;

    row(&s, 6, 5);
    y.prefetch = 0;
    y.cpu_nodes = 3;
    y.cores_per_cpu_node = 12;
    y.latency_s = 30e-6;
    y.bw_bytes_per_s = 1e9;
    run_row(&s, &y, 10, &r);
    for (int j = 0; j < 6; j++)
        ck_assert_int_le(llabs(release_of(&s, &r, 0, (uint32_t)j) -
                               (1000000 + 30000 + llround((j + 1) * 5 * bytes))),
                         (j + 1) * 5); /* each is rounded by itself */
    for (uint32_t j = 0; j < 6; j++)   /* texts are sent to the LLM's node, at once */
        ck_assert_int_eq(release_of(&s, &r, 1, j), 30000 + (j + 1) * 4 * SF_SEQ);
    ck_assert_double_eq_tol(r.done.bytes, 30 * bytes + 6 * 4 * SF_SEQ, 1e-6);
    ck_assert_int_eq(r.done.cores, 36);
    ck_assert_int_eq(r.done.nodes, 2);
    drop(&r);
    sf_free(&s);
}
END_TEST

/* Two CPU nodes deal samples between them, one takes three times as long: its half of the samples sets the pace. */
START_TEST(a_slow_node_has_its_share_all_the_same)
{
    struct dt_sched_supply y = millisecond(DT_SCHED_SUPPLY_DISAGGREGATED);
    int64_t made[2] = {0, 0};
    struct sched_fixture s;
    struct ran r;

    row(&s, 8, 3);
    y.prefetch = 0;
    y.cpu_nodes = 2;
    y.cores_per_cpu_node = 1;
    y.slow_nodes = 1;
    y.slow_factor = 3;
    y.bw_bytes_per_s = 1e18;
    run_row(&s, &y, 0, &r);
    for (uint32_t j = 0; j < 8; j++) { /* even samples are the slow node's */
        int64_t odd = s.a->m[0].samples[s.a->m[0].mb[j].first] % 2;

        made[odd]++;
        ck_assert_int_eq(release_of(&s, &r, 0, j), made[odd] * 3 * (odd ? 1 : 3) * 1000000);
    }
    ck_assert_int_eq(r.all_ns, 4 * 3 * 3 * 1000000);
    drop(&r);
    sf_free(&s);
}
END_TEST

/* A batch that takes 10 ms to make and one that takes 2, in turn, for iterations of f: where batches are made ahead they
 * take as long as both iterations or as making both, whichever is longer; where not, each is made, then trained. */
START_TEST(a_light_batch_makes_up_for_a_heavy_one)
{
    for (int f = 3; f <= 9; f += 2) {
        for (int d = 0; d <= 4; d += 4) {
            struct dt_sched_supply y = millisecond(DT_SCHED_SUPPLY_COLOCATED);
            struct dt_program *p[2];
            struct dt_assignment *a;
            struct dt_sched_stream *x;
            struct sched_fixture s;
            struct ran r;
            int64_t two = 0;

            row(&s, 1, 12);
            s.samples.n = 2; /* the images are those of both now */
            s.text[1] = s.seq[1] = SF_SEQ;
            s.item_first[1] = 10;
            s.item_first[2] = 12;
            y.cores_per_node = 1;
            y.prefetch = d;
            run_row(&s, &y, f * INT64_C(1000000), &r);
            dt_assert_ok(dt_assign(&s.plan, &s.f.model, NULL, &s.samples, 1, &s.err, &a), s.err);
            p[0] = s.p;
            dt_assert_ok(
                dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, a, NULL, &s.err, &p[1]), s.err);
            ck_assert_uint_eq(p[0]->n_ops, p[1]->n_ops);
            x = stream_of(&s, &y);
            for (int t = 0; t < 40; t++) {
                int64_t span = flow(&s, x, p[t % 2], r.ns, r.release, &r.done);

                ck_assert_double_eq_tol(r.done.core_s, t % 2 ? 2e-3 : 10e-3, 1e-9);
                two += t >= 38 ? span : 0;
            }
            ck_assert_int_eq(two, (d == 0 ? 12 + 2 * f : 2 * f > 12 ? 2 * f : 12) * 1000000);
            dt_sched_stream_free(x);
            dt_program_free(p[1]);
            dt_assign_free(a);
            drop(&r);
            sf_free(&s);
        }
    }
}
END_TEST

static void batch_of(struct sched_fixture *s, const struct dt_sched_supply *y,
                     struct dt_sched_supplied *out)
{
    dt_assert_ok(
        dt_sched_supply_batch(y, &s->f.model, &s->f.cluster, &s->samples, s->p, &s->err, out),
        s->err);
}

START_TEST(a_batch_is_the_sum_of_its_images_and_texts)
{
    struct dt_sched_supply y;
    struct dt_sched_supplied made;
    struct sched_fixture s;
    double want = 0;

    row(&s, 6, 5);
    dt_sched_supply_defaults(&y);
    y.mode = DT_SCHED_SUPPLY_COLOCATED;
    y.cores_per_node = 3;
    for (int i = 0; i < 30; i++)
        want += SIDE * SIDE / 210e6;
    want += 6 * SF_SEQ * 4 / 54e6;
    batch_of(&s, &y, &made);
    ck_assert_double_eq_tol(made.core_s / want, 1, 1e-6); /* a piece takes whole nanoseconds */
    ck_assert_int_eq(made.cores, 6);
    s.f.model.modules[0].resize = 224; /* every pixel is read once more */
    want += 30 * SIDE * SIDE / 400e6;
    batch_of(&s, &y, &made);
    ck_assert_double_eq_tol(made.core_s / want, 1, 1e-6);
    sf_free(&s);
}
END_TEST

/* Ten replicas of an encoder over a node of eight GPUs and two of the next: 16 of 20 images are the first node's.
 * Texts, which take no time to make, go to the LLM's node. */
START_TEST(the_node_that_fetches_the_most_has_its_share)
{
    for (enum dt_sched_supply_mode mode = DT_SCHED_SUPPLY_COLOCATED;
         mode <= DT_SCHED_SUPPLY_DISAGGREGATED; mode++) {
        struct dt_sched_supply y = millisecond(mode);
        struct dt_sched_supplied made;
        struct sched_fixture s;

        sf_init(&s);
        sf_encoder(&s, "encoder", 2);
        sf_llm(&s, 2);
        sf_edge(&s, 0, 1);
        sf_plan(&s, 20, 1, DT_SCHED_1F1B);
        sf_layout(&s, 0, 1, 1, 1, 10);
        sf_layout(&s, 1, 1, 1, 1, 20);
        sf_samples(&s, 20, 1, 0, false, 1);
        for (int i = 0; i < 20; i++) {
            s.item_first[i] = (uint64_t)i;
            s.items[i] = (struct dt_sample_item){SIDE, SIDE, DT_MODALITY_IMAGE, DT_ITEM_ENCODE};
        }
        s.item_first[20] = 20;
        sf_compile(&s);
        y.cores_per_node = y.cpu_nodes = y.cores_per_cpu_node = 1;
        y.bw_bytes_per_s = 1e9;
        batch_of(&s, &y, &made);
        ck_assert_double_eq_tol(made.core_s, 20e-3, 1e-9);
        ck_assert_double_eq_tol(made.node_core_s, 16e-3, 1e-9);
        ck_assert_double_eq_tol(made.node_bytes,
                                mode == DT_SCHED_SUPPLY_DISAGGREGATED ? 16 * 3.0 * SIDE * SIDE : 0,
                                1e-6);
        sf_free(&s);
    }
}
END_TEST

/* ---- random plans ---- */

struct bit { /* an image or a text */
    int64_t need, ns;
    uint32_t op;
    int at, node, maker;
    double bytes;
};
static struct bit bits[PIECES_MAX];
static int n_bits;

static void add_bit(const struct sched_fixture *s, const struct dt_sched_supply *y, uint32_t op,
                    int64_t need, int *at, int64_t sample, double core_s, double bytes)
{
    int node = (int)s->p->lanes[s->p->ops[op].lane].first_gpu / 8, maker = node;

    ck_assert_int_lt(n_bits, PIECES_MAX);
    double slow = 1;

    if (y->mode == DT_SCHED_SUPPLY_DISAGGREGATED) {
        maker = (int)(sample % y->cpu_nodes);
        slow = maker < y->slow_nodes ? y->slow_factor : 1;
    }
    bits[n_bits++] =
        (struct bit){need, llround(1e9 * core_s * slow), op, (*at)++, node, maker, bytes};
}

static void add_sample(const struct sched_fixture *s, const struct dt_sched_supply *y, uint32_t op,
                       int64_t need, int *at, int64_t sample, int64_t only)
{
    const struct dt_module *m = &s->f.model.modules[s->p->ops[op].module];
    int64_t seen = 0;

    if (m->role == DT_ROLE_LLM) {
        add_bit(s, y, op, need, at, sample, 4.0 * s->text[sample] / y->tokenize_bytes_per_s,
                4.0 * s->seq[sample]);
        return;
    }
    for (uint64_t k = s->item_first[sample]; k < s->item_first[sample + 1]; k++) {
        double px = (double)s->items[k].w * s->items[k].h;
        int wanted = m->role == DT_ROLE_ENCODER ? DT_ITEM_ENCODE : DT_ITEM_GENERATE;

        if (!(s->items[k].flags & wanted))
            continue;
        if (only < 0 || only == seen)
            add_bit(s, y, op, need, at, sample,
                    px / y->decode_px_per_s + (m->resize ? px / y->resize_px_per_s : 0),
                    3 * (m->resize ? (double)m->resize * m->resize : px));
        seen++;
    }
}

static int by_turn(const void *va, const void *vb)
{
    const struct bit *a = va, *b = vb;

    if (a->need != b->need)
        return a->need < b->need ? -1 : 1;
    return a->op != b->op ? (a->op < b->op ? -1 : 1) : a->at - b->at;
}

static void list_bits(const struct sched_fixture *s, const struct dt_sched_supply *y,
                      const struct dt_timeline *t)
{
    n_bits = 0;
    for (uint32_t i = 0; i < s->p->n_ops; i++) {
        const struct dt_op *op = &s->p->ops[i];
        const struct dt_assignment_module *a = &s->a->m[op->module];
        uint32_t use = i;
        int at = 0;

        if (op->kind != DT_OP_FETCH)
            continue;
        while (s->p->ops[use].kind != DT_OP_FORWARD || s->p->ops[use].mb != op->mb)
            use++;
        ck_assert_uint_eq(s->p->ops[use].lane, op->lane);
        for (uint32_t k = 0; k < a->mb[a->mb_first[op->replica] + op->mb].n; k++) {
            uint32_t w = a->mb[a->mb_first[op->replica] + op->mb].first + k;

            add_sample(s, y, i, t->begin_ns[use], &at, a->samples[w],
                       a->items ? (int64_t)a->items[w] : -1);
        }
    }
    qsort(bits, (size_t)n_bits, sizeof *bits, by_turn);
}

/* One batch that may begin at `from`, on clocks that go on from batch to batch. */
static void walk_batch(const struct dt_sched_supply *y, int64_t from, int64_t core[][CORES_MAX],
                       int64_t *link, int64_t *there)
{
    bool pool = y->mode == DT_SCHED_SUPPLY_DISAGGREGATED;
    int cores = pool ? y->cores_per_cpu_node : y->cores_per_node;
    static int64_t made[PIECES_MAX];

    for (int k = 0; k < n_bits; k++) {
        int64_t *c = core[bits[k].maker];
        int best = 0;

        for (int i = 1; i < cores; i++)
            best = c[i] < c[best] ? i : best;
        made[k] = c[best] = (c[best] > from ? c[best] : from) + bits[k].ns;
        if (!pool)
            there[bits[k].op] = made[k] > there[bits[k].op] ? made[k] : there[bits[k].op];
    }
    for (int sent = 0; pool && sent < n_bits; sent++) { /* whichever was made first */
        int64_t *l, at;
        int next = 0;

        for (int k = 1; k < n_bits; k++)
            next = made[k] < made[next] ? k : next;
        l = &link[bits[next].node];
        *l = (made[next] > *l ? made[next] : *l) +
             llround(1e9 * bits[next].bytes / y->bw_bytes_per_s);
        at = *l + llround(1e9 * y->latency_s);
        there[bits[next].op] = at > there[bits[next].op] ? at : there[bits[next].op];
        made[next] = INT64_MAX;
    }
}

static double busiest_ns(const struct dt_sched_supply *y)
{
    double work[NODES_MAX] = {0}, sent[NODES_MAX] = {0}, most = 0;
    bool pool = y->mode == DT_SCHED_SUPPLY_DISAGGREGATED;
    int cores = pool ? y->cores_per_cpu_node : y->cores_per_node;

    for (int k = 0; k < n_bits; k++) {
        work[bits[k].maker] += (double)bits[k].ns / cores;
        sent[bits[k].node] += pool ? 1e9 * bits[k].bytes / y->bw_bytes_per_s : 0;
    }
    for (int k = 0; k < NODES_MAX; k++)
        most = fmax(most, fmax(work[k], sent[k]));
    return most;
}

/* As many iterations, one after the other, from a beginning with nothing made; the last one's releases. */
static void walk(struct sched_fixture *s, const struct dt_sched_supply *y, const int64_t *ns,
                 int iterations, int64_t *release)
{
    static int64_t core[NODES_MAX][CORES_MAX], link[NODES_MAX];
    int64_t begin[ITERATIONS_MAX + 1] = {0}, *there = calloc(s->p->n_ops + 1, sizeof *there);

    memset(link, 0, sizeof link);
    memset(core, 0, sizeof core);
    for (int t = 0; t < iterations; t++) {
        int64_t span;

        memset(there, 0, s->p->n_ops * sizeof *there);
        walk_batch(y, t < y->prefetch ? 0 : begin[t - y->prefetch], core, link, there);
        for (uint32_t i = 0; i < s->p->n_ops; i++)
            release[i] = there[i] > begin[t] ? there[i] - begin[t] : 0;
        s->p->release_ns = release;
        dt_assert_ok(dt_timeline_makespan(s->p, NULL, ns, &s->err, &span), s->err);
        s->p->release_ns = NULL;
        begin[t + 1] = begin[t] + span;
    }
    free(there);
}

static struct dt_sched_supply random_supply(struct dt_rng *r, int64_t fed_ns)
{
    struct dt_sched_supply y;
    double images_s = 1e-9 * (double)fed_ns / (1 + (double)dt_rng_below(r, 60));

    dt_sched_supply_defaults(&y);
    y.mode = dt_rng_below(r, 2) ? DT_SCHED_SUPPLY_COLOCATED : DT_SCHED_SUPPLY_DISAGGREGATED;
    y.cores_per_node = 1 + (int)dt_rng_below(r, 6);
    y.cpu_nodes = 1 + (int)dt_rng_below(r, 3);
    y.cores_per_cpu_node = 1 + (int)dt_rng_below(r, 7);
    y.slow_nodes = (int)dt_rng_below(r, (uint64_t)y.cpu_nodes + 1);
    y.slow_factor = 1 + 0.25 * (double)dt_rng_below(r, 12);
    y.prefetch = (int)dt_rng_below(r, 4);
    y.decode_px_per_s = 128 * 128 / images_s; /* about as fast as the GPUs */
    y.resize_px_per_s = 3 * y.decode_px_per_s;
    y.tokenize_bytes_per_s = SF_SEQ * 40 / images_s;
    y.latency_s = dt_rng_below(r, 2) * images_s;
    y.bw_bytes_per_s = y.decode_px_per_s * (1 + (double)dt_rng_below(r, 20));
    return y;
}

START_TEST(random_plans_meet_queues_walked_piece_by_piece)
{
    uint64_t seed = dt_test_seed();
    int exposed = 0, made = 0;

    for (int round = 0; round < ROUNDS; round++) {
        struct dt_timeline t = {0};
        struct dt_sched_supply y;
        struct sched_fixture s;
        struct ran ran = {0};
        int64_t *want;
        struct dt_rng r;

        sf_random(&s, seed, round, true);
        sf_compile(&s);
        dt_rng_init(&r, seed, 5000 + (uint64_t)round);
        ran.ns = calloc(s.p->n_ops + 1, sizeof *ran.ns);
        ran.release = calloc(s.p->n_ops + 1, sizeof *ran.release);
        want = calloc(s.p->n_ops + 1, sizeof *want);
        for (uint32_t i = 0; i < s.p->n_ops; i++)
            ran.ns[i] = s.p->ops[i].kind == DT_OP_RECV ? 0 : (int64_t)dt_rng_below(&r, 2000000);
        dt_assert_ok(dt_timeline_once(s.p, ran.ns, &s.err, &t), s.err);
        y = random_supply(&r, t.makespan_ns);
        settle(&s, &y, &ran);
        list_bits(&s, &y, &t);
        walk(&s, &y, ran.ns, ran.iterations, want);
        for (uint32_t i = 0; i < s.p->n_ops; i++)
            ck_assert_msg(
                ran.release[i] == want[i], "seed %llu, round %d, op %u: %lld ns, should be %lld",
                (unsigned long long)seed, round, i, (long long)ran.release[i], (long long)want[i]);
        made += n_bits > 0;
        exposed += ran.all_ns > t.makespan_ns;
        /* nothing trains faster than its data is made */
        ck_assert_msg(
            (double)ran.total_ns > ran.iterations * (busiest_ns(&y) * (1 - 1e-6) - n_bits),
            "seed %llu, round %d: %d iterations in %lld ns with data that takes %.0f each",
            (unsigned long long)seed, round, ran.iterations, (long long)ran.total_ns,
            busiest_ns(&y));
        drop(&ran);
        free(want);
        dt_timeline_free(&t);
        sf_free(&s);
    }
    printf("of %d plans %d with data, %d wait for it\n", ROUNDS, made, exposed);
    ck_assert_int_gt(made, ROUNDS / 2);
    ck_assert_int_gt(exposed, ROUNDS / 5);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("supply");
    TCase *c = dt_test_case(s, "queues", 0);

    tcase_add_test(c, without_prefetch_cores_set_the_pace);
    tcase_add_test(c, sounds_take_their_seconds);
    tcase_add_test(c, slow_cores_set_the_length_of_the_iteration);
    tcase_add_test(c, lanes_that_read_the_whole_slot_repeat_each_others_work);
    tcase_add_test(c, fast_cores_with_prefetch_are_not_waited_for);
    tcase_add_test(c, a_link_sends_one_by_one);
    tcase_add_test(c, a_slow_node_has_its_share_all_the_same);
    tcase_add_test(c, a_light_batch_makes_up_for_a_heavy_one);
    tcase_add_test(c, a_batch_is_the_sum_of_its_images_and_texts);
    tcase_add_test(c, the_node_that_fetches_the_most_has_its_share);
    tcase_add_test(c, random_plans_meet_queues_walked_piece_by_piece);
    return dt_test_run(s);
}
