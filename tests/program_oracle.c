/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "program_oracle_impl.h"

#include "core/cost/memory.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* ---- copies ---- */

static void *copy_of(const void *from, size_t bytes)
{
    void *p = malloc(bytes + 1);

    ck_assert_ptr_nonnull(p);
    memcpy(p, from, bytes);
    return p;
}

struct oracle_copy oracle_copy(const struct dt_program *p)
{
    return (struct oracle_copy){copy_of(p->lanes, (size_t)p->n_lanes * sizeof(*p->lanes)),
                                copy_of(p->ops, p->n_ops * sizeof(*p->ops)),
                                copy_of(p->deps, p->n_deps * sizeof(*p->deps)),
                                copy_of(p->groups, p->n_groups * sizeof(*p->groups)),
                                copy_of(p->group_ops, p->n_group_ops * sizeof(*p->group_ops))};
}

void oracle_copy_free(struct oracle_copy *c)
{
    free(c->lanes);
    free(c->ops);
    free(c->deps);
    free(c->groups);
    free(c->group_ops);
}

void oracle_restore(struct dt_program *p, const struct oracle_copy *c)
{
    memcpy(p->lanes, c->lanes, (size_t)p->n_lanes * sizeof(*p->lanes));
    memcpy(p->ops, c->ops, p->n_ops * sizeof(*p->ops));
    memcpy(p->deps, c->deps, p->n_deps * sizeof(*p->deps));
    memcpy(p->groups, c->groups, p->n_groups * sizeof(*p->groups));
    memcpy(p->group_ops, c->group_ops, p->n_group_ops * sizeof(*p->group_ops));
}

/* ---- the judge ---- */

static bool coll(const struct dt_op *o)
{
    return o->kind == DT_OP_GRAD_SYNC || o->kind == DT_OP_GRAD_NORM ||
           o->kind == DT_OP_PARAM_GATHER;
}
static bool message(const struct dt_op *o)
{
    return o->kind == DT_OP_SEND || o->kind == DT_OP_RECV;
}
static bool p2p(const struct dt_op *o)
{
    return message(o) || o->kind == DT_OP_FETCH;
}
static bool computes(const struct dt_op *o)
{
    return work(o) || o->kind == DT_OP_STEP;
}
/* May one of a lane name one of another? */
static bool may_name(const struct dt_program *p, const struct dt_op *a, const struct dt_op *b)
{
    if (computes(a) && computes(b))
        return true;
    return (computes(a) || link(a)) && (computes(b) || link(b)) && b->lane < (uint32_t)p->n_lanes &&
           share_gpu(p, a, b);
}
static int queue_of(const struct dt_op *o)
{
    return link(o) ? 4 : coll(o) ? 0 : o->kind == DT_OP_SEND ? 1 : p2p(o) ? 2 : 3;
}

/* The k-th thing that op i names; DT_NONE ends the list, DT_NONE - 1 is an empty place. */
static uint32_t names(const struct dt_program *p, uint32_t i, uint32_t k)
{
    const struct dt_op *o = &p->ops[i];

    uint32_t d;

    if (k >= 3u + o->more_n)
        return DT_NONE;
    d = k < 3 ? o->dep[k] : p->deps[o->more_first + k - 3];
    return d == DT_NONE ? DT_NONE - 1 : d;
}

static const char *indices(const struct dt_program *p)
{
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct dt_op *o = &p->ops[i];

        if (o->kind >= DT_OP_KIND_N || o->lane >= (uint32_t)p->n_lanes)
            return "no such kind or lane";
        if (i < p->lanes[o->lane].first || i >= p->lanes[o->lane].first + p->lanes[o->lane].n)
            return "not where its lane is";
        if (o->module != p->lanes[o->lane].module || o->stage != p->lanes[o->lane].stage ||
            o->replica != p->lanes[o->lane].replica ||
            o->chunk >= p->plan->modules[o->module].layout.vpp)
            return "not what its lane is";
        if (o->more_n > 0 && o->more_first + (uint64_t)o->more_n > p->n_deps)
            return "list of dependencies";
        for (uint32_t k = 0, d; (d = names(p, i, k)) != DT_NONE; k++)
            if (d != DT_NONE - 1 &&
                (d >= p->n_ops || (p->ops[d].lane != o->lane && !may_name(p, o, &p->ops[d]))))
                return "waits for nothing, or for another lane without computing";
        if (message(o) && o->peer >= p->n_ops)
            return "no peer";
        if (coll(o) && o->peer >= p->n_groups)
            return "no group";
    }
    return NULL;
}

