/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * From the kernels of traces to rows of a profile. */
#include "fit/kernel_import.h"

#include "base/quantile.h"

#include "fit/kernel_dtype.h"
#include "fit/profile_import.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct observation {
    int source, family, phase;
    char dtype[16]; /* "" until all kernels of the op are known */
    int64_t d[6];
    size_t instance; /* range or operator whose kernels are one observation; 0 = each is one */
    double ns;
    bool annotated; /* a range names the op */
    struct dt_import_types types;
    const char *name; /* of the kernel */
};
struct dt_import_kernels {
    struct dt_arena arena;
    char dtype[16];
    struct observation *obs;
    struct dt_import_kernels_name *names;
    size_t n_obs, cap_obs, n_names, cap_names;
};

enum dt_status dt_import_kernels_new(const char *dtype, struct dt_error *err,
                                     struct dt_import_kernels **out)
{
    struct dt_import_kernels *k;

    if (!dtype[0] || strlen(dtype) >= sizeof(k->dtype))
        return dt_error_set(err, DT_ERR_USAGE, "a dtype has 1 to %zu characters",
                            sizeof(k->dtype) - 1);
    k = dt_calloc(1, sizeof(*k));
    if (!k)
        return dt_error_nomem(err, "an import");
    memcpy(k->dtype, dtype, strlen(dtype) + 1);
    *out = k;
    return DT_OK;
}

void dt_import_kernels_free(struct dt_import_kernels *k)
{
    if (!k)
        return;
    dt_free(k->obs);
    dt_free(k->names);
    dt_arena_free(&k->arena);
    dt_free(k);
}

#define ORDER(a, b)                                                                                \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            return (a) < (b) ? -1 : 1;                                                             \
    } while (0)

/* ---- rules ---- */

static int text_order(const char *a, const char *b)
{
    if (!a || !b)
        return (a != NULL) - (b != NULL);
    return a == b ? 0 : strcmp(a, b);
}

struct sorted { /* a kernel with the text of its operator */
    const struct dt_import_trace_kernel *k;
    const char *cpu_op;
};

static int by_names(const void *x, const void *y)
{
    const struct sorted *a = x, *b = y;
    int c = text_order(a->k->name, b->k->name);

    c = c ? c : text_order(a->cpu_op, b->cpu_op);
    if (c)
        return c;
    ORDER(a->k, b->k);
    return 0;
}

static void what_of(const struct dt_import_trace *t, const struct sorted *s,
                    struct dt_import_trace_what *w, size_t range_of[DT_KTRACE_DEPTH])
{
    *w = (struct dt_import_trace_what){.kernel = s->k->name, .cpu_op = s->cpu_op};
    if (s->k->op)
        w->inputs = t->ranges[s->k->op - 1].inputs;
    for (size_t r = s->k->range; r && w->n_ranges < DT_KTRACE_DEPTH; r = t->ranges[r - 1].parent) {
        if (t->ranges[r - 1].end_ns < s->k->at_ns)
            continue;
        range_of[w->n_ranges] = r;
        w->range[w->n_ranges++] = t->ranges[r - 1].text;
    }
}

static enum dt_status push(struct dt_import_kernels *k, const struct observation *o,
                           struct dt_error *err)
{
    if (dt_grow((void **)&k->obs, &k->cap_obs, k->n_obs + 1, sizeof(*o)))
        return dt_error_nomem(err, "kernels of a trace");
    k->obs[k->n_obs++] = *o;
    return DT_OK;
}

/* One run of the rules over a trace. */
struct run {
    struct dt_import_kernels *k;
    const struct dt_import_trace *t;
    const struct dt_import_rules *rules;
    bool *may;
    unsigned *says; /* of each range that is an operator: what the names of its kernels tell */
    int source;
    struct dt_error *err;
    struct dt_import_kernels_sums *sum;
};

