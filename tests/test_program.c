/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Programs as data: the check finds every kind of damage, equal inputs give equal programs, random
 * graphs compile. */
#include "random_plan.h"

#include <stdio.h>

static struct sched_fixture s;

/* Two-stage modules with several replicas, all collectives. */
static void compile_chain(enum dt_pipe_schedule schedule, int vpp)
{
    sf_init(&s);
    sf_chain(&s, 6);
    sf_plan(&s, 24, 1, schedule);
    sf_layout(&s, 0, 1, 2, 1, 2);
    sf_layout(&s, 1, 1, 2, vpp, 2);
    sf_layout(&s, 2, 1, 1, 1, 2);
    sf_samples(&s, 24, 2, 1, false, 21);
    sf_compile(&s);
}

/* ---- damage ---- */

static uint32_t nth(enum dt_op_kind kind, uint32_t n)
{
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        if (s.p->ops[i].kind == kind && n-- == 0)
            return i;
    ck_abort_msg("no such op");
    return 0;
}

static void swap_ops(uint32_t a, uint32_t b)
{
    struct dt_op x = s.p->ops[a], y = s.p->ops[b];
    uint32_t ax = x.dep[0], by = y.dep[0];

    s.p->ops[a] = y;
    s.p->ops[b] = x;
    s.p->ops[a].dep[0] = ax; /* the chain of the resource stays whole: only the order differs */
    s.p->ops[b].dep[0] = by;
}

typedef void damage(uint32_t i);
static void drop_op(uint32_t i)
{
    s.p->ops[i] = s.p->ops[i - 1];
}
static void other_microbatch(uint32_t i)
{
    s.p->ops[i].mb = (s.p->ops[i].mb + 1) % 12;
}
static void other_bytes(uint32_t i)
{
    s.p->ops[i].bytes += 2;
}
static void both_other_bytes(uint32_t i)
{
    s.p->ops[i].bytes += 2;
    s.p->ops[s.p->ops[i].peer].bytes += 2;
}
static void no_dep(uint32_t i)
{
    s.p->ops[i].dep[1] = DT_NONE;
}
static void wrong_peer(uint32_t i)
{
    s.p->ops[i].peer = nth(DT_OP_SEND, 0);
}
static void far_dep(uint32_t i)
{
    s.p->ops[i].dep[2] = s.p->n_ops + 7;
}
static void broken_chain(uint32_t i)
{
    s.p->ops[i].dep[0] = DT_NONE;
}
static void cycle(uint32_t i)
{
    /* The op waits for the last op of its own lane's compute. */
    const struct dt_lane *l = &s.p->lanes[s.p->ops[i].lane];

    for (uint32_t k = l->first; k < l->first + l->n; k++)
        if (s.p->ops[k].kind == DT_OP_STEP)
            s.p->ops[i].dep[2] = k;
}
static void swap_with_next_of_kind(uint32_t i)
{
    for (uint32_t k = i + 1; k < s.p->n_ops; k++)
        if (s.p->ops[k].kind == s.p->ops[i].kind && s.p->ops[k].lane == s.p->ops[i].lane &&
            s.p->ops[k].part == 0) {
            swap_ops(i, k);
            return;
        }
    ck_abort_msg("nothing to swap with");
}
static void other_kind(uint32_t i)
{
    s.p->ops[i].kind = DT_OP_WEIGHT_GRAD;
}
static void other_lane(uint32_t i)
{
    s.p->ops[i].lane ^= 1;
}
static void other_flags(uint32_t i)
{
    s.p->ops[i].flags ^= DT_OPF_GRAD;
}
static void tight_bound(uint32_t i)
{
    s.p->lanes[s.p->ops[i].lane].in_flight_max--;
}
static void other_group(uint32_t i)
{
    s.p->ops[i].peer = (s.p->ops[i].peer + 1) % s.p->n_groups;
}
static void lost_member(uint32_t i)
{
    s.p->groups[s.p->ops[i].peer].n--;
}
static void lane_moved(uint32_t i)
{
    s.p->lanes[s.p->ops[i].lane].first++;
}

