/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain serve: the live page of a job on this machine. */
#include "cli/serve.h"

#include "base/file.h"
#include "base/mem.h"
#include "serve/server.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 8642 };

static const struct dt_cli_option options[] = {
    {"port", 0, DT_OPT_INT, "N", "the port to listen at (default 8642; 0 = any free one)"},
    {"listen", 0, DT_OPT_STRING, "ADDRESS",
     "listen there instead of at 127.0.0.1: whoever knows the printed address may ask"},
    {"plan", 'p', DT_OPT_STRING, "FILE", "simulate this plan.json instead of searching"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static int stop_pipe[2] = {-1, -1};

static void on_signal(int sig)
{
    int saved = errno;
    char byte = (char)sig;

    if (write(stop_pipe[1], &byte, 1) < 0) { /* full: it is known already */
    }
    errno = saved;
}

static enum dt_status watch_signals(struct dt_error *err)
{
    struct sigaction stop = {.sa_handler = on_signal}, ignore = {.sa_handler = SIG_IGN};

    if (pipe(stop_pipe) != 0)
        return dt_error_set(err, DT_ERR_IO, "a pipe: %s", strerror(errno));
    sigemptyset(&stop.sa_mask);
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGHUP, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL); /* a visitor who goes away is no reason to end */
    return DT_OK;
}

static void greet(const struct dt_cli_served *d, const char *url, bool open)
{
    printf("%s\n", url);
    fflush(stdout);
    fprintf(stderr,
            "The page of %s is served at that address%s; Ctrl-C ends it.\nThe address holds a "
            "random token; without it nothing is answered.\n",
            d->job, open ? "" : ", on this machine only");
}

static enum dt_status serve(struct dt_cli *cli, struct dt_cli_served *d, const char *keys,
                            struct dt_error *err)
{
    struct dt_serve_program program = {dt_cli_serve_answer, d};
    struct dt_serve_options o = {
        .host = dt_cli_string(cli, "listen", NULL), .keys = dt_job_keys, .keys_json = keys};
    struct dt_serve *s;
    enum dt_status st;
    int64_t port;

    DT_TRY(dt_cli_int(cli, "port", 0, 65535, PORT, &port, err));
    o.port = (int)port;
    /* read once, here: the workers begin with it */
    DT_TRY(dt_points_check(d->points, d->overrides, d->n_overrides, NULL, NULL, err));
    DT_TRY(watch_signals(err));
    DT_TRY(dt_serve_open(&o, &program, err, &s));
    greet(d, dt_serve_url(s), o.host != NULL);
    st = dt_serve_run(s, stop_pipe[0], err);
    dt_serve_close(s);
    return st;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_cli_overrides o;
    char *keys = NULL;
    enum dt_status st;

    if (dt_file_is_stream(cli->args[0]))
        return dt_error_set(err, DT_ERR_USAGE,
                            "serve reads the job more than once: name a file or a shipped job");
    DT_TRY(dt_cli_overrides(cli, err, &o));
    struct dt_cli_served d = {cli->args[0], dt_cli_string(cli, "plan", NULL), o.list, o.n, NULL};
    DT_TRY(dt_cli_serve_keys(&d, err, &keys));
    st = dt_points_open(d.job, d.plan_file, err, &d.points);
    if (st == DT_OK)
        st = serve(cli, &d, keys, err);
    dt_points_close(d.points);
    dt_free(keys);
    return st;
}

const struct dt_cli_command dt_cmd_serve = {
    .name = "serve",
    .args = "JOB [KEY=VALUE...]",
    .summary = "a live page of a job on localhost: settings, answers, A against B",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
    .no_json = "its page asks for JSON itself",
};
