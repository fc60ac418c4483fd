/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Collectives and products of tensor parallelism in chunks give what they give whole, to the bit, where a product's row does
 * not depend on how many others there are: no sum has terms of two chunks.  oneDNN's products for AVX-512 are so; those for
 * AVX2 round the last rows otherwise where they are one to three more than a multiple of six. */
#include "module_util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows (14, and of images more) divide by few of the numbers of chunks; in the last ones members have fewer rows than
 * there are chunks. */
static const struct row {
    enum mu_kind kind;
    int heads, kv_heads, tp, chunks;
} rows[] = {
    {MU_LLAMA, 4, 2, 2, 2},  {MU_LLAMA, 8, 4, 4, 2},    {MU_QWEN, 4, 4, 4, 3},
    {MU_GPT2, 4, 4, 2, 4},   {MU_GPT2, 3, 3, 3, 2},     {MU_VIT, 4, 4, 4, 4},
    {MU_VIT, 3, 3, 3, 5},    {MU_VIT_BARE, 4, 4, 2, 8}, {MU_CLIP, 4, 4, 2, 3},
    {MU_LLAMA3, 4, 2, 2, 7}, {MU_LLAMA, 8, 4, 4, 16},   {MU_UNET, 2, 2, 2, 4},
};

/* Where AVX-512 is, and with it bf16, a product's rows know nothing of each other. */
static bool has_bf16, rows_alone;

static double largest(double most, const double *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(v[i])); /* NaN: a row of another member */
    return most;
}

/* scale: of all that a pass computes; gradients of keys' biases are nothing but rounding. */
static void same(const struct mu *u, const char *what, const double *a, const double *b, int64_t n,
                 double scale)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(a[i] == b[i] || (!rows_alone && fabs(a[i] - b[i]) <= 1e-5 * scale),
                      "%s, seed %llu: %s[%lld] is %.9g in chunks and %.9g whole", mu_names[u->kind],
                      (unsigned long long)u->seed, what, (long long)i, a[i], b[i]);
}

static void compare(struct mu *u, struct mu_run run, int chunks)
{
    struct mu_result whole, cut;
    double scale;

    mu_execute(u, &run, &whole);
    run.chunks = chunks;
    mu_execute(u, &run, &cut);
    scale = largest(fabs(whole.loss), whole.out, u->n_out);
    for (int i = 0; i < u->n; i++)
        if (whole.has[i])
            scale = largest(scale, whole.g[i], u->t[i].n);
    same(u, "the loss", &cut.loss, &whole.loss, 1, scale);
    same(u, "the output", cut.out, whole.out, u->n_out, scale);
    same(u, "the input's gradient", cut.d_in, whole.d_in, u->n_in, scale);
    for (int i = 0; i < u->n; i++)
        if (whole.has[i])
            same(u, u->t[i].name, cut.g[i], whole.g[i], u->t[i].n, scale);
}

START_TEST(chunks_change_nothing)
{
    const struct row *r = &rows[_i];
    const struct mu_run runs[] = {
        {.upstream = true},
        {.upstream = true, .dtype = DT_BF16},
        {.upstream = true, .recompute = DT_RECOMPUTE_FULL, .microbatches = 2},
        {.upstream = true, .split_backward = true, .cuts = {1, 3}, .n_cuts = 2},
        {.frozen = true, .freeze_from = 0, .freeze_to = 2, .recompute = DT_RECOMPUTE_SELECTIVE},
    };

    has_bf16 = rows_alone = dt_test_has_bf16();
    for (size_t k = 0; k < sizeof(runs) / sizeof(runs[0]); k++) {
        struct mu_run run = runs[k];
        struct mu u;

        if (run.dtype == DT_BF16 && !has_bf16)
            continue;
        mu_open_heads(&u, r->kind, dt_test_seed() + k, r->heads, r->kv_heads);
        run.tp = r->tp;
        run.dropout = k % 2 == 1 && u.m.blocks[0].hidden % 4 == 0 ? 0.25f : 0;
        compare(&u, run, r->chunks);
        mu_close(&u);
    }
}
END_TEST

/* ---- the trace of a device whose queues run on their own ---- */

enum { SPANS = 1 << 16 };
static struct dt_fake_span spans[SPANS];
static size_t n_spans;

static void begin_trace(struct dt_device *dev, int member)
{
    if (member == 0)
        dt_fake_trace(dev, NULL, 0);
}