static const char *queues(const struct dt_program *p)
{
    for (int l = 0; l < p->n_lanes; l++) {
        uint32_t last[5] = {DT_NONE, DT_NONE, DT_NONE, DT_NONE, DT_NONE};

        for (uint32_t i = p->lanes[l].first; i < p->lanes[l].first + p->lanes[l].n; i++) {
            uint32_t *at = &last[queue_of(&p->ops[i])];

            if (p->ops[i].dep[0] != *at)
                return "not behind the op before it";
            *at = i;
        }
    }
    return NULL;
}

/* ---- the same ops ---- */

struct name {
    uint64_t word[12];
};

/* What an op is, wherever it stands. */
static struct name name_of(const struct dt_program *p, const struct dt_op *o)
{
    struct name n = {{o->kind, o->lane}};

    if (work(o) || p2p(o))
        n.word[2] = (uint64_t)o->mb << 8 | o->chunk;
    if (work(o) || o->kind == DT_OP_GRAD_SYNC || o->kind == DT_OP_PARAM_GATHER)
        n.word[3] = (uint64_t)o->part << 8 | o->parts;
    if (coll(o))
        n.word[2] = (uint64_t)o->mb << 8 | o->chunk;
    if (o->kind == DT_OP_GRAD_NORM || link(o))
        n.word[2] = o->mb;
    if (link(o)) {
        n.word[3] = (uint64_t)o->part << 8 | o->parts;
        n.word[4] = o->bytes;
        n.word[5] = o->peer;
    }
    if (message(o) || coll(o)) {
        n.word[4] = o->bytes;
        n.word[5] = o->flags;
    }
    if (message(o)) {
        const struct dt_op *x = &p->ops[o->peer];

        n.word[6] = (uint64_t)x->lane << 32 | x->kind;
        n.word[7] = (uint64_t)x->mb << 8 | x->chunk;
        n.word[8] = x->peer == (uint32_t)(o - p->ops);
        n.word[9] = (uint64_t)x->bytes;
        n.word[10] = x->flags;
    }
    return n;
}

static int by_name(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct name));
}

static struct name *all_names(const struct dt_program *p)
{
    struct name *n = malloc((p->n_ops + 1) * sizeof(*n));

    ck_assert_ptr_nonnull(n);
    for (uint32_t i = 0; i < p->n_ops; i++)
        n[i] = name_of(p, &p->ops[i]);
    qsort(n, p->n_ops, sizeof(*n), by_name);
    return n;
}

/* Members of all groups by name: of the norm in any order, else in theirs. */
static struct name *all_members(const struct dt_program *p)
{
    struct name *n = calloc(p->n_group_ops + 1, sizeof(*n));
    uint32_t at = 0;

    ck_assert_ptr_nonnull(n);
    for (uint32_t g = 0; g < p->n_groups; g++)
        for (uint32_t k = 0; k < p->groups[g].n && at < p->n_group_ops; k++) {
            const struct dt_op *o = &p->ops[p->group_ops[p->groups[g].first + k]];
            const struct dt_op *one = &p->ops[p->group_ops[p->groups[g].first]];

            n[at] = name_of(p, o);
            if (p->groups[g].kind != DT_OP_GRAD_NORM) {
                n[at].word[6] = k;
                n[at].word[7] = (uint64_t)one->lane << 32 | (uint64_t)one->part << 8 | one->chunk;
                n[at].word[9] = one->bytes;
                n[at].word[10] = one->flags;
                n[at].word[11] = one->mb;
            }
            n[at].word[8] = (uint64_t)p->groups[g].n << 8 | p->groups[g].kind;
            at++;
        }
    qsort(n, p->n_group_ops, sizeof(*n), by_name);
    return n;
}