static enum dt_status map_kernel(const struct run *run, const struct sorted *s,
                                 const struct dt_import_hit *hit,
                                 const struct dt_import_trace_what *w, const size_t *range_of)
{
    struct observation o = {.source = run->source,
                            .family = (int)hit->family,
                            .phase = (int)hit->phase,
                            .annotated = hit->range >= 0,
                            .name = s->k->name,
                            .ns = (double)s->k->duration_ns};

    if (hit->dtype)
        snprintf(o.dtype, sizeof(o.dtype), "%s", hit->dtype);
    else if (hit->family >= DT_KOP_ALL_REDUCE && hit->family <= DT_KOP_SEND_RECV)
        memcpy(o.dtype, "any", sizeof("any"));
    memcpy(o.d, hit->d, sizeof(o.d));
    dt_import_types_inputs(&o.types, hit->family, w->inputs);
    if (s->k->op)
        o.types.names = run->says[s->k->op - 1];
    else
        dt_import_types_kernel(&o.types, s->k->name);
    if (hit->sum)
        o.instance = hit->range >= 0 ? range_of[hit->range] : s->k->op ? s->k->op : s->k->range;
    return push(run->k, &o, run->err);
}

static enum dt_status unmapped(const struct run *run, const char *name, double ns)
{
    struct dt_import_kernels *k = run->k;
    struct dt_import_kernels_name *n = k->n_names ? &k->names[k->n_names - 1] : NULL;

    if (!n || strcmp(n->name, name) != 0) { /* kernels mostly come sorted by name */
        const char *copy = dt_arena_strdup(&k->arena, name);

        if (!copy || dt_grow((void **)&k->names, &k->cap_names, k->n_names + 1, sizeof(*n)))
            return dt_error_nomem(run->err, "names of kernels");
        n = &k->names[k->n_names++];
        *n = (struct dt_import_kernels_name){.name = copy};
    }
    n->kernels++;
    n->ns += ns;
    run->sum->unmapped++;
    run->sum->unmapped_ns += ns;
    return DT_OK;
}

static enum dt_status apply(const struct run *run, const struct sorted *sorted)
{
    const struct dt_import_trace *t = run->t;

    for (size_t i = 0; i < t->n_kernels; i++) {
        const struct sorted *s = &sorted[i];
        double ns = (double)s->k->duration_ns;
        size_t range_of[DT_KTRACE_DEPTH];
        struct dt_import_trace_what w;
        struct dt_import_hit hit;

        if (i == 0 || text_order(s->k->name, s[-1].k->name) || text_order(s->cpu_op, s[-1].cpu_op))
            dt_import_rules_select(run->rules, s->k->name, s->cpu_op, run->may);
        what_of(t, s, &w, range_of);
        run->sum->kernels++;
        run->sum->ns += ns;
        if (!dt_import_rules_match(run->rules, run->may, &w, &hit) || hit.unmapped ||
            (!hit.ignore && s->k->duration_ns == 0)) {
            DT_TRY(unmapped(run, s->k->name, ns)); /* no time is no observation either */
        } else if (hit.ignore) {
            run->sum->ignored++;
            run->sum->ignored_ns += ns;
        } else {
            DT_TRY(map_kernel(run, s, &hit, &w, range_of));
        }
    }
    return DT_OK;
}

static int op_order(const struct observation *a, const struct observation *b)
{
    int c;

    ORDER(a->source, b->source);
    ORDER(a->family, b->family);
    ORDER(a->phase, b->phase);
    c = strcmp(a->dtype, b->dtype);
    if (c)
        return c;
    for (int i = 0; i < 6; i++)
        ORDER(a->d[i], b->d[i]);
    return 0;
}

static int by_instance(const void *x, const void *y)
{
    const struct observation *a = x, *b = y;
    int c = op_order(a, b);

    if (c)
        return c;
    ORDER(a->instance, b->instance);
    ORDER(a->ns, b->ns);
    return 0;
}

static int by_time(const void *x, const void *y)
{
    const struct observation *a = x, *b = y;
    int c = op_order(a, b);

    if (c)
        return c;
    ORDER(a->ns, b->ns);
    return 0;
}

/* The kernels of one op, [from, to): its type, or they are unmapped.  *dtype: NULL = unmapped. */
static enum dt_status settle(const struct run *run, size_t from, size_t to, const char **dtype)
{
    const struct observation *o = run->k->obs;
    struct dt_import_types all = {0};
    enum dt_import_type_why why = DT_KDTYPE_OK;

