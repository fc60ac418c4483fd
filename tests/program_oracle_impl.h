/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Between program_oracle.c, which says what must have ended before what, and program_oracle_counts.c, which counts. */
#ifndef DT_TESTS_PROGRAM_ORACLE_IMPL_H
#define DT_TESTS_PROGRAM_ORACLE_IMPL_H

#include "program_oracle.h"

struct judge {
    const struct dt_program *p;
    const struct dt_model *model;
    const struct dt_op *ops;
    uint64_t *ended; /* [op][op / 64]: has ended before it begins */
    size_t words;
    bool *placed;
};

enum { OPS = 4096 }; /* of a program, at most */

static inline bool work(const struct dt_op *o)
{
    return o->kind == DT_OP_FORWARD || o->kind == DT_OP_BACKWARD || o->kind == DT_OP_WEIGHT_GRAD;
}

static inline bool link(const struct dt_op *o)
{
    return o->kind == DT_OP_OFFLOAD || o->kind == DT_OP_RELOAD;
}

static inline bool share_gpu(const struct dt_program *p, const struct dt_op *a,
                             const struct dt_op *b)
{
    const struct dt_lane *x = &p->lanes[a->lane], *y = &p->lanes[b->lane];

    return x->first_gpu < y->first_gpu + y->gpus && y->first_gpu < x->first_gpu + x->gpus;
}

static inline bool has_ended(const struct judge *j, uint32_t before, uint32_t at)
{
    return j->ended[at * j->words + before / 64] >> before % 64 & 1;
}

static inline bool same_mb(const struct dt_op *a, const struct dt_op *b)
{
    return a->lane == b->lane && a->mb == b->mb && a->chunk == b->chunk;
}

/* Each NULL, or what is wrong. */
const char *oracle_parts(const struct judge *j, bool split);
bool oracle_comes_back(const struct judge *j, uint32_t lane);
const char *oracle_in_flight(const struct judge *j, uint32_t lane);
const char *oracle_credits(const struct judge *j, uint32_t lane);
const char *oracle_links(const struct judge *j);

#endif
