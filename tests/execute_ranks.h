/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What the files of test_execute_ranks share. */
#ifndef DT_TESTS_EXECUTE_RANKS_H
#define DT_TESTS_EXECUTE_RANKS_H

#include "exec_fixture.h"
#include "comm/transport.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>

enum { RANKS_MAX = 16, STEPS_MAX = 20, MODULES = 3 };

struct ranks_case {
    const char *name, *layout;
    struct ef_layout l[MODULES];
    int tp[MODULES];
    int cp;    /* of the LLM */
    bool ring; /* its keys and values go round a ring */
    int ep;    /* the same */
    int microbatch;
    bool colocated;
    int with[MODULES]; /* 1 + the module on whose GPUs this one lies */
    int ranks;         /* 0 = one per GPU */
    int batch;         /* samples; 0 = 12 */
    int window;        /* of the encoder; 0 = it takes whole samples */
    int drawn;         /* the same of the generator: 0 or 1 */
    enum dt_pipe_schedule schedule;
    enum dt_block_recompute recompute[MODULES];
    int zero[MODULES], zero_group[MODULES];
    char frozen[MODULES + 1]; /* 't' trained, 'f' frozen */
    enum dt_plan_offload offload[MODULES];
    bool apart; /* no overlap with compute */
    int chunks; /* of collectives of tensor parallelism and their products */
    bool reorder;
    bool entrain;             /* assignment entrain */
    bool bubbles;             /* with costs, by which guests' work moves into bubbles */
    char phases[MODULES + 1]; /* 'p': in phases */
    int ahead;                /* warmup eager: microbatches that every stage holds beyond 1F1B's */
    enum ef_data data;
    double dropout;
    bool bf16;
    const char *model;
    bool full, mpi; /* only with DT_CHECK_FULL; over MPI without it, too */
};
/* execute_layouts.c: rows of the table, and behind them the pairs of encoder and LLM in every way. */
int n_rows(void);
int n_layouts(void);
/* With DT_CHECK_FULL suites look at all layouts, else at every other one of those that are not `full`: some at the even ones,
 * some at the odd ones, so that each is looked at. */
enum { EVEN, ODD };
bool all_of_them(void);
bool is_looked_at(const struct ranks_case *c, int i, int half);
void read_layout(int i, struct ranks_case *c);

struct world {
    const struct ranks_case *c;
    int steps, ranks;
    int way;                  /* of running the case, where there are several */
    struct exec_fixture *one; /* what it is compared with; owns the layout of `grads` */
    float *grads[MODULES];    /* of step 1, as one stage holds them */
    pthread_mutex_t lock;
    /* Each rank's device, where the life of a rank asks for it; NULL: as the environment says. */
    enum dt_status (*open)(const struct dt_device_options *opt, struct dt_error *err,
                           struct dt_device **out);
    bool own_devices;                     /* whatever the environment asks for */
    struct dt_device *device;             /* of all ranks; NULL: each has its own */
    pthread_barrier_t together;           /* of those who share it */
    struct dt_transport *data[RANKS_MAX]; /* between devices; NULL: staged over messages */
};
struct curve {
    struct dt_exec_result r[STEPS_MAX];
};
struct rank {
    struct world *w;
    struct dt_transport *t;
    struct curve curve;
    uint64_t sends_bytes, gathers_bytes; /* of the program */
    pthread_t thread;
};

/* execute_ranks_life.c */
void open_case(struct exec_fixture *f, const struct ranks_case *c);
/* Before a test, which has no threads yet: what the environment asks for. */
void use_environment(void);
/* The NCCL of tests, which the process uses (nf_use), carries what the rank's device, a fake one, exchanges with
 * others. */
void use_nccl(struct exec_fixture *f, const struct rank *r);
/* The case of a rank, and its transports.  With DT_TEST_NCCL=1 (and DISTTRAIN_FAKE_DEVICE=1) over NCCL. */
void open_rank(struct exec_fixture *f, struct rank *r);
/* All steps; gradients of the first go to the world; then check_whole. */
void walk(struct rank *r, struct exec_fixture *f);
void *run_rank(void *rank);
/* One process, everything on one device; its gradients of step 1. */
void run_alone(struct exec_fixture *f, const struct ranks_case *c, int steps, struct curve *out,
               float *grads[MODULES]);
/* Ranks that are threads.  With DT_TEST_ON_QUEUE=1 and the fake device, all of them share one device, in whose
 * memory they exchange what they do (unless the world says otherwise). */
void run_ranks(struct world *w, struct rank *ranks, void *(*life)(void *));
int ranks_of(const struct ranks_case *c);
/* One device for all ranks of the world, that has gates, and what they exchange put on its queues. */
void share_device(struct world *w);
void unshare_device(struct world *w);

/* execute_ranks_bf16.c, execute_ranks_comm.c, execute_ranks_nonfinite.c, execute_ranks_offload.c,
 * execute_ranks_whole.c */
void add_bf16_tests(TCase *t);
void add_ring_tests(TCase *t);
void add_nonfinite_tests(TCase *t);
void add_offload_tests(TCase *t);
void add_comm_tests(TCase *t);
void add_whole_tests(TCase *t);

/* The parameter of that name, no copy of a shared table; NULL. */
static inline const struct dt_param *param_named(struct dt_stage *s, const char *name)
{
    int n;
    const struct dt_param *p = dt_stage_params(s, &n);

    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0 && !p[i].tied)
            return &p[i];
    return NULL;
}

/* What the ranks collect of a model is what one process has; what is written in one place comes to
 * where it belongs.  Collective; the executor's parameters are other ones afterwards. */
void check_whole(const struct world *w, struct exec_fixture *f);

#endif
