/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The command table: a row here, and a file cmd_NAME.c that fills dt_cmd_NAME. */
#include "cli/cli.h"

/* in the order of --help */
#define COMMANDS(X)                                                                                \
    X(plan)                                                                                        \
    X(simulate)                                                                                    \
    X(whatif)                                                                                      \
    X(train)                                                                                       \
    X(eval)                                                                                        \
    X(sample)                                                                                      \
    X(loop)                                                                                        \
    X(compare)                                                                                     \
    X(runs)                                                                                        \
    X(report)                                                                                      \
    X(serve)                                                                                       \
    X(preprocess)                                                                                  \
    X(trace)                                                                                       \
    X(reproduce)                                                                                   \
    X(data)                                                                                        \
    X(accuracy)                                                                                    \
    X(profile)                                                                                     \
    X(db)                                                                                          \
    X(devices)                                                                                     \
    X(list)                                                                                        \
    X(show)                                                                                        \
    X(keys)                                                                                        \
    X(completion)

#define DECLARE(name) extern const struct dt_cli_command dt_cmd_##name;
#define ROW(name) &dt_cmd_##name,
COMMANDS(DECLARE)
const struct dt_cli_command *const dt_cli_commands[] = {COMMANDS(ROW) NULL};
