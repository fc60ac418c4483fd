/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a request asks for, and whether it may: the only reader of what comes from outside (fuzzed).
 *
 *     GET /TOKEN/                          the page, and page.css, page.js, keys.json beside it
 *     GET /TOKEN/plan.json?set=KEY%3DVALUE&...     and simulate.json, report.html
 *     POST /TOKEN/answer  set=KEY%3DVALUE&effort=quick&client=f00&side=a&turn=7
 *
 * A form's text (application/x-www-form-urlencoded) is that of the query or of the body. */
#ifndef DT_SERVE_REQUEST_H
#define DT_SERVE_REQUEST_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DT_SERVE_FORM_MAX = 64 << 10, /* bytes of a form */
    DT_SERVE_KEYS_MAX = 128,      /* overrides of a form */
    DT_SERVE_TOKEN_SIZE = 33,     /* 128 bits, hexadecimal, and the NUL */
};

enum dt_serve_path {
    DT_SERVE_PAGE,
    DT_SERVE_STYLE,
    DT_SERVE_SCRIPT,
    DT_SERVE_KEYS,   /* what the page can set, and how it stands in the job */
    DT_SERVE_ANSWER, /* POST: the answer to a setting, for the page */
    DT_SERVE_RESULT, /* `simulate --json` of a setting */
    DT_SERVE_REPORT, /* a page about the answer, of its own */
    DT_SERVE_PLAN,   /* plan.json of a setting */
    DT_SERVE_PATH_N
};
/* Is an answer to a setting: it has a form. */
bool dt_serve_path_asks(enum dt_serve_path path);

/* Who is served, and by what name. */
struct dt_serve_gate {
    char token[DT_SERVE_TOKEN_SIZE];
    const char *host; /* served by this name or address, too; NULL = loopback only */
};
/* A token of 128 random bits. */
enum dt_status dt_serve_token(struct dt_error *err, char token[DT_SERVE_TOKEN_SIZE]);

/* A request's head; what is absent is NULL. */
struct dt_serve_head {
    const char *method, *target; /* the target with its query, as it came */
    const char *host, *origin;
    const char *site; /* Sec-Fetch-Site */
};
/* 0 and *path, or the HTTP status (403, 404, 405) that refuses it, with the reason.  The token is compared in a time
 * that does not depend on how much of it is right; without it nothing is told of what there is. */
int dt_serve_admit(const struct dt_serve_gate *gate, const struct dt_serve_head *head,
                   struct dt_error *err, enum dt_serve_path *path);
/* The form in a target, "" if there is none. */
const char *dt_serve_query(const char *target);

enum dt_serve_effort { DT_SERVE_QUICK, DT_SERVE_NORMAL };
struct dt_serve_form {
    char *text;                         /* what the others lie in */
    const char *key[DT_SERVE_KEYS_MAX]; /* "KEY=VALUE" */
    int n_keys;
    enum dt_serve_effort effort; /* normal unless stated */
    uint64_t client;             /* the page that asks; 0 = none */
    int side;                    /* 0 (a) or 1 (b): its column */
    int64_t turn;                /* grows with every question of a column */
};
/* DT_ERR_INPUT with a message for people.  To be freed. */
enum dt_status dt_serve_form_read(const char *text, size_t len, struct dt_error *err,
                                  struct dt_serve_form *out);
void dt_serve_form_free(struct dt_serve_form *f);

#endif
