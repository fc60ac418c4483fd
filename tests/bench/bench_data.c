/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Training data: decoding, resizing, tokens, and the loader from shards to sequences. */
#include "base/mem.h"
#include "base/clock.h"
#include "exec/data/fbank.h"
#include "exec/data/loader.h"
#include "exec/data/pack.h"

#include "data_bench.h"

#include <string.h>
#include <unistd.h>

enum { DOCS = 6000, SIDE = 512 };

static double seconds_since(uint64_t begin_ns)
{
    return (double)(dt_clock_ns() - begin_ns) * 1e-9;
}

static struct dt_image picture(int side)
{
    struct dt_image img;
    must(dt_image_new(side, side, &err, &img));
    for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++) {
            uint8_t *p = img.px + 3 * (y * side + x);
            p[0] = (uint8_t)(x * 255 / side);
            p[1] = (uint8_t)(y * 255 / side);
            p[2] = (uint8_t)((x * y / 61 + x) & 127);
        }
    return img;
}

static void bench_images(void)
{
    struct dt_image img = picture(SIDE), out;
    static const struct dt_image_spec whole = {DT_FIT_NONE, 0, DT_FILTER_AUTO},
                                      small = {DT_FIT_CROP, 64, DT_FILTER_AUTO};
    struct bench_file file = bench_jpeg(&img);
    double s[2];
    for (int k = 0; k < 2; k++) {
        uint64_t begin = dt_clock_ns();
        for (int i = 0; i < 100; i++) {
            must(dt_image_load(file.bytes, file.len, NULL, k ? &small : &whole, &err, &out));
            dt_image_free(&out);
        }
        s[k] = seconds_since(begin) / 100;
    }
    printf("bench: data_jpeg_512 %.1f Mpixel/s\n", SIDE * SIDE / s[0] * 1e-6);
    printf("bench: data_jpeg_512_to_64 %.0f images/s ratio %.2f of decoding it whole\n", 1 / s[1],
           s[0] / s[1]);
    uint64_t begin = dt_clock_ns();
    for (int i = 0; i < 100; i++) {
        must(dt_image_resize(&img, 0, 0, SIDE, SIDE, 200, 200, DT_FILTER_AREA, &err, &out));
        dt_image_free(&out);
    }
    printf("bench: data_resize_512_to_200 %.1f Mpixel/s\n",
           100.0 * SIDE * SIDE / seconds_since(begin) * 1e-6);
    free(file.bytes);
    dt_image_free(&img);
}

/* Ten seconds of a WAV file: 16 bits, noise. */
static uint8_t *noise(uint32_t rate, uint16_t channels, size_t *len)
{
    uint32_t data = 10 * rate * channels * 2, x = 1;
    uint32_t head[11] = {0x46464952,
                         36 + data,
                         0x45564157,
                         0x20746d66,
                         16,
                         1u | (uint32_t)channels << 16,
                         rate,
                         rate * channels * 2,
                         (uint32_t)(2 * channels) | 16u << 16,
                         0x61746164,
                         data};
    uint8_t *bytes = malloc(sizeof head + data);

    if (!bytes)
        exit(1);
    memcpy(bytes, head, sizeof head); /* little-endian, as the loader wants its machine */
    for (uint32_t i = 0; i < data; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[sizeof head + i] = (uint8_t)(x >> 24);
    }
    *len = sizeof head + data;
    return bytes;
}

static void bench_sound(void)
{
    static const struct {
        uint32_t rate;
        uint16_t channels;
        const char *name;
    } c[] = {{16000, 1, "16k_mono"}, {44100, 2, "44k_stereo"}};
    double first = 0;

    for (int k = 0; k < 2; k++) {
        size_t len;
        uint8_t *bytes = noise(c[k].rate, c[k].channels, &len);
        uint64_t begin = dt_clock_ns();
        double s;

        for (int i = 0; i < 20; i++) {
            struct dt_audio a;
            enum dt_audio_bad bad;

            must(dt_audio_spectrogram(bytes, len, 1000, 128, &err, &a, &bad));
            dt_free(a.at);
        }
        s = 200 / seconds_since(begin);
        first = k == 0 ? s : first;
        printf("bench: data_sound_%s %.0f s/s", c[k].name, s);
        printf(k == 0 ? "\n" : " ratio %.2f of what is at 16 kHz already\n", s / first);
        free(bytes);
    }
}

static void bench_tokens(void)
{
    static const char line[] = "This is some text, hello world: indivisible 12345\n";
    const char *srcdir = getenv("srcdir");
    struct dt_tokenizer *t;
    struct dt_tokenizer_ids ids = {0};
    char path[1024];
    size_t n = 0;
    snprintf(path, sizeof path, "%s/tests/data/tokenizer/gpt2-subset.json", srcdir ? srcdir : ".");
    must(dt_tokenizer_open(path, &err, &t));
    uint64_t begin = dt_clock_ns();
    for (int i = 0; i < 40000; i++, n += sizeof line - 1) {
        ids.n = 0;
        must(dt_tokenizer_encode(t, line, sizeof line - 1, false, &err, &ids));
    }
    printf("bench: data_bpe %.1f MB/s\n", (double)n / seconds_since(begin) * 1e-6);
    dt_tokenizer_ids_free(&ids);
    dt_tokenizer_free(t);
}

static void write_shard(const char *prefix)
{
    struct dt_image img = picture(28);
    struct dt_shard_writer *w;
    struct bench_file png;
    must(dt_image_encode_png(&img, 1, &err, &png.bytes, &png.len));
    must(dt_shard_writer_open(prefix, DOCS, INT64_MAX, false, &err, &w));
    for (int i = 0; i < DOCS; i++)
        bench_put_sample(w, i, "png", &png);
    must(dt_shard_writer_close(w, &err, NULL));
    dt_free(png.bytes);
    dt_image_free(&img);
}

static void bench_loader(void)
{
    char dir[64] = "/tmp/dt-bench-data-XXXXXX", prefix[96], path[128];
    const char *paths[1] = {path};
    struct dt_loader_options o = {.shards = paths,
                                  .n_shards = 1,
                                  .seq_len = 512,
                                  .generate = 0.5,
                                  .shuffle = true,
                                  .epochs = 4,
                                  .image = {DT_FIT_STRETCH, 64, DT_FILTER_AUTO},
                                  .target = {DT_FIT_STRETCH, 32, DT_FILTER_AUTO}};
    struct dt_tokenizer *t;
    double rate[3];
    if (!mkdtemp(dir))
        exit(1);
    snprintf(prefix, sizeof prefix, "%s/b", dir);
    snprintf(path, sizeof path, "%s-000000.tar", prefix);
    write_shard(prefix);
    must(dt_tokenizer_bytes(&err, &t));
    o.tokenizer = t;
    for (o.threads = 0; o.threads < 3; o.threads++) {
        struct dt_loader *l;
        struct dt_sequence *s;
        uint64_t begin = dt_clock_ns();
        must(dt_loader_open(&o, &err, &l));
        for (;;) {
            must(dt_loader_next(l, &err, &s));
            if (!s)
                break;
            dt_sequence_free(s);
        }
        dt_loader_close(l);
        rate[o.threads] = 4 * DOCS / seconds_since(begin);
        printf("bench: data_loader_%d_threads %.0f documents/s ratio %.2f of none\n", o.threads,
               rate[o.threads], rate[o.threads] / rate[0]);
    }
    dt_tokenizer_free(t);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    bench_images();
    if (dt_audio_built())
        bench_sound();
    bench_tokens();
    bench_loader();
    return 0;
}
