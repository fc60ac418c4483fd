/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: the samples CSV reader, and the work of every sample that it accepts. */
#include "core/model/samples.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dt_module vit = {
        .role = DT_ROLE_ENCODER, .modality = DT_MODALITY_IMAGE, .patch = 16};
    struct dt_samples *s = NULL;
    struct dt_error err;
    memset(&err, 0, sizeof(err));
    enum dt_status st =
        dt_samples_parse_csv("fuzz.csv", (const char *)data, size, 8192, NULL, &err, &s);
    if ((st == DT_OK) != (s != NULL))
        abort();
    if (st != DT_OK) {
        if (!err.message[0] || (st == DT_ERR_INPUT && err.line < 1))
            abort();
        return 0;
    }
    for (int64_t i = 0; i < s->n; i++) {
        struct dt_work w;
        dt_sample_work(s, i, &vit, &w);
        if (w.tokens + s->text_tokens[i] > s->seq_tokens[i] || s->seq_tokens[i] > 8192)
            abort();
    }
    dt_samples_free(s);
    return 0;
}
