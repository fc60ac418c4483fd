/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * From sequences to batches: what each module takes of the samples of a microbatch.
 *
 *   sequence (ids, documents, images) --> LLM:       every row, no padding
 *                                     --> encoder:   images that the LLM reads
 *                                     --> generator: images that it is to draw
 *
 * Rows that go from module to module are in the order of samples, then of images, then of rows. */
#ifndef DT_EXEC_PROGRAM_BATCHING_H
#define DT_EXEC_PROGRAM_BATCHING_H

#include "exec/data/sequence.h"
#include "exec/modules/module.h"

/* The conditioning states of an image to draw are the final states of the last `context_len` rows
 * of its document (which end with eos and so have seen all of its text); a document that is shorter
 * gives its first row more than once.  The j-th of them, a row of the document's sequence: */
int64_t dt_batching_cond_row(const struct dt_sequence_doc *d, int context_len, int j);
/* Conditioning rows per image that the model's generator takes; 0 without a generator. */
int dt_batching_context_len(const struct dt_model *m);

/* Latents of an image without an autoencoder: means over latent_scale x latent_scale pixels, v
 * becoming v/127.5 - 1.  One channel is the mean of red, green and blue; three are these; further
 * ones repeat the mean.  *lw, *lh: ceil(size / latent_scale). */
void dt_batching_latent_size(const struct dt_module *m, int w, int h, int *lw, int *lh);
void dt_batching_latents(const struct dt_module *m, const uint8_t *px, int w, int h, float *out);
/* Back to 8-bit RGB, one pixel per latent (sampling). */
void dt_batching_pixels(const struct dt_module *m, const float *latents, int lw, int lh,
                        uint8_t *px);
/* Channels that the module's U-Net takes in. */
int dt_batching_channels(const struct dt_module *m);

/* Rows of a batch that a tensor-parallel member exchanges with other modules (dt_batch_own). */
struct dt_batching_range {
    int64_t first, end;
};
static inline bool dt_batching_owns(const struct dt_batching_range *own, int64_t row)
{
    return row >= own->first && row < own->end;
}

/* The stream of an image's noise: the same wherever and with whatever else it is computed. */
uint64_t dt_batching_noise_stream(const struct dt_sequence *s, int item);

/* What the samples need of a batch of this module; cut (NULL = whole): a member's share of the LLM's. */
void dt_batching_limits(const struct dt_model *m, int module, const struct dt_sequence *const *seqs,
                        int n, const struct dt_batch_cut *cut, struct dt_batch_limits *out);
/* Fills the host side of a batch, cut as b->cut says; the caller uploads it. */
enum dt_status dt_batching_fill(const struct dt_model *m, int module,
                                const struct dt_sequence *const *seqs, int n, struct dt_batch *b,
                                struct dt_error *err);

/* batching_chunks.c: a cut sequence, document by document; begins in front of the first one. */
struct dt_batching_deal {
    int n, turn; /* members; who has the first of the rows that are left over */
    int64_t len; /* rows of the document */
};
void dt_batching_deal_begin(struct dt_batching_deal *d, int n, const struct dt_sequence *q);
void dt_batching_deal_next(struct dt_batching_deal *d, int64_t len);
/* Rows of a member's early chunk (half 0) or late one (1). */
int64_t dt_batching_deal_rows(const struct dt_batching_deal *d, int member, int half);
/* The same of all documents of a sequence. */
int64_t dt_batching_cut_rows(const struct dt_sequence *q, int n, int member, int half);
/* The chunks that have rows, in the order of the sequence; n < 2: one of all. */
struct dt_batching_chunks {
    const struct dt_sequence *q;
    struct dt_batching_deal deal;
    int n, doc, chunk;
    int member, half;
    int64_t first, end; /* rows of the sequence */
};
void dt_batching_chunks_begin(struct dt_batching_chunks *c, int n, const struct dt_sequence *q);
bool dt_batching_chunks_next(struct dt_batching_chunks *c);

/* batching_cut.c: the LLM's, cut. */
void dt_batching_limits_cut(const struct dt_model *m, const struct dt_sequence *const *seqs, int n,
                            const struct dt_batch_cut *cut, struct dt_batch_limits *out);
enum dt_status dt_batching_fill_cut(const struct dt_model *m, const struct dt_sequence *const *seqs,
                                    int n, struct dt_batch *b, struct dt_error *err);

/* Rows that the sample sends over the model's edge into (encoder) or out of (generator) the LLM. */
int64_t dt_batching_in_rows(const struct dt_sequence *s);
int64_t dt_batching_cond_count(const struct dt_model *m, const struct dt_sequence *s);
int64_t dt_batching_targets(const struct dt_sequence *s);
int64_t dt_batching_images(const struct dt_sequence *s, uint32_t flag);

/* The sizes of the sequences as the planner knows samples (dt_samples_free). */
enum dt_status dt_batching_samples(const struct dt_sequence *const *seqs, int64_t n,
                                   struct dt_error *err, struct dt_samples **out);

#endif
