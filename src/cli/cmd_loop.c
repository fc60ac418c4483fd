/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain loop: profile, predict, train, compare, for many layouts of one job on this machine. */
#include "cli/loop.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cli/rows.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/clock.h"
#include "base/quantile.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct dt_cli_option options[] = {
    {"steps", 0, DT_OPT_INT, "N", "steps measured with each layout (default 8)"},
    {"warm-up", 0, DT_OPT_INT, "N", "steps before these (default 20)"},
    {"ranks", 0, DT_OPT_INT, "N", "ranks of a layout at most (default 4)"},
    {"orders", 0, DT_OPT_FLAG, NULL,
     "the job's own plan with each way of reordering samples, instead of layouts"},
    {"strategies", 0, DT_OPT_FLAG, NULL,
     "the best homogeneous, colocated and noncolocated plan, instead of layouts"},
    {"runs", 0, DT_OPT_STRING, "FILE",
     "keep the last step of each layout, predicted and measured, in this SQLite file"},
    {"anyway", 0, DT_OPT_FLAG, NULL, "measure however busy the machine is"},
    {"seconds", 0, DT_OPT_DOUBLE, "S", "as of disttrain profile (default 1)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

/* The sizes of what steps after the warm-up train on, in the loader's order. */
static enum dt_status read_seen(struct dt_loop *l, const struct dt_setup *s, struct dt_error *err)
{
    int64_t batch = s->plan.policy.global_batch, skip = l->warm_up * batch,
            n = (l->warm_up + l->steps) * batch;
    struct dt_loader_options o = s->loader;
    struct dt_sequence **seqs = dt_calloc((size_t)n, sizeof(*seqs));
    struct dt_loader *loader = NULL;
    enum dt_status st = DT_OK;

    if (!seqs)
        return dt_error_nomem(err, "sequences");
    l->fp32 = s->dtype == DT_F32;
    o.sizes_only = true;
    st = dt_loader_open(&o, err, &loader);
    for (int64_t i = 0; i < n && st == DT_OK; i++) {
        st = dt_loader_next(loader, err, &seqs[i]);
        if (st == DT_OK && !seqs[i])
            st =
                dt_error_set(err, DT_ERR_INPUT, "the data ends after %lld sequences", (long long)i);
    }
    dt_loader_close(loader);
    if (st == DT_OK)
        st = dt_batching_samples((const struct dt_sequence *const *)seqs + skip, n - skip, err,
                                 &l->seen);
    if (st == DT_OK)
        st = dt_batching_samples((const struct dt_sequence *const *)seqs + n - batch, batch, err,
                                 &l->last);
    for (int64_t i = 0; i < n; i++)
        dt_sequence_free(seqs[i]);
    dt_free(seqs);
    return st;
}

/* Each rank makes whole batches, beside the steps before: samples are read, decoded and packed. */
static enum dt_status time_batches(struct dt_loop *l, const struct dt_setup *s,
                                   struct dt_error *err)
{
    enum { WARM_UP = 4, BATCHES = 16 }; /* behind what the loader's threads have made ahead */
    int64_t batch = s->plan.policy.global_batch;
    struct dt_loader *loader;
    uint64_t begin = 0;
    enum dt_status st = DT_OK;

    DT_TRY(dt_loader_open(&s->loader, err, &loader));
    for (int64_t i = 0; i < (WARM_UP + BATCHES) * batch && st == DT_OK; i++) {
        struct dt_sequence *q = NULL;

        if (i == WARM_UP * batch)
            begin = dt_clock_process_ns();
        st = dt_loader_next(loader, err, &q);
        if (st == DT_OK && !q)
            st =
                dt_error_set(err, DT_ERR_INPUT, "the data ends after %lld sequences", (long long)i);
        dt_sequence_free(q);
    }
    if (st == DT_OK)
        l->batch_s = 1e-9 * (double)(dt_clock_process_ns() - begin) / BATCHES;
    dt_loader_close(loader);
    return st;
}

static enum dt_status look_at_job(struct dt_loop *l, struct dt_error *err)
{
    struct dt_device *device;
    char found[4096];
    const char *path = l->job;
    struct dt_setup setup;
    struct dt_job *job;
    enum dt_status st;

    DT_TRY(dt_file_find("jobs", path, ".yaml", err, found, sizeof(found)));
    DT_TRY(dt_job_read(found, l->cli->args + 1, l->cli->n_args - 1, err, &job));
    st = dt_cli_need_run(job, "what to train on", err);
    if (st == DT_OK)
        st = dt_cli_open_device(job, NULL, err, &device);
    if (st == DT_OK) {
        l->card = device->info.id[0];
        st = dt_setup_open(job, device, true, err, &setup);
        if (st == DT_OK) {
            st = read_seen(l, &setup, err);
            if (st == DT_OK)
                st = dt_loop_settle(l, err);
            if (st == DT_OK)
                st = time_batches(l, &setup, err);
            if (st == DT_OK)
                st = l->strategies ? dt_loop_strategies(l, err)
                     : l->orders   ? dt_loop_orders(l, job->model, &setup.plan, err)
                                   : dt_loop_layouts(l, job, err);
            dt_setup_close(&setup);
        }
        device->close(device);
    }
    dt_job_free(job);
    if (st == DT_OK && l->n == 0)
        st = dt_error_set(err, DT_ERR_INPUT,
                          "no layout of up to %d ranks divides the global batch of this job",
                          (int)l->ranks_max);
    return st;
}

/* ---- results ---- */

struct outcome {
    double median_abs_error, bias, chosen_over_best;
    int chosen, best; /* least predicted, least measured */
};

static enum dt_status judge(const struct dt_loop *l, struct outcome *o, struct dt_error *err)
{
    double *e = dt_malloc((size_t)l->n * sizeof(*e));

    if (!e)
        return dt_error_nomem(err, "errors");
    *o = (struct outcome){0};
    for (int i = 0; i < l->n; i++) {
        const struct dt_loop_layout *x = &l->layout[i];
        double error = x->predicted_s / x->measured_s - 1;

        e[i] = fabs(error);
        o->bias += error / l->n;
        if (x->predicted_s < l->layout[o->chosen].predicted_s)
            o->chosen = i;
        if (x->measured_s < l->layout[o->best].measured_s)
            o->best = i;
    }
    o->median_abs_error = dt_median(e, (size_t)l->n);
    o->chosen_over_best = l->layout[o->chosen].measured_s / l->layout[o->best].measured_s;
    dt_free(e);
    return DT_OK;
}

static void widen(double reference_s, double range[2])
{
    if (reference_s <= 0)
        return;
    range[0] = range[0] > 0 ? fmin(range[0], reference_s) : reference_s;
    range[1] = fmax(range[1], reference_s);
}

/* Of measurements with as many threads: cores may share execution units. */
static double drift(const struct dt_loop *l)
{
    double most = 0;

    for (int t = 1; t <= LOOP_THREADS_MAX; t++) {
        double range[2] = {0, 0};

        for (int p = 0; p < l->passes; p++)
            widen(l->profile[p][t].reference_s, range);
        for (int i = 0; i < l->n; i++)
            if (l->layout[i].threads == t)
                widen(l->layout[i].drift.reference_s, range);
        if (range[0] > 0)
            most = fmax(most, range[1] / range[0] - 1);
    }
    return most;
}

/* What else the machine did. */
static void print_cores(const struct dt_loop *l)
{
    if (l->cores < l->cpus_all)
        printf("%d of %d cores left to other work\n", l->cpus_all - l->cores, l->cpus_all);
    if (l->card)
        printf("predictions are not corrected for the machine's speed");
    else
        printf("the machine's speed drifted by %.0f %%, for which predictions are corrected",
               100 * drift(l));
    if (l->foreign_max >= 0)
        printf("; other work took at most %.0f %% of the cores' time", 100 * l->foreign_max);
    if (l->again > 0)
        printf("; %d measurement%s repeated", l->again, l->again == 1 ? " was" : "s were");
    printf("\n");
    /* of orders gains say within what they are known */
    for (int i = 0; i < l->n && !l->orders; i++)
        if (!dt_drift_counts(&l->layout[i].drift)) {
            printf("the machine was too busy for these numbers (--anyway)\n");
            break;
        }
}

static void layouts(struct dt_cli_rows *r, const struct dt_loop *l)
{
    for (int i = 0; i < l->n; i++) {
        const struct dt_loop_layout *x = &l->layout[i];

        dt_cli_row(r);
        dt_cli_row_text(r, "layout",
                        l->strategies ? "strategy" : "layout (pp x dp of each module) or order",
                        x->name);
        dt_cli_row_int(r, "ranks", "ranks", x->ranks);
        dt_cli_row_int(r, "threads", "threads each", x->threads);
        dt_cli_row_number(r, "simulated_before_s", NULL, NULL, 1, x->simulated_s[0]);
        dt_cli_row_number(r, "simulated_after_s", NULL, NULL, 1,
                          x->simulated_s[l->orders ? l->passes - 1 : 1]);
        dt_cli_row_number(r, "reference_s", NULL, NULL, 1, x->drift.reference_s);
        dt_cli_row_number(r, "steady", NULL, NULL, 1, x->drift.steady);
        dt_cli_row_number(r, "foreign", NULL, NULL, 1, x->drift.foreign);
        dt_cli_row_number(r, "predicted_s", "predicted [ms]", "%.1f", 1e3, x->predicted_s);
        dt_cli_row_number(r, "measured_s", "measured [ms]", "%.1f", 1e3, x->measured_s);
        dt_cli_row_number(r, "error", "error [%]", "%+.1f", 100,
                          x->predicted_s / x->measured_s - 1);
        if (l->strategies)
            dt_cli_row_text(r, "plan", NULL, x->plan);
        if (l->orders)
            dt_loop_row_order(r, l, i);
    }
}

static void print_table(const struct dt_loop *l, const struct outcome *o)
{
    struct dt_cli_rows r;

    dt_cli_rows_table(&r);
    layouts(&r, l);
    dt_cli_rows_end(&r, stdout);
    printf("\n%d %s on %d core%s: median |error| %.1f %%, bias %+.1f %%\n", l->n,
           l->strategies ? "strategies"
           : l->orders   ? "orders"
                         : "layouts",
           l->cores, l->cores == 1 ? "" : "s", 100 * o->median_abs_error, 100 * o->bias);
    print_cores(l);
    if (l->strategies) {
        dt_loop_print_strategies(l);
        return;
    }
    if (l->orders) {
        dt_loop_print_orders(l);
        return;
    }
    printf("predicted best: %s, %.1f %% slower than the measured best (%s)\n",
           l->layout[o->chosen].name, 100 * (o->chosen_over_best - 1), l->layout[o->best].name);
}

static void json_profiles(const struct dt_loop *l, struct dt_json *j)
{
    dt_json_key(j, "profiles");
    dt_json_begin_array(j);
    for (int p = 0; p < l->passes; p++)
        for (int t = 1; t <= LOOP_THREADS_MAX; t++) {
            const struct dt_drift *d = &l->profile[p][t];

            if (!(d->at_s > 0))
                continue;
            dt_json_begin_object(j);
            dt_json_kv_int(j, "pass", p);
            dt_json_kv_int(j, "threads", t);
            dt_json_kv_double(j, "reference_s", d->reference_s);
            dt_json_kv_double(j, "foreign", d->foreign);
            dt_json_end_object(j);
        }
    dt_json_end_array(j);
}

static enum dt_status print_json(const struct dt_loop *l, const struct outcome *o,
                                 struct dt_error *err)
{
    struct dt_cli_rows r;
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_int(&j, "cores", l->cores);
    dt_json_kv_int(&j, "cores_left", l->cpus_all - l->cores);
    dt_json_kv_double(&j, "drift", drift(l));
    dt_json_kv_double(&j, "foreign_max", l->foreign_max);
    if (l->strategies)
        dt_json_kv_int(&j, "steps_kept", l->steps_kept);
    if (l->orders)
        dt_loop_json_orders(l, &j);
    dt_json_kv_int(&j, "taken_again", l->again);
    dt_json_kv_double(&j, "median_abs_error", o->median_abs_error);
    dt_json_kv_double(&j, "bias", o->bias);
    dt_json_kv_string(&j, "chosen", l->layout[o->chosen].name);
    dt_json_kv_string(&j, "best", l->layout[o->best].name);
    dt_json_kv_double(&j, "chosen_over_best", o->chosen_over_best);
    dt_json_kv_double(&j, "batch_s", l->batch_s);
    json_profiles(l, &j);
    if (l->strategies)
        dt_loop_json_strategies(l, &j);
    dt_cli_rows_json(&r, &j, "layouts");
    layouts(&r, l);
    dt_cli_rows_end(&r, NULL);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

/* ---- the temporary folder ---- */

static void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char at[4096];

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(at, sizeof(at), "%s/%s", path, e->d_name);
        if (unlink(at) != 0)
            remove_tree(at);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

static enum dt_status make_folder(struct dt_loop *l, struct dt_error *err)
{
    const char *in = getenv("TMPDIR");

    in = in && *in ? in : "/tmp";
    if (snprintf(l->dir, sizeof(l->dir), "%s/disttrain-loop-XXXXXX", in) >= (int)sizeof(l->dir))
        return dt_error_set(err, DT_ERR_IO, "TMPDIR: the path is longer than %d bytes",
                            LOOP_DIR_MAX - 32);
    if (!mkdtemp(l->dir))
        return dt_error_set(err, DT_ERR_IO, "%s: cannot make a folder there: %s", in,
                            strerror(errno));
    return DT_OK;
}

/* What started us learns that a signal ended it. */
static void end_by_signal(void)
{
    if (dt_loop_signal() == 0)
        return;
    fflush(NULL);
    signal(dt_loop_signal(), SIG_DFL);
    raise(dt_loop_signal());
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_loop l = {.cli = cli,
                        .job = cli->args[0],
                        .runs = dt_cli_string(cli, "runs", NULL),
                        .anyway = dt_cli_flag(cli, "anyway"),
                        .orders = dt_cli_flag(cli, "orders"),
                        .strategies = dt_cli_flag(cli, "strategies"),
                        .foreign_max = -1};
    struct outcome o = {0};
    enum dt_status st;

    if (l.orders && l.strategies)
        return dt_error_set(err, DT_ERR_USAGE, "--orders or --strategies, not both");
    dt_cli_limit_spin(cli);
    DT_TRY(dt_cli_limits_check(true, err));
    DT_TRY(dt_cli_int(cli, "steps", 1, 10000, 8, &l.steps, err));
    DT_TRY(dt_cli_int(cli, "warm-up", 0, 10000, 20, &l.warm_up, err));
    DT_TRY(dt_cli_int(cli, "ranks", 1, 64, 4, &l.ranks_max, err));
    DT_TRY(dt_cli_double(cli, "seconds", 0, 3600, 1, &l.seconds, err));
    dt_loop_catch_signals(); /* before there is anything to remove */
    DT_TRY(make_folder(&l, err));
    st = look_at_job(&l, err);
    if (st == DT_OK)
        st = l.orders       ? dt_loop_run_orders(&l, err)
             : l.strategies ? dt_loop_run_in_turn(&l, err)
                            : dt_loop_run_layouts(&l, err);
    if (st == DT_OK)
        st = judge(&l, &o, err);
    if (st == DT_OK && cli->json)
        st = print_json(&l, &o, err);
    else if (st == DT_OK)
        print_table(&l, &o);
    if (st == DT_OK && l.strategies)
        st = dt_loop_check_strategies(&l, err);
    if (st == DT_OK && l.orders)
        st = dt_loop_check_orders(&l, err);
    remove_tree(l.dir);
    dt_samples_free(l.seen);
    dt_samples_free(l.last);
    for (int i = 0; i < l.n; i++)
        dt_free(l.layout[i].step_s);
    dt_free(l.layout);
    dt_free(l.kept);
    dt_loop_free_orders(&l);
    end_by_signal();
    return st;
}

const struct dt_cli_command dt_cmd_loop = {
    .name = "loop",
    .args = "JOB [KEY=VALUE...]",
    .summary = "profile, predict, train and compare many small layouts",
    .options = options,
    .min_args = 1,
    .max_args = -1,
    .run = command,
};
