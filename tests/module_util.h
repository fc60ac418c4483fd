/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * For tests of modules: small modules of every kind, microbatches of odd shapes, and one run of a
 * module cut into stages anywhere, forward and backward, with its results by tensor name. */
#ifndef DT_TESTS_MODULE_UTIL_H
#define DT_TESTS_MODULE_UTIL_H

#include "base/rng.h"
#include "core/model/shape.h"
#include "exec/modules/module.h"
#include "kernels/kernels.h"
#include "ref_modules.h"
#include "fake_device.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

enum mu_kind {
    MU_LLAMA,     /* grouped keys, SwiGLU */
    MU_QWEN,      /* biases of q, k, v and their norms; tied head */
    MU_GPT2,      /* LayerNorm, GELU, learned positions, tied head */
    MU_VIT,       /* with an MLP projector */
    MU_VIT_BARE,  /* CLIP's norm in front, no projector, grid smaller than the images */
    MU_UNET,      /* with a projector, two levels, transformers of depth 2 on one */
    MU_UNET_SELF, /* no projector; odd channel counts */
    MU_MOE, /* Llama with two of four experts per token, and shared ones; an even routing is asked for */
    MU_MIXTRAL, /* a dense layer, then one with three of six experts, whose weights are p itself; Mixtral's names */
    /* the same with other arithmetic: */
    MU_LLAMA3,    /* Llama with llama3's rotary positions, another theta, epsilon and activation */
    MU_LINEAR,    /* Qwen with linear scaling of positions */
    MU_GPT2_IDLE, /* GPT-2 with unscaled scores, divided by the layer's number, and exact GELU */
    MU_CLIP,      /* CLIP's vision tower: its names, quick GELU, epsilon 1e-3 */
    MU_UNET_SINE, /* U-Net with 2 groups, sines first, shifted frequencies, epsilon 1e-2 */
    /* the same with more: */
    MU_MOE_GATE,      /* experts whose shared ones have a gate (Qwen2-MoE) */
    MU_MOE_BIAS,      /* the same without it, plain MLPs, with biases everywhere */
    MU_MOE_GATE_BIAS, /* with both */
    MU_MIXTRAL_BIAS,  /* Mixtral with biases */
    MU_MERGE, /* ViT that merges 2 x 2 patches, norms them, and projects without biases (InternVL) */
    MU_MERGE_LINEAR, /* 4 x 4, an RMSNorm and one layer */
    MU_MERGE_MEAN,   /* the mean of 2 x 2, an RMSNorm and a matrix (Gemma 3) */
    MU_QWEN_VL, /* Qwen2-VL's vision tower: rotary positions down and across, two moments, its merger */
    MU_QWEN25_VL, /* Qwen2.5-VL's: windows of 4 x 4 patches in one layer of two, gated MLPs, RMSNorm */
    MU_WINDOWS, /* ViT with windows of 2 x 2 patches, none of which are merged */
    MU_N
};
/* The one whose widths it has. */
enum mu_kind mu_base(enum mu_kind kind);
extern const char *const mu_names[MU_N];

struct mu_tensor {
    char name[112];
    int64_t n, rows, cols; /* rows x cols as it lies in the device; transpose swaps */
    bool transpose;
    double *v, *g; /* value and gradient, Hugging Face's layout */
    bool has_grad;
};

/* A module, its parameters and one microbatch in doubles. */
struct mu {
    enum mu_kind kind;
    uint64_t seed;
    struct dt_arena arena;
    struct dt_module m;
    int n;
    struct mu_tensor *t;
    struct ref_module ref;
    struct ref_llm_in llm;
    struct ref_encoder_in enc;
    struct ref_unet_in gen;
    struct dt_batch_limits max;
    int sizes[4][2]; /* images */
    int n_images;
    uint8_t *px[4];
    int64_t n_in, n_out;        /* elements of the flow in and out of the module */
    double *in, *out, *weights; /* flow in; out; weights: the objective is loss + out . weights */
    double *d_in;
};

struct mu_run {
    enum dt_dtype dtype;
    enum dt_block_recompute recompute;
    int cuts[8], n_cuts; /* stage boundaries between 0 and n_blocks */
    int threads;
    bool split_backward, parts, frozen;
    int freeze_from, freeze_to; /* blocks frozen if `frozen` */
    bool upstream;              /* ask for the gradient of the flow in */
    int microbatches;           /* the same one several times; 0 = 1 */
    float dropout;
    int tp;     /* members, threads of this process; 0 = 1 */
    int chunks; /* of their collectives and products */
    void (*before)(struct dt_device *dev, int member), (*after)(struct dt_device *dev, int member);
};

struct mu_result {
    double loss;        /* without the objective's linear part */
    double *out, *d_in; /* of one member: NaN where a row is another's */
    bool sends;         /* there is d_in */
    double **g;         /* by tensor of struct mu */
    int **copies;       /* how many parameters brought g's element (a tied table may be two) */
    bool *has;
    double *nll;
    int *best;
    double *pred;
    struct dt_stage_load load; /* of experts, a microbatch's */
};

void mu_open(struct mu *u, enum mu_kind kind, uint64_t seed);
/* With other numbers of heads (of a U-Net: on both levels). */
void mu_open_heads(struct mu *u, enum mu_kind kind, uint64_t seed, int heads, int kv_heads);
/* Kind `i` with the seed of tests. */
static inline void mu_open_case(struct mu *u, int i)
{
    mu_open(u, (enum mu_kind)(i % MU_N), dt_test_seed() + (uint64_t)(i / MU_N));
}
void mu_close(struct mu *u);
/* Stream of document or image 0; the others follow. */
enum { MU_STREAM = 500 };
/* Objective in double precision, with the tensors and `in` as they are now. */
double mu_reference(struct mu *u);
/* The same on the device; gradients too.  Results live in u's arena.  With members: their slices
 * put together, after a check that they agree to the last bit on all that each of them has whole.
 */
void mu_execute(struct mu *u, const struct mu_run *run, struct mu_result *out);
/* Everything about one kind in text, on standard output (modules_dump.c); 0 = done. */
int mu_dump(const char *name);

#endif
