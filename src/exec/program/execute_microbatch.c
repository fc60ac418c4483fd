/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Microbatches of a virtual stage, and their batches on the way to the device.
 *
 * Batches have a queue of their own.  An upload waits there for what has read the batch before it in its place;
 * the main queue waits for the upload where it first reads the batch.  Places are given out oldest first, and where
 * the device has not got past any of them there is one more than microbatches in flight: so the next batch comes
 * while the last ops of a microbatch still read theirs.
 *
 *   main queue   ... | B of mb 0 reads place 0 | F of mb 2 reads place 2 | ...
 *   uploads          | mb 2 to place 2 |         mb 3 to place 0 ... */
#include "exec/program/execute_impl.h"

/* ---- places of batches ---- */

static void free_place(const struct dt_device *dev, struct dt_exec_place *p)
{
    dev->event_free(p->uploaded);
    dev->event_free(p->past);
    dt_batch_free(p->batch);
    dt_free(p);
}

static enum dt_status new_place(const struct dt_exec_env *env, const struct dt_exec_vstage *vs,
                                struct dt_error *err, struct dt_exec_place **out)
{
    struct dt_exec_place *p = dt_calloc(1, sizeof(*p));
    enum dt_status st;

    if (!p)
        return dt_error_nomem(err, "a batch");
    st = env->dev->event_new(env->dev, err, &p->uploaded);
    if (st == DT_OK)
        st = env->dev->event_new(env->dev, err, &p->past);
    if (st == DT_OK)
        st = dt_batch_new(env->dev, &env->o.model->modules[vs->module], &vs->max, err, &p->batch);
    if (st != DT_OK) {
        free_place(env->dev, p);
        return st;
    }
    *out = p;
    return DT_OK;
}

/* Behind all others: it has been used last. */
static void append(struct dt_exec_vstage *vs, struct dt_exec_place *p)
{
    struct dt_exec_place **to = &vs->places;

    while (*to)
        to = &(*to)->next;
    p->next = NULL;
    *to = p;
}

/* The one that has been free for longest; the host may fill its arrays.  Where it is the only one and the device still
 * reads it, a new one: no more than one is ever free, so there is one more than microbatches in flight at most. */
static enum dt_status take_place(const struct dt_exec_env *env, struct dt_exec_vstage *vs,
                                 struct dt_error *err, struct dt_exec_place **out)
{
    struct dt_exec_place **first = &vs->places, *p;
    int n = 0;

    for (p = vs->places; p; p = p->next)
        n += !p->used;
    while (*first && (*first)->used)
        first = &(*first)->next;
    p = *first;
    if (p && (n > 1 || env->dev->event_done(p->past))) {
        DT_TRY(env->dev->event_sync(p->uploaded, err));
        *first = p->next;
    } else {
        DT_TRY(new_place(env, vs, err, &p));
    }
    append(vs, p);
    p->used = true;
    *out = p;
    return DT_OK;
}

/* What the main queue has now is all that reads it. */
static void give_place(const struct dt_exec_env *env, struct dt_exec_vstage *vs,
                       struct dt_exec_place *p)
{
    struct dt_exec_place **at = &vs->places;

    env->dev->event_record(env->q, p->past);
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    append(vs, p);
    p->used = false;
}

/* ---- microbatches ---- */

void dt_exec_microbatches_free(const struct dt_device *dev, struct dt_exec_vstage *vs)
{
    while (vs->microbatches) {
        struct dt_exec_microbatch *next = vs->microbatches->next;

        dev->free(dev, vs->microbatches->saved.p);
        dt_free(vs->microbatches);
        vs->microbatches = next;
    }
    while (vs->places) {
        struct dt_exec_place *next = vs->places->next;

        free_place(dev, vs->places);
        vs->places = next;
    }
    vs->in_use = 0;
}

