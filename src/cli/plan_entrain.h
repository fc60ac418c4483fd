/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * `plan --explain` of strategy and assignment entrain: two paragraphs, or the members "sizing" and "assignment" of the
 * object that is open; nothing where neither is used. */
#ifndef DT_CLI_PLAN_ENTRAIN_H
#define DT_CLI_PLAN_ENTRAIN_H

#include "cli/session.h"

enum dt_status dt_cli_plan_entrain_print(const struct dt_session *s, struct dt_error *err);
enum dt_status dt_cli_plan_entrain_json(const struct dt_session *s, struct dt_json *j,
                                        struct dt_error *err);

#endif
