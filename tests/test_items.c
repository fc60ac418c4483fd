/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Encoders and generators whose replicas share items: every item once, with those that serve its LLM replica, evenly; windows in flight
 * and their messages; what crosses the boundary between any two layouts; the key of plans. */
#include "random_plan.h"
#include "base/number.h"

#include <string.h>

static struct sched_fixture s;

/* Encoder dp e with window w over an LLM of dp d, pp stages and n slots of one sample per replica. */
static void world(int e, int window, int d, int pp, int n, int items)
{
    sf_init(&s);
    sf_encoder(&s, "encoder", 4);
    sf_llm(&s, 8);
    sf_edge(&s, 0, 1);
    sf_plan(&s, (int64_t)n * d, 1, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 1, 1, e);
    sf_layout(&s, 1, 1, pp, 1, d);
    s.plan.modules[0].window = window;
    sf_samples(&s, (int64_t)n * d, items, 0, true, dt_test_seed());
}

/* What the set itself says, apart from dt_sample_items: images to encode, and their patches. */
static int images_of(int64_t sample, int64_t *patches)
{
    int n = 0;

    *patches = 0;
    for (uint64_t k = s.item_first[sample]; k < s.item_first[sample + 1]; k++)
        if (s.items[k].flags & DT_ITEM_ENCODE) {
            *patches += (int64_t)(s.items[k].w / 16) * (s.items[k].h / 16);
            n++;
        }
    return n;
}

static void check_items(int window, int slots)
{
    const struct dt_assignment_module *e = &s.a->m[0], *l = &s.a->m[1];
    static int seen[SF_ITEMS_MAX], serves[SF_ITEMS_MAX], slot_of[SF_ITEMS_MAX];
    int groups = dt_number_gcd(e->n_replicas, l->n_replicas), all = 0;
    int64_t tokens = 0, patches, should = 0;

    memset(seen, 0, sizeof(seen));
    for (int r = 0; r < l->n_replicas; r++)
        for (uint32_t b = l->mb_first[r]; b < l->mb_first[r + 1]; b++)
            for (uint32_t k = 0; k < l->mb[b].n; k++) {
                serves[l->samples[l->mb[b].first + k]] = r * groups / l->n_replicas;
                slot_of[l->samples[l->mb[b].first + k]] = (int)l->mb[b].slot;
            }
    for (int r = 0; r < e->n_replicas; r++) {
        uint32_t n = e->mb_first[r + 1] - e->mb_first[r];

        ck_assert_uint_eq(n, (uint32_t)((slots + window - 1) / window));
        for (uint32_t w = 0; w < n; w++) {
            const struct dt_microbatch *mb = &e->mb[e->mb_first[r] + w];

            ck_assert_uint_eq(mb->slot, w * (uint32_t)window);
            tokens += e->work[e->mb_first[r] + w].tokens;
            for (uint32_t k = mb->first; k < mb->first + mb->n; k++) {
                int64_t i = e->samples[k];

                ck_assert_int_eq(serves[i], r * groups / e->n_replicas);
                ck_assert_uint_eq((uint32_t)slot_of[i] / (uint32_t)window, w);
                ck_assert_uint_lt(e->items[k], (uint32_t)images_of(i, &patches));
                ck_assert_int_eq(seen[s.item_first[i] + e->items[k]]++, 0);
                /* the order in which rows arrive */
                if (k > mb->first && e->samples[k - 1] == i)
                    ck_assert_uint_lt(e->items[k - 1], e->items[k]);
                all++;
            }
        }
    }
    for (int64_t i = 0; i < s.samples.n; i++) {
        all -= images_of(i, &patches);
        should += patches;
    }
    ck_assert_int_eq(all, 0);
    ck_assert_int_eq(tokens, should);
}

/* An item that another replica has, too, is noticed by both who look. */
static void check_noticed(int module)
{
    s.a->m[module].items[0] += 1;
    ck_assert_int_eq(dt_assign_check(s.a, &s.err), DT_ERR_INTERNAL);
    ck_assert_int_eq(dt_program_check(s.p, &s.f.model, &s.err), DT_ERR_INTERNAL);
}

