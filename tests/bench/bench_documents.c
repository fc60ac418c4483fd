/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Whole documents, as a producer makes them (read, decoded, resized, tokenized), of shards of JPEG, PNG and WebP, beside
 * what the libraries alone need to decode the same bytes.  Times of this process, the median of rounds that take turns,
 * so that other work of the machine counts little. */
#include "base/clock.h"
#include "base/mem.h"
#include "exec/data/document.h"
#include "exec/data/loader.h"

#include "data_bench.h"

#include <string.h>
#include <unistd.h>

#include <png.h>
#include <webp/decode.h>
#include <webp/encode.h>

enum { SIDE = 512, WANTED = 224, DOCS = 48, ROUNDS = 9, FORMATS = 3 };
static const char *const names[FORMATS] = {"jpeg", "png", "webp"};

/* Soft shapes and some grain, as photographs have. */
static struct dt_image picture(int seed)
{
    struct dt_image img;
    uint32_t x = 2463534242u + (uint32_t)seed;

    must(dt_image_new(SIDE, SIDE, &err, &img));
    for (int i = 0; i < SIDE * SIDE; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        for (int c = 0; c < 3; c++)
            img.px[3 * i + c] = (uint8_t)((i % SIDE * (c + 1) + i / SIDE * (seed % 5 + 1)) / 12 +
                                          (x >> (8 * c)) % 9);
    }
    return img;
}

static struct bench_file encode(int format, const struct dt_image *img)
{
    struct bench_file f = {NULL, 0};

    if (format == 0)
        f = bench_jpeg(img);
    else if (format == 1)
        must(dt_image_encode_png(img, 3, &err, &f.bytes, &f.len));
    else
        f.len = WebPEncodeRGB(img->px, SIDE, SIDE, SIDE * 3, 80, &f.bytes);
    if (!f.bytes || f.len == 0)
        exit(1);
    return f;
}

/* ---- the libraries alone ---- */

static uint8_t pixels[SIDE * SIDE * 3];

static void jpeg_alone(const struct bench_file *f)
{
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr mgr;

    c.err = jpeg_std_error(&mgr);
    jpeg_create_decompress(&c);
    jpeg_mem_src(&c, f->bytes, f->len);
    jpeg_read_header(&c, TRUE);
    c.out_color_space = JCS_RGB;
    jpeg_start_decompress(&c);
    while (c.output_scanline < c.output_height) {
        JSAMPROW row = pixels + (size_t)c.output_scanline * SIDE * 3;
        jpeg_read_scanlines(&c, &row, 1);
    }
    jpeg_finish_decompress(&c);
    jpeg_destroy_decompress(&c);
}

static void alone(int format, const struct bench_file *f)
{
    png_image p = {.version = PNG_IMAGE_VERSION};

    if (format == 0) {
        jpeg_alone(f);
    } else if (format == 1) {
        if (!png_image_begin_read_from_memory(&p, f->bytes, f->len))
            exit(1);
        p.format = PNG_FORMAT_RGB;
        if (!png_image_finish_read(&p, NULL, pixels, 0, NULL))
            exit(1);
    } else if (!WebPDecodeRGBInto(f->bytes, f->len, pixels, sizeof pixels, SIDE * 3)) {
        exit(1);
    }
}

/* ---- rounds ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, ROUNDS, sizeof *v, by_value);
    return v[ROUNDS / 2];
}

static void decode_ours(const struct bench_file *f)
{
    struct dt_image img;

    must(dt_image_decode(f->bytes, f->len, NULL, &err, &img));
    dt_image_free(&img);
}

static void bench(int format, struct dt_loader *l, const struct bench_file *file)
{
    double lib[ROUNDS], ours[ROUNDS], whole[ROUNDS];
    struct dt_shard_sample scratch = {0};

    for (int r = 0; r < ROUNDS; r++) {
        uint64_t t0 = dt_clock_process_ns(), t1, t2;

        for (int k = 0; k < DOCS; k++)
            alone(format, &file[k]);
        t1 = dt_clock_process_ns();
        for (int k = 0; k < DOCS; k++)
            decode_ours(&file[k]);
        t2 = dt_clock_process_ns();
        for (int k = 0; k < DOCS; k++) {
            struct dt_document d = {0};

            dt_loader_document(l, k, &scratch, &d);
            must(d.status);
            dt_document_free(&d);
        }
        lib[r] = (double)(t1 - t0) / DOCS;
        ours[r] = (double)(t2 - t1) / DOCS;
        whole[r] = (double)(dt_clock_process_ns() - t2) / DOCS;
    }
    dt_shard_sample_free(&scratch);
    printf("bench: data_decode_%s_512 %.1f Mpixel/s ratio %.2f of its library alone\n",
           names[format], SIDE * SIDE / median(ours) * 1e3, median(lib) / median(ours));
    printf("bench: data_documents_%s_512 %.0f documents/s ratio %.2f of decoding alone\n",
           names[format], 1e9 / median(whole), median(lib) / median(whole));
}

int main(void)
{
    char dir[] = "/tmp/dt-bench-documents-XXXXXX", prefix[64], path[96];
    const char *paths[1] = {path};
    struct dt_tokenizer *t;

    must(dt_tokenizer_bytes(&err, &t));
    if (!mkdtemp(dir))
        return 1;
    for (int format = 0; format < FORMATS; format++) {
        struct dt_loader_options o = {.shards = paths,
                                      .n_shards = 1,
                                      .seq_len = 512,
                                      .tokenizer = t,
                                      .image = {DT_FIT_CROP, WANTED, DT_FILTER_AUTO},
                                      .target = {DT_FIT_CROP, WANTED, DT_FILTER_AUTO}};
        struct dt_shard_writer *w;
        struct bench_file file[DOCS];
        struct dt_loader *l;

        snprintf(prefix, sizeof prefix, "%s/%s", dir, names[format]);
        snprintf(path, sizeof path, "%s-000000.tar", prefix);
        must(dt_shard_writer_open(prefix, DOCS, INT64_MAX, false, &err, &w));
        for (int k = 0; k < DOCS; k++) {
            struct dt_image img = picture(k);

            file[k] = encode(format, &img);
            bench_put_sample(w, k, names[format], &file[k]);
            dt_image_free(&img);
        }
        must(dt_shard_writer_close(w, &err, NULL));
        must(dt_loader_open(&o, &err, &l));
        bench(format, l, file);
        dt_loader_close(l);
        for (int k = 0; k < DOCS; k++)
            format == 1 ? dt_free(file[k].bytes) : free(file[k].bytes);
        unlink(path);
    }
    rmdir(dir);
    dt_tokenizer_free(t);
    return 0;
}
