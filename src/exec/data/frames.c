/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/frames.h"

#include <stddef.h>
#include <string.h>

enum { DIGITS_MAX = 9 };

int64_t dt_data_frame_number(const char *ext)
{
    static const char *const images[] = {".jpg", ".jpeg", ".png", ".webp", NULL};
    int64_t v = 0;
    size_t n;

    if (strncmp(ext, "frame", 5) == 0)
        ext += ext[5] == '_' || ext[5] == '-' ? 6 : 5;
    n = strspn(ext, "0123456789");
    if (n == 0 || n > DIGITS_MAX)
        return -1;
    for (size_t i = 0; i < n; i++)
        v = 10 * v + ext[i] - '0';
    for (int i = 0; images[i]; i++)
        if (strcmp(ext + n, images[i]) == 0)
            return v;
    return -1;
}

static int strided(const struct dt_data_frames *f, int n)
{
    int stride = f->stride > 0 ? f->stride : 1;

    return (n + stride - 1) / stride;
}

int dt_data_frames_taken(const struct dt_data_frames *f, int n)
{
    int m = strided(f, n);

    return f->most > 0 && m > f->most ? f->most : m;
}

int dt_data_frames_at(const struct dt_data_frames *f, int n, int i)
{
    int m = strided(f, n), taken = dt_data_frames_taken(f, n);

    return (int)((int64_t)i * m / taken) * (f->stride > 0 ? f->stride : 1);
}
