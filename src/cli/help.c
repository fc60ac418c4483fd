/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Everything that is printed from the command table: usage, --help, bash completion. */
#include "cli/cli.h"

#include <string.h>

void dt_cli_print_usage(FILE *f)
{
    fprintf(f, "usage: disttrain COMMAND [OPTION...] ARGUMENT...\n\n"
               "Plans and simulates the training of multimodal language models on GPU clusters.\n\n"
               "commands:\n");
    for (const struct dt_cli_command *c = dt_cli_commands; c->name; c++)
        fprintf(f, "  %-12s %s\n", c->name, c->summary);
    fprintf(
        f, "\n'disttrain COMMAND --help' explains one; 'disttrain --version' prints the version.\n"
           "exit codes: 0 ok, 1 failed, 2 usage or bad input, 3 no plan fits, 4 out of tolerance,\n"
           "5 a rank failed, 6 not a finite number, 7 machine too busy\n");
}

static void print_option(FILE *f, const struct dt_cli_option *o)
{
    char left[64];
    snprintf(left, sizeof left, "%c%c%s --%s%s%s", o->letter ? '-' : ' ',
             o->letter ? o->letter : ' ', o->letter ? "," : " ", o->name, o->arg ? " " : "",
             o->arg ? o->arg : "");
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
    fprintf(f, "\nman disttrain-%s has the details.\n", cmd->name);
}

static void print_word(FILE *f, const struct dt_cli_option *o)
{
    fprintf(f, " --%s", o->name);
    if (o->letter)
        fprintf(f, " -%c", o->letter);
}

void dt_cli_print_completion(FILE *f)
{
    fprintf(
        f,
        "# bash completion for disttrain; made by 'disttrain completion' from the command table\n"
        "_disttrain() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} cmd=${COMP_WORDS[1]}\n"
        "    COMPREPLY=()\n"
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
        "        COMPREPLY=($(compgen -W \"");
    for (const struct dt_cli_command *c = dt_cli_commands; c->name; c++)
        fprintf(f, "%s ", c->name);
    fprintf(f, "--help --version\" -- \"$cur\"))\n"
               "        return\n"
               "    fi\n"
               "    case $cur in\n"
               "    -*) case $cmd in\n");
    for (const struct dt_cli_command *c = dt_cli_commands; c->name; c++) {
        fprintf(f, "        %s) COMPREPLY=($(compgen -W \"", c->name);
        for (const struct dt_cli_option *o = c->options; o && o->name; o++)
            print_word(f, o);
        for (const struct dt_cli_option *o = dt_cli_common_options; o->name; o++)
            if (dt_cli_has_common(c, o))
                print_word(f, o);
        fprintf(f, "\" -- \"$cur\")) ;;\n");
    }
    fprintf(f, "        esac ;;\n"
               "    *) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
               "    esac\n"
               "}\n"
               "complete -o filenames -F _disttrain disttrain\n");
}
