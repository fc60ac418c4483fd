/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Points to results: those that the runs file has are taken from there, equal ones are evaluated once. */
#include "cli/whatif.h"

#include "base/clock.h"
#include "base/text.h"
#include "cli/progress.h"

#include <stdlib.h>
#include <string.h>

/* ---- adding ---- */

/* What the point is known by. */
static enum dt_status set_text(const struct dt_whatif *w, const struct dt_whatif_point *p,
                               struct dt_error *err, char **out)
{
    struct dt_text one = {0};
    struct dt_json j;
    char *text;

    dt_json_init(&j, false);
    dt_json_begin_array(&j);
    for (int a = 0; a <= w->n_axes; a++) {
        const char *value = a < w->n_axes ? p->value[a] : p->effort;
        size_t n = value ? strlen(value) : 0;

        if (!value)
            continue;
        dt_text_add(&one, "%s=", a < w->n_axes ? w->axis[a].key : "search.effort");
        for (size_t i = 0; i < n; i += 400) /* dt_text_add takes pieces */
            dt_text_add(&one, "%.400s", value + i);
        if (dt_text_finish(&one, err, &text) != DT_OK) {
            dt_json_discard(&j);
            return DT_ERR_NOMEM;
        }
        dt_json_string(&j, text);
        dt_free(text);
    }
    dt_json_end_array(&j);
    return dt_json_finish(&j, err, out);
}

enum dt_status dt_whatif_add(struct dt_whatif *w, const char *const *value, const char *effort,
                             struct dt_error *err)
{
    void *grown = w->point;
    struct dt_whatif_point p = {.effort = effort};

    if (dt_grow(&grown, &w->cap, (size_t)w->n + 1, sizeof *w->point) != 0)
        return dt_error_nomem(err, "points");
    w->point = grown;
    p.value = dt_arena_alloc(&w->arena, (size_t)w->n_axes + 1, sizeof *p.value);
    if (!p.value)
        return dt_error_nomem(err, "points");
    memcpy((void *)p.value, (const void *)value, (size_t)w->n_axes * sizeof *p.value);
    DT_TRY(set_text(w, &p, err, &p.set));
    w->point[w->n++] = p;
    return DT_OK;
}

/* ---- evaluating ---- */

struct run {
    struct dt_whatif *w;
    int *point; /* [n] of each task */
    struct dt_whatif_task *tasks;
    int n, done;
    uint64_t begun_ns;
};

static enum dt_status make_task(const struct dt_whatif *w, const struct dt_whatif_point *p,
                                struct dt_arena *arena, struct dt_error *err,
                                struct dt_whatif_task *out)
{
    size_t len = 0, at = 0;
    char *text;

    for (int a = 0; a < w->n_axes; a++)
        len += strlen(w->axis[a].key) + strlen(p->value[a]) + 2;
    len += p->effort ? strlen(p->effort) + sizeof "search.effort=" : 0;
    if (len > DT_WHATIF_TASK_MAX)
        return dt_error_set(err, DT_ERR_USAGE, "the values of a point have more than %d bytes",
                            DT_WHATIF_TASK_MAX);
    text = dt_arena_alloc(arena, len + 1, 1);
    if (!text)
        return dt_error_nomem(err, "points");
    for (int a = 0; a < w->n_axes; a++)
        at += (size_t)snprintf(text + at, len + 1 - at, "%s=%s", w->axis[a].key, p->value[a]) + 1;
    if (p->effort)
        snprintf(text + at, len + 1 - at, "search.effort=%s", p->effort);
    *out = (struct dt_whatif_task){text, (int)len};
    return DT_OK;
}

static int by_set(const void *a, const void *b)
{
    const struct dt_sweep_point *x = a, *y = b;

    return strcmp(x->set, y->set);
}

static bool take_kept(struct dt_whatif *w, struct dt_whatif_point *p)
{
    struct dt_sweep_point key = {.set = p->set};
    const struct dt_sweep_point *found =
        w->n_kept ? bsearch(&key, w->kept, (size_t)w->n_kept, sizeof key, by_set) : NULL;

    if (!found)
        return false;
    p->r = found->r;
    p->done = p->kept = true;
    w->from_file++;
    return true;
}

