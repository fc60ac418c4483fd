/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Damage of every kind to random programs: dt_program_check finds it exactly where the oracle says that
 * it matters.  DT_MUTANT=NAME applies one kind alone. */
#include "program_choose.h"
#include "program_oracle.h"

#include <stdio.h>

/* ---- moving ---- */

static uint32_t *reference(uint32_t i, uint32_t k)
{
    struct dt_op *o = at(i);

    return k < 3 ? &o->dep[k] : k < 3u + o->more_n ? &s.p->deps[o->more_first + k - 3] : NULL;
}

/* Ops a and b of a lane change places; whoever names one names it where it is now. */
static void change_places(uint32_t a, uint32_t b)
{
    struct dt_op x = *at(a);
    uint32_t last[DT_RES_N] = {DT_NONE, DT_NONE, DT_NONE, DT_NONE}, *d;
    const struct dt_lane *l = &s.p->lanes[x.lane];

    *at(a) = *at(b);
    *at(b) = x;
    for (uint32_t i = 0; i < s.p->n_ops; i++) {
        for (uint32_t k = 1; (d = reference(i, k)); k++)
            *d = *d == a ? b : *d == b ? a : *d;
        if (is_message(at(i)))
            at(i)->peer = at(i)->peer == a ? b : at(i)->peer == b ? a : at(i)->peer;
    }
    for (uint32_t k = 0; k < s.p->n_group_ops; k++)
        s.p->group_ops[k] = s.p->group_ops[k] == a   ? b
                            : s.p->group_ops[k] == b ? a
                                                     : s.p->group_ops[k];
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        enum dt_op_resource r = dt_op_resource(at(i)->kind);

        at(i)->dep[0] = last[r];
        last[r] = i;
    }
}

static bool move(pick *is, pick *past)
{
    uint32_t a = choose(is, DT_NONE, DT_NONE), b;

    if (a == DT_NONE || (b = choose(past, at(a)->lane, a)) == DT_NONE)
        return false;
    change_places(a, b);
    return true;
}

/* Of what op i names beside the op before it: a random one, where it is named. */
static uint32_t *named(uint32_t i)
{
    uint32_t n = 0, *d, *found = NULL;

    for (uint32_t k = 1; i != DT_NONE && (d = reference(i, k)); k++)
        if (*d != DT_NONE && below(++n) == 0)
            found = d;
    return found;
}

static bool drop(pick *is)
{
    uint32_t *d = NULL;

    for (int t = 0; t < 30 && !d; t++)
        d = named(choose(is, DT_NONE, DT_NONE));
    if (d)
        *d = DT_NONE;
    return d != NULL;
}

static bool other_way(void)
{
    uint32_t i = choose(is_link, DT_NONE, DT_NONE);

    if (i != DT_NONE)
        at(i)->kind = at(i)->kind == DT_OP_RELOAD ? DT_OP_OFFLOAD : DT_OP_RELOAD;
    return i != DT_NONE;
}

/* Whoever names one of these forgets it. */
static bool drop_of(pick *is)
{
    uint32_t to = choose(is, DT_NONE, DT_NONE), n = 0, *found = NULL, *d;

    for (uint32_t i = 0; to != DT_NONE && i < s.p->n_ops; i++)
        for (uint32_t k = 1; (d = reference(i, k)) != NULL; k++)
            if (*d == to && below(++n) == 0)
                found = d;
    if (found)
        *found = DT_NONE;
    return found != NULL;
}

static bool redirect(pick *is, pick *to, bool same_lane)
{
    for (int t = 0; t < 30; t++) {
        uint32_t i = choose(is, DT_NONE, DT_NONE), *d = named(i), x;

        if (!d || (x = choose(to, same_lane ? at(i)->lane : DT_NONE, *d)) == DT_NONE)
            continue;
        *d = x;
        return true;
    }
    return false;
}

