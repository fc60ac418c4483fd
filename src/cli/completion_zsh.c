/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/completion.h"

/* In quotes of zsh and fish: 'it''s' is 'it'\''s', and a colon ends the name of a described word. */
static void quoted(const char *s)
{
    for (; *s; s++)
        if (*s == '\'')
            printf("'\\''");
        else
            putchar(*s);
}

static void option(const struct dt_cli_option *o)
{
    const struct dt_key *k = o->kind == DT_OPT_KEY ? dt_keys_at(dt_job_keys, o->help) : NULL;
    const char *help = k ? k->help : o->help;

    printf(" '--%s:", o->name);
    quoted(help);
    putchar('\'');
    if (o->letter) {
        printf(" '-%c:", o->letter);
        quoted(help);
        putchar('\'');
    }
}

static const char head[] =
    "#compdef disttrain\n"
    "# zsh completion for disttrain; made by 'disttrain completion zsh' from the command table\n"
    "_disttrain_values() { # KEY, or COMMAND --OPTION: what it may be, in $vals\n"
    "    vals=\n"
    "    case $1 in\n";
static const char body[] = "    esac\n"
                           "    [[ -n $vals ]]\n"
                           "}\n"
                           "_disttrain() {\n"
                           "    local cur=${words[CURRENT]} prev=${words[CURRENT-1]} "
                           "cmd=${words[2]} vals takes_job= actions=\n"
                           "    local keys='";
static const char after_keys[] = "'\n"
                                 "    local -a list\n"
                                 "    if (( CURRENT == 2 )); then\n"
                                 "        list=(";
static const char after_commands[] = ")\n"
                                     "        _describe command list\n"
                                     "        return\n"
                                     "    fi\n"
                                     "    case $cmd in\n";
static const char foot[] =
    "    esac\n"
    "    if [[ $prev == -* && $prev != *=* ]] && _disttrain_values \"$cmd $prev\"; then\n"
    "        compadd -- ${=vals}\n"
    "    elif [[ $cur == --*=* ]]; then\n"
    "        compset -P '*='\n"
    "        if _disttrain_values \"$cmd ${cur%%=*}\"; then compadd -- ${=vals}; else _files; fi\n"
    "    elif [[ $cur == -* ]]; then\n"
    "        _describe option list\n"
    "    elif [[ -n $takes_job && $cur == *=* ]]; then\n"
    "        compset -P '*='\n"
    "        if _disttrain_values \"${cur%%=*}\"; then compadd -- ${=vals}; else _files; fi\n"
    "    elif (( CURRENT == 3 )) && [[ -n $actions ]]; then\n"
    "        compadd -- ${=actions}\n"
    "    else\n"
    "        [[ -z $takes_job ]] || compadd -- ${(f)\"$(disttrain list jobs --names "
    "2>/dev/null)\"}\n"
    "        [[ -z $takes_job || -z $cur ]] || compadd -S '' -- ${=takes_job}\n"
    "        _files\n"
    "    fi\n"
    "}\n"
    "if [[ ${funcstack[1]} == _disttrain ]]; then _disttrain \"$@\"; else compdef _disttrain "
    "disttrain; fi\n";

static void command(const struct dt_cli_command *c)
{
    printf("    %s) actions='", c->name);
    for (int i = 0; c->actions && c->actions[i]; i++)
        printf("%s%s", i ? " " : "", c->actions[i]);
    printf("' list=(");
    for (const struct dt_cli_option *o = c->options; o && o->name; o++)
        option(o);
    for (const struct dt_cli_option *o = dt_cli_common_options; o->name; o++)
        if (dt_cli_has_common(c, o))
            option(o);
    printf(")%s ;;\n", dt_cli_takes_job(c) ? " takes_job=$keys" : "");
}

void dt_cli_completion_zsh(void)
{
    fputs(head, stdout);
    dt_cli_completion_cases("vals");
    fputs(body, stdout);
    dt_cli_completion_keys();
    fputs(after_keys, stdout);
    for (int i = 0; dt_cli_commands[i]; i++) {
        printf(" '%s:", dt_cli_commands[i]->name);
        quoted(dt_cli_commands[i]->summary);
        putchar('\'');
    }
    printf(" '--help:print the commands' '--version:print the version'%s", after_commands);
    for (int i = 0; dt_cli_commands[i]; i++)
        command(dt_cli_commands[i]);
    fputs(foot, stdout);
}
