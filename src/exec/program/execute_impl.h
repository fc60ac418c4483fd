/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The executor, the inside.  Shared by execute*.c only.
 *
 *   env <- ranks <- stages <- it <- norm, losses, events <- comm     parts of struct dt_exec: a function
 *                                                                    takes those that it works on */
#ifndef DT_EXEC_PROGRAM_EXECUTE_IMPL_H
#define DT_EXEC_PROGRAM_EXECUTE_IMPL_H

#include "base/mem.h"
#include "exec/program/execute.h"
#include "exec/program/execute_edge.h"
#include "exec/program/execute_thread.h"
#include "exec/program/optimizer_host.h"
#include "exec/program/placement.h"
#include "core/schedule/program_partners.h"
#include "comm/supervisor.h"
#include "kernels/kernels.h"

/* Tags: messages have that of their RECV or of their lanes (execute_connect.c), tokens that of the op that waits. */
enum {
    DT_EXEC_TAG_TOKEN = 1 << 21,
    DT_EXEC_TAG_OWN = DT_SUPERVISOR_TAG - 16,
    DT_EXEC_TAG_TIMES = DT_EXEC_TAG_OWN,
    DT_EXEC_TAG_MASTER,
    DT_EXEC_TAG_AVG,
    DT_EXEC_TAG_AVG_SQ
};

struct dt_exec_buffer { /* device memory that grows */
    void *p;
    size_t cap;
};

/* What a stage hands on: outputs of a forward, or gradients of its inputs.  `users`: the stage
 * while it writes, then every SEND of it that has not been used up.  An inbox is what a stage
 * takes, gathered from other ranks or from several microbatches; its user is the op that reads it.
 *
 * Users are counted when work is put on queues, which is before it is done.  The main thread writes again
 * at once, on the queue that the readers are on; another queue waits for `read`. */
struct dt_exec_message {
    struct dt_exec_buffer data;
    uint32_t mb;
    bool grad, inbox;
    int users;
    struct dt_device_event *read; /* the main queue is past those that have read it */
    struct dt_exec_message *next;
};
/* What a split backward leaves for the weight gradients. */
struct dt_exec_stash {
    struct dt_exec_buffer data;
    bool used;
    struct dt_exec_stash *next;
};
/* Where a batch lies, on the host and on the device.  The virtual stage's are in the order of their last use. */
struct dt_exec_place {
    struct dt_batch *batch;
    struct dt_device_event
        *uploaded;                /* the batch is there, and its host arrays may be written again */
    struct dt_device_event *past; /* the main queue is past what reads it */
    bool used;
    struct dt_exec_place *next;
};
/* A microbatch in a virtual stage, from its first input to the end of its last compute op. */
struct dt_exec_microbatch {
    uint32_t mb;
    bool used, empty; /* empty: nothing to compute */
    struct dt_exec_place *place;
    struct dt_batch *batch; /* there */
    bool follow;            /* the main queue has yet to wait for it */
    struct dt_exec_buffer saved;
    struct dt_exec_stash *stash; /* between a split backward and its weight gradients */
    const void *in, *dout;
    struct dt_exec_message *in_from, *dout_from; /* whose data `in`, `dout` are */
    struct dt_exec_message *out, *din;           /* while they are written */
    struct dt_exec_microbatch *next;             /* those of the virtual stage, unused ones too */
};

/* Floats of a virtual stage that its replicas on different ranks sum and share out together. */
struct dt_exec_region {
    int first, last; /* blocks */
    size_t at, n;
    bool whole;     /* every rank steps all of it (a table that two stages share) */
    bool experts;   /* of the experts here, which only the ranks of expert_peers hold, too */
    size_t wire_at; /* where it lies in the stage's `wire` */
};
enum { DT_EXEC_PARTS = 4 /* buckets of a virtual stage at most (core/schedule/schedule_impl.h) */ };

struct dt_exec_vstage {
    int module, replica, v, first, last;
    struct dt_stage *stage;
    struct dt_optimizer opt;
    struct dt_batch_limits max;
    struct dt_exec_microbatch *microbatches;
    struct dt_exec_place *places;
    struct dt_exec_message *messages;
    bool split; /* weight gradients are ops of their own */
    struct dt_exec_stash *stashes;
    int in_use, in_use_max;
    bool *finished;     /* per block of the stage: gradients are complete */
    bool *fresh;        /* per block: this iteration's parameters are in use */
    uint32_t backwards; /* still to come in this iteration; where split, weight gradients */
    struct dt_exec_region *regions;
    int n_regions;
    char *wire; /* regions as they are gathered (execute_gather.c); NULL: as they lie */
    /* offload of parameters (execute_host.c) */
    void *away;        /* host memory for them; NULL: they stay */
    bool away_kept;    /* what is not trained is in it */
    bool offloaded;    /* this iteration's copy has been issued */
    uint32_t forwards; /* still to come in this iteration */
};

