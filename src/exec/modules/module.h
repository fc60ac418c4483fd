/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Modules that run: a range of a module's blocks on one device.
 *
 * A *stage* is blocks [first, last) of a struct dt_module: the very blocks that the core costs, so
 * a boundary may fall between any two of them.  What crosses a boundary is the *flow*: the running
 * activation and, in a U-Net, whatever a later block still needs (time embedding, conditioning
 * states, skips).
 *
 *            in (flow before `first`)                   out (flow before `last`, or the module's
 *                  |                                     features / conditioning states)
 *        [block] [block] [block]  --- saved memory: one region per microbatch in flight
 *                  |                                    din <- backward <- dout, the same layout
 *
 * Who owns what: the stage owns parameters, gradients, weights and one workspace, all sized by
 * dt_stage_new; the caller owns batches, flow buffers and saved memory.  Nothing is allocated after
 * that.  Calls put kernels on a queue and return; failures stick to the queue (kernels/device.h).
 *
 * A microbatch's life:  forward -> (other microbatches) -> backward, or input-gradients and later
 * weight-gradients.  At most one forward and one backward of a stage are under way at a time. */
#ifndef DT_EXEC_MODULES_MODULE_H
#define DT_EXEC_MODULES_MODULE_H

#include "core/model/model.h"
#include "kernels/device.h"
#include "comm/transport.h"

/* ---- batches --------------------------------------------------------------------------------- */

enum { DT_BATCH_LEVELS = 8 }; /* U-Net resolutions, as core's DT_MAX_LEVELS */

struct dt_batch_limits {
    int64_t rows;    /* tokens: text tokens, patches or latent pixels */
    int64_t seqs;    /* LLM: documents (padding counts as one); encoder, generator: images */
    int64_t in;      /* LLM: rows taken from encoders */
    int64_t cond;    /* LLM: rows handed to generators */
    int64_t max_len; /* longest sequence in rows; 0 = rows */
    int64_t keys, keys_step, steps, gathered; /* context parallelism (dt_batch), else 0 */
    int64_t samples;                          /* the same: samples that have rows at any member */
    int64_t routed;                           /* expert parallelism (dt_batch), else 0 */
};

/* Context parallelism: member `mine` of n has some rows of every sequence, of a document at most two stretches, an early
 * and a late one.  n < 2: everything.
 *
 * Tensor parallelism: of `tp` members, each of which has all of these rows, member `part` exchanges its share of them
 * with other modules (dt_batch_own).  tp < 2: all. */
struct dt_batch_cut {
    int n, mine;
    bool ring; /* keys and values go round a ring; else they are gathered */
    int tp, part;
};
/* Of `rows` of a batch those [*lo, *hi) that a member exchanges: shares as of dt_tp_first. */
static inline void dt_batch_own(const struct dt_batch_cut *c, int64_t rows, int64_t *lo,
                                int64_t *hi)
{
    struct dt_tp tp = {.size = c->tp > 1 ? c->tp : 1};

    *lo = dt_tp_first(&tp, rows, c->part);
    *hi = *lo + dt_tp_count(&tp, rows, c->part);
}

/* One microbatch of one module.  The caller fills `host` arrays and counts, then calls
 * dt_batch_upload; kernels read the twins in `dev`.
 *
 * LLM       rows, n_seq, cu, pos, ids (-1: no token, e.g. an image's rows), target (< 0: none);
 *           in_row[i] = row that takes the i-th row of the encoders' features; cond_row[i] = row
 *           whose final state is the i-th row handed on; both of rows that this member exchanges
 *           (dt_batch_own).  dt_batch_documents writes cu and pos.  Of a cut batch: see struct
 *           dt_batch.
 * encoder   hw = patches down and across per image, pixels = patch rows of channels*patch*patch
 *           (channel, y, x).  dt_batch_patches writes all of these from images.
 * generator hw = latent height and width per image, x0 = clean latents NHWC, t = timestep, alpha
 *           and sigma of it (x_t = alpha x0 + sigma noise), stream; dt_batch_latents and
 *           dt_batch_diffuse write them. */
