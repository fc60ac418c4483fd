/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The parts of `disttrain loop`: layouts to try, what is predicted of them, what is measured. */
#ifndef DT_CLI_LOOP_H
#define DT_CLI_LOOP_H

#include "cli/session.h"
#include "fit/drift.h"
#include "comm/load.h"
#include "exec/train/setup.h"

#include <signal.h>

enum { LOOP_OVERRIDES_MAX = 16, LOOP_TEXT_MAX = 704, LOOP_DIR_MAX = 512, LOOP_PATH_MAX = 640 };

struct dt_loop_layout {
    char name[64]; /* "colocated 1x1 2x1 1x2": pp x dp of each module, and its cp or window */
    char over[LOOP_TEXT_MAX]; /* the override that states it: "plan={...}" */
    char also[64];            /* another one, or "" */
    int ranks, threads;       /* threads of a rank */
    struct dt_drift drift;    /* while it trained */
    double simulated_s[2];    /* with the profiles before and after */
    /* median steps; of orders and strategies mean ones, at one speed of the machine */
    double predicted_s, measured_s;
    /* [steps], of orders and strategies in rounds; in reference kernels, 0: does not count; owned */
    double *step_s;
    char plan[200]; /* of a strategy: what it came to */
};

/* Strategies whose best plans are compared. */
enum { LOOP_STRATEGIES = 3 };
struct dt_loop_no_plan { /* a strategy that has none */
    const char *strategy;
    char why[256];
};
/* Two strategies: times of the first over those of the second. */
struct dt_loop_pair {
    double predicted, measured;
    double uncertainty; /* of both, relative */
    bool agree;         /* one of them says that they are alike, or both that the same is faster */
};

/* Profiles are measured before the first layout, between groups of layouts and after the last. */
enum { LOOP_GROUPS = 2, LOOP_PASSES_MAX = LOOP_GROUPS + 1, LOOP_THREADS_MAX = 256 };

struct dt_loop {
    const struct dt_cli *cli;
    const char *job; /* path or name */
    int64_t steps, warm_up, ranks_max;
    double seconds; /* of each measurement of blocks */
    int cores;
    struct dt_load_cpus cpus; /* these; others have work of their own */
    int cpus_all;
    bool anyway;        /* however busy the machine is */
    bool orders;        /* of samples instead of layouts */
    bool strategies;    /* instead of layouts */
    int round;          /* of orders and strategies, the one that is measured */
    double foreign_max; /* over all measurements that count */
    int64_t steps_kept; /* of orders and strategies, how many */
    bool *kept;         /* of these: [steps] that all of them have; owned */
    struct dt_loop_no_plan no_plan[LOOP_STRATEGIES];
    int n_no_plan;
    int again;                                                      /* measurements that did not */
    int passes;                                                     /* of profiles, done so far */
    struct dt_drift profile[LOOP_PASSES_MAX][LOOP_THREADS_MAX + 1]; /* [pass][threads] */
    double batch_s;          /* of a core, to make one global batch */
    bool card;               /* training runs on one: no speed is known, and all steps count */
    bool fp32;               /* what training computes in */
    char dir[LOOP_DIR_MAX];  /* temporary folder */
    struct dt_samples *seen; /* sizes of what the measured steps train on */
    struct dt_samples *last; /* of the last of these steps */
    const char *runs;        /* the file that keeps its runs, predicted and measured, or NULL */
    struct dt_loop_layout *layout;
    int n;
    size_t cap;
};

/* Layouts of up to ranks_max ranks that the job's batch allows (loop_layouts.c). */
enum dt_status dt_loop_layouts(struct dt_loop *l, const struct dt_job *job, struct dt_error *err);
/* Instead: the job's own plan with each way of reordering samples, without first and both last, and behind these with
 * Entrain's assignment, if it goes with the plan. */
enum { LOOP_ORDERS = 4 };
enum dt_status dt_loop_orders(struct dt_loop *l, const struct dt_model *m,
                              const struct dt_plan *plan, struct dt_error *err);

/* Instead: places for the best plan of each strategy, on as many ranks as there are cores; the plans themselves, once there
 * is a profile; the result of each pair (loop_strategies.c). */
enum dt_status dt_loop_strategies(struct dt_loop *l, struct dt_error *err);
enum dt_status dt_loop_plan_strategies(struct dt_loop *l, struct dt_error *err);
void dt_loop_print_strategies(const struct dt_loop *l);
void dt_loop_json_strategies(const struct dt_loop *l, struct dt_json *j);
/* DT_ERR_TOLERANCE: two strategies are measured the other way round. */
enum dt_status dt_loop_check_strategies(const struct dt_loop *l, struct dt_error *err);

/* Measures all that there is and predicts it (loop_turns.c). */
enum dt_status dt_loop_run_layouts(struct dt_loop *l, struct dt_error *err);
enum dt_status dt_loop_run_in_turn(struct dt_loop *l, struct dt_error *err);
/* Are two times of such a ratio alike? */
bool dt_loop_tie(double ratio, double uncertainty);
/* Of orders and strategies, both in kept steps. */
void dt_loop_compare(const struct dt_loop *l, int a, int b, struct dt_loop_pair *out);
/* How many times as fast order k is as the first one. */
double dt_loop_gain_predicted(const struct dt_loop *l, int k);
double dt_loop_gain_measured(const struct dt_loop *l, int k);

/* Keeps to the cores that others leave alone (loop_cores.c). */
enum dt_status dt_loop_settle(struct dt_loop *l, struct dt_error *err);
/* One measurement, which says its reference and how steady it was; taken again when it does not count, and DT_ERR_BUSY when
 * it stays so. */
typedef enum dt_status dt_loop_fn(struct dt_loop *l, void *arg, struct dt_error *err,
                                  struct dt_drift *out);
enum dt_status dt_loop_watched(struct dt_loop *l, const char *what, dt_loop_fn *fn, void *arg,
                               struct dt_error *err, struct dt_drift *out);

/* "FOLDER/profile-P-N.db": blocks timed with N threads while all cores are busy (loop_run.c). */
enum dt_status dt_loop_profile(struct dt_loop *l, int threads, struct dt_error *err,
                               struct dt_drift *out);
void dt_loop_profile_path(const struct dt_loop *l, int pass, int threads, char *buf, size_t size);
/* Trains some steps with the layout. */
enum dt_status dt_loop_measure(struct dt_loop *l, struct dt_loop_layout *x, struct dt_error *err,
                               struct dt_drift *out);
/* A session of the job on as many ranks of this machine, with the layout's overrides and the profile of this pass; these
 * samples stay the caller's if it ends with dt_loop_close(). */
enum dt_status dt_loop_open(const struct dt_loop *l, const struct dt_loop_layout *x,
                            const char *strategy, int gpus, int pass, struct dt_samples *samples,
                            int n, struct dt_error *err, struct dt_session *s);
void dt_loop_close(struct dt_session *s);
/* Simulates the steps that count with the profile of this pass; the median one, of orders and strategies the mean. */
enum dt_status dt_loop_predict(struct dt_loop *l, const struct dt_loop_layout *x, int pass,
                               struct dt_error *err, double *out_s);
/* SIGINT, SIGTERM and SIGHUP end the child that runs and are remembered; 0 = none came. */
void dt_loop_catch_signals(void);
int dt_loop_signal(void);

#endif
