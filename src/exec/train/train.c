/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train.h"

#include "base/mem.h"
#include "core/model/shape.h"
#include "base/clock.h"
#include "exec/train/train_agree.h"
#include "exec/train/train_end.h"
#include "exec/train/train_experts.h"
#include "exec/train/train_folder.h"
#include "exec/train/train_log.h"
#include "exec/train/train_memory.h"
#include "exec/train/train_save.h"
#include "exec/train/train_speed.h"
#include "comm/supervisor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct train {
    const struct dt_train_options *o;
    const struct dt_setup *s;
    const struct dt_job_run_options *run;
    struct dt_exec *x;
    struct dt_train_speed *speed; /* NULL = not asked for */
    struct dt_feed_client *feed;  /* what the loader's documents come from; NULL = shards */
    struct dt_feed_keys *keys;    /* of the feed */
    struct dt_loader *loader;
    struct dt_prefetch *prefetch; /* batches of the loader */
    struct dt_train_log *log;
    struct dt_ckpt_state state;
    struct dt_train_folder folder;
    struct dt_train_save save;
    int64_t saved_step, saved_samples; /* the state that was saved last is of these */
    struct dt_guard guard;
    struct dt_guard_verdict verdict; /* of the iteration under way */
    char good[1200];                 /* the last complete checkpoint of this run; "" = none */
    int64_t good_step;
    bool lost;        /* what was to be saved last is not finite */
    int64_t executed; /* iterations, by this process */
    bool first;       /* rank 0 prints and writes */
    bool stop;        /* some rank was told to */
    bool no_data;     /* all ranks know that the next batch cannot be made */
    double compute_s, waited_s, step_s, model_flops;
    int64_t *lane_bytes;  /* per lane of the program: this rank's of the following */
    int64_t memory_bytes; /* at most after a step: what a step makes it keeps, and what came before
                             training (the measurement of the peak) is gone */
    struct dt_train_summary sum;
    struct dt_train_memory_seen seen;
};

/* ---- opening ---- */

static enum dt_status read_weights(struct train *t, const struct dt_exec_whole *w, bool found,
                                   const char *path, struct dt_error *err)
{
    struct dt_ckpt_part *parts;
    enum dt_status st;

    DT_TRY(dt_setup_parts(t->s, w, err, &parts));
    if (found)
        st = dt_ckpt_load(path, parts, w->n, true, err, &t->state);
    else
        st = dt_ckpt_init_from(t->run->init_from, parts, w->n, true, err, &t->sum.init);
    dt_free(parts);
    DT_TRY(st);
    if (!found && !t->run->init_partial)
        DT_TRY(dt_ckpt_init_check_modules(&t->sum.init, t->run->init_from, err));
    return dt_exec_put_end(t->x, err);
}

/* It may change, unlike the model, but not unnoticed: `auto` is another one on another machine. */
static void note_precision(struct train *t)
{
    const char *now = t->s->dtype == DT_BF16 ? "bf16" : "fp32";

    if (t->first && t->state.precision[0] && strcmp(t->state.precision, now) != 0)
        dt_warn(t->o->warn, "%s was trained in %s; this goes on in %s (run.precision)",
                t->folder.path, t->state.precision, now);
    snprintf(t->state.precision, sizeof(t->state.precision), "%s", now);
}

/* What costs more where it is planned computes the same. */
static void note_unfused(const struct train *t)
{
    const struct dt_model *m = t->s->job->model;

    for (int i = 0; t->first && i < m->n_modules; i++)
        if (dt_module_is_unfused(&m->modules[i]))
            dt_warn(t->o->warn,
                    "module %s: attention: unfused is for simulations; here it is fused, and takes "
                    "less time and memory than planned",
                    m->modules[i].name);
}

/* Every rank reads all of it and keeps what is its own. */
static enum dt_status init_or_resume(struct train *t, struct dt_error *err)
{
    const struct dt_job_run_options *r = t->run;
    const char *path = t->folder.path;
    struct dt_exec_whole w;
    enum dt_status st;
    bool found;

