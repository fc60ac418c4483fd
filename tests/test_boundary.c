/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Boundaries inside modules: what a split U-Net sends, against the layout written down by hand; and
 * what image-parallel ranks hold and sync. */
#include "core/model/boundary.h"
#include "sched_fixture.h"

#include <stdio.h>

static struct sched_fixture s;

static struct dt_model *preset(const char *yaml)
{
    struct dt_error err = {0};
    struct dt_doc *doc = NULL;
    struct dt_model *m = NULL;
    char text[512];

    snprintf(text, sizeof(text), "model: %s\n", yaml);
    dt_assert_ok(dt_doc_parse("job.yaml", text, strlen(text), &err, &doc), err);
    dt_assert_ok(dt_model_read(dt_map_get(dt_doc_root(doc), "model"), &err, &m), err);
    dt_doc_free(doc);
    return m;
}

/* ---- the U-Net of Stable Diffusion 2.1, written down ---- */

enum { LEVELS = 4, STEPS = 128 };
static const int channels[LEVELS] = {320, 640, 1280, 1280};

struct step { /* one block */
    int level, width;
    bool push, pop;
};
struct layout {
    struct step step[STEPS];
    int n;
};

static void step(struct layout *l, int level, int width, bool push, bool pop)
{
    l->step[l->n++] = (struct step){level, width, push, pop};
}

/* Projector and time embedding come first; every entry after them is a block. */
static void write_down(struct layout *l)
{
    l->n = 2;
    step(l, 0, 320, true, false); /* conv_in */
    for (int v = 0; v < LEVELS; v++) {
        for (int i = 0; i < 2; i++) {
            step(l, v, channels[v], v == 3, false);
            if (v < 3)
                step(l, v, channels[v], true, false);
        }
        if (v < 3)
            step(l, v + 1, channels[v], true, false);
    }
    for (int i = 0; i < 3; i++)
        step(l, 3, 1280, false, false);
    for (int v = LEVELS - 1; v >= 0; v--) {
        for (int i = 0; i < 3; i++) {
            step(l, v, channels[v], false, true);
            if (v < 3)
                step(l, v, channels[v], false, false);
        }
        if (v > 0)
            step(l, v - 1, channels[v], false, false);
    }
    step(l, 0, 4, false, false); /* conv_out */
}

/* Bytes behind the first `end` blocks for images of 64 x 64 latents each. */
static uint64_t by_hand(const struct layout *l, int end, uint64_t images)
{
    int stack[STEPS], n = 0;
    uint64_t sum, item = 77 * 1024 + 1280;
    bool top_is_main = false;

    for (int i = 2; i < end; i++) {
        n -= l->step[i].pop;
        top_is_main = l->step[i].push;
        if (l->step[i].push)
            stack[n++] = i;
    }
    if (end < 3) /* the stage of conv_in reads the latents and timesteps itself */
        sum = 0, item = 77 * 1024 + (end == 2 ? 1280 : 0);
    else
        sum = top_is_main
                  ? 0
                  : 4096ULL / (1 << 2 * l->step[end - 1].level) * (uint64_t)l->step[end - 1].width;
    for (int i = 0; i < n; i++)
        sum += 4096ULL / (1 << 2 * l->step[stack[i]].level) * (uint64_t)l->step[stack[i]].width;
    if (end == l->n - 1) /* conv_out needs neither time nor states; its attention block is past */
        item = 0;
    return 2 * images * (sum + item);
}

static const struct dt_module *generator(const struct dt_model *m)
{
    return &m->modules[dt_model_find(m, "generator")];
}

/* Blocks behind `end` that attend to the states, and that take the time. */
static uint64_t spared(const struct dt_module *g, int end, uint64_t images)
{
    uint64_t states = 77 * 1024, time = 1280;

    for (int i = end; i < g->n_blocks; i++) {
        if (g->blocks[i].kind == DT_BLOCK_SPATIAL_TRANSFORMER)
            states = 0;
        if (g->blocks[i].kind == DT_BLOCK_RESNET)
            time = 0;
    }
    return 2 * images * (states + time);
}

