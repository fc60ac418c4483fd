/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inside src/exec/modules only: nodes (blocks of a stage), weights (parameter matrices), flows, and
 * the wrappers through which blocks call kernels.
 *
 * A block is four functions (struct dt_nn_block_ops).  Its tensors are laid out by one function for
 * both directions, so a tensor that recompute does not keep simply lies in the workspace instead of
 * in saved memory, and the forward that fills it again is the same code. */
#ifndef DT_EXEC_MODULES_IMPL_H
#define DT_EXEC_MODULES_IMPL_H

#include "base/mem.h"
#include "exec/modules/module.h"
#include "kernels/kernels.h"

/* ---- parameters ---- */

/* What one kernel call takes: a matrix or filter (q, k and v in one), or a vector (in 0). */
struct dt_nn_weight {
    size_t at, n; /* floats */
    int64_t out, in;
    int kernel; /* filter side; 0 = linear */
    int block;  /* in the module */
    bool decay;
    bool product;               /* has a device weight */
    bool rounded, looked_up;    /* dt_param's */
    size_t exact_at;            /* in stage->exact */
    bool dealt;                 /* tensor parallelism: a slice; else the members hold the same */
    bool dealt_in;              /* a slice of its inputs, not of its outputs */
    bool expert;                /* a routed expert's: not every rank of an expert group has it */
    bool partial;               /* its gradient is of own rows or heads: a summand */
    struct dt_device_weight *w; /* NULL for tables and vectors */
    bool written;               /* the gradient holds something of this iteration */
};

/* Roles of weights, per kind of block; node->weight[role] is an index of stage->weights, -1 = absent. */
enum { EMB_TOKEN, EMB_POS, EMB_N };
enum { PATCH_W, PATCH_B, PATCH_POS, PATCH_CLASS, PATCH_N };
/* Side of the square grid of learned positions, which lie behind those of class tokens. */
int dt_nn_grid_side(const struct dt_block *p);
enum { NORM_G, NORM_B, NORM_N };
enum { PROJ_G, PROJ_GB, PROJ_W1, PROJ_B1, PROJ_W2, PROJ_B2, PROJ_N };
enum { HEAD_G, HEAD_B, HEAD_W, HEAD_N };
enum {
    TF_N1,
    TF_N1B,
    TF_QKV,
    TF_QKVB,
    TF_QN,
    TF_KN,
    TF_O,
    TF_OB,
    TF_N2,
    TF_N2B,
    TF_UP,
    TF_UPB,
    TF_DOWN,
    TF_DOWNB,
    TF_ROUTER,
    TF_ROUTERB,
    TF_SHARED_UP,
    TF_SHARED_UPB,
    TF_SHARED_DOWN,
    TF_SHARED_DOWNB,
    TF_SHARED_GATE,
    TF_N
};
/* Matrices of the e-th expert here; the role behind each is its bias. */
enum { DT_EXPERT_ROLES = 4 };
static inline int dt_nn_expert_up(int e)
{
    return TF_N + DT_EXPERT_ROLES * e;
}
static inline int dt_nn_expert_down(int e)
{
    return TF_N + DT_EXPERT_ROLES * e + 2;
}
enum { CONV_W, CONV_B, CONV_G, CONV_GB, CONV_N };
enum {
    RES_N1,
    RES_N1B,
    RES_C1,
    RES_C1B,
    RES_T,
    RES_TB,
    RES_N2,
    RES_N2B,
    RES_C2,
    RES_C2B,
    RES_S,
    RES_SB,
    RES_N
};
enum { TIME_W1, TIME_B1, TIME_W2, TIME_B2, TIME_N };
enum { SP_G, SP_GB, SP_IN, SP_INB, SP_OUT, SP_OUTB, SP_N };
enum { /* per transformer layer, after SP_N + layer * SPL_N */
       SPL_N1,
       SPL_N1B,
       SPL_QKV,
       SPL_O,
       SPL_OB,
       SPL_N2,
       SPL_N2B,
       SPL_Q,
       SPL_KV,
       SPL_O2,
       SPL_O2B,
       SPL_N3,
       SPL_N3B,
       SPL_UP,
       SPL_UPB,
       SPL_DOWN,
       SPL_DOWNB,
       SPL_N
};

