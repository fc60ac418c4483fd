/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain sample: let a trained model caption images and draw captions. */
#include "cli/trained.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "exec/data/fbank.h"
#include "exec/infer/png.h"

#include <string.h>

enum {
    TOKENS = 64,
    EACH = 8,
    STEPS = 50,
    FILE_BYTES_MAX = 1 << 28,
    CELL_PIXELS = 64,
    GUIDANCE = 4
};

static const struct dt_cli_option options[] = {
    {"image", 'i', DT_OPT_LIST, "FILE", "caption this image (JPEG, PNG, WebP)"},
    {"audio", 'a', DT_OPT_LIST, "FILE", "caption this sound (WAV, FLAC)"},
    {"text", 't', DT_OPT_LIST, "TEXT", "draw this caption, a row of images each"},
    {"output", 'o', DT_OPT_STRING, "FILE", "PNG file of what is drawn (default sample.png)"},
    {"checkpoint", 'c', DT_OPT_STRING, "DIR", "weights (default: the job's run.checkpoint.dir)"},
    {"each", 'n', DT_OPT_INT, "N", "images per text (default 8)"},
    {"steps", 0, DT_OPT_INT, "N", "steps of DDIM (default 50)"},
    {"guidance", 'g', DT_OPT_DOUBLE, "X",
     "how much the text counts: 1 = as learnt (default 4 after training with caption_drop)"},
    {"eta", 0, DT_OPT_DOUBLE, "X", "fresh noise on the way, 0 to 1 (default 1, as much as DDPM)"},
    {"side", 0, DT_OPT_INT, "PIXELS", "side of the images (default: the generator's resize)"},
    {"scale", 0, DT_OPT_INT, "N", "show each pixel as N x N (default: about 64 pixels a cell)"},
    {"max-tokens", 0, DT_OPT_INT, "N", "longest caption (default 64)"},
    {"seed", 's', DT_OPT_INT, "N", "of the noise that drawing starts from (default 1)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

struct sample {
    const struct dt_cli *cli;
    struct dt_cli_trained t;
    const char *files[DT_CLI_MAX_ARGS], *texts[DT_CLI_MAX_ARGS];
    bool sound[DT_CLI_MAX_ARGS]; /* which of the files are */
    int n_files, n_texts;
    int64_t each, steps, side, scale, max_tokens, seed;
    double guidance, eta;
    const char *output;
    char *captions[DT_CLI_MAX_ARGS];
};

/* ---- captions ---- */

static enum dt_status load_image(const struct sample *s, const uint8_t *bytes, size_t len,
                                 struct dt_error *err, struct dt_sequence_item *out)
{
    struct dt_image img;

    DT_TRY(dt_image_load(bytes, len, NULL, &s->t.setup.loader.image, err, &img));
    *out = (struct dt_sequence_item){.w = img.w, .h = img.h, .px = img.px};
    return DT_OK;
}

static enum dt_status load_sound(const struct sample *s, const uint8_t *bytes, size_t len,
                                 struct dt_error *err, struct dt_sequence_item *out)
{
    const struct dt_loader_options *o = &s->t.setup.loader;
    enum dt_audio_bad bad;
    struct dt_audio a;

    if (o->mel_bins == 0)
        return dt_error_set(err, DT_ERR_INPUT, "the model has no encoder of sound");
    DT_TRY(dt_audio_spectrogram(bytes, len, o->sound_cs, o->mel_bins, err, &a, &bad));
    *out = (struct dt_sequence_item){
        .sound = true, .w = o->mel_bins, .h = (int)dt_sample_sound_frames(a.cs), .px = a.at};
    return DT_OK;
}

static enum dt_status load(const struct sample *s, int i, struct dt_error *err,
                           struct dt_sequence_item *out)
{
    const char *path = s->files[i];
    enum dt_status st;
    struct dt_error why = {0};
    char *bytes;
    size_t len;

    DT_TRY(dt_file_read(path, FILE_BYTES_MAX, err, &bytes, &len));
    st = (s->sound[i] ? load_sound : load_image)(s, (const uint8_t *)bytes, len, &why, out);
    dt_free(bytes);
    if (st != DT_OK)
        return dt_error_at(err, st, path, 0, 0, "%s", why.message);
    return DT_OK;
}

static enum dt_status caption(struct sample *s, struct dt_error *err)
{
    struct dt_sequence_item *items = dt_calloc((size_t)s->n_files, sizeof(*items));
    struct dt_infer_seen *seen = dt_calloc((size_t)s->n_files, sizeof(*seen));
    enum dt_status st = items && seen ? DT_OK : dt_error_nomem(err, "images and sounds");
    int n = 0;

    while (st == DT_OK && n < s->n_files) {
        st = load(s, n, err, &items[n]);
        if (st == DT_OK)
            seen[n] = (struct dt_infer_seen){&items[n], 1};
        n += st == DT_OK;
    }
    if (st == DT_OK)
        st = dt_infer_caption(s->t.infer, seen, n, (int)s->max_tokens, err, s->captions);
    for (int i = 0; i < n; i++)
        dt_free(items[i].px);
    dt_free(items);
    dt_free(seen);
    return st;
}

/* ---- drawings ---- */

static enum dt_status draw(struct sample *s, struct dt_error *err)
{
    const struct dt_module *m;
    struct dt_infer_draw_options o = {.steps = (int)s->steps,
                                      .seed = (uint64_t)s->seed,
                                      .clip = 1 /* pixels lie in [-1, 1] */,
                                      .guidance = s->guidance,
                                      .eta = s->eta};
    struct dt_infer_grid_options grid = {.cols = (int)s->each, .gap = 2, .scale = (int)s->scale};
    int n = s->n_texts * (int)s->each;
    struct dt_image *images;
    const char **texts;
    enum dt_status st;

    if (!dt_infer_can_draw(s->t.infer))
        return dt_error_set(err, DT_ERR_INPUT, "the model has no generator: it cannot draw");
    if (o.guidance == 0 && s->t.job->run.caption_drop > 0)
        o.guidance = GUIDANCE;
    m = &s->t.job->model->modules[s->t.setup.generator];
    o.w = o.h = s->side ? (int)s->side : m->resize;
    if (o.w <= 0)
        return dt_error_set(err, DT_ERR_USAGE,
                            "the generator has no size of its own; use --side PIXELS");
    images = dt_calloc((size_t)n, sizeof(*images));
    texts = dt_calloc((size_t)n, sizeof(*texts));
    st = images && texts ? DT_OK : dt_error_nomem(err, "images");
    for (int i = 0; i < n && st == DT_OK; i++)
        texts[i] = s->texts[i / (int)s->each];
    if (st == DT_OK)
        st = dt_infer_draw(s->t.infer, texts, n, &o, err, images);
    if (st == DT_OK) {
        if (grid.scale == 0)
            grid.scale = images[0].w < CELL_PIXELS ? CELL_PIXELS / images[0].w : 1;
        grid.grey = dt_batching_channels(m) < 3;
        grid.back = 96; /* neither black nor white, which images often end with */
        st = dt_infer_grid_write_png(s->output, images, n, &grid, err);
        for (int i = 0; i < n; i++)
            dt_image_free(&images[i]);
    }
    dt_free(images);
    dt_free(texts);
    return st;
}

/* ---- results ---- */

static enum dt_status print_json(const struct sample *s, struct dt_error *err)
{
    struct dt_json j;
    char *text;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "checkpoint", s->t.checkpoint);
    dt_json_kv_int(&j, "step", s->t.state.step);
    dt_json_key(&j, "captions");
    dt_json_begin_array(&j);
    for (int i = 0; i < s->n_files; i++) {
        dt_json_begin_object(&j);
        dt_json_kv_string(&j, "file", s->files[i]);
        dt_json_kv_string(&j, "caption", s->captions[i]);
        dt_json_end_object(&j);
    }
    dt_json_end_array(&j);
    dt_json_key(&j, "drawn");
    dt_json_begin_array(&j);
    for (int i = 0; i < s->n_texts; i++)
        dt_json_string(&j, s->texts[i]);
    dt_json_end_array(&j);
    dt_json_kv_string(&j, "output", s->n_texts ? s->output : NULL);
    dt_json_end_object(&j);
    DT_TRY(dt_json_finish(&j, err, &text));
    printf("%s\n", text);
    dt_free(text);
    return DT_OK;
}

static enum dt_status run(struct sample *s, struct dt_error *err)
{
    if (s->n_files)
        DT_TRY(caption(s, err));
    if (s->n_texts)
        DT_TRY(draw(s, err));
    if (s->cli->json)
        return print_json(s, err);
    for (int i = 0; i < s->n_files; i++)
        printf("%s\t%s\n", s->files[i], s->captions[i]);
    if (s->n_texts && strcmp(s->output, "-") != 0)
        printf("%s\n", s->output);
    return DT_OK;
}

static enum dt_status read_options(struct sample *s, struct dt_error *err)
{
    const struct dt_cli *cli = s->cli;

    for (int i = 0; i < cli->n_list; i++)
        if (cli->list_option[i] <= 1) { /* the first ones of the table: --image, --audio */
            s->sound[s->n_files] = cli->list_option[i] == 1;
            s->files[s->n_files++] = cli->list[i];
        } else {
            s->texts[s->n_texts++] = cli->list[i];
        }
    if (s->n_files + s->n_texts == 0)
        return dt_error_set(err, DT_ERR_USAGE,
                            "nothing to do: use --image FILE, --audio FILE or --text TEXT");
    s->output = dt_cli_string(cli, "output", "sample.png");
    if (s->n_texts)
        DT_TRY(dt_cli_one_stdout(cli, s->output, err));
    DT_TRY(dt_cli_int(cli, "each", 1, 1024, EACH, &s->each, err));
    DT_TRY(dt_cli_int(cli, "steps", 1, 1 << 20, STEPS, &s->steps, err));
    DT_TRY(dt_cli_double(cli, "guidance", 1, 100, 0, &s->guidance, err));
    DT_TRY(dt_cli_double(cli, "eta", 0, 1, 1, &s->eta, err));
    DT_TRY(dt_cli_int(cli, "side", 1, DT_IMAGE_SIDE_MAX, 0, &s->side, err));
    DT_TRY(dt_cli_int(cli, "scale", 1, 64, 0, &s->scale, err));
    DT_TRY(dt_cli_int(cli, "max-tokens", 1, 1 << 16, TOKENS, &s->max_tokens, err));
    return dt_cli_int(cli, "seed", 0, INT64_MAX, 1, &s->seed, err);
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct sample s = {.cli = cli};
    enum dt_status st;

    dt_cli_limit_spin(cli);
    DT_TRY(dt_cli_limits_check(false, err));
    DT_TRY(read_options(&s, err));
    DT_TRY(dt_cli_trained_open(cli, 0, err, &s.t));
    st = run(&s, err);
    for (int i = 0; i < s.n_files; i++)
        dt_free(s.captions[i]);
    dt_cli_trained_close(&s.t);
    return st;
}

const struct dt_cli_command dt_cmd_sample = {
    .name = "sample",
    .args = "JOB [KEY=VALUE...]",
    .summary = "caption images and sounds, and draw captions with a trained model",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
