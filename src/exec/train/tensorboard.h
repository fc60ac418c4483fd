/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * TensorBoard event files: scalars that `tensorboard --logdir DIR` draws.
 *
 *   record: u64 LE length | u32 LE masked CRC-32C of these 8 bytes | data | u32 LE masked CRC-32C
 *
 * (the TFRecord framing), where data is a protocol-buffer Event{wall_time=1, step=2,
 * file_version=3, summary=5 {value=1 {tag=1, simple_value=2}}}. */
#ifndef DT_EXEC_TRAIN_TENSORBOARD_H
#define DT_EXEC_TRAIN_TENSORBOARD_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct dt_tensorboard;
/* Makes the folder (not its parents) and opens a new file in it. */
enum dt_status dt_tensorboard_open(const char *dir, double wall_s, struct dt_error *err,
                                   struct dt_tensorboard **out);
/* One event with n scalars.  wall_s: seconds since 1970. */
enum dt_status dt_tensorboard_scalars(struct dt_tensorboard *t, double wall_s, int64_t step,
                                      const char *const *tags, const float *values, int n,
                                      struct dt_error *err);
/* Hands what was written to the system, so that a viewer sees it. */
enum dt_status dt_tensorboard_flush(struct dt_tensorboard *t, struct dt_error *err);
enum dt_status dt_tensorboard_close(struct dt_tensorboard *t, struct dt_error *err);
const char *dt_tensorboard_path(const struct dt_tensorboard *t);

/* TFRecord's masked form of CRC-32C. */
uint32_t dt_tensorboard_crc32c_masked(const void *bytes, size_t len);

#endif
