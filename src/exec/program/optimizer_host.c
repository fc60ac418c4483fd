/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/program/optimizer_host.h"

#include "base/mem.h"

#include <string.h>

enum { CHUNK = DT_PLAN_OFFLOAD_CHUNK };
/* Of a room: gradients; then rounded copies and vectors, or masters. */
enum { GRADS_BYTES = CHUNK * 4, OUT_BYTES = CHUNK * (DT_PLAN_OFFLOAD_BYTES - 4) };
/* Floats between two segments that are padding and no parameter (params.c aligns weights to 64 bytes). */
enum { PADDING = 16 };

/* Consecutive floats of the device that go down and come up together. */
struct dt_optimizer_chunk {
    struct dt_optimizer *o;
    struct dt_optimizer_room *room; /* of this step */
    size_t at, n;
    int first, last; /* segments, which may reach beyond it on both sides */
    float *exact;    /* device: where its vectors begin, which lie together; NULL: it has none */
    size_t n_exact;
};

/* ---- the rank's part ---- */

/* Page-locked; where the device's memory is the host's, of the CPU that has the state. */
static enum dt_status room_new(struct dt_optimizer_host *h, size_t bytes, struct dt_error *err,
                               void **out)
{
    if (!h->dev->info.host_memory)
        return h->dev->host_alloc(h->dev, bytes, err, out);
    return h->cpu->alloc(h->cpu, bytes, err, out);
}

static void room_free(struct dt_optimizer_host *h, void *p)
{
    if (!h->dev->info.host_memory)
        h->dev->host_free(h->dev, p);
    else if (h->cpu)
        h->cpu->free(h->cpu, p);
}

static enum dt_status open_room(struct dt_optimizer_host *h, struct dt_optimizer_room *r,
                                struct dt_error *err)
{
    const struct dt_device *dev = h->dev;

    DT_TRY(room_new(h, GRADS_BYTES, err, (void **)&r->grads));
    DT_TRY(room_new(h, OUT_BYTES, err, &r->out));
    DT_TRY(dev->event_new(dev, err, &r->down));
    DT_TRY(dev->event_new(dev, err, &r->stepped));
    return dev->event_new(dev, err, &r->up);
}

enum dt_status dt_optimizer_host_open(struct dt_optimizer_host *h, const struct dt_device *dev,
                                      const struct dt_device *cpu, int threads,
                                      struct dt_error *err)
{
    const struct dt_device_options o = {.threads = threads};
    struct dt_device *opened;

    h->dev = dev;
    h->cpu = cpu;
    if (!cpu) {
        DT_TRY(dt_device_open_cpu(&o, err, &opened));
        h->cpu = opened;
        h->own = true;
    }
    DT_TRY(h->cpu->queue_new(h->cpu, false, err, &h->q));
    DT_TRY(dev->queue_new(dev, true, err, &h->down));
    DT_TRY(dev->queue_new(dev, false, err, &h->steps));
    DT_TRY(dev->queue_new(dev, true, err, &h->up));
    DT_TRY(dev->event_new(dev, err, &h->ready));
    DT_TRY(dev->event_new(dev, err, &h->arrived));
    for (int i = 0; i < DT_OPTIMIZER_ROOMS; i++)
        DT_TRY(open_room(h, &h->room[i], err));
    return DT_OK;
}

void dt_optimizer_host_close(struct dt_optimizer_host *h)
{
    if (!h->dev)
        return;
    dt_optimizer_host_sync(h, NULL);
    for (int i = 0; i < DT_OPTIMIZER_ROOMS; i++) {
        struct dt_optimizer_room *r = &h->room[i];

        h->dev->event_free(r->down);
        h->dev->event_free(r->stepped);
        h->dev->event_free(r->up);
        room_free(h, r->grads);
        room_free(h, r->out);
    }
    h->dev->event_free(h->ready);
    h->dev->event_free(h->arrived);
    h->dev->queue_free(h->down);
    h->dev->queue_free(h->steps);
    h->dev->queue_free(h->up);
    if (h->cpu)
        h->cpu->queue_free(h->q);
    if (h->own)
        h->cpu->close((struct dt_device *)(uintptr_t)h->cpu);
    memset(h, 0, sizeof(*h));
}

