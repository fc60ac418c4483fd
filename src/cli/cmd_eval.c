/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain eval: what a trained model can do on data that it has not seen. */
#include "cli/facts.h"
#include "cli/progress.h"
#include "cli/session.h"
#include "cli/trained.h"
#include "base/json.h"
#include "base/text.h"
#include "base/mem.h"
#include "base/clock.h"
#include "exec/data/caption.h"
#include "exec/data/pack.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 500, BATCH = 64, TOKENS = 64, DRAWS = 4, WORDS_MAX = 256 };

static const struct dt_cli_option options[] = {
    {"data", 'd', DT_OPT_LIST, "FILE", "held-out shards (default: the job's run.eval_data)"},
    {"checkpoint", 'c', DT_OPT_STRING, "DIR", "weights (default: the job's run.checkpoint.dir)"},
    {"samples", 'n', DT_OPT_INT, "N", "number of documents (default 500)"},
    {"draws", 0, DT_OPT_INT, "N", "timesteps and noises per image for its loss (default 4)"},
    {"max-tokens", 0, DT_OPT_INT, "N", "longest caption (default 64)"},
    {"label-names", 0, DT_OPT_STRING, "A,B,...",
     "the class words (default: those of Fashion-MNIST)"},
    {"seed", 's', DT_OPT_INT, "N", "which documents, timesteps and noises (default 1)"},
    {"batch", 0, DT_OPT_INT, "N", "documents at once (default 64)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

struct eval {
    const struct dt_cli *cli;
    struct dt_cli_trained t;
    int64_t samples, draws, max_tokens, seed, batch;
    char **shards;
    int n_shards, n_words;
    char *names;
    const char *words[WORDS_MAX + 1];
    /* results */
    int64_t captions, exact, classed, right;
    int64_t of_class[WORDS_MAX], right_of_class[WORDS_MAX];
    char example[2][160]; /* a truth, and what was said */
    double nll;
    int64_t targets;
    struct dt_infer_losses images;
    double wall_s;
};

/* ---- what to do ---- */

static enum dt_status read_words(struct eval *e, struct dt_error *err)
{
    const char *list = dt_cli_string(e->cli, "label-names", NULL);
    char *p;

    if (!list) {
        for (e->n_words = 0; dt_caption_fashion_words[e->n_words]; e->n_words++)
            e->words[e->n_words] = dt_caption_fashion_words[e->n_words];
        return DT_OK;
    }
    e->names = dt_strdup(list);
    if (!e->names)
        return dt_error_nomem(err, "class words");
    for (p = strtok(e->names, ","); p; p = strtok(NULL, ",")) {
        if (e->n_words == WORDS_MAX)
            return dt_error_set(err, DT_ERR_USAGE, "--label-names: more than %d words", WORDS_MAX);
        e->words[e->n_words++] = p;
    }
    return DT_OK;
}

static enum dt_status read_options(struct eval *e, struct dt_error *err)
{
    const struct dt_job_run_options *r = &e->t.job->run;
    const char *const *data =
        e->cli->n_list ? e->cli->list : (const char *const *)r->eval_data.path;
    int n = e->cli->n_list ? e->cli->n_list : r->eval_data.n;

    if (n == 0)
        return dt_error_at(err, DT_ERR_INPUT, e->t.job->name, 0, 0,
                           "the job has no run.eval_data; use --data FILE");
    DT_TRY(read_words(e, err));
    return dt_shard_list(data, n, err, &e->shards, &e->n_shards);
}

/* ---- sequences ---- */

/* One document each, of one task, in an order that depends on the seed only. */
static enum dt_status open_loader(const struct eval *e, double generate, struct dt_error *err,
                                  struct dt_loader **out)
{
    struct dt_loader_options o = e->t.setup.loader;

    o.shards = (const char *const *)e->shards;
    o.n_shards = e->n_shards;
    o.generate = generate;
    o.caption_drop = 0;
    o.unpacked = true;
    o.shuffle = true;
    o.seed = (uint64_t)e->seed;
    o.epochs = 1;
    o.threads = 0;
    o.cursor = (struct dt_data_cursor){0};
    return dt_loader_open(&o, err, out);
}

/* Every image is drawn; exactly 1 would refuse videos, which are read and never drawn. */
static const double all_drawn = 1 - 0x1p-53;

typedef enum dt_status batch_fn(struct eval *e, struct dt_sequence **seqs, int n,
                                struct dt_error *err);

static enum dt_status each_batch(struct eval *e, double generate, const char *what, batch_fn *fn,
                                 struct dt_error *err)
{
    struct dt_sequence **seqs = dt_calloc((size_t)e->batch, sizeof(*seqs));
    struct dt_loader *l = NULL;
    enum dt_status st = seqs ? open_loader(e, generate, err, &l) : dt_error_nomem(err, "a batch");
    int64_t done = 0;
    bool more = true;

    while (st == DT_OK && more && done < e->samples) {
        int n = 0;

        while (st == DT_OK && n < e->batch && done + n < e->samples) {
            st = dt_loader_next(l, err, &seqs[n]);
            more = st == DT_OK && seqs[n];
            if (!more)
                break;
            n++;
        }
        if (st == DT_OK && n > 0)
            st = fn(e, seqs, n, err);
        for (int i = 0; i < n; i++)
            dt_sequence_free(seqs[i]);
        done += n;
        dt_cli_progress(what, (int)done, (int)e->samples);
    }
    dt_cli_progress_end();
    dt_loader_close(l);
    dt_free(seqs);
    return st;
}

/* ---- captions ---- */

static void judge(struct eval *e, const char *truth, const char *said)
{
    int class = dt_caption_class(truth, e->words);

    if (e->captions++ == 0) {
        snprintf(e->example[0], sizeof(e->example[0]), "%s", truth);
        snprintf(e->example[1], sizeof(e->example[1]), "%s", said);
    }
    e->exact += strcmp(truth, said) == 0;
    if (class < 0)
        return;
    e->classed++;
    e->of_class[class]++;
    if (dt_caption_class(said, e->words) == class) {
        e->right++;
        e->right_of_class[class]++;
    }
}

static enum dt_status caption_batch(struct eval *e, struct dt_sequence **seqs, int n,
                                    struct dt_error *err)
{
    struct dt_infer_seen *seen = dt_calloc((size_t)n, sizeof(*seen));
    char **texts = dt_calloc((size_t)n, sizeof(*texts));
    struct dt_infer_losses sum = {0};
    enum dt_status st = seen && texts ? DT_OK : dt_error_nomem(err, "captions");
    int k = 0;

    for (int i = 0; i < n && st == DT_OK; i++) /* documents of text alone are left out */
        if (seqs[i]->n_items > 0) {
            struct dt_sequence *s = seqs[i];

            seen[k] = (struct dt_infer_seen){s->items, s->n_items};
            seqs[i] = seqs[k];
            seqs[k++] = s;
        }
    if (st == DT_OK)
        st = dt_infer_add_losses(e->t.infer, (const struct dt_sequence *const *)seqs, n,
                                 (uint64_t)e->seed, 0, err, &sum);
    e->nll += sum.nll;
    e->targets += sum.targets;
    dt_infer_losses_free(&sum);
    if (st == DT_OK)
        st = dt_infer_caption(e->t.infer, seen, k, (int)e->max_tokens, err, texts);
    for (int i = 0; i < k && st == DT_OK; i++) {
        const struct dt_sequence_doc *d = &seqs[i]->docs[0];
        char *truth;
        size_t len;

        st = dt_tokenizer_decode(e->t.setup.tokenizer, seqs[i]->ids + d->text_first, d->text_n,
                                 true, err, &truth, &len);
        if (st == DT_OK) {
            judge(e, truth, texts[i]);
            dt_free(truth);
        }
    }
    for (int i = 0; texts && i < k; i++)
        dt_free(texts[i]);
    dt_free(texts);
    dt_free(seen);
    return st;
}

/* ---- images ---- */

static enum dt_status image_batch(struct eval *e, struct dt_sequence **seqs, int n,
                                  struct dt_error *err)
{
    int k = 0;

    for (int i = 0; i < n; i++) /* those that are only read are left out */
        if (seqs[i]->n_items > 0 && (seqs[i]->items[0].flags & DT_ITEM_GENERATE)) {
            struct dt_sequence *s = seqs[i];

            seqs[i] = seqs[k];
            seqs[k++] = s;
        }
    for (int64_t d = 0; d < e->draws && k > 0; d++)
        DT_TRY(dt_infer_add_losses(e->t.infer, (const struct dt_sequence *const *)seqs, k,
                                   (uint64_t)e->seed, (uint64_t)d, err, &e->images));
    return DT_OK;
}

/* ---- results ---- */

static double share(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : NAN;
}

static void caption_facts(const struct dt_cli_facts *f, const struct eval *e)
{
    bool any = e->captions > 0;

    dt_cli_fact_int(f, "captions", NULL, NULL, e->captions);
    dt_cli_fact_number(f, "caption_accuracy", e->classed > 0 ? "caption accuracy" : NULL,
                       "%6.1f %%", 100, share(e->right, e->classed));
    if (e->classed > 0)
        dt_cli_fact_note(f, "   class word right in %lld of %lld\n", (long long)e->right,
                         (long long)e->classed);
    dt_cli_fact_number(f, "caption_exact", any ? "whole caption right" : NULL, "%6.1f %%\n", 100,
                       share(e->exact, e->captions));
    dt_cli_fact_number(f, "text_loss", any ? "text loss" : NULL, "%8.4f nats per token\n", 1,
                       e->targets > 0 ? e->nll / (double)e->targets : NAN);
    if (any)
        dt_cli_fact_note(f, "example                \"%s\", correct: \"%s\"\n", e->example[1],
                         e->example[0]);
}

static void image_facts(const struct dt_cli_facts *f, const struct eval *e)
{
    double n = (double)e->images.images;

    dt_cli_fact_int(f, "images", NULL, NULL, e->images.images);
    dt_cli_fact_number(f, "diffusion_loss", n > 0 ? "diffusion loss" : NULL,
                       "%8.4f mean squared error of the noise\n", 1,
                       n > 0 ? e->images.mse / n : NAN);
    dt_cli_fact_number(f, "diffusion_loss_trivial", n > 0 ? "trivial predictor" : NULL,
                       "%8.4f the best linear guess from the noisy pixel alone\n", 1,
                       n > 0 ? dt_infer_trivial_mse(&e->images) : NAN);
}

static enum dt_status print_json(const struct eval *e, struct dt_error *err)
{
    struct dt_json j;
    const struct dt_cli_facts f = {.json = &j};

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "model", e->t.setup.plan.model);
    dt_json_kv_string(&j, "checkpoint", e->t.checkpoint);
    dt_json_kv_int(&j, "step", e->t.state.step);
    caption_facts(&f, e);
    image_facts(&f, e);
    dt_json_key(&j, "classes");
    dt_json_begin_object(&j);
    for (int i = 0; i < e->n_words && e->classed > 0; i++)
        dt_json_kv_double(&j, e->words[i], share(e->right_of_class[i], e->of_class[i]));
    dt_json_end_object(&j);
    dt_json_kv_double(&j, "wall_s", e->wall_s);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static void print_text(const struct eval *e)
{
    const struct dt_cli_facts f = {.width = 22};

    printf("%s after %lld step%s (%s)\n", e->t.setup.plan.model, (long long)e->t.state.step,
           dt_plural(e->t.state.step), e->t.checkpoint);
    caption_facts(&f, e);
    image_facts(&f, e);
}

/* ---- running ---- */

static enum dt_status run(struct eval *e, struct dt_error *err)
{
    uint64_t t0 = dt_clock_ns();

    DT_TRY(read_options(e, err));
    if (dt_infer_can_caption(e->t.infer))
        DT_TRY(each_batch(e, 0, "captions", caption_batch, err));
    if (dt_infer_can_draw(e->t.infer))
        DT_TRY(each_batch(e, all_drawn, "images", image_batch, err));
    e->wall_s = (double)(dt_clock_ns() - t0) * 1e-9;
    if (e->captions + e->images.images == 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "nothing to evaluate: the model has neither encoder "
                            "nor generator, or the data has no images");
    if (e->cli->json)
        return print_json(e, err);
    print_text(e);
    return DT_OK;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct eval e = {.cli = cli};
    enum dt_status st;

    dt_cli_limit_spin(cli);
    DT_TRY(dt_cli_limits_check(false, err));
    DT_TRY(dt_cli_int(cli, "samples", 1, 1 << 30, SAMPLES, &e.samples, err));
    DT_TRY(dt_cli_int(cli, "draws", 1, 1 << 16, DRAWS, &e.draws, err));
    DT_TRY(dt_cli_int(cli, "max-tokens", 1, 1 << 16, TOKENS, &e.max_tokens, err));
    DT_TRY(dt_cli_int(cli, "seed", 0, INT64_MAX, 1, &e.seed, err));
    DT_TRY(dt_cli_int(cli, "batch", 1, 4096, BATCH, &e.batch, err));
    DT_TRY(dt_cli_trained_open(cli, (int)e.batch, err, &e.t));
    st = run(&e, err);
    dt_infer_losses_free(&e.images);
    dt_free(e.shards);
    dt_free(e.names);
    dt_cli_trained_close(&e.t);
    return st;
}

const struct dt_cli_command dt_cmd_eval = {
    .name = "eval",
    .args = "JOB [KEY=VALUE...]",
    .summary = "measure a trained model on held-out data",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
