/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Benchmark: drawing and packing samples (linear in their number), asking for their work, CSV. */
#define _GNU_SOURCE
#include "base/doc.h"
#include "base/quantile.h"
#include "core/model/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct dt_samples *read_preset(int64_t count)
{
    const char *text = "samples: laion-8k\n";
    struct dt_doc *doc = NULL;
    struct dt_error err;
    struct dt_samples *s = NULL;
    if (dt_doc_parse("bench", text, strlen(text), &err, &doc) != DT_OK ||
        dt_samples_read(dt_map_get(dt_doc_root(doc), "samples"), 8192, count, 1, NULL, &err, &s)) {
        fprintf(stderr, "bench_samples: %s\n", err.message);
        exit(1);
    }
    dt_doc_free(doc);
    return s;
}

static double bytes_of(const struct dt_samples *s)
{
    return (double)s->n * 16 + (double)s->item_first[s->n] * sizeof(struct dt_sample_item);
}

int main(void)
{
    enum { ONE = 1000000, ROWS = 100000 };
    double t[2], bytes[2];
    struct dt_samples *s = NULL;
    for (int k = 0; k < 2; k++) {
        dt_samples_free(s);
        double runs[3];
        for (int r = 0; r < 3; r++) {
            double begin = now_s();
            if (r)
                dt_samples_free(s);
            s = read_preset((int64_t)ONE * (k + 1));
            runs[r] = now_s() - begin;
        }
        dt_sort_numbers(runs, 3);
        t[k] = runs[1];
        bytes[k] = bytes_of(s);
    }
    printf("bench: samples_drawn_1M %.3f Msamples/s\n", 1 / t[0]);
    printf("bench: samples_drawn_2M %.3f Msamples/s ratio %.2f of 1M rate\n", 2 / t[1],
           2 * t[0] / t[1]);
    printf("bench: samples_memory_2M %.1f bytes/sample ratio %.2f of 1M\n", bytes[1] / 2 / ONE,
           bytes[1] / bytes[0] / 2);

    struct dt_module vit = {.role = DT_ROLE_ENCODER, .modality = DT_MODALITY_IMAGE, .patch = 16};
    struct dt_work sum = {0}, w;
    double begin = now_s();
    for (int64_t i = 0; i < s->n; i++) {
        dt_sample_work(s, i, &vit, &w);
        dt_work_add(&sum, &w);
    }
    double took = now_s() - begin;
    printf("bench: sample_work %.2f Msamples/s (%.0f tokens/sample)\n", (double)s->n / took * 1e-6,
           (double)sum.tokens / (double)s->n);

    size_t cap = (size_t)ROWS * 320, len = 0;
    char *text = malloc(cap);
    if (!text)
        return 1;
    len += (size_t)snprintf(text, cap, "sample,text_tokens,images\n");
    for (int64_t i = 0; i < ROWS; i++) {
        len += (size_t)snprintf(text + len, cap - len, "%lld,%u,", (long long)i, s->text_tokens[i]);
        for (uint64_t k = s->item_first[i]; k < s->item_first[i + 1]; k++)
            len += (size_t)snprintf(text + len, cap - len, "%s%dx%d",
                                    k > s->item_first[i] ? ";" : "", s->items[k].w, s->items[k].h);
        text[len++] = '\n';
    }
    struct dt_samples *c = NULL;
    struct dt_error err;
    begin = now_s();
    if (dt_samples_parse_csv("bench", text, len, 8192, NULL, &err, &c) != DT_OK) {
        fprintf(stderr, "bench_samples: line %d: %s\n", err.line, err.message);
        return 1;
    }
    took = now_s() - begin;
    printf("bench: samples_csv %.0f MB/s (%.2f Msamples/s)\n", (double)len / took * 1e-6,
           (double)c->n / took * 1e-6);
    dt_samples_free(c);
    dt_samples_free(s);
    free(text);
    return 0;
}