    DT_TRY(dt_train_folder_open(&t->folder, t->o, t->x, err));
    t->save.lock = t->folder.lock;
    found = t->folder.found;
    if (found)
        DT_TRY(dt_setup_check_checkpoint(t->s, path, true, err));
    if (found || r->init_from[0]) {
        DT_TRY(dt_exec_whole_new(t->x, err, &w));
        st = read_weights(t, &w, found, path, err);
        dt_exec_whole_free(&w);
        DT_TRY(st);
    }
    if (found) {
        snprintf(t->sum.checkpoint, sizeof(t->sum.checkpoint), "%s", path);
        snprintf(t->good, sizeof(t->good), "%s", path);
        t->good_step = t->state.step;
        t->sum.resumed = true;
    }
    note_precision(t);
    DT_TRY(dt_train_folder_data(&t->folder, t->o, t->x, &t->state, err));
    dt_ckpt_job_digest(&t->s->identity, t->state.job_digest, sizeof(t->state.job_digest));
    t->state.job = &t->s->identity;
    memcpy(t->state.run_id, t->folder.run_id, sizeof(t->state.run_id));
    memcpy(t->sum.run_id, t->folder.run_id, sizeof(t->sum.run_id));
    t->state.seed = r->seed;
    t->saved_step = found ? t->state.step : -1;
    t->saved_samples = t->state.samples;
    t->sum.first_step = t->state.step;
    return DT_OK;
}

static enum dt_status open_feed(struct train *t, struct dt_loader_options *l, struct dt_error *err)
{
    struct dt_feed_client_options o = {.address = (const char *const *)t->s->producers,
                                       .n = t->s->n_producers,
                                       .loader = &t->s->loader,
                                       .deadline_s = t->run->data_deadline_s,
                                       .silent_s = t->run->data_silent_s,
                                       .late_s = t->run->data_late_s,
                                       .warn = t->first ? t->o->warn : NULL};

    if (t->s->n_producers == 0)
        return DT_OK;
    if (t->run->data_keys[0]) {
        t->keys = dt_calloc(1, sizeof(*t->keys));
        if (!t->keys)
            return dt_error_nomem(err, "keys");
        DT_TRY(dt_feed_keys_read(t->run->data_keys, err, t->keys));
        o.keys = t->keys;
    }
    DT_TRY(dt_feed_client_open(&o, err, &t->feed));
    l->source = dt_feed_client_source(t->feed);
    return DT_OK;
}

static enum dt_status open_loader(struct train *t, struct dt_error *err)
{
    struct dt_loader_options l = t->s->loader;

    DT_TRY(open_feed(t, &l, err));
    l.cursor = t->state.cursor;
    l.pixels_later = t->sum.ranks > 1 && !t->feed;
    l.changed = t->o->changed_data;
    return dt_loader_open(&l, err, &t->loader);
}

/* Turns read batches again, and count all steps from the first. */
static enum dt_status check_turns(const struct train *t, struct dt_error *err)
{
    if (!t->o->turns)
        return DT_OK;
    if (t->s->n_producers > 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "orders take turns on data that can be read again: shards, not "
                            "producers");
    if (dt_guard_rolls_back(&t->run->guard))
        return dt_error_set(err, DT_ERR_INPUT,
                            "orders do not take turns in a training that may roll back "
                            "(run.nonfinite, run.spike)");
    return DT_OK;
}

static enum dt_status open_all(struct train *t, struct dt_error *err)
{
    struct dt_exec_options x;
    struct dt_prefetch_data data;
    struct dt_setup_peak peak;
    int64_t count;

