/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Samples: CSV reader, distributions, packing, work per module.  (The fit behind the shipped presets: test_samples_fit.c.)
 */
#define _GNU_SOURCE /* mkstemps */
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "core/model/samples.h"
#include "core/model/samples_build.h"
#include "laion.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { SEQ = 8192 };

static enum dt_status csv(const char *text, struct dt_error *err, struct dt_samples **out)
{
    return dt_samples_parse_csv("t.csv", text, strlen(text), SEQ, NULL, err, out);
}

/* Reads `samples: <yaml>` as a job would. */
static enum dt_status read_yaml(const char *yaml, int seq_len, int64_t count, uint64_t seed,
                                struct dt_error *err, struct dt_samples **out)
{
    struct dt_doc *doc = NULL;
    char text[4096];
    snprintf(text, sizeof(text), "samples: %s\n", yaml);
    enum dt_status st = dt_doc_parse("job.yaml", text, strlen(text), err, &doc);
    if (st == DT_OK)
        st = dt_samples_read(dt_map_get(dt_doc_root(doc), "samples"), seq_len, count, seed, NULL,
                             err, out);
    dt_doc_free(doc);
    return st;
}

static struct dt_samples *must_read(const char *yaml, int seq_len, int64_t count, uint64_t seed)
{
    struct dt_samples *s = NULL;
    struct dt_error err = {0};
    enum dt_status st = read_yaml(yaml, seq_len, count, seed, &err, &s);
    ck_assert_msg(st == DT_OK, "%s: %s", yaml, err.message);
    return s;
}

static bool same(const struct dt_samples *a, const struct dt_samples *b, int64_t n)
{
    return memcmp(a->text_tokens, b->text_tokens, (size_t)n * 4) == 0 &&
           memcmp(a->seq_tokens, b->seq_tokens, (size_t)n * 4) == 0 &&
           memcmp(a->item_first, b->item_first, (size_t)(n + 1) * 8) == 0 &&
           memcmp(a->items, b->items, (size_t)a->item_first[n] * sizeof(struct dt_sample_item)) ==
               0;
}

/* ---- tokens of images ---- */

/* A sequence holds the tokens that the encoder makes of its images, counted here one by one. */
START_TEST(sequences_are_packed_by_the_encoders_patches)
{
    static const struct {
        struct dt_samples_image image;
        const char *yaml;
        int patch, resize; /* what must come of the two */
    } cases[] = {
        {{.patch = 0, .resize = 0}, "samples: laion-8k\n", 16, 0},
        {{.patch = 14, .resize = 0}, "samples: laion-8k\n", 14, 0},
        {{.patch = 14, .resize = 224}, "samples: laion-8k\n", 14, 224},
        {{.patch = 28, .resize = 0}, "samples: {preset: laion-8k, patch: 28}\n", 28, 0},
        {{.patch = 28, .resize = 0},
         "samples: {distribution: {image_side: {kind: constant, value: 300}, patch: 28}}\n",
         28,
         0},
        {{.patch = 14, .resize = 0},
         "samples: {distribution: {image_side: {kind: constant, value: 300}}}\n",
         14,
         0},
    };

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        const int p = cases[c].patch;
        struct dt_samples *s = NULL;
        struct dt_error err = {0};
        struct dt_doc *doc = NULL;
        int64_t most = 0;

        dt_assert_ok(dt_doc_parse("t.yaml", cases[c].yaml, strlen(cases[c].yaml), &err, &doc), err);
        dt_assert_ok(dt_samples_read(dt_map_get(dt_doc_root(doc), "samples"), 8192, 200, 7,
                                     &cases[c].image, &err, &s),
                     err);
        dt_doc_free(doc);
        for (int64_t i = 0; i < s->n; i++) {
            int64_t tokens = s->text_tokens[i];

            for (uint64_t k = s->item_first[i]; k < s->item_first[i + 1]; k++) {
                int w = cases[c].resize ? cases[c].resize : s->items[k].w;
                int h = cases[c].resize ? cases[c].resize : s->items[k].h;

                tokens += (int64_t)((w + p - 1) / p) * ((h + p - 1) / p);
            }
            ck_assert_msg(tokens <= 8192, "case %zu sample %lld: %lld tokens", c, (long long)i,
                          (long long)tokens);
            most = tokens > most ? tokens : most;
        }
        ck_assert_msg(most > 7600, "case %zu: no sequence is full, at most %lld tokens", c,
                      (long long)most);
        dt_samples_free(s);
    }
}
END_TEST

/* ---- CSV ---- */

