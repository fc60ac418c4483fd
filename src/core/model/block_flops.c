/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Totals of blocks and modules: parameters from shapes, FLOPs from the kernel list at tp = 1.
 *
 * Convention: FLOPs count matrix multiplications, convolutions and attention, 2 per multiply-add,
 * causal attention half: per transformer layer of s tokens 2s(2h^2 + 2h^2 g/a + 3hf) + 2s^2 h
 * (causal) or + 4s^2 h (full); logits 2shV (FACTS "per-block", derived). */
#include "core/model/block_ops.h"

const char *const dt_block_recompute_names[] = {"none", "selective", "full", NULL};

/* core: of what unfused attention computes. */
static double flops(const struct dt_block *b, const struct dt_work *w, double core)
{
    static const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct dt_kop ops[DT_MAX_KOPS];
    int n = dt_block_kops(b, &whole, w, ops);
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += ops[i].flops * ops[i].count * (ops[i].core ? core : 1);
    return sum;
}

double dt_block_flops(const struct dt_block *b, const struct dt_work *w)
{
    struct dt_block plain = *b;

    /* rows that pad a capacity are no work of the model; those that one below 1 drops are nobody's */
    if (b->capacity > 1)
        plain.capacity = 0;
    return flops(&plain, w, b->causal ? 0.5 : 1); /* nor is the masked half */
}

double dt_block_run_flops(const struct dt_block *b, const struct dt_work *w)
{
    return flops(b, w, 1);
}

void dt_block_count_linear(struct dt_block_param_counts *p, int64_t times, int64_t in, int64_t out,
                           bool bias)
{
    p->matrices += times * in * out;
    p->vectors += bias ? times * out : 0;
}

void dt_block_count_mlp(struct dt_block_param_counts *p, int64_t times, const struct dt_block *b,
                        int width)
{
    dt_block_count_linear(p, times, b->hidden, b->gated ? 2 * (int64_t)width : width, b->bias);
    dt_block_count_linear(p, times, width, b->hidden, b->bias);
}

void dt_block_count_norm(struct dt_block_param_counts *p, int64_t times, int64_t width,
                         bool layernorm)
{
    p->vectors += times * (layernorm ? 2 * width : width);
}

struct dt_block_param_counts dt_block_param_count(const struct dt_block *b)
{
    struct dt_block_param_counts p = {0};

    dt_block_row_of(b)->params(b, &p);
    return p;
}

int64_t dt_block_params(const struct dt_block *b)
{
    struct dt_block_param_counts p = dt_block_param_count(b);

    return p.matrices + p.vectors;
}

struct dt_block_param_counts dt_block_expert_count(const struct dt_block *b)
{
    struct dt_block_param_counts p = {0};

    if (b->n_experts > 0)
        dt_block_count_mlp(&p, b->n_experts, b, b->ffn);
    return p;
}

int64_t dt_block_expert_params(const struct dt_block *b)
{
    struct dt_block_param_counts p = dt_block_expert_count(b);

    return p.matrices + p.vectors;
}

struct dt_block_param_counts dt_block_whole_count(const struct dt_block *b)
{
    struct dt_block_param_counts p = {0};

    if (dt_block_row_of(b)->whole)
        dt_block_row_of(b)->whole(b, &p);
    return p;
}

int64_t dt_module_active_params(const struct dt_module *m)
{
    int64_t sum = 0;

    for (int i = 0; i < m->n_blocks; i++) {
        const struct dt_block *b = &m->blocks[i];

        sum += dt_block_params(b);
        if (b->n_experts > 0)
            sum -= dt_block_expert_params(b) / b->n_experts * (b->n_experts - b->top_k);
    }
    return sum;
}

bool dt_module_is_unfused(const struct dt_module *m)
{
    for (int i = 0; i < m->n_blocks; i++)
        if (m->blocks[i].unfused)
            return true;
    return false;
}

double dt_module_flops(const struct dt_module *m, const struct dt_work *w)
{
    double sum = 0;

    for (int i = 0; i < m->n_blocks; i++)
        sum += dt_block_flops(&m->blocks[i], w);
    return sum;
}

int64_t dt_module_params(const struct dt_module *m)
{
    int64_t sum = 0;

    for (int i = 0; i < m->n_blocks; i++)
        sum += dt_block_params(&m->blocks[i]);
    return sum;
}
