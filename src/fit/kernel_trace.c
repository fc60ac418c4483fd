/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 *   thread   |-- ProfilerStep#2 ------------------------|
 *              |-- aten::linear ------|
 *                |-- aten::addmm --|                        the launch is in all three
 *                      ^ cudaLaunchKernel
 *   stream                   [ ampere_bf16_s16816gemm_... ]
 */
#include "fit/kernel_trace.h"

#include <stdlib.h>
#include <string.h>

enum { TRACE_MAX = 50000000 }; /* ranges, kernels: what fits the file limit of the readers */

void dt_import_trace_free(struct dt_import_trace *t)
{
    dt_free(t->ranges);
    dt_free(t->kernels);
    dt_arena_free(&t->arena);
    *t = (struct dt_import_trace){0};
}

enum dt_status dt_import_trace_add_range(struct dt_import_trace *t,
                                         const struct dt_import_trace_range *r,
                                         struct dt_error *err)
{
    if (t->n_ranges >= TRACE_MAX ||
        dt_grow((void **)&t->ranges, &t->cap_ranges, t->n_ranges + 1, sizeof(*r)))
        return dt_error_nomem(err, "ranges of a trace");
    t->ranges[t->n_ranges++] = *r;
    return DT_OK;
}

enum dt_status dt_import_trace_add_kernel(struct dt_import_trace *t,
                                          const struct dt_import_trace_kernel *k,
                                          struct dt_error *err)
{
    if (t->n_kernels >= TRACE_MAX ||
        dt_grow((void **)&t->kernels, &t->cap_kernels, t->n_kernels + 1, sizeof(*k)))
        return dt_error_nomem(err, "kernels of a trace");
    t->kernels[t->n_kernels++] = *k;
    return DT_OK;
}

void dt_import_trace_add_device(struct dt_import_trace *t, const char *name)
{
    static const char vendor[] = "NVIDIA ";
    char device[sizeof(t->device)];
    size_t n = 0;

    if (!name)
        return;
    if (strncmp(name, vendor, sizeof(vendor) - 1) == 0)
        name += sizeof(vendor) - 1;
    for (; *name && n < sizeof(device) - 1; name++)
        if (*name >= ' ' && *name < 127)
            device[n++] = *name;
    device[n] = '\0';
    if (!t->device[0])
        memcpy(t->device, device, sizeof(device));
    else if (device[0] && !t->other[0] && strcmp(t->device, device) != 0)
        memcpy(t->other, device, sizeof(device));
}

#define ORDER(a, b)                                                                                \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            return (a) < (b) ? -1 : 1;                                                             \
    } while (0)

static int by_start(const void *x, const void *y)
{
    const struct dt_import_trace_range *a = x, *b = y;

    ORDER(a->thread, b->thread);
    ORDER(a->start_ns, b->start_ns);
    ORDER(b->end_ns, a->end_ns);
    ORDER(a->id, b->id);
    return strcmp(a->text, b->text);
}

static int by_launch(const void *x, const void *y)
{
    const struct dt_import_trace_kernel *a = x, *b = y;

    ORDER(a->thread, b->thread);
    ORDER(a->at_ns, b->at_ns);
    ORDER(a->duration_ns, b->duration_ns);
    ORDER(a->op_id, b->op_id);
    return strcmp(a->name, b->name);
}

struct sweep { /* the ranges that are open, outermost first */
    struct dt_import_trace *t;
    size_t *open, n, next;
};

/* Ranges may overlap without nesting: one that has ended stays below one that has not, and whoever
 * walks the parents looks at their ends. */
static void close_until(struct sweep *s, int64_t at_ns)
{
    while (s->n > 0 && s->t->ranges[s->open[s->n - 1]].end_ns < at_ns)
        s->n--;
}

static void open_until(struct sweep *s, int64_t thread, int64_t at_ns)
{
    for (; s->next < s->t->n_ranges; s->next++) {
        struct dt_import_trace_range *r = &s->t->ranges[s->next];

        if (r->thread > thread || (r->thread == thread && r->start_ns > at_ns))
            break;
        if (r->thread != thread)
            continue;
        close_until(s, r->start_ns);
        r->parent = s->n ? s->open[s->n - 1] + 1 : 0;
        s->open[s->n++] = s->next;
    }
    close_until(s, at_ns);
}

/* The operator that the trace names, else the innermost one; none if the one it names is not around
 * the launch. */
static size_t find_op(const struct dt_import_trace *t, const struct dt_import_trace_kernel *k)
{
    int depth = 0;

    for (size_t r = k->range; r && depth < DT_KTRACE_DEPTH; r = t->ranges[r - 1].parent, depth++) {
        if (!t->ranges[r - 1].op || t->ranges[r - 1].end_ns < k->at_ns)
            continue;
        if (!k->has_op || t->ranges[r - 1].id == k->op_id)
            return r;
    }
    return 0;
}

enum dt_status dt_import_trace_attach(struct dt_import_trace *t, struct dt_error *err)
{
    struct sweep s = {.t = t};
    int64_t thread = 0;

    s.open = dt_calloc(t->n_ranges + 1, sizeof(*s.open));
    if (!s.open)
        return dt_error_nomem(err, "ranges of a trace");
    if (t->n_ranges)
        qsort(t->ranges, t->n_ranges, sizeof(*t->ranges), by_start);
    if (t->n_kernels)
        qsort(t->kernels, t->n_kernels, sizeof(*t->kernels), by_launch);
    for (size_t i = 0; i < t->n_kernels; i++) {
        struct dt_import_trace_kernel *k = &t->kernels[i];

        if (i == 0 || k->thread != thread)
            s.n = 0;
        thread = k->thread;
        open_until(&s, thread, k->at_ns);
        k->range = s.n ? s.open[s.n - 1] + 1 : 0;
        k->op = find_op(t, k);
    }
    dt_free(s.open);
    return DT_OK;
}