static const struct {
    const char *name;
    damage *fn;
    enum dt_op_kind kind;
    uint32_t nth;
} damages[] = {
    {"a forward is lost", drop_op, DT_OP_FORWARD, 17},
    {"a backward is lost", drop_op, DT_OP_BACKWARD, 17},
    {"a send is lost", drop_op, DT_OP_SEND, 9},
    {"a receive is lost", drop_op, DT_OP_RECV, 9},
    {"a sync is lost", drop_op, DT_OP_GRAD_SYNC, 3},
    {"a step is lost", drop_op, DT_OP_STEP, 1},
    {"a forward of another microbatch", other_microbatch, DT_OP_FORWARD, 11},
    {"a send of other bytes", other_bytes, DT_OP_SEND, 5},
    {"a transfer of other bytes", both_other_bytes, DT_OP_SEND, 5},
    {"a sync of other bytes", other_bytes, DT_OP_GRAD_SYNC, 2},
    {"a send before its producer", no_dep, DT_OP_SEND, 8},
    {"a forward before its input", no_dep, DT_OP_FORWARD, 40},
    {"a sync before its gradients", no_dep, DT_OP_GRAD_SYNC, 5},
    {"a step before the norm", no_dep, DT_OP_STEP, 2},
    {"a receive of another send", wrong_peer, DT_OP_RECV, 20},
    {"a dependency on nothing", far_dep, DT_OP_SEND, 3},
    {"a broken resource", broken_chain, DT_OP_SEND, 3},
    {"a circle", cycle, DT_OP_FORWARD, 6},
    {"two forwards in the wrong order", swap_with_next_of_kind, DT_OP_FORWARD, 8},
    {"two sends in the wrong order", swap_with_next_of_kind, DT_OP_SEND, 12},
    {"two receives in the wrong order", swap_with_next_of_kind, DT_OP_RECV, 12},
    {"two backwards in the wrong order", swap_with_next_of_kind, DT_OP_BACKWARD, 61},
    {"a backward of another kind", other_kind, DT_OP_BACKWARD, 9},
    {"an op on another lane", other_lane, DT_OP_BACKWARD, 9},
    {"gradients taken for activations", other_flags, DT_OP_SEND, 4},
    {"a lower bound", tight_bound, DT_OP_FORWARD, 0},
    {"a sync in another group", other_group, DT_OP_GRAD_SYNC, 1},
    {"a gather in another group", other_group, DT_OP_PARAM_GATHER, 1},
    {"a group without a member", lost_member, DT_OP_GRAD_SYNC, 1},
    {"a first use before its gather", drop_op, DT_OP_PARAM_GATHER, 2},
    {"a lane out of place", lane_moved, DT_OP_FORWARD, 30},
};
enum { DAMAGES = sizeof(damages) / sizeof(damages[0]) };

START_TEST(check_finds_damage)
{
    compile_chain(DT_SCHED_1F1B, 1);
    damages[_i].fn(nth(damages[_i].kind, damages[_i].nth));
    ck_assert_msg(dt_program_check(s.p, &s.f.model, &s.err) == DT_ERR_INTERNAL, "missed: %s",
                  damages[_i].name);
    ck_assert_msg(s.err.message[0] != '\0', "%s: no message", damages[_i].name);
    sf_free(&s);
}
END_TEST

/* Any single change of a field that carries meaning is found; `mb` of a transfer or sync is only a
 * label. */
