/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Ranks of one device whose queues run on their own: transfers are put on queues before their other side is
 * known. */
#ifndef DT_COMM_TRANSPORT_MEET_H
#define DT_COMM_TRANSPORT_MEET_H

#include "base/status.h"
#include "kernels/device.h"
#include <stdbool.h>
#include <stdint.h>

struct dt_transport_meet;

/* One side of a transfer; a send and a receive of one key meet in the order of their posts. */
struct dt_transport_meet_side {
    uint64_t key;
    int from, to;
    bool send;
    char *buf;
    size_t bytes;
};

/* What came first waits for at the end; gate NULL: came second. */
struct dt_transport_meet_ticket {
    struct dt_device_gate *gate;
    uint64_t number;
};

/* For `n` ranks, on a device that outlives it. */
enum dt_status dt_transport_meet_new(int n, const struct dt_device *dev, struct dt_error *err,
                                     struct dt_transport_meet **out);
/* Nothing is posted any more; queues may still be at work. */
void dt_transport_meet_free(struct dt_transport_meet *m);

/* What is on `q` now comes before the transfer.  If the other side is there already, the transfer is put on
 * `q`; else whoever posts the other side puts it on his. */
enum dt_status dt_transport_meet_post(struct dt_transport_meet *m,
                                      const struct dt_transport_meet_side *side,
                                      struct dt_device_queue *q, struct dt_error *err,
                                      struct dt_transport_meet_ticket *out);
/* `q` goes on when the transfer is over. */
void dt_transport_meet_wait(struct dt_transport_meet *m, const struct dt_transport_meet_ticket *t,
                            struct dt_device_queue *q);
/* Instead: if nobody has posted the other side, it is as if this one had not been, either. */
void dt_transport_meet_cancel(struct dt_transport_meet *m,
                              const struct dt_transport_meet_ticket *t);
/* Queues that wait for others in the name of `rank` go on, and it posts nothing more; `q` is one that does
 * not wait. */
void dt_transport_meet_give_up(struct dt_transport_meet *m, int rank, struct dt_device_queue *q);
/* The first failure that `rank` has not been told by its own posts. */
enum dt_status dt_transport_meet_state(struct dt_transport_meet *m, int rank, struct dt_error *err);

#endif