static const char *groups(const struct dt_program *p)
{
    uint32_t *times = calloc(p->n_ops + 1, sizeof(*times));
    const char *wrong = NULL;

    ck_assert_ptr_nonnull(times);
    for (uint32_t g = 0; g < p->n_groups && !wrong; g++) {
        if (p->groups[g].first + (uint64_t)p->groups[g].n > p->n_group_ops)
            wrong = "group past the end";
        for (uint32_t k = 0; k < p->groups[g].n && !wrong; k++) {
            uint32_t i = p->group_ops[p->groups[g].first + k];

            if (i >= p->n_ops || !coll(&p->ops[i]) || p->ops[i].peer != g)
                wrong = "member that is none";
            else
                times[i]++;
        }
    }
    for (uint32_t i = 0; i < p->n_ops && !wrong; i++)
        if (coll(&p->ops[i]) && times[i] != 1)
            wrong = "not once in a group";
    free(times);
    return wrong;
}

static const char *same_ops(const struct dt_program *p, const struct oracle_copy *was)
{
    struct dt_program old = *p;
    struct name *a, *b;
    bool same;

    old.ops = was->ops;
    old.groups = was->groups;
    old.group_ops = was->group_ops;
    a = all_names(p);
    b = all_names(&old);
    same = memcmp(a, b, p->n_ops * sizeof(*a)) == 0;
    free(a);
    free(b);
    if (!same)
        return "other ops";
    a = all_members(p);
    b = all_members(&old);
    same = memcmp(a, b, p->n_group_ops * sizeof(*a)) == 0;
    free(a);
    free(b);
    return same ? NULL : "other groups";
}

/* ---- the table ---- */

static bool can_place(const struct judge *j, uint32_t i)
{
    for (uint32_t k = 0, d; (d = names(j->p, i, k)) != DT_NONE; k++)
        if (d != DT_NONE - 1 && !j->placed[d])
            return false;
    return j->ops[i].kind != DT_OP_RECV || j->placed[j->ops[i].peer];
}

/* What has ended before what op i names, and that itself.  A message's turn is not waited for. */
static void inherit(struct judge *j, uint32_t i, uint64_t *row)
{
    for (uint32_t k = 0, d; (d = names(j->p, i, k)) != DT_NONE; k++) {
        if (d == DT_NONE - 1 || (p2p(&j->ops[i]) && p2p(&j->ops[d]) && d != j->ops[i].peer))
            continue;
        for (size_t w = 0; w < j->words; w++)
            row[w] |= j->ended[d * j->words + w];
        row[d / 64] |= UINT64_C(1) << d % 64;
    }
    if (j->ops[i].kind == DT_OP_RECV)
        for (size_t w = 0; w < j->words; w++)
            row[w] |= j->ended[j->ops[i].peer * j->words + w];
}

static bool place(struct judge *j, uint32_t i)
{
    const struct dt_group *g = coll(&j->ops[i]) ? &j->p->groups[j->ops[i].peer] : NULL;
    const uint32_t *m = g ? &j->p->group_ops[g->first] : &i;
    uint32_t n = g ? g->n : 1;

    for (uint32_t k = 0; k < n; k++)
        if (!can_place(j, m[k]))
            return false;
    for (uint32_t k = 0; k < n; k++)
        inherit(j, m[k], &j->ended[m[0] * j->words]);
    for (uint32_t k = 0; k < n; k++) {
        if (k > 0)
            memcpy(&j->ended[m[k] * j->words], &j->ended[m[0] * j->words],
                   j->words * sizeof(*j->ended));
        j->placed[m[k]] = true;
    }
    return true;
}

