/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Checkpoints, the inside.  Shared by checkpoint*.c only. */
#ifndef DT_EXEC_CHECKPOINT_CHECKPOINT_IMPL_H
#define DT_EXEC_CHECKPOINT_CHECKPOINT_IMPL_H

#include "base/doc.h"
#include "base/json.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/safetensors.h"

enum {
    DT_CKPT_NAME_MAX = 160,      /* "exp_avg_sq/" + module + "." + struct dt_param's name */
    DT_CKPT_JSON_MAX = 64 << 20, /* bytes of a manifest */
    DT_CKPT_VERSION = 2          /* 1: without run_id and data.json */
};
/* Beside the checkpoints. */
#define DT_CKPT_POINTER "latest"
#define DT_CKPT_RUN "run.json"
#define DT_CKPT_LOCK "lock"
/* In a checkpoint that stays. */
#define DT_CKPT_KEPT "kept"

/* ---- manifest (checkpoint_manifest.c) ---- */

struct dt_ckpt_manifest_file {
    char name[64];
    int64_t bytes;
    uint32_t crc; /* tensor files: of the header, their tensors have their own */
    bool tensors;
};
struct dt_ckpt_manifest_tensor {
    char name[DT_CKPT_NAME_MAX];
    uint32_t crc;
};
struct dt_ckpt_manifest { /* zero-initialised is valid */
    int64_t step;
    int version; /* as read */
    char run_id[DT_RUN_ID_SIZE];
    struct dt_ckpt_manifest_file *files;
    size_t n_files, cap_files;
    struct dt_ckpt_manifest_tensor *tensors;
    size_t n_tensors, cap_tensors;
};
void dt_ckpt_manifest_free(struct dt_ckpt_manifest *m);
enum dt_status dt_ckpt_manifest_add_file(struct dt_ckpt_manifest *m, const char *name,
                                         int64_t bytes, uint32_t crc, bool tensors,
                                         struct dt_error *err);
enum dt_status dt_ckpt_manifest_add_tensor(struct dt_ckpt_manifest *m, const char *name,
                                           uint32_t crc, struct dt_error *err);
/* Adds DIR/name, a file without tensors that is written already. */
enum dt_status dt_ckpt_manifest_add_json(struct dt_ckpt_manifest *m, const char *dir,
                                         const char *name, struct dt_error *err);
/* Writes `text`, which it frees, into DIR/name and adds it. */
enum dt_status dt_ckpt_manifest_add_text(struct dt_ckpt_manifest *m, const char *dir,
                                         const char *name, char *text, struct dt_error *err);
/* Appends all of `more`, and sorts. */
enum dt_status dt_ckpt_manifest_merge(struct dt_ckpt_manifest *m,
                                      const struct dt_ckpt_manifest *more, struct dt_error *err);
/* DIR/name; name is "manifest.json", or that of a rank's share of it. */
enum dt_status dt_ckpt_manifest_write(const char *dir, const char *name,
                                      const struct dt_ckpt_manifest *m, struct dt_error *err);
/* Reads it and checks every file's size, and the sums of files that hold no tensors. */
enum dt_status dt_ckpt_manifest_read(const char *dir, const char *name, struct dt_error *err,
                                     struct dt_ckpt_manifest *m);
/* Only whose it is, of a manifest's text. */
enum dt_status dt_ckpt_manifest_run_id(const char *name, const char *text, size_t len,
                                       struct dt_error *err, char out[DT_RUN_ID_SIZE]);
/* O(log n) after dt_ckpt_manifest_read; NULL if there is none. */
const struct dt_ckpt_manifest_tensor *dt_ckpt_manifest_find(const struct dt_ckpt_manifest *m,
                                                            const char *name);
/* Opens DIR/name and checks its headers and its tensors' names. */
enum dt_status dt_ckpt_manifest_open_tensors(const char *dir, const char *name,
                                             const struct dt_ckpt_manifest *m, struct dt_error *err,
                                             struct dt_tensors **out);

/* ---- texts in a checkpoint ---- */

uint32_t dt_ckpt_crc(const char *text, size_t len);
/* Hexadecimal: JSON's numbers have only 53 bits everywhere. */
void dt_ckpt_put_hex(struct dt_json *j, const char *key, uint64_t v, int digits);
enum dt_status dt_ckpt_get_hex(struct dt_node map, const char *key, int digits,
                               struct dt_error *err, uint64_t *out);
enum dt_status dt_ckpt_read_doc(const char *dir, const char *name, struct dt_error *err,
                                struct dt_doc **out);

/* ---- state and data (checkpoint_state.c) ---- */

enum dt_status dt_ckpt_state_write(const char *dir, const struct dt_ckpt_state *s,
                                   struct dt_ckpt_manifest *m, struct dt_error *err);
