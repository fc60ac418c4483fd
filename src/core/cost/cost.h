/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Cost: what a block, a stage or an op takes, in ns, from profile x cluster.
 *
 * Kernel times are interpolated (GSL) in log space over profile rows, never below the roofline of the device
 * (DESIGN rule 5: every ns knows where it came from). */
#ifndef DT_CORE_COST_COST_H
#define DT_CORE_COST_COST_H

#include "core/model/cluster.h"
#include "core/model/model.h"
#include "core/profile/profile.h"
#include "core/model/samples.h"

enum dt_cost_prov {
    DT_PROV_MEASURED,
    DT_PROV_INTERPOLATED,
    DT_PROV_EXTRAPOLATED,
    DT_PROV_COMPUTED,
    DT_PROV_ASSUMED,
    DT_PROV_N
};
extern const char *const dt_cost_prov_names[DT_PROV_N + 1];

struct dt_cost_time { /* a duration and what it stands on */
    double ns;
    double prov[DT_PROV_N]; /* ns per provenance; sums to ns */
};

/* What the kernels of unfused blocks, and the host that issues kernels, take in a running training step: few
 * constants for all models and layouts.  Values, meaning, sources: cost_tuning.c and doc/calibration.md. */
struct dt_cost_tuning {
    double gemm;       /* time of a GEMM / the profile's */
    double misaligned; /* further factor when n or k is no multiple of 8 elements */
    double core;       /* softmax and dropout of the scores / residual add */
    /* a tensor-parallel collective waits for the slowest rank; an all-gather or a reduce-scatter
     * half */
    double tp_skew_ns;
    /* host work of a collective: one kernel, and more per rank that has to meet */
    double call_per_rank;
    double backward_call; /* host time of a backward kernel / of a forward kernel */
    double host_norm;     /* exponent of the norm that joins host and device time */
};
extern const struct dt_cost_tuning dt_cost_tuning_default;
struct dt_cost_constant { /* one line per member, in order */
    const char *name, *unit, *source, *meaning;
};
enum { DT_COST_CONSTANTS = sizeof(struct dt_cost_tuning) / sizeof(double) };
extern const struct dt_cost_constant dt_cost_constants[DT_COST_CONSTANTS];
/* The member that line i describes. */
double *dt_cost_tuning_at(struct dt_cost_tuning *t, int i);

struct dt_cost_options {
    bool stepccl; /* chunked overlap of TP collectives with their GEMMs on copy engines */
    int stepccl_chunks; /* of all that overlap, as the executor cuts them; 0: the best of 1, 2, 4 and 8 for each,
                              and 1 on CPUs, whose cores do both */
    bool
        cp_ring; /* keys and values of context parallelism go round a ring under attention; else they are gathered before */
    bool allow_analytical; /* missing op families fall back to the roofline ("computed") */
    bool fp32;             /* collectives of tensor parallelism carry 4 bytes an element, else 2 */
    /* host time per kernel: no stage is faster than the host issues it; 0 = never the bottleneck
     * (CUDA graphs, or kernels long enough) */
    double dispatch_ns;
    /* NULL = dt_cost_tuning_default; borrowed while the cost model is made */
    const struct dt_cost_tuning *tuning;
    double scale
        [DT_KOP_FAMILY_N]; /* factor on the times of a family; 0 = 1 (intervals, sensitivity) */
};

struct dt_cost; /* immutable after creation except for its memo tables; one thread */

/* Borrows model, cluster, profile for its lifetime. */
enum dt_status dt_cost_new(const struct dt_model *model, const struct dt_cluster *cluster,
                           const struct dt_profile *profile, const struct dt_cost_options *opt,
                           struct dt_error *err, struct dt_cost **out);
void dt_cost_free(struct dt_cost *c);
const struct dt_cost_options *dt_cost_opts(const struct dt_cost *c);
const struct dt_cluster *dt_cost_cluster(const struct dt_cost *c);
/* A sentence where rows of another device, or over another link inside a node, are made to do; else "". */
void dt_cost_note(const struct dt_cost *c, char *buf, size_t size);
/* What plans may make of the model. */
struct dt_cost_modes {
    unsigned tp;                        /* bit t: tensor parallelism over 2^t ranks */
    unsigned recompute[DT_MAX_MODULES]; /* bit r: mode r */
};
/* Ask for every op family that the model in these modes needs; when any lacks rows and analytical fallback is off:
 * DT_ERR_MISSING_PROFILE listing ALL of them at once. */
enum dt_status dt_cost_survey(struct dt_cost *c, const struct dt_cost_modes *modes,
                              struct dt_error *err);

/* DT_ERR_NOMEM once a table built on demand could not be allocated (roofline times were used from then on). */
enum dt_status dt_cost_status(const struct dt_cost *c, struct dt_error *err);

/* One kernel, one phase (count included).  A family without rows is estimated from the roofline; dt_cost_survey is
 * what refuses it. */
void dt_cost_kernel(struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                    struct dt_cost_time *out);

/* The three times of a range of blocks [first, first+n) of a module for one microbatch on one lane.
 * fwd: forward.  dgrad: input gradients (recompute of the forward included where the recompute mode asks
 * for it and a backward runs).  wgrad: weight gradients of trainable blocks.
 * trainable[b] (may be NULL = all): block b's weights are trained.  upstream: something upstream of `first` is
 * trainable (else the first trainable block needs no dgrad below it and blocks before it run no backward). */
struct dt_cost_stage {
    struct dt_cost_time fwd, dgrad, wgrad;
    double
        later_ns; /* of wgrad: what a split backward puts off.  The LM head's is made with the loss, whose logits
                      * nobody keeps */
    double again_ns; /* of dgrad: recomputation that the weight gradients put off need once more */
};
void dt_cost_stage(struct dt_cost *c, int module, int first, int n,
                   const struct dt_block_shard *shard, const struct dt_work *work,
                   const unsigned char *trainable, bool upstream, struct dt_cost_stage *out);