START_TEST(csv_reads_every_column)
{
    struct dt_samples *s = NULL;
    struct dt_error err = {0};
    const char *text = "\xef\xbb\xbf# sizes of a test\r\n"
                       "sample,text_tokens,images,audio_s,gen_images,gen_audio_s,seq_tokens\r\n"
                       "0,37,\"640x427;91x1021\",,640x427,,\r\n"
                       "\r\n"
                       "1, 5 ,,10;7.25,512x512,7.25,4099\r\n"
                       "2,8192,,,,,";
    ck_assert_msg(csv(text, &err, &s) == DT_OK, "%s", err.message);
    ck_assert_int_eq(s->n, 3);
    ck_assert_str_eq(s->name, "t.csv");
    ck_assert_uint_eq(s->text_tokens[1], 5);
    ck_assert_uint_eq(s->seq_tokens[0], SEQ);
    ck_assert_uint_eq(s->seq_tokens[1], 4099);
    static const uint64_t first[] = {0, 2, 5, 5};
    ck_assert_mem_eq(s->item_first, first, sizeof(first));
    static const struct dt_sample_item items[] = {
        {640, 427, DT_MODALITY_IMAGE, DT_ITEM_ENCODE | DT_ITEM_GENERATE},
        {91, 1021, DT_MODALITY_IMAGE, DT_ITEM_ENCODE},
        {1000, 0, DT_MODALITY_AUDIO, DT_ITEM_ENCODE},
        {725, 0, DT_MODALITY_AUDIO, DT_ITEM_ENCODE | DT_ITEM_GENERATE},
        {512, 512, DT_MODALITY_IMAGE, DT_ITEM_GENERATE},
    };
    ck_assert_uint_eq(s->items[4].flags, DT_ITEM_GENERATE);
    ck_assert_mem_eq(s->items, items, sizeof(items));
    dt_samples_free(s);
}
END_TEST

/* The same image twice among the targets, once among the inputs: one shared, one on its own. */
START_TEST(csv_targets_match_once)
{
    struct dt_samples *s = NULL;
    struct dt_error err = {0};
    ck_assert_int_eq(csv("text_tokens,gen_images,images\n3,96x80;96x80,96x80\n", &err, &s), DT_OK);
    ck_assert_uint_eq(s->item_first[1], 2);
    ck_assert_uint_eq(s->items[0].flags, DT_ITEM_ENCODE | DT_ITEM_GENERATE);
    ck_assert_uint_eq(s->items[1].flags, DT_ITEM_GENERATE);
    dt_samples_free(s);
}
END_TEST

static const struct {
    const char *text;
    int line, col;
    const char *says;
} bad_csv[] = {
    {"", 1, 1, "no header line"},
    {"# only a comment\n", 2, 1, "no header line"},
    {"sample,images\n0,1x1\n", 1, 1, "lacks the column 'text_tokens'"},
    {"text_token\n3\n", 1, 1, "did you mean 'text_tokens'"},
    {"text_tokens,images,images\n3,,\n", 1, 20, "column named twice"},
    {"text_tokens\n", 2, 1, "no samples"},
    {"text_tokens,images\n3\n", 2, 1, "1 fields where the header has 2"},
    {"text_tokens\n3,4\n", 2, 3, "2 fields where the header has 1"},
    {"text_tokens\n7\nx9\n", 3, 1, "expected a whole number"},
    {"text_tokens\n\n12a\n", 3, 3, "expected a whole number"},
    {"text_tokens\n-1\n", 2, 1, "expected a whole number"},
    {"text_tokens\n8193\n", 2, 1, "from 0 to 8192"},
    {"text_tokens\n99999999999999999999999\n", 2, 1, "expected a whole number"},
    {"text_tokens,images\n1,640\n", 2, 6, "WxH"},
    {"text_tokens,images\n1,640x\n", 2, 7, "WxH"},
    {"text_tokens,images\n1,0x5\n", 2, 4, "WxH"},
    {"text_tokens,images\n1,70000x5\n", 2, 3, "1 to 16384"},
    {"text_tokens,images\n1,64x64;\n", 2, 8, "after ';'"},
    {"text_tokens,images\n1,64x64 64x64\n", 2, 8, "expected ';'"},
    {"text_tokens,images\n1,\"64x64\n", 2, 3, "quote is not closed"},
    {"text_tokens,images\n1,\"64x64\"z\n", 2, 10, "after a quoted field"},
    {"text_tokens,images\n1,4096x4096\n", 2, 1, "65537 tokens"},
    {"text_tokens,audio_s\n1,656\n", 2, 3, "seconds"},
    {"text_tokens,audio_s\n1,0\n", 2, 3, "seconds"},
    {"text_tokens,audio_s\n1,nan\n", 2, 3, "seconds"},
    {"text_tokens,seq_tokens\n9,5\n", 2, 1, "9 tokens"},
    {"text_tokens,seq_tokens\n0,0\n", 2, 1, "0 tokens"},
    {"text_tokens,sample\n9,first\n", 2, 3, "expected a whole number"},
};

