/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Kaldi's filter banks (compute-fbank-feats without dither) with the settings of BEATs (Chen et al. 2022): 16-bit
 * scale, frames of 25 ms every 10 ms, mean removed, pre-emphasis 0.97, Povey's window, 512-point power spectrum,
 * triangles on the mel scale from 20 Hz to 8 kHz, logarithm, AudioSet's mean and twice its deviation.  Constants are
 * published, in BEATs' released code (`preprocess`) and as the defaults of what it calls, torchaudio's
 * compliance.kaldi.fbank; only the floor under the logarithm is recalled. */
#include "exec/data/fbank.h"

#include "base/mem.h"

#include <complex.h>
#include <float.h>
#include <math.h>

enum { WINDOW = DT_SAMPLE_SOUND_WINDOW, HOP = DT_SAMPLE_SOUND_HOP, FFT = 512, HALF = FFT / 2 };
enum { FFT_BITS = 9 };
#define SCALE 32768.0     /* of 16-bit sound */
#define PREEMPHASIS 0.97  /* Kaldi's default */
#define POVEY_POWER 0.85  /* Kaldi's default window: Hann's to this power, so 0 at both ends */
#define LOW_HZ 20.0       /* Kaldi's default */
#define FLOOR FLT_EPSILON /* Kaldi's, under the logarithm (recalled) */
#define MEAN 15.41663     /* of AudioSet's features, BEATs' code */
#define DEVIATION 6.55582 /* the same; features are divided by twice as much */

struct tables {
    double window[WINDOW];
    int first[HALF]; /* a frequency lies between the peaks of this filter - 1 and this one */
    double up[HALF]; /* its share of filter `first`; what is missing to 1 goes to the one before */
    int bins;
    double complex root[HALF]; /* of unity, clockwise */
    int place[FFT];            /* its bits in reverse */
};

static double mel(double hz)
{
    return 1127.0 * log(1.0 + hz / 700.0);
}

/* Filters are triangles whose peaks are the same distance apart in mel, feet under their neighbours' peaks. */
static void fill(struct tables *t, int bins)
{
    double low = mel(LOW_HZ), step = (mel(DT_SAMPLE_SOUND_RATE / 2.0) - low) / (bins + 1);

    for (int i = 0; i < WINDOW; i++)
        t->window[i] = pow(0.5 - 0.5 * cos(2 * M_PI * i / (WINDOW - 1)), POVEY_POWER);
    for (int k = 0; k < HALF; k++) {
        double at = (mel((double)k * DT_SAMPLE_SOUND_RATE / FFT) - low) / step;

        t->first[k] = at > 0 ? (int)at : -1; /* -1: below all filters */
        t->up[k] = at - floor(at);
    }
    t->bins = bins;
    for (int k = 0; k < HALF; k++)
        t->root[k] = cos(2 * M_PI * k / FFT) - I * sin(2 * M_PI * k / FFT);
    for (int i = 0; i < FFT; i++) {
        t->place[i] = 0;
        for (int b = 0; b < FFT_BITS; b++)
            t->place[i] |= (i >> b & 1) << (FFT_BITS - 1 - b);
    }
}

/* z[FFT]: the frame, then zeros. */
static void windowed(const struct tables *t, const float *sound, double complex *z)
{
    double x[WINDOW], mean = 0;

    for (int i = 0; i < WINDOW; i++)
        mean += x[i] = SCALE * (double)sound[i];
    mean /= WINDOW;
    for (int i = 0; i < WINDOW; i++)
        x[i] -= mean;
    for (int i = WINDOW - 1; i > 0; i--)
        x[i] -= PREEMPHASIS * x[i - 1];
    x[0] -= PREEMPHASIS * x[0];
    for (int i = 0; i < FFT; i++)
        z[i] = i < WINDOW ? x[i] * t->window[i] : 0;
}

/* Cooley and Tukey's transform, in place: places by their bits in reverse, then pairs, pairs of pairs ... */
static void transform(const struct tables *t, double complex *z)
{
    for (int i = 0; i < FFT; i++)
        if (i < t->place[i]) {
            double complex keep = z[i];

            z[i] = z[t->place[i]];
            z[t->place[i]] = keep;
        }
    for (int half = 1; half < FFT; half *= 2)
        for (int at = 0; at < FFT; at += 2 * half)
            for (int k = 0; k < half; k++) {
                double complex a = z[at + k], b = z[at + half + k] * t->root[k * (HALF / half)];

                z[at + k] = a + b;
                z[at + half + k] = a - b;
            }
}

static void energies(const struct tables *t, const double complex *z, double *e)
{
    for (int b = 0; b < t->bins; b++)
        e[b] = 0;
    for (int k = 0; k < HALF; k++) {
        double p = creal(z[k]) * creal(z[k]) + cimag(z[k]) * cimag(z[k]);

        if (t->first[k] < 0)
            continue;
        if (t->first[k] < t->bins)
            e[t->first[k]] += t->up[k] * p;
        if (t->first[k] > 0)
            e[t->first[k] - 1] += (1 - t->up[k]) * p;
    }
}

void dt_audio_fbank(const float *sound, int cs, int bins, float *out)
{
    int64_t frames = dt_sample_sound_frames(cs);
    double complex x[FFT];
    double e[DT_SAMPLE_SOUND_BINS_MAX];
    struct tables t;

    fill(&t, bins);
    for (int64_t f = 0; f < frames; f++) {
        windowed(&t, sound + f * HOP, x);
        transform(&t, x);
        energies(&t, x, e);
        for (int b = 0; b < bins; b++)
            out[f * bins + b] = (float)((log(fmax(e[b], FLOOR)) - MEAN) / (2 * DEVIATION));
    }
}

enum dt_status dt_audio_spectrogram(const uint8_t *bytes, size_t len, int cs_max, int bins,
                                    struct dt_error *err, struct dt_audio *out,
                                    enum dt_audio_bad *bad)
{
    struct dt_audio a;
    float *features;

    DT_TRY(dt_audio_decode(bytes, len, cs_max, err, &a, bad));
    features = dt_malloc((size_t)dt_sample_sound_frames(a.cs) * (size_t)bins * sizeof *features);
    if (features)
        dt_audio_fbank(a.at, a.cs, bins, features);
    dt_free(a.at);
    if (!features)
        return dt_error_nomem(err, "a spectrogram");
    a.at = features;
    *out = a;
    return DT_OK;
}
