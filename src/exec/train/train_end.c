/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/train_end.h"

#include "base/mem.h"
#include "comm/supervisor.h"

/* What each rank has, and the first member of each lane, each in its own place of a sum. */
static enum dt_status read_memory(const struct dt_train_end *e, struct dt_error *err)
{
    int ranks = e->sum->ranks, lanes = e->sum->program ? e->sum->program->n_lanes : 0;
    int own = e->o->transport ? e->o->transport->rank : 0;
    size_t n = 2 * (size_t)ranks + (size_t)lanes;
    const double *host = NULL;
    double *of = dt_calloc(n, sizeof(*of));
    enum dt_status st = DT_OK;

    if (lanes > 0) {
        e->sum->memory = dt_calloc((size_t)ranks, sizeof(*e->sum->memory));
        e->sum->lanes = dt_calloc((size_t)lanes, sizeof(*e->sum->lanes));
        st = e->sum->memory && e->sum->lanes
                 ? dt_train_predict_memory(e->o->setup, e->seen, e->sum->program, ranks, err,
                                           e->sum->memory, e->sum->lanes)
                 : dt_error_nomem(err, "ranks");
    }
    if (st == DT_OK && !of)
        st = dt_error_nomem(err, "ranks");
    if (st == DT_OK) {
        host = of + ranks + lanes;
        of[own] = (double)e->memory_bytes;
        of[ranks + lanes + own] = (double)dt_exec_host_memory(e->x);
        for (int i = 0; i < lanes; i++)
            if (e->sum->lanes[i].rank == own)
                of[ranks + i] = (double)e->lane_bytes[i];
        st = dt_exec_sum(e->x, of, n, err);
    }
    for (int r = 0; st == DT_OK && r < ranks; r++) {
        if ((int64_t)of[r] > e->sum->memory_max_bytes)
            e->sum->memory_max_bytes = (int64_t)of[r];
        if (lanes > 0)
            e->sum->memory[r].allocated_bytes = (int64_t)of[r];
        if (lanes > 0)
            e->sum->memory[r].allocated_host_bytes = (int64_t)host[r];
    }
    for (int i = 0; st == DT_OK && i < lanes; i++)
        e->sum->lanes[i].allocated_bytes = (int64_t)of[ranks + i];
    dt_free(of);
    return st;
}

/* On rank 0: what the ranks did for batches while the last iteration ran. */
static enum dt_status keep_data(const struct dt_train_end *e, const double (*v)[4],
                                struct dt_error *err)
{
    const struct dt_timeline *tl = &e->sum->timeline;
    int64_t n = (int64_t)e->sum->ranks * DT_PREFETCH_SPANS;

    e->sum->beside = dt_calloc((size_t)n, sizeof(*e->sum->beside));
    if (!e->sum->beside)
        return dt_error_nomem(err, "batches");
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = (int64_t)v[i][2] - tl->origin_ns, end = (int64_t)v[i][3] - tl->origin_ns;

        if (v[i][0] > 0 && begin < tl->makespan_ns && end > 0)
            e->sum->beside[e->sum->n_beside++] =
                (struct dt_run_data){(int)(i / DT_PREFETCH_SPANS), (int64_t)v[i][0],
                                     (enum dt_run_data_work)v[i][1], begin, end};
    }
    return DT_OK;
}

/* Each rank's in its own places of a sum, on the clock of rank 0: nanoseconds of 100 days are whole
 * numbers of doubles. */
static enum dt_status read_data(const struct dt_train_end *e, struct dt_error *err)
{
    int own = e->o->transport ? e->o->transport->rank : 0;
    int64_t ahead_ns = e->o->supervisor ? dt_supervisor_clock(e->o->supervisor, NULL) : 0;
    size_t n = (size_t)e->sum->ranks * DT_PREFETCH_SPANS;
    struct dt_prefetch_span s[DT_PREFETCH_SPANS];
    double(*v)[4] = dt_calloc(n, sizeof(*v)); /* batch, work, begin, end */
    enum dt_status st;
    int k;

    if (!v)
        return dt_error_nomem(err, "batches");
    dt_prefetch_stop(e->prefetch);
    k = dt_prefetch_spans(e->prefetch, s);
    for (int i = 0; i < k; i++) {
        double *to = v[own * DT_PREFETCH_SPANS + i];

        to[0] = (double)(e->steps_before + s[i].batch + 1);
        to[1] = s[i].work;
        to[2] = (double)((int64_t)s[i].begin_ns - ahead_ns);
        to[3] = (double)((int64_t)s[i].end_ns - ahead_ns);
    }
    st = dt_exec_sum(e->x, v[0], 4 * n, err);
    if (st == DT_OK && own == 0)
        st = keep_data(e, (const double(*)[4])v, err);
    dt_free(v);
    return st;
}

/* Of every rank. */
static enum dt_status read_decoded(const struct dt_train_end *e, struct dt_error *err)
{
    e->sum->decoded = dt_calloc((size_t)e->sum->ranks, sizeof(*e->sum->decoded));
    if (!e->sum->decoded)
        return dt_error_nomem(err, "what ranks have decoded");
    e->sum->decoded[e->o->transport ? e->o->transport->rank : 0] = (double)e->sum->loading.decoded;
    return dt_exec_sum(e->x, e->sum->decoded, (size_t)e->sum->ranks, err);
}

enum dt_status dt_train_end(const struct dt_train_end *e, struct dt_error *err)
{
    DT_TRY(read_decoded(e, err));
    DT_TRY(read_memory(e, err));
    if (!e->sum->program)
        return DT_OK;
    DT_TRY(dt_exec_timeline(e->x, e->sum->program, err, &e->sum->timeline));
    return read_data(e, err);
}
