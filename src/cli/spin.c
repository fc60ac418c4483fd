/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/cli.h"

#include <stdlib.h>
#include <unistd.h>

/* Idle OpenMP threads spin for milliseconds by default, which costs a machine that others use as
 * well up to twenty times its speed (measured: two threads, two busy neighbours).  The runtime
 * reads its settings before main, so the program starts itself again with a short spin.  What the
 * user has set stays; where /proc is not there nothing happens. */
void dt_cli_limit_spin(const struct dt_cli *cli)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0)
        execv("/proc/self/exe", cli->argv);
}