/* Replicas of a stage, seen from this rank: the ranks that hold some.  `n_group` of them, neighbours, share out the
 * optimizer's states (plan.MODULE.zero_group); those of the same place in their groups own the same. */
struct dt_exec_peers {
    struct dt_comm *comm;  /* NULL: all replicas are here */
    int n, me;             /* ranks, this one among them */
    int leader;            /* lowest replica here; -1 = none */
    int n_group;           /* n with one group */
    struct dt_comm *group; /* of this rank's: comm with one; NULL: it is alone in it */
    struct dt_comm *over;  /* of this rank's place over all groups; NULL with one group, or alone */
};

/* A request of the transport that is under way. */
struct dt_exec_request {
    struct dt_transport *t; /* one of the two (struct dt_exec_ranks) */
    struct dt_req *req;
    uint32_t op;
    uint64_t since_ns;
    struct dt_exec_packed *packed; /* of the pool; NULL = sent or received in place */
};
struct dt_exec_packed { /* rows on their way */
    struct dt_exec_buffer data;
    struct dt_device_event *read; /* they have been unpacked */
    bool used;
};
/* ---- the parts of an executor, each of which may look at those before it ---- */

/* What is stated, and does not change. */
struct dt_exec_env {
    struct dt_exec_options o;
    const struct dt_device *dev;
    const struct dt_kernels *k;
    struct dt_device_queue *q;       /* the main thread's */
    struct dt_device_queue *uploads; /* the same, of batches */
    struct dt_device_queue
        *link; /* the same, to and from the host; NULL: nothing goes there between phases */
    int pp[DT_MAX_MODULES], dp[DT_MAX_MODULES], n_v[DT_MAX_MODULES]; /* n_v = pp * vpp */
    bool offloads;                  /* the optimizer of some module steps on the host */
    struct dt_optimizer_host *host; /* open where it does */
};

/* Ranks and groups of them (execute_ranks.c).  Lanes are [replica * pp + stage]. */
struct dt_exec_ranks {
    const struct dt_exec_env *env;
    struct dt_transport *t;    /* of host memory; NULL = alone */
    struct dt_transport *data; /* of the device's memory */
    int rank, n;
    struct dt_placement place;
    int *member[DT_MAX_MODULES]; /* [lane]: what this rank is in it; -1 = elsewhere */
    struct dt_exec_peers *peers[DT_MAX_MODULES]; /* [stage] */
    /* The same of what is dealt over an expert group: those of the same place in all groups. */
    struct dt_exec_peers *expert_peers[DT_MAX_MODULES];
    struct dt_tp *tp[DT_MAX_MODULES];        /* [lane] */
    struct dt_tp *cp[DT_MAX_MODULES];        /* the same, of context parallelism */
    struct dt_tp *ep[DT_MAX_MODULES];        /* the same, of expert parallelism: over lanes */
    struct dt_batch_cut cut[DT_MAX_MODULES]; /* what this rank holds of sequences; n 1 = all */
    struct dt_comm **tied;                   /* [replica of the LLM]; NULL entries: not here */
    struct dt_comm *world;                   /* of host memory; NULL = alone */
    struct dt_comm *training;                /* NULL = alone, or nothing is trained */
};

/* Virtual stages and what their lanes have in memory (execute_lane.c, execute_message.c). */
struct dt_exec_stages {
    const struct dt_exec_env *env;
    const struct dt_exec_ranks *ranks;
    struct dt_exec_vstage *vs[DT_MAX_MODULES];           /* [replica * n_v + v] */
    struct dt_device_memory_owner *lane[DT_MAX_MODULES]; /* [lane]: what is theirs */
    int64_t *lane_most[DT_MAX_MODULES]; /* [lane]: that, before buffers were given back to guests */
};

