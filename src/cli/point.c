/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/point.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "cli/point_known.h"
#include "report/sanity.h"

#include <string.h>

enum { COSTS = 4 }; /* cost models kept; each has tables of up to some 25 MB */

/* A cost model and what it rests on, for all jobs that ask for the same. */
struct shared_cost {
    char *model_text; /* the job's `model` as JSON; NULL = an empty place */
    struct dt_model *model;
    struct dt_cluster cluster;
    struct dt_cost_options opt;
    const struct dt_profile *profile; /* of the inputs, which keep it */
    struct dt_cost *cost;
    uint64_t number, used; /* number: no other cost model has had it */
};

struct dt_points {
    char path[4096], plan_file[4096]; /* "" = no plan */
    const char *name;                 /* of the job, for messages */
    char *text, *plan_text;
    size_t len;
    struct dt_job_inputs *inputs;
    struct shared_cost cost[COSTS];
    uint64_t clock, costs;
    struct dt_point_known *known;
    struct dt_orch_timed *timed;
};

/* ---- what points share ---- */

static void drop_cost(struct shared_cost *c)
{
    dt_cost_free(c->cost);
    dt_model_free(c->model);
    dt_free(c->model_text);
    memset(c, 0, sizeof *c);
}

/* Of the cluster only what times depend on: how many nodes there are matters to plans alone. */
static void timed_part(const struct dt_cluster *c, struct dt_cluster *out)
{
    *out = *c;
    out->nodes = 1;
    memset(out->name, 0, sizeof out->name);
    out->mem_bytes = out->mem_reserve_bytes = out->mtbf_gpu_hours = 0;
    out->price_per_gpu_hour = out->watts_per_gpu = out->pue = out->grams_co2_per_kwh = 0;
}

static bool same_times(const struct dt_cluster *a, const struct dt_cluster *b)
{
    struct dt_cluster x, y;

    timed_part(a, &x);
    timed_part(b, &y);
    return memcmp(&x, &y, sizeof x) == 0;
}

static struct shared_cost *find_cost(struct dt_points *p, const struct dt_job *j, const char *model)
{
    for (int i = 0; i < COSTS; i++) {
        struct shared_cost *c = &p->cost[i];

        if (c->model_text && c->profile == j->profile && strcmp(c->model_text, model) == 0 &&
            same_times(&c->cluster, &j->cluster) &&
            memcmp(&c->opt, &j->cost_opt, sizeof c->opt) == 0)
            return c;
    }
    return NULL;
}

static struct shared_cost *oldest_cost(struct dt_points *p)
{
    struct shared_cost *c = &p->cost[0];

    for (int i = 1; i < COSTS; i++)
        if (p->cost[i].used < c->used)
            c = &p->cost[i];
    return c;
}

/* Takes the text; the model remains the job's until close_session(). */
static enum dt_status make_cost(struct dt_points *p, const struct dt_job *j, char *text,
                                struct dt_error *err, struct shared_cost **out)
{
    struct shared_cost *c = oldest_cost(p);
    enum dt_status st;

    drop_cost(c);
    c->cluster = j->cluster;
    c->opt = j->cost_opt;
    c->profile = j->profile;
    c->model_text = text;
    st = dt_cost_new(j->model, &c->cluster, c->profile, &c->opt, err, &c->cost);
    if (st != DT_OK) {
        drop_cost(c);
        return st;
    }
    c->number = ++p->costs;
    *out = c;
    return DT_OK;
}

/* ---- sessions on it ---- */

struct open_point {
    struct dt_session s;
    struct shared_cost *cost;
};

static enum dt_status open_cost(struct dt_points *p, struct open_point *o, struct dt_error *err)
{
    char *text;

    DT_TRY(dt_node_to_json(dt_map_get(dt_doc_root(o->s.job->doc), "model"), err, &text));
    o->cost = find_cost(p, o->s.job, text);
    if (o->cost)
        dt_free(text);
    else
        DT_TRY(make_cost(p, o->s.job, text, err, &o->cost));
    o->cost->used = ++p->clock;
    o->s.cost = o->cost->cost;
    o->s.timed = p->timed;
    dt_orch_timed_on(p->timed, o->s.cost, o->cost->number, o->s.job->samples,
                     dt_job_inputs_number(p->inputs, o->s.job->samples));
    return dt_session_survey(o->s.job, o->s.cost, err);
}

static void close_session(struct open_point *o)
{
    if (o->cost && !o->cost->model) { /* the cost model was made on this job's */
        o->cost->model = o->s.job->model;
        o->s.job->model = NULL;
    }
    if (o->cost && dt_cost_status(o->s.cost, NULL) != DT_OK)
        drop_cost(o->cost); /* it lacks a table that memory did not suffice for */
    o->s.cost = NULL;
    o->s.timed = NULL;
    dt_session_close(&o->s);
}

