/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pipe2 */
#endif
#include "cli/launch.h"

#include "base/mem.h"
#include "base/clock.h"
#include "comm/lifeline.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What lets a launcher start more ranks than it thinks there are cores, leave their cores to us,
 * and run as root in a container.  Open MPI up to 4, then 5; others ignore them.  What the user has
 * set stays. */
static const char *const launcher_environment[][2] = {
    {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
    {"OMPI_MCA_hwloc_base_binding_policy", "none"},
    {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
    {"PRTE_MCA_hwloc_default_binding_policy", "none"},
    /* PMIx' shared memory keeps the lock of a rank that was killed, and mpirun waits for it for
     * ever (4.2.2, Open MPI 4.1.4: 2 of 60 jobs killed while they started; with this 0 of 120) */
    {"PMIX_MCA_gds", "hash"},
    /* ranks follow the thread that forks them (comm/lifeline.c): the main one, not one of those
     * that Open MPI takes for 32 ranks and more of a host, and ends when all are started */
    {"OMPI_MCA_odls_base_num_threads", "0"},
    {"PRTE_MCA_odls_base_num_threads", "0"},
    {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
};

/* ---- signals ---- */

enum { SIGNALS = 4, PATIENCE_MS = 2000 };
static const int caught[SIGNALS] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
static volatile sig_atomic_t times[SIGNALS], last;

static void on_signal(int sig)
{
    for (int k = 0; k < SIGNALS; k++)
        if (caught[k] == sig && times[k] < 2)
            times[k]++;
    last = sig;
}

/* After nohup SIGHUP stays ignored; a shell's background jobs have SIGINT ignored for no such
 * reason. */
static void catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;

    sigemptyset(&a.sa_mask);
    for (int k = 0; k < SIGNALS; k++)
        if (sigaction(caught[k], &a, &before) == 0 && caught[k] == SIGHUP &&
            before.sa_handler == SIG_IGN)
            sigaction(SIGHUP, &before, NULL);
}

/* How often the one signal came that came most often. */
static int most_times(void)
{
    int n = 0;

    for (int k = 0; k < SIGNALS; k++)
        n = times[k] > n ? times[k] : n;
    return n;
}

/* ---- the job ---- */

static const char *launcher_name(void)
{
    const char *name = getenv("DISTTRAIN_MPIRUN");

    return name && *name ? name : "mpirun";
}

/* In the child.  Says by `tell`, which closes when the launcher is there, why it is not. */
static void become_job(const struct dt_launch *l, char **args, pid_t parent, int tell)
{
    static char number[16], self[4096], mpirun[] = "mpirun", np[] = "-np";
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    size_t n = 0;
    char **argv;
    int why;

    for (size_t i = 0; i < sizeof(launcher_environment) / sizeof(launcher_environment[0]); i++)
        setenv(launcher_environment[i][0], launcher_environment[i][1], 0);
    while (args[n])
        n++;
    argv = dt_calloc(n + 4, sizeof(*argv));
    why = ENOMEM;
    if (argv) {
        snprintf(number, sizeof(number), "%d", l->ranks);
        argv[0] = mpirun;
        argv[1] = np;
        argv[2] = number;
        memcpy(argv + 3, args, n * sizeof(*argv));
        if (len > 0)
            argv[3] = self;
        /* signals of the terminal reach the parent alone, and the ranks through it */
        setpgid(0, 0);
        for (int k = 0; k < SIGNALS; k++)
            if (signal(caught[k], SIG_DFL) == SIG_IGN)
                signal(caught[k], SIG_IGN);
        dt_lifeline_hand_down(parent);
        dt_lifeline_follow(parent, SIGTERM); /* the launcher ends its ranks */
        execvp(launcher_name(), argv);
        why = errno;
    }
    (void)!write(tell, &why, sizeof(why));
    _exit(127);
}

static enum dt_status not_started(char *const *args, int why, struct dt_error *err)
{
    size_t bytes = 0;

    for (; *args; args++)
        bytes += strlen(*args) + 1;
    if (why == E2BIG)
        return dt_error_set(err, DT_ERR_USAGE,
                            "the command line (%zu bytes) and the environment are together longer "
                            "than this system allows; write settings into the job's file",
                            bytes);
    return dt_error_set(err, DT_ERR_INPUT,
                        "cannot start %s: %s; install an MPI library's launcher (Debian: "
                        "openmpi-bin), or name one in DISTTRAIN_MPIRUN",
                        launcher_name(), strerror(why));
}

static enum dt_status start(const struct dt_launch *l, char **args, struct dt_error *err,
                            pid_t *out)
{
    pid_t parent = getpid(), pid;
    int tell[2], why = 0;
    ssize_t n;

    if (pipe2(tell, O_CLOEXEC) != 0)
        return dt_error_set(err, DT_ERR_IO, "pipe: %s", strerror(errno));
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        become_job(l, args, parent, tell[1]);
    close(tell[1]);
    do
        n = pid < 0 ? 0 : read(tell[0], &why, sizeof(why));
    while (n < 0 && errno == EINTR);
    close(tell[0]);
    if (pid < 0)
        return dt_error_set(err, DT_ERR_IO, "fork: %s", strerror(errno));
    if (n == (ssize_t)sizeof(why)) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        return not_started(args, why, err);
    }
    *out = pid;
    return DT_OK;
}

/* Ours are as they are; any other is the launcher's way to say that a rank was lost (128 and a
 * signal's number, in Open MPI's case). */
static int status_of_job(int status)
{
    return status > dt_status_exit_code(DT_ERR_DIVERGED) ? dt_status_exit_code(DT_ERR_PEER)
                                                         : status;
}

/* The first signal ends the job in order: launchers pass SIGUSR1 on to the ranks, which stop after
 * the same step.  The same one again, or none in order, ends it at once: on SIGTERM a launcher
 * kills its ranks, also those that are stopped; one that does not is killed, and they follow it. */
static int watch(const struct dt_launch *l, pid_t pid)
{
    enum { GOES_ON, TOLD, ENDED, KILLED } done = GOES_ON;
    uint64_t since = 0;
    int status = 0;

    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);

        if (got == pid || (got < 0 && errno != EINTR))
            break;
        if (most_times() > (l->orderly ? 1 : 0) && done < ENDED) {
            kill(pid, SIGTERM);
            done = ENDED;
            since = dt_clock_ns();
        } else if (most_times() > 0 && done == GOES_ON) {
            kill(pid, SIGUSR1);
            done = TOLD;
        } else if (done == ENDED && dt_clock_ns() - since > PATIENCE_MS * UINT64_C(1000000)) {
            kill(pid, SIGKILL);
            done = KILLED;
        }
        usleep(20000);
    }
    if (done >= ENDED)
        return 128 + last;
    return status_of_job(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* Full disks and lost ranks may be better next time.  Input is refused again (2, 3, 4), and what
 * diverges does so again from the same checkpoint. */
static bool worth_another_try(int exit_status)
{
    return exit_status == dt_status_exit_code(DT_ERR_IO) ||
           exit_status == dt_status_exit_code(DT_ERR_PEER);
}

static enum dt_status run_once(const struct dt_launch *l, struct dt_error *err, int *exit_status)
{
    char **args;
    enum dt_status st;
    pid_t pid = 0;

    DT_TRY(dt_launch_args(l->argv, l->run_id, err, &args));
    st = dt_launch_pack(args, err);
    if (st == DT_OK)
        st = start(l, args, err, &pid);
    if (st == DT_OK)
        *exit_status = watch(l, pid);
    dt_free(args);
    return st;
}

enum dt_status dt_launch(const struct dt_launch *l, struct dt_error *err, int *exit_status)
{
    catch_signals();
    for (int64_t k = 0; k <= l->max_restarts; k++) {
        if (k > 0)
            fprintf(stderr, "disttrain: the job ended with status %d; restart %lld of %lld\n",
                    *exit_status, (long long)k, (long long)l->max_restarts);
        DT_TRY(run_once(l, err, exit_status));
        if (most_times() > 0 || !worth_another_try(*exit_status))
            break;
    }
    return DT_OK;
}
