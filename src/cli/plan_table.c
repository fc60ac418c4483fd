/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The plans that a search returns, side by side, and what the search did; as text and as JSON. */
#include "base/text.h"
#include "cli/rows.h"
#include "cli/session.h"

#include <math.h>
#include <string.h>

/* ---- what is the same for a whole plan ---- */

enum choice { SCHEDULE, MICROBATCH, RECOMPUTE, ZERO, CHOICES };
static const char *const names[CHOICES] = {"schedule", "microbatch", "recompute", "ZeRO"};

static const char *text_of(const struct dt_plan *p, enum choice c, char *buf, size_t size)
{
    switch (c) {
    case SCHEDULE:
        return dt_pipe_schedule_names[p->policy.schedule];
    case MICROBATCH:
        snprintf(buf, size, "%d", p->policy.microbatch);
        return buf;
    case RECOMPUTE:
        return dt_plan_recompute_text(p, buf, size);
    case ZERO:
    case CHOICES:
        break;
    }
    return dt_plan_zero_text(p, buf, size);
}

static bool differs(const struct dt_search_result *r, enum choice c)
{
    char a[512], b[512];

    for (int i = 1; i < r->n; i++)
        if (strcmp(text_of(&r->plans[0], c, a, sizeof a), text_of(&r->plans[i], c, b, sizeof b)) !=
            0)
            return true;
    return false;
}

/* ---- the table ---- */

static void plans(struct dt_cli_rows *r, const struct dt_search_result *found)
{
    char text[512];

    for (int i = 0; i < found->n; i++) {
        const struct dt_plan *p = &found->plans[i];
        const struct dt_plan_prediction *q = &p->predicted;

        dt_cli_row(r);
        dt_cli_row_int(r, NULL, "#", i + 1);
        dt_cli_row_text(r, "schedule", NULL, dt_pipe_schedule_names[p->policy.schedule]);
        dt_cli_row_int(r, "microbatch", NULL, p->policy.microbatch);
        for (int m = 0; m < p->n_modules; m++) {
            dt_cli_layout_text(p, m, text, sizeof text);
            dt_cli_row_cell(r, p->module_names[m], "%s", text);
        }
        for (enum choice c = 0; c < CHOICES; c++)
            if (differs(found, c))
                dt_cli_row_cell(r, names[c], "%s", text_of(p, c, text, sizeof text));
        dt_cli_row_int(r, NULL, "GPUs", dt_plan_gpus(p));
        dt_cli_row_number(r, "warmup_s", NULL, NULL, 1, q->warmup_s);
        dt_cli_row_number(r, "steady_s", NULL, NULL, 1, q->steady_s);
        dt_cli_row_number(r, "formula_s", "formula [s]", "%.3f", 1, q->total_s);
        dt_cli_row_number(r, "staged_s", "staged [s]", "%.3f", 1, q->staged_s);
        dt_cli_row_number(r, "timeline_s", NULL, NULL, 1, q->timeline_s);
        dt_cli_row_number(r, NULL, "timeline [s]", "%.3f", 1,
                          q->timeline_s > 0 ? q->timeline_s : NAN);
        dt_cli_row_number(r, "lower_bound_s", NULL, NULL, 1, q->lower_bound_s);
        dt_cli_row_number(r, "memory_bytes_max", NULL, NULL, 1, q->mem_bytes_max);
        dt_cli_row_int(r, "gpus_used", NULL, dt_plan_gpus(p));
        if (r->json)
            dt_cli_json_modules(r->json, p, NULL);
    }
}

void dt_cli_plans_print(const struct dt_search_result *found)
{
    const char *between = found->n > 1 ? "all with " : "with ";
    struct dt_cli_rows r;
    char text[512];

    dt_cli_rows_table(&r);
    plans(&r, found);
    dt_cli_rows_end(&r, stdout);
    for (enum choice c = 0; c < CHOICES; c++) {
        if (differs(found, c))
            continue;
        printf("%s%s %s", between, names[c], text_of(&found->plans[0], c, text, sizeof text));
        between = ", ";
    }
    if (*between == ',')
        putchar('\n');
}

void dt_cli_plans_json(const struct dt_search_result *found, struct dt_json *j)
{
    struct dt_cli_rows r;

    dt_cli_rows_json(&r, j, "plans");
    plans(&r, found);
    dt_cli_rows_end(&r, NULL);
}

/* ---- the search ---- */

/* What no plan of the space undercuts, and how far the best one is from it. */
static void print_gap(const struct dt_search_stats *st, double best)
{
    if (!(st->floor_s > 0) || !(best > 0))
        return;
    printf(
        "no plan whose modules have GPUs of their own takes less than %.3f s on samples that are "
        "all the mean one, with every GPU always busy (gap %.1f %%)\n",
        st->floor_s, 100 * (best / st->floor_s - 1));
}

void dt_cli_search_print(const struct dt_session *s)
{
    const struct dt_search_stats *st = &s->search.stats;

    printf("%lld layout%s costed in %.3f s\n", (long long)st->candidates, dt_plural(st->candidates),
           s->search_wall_s);
    if (st->cells == 0)
        return;
    printf("%lld choice%s of (schedule, vpp, microbatch, the LLM's TP, CP and DP), %lld of them "
           "pruned by their bounds; "
           "%lld plan%s timed",
           (long long)st->cells, dt_plural(st->cells), (long long)(st->cells - st->cells_opened),
           (long long)st->simulated, dt_plural(st->simulated));
    if (st->untimed > 0)
        printf(", %lld more when search.budget was spent that may be faster",
               (long long)st->untimed);
    if (st->unlisted > 0)
        printf(", guests not tried beside %lld layout%s of the LLM as the list of plans was full",
               (long long)st->unlisted, dt_plural(st->unlisted));
    putchar('\n');
    print_gap(st, s->search.plans[0].predicted.timeline_s);
}

void dt_cli_search_json(const struct dt_session *s, struct dt_json *j)
{
    const struct dt_search_stats *st = &s->search.stats;

    dt_json_begin_object(j);
    dt_json_kv_int(j, "cells", st->cells);
    dt_json_kv_int(j, "cells_opened", st->cells_opened);
    dt_json_kv_int(j, "candidates", st->candidates);
    dt_json_kv_int(j, "convex_solves", st->convex_solves);
    dt_json_kv_int(j, "timed", st->simulated);
    dt_json_kv_int(j, "timed_ops", st->ops);
    dt_json_kv_int(j, "untimed", st->untimed);
    dt_json_kv_int(j, "unlisted", st->unlisted);
    dt_json_kv_double(j, "wall_s", s->search_wall_s);
    dt_json_kv_double(j, "lower_bound_s", st->lower_bound_s);
    dt_json_kv_double(j, "floor_s", st->floor_s);
    dt_json_kv_string(j, "rejected", st->infeasible);
    dt_json_end_object(j);
}
