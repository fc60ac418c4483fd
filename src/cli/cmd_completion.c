/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain completion: what shells complete, made from the tables of commands, options and keys; and bash's script. */
#include "cli/completion.h"

#include <ctype.h>
#include <string.h>

static void print_option(const struct dt_cli_option *o)
{
    printf(" --%s", o->name);
    if (o->letter)
        printf(" -%c", o->letter);
}

static void print_words(const char *const *words)
{
    for (int i = 0; words[i]; i++)
        printf("%s%s", i ? " " : "", words[i]);
}

/* A key that has keys of its own leads on to them; the others take a value.  Those behind a name that the job chooses
 * are not offered. */
static void print_key(void *ctx, const char *path, const struct dt_key *key, const void *defaults)
{
    (void)ctx;
    (void)defaults;
    if (dt_keys_open(path))
        return;
    printf(" %s%s", path, key->keys ? "." : "=");
    if (key->keys && key->type == DT_KEY_OWN) /* it may also be stated whole */
        printf(" %s=", path);
}

const char *dt_cli_completion_kind(const char *path, const struct dt_key *key)
{
    const char *last = strrchr(path, '.');
    bool preset = last && strcmp(last, ".preset") == 0;
    size_t n = strcspn(path, ".");

    (void)key;
    if (path[n] && !preset)
        return NULL;
    return strncmp(path, "model", n) == 0     ? "models"
           : strncmp(path, "cluster", n) == 0 ? "clusters"
           : strncmp(path, "samples", n) == 0 ? "samples"
           : strncmp(path, "profile", n) == 0 ? "profiles"
                                              : NULL;
}

static void print_values(void *ctx, const char *path, const struct dt_key *key,
                         const void *defaults)
{
    const char *kind = dt_cli_completion_kind(path, key);

    (void)defaults;
    if (!kind && !key->words && key->type != DT_KEY_BOOL)
        return;
    printf("    ");
    for (bool any = false; *path; path++) { /* NAME is the pattern '*' */
        if (!isupper((unsigned char)*path))
            putchar(*path);
        else if (!any)
            putchar('*');
        any = isupper((unsigned char)*path);
    }
    if (kind)
        printf(") %s=$(disttrain list %s --names 2>/dev/null) ;;\n", (const char *)ctx, kind);
    else
        printf(") %s='", (const char *)ctx);
    if (kind)
        return;
    if (key->words)
        print_words(key->words);
    else
        printf("true false");
    printf("' ;;\n");
}

static void print_option_values(const struct dt_cli_command *c, const char *variable)
{
    for (const struct dt_cli_option *o = c->options; o && o->name; o++) {
        const struct dt_key *k = o->kind == DT_OPT_KEY ? dt_keys_at(dt_job_keys, o->help) : NULL;

        if (!k || !k->words)
            continue;
        printf("    '%s --%s'", c->name, o->name);
        if (o->letter)
            printf(" | '%s -%c'", c->name, o->letter);
        printf(") %s='", variable);
        print_words(k->words);
        printf("' ;;\n");
    }
}

void dt_cli_completion_cases(const char *variable)
{
    union {
        const char *in;
        void *out;
    } name = {variable};

    dt_keys_walk(dt_job_keys, NULL, print_values, name.out);
    for (int i = 0; dt_cli_commands[i]; i++)
        print_option_values(dt_cli_commands[i], variable);
}

void dt_cli_completion_keys(void)
{
    dt_keys_walk(dt_job_keys, NULL, print_key, NULL);
}

/* ---- bash ---- */

/* bash takes '=' for a word of its own: train.schedule, =, 1f */
static const char head[] =
    "# bash completion for disttrain; made by 'disttrain completion' from the command table\n"
    "_disttrain() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} cmd=${COMP_WORDS[1]} key= words=\n"
    "    COMPREPLY=()\n"
    "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
    "        COMPREPLY=($(compgen -W \"";
