/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * How far the work is: one line on stderr, redrawn, never wider than the terminal.  Silent unless
 * stderr is one. */
#ifndef DT_CLI_PROGRESS_H
#define DT_CLI_PROGRESS_H

/* Fields of the line are two spaces apart, what matters most first: those that do not go into the
 * line are left out. */
void dt_cli_progress_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* "what done/total" */
void dt_cli_progress(const char *what, int done, int total);
/* Wipes the line. */
void dt_cli_progress_end(void);

#endif
