/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * WebDataset shards: tar files in which a sample is a run of adjacent members with one key, the
 * path up to the first dot of the base name ("a/0001.jpg" and "a/0001.txt": key "a/0001").
 *
 * An index holds where every sample of a list of shards lies, so that any sample can be read alone,
 * in any order, by any thread.  Compressed shards have no such places and are refused. */
#ifndef DT_EXEC_DATA_SHARD_H
#define DT_EXEC_DATA_SHARD_H

#include "base/status.h"
#include "exec/data/report.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DT_SHARD_MEMBERS_MAX = 1024 /* a video's frames */, DT_SHARD_NAME_MAX = 1024 };

struct dt_shard_place {
    uint64_t offset, bytes; /* all members with their headers */
    uint32_t shard;
};

struct dt_shard_index {
    char **paths; /* [n_shards] */
    int *fds;     /* [n_shards], open for reading */
    int n_shards;
    struct dt_shard_place *samples; /* [n] in the order of the files */
    size_t n, cap;
    uint64_t fingerprint; /* of names, sizes and places: a cursor is good for this data only */
};

/* Where indexes of shards are kept from one time to the next (shard_kept.h). */
struct dt_shard_keep {
    const char *folder; /* NULL = beside each shard, or else in the user's cache folder */
    bool always;        /* also of fewer than DT_SHARD_KEEP_MIN samples in all */
    /* out: shards */
    int found;    /* whose kept index was right */
    int passed;   /* that were passed over */
    int replaced; /* of those: whose kept index was damaged, or of another shard */
    int written;
    char where[1024]; /* folder of the last one found or written */
    char why[256];    /* why one could not be written */
};
/* Fewer are passed over in a moment (assumed: about 10 us each), and nothing is left behind. */
enum { DT_SHARD_KEEP_MIN = 10000 };

/* Indexes the shards.  A shard that is truncated or damaged gives the samples before the damage and
 * a count in `report` (DT_BAD_SHARD); with report->fatal it is an error.  `keep` NULL = indexes are
 * neither looked for nor kept. */
enum dt_status dt_shard_index_open(const char *const *paths, int n, struct dt_shard_keep *keep,
                                   struct dt_data_report *report, struct dt_error *err,
                                   struct dt_shard_index **out);
void dt_shard_index_close(struct dt_shard_index *ix);

struct dt_shard_member {
    const char *ext; /* what follows the key and the dot, lower case: "jpg", "txt", "seg.png" */
    const uint8_t *data;
    size_t len;
};
struct dt_shard_sample { /* zero-initialised is valid; reuse it to reuse its memory */
    char key[DT_SHARD_NAME_MAX];
    struct dt_shard_member member[DT_SHARD_MEMBERS_MAX];
    int n_members;
    uint8_t *buf;
    size_t buf_cap, text_used;
    char ext_text[32 * DT_SHARD_MEMBERS_MAX];
};
/* Reads sample i; DT_ERR_INPUT if it is larger than bytes_max or damaged.  Thread-safe. */
enum dt_status dt_shard_read(const struct dt_shard_index *ix, size_t i, size_t bytes_max,
                             struct dt_error *err, struct dt_shard_sample *out);
/* The samples of a tar file in memory; the callback returns anything but DT_OK to stop. */
typedef enum dt_status (*dt_shard_fn)(void *arg, const struct dt_shard_sample *s,
                                      struct dt_error *err);
enum dt_status dt_shard_parse(const uint8_t *bytes, size_t len, dt_shard_fn fn, void *arg,
                              struct dt_error *err);
void dt_shard_sample_free(struct dt_shard_sample *s);

/* Writing: PREFIX-000000.tar, PREFIX-000001.tar, ... of at most `samples_max` samples and about
 * `bytes_max` bytes each.  The same input gives the same bytes (ustar, no dates, no owners).
 * Shards get their names when all are complete.  Shards of the prefix that are there already are an
 * error, unless the new ones are to `replace` them all. */
struct dt_shard_writer;
enum dt_status dt_shard_writer_open(const char *prefix, int64_t samples_max, int64_t bytes_max,
                                    bool replace, struct dt_error *err,
                                    struct dt_shard_writer **out);
enum dt_status dt_shard_write(struct dt_shard_writer *w, const char *key,
                              const struct dt_shard_member *members, int n, struct dt_error *err);
/* Completes the last shard and names them.  *n_shards (may be NULL) is how many were written. */
enum dt_status dt_shard_writer_close(struct dt_shard_writer *w, struct dt_error *err,
                                     int *n_shards);
/* Nothing was written. */
void dt_shard_writer_abort(struct dt_shard_writer *w);

#endif