struct dt_batch_arrays {
    int32_t *cu, *pos, *ids, *target, *in_row, *cond_row;
    int32_t *begin, *cu_keys, *key_at; /* of a cut batch, else NULL */
    int32_t *cu_sample; /* LLM with experts, else NULL: [seqs + 1]; cut: [2 samples + 1] */
    float *sample_part; /* the same, cut: [2 samples] */
    uint64_t *
        stream; /* [seqs]: of what is drawn for an image or document, e.g. its sample number: noise of a
                       * generator, dropout elsewhere */
    int32_t (*hw)[2]; /* images, [seqs] */
    float *pixels;    /* encoder: [rows][channels*patch*patch]; generator: x0 [rows][in_channels] */
    float *turn;      /* encoder with grid_rope: [rows][cosines | sines], else NULL */
    /* encoder with windows, else NULL: rows before each, [squares + 1]; of the squares of merged patches, in the order of
     * images and in it row by row, the place where they lie, [squares] */
    int32_t *cu_window, *square;
    float *t, *alpha, *sigma;           /* [seqs] */
    int32_t *cu_level[DT_BATCH_LEVELS]; /* generator: pixels before each image, per level */
    int32_t *cu_context;                /* generator: conditioning rows before each image */
    /* device only, written by the stage */
    float *noise;  /* generator: [rows][in_channels] */
    float *pred;   /* generator: predicted noise [rows][out_channels] */
    float *nll;    /* LLM: [rows], 0 where there is no target */
    int32_t *best; /* LLM: [rows], the likeliest next token */
    float *sse;    /* generator: squared error summed over each image [seqs] */
};

struct dt_batch {
    const struct dt_device *device;
    const struct dt_module *module;
    struct dt_batch_limits max, room; /* of its memory; of its arrays, dt_batch_fit */
    bool train;                       /* a backward may follow; else losses and predictions only */
    bool given_noise; /* generator: x_t is given in x0, nothing is mixed in; no loss (sampling) */
    float loss_scale; /* gradients are of loss_scale * sum over targets (LLM) or images (generator,
                       * each image's mean squared error) */
    uint64_t noise_seed; /* of noise and dropout */
    int64_t rows, n_seq, n_in, n_cond;
    int64_t n_cond_all; /* n_cond of all tensor-parallel members together */
    int64_t max_len;    /* longest sequence present */
    /* LLM, cut: the rows are the early stretches of all documents, then the late ones.  A "sequence" is a stretch; it
     * begins at row begin[i] of its document and sees the document's rows up to its own end.  Every member's rows have a
     * place of gathered / n rows.  Members gather them, and all that are seen are the keys of one step; or they go round a
     * ring, and step t has those of member mine - t, modulo n.  Sequence i sees in step t cu[i] .. cu[i + 1] of its keys,
     * cu = cu_keys + t (n_seq + 1); its j-th key is row key_at[j] of what was gathered, or of the member's place, key_at
     * counted on from the steps before.  Within a step no row is twice among the keys of the first n_early sequences,
     * those of the early half, nor among those of the others. */
    struct dt_batch_cut cut;
    int64_t n_early, gathered;
    int64_t steps, keys, keys_step; /* keys: of all steps; of the step that has most */
    int64_t max_keys;               /* most that a sequence sees in a step */
    /* LLM with experts: room for rows of this microbatch at all members of the expert group together (0: as many at each
     * as here), and the samples, sample i being rows cu_sample[i] .. cu_sample[i + 1], in which routing is to be even:
     * balance_scale times the sum over them of experts' loads times p (kernels.h, route_load) is a loss, too.  Of a cut
     * batch these are the early halves of all samples, then the late ones, and sample_part says which part of the sample's
     * rows, which are at all members, that is. */
    int64_t routed, n_sample;
    float balance_scale;
    int32_t *doc_of; /* host, [rows]: room for the caller, e.g. for dt_batch_documents */
    int grid_dim;    /* see `turn`; 0 = none */
    /* encoder with windows of so many patches a side: patches lie window by window, in it as elsewhere */
    int window;
    int64_t n_window, max_window; /* how many there are; rows of the largest */
    float *angles;                /* host: of row or column i of an image, [i][cosines | sines] */
    struct dt_batch_arrays host, dev;
    void *host_memory, *dev_memory; /* what the arrays lie in */
    size_t upload_bytes;            /* of the host's, which are the device's first */
};

