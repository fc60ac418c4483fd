/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What crosses the boundary between an encoder and an LLM of another layout: who sends to whom, which part of the batch, and
 * how many bytes.  Groups and slots are written down from the description of the communicator in Megatron MIMO (arXiv
 * 2605.27678): of replicas that feed one destination (fan-in), or are fed by one source (fan-out), those ranks of the same
 * place in their lanes form a group, in the order of replicas; a rank's slot is its place in it. */
#include "sched_fixture.h"

#include <stdio.h>

enum { GPUS = 8, WIDTH = 1024, MAX_GROUPS = 8 };

static struct sched_fixture s;

/* `n` samples of `images` images, whose side is 16 x `patches` pixels; the rest of seq_len is text. */
static void samples(int n, int images, int patches, int seq_len)
{
    uint64_t at = 0;

    s.samples = (struct dt_samples){.n = n,
                                    .text_tokens = s.text,
                                    .seq_tokens = s.seq,
                                    .item_first = s.item_first,
                                    .items = s.items};
    for (int i = 0; i < n; i++) {
        s.text[i] = s.seq[i] = (uint32_t)seq_len;
        s.item_first[i] = at;
        for (int k = 0; k < images; k++)
            s.items[at++] = (struct dt_sample_item){.w = (uint16_t)(16 * patches),
                                                    .h = (uint16_t)(16 * patches),
                                                    .kind = DT_MODALITY_IMAGE,
                                                    .flags = DT_ITEM_ENCODE};
    }
    s.item_first[n] = at;
}

/* An encoder on the LLM's GPUs; tp and dp of both, `slot` samples of each LLM replica at a time, `slots` times. */
static void together(const int enc[2], const int llm[2], int slot, int slots, int window)
{
    int n = slot * slots * llm[1];

    sf_init(&s);
    sf_encoder(&s, "encoder", 2);
    sf_llm(&s, 2);
    sf_edge(&s, 0, 1);
    sf_plan(&s, n, slot, DT_SCHED_1F1B);
    sf_layout(&s, 0, enc[0], 1, 1, enc[1]);
    sf_layout(&s, 1, llm[0], 1, 1, llm[1]);
    s.plan.modules[0].with = 2;
    s.plan.modules[0].window = window;
    samples(n, 1, 8, SF_SEQ);
    sf_compile(&s);
}

struct groups {
    int n, rank[MAX_GROUPS][4], size[MAX_GROUPS];
};

static const struct dt_lane *lane_of(const struct dt_op *op)
{
    return &s.p->lanes[op->lane];
}

/* Is the op what crosses the boundary into `module`, in the first slot or window? */
static bool crosses_into(const struct dt_op *op, int module)
{
    return op->kind == DT_OP_RECV && op->module == module && (op->flags & DT_OPF_BOUNDARY) &&
           s.p->ops[op->peer].mb == 0 && op->mb == 0;
}

/* Ranks that feed each lane of `module`, by their places in their lanes. */
static struct groups feeders(int module)
{
    struct groups g = {0};

    for (int l = 0; l < s.p->n_lanes; l++) {
        const struct dt_lane *lane = &s.p->lanes[l];
        int from[4], n = 0, tp = 0;

        for (uint32_t i = lane->first; i < lane->first + lane->n; i++)
            if (crosses_into(&s.p->ops[i], module)) {
                const struct dt_lane *source = lane_of(&s.p->ops[s.p->ops[i].peer]);

                ck_assert_int_lt(n, 4);
                from[n++] = (int)source->first_gpu;
                tp = source->gpus;
            }
        for (int t = 0; t < tp; t++, g.n++) {
            ck_assert_int_lt(g.n, MAX_GROUPS);
            for (int k = 0; k < n; k++)
                g.rank[g.n][g.size[g.n]++] = from[k] + t;
        }
    }
    return g;
}

/* Where the samples of replica `part` of one module begin among those of replica `whole` of another, in their first
 * microbatches; -1: they are not a run of them. */
static int place_of(int part_of, int part, int whole_of, int whole)
{
    const struct dt_assignment_module *p = &s.a->m[part_of], *w = &s.a->m[whole_of];
    const struct dt_microbatch *a = &p->mb[p->mb_first[part]], *b = &w->mb[w->mb_first[whole]];
    uint32_t at = 0;

    while (at < b->n && w->samples[b->first + at] != p->samples[a->first])
        at++;
    for (uint32_t i = 0; i < a->n; i++)
        if (at + i >= b->n || w->samples[b->first + at + i] != p->samples[a->first + i])
            return -1;
    return (int)at;
}

static void same_groups(const struct groups *g, const int (*want)[2], int n)
{
    ck_assert_int_eq(g->n, n);
    for (int k = 0; k < n; k++) {
        ck_assert_int_eq(g->size[k], 2);
        ck_assert_int_eq(g->rank[k][0], want[k][0]);
        ck_assert_int_eq(g->rank[k][1], want[k][1]);
    }
}

static const int in_twos[4][2] = {{0, 2}, {1, 3}, {4, 6}, {5, 7}};
static const struct {
    int slot, slots, window;
} batches[] = {{4, 1, 0}, {2, 4, 0}, {4, 2, 0}, {2, 4, DT_PLAN_WINDOW_ALL}, {2, 4, 2}};
enum { BATCHES = sizeof(batches) / sizeof(batches[0]) };

/* Bytes of the first slot or window into a lane of `module`, from each that feeds it. */
static void each_sends(int module, uint64_t bytes)
{
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (crosses_into(&s.p->ops[i], module))
            ck_assert_uint_eq(s.p->ops[i].bytes, bytes);
}

