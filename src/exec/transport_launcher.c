/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A launcher that does not end with its job.  Open MPI's mpirun passes an abort on to its daemons
 * and waits for them, for ever when their host cannot be reached any more (seen with 4.1.4 on two
 * hosts whose link was cut).  Told twice to end, it ends. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include "exec/transport_impl.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    PATIENCE_MS = 4000, /* 10 s of silence and these are within the 15 s that a job may take */
    STEP_MS = 100,
    FILES_MAX = 4096
};

/* Our parent, if it is Open MPI's: mpirun and its daemons, up to 4 and from 5. */
static pid_t launcher(void)
{
    static const char *const names[] = {"mpirun",  "mpiexec", "orterun", "orted",
                                        "prterun", "prte",    "prted"};
    pid_t parent = getppid();
    char path[64], name[32] = "";
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%ld/comm", (long)parent);
    f = fopen(path, "r");
    if (!f)
        return 0;
    if (!fgets(name, sizeof(name), f))
        name[0] = '\0';
    fclose(f);
    name[strcspn(name, "\n")] = '\0';
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return parent;
    return 0;
}

/* Of a process with threads: nothing here but what a signal handler may do. */
static void wait_and_end(pid_t pid)
{
    const struct timespec step = {.tv_nsec = STEP_MS * 1000000L};

    setsid(); /* the launcher ends its ranks by process groups */
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 0U, ~0U, 0U) != 0)
#endif
        for (int fd = 0; fd < FILES_MAX; fd++)
            close(fd);
    signal(SIGTERM, SIG_DFL);
    for (int ms = 0; ms < PATIENCE_MS; ms += STEP_MS) {
        nanosleep(&step, NULL);
        if (kill(pid, 0) != 0)
            _exit(0);
    }
    for (int k = 0; k < 2; k++) {
        kill(pid, SIGTERM);
        nanosleep(&step, NULL);
        nanosleep(&step, NULL);
    }
    for (int ms = 0; ms < PATIENCE_MS / 8 && kill(pid, 0) == 0; ms += STEP_MS)
        nanosleep(&step, NULL);
    kill(pid, SIGKILL);
    _exit(0);
}

void dt_transport_hurry_launcher(void)
{
    pid_t pid = launcher();

    if (pid > 1 && fork() == 0)
        wait_and_end(pid);
}
