/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Sound: files, rates, features, and that planner, loader and encoder count the same patches. */
#include "base/mem.h"
#include "base/rng.h"
#include "core/model/samples.h"
#include "data_fixture.h"
#include "exec/data/fbank.h"
#include "exec/data/loader.h"
#include "exec/program/batching.h"
#include "sound_fixture.h"

#include <sndfile.h>

enum { RATE = DT_SAMPLE_SOUND_RATE, HOP = DT_SAMPLE_SOUND_HOP, BINS = 128 };

static struct dt_error err;

static struct dt_audio decoded(const uint8_t *bytes, size_t len, int cs_max)
{
    struct dt_audio a;
    enum dt_audio_bad bad;

    dt_assert_ok(dt_audio_decode(bytes, len, cs_max, &err, &a, &bad), err);
    return a;
}

/* Decoded from 16-bit values of a WAV file. */
static struct dt_audio wav_of(const int16_t *x, int rate, int channels, uint32_t n)
{
    size_t len;
    uint8_t *bytes = snd_wav(1, rate, channels, 16, x, n, &len);
    struct dt_audio a = decoded(bytes, len, DT_AUDIO_CS_MAX);

    free(bytes);
    return a;
}

/* ---- features ---- */

START_TEST(features_are_those_of_the_definition)
{
    static const int bins[] = {128, 80, 16, 256};
    struct dt_rng r;
    float x[30 * HOP], got[28 * 256];
    double want[256];

    dt_rng_init(&r, 5, 1);
    for (int i = 0; i < 30 * HOP; i++)
        x[i] = (float)(0.2 * sin(i * 0.3 * (1 + i / 4000.0)) + 0.05 * dt_rng_normal(&r) + 0.1);
    for (int k = 0; k < 4; k++) {
        dt_audio_fbank(x, 30, bins[k], got);
        ck_assert_int_eq(dt_sample_sound_frames(30), 28);
        for (int f = 0; f < 28; f += 9) {
            snd_frame(x + f * HOP, bins[k], want);
            for (int b = 0; b < bins[k]; b++)
                ck_assert_double_eq_tol((double)got[f * bins[k] + b], want[b], 1e-6);
        }
    }
}
END_TEST

START_TEST(silence_is_the_floor)
{
    static const float silence[100 * HOP];
    float got[98 * BINS];

    dt_audio_fbank(silence, 100, BINS, got);
    for (int i = 0; i < 98 * BINS; i++)
        ck_assert_double_eq_tol((double)got[i], (-15.942385 - 15.41663) / 13.11164, 1e-5);
}
END_TEST

/* Of a tone the window sees a line: pre-emphasis scales it, and the window's own transform spreads it.  The other
 * line, of -hz, lies far away. */
static double tone_energy(double hz, double amplitude, int filter)
{
    double w = 2 * M_PI * hz / RATE, line, sum = 0;

    line = 32768 * amplitude / 2 * sqrt(1 + 0.97 * 0.97 - 2 * 0.97 * cos(w));
    for (int k = 0; k < 256; k++) {
        double re = 0, im = 0, at = 2 * M_PI * k / 512 - w;

        for (int i = 0; i < 400; i++) {
            re += snd_window(i) * cos(at * i);
            im += snd_window(i) * sin(at * i);
        }
        sum += snd_filter(filter, BINS, k * 31.25) * line * line * (re * re + im * im);
    }
    return sum;
}