START_TEST(check_finds_random_damage)
{
    uint64_t seed = dt_test_seed();
    struct dt_rng r;
    int found = 0, tried = 0;

    dt_rng_init(&r, seed, 31);
    compile_chain(DT_SCHED_INTERLEAVED, 2);
    for (int t = 0; t < 600; t++) {
        uint32_t i = (uint32_t)dt_rng_below(&r, s.p->n_ops);
        struct dt_op was = s.p->ops[i], *op = &s.p->ops[i];

        switch (dt_rng_below(&r, 5)) {
        case 0:
            op->kind =
                (uint8_t)((op->kind + 1 + dt_rng_below(&r, DT_OP_KIND_N - 1)) % DT_OP_KIND_N);
            break;
        case 1:
            op->dep[0] = (uint32_t)dt_rng_below(&r, s.p->n_ops);
            break;
        case 2:
            if (op->peer != DT_NONE)
                op->peer = (uint32_t)dt_rng_below(&r, s.p->n_ops);
            break;
        case 3:
            op->chunk ^= 1;
            break;
        default:
            op->bytes += op->bytes > 0;
            break;
        }
        if (memcmp(&was, op, sizeof(was)) == 0 || was.kind == DT_OP_FETCH ||
            (was.chunk != op->chunk && was.kind != DT_OP_FORWARD && was.kind != DT_OP_BACKWARD)) {
            *op = was;
            continue;
        }
        tried++;
        found += dt_program_check(s.p, &s.f.model, NULL) != DT_OK;
        ck_assert_msg(found == tried, "seed %" PRIu64 " try %d: op %u (kind %d) changed unnoticed",
                      seed, t, i, was.kind);
        *op = was;
    }
    ck_assert_int_gt(tried, 200);
    dt_assert_ok(dt_program_check(s.p, &s.f.model, &s.err), s.err);
    sf_free(&s);
}
END_TEST

/* ---- random graphs ---- */

START_TEST(random_graphs_compile_and_run)
{
    uint64_t seed = dt_test_seed();

    for (int round = 0; round < 400; round++) {
        int64_t f[64], *ns, span;
        struct dt_program *again = NULL;

        sf_random(&s, seed, round, false);
        sf_assign(&s);
        ck_assert_msg(
            dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, NULL, &s.err, &s.p) == DT_OK,
            "seed %" PRIu64 " round %d: %s", seed, round, s.err.message);
        ck_assert_msg(dt_program_check(s.p, &s.f.model, &s.err) == DT_OK,
                      "seed %" PRIu64 " round %d: %s", seed, round, s.err.message);
        for (int v = 0; v < 64; v++)
            f[v] = 977 + 13 * v;
        ns = sf_durations(s.p, f, f);
        span = sf_makespan(&s, ns);
        ck_assert_int_gt(span, 0);
        free(ns);
        dt_assert_ok(dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, NULL, &s.err, &again),
                     s.err);
        ck_assert_uint_eq(dt_program_digest(again), dt_program_digest(s.p));
        dt_program_free(again);
        sf_free(&s);
    }
}
END_TEST

/* Entrain's case: what the LLM does with a sample may come later than its slot in the encoder. */
START_TEST(deferred_samples_take_a_list_schedule)
{
    struct dt_assignment_module *llm;
    uint32_t boundary = 0;

    sf_init(&s);
    sf_chain(&s, 4);
    sf_plan(&s, 40, 2, DT_SCHED_1F1B);
    sf_layout(&s, 0, 1, 1, 1, 1);
    sf_layout(&s, 1, 1, 2, 1, 2);
    sf_layout(&s, 2, 1, 1, 1, 1);
    sf_samples(&s, 40, 2, 0, false, 22);
    sf_assign(&s);
    /* Swap the last sample of microbatch k with the first of k + 1, for every other k. */
    llm = &s.a->m[1];
    for (uint32_t k = 0; k + 1 < llm->mb_first[1]; k += 2) {
        uint32_t a = llm->mb[k].first + llm->mb[k].n - 1, b = llm->mb[k + 1].first;
        int64_t x = llm->samples[a];

        llm->samples[a] = llm->samples[b];
        llm->samples[b] = x;
    }
    sf_compile(&s);
    for (uint32_t i = 0; i < s.p->n_ops; i++)
        boundary += s.p->ops[i].kind == DT_OP_RECV && s.p->ops[i].module == 1 &&
                    s.p->ops[i].flags == DT_OPF_BOUNDARY &&
                    s.p->ops[i].mb != s.p->ops[s.p->ops[i].peer].mb;
    ck_assert_uint_gt(boundary, 0); /* transfers between slots */
    sf_free(&s);
}
END_TEST

/* ---- text and digest ---- */

