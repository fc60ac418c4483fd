/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parsing a command line against a command's option table. */
#include "cli/cli.h"
#include "base/doc.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct dt_cli_option dt_cli_common_options[] = {
    {"help", 'h', DT_OPT_FLAG, NULL, "print this help and exit"},
    {"json", 0, DT_OPT_FLAG, NULL,
     "print the result as JSON on stdout (schema: disttrain-json(5))"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

bool dt_cli_has_common(const struct dt_cli_command *cmd, const struct dt_cli_option *o)
{
    return !cmd->no_json || strcmp(o->name, "json") != 0;
}

static int option_index(const struct dt_cli_command *cmd, const char *name, size_t len)
{
    for (int i = 0; cmd->options && cmd->options[i].name; i++)
        if (strlen(cmd->options[i].name) == len && strncmp(cmd->options[i].name, name, len) == 0)
            return i;
    return -1;
}

static enum dt_status unknown_option(const struct dt_cli_command *cmd, const char *name, size_t len,
                                     struct dt_error *err)
{
    const char *words[DT_CLI_MAX_OPTIONS + 4];
    int n = 0;
    char text[128];
    for (int i = 0; cmd->options && cmd->options[i].name; i++)
        words[n++] = cmd->options[i].name;
    for (int i = 0; dt_cli_common_options[i].name; i++)
        if (dt_cli_has_common(cmd, &dt_cli_common_options[i]))
            words[n++] = dt_cli_common_options[i].name;
    words[n] = NULL;
    if (len >= sizeof text)
        len = sizeof text - 1;
    memcpy(text, name, len);
    text[len] = '\0';
    const char *near = dt_suggest(text, words);
    return dt_error_set(err, DT_ERR_USAGE, "unknown option --%s%s%s%s (see 'disttrain %s --help')",
                        text, near ? "; did you mean --" : "", near ? near : "", near ? "?" : "",
                        cmd->name);
}

/* A path may not be empty: a variable of a script that was not set is no wish for the default. */
static bool is_path(const struct dt_cli_option *o)
{
    return strncmp(o->arg, "FILE", 4) == 0 || strcmp(o->arg, "PATH") == 0 ||
           strcmp(o->arg, "DIR") == 0;
}

static enum dt_status record(struct dt_cli *out, int option, const char *value,
                             struct dt_error *err)
{
    const struct dt_cli_option *o = &out->command->options[option];

    if (!*value && is_path(o))
        return dt_error_set(err, DT_ERR_USAGE,
                            "option --%s needs the name of a %s; it was given an empty one",
                            o->name, strcmp(o->arg, "DIR") == 0 ? "folder" : "file");
    out->values[option] = value;
    if (out->command->options[option].kind != DT_OPT_LIST)
        return DT_OK;
    if (out->n_list == DT_CLI_MAX_ARGS)
        return dt_error_set(err, DT_ERR_USAGE, "more than %d list options", DT_CLI_MAX_ARGS);
    out->list_option[out->n_list] = option;
    out->list[out->n_list++] = value;
    return DT_OK;
}

/* One "--name", "--name=value" or "--name value"; *i is moved past what was used. */
static enum dt_status parse_long(int argc, char **argv, int *i, struct dt_cli *out, bool *help,
                                 struct dt_error *err)
{
    const char *name = argv[*i] + 2, *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    if (len == 4 && strncmp(name, "help", 4) == 0 && !eq) {
        *help = true;
        return DT_OK;
    }
    if (len == 4 && strncmp(name, "json", 4) == 0 && !eq) {
        if (out->command->no_json)
            return dt_error_set(err, DT_ERR_USAGE, "'disttrain %s' has no --json: %s",
                                out->command->name, out->command->no_json);
        out->json = true;
        return DT_OK;
    }
    int k = option_index(out->command, name, len);
    if (k < 0)
        return unknown_option(out->command, name, len, err);
    const struct dt_cli_option *o = &out->command->options[k];
    if (o->kind == DT_OPT_FLAG) {
        if (eq)
            return dt_error_set(err, DT_ERR_USAGE, "option --%s takes no value", o->name);
        out->values[k] = "";
        return DT_OK;
    }
    if (!eq && *i + 1 >= argc)
        return dt_error_set(err, DT_ERR_USAGE, "option --%s needs a value: --%s %s", o->name,
                            o->name, o->arg);
    return record(out, k, eq ? eq + 1 : argv[++*i], err);
}

static enum dt_status parse_short(int argc, char **argv, int *i, struct dt_cli *out, bool *help,
                                  struct dt_error *err)
{
    const char *a = argv[*i];
    if (a[1] == 'h' && !a[2]) {
        *help = true;
        return DT_OK;
    }
    for (int k = 0; out->command->options && out->command->options[k].name; k++) {
        const struct dt_cli_option *o = &out->command->options[k];
        if (o->letter != a[1])
            continue;
        if (o->kind == DT_OPT_FLAG && !a[2]) {
            out->values[k] = "";
            return DT_OK;
        }
        if (o->kind != DT_OPT_FLAG && (a[2] || *i + 1 < argc))
            return record(out, k, a[2] ? a + 2 : argv[++*i], err);
        return dt_error_set(err, DT_ERR_USAGE, "option -%c needs %s", a[1],
                            o->kind == DT_OPT_FLAG ? "to stand alone" : o->arg);
    }
    return dt_error_set(err, DT_ERR_USAGE, "unknown option -%c (see 'disttrain %s --help')", a[1],
                        out->command->name);
}

enum dt_status dt_cli_parse(int argc, char **argv, const struct dt_cli_command *cmd,
                            struct dt_cli *out, bool *help, struct dt_error *err)
{
    bool options_over = false;
    memset(out, 0, sizeof *out);
    out->command = cmd;
    *help = false;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!options_over && strcmp(a, "--") == 0)
            options_over = true;
        else if (!options_over && strncmp(a, "--", 2) == 0)
            DT_TRY(parse_long(argc, argv, &i, out, help, err));
        else if (!options_over && a[0] == '-' && a[1])
            DT_TRY(parse_short(argc, argv, &i, out, help, err));
        else if (out->n_args == DT_CLI_MAX_ARGS)
            return dt_error_set(err, DT_ERR_USAGE, "more than %d arguments", DT_CLI_MAX_ARGS);
        else
            out->args[out->n_args++] = a;
    }
    if (*help)
        return DT_OK;
    if (out->n_args < cmd->min_args)
        return dt_error_set(err, DT_ERR_USAGE, "usage: disttrain %s [OPTION...] %s", cmd->name,
                            cmd->args);
    if (cmd->max_args >= 0 && out->n_args > cmd->max_args)
        return dt_error_set(err, DT_ERR_USAGE,
                            "unexpected argument '%s'; usage: disttrain %s [OPTION...] %s",
                            out->args[cmd->max_args], cmd->name, cmd->args);
    return DT_OK;
}