void dt_exec_microbatches_trim(const struct dt_device *dev, struct dt_exec_vstage *vs)
{
    for (struct dt_exec_microbatch *s = vs->microbatches; s; s = s->next) {
        if (s->used)
            continue;
        dev->free(dev, s->saved.p);
        s->saved = (struct dt_exec_buffer){NULL, 0};
    }
}

void dt_exec_microbatches_forget(struct dt_exec_vstage *vs)
{
    for (struct dt_exec_microbatch *s = vs->microbatches; s; s = s->next)
        s->used = false;
    for (struct dt_exec_place *p = vs->places; p; p = p->next)
        p->used = false;
    vs->in_use = 0;
}

/* Gives s, of those that are free, the smallest buffer that is large enough, else the largest: microbatches differ, with
 * Entrain's assignment all the time, and any buffer that a large one takes stays large. */
static void choose_buffer(struct dt_exec_vstage *vs, struct dt_exec_microbatch *s, size_t bytes)
{
    struct dt_exec_microbatch *best = s;

    for (struct dt_exec_microbatch *u = vs->microbatches; u; u = u->next) {
        bool fits = u->saved.cap >= bytes, best_fits = best->saved.cap >= bytes;

        if (!u->used && (fits != best_fits ? fits : (u->saved.cap < best->saved.cap) == fits))
            best = u;
    }
    if (best != s) {
        struct dt_exec_buffer b = best->saved;

        best->saved = s->saved;
        s->saved = b;
    }
}

static enum dt_status fill(const struct dt_exec_stages *stages, struct dt_exec_iteration *it,
                           struct dt_exec_vstage *vs, struct dt_exec_microbatch *s,
                           struct dt_error *err)
{
    const struct dt_exec_env *env = stages->env;
    uint32_t global = it->p->assignment->m[vs->module].mb_first[vs->replica] + s->mb;
    enum dt_module_role role = env->o.model->modules[vs->module].role;
    struct dt_tp *tp =
        dt_exec_tp(stages->ranks, vs->module, vs->replica, vs->v % env->pp[vs->module]);
    struct dt_batch *b = s->batch;
    int n;

    DT_TRY(dt_exec_gather_seqs(it, vs->module, global, &n, err));
    DT_TRY(dt_batch_fit(b, &it->lim[vs->module][global], err));
    b->cut = stages->ranks->cut[vs->module];
    b->cut.tp = dt_tp_size(tp);
    b->cut.part = dt_tp_rank(tp);
    b->train = dt_stage_has_backward(vs->stage);
    b->noise_seed = env->o.seed;
    b->routed = it->lim[vs->module][global].routed;
    b->balance_scale = (float)it->balance_scale;
    b->loss_scale = (float)(role == DT_ROLE_LLM ? it->text_scale : it->image_scale);
    DT_TRY(dt_batching_fill(env->o.model, vs->module, it->mb_seqs, n, b, err));
    s->empty = b->cut.n > 1 ? b->gathered == 0 : b->rows == 0; /* members do the same */
    if (s->empty)
        return DT_OK;
    if (role == DT_ROLE_GENERATOR)
        dt_batch_diffuse(b, env->o.diffusion, env->o.seed, (uint64_t)it->in->step);
    DT_TRY(dt_batch_upload(env->uploads, b, err));
    if (dt_stage_has_backward(vs->stage)) {
        choose_buffer(vs, s, dt_stage_saved_bytes(vs->stage, b));
        DT_TRY(dt_exec_room(env->dev, &s->saved, dt_stage_saved_bytes(vs->stage, b), err));
    }
    return DT_OK;
}

static struct dt_exec_microbatch *find(const struct dt_exec_vstage *vs, uint32_t mb)
{
    struct dt_exec_microbatch *s = vs->microbatches;

    while (s && (!s->used || s->mb != mb))
        s = s->next;
    return s;
}

static enum dt_status unused(struct dt_exec_vstage *vs, struct dt_error *err,
                             struct dt_exec_microbatch **out)
{
    struct dt_exec_microbatch *s = vs->microbatches;

