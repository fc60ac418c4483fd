/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "serve/lanes.h"

#include <stddef.h>

/* a is of an earlier setting of the same column than b */
static bool older(const struct dt_serve_wait *a, const struct dt_serve_wait *b)
{
    return a->client != 0 && a->client == b->client && a->side == b->side && a->turn < b->turn;
}

/* Takes out what comes after `before` (NULL: the first). */
static struct dt_serve_wait *take(struct dt_serve_lanes *l, int lane, struct dt_serve_wait *before)
{
    struct dt_serve_wait *w = before ? before->next : l->first[lane];

    if (before)
        before->next = w->next;
    else
        l->first[lane] = w->next;
    if (l->last[lane] == w)
        l->last[lane] = before;
    w->next = NULL;
    l->n--;
    return w;
}

static bool overtaken(const struct dt_serve_lanes *l, const struct dt_serve_wait *w)
{
    for (int lane = 0; lane < DT_SERVE_LANE_N; lane++) {
        if (l->running[lane] && older(w, l->running[lane]))
            return true;
        for (const struct dt_serve_wait *x = l->first[lane]; x; x = x->next)
            if (older(w, x))
                return true;
    }
    return false;
}

struct dt_serve_wait *dt_serve_lanes_push(struct dt_serve_lanes *l, struct dt_serve_wait *w)
{
    struct dt_serve_wait *out = NULL;

    w->next = NULL;
    if (overtaken(l, w))
        return w;
    for (int lane = 0; lane < DT_SERVE_LANE_N; lane++)
        for (struct dt_serve_wait *before = NULL, *x = l->first[lane]; x;) {
            struct dt_serve_wait *next = x->next;

            if (older(x, w)) {
                take(l, lane, before);
                x->next = out;
                out = x;
            } else {
                before = x;
            }
            x = next;
        }
    if (l->last[w->lane])
        l->last[w->lane]->next = w;
    else
        l->first[w->lane] = w;
    l->last[w->lane] = w;
    l->n++;
    return out;
}

struct dt_serve_wait *dt_serve_lanes_next(struct dt_serve_lanes *l, enum dt_serve_lane lane)
{
    if (l->running[lane] || !l->first[lane])
        return NULL;
    l->running[lane] = take(l, lane, NULL);
    return l->running[lane];
}

bool dt_serve_lanes_outdated(const struct dt_serve_lanes *l, enum dt_serve_lane lane,
                             const struct dt_serve_wait *w)
{
    return l->running[lane] && older(l->running[lane], w);
}

void dt_serve_lanes_remove(struct dt_serve_lanes *l, struct dt_serve_wait *w)
{
    for (int lane = 0; lane < DT_SERVE_LANE_N; lane++) {
        if (l->running[lane] == w)
            l->running[lane] = NULL;
        for (struct dt_serve_wait *before = NULL, *x = l->first[lane]; x; before = x, x = x->next)
            if (x == w) {
                take(l, lane, before);
                return;
            }
    }
}
