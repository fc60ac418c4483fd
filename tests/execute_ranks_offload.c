/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Masters and moments in the host's memory, stepped there (plan.MODULE.offload), over ranks: the same bits as on the
 * device.  What a rank has at the end is asked of the shares that checkpoints are written from. */
#include "execute_ranks.h"

enum { STEPS = 4, DECLINED = 2 /* counted from 1 */ };
/* Nowhere, everywhere, and of the modules that are not the second; there on a device whose memory is not the host's, and
 * whose stages keep no masters in bf16. */
enum {
    NOWHERE,
    EVERYWHERE,
    APART,
    APART_SOME,
    WAYS,
    /* parameters of encoders, too, or alone, between phases */
    PARAMS = WAYS,
    PARAMS_APART,
    ALL,
    ALL_APART,
    ENOUGH
};

/* With and without: pipelines, chunks, replicas, groups, tensor, context and expert parallelism, shared tables, frozen
 * modules, several replicas on a rank. */
static const char *const names[] = {
    "colocated",
    "vpp 2",
    "zb-h1, pp 3",
    "fan-in 4/2/1",
    "dp 6/4/3 on 5 ranks",
    "tp 1/2/4",
    "cp 2, frozen encoder",
    "cp 2, shared table, pp 2 dp 2",
    "cp 2, zero 0",
    "zb-h1, frozen encoder",
    "ep 2, dp 4",
};

static struct outcome {
    double text[STEPS], image[STEPS], norm[STEPS];
    uint64_t bits; /* of all that the rank writes */
    int64_t host_bytes;
} outcomes[ENOUGH][RANKS_MAX];

static void hash_floats(uint64_t *h, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t u;

        memcpy(&u, &x[i], sizeof(u));
        *h = (*h ^ u) * UINT64_C(0x100000001b3);
    }
}

static uint64_t hash_share(struct exec_fixture *f)
{
    struct dt_exec_whole all;
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    dt_assert_ok(dt_exec_gather(f->x, &f->err), f->err);
    dt_assert_ok(dt_exec_share_new(f->x, &f->err, &all), f->err);
    dt_assert_ok(dt_exec_collect(f->x, &all, &f->err), f->err);
    for (int k = 0; k < all.n; k++) {
        const struct dt_exec_part *p = &all.part[k];

        for (int i = 0; i < p->n_params; i++) {
            if (p->params[i].tied)
                continue;
            hash_floats(&h, p->master + p->params[i].at, p->params[i].n);
            if (!p->trained[i])
                continue;
            hash_floats(&h, p->exp_avg + p->params[i].at, p->params[i].n);
            hash_floats(&h, p->exp_avg_sq + p->params[i].at, p->params[i].n);
        }
    }
    dt_exec_whole_free(&all);
    return h;
}

static bool decline(void *ctx, const struct dt_exec_result *r)
{
    (void)ctx;
    (void)r;
    return false;
}