START_TEST(every_item_once_where_it_serves)
{
    static const int cases[][6] = {/* dp, window, LLM dp, pp, slots */
                                   {4, 1, 2, 1, 5},  {8, 2, 1, 2, 4},  {6, 3, 4, 2, 7},
                                   {16, 1, 2, 1, 3}, {4, -1, 1, 4, 9}, {1, -1, 3, 2, 5},
                                   {20, 0, 2, 1, 3}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int *c = cases[i];

        world(c[0], c[1], c[2], c[3], c[4], 4);
        sf_compile(&s);
        check_items(c[1] < 0 ? c[4] : c[1] ? c[1] : 1, c[4]);
        dt_assert_ok(dt_assign_check(s.a, &s.err), s.err);
        dt_assert_ok(dt_program_check(s.p, &s.f.model, &s.err), s.err);
        check_noticed(0);
        sf_free(&s);
    }
}
END_TEST

/* One long sample: its images are spread, none has more than the mean and a largest one. */
START_TEST(one_sample_is_shared_evenly)
{
    int64_t total, most = 0, largest = 0;

    world(8, 1, 1, 1, 1, 20);
    sf_compile(&s);
    images_of(0, &total);
    for (uint64_t k = s.item_first[0]; k < s.item_first[1]; k++)
        if (s.items[k].w / 16 * (s.items[k].h / 16) > largest)
            largest = s.items[k].w / 16 * (s.items[k].h / 16);
    for (int r = 0; r < 8; r++)
        if (s.a->m[0].work[r].tokens > most)
            most = s.a->m[0].work[r].tokens;
    ck_assert_int_le(most, total / 8 + largest);
    sf_free(&s);
}
END_TEST

/* With b slots at once on the way: one window of all; two where a window has b - 1 or more; else as many as b
 * slots in a row can touch. */
START_TEST(windows_in_flight)
{
    for (int pp = 1; pp <= 4; pp++)
        for (int window = 1; window <= 12; window++) {
            int b = pp + 1, touched = 0; /* the encoder's own stage and those of the LLM */

            world(4, window, 2, pp, 12, 2);
            sf_compile(&s);
            for (int first = 0; first < window; first++)
                touched =
                    (first + b - 1) / window + 1 > touched ? (first + b - 1) / window + 1 : touched;
            touched = touched < (12 + window - 1) / window ? touched : (12 + window - 1) / window;
            ck_assert_int_eq(
                dt_memory_in_flight(&s.plan, &s.f.model, 0, 0, dt_plan_microbatches(&s.plan, 1, 0)),
                touched);
            /* the LLM's first stage may hold messages of all their slots but for those that it works on */
            ck_assert_int_ge(dt_memory_queue(&s.plan, &s.f.model, 1, 0, 12),
                             (touched * window < 12 ? touched * window : 12) - pp);
            sf_free(&s);
        }
}
END_TEST

START_TEST(plans_keep_the_window)
{
    static const int windows[] = {0, 1, 7, DT_PLAN_WINDOW_ALL};

    for (int i = 0; i < 4; i++) {
        struct dt_plan back;
        char *text = NULL, *again = NULL;

        world(2, windows[i], 2, 1, 3, 2);
        dt_assert_ok(dt_plan_to_json(&s.plan, &s.err, &text), s.err);
        ck_assert_int_eq(strstr(text, "window") != NULL, windows[i] != 0);
        dt_assert_ok(dt_plan_parse("plan.json", text, strlen(text), &s.err, &back), s.err);
        ck_assert_int_eq(back.modules[0].window, windows[i]);
        dt_assert_ok(dt_plan_to_json(&back, &s.err, &again), s.err);
        ck_assert_str_eq(text, again);
        dt_free(text);
        dt_free(again);
        sf_free(&s);
    }
    world(2, 0, 2, 1, 3, 2);
    s.plan.modules[1].window = 2;
    ck_assert_int_eq(dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err), DT_ERR_INPUT);
    dt_assert_has(s.err.message, "window");
}
END_TEST

