/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * When a stream of prepared data has settled: random plans and queues beside runs that are long enough to show, however slowly
 * something grows. */
#include "core/schedule/supply.h"

#include "random_plan.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 80, MORE_ROUNDS = 400, PASSES_MAX = 64, LONG = 2000, TAIL = 600, BATCHES_MAX = 3 };

struct world {
    struct sched_fixture s;
    int64_t *ns[BATCHES_MAX], *release;
    struct dt_sched_supply y;
    int batches;    /* of a pass, each as long as chance will have it */
    int64_t fed_ns; /* a pass with all data there */
};

static void add_batch(struct world *w, int b, struct dt_rng *r)
{
    int64_t span;

    w->ns[b] = calloc(w->s.p->n_ops + 1, sizeof **w->ns);
    ck_assert_ptr_nonnull(w->ns[b]);
    for (uint32_t i = 0; i < w->s.p->n_ops; i++)
        w->ns[b][i] = w->s.p->ops[i].kind == DT_OP_RECV ? 0 : (int64_t)dt_rng_below(r, 2000000);
    dt_assert_ok(dt_timeline_makespan(w->s.p, NULL, w->ns[b], &w->s.err, &span), w->s.err);
    w->fed_ns += span;
}

static void make_world(struct world *w, uint64_t seed, int round)
{
    struct dt_rng r;
    double images_s;

    sf_random(&w->s, seed, round, true);
    sf_compile(&w->s);
    dt_rng_init(&r, seed, 9000 + (uint64_t)round);
    w->batches = 1 + (int)dt_rng_below(&r, BATCHES_MAX);
    w->release = calloc(w->s.p->n_ops + 1, sizeof *w->release);
    ck_assert_ptr_nonnull(w->release);
    w->fed_ns = 0;
    for (int b = 0; b < w->batches; b++)
        add_batch(w, b, &r);
    images_s = 1e-9 * (double)w->fed_ns / w->batches / (1 + (double)dt_rng_below(&r, 60));
    dt_sched_supply_defaults(&w->y);
    w->y.mode = dt_rng_below(&r, 2) ? DT_SCHED_SUPPLY_COLOCATED : DT_SCHED_SUPPLY_DISAGGREGATED;
    w->y.cores_per_node = 1 + (int)dt_rng_below(&r, 6);
    w->y.cpu_nodes = 1 + (int)dt_rng_below(&r, 3);
    w->y.cores_per_cpu_node = 1 + (int)dt_rng_below(&r, 7);
    w->y.slow_nodes = (int)dt_rng_below(&r, (uint64_t)w->y.cpu_nodes + 1);
    w->y.slow_factor = 1 + 0.25 * (double)dt_rng_below(&r, 12);
    w->y.prefetch = (int)dt_rng_below(&r, 5);
    w->y.decode_px_per_s = 128 * 128 / images_s; /* about as fast as the GPUs */
    w->y.resize_px_per_s = 3 * w->y.decode_px_per_s;
    w->y.tokenize_bytes_per_s = SF_SEQ * 40 / images_s;
    w->y.latency_s = (double)dt_rng_below(&r, 2) * images_s;
    w->y.bw_bytes_per_s = w->y.decode_px_per_s * (1 + (double)dt_rng_below(&r, 20));
}

static void free_world(struct world *w)
{
    for (int b = 0; b < w->batches; b++)
        free(w->ns[b]);
    free(w->release);
    sf_free(&w->s);
}

static struct dt_sched_stream *stream_of(struct world *w)
{
    struct dt_sched_stream *x;

    dt_assert_ok(
        dt_sched_stream_new(&w->y, &w->s.f.model, &w->s.f.cluster, &w->s.samples, &w->s.err, &x),
        w->s.err);
    return x;
}

/* How long a pass takes. */
static int64_t pass(struct world *w, struct dt_sched_stream *x)
{
    struct dt_program *p = w->s.p;
    struct dt_sched_supplied made;
    int64_t sum = 0, span;

    for (int b = 0; b < w->batches; b++) {
        dt_assert_ok(dt_sched_stream_next(x, p, w->ns[b], &w->s.err, w->release, &made), w->s.err);
        p->release_ns = w->release;
        dt_assert_ok(dt_timeline_makespan(p, NULL, w->ns[b], &w->s.err, &span), w->s.err);
        p->release_ns = NULL;
        dt_sched_stream_ran(x, span);
        sum += span;
    }
    return sum;
}