static const char *fill_table(struct judge *j)
{
    uint32_t left = j->p->n_ops;
    bool moved = true;

    while (moved) {
        moved = false;
        for (uint32_t i = 0; i < j->p->n_ops; i++)
            if (!j->placed[i] && place(j, i))
                moved = true;
    }
    for (uint32_t i = 0; i < j->p->n_ops; i++)
        left -= j->placed[i];
    return left > 0 ? "circle" : NULL;
}

/* ---- what must have ended ---- */

/* Must a have ended before b begins? */
static bool must(const struct dt_program *p, const struct dt_op *a, const struct dt_op *b,
                 bool split)
{
    const struct dt_plan_policy *y = &p->plan->policy;
    enum dt_op_kind last = split ? DT_OP_WEIGHT_GRAD : DT_OP_BACKWARD;
    bool grad = (message(a) || message(b)) && ((message(a) ? a : b)->flags & DT_OPF_GRAD);

    if (b->kind == DT_OP_SEND)
        return same_mb(a, b) && a->kind == (grad ? DT_OP_BACKWARD : DT_OP_FORWARD);
    if (a->kind == DT_OP_RECV)
        return same_mb(a, b) && b->part == 0 && b->kind == (grad ? DT_OP_BACKWARD : DT_OP_FORWARD);
    if (a->kind == DT_OP_FETCH)
        return same_mb(a, b) && b->part == 0 && b->kind == DT_OP_FORWARD;
    if (a->lane != b->lane)
        return false;
    if (work(a) && work(b) && p->plan->modules[a->module].layout.pp == 1 && a->mb == b->mb &&
        a->kind == b->kind && a->kind != DT_OP_WEIGHT_GRAD && b->part == 0)
        return a->kind == DT_OP_FORWARD ? a->chunk + 1 == b->chunk : a->chunk == b->chunk + 1;
    if (a->kind == DT_OP_FORWARD && b->kind == DT_OP_BACKWARD)
        return same_mb(a, b);
    if (a->kind == DT_OP_BACKWARD && b->kind == DT_OP_WEIGHT_GRAD)
        return same_mb(a, b);
    if (a->kind == DT_OP_PARAM_GATHER && a->mb != DT_NONE && b->kind != DT_OP_GRAD_NORM)
        return same_mb(a, b) &&
               b->kind == (a->flags & DT_OPF_GRAD ? DT_OP_BACKWARD : DT_OP_FORWARD) &&
               b->part >= a->part;
    if (b->kind == DT_OP_GRAD_SYNC && b->mb != DT_NONE)
        return a->kind == last && same_mb(a, b) && a->part <= b->part;
    if (a->kind == DT_OP_PARAM_GATHER && b->kind == DT_OP_FORWARD)
        return !y->overlap_param || (a->chunk == b->chunk && (b->parts == 1 || b->part >= a->part));
    if (b->kind == DT_OP_GRAD_SYNC && work(a) && !y->overlap_grad && !(b->flags & DT_OPF_TIED))
        return true;
    if (b->kind == DT_OP_GRAD_SYNC && a->kind == last)
        return a->chunk == b->chunk &&
               (a->parts == 1 || (b->flags & DT_OPF_TIED) || a->part <= b->part);
    if (b->kind == DT_OP_GRAD_SYNC && a->kind == DT_OP_GRAD_SYNC)
        return (b->flags & DT_OPF_TIED) && !(a->flags & DT_OPF_TIED);
    if (b->kind == DT_OP_GRAD_NORM)
        return a->kind == DT_OP_GRAD_SYNC || a->kind == DT_OP_BACKWARD ||
               a->kind == DT_OP_WEIGHT_GRAD || a->kind == DT_OP_PARAM_GATHER;
    if (b->kind == DT_OP_STEP)
        return work(a) || a->kind == DT_OP_GRAD_NORM || a->kind == DT_OP_RELOAD;
    if (b->kind == DT_OP_OFFLOAD)
        return a->kind == DT_OP_PARAM_GATHER;
    if (b->kind == DT_OP_RELOAD)
        return a->kind == DT_OP_FORWARD || a->kind == DT_OP_OFFLOAD;
    if (a->kind == DT_OP_RELOAD)
        return b->kind == DT_OP_BACKWARD || b->kind == DT_OP_WEIGHT_GRAD;
    return false;
}

