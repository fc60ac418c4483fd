/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Entrain's assignment: its steps against trying everything, the whole against numbers of a reference of our own
 * (another program, in Python), and what must hold of any batch. */
#include "core/schedule/assign_entrain.h"
#include "base/rng.h"
#include "entrain_samples.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

enum { ROUNDS = 400, SAMPLES_MAX = 600, DP_MAX = 8, K_MAX = 64 };

/* ---- matching ---- */

/* The least over all ways to give rows columns, each row alone or with its column, of the largest. */
static double best_matching(int n, const double *cost, const double *alone, int row, unsigned used)
{
    double best = INFINITY;

    if (row == n)
        return 0;
    for (int j = 0; j < n; j++) {
        double own = fmin(alone[row], cost[row * n + j]);

        if (!(used >> j & 1))
            best = fmin(best, fmax(own, best_matching(n, cost, alone, row + 1, used | 1u << j)));
    }
    return best;
}

START_TEST(bottleneck_equals_every_permutation)
{
    struct dt_rng r;
    int critical = 0;

    dt_rng_init(&r, dt_test_seed(), 1);
    for (int t = 0; t < ROUNDS; t++) {
        struct dt_arena arena = {0};
        int n = (int)dt_rng_below(&r, 7), of[8];
        double cost[64], alone[8], least = t % 3 ? 0 : 4 * dt_rng_uniform(&r), got;
        bool taken[8] = {false};

        for (int i = 0; i < n; i++)
            alone[i] = 1 + (double)dt_rng_below(&r, 9);
        for (int i = 0; i < n * n; i++)
            cost[i] = t % 2 ? (double)dt_rng_below(&r, 9) : 8 * dt_rng_uniform(&r);
        ck_assert_int_eq(dt_assign_bottleneck(n, cost, alone, least, &arena, of, &got), DT_OK);
        ck_assert_double_eq(got, fmax(least, best_matching(n, cost, alone, 0, 0)));
        for (int i = 0; i < n; i++) {
            if (of[i] < 0) {
                ck_assert_double_le(alone[i], got);
                continue;
            }
            critical++;
            ck_assert(!taken[of[i]]);
            taken[of[i]] = true;
            ck_assert_double_le(cost[i * n + of[i]], got);
            ck_assert_double_gt(alone[i], got);
        }
        dt_arena_free(&arena);
    }
    ck_assert_int_gt(critical, ROUNDS);
}
END_TEST

/* Rows MB3, MB6, MB4 and columns MB2, MB1, MB5 of the publication's figure 9; loads of the rows alone are inferred. */
START_TEST(published_figure)
{
    static const double cost[] = {6, 6, 8, 7, 6, 9, 6, 6, 6}, alone[] = {8, 9, 6};
    struct dt_arena arena = {0};
    int of[3];
    double t;

    ck_assert_int_eq(dt_assign_bottleneck(3, cost, alone, 0, &arena, of, &t), DT_OK);
    ck_assert_double_eq(t, 6);
    ck_assert_int_eq(of[0], 0);
    ck_assert_int_eq(of[1], 1);
    ck_assert_int_eq(of[2], -1);
    dt_arena_free(&arena);
}
END_TEST

/* ---- subsets ---- */

START_TEST(nearest_subset_of_all_subsets)
{
    struct dt_rng r;
    int exact = 0;

    dt_rng_init(&r, dt_test_seed(), 2);
    for (int t = 0; t < ROUNDS; t++) {
        struct dt_arena arena = {0};
        struct dt_assign_subsets *s;
        int n = 1 + (int)dt_rng_below(&r, 10), items[10], name, taken;
        double load[10], sum = 0, want, near, best = INFINITY, made = 0;
        bool deferred[10] = {false};

        for (int i = 0; i < n; i++) {
            items[i] = i;
            load[i] = t % 2 ? exp(dt_rng_normal(&r)) : 1 + (double)dt_rng_below(&r, 100);
            sum += load[i];
        }
        if (t % 2 == 0 && sum <= 1024) { /* whole units: nothing is rounded */
            load[0] += 1024 - sum;
            sum = 1024;
            exact++;
        }
        want = sum * 0.6 * dt_rng_uniform(&r);
        ck_assert_int_eq(dt_assign_subsets_new(items, n, load, &arena, &s), DT_OK);
        near = dt_assign_subsets_near(s, want, &name);
        taken = dt_assign_subsets_take(s, name, deferred);
        for (int i = 0; i < n; i++) {
            made += deferred[i] ? load[i] : 0;
            taken -= deferred[i];
        }
        ck_assert_int_eq(taken, 0);
        ck_assert_double_eq_tol(made, near, 1e-9 * sum);
        for (unsigned x = 0; x < 1u << n; x++) {
            double of = 0;

            for (int i = 0; i < n; i++)
                of += x >> i & 1 ? load[i] : 0;
            best = fmin(best, fabs(of - want));
        }
        ck_assert_double_le(best, fabs(near - want) + 1e-9 * sum);
        ck_assert_double_le(fabs(near - want),
                            best + (sum == 1024 && t % 2 == 0 ? 1e-9 : n * sum / 1024));
        dt_arena_free(&arena);
    }
    ck_assert_int_gt(exact, ROUNDS / 4);
}
END_TEST

