/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * state.json and data.json. */
#include "exec/checkpoint/checkpoint_impl.h"

#include <stdio.h>
#include <string.h>

#define DATA_FORMAT "disttrain-data"

enum dt_status dt_ckpt_state_write(const char *dir, const struct dt_ckpt_state *s,
                                   struct dt_ckpt_manifest *m, struct dt_error *err)
{
    struct dt_json j;
    char *text;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_int(&j, "step", s->step);
    dt_ckpt_put_hex(&j, "seed", s->seed, 16);
    dt_ckpt_put_hex(&j, "draws", s->draws, 16);
    dt_json_kv_int(&j, "samples", s->samples);
    dt_json_kv_int(&j, "tokens", s->tokens);
    dt_json_kv_double(&j, "train_s", s->train_s);
    dt_json_kv_string(&j, "job_digest", s->job_digest);
    if (s->precision[0])
        dt_json_kv_string(&j, "precision", s->precision);
    dt_json_key(&j, "cursor");
    dt_json_begin_object(&j);
    dt_ckpt_put_hex(&j, "fingerprint", s->cursor.fingerprint, 16);
    if (s->cursor.fingerprint != 0) /* nobody has read before the first batch */
        dt_json_kv_int(&j, "reader", s->cursor.reader);
    dt_json_kv_int(&j, "epoch", s->cursor.epoch);
    dt_json_kv_int(&j, "position", s->cursor.position);
    dt_json_kv_int(&j, "sequences", s->cursor.sequences);
    if (s->cursor.bad > 0) /* else as before there was such a count */
        dt_json_kv_int(&j, "bad", s->cursor.bad);
    dt_json_end_object(&j);
    dt_json_end_object(&j);
    DT_TRY(dt_json_finish(&j, err, &text));
    return dt_ckpt_manifest_add_text(m, dir, "state.json", text, err);
}

static enum dt_status parse_state(struct dt_node root, struct dt_error *err,
                                  struct dt_ckpt_state *s)
{
    static const char *const keys[] = {"step",    "seed",       "draws",  "samples",   "tokens",
                                       "train_s", "job_digest", "cursor", "precision", NULL};
    static const char *const cursor_keys[] = {"fingerprint", "epoch",  "position", "sequences",
                                              "bad",         "reader", NULL};
    struct dt_node c = dt_map_get(root, "cursor");

    DT_TRY(dt_map_check(root, "state", keys, err));
    for (int i = 0; strcmp(keys[i], "precision") != 0; i++)
        DT_TRY(dt_map_require(root, "state", keys[i], err));
    DT_TRY(dt_map_check(c, "cursor", cursor_keys, err));
    for (int i = 0; strcmp(cursor_keys[i], "bad") != 0; i++)
        DT_TRY(dt_map_require(c, "cursor", cursor_keys[i], err));
    DT_TRY(dt_get_int(root, "step", 0, INT64_MAX, &s->step, err));
    DT_TRY(dt_ckpt_get_hex(root, "seed", 16, err, &s->seed));
    DT_TRY(dt_ckpt_get_hex(root, "draws", 16, err, &s->draws));
    DT_TRY(dt_get_int(root, "samples", 0, INT64_MAX, &s->samples, err));
    DT_TRY(dt_get_int(root, "tokens", 0, INT64_MAX, &s->tokens, err));
    DT_TRY(dt_get_double(root, "train_s", 0, 1e12, &s->train_s, err));
    DT_TRY(dt_get_string(root, "job_digest", s->job_digest, sizeof(s->job_digest), err));
    DT_TRY(dt_get_string(root, "precision", s->precision, sizeof(s->precision), err));
    DT_TRY(dt_ckpt_get_hex(c, "fingerprint", 16, err, &s->cursor.fingerprint));
    s->cursor.reader = 1; /* of a time before readers were counted */
    DT_TRY(dt_get_i32(c, "reader", 1, INT32_MAX, &s->cursor.reader, err));
    DT_TRY(dt_get_int(c, "epoch", 0, INT64_MAX, &s->cursor.epoch, err));
    DT_TRY(dt_get_int(c, "position", 0, INT64_MAX, &s->cursor.position, err));
    DT_TRY(dt_get_int(c, "bad", 0, INT64_MAX, &s->cursor.bad, err));
    return dt_get_int(c, "sequences", 0, INT64_MAX, &s->cursor.sequences, err);
}

enum dt_status dt_ckpt_state_read(const char *dir, struct dt_error *err, struct dt_ckpt_state *s)
{
    struct dt_ckpt_state got = {0};
    struct dt_doc *doc;
    enum dt_status st;

    DT_TRY(dt_ckpt_read_doc(dir, "state.json", err, &doc));
    st = parse_state(dt_doc_root(doc), err, &got);
    dt_doc_free(doc);
    if (st == DT_OK)
        *s = got;
    return st;
}

/* ---- data ---- */

enum dt_status dt_ckpt_data_write(const char *dir, const struct dt_ckpt_state *s,
                                  struct dt_ckpt_manifest *m, struct dt_error *err)
{
    struct dt_json j;
    char *text;

    if (!s->data)
        return DT_OK;
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "format", DATA_FORMAT);
    dt_json_kv_int(&j, "version", 1);
    dt_json_key(&j, "shards");
    dt_shard_prints_write(s->data, &j);
    dt_json_end_object(&j);
    DT_TRY(dt_json_finish(&j, err, &text));
    return dt_ckpt_manifest_add_text(m, dir, "data.json", text, err);
}

static enum dt_status parse_data(struct dt_node root, struct dt_error *err,
                                 struct dt_shard_prints *out)
{
    static const char *const keys[] = {"format", "version", "shards", NULL};
    const char *format = dt_node_text(dt_map_get(root, "format"));
    int version = 0;

    if (!format || strcmp(format, DATA_FORMAT) != 0)
        return dt_node_error(root, err, "not the data of a checkpoint");
    DT_TRY(dt_map_check(root, "data", keys, err));
    for (int i = 0; keys[i]; i++)
        DT_TRY(dt_map_require(root, "data", keys[i], err));
    DT_TRY(dt_get_i32(root, "version", 1, 1, &version, err));
    return dt_shard_prints_read(dt_map_get(root, "shards"), err, out);
}

enum dt_status dt_ckpt_data_read(const char *dir, struct dt_error *err, struct dt_shard_prints *out)
{
    struct dt_doc *doc;
    enum dt_status st;

    DT_TRY(dt_ckpt_read_doc(dir, "data.json", err, &doc));
    st = parse_data(dt_doc_root(doc), err, out);
    dt_doc_free(doc);
    return st;
}
