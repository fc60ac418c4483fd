/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Kernels of the fake device: each puts a task on the queue that calls the CPU's.
 *
 * An argument is kept by its declared type: numbers as they are, structs by value, device memory as the
 * address that kernels use for it, weights as the CPU's.  Nothing is guessed from bits. */
#include "fake_device_impl.h"

/* ---- types of arguments: as declared, as kept, how it is kept, how it is given on ---- */

#define KEEP_AS_IS(what, to, x) to = x
#define KEEP_MEMORY(what, to, x) to = dt_fake_alias(x, what)
#define KEEP_STRUCT(what, to, x) to = *(x)

#define TYPE_n int64_t
#define TYPE_u uint64_t
#define TYPE_i int
#define TYPE_b bool
#define TYPE_f float
#define TYPE_dtype enum dt_dtype
#define TYPE_act enum dt_kernel_act
#define TYPE_in const void *
#define TYPE_out void *
#define TYPE_in_f const float *
#define TYPE_out_f float *
#define TYPE_in_d const double *
#define TYPE_out_d double *
#define TYPE_in_i const int32_t *
#define TYPE_out_i int32_t *
#define TYPE_weight const struct dt_device_weight *
#define TYPE_norm const struct dt_kernel_norm *
#define TYPE_in_u const uint64_t *
#define TYPE_items const struct dt_kernel_items *
#define TYPE_images const struct dt_kernel_images *
#define TYPE_groupnorm const struct dt_kernel_groupnorm *
#define TYPE_attention const struct dt_kernel_attention *
#define TYPE_conv const struct dt_kernel_conv *
#define TYPE_route const struct dt_kernel_route *

#define KEPT_n int64_t
#define KEPT_u uint64_t
#define KEPT_i int
#define KEPT_b bool
#define KEPT_f float
#define KEPT_dtype enum dt_dtype
#define KEPT_act enum dt_kernel_act
#define KEPT_in void *
#define KEPT_out void *
#define KEPT_in_f float *
#define KEPT_out_f float *
#define KEPT_in_d double *
#define KEPT_out_d double *
#define KEPT_in_i int32_t *
#define KEPT_out_i int32_t *
#define KEPT_weight const struct dt_device_weight *
#define KEPT_norm struct dt_kernel_norm
#define KEPT_in_u uint64_t *
#define KEPT_items struct dt_kernel_items
#define KEPT_images struct dt_kernel_images
#define KEPT_groupnorm struct dt_kernel_groupnorm
#define KEPT_attention struct dt_kernel_attention
#define KEPT_conv struct dt_kernel_conv
#define KEPT_route struct dt_kernel_route

#define KEEP_n KEEP_AS_IS
#define KEEP_u KEEP_AS_IS
#define KEEP_i KEEP_AS_IS
#define KEEP_b KEEP_AS_IS
#define KEEP_f KEEP_AS_IS
#define KEEP_dtype KEEP_AS_IS
#define KEEP_act KEEP_AS_IS
#define KEEP_in KEEP_MEMORY
#define KEEP_out KEEP_MEMORY
#define KEEP_in_f KEEP_MEMORY
#define KEEP_out_f KEEP_MEMORY
#define KEEP_in_d KEEP_MEMORY
#define KEEP_out_d KEEP_MEMORY
#define KEEP_in_i KEEP_MEMORY
#define KEEP_out_i KEEP_MEMORY
#define KEEP_weight(what, to, x) to = (x)->cpu
#define KEEP_norm KEEP_STRUCT
#define KEEP_conv KEEP_STRUCT
#define KEEP_route KEEP_STRUCT
#define KEEP_in_u KEEP_MEMORY
#define KEEP_items(what, to, x)                                                                    \
    to = *(x);                                                                                     \
    to.cu = dt_fake_alias((x)->cu, what)
#define KEEP_images(what, to, x)                                                                   \
    to = *(x);                                                                                     \
    to.items.cu = dt_fake_alias((x)->items.cu, what);                                              \
    to.hw = dt_fake_alias((x)->hw, what)
#define KEEP_groupnorm(what, to, x)                                                                \
    to = *(x);                                                                                     \
    to.items.cu = dt_fake_alias((x)->items.cu, what)
