/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory of a CPU is its process's own: what is asked for here is refused. */
#include "kernels/cpu/cpu.h"

static enum dt_status refuse(struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_INPUT,
                        "the CPU's memory belongs to its process (CUDA IPC is "
                        "between cards of NVIDIA's)");
}

enum dt_status dt_cpu_ipc_memory(const struct dt_device *dev, const void *p, struct dt_error *err,
                                 struct dt_device_handle *block, size_t *offset)
{
    (void)dev;
    (void)p;
    (void)block;
    (void)offset;
    return refuse(err);
}

enum dt_status dt_cpu_ipc_map(const struct dt_device *dev, const struct dt_device_handle *block,
                              struct dt_error *err, void **out)
{
    (void)dev;
    (void)block;
    (void)out;
    return refuse(err);
}

/* Nothing was mapped. */
void dt_cpu_ipc_unmap(const struct dt_device *dev, void *p)
{
    (void)dev;
    (void)p;
}

/* Nor shown. */
void dt_cpu_ipc_leave(const struct dt_device *dev)
{
    (void)dev;
}

enum dt_status dt_cpu_ipc_event_new(const struct dt_device *dev, struct dt_error *err,
                                    struct dt_device_event **out, struct dt_device_handle *handle)
{
    (void)dev;
    (void)out;
    (void)handle;
    return refuse(err);
}

enum dt_status dt_cpu_ipc_event_open(const struct dt_device *dev,
                                     const struct dt_device_handle *handle, struct dt_error *err,
                                     struct dt_device_event **out)
{
    (void)dev;
    (void)handle;
    (void)out;
    return refuse(err);
}