static bool goes_away(const struct dt_plan *p, int module)
{
    return p->modules[module].offload == DT_OFFLOAD_PARAMETERS ||
           p->modules[module].offload == DT_OFFLOAD_ALL;
}
static bool in_phases(const struct dt_plan *p, int module)
{
    return p->modules[module].phases || goes_away(p, module);
}

/* Of two on one GPU, must y come behind x as an encoder in phases is there: its forwards, the others' work, its backwards? */
static bool later_phase(const struct dt_program *p, const struct dt_op *x, const struct dt_op *y)
{
    bool mine = in_phases(p->plan, x->module), theirs = in_phases(p->plan, y->module);

    if (!work(x) || !work(y))
        return false;
    if (mine)
        return x->kind == DT_OP_FORWARD && !(theirs && y->kind == DT_OP_FORWARD);
    return theirs && y->kind != DT_OP_FORWARD;
}

/* Of two on one GPU: do both use its host link, in one direction?  (A step on the host does both ways.) */
static bool on_link(const struct dt_program *p, const struct dt_op *x)
{
    enum dt_plan_offload o = p->plan->modules[x->module].offload;

    return x->kind == DT_OP_OFFLOAD || x->kind == DT_OP_RELOAD ||
           (x->kind == DT_OP_STEP && (o == DT_OFFLOAD_OPTIMIZER || o == DT_OFFLOAD_ALL));
}
static bool one_way(const struct dt_program *p, const struct dt_op *x, const struct dt_op *y)
{
    return on_link(p, x) && on_link(p, y) &&
           (x->kind == y->kind || x->kind == DT_OP_STEP || y->kind == DT_OP_STEP);
}

/* Every SEND names its producer second and comes behind it, after other SENDs of it at most. */
static const char *sends(const struct judge *j)
{
    for (uint32_t i = 0; i < j->p->n_ops; i++) {
        uint32_t k = i;

        if (j->ops[i].kind != DT_OP_SEND)
            continue;
        while (k > 0 && j->ops[k].kind == DT_OP_SEND)
            k--;
        if (j->ops[i].dep[1] != k || !must(j->p, &j->ops[k], &j->ops[i], false) ||
            j->ops[k].part + 1 != j->ops[k].parts)
            return "a message away from its producer";
    }
    return NULL;
}

static const char *pairs(const struct judge *j, bool split)
{
    bool phases = false;

    for (int m = 0; m < j->p->plan->n_modules; m++)
        phases |= in_phases(j->p->plan, m);
    for (uint32_t a = 0; a < j->p->n_ops; a++)
        for (uint32_t b = 0; b < j->p->n_ops; b++) {
            const struct dt_op *x = &j->ops[a], *y = &j->ops[b];

            if (a == b)
                continue;
            if (must(j->p, x, y, split) && !has_ended(j, a, b))
                return "too early";
            if (a < b && computes(x) && computes(y) && share_gpu(j->p, x, y) &&
                !has_ended(j, a, b) && !has_ended(j, b, a))
                return "two at once on a GPU";
            if (a < b && one_way(j->p, x, y) && share_gpu(j->p, x, y) && !has_ended(j, a, b) &&
                !has_ended(j, b, a))
                return "two at once on a GPU's host link";
            if (phases && share_gpu(j->p, x, y) && later_phase(j->p, x, y) && has_ended(j, b, a))
                return "in a later phase";
            if (a < b && x->kind == DT_OP_SEND && y->kind == DT_OP_SEND && x->lane == y->lane &&
                j->ops[x->peer].lane == j->ops[y->peer].lane && x->peer > y->peer)
                return "messages overtake each other";
        }
    return NULL;
}

