/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Models: a graph of modules (encoders -> one LLM -> generators), each a stack of blocks.
 *
 * A *block* is the unit that stage boundaries fall between.  A module's *work* for a sample or a microbatch
 * is summarised by struct dt_work, additive over samples, so that every cost is a function of
 * (block, work).  What a "token" is depends on the module: text token (LLM), patch (ViT), latent pixel (U-Net at
 * the resolution of its input), audio frame (audio encoder). */
#ifndef DT_CORE_MODEL_MODEL_H
#define DT_CORE_MODEL_MODEL_H

#include "base/keys.h"
#include "base/mem.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

enum { DT_MAX_MODULES = 8, DT_NAME_MAX = 48 };

enum dt_module_role { DT_ROLE_ENCODER, DT_ROLE_LLM, DT_ROLE_GENERATOR };
enum dt_module_modality { DT_MODALITY_TEXT, DT_MODALITY_IMAGE, DT_MODALITY_AUDIO };

/* X(ENUMERATOR, name for people, KIND).  A kind is a file on each floor: core/model/block_KIND.c fills dt_block_KIND (what
 * it costs and holds), exec/modules dt_nn_ops_KIND (how it runs) and dt_nn_names_KIND (what its parameters are called).
 * What one of them lacks, the linker names. */
#define DT_BLOCK_KINDS(X)                                                                          \
    /* token table: vocab x hidden (+ learned positions) */                                        \
    X(EMBEDDING, "embedding", embedding)                                                           \
    /* patch*patch*channels -> hidden (+ class token table, positions) */                          \
    X(PATCH_EMBED, "patch-embedding", patch)                                                       \
    /* attention + MLP (dense or MoE) */                                                           \
    X(TRANSFORMER, "transformer", transformer)                                                     \
    /* 1- or 2-layer MLP between modules; always trained */                                        \
    X(PROJECTOR, "projector", projector)                                                           \
    /* final norm + logits + loss */                                                               \
    X(LM_HEAD, "lm-head", head)                                                                    \
    /* final norm of an encoder */                                                                 \
    X(NORM, "norm", norm)                                                                          \
    /* U-Net: single convolution (conv_in, downsample, upsample, conv_out) */                      \
    X(CONV, "convolution", conv)                                                                   \
    /* U-Net: ResBlock (2 convs, optional 1x1 shortcut, time-embedding projection) */              \
    X(RESNET, "resnet", resnet)                                                                    \
    /* U-Net: proj_in, self-attention, cross-attention, GEGLU MLP, proj_out */                     \
    X(SPATIAL_TRANSFORMER, "spatial-transformer", spatial)                                         \
    /* U-Net: time-embedding MLP (per image, not per token) */                                     \
    X(TIME_EMBED, "time-embedding", time)

enum dt_block_kind {
#define ENUMERATOR(id, name, kind) DT_BLOCK_##id,
    DT_BLOCK_KINDS(ENUMERATOR)
#undef ENUMERATOR
    /* not a kind */
    DT_BLOCK_KIND_N
};

enum dt_block_norm { DT_NORM_NONE, DT_NORM_LAYERNORM, DT_NORM_RMSNORM };

/* How a module computes, beyond its widths: no cost depends on it.  Zero = the habit of the module's kind
 * (doc/modules.md has them). */
enum dt_block_activation {                      /* of MLPs */
                           DT_ACTIVATION_HABIT, /* gated: silu; else gelu-tanh in an LLM, gelu elsewhere */
                           DT_ACTIVATION_GELU, /* by the error function */
                           DT_ACTIVATION_GELU_TANH,
                           DT_ACTIVATION_QUICK_GELU,
                           DT_ACTIVATION_SILU,
                           DT_ACTIVATION_RELU,
                           DT_ACTIVATION_N
};
extern const char *const
    dt_block_activation_names[DT_ACTIVATION_N + 1]; /* "habit", "gelu", ...; NULL-terminated */