/* ---- nodes ---- */

enum { DT_MAX_SKIPS = 256 };

enum dt_nn_lay_mode {
    DT_LAY_NONE,      /* everything kept */
    DT_LAY_SELECTIVE, /* all but the cheap */
    DT_LAY_FULL,      /* the input alone */
    DT_LAY_TRANSIENT  /* nothing: no backward follows */
};

struct dt_nn_call;
struct dt_nn_shape_facts;
/* A kind of block: a file fills it and DT_BLOCK_KINDS (core/model/model.h) names it. */
struct dt_nn_block_ops {
    void (*layout)(struct dt_nn_call *c);              /* sets pointers in c->act, counts areas */
    void (*forward)(struct dt_nn_call *c, bool again); /* again: all but the output */
    void (*backward)(struct dt_nn_call *c, int what);
    bool source; /* takes nothing from the block before; what it keeps is its input */
    /* Width of the running activation that it takes. */
    int64_t (*in_width)(const struct dt_block *b);
    /* Of what it hands on: the width, and *rows, of its level before; 0 = no running activation. */
    int64_t (*out_width)(const struct dt_block *b, int64_t *rows);
    /* Elements that a module which begins with it takes from other modules. */
    int64_t (*begin)(const struct dt_block *b, const struct dt_batch *m);
    /* What the module's facts must know of it, block i. */
    void (*note)(struct dt_nn_shape_facts *f, const struct dt_block *b, int i);
};
#define DECLARE(id, name, kind) extern const struct dt_nn_block_ops dt_nn_ops_##kind;
DT_BLOCK_KINDS(DECLARE)
#undef DECLARE
const struct dt_nn_block_ops *dt_nn_ops_of(const struct dt_block *b);
/* flow.c, for the rows: a block of the residual stream */
int64_t dt_nn_in_hidden(const struct dt_block *b);
int64_t dt_nn_out_hidden(const struct dt_block *b, int64_t *rows);
int64_t dt_nn_out_none(const struct dt_block *b, int64_t *rows);
int64_t dt_nn_begin_none(const struct dt_block *b, const struct dt_batch *m);
void dt_nn_note_nothing(struct dt_nn_shape_facts *f, const struct dt_block *b, int i);

struct dt_nn_node {
    const struct dt_block *b;
    const struct dt_nn_block_ops *ops;
    int index; /* in the module */
    bool trained;
    bool need;        /* something before it is trained: the input's gradient is wanted */
    bool keep;        /* it runs a backward */
    bool has_x;       /* takes the running activation */
    bool has_y;       /* gives it */
    bool own_x;       /* writes its input itself (noisy latents) */
    bool x_elsewhere; /* joins its input with a skip: keeps the join, not the input */
    int push;         /* skip that its output is; -1 */
    int pop;          /* skip that it takes; -1 */
    int source;       /* skip that its input is (pushed by its predecessor); -1 */
    int64_t x_width;
    enum dt_kernel_act act;
    float scale; /* of q·k, in a transformer layer */
    enum dt_nn_lay_mode mode;
    uint64_t drop_key[2]; /* of attention's and of the MLP's mask */
    int *weight;
    struct dt_param_range range;
    size_t partial_at, n_partial; /* gradients that dt_stage_grads_reduce sums */
};

/* Where a node's input and other tensors lie in saved memory. */
struct dt_nn_place {
    size_t x, rest; /* DT_NOWHERE: in the workspace */
};
#define DT_NOWHERE SIZE_MAX
struct dt_nn_carry {
    size_t time, context, skip[DT_MAX_SKIPS]; /* DT_NOWHERE: not in this stage, or a node's input */
    size_t bytes;                             /* of saved memory in all */
    size_t passing;                           /* of which no block's */
};

