/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Sound in memory: WAV and FLAC decoded, mixed to one channel, at 16 kHz.
 *
 * Lengths are whole hundredths of a second ("cs"), the rest is cut off; so is what lies beyond a limit.  They are
 * known from the header, and what follows it must be there. */
#ifndef DT_EXEC_DATA_AUDIO_H
#define DT_EXEC_DATA_AUDIO_H

#include "base/status.h"
#include "core/model/samples_sound.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DT_AUDIO_RATE_MIN = 4000, /* Hz; below it lies no speech */
    DT_AUDIO_RATE_MAX = 384000,
    DT_AUDIO_CHANNELS_MAX = 16,
    DT_AUDIO_CS_MAX = 65535 /* what a sample's sizes can hold, 655.35 s (core/model/samples.h) */
};

/* By the first bytes: WAV (RIFF) or FLAC.  What else libsndfile reads is not asked for. */
bool dt_audio_sniff(const uint8_t *bytes, size_t len);
/* Whether this program was built with libsndfile.  Without it what follows is DT_ERR_USAGE. */
bool dt_audio_built(void);
enum dt_audio_bad { DT_AUDIO_DAMAGED, DT_AUDIO_LIMIT }; /* what a DT_ERR_INPUT is about */
struct dt_audio {
    int cs;    /* hundredths of a second; at most the limit */
    bool cut;  /* it was longer */
    float *at; /* [cs * DT_SAMPLE_SOUND_HOP] from -1 to 1; dt_free */
};
/* The length alone, from the header.  cs_max: the limit. */
enum dt_status dt_audio_length(const uint8_t *bytes, size_t len, int cs_max, struct dt_error *err,
                               struct dt_audio *out, enum dt_audio_bad *bad);
/* All of it.  Truncated or corrupt data is DT_ERR_INPUT, never half a clip; what lies behind the limit is not looked
 * at. */
enum dt_status dt_audio_decode(const uint8_t *bytes, size_t len, int cs_max, struct dt_error *err,
                               struct dt_audio *out, enum dt_audio_bad *bad);

#endif