START_TEST(a_unet_hands_on_all_that_is_pending)
{
    struct dt_model *m = preset("{preset: mllm-9b}");
    const struct dt_module *g = generator(m);
    struct layout l = {0};

    write_down(&l);
    ck_assert_int_eq(l.n, g->n_blocks);
    for (int end = 1; end < g->n_blocks; end++) {
        const struct dt_work w = {3, 3 * 4096, 3LL * 4096 * 4096, 4096};
        uint64_t want = by_hand(&l, end, 3);

        if (end < g->n_blocks - 1)
            want -= spared(g, end, 3);
        ck_assert_msg(dt_block_boundary_bytes(g, end, &w) == want,
                      "behind block %d (%s): %" PRIu64 " bytes, by hand %" PRIu64, end - 1,
                      dt_block_kind_name(g->blocks[end - 1].kind),
                      dt_block_boundary_bytes(g, end, &w), want);
    }
    dt_model_free(m);
}
END_TEST

/* In the middle everything is pending: three skips of each level.  Element counts by hand. */
START_TEST(the_middle_of_a_unet_is_its_widest_boundary)
{
    struct dt_model *m = preset("{preset: mllm-9b}");
    const struct dt_module *g = generator(m);
    struct dt_boundary_tensor t[DT_BOUNDARY_MAX];
    const struct dt_work w = {1, 4096, 4096LL * 4096, 4096};
    int middle = 2 + 1 + 3 * 5 + 2 + 3, n = dt_boundary_tensors(g, middle, t);
    uint64_t skips =
        4096 * 3 * 320 + 1024 * (320 + 2 * 640) + 256 * (640 + 2 * 1280) + 64 * 3 * 1280;

    ck_assert_int_eq(n, 1 + 12 + 2);
    ck_assert_int_eq(t[0].kind, DT_TENSOR_MAIN);
    ck_assert_int_eq(t[0].block, middle - 1);
    for (int i = 1; i <= 12; i++)
        ck_assert(t[i].kind == DT_TENSOR_SKIP && (i == 1 || t[i].block > t[i - 1].block));
    ck_assert_int_eq(t[13].kind, DT_TENSOR_CONTEXT);
    ck_assert_int_eq(t[14].kind, DT_TENSOR_TIME);
    ck_assert_uint_eq(dt_block_boundary_bytes(g, middle, &w),
                      2 * (skips + 64 * 1280 + 77 * 1024 + 1280));
    dt_model_free(m);
}
END_TEST

/* Other U-Nets: pushes and pops match, whatever the number of levels and the attention. */
START_TEST(every_pop_finds_a_skip_of_its_width)
{
    static const char *const yaml[] = {
        "{preset: mllm-9b}", "{preset: mllm-audio}",
        "{preset: mllm-9b, generator: {preset: sd21-unet, channels: [64, 96, 160], "
        "attention: [false, true, false], res_blocks: 1, head_dim: 32, context_dim: 768}}"};
    struct dt_model *m = preset(yaml[_i]);
    const struct dt_module *g = NULL;

    for (int i = 0; i < m->n_modules; i++)
        if (m->modules[i].role == DT_ROLE_GENERATOR)
            g = &m->modules[i];
    ck_assert_ptr_nonnull(g);
    for (int end = 1; end < g->n_blocks; end++) {
        struct dt_boundary_tensor t[DT_BOUNDARY_MAX];
        const struct dt_block *b = &g->blocks[end];
        int n = dt_boundary_tensors(g, end, t), last_skip = -1;

        for (int i = 1; i < n; i++)
            last_skip = t[i].kind == DT_TENSOR_SKIP ? i : last_skip;
        if (n == 0 || t[0].kind != DT_TENSOR_MAIN) {
            ck_assert_int_le(end, 3); /* projector, time embedding, class embedding */
        } else if (b->kind == DT_BLOCK_RESNET && b->c_in != t[0].width) {
            ck_assert_int_gt(last_skip, 0);
            ck_assert_int_eq(t[0].width + t[last_skip].width, b->c_in);
            ck_assert_int_eq(t[last_skip].level, b->level);
        } else if (b->kind == DT_BLOCK_RESNET || b->kind == DT_BLOCK_CONV) {
            ck_assert_int_eq(t[0].width, b->c_in);
        }
        if (end == g->n_blocks - 1)
            ck_assert_int_eq(last_skip, -1); /* nothing is left over */
    }
    dt_model_free(m);
}
END_TEST

/* ---- programs ---- */

