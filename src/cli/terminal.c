/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/terminal.h"

#include "base/number.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COLUMNS_MAX = 1000 };

struct dt_chart_terminal dt_cli_terminal(void)
{
    const char *columns = getenv("COLUMNS"), *none = getenv("NO_COLOR"), *term = getenv("TERM");
    bool tty = isatty(STDOUT_FILENO);
    struct dt_chart_terminal t = {.colour = tty && !(none && *none) &&
                                            !(term && strcmp(term, "dumb") == 0)};
    struct winsize w;
    int64_t n;

    if (columns && dt_number_int(columns, &n) && n > 0)
        t.width = n < COLUMNS_MAX ? (int)n : COLUMNS_MAX;
    else if (tty && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        t.width = w.ws_col;
    return t;
}
