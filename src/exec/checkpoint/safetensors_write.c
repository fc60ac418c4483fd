/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Writing tensor files: the header first, then one tensor after the other. */
#include "base/bf16.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "exec/checkpoint/safetensors_impl.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_FLOATS ((size_t)1 << 14)
#define DATA_ALIGN 8 /* the reference implementation pads its header to it */

struct entry {
    char *name;
    enum dt_tensor_type type;
    uint64_t n;
};

struct dt_tensor_writer {
    int fd;
    char *path;
    struct entry *x;
    size_t n, next;
    uint64_t bytes;
    uint32_t header_crc;
};

static enum dt_status write_bytes(struct dt_tensor_writer *w, const void *bytes, size_t n,
                                  const char *what, struct dt_error *err)
{
    const uint8_t *p = bytes;

    while (n > 0) {
        ssize_t put = write(w->fd, p, n > CHUNK_FLOATS * 64 ? CHUNK_FLOATS * 64 : n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return dt_error_at(err, DT_ERR_IO, w->path, 0, 0, "cannot write %s: %s", what,
                               strerror(errno));
        p += put;
        n -= (size_t)put;
        w->bytes += (uint64_t)put;
    }
    return DT_OK;
}

/* ---- the header ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum dt_status check_names(const char *path, const struct dt_tensor *x, size_t n,
                                  struct dt_error *err)
{
    const char **names = dt_malloc((n ? n : 1) * sizeof(*names));
    enum dt_status st = DT_OK;

    if (!names)
        return dt_error_nomem(err, "names of tensors");
    for (size_t i = 0; i < n; i++)
        names[i] = x[i].name;
    qsort(names, n, sizeof(*names), by_text);
    for (size_t i = 0; i < n && st == DT_OK; i++) {
        if (!*names[i] || strlen(names[i]) >= DT_TENSOR_NAME_MAX ||
            strcmp(names[i], "__metadata__") == 0)
            st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "\"%s\" cannot be a tensor's name",
                             names[i]);
        else if (i > 0 && strcmp(names[i - 1], names[i]) == 0)
            st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "two tensors are named \"%s\"",
                             names[i]);
    }
    dt_free(names);
    return st;
}

/* Elements of a shape; false when the bytes cannot be counted in an int64. */
static bool count(const struct dt_tensor *x, uint64_t *n)
{
    uint64_t bytes;

    *n = 1;
    if (x->n_dims < 0 || x->n_dims > DT_TENSOR_DIMS_MAX)
        return false;
    for (int i = 0; i < x->n_dims; i++)
        if (x->shape[i] < 0 || __builtin_mul_overflow(*n, (uint64_t)x->shape[i], n))
            return false;
    return !__builtin_mul_overflow(*n, (uint64_t)dt_tensor_type_bytes(x->type), &bytes) &&
           bytes <= (uint64_t)INT64_MAX;
}

static enum dt_status header_json(const char *path, const struct dt_tensor *x, size_t n,
                                  const struct dt_tensor_meta *meta, size_t n_meta,
                                  struct dt_error *err, char **out)
{
    struct dt_json j;
    uint64_t at = 0;

    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    if (n_meta > 0) {
        dt_json_key(&j, "__metadata__");
        dt_json_begin_object(&j);
        for (size_t i = 0; i < n_meta; i++)
            dt_json_kv_string(&j, meta[i].key, meta[i].text);
        dt_json_end_object(&j);
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t elements, end;

        if (!count(&x[i], &elements) ||
            __builtin_add_overflow(at, elements * dt_tensor_type_bytes(x[i].type), &end) ||
            end > (uint64_t)INT64_MAX) {
            dt_json_discard(&j);
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "tensor \"%s\" is too large",
                               x[i].name);
        }
        dt_json_key(&j, x[i].name);
        dt_json_begin_object(&j);
        dt_json_kv_string(&j, "dtype", dt_tensor_type_names[x[i].type]);
        dt_json_key(&j, "shape");
        dt_json_begin_array(&j);
        for (int k = 0; k < x[i].n_dims; k++)
            dt_json_int(&j, x[i].shape[k]);
        dt_json_end_array(&j);
        dt_json_key(&j, "data_offsets");
        dt_json_begin_array(&j);
        dt_json_int(&j, (int64_t)at);
        dt_json_int(&j, (int64_t)end);
        dt_json_end_array(&j);
        dt_json_end_object(&j);
        at = end;
    }
    dt_json_end_object(&j);
    return dt_json_finish(&j, err, out);
}

