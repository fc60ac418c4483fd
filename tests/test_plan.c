/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Plans: splits, placement, validity, freezing, plan.json. */
#include "cost_fixture.h"
#include "base/rng.h"
#include "test_util.h"

#include <stdio.h>

/* ---- splits ---- */

static double sum(const double *c, int a, int b)
{
    double s = 0;

    for (int i = a; i < b; i++)
        s += c[i];
    return s;
}

/* Least largest stage by dynamic programming. */
static double optimum(const double *c, int n, int v)
{
    double best[17][33];

    for (int b = 0; b <= n; b++)
        best[0][b] = b ? HUGE_VAL : 0;
    for (int s = 1; s <= v; s++)
        for (int b = 0; b <= n; b++) {
            best[s][b] = HUGE_VAL;
            for (int a = s - 1; a < b; a++)
                best[s][b] = fmin(best[s][b], fmax(best[s - 1][a], sum(c, a, b)));
        }
    return best[v][n];
}

static double slowest(const double *c, const uint16_t *split, int v)
{
    double max = 0;

    for (int s = 0; s < v; s++) {
        ck_assert_int_lt(split[s], split[s + 1]);
        max = fmax(max, sum(c, split[s], split[s + 1]));
    }
    return max;
}

START_TEST(split_is_exact)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;

    dt_rng_init(&r, seed, 1);
    for (int t = 0; t < 2000; t++) {
        int n = 1 + (int)dt_rng_below(&r, 32), v = 1 + (int)dt_rng_below(&r, 16);
        bool ties = dt_rng_below(&r, 2);
        uint16_t split[17];
        double c[32];

        v = v < n ? v : n;
        for (int i = 0; i < n; i++)
            c[i] = ties ? (double)dt_rng_below(&r, 3) : dt_rng_uniform(&r) * 2.385;
        dt_plan_split_blocks(c, n, v, split);
        ck_assert_int_eq(split[0], 0);
        ck_assert_int_eq(split[v], n);
        ck_assert_msg(fabs(slowest(c, split, v) - optimum(c, n, v)) < 1e-12 * n,
                      "seed %" PRIu64 " case %d: n %d v %d", seed, t, n, v);
    }
}
END_TEST

START_TEST(split_puts_more_late)
{
    static const int want[13] = {0, 3, 10, 17, 24, 31, 38, 45, 52, 59, 66, 73, 80};
    double c[80];
    uint16_t split[13];

    for (int i = 0; i < 80; i++)
        c[i] = 1.3;
    dt_plan_split_blocks(c, 80, 12, split); /* 80 layers over 12 stages: 7 in the largest */
    for (int s = 0; s <= 12; s++)
        ck_assert_int_eq(split[s], want[s]);
}
END_TEST

/* ---- a plan to work with ---- */

static struct fixture fx;
static struct dt_plan plan;

static void setup(void)
{
    static const struct dt_plan_policy policy = {.global_batch = 240,
                                                 .microbatch = 2,
                                                 .seq_len = 2048,
                                                 .intra_reorder = true,
                                                 .overlap_grad = true};
    struct dt_module *g;

    fx_init(&fx);
    strcpy(fx.model.name, "three");
    fx_vit(&fx, 6, 256, 1024, 4, 512);
    fx_llm(&fx, 8, 512, 1408, 8, 4, 1000);
    g = fx_module(&fx, "gen", DT_ROLE_GENERATOR, 5);
    g->modality = DT_MODALITY_IMAGE;
    g->blocks[0].kind = DT_BLOCK_PROJECTOR;
    g->blocks[0].in_dim = 512;
    g->blocks[0].out_dim = 128;
    for (int b = 1; b < 5; b++)
        g->blocks[b] = fx_layer(128, 512, 4, 4, false);
    fx.model.n_edges = 2;
    fx.model.edges[0] = (struct dt_model_edge){0, 1};
    fx.model.edges[1] = (struct dt_model_edge){1, 2};
    dt_plan_init(&plan, &fx.model, &policy);
    fx_modes(&plan, DT_RECOMPUTE_SELECTIVE, 1);
    plan.modules[0].layout = (struct dt_plan_layout){2, 1, 1, 2, 1, 3, 1, 0};
    plan.modules[1].layout = (struct dt_plan_layout){4, 1, 1, 3, 1, 4, 1, 0};
    plan.modules[2].layout = (struct dt_plan_layout){1, 1, 1, 1, 1, 2, 1, 0};
    memcpy(plan.modules[0].split, (uint16_t[]){0, 3, 7}, 6);
    memcpy(plan.modules[1].split, (uint16_t[]){0, 4, 7, 10}, 8);
    plan.predicted =
        (struct dt_plan_prediction){1.0 / 3, 2.385, 2.71828182845904, 3.1, 1e-3, 0, 61234567890.0};
}

