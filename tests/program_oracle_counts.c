/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The oracle of programs: parts of an operation, what a lane holds, credits, room beside guests' parameters. */
#include "program_oracle_impl.h"

#include "core/cost/memory.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* Cut forwards come first of their chunk, cut gradients last; their parts lie side by side. */
const char *oracle_parts(const struct judge *j, bool split)
{
    for (uint32_t i = 0; i < j->p->n_ops; i++) {
        const struct dt_op *o = &j->ops[i];

        int zero = j->p->plan->modules[o->module].zero;

        if (!work(o) || o->parts == 1)
            continue;
        if (o->part + 1 < o->parts &&
            (i + 1 >= j->p->n_ops || j->ops[i + 1].kind != o->kind || !same_mb(o, &j->ops[i + 1]) ||
             j->ops[i + 1].part != o->part + 1))
            return "parts apart";
        if (o->kind == DT_OP_BACKWARD && split)
            return "a backward in parts";
        for (uint32_t k = 0; zero < (o->kind == DT_OP_FORWARD ? 3 : 2) && k < j->p->n_ops; k++)
            if (j->ops[k].kind == o->kind && j->ops[k].lane == o->lane &&
                j->ops[k].chunk == o->chunk && j->ops[k].mb != o->mb &&
                (o->kind == DT_OP_FORWARD ? k < i : k > i))
                return "the cut one is not at the end";
    }
    return NULL;
}

bool oracle_comes_back(const struct judge *j, uint32_t lane)
{
    for (uint32_t i = 0; i < j->p->n_ops; i++)
        if (j->ops[i].kind == DT_OP_BACKWARD && j->ops[i].lane == lane)
            return true;
    return false;
}

/* The first part of the op of that kind of the same microbatch; DT_NONE. */
static uint32_t partner(const struct judge *j, const struct dt_op *o, enum dt_op_kind kind)
{
    for (uint32_t i = 0; i < j->p->n_ops; i++)
        if (j->ops[i].kind == kind && j->ops[i].part == 0 && same_mb(o, &j->ops[i]))
            return i;
    return DT_NONE;
}

/* When op i of the lane begins: microbatches between their `from` and their `to`. */
static int between(const struct judge *j, uint32_t i, enum dt_op_kind from, enum dt_op_kind to)
{
    const struct dt_lane *l = &j->p->lanes[j->ops[i].lane];
    int n = 0;

    for (uint32_t k = l->first; k <= i; k++) {
        uint32_t end =
            j->ops[k].kind == from && j->ops[k].part == 0 ? partner(j, &j->ops[k], to) : DT_NONE;

        n += end != DT_NONE && end > i;
    }
    return n;
}

/* The microbatch of op o is one of two parts of a position (Entrain): op x is of the other one. */
static bool other_part(const struct judge *j, const struct dt_op *o, const struct dt_op *x)
{
    const struct dt_assignment_module *a = &j->p->assignment->m[o->module];
    uint32_t low = o->mb < x->mb ? o->mb : x->mb, at = a->mb_first[o->replica] + low + 1;

    if (!a->parts || x->module != o->module || x->replica != o->replica || x->stage != o->stage ||
        x->chunk != o->chunk || o->mb + x->mb != 2 * low + 1)
        return false;
    return at + 1 < a->mb_first[o->replica + 1] && a->mb[at].slot == a->mb[at + 1].slot &&
           a->mb[at - 1].slot < a->mb[at].slot;
}

/* When op i of the lane begins: positions between the first forward of their parts and the last backward. */
static int held(const struct judge *j, uint32_t i)
{
    const struct dt_lane *l = &j->p->lanes[j->ops[i].lane];
    int n = 0;

    for (uint32_t k = l->first; k <= i; k++) {
        bool counts = j->ops[k].kind == DT_OP_FORWARD && j->ops[k].part == 0;
        uint32_t end = counts ? partner(j, &j->ops[k], DT_OP_BACKWARD) : DT_NONE;
        bool open = end != DT_NONE && end > i;

        for (uint32_t x = l->first; counts && x < l->first + l->n; x++) {
            if (!other_part(j, &j->ops[k], &j->ops[x]) || j->ops[x].part > 0)
                continue;
            counts = !(j->ops[x].kind == DT_OP_FORWARD && x < k);
            open |= j->ops[x].kind == DT_OP_BACKWARD && x > i;
        }
        n += counts && open;
    }
    return n;
}

