/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEXT_MAX = 1 << 17, ARGS_MAX = 1 << 10 };

/* What lets a launcher start more ranks than it thinks there are cores, leave their cores to us,
 * and run as root in a container.  Open MPI up to 4, then 5; others ignore them.  What the user has
 * set stays. */
static const char *const launcher_environment[][2] = {
    {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
    {"OMPI_MCA_hwloc_base_binding_policy", "none"},
    {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
    {"PRTE_MCA_hwloc_default_binding_policy", "none"},
    /* PMIx' shared memory keeps the lock of a rank that was killed, and mpirun waits for it for ever
     * (4.2.2, Open MPI 4.1.4: 2 of 60 jobs killed while they started; with this 0 of 120) */
    {"PMIX_MCA_gds", "hash"},
    {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
    {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
};

static bool is_option(const char *arg, const char *name, bool *separate)
{
    size_t n = strlen(name);

    if (strncmp(arg, name, n) != 0)
        return false;
    *separate = arg[n] == '\0';
    return *separate || arg[n] == '=';
}

void dt_launch_args(char *text, size_t len, const char *run_id, char **args, int max, int *n)
{
    static char option[128];
    bool skip = false, separate, open = true;

    *n = 0;
    for (size_t i = 0; i < len && *n < max; i += strlen(text + i) + 1) {
        char *arg = text + i;

        if (skip) {
            skip = false;
            continue;
        }
        open &= strcmp(arg, "--") != 0;
        if (open &&
            (is_option(arg, "--ranks", &separate) || is_option(arg, "--max-restarts", &separate))) {
            skip = separate;
            continue;
        }
        args[(*n)++] = arg;
        if (*n == 2 && run_id && *n < max) { /* behind the command */
            snprintf(option, sizeof(option), "--run-id=%s", run_id);
            args[(*n)++] = option;
        }
    }
}

static enum dt_status own_command_line(char *text, size_t *len, struct dt_error *err)
{
    FILE *f = fopen("/proc/self/cmdline", "r");

    if (!f)
        return dt_error_set(err, DT_ERR_IO, "--ranks needs /proc; start mpirun yourself");
    *len = fread(text, 1, TEXT_MAX - 1, f);
    text[*len] = '\0';
    fclose(f);
    return DT_OK;
}

static void become_job(const struct dt_launch *l, char *const *args, int n)
{
    static char *argv[ARGS_MAX + 8];
    static char number[16], self[4096];
    const char *launcher = getenv("DISTTRAIN_MPIRUN");
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char mpirun[] = "mpirun", np[] = "-np";
    int k = 0;

    for (size_t i = 0; i < sizeof(launcher_environment) / sizeof(launcher_environment[0]); i++)
        setenv(launcher_environment[i][0], launcher_environment[i][1], 0);
    snprintf(number, sizeof(number), "%d", l->ranks);
    argv[k++] = mpirun;
    argv[k++] = np;
    argv[k++] = number;
    argv[k++] = len > 0 ? self : args[0];
    for (int i = 1; i < n; i++)
        argv[k++] = args[i];
    /* signals of the terminal reach us alone, and the ranks through us */
    setpgid(0, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    execvp(launcher && *launcher ? launcher : "mpirun", argv);
    fprintf(stderr, "disttrain: %s: %s\n", launcher && *launcher ? launcher : "mpirun",
            strerror(errno));
    _exit(127);
}

/* A launcher passes SIGUSR1 on to the ranks, which stop after the same step; it would kill them
 * itself on SIGTERM. */
static int watch(const struct dt_launch *l, pid_t pid)
{
    bool told = false;
    int status = 0;

    while (waitpid(pid, &status, told ? 0 : WNOHANG) != pid) {
        if (*l->stop && !told) {
            kill(pid, SIGUSR1);
            told = true;
        } else if (!told) {
            usleep(50000);
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* What diverges does so again from the same checkpoint. */
static bool worth_another_try(int exit_status)
{
    return exit_status != 0 && exit_status != 127 && (exit_status < 2 || exit_status > 4) &&
           exit_status != dt_status_exit_code(DT_ERR_DIVERGED);
}

enum dt_status dt_launch(const struct dt_launch *l, struct dt_error *err, int *exit_status)
{
    static char text[TEXT_MAX], *args[ARGS_MAX];
    size_t len = 0;

    for (int64_t k = 0; k <= l->max_restarts; k++) {
        pid_t pid;
        int n;

        DT_TRY(own_command_line(text, &len, err));
        dt_launch_args(text, len, l->run_id, args, ARGS_MAX, &n);
        if (k > 0)
            fprintf(stderr, "disttrain: the job ended with status %d; restart %lld of %lld\n",
                    *exit_status, (long long)k, (long long)l->max_restarts);
        fflush(NULL);
        pid = fork();
        if (pid < 0)
            return dt_error_set(err, DT_ERR_IO, "fork: %s", strerror(errno));
        if (pid == 0)
            become_job(l, args, n);
        *exit_status = watch(l, pid);
        if (*l->stop || !worth_another_try(*exit_status))
            break;
    }
    return DT_OK;
}
