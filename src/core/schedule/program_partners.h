/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Expert parallelism: which ops run together.  Lanes that an expert group links exchange rows inside their compute ops,
 * so the n-th ones of these lanes, which are of one stage and of neighbours among its replicas, begin together: ep
 * replicas with cp 1, one with an ep that divides cp, else lcm(ep, cp) / cp. */
#ifndef DT_CORE_SCHEDULE_PROGRAM_PARTNERS_H
#define DT_CORE_SCHEDULE_PROGRAM_PARTNERS_H

#include "core/schedule/program.h"

struct dt_program_partners {
    uint32_t *nth;     /* [ops] which compute op of its lane it is */
    uint32_t *compute; /* compute ops of every lane, in their order */
    uint32_t *first;   /* [lanes + 1] where a lane's begin */
    int32_t *lane;     /* [lanes][.]: of lane l's group, member k is lane[at[l] + k] */
    uint32_t *at;
    bool any; /* there is an expert group of several lanes */
};
/* In memory of the arena.  Without an expert group: nothing but `any`. */
enum dt_status dt_program_partners_find(const struct dt_program *p, struct dt_arena *a,
                                        struct dt_error *err, struct dt_program_partners *out);
/* How many ops run together with op i, itself included; 1 of an op that exchanges nothing, or with its own lane alone. */
int dt_program_partners_n(const struct dt_program *p, const struct dt_program_partners *g,
                          uint32_t i);
/* The k-th of them; DT_NONE: that lane runs something else then. */
uint32_t dt_program_partner(const struct dt_program *p, const struct dt_program_partners *g,
                            uint32_t i, int k);

#endif
