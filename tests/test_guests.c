/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What keeps a wider space from hiding plans with guests: in worlds whose memory is set so that guests fit in one way alone,
 * that way is found.  Which memory that is, an enumeration of all placements says.  And descents that look at a share of the
 * replicas stay with plans that memory holds whole. */
#include "small_world.h"

#include "core/schedule/assign.h"

enum { GPUS = 24, BATCH = 48, HOSTS = 24 /* of a list, at normal effort */ };

/* Samples that are all alike: what is to be expected of a microbatch is what it holds. */
static void equal_samples(struct world *w)
{
    for (int i = 0; i <= BATCH; i++)
        w->item_first[i] = 3 * (uint64_t)i;
    for (int i = 0; i < BATCH; i++)
        w->tokens[i] = 2048;
    for (int k = 0; k < 3 * BATCH; k++)
        w->items[k] = (struct dt_sample_item){512, 512, DT_MODALITY_IMAGE, 1};
    w->samples = (struct dt_samples){.name = "equal",
                                     .n = BATCH,
                                     .text_tokens = w->tokens,
                                     .seq_tokens = w->tokens,
                                     .item_first = w->item_first,
                                     .items = w->items};
}

/* An encoder that weighs as much as the LLM. */
static void build(struct world *w, int layers, int llm_layers, int64_t batch)
{
    static const struct dt_cost_options opt = {.allow_analytical = true};
    struct dt_error err;
    struct dt_model *m = &w->fx.model;
    int v;

    memset(w, 0, sizeof(*w));
    fx_init(&w->fx);
    fx_index(&w->fx);
    w->fx.cluster.nodes = GPUS / 8;
    w->fx.cluster.mem_reserve_bytes = 0;
    strcpy(m->name, "heavy");
    v = fx_vit(&w->fx, layers, 1024, 4096, 8, 1024);
    m->modules[v].patch = 16;
    fx_llm(&w->fx, llm_layers, 1024, 2816, 8, 8, 4000);
    m->edges[m->n_edges++] = (struct dt_model_edge){v, m->llm};
    equal_samples(w);
    dt_assert_ok(dt_cost_new(m, &w->fx.cluster, &w->fx.profile, &opt, &err, &w->cost), err);
    w->in = (struct dt_search_input){
        .model = m,
        .cluster = &w->fx.cluster,
        .samples = &w->samples,
        .cost = w->cost,
        .policy = {.global_batch = batch, .microbatch = 1, .seq_len = 2048},
        .opt = {.k = 8, .gpus = GPUS, .rank = true, .tp_mask = 0xf, .max_vpp = 1, .guests = ~0u}};
    for (int i = 0; i < m->n_modules; i++) {
        w->in.recompute[i] = DT_RECOMPUTE_SELECTIVE;
        w->in.zero[i] = 1;
    }
}

/* ---- all placements ---- */

struct ways { /* of the encoder beside the LLM */
    struct dt_orch_table *t;
    enum dt_block_recompute recompute; /* the LLM's */
    int zero;                          /* the LLM's */
    enum {
        ANY,
        FLAT,
        DEEP
    } stages; /* of the encoder: one or the LLM's, one, the LLM's and several */
};

static bool is_allowed(const struct dt_search_input *in, int tp)
{
    for (int t = 0; t < 4; t++)
        if (1 << t == tp)
            return in->opt.tp_mask >> t & 1;
    return false;
}

/* Bytes of the fullest GPU, with or without the guest. */
static double bytes_of(const struct ways *x, struct dt_plan *p)
{
    const struct dt_search_input *in = x->t->in;
    struct dt_work work[DT_MAX_MODULES];
    struct dt_error err;
    double bytes = 0;

    for (int m = 0; m < p->n_modules; m++) {
        int64_t slot = dt_plan_slot_samples(p, in->model->llm);
        int dp = p->modules[m].layout.dp;

        dt_orch_largest_work(&x->t->work[m], (double)((slot + dp - 1) / dp), 3, &work[m]);
    }
    if (dt_plan_place(p, in->cluster, &err) != DT_OK ||
        dt_plan_validate(p, in->model, in->cluster, &err) != DT_OK ||
        dt_memory_check(p, in->model, in->cluster, work, &bytes, &err) != DT_OK)
        return HUGE_VAL;
    return bytes;
}

