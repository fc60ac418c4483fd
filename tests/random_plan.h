/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Random graphs of modules with random plans, for tests of programs. */
#ifndef DT_TESTS_RANDOM_PLAN_H
#define DT_TESTS_RANDOM_PLAN_H

#include "sched_fixture.h"

static inline int sf_below(struct dt_rng *r, int n)
{
    return (int)dt_rng_below(r, (uint64_t)n);
}

/* Some modules as guests on the GPUs of others that are as large, the LLM among them; chains of guests, too. */
static inline void sf_random_guests(struct sched_fixture *s, uint64_t seed, int round)
{
    struct dt_plan *p = &s->plan;
    struct dt_rng r;

    dt_rng_init(&r, seed, 900000 + (uint64_t)round);
    if (p->colocated || sf_below(&r, 2))
        return;
    for (int m = 0; m < p->n_modules; m++) {
        int host = sf_below(&r, p->n_modules);

        for (int k = 0; k < 3 && host == m; k++)
            host = sf_below(&r, p->n_modules);
        if (host != m && dt_plan_host(p, host) != m &&
            dt_plan_layout_gpus(&p->modules[m].layout) <=
                dt_plan_layout_gpus(&p->modules[host].layout))
            p->modules[m].with = (uint8_t)(host + 1);
    }
}

/* Encoders whose replicas share the items of windows, generators whose replicas share those of slots, now and then more
 * replicas than samples. */
static inline void sf_random_windows(struct sched_fixture *s, uint64_t seed, int round)
{
    static const int windows[] = {1, 2, 3, 5, DT_PLAN_WINDOW_ALL};
    int64_t batch = s->plan.policy.global_batch;
    struct dt_rng r;

    dt_rng_init(&r, seed, 1900000 + (uint64_t)round);
    for (int m = 0; m < s->f.model.n_modules; m++) {
        if (m == s->f.model.llm || sf_below(&r, 2))
            continue;
        s->plan.modules[m].window = m < s->f.model.llm ? windows[sf_below(&r, 5)] : 1;
        if (batch < 20 && sf_below(&r, 4) == 0)
            s->plan.modules[m].layout.dp = (int)batch + 1 + sf_below(&r, 4);
    }
}

/* Every `every`-th block of the module that is a layer gets experts, dealt to ep ranks if they can be. */
static inline void sf_experts(struct sched_fixture *s, int m, int experts, int ep, int every)
{
    struct dt_module *mod = &s->f.model.modules[m];
    struct dt_plan_layout *l = &s->plan.modules[m].layout;

    for (int b = 1; b < mod->n_blocks - 1; b++)
        if (b % every == 0) {
            mod->blocks[b].n_experts = experts;
            mod->blocks[b].top_k = 2;
        }
    l->ep = dt_plan_allows_ep(mod, ep, l->dp * l->cp) ? ep : 1;
}

/* Model, plan and samples, with 1F1B or any other schedule of the table; `small`: fewer modules, lanes and microbatches. */
/* Collectives of each microbatch need slots that are aligned, and gathers of parameters backwards that are whole. */
static inline void sf_zero_allowed(struct sched_fixture *s)
{
    int most = dt_pipe_of(s->plan.policy.schedule)->put_off ? 2 : 3;

    for (int m = 0; m < s->plan.n_modules; m++)
        if ((s->plan.modules[m].layout.dp > dt_plan_slot_samples(&s->plan, s->f.model.llm) &&
             dt_plan_window(&s->plan, s->f.model.llm, m) == 0) ||
            dt_plan_window(&s->plan, s->f.model.llm, m) > 1)
            most = 1;
    for (int m = 0; m < s->plan.n_modules; m++)
        if (s->plan.modules[m].zero > most)
            s->plan.modules[m].zero = most;
}

