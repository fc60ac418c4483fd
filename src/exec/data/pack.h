/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Making shards: from folders of images and sounds with captions, from IDX files with labels, and of tones. */
#ifndef DT_EXEC_DATA_PACK_H
#define DT_EXEC_DATA_PACK_H

#include "base/status.h"
#include "exec/data/frames.h"
#include "exec/data/pack_captions.h"
#include "exec/data/report.h"
#include <stdint.h>

struct dt_pack_options {
    const char *prefix;    /* PREFIX-000000.tar, ... */
    int64_t shard_samples; /* at most, per shard; 0 = 10,000 */
    int64_t limit;         /* stop after so many samples; 0 = all */
    bool replace;          /* shards of this prefix; else they are an error */
    /* of folders */
    struct dt_pack_captions *captions; /* NULL = those beside the images; what is used is marked */
    bool videos;                       /* each folder with images in it is a video */
    struct dt_data_frames frames;      /* which of its frames are taken */
};
struct dt_pack_result {
    int64_t samples;
    int shards;
};

/* Every *.jpg, *.jpeg, *.png, *.webp, *.wav and *.flac (sounds: dt_audio_built) below the folders (names sorted,
 * symbolic links to folders not followed) with NAME.txt or NAME.json beside it, or with a caption in o->captions, by the path
 * below the folder; of a video these are FOLDER.txt and so on.  Frames are the images with a number in
 * their names, whose last is taken; they become KEY.NUMBER.jpg.  The key is the path below the folder without
 * its extension, dots in the file's name made underscores; a name that has become another's gets a number behind it, and with
 * several folders the folder's number is before it.  Images and sounds are decoded to see that they can
 * be; what is bad, and captions without an image or a sound, is counted in `report`. */
enum dt_status dt_pack_folders(const char *const *dirs, int n, const struct dt_pack_options *o,
                               struct dt_data_report *report, struct dt_error *err,
                               struct dt_pack_result *out);
/* Pictures [n][h][w] and labels [n]: members png (grey), txt (a caption, caption.h) and cls (the
 * label). `words` has one word per class and ends with NULL; a label beyond it is bad data. */
enum dt_status dt_pack_idx(const char *images, const char *labels, const char *const *words,
                           const struct dt_pack_options *o, struct dt_data_report *report,
                           struct dt_error *err, struct dt_pack_result *out);

/* n tones, members wav, txt and cls; tone i depends on (seed, i) alone. */
enum dt_status dt_pack_tones(int64_t n, uint64_t seed, const struct dt_pack_options *o,
                             struct dt_data_report *report, struct dt_error *err,
                             struct dt_pack_result *out);

/* The shards that a user names: files, folders (their *.tar, sorted) and "a-{000..012}.tar" (every
 * number of the range, as wide as its first).  *out is NULL-terminated, one block (dt_free). */
enum dt_status dt_shard_list(const char *const *names, int n, struct dt_error *err, char ***out,
                             int *n_out);

#endif
