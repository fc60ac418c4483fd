/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Totals of blocks and modules: parameters from shapes, FLOPs from the kernel list at tp = 1.
 *
 * Convention: FLOPs count matrix multiplications, convolutions and attention, 2 per multiply-add,
 * causal attention half: per transformer layer of s tokens 2s(2h^2 + 2h^2 g/a + 3hf) + 2s^2 h
 * (causal) or + 4s^2 h (full); logits 2shV (FACTS "per-block", derived). */
#include "core/model/block_ops.h"

const char *const dt_block_recompute_names[] = {"none", "selective", "full", NULL};

double dt_block_flops(const struct dt_block *b, const struct dt_work *w)
{
    static const struct dt_block_shard whole = {.tp = 1, .cp = 1, .ep = 1, .ip = 1};
    struct dt_block plain = *b; /* rows that a capacity pads are no work of the model */
    struct dt_kop ops[DT_MAX_KOPS];
    double sum = 0;
    int n;

    plain.capacity = 0;
    n = dt_block_kops(&plain, &whole, w, ops);

    for (int i = 0; i < n;
         i++) /* unfused kernels compute the masked half too; it is not model work */
        sum += ops[i].flops * ops[i].count * (ops[i].core && b->causal ? 0.5 : 1);
    return sum;
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