static bool add(pick *is, pick *to, bool same_lane, bool later)
{
    for (int t = 0; t < 30; t++) {
        uint32_t i = choose(is, DT_NONE, DT_NONE), x;
        int k = i == DT_NONE ? 3 : at(i)->dep[1] == DT_NONE ? 1 : at(i)->dep[2] == DT_NONE ? 2 : 3;

        if (k == 3 || (x = choose(to, same_lane ? at(i)->lane : DT_NONE, i)) == DT_NONE ||
            (later && x < i))
            continue;
        at(i)->dep[k] = x;
        return true;
    }
    return false;
}

/* ---- kinds of damage: each says whether it was done ---- */

#define KINDS(X)                                                                                   \
    X(forward_waits_for_less, drop(is_forward))                                                    \
    X(backward_waits_for_less, drop(is_backward))                                                  \
    X(send_waits_for_less, drop(is_send))                                                          \
    X(sync_waits_for_less, drop(is_sync))                                                          \
    X(gather_waits_for_less, drop(is_own_gather))                                                  \
    X(own_sync_waits_for_less, drop(is_own_sync))                                                  \
    X(gather_after_another_part, redirect(is_own_gather, is_work, true))                           \
    X(own_collectives_change_places, move(is_own, is_own))                                         \
    X(collective_of_another_microbatch, label(is_own))                                             \
    X(collective_of_one_microbatch, label(is_collective))                                          \
    X(gather_for_the_other_direction, other_use())                                                 \
    X(shared_table_waits_for_less, drop(is_tied))                                                  \
    X(link_waits_for_less, drop(is_link))                                                          \
    X(waits_for_no_link, drop_of(is_link))                                                         \
    X(reload_after_another, redirect(is_reload, is_work, false))                                   \
    X(link_the_other_way, other_way())                                                             \
    X(link_of_a_microbatch, label(is_link))                                                        \
    X(norm_waits_for_less, drop(is_norm))                                                          \
    X(step_waits_for_less, drop(is_step))                                                          \
    X(forward_waits_for_another, redirect(is_forward, any, true))                                  \
    X(backward_waits_for_another, redirect(is_backward, any, true))                                \
    X(send_of_another_producer, redirect(is_send, is_work, true))                                  \
    X(sync_after_another_gradient, redirect(is_sync, is_work, true))                               \
    X(norm_after_another_gradient, redirect(is_norm, is_work, true))                               \
    X(step_after_another, redirect(is_step, any, true))                                            \
    X(waits_for_another_lane, redirect(any, any, false))                                           \
    X(waits_for_what_is_later, add(any, any, true, true))                                          \
    X(waits_for_more, add(any, any, false, false))                                                 \
    X(waits_for_its_own_step, add(is_work, is_step, true, false))                                  \
    X(waits_for_no_op, out_of_range())                                                             \
    X(queue_broken, broken_queue())                                                                \
    X(compute_changes_places, move(is_work, is_work))                                              \
    X(forwards_change_places, move(is_forward, is_forward))                                        \
    X(backwards_change_places, move(is_backward, is_backward))                                     \
    X(backward_before_forward, move(is_backward, is_forward))                                      \
    X(weight_gradients_change_places, move(is_weight, is_weight))                                  \
    X(weight_gradient_before_backward, move(is_weight, is_backward))                               \
    X(weight_gradient_behind_forward, move(is_weight, is_forward))                                 \
    X(weight_gradient_of_another_microbatch, label(is_weight))                                     \
    X(weight_gradient_twice, twice(is_weight))                                                     \
    X(weight_gradient_lost, lost_weight())                                                         \
    X(sync_after_a_backward, redirect(is_sync, is_backward, true))                                 \
    X(parts_change_places, move(is_cut, is_cut))                                                   \
    X(sends_change_places, move(is_send, is_send))                                                 \
    X(receives_change_places, move(is_recv, is_recv))                                              \
    X(fetches_change_places, move(is_fetch, is_fetch))                                             \
    X(fetch_behind_receive, move(is_fetch, is_recv))                                               \
    X(collectives_change_places, move(is_collective, is_collective))                               \
    X(syncs_change_places, move(is_sync, is_sync))                                                 \
    X(late_gather, move(is_gather, is_sync))                                                       \
    X(gathers_change_places, move(is_gather, is_gather))                                           \
    X(norm_before_sync, move(is_norm, is_sync))                                                    \
    X(shared_table_before_sync, move(is_tied, is_sync))                                            \
    X(step_before_work, move(is_step, is_work))                                                    \
    X(send_of_wrong_bytes, bytes(is_send, false))                                                  \
    X(message_of_wrong_bytes, bytes(is_message, true))                                             \
    X(empty_message, no_bytes())                                                                   \
    X(collective_member_of_wrong_bytes, bytes(is_collective, false))                               \
    X(collective_of_wrong_bytes, bytes(is_collective, true))                                       \
    X(forward_of_another_microbatch, label(is_forward))                                            \
    X(backward_of_another_microbatch, label(is_backward))                                          \
    X(fetch_of_another_microbatch, label(is_fetch))                                                \
    X(message_of_another_microbatch, label(is_message))                                            \
    X(forward_twice, twice(is_forward))                                                            \
    X(backward_twice, twice(is_backward))                                                          \
    X(fetch_twice, twice(is_fetch))                                                                \
    X(message_twice, twice(is_message))                                                            \
    X(collective_twice, twice(is_collective))                                                      \
    X(compute_of_another_chunk, chunk(is_work))                                                    \
    X(message_of_another_chunk, chunk(is_message))                                                 \
    X(collective_of_another_chunk, chunk(is_collective))                                           \
    X(other_part, other_part())                                                                    \
    X(other_number_of_parts, other_parts())                                                        \
    X(crossed_sends, crossed(true))                                                                \
    X(crossed_messages, crossed(false))                                                            \
    X(wrong_peer, wrong_peer())                                                                    \
    X(other_direction, flags(DT_OPF_GRAD))                                                         \
    X(other_border, flags(DT_OPF_BOUNDARY))                                                        \
    X(other_group, other_group())                                                                  \
    X(members_exchanged, members())                                                                \
    X(member_twice, member_twice())                                                                \
    X(member_lost, member_lost())                                                                  \
    X(group_of_another_kind, group_kind())                                                         \
    X(op_of_another_kind, other_kind())                                                            \
    X(op_of_another_lane, other_lane())                                                            \
    X(other_bound, other_bound())                                                                  \
    X(lane_boundary_moved, boundary())                                                             \
    X(lane_of_another_stage, lane_stage())