    while (s && s->used)
        s = s->next;
    if (!s) {
        s = dt_calloc(1, sizeof(*s));
        if (!s)
            return dt_error_nomem(err, "a microbatch");
        s->next = vs->microbatches;
        vs->microbatches = s;
    }
    *out = s;
    return DT_OK;
}

/* `begin` and `end` (NULL: nobody asks) are recorded around the upload. */
static enum dt_status make(const struct dt_exec_stages *stages, struct dt_exec_iteration *it,
                           struct dt_exec_vstage *vs, uint32_t mb, struct dt_device_event *begin,
                           struct dt_device_event *end, struct dt_error *err,
                           struct dt_exec_microbatch **out)
{
    const struct dt_exec_env *env = stages->env;
    struct dt_exec_microbatch *s = NULL;
    struct dt_exec_place *place = NULL;

    DT_TRY(unused(vs, err, &s));
    DT_TRY(take_place(env, vs, err, &place));
    *s = (struct dt_exec_microbatch){
        .mb = mb, .place = place, .batch = place->batch, .saved = s->saved, .next = s->next};
    env->dev->event_wait(env->uploads, place->past);
    if (begin)
        env->dev->event_record(env->uploads, begin);
    DT_TRY(fill(stages, it, vs, s, err));
    if (end)
        env->dev->event_record(env->uploads, end);
    env->dev->event_record(env->uploads, place->uploaded);
    s->follow = true;
    s->used = true;
    if (++vs->in_use > vs->in_use_max)
        vs->in_use_max = vs->in_use;
    *out = s;
    return DT_OK;
}

enum dt_status dt_exec_microbatch_get(const struct dt_exec_stages *stages,
                                      struct dt_exec_iteration *it, struct dt_exec_vstage *vs,
                                      uint32_t mb, struct dt_error *err,
                                      struct dt_exec_microbatch **out)
{
    struct dt_exec_microbatch *s = find(vs, mb);

    if (!s)
        DT_TRY(make(stages, it, vs, mb, NULL, NULL, err, &s));
    *out = s;
    return DT_OK;
}

enum dt_status dt_exec_fetch(struct dt_exec *x, uint32_t i, struct dt_error *err)
{
    const struct dt_op *op = &x->it.p->ops[i];
    struct dt_exec_vstage *vs = dt_exec_op_vs(&x->stages, op);
    struct dt_exec_microbatch *s = find(vs, op->mb);

    if (s)
        return dt_error_set(err, DT_ERR_INTERNAL, "a microbatch is there before it is fetched");
    return make(&x->stages, &x->it, vs, op->mb, x->events.begin[i], x->events.end[i], err, &s);
}

void dt_exec_microbatch_follow(const struct dt_exec_env *env, struct dt_exec_microbatch *s)
{
    if (s->follow)
        env->dev->event_wait(env->q, s->place->uploaded);
    s->follow = false;
}

enum dt_status dt_exec_stash_take(const struct dt_exec_stages *stages, struct dt_exec_vstage *vs,
                                  struct dt_exec_microbatch *s, struct dt_error *err)
{
    struct dt_exec_stash *k = vs->stashes;

    while (k && k->used)
        k = k->next;
    if (!k) {
        k = dt_calloc(1, sizeof(*k));
        if (!k)
            return dt_error_nomem(err, "what a backward leaves");
        k->next = vs->stashes;
        vs->stashes = k;
    }
    DT_TRY(
        dt_exec_room(stages->env->dev, &k->data, dt_stage_stash_bytes(vs->stage, s->batch), err));
    k->used = true;
    s->stash = k;
    return DT_OK;
}

void dt_exec_microbatch_done(const struct dt_exec_env *env, struct dt_exec_vstage *vs,
                             struct dt_exec_microbatch *s)
{
    give_place(env, vs, s->place);
    s->used = false;
    if (s->stash)
        s->stash->used = false;
    s->stash = NULL;
    vs->in_use--;
}