/* Encoder, LLM and the real U-Net over `pp` stages. */
static void unet_chain(struct dt_model *from, int pp, int vpp)
{
    const struct dt_module *g = generator(from);
    struct dt_module *to;

    sf_init(&s);
    sf_encoder(&s, "encoder", 4);
    sf_llm(&s, 4);
    to = fx_module(&s.f, "generator", DT_ROLE_GENERATOR, g->n_blocks);
    memcpy(to->blocks, g->blocks, (size_t)g->n_blocks * sizeof(*g->blocks));
    to->modality = DT_MODALITY_IMAGE;
    to->latent_scale = 8;
    to->resize = 512;
    to->out_tokens_per_item = 77;
    sf_edge(&s, 0, 1);
    sf_edge(&s, 1, 2);
    sf_plan(&s, 24, 1, vpp > 1 ? DT_SCHED_INTERLEAVED : DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 1, 1, 2);
    sf_layout(&s, 1, 1, 2, 1, 2);
    sf_layout(&s, 2, 1, pp, vpp, 1);
    sf_samples(&s, 24, 2, 2, true, 51);
    sf_compile(&s);
}

START_TEST(a_split_unet_sends_what_its_stages_need)
{
    struct dt_model *m = preset("{preset: mllm-9b}");
    struct layout l = {0};
    int pp = 2 + _i, inner[2] = {0, 0};

    unet_chain(m, pp, 1);
    write_down(&l);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];
        bool grad = op->flags & DT_OPF_GRAD;
        int end;
        uint64_t want;

        if (op->module != 2 || op->kind != DT_OP_SEND || (op->flags & DT_OPF_BOUNDARY))
            continue;
        end = s.plan.modules[2].split[op->stage + !grad];
        want = by_hand(&l, end, (uint64_t)s.a->m[2].work[op->mb].n) -
               (end < l.n - 1 ? spared(generator(m), end, (uint64_t)s.a->m[2].work[op->mb].n) : 0);
        ck_assert_uint_eq(op->bytes, want);
        ck_assert_uint_eq(s.p->ops[op->peer].bytes, want);
        inner[grad]++;
    }
    ck_assert_int_gt(inner[0], 0);
    ck_assert_int_eq(inner[0], inner[1]);
    sf_free(&s);
    dt_model_free(m);
}
END_TEST

/* Transfer buffers: twice what comes in and what goes out, whole on every tp rank. */
/* What a model keeps of its boundaries is what a walk over its blocks finds. */
START_TEST(kept_boundaries_are_those_of_the_blocks)
{
    static const char *const names[] = {"mllm-72b", "mllm-nano", "mllm-audio", "gpt-22b"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct dt_model *m = NULL;
        struct dt_doc *doc = NULL;
        struct dt_error err = {0};
        char text[64];
        int n = snprintf(text, sizeof(text), "model: %s\n", names[i]);

        dt_assert_ok(dt_doc_parse("job.yaml", text, (size_t)n, &err, &doc), err);
        dt_assert_ok(dt_model_read(dt_map_get(dt_doc_root(doc), "model"), &err, &m), err);
        for (int k = 0; k < m->n_modules; k++)
            for (int end = 1; end < m->modules[k].n_blocks; end++)
                for (int elem = 2; elem <= 4; elem += 2) {
                    struct dt_module walked = m->modules[k];
                    struct dt_boundary a, b;

                    ck_assert_ptr_nonnull(walked.wire);
                    walked.wire = NULL;
                    dt_block_boundary(&m->modules[k], end, elem, &a);
                    dt_block_boundary(&walked, end, elem, &b);
                    ck_assert_msg(memcmp(&a, &b, sizeof(a)) == 0, "%s, module %d, block %d",
                                  names[i], k, end);
                }
        dt_model_free(m);
        dt_doc_free(doc);
    }
}
END_TEST

START_TEST(memory_charges_the_whole_boundary)
{
    struct dt_model *m = preset("{preset: mllm-9b}");
    struct dt_work w = {2, 2 * 4096, 2LL * 4096 * 4096, 4096};
    struct layout l = {0};
    const struct dt_module *g = generator(m);

    unet_chain(m, 3, 1);
    write_down(&l);
    for (int tp = 1; tp <= 2; tp++) {
        const uint16_t *split = s.plan.modules[2].split;
        double want = 2.0 * (double)(by_hand(&l, split[1], 2) - spared(g, split[1], 2) +
                                     by_hand(&l, split[2], 2) - spared(g, split[2], 2));
        struct dt_memory mem;

        s.plan.modules[2].layout.tp = tp;
        dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 2, 1, &w, 12, &mem);
        ck_assert_double_eq_tol(mem.broker, want, 1e-6 * want);
    }
    sf_free(&s);
    dt_model_free(m);
}
END_TEST

