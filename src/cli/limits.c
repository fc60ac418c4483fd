/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A limited address space (ulimit -v, batch systems' memory limits).  Our own code reports what it
 * cannot get; the libraries of training do not: oneDNN uses the code that it had no room to write,
 * and Open MPI its shared memory.  So what they need is asked for before they begin, and a crash
 * near the limit says what it is from. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "cli/cli.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Measured with a model of a few thousand parameters on 2 cores, over what the program has at its
 * start: one process runs with 290 MiB and crashes with 275, one of 2 ranks runs with 570 and
 * crashes with 475.  Room is added for more threads' heaps. */
enum { ALONE_MIB = 384, RANK_MIB = 768, STACK_MIB = 8 };

static struct {
    char text[256];
    size_t n;
    unsigned long limit_pages;
    stack_t stack;
} said;

/* Pages of address space in use, by what a signal handler may do; 0 = unknown. */
static unsigned long pages_in_use(void)
{
    char text[64];
    unsigned long pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text)) : 0;

    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
        pages = pages * 10 + (unsigned long)(text[i] - '0');
    return pages;
}

static void on_crash(int sig)
{
    if (pages_in_use() < said.limit_pages / 2) { /* of another reason: as without us */
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    (void)!write(STDERR_FILENO, said.text, said.n);
    _exit(dt_status_exit_code(DT_ERR_NOMEM));
}

static bool limited(rlim_t *bytes)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_AS, &r) != 0 || r.rlim_cur == RLIM_INFINITY)
        return false;
    *bytes = r.rlim_cur;
    return true;
}

void dt_cli_limits_watch(void)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL};
    static char stack[64 << 10];
    struct sigaction a = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK | (int)SA_RESETHAND};
    rlim_t bytes;

    if (!limited(&bytes))
        return;
    said.limit_pages = (unsigned long)(bytes / (rlim_t)sysconf(_SC_PAGESIZE));
    said.n = (size_t)snprintf(said.text, sizeof(said.text),
                              "disttrain: out of memory: a library crashed near the limit of %llu "
                              "MiB of address space; raise it (ulimit -v)\n",
                              (unsigned long long)bytes >> 20);
    said.stack = (stack_t){.ss_sp = stack, .ss_size = sizeof(stack)};
    sigaltstack(&said.stack, NULL);
    sigemptyset(&a.sa_mask);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaction(signals[i], &a, NULL);
}

enum dt_status dt_cli_limits_check(bool ranks, struct dt_error *err)
{
    unsigned long long in_use = pages_in_use() * (unsigned long long)sysconf(_SC_PAGESIZE), need;
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    rlim_t bytes;

    if (!limited(&bytes))
        return DT_OK;
    need = in_use + ((unsigned long long)(ranks ? RANK_MIB : ALONE_MIB) +
                     (unsigned long long)cores * STACK_MIB) *
                        1048576;
    if (bytes >= need)
        return DT_OK;
    return dt_error_set(err, DT_ERR_NOMEM,
                        "the address space is limited to %llu MiB (ulimit -v); this command needs "
                        "%llu MiB%s, plus the memory of the model",
                        (unsigned long long)bytes >> 20, (need >> 20) + 1,
                        ranks ? " for each rank" : "");
}
