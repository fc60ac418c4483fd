/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Points evaluated in this process, or by processes of this machine.
 *
 *   parent --tasks--> pipe --> child      a child has two tasks: the one at work and the next
 *          <--answer- pipe <--            it ends when its pipe does, so that it never outlives the parent
 *
 * A child that dies takes its task with it: another one gets it once more, then the point is refused. */
#include "cli/whatif.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- one task ---- */

static void fill(const struct dt_point *p, struct dt_sweep_result *r)
{
    const struct dt_cluster *c = &p->cluster;

    r->feasible = 1;
    r->failures = p->failures;
    snprintf(r->effort, sizeof r->effort, "%s",
             p->searched ? dt_search_effort_names[p->effort] : "none");
    r->gpus = p->gpus;
    r->gpus_used = p->gpus_used;
    r->iteration_s = p->iteration_s;
    r->iteration_s_p10 = p->iteration_s_p10;
    r->iteration_s_p90 = p->iteration_s_p90;
    r->iteration_s_mean = p->iteration_s_mean;
    r->iteration_s_mean_p10 = p->iteration_s_mean_p10;
    r->iteration_s_mean_p90 = p->iteration_s_mean_p90;
    r->mfu = p->mfu;
    r->mfu_cluster = p->mfu_cluster;
    r->tokens_per_s = p->tokens_per_s;
    r->samples_per_s = p->samples_per_s;
    r->bubble_fraction = p->bubble_fraction;
    r->exposed_comm_s = p->exposed_comm_s;
    r->goodput = p->goodput;
    r->memory_bytes_max = p->mem_bytes_max;
    r->memory_bytes = c->mem_bytes;
    r->tokens = p->tokens;
    r->price_per_gpu_hour = c->price_per_gpu_hour;
    r->watts_per_gpu = c->watts_per_gpu;
    r->pue = c->pue;
    r->grams_co2_per_kwh = c->grams_co2_per_kwh;
    memcpy(r->plan, p->plan_text, sizeof r->plan);
}

enum dt_status dt_whatif_evaluate(const struct dt_whatif_base *b, const struct dt_whatif_task *t,
                                  struct dt_error *err, struct dt_sweep_result *out)
{
    const char **overrides =
        dt_malloc(((size_t)b->n_overrides + (size_t)t->len) * sizeof *overrides + 1);
    int n = b->n_overrides;
    struct dt_point p;
    enum dt_status st;

    if (!overrides)
        return dt_error_nomem(err, "a point");
    memset(out, 0, sizeof *out);
    memcpy((void *)overrides, (const void *)b->overrides, (size_t)n * sizeof *overrides);
    for (const char *s = t->text; s < t->text + t->len; s += strlen(s) + 1)
        overrides[n++] = s;
    struct dt_point_request q = {.overrides = overrides, .n_overrides = n, .failures = b->failures};
    st = dt_point_eval(b->points, &q, err, &p);
    dt_free((void *)overrides);
    DT_TRY(st);
    if (p.feasible) {
        fill(&p, out);
    } else {
        char text[sizeof p.error.message + sizeof p.error.file + 64];

        dt_error_format(&p.error, text, sizeof text);
        out->status = (int32_t)p.error.status;
        snprintf(out->reason, sizeof out->reason, "%.*s", (int)sizeof out->reason - 1, text);
        for (char *c = out->reason; *c; c++)
            *c = *c == '\n' ? ' ' : *c;
    }
    dt_point_free(&p);
    return DT_OK;
}

void dt_whatif_answer(const struct dt_whatif_base *b, int task, const char *text, int len,
                      struct dt_whatif_answer *out)
{
    struct dt_whatif_task t = {text, len};
    struct dt_error err = {0};

    memset(out, 0, sizeof *out);
    out->task = task;
    out->status = (int32_t)dt_whatif_evaluate(b, &t, &err, &out->r);
    snprintf(out->message, sizeof out->message, "%.*s", (int)sizeof out->message - 1, err.message);
}

/* ---- signals ---- */

static volatile sig_atomic_t came;

static void on_signal(int sig)
{
    came = sig;
}

/* Not restarted: whoever waits shall hear of it. */
void dt_whatif_watch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

int dt_whatif_signal(void)
{
    return came;
}

static enum dt_status stopped(struct dt_error *err)
{
    return came ? dt_error_set(err, DT_ERR_IO, "interrupted") : DT_OK;
}

/* ---- in this process ---- */

struct here {
    struct dt_whatif_engine e;
    const struct dt_whatif_base *base;
};

