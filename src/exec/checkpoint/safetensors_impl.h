/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tensor files, the inside.  Shared by safetensors*.c only. */
#ifndef DT_EXEC_CHECKPOINT_SAFETENSORS_IMPL_H
#define DT_EXEC_CHECKPOINT_SAFETENSORS_IMPL_H

#include "base/doc.h"
#include "exec/checkpoint/safetensors.h"

struct dt_tensor_file {
    char *name; /* as shown in messages */
    int fd;     /* -1: in memory */
    const uint8_t *memory;
    uint64_t bytes, header_bytes;
    uint32_t header_crc;
    struct dt_doc *doc; /* the header; names and metadata live in it */
};

struct dt_tensors {
    struct dt_tensor_file *files;
    size_t n_files, cap_files;
    struct dt_tensor *x;
    size_t n, cap;
};

/* Bytes [at, at + n) of a file. */
enum dt_status dt_tensor_file_read(const struct dt_tensor_file *f, uint64_t at, size_t n,
                                   struct dt_error *err, void *out);
/* Reads the header of file `file` (opened, sized) and appends its tensors. */
enum dt_status dt_tensors_add_header(struct dt_tensors *t, int file, struct dt_error *err);
/* CRC-32 (zlib's) going on from `crc`, of any length. */
uint32_t dt_tensor_crc(uint32_t crc, const void *bytes, size_t n);

#endif