static enum dt_status open_session(struct dt_points *p, const char *const *overrides, int n,
                                   struct dt_error *err, struct open_point *o)
{
    struct dt_job_source src = {.name = p->name,
                                .text = p->text,
                                .len = p->len,
                                .plan_file = p->plan_file[0] ? p->plan_file : NULL,
                                .plan_text = p->plan_text,
                                .overrides = overrides,
                                .n_overrides = n,
                                .inputs = p->inputs};

    memset(o, 0, sizeof *o);
    DT_TRY(dt_job_read_source(&src, err, &o->s.job));
    enum dt_status st = dt_job_check_predicted(o->s.job, err);
    if (st == DT_OK)
        st = open_cost(p, o, err);
    if (st != DT_OK)
        close_session(o);
    return st;
}

/* Nothing but what they share. */
static enum dt_status new_points(struct dt_error *err, struct dt_points **out)
{
    struct dt_points *p = dt_calloc(1, sizeof *p);
    enum dt_status st;

    if (!p)
        return dt_error_nomem(err, "points");
    st = dt_job_inputs_new(err, &p->inputs);
    if (st == DT_OK)
        st = dt_point_known_new(err, &p->known);
    if (st == DT_OK)
        st = dt_orch_timed_new(err, &p->timed);
    if (st == DT_OK)
        *out = p;
    else
        dt_points_close(p);
    return st;
}

enum dt_status dt_points_open(const char *job, const char *plan_file, struct dt_error *err,
                              struct dt_points **out)
{
    enum { PLAN_MAX = 64 << 20 };
    struct dt_points *p;
    enum dt_status st = DT_OK;
    size_t len;

    DT_TRY(new_points(err, &p));
    if (strcmp(job, "-") == 0)
        strcpy(p->path, "-");
    else
        st = dt_file_find("jobs", job, ".yaml", err, p->path, sizeof p->path);
    if (st == DT_OK)
        st = dt_job_read_text(p->path, err, &p->name, &p->text, &p->len);
    if (st == DT_OK && plan_file) {
        snprintf(p->plan_file, sizeof p->plan_file, "%s", plan_file);
        st = dt_file_read(plan_file, PLAN_MAX, err, &p->plan_text, &len);
    }
    if (st == DT_OK)
        *out = p;
    else
        dt_points_close(p);
    return st;
}

enum dt_status dt_points_open_text(const char *name, const char *text, struct dt_error *err,
                                   struct dt_points **out)
{
    struct dt_points *p;

    DT_TRY(new_points(err, &p));
    snprintf(p->path, sizeof p->path, "%s", name);
    p->name = p->path;
    p->len = strlen(text);
    p->text = dt_strdup(text);
    if (!p->text) {
        dt_points_close(p);
        return dt_error_nomem(err, "points");
    }
    *out = p;
    return DT_OK;
}

void dt_points_close(struct dt_points *p)
{
    if (!p)
        return;
    for (int i = 0; i < COSTS; i++)
        drop_cost(&p->cost[i]);
    dt_job_inputs_free(p->inputs);
    dt_point_known_free(p->known);
    dt_orch_timed_free(p->timed);
    dt_free(p->text);
    dt_free(p->plan_text);
    dt_free(p);
}

enum dt_status dt_points_check(struct dt_points *p, const char *const *overrides, int n,
                               dt_point_visit_fn *visit, void *ctx, struct dt_error *err)
{
    struct open_point o;
    enum dt_status st = DT_OK;

    DT_TRY(open_session(p, overrides, n, err, &o));
    if (visit)
        st = visit(ctx, &o.s, NULL, err);
    close_session(&o);
    return st;
}

enum dt_status dt_points_keep_plan(struct dt_points *p, const struct dt_plan *plan,
                                   struct dt_error *err)
{
    char *text;

    DT_TRY(dt_plan_to_json(plan, err, &text));
    dt_free(p->plan_text);
    p->plan_text = text;
    snprintf(p->plan_file, sizeof p->plan_file, "the plan that is kept");
    return DT_OK;
}

uint64_t dt_points_plan_digest(const struct dt_points *p)
{
    return dt_hash_text(DT_HASH_START, p->plan_text ? p->plan_text : "");
}

/* ---- evaluation ---- */

static void fill(const struct dt_session *s, const struct dt_report *rep, double goodput,
                 struct dt_point *out)
{
    const struct dt_plan *plan = &s->search.plans[0];

