/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain data: scan shards for the planner, show token ids; packing is in data_pack.c, indexes in
 * data_index.c. */
#include "cli/data.h"
#include "cli/session.h"
#include "cli/progress.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "core/job/job.h"
#include "core/model/samples_sound.h"
#include "exec/data/pack.h"
#include "exec/train/setup.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

enum { TEXT_MAX = 64 << 20 };

static const struct dt_cli_option options[] = {
    {"output", 'o', DT_OPT_STRING, "FILE",
     "pack: PREFIX of the shards; scan: the CSV file (default - = stdout)"},
    {"fashion-mnist", 0, DT_OPT_STRING, "SPLIT", "pack: Fashion-MNIST, train or test"},
    {"dir", 0, DT_OPT_STRING, "DIR", "pack --fashion-mnist: the folder of its files"},
    {"tones", 0, DT_OPT_INT, "N", "pack: N tones of a scale, of --seed"},
    {"idx", 0, DT_OPT_STRING, "FILE", "pack: pictures in IDX format (MNIST), plain or .gz"},
    {"labels", 0, DT_OPT_STRING, "FILE", "pack --idx: their labels"},
    {"label-names", 0, DT_OPT_STRING, "A,B,...", "pack --idx: a word per label for the captions"},
    {"captions", 0, DT_OPT_STRING, "FILE", "pack: captions of the images, CSV or JSON lines"},
    {"name-key", 0, DT_OPT_STRING, "KEY",
     "pack --captions: the column or member of the file's name (default file_name)"},
    {"caption-key", 0, DT_OPT_STRING, "KEY", "pack --captions: that of the caption (default text)"},
    {"videos", 0, DT_OPT_FLAG, NULL,
     "pack: each folder of images is a video, the images its frames"},
    {"frame-stride", 0, DT_OPT_INT, "N", "pack --videos, scan: take every N-th frame (default 1)"},
    {"frames-max", 0, DT_OPT_INT, "N", "pack --videos, scan: at most N of them, evenly spread"},
    {"shard-samples", 0, DT_OPT_INT, "N", "pack: samples per shard (default 10000)"},
    {"limit", 0, DT_OPT_INT, "N", "pack: stop after N samples"},
    {"replace", 0, DT_OPT_FLAG, NULL, "pack: instead of all shards that PREFIX has"},
    {"on-bad", 0, DT_OPT_STRING, "WHAT", "bad data: skip (and count; the default) or fail"},
    {"index", 0, DT_OPT_STRING, "WHERE",
     "index, scan: a folder for indexes of shards; auto (the default): beside them; none"},
    {"job", 0, DT_OPT_STRING, "JOB",
     "scan: as training of this job reads data, but for what other options say"},
    {"seq-len", 0, DT_OPT_INT, "N", "scan: tokens of a sequence (default 8192)"},
    {"patch", 0, DT_OPT_INT, "PIXELS",
     "scan: a token's side of an image, the encoder's patch times its merge (default 16)"},
    {"tokenizer", 't', DT_OPT_STRING, "FILE", "a tokenizer.json, or bytes (the default)"},
    {"fit", 0, DT_OPT_STRING, "HOW", "scan: none (the default), max, crop or stretch images"},
    {"side", 0, DT_OPT_INT, "PIXELS", "scan: the side that --fit aims at"},
    {"generate", 0, DT_OPT_DOUBLE, "SHARE",
     "scan: share of images to generate (default 0.5; 0 with --mel-bins)"},
    {"max-text", 0, DT_OPT_INT, "N", "scan: cut captions to N tokens"},
    {"mel-bins", 0, DT_OPT_INT, "N",
     "scan: sounds are read, not images: patches of spectrograms of N filters (BEATs: 128)"},
    {"audio-max", 0, DT_OPT_DOUBLE, "S", "scan: cut sounds to S seconds (default 10)"},
    {"text-only", 0, DT_OPT_FLAG, NULL, "scan: samples without an image or a sound are good"},
    {"unpacked", 0, DT_OPT_FLAG, NULL, "scan: one row per sample, not per packed sequence"},
    {"fast", 0, DT_OPT_FLAG, NULL, "scan: read headers of images only; corrupt pixels stay hidden"},
    {"no-shuffle", 0, DT_OPT_FLAG, NULL, "scan: in the order of the files"},
    {"seed", 's', DT_OPT_INT, "N",
     "seed of the order and of what is generated, or of the tones (default 0)"},
    {"threads", 0, DT_OPT_INT, "N", "scan: threads that decode (default 2)"},
    {"null", '0', DT_OPT_FLAG, NULL, "tokens: texts end with NUL, not with a line end"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

enum dt_status dt_cli_data_on_bad(const struct dt_cli *cli, struct dt_error *err, bool *fatal)
{
    const char *s = dt_cli_string(cli, "on-bad", "skip");
    if (strcmp(s, "skip") != 0 && strcmp(s, "fail") != 0)
        return dt_error_set(err, DT_ERR_USAGE, "--on-bad is skip or fail, not '%s'", s);
    *fatal = strcmp(s, "fail") == 0;
    return DT_OK;
}

enum dt_status dt_cli_data_frames(const struct dt_cli *cli, struct dt_data_frames *f,
                                  struct dt_error *err)
{
    int64_t stride, most;

    DT_TRY(dt_cli_int(cli, "frame-stride", 1, 1 << 20, 0, &stride, err));
    DT_TRY(dt_cli_int(cli, "frames-max", 1, 1 << 20, 0, &most, err));
    *f = (struct dt_data_frames){(int)stride, (int)most};
    return DT_OK;
}

void dt_cli_data_keep(const struct dt_cli *cli, bool *keep, const char **folder)
{
    const char *s = dt_cli_string(cli, "index", "auto");

    *keep = strcmp(s, "none") != 0;
    *folder = strcmp(s, "auto") != 0 ? s : NULL;
}

void dt_cli_data_report(FILE *f, const char *begin, const struct dt_data_report *r)
{
    if (r->captions_cut)
        fprintf(f, "%s%lld caption%s shortened to fit\n", begin, (long long)r->captions_cut,
                dt_plural(r->captions_cut));
    if (r->clips_cut)
        fprintf(f, "%s%lld sound%s cut to the longest length\n", begin, (long long)r->clips_cut,
                dt_plural(r->clips_cut));
    for (int i = 0; i < DT_BAD_COUNT; i++)
        if (r->bad[i])
            fprintf(f, "%s%lld %s, for instance %s\n", begin, (long long)r->bad[i],
                    dt_data_bad_text((enum dt_data_bad_kind)i), r->example[i]);
}

/* ---- scan ---- */

struct text { /* growing; sticky failure */
    char *s;
    size_t n, cap;
    bool failed;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *t, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    int n;
    void *p = t->s;
    va_start(ap, fmt);
    n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    n = n >= (int)sizeof line ? (int)sizeof line - 1 : n;
    t->failed = t->failed || n < 0 || dt_grow(&p, &t->cap, t->n + (size_t)n + 1, 1);
    if (t->failed)
        return;
    t->s = p;
    memcpy(t->s + t->n, line, (size_t)n + 1);
    t->n += (size_t)n;
}

struct totals {
    int64_t rows, tokens, text, encoded, generated, image_tokens;
    int64_t clips, clips_cs;
};

/* "WxH", or the seconds of a clip. */
static void put_item(struct text *t, const char *sep, const struct dt_sequence_item *it,
                     struct totals *sum)
{
    int cs = (int)dt_sample_sound_cs(it->h);

    if (!it->sound) {
        put(t, "%s%dx%d", sep, it->w, it->h);
        *(it->flags & DT_ITEM_ENCODE ? &sum->encoded : &sum->generated) += 1;
        return;
    }
    put(t, "%s%d.%02d", sep, cs / 100, cs % 100);
    sum->clips++;
    sum->clips_cs += cs;
}

static void put_row(struct text *t, const struct dt_sequence *s, bool unpacked, struct totals *sum)
{
    put(t, "%lld,%d,", (long long)s->index, s->text_tokens);
    for (unsigned flag = DT_ITEM_ENCODE; flag <= DT_ITEM_GENERATE; flag <<= 1) {
        const char *sep = "";
        for (int i = 0; i < s->n_items; i++) {
            if (!(s->items[i].flags & flag))
                continue;
            put_item(t, sep, &s->items[i], sum);
            sep = ";";
        }
        put(t, ",");
    }
    put(t, "%d\n", unpacked ? s->n_tokens : s->seq_len);
    sum->rows++;
    sum->tokens += s->n_tokens;
    sum->text += s->text_tokens;
    sum->image_tokens += s->n_tokens - s->text_tokens;
}

/* --fit and --side, which go together. */
static enum dt_status scan_sizes(const struct dt_cli *cli, struct dt_loader_options *o,
                                 struct dt_error *err)
{
    const char *fit = dt_cli_string(cli, "fit", NULL);
    int64_t side;
    int f = 0;

    DT_TRY(dt_cli_int(cli, "side", 1, DT_IMAGE_SIDE_MAX, 0, &side, err));
    while (fit && dt_image_fit_names[f] && strcmp(dt_image_fit_names[f], fit) != 0)
        f++;
    if (!dt_image_fit_names[f])
        return dt_error_set(err, DT_ERR_USAGE, "--fit is none, max, crop or stretch, not '%s'",
                            fit);
    if ((f == DT_FIT_NONE) != (side == 0))
        return dt_error_set(
            err, DT_ERR_USAGE,
            "--fit max, crop or stretch needs --side PIXELS, which needs one of them");
    if (fit)
        o->image = o->target =
            (struct dt_image_spec){(enum dt_image_fit)f, (int)side, DT_FILTER_AUTO};
    return DT_OK;
}

static enum dt_status scan_sounds(const struct dt_cli *cli, struct dt_loader_options *o,
                                  struct dt_error *err)
{
    double audio_s = (double)o->sound_cs / 100;
    int64_t bins;

    DT_TRY(dt_cli_int(cli, "mel-bins", DT_SAMPLE_SOUND_BINS_MIN, DT_SAMPLE_SOUND_BINS_MAX,
                      o->mel_bins, &bins, err));
    DT_TRY(dt_cli_double(cli, "audio-max", 0.03, 655.35, audio_s, &audio_s, err));
    if (bins % o->patch != 0)
        return dt_error_set(err, DT_ERR_USAGE, "--mel-bins %lld is no multiple of %d, a patch",
                            (long long)bins, o->patch);
    if (bins == 0 && dt_cli_string(cli, "audio-max", NULL))
        return dt_error_set(err, DT_ERR_USAGE,
                            "--audio-max is of sounds, which --mel-bins N reads");
    o->mel_bins = (int)bins;
    o->sound_cs = (int)lrint(100 * audio_s);
    return DT_OK;
}

/* What is given goes before what *o has, of a job or by default. */
static enum dt_status scan_options(const struct dt_cli *cli, bool of_job,
                                   struct dt_loader_options *o, struct dt_error *err)
{
    int64_t seq_len, patch, max_text, seed, threads;
    struct dt_data_frames frames;

    DT_TRY(dt_cli_int(cli, "seq-len", 4, 1 << 24, o->seq_len, &seq_len, err));
    DT_TRY(
        dt_cli_int(cli, "patch", 1, 1024, o->patch > 0 ? o->patch : DT_LOADER_PATCH, &patch, err));
    DT_TRY(dt_cli_int(cli, "max-text", 1, 1 << 24, 0, &max_text, err));
    DT_TRY(dt_cli_int(cli, "seed", 0, INT64_MAX, (int64_t)o->seed, &seed, err));
    DT_TRY(dt_cli_int(cli, "threads", 0, 256, of_job ? o->threads : 2, &threads, err));
    o->seq_len = (int)seq_len;
    o->patch = (int)patch;
    o->text_tokens_max = (int)max_text;
    o->seed = (uint64_t)seed;
    o->threads = (int)threads;
    o->epochs = 1;
    DT_TRY(scan_sizes(cli, o, err));
    DT_TRY(scan_sounds(cli, o, err));
    DT_TRY(dt_cli_double(cli, "generate", 0, 1,
                         of_job            ? o->generate
                         : o->mel_bins > 0 ? 0
                                           : 0.5,
                         &o->generate, err));
    o->shuffle &= !dt_cli_flag(cli, "no-shuffle");
    o->unpacked |= dt_cli_flag(cli, "unpacked");
    o->text_only |= dt_cli_flag(cli, "text-only");
    o->sizes_only = dt_cli_flag(cli, "fast");
    DT_TRY(dt_cli_data_frames(cli, &frames, err));
    o->frames.stride = frames.stride ? frames.stride : o->frames.stride;
    o->frames.most = frames.most ? frames.most : o->frames.most;
    if (!of_job || dt_cli_string(cli, "index", NULL))
        dt_cli_data_keep(cli, &o->keep_index, &o->index_folder);
    o->bad_max = 0;
    return dt_cli_data_on_bad(cli, err, &o->fatal);
}

static enum dt_status scan_rows(struct dt_loader *l, bool unpacked, struct text *t,
                                struct totals *sum, struct dt_error *err)
{
    for (;;) {
        struct dt_sequence *s;
        DT_TRY(dt_loader_next(l, err, &s));
        if (!s)
            return t->failed ? dt_error_nomem(err, "the CSV text") : DT_OK;
        put_row(t, s, unpacked, sum);
        dt_sequence_free(s);
        if (sum->rows % 64 == 0) {
            struct dt_data_cursor c;
            dt_loader_cursor(l, &c);
            dt_cli_progress("scan", (int)(c.epoch ? 100 : 100 * c.position / dt_loader_samples(l)),
                            100);
        }
    }
}

static enum dt_status print_scanned(const struct dt_cli *cli, const char *path,
                                    const struct dt_data_report *r, const struct totals *sum,
                                    int64_t samples, const struct dt_loader_options *o,
                                    struct dt_error *err)
{
    struct dt_json j;
    if (!cli->json) {
        printf("%s: %lld row%s from %lld of %lld sample%s\n", path, (long long)sum->rows,
               dt_plural(sum->rows), (long long)r->documents, (long long)samples,
               dt_plural(samples));
        printf("  %lld tokens (%lld text, %lld image or sound), sequences %.1f %% full; %lld "
               "images encoded, "
               "%lld to generate\n",
               (long long)sum->tokens, (long long)sum->text, (long long)sum->image_tokens,
               sum->rows ? 100.0 * (double)sum->tokens / ((double)sum->rows * o->seq_len) : 0.0,
               (long long)sum->encoded, (long long)sum->generated);
        if (sum->clips > 0)
            printf("  %lld clips of %.2f s of sound\n", (long long)sum->clips,
                   (double)sum->clips_cs / 100);
        dt_cli_data_report(stdout, "  ", r);
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "csv", path);
    dt_json_kv_int(&j, "rows", sum->rows);
    dt_json_kv_int(&j, "samples", samples);
    dt_json_kv_int(&j, "tokens", sum->tokens);
    dt_json_kv_int(&j, "text_tokens", sum->text);
    dt_json_kv_int(&j, "image_tokens", sum->image_tokens);
    dt_json_kv_int(&j, "images_encoded", sum->encoded);
    dt_json_kv_int(&j, "images_generated", sum->generated);
    dt_json_kv_int(&j, "clips", sum->clips);
    dt_json_kv_double(&j, "audio_s", (double)sum->clips_cs / 100);
    dt_json_kv_int(&j, "patch", o->patch);
    dt_data_report_json(r, &j);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status write_csv(const char *path, const struct text *rows,
                                const struct dt_loader_options *o, const struct dt_data_report *r,
                                const struct totals *sum, struct dt_error *err)
{
    struct text t = {0};
    char line[512];
    void *p;
    put(&t, DT_SAMPLES_SCANNED "%lld rows of %d tokens from %lld documents, seed %llu, patch %d",
        (long long)sum->rows, o->seq_len, (long long)r->documents, (unsigned long long)o->seed,
        o->patch);
    put(&t, o->mel_bins > 0 ? ", mel_bins %d\n" : "\n", o->mel_bins);
    for (int i = 0; i < DT_BAD_COUNT; i++)
        if (r->bad[i]) { /* an example may hold anything: one printable line of it */
            snprintf(line, sizeof line, "%s", r->example[i]);
            for (char *c = line; *c; c++)
                *c = *c < ' ' || *c > '~' ? '?' : *c;
            put(&t, "# skipped: %lld %s, for instance %s\n", (long long)r->bad[i],
                dt_data_bad_text((enum dt_data_bad_kind)i), line);
        }
    put(&t, "sample,text_tokens,%s,gen_images,seq_tokens\n",
        o->mel_bins > 0 ? "audio_s" : "images");
    p = t.s;
    if (t.failed || dt_grow(&p, &t.cap, t.n + rows->n + 1, 1)) {
        dt_free(t.s);
        return dt_error_nomem(err, "the CSV text");
    }
    t.s = p;
    if (rows->n)
        memcpy(t.s + t.n, rows->s, rows->n);
    enum dt_status st = dt_file_write(path, t.s, t.n + rows->n, err);
    dt_free(t.s);
    return st;
}

static enum dt_status scan(struct dt_cli *cli, struct dt_loader_options *o, struct dt_error *err)
{
    const char *path = dt_cli_string(cli, "output", "-");
    struct dt_loader *l;
    struct text t = {0};
    struct totals sum = {0};
    struct dt_data_report r;
    DT_TRY(dt_loader_open(o, err, &l));
    enum dt_status st = scan_rows(l, o->unpacked, &t, &sum, err);
    int64_t samples = dt_loader_samples(l);
    dt_cli_progress_end();
    dt_loader_report(l, &r);
    dt_loader_close(l);
    if (st == DT_OK && sum.rows == 0)
        st = dt_error_set(err, DT_ERR_INPUT, "no sample can be used");
    if (st == DT_OK)
        st = write_csv(path, &t, o, &r, &sum, err);
    dt_free(t.s);
    if (st == DT_OK && strcmp(path, "-") != 0)
        st = print_scanned(cli, path, &r, &sum, samples, o, err);
    return st;
}

/* Its samples may be what the scan is to write. */
static enum dt_status scan_job(const char *name, struct dt_error *err, struct dt_job **out)
{
    const char *no_samples = "samples=text";
    char found[4096];

    DT_TRY(dt_file_find("jobs", name, ".yaml", err, found, sizeof found));
    return dt_job_read(found, &no_samples, 1, err, out);
}

static enum dt_status scan_shards(struct dt_cli *cli, const struct dt_job *job,
                                  const struct dt_tokenizer *t, struct dt_error *err)
{
    struct dt_loader_options o = {.tokenizer = t,
                                  .seq_len = 8192,
                                  .patch = DT_LOADER_PATCH,
                                  .sound_cs = DT_LOADER_SOUND_CS,
                                  .shuffle = true};
    enum dt_status st;
    char **shards;

    if (job)
        DT_TRY(dt_setup_loader(job, t, err, &o));
    DT_TRY(scan_options(cli, job, &o, err));
    DT_TRY(dt_shard_list(cli->args + 1, cli->n_args - 1, err, &shards, &o.n_shards));
    o.shards = (const char *const *)shards;
    st = scan(cli, &o, err);
    dt_free(shards);
    return st;
}

static enum dt_status data_scan(struct dt_cli *cli, struct dt_error *err)
{
    const char *name = dt_cli_string(cli, "job", NULL);
    struct dt_tokenizer *t = NULL;
    struct dt_job *job = NULL;
    enum dt_status st = DT_OK;

    if (cli->n_args < 2)
        return dt_error_set(err, DT_ERR_USAGE, "data scan needs shards: data scan SHARDS...");
    DT_TRY(dt_cli_one_stdout(cli, dt_cli_string(cli, "output", "-"), err));
    if (name)
        DT_TRY(scan_job(name, err, &job));
    st = dt_tokenizer_open(dt_cli_string(cli, "tokenizer", job ? job->run.tokenizer : "bytes"), err,
                           &t);
    if (st == DT_OK)
        st = scan_shards(cli, job, t, err);
    dt_tokenizer_free(t);
    dt_job_free(job);
    return st;
}

/* ---- tokens ---- */

static void print_ids(const struct dt_tokenizer_ids *ids)
{
    for (size_t k = 0; k < ids->n; k++)
        printf(k ? " %d" : "%d", (int)ids->id[k]);
    putchar('\n');
}

static void json_ids(const struct dt_tokenizer_ids *ids, struct dt_json *j)
{
    dt_json_begin_array(j);
    for (size_t k = 0; k < ids->n; k++)
        dt_json_int(j, ids->id[k]);
    dt_json_end_array(j);
}

/* The ids of every text, which end with the delimiter: a line each, or arrays of *j (NULL: lines). */
static enum dt_status each_text(const struct dt_tokenizer *t, const char *text, size_t len,
                                char delimiter, struct dt_json *j, struct dt_error *err)
{
    struct dt_tokenizer_ids ids = {0};
    enum dt_status st = DT_OK;

    for (size_t i = 0; i < len && st == DT_OK;) {
        const char *end = memchr(text + i, delimiter, len - i);
        size_t n = end ? (size_t)(end - text) - i : len - i;

        ids.n = 0;
        st = dt_tokenizer_encode(t, text + i, n, true, err, &ids);
        if (st == DT_OK && j)
            json_ids(&ids, j);
        else if (st == DT_OK)
            print_ids(&ids);
        i += n + 1;
    }
    dt_tokenizer_ids_free(&ids);
    return st;
}

static enum dt_status json_texts(const struct dt_tokenizer *t, const char *name, const char *text,
                                 size_t len, char delimiter, struct dt_error *err)
{
    struct dt_json j;
    enum dt_status st;

    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "tokenizer", name);
    dt_json_key(&j, "texts");
    dt_json_begin_array(&j);
    st = each_text(t, text, len, delimiter, &j, err);
    dt_json_end_array(&j);
    dt_json_end_object(&j);
    if (st == DT_OK)
        return dt_cli_json_emit(&j, err);
    dt_json_discard(&j);
    return st;
}

static enum dt_status data_tokens(struct dt_cli *cli, struct dt_error *err)
{
    const char *name = dt_cli_string(cli, "tokenizer", "bytes");
    char delimiter = dt_cli_flag(cli, "null") ? '\0' : '\n';
    struct dt_tokenizer *t;
    enum dt_status st;
    char *text;
    size_t len;

    if (cli->n_args > 2)
        return dt_error_set(err, DT_ERR_USAGE, "data tokens takes one file, or none for stdin");
    DT_TRY(dt_tokenizer_open(name, err, &t));
    st = dt_file_read(cli->n_args == 2 ? cli->args[1] : "-", TEXT_MAX, err, &text, &len);
    if (st == DT_OK) {
        st = cli->json ? json_texts(t, name, text, len, delimiter, err)
                       : each_text(t, text, len, delimiter, NULL, err);
        dt_free(text);
    }
    dt_tokenizer_free(t);
    return st;
}

static const char *const names[] = {"pack", "index", "scan", "tokens", NULL};

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    static enum dt_status (*const action[])(struct dt_cli *, struct dt_error *) = {
        dt_cli_data_pack, dt_cli_data_index, data_scan, data_tokens};
    int k;

    DT_TRY(dt_cli_action(cli, err, &k));
    return action[k](cli, err);
}

const struct dt_cli_command dt_cmd_data = {
    .name = "data",
    .args = "pack [FOLDER...] | index SHARDS... | scan SHARDS... | tokens [FILE]",
    .summary = "pack training data into shards, index and scan shards, show token ids",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
    .actions = names,
};
