/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain data pack: shards from folders, from IDX files, and of tones. */
#include "cli/data.h"
#include "cli/session.h"
#include "base/mem.h"
#include "base/text.h"
#include "exec/data/caption.h"
#include "exec/data/pack.h"

#include <string.h>

/* Where Debian's package dataset-fashion-mnist puts the files. */
#define FASHION_DIR "/usr/share/datasets/fashion-mnist"

enum { LABELS_MAX = 256 };

/* "a,b,c" cut in place into a NULL-terminated list. */
static enum dt_status split_names(char *text, const char **words, struct dt_error *err)
{
    int n = 0;
    for (char *p = text; p;) {
        char *comma = strchr(p, ',');
        if (comma)
            *comma = '\0';
        if (!*p || n == LABELS_MAX)
            return dt_error_set(err, DT_ERR_USAGE, "--label-names is an empty word or more than %d",
                                (int)LABELS_MAX);
        words[n++] = p;
        p = comma ? comma + 1 : NULL;
    }
    words[n] = NULL;
    return DT_OK;
}

static enum dt_status pack_fashion(const struct dt_cli *cli, const char *split,
                                   const struct dt_pack_options *o, struct dt_data_report *r,
                                   struct dt_error *err, struct dt_pack_result *res)
{
    const char *dir = dt_cli_string(cli, "dir", FASHION_DIR), *stem;
    char images[1024], labels[1024];
    if (strcmp(split, "train") != 0 && strcmp(split, "test") != 0)
        return dt_error_set(err, DT_ERR_USAGE, "--fashion-mnist is train or test, not '%s'", split);
    stem = strcmp(split, "train") == 0 ? "train" : "t10k";
    snprintf(images, sizeof images, "%.900s/%s-images-idx3-ubyte.gz", dir, stem);
    snprintf(labels, sizeof labels, "%.900s/%s-labels-idx1-ubyte.gz", dir, stem);
    enum dt_status st = dt_pack_idx(images, labels, dt_caption_fashion_words, o, r, err, res);
    if (st == DT_ERR_INPUT && err && strstr(err->message, "cannot open"))
        return dt_error_at(err, st, images, 0, 0,
                           "cannot open (it is in Debian's package dataset-fashion-mnist; --dir "
                           "names another folder)");
    return st;
}

static enum dt_status pack_idx(const struct dt_cli *cli, const char *images,
                               const struct dt_pack_options *o, struct dt_data_report *r,
                               struct dt_error *err, struct dt_pack_result *res)
{
    const char *labels = dt_cli_string(cli, "labels", NULL);
    const char *names = dt_cli_string(cli, "label-names", NULL);
    const char *words[LABELS_MAX + 1];
    char *copy;
    if (!labels)
        return dt_error_set(err, DT_ERR_USAGE, "data pack --idx needs --labels FILE");
    if (!names)
        return dt_error_set(err, DT_ERR_USAGE,
                            "data pack --idx needs --label-names, as in --label-names cat,dog");
    copy = dt_strdup(names);
    if (!copy)
        return dt_error_nomem(err, "label names");
    enum dt_status st = split_names(copy, words, err);
    if (st == DT_OK)
        st = dt_pack_idx(images, labels, words, o, r, err, res);
    dt_free(copy);
    return st;
}

static enum dt_status print_packed(const struct dt_cli *cli, const char *prefix,
                                   const struct dt_data_report *r, const struct dt_pack_result *res,
                                   struct dt_error *err)
{
    struct dt_json j;
    if (!cli->json) {
        printf("%s-*.tar: %lld sample%s in %d shard%s\n", prefix, (long long)res->samples,
               dt_plural(res->samples), res->shards, dt_plural(res->shards));
        dt_cli_data_report(stdout, "  ", r);
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "prefix", prefix);
    dt_json_kv_int(&j, "samples", res->samples);
    dt_json_kv_int(&j, "shards", res->shards);
    dt_data_report_json(r, &j);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status pack_folders(const struct dt_cli *cli, struct dt_pack_options *o,
                                   struct dt_data_report *r, struct dt_error *err,
                                   struct dt_pack_result *res)
{
    const char *captions = dt_cli_string(cli, "captions", NULL);
    const char *name = dt_cli_string(cli, "name-key", NULL);
    const char *caption = dt_cli_string(cli, "caption-key", NULL);
    enum dt_status st;

