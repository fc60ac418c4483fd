/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: frames between producers of documents and who trains on them.  What is read must be
 * within the limits, and written again must be the same frame. */
#include "base/hash.h"
#include "base/mem.h"
#include "exec/feed/wire.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct dt_feed_limits seeing = {
    .seq_len = 256, .patch = 16, .vocab = 260, .samples = 1000};
static const struct dt_feed_limits hearing = {
    .seq_len = 256, .patch = 16, .mel_bins = 32, .vocab = 260, .samples = 1000};

static void must(bool fine)
{
    if (!fine)
        abort();
}

static void try_document(const struct dt_feed_frame *f, const struct dt_feed_limits *limits,
                         struct dt_feed_bytes *again)
{
    struct dt_document d = {0};
    struct dt_error err = {0};
    int what = 0;

    if (dt_feed_decode_document(f, limits, &err, &what, &d) != DT_OK) {
        must(err.message[0] && !d.image && !d.text.id && !d.name);
        return;
    }
    must(!d.sound || (limits->mel_bins > 0 && d.task == DT_TASK_CAPTION && d.n_images == 1));
    must(d.status != DT_OK || dt_document_tokens(&d) <= limits->seq_len);
    for (size_t i = 0; d.text.id && i < d.text.n; i++)
        must(d.text.id[i] >= 0 && d.text.id[i] < limits->vocab);
    must(dt_feed_encode_document(&f->head, &d, what, &err, again) == DT_OK);
    dt_document_free(&d);
}

static void try_body(const struct dt_feed_frame *f, struct dt_feed_bytes *again)
{
    struct dt_error err = {0};
    char why[64];

    again->n = 0;
    switch (f->head.kind) {
    case DT_FEED_HELLO:
        break;
    case DT_FEED_WELCOME: {
        struct dt_feed_welcome w;
        if (dt_feed_decode_welcome(f, &err, &w) == DT_OK)
            must(dt_feed_encode_welcome(&f->head, &w, &err, again) == DT_OK);
        break;
    }
    case DT_FEED_ASK: {
        struct dt_feed_ask a;
        if (dt_feed_decode_ask(f, &err, &a) == DT_OK)
            must(dt_feed_encode_ask(&f->head, &a, &err, again) == DT_OK);
        break;
    }
    case DT_FEED_DOCUMENT:
        try_document(f, &seeing, again);
        try_document(f, &hearing, again);
        break;
    case DT_FEED_REFUSE:
        dt_feed_decode_refuse(f, why, sizeof why);
        must(strlen(why) < sizeof why);
        break;
    }
}

/* The checksum is mended, or nothing beyond it would ever be reached. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *p = size >= DT_FEED_HEAD_BYTES ? dt_malloc(size) : NULL;
    struct dt_feed_bytes again = {0};
    struct dt_feed_frame f;

    if (dt_feed_open(data, size, NULL, &f) == DT_OK)
        try_body(&f, &again);
    if (p) {
        uint32_t crc;
        memcpy(p, data, size);
        crc = dt_hash_crc32c(dt_hash_crc32c(0, p, DT_FEED_HEAD_BYTES - 4), p + DT_FEED_HEAD_BYTES,
                             size - DT_FEED_HEAD_BYTES);
        for (int i = 0; i < 4; i++) {
            p[DT_FEED_HEAD_BYTES - 4 + i] = (uint8_t)(crc >> 8 * i);
            p[DT_FEED_HEAD_BYTES - 8 + i] = (uint8_t)((size - DT_FEED_HEAD_BYTES) >> 8 * i);
        }
        crc = dt_hash_crc32c(dt_hash_crc32c(0, p, DT_FEED_HEAD_BYTES - 4), p + DT_FEED_HEAD_BYTES,
                             size - DT_FEED_HEAD_BYTES);
        for (int i = 0; i < 4; i++)
            p[DT_FEED_HEAD_BYTES - 4 + i] = (uint8_t)(crc >> 8 * i);
        if (dt_feed_open(p, size, NULL, &f) == DT_OK) {
            try_body(&f, &again);
            /* texts with control characters are written with '?' */
            must(again.n == 0 || again.n == size);
        }
    }
    dt_feed_bytes_free(&again);
    dt_free(p);
    return 0;
}
