/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Pictures of a sweep: time over what varies, the front marked; with a price also money over time. */
#include "cli/whatif.h"

#include "base/number.h"
#include "base/text.h"
#include "report/chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SERIES_MAX = 8, LABELS_MAX = 8, WIDTH = 760, HEIGHT = 420, TITLE = 28 };

struct picture {
    char title[320];
    char *chart; /* a fragment */
};

struct place { /* of a point along the axis */
    double at; /* NaN: none */
    int i;
};

struct along { /* what is drawn along */
    int axis;  /* the size, or the first that has numbers; -1: none, points are numbered */
    bool base; /* quantities in the base unit of their key, as they are stated in different ones */
    char unit[32];
};

struct lines { /* one for each group of points */
    int n;
    int of[SERIES_MAX + 1]; /* group */
    char name[SERIES_MAX + 1][160];
    double *x, *y, *low, *high; /* [points], by series */
    const char **label;
    bool *front;
    struct place *order; /* [points] */
    struct dt_chart_series series[SERIES_MAX + 1];
};

/* What stands behind the number of a value. */
static const char *unit_of(const char *text)
{
    double v;

    text += dt_number_scan(text, &v);
    return text + strspn(text, " ");
}

/* A value as its key reads it, in the base unit; NaN where that is no number. */
static double value_of(const struct dt_key *key, const char *text)
{
    struct dt_error err;
    struct dt_doc *doc;
    double v = NAN;
    char line[128];

    if (key->type != DT_KEY_QUANTITY)
        return dt_number_scan(text, &v) > 0 && *unit_of(text) == '\0' ? v : NAN;
    if (snprintf(line, sizeof line, "value: %s", text) >= (int)sizeof line ||
        dt_doc_parse("value", line, strlen(line), &err, &doc) != DT_OK)
        return NAN;
    if (dt_get_quantity(dt_doc_root(doc), "value", key->unit, -INFINITY, INFINITY, &v, &err) !=
        DT_OK)
        v = NAN;
    dt_doc_free(doc);
    return v;
}

static bool has_numbers(const struct dt_whatif *w, int axis)
{
    const struct dt_key *key = dt_keys_at(dt_job_keys, w->axis[axis].key);
    bool numbers = key && w->n > 0;

    for (int i = 0; i < w->n && numbers; i++)
        numbers = isfinite(value_of(key, w->point[i].value[axis]));
    return numbers;
}

static void find_along(const struct dt_whatif *w, struct along *out)
{
    const struct dt_key *key;

    *out = (struct along){.axis = w->size_axis};
    for (int a = 0; a < w->n_axes && out->axis < 0; a++)
        out->axis = has_numbers(w, a) ? a : -1;
    if (out->axis < 0 || out->axis == w->size_axis)
        return;
    key = dt_keys_at(dt_job_keys, w->axis[out->axis].key);
    if (key->type != DT_KEY_QUANTITY)
        return;
    snprintf(out->unit, sizeof out->unit, "%s", unit_of(w->point[0].value[out->axis]));
    for (int i = 1; i < w->n; i++)
        out->base |= strcmp(unit_of(w->point[i].value[out->axis]), out->unit) != 0;
    if (out->base || !out->unit[0])
        snprintf(out->unit, sizeof out->unit, "%s", key->unit);
}

static double place_of(const struct dt_whatif *w, int i, const struct along *x)
{
    const struct dt_whatif_point *p = &w->point[i];
    double v = NAN;

    if (x->axis < 0)
        return i + 1;
    if (x->axis == w->size_axis)
        return p->r.feasible ? p->r.gpus : NAN;
    if (x->base)
        return value_of(dt_keys_at(dt_job_keys, w->axis[x->axis].key), p->value[x->axis]);
    dt_number_scan(p->value[x->axis], &v);
    return v;
}

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : (x->i > y->i) - (x->i < y->i);
}

/* From left to right, so that lines do not go back; what has no place is last. */
static void put_in_order(const struct dt_whatif *w, const struct along *x, struct place *order)
{
    for (int i = 0; i < w->n; i++) {
        double at = place_of(w, i, x);

        order[i] = (struct place){isnan(at) ? INFINITY : at, i};
    }
    qsort(order, (size_t)w->n, sizeof *order, by_place);
}

static bool same_line(const struct dt_whatif *w, const struct dt_whatif_point *a,
                      const struct dt_whatif_point *b, int axis)
{
    for (int k = 0; k < w->n_axes; k++)
        if (k != axis && strcmp(a->value[k], b->value[k]) != 0)
            return false;
    return true;
}

