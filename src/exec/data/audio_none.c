/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Without libsndfile. */
#include "exec/data/audio.h"

#include <string.h>

bool dt_audio_built(void)
{
    return false;
}

bool dt_audio_sniff(const uint8_t *b, size_t len)
{
    return (len >= 12 && memcmp(b, "RIFF", 4) == 0 && memcmp(b + 8, "WAVE", 4) == 0) ||
           (len >= 4 && memcmp(b, "fLaC", 4) == 0);
}

static enum dt_status absent(struct dt_error *err)
{
    return dt_error_set(err, DT_ERR_USAGE,
                        "this disttrain was built without libsndfile (Debian: libsndfile1-dev, "
                        "libsamplerate0-dev)");
}

enum dt_status dt_audio_length(const uint8_t *bytes, size_t len, int cs_max, struct dt_error *err,
                               struct dt_audio *out, enum dt_audio_bad *bad)
{
    (void)bytes;
    (void)len;
    (void)cs_max;
    (void)out;
    (void)bad;
    return absent(err);
}

enum dt_status dt_audio_decode(const uint8_t *bytes, size_t len, int cs_max, struct dt_error *err,
                               struct dt_audio *out, enum dt_audio_bad *bad)
{
    return dt_audio_length(bytes, len, cs_max, err, out, bad);
}
