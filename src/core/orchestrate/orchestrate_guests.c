/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Layouts of guests on the GPUs of an LLM that is chosen, the least loaded first. */
#include "core/orchestrate/orchestrate_guests.h"

#include "base/number.h"

#include <limits.h>

/* Seconds of an iteration that a GPU of the guest works, and what its first microbatch takes. */
static double load_of(int64_t batch, int64_t slot, int64_t dp, double sample_s)
{
    int64_t mbs = dp > slot ? (batch + dp - 1) / dp : batch / slot * ((slot + dp - 1) / dp);
    int64_t first = dp > slot ? 1 : (slot + dp - 1) / dp;

    return (double)(mbs + first) * sample_s;
}

/* The least loaded layouts; each comes once. */
static void keep_layout(struct dt_orch_guest *o, int *n, const struct dt_orch_guest *x)
{
    int at = *n;

    if (at == DT_ORCH_GUEST_LAYOUTS && o[--at].load <= x->load)
        return;
    for (; at > 0 && o[at - 1].load > x->load; at--)
        o[at] = o[at - 1];
    o[at] = *x;
    *n += *n < DT_ORCH_GUEST_LAYOUTS;
}

/* The next number of replicas behind dp that may be worth a try; beyond `most` there are none. */
static int next_replicas(const struct dt_orch_table *t, int dp, int most, int stage)
{
    int whole = (dp / stage + 1) * stage, even = t->next_even[dp];
    int next = even < whole ? even : whole;

    if (most <= DT_ORCH_GUEST_FEW)
        return dp + 1;
    return dp < most && next > most ? most : next;
}

/* Numbers of replicas worth a try on `most` lanes: on few all; else the most, the most that share the batch evenly, the
 * most that share slots evenly, those that fill whole stages of the host, and those of a slot. */
static void replicas_of(const struct dt_orch_table *t, int most, int64_t slot, int stages,
                        struct dt_orch_guest *x, double sample_s, struct dt_orch_guest *o, int *n)
{
    int64_t batch = t->in->policy.global_batch;
    int stage;

    most = most < batch ? most : (int)batch;
    stage = most / dt_number_gcd(most, stages); /* replicas that fill stages to the last GPU */
    for (int dp = next_replicas(t, 0, most, stage); dp <= most;
         dp = next_replicas(t, dp, most, stage)) {
        bool even = batch % dp == 0, whole = dp % stage == 0;
        bool slots = even && (dp > slot ? dp % slot == 0 : slot % dp == 0);

        if (most > DT_ORCH_GUEST_FEW && dp != most && !(even && (slots || 4 * dp > 3 * most)) &&
            !whole)
            continue;
        x->of.dp = dp;
        x->load = load_of(batch, slot, dp, sample_s);
        x->pass = (double)(dp > slot ? 1 : (slot + dp - 1) / dp) * sample_s;
        keep_layout(o, n, x);
    }
}

/* The least number above each one that divides the batch. */
static bool find_even(struct dt_orch_table *t)
{
    int next = INT_MAX;

    t->next_even = DT_ARENA_NEW(&t->arena, int, t->gpus + 1);
    for (int dp = t->gpus; t->next_even && dp >= 0; dp--) {
        t->next_even[dp] = next;
        next = dp > 0 && t->in->policy.global_batch % dp == 0 ? dp : next;
    }
    t->nomem |= !t->next_even;
    return t->next_even != NULL;
}

int dt_orch_guest_layouts(struct dt_orch_table *t, const struct dt_orch_cand *c, int m, bool deep,
                          bool on_host, struct dt_orch_guest *o)
{
    const struct dt_orch_choice *llm = &c->of[t->in->model->llm];
    const struct dt_orch_space *s = &t->space;
    int64_t slot = (int64_t)llm->dp * s->microbatch[c->microbatch];
    int n = 0;

    if (!t->next_even && !find_even(t))
        return 0;
    for (int l = 0; l < s->of[m].n_lanes; l++)
        for (int r = 0; r < s->of[m].n_recompute; r++) {
            struct dt_orch_times *x = dt_orch_times_of(t, m, l, r, 0, s->pipe[c->pipe].split);
            int pp = deep ? llm->pp : 1;
            int most = c->gpus / (dt_orch_lane_gpus(&s->of[m].lane[l]) * pp);
            int z = dt_orch_state_of(&s->of[m], on_host);
            struct dt_orch_guest y = {.of = {.lane = (uint8_t)l,
                                             .recompute = (uint8_t)r,
                                             .zero = (uint8_t)(z > 0 ? z : 0),
                                             .pp = (int16_t)pp}};

            if (x && most > 0 && pp <= t->in->model->modules[m].n_blocks)
                replicas_of(t, most, slot, llm->pp / pp, &y, x->sample_s / pp, o, &n);
        }
    return n;
}

static void keep_combo(struct dt_orch_guest_combo *out, int *n, const struct dt_orch_guest_combo *c)
{
    int at = *n;

    if (at == DT_ORCH_GUEST_COMBOS && out[--at].load <= c->load)
        return;
    for (; at > 0 && out[at - 1].load > c->load; at--)
        out[at] = out[at - 1];
    out[at] = *c;
    *n += *n < DT_ORCH_GUEST_COMBOS;
}

int dt_orch_guest_combos(struct dt_orch_guest (*o)[DT_ORCH_GUEST_LAYOUTS], const int *n, int guests,
                         double slots, struct dt_orch_guest_combo *out)
{
    enum { ALL = DT_ORCH_GUEST_LAYOUTS };
    static const int cap_of[] = {0, ALL, ALL, 8, 4}; /* a few hundred in all */
    int cap = guests < 5 ? cap_of[guests] : 2, n_out = 0, g = 0;
    uint8_t at[DT_MAX_MODULES] = {0};

    while (g < guests) {
        struct dt_orch_guest_combo c = {0};

        for (int i = 0; i < guests; i++) {
            c.load += o[i][at[i]].load + slots * o[i][at[i]].pass;
            c.of[i] = at[i];
        }
        keep_combo(out, &n_out, &c);
        for (g = 0; g < guests && ++at[g] >= (n[g] < cap ? n[g] : cap); g++)
            at[g] = 0;
    }
    return n_out;
}
