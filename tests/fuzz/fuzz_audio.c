/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: sounds.  What decodes has the length that the header told, and finite features; what does not leaves an
 * error. */
#include "base/mem.h"
#include "exec/data/fbank.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { CS_MAX = 200, BINS = 32 };
    struct dt_error err = {0};
    struct dt_audio head = {0}, a = {0};
    enum dt_audio_bad bad = DT_AUDIO_DAMAGED;
    enum dt_status known = dt_audio_length(data, size, CS_MAX, &err, &head, &bad);
    enum dt_status st = dt_audio_spectrogram(data, size, CS_MAX, BINS, &err, &a, &bad);

    if (st == DT_OK && (known != DT_OK || a.cs != head.cs || a.cut != head.cut || a.cs > CS_MAX))
        abort();
    if (st != DT_OK && (a.at || !err.message[0]))
        abort();
    for (int64_t i = 0; st == DT_OK && i < dt_sample_sound_frames(a.cs) * BINS; i++)
        if (!isfinite(a.at[i]))
            abort();
    dt_free(a.at);
    return 0;
}
