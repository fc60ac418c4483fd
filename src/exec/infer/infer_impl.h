/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Inference, the inside.  Shared by infer*.c only. */
#ifndef DT_EXEC_INFER_INFER_IMPL_H
#define DT_EXEC_INFER_INFER_IMPL_H

#include "exec/infer/infer.h"

struct dt_infer_part { /* a module */
    int module;        /* -1: the model has none of this kind */
    struct dt_stage *stage;
    struct dt_batch *batch;
    struct dt_batch_limits max;
    void *out; /* features or conditioning states; device memory */
    size_t out_bytes;
};

struct dt_infer {
    struct dt_infer_options o;
    struct dt_device_queue *q;
    struct dt_infer_part encoder, llm, generator;
    struct dt_tokenizer_special_ids ids;
    int32_t *best; /* host copies of the last LLM batch */
    float *nll;
    size_t cap_best, cap_nll;
};

/* Makes the part's stage and batch large enough; parameters move along. */
enum dt_status dt_infer_room(struct dt_infer *x, struct dt_infer_part *u,
                             const struct dt_batch_limits *need, struct dt_error *err);
enum dt_status dt_infer_forward(struct dt_infer *x, struct dt_infer_part *u, const void *in,
                                struct dt_error *err);
/* Features of the images that the LLM reads, into x->encoder.out. */
enum dt_status dt_infer_encode(struct dt_infer *x, const struct dt_sequence *const *seqs, int n,
                               struct dt_error *err);
/* The LLM over the sequences, with these features; best and nll of every row come to the host. */
enum dt_status dt_infer_read(struct dt_infer *x, const struct dt_sequence *const *seqs, int n,
                             struct dt_error *err);

/* What a part gives must be numbers: DT_ERR_DIVERGED names the module. */
enum dt_status dt_infer_check(const struct dt_infer *x, const struct dt_infer_part *u,
                              const float *v, size_t n, struct dt_error *err);

/* Tokens of a document at most: INT_MAX unless the LLM's positions are learned. */
int dt_infer_positions(const struct dt_infer *x);
/* A sequence of one document: bos, the tokens of each image, text, eos; px is copied (NULL: an
 * image to draw).  Room for `room` more tokens. */
enum dt_status dt_infer_sequence(const struct dt_infer *x, const struct dt_infer_seen *seen,
                                 enum dt_sequence_task task, const int32_t *text, size_t n,
                                 int room, struct dt_error *err, struct dt_sequence **out);

#endif
