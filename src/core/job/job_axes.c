/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "core/job/job_axes.h"

#include "base/number.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- items ---- */

struct reader {
    struct dt_job_axis *axis;
    struct dt_error *err;
    size_t cap;
};

static const char too_many[] = "more than 16,384 values";

static enum dt_status wrong(const struct reader *r, const char *item, const char *what)
{
    return dt_error_set(r->err, DT_ERR_USAGE, "%s: \"%.200s\": %s", r->axis->key, item, what);
}

/* Is it one of the first `n` values, or the last one? */
static bool is_listed(const struct dt_job_axis *a, int n, const char *text)
{
    for (int i = 0; i < n; i++)
        if (strcmp(a->value[i], text) == 0)
            return true;
    return n < a->n && strcmp(a->value[a->n - 1], text) == 0;
}

/* Takes the text, which is of the axis' arena.  `others`: how many values were there before the item; those of one item grow or
 * shrink, so that equal ones would stand side by side. */
static enum dt_status add(struct reader *r, int others, const char *text)
{
    void *grown = (void *)r->axis->value;

    if (text && r->axis->n >= DT_JOB_AXIS_VALUES_MAX)
        return wrong(r, text, too_many);
    if (text && is_listed(r->axis, others, text))
        return wrong(r, text, "this value is listed twice");
    if (!text || dt_grow(&grown, &r->cap, (size_t)r->axis->n + 1, sizeof(*r->axis->value)) != 0)
        return dt_error_nomem(r->err, "values of a key");
    r->axis->value = grown;
    r->axis->value[r->axis->n++] = text;
    return DT_OK;
}

static const char *number_text(struct dt_arena *arena, double v, const char *unit)
{
    char text[96];

    snprintf(text, sizeof(text), "%.12g%s%s", v, unit[0] ? " " : "", unit);
    return dt_arena_strdup(arena, text);
}

struct range {
    double from, to, step; /* step 0: none */
    char way;              /* '+', '*' or 0 */
    bool whole;
    char unit[32];
};

/* Written as a whole number. */
static bool is_whole(const char *s, size_t n)
{
    return memchr(s, '.', n) == NULL && memchr(s, 'e', n) == NULL && memchr(s, 'E', n) == NULL;
}

/* The number at *s, which is moved past it. */
static bool scan(const char **s, double *out, bool *whole)
{
    size_t n = dt_number_scan(*s, out);

    if (n == 0 || !isfinite(*out))
        return false;
    *whole = *whole && is_whole(*s, n) && fabs(*out) < 1e15;
    *s += n;
    return true;
}

/* Is the item a range?  False where it does not begin as one; an error where it does not go on as one. */
static enum dt_status read_range(const struct reader *r, const char *item, struct range *out,
                                 bool *is)
{
    const char *dots = strstr(item, ".."), *s;
    char first[128];

    *is = false;
    memset(out, 0, sizeof(*out));
    if (!dots || (size_t)(dots - item) >= sizeof(first))
        return DT_OK;
    snprintf(first, sizeof(first), "%.*s", (int)(dots - item), item);
    if (!dt_number_double(first, &out->from))
        return DT_OK; /* a path, or whatever else has two dots in it */
    *is = true;
    out->whole = is_whole(first, strlen(first)) && fabs(out->from) < 1e15;
    s = dots + 2;
    if (!scan(&s, &out->to, &out->whole))
        return wrong(r, item, "a range is A..B, A..B+STEP or A..B*FACTOR");
    if (*s == '+' || *s == '*') {
        out->way = *s++;
        if (!scan(&s, &out->step, out->way == '+' ? &out->whole : &(bool){true}) && out->way == '+')
            return wrong(r, item, "a step follows \"+\": A..B+STEP");
    }
    s += strspn(s, " ");
    if (strlen(s) >= sizeof(out->unit) || strpbrk(s, "0123456789+*,") != NULL)
        return wrong(r, item, "a range is A..B, A..B+STEP or A..B*FACTOR, then a unit if any");
    snprintf(out->unit, sizeof(out->unit), "%s", s);
    if (out->to < out->from)
        return wrong(r, item, "a range goes from the smaller number to the larger one");
    if (out->way == '+' && !(out->step > 0))
        return wrong(r, item, "the step must be above 0");
    if (out->way == '*' && out->step != 0 && !(out->step > 1))
        return wrong(r, item, "the factor must be above 1");
    if (out->way == '*' && !(out->from > 0))
        return wrong(r, item, "a range with a factor begins above 0");
    return DT_OK;
}

