/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Devices by name.  The CPU is built in; every other kind is a module, disttrain-NAME.so, which is loaded
 * when a device of it is asked for, and stays.  It is looked for in the folders of DISTTRAIN_MODULES
 * (separated by ':'), in the folder where this program was built, and in its libexec folder. */
#ifndef DT_KERNELS_DEVICE_OPEN_H
#define DT_KERNELS_DEVICE_OPEN_H

#include "kernels/device.h"

struct dt_device_choice {
    /* "cpu", the name of a module ("cuda"), or "auto": the first module that has devices, else the CPU */
    const char *name;
    int index; /* of the module's devices; -1: the ranks of a host take turns */
    int local_rank;
};

/* What drivers are to read from the environment, where the user has not said it.  Before there are threads: the
 * environment must not change while one of them reads it. */
void dt_device_environment(void);
/* `opt` without an index.  A module that is there but cannot be used is an error of "auto", too: what was
 * installed was meant to be used. */
enum dt_status dt_device_open(const struct dt_device_choice *c, const struct dt_device_options *opt,
                              struct dt_error *err, struct dt_device **out);

/* What there is to choose from, the CPU first; what there is not has a row that says why. */
struct dt_device_listed {
    char name[32];   /* as a job says it: "cpu", "cuda:0"; "cuda" of a module without devices */
    char from[4096]; /* its file; "" = built in, or not found */
    bool usable;
    struct dt_device_info info; /* where it is usable */
    char why[4096];             /* where it is not */
};
/* dt_free(*out). */
enum dt_status dt_device_list(struct dt_error *err, struct dt_device_listed **out, int *n);

#endif
