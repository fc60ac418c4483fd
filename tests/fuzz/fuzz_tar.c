/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: shards.  Every byte of every member that the reader gives away is read; the index of
 * the same bytes as a file finds no more samples than the reader, and each of its samples can be
 * read. */
#include "base/mem.h"
#include "exec/data/shard_kept.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sum;

static enum dt_status look(void *arg, const struct dt_shard_sample *s, struct dt_error *err)
{
    size_t *n = arg;
    (void)err;
    ++*n;
    if (!s->key[0] || s->n_members < 1 || s->n_members > DT_SHARD_MEMBERS_MAX)
        abort();
    for (int i = 0; i < s->n_members; i++) {
        for (size_t k = 0; k < s->member[i].len; k++)
            sum += s->member[i].data[k];
        sum += (unsigned)strlen(s->member[i].ext);
    }
    return DT_OK;
}

/* An index without damage can be kept, and read again. */
static void keep(const struct dt_shard_index *ix, size_t size)
{
    struct dt_shard_kept k = {
        .print = {.bytes = (int64_t)size}, .samples = ix->samples, .n = ix->n};
    struct dt_shard_kept back;
    struct dt_error err;
    uint8_t *bytes;
    size_t n;
    if (dt_shard_kept_encode(&k, &err, &bytes, &n) != DT_OK ||
        dt_shard_kept_decode(bytes, n, &err, &back) != DT_OK || back.n != k.n)
        abort();
    dt_free(back.samples);
    dt_free(bytes);
}

static void as_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;
    const char *paths[1] = {path};
    struct dt_data_report r = {0};
    struct dt_shard_index *ix;
    struct dt_error err;
    if (fd < 0) {
        strcpy(path, "/dev/shm/dt-fuzz-tar-XXXXXX");
        fd = mkstemp(path);
        if (fd < 0)
            return;
        unlink(path);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    if (dt_shard_index_open(paths, 1, NULL, &r, &err, &ix) != DT_OK)
        return;
    for (size_t i = 0; i < ix->n; i++) {
        struct dt_shard_sample s = {0};
        if (ix->samples[i].offset + ix->samples[i].bytes > size)
            abort();
        if (dt_shard_read(ix, i, 1 << 20, &err, &s) == DT_OK) {
            size_t n = 0;
            look(&n, &s, &err);
        }
        dt_shard_sample_free(&s);
    }
    if (dt_data_bad_total(&r) == 0)
        keep(ix, size);
    dt_shard_index_close(ix);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_error err = {0};
    size_t n = 0;
    if (dt_shard_parse(data, size, look, &n, &err) != DT_OK && !err.message[0])
        abort();
    as_file(data, size);
    return 0;
}
