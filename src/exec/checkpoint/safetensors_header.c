/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The header of one safetensors file: read, and checked against the file's size. */
#include "base/mem.h"
#include "base/number.h"
#include "exec/checkpoint/safetensors_impl.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

const char *const dt_tensor_type_names[] = {
#define X(name, bytes) #name,
    DT_TENSOR_TYPE_LIST(X)
#undef X
        NULL};

size_t dt_tensor_type_bytes(enum dt_tensor_type t)
{
    static const unsigned char bytes_of[] = {
#define X(name, bytes) bytes,
        DT_TENSOR_TYPE_LIST(X)
#undef X
    };

    return bytes_of[t];
}

char *dt_tensor_shape_text(int n_dims, const int64_t *shape, char *buf, size_t size)
{
    size_t used = 0;

    used += (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < n_dims && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < size)
        snprintf(buf + used, size - used, "]");
    return buf;
}

uint32_t dt_tensor_crc(uint32_t crc, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;

    while (n > 0) { /* zlib counts in unsigned int */
        uInt piece = n > (size_t)INT_MAX ? (uInt)INT_MAX : (uInt)n;

        crc = (uint32_t)crc32(crc, p, piece);
        p += piece;
        n -= piece;
    }
    return crc;
}

/* ---- one entry ---- */

#define REFUSE(f, ...) dt_error_at(err, DT_ERR_INPUT, (f)->name, 0, 0, __VA_ARGS__)

/* A sequence of integers >= 0. */
static enum dt_status read_integers(const struct dt_tensor_file *f, const char *name,
                                    const char *what, struct dt_node seq, size_t max, int64_t *out,
                                    size_t *n, struct dt_error *err)
{
    if (!dt_node_is_seq(seq) || dt_seq_size(seq) > max)
        return REFUSE(f, "tensor \"%s\": %s must be a list of at most %zu integers", name, what,
                      max);
    for (size_t i = 0; i < dt_seq_size(seq); i++) {
        const char *text = dt_node_text(dt_seq_at(seq, i));

        if (!text || !dt_number_int(text, &out[i]) || out[i] < 0)
            return REFUSE(f, "tensor \"%s\": %s must hold integers from 0 on, not %s", name, what,
                          text ? text : "lists or maps");
    }
    *n = dt_seq_size(seq);
    return DT_OK;
}

static enum dt_status read_tensor(const struct dt_tensor_file *f, const char *name,
                                  struct dt_node node, struct dt_tensor *x, struct dt_error *err)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    int64_t offset[2];
    uint64_t bytes = 1;
    size_t n;
    int type = 0;
    char shape[200];

    x->name = name;
    if (!*name || strlen(name) >= DT_TENSOR_NAME_MAX)
        return REFUSE(f, "a tensor's name must have 1 to %d bytes", DT_TENSOR_NAME_MAX - 1);
    if (!dt_node_is_map(node))
        return REFUSE(f, "tensor \"%s\" must be a map of dtype, shape and data_offsets", name);
    DT_TRY(dt_map_check(node, name, keys, err));
    for (int i = 0; keys[i]; i++)
        DT_TRY(dt_map_require(node, name, keys[i], err));
    DT_TRY(dt_get_enum(node, "dtype", dt_tensor_type_names, &type, err));
    x->type = (enum dt_tensor_type)type;
    DT_TRY(read_integers(f, name, "shape", dt_map_get(node, "shape"), DT_TENSOR_DIMS_MAX, x->shape,
                         &n, err));
    x->n_dims = (int)n;
    DT_TRY(read_integers(f, name, "data_offsets", dt_map_get(node, "data_offsets"), 2, offset, &n,
                         err));
    if (n != 2 || offset[0] > offset[1])
        return REFUSE(f, "tensor \"%s\": data_offsets must be [begin, end]", name);
    x->n = 1;
    for (int i = 0; i < x->n_dims; i++)
        if (__builtin_mul_overflow(x->n, (uint64_t)x->shape[i], &x->n))
            return REFUSE(f, "tensor \"%s\": its shape %s has more elements than can be counted",
                          name, dt_tensor_shape_text(x->n_dims, x->shape, shape, sizeof(shape)));
    if (__builtin_mul_overflow(x->n, (uint64_t)dt_tensor_type_bytes(x->type), &bytes) ||
        bytes != (uint64_t)(offset[1] - offset[0]))
        return REFUSE(f, "tensor \"%s\": %s %s needs other than the %" PRId64 " bytes it has", name,
                      dt_tensor_type_names[type],
                      dt_tensor_shape_text(x->n_dims, x->shape, shape, sizeof(shape)),
                      offset[1] - offset[0]);
    x->bytes = bytes;
    if ((uint64_t)offset[1] > f->bytes - f->header_bytes)
        return REFUSE(f,
                      "tensor \"%s\" ends at byte %" PRId64
                      " of the data, of which there are %" PRIu64 ": the file is cut off",
                      name, offset[1], f->bytes - f->header_bytes);
    x->at = f->header_bytes + (uint64_t)offset[0];
    return DT_OK;
}

