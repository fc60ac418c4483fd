/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Which process did it, so that another can tell whether it is still there: its number alone may be
 * that of a process of another host or container, or of a later one.  Shared by checkpoint*.c only.
 */
#ifndef DT_EXEC_CHECKPOINT_CHECKPOINT_HOST_H
#define DT_EXEC_CHECKPOINT_CHECKPOINT_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_ckpt_process {
    char host[64];
    char machine[80]; /* this boot of the machine, and the namespace that numbers processes */
    long pid;
    uint64_t start; /* clock ticks since the boot */
};
enum dt_ckpt_life { DT_CKPT_LIVES, DT_CKPT_DEAD, DT_CKPT_ELSEWHERE };

void dt_ckpt_this_process(struct dt_ckpt_process *out);
/* DT_CKPT_ELSEWHERE: on another host, so nobody knows here. */
enum dt_ckpt_life dt_ckpt_lives(const struct dt_ckpt_process *p);

/* "HOST MACHINE PID START" in one line, and back; false if it is no such line. */
void dt_ckpt_process_text(const struct dt_ckpt_process *p, char *buf, size_t size);
bool dt_ckpt_process_parse(const char *text, struct dt_ckpt_process *out);

/* Bits from the system that nobody else has. */
uint64_t dt_ckpt_random(void);

#endif