START_TEST(a_tone_is_in_its_filter)
{
    static const double tones[] = {700, 1000, 1860, 3210, 5000, 7400};
    static const double loud[] = {0.5, 0.05};

    for (size_t t = 0; t < sizeof tones / sizeof *tones; t++)
        for (size_t l = 0; l < 2; l++) {
            int best = 0, expected = (int)lrint((snd_mel(tones[t]) - snd_mel(20)) /
                                                ((snd_mel(8000) - snd_mel(20)) / (BINS + 1))) -
                                     1;
            int16_t *x = snd_tone(tones[t], RATE, loud[l], RATE, 1);
            struct dt_audio a = wav_of(x, RATE, 1, RATE);
            float got[98 * BINS], *mid = got + 49 * BINS;

            dt_audio_fbank(a.at, a.cs, BINS, got);
            for (int b = 0; b < BINS; b++)
                best = mid[b] > mid[best] ? b : best;
            ck_assert_int_le(abs(best - expected), 1);
            ck_assert_double_eq_tol((double)mid[best] * 13.11164 + 15.41663,
                                    log(tone_energy(tones[t], loud[l], best)), 0.01);
            dt_free(a.at);
            free(x);
        }
}
END_TEST

/* ---- files ---- */

struct memory {
    uint8_t bytes[1 << 20];
    sf_count_t n, at;
};
static struct memory file;

static sf_count_t mem_length(void *m)
{
    return ((struct memory *)m)->n;
}
static sf_count_t mem_seek(sf_count_t to, int whence, void *m)
{
    struct memory *f = m;
    return f->at = to + (whence == SEEK_SET ? 0 : whence == SEEK_CUR ? f->at : f->n);
}
static sf_count_t mem_read(void *to, sf_count_t n, void *m)
{
    struct memory *f = m;
    n = n < f->n - f->at ? n : f->n - f->at;
    memcpy(to, f->bytes + f->at, (size_t)n);
    f->at += n;
    return n;
}
static sf_count_t mem_write(const void *from, sf_count_t n, void *m)
{
    struct memory *f = m;
    memcpy(f->bytes + f->at, from, (size_t)n);
    f->at += n;
    f->n = f->at > f->n ? f->at : f->n;
    return n;
}
static sf_count_t mem_tell(void *m)
{
    return ((struct memory *)m)->at;
}

/* Into `file`. */
static void encode(int format, int rate, int channels, const int16_t *x, sf_count_t n)
{
    static SF_VIRTUAL_IO io = {mem_length, mem_seek, mem_read, mem_write, mem_tell};
    SF_INFO info = {.samplerate = rate, .channels = channels, .format = format};
    SNDFILE *f;

    file.n = file.at = 0;
    f = sf_open_virtual(&io, SFM_WRITE, &info, &file);
    ck_assert_msg(f != NULL, "%s", sf_strerror(NULL));
    sf_command(f, SFC_SET_SCALE_INT_FLOAT_WRITE, NULL, SF_TRUE);
    ck_assert_int_eq(sf_writef_short(f, x, n), n);
    ck_assert_int_eq(sf_close(f), 0);
}

START_TEST(flac_and_wav_are_the_same_sound)
{
    static const int rates[] = {16000, 44100, 8000, 48000};

    for (int k = 0; k < 4; k++) {
        uint32_t n = (uint32_t)rates[k] * 3 / 2;
        int16_t *x = snd_tone(440, rates[k], 0.7, n, 2);
        struct dt_audio a, b;

        for (uint32_t i = 0; i < n; i++) /* the other channel is not the same */
            x[2 * i + 1] = (int16_t)(x[2 * i] / 3 + (int)(i % 77));
        a = wav_of(x, rates[k], 2, n);
        encode(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, rates[k], 2, x, n);
        ck_assert(dt_audio_sniff(file.bytes, (size_t)file.n));
        b = decoded(file.bytes, (size_t)file.n, DT_AUDIO_CS_MAX);
        ck_assert_int_eq(a.cs, 150);
        ck_assert_int_eq(b.cs, 150);
        ck_assert_mem_eq(a.at, b.at, 150 * HOP * sizeof(float));
        if (rates[k] == RATE) /* the mean of both channels */
            for (uint32_t i = 0; i < 100; i++)
                ck_assert_double_eq_tol((double)a.at[i], (x[2 * i] + x[2 * i + 1]) / 65536.0, 1e-7);
        dt_free(a.at);
        dt_free(b.at);
        free(x);
    }
}
END_TEST