static enum dt_status check_meta(const struct dt_tensor_file *f, struct dt_node meta,
                                 struct dt_error *err)
{
    if (!dt_node_is_map(meta))
        return REFUSE(f, "__metadata__ must be a map of texts");
    for (size_t i = 0; i < dt_map_size(meta); i++) {
        struct dt_node v;
        const char *key;

        dt_map_at(meta, i, &key, &v);
        if (!dt_node_is_scalar(v))
            return REFUSE(f, "__metadata__: \"%s\" must be a text", key);
    }
    return DT_OK;
}

/* ---- all entries ---- */

static int by_place(const void *a, const void *b)
{
    const struct dt_tensor *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* Side by side from the header's end to the file's. */
static enum dt_status check_places(const struct dt_tensor_file *f, struct dt_tensor *x, size_t n,
                                   struct dt_error *err)
{
    uint64_t at = f->header_bytes;

    if (n > 1)
        qsort(x, n, sizeof(*x), by_place);
    for (size_t i = 0; i < n; i++) {
        if (x[i].at != at)
            return REFUSE(f, "tensor \"%s\" %s", x[i].name,
                          x[i].at < at ? "overlaps another" : "follows a hole");
        at += x[i].bytes;
    }
    if (at != f->bytes)
        return REFUSE(f, "%" PRIu64 " bytes lie behind the last tensor%s%s%s", f->bytes - at,
                      n ? ", \"" : "", n ? x[n - 1].name : "", n ? "\"" : "");
    return DT_OK;
}

static enum dt_status add_entries(struct dt_tensors *t, int file, struct dt_error *err)
{
    const struct dt_tensor_file *f = &t->files[file];
    struct dt_node root = dt_doc_root(f->doc);
    size_t first = t->n;

    if (!dt_node_is_map(root))
        return REFUSE(f, "the header must be a map of tensors");
    for (size_t i = 0; i < dt_map_size(root); i++) {
        struct dt_tensor x = {.file = file};
        struct dt_node node;
        const char *name;
        void *p = t->x;

        dt_map_at(root, i, &name, &node);
        if (strcmp(name, "__metadata__") == 0) {
            DT_TRY(check_meta(f, node, err));
            continue;
        }
        DT_TRY(read_tensor(f, name, node, &x, err));
        if (dt_grow(&p, &t->cap, t->n + 1, sizeof(x)))
            return dt_error_nomem(err, "a list of tensors");
        t->x = p;
        t->x[t->n++] = x;
    }
    return check_places(f, t->x ? t->x + first : NULL, t->n - first, err);
}

enum dt_status dt_tensors_add_header(struct dt_tensors *t, int file, struct dt_error *err)
{
    struct dt_tensor_file *f = &t->files[file];
    enum dt_status st;
    uint8_t word[8];
    uint64_t n = 0;
    char *text;

    if (f->bytes < sizeof(word) + 2)
        return REFUSE(f, "not a safetensors file: only %" PRIu64 " bytes", f->bytes);
    DT_TRY(dt_tensor_file_read(f, 0, sizeof(word), err, word));
    for (int i = 7; i >= 0; i--)
        n = n << 8 | word[i];
    if (n < 2 || n > DT_TENSOR_HEADER_MAX)
        return REFUSE(f, "not a safetensors file: its header would have %" PRIu64 " bytes", n);
    if (n > f->bytes - sizeof(word))
        return REFUSE(
            f, "the header should have %" PRIu64 " bytes, the file has %" PRIu64 ": it is cut off",
            n, f->bytes);
    text = dt_malloc((size_t)n);
    if (!text)
        return dt_error_nomem(err, "a tensor file's header");
    st = dt_tensor_file_read(f, sizeof(word), (size_t)n, err, text);
    if (st == DT_OK && text[0] != '{')
        st = REFUSE(f, "not a safetensors file: its header is not JSON");
    if (st == DT_OK)
        st = dt_doc_parse(f->name, text, (size_t)n, err, &f->doc);
    f->header_bytes = sizeof(word) + n;
    f->header_crc = dt_tensor_crc(dt_tensor_crc(0, word, sizeof(word)), text, (size_t)n);
    dt_free(text);
    return st == DT_OK ? add_entries(t, file, err) : st;
}
