/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * libsndfile reads memory through callbacks; libsamplerate changes rates. */
#include "exec/data/audio.h"

#include "base/mem.h"

#include <math.h>
#include <samplerate.h>
#include <sndfile.h>
#include <string.h>

/* Of a channel, in memory at once: 256 MiB of floats. */
#define VALUES_MAX (INT64_C(1) << 26)
enum { BLOCK = 4096, AFTER_S = 50 /* parts of a second behind a cut, for the filter */ };

bool dt_audio_built(void)
{
    return true;
}

static bool is_wav(const uint8_t *b, size_t len)
{
    return len >= 12 && memcmp(b, "RIFF", 4) == 0 && memcmp(b + 8, "WAVE", 4) == 0;
}

bool dt_audio_sniff(const uint8_t *b, size_t len)
{
    return is_wav(b, len) || (len >= 4 && memcmp(b, "fLaC", 4) == 0);
}

/* ---- a file in memory ---- */

struct memory {
    const uint8_t *bytes;
    sf_count_t len, at;
};

static sf_count_t memory_length(void *ctx)
{
    return ((struct memory *)ctx)->len;
}

static sf_count_t memory_seek(sf_count_t offset, int whence, void *ctx)
{
    struct memory *m = ctx;
    sf_count_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? m->at : m->len;

    if (offset < -from || offset > m->len - from)
        return -1;
    return m->at = from + offset;
}

static sf_count_t memory_read(void *to, sf_count_t n, void *ctx)
{
    struct memory *m = ctx;

    n = n < m->len - m->at ? n : m->len - m->at;
    if (n > 0)
        memcpy(to, m->bytes + m->at, (size_t)n);
    m->at += n;
    return n;
}

static sf_count_t memory_write(const void *from, sf_count_t n, void *ctx)
{
    (void)from;
    (void)n;
    (void)ctx;
    return 0;
}

static sf_count_t memory_tell(void *ctx)
{
    return ((struct memory *)ctx)->at;
}

/* ---- opening ---- */

struct clip {
    struct memory m;
    SNDFILE *f;
    SF_INFO info;
    enum dt_audio_bad bad;
};

static enum dt_status refused(struct clip *c, enum dt_audio_bad bad, struct dt_error *err,
                              const char *what)
{
    c->bad = bad;
    return dt_error_set(err, DT_ERR_INPUT, "%s", what);
}

/* libsndfile takes what there is of a WAV file that was cut off: its header says how much there was. */
static bool wav_whole(const uint8_t *b, size_t len)
{
    for (size_t at = 12; len - at >= 8;) {
        uint32_t n = (uint32_t)b[at + 4] | (uint32_t)b[at + 5] << 8 | (uint32_t)b[at + 6] << 16 |
                     (uint32_t)b[at + 7] << 24;

        if (memcmp(b + at, "data", 4) == 0) /* all ones: of unknown length, written into a pipe */
            return n == UINT32_MAX || n <= len - at - 8;
        if (n > len - at - 8)
            return false;
        at += 8 + (size_t)n + (n & 1 && n < len - at - 8); /* chunks begin at even places */
    }
    return false;
}

static bool known_coding(int format)
{
    static const int known[] = {SF_FORMAT_PCM_U8, SF_FORMAT_PCM_S8, SF_FORMAT_PCM_16,
                                SF_FORMAT_PCM_24, SF_FORMAT_PCM_32, SF_FORMAT_FLOAT,
                                SF_FORMAT_DOUBLE, SF_FORMAT_ULAW,   SF_FORMAT_ALAW};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if ((format & SF_FORMAT_SUBMASK) == known[i])
            return true;
    return false;
}

static enum dt_status check_info(struct clip *c, struct dt_error *err)
{
    const SF_INFO *i = &c->info;

    if (!known_coding(i->format))
        return refused(c, DT_AUDIO_DAMAGED, err,
                       "a WAV file whose values are neither PCM, floats, A-law nor u-law");
    if (i->samplerate < DT_AUDIO_RATE_MIN || i->samplerate > DT_AUDIO_RATE_MAX) {
        c->bad = DT_AUDIO_LIMIT;
        return dt_error_set(err, DT_ERR_INPUT, "sound at %d Hz; %d to %d can be read",
                            i->samplerate, DT_AUDIO_RATE_MIN, DT_AUDIO_RATE_MAX);
    }
    if (i->channels < 1 || i->channels > DT_AUDIO_CHANNELS_MAX) {
        c->bad = DT_AUDIO_LIMIT;
        return dt_error_set(err, DT_ERR_INPUT, "sound of %d channels; at most %d can be read",
                            i->channels, DT_AUDIO_CHANNELS_MAX);
    }
    if (i->frames < 0 || i->frames > INT64_MAX / 1000)
        return refused(c, DT_AUDIO_DAMAGED, err, "sound whose header does not say how long it is");
    return DT_OK;
}

static enum dt_status clip_open(struct clip *c, const uint8_t *bytes, size_t len,
                                struct dt_error *err)
{
    static SF_VIRTUAL_IO io = {memory_length, memory_seek, memory_read, memory_write, memory_tell};

    memset(c, 0, sizeof *c);
    if (!dt_audio_sniff(bytes, len))
        return refused(c, DT_AUDIO_DAMAGED, err, "neither WAV nor FLAC");
    if (is_wav(bytes, len) && !wav_whole(bytes, len))
        return refused(c, DT_AUDIO_DAMAGED, err, "WAV: shorter than its header says");
    c->m = (struct memory){bytes, (sf_count_t)len, 0};
    c->f = sf_open_virtual(&io, SFM_READ, &c->info, &c->m);
    if (!c->f) {
        c->bad = DT_AUDIO_DAMAGED;
        return dt_error_set(err, DT_ERR_INPUT, "%.200s", sf_strerror(NULL));
    }
    return check_info(c, err);
}

