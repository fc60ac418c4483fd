/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/prefetch_fetch.h"

#include "base/mem.h"
#include "exec/feed/wire.h"
#include "exec/train/prefetch_decode.h"

struct wanted {
    int64_t *first; /* [n + 1] of each sequence's documents in `what` */
    uint8_t *what;  /* of each document of the batch */
    struct dt_feed_fetch *fetch;
    int n_fetch;
};

static void free_wanted(struct wanted *w)
{
    dt_free(w->first);
    dt_free(w->what);
    dt_free(w->fetch);
}

static enum dt_status new_wanted(struct dt_sequence *const *seqs, int64_t n, struct dt_error *err,
                                 struct wanted *w)
{
    w->first = dt_calloc((size_t)n + 1, sizeof *w->first);
    if (!w->first)
        return dt_error_nomem(err, "what to fetch");
    for (int64_t i = 0; i < n; i++)
        w->first[i + 1] = w->first[i] + seqs[i]->n_docs;
    w->what = dt_calloc((size_t)w->first[n] + 1, 1);
    w->fetch = dt_calloc((size_t)w->first[n] + 1, sizeof *w->fetch);
    return w->what && w->fetch ? DT_OK : dt_error_nomem(err, "what to fetch");
}

/* ---- whose ---- */

static bool hosts(const struct dt_prefetch_share *s, int module, int replica)
{
    int stages = s->place->plan->modules[module].layout.pp;

    for (int stage = 0; stage < stages; stage++)
        if (dt_placement_member(s->place, module, replica, stage, s->rank) >= 0)
            return true;
    return false;
}

/* Pixels of the sample's item number `nth` of the kind; of all with nth < 0. */
static void want_items(struct wanted *w, struct dt_sequence *const *seqs, int64_t sample,
                       uint32_t flag, int64_t nth)
{
    const struct dt_sequence *q = seqs[sample];
    int64_t at = 0;

    for (int i = 0; i < q->n_items; i++) {
        if (!(q->items[i].flags & flag))
            continue;
        if (nth < 0 || at == nth)
            w->what[w->first[sample] + q->items[i].doc] |= DT_FEED_PIXELS;
        at++;
    }
}

static void want_sample(struct wanted *w, struct dt_sequence *const *seqs, int64_t sample,
                        enum dt_module_role role, int64_t item)
{
    switch (role) {
    case DT_ROLE_LLM:
        for (int d = 0; d < seqs[sample]->n_docs; d++)
            if (seqs[sample]->docs[d].no_text)
                w->what[w->first[sample] + d] |= DT_FEED_TEXT;
        break;
    case DT_ROLE_ENCODER:
        want_items(w, seqs, sample, DT_ITEM_ENCODE, item);
        break;
    case DT_ROLE_GENERATOR:
        want_items(w, seqs, sample, DT_ITEM_GENERATE, item);
        break;
    }
}

static void want_share(const struct dt_prefetch_share *s, const struct dt_assignment *a,
                       struct dt_sequence *const *seqs, struct wanted *w)
{
    for (int m = 0; m < a->n_modules; m++) {
        const struct dt_assignment_module *am = &a->m[m];

        for (int r = 0; r < am->n_replicas; r++) {
            if (!hosts(s, m, r))
                continue;
            for (uint32_t b = am->mb_first[r]; b < am->mb_first[r + 1]; b++)
                for (uint32_t k = am->mb[b].first; k < am->mb[b].first + am->mb[b].n; k++)
                    want_sample(w, seqs, am->samples[k], s->model->modules[m].role,
                                am->items ? (int64_t)am->items[k] : -1);
        }
    }
}

/* ---- into the sequences ---- */

/* Items [*first, *first + *n) are the images of the document. */
static void items_of(const struct dt_sequence *q, int doc, int *first, int *n)
{
    *first = 0;
    *n = 0;
    while (*first < q->n_items && q->items[*first].doc != (uint32_t)doc)
        ++*first;
    while (*first + *n < q->n_items && q->items[*first + *n].doc == (uint32_t)doc)
        ++*n;
}

static int64_t pixel_bytes(const struct dt_sequence *q, int doc)
{
    int64_t bytes = 0;
    int first, n;

    items_of(q, doc, &first, &n);
    for (int i = first; i < first + n; i++)
        bytes += (int64_t)dt_sequence_bytes(q->items[i].sound, q->items[i].w, q->items[i].h);
    return bytes;
}

