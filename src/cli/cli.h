/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The command line: one const table of commands and options from which the parser, --help, the bash
 * completion and error messages derive.  A new command is a row in commands.c, a file cmd_NAME.c and
 * its page. */
#ifndef DT_CLI_CLI_H
#define DT_CLI_CLI_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum dt_cli_option_kind {
    DT_OPT_FLAG,
    DT_OPT_STRING,
    DT_OPT_INT,
    DT_OPT_DOUBLE,
    DT_OPT_LIST,
    DT_OPT_KEY /* `help` is the job's key that it overrides: meaning, range and words are its row's */
};

struct dt_cli_option {
    const char *name;             /* long name without "--"; NULL ends a table */
    char letter;                  /* short name or 0 */
    enum dt_cli_option_kind kind; /* LIST = may be given several times */
    const char *arg;              /* placeholder of the argument, "FILE"; NULL for flags */
    const char *help;
};

enum { DT_CLI_MAX_OPTIONS = 32, DT_CLI_MAX_ARGS = 4096 };

struct dt_cli;
struct dt_cli_command {
    const char *name;
    const char *args;    /* "JOB [KEY=VALUE...]" */
    const char *summary; /* one line */
    const struct dt_cli_option *options;
    int min_args, max_args;
    enum dt_status (*run)(struct dt_cli *cli, struct dt_error *err);
    const char *const *actions; /* what the first argument may be, ended by NULL; NULL = anything */
    const char *no_json;        /* why --json makes no sense here; NULL = it does */
};

struct dt_cli { /* a parsed command line */
    const struct dt_cli_command *command;
    const char *values[DT_CLI_MAX_OPTIONS]; /* last value per option of the command, "" for a flag,
                                               NULL = absent */
    const char *list[DT_CLI_MAX_ARGS];      /* all values of LIST options, in order */
    int list_option[DT_CLI_MAX_ARGS];
    int n_list;
    const char *args[DT_CLI_MAX_ARGS];
    int n_args;
    bool json;
    char **argv; /* all of it, from the program's name to NULL, as it came */
};

/* The table, ended by NULL. */
extern const struct dt_cli_command *const dt_cli_commands[];
extern const struct dt_cli_option dt_cli_common_options[]; /* --help, --json */

/* argv[0] is the command's name.  --help sets *help. */
enum dt_status dt_cli_parse(int argc, char **argv, const struct dt_cli_command *cmd,
                            struct dt_cli *out, bool *help, struct dt_error *err);
const char *dt_cli_string(const struct dt_cli *c, const char *option, const char *fallback);
bool dt_cli_flag(const struct dt_cli *c, const char *option);
/* Numbers are checked against [min,max]; the fallback is returned when the option is absent. */
enum dt_status dt_cli_int(const struct dt_cli *c, const char *option, int64_t min, int64_t max,
                          int64_t fallback, int64_t *out, struct dt_error *err);
enum dt_status dt_cli_double(const struct dt_cli *c, const char *option, double min, double max,
                             double fallback, double *out, struct dt_error *err);
/* The job's overrides: KEY=VALUE arguments after the first, then options of kind KEY. */
struct dt_cli_overrides {
    const char *list[DT_CLI_MAX_ARGS + DT_CLI_MAX_OPTIONS];
    int n;
    char text[DT_CLI_MAX_OPTIONS][256]; /* of the options */
};
enum dt_status dt_cli_overrides(const struct dt_cli *c, struct dt_error *err,
                                struct dt_cli_overrides *out);
/* The number of the first argument among the command's actions. */
enum dt_status dt_cli_action(const struct dt_cli *c, struct dt_error *err, int *out);
/* Are there such arguments: "JOB [KEY=VALUE...]". */
bool dt_cli_takes_job(const struct dt_cli_command *cmd);
/* DT_ERR_USAGE if both --json and the output file `path` want stdout. */
enum dt_status dt_cli_one_stdout(const struct dt_cli *c, const char *path, struct dt_error *err);
/* Does this command take the common option o. */
bool dt_cli_has_common(const struct dt_cli_command *cmd, const struct dt_cli_option *o);
void dt_cli_print_help(FILE *f, const struct dt_cli_command *cmd);
void dt_cli_print_usage(FILE *f);

/* For commands that compute, before anything else: may start the program again (spin.c). */
void dt_cli_limit_spin(const struct dt_cli *cli);

/* Under a limit of the address space: a crash says so (limits.c).  Before anything else. */
void dt_cli_limits_watch(void);
/* DT_ERR_NOMEM if the limit is too low for the libraries of training, on ranks or alone. */
enum dt_status dt_cli_limits_check(bool ranks, struct dt_error *err);

#endif
