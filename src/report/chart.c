/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/chart_impl.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is in the picture ---- */

bool dt_chart_is_bars(const struct dt_chart *c)
{
    return c->categories != NULL;
}

bool dt_chart_shows(const struct dt_chart_axis *a, double v)
{
    return isfinite(v) && (!a->log || v > 0);
}

bool dt_chart_has(const struct dt_chart *c, const struct dt_chart_series *s, int i)
{
    return dt_chart_shows(&c->y, s->y[i]) &&
           (dt_chart_is_bars(c) || dt_chart_shows(&c->x, s->x[i]));
}

bool dt_chart_has_range(const struct dt_chart *c, const struct dt_chart_series *s, int i)
{
    return s->low && s->high && dt_chart_has(c, s, i) && dt_chart_shows(&c->y, s->low[i]) &&
           dt_chart_shows(&c->y, s->high[i]);
}

int dt_chart_left_out(const struct dt_chart *c)
{
    int n = 0;

    for (int k = 0; k < c->n_series; k++)
        for (int i = 0; i < c->series[k].n; i++) {
            const struct dt_chart_series *s = &c->series[k];

            n += isfinite(s->y[i]) && (dt_chart_is_bars(c) || isfinite(s->x[i])) &&
                 !dt_chart_has(c, s, i);
        }
    return n;
}

enum dt_status dt_chart_check(const struct dt_chart *c, struct dt_error *err)
{
    bool bars = dt_chart_is_bars(c);

    if (bars && c->y.log)
        return dt_error_set(err, DT_ERR_INTERNAL, "chart: bars have no logarithmic axis");
    for (int k = 0; k < c->n_series; k++) {
        const struct dt_chart_series *s = &c->series[k];

        if (bars ? s->n != c->n_categories : s->n > 0 && !s->x)
            return dt_error_set(err, DT_ERR_INTERNAL,
                                "chart: series %d has no place for its values", k);
        if (!s->low != !s->high || s->colour >= DT_CHART_COLOUR_N)
            return dt_error_set(err, DT_ERR_INTERNAL,
                                "chart: series %d has half an interval, or no colour", k);
    }
    for (int k = 0; k < c->n_rules; k++)
        if (bars && c->rules[k].x)
            return dt_error_set(err, DT_ERR_INTERNAL, "chart: bars have no x axis for a rule");
    return DT_OK;
}

enum dt_chart_colour dt_chart_colour_of(const struct dt_chart *c, int series)
{
    enum dt_chart_colour own = c->series[series].colour;

    return own != DT_CHART_AUTO ? own : (enum dt_chart_colour)(1 + series % DT_CHART_GREY);
}

/* ---- the marked front ---- */

struct marked {
    double x, y;
    struct dt_chart_place at;
};

static int by_place(const void *va, const void *vb)
{
    const struct marked *a = va, *b = vb;

    if (a->x != b->x)
        return a->x < b->x ? -1 : 1;
    if (a->y != b->y)
        return a->y < b->y ? -1 : 1;
    if (a->at.series != b->at.series)
        return a->at.series < b->at.series ? -1 : 1;
    return a->at.point < b->at.point ? -1 : a->at.point > b->at.point;
}

enum dt_status dt_chart_front(const struct dt_chart *c, struct dt_error *err,
                              struct dt_chart_place **at, int *n)
{
    struct marked *m = NULL;
    size_t cap = 0;
    int found = 0;

    for (int k = 0; !dt_chart_is_bars(c) && k < c->n_series; k++)
        for (int i = 0; i < c->series[k].n; i++) {
            const struct dt_chart_series *s = &c->series[k];

            if (!s->front || !s->front[i] || !dt_chart_has(c, s, i))
                continue;
            if (dt_grow((void **)&m, &cap, (size_t)found + 1, sizeof *m) != 0) {
                dt_free(m);
                return dt_error_nomem(err, "a chart");
            }
            m[found++] = (struct marked){s->x[i], s->y[i], {k, i}};
        }
    *at = dt_malloc(sizeof **at * (size_t)(found ? found : 1));
    if (!*at) {
        dt_free(m);
        return dt_error_nomem(err, "a chart");
    }
    if (found)
        qsort(m, (size_t)found, sizeof *m, by_place);
    for (int i = 0; i < found; i++)
        (*at)[i] = m[i].at;
    *n = found;
    dt_free(m);
    return DT_OK;
}

/* ---- scales ---- */

