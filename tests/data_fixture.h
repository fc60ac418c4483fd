/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What tests of training data share: pictures, files of each format, shards in a temporary folder.
 */
#ifndef DT_TESTS_DATA_FIXTURE_H
#define DT_TESTS_DATA_FIXTURE_H

#include "base/mem.h"
#include "exec/data/image.h"
#include "exec/data/loader.h"
#include "exec/data/pack.h"
#include "exec/data/shard.h"
#include "exec/data/tokenizer.h"
#include "jpeg_file.h"
#include "test_util.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include <webp/encode.h>

/* Smooth, coloured, not symmetric. */
static inline struct dt_image fixture_picture(int w, int h, int kind)
{
    struct dt_image img;
    struct dt_error err;

    dt_assert_ok(dt_image_new(w, h, &err, &img), err);
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) {
            uint8_t *p = img.px + 3 * ((size_t)y * (size_t)w + (size_t)x);
            p[0] = (uint8_t)(20 + 200 * x / w);
            p[1] = (uint8_t)(30 + 180 * y / h);
            p[2] = (uint8_t)(40 + 37 * kind % 100 + 45 * (x + 2 * y) / (w + h));
        }
    return img;
}

static inline uint8_t *fixture_png(const struct dt_image *img, size_t *len)
{
    struct dt_error err;
    uint8_t *bytes;

    dt_assert_ok(dt_image_encode_png(img, 3, &err, &bytes, len), err);
    return bytes;
}

static inline uint8_t *fixture_jpeg(const struct dt_image *img, bool progressive, size_t *len)
{
    return jpeg_file(img, 95, progressive, len);
}

static inline uint8_t *fixture_webp(const struct dt_image *img, size_t *len)
{
    uint8_t *bytes = NULL;

    *len = WebPEncodeLosslessRGB(img->px, img->w, img->h, img->w * 3, &bytes);
    ck_assert_uint_gt(*len, 0);
    return bytes; /* WebPFree() */
}

static inline void fixture_folder(char *dir, size_t size)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(dir, size, "%s/dt-data-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static inline void fixture_folder_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char path[4096];

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path)
            continue;
        if (unlink(path) != 0) /* a folder */
            fixture_folder_remove(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

static inline void fixture_write(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

/* Shards DIR/s-00000k.tar with `n` samples, `per` each: picture i of 8 + i % 40 by 20 pixels, a
 * caption, the class. */
static inline int fixture_shards(const char *dir, int n, int per)
{
    struct dt_shard_writer *w;
    struct dt_error err;
    char prefix[512], key[32], text[64], cls[16];
    int shards;

    snprintf(prefix, sizeof prefix, "%s/s", dir);
    dt_assert_ok(dt_shard_writer_open(prefix, per, INT64_MAX, true, &err, &w), err);
    for (int i = 0; i < n; i++) {
        struct dt_image img = fixture_picture(8 + i % 40, 20, i);
        struct dt_shard_member m[3] = {{"png", NULL, 0}, {"txt", NULL, 0}, {"cls", NULL, 0}};
        uint8_t *png = fixture_png(&img, &m[0].len);

        snprintf(key, sizeof key, "x/%05d", i);
        snprintf(text, sizeof text, "picture %d%.*s", i, i % 7, "!!!!!!!");
        snprintf(cls, sizeof cls, "%d", i % 10);
        m[0].data = png;
        m[1] = (struct dt_shard_member){"txt", (uint8_t *)text, strlen(text)};
        m[2] = (struct dt_shard_member){"cls", (uint8_t *)cls, strlen(cls)};
        dt_assert_ok(dt_shard_write(w, key, m, 3, &err), err);
        dt_free(png);
        dt_image_free(&img);
    }
    dt_assert_ok(dt_shard_writer_close(w, &err, &shards), err);
    return shards;
}

/* A folder of those shards, and the tokenizer of bytes. */
struct fixture_data {
    char dir[256];
    struct dt_tokenizer *tok;
    char **shards;
    int n_shards;
};
static inline void fixture_data_open(struct fixture_data *d, int samples, int per)
{
    const char *name = d->dir;
    struct dt_error err;

    fixture_folder(d->dir, sizeof d->dir);
    fixture_shards(d->dir, samples, per);
    dt_assert_ok(dt_shard_list(&name, 1, &err, &d->shards, &d->n_shards), err);
    dt_assert_ok(dt_tokenizer_bytes(&err, &d->tok), err);
}
static inline void fixture_data_close(struct fixture_data *d)
{
    dt_free(d->shards);
    dt_tokenizer_free(d->tok);
    fixture_folder_remove(d->dir);
}

/* Of a loader of them: two epochs, shuffled, some pictures to be generated. */
static inline struct dt_loader_options fixture_data_options(const struct fixture_data *d)
{
    return (struct dt_loader_options){.shards = (const char *const *)d->shards,
                                      .n_shards = d->n_shards,
                                      .tokenizer = d->tok,
                                      .seq_len = 96,
                                      .patch = 4,
                                      .generate = 0.4,
                                      .shuffle = true,
                                      .seed = 2385,
                                      .epochs = 2};
}

#endif
