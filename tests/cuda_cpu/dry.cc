// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// CUCPU_DRY=1: nothing is computed.  Each launch and each product is a line on standard output instead, so what a card
// would be given can be counted at sizes that no CPU computes in a test's time (tests/bench/roofline.py).
//
//   launch NAME OFFSET GRID BLOCK SHARED     OFFSET: of the kernel in this module, for nm; GRID: blocks
//   product M N K TYPE TYPE ADDS             types of factors and result
#include "cuda_cpu_impl.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>

bool cucpu_dry()
{
    static const bool dry = [] {
        const char *s = getenv("CUCPU_DRY");

        return s && *s && *s != '0';
    }();

    return dry;
}

void cucpu_dry_launch(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared)
{
    Dl_info where;
    uintptr_t base = dladdr(kernel, &where) ? uintptr_t(where.dli_fbase) : 0;

    printf("launch\t%s\t%" PRIxPTR "\t%" PRIu64 "\t%u\t%zu\n", name, uintptr_t(kernel) - base,
           uint64_t(grid.x) * grid.y * grid.z, block.x * block.y * block.z, shared);
}

void cucpu_dry_product(uint64_t m, uint64_t n, uint64_t k, int in, int out, bool adds)
{
    printf("product\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\t%s\t%d\n", m, n, k,
           in == 0 ? "fp32" : "bf16", out == 0 ? "fp32" : "bf16", adds);
}