enum dt_status dt_batch_new(const struct dt_device *dev, const struct dt_module *m,
                            const struct dt_batch_limits *max, struct dt_error *err,
                            struct dt_batch **out);
void dt_batch_free(struct dt_batch *b);
/* From now on the arrays have room for that many of everything, side by side, so that an upload copies no more; at
 * first, for as many as the limits.  What has been filled is lost. */
enum dt_status dt_batch_fit(struct dt_batch *b, const struct dt_batch_limits *need,
                            struct dt_error *err);
/* Checks counts, lengths and sizes against limits and the module, then copies, at once.  DT_ERR_INPUT: a
 * latent size that the U-Net cannot halve often enough, an index out of range, too much of
 * something. */
enum dt_status dt_batch_upload(struct dt_device_queue *q, struct dt_batch *b, struct dt_error *err);
/* Work as the core counts it (sums over documents or images). */
void dt_batch_work(const struct dt_batch *b, struct dt_work *out);

/* LLM: rows of one document have one number and lie together; sets rows, n_seq, cu, pos, and all as one sample. */
enum dt_status dt_batch_documents(struct dt_batch *b, const int32_t *doc_of, int64_t rows,
                                  struct dt_error *err);
/* Encoder: appends an 8-bit RGB image [h][w][3] (channels 1: its red), cut into ceil(h/p) x
 * ceil(w/p) patches, edges repeated; value v becomes v/127.5 - 1 (mean and deviation 0.5, ViT's
 * published preprocessing).  Positions: 2-D, see doc/modules.md.  b->rows = b->n_seq = 0 starts
 * anew. */
enum dt_status dt_batch_patches(struct dt_batch *b, const uint8_t *px, int w, int h,
                                struct dt_error *err);
/* Encoder of sound: appends a spectrogram [frames][bins] of floats, cut into rows of bins / p patches; frames behind
 * the last full row are left out, the only row of a shorter one repeats its last frame.  Learned positions are the
 * patches' numbers, and there must be enough. */
enum dt_status dt_batch_spectrogram(struct dt_batch *b, const float *x, int bins, int64_t frames,
                                    struct dt_error *err);
/* Generator: appends latents [h][w][in_channels] of one image with its noise stream; x0 may be where
 * they will lie, host.pixels + rows * in_channels. */
enum dt_status dt_batch_latents(struct dt_batch *b, const float *x0, int w, int h, uint64_t stream,
                                struct dt_error *err);

/* ---- noise schedules (diffusion.c) ------------------------------------------------------------
 */

enum dt_diffusion_schedule { DT_NOISE_LINEAR, DT_NOISE_SCALED_LINEAR, DT_NOISE_COSINE, DT_NOISE_N };
extern const char
    *const dt_diffusion_schedule_names[]; /* "linear", "scaled-linear", "cosine", NULL */
struct dt_diffusion {
    enum dt_diffusion_schedule schedule;
    int steps;         /* 1000 */
    double *alpha_bar; /* [steps], product of 1 - beta */
};
enum dt_status dt_diffusion_init(struct dt_diffusion *d, enum dt_diffusion_schedule s, int steps,
                                 struct dt_error *err);