/* Another rate keeps frequency, phase and amplitude of what lies below 6.6 kHz, and drops what lies above 8 kHz. */
START_TEST(another_rate_is_the_same_sound)
{
    static const struct {
        int rate;
        double hz, bound;
    } c[] = {{44100, 1000, 2e-4},  {48000, 5000, 2e-4},  {8000, 1000, 2e-4},
             {22050, 440.5, 2e-4}, {96000, 6600, 2e-4},  {44100, 6500, 2e-4},
             {11025, 3000, 2e-4},  {44100, 9000, -2e-4}, {48000, 15000, -2e-4}};

    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        uint32_t n = (uint32_t)c[k].rate;
        int16_t *x = snd_tone(c[k].hz, c[k].rate, 0.5, n, 1);
        struct dt_audio a = wav_of(x, c[k].rate, 1, n);
        double worst = 0;

        ck_assert_int_eq(a.cs, 100);
        for (int i = RATE / 20; i < RATE - RATE / 20; i++) { /* but for the ends of the filter */
            double want = c[k].bound > 0 ? 0.5 * sin(2 * M_PI * c[k].hz * i / RATE) : 0;

            worst = fmax(worst, fabs((double)a.at[i] - want));
        }
        ck_assert_msg(worst < fabs(c[k].bound), "%d Hz, %g Hz: %g", c[k].rate, c[k].hz, worst);
        dt_free(a.at);
        free(x);
    }
}
END_TEST

START_TEST(floats_and_other_codings)
{
    int16_t *x = snd_tone(500, RATE, 0.5, RATE, 1);
    float *y = malloc(RATE * sizeof *y);
    static const int formats[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_24,
                                  SF_FORMAT_WAV | SF_FORMAT_PCM_U8, SF_FORMAT_WAV | SF_FORMAT_ULAW,
                                  SF_FORMAT_FLAC | SF_FORMAT_PCM_24,
                                  SF_FORMAT_WAV | SF_FORMAT_DOUBLE};
    struct dt_audio a = wav_of(x, RATE, 1, RATE), b;
    size_t len;
    uint8_t *wav;

    for (int i = 0; i < RATE; i++)
        y[i] = (float)(x[i] / 32768.0);
    wav = snd_wav(3, RATE, 1, 32, y, RATE, &len);
    b = decoded(wav, len, 1000);
    ck_assert_mem_eq(a.at, b.at, RATE * sizeof *y);
    dt_free(b.at);
    free(wav);
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        encode(formats[k], RATE, 1, x, RATE);
        b = decoded(file.bytes, (size_t)file.n, 1000);
        for (int i = 0; i < RATE; i++)
            ck_assert_double_eq_tol((double)a.at[i], (double)b.at[i], 0.02);
        dt_free(b.at);
    }
    dt_free(a.at);
    free(x);
    free(y);
}
END_TEST

static void refused(const uint8_t *bytes, size_t len, enum dt_audio_bad kind, const char *why)
{
    struct dt_audio a = {.cs = 77};
    enum dt_audio_bad bad = kind == DT_AUDIO_LIMIT ? DT_AUDIO_DAMAGED : DT_AUDIO_LIMIT;

    ck_assert_int_eq(dt_audio_decode(bytes, len, 1000, &err, &a, &bad), DT_ERR_INPUT);
    ck_assert_int_eq(bad, kind);
    dt_assert_has(err.message, why);
    ck_assert_int_eq(a.cs, 77);
}

START_TEST(limits)
{
    static const struct {
        int rate, channels;
        uint32_t n;
        const char *why;
    } c[] = {{3999, 1, 4000, "3999 Hz"},
             {400000, 1, 400000, "400000 Hz"},
             {16000, 17, 16000, "17 channels"},
             {16000, 1, 479, "less than 0.03 s"},
             {44100, 2, 0, "less than 0.03 s"}};
    size_t len;

    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        int16_t *x = snd_tone(100, c[k].rate, 0.1, c[k].n, c[k].channels);
        uint8_t *wav = snd_wav(1, c[k].rate, c[k].channels, 16, x, c[k].n, &len);

        refused(wav, len, DT_AUDIO_LIMIT, c[k].why);
        free(wav);
        free(x);
    }
}
END_TEST