START_TEST(csv_says_what_and_where)
{
    struct dt_samples *s = NULL;
    struct dt_error err = {0};
    ck_assert_int_eq(csv(bad_csv[_i].text, &err, &s), DT_ERR_INPUT);
    ck_assert_ptr_null(s);
    ck_assert_str_eq(err.file, "t.csv");
    ck_assert_msg(err.line == bad_csv[_i].line && err.col == bad_csv[_i].col,
                  "'%s': at %d:%d, not %d:%d: %s", bad_csv[_i].text, err.line, err.col,
                  bad_csv[_i].line, bad_csv[_i].col, err.message);
    ck_assert_msg(strstr(err.message, bad_csv[_i].says) != NULL, "'%s' lacks '%s'", err.message,
                  bad_csv[_i].says);
}
END_TEST

/* Rows of a scan are those of one patch, of images or of sounds; before it was stated it was 16. */
START_TEST(csv_of_a_scan)
{
    static const struct dt_samples_image pictures = {.patch = 28},
                                         sounds = {.mel_bins = 128, .sound_patch = 16};
    static const struct {
        const char *line;
        const struct dt_samples_image *image;
        const char *says; /* NULL: it is read */
    } v[] = {
        {"# disttrain data scan: 2 rows, seed 0, patch 28\n", &pictures, NULL},
        {"# disttrain data scan: 2 rows, seed 0, patch 14\n", &pictures, "data scan --patch 28"},
        {"# disttrain data scan: 2 rows, seed 0\n", &pictures, "16 x 16 pixels"},
        {"# disttrain data scan: 2 rows, seed 0\n", NULL, NULL},
        {"# disttrain data scan: 2 rows, seed 0, patch 14\n", &sounds, NULL},
        {"# disttrain data scan: 2 rows, seed 0, patch 16, mel_bins 128\n", &sounds, NULL},
        {"# disttrain data scan: 2 rows, seed 0, patch 16, mel_bins 64\n", &sounds,
         "16 x 16 of 64 filters, and the model's encoder takes 16 x 16 of 128"},
        {"# disttrain data scan: 2 rows, seed 0, patch 8, mel_bins 128\n", &sounds, "--job JOB"},
        {"# disttrain data scan: 2 rows, seed 0, patch 8, mel_bins 128\n", &pictures, NULL},
        {"# scanned: patch 14\n", &pictures, NULL}};

    for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++) {
        struct dt_samples *s = NULL;
        struct dt_error err = {0};
        char text[200];

        snprintf(text, sizeof(text), "%stext_tokens\n3\n", v[i].line);
        ck_assert_msg((dt_samples_parse_csv("t.csv", text, strlen(text), SEQ, v[i].image, &err,
                                            &s) == DT_OK) == !v[i].says,
                      "%zu: %s", i, err.message);
        if (v[i].says) {
            dt_assert_has(err.message, v[i].says);
            ck_assert_int_eq(err.line, 1);
        }
        dt_samples_free(s);
    }
}
END_TEST

/* Cut anywhere: an answer or a located error, never both or neither. */
START_TEST(csv_survives_truncation)
{
    const char *text = "sample,text_tokens,images,audio_s,gen_images\r\n"
                       "0,37,\"640x427;91x1021\",10;3.5,640x427\r\n1,5,,7.25,512x512\r\n";
    int good = 0, bad = 0;
    for (size_t len = 0; len <= strlen(text); len++) {
        struct dt_samples *s = NULL;
        struct dt_error err = {0};
        char *copy = malloc(len + 1); /* its end is the sanitizer's */
        memcpy(copy, text, len);
        enum dt_status st = dt_samples_parse_csv("t.csv", copy, len, SEQ, NULL, &err, &s);
        ck_assert((st == DT_OK) == (s != NULL));
        if (st == DT_OK)
            good++;
        else
            ck_assert_int_ge((bad++, err.line), 1);
        free(copy);
        dt_samples_free(s);
    }
    ck_assert_int_gt(good, 2);
    ck_assert_int_gt(bad, 60);
}
END_TEST

/* ---- distributions ---- */

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Quantiles that are known of such data: median image about 300 tokens, 90th percentile about
 * 1,900, about 10 images a sequence, 1st percentile 2, 99th 22. */