enum dt_rope_scaling { DT_ROPE_PLAIN, DT_ROPE_LINEAR, DT_ROPE_LLAMA3 };
extern const char *const dt_rope_scaling_names[]; /* "none", "linear", "llama3", NULL */
#define DT_ROPE_THETA 10000.0
struct dt_rope {
    double theta; /* 0 = DT_ROPE_THETA */
    enum dt_rope_scaling scaling;
    double factor; /* of linear and llama3 */
    double low_freq,
        high_freq; /* llama3: wavelengths longer than original/low_freq are stretched by the */
    int original;  /* factor, those shorter than original/high_freq stay, a blend lies between */
};
/* Angle per position of pair i (0 <= i < dim/2) of a head's `dim` rotated elements. */
double dt_rope_frequency(const struct dt_rope *r, int i, int dim);

struct dt_module_arithmetic {
    double norm_eps; /* 0: LLM and U-Net 1e-5, encoder 1e-12 */
    enum dt_block_activation activation;
    struct dt_rope rope;
    double attention_scale; /* factor of q·k; 0 = 1/sqrt(head_dim) */
    bool scale_by_layer;    /* that, divided by the number of the layer, from 1 */
    bool sine_first;        /* U-Net: sines before cosines of the timestep */
    double freq_shift;      /* U-Net: frequency i is 10000^(-i/(half the width - freq_shift)) */
    bool top_k_raw;      /* experts: the weights of the chosen ones are not divided by their sum */
    double balance_loss; /* experts: factor of the loss that asks for even routing; 0 = without */
};
/* Fedus et al. 2022 (Switch Transformers), section 2.2: alpha = 10^-2; published. */
#define DT_BALANCE_LOSS 0.01

struct dt_block {
    enum dt_block_kind kind;
    int hidden, ffn, heads, kv_heads, head_dim;
    int vocab, max_pos; /* embedding / head; max_pos > 0 = learned positions */
    /* n_experts 0 = dense; else each expert is `ffn` wide and the experts that every token goes through are
     * `shared_ffn` wide together (0 = none; shared_gate: weighed by a gate of their own) */
    int n_experts, top_k, shared_ffn;
    bool shared_gate, router_bias;
    /* Rows of an expert over the mean of all: capacity > 0: padded and cut to that many, whatever the routing; else
     * nothing is dropped and the busiest rank of expert parallelism has `imbalance` times the mean (0 = 1). */
    double capacity, imbalance;
    bool causal, gated, bias;
    bool tied;          /* LM head shares the embedding table (adds no parameters) */
    bool layernorm;     /* LayerNorm (scale+bias) instead of RMSNorm */
    bool qkv_bias;      /* bias on q,k,v only (Qwen2) */
    bool qk_norm;       /* per-head RMSNorm of q and k (Qwen3) */
    bool qk_norm_whole; /* one over all heads together (OLMo 2) */
    bool no_qkv_bias;   /* `bias` means all but q, k and v (InternViT-6B) */
    bool grid_rope;     /* rotary positions of patches, down and across (Qwen2-VL) */
    int norms;      /* of a layer's width: 0 and 2 before attention and MLP; 1 for both (Falcon); 4
                           behind them too (Gemma 2) */
    bool norm_free; /* norms have no parameters (OLMo) */
    bool layer_scale; /* a vector scales what attention and MLP add (DINOv2) */
    int window;       /* tokens that a token attends to at most; 0 = all */
    /* multi-head latent attention (DeepSeek-V2): widths that q (0: none) and k with v are compressed to, of the
     * rotary part of a head, which keys share, and of a head's values; head_dim is that of a whole query */
    int q_lora, kv_lora, rope_dim, v_dim;
    /* attention with its score matrix in HBM, dropout, unfused loss: GPT as Megatron-LM ran it
     * before flash attention */
    bool unfused;
    /* norms and residuals whole on every tp rank (all-reduce instead of all-gather +
     * reduce-scatter) */
    bool no_seqpar;
    int patch, channels; /* patch embed */
    int class_tokens;    /* patch embed: learned extra tokens (parameters only, no work) */
    bool class_attends;  /* patch embed: patches attend to them, as ViT's do; planned, not run */
    /* convolutions; stride 2 = down-sample; upsample = true doubles */
    int c_in, c_out, kernel, stride;
    bool upsample;
    int level; /* U-Net: tokens at this block = input latents / 4^level */
    int time_dim, context_dim, context_len;
    int groups; /* U-Net: groups of every GroupNorm; 0 = by habit (dt_block_groups) */
    int depth;  /* spatial transformer: number of transformer layers inside */
    /* projector; mid_dim 0 = one layer.  context_len > 0: applied to that many tokens per item
     * instead of to every token; merge > 1: to rows of merge x merge neighbouring tokens, side by side
     * (in_dim is merge * merge times their width) or, with `pool`, their mean */
    int in_dim, out_dim, mid_dim;
    int merge;
    bool pool;
    enum dt_block_norm in_norm; /* of its rows, before the first layer */
};