/* Module-wide facts about U-Nets and their skips. */
struct dt_nn_skip {
    int push, pop; /* blocks */
    int level;     /* of the pushed activation */
    int channels;
};

struct dt_nn_shape_facts {
    int n_skips;
    struct dt_nn_skip skip[DT_MAX_SKIPS];
    int time_first, time_last; /* boundaries at which the time embedding is live: [first, last] */
    int context_first, context_last;
    int conv_in; /* block; -1 */
    int time_dim, context_dim, context_len;
    int in_channels, out_channels, levels, patch_width;
    int n_transformers;
    int grid_dim; /* elements of a head that turn by a patch's place; 0 = none do */
    bool experts; /* a block has some */
    int window;   /* patches a side of the windows that layers attend to; 0 = none */
};
enum dt_status dt_nn_shape_facts(const struct dt_module *m, struct dt_error *err,
                                 struct dt_nn_shape_facts *out);

struct dt_stage {
    const struct dt_device *dev;
    const struct dt_module *module;
    struct dt_module own_module; /* copy of the caller's, with own blocks */
    int first, last;
    enum dt_dtype dtype;
    struct dt_tp *tp;              /* NULL: one member */
    struct dt_tp *cp;              /* context parallelism; NULL: one member */
    bool ring;                     /* their keys and values go round a ring */
    struct dt_tp *ep;              /* the members that share its experts; NULL: all are here */
    struct dt_nn_routing *routing; /* of experts (experts.c); NULL: it has none */
    bool seqpar;                   /* members hold their own rows between blocks */
    int chunks;                    /* of a collective and its product, under sequence parallelism */
    char *chunk_rows, *chunk_part; /* inside work: all rows, and a chunk of dealt columns */
    bool upstream, split, any_backward;
    float dropout;
    struct dt_batch_limits max;
    struct dt_module_arithmetic numbers; /* the module's; norm_eps is never 0 */
    struct dt_nn_shape_facts facts;
    struct dt_nn_node *nodes;  /* [last - first] */
    struct dt_nn_place *place; /* [last - first], of the call under way */
    struct dt_nn_weight *weights;
    struct dt_param *params;
    int n_weights, n_params;
    size_t cap_weights, cap_params;
    size_t floats;
    float *master, *grads;
    bool masters_away; /* there are none; what kernels read in fp32 is in `exact`, tables last */
    float *exact;
    size_t exact_floats;
    uint16_t *rounded; /* dt_stage_rounded */
    bool is_away;      /* that, or the masters: on the host (dt_stage_leave) */
    struct dt_stage_memory gathered, summed; /* alloc is NULL: the device's */
    float *ones;                             /* host memory */
    struct dt_kernel_span *unwritten;        /* the same: room for dt_stage_grads_finish's table */
    float *rope;                             /* cosines and sines; NULL without rotary positions */
    char *work;
    size_t work_bytes, block_bytes, temp_bytes;
    char *block_work, *temp[2]; /* inside work */
    char *own_saved;            /* inside work; for stages without a backward */
    char *g_time, *g_context, *g_skip[DT_MAX_SKIPS]; /* gradients of what the flow carries */
    char *grad_y; /* which temp holds the gradient between parts */
    struct dt_arena arena;
};

/* ---- areas ---- */

struct dt_nn_area {
    char *base;
    size_t used;
};
/* Exact sizes in saved memory (fp32 tensors come first), 64-byte steps in work areas. */
void *dt_nn_area_take(struct dt_nn_area *a, size_t bytes, bool exact);
static inline size_t dt_nn_round64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