/* Now and then Entrain's assignment, where encoders and schedule go with it; what else it asks for is made so. */
static inline void sf_random_entrain(struct sched_fixture *s, uint64_t seed, int round)
{
    struct dt_plan *p = &s->plan;
    struct dt_rng r;

    dt_rng_init(&r, seed, 2900000 + (uint64_t)round);
    if (s->f.model.llm == 0 || sf_below(&r, 2) > 0 || dt_plan_slots(p, s->f.model.llm) < 2 ||
        (p->policy.schedule != DT_SCHED_1F1B && p->policy.schedule != DT_SCHED_ZB_H1))
        return;
    p->policy.assignment = DT_ASSIGNMENT_ENTRAIN;
    p->colocated = false;
    for (int64_t i = 0; i < s->samples.n; i++) /* something to defer */
        s->text[i] = s->seq[i] = SF_SEQ >> sf_below(&r, 4);
    for (int m = 0; m < p->n_modules; m++) {
        p->modules[m].layout.dp = p->modules[s->f.model.llm].layout.dp;
        p->modules[m].with = 0;
        p->modules[m].window = 0;
        p->modules[m].phases = false;
        p->modules[m].zero = p->modules[m].zero > 1 ? 1 : p->modules[m].zero;
    }
}

/* Now and then modules with ZeRO 1 shard in groups. */
static inline void sf_random_zero_groups(struct sched_fixture *s, uint64_t seed, int round)
{
    struct dt_rng r;

    dt_rng_init(&r, seed, 5100000 + (uint64_t)round);
    for (int m = 0; m < s->plan.n_modules; m++) {
        struct dt_plan_module *mp = &s->plan.modules[m];
        int group = 1 + sf_below(&r, 6);

        if (mp->zero == 1 && mp->layout.ep == 1 && dt_plan_layout_copies(&mp->layout) % group == 0)
            mp->zero_group = group;
    }
}

/* Now and then encoders on GPUs of others that run in phases. */
static inline void sf_random_phases(struct sched_fixture *s, uint64_t seed, int round)
{
    struct dt_plan *p = &s->plan;
    struct dt_rng r;

    dt_rng_init(&r, seed, 4900000 + (uint64_t)round);
    for (int m = 0; m < p->n_modules; m++)
        if (p->modules[m].layout.vpp > 1)
            return;
    for (int m = 0; m < s->f.model.llm; m++)
        p->modules[m].phases = sf_below(&r, 2) && p->modules[m].window == 0 &&
                               (p->colocated || dt_plan_host(p, m) != m);
}

/* Now and then guests whose parameters are in the host's memory between phases. */
static inline void sf_random_offloads(struct sched_fixture *s, uint64_t seed, int round)
{
    struct dt_plan *p = &s->plan;
    bool windows =
        p->policy.assignment != DT_ASSIGNMENT_ENTRAIN && p->policy.warmup != DT_WARMUP_EAGER;
    struct dt_rng r;

    dt_rng_init(&r, seed, 6100000 + (uint64_t)round);
    for (int m = 0; m < p->n_modules; m++)
        windows &= p->modules[m].zero < 2;
    for (int m = 0; m < s->f.model.llm; m++) {
        if (windows && !p->modules[m].phases && dt_plan_host(p, m) != m && !p->colocated &&
            sf_below(&r, 2))
            p->modules[m].window = DT_PLAN_WINDOW_ALL;
        if (p->colocated || dt_plan_host(p, m) == m || p->modules[m].layout.vpp > 1 ||
            p->modules[m].zero > 2 ||
            (!p->modules[m].phases && dt_plan_microbatches(p, s->f.model.llm, m) > 1) ||
            sf_below(&r, 4) == 0)
            continue;
        p->modules[m].offload = sf_below(&r, 2) ? DT_OFFLOAD_ALL : DT_OFFLOAD_PARAMETERS;
        s->f.cluster.host_bytes_per_s = 25e9;
        s->f.cluster.host_mem_bytes_per_s = 200e9;
    }
}