static void teardown(void)
{
    fx_free(&fx);
}

START_TEST(placement)
{
    struct dt_error err;

    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_str_eq(plan.cluster, "made-up");
    /* widest lanes first: llm 4*3*4 = 48, vit 2*2*3 = 12, gen 2 */
    ck_assert_int_eq(plan.modules[1].layout.first_gpu, 0);
    ck_assert_int_eq(plan.modules[0].layout.first_gpu, 48);
    ck_assert_int_eq(plan.modules[2].layout.first_gpu, 60);
    ck_assert_int_eq(dt_plan_gpus(&plan), 62);
    ck_assert_int_eq(dt_plan_lane_gpu(&plan, 1, 0, 0), 0);
    ck_assert_int_eq(dt_plan_lane_gpu(&plan, 1, 3, 2), (2 * 4 + 3) * 4);
    ck_assert_int_eq(dt_plan_lane_gpu(&plan, 0, 1, 1), 48 + (1 * 3 + 1) * 2);
    ck_assert_int_eq(dt_plan_slot_samples(&plan, 1), 8);
    ck_assert_int_eq(dt_plan_slots(&plan, 1), 30);
    dt_assert_ok(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), err);
}
END_TEST

START_TEST(placement_never_straddles)
{
    struct dt_error err;

    fx.cluster.gpus_per_node = 6;
    fx.cluster.nodes = 20;
    /* three images at a time */
    plan.modules[0].layout = (struct dt_plan_layout){1, 1, 1, 1, 1, 1, 3, 0};
    plan.modules[0].split[1] = 7;
    plan.modules[1].layout = (struct dt_plan_layout){2, 1, 1, 3, 1, 4, 1, 0};
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(plan.modules[0].layout.first_gpu, 0);
    ck_assert_int_eq(plan.modules[1].layout.first_gpu, 4); /* 3 is rounded up to a multiple of 2 */
    dt_assert_ok(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), err);
    plan.modules[1].layout.tp = 4;
    ck_assert_int_eq(dt_plan_place(&plan, &fx.cluster, &err), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "do not tile nodes of 6");
}
END_TEST

/* llm 48 GPUs in lanes of 4, vit 12 in lanes of 2, gen 2; 8 GPUs a node. */
START_TEST(stated_places_are_kept)
{
    struct dt_error err;

    plan.modules[0].layout.first_gpu = 4;
    plan.modules[0].pinned = true;
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(plan.modules[0].layout.first_gpu, 4);
    ck_assert_int_eq(plan.modules[1].layout.first_gpu, 16); /* no 48 in a row before it */
    ck_assert_int_eq(plan.modules[2].layout.first_gpu, 0);  /* but 2 */
    dt_assert_ok(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), err);
    plan.modules[1].layout.first_gpu = 12;
    plan.modules[1].pinned = true;
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(plan.modules[1].layout.first_gpu, 12);
    ck_assert_int_eq(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message,
                  "modules vit (GPUs 4 to 15) and llm (GPUs 12 to 59) share GPUs; move one");
    plan.modules[1].layout.first_gpu = 14;
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "module llm: first_gpu 14 is not a multiple of 4");
    dt_plan_unpin(&plan);
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(plan.modules[1].layout.first_gpu, 0);
    ck_assert_int_eq(plan.modules[0].layout.first_gpu, 48);
}
END_TEST