START_TEST(laion_preset_looks_like_web_data)
{
    enum { N = 20000 };
    struct dt_samples *s = must_read("laion-8k", SEQ, N, 0);
    ck_assert_str_eq(s->name, "laion-8k");
    ck_assert_int_eq(s->n, N);
    int64_t items = (int64_t)s->item_first[N], targets = 0, wide = 0, text = 0;
    int64_t *tok = malloc((size_t)items * sizeof(*tok)), *per = malloc(N * sizeof(*per));
    double at[3] = {0};
    for (int64_t k = 0; k < items; k++) {
        const struct dt_sample_item *it = &s->items[k];
        int lo = it->w < it->h ? it->w : it->h, hi = it->w + it->h - lo;
        tok[k] = dt_sample_image_tokens(it->w, it->h, 16);
        ck_assert(it->kind == DT_MODALITY_IMAGE && (it->flags & DT_ITEM_ENCODE));
        ck_assert(lo >= 64 && hi <= 1024);
        targets += (it->flags & DT_ITEM_GENERATE) != 0;
        wide += it->w > it->h;
        at[0] += hi >= 256;
        at[1] += hi >= 512;
        at[2] += hi >= 1024;
    }
    for (int64_t i = 0; i < N; i++) {
        int64_t used = s->text_tokens[i];
        text += used;
        per[i] = (int64_t)(s->item_first[i + 1] - s->item_first[i]);
        for (uint64_t k = s->item_first[i]; k < s->item_first[i + 1]; k++)
            used += tok[k];
        ck_assert(used <= SEQ && s->seq_tokens[i] == SEQ);
    }
    qsort(tok, (size_t)items, sizeof(*tok), by_size);
    qsort(per, N, sizeof(*per), by_size);
    printf(
        "laion-8k: image tokens median %lld p90 %lld; images/sequence mean %.2f p1 %lld p99 %lld; "
        "caption mean %.2f\n",
        (long long)tok[items / 2], (long long)tok[items * 9 / 10], (double)items / N,
        (long long)per[N / 100], (long long)per[N * 99 / 100], (double)text / (double)items);
    ck_assert_int_ge(tok[items / 2], 270);
    ck_assert_int_le(tok[items / 2], 380);
    ck_assert_int_ge(tok[items * 9 / 10], 1700);
    ck_assert_int_le(tok[items * 9 / 10], 2100);
    ck_assert_double_eq_tol((double)items / N, 10, 1.2);
    ck_assert_int_ge(per[N / 100], 1);
    ck_assert_int_le(per[N / 100], 3);
    ck_assert_double_eq_tol((double)per[N * 99 / 100], 22, 3);
    ck_assert_double_eq_tol((double)text / (double)items, 15, 0.5);
    /* the published larger-side shares come back; the cut at 1,024 keeps what is above */
    for (int i = 0; i < 3; i++)
        ck_assert_double_eq_tol(at[i] / (double)items, laion[i].larger, 0.012);
    ck_assert_double_eq_tol((double)targets / (double)items, 0.5, 0.01);
    ck_assert_double_eq_tol((double)wide / (double)items, 0.49, 0.02);
    free(tok);
    free(per);
    dt_samples_free(s);
}
END_TEST

START_TEST(sample_does_not_depend_on_count)
{
    static const char *const sets[] = {"laion-8k", "audio", "text", "interleaved-8k"};
    for (int k = 0; k < 4; k++) {
        struct dt_samples *a = must_read(sets[k], SEQ, 17, 11),
                          *b = must_read(sets[k], SEQ, 403, 11);
        struct dt_samples *first = NULL;
        struct dt_error err = {0};

        ck_assert_msg(same(a, b, 17), "%s", sets[k]);
        ck_assert_str_ne(a->source, "");
        dt_assert_ok(dt_samples_prefix(b, 17, &err, &first), err);
        dt_samples_free(b);
        ck_assert(first->n == 17 && same(a, first, 17) && first->generate == a->generate &&
                  first->generate_stated == a->generate_stated);
        ck_assert_str_eq(first->name, a->name);
        ck_assert_str_eq(first->source, a->source);
        dt_samples_free(first);
        dt_samples_free(a);
    }
}
END_TEST

START_TEST(seed_matters_and_repeats)
{
    struct dt_samples *a = must_read("{preset: laion-8k, seed: 7}", SEQ, 64, 0);
    struct dt_samples *b = must_read("{preset: laion-8k, seed: 7, count: 64}", SEQ, 9, 5);
    struct dt_samples *c = must_read("{preset: laion-8k, seed: 8}", SEQ, 64, 0);
    ck_assert_int_eq(b->n, 64);
    ck_assert(same(a, b, 64));
    ck_assert(a->item_first[64] != c->item_first[64] || !same(a, c, 64));
    dt_samples_free(a);
    dt_samples_free(b);
    dt_samples_free(c);
}
END_TEST

START_TEST(overrides_apply)
{
    struct dt_samples *s =
        must_read("{preset: laion-8k, max_side: 512, min_side: 96, generate: 1}", SEQ, 300, 3);
    for (uint64_t k = 0; k < s->item_first[s->n]; k++) {
        ck_assert(s->items[k].w <= 512 && s->items[k].h <= 512);
        ck_assert(s->items[k].w >= 96 && s->items[k].h >= 96);
        ck_assert_uint_eq(s->items[k].flags, DT_ITEM_ENCODE | DT_ITEM_GENERATE);
    }
    dt_samples_free(s);
}
END_TEST