/* Now and then eager forwards, as far ahead as chance will have it. */
static inline void sf_random_warmup(struct sched_fixture *s, uint64_t seed, int round)
{
    struct dt_plan *p = &s->plan;
    struct dt_rng r;

    dt_rng_init(&r, seed, 3900000 + (uint64_t)round);
    for (int m = 0; m < p->n_modules; m++)
        if (p->modules[m].window != 0)
            return;
    if (dt_plan_shares(p) || sf_below(&r, 2) > 0 ||
        (p->policy.schedule != DT_SCHED_1F1B && p->policy.schedule != DT_SCHED_ZB_H1))
        return;
    p->policy.warmup = DT_WARMUP_EAGER;
    for (int m = 0; m < p->n_modules; m++) {
        int most = 1 + sf_below(&r, 6);

        for (int e = 0; e < s->f.model.n_edges; e++) {
            const struct dt_plan_module *src = &p->modules[s->f.model.edges[e].src];
            int theirs = src->ahead[src->layout.pp - 1];

            if (s->f.model.edges[e].dst == m && theirs < most)
                most = theirs;
        }
        for (int k = 0; k < p->modules[m].layout.pp; k++) {
            most -= most > 0 && sf_below(&r, 3) == 0;
            p->modules[m].ahead[k] = (uint16_t)most;
        }
    }
}

static inline void sf_random(struct sched_fixture *s, uint64_t seed, int round, bool small)
{
    static const char *const names[] = {"e0", "e1", "e2", "g0", "g1"};
    static const int tps[] = {1, 2, 4, 8};
    struct dt_rng r;
    int encoders, generators, llm, dp, n, pp, vpp;
    enum dt_pipe_schedule schedule;

    dt_rng_init(&r, seed, 1000 + (uint64_t)round);
    sf_init(s);
    encoders = sf_below(&r, small ? 2 : 4);
    generators = sf_below(&r, small ? 2 : 3);
    for (int i = 0; i < encoders; i++)
        sf_encoder(s, names[i], 3 + sf_below(&r, 5));
    llm = sf_llm(s, 10);
    for (int i = 0; i < generators; i++)
        sf_generator(s, names[3 + i], 3 + sf_below(&r, 5));
    for (int i = 0; i < encoders; i++)
        sf_edge(s, i, llm);
    for (int i = 0; i < generators; i++)
        sf_edge(s, llm, llm + 1 + i);
    schedule = sf_below(&r, 2) ? DT_SCHED_1F1B : (enum dt_pipe_schedule)sf_below(&r, DT_SCHED_N);
    pp = 1 + sf_below(&r, 4);
    vpp = dt_pipe_of(schedule)->chunks && pp > 1 ? 1 + sf_below(&r, 3) : 1;
    dp = 1 + sf_below(&r, small ? 3 : 4);
    n = vpp > 1 ? 1 + sf_below(&r, pp * (small ? 2 : 4)) : 1 + sf_below(&r, small ? 6 : 12);
    sf_plan(s, (int64_t)n * dp * 2, 2, schedule);
    s->plan.policy.overlap_grad = sf_below(&r, 2);
    s->plan.policy.overlap_param = sf_below(&r, 2);
    for (int m = 0; m < s->f.model.n_modules; m++) {
        if (m == llm)
            sf_layout(s, m, tps[sf_below(&r, 4)], pp, vpp, dp);
        else
            sf_layout(s, m, tps[sf_below(&r, 3)], 1 + sf_below(&r, small ? 2 : 3), 1,
                      1 + sf_below(&r, 3 * dp < 2 * n * dp ? (small ? 2 : 3) * dp : 2 * n * dp));
        s->plan.modules[m].frozen = sf_below(&r, 3) == 0;
        s->plan.modules[m].zero = sf_below(&r, 4);
    }
    if (small) /* a table that the first and the last stage share */
        s->f.model.modules[llm].blocks[s->f.model.modules[llm].n_blocks - 1].tied = sf_below(&r, 2);
    s->plan.colocated = small && sf_below(&r, 4) == 0;
    sf_random_windows(s, seed, round);
    sf_random_guests(s, seed, round);
    sf_samples(s, (int64_t)n * dp * 2, 2, 2, sf_below(&r, 2), dt_rng_u64(&r));
    sf_zero_allowed(s);
    for (int m = 0; m < llm; m++)
        s->f.model.modules[m].merge = sf_below(&r, 3); /* 0 and 1: no merging */
    if (sf_below(&r, 3) == 0)
        sf_experts(s, llm, 4 << sf_below(&r, 2), 1 << sf_below(&r, 3), sf_below(&r, 2) + 1);
    sf_random_entrain(s, seed, round);
    sf_random_phases(s, seed, round);
    sf_random_zero_groups(s, seed, round);
    sf_random_warmup(s, seed, round);
    sf_random_offloads(s, seed, round);
}

#endif
