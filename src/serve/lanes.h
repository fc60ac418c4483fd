/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Whose turn it is.  Quick questions have a lane of their own, so that a slider does not wait for a thorough answer; a
 * column of a page that asks again is not told what it does not want to know any more. */
#ifndef DT_SERVE_LANES_H
#define DT_SERVE_LANES_H

#include <stdbool.h>
#include <stdint.h>

enum dt_serve_lane { DT_SERVE_LANE_QUICK, DT_SERVE_LANE_REST, DT_SERVE_LANE_N };
enum { DT_SERVE_WAITING_MAX = 48 };

struct dt_serve_wait { /* part of a visit (server.c) */
    enum dt_serve_lane lane;
    uint64_t client; /* 0: never outdated */
    int side;
    int64_t turn; /* the quick and the thorough question about one setting have the same */
    struct dt_serve_wait *next;
};
struct dt_serve_lanes {
    struct dt_serve_wait *first[DT_SERVE_LANE_N], *last[DT_SERVE_LANE_N];
    struct dt_serve_wait *running[DT_SERVE_LANE_N];
    int n; /* waiting, in all lanes */
};

/* Puts w at the end of its lane, and returns those that need no answer any more, taken out and linked by .next: older
 * ones of its column, or w itself if a newer one is here already.  Not in order to run: see dt_serve_lanes_outdated. */
struct dt_serve_wait *dt_serve_lanes_push(struct dt_serve_lanes *l, struct dt_serve_wait *w);
/* Takes the next one of a lane where none runs, which is running then; NULL = none. */
struct dt_serve_wait *dt_serve_lanes_next(struct dt_serve_lanes *l, enum dt_serve_lane lane);
/* Has the running one of the lane been overtaken by w? */
bool dt_serve_lanes_outdated(const struct dt_serve_lanes *l, enum dt_serve_lane lane,
                             const struct dt_serve_wait *w);
/* Out of wherever it is. */
void dt_serve_lanes_remove(struct dt_serve_lanes *l, struct dt_serve_wait *w);

#endif
