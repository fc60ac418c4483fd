/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * On a device whose queues take their time, batches, messages, reductions of gradients and gathers of parameters
 * run beside compute as the program says, and the host waits for the device nowhere between the ops of the
 * microbatches. */
#include "exec_fixture.h"

#include "base/clock.h"
#include "comm/transport.h"

#include <pthread.h>

enum { RANKS = 4, STEPS = 3, STEPS_MAX = 100, WAITS = 64, KINDS = 5 };
static const enum dt_op_kind kinds[KINDS] = {DT_OP_FETCH, DT_OP_RECV, DT_OP_SEND, DT_OP_GRAD_SYNC,
                                             DT_OP_PARAM_GATHER};

struct rank {
    struct exec_fixture f;
    struct dt_transport *t;
    pthread_t thread;
    bool overlap;
    struct dt_fake_wait waits[WAITS]; /* of the last step */
    size_t n_waits;
    int beside[KINDS], all[KINDS]; /* rank 0: ops of all ranks and steps */
};
static struct rank ranks[RANKS];

/* The program of a step again: what it is does not depend on when. */
static struct dt_program *program_of(struct exec_fixture *f, struct dt_assignment **a)
{
    const struct dt_sequence *seqs[EF_SEQS_MAX];
    struct dt_samples *samples;
    struct dt_program *p;

    for (int i = 0; i < f->n_seqs; i++)
        seqs[i] = f->seqs[i];
    dt_assert_ok(dt_batching_samples(seqs, f->n_seqs, &f->err, &samples), f->err);
    dt_assert_ok(dt_assign(&f->plan, f->model, NULL, samples, 0, &f->err, a), f->err);
    dt_assert_ok(dt_sched_compile(&f->plan, f->model, &f->cluster, *a, NULL, &f->err, &p), f->err);
    dt_samples_free(samples);
    return p;
}

static bool computes(const struct dt_op *op)
{
    return op->kind == DT_OP_FORWARD || op->kind == DT_OP_BACKWARD || op->kind == DT_OP_WEIGHT_GRAD;
}

/* ns of op i that lie within compute ops of its lane */
static int64_t beside(const struct dt_program *p, const struct dt_timeline *t, uint32_t i)
{
    const struct dt_lane *l = &p->lanes[p->ops[i].lane];
    int64_t sum = 0;

    for (uint32_t k = l->first; k < l->first + l->n; k++) {
        int64_t b = t->begin_ns[k] > t->begin_ns[i] ? t->begin_ns[k] : t->begin_ns[i];
        int64_t e = t->end_ns[k] < t->end_ns[i] ? t->end_ns[k] : t->end_ns[i];

        sum += computes(&p->ops[k]) && e > b ? e - b : 0;
    }
    return sum;
}

static int count_beside(const struct dt_program *p, const struct dt_timeline *t,
                        enum dt_op_kind kind, int *all)
{
    int n = 0;

    *all = 0;
    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind) {
            n += beside(p, t, i) > 0;
            (*all)++;
        }
    return n;
}

/* Without overlap, collectives run when compute has ended. */
static bool never(const struct rank *r, int k)
{
    return !r->overlap && dt_op_resource(kinds[k]) == DT_RES_COLL;
}

/* Counts the last step of all ranks.  Has each kind that should been seen beside compute? */
static bool count(struct rank *r)
{
    struct dt_assignment *a;
    struct dt_program *p = program_of(&r->f, &a);
    bool seen = true;

    for (int k = 0; k < KINDS; k++) {
        int all;

        r->beside[k] += count_beside(p, &r->f.timeline, kinds[k], &all);
        r->all[k] += all;
        seen &= r->beside[k] > 0 || never(r, k);
    }
    dt_program_free(p);
    dt_assign_free(a);
    return seen;
}

static void *live(void *arg)
{
    static const struct ef_layout layout[] = {{2, 2, 1}};
    struct rank *r = arg;
    struct exec_fixture *f = &r->f;
    double seen = 0; /* the same on every rank */

    ef_init(f, EF_LLM, 1);
    ef_seqs_of(f, 16, 5, EF_TEXT);
    ef_plan(f, 1, layout, false, DT_SCHED_1F1B);
    f->plan.policy.overlap_grad = f->plan.policy.overlap_param = r->overlap;
    f->transport = r->t;
    ef_open(f);
    for (int i = 1; i <= STEPS || (seen == 0 && i <= STEPS_MAX); i++) {
        dt_fake_waits(f->dev, NULL, 0);
        ef_step(f, i);
        r->n_waits = dt_fake_waits(f->dev, r->waits, WAITS);
        seen = r->t->rank == 0 && count(r);
        dt_assert_ok(dt_exec_sum(f->x, &seen, 1, &f->err), f->err);
    }
    return NULL;
}

static void end(struct rank *r)
{
    ef_free(&r->f);
    r->t->close(r->t);
}

static void *end_of(void *arg)
{
    end(arg);
    return NULL;
}