/* ---- batches ---- */

struct batch {
    struct dt_assign_loads in;
    double enc[SAMPLES_MAX], llm[SAMPLES_MAX];
    int64_t id[SAMPLES_MAX];
    struct dt_assign_entrained out;
    struct dt_arena arena;
    int dp, k;
    /* by replica and position */
    double e[DP_MAX][K_MAX], before[DP_MAX][K_MAX], after[DP_MAX][K_MAX];
};

static void assign(struct batch *b)
{
    b->in.enc = b->enc;
    b->in.llm = b->llm;
    ck_assert_int_eq(dt_assign_entrain(&b->in, b->dp, b->k, &b->arena, &b->out), DT_OK);
    memset(b->e, 0, sizeof(b->e));
    memset(b->before, 0, sizeof(b->before));
    memset(b->after, 0, sizeof(b->after));
    for (int i = 0; i < b->in.n; i++) {
        int r = b->out.replica[i], p = b->out.position[i];

        ck_assert(r >= 0 && r < b->dp);
        ck_assert(p >= 0 && p < b->out.of[r].positions);
        b->e[r][p] += b->enc[i];
        b->before[r][p] += b->llm[i];
        ck_assert(p + b->out.deferred[i] < b->out.of[r].positions);
        b->after[r][p + b->out.deferred[i]] += b->llm[i];
    }
}

/* ---- the reference's numbers ---- */

struct vector {
    int n, dp, k;
    uint32_t seed;
    int replicas; /* of all samples, hashed */
    int k_eff[DP_MAX];
    double most[DP_MAX];
    int loads[DP_MAX]; /* of microbatches before anything is deferred, hashed */
};

static int hashed(int x, double v)
{
    return (int)(((int64_t)x * 31 + (int64_t)v) % 1000003);
}

static int by_load(const void *pa, const void *pb)
{
    const double *a = pa, *b = pb;

    if (a[0] != b[0])
        return a[0] < b[0] ? 1 : -1;
    return (a[1] < b[1]) - (a[1] > b[1]);
}

START_TEST(equals_the_reference)
{
    static const struct vector all[] = {
        {12, 1, 4, 1, 0, {3}, {358}, {373882}},
        {24, 2, 6, 2, 525845, {4, 5}, {443, 256}, {655805, 957478}},
        {24, 2, 5, 3, 830656, {5, 4}, {321, 361}, {398338, 630234}},
        {96, 3, 8, 4, 865682, {8, 8, 8}, {479, 523, 504}, {754250, 636143, 584699}},
        {512,
         4,
         32,
         5,
         424198,
         {32, 32, 32, 32},
         {504, 484, 465, 537},
         {603629, 276820, 652948, 810366}},
        {200, 1, 50, 6, 0, {50}, {539}, {191628}},
        {64,
         8,
         8,
         7,
         34896,
         {1, 2, 2, 2, 2, 3, 2, 2},
         {900, 407, 426, 398, 437, 319, 446, 424},
         {469527, 301498, 145798, 855047, 664691, 340940, 472941, 158235}},
    };
    static struct batch b;

    for (size_t v = 0; v < sizeof(all) / sizeof(all[0]); v++) {
        const struct vector *x = &all[v];
        uint32_t s = x->seed;
        int replicas = 0;

        b = (struct batch){.in.n = x->n, .dp = x->dp, .k = x->k};
        for (int i = 0; i < x->n; i++) {
            s = (s * 1103515245u + 12345u) & 0x7fffffffu;
            b.enc[i] = 1 + (s >> 16) % 97 * ((s >> 16) % 97);
            s = (s * 1103515245u + 12345u) & 0x7fffffffu;
            b.llm[i] = 5 + (s >> 16) % 211;
        }
        assign(&b);
        for (int i = 0; i < x->n; i++)
            replicas = hashed(replicas, b.out.replica[i]);
        ck_assert_int_eq(replicas, x->replicas);
        for (int r = 0; r < x->dp; r++) {
            double w[K_MAX][2];
            int k = b.out.of[r].positions, loads = 0;

            ck_assert_int_eq(k, x->k_eff[r]);
            ck_assert_double_eq(b.out.of[r].most, x->most[r]);
            for (int p = 0; p < k; p++) {
                w[p][0] = b.before[r][p];
                w[p][1] = b.e[r][p];
            }
            qsort(w, (size_t)k, sizeof(w[0]), by_load);
            for (int p = 0; p < k; p++)
                loads = hashed(loads, w[p][1]);
            for (int p = 0; p < k; p++)
                loads = hashed(loads, w[p][0]);
            ck_assert_int_eq(loads, x->loads[r]);
        }
        dt_arena_free(&b.arena);
    }
}
END_TEST