static void split(const struct ways *x, struct dt_plan *p, int m)
{
    const struct dt_plan_layout *l = &p->modules[m].layout;
    int lane = dt_orch_space_lane(x->t, m, l);
    struct dt_orch_times *times = dt_orch_times_of(
        x->t, m, lane, dt_orch_space_recompute(x->t, m, p->modules[m].recompute), 0, false);

    ck_assert(lane >= 0 && times);
    memcpy(p->modules[m].split, dt_orch_stage_of(x->t, m, times, l->pp, 1)->split,
           ((size_t)l->pp + 1) * sizeof(p->modules[m].split[0]));
}

/* The least that the fullest GPU holds, with the encoder of so many stages in any layout beside this LLM. */
static double beside_llm(const struct ways *x, struct dt_plan *p, int guest, int llm, int pp)
{
    int host = dt_plan_layout_gpus(&p->modules[llm].layout);
    double least = HUGE_VAL;

    for (int tp = 1; tp <= 8; tp *= 2)
        for (int dp = 1; is_allowed(x->t->in, tp) && dp <= BATCH && tp * pp * dp <= host; dp++) {
            p->modules[guest].layout = (struct dt_plan_layout){tp, 1, 1, pp, 1, dp, 1, 0};
            p->modules[guest].with = (uint8_t)(llm + 1);
            split(x, p, guest);
            least = fmin(least, bytes_of(x, p));
        }
    return least;
}

/* With as many stages as it may have. */
static double beside(const struct ways *x, struct dt_plan *p, int guest, int llm)
{
    int pp = p->modules[llm].layout.pp;
    double least = HUGE_VAL;

    if (x->stages != DEEP)
        least = beside_llm(x, p, guest, llm, 1);
    if (x->stages != FLAT && pp > 1 && pp <= x->t->in->model->modules[guest].n_blocks)
        least = fmin(least, beside_llm(x, p, guest, llm, pp));
    return least;
}

/* Over all LLMs; *alone: how many of them memory of so many bytes holds by themselves. */
static double least_bytes(const struct ways *x, double limit, int *alone)
{
    static struct dt_plan p;
    const struct dt_search_input *in = x->t->in;
    int llm = in->model->llm;
    double least = HUGE_VAL;

    *alone = 0;
    dt_search_plan_init(in, &p);
    p.modules[llm].recompute = x->recompute;
    p.modules[llm].zero = x->zero;
    for (int tp = 1; tp <= 8; tp *= 2)
        for (int dp = 1; dp <= BATCH; dp++)
            for (int pp = 1; pp <= in->model->modules[llm].n_blocks && tp * dp * pp <= GPUS; pp++) {
                struct dt_memory mem;
                double most = 0;

                if (BATCH % dp != 0 || !is_allowed(in, tp))
                    continue;
                p.modules[llm].layout = (struct dt_plan_layout){tp, 1, 1, pp, 1, dp, 1, 0};
                split(x, &p, llm);
                least = fmin(least, beside(x, &p, 0, llm));
                p.modules[0].layout = (struct dt_plan_layout){1, 1, 1, 1, 1, 1, 1, 0};
                for (int s = 0; s < pp; s++) {
                    struct dt_work work;

                    dt_orch_largest_work(&x->t->work[llm], 1, 3, &work);
                    dt_memory_stage(&p, in->model, in->cluster, llm, s, &work, BATCH / dp, &mem);
                    most = fmax(most, mem.total);
                }
                *alone += most <= limit;
            }
    return least;
}

/* ---- the search ---- */

/* What it finds with guests alone, best first. */
static struct dt_search_result place(const struct world *w)
{
    struct dt_search_result r = {0};
    struct dt_orch_table *t;
    struct dt_error err;

    dt_assert_ok(dt_orch_table_new(&w->in, &err, &t), err);
    dt_assert_ok(dt_orch_place_guests(t, DT_STRATEGY_DISTTRAIN, &err, &r), err);
    dt_orch_table_free(t);
    return r;
}