/* The iteration under way: its program, its samples, and what it has come to. */
struct dt_exec_iteration {
    const struct dt_program *p;
    const struct dt_exec_input *in;
    uint32_t *order, n_order; /* ops whose lanes are here (execute_order.c) */
    unsigned char *placed;
    size_t cap_order, cap_placed;
    struct dt_program_partners partners; /* ops that expert groups run together */
    struct dt_arena partners_of;         /* its memory */
    bool cyclic;                         /* some cannot */
    bool late_steps; /* forwards come after a STEP here: steps are made at the end */
    struct dt_exec_edge edge[DT_EDGES];
    struct dt_batch_limits *lim[DT_MAX_MODULES]; /* per microbatch over all replicas */
    size_t cap_lim[DT_MAX_MODULES];
    const struct dt_sequence **mb_seqs; /* of the microbatch that is being made */
    size_t cap_mb_seqs;
    /* where it has items of samples: these with the other items put out, and the items of all of them */
    struct dt_sequence *views;
    struct dt_sequence_item *view_items;
    size_t cap_views, cap_view_items;
    double text_scale, image_scale; /* of a target's loss, of an image's, in the sum */
    double balance_scale;           /* of a row's part of the loss of uneven routing */
    uint64_t begin_ns, drained_ns;  /* the walk begins; all of other ranks has come */
    bool decided;
    struct dt_exec_result result; /* when decided; times excepted */
};

/* The norm of all gradients (execute_norm.c). */
struct dt_exec_norm {
    double *sq;          /* device: of this rank, then of all */
    float *value, *coef; /* device */
    float *
        host; /* host memory of the device: `value`, and behind it `coef` where that is asked for */
    bool known; /* in this iteration */
};

/* Losses of the iteration (execute_loss.c). */
struct dt_exec_losses {
    double *value;                /* per sample: text, image; then the sum of `signal` */
    unsigned char *has;           /* per sample: its text is computed here */
    uint32_t left;                /* microbatches here whose losses are to come */
    struct dt_device_event *read; /* all have come to the host */
    float *nll, *sse;             /* host memory of the device: per row, per image to draw */
    int64_t *row_at[2];           /* per sample: its first row there; [1]: cut, its late half */
    int64_t *image_of;            /* [samples + 1]: images to draw, sample by sample */
    struct dt_exec_image {
        int64_t at, values; /* its place there, and how many values it has */
        bool here;          /* it is computed here */
    } * image;
    size_t cap_value, cap_has, cap_nll, cap_sse, cap_samples, cap_image;
};

/* When ops of the main thread began and ended (execute_time.c). */
struct dt_exec_events {
    struct dt_device_event **begin, **end; /* per op */
    size_t n, cap_begin, cap_end;
};

struct dt_exec {
    struct dt_exec_env env;
    struct dt_optimizer_host host;
    struct dt_exec_ranks ranks;
    struct dt_exec_stages stages;
    struct dt_exec_iteration it;
    struct dt_exec_norm norm;
    struct dt_exec_losses losses;
    struct dt_exec_events events;
    struct dt_exec_comm comm;
};

static inline struct dt_exec_vstage *dt_exec_vs(const struct dt_exec_stages *stages, int module,
                                                int replica, int v)
{
    return &stages->vs[module][replica * stages->env->n_v[module] + v];
}
static inline struct dt_exec_vstage *dt_exec_op_vs(const struct dt_exec_stages *stages,
                                                   const struct dt_op *op)
{
    return dt_exec_vs(stages, op->module, op->replica,
                      op->chunk * stages->env->pp[op->module] + op->stage);
}
static inline uint32_t dt_exec_global_mb(const struct dt_program *p, const struct dt_op *op)
{
    return p->assignment->m[op->module].mb_first[op->replica] + op->mb;
}

/* What a member steps of a stage: owned[n], NULL: all. */
static inline struct dt_optimizer_spec
dt_exec_optimizer_spec(const struct dt_exec_env *env, int module, struct dt_stage *stage,
                       int member, const struct dt_optimizer_owned *owned, int n)
{
    return (struct dt_optimizer_spec){
        .module = &env->o.model->modules[module],
        .stage = stage,
        .member = member,
        .owned = owned,
        .n_owned = n,
        .offloaded = dt_plan_offloads_optimizer(&env->o.plan->modules[module])};
}

/* Ranks of a lane: member c tp + t is t of tensor and c of context parallelism. */
static inline int dt_exec_members(const struct dt_exec_env *env, int module)
{
    return dt_plan_layout_lane_gpus(&env->o.plan->modules[module].layout);
}

