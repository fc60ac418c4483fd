/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The compiler: two passes over the lanes.  The first counts ops and fixes where every forward and
 * backward will be, so that the second (schedule_fill.c) can name any op of any lane by arithmetic,
 * without a table. */
#include "core/schedule/schedule_direct.h"
#include "core/schedule/schedule_fill.h"
#include "core/schedule/schedule_link.h"
#include "core/schedule/timeline.h"

#include "base/mem.h"

#include <string.h>

static int init_module(struct dt_sched *s, int i)
{
    struct dt_sched_module *m = &s->m[i];
    const struct dt_plan_module *mp = &s->plan->modules[i];

    m->mod = &s->model->modules[i];
    m->layout = &mp->layout;
    m->index = i;
    m->pp = mp->layout.pp;
    m->vpp = mp->layout.vpp;
    m->dp = mp->layout.dp;
    m->n_v = m->pp * m->vpp;
    m->lane_gpus = dt_plan_layout_lane_gpus(&mp->layout);
    m->lane_base = s->n_lanes;
    s->n_lanes += (uint32_t)(m->dp * m->pp);
    m->mb_first = s->a->m[i].mb_first;
    m->n_mb = m->mb_first[m->dp];
    m->v = DT_ARENA_NEW(&s->arena, struct dt_sched_vstage, m->n_v);
    m->lane_trains = DT_ARENA_NEW(&s->arena, bool, m->pp);
    m->replica_of = DT_ARENA_NEW(&s->arena, uint16_t, m->n_mb + 1);
    if (!m->v || !m->replica_of || !m->lane_trains)
        return -1;
    for (int r = 0; r < m->dp; r++)
        for (uint32_t k = m->mb_first[r]; k < m->mb_first[r + 1]; k++)
            m->replica_of[k] = (uint16_t)r;
    for (int k = 0; k < m->n_v; k++) {
        struct dt_sched_vstage *v = &m->v[k];

        v->first = mp->split[k];
        v->n = (uint16_t)(mp->split[k + 1] - mp->split[k]);
        v->backward = dt_plan_upstream_trained(s->plan, s->model, i, v->first);
        for (int b = v->first; b < v->first + v->n; b++)
            v->backward |= dt_plan_trained(s->plan, s->model, i, b);
        v->split = dt_plan_splits_backward(s->plan, s->model, i, k);
        dt_block_boundary(m->mod, v->first + v->n, dt_plan_policy_elem_bytes(&s->plan->policy),
                          &v->wire);
    }
    m->mirrored_out = m->v[m->n_v - 1].backward;
    return 0;
}

/* Collectives of each microbatch are the same ones, in the same order, on all replicas. */
static enum dt_status check_in_step(const struct dt_sched *s, struct dt_error *err)
{
    for (int i = 0; i < s->n_modules; i++)
        for (int v = 0; v < s->m[i].n_v; v++) {
            const struct dt_sched_vstage *x = &s->m[i].v[v];

            if (x->f_each && x->split)
                return dt_error_set(err, DT_ERR_INFEASIBLE,
                                    "%s: ZeRO 3 gathers parameters for a forward and a backward, "
                                    "and schedule %s splits the backward; use zero 2",
                                    s->model->modules[i].name,
                                    dt_pipe_schedule_names[s->plan->policy.schedule]);
            if (!s->aligned && (x->b_each || x->f_each))
                return dt_error_set(err, DT_ERR_INFEASIBLE,
                                    "%s: with ZeRO %d its replicas exchange gradients or "
                                    "parameters at each microbatch, but microbatches are not the "
                                    "same slots everywhere; use zero 0 or 1",
                                    s->model->modules[i].name, s->plan->modules[i].zero);
        }
    return DT_OK;
}

