/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Log-mel filter banks: sound as the picture that encoders of spectrograms look at. */
#ifndef DT_EXEC_DATA_FBANK_H
#define DT_EXEC_DATA_FBANK_H

#include "exec/data/audio.h"

/* Energies of `bins` (DT_SAMPLE_SOUND_BINS_MIN to _MAX) filters in dt_sample_sound_frames(cs) frames of the sound
 * [cs * DT_SAMPLE_SOUND_HOP] between -1 and 1, cs at least DT_SAMPLE_SOUND_CS_MIN: out[frames][bins], filters from
 * low to high.  Kaldi's features as BEATs takes them in (doc/data.md has the formula and its constants). */
void dt_audio_fbank(const float *sound, int cs, int bins, float *out);
/* dt_audio_decode, then dt_audio_fbank: out->at is [dt_sample_sound_frames(out->cs)][bins]. */
enum dt_status dt_audio_spectrogram(const uint8_t *bytes, size_t len, int cs_max, int bins,
                                    struct dt_error *err, struct dt_audio *out,
                                    enum dt_audio_bad *bad);

#endif
