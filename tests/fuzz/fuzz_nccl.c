/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Output of nccl-tests: any text is refused with a message, or all its rows are of collectives with
 * times in order. */
#include "base/mem.h"
#include "fit/profile_nccl_text.h"

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
    const struct dt_profile_source s = {.name = "fuzz"};
    struct dt_error err = {0};
    struct dt_profile_table t = {0};
    int device, dtype, source;
    struct dt_import_nccl_counts n = {0};

    REQUIRE(dt_profile_table_device(&t, "d", &err, &device) == DT_OK);
    REQUIRE(dt_profile_table_dtype(&t, "any", &err, &dtype) == DT_OK);
    REQUIRE(dt_profile_table_source(&t, &s, &err, &source) == DT_OK);
    if (dt_import_nccl_text("fuzz.txt", (const char *)data, size, &t, device, dtype, source, &err,
                            &n) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
    } else {
        REQUIRE(n.rows > 0 && n.rows == t.n_rows);
        for (size_t i = 0; i < n.rows; i++) {
            const struct dt_profile_row *r = &t.rows[i].r;

            REQUIRE(r->family >= DT_KOP_ALL_REDUCE && r->family <= DT_KOP_SEND_RECV);
            REQUIRE(r->p10_ns > 0 && r->p10_ns <= r->median_ns && r->median_ns <= r->p90_ns);
            REQUIRE(r->family == DT_KOP_SEND_RECV || (r->d[0] > 1 && r->d[0] % r->d[1] == 0));
        }
    }
    dt_profile_table_free(&t);
    return 0;
}
