/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * All of the model in one place, collected from ranks and spread over them. */
#include "execute_ranks.h"

#include "base/hash.h"

static double distance(const float *a, const float *b, size_t n, double *norm)
{
    double off = 0, all = 0;

    for (size_t i = 0; i < n; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    *norm = sqrt(all);
    return sqrt(off);
}

static void about_equal(const struct world *w, const struct dt_param *p, const char *what,
                        const float *is, const float *should, double tol)
{
    double norm, off = distance(is, should, p->n, &norm);

    ck_assert_msg(off <= 1e-2 * norm + tol, "%s: %s of %s is %.3g off, its norm is %.3g",
                  w->c->name, what, p->name, off, norm);
}

/* What a rank has collected is what one process has. */
static void check_collected(const struct world *w, const struct dt_exec_whole *all)
{
    for (int k = 0; k < all->n; k++) {
        const struct dt_exec_part *part = &all->part[k];
        struct dt_stage *one = dt_exec_stage(w->one->x, part->module, 0, 0);
        const struct dt_optimizer *o = dt_exec_optimizer(w->one->x, part->module, 0, 0);
        const float *value = dt_test_host(dt_stage_master(part->stage));
        const float *avg = dt_test_host(part->exp_avg), *avg_sq = dt_test_host(part->exp_avg_sq);
        const float *should = dt_test_host(dt_stage_master(one));
        const float *should_avg = dt_test_host(o->exp_avg);
        const float *should_avg_sq = dt_test_host(o->exp_avg_sq);
        int n;
        const struct dt_param *p = dt_stage_params(part->stage, &n);

        for (int i = 0; i < n; i++) {
            const struct dt_param *q = param_named(one, p[i].name);

            if (p[i].tied)
                continue;
            ck_assert_ptr_nonnull(q);
            ck_assert_uint_eq(p[i].n, q->n);
            about_equal(w, &p[i], "value", value + p[i].at, should + q->at, 1e-5);
            if (!part->trained[i])
                continue;
            about_equal(w, &p[i], "first moment", avg + p[i].at, should_avg + q->at, 1e-6);
            about_equal(w, &p[i], "second moment", avg_sq + p[i].at, should_avg_sq + q->at, 1e-9);
        }
    }
}

/* Every virtual stage is in one rank's share. */
static void check_shares(const struct world *w, struct exec_fixture *f,
                         const struct dt_exec_whole *all)
{
    double n[64] = {0};
    int at = 0;

    for (int m = 0; m < f->model->n_modules; m++)
        for (int v = 0; v < f->plan.modules[m].layout.pp * f->plan.modules[m].layout.vpp; v++) {
            ck_assert_int_lt(at, 64);
            for (int k = 0; k < all->n; k++)
                n[at] += all->part[k].module == m && all->part[k].v == v;
            at++;
        }
    dt_assert_ok(dt_exec_sum(f->x, n, (size_t)at, &f->err), f->err);
    for (int i = 0; i < at; i++)
        ck_assert_msg(n[i] == 1, "%s: part %d has %g writers", w->c->name, i, n[i]);
}

/* A number that tells where it belongs. */
static float mark(int module, const char *name, size_t i, int what)
{
    return (float)((dt_hash_text(DT_HASH_START, name) + 31 * (uint64_t)module + 7 * i +
                    (uint64_t)what) %
                   65521);
}

static void write_marks(struct dt_exec_whole *all)
{
    for (int k = 0; k < all->n; k++) {
        struct dt_exec_part *part = &all->part[k];
        float *value = dt_test_host(dt_stage_master(part->stage));
        float *avg = dt_test_host(part->exp_avg), *avg_sq = dt_test_host(part->exp_avg_sq);
        int n;
        const struct dt_param *p = dt_stage_params(part->stage, &n);

        for (int i = 0; i < n; i++)
            for (size_t j = 0; j < p[i].n; j++) {
                value[p[i].at + j] = mark(part->module, p[i].name, j, 0);
                if (!part->trained[i])
                    continue;
                avg[p[i].at + j] = mark(part->module, p[i].name, j, 1);
                avg_sq[p[i].at + j] = mark(part->module, p[i].name, j, 2);
            }
    }
}

static void check_marks(const struct world *w, struct exec_fixture *f, int m, int r, int v)
{
    struct dt_stage *s = dt_exec_stage(f->x, m, r, v);
    const struct dt_optimizer *o = dt_exec_optimizer(f->x, m, r, v);
    const float *value = dt_test_host(dt_stage_master(s)), *avg = dt_test_host(o->exp_avg);
    const float *avg_sq = dt_test_host(o->exp_avg_sq);
    int n;
    const struct dt_param *p = dt_stage_params(s, &n);

    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < dt_param_runs(&p[i]); k++) {
            struct dt_param_run run = dt_param_run(&p[i], k);

            for (size_t j = 0; j < run.n; j++) {
                size_t at = p[i].at + run.at + j;

                ck_assert_msg(value[at] == mark(m, p[i].name, run.whole + j, 0),
                              "%s: %s[%zu] is another element", w->c->name, p[i].name, j);
                for (int g = 0; g < o->n_segments; g++) {
                    const struct dt_optimizer_segment *x = &o->segments[g];

                    if (at < x->at || at >= x->at + x->n)
                        continue;
                    ck_assert(avg[x->moment + at - x->at] == mark(m, p[i].name, run.whole + j, 1));
                    ck_assert(avg_sq[x->moment + at - x->at] ==
                              mark(m, p[i].name, run.whole + j, 2));
                }
            }
        }
}

