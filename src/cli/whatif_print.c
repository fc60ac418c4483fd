/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Points as a table, as comma-separated values and as JSON, all of one description; the answer; what it rests on. */
#include "cli/whatif.h"

#include "base/text.h"
#include "cli/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REASON_COLUMNS = 72, BEFORE = 6, BEHIND = 3 };

/* ---- a row ---- */

/* Which columns the table has; files have all. */
struct shown {
    int feasible, failures, energy,
        pue; /* points; those with failures, with energy, with its pue */
    bool effort, days, money, tokens, co2, front;
    double mem_bytes; /* of the fullest GPU of all points */
    /* the least of what is above 0, which says how many digits a column needs */
    double least_days, least_money, least_mwh, least_co2_t, least_tokens;
};

static double lesser(double least, double v)
{
    return isfinite(v) && v > 0 && (least == 0 || v < least) ? v : least;
}

/* As usual, but digits of its own for what would be shown as next to nothing. */
static const char *digits(const char *usual, double enough, double least)
{
    return least > 0 && least < enough ? "%.4g" : usual;
}

static const char *days_format(double least)
{
    return digits("%.2f", 0.1, least);
}

static const char *money_format(double least)
{
    return digits("%.0f", 10, least);
}

static void find_shown(const struct dt_whatif *w, struct shown *s)
{
    const char *effort = NULL; /* of a feasible point */

    memset(s, 0, sizeof *s);
    s->days = w->goal.tokens > 0;
    s->tokens = w->goal.any && w->goal.tokens == 0;
    for (int i = 0; i < w->n; i++) {
        const struct dt_whatif_point *p = &w->point[i];

        s->feasible += p->r.feasible != 0;
        if (p->r.feasible && !effort)
            effort = p->r.effort;
        s->effort |= p->r.feasible && strcmp(p->r.effort, effort) != 0;
        s->failures += p->r.feasible && p->r.failures;
        s->energy += isfinite(p->mwh) != 0;
        s->pue += isfinite(p->mwh) && p->r.pue > 0;
        s->money |= isfinite(p->money);
        s->co2 |= isfinite(p->co2_t);
        s->front |= p->front;
        s->mem_bytes = p->r.feasible ? fmax(s->mem_bytes, p->r.memory_bytes_max) : s->mem_bytes;
        s->least_days = lesser(s->least_days, p->days_low);
        s->least_money = lesser(s->least_money, p->money_low);
        s->least_mwh = lesser(s->least_mwh, p->mwh);
        s->least_co2_t = lesser(s->least_co2_t, p->co2_t);
        s->least_tokens = lesser(s->least_tokens, p->tokens_sure);
    }
}

static void set_fields(struct dt_cli_rows *o, const struct dt_whatif *w,
                       const struct dt_whatif_point *p)
{
    if (o->json) {
        dt_json_key(o->json, "set");
        dt_json_begin_object(o->json);
        for (int a = 0; a < w->n_axes; a++)
            dt_json_kv_string(o->json, w->axis[a].key, p->value[a]);
        dt_json_end_object(o->json);
        return;
    }
    for (int a = 0; a < w->n_axes; a++)
        dt_cli_row_text(o, w->axis[a].key, w->axis[a].key, p->value[a]);
}

/* "28.1 to 34.5"; "-" of what is not known. */
static void cell_interval(struct dt_cli_rows *o, const char *head, const char *format, double scale,
                          double low, double high)
{
    char a[32], b[32];

    snprintf(a, sizeof a, format, scale * low);
    snprintf(b, sizeof b, format, scale * high);
    if (isfinite(low) && isfinite(high))
        dt_cli_row_cell(o, head, "%s to %s", a, b);
    else
        dt_cli_row_cell(o, head, "-");
}

static double known(const struct dt_sweep_result *r, double v)
{
    return r->feasible ? v : NAN;
}