enum dt_status dt_sched_init(struct dt_sched *s, const struct dt_plan *plan,
                             const struct dt_model *model, const struct dt_cluster *cluster,
                             const struct dt_assignment *a, struct dt_error *err)
{
    memset(s, 0, sizeof(*s));
    s->plan = plan;
    s->model = model;
    s->cluster = cluster;
    s->a = a;
    s->n_modules = model->n_modules;
    if (plan->n_modules != model->n_modules || a->n_modules != model->n_modules)
        return dt_error_set(err, DT_ERR_INTERNAL, "plan, model and assignment differ in modules");
    for (int i = 0; i < s->n_modules; i++) {
        if (a->m[i].n_replicas != plan->modules[i].layout.dp)
            return dt_error_set(
                err, DT_ERR_INTERNAL, "assignment has %d replicas of module %s, the plan %d",
                a->m[i].n_replicas, model->modules[i].name, plan->modules[i].layout.dp);
        if (init_module(s, i) != 0)
            return dt_error_nomem(err, "modules of a schedule");
    }
    if (dt_sched_link_init(s) != 0)
        return dt_error_nomem(err, "lanes of a schedule");
    dt_sched_sync_init(s);
    DT_TRY(dt_sched_transfers(s, err));
    return check_in_step(s, err);
}

void dt_sched_fini(struct dt_sched *s)
{
    dt_arena_free(&s->arena);
}

/* ---- first pass ---- */

struct counter {
    uint64_t at;   /* next op */
    uint64_t deps; /* entries of deps[], at most */
};

static void count_forward(const struct dt_sched *s, struct dt_sched_module *m, int replica, int v,
                          uint32_t k, bool first, struct counter *c)
{
    uint32_t mb = m->mb_first[replica] + k;
    const struct dt_assignment_module *a = &s->a->m[m->index];
    uint32_t in = dt_sched_fill_forward_inputs(m, a, v, mb);

    c->at += in;
    c->deps +=
        in + 3 +
        dt_sched_fill_forward_outputs(m, a, v, mb); /* gathers, a sync; credits of a later one */
    m->f_idx[dt_sched_at(m, replica, v, k)] = (uint32_t)c->at;
    c->at += (uint32_t)dt_sched_forward_parts(&m->v[v], first);
    c->at += dt_sched_fill_forward_outputs(m, a, v, mb);
}

static void count_backward(const struct dt_sched *s, struct dt_sched_module *m, int replica, int v,
                           uint32_t k, bool last, struct counter *c)
{
    uint32_t mb = m->mb_first[replica] + k;
    const struct dt_assignment_module *a = &s->a->m[m->index];
    uint32_t in = dt_sched_fill_backward_inputs(m, a, v, mb);

    c->at += in;
    c->deps += in + (m->v[v].b_each ? 2 : 0); /* a gather, and the sync of a bucket before */
    m->b_idx[dt_sched_at(m, replica, v, k)] = (uint32_t)c->at;
    c->at += (uint32_t)dt_sched_backward_parts(&m->v[v], last);
    c->at += dt_sched_fill_backward_outputs(m, a, v, mb);
}

/* The last compute op of the entry that has just been counted. */
static uint32_t last_op(const struct dt_sched_module *m, const struct dt_sched_lane_order *o,
                        int replica, int stage, uint32_t i, const struct counter *c)
{
    uint32_t k = DT_CODE_MB(o->code[i]), chunk = DT_CODE_CHUNK(o->code[i]);
    int v = (int)chunk * m->pp + stage;

    if (DT_CODE_KIND(o->code[i]) != DT_CODE_BACKWARD)
        return (uint32_t)c->at - 1; /* of a forward nobody asks */
    return m->b_idx[dt_sched_at(m, replica, v, k)] +
           (uint32_t)dt_sched_backward_parts(&m->v[v], k == o->last_b[chunk]) - 1;
}

static uint32_t count_beside(const struct dt_sched *s, const struct dt_lane *l,
                             enum dt_sched_link_who who)
{
    uint32_t k = 0;

    while (dt_sched_link_beside(s, l, who, k) != DT_NONE)
        k++;
    return k;
}

/* The OFFLOAD of a lane; dependencies on those of others, and on the RELOAD; who has the link before its OFFLOAD, RELOAD and
 * STEP. */
static void count_host(const struct dt_sched *s, const struct dt_sched_module *m, int replica,
                       int stage, struct counter *c)
{
    struct dt_lane l = dt_sched_fill_lane(s, m, replica, stage);
    bool guest = dt_sched_fill_offloads(s, m);

    if (!s->link)
        return;
    dt_sched_link_begin(s, m, replica, stage);
    if (guest) {
        s->link[m->lane_base + (uint32_t)(replica * m->pp + stage)].offload = (uint32_t)c->at++;
        c->deps++;
    }
    c->deps += count_beside(s, &l, guest ? DT_SCHED_LINK_HOSTS : DT_SCHED_LINK_GUESTS) +
               3 * count_beside(s, &l, DT_SCHED_LINK_SHARERS);
}