    for (size_t i = from; i < to; i++) {
        all.operands |= o[i].types.operands;
        all.names |= o[i].types.names;
    }
    *dtype = o[from].dtype;
    if (!o[from].dtype[0])
        why = dt_import_types_decide(&all, (enum dt_kop_family)o[from].family, o[from].annotated,
                                     run->k->dtype, dtype);
    if (why == DT_KDTYPE_OK || why == DT_KDTYPE_ASSUMED) {
        run->sum->assumed_dtype += why == DT_KDTYPE_ASSUMED ? (int64_t)(to - from) : 0;
        return DT_OK;
    }
    *dtype = NULL;
    *(why == DT_KDTYPE_MIXED  ? &run->sum->mixed_dtype
      : why == DT_KDTYPE_MATH ? &run->sum->unknown_math
                              : &run->sum->denied_dtype) += (int64_t)(to - from);
    for (size_t i = from; i < to; i++)
        DT_TRY(unmapped(run, o[i].name, o[i].ns));
    return DT_OK;
}

/* The observations of one trace, from the first-th on: instances count within it. */
static enum dt_status settle_all(const struct run *run, size_t first)
{
    struct dt_import_kernels *k = run->k;
    size_t w = first;

    if (k->n_obs - first > 1)
        qsort(k->obs + first, k->n_obs - first, sizeof(*k->obs), by_instance);
    for (size_t i = first, j; i < k->n_obs; i = j) {
        struct observation *o = &k->obs[w];
        const char *dtype;

        for (j = i + 1;
             j < k->n_obs && k->obs[i].instance && k->obs[i].instance == k->obs[j].instance &&
             op_order(&k->obs[i], &k->obs[j]) == 0;
             j++)
            ;
        DT_TRY(settle(run, i, j, &dtype));
        if (!dtype)
            continue;
        *o = k->obs[i];
        memmove(o->dtype, dtype, strlen(dtype) + 1);
        o->name = NULL; /* of the trace */
        run->sum->mapped += (int64_t)(j - i);
        run->sum->mapped_ns += k->obs[i].ns;
        for (size_t m = i + 1; m < j; m++) {
            o->ns += k->obs[m].ns;
            run->sum->mapped_ns += k->obs[m].ns;
        }
        w++;
    }
    k->n_obs = w;
    return DT_OK;
}

static enum dt_status run_rules(const struct run *run, struct sorted *sorted)
{
    const struct dt_import_trace *t = run->t;
    size_t first = run->k->n_obs;

    for (size_t i = 0; i < t->n_kernels; i++) {
        size_t op = t->kernels[i].op;
        struct dt_import_types says = {0};

        sorted[i].k = &t->kernels[i];
        sorted[i].cpu_op = op ? t->ranges[op - 1].text : NULL;
        if (!op)
            continue;
        dt_import_types_kernel(&says, t->kernels[i].name);
        run->says[op - 1] |= says.names;
    }
    if (t->n_kernels)
        qsort(sorted, t->n_kernels, sizeof(*sorted), by_names);
    DT_TRY(apply(run, sorted));
    DT_TRY(settle_all(run, first));
    run->sum->observations += (int64_t)(run->k->n_obs - first);
    return DT_OK;
}

enum dt_status dt_import_kernels_trace(struct dt_import_kernels *k, struct dt_import_trace *t,
                                       const struct dt_import_rules *rules, int source,
                                       struct dt_error *err, struct dt_import_kernels_sums *sums)
{
    struct dt_import_kernels_sums s = *sums;
    struct run run = {.k = k, .t = t, .rules = rules, .source = source, .err = err, .sum = &s};
    size_t first = k->n_obs;
    struct sorted *sorted;
    enum dt_status st;