/* The pairs are those that sequences are filled with otherwise, each as long as its text and its image. */
START_TEST(pairs_stay_apart)
{
    static const char pairs[] =
        "{distribution: {image_side: {kind: lognormal, mu: 6, sigma: 0.4}, "
        "text_tokens: {kind: lognormal, mu: 5, sigma: 0.7, min: 3, max: 999}, max_side: 800%s}}";
    char yaml[512];
    struct dt_samples *a, *b;
    uint64_t text[2] = {0};

    snprintf(yaml, sizeof(yaml), pairs, ", pack: none");
    a = must_read(yaml, SEQ, 300, 3);
    snprintf(yaml, sizeof(yaml), pairs, "");
    b = must_read(yaml, SEQ, 10, 3);
    ck_assert_uint_eq(a->item_first[300], 300);
    ck_assert_uint_gt(b->item_first[10], 30);
    ck_assert_uint_le(b->item_first[10], 300);
    ck_assert_int_eq(memcmp(a->items, b->items, b->item_first[10] * sizeof(*b->items)), 0);
    for (uint64_t k = 0; k < b->item_first[10]; k++)
        text[0] += a->text_tokens[k];
    for (int i = 0; i < 10; i++)
        text[1] += b->text_tokens[i];
    ck_assert_uint_eq(text[0], text[1]);
    for (int i = 0; i < 300; i++)
        ck_assert_uint_eq(a->seq_tokens[i], a->text_tokens[i] + (a->items[i].w + 15u) / 16 *
                                                                    ((a->items[i].h + 15u) / 16));
    dt_samples_free(a);
    dt_samples_free(b);
}
END_TEST

/* Parameters left out: the fit is made while reading, with the shipped result. */
START_TEST(distribution_can_be_fitted_inline)
{
    struct dt_samples *a = must_read(
        "{distribution: {size_ccdf: [{px: 256, smaller: 0.5108958838, larger: 0.6489104116}, "
        "{px: 512, smaller: 0.1622276029, larger: 0.2711864407}, "
        "{px: 1024, smaller: 0.0232445521, larger: 0.0629539952}], "
        "text_tokens: {kind: lognormal, mean: 15, p99: 63, min: 1, max: 256}}, seed: 20250908}",
        SEQ, 50, 0);
    struct dt_samples *b = must_read("laion-8k", SEQ, 50, 0);
    int64_t area[2] = {0, 0};
    ck_assert_uint_eq(a->item_first[50], b->item_first[50]);
    for (uint64_t k = 0; k < a->item_first[50]; k++) {
        area[0] += a->items[k].w * a->items[k].h;
        area[1] += b->items[k].w * b->items[k].h;
    }
    ck_assert_double_eq_tol((double)area[0] / (double)area[1], 1, 1e-3);
    dt_samples_free(a);
    dt_samples_free(b);
}
END_TEST

static const struct {
    const char *yaml, *says;
} bad_yaml[] = {
    {"{}", "exactly one of"},
    {"[1]", "preset name"},
    {"{preset: laion-8k, csv: a.csv}", "exactly one of"},
    {"{preset: laion-8k, max_sid: 512}", "max_side"},
    {"{csv: a.csv, seed: 3}", "does not apply"},
    {"no-such-preset", "laion-8k"},
    {"/nowhere/no.csv", "/nowhere/no.csv"},
    {"{preset: laion-8k, max_side: 2048}", "lower samples.max_side"},
    {"{preset: laion-8k, max_side: 32}", "above max_side"},
    {"{distribution: {}}", "is empty"},
    {"{distribution: {text_tokens: {kind: constant, value: 9}, fill: text, pack: none}}",
     "with pack: none"},
    {"{distribution: {text_tokens: {kind: zipf}}}", "zipf"},
    {"{distribution: {text_tokens: {kind: lognormal, mu: 2}}}", "sigma"},
    {"{distribution: {text_tokens: {kind: uniform, min: 3}}}", "max"},
    {"{distribution: {text_tokens: {kind: constant, value: 9000}}}", "8192"},
    {"{distribution: {text_tokens: {kind: lognormal, mean: 9, p99: 3}}}", "0 < mean < value"},
    {"{distribution: {text_tokens: {kind: constant, value: 9, mean: 9}}}", "is stated by value"},
    {"{distribution: {text_tokens: {kind: exponential, mean: 9, mu: 2}}}", "is stated by mean"},
    {"{distribution: {text_tokens: {kind: uniform, min: 3, max: 9, value: 4}}}",
     "is stated by min and max"},
    {"{distribution: {text_tokens: {kind: lognormal, mu: 2, sigma: 1, mean: 9}}}",
     "mean: this distribution is stated by mu and sigma"},
    {"{distribution: {text_tokens: {kind: lognormal, mean: 9, p99: 30, sigma: 1}}}",
     "sigma: this distribution is stated by mean and p99"},
    {"{distribution: {size_ccdf: [{px: 9, smaller: 0.5, larger: 0.4}]}}", "size fit"},
    {"{distribution: {size_ccdf: [{px: 9, smaller: 0.5}]}}", "larger"},
};

