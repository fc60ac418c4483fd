/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A launcher that does not end with its job.  Open MPI's mpirun passes an abort on to its daemons
 * and waits for them, and they for it, for ever when the hosts cannot reach each other any more
 * (seen with 4.1.4 on two hosts whose link was cut).  Told to end, that mpirun crashes, with pages
 * of messages; so it is killed.
 *
 * The process that sees to it is forked from one with threads, some of which may hold locks for
 * ever: it does nothing but what a signal handler may do.  It holds the launcher by a file
 * descriptor (Linux 5.3): a number may have become another process' by then. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall, _Fork */
#endif
#include "comm/transport_impl.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Open MPI's, of which each has one job, and ends with it when all is well; "mpirun.openmpi" is
 * mpirun, too. */
static const char *const own[] = {"mpirun", "mpiexec", "orterun", "prterun", "orted", NULL};
/* Those of PRRTE, Hydra and Slurm, which may have other jobs, and are not ours to end. */
static const char *const others[] = {
    "prted", "mpiexec.hydra", "hydra_pmi_proxy", "pmi_proxy", "slurmstepd", NULL,
};

static bool is_named(const char *name, const char *const *names)
{
    for (; *names; names++) {
        size_t n = strlen(*names);

        if (strncmp(name, *names, n) == 0 && (name[n] == '\0' || name[n] == '.'))
            return true;
    }
    return false;
}

static void name_of(pid_t pid, char *name, int size)
{
    char path[64];
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%ld/comm", (long)pid);
    f = fopen(path, "r");
    name[0] = '\0';
    if (!f)
        return;
    if (!fgets(name, size, f))
        name[0] = '\0';
    fclose(f);
    name[strcspn(name, "\n")] = '\0';
}

bool dt_transport_is_launcher(pid_t pid)
{
    char name[32];

    name_of(pid, name, sizeof(name));
    return is_named(name, own) || is_named(name, others);
}

#if defined(SYS_pidfd_open) && defined(SYS_pidfd_send_signal)

enum {
    PATIENCE_MS = 4000, /* 10 s of silence and these are within the 15 s that a job may take */
    FILES_MAX = 4096
};

/* Our parent, if it is a launcher; -1 = it is not. */
static int launcher(void)
{
    pid_t parent = getppid();
    int fd = (int)syscall(SYS_pidfd_open, parent, 0);
    char name[32];

    if (fd < 0)
        return -1;
    name_of(parent, name, sizeof(name));
    /* still our parent: so it was all the time */
    if (is_named(name, own) && getppid() == parent)
        return fd;
    close(fd);
    return -1;
}

static void close_all_but(int keep)
{
#ifdef SYS_close_range
    if ((keep == 0 || syscall(SYS_close_range, 0U, (unsigned)keep - 1, 0U) == 0) &&
        syscall(SYS_close_range, (unsigned)keep + 1, ~0U, 0U) == 0)
        return;
#endif
    for (int fd = 0; fd < FILES_MAX; fd++)
        if (fd != keep)
            close(fd);
}

static void wait_and_end(int fd)
{
    struct pollfd end = {.fd = fd, .events = POLLIN};
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid(); /* the launcher ends its ranks by process groups */
    close_all_but(fd);
    if (poll(&end, 1, PATIENCE_MS) == 0)
        syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
    _exit(0);
}

/* Without what libraries registered to be done around a fork, which waits for locks. */
static pid_t fork_alone(void)
{
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    return _Fork();
#else
    return fork();
#endif
}

void dt_transport_hurry_launcher(void)
{
    int fd = launcher();

    if (fd < 0)
        return;
    if (fork_alone() == 0)
        wait_and_end(fd);
    close(fd);
}

#else

void dt_transport_hurry_launcher(void) {}

#endif