static bool out_of_range(void)
{
    uint32_t i = choose(any, DT_NONE, DT_NONE);

    at(i)->dep[1 + below(2)] = s.p->n_ops + below(9);
    return true;
}

static bool broken_queue(void)
{
    uint32_t i = choose(any, DT_NONE, DT_NONE);

    at(i)->dep[0] = at(i)->dep[0] == DT_NONE ? choose(any, at(i)->lane, i) : DT_NONE;
    return true;
}

static bool bytes(pick *is, bool all)
{
    uint32_t i = choose(is, DT_NONE, DT_NONE);
    uint64_t more = below(2) ? 2 : 4;

    if (i == DT_NONE)
        return false;
    if (all && is_collective(at(i)))
        for (uint32_t k = 0, g = at(i)->peer; k < s.p->groups[g].n; k++)
            at(s.p->group_ops[s.p->groups[g].first + k])->bytes += more;
    else if (all)
        at(at(i)->peer)->bytes = at(i)->bytes += more;
    else
        at(i)->bytes += more;
    return true;
}

static bool no_bytes(void)
{
    uint32_t i = choose(is_send, DT_NONE, DT_NONE);

    if (i != DT_NONE)
        at(at(i)->peer)->bytes = at(i)->bytes = 0;
    return i != DT_NONE;
}

static bool label(pick *is)
{
    uint32_t i = choose(is, DT_NONE, DT_NONE);

    if (i != DT_NONE)
        at(i)->mb = below(4) ? at(i)->mb + 1 - 2 * below(2) : DT_NONE - below(2);
    return i != DT_NONE;
}

/* One op takes the place of another of its kind and lane. */
static bool twice(pick *is)
{
    uint32_t i = choose(is, DT_NONE, DT_NONE), k;

    if (i == DT_NONE || (k = choose(is, at(i)->lane, i)) == DT_NONE)
        return false;
    at(k)->mb = at(i)->mb;
    at(k)->chunk = at(i)->chunk;
    at(k)->part = at(i)->part;
    at(k)->parts = at(i)->parts;
    at(k)->flags = at(i)->flags;
    at(k)->bytes = at(i)->bytes;
    if (below(2))
        at(k)->peer = at(i)->peer;
    return true;
}