/* Memory between what the one way needs at least and what the other does. */
static double set_between(struct world *w, const struct ways *one, const struct ways *other,
                          int *alone)
{
    int n;
    double lo = least_bytes(one, 0, &n), hi = least_bytes(other, 0, &n);

    printf("%.3f GB for the one way, %.3f GB for the other\n", lo * 1e-9, hi * 1e-9);
    ck_assert(isfinite(hi));
    ck_assert_double_lt(lo, hi * 0.995);
    w->fx.cluster.mem_bytes = 0.5 * (lo + hi);
    least_bytes(other, w->fx.cluster.mem_bytes, alone);
    return w->fx.cluster.mem_bytes;
}

/* Of any module.  Even ones differ by what does not divide: one block. */
static bool has_uneven_stages(const struct dt_plan *p)
{
    for (int i = 0; i < p->n_modules; i++) {
        const struct dt_plan_module *m = &p->modules[i];
        int least = m->split[1], most = least;

        for (int v = 1; v < m->layout.pp * m->layout.vpp; v++) {
            int blocks = m->split[v + 1] - m->split[v];

            least = blocks < least ? blocks : least;
            most = blocks > most ? blocks : most;
        }
        if (most - least > 1)
            return true;
    }
    return false;
}

/* Guests fit beside LLMs that recompute all, and of those that recompute less there are more than a list has room for, which
 * the formula prefers. */
START_TEST(lists_by_recomputation)
{
    static struct world w;
    struct ways full = {.recompute = DT_RECOMPUTE_FULL, .zero = 1};
    struct ways less = {.recompute = DT_RECOMPUTE_SELECTIVE, .zero = 1};
    struct ways none = {.recompute = DT_RECOMPUTE_NONE, .zero = 1};
    struct dt_search_result stated, open;
    struct dt_error err;
    int alone, more;

    build(&w, 12, 6, BATCH);
    w.in.opt.tp_mask = 0xe;
    w.in.opt.recompute[w.in.model->llm] = 7;
    dt_assert_ok(dt_orch_table_new(&w.in, &err, &full.t), err);
    less.t = none.t = full.t;
    set_between(&w, &full, &less, &alone);
    least_bytes(&none, w.fx.cluster.mem_bytes, &more);
    dt_orch_table_free(full.t);
    printf("%d LLMs fit alone with selective recomputation, %d without\n", alone, more);
    ck_assert_int_gt(alone + more, HOSTS);
    open = place(&w);
    w.in.opt.recompute[w.in.model->llm] = 1U << DT_RECOMPUTE_FULL;
    stated = place(&w);
    ck_assert_int_gt(stated.n, 0);
    ck_assert_int_gt(open.n, 0);
    ck_assert_double_le(open.plans[0].predicted.timeline_s,
                        1.001 * stated.plans[0].predicted.timeline_s);
    ck_assert_int_eq(open.plans[0].modules[w.in.model->llm].recompute, DT_RECOMPUTE_FULL);
    /* the enumeration that set the memory knows even stages only: slower plans may fit with others */
    for (int i = 1; i < open.n; i++)
        ck_assert(open.plans[i].modules[w.in.model->llm].recompute == DT_RECOMPUTE_FULL ||
                  has_uneven_stages(&open.plans[i]));
    dt_search_result_free(&stated);
    dt_search_result_free(&open);
    free_world(&w);
}
END_TEST

/* Guests fit where each of their stages lies beside one of the LLM's. */
START_TEST(guests_with_the_stages_of_the_llm)
{
    static struct world w;
    struct ways deep = {.recompute = DT_RECOMPUTE_SELECTIVE, .zero = 1, .stages = DEEP};
    struct ways flat = {.recompute = DT_RECOMPUTE_SELECTIVE, .zero = 1, .stages = FLAT};
    struct dt_search_result r;
    struct dt_error err;
    int alone;

    build(&w, 7, 6, BATCH);
    w.in.opt.tp_mask = 1; /* neither lanes nor replicas divide what the encoder weighs */
    w.in.zero[0] = 0;
    dt_assert_ok(dt_orch_table_new(&w.in, &err, &deep.t), err);
    flat.t = deep.t;
    set_between(&w, &deep, &flat, &alone);
    dt_orch_table_free(deep.t);
    r = place(&w);
    ck_assert_int_gt(r.n, 0);
    for (int i = 0; i < r.n; i++) {
        const struct dt_plan *p = &r.plans[i];

        ck_assert(dt_plan_shares(p));
        ck_assert_int_gt(p->modules[0].layout.pp, 1);
        ck_assert_int_eq(p->modules[0].layout.pp, p->modules[w.in.model->llm].layout.pp);
    }
    dt_search_result_free(&r);
    free_world(&w);
}
END_TEST

