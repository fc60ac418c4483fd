/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Idle OpenMP threads spin for milliseconds by default, which costs a machine that others use as
 * well up to twenty times its speed (measured: two threads, two busy neighbours).  The runtime
 * reads its settings before main, so the program starts itself again with a short spin.  What the
 * user has set stays; where /proc is not there nothing happens. */
void dt_calm_threads(void)
{
    enum { SIZE = 1 << 17, ARGS = 1 << 12 };
    static char text[SIZE + 1], *argv[ARGS + 1];
    FILE *f;
    size_t n, k = 0;

    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") ||
        !(f = fopen("/proc/self/cmdline", "r")))
        return;
    n = fread(text, 1, SIZE, f);
    fclose(f);
    if (n == 0 || n == SIZE)
        return;
    for (size_t i = 0; i < n && k < ARGS; i += strlen(text + i) + 1)
        argv[k++] = text + i;
    if (k < ARGS && setenv("GOMP_SPINCOUNT", "1000", 1) == 0)
        execv("/proc/self/exe", argv);
}