static void count_reload(const struct dt_sched *s, const struct dt_sched_module *m, int replica,
                         int stage, bool unasked, struct counter *c)
{
    struct dt_sched_link *h = &s->link[m->lane_base + (uint32_t)(replica * m->pp + stage)];

    h->reload = (uint32_t)c->at++;
    h->unasked = unasked;
}

static void count_lane(const struct dt_sched *s, struct dt_sched_module *m, int replica, int stage,
                       struct counter *c)
{
    const struct dt_sched_lane_order *o = dt_sched_order(s, m, replica, stage);
    uint32_t reload = dt_sched_fill_reload(s, m, o);
    struct dt_sched_fill_ahead ahead;

    c->at += dt_sched_fill_head(m, stage);
    c->at += dt_sched_fill_begin(s, m, o, stage, &ahead);
    count_host(s, m, replica, stage, c);
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t k = DT_CODE_MB(o->code[i]), chunk = DT_CODE_CHUNK(o->code[i]);
        int v = (int)chunk * m->pp + stage;

        if (i == reload)
            count_reload(s, m, replica, stage, false, c);
        if (DT_CODE_KIND(o->code[i]) == DT_CODE_FORWARD)
            count_forward(s, m, replica, v, k, k == o->first_f[chunk], c);
        else if (DT_CODE_KIND(o->code[i]) == DT_CODE_BACKWARD)
            count_backward(s, m, replica, v, k, k == o->last_b[chunk], c);
        else
            c->at += (uint32_t)dt_sched_gradient_parts(&m->v[v], k == o->last_b[chunk]);
        if (s->link)
            dt_sched_link_count(s, m, replica, stage, i, last_op(m, o, replica, stage, i, c));
        c->at += dt_sched_fill_behind(m, o, stage, i, &ahead);
    }
    if (reload == o->n)
        count_reload(s, m, replica, stage, true, c);
    c->at += dt_sched_fill_tail(s, m, stage);
}

static enum dt_status count_all(struct dt_sched *s, struct dt_program *p, struct counter *c,
                                struct dt_error *err)
{
    uint64_t group_ops = 0;

    memset(c, 0, sizeof(*c));
    for (int i = 0; i < s->n_modules; i++) {
        struct dt_sched_module *m = &s->m[i];

        for (int r = 0; r < m->dp; r++)
            for (int st = 0; st < m->pp; st++) {
                struct dt_lane *l = &p->lanes[m->lane_base + (uint32_t)(r * m->pp + st)];
                uint32_t n = m->mb_first[r + 1] - m->mb_first[r];
                uint64_t first = c->at;

                count_lane(s, m, r, st, c);
                if (c->at >= DT_NONE / 8)
                    return dt_error_set(err, DT_ERR_INPUT,
                                        "the program would have more than %u ops", DT_NONE / 8);
                *l = dt_sched_fill_lane(s, m, r, st);
                l->first = (uint32_t)first;
                l->n = (uint32_t)(c->at - first);
                l->in_flight_max =
                    (uint32_t)dt_memory_in_flight(s->plan, s->model, i, st, (int64_t)n);
                group_ops += dt_sched_fill_group_ops(s, m, st);
            }
    }
    p->n_group_ops = (uint32_t)group_ops;
    return DT_OK;
}

static enum dt_status alloc_places(struct dt_sched *s, struct dt_error *err)
{
    for (int i = 0; i < s->n_modules; i++) {
        struct dt_sched_module *m = &s->m[i];
        size_t n = (size_t)m->n_mb * (size_t)m->n_v + 1;

        m->f_idx = DT_ARENA_NEW(&s->arena, uint32_t, n);
        m->b_idx = DT_ARENA_NEW(&s->arena, uint32_t, n);
        if (!m->f_idx || !m->b_idx)
            return dt_error_nomem(err, "ops of a program");
    }
    return DT_OK;
}