START_TEST(stated_places_leave_no_room)
{
    struct dt_error err;

    fx.cluster.nodes = 8; /* 64 GPUs for 62, and 48 of them in a row nowhere */
    plan.modules[0].layout.first_gpu = 24;
    plan.modules[0].pinned = true;
    ck_assert_int_eq(dt_plan_place(&plan, &fx.cluster, &err), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "module llm: the first_gpu of the others leave no 48 GPUs in a row");
    plan.colocated = true;
    ck_assert_int_eq(dt_plan_place(&plan, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "vit: first_gpu 24 cannot be combined with colocated modules");
}
END_TEST

/* vit (12 GPUs in lanes of 2) and gen (2) on the llm's 48. */
START_TEST(guests_lie_on_their_hosts)
{
    struct dt_error err;

    plan.modules[0].with = 2;
    plan.modules[2].with = 1; /* and so with the llm */
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(dt_plan_host(&plan, 2), 1);
    ck_assert_int_eq(dt_plan_gpus(&plan), 48);
    for (int m = 0; m < 3; m++)
        ck_assert_int_eq(plan.modules[m].layout.first_gpu, 0);
    dt_assert_ok(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), err);
    plan.modules[1].layout.first_gpu =
        8; /* guests go where the host goes, or where they are told to */
    plan.modules[1].pinned = plan.modules[2].pinned = true;
    plan.modules[2].layout.first_gpu = 18;
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(plan.modules[0].layout.first_gpu, 8);
    ck_assert_int_eq(plan.modules[2].layout.first_gpu, 18);
    dt_assert_ok(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), err);
    plan.modules[2].layout.first_gpu = 20; /* of the llm, but not of vit, which has 8 to 19 */
    ck_assert_int_eq(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "GPUs 20 to 21 are not all among those of vit, which has 8 to 19");
    plan.modules[2].with = 0;
    plan.modules[2].layout.first_gpu = 18;
    ck_assert_int_eq(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "gen (GPUs 18 to 19) share GPUs; move one by first_gpu, or let them "
                               "take turns by with: vit");
}
END_TEST

/* A guest with wider lanes than its host: the host begins where they tile nodes. */
START_TEST(hosts_begin_where_guests_can)
{
    struct dt_error err;

    plan.modules[0].layout = (struct dt_plan_layout){8, 1, 1, 1, 1, 1, 1, 0};
    plan.modules[0].with = 2;
    plan.modules[2].layout = (struct dt_plan_layout){4, 1, 1, 1, 1, 1, 1, 0};
    plan.modules[2].pinned = true;
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(plan.modules[1].layout.first_gpu, 8); /* lanes of 4 alone would begin at 4 */
    ck_assert_int_eq(plan.modules[0].layout.first_gpu, 8);
}
END_TEST