static void name_line(const struct dt_whatif *w, const struct dt_whatif_point *p, int axis,
                      char *buf, size_t size)
{
    size_t n = 0;

    buf[0] = '\0';
    for (int k = 0; k < w->n_axes && n < size; k++)
        if (k != axis)
            n += (size_t)snprintf(buf + n, size - n, "%s%s=%s", n > 0 ? " " : "", w->axis[k].key,
                                  p->value[k]);
}

/* Which line each point is of; more than are told apart are one. */
static bool find_lines(const struct dt_whatif *w, int axis, struct lines *l, int *line)
{
    const struct dt_whatif_point *first[SERIES_MAX];

    bool many = w->sample > 0;

    l->n = 0;
    for (int i = 0; i < w->n && !many; i++) {
        line[i] = -1;
        for (int k = 0; k < l->n && line[i] < 0; k++)
            if (same_line(w, first[k], &w->point[i], axis))
                line[i] = k;
        many = line[i] < 0 && l->n == SERIES_MAX;
        if (line[i] >= 0 || many)
            continue;
        name_line(w, &w->point[i], axis, l->name[l->n], sizeof l->name[0]);
        first[l->n] = &w->point[i];
        line[i] = l->n++;
    }
    if (!many)
        return true;
    l->n = 1; /* a cloud of points */
    snprintf(l->name[0], sizeof l->name[0], "points");
    for (int i = 0; i < w->n; i++)
        line[i] = 0;
    return false;
}

static enum dt_status make_room(struct lines *l, int n, struct dt_error *err)
{
    size_t count = (size_t)n + 1;

    l->x = dt_malloc(4 * count * sizeof *l->x);
    l->label = dt_calloc(count, sizeof *l->label);
    l->front = dt_calloc(count, sizeof *l->front);
    l->order = dt_calloc(count, sizeof *l->order);
    if (!l->x || !l->label || !l->front || !l->order)
        return dt_error_nomem(err, "a chart");
    l->y = l->x + count;
    l->low = l->y + count;
    l->high = l->low + count;
    return DT_OK;
}

static void free_room(struct lines *l)
{
    dt_free(l->x);
    dt_free((void *)l->label);
    dt_free(l->front);
    dt_free(l->order);
}

enum what { TIME, MONEY };

static void fill(const struct dt_whatif *w, const int *line, bool joined, enum what what,
                 struct lines *l)
{
    bool days = w->goal.tokens > 0, few;
    int at = 0, front = 0;

    for (int i = 0; i < w->n; i++)
        front += w->point[i].front;
    few = front <= LABELS_MAX; /* more would lie over one another */
    for (int k = 0; k < l->n; k++) {
        struct dt_chart_series *s = &l->series[k];

        memset(s, 0, sizeof *s);
        s->name = l->n > 1 || !joined ? l->name[k] : NULL;
        s->mark = joined && what == TIME ? DT_CHART_LINE_AND_POINTS : DT_CHART_POINTS;
        s->x = l->x + at;
        s->y = l->y + at;
        s->low = l->low + at;
        s->high = l->high + at;
        s->front = l->front + at;
        s->label = l->label + at;
        for (int o = 0; o < w->n; o++) {
            const struct dt_whatif_point *p = &w->point[l->order[o].i];
            const struct dt_sweep_result *r = &p->r;

            if (line[l->order[o].i] != k || !r->feasible || p->passed_over)
                continue;
            l->x[at] = what == MONEY ? p->days : l->order[o].at;
            l->y[at] = what == MONEY ? p->money : days ? p->days : r->iteration_s;
            l->low[at] = what == MONEY ? p->money_low : days ? p->days_low : r->iteration_s_p10;
            l->high[at] = what == MONEY ? p->money_high : days ? p->days_high : r->iteration_s_p90;
            l->front[at] = p->front;
            l->label[at] = p->answer || few ? p->label : NULL;
            s->n++;
            at++;
        }
    }
}

static bool wide(const struct lines *l, bool of_x)
{
    double least = INFINITY, most = 0;

    for (int k = 0; k < l->n; k++)
        for (int i = 0; i < l->series[k].n; i++) {
            double v = of_x ? l->series[k].x[i] : l->series[k].y[i];

            least = v < least ? v : least;
            most = v > most ? v : most;
        }
    return least > 0 && most > 8 * least;
}