/* Forward FLOPs of a sample in a vision encoder of 32 layers and a 1B LLM of 16, whole numbers below 2^53. */
static void flops(const int *sample, double *enc, double *llm)
{
    double x = sample[0], s = sample[1];

    *enc = 2 * x * (4 * 1280 * 1280 + 3 * 1280 * 3420) * 32 + 4 * x * x * 1280 * 32;
    *llm = 2 * s * 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192) +
           2 * s * s * 2048 * 16 + 2 * s * 2048 * 128256;
}

static double variation(const double *v, int n)
{
    double sum = 0, squares = 0;

    for (int i = 0; i < n; i++) {
        sum += v[i] / n;
        squares += v[i] * v[i] / n;
    }
    return sqrt(fmax(0, squares / sum / sum - 1));
}

/* Samples as a data set has them, 4 replicas of at most 32 microbatches.  Which samples go along with a matching is not
 * pinned: several reach T*. */
START_TEST(equals_the_reference_on_images_and_text)
{
    static const struct {
        int samples;
        double most, cv_enc, cv_before, cv_after;
    } of[] = {{128, 72689837408256, 0.005926651464, 0.130349485498, 0.0516},
              {129, 74061534134272, 0.007129751434, 0.134380406902, 0.0571},
              {129, 72821588885504, 0.005820431581, 0.120237150673, 0.0493},
              {126, 72616125923328, 0.006748475483, 0.130896250033, 0.0432}};
    static struct batch b = {.in.n = 512, .dp = 4, .k = 32};
    int deferred = 0;

    for (int i = 0; i < 512; i++)
        flops(entrain_samples[i], &b.enc[i], &b.llm[i]);
    assign(&b);
    for (int r = 0; r < 4; r++) {
        ck_assert_int_eq(b.out.of[r].samples, of[r].samples);
        ck_assert_int_eq(b.out.of[r].positions, 18);
        ck_assert_double_eq_tol(b.out.of[r].most, of[r].most, 1e-12 * of[r].most);
        ck_assert_double_eq_tol(variation(b.e[r], 18), of[r].cv_enc, 1e-9);
        ck_assert_double_eq_tol(variation(b.before[r], 18), of[r].cv_before, 1e-9);
        ck_assert_double_le(variation(b.after[r], 18), of[r].cv_after + 0.015);
        deferred += b.out.of[r].deferred;
    }
    ck_assert(deferred > 40 && deferred < 70); /* the reference: 53 */
    dt_arena_free(&b.arena);
}
END_TEST

/* ---- what must hold of any batch ---- */

static void draw(struct batch *b, struct dt_rng *r, int t)
{
    *b = (struct batch){.dp = 1 + (int)dt_rng_below(r, 4), .k = 1 + (int)dt_rng_below(r, 12)};
    b->in.n = b->dp * (1 + (int)dt_rng_below(r, 40));
    for (int i = 0; i < b->in.n; i++) {
        b->enc[i] = t % 5 == 0 ? 1 + (double)dt_rng_below(r, 4) : exp(0.8 * dt_rng_normal(r));
        b->llm[i] = t % 5 == 1 ? 1 + (double)dt_rng_below(r, 4) : exp(0.7 * dt_rng_normal(r));
        if (t % 3 == 0 && dt_rng_below(r, 3) == 0)
            b->enc[i] = 0; /* text alone */
        b->id[i] = 1000 + i;
    }
}

static double most_of(const double *v, int n)
{
    double most = 0;

    for (int i = 0; i < n; i++)
        most = fmax(most, v[i]);
    return most;
}