/* Which member of the op's lane this rank is; -1: the lane is elsewhere. */
static inline int dt_exec_member(const struct dt_exec_ranks *ranks, const struct dt_op *op)
{
    return ranks->member[op->module][op->replica * ranks->env->pp[op->module] + op->stage];
}
static inline bool dt_exec_here(const struct dt_exec_ranks *ranks, const struct dt_op *op)
{
    return dt_exec_member(ranks, op) >= 0;
}

static inline int dt_exec_ep_size(const struct dt_exec_env *env, int module)
{
    return env->o.plan->modules[module].layout.ep;
}
/* The ranks that hold a region of a stage. */
static inline const struct dt_exec_peers *dt_exec_region_peers(const struct dt_exec_ranks *ranks,
                                                               int module, int stage,
                                                               const struct dt_exec_region *u)
{
    return u->experts ? &ranks->expert_peers[module][stage] : &ranks->peers[module][stage];
}
/* Do the ranks that hold the same parameters share out the optimizer's states? */
static inline bool dt_exec_peers_shard(const struct dt_exec_ranks *ranks, int module,
                                       const struct dt_exec_peers *p)
{
    return ranks->env->o.plan->modules[module].zero > 0 && p->n_group > 1;
}
static inline bool dt_exec_shards(const struct dt_exec_ranks *ranks, int module, int stage)
{
    return dt_exec_peers_shard(ranks, module, &ranks->peers[module][stage]);
}

/* The ranks that share a lane's parameters, or its sequences; NULL: it is one. */
static inline struct dt_tp *dt_exec_cp(const struct dt_exec_ranks *ranks, int module, int replica,
                                       int stage)
{
    struct dt_tp *cp = &ranks->cp[module][replica * ranks->env->pp[module] + stage];

    return cp->comm ? cp : NULL;
}
static inline struct dt_tp *dt_exec_tp(const struct dt_exec_ranks *ranks, int module, int replica,
                                       int stage)
{
    struct dt_tp *tp = &ranks->tp[module][replica * ranks->env->pp[module] + stage];

    return tp->comm ? tp : NULL;
}

static inline struct dt_tp *dt_exec_ep(const struct dt_exec_ranks *ranks, int module, int replica,
                                       int stage)
{
    struct dt_tp *ep = &ranks->ep[module][replica * ranks->env->pp[module] + stage];

    return ep->comm ? ep : NULL;
}

/* What this thread allocates from now on is for the lane; give dev->memory_for what comes back. */
static inline struct dt_device_memory_owner *dt_exec_for(const struct dt_exec_stages *stages,
                                                         int module, int replica, int stage)
{
    return stages->env->dev->memory_for(
        stages->env->dev, &stages->lane[module][replica * stages->env->pp[module] + stage]);
}
static inline struct dt_device_memory_owner *dt_exec_for_vs(const struct dt_exec_stages *stages,
                                                            const struct dt_exec_vstage *vs)
{
    return dt_exec_for(stages, vs->module, vs->replica, vs->v % stages->env->pp[vs->module]);
}

/* execute_check.c: the edges that training takes; DT_ERR_INPUT: what it does not. */
enum dt_status dt_exec_find_edges(struct dt_exec_iteration *it, const struct dt_exec_env *env,
                                  struct dt_error *err);
enum dt_status dt_exec_check_layout(const struct dt_exec_options *o, struct dt_error *err);
/* execute.c: the host waits for both queues of the main thread, and for those of what is offloaded; the first error. */
enum dt_status dt_exec_env_sync(const struct dt_exec_env *env, struct dt_error *err);

/* execute_lane.c */
enum dt_status dt_exec_build(struct dt_exec_stages *stages, struct dt_error *err);
void dt_exec_drop(struct dt_exec_stages *stages);
/* Makes room for the microbatches of this iteration. */
enum dt_status dt_exec_reserve(const struct dt_exec_stages *stages, struct dt_exec_iteration *it,
                               struct dt_error *err);
enum dt_status dt_exec_room(const struct dt_device *dev, struct dt_exec_buffer *b, size_t bytes,
                            struct dt_error *err);
/* The sequences of a microbatch, in its order: it->mb_seqs. */
enum dt_status dt_exec_gather_seqs(struct dt_exec_iteration *it, int module, uint32_t mb, int *n,
                                   struct dt_error *err);
/* A batch of nothing but the counts of a microbatch (over all replicas): enough for sizes. */
struct dt_batch dt_exec_counts(const struct dt_exec_env *env, const struct dt_exec_iteration *it,
                               int module, uint32_t mb);