static enum dt_status draw(const struct dt_whatif *w, struct lines *l, const struct along *along,
                           enum what what, struct dt_error *err, struct picture *out)
{
    bool days = w->goal.tokens > 0;
    const char *x = along->axis < 0               ? "point"
                    : along->axis == w->size_axis ? "GPUs"
                                                  : w->axis[along->axis].key;
    const char *name = strrchr(w->job.name, '/') ? strrchr(w->job.name, '/') + 1 : w->job.name;
    struct dt_chart_rule rules[1];
    struct dt_chart c = {.series = l->series, .n_series = l->n, .width = WIDTH, .height = HEIGHT};

    snprintf(out->title, sizeof out->title, "%.200s: %s over %s", name,
             what == MONEY ? "money"
             : days        ? "days"
                           : "time of an iteration",
             what == MONEY ? "days" : x);
    c.title = out->title;
    c.summary = "Whiskers are 80 % intervals; marked points are on the front.";
    c.x = (struct dt_chart_axis){.label = what == MONEY ? "time" : x,
                                 .unit = what == MONEY    ? "days"
                                         : along->unit[0] ? along->unit
                                                          : NULL,
                                 .log = wide(l, true)};
    c.y = (struct dt_chart_axis){.label = what == MONEY ? "money" : "time",
                                 .unit = what == MONEY ? NULL
                                         : days        ? "days"
                                                       : "s",
                                 .log = wide(l, false)};
    c.rules = rules;
    if (what == MONEY ? w->goal.budget > 0 : w->goal.days > 0 && days)
        rules[c.n_rules++] =
            (struct dt_chart_rule){.name = what == MONEY ? "budget" : "deadline",
                                   .at = what == MONEY ? w->goal.budget : w->goal.days};
    return dt_chart_svg(&c, DT_CHART_FRAGMENT, what == MONEY ? "money" : "time", err, &out->chart);
}

static void add_escaped(struct dt_text *t, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '&')
            dt_text_add(t, *s == '<' ? "&lt;" : "&amp;");
        else
            dt_text_add(t, "%c", *s);
}

static void add_long(struct dt_text *t, const char *s)
{
    for (size_t i = 0, n = strlen(s); i < n; i += 256) /* dt_text_add takes pieces */
        dt_text_add(t, "%.256s", s + i);
}

/* A file of one or two charts, one below the other, each with its title above it. */
static enum dt_status frame(const struct picture *p, int n, struct dt_error *err, char **out)
{
    struct dt_text t = {0};
    char *style;

    DT_TRY(dt_chart_page_style(err, &style));
    dt_text_add(&t,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\">\n<style>",
                WIDTH, n * (HEIGHT + TITLE));
    add_long(&t, style);
    dt_text_add(&t, "</style>\n<rect class=\"dt-paper\" width=\"100%%\" height=\"100%%\"/>\n");
    for (int k = 0; k < n; k++) {
        dt_text_add(&t,
                    "<g class=\"dt-chart\" transform=\"translate(0 %d)\">\n<text x=\"12\" y=\"20\" "
                    "font-family=\"sans-serif\" font-size=\"15\">",
                    k * (HEIGHT + TITLE));
        add_escaped(&t, p[k].title);
        dt_text_add(&t, "</text>\n<g transform=\"translate(0 %d)\">\n", TITLE);
        add_long(&t, p[k].chart);
        dt_text_add(&t, "</g>\n</g>\n");
    }
    dt_text_add(&t, "</svg>\n");
    dt_free(style);
    return dt_text_finish(&t, err, out);
}

enum dt_status dt_whatif_svg(const struct dt_whatif *w, struct dt_error *err, char **out)
{
    struct lines l = {0};
    int *line = dt_malloc((size_t)w->n * sizeof *line + 1), n = 0;
    struct along along;
    bool joined, priced = false;
    struct picture picture[2] = {{.chart = NULL}};
    enum dt_status st = line ? make_room(&l, w->n, err) : dt_error_nomem(err, "a chart");

    find_along(w, &along);
    if (st == DT_OK) {
        put_in_order(w, &along, l.order);
        joined = find_lines(w, along.axis, &l, line);
        for (int i = 0; i < w->n; i++)
            priced |= isfinite(w->point[i].money) && isfinite(w->point[i].days);
        for (enum what what = TIME; what <= MONEY && st == DT_OK; what++) {
            if (what == MONEY && (!priced || w->goal.tokens == 0))
                break;
            fill(w, line, joined, what, &l);
            st = draw(w, &l, &along, what, err, &picture[n++]);
        }
    }
    if (st == DT_OK)
        st = frame(picture, n, err, out);
    dt_free(picture[0].chart);
    dt_free(picture[1].chart);
    free_room(&l);
    dt_free(line);
    return st;
}