void dt_diffusion_free(struct dt_diffusion *d);
/* Draws every image's timestep from (seed, stream[i], draw) and sets t, alpha, sigma. */
void dt_batch_diffuse(struct dt_batch *b, const struct dt_diffusion *d, uint64_t seed,
                      uint64_t draw);
/* One DDIM step (Song et al. 2021) from timestep t to `to` (-1: to the clean image), in place on n
 * values; clip > 0 bounds the estimate of the clean image.  eta: 0 = deterministic, 1 = as much
 * fresh noise as DDPM adds (`fresh`, may be NULL with eta 0). */
void dt_diffusion_ddim_step(const struct dt_diffusion *d, int t, int to, double clip, double eta,
                            int64_t n, const float *eps, const float *fresh, float *x);

/* ---- parameters --------------------------------------------------------------------------------
 */

enum dt_param_init { DT_INIT_ZERO, DT_INIT_ONE, DT_INIT_NORMAL };

/* Indices first .. first + count of one dimension. */
struct dt_param_piece {
    int64_t first, count;
};
enum { DT_PIECES_MAX = 3, DT_PARAM_DIMS_MAX = 5 };

/* A named tensor in the stage's flat fp32 buffers, `at` counted in floats.  Shape is Hugging
 * Face's. `transpose`: Hugging Face stores [in][out] (GPT-2's Conv1D), here it lies as [out][in].
 *
 * Under tensor parallelism `shape` is the whole tensor's and `n` what lies here.  n_pieces > 0:
 * dimension `split` of `shape` is dealt, and this member holds these indices of it, one piece after
 * the other (one tensor q|k|v gives some of each); dt_param_run has it by elements.  Else the
 * member holds all of it, and `replicated` says that the others do too, with equal values.
 * Whoever writes tensors to files must put the members' slices together. */
struct dt_param {
    char name[112];
    int n_dims;
    int64_t shape[DT_PARAM_DIMS_MAX];
    int split, n_pieces;
    struct dt_param_piece piece[DT_PIECES_MAX];
    bool replicated;
    size_t at, n;
    bool transpose;
    bool decay; /* matrices and tables; not norms, not biases */
    size_t idle_first,
        idle_last; /* floats at either end that nothing reads: class tokens, positions of no patch */
    bool rounded;  /* kernels read it rounded to the stage's type alone: matrices and filters of
                     products, the token table.  Rounding it beforehand changes nothing */
    bool
        looked_up; /* by rows, in the master, where products have its rounded copy: the token table */
    bool tied;     /* the LM head's copy of the embedding, in a stage without the embedding */
    int block;     /* index in the module */
    enum dt_param_init init;
    float std; /* of DT_INIT_NORMAL: element i (as it lies here) is std * normal(seed, hash(name),
                  i) */
};

/* What is kept of a parameter, each laid out alike. */
enum dt_param_what { DT_PARAM_VALUE, DT_PARAM_AVG, DT_PARAM_AVG_SQ, DT_PARAM_WHAT_N };

/* What lies here in runs without a gap: n elements from `at` (counted from the parameter's own
 * beginning) are the whole tensor's from `whole`, in the order in which it lies ([out][in], also
 * where `transpose`). */
struct dt_param_run {
    size_t whole, at, n;
};
int64_t dt_param_runs(const struct dt_param *p);
struct dt_param_run dt_param_run(const struct dt_param *p, int64_t i);

/* Where a block's parameters lie: those of experts (their biases last), other decayed ones, then the others.  Under
 * tensor parallelism the replicated ones (with their padding), but for experts' biases, lie side by side across that border. */
struct dt_param_range {
    size_t at, n_decay, n; /* floats */
    size_t replicated_at, n_replicated;
    size_t n_experts; /* of them, at the beginning: those of experts */
};