struct dt_nn_tf_act {
    float *mean1, *rstd1, *mean2, *rstd2, *rq, *rk, *lse;
    char *n1, *qkv, *raw, *o, *x2, *n2, *h, *a;
    float *prob; /* experts: of every row's, fp32 */
    char *taken, *sg, *sh,
        *sa; /* rows that experts here take, by expert; the shared experts' gate, h and a */
};
struct dt_nn_sp_layer {
    float *mean[3], *rstd[3], *lse1, *lse2;
    char *x, *n1, *qkv, *o, *x2, *n2, *q, *kv, *o2, *x3, *n3, *h, *a;
};
enum { DT_SP_DEPTH_MAX = 64 };
union dt_nn_act_union {
    struct dt_nn_tf_act tf;
    struct {
        int32_t *ids, *pos;
    } emb;
    struct {
        char *px;
    } patch;
    struct {
        float *mean, *rstd;
        char *dn;
    } norm; /* final norm and LM head */
    struct {
        float *mean, *rstd;
        char *n, *h, *a;
    } proj;
    struct {
        char *sin, *h, *a;
    } time;
    struct {
        float *mean, *rstd;
        char *s;
    } conv;
    struct {
        float *mean1, *rstd1, *mean2, *rstd2;
        char *x, *s1, *h1, *s2;
    } res;
    struct {
        float *mean, *rstd;
        char *n, *t;
        struct dt_nn_sp_layer layer[DT_SP_DEPTH_MAX];
    } sp;
};

/* One block at work. */
struct dt_nn_call {
    struct dt_device_queue *q;
    const struct dt_kernels *k;
    struct dt_stage *s;
    struct dt_nn_node *n;
    const struct dt_block *b;
    const struct dt_batch *batch;
    enum dt_dtype dtype;
    size_t es; /* bytes of an element */
    struct dt_nn_area saved, work, stash;
    union dt_nn_act_union act;
    char *x, *y, *dy, *dx; /* dx NULL: not wanted; a block may point dx at dy (in place) */
    const char *in_rows;   /* embedding: the encoders' features */
    char *d_in_rows;
    char *out_rows; /* LM head: conditioning states */
    const char *d_out_rows;
    char *time, *context; /* flow */
    const char *skip;
    char *d_time, *d_context, *d_skip; /* d_time, d_context are added to, d_skip is written */
};

/* Saved by this mode or else in the workspace.  `cheap`: what norms and activations produce. */
void *dt_nn_keep(struct dt_nn_call *c, size_t bytes, bool cheap);
/* Gradients inside a block; `later`: backward_weight reads it. */
void *dt_nn_grad(struct dt_nn_call *c, size_t bytes, bool later);
static inline void *dt_nn_work(struct dt_nn_call *c, size_t bytes)
{
    return dt_nn_area_take(&c->work, bytes, false);
}
static inline void *dt_nn_keep_rows(struct dt_nn_call *c, int64_t rows, int64_t width, bool cheap)
{
    return dt_nn_keep(c, (size_t)rows * (size_t)width * c->es, cheap);
}
static inline float *dt_nn_keep_f32(struct dt_nn_call *c, int64_t n, bool cheap)
{
    return dt_nn_keep(c, (size_t)n * 4, cheap);
}
static inline char *dt_nn_work_rows(struct dt_nn_call *c, int64_t rows, int64_t width)
{
    return dt_nn_work(c, (size_t)rows * (size_t)width * c->es);
}
static inline char *dt_nn_grad_rows(struct dt_nn_call *c, int64_t rows, int64_t width, bool later)
{
    return dt_nn_grad(c, (size_t)rows * (size_t)width * c->es, later);
}
static inline char *dt_nn_off(const void *p, int64_t elems, size_t es)
{
    return (char *)(uintptr_t)p + elems * (int64_t)es;
}
/* Sizes are being counted, nothing runs. */
static inline bool dt_nn_counting(const struct dt_nn_call *c)
{
    return c->q == NULL;
}

/* ---- wrappers (call.c) ---- */

struct dt_nn_weight *dt_nn_weight_of(const struct dt_nn_call *c, int role); /* NULL = absent */
float *dt_nn_master_of(const struct dt_nn_call *c, int role);
/* params.c: where it is in fp32; NULL: nowhere. */
float *dt_nn_weight_exact(const struct dt_stage *s, const struct dt_nn_weight *w);
float *dt_nn_grad_of(const struct dt_nn_call *c, int role);
void dt_nn_linear(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b,
                  const void *residual, void *y);