int64_t dt_optimizer_host_bytes(const struct dt_optimizer_host *h)
{
    int64_t now, max;

    if (!h->dev)
        return 0;
    h->cpu->memory_used(h->cpu, &now, &max);
    return now +
           (h->dev->info.host_memory ? 0 : DT_OPTIMIZER_ROOMS * (int64_t)(GRADS_BYTES + OUT_BYTES));
}

enum dt_status dt_optimizer_host_sync(struct dt_optimizer_host *h, struct dt_error *err)
{
    struct dt_device_queue *const q[] = {h->down, h->steps, h->up};
    enum dt_status st = DT_OK, one;

    for (int i = 0; i < 3; i++) {
        one = q[i] ? h->dev->queue_sync(q[i], st == DT_OK ? err : NULL) : DT_OK;
        st = st == DT_OK ? one : st;
    }
    if (st == DT_OK && h->status != DT_OK) {
        st = h->status;
        if (err)
            *err = h->error;
    }
    h->status = DT_OK;
    return st;
}

/* ---- an optimizer's part ---- */

/* Of parameters that kernels read in fp32, where the device has them beside rounded ones: those in [at, at + n) of the
 * stage. */
static size_t exact_in(struct dt_optimizer *o, const struct dt_param *p, size_t at, size_t n,
                       size_t *lo, float **where)
{
    size_t end = p->at + p->n < at + n ? p->at + p->n : at + n;

    *lo = p->at > at ? p->at : at;
    if (p->rounded || end <= *lo)
        return 0;
    *where = dt_stage_exact(o->stage, p) + (*lo - p->at);
    return end - *lo;
}

/* They lie together, as they do in the stage but for what is between them. */
static void find_exact(struct dt_optimizer *o, struct dt_optimizer_chunk *c)
{
    int n;
    const struct dt_param *p = dt_stage_params(o->stage, &n);
    float *end = NULL, *where;
    size_t lo;

    for (int i = 0; i < n; i++) {
        size_t count = exact_in(o, &p[i], c->at, c->n, &lo, &where);

        if (count == 0)
            continue;
        c->exact = !c->exact || where < c->exact ? where : c->exact;
        end = !end || where + count > end ? where + count : end;
    }
    c->n_exact = c->exact ? (size_t)(end - c->exact) : 0;
}

static size_t end_of(const struct dt_optimizer_segment *s)
{
    return s->at + s->n;
}

/* The segment behind the last of a run that begins with one: between them is nothing but padding. */
static int run_end(const struct dt_optimizer *o, int first)
{
    int k = first + 1;

    while (k < o->n_segments && o->segments[k].at < end_of(&o->segments[k - 1]) + PADDING)
        k++;
    return k;
}

static int count_chunks(const struct dt_optimizer *o)
{
    int n = 0;

    for (int s = 0, e; s < o->n_segments; s = e) {
        e = run_end(o, s);
        n += (int)((end_of(&o->segments[e - 1]) - o->segments[s].at + CHUNK - 1) / CHUNK);
    }
    return n;
}

static void cut_run(struct dt_optimizer *o, int first, int end)
{
    size_t last = end_of(&o->segments[end - 1]);

    for (size_t at = o->segments[first].at; at < last; at += CHUNK) {
        struct dt_optimizer_chunk *c = &o->chunks[o->n_chunks++];

        *c = (struct dt_optimizer_chunk){
            .o = o, .at = at, .n = last - at < CHUNK ? last - at : CHUNK, .first = first};
        while (end_of(&o->segments[c->first]) <= at)
            c->first++;
        c->last = c->first;
        while (c->last + 1 < end && o->segments[c->last + 1].at < at + c->n)
            c->last++;
        if (!dt_stage_master(o->stage))
            find_exact(o, c);
    }
}

static enum dt_status make_chunks(struct dt_optimizer *o, struct dt_error *err)
{
    o->chunks = dt_calloc((size_t)count_chunks(o) + 1, sizeof(*o->chunks));
    if (!o->chunks)
        return dt_error_nomem(err, "an optimizer");
    for (int s = 0, e; s < o->n_segments; s = e) {
        e = run_end(o, s);
        cut_run(o, s, e);
    }
    return DT_OK;
}

/* The state is nobody's device memory. */
static enum dt_status host_floats(struct dt_optimizer_host *h, size_t n, struct dt_error *err,
                                  float **out)
{
    struct dt_device_memory_owner *before = h->cpu->memory_for(h->cpu, NULL);
    enum dt_status st = h->cpu->alloc(h->cpu, n * sizeof(float), err, (void **)out);

    h->cpu->memory_for(h->cpu, before);
    if (st == DT_OK)
        memset(*out, 0, n * sizeof(float));
    return st;
}