struct dt_stage;
const struct dt_param *dt_stage_params(const struct dt_stage *s, int *n);
struct dt_param_range dt_stage_range(const struct dt_stage *s, int block); /* index in the module */
size_t dt_stage_param_floats(const struct dt_stage *s); /* of the flat buffers, padding included */
/* Offload (plan.MODULE.offload: parameters) of what forwards and backwards read: the rounded copies or, where there are none, the
 * masters, with what the device has packed of either.  So many bytes; copied to host memory on q, those of blocks that are trained
 * or all; then the device is without it, and but for gradients nothing may be asked of the stage until it has returned.  Its
 * memory is another one then, for work behind the copy on q.  Not of a stage whose parameters are `gathered` elsewhere. */
size_t dt_stage_away_bytes(const struct dt_stage *s);
void dt_stage_copy_away(struct dt_device_queue *q, struct dt_stage *s, void *host, bool all);
void dt_stage_leave(struct dt_stage *s);
bool dt_stage_is_away(const struct dt_stage *s);
enum dt_status dt_stage_return(struct dt_device_queue *q, struct dt_stage *s, const void *host,
                               struct dt_error *err);
/* Device memory; the padding is zero and stays so.  NULL: the stage keeps none (dt_stage_spec.masters_away). */
float *dt_stage_master(struct dt_stage *s);
/* A parameter in fp32 as kernels read it, where they do; NULL where a stage without masters has it rounded alone. */
float *dt_stage_exact(struct dt_stage *s, const struct dt_param *p);
float *dt_stage_grads(struct dt_stage *s); /* NULL when nothing in the stage is trained */
bool dt_stage_trained(const struct dt_stage *s, int block);
/* A copy of the masters in bf16, laid out like them, that products read and AdamW writes: on a device that does
 * not pack weights, in a stage that computes in bf16.  Else NULL. */
void *dt_stage_rounded(struct dt_stage *s);
/* Sets all parameters by name; equal for every layout. */
void dt_stage_init(struct dt_device_queue *q, struct dt_stage *s, uint64_t seed);
/* Behind it on the queue: where all parameters are, in fp32 and laid out like the masters, until the first backward. */
const float *dt_stage_initial(struct dt_stage *s);
/* What was written of [at, at + n) are the rounded copies: in a stage without masters, the tables that are looked up by rows
 * follow them. */
void dt_stage_look_up(struct dt_device_queue *q, struct dt_stage *s, size_t at, size_t n);
/* Parameters [at, at + n) of another stage of the same layout and kind. */
void dt_stage_copy(struct dt_device_queue *q, struct dt_stage *to, struct dt_stage *from, size_t at,
                   size_t n);
/* The masters of blocks [first, last) were written; or they and their rounded copies were. */
void dt_stage_changed(struct dt_device_queue *q, struct dt_stage *s, int first, int last);
void dt_stage_stepped(struct dt_device_queue *q, struct dt_stage *s, int first, int last);
/* Before the first microbatch of an iteration: gradients count as zero (nothing is written).  After
 * the last: zeroes those of blocks [first, last) that no microbatch wrote. */
void dt_stage_grads_begin(struct dt_stage *s);
void dt_stage_grads_finish(struct dt_device_queue *q, struct dt_stage *s, int first, int last);
/* Tensor parallelism: gradients of some replicated parameters are sums over the member's own rows
 * or heads.  After grads_finish and before replicas are summed, all members call this once for the
 * same blocks, in the same order: then every replicated parameter has its whole gradient, equal at
 * all of them. One all-reduce per block that has such; nothing without tensor parallelism. */
void dt_stage_grads_reduce(struct dt_device_queue *q, struct dt_stage *s, int first, int last);
/* ---- stages ------------------------------------------------------------------------------------
 */

enum { DT_STAGE_CHUNKS_MAX = 16 };
/* Where the memory of what replicas exchange where it lies is from. */
struct dt_stage_memory {
    void *arg;
    enum dt_status (*alloc)(void *arg, size_t bytes, struct dt_error *err, void **out);
    void (*free)(void *arg, void *p);
};