    DT_TRY(check_turns(t, err));
    DT_TRY(dt_setup_gemm_peak(t->s, err, &peak));
    t->sum.gemm_peak_flops = peak.flops;
    t->sum.gemm_peak_side = peak.side;
    dt_setup_exec_options(t->s, &x);
    x.transport = t->o->transport;
    x.supervisor = t->o->supervisor;
    x.clock_ahead_ns = t->o->supervisor ? dt_supervisor_clock(t->o->supervisor, NULL) : 0;
    DT_TRY(dt_exec_new(&x, err, &t->x));
    DT_TRY(dt_train_speed_open(t->o, t->sum.ranks, err, &t->speed));
    t->save.x = t->x;
    if (t->first && *dt_exec_note(t->x))
        dt_warn(t->o->warn, "%s", dt_exec_note(t->x));
    note_unfused(t);
    DT_TRY(dt_exec_sum(t->x, &t->sum.gemm_peak_flops, 1, err));
    DT_TRY(init_or_resume(t, err));
    /* A shard that is not there or broken is a matter of the job's run.data. */
    DT_TRY(dt_preset_error_place(dt_map_get(dt_map_get(dt_doc_root(t->s->job->doc), "run"), "data"),
                                 open_loader(t, err), err));
    dt_loader_report(t->loader, &t->sum.data);
    /* Two batches that nobody takes: beside the last steps, of which the last is kept, runs what
     * runs beside all others. */
    count = t->run->steps > t->state.step ? t->run->steps - t->state.step + DT_PREFETCH_BATCHES : 0;
    if (count > 0 && dt_guard_rolls_back(&t->run->guard))
        count = INT64_MAX; /* steps are made again, of other batches */
    data = (struct dt_prefetch_data){t->loader,
                                     t->feed,
                                     t->o->transport ? t->o->transport->rank : 0,
                                     t->sum.ranks,
                                     t->run->data_threads,
                                     t->o->turns};
    DT_TRY(dt_prefetch_open(t->s, &data, count, err, &t->prefetch));
    if (!t->first)
        return DT_OK;
    DT_TRY(dt_train_folder_begin(&t->folder, t->o, err));
    return dt_train_log_open(t->run->log_dir, t->state.run_id,
                             t->o->from_scratch && t->state.step == 0, t->o->warn, err, &t->log);
}

static void drop_program(struct train *t)
{
    dt_program_free(t->sum.program);
    dt_assign_free(t->sum.assignment);
    t->sum.program = NULL;
    t->sum.assignment = NULL;
}

static void close_all(struct train *t)
{
    dt_train_save_close(&t->save);
    dt_train_folder_close(&t->folder);
    dt_prefetch_close(t->prefetch);
    dt_loader_close(t->loader);
    dt_feed_client_close(t->feed);
    dt_free(t->keys);
    dt_exec_free(t->x);
    dt_train_speed_close(t->speed);
    dt_train_log_close(t->log, NULL);
    dt_free(t->lane_bytes);
}

/* ---- one step ---- */

/* Ranks that would walk different programs wait for each other for ever. */
static enum dt_status same_program(struct train *t, struct dt_error *err)
{
    char digest[24];
    struct dt_supervisor_fact fact = {"program", digest};

    if (!t->o->supervisor)
        return DT_OK;
    snprintf(digest, sizeof(digest), "%016llx",
             (unsigned long long)dt_program_digest(t->sum.program));
    return dt_supervisor_agree(t->o->supervisor, &fact, 1, err);
}

/* The next batch and all places that ranks have found bad in it, or the same failure on all. */
static enum dt_status take_and_tell(struct train *t, struct dt_error *err,
                                    struct dt_prefetch_batch **out, int64_t **bad, int *n)
{
    static const int64_t no_batch = -1; /* a place that is none */
    int rank = t->o->transport ? t->o->transport->rank : 0;
    struct dt_error mine = {.status = DT_OK};
    struct dt_prefetch_batch *b = NULL;
    enum dt_status taken = dt_prefetch_take(t->prefetch, &mine, &b), st;
    bool failed = false;

    st = dt_train_gather(t->x, rank, t->sum.ranks, b ? b->bad.place : &no_batch, b ? b->bad.n : 1,
                         err, bad, n);
    for (int i = 0; st == DT_OK && i < *n; i++)
        failed |= (*bad)[i] == no_batch;
    if (failed) {
        dt_free(*bad);
        st = dt_train_agree(t->x, rank, t->sum.ranks, taken, &mine, err);
        t->no_data = st == DT_ERR_INPUT;
    }
    if (st == DT_OK)
        *out = b;
    else
        dt_prefetch_batch_free(b);
    return st;
}