/* h = x W + b, y = act(h); and dh = (dy W) act'(h) instead of dx. */
struct dt_nn_act {
    enum dt_kernel_act act;
    void *h;
};
void dt_nn_linear_act(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b,
                      const struct dt_nn_act *a, void *y);
void dt_nn_linear_act_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, const struct dt_nn_act *a, void *dh);
/* dx (+)= when `what` has INPUT and dx is not NULL; weight gradients when it has WEIGHT and the
 * block is trained. */
void dt_nn_linear_back(struct dt_nn_call *c, int what, int64_t rows, const void *x, const void *dy,
                       int w, int b, void *dx, bool add);
/* The gradient of bias b, which is trained, takes the column sums of dy. */
void dt_nn_bias_back(struct dt_nn_call *c, int64_t rows, const void *dy, int b);
void dt_nn_norm(struct dt_nn_call *c, const struct dt_kernel_norm *n, bool layernorm, const void *x,
                int g, int b, void *y, float *mean, float *rstd);
void dt_nn_norm_back(struct dt_nn_call *c, int what, const struct dt_kernel_norm *n, bool layernorm,
                     const void *x, int g, int b, const float *mean, const float *rstd,
                     const void *dy, void *dx, bool add);
void dt_nn_copy(struct dt_nn_call *c, void *dst, const void *src, size_t bytes);
/* y = x with some elements dropped and the others scaled, own rows; y may be x. */
enum { DT_DROP_ATTENTION, DT_DROP_MLP };
void dt_nn_drop(struct dt_nn_call *c, int which, int64_t width, const void *x, void *y);
static inline bool dt_nn_drops(const struct dt_nn_call *c)
{
    return c->s->dropout > 0 && c->n->keep && c->batch->train;
}
/* Room for a gradient behind a mask: own rows. */
char *dt_nn_drop_room(struct dt_nn_call *c, int64_t rows, int64_t width);

/* ---- tensor parallelism (tp.c) ----
 *
 * `own`: this member's rows under sequence parallelism, else all.  Work buffers are made for all
 * rows, by the block, and only where there are other members (dt_nn_tp_room). */

/* This member's share of n things. */
static inline int64_t dt_nn_mine(const struct dt_stage *s, int64_t n)
{
    return dt_tp_count(s->tp, n, dt_tp_rank(s->tp));
}
static inline int64_t dt_nn_mine_first(const struct dt_stage *s, int64_t n)
{
    return dt_tp_first(s->tp, n, dt_tp_rank(s->tp));
}
static inline int64_t dt_nn_own_rows(const struct dt_stage *s, int64_t rows)
{
    return s->seqpar ? dt_nn_mine(s, rows) : rows;
}
static inline int64_t dt_nn_own_first(const struct dt_stage *s, int64_t rows)
{
    return s->seqpar ? dt_nn_mine_first(s, rows) : 0;
}
/* NULL with one member. */
char *dt_nn_tp_room(struct dt_nn_call *c, int64_t rows, int64_t width);
/* All rows of what members have in own ones: in `room`, or x itself where it is whole. */
char *dt_nn_whole_rows(struct dt_nn_call *c, int64_t rows, int64_t width, const void *x,
                       char *room);
/* own y (+)= own rows of the sum over members of `part`, which is lost. */
void dt_nn_own_sum(struct dt_nn_call *c, int64_t rows, int64_t width, char *part, void *y,
                   bool add);
/* In place over members: x becomes the sum. */
void dt_nn_sum(struct dt_nn_call *c, int64_t n, void *x);
/* A product whose output (col) or input (row) is dealt, from own rows or to own rows. */
void dt_nn_linear_col(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b, void *y,
                      char *room);
void dt_nn_linear_row(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b,
                      const void *residual, void *y, char *room);
/* What comes between them: of a col's output, of a row's input. */
void dt_nn_linear_col_act(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b,
                          const struct dt_nn_act *a, void *y, char *room);
