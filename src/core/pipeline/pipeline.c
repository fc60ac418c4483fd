/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The table of schedules, and the pattern that most of them share. */
#include "core/pipeline/pipeline.h"

#include <stdio.h>

#define NAME(id, name, pipe, help) name,
#define HELP(id, name, pipe, help) help,
#define PIPE(id, name, pipe, help) &pipe,
const char *const dt_pipe_schedule_names[DT_SCHED_N + 1] = {DT_SCHEDULES(NAME) NULL};
const char *const dt_pipe_schedule_help[DT_SCHED_N + 1] = {DT_SCHEDULES(HELP) NULL};
static const struct dt_pipe *const pipes[DT_SCHED_N] = {DT_SCHEDULES(PIPE)};

const struct dt_pipe *dt_pipe_of(enum dt_pipe_schedule schedule)
{
    return pipes[schedule];
}

const char *dt_pipe_chunked_names(char *buf, int size)
{
    int used = 0;

    buf[0] = '\0';
    for (int i = 0; i < DT_SCHED_N && used < size; i++)
        if (pipes[i]->chunks)
            used += snprintf(buf + used, (size_t)(size - used), "%s%s", used ? " or " : "",
                             dt_pipe_schedule_names[i]);
    return buf;
}

uint32_t dt_pipe_in_turn(const struct dt_pipe_lane *l, int64_t in_flight, const bool *backward,
                         uint32_t (*forward_at)(const struct dt_pipe_lane *l, uint32_t i),
                         uint32_t (*backward_at)(const struct dt_pipe_lane *l, uint32_t i),
                         uint32_t *code)
{
    uint32_t total = (uint32_t)l->n * (uint32_t)l->vpp, n = 0;
    uint32_t warmup = in_flight < 1 ? 0 : in_flight > total ? total : (uint32_t)in_flight - 1;

    for (uint32_t i = 0; i < total + warmup; i++) {
        if (i < total)
            code[n++] = forward_at(l, i);
        if (i >= warmup) {
            uint32_t b = backward_at(l, i - warmup);

            if (backward[DT_CODE_CHUNK(b)])
                code[n++] = b;
        }
    }
    return n;
}