START_TEST(a_long_clip_is_cut)
{
    int16_t *x = snd_tone(300, 44100, 0.5, 44100 * 3, 1);
    size_t len;
    uint8_t *wav = snd_wav(1, 44100, 1, 16, x, 44100 * 3, &len);
    struct dt_audio whole = decoded(wav, len, 300), part = decoded(wav, len, 120), head;
    enum dt_audio_bad bad;

    ck_assert(!whole.cut && whole.cs == 300 && part.cut && part.cs == 120);
    dt_assert_ok(dt_audio_length(wav, len, 120, &err, &head, &bad), err);
    ck_assert(head.cut && head.cs == 120 && !head.at);
    ck_assert_mem_eq(whole.at, part.at, 120 * HOP * sizeof(float));
    dt_free(whole.at);
    dt_free(part.at);
    free(wav);
    free(x);
}
END_TEST

START_TEST(damage_is_told)
{
    int16_t *x = snd_tone(300, 22050, 0.5, 22050, 1);
    size_t len;
    uint8_t *wav = snd_wav(1, 22050, 1, 16, x, 22050, &len);
    float nan[4800] = {[4000] = NAN};

    refused(wav, len - 1, DT_AUDIO_DAMAGED, "shorter than its header says");
    refused(wav, 43, DT_AUDIO_DAMAGED, "shorter than its header says");
    refused(wav, 11, DT_AUDIO_DAMAGED, "neither WAV nor FLAC");
    refused((const uint8_t *)"", 0, DT_AUDIO_DAMAGED, "neither WAV nor FLAC");
    wav[20] = 85; /* MP3 in a WAV file */
    refused(wav, len, DT_AUDIO_DAMAGED, "");
    free(wav);
    wav = snd_wav(3, 16000, 1, 32, nan, 4800, &len);
    refused(wav, len, DT_AUDIO_DAMAGED, "no numbers");
    free(wav);
    encode(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 22050, 1, x, 22050);
    for (sf_count_t n = 4; n < file.n; n += 1 + n / 7)
        refused(file.bytes, (size_t)n, DT_AUDIO_DAMAGED, "");
    file.bytes[file.n / 2] ^= 0x55; /* within a frame, which has a checksum */
    refused(file.bytes, (size_t)file.n, DT_AUDIO_DAMAGED, "");
    encode(SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM, 22050, 1, x, 22050);
    refused(file.bytes, (size_t)file.n, DT_AUDIO_DAMAGED, "neither PCM");
    encode(SF_FORMAT_OGG | SF_FORMAT_VORBIS, 22050, 1, x, 22050);
    refused(file.bytes, (size_t)file.n, DT_AUDIO_DAMAGED, "neither WAV nor FLAC");
    free(x);
}
END_TEST

/* ---- shards ---- */

struct clip {
    const char *ext, *caption;
    uint8_t *bytes;
    size_t len;
};

static void write_clips(const char *dir, const struct clip *c, int n)
{
    struct dt_shard_writer *w;
    char prefix[512], key[32];
    int shards;

    snprintf(prefix, sizeof prefix, "%s/s", dir);
    dt_assert_ok(dt_shard_writer_open(prefix, 100, INT64_MAX, false, &err, &w), err);
    for (int i = 0; i < n; i++) {
        struct dt_shard_member m[2] = {
            {c[i].ext, c[i].bytes, c[i].len},
            {"txt", (const uint8_t *)c[i].caption, strlen(c[i].caption)}};

        snprintf(key, sizeof key, "%03d", i);
        dt_assert_ok(dt_shard_write(w, key, m, 2, &err), err);
    }
    dt_assert_ok(dt_shard_writer_close(w, &err, &shards), err);
}

static struct dt_loader *open_loader(struct dt_loader_options *o, const char *dir,
                                     struct dt_tokenizer **t)
{
    static char path[600];
    static const char *shards[] = {path};
    struct dt_loader *l;

