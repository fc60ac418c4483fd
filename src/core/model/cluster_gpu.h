/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Known GPUs by their data sheets: what a cluster may leave out, and which rows hold for which device. */
#ifndef DT_CORE_MODEL_CLUSTER_GPU_H
#define DT_CORE_MODEL_CLUSTER_GPU_H

struct dt_cluster_gpu {
    const char *name; /* as profiles and clusters call it: "A800-SXM4-80GB" */
    const char *
        chip; /* devices of one chip run the same kernels in the same time; they differ in their links */
    double peak_flops; /* dense bf16, flop/s */
    double mem_bytes;
    double hbm_bytes_per_s;
    double link_bytes_per_s; /* to the other GPUs of a node, per direction, usable */
    double host_bytes_per_s; /* to the host's memory, likewise */
};

/* By its name or the part before the first '-' ("h800"), whatever the case; NULL if it is none of them. */
const struct dt_cluster_gpu *dt_cluster_gpu_find(const char *name);
/* The i-th, NULL after the last. */
const struct dt_cluster_gpu *dt_cluster_gpu_at(int i);

#endif
