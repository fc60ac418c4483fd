/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * In place of transport_mpi.c where configure found no MPI. */
#include "comm/transport_impl.h"

enum dt_status dt_transport_open_mpi(struct dt_error *err, struct dt_transport **out)
{
    (void)out;
    return dt_error_set(err, DT_ERR_INPUT,
                        "this disttrain was built without MPI, so it runs as one process; install "
                        "an MPI library (Debian: libopenmpi-dev, openmpi-bin), configure and build "
                        "again");
}