static enum dt_status run_here(struct dt_whatif_engine *e, const struct dt_whatif_task *tasks,
                               int n, dt_whatif_result_fn *fn, void *ctx, struct dt_error *err)
{
    struct here *h = (struct here *)(void *)e;
    struct dt_sweep_result r;

    for (int i = 0; i < n; i++) {
        DT_TRY(stopped(err));
        DT_TRY(dt_whatif_evaluate(h->base, &tasks[i], err, &r));
        DT_TRY(fn(ctx, i, &r, err));
    }
    return stopped(err);
}

static void close_here(struct dt_whatif_engine *e)
{
    dt_free(e);
}

enum dt_status dt_whatif_engine_here(const struct dt_whatif_base *b, struct dt_error *err,
                                     struct dt_whatif_engine **out)
{
    struct here *h = dt_calloc(1, sizeof *h);

    if (!h)
        return dt_error_nomem(err, "the engine");
    h->e = (struct dt_whatif_engine){1, run_here, close_here};
    h->base = b;
    *out = &h->e;
    return DT_OK;
}

/* ---- processes ---- */

enum { AHEAD = 2, TRIES = 2 };

struct child {
    pid_t pid; /* 0 = gone */
    int to, from;
    int task[AHEAD], tasks;
};
struct processes {
    struct dt_whatif_engine e;
    const struct dt_whatif_base *base;
    int n;
    struct child *child;
};
struct message { /* to a child; `len` bytes follow */
    int32_t task, len;
};