static void take_part(struct dt_optimizer *o, const struct dt_optimizer_segment *s,
                      struct dt_device_queue *q, const float *from)
{
    struct dt_optimizer_host *h = o->host;

    for (size_t at = 0; at < s->n; at += CHUNK) {
        size_t n = s->n - at < CHUNK ? s->n - at : CHUNK;
        struct dt_optimizer_room *r = &h->room[0];

        h->dev->copy(q, r->grads, from + s->at + at, n * sizeof(float), DT_COPY_TO_HOST);
        if (h->dev->queue_sync(q, NULL) != DT_OK) /* the caller asks, too */
            return;
        memcpy(o->master + s->moment + at, r->grads, n * sizeof(float));
    }
}

enum dt_status dt_optimizer_host_init(struct dt_optimizer *o, struct dt_optimizer_host *h,
                                      struct dt_device_queue *q, struct dt_error *err)
{
    const float *from = dt_stage_initial(o->stage);

    o->host = h;
    DT_TRY(host_floats(h, o->masters, err, &o->master));
    DT_TRY(host_floats(h, o->moments, err, &o->exp_avg));
    DT_TRY(host_floats(h, o->moments, err, &o->exp_avg_sq));
    DT_TRY(make_chunks(o, err));
    DT_TRY(h->dev->queue_sync(q, err));
    for (int i = 0; i < o->n_segments; i++)
        take_part(o, &o->segments[i], q, from);
    for (int i = 0; i < o->n_kept; i++)
        take_part(o, &o->kept[i], q, from);
    return h->dev->queue_sync(q, err);
}

void dt_optimizer_host_free(struct dt_optimizer *o)
{
    const struct dt_device *cpu = o->host->cpu;

    cpu->free(cpu, o->master);
    cpu->free(cpu, o->exp_avg);
    cpu->free(cpu, o->exp_avg_sq);
    dt_free(o->chunks);
}

/* ---- a step ---- */

/* Where a segment lies in the chunk. */
static size_t part_of(const struct dt_optimizer_chunk *c, const struct dt_optimizer_segment *s,
                      size_t *lo)
{
    size_t end = end_of(s) < c->at + c->n ? end_of(s) : c->at + c->n;

    *lo = s->at > c->at ? s->at : c->at;
    return end - *lo;
}

/* Host functions of an optimizer follow each other, so its table serves them all. */
static void make_table(const struct dt_optimizer_chunk *c)
{
    struct dt_optimizer *o = c->o;
    uint16_t *rounded = dt_stage_master(o->stage) ? NULL : c->room->out;
    size_t lo, behind = c->at;

    for (int i = c->first; i <= c->last; i++) {
        const struct dt_optimizer_segment *s = &o->segments[i];
        size_t n = part_of(c, s, &lo), m = s->moment + (lo - s->at);

        o->stepped[i] =
            (struct dt_kernel_adamw_part){.n = (int64_t)n,
                                          .p = o->master + m,
                                          .g = c->room->grads + (lo - c->at),
                                          .m = o->exp_avg + m,
                                          .v = o->exp_avg_sq + m,
                                          .copy = rounded ? rounded + (lo - c->at) : NULL,
                                          .decay = s->decay && !s->idle};
        if (rounded) /* padding */
            memset(rounded + (behind - c->at), 0, (lo - behind) * sizeof(*rounded));
        behind = lo + n;
    }
    if (rounded)
        memset(rounded + (behind - c->at), 0, (c->at + c->n - behind) * sizeof(*rounded));
}

/* What was stepped, as it comes up: masters; or the vectors behind the rounded copies. */
static void take_masters(const struct dt_optimizer_chunk *c)
{
    float *out = c->room->out;
    size_t lo, behind = c->at;

    for (int i = c->first; i <= c->last; i++) {
        size_t n = part_of(c, &c->o->segments[i], &lo);

        memset(out + (behind - c->at), 0, (lo - behind) * sizeof(*out));
        memcpy(out + (lo - c->at), c->o->stepped[i].p, n * sizeof(*out));
        behind = lo + n;
    }
    memset(out + (behind - c->at), 0, (c->at + c->n - behind) * sizeof(*out));
}

