/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Measuring and predicting one layout.  Programs of its own measure, started as a user would. */
#include "cli/loop.h"
#include "base/doc.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/quantile.h"
#include "comm/lifeline.h"
#include "comm/reference.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MAX = DT_CLI_MAX_ARGS + 64, METRICS_MAX = 1 << 26 };
enum { REPEATS = 5 }; /* of each block in one of the profiles */

/* ---- children ---- */

static volatile sig_atomic_t caught;

static void on_signal(int sig)
{
    caught = sig;
}

void dt_loop_catch_signals(void)
{
    struct sigaction a = {.sa_handler = on_signal}; /* no SA_RESTART: waiting ends */

    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGHUP, &a, NULL);
}

int dt_loop_signal(void)
{
    return caught;
}

struct command {
    char *argv[ARGS_MAX + 1]; /* all that a command line can name, and what is added here */
    int n;
    bool short_of; /* memory */
};

static void word(struct command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void word(struct command *c, const char *fmt, ...)
{
    va_list ap;
    int len;
    char *text;

    va_start(ap, fmt);
    len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    text = len < 0 || c->n == ARGS_MAX ? NULL : dt_malloc((size_t)len + 1);
    if (!text) {
        c->short_of = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, (size_t)len + 1, fmt, ap);
    va_end(ap);
    c->argv[c->n++] = text;
}

static void command_free(struct command *c)
{
    for (int i = 0; i < c->n; i++)
        dt_free(c->argv[i]);
    dt_free(c);
}

static void job_words(struct command *c, const struct dt_loop *l)
{
    word(c, "%s", l->job);
    for (int i = 1; i < l->cli->n_args; i++)
        word(c, "%s", l->cli->args[i]);
}

/* Output goes to FOLDER/child.log, which the message of a failure ends with, or standard output to `out`. */
static pid_t start(const struct dt_loop *l, struct command *c, const char *out)
{
    pid_t parent = getpid(), pid = fork();

    if (pid == 0) {
        char path[LOOP_PATH_MAX];
        int fd;

        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        signal(SIGHUP, SIG_DFL);
        snprintf(path, sizeof(path), "%s/child.log", l->dir);
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
        if (fd >= 0) {
            dup2(fd, STDOUT_FILENO);
            dup2(fd, STDERR_FILENO);
        }
        fd = out ? open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
        if (fd >= 0)
            dup2(fd, STDOUT_FILENO);
        dt_lifeline_follow(parent, SIGTERM);
        execv("/proc/self/exe", c->argv);
        _exit(127);
    }
    return pid;
}

static enum dt_status not_stopped(struct dt_error *err)
{
    return caught ? dt_error_set(err, DT_ERR_PEER, "stopped by signal %d", (int)caught) : DT_OK;
}

/* Tests and sleeps, rather than a blocked wait, so that no signal comes between look and wait. */
static enum dt_status wait_for(pid_t pid, const char *what, struct dt_error *err, int *status)
{
    bool told = false;
    pid_t got;

    while ((got = waitpid(pid, status, WNOHANG)) != pid) {
        if (got < 0 && errno != EINTR)
            return dt_error_set(err, DT_ERR_IO, "cannot wait for %s: %s", what, strerror(errno));
        if (caught && !told) {
            kill(pid, SIGTERM);
            told = true;
        }
        usleep(20000);
    }
    return DT_OK;
}

static enum dt_status run(const struct dt_loop *l, struct command *c, const char *what,
                          const char *out, struct dt_error *err)
{
    char path[LOOP_PATH_MAX], *text = NULL;
    const char *tail;
    int status;
    size_t len = 0;
    enum dt_status st;
    pid_t pid;

    if (c->short_of)
        return dt_error_nomem(err, "a command line");
    DT_TRY(not_stopped(err));
    pid = start(l, c, out);
    DT_TRY(wait_for(pid, what, err, &status));
    DT_TRY(not_stopped(err));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return DT_OK;
    snprintf(path, sizeof(path), "%s/child.log", l->dir);
    tail = dt_file_read(path, METRICS_MAX, NULL, &text, &len) == DT_OK && len > 1500
               ? text + len - 1500
           : text ? text
                  : "";
    st = dt_error_set(err, DT_ERR_PEER, "%s failed; its last output was:\n%s", what, tail);
    dt_free(text);
    return st;
}

/* ---- profiles ---- */

void dt_loop_profile_path(const struct dt_loop *l, int pass, int threads, char *buf, size_t size)
{
    snprintf(buf, size, "%s/profile-%d-%d.db", l->dir, pass, threads);
}

/* The speed that the profiler brought all times to. */
static enum dt_status read_reference(const char *path, struct dt_error *err, double *out)
{
    struct dt_doc *doc;
    enum dt_status st;

    DT_TRY(dt_doc_read(path, err, &doc));
    st = dt_get_double(dt_doc_root(doc), "reference_s", 0, 1e3, out, err);
    dt_doc_free(doc);
    return st;
}

/* At the speed *reference_s, if that is not 0. */
static enum dt_status profile(struct dt_loop *l, int threads, int ranks, bool messages_only,
                              struct dt_error *err, double *reference_s)
{
    struct command *c = dt_calloc(1, sizeof(*c));
    char path[LOOP_PATH_MAX], said[LOOP_PATH_MAX + 16];
    enum dt_status st;

    if (!c)
        return dt_error_nomem(err, "a command");
    dt_loop_profile_path(l, l->passes, threads, path, sizeof(path));
    snprintf(said, sizeof(said), "%s.json", path);
    word(c, "disttrain");
    word(c, "profile");
    word(c, "--json");
    word(c, "--ranks");
    word(c, "%d", ranks);
    job_words(c, l);
    word(c, "run.threads=%d", threads);
    word(c, "--seconds");
    word(c, "%g", messages_only ? 0 : l->seconds / LOOP_PASSES);
    word(c, "--repeats");
    word(c, "%d", messages_only ? 1 : REPEATS);
    if (messages_only) {
        word(c, "--sequences");
        word(c, "1");
    }
    if (*reference_s > 0) {
        word(c, "--reference");
        word(c, "%.17g", *reference_s);
    }
    word(c, "--output");
    word(c, "%s", path);
    st = run(l, c, "disttrain profile", said, err);
    command_free(c);
    return st == DT_OK ? read_reference(said, err, reference_s) : st;
}

/* As many ranks at once as fill the cores: caches and memory are shared in training too.  Ranks
 * that share the only core send messages all the same: their times come first, and blocks that one
 * rank has measured alone take the place of those of two. */
enum dt_status dt_loop_profile(struct dt_loop *l, int threads, struct dt_error *err,
                               struct dt_drift *out)
{
    int ranks = l->cores / threads > 0 ? l->cores / threads : 1;
    char path[LOOP_PATH_MAX];

    dt_loop_profile_path(l, l->passes, threads, path, sizeof(path));
    unlink(path); /* of a try that did not count */
    out->reference_s = 0;
    if (ranks == 1 && threads == 1 && l->ranks_max > 1)
        DT_TRY(profile(l, threads, 2, true, err, &out->reference_s));
    out->steady = 1; /* the profiler repeats what was not, within bounds */
    return profile(l, threads, ranks, false, err, &out->reference_s);
}

/* ---- one layout ---- */

static double number(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    return at ? strtod(at + strlen(key), NULL) : 0;
}

struct steps {           /* what metrics.jsonl says of those after the warm-up */
    double *v;           /* [steps] in reference kernels; 0: does not count */
    double *reference_s; /* [used] of those that count */
    int64_t used, steady;
};

static void read_step(const struct dt_loop *l, const char *line, struct steps *s, int64_t n)
{
    double before = number(line, "\"reference_before_s\":"),
           after = number(line, "\"reference_after_s\":"),
           reference_s = l->card ? 1 : sqrt(before * after);
    bool steady = l->card || strstr(line, "\"reference_steady\":true");

    s->v[n] = 0;
    s->steady += steady;
    if (!(reference_s > 0) || (!steady && !l->anyway))
        return;
    s->v[n] = number(line, "\"step_s\":") / reference_s;
    s->reference_s[s->used++] = reference_s;
}

static enum dt_status read_steps(const struct dt_loop *l, const char *path, struct steps *s,
                                 struct dt_error *err)
{
    char *text = NULL;
    size_t len;
    int64_t line = 0, n = 0;
    enum dt_status st = dt_file_read(path, METRICS_MAX, err, &text, &len);

    for (char *p = text, *end; st == DT_OK && p && *p && n < l->steps; p = end) {
        end = strchr(p, '\n');
        if (end)
            *end++ = '\0';
        if (strstr(p, "\"step_s\":") && line++ >= l->warm_up)
            read_step(l, p, s, n++);
    }
    if (st == DT_OK && n < l->steps)
        st = dt_error_at(err, DT_ERR_IO, path, 0, 0, "training left %lld steps of %lld",
                         (long long)n, (long long)l->steps);
    dt_free(text);
    return st;
}

/* The median step at the median speed. */
static void take_steps(const struct dt_loop *l, struct dt_loop_layout *x, struct steps *s,
                       struct dt_drift *out)
{
    size_t k = 0;

    memcpy(x->step_s + l->round * l->steps, s->v, (size_t)l->steps * sizeof(*s->v));
    out->steady = (double)s->steady / (double)l->steps;
    out->reference_s = x->measured_s = 0;
    if (s->used == 0)
        return;
    for (int64_t i = 0; i < l->steps; i++)
        if (s->v[i] > 0)
            s->v[k++] = s->v[i];
    out->reference_s = dt_median(s->reference_s, (size_t)s->used);
    x->measured_s = dt_median(s->v, k) * out->reference_s;
    if (l->card)
        out->reference_s = 0;
}

static enum dt_status read_measured(const struct dt_loop *l, const char *path,
                                    struct dt_loop_layout *x, struct dt_error *err,
                                    struct dt_drift *out)
{
    double *v = dt_malloc(2 * (size_t)l->steps * sizeof(*v));
    struct steps s = {.v = v};
    enum dt_status st;

    if (!v)
        return dt_error_nomem(err, "steps");
    s.reference_s = v + l->steps;
    st = read_steps(l, path, &s, err);
    if (st == DT_OK)
        take_steps(l, x, &s, out);
    dt_free(v);
    return st;
}

enum dt_status dt_loop_open(const struct dt_loop *l, const struct dt_loop_layout *x,
                            const char *strategy, int gpus, int pass, struct dt_samples *samples,
                            int n, struct dt_error *err, struct dt_session *s)
{
    const char *over[DT_CLI_MAX_ARGS + LOOP_OVERRIDES_MAX];
    char profile[LOOP_PATH_MAX + 16], path[LOOP_PATH_MAX], cluster[128], steps[64], batch[64],
        how[64];
    int k = 0;

    dt_loop_profile_path(l, pass, x->threads, path, sizeof(path));
    snprintf(profile, sizeof(profile), "profile=%s", path);
    snprintf(cluster, sizeof(cluster),
             "cluster={preset: local, gpus_per_node: %d, cores_per_node: %d}", gpus,
             l->cores / x->threads);
    snprintf(steps, sizeof(steps), "simulate.iterations=%d", n);
    for (int i = 1; i < l->cli->n_args; i++)
        over[k++] = l->cli->args[i];
    snprintf(how, sizeof(how), "search.strategy=%s", strategy);
    over[k++] = how;
    over[k++] = "search.allow_analytical=true";
    over[k++] = cluster;
    if (x->over[0])
        over[k++] = x->over;
    if (x->also[0])
        over[k++] = x->also;
    over[k++] = profile;
    over[k++] = steps;
    snprintf(batch, sizeof(batch), "simulate.batch_s=%.9f", l->batch_s);
    over[k++] = batch;
    if (l->fp32) /* `auto` may have come to it */
        over[k++] = "run.precision=fp32";
    DT_TRY(dt_session_open(l->job, NULL, over, k, err, s));
    dt_samples_free(s->job->samples); /* those of training instead */
    s->job->samples = samples;
    dt_orch_timed_on(s->timed, s->cost, 1, samples, 2);
    return DT_OK;
}

void dt_loop_close(struct dt_session *s)
{
    s->job->samples = NULL;
    dt_session_close(s);
}

/* Simulates `n` iterations of the layout on these samples, which stay the caller's. */
static enum dt_status simulate(const struct dt_loop *l, const struct dt_loop_layout *x, int pass,
                               struct dt_samples *samples, int n, struct dt_error *err,
                               struct dt_session *s, struct dt_sim_result *r)
{
    int gpus = x->ranks > 4 ? x->ranks : 4;
    enum dt_status st;

    DT_TRY(dt_loop_open(l, x, "manual", gpus, pass, samples, n, err, s));
    st = dt_session_plan(s, err);
    if (st == DT_OK)
        st = dt_session_simulate(s, x->name, err, r);
    if (st != DT_OK)
        dt_loop_close(s);
    return st;
}

/* The run of the last measured step, which is the one that training keeps. */
static enum dt_status keep_last(const struct dt_loop *l, const struct dt_loop_layout *x,
                                struct dt_error *err)
{
    struct dt_sim_result r;
    struct dt_session s;
    char *report;
    enum dt_status st;

    DT_TRY(simulate(l, x, l->passes - 1, l->last, 1, err, &s, &r));
    st = dt_session_report_json(&s, &r, false, 0, err, &report);
    if (st == DT_OK) {
        st = dt_session_keep_run(&s, &r, report, l->runs, true, err);
        dt_free(report);
    }
    dt_sim_result_free(&r);
    dt_loop_close(&s);
    return st;
}

/* On the layout's ranks, with the last profile; each try has a name of its own: nothing of one that did not count is found. */
static void train_words(struct command *c, const struct dt_loop *l, const struct dt_loop_layout *x,
                        const char *name)
{
    char profile[LOOP_PATH_MAX];

    dt_loop_profile_path(l, l->passes - 1, x->threads, profile, sizeof(profile));
    word(c, "disttrain");
    word(c, "train");
    word(c, "--ranks");
    word(c, "%d", x->ranks);
    word(c, "--from-scratch");
    if (!l->card) {
        word(c, "--reference");
        word(c, "1");
    }
    job_words(c, l);
    word(c, "search.strategy=manual");
    word(c, "search.allow_analytical=true");
    word(c, "cluster={preset: local, gpus_per_node: %d}", x->ranks > 4 ? x->ranks : 4);
    word(c, "profile=%s", profile); /* what reordering goes by */
    word(c, "run.log_dir=%s/log-%s", l->dir, name);
    word(c, "run.log_interval=1");
    word(c, "run.checkpoint={dir: \"%s/saved-%s\", interval: 0}", l->dir, name);
}

enum dt_status dt_loop_measure(struct dt_loop *l, struct dt_loop_layout *x, struct dt_error *err,
                               struct dt_drift *out)
{
    struct command *c = dt_calloc(1, sizeof(*c));
    char path[LOOP_PATH_MAX], name[64];
    struct dt_error not_kept = {0};
    enum dt_status st;

    if (!c)
        return dt_error_nomem(err, "a command");
    /* right before the executed one, each time that it is tried */
    if (l->runs && keep_last(l, x, &not_kept) != DT_OK) {
        dt_cli_warn_not_kept(&not_kept);
        l->runs = NULL; /* said once */
    }
    snprintf(name, sizeof(name), "%d-%d-%d", (int)(x - l->layout), l->round, l->again);
    train_words(c, l, x, name);
    if (l->runs)
        word(c, "--runs=%s", l->runs);
    else
        word(c, "--no-runs");
    word(c, "%s", x->over);
    if (x->also[0])
        word(c, "%s", x->also);
    word(c, "run.steps=%d", (int)(l->warm_up + l->steps));
    st = run(l, c, x->name, NULL, err);
    command_free(c);
    snprintf(path, sizeof(path), "%s/log-%s/metrics.jsonl", l->dir, name);
    return st == DT_OK ? read_measured(l, path, x, err, out) : st;
}

enum dt_status dt_loop_measure_turns(struct dt_loop *l, struct dt_error *err, char **text)
{
    const struct dt_train_turns *t = &l->turns.how;
    struct command *c = dt_calloc(1, sizeof(*c));
    char path[LOOP_PATH_MAX], name[64];
    enum dt_status st;
    size_t len;

    if (!c)
        return dt_error_nomem(err, "a command");
    snprintf(name, sizeof(name), "turns-%d-%d", l->turns.trainings, l->again);
    train_words(c, l, &l->layout[0], name);
    word(c, "--orders=%lld,%lld,%lld", (long long)t->warm_up, (long long)t->batches,
         (long long)t->rounds);
    st = run(l, c, "disttrain train --orders", NULL, err);
    command_free(c);
    snprintf(path, sizeof(path), "%s/log-%s/metrics.jsonl", l->dir, name);
    return st == DT_OK ? dt_file_read(path, METRICS_MAX, err, text, &len) : st;
}

enum dt_status dt_loop_predict(struct dt_loop *l, const struct dt_loop_layout *x, int pass,
                               struct dt_error *err, double *out_s)
{
    bool mean = l->orders || l->strategies;
    struct dt_sim_result r;
    struct dt_session s;
    int n = 0;

    DT_TRY(simulate(l, x, pass, l->seen, (int)l->steps, err, &s, &r));
    for (int i = 0; i < r.iterations; i++)
        if (l->orders || (l->strategies ? l->kept[i] : x->step_s[i] > 0))
            r.iteration_s[n++] = r.iteration_s[i];
    *out_s = 0;
    for (int i = 0; i < n && mean; i++)
        *out_s += r.iteration_s[i] / n;
    if (!mean)
        *out_s = dt_median(r.iteration_s, (size_t)n);
    dt_sim_result_free(&r);
    dt_loop_close(&s);
    return DT_OK;
}