/* Encoder tp 2 dp 4 to LLM tp 4 dp 2: forwards are gathered by twos, a backward takes its slot. */
START_TEST(fan_in)
{
    const int slot = batches[_i].slot;
    struct groups g;

    together((int[]){2, 4}, (int[]){4, 2}, slot, batches[_i].slots, batches[_i].window);
    g = feeders(1);
    same_groups(&g, in_twos, 4);
    if (batches[_i].window == 0) {
        /* half of the replica's samples, 64 patches each, in 2 bytes */
        each_sends(1, (uint64_t)slot / 2 * 64 * WIDTH * 2);
        each_sends(0, (uint64_t)slot / 2 * 64 * WIDTH * 2);
    }
    for (int e = 0; e < 4 && batches[_i].window == 0; e++) {
        static const int slots[] = {0, 1, 0, 1};

        ck_assert_int_eq(place_of(0, e, 1, e / 2), slots[e] * slot / 2);
    }
    sf_free(&s);
}
END_TEST

/* Encoder tp 4 dp 2 to LLM tp 2 dp 4: a forward takes its slot, backwards are gathered by twos. */
START_TEST(fan_out)
{
    const int slot = batches[_i].slot;
    struct groups g;

    together((int[]){4, 2}, (int[]){2, 4}, slot, batches[_i].slots, batches[_i].window);
    g = feeders(0);
    same_groups(&g, in_twos, 4);
    if (batches[_i].window == 0) {
        each_sends(1, (uint64_t)slot * 64 * WIDTH * 2);
        each_sends(0, (uint64_t)slot * 64 * WIDTH * 2);
    }
    for (int d = 0; d < 4 && batches[_i].window == 0; d++) {
        static const int slots[] = {0, 1, 0, 1};

        ck_assert_int_eq(place_of(1, d, 0, d / 2), slots[d] * slot);
    }
    sf_free(&s);
}
END_TEST

/* Equal layouts: each lane feeds itself alone. */
START_TEST(equal)
{
    struct groups g;

    together((int[]){2, 4}, (int[]){2, 4}, 2, 2, 0);
    g = feeders(1);
    ck_assert_int_eq(g.n, GPUS);
    for (int k = 0; k < GPUS; k++) {
        ck_assert_int_eq(g.size[k], 1);
        ck_assert_int_eq(g.rank[k][0], k);
    }
    sf_free(&s);
}
END_TEST

/* ---- bytes of a step ---- */

/* GB of a step with a 70B LLM, 8,192 tokens of width 8,192, 256 samples on 256 GPUs: computed from the published layouts as
 * samples of a replica x vision tokens x width x 2, here as figures. */
static const struct {
    int images; /* of 1,024 tokens */
    double into_llm, into_encoder, apart;
} steps[] = {{2, 0.5369, 0.2684, 1.0737}, {4, 1.0737, 0.5369, 2.1475}, {6, 1.6106, 0.8053, 3.2212}};

static double step_gb(int module, int replica, enum dt_op_kind kind)
{
    double sum = 0;

    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];

        if (op->module == module && op->replica == replica && op->kind == kind &&
            (op->flags & DT_OPF_BOUNDARY))
            sum += 1e-9 * (double)op->bytes;
    }
    return sum;
}

/* The encoder with the LLM (tp 8, dp 32 with window) or apart (dp 8); the LLM is 8/2/16. */
static void large(int images, bool apart, int cp)
{
    sf_init(&s);
    fx_vit(&s.f, 2, 2048, 8192, 16, 8192);
    strcpy(s.f.model.modules[0].name, "encoder");
    s.f.model.modules[0].patch = 16;
    fx_llm(&s.f, 4, 8192, 28672, 64, 8, 4099);
    sf_edge(&s, 0, 1);
    sf_plan(&s, 256, 1, DT_SCHED_1F1B);
    s.plan.policy.seq_len = 8192;
    sf_layout(&s, 0, apart ? 1 : 8, 1, 1, apart ? 8 : 32);
    sf_layout(&s, 1, 8 / cp, 2, 1, 16);
    s.plan.modules[1].layout.cp = cp;
    s.plan.modules[0].with = apart ? 0 : 2;
    s.plan.modules[0].window = apart ? 0 : DT_PLAN_WINDOW_ALL;
    samples(256, images, 32, 8192);
    sf_compile(&s);
}

/* Context parallelism changes who takes a row, not how many there are. */
START_TEST(bytes_of_a_step)
{
    for (int cp = 1; cp <= 4; cp *= 2) {
        large(steps[_i].images, false, cp);
        ck_assert_double_eq_tol(step_gb(1, 0, DT_OP_RECV), steps[_i].into_llm,
                                0.001 * steps[_i].into_llm);
        ck_assert_double_eq_tol(step_gb(0, 0, DT_OP_RECV), steps[_i].into_encoder,
                                0.001 * steps[_i].into_encoder);
        sf_free(&s);
        large(steps[_i].images, true, cp);
        ck_assert_double_eq_tol(step_gb(0, 0, DT_OP_SEND), steps[_i].apart,
                                0.001 * steps[_i].apart);
        ck_assert_double_eq_tol(step_gb(0, 0, DT_OP_RECV), steps[_i].apart,
                                0.001 * steps[_i].apart);
        sf_free(&s);
    }
}
END_TEST

int main(void)
{
    Suite *u = suite_create("communicator");
    TCase *c = dt_test_case(u, "communicator", 120);

    tcase_add_loop_test(c, fan_in, 0, BATCHES);
    tcase_add_loop_test(c, fan_out, 0, BATCHES);
    tcase_add_test(c, equal);
    tcase_add_loop_test(c, bytes_of_a_step, 0, 3);
    return dt_test_run(u);
}
