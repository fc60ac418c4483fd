/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "gemm.h"

#include "base/clock.h"
#include "base/quantile.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { RUNS = 3 };
enum { A, B, C, SCRATCH, OPERANDS };

struct gemm {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attr;
    void *room[OPERANDS];
    size_t bytes[OPERANDS];
};

static void must(dnnl_status_t st, const char *what)
{
    if (st == dnnl_success)
        return;
    fprintf(stderr, "bench: oneDNN: %s failed (%d)\n", what, (int)st);
    exit(EXIT_FAILURE);
}

struct gemm *gemm_open(int threads)
{
    struct gemm *g = calloc(1, sizeof(*g));

    if (!g)
        exit(EXIT_FAILURE);
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
    must(dnnl_engine_create(&g->engine, dnnl_cpu, 0), "the engine");
    must(dnnl_stream_create(&g->stream, g->engine, dnnl_stream_default_flags), "a stream");
    must(dnnl_primitive_attr_create(&g->attr), "attributes");
    must(dnnl_primitive_attr_set_scratchpad_mode(g->attr, dnnl_scratchpad_mode_user), "attributes");
    return g;
}

void gemm_close(struct gemm *g)
{
    for (int i = 0; i < OPERANDS; i++)
        free(g->room[i]);
    dnnl_primitive_attr_destroy(g->attr);
    dnnl_stream_destroy(g->stream);
    dnnl_engine_destroy(g->engine);
    free(g);
}

/* Small normal numbers in either type: 0x3c.. is about 0.008 as bf16 and as fp32. */
static void *room(struct gemm *g, int i, size_t bytes)
{
    if (bytes > g->bytes[i]) {
        free(g->room[i]);
        g->room[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!g->room[i]) {
            fprintf(stderr, "bench: no memory for %zu bytes of operands\n", bytes);
            exit(EXIT_FAILURE);
        }
        g->bytes[i] = bytes;
        for (size_t k = 0; k < bytes / 2; k++)
            ((uint16_t *)g->room[i])[k] = (uint16_t)(0x3c00u + k * 37 % 251);
    }
    return g->room[i];
}

struct run {
    dnnl_primitive_desc_t pd;
    dnnl_memory_desc_t md[OPERANDS];
    int arg[OPERANDS];
};

struct gemm_time gemm_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (struct gemm_time){(double)dt_clock_ns() * 1e-9,
                              (double)t.tv_sec + 1e-9 * (double)t.tv_nsec};
}

static struct gemm_time timed(struct gemm *g, struct run *r)
{
    dnnl_primitive_t prim;
    dnnl_exec_arg_t args[OPERANDS];
    dnnl_memory_t mem[OPERANDS];
    double wall[RUNS], cpu[RUNS];

    must(dnnl_primitive_create(&prim, r->pd), "a primitive");
    r->md[SCRATCH] = *dnnl_primitive_desc_query_md(r->pd, dnnl_query_scratchpad_md, 0);
    r->arg[SCRATCH] = DNNL_ARG_SCRATCHPAD;
    for (int i = 0; i < OPERANDS; i++) {
        must(dnnl_memory_create(&mem[i], &r->md[i], g->engine,
                                room(g, i, dnnl_memory_desc_get_size(&r->md[i]))),
             "an operand");
        args[i] = (dnnl_exec_arg_t){r->arg[i], mem[i]};
    }
    for (int k = -1; k < RUNS; k++) { /* the first one touches everything */
        struct gemm_time t = gemm_now(), end;

        must(dnnl_primitive_execute(prim, g->stream, OPERANDS, args), "a product");
        must(dnnl_stream_wait(g->stream), "a product");
        end = gemm_now();
        if (k < 0)
            continue;
        wall[k] = end.wall - t.wall;
        cpu[k] = end.cpu - t.cpu;
    }
    for (int i = 0; i < OPERANDS; i++)
        dnnl_memory_destroy(mem[i]);
    dnnl_primitive_destroy(prim);
    dt_sort_numbers(wall, RUNS);
    dt_sort_numbers(cpu, RUNS);
    return (struct gemm_time){wall[RUNS / 2], cpu[RUNS / 2]};
}

static dnnl_data_type_t type_of(enum dt_dtype t)
{
    return t == DT_BF16 ? dnnl_bf16 : dnnl_f32;
}

static struct gemm_time matmul(struct gemm *g, const struct rec_product *p, bool packed)
{
    bool wgrad = p->kind == REC_WEIGHT, fwd = p->kind == REC_FWD || p->kind == REC_LOGITS;
    enum dt_dtype out = wgrad || p->kind == REC_LOGITS ? DT_F32 : p->dtype;
    dnnl_dims_t da = {p->m, p->k}, db = {p->k, p->n}, dc = {p->m, p->n};
    dnnl_matmul_desc_t desc;
    struct run r = {.arg = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}};
    const dnnl_memory_desc_t *md;
    struct gemm_time s;

    dnnl_memory_desc_init_by_tag(&r.md[A], 2, da, type_of(p->dtype), wgrad ? dnnl_ba : dnnl_ab);
    dnnl_memory_desc_init_by_tag(&r.md[B], 2, db, type_of(p->dtype),
                                 packed ? dnnl_format_tag_any
                                 : fwd  ? dnnl_ba
                                        : dnnl_ab);
    dnnl_memory_desc_init_by_tag(&r.md[C], 2, dc, type_of(out), dnnl_ab);
    must(dnnl_matmul_desc_init(&desc, &r.md[A], &r.md[B], NULL, &r.md[C]), "a matmul");
    must(dnnl_primitive_desc_create(&r.pd, &desc, g->attr, g->engine, NULL), "a matmul");
    md = dnnl_primitive_desc_query_md(r.pd, dnnl_query_weights_md, 0);
    r.md[B] = *md;
    s = timed(g, &r);
    dnnl_primitive_desc_destroy(r.pd);
    return s;
}