/* The least of 1, 2, 2.5, 5 times a power of ten that is not below v > 0. */
static double nice(double v)
{
    static const double steps[] = {1, 2, 2.5, 5, 10};
    double power = pow(10, floor(log10(v)));

    for (int k = 0; k < 5; k++)
        if (steps[k] * power >= v * (1 - 1e-9))
            return steps[k] * power;
    return 10 * power;
}

static void linear(struct dt_chart_scale *s, double least, double most, int want)
{
    double first;

    s->step = nice((most - least) / want);
    first = floor(least / s->step + 1e-6);
    s->n_ticks = 0;
    for (int i = 0; i < DT_CHART_TICKS_MAX; i++) {
        s->tick[s->n_ticks++] = (first + i) * s->step;
        if ((first + i) * s->step >= most - 1e-6 * s->step)
            break;
    }
    s->from = s->tick[0];
    s->to = s->tick[s->n_ticks - 1];
}

/* Powers of ten, with 2 and 5 times them where there is room. */
static void logarithmic(struct dt_chart_scale *s, double least, double most, int want)
{
    static const double parts[] = {1, 2, 5};
    int low = (int)floor(log10(least) + 1e-9), high = (int)ceil(log10(most) - 1e-9);
    int decades = high > low ? high - low : 1;
    int each = decades <= want ? 1 : (decades + want - 1) / want,
        per = 3 * decades <= 2 * want ? 3 : 1;
    double from = pow(10, low), to = pow(10, low + decades);

    if (per == 3) /* begin and end closer to the data */
        for (int k = 0; k < 3; k++) {
            if (parts[k] * pow(10, low) <= least * (1 + 1e-9))
                from = parts[k] * pow(10, low);
            if (parts[2 - k] * pow(10, high - 1) >= most * (1 - 1e-9))
                to = parts[2 - k] * pow(10, high - 1);
        }
    s->from = from;
    s->to = to > from ? to : 10 * from;
    s->n_ticks = 0;
    for (int d = low; d <= low + decades; d += each)
        for (int k = 0; k < per && s->n_ticks < DT_CHART_TICKS_MAX; k++) {
            double v = parts[k] * pow(10, d);

            if (v >= s->from * (1 - 1e-9) && v <= s->to * (1 + 1e-9))
                s->tick[s->n_ticks++] = v;
        }
}

void dt_chart_scale_fit(struct dt_chart_scale *s, const struct dt_chart_axis *axis, double least,
                        double most, int want)
{
    memset(s, 0, sizeof *s);
    s->log = axis->log;
    s->empty = !(least <= most);
    if (axis->from != 0 || axis->to != 0) {
        least = fmin(least, axis->from);
        most = fmax(most, axis->to);
    }
    if (!(least <= most)) /* nothing at all */
        least = axis->log ? 1 : 0, most = axis->log ? 10 : 1;
    if (axis->log && least > 0) {
        if (most < 4 * least && most > least) { /* less than a few powers of two: round numbers */
            linear(s, least, most, want);
            if (s->from > 0)
                return;
        }
        if (most == least)
            least /= 2, most *= 2;
        logarithmic(s, least, most, want);
        return;
    }
    s->log = false;
    if (axis->zero)
        least = fmin(least, 0), most = fmax(most, 0);
    if (most - least <= 1e-12 * fmax(fabs(most), fabs(least))) {
        double room = most != 0 ? 0.1 * fabs(most) : 1;

        least = axis->zero && least == 0 ? 0 : least - room;
        most += room;
    }
    linear(s, least, most, want);
}

double dt_chart_scale_at(const struct dt_chart_scale *s, double v)
{
    if (s->log)
        return (log(v) - log(s->from)) / (log(s->to) - log(s->from));
    return (v - s->from) / (s->to - s->from);
}

/* ---- numbers ---- */

static const char *prefix(double v, double *unit)
{
    static const struct {
        double unit;
        const char *name;
    } large[] = {{1e18, " E"}, {1e15, " P"}, {1e12, " T"}, {1e9, " G"}, {1e6, " M"}};

    for (size_t k = 0; k < sizeof large / sizeof large[0]; k++)
        if (fabs(v) >= large[k].unit * (1 - 1e-9)) {
            *unit = large[k].unit;
            return large[k].name;
        }
    *unit = 1;
    return "";
}

