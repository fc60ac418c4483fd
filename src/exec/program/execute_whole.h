/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parts of a checkpoint, the inside.  Shared by execute_whole.c, execute_collect.c and execute_put.c. */
#ifndef DT_EXEC_PROGRAM_EXECUTE_WHOLE_H
#define DT_EXEC_PROGRAM_EXECUTE_WHOLE_H

#include "exec/program/execute_impl.h"
#include "exec/modules/ferry.h"

struct dt_exec_whole_own { /* of a part */
    struct dt_stage *layout;
    struct dt_optimizer moments; /* a layout, too */
    int *here; /* [parameters] their numbers in this rank's stage; -1: it has none of it */
};
struct dt_exec_whole_impl {
    struct dt_exec *x;
    struct dt_ferry ferry;
    struct dt_exec_whole_own *own;
};

/* This rank's stage of the lowest replica here; NULL. */
struct dt_exec_vstage *dt_exec_held(const struct dt_exec_stages *stages, int module, int v);
/* The lowest rank that holds a piece of the virtual stage. */
int dt_exec_writer(const struct dt_exec_ranks *ranks, int module, int v);

#endif
