/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#ifndef DT_SERVE_LISTEN_H
#define DT_SERVE_LISTEN_H

#include "base/status.h"

#include <stddef.h>

/* A socket that listens at a name or address (NULL: 127.0.0.1) and port (0: any); `at` gets "ADDRESS:PORT" as it goes
 * into a URL. */
enum dt_status dt_serve_listen(const char *host, int port, struct dt_error *err, char *at,
                               size_t size, int *fd);

#endif