static void speed_fields(struct dt_cli_rows *o, const struct dt_sweep_result *r,
                         const struct shown *s)
{
    bool mib = s->mem_bytes > 0 && s->mem_bytes < 1073741824.0;

    dt_cli_row_number(o, "iteration_s", "iteration [s]", "%.3f", 1, known(r, r->iteration_s));
    dt_cli_row_number(o, "iteration_s_p10", NULL, NULL, 1, known(r, r->iteration_s_p10));
    dt_cli_row_number(o, "iteration_s_p90", NULL, NULL, 1, known(r, r->iteration_s_p90));
    dt_cli_row_number(o, "iteration_s_mean", NULL, NULL, 1, known(r, r->iteration_s_mean));
    cell_interval(o, "80 % interval [s]", "%.3f", 1, known(r, r->iteration_s_p10),
                  known(r, r->iteration_s_p90));
    dt_cli_row_number(o, "mfu", "MFU [%]", "%.2f", 100, known(r, r->mfu));
    dt_cli_row_number(o, "mfu_cluster", NULL, NULL, 1, known(r, r->mfu_cluster));
    dt_cli_row_number(o, "tokens_per_s", "tokens/s", "%.0f", 1, known(r, r->tokens_per_s));
    dt_cli_row_number(o, "samples_per_s", NULL, NULL, 1, known(r, r->samples_per_s));
    dt_cli_row_number(o, "bubble_fraction", NULL, NULL, 1, known(r, r->bubble_fraction));
    dt_cli_row_number(o, "exposed_comm_s", NULL, NULL, 1, known(r, r->exposed_comm_s));
    dt_cli_row_number(o, "goodput", s->failures ? "goodput [%]" : NULL, "%.2f", 100,
                      known(r, r->goodput));
    dt_cli_row_number(o, "memory_bytes_max", mib ? "memory [MiB]" : "memory [GiB]", "%.1f",
                      1 / (mib ? 1048576.0 : 1073741824.0), known(r, r->memory_bytes_max));
    dt_cli_row_number(o, "memory_bytes", NULL, NULL, 1, known(r, r->memory_bytes));
}

static void goal_fields(struct dt_cli_rows *o, const struct dt_whatif *w,
                        const struct dt_whatif_point *p, const struct shown *s)
{
    const char *days = days_format(s->least_days), *money = money_format(s->least_money);
    char sure[48];

    snprintf(sure, sizeof sure, "days at %g %%", 50 + 50 * w->goal.confidence);
    dt_cli_row_number(o, "tokens_trained", s->tokens ? "tokens [G]" : NULL,
                      digits("%.1f", 1e9, s->least_tokens), 1e-9, p->tokens_sure);
    dt_cli_row_number(o, "days", s->days ? "days" : NULL, days, 1, p->days);
    dt_cli_row_number(o, "days_p10", NULL, NULL, 1, p->days_low);
    dt_cli_row_number(o, "days_p90", NULL, NULL, 1, p->days_high);
    if (s->days)
        cell_interval(o, "80 % interval [days]", days, 1, p->days_low, p->days_high);
    dt_cli_row_number(o, "days_sure", s->days && w->goal.confidence != 0.8 ? sure : NULL, days, 1,
                      p->days_sure);
    dt_cli_row_number(o, "money", s->money ? "money" : NULL, money, 1, p->money);
    dt_cli_row_number(o, "money_p10", NULL, NULL, 1, p->money_low);
    dt_cli_row_number(o, "money_p90", NULL, NULL, 1, p->money_high);
    if (s->money && s->days)
        cell_interval(o, "80 % interval [money]", money, 1, p->money_low, p->money_high);
    dt_cli_row_number(o, "money_sure", NULL, NULL, 1, p->money_sure);
    dt_cli_row_number(o, "energy_mwh", s->energy ? "energy [MWh]" : NULL,
                      digits("%.1f", 1, s->least_mwh), 1, p->mwh);
    dt_cli_row_number(o, "co2_t", s->co2 ? "CO2 [t]" : NULL, digits("%.1f", 1, s->least_co2_t), 1,
                      p->co2_t);
}

