/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/progress.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS = 80 }; /* of a terminal that does not say */

static int columns(void)
{
    struct winsize w;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : COLUMNS;
}

void dt_cli_progress_line(const char *fmt, ...)
{
    char line[512];
    va_list ap;

    if (!isatty(STDERR_FILENO))
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    /* the last column stays free: some terminals wrap as soon as it is written */
    fprintf(stderr, "\r\033[K%.*s", (int)dt_text_fit(line, columns() - 1), line);
    fflush(stderr);
}

void dt_cli_progress(const char *what, int done, int total)
{
    dt_cli_progress_line("%s %d/%d", what, done, total);
}

void dt_cli_progress_end(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}
