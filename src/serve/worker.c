/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "serve/worker.h"

#include "base/json.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MORE_MEMORY_MAX = 256 << 20 };

/* Between two processes of one program: plain structs. */
struct question_head {
    int path, effort, side, n_keys;
    size_t len; /* of the keys, each with its NUL */
};
struct answer_head {
    int64_t http; /* no padding: the whole struct is written */
    size_t len;
};

static bool write_all(int fd, const void *data, size_t len)
{
    const char *p = data;

    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static bool read_all(int fd, void *data, size_t len)
{
    char *p = data;

    while (len > 0) {
        ssize_t n = read(fd, p, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

char *dt_serve_error_json(const struct dt_error *err)
{
    char place[sizeof(err->message) + sizeof(err->file) + 64], *text = NULL;
    struct dt_json j;

    dt_error_format(err, place, sizeof(place));
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "error", place);
    dt_json_kv_string(&j, "kind", dt_status_text(err->status));
    dt_json_end_object(&j);
    return dt_json_finish(&j, NULL, &text) == DT_OK ? text : NULL;
}

/* ---- in the worker ---- */

static int http_of(enum dt_status st)
{
    return st == DT_OK                                          ? 200
           : st == DT_ERR_USAGE                                 ? 403
           : st == DT_ERR_INFEASIBLE || st == DT_ERR_RANGE      ? 422
           : st == DT_ERR_INPUT || st == DT_ERR_MISSING_PROFILE ? 400
                                                                : 500;
}

static bool answer(const struct dt_serve_program *program, int fd, const struct question_head *h,
                   const char *keys, bool first)
{
    const char *key[DT_SERVE_KEYS_MAX];
    struct dt_serve_question q = {(enum dt_serve_path)h->path, (enum dt_serve_effort)h->effort,
                                  h->side, key, h->n_keys};
    struct dt_error err = {0};
    struct answer_head head;
    char *text = NULL;
    enum dt_status st;
    bool sent;

    for (int i = 0; i < h->n_keys; i++) {
        key[i] = keys;
        keys += strlen(keys) + 1;
    }
    st = program->answer(program->ctx, &q, &err, &text);
    if (st != DT_OK)
        text = dt_serve_error_json(&err);
    /* The next question may be a larger one, and a page's first touch costs as much as computing on it: before the
     * answer is sent, or that question would wait for it. */
    if (first)
        dt_mem_keep_more(MORE_MEMORY_MAX);
    head = (struct answer_head){http_of(st), text ? strlen(text) : 0};
    sent = write_all(fd, &head, sizeof(head)) && write_all(fd, text, head.len);
    dt_free(text);
    return sent;
}

/* The sockets of the server that the fork brought along: held here, no connection would ever end. */
static void close_others(int fd)
{
    enum { MOST = 1024 }; /* select() goes no further */

    for (int i = 3; i < MOST; i++)
        if (i != fd)
            close(i);
}

static void serve(const struct dt_serve_program *program, int fd)
{
    struct question_head h;
    bool going = true, first = true;

    signal(SIGINT, SIG_IGN); /* of the terminal; the server ends us */
    signal(SIGTERM, SIG_DFL);
    close_others(fd);
    while (going && read_all(fd, &h, sizeof(h))) {
        char *keys = dt_malloc(h.len + 1);

        going = keys && read_all(fd, keys, h.len) && answer(program, fd, &h, keys, first);
        dt_free(keys);
        first = false;
    }
}

/* ---- in the server ---- */

enum dt_status dt_serve_worker_start(struct dt_serve_worker *w,
                                     const struct dt_serve_program *program, struct dt_error *err)
{
    int pair[2];
    pid_t pid;

    *w = (struct dt_serve_worker){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        return dt_error_set(err, DT_ERR_IO, "a worker's socket: %s", strerror(errno));
    fflush(NULL); /* or both write what is still to be written */
    pid = fork();
    if (pid < 0) {
        close(pair[0]);
        close(pair[1]);
        return dt_error_set(err, DT_ERR_IO, "cannot start a worker: %s", strerror(errno));
    }
    if (pid == 0) {
        serve(program, pair[1]);
        _exit(0);
    }
    close(pair[1]);
    fcntl(pair[0], F_SETFD, FD_CLOEXEC);
    w->pid = pid;
    w->fd = pair[0];
    return DT_OK;
}

static void forget_answer(struct dt_serve_worker *w)
{
    dt_free(w->text);
    w->text = NULL;
    w->len = w->got = 0;
    w->headed = false;
}

void dt_serve_worker_stop(struct dt_serve_worker *w)
{
    if (w->pid > 0) {
        kill(w->pid, SIGKILL);
        while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        close(w->fd);
    }
    forget_answer(w);
    *w = (struct dt_serve_worker){.fd = -1};
}

enum dt_status dt_serve_worker_ask(struct dt_serve_worker *w, const struct dt_serve_question *q,
                                   struct dt_error *err)
{
    struct question_head h = {(int)q->path, (int)q->effort, q->side, q->n_keys, 0};
    bool sent;

    for (int i = 0; i < q->n_keys; i++)
        h.len += strlen(q->keys[i]) + 1;
    forget_answer(w);
    sent = write_all(w->fd, &h, sizeof(h));
    for (int i = 0; sent && i < q->n_keys; i++)
        sent = write_all(w->fd, q->keys[i], strlen(q->keys[i]) + 1);
    return sent ? DT_OK : dt_error_set(err, DT_ERR_IO, "the worker has ended");
}

static enum dt_status say_how_it_ended(struct dt_serve_worker *w, struct dt_error *err)
{
    int how = 0;

    while (waitpid(w->pid, &how, 0) < 0 && errno == EINTR)
        ;
    close(w->fd);
    forget_answer(w);
    *w = (struct dt_serve_worker){.fd = -1};
    if (WIFSIGNALED(how))
        return dt_error_set(err, DT_ERR_INTERNAL,
                            "the process that was working on this ended by signal %d (%s)",
                            WTERMSIG(how), strsignal(WTERMSIG(how)));
    return dt_error_set(err, DT_ERR_INTERNAL, "the process that was working on this ended");
}

/* Room for the answer whose head has come. */
static enum dt_status begin_answer(struct dt_serve_worker *w, struct dt_error *err)
{
    struct answer_head head;

    if (!read_all(w->fd, &head, sizeof(head)))
        return say_how_it_ended(w, err);
    w->text = dt_malloc(head.len + 1);
    if (!w->text)
        return dt_error_nomem(err, "an answer");
    w->text[head.len] = '\0';
    w->len = head.len;
    w->http = (int)head.http;
    w->headed = true;
    return DT_OK;
}

enum dt_status dt_serve_worker_read(struct dt_serve_worker *w, struct dt_error *err, bool *done)
{
    ssize_t n = 0;

    *done = false;
    if (!w->headed) {
        DT_TRY(begin_answer(w, err));
    } else if (w->got < w->len) {
        n = read(w->fd, w->text + w->got, w->len - w->got);
        if (n < 0 && errno == EINTR)
            return DT_OK;
        if (n <= 0)
            return say_how_it_ended(w, err);
        w->got += (size_t)n;
    }
    *done = w->got == w->len;
    return DT_OK;
}

char *dt_serve_worker_take(struct dt_serve_worker *w, size_t *len, int *http)
{
    char *text = w->text;

    *len = w->len;
    *http = w->http;
    w->text = NULL;
    forget_answer(w);
    return text;
}