START_TEST(impossible_guests_are_refused)
{
    struct dt_error err;

    plan.modules[0].with = 2;
    plan.modules[1].with = 1;
    ck_assert_int_eq(dt_plan_place(&plan, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "module vit lies with llm, and so on in a circle");
    plan.modules[0].with = 0;
    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    ck_assert_int_eq(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "llm: its 48 GPUs are to be some of those of vit, which has 12");
    plan.modules[1].with = 0;
    plan.modules[0].with = 2;
    plan.colocated = true;
    ck_assert_int_eq(dt_plan_place(&plan, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "with and colocated: true cannot be combined");
}
END_TEST

START_TEST(placement_needs_room)
{
    struct dt_error err;

    fx.cluster.nodes = 7;
    ck_assert_int_eq(dt_plan_place(&plan, &fx.cluster, &err), DT_ERR_INFEASIBLE);
    dt_assert_has(err.message, "needs 62 GPUs, cluster made-up has 56");
}
END_TEST

/* One wrong thing at a time, and the words that must name it. */
static void break_plan(int what)
{
    struct dt_plan_module *llm = &plan.modules[1];

    switch (what) {
    case 0:
        plan.n_modules = 2;
        break;
    case 1:
        strcpy(plan.module_names[2], "generator");
        break;
    case 2:
        llm->layout.tp = 8;
        break; /* 4 key/value heads */
    case 3:
        llm->layout.dp = 0;
        break;
    case 4:
        llm->layout.pp = 11;
        break;
    case 5:
        llm->layout.vpp = 2;
        break;
    case 6:
        llm->split[3] = 9;
        break;
    case 7:
        llm->split[1] = llm->split[2];
        break;
    case 8:
        llm->layout.first_gpu = 20;
        break;
    case 9:
        llm->layout.first_gpu = 14;
        break;
    case 10:
        plan.modules[0].layout.first_gpu = 44;
        break;
    case 11:
        plan.policy.global_batch = 241;
        break;
    case 12:
        llm->layout.ip = 2;
        break;
    case 13:
        llm->layout.ep = 3;
        break;
    case 14:
        plan.policy.microbatch = 0;
        break;
    case 15:
        llm->zero = 4;
        break;
    case 16:
        llm->layout.dp = 1 << 24;
        break;
    case 17:
        llm->layout.pp = 200;
        llm->layout.vpp = 2;
        break;
    }
}

static const char *const broken[] = {"2 modules, model three has 3",
                                     "module 2 is generator",
                                     "does not divide the 8 heads (4 key/value",
                                     "at least 1",
                                     "11 stages but only 10 blocks",
                                     "needs schedule interleaved",
                                     "from 0 to 10, not 0 to 9",
                                     "virtual stage 1 holds no block",
                                     "outside cluster",
                                     "straddle nodes",
                                     "vit (GPUs 44 to 55) and llm (GPUs 0 to 47) share GPUs",
                                     "not a multiple of dp 4 x microbatch 2",
                                     "for encoders and generators",
                                     "module llm: ep 3, but it has no experts",
                                     "at least 1",
                                     "module llm: unknown recompute or zero",
                                     "larger than any cluster",
                                     "at most 256"};

START_TEST(validity)
{
    struct dt_error err;

    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    break_plan(_i);
    ck_assert_int_eq(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, broken[_i]);
}
END_TEST

/* dp 4, cp 1 */
START_TEST(experts_are_dealt_evenly)
{
    static const struct {
        int experts, ep;
        const char *message; /* NULL: it is valid */
    } cases[] = {{6, 1, NULL},
                 {6, 2, NULL},
                 {8, 4, NULL},
                 {6, 4, "ep 4 does not divide the 6 experts"},
                 {6, 3, "ep 3 does not divide dp*cp = 4"},
                 {8, 8, "ep 8 does not divide dp*cp = 4"}};
    struct dt_error err;

    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fx.model.modules[1].blocks[3].n_experts = cases[i].experts;
        plan.modules[1].layout.ep = cases[i].ep;
        ck_assert_int_eq(dt_plan_allows_ep(&fx.model.modules[1], cases[i].ep, 4),
                         cases[i].message == NULL);
        if (!cases[i].message) {
            dt_assert_ok(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), err);
            continue;
        }
        ck_assert_int_eq(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), DT_ERR_INPUT);
        dt_assert_has(err.message, cases[i].message);
    }
    plan.modules[1].layout.ep = 1;
    plan.policy.schedule = DT_SCHED_GPIPE;
    dt_assert_ok(dt_plan_validate(&plan, &fx.model, &fx.cluster, &err), err);
}
END_TEST

/* ---- freezing ---- */

START_TEST(freezing)
{
    unsigned char t[10];

    plan.modules[0].frozen = true;
    ck_assert(!dt_plan_trained(&plan, &fx.model, 0, 2));
    ck_assert(dt_plan_trained(&plan, &fx.model, 0, 6)); /* the projector */
    ck_assert(!dt_plan_upstream_trained(&plan, &fx.model, 0, 6));
    ck_assert(dt_plan_upstream_trained(&plan, &fx.model, 1, 0)); /* through the projector */
    dt_plan_trainable(&plan, &fx.model, 0, t);
    for (int b = 0; b < 7; b++)
        ck_assert_int_eq(t[b], b == 6);
    fx.model.modules[0].blocks[6].kind = DT_BLOCK_NORM;
    ck_assert(!dt_plan_upstream_trained(&plan, &fx.model, 1, 0));
    ck_assert(dt_plan_upstream_trained(&plan, &fx.model, 1, 1));
    plan.modules[1].frozen = true;
    ck_assert(!dt_plan_upstream_trained(&plan, &fx.model, 2, 0));
    plan.modules[0].frozen = false; /* two modules up */
    ck_assert(dt_plan_upstream_trained(&plan, &fx.model, 2, 0));
    ck_assert(!dt_plan_upstream_trained(&plan, &fx.model, 0, 0));
}
END_TEST

/* ---- plan.json ---- */