/* Images that one rank cannot decode are bad for all, and the batch is made again without them. */
static enum dt_status take_agreed(struct train *t, struct dt_error *err,
                                  struct dt_prefetch_batch **out)
{
    if (t->sum.ranks == 1 || t->feed) {
        enum dt_status st = dt_prefetch_take(t->prefetch, err, out);

        t->no_data = st == DT_ERR_INPUT && t->sum.ranks == 1;
        return st;
    }
    for (;;) {
        enum dt_status st;
        int64_t *bad;
        int n;

        DT_TRY(take_and_tell(t, err, out, &bad, &n));
        if (n == 0)
            return DT_OK;
        st = dt_prefetch_again(t->prefetch, *out, bad, n, err);
        dt_free(bad);
        DT_TRY(st);
    }
}

/* The program stays until the next: the runs file keeps the last one. */
static enum dt_status take_batch(struct train *t, struct dt_error *err,
                                 struct dt_prefetch_batch **out)
{
    struct dt_prefetch_batch *b;
    enum dt_status st = DT_OK;

    DT_TRY(take_agreed(t, err, &b));
    drop_program(t);
    t->sum.program = b->program;
    t->sum.assignment = b->assignment;
    b->program = NULL;
    b->assignment = NULL;
    t->sum.samples_digest = b->samples_digest;
    memcpy(t->sum.model_flops, b->flops, sizeof t->sum.model_flops);
    dt_train_memory_see(&t->seen, t->sum.program);
    if (!t->lane_bytes) {
        t->lane_bytes = dt_calloc((size_t)t->sum.program->n_lanes, sizeof(*t->lane_bytes));
        st = t->lane_bytes ? DT_OK : dt_error_nomem(err, "lanes");
    }
    if (st == DT_OK && t->state.step == t->sum.first_step)
        st = same_program(t, err);
    if (st == DT_OK)
        *out = b;
    else
        dt_prefetch_batch_free(b);
    return st;
}

static void account(struct train *t, const struct dt_prefetch_batch *b, struct dt_train_step *s)
{
    double both = s->step_s + s->data_s;
    int64_t now, max;

    dt_exec_memory(t->x, &now, &max);
    t->memory_bytes = now > t->memory_bytes ? now : t->memory_bytes;
    dt_train_memory_note(t->x, t->sum.program, t->lane_bytes);
    t->compute_s += s->r.compute_s;
    t->waited_s += s->r.waited_s;
    t->step_s += s->step_s;
    dt_train_experts_add(&t->sum, &s->r);
    t->model_flops += b->model_flops;
    s->mfu = dt_train_mfu(t->o, &t->sum, s->step, b->model_flops, s->step_s);
    s->tokens_per_s = (double)s->r.tokens / both;
    s->samples_per_s = (double)b->n / both;
    t->state.cursor = b->cursor;
    t->sum.data = b->data;
    s->documents = b->data.documents;
    s->bad_documents = dt_data_bad_total(&b->data);
    t->state.tokens += s->r.tokens;
    t->state.samples += b->n;
    t->state.train_s += both;
    if (s->r.applied && (t->sum.best_loss == 0 || s->r.loss < t->sum.best_loss))
        t->sum.best_loss = s->r.loss;
    s->eta_s = t->step_s / (double)++t->executed * (double)(s->steps - s->step);
}

/* Before anything is stepped, with the same numbers on every rank. */
static bool accept(void *ctx, const struct dt_exec_result *r)
{
    struct train *t = ctx;

    t->verdict = dt_guard_judge(&t->guard, t->state.step + 1, r->loss, r->grad_norm);
    return dt_guard_applies(&t->verdict);
}

