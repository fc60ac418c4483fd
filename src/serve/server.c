/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A visit is a request on its way: read, admitted, put into a lane (its connection is suspended meanwhile), answered. */
#include "config.h"

#include "serve/server.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/allowed.h"
#include "serve/lanes.h"
#include "serve/listen.h"
#include "serve/page.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/select.h>
#include <unistd.h>

enum { CONNECTIONS = 64, CONNECTION_BYTES = 32 << 10, IDLE_S = 60, LAST_RUNS = 8 };
#define ANSWER_LIMIT_S 60.0
/* An answer that nobody wants any more is let end for so long, which costs less than a new worker's first answer. */
#define PATIENCE_NS 300000000u
enum { WARM_UP_MS = 2000 };

struct visit {
    struct dt_serve_wait wait; /* first: lanes hand it back */
    struct visit *before, *after;
    struct MHD_Connection *connection;
    char *target, *body;
    size_t len;
    bool begun, suspended, answered;
    enum dt_serve_path path;
    struct dt_serve_form form;
    int http; /* of the answer */
    char *text;
    size_t text_len;
};

struct dt_serve {
    struct dt_serve_program program;
    struct dt_serve_gate gate;
    struct dt_serve_options opt;
    char url[512];
    struct MHD_Daemon *daemon;
    struct dt_serve_worker worker[DT_SERVE_LANE_N];
    uint64_t since[DT_SERVE_LANE_N]; /* that the running one runs */
    struct dt_serve_lanes lanes;
    struct visit *visits;
    bool resumed;
};

/* ---- answers ---- */

/* Everything comes from here and nothing goes elsewhere. */
#define POLICY(script)                                                                             \
    "default-src 'none'; script-src " script "; style-src 'self' 'unsafe-inline'; img-src data:; " \
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "                                \
    "form-action 'none'"

static const struct {
    const char *type, *file;
} kinds[DT_SERVE_PATH_N] = {
    [DT_SERVE_PAGE] = {"text/html; charset=utf-8", NULL},
    [DT_SERVE_STYLE] = {"text/css; charset=utf-8", NULL},
    [DT_SERVE_SCRIPT] = {"text/javascript; charset=utf-8", NULL},
    [DT_SERVE_KEYS] = {"application/json", NULL},
    [DT_SERVE_ANSWER] = {"application/json", NULL},
    [DT_SERVE_RESULT] = {"application/json", "simulate.json"},
    [DT_SERVE_REPORT] = {"text/html; charset=utf-8", NULL},
    [DT_SERVE_PLAN] = {"application/json", "plan.json"},
};

static enum MHD_Result respond(struct MHD_Connection *c, int http, const char *type,
                               const char *file, const char *policy, struct MHD_Response *r)
{
    char named[128];
    enum MHD_Result done;

    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    MHD_add_response_header(r, "Content-Security-Policy", policy);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(r, "Cross-Origin-Resource-Policy", "same-origin");
    if (file && http == 200) {
        snprintf(named, sizeof(named), "attachment; filename=\"%s\"", file);
        MHD_add_response_header(r, "Content-Disposition", named);
    }
    done = MHD_queue_response(c, (unsigned)http, r);
    MHD_destroy_response(r);
    return done;
}

/* An error, in words that are freed with the response. */
static enum MHD_Result refuse(struct MHD_Connection *c, int http, const struct dt_error *err)
{
    char *text = dt_serve_error_json(err);
    struct MHD_Response *r =
        text ? MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_COPY) : NULL;

    dt_free(text);
    return respond(c, http, "application/json", NULL, POLICY("'none'"), r);
}

static enum MHD_Result send_constant(struct MHD_Connection *c, const struct dt_serve *s,
                                     enum dt_serve_path path)
{
    const struct {
        const void *bytes;
        size_t n;
    } what[] = {
        [DT_SERVE_PAGE] = {dt_serve_page_html, dt_serve_page_html_size},
        [DT_SERVE_STYLE] = {dt_serve_page_css, dt_serve_page_css_size},
        [DT_SERVE_SCRIPT] = {dt_serve_page_js, dt_serve_page_js_size},
        [DT_SERVE_KEYS] = {s->opt.keys_json, strlen(s->opt.keys_json)},
    };
    union {
        const void *in;
        void *out;
    } bytes = {what[path].bytes};