START_TEST(json_round_trip)
{
    struct dt_plan back;
    struct dt_error err;
    char *text, *again;

    dt_assert_ok(dt_plan_place(&plan, &fx.cluster, &err), err);
    plan.strategy = DT_STRATEGY_DISTMM;
    plan.modules[2].frozen = true;
    plan.modules[0].recompute = DT_RECOMPUTE_FULL;
    plan.modules[1].recompute = DT_RECOMPUTE_NONE;
    plan.modules[0].zero = 0;
    plan.modules[1].zero = 1;
    plan.modules[1].zero_group = plan.modules[1].layout.dp;
    plan.policy.schedule = DT_SCHED_INTERLEAVED;
    plan.policy.fp32 = plan.policy.exact_vectors = true;
    dt_assert_ok(dt_plan_to_json(&plan, &err, &text), err);
    ck_assert_ptr_nonnull(strstr(text, "\"fp32\": true"));
    ck_assert_ptr_nonnull(strstr(text, "\"exact_vectors\": true"));
    dt_assert_ok(dt_plan_parse("plan.json", text, strlen(text), &err, &back), err);
    dt_assert_ok(dt_plan_to_json(&back, &err, &again), err);
    ck_assert_str_eq(text, again);
    dt_assert_ok(dt_plan_validate(&back, &fx.model, &fx.cluster, &err), err);
    ck_assert(back.modules[0].pinned); /* a file states every place */
    dt_plan_unpin(&back);
    ck_assert_mem_eq(&back.modules, &plan.modules, sizeof(plan.modules));
    ck_assert_mem_eq(&back.policy, &plan.policy, sizeof(plan.policy));
    ck_assert(fabs(back.predicted.total_s - plan.predicted.total_s) < 1e-8);
    dt_free(text);
    dt_free(again);
}
END_TEST

/* What people have: one recomputation and one ZeRO of all modules, in the policy. */
START_TEST(json_of_version_1)
{
    static const char old[] =
        "{\"format\": \"disttrain-plan\", \"version\": 1, \"model\": \"m\", \"cluster\": \"c\",\n"
        " \"strategy\": \"manual\",\n"
        " \"policy\": {\"global_batch\": 24, \"microbatch\": 1, \"seq_len\": 2048, \"schedule\": "
        "\"1f1b\",\n"
        "  \"recompute\": \"full\", \"zero\": 1, \"intra_reorder\": true, \"inter_reorder\": "
        "false,\n"
        "  \"stepccl\": true, \"overlap_grad\": true, \"overlap_param\": true},\n"
        " \"modules\": [\n"
        "  {\"name\": \"vit\", \"tp\": 1, \"cp\": 1, \"ep\": 1, \"ip\": 2, \"pp\": 1, \"vpp\": 1, "
        "\"dp\": 3,\n"
        "   \"first_gpu\": 48, \"frozen\": true, \"split\": [0, 12]},\n"
        "  {\"name\": \"llm\", \"tp\": 4, \"cp\": 1, \"ep\": 1, \"ip\": 1, \"pp\": 3, \"vpp\": 1, "
        "\"dp\": 4,\n"
        "   \"first_gpu\": 0, \"frozen\": false%s, \"split\": [0, 4, 8, 12]}]}\n";
    char text[2048], *again, *third;
    struct dt_plan p, back;
    struct dt_error err;

    snprintf(text, sizeof(text), old, "");
    dt_assert_ok(dt_plan_parse("old.json", text, strlen(text), &err, &p), err);
    for (int m = 0; m < 2; m++) {
        ck_assert_int_eq(p.modules[m].recompute, DT_RECOMPUTE_FULL);
        ck_assert_int_eq(p.modules[m].zero, 1);
    }
    dt_assert_ok(dt_plan_to_json(&p, &err, &again), err);
    dt_assert_has(again, "\"version\": 2");
    dt_assert_ok(dt_plan_parse("new.json", again, strlen(again), &err, &back), err);
    ck_assert_mem_eq(&back, &p, sizeof(p));
    dt_assert_ok(dt_plan_to_json(&back, &err, &third), err);
    ck_assert_str_eq(again, third);
    dt_free(again);
    dt_free(third);
    snprintf(text, sizeof(text), old, ", \"zero\": 0"); /* it knew no such thing */
    ck_assert_int_eq(dt_plan_parse("old.json", text, strlen(text), &err, &p), DT_ERR_INPUT);
    dt_assert_has(err.message, "unknown key \"zero\"");
}
END_TEST

