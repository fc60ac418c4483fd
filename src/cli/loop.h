/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The parts of `disttrain loop`: layouts to try, what is predicted of them, what is measured. */
#ifndef DT_CLI_LOOP_H
#define DT_CLI_LOOP_H

#include "cli/rows.h"
#include "cli/session.h"
#include "fit/drift.h"
#include "fit/gain.h"
#include "comm/load.h"
#include "exec/train/setup.h"
#include "exec/train/turns.h"

#include <signal.h>

enum { LOOP_OVERRIDES_MAX = 16, LOOP_TEXT_MAX = 704, LOOP_DIR_MAX = 512, LOOP_PATH_MAX = 640 };

/* Profiles are measured before the first layout, between groups of layouts and after the last; with orders before and after
 * each training, of which there are two to four, and further ones where predictions differ. */
enum {
    LOOP_GROUPS = 2,
    LOOP_TRAININGS_MIN = 2,
    LOOP_TRAININGS_MAX = 4,
    LOOP_PASSES = LOOP_GROUPS + 1, /* at least */
    LOOP_PASSES_MAX = 8,
    LOOP_THREADS_MAX = 256
};

struct dt_loop_layout {
    char name[64]; /* "colocated 1x1 2x1 1x2": pp x dp of each module, and its cp or window */
    char over[LOOP_TEXT_MAX];            /* the override that states it: "plan={...}" */
    char also[64];                       /* another one, or "" */
    int ranks, threads;                  /* threads of a rank */
    struct dt_drift drift;               /* while it trained */
    double simulated_s[LOOP_PASSES_MAX]; /* profiles before and after; of orders all of them */
    /* median steps; of orders and strategies mean ones, at one speed of the machine */
    double predicted_s, measured_s;
    /* [steps], of strategies in rounds; in reference kernels, 0: does not count; owned */
    double *step_s;
    char plan[200];                                   /* of a strategy: what it came to */
    struct dt_fit_gain gain_predicted, gain_measured; /* of an order, over the first one */
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

/* How much slower a rank's cores may be than another's where orders are compared: predictions take all for alike, and a rank that
 * is slower by a twentieth shifts a gain by a few points. */
#define LOOP_RANKS_APART_MAX 0.05
/* What orders of samples took, each step in every one of them in turn: in a training LOOP_ROUNDS rounds. */
enum { LOOP_ROUNDS = 4 };
struct dt_loop_turns {
    struct dt_train_turns how;
    int trainings;                      /* done */
    double *time_s, *reference_s;       /* [rounds so far][steps][orders]; owned */
    double *rank_s;                     /* [steps so far][ranks] of reference kernels; owned */
    int64_t steady[LOOP_TRAININGS_MAX]; /* steps of it in which the machine kept its speed */
    double apart; /* how much longer the kernel takes on the slowest rank than on the fastest */
};

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
    int round;          /* of strategies, the one that is measured */
    double foreign_max; /* over all measurements that count */
    int64_t steps_kept; /* of strategies, how many */
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
    struct dt_loop_turns turns;
    struct dt_loop_layout *layout;
    int n;
    size_t cap;
};

/* Layouts of up to ranks_max ranks that the job's batch allows (loop_layouts.c). */
enum dt_status dt_loop_layouts(struct dt_loop *l, const struct dt_job *job, struct dt_error *err);
int dt_loop_threads_each(const struct dt_loop *l, int ranks);

/* Instead: the job's own plan with each way of reordering samples, none first, and Entrain's assignment, if it goes with the plan.
 * They are measured until their gains are known (loop_orders.c). */
enum dt_status dt_loop_orders(struct dt_loop *l, const struct dt_model *m,
                              const struct dt_plan *plan, struct dt_error *err);
enum dt_status dt_loop_run_orders(struct dt_loop *l, struct dt_error *err);
void dt_loop_print_orders(const struct dt_loop *l);
void dt_loop_row_order(struct dt_cli_rows *r, const struct dt_loop *l, int k);
void dt_loop_json_orders(const struct dt_loop *l, struct dt_json *j);
/* DT_ERR_TOLERANCE: a gain is predicted otherwise than it is measured. */
enum dt_status dt_loop_check_orders(const struct dt_loop *l, struct dt_error *err);
void dt_loop_free_orders(struct dt_loop *l);

/* Instead: places for the best plan of each strategy, on as many ranks as there are cores; the plans themselves, once there
 * is a profile; the result of each pair (loop_strategies.c). */
enum dt_status dt_loop_strategies(struct dt_loop *l, struct dt_error *err);
enum dt_status dt_loop_plan_strategies(struct dt_loop *l, struct dt_error *err);
void dt_loop_print_strategies(const struct dt_loop *l);
void dt_loop_json_strategies(const struct dt_loop *l, struct dt_json *j);
/* DT_ERR_TOLERANCE: two strategies are measured the other way round. */
enum dt_status dt_loop_check_strategies(const struct dt_loop *l, struct dt_error *err);

/* Measures all that there is and predicts it; blocks and messages only, for each number of threads (loop_turns.c). */
enum dt_status dt_loop_run_layouts(struct dt_loop *l, struct dt_error *err);
enum dt_status dt_loop_run_in_turn(struct dt_loop *l, struct dt_error *err);
enum dt_status dt_loop_profile_all(struct dt_loop *l, struct dt_error *err);
/* Are two times of such a ratio alike? */
bool dt_loop_tie(double ratio, double uncertainty);
/* Of strategies, both in kept steps. */
void dt_loop_compare(const struct dt_loop *l, int a, int b, struct dt_loop_pair *out);

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
/* Trains with all orders in turn; *text: its metrics.jsonl (dt_free). */
enum dt_status dt_loop_measure_turns(struct dt_loop *l, struct dt_error *err, char **text);
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
