/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * `plan --explain`: what was decided per dimension of the search, and what the alternatives would give. */
#include "base/mem.h"
#include "base/text.h"
#include "cli/session.h"
#include "core/cost/memory.h"

#include <string.h>

#define GIB 1073741824.0

static const char *place_of(const struct dt_session *s, const struct dt_orch_decision *d)
{
    return d->module < 0 ? "" : s->job->model->modules[d->module].name;
}

/* The first words of a reason: what the constraints are, not their counts. */
static void print_reason(const char *why)
{
    const char *p = strstr(why, ": memory: "), *end;

    if (p && (p = strstr(p, "the closest over by ")) != NULL) {
        end = strchr(p, ';');
        printf("no plan: memory, %.*s", (int)(end ? end - p : (long)strlen(p)), p);
    } else {
        printf("no plan: %s", why);
    }
}

static void print_one(const struct dt_session *s, const struct dt_orch_decision *d, double best)
{
    double limit = dt_memory_limit(&s->job->cluster);

    printf("%s ", d->text);
    if (d->seconds > 0)
        printf("%+.1f %%", 100 * (d->seconds / best - 1));
    else
        print_reason(d->why);
    if (d->same_bytes > limit)
        printf(" in another layout, here stage %d would need %.1f GiB", d->same_stage,
               d->same_bytes / GIB);
}

enum dt_status dt_cli_plan_decisions(struct dt_session *s, struct dt_error *err,
                                     struct dt_orch_decisions **out)
{
    struct dt_orch_decisions *x = dt_malloc(sizeof *x);
    struct dt_search_input in;
    enum dt_status st;

    if (!x)
        return dt_error_nomem(err, "decisions");
    dt_session_search_input(s, &in);
    st = dt_orch_decide(s->job->strategy, &in, &s->search, err, x);
    if (st == DT_OK)
        *out = x;
    else
        dt_free(x);
    return st;
}

void dt_cli_plan_decisions_print(const struct dt_session *s, const struct dt_orch_decisions *x)
{
    double best = 0;

    if (x->searched_s > 0)
        printf("\nthe search had ended with a plan of %.3f s; the one above was found by looking "
               "for %s\n",
               x->searched_s, x->by);
    if (x->n > 0)
        printf("\ndecided, with what the best plan of each alternative would take:\n");
    for (int i = 0; i < x->n; i++) {
        const struct dt_orch_decision *d = &x->d[i];

        if (d->chosen) {
            best = d->seconds;
            printf("%s  %-9s %-10s %s", i > 0 ? "\n" : "", place_of(s, d),
                   dt_orch_dimension_names[d->dimension], d->text);
            continue;
        }
        printf("%s", x->d[i - 1].chosen ? ":  " : ";  ");
        print_one(s, d, best);
    }
    if (x->n > 0)
        putchar('\n');
}

void dt_cli_plan_decisions_json(const struct dt_session *s, const struct dt_orch_decisions *x,
                                struct dt_json *j)
{
    if (x->searched_s > 0) {
        dt_json_kv_double(j, "searched_s", x->searched_s);
        dt_json_kv_string(j, "found_by", x->by);
    }
    dt_json_key(j, "decisions");
    dt_json_begin_array(j);
    for (int i = 0; i < x->n; i++) {
        const struct dt_orch_decision *d = &x->d[i];

        dt_json_begin_object(j);
        dt_json_kv_string(j, "dimension", dt_orch_dimension_names[d->dimension]);
        if (d->module >= 0)
            dt_json_kv_string(j, "module", place_of(s, d));
        dt_json_kv_string(j, "value", d->text);
        dt_json_kv_bool(j, "chosen", d->chosen);
        if (d->seconds > 0)
            dt_json_kv_double(j, "iteration_s", d->seconds);
        else
            dt_json_kv_string(j, "no_plan", d->why);
        if (d->same_bytes > 0) {
            dt_json_kv_double(j, "same_layout_bytes", d->same_bytes);
            dt_json_kv_int(j, "same_layout_stage", d->same_stage);
        }
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
}
