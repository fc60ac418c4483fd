/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain whatif: a job at many points, and the least cluster that meets a target.
 *
 *   whatif_setup.c    what is asked for, what the job is, what is evaluated
 *   whatif_run.c      points -> results, those of the runs file taken from there, each new one kept
 *   whatif_engine.c   ... here, or by processes of this machine        whatif_ranks.c  ... by MPI ranks
 *   whatif_deal.c     which of them evaluates which
 *   whatif_target.c   days, money, energy of a result; the search for the least cluster; the front
 *   whatif_idle.c     keys that change nothing
 *   whatif_print.c    table, CSV, JSON, whatif_chart.c pictures */
#ifndef DT_CLI_WHATIF_H
#define DT_CLI_WHATIF_H

#include "cli/point.h"
#include "cli/ranks.h"
#include "core/job/job_axes.h"
#include "report/sweep.h"

/* ---- engines ---- */

enum { DT_WHATIF_TASK_MAX = 8192 };
struct dt_whatif_task { /* KEY=VALUE after KEY=VALUE, each ended by a zero byte */
    const char *text;
    int len;
};
/* A result that came; a failure ends the run. */
typedef enum dt_status dt_whatif_result_fn(void *ctx, int task, const struct dt_sweep_result *r,
                                           struct dt_error *err);

struct dt_whatif_engine {
    int workers;
    /* All tasks, results in any order. */
    enum dt_status (*run)(struct dt_whatif_engine *e, const struct dt_whatif_task *tasks, int n,
                          dt_whatif_result_fn *fn, void *ctx, struct dt_error *err);
    void (*close)(struct dt_whatif_engine *e);
};
/* What workers evaluate tasks on: a job and the KEY=VALUEs that all points have. */
struct dt_whatif_base {
    struct dt_points *points;
    const char **overrides;
    int n_overrides;
    bool failures; /* dt_point_request's */
};
/* One task; a point that is refused is a result, too. */
enum dt_status dt_whatif_evaluate(const struct dt_whatif_base *b, const struct dt_whatif_task *t,
                                  struct dt_error *err, struct dt_sweep_result *out);
/* Where a result is as large as a message or a pipe wants it. */
struct dt_whatif_answer {
    int32_t task, status; /* enum dt_status; the rest of one that is not DT_OK is its error */
    struct dt_sweep_result r;
    char message[1024];
};
void dt_whatif_answer(const struct dt_whatif_base *b, int task, const char *text, int len,
                      struct dt_whatif_answer *out);

/* One after the other in this process, or by `workers` processes that are made now. */
enum dt_status dt_whatif_engine_here(const struct dt_whatif_base *b, struct dt_error *err,
                                     struct dt_whatif_engine **out);
enum dt_status dt_whatif_engine_processes(const struct dt_whatif_base *b, int workers,
                                          struct dt_error *err, struct dt_whatif_engine **out);
/* On rank 0: by all ranks, this one included where they are few.  On the others: works until rank 0 is done. */
enum dt_status dt_whatif_engine_ranks(const struct dt_whatif_base *b, struct dt_transport *t,
                                      struct dt_error *err, struct dt_whatif_engine **out);
enum dt_status dt_whatif_rank_works(const struct dt_whatif_base *b, struct dt_transport *t,
                                    struct dt_error *err);
/* Of n tasks, dealt out to workers from 0 on: the worker's next one, or -1. */
struct dt_whatif_deal;
enum dt_status dt_whatif_deal_new(int n, int workers, struct dt_error *err,
                                  struct dt_whatif_deal **out);
void dt_whatif_deal_free(struct dt_whatif_deal *d);
int dt_whatif_deal_next(struct dt_whatif_deal *d, int worker);
/* SIGINT, SIGTERM: engines end with DT_ERR_IO soon. */
void dt_whatif_watch_signals(void);
int dt_whatif_signal(void); /* that came; 0 = none */

/* ---- points ---- */

