/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What varies in a sweep: any text is refused with a message, or it gives values, points and samples of them. */
#include "core/job/job_axes.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static void check_points(const struct dt_job_points *p, int n)
{
    REQUIRE(p->n == n && p->n_axes == 1);
    for (int i = 0; i < n; i++)
        REQUIRE(p->value[i] && p->value[i][0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_error err = {0};
    struct dt_job_axis axis;
    struct dt_job_points p;
    char *text = dt_calloc(size + 1, 1);

    REQUIRE(text != NULL);
    memcpy(text, data, size);
    if (dt_job_axis_read(text, &err, &axis) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
        dt_free(text);
        return 0;
    }
    REQUIRE(axis.key[0] && (axis.between ? axis.n == 0 && axis.from <= axis.to : axis.n > 0));
    for (int i = 0; i < axis.n; i++)
        REQUIRE(axis.value[i] && axis.value[i][0]);
    if (dt_job_axis_grid(&axis) < 5000 && dt_job_points_grid(&axis, 1, &err, &p) == DT_OK) {
        check_points(&p, (int)dt_job_axis_grid(&axis));
        dt_job_points_free(&p);
    }
    REQUIRE(dt_job_points_sample(&axis, 1, 7, 1, &err, &p) == DT_OK);
    check_points(&p, 7);
    dt_job_points_free(&p);
    dt_job_axis_free(&axis);
    dt_free(text);
    return 0;
}
