/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A process that answers questions one after the other.  It is a fork of this one, so that it begins with all that
 * has been read already; it can be stopped in the middle of an answer that nobody wants any more, and when it crashes
 * or runs out of memory one answer is lost and no more. */
#ifndef DT_SERVE_WORKER_H
#define DT_SERVE_WORKER_H

#include "serve/request.h"

#include <sys/types.h>

struct dt_serve_question {
    enum dt_serve_path path; /* one that asks */
    enum dt_serve_effort effort;
    int side; /* of the page, 0 or 1 */
    const char *const *keys;
    int n_keys;
};
/* The program that is served: called in a worker.  *text is the whole answer, which a failure replaces by its error. */
struct dt_serve_program {
    enum dt_status (*answer)(void *ctx, const struct dt_serve_question *q, struct dt_error *err,
                             char **text);
    void *ctx;
};

struct dt_serve_worker {
    pid_t pid; /* 0 = none */
    int fd;    /* of the questions and answers; -1 */
    /* the answer, as it comes in */
    char *text;
    size_t len, got;
    int http;    /* status of the answer */
    bool headed; /* len and http are known */
};

enum dt_status dt_serve_worker_start(struct dt_serve_worker *w,
                                     const struct dt_serve_program *program, struct dt_error *err);
/* Kills it, if there is one, and waits for its end. */
void dt_serve_worker_stop(struct dt_serve_worker *w);
/* It must not be answering another one. */
enum dt_status dt_serve_worker_ask(struct dt_serve_worker *w, const struct dt_serve_question *q,
                                   struct dt_error *err);
/* When fd can be read: *done says whether the answer is whole; text (the caller's then, by dt_serve_worker_take) and
 * http are it.  An error: the worker has died, says how, and must be started anew. */
enum dt_status dt_serve_worker_read(struct dt_serve_worker *w, struct dt_error *err, bool *done);
char *dt_serve_worker_take(struct dt_serve_worker *w, size_t *len, int *http);

/* The JSON object of an error, for answers; the caller's (dt_free), NULL without memory. */
char *dt_serve_error_json(const struct dt_error *err);

#endif