START_TEST(yaml_says_what_is_wrong)
{
    struct dt_samples *s = NULL;
    struct dt_error err = {0};
    ck_assert_int_eq(read_yaml(bad_yaml[_i].yaml, SEQ, 4, 1, &err, &s), DT_ERR_INPUT);
    ck_assert_ptr_null(s);
    ck_assert_msg(strstr(err.message, bad_yaml[_i].says) || strstr(err.file, bad_yaml[_i].says),
                  "%s: '%s' lacks '%s'", bad_yaml[_i].yaml, err.message, bad_yaml[_i].says);
}
END_TEST

START_TEST(a_missing_preset_is_located_in_the_job)
{
    static const char *const jobs[] = {"laion-9k", "{preset: laion-9k}", "/nowhere/x.csv",
                                       "{csv: /nowhere/x.csv}"};
    static const int col[] = {10, 19, 10, 16};
    for (int k = 0; k < 4; k++) {
        struct dt_samples *s = NULL;
        struct dt_error err = {0};
        ck_assert_int_eq(read_yaml(jobs[k], SEQ, 4, 1, &err, &s), DT_ERR_INPUT);
        ck_assert_str_eq(err.file, "job.yaml");
        ck_assert_int_eq(err.line, 1);
        ck_assert_int_eq(err.col, col[k]);
    }
}
END_TEST

START_TEST(csv_file_by_path)
{
    char path[] = "test_samples_XXXXXX.csv", yaml[64];
    int fd = mkstemps(path, 4);
    ck_assert_int_ge(fd, 0);
    const char *good = "text_tokens,images\n7,33x65\n", *bad = "text_tokens\n7\n8,\n";
    ck_assert_int_eq(write(fd, good, strlen(good)), (ssize_t)strlen(good));
    struct dt_samples *a = must_read(path, SEQ, 4, 1), *b;
    snprintf(yaml, sizeof(yaml), "{csv: %s}", path);
    b = must_read(yaml, SEQ, 4, 1);
    ck_assert_int_eq(a->n, 1);
    ck_assert(same(a, b, 1));
    dt_samples_free(a);
    dt_samples_free(b);
    ck_assert_int_eq(pwrite(fd, bad, strlen(bad), 0), (ssize_t)strlen(bad));
    ck_assert_int_eq(ftruncate(fd, (off_t)strlen(bad)), 0);
    struct dt_error err = {0};
    ck_assert_int_eq(read_yaml(yaml, SEQ, 4, 1, &err, &a), DT_ERR_INPUT);
    ck_assert_str_eq(err.file, path);
    ck_assert_int_eq(err.line, 3);
    close(fd);
    unlink(path);
}
END_TEST

START_TEST(each_kind_of_distribution)
{
    struct dt_samples *s =
        must_read("{distribution: {text_tokens: {kind: uniform, min: 10, max: 30}, "
                  "audio_s: {kind: exponential, mean: 2, max: 60}, "
                  "image_side: {kind: constant, value: 200}}}",
                  4096 * 3, 2000, 5);
    double text = 0, cs = 0, pairs = (double)s->item_first[s->n] / 2;
    for (int64_t i = 0; i < s->n; i++)
        text += s->text_tokens[i];
    for (uint64_t k = 0; k < s->item_first[s->n]; k++) {
        if (s->items[k].kind == DT_MODALITY_IMAGE)
            ck_assert(s->items[k].w == 200 && s->items[k].h == 200);
        else
            cs += s->items[k].w;
    }
    ck_assert_double_eq_tol(text / pairs, 20, 0.2);
    ck_assert_double_eq_tol(cs / pairs, 200, 5);
    dt_samples_free(s);
    s = must_read("{distribution: {text_tokens: {kind: constant, value: 0}}}", 64, 2, 5);
    ck_assert_uint_eq(s->text_tokens[1], 64); /* empty pairs count as one token */
    dt_samples_free(s);
}
END_TEST

/* ---- work ---- */

static void check_work(const struct dt_samples *s, int64_t i, const struct dt_module *m, int64_t n,
                       int64_t tokens, int64_t sq, int64_t max)
{
    struct dt_work w = {77, 77, 77, 77};
    dt_sample_work(s, i, m, &w);
    ck_assert_int_eq(w.n, n);
    ck_assert_int_eq(w.tokens, tokens);
    ck_assert_int_eq(w.tokens_sq, sq);
    ck_assert_int_eq(w.tokens_max, max);
}