/* What a habit comes to: of the activation never DT_ACTIVATION_HABIT, of the scale (before scale_by_layer) never 0. */
enum dt_block_activation dt_block_activation(const struct dt_module_arithmetic *a,
                                             const struct dt_block *b);
double dt_block_attention_scale(const struct dt_module_arithmetic *a, const struct dt_block *b);

/* What tensors of an encoder are called in files: as ViT's, as CLIP's and SigLIP's vision towers, or as Qwen2-VL's, whose
 * patches lie there as (colour, moment, y, x). */
enum dt_module_tower { DT_TOWER_VIT, DT_TOWER_CLIP, DT_TOWER_QWEN, DT_TOWER_N };

struct dt_module {
    char name[DT_NAME_MAX];
    enum dt_module_role role;
    enum dt_module_modality modality;
    int n_blocks;
    struct dt_block *blocks;
    struct dt_boundary
        *wire; /* [n_blocks], of dt_model_wires; NULL: worked out at every question */
    int patch; /* image encoder: pixels per patch side; tokens = ceil(w/p)*ceil(h/p) */
    /* image encoder: merge x merge patches leave as one row, images being completed to whole squares of
     * them; 0 and 1: every patch is a row */
    int merge;
    int latent_scale; /* image generator: pixels per latent side (8) */
    int resize;       /* 0 = native size; else every image becomes resize x resize pixels */
    enum dt_module_tower tower_names; /* encoder */
    bool mixtral_names;
    struct dt_module_arithmetic arith;
    const char *planned_only; /* arithmetic that the executor lacks, for its message; NULL = none */
    double frames_per_s; /* audio: tokens per second; for generators latent pixels per second */
    /* audio encoder: it cuts spectrograms of that many filters into patches (core/model/samples_sound.h);
     * 0: frames_per_s holds */
    int mel_bins;
    int out_width; /* elements per token handed downstream (LLM hidden for encoders, context width for LLM) */
    int out_tokens_per_item; /* 0 = one per token; else fixed per image (77 conditioning states per generated image) */
};

double dt_module_norm_eps(const struct dt_module *m);
/* Patches that become one row: 1 without merging. */
static inline int dt_module_merged(const struct dt_module *m)
{
    return m->merge > 1 ? m->merge * m->merge : 1;
}
/* Pixels a side of what is a token to the LLM. */
static inline int dt_module_token_pixels(const struct dt_module *m)
{
    return m->patch * (m->merge > 1 ? m->merge : 1);
}
/* Rows that `tokens` of an encoder hand to the LLM. */
static inline int64_t dt_module_out_tokens(const struct dt_module *m, int64_t tokens)
{
    return tokens / dt_module_merged(m);
}

struct dt_model_edge {
    int src, dst;
}; /* module indices, src upstream */

struct dt_model {
    char name[DT_NAME_MAX];
    int n_modules, n_edges;
    struct dt_module modules[DT_MAX_MODULES]; /* topological order: encoders, LLM, generators */
    struct dt_model_edge edges[DT_MAX_MODULES * 2];
    int llm; /* index of the LLM */
    struct dt_arena arena;
    /* lines, each about a key of a module: defaults that a Hugging Face config leaves open, how tokens are routed to
     * experts; "" when none */
    char assumed[4096];
};

