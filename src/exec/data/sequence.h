/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Packed training sequences: seq_len tokens filled with whole documents.
 *
 *   | bos IMG IMG IMG IMG a  photo eos | bos a  photo eos | pad pad |
 *   |<-- document 0: caption --------->|<- 1: generate -->|
 *
 * A document is made of one sample: CAPTION (image, or the frames of a video, then its text), GENERATE (text; the image is a
 * target of the generator and takes no LLM tokens) or TEXT.  An encoded image takes ceil(w/patch) x
 * ceil(h/patch) tokens, as core/model/samples.h counts.  Documents are appended until the next does not
 * fit; that one opens the next sequence.  Where a model hears instead of seeing, a sound's spectrogram stands for
 * the encoded image: its patches are counted by core/model/samples_sound.h. */
#ifndef DT_EXEC_DATA_SEQUENCE_H
#define DT_EXEC_DATA_SEQUENCE_H

#include "core/model/samples.h"
#include "exec/data/image.h"
#include <stdbool.h>
#include <stdint.h>

/* Stands for a token that is not there yet, among labels too: where one is foretold is known without
 * the text.  No tokenizer has it. */
#define DT_SEQUENCE_ABSENT INT32_MAX

enum dt_sequence_task { DT_TASK_TEXT, DT_TASK_CAPTION, DT_TASK_GENERATE };

struct dt_sequence_doc {
    enum dt_sequence_task task;
    uint32_t first, n;           /* tokens of the document: ids[first .. first+n) */
    uint32_t text_first, text_n; /* its caption, without bos and eos */
    uint64_t sample;             /* number of the sample in the data set */
    int64_t label;               /* class number (member "cls"), -1 = none */
    int64_t place;               /* in the loader's order, from the beginning of the first epoch */
    char *name;                  /* "SHARD.tar:KEY" */
    bool no_text;                /* has one that is not there yet: DT_SEQUENCE_ABSENT instead */
};

struct dt_sequence_item { /* an image, or a sound's spectrogram */
    bool sound;
    int w, h;          /* pixels; filters and frames */
    uint32_t flags;    /* DT_ITEM_ENCODE or DT_ITEM_GENERATE (core/model/samples.h) */
    uint32_t first, n; /* encoded: its tokens; target: 0, 0 */
    uint32_t doc;
    void *px; /* dt_sequence_bytes; NULL when only sizes are read, or not there yet */
};

struct dt_sequence {
    int64_t index; /* 0, 1, 2, ... since the start of training */
    int seq_len;
    int n_tokens;    /* the rest is padding */
    int text_tokens; /* n_tokens without image tokens */
    int32_t *ids;    /* [seq_len] */
    int32_t *labels; /* [seq_len] the next token where it is text or eos, else -1 */
    int32_t *doc_of; /* [seq_len] index of the document, -1 = padding */
    struct dt_sequence_doc *docs;
    struct dt_sequence_item *items;
    int n_docs, n_items;
    size_t cap_docs, cap_items;
};
void dt_sequence_free(struct dt_sequence *s);
/* Of the values of an image [h][w][3] of bytes, or of a spectrogram [h][w] of floats. */
static inline size_t dt_sequence_bytes(bool sound, int w, int h)
{
    return (sound ? sizeof(float) : 3) * (size_t)w * (size_t)h;
}

#endif