void dt_nn_linear_row_act_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                               const void *dy, int w, int b, const struct dt_nn_act *a, void *dh,
                               char *room);
/* x and dx own (dx may be NULL), two rooms. */
void dt_nn_linear_col_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, void *dx, char *room_x, char *room_dx);
/* dy own. */
void dt_nn_linear_row_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, void *dx, char *room);
/* The same four in chunks (tp_chunks.c); into how many `rows` go: 1 = they do not.  The backward of a row's needs
 * its dx. */
int dt_nn_chunks(const struct dt_stage *s, int64_t rows);
void dt_nn_chunks_col(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b, void *y,
                      char *room);
void dt_nn_chunks_row(struct dt_nn_call *c, int64_t rows, const void *x, int w, int b, void *y,
                      char *room);
void dt_nn_chunks_col_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, void *dx, char *room_x, char *room_dx);
void dt_nn_chunks_row_back(struct dt_nn_call *c, int what, int64_t rows, const void *x,
                           const void *dy, int w, int b, void *dx, char *room);
/* Bytes of chunk_rows and chunk_part. */
void dt_nn_chunks_bytes(const struct dt_stage *s, size_t *rows, size_t *part);
/* Channels: `grains` of `grain` channels each are dealt.  A room has place for every member's
 * columns side by side; `mine` is where this one's go, dense. */
char *dt_nn_channels_mine(struct dt_nn_call *c, int64_t rows, int64_t grains, int64_t grain,
                          char *room);
void dt_nn_channels_join(struct dt_nn_call *c, int64_t rows, int64_t grains, int64_t grain,
                         char *room, void *y);
/* This member's columns of x, dense, in `room`; x itself with one member. */
const void *dt_nn_channels_cut(struct dt_nn_call *c, int64_t rows, int64_t grains, int64_t grain,
                               const void *x, char *room);

/* ---- context parallelism (context.c) ---- */

/* Work buffers, NULL with one member: rows of keys and values, side by side, of all members or of two of a ring, and
 * those that own queries see in a step; their gradients; on a ring what comes of a step: output or gradient of queries,
 * log-sum-exp, and the sum of outputs in fp32 where these are bf16. */
struct dt_nn_context {
    int64_t q, kv; /* widths of all heads' queries, and of keys or values */
    char *all, *seen, *d_all, *d_seen, *part;
    float *part_lse, *sum;
};
struct dt_nn_context dt_nn_context_room(struct dt_nn_call *c, int64_t q, int64_t kv, int64_t heads,
                                        bool back);
/* Attention of own queries to the keys of all that they see.  Own q, k and v lie side by side in rows of qkv, which are
 * a's stride_q long; a's keys are left out.  dqkv: all three gradients. */
struct dt_nn_attended {
    const char *qkv, *o;
    const float *lse;
};
void dt_nn_context_attend(struct dt_nn_call *c, const struct dt_nn_context *r,
                          const struct dt_kernel_attention *a, const char *qkv, char *o,
                          float *lse);
void dt_nn_context_attend_back(struct dt_nn_call *c, const struct dt_nn_context *r,
                               const struct dt_kernel_attention *a, const struct dt_nn_attended *t,
                               const char *d_o, char *dqkv);
/* The same on a ring (context_ring.c). */
void dt_nn_ring_attend(struct dt_nn_call *c, const struct dt_nn_context *r,
                       const struct dt_kernel_attention *a, const char *qkv, char *o, float *lse);
void dt_nn_ring_attend_back(struct dt_nn_call *c, const struct dt_nn_context *r,
                            const struct dt_kernel_attention *a, const struct dt_nn_attended *t,
                            const char *d_o, char *dqkv);
/* Rows of a member's place. */
int64_t dt_nn_context_place(const struct dt_nn_call *c);
/* Own rows of x, `stride` apart, into a member's place. */
void dt_nn_context_bring(struct dt_nn_call *c, const struct dt_nn_context *r, const void *x,
                         int64_t stride, char *place);