/* "1234567.5" -> "1,234,567.5", in place. */
static void group(char *s, size_t size)
{
    char *digits = s + (*s == '-');
    size_t n = strspn(digits, "0123456789"), len = strlen(s);

    if (digits[n] == 'e')
        return;
    for (size_t at = n; at > 3 && len + 1 < size; len++) {
        at -= 3;
        memmove(digits + at + 1, digits + at, strlen(digits + at) + 1);
        digits[at] = ',';
    }
}

void dt_chart_scale_label(const struct dt_chart_scale *s, double v, char *buf, size_t size)
{
    double unit, step;
    const char *name = prefix(s->step > 0 ? fmax(fabs(s->from), fabs(s->to)) : v, &unit);
    int decimals = 0;

    if (s->step == 0) { /* powers of ten */
        snprintf(buf, size, fabs(v) < 1e-4 || v / unit >= 1e6 ? "%.3g" : "%.6g", v / unit);
    } else {
        step = s->step / unit;
        if (fabs(v) < 1e-9 * s->step)
            v = 0;
        while (decimals < 9 && fabs(step - round(step)) > 1e-6 * step)
            step *= 10, decimals++;
        if (decimals > 5)
            snprintf(buf, size, "%.*g",
                     2 + (int)fmax(ceil(log10(fmax(fabs(s->from), fabs(s->to)) / s->step)), 0),
                     v / unit);
        else
            snprintf(buf, size, "%.*f", decimals, v / unit);
    }
    group(buf, size);
    snprintf(buf + strlen(buf), size - strlen(buf), "%s", v == 0 ? "" : name);
}

void dt_chart_value(double v, const char *unit, char *buf, size_t size)
{
    double large, a = fabs(v);
    const char *name = prefix(v, &large);

    if (a >= 1000 && a < 1e6)
        snprintf(buf, size, "%.*f", a >= 10000 || v == round(v) ? 0 : 1, v);
    else
        snprintf(buf, size, "%.4g", v / large);
    group(buf, size);
    snprintf(buf + strlen(buf), size - strlen(buf), "%s%s%s", name, unit && !name[0] ? " " : "",
             unit ? unit : "");
}

void dt_chart_axis_title(const struct dt_chart_axis *a, char *buf, size_t size)
{
    if (a->label && a->unit)
        snprintf(buf, size, "%s [%s]", a->label, a->unit);
    else
        snprintf(buf, size, "%s", a->label ? a->label : a->unit ? a->unit : "");
}

/* ---- both axes ---- */

struct span {
    double least, most;
};

static void widen(struct span *s, double v)
{
    s->least = fmin(s->least, v);
    s->most = fmax(s->most, v);
}

static void span_stacks(const struct dt_chart *c, struct span *y)
{
    for (int i = 0; i < c->n_categories; i++) {
        double up = 0, down = 0;

        for (int k = 0; k < c->n_series; k++) {
            double v = dt_chart_has(c, &c->series[k], i) ? c->series[k].y[i] : 0;

            *(v > 0 ? &up : &down) += v;
        }
        widen(y, up);
        widen(y, down);
    }
}

static void span_series(const struct dt_chart *c, const struct dt_chart_series *s, struct span *x,
                        struct span *y)
{
    for (int i = 0; i < s->n; i++) {
        if (!dt_chart_has(c, s, i))
            continue;
        if (s->x && !dt_chart_is_bars(c))
            widen(x, s->x[i]);
        if (!c->stacked)
            widen(y, s->y[i]);
        if (dt_chart_has_range(c, s, i)) {
            widen(y, s->low[i]);
            widen(y, s->high[i]);
        }
    }
}

void dt_chart_scales(const struct dt_chart *c, int want_x, int want_y, struct dt_chart_scale *x,
                     struct dt_chart_scale *y)
{
    struct span sx = {INFINITY, -INFINITY}, sy = sx;
    struct dt_chart_axis ay = c->y;

    for (int k = 0; k < c->n_series; k++)
        span_series(c, &c->series[k], &sx, &sy);
    if (dt_chart_is_bars(c)) {
        ay.zero = true;
        if (c->stacked)
            span_stacks(c, &sy);
    }
    for (int k = 0; k < c->n_rules; k++)
        if (dt_chart_shows(c->rules[k].x ? &c->x : &c->y, c->rules[k].at))
            widen(c->rules[k].x ? &sx : &sy, c->rules[k].at);
    dt_chart_scale_fit(x, &c->x, sx.least, sx.most, want_x);
    dt_chart_scale_fit(y, &ay, sy.least, sy.most, want_y);
}