    return respond(
        c, 200, kinds[path].type, NULL, POLICY("'self'"),
        MHD_create_response_from_buffer(what[path].n, bytes.out, MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result send_answer(struct MHD_Connection *c, const struct visit *v)
{
    union {
        const void *in;
        void *out;
    } bytes = {v->text ? v->text : ""};
    struct MHD_Response *r =
        MHD_create_response_from_buffer(v->text_len, bytes.out, MHD_RESPMEM_MUST_COPY);

    if (v->http != 200) /* an error */
        return respond(c, v->http, "application/json", NULL, POLICY("'none'"), r);
    /* the report is one file with its script in it, and asks nobody for anything */
    return respond(c, v->http, kinds[v->path].type, kinds[v->path].file,
                   v->path == DT_SERVE_REPORT ? POLICY("'unsafe-inline'") : POLICY("'none'"), r);
}

/* The visit has its answer, and its connection goes on. */
static void finish(struct dt_serve *s, struct visit *v, int http, char *text, size_t len)
{
    v->http = http;
    v->text = text;
    v->text_len = len;
    v->answered = true;
    dt_serve_lanes_remove(&s->lanes, &v->wait);
    if (v->suspended) {
        v->suspended = false;
        s->resumed = true;
        MHD_resume_connection(v->connection);
    }
}

static void fail(struct dt_serve *s, struct visit *v, int http, const struct dt_error *err)
{
    char *text = dt_serve_error_json(err);

    finish(s, v, http, text, text ? strlen(text) : 0);
}

/* ---- questions ---- */

static void fail_outdated(struct dt_serve *s, struct dt_serve_wait *list)
{
    struct dt_error err;

    dt_error_set(&err, DT_ERR_USAGE, "outdated: the page has asked something else since");
    while (list) {
        struct dt_serve_wait *next = list->next;

        fail(s, (struct visit *)list, 409, &err);
        list = next;
    }
}

/* The workers' answers that v makes useless and that would take long. */
static void stop_outdated(struct dt_serve *s, const struct visit *v)
{
    for (int i = 0; i < DT_SERVE_LANE_N; i++)
        if (dt_serve_lanes_outdated(&s->lanes, (enum dt_serve_lane)i, &v->wait) &&
            (i != DT_SERVE_LANE_QUICK || dt_clock_ns() - s->since[i] > PATIENCE_NS)) {
            struct dt_serve_wait *old = s->lanes.running[i];

            dt_serve_worker_stop(&s->worker[i]);
            old->next = NULL;
            fail_outdated(s, old);
        }
}

/* Whether its form may be answered: 0, or the HTTP status that refuses it. */
static int examine(const struct dt_serve *s, struct visit *v, struct dt_error *err)
{
    const char *text = v->path == DT_SERVE_ANSWER ? v->body : dt_serve_query(v->target);
    size_t len = v->path == DT_SERVE_ANSWER ? v->len : strlen(text);

    if (dt_serve_form_read(text ? text : "", len, err, &v->form) != DT_OK)
        return 400;
    for (int i = 0; i < v->form.n_keys; i++) {
        enum dt_status st = dt_serve_allowed(s->opt.keys, v->form.key[i], err);

        if (st != DT_OK)
            return st == DT_ERR_USAGE ? 403 : 400;
    }
    if (s->lanes.n < DT_SERVE_WAITING_MAX)
        return 0;
    dt_error_set(err, DT_ERR_BUSY, "%d questions wait already", s->lanes.n);
    return 503;
}

static enum MHD_Result enqueue(struct dt_serve *s, struct visit *v)
{
    struct dt_error err = {0};
    int http = examine(s, v, &err);

    if (http != 0)
        return refuse(v->connection, http, &err);
    v->wait.lane = v->path == DT_SERVE_ANSWER && v->form.effort == DT_SERVE_QUICK
                       ? DT_SERVE_LANE_QUICK
                       : DT_SERVE_LANE_REST;
    v->wait.client = v->form.client;
    v->wait.side = v->form.side;
    v->wait.turn = v->form.turn;
    v->suspended = true;
    MHD_suspend_connection(v->connection);
    fail_outdated(s, dt_serve_lanes_push(&s->lanes, &v->wait));
    stop_outdated(s, v);
    return MHD_YES;
}

/* Gives idle workers their next question; starts those that are missing. */
static void ask_workers(struct dt_serve *s)
{
    for (int i = 0; i < DT_SERVE_LANE_N; i++) {
        struct dt_serve_wait *w = dt_serve_lanes_next(&s->lanes, (enum dt_serve_lane)i);
        struct visit *v = (struct visit *)w;
        struct dt_error err = {0};
        enum dt_status st = DT_OK;

        if (!w)
            continue;
        if (s->worker[i].pid == 0)
            st = dt_serve_worker_start(&s->worker[i], &s->program, &err);
        if (st == DT_OK) {
            struct dt_serve_question q = {v->path, v->form.effort, v->form.side, v->form.key,
                                          v->form.n_keys};

            st = dt_serve_worker_ask(&s->worker[i], &q, &err);
        }
        s->since[i] = dt_clock_ns();
        if (st != DT_OK) {
            dt_serve_worker_stop(&s->worker[i]);
            fail(s, v, 500, &err);
        }
    }
}

static void hear_worker(struct dt_serve *s, int i)
{
    struct visit *v = (struct visit *)s->lanes.running[i];
    struct dt_error err = {0};
    bool done = false;

    if (dt_serve_worker_read(&s->worker[i], &err, &done) != DT_OK) {
        dt_serve_worker_stop(&s->worker[i]);
        if (v)
            fail(s, v, 500, &err);
    } else if (done && v) {
        size_t len;
        int http;
        char *text = dt_serve_worker_take(&s->worker[i], &len, &http);

        finish(s, v, http, text, len);
    }
}

static void stop_late(struct dt_serve *s)
{
    struct dt_error err;

    for (int i = 0; i < DT_SERVE_LANE_N; i++)
        if (s->lanes.running[i] && (double)(dt_clock_ns() - s->since[i]) * 1e-9 > s->opt.limit_s) {
            dt_error_set(&err, DT_ERR_TIMEOUT,
                         "no answer within %g s; 'disttrain simulate' has no such limit",
                         s->opt.limit_s);
            dt_serve_worker_stop(&s->worker[i]);
            fail(s, (struct visit *)s->lanes.running[i], 504, &err);
        }
}

/* ---- what libmicrohttpd calls ---- */

static void *on_target(void *ctx, const char *target, struct MHD_Connection *c)
{
    struct dt_serve *s = ctx;
    struct visit *v = dt_calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    v->connection = c;
    v->target = dt_strdup(target);
    v->after = s->visits;
    if (s->visits)
        s->visits->before = v;
    s->visits = v;
    return v;
}

static void on_end(void *ctx, struct MHD_Connection *c, void **state,
                   enum MHD_RequestTerminationCode why)
{
    struct dt_serve *s = ctx;
    struct visit *v = *state;

    (void)c;
    (void)why;
    if (!v)
        return;
    dt_serve_lanes_remove(&s->lanes, &v->wait);
    if (v->before)
        v->before->after = v->after;
    else
        s->visits = v->after;
    if (v->after)
        v->after->before = v->before;
    dt_serve_form_free(&v->form);
    dt_free(v->target);
    dt_free(v->body);
    dt_free(v->text);
    dt_free(v);
    *state = NULL;
}

static const char *header(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

static enum MHD_Result too_large(struct MHD_Connection *c)
{
    struct dt_error err;

    dt_error_set(&err, DT_ERR_INPUT, "a form has at most %d bytes", DT_SERVE_FORM_MAX);
    return refuse(c, 413, &err);
}

/* The head is here, the body is not. */
static enum MHD_Result begin(struct dt_serve *s, struct visit *v, const char *method)
{
    struct MHD_Connection *c = v->connection;
    struct dt_serve_head head = {method, v->target, header(c, "Host"), header(c, "Origin"),
                                 header(c, "Sec-Fetch-Site")};
    const char *length = header(c, "Content-Length");
    struct dt_error err = {0};
    int http = dt_serve_admit(&s->gate, &head, &err, &v->path);

    v->begun = true;
    if (http != 0)
        return refuse(c, http, &err);
    if (length && strtoull(length, NULL, 10) > DT_SERVE_FORM_MAX)
        return too_large(c);
    return MHD_YES;
}

static enum MHD_Result add_body(struct visit *v, const char *data, size_t n)
{
    if (n > DT_SERVE_FORM_MAX - v->len)
        return MHD_NO; /* it said that it would be less: the connection ends */
    if (!v->body)
        v->body = dt_malloc(DT_SERVE_FORM_MAX);
    if (!v->body)
        return MHD_NO;
    memcpy(v->body + v->len, data, n);
    v->len += n;
    return MHD_YES;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n, void **state)
{
    struct dt_serve *s = ctx;
    struct visit *v = *state;

    (void)url;
    (void)version;
    if (!v || !v->target)
        return MHD_NO;
    if (!v->begun)
        return begin(s, v, method);
    if (*n > 0) {
        enum MHD_Result taken = add_body(v, data, *n);

        *n = 0;
        return taken;
    }
    if (v->answered)
        return send_answer(c, v);
    return dt_serve_path_asks(v->path) ? enqueue(s, v) : send_constant(c, s, v->path);
}

static void on_log(void *ctx, const char *fmt, va_list ap)
{
    (void)ctx; /* of broken requests; nobody can act on it */
    (void)fmt;
    (void)ap;
}

/* ---- the whole ---- */

static enum dt_status listen_at(struct dt_serve *s, struct dt_error *err)
{
    int fd = -1;
    char at[256];

    DT_TRY(dt_serve_listen(s->opt.host, s->opt.port, err, at, sizeof(at), &fd));
    s->daemon = MHD_start_daemon(MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
                                 on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
                                 MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                                 (unsigned)s->opt.connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
                                 (unsigned)IDLE_S, MHD_OPTION_URI_LOG_CALLBACK, on_target, s,
                                 MHD_OPTION_NOTIFY_COMPLETED, on_end, s, MHD_OPTION_END);
    if (!s->daemon) {
        close(fd);
        return dt_error_set(err, DT_ERR_IO, "libmicrohttpd does not serve at %s", at);
    }
    snprintf(s->url, sizeof(s->url), "http://%s/%s/", at, s->gate.token);
    return DT_OK;
}

/* A worker's first answer makes the tables of costs and touches the memory that later ones find ready, which takes as long
 * as the answer itself: the job's own is asked for before anybody can.  What it says is for nobody; where it takes long,
 * visitors need not wait for it, and the worker starts anew when one asks. */
static void warm_up(struct dt_serve *s)
{
    const struct dt_serve_question q = {.path = DT_SERVE_ANSWER, .effort = DT_SERVE_QUICK};
    struct dt_serve_worker *w = &s->worker[DT_SERVE_LANE_QUICK];
    uint64_t begun = dt_clock_ns();
    struct dt_error err;
    enum dt_status st = dt_serve_worker_ask(w, &q, &err);
    int http, left = WARM_UP_MS;
    bool done = false;
    size_t len;

    while (st == DT_OK && !done && left > 0) {
        struct pollfd answer = {.fd = w->fd, .events = POLLIN};

        if (poll(&answer, 1, left) > 0)
            st = dt_serve_worker_read(w, &err, &done);
        left = WARM_UP_MS - (int)((dt_clock_ns() - begun) / 1000000);
    }
    if (done)
        dt_free(dt_serve_worker_take(w, &len, &http));
    else
        dt_serve_worker_stop(w);
}

enum dt_status dt_serve_open(const struct dt_serve_options *o,
                             const struct dt_serve_program *program, struct dt_error *err,
                             struct dt_serve **out)
{
    struct dt_serve *s = dt_calloc(1, sizeof(*s));
    enum dt_status st;

    if (!s)
        return dt_error_nomem(err, "the server");
    s->program = *program;
    s->opt = *o;
    s->gate.host = o->host;
    if (s->opt.connections == 0)
        s->opt.connections = CONNECTIONS;
    if (s->opt.limit_s == 0)
        s->opt.limit_s = ANSWER_LIMIT_S;
    st = dt_serve_token(err, s->gate.token);
    /* before the daemon: they hold no socket of it, and are ready for the first question */
    for (int i = 0; st == DT_OK && i < DT_SERVE_LANE_N; i++)
        st = dt_serve_worker_start(&s->worker[i], &s->program, err);
    if (st == DT_OK) {
        warm_up(s);
        st = listen_at(s, err);
    }
    if (st == DT_OK)
        *out = s;
    else
        dt_serve_close(s);
    return st;
}

const char *dt_serve_url(const struct dt_serve *s)
{
    return s->url;
}

/* How long select() may wait: until the daemon or an answer's limit wants something. */
static struct timeval patience(const struct dt_serve *s)
{
    MHD_UNSIGNED_LONG_LONG ms = 60000, wants;

    if (MHD_get_timeout(s->daemon, &wants) == MHD_YES && wants < ms)
        ms = wants;
    if ((s->lanes.running[0] || s->lanes.running[1]) && ms > 200)
        ms = 200;
    return (struct timeval){(time_t)(ms / 1000), (suseconds_t)(ms % 1000 * 1000)};
}

enum dt_status dt_serve_run(struct dt_serve *s, int stop, struct dt_error *err)
{
    for (;;) {
        fd_set r, w, e;
        MHD_socket top = stop;
        struct timeval wait;

        FD_ZERO(&r);
        FD_ZERO(&w);
        FD_ZERO(&e);
        FD_SET(stop, &r);
        for (int i = 0; i < DT_SERVE_LANE_N; i++)
            if (s->worker[i].fd >= 0) {
                FD_SET(s->worker[i].fd, &r);
                top = s->worker[i].fd > top ? s->worker[i].fd : top;
            }
        if (MHD_get_fdset(s->daemon, &r, &w, &e, &top) != MHD_YES)
            return dt_error_set(err, DT_ERR_IO, "too many files are open for the server");
        wait = patience(s);
        if (select(top + 1, &r, &w, &e, &wait) < 0) {
            if (errno == EINTR)
                continue;
            return dt_error_set(err, DT_ERR_IO, "select: %s", strerror(errno));
        }
        if (FD_ISSET(stop, &r))
            return DT_OK;
        for (int i = 0; i < DT_SERVE_LANE_N; i++)
            if (s->worker[i].fd >= 0 && FD_ISSET(s->worker[i].fd, &r))
                hear_worker(s, i);
        MHD_run_from_select(s->daemon, &r, &w, &e);
        stop_late(s);
        ask_workers(s);
        while (s->resumed) { /* by select(), it would find out only later */
            s->resumed = false;
            MHD_run(s->daemon);
            ask_workers(s);
        }
    }
}

void dt_serve_close(struct dt_serve *s)
{
    struct dt_error err;

    if (!s)
        return;
    if (s->daemon) {
        dt_error_set(&err, DT_ERR_IO, "the server ends");
        for (struct visit *v = s->visits; v; v = v->after)
            if (v->suspended)
                fail(s, v, 503, &err);
        for (int i = 0; s->resumed && i < LAST_RUNS; i++)
            MHD_run(s->daemon);
        MHD_stop_daemon(s->daemon);
    }
    for (int i = 0; i < DT_SERVE_LANE_N; i++)
        if (s->worker[i].pid > 0)
            dt_serve_worker_stop(&s->worker[i]);
    dt_free(s);
}