static void take_trace(struct dt_device *dev, int member)
{
    if (member == 0)
        n_spans = dt_fake_trace(dev, spans, SPANS);
}

/* The n-th task of the name, from 0. */
static const struct dt_fake_span *nth(const char *what, int n)
{
    for (size_t i = 0; i < n_spans; i++)
        if (strcmp(spans[i].what, what) == 0 && n-- == 0)
            return &spans[i];
    return NULL;
}

/* The n-th collective: a copy to the host, a host function, copies to the device. */
static struct dt_fake_span collective(int n)
{
    const struct dt_fake_span *call = nth("call", n), *s = call;
    struct dt_fake_span all;

    ck_assert_ptr_nonnull(call);
    all = *call;
    while (s > spans && (--s)->queue != call->queue)
        ;
    if (s->queue == call->queue && s->what == dt_fake_copy_names[DT_COPY_TO_HOST])
        all.begin_ns = s->begin_ns;
    for (s = call + 1; s < spans + n_spans; s++)
        if (s->queue == call->queue && s->what != dt_fake_copy_names[DT_COPY_TO_DEVICE])
            break;
        else if (s->queue == call->queue)
            all.end_ns = s->end_ns;
    return all;
}

static bool beside(const struct dt_fake_span *product, int coll)
{
    struct dt_fake_span c = collective(coll);

    return product->queue != c.queue && product->begin_ns < c.end_ns &&
           c.begin_ns < product->end_ns;
}

static int count(const char *what)
{
    int n = 0;

    for (size_t i = 0; i < n_spans; i++)
        n += strcmp(spans[i].what, what) == 0;
    return n;
}

/* In a forward, the products of a layer are those of q|k|v, of the heads' output, of the MLP's input and of its output,
 * each in chunks, and their collectives are "calls" (host functions of the staged transport) in the same order, after
 * the one of the embedding. */
enum { LAYERS_SEEN = 2 };
static void look(int chunks, int *seen, int *all)
{
    for (int i = 0; i < LAYERS_SEEN * 4 * chunks; i++) {
        bool gather = i / chunks % 2 == 0, last = i % chunks == chunks - 1;
        const struct dt_fake_span *product = nth("linear_fwd", i);
        struct dt_fake_span own = collective(1 + i);

        ck_assert_ptr_nonnull(product);
        if (gather)
            ck_assert_uint_ge(product->begin_ns, own.end_ns);
        else
            ck_assert_uint_ge(own.begin_ns, product->end_ns);
        if (last)
            continue;
        *all += 1;
        *seen += gather ? beside(product, 1 + i + 1) : beside(nth("linear_fwd", i + 1), 1 + i);
    }
}

static void run_traced(int chunks)
{
    struct mu_run run = {.tp = 2, .chunks = chunks, .before = begin_trace, .after = take_trace};
    struct mu_result result;
    struct mu u;

    mu_open_heads(&u, MU_LLAMA, dt_test_seed(), 4, 2);
    mu_execute(&u, &run, &result);
    mu_close(&u);
}

/* Chunk i + 1 is gathered beside the product of chunk i; chunk i is scattered beside the product of chunk i + 1. */
START_TEST(collectives_of_a_chunk_lie_beside_the_product_of_another)
{
    int seen = 0, all = 0;

    setenv("DISTTRAIN_FAKE_DEVICE", "1", 1);
    setenv("DISTTRAIN_FAKE_DELAY_US", "1000", 1);
    setenv("DISTTRAIN_FAKE_SHARE", "1", 1);
    run_traced(4);
    look(4, &seen, &all);
    printf("%d of %d collectives beside the product of the chunk before or after\n", seen, all);
    ck_assert_int_gt(4 * seen, all);
    run_traced(0);
    ck_assert_int_gt(count("linear_fwd"), 4 * LAYERS_SEEN - 1);
    for (int i = 0; i < count("linear_fwd"); i++)
        for (int k = 0; k < count("call"); k++)
            ck_assert(!beside(nth("linear_fwd", i), k));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stepccl");
    TCase *t = dt_test_case(s, "stepccl", 120);

    tcase_add_loop_test(t, chunks_change_nothing, 0, sizeof(rows) / sizeof(rows[0]));
    tcase_add_test(t, collectives_of_a_chunk_lie_beside_the_product_of_another);
    return dt_test_run(s);
}