static void *train(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    struct outcome *o = &outcomes[r->w->way][r->t->rank];

    ck_assert_ptr_nonnull(f);
    *o = (struct outcome){0};
    open_rank(f, r);
    if (r->w->open) {
        f->dev->close(f->dev);
        dt_assert_ok(r->w->open(&(struct dt_device_options){.threads = 1}, &f->err, &f->dev),
                     f->err);
    }
    ef_open(f);
    for (int i = 0; i < STEPS; i++) {
        struct dt_exec_result x;

        f->accept = i + 1 == DECLINED ? decline : NULL;
        x = ef_step(f, i + 1);
        ck_assert_int_eq(x.applied, i + 1 != DECLINED);
        o->text[i] = x.loss_text;
        o->image[i] = x.loss_image;
        o->norm[i] = x.grad_norm;
    }
    o->host_bytes = dt_exec_host_memory(f->x);
    o->bits = hash_share(f);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

static void run_way(const struct ranks_case *layout, int way, struct rank *ranks)
{
    struct ranks_case c = *layout;
    struct world w = {.c = &c, .ranks = ranks_of(&c), .way = way};

    for (int m = 0; m < MODULES; m++)
        c.offload[m] = way == EVERYWHERE || way == APART || (way == APART_SOME && m != 1)
                           ? DT_OFFLOAD_OPTIMIZER
                           : DT_OFFLOAD_NONE;
    if (way == PARAMS || way == PARAMS_APART)
        c.offload[0] = DT_OFFLOAD_PARAMETERS;
    if (way == ALL || way == ALL_APART)
        c.offload[0] = DT_OFFLOAD_ALL;
    if (way == APART || way == APART_SOME || way == PARAMS_APART || way == ALL_APART) {
        w.own_devices = true;
        w.open = dt_fake_device_open;
    }
    run_ranks(&w, ranks, train);
}

static void same(const struct ranks_case *c, int way, int rank)
{
    const struct outcome *a = &outcomes[NOWHERE][rank], *b = &outcomes[way][rank];

    for (int t = 0; t < STEPS; t++)
        ck_assert_msg(
            a->text[t] == b->text[t] && a->image[t] == b->image[t] && a->norm[t] == b->norm[t],
            "%s, %s, way %d: step %d on rank %d: %.17g %.17g %.17g, not %.17g %.17g %.17g", c->name,
            c->bf16 ? "bf16" : "fp32", way, t + 1, rank, b->text[t], b->image[t], b->norm[t],
            a->text[t], a->image[t], a->norm[t]);
    ck_assert_msg(a->bits == b->bits, "%s, %s, way %d: what rank %d writes differs", c->name,
                  c->bf16 ? "bf16" : "fp32", way, rank);
}

static void find_layout(const char *name, struct ranks_case *c)
{
    int i = 0;

    for (read_layout(0, c); strcmp(c->name, name) != 0; read_layout(++i, c))
        ck_assert_msg(i + 1 < n_layouts(), "there is no layout \"%s\"", name);
}

static void check_layout(struct ranks_case *c)
{
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    int64_t host = 0;

    ck_assert_ptr_nonnull(ranks);
    for (int bf16 = 0; bf16 < (dt_test_has_bf16() ? 2 : 1); bf16++) {
        c->bf16 = bf16 == 1;
        for (int way = 0; way < WAYS; way++)
            run_way(c, way, ranks);
        for (int k = 0; k < ranks_of(c); k++) {
            for (int way = 1; way < WAYS; way++)
                same(c, way, k);
            ck_assert_int_eq(outcomes[NOWHERE][k].host_bytes, 0);
            host += outcomes[EVERYWHERE][k].host_bytes;
        }
        ck_assert_int_gt(host, 0);
    }
    free(ranks);
}

START_TEST(where_the_state_lies_changes_no_bit)
{
    struct ranks_case c;

    find_layout(names[_i], &c);
    check_layout(&c);
}
END_TEST

/* ---- parameters ---- */

/* Guests with a window over all slots, and in phases; pipelines, tensor parallelism, frozen encoders, ZeRO 0 and 1 in groups, eager
 * forwards, recomputation. */
static const struct {
    const char *name, *frozen;
    int window, zero; /* 0, -1: as the layout has it */
} params[] = {
    {"window all, dp 4 with LLM pp 2 dp 2", NULL, 0, -1},
    {"window all, dp 4 with LLM pp 2 dp 2", NULL, 0, 0},
    {"window all, dp 4 with LLM pp 2 dp 2", "ftt", 6, 1}, /* of six slots */
    {"window all, tp 2 with LLM tp 1 dp 4", NULL, 0, -1},
    {"window all, tp 2 with LLM tp 1 dp 4", "tff", 0, 0},
    {"window all, frozen encoder", NULL, 0, -1},
    {"phases, pp 2 over the LLM's", NULL, 0, -1},
    {"phases, zb-h1, tp 2", NULL, 0, 0},
    {"phases, frozen encoder", NULL, 0, -1},
};

START_TEST(where_parameters_are_between_phases_changes_no_bit)
{
    struct rank *ranks = calloc(RANKS_MAX, sizeof(*ranks));
    struct ranks_case c;

    ck_assert_ptr_nonnull(ranks);
    find_layout(params[_i].name, &c);
    c.window = params[_i].window ? params[_i].window : c.window;
    for (int m = 0; m < MODULES; m++) {
        c.zero[m] = params[_i].zero >= 0 ? params[_i].zero : c.zero[m];
        c.frozen[m] = params[_i].frozen ? params[_i].frozen[m] : c.frozen[m];
    }
    for (int bf16 = 0; bf16 < (dt_test_has_bf16() ? 2 : 1); bf16++) {
        c.bf16 = bf16 == 1;
        run_way(&c, NOWHERE, ranks);
        for (int way = PARAMS; way < ENOUGH; way++) {
            int64_t host = 0;

            run_way(&c, way, ranks);
            for (int k = 0; k < ranks_of(&c); k++) {
                same(&c, way, k);
                host += outcomes[way][k].host_bytes;
            }
            ck_assert_int_gt(host, 0);
        }
    }
    free(ranks);
}
END_TEST

/* Every layout, in check-full. */
START_TEST(in_no_layout)
{
    struct ranks_case c;

    read_layout(_i, &c);
    if (all_of_them())
        check_layout(&c);
}
END_TEST

/* ---- a step that fails on the host ---- */

static const struct dt_device *real;
static int calls_left; /* until one fails; host functions of one queue ask one after the other */

static enum dt_status failing_sync(struct dt_device_queue *q, struct dt_error *err)
{
    enum dt_status st = real->queue_sync(q, err);

    if (st == DT_OK && --calls_left == 0)
        return dt_error_set(err, DT_ERR_NOMEM, "out of memory: 8 bytes of workspace");
    return st;
}

/* Of chunk `_i` of the third step: it is that step that fails, and says why. */
START_TEST(a_step_that_fails_on_the_host_is_noticed_at_once)
{
    static const struct ef_layout one[3] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    static struct exec_fixture f;
    struct dt_device host, *cpu;
    int a_step;

    ef_init(&f, EF_ENCODER ", " EF_LLM ", " EF_UNET, 1);
    dt_assert_ok(dt_device_open_cpu(&(struct dt_device_options){.threads = 1}, &f.err, &cpu),
                 f.err);
    host = *cpu;
    real = cpu;
    host.queue_sync = failing_sync;
    f.host = &host;
    ef_seqs(&f, 4, 9);
    ef_plan(&f, 2, one, true, DT_SCHED_1F1B);
    for (int m = 0; m < 3; m++)
        f.plan.modules[m].offload = DT_OFFLOAD_OPTIMIZER;
    calls_left = 1 << 20;
    ef_open(&f);
    a_step = calls_left;
    ck_assert(ef_step(&f, 1).applied);
    a_step -= calls_left;
    ck_assert_int_ge(a_step, 3);
    ck_assert(ef_step(&f, 2).applied);
    calls_left = _i == 0 ? 1 : a_step; /* the first, the last */
    f.expected = DT_ERR_NOMEM;
    ef_step(&f, 3);
    ck_assert_msg(strstr(f.err.message, "out of memory: 8 bytes") != NULL &&
                      strstr(f.err.message, "host") != NULL,
                  "%s", f.err.message);
    ck_assert_int_le(calls_left, 0);
    ef_free(&f);
    cpu->close(cpu);
}
END_TEST

void add_offload_tests(TCase *t)
{
    tcase_add_loop_test(t, where_the_state_lies_changes_no_bit, 0,
                        sizeof(names) / sizeof(names[0]));
    tcase_add_loop_test(t, a_step_that_fails_on_the_host_is_noticed_at_once, 0, 2);
    tcase_add_loop_test(t, where_parameters_are_between_phases_changes_no_bit, 0,
                        sizeof(params) / sizeof(params[0]));
    tcase_add_loop_test(t, in_no_layout, 0, n_rows());
}