/* The plan, or what stands in its way, as far as it goes into a line. */
static void plan_fields(struct dt_cli_rows *o, const struct dt_sweep_result *r)
{
    char text[REASON_COLUMNS + 8];
    size_t n = strcspn(r->reason, ";");

    dt_cli_row_text(o, "plan", NULL, r->plan);
    dt_cli_row_text(o, "reason", NULL, r->reason);
    if (n > REASON_COLUMNS) {
        for (n = REASON_COLUMNS; n > 0 && r->reason[n] != ' '; n--)
            ;
        snprintf(text, sizeof text, "%.*s ...", (int)n, r->reason);
    } else {
        snprintf(text, sizeof text, "%.*s", (int)n, r->reason);
    }
    dt_cli_row_text(o, NULL, "plan", r->feasible ? r->plan : text);
}

static void row(struct dt_cli_rows *o, const struct dt_whatif *w, const struct dt_whatif_point *p,
                const struct shown *s)
{
    const struct dt_sweep_result *r = &p->r;
    bool by_gpus = w->size_axis >= 0 && strcmp(w->axis[w->size_axis].key, "cluster.gpus") == 0;

    dt_cli_row(o);
    set_fields(o, w, p);
    dt_cli_row_bool(o, "feasible", r->feasible);
    dt_cli_row_text(o, "effort", s->effort ? "effort" : NULL, r->effort);
    dt_cli_row_number(o, "gpus", by_gpus ? NULL : "GPUs", "%.0f", 1, known(r, r->gpus));
    dt_cli_row_number(o, "gpus_used", "used", "%.0f", 1, known(r, r->gpus_used));
    speed_fields(o, r, s);
    goal_fields(o, w, p, s);
    dt_cli_row_bool(o, "meets", w->goal.any && p->meets);
    dt_cli_row_bool(o, "front", p->front);
    dt_cli_row_bool(o, "answer", p->answer);
    if (s->front)
        dt_cli_row_text(o, NULL, "front", p->answer ? "answer" : p->front ? "*" : "");
    plan_fields(o, r);
}

/* ---- files ---- */

enum dt_status dt_whatif_csv(const struct dt_whatif *w, struct dt_error *err, char **out)
{
    const struct shown all = {.effort = true};
    struct dt_text text = {0};
    struct dt_cli_rows o;

    dt_cli_rows_csv(&o, &text);
    for (int i = 0; i < w->n; i++)
        row(&o, w, &w->point[i], &all);
    dt_cli_rows_end(&o, NULL);
    return dt_text_finish(&text, err, out);
}

static void json_about(const struct dt_whatif *w, struct dt_json *j)
{
    bool failures = false;

    for (int i = 0; i < w->n; i++)
        failures |= w->point[i].r.feasible && w->point[i].r.failures;
    dt_json_kv_string(j, "job", w->job.name);
    dt_json_key(j, "vary");
    dt_json_begin_array(j);
    for (int a = 0; a < w->n_axes; a++)
        dt_json_string(j, w->axis[a].key);
    dt_json_end_array(j);
    dt_json_key(j, "idle");
    dt_json_begin_array(j);
    for (int a = 0; a < w->n_axes; a++)
        if (dt_whatif_idle(w, a))
            dt_json_string(j, w->axis[a].key);
    dt_json_end_array(j);
    if (w->sample)
        dt_json_kv_int(j, "seed", (int64_t)w->seed);
    if (w->goal.tokens > 0)
        dt_json_kv_double(j, "tokens", w->goal.tokens);
    if (w->goal.days > 0)
        dt_json_kv_double(j, "days", w->goal.days);
    if (w->goal.budget > 0)
        dt_json_kv_double(j, "budget", w->goal.budget);
    dt_json_kv_double(j, "confidence", w->goal.confidence);
    dt_json_kv_bool(j, "failures", failures);
    if (w->searched[0])
        dt_json_kv_string(j, "searched", w->searched);
    if (w->sweep)
        dt_json_kv_int(j, "sweep", w->sweep_id);
    dt_json_kv_int(j, "evaluated", w->evaluated);
    dt_json_kv_int(j, "from_runs_file", w->from_file);
}