struct dt_whatif_point {
    const char **value; /* [n_axes] */
    const char *effort; /* of its search, where whatif chooses it; NULL = the job's */
    char *set;          /* its KEY=VALUEs as a JSON array, which it is known by */
    bool done, kept;    /* has a result; which comes from the runs file */
    struct dt_sweep_result r;
    /* derived, dt_whatif_derive(): NaN = not known */
    double days, days_low, days_high, days_sure; /* _sure: at the asked confidence */
    double money, money_low, money_high, money_sure;
    double tokens_sure; /* trained within the days or the budget, where no tokens are asked for */
    double mwh, co2_t;
    bool meets, front, answer;
    int again;        /* the same point, searched for longer; 0 = none */
    bool passed_over; /* of such two, that with the slower plan */
    int group;        /* points of a group differ in their number of GPUs alone */
    int order;        /* of a search: its nodes */
    char label[64];   /* in a chart */
};

struct dt_whatif_goal { /* 0 = not asked for */
    double tokens, days, budget;
    double confidence; /* of the interval whose upper end counts, in (0,1) */
    bool any;          /* one of the three */
};

struct dt_whatif_job { /* what is known before any point is evaluated */
    char *json;        /* the job with the KEY=VALUEs of all points */
    uint64_t
        digest; /* of what it was read from: model, samples, profile, cluster, plan, rates of cores */
    char name[256];
    struct dt_cluster cluster;
    bool effort_stated, cluster_nodes, searches;
};

struct dt_whatif {
    const struct dt_cli *cli;
    bool launched;    /* by an MPI launcher */
    int jobs;         /* processes; 0 = as many as there are cores */
    const char *path; /* of the job, as the user says it */
    struct dt_whatif_goal goal;
    struct dt_job_axis axis[DT_JOB_AXES_MAX + 1];
    int n_axes, size_axis; /* the axis that says how large the cluster is; -1 = none */
    bool scan;             /* size_axis is searched for the least that will do, not given */
    int64_t sample;        /* points of a Latin hypercube; 0 = a grid */
    uint64_t seed;
    bool keep_plan;
    bool quick; /* effort is whatif's to choose */

    const char *overrides[DT_CLI_MAX_ARGS + 8]; /* of all points */
    int n_overrides;
    struct dt_points *points;
    struct dt_whatif_job job;

    struct dt_whatif_engine *engine;
    struct dt_sweep *sweep; /* NULL = nothing is kept */
    int64_t sweep_id;
    struct dt_sweep_point *kept;
    int n_kept;
    struct dt_arena arena; /* of values and of what is said */
    struct dt_whatif_point *point;
    int n;
    size_t cap;
    int evaluated, from_file, groups;
    char searched[512]; /* what was, in a sentence; "" = all points */
};

/* whatif_setup.c */
enum dt_status dt_whatif_setup(struct dt_whatif *w, const struct dt_cli *cli, struct dt_error *err);
/* The job's text, its facts and, with --keep-plan, its plan. */
enum dt_status dt_whatif_open_job(struct dt_whatif *w, struct dt_error *err);
enum dt_status dt_whatif_open_sweep(struct dt_whatif *w, struct dt_error *err);
void dt_whatif_close(struct dt_whatif *w);

/* whatif_run.c: adds points (values are borrowed for as long as w), evaluates those without a result. */
enum dt_status dt_whatif_add(struct dt_whatif *w, const char *const *value, const char *effort,
                             struct dt_error *err);
enum dt_status dt_whatif_evaluate_all(struct dt_whatif *w, struct dt_error *err);

/* whatif_target.c */
enum dt_status dt_whatif_points(struct dt_whatif *w, struct dt_error *err);
void dt_whatif_derive(const struct dt_whatif *w, struct dt_whatif_point *p);

/* whatif_idle.c: of a grid, whether every two points that differ in this axis alone have equal results: a key that
 * decides whether a plan fits is not idle. */
bool dt_whatif_idle(const struct dt_whatif *w, int axis);

/* whatif_print.c */
void dt_whatif_sort(struct dt_whatif *w); /* points of a search by group and size */
enum dt_status dt_whatif_print(struct dt_whatif *w, struct dt_error *err);
enum dt_status dt_whatif_csv(const struct dt_whatif *w, struct dt_error *err, char **out);
/* whatif_chart.c */
enum dt_status dt_whatif_svg(const struct dt_whatif *w, struct dt_error *err, char **out);

#endif