static const char after_commands[] = "--help --version\" -- \"$cur\"))\n"
                                     "        return\n"
                                     "    fi\n"
                                     "    if [ \"$cur\" = = ]; then\n"
                                     "        key=${COMP_WORDS[COMP_CWORD - 1]} cur=\n"
                                     "    elif [ \"${COMP_WORDS[COMP_CWORD - 1]}\" = = ]; then\n"
                                     "        key=${COMP_WORDS[COMP_CWORD - 2]}\n"
                                     "    else\n"
                                     "        key=\"$cmd ${COMP_WORDS[COMP_CWORD - 1]}\"\n"
                                     "    fi\n"
                                     "    case $key in --*) key=\"$cmd $key\" ;; esac\n"
                                     "    case $key in\n";
static const char after_values[] = "    esac\n"
                                   "    if [ -n \"$words\" ]; then\n"
                                   "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                                   "        return\n"
                                   "    fi\n"
                                   "    case $cur in\n"
                                   "    -*) case $cmd in\n";
static const char tail[] = "        esac ;;\n"
                           "    *) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
                           "    esac\n"
                           "    case $cmd in\n";
static const char foot[] =
    "        case $cur in -* | */* | *=*) ;; *) COMPREPLY+=($(compgen -W \"$(disttrain list jobs "
    "--names "
    "2>/dev/null)\" -- \"$cur\")) ;; esac\n"
    "        [ -z \"$cur\" ] || COMPREPLY+=($(compgen -W \"$words\" -- \"$cur\"))\n"
    "        case ${COMPREPLY[0]} in *= | *.) compopt -o nospace 2>/dev/null ;; esac ;;\n"
    "    esac\n"
    "}\n"
    "complete -o filenames -F _disttrain disttrain\n";

void dt_cli_completion_bash(void)
{
    printf("%s", head);
    for (int i = 0; dt_cli_commands[i]; i++)
        printf("%s ", dt_cli_commands[i]->name);
    printf("%s", after_commands);
    dt_cli_completion_cases("words");
    printf("%s", after_values);
    for (int i = 0; dt_cli_commands[i]; i++) {
        const struct dt_cli_command *c = dt_cli_commands[i];

        printf("        %s) COMPREPLY=($(compgen -W \"", c->name);
        for (const struct dt_cli_option *o = c->options; o && o->name; o++)
            print_option(o);
        for (const struct dt_cli_option *o = dt_cli_common_options; o->name; o++)
            if (dt_cli_has_common(c, o))
                print_option(o);
        printf("\" -- \"$cur\")) ;;\n");
    }
    printf("%s", tail);
    for (int i = 0; dt_cli_commands[i]; i++) {
        const struct dt_cli_command *c = dt_cli_commands[i];

        if (!c->actions)
            continue;
        printf("    %s) [ \"$COMP_CWORD\" -ne 2 ] || COMPREPLY=($(compgen -W '", c->name);
        print_words(c->actions);
        printf("' -- \"$cur\")) ;;\n");
    }
    for (int i = 0, n = 0; dt_cli_commands[i]; i++)
        if (dt_cli_takes_job(dt_cli_commands[i]))
            printf("%s%s", n++ ? " | " : "    ", dt_cli_commands[i]->name);
    printf(")\n        words='");
    dt_cli_completion_keys();
    printf("'\n%s", foot);
}

/* ---- which ---- */

static const char *const shells[] = {"bash", "zsh", "fish", NULL};

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    static void (*const script[])(void) = {dt_cli_completion_bash, dt_cli_completion_zsh,
                                           dt_cli_completion_fish};
    int k = 0;

    if (cli->n_args > 0)
        DT_TRY(dt_cli_action(cli, err, &k));
    script[k]();
    return DT_OK;
}

const struct dt_cli_command dt_cmd_completion = {
    .name = "completion",
    .args = "[bash | zsh | fish]",
    .summary = "print the completion script of a shell",
    .max_args = 1,
    .run = command,
    .actions = shells,
    .no_json = "it prints a script",
};