/* The same dealt to kernels (cost_parts.c): `fn` hears of every kernel and direction, k NULL = waiting for the host.
 * The times of all parts sum to fwd + dgrad + wgrad of dt_cost_stage. */
enum dt_cost_direction { DT_DIR_FWD, DT_DIR_DGRAD, DT_DIR_WGRAD, DT_DIR_RECOMPUTE, DT_DIR_N };
extern const char *const dt_cost_direction_names[DT_DIR_N + 1];
typedef void dt_cost_part_fn(void *ctx, const struct dt_kop *k, enum dt_cost_direction dir,
                             const struct dt_cost_time *t);
void dt_cost_stage_parts(struct dt_cost *c, int module, int first, int n,
                         const struct dt_block_shard *shard, const struct dt_work *work,
                         const unsigned char *trainable, bool upstream, dt_cost_part_fn *fn,
                         void *ctx);
/* What a kernel's time stands on: the profile row nearest to it. */
struct dt_cost_origin {
    const char *source; /* its source's name, or "roofline"; lives as long as the profile */
    int kind;           /* enum dt_profile_row_kind; -1 = no row */
    /* standard deviation of the logarithm, from the row's p10 and p90; 0 = none stated */
    double sigma;
};
void dt_cost_origin(struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                    struct dt_cost_origin *out);

/* Fast path for the same: totals only, memoised on (module, range, shard, work, flags). */
struct dt_cost_stage_ns {
    double fwd, bwd;     /* bwd = dgrad + wgrad */
    double later, again; /* a split backward: bwd - later, then later + again */
};
struct dt_cost_stage_ns dt_cost_stage_ns(struct dt_cost *c, int module, int first, int n,
                                         const struct dt_block_shard *shard,
                                         const struct dt_work *work, const unsigned char *trainable,
                                         bool upstream);
/* Where in the module the first n blocks stand that are identical to these: stages of both take the same where they are
 * trained alike.  `first` where these are not all alike. */
int dt_cost_stage_like(const struct dt_cost *c, int module, int first, int n);
/* The same for many works, out[i] that of work[i] to the last bit: what works of equal tokens share is computed
 * once (cost_sheet.c).  False when out of memory. */
bool dt_cost_stages_ns(struct dt_cost *c, int module, int first, int n,
                       const struct dt_block_shard *shard, const struct dt_work *work,
                       size_t n_works, const unsigned char *trainable, bool upstream,
                       struct dt_cost_stage_ns *out);

/* Who meets in a collective: n ranks in a row, for `per_node` of which a node has room; `ahead` places of their first node
 * are in front of them.  `share` such collectives use the node's NICs at once. */
struct dt_cost_members {
    int n, per_node, ahead, share;
};
/* Bytes as in nccl-tests (full buffer).  family: one of the collective families. */
void dt_cost_collective_of(struct dt_cost *c, enum dt_kop_family family,
                           const struct dt_cost_members *m, double bytes, struct dt_cost_time *out);
/* The same of ranks that begin with a node. */
void dt_cost_collective(struct dt_cost *c, enum dt_kop_family family, int gpus, int per_node,
                        int share, double bytes, struct dt_cost_time *out);
/* What a collective inside a node takes however few its bytes. */
double dt_cost_collective_alpha_ns(struct dt_cost *c, int family, int gpus);
/* What a core of one rank does for its part of it (members 1: one end of a message), from the profile's rows of
 * `carry`, which `disttrain profile` writes of CPUs; < 0 without such rows.  SEND_RECV, ALL_GATHER, REDUCE_SCATTER or
 * ALL_REDUCE. */
double dt_cost_carry_ns(struct dt_cost *c, enum dt_kop_family family, int members, double bytes);
/* The same as d[1] of such a row. */
int64_t dt_cost_carry_sums(enum dt_kop_family family);
/* Point-to-point between two lanes of `width` GPU pairs each moving bytes/width; inside a node or between.
 * alpha_ns and the transfer rate are also given apart for the network engine. */
void dt_cost_p2p(struct dt_cost *c, bool same_node, int width, double bytes,
                 struct dt_cost_time *out, double *alpha_ns, double *bytes_per_s);
/* Optimizer step (AdamW on `params` fp32 master parameters held by one GPU): HBM bound. */
void dt_cost_optimizer(struct dt_cost *c, double params, struct dt_cost_time *out);
/* The same where masters and moments lie in the host's memory (exec/program/optimizer_host.h): gradients of grad_bytes go
 * down, the host's cores step, parameters of elem_bytes come up, chunk by chunk, each of the three beside the others.
 * `ranks` GPUs of the node do so at the same time, each of which has its share of what the host's memory carries.
 * Where devices are CPUs, whose calls run one after the other, nothing is beside. */
void dt_cost_optimizer_host(struct dt_cost *c, double params, int ranks, double grad_bytes,
                            double elem_bytes, struct dt_cost_time *out);
/* So many bytes between a GPU and its host, one way, while `ranks` GPUs of the node do the same: over the GPU's link, or its
 * share of what the host's memory carries where that is less. */
void dt_cost_host_copy(struct dt_cost *c, double bytes, int ranks, struct dt_cost_time *out);

static inline void dt_cost_time_add(struct dt_cost_time *a, const struct dt_cost_time *b, double k)
{
    a->ns += k * b->ns;
    for (int i = 0; i < DT_PROV_N; i++)
        a->prov[i] += k * b->prov[i];
}

#endif
