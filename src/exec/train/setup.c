/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/setup.h"

#include "base/mem.h"
#include "core/model/samples_sound.h"
#include "core/model/shape.h"
#include "base/clock.h"
#include "exec/data/pack.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PRECISION_AUTO, PRECISION_FP32, PRECISION_BF16 };

void dt_setup_device(const struct dt_job *job, struct dt_device_options *out)
{
    *out = (struct dt_device_options){.threads = job->run.threads,
                                      .no_bf16 = job->run.precision == PRECISION_FP32,
                                      .own_kernels = job->run.deterministic};
}

static enum dt_status choose_type(struct dt_setup *s, struct dt_error *err)
{
    s->dtype = s->job->run.precision == PRECISION_FP32 ? DT_F32 : s->device->info.fast;
    if (s->job->run.precision == PRECISION_BF16) {
        if (!s->device->info.bf16)
            return dt_error_set(err, DT_ERR_INPUT,
                                "precision: bf16 does not work on %s (%s); use fp32 or auto",
                                s->device->info.name, s->device->info.isa);
        s->dtype = DT_BF16;
    }
    return DT_OK;
}

/* Gradients are kept and reduced in fp32, whatever the type of activations.  Another type is for simulations: a job
 * that states it would train otherwise than it says. */
static enum dt_status check_gradients(const struct dt_setup *s, struct dt_error *err)
{
    const struct dt_plan_policy *y = &s->plan.policy;
    const char *key = y->half_grads ? "precision" : "grads",
               *word = y->half_grads ? "fp16" : "bf16";
    struct dt_node at = dt_map_get(dt_map_get(dt_doc_root(s->job->doc), "train"), key);

    if (!y->half_grads && !y->bf16_grads)
        return DT_OK;
    if (dt_node_present(at))
        return dt_node_error(
            at, err, "%s: %s is for simulations; here gradients are fp32; leave this key out", key,
            word);
    return dt_error_set(err, DT_ERR_INPUT,
                        "the plan has %s gradients, which are for simulations; here they are fp32",
                        word);
}

/* ---- plan ---- */

enum dt_status dt_setup_plan(const struct dt_job *j, struct dt_error *err, struct dt_plan *out)
{
    if (j->has_plan) {
        *out = j->plan;
    } else {
        dt_plan_init(out, j->model, &j->policy);
        for (int m = 0; m < j->model->n_modules; m++) {
            out->modules[m].frozen = j->frozen[m];
            out->modules[m].recompute = j->recompute[m];
            out->modules[m].zero = j->zero[m];
            out->modules[m].offload = j->offload[m];
        }
        out->colocated = true;
    }
    out->policy.exact_vectors = true; /* whatever the job's cluster */
    return dt_plan_place(out, &j->cluster, err);
}

static enum dt_status choose_plan(struct dt_setup *s, struct dt_error *err)
{
    DT_TRY(dt_setup_plan(s->job, err, &s->plan));
    s->plan.policy.fp32 = s->dtype == DT_F32; /* what `auto` has come to */
    if (s->plan.policy.stepccl && s->plan.policy.stepccl_chunks == 0 && s->device->info.gates)
        s->plan.policy.stepccl_chunks = DT_STEPCCL_CHUNKS_TRAINED;
    return dt_plan_validate(&s->plan, s->job->model, &s->job->cluster, err);
}

/* Sizes in order of cost need one: the job's profile, or FLOPs over the cluster's rates where it
 * has no rows.  One GPU gains nothing from order. */
static enum dt_status choose_cost(struct dt_setup *s, struct dt_error *err)
{
    const struct dt_job *j = s->job;
    struct dt_cost_options o = j->cost_opt;

    if (dt_plan_gpus(&s->plan) == 1) {
        s->plan.policy.intra_reorder = s->plan.policy.inter_reorder = false;
        s->plan.policy.batch_reorder = false;
        return DT_OK;
    }
    o.allow_analytical = true;
    o.fp32 = s->plan.policy.fp32;
    o.stepccl = s->plan.policy.stepccl;
    o.stepccl_chunks = s->plan.policy.stepccl_chunks;
    return dt_cost_new(j->model, &j->cluster, j->profile, &o, err, &s->cost);
}

/* ---- data ---- */

/* The last module of a role, or NULL. */
static const struct dt_module *of_role(const struct dt_model *m, enum dt_module_role role)
{
    const struct dt_module *found = NULL;

    for (int i = 0; i < m->n_modules; i++)
        if (m->modules[i].role == role)
            found = &m->modules[i];
    return found;
}

static struct dt_image_spec spec_of(const struct dt_job *j, const struct dt_module *m)
{
    int side = m ? m->resize : 0;

    return (struct dt_image_spec){side > 0 ? (enum dt_image_fit)j->run.fit : DT_FIT_NONE, side,
                                  DT_FILTER_AUTO};
}

/* "tcp://a:1,tcp://b:2" in one text or in several.  DT_ERR_INPUT: shards among them. */
static enum dt_status list_producers(struct dt_setup *s, struct dt_error *err)
{
    const struct dt_job_paths *data = &s->job->run.data;
    size_t bytes = 0, most = 0;
    char *at;