static void run_all(void *(*fn)(void *))
{
    for (int i = 0; i < RANKS; i++)
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, fn, &ranks[i]), 0);
    for (int i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
}

static void start(const char *seed, bool overlap)
{
    struct dt_transport *t[RANKS];
    struct dt_error err;

    setenv("DISTTRAIN_FAKE_DEVICE", "1", 1);
    setenv("DISTTRAIN_FAKE_SEED", seed, 1);
    setenv("DISTTRAIN_FAKE_DELAY_US", "600", 1);
    setenv("DISTTRAIN_FAKE_SHARE", "8", 1);
    dt_assert_ok(dt_transport_open_threads(RANKS, &err, t), err);
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.t = t[i], .overlap = overlap};
    }
    run_all(live);
}

/* With their delays, some do in nearly every step; gathers, which only the first forwards hide, in every other. */
START_TEST(communication_runs_beside_compute)
{
    char seed[16];

    snprintf(seed, sizeof(seed), "%d", _i);
    for (int overlap = 0; overlap < 2; overlap++) {
        const struct rank *r = &ranks[0];

        start(seed, overlap);
        for (int k = 0; k < KINDS; k++) {
            printf("overlap %s, seed %d: %d of %d %s run beside compute of their lane\n",
                   overlap ? "on" : "off", _i, r->beside[k], r->all[k], dt_op_kind_names[kinds[k]]);
            fflush(stdout);
            ck_assert_int_gt(r->all[k], 0);
            ck_assert_int_eq(r->beside[k] > 0, !never(r, k));
        }
        run_all(end_of);
    }
}
END_TEST

/* From the first compute op of a lane to the end of its last one. */
static void span_of(const struct dt_program *p, const struct dt_timeline *t, int lane,
                    uint64_t span[2])
{
    int64_t begin = INT64_MAX, last = 0;

    for (uint32_t k = p->lanes[lane].first; k < p->lanes[lane].first + p->lanes[lane].n; k++) {
        if (!computes(&p->ops[k]))
            continue;
        begin = t->begin_ns[k] < begin ? t->begin_ns[k] : begin;
        last = t->end_ns[k] > last ? t->end_ns[k] : last;
    }
    span[0] = (uint64_t)(t->origin_ns + begin);
    span[1] = (uint64_t)(t->origin_ns + last);
}

/* Is there compute on the lane at that time, or about to begin, so that a wait of the host costs nothing? */
static bool busy_at(const struct dt_program *p, const struct dt_timeline *t, int lane, uint64_t ns)
{
    const int64_t at = (int64_t)ns - t->origin_ns, soon = 1000000;

    for (uint32_t k = p->lanes[lane].first; k < p->lanes[lane].first + p->lanes[lane].n; k++)
        if (computes(&p->ops[k]) && t->begin_ns[k] - soon <= at && at <= t->end_ns[k])
            return true;
    return false;
}

/* What is read at the end of a step waits for the last ops of it; it is asked for after all have been
 * issued.  So no such wait may end before the last op has.  Only the next microbatch's batch may wait for the
 * upload of the one before it in its place, while there is compute to do. */
START_TEST(the_host_does_not_wait_between_ops)
{
    struct dt_assignment *a;
    struct dt_program *p;
    char seed[16];

    snprintf(seed, sizeof(seed), "%d", _i);
    start(seed, true);
    p = program_of(&ranks[0].f, &a);
    ck_assert_int_eq(p->n_lanes, RANKS);
    for (int lane = 0; lane < p->n_lanes; lane++) {
        const struct rank *r = &ranks[p->lanes[lane].first_gpu];
        uint64_t span[2];

        span_of(p, &ranks[0].f.timeline, lane, span);
        ck_assert_uint_le(r->n_waits, WAITS);
        for (size_t k = 0; k < r->n_waits; k++)
            ck_assert_msg(r->waits[k].end_ns < span[0] || r->waits[k].end_ns >= span[1] ||
                              (r->waits[k].kind == DT_FAKE_EVENT_SYNC &&
                               busy_at(p, &ranks[0].f.timeline, lane, r->waits[k].end_ns)),
                          "rank %d: %s of %.3f ms, %.3f ms after its first op began and %.3f ms "
                          "before its last one ended",
                          p->lanes[lane].first_gpu, dt_fake_wait_names[r->waits[k].kind],
                          (double)(r->waits[k].end_ns - r->waits[k].begin_ns) * 1e-6,
                          (double)(r->waits[k].begin_ns - span[0]) * 1e-6,
                          (double)(span[1] - r->waits[k].end_ns) * 1e-6);
    }
    dt_program_free(p);
    dt_assign_free(a);
    run_all(end_of);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("overlap");
    TCase *t = dt_test_case(s, "overlap", 120);

    tcase_add_loop_test(t, communication_runs_beside_compute, 1, 3);
    tcase_add_loop_test(t, the_host_does_not_wait_between_ops, 1, 4);
    return dt_test_run(s);
}