static void clip_close(struct clip *c)
{
    if (c->f)
        sf_close(c->f);
}

static enum dt_status clip_length(struct clip *c, int cs_max, struct dt_error *err,
                                  struct dt_audio *out)
{
    int64_t cs = c->info.frames * 100 / c->info.samplerate;

    if (cs < DT_SAMPLE_SOUND_CS_MIN)
        return refused(c, DT_AUDIO_LIMIT, err, "sound of less than 0.03 s, which has no frame");
    out->cut = cs > cs_max;
    out->cs = (int)(out->cut ? cs_max : cs);
    out->at = NULL;
    if ((int64_t)out->cs * c->info.samplerate / 100 > VALUES_MAX)
        return refused(c, DT_AUDIO_LIMIT, err,
                       "sound of more than 64 Mi values a channel within the longest length");
    return DT_OK;
}

/* ---- values ---- */

/* The mean of all channels of the first n frames. */
static enum dt_status read_mixed(struct clip *c, int64_t n, struct dt_error *err, float **out)
{
    int channels = c->info.channels;
    float *block = dt_malloc(sizeof *block * BLOCK * (size_t)channels);
    void *mono = NULL;
    size_t cap = 0;
    enum dt_status st = block ? DT_OK : dt_error_nomem(err, "sound");

    for (int64_t done = 0; done < n && st == DT_OK;) {
        int64_t want = n - done < BLOCK ? n - done : BLOCK;

        if (sf_readf_float(c->f, block, want) != want || sf_error(c->f) != SF_ERR_NO_ERROR)
            st = refused(c, DT_AUDIO_DAMAGED, err, "truncated or corrupt sound");
        else if (dt_grow(&mono, &cap, (size_t)(done + want), sizeof(float)))
            st = dt_error_nomem(err, "sound");
        for (int64_t i = 0; i < want && st == DT_OK; i++) {
            double sum = 0;

            for (int k = 0; k < channels; k++)
                sum += (double)block[i * channels + k];
            ((float *)mono)[done + i] = (float)(sum / channels);
        }
        done += want;
    }
    dt_free(block);
    if (st == DT_OK)
        *out = mono;
    else
        dt_free(mono);
    return st;
}

/* To out->at, which is zero: the filter may end a few values early. */
static enum dt_status resample(struct clip *c, float *in, int64_t n, struct dt_audio *out,
                               struct dt_error *err)
{
    int64_t n_out = (int64_t)out->cs * DT_SAMPLE_SOUND_HOP;
    SRC_DATA d = {.data_in = in,
                  .data_out = out->at,
                  .input_frames = (long)n,
                  .output_frames = (long)n_out,
                  .src_ratio = (double)DT_SAMPLE_SOUND_RATE / c->info.samplerate};
    int failed;

    if (c->info.samplerate == DT_SAMPLE_SOUND_RATE) {
        memcpy(out->at, in, (size_t)n_out * sizeof *in);
        return DT_OK;
    }
    failed = src_simple(&d, SRC_SINC_MEDIUM_QUALITY, 1);
    if (failed)
        return dt_error_set(err, DT_ERR_INTERNAL, "libsamplerate: %.200s", src_strerror(failed));
    return DT_OK;
}

static enum dt_status clip_decode(struct clip *c, struct dt_audio *out, struct dt_error *err)
{
    int64_t rate = c->info.samplerate, n = (out->cs * rate + 99) / 100 + rate / AFTER_S;
    int64_t n_out = (int64_t)out->cs * DT_SAMPLE_SOUND_HOP;
    float *in = NULL;
    enum dt_status st;

    n = n < c->info.frames ? n : c->info.frames;
    DT_TRY(read_mixed(c, n, err, &in));
    out->at = dt_calloc((size_t)n_out, sizeof *out->at);
    st = out->at ? resample(c, in, n, out, err) : dt_error_nomem(err, "sound");
    dt_free(in);
    for (int64_t i = 0; i < n_out && st == DT_OK; i++)
        if (!isfinite(out->at[i]))
            st = refused(c, DT_AUDIO_DAMAGED, err, "sound with values that are no numbers");
    if (st != DT_OK) {
        dt_free(out->at);
        out->at = NULL;
    }
    return st;
}

static enum dt_status run(const uint8_t *bytes, size_t len, int cs_max, bool decode,
                          struct dt_error *err, struct dt_audio *out, enum dt_audio_bad *bad)
{
    struct dt_audio a = {0};
    struct clip c;
    enum dt_status st = clip_open(&c, bytes, len, err);

    if (st == DT_OK)
        st = clip_length(&c, cs_max, err, &a);
    if (st == DT_OK && decode)
        st = clip_decode(&c, &a, err);
    clip_close(&c);
    if (st == DT_OK)
        *out = a;
    else
        *bad = c.bad;
    return st;
}

enum dt_status dt_audio_length(const uint8_t *bytes, size_t len, int cs_max, struct dt_error *err,
                               struct dt_audio *out, enum dt_audio_bad *bad)
{
    return run(bytes, len, cs_max, false, err, out, bad);
}

enum dt_status dt_audio_decode(const uint8_t *bytes, size_t len, int cs_max, struct dt_error *err,
                               struct dt_audio *out, enum dt_audio_bad *bad)
{
    return run(bytes, len, cs_max, true, err, out, bad);
}