#define KEEP_attention(what, to, x)                                                                \
    to = *(x);                                                                                     \
    to.cu_q = dt_fake_alias((x)->cu_q, what);                                                      \
    to.cu_k = dt_fake_alias((x)->cu_k, what)

#define GIVE_n(x) x
#define GIVE_u(x) x
#define GIVE_i(x) x
#define GIVE_b(x) x
#define GIVE_f(x) x
#define GIVE_dtype(x) x
#define GIVE_act(x) x
#define GIVE_in(x) x
#define GIVE_out(x) x
#define GIVE_in_f(x) x
#define GIVE_out_f(x) x
#define GIVE_in_d(x) x
#define GIVE_out_d(x) x
#define GIVE_in_i(x) x
#define GIVE_out_i(x) x
#define GIVE_weight(x) x
#define GIVE_norm(x) &x
#define GIVE_in_u(x) x
#define GIVE_items(x) &x
#define GIVE_images(x) &x
#define GIVE_groupnorm(x) &x
#define GIVE_attention(x) &x
#define GIVE_conv(x) &x
#define GIVE_route(x) &x

/* ---- a kernel from its list of types ---- */

/* M(number, type) for each, with S() between them. */
#define COMMA() ,
#define NOTHING()
#define EACH1(M, S, a) M(0, a)
#define EACH2(M, S, a, b) EACH1(M, S, a) S() M(1, b)
#define EACH3(M, S, a, b, c) EACH2(M, S, a, b) S() M(2, c)
#define EACH4(M, S, a, b, c, d) EACH3(M, S, a, b, c) S() M(3, d)
#define EACH5(M, S, a, b, c, d, e) EACH4(M, S, a, b, c, d) S() M(4, e)
#define EACH6(M, S, a, b, c, d, e, f) EACH5(M, S, a, b, c, d, e) S() M(5, f)
#define EACH7(M, S, a, b, c, d, e, f, g) EACH6(M, S, a, b, c, d, e, f) S() M(6, g)
#define EACH8(M, S, a, b, c, d, e, f, g, h) EACH7(M, S, a, b, c, d, e, f, g) S() M(7, h)
#define EACH9(M, S, a, b, c, d, e, f, g, h, i) EACH8(M, S, a, b, c, d, e, f, g, h) S() M(8, i)
#define EACH10(M, S, a, b, c, d, e, f, g, h, i, j)                                                 \
    EACH9(M, S, a, b, c, d, e, f, g, h, i) S() M(9, j)
#define EACH11(M, S, a, b, c, d, e, f, g, h, i, j, k)                                              \
    EACH10(M, S, a, b, c, d, e, f, g, h, i, j) S() M(10, k)
#define EACH12(M, S, a, b, c, d, e, f, g, h, i, j, k, l)                                           \
    EACH11(M, S, a, b, c, d, e, f, g, h, i, j, k) S() M(11, l)

#define PARAMETER(number, type) TYPE_##type x##number
#define FIELD(number, type) KEPT_##type x##number;
#define KEEP(number, type) KEEP_##type(what, kept->x##number, x##number);
#define GIVE(number, type) GIVE_##type(kept->x##number)