/* Replace the first `from` in the plan's text, and expect a refusal with these words. */
static const struct {
    const char *from, *to, *words;
} edits[] = {
    {"disttrain-plan", "disttrain-job", "expected 'disttrain-plan'"},
    {"\"version\": 2", "\"version\": 3", "reads versions 1 to 2"},
    {"\"version\": 2", "\"version\": 0", "reads versions 1 to 2"},
    {"\"version\": 2", "\"version\": 1", "policy: key \"recompute\" is missing"},
    {"\"intra_reorder\"", "\"recompute\": \"full\", \"intra_reorder\"",
     "unknown key \"recompute\""},
    {"\"recompute\": \"selective\",", "", "recompute"},
    {"\"seq_len\"", "\"seq_length\"", "seq_len"},
    {"\"pp\": 2", "\"pp\": 0", "pp"},
    {"\"pp\": 2", "\"pp\": 257", "pp"},
    {"\"pp\": 2", "\"pp\": 3", "boundaries of 3 virtual stages"},
    {"\"vpp\": 1", "\"vpp\": 200", "at most 256"},
    {"\"dp\": 3", "\"dp\": \"three\"", "dp"},
    {"\"dp\": 3", "\"dp\": 1000000, \"ip\": 900000", "ip"},
    {"\"1f1b\"", "\"1f2b\"", "1f1b"},
    {"\"name\": \"llm\"", "\"name\": \"vit\"", "listed twice"},
    {"      3,", "      0,", "integer from 1"},
    {"      3,", "      x,", "integer"},
    {"\"frozen\": false", "\"frozen\": 7", "frozen"},
    {"\"strategy\"", "\"strategies\"", "strategy"},
    {"\"zero\": 1", "\"zero\": 4", "zero"},
    {"\"mem_bytes_max\"", "\"mem\"", "mem"},
    {"\"tp\": 2", "\"tp\": 1000000, \"cp\": 1000000", "cp"},
};

START_TEST(json_refusals)
{
    char *text, *at, edited[8192];
    struct dt_plan back;
    struct dt_error err;

    dt_assert_ok(dt_plan_to_json(&plan, &err, &text), err);
    at = strstr(text, edits[_i].from);
    ck_assert_ptr_nonnull(at);
    snprintf(edited, sizeof(edited), "%.*s%s%s", (int)(at - text), text, edits[_i].to,
             at + strlen(edits[_i].from));
    ck_assert_int_eq(dt_plan_parse("plan.json", edited, strlen(edited), &err, &back), DT_ERR_INPUT);
    dt_assert_has(err.message, edits[_i].words);
    ck_assert_str_eq(err.file, "plan.json");
    ck_assert_int_ge(err.line, 1);
    dt_free(text);
}
END_TEST

START_TEST(json_truncated)
{
    struct dt_plan back;
    struct dt_error err;
    char *text;

    dt_assert_ok(dt_plan_to_json(&plan, &err, &text), err);
    for (size_t n = 0; n + 3 < strlen(text); n += 7)
        ck_assert_int_eq(dt_plan_parse("cut", text, n, &err, &back), DT_ERR_INPUT);
    ck_assert_int_eq(dt_plan_read("/nonexistent/plan.json", &err, &back), DT_ERR_INPUT);
    dt_free(text);
}
END_TEST

START_TEST(json_without_memory)
{
    struct dt_plan back;
    struct dt_error err;
    enum dt_status st = DT_ERR_NOMEM;
    char *text = NULL, *copy = NULL;

    for (uint64_t k = 1; st != DT_OK; k++) {
        dt_mem_fail_at(k);
        st = dt_plan_to_json(&plan, &err, &text);
        dt_mem_fail_at(0);
        ck_assert(st == DT_OK || st == DT_ERR_NOMEM);
    }
    st = DT_ERR_NOMEM;
    for (uint64_t k = 1; st != DT_OK; k++) {
        ck_assert_uint_lt(k, 10000);
        dt_mem_fail_at(k);
        st = dt_plan_parse("plan.json", text, strlen(text), &err, &back);
        dt_mem_fail_at(0);
        ck_assert(st == DT_OK || st == DT_ERR_NOMEM);
    }
    dt_assert_ok(dt_plan_to_json(&back, &err, &copy), err);
    ck_assert_str_eq(text, copy);
    dt_free(text);
    dt_free(copy);
}
END_TEST