    for (int i = 0; i < data->n; i++) {
        bytes += strlen(data->path[i]) + 1;
        most += strlen(data->path[i]) / 6 + 1;
    }
    s->producers = dt_calloc(1, most * sizeof *s->producers + bytes);
    if (!s->producers)
        return dt_error_nomem(err, "producers");
    at = (char *)(s->producers + most);
    for (int i = 0; i < data->n; i++) {
        char *rest = NULL, *text = at;

        strcpy(text, data->path[i]);
        at += strlen(text) + 1;
        for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
            if (strncmp(one, "tcp://", 6) != 0)
                return dt_error_set(err, DT_ERR_INPUT,
                                    "\"%s\": data comes from producers, tcp://HOST:PORT, or from "
                                    "shards, not from both",
                                    one);
            s->producers[s->n_producers++] = one;
        }
    }
    return DT_OK;
}

static enum dt_status list_data(struct dt_setup *s, struct dt_error *err)
{
    const struct dt_job_paths *data = &s->job->run.data;

    for (int i = 0; i < data->n; i++)
        if (strncmp(data->path[i], "tcp://", 6) == 0)
            return list_producers(s, err);
    return dt_shard_list((const char *const *)data->path, data->n, err, &s->shards, &s->n_shards);
}

/* Latents a side are a multiple of this: every level of the generator but the first halves them. */
static int latent_multiple(const struct dt_module *m)
{
    int level = 0;

    for (int b = 0; m && b < m->n_blocks; b++)
        level = m->blocks[b].level > level ? m->blocks[b].level : level;
    return 1 << level;
}

/* Where all targets are made one size, it has to be a possible one; else each is looked at when it is read. */
static enum dt_status check_target(const struct dt_loader_options *l, const struct dt_module *m,
                                   struct dt_error *err)
{
    int side = l->target.side / (l->latent_scale > 0 ? l->latent_scale : 1);

    if ((l->target.fit != DT_FIT_CROP && l->target.fit != DT_FIT_STRETCH) ||
        side % l->latent_multiple == 0)
        return DT_OK;
    return dt_error_set(err, DT_ERR_INPUT,
                        "module \"%s\": resize: %d pixels are %d latents a side, which are no "
                        "multiple of %d, as its levels need it",
                        m->name, l->target.side, side, l->latent_multiple);
}

/* Hundredths of a second that the encoder hears of a clip: run.audio_max_s, less where it has fewer positions. */
static int sound_limit(const struct dt_job *j, const struct dt_module *m)
{
    int cs = (int)lrint(100 * j->run.audio_max_s), rows;
    const struct dt_block *p = m ? &m->blocks[0] : NULL;

    if (!m || m->mel_bins == 0 || p->max_pos == 0)
        return cs;
    rows = (p->max_pos - p->class_tokens) / (m->mel_bins / p->patch) + 1;
    return dt_sample_sound_cs((int64_t)rows * p->patch) <= cs
               ? (int)dt_sample_sound_cs((int64_t)rows * p->patch) - 1
               : cs;
}

enum dt_status dt_setup_loader(const struct dt_job *j, const struct dt_tokenizer *t,
                               struct dt_error *err, struct dt_loader_options *out)
{
    const struct dt_module *encoder = of_role(j->model, DT_ROLE_ENCODER);
    const struct dt_module *generator = of_role(j->model, DT_ROLE_GENERATOR);
    const struct dt_job_run_options *r = &j->run;

    *out = (struct dt_loader_options){
        .keep_index = strcmp(r->data_index, "none") != 0,
        .index_folder = strcmp(r->data_index, "auto") != 0 ? r->data_index : NULL,
        .tokenizer = t,
        .seq_len = j->policy.seq_len,
        .patch = encoder ? dt_module_token_pixels(encoder) : 0,
        .mel_bins = encoder ? encoder->mel_bins : 0,
        .sound_cs = sound_limit(j, encoder),
        .generate = !generator ? 0
                    : !encoder ? 1
                               : r->generate,
        .caption_drop = r->caption_drop,
        .image = spec_of(j, encoder),
        .target = spec_of(j, generator),
        .latent_scale = generator ? generator->latent_scale : 0,
        .latent_multiple = latent_multiple(generator),
        .frames = {r->frame_stride, r->frames_max},
        .text_only = r->text_only,
        .unpacked = !r->packed,
        .shuffle = r->shuffle,
        .seed = r->seed,
        .threads = r->data_threads,
        .fatal = r->fatal || r->bad_samples == 0,
        .bad_max = r->bad_samples > 0 ? r->bad_samples : 0,
    };
    return generator ? check_target(out, generator, err) : DT_OK;
}

static enum dt_status open_data(struct dt_setup *s, bool need_data, struct dt_error *err)
{
    const struct dt_job_run_options *r = &s->job->run;
    const struct dt_model *m = s->job->model;
    int vocab = m->modules[m->llm].blocks[0].vocab;