/* execute_host.c: offload of guests' parameters (plan.MODULE.offload: parameters).  Host memory for a stage; its bytes. */
enum dt_status dt_exec_host_new(const struct dt_exec_env *env, struct dt_exec_vstage *vs,
                                struct dt_error *err);
void dt_exec_host_free(const struct dt_exec_env *env, struct dt_exec_vstage *vs);
int64_t dt_exec_host_bytes(const struct dt_exec_stages *stages);
/* All are on the device, also behind an iteration that failed. */
enum dt_status dt_exec_host_begin(const struct dt_exec_stages *stages, struct dt_error *err);
/* OFFLOAD and RELOAD, on env->link. */
void dt_exec_host_offload(const struct dt_exec_stages *stages, const struct dt_op *op);
enum dt_status dt_exec_host_reload(const struct dt_exec_stages *stages, const struct dt_program *p,
                                   const struct dt_op *op, struct dt_error *err);
/* A forward of it has been issued. */
void dt_exec_host_forward(struct dt_exec_vstage *vs);

/* execute_microbatch.c */
/* Buffers of those that are free go back to the device. */
void dt_exec_microbatches_trim(const struct dt_device *dev, struct dt_exec_vstage *vs);
void dt_exec_microbatches_free(const struct dt_device *dev, struct dt_exec_vstage *vs);
/* None is used, whatever an iteration that failed has left. */
void dt_exec_microbatches_forget(struct dt_exec_vstage *vs);
/* FETCH: makes its microbatch and puts the batch on the queue of uploads, between the op's events. */
enum dt_status dt_exec_fetch(struct dt_exec *x, uint32_t i, struct dt_error *err);
/* What a virtual stage keeps of a microbatch; made, filled and uploaded when it is not there. */
enum dt_status dt_exec_microbatch_get(const struct dt_exec_stages *stages,
                                      struct dt_exec_iteration *it, struct dt_exec_vstage *vs,
                                      uint32_t mb, struct dt_error *err,
                                      struct dt_exec_microbatch **out);
/* What the main queue is given from now on finds the batch on the device. */
void dt_exec_microbatch_follow(const struct dt_exec_env *env, struct dt_exec_microbatch *s);
/* Room for what the microbatch's split backward leaves, until it is done. */
enum dt_status dt_exec_stash_take(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs,
                                  struct dt_exec_microbatch *s, struct dt_error *err);
void dt_exec_microbatch_done(const struct dt_exec_env *env, struct dt_exec_vstage *vs,
                             struct dt_exec_microbatch *s);

/* execute_message.c.  Memory for what goes between ranks: the transport's, if it has its own.  (Locked, as it is shared.) */
enum dt_status dt_exec_message_room(struct dt_exec_comm *c, const struct dt_exec_ranks *ranks,
                                    struct dt_exec_buffer *b, size_t bytes, struct dt_error *err);
void dt_exec_message_room_free(const struct dt_exec_ranks *ranks, struct dt_exec_buffer *b);
/* Nothing is under way: what has been outgrown goes. */
void dt_exec_message_outgrown(struct dt_exec_comm *c, const struct dt_exec_ranks *ranks);
/* These lock. */
/* A message to write, of one user; one that was sent, or NULL; what a microbatch takes, made when
 * it is not there; the same or NULL; one user less (NULL is ignored). */
enum dt_status dt_exec_message_new(struct dt_exec_comm *c, const struct dt_exec_stages *stages,
                                   struct dt_exec_vstage *vs, uint32_t mb, bool grad, size_t bytes,
                                   struct dt_error *err, struct dt_exec_message **out);
struct dt_exec_message *dt_exec_message_sent(struct dt_exec_comm *c,
                                             const struct dt_exec_vstage *vs, uint32_t mb,
                                             bool grad);
enum dt_status dt_exec_message_inbox(struct dt_exec_comm *c, const struct dt_exec_stages *stages,
                                     struct dt_exec_vstage *vs, uint32_t mb, bool grad,
                                     size_t bytes, struct dt_error *err,
                                     struct dt_exec_message **out);
struct dt_exec_message *dt_exec_message_received(struct dt_exec_comm *c,
                                                 const struct dt_exec_vstage *vs, uint32_t mb,
                                                 bool grad);
/* `reader`: of the main queue, where what has read it is; NULL: nothing more reads it. */
void dt_exec_message_release(struct dt_exec_comm *c, const struct dt_exec_env *env,
                             struct dt_exec_message *m, int users, struct dt_device_queue *reader);

