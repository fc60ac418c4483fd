/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Captions, token by token. */
#include "base/mem.h"
#include "exec/infer/infer_impl.h"

#include <string.h>

/* The likeliest token takes the place of eos, which moves on. */
static void extend(struct dt_sequence *s, int32_t token, int32_t eos)
{
    int at = s->n_tokens - 1;

    s->ids[at] = token;
    if (at > 0 && s->labels[at - 1] >= 0)
        s->labels[at - 1] = token;
    s->labels[at] = eos;
    s->ids[at + 1] = eos;
    s->labels[at + 1] = -1;
    s->doc_of[at + 1] = s->doc_of[at];
    s->n_tokens++;
    s->text_tokens++;
    s->docs[0].n++;
    s->docs[0].text_n++;
}

/* One more token for each of the sequences; those that end are taken out of the list. */
static enum dt_status one_token(struct dt_infer *x, struct dt_sequence **open, int *n,
                                int max_tokens, struct dt_error *err)
{
    int64_t row = 0;
    int left = 0;

    DT_TRY(dt_infer_read(x, (const struct dt_sequence *const *)open, *n, err));
    for (int i = 0; i < *n; i++) {
        struct dt_sequence *s = open[i];
        int32_t token = x->best[row + s->n_tokens - 2]; /* behind it stands eos */

        row += s->n_tokens;
        if (token == x->ids.eos)
            continue;
        extend(s, token, x->ids.eos);
        if ((int)s->docs[0].text_n < max_tokens && s->n_tokens <= dt_infer_positions(x))
            open[left++] = s;
    }
    *n = left;
    return DT_OK;
}

static enum dt_status some(struct dt_infer *x, const struct dt_infer_seen *seen, int n,
                           int max_tokens, struct dt_error *err, struct dt_sequence **seqs,
                           char **texts)
{
    struct dt_sequence **open;
    enum dt_status st = DT_OK;
    int left = n, encoded = -1;

    for (int i = 0; i < n; i++)
        DT_TRY(dt_infer_sequence(x, &seen[i], DT_TASK_CAPTION, NULL, 0, max_tokens + 1, err,
                                 &seqs[i]));
    open = dt_malloc((size_t)n * sizeof(*open));
    if (!open)
        return dt_error_nomem(err, "captions");
    memcpy(open, seqs, (size_t)n * sizeof(*open));
    while (left > 0 && st == DT_OK) {
        if (left != encoded) /* features lie in the order of the sequences that are left */
            st = dt_infer_encode(x, (const struct dt_sequence *const *)open, left, err);
        encoded = left;
        if (st == DT_OK)
            st = one_token(x, open, &left, max_tokens, err);
    }
    dt_free(open);
    for (int i = 0; i < n && st == DT_OK; i++) {
        const struct dt_sequence_doc *d = &seqs[i]->docs[0];
        size_t len;

        st = dt_tokenizer_decode(x->o.tokenizer, seqs[i]->ids + d->text_first, d->text_n, true, err,
                                 &texts[i], &len);
    }
    return st;
}

enum dt_status dt_infer_caption(struct dt_infer *x, const struct dt_infer_seen *seen, int n,
                                int max_tokens, struct dt_error *err, char **texts)
{
    struct dt_sequence **seqs;
    enum dt_status st = DT_OK;

    if (!dt_infer_can_caption(x))
        return dt_error_set(err, DT_ERR_INPUT, "the model has no encoder: it cannot see or hear");
    if (max_tokens < 1)
        return dt_error_set(err, DT_ERR_INTERNAL, "captions without tokens");
    seqs = dt_malloc((size_t)x->o.batch * sizeof(*seqs));
    if (!seqs)
        return dt_error_nomem(err, "captions");
    memset(texts, 0, (size_t)n * sizeof(*texts));
    for (int i = 0; i < n && st == DT_OK; i += x->o.batch) {
        int now = n - i < x->o.batch ? n - i : x->o.batch;

        memset(seqs, 0, (size_t)now * sizeof(*seqs));
        st = some(x, seen + i, now, max_tokens, err, seqs, texts + i);
        for (int k = 0; k < now; k++)
            dt_sequence_free(seqs[k]);
    }
    dt_free(seqs);
    for (int i = 0; i < n && st != DT_OK; i++) {
        dt_free(texts[i]);
        texts[i] = NULL;
    }
    return st;
}