START_TEST(print_names_every_op)
{
    char *text = NULL;
    uint32_t lines = 0;

    compile_chain(DT_SCHED_1F1B, 1);
    dt_assert_ok(dt_program_print(s.p, -1, &s.err, &text), s.err);
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    ck_assert_uint_eq(lines, s.p->n_ops);
    dt_free(text);
    dt_assert_ok(dt_program_print(s.p, 4, &s.err, &text), s.err);
    dt_assert_has(text, "llm/0.0 #0 GATHER chunk=0 part=0/4");
    dt_assert_has(text, " F mb=1 chunk=0 deps=#");
    dt_assert_has(text, " RECV mb=0 chunk=0 boundary bytes=");
    dt_assert_has(text, " from=encoder/0.1#");
    dt_assert_has(text, " STEP chunk=0 deps=#");
    dt_free(text);
    ck_assert_int_eq(dt_program_print(s.p, s.p->n_lanes, &s.err, &text), DT_ERR_USAGE);
    sf_free(&s);
}
END_TEST

START_TEST(digest_sees_every_part)
{
    uint64_t was;

    compile_chain(DT_SCHED_1F1B, 1);
    was = dt_program_digest(s.p);
    s.p->ops[s.p->n_ops - 1].bytes ^= 1;
    ck_assert_uint_ne(dt_program_digest(s.p), was);
    s.p->ops[s.p->n_ops - 1].bytes ^= 1;
    s.p->groups[0].share ^= 1;
    ck_assert_uint_ne(dt_program_digest(s.p), was);
    s.p->groups[0].share ^= 1;
    s.p->lanes[3].first_gpu ^= 1;
    ck_assert_uint_ne(dt_program_digest(s.p), was);
    s.p->lanes[3].first_gpu ^= 1;
    ck_assert_uint_eq(dt_program_digest(s.p), was);
    sf_free(&s);
}
END_TEST

/* ---- no memory ---- */

static enum dt_status everything(void)
{
    struct dt_program *p = NULL;
    struct dt_timeline_topo topo = {0};
    struct dt_timeline t = {0};
    struct dt_arena arena = {0};
    int64_t *ns = NULL;
    char *text = NULL;
    enum dt_status st;

    st = dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, NULL, &s.err, &p);
    if (st == DT_OK)
        st = dt_program_check(p, &s.f.model, &s.err);
    if (st == DT_OK)
        st = dt_program_print(p, 0, &s.err, &text);
    if (st == DT_OK)
        st = dt_timeline_topo_build(p, &s.err, &topo);
    if (st == DT_OK) {
        ns = calloc(p->n_ops, sizeof(*ns));
        st = dt_timeline_eval(p, &topo, ns, &s.err, &t);
    }
    free(ns);
    dt_free(text);
    dt_timeline_topo_free(&topo);
    dt_timeline_free(&t);
    dt_program_free(p);
    dt_arena_free(&arena);
    return st;
}

/* The interleaved chain goes through the list schedule and reordered receives too. */
START_TEST(any_allocation_may_fail)
{
    uint64_t k = 1;

    compile_chain(_i ? DT_SCHED_INTERLEAVED : DT_SCHED_1F1B, _i ? 2 : 1);
    for (;; k++) {
        enum dt_status st;

        dt_mem_fail_at(k);
        st = everything();
        if (dt_mem_count() < k)
            break; /* the k-th allocation was not asked for any more */
        ck_assert_int_eq(st, DT_ERR_NOMEM);
    }
    dt_mem_fail_at(0);
    ck_assert_uint_gt(k, 20);
    ck_assert_int_eq(everything(), DT_OK);
    sf_free(&s);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("program");
    TCase *c = dt_test_case(u, "program", 120);

    tcase_add_loop_test(c, check_finds_damage, 0, DAMAGES);
    tcase_add_test(c, check_finds_random_damage);
    tcase_add_test(c, random_graphs_compile_and_run);
    tcase_add_test(c, deferred_samples_take_a_list_schedule);
    tcase_add_test(c, print_names_every_op);
    tcase_add_test(c, digest_sees_every_part);
    tcase_add_loop_test(c, any_allocation_may_fail, 0, 2);
    return dt_test_run(u);
}