static float *vectors_of(const struct dt_optimizer_room *r)
{
    return (float *)(void *)((char *)r->out + CHUNK * sizeof(uint16_t));
}

static void take_vectors(const struct dt_optimizer_chunk *c)
{
    struct dt_optimizer *o = c->o;
    float *out = vectors_of(c->room), *where;
    int n;
    const struct dt_param *p = dt_stage_params(o->stage, &n);
    size_t lo;

    memset(out, 0, c->n_exact * sizeof(*out));
    for (int i = 0; c->n_exact > 0 && i < n; i++) {
        size_t count = exact_in(o, &p[i], c->at, c->n, &lo, &where);

        for (int k = c->first; count > 0 && k <= c->last; k++) {
            const struct dt_optimizer_segment *s = &o->segments[k];
            size_t a = s->at > lo ? s->at : lo;
            size_t b = end_of(s) < lo + count ? end_of(s) : lo + count;

            if (b > a)
                memcpy(out + (where - c->exact) + (a - lo), o->master + s->moment + (a - s->at),
                       (b - a) * sizeof(*out));
        }
    }
}

static enum dt_status failed(const struct dt_optimizer *o, enum dt_status st,
                             const struct dt_error *why, struct dt_error *err)
{
    return dt_error_set(err, st, "module %s: the host could not step its optimizer: %s", o->name,
                        why->message);
}

/* A host function.  The device is not touched. */
static void step_chunk(void *arg)
{
    const struct dt_optimizer_chunk *c = arg;
    struct dt_optimizer *o = c->o;
    struct dt_optimizer_host *h = o->host;
    struct dt_error why;
    enum dt_status st;

    if (h->status != DT_OK)
        return;
    make_table(c);
    h->cpu->k->adamw(h->q, &h->h, c->last - c->first + 1, &o->stepped[c->first], &h->coef);
    st = h->cpu->queue_sync(h->q, &why);
    if (st != DT_OK) {
        h->status = failed(o, st, &why, &h->error);
        return;
    }
    if (dt_stage_master(o->stage))
        take_masters(c);
    else
        take_vectors(c);
}

static void issue_up(struct dt_optimizer_host *h, const struct dt_optimizer_chunk *c)
{
    struct dt_stage *s = c->o->stage;
    float *master = dt_stage_master(s);

    if (master) {
        h->dev->copy(h->up, master + c->at, c->room->out, c->n * sizeof(*master),
                     DT_COPY_TO_DEVICE);
        return;
    }
    h->dev->copy(h->up, (uint16_t *)dt_stage_rounded(s) + c->at, c->room->out,
                 c->n * sizeof(uint16_t), DT_COPY_TO_DEVICE);
    if (c->n_exact > 0)
        h->dev->copy(h->up, c->exact, vectors_of(c->room), c->n_exact * sizeof(float),
                     DT_COPY_TO_DEVICE);
    dt_stage_look_up(h->up, s, c->at, c->n);
}

static void issue(struct dt_optimizer_host *h, struct dt_optimizer_chunk *c)
{
    const struct dt_device *dev = h->dev;
    struct dt_optimizer_room *r = c->room = &h->room[h->turn++ % DT_OPTIMIZER_ROOMS];

    dev->event_wait(h->down, r->up);
    dev->copy(h->down, r->grads, dt_stage_grads(c->o->stage) + c->at, c->n * sizeof(float),
              DT_COPY_TO_HOST);
    dev->event_record(h->down, r->down);
    dev->event_wait(h->steps, r->down);
    dev->call(h->steps, step_chunk, c);
    dev->event_record(h->steps, r->stepped);
    dev->event_wait(h->up, r->stepped);
    issue_up(h, c);
    dev->event_record(h->up, r->up);
}

void dt_optimizer_host_step(struct dt_device_queue *q, struct dt_optimizer *o,
                            const struct dt_kernel_adamw *k, float coef)
{
    struct dt_optimizer_host *h = o->host;

    h->h = *k; /* the same in all of a step */
    h->coef = coef;
    h->dev->event_record(q, h->ready);
    h->dev->event_wait(h->down, h->ready);
    for (int i = 0; i < o->n_chunks; i++)
        issue(h, &o->chunks[i]);
    h->dev->event_record(h->up, h->arrived);
    h->dev->event_wait(q, h->arrived);
}