static void show(const struct run *r)
{
    double s = (double)(dt_clock_ns() - r->begun_ns) * 1e-9;
    double rate = s > 0 ? r->done / s : 0;
    char eta[32];

    if (r->done == 0)
        dt_cli_progress_line("whatif 0/%d points", r->n);
    else
        dt_cli_progress_line("whatif %d/%d points  %.1f points/s  ETA %s", r->done, r->n, rate,
                             dt_text_duration((r->n - r->done) / rate, eta, sizeof eta));
}

/* Whatever becomes of the runs file, the results stand: a full disk ends the keeping, not the sweep. */
static void keep(struct dt_whatif *w, const struct dt_whatif_point *p)
{
    struct dt_error err = {0};

    if (dt_sweep_add(w->sweep, p->set, &p->r, &err) == DT_OK)
        return;
    dt_cli_progress_end();
    dt_cli_warn_not_kept(&err);
    dt_sweep_close(w->sweep);
    w->sweep = NULL;
}

static enum dt_status on_result(void *ctx, int task, const struct dt_sweep_result *result,
                                struct dt_error *err)
{
    struct run *r = ctx;
    struct dt_whatif_point *p = &r->w->point[r->point[task]];

    p->r = *result;
    p->done = true;
    r->done++;
    r->w->evaluated++;
    show(r);
    /* what a process died of may be the machine's fault: it is tried again next time */
    if (r->w->sweep && result->status != DT_ERR_INTERNAL)
        keep(r->w, p);
    (void)err;
    return DT_OK;
}

struct by_text {
    const char *set;
    int i;
};

static int by_text(const void *a, const void *b)
{
    const struct by_text *x = a, *y = b;
    int d = strcmp(x->set, y->set);

    return d ? d : (x->i > y->i) - (x->i < y->i);
}

/* equal[i]: the first point of the same text, evaluated or to be. */
static enum dt_status find_equal(const struct dt_whatif *w, struct dt_error *err, int *equal)
{
    struct by_text *order = dt_malloc((size_t)w->n * sizeof *order + 1);

    if (!order)
        return dt_error_nomem(err, "points");
    for (int i = 0; i < w->n; i++)
        order[i] = (struct by_text){w->point[i].set, i};
    qsort(order, (size_t)w->n, sizeof *order, by_text);
    for (int i = 0, first = 0; i < w->n; i++) {
        if (strcmp(order[i].set, order[first].set) != 0)
            first = i;
        equal[order[i].i] = order[first].i;
    }
    dt_free(order);
    return DT_OK;
}

static enum dt_status evaluate(struct dt_whatif *w, struct run *r, int *equal,
                               struct dt_arena *arena, struct dt_error *err)
{
    enum dt_status st;

    DT_TRY(find_equal(w, err, equal));
    for (int i = 0; i < w->n; i++) {
        struct dt_whatif_point *p = &w->point[i];

        if (p->done || equal[i] != i || take_kept(w, p))
            continue;
        DT_TRY(make_task(w, p, arena, err, &r->tasks[r->n]));
        r->point[r->n++] = i;
    }
    show(r);
    st = r->n > 0 ? w->engine->run(w->engine, r->tasks, r->n, on_result, r, err) : DT_OK;
    dt_cli_progress_end();
    for (int i = 0; st == DT_OK && i < w->n; i++)
        if (!w->point[i].done) {
            w->point[i].r = w->point[equal[i]].r;
            w->point[i].kept = w->point[equal[i]].kept;
            w->point[i].done = true;
        }
    for (int i = 0; st == DT_OK && i < w->n; i++)
        dt_whatif_derive(w, &w->point[i]);
    return st;
}

enum dt_status dt_whatif_evaluate_all(struct dt_whatif *w, struct dt_error *err)
{
    size_t n = (size_t)w->n + 1;
    int *equal = dt_malloc(n * sizeof *equal);
    struct run r = {.w = w, .begun_ns = dt_clock_ns()};
    struct dt_arena arena = {0};
    enum dt_status st;

    r.point = dt_malloc(n * sizeof *r.point);
    r.tasks = dt_malloc(n * sizeof *r.tasks);
    st = equal && r.point && r.tasks ? evaluate(w, &r, equal, &arena, err)
                                     : dt_error_nomem(err, "points");
    dt_free(equal);
    dt_free(r.point);
    dt_free(r.tasks);
    dt_arena_free(&arena);
    return st;
}
