/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a checkpoint and the job that goes on from it must share. */
#include "exec/train/setup.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- of a module ---- */

/* All that a block's result depends on and that its time alone does not: no capacity, no way of attention. */
struct field {
    const char *name;
    size_t at;
    bool flag; /* a bool, else an int or an enum */
};
#define NUMBER(f)                                                                                  \
    {                                                                                              \
#f, offsetof(struct dt_block, f), false                                                    \
    }
#define NAMED(name, f)                                                                             \
    {                                                                                              \
        name, offsetof(struct dt_block, f), false                                                  \
    }
#define FLAG(f)                                                                                    \
    {                                                                                              \
#f, offsetof(struct dt_block, f), true                                                     \
    }
static const struct field fields[] = {NUMBER(hidden),
                                      NUMBER(ffn),
                                      NUMBER(heads),
                                      NUMBER(kv_heads),
                                      NUMBER(head_dim),
                                      NUMBER(vocab),
                                      NAMED("positions", max_pos),
                                      NAMED("experts", n_experts),
                                      NUMBER(top_k),
                                      NUMBER(shared_ffn),
                                      FLAG(shared_gate),
                                      FLAG(router_bias),
                                      FLAG(causal),
                                      FLAG(gated),
                                      FLAG(bias),
                                      FLAG(tied),
                                      FLAG(layernorm),
                                      FLAG(qkv_bias),
                                      FLAG(qk_norm),
                                      FLAG(qk_norm_whole),
                                      FLAG(no_qkv_bias),
                                      {"grid_rotary", offsetof(struct dt_block, grid_rope), true},
                                      NUMBER(norms),
                                      FLAG(norm_free),
                                      FLAG(layer_scale),
                                      NUMBER(window),
                                      NUMBER(q_lora),
                                      NUMBER(kv_lora),
                                      NUMBER(rope_dim),
                                      NUMBER(v_dim),
                                      NUMBER(patch),
                                      NUMBER(channels),
                                      NUMBER(class_tokens),
                                      FLAG(class_attends),
                                      NUMBER(c_in),
                                      NUMBER(c_out),
                                      NUMBER(kernel),
                                      NUMBER(stride),
                                      FLAG(upsample),
                                      NUMBER(level),
                                      NUMBER(time_dim),
                                      NUMBER(context_dim),
                                      NUMBER(context_len),
                                      NAMED("norm_groups", groups),
                                      NUMBER(depth),
                                      NUMBER(in_dim),
                                      NUMBER(out_dim),
                                      NUMBER(mid_dim),
                                      NUMBER(merge),
                                      FLAG(pool),
                                      NAMED("norm", in_norm)};

static int value_of(const struct field *f, const struct dt_block *b)
{
    const char *at = (const char *)b + f->at;
    int v;

    if (f->flag)
        return *(const bool *)at;
    memcpy(&v, at, sizeof(v));
    return v;
}

/* "8", or along the blocks "8 x 3, 0". */
static void field_line(struct dt_text *t, const struct dt_module *m, enum dt_block_kind kind,
                       const struct field *f)
{
    int run = 0, last = 0, parts = 0;

    for (int i = 0; i <= m->n_blocks; i++) {
        const struct dt_block *b = i < m->n_blocks ? &m->blocks[i] : NULL;

        if (b && b->kind != kind)
            continue;
        if (run > 0 && (!b || value_of(f, b) != last)) {
            dt_text_add(t, parts++ > 0 ? ", %d" : "%d", last);
            if (run > 1 && (b || parts > 1))
                dt_text_add(t, " x %d", run);
            run = 0;
        }
        if (b)
            last = value_of(f, b);
        run++;
    }
}

static bool states(const struct dt_module *m, enum dt_block_kind kind, const struct field *f)
{
    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].kind == kind && value_of(f, &m->blocks[i]) != 0)
            return true;
    return false;
}

static void block_lines(struct dt_text *t, const struct dt_module *m)
{
    dt_text_add(t, "%s.blocks ", m->name);
    for (int i = 0, run = 1; i < m->n_blocks; i++, run++) {
        if (i + 1 < m->n_blocks && m->blocks[i + 1].kind == m->blocks[i].kind)
            continue;
        dt_text_add(t, "%s%s", i + 1 > run ? ", " : "", dt_block_kind_name(m->blocks[i].kind));
        if (run > 1)
            dt_text_add(t, " x %d", run);
        run = 0;
    }
    dt_text_add(t, "\n");
    for (int k = 0; k < DT_BLOCK_KIND_N; k++)
        for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++)
            if (states(m, (enum dt_block_kind)k, &fields[f])) {
                dt_text_add(t, "%s.%s.%s ", m->name, dt_block_kind_name((enum dt_block_kind)k),
                            fields[f].name);
                field_line(t, m, (enum dt_block_kind)k, &fields[f]);
                dt_text_add(t, "\n");
            }
}

