/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Large amounts between device memory and the host, in stretches, through two page-locked buffers that take
 * turns: while the host works on one, the queue copies the other.  It takes no device memory, and no more host
 * memory than the two buffers, whatever is carried.
 *
 *   queue   [ copy 0 ][ copy 1 ]          [ copy 2 ]
 *   host               [ work on 0 ][ work on 1 ]...       a copy begins when its buffer's last use is over */
#ifndef DT_EXEC_MODULES_FERRY_H
#define DT_EXEC_MODULES_FERRY_H

#include "kernels/device.h"

#define DT_FERRY_BYTES ((size_t)4 << 20)

struct dt_ferry { /* zero-initialised: closed */
    const struct dt_device *dev;
    struct dt_device_queue *q; /* the caller's */
    size_t bytes;              /* of a buffer */
    void *room[2];
    struct dt_device_event *passed[2]; /* the queue is past the buffer's last copy */
    int turn;
};

/* bytes 0: DT_FERRY_BYTES. */
enum dt_status dt_ferry_open(struct dt_ferry *c, const struct dt_device *dev,
                             struct dt_device_queue *q, size_t bytes, struct dt_error *err);
/* Waits for its copies; what failed is still the queue's to say. */
void dt_ferry_close(struct dt_ferry *c);

/* Gives device memory to `take`, a stretch of at most `c->bytes` after the other. */
typedef enum dt_status dt_ferry_fn(void *arg, size_t at, const void *p, size_t bytes,
                                   struct dt_error *err);
enum dt_status dt_ferry_out(struct dt_ferry *c, const void *from, size_t bytes, dt_ferry_fn *take,
                            void *arg, struct dt_error *err);

/* A buffer that no copy uses any more; the caller fills it. */
enum dt_status dt_ferry_room(struct dt_ferry *c, struct dt_error *err, void **out);
/* Sends what the caller has put at the beginning of that buffer on its way. */
void dt_ferry_in(struct dt_ferry *c, void *to, size_t bytes);
/* Both, stretch after stretch, from any memory of the host, which is the caller's again at once. */
enum dt_status dt_ferry_to(struct dt_ferry *c, void *to, const void *from, size_t bytes,
                           struct dt_error *err);

#endif
