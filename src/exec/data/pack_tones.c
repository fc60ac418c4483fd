/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Sounds that nobody has to record: tones of a scale, each with a caption that names it.  The rule is in doc/data.md. */
#include "exec/data/pack.h"

#include "base/mem.h"
#include "base/rng.h"
#include "core/model/samples_sound.h"
#include "exec/data/caption.h"
#include "exec/data/shard.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHARD_SAMPLES = 10000, HEAD = 44, RATE = DT_SAMPLE_SOUND_RATE, VALUES_MAX = RATE };
#define SHARD_BYTES ((int64_t)1 << 30)
#define DO_HZ 523.2511 /* C5 of the equal temperament with A4 at 440 Hz */

const char *const dt_caption_tone_words[DT_CAPTION_TONES + 1] = {"do",  "re", "mi", "fa",
                                                                 "sol", "la", "ti", NULL};

struct tone {
    int class, n; /* values */
    double hz, amplitude, overtone[2];
    bool loud, is_long;
};

static double between(struct dt_rng *r, double low, double high)
{
    return low + (high - low) * dt_rng_uniform(r);
}

static void draw(struct dt_rng *r, struct tone *t)
{
    static const int semitones[DT_CAPTION_TONES] = {0, 2, 4, 5, 7, 9, 11};

    t->class = (int)dt_rng_below(r, DT_CAPTION_TONES);
    t->hz = DO_HZ * exp2((semitones[t->class] + between(r, -0.2, 0.2)) / 12);
    t->loud = dt_rng_below(r, 2);
    t->is_long = dt_rng_below(r, 2);
    t->amplitude = t->loud ? between(r, 0.3, 0.6) : between(r, 0.03, 0.06);
    t->n = (int)(RATE * (t->is_long ? between(r, 0.8, 1) : between(r, 0.4, 0.5)));
    t->overtone[0] = between(r, 0, 0.3);
    t->overtone[1] = between(r, 0, 0.2);
}

static void store(uint8_t *to, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(v >> 8 * i);
}

/* A WAV file of 16-bit values; returns its length. */
static size_t write_wav(struct dt_rng *r, const struct tone *t, uint8_t *out)
{
    static const uint8_t head[HEAD] = "RIFF____WAVEfmt \20\0\0\0\1\0\1\0________\2\0\20\0data";
    double phase = between(r, 0, 2 * M_PI), step = 2 * M_PI * t->hz / RATE;

    memcpy(out, head, HEAD);
    store(out + 4, HEAD - 8 + 2 * (uint32_t)t->n, 4);
    store(out + 24, RATE, 4);
    store(out + 28, 2 * RATE, 4);
    store(out + 40, 2 * (uint32_t)t->n, 4);
    for (int i = 0; i < t->n; i++) {
        double at = phase + step * i, x = sin(at);

        x += t->overtone[0] * sin(2 * at) + t->overtone[1] * sin(3 * at);
        x = t->amplitude * x + 0.002 * dt_rng_normal(r);
        store(out + HEAD + 2 * i, (uint32_t)(int32_t)lrint(32767 * fmax(fmin(x, 1), -1)), 2);
    }
    return HEAD + 2 * (size_t)t->n;
}

static enum dt_status write_tone(struct dt_shard_writer *w, int64_t i, uint64_t seed, uint8_t *wav,
                                 struct dt_error *err)
{
    char key[24], text[64], cls[8];
    struct dt_shard_member m[3] = {
        {"wav", wav, 0}, {"txt", (const uint8_t *)text, 0}, {"cls", (const uint8_t *)cls, 0}};
    struct dt_rng r;
    struct tone t;

    dt_rng_init(&r, seed, (uint64_t)i);
    draw(&r, &t);
    m[0].len = write_wav(&r, &t, wav);
    snprintf(key, sizeof key, "%08lld", (long long)i);
    m[1].len = (size_t)snprintf(text, sizeof text, "a %s %s, %s", t.loud ? "loud" : "soft",
                                dt_caption_tone_words[t.class], t.is_long ? "long" : "short");
    m[2].len = (size_t)snprintf(cls, sizeof cls, "%d", t.class);
    return dt_shard_write(w, key, m, 3, err);
}

enum dt_status dt_pack_tones(int64_t n, uint64_t seed, const struct dt_pack_options *o,
                             struct dt_data_report *report, struct dt_error *err,
                             struct dt_pack_result *out)
{
    uint8_t *wav = dt_malloc(HEAD + 2 * VALUES_MAX);
    struct dt_shard_writer *w = NULL;
    enum dt_status st = wav ? DT_OK : dt_error_nomem(err, "a tone");

    n = o->limit > 0 && o->limit < n ? o->limit : n;
    if (st == DT_OK)
        st =
            dt_shard_writer_open(o->prefix, o->shard_samples > 0 ? o->shard_samples : SHARD_SAMPLES,
                                 SHARD_BYTES, o->replace, err, &w);
    for (int64_t i = 0; i < n && st == DT_OK; i++)
        st = write_tone(w, i, seed, wav, err);
    if (st == DT_OK)
        st = dt_shard_writer_close(w, err, &out->shards);
    else if (w)
        dt_shard_writer_abort(w);
    dt_free(wav);
    if (st == DT_OK) {
        out->samples = n;
        report->documents += n;
    }
    return st;
}
