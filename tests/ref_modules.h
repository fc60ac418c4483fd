/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Modules in plain double precision, written from the published architectures: whole modules from
 * named tensors (Hugging Face's names and layouts) to a scalar, so that a test can difference it.
 */
#ifndef DT_TESTS_REF_MODULES_H
#define DT_TESTS_REF_MODULES_H

#include "core/model/model.h"

struct ref_tensor {
    const char *name;
    int64_t n;
    double *v; /* in Hugging Face's layout */
};

struct ref_module {
    const struct dt_module *m;
    int n_tensors;
    struct ref_tensor *tensors;
    int last_used;
    double norm_eps; /* and this is the module's arithmetic, spelt out */
    double (*act)(double);
    bool gpt2;
    /* Dropout behind attention and MLP of transformer layers: the d-th document or image draws from
     * the stream first_stream + d. */
    double dropout;
    uint64_t seed, first_stream;
    /* Experts: balance_scale times the sum of how uneven each layer's routing is; `uneven` is what came out. */
    double balance_scale, uneven;
    const int (*cell)[2];  /* patches' places, of the encoder's input */
    const int *window;     /* and windows */
    struct dt_arena arena; /* of one evaluation */
};

/* Fills norm_eps and act from m->arith and the habits of m's kind. */
void ref_arithmetic(struct ref_module *r);
const double *ref_get(struct ref_module *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Documents packed in rows; features replace the rows in_row.  Returns scale * sum of -log p.  cond
 * (NULL): final normed states of cond_row.  best (NULL): index of the largest logit per row. */
struct ref_llm_in {
    int rows, n_in, n_cond;
    const int *doc, *ids, *target, *in_row, *cond_row;
    const double *features;
    double scale;
};
double ref_llm(struct ref_module *r, const struct ref_llm_in *in, double *cond, int *best);

/* Images as patch rows, of which as many as are merged stand together; grid position per row, and its cell, down and
 * across.  out: merged rows x (projector's width or hidden). */
struct ref_encoder_in {
    int rows;
    const int *image, *pos;
    const double *pixels;
    const int (*cell)[2];
    const int *window; /* per row, of all images */
    const int *
        square; /* of the squares of merged patches in the order in which they leave, the place among rows */
};
void ref_encoder(struct ref_module *r, const struct ref_encoder_in *in, double *out);

/* Images of any sizes.  states: what the projector (or, without one, the cross-attention) takes.
 * Returns scale * sum over images of mean squared errors. */
struct ref_unet_in {
    int n;
    const int (*hw)[2];
    const double *x0, *noise, *t, *alpha, *sigma, *states;
    double scale;
};
double ref_unet(struct ref_module *r, const struct ref_unet_in *in, double *pred);

#endif