START_TEST(work_of_each_kind_of_module)
{
    struct dt_samples *s = NULL;
    struct dt_error err = {0};
    ck_assert_int_eq(csv("text_tokens,images,gen_images,audio_s,gen_audio_s\n"
                         "37,640x427;91x1021,640x427;513x100,10,\n"
                         "0,,,7.25;1.5,1.5\n",
                         &err, &s),
                     DT_OK);
    struct dt_module vit = {.role = DT_ROLE_ENCODER, .modality = DT_MODALITY_IMAGE, .patch = 16};
    struct dt_module gen = {
        .role = DT_ROLE_GENERATOR, .modality = DT_MODALITY_IMAGE, .latent_scale = 8};
    struct dt_module llm = {.role = DT_ROLE_LLM, .modality = DT_MODALITY_TEXT};
    struct dt_module txt = {.role = DT_ROLE_ENCODER, .modality = DT_MODALITY_TEXT};
    struct dt_module beats = {
        .role = DT_ROLE_ENCODER, .modality = DT_MODALITY_AUDIO, .frames_per_s = 49.6};
    struct dt_module sound = {
        .role = DT_ROLE_ENCODER, .modality = DT_MODALITY_AUDIO, .patch = 16, .mel_bins = 128};
    struct dt_module ldm = {
        .role = DT_ROLE_GENERATOR, .modality = DT_MODALITY_AUDIO, .frames_per_s = 25.6};
    /* 40 x 27 and 6 x 64 patches */
    check_work(s, 0, &vit, 2, 1080 + 384, 1080 * 1080 + 384 * 384, 1080);
    vit.patch = 14; /* 46 x 31 and 7 x 73 */
    check_work(s, 0, &vit, 2, 1426 + 511, 1426 * 1426 + 511 * 511, 1426);
    check_work(s, 1, &vit, 0, 0, 0, 0);
    /* 80 x 54 and 65 x 13 latent pixels */
    check_work(s, 0, &gen, 2, 4320 + 845, 4320 * 4320 + 845 * 845, 4320);
    gen.resize = 512;
    check_work(s, 0, &gen, 2, 8192, 2 * 4096 * 4096, 4096);
    check_work(s, 0, &llm, 1, SEQ, (int64_t)SEQ * SEQ, SEQ);
    check_work(s, 0, &txt, 1, 37, 37 * 37, 37);
    check_work(s, 1, &txt, 0, 0, 0, 0);
    check_work(s, 0, &beats, 1, 496, 496 * 496, 496);
    check_work(s, 1, &beats, 2, 360 + 74, 360 * 360 + 74 * 74, 360);
    /* 998 frames: 62 rows of 8 patches; 723 and 148: 45 and 9; in patches of 8, 90 and 18 of 10 */
    check_work(s, 0, &sound, 1, 496, 496 * 496, 496);
    check_work(s, 1, &sound, 2, 360 + 72, 360 * 360 + 72 * 72, 360);
    sound.patch = 8;
    sound.mel_bins = 80;
    check_work(s, 1, &sound, 2, 900 + 180, 900 * 900 + 180 * 180, 900);
    check_work(s, 1, &ldm, 1, 38, 38 * 38, 38);
    check_work(s, 5, &ldm, 1, 38, 38 * 38, 38); /* sets repeat */
    dt_samples_free(s);
}
END_TEST

/* Sequences are filled with as many tokens as the encoder makes, in whatever form the clips are given. */
START_TEST(clips_are_packed_by_the_encoders_patches)
{
    static const char *const forms[] = {
        "samples: {preset: audio, generate: 0}\n",
        "samples: {distribution: {audio_s: {kind: uniform, min: 0.01, max: 9}, text_tokens: {kind: "
        "constant, value: 3, max: 3}, generate: 0}}\n",
    };
    static const char *const stated =
        "samples: {distribution: {audio_s: {kind: constant, value: 3}, audio_tokens_per_s: 50}}\n";
    const struct dt_samples_image image = {.mel_bins = 64, .sound_patch = 16};
    struct dt_error err = {0};
    struct dt_samples *s;
    struct dt_doc *doc;
    int64_t most = 0;

    for (int c = 0; c < 2; c++) {
        dt_assert_ok(dt_doc_parse("t.yaml", forms[c], strlen(forms[c]), &err, &doc), err);
        dt_assert_ok(dt_samples_read(dt_map_get(dt_doc_root(doc), "samples"), 2048, 100, 7, &image,
                                     &err, &s),
                     err);
        dt_doc_free(doc);
        for (int64_t i = 0; i < s->n; i++) {
            int64_t tokens = s->text_tokens[i];

            for (uint64_t k = s->item_first[i]; k < s->item_first[i + 1]; k++)
                tokens += 4 * (s->items[k].w < 34 ? 1 : (s->items[k].w - 2) / 16);
            ck_assert_int_le(tokens, 2048);
            most = tokens > most ? tokens : most;
        }
        ck_assert_int_gt(most, 1900);
        dt_samples_free(s);
    }
    /* 62 * 4 = 248 and 1 * 4 tokens: 255 in all; one less is too few */
    dt_assert_ok(dt_samples_parse_csv("t.csv", "text_tokens,audio_s,seq_tokens\n3,10;0.2,255\n", 44,
                                      300, &image, &err, &s),
                 err);
    dt_samples_free(s);
    ck_assert_int_eq(dt_samples_parse_csv("t.csv", "text_tokens,audio_s,seq_tokens\n3,10;0.2,254\n",
                                          44, 300, &image, &err, &s),
                     DT_ERR_INPUT);
    dt_assert_has(err.message, "255 tokens");
    dt_assert_ok(dt_doc_parse("t.yaml", stated, strlen(stated), &err, &doc), err);
    ck_assert_int_eq(
        dt_samples_read(dt_map_get(dt_doc_root(doc), "samples"), 2048, 10, 7, &image, &err, &s),
        DT_ERR_INPUT);
    dt_assert_has(err.message, "leave this key out");
    dt_doc_free(doc);
}
END_TEST

