/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What ranks tell one another before they open a transport between devices. */
#ifndef DT_COMM_TRANSPORT_AGREE_H
#define DT_COMM_TRANSPORT_AGREE_H

#include "comm/transport.h"

/* Where a rank is.  Containers of a host have names of their own or one for all, but its kernel has started once. */
struct dt_transport_place {
    char host[64], boot[40];
};
void dt_transport_place_here(const struct dt_transport *t, struct dt_transport_place *out);
bool dt_transport_same_host(const struct dt_transport_place *a, const struct dt_transport_place *b);

/* all[size], `each` bytes long, this rank's filled: then all are.  Collective, over a transport of host memory; `who` is
 * waited for.  After a failure `all` stays with the process, as more of it may come. */
enum dt_status dt_transport_tell_all(struct dt_transport *t, void *all, size_t each,
                                     const char *who, struct dt_error *err);

#endif