    snprintf(path, sizeof path, "%s/s-000000.tar", dir);
    dt_assert_ok(dt_tokenizer_bytes(&err, t), err);
    o->shards = shards;
    o->n_shards = 1;
    o->tokenizer = *t;
    o->unpacked = true;
    o->epochs = 1;
    dt_assert_ok(dt_loader_open(o, &err, &l), err);
    return l;
}

/* A clip's patches: what the planner counts for the clip of the CSV that `data scan` writes, what the loader gives it
 * in a sequence, and what there is in the spectrogram. */
START_TEST(planner_and_loader_count_alike)
{
    enum { N = 40 };
    char dir[512];
    struct clip c[N];
    struct dt_loader_options o = {.seq_len = 4096, .patch = 16, .mel_bins = BINS, .sound_cs = 700};
    struct dt_module m = {
        .role = DT_ROLE_ENCODER, .modality = DT_MODALITY_AUDIO, .patch = 16, .mel_bins = BINS};
    struct dt_samples_image image = {.mel_bins = BINS, .sound_patch = 16};
    struct dt_tokenizer *t;
    struct dt_loader *l;
    struct dt_rng r;
    int cut = 0;

    fixture_folder(dir, sizeof dir);
    dt_rng_init(&r, 9, 9);
    for (int i = 0; i < N; i++) {
        int rate = (int[]){16000, 44100, 22050, 8000}[i % 4];
        uint32_t n = (uint32_t)(rate * (0.04 + 8.0 * i * i / N / N)) + dt_rng_below(&r, 200);
        int16_t *x = snd_tone(200 + 20 * i, rate, 0.3, n, 1);

        c[i] = (struct clip){"wav", "a tone", NULL, 0};
        c[i].bytes = snd_wav(1, rate, 1, 16, x, n, &c[i].len);
        free(x);
    }
    write_clips(dir, c, N);
    for (int sizes_only = 0; sizes_only < 2; sizes_only++) {
        struct dt_data_report report;

        o.sizes_only = sizes_only;
        l = open_loader(&o, dir, &t);
        for (int i = 0; i < N; i++) {
            struct dt_sequence *s;
            struct dt_samples *plan;
            struct dt_work w, again;
            char csv[200];
            double cs;

            dt_assert_ok(dt_loader_next(l, &err, &s), err);
            cs = floor((double)((c[i].len - 44) / 2) * 100 /
                       (int[]){16000, 44100, 22050, 8000}[i % 4]);
            cut += cs > 700;
            cs = fmin(cs, 700);
            ck_assert_int_eq(s->n_items, 1);
            ck_assert(s->items[0].sound && s->items[0].w == BINS);
            ck_assert_int_eq(s->items[0].h, (int)fmax(cs - 2, 1));
            ck_assert((s->items[0].px == NULL) == sizes_only);
            snprintf(csv, sizeof csv, "text_tokens,audio_s,seq_tokens\n%d,%.2f,%d\n",
                     s->text_tokens, cs / 100, s->n_tokens);
            dt_assert_ok(dt_samples_parse_csv("csv", csv, strlen(csv), 4096, &image, &err, &plan),
                         err);
            dt_sample_work(plan, 0, &m, &w);
            ck_assert_int_eq(w.tokens, s->items[0].n);
            ck_assert_int_eq(w.tokens, 8 * (int)fmax(floor((cs - 2) / 16), 1));
            ck_assert_int_eq(s->n_tokens - s->text_tokens, s->items[0].n);
            dt_samples_free(plan);
            /* and what the executor plans and reports its FLOPs by */
            dt_assert_ok(
                dt_batching_samples((const struct dt_sequence *const[]){s}, 1, &err, &plan), err);
            dt_sample_work(plan, 0, &m, &again);
            ck_assert_mem_eq(&again, &w, sizeof w);
            dt_samples_free(plan);
            dt_sequence_free(s);
        }
        dt_loader_report(l, &report);
        ck_assert_int_eq(report.clips_cut, cut / (1 + sizes_only));
        ck_assert_int_gt(report.clips_cut, 0);
        dt_loader_close(l);
        dt_tokenizer_free(t);
    }
    for (int i = 0; i < N; i++)
        free(c[i].bytes);
    fixture_folder_remove(dir);
}
END_TEST

