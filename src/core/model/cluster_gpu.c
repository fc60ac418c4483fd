/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/model/cluster_gpu.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* Peaks (dense bf16) and memory bandwidths: NVIDIA's data sheets of A100 80GB, A800, H100, H200 and L40S (published);
 * H800, H20 and A40: recalled.  Memory: what CUDA reports as a card's total, which is neither the data sheet's figure nor
 * nvidia-smi's, as PyTorch prints it ("total capacity of ... GiB", the least that was found; published): A100
 * github.com/lianqi1008/Control-GIC issue 6, A800 hahnyuan/PB-LLM 3, H100 vllm-project/vllm 27508, H20
 * sgl-project/sglang 10736, H200 139.80 and 139.81 in several public logs; of L40S and A40 the total_memory of device
 * properties in public pages, 45589 and 45416 MiB; H800 as H100, for both have 81559 MiB by nvidia-smi (derived).
 * NVLink per direction: links x 20.0 GB/s of NVLink 3 and 20.6 GB/s of NVLink 4, which is what
 * NCCL counts on (src/graph, published): 12 links (A100), 8 (A800), 18 (H100, H200; H20: recalled), 8 (H800).  L40S
 * has PCIe 4 x16 only, and A40's NVLink bridges pairs only, so both are given the 25.6 GB/s that SimAI takes for
 * PCIe 4 x16 (published).  To the host: that, where the card is of PCIe 4, and twice as much where it is of PCIe 5
 * (derived). */
#define GIB 1073741824.0
#define PCIE4 25.6e9
#define PCIE5 51.2e9
static const struct dt_cluster_gpu devices[] = {
    {"A100-SXM4-80GB", "GA100", 312e12, 79.14 * GIB, 2.0e12, 240e9, PCIE4},
    {"A800-SXM4-80GB", "GA100", 312e12, 79.33 * GIB, 2.0e12, 160e9, PCIE4},
    {"H100-SXM5-80GB", "GH100", 989e12, 79.11 * GIB, 3.35e12, 371e9, PCIE5},
    {"H800-SXM5-80GB", "GH100", 989e12, 79.11 * GIB, 3.35e12, 165e9, PCIE5},
    /* the same die as H100 with other memory, or fewer units: rows of one do not hold for the other */
    {"H200-SXM5-141GB", "GH100 with HBM3e", 989e12, 139.8 * GIB, 4.8e12, 371e9, PCIE5},
    {"H20-SXM5-96GB", "GH100 cut down", 148e12, 95.08 * GIB, 4.0e12, 371e9, PCIE5},
    {"L40S-48GB", "AD102", 362e12, 44.52 * GIB, 0.864e12, 25.6e9, PCIE4},
    {"A40-48GB", "GA102", 149.7e12, 44.35 * GIB, 0.696e12, 25.6e9, PCIE4},
};

const struct dt_cluster_gpu *dt_cluster_gpu_at(int i)
{
    return i >= 0 && (size_t)i < sizeof(devices) / sizeof(devices[0]) ? &devices[i] : NULL;
}

const struct dt_cluster_gpu *dt_cluster_gpu_find(const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        const char *known = devices[i].name;

        if (strcasecmp(name, known) == 0 ||
            (len == strcspn(known, "-") && strncasecmp(name, known, len) == 0))
            return &devices[i];
    }
    return NULL;
}