    o->videos = dt_cli_flag(cli, "videos");
    if (!captions && (name || caption))
        return dt_error_set(err, DT_ERR_USAGE, "--%s needs --captions FILE",
                            name ? "name-key" : "caption-key");
    DT_TRY(dt_cli_data_frames(cli, &o->frames, err));
    if (!o->videos && (o->frames.stride || o->frames.most))
        return dt_error_set(err, DT_ERR_USAGE, "--%s needs --videos",
                            o->frames.stride ? "frame-stride" : "frames-max");
    if (captions)
        DT_TRY(dt_pack_captions_read(captions, name ? name : DT_PACK_NAME_KEY,
                                     caption ? caption : DT_PACK_CAPTION_KEY, r, err,
                                     &o->captions));
    st = dt_pack_folders(cli->args + 1, cli->n_args - 1, o, r, err, res);
    dt_pack_captions_free(o->captions);
    return st;
}

/* Options of folders with another source. */
static enum dt_status folders_only(const struct dt_cli *cli, struct dt_error *err)
{
    static const char *const names[] = {"captions",     "name-key",   "caption-key",
                                        "frame-stride", "frames-max", NULL};

    for (int i = 0; names[i]; i++)
        if (dt_cli_string(cli, names[i], NULL))
            return dt_error_set(err, DT_ERR_USAGE, "--%s is for folders", names[i]);
    return dt_cli_flag(cli, "videos") ? dt_error_set(err, DT_ERR_USAGE, "--videos is for folders")
                                      : DT_OK;
}

enum dt_status dt_cli_data_pack(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_pack_options o = {.prefix = dt_cli_string(cli, "output", NULL),
                                .replace = dt_cli_flag(cli, "replace")};
    const char *fashion = dt_cli_string(cli, "fashion-mnist", NULL);
    const char *idx = dt_cli_string(cli, "idx", NULL);
    struct dt_data_report r = {0};
    struct dt_pack_result res;
    int64_t tones, seed;
    int sources;
    if (!o.prefix || !*o.prefix)
        return dt_error_set(err, DT_ERR_USAGE, "data pack needs -o PREFIX");
    DT_TRY(dt_cli_int(cli, "tones", 1, 100000000, 0, &tones, err));
    DT_TRY(dt_cli_int(cli, "seed", 0, INT64_MAX, 0, &seed, err));
    sources = (fashion != NULL) + (idx != NULL) + (tones > 0) + (cli->n_args > 1);
    if (sources != 1)
        return dt_error_set(
            err, DT_ERR_USAGE,
            "data pack takes folders, or --idx FILE, or --fashion-mnist SPLIT, or --tones N");
    DT_TRY(dt_cli_int(cli, "shard-samples", 1, INT64_MAX, 0, &o.shard_samples, err));
    DT_TRY(dt_cli_int(cli, "limit", 1, INT64_MAX, 0, &o.limit, err));
    DT_TRY(dt_cli_data_on_bad(cli, err, &r.fatal));
    if (fashion || idx || tones > 0)
        DT_TRY(folders_only(cli, err));
    if (fashion)
        DT_TRY(pack_fashion(cli, fashion, &o, &r, err, &res));
    else if (idx)
        DT_TRY(pack_idx(cli, idx, &o, &r, err, &res));
    else if (tones > 0)
        DT_TRY(dt_pack_tones(tones, (uint64_t)seed, &o, &r, err, &res));
    else
        DT_TRY(pack_folders(cli, &o, &r, err, &res));
    return print_packed(cli, o.prefix, &r, &res, err);
}
