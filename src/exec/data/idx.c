/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/idx.h"

#include "base/file.h"
#include "base/mem.h"

#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define BYTES_MAX ((size_t)1 << 30)

void dt_idx_free(struct dt_idx *x)
{
    dt_free(x->data);
    *x = (struct dt_idx){0};
}

struct source { /* a gzip or plain file, or memory */
    gzFile file;
    const uint8_t *bytes;
    size_t left;
};

/* Bytes read (less at the end), or -1. */
static int64_t take(struct source *s, uint8_t *out, size_t n)
{
    size_t got = 0;
    if (!s->file) {
        got = n < s->left ? n : s->left;
        if (got)
            memcpy(out, s->bytes, got);
        s->bytes += got;
        s->left -= got;
        return (int64_t)got;
    }
    while (got < n) {
        unsigned ask = n - got > (1u << 24) ? 1u << 24 : (unsigned)(n - got);
        int k = gzread(s->file, out + got, ask);
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        got += (size_t)k;
    }
    return (int64_t)got;
}

static enum dt_status read_idx(struct source *s, const char *name, size_t max, struct dt_error *err,
                               struct dt_idx *out)
{
    uint8_t head[4], size[16], extra;
    struct dt_idx x = {0};
    size_t n = 1;
    int64_t got;
    max = max ? max : BYTES_MAX;
    if (take(s, head, 4) != 4 || head[0] || head[1])
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0, "not an IDX file");
    if (head[2] != 8 || head[3] < 1 || head[3] > 4)
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0,
                           "IDX of type %d with %d dimensions; unsigned bytes (8) with 1 to 4 are "
                           "read",
                           head[2], head[3]);
    x.dims = head[3];
    if (take(s, size, 4 * (size_t)x.dims) != 4 * x.dims)
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0, "the IDX header is truncated");
    for (int i = 0; i < x.dims; i++) {
        x.size[i] = (uint32_t)size[4 * i] << 24 | (uint32_t)size[4 * i + 1] << 16 |
                    (uint32_t)size[4 * i + 2] << 8 | size[4 * i + 3];
        if (x.size[i] == 0 || x.size[i] > max / n)
            return dt_error_at(err, DT_ERR_INPUT, name, 0, 0,
                               "the IDX header claims no values or more than %zu", max);
        n *= x.size[i];
    }
    if (!s->file && n > s->left)
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0, "truncated: %zu of %zu values", s->left,
                           n);
    x.data = dt_malloc(n);
    if (!x.data)
        return dt_error_nomem(err, "the values of an IDX file");
    got = take(s, x.data, n);
    if (got != (int64_t)n || take(s, &extra, 1) != 0) {
        dt_free(x.data);
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0,
                           got < 0             ? "corrupt gzip data"
                           : got != (int64_t)n ? "truncated: %lld of %zu values"
                                               : "damaged, or longer than its header says",
                           (long long)got, n);
    }
    *out = x;
    return DT_OK;
}

enum dt_status dt_idx_parse(const char *name, const uint8_t *bytes, size_t len, size_t bytes_max,
                            struct dt_error *err, struct dt_idx *out)
{
    struct source s = {NULL, bytes, len};
    return read_idx(&s, name, bytes_max, err, out);
}

enum dt_status dt_idx_read(const char *path, size_t bytes_max, struct dt_error *err,
                           struct dt_idx *out)
{
    struct source s = {0};
    enum dt_status st;
    int fd;
    DT_TRY(dt_file_open(path, true, err, &fd));
    s.file = gzdopen(fd, "rb");
    if (!s.file) {
        close(fd);
        return dt_error_nomem(err, "a reader of an IDX file");
    }
    gzbuffer(s.file, 1 << 17);
    st = read_idx(&s, path, bytes_max, err, out);
    gzclose(s.file);
    return st;
}
