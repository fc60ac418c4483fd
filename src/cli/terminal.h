/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What standard output is: how wide, and whether colours make sense there. */
#ifndef DT_CLI_TERMINAL_H
#define DT_CLI_TERMINAL_H

#include "report/chart.h"

/* Width: COLUMNS, or what the terminal says, or 80.  Colour: only on a terminal, not if NO_COLOR is set (to anything but
 * nothing) or TERM is "dumb". */
struct dt_chart_terminal dt_cli_terminal(void);

#endif
