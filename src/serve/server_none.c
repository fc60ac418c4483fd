/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * In place of server.c where configure found no libmicrohttpd. */
#include "serve/server.h"

enum dt_status dt_serve_open(const struct dt_serve_options *o,
                             const struct dt_serve_program *program, struct dt_error *err,
                             struct dt_serve **out)
{
    (void)o;
    (void)program;
    (void)out;
    return dt_error_set(err, DT_ERR_USAGE,
                        "this disttrain was built without libmicrohttpd, so it serves no page; "
                        "install libmicrohttpd-dev, configure --with-serve and make");
}

const char *dt_serve_url(const struct dt_serve *s)
{
    (void)s;
    return "";
}

enum dt_status dt_serve_run(struct dt_serve *s, int stop, struct dt_error *err)
{
    (void)s;
    (void)stop;
    (void)err;
    return DT_OK;
}

void dt_serve_close(struct dt_serve *s)
{
    (void)s;
}