START_TEST(any_allocation_may_fail)
{
    int failed = 0;

    world(6, 2, 2, 2, 5, 3);
    dt_assert_ok(dt_plan_place(&s.plan, &s.f.cluster, &s.err), s.err);
    for (uint64_t k = 1;; k++) {
        struct dt_assignment *a = NULL;
        enum dt_status st;
        bool reached;

        dt_mem_fail_at(k);
        st = dt_assign(&s.plan, &s.f.model, NULL, &s.samples, 0, &s.err, &a);
        reached = dt_mem_count() >= k;
        dt_mem_fail_at(0);
        if (!reached) {
            dt_assert_ok(st, s.err);
            dt_assign_free(a);
            break;
        }
        ck_assert_int_eq(st, DT_ERR_NOMEM);
        failed++;
    }
    ck_assert_int_gt(failed, 1);
}
END_TEST

/* What lanes of the encoder send to replica d of the LLM, and get back: bytes by encoder replica. */
static void exchanged(int d, double *sent, double *back)
{
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        const struct dt_op *op = &s.p->ops[i];
        const struct dt_op *peer;

        if (op->kind != DT_OP_SEND)
            continue;
        peer = &s.p->ops[op->peer];
        if (op->module == 0 && peer->module == 1 && peer->replica == d)
            sent[op->replica] += (double)op->bytes;
        if (op->module == 1 && peer->module == 0 && op->replica == d)
            back[peer->replica] += (double)op->bytes;
    }
}

/* Between layouts of any two DP: which replica exchanges with which, of the GPUs they lie on, and every row once each way. */
START_TEST(boundary_of_any_two_layouts)
{
    static const struct {
        int tp_e, dp_e, tp_l, cp_l, dp_l;
        int gpu
            [4]
            [2]; /* of the first: GPUs of the encoder's TP lane 0 that serve each replica of the LLM */
    } cases[] = {/* fan-in, fan-out and one to one, as stated for eight ranks */
                 {2, 4, 4, 1, 2, {{0, 2}, {4, 6}}},
                 {4, 2, 2, 1, 4, {{0, 0}, {0, 0}, {4, 4}, {4, 4}}},
                 {2, 4, 2, 1, 4, {{0, 0}, {2, 2}, {4, 4}, {6, 6}}},
                 /* no divisor of the other; and context parallelism of the LLM */
                 {1, 6, 2, 1, 4, {{0, 2}, {0, 2}, {3, 5}, {3, 5}}},
                 {1, 8, 2, 2, 2, {{0, 3}, {4, 7}}}};

    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        int tp = cases[k].tp_e, dp = cases[k].dp_e;
        double rows = 0, images = 0;

        world(dp, -1, cases[k].dp_l, 1, 12, 6);
        s.plan.modules[0].layout.tp = tp;
        s.plan.modules[0].with = 2;
        s.plan.modules[1].layout.tp = cases[k].tp_l;
        s.plan.modules[1].layout.cp = cases[k].cp_l;
        sf_compile(&s);
        for (int d = 0; d < cases[k].dp_l; d++) {
            double sent[8] = {0}, back[8] = {0};

            exchanged(d, sent, back);
            for (int e = 0; e < dp; e++) {
                int gpu = dt_plan_lane_gpu(&s.plan, 0, e, 0);
                bool serves = gpu >= cases[k].gpu[d][0] && gpu <= cases[k].gpu[d][1];

                ck_assert_int_eq(sent[e] > 0, serves);
                ck_assert(back[e] == sent[e]); /* only its own rows come back */
                rows += sent[e];
            }
        }
        for (int64_t i = 0; i < s.samples.n; i++) {
            int64_t patches;

            images_of(i, &patches);
            images += (double)patches;
        }
        ck_assert_double_eq_tol(rows, images * 2 * s.f.model.modules[0].out_width, 1e-9 * rows);
        sf_free(&s);
    }
}
END_TEST

/* ---- generators ---- */

/* A generator of dp g behind an LLM of dp d, pp stages and n slots of mb samples per replica; g may be more than the
 * samples. */
