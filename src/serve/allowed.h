/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which overrides may come over HTTP: those that open no file.  A preset goes by its plain name, so that only shipped
 * ones are found; keys whose text names a file are refused wherever they stand in a value, whatever stands there. */
#ifndef DT_SERVE_ALLOWED_H
#define DT_SERVE_ALLOWED_H

#include "base/keys.h"

/* DT_OK; DT_ERR_INPUT: no such assignment, or no key of `keys`; DT_ERR_USAGE: it would open a file. */
enum dt_status dt_serve_allowed(const struct dt_key *keys, const char *override,
                                struct dt_error *err);

#endif