static enum dt_status execute(struct train *t, const struct dt_prefetch_batch *b,
                              struct dt_train_step *s, struct dt_error *err)
{
    struct dt_exec_input in = {.seqs = (const struct dt_sequence *const *)b->seqs,
                               .n = b->n,
                               .step = s->step,
                               .signal = t->o->stop && *t->o->stop,
                               .accept = accept,
                               .accept_ctx = t};
    uint64_t t0 = dt_clock_ns();

    DT_TRY(dt_exec_run(t->x, t->sum.program, &in, err, NULL, &s->r));
    s->step_s = (double)(dt_clock_ns() - t0) * 1e-9;
    t->state.step = t->state.draws = s->step;
    account(t, b, s);
    return DT_OK;
}

/* ---- trouble ---- */

/* A save that has ended is what can be gone back to; every rank knows its name. */
static enum dt_status poll_save(struct train *t, bool wait, struct dt_error *err)
{
    bool pending = t->save.share != NULL;
    enum dt_status st = dt_train_save_poll(&t->save, wait, err);

    t->lost = st == DT_ERR_DIVERGED;
    DT_TRY(st);
    if (!pending || t->save.share)
        return DT_OK;
    t->good_step = t->save.state.step;
    return dt_ckpt_of_step(t->run->checkpoint_dir, t->good_step, err, t->good, sizeof(t->good));
}

/* Parameters, moments and the number of the step; data goes on behind the last batch, and what was
 * seen of it stays counted. */
static enum dt_status roll_back(struct train *t, struct dt_error *err)
{
    struct dt_ckpt_state now = t->state;
    struct dt_exec_whole w;
    enum dt_status st;

    DT_TRY(dt_exec_whole_new(t->x, err, &w));
    st = read_weights(t, &w, true, t->good, err);
    dt_exec_whole_free(&w);
    DT_TRY(st);
    now.step = now.draws = t->saved_step = t->state.step;
    t->state = now;
    return DT_OK;
}

static enum dt_status give_up(struct train *t, const struct dt_train_event *e, struct dt_error *err)
{
    struct dt_error why = {.status = DT_OK};
    char text[2048];

    dt_train_trouble_text(e, text, sizeof(text));
    if (!t->good[0])
        return dt_error_set(err, DT_ERR_DIVERGED, "%s; there is no checkpoint to resume from",
                            text);
    if (t->first && dt_ckpt_keep(t->good, &why) != DT_OK)
        return dt_error_set(err, DT_ERR_DIVERGED, "%s; the last good checkpoint is %s (%s)", text,
                            t->good, why.message);
    return dt_error_set(err, DT_ERR_DIVERGED,
                        "%s; the last good checkpoint is %s, which is not removed", text, t->good);
}

/* All ranks alike. */
static enum dt_status act(struct train *t, struct dt_train_event *e, struct dt_error *err)
{
    enum dt_guard_action *action = &e->verdict.action;

    if (*action == DT_GUARD_ROLLBACK || *action == DT_GUARD_STOP) {
        enum dt_status st = poll_save(t, true, err);

        if (st != DT_OK && !t->lost)
            return st;
        t->lost = false;
    }
    if (*action == DT_GUARD_ROLLBACK && !t->good[0])
        *action = DT_GUARD_STOP;
    e->to_step = *action == DT_GUARD_ROLLBACK ? t->good_step : -1;
    dt_train_trouble_count(&t->sum.trouble, &e->verdict);
    if (t->first)
        DT_TRY(dt_train_log_event(t->log, e, err));
    if (*action == DT_GUARD_STOP)
        return give_up(t, e, err);
    if (t->first && t->o->on_event)
        t->o->on_event(t->o->ctx, e);
    return *action == DT_GUARD_ROLLBACK ? roll_back(t, err) : DT_OK;
}

/* The guard has said something about the step. */
static enum dt_status object(struct train *t, const struct dt_prefetch_batch *b,
                             const struct dt_train_step *s, struct dt_error *err)
{
    struct dt_train_event e = {.step = s->step, .verdict = t->verdict};

    DT_TRY(dt_train_trouble_find(t->s, t->x, b, &s->r, t->first, err, &e));
    return act(t, &e, err);
}