static enum dt_status print_json(const struct dt_whatif *w, struct dt_error *err)
{
    const struct shown all = {.effort = true};
    struct dt_cli_rows o;
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    json_about(w, &j);
    dt_cli_rows_json(&o, &j, "points");
    for (int i = 0; i < w->n; i++)
        row(&o, w, &w->point[i], &all);
    dt_cli_rows_end(&o, NULL);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

/* ---- for people ---- */

static const char *number_text(double v, char *buf, size_t size)
{
    static const struct {
        double factor;
        const char *name;
    } units[] = {{1e15, "Q"}, {1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};

    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (v >= units[i].factor) {
            snprintf(buf, size, "%.4g%s", v / units[i].factor, units[i].name);
            return buf;
        }
    snprintf(buf, size, "%.4g", v);
    return buf;
}

static void print_head(const struct dt_whatif *w)
{
    const char *name = strrchr(w->job.name, '/') ? strrchr(w->job.name, '/') + 1 : w->job.name;

    printf("%s: %d point%s", name, w->n, dt_plural(w->n));
    if (w->sample)
        printf(" of a Latin hypercube, seed %llu,", (unsigned long long)w->seed);
    for (int a = 0; a < w->n_axes; a++)
        printf("%s%s", a == 0 ? " over " : a + 1 < w->n_axes ? ", " : " and ", w->axis[a].key);
    if (w->from_file > 0)
        printf("; %d of them from sweep %lld of %s, where an earlier run left off", w->from_file,
               (long long)w->sweep_id, dt_cli_runs_file(w->cli));
    printf("\n");
}

/* How far a point misses a target, as a factor: of the time, of the money, or of what is missed by more. */
static double miss(const struct dt_whatif *w, const struct dt_whatif_point *p)
{
    double time = w->goal.days > 0 ? p->days_sure / w->goal.days : 0;
    double money = w->goal.budget > 0 ? p->money_sure / w->goal.budget : 0;

    return p->r.feasible && isfinite(time) && isfinite(money) ? fmax(time, money) : INFINITY;
}

/* Of a group the answer, or else the point that misses the target by the least; -1 where nothing fits. */
static int nearest(const struct dt_whatif *w, int group)
{
    int best = -1;

    for (int i = 0; i < w->n; i++) {
        const struct dt_whatif_point *p = &w->point[i];

        if (p->group != group)
            continue;
        if (p->answer)
            return i;
        if (w->goal.tokens > 0 && isfinite(miss(w, p)) &&
            (best < 0 || miss(w, p) < miss(w, &w->point[best])))
            best = i;
    }
    return best;
}

/* A search has many rows: those around its answer are shown, or around what comes nearest. */
static bool is_shown(const struct dt_whatif *w, int i)
{
    int middle, last = i;

    if (!w->scan)
        return true;
    while (last + 1 < w->n && w->point[last + 1].group == w->point[i].group)
        last++;
    middle = nearest(w, w->point[i].group);
    if (middle < 0)
        return i > last - BEFORE - BEHIND;
    return i >= middle - BEFORE && i <= middle + BEHIND;
}

static void print_table(const struct dt_whatif *w, const struct shown *s)
{
    struct dt_cli_rows o;
    int hidden = 0;

    dt_cli_rows_table(&o);
    for (int i = 0; i < w->n; i++)
        if (is_shown(w, i))
            row(&o, w, &w->point[i], s);
        else
            hidden++;
    dt_cli_rows_end(&o, stdout);
    if (hidden > 0)
        printf("%d more point%s: --csv FILE or --json\n", hidden, dt_plural(hidden));
}

static void print_interval(const char *unit, const char *format, double mid, double low,
                           double high)
{
    char text[3][32];

    snprintf(text[0], sizeof text[0], format, mid);
    snprintf(text[1], sizeof text[1], format, low);
    snprintf(text[2], sizeof text[2], format, high);
    printf("%s %s (80 %% interval %s to %s)", text[0], unit, text[1], text[2]);
}

static void print_target(const struct dt_whatif *w)
{
    char text[32];

    if (w->goal.tokens > 0)
        printf("%s tokens", number_text(w->goal.tokens, text, sizeof text));
    else
        printf("the most tokens");
    if (w->goal.days > 0)
        printf(" in %g days", w->goal.days);
    if (w->goal.budget > 0)
        printf("%s for %s", w->goal.days > 0 ? " and" : "",
               number_text(w->goal.budget, text, sizeof text));
    printf(" at %g %% confidence (the upper end of the %g %% interval)",
           50 + 50 * w->goal.confidence, 100 * w->goal.confidence);
}

static void print_group(const struct dt_whatif *w, const struct dt_whatif_point *p)
{
    const char *before = "";

    for (int a = 0; w->groups > 1 && a < w->n_axes; a++)
        if (a != w->size_axis) {
            printf("%s%s=%s", before, w->axis[a].key, p->value[a]);
            before = " ";
        }
    printf("%s", w->groups > 1 ? ": " : "");
}

/* How many of them are given; 0: none. */
static int64_t sizes(const struct dt_whatif *w)
{
    return w->size_axis >= 0 ? dt_job_axis_grid(&w->axis[w->size_axis]) : 0;
}

static void print_answer(const struct dt_whatif *w, const struct dt_whatif_point *p)
{
    char text[32];

    print_target(w);
    printf(": ");
    print_group(w, p);
    if (w->goal.days > 0 && w->goal.tokens > 0)
        printf("%s", w->scan ? "at least " : sizes(w) > 1 ? "the fewest of these sizes, " : "");
    printf("%d GPUs, ", p->r.gpus);
    if (w->goal.tokens > 0)
        print_interval("days", days_format(p->days_low), p->days, p->days_low, p->days_high);
    else
        printf("%s tokens", number_text(p->tokens_sure, text, sizeof text));
    if (isfinite(p->money) && w->goal.tokens > 0) {
        printf(", ");
        print_interval("of money", money_format(p->money_low), p->money, p->money_low,
                       p->money_high);
    }
    printf("\n  plan: %s\n", p->r.plan);
}

static void print_no_answer(const struct dt_whatif *w, const struct dt_whatif_point *any)
{
    int near = nearest(w, any->group);
    const struct dt_whatif_point *p;
    char text[32];

    print_target(w);
    printf(": ");
    print_group(w, any);
    printf("no point meets this");
    if (near >= 0) {
        p = &w->point[near];
        snprintf(text, sizeof text, days_format(p->days_sure), p->days_sure);
        printf("; %d GPUs come nearest, with %s days at this confidence", p->r.gpus, text);
        snprintf(text, sizeof text, money_format(p->money_sure), p->money_sure);
        if (isfinite(p->money_sure))
            printf(" and %s of money", text);
    }
    printf("\n");
}

static void print_answers(const struct dt_whatif *w)
{
    if (w->goal.days == 0 && w->goal.budget == 0)
        return;
    for (int g = 0; g < w->groups; g++) {
        const struct dt_whatif_point *answer = NULL, *any = NULL;

        for (int i = 0; i < w->n; i++)
            if (w->point[i].group == g) {
                any = &w->point[i];
                answer = w->point[i].answer ? any : answer;
            }
        if (answer)
            print_answer(w, answer);
        else if (any)
            print_no_answer(w, any);
    }
    if (w->searched[0])
        printf("%s%s\n", w->searched,
               w->scan && w->groups > 1 ? " (for the first; the others alike, each from its own "
                                          "bound)"
                                        : "");
}

/* Padded sequences are all alike; those that are not padded have the tokens of their samples. */
static void print_tokens(const struct dt_whatif *w)
{
    for (int i = 0; i < w->n; i++) {
        const struct dt_sweep_result *r = &w->point[i].r;
        double each = r->feasible && r->samples_per_s > 0
                          ? r->tokens / (r->samples_per_s * r->iteration_s)
                          : 0;

        if (!(each > 0))
            continue;
        if (fabs(each - round(each)) < 1e-6)
            printf("tokens count all of a sequence, %.0f for each sample\n", each);
        else
            printf("tokens are those of samples, which are not padded, %.0f for each in the mean\n",
                   each);
        return;
    }
}

/* Is a key of the cluster another one at other points, as far as keys tell? */
static bool varies(const struct dt_whatif *w, const char *key)
{
    bool any = false;

    for (int a = 0; a < w->n_axes; a++)
        any |= strcmp(w->axis[a].key, key) == 0 || strcmp(w->axis[a].key, "cluster") == 0;
    return any;
}

static void print_failures(const struct dt_whatif *w, const struct shown *s)
{
    const char *key = "cluster.mtbf_gpu_hours";
    double mtbf = w->job.cluster.mtbf_gpu_hours;

    if (s->failures == 0) {
        printf("days do not include failures%s\n",
               varies(w, key) ? ""
               : mtbf > 0     ? ": the job has simulate.failures off"
                              : ": the cluster states no cluster.mtbf_gpu_hours");
        return;
    }
    printf("days include failures of GPUs");
    if (!varies(w, key))
        printf(" (one in %.0f GPU hours)", mtbf);
    printf(", checkpoints and restarts");
    if (s->failures < s->feasible)
        printf(" at %d of %d points", s->failures, s->feasible);
    printf("\n");
}

static void print_energy(const struct shown *s)
{
    if (s->pue == 0)
        printf("energy is that of the nodes alone: no cluster.pue is stated\n");
    else if (s->pue < s->energy)
        printf("energy is that of the nodes alone at %d of %d points, which state no cluster.pue\n",
               s->energy - s->pue, s->energy);
}

static void print_notes(const struct dt_whatif *w, const struct shown *s)
{
    if (s->front)
        printf("front *: no other point is %s\n",
               s->money ? "as fast, as cheap and as small" : "as fast and as small");
    for (int a = 0; a < w->n_axes; a++)
        if (dt_whatif_idle(w, a))
            printf("%s makes no difference to any of these points\n", w->axis[a].key);
    if (w->quick)
        printf("plans were searched for at quick effort%s; search.effort=normal looks longer\n",
               s->effort ? ", those of answers at normal effort, too" : "");
    if (w->goal.tokens > 0)
        print_tokens(w);
    if (!s->feasible) /* nothing was predicted that the rest is about */
        return;
    if (w->goal.any)
        print_failures(w, s);
    if (s->money)
        printf("money pays for all GPUs of the cluster, used or not, at the stated price\n");
    if (s->energy)
        print_energy(s);
}

/* Points of a search by group and size, whatever order they were looked at in. */
static int by_size(const void *a, const void *b)
{
    const struct dt_whatif_point *x = a, *y = b;
    int d = (x->group > y->group) - (x->group < y->group);

    if (d == 0)
        d = (x->order > y->order) - (x->order < y->order);
    return d ? d : (y->again > 0) - (x->again > 0); /* the longer search behind the quick one */
}

void dt_whatif_sort(struct dt_whatif *w)
{
    if (w->scan && w->n > 0)
        qsort(w->point, (size_t)w->n, sizeof *w->point, by_size);
}

enum dt_status dt_whatif_print(struct dt_whatif *w, struct dt_error *err)
{
    struct shown s;

    if (w->cli->json)
        return print_json(w, err);
    find_shown(w, &s);
    print_head(w);
    print_table(w, &s);
    print_answers(w);
    print_notes(w, &s);
    if (w->sweep)
        printf("kept as sweep %lld in %s\n", (long long)w->sweep_id, dt_cli_runs_file(w->cli));
    return DT_OK;
}
