/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What benchmarks of data have in common: JPEG files, and samples of a file and a caption in a shard. */
#ifndef DT_TESTS_BENCH_DATA_BENCH_H
#define DT_TESTS_BENCH_DATA_BENCH_H

#include "exec/data/image.h"
#include "exec/data/shard.h"
#include "../jpeg_file.h"

#include <stdio.h>
#include <stdlib.h>

static struct dt_error err;

static inline void must(enum dt_status st)
{
    if (st == DT_OK)
        return;
    fprintf(stderr, "%s\n", err.message);
    exit(1);
}

struct bench_file {
    uint8_t *bytes;
    size_t len;
};

/* Of quality 90; `bytes` is the C library's (free). */
static inline struct bench_file bench_jpeg(const struct dt_image *img)
{
    struct bench_file f;

    f.bytes = jpeg_file(img, 90, false, &f.len);
    return f;
}

/* The k-th sample: "KEY.ext" and a caption. */
static inline void bench_put_sample(struct dt_shard_writer *w, int k, const char *ext,
                                    const struct bench_file *f)
{
    static const char text[] = "a photo of a grey ankle boot, wide";
    const struct dt_shard_member m[2] = {{ext, f->bytes, f->len},
                                         {"txt", (const uint8_t *)text, sizeof text - 1}};
    char key[16];

    snprintf(key, sizeof key, "%06d", k);
    must(dt_shard_write(w, key, m, 2, &err));
}

#endif