/* Additive description of what a module has to process. */
struct dt_work {
    int64_t n;          /* sequences / images / clips */
    int64_t tokens;     /* sum of their lengths */
    int64_t tokens_sq;  /* sum of squares of their lengths (attention work) */
    int64_t tokens_max; /* longest one (combined by max) */
};
static inline void dt_work_add(struct dt_work *a, const struct dt_work *b)
{
    a->n += b->n;
    a->tokens += b->tokens;
    a->tokens_sq += b->tokens_sq;
    if (b->tokens_max > a->tokens_max)
        a->tokens_max = b->tokens_max;
}
static inline void dt_work_most(struct dt_work *a,
                                const struct dt_work *b) /* of each, the larger */
{
    a->n = b->n > a->n ? b->n : a->n;
    a->tokens = b->tokens > a->tokens ? b->tokens : a->tokens;
    a->tokens_sq = b->tokens_sq > a->tokens_sq ? b->tokens_sq : a->tokens_sq;
    a->tokens_max = b->tokens_max > a->tokens_max ? b->tokens_max : a->tokens_max;
}

/* ---- kernels of a block: the single list that FLOPs, times and activation bytes come from ---- */

enum dt_kop_family {
    DT_KOP_GEMM,        /* d: m n k (y[m,n] = x[m,k] w[k,n]) */
    DT_KOP_ATTN_CAUSAL, /* d: batch seq q_heads kv_heads head_dim */
    DT_KOP_ATTN_FULL,   /* d: batch seq heads kv_heads head_dim; kv_len = seq */
    DT_KOP_ATTN_CROSS,  /* d: batch seq heads kv_len head_dim */
    DT_KOP_CONV2D,      /* d: pixels(out, over the batch) c_in c_out kernel stride */
    DT_KOP_NORM,        /* d: tokens width */
    DT_KOP_GROUPNORM,   /* d: tokens width */
    DT_KOP_ACT,         /* d: tokens width (width of the output; gated reads 2x) gated(0/1) */
    DT_KOP_ADD,         /* d: tokens width (residual) */
    DT_KOP_ROPE,        /* d: tokens width */
    DT_KOP_EMBED,       /* d: tokens width */
    DT_KOP_XENT,        /* d: tokens vocab */
    DT_KOP_ADAMW,       /* d: parameters; not part of a block, used by the optimizer step */
    DT_KOP_ALL_REDUCE,  /* collectives d: gpus gpus_per_node bytes */
    DT_KOP_ALL_GATHER,  /* bytes = full gathered buffer */
    DT_KOP_REDUCE_SCATTER,
    DT_KOP_ALL_TO_ALL,
    DT_KOP_SEND_RECV, /* d: gpus_per_node (1 = between nodes, 2 = inside) bytes */
    /* a block as a whole, measured where it runs; d: tokens key (core/model/block_key.h).  Goes
     * before its kernels */
    DT_KOP_BLOCK,
    /* preprocessing on one core of a CPU; d: what (enum dt_kop_cpu_prep), units: pixels as stored, bytes of
     * text, or milliseconds of sound */
    DT_KOP_CPU_PREP,
    /* what a core does for one end of a message (members 1) or for one member of a collective, beside waiting; d:
     * members sums (0: bytes are moved only; 1: reduce-scatter; 2: all-reduce) bytes */
    DT_KOP_CARRY,
    DT_KOP_FAMILY_N
};
enum dt_kop_cpu_prep {
    DT_CPU_PREP_DECODE = 1,
    DT_CPU_PREP_RESIZE,
    DT_CPU_PREP_TOKENIZE,
    DT_CPU_PREP_SOUND, /* from the file to the spectrogram */
    DT_CPU_PREP_N
};
enum dt_kop_phase { DT_PHASE_FWD, DT_PHASE_DGRAD, DT_PHASE_WGRAD, DT_PHASE_N };
extern const char
    *const dt_kop_family_names[DT_KOP_FAMILY_N + 1]; /* "gemm", "attn_causal", … (DB op names) */

