/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Pipeline schedules.  A schedule is one file here, which fills a struct dt_pipe, and one row of DT_SCHEDULES; the
 * reader of jobs and plans, the memory model, the compiler and the search take all they know of it from there.
 *
 * A schedule sees one lane as numbers: models, plans and programs are built on top of it. */
#ifndef DT_CORE_PIPELINE_PIPELINE_H
#define DT_CORE_PIPELINE_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

/* X(ENUMERATOR, name in files, struct dt_pipe, one line for people); the order is that of `enum dt_pipe_schedule`. */
#define DT_SCHEDULES(X)                                                                            \
    X(1F1B, "1f1b", dt_pipe_1f1b, "one forward, one backward in turn after the warm-up")           \
    X(INTERLEAVED, "interleaved", dt_pipe_interleaved,                                             \
      "1f1b over several chunks of blocks per stage (vpp above 1)")                                \
    X(GPIPE, "gpipe", dt_pipe_gpipe, "all forwards, then all backwards")                           \
    X(ZB_H1, "zb-h1", dt_pipe_zb_h1, "1f1b with weight gradients put off into the gaps")

enum dt_pipe_schedule {
#define ENUMERATOR(id, name, pipe, help) DT_SCHED_##id,
    DT_SCHEDULES(ENUMERATOR)
#undef ENUMERATOR
    /* not a schedule */
    DT_SCHED_N
};
extern const char *const dt_pipe_schedule_names[DT_SCHED_N + 1]; /* ended by NULL */
extern const char *const dt_pipe_schedule_help[DT_SCHED_N + 1];

/* One lane: stage `stage` of `pp`, with chunks `vpp`, of a module that runs `n` microbatches. */
struct dt_pipe_lane {
    int pp, vpp, stage;
    int behind; /* microbatches under way in the modules behind it, at most */
    int64_t n;
    int before; /* stages in front of it that run a backward, on the longest path; for put_off alone */
};

/* Compute order of a lane: codes of forwards (0), backwards (1) and weight gradients apart from them (2). */
enum { DT_CODE_FORWARD, DT_CODE_BACKWARD, DT_CODE_WEIGHT };
#define DT_CODE(mb, chunk, kind) ((uint32_t)(mb) << 10 | (uint32_t)(chunk) << 2 | (kind))
#define DT_CODE_MB(code) ((code) >> 10)
#define DT_CODE_CHUNK(code) ((code) >> 2 & 0xff)
#define DT_CODE_KIND(code) ((code)&3)
enum { DT_MB_MAX = 1 << 22 };

struct dt_pipe {
    bool chunks; /* runs several chunks per stage: vpp may be above 1 */
    /* what a lane holds does not grow with n: where no fixed order goes with the graph, the list
     * schedule keeps that bound */
    bool bounded;
    /* vpp 1: forward k + in_flight waits for the whole backward k, which bounds the iteration */
    bool in_step;
    /* Forwards (of chunks) that the lane holds at most, its activations with them. */
    int64_t (*in_flight)(const struct dt_pipe_lane *l);
    /* Microbatches that a module takes in before the gradient of the first of them leaves its first stage, at most
     * over the run; asked of stage 0, and not where lanes are unbounded. */
    int (*depth)(const struct dt_pipe_lane *l);
    /* The order of a lane that may hold `in_flight`; chunks with !backward[chunk] have forwards only.  Returns how
     * many codes it wrote, at most 2 * n * vpp. */
    uint32_t (*order)(const struct dt_pipe_lane *l, int64_t in_flight, const bool *backward,
                      uint32_t *code);
    /* Splits the backward: the weight gradient of backward k of a lane follows backward k + put_off.  NULL: whole
     * backwards. */
    int (*put_off)(const struct dt_pipe_lane *l);
};
const struct dt_pipe *dt_pipe_of(enum dt_pipe_schedule schedule);
#define DECLARE(id, name, pipe, help) extern const struct dt_pipe pipe;
DT_SCHEDULES(DECLARE)
#undef DECLARE

/* Names of the schedules that run chunks, "interleaved or b", into buf; returns buf. */
const char *dt_pipe_chunked_names(char *buf, int size);

/* For the schedules: in_flight - 1 forwards ahead, then one forward and one backward in turn; forward_at(l, i) and
 * backward_at(l, i) are the codes of the i-th of each. */
uint32_t dt_pipe_in_turn(const struct dt_pipe_lane *l, int64_t in_flight, const bool *backward,
                         uint32_t (*forward_at)(const struct dt_pipe_lane *l, uint32_t i),
                         uint32_t (*backward_at)(const struct dt_pipe_lane *l, uint32_t i),
                         uint32_t *code);

#endif