/* All but the orders. */
static enum dt_status write_program(struct dt_sched *s, struct dt_program *p, struct dt_error *err)
{
    struct counter c;

    DT_TRY(alloc_places(s, err));
    p->steps_on_hosts = !dt_cluster_is_cpu(s->cluster);
    p->plan = s->plan;
    p->assignment = s->a;
    p->n_lanes = (int)s->n_lanes;
    p->lanes = DT_ARENA_NEW(&p->arena, struct dt_lane, s->n_lanes + 1);
    if (!p->lanes)
        return dt_error_nomem(err, "lanes of a program");
    DT_TRY(count_all(s, p, &c, err));
    p->n_ops = (uint32_t)c.at;
    p->n_groups = s->n_groups;
    /* dt_sched_fill writes every op; the one behind the last is never read */
    p->ops = dt_arena_alloc_raw(&p->arena, (size_t)c.at + 1, sizeof *p->ops);
    p->deps = DT_ARENA_NEW(&p->arena, uint32_t, c.deps + 1);
    p->groups = DT_ARENA_NEW(&p->arena, struct dt_group, s->n_groups + 1);
    p->group_ops = DT_ARENA_NEW(&p->arena, uint32_t, p->n_group_ops + 1);
    if (!p->ops || !p->deps || !p->groups || !p->group_ops)
        return dt_error_nomem(err, "ops of a program");
    DT_TRY(dt_sched_fill(s, p, err));
    dt_sched_expert_groups(s, p);
    DT_TRY(dt_sched_match(s, p, err));
    return dt_sched_colocate(s, p, err);
}

/* MAKESPAN: the program only where it is needed for that; GLANCE: by the first choice of rules */
enum wanted { PROGRAM, MAKESPAN, GLANCE };
struct compiled {
    struct dt_program *p;    /* NULL: its makespan was found without it */
    struct dt_durations dur; /* as in struct dt_sched */
    uint32_t *order;
    bool list_sooner;
    uint32_t other_rules;
    bool bubbles_left;
    struct dt_sched_bubbles bubbles;
    int64_t ns; /* its makespan; negative: not known */
    int64_t first_ns;
};

static void compiled_free(struct compiled *c, bool program)
{
    dt_durations_free(&c->dur);
    dt_free(c->order);
    if (program && c->p)
        dt_program_free(c->p);
}

static enum dt_status compile(struct dt_sched *s, enum wanted wanted, struct dt_error *err,
                              struct compiled *out)
{
    bool known = false;

    DT_TRY(dt_sched_orders(s, err));
    if (wanted != PROGRAM)
        DT_TRY(dt_sched_direct(s, err, &known, &out->ns));
    if (known)
        return DT_OK;
    out->p = dt_calloc(1, sizeof(*out->p));
    if (!out->p)
        return dt_error_nomem(err, "a program");
    DT_TRY(write_program(s, out->p, err));
    if (s->order && s->dur.ns && s->makespan_ns < 0) /* the run of its turns does not tell */
        DT_TRY(dt_timeline_makespan(out->p, s->order, s->dur.ns, err, &s->makespan_ns));
    return DT_OK;
}

static enum dt_status compile_one(const struct dt_sched *in, enum dt_sched_take take,
                                  enum wanted wanted, struct dt_error *err, struct compiled *out)
{
    struct dt_sched s;
    enum dt_status st;

    *out = (struct compiled){.ns = -1};
    st = dt_sched_init(&s, in->plan, in->model, in->cluster, in->a, err);
    s.cost = in->cost;
    s.take = take;
    s.makespan_only = wanted != PROGRAM;
    s.makespan_ns = -1;
    s.chunk_rule = in->chunk_rule;
    s.limit_ns = in->limit_ns;
    s.rough_ns = in->rough_ns;
    s.rules_alone = in->rules_alone || wanted == GLANCE;
    s.tells = in->tells;
    if (st == DT_OK)
        st = compile(&s, wanted, err, out);
    dt_sched_fini(&s);
    out->dur = s.dur;
    out->order = s.order;
    out->list_sooner = s.list_sooner;
    out->other_rules = s.makespan_ns >= 0 ? s.other_rules : 0;
    out->first_ns = s.first_ns;
    out->bubbles_left = s.bubbles_left;
    out->bubbles = s.bubbles;
    out->ns = s.makespan_ns < 0 ? out->ns : s.makespan_ns;
    if (st != DT_OK)
        compiled_free(out, true);
    return st;
}

