/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * AdamW in the host's memory (plan.MODULE.offload: optimizer; ZeRO-Offload, Ren et al. 2021, arXiv 2101.06840).
 *
 * Masters and moments of what a rank steps lie there, and the host's cores step them.  Gradients go down and new
 * parameters come up, in the type that the device keeps them in, through page-locked rooms that take turns, so that a chunk
 * is copied down while the one before it is stepped and the one before that comes up:
 *
 *   down    [ 0 ][ 1 ][ 2 ]     [ 3 ]             waits for `ready`: the main queue's gradients
 *   steps        [ 0   ][ 1   ][ 2   ][ 3   ]     host functions; the kernel of the CPU
 *   up                  [ 0 ]  [ 1 ]  [ 2 ]  [ 3 ]e     the main queue goes on behind e
 *
 * On a device whose calls have run when they return, all of this is one after the other.  The caller does not wait:
 * what fails on the host is said by dt_optimizer_host_sync, which the executor asks in every iteration. */
#ifndef DT_EXEC_PROGRAM_OPTIMIZER_HOST_H
#define DT_EXEC_PROGRAM_OPTIMIZER_HOST_H

#include "core/model/plan.h"
#include "exec/program/optimizer.h"

enum { DT_OPTIMIZER_ROOMS = DT_PLAN_OFFLOAD_ROOMS };

struct dt_optimizer_room {
    float *grads; /* host memory of the device, as are all of these: [DT_PLAN_OFFLOAD_CHUNK] */
    void *out;    /* what comes up: fp32, or bf16 and behind it the vectors in fp32 */
    struct dt_device_event *down, *stepped, *up; /* its last chunk has come, is stepped, has gone */
};

/* Of all optimizers of a rank that step on the host. */
struct dt_optimizer_host {
    const struct dt_device *dev; /* whose gradients and parameters they are */
    const struct dt_device *cpu; /* whose kernels step, and whose memory has the state */
    bool own;                    /* opened here */
    struct dt_device_queue *down, *steps, *up;
    struct dt_device_queue *q; /* of cpu; only host functions use it */
    struct dt_device_event *ready, *arrived;
    struct dt_optimizer_room room[DT_OPTIMIZER_ROOMS];
    int turn;
    struct dt_kernel_adamw h; /* of the step under way */
    float coef;
    enum dt_status status; /* of what host functions did */
    struct dt_error error;
};

/* cpu NULL: opens one with so many threads, 0 = one per core that this process may use. */
enum dt_status dt_optimizer_host_open(struct dt_optimizer_host *h, const struct dt_device *dev,
                                      const struct dt_device *cpu, int threads,
                                      struct dt_error *err);
/* Everything that used it is freed; zero-initialised it is closed. */
void dt_optimizer_host_close(struct dt_optimizer_host *h);
/* Bytes of masters, moments and rooms now. */
int64_t dt_optimizer_host_bytes(const struct dt_optimizer_host *h);

/* Memory for the state of an optimizer that has been laid out; moments are zero.  Masters are taken from what
 * dt_stage_init has left (dt_stage_initial), behind it on `q`, which is waited for. */
enum dt_status dt_optimizer_host_init(struct dt_optimizer *o, struct dt_optimizer_host *h,
                                      struct dt_device_queue *q, struct dt_error *err);
void dt_optimizer_host_free(struct dt_optimizer *o);
/* One step, behind what is on `q`, which goes on when the new parameters are there.  *coef scales the gradients: it is
 * known to the host. */
void dt_optimizer_host_step(struct dt_device_queue *q, struct dt_optimizer *o,
                            const struct dt_kernel_adamw *k, float coef);
/* Waits for all that is under way; the first error since the last call. */
enum dt_status dt_optimizer_host_sync(struct dt_optimizer_host *h, struct dt_error *err);

#endif