/* How unevenly rows went to experts, summed over the forwards of blocks with experts since the last time that it was
 * asked. */
enum { DT_LOAD_EXPERT, DT_LOAD_EP2, DT_LOAD_EP4, DT_LOAD_EP8, DT_LOAD_N };
struct dt_stage_load {
    double forwards;
    /* Rows of the busiest expert, or of the busiest of 2, 4 and 8 equal shares of the experts, over the mean; 0 where
     * the experts do not divide. */
    double busiest[DT_LOAD_N];
    double balance; /* sums of route_load */
};
struct dt_stage_spec {
    const struct dt_model *model; /* NULL: the module stands alone */
    const struct dt_module *module;
    int first, last;
    enum dt_dtype dtype; /* activations and products */
    enum dt_block_recompute recompute;
    const unsigned char *trained; /* per block of the module; NULL = all */
    bool upstream_trained; /* something before `first` (in the module or upstream) is trained */
    bool split_backward;   /* weight gradients come in an op of their own (ZB-H1) */
    struct dt_batch_limits max;
    /* Share of what attention and MLP of every transformer layer add to the residual stream that is
     * dropped in batches to train, in layers that run a backward; 0 <= dropout < 1.  An element is
     * drawn by (noise_seed, module, layer, attention or MLP; stream; its place in its
     * document or image), so masks depend on no layout, and the backward and recomputation draw
     * them again instead of keeping them. */
    float dropout;
    struct dt_tp *tp; /* the members that share the stage; borrowed; NULL = this one alone */
    struct dt_tp *cp; /* the members that share its sequences; the same */
    bool ring;        /* their keys and values go round a ring (dt_batch_cut), beside attention */
    struct dt_tp *ep; /* the members that share its experts; the same */
    /* Where members have their own rows, a gather and the product behind it, or a product and the sum behind it, go
     * in that many chunks, at most DT_STAGE_CHUNKS_MAX, and no more than a member has rows; 0, 1: whole. */
    int chunks;
    /* Somebody else keeps the masters of a stage that trains something (exec/program/optimizer_host.h): where products
     * read rounded copies, the stage has these, and in fp32 what kernels read so, and no masters. */
    bool masters_away;
    const struct dt_stage_memory *gathered; /* of parameters, where replicas gather them in place */
    const struct dt_stage_memory *summed;   /* of gradients; NULL: the device's, as above */
    bool
        layout_only; /* no device memory: the stage says which parameters there are and where they lie,
                         and nothing else may be asked of it */
};

/* ---- tensor parallelism ----
 *
 * All members make the same calls with the same batches.  In a transformer (LLM, encoder) each
 * holds rows dt_tp_first .. of the flow between blocks; in a U-Net all of them hold the flow whole.
 *
 *   inside the module    a member's flow, in dt_stage_in_bytes / out_bytes of it, is for the same
 *                        member of the next stage (gradients too: those of a U-Net's time embedding
 *                        and conditioning states are summands there)
 *   at the module's ends features, conditioning states and their gradients are dealt, whatever lies
 *                        inside: each member has the rows of its share (an encoder's and a
 *                        generator's: dt_tp_first of them; the LLM's: those whose place in the
 *                        batch is in its share), side by side.  Modules with whole rows inside
 *                        gather what comes in
 *
 * Losses, best tokens and predictions are whole and equal at all members.
 *
 * ---- context parallelism ----
 *
 * Members hold whole parameters and other rows of the same sequences (dt_batch_cut): their batches, the flow between
 * blocks, losses and best tokens are of own rows alone.  A layer's keys and values are gathered, their gradients
 * summed and scattered; or both go round a ring.  Gradients of parameters are summands, as replicas' are.  Of features,
 * conditioning states and their gradients each has those of its rows.  Members of both kinds: these rows are dealt once
 * more.
 *
 * ---- expert parallelism ----
 *
 * Members hold equal shares of the experts, in order, and all other parameters whole: their batches, losses and flows are
 * their own.  Rows travel to their experts and back inside blocks, so members run the same blocks of as many
 * microbatches in the same order.  Gradients of experts are of the rows of all members.
 * Failures of collectives
 * stick to the dt_tp (dt_tp_state). */