START_TEST(text_and_audio_presets)
{
    struct dt_samples *t = must_read("text", 4096, 3, 1), *a = must_read("audio", SEQ, 200, 1);
    struct dt_module llm = {.role = DT_ROLE_LLM};
    check_work(t, 2, &llm, 1, 4096, 4096 * 4096, 4096);
    ck_assert_uint_eq(t->text_tokens[2], 4096);
    ck_assert_uint_eq(t->item_first[3], 0);
    /* 8,192 / (496 + 15) = 16 clips at most */
    double per = (double)a->item_first[200] / 200;
    ck_assert_double_eq_tol(per, 15.6, 0.5);
    ck_assert_uint_eq(a->items[0].w, 1000);
    dt_samples_free(t);
    dt_samples_free(a);
}
END_TEST

/* ---- faults ---- */

START_TEST(every_allocation_may_fail)
{
    int failed = 0;
    for (int what = 0; what < 2; what++)
        for (uint64_t k = 1;; k++) {
            struct dt_samples *s = NULL;
            struct dt_error err = {0};
            dt_mem_fail_at(k);
            enum dt_status st =
                what ? read_yaml("laion-8k", SEQ, 40, 2, &err, &s)
                     : csv("text_tokens,images\n3,64x64;64x64;65x64\n4,\n5,9x9\n", &err, &s);
            bool reached = dt_mem_count() >= k;
            dt_mem_fail_at(0);
            ck_assert((st == DT_OK) == (s != NULL));
            /* only the final shrink may be refused in silence */
            if (reached && st != DT_OK) {
                ck_assert_int_eq(st, DT_ERR_NOMEM);
                failed++;
            }
            dt_samples_free(s);
            if (!reached)
                break;
        }
    ck_assert_int_gt(failed, 8);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("samples");
    TCase *tc = dt_test_case(suite, "csv", 0);
    tcase_add_test(tc, sequences_are_packed_by_the_encoders_patches);
    tcase_add_test(tc, csv_reads_every_column);
    tcase_add_test(tc, csv_targets_match_once);
    tcase_add_test(tc, csv_of_a_scan);
    tcase_add_loop_test(tc, csv_says_what_and_where, 0, sizeof(bad_csv) / sizeof(*bad_csv));
    tcase_add_test(tc, csv_survives_truncation);
    tc = dt_test_case(suite, "distribution", 60);
    tcase_add_test(tc, laion_preset_looks_like_web_data);
    tcase_add_test(tc, sample_does_not_depend_on_count);
    tcase_add_test(tc, seed_matters_and_repeats);
    tcase_add_test(tc, overrides_apply);
    tcase_add_test(tc, pairs_stay_apart);
    tcase_add_test(tc, distribution_can_be_fitted_inline);
    tcase_add_loop_test(tc, yaml_says_what_is_wrong, 0, sizeof(bad_yaml) / sizeof(*bad_yaml));
    tcase_add_test(tc, a_missing_preset_is_located_in_the_job);
    tcase_add_test(tc, csv_file_by_path);
    tcase_add_test(tc, each_kind_of_distribution);
    tc = dt_test_case(suite, "work", 0);
    tcase_add_test(tc, work_of_each_kind_of_module);
    tcase_add_test(tc, clips_are_packed_by_the_encoders_patches);
    tcase_add_test(tc, text_and_audio_presets);
    tcase_add_test(tc, every_allocation_may_fail);
    return dt_test_run(suite);
}