    DT_TRY(dt_import_trace_attach(t, err));
    sorted = dt_calloc(t->n_kernels + 1, sizeof(*sorted));
    run.may = dt_calloc(dt_import_rules_count(rules), sizeof(*run.may));
    run.says = dt_calloc(t->n_ranges + 1, sizeof(*run.says));
    if (!sorted || !run.may || !run.says)
        st = dt_error_nomem(err, "kernels of a trace");
    else
        st = run_rules(&run, sorted);
    dt_free(sorted);
    dt_free(run.may);
    dt_free(run.says);
    if (st == DT_OK)
        *sums = s;
    else
        k->n_obs = first; /* what is there names kernels of the trace, which the caller frees */
    return st;
}

enum dt_status dt_import_kernels_observe(struct dt_import_kernels *k,
                                         const struct dt_profile_row *row, double ns,
                                         struct dt_error *err)
{
    struct observation o = {
        .source = row->source, .family = row->family, .phase = row->phase, .dtype = "any"};

    o.ns = ns;
    memcpy(o.d, row->d, sizeof(o.d));
    return push(k, &o, err);
}

/* ---- unmapped names ---- */

static int by_name(const void *x, const void *y)
{
    return strcmp(((const struct dt_import_kernels_name *)x)->name,
                  ((const struct dt_import_kernels_name *)y)->name);
}

static int by_share(const void *x, const void *y)
{
    const struct dt_import_kernels_name *a = x, *b = y;

    ORDER(b->ns, a->ns);
    return strcmp(a->name, b->name);
}

int dt_import_kernels_top(struct dt_import_kernels *k, struct dt_import_kernels_name *top)
{
    size_t w = 0, n;

    if (k->n_names)
        qsort(k->names, k->n_names, sizeof(*k->names), by_name);
    for (size_t i = 0; i < k->n_names; i++) {
        if (w > 0 && strcmp(k->names[w - 1].name, k->names[i].name) == 0) {
            k->names[w - 1].kernels += k->names[i].kernels;
            k->names[w - 1].ns += k->names[i].ns;
        } else {
            k->names[w++] = k->names[i];
        }
    }
    k->n_names = w;
    if (w)
        qsort(k->names, w, sizeof(*k->names), by_share);
    n = w < DT_KIMPORT_TOP ? w : DT_KIMPORT_TOP;
    if (n)
        memcpy(top, k->names, n * sizeof(*top));
    return (int)n;
}

/* ---- rows ---- */

static enum dt_status add_row(const struct observation *o, size_t n, int device,
                              struct dt_profile_table *add, struct dt_error *err)
{
    struct dt_profile_table_row row = {.device = device};

    DT_TRY(dt_profile_table_dtype(add, o->dtype, err, &row.dtype));
    row.r.source = o->source;
    row.r.family = o->family;
    row.r.phase = o->phase;
    row.r.kind = DT_ROW_MEASURED;
    memcpy(row.r.d, o->d, sizeof(row.r.d));
    row.r.n = (int64_t)n;
    row.r.median_ns = dt_quantile(&o->ns, sizeof(*o), n, 0.5);
    row.r.p10_ns = dt_quantile(&o->ns, sizeof(*o), n, 0.1);
    row.r.p90_ns = dt_quantile(&o->ns, sizeof(*o), n, 0.9);
    return dt_profile_table_add(add, &row, err);
}

enum dt_status dt_import_kernels_finish(struct dt_import_kernels *k, int device,
                                        struct dt_error *err, struct dt_profile_table *t,
                                        size_t *rows)
{
    struct dt_profile_table add = {0};
    enum dt_status st = DT_OK;
    size_t n = k->n_obs;

    dt_import_share_names(&add, t);
    if (n)
        qsort(k->obs, n, sizeof(*k->obs), by_time);
    for (size_t i = 0, j; i < n && st == DT_OK; i = j) {
        for (j = i + 1; j < n && op_order(&k->obs[i], &k->obs[j]) == 0; j++)
            ;
        st = add_row(&k->obs[i], j - i, device, &add, err);
    }
    if (st == DT_OK)
        st = dt_import_merge(t, &add, err);
    if (st == DT_OK)
        *rows = add.n_rows;
    add.n_sources = 0; /* t's */
    dt_profile_table_free(&add);
    return st;
}