struct dt_kop { /* one kernel (or TP collective) of one block for one work size */
    enum dt_kop_family family;
    int64_t d[6];
    /* forward floating-point operations (2 per multiply-add) of GEMMs, convolutions and attention;
     * causal counted half; 0 for element-wise kernels, which are HBM bound */
    double flops;
    double bytes; /* forward HBM traffic, bytes, at 2 bytes per element: reads + writes */
    double count; /* multiplicity (e.g. depth) */
    /* has a weight gradient (GEMM with parameters, conv, norm); attention: dgrad only */
    bool has_weight;
    /* between the two projections of an unfused attention: what `selective` runs again */
    bool core;
    bool own_back; /* the backward has its own multiplicity: `back`; else `count` */
    double back;
    bool wgrad_only; /* the backward is for the weights alone (gradient accumulation) */
    bool
        again; /* a gather whose result is not kept: the backward does it again, beside what it does anyway */
    /* `calls`, `calls_back` say what the host issues; else a kernel per phase and count */
    bool own_calls;
    float calls, calls_back;
    bool by_sq; /* varies with tokens_sq where all else of the work stays */
};
enum { DT_MAX_KOPS = 64 };

enum dt_block_recompute { DT_RECOMPUTE_NONE, DT_RECOMPUTE_SELECTIVE, DT_RECOMPUTE_FULL };
extern const char *const dt_block_recompute_names[]; /* NULL-terminated */

/* How a lane splits a block, and how it runs its share. */
struct dt_block_shard {
    int tp, cp, ep;
    int ip; /* image parallelism: whole images dealt to ip ranks of the lane (Megatron baseline) */
    int ahead; /* of a group that deals experts: ranks of its first node that are in front of it */
    bool seqpar; /* sequence parallelism of norms/residuals with tp (on whenever tp > 1) */
    bool
        any_routing; /* memory has room for any routing to dealt experts, as our executor's (else: for `imbalance`) */
    enum dt_block_recompute
        recompute; /* forward work that the backward repeats; no business of the list of kernels */
};

/* Expand a block's forward into kernels for one lane shard; returns the number written (<= DT_MAX_KOPS).
 * TP collectives are included as ops of the collective families (bytes = full buffer, bf16), so that a
 * transformer block with tp > 1 lists 2 all-gathers and 2 reduce-scatters. */
int dt_block_kops(const struct dt_block *b, const struct dt_block_shard *s, const struct dt_work *w,
                  struct dt_kop *out);
/* Makes the list of a work that of `w`, which differs from it in tokens_sq and in what the block does not look at
 * (dt_block_by_items; tokens_max without image parallelism): writes the kernels that are by_sq. */
int dt_block_kops_again(const struct dt_block *b, const struct dt_block_shard *s,
                        const struct dt_work *w, struct dt_kop *list);
/* Kernels vary with the number of items, not with their tokens alone. */
bool dt_block_by_items(const struct dt_block *b);

/* Totals at tp = 1 (model FLOPs, per-sample shapes; recompute not counted). */
double dt_block_flops(const struct dt_block *b, const struct dt_work *w); /* forward */
/* What kernels compute of it: rows that pad a capacity, too, without those that it drops, and the masked half of unfused
 * attention. */
double dt_block_run_flops(const struct dt_block *b, const struct dt_work *w);
int64_t dt_block_params(const struct dt_block *b);
/* The same in two.  `matrices`: of products and filters, and the token table; in mixed precision they are read
 * rounded.  `vectors`: gains and shifts of norms, biases, learned positions, class tokens. */
struct dt_block_param_counts {
    int64_t matrices, vectors;
};
struct dt_block_param_counts dt_block_param_count(const struct dt_block *b);
/* Bytes of activations kept for backward by one lane rank, for the given recompute mode
 * (Korthikanti et al. 2022 accounting, per kept tensor, documented in block.c). */
/* Which forward kernels run again in the backward: full = all of the block; selective = the cheap element-wise
 * ones (norms, activations).  The attention core needs no line here: flash attention keeps only its output
 * and log-sum-exp and rebuilds the scores inside its own backward kernel. */
