/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: the decoders.  What decodes has the size that the header told, and fits; what does
 * not leaves an error. */
#include "exec/data/image.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dt_image_limits limits = {2048, 1 << 20};
    struct dt_image_spec spec = {(enum dt_image_fit)(size % 4), 1 + (int)(size % 61),
                                 DT_FILTER_AUTO};
    struct dt_error err = {0};
    struct dt_image img = {0}, fitted = {0};
    int w = 0, h = 0;
    enum dt_status head = dt_image_size(data, size, &limits, &err, &w, &h);
    enum dt_status st = dt_image_decode(data, size, &limits, &err, &img);
    if (st == DT_OK && (head != DT_OK || img.w != w || img.h != h || w > 2048 || h > 2048))
        abort();
    if (st != DT_OK && (img.px || !err.message[0]))
        abort();
    if (st == DT_OK) {
        int ow, oh;
        dt_image_fitted_size(&spec, w, h, &ow, &oh);
        /* a JPEG that is shrunk while decoded may fail no sooner and no later */
        if (dt_image_load(data, size, &limits, &spec, &err, &fitted) == DT_OK &&
            (fitted.w != ow || fitted.h != oh))
            abort();
    }
    dt_image_free(&img);
    dt_image_free(&fitted);
    return 0;
}