/* A copy that was to become a checkpoint has values that are not finite, as *err says. */
static enum dt_status lost(struct train *t, struct dt_error *err)
{
    struct dt_train_event e = {.step = t->save.state.step, .loss = NAN, .grad_norm = NAN};

    e.verdict = dt_guard_lost(&t->guard, e.step);
    snprintf(e.note, sizeof(e.note), "%.255s", err ? err->message : "");
    return act(t, &e, err);
}

/* The data asks for another plan: told, and kept for the summary. */
static enum dt_status tell_mix(struct train *t, struct dt_prefetch_batch *b, int64_t step,
                               struct dt_error *err)
{
    char text[1024];

    if (!b->mix)
        return DT_OK;
    DT_TRY(dt_train_log_mix(t->log, step, b->mix, err));
    dt_warn(t->o->warn, "step %lld: %s", (long long)step,
            dt_orch_mix_text(b->mix, text, sizeof(text)));
    dt_free(t->sum.mix);
    t->sum.mix = b->mix;
    t->sum.mix_step = step;
    b->mix = NULL;
    return DT_OK;
}

static enum dt_status timed(struct train *t, const struct dt_prefetch_batch *b,
                            struct dt_train_step *s, struct dt_error *err)
{
    bool due = dt_train_speed_due(t->speed, s->step);

    if (due)
        dt_train_speed_before(t->speed);
    DT_TRY(execute(t, b, s, err));
    return due ? dt_train_speed_after(t->speed, t->x, err, s) : DT_OK;
}

static enum dt_status one_step(struct train *t, struct dt_error *err)
{
    struct dt_train_step s = {.step = t->state.step + 1, .steps = t->run->steps};
    uint64_t t0 = dt_clock_ns();
    struct dt_prefetch_batch *b;
    enum dt_status st;

    DT_TRY(take_batch(t, err, &b));
    s.data_s = (double)(dt_clock_ns() - t0) * 1e-9;
    s.order = b->how.by_batch ? dt_assign_way_names[b->how.way] : NULL;
    st = timed(t, b, &s, err);
    if (st == DT_OK && t->verdict.cause != DT_GUARD_NONE)
        st = object(t, b, &s, err);
    if (st == DT_OK && t->first)
        st = tell_mix(t, b, s.step, err);
    dt_prefetch_batch_free(b);
    DT_TRY(st);
    s.trouble = t->sum.trouble;
    if (s.r.applied)
        t->sum.last = s;
    t->sum.last.reference_rank_s = NULL; /* which belongs to the loop */
    t->stop = s.r.signal > 0;
    if (t->first && (s.step % t->run->log_interval == 0 || s.step == s.steps))
        DT_TRY(dt_train_log_step(t->log, &s, err));
    if (t->o->on_step && t->first)
        t->o->on_step(t->o->ctx, &s);
    return DT_OK;
}

static enum dt_status save(struct train *t, struct dt_error *err)
{
    /* of a step that was rolled back to the data has moved on */
    if (!t->run->checkpoint_dir[0] ||
        (t->saved_step == t->state.step && t->saved_samples == t->state.samples))
        return DT_OK;
    DT_TRY(poll_save(t, true, err));
    DT_TRY(dt_train_save_begin(&t->save, &t->state, err));
    t->saved_step = t->state.step;
    t->saved_samples = t->state.samples;
    return DT_OK;
}

/* The last one is there before training ends. */
static enum dt_status save_last(struct train *t, struct dt_error *err)
{
    DT_TRY(save(t, err));
    DT_TRY(poll_save(t, true, err));
    if (t->save.path[0])
        snprintf(t->sum.checkpoint, sizeof(t->sum.checkpoint), "%s", t->save.path);
    return DT_OK;
}

static enum dt_status save_now_and_then(struct train *t, struct dt_error *err)
{
    int64_t every = t->run->checkpoint_interval;

    DT_TRY(poll_save(t, false, err));
    return every > 0 && t->state.step % every == 0 && t->saved_step != t->state.step ? save(t, err)
                                                                                     : DT_OK;
}

