/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Entry point: find the command, parse, run, and turn a status into one message and an exit code.
 */
#include "config.h"

#include "cli/cli.h"
#include "cli/launch.h"
#include "base/doc.h"
#include "base/mem.h"
#include "comm/nccl.h"
#include "kernels/device_open.h"

#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <string.h>

static const struct dt_cli_command *find_command(const char *name, struct dt_error *err)
{
    const char *words[32];
    int n = 0;
    for (int i = 0; dt_cli_commands[i]; i++) {
        if (strcmp(dt_cli_commands[i]->name, name) == 0)
            return dt_cli_commands[i];
        words[n++] = dt_cli_commands[i]->name;
    }
    words[n] = NULL;
    const char *near = dt_suggest(name, words);
    dt_error_set(err, DT_ERR_USAGE, "unknown command '%s'%s%s%s (see 'disttrain --help')", name,
                 near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    return NULL;
}

static int fail(const struct dt_error *err)
{
    char text[sizeof err->message + sizeof err->file + 64];
    dt_error_format(err, text, sizeof text);
    fprintf(stderr, "disttrain: %s\n", text);
    return dt_status_exit_code(err->status);
}

/* A full disk or a closed pipe must not look like success. */
static int finish(int code)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "disttrain: cannot write the result: %s\n", strerror(errno));
        return code ? code : 1;
    }
    return code;
}

int main(int argc, char **argv)
{
    struct dt_error err = {0};
    struct dt_cli cli;
    bool help;

    dt_mem_keep();
    dt_cli_limits_watch();
    dt_device_environment();
    dt_nccl_environment();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of writing it */
    setlocale(LC_ALL, "C");   /* numbers and sort order do not depend on who runs us */
    if (dt_launch_unpack(&argc, &argv, &err) != DT_OK)
        return fail(&err);
    if (argc < 2) {
        dt_cli_print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        const struct dt_cli_command *c = argc > 2 ? find_command(argv[2], &err) : NULL;
        if (argc > 2 && !c)
            return fail(&err);
        if (c)
            dt_cli_print_help(stdout, c);
        else
            dt_cli_print_usage(stdout);
        return finish(0);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("disttrain %s\n", PACKAGE_VERSION);
        return finish(0);
    }
    const struct dt_cli_command *cmd = find_command(argv[1], &err);
    if (!cmd || dt_cli_parse(argc - 1, argv + 1, cmd, &cli, &help, &err) != DT_OK)
        return fail(&err);
    cli.argv = argv;
    if (help) {
        dt_cli_print_help(stdout, cmd);
        return finish(0);
    }
    if (cmd->run(&cli, &err) != DT_OK)
        return finish(fail(&err));
    return finish(0);
}
