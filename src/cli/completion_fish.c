/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/completion.h"

#include <ctype.h>

/* In single quotes of fish only these two are special. */
static void quoted(const char *s)
{
    putchar('\'');
    for (; *s; s++)
        printf(*s == '\'' || *s == '\\' ? "\\%c" : "%c", *s);
    putchar('\'');
}

/* What a key may be, as cases of a switch; a name in capitals is any. */
static void value(void *ctx, const char *path, const struct dt_key *key, const void *defaults)
{
    const char *kind = dt_cli_completion_kind(path, key);

    (void)ctx;
    (void)defaults;
    if (!kind && !key->words && key->type != DT_KEY_BOOL)
        return;
    printf("        case '");
    for (bool any = false; *path; path++) {
        if (!isupper((unsigned char)*path))
            putchar(*path);
        else if (!any)
            putchar('*');
        any = isupper((unsigned char)*path);
    }
    printf("'\n            ");
    if (kind)
        printf("disttrain list %s --names 2>/dev/null\n", kind);
    if (kind && !key->words)
        return;
    printf("%sprintf '%%s\\n'", kind ? "            " : "");
    for (int i = 0; key->words && key->words[i]; i++)
        printf(" %s", key->words[i]);
    printf("%s\n", key->words ? "" : " true false");
}

static void key_name(void *ctx, const char *path, const struct dt_key *key, const void *defaults)
{
    (void)ctx;
    (void)defaults;
    if (!dt_keys_open(path) && (!key->keys || key->type == DT_KEY_OWN))
        printf(" %s=", path);
}

static void option(const struct dt_cli_command *c, const struct dt_cli_option *o)
{
    const struct dt_key *k = o->kind == DT_OPT_KEY ? dt_keys_at(dt_job_keys, o->help) : NULL;

    printf("complete -c disttrain -n '__fish_seen_subcommand_from %s' -l %s", c->name, o->name);
    if (o->letter)
        printf(" -s %c", o->letter);
    if (o->kind != DT_OPT_FLAG)
        printf(" -r");
    if (k && k->words) {
        printf(" -f -a '");
        for (int i = 0; k->words[i]; i++)
            printf("%s%s", i ? " " : "", k->words[i]);
        putchar('\'');
    }
    printf(" -d ");
    quoted(k ? k->help : o->help);
    putchar('\n');
}

static void command(const struct dt_cli_command *c)
{
    printf("complete -c disttrain -f -n __fish_use_subcommand -a %s -d ", c->name);
    quoted(c->summary);
    putchar('\n');
    for (const struct dt_cli_option *o = c->options; o && o->name; o++)
        option(c, o);
    for (const struct dt_cli_option *o = dt_cli_common_options; o->name; o++)
        if (dt_cli_has_common(c, o))
            option(c, o);
    for (int i = 0; c->actions && c->actions[i]; i++)
        printf("complete -c disttrain -f -n '__disttrain_first %s' -a %s\n", c->name,
               c->actions[i]);
    if (dt_cli_takes_job(c))
        printf("complete -c disttrain -n '__fish_seen_subcommand_from %s' -a '(__disttrain_job)'\n",
               c->name);
}

static const char head[] =
    "# fish completion for disttrain; made by 'disttrain completion fish' from the command table\n"
    "function __disttrain_first # COMMAND: is its first argument being typed\n"
    "    set -l words (commandline -opc)\n"
    "    test (count $words) -eq 2; and test \"$words[2]\" = \"$argv[1]\"\n"
    "end\n"
    "function __disttrain_values # KEY: what it may be\n"
    "    switch $argv[1]\n";
static const char body[] =
    "    end\n"
    "end\n"
    "function __disttrain_job # jobs, keys, and values of the key that is typed\n"
    "    set -l cur (commandline -ct)\n"
    "    if string match -q -- '*=*' $cur\n"
    "        set -l key (string split -m 1 = -- $cur)[1]\n"
    "        for value in (__disttrain_values $key)\n"
    "            echo $key=$value\n"
    "        end\n"
    "        return\n"
    "    end\n"
    "    disttrain list jobs --names 2>/dev/null\n"
    "    test -n \"$cur\"; and printf '%s\\n'";

void dt_cli_completion_fish(void)
{
    fputs(head, stdout);
    dt_keys_walk(dt_job_keys, NULL, value, NULL);
    fputs(body, stdout);
    dt_keys_walk(dt_job_keys, NULL, key_name, NULL);
    printf("\nend\n");
    for (int i = 0; dt_cli_commands[i]; i++)
        command(dt_cli_commands[i]);
}