START_TEST(bad_sounds_are_counted_by_cause)
{
    char dir[512];
    int16_t *x = snd_tone(440, RATE, 0.5, RATE, 1);
    size_t len;
    uint8_t *good = snd_wav(1, RATE, 1, 16, x, RATE, &len), *slow;
    struct clip c[6] = {{"wav", "fine", good, len},         {"wav", "cut off", good, len - 100},
                        {"flac", "no flac", good, 30},      {"png", "no sound", good, len},
                        {"wav", "of an odd rate", NULL, 0}, {"wav", "long", good, len}};
    struct dt_loader_options o = {.seq_len = 64, .patch = 16, .mel_bins = BINS};
    struct dt_data_report r;
    struct dt_tokenizer *t;
    struct dt_loader *l;
    struct dt_sequence *s;

    slow = c[4].bytes = snd_wav(1, 1000, 1, 16, x, RATE, &c[4].len);
    fixture_folder(dir, sizeof dir);
    write_clips(dir, c, 6);
    l = open_loader(&o, dir, &t);
    for (int n = 0;; n++) {
        dt_assert_ok(dt_loader_next(l, &err, &s), err);
        if (!s) {
            ck_assert_int_eq(n, 2);
            break;
        }
        dt_sequence_free(s);
    }
    dt_loader_report(l, &r);
    ck_assert_int_eq(r.bad[DT_BAD_AUDIO], 2);
    ck_assert_int_eq(r.bad[DT_BAD_AUDIO_LIMIT], 1);
    ck_assert_int_eq(r.bad[DT_BAD_NO_IMAGE], 1);
    ck_assert_int_eq(dt_data_bad_total(&r), 4);
    dt_assert_has(r.example[DT_BAD_AUDIO], "s-000000.tar, sample 001: WAV: shorter");
    dt_assert_has(r.example[DT_BAD_AUDIO_LIMIT], "sample 004: sound at 1000 Hz");
    dt_assert_has(r.example[DT_BAD_NO_IMAGE], "no wav or flac member");
    dt_loader_close(l);
    dt_tokenizer_free(t);
    free(good);
    free(slow);
    free(x);
    fixture_folder_remove(dir);
}
END_TEST

