/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face configs: any text is refused with a message, or becomes blocks that can be counted.
 */
#include "base/mem.h"
#include "core/model/shape.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_error err = {0};
    struct dt_arena arena = {0};
    struct dt_shape shape;
    struct dt_module m = {0};
    char assumed[200] = ""; /* small: cutting off must be safe */

    if (dt_hf_parse("fuzz.json", (const char *)data, size, &shape, assumed, sizeof(assumed),
                    &err) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
        return 0;
    }
    REQUIRE(strlen(assumed) < sizeof(assumed));
    REQUIRE(dt_shape_build(&shape, 96, &arena, &err, &m) == DT_OK);
    REQUIRE(m.n_blocks > 0 && dt_module_params(&m) > 0);
    for (int b = 0; b < m.n_blocks; b++) {
        static const struct dt_work w = {1, 640, 640 * 640, 640};

        REQUIRE(dt_block_flops(&m.blocks[b], &w) >= 0);
    }
    dt_arena_free(&arena);
    return 0;
}