    DT_TRY(dt_tokenizer_open(r->tokenizer, err, &s->tokenizer));
    if (dt_tokenizer_vocab(s->tokenizer) > vocab)
        return dt_error_set(
            err, DT_ERR_INPUT, "tokenizer %s has %d tokens, module %s a vocabulary of %d",
            r->tokenizer, dt_tokenizer_vocab(s->tokenizer), m->modules[m->llm].name, vocab);
    if (r->data.n > 0)
        DT_TRY(
            dt_preset_error_place(dt_map_get(dt_map_get(dt_doc_root(s->job->doc), "run"), "data"),
                                  list_data(s, err), err));
    else if (need_data)
        return dt_error_at(err, DT_ERR_INPUT, s->job->name, 0, 0,
                           "run.data is missing: the shards to train on, such as run: {data: "
                           "fashion-train-000000.tar}; \"disttrain data pack\" makes them");
    DT_TRY(dt_setup_loader(s->job, s->tokenizer, err, &s->loader));
    s->loader.shards = (const char *const *)s->shards;
    s->loader.n_shards = s->n_shards;
    return DT_OK;
}

/* ---- opening ---- */

static enum dt_status open_all(struct dt_setup *s, bool need_data, struct dt_error *err)
{
    const struct dt_model *m = s->job->model;
    const struct dt_module *encoder = of_role(m, DT_ROLE_ENCODER);
    const struct dt_module *generator = of_role(m, DT_ROLE_GENERATOR);

    s->encoder = encoder ? (int)(encoder - m->modules) : -1;
    s->generator = generator ? (int)(generator - m->modules) : -1;
    DT_TRY(choose_type(s, err));
    DT_TRY(choose_plan(s, err));
    if (need_data) /* it is to train */
        DT_TRY(check_gradients(s, err));
    DT_TRY(choose_cost(s, err));
    if (s->generator >= 0)
        DT_TRY(dt_diffusion_init(&s->diffusion, (enum dt_diffusion_schedule)s->job->run.noise,
                                 s->job->run.noise_steps, err));
    DT_TRY(open_data(s, need_data, err));
    return dt_setup_identify(s, err);
}

enum dt_status dt_setup_open(const struct dt_job *job, const struct dt_device *device,
                             bool need_data, struct dt_error *err, struct dt_setup *out)
{
    struct dt_setup s = {.job = job, .device = device};
    enum dt_status st = open_all(&s, need_data, err);

    if (st != DT_OK)
        dt_setup_close(&s);
    else
        *out = s;
    return st;
}

void dt_setup_close(struct dt_setup *s)
{
    dt_tokenizer_free(s->tokenizer);
    if (s->diffusion.alpha_bar)
        dt_diffusion_free(&s->diffusion);
    dt_free(s->shards);
    dt_free(s->producers);
    dt_cost_free(s->cost);
    dt_ckpt_job_free(&s->identity);
    memset(s, 0, sizeof(*s));
}

void dt_setup_exec_options(const struct dt_setup *s, struct dt_exec_options *out)
{
    const struct dt_job_run_options *r = &s->job->run;

    *out = (struct dt_exec_options){
        .device = s->device,
        .over = (enum dt_transport_over)s->job->run.transport,
        .model = s->job->model,
        .plan = &s->plan,
        .dtype = s->dtype,
        .optimizer = {.lr = r->lr,
                      .min_lr = r->min_lr,
                      .warmup_steps = r->warmup_steps,
                      .decay = (enum dt_optimizer_decay)r->decay,
                      .steps = r->steps,
                      .beta1 = r->beta1,
                      .beta2 = r->beta2,
                      .eps = r->eps,
                      .weight_decay = r->weight_decay,
                      .clip = r->clip},
        .diffusion = &s->diffusion,
        .text_weight = r->text_weight,
        .image_weight = r->image_weight,
        .dropout = r->dropout,
        .seed = r->seed,
        .host_threads = r->threads,
    };
}

/* ---- checkpoints ---- */

static enum dt_status put(void *arg, enum dt_param_what what, int i, const float *values,
                          struct dt_error *err)
{
    return dt_exec_put(arg, what, i, values, err);
}

enum dt_status dt_setup_parts(const struct dt_setup *s, const struct dt_exec_whole *w,
                              struct dt_error *err, struct dt_ckpt_part **parts)
{
    struct dt_ckpt_part *p = dt_calloc((size_t)w->n + 1, sizeof(*p));

    if (!p)
        return dt_error_nomem(err, "parts of a checkpoint");
    for (int k = 0; k < w->n; k++) {
        struct dt_exec_part *from = &w->part[k];

        p[k] = (struct dt_ckpt_part){.module = s->plan.module_names[from->module],
                                     .params = from->params,
                                     .n_params = from->n_params,
                                     .master = from->master,
                                     .exp_avg = from->exp_avg,
                                     .exp_avg_sq = from->exp_avg_sq,
                                     .trained = from->trained,
                                     .put = from->master ? NULL : put,
                                     .arg = from};
    }
    *parts = p;
    return DT_OK;
}