/* Of samples with a sound, a picture or both (i % 3): a picture is drawn, never read. */
START_TEST(sounds_are_read_and_pictures_drawn)
{
    enum { N = 60 };
    char dir[512], prefix[600], key[32];
    int16_t *x = snd_tone(440, RATE, 0.5, RATE / 2, 1);
    struct dt_image img = fixture_picture(20, 30, 1);
    struct dt_shard_member all[3] = {
        {"wav", NULL, 0}, {"png", NULL, 0}, {"txt", (uint8_t *)"it", 2}};
    struct dt_loader_options o = {.seq_len = 256, .patch = 16, .mel_bins = BINS, .generate = 0.5};
    uint8_t *wav = snd_wav(1, RATE, 1, 16, x, RATE / 2, &all[0].len),
            *png = fixture_png(&img, &all[1].len);
    struct dt_shard_writer *w;
    int shards, tasks[3][3] = {{0}};

    all[0].data = wav;
    all[1].data = png;
    fixture_folder(dir, sizeof dir);
    snprintf(prefix, sizeof prefix, "%s/s", dir);
    dt_assert_ok(dt_shard_writer_open(prefix, 100, INT64_MAX, false, &err, &w), err);
    for (int i = 0; i < N; i++) {
        const struct dt_shard_member some[2] = {all[0], all[2]};
        const struct dt_shard_member *m = i % 3 == 0 ? some : i % 3 == 1 ? all + 1 : all;

        snprintf(key, sizeof key, "%03d", i);
        dt_assert_ok(dt_shard_write(w, key, m, i % 3 == 2 ? 3 : 2, &err), err);
    }
    dt_assert_ok(dt_shard_writer_close(w, &err, &shards), err);
    for (int draws = 0; draws < 2; draws++) {
        struct dt_data_report report;
        struct dt_tokenizer *t;
        struct dt_loader *l;
        struct dt_sequence *s;

        o.generate = draws ? 0.5 : 0;
        l = open_loader(&o, dir, &t);
        for (;;) {
            const struct dt_sequence_item *it;

            dt_assert_ok(dt_loader_next(l, &err, &s), err);
            if (!s)
                break;
            it = &s->items[0];
            ck_assert_int_eq(s->n_items, 1);
            ck_assert_int_eq(it->sound, s->docs[0].task == DT_TASK_CAPTION);
            ck_assert_int_eq(it->flags, it->sound ? DT_ITEM_ENCODE : DT_ITEM_GENERATE);
            ck_assert_int_eq(it->w, it->sound ? BINS : 20);
            ck_assert_int_eq(it->h, it->sound ? 48 : 30);
            tasks[s->docs[0].sample % 3][s->docs[0].task] += draws;
            dt_sequence_free(s);
        }
        dt_loader_report(l, &report);
        ck_assert_int_eq(report.bad[DT_BAD_NO_IMAGE], draws ? 0 : N / 3);
        ck_assert_int_eq(report.documents, draws ? N : 2 * N / 3);
        dt_loader_close(l);
        dt_tokenizer_free(t);
    }
    ck_assert_int_eq(tasks[0][DT_TASK_CAPTION], N / 3);
    ck_assert_int_eq(tasks[1][DT_TASK_GENERATE], N / 3);
    ck_assert_int_gt(tasks[2][DT_TASK_CAPTION], 2);
    ck_assert_int_gt(tasks[2][DT_TASK_GENERATE], 2);
    dt_image_free(&img);
    dt_free(png);
    free(wav);
    free(x);
    fixture_folder_remove(dir);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    int16_t *x = snd_tone(440, 44100, 0.5, 9000, 2);
    size_t len;
    uint8_t *wav = snd_wav(1, 44100, 2, 16, x, 9000, &len);
    int failed = 0;

    for (uint64_t k = 1;; k++) {
        struct dt_audio a = {0};
        enum dt_audio_bad bad;
        enum dt_status st;
        bool reached;

        dt_mem_fail_at(k);
        st = dt_audio_spectrogram(wav, len, 1000, BINS, &err, &a, &bad);
        reached = dt_mem_count() >= k;
        dt_mem_fail_at(0);
        ck_assert_int_eq(st, reached ? DT_ERR_NOMEM : DT_OK);
        ck_assert((a.at != NULL) == !reached);
        dt_free(a.at);
        failed += reached;
        if (!reached)
            break;
    }
    ck_assert_int_ge(failed, 4);
    free(wav);
    free(x);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("audio");
    TCase *tc = dt_test_case(suite, "features", 0);

    tcase_add_test(tc, features_are_those_of_the_definition);
    tcase_add_test(tc, silence_is_the_floor);
    tcase_add_test(tc, a_tone_is_in_its_filter);
    tc = dt_test_case(suite, "files", 60);
    tcase_add_test(tc, flac_and_wav_are_the_same_sound);
    tcase_add_test(tc, another_rate_is_the_same_sound);
    tcase_add_test(tc, floats_and_other_codings);
    tcase_add_test(tc, limits);
    tcase_add_test(tc, a_long_clip_is_cut);
    tcase_add_test(tc, damage_is_told);
    tc = dt_test_case(suite, "shards", 60);
    tcase_add_test(tc, planner_and_loader_count_alike);
    tcase_add_test(tc, bad_sounds_are_counted_by_cause);
    tcase_add_test(tc, sounds_are_read_and_pictures_drawn);
    tcase_add_test(tc, every_allocation_may_fail);
    return dt_test_run(suite);
}