/* As few digits as tell it from every other number. */
static void number_line(struct dt_text *t, const struct dt_module *m, const char *name, double v)
{
    char text[40];

    snprintf(text, sizeof(text), "%.15g", v);
    if (strtod(text, NULL) != v)
        snprintf(text, sizeof(text), "%.17g", v);
    dt_text_add(t, "%s.%s %s\n", m->name, name, text);
}

static void rope_lines(struct dt_text *t, const struct dt_module *m)
{
    const struct dt_rope *r = &m->arith.rope;

    number_line(t, m, "rope.theta", r->theta > 0 ? r->theta : DT_ROPE_THETA);
    if (r->scaling == DT_ROPE_PLAIN)
        return;
    dt_text_add(t, "%s.rope.scaling %s\n", m->name, dt_rope_scaling_names[r->scaling]);
    number_line(t, m, "rope.factor", r->factor);
    if (r->scaling != DT_ROPE_LLAMA3)
        return;
    number_line(t, m, "rope.low_freq_factor", r->low_freq);
    number_line(t, m, "rope.high_freq_factor", r->high_freq);
    number_line(t, m, "rope.original_positions", r->original);
}

static const struct dt_block *first(const struct dt_module *m, enum dt_block_kind kind)
{
    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].kind == kind)
            return &m->blocks[i];
    return NULL;
}

/* Habits by what they come to, so that stating one changes nothing. */
static void arithmetic_lines(struct dt_text *t, const struct dt_module *m)
{
    static const struct dt_module_arithmetic habits;
    const struct dt_module_arithmetic *a = &m->arith;
    const struct dt_block *layer = first(m, DT_BLOCK_TRANSFORMER);

    number_line(t, m, "norm_eps", dt_module_norm_eps(m));
    if (layer) {
        dt_text_add(t, "%s.activation %s\n", m->name,
                    dt_block_activation_names[dt_block_activation(a, layer)]);
        if (dt_block_attention_scale(a, layer) != dt_block_attention_scale(&habits, layer))
            number_line(t, m, "attention_scale", a->attention_scale);
    }
    if (m->role == DT_ROLE_LLM)
        rope_lines(t, m);
    if (a->scale_by_layer)
        dt_text_add(t, "%s.attention_scale_by_layer 1\n", m->name);
    if (a->sine_first)
        dt_text_add(t, "%s.sine_first 1\n", m->name);
    if (a->freq_shift != 0)
        number_line(t, m, "freq_shift", a->freq_shift);
    if (a->top_k_raw)
        dt_text_add(t, "%s.expert_norm none\n", m->name);
}

static void module_lines(struct dt_text *t, const struct dt_module *m)
{
    block_lines(t, m);
    arithmetic_lines(t, m);
    if (m->mel_bins > 0)
        dt_text_add(t, "%s.mel_bins %d\n", m->name, m->mel_bins);
    if (m->role == DT_ROLE_GENERATOR)
        dt_text_add(t, "%s.latent_scale %d\n", m->name, m->latent_scale);
}

/* ---- of the job ---- */

/* The special ids only where earlier versions took others, so that other checkpoints of theirs stay good. */
static void tokenizer_lines(struct dt_text *t, const struct dt_tokenizer *tok)
{
    struct dt_tokenizer_special_ids id = dt_tokenizer_special(tok);

    dt_text_add(t, "tokenizer %016" PRIx64 "\n", dt_tokenizer_digest(tok));
    if (dt_tokenizer_special_moved(tok))
        dt_text_add(t, "special_tokens bos %d eos %d pad %d image %d\n", (int)id.bos, (int)id.eos,
                    (int)id.pad, (int)id.image);
}

enum dt_status dt_setup_identify(struct dt_setup *s, struct dt_error *err)
{
    const struct dt_job_run_options *r = &s->job->run;
    const struct dt_model *m = s->job->model;
    struct dt_text model = {.s = NULL}, training = {.s = NULL};
    enum dt_status st;