static enum dt_status makespan(const struct dt_sched *in, struct compiled *c, struct dt_error *err,
                               int64_t *ns)
{
    if (c->ns < 0) {
        if (!c->dur.ns)
            DT_TRY(dt_sched_durations(in, c->p, err, &c->dur));
        DT_TRY(dt_timeline_makespan(c->p, c->order, c->dur.ns, err, &c->ns));
    }
    if (c->ns != INT64_MAX) /* else it was given up */
        DT_TRY(dt_timeline_check(c->ns, err));
    *ns = c->ns;
    return DT_OK;
}

/* The program of the list schedule in place of that of the fixed order, if its timeline is shorter; without a cost
 * model the orders' own times have decided. */
static enum dt_status try_list(const struct dt_sched *in, enum wanted wanted, struct dt_error *err,
                               struct compiled *best)
{
    struct compiled list;
    int64_t fixed_ns = 1, list_ns = 0;
    enum dt_status st = DT_OK;
    bool sooner;

    DT_TRY(compile_one(in, DT_SCHED_LIST, wanted, err, &list));
    if (in->cost)
        st = makespan(in, best, err, &fixed_ns);
    if (st == DT_OK && in->cost)
        st = makespan(in, &list, err, &list_ns);
    sooner = st == DT_OK && list_ns < fixed_ns;
    compiled_free(sooner ? best : &list, true);
    if (sooner)
        *best = list;
    return st;
}

/* The list schedule does not know that guests take turns with the lanes that it orders: the programs of the rules that came near the
 * one it chose, the first that ends soonest. */
static enum dt_status try_rules(const struct dt_sched *in, enum wanted wanted, struct dt_error *err,
                                struct compiled *best)
{
    uint32_t rules = best->other_rules;
    struct dt_sched one = *in;

    for (int rule = 0; rules >> rule; rule++) {
        struct compiled other;
        struct dt_error why;
        enum dt_status st;
        bool sooner;

        if (!(rules >> rule & 1))
            continue;
        one.chunk_rule = 1 + rule;
        one.limit_ns = best->ns - 1;
        st = compile_one(&one, DT_SCHED_FIXED, wanted, &why, &other);
        if (st == DT_ERR_INFEASIBLE) /* that order waits for itself */
            continue;
        if (st != DT_OK)
            return dt_error_pass(err, &why);
        sooner = other.ns >= 0 && other.ns < best->ns;
        compiled_free(sooner ? best : &other, true);
        if (sooner)
            *best = other;
    }
    return DT_OK;
}

static enum dt_status compile_best(const struct dt_sched *in, enum wanted wanted,
                                   struct dt_error *err, struct compiled *out)
{
    enum dt_status st = DT_OK;

    DT_TRY(compile_one(in, DT_SCHED_FIXED, wanted, err, out));
    if (out->list_sooner)
        st = try_list(in, wanted, err, out);
    if (st == DT_OK && out->other_rules && wanted != GLANCE)
        st = try_rules(in, wanted, err, out);
    if (st != DT_OK)
        compiled_free(out, true);
    return st;
}

/* ---- eager forwards ---- */

enum dt_status dt_sched_ahead(const struct dt_plan *plan, const struct dt_model *model,
                              const struct dt_cluster *cluster, const struct dt_assignment *a,
                              struct dt_error *err, struct dt_plan **out)
{
    struct dt_work work[DT_MAX_MODULES];
    struct dt_plan *own;

    *out = NULL;
    if (plan->policy.warmup != DT_WARMUP_EAGER || dt_plan_is_ahead(plan))
        return DT_OK;
    own = dt_malloc(sizeof(*own));
    if (!own)
        return dt_error_nomem(err, "a plan");
    *own = *plan;
    for (int m = 0; m < a->n_modules; m++)
        work[m] = dt_assignment_charged(plan, a, m);
    dt_memory_ahead(own, model, cluster, work);
    *out = own;
    return DT_OK;
}