/* data.json; nothing without state->data. */
enum dt_status dt_ckpt_data_write(const char *dir, const struct dt_ckpt_state *s,
                                  struct dt_ckpt_manifest *m, struct dt_error *err);
enum dt_status dt_ckpt_data_read(const char *dir, struct dt_error *err,
                                 struct dt_shard_prints *out);
enum dt_status dt_ckpt_state_read(const char *dir, struct dt_error *err, struct dt_ckpt_state *s);

/* ---- job (checkpoint_job.c) ---- */

/* job.json; nothing without state->job. */
enum dt_status dt_ckpt_job_write(const char *dir, const struct dt_ckpt_state *s,
                                 struct dt_ckpt_manifest *m, struct dt_error *err);
enum dt_status dt_ckpt_job_read(const char *dir, struct dt_error *err, struct dt_ckpt_job *out);

/* ---- files (checkpoint_save.c) ---- */

#define DT_CKPT_SHARD_BYTES_MAX INT64_C(5000000000) /* Hugging Face's max_shard_size */

/* What is written by one process or by one rank.  Model files are numbers first .. first + n of
 * total; with total 1 there is one file without a number. */
struct dt_ckpt_files {
    int n, first, total;
};
struct dt_ckpt_share {
    const struct dt_ckpt_part *parts;
    int n_parts;
    bool copies; /* of tables whose originals are not here are written too */
    int64_t step, shard_bytes_max;
    struct dt_ckpt_files model, optimizer;
};
/* Sets model.n, and optimizer.n (0 without moments). */
enum dt_status dt_ckpt_count(struct dt_ckpt_share *s, struct dt_error *err);
/* Writes and syncs the files into DIR and adds them to the manifest. */
enum dt_status dt_ckpt_write(const char *dir, const struct dt_ckpt_share *s,
                             struct dt_ckpt_manifest *m, struct dt_error *err);
/* "model" or "optimizer"; k counts from 0. */
void dt_ckpt_file_name(const char *kind, int k, int total, char *buf, size_t size);
/* DIR/KIND.safetensors.index.json of `total` > 1 files, which the manifest has. */
enum dt_status dt_ckpt_index(const char *dir, const char *kind, int total,
                             struct dt_ckpt_manifest *m, struct dt_error *err);

/* ---- folders (checkpoint_dir.c) ---- */

enum dt_status dt_ckpt_path(char *out, size_t size, const char *dir, const char *name,
                            struct dt_error *err);
/* The temporary folder of a save that goes by `tag`. */
enum dt_status dt_ckpt_temp(const char *dir, int64_t step, uint64_t tag, struct dt_error *err,
                            char *temp, size_t size);
/* Makes DIR and the temporary folder, and marks it; removes those of processes that are gone.
 * *tag < 2^53. */
enum dt_status dt_ckpt_begin(const char *dir, int64_t step, const char *run_id,
                             struct dt_error *err, uint64_t *tag, char *temp, size_t size);
/* Renames, moves the pointer, removes what is too old. */
enum dt_status dt_ckpt_commit(const char *dir, const char *temp, const struct dt_ckpt_state *state,
                              const struct dt_ckpt_options *opt, struct dt_error *err, char *final,
                              size_t size);
/* A folder that dt_ckpt_begin has made. */
void dt_ckpt_drop(const char *temp);

/* ---- tensors (checkpoint_io.c) ---- */

/* Before the name of a parameter. */
extern const char *const dt_ckpt_prefixes[DT_PARAM_WHAT_N];
/* Parameters between a part and files, which have them in Hugging Face's order. */
struct dt_ckpt_io {
    float *host, *turned; /* room for the part's largest tensor, in either order */
};
enum dt_status dt_ckpt_io_open(struct dt_ckpt_io *io, const struct dt_ckpt_part *part,
                               struct dt_error *err);
void dt_ckpt_io_close(struct dt_ckpt_io *io);
/* Valid until the next call. */
const float *dt_ckpt_get(struct dt_ckpt_io *io, const struct dt_param *p, const float *flat);
/* Where the caller writes p->n floats before dt_ckpt_put takes them to the part. */
float *dt_ckpt_buffer(struct dt_ckpt_io *io);
enum dt_status dt_ckpt_put(struct dt_ckpt_io *io, const struct dt_ckpt_part *part,
                           enum dt_param_what what, int i, struct dt_error *err);
/* The part's buffer. */
float *dt_ckpt_flat(const struct dt_ckpt_part *part, enum dt_param_what what);
bool dt_ckpt_same_shape(const struct dt_param *p, const struct dt_tensor *x);
bool dt_ckpt_has_moments(const struct dt_ckpt_part *part, int i);

/* Names for a message: "a, b and 7 more". */
struct dt_ckpt_names {
    char text[1024];
    size_t used;
    int64_t n, left_out;
};
void dt_ckpt_names_add(struct dt_ckpt_names *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
const char *dt_ckpt_names_end(struct dt_ckpt_names *l);

#endif