START_TEST(holds_of_any_batch)
{
    static struct batch b;
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    int deferred = 0, lighter = 0;

    dt_rng_init(&r, seed, 3);
    for (int t = 0; t < ROUNDS; t++) {
        draw(&b, &r, t);
        assign(&b); /* every sample once, in the LLM at its encoder's position or the next one */
        for (int d = 0; d < b.dp; d++) {
            const struct dt_assign_replica *of = &b.out.of[d];
            double largest = 0, sum = 0, most = most_of(b.after[d], of->positions);
            int n = 0;

            for (int i = 0; i < b.in.n; i++) {
                if (b.out.replica[i] != d)
                    continue;
                largest = fmax(largest, b.enc[i]);
                sum += b.enc[i];
                n++;
                deferred += b.out.deferred[i];
                if (b.out.deferred[i])
                    ck_assert_int_eq(b.out.position[i] % 2, 0);
            }
            ck_assert_int_eq(n, of->samples);
            ck_assert_int_le(of->positions, b.k < n || n == 0 ? b.k : n);
            if (largest > 0 && of->positions > 1)
                ck_assert_double_le(of->positions * largest, sum * (1 + 1e-8));
            /* a list schedule: within its bound of the best, which is no less than the mean and the largest */
            ck_assert_msg(most_of(b.e[d], of->positions) <=
                              sum / (of->positions > 0 ? of->positions : 1) +
                                  largest * (1 - 1.0 / (of->positions + !n)) + 1e-9 * sum,
                          "seed %" PRIu64 " round %d", seed, t);
            ck_assert_double_le(most, most_of(b.before[d], of->positions) * (1 + 1e-12));
            lighter += most < most_of(b.before[d], of->positions) * (1 - 1e-9);
            ck_assert_double_eq_tol(most, of->most, n ? 1e-9 * most : 0);
        }
        dt_arena_free(&b.arena);
    }
    ck_assert_int_gt(deferred, ROUNDS);
    ck_assert_int_gt(lighter, ROUNDS / 2);
}
END_TEST

/* Of one replica with its microbatches as they are before deferral: the best of all pairings of heavy with light ones and
 * of all subsets of whole samples. */
static double best_deferral(const struct batch *b, double *tolerance)
{
    int k = b->out.of[0].positions, h = k / 2, order[K_MAX];
    double w[K_MAX] = {0}, cost[16], alone[4], middle;

    for (int p = 0; p < k; p++) {
        int at = p;

        for (; at > 0 && b->before[0][order[at - 1]] < b->before[0][p]; at--)
            order[at] = order[at - 1];
        order[at] = p;
    }
    for (int p = 0; p < k; p++)
        w[p] = b->before[0][order[p]];
    middle = k % 2 ? w[h] : 0;
    *tolerance = 0;
    for (int i = 0; i < h; i++) {
        int items[SAMPLES_MAX], n = 0;

        for (int s = 0; s < b->in.n; s++)
            if (b->out.position[s] == order[i])
                items[n++] = s;
        ck_assert_int_le(n, 16);
        *tolerance = fmax(*tolerance, n * w[i] / 1024);
        alone[i] = w[i];
        for (int j = 0; j < h; j++) {
            cost[i * h + j] = w[i];
            for (unsigned x = 0; x < 1u << n; x++) {
                double moved = 0;

                for (int s = 0; s < n; s++)
                    moved += x >> s & 1 ? b->llm[items[s]] : 0;
                cost[i * h + j] = fmin(cost[i * h + j], fmax(w[i] - moved, w[k - h + j] + moved));
            }
        }
    }
    return fmax(middle, k > 1 ? best_matching(h, cost, alone, 0, 0) : w[0]);
}

START_TEST(deferral_equals_trying_everything)
{
    static struct batch b;
    struct dt_rng r;
    int pairs = 0;

    dt_rng_init(&r, dt_test_seed(), 4);
    for (int t = 0; t < ROUNDS / 4; t++) {
        double best, tolerance;

        draw(&b, &r, t);
        b.dp = 1;
        b.k = 2 + (int)dt_rng_below(&r, 7);
        b.in.n = b.k + (int)dt_rng_below(&r, (uint32_t)b.k * 2);
        assign(&b);
        /* equal loads leave open which is heavy: not compared */
        best = t % 5 == 1 ? b.out.of[0].most : best_deferral(&b, &tolerance);
        pairs += t % 5 != 1 && b.out.of[0].positions >= 4;
        if (t % 5 != 1) {
            ck_assert_double_ge(b.out.of[0].most, best * (1 - 1e-12));
            ck_assert_double_le(b.out.of[0].most, best * (1 + 1e-12) + tolerance);
        }
        dt_arena_free(&b.arena);
    }
    ck_assert_int_gt(pairs, ROUNDS / 40);
}
END_TEST

