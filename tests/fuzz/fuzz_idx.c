/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: IDX files, and captions of the pictures in them. */
#include "exec/data/caption.h"
#include "exec/data/idx.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_error err = {0};
    struct dt_idx x = {0};
    char text[128];
    if (dt_idx_parse("fuzz", data, size, 1 << 20, &err, &x) != DT_OK) {
        if (x.data || !err.message[0])
            abort();
        return 0;
    }
    if (x.dims == 3)
        for (uint32_t i = 0; i < x.size[0]; i++) {
            size_t pixels = (size_t)x.size[1] * x.size[2];
            int n = dt_caption_write(x.data + i * pixels, (int)x.size[2], (int)x.size[1],
                                     dt_caption_fashion_words[i % DT_FASHION_CLASSES], text,
                                     sizeof text);
            if (n <= 0 || n >= (int)sizeof text ||
                dt_caption_class(text, dt_caption_fashion_words) != (int)(i % DT_FASHION_CLASSES))
                abort();
        }
    dt_idx_free(&x);
    return 0;
}
