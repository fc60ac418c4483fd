/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * `plan --explain` of a plan with guests: how much of the time in which GPUs are idle their work fills, and what keeps it from
 * filling more; a paragraph, or the member "bubbles" of the object that is open.  Nothing of other plans. */
#ifndef DT_CLI_PLAN_BUBBLES_H
#define DT_CLI_PLAN_BUBBLES_H

#include "cli/session.h"

enum dt_status dt_cli_plan_bubbles_print(const struct dt_session *s, struct dt_error *err);
enum dt_status dt_cli_plan_bubbles_json(const struct dt_session *s, struct dt_json *j,
                                        struct dt_error *err);

#endif