/* All or nothing; false at the end of the pipe. */
static bool read_all(int fd, void *buf, size_t n)
{
    for (char *at = buf; n > 0;) {
        ssize_t got = read(fd, at, n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *buf, size_t n)
{
    for (const char *at = buf; n > 0;) {
        ssize_t put = write(fd, at, n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        at += put;
        n -= (size_t)put;
    }
    return true;
}

static _Noreturn void work(const struct dt_whatif_base *b, int from, int to)
{
    static char text[DT_WHATIF_TASK_MAX];
    static struct dt_whatif_answer answer;
    struct message m;

    signal(SIGINT, SIG_IGN); /* of the terminal, for all: the parent says when to end */
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    while (read_all(from, &m, sizeof m) && m.len >= 0 && m.len <= DT_WHATIF_TASK_MAX &&
           read_all(from, text, (size_t)m.len)) {
        dt_whatif_answer(b, m.task, text, m.len, &answer);
        if (!write_all(to, &answer, sizeof answer))
            break;
    }
    dt_points_close(b->points);
    _exit(0);
}

static enum dt_status start(struct processes *p, int k, struct dt_error *err)
{
    int down[2] = {-1, -1}, up[2] = {-1, -1};
    struct child *c = &p->child[k];

    fflush(NULL);
    if (pipe(down) != 0 || pipe(up) != 0 || (c->pid = fork()) < 0) {
        int saved = errno;

        for (int i = 0; i < 2; i++) {
            if (down[i] >= 0)
                close(down[i]);
            if (up[i] >= 0)
                close(up[i]);
        }
        c->pid = 0;
        return dt_error_set(err, DT_ERR_IO, "cannot start a process: %s", strerror(saved));
    }
    if (c->pid == 0) {
        for (int i = 0; i < p->n; i++) /* whose ends would keep their pipes open */
            if (i != k && p->child[i].pid > 0) {
                close(p->child[i].to);
                close(p->child[i].from);
            }
        close(down[1]);
        close(up[0]);
        work(p->base, down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    c->to = down[1];
    c->from = up[0];
    c->tasks = 0;
    return DT_OK;
}

/* How the child ended, in words. */
static void bury(struct child *c, char *how, size_t size)
{
    int status = 0;

    close(c->to);
    close(c->from);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    c->pid = 0;
    if (WIFSIGNALED(status))
        snprintf(how, size, "was ended by signal %d%s", WTERMSIG(status),
                 WTERMSIG(status) == SIGKILL ? " (out of memory, perhaps)" : "");
    else
        snprintf(how, size, "ended with status %d", WEXITSTATUS(status));
}

struct run { /* of tasks, under way */
    struct processes *p;
    const struct dt_whatif_task *tasks;
    dt_whatif_result_fn *fn;
    void *ctx;
    struct dt_error *err;
    struct dt_whatif_deal *deal;
    int n, done;
    int *tries;             /* [n] */
    int again[64], n_again; /* whose child died */
};

static int next_task(struct run *r, const struct child *c)
{
    if (r->n_again > 0)
        return r->again[--r->n_again];
    return dt_whatif_deal_next(r->deal, (int)(c - r->p->child));
}

static void feed(struct run *r, struct child *c)
{
    while (c->pid > 0 && c->tasks < AHEAD) {
        int task = next_task(r, c);
        struct message m;

        if (task < 0)
            return;
        m = (struct message){task, r->tasks[task].len};
        c->task[c->tasks++] = task; /* one that cannot be written to is found dead by poll */
        if (write_all(c->to, &m, sizeof m))
            write_all(c->to, r->tasks[task].text, (size_t)m.len);
    }
}

/* Its first task killed it, perhaps; that at the back has not begun. */
static enum dt_status lost(struct run *r, struct child *c)
{
    struct dt_sweep_result refused = {.status = DT_ERR_INTERNAL};
    char how[96];
    int k = (int)(c - r->p->child);
    enum dt_status st = DT_OK;

    bury(c, how, sizeof how);
    for (int i = c->tasks - 1; i >= 0; i--) {
        int task = c->task[i];

        if ((i > 0 || ++r->tries[task] < TRIES) && r->n_again < 64) {
            r->again[r->n_again++] = task;
            continue;
        }
        snprintf(refused.reason, sizeof refused.reason, "the process that evaluated it %s", how);
        r->done++;
        if (st == DT_OK)
            st = r->fn(r->ctx, task, &refused, r->err);
    }
    return st == DT_OK ? start(r->p, k, r->err) : st;
}

static enum dt_status take(struct run *r, struct child *c)
{
    static struct dt_whatif_answer a;

    if (!read_all(c->from, &a, sizeof a))
        return lost(r, c);
    if (c->tasks == 0 || a.task != c->task[0])
        return dt_error_set(r->err, DT_ERR_INTERNAL, "a process answered what it was not asked");
    memmove(c->task, c->task + 1, (size_t)--c->tasks * sizeof c->task[0]);
    if (a.status != DT_OK)
        return dt_error_set(r->err, (enum dt_status)a.status, "%s", a.message);
    r->done++;
    return r->fn(r->ctx, a.task, &a.r, r->err);
}

static enum dt_status rounds(struct run *r, struct pollfd *fds)
{
    struct processes *p = r->p;

    while (r->done < r->n) {
        for (int i = 0; i < p->n; i++) {
            feed(r, &p->child[i]);
            fds[i] = (struct pollfd){.fd = p->child[i].from, .events = POLLIN};
        }
        DT_TRY(stopped(r->err));
        if (poll(fds, (nfds_t)p->n, -1) < 0 && errno != EINTR)
            return dt_error_set(r->err, DT_ERR_IO, "cannot wait for processes: %s",
                                strerror(errno));
        for (int i = 0; i < p->n; i++)
            if (fds[i].revents)
                DT_TRY(take(r, &p->child[i]));
    }
    return stopped(r->err);
}

static enum dt_status run_processes(struct dt_whatif_engine *e, const struct dt_whatif_task *tasks,
                                    int n, dt_whatif_result_fn *fn, void *ctx, struct dt_error *err)
{
    struct processes *p = (struct processes *)(void *)e;
    struct pollfd *fds = dt_calloc((size_t)p->n, sizeof *fds);
    struct run r = {.p = p, .tasks = tasks, .fn = fn, .ctx = ctx, .err = err, .n = n};
    enum dt_status st = dt_whatif_deal_new(n, p->n, err, &r.deal);

    r.tries = dt_calloc((size_t)n + 1, sizeof *r.tries);
    if (st == DT_OK)
        st = fds && r.tries ? rounds(&r, fds) : dt_error_nomem(err, "processes");
    dt_whatif_deal_free(r.deal);
    dt_free(fds);
    dt_free(r.tries);
    return st;
}

static void close_processes(struct dt_whatif_engine *e)
{
    struct processes *p = (struct processes *)(void *)e;
    char how[96];

    for (int i = 0; i < p->n; i++)
        if (p->child[i].pid > 0) {
            if (p->child[i].tasks > 0)
                kill(p->child[i].pid, SIGKILL);
            bury(&p->child[i], how, sizeof how);
        }
    dt_free(p->child);
    dt_free(p);
}

enum dt_status dt_whatif_engine_processes(const struct dt_whatif_base *b, int workers,
                                          struct dt_error *err, struct dt_whatif_engine **out)
{
    struct processes *p = dt_calloc(1, sizeof *p);

    if (!p)
        return dt_error_nomem(err, "processes");
    p->e = (struct dt_whatif_engine){workers, run_processes, close_processes};
    p->base = b;
    p->n = workers;
    p->child = dt_calloc((size_t)workers, sizeof *p->child);
    enum dt_status st = p->child ? DT_OK : dt_error_nomem(err, "processes");
    signal(SIGPIPE, SIG_IGN); /* a child that died is found by its pipe */
    for (int i = 0; st == DT_OK && i < workers; i++)
        st = start(p, i, err);
    if (st != DT_OK) {
        p->n = p->child ? p->n : 0;
        close_processes(&p->e);
        return st;
    }
    *out = &p->e;
    return DT_OK;
}