static void drawn_world(int g, int window, int d, int pp, int n, int mb, int targets)
{
    sf_init(&s);
    sf_llm(&s, 8);
    sf_generator(&s, "generator", 4);
    sf_edge(&s, 0, 1);
    sf_plan(&s, (int64_t)n * d * mb, mb, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, pp, 1, d);
    sf_layout(&s, 1, 1, 1, 1, g);
    s.plan.modules[1].window = window;
    sf_samples(&s, (int64_t)n * d * mb, 0, targets, true, dt_test_seed());
}

/* Images to draw of a sample; each has 64 x 64 pixels in the generator (resize), so 8 x 8 latent ones. */
static int drawn_of(int64_t sample)
{
    int n = 0;

    for (uint64_t k = s.item_first[sample]; k < s.item_first[sample + 1]; k++)
        n += (s.items[k].flags & DT_ITEM_GENERATE) != 0;
    return n;
}

/* Every image once, by a replica that serves the LLM replica of its sample, in the slot that the LLM has it in; returns
 * how many there are, and adds to has[r] those of replica r. */
static int check_drawn(int *has)
{
    const struct dt_assignment_module *l = &s.a->m[0], *g = &s.a->m[1];
    static int seen[SF_ITEMS_MAX], serves[SF_SAMPLES_MAX], slot_of[SF_SAMPLES_MAX];
    int groups = dt_number_gcd(g->n_replicas, l->n_replicas), all = 0, should = 0;

    memset(seen, 0, sizeof(seen));
    for (int r = 0; r < l->n_replicas; r++)
        for (uint32_t b = l->mb_first[r]; b < l->mb_first[r + 1]; b++)
            for (uint32_t k = 0; k < l->mb[b].n; k++) {
                serves[l->samples[l->mb[b].first + k]] = r * groups / l->n_replicas;
                slot_of[l->samples[l->mb[b].first + k]] = (int)l->mb[b].slot;
            }
    for (int r = 0; r < g->n_replicas; r++) {
        ck_assert_uint_eq(g->mb_first[r + 1] - g->mb_first[r], (uint32_t)s.a->n_slots);
        for (uint32_t b = g->mb_first[r]; b < g->mb_first[r + 1]; b++) {
            ck_assert_int_eq(g->work[b].tokens, 64 * (int64_t)g->mb[b].n);
            has[r] += (int)g->mb[b].n;
            for (uint32_t k = g->mb[b].first; k < g->mb[b].first + g->mb[b].n; k++, all++) {
                int64_t i = g->samples[k];

                ck_assert_int_eq(serves[i], r * groups / g->n_replicas);
                ck_assert_int_eq(slot_of[i], (int)g->mb[b].slot);
                ck_assert_uint_lt(g->items[k], (uint32_t)drawn_of(i));
                ck_assert_int_eq(seen[s.item_first[i] + g->items[k]]++, 0);
            }
        }
    }
    for (int64_t i = 0; i < s.samples.n; i++)
        should += drawn_of(i);
    ck_assert_int_eq(all, should);
    return all;
}

/* Conditioning states go from the LLM to the replica that has the image, and their gradients come back. */
START_TEST(drawn_items_once_where_they_are_asked_for)
{
    static const int cases[][6] = {/* dp, window, LLM dp, pp, slots, microbatch */
                                   {4, 1, 2, 1, 5, 1}, {8, 1, 1, 2, 4, 3},  {6, 1, 4, 2, 3, 2},
                                   {1, 1, 3, 2, 5, 1}, {20, 0, 2, 1, 3, 1}, {9, 0, 1, 3, 2, 4}};
    const double states = 77 * 1024 * 2; /* of an image, in bytes */

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const int *c = cases[i];
        int has[32] = {0}, all;
        double to[32] = {0}, from[32] = {0}, sent = 0;

        drawn_world(c[0], c[1], c[2], c[3], c[4], c[5], 2);
        sf_compile(&s);
        all = check_drawn(has);
        for (uint32_t k = 0; k < s.p->n_ops; k++) {
            const struct dt_op *op = &s.p->ops[k];

            if (op->kind != DT_OP_SEND || op->module == s.p->ops[op->peer].module)
                continue;
            if (op->module == 0)
                to[s.p->ops[op->peer].replica] += (double)op->bytes;
            else
                from[op->replica] += (double)op->bytes;
        }
        for (int r = 0; r < c[0]; r++) {
            ck_assert(to[r] == has[r] * states && from[r] == has[r] * states);
            sent += to[r];
        }
        ck_assert(sent == all * states);
        check_noticed(1);
        sf_free(&s);
    }
}
END_TEST

