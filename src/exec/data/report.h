/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What was wrong with the data: counts by cause, with the first example of each. */
#ifndef DT_EXEC_DATA_REPORT_H
#define DT_EXEC_DATA_REPORT_H

#include "base/json.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

/* name, JSON key, text */
#define DT_BAD_LIST(X)                                                                             \
    X(SHARD, "damaged_shards", "shards truncated or damaged (samples after that place are lost)")  \
    X(SAMPLE, "damaged_samples",                                                                   \
      "samples damaged, above the size limit in bytes or of too long a name")                      \
    X(NO_IMAGE, "no_image", "samples without an image or a sound")                                 \
    X(NO_CAPTION, "no_caption", "samples without a caption")                                       \
    X(EMPTY_CAPTION, "empty_captions", "empty captions")                                           \
    X(CAPTION, "bad_captions", "captions that are not UTF-8 or whose JSON has none")               \
    X(IMAGE, "bad_images", "images truncated, corrupt or of unknown format")                       \
    X(IMAGE_SIZE, "oversized_images", "images of a size that cannot be used")                      \
    X(AUDIO, "bad_audio", "sounds truncated, corrupt or of unknown format")                        \
    X(AUDIO_LIMIT, "audio_limits", "sounds of other lengths, rates or channels than can be read")  \
    X(TOO_LONG, "too_long", "samples that do not fit a sequence")

enum dt_data_bad_kind {
#define X(name, key, text) DT_BAD_##name,
    DT_BAD_LIST(X)
#undef X
        DT_BAD_COUNT
};

struct dt_data_report {
    bool fatal; /* in: the first bad thing is an error */
    int64_t bad[DT_BAD_COUNT];
    char example[DT_BAD_COUNT][256];
    int64_t documents;    /* good ones */
    int64_t captions_cut; /* captions shortened to their limit */
    int64_t clips_cut;    /* sounds */
};

/* Counts `why` (its message is the example).  Returns DT_OK, or why->status if fatal. */
enum dt_status dt_data_bad(struct dt_data_report *r, enum dt_data_bad_kind kind,
                           const struct dt_error *why);
int64_t dt_data_bad_total(const struct dt_data_report *r);
void dt_data_report_add(struct dt_data_report *to, const struct dt_data_report *from);
const char *dt_data_bad_text(enum dt_data_bad_kind kind);
/* Members of an open JSON object. */
void dt_data_report_json(const struct dt_data_report *r, struct dt_json *j);

#endif