#define KERNEL(n, name, ...)                                                                       \
    struct name##_task {                                                                           \
        EACH##n(FIELD, NOTHING, __VA_ARGS__)                                                       \
    };                                                                                             \
    static void run_##name(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)    \
    {                                                                                              \
        struct name##_task *kept = arg;                                                            \
                                                                                                   \
        dev->k->name(cpu, EACH##n(GIVE, COMMA, __VA_ARGS__));                                      \
    }                                                                                              \
    static void fake_##name(struct dt_device_queue *q, EACH##n(PARAMETER, COMMA, __VA_ARGS__))     \
    {                                                                                              \
        static const char what[] = #name;                                                          \
        struct name##_task *kept = dt_fake_task(what, run_##name, sizeof(*kept));                  \
                                                                                                   \
        EACH##n(KEEP, NOTHING, __VA_ARGS__);                                                       \
        dt_fake_submit(q, kept);                                                                   \
    }

/* clang-format off */
#define KERNELS(K)                                                                                 \
    K(6, linear_fwd, n, in, weight, in_f, in, out)                                                 \
    K(5, linear_bwd_input, n, in, weight, out, b)                                                  \
    K(9, linear_bwd_weight, dtype, n, n, n, in, in, out_f, out_f, b)                               \
    K(7, linear_act_fwd, n, in, weight, in_f, act, out, out)                                       \
    K(6, linear_act_bwd, n, in, weight, act, in, out)                                              \
    K(6, conv_fwd, conv, in, weight, in_f, in, out)                                                \
    K(5, conv_bwd_input, conv, in, weight, out, b)                                                 \
    K(6, conv_bwd_weight, conv, in, in, out_f, out_f, b)                                           \
    K(5, rmsnorm_fwd, norm, in, in_f, out, out_f)                                                  \
    K(9, rmsnorm_bwd, norm, in, in_f, in_f, in, out, b, out_f, b)                                  \
    K(7, layernorm_fwd, norm, in, in_f, in_f, out, out_f, out_f)                                   \
    K(11, layernorm_bwd, norm, in, in_f, in_f, in_f, in, out, b, out_f, out_f, b)                  \
    K(7, groupnorm_fwd, groupnorm, in, in_f, in_f, out, out_f, out_f)                              \
    K(12, groupnorm_bwd, groupnorm, in, in_f, in_f, in_f, in_f, in, out, b, out_f, out_f, b)       \
    K(6, attention_fwd, attention, in, in, in, out, out_f)                                         \
    K(10, attention_bwd, attention, in, in, in, in, in_f, in, out, out, out)                       \
    K(5, attention_join, attention, in, in_f, out_f, out_f)                                        \
    K(10, rope, dtype, n, i, i, i, n, in_i, in_f, b, out)                                          \
    K(5, act_fwd, act, dtype, n, in, out)                                                          \
    K(6, act_bwd, act, dtype, n, in, in, out)                                                      \
    K(7, glu_fwd, act, dtype, n, n, b, in, out)                                                    \
    K(8, glu_bwd, act, dtype, n, n, b, in, in, out)                                                \
    K(8, embedding_fwd, dtype, n, n, n, in_i, in_f, out, b)                                        \
    K(7, embedding_bwd, dtype, n, n, n, in_i, in, out_f)                                           \
    K(5, ids_part, n, in_i, n, n, out_i)                                                           \
    K(8, rows_copy, dtype, n, n, in, in_i, out, in_i, b)                                           \
    K(8, copy2d, dtype, n, n, in, n, out, n, b)                                                    \
    K(4, route_choose, route, in_f, out_i, out_f)                                                  \
    K(6, route_sort, route, in_i, out_i, out_i, out_i, out_i)                                      \
    K(4, route_load, route, items, in_i, out_f)                                                    \
    K(5, route_even, route, items, in_f, in_f, out_f)                                              \
    K(9, route_bwd, dtype, route, in_f, in_i, in_f, items, in_f, f, out)                           \
    K(6, rows_weigh, dtype, n, n, in_f, in, out)                                                   \
    K(8, rows_weigh_bwd, dtype, n, n, in_f, in, in, out, out_f)                                    \
    K(6, rows_bias, dtype, n, n, in_f, in_f, out)                                                  \
    K(6, rows_bias_bwd, dtype, n, n, in_f, in, out_f)                                              \
    K(8, rows_join, dtype, n, i, n, in, in_i, out, b)                                              \
    K(8, mse, dtype, items, n, in, in, f, out_f, out)                                              \
    K(4, sum, n, in_f, out_d, b)                                                                   \
    K(4, clip_coef, in_d, f, out_f, out_f)                                                         \
    K(5, upsample2_fwd, dtype, images, n, in, out)                                                 \
    K(5, upsample2_bwd, dtype, images, n, in, out)                                                 \
    K(7, avgpool2_fwd, dtype, n, n, n, n, in, out)                                                 \
    K(7, avgpool2_bwd, dtype, n, n, n, n, in, out)                                                 \
    K(8, timestep, dtype, n, n, in_f, f, f, b, out)                                                \
    K(5, cast, n, dtype, in, dtype, out)                                                           \
    K(5, add, dtype, n, in, in, out)                                                               \
    K(5, scale, dtype, n, f, in, out)                                                              \
    K(8, mix, dtype, items, n, in_f, in, in_f, in, out)                                            \
    K(6, item_add, dtype, items, n, in, in, out)                                                   \
    K(6, item_sum, dtype, items, n, in, out, b)                                                    \
    K(6, bias_bwd, dtype, n, n, in, out_f, b)                                                      \
    K(6, softmax, dtype, n, n, f, in, out_f)                                                       \
    K(7, normal, dtype, n, u, u, u, f, out)                                                        \
    K(7, item_normal, dtype, items, n, u, in_u, f, out)                                            \
    K(11, dropout, dtype, items, n, u, in_u, in_i, n, n, f, in, out)
/* clang-format on */

KERNELS(KERNEL)

/* ---- cross-entropy ---- */

/* The CPU's kernel calls its caller back, with memory of its own.  A card's does it while it puts itself
 * on the queue: the host waits here instead, and the values are in device memory. */
struct xent_callbacks {
    struct dt_device_queue *q; /* the fake one */
    const struct dt_kernel_xent_parts *parts;
};

static void call_back(const struct xent_callbacks *c, size_t bytes, void *x, bool max, int64_t n)
{
    struct dt_fake *f = dt_fake_of_queue(c->q);
    struct dt_error err;
    void *p;

    if (bytes == 0)
        return;
    if (dt_fake_alloc(f, bytes, &err, &p) != DT_OK)
        dt_fake_stop("%s", err.message);
    memcpy(dt_fake_alias(p, "xent"), x, bytes);
    if (max)
        c->parts->max(c->q, c->parts->arg, n, p);
    else
        c->parts->sum(c->q, c->parts->arg, n, p);
    if (!f->set.sync)
        dt_fake_drain(c->q);
    memcpy(x, dt_fake_alias(p, "xent"), bytes);
    f->dev.free(&f->dev, p);
}

static void call_max(struct dt_device_queue *cpu, void *arg, int64_t n, float *x)
{
    (void)cpu;
    call_back(arg, (size_t)n * sizeof(*x), x, true, n);
}

static void call_sum(struct dt_device_queue *cpu, void *arg, int64_t n, double *x)
{
    (void)cpu;
    call_back(arg, (size_t)n * sizeof(*x), x, false, n);
}

struct xent_task {
    struct dt_kernel_xent c;
    struct dt_kernel_xent_parts parts;
    struct xent_callbacks callbacks;
    const void *x;
    const int32_t *target;
    float *nll, *dw;
    int32_t *best;
    void *dx;
    bool add_dw;
};

static void run_xent(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    struct xent_task *t = arg;

    if (t->c.parts) {
        t->parts.max = call_max;
        t->parts.sum = call_sum;
        t->parts.arg = &t->callbacks;
        t->c.parts = &t->parts;
    }
    dev->k->xent(cpu, &t->c, t->x, t->target, t->nll, t->best, t->dx, t->dw, t->add_dw);
}

static void fake_xent(struct dt_device_queue *q, const struct dt_kernel_xent *c, const void *x,
                      const int32_t *target, float *nll, int32_t *best, void *dx, float *dw,
                      bool add_dw)
{
    struct xent_task *t = dt_fake_task("xent", run_xent, sizeof(*t));

    *t = (struct xent_task){.c = *c,
                            .x = dt_fake_alias(x, "xent"),
                            .target = dt_fake_alias(target, "xent"),
                            .nll = dt_fake_alias(nll, "xent"),
                            .best = dt_fake_alias(best, "xent"),
                            .dx = dt_fake_alias(dx, "xent"),
                            .dw = dt_fake_alias(dw, "xent"),
                            .add_dw = add_dw};
    t->c.w = c->w->cpu;
    if (c->parts) {
        t->parts = *c->parts;
        t->callbacks = (struct xent_callbacks){q, c->parts};
        dt_fake_here(q, t);
    } else {
        dt_fake_submit(q, t);
    }
}

/* ---- sums of ranks ---- */

struct reduce_task {
    enum dt_reduce_type type;
    int64_t n;
    int members, me;
    void *x;
    const void *others[]; /* read at the call */
};

static void run_reduce(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct reduce_task *t = arg;

    dev->k->reduce(cpu, t->type, t->n, t->members, t->me, t->x, t->others);
}

static void fake_reduce(struct dt_device_queue *q, enum dt_reduce_type type, int64_t n, int members,
                        int me, void *x, const void *const *others)
{
    struct reduce_task *t =
        dt_fake_task("reduce", run_reduce, sizeof(*t) + (size_t)members * sizeof(*t->others));

    *t = (struct reduce_task){type, n, members, me, dt_fake_alias(x, "reduce")};
    for (int k = 0; k < members; k++)
        t->others[k] = k == me ? NULL : dt_fake_alias(others[k], "reduce");
    dt_fake_submit(q, t);
}

/* ---- tables of tensors, read at the call ---- */

struct adamw_task {
    struct dt_kernel_adamw h;
    int parts;
    const float *coef;
    struct dt_kernel_adamw_part part[];
};

static void run_adamw(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct adamw_task *t = arg;

    dev->k->adamw(cpu, &t->h, t->parts, t->part, t->coef);
}

static void fake_adamw(struct dt_device_queue *q, const struct dt_kernel_adamw *h, int parts,
                       const struct dt_kernel_adamw_part *part, const float *coef)
{
    struct adamw_task *t =
        dt_fake_task("adamw", run_adamw, sizeof(*t) + (size_t)parts * sizeof(*part));

    *t = (struct adamw_task){*h, parts, dt_fake_alias(coef, "adamw")};
    for (int k = 0; k < parts; k++)
        t->part[k] = (struct dt_kernel_adamw_part){part[k].n,
                                                   dt_fake_alias(part[k].p, "adamw"),
                                                   dt_fake_alias(part[k].g, "adamw"),
                                                   dt_fake_alias(part[k].m, "adamw"),
                                                   dt_fake_alias(part[k].v, "adamw"),
                                                   dt_fake_alias(part[k].copy, "adamw"),
                                                   part[k].decay};
    dt_fake_submit(q, t);
}

struct spans_task {
    double *out;
    bool add;
    int parts;
    struct dt_kernel_span part[];
};

static struct spans_task *spans(const char *what, dt_fake_task_fn *fn, int parts,
                                const struct dt_kernel_span *part)
{
    struct spans_task *t = dt_fake_task(what, fn, sizeof(*t) + (size_t)parts * sizeof(*part));

    *t = (struct spans_task){.parts = parts};
    for (int k = 0; k < parts; k++)
        t->part[k] = (struct dt_kernel_span){part[k].n, dt_fake_alias(part[k].x, what)};
    return t;
}

static void run_sum_sq(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct spans_task *t = arg;

    dev->k->sum_sq(cpu, t->parts, t->part, t->out, t->add);
}

static void fake_sum_sq(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part,
                        double *out, bool add)
{
    struct spans_task *t = spans("sum_sq", run_sum_sq, parts, part);

    t->out = dt_fake_alias(out, "sum_sq");
    t->add = add;
    dt_fake_submit(q, t);
}

static void run_zero(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct spans_task *t = arg;

    dev->k->zero(cpu, t->parts, t->part);
}

static void fake_zero(struct dt_device_queue *q, int parts, const struct dt_kernel_span *part)
{
    dt_fake_submit(q, spans("zero", run_zero, parts, part));
}

struct copy_task {
    int parts;
    struct dt_kernel_copy_part part[];
};

static void run_copy(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct copy_task *t = arg;

    dev->k->copy(cpu, t->parts, t->part);
}

static void fake_copy(struct dt_device_queue *q, int parts, const struct dt_kernel_copy_part *part)
{
    struct copy_task *t =
        dt_fake_task("copy", run_copy, sizeof(*t) + (size_t)parts * sizeof(*part));

    t->parts = parts;
    for (int k = 0; k < parts; k++)
        t->part[k] = (struct dt_kernel_copy_part){part[k].n, dt_fake_alias(part[k].from, "copy"),
                                                  dt_fake_alias(part[k].to, "copy")};
    dt_fake_submit(q, t);
}

void dt_fake_kernels(struct dt_kernels *k)
{
#define ENTRY(n, name, ...) .name = fake_##name,
    *k = (struct dt_kernels){.reduce = fake_reduce,
                             .xent = fake_xent,
                             .adamw = fake_adamw,
                             .sum_sq = fake_sum_sq,
                             .zero = fake_zero,
                             .copy = fake_copy,
                             KERNELS(ENTRY)};
    for (size_t i = 0; i < sizeof(*k) / sizeof(void (*)(void)); i++)
        if (!((void (**)(void))(void *)k)[i])
            dt_fake_stop("kernel %zu of kernels.h is not in the list", i);
}