/* execute_order.c: x->it.order of this program, of lanes that are here, and late_steps. */
enum dt_status dt_exec_make_order(struct dt_exec_iteration *it, const struct dt_exec_ranks *ranks,
                                  struct dt_error *err);

/* execute_move.c */
/* A RECV from a lane of this rank. */
enum dt_status dt_exec_recv(struct dt_exec *x, const struct dt_op *op, struct dt_error *err);
/* Of what op i takes, the rows of this rank, where others come from other ranks. */
enum dt_status dt_exec_recv_own(struct dt_exec *x, uint32_t i, struct dt_error *err);
/* Gradients of blocks [first, last) are complete: those that nothing wrote become zero, once. */
void dt_exec_finish_grads(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs, int first,
                          int last);
/* The sums of a group whose members are all here. */
void dt_exec_sync(const struct dt_exec_stages *stages, const struct dt_program *p,
                  const struct dt_group *g);
/* Blocks of the bucket of a GRAD_SYNC or PARAM_GATHER. */
void dt_exec_bucket(const struct dt_exec_stages *stages, const struct dt_op *op, int *first,
                    int *last);
/* Replicas of this rank: their gradients into the leader's; the leader's floats into theirs. */
void dt_exec_sum_here(const struct dt_exec_stages *stages, struct dt_device_queue *q,
                      const struct dt_op *op, size_t at, size_t n);
void dt_exec_copy_here(const struct dt_exec_stages *stages, struct dt_device_queue *q,
                       const struct dt_op *op, bool grads, size_t at, size_t n);
/* The table of the first stage, or the head's copy of it; NULL. */
const struct dt_param *dt_exec_shared_table(const struct dt_exec_env *env,
                                            const struct dt_exec_vstage *vs);

/* execute_ranks.c */
/* v[n] becomes the sum over ranks; alone it stays.  Collective. */
enum dt_status dt_exec_ranks_sum(const struct dt_exec_ranks *ranks, double *v, size_t n,
                                 struct dt_error *err);
enum dt_status dt_exec_place(struct dt_exec_ranks *ranks, struct dt_error *err);
void dt_exec_unplace(struct dt_exec_ranks *ranks);
enum dt_status dt_exec_make_regions(const struct dt_exec_ranks *ranks, struct dt_exec_vstage *vs,
                                    struct dt_error *err);
/* What a rank (member `me` of the peers, with replica `leader`) steps of a virtual stage; *out =
 * NULL: all of it. */
enum dt_status dt_exec_owned(const struct dt_exec_ranks *ranks, const struct dt_exec_vstage *vs,
                             int me, bool leads, struct dt_error *err,
                             struct dt_optimizer_owned **out, int *n);
/* Where parameters lie in a stage, without any memory: of one tensor-parallel member, or NULL: whole; and of one
 * member of an expert group, or NULL: all experts. */
enum dt_status dt_exec_layout(const struct dt_exec_env *env, int module, int v, struct dt_tp *tp,
                              struct dt_tp *ep, struct dt_error *err, struct dt_stage **out);
/* First float and number of a member's piece of a region. */
void dt_exec_piece(const struct dt_exec_region *u, int members, int member, size_t *at, size_t *n);
/* Member t of the receiving lane takes a message from so many members of the sending one: from its like inside a module,
 * from any of them between modules; the k-th, and a member's rank. */
int dt_exec_feeders(const struct dt_exec_ranks *ranks, const struct dt_op *send,
                    const struct dt_op *recv);
int dt_exec_feeder(const struct dt_op *recv, int t, int k);
int dt_exec_rank_of(const struct dt_exec_ranks *ranks, const struct dt_op *op, int member);
/* Where a member of one lane tells a member `t` of another: both ranks. */
void dt_exec_route(const struct dt_exec_ranks *ranks, const struct dt_op *from,
                   const struct dt_op *to, int t, int *from_rank, int *to_rank);

/* execute_comm.c: the thread.  Alone, all of these do nothing. */
enum dt_status dt_exec_comm_init(struct dt_exec *x, struct dt_error *err);
void dt_exec_comm_free(struct dt_exec *x);
/* Counts who waits for whom in this program, then lets the thread post what waits for nothing. */
enum dt_status dt_exec_comm_begin(struct dt_exec *x, struct dt_error *err);
/* Of a message (execute_connect.c), by its RECV. */
int dt_exec_tag(const struct dt_exec *x, uint32_t recv);
/* Tells the transport of the iteration's messages. */
enum dt_status dt_exec_connect(const struct dt_exec *x, struct dt_error *err);
/* The main thread waits until all that an op waits for is issued, and `q` until what has landed of it is done; says
 * that the op is issued. */
