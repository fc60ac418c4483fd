/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/sequence.h"

#include "base/mem.h"
#include "exec/data/document.h"

#include <string.h>

void dt_sequence_free(struct dt_sequence *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_items; i++)
        dt_free(s->items[i].px);
    for (int i = 0; i < s->n_docs; i++)
        dt_free(s->docs[i].name);
    dt_free(s->items);
    dt_free(s->docs);
    dt_free(s->ids);
    dt_free(s);
}

struct dt_sequence *dt_sequence_new(int seq_len, int64_t index)
{
    struct dt_sequence *s = dt_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->ids = dt_calloc((size_t)seq_len, 3 * sizeof *s->ids); /* and labels, and doc_of */
    if (!s->ids) {
        dt_free(s);
        return NULL;
    }
    s->labels = s->ids + seq_len;
    s->doc_of = s->labels + seq_len;
    s->seq_len = seq_len;
    s->index = index;
    return s;
}

/* Text and eos are to be foretold. */
static void foretell(struct dt_sequence *s, const struct dt_sequence_doc *doc)
{
    uint32_t end = doc->first + doc->n;
    for (uint32_t i = doc->first; i < end; i++)
        s->labels[i] = i + 1 < end && i + 1 >= doc->text_first ? s->ids[i + 1] : -1;
}

void dt_sequence_put_text(struct dt_sequence *s, int k, const int32_t *id)
{
    struct dt_sequence_doc *doc = &s->docs[k];
    memcpy(s->ids + doc->text_first, id, doc->text_n * sizeof *id);
    doc->no_text = false;
    foretell(s, doc);
}

/* Item and placeholders of an image, or of the sound, of the document that is being appended. */
static void append_image(struct dt_sequence *s, const struct dt_document *d,
                         struct dt_document_image *image, int32_t placeholder, int *at)
{
    s->items[s->n_items++] = (struct dt_sequence_item){
        .sound = d->sound,
        .w = image->w,
        .h = image->h,
        .flags = d->task == DT_TASK_GENERATE ? DT_ITEM_GENERATE : DT_ITEM_ENCODE,
        .first = image->tokens ? (uint32_t)*at : 0,
        .n = (uint32_t)image->tokens,
        .doc = (uint32_t)s->n_docs,
        .px = image->px};
    image->px = NULL;
    for (int i = 0; i < image->tokens; i++)
        s->ids[(*at)++] = placeholder;
}

int dt_sequence_append(struct dt_sequence *s, struct dt_document *d,
                       struct dt_tokenizer_special_ids ids)
{
    struct dt_sequence_doc *doc;
    void *docs = s->docs, *items = s->items;
    int first = s->n_tokens, n = dt_document_tokens(d), at = first;
    if (dt_grow(&docs, &s->cap_docs, (size_t)s->n_docs + 1, sizeof *s->docs))
        return -1;
    s->docs = docs;
    if (dt_grow(&items, &s->cap_items, (size_t)(s->n_items + d->n_images), sizeof *s->items))
        return -1;
    s->items = items;
    s->ids[at++] = ids.bos;
    for (int i = 0; i < d->n_images; i++)
        append_image(s, d, &d->image[i], ids.image, &at);
    doc = &s->docs[s->n_docs];
    *doc = (struct dt_sequence_doc){.task = d->task,
                                    .first = (uint32_t)first,
                                    .n = (uint32_t)n,
                                    .text_first = (uint32_t)at,
                                    .text_n = (uint32_t)d->text.n,
                                    .sample = d->sample,
                                    .label = d->label,
                                    .place = d->place,
                                    .name = d->name,
                                    .no_text = d->text.n > 0 && !d->text.id};
    d->name = NULL;
    for (size_t i = 0; i < d->text.n; i++)
        s->ids[at++] = doc->no_text ? DT_SEQUENCE_ABSENT : d->text.id[i];
    s->ids[at++] = ids.eos;
    for (int i = first; i < at; i++)
        s->doc_of[i] = s->n_docs;
    foretell(s, doc);
    s->n_docs++;
    s->n_tokens = at;
    s->text_tokens += n - dt_document_image_tokens(d);
    return 0;
}

void dt_sequence_finish(struct dt_sequence *s, struct dt_tokenizer_special_ids ids)
{
    for (int i = s->n_tokens; i < s->seq_len; i++) {
        s->ids[i] = ids.pad;
        s->labels[i] = s->doc_of[i] = -1;
    }
}