/* Guests fit beside an LLM that divides its gradients, which alone it need not. */
START_TEST(guests_beside_more_zero)
{
    static struct world w;
    struct ways two = {.recompute = DT_RECOMPUTE_SELECTIVE, .zero = 2};
    struct ways one = {.recompute = DT_RECOMPUTE_SELECTIVE, .zero = 1};
    struct dt_search_result r;
    struct dt_error err;
    int alone;

    build(&w, 3, 2, BATCH);
    w.in.opt.tp_mask = 1; /* else the LLM is cut small enough without replicas */
    w.in.opt.zero[w.in.model->llm] = 1U << 1 | 1U << 2;
    dt_assert_ok(dt_orch_table_new(&w.in, &err, &two.t), err);
    one.t = two.t;
    set_between(&w, &two, &one, &alone);
    dt_orch_table_free(two.t);
    ck_assert_int_gt(alone, 0);
    r = place(&w);
    ck_assert_int_gt(r.n, 0);
    for (int i = 0; i < r.n; i++)
        ck_assert_int_eq(r.plans[i].modules[w.in.model->llm].zero, 2);
    dt_search_result_free(&r);
    free_world(&w);
}
END_TEST

/* ---- plans that fit whole ---- */

/* So many that the closest look is at half of the replicas, too. */
enum { MANY = 16384, OUTLIER = 15000, OUTLIER_ITEMS = 40 };

struct
    many { /* samples of one image, but for one with many, which no share of half the replicas sees */
    uint32_t tokens[MANY];
    uint64_t item_first[MANY + 1];
    struct dt_sample_item items[MANY + OUTLIER_ITEMS];
};

static void set_samples(struct world *w, struct many *s)
{
    uint64_t k = 0;

    for (int i = 0; i < MANY; i++) {
        int n = i == OUTLIER ? OUTLIER_ITEMS : 1;

        s->item_first[i] = k;
        s->tokens[i] = 2048;
        for (int j = 0; j < n; j++)
            s->items[k++] = i == OUTLIER ? (struct dt_sample_item){960, 960, DT_MODALITY_IMAGE, 1}
                                         : (struct dt_sample_item){768, 768, DT_MODALITY_IMAGE, 1};
    }
    s->item_first[MANY] = k;
    w->samples = (struct dt_samples){.name = "one is large",
                                     .n = MANY,
                                     .text_tokens = s->tokens,
                                     .seq_tokens = s->tokens,
                                     .item_first = s->item_first,
                                     .items = s->items};
}

/* Does memory hold every microbatch, one stage and microbatch after the other? */
static bool fits_whole(const struct dt_search_input *in, const struct dt_plan *p)
{
    struct dt_assignment *a;
    struct dt_error err;
    bool fits = true;

    dt_assert_ok(dt_assign(p, in->model, in->cost, in->samples, 0, &err, &a), err);
    for (int m = 0; m < p->n_modules; m++) {
        ck_assert_int_eq(p->modules[m].with, 0); /* else stages add up */
        for (uint32_t k = 0; k < a->m[m].mb_first[a->m[m].n_replicas]; k++)
            for (int s = 0; s < p->modules[m].layout.pp; s++) {
                struct dt_memory mem;

                dt_memory_stage(p, in->model, in->cluster, m, s, &a->m[m].work[k],
                                dt_plan_slots(p, in->model->llm), &mem);
                fits = fits && mem.total <= dt_memory_limit(in->cluster);
            }
    }
    dt_assign_free(a);
    return fits;
}

/* The encoder recomputing all or nothing. */
static struct dt_plan seed_plan(struct dt_orch_table *t, enum dt_block_recompute recompute)
{
    const struct dt_search_input *in = t->in;
    struct ways x = {.t = t};
    struct dt_error err;
    struct dt_plan p;