/* The i-th value; false beyond the last. */
static bool value_at(const struct range *g, int i, double *out)
{
    double v =
        g->way == '*' ? g->from * pow(g->step, i) : g->from + (g->step > 0 ? g->step : 1) * i;

    if (v > g->to + 1e-9 * fabs(g->to))
        return false;
    *out = g->whole ? floor(v + 0.5) : v;
    return true;
}

static enum dt_status expand(struct reader *r, const char *item, const struct range *g)
{
    double v, last = NAN;
    int others = r->axis->n;

    if (!g->way && !g->whole)
        return wrong(r, item,
                     "a range of real numbers needs a step, A..B+STEP or A..B*FACTOR, or --sample "
                     "and no other item");
    if (g->way == '*' && g->step == 0)
        return wrong(r, item,
                     "this range needs its factor, A..B*FACTOR, or --sample and no other item");
    for (int i = 0; value_at(g, i, &v); i++) {
        if (i >= DT_JOB_AXIS_VALUES_MAX)
            return wrong(r, item, too_many);
        if (v == last)
            continue; /* rounded to the same */
        DT_TRY(add(r, others, number_text(&r->axis->arena, v, g->unit)));
        last = v;
    }
    return DT_OK;
}

static void keep_between(struct dt_job_axis *a, const struct range *g)
{
    a->between = true;
    a->log = g->way == '*';
    a->whole = g->whole;
    a->from = g->from;
    a->to = g->to;
    memcpy(a->unit, g->unit, sizeof(a->unit));
}

/* Bytes up to the comma that ends the item, or the end; SIZE_MAX: a bracket or quote is left open. */
static size_t item_length(const char *s)
{
    char closing[64];
    size_t n = 0;
    int depth = 0;

    for (; s[n] && (s[n] != ',' || depth > 0); n++) {
        bool quoted = depth > 0 && (closing[depth - 1] == '"' || closing[depth - 1] == '\'');

        if (depth > 0 && s[n] == closing[depth - 1])
            depth--;
        else if (!quoted && strchr("[{\"'", s[n]) && depth < (int)sizeof(closing))
            closing[depth++] = s[n] == '[' ? ']' : s[n] == '{' ? '}' : s[n];
    }
    return depth == 0 ? n : SIZE_MAX;
}

static enum dt_status read_item(struct reader *r, const char *s, size_t n, bool alone)
{
    struct range g;
    char *item;
    bool is;

    while (n > 0 && s[0] == ' ') {
        s++;
        n--;
    }
    while (n > 0 && s[n - 1] == ' ')
        n--;
    if (n == 0)
        return wrong(r, s, "a value is missing between commas; KEY=VALUE,VALUE,...");
    item = dt_arena_alloc(&r->axis->arena, n + 1, 1);
    if (!item)
        return dt_error_nomem(r->err, "values of a key");
    memcpy(item, s, n);
    DT_TRY(read_range(r, item, &g, &is));
    if (!is)
        return add(r, r->axis->n, item);
    if (alone && (g.way == 0 || (g.way == '*' && g.step == 0))) {
        keep_between(r->axis, &g);
        return DT_OK;
    }
    return expand(r, item, &g);
}

static enum dt_status read_items(struct reader *r, const char *s)
{
    bool alone = true;

    for (;; alone = false) {
        size_t n = item_length(s);

        if (n == SIZE_MAX)
            return wrong(r, s, "a bracket or a quote is not closed");
        DT_TRY(read_item(r, s, n, alone && s[n] == '\0'));
        if (s[n] == '\0')
            return DT_OK;
        s += n + 1;
    }
}

enum dt_status dt_job_axis_read(const char *text, struct dt_error *err, struct dt_job_axis *out)
{
    const char *eq = strchr(text, '=');
    struct dt_job_axis a = {.n = 0};
    struct reader r = {.axis = &a, .err = err};
    enum dt_status st;

    if (!eq || eq == text || (size_t)(eq - text) >= sizeof(a.key) || eq[1] == '\0')
        return dt_error_set(err, DT_ERR_USAGE,
                            "\"%.100s\" does not say what varies; it is KEY=VALUE,VALUE,... or "
                            "KEY=A..B*FACTOR",
                            text);
    memcpy(a.key, text, (size_t)(eq - text));
    st = read_items(&r, eq + 1);
    if (st == DT_OK)
        *out = a;
    else
        dt_job_axis_free(&a);
    return st;
}

