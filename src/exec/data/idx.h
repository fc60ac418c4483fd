/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * IDX files (the MNIST format), plain or gzip-compressed: big-endian header 00 00 TYPE DIMS, the
 * sizes as u32, then the values.  Only unsigned bytes (type 8). */
#ifndef DT_EXEC_DATA_IDX_H
#define DT_EXEC_DATA_IDX_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct dt_idx {
    int dims; /* 1 to 4 */
    uint32_t size[4];
    uint8_t *data; /* product of sizes; dt_free */
};
/* DT_ERR_INPUT for anything but a complete file of at most `bytes_max` values (0 = 1 GiB). */
enum dt_status dt_idx_read(const char *path, size_t bytes_max, struct dt_error *err,
                           struct dt_idx *out);
/* The same from (uncompressed) memory. */
enum dt_status dt_idx_parse(const char *name, const uint8_t *bytes, size_t len, size_t bytes_max,
                            struct dt_error *err, struct dt_idx *out);
void dt_idx_free(struct dt_idx *x);

#endif