/* Collectives of each microbatch: no more parts are gathered, nor have gradients that are not reduced, than there is room
 * for. */
static const char *windows(const struct judge *j, uint32_t lane, bool split)
{
    const struct dt_lane *l = &j->p->lanes[lane];
    const struct dt_plan_policy *y = &j->p->plan->policy;
    uint32_t part[OPS], sync[OPS], parts = 0, grads = 0, last = DT_NONE;
    bool own[256] = {false};

    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (coll(&j->ops[i]) && j->ops[i].mb != DT_NONE)
            own[j->ops[i].chunk] = true;
    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        const struct dt_op *o = &j->ops[i];
        bool makes = o->kind == (split ? DT_OP_WEIGHT_GRAD : DT_OP_BACKWARD) && own[o->chunk];
        uint32_t lead = y->overlap_param ? 2 : 1, room = y->overlap_grad && o->parts > 1 ? 2 : 1;

        if (!work(o))
            continue;
        for (uint32_t k = l->first; k < l->first + l->n; k++) {
            const struct dt_op *x = &j->ops[k];
            bool mine = coll(x) && x->mb != DT_NONE && same_mb(x, o) && x->part == o->part;

            if (mine && x->kind == DT_OP_PARAM_GATHER && parts >= lead &&
                o->kind == (x->flags & DT_OPF_GRAD ? DT_OP_BACKWARD : DT_OP_FORWARD) &&
                !has_ended(j, part[parts - lead], k))
                return "gathers too early";
        }
        if (makes && grads >= room && sync[grads - room] != DT_NONE &&
            !has_ended(j, sync[grads - room], i))
            return "too much to reduce";
        if (!y->overlap_grad && last != DT_NONE && !has_ended(j, last, i))
            return "computes beside a sync";
        part[parts++] = i;
        if (!makes)
            continue;
        sync[grads] = DT_NONE;
        for (uint32_t k = l->first; k < l->first + l->n; k++)
            if (j->ops[k].kind == DT_OP_GRAD_SYNC && j->ops[k].mb != DT_NONE &&
                same_mb(&j->ops[k], o) && j->ops[k].part == o->part)
                sync[grads] = k;
        last = sync[grads];
        grads++;
    }
    return NULL;
}

/* ---- all of it ---- */

static const char *orders(struct judge *j, bool split)
{
    const char *wrong = fill_table(j);

    wrong = wrong ? wrong : sends(j);
    wrong = wrong ? wrong : pairs(j, split);
    wrong = wrong ? wrong : oracle_parts(j, split);
    wrong = wrong ? wrong : oracle_links(j);
    for (uint32_t l = 0; l < (uint32_t)j->p->n_lanes && !wrong; l++)
        if (!(wrong = windows(j, l, split)))
            wrong = oracle_comes_back(j, l) ? oracle_in_flight(j, l) : oracle_credits(j, l);
    return wrong;
}

const char *oracle_judge(const struct dt_program *p, const struct dt_model *m,
                         const struct oracle_copy *was)
{
    struct judge j = {.p = p, .model = m, .ops = p->ops, .words = p->n_ops / 64 + 1};
    const char *wrong;
    bool split = false;

    if (memcmp(p->lanes, was->lanes, (size_t)p->n_lanes * sizeof(*p->lanes)) != 0)
        return "other lanes";
    if ((wrong = indices(p)) || (wrong = queues(p)) || (wrong = groups(p)) ||
        (wrong = same_ops(p, was)))
        return wrong;
    for (uint32_t i = 0; i < p->n_ops; i++)
        split |= was->ops[i].kind == DT_OP_WEIGHT_GRAD;
    j.ended = calloc((size_t)p->n_ops * j.words + 1, sizeof(*j.ended));
    j.placed = calloc(p->n_ops + 1, sizeof(*j.placed));
    ck_assert(j.ended && j.placed);
    wrong = orders(&j, split);
    free(j.ended);
    free(j.placed);
    return wrong;
}
