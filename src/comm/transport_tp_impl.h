/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What transport_tp.c and transport_tp_beside.c share. */
#ifndef DT_COMM_TRANSPORT_TP_IMPL_H
#define DT_COMM_TRANSPORT_TP_IMPL_H

#include "comm/transport.h"

struct dt_tp_job { /* a collective; what it points to is read while it is begun */
    const char *what;
    /* `out` as the table's entries take it */
    enum dt_status (*post)(struct dt_tp *tp, const struct dt_tp_job *j, void *buf,
                           struct dt_device_queue *q, struct dt_req **out);
    enum dt_reduce_type type;
    size_t n;
    const size_t *pieces;
    /* all-to-all: pieces are what is received, into the buffer */
    const void *from;
    const size_t *sent;
};

/* What dt_tp_end takes; -1: it is over, or on `q` itself, or it has failed. */
int dt_tp_begin(struct dt_device_queue *q, struct dt_tp *tp, const struct dt_tp_job *j, void *x);

#endif
