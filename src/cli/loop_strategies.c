/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Strategies instead of layouts: the best homogeneous, colocated and noncolocated plan, each trained in turn, and whether they
 * come in the order that is predicted. */
#include "cli/loop.h"
#include "base/file.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const enum dt_plan_strategy strategies[LOOP_STRATEGIES] = {
    DT_STRATEGY_HOMOGENEOUS, DT_STRATEGY_COLOCATED, DT_STRATEGY_NONCOLOCATED};

enum dt_status dt_loop_strategies(struct dt_loop *l, struct dt_error *err)
{
    int ranks = l->cores < l->ranks_max ? l->cores : (int)l->ranks_max;

    if (ranks < 2)
        return dt_error_set(
            err, DT_ERR_INPUT,
            "--strategies compares plans for two ranks or more, each with a core of "
            "its own: %d core%s free, --ranks is %d",
            l->cores, l->cores == 1 ? " is" : "s are", (int)l->ranks_max);
    if (dt_grow((void **)&l->layout, &l->cap, LOOP_STRATEGIES, sizeof(*l->layout)))
        return dt_error_nomem(err, "strategies");
    for (l->n = 0; l->n < LOOP_STRATEGIES; l->n++) {
        struct dt_loop_layout *x = &l->layout[l->n];

        memset(x, 0, sizeof(*x));
        x->ranks = ranks;
        x->threads = l->cores / ranks < LOOP_THREADS_MAX ? l->cores / ranks : LOOP_THREADS_MAX;
        snprintf(x->name, sizeof(x->name), "%s", dt_plan_strategy_names[strategies[l->n]]);
    }
    return DT_OK;
}

/* Into a file of the folder, which training reads, too. */
static enum dt_status keep_plan(const struct dt_loop *l, const struct dt_plan *p,
                                struct dt_loop_layout *x, struct dt_error *err)
{
    char path[LOOP_PATH_MAX], *text;
    enum dt_status st;

    snprintf(path, sizeof(path), "%s/plan-%s.json", l->dir, x->name);
    snprintf(x->over, sizeof(x->over), "plan=%s", path);
    dt_cli_plan_text(p, x->plan, sizeof(x->plan));
    x->ranks = dt_plan_gpus(p);
    DT_TRY(dt_plan_to_json(p, err, &text));
    st = dt_file_write(path, text, strlen(text), err);
    dt_free(text);
    return st;
}

/* The best plan of one strategy on what training will see; none fits: *fits false, and err says why. */
static enum dt_status plan_one(struct dt_loop *l, struct dt_loop_layout *x, bool *fits,
                               struct dt_error *err)
{
    struct dt_session s;
    enum dt_status st;

    DT_TRY(dt_loop_open(l, x, x->name, x->ranks, l->passes - 1, l->seen, 1, err, &s));
    st = dt_session_plan(&s, err);
    *fits = st == DT_OK;
    if (st == DT_OK)
        st = keep_plan(l, &s.search.plans[0], x, err);
    else if (st == DT_ERR_INFEASIBLE)
        st = DT_OK;
    dt_loop_close(&s);
    return st;
}

enum dt_status dt_loop_plan_strategies(struct dt_loop *l, struct dt_error *err)
{
    int n = 0;

    for (int i = 0; i < l->n; i++) {
        struct dt_loop_layout *x = &l->layout[i];
        struct dt_error why = {0};
        bool fits;
        enum dt_status st = plan_one(l, x, &fits, &why);

        if (st != DT_OK)
            return dt_error_pass(err, &why);
        if (fits) {
            l->layout[n++] = *x;
            continue;
        }
        l->no_plan[l->n_no_plan].strategy = dt_plan_strategy_names[strategies[i]];
        snprintf(l->no_plan[l->n_no_plan].why, sizeof(l->no_plan[0].why), "%.*s",
                 (int)sizeof(l->no_plan[0].why) - 1, why.message);
        l->n_no_plan++;
    }
    l->n = n;
    if (n < 2)
        return dt_error_set(err, DT_ERR_INFEASIBLE, "nothing to compare: %s: %s",
                            l->no_plan[0].strategy, l->no_plan[0].why);
    return DT_OK;
}