static bool chunk(pick *is)
{
    uint32_t i = choose(is, DT_NONE, DT_NONE);

    if (i != DT_NONE)
        at(i)->chunk ^= (uint8_t)(1 + below(2));
    return i != DT_NONE;
}

static bool other_part(void)
{
    uint32_t i = choose(below(2) ? is_cut : is_collective, DT_NONE, DT_NONE);

    if (i == DT_NONE || is_norm(at(i)) || is_tied(at(i)))
        return false;
    at(i)->part ^= (uint8_t)(1 + below(3));
    return true;
}

static bool other_parts(void)
{
    uint32_t i = choose(below(2) ? is_work : is_collective, DT_NONE, DT_NONE);

    if (i == DT_NONE || is_norm(at(i)) || is_tied(at(i)))
        return false;
    at(i)->parts = (uint8_t)(at(i)->parts + 1 - 2 * below(2));
    return true;
}

/* A backward takes the place of a weight gradient. */
static bool lost_weight(void)
{
    uint32_t i = choose(is_weight, DT_NONE, DT_NONE);

    if (i != DT_NONE)
        at(i)->kind = (uint8_t)(below(2) ? DT_OP_BACKWARD : DT_OP_STEP);
    return i != DT_NONE;
}

/* Two messages, of one lane or any, are received for each other. */
static bool crossed(bool one_lane)
{
    uint32_t a = choose(is_send, DT_NONE, DT_NONE), b, x;

    if (a == DT_NONE || (b = choose(is_send, one_lane ? at(a)->lane : DT_NONE, a)) == DT_NONE)
        return false;
    x = at(a)->peer;
    at(a)->peer = at(b)->peer;
    at(b)->peer = x;
    at(at(a)->peer)->peer = a;
    at(at(b)->peer)->peer = b;
    return true;
}

static bool wrong_peer(void)
{
    uint32_t i = choose(is_message, DT_NONE, DT_NONE);

    if (i != DT_NONE)
        at(i)->peer = below(5) ? choose(any, DT_NONE, at(i)->peer) : DT_NONE;
    return i != DT_NONE;
}

static bool flags(unsigned bit)
{
    uint32_t i = choose(is_message, DT_NONE, DT_NONE);

    if (i == DT_NONE)
        return false;
    at(i)->flags ^= (uint8_t)bit;
    if (below(2))
        at(at(i)->peer)->flags ^= (uint8_t)bit;
    return true;
}

static bool other_use(void)
{
    uint32_t i = choose(is_gather, DT_NONE, DT_NONE);

    if (i == DT_NONE)
        return false;
    for (uint32_t k = 0, g = at(i)->peer; k < s.p->groups[g].n; k++)
        at(s.p->group_ops[s.p->groups[g].first + k])->flags ^= DT_OPF_GRAD;
    return true;
}

static bool other_group(void)
{
    uint32_t i = choose(is_collective, DT_NONE, DT_NONE);

    if (i == DT_NONE || s.p->n_groups < 2)
        return false;
    at(i)->peer = below(5) ? (at(i)->peer + 1 + below(s.p->n_groups - 1)) % s.p->n_groups : DT_NONE;
    return true;
}

/* Two members change their groups. */
static bool members(void)
{
    uint32_t a = below(s.p->n_group_ops + 1), b = below(s.p->n_group_ops + 1), x, g;

    if (a >= s.p->n_group_ops || b >= s.p->n_group_ops || a == b)
        return false;
    x = s.p->group_ops[a];
    s.p->group_ops[a] = s.p->group_ops[b];
    s.p->group_ops[b] = x;
    g = at(s.p->group_ops[a])->peer;
    at(s.p->group_ops[a])->peer = at(s.p->group_ops[b])->peer;
    at(s.p->group_ops[b])->peer = g;
    return true;
}