static enum dt_status write_header(struct dt_tensor_writer *w, const char *json,
                                   struct dt_error *err)
{
    static const char spaces[] = "        "; /* DATA_ALIGN of them */
    size_t len = strlen(json), pad = (DATA_ALIGN - len % DATA_ALIGN) % DATA_ALIGN;
    uint8_t word[8];

    if (len + pad > DT_TENSOR_HEADER_MAX)
        return dt_error_at(err, DT_ERR_INPUT, w->path, 0, 0, "too many tensors for one file");
    for (int i = 0; i < 8; i++)
        word[i] = (uint8_t)((uint64_t)(len + pad) >> (8 * i));
    DT_TRY(write_bytes(w, word, sizeof(word), "the header", err));
    DT_TRY(write_bytes(w, json, len, "the header", err));
    DT_TRY(write_bytes(w, spaces, pad, "the header", err));
    w->header_crc = dt_tensor_crc(0, word, sizeof(word));
    w->header_crc = dt_tensor_crc(dt_tensor_crc(w->header_crc, json, len), spaces, pad);
    return DT_OK;
}

/* ---- the writer ---- */

static enum dt_status new_writer(const char *path, const struct dt_tensor *x, size_t n,
                                 struct dt_error *err, struct dt_tensor_writer **out)
{
    struct dt_tensor_writer *w = dt_calloc(1, sizeof(*w));
    bool failed;

    if (!w)
        return dt_error_nomem(err, "a tensor writer");
    w->fd = -1;
    w->path = dt_strdup(path);
    w->x = dt_calloc(n ? n : 1, sizeof(*w->x));
    failed = !w->path || !w->x;
    for (size_t i = 0; i < n && !failed; i++, w->n++) {
        w->x[i].name = dt_strdup(x[i].name);
        w->x[i].type = x[i].type;
        count(&x[i], &w->x[i].n);
        failed = !w->x[i].name;
    }
    if (failed) {
        dt_tensor_writer_abort(w);
        return dt_error_nomem(err, "a tensor writer");
    }
    *out = w;
    return DT_OK;
}

enum dt_status dt_tensor_writer_new(const char *path, const struct dt_tensor *x, size_t n,
                                    const struct dt_tensor_meta *meta, size_t n_meta,
                                    struct dt_error *err, struct dt_tensor_writer **out)
{
    struct dt_tensor_writer *w = NULL;
    enum dt_status st;
    char *json;

    DT_TRY(check_names(path, x, n, err));
    DT_TRY(header_json(path, x, n, meta, n_meta, err, &json));
    st = new_writer(path, x, n, err, &w);
    if (st == DT_OK) {
        w->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        st = w->fd < 0
                 ? dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot create: %s", strerror(errno))
                 : write_header(w, json, err);
        if (st != DT_OK)
            dt_tensor_writer_abort(w);
    }
    dt_free(json);
    if (st == DT_OK)
        *out = w;
    return st;
}

static enum dt_status next(struct dt_tensor_writer *w, struct dt_error *err, struct entry **x)
{
    if (w->next >= w->n)
        return dt_error_at(err, DT_ERR_INTERNAL, w->path, 0, 0, "all tensors are written already");
    *x = &w->x[w->next++];
    return DT_OK;
}

enum dt_status dt_tensor_writer_put(struct dt_tensor_writer *w, const void *bytes,
                                    struct dt_error *err, uint32_t *crc)
{
    struct entry *x = NULL;
    size_t n;

    DT_TRY(next(w, err, &x));
    n = (size_t)(x->n * dt_tensor_type_bytes(x->type));
    if (crc)
        *crc = dt_tensor_crc(0, bytes, n);
    return write_bytes(w, bytes, n, x->name, err);
}

