/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A slow judge of damaged programs, for tests of dt_program_check.
 *
 * It knows the sound program that was damaged.  A damaged one is still sound if it has the same ops,
 * messages and groups, and if all that must have ended before an op begins has, by a table of every
 * pair of ops.  It is written from doc/program.md and shares no code with the check or the compiler. */
#ifndef DT_TESTS_PROGRAM_ORACLE_H
#define DT_TESTS_PROGRAM_ORACLE_H

#include "core/schedule/program.h"

/* Copies of a program's arrays. */
struct oracle_copy {
    struct dt_lane *lanes;
    struct dt_op *ops;
    uint32_t *deps;
    struct dt_group *groups;
    uint32_t *group_ops;
};
struct oracle_copy oracle_copy(const struct dt_program *p);
void oracle_copy_free(struct oracle_copy *c);
/* Writes the arrays back. */
void oracle_restore(struct dt_program *p, const struct oracle_copy *c);

/* NULL: as good as the program whose arrays `was` are; else what is wrong. */
const char *oracle_judge(const struct dt_program *p, const struct dt_model *m,
                         const struct oracle_copy *was);

#endif