/* A step: the keys of one place, or of all (dt_batch).  Begins with zeros. */
struct dt_nn_step {
    int64_t number, first; /* its first key among those of all steps */
};
void dt_nn_context_next(const struct dt_nn_call *c, struct dt_nn_step *step);
/* r->seen = what own queries see of `from` in the step, and a says so. */
void dt_nn_context_see(struct dt_nn_call *c, const struct dt_nn_context *r,
                       const struct dt_nn_step *step, const char *from,
                       struct dt_kernel_attention *a);
/* Its transpose: r->d_seen is added to the rows of `to`. */
void dt_nn_context_add(struct dt_nn_call *c, const struct dt_nn_context *r,
                       const struct dt_nn_step *step, char *to);

/* ---- experts (experts.c) ----
 *
 * The MLP of a layer with experts, from n2 on: what forward keeps, its output, and backwards.  layout, forward and
 * backward take the same areas in the same order whether sizes are counted or not. */
enum dt_status dt_nn_routing_new(struct dt_stage *s, struct dt_error *err);
void dt_nn_routing_free(struct dt_stage *s);
/* Experts of a block that are here, and the number of the first. */
int dt_nn_experts_here(const struct dt_stage *s, const struct dt_block *b);
int dt_nn_experts_first(const struct dt_stage *s, const struct dt_block *b);
void dt_nn_experts_layout(struct dt_nn_call *c);
/* y NULL: all but the output. */
void dt_nn_experts_forward(struct dt_nn_call *c, char *y);
/* dy: the gradient of y, own rows, as y and dn2 are, which is overwritten. */
void dt_nn_experts_backward(struct dt_nn_call *c, int what, const char *dy, char *dn2);

/* A flow gradient as backward_weight finds it later: copied into the stash by backward_input. */
char *dt_flow_kept(struct dt_nn_call *c, int what, const char *gradient, int64_t elems);

/* Runs of images of one size at a U-Net level: a convolution takes one size. */
struct dt_nn_images {
    int64_t first, n; /* images */
    int64_t h, w, row;
};
bool dt_nn_images_next(const struct dt_batch *b, int level,
                       struct dt_nn_images *it); /* starts from zeros */
int64_t dt_nn_level_rows(const struct dt_batch *b, int level);
/* All images of a U-Net's batch at a level, for kernels. */
struct dt_kernel_items dt_nn_items(const struct dt_batch *b, int level);
struct dt_kernel_images dt_nn_image_sizes(const struct dt_batch *b, int level);
int64_t dt_nn_level_longest(const struct dt_batch *b, int level);
/* GroupNorm (+ SiLU) over all images, convolutions over all runs; sizes are those of the input at `level`. */
struct dt_nn_norm_at {
    int level, channels, groups;
    float eps;
    bool silu;
};
static inline struct dt_nn_norm_at dt_nn_norm_whole(const struct dt_block *b, int channels,
                                                    float eps, bool silu)
{
    return (struct dt_nn_norm_at){b->level, channels, dt_block_groups(b, channels), eps, silu};
}
void dt_nn_groupnorm(struct dt_nn_call *c, const struct dt_nn_norm_at *at, const void *x, int g,
                     int b, void *y, float *mean, float *rstd);
void dt_nn_groupnorm_back(struct dt_nn_call *c, int what, const struct dt_nn_norm_at *at,
                          const void *x, int g, int b, const float *mean, const float *rstd,
                          const void *dy, void *dx, bool add);
struct dt_nn_conv_at {
    int level;
    bool doubled; /* input at twice the level's size */
    int c_in, c_out, kernel, stride;
};
/* b < 0: without bias */
void dt_nn_conv(struct dt_nn_call *c, const struct dt_nn_conv_at *a, const void *x, int w, int b,
                const void *residual, void *y);
void dt_nn_conv_back(struct dt_nn_call *c, int what, const struct dt_nn_conv_at *a, const void *x,
                     const void *dy, int w, int b, void *dx, bool add);

/* ---- params.c, names.c ---- */

