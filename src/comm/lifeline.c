/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall, F_DUPFD_CLOEXEC */
#endif
#include "comm/lifeline.h"

#include "comm/transport_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/syscall.h>
#include <unistd.h>

#define VARIABLE "DISTTRAIN_LAUNCHER"

enum { UP_MAX = 2, PEERS_MAX = 1024, LOOK_MS = 500, PATIENCE_MS = 2000, STACK = 256 << 10 };

struct process {
    pid_t pid;
    int fd; /* pidfd, or -1: looked at by number now and then */
};

static struct {
    struct process up[UP_MAX]; /* who must live */
    int n_up;
    pthread_mutex_t lock;
    int peer[PEERS_MAX], n_peers;
    bool held;
} line = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the kernel's signal ---- */

void dt_lifeline_follow(pid_t parent, int sig)
{
#ifdef PR_SET_PDEATHSIG
    prctl(PR_SET_PDEATHSIG, (unsigned long)sig, 0UL, 0UL, 0UL);
#else
    (void)sig;
#endif
    if (getppid() != parent) /* it ended before it could be followed */
        _exit(128 + SIGKILL);
}

/* ---- who is above ---- */

/* When a process began, in clock ticks since the machine did: a number may be another process' by
 * now.  0 = there is none. */
static unsigned long long began(pid_t pid)
{
    char path[64], text[1024], *p;
    unsigned long long at = 0;
    size_t n;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    f = fopen(path, "r");
    if (!f)
        return 0;
    n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    p = strrchr(text, ')'); /* the name before it may hold anything */
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (p)
        at = strtoull(p, NULL, 10);
    return at;
}

static void host_of(char *buf, size_t size)
{
    if (gethostname(buf, size - 1) != 0)
        snprintf(buf, size, "unknown");
    buf[size - 1] = '\0';
}

void dt_lifeline_hand_down(pid_t parent)
{
    char host[256], text[384];

    host_of(host, sizeof(host));
    snprintf(text, sizeof(text), "%ld:%llu:%ld:%s", (long)parent, began(parent), (long)getpid(),
             host);
    setenv(VARIABLE, text, 1);
}

static void watch_process(pid_t pid)
{
    struct process *p = &line.up[line.n_up++];

    p->pid = pid;
    p->fd = -1;
#ifdef SYS_pidfd_open
    p->fd = (int)syscall(SYS_pidfd_open, pid, 0);
#endif
}

/* What `--ranks` handed down, if that was on this machine.  The launcher it names is our parent:
 * Open MPI's forks its ranks from its main thread as we start it, so that the kernel's signal does
 * not come when some other thread of it ends. */
static void see_handed_down(void)
{
    const char *text = getenv(VARIABLE);
    char host[256], said[256];
    unsigned long long since;
    long parent, launcher;

    host_of(host, sizeof(host));
    if (!text || sscanf(text, "%ld:%llu:%ld:%255s", &parent, &since, &launcher, said) != 4 ||
        strcmp(host, said) != 0)
        return;
    if (getppid() == (pid_t)launcher) {
        dt_lifeline_follow((pid_t)launcher, SIGKILL);
        if (began((pid_t)parent) != since)
            _exit(128 + SIGKILL);
    }
    /* in another container of that host name numbers mean other processes */
    if (began((pid_t)parent) != since)
        return;
    watch_process((pid_t)parent);
    if (began((pid_t)parent) != since)
        _exit(128 + SIGKILL);
}

static void see_parent(void)
{
    pid_t parent = getppid();

    if (!dt_transport_is_launcher(parent))
        return;
    watch_process(parent);
    if (getppid() != parent)
        _exit(128 + SIGKILL);
}

/* ---- the watch ---- */

/* What started the launcher is gone, the launcher is not: it was told to end (dt_lifeline_follow), but
 * may stand still, or hang in what it does then. */
static void end_launcher(void)
{
#ifdef SYS_pidfd_send_signal
    for (int i = 0; i < line.n_up; i++) {
        struct pollfd f = {.fd = line.up[i].fd, .events = POLLIN};

        if (f.fd < 0 || line.up[i].pid != getppid())
            continue;
        syscall(SYS_pidfd_send_signal, f.fd, SIGCONT, NULL, 0);
        if (poll(&f, 1, PATIENCE_MS) == 0)
            syscall(SYS_pidfd_send_signal, f.fd, SIGKILL, NULL, 0);
    }
#endif
}

/* The launcher first: ranks that notice at once kill each other. */
static void end_all(void)
{
    end_launcher();
#ifdef SYS_pidfd_send_signal
    pthread_mutex_lock(&line.lock);
    for (int i = 0; i < line.n_peers; i++)
        syscall(SYS_pidfd_send_signal, line.peer[i], SIGKILL, NULL, 0);
    pthread_mutex_unlock(&line.lock);
#endif
    kill(getpid(), SIGKILL);
}

static void *watch_main(void *arg)
{
    struct pollfd f[UP_MAX];
    pid_t parent = getppid();

    (void)arg;
    for (;;) {
        bool gone = false;

        for (int i = 0; i < line.n_up; i++)
            f[i] = (struct pollfd){.fd = line.up[i].fd, .events = POLLIN};
        poll(f, (nfds_t)line.n_up, LOOK_MS);
        for (int i = 0; i < line.n_up; i++)
            gone = gone || (f[i].fd >= 0 && (f[i].revents & POLLIN)) ||
                   (f[i].fd < 0 && line.up[i].pid == parent && getppid() != parent) ||
                   (f[i].fd < 0 && kill(line.up[i].pid, 0) != 0 && errno == ESRCH);
        if (gone)
            end_all();
    }
    return NULL;
}

enum dt_status dt_lifeline_hold(struct dt_error *err)
{
    pthread_attr_t attr;
    sigset_t all, before;
    pthread_t thread;
    int failed;

    if (line.held)
        return DT_OK;
    see_handed_down();
    see_parent();
    if (line.n_up == 0)
        return DT_OK;
    line.held = true;
    sigfillset(&all); /* signals are the main thread's */
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &attr, watch_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (failed)
        return dt_error_set(err, DT_ERR_NOMEM, "cannot start the watch over the launcher: %s",
                            strerror(failed));
    return DT_OK;
}

void dt_lifeline_share(int pidfd)
{
    int fd = line.held && pidfd >= 0 ? fcntl(pidfd, F_DUPFD_CLOEXEC, 0) : -1;

    if (fd < 0)
        return;
    pthread_mutex_lock(&line.lock);
    if (line.n_peers < PEERS_MAX)
        line.peer[line.n_peers++] = fd;
    else
        close(fd);
    pthread_mutex_unlock(&line.lock);
}
