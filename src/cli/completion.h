/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Completion scripts, made from the tables of commands, options and keys. */
#ifndef DT_CLI_COMPLETION_H
#define DT_CLI_COMPLETION_H

#include "cli/cli.h"
#include "core/job/job.h"

void dt_cli_completion_bash(void);
void dt_cli_completion_zsh(void);
void dt_cli_completion_fish(void);

/* The folder of presets that may be the value of a key ("models"); NULL: none. */
const char *dt_cli_completion_kind(const char *path, const struct dt_key *key);
/* Lines of a `case` of bash and zsh, that put what a key, or "COMMAND --OPTION", may be into the variable. */
void dt_cli_completion_cases(const char *variable);
/* The keys of jobs, a blank before each: those that take a value with "=", maps with ".". */
void dt_cli_completion_keys(void);

#endif
