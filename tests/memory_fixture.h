/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the memory model says of an opened fixture whose lanes are all of rank 0, or of each of its replicas. */
#ifndef DT_TESTS_MEMORY_FIXTURE_H
#define DT_TESTS_MEMORY_FIXTURE_H

#include "exec_fixture.h"

/* Of each module's largest microbatch, in its first stage. */
static inline void mf_stages(struct exec_fixture *f, enum dt_memory_device device,
                             struct dt_memory mem[DT_MAX_MODULES])
{
    const struct dt_sequence *seqs[EF_SEQS_MAX];
    struct dt_assignment *a;
    struct dt_samples *samples;

    for (int i = 0; i < f->n_seqs; i++)
        seqs[i] = f->seqs[i];
    dt_assert_ok(dt_batching_samples(seqs, f->n_seqs, &f->err, &samples), f->err);
    dt_assert_ok(dt_assign(&f->plan, f->model, f->cost, samples, 0, &f->err, &a), f->err);
    for (int m = 0; m < f->model->n_modules; m++) {
        const struct dt_assignment_module *x = &a->m[m];
        struct dt_work most = {0};

        for (uint32_t i = 0; i < x->mb_first[x->n_replicas]; i++)
            dt_work_most(&most, &x->work[i]);
        dt_memory_stage_on(device, &f->plan, f->model, &f->cluster, m, 0, &most, x->mb_first[1],
                           &mem[m]);
    }
    dt_assign_free(a);
    dt_samples_free(samples);
}

/* The scratch of kernels serves all lanes; *scratch (may be NULL) is it. */
static inline double mf_predicted(struct exec_fixture *f, enum dt_memory_device device,
                                  double *scratch_out)
{
    struct dt_memory mem[DT_MAX_MODULES];
    double sum = 0, scratch = 0, away = 0, beside = 0;

    mf_stages(f, device, mem);
    for (int m = 0; m < f->model->n_modules; m++) {
        away += mem[m].away;
        beside += mem[m].beside;
        sum += mem[m].total - mem[m].logits_workspace;
        scratch = mem[m].logits_workspace > scratch ? mem[m].logits_workspace : scratch;
    }
    if (scratch_out)
        *scratch_out = scratch;
    return sum + scratch - (away < beside ? away : beside);
}

/* In the host's memory, with the rooms of a rank that offloads. */
static inline double mf_predicted_host(struct exec_fixture *f, enum dt_memory_device device)
{
    struct dt_memory mem[DT_MAX_MODULES];
    double sum = 0;

    mf_stages(f, device, mem);
    for (int m = 0; m < f->model->n_modules; m++)
        sum += mem[m].host;
    return dt_plan_steps_on_host(&f->plan, f->model) ? sum + DT_MEMORY_HOST_ROOM : sum;
}

#endif
