/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Video as frames: the images of one sample that have numbers, "0007.jpg" or "frame_0007.jpg" behind
 * the key, in the order of the numbers. */
#ifndef DT_EXEC_DATA_FRAMES_H
#define DT_EXEC_DATA_FRAMES_H

#include <stdint.h>

struct dt_data_frames { /* which of a video's frames are taken */
    int stride;         /* every stride-th, from the first on; 0 = 1 */
    int most;           /* at most so many of those, evenly spread; 0 = all */
};

/* The number in a member's extension, "0007.jpg" (jpeg, png, webp) or "frame_0007.jpg" ("frame" and
 * at most one '_' or '-'); -1 if it is no frame. */
int64_t dt_data_frame_number(const char *ext);
/* How many of n are taken, and which is the i-th of them: of the m that the stride leaves number
 * floor(i m / most). */
int dt_data_frames_taken(const struct dt_data_frames *f, int n);
int dt_data_frames_at(const struct dt_data_frames *f, int n, int i);

#endif