static void scale(struct dt_sched_supply *y, double by)
{
    y->decode_px_per_s *= by;
    y->resize_px_per_s *= by;
    y->tokenize_bytes_per_s *= by;
    y->bw_bytes_per_s *= by;
}

/* Does a pass wait for data that is made so many times as fast? */
static bool waits(const struct world *w, double by)
{
    struct world v = *w;
    struct dt_sched_stream *x;
    int64_t span = 0;

    scale(&v.y, by);
    x = stream_of(&v);
    for (int k = 0; k < 12; k++)
        span = pass(&v, x);
    dt_sched_stream_free(x);
    return span > v.fed_ns;
}

/* Data is made almost as fast as it is used, or hardly faster. */
static void make_close(struct world *w)
{
    double lo = 1.0 / 64, hi = 64;

    for (int k = 0; k < 16; k++) {
        double mid = sqrt(lo * hi);

        *(waits(w, mid) ? &lo : &hi) = mid;
    }
    scale(&w->y, hi);
}

/* The slow way: of many passes from the beginning the mean of the last ones. */
static double long_run(struct world *w)
{
    struct dt_sched_stream *x = stream_of(w);
    double sum = 0;

    for (int k = 0; k < LONG; k++) {
        int64_t span = pass(w, x);

        sum += k >= LONG - TAIL ? (double)span : 0;
    }
    dt_sched_stream_free(x);
    return sum / TAIL;
}

/* How many passes it took until it was certain; 0: too many. */
static int settle(struct world *w, struct dt_sched_stream *x)
{
    bool yes = false;
    int n = 0;

    while (!yes && n < PASSES_MAX) {
        pass(w, x);
        n++;
        dt_assert_ok(dt_sched_stream_settled(x, &w->s.err, &yes), w->s.err);
    }
    return yes ? n : 0;
}

/* From here on each pass takes as long as the one `period` before; the smallest period, 0: there is none up to `most`. */
static int period_of(const int64_t *span, int n, int most)
{
    for (int period = 1; period <= most; period++) {
        int k = period;

        while (k < n && span[k] == span[k - period])
            k++;
        if (k == n)
            return period;
    }
    return 0;
}

static int check_settled(struct world *w, struct dt_sched_stream *x, int passes, uint64_t seed,
                         int round)
{
    int64_t span[TAIL];
    double sum = 0, want = long_run(w);
    int period;

    for (int k = 0; k < TAIL; k++)
        sum += (double)(span[k] = pass(w, x));
    period = period_of(span, TAIL, passes);
    ck_assert_msg(period > 0, "seed %llu, round %d: after %d passes they do not repeat",
                  (unsigned long long)seed, round, passes);
    ck_assert_msg(fabs(sum / TAIL - want) < 1e-3 * want,
                  "seed %llu, round %d: a pass takes %.0f ns, in the long run %.0f",
                  (unsigned long long)seed, round, sum / TAIL, want);
    return period;
}

START_TEST(random_streams_settle_where_they_stay)
{
    const char *full = getenv("DT_CHECK_FULL");
    int rounds = full && *full && *full != '0' ? MORE_ROUNDS : ROUNDS;
    uint64_t seed = dt_test_seed();
    int settled = 0, most = 0, waited = 0, several = 0;

    for (int round = 0; round < rounds; round++) {
        struct dt_sched_stream *x;
        struct world w;
        int passes;

        make_world(&w, seed, round);
        if (round % 4 > 0)
            make_close(&w);
        x = stream_of(&w);
        passes = settle(&w, x);
        if (passes > 0) {
            settled++;
            several += check_settled(&w, x, passes, seed, round) > 1;
            waited += pass(&w, x) > w.fed_ns;
            most = passes > most ? passes : most;
        }
        dt_sched_stream_free(x);
        free_world(&w);
    }
    printf("seed %llu: %d of %d settled, in %d passes at most, %d of them wait for data, %d repeat "
           "after several passes\n",
           (unsigned long long)seed, settled, rounds, most, waited, several);
    ck_assert_int_gt(settled, rounds * 2 / 3);
    ck_assert_int_gt(waited, rounds / 10);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("supply_steady");
    TCase *c = dt_test_case(s, "steady", 600);

    tcase_add_test(c, random_streams_settle_where_they_stay);
    return dt_test_run(s);
}