/* How a matrix is dealt to the members: its outputs or inputs, which are n parts one after another,
 * part k of grains[k] grains of `size` each; every part is dealt by grains. */
enum dt_nn_deal_by { DT_DEAL_NONE, DT_DEAL_OUT, DT_DEAL_IN };
struct dt_nn_deal {
    enum dt_nn_deal_by by;
    int n;
    int64_t grains[DT_PIECES_MAX];
    int64_t size;
};
/* Adds a weight to the node being built; out and in are the whole matrix's, deal NULL = none.
 * Returns its index or -1 when out of memory. */
int dt_nn_weight_add(struct dt_stage *s, struct dt_nn_node *n, int role, int64_t out, int64_t in,
                     int kernel, bool product, const struct dt_nn_deal *deal);
/* Elements of one of a weight's rows. */
static inline size_t dt_nn_weight_row(const struct dt_nn_weight *p)
{
    size_t in = p->decay ? (size_t)p->in : 1;

    return p->kernel > 0 ? in * (size_t)p->kernel * (size_t)p->kernel : in;
}
/* Says which slice of the parameter added last is here. */
void dt_param_deal(struct dt_stage *s, const struct dt_nn_deal *deal);
/* Names rows [row, row + rows) of a weight.  shape: Hugging Face's. */
enum dt_status dt_param_add(struct dt_stage *s, int weight, int64_t row, int64_t rows, int n_dims,
                            const int64_t *shape, enum dt_param_init init, double std,
                            bool transpose, struct dt_error *err, const char *fmt, ...)
    __attribute__((format(printf, 11, 12)));
/* Weights and names of every block of the stage. */
enum dt_status dt_nn_names(struct dt_stage *s, struct dt_error *err);
/* Offsets; then memory and device weights. */
void dt_params_place(struct dt_stage *s);
enum dt_status dt_params_allocate(struct dt_stage *s, struct dt_error *err);
void dt_params_free(struct dt_stage *s);

/* ---- flow.c ---- */

/* Calls back for each tensor of the flow before block `at`, in order; sizes in bytes. */
enum dt_flow_kind { DT_FLOW_H, DT_FLOW_TIME, DT_FLOW_CONTEXT, DT_FLOW_SKIP };
struct dt_flow {
    enum dt_flow_kind kind;
    int skip;
    size_t bytes;
};
enum { DT_FLOWS_MAX = DT_MAX_SKIPS + 3 };
int dt_flow_list(const struct dt_stage *s, const struct dt_batch *b, int at,
                 struct dt_flow out[DT_FLOWS_MAX]);
/* Rows [first, first + n) of `all`: what this member exchanges at an end of the module. */
struct dt_flow_share {
    int64_t all, first, n, width;
};
/* Of the conditioning states that come into a U-Net, which keeps them whole; else nothing. */
struct dt_flow_share dt_flow_states(const struct dt_stage *s, const struct dt_batch *b);
int64_t dt_nn_node_rows(const struct dt_stage *s, const struct dt_nn_node *n,
                        const struct dt_batch *b);
size_t dt_nn_node_x_bytes(const struct dt_stage *s, const struct dt_nn_node *n,
                          const struct dt_batch *b);
/* Bytes of the running activation that a node leaves. */
size_t dt_nn_output_bytes(const struct dt_stage *s, const struct dt_nn_node *n,
                          const struct dt_batch *b);
/* Rows and width of the running activation that leaves block `last` - 1, of all members; merged patches are a row. */
int64_t dt_nn_rows_after(const struct dt_stage *s, const struct dt_batch *b, int last,
                         int64_t *width);
/* Places of everything in saved memory. */
void dt_nn_saved_places(struct dt_stage *s, const struct dt_batch *b, struct dt_nn_place *place,
                        struct dt_nn_carry *carry);
/* Bytes of a node's kept tensors besides its input, of its workspace and of its stash. */
void dt_nn_node_sizes(struct dt_stage *s, struct dt_nn_node *n, const struct dt_batch *b,
                      size_t *rest, size_t *work, size_t *stash);

#endif