static enum dt_status steps(struct train *t, struct dt_error *err)
{
    while (t->state.step < t->run->steps) {
        if (t->stop || (!t->o->transport && t->o->stop && *t->o->stop)) {
            t->sum.stopped = true;
            break;
        }
        DT_TRY(one_step(t, err));
        DT_TRY(save_now_and_then(t, err));
    }
    return save_last(t, err);
}

static enum dt_status loop(struct train *t, struct dt_error *err)
{
    enum dt_status st = DT_OK;

    /* There is always something to roll back to. */
    if (dt_guard_rolls_back(&t->run->guard) && !t->good[0] && t->state.step < t->run->steps)
        st = save(t, err);
    if (st == DT_OK)
        st = steps(t, err);
    while (st == DT_ERR_DIVERGED && t->lost) {
        t->lost = false;
        DT_TRY(lost(t, err));
        st = steps(t, err);
    }
    return st;
}

/* After a failure.  Where the data cannot be gone on with, what was trained on the data before it is sound, and is saved as at a
 * signal; a rank that is alone completes what it was saving, whatever has failed. */
static void keep_what_there_is(struct train *t)
{
    struct dt_error why;

    if (!t->no_data || t->executed == 0) {
        if (t->no_data || t->sum.ranks == 1)
            poll_save(t, true, NULL);
        return;
    }
    if (save_last(t, &why) != DT_OK) {
        if (t->first)
            dt_warn(t->o->warn, "the state of step %lld cannot be saved: %s",
                    (long long)t->state.step, why.message);
    } else if (t->first && t->run->checkpoint_dir[0]) {
        dt_warn(t->o->warn, "the data cannot be gone on with; the state of step %lld is in %s",
                (long long)t->state.step, t->run->checkpoint_dir);
    }
}

static enum dt_status finish(struct train *t, struct dt_error *err)
{
    const struct dt_train_end e = {.o = t->o,
                                   .x = t->x,
                                   .prefetch = t->prefetch,
                                   .seen = &t->seen,
                                   .memory_bytes = t->memory_bytes,
                                   .lane_bytes = t->lane_bytes,
                                   .steps_before = t->state.step - t->executed,
                                   .sum = &t->sum};
    double steps = (double)t->executed;

    t->sum.last_step = t->state.step;
    t->sum.train_s = t->state.train_s;
    t->sum.tokens = t->state.tokens;
    t->sum.samples = t->state.samples;
    t->sum.mean_step_s = steps > 0 ? t->step_s / steps : 0;
    t->sum.mfu = dt_train_mfu(t->o, &t->sum, 0, t->model_flops, t->step_s);
    dt_train_experts_end(&t->sum);
    t->sum.share_outside = t->step_s > 0 ? 1 - t->compute_s / t->step_s : 0;
    t->sum.share_waited = t->step_s > 0 ? t->waited_s / t->step_s : 0;
    dt_prefetch_report(t->prefetch, &t->sum.loading);
    return dt_train_end(&e, err);
}

enum dt_status dt_train(const struct dt_train_options *o, struct dt_error *err,
                        struct dt_train_summary *out)
{
    struct train t = {.o = o, .s = o->setup, .run = &o->setup->job->run};
    enum dt_status st;

    t.first = !o->transport || o->transport->rank == 0;
    t.sum.ranks = o->transport ? o->transport->size : 1;
    dt_guard_init(&t.guard, &t.run->guard);
    t.save.setup = o->setup;
    t.save.warn = o->warn;
    t.save.ranks = t.sum.ranks;
    t.save.rank = o->transport ? o->transport->rank : 0;
    st = open_all(&t, err);
    if (st == DT_OK) {
        st = loop(&t, err);
        if (st != DT_OK)
            keep_what_there_is(&t);
    }
    if (st == DT_OK)
        st = finish(&t, err);
    if (st == DT_OK) {
        st = dt_train_log_close(t.log, err);
        t.log = NULL;
    }
    close_all(&t);
    if (st != DT_OK)
        dt_train_summary_free(&t.sum);
    else
        *out = t.sum;
    return st;
}