enum dt_status dt_exec_comm_wait(struct dt_exec *x, uint32_t i, struct dt_device_queue *q,
                                 struct dt_error *err);
void dt_exec_comm_issued(struct dt_exec *x, uint32_t i);
/* The losses of all microbatches of this rank are there when losses.read is done. */
void dt_exec_comm_post_losses(struct dt_exec *x);
/* Waits until nothing is under way; errors of the thread's queues. */
enum dt_status dt_exec_comm_drain(struct dt_exec *x, struct dt_error *err);
static inline bool dt_exec_is_comm(const struct dt_exec_comm *c, uint32_t i)
{
    return c->q[0] && c->graph.kind[i] == DT_EXEC_COMM;
}
static inline uint32_t dt_exec_loss_number(const struct dt_exec_graph *g)
{
    return g->n - 1;
}

/* execute_turn.c: the order in which both threads put things on queues; nobody has to wait where the transport is
 * not on_queue.  All but begin and free are locked. */
enum dt_status dt_exec_turns_begin(struct dt_exec *x, struct dt_error *err);
void dt_exec_turns_free(struct dt_exec_turns *t);
/* May op i post now? */
bool dt_exec_turn(const struct dt_exec_turns *t, const struct dt_program *p, uint32_t i);
/* It has.  Is it another one's turn? */
bool dt_exec_turn_over(struct dt_exec_turns *t, const struct dt_program *p, uint32_t i);

/* execute_queue.c: the queues of the communication thread. */
enum dt_status dt_exec_queues_new(struct dt_exec *x, struct dt_error *err);
void dt_exec_queues_free(struct dt_exec *x);
/* Waits for all of them; the first error. */
enum dt_status dt_exec_queues_sync(struct dt_exec *x, struct dt_error *err);
/* A queue for number i (queue_of), behind all that it waits for; it is not on it any more. */
enum dt_status dt_exec_queue_take(struct dt_exec *x, uint32_t i, enum dt_exec_queue kind,
                                  struct dt_error *err);
void dt_exec_queue_give(struct dt_exec *x, uint32_t i);
/* Where what remains to be done for number i goes when its requests are over, or on their queue. */
struct dt_device_queue *dt_exec_queue_of_lands(const struct dt_exec *x, uint32_t i);
/* Op `by` has landed, for the successor at this place in graph.succ.  Locked. */
void dt_exec_queue_landed(struct dt_exec_comm *c, uint32_t successor, uint32_t by);
/* `q` goes on when all that number i waits for has landed; is all that it waits for done? */
void dt_exec_queue_land(const struct dt_exec *x, uint32_t i, struct dt_device_queue *q);
bool dt_exec_queue_passed(const struct dt_exec *x, uint32_t i);

/* execute_graph.c: fills the graph of this iteration's program. */
enum dt_status dt_exec_graph(struct dt_exec_graph *g, const struct dt_exec_iteration *it,
                             const struct dt_exec_ranks *ranks, struct dt_error *err);
void dt_exec_graph_free(struct dt_exec_graph *g);
/* The first member here of the op's group, which acts for all of them; the op itself outside. */
uint32_t dt_exec_leader(const struct dt_program *p, const struct dt_exec_ranks *ranks, uint32_t i);
/* The j-th dependency of op i; DT_NONE ends the list. */
uint32_t dt_exec_dep(const struct dt_program *p, uint32_t i, uint32_t j);
/* Users of what an op hands on: SENDs of it to this rank, and to others. */
int dt_exec_send_users(const struct dt_program *p, const struct dt_exec_ranks *ranks,
                       uint32_t send);

/* execute_share.c.  Collective: groups of replicas know the memory that they gather in, and their gradients, as long as
 * the stages are there. */
enum dt_status dt_exec_share(const struct dt_exec_stages *stages, struct dt_error *err);
void dt_exec_unshare(const struct dt_exec_stages *stages);
/* Does this virtual stage have the gradients that ranks sum, for all replicas of it that are here? */
bool dt_exec_sums(const struct dt_exec_stages *stages, const struct dt_exec_vstage *vs);

