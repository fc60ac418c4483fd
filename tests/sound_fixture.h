/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Sounds for tests: WAV files written byte by byte, and their features by the definition. */
#ifndef DT_TESTS_SOUND_FIXTURE_H
#define DT_TESTS_SOUND_FIXTURE_H

#include "test_util.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static inline void snd_put(uint8_t **p, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *(*p)++ = (uint8_t)(v >> 8 * i);
}

/* A WAV file of PCM (format 1) or floats (3): n frames of `bits`; free(). */
static inline uint8_t *snd_wav(int format, int rate, int channels, int bits, const void *values,
                               uint32_t n, size_t *len)
{
    uint32_t data = n * (uint32_t)channels * (uint32_t)bits / 8;
    uint8_t *bytes = malloc(44 + data), *p = bytes;

    ck_assert_ptr_nonnull(bytes);
    memcpy(p, "RIFF", 4);
    p += 4;
    snd_put(&p, 36 + data, 4);
    memcpy(p, "WAVEfmt ", 8);
    p += 8;
    snd_put(&p, 16, 4);
    snd_put(&p, (uint32_t)format, 2);
    snd_put(&p, (uint32_t)channels, 2);
    snd_put(&p, (uint32_t)rate, 4);
    snd_put(&p, (uint32_t)(rate * channels * bits / 8), 4);
    snd_put(&p, (uint32_t)(channels * bits / 8), 2);
    snd_put(&p, (uint32_t)bits, 2);
    memcpy(p, "data", 4);
    p += 4;
    snd_put(&p, data, 4);
    if (data > 0)
        memcpy(p, values, data);
    *len = 44 + data;
    return bytes;
}

/* n values of a sine in 16 bits, `channels` alike; free(). */
static inline int16_t *snd_tone(double hz, int rate, double amplitude, uint32_t n, int channels)
{
    int16_t *x = malloc(((size_t)n * (size_t)channels + 1) * sizeof *x);

    ck_assert_ptr_nonnull(x);
    for (uint32_t i = 0; i < n; i++)
        for (int c = 0; c < channels; c++)
            x[i * (uint32_t)channels + (uint32_t)c] =
                (int16_t)lrint(32767 * amplitude * sin(2 * M_PI * hz * i / rate));
    return x;
}

/* ---- features by the definition: one frame x[400], one filter after the other, a transform of 512 sums ---- */

static inline double snd_mel(double hz)
{
    return 1127 * log(1 + hz / 700);
}

static inline double snd_filter(int b, int bins, double hz)
{
    double low = snd_mel(20), step = (snd_mel(8000) - low) / (bins + 1), at = snd_mel(hz);
    double left = low + b * step, peak = left + step, right = peak + step;

    if (at <= left || at >= right)
        return 0;
    return at <= peak ? (at - left) / (peak - left) : (right - at) / (right - peak);
}

static inline double snd_window(int i)
{
    return pow(0.5 - 0.5 * cos(2 * M_PI * i / 399), 0.85);
}

static inline void snd_frame(const float *x, int bins, double *out)
{
    double y[400], mean = 0;

    for (int i = 0; i < 400; i++)
        mean += 32768.0 * (double)x[i] / 400;
    for (int i = 0; i < 400; i++) {
        double now = 32768.0 * (double)x[i] - mean,
               before = 32768.0 * (double)x[i > 0 ? i - 1 : 0] - mean;

        y[i] = snd_window(i) * (now - 0.97 * before);
    }
    for (int b = 0; b < bins; b++)
        out[b] = 0;
    for (int k = 0; k < 256; k++) {
        double re = 0, im = 0;

        for (int i = 0; i < 400; i++) {
            re += y[i] * cos(2 * M_PI * k * i / 512);
            im -= y[i] * sin(2 * M_PI * k * i / 512);
        }
        for (int b = 0; b < bins; b++)
            out[b] += snd_filter(b, bins, 16000.0 * k / 512) * (re * re + im * im);
    }
    for (int b = 0; b < bins; b++)
        out[b] = (log(fmax(out[b], 1.1920928955078125e-07)) - 15.41663) / (2 * 6.55582);
}

#endif
