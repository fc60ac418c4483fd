/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "cli/facts.h"
#include "cli/plan_bubbles.h"
#include "cli/rows.h"
#include "core/schedule/assign_choose.h"
#include "core/schedule/timeline.h"
#include "report/breakdown.h"

#include <stdio.h>

/* With the first global batch, without contention. */
struct bubbles {
    struct dt_report_seat by_rule, placed; /* of all GPUs */
    struct dt_sched_bubbles x;
};

static enum dt_status spend(const struct dt_session *s, const struct dt_program *p,
                            struct dt_error *err, struct dt_report_seat *out)
{
    struct dt_timeline t = {0};
    struct dt_run_view v = {0};
    struct dt_report_breakdown b = {0};
    struct dt_durations d;
    enum dt_status st;

    DT_TRY(dt_durations_compute(p, s->job->model, &s->job->cluster, s->cost, false, err, &d));
    st = dt_timeline_once(p, d.ns, err, &t);
    if (st == DT_OK)
        st = dt_run_view_of(p, s->job->model, &t, err, &v);
    if (st == DT_OK)
        st = dt_report_breakdown_of(&v, err, &b);
    if (st == DT_OK)
        *out = b.all;
    dt_report_breakdown_free(&b);
    dt_run_view_free(&v);
    dt_timeline_free(&t);
    dt_durations_free(&d);
    return st;
}

static enum dt_status one(const struct dt_session *s, const struct dt_assignment *a,
                          bool rules_alone, struct dt_error *err, struct dt_sched_bubbles *x,
                          struct dt_report_seat *seat)
{
    struct dt_program *p;
    enum dt_status st;

    DT_TRY(dt_sched_compile_turns(&s->search.plans[0], s->job->model, &s->job->cluster, a, s->cost,
                                  rules_alone, err, x, &p));
    st = spend(s, p, err, seat);
    dt_program_free(p);
    return st;
}

static bool has_turns(const struct dt_session *s)
{
    return dt_plan_shares(&s->search.plans[0]) && !s->search.plans[0].colocated;
}

static enum dt_status find(const struct dt_session *s, struct dt_error *err, struct bubbles *out)
{
    struct dt_sched_bubbles rule;
    struct dt_assignment *a;
    enum dt_status st;

    DT_TRY(dt_assign_choose(&s->search.plans[0], s->job->model, &s->job->cluster, s->cost,
                            s->job->samples, 0, err, &a, NULL));
    st = one(s, a, false, err, &out->x, &out->placed);
    if (st == DT_OK)
        st = one(s, a, true, err, &rule, &out->by_rule);
    if (st == DT_OK)
        out->x.rules_ns = rule.rules_ns; /* the chunks of the LLM may be in another order then */
    dt_assign_free(a);
    return st;
}

/* Exposed communication and bubbles, in seconds of each GPU. */
static void idle(struct dt_cli_rows *r, const struct bubbles *b)
{
    for (int k = DT_SPENT_EXPOSED; k < DT_SPENT_N; k++) {
        if (b->by_rule.gpu_ns[k] <= 0 && b->placed.gpu_ns[k] <= 0)
            continue;
        dt_cli_row(r);
        dt_cli_row_text(r, "name", "idle GPUs", dt_report_spent_kinds[k].name);
        dt_cli_row_number(r, "by_rule_s", "by a rule [s]", "%.4f", 1,
                          1e-9 * b->by_rule.gpu_ns[k] / (double)b->by_rule.gpus);
        dt_cli_row_number(r, "placed_s", "placed [s]", "%.4f", 1,
                          1e-9 * b->placed.gpu_ns[k] / (double)b->placed.gpus);
    }
}

static void gain(const struct dt_cli_facts *f, const struct dt_sched_bubbles *x)
{
    dt_cli_fact_note(f, "\nguests' work in bubbles: the iteration takes ");
    dt_cli_fact_number(f, "placed_s", "", "%.4f s, and ", 1, 1e-9 * (double)x->ns);
    dt_cli_fact_number(f, "by_rule_s", "", "%.4f s with the turns of a rule; ", 1,
                       1e-9 * (double)x->rules_ns);
    dt_cli_fact_int(f, "moved", "", "%lld of ", x->moved);
    dt_cli_fact_int(f, "guest_ops", "", "%lld ops of guests have another place on their GPU\n",
                    x->guest_ops);
}

/* What no turns can do, and what they do without bounds of memory. */
static void bounds(const struct dt_cli_facts *f, const struct dt_sched_bubbles *x)
{
    bool chain = x->chain_ns >= x->work_ns, shorter = x->free_ns < x->ns;
    double least_ns = (double)(chain ? x->chain_ns : x->work_ns);

    dt_cli_fact_number(f, "chain_s", NULL, "", 1, 1e-9 * (double)x->chain_ns);
    dt_cli_fact_number(f, "work_s", NULL, "", 1, 1e-9 * (double)x->work_ns);
    dt_cli_fact_note(f, "no turns take less than %.4f s (%s), that is %.2f %% less; ",
                     1e-9 * least_ns,
                     chain ? "ops that wait for each other" : "the work of one GPU",
                     100 * (1 - least_ns / (double)x->ns));
    if (x->free_ns == 0) {
        dt_cli_fact_note(f, "phases or expert groups leave guests no other turns\n");
        return;
    }
    dt_cli_fact_number(
        f, "unbounded_s", shorter ? "" : NULL,
        "if guests held any number of microbatches, turns of %.4f s would be found\n", 1,
        1e-9 * (double)x->free_ns);
    if (!shorter)
        dt_cli_fact_note(
            f, "no shorter turns were found with memory for more microbatches of guests\n");
}

enum dt_status dt_cli_plan_bubbles_print(const struct dt_session *s, struct dt_error *err)
{
    const struct dt_cli_facts f = {0};
    struct bubbles b;
    struct dt_cli_rows r;

    if (!has_turns(s))
        return DT_OK;
    DT_TRY(find(s, err, &b));
    gain(&f, &b.x);
    dt_cli_rows_table(&r);
    idle(&r, &b);
    dt_cli_rows_end(&r, stdout);
    bounds(&f, &b.x);
    return DT_OK;
}

enum dt_status dt_cli_plan_bubbles_json(const struct dt_session *s, struct dt_json *j,
                                        struct dt_error *err)
{
    const struct dt_cli_facts f = {.json = j};
    struct bubbles b;
    struct dt_cli_rows r;

    if (!has_turns(s))
        return DT_OK;
    DT_TRY(find(s, err, &b));
    dt_json_key(j, "bubbles");
    dt_json_begin_object(j);
    gain(&f, &b.x);
    bounds(&f, &b.x);
    dt_cli_rows_json(&r, j, "idle");
    idle(&r, &b);
    dt_cli_rows_end(&r, NULL);
    dt_json_end_object(j);
    return DT_OK;
}
