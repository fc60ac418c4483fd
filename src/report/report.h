/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Report: model FLOPs, MFU, HFU, throughput of an iteration. */
#ifndef DT_REPORT_REPORT_H
#define DT_REPORT_REPORT_H

#include "core/cost/memory.h"
#include "core/schedule/timeline.h"

struct dt_report_memory {
    double of_module[DT_MAX_MODULES]; /* of a module's fullest stage */
    double fullest; /* of the fullest GPU or process, all modules that share it together */
    struct dt_memory_host host; /* of what is offloaded */
};
struct dt_report {
    double iteration_s, iteration_s_p10,
        iteration_s_p90; /* with the errors of the times, and other samples */
    double iteration_s_mean, iteration_s_mean_p10,
        iteration_s_mean_p90; /* over batches, as those of a long run take; with the errors of the times alone */
    double samples_s_p10, samples_s_p90; /* over the simulated iterations and noise draws alone */
    double mfu, hfu;                     /* of gpus_used * peak */
    double mfu_cluster;                  /* of all the cluster's GPUs */
    double tokens_per_s, samples_per_s;
    double tokens; /* of an iteration, that the LLM reads: padding counts where samples have it */
    double tokens_mean; /* over the same batches as iteration_s_mean */
    int gpus, gpus_used;
    double bubble_fraction, exposed_comm_s;
    double model_flops[DT_MAX_MODULES]; /* per iteration, training multiplier of freezing applied */
    double hardware_flops;
    struct dt_timeline_summary timeline;
    struct dt_report_memory memory; /* of several iterations: the most that one needs */
    /* iterations, from 1: the one with the fullest GPU; the first that does not fit, and how many do not (0: all fit) */
    int memory_iteration, unfit_first, unfit;
    double prov_share[DT_PROV_N]; /* sums to 1 */
    uint64_t ops;
};
/* Model FLOPs of module m for the whole assignment: per-sample shapes; fwd x (1 + [dgrad needed] + [wgrad needed]) per
 * block, i.e. 3x trained, 2x frozen with something trainable upstream, 1x otherwise. */
void dt_report_flops(const struct dt_plan *p, const struct dt_model *m,
                     const struct dt_assignment *a, double *model_flops /*[modules]*/,
                     double *hardware_flops);
/* That the LLM reads in an iteration; 0 without one. */
double dt_report_tokens(const struct dt_model *m, const struct dt_assignment *a);
enum dt_status dt_report_fill(const struct dt_program *prog, const struct dt_model *m,
                              const struct dt_cluster *c, const struct dt_durations *dur,
                              const struct dt_timeline *t, struct dt_error *err,
                              struct dt_report *out);
/* Of one iteration, which is that program. */
enum dt_status dt_report_memory_of(const struct dt_program *prog, const struct dt_model *m,
                                   const struct dt_cluster *c, struct dt_error *err,
                                   struct dt_report_memory *out);
/* What GPUs and hosts need who hold one and the other, one after the other. */
void dt_report_memory_most(struct dt_report_memory *most, const struct dt_report_memory *one);
bool dt_report_memory_fits(const struct dt_report_memory *r, const struct dt_cluster *c);
/* The same on a cluster of so many GPUs, of which the plan uses as many as it did. */
void dt_report_set_gpus(struct dt_report *r, int gpus);
/* The largest microbatch of a module, which its memory is charged for (dt_assignment_charged); a process keeps room for the most of each of its
 * sizes.  Returns the most microbatches that a replica has. */
int64_t dt_report_largest(const struct dt_plan *p, const struct dt_cluster *c,
                          const struct dt_assignment *a, int module, struct dt_work *most);
/* out[n_lanes]: bytes per GPU that the memory model charges each lane, for the largest microbatch of its module; of a
 * process without the scratch of kernels, which its lanes share, and what they have offloaded. */
enum dt_status dt_report_lane_memory(const struct dt_program *prog, const struct dt_model *m,
                                     const struct dt_cluster *c, struct dt_error *err, double *out);

#endif