/* ---- the plan: map of a job ---- */

static enum dt_status from_text(const char *text, struct dt_error *err, struct dt_plan *out)
{
    struct dt_plan base;
    struct dt_doc *doc;
    enum dt_status st;

    dt_assert_ok(dt_doc_parse("job.yaml", text, strlen(text), err, &doc), *err);
    dt_plan_init(&base, &fx.model, &plan.policy);
    fx_modes(&base, DT_RECOMPUTE_FULL, 1);
    st = dt_plan_from_node(dt_doc_root(doc), &fx.model, &base, err, out);
    dt_doc_free(doc);
    return st;
}

START_TEST(map)
{
    struct dt_error err;
    struct dt_plan p;

    dt_assert_ok(from_text("llm: {tp: 4, pp: 3, dp: 4, split: [0, 4, 7, 10]}\n"
                           "vit: {tp: 2, pp: 2, dp: 3, frozen: true, recompute: none, zero: 0}\n"
                           "gen: {dp: 2}\n",
                           &err, &p),
                 err);
    dt_assert_ok(dt_plan_place(&p, &fx.cluster, &err), err);
    dt_assert_ok(dt_plan_validate(&p, &fx.model, &fx.cluster, &err), err);
    ck_assert_int_eq(p.modules[1].layout.pp, 3);
    ck_assert_int_eq(p.modules[0].split[1], 3); /* six equal layers and a projector */
    ck_assert(p.modules[0].frozen);
    ck_assert_int_eq(p.modules[0].recompute, DT_RECOMPUTE_NONE);
    ck_assert_int_eq(p.modules[0].zero, 0);
    ck_assert_int_eq(p.modules[1].recompute, DT_RECOMPUTE_FULL); /* the job's */
    ck_assert_int_eq(p.modules[1].zero, 1);
    ck_assert_int_eq(from_text("llm: {tp: 4}\nvit: {}\n", &err, &p), DT_ERR_INPUT);
    dt_assert_has(err.message, "gen");
    ck_assert_int_eq(from_text("llm: {pp: 11}\nvit: {}\ngen: {}\n", &err, &p), DT_ERR_INPUT);
    dt_assert_has(err.message, "10 blocks");
    ck_assert_int_eq(from_text("llm: {split: [0, 9]}\nvit: {}\ngen: {}\n", &err, &p), DT_ERR_INPUT);
    dt_assert_has(err.message, "ends at block 9");
    ck_assert_int_eq(from_text("llm: {name: llm}\nvit: {}\ngen: {}\n", &err, &p), DT_ERR_INPUT);
    ck_assert_int_eq(err.line, 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("plan");
    TCase *split = dt_test_case(s, "split", 0), *c = dt_test_case(s, "plan", 0);

    tcase_add_test(split, split_is_exact);
    tcase_add_test(split, split_puts_more_late);
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, placement);
    tcase_add_test(c, placement_never_straddles);
    tcase_add_test(c, stated_places_are_kept);
    tcase_add_test(c, stated_places_leave_no_room);
    tcase_add_test(c, guests_lie_on_their_hosts);
    tcase_add_test(c, hosts_begin_where_guests_can);
    tcase_add_test(c, impossible_guests_are_refused);
    tcase_add_test(c, placement_needs_room);
    tcase_add_loop_test(c, validity, 0, (int)(sizeof(broken) / sizeof(broken[0])));
    tcase_add_test(c, experts_are_dealt_evenly);
    tcase_add_test(c, freezing);
    tcase_add_test(c, json_round_trip);
    tcase_add_test(c, json_of_version_1);
    tcase_add_loop_test(c, json_refusals, 0, (int)(sizeof(edits) / sizeof(edits[0])));
    tcase_add_test(c, json_truncated);
    tcase_add_test(c, json_without_memory);
    tcase_add_test(c, map);
    return dt_test_run(s);
}
