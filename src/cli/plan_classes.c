/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What strategy best compared: the best plan of each class, side by side; as text and as JSON. */
#include "cli/rows.h"
#include "cli/session.h"

#include <math.h>

static const struct dt_plan *plan_of(const struct dt_search_result *r,
                                     const struct dt_search_class *c)
{
    for (int i = 0; c->fits && i < r->n; i++)
        if (r->plans[i].strategy == c->strategy)
            return &r->plans[i];
    return NULL;
}

static void classes(struct dt_cli_rows *o, const struct dt_search_result *r)
{
    char layouts[DT_MAX_MODULES * 160];

    for (int i = 0; i < r->n_classes; i++) {
        const struct dt_search_class *c = &r->classes[i];
        const struct dt_plan *p = plan_of(r, c);
        double seconds = p && p->predicted.timeline_s > 0 ? p->predicted.timeline_s
                         : p                              ? p->predicted.staged_s
                                                          : NAN;

        layouts[0] = '\0';
        if (p)
            dt_cli_plan_text(p, layouts, sizeof layouts);
        dt_cli_row(o);
        dt_cli_row_text(o, "strategy", "best of each class", dt_plan_strategy_names[c->strategy]);
        dt_cli_row_bool(o, "fits", c->fits);
        dt_cli_row_number(o, "iteration_s", "iteration [s]", "%.3f", 1, seconds);
        dt_cli_row_int(o, "gpus_used", NULL, p ? dt_plan_gpus(p) : 0);
        dt_cli_row_number(o, "memory_bytes_max", "memory max [GiB]", "%.2f", 1 / 1073741824.0,
                          p ? c->mem_bytes : NAN);
        dt_cli_row_text(o, NULL, "layout = GPUs", layouts);
        dt_cli_row_text(o, "binds", NULL, c->why);
    }
}

const char *dt_cli_strategy(const struct dt_search_result *found)
{
    return dt_plan_strategy_names[found->n_classes > 0 ? DT_STRATEGY_BEST
                                                       : found->plans[0].strategy];
}

void dt_cli_classes_print(const struct dt_search_result *found)
{
    struct dt_cli_rows o;

    if (found->n_classes == 0)
        return;
    dt_cli_rows_table(&o);
    classes(&o, found);
    dt_cli_rows_end(&o, stdout);
    for (int i = 0; i < found->n_classes; i++)
        printf("%s: %s\n", dt_plan_strategy_names[found->classes[i].strategy],
               found->classes[i].why);
}

void dt_cli_classes_json(const struct dt_search_result *found, struct dt_json *j)
{
    struct dt_cli_rows o;

    if (found->n_classes == 0)
        return;
    dt_cli_rows_json(&o, j, "classes");
    classes(&o, found);
    dt_cli_rows_end(&o, NULL);
}
