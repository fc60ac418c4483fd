/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What is printed from the command table: usage and --help. */
#include "cli/cli.h"

#include "core/job/job.h"

#include <string.h>

void dt_cli_print_usage(FILE *f)
{
    fprintf(f, "usage: disttrain COMMAND [OPTION...] ARGUMENT...\n"
               "\n"
               "Plans, simulates and executes the training of multimodal language models.\n"
               "\n"
               "commands:\n");
    for (int i = 0; dt_cli_commands[i]; i++)
        fprintf(f, "  %-12s %s\n", dt_cli_commands[i]->name, dt_cli_commands[i]->summary);
    fprintf(f,
            "\n'disttrain COMMAND --help' explains one; 'disttrain --version' prints the version.\n"
            "exit codes: 0 ok, 1 failed, 2 usage or bad input, 3 no plan fits,\n"
            "4 out of tolerance (compare, loop, profile import), 5 a rank failed,\n"
            "6 not a finite number, 7 machine too busy (loop)\n");
}

/* Of an option that stands for a key of the job. */
static void print_key_help(FILE *f, const char *left, const char *path)
{
    const struct dt_key *k = dt_keys_at(dt_job_keys, path);
    char text[512];

    fprintf(f, "  %-26s %s", left, k->help);
    if (k->words)
        fprintf(f, ": %s", dt_key_type_text(k, text, sizeof(text)));
    fprintf(f, " (overrides %s)\n", path);
}

static void print_option(FILE *f, const struct dt_cli_option *o)
{
    char left[64];
    snprintf(left, sizeof left, "%c%c%s --%s%s%s", o->letter ? '-' : ' ',
             o->letter ? o->letter : ' ', o->letter ? "," : " ", o->name, o->arg ? " " : "",
             o->arg ? o->arg : "");
    if (o->kind == DT_OPT_KEY)
        print_key_help(f, left, o->help);
    else
        fprintf(f, "  %-26s %s\n", left, o->help);
}

void dt_cli_print_help(FILE *f, const struct dt_cli_command *cmd)
{
    fprintf(f, "usage: disttrain %s [OPTION...] %s\n\n%s\n\noptions:\n", cmd->name, cmd->args,
            cmd->summary);
    for (const struct dt_cli_option *o = cmd->options; o && o->name; o++)
        print_option(f, o);
    for (const struct dt_cli_option *o = dt_cli_common_options; o->name; o++)
        if (dt_cli_has_common(cmd, o))
            print_option(f, o);
    fprintf(f, "\nman disttrain-%s has the details.%s\n", cmd->name,
            dt_cli_takes_job(cmd) ? "  'disttrain keys' lists the keys of a job." : "");
}
