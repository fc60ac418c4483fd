/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Programs as data: names, freeing, printing, digest. */
#include "core/schedule/program.h"
#include "base/hash.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(struct dt_op) == 48, "an op is 48 bytes: 131,072 GPUs must fit");
_Static_assert(sizeof(struct dt_lane) == 24, "a lane has no padding: the digest reads it whole");

const char *const dt_op_kind_names[DT_OP_KIND_N + 1] = {
    "forward", "backward",     "weight_grad", "send",    "recv",   "grad_sync", "grad_norm",
    "step",    "param_gather", "fetch",       "offload", "reload", NULL};

/* One or two letters in the printed form. */
static const char *const kind_letters[DT_OP_KIND_N] = {
    "F", "B", "W", "SEND", "RECV", "SYNC", "NORM", "STEP", "GATHER", "FETCH", "OFFLOAD", "RELOAD"};

void dt_program_free(struct dt_program *p)
{
    if (!p)
        return;
    dt_arena_free(&p->arena);
    dt_free(p);
}

/* ---- print ---- */

struct text {
    char *s;
    size_t n, cap;
    bool failed;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    /* A piece is at most a module name and a few integers. */
    if (t->failed || dt_grow((void **)&t->s, &t->cap, t->n + 256, 1) != 0) {
        t->failed = true;
        return;
    }
    va_start(ap, fmt);
    n = vsnprintf(t->s + t->n, t->cap - t->n, fmt, ap);
    va_end(ap);
    t->n += (size_t)n;
}

static const char *module_name(const struct dt_program *p, uint32_t lane)
{
    return p->plan->module_names[p->lanes[lane].module];
}

/* An op as others refer to it: module/replica.stage and its place on the lane. */
static void put_ref(struct text *t, const struct dt_program *p, const struct dt_op *from,
                    uint32_t op)
{
    const struct dt_lane *l;

    if (op >= p->n_ops || p->ops[op].lane >= (uint32_t)p->n_lanes) {
        put(t, "?%u", op);
        return;
    }
    l = &p->lanes[p->ops[op].lane];
    if (p->ops[op].lane != from->lane)
        put(t, "%s/%u.%u", module_name(p, p->ops[op].lane), l->replica, l->stage);
    put(t, "#%u", op - l->first);
}

static void put_deps(struct text *t, const struct dt_program *p, const struct dt_op *op)
{
    const char *sep = "";

    put(t, " deps=");
    for (int d = 0; d < 3; d++)
        if (op->dep[d] != DT_NONE) {
            put(t, "%s", sep);
            put_ref(t, p, op, op->dep[d]);
            sep = ",";
        }
    for (uint32_t d = 0; d < op->more_n; d++) {
        put(t, "%s", sep);
        put_ref(t, p, op, p->deps[op->more_first + d]);
        sep = ",";
    }
    if (*sep == '\0')
        put(t, "-");
}

static void put_op(struct text *t, const struct dt_program *p, uint32_t i)
{
    const struct dt_op *op = &p->ops[i];
    const struct dt_lane *l = &p->lanes[op->lane];

    put(t, "%s/%u.%u #%u %s", module_name(p, op->lane), l->replica, l->stage, i - l->first,
        op->kind < DT_OP_KIND_N ? kind_letters[op->kind] : "?");
    if (op->mb != DT_NONE)
        put(t, " mb=%u", op->mb);
    put(t, " chunk=%u", op->chunk);
    if (op->parts > 1)
        put(t, " part=%u/%u", op->part, op->parts);
    if (op->flags & DT_OPF_GRAD)
        put(t, " grad");
    if (op->flags & DT_OPF_BOUNDARY)
        put(t, " boundary");
    if (op->flags & DT_OPF_TIED)
        put(t, " tied");
    if (op->bytes > 0)
        put(t, " bytes=%llu", (unsigned long long)op->bytes);
    if (op->kind == DT_OP_SEND || op->kind == DT_OP_RECV) {
        put(t, op->kind == DT_OP_SEND ? " to=" : " from=");
        put_ref(t, p, op, op->peer);
    } else if (op->peer != DT_NONE && op->peer < p->n_groups) {
        put(t, " group=%u of=%u", op->peer, p->groups[op->peer].n);
    }
    put_deps(t, p, op);
    put(t, "\n");
}

enum dt_status dt_program_print(const struct dt_program *p, int lane, struct dt_error *err,
                                char **out)
{
    struct text t = {0};

    if (lane < -1 || lane >= p->n_lanes)
        return dt_error_set(err, DT_ERR_USAGE, "lane %d: the program has lanes 0 to %d", lane,
                            p->n_lanes - 1);
    put(&t, "%s", "");
    for (int l = lane < 0 ? 0 : lane; l < (lane < 0 ? p->n_lanes : lane + 1); l++)
        for (uint32_t i = p->lanes[l].first; i < p->lanes[l].first + p->lanes[l].n; i++)
            put_op(&t, p, i);
    if (t.failed) {
        dt_free(t.s);
        return dt_error_nomem(err, "the text of a program");
    }
    *out = t.s;
    return DT_OK;
}

/* ---- digest ---- */

uint64_t dt_program_digest(const struct dt_program *p)
{
    uint64_t h = dt_hash_finish((uint64_t)p->n_lanes << 32 | p->n_ops);

    h = dt_hash_digest(h, p->lanes, (size_t)p->n_lanes * sizeof(*p->lanes));
    h = dt_hash_digest(h, p->ops, (size_t)p->n_ops * sizeof(*p->ops));
    h = dt_hash_digest(h, p->deps, (size_t)p->n_deps * sizeof(*p->deps));
    h = dt_hash_digest(h, p->group_ops, (size_t)p->n_group_ops * sizeof(*p->group_ops));
    for (uint32_t g = 0; g < p->n_groups; g++) {
        const struct dt_group *x = &p->groups[g];

        h = dt_hash_finish(h ^ ((uint64_t)x->first << 32 | x->n));
        h = dt_hash_finish(h ^ ((uint64_t)x->ahead << 40 | (uint64_t)x->kind << 32 |
                                (uint64_t)x->per_node << 16 | x->share));
    }
    return h;
}