/* ---- image parallelism ---- */

/* Encoder with ip ranks: each holds all parameters, so gradients meet over dp x ip ranks, even at
 * dp 1. */
START_TEST(image_parallel_ranks_are_copies)
{
    static const int shape[][2] = {{1, 1}, {1, 4}, {3, 2}, {6, 1}}; /* dp, ip */
    int dp = shape[_i][0], ip = shape[_i][1], ranks = dp * ip;
    struct dt_work w = {8, 8 * 256, 8 * 256 * 256, 256};
    struct dt_cost_options opt = {.allow_analytical = true};
    struct dt_cost *cost = NULL;
    struct dt_durations d = {0};
    struct dt_memory mem;
    uint64_t bytes = 0;
    double params = 0;
    int64_t step = 0;

    sf_init(&s);
    fx_index(&s.f);
    sf_encoder(&s, "encoder", 6);
    sf_llm(&s, 4);
    sf_edge(&s, 0, 1);
    sf_plan(&s, 24, 1, DT_SCHED_1F1B);
    s.plan.policy.overlap_grad = s.plan.policy.overlap_param = false;
    sf_layout(&s, 0, 1, 1, 1, dp);
    s.plan.modules[0].layout.ip = ip;
    sf_layout(&s, 1, 1, 2, 1, 6);
    sf_samples(&s, 24, 4, 0, false, 52);
    sf_compile(&s);
    params = (double)dt_module_params(&s.f.model.modules[0]);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_GRAD_SYNC), ranks > 1 ? (unsigned)dp : 0);
    ck_assert_uint_eq(sf_count(s.p, 0, DT_OP_PARAM_GATHER), ranks > 1 ? (unsigned)dp : 0);
    dt_assert_ok(dt_cost_new(&s.f.model, &s.f.cluster, &s.f.profile, &opt, &s.err, &cost), s.err);
    dt_assert_ok(dt_durations_compute(s.p, &s.f.model, &s.f.cluster, cost, false, &s.err, &d),
                 s.err);
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];

        if (op->module == 0 && op->kind == DT_OP_STEP)
            step = d.ns[i];
        if (op->module == 0 && op->kind == DT_OP_GRAD_SYNC) {
            const struct dt_group *g = &s.p->groups[op->peer];
            struct dt_cost_time want;

            bytes = op->bytes;
            ck_assert_uint_eq(g->n, (unsigned)dp);
            ck_assert_int_le(g->ahead + ranks, g->per_node); /* one node */
            ck_assert_uint_eq(g->share, 1);
            dt_cost_collective(cost, DT_KOP_REDUCE_SCATTER, ranks, ranks, 1, (double)bytes, &want);
            ck_assert_int_eq(d.ns[i], (int64_t)(want.ns + 0.5));
        }
    }
    if (ranks > 1)
        ck_assert_double_eq_tol((double)bytes, 4 * params, 1); /* whole, on every rank */
    {
        struct dt_cost_time want;

        dt_cost_optimizer(cost, params / ranks, &want);
        ck_assert_double_eq_tol((double)step, want.ns, 1e-6 * want.ns + 1);
    }
    dt_memory_stage(&s.plan, &s.f.model, &s.f.cluster, 0, 0, &w, 4, &mem);
    ck_assert_double_eq_tol(mem.grads, 4 * params, 1);
    ck_assert_double_eq_tol(mem.optimizer, 12 * params / ranks, 1);
    dt_durations_free(&d);
    dt_cost_free(cost);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("boundary");
    TCase *c = dt_test_case(u, "boundary", 120);

    tcase_add_test(c, a_unet_hands_on_all_that_is_pending);
    tcase_add_test(c, the_middle_of_a_unet_is_its_widest_boundary);
    tcase_add_loop_test(c, every_pop_finds_a_skip_of_its_width, 0, 3);
    tcase_add_loop_test(c, a_split_unet_sends_what_its_stages_need, 0, 4);
    tcase_add_test(c, kept_boundaries_are_those_of_the_blocks);
    tcase_add_test(c, memory_charges_the_whole_boundary);
    tcase_add_loop_test(c, image_parallel_ranks_are_copies, 0, 4);
    return dt_test_run(u);
}
