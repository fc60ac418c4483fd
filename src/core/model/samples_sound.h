/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a clip of sound is to an encoder of spectrograms: frames, then patches.  The planner and the loader (exec/data)
 * count by these, so that both come to the same tokens.
 *
 *   sound at 16 kHz, cut to whole hundredths of a second
 *     --> frames of 25 ms, one every 10 ms, those that lie in the clip as a whole: n hundredths have n - 2
 *     --> [frames][mel_bins], cut into patch x patch squares; rows of patches that are not full are left out
 *
 * Window and hop are those of BEATs and AST (published); ten seconds make 998 frames, 62 rows of 8 patches: the 496
 * tokens of BEATs. */
#ifndef DT_CORE_MODEL_SAMPLES_SOUND_H
#define DT_CORE_MODEL_SAMPLES_SOUND_H

#include <stdint.h>

enum {
    DT_SAMPLE_SOUND_RATE = 16000, /* Hz */
    DT_SAMPLE_SOUND_WINDOW = 400, /* values of a frame: 25 ms */
    DT_SAMPLE_SOUND_HOP = 160,    /* from frame to frame: 10 ms, a hundredth of a second */
    DT_SAMPLE_SOUND_CS_MIN = 3,   /* hundredths of a second that have a frame */
    DT_SAMPLE_SOUND_BINS_MIN = 16,
    DT_SAMPLE_SOUND_BINS_MAX = 256 /* as many as the transform of a frame has frequencies */
};

/* Frames of a clip of `cs` hundredths of a second; one of less than a frame counts as one. */
static inline int64_t dt_sample_sound_frames(int64_t cs)
{
    return cs > 3 ? cs - 2 : 1;
}
/* The clip that has so many frames. */
static inline int64_t dt_sample_sound_cs(int64_t frames)
{
    return frames + 2;
}
/* Rows of patches, one after the other in time: at least one, whose end repeats the last frame. */
static inline int64_t dt_sample_sound_rows(int64_t frames, int patch)
{
    return frames > patch ? frames / patch : 1;
}
static inline int64_t dt_sample_sound_patches(int64_t frames, int bins, int patch)
{
    return dt_sample_sound_rows(frames, patch) * (bins / patch);
}

#endif
