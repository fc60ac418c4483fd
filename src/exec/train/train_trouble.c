/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_trouble.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- looking ---- */

/* Samples of a sequence, the first few by name. */
static void add_samples(const struct dt_sequence *q, bool first, struct dt_train_event *e)
{
    for (int d = 0; d < q->n_docs; d++) {
        int64_t k = e->n_samples++;

        if (first && k < DT_EVENT_SAMPLES)
            snprintf(e->samples[k], sizeof(e->samples[k]), "%s", q->docs[d].name);
    }
}

static void find_samples(const struct dt_setup *s, const double *losses,
                         const struct dt_prefetch_batch *b, bool first, struct dt_train_event *e)
{
    const struct dt_model *m = s->job->model;

    for (int64_t i = 0; i < b->n; i++) {
        bool text = !isfinite(losses[i]), image = !isfinite(losses[b->n + i]);

        if ((text || image) && !e->module[0])
            snprintf(e->module, sizeof(e->module), "%s",
                     m->modules[text || s->generator < 0 ? m->llm : s->generator].name);
        if (text || image)
            add_samples(b->seqs[i], first, e);
    }
    e->of_batch = e->n_samples == 0;
    for (int64_t i = 0; e->of_batch && i < b->n; i++)
        add_samples(b->seqs[i], first, e);
}

enum dt_status dt_train_trouble_find(const struct dt_setup *s, struct dt_exec *x,
                                     const struct dt_prefetch_batch *b,
                                     const struct dt_exec_result *r, bool first,
                                     struct dt_error *err, struct dt_train_event *e)
{
    e->loss = r->loss;
    e->grad_norm = r->grad_norm;
    find_samples(s, dt_exec_losses(x), b, first, e);
    if (e->verdict.cause != DT_GUARD_NONFINITE)
        return DT_OK;
    return dt_exec_find_nonfinite(x, err, &e->param, &e->grad);
}

/* ---- saying ---- */

const char *dt_train_trouble_name(const struct dt_train_event *e)
{
    return e->verdict.cause == DT_GUARD_SPIKE ? "spike" : "nonfinite";
}

struct line {
    char *buf;
    size_t size, at;
};

static void put(struct line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct line *l, const char *fmt, ...)
{
    va_list ap;
    int n;

    if (l->at + 1 >= l->size)
        return;
    va_start(ap, fmt);
    n = vsnprintf(l->buf + l->at, l->size - l->at, fmt, ap);
    va_end(ap);
    l->at += n > 0 ? (size_t)n : 0;
}

static void put_origin(struct line *l, const struct dt_train_event *e)
{
    char text[128];

    if (e->note[0])
        put(l, "%s", e->note);
    else if (e->module[0])
        put(l, "the loss of module %s is not finite", e->module);
    else
        put(l, "the gradient norm is not finite");
    if (e->param.name[0])
        put(l, "; nor is parameter %s: %s", e->param.name,
            dt_nonfinite_text(&e->param.bad, e->param.values, text, sizeof(text)));
    if (e->grad.name[0])
        put(l, "; first such gradient: %s, %s", e->grad.name,
            dt_nonfinite_text(&e->grad.bad, e->grad.values, text, sizeof(text)));
    else if (!e->note[0] && !e->module[0])
        put(l, "; every gradient is finite, so their squares are too large to add");
}

static void put_samples(struct line *l, const struct dt_train_event *e)
{
    int64_t n = e->n_samples < DT_EVENT_SAMPLES ? e->n_samples : DT_EVENT_SAMPLES;

    if (n == 0)
        return;
    put(l, "; %s%s ", e->of_batch ? "samples of the batch:" : "of sample",
        e->of_batch || n == 1 ? "" : "s");
    for (int64_t i = 0; i < n; i++)
        put(l, "%s%s", i > 0 ? ", " : "", e->samples[i]);
    if (e->n_samples > n)
        put(l, " and %" PRId64 " more", e->n_samples - n);
}

static void put_action(struct line *l, const struct dt_train_event *e)
{
    const struct dt_guard_verdict *v = &e->verdict;
    bool spike = v->cause == DT_GUARD_SPIKE;

    switch (v->action) {
    case DT_GUARD_SKIP:
        put(l, "; the step is skipped, %d of at most %d in a row", v->nth, v->most);
        break;
    case DT_GUARD_ROLLBACK:
        put(l, "; back to step %" PRId64 ", %d of at most %d times without progress", e->to_step,
            v->nth, v->most);
        break;
    case DT_GUARD_WARN:
        if (spike && v->nth > 0)
            put(l, "; after %d skipped in a row this is the new level", v->most);
        break;
    case DT_GUARD_OFF:
    case DT_GUARD_STOP:
        put(l, v->nth == 0 ? "; training stops" : "; training stops after %d such steps", v->most);
    }
}

void dt_train_trouble_text(const struct dt_train_event *e, char *buf, size_t size)
{
    struct line l = {buf, size, 0};

    put(&l, "step %" PRId64 ": ", e->step);
    if (e->verdict.cause == DT_GUARD_SPIKE)
        put(&l, "the loss is %.4g, beyond the limit %.4g (median of the last steps %.4g)", e->loss,
            e->verdict.limit, e->verdict.median);
    else
        put_origin(&l, e);
    if (e->verdict.cause != DT_GUARD_SPIKE)
        put_samples(&l, e);
    put_action(&l, e);
}

void dt_train_trouble_count(struct dt_train_trouble *t, const struct dt_guard_verdict *v)
{
    t->nonfinite += v->cause == DT_GUARD_NONFINITE;
    t->spikes += v->cause == DT_GUARD_SPIKE;
    t->skipped += v->action == DT_GUARD_SKIP;
    t->rollbacks += v->action == DT_GUARD_ROLLBACK;
}