/* The least largest load of k bins, by trying every bin of every item; `bound` is known to be reached. */
static double best_makespan(const double *v, int n, double *bin, int k, double so_far, double bound)
{
    if (so_far >= bound)
        return bound;
    if (n == 0)
        return so_far;
    for (int j = 0; j < k; j++) {
        double with = bin[j] + v[0];

        bin[j] = with;
        bound = best_makespan(v + 1, n - 1, bin, k, fmax(so_far, with), bound);
        bin[j] = with - v[0];
        if (bin[j] <= 0) /* the other empty ones are the same */
            break;
    }
    return bound;
}

START_TEST(encoder_within_its_bound_of_every_way)
{
    static struct batch b;
    struct dt_rng r;
    int many = 0, worse = 0;

    dt_rng_init(&r, dt_test_seed(), 6);
    for (int t = 0; t < ROUNDS / 2; t++) {
        double v[12], bin[8] = {0}, best, got;
        int n = 0, k;

        draw(&b, &r, t);
        b.dp = 1;
        b.k = 1 + (int)dt_rng_below(&r, 8);
        b.in.n = 1 + (int)dt_rng_below(&r, 10);
        assign(&b);
        k = b.out.of[0].positions;
        for (int i = 0; i < b.in.n; i++)
            if (b.enc[i] > 0)
                v[n++] = b.enc[i];
        got = most_of(b.e[0], k);
        best = best_makespan(v, n, bin, k, 0, got * (1 + 1e-12));
        ck_assert_double_le(got, (2 - 1.0 / k) * best * (1 + 1e-9));
        many += k >= 3;
        worse += got > best * (1 + 1e-9);
        dt_arena_free(&b.arena);
    }
    ck_assert_int_gt(many, ROUNDS / 20);
    ck_assert_int_gt(worse, 0); /* there is something to bound */
}
END_TEST

/* One sample with all the encoder's work: one position; two with half of it each: two, and the heavy one defers. */
START_TEST(few_positions)
{
    static struct batch b = {.in.n = 6, .dp = 1, .k = 8};
    static const double llm[] = {4, 1, 1, 1, 1, 1};

    memcpy(b.llm, llm, sizeof(llm));
    b.enc[1] = 10;
    assign(&b);
    ck_assert(b.out.of[0].positions == 1 && b.out.of[0].deferred == 0);
    ck_assert_double_eq(b.out.of[0].most, 9);
    dt_arena_free(&b.arena);
    b = (struct batch){.in.n = 6, .dp = 1, .k = 8};
    memcpy(b.llm, (double[]){5, 4, 1, 1, 0.5, 0.5}, 6 * sizeof(double));
    memcpy(b.enc, (double[]){1, 1, 10, 10, 0.5, 0.5}, 6 * sizeof(double));
    assign(&b);
    ck_assert_int_eq(b.out.of[0].positions, 2);
    ck_assert_double_le(most_of(b.after[0], 2), most_of(b.before[0], 2));
    dt_arena_free(&b.arena);
    /* fewer samples than microbatches, and a replica that gets none */
    b = (struct batch){.in.n = 7, .dp = 3, .k = 9};
    memcpy(b.llm, (double[]){9, 8, 1, 1, 1, 1, 1}, 7 * sizeof(double));
    memcpy(b.enc, (double[]){7, 6, 5, 5, 5, 5, 5}, 7 * sizeof(double));
    assign(&b);
    for (int r = 0; r < 3; r++)
        ck_assert_int_le(b.out.of[r].positions, b.out.of[r].samples);
    ck_assert_int_eq(b.out.of[0].samples + b.out.of[1].samples + b.out.of[2].samples, 7);
    ck_assert_int_eq(b.out.of[0].samples, 1);
    dt_arena_free(&b.arena);
}
END_TEST

