/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tensor files: any bytes are refused with a message, or give tensors that lie inside them, side by
 * side, and can all be read. */
#include "base/mem.h"
#include "exec/checkpoint/safetensors.h"

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
    struct dt_tensors *t = NULL;
    uint64_t total;

    if (dt_tensors_open_memory("fuzz.safetensors", data, size, &err, &t) != DT_OK) {
        REQUIRE(err.message[0] != '\0' && t == NULL);
        return 0;
    }
    total = dt_tensors_header_bytes(t, 0);
    for (size_t i = 0; i < dt_tensors_count(t); i++) {
        const struct dt_tensor *x = dt_tensors_at(t, i);
        uint8_t *raw = dt_malloc((size_t)x->bytes + 1);
        float *v = dt_malloc((size_t)x->n * sizeof(*v) + 1);

        REQUIRE(raw && v && dt_tensors_find(t, x->name) == x);
        REQUIRE(x->bytes == x->n * dt_tensor_type_bytes(x->type));
        REQUIRE(dt_tensors_read(t, x, 0, x->bytes, &err, raw) == DT_OK);
        REQUIRE(memcmp(raw, data + x->at, (size_t)x->bytes) == 0);
        dt_tensors_read_f32(t, x, &err, v, NULL); /* refuses integers */
        total += x->bytes;
        dt_free(raw);
        dt_free(v);
    }
    REQUIRE(total == size);
    dt_tensors_close(t);
    return 0;
}
