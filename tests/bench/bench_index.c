/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How soon an epoch of a million samples begins: a pass over the headers of all shards, the same that
 * leaves an index, and with that index.  The shards are one of 50,000 samples under 20 names, so that
 * the pages of all are in memory: from a disk or a network the pass takes longer. */
#include "base/clock.h"
#include "base/mem.h"
#include "exec/data/loader.h"
#include "exec/data/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHARDS = 20, PER_SHARD = 50000, IMAGE_BYTES = 4096 };

static struct dt_error err;
static char dir[64] = "/tmp/dt-bench-index-XXXXXX", path[SHARDS][128];
static const char *paths[SHARDS];

static void must(enum dt_status st)
{
    if (st == DT_OK)
        return;
    fprintf(stderr, "bench_index: %s\n", err.message);
    exit(1);
}

static void write_shards(void)
{
    static const char text[] = "a photo of a grey ankle boot, wide";
    uint8_t *image = dt_calloc(IMAGE_BYTES, 1);
    struct dt_shard_writer *w;
    char prefix[96];

    if (!image || !mkdtemp(dir))
        exit(1);
    snprintf(prefix, sizeof prefix, "%s/b", dir);
    must(dt_shard_writer_open(prefix, PER_SHARD, INT64_MAX, false, &err, &w));
    for (int i = 0; i < PER_SHARD; i++) {
        struct dt_shard_member m[2] = {{"jpg", image, IMAGE_BYTES},
                                       {"txt", (const uint8_t *)text, sizeof text - 1}};
        char key[16];

        snprintf(key, sizeof key, "%06d", i);
        must(dt_shard_write(w, key, m, 2, &err));
    }
    must(dt_shard_writer_close(w, &err, NULL));
    dt_free(image);
    for (int k = 0; k < SHARDS; k++) {
        snprintf(path[k], sizeof path[k], "%s-%06d.tar", prefix, k);
        paths[k] = path[k];
        if (k > 0 && link(path[0], path[k]) != 0)
            exit(1);
    }
    sleep(3); /* old enough for their times to tell */
}

static long bytes_read(void)
{
    FILE *f = fopen("/proc/self/io", "r");
    long n = 0;

    if (f && fscanf(f, "rchar: %ld", &n) != 1)
        n = 0;
    if (f)
        fclose(f);
    return n;
}

/* Seconds until the first sequence could be made. */
static double begin_epoch(const char *name, bool keep, const struct dt_tokenizer *t, double of_s)
{
    struct dt_loader_options o = {.shards = paths,
                                  .n_shards = SHARDS,
                                  .keep_index = keep,
                                  .tokenizer = t,
                                  .seq_len = 512,
                                  .shuffle = true};
    long bytes = bytes_read();
    uint64_t t0 = dt_clock_ns();
    struct dt_loader *l;
    double s;

    must(dt_loader_open(&o, &err, &l));
    s = (double)(dt_clock_ns() - t0) * 1e-9;
    if (dt_loader_samples(l) != (int64_t)SHARDS * PER_SHARD)
        exit(1);
    dt_loader_close(l);
    printf("bench: epoch_of_a_million_%s %.3f s ratio %.3f of a pass over the headers\n", name, s,
           of_s > 0 ? s / of_s : 1.0);
    printf("bench: epoch_of_a_million_%s_reads %.1f MB\n", name,
           (double)(bytes_read() - bytes) * 1e-6);
    return s;
}

int main(void)
{
    struct dt_tokenizer *t;
    char command[128];
    double pass;

    write_shards();
    must(dt_tokenizer_bytes(&err, &t));
    pass = begin_epoch("pass", false, t, 0);
    begin_epoch("first", true, t, pass);
    begin_epoch("indexed", true, t, pass);
    dt_tokenizer_free(t);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command) == 0 ? 0 : 1;
}
