/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/run_facts.h"

#include "base/hash.h"

#include "core/model/block_key.h"

#include <stdio.h>
#include <string.h>

/* A sum over samples, so that reordering changes nothing; each is mixed once more, so that equal
 * ones do not cancel in pairs. */
uint64_t dt_run_samples_digest(const struct dt_samples *s, int64_t first, int64_t n)
{
    uint64_t sum = 0;

    for (int64_t k = first; k < first + n && s->n > 0; k++) {
        int64_t i = k % s->n;
        uint64_t h = DT_HASH_START;

        h = dt_hash_number(h, s->text_tokens[i]);
        h = dt_hash_number(h, s->seq_tokens[i]);
        for (uint64_t j = s->item_first[i]; j < s->item_first[i + 1]; j++) {
            const struct dt_sample_item *x = &s->items[j];

            h = dt_hash_number(h, (uint64_t)x->w << 48 | (uint64_t)x->h << 32 |
                                      (uint64_t)x->kind << 16 | x->flags);
        }
        sum += h;
    }
    return sum;
}

static uint64_t model_digest(const struct dt_model *m)
{
    const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    uint64_t h = DT_HASH_START;

    for (int i = 0; i < m->n_modules; i++) {
        const struct dt_module *x = &m->modules[i];

        h = dt_hash_number(h, x->role);
        for (const char *c = x->name; *c; c++)
            h = dt_hash_number(h, (unsigned char)*c);
        for (int b = 0; b < x->n_blocks; b++)
            h = dt_hash_number(h, (uint64_t)dt_block_key(&x->blocks[b], &whole));
    }
    return h;
}

void dt_run_facts_add(struct dt_run_facts *f, const char *name, const char *value)
{
    if (f->n == DT_RUN_FACTS_MAX)
        return;
    snprintf(f->fact[f->n].name, sizeof(f->fact[f->n].name), "%s", name);
    snprintf(f->fact[f->n].value, sizeof(f->fact[f->n].value), "%s", value);
    f->n++;
}

static void add_int(struct dt_run_facts *f, const char *name, int64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%lld", (long long)value);
    dt_run_facts_add(f, name, text);
}

void dt_run_facts_of(const struct dt_model *m, const struct dt_plan *p, const char *source,
                     uint64_t digest, double peak_flops, struct dt_run_facts *out)
{
    const struct dt_plan_policy *y = &p->policy;
    int64_t params = 0;
    char text[320];

    out->n = 0;
    for (int i = 0; i < m->n_modules; i++)
        params += dt_module_params(&m->modules[i]);
    snprintf(text, sizeof(text), "%lld parameters, %016llx", (long long)params,
             (unsigned long long)model_digest(m));
    dt_run_facts_add(out, "model", text);
    snprintf(text, sizeof(text), "%.280s, %016llx", source, (unsigned long long)digest);
    dt_run_facts_add(out, "samples", text);
    add_int(out, "global_batch", y->global_batch);
    add_int(out, "microbatch", y->microbatch);
    add_int(out, "seq_len", y->seq_len);
    dt_run_facts_add(out, "precision", y->fp32 ? "fp32" : y->half_grads ? "fp16" : "bf16");
    dt_run_facts_add(out, "recompute", dt_plan_recompute_text(p, text, sizeof(text)));
    dt_run_facts_add(out, "schedule", dt_pipe_schedule_names[y->schedule]);
    dt_run_facts_add(out, "warmup", dt_plan_warmup_names[y->warmup]);
    dt_run_facts_add(out, "zero", dt_plan_zero_text(p, text, sizeof(text)));
    dt_run_facts_add(out, "assignment", dt_plan_assignment_names[y->assignment]);
    /* Entrain's assignment has an order of its own, and one GPU gains nothing from any: there it says nothing about
     * the job */
    if (y->assignment == DT_ASSIGNMENT_SLOTS && dt_plan_gpus(p) > 1)
        dt_run_facts_add(out, "reorder",
                         y->batch_reorder   ? "by batch"
                         : y->intra_reorder ? y->inter_reorder ? "intra and inter" : "intra"
                         : y->inter_reorder ? "inter"
                                            : "none");
    if (peak_flops > 0) {
        snprintf(text, sizeof(text), "%.17g", peak_flops);
        dt_run_facts_add(out, "peak_flops", text);
    }
}

const char *dt_run_facts_find(const struct dt_run_facts *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (strcmp(f->fact[i].name, name) == 0)
            return f->fact[i].value;
    return NULL;
}

/* Samples are the same when their sizes are, wherever they come from. */
static bool equal(const char *name, const char *a, const char *b)
{
    const char *x = strrchr(a, ','), *y = strrchr(b, ',');

    return strcmp(name, "samples") == 0 && x && y ? strcmp(x, y) == 0 : strcmp(a, b) == 0;
}

/* Runs of before tell these only where they are another choice.  A run of ours tells its schedule; values that others
 * measured do not, and tell nothing of these either. */
static const struct dt_run_fact untold[] = {{"warmup", "1f1b"}, {"assignment", "slots"}};
enum { UNTOLD_N = sizeof(untold) / sizeof(untold[0]) };

/* The value, told or not; NULL. */
static const char *value_of(const struct dt_run_facts *f, const char *name)
{
    const char *told = dt_run_facts_find(f, name);

    for (int i = 0; !told && i < UNTOLD_N; i++)
        if (strcmp(untold[i].name, name) == 0 && dt_run_facts_find(f, "schedule"))
            return untold[i].value;
    return told;
}

static bool differ(const struct dt_run_facts *a, const struct dt_run_facts *b, const char *name,
                   struct dt_run_difference *out)
{
    const char *x = value_of(a, name), *y = value_of(b, name);

    if (!x || !y || strcmp(name, "peak_flops") == 0 || equal(name, x, y))
        return false;
    *out = (struct dt_run_difference){name, x, y};
    return true;
}

int dt_run_facts_differ(const struct dt_run_facts *a, const struct dt_run_facts *b,
                        struct dt_run_difference out[DT_RUN_FACTS_MAX])
{
    int n = 0;

    for (int i = 0; i < a->n; i++)
        n += differ(a, b, a->fact[i].name, &out[n]);
    for (int i = 0; i < UNTOLD_N && n < DT_RUN_FACTS_MAX; i++)
        if (!dt_run_facts_find(a, untold[i].name))
            n += differ(a, b, untold[i].name, &out[n]);
    return n;
}