/* The program keeps the plan that it was made of. */
static enum dt_status keep_plan(struct dt_program *p, const struct dt_plan *plan,
                                struct dt_error *err)
{
    struct dt_plan *copy = DT_ARENA_NEW(&p->arena, struct dt_plan, 1);

    if (!copy)
        return dt_error_nomem(err, "a plan");
    *copy = *plan;
    p->plan = copy;
    return DT_OK;
}

enum dt_status dt_sched_compile_turns(const struct dt_plan *plan, const struct dt_model *model,
                                      const struct dt_cluster *cluster,
                                      const struct dt_assignment *a, struct dt_cost *cost,
                                      bool rules_alone, struct dt_error *err,
                                      struct dt_sched_bubbles *bubbles, struct dt_program **out)
{
    struct dt_sched in = {.plan = plan,
                          .model = model,
                          .cluster = cluster,
                          .a = a,
                          .cost = cost,
                          .rules_alone = rules_alone,
                          .tells = bubbles != NULL};
    struct dt_plan *ahead;
    struct compiled c;
    enum dt_status st;

    DT_TRY(dt_sched_ahead(plan, model, cluster, a, err, &ahead));
    in.plan = ahead ? ahead : plan;
    st = compile_best(&in, PROGRAM, err, &c); /* a failure leaves nothing */
    if (st == DT_OK) {
        st = ahead ? keep_plan(c.p, ahead, err) : DT_OK;
        compiled_free(&c, st != DT_OK);
    }
    if (st == DT_OK) {
        if (bubbles)
            *bubbles = c.bubbles;
        *out = c.p;
    }
    dt_free(ahead);
    return st;
}

enum dt_status dt_sched_compile(const struct dt_plan *plan, const struct dt_model *model,
                                const struct dt_cluster *cluster, const struct dt_assignment *a,
                                struct dt_cost *cost, struct dt_error *err, struct dt_program **out)
{
    return dt_sched_compile_turns(plan, model, cluster, a, cost, false, err, NULL, out);
}

static enum dt_status find_makespan(const struct dt_sched *as_is, enum wanted wanted,
                                    struct dt_error *err, int64_t *ns, int64_t *first_ns,
                                    bool *exact)
{
    struct dt_sched in = *as_is;
    struct dt_plan *ahead;
    struct compiled c;
    int64_t found;
    enum dt_status st;

    DT_TRY(dt_sched_ahead(in.plan, in.model, in.cluster, in.a, err, &ahead));
    in.plan = ahead ? ahead : in.plan;
    st = compile_best(&in, wanted, err, &c);
    if (st == DT_OK) {
        *exact = wanted != GLANCE || (c.other_rules == 0 && !c.bubbles_left &&
                                      !(in.rough_ns > 0 && c.first_ns > in.rough_ns));
        if (first_ns)
            *first_ns = c.first_ns;
        st = makespan(&in, &c, err, &found);
        compiled_free(&c, true);
    }
    dt_free(ahead);
    if (st == DT_OK)
        *ns = found;
    return st;
}

enum dt_status dt_sched_makespan(const struct dt_plan *plan, const struct dt_model *model,
                                 const struct dt_cluster *cluster, const struct dt_assignment *a,
                                 struct dt_cost *cost, struct dt_error *err, int64_t *ns)
{
    const struct dt_sched in = {
        .plan = plan, .model = model, .cluster = cluster, .a = a, .cost = cost};
    bool exact;

    return find_makespan(&in, MAKESPAN, err, ns, NULL, &exact);
}

enum dt_status dt_sched_glance(const struct dt_plan *plan, const struct dt_model *model,
                               const struct dt_cluster *cluster, const struct dt_assignment *a,
                               struct dt_cost *cost, int64_t limit_ns, int64_t rough_ns,
                               struct dt_error *err, int64_t *ns, int64_t *first_ns, bool *exact)
{
    const struct dt_sched in = {.plan = plan,
                                .model = model,
                                .cluster = cluster,
                                .a = a,
                                .cost = cost,
                                .limit_ns = limit_ns,
                                .rough_ns = rough_ns};

    return find_makespan(&in, GLANCE, err, ns, first_ns, exact);
}
