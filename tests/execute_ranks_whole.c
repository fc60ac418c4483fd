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
        const float *value = part->master, *avg = part->exp_avg, *avg_sq = part->exp_avg_sq;
        const float *should = dt_test_host(dt_stage_master(one));
        const float *should_avg = dt_test_host(o->exp_avg);
        const float *should_avg_sq = dt_test_host(o->exp_avg_sq);
        const struct dt_param *p = part->params;

        for (int i = 0; i < part->n_params; i++) {
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

static enum dt_status put_marks(const struct dt_exec_whole *all, struct dt_error *err)
{
    enum dt_status st = DT_OK;

    for (int k = 0; k < all->n; k++) {
        const struct dt_exec_part *part = &all->part[k];

        for (int i = 0; st == DT_OK && i < part->n_params; i++) {
            const struct dt_param *p = &part->params[i];
            float *values = malloc(p->n * sizeof(*values));

            ck_assert_ptr_nonnull(values);
            for (int what = 0; st == DT_OK && what < (part->trained[i] ? DT_PARAM_WHAT_N : 1);
                 what++) {
                for (size_t j = 0; j < p->n; j++)
                    values[j] = mark(part->module, p->name, j, what);
                st = dt_exec_put(part, (enum dt_param_what)what, i, values, err);
                memset(values, 0xff, p->n * sizeof(*values)); /* they are the caller's again */
            }
            free(values);
        }
    }
    return st;
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
    dt_assert_ok(put_marks(&all, &f->err), f->err);
    dt_assert_ok(dt_exec_put_end(f->x, &f->err), f->err);
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

static enum dt_status failing_host_alloc(const struct dt_device *dev, size_t bytes,
                                         struct dt_error *err, void **out)
{
    if (--calls_left == 0)
        return dt_error_nomem(err, "a test");
    return real.host_alloc(dev, bytes, err, out);
}

static enum dt_status failing_event_new(const struct dt_device *dev, struct dt_error *err,
                                        struct dt_device_event **out)
{
    if (--calls_left == 0)
        return dt_error_nomem(err, "a test");
    return real.event_new(dev, err, out);
}

static enum dt_status failing_event_sync(struct dt_device_event *e, struct dt_error *err)
{
    enum dt_status st = real.event_sync(e, err);

    return err && --calls_left == 0 ? dt_error_set(err, DT_ERR_INTERNAL, "a test") : st;
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
    st = put_marks(&all, &f->err);
    if (st == DT_OK)
        st = dt_exec_put_end(f->x, &f->err);
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
    dt_assert_ok(take_apart(f), f->err);
    before = bytes_now(f);
    real = *f->dev;
    f->dev->host_alloc = failing_host_alloc;
    f->dev->event_new = failing_event_new;
    f->dev->event_sync = failing_event_sync;
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

START_TEST(a_failed_load_leaves_no_memory_behind)
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

/* ---- memory ---- */

/* A load that gives nothing leaves everything as it is. */
static void put_nothing(struct exec_fixture *f)
{
    struct dt_stage *s = NULL;
    struct dt_exec_whole all;
    float *was;
    size_t n;

    for (int r = 0; r < f->plan.modules[0].layout.dp && !s; r++)
        s = dt_exec_stage(f->x, 0, r, 0);
    n = dt_stage_param_floats(s);
    was = malloc(n * sizeof(*was));
    ck_assert_ptr_nonnull(was);
    memcpy(was, dt_test_host(dt_stage_master(s)), n * sizeof(*was));
    dt_assert_ok(dt_exec_whole_new(f->x, &f->err, &all), f->err);
    dt_assert_ok(dt_exec_put_end(f->x, &f->err), f->err);
    dt_exec_whole_free(&all);
    ck_assert_mem_eq(was, dt_test_host(dt_stage_master(s)), n * sizeof(*was));
    free(was);
}

/* A save and a load, on a device that counts: neither takes any of its memory, at no time. */
static void *save_and_load(void *arg)
{
    const struct dt_device_options o = {.threads = 1};
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    struct dt_exec_whole share;
    int64_t before, most_before, now, most;

    ck_assert_ptr_nonnull(f);
    open_rank(f, r);
    f->dev->close(f->dev);
    dt_assert_ok(dt_fake_device_open(&o, &f->err, &f->dev), f->err);
    ef_open(f);
    f->dev->memory_used(f->dev, &before, &most_before);
    ck_assert_int_eq(before, most_before); /* so the least that is taken shows */
    dt_assert_ok(dt_exec_gather(f->x, &f->err), f->err);
    dt_assert_ok(dt_exec_share_new(f->x, &f->err, &share), f->err);
    dt_assert_ok(dt_exec_collect(f->x, &share, &f->err), f->err);
    dt_exec_whole_free(&share);
    put_nothing(f);
    dt_assert_ok(take_apart(f), f->err);
    f->dev->memory_used(f->dev, &now, &most);
    ck_assert_int_eq(now, before);
    ck_assert_msg(most == most_before, "%s, rank %d: %lld bytes at most, %lld before",
                  r->w->c->name, r->t->rank, (long long)most, (long long)most_before);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

START_TEST(checkpoints_take_no_device_memory)
{
    static const struct ranks_case cases[] = {{.name = "tp 2",
                                               .l = {{1, 1, 1}},
                                               .tp = {2, 1, 1},
                                               .frozen = "ttt",
                                               .zero = {1, 1, 1},
                                               .microbatch = 1,
                                               .model = EF_LLM},
                                              {.name = "two replicas with ZeRO-1",
                                               .l = {{1, 2, 1}},
                                               .tp = {1, 1, 1},
                                               .frozen = "ttt",
                                               .zero = {1, 1, 1},
                                               .microbatch = 1,
                                               .model = EF_LLM}};
    struct rank ranks[2];

    run_ranks(&(struct world){.c = &cases[_i], .ranks = 2, .own_devices = true}, ranks,
              save_and_load);
}
END_TEST

void add_whole_tests(TCase *t)
{
    tcase_add_loop_test(t, checkpoints_take_no_device_memory, 0, 2);
    tcase_add_test(t, a_failed_load_leaves_no_memory_behind);
}