/* ---- results ---- */

/* Of a list in rising order, how two neighbours stand: < faster, ~ alike. */
static void print_order(const struct dt_loop *l, const char *what, bool measured)
{
    int at[LOOP_STRATEGIES];

    for (int i = 0; i < l->n; i++) {
        int k = i;

        for (; k > 0; k--) {
            const struct dt_loop_layout *x = &l->layout[i], *y = &l->layout[at[k - 1]];

            if (measured ? x->measured_s >= y->measured_s : x->predicted_s >= y->predicted_s)
                break;
            at[k] = at[k - 1];
        }
        at[k] = i;
    }
    printf("%s: %s", what, l->layout[at[0]].name);
    for (int k = 1; k < l->n; k++) {
        struct dt_loop_pair p;

        dt_loop_compare(l, at[k - 1], at[k], &p);
        printf(" %s %s",
               dt_loop_tie(measured ? p.measured : p.predicted, p.uncertainty) ? "~" : "<",
               l->layout[at[k]].name);
    }
    printf("\n");
}

void dt_loop_print_strategies(const struct dt_loop *l)
{
    double least = INFINITY, most = 0;

    for (int a = 0; a < l->n; a++)
        for (int b = a + 1; b < l->n; b++) {
            struct dt_loop_pair p;

            dt_loop_compare(l, a, b, &p);
            least = fmin(least, p.uncertainty);
            most = fmax(most, p.uncertainty);
        }
    for (int i = 0; i < l->n; i++)
        printf("%s: %s\n", l->layout[i].name, l->layout[i].plan);
    for (int i = 0; i < l->n_no_plan; i++)
        printf("%s: no plan: %s\n", l->no_plan[i].strategy, l->no_plan[i].why);
    print_order(l, "predicted order", false);
    print_order(l, "measured order", true);
    if (most < 1.01 * least)
        printf("what differs by at most %.1f %% is alike (~)\n", 100 * most);
    else
        printf("what differs by at most %.1f to %.1f %%, pair by pair, is alike (~)\n", 100 * least,
               100 * most);
}

void dt_loop_json_strategies(const struct dt_loop *l, struct dt_json *j)
{
    bool same = true;

    dt_json_key(j, "pairs");
    dt_json_begin_array(j);
    for (int a = 0; a < l->n; a++)
        for (int b = a + 1; b < l->n; b++) {
            struct dt_loop_pair p;

            dt_loop_compare(l, a, b, &p);
            same = same && p.agree;
            dt_json_begin_object(j);
            dt_json_kv_string(j, "first", l->layout[a].name);
            dt_json_kv_string(j, "second", l->layout[b].name);
            dt_json_kv_double(j, "predicted", p.predicted);
            dt_json_kv_double(j, "measured", p.measured);
            dt_json_kv_double(j, "uncertainty", p.uncertainty);
            dt_json_kv_bool(j, "agree", p.agree);
            dt_json_end_object(j);
        }
    dt_json_end_array(j);
    dt_json_kv_bool(j, "same_order", same);
    dt_json_key(j, "no_plan");
    dt_json_begin_array(j);
    for (int i = 0; i < l->n_no_plan; i++) {
        dt_json_begin_object(j);
        dt_json_kv_string(j, "strategy", l->no_plan[i].strategy);
        dt_json_kv_string(j, "reason", l->no_plan[i].why);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
}

enum dt_status dt_loop_check_strategies(const struct dt_loop *l, struct dt_error *err)
{
    for (int a = 0; a < l->n; a++)
        for (int b = a + 1; b < l->n; b++) {
            struct dt_loop_pair p;

            dt_loop_compare(l, a, b, &p);
            if (!p.agree)
                return dt_error_set(err, DT_ERR_TOLERANCE,
                                    "%s takes %.3f times as long as %s, and was predicted to take "
                                    "%.3f times (ties: within %.1f %%)",
                                    l->layout[a].name, p.measured, l->layout[b].name, p.predicted,
                                    100 * p.uncertainty);
        }
    return DT_OK;
}
