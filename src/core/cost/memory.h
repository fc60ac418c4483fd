/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory model: bytes per GPU of a lane, by cause, for a stage under a schedule.
 *
 * Where devices are CPUs a lane is a process: params are the master copy, packed weights and what replicas gather,
 * the workspace is with the activations, logits_workspace is the scratch of kernels, broker also holds batches, and
 * the reserve is left out of what a stage takes and into what it may not (dt_memory_limit).  memory_stage.c has the
 * differences side by side. */
#ifndef DT_CORE_COST_MEMORY_H
#define DT_CORE_COST_MEMORY_H

#include "core/model/plan.h"

struct dt_memory {
    double params, grads, optimizer, activations, logits_workspace, broker, reserve,
        total;   /* bytes */
    double wire; /* of params: what replicas gather under ZeRO-1 */
    double
        whole; /* of params and grads: the buckets that are whole for a time under ZeRO 2 and 3 */
    int in_flight; /* microbatches whose activations are held at once (per chunk sum for vpp) */
    /* in the host's memory: masters and moments of a module that offloads them, which `optimizer` is without.  Where
     * devices are CPUs it is the same memory, and in `total`, too */
    double host;
    /* of params: those of a guest that leave the device between its last forward and its first backward, and of `host` what they
     * take there; of a host's activations: what it does not hold while such parameters are on the device */
    double away, away_host, beside;
};
/* Page-locked room of a rank that copies what is offloaded (exec/program/optimizer_host.h), beside `host`. */
#define DT_MEMORY_HOST_ROOM                                                                        \
    ((double)DT_PLAN_OFFLOAD_ROOMS * DT_PLAN_OFFLOAD_CHUNK * DT_PLAN_OFFLOAD_BYTES)
/* The lane of (module, stage) with n microbatches per replica as the plan's schedule sees it. */
struct dt_pipe_lane dt_memory_pipe_lane(const struct dt_plan *p, const struct dt_model *m,
                                        int module, int stage, int64_t n);
/* In-flight microbatches of (module, stage) for n microbatches per replica, of chunks where a stage has several: the
 * in_flight of the plan's schedule (core/pipeline).  Of an encoder whose microbatches may be in two parts
 * (dt_plan_defers) these are one, from its first forward to its last backward, and one more is held.  The schedule
 * compiler keeps the same bound and dt_program_check proves it. */
int dt_memory_in_flight(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                        int64_t n_microbatches);
/* Microbatches of (module, stage) between the backward and the weight gradient that is put off, at most; 0: backwards
 * are whole there. */
int dt_memory_deferred(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                       int64_t n_microbatches);
/* Microbatches whose activations are held: in_flight until the backward, and the others until the weight gradient. */
int dt_memory_held(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                   int64_t n_microbatches);
/* Microbatches, of chunks as in_flight, that (module, stage) may hold while parameters of its guests that are offloaded are on
 * the device, before they have left it and from where they come back on: half of those that it holds at most, so that both copies
 * have that long to hide.  Of a module without such guests: all.  dt_program_check proves it. */
int dt_memory_beside_guests(const struct dt_plan *p, const struct dt_model *m, int module,
                            int stage, int64_t n_microbatches);
/* Microbatches whose input may have reached (module, stage) without being in flight there yet: what its receive
 * buffers are charged for, at least 2 (one in use, one in transfer).  See memory.c; dt_program_check proves it. */
int dt_memory_queue(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                    int64_t n_microbatches);
/* Does (module, stage) run no backward at all: nothing trained in it nor upstream of it. */
bool dt_memory_forward_only(const struct dt_plan *p, const struct dt_model *m, int module,
                            int stage);
/* Parameters of a block on one rank. */
double dt_memory_params(const struct dt_block *b, const struct dt_plan_layout *l);
/* Stages after (module, stage) on the longest path to the end of the graph. */
int dt_memory_stages_after(const struct dt_plan *p, const struct dt_model *m, int module,
                           int stage);
/* What the stages of a GPU, or process, may take in all. */
double dt_memory_limit(const struct dt_cluster *c);
/* `work`: the largest microbatch of the module (mean + spread is the caller's choice). */
void dt_memory_stage(const struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                     int module, int stage, const struct dt_work *work, int64_t n_microbatches,
                     struct dt_memory *out);
/* Eager forwards (DT_WARMUP_EAGER): sets `ahead` of every stage as far as memory goes for that `work`, the largest microbatch
 * of each module, and for that of the messages that then wait at the stages behind it; no stage further than the one in
 * front of it.  0 where the plan does not fit as it is.  O(stages * log microbatches) times dt_memory_stage. */
void dt_memory_ahead(struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                     const struct dt_work *work /*[modules]*/);
/* The same for a caller who asks for very many stages of one model: what was computed of its blocks is remembered. */
struct dt_memory_memo;
struct dt_memory_memo *dt_memory_memo_new(const struct dt_model *m); /* NULL: out of memory */
void dt_memory_memo_free(struct dt_memory_memo *memo);
void dt_memory_stage_again(struct dt_memory_memo *memo, const struct dt_plan *p,
                           const struct dt_model *m, const struct dt_cluster *c, int module,
                           int stage, const struct dt_work *work, int64_t n_microbatches,
                           struct dt_memory *out);
/* The same on such a device, whatever the cluster has. */
enum dt_memory_device {
    DT_MEMORY_GPU, /* as others train on GPUs: what plans for them are charged */
    DT_MEMORY_CPU,
    DT_MEMORY_EXECUTOR, /* our executor on a device that keeps a weight once, not packed, with a CPU's kernels */
    DT_MEMORY_CARD /* the same with those of NVIDIA's cards */
};
void dt_memory_stage_on(enum dt_memory_device device, const struct dt_plan *p,
                        const struct dt_model *m, const struct dt_cluster *c, int module, int stage,
                        const struct dt_work *work, int64_t n_microbatches, struct dt_memory *out);
/* Checks every stage, and the hosts of what is offloaded, where the cluster says what a node has; DT_ERR_INFEASIBLE
 * with module, stage, breakdown and what would help. */
enum dt_status dt_memory_check(const struct dt_plan *p, const struct dt_model *m,
                               const struct dt_cluster *c, const struct dt_work *work /*[modules]*/,
                               double *max_bytes, struct dt_error *err);
/* What the fullest GPU (or process) needs, all that share it together, for that work and number of microbatches of each
 * module, whether or not it has as much. */
enum dt_status dt_memory_fullest(const struct dt_plan *p, const struct dt_model *m,
                                 const struct dt_cluster *c,
                                 const struct dt_work *work /*[modules]*/,
                                 const int64_t *n_microbatches /*[modules]*/, struct dt_error *err,
                                 double *bytes);
/* What a plan has in the memory of hosts, with that `work`: of the GPU that has most there, and of all GPUs of the node
 * that has most, and of all nodes together, which other splits of blocks do not change; 0 where nothing is offloaded, and where
 * devices are CPUs.  O(stages * nodes). */
struct dt_memory_host {
    double gpu_bytes, node_bytes, all_bytes;
};
enum dt_status dt_memory_host(const struct dt_plan *p, const struct dt_model *m,
                              const struct dt_cluster *c, const struct dt_work *work,
                              struct dt_error *err, struct dt_memory_host *out);
/* The same for one who asks often; `memo` may be NULL. */
enum dt_status dt_memory_check_again(struct dt_memory_memo *memo, const struct dt_plan *p,
                                     const struct dt_model *m, const struct dt_cluster *c,
                                     const struct dt_work *work, double *max_bytes,
                                     struct dt_error *err);

#endif