START_TEST(order_of_samples_does_not_matter)
{
    static struct batch a, b;
    struct dt_rng r;

    dt_rng_init(&r, dt_test_seed(), 5);
    for (int t = 0; t < ROUNDS / 4; t++) {
        int from[SAMPLES_MAX];

        draw(&a, &r, t);
        a.in.id = a.id;
        for (int i = 0; i < a.in.n; i++)
            from[i] = i;
        for (int i = a.in.n - 1; i > 0; i--) {
            int j = (int)dt_rng_below(&r, (uint32_t)i + 1), x = from[i];

            from[i] = from[j];
            from[j] = x;
        }
        b = a;
        b.in.id = b.id;
        for (int i = 0; i < a.in.n; i++) {
            b.enc[i] = a.enc[from[i]];
            b.llm[i] = a.llm[from[i]];
            b.id[i] = a.id[from[i]];
        }
        assign(&a);
        assign(&b);
        for (int i = 0; i < a.in.n; i++) {
            ck_assert_int_eq(b.out.replica[i], a.out.replica[from[i]]);
            ck_assert_int_eq(b.out.position[i], a.out.position[from[i]]);
            ck_assert_int_eq(b.out.deferred[i], a.out.deferred[from[i]]);
        }
        dt_arena_free(&a.arena);
        dt_arena_free(&b.arena);
    }
}
END_TEST

START_TEST(equal_samples_stay)
{
    static struct batch b;

    for (int k = 1; k <= 12; k++)
        for (int m = 1; m <= 4; m++) {
            b = (struct batch){.in.n = 3 * k * m, .dp = 3, .k = k};
            for (int i = 0; i < b.in.n; i++) {
                b.enc[i] = 0.7;
                b.llm[i] = 1.3;
            }
            assign(&b);
            for (int d = 0; d < 3; d++) {
                ck_assert_int_eq(b.out.of[d].positions, k);
                ck_assert_int_eq(b.out.of[d].deferred, 0);
                for (int p = 0; p < k; p++)
                    ck_assert_double_eq_tol(b.e[d][p], 0.7 * m, 1e-12 * m);
            }
            dt_arena_free(&b.arena);
        }
}
END_TEST

/* Nothing for the encoder to do: the LLM's loads alone decide, and are even. */
START_TEST(text_alone_is_balanced_by_the_llm)
{
    static struct batch b = {.in.n = 64, .dp = 2, .k = 8};

    for (int i = 0; i < 64; i++)
        b.llm[i] = 10 + i % 7;
    assign(&b);
    for (int d = 0; d < 2; d++) {
        ck_assert_int_eq(b.out.of[d].positions, 8);
        for (int p = 0; p < 8; p++)
            ck_assert(b.after[d][p] > 45 && b.after[d][p] < 60);
    }
    dt_arena_free(&b.arena);
}
END_TEST

START_TEST(impossible_numbers_are_refused)
{
    static const double one = 1;
    const struct dt_assign_loads in = {1, &one, &one, NULL}, none = {0, &one, &one, NULL};
    struct dt_assign_entrained out;
    struct dt_arena arena = {0};

    ck_assert_int_eq(dt_assign_entrain(&in, 0, 1, &arena, &out), DT_ERR_INTERNAL);
    ck_assert_int_eq(dt_assign_entrain(&in, 1, 0, &arena, &out), DT_ERR_INTERNAL);
    ck_assert_int_eq(dt_assign_entrain(&none, 1, 1, &arena, &out), DT_ERR_INTERNAL);
    ck_assert_int_eq(dt_assign_entrain(&in, 3, 5, &arena, &out), DT_OK);
    ck_assert_int_eq(out.of[0].positions, 1);
    ck_assert_int_eq(out.of[1].samples + out.of[2].positions, 0);
    dt_arena_free(&arena);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("entrain");
    TCase *tc = dt_test_case(suite, "steps", 60);
    tcase_add_test(tc, bottleneck_equals_every_permutation);
    tcase_add_test(tc, published_figure);
    tcase_add_test(tc, nearest_subset_of_all_subsets);
    tc = dt_test_case(suite, "batches", 60);
    tcase_add_test(tc, equals_the_reference);
    tcase_add_test(tc, equals_the_reference_on_images_and_text);
    tcase_add_test(tc, holds_of_any_batch);
    tcase_add_test(tc, deferral_equals_trying_everything);
    tcase_add_test(tc, encoder_within_its_bound_of_every_way);
    tcase_add_test(tc, few_positions);
    tcase_add_test(tc, order_of_samples_does_not_matter);
    tcase_add_test(tc, equal_samples_stay);
    tcase_add_test(tc, text_alone_is_balanced_by_the_llm);
    tcase_add_test(tc, impossible_numbers_are_refused);
    return dt_test_run(suite);
}