/* What was written in one place comes to where it belongs. */
static void check_spread(const struct world *w, struct exec_fixture *f)
{
    struct dt_exec_whole all;

    dt_assert_ok(dt_exec_whole_new(f->x, &f->err, &all), f->err);
    write_marks(&all);
    dt_assert_ok(dt_exec_spread(f->x, &all, &f->err), f->err);
    dt_exec_whole_free(&all);
    for (int m = 0; m < f->model->n_modules; m++) {
        const struct dt_plan_layout *l = &f->plan.modules[m].layout;

        for (int r = 0; r < l->dp; r++)
            for (int v = 0; v < l->pp * l->vpp; v++)
                if (dt_exec_stage(f->x, m, r, v))
                    check_marks(w, f, m, r, v);
    }
}

void check_whole(const struct world *w, struct exec_fixture *f)
{
    struct dt_exec_whole all;

    dt_assert_ok(dt_exec_gather(f->x, &f->err), f->err);
    dt_assert_ok(dt_exec_share_new(f->x, &f->err, &all), f->err);
    dt_assert_ok(dt_exec_collect(f->x, &all, &f->err), f->err);
    check_collected(w, &all);
    check_shares(w, f, &all);
    dt_exec_whole_free(&all);
    check_spread(w, f);
}

/* ---- failures ---- */

/* Every call below counts down, and the one that reaches 0 fails.  Each rank has a device of its own
 * and runs on a thread of its own. */
static _Thread_local int calls_left;
static _Thread_local struct dt_device real;

static enum dt_status failing_alloc(const struct dt_device *dev, size_t bytes, struct dt_error *err,
                                    void **out)
{
    if (--calls_left == 0)
        return dt_error_nomem(err, "a test");
    return real.alloc(dev, bytes, err, out);
}

static enum dt_status failing_queue_new(const struct dt_device *dev, bool high_priority,
                                        struct dt_error *err, struct dt_device_queue **out)
{
    if (--calls_left == 0)
        return dt_error_nomem(err, "a test");
    return real.queue_new(dev, high_priority, err, out);
}

static enum dt_status failing_sync(struct dt_device_queue *q, struct dt_error *err)
{
    enum dt_status st = real.queue_sync(q, err);

    return --calls_left == 0 ? dt_error_set(err, DT_ERR_INTERNAL, "a test") : st;
}

static enum dt_status take_apart(struct exec_fixture *f)
{
    struct dt_exec_whole all;
    enum dt_status st = dt_exec_whole_new(f->x, &f->err, &all);

    if (st != DT_OK)
        return st;
    write_marks(&all);
    st = dt_exec_spread(f->x, &all, &f->err);
    dt_exec_whole_free(&all);
    return st;
}

static int64_t bytes_now(const struct exec_fixture *f)
{
    int64_t now, max;

    f->dev->memory_used(f->dev, &now, &max);
    return now;
}

/* The k-th call to the device fails, for every k: what was allocated until then is free again. */
static void *fail_everywhere(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    enum dt_status st = DT_ERR_NOMEM;
    int64_t before;
    int k;

    ck_assert_ptr_nonnull(f);
    open_rank(f, r);
    ef_open(f);
    dt_assert_ok(take_apart(f), f->err); /* workspaces of queues stay */
    before = bytes_now(f);
    real = *f->dev;
    f->dev->alloc = failing_alloc;
    f->dev->queue_new = failing_queue_new;
    f->dev->queue_sync = failing_sync;
    for (k = 1; st != DT_OK; k++) {
        calls_left = k;
        st = take_apart(f);
        ck_assert_msg(bytes_now(f) == before, "call %d failed: %lld bytes are left over", k,
                      (long long)(bytes_now(f) - before));
    }
    ck_assert_int_gt(k, 10);
    *f->dev = real;
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

START_TEST(a_failed_spread_leaves_no_memory_behind)
{
    static const struct ranks_case two = {.name = "tp 2",
                                          .l = {{1, 1, 1}},
                                          .tp = {2, 1, 1},
                                          .frozen = "ttt",
                                          .zero = {1, 1, 1},
                                          .microbatch = 1,
                                          .model = EF_LLM};
    struct rank ranks[2];

    run_ranks(&(struct world){.c = &two, .ranks = 2, .own_devices = true}, ranks, fail_everywhere);
}
END_TEST

void add_whole_tests(TCase *t)
{
    tcase_add_test(t, a_failed_spread_leaves_no_memory_behind);
}