void dt_job_axis_free(struct dt_job_axis *a)
{
    dt_free((void *)a->value);
    dt_arena_free(&a->arena);
    memset(a, 0, sizeof(*a));
}

/* ---- points ---- */

static enum dt_status make(struct dt_job_points *p, int64_t n, int n_axes, struct dt_error *err)
{
    memset(p, 0, sizeof(*p));
    if (n > DT_JOB_POINTS_MAX)
        return dt_error_set(err, DT_ERR_USAGE, "more than %d points; vary less, or --sample N",
                            DT_JOB_POINTS_MAX);
    p->n = (int)n;
    p->n_axes = n_axes;
    p->value = dt_calloc((size_t)n * (size_t)n_axes + 1, sizeof(*p->value));
    return p->value ? DT_OK : dt_error_nomem(err, "points");
}

void dt_job_points_free(struct dt_job_points *p)
{
    dt_free((void *)p->value);
    dt_arena_free(&p->arena);
    memset(p, 0, sizeof(*p));
}

/* A range is one of whole numbers then. */
int64_t dt_job_axis_grid(const struct dt_job_axis *a)
{
    return a->between ? (int64_t)fmin(a->to - a->from + 1, DT_JOB_POINTS_MAX + 1.0) : a->n;
}

enum dt_status dt_job_points_grid(const struct dt_job_axis *axes, int n_axes, struct dt_error *err,
                                  struct dt_job_points *out)
{
    struct dt_job_points p;
    int64_t n = 1;

    for (int a = 0; a < n_axes; a++) {
        if (axes[a].between && (!axes[a].whole || axes[a].log))
            return dt_error_set(err, DT_ERR_USAGE,
                                "%s: a grid needs the step of this range, A..B+STEP or "
                                "A..B*FACTOR; --sample N takes points from all of it",
                                axes[a].key);
        n = n > DT_JOB_POINTS_MAX ? n : n * dt_job_axis_grid(&axes[a]);
    }
    DT_TRY(make(&p, n, n_axes, err));
    for (int i = 0; i < p.n; i++) {
        int64_t rest = i;

        for (int a = n_axes - 1; a >= 0; a--) {
            int64_t values = dt_job_axis_grid(&axes[a]), k = rest % values;
            const char *v = axes[a].between
                                ? number_text(&p.arena, axes[a].from + (double)k, axes[a].unit)
                                : axes[a].value[k];

            rest /= values;
            p.value[i * n_axes + a] = v;
            if (!v) {
                dt_job_points_free(&p);
                return dt_error_nomem(err, "points");
            }
        }
    }
    *out = p;
    return DT_OK;
}

/* At u in (0,1) of the axis. */
static const char *value_of(const struct dt_job_axis *a, double u, struct dt_arena *arena)
{
    double v;

    if (!a->between) {
        int k = (int)(u * a->n);

        return a->value[k < a->n ? k : a->n - 1];
    }
    if (a->whole && !a->log)
        v = fmin(floor(a->from + u * (a->to - a->from + 1)), a->to);
    else
        v = a->log ? a->from * pow(a->to / a->from, u) : a->from + u * (a->to - a->from);
    return number_text(arena, a->whole ? floor(v + 0.5) : v, a->unit);
}

enum dt_status dt_job_points_sample(const struct dt_job_axis *axes, int n_axes, int n,
                                    uint64_t seed, struct dt_error *err, struct dt_job_points *out)
{
    struct dt_job_points p;
    int *part;

    DT_TRY(make(&p, n, n_axes, err));
    part = dt_malloc((size_t)n * sizeof(*part) + 1);
    for (int a = 0; part && a < n_axes; a++) {
        struct dt_rng rng;

        dt_rng_init(&rng, seed, (uint64_t)a);
        for (int i = 0; i < n; i++)
            part[i] = i;
        for (int i = n - 1; i > 0; i--) { /* Fisher and Yates */
            int k = (int)dt_rng_below(&rng, (uint64_t)i + 1), t = part[i];

            part[i] = part[k];
            part[k] = t;
        }
        for (int i = 0; i < n; i++) {
            p.value[i * n_axes + a] =
                value_of(&axes[a], (part[i] + dt_rng_uniform(&rng)) / n, &p.arena);
            if (!p.value[i * n_axes + a]) {
                dt_free(part);
                part = NULL;
                break;
            }
        }
    }
    if (!part) {
        dt_job_points_free(&p);
        return dt_error_nomem(err, "points");
    }
    dt_free(part);
    *out = p;
    return DT_OK;
}