static size_t round_floats(enum dt_tensor_type type, const float *v, size_t n, uint8_t *out)
{
    size_t each = dt_tensor_type_bytes(type);

    for (size_t i = 0; i < n; i++) {
        uint32_t w;
        uint16_t h;

        if (type == DT_TENSOR_F32) {
            memcpy(&w, &v[i], 4);
            w = htole32(w);
            memcpy(out + 4 * i, &w, 4);
        } else {
            h = htole16(type == DT_TENSOR_BF16 ? dt_bf16_from_f32(v[i])
                                               : dt_tensor_f16_from_f32(v[i]));
            memcpy(out + 2 * i, &h, 2);
        }
    }
    return n * each;
}

enum dt_status dt_tensor_writer_put_f32(struct dt_tensor_writer *w, const float *v,
                                        struct dt_error *err, uint32_t *crc)
{
    uint8_t buf[4 * CHUNK_FLOATS];
    struct entry *x = NULL;
    uint32_t sum = 0;

    DT_TRY(next(w, err, &x));
    if (x->type != DT_TENSOR_F32 && x->type != DT_TENSOR_BF16 && x->type != DT_TENSOR_F16)
        return dt_error_at(err, DT_ERR_INTERNAL, w->path, 0, 0,
                           "tensor \"%s\": floats cannot be written as %s", x->name,
                           dt_tensor_type_names[x->type]);
    for (uint64_t i = 0; i < x->n; i += CHUNK_FLOATS) {
        size_t n = x->n - i < CHUNK_FLOATS ? (size_t)(x->n - i) : CHUNK_FLOATS;
        size_t bytes = round_floats(x->type, v + i, n, buf);

        sum = dt_tensor_crc(sum, buf, bytes);
        DT_TRY(write_bytes(w, buf, bytes, x->name, err));
    }
    if (crc)
        *crc = sum;
    return DT_OK;
}

static void free_writer(struct dt_tensor_writer *w)
{
    for (size_t i = 0; i < w->n; i++)
        dt_free(w->x[i].name);
    dt_free(w->x);
    dt_free(w->path);
    dt_free(w);
}

enum dt_status dt_tensor_writer_finish(struct dt_tensor_writer *w, struct dt_error *err,
                                       uint64_t *file_bytes, uint32_t *header_crc)
{
    enum dt_status st = DT_OK;

    if (w->next != w->n)
        st = dt_error_at(err, DT_ERR_INTERNAL, w->path, 0, 0, "tensor \"%s\" was not written",
                         w->x[w->next].name);
    else if (fsync(w->fd) != 0)
        st = dt_error_at(err, DT_ERR_IO, w->path, 0, 0, "cannot write: %s", strerror(errno));
    if (st != DT_OK) {
        dt_tensor_writer_abort(w);
        return st;
    }
    if (close(w->fd) != 0) {
        st = dt_error_at(err, DT_ERR_IO, w->path, 0, 0, "cannot write: %s", strerror(errno));
        unlink(w->path);
    } else {
        if (file_bytes)
            *file_bytes = w->bytes;
        if (header_crc)
            *header_crc = w->header_crc;
    }
    free_writer(w);
    return st;
}

void dt_tensor_writer_abort(struct dt_tensor_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->path);
    }
    free_writer(w);
}

enum dt_status dt_tensor_index_write(const char *path, const struct dt_tensor *x, size_t n,
                                     const char *const *files, int n_files, struct dt_error *err)
{
    enum dt_status st;
    struct dt_json j;
    uint64_t total = 0, elements;
    char *text;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_key(&j, "metadata");
    dt_json_begin_object(&j);
    for (size_t i = 0; i < n; i++)
        if (count(&x[i], &elements))
            total += elements * dt_tensor_type_bytes(x[i].type);
    dt_json_kv_int(&j, "total_size", (int64_t)total);
    dt_json_end_object(&j);
    dt_json_key(&j, "weight_map");
    dt_json_begin_object(&j);
    for (size_t i = 0; i < n; i++)
        if (x[i].file >= 0 && x[i].file < n_files)
            dt_json_kv_string(&j, x[i].name, files[x[i].file]);
    dt_json_end_object(&j);
    dt_json_end_object(&j);
    DT_TRY(dt_json_finish(&j, err, &text));
    st = dt_file_write(path, text, strlen(text), err);
    dt_free(text);
    return st;
}