/* Places rise from document to document. */
static void list(struct dt_sequence *const *seqs, int64_t n, struct wanted *w)
{
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < seqs[i]->n_docs; d++) {
            int what = w->what[w->first[i] + d];

            if (!what)
                continue;
            w->fetch[w->n_fetch++] = (struct dt_feed_fetch){
                .place = seqs[i]->docs[d].place,
                .what = what,
                .bytes = 100 + (what & DT_FEED_TEXT ? 4 * (int64_t)seqs[i]->docs[d].text_n : 0) +
                         (what & DT_FEED_PIXELS ? pixel_bytes(seqs[i], d) : 0)};
        }
}

/* Is it what its sizes were of? */
static bool is_same(const struct dt_sequence *q, int d, const struct dt_document *doc)
{
    int first, n;

    items_of(q, d, &first, &n);
    if (doc->status != DT_OK || doc->sample != q->docs[d].sample || doc->task != q->docs[d].task ||
        doc->text.n != q->docs[d].text_n || doc->n_images != n)
        return false;
    for (int i = 0; i < n; i++)
        if (doc->sound != q->items[first + i].sound || doc->image[i].w != q->items[first + i].w ||
            doc->image[i].h != q->items[first + i].h)
            return false;
    return true;
}

static enum dt_status put(struct dt_sequence *q, int d, struct dt_feed_fetch *f,
                          struct dt_error *err)
{
    struct dt_document *doc = &f->doc;
    int first, n;

    if (!is_same(q, d, doc))
        return dt_error_set(err, DT_ERR_PEER,
                            "document %lld of the data is not what it was when its sizes were "
                            "asked for: do all producers and ranks have the same shards?",
                            (long long)f->place);
    if (f->what & DT_FEED_TEXT)
        dt_sequence_put_text(q, d, doc->text.id);
    items_of(q, d, &first, &n);
    for (int i = 0; f->what & DT_FEED_PIXELS && i < n; i++) {
        q->items[first + i].px = doc->image[i].px;
        doc->image[i].px = NULL;
    }
    return DT_OK;
}

/* Producers have decoded a document before they say its sizes; here only its header has been read. */
static bool is_bad(const struct dt_prefetch_share *share, const struct dt_feed_fetch *f,
                   struct dt_prefetch_bad *bad)
{
    if (share->feed || f->doc.status != DT_ERR_INPUT)
        return false;
    bad->place[bad->n++] = f->place;
    return true;
}

static enum dt_status get(const struct dt_prefetch_share *share, struct wanted *w,
                          struct dt_error *err, struct dt_prefetch_bad *bad)
{
    if (share->feed)
        return dt_feed_client_fetch(share->feed, w->fetch, w->n_fetch, err);
    bad->place = dt_calloc((size_t)w->n_fetch + 1, sizeof *bad->place);
    if (!bad->place)
        return dt_error_nomem(err, "what to fetch");
    return dt_prefetch_decode(share->loader, share->threads, w->fetch, w->n_fetch, err);
}

enum dt_status dt_prefetch_fetch(const struct dt_prefetch_share *share,
                                 const struct dt_assignment *a, struct dt_sequence **seqs,
                                 int64_t n, struct dt_error *err, struct dt_prefetch_bad *bad)
{
    struct wanted w = {.n_fetch = 0};
    enum dt_status st = new_wanted(seqs, n, err, &w);
    int k = 0;

    if (st == DT_OK) {
        want_share(share, a, seqs, &w);
        list(seqs, n, &w);
        st = get(share, &w, err, bad);
    }
    for (int64_t i = 0; st == DT_OK && i < n; i++)
        for (int d = 0; d < seqs[i]->n_docs && st == DT_OK; d++)
            if (w.what[w.first[i] + d] && !is_bad(share, &w.fetch[k++], bad))
                st = put(seqs[i], d, &w.fetch[k - 1], err);
    for (int j = 0; j < w.n_fetch; j++)
        dt_document_free(&w.fetch[j].doc);
    if (st == DT_OK && share->feed && n > 0 && seqs[n - 1]->n_docs > 0)
        dt_feed_client_release(share->feed, seqs[n - 1]->docs[seqs[n - 1]->n_docs - 1].place + 1);
    free_wanted(&w);
    return st;
}
