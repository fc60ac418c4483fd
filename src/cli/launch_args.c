/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/launch.h"

#include "base/mem.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Linux: a variable has at most 128 KiB.  Open MPI hands what begins with OMPI_ down to the ranks
 * of other hosts, others everything. */
#define VARIABLE "OMPI_DISTTRAIN_ARGS_%d"
enum { DIRECT_BYTES = 64 << 10, CHUNK_BYTES = 96 << 10 };
static char mark[] = "@environment";

/* ---- which arguments ---- */

static bool is_option(const char *arg, const char *name, bool *separate)
{
    size_t n = strlen(name);

    if (strncmp(arg, name, n) != 0)
        return false;
    *separate = arg[n] == '\0';
    return *separate || arg[n] == '=';
}

enum dt_status dt_launch_args(char *const *argv, const char *run_id, struct dt_error *err,
                              char ***out)
{
    static char option[128];
    bool skip = false, separate, open = true;
    size_t n = 0;
    char **args;

    while (argv[n])
        n++;
    args = dt_calloc(n + 4, sizeof(*args)); /* and what dt_launch_pack needs */
    if (!args)
        return dt_error_nomem(err, "a command line");
    *out = args;
    for (; *argv; argv++) {
        if (skip) {
            skip = false;
            continue;
        }
        open &= strcmp(*argv, "--") != 0;
        if (open && (is_option(*argv, "--ranks", &separate) ||
                     is_option(*argv, "--max-restarts", &separate))) {
            skip = separate;
            continue;
        }
        *args++ = *argv;
        if (args - *out == 2 && run_id) { /* behind the command */
            snprintf(option, sizeof(option), "--run-id=%s", run_id);
            *args++ = option;
        }
    }
    return DT_OK;
}

/* ---- through the environment ----
 *
 * One line per argument, with \n for a line's end and \\ for a \ inside of one, cut into variables.
 */

/* Writes (or only counts, with NULL) the lines of all arguments behind the program's name. */
static size_t encode(char *const *args, char *to)
{
    size_t n = 0;

    for (args++; *args; args++) {
        for (const char *p = *args; *p; p++) {
            bool escape = *p == '\n' || *p == '\\';

            if (escape && to)
                to[n] = '\\';
            n += escape;
            if (to)
                to[n] = *p == '\n' ? 'n' : *p;
            n++;
        }
        if (to)
            to[n] = '\n';
        n++;
    }
    if (to)
        to[n] = '\0';
    return n;
}

enum dt_status dt_launch_pack(char **args, struct dt_error *err)
{
    static char number[32];
    size_t n = encode(args, NULL);
    char *text, variable[64];

    if (n <= DIRECT_BYTES)
        return DT_OK;
    text = dt_malloc(n + 1);
    if (!text)
        return dt_error_nomem(err, "a command line");
    encode(args, text);
    for (size_t at = 0, k = 1; at < n; at += CHUNK_BYTES, k++) {
        char kept = '\0', *end = text + (n - at < CHUNK_BYTES ? n : at + CHUNK_BYTES);

        snprintf(variable, sizeof(variable), VARIABLE, (int)k);
        kept = *end;
        *end = '\0';
        if (setenv(variable, text + at, 1) != 0) {
            dt_free(text);
            return dt_error_nomem(err, "a command line");
        }
        *end = kept;
    }
    dt_free(text);
    snprintf(number, sizeof(number), "%zu", n);
    args[1] = mark;
    args[2] = number;
    args[3] = NULL;
    return DT_OK;
}

/* All pieces, of `bytes` together. */
static enum dt_status join(size_t bytes, struct dt_error *err, char **out)
{
    char *text = dt_malloc(bytes + 1), variable[64];
    const char *piece = "";
    size_t n = 0;

    if (!text)
        return dt_error_nomem(err, "the command line");
    for (int k = 1; piece; k++) {
        size_t more;

        snprintf(variable, sizeof(variable), VARIABLE, k);
        piece = getenv(variable);
        more = piece ? strlen(piece) : 0;
        if (more > bytes - n)
            break;
        memcpy(text + n, piece ? piece : "", more);
        n += more;
        unsetenv(variable);
    }
    text[n] = '\0';
    if (n == bytes && !piece) {
        *out = text;
        return DT_OK;
    }
    dt_free(text);
    return dt_error_set(err, DT_ERR_USAGE,
                        "the launcher did not pass on the command line of %zu bytes; write "
                        "settings into the job's file to make it shorter",
                        bytes);
}

/* Decodes in place; argv has room. */
static int decode(char *text, char **argv)
{
    char *to = text;
    int n = 0;

    while (*text) {
        argv[n++] = to;
        for (; *text && *text != '\n'; text++)
            if (*text == '\\' && text[1])
                *to++ = *++text == 'n' ? '\n' : *text;
            else
                *to++ = *text;
        text += *text == '\n';
        *to++ = '\0'; /* where the line's end was, or before */
    }
    return n;
}

enum dt_status dt_launch_unpack(int *argc, char ***argv, struct dt_error *err)
{
    static char **all, *text; /* for as long as the program runs */
    int64_t bytes;
    size_t lines = 0;

    if (*argc != 3 || strcmp((*argv)[1], mark) != 0 || !dt_number_int((*argv)[2], &bytes) ||
        bytes < 1 || bytes > INT32_MAX)
        return DT_OK;
    DT_TRY(join((size_t)bytes, err, &text));
    for (const char *p = text; *p; p++)
        lines += *p == '\n';
    all = dt_calloc(lines + 3, sizeof(*all));
    if (!all)
        return dt_error_nomem(err, "the command line");
    all[0] = (*argv)[0];
    *argc = 1 + decode(text, all + 1);
    *argv = all;
    return DT_OK;
}