static bool member_twice(void)
{
    uint32_t a = below(s.p->n_group_ops + 1);

    if (a >= s.p->n_group_ops || s.p->n_group_ops < 2)
        return false;
    s.p->group_ops[a] = s.p->group_ops[(a + 1 + below(s.p->n_group_ops - 1)) % s.p->n_group_ops];
    return true;
}

static bool member_lost(void)
{
    uint32_t g = s.p->n_groups > 0 ? below(s.p->n_groups) : 0;

    if (s.p->n_groups > 0)
        s.p->groups[g].n--;
    return s.p->n_groups > 0;
}

static bool group_kind(void)
{
    static const enum dt_op_kind kinds[] = {DT_OP_GRAD_SYNC, DT_OP_GRAD_NORM, DT_OP_PARAM_GATHER};
    uint32_t g = s.p->n_groups > 0 ? below(s.p->n_groups) : 0;
    uint8_t kind = (uint8_t)kinds[below(3)];
    bool whole = below(2);

    if (s.p->n_groups == 0 || s.p->groups[g].kind == kind)
        return false;
    s.p->groups[g].kind = kind;
    for (uint32_t k = 0; whole && k < s.p->groups[g].n; k++)
        at(s.p->group_ops[s.p->groups[g].first + k])->kind = kind;
    return true;
}

static bool other_kind(void)
{
    uint32_t i = choose(any, DT_NONE, DT_NONE);

    at(i)->kind = (uint8_t)((at(i)->kind + 1 + below(DT_OP_KIND_N)) % (DT_OP_KIND_N + 1));
    return true;
}

static bool other_lane(void)
{
    uint32_t i = choose(any, DT_NONE, DT_NONE);

    switch (below(4)) {
    case 0:
        at(i)->lane++;
        break;
    case 1:
        at(i)->stage++;
        break;
    case 2:
        at(i)->replica++;
        break;
    default:
        at(i)->module++;
        break;
    }
    return true;
}

static bool other_bound(void)
{
    s.p->lanes[below((uint32_t)s.p->n_lanes)].in_flight_max += below(2) ? 1 : UINT32_MAX;
    return true;
}

static bool boundary(void)
{
    uint32_t l = below((uint32_t)s.p->n_lanes);

    if (below(2))
        s.p->lanes[l].first++;
    else
        s.p->lanes[l].n--;
    return true;
}

static bool lane_stage(void)
{
    struct dt_lane *l = &s.p->lanes[below((uint32_t)s.p->n_lanes)];

    switch (below(4)) {
    case 0:
        l->stage++;
        break;
    case 1:
        l->replica++;
        break;
    case 2:
        l->gpus++;
        break;
    default:
        l->first_gpu++;
        break;
    }
    return true;
}

/* ---- all of them ---- */

#define FUNCTION(name, call)                                                                       \
    static bool do_##name(void)                                                                    \
    {                                                                                              \
        return call;                                                                               \
    }
KINDS(FUNCTION)

static const struct {
    const char *name;
    bool (*damage)(void);
} kinds[] = {
#define ROW(name, call) {#name, do_##name},
    KINDS(ROW)};
enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]), OPS_MAX = 500, EACH = 20, MANY = 320 };

static struct {
    int done, harmless;
} count[N_KINDS];

static void damage(int kind, uint64_t seed, int round, const struct oracle_copy *sound)
{
    const char *wrong;
    enum dt_status st;

    for (int t = 0; t < 2; t++) {
        dt_rng_init(&rng, seed, (uint64_t)round << 16 | (uint64_t)kind << 4 | (uint64_t)t);
        if (!kinds[kind].damage() ||
            (memcmp(sound->ops, s.p->ops, s.p->n_ops * sizeof(*s.p->ops)) == 0 &&
             memcmp(sound->deps, s.p->deps, s.p->n_deps * sizeof(*s.p->deps)) == 0 &&
             memcmp(sound->group_ops, s.p->group_ops, s.p->n_group_ops * sizeof(*s.p->group_ops)) ==
                 0 &&
             memcmp(sound->groups, s.p->groups, s.p->n_groups * sizeof(*s.p->groups)) == 0 &&
             memcmp(sound->lanes, s.p->lanes, (size_t)s.p->n_lanes * sizeof(*s.p->lanes)) == 0)) {
            oracle_restore(s.p, sound);
            continue;
        }
        wrong = oracle_judge(s.p, &s.f.model, sound);
        s.err.message[0] = '\0';
        st = dt_program_check(s.p, &s.f.model, &s.err);
        ck_assert_msg(st == (wrong ? DT_ERR_INTERNAL : DT_OK),
                      "seed %" PRIu64 " round %d, %s %d: the oracle says \"%s\", the check \"%s\"",
                      seed, round, kinds[kind].name, t, wrong ? wrong : "harmless", s.err.message);
        ck_assert_msg(!wrong || strncmp(s.err.message, "program: ", 9) == 0, "%s: \"%s\"",
                      kinds[kind].name, s.err.message);
        count[kind].done++;
        count[kind].harmless += wrong == NULL;
        oracle_restore(s.p, sound);
    }
}