    for (int i = 0; i < m->n_modules; i++)
        module_lines(&model, &m->modules[i]);
    if (s->generator >= 0)
        dt_text_add(&model, "noise %s\nnoise_steps %d\n", dt_job_run_noise_names[r->noise],
                    r->noise_steps);
    tokenizer_lines(&model, s->tokenizer);
    dt_text_add(&training, "global_batch %" PRId64 "\nseq_len %d\nseed %" PRIu64 "\n",
                (int64_t)s->plan.policy.global_batch, s->plan.policy.seq_len, (uint64_t)r->seed);
    for (int i = 0; i < m->n_modules; i++)
        if (s->plan.modules[i].frozen)
            dt_text_add(&training, "%s.frozen 1\n", m->modules[i].name);
    st = dt_text_finish(&model, err, &s->identity.model);
    if (st == DT_OK)
        st = dt_text_finish(&training, err, &s->identity.training);
    dt_free(training.s);
    return st;
}

/* ---- of checkpoints from before there was job.json ---- */

static void arithmetic_text(const struct dt_module_arithmetic *a, int groups, char *text,
                            size_t size)
{
    snprintf(text, size, " eps %g act %d rope %g %d %g %g %g %d scale %g %d time %d %g groups %d;",
             a->norm_eps, (int)a->activation, a->rope.theta, (int)a->rope.scaling, a->rope.factor,
             a->rope.low_freq, a->rope.high_freq, a->rope.original, a->attention_scale,
             a->scale_by_layer, a->sine_first, a->freq_shift, groups);
}

/* Arithmetic away from the habits of the module's kind, else nothing: weights belong to theirs. */
static void own_arithmetic(const struct dt_module *m, char *text, size_t size)
{
    static const struct dt_module_arithmetic habits;
    char habit[256];
    int groups = 0;

    for (int i = 0; i < m->n_blocks; i++)
        groups = m->blocks[i].groups > groups ? m->blocks[i].groups : groups;
    arithmetic_text(&m->arith, groups, text, size);
    arithmetic_text(&habits, 0, habit, sizeof(habit));
    if (strcmp(text, habit) == 0)
        text[0] = '\0';
    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].n_experts > 0) {
            size_t at = strlen(text);

            snprintf(text + at, size - at, " %d of %d experts%s;", m->blocks[i].top_k,
                     m->blocks[i].n_experts, m->arith.top_k_raw ? ", weights as they are" : "");
            return;
        }
}

/* Heads, noise and the contents of a tokenizer are not in it. */
static void digest_before(const struct dt_setup *s, char *buf, size_t size)
{
    const struct dt_model *m = s->job->model;
    const struct dt_job_run_options *r = &s->job->run;
    char text[4096], own[256];
    int at = 0;

    for (int i = 0; i < m->n_modules; i++) {
        own_arithmetic(&m->modules[i], own, sizeof(own));
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s %d blocks %lld parameters%s;%s",
                       m->modules[i].name, m->modules[i].n_blocks,
                       (long long)dt_module_params(&m->modules[i]),
                       s->plan.modules[i].frozen ? " frozen" : "", own);
    }
    at += snprintf(text + at, sizeof(text) - (size_t)at, "batch %lld seq %d seed %llu tokenizer %s",
                   (long long)s->plan.policy.global_batch, s->plan.policy.seq_len,
                   (unsigned long long)r->seed, r->tokenizer);
    dt_ckpt_digest(text, (size_t)(at < (int)sizeof(text) ? at : (int)sizeof(text) - 1), buf, size);
}

/* ---- a checkpoint ---- */

static enum dt_status same_as_before(const struct dt_setup *s, const char *path,
                                     struct dt_error *err)
{
    struct dt_ckpt_state state;
    char digest[sizeof(state.job_digest)];

    DT_TRY(dt_ckpt_read_state(path, err, &state));
    digest_before(s, digest, sizeof(digest));
    if (strcmp(state.job_digest, digest) == 0)
        return DT_OK;
    return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                       "this checkpoint is of another model, batch, sequence length, seed or "
                       "tokenizer; name another checkpoint.dir, or use --from-scratch");
}

enum dt_status dt_setup_check_checkpoint(const struct dt_setup *s, const char *path, bool training,
                                         struct dt_error *err)
{
    struct dt_ckpt_job was;
    char *differ = NULL;
    enum dt_status st;

    DT_TRY(dt_ckpt_read_job(path, err, &was));
    if (!was.model)
        return training ? same_as_before(s, path, err) : DT_OK;
    st = dt_ckpt_job_compare(&was, &s->identity, training, err, &differ);
    if (differ)
        st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "this checkpoint is of another job: %s%s",
                         differ,
                         training ? "; name another checkpoint.dir, or use --from-scratch" : "");
    dt_free(differ);
    dt_ckpt_job_free(&was);
    return st;
}