enum dt_status dt_stage_new(const struct dt_device *dev, const struct dt_stage_spec *spec,
                            struct dt_error *err, struct dt_stage **out);
/* For larger microbatches or smaller ones; parameters, gradients and weights stay.  Nothing of the stage may be in use.
 * After a failure the stage can only be freed. */
enum dt_status dt_stage_resize(struct dt_stage *s, const struct dt_batch_limits *max,
                               struct dt_error *err);
void dt_stage_free(struct dt_stage *s);

/* Has the stage a backward at all; does it send gradients upstream. */
bool dt_stage_has_backward(const struct dt_stage *s);
bool dt_stage_sends_gradient(const struct dt_stage *s);

/* Bytes that cross the stage's borders for this batch: features of the encoders or conditioning
 * states at a module's ends, else the flow.  Gradients have the same size and layout. */
size_t dt_stage_in_bytes(const struct dt_stage *s, const struct dt_batch *b);
size_t dt_stage_out_bytes(const struct dt_stage *s, const struct dt_batch *b);

/* Saved memory of a microbatch.  `saved` is what a backward needs between its forward and itself;
 * it is dt_block_act_bytes of the blocks that keep something, each region rounded up to 64 bytes,
 * plus the flow that only passes through (dt_stage_carry_bytes).  `stash` (split_backward only) is
 * what backward_input leaves for backward_weight.  For limits: a batch of the limits' size is
 * passed. */
size_t dt_stage_saved_bytes(const struct dt_stage *s, const struct dt_batch *b);
size_t dt_stage_carry_bytes(const struct dt_stage *s, const struct dt_batch *b);
size_t dt_stage_stash_bytes(const struct dt_stage *s, const struct dt_batch *b);
/* Exactly what one block keeps: equals dt_block_act_bytes at this dtype. */
size_t dt_stage_block_bytes(const struct dt_stage *s, const struct dt_batch *b, int block);
/* Device memory of the stage: parameters, gradients, workspace (packed weights are the device's).
 */
size_t dt_stage_workspace_bytes(const struct dt_stage *s);

/* Adds to `sum`, and begins anew.  The queue has passed. */
void dt_stage_load_take(struct dt_stage *s, struct dt_stage_load *sum);

/* The work of one microbatch in a stage. */
struct dt_nn_run {
    const struct dt_batch *batch;
    void *saved;    /* 64-byte aligned, dt_stage_saved_bytes; NULL in a stage without a backward */
    void *stash;    /* NULL unless split_backward */
    const void *in; /* flow in; NULL at the beginning of a module that takes none */
    void *out;      /* NULL at the end of the graph */
    const void *dout;
    void *din; /* NULL unless the stage sends gradients */
};

enum { DT_BACKWARD_INPUT = 1, DT_BACKWARD_WEIGHT = 2, DT_BACKWARD_BOTH = 3 };

/* Blocks [first, last) of the stage, which may be done in parts: forwards in rising, backwards in
 * falling order, the parts of one microbatch without another one's between.  `in` is read by the
 * part that has the stage's first block, `out` written by the one that has its last; so are din and
 * dout. */
void dt_stage_forward(struct dt_device_queue *q, struct dt_stage *s, const struct dt_nn_run *r,
                      int first, int last);
void dt_stage_backward(struct dt_device_queue *q, struct dt_stage *s, const struct dt_nn_run *r,
                       int first, int last, int what);

#endif