const char *oracle_in_flight(const struct judge *j, uint32_t lane)
{
    const struct dt_lane *l = &j->p->lanes[lane];
    const uint32_t *first = &j->p->assignment->m[l->module].mb_first[l->replica];
    int64_t n = first[1] - first[0];

    for (uint32_t i = l->first; i < l->first + l->n; i++) {
        if (!work(&j->ops[i]) || j->ops[i].part > 0)
            continue;
        if (held(j, i) > (int)l->in_flight_max)
            return "holds too much";
        if (between(j, i, DT_OP_BACKWARD, DT_OP_WEIGHT_GRAD) >
            dt_memory_deferred(j->p->plan, j->model, l->module, l->stage, n))
            return "puts off too much";
        if (held(j, i) + between(j, i, DT_OP_BACKWARD, DT_OP_WEIGHT_GRAD) >
            dt_memory_held(j->p->plan, j->model, l->module, l->stage, n))
            return "holds too much until weight gradients";
    }
    return NULL;
}

/* A lane without backwards: forward k waits for the readers of what forward k - bound sent. */
const char *oracle_credits(const struct judge *j, uint32_t lane)
{
    const struct dt_lane *l = &j->p->lanes[lane];
    uint32_t order[OPS], n = 0;

    for (uint32_t i = l->first; i < l->first + l->n; i++)
        if (j->ops[i].kind == DT_OP_FORWARD && j->ops[i].part == 0)
            order[n++] = i;
    for (uint32_t k = l->in_flight_max; k < n; k++)
        for (uint32_t i = l->first; i < l->first + l->n; i++) {
            const struct dt_op *to = &j->ops[j->ops[i].kind == DT_OP_SEND ? j->ops[i].peer : 0];

            if (j->ops[i].kind != DT_OP_SEND ||
                !same_mb(&j->ops[i], &j->ops[order[k - l->in_flight_max]]))
                continue;
            for (uint32_t f = 0; f < j->p->n_ops; f++)
                if (j->ops[f].kind == DT_OP_FORWARD && same_mb(to, &j->ops[f]) &&
                    !has_ended(j, f, order[k]))
                    return "runs ahead";
        }
    return NULL;
}

/* What completes the microbatch of forward f; DT_NONE. */
static uint32_t completes(const struct judge *j, uint32_t f)
{
    uint32_t w = partner(j, &j->ops[f], DT_OP_WEIGHT_GRAD);

    return w != DT_NONE ? w : partner(j, &j->ops[f], DT_OP_BACKWARD);
}

/* Microbatches of the lane of op i that are held behind it. */
static int open_at(const struct judge *j, uint32_t i)
{
    int n = 0;

    for (uint32_t k = j->p->lanes[j->ops[i].lane].first; k <= i; k++)
        if (j->ops[k].kind == DT_OP_FORWARD && j->ops[k].part == 0 && completes(j, k) != DT_NONE)
            n += completes(j, k) > i;
    return n;
}

/* Beside parameters that op `away` takes to the host, or brings back, a host's lane holds no more than it is charged for. */
static bool fits_beside(const struct judge *j, uint32_t away, uint32_t i)
{
    const struct dt_op *o = &j->ops[i], *x = &j->ops[away];
    const struct dt_lane *l = &j->p->lanes[o->lane];
    const uint32_t *first = &j->p->assignment->m[l->module].mb_first[l->replica];
    int most = dt_memory_beside_guests(j->p->plan, j->model, l->module, l->stage,
                                       (int64_t)first[1] - first[0]);

    if (x->kind == DT_OP_OFFLOAD) {
        if (o->kind != DT_OP_FORWARD || o->part > 0 || open_at(j, i) <= most)
            return true;
        for (uint32_t f = 0; f < j->p->n_ops; f++)
            if (j->ops[f].kind == DT_OP_FORWARD && j->ops[f].lane == x->lane && !has_ended(j, f, i))
                return false;
        return has_ended(j, away, i);
    }
    for (uint32_t f = l->first; f < i; f++) /* i: the first part of what completes it */
        if (j->ops[f].kind == DT_OP_FORWARD && j->ops[f].part == 0 && completes(j, f) == i &&
            open_at(j, i - 1) > most && !has_ended(j, i + o->parts - 1u, away))
            return false;
    return true;
}

const char *oracle_links(const struct judge *j)
{
    for (uint32_t a = 0; a < j->p->n_ops; a++)
        for (uint32_t i = 0; link(&j->ops[a]) && i < j->p->n_ops; i++)
            if (j->ops[i].module == dt_plan_host(j->p->plan, j->ops[a].module) &&
                share_gpu(j->p, &j->ops[a], &j->ops[i]) && !fits_beside(j, a, i))
                return "no room beside a guest's parameters";
    return NULL;
}