static bool enough(void)
{
    for (int k = 0; k < N_KINDS; k++)
        if (count[k].done - count[k].harmless < EACH)
            return false;
    return true;
}

START_TEST(damage_is_found_where_it_matters)
{
    uint64_t seed = dt_test_seed();
    int programs = 0, done = 0, harmless = 0, deferred = 0, offloading = 0;

    for (int round = 0; round < 1500 && !enough(); round++) {
        struct oracle_copy sound;
        const char *wrong;

        sf_random(&s, seed, round, true);
        if (s.plan.policy.schedule == DT_SCHED_1F1B && round % 2)
            s.plan.policy.schedule = DT_SCHED_ZB_H1;
        sf_zero_allowed(&s);
        sf_assign(&s);
        if (dt_sched_compile(&s.plan, &s.f.model, &s.f.cluster, s.a, NULL, &s.err, &s.p) != DT_OK ||
            s.p->n_ops > OPS_MAX) {
            sf_free(&s);
            continue;
        }
        programs++;
        offloading += choose(is_link, DT_NONE, DT_NONE) != DT_NONE;
        for (int m = 0; m < s.a->n_modules; m++)
            if (dt_assignment_positions(&s.a->m[m], 0) <
                (int64_t)(s.a->m[m].mb_first[1] - s.a->m[m].mb_first[0]))
                deferred++;
        ck_assert_msg(dt_program_check(s.p, &s.f.model, &s.err) == DT_OK,
                      "seed %" PRIu64 " round %d: %s", seed, round, s.err.message);
        sound = oracle_copy(s.p);
        wrong = oracle_judge(s.p, &s.f.model, &sound);
        ck_assert_msg(!wrong,
                      "seed %" PRIu64 " round %d: the oracle says \"%s\" of a sound program", seed,
                      round, wrong);
        for (int k = 0; k < N_KINDS; k++)
            if (count[k].done < MANY &&
                (!getenv("DT_MUTANT") || strcmp(getenv("DT_MUTANT"), kinds[k].name) == 0))
                damage(k, seed, round, &sound);
        oracle_copy_free(&sound);
        sf_free(&s);
    }
    for (int k = 0; k < N_KINDS; k++) {
        printf("%-36s %5d found, %4d harmless\n", kinds[k].name, count[k].done - count[k].harmless,
               count[k].harmless);
        ck_assert_msg(getenv("DT_MUTANT") || count[k].done - count[k].harmless >= EACH,
                      "seed %" PRIu64 ": %s mattered only %d times in %d programs", seed,
                      kinds[k].name, count[k].done - count[k].harmless, programs);
        done += count[k].done;
        harmless += count[k].harmless;
    }
    printf("seed %" PRIu64
           ": %d kinds, %d programs, %d of them defer, %d offload, %d found, %d harmless\n",
           seed, N_KINDS, programs, deferred, offloading, done - harmless, harmless);
    ck_assert(getenv("DT_MUTANT") || deferred > 5);
}
END_TEST

int main(void)
{
    Suite *u = suite_create("program_mutants");
    TCase *c = dt_test_case(u, "program_mutants", 300);

    tcase_add_test(c, damage_is_found_where_it_matters);
    return dt_test_run(u);
}