    out->feasible = true;
    out->gpus = rep->gpus;
    out->gpus_used = rep->gpus_used;
    out->iteration_s = rep->iteration_s;
    out->iteration_s_p10 = rep->iteration_s_p10;
    out->iteration_s_p90 = rep->iteration_s_p90;
    out->iteration_s_mean = rep->iteration_s_mean;
    out->iteration_s_mean_p10 = rep->iteration_s_mean_p10;
    out->iteration_s_mean_p90 = rep->iteration_s_mean_p90;
    out->mfu = rep->mfu;
    out->mfu_cluster = rep->mfu_cluster;
    out->tokens_per_s = rep->tokens_per_s;
    out->samples_per_s = rep->samples_per_s;
    out->bubble_fraction = rep->bubble_fraction;
    out->exposed_comm_s = rep->exposed_comm_s;
    out->goodput = goodput;
    out->mem_bytes_max = rep->memory.fullest;
    out->tokens = rep->tokens_mean > 0 ? rep->tokens_mean /* else there is no LLM */
                                       : (double)plan->policy.global_batch * plan->policy.seq_len;
    out->cluster = s->job->cluster;
    out->failures = s->job->sim.failures;
    out->searched = s->job->strategy != DT_STRATEGY_MANUAL;
    out->effort = s->job->search.effort;
    out->plan = *plan;
    dt_cli_plan_text(plan, out->plan_text, sizeof out->plan_text);
    out->search = s->search.stats;
}

/* What is wanted beyond figures. */
static enum dt_status show(struct dt_session *s, const struct dt_point_request *q,
                           const struct dt_sim_result *r, uint64_t begun_ns, struct dt_error *err,
                           struct dt_point *out, bool *theirs)
{
    enum dt_status st = DT_OK;

    if (q->report)
        st = dt_session_report_json(s, r, false, (double)(dt_clock_ns() - begun_ns) * 1e-9, err,
                                    &out->report);
    if (st == DT_OK && q->visit) {
        st = q->visit(q->ctx, s, r, err);
        *theirs = st != DT_OK;
    }
    return st;
}

/* A plan fits the first batch.  Nobody wants to be told of it if it does not fit a later one, but who looks at that job's result,
 * where it is said. */
static enum dt_status fits(const struct dt_session *s, const struct dt_point_request *q,
                           const struct dt_report *r, struct dt_error *err)
{
    return q->visit ? DT_OK : dt_report_check_memory(r, &s->job->cluster, err);
}

static enum dt_status simulate(struct dt_points *p, struct open_point *o,
                               const struct dt_point_request *q, struct dt_error *err,
                               struct dt_point *out, bool *theirs)
{
    struct dt_session *s = &o->s;
    struct dt_report report;
    struct dt_sim_result r;
    double goodput;
    uint64_t t0;

    DT_TRY(dt_session_plan(s, err));
    t0 = dt_clock_ns();
    const struct dt_point_sim sim = {
        .job = s->job,
        .plan = &s->search.plans[0],
        .samples = dt_job_inputs_number(p->inputs, s->job->samples),
        .cost = o->cost->number,
    };
    if (!q->report && !q->visit && dt_point_known_find(p->known, &sim, &report, &goodput)) {
        DT_TRY(fits(s, q, &report, err));
        fill(s, &report, goodput, out);
        return DT_OK;
    }
    DT_TRY(dt_sim_run(s->job, sim.plan, s->cost, NULL, NULL, err, &r));
    dt_point_known_add(p->known, &sim, &r.report, r.goodput);
    enum dt_status st = fits(s, q, &r.report, err);
    if (st == DT_OK) {
        fill(s, &r.report, r.goodput, out);
        st = show(s, q, &r, t0, err, out, theirs);
    }
    dt_sim_result_free(&r);
    return st;
}

/* As simulate.failures.enabled=true would have it. */
static void want_failures(struct dt_job *j)
{
    struct dt_node map = dt_map_get(dt_map_get(dt_doc_root(j->doc), "simulate"), "failures");

    if (j->cluster.mtbf_gpu_hours > 0 && !dt_node_present(dt_map_get(map, "enabled")))
        j->sim.failures = true;
}

enum dt_status dt_point_eval(struct dt_points *p, const struct dt_point_request *q,
                             struct dt_error *err, struct dt_point *out)
{
    struct dt_error why = {0};
    struct dt_point point = {0};
    struct open_point o;
    bool theirs = false; /* it was the visitor who failed */
    enum dt_status st = open_session(p, q->overrides, q->n_overrides, &why, &o);

    if (st == DT_OK) {
        if (q->failures)
            want_failures(o.s.job);
        st = simulate(p, &o, q, &why, &point, &theirs);
        close_session(&o);
    }
    if (st != DT_OK)
        dt_point_free(&point);
    if (theirs || st == DT_ERR_NOMEM) {
        if (err)
            *err = why;
        return st;
    }
    point.error = why;
    *out = point;
    return DT_OK;
}

void dt_point_free(struct dt_point *p)
{
    dt_free(p->report);
    memset(p, 0, sizeof *p);
}
