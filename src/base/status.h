/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Status codes and the one error type.
 *
 * A function that can fail returns enum dt_status and takes a `struct dt_error *err`
 * as its last-but-outputs argument.  On failure the error is filled exactly once, by the
 * code that first understands what went wrong; callers pass it up untouched.  Outputs are
 * written only on success.  `err` may be NULL.  Library code never prints and never exits.
 */
#ifndef DT_BASE_STATUS_H
#define DT_BASE_STATUS_H

/* name, process exit code, short text */
#define DT_STATUS_LIST(X)                                                                          \
    X(OK, 0, "ok")                                                                                 \
    X(ERR_NOMEM, 1, "out of memory")                                                               \
    X(ERR_IO, 1, "input/output error")                                                             \
    X(ERR_DB, 1, "database error")                                                                 \
    X(ERR_INTERNAL, 1, "internal error")                                                           \
    X(ERR_INPUT, 2, "bad input")                                                                   \
    X(ERR_RANGE, 2, "inputs give no sensible result")                                              \
    X(ERR_USAGE, 2, "usage error")                                                                 \
    X(ERR_MISSING_PROFILE, 2, "profile lacks rows")                                                \
    X(ERR_INFEASIBLE, 3, "no plan fits")                                                           \
    X(ERR_TOLERANCE, 4, "comparison out of tolerance")                                             \
    X(ERR_TIMEOUT, 5, "another rank did not answer in time")                                       \
    X(ERR_PEER, 5, "another rank failed")                                                          \
    X(ERR_DIVERGED, 6, "not a finite number")                                                      \
    X(ERR_BUSY, 7, "the machine is too busy to measure on")

enum dt_status {
#define X(name, code, text) DT_##name,
    DT_STATUS_LIST(X)
#undef X
};

struct dt_error {
    enum dt_status status;
    int line, col;      /* 1-based; 0 = not about a place in a file */
    char file[256];     /* "" = not about a file */
    char message[4096]; /* one message, no trailing newline; may hold several lines for lists */
};

/* Fill *err (if not NULL) and return `status`.  printf-like. */
enum dt_status dt_error_set(struct dt_error *err, enum dt_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Hand another error on as it is, with its place; returns its status. */
enum dt_status dt_error_pass(struct dt_error *err, const struct dt_error *why);
/* Fill it, about a place in a file (line/col 0 when unknown). */
enum dt_status dt_error_at(struct dt_error *err, enum dt_status status, const char *file, int line,
                           int col, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* Shorthand for DT_ERR_NOMEM; `what` names what was being allocated. */
enum dt_status dt_error_nomem(struct dt_error *err, const char *what);

int dt_status_exit_code(enum dt_status status);
const char *dt_status_text(enum dt_status status);

/* Writes "file:line:col: message" (less of the place where less is known) into buf; always terminated. */
void dt_error_format(const struct dt_error *err, char *buf, unsigned long size);

/* What a person should hear of although the work goes on, one line at a time; zero-initialised =
 * nobody listens. */
struct dt_warn {
    void (*say)(void *ctx, const char *line);
    void *ctx;
};
/* `w` may be NULL. */
void dt_warn(const struct dt_warn *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Propagate: `DT_TRY(call);` inside a function returning enum dt_status that needs no cleanup. */
#define DT_TRY(call)                                                                               \
    do {                                                                                           \
        enum dt_status dt_try_status_ = (call);                                                    \
        if (dt_try_status_ != DT_OK)                                                               \
            return dt_try_status_;                                                                 \
    } while (0)

#endif