static inline bool dt_kop_family_recomputed(enum dt_block_recompute r, enum dt_kop_family f)
{
    if (r == DT_RECOMPUTE_SELECTIVE)
        return f == DT_KOP_NORM || f == DT_KOP_GROUPNORM || f == DT_KOP_ACT;
    return r == DT_RECOMPUTE_FULL;
}
/* The same of a kernel of a block: with unfused attention `selective` is Korthikanti et al.'s, the attention core
 * (scores, softmax, dropout, weighted sum) and nothing else. */
static inline bool dt_kop_recomputed(enum dt_block_recompute r, const struct dt_block *b,
                                     const struct dt_kop *k)
{
    return r == DT_RECOMPUTE_SELECTIVE && b->unfused ? k->core
                                                     : dt_kop_family_recomputed(r, k->family);
}
double dt_block_act_bytes(const struct dt_block *b, const struct dt_block_shard *s,
                          const struct dt_work *w, enum dt_block_recompute r);
/* The same at another width of an element: 2 = bf16 (above), 4 = fp32. */
double dt_block_act_bytes_of(const struct dt_block *b, const struct dt_block_shard *s,
                             const struct dt_work *w, enum dt_block_recompute r, int elem_bytes);
/* Bytes that a split backward leaves for the weight gradients beside what the forward kept: gradients of the outputs of
 * all kernels with weights.  None of the LM head's, whose weight gradient is made with the loss. */
double dt_block_stash_bytes(const struct dt_block *b, const struct dt_block_shard *s,
                            const struct dt_work *w, int elem_bytes);
/* Bytes of the keys and values of all ranks of context parallelism that a block's attention works on, of one rank's heads;
 * 0 where there are none, or there is one rank. */
double dt_block_keys_bytes(const struct dt_block *b, const struct dt_block_shard *s,
                           const struct dt_work *w, int elem_bytes);
/* Groups of a GroupNorm over `channels`: what the block states, else 32 (diffusers' norm_num_groups) for 128
 * channels and more; fewer where 32 does not divide them or a group would have less than 4, since what a
 * ResBlock adds per channel and image (the time embedding) vanishes in a group of one. */
static inline int dt_block_groups(const struct dt_block *b, int channels)
{
    int groups = 32;

    if (b->groups > 0)
        return b->groups;
    while (groups > 1 && (channels % groups != 0 || channels / groups < 4))
        groups /= 2;
    return groups;
}
const char *dt_block_kind_name(enum dt_block_kind k);
/* Parameters of a block's routed experts, all together; 0 of a dense block. */
int64_t dt_block_expert_params(const struct dt_block *b);
struct dt_block_param_counts dt_block_expert_count(const struct dt_block *b);
/* Those that every rank of tensor parallelism has whole. */
struct dt_block_param_counts dt_block_whole_count(const struct dt_block *b);
/* Of a module, those that a token meets: of the routed experts top_k. */
int64_t dt_module_active_params(const struct dt_module *m);
bool dt_module_is_unfused(const struct dt_module *m); /* any block is */
double dt_module_flops(const struct dt_module *m, const struct dt_work *w);
int64_t dt_module_params(const struct dt_module *m);

/* The keys of a `model:` map; LLM, ENCODER and UNET stand for the names of modules. */
extern const struct dt_key dt_model_keys[];
/* ---- reading ---- */
/* `node`: a preset name, a path, or an inline map; each module is a shape, a preset of known families,
 * or `hf: config.json`.  Format: disttrain-job(5). */
enum dt_status dt_model_read(struct dt_node node, struct dt_error *err, struct dt_model **out);
void dt_model_free(struct dt_model *m);
int dt_model_find(const struct dt_model *m, const char *module); /* index or -1 */
/* Hugging Face config.json -> module (blocks allocated in `arena`); appends to `assumed` (size bytes).
 * hf.c has the table of model types. */
enum dt_status dt_hf_module(const char *path, struct dt_arena *arena, struct dt_error *err,
                            struct dt_module *out, char *assumed, size_t size);

#endif