    dt_search_plan_init(in, &p);
    for (int m = 0; m < p.n_modules; m++) {
        p.modules[m].layout = (struct dt_plan_layout){1, 1, 1, 1, 1, 4, 1, 0};
        split(&x, &p, m);
    }
    p.modules[0].recompute = recompute;
    dt_assert_ok(dt_plan_place(&p, in->cluster, &err), err);
    dt_assert_ok(dt_plan_validate(&p, in->model, in->cluster, &err), err);
    return p;
}

static double encoder_bytes(struct dt_orch_table *t, const struct dt_plan *p,
                            const struct dt_work *work)
{
    struct dt_memory mem;

    dt_memory_stage(p, t->in->model, t->in->cluster, 0, 0, work,
                    dt_plan_slots(p, t->in->model->llm), &mem);
    return mem.total;
}

/* Memory holds what is to be expected without recomputation, but not the largest sample. */
static void bind_memory(struct world *w, struct dt_orch_table *t)
{
    const struct dt_plan none = seed_plan(t, DT_RECOMPUTE_NONE),
                         full = seed_plan(t, DT_RECOMPUTE_FULL);
    struct dt_work expected, largest;
    double lo, hi;

    dt_orch_largest_work(&t->work[0], 1, 3, &expected);
    dt_orch_largest_work(&t->work[0], 1, HUGE_VAL, &largest);
    lo = fmax(encoder_bytes(t, &none, &expected), encoder_bytes(t, &full, &largest));
    hi = encoder_bytes(t, &none, &largest);
    printf("none %.3f GB expected and %.3f GB at most, full %.3f GB at most\n",
           1e-9 * encoder_bytes(t, &none, &expected), 1e-9 * hi,
           1e-9 * encoder_bytes(t, &full, &largest));
    ck_assert_double_lt(lo, hi);
    w->fx.cluster.mem_bytes = (lo + hi) / 2;
}

START_TEST(descents_fit_whole)
{
    static struct world w;
    static struct many samples;
    struct dt_search_result r = {.n = 1};
    struct dt_orch_table *t;
    struct dt_error err;
    struct dt_plan none;
    bool closer;

    build(&w, 7, 6, MANY);
    set_samples(&w, &samples);
    w.in.opt.guests = 0;
    w.in.opt.tp_mask = 1; /* wider lanes would hold it, too */
    w.in.opt.recompute[0] = 7;
    w.in.opt.neighbours = 2000000;
    dt_assert_ok(dt_orch_table_new(&w.in, &err, &t), err);
    bind_memory(&w, t);
    r.plans = dt_malloc(sizeof(*r.plans));
    ck_assert(r.plans);
    r.plans[0] = seed_plan(t, DT_RECOMPUTE_FULL);
    ck_assert(fits_whole(&w.in, &r.plans[0]));
    dt_assert_ok(dt_orch_time_plan(t, &r.plans[0], 0, HUGE_VAL, HUGE_VAL, &err, &closer), err);

    /* half of the replicas say so, too: those that take longest, which have the largest sample */
    none = seed_plan(t, DT_RECOMPUTE_NONE);
    ck_assert_int_eq(dt_orch_time_plan(t, &none, 128, HUGE_VAL, HUGE_VAL, &err, &closer),
                     DT_ERR_INFEASIBLE);
    ck_assert(closer);
    ck_assert(!fits_whole(&w.in, &none));
    ck_assert_int_eq(dt_orch_check_whole(&w.in, &none, 0, &err), DT_ERR_INFEASIBLE);

    dt_assert_ok(dt_orch_polish(t, NULL, DT_STRATEGY_DISTTRAIN, &err, &r), err);
    ck_assert_int_gt(r.n, 1); /* there are faster ones that fit */
    for (int i = 0; i < r.n; i++) {
        ck_assert(fits_whole(&w.in, &r.plans[i]));
        dt_assert_ok(dt_orch_check_whole(&w.in, &r.plans[i], 0, &err), err);
    }
    dt_search_result_free(&r);
    dt_orch_table_free(t);
    free_world(&w);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("guests");
    TCase *tc = dt_test_case(suite, "one way alone", 120);

    tcase_add_test(tc, lists_by_recomputation);
    tcase_add_test(tc, guests_with_the_stages_of_the_llm);
    tcase_add_test(tc, guests_beside_more_zero);
    tcase_add_test(tc, descents_fit_whole);
    return dt_test_run(suite);
}
