/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tensors in files: safetensors, one file or several with an index.
 *
 *   | u64 LE: header bytes | JSON header, padded with spaces | tensor | tensor | ... |
 *                                                            ^ offsets count from here
 *
 * The header maps each name to {"dtype", "shape", "data_offsets": [begin, end]}, and may hold
 * "__metadata__" (texts).  Tensors lie side by side: no hole, no overlap, nothing behind the last.
 * `model.safetensors.index.json` has "weight_map": name -> file.  Every size from a file is checked
 * before it is used; what is refused is refused with the tensor's name. */
#ifndef DT_EXEC_CHECKPOINT_SAFETENSORS_H
#define DT_EXEC_CHECKPOINT_SAFETENSORS_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, bytes per element */
#define DT_TENSOR_TYPE_LIST(X)                                                                     \
    X(F32, 4)                                                                                      \
    X(BF16, 2)                                                                                     \
    X(F16, 2)                                                                                      \
    X(F64, 8)                                                                                      \
    X(I64, 8)                                                                                      \
    X(I32, 4)                                                                                      \
    X(I16, 2)                                                                                      \
    X(I8, 1)                                                                                       \
    X(U8, 1)                                                                                       \
    X(BOOL, 1)

enum dt_tensor_type {
#define X(name, bytes) DT_TENSOR_##name,
    DT_TENSOR_TYPE_LIST(X)
#undef X
        DT_TENSOR_TYPE_N
};
extern const char *const dt_tensor_type_names[]; /* NULL-terminated */
size_t dt_tensor_type_bytes(enum dt_tensor_type t);

enum {
    DT_TENSOR_DIMS_MAX = 8,
    DT_TENSOR_NAME_MAX = 512,
    DT_TENSOR_HEADER_MAX = 64 << 20, /* bytes; the reference implementation stops at 100 MB */
    DT_TENSOR_FILES_MAX = 512        /* all are kept open */
};

struct dt_tensor {
    const char *name;
    enum dt_tensor_type type;
    int n_dims;
    int64_t shape[DT_TENSOR_DIMS_MAX];
    uint64_t n;         /* elements; 0 is possible */
    uint64_t at, bytes; /* in its file, `at` from the file's first byte */
    int file;
};
/* "[768, 3072]" into buf; returns buf. */
char *dt_tensor_shape_text(int n_dims, const int64_t *shape, char *buf, size_t size);

/* ---- reading ---- */

struct dt_tensors;
/* A .safetensors file, an index (.json), or a folder that holds model.safetensors or its index (or
 * the same of diffusers: diffusion_pytorch_model).  Only headers are read.  DT_ERR_INPUT for
 * anything that is not exactly right. */
enum dt_status dt_tensors_open(const char *path, struct dt_error *err, struct dt_tensors **out);
/* One file's bytes in memory, which outlive the result. */
enum dt_status dt_tensors_open_memory(const char *name, const void *bytes, size_t len,
                                      struct dt_error *err, struct dt_tensors **out);
void dt_tensors_close(struct dt_tensors *t);
size_t dt_tensors_count(const struct dt_tensors *t);
/* In the order of names. */
const struct dt_tensor *dt_tensors_at(const struct dt_tensors *t, size_t i);
/* O(log n); NULL if there is none. */
const struct dt_tensor *dt_tensors_find(const struct dt_tensors *t, const char *name);
int dt_tensors_files(const struct dt_tensors *t);
const char *dt_tensors_file_name(const struct dt_tensors *t, int file);
/* Length word and JSON of a file together: where its first tensor begins; CRC-32 of these. */
uint64_t dt_tensors_header_bytes(const struct dt_tensors *t, int file);
uint32_t dt_tensors_header_crc(const struct dt_tensors *t, int file);
/* Metadata of the first file that has the key, or NULL. */
const char *dt_tensors_meta(const struct dt_tensors *t, const char *key);

/* Bytes [first, first + bytes) of a tensor. */
enum dt_status dt_tensors_read(const struct dt_tensors *t, const struct dt_tensor *x,
                               uint64_t first, uint64_t bytes, struct dt_error *err, void *out);
/* The whole tensor as floats (F32, BF16, F16, F64; others DT_ERR_INPUT); `crc` (may be NULL) gets
 * the CRC-32 of its bytes. */
enum dt_status dt_tensors_read_f32(const struct dt_tensors *t, const struct dt_tensor *x,
                                   struct dt_error *err, float *out, uint32_t *crc);

/* ---- writing ---- */

struct dt_tensor_meta {
    const char *key, *text;
};
struct dt_tensor_writer;
/* Creates the file, which must not be there, and writes the header.  Of `x` name, type, n_dims and shape are used; tensors
 * lie in the given order.  DT_ERR_INPUT for a name used twice or too long. */
enum dt_status dt_tensor_writer_new(const char *path, const struct dt_tensor *x, size_t n,
                                    const struct dt_tensor_meta *meta, size_t n_meta,
                                    struct dt_error *err, struct dt_tensor_writer **out);
/* The next tensor, whole: its bytes (little-endian), or floats that are rounded to its type (F32,
 * BF16, F16; ties to even).  `crc` (may be NULL) gets the CRC-32 of the bytes in the file. */
enum dt_status dt_tensor_writer_put(struct dt_tensor_writer *w, const void *bytes,
                                    struct dt_error *err, uint32_t *crc);
enum dt_status dt_tensor_writer_put_f32(struct dt_tensor_writer *w, const float *v,
                                        struct dt_error *err, uint32_t *crc);
/* Syncs, closes, frees.  All tensors were put, else DT_ERR_INTERNAL and the file is removed. */
enum dt_status dt_tensor_writer_finish(struct dt_tensor_writer *w, struct dt_error *err,
                                       uint64_t *file_bytes, uint32_t *header_crc);
/* Closes, removes the file, frees; NULL is ignored. */
void dt_tensor_writer_abort(struct dt_tensor_writer *w);
/* The index of files that were written: tensor i is in file x[i].file. */
enum dt_status dt_tensor_index_write(const char *path, const struct dt_tensor *x, size_t n,
                                     const char *const *files, int n_files, struct dt_error *err);

/* ---- conversions; bf16: base/bf16.h ---- */

uint16_t dt_tensor_f16_from_f32(float v); /* ties to even; overflow gives infinity */
float dt_tensor_f16_to_f32(uint16_t v);

#endif
