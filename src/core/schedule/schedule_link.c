/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/schedule/schedule_link.h"

#include "core/cost/memory.h"

static bool is_guest(const struct dt_sched *s, int module)
{
    return dt_plan_offloads_params(&s->plan->modules[module]);
}

int dt_sched_link_init(struct dt_sched *s)
{
    bool any = false;

    for (int m = 0; m < s->n_modules; m++)
        any |= is_guest(s, m);
    if (!any)
        return 0;
    s->link = DT_ARENA_NEW(&s->arena, struct dt_sched_link, (size_t)s->n_lanes + 1);
    if (!s->link)
        return -1;
    for (uint32_t l = 0; l < s->n_lanes; l++)
        s->link[l] = (struct dt_sched_link){
            .offload = DT_NONE, .reload = DT_NONE, .full = DT_NONE, .drained = DT_NONE};
    return 0;
}

static struct dt_sched_link *link_of(const struct dt_sched *s, const struct dt_sched_module *m,
                                     int replica, int stage)
{
    return s->link ? &s->link[m->lane_base + (uint32_t)(replica * m->pp + stage)] : NULL;
}

void dt_sched_link_begin(const struct dt_sched *s, const struct dt_sched_module *m, int replica,
                         int stage)
{
    struct dt_sched_link *h = link_of(s, m, replica, stage);
    int64_t n = m->mb_first[replica + 1] - m->mb_first[replica];

    if (h)
        h->most = (uint32_t)dt_memory_beside_guests(s->plan, s->model, m->index, stage, n);
}

void dt_sched_link_count(const struct dt_sched *s, const struct dt_sched_module *m, int replica,
                         int stage, uint32_t i, uint32_t end)
{
    struct dt_sched_link *h = link_of(s, m, replica, stage);
    uint32_t code = dt_sched_order(s, m, replica, stage)->code[i];
    const struct dt_sched_vstage *v;

    if (!h || !dt_plan_hosts_offload(s->plan, m->index))
        return;
    v = &m->v[(int)DT_CODE_CHUNK(code) * m->pp + stage];
    if (DT_CODE_KIND(code) == DT_CODE_FORWARD) {
        h->held += v->backward;
        if (h->held > h->most && h->full == DT_NONE)
            h->full = i;
    } else if (DT_CODE_KIND(code) == (v->split ? DT_CODE_WEIGHT : DT_CODE_BACKWARD)) {
        if (h->held-- == h->most + 1)
            h->drained = end;
    }
}

/* The k-th lane of a module on the GPUs of a lane, less those that there are; *n: how many those are. */
static uint32_t on_gpus(const struct dt_sched_module *m, const struct dt_plan_layout *y,
                        const struct dt_lane *l, uint32_t k, uint32_t *n)
{
    int64_t at = (int64_t)l->first_gpu - y->first_gpu, end = at + l->gpus;
    int64_t all = (int64_t)m->dp * m->pp * m->lane_gpus, first;

    *n = 0;
    at = at > 0 ? at : 0;
    end = end < all ? end : all;
    if (end <= at)
        return DT_NONE;
    first = at / m->lane_gpus;
    *n = (uint32_t)((end - 1) / m->lane_gpus - first + 1);
    first += k;
    return k < *n ? m->lane_base + (uint32_t)(first % m->dp * m->pp + first / m->dp) : DT_NONE;
}

static bool is_one(const struct dt_sched *s, int o, int module, enum dt_sched_link_who who)
{
    switch (who) {
    case DT_SCHED_LINK_GUESTS:
        return is_guest(s, o) && dt_plan_host(s->plan, o) == module;
    case DT_SCHED_LINK_HOSTS:
        return dt_plan_host(s->plan, module) == o;
    case DT_SCHED_LINK_SHARERS:
        break;
    }
    return is_guest(s, o) && o != module;
}

bool dt_sched_link_reloads_first(const struct dt_sched *s, uint32_t lane, uint32_t other)
{
    const struct dt_sched_link *a = &s->link[lane], *b = &s->link[other];

    return a->unasked != b->unasked ? b->unasked : lane < other;
}

uint32_t dt_sched_link_beside(const struct dt_sched *s, const struct dt_lane *l,
                              enum dt_sched_link_who who, uint32_t k)
{
    for (int o = 0; s->link && o < s->n_modules; o++) {
        uint32_t n, lane;

        if (!is_one(s, o, l->module, who))
            continue;
        lane = on_gpus(&s->m[o], s->m[o].layout, l, k, &n);
        if (lane != DT_NONE)
            return lane;
        k -= n;
    }
    return DT_NONE;
}
