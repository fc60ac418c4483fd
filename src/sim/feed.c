/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "sim/feed.h"

#include "base/mem.h"

struct kept {            /* of an iteration that has run */
    int64_t *release_ns; /* of FETCHes; NULL before */
    struct dt_sched_supplied made;
};
struct dt_sim_feed {
    struct dt_sched_stream *stream;
    int iterations;
    struct kept *kept; /* [iterations] */
};

enum dt_status dt_sim_feed_open(const struct dt_job *job, int iterations, struct dt_error *err,
                                struct dt_sim_feed **out)
{
    struct dt_sim_feed *f;
    enum dt_status st;

    *out = NULL;
    if (job->sim.preprocess.mode == DT_SCHED_SUPPLY_NONE)
        return DT_OK;
    f = dt_calloc(1, sizeof *f);
    if (!f)
        return dt_error_nomem(err, "preprocessing");
    f->iterations = iterations;
    f->kept = dt_calloc((size_t)iterations, sizeof *f->kept);
    st = f->kept ? dt_sched_stream_new(&job->sim.preprocess, job->model, &job->cluster,
                                       job->samples, err, &f->stream)
                 : dt_error_nomem(err, "releases of input");
    if (st == DT_OK)
        *out = f;
    else
        dt_sim_feed_close(f);
    return st;
}

static enum dt_status set(struct dt_program *p, struct dt_error *err)
{
    if (!p->release_ns)
        p->release_ns = DT_ARENA_NEW(&p->arena, int64_t, p->n_ops + 1);
    return p->release_ns ? DT_OK : dt_error_nomem(err, "releases of input");
}

enum dt_status dt_sim_feed_next(struct dt_sim_feed *f, struct dt_program *p,
                                const struct dt_durations *d, struct dt_error *err,
                                struct dt_sched_supplied *out)
{
    DT_TRY(set(p, err));
    return dt_sched_stream_next(f->stream, p, d->ns, err, p->release_ns, out);
}

void dt_sim_feed_ran(struct dt_sim_feed *f, int64_t iteration_ns)
{
    dt_sched_stream_ran(f->stream, iteration_ns);
}

enum dt_status dt_sim_feed_settled(struct dt_sim_feed *f, struct dt_error *err, bool *yes)
{
    return dt_sched_stream_settled(f->stream, err, yes);
}

enum dt_status dt_sim_feed_keep(struct dt_sim_feed *f, int iteration, const struct dt_program *p,
                                const struct dt_sched_supplied *made, struct dt_error *err)
{
    struct kept *k = &f->kept[iteration];
    size_t n = 0;

    for (uint32_t i = 0; i < p->n_ops; i++)
        n += p->ops[i].kind == DT_OP_FETCH;
    k->release_ns = dt_malloc((n + 1) * sizeof *k->release_ns);
    if (!k->release_ns)
        return dt_error_nomem(err, "releases of input");
    k->made = *made;
    n = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == DT_OP_FETCH)
            k->release_ns[n++] = p->release_ns[i];
    return DT_OK;
}

enum dt_status dt_sim_feed_again(const struct dt_sim_feed *f, int iteration, struct dt_program *p,
                                 struct dt_error *err, struct dt_sched_supplied *made)
{
    const int64_t *kept = f->kept[iteration].release_ns;

    DT_TRY(set(p, err));
    for (uint32_t i = 0; i < p->n_ops; i++)
        p->release_ns[i] = p->ops[i].kind == DT_OP_FETCH ? *kept++ : 0;
    *made = f->kept[iteration].made;
    return DT_OK;
}

void dt_sim_feed_close(struct dt_sim_feed *f)
{
    if (!f)
        return;
    for (int i = 0; f->kept && i < f->iterations; i++)
        dt_free(f->kept[i].release_ns);
    dt_free(f->kept);
    dt_sched_stream_free(f->stream);
    dt_free(f);
}
