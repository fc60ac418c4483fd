/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One sample of a shard made into a document: tokens of its text, pixels of its images or the
 * spectrogram of its sound.  Shared by the loader's files only. */
#ifndef DT_EXEC_DATA_DOCUMENT_H
#define DT_EXEC_DATA_DOCUMENT_H

#include "exec/data/loader.h"
#include "exec/data/shard.h"

struct dt_document_image { /* an image, or a sound's spectrogram */
    int w, h;              /* pixels; filters and frames */
    int tokens;            /* in the LLM sequence; 0 for a target */
    void *px;              /* dt_sequence_bytes; NULL = not read, or not there yet */
};
struct dt_document {       /* zero-initialised is valid */
    enum dt_status status; /* DT_OK, or why it is not there; DT_ERR_INPUT is bad data */
    enum dt_data_bad_kind bad;
    char why[256];
    enum dt_sequence_task task;
    struct dt_tokenizer_ids text;    /* id NULL, n above 0: not there yet */
    bool cut;                        /* the text was shortened */
    bool sound;                      /* what the LLM reads of it: a spectrogram, not an image */
    bool clip_cut;                   /* the sound was shortened */
    struct dt_document_image *image; /* [n_images]: one, or the frames of a video in their order */
    int n_images;
    char *name; /* "SHARD.tar:KEY" */
    uint64_t sample;
    int64_t label;
    int64_t place; /* in the loader's order, from the beginning of the first epoch */
};

/* Reads sample i as a document of `epoch`; not `pixels`: of its images the headers only.  `scratch` is
 * the calling thread's own. */
void dt_document_read(const struct dt_loader_options *o, const struct dt_shard_index *ix,
                      uint64_t i, int64_t epoch, bool pixels, struct dt_shard_sample *scratch,
                      struct dt_document *out);
/* LLM tokens of all its images, and of the whole document. */
int dt_document_image_tokens(const struct dt_document *d);
int dt_document_tokens(const struct dt_document *d);
/* Bytes of its pixels, there or not. */
int64_t dt_document_pixel_bytes(const struct dt_document *d);
void dt_document_free(struct dt_document *d);

/* sequence.c: an empty sequence; room is seq_len - n_tokens. */
struct dt_sequence *dt_sequence_new(int seq_len, int64_t index);
/* Appends a document that fits; its pixels and its name now belong to the sequence.  0, or -1 out of memory. */
int dt_sequence_append(struct dt_sequence *s, struct dt_document *d,
                       struct dt_tokenizer_special_ids ids);
/* The text of document k, which was not there: [docs[k].text_n] ids. */
void dt_sequence_put_text(struct dt_sequence *s, int k, const int32_t *id);
/* Pads the rest. */
void dt_sequence_finish(struct dt_sequence *s, struct dt_tokenizer_special_ids ids);

#endif