const char *dt_cli_string(const struct dt_cli *c, const char *option, const char *fallback)
{
    int k = option_index(c->command, option, strlen(option));
    return k >= 0 && c->values[k] ? c->values[k] : fallback;
}

bool dt_cli_flag(const struct dt_cli *c, const char *option)
{
    return dt_cli_string(c, option, NULL) != NULL;
}

enum dt_status dt_cli_int(const struct dt_cli *c, const char *option, int64_t min, int64_t max,
                          int64_t fallback, int64_t *out, struct dt_error *err)
{
    const char *s = dt_cli_string(c, option, NULL);
    if (!s) {
        *out = fallback;
        return DT_OK;
    }
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || end == s || *end || v < min || v > max)
        return dt_error_set(err, DT_ERR_USAGE, "--%s: '%s' is not a whole number from %lld to %lld",
                            option, s, (long long)min, (long long)max);
    *out = v;
    return DT_OK;
}

enum dt_status dt_cli_double(const struct dt_cli *c, const char *option, double min, double max,
                             double fallback, double *out, struct dt_error *err)
{
    const char *s = dt_cli_string(c, option, NULL);
    if (!s) {
        *out = fallback;
        return DT_OK;
    }
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (errno || end == s || *end || !isfinite(v) || v < min || v > max)
        return dt_error_set(err, DT_ERR_USAGE, "--%s: '%s' is not a number from %g to %g", option,
                            s, min, max);
    *out = v;
    return DT_OK;
}

enum dt_status dt_cli_one_stdout(const struct dt_cli *c, const char *path, struct dt_error *err)
{
    if (!c->json || strcmp(path, "-") != 0)
        return DT_OK;
    return dt_error_set(err, DT_ERR_USAGE, "--json and -o - both want stdout; use -o FILE");
}

enum dt_status dt_cli_action(const struct dt_cli *c, struct dt_error *err, int *out)
{
    const char *const *words = c->command->actions;
    const char *near;
    char list[256] = "";
    size_t n = 0;

    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], c->args[0]) == 0) {
            *out = i;
            return DT_OK;
        }
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", i ? ", " : "", words[i]);
    }
    near = dt_suggest(c->args[0], words);
    return dt_error_set(err, DT_ERR_USAGE, "%s has no action '%s'%s%s%s; its actions are %s",
                        c->command->name, c->args[0], near ? "; did you mean '" : "",
                        near ? near : "", near ? "'?" : "", list);
}

bool dt_cli_takes_job(const struct dt_cli_command *cmd)
{
    return strncmp(cmd->args, "JOB", 3) == 0;
}

enum dt_status dt_cli_overrides(const struct dt_cli *c, struct dt_error *err,
                                struct dt_cli_overrides *out)
{
    const struct dt_cli_option *o = c->command->options;

    out->n = 0;
    for (int i = 1; i < c->n_args; i++)
        out->list[out->n++] = c->args[i];
    for (int i = 0; o && o[i].name; i++) {
        int n;

        if (o[i].kind != DT_OPT_KEY || !c->values[i])
            continue;
        n = snprintf(out->text[i], sizeof(out->text[i]), "%s=%s", o[i].help, c->values[i]);
        if (n < 0 || (size_t)n >= sizeof(out->text[i]))
            return dt_error_set(err, DT_ERR_USAGE, "the value of --%s is too long", o[i].name);
        out->list[out->n++] = out->text[i];
    }
    return DT_OK;
}