/* One sample with many images to draw is not the work of one replica. */
START_TEST(drawn_items_of_a_sample_are_shared)
{
    int all, has[8] = {0};

    drawn_world(8, 1, 1, 1, 1, 1, 0);
    for (int k = 0; k < 21; k++)
        s.items[k] = (struct dt_sample_item){64, 64, DT_MODALITY_IMAGE, DT_ITEM_GENERATE};
    s.item_first[1] = 21;
    sf_compile(&s);
    all = check_drawn(has);
    ck_assert_int_eq(all, 21);
    for (int r = 0; r < 8; r++)
        ck_assert(has[r] == 2 || has[r] == 3);
    sf_free(&s);
}
END_TEST

START_TEST(generators_take_one_slot_at_a_time)
{
    static const int wrong[] = {2, 5, DT_PLAN_WINDOW_ALL};

    for (int i = 0; i < 3; i++) {
        drawn_world(4, wrong[i], 2, 1, 5, 1, 2);
        ck_assert_int_eq(dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err), DT_ERR_INPUT);
        dt_assert_has(s.err.message,
                      "a generator's replicas share the items of one slot at a time");
        sf_free(&s);
    }
    drawn_world(4, 1, 2, 1, 5, 1, 2);
    ck_assert_int_eq(dt_plan_window(&s.plan, 0, 1), 1);
    ck_assert_int_eq(dt_plan_microbatches(&s.plan, 0, 1), 5);
    s.plan.modules[1].window = 0;
    ck_assert_int_eq(dt_plan_window(&s.plan, 0, 1), 0);
    s.plan.modules[1].layout.dp = 11; /* of 10 samples */
    ck_assert_int_eq(dt_plan_window(&s.plan, 0, 1), 1);
    sf_free(&s);
}
END_TEST

/* What is exchanged at each microbatch needs the same slots in all modules: windows of one slot have them, however many
 * replicas there are, others have not. */
START_TEST(zero_2_and_3_need_windows_of_one_slot)
{
    for (int zero = 2; zero <= 3; zero++)
        for (int of = 0; of < 2; of++) {
            world(2, 2, 2, 1, 3, 2);
            s.plan.modules[of].zero = zero;
            ck_assert_int_eq(dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err),
                             DT_ERR_INPUT);
            dt_assert_has(s.err.message,
                          "a microbatch of encoder has the items of 2 slots (window)");
            dt_assert_has(s.err.message, "use zero 0 or 1, or window 1 of encoder");
            s.plan.modules[0].window = DT_PLAN_WINDOW_ALL;
            ck_assert_int_eq(dt_plan_validate(&s.plan, &s.f.model, &s.f.cluster, &s.err),
                             DT_ERR_INPUT);
            s.plan.modules[0].window = 1;
            s.plan.modules[0].layout.dp = 8; /* a slot has two samples */
            sf_compile(&s);
            sf_free(&s);
        }
}
END_TEST

int main(void)
{
    Suite *u = suite_create("items");
    TCase *c = dt_test_case(u, "items", 60);

    tcase_add_test(c, every_item_once_where_it_serves);
    tcase_add_test(c, one_sample_is_shared_evenly);
    tcase_add_test(c, windows_in_flight);
    tcase_add_test(c, boundary_of_any_two_layouts);
    tcase_add_test(c, plans_keep_the_window);
    tcase_add_test(c, drawn_items_once_where_they_are_asked_for);
    tcase_add_test(c, drawn_items_of_a_sample_are_shared);
    tcase_add_test(c, generators_take_one_slot_at_a_time);
    tcase_add_test(c, zero_2_and_3_need_windows_of_one_slot);
    tcase_add_test(c, any_allocation_may_fail);
    return dt_test_run(u);
}
