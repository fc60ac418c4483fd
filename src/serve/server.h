/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The live page of a job on this machine: one process that talks HTTP (libmicrohttpd, one thread), and two workers that
 * plan and simulate.
 *
 *     browser --HTTP--> server --questions--> worker "quick"   answers for sliders
 *                              --questions--> worker "rest"    thorough answers, files
 *
 * Where the library is missing (configure), dt_serve_open() says so. */
#ifndef DT_SERVE_SERVER_H
#define DT_SERVE_SERVER_H

#include "base/keys.h"
#include "serve/worker.h"

struct dt_serve_options {
    const char *host;          /* to listen at: a name or an address; NULL = 127.0.0.1 */
    int port;                  /* 0 = any free one */
    int connections;           /* at most, at a time; 0 = 64 */
    double limit_s;            /* that an answer may take; 0 = 60 s */
    const struct dt_key *keys; /* what may be set */
    const char *keys_json;     /* what keys.json says; kept by the caller */
};
struct dt_serve;
/* Starts the workers, has the quick one answer the job's own question (for two seconds at most), and listens. */
enum dt_status dt_serve_open(const struct dt_serve_options *o,
                             const struct dt_serve_program *program, struct dt_error *err,
                             struct dt_serve **out);
/* "http://127.0.0.1:8642/TOKEN/" */
const char *dt_serve_url(const struct dt_serve *s);
/* Serves until `stop`, a file descriptor, can be read. */
enum dt_status dt_serve_run(struct dt_serve *s, int stop, struct dt_error *err);
void dt_serve_close(struct dt_serve *s);

#endif