static struct gemm_time convolution(struct gemm *g, const struct rec_product *p)
{
    const struct dt_kernel_conv *c = &p->conv;
    int64_t oh = dt_kernel_conv_out(c->h, c), ow = dt_kernel_conv_out(c->w, c);
    dnnl_dims_t dx = {c->n, c->c_in, c->h, c->w}, dy = {c->n, c->c_out, oh, ow};
    dnnl_dims_t dw = {c->c_out, c->c_in, c->kernel, c->kernel};
    dnnl_dims_t strides = {c->stride, c->stride}, pad = {c->pad, c->pad};
    dnnl_dims_t pad_r = {(oh - 1) * c->stride + c->kernel - c->h - c->pad,
                         (ow - 1) * c->stride + c->kernel - c->w - c->pad};
    dnnl_data_type_t t = type_of(p->dtype);
    dnnl_convolution_desc_t desc;
    dnnl_memory_desc_t x, y, w;
    struct run r = {.pd = NULL};
    struct gemm_time s;

    dnnl_memory_desc_init_by_tag(&x, 4, dx, t, dnnl_nhwc);
    dnnl_memory_desc_init_by_tag(&y, 4, dy, t, dnnl_nhwc);
    dnnl_memory_desc_init_by_tag(&w, 4, dw, p->kind == REC_CONV_WEIGHT ? dnnl_f32 : t,
                                 dnnl_format_tag_any);
    if (p->kind == REC_CONV_FWD) {
        must(dnnl_convolution_forward_desc_init(&desc, dnnl_forward_training,
                                                dnnl_convolution_direct, &x, &w, NULL, &y, strides,
                                                pad, pad_r),
             "a convolution");
        must(dnnl_primitive_desc_create(&r.pd, &desc, g->attr, g->engine, NULL), "a convolution");
        r.md[B] = *dnnl_primitive_desc_query_md(r.pd, dnnl_query_weights_md, 0);
        r.md[A] = x, r.md[C] = y;
        r.arg[A] = DNNL_ARG_SRC, r.arg[B] = DNNL_ARG_WEIGHTS, r.arg[C] = DNNL_ARG_DST;
    } else if (p->kind == REC_CONV_INPUT) {
        must(dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &x, &w, &y,
                                                      strides, pad, pad_r),
             "a convolution");
        must(dnnl_primitive_desc_create(&r.pd, &desc, g->attr, g->engine, NULL), "a convolution");
        r.md[B] = *dnnl_primitive_desc_query_md(r.pd, dnnl_query_weights_md, 0);
        r.md[A] = y, r.md[C] = x;
        r.arg[A] = DNNL_ARG_DIFF_DST, r.arg[B] = DNNL_ARG_WEIGHTS, r.arg[C] = DNNL_ARG_DIFF_SRC;
    } else {
        must(dnnl_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, &x, &w,
                                                         NULL, &y, strides, pad, pad_r),
             "a convolution");
        must(dnnl_primitive_desc_create(&r.pd, &desc, g->attr, g->engine, NULL), "a convolution");
        r.md[C] = *dnnl_primitive_desc_query_md(r.pd, dnnl_query_diff_weights_md, 0);
        r.md[A] = x, r.md[B] = y;
        r.arg[A] = DNNL_ARG_SRC, r.arg[B] = DNNL_ARG_DIFF_DST, r.arg[C] = DNNL_ARG_DIFF_WEIGHTS;
    }
    s = timed(g, &r);
    dnnl_primitive_desc_destroy(r.pd);
    return s;
}

struct gemm_time gemm_seconds(struct gemm *g, const struct rec_product *p)
{
    struct gemm_time plain, packed;

    if (p->kind >= REC_CONV_FWD)
        return convolution(g, p);
    plain = matmul(g, p, false);
    if (p->kind == REC_WEIGHT) /* neither operand lives longer than the product */
        return plain;
    packed = matmul(g, p, true);
    return packed.cpu < plain.cpu ? packed : plain;
}

double gemm_flops(const struct rec_product *p)
{
    const struct dt_kernel_conv *c = &p->conv;

    if (p->kind < REC_CONV_FWD)
        return 2.0 * (double)p->m * (double)p->n * (double)p->k;
    return 2.0 * (double)(c->n * dt_kernel_conv_out(c->h, c) * dt_kernel_conv_out(c->w, c)) *
           c->c_in * (double)c->c_out * c->kernel * c->kernel;
}