/* execute_gather.c: parameters that others have stepped. */
/* Does this stage gather parameters, for all replicas of it that are here? */
bool dt_exec_gathers(const struct dt_exec_stages *stages, const struct dt_exec_vstage *vs);
/* Memory for it, where what travels is not what lies in the masters. */
enum dt_status dt_exec_gather_room(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs,
                                   struct dt_error *err);
enum dt_status dt_exec_gather_post(struct dt_exec *x, uint32_t i, struct dt_error *err);
void dt_exec_gather_complete(struct dt_exec *x, uint32_t i);

/* execute_post.c: this rank's lowest replica of an op's stage. */
struct dt_exec_vstage *dt_exec_leader_stage(const struct dt_exec_stages *stages,
                                            const struct dt_op *op);
/* Does the bucket of the op hold the region? */
bool dt_exec_in_bucket(const struct dt_exec_stages *stages, const struct dt_op *op,
                       const struct dt_exec_region *u);
/* Posts an op of the communication thread; puts on its last queue what remains to be done when its
 * requests are over.  *landed: it did. */
enum dt_status dt_exec_post(struct dt_exec *x, uint32_t i, struct dt_error *err);
/* What needs the results of that: sums over groups of replicas.  To be posted when all of that is over, or on_queue at
 * once. */
enum dt_status dt_exec_post_more(struct dt_exec *x, uint32_t i, struct dt_error *err);
enum dt_status dt_exec_complete(struct dt_exec *x, uint32_t i, const struct dt_exec_packed *packed,
                                bool *landed, struct dt_error *err);
/* One more request of number i is under way. */
enum dt_status dt_exec_request_add(struct dt_exec_comm *c, uint32_t i, struct dt_transport *t,
                                   struct dt_req *req, struct dt_exec_packed *packed,
                                   struct dt_error *err);
/* "rank 3 on host: llm/0.1 RECV mb=2: " before the message of an error, once. */
enum dt_status dt_exec_error_at(const struct dt_exec *x, uint32_t i, enum dt_status st,
                                struct dt_error *err);

/* execute_norm.c.  Collective; each puts its work on queues and does not wait for the device. */
enum dt_status dt_exec_norm_init(struct dt_exec_norm *norm, const struct dt_exec_env *env,
                                 struct dt_error *err);
void dt_exec_norm_free(struct dt_exec_norm *norm, const struct dt_device *dev);
/* One rank: on the main queue. */
void dt_exec_norm_alone(struct dt_exec_norm *norm, const struct dt_exec_stages *stages);
/* Several: op i of the communication thread, and what lands of it. */
enum dt_status dt_exec_norm_post(struct dt_exec *x, uint32_t i, struct dt_error *err);
void dt_exec_norm_complete(struct dt_exec *x, uint32_t i);
/* The same on a rank that has no such op, as it trains nothing: waits for the others. */
enum dt_status dt_exec_norm_join(struct dt_exec *x, struct dt_error *err);

/* execute_time.c */
void dt_exec_events_free(struct dt_exec_events *events, const struct dt_device *dev);
enum dt_status dt_exec_event_room(struct dt_exec_events *events, const struct dt_device *dev,
                                  size_t n, struct dt_error *err);
/* Of the step that has been made: in compute ops; the compute queue stood still until other ranks had done something. */
void dt_exec_read_shares(const struct dt_exec *x, struct dt_exec_result *out);
enum dt_status dt_exec_read_timeline(struct dt_exec *x, struct dt_error *err,
                                     struct dt_timeline *t);

/* execute_loss.c */
void dt_exec_losses_free(struct dt_exec_losses *losses, const struct dt_device *dev);
enum dt_status dt_exec_loss_begin(struct dt_exec_losses *losses, struct dt_exec_iteration *it,
                                  const struct dt_exec_stages *stages, struct dt_error *err);
void dt_exec_loss_take(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                       const struct dt_exec_stages *stages, const struct dt_op *op,
                       const struct dt_exec_microbatch *s);
/* Sums of the samples of this rank, of which it has what the LLM's cut says; of all ranks after they have been
 * exchanged. */
void dt_exec_loss_sum(struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                      const struct dt_batch_cut *cut);
/* How uneven the iteration's routing was, over all ranks.  Collective. */
enum dt_status dt_exec_load_take(const struct dt_exec_stages *stages, struct dt_error *err,
                                 struct dt_exec_result *out);
void dt_exec_loss_end(const struct dt_exec_losses *losses, const struct dt_exec_iteration *it,
                      const struct dt_exec_env *env, struct dt_exec_result *out);

#endif
