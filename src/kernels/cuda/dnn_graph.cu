/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Descriptors of cuDNN's tensors, operations and plans. */
#include "kernels/cuda/dnn_graph.h"

#include <assert.h>
#include <string.h>

enum { ALIGNMENT = 16, CONFIGURATIONS = 32 };

void dt_cuda_dnn_graph_begin(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn *fn)
{
    memset(g, 0, sizeof(*g));
    g->fn = fn;
    g->next_virtual = DT_DNN_UID_FIRST_VIRTUAL;
}

void dt_cuda_dnn_graph_end(struct dt_cuda_dnn_graph *g)
{
    while (g->n > 0) /* what was made of others goes before them */
        g->fn->BackendDestroyDescriptor(g->made[--g->n]);
    g->n_ops = 0;
}

static void note(struct dt_cuda_dnn_graph *g, int status)
{
    if (g->status == DT_DNN_SUCCESS)
        g->status = status;
}

void *dt_cuda_dnn_new(struct dt_cuda_dnn_graph *g, enum dt_cuda_dnn_kind kind)
{
    void *d = NULL;

    if (g->status != DT_DNN_SUCCESS)
        return NULL;
    assert(g->n < DT_DNN_DESCRIPTORS);
    note(g, g->fn->BackendCreateDescriptor(kind, &d));
    if (g->status != DT_DNN_SUCCESS)
        return NULL;
    g->made[g->n++] = d;
    return d;
}

void dt_cuda_dnn_set(struct dt_cuda_dnn_graph *g, void *d, int name, int type, int64_t n,
                     const void *p)
{
    if (g->status == DT_DNN_SUCCESS)
        note(g, g->fn->BackendSetAttribute(d, name, type, n, p));
}

void dt_cuda_dnn_finalize(struct dt_cuda_dnn_graph *g, void *d)
{
    if (g->status == DT_DNN_SUCCESS)
        note(g, g->fn->BackendFinalize(d));
}

static void set_descriptor(struct dt_cuda_dnn_graph *g, void *d, int name,
                           const struct dt_cuda_dnn_value *x)
{
    if (x)
        dt_cuda_dnn_set(g, d, name, DT_DNN_T_DESCRIPTOR, 1, &x->d);
}

/* ---- tensors ---- */

struct dt_cuda_dnn_value dt_cuda_dnn_tensor(struct dt_cuda_dnn_graph *g,
                                            const struct dt_cuda_dnn_tensor *t)
{
    struct dt_cuda_dnn_value v = {};
    int64_t alignment = ALIGNMENT;

    if (!t->is_virtual) {
        assert(g->n_places < DT_DNN_PLACES);
        g->place[g->n_places].uid = t->uid;
        g->place[g->n_places++].by_value = t->by_value;
    }
    v.d = dt_cuda_dnn_new(g, DT_DNN_TENSOR);
    memcpy(v.dim, t->dim, sizeof(v.dim));
    dt_cuda_dnn_set(g, v.d, DT_DNN_TENSOR_DATA_TYPE, DT_DNN_T_DATA_TYPE, 1, &t->type);
    dt_cuda_dnn_set(g, v.d, DT_DNN_TENSOR_DIMENSIONS, DT_DNN_T_INT64, 4, t->dim);
    dt_cuda_dnn_set(g, v.d, DT_DNN_TENSOR_STRIDES, DT_DNN_T_INT64, 4, t->stride);
    dt_cuda_dnn_set(g, v.d, DT_DNN_TENSOR_UNIQUE_ID, DT_DNN_T_INT64, 1, &t->uid);
    dt_cuda_dnn_set(g, v.d, DT_DNN_TENSOR_BYTE_ALIGNMENT, DT_DNN_T_INT64, 1, &alignment);
    if (t->is_virtual)
        dt_cuda_dnn_set(g, v.d, DT_DNN_TENSOR_IS_VIRTUAL, DT_DNN_T_BOOLEAN, 1, &t->is_virtual);
    if (t->by_value)
        dt_cuda_dnn_set(g, v.d, DT_DNN_TENSOR_IS_BY_VALUE, DT_DNN_T_BOOLEAN, 1, &t->by_value);
    dt_cuda_dnn_finalize(g, v.d);
    return v;
}

struct dt_cuda_dnn_value dt_cuda_dnn_between(struct dt_cuda_dnn_graph *g, int type, int64_t a,
                                             int64_t b, int64_t c, int64_t d)
{
    struct dt_cuda_dnn_tensor t = {g->next_virtual++,        type, {a, b, c, d},
                                   {b * c * d, c * d, d, 1}, true, false};

    return dt_cuda_dnn_tensor(g, &t);
}

/* ---- operations ---- */

void dt_cuda_dnn_add_op(struct dt_cuda_dnn_graph *g, void *op)
{
    dt_cuda_dnn_finalize(g, op);
    if (g->status != DT_DNN_SUCCESS)
        return;
    assert(g->n_ops < DT_DNN_OPS);
    g->ops[g->n_ops++] = op;
}

void dt_cuda_dnn_pointwise(struct dt_cuda_dnn_graph *g, int mode, int type,
                           const struct dt_cuda_dnn_value *x, const struct dt_cuda_dnn_value *b,
                           const struct dt_cuda_dnn_value *t, const struct dt_cuda_dnn_value *y,
                           int64_t axis)
{
    void *how = dt_cuda_dnn_new(g, DT_DNN_POINTWISE), *op;

    dt_cuda_dnn_set(g, how, DT_DNN_POINTWISE_MODE, DT_DNN_T_POINTWISE_MODE, 1, &mode);
    dt_cuda_dnn_set(g, how, DT_DNN_POINTWISE_MATH_PREC, DT_DNN_T_DATA_TYPE, 1, &type);
    if (mode == DT_DNN_GEN_INDEX)
        dt_cuda_dnn_set(g, how, DT_DNN_POINTWISE_AXIS, DT_DNN_T_INT64, 1, &axis);
    dt_cuda_dnn_finalize(g, how);
    op = dt_cuda_dnn_new(g, DT_DNN_OPERATION_POINTWISE);
    dt_cuda_dnn_set(g, op, DT_DNN_POINTWISE_DESCRIPTOR, DT_DNN_T_DESCRIPTOR, 1, &how);
    set_descriptor(g, op, DT_DNN_POINTWISE_X, x);
    set_descriptor(g, op, DT_DNN_POINTWISE_B, b);
    set_descriptor(g, op, DT_DNN_POINTWISE_T, t);
    set_descriptor(g, op, DT_DNN_POINTWISE_Y, y);
    dt_cuda_dnn_add_op(g, op);
}

void dt_cuda_dnn_matmul(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_value *a,
                        const struct dt_cuda_dnn_value *b, const struct dt_cuda_dnn_value *c)
{
    void *how = dt_cuda_dnn_new(g, DT_DNN_MATMUL), *op;
    int type = DT_DNN_FLOAT;

    dt_cuda_dnn_set(g, how, DT_DNN_MATMUL_COMP_TYPE, DT_DNN_T_DATA_TYPE, 1, &type);
    dt_cuda_dnn_finalize(g, how);
    op = dt_cuda_dnn_new(g, DT_DNN_OPERATION_MATMUL);
    set_descriptor(g, op, DT_DNN_MATMUL_A, a);
    set_descriptor(g, op, DT_DNN_MATMUL_B, b);
    set_descriptor(g, op, DT_DNN_MATMUL_C, c);
    dt_cuda_dnn_set(g, op, DT_DNN_MATMUL_DESCRIPTOR, DT_DNN_T_DESCRIPTOR, 1, &how);
    dt_cuda_dnn_add_op(g, op);
}

void dt_cuda_dnn_reduce(struct dt_cuda_dnn_graph *g, int op_kind, const struct dt_cuda_dnn_value *x,
                        const struct dt_cuda_dnn_value *y)
{
    void *how = dt_cuda_dnn_new(g, DT_DNN_REDUCTION), *op;
    int type = DT_DNN_FLOAT;

    dt_cuda_dnn_set(g, how, DT_DNN_REDUCTION_OPERATOR, DT_DNN_T_REDUCTION_OPERATOR, 1, &op_kind);
    dt_cuda_dnn_set(g, how, DT_DNN_REDUCTION_COMP_TYPE, DT_DNN_T_DATA_TYPE, 1, &type);
    dt_cuda_dnn_finalize(g, how);
    op = dt_cuda_dnn_new(g, DT_DNN_OPERATION_REDUCTION);
    set_descriptor(g, op, DT_DNN_REDUCTION_X, x);
    set_descriptor(g, op, DT_DNN_REDUCTION_Y, y);
    dt_cuda_dnn_set(g, op, DT_DNN_REDUCTION_DESCRIPTOR, DT_DNN_T_DESCRIPTOR, 1, &how);
    dt_cuda_dnn_add_op(g, op);
}

void dt_cuda_dnn_reshape(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_value *x,
                         const struct dt_cuda_dnn_value *y)
{
    void *op = dt_cuda_dnn_new(g, DT_DNN_OPERATION_RESHAPE);

    set_descriptor(g, op, DT_DNN_RESHAPE_X, x);
    set_descriptor(g, op, DT_DNN_RESHAPE_Y, y);
    dt_cuda_dnn_add_op(g, op);
}

/* ---- plans ---- */

/* Does the configuration's engine add in an order that changes from run to run? */
static bool changes(struct dt_cuda_dnn_graph *g, void *config)
{
    int notes[DT_DNN_NOTES];
    void *engine = dt_cuda_dnn_new(g, DT_DNN_ENGINE);
    int64_t n = 0;
    bool found;

    if (!engine)
        return true;
    found =
        g->fn->BackendGetAttribute(config, DT_DNN_ENGINECFG_ENGINE, DT_DNN_T_DESCRIPTOR, 1, &n,
                                   &engine) == DT_DNN_SUCCESS &&
        g->fn->BackendGetAttribute(engine, DT_DNN_ENGINE_NUMERICAL_NOTE, DT_DNN_T_NUMERICAL_NOTE,
                                   DT_DNN_NOTES, &n, notes) == DT_DNN_SUCCESS;
    for (int64_t i = 0; found && i < n; i++)
        if (notes[i] == DT_DNN_NOTE_NONDETERMINISTIC)
            found = false;
    g->fn->BackendDestroyDescriptor(engine);
    g->n--; /* the last one made */
    return !found;
}

/* A plan of the configuration, or NULL: engines refuse what they cannot do when they are asked for a plan. */
static void *plan_of(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_card *card,
                     void *const *config, int64_t room, int64_t *workspace)
{
    void *plan = dt_cuda_dnn_new(g, DT_DNN_EXECUTION_PLAN);
    int64_t n = 0;
    int st;

    if (!plan)
        return NULL;
    st = card->handle ? g->fn->BackendSetAttribute(plan, DT_DNN_PLAN_HANDLE, DT_DNN_T_HANDLE, 1,
                                                   &card->handle)
                      : g->fn->BackendSetAttribute(plan, DT_DNN_PLAN_DEVICEPROP,
                                                   DT_DNN_T_DESCRIPTOR, 1, &card->properties);
    if (st == DT_DNN_SUCCESS)
        st = g->fn->BackendSetAttribute(plan, DT_DNN_PLAN_ENGINE_CONFIG, DT_DNN_T_DESCRIPTOR, 1,
                                        config);
    if (st == DT_DNN_SUCCESS)
        st = g->fn->BackendFinalize(plan);
    if (st == DT_DNN_SUCCESS)
        st = g->fn->BackendGetAttribute(plan, DT_DNN_PLAN_WORKSPACE_SIZE, DT_DNN_T_INT64, 1, &n,
                                        workspace);
    if (st == DT_DNN_SUCCESS && *workspace <= room)
        return plan;
    g->fn->BackendDestroyDescriptor(plan);
    g->n--;
    return NULL;
}

/* What the library suggests in one of its ways to look for it. */
static void *plan_by(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_card *card, void *graph,
                     int mode, int64_t room, int64_t *workspace, int *tried)
{
    void *heur = dt_cuda_dnn_new(g, DT_DNN_ENGINEHEUR), *config[CONFIGURATIONS], *plan = NULL;
    int64_t n = 0;

    dt_cuda_dnn_set(g, heur, DT_DNN_ENGINEHEUR_OPERATION_GRAPH, DT_DNN_T_DESCRIPTOR, 1, &graph);
    dt_cuda_dnn_set(g, heur, DT_DNN_ENGINEHEUR_MODE, DT_DNN_T_HEUR_MODE, 1, &mode);
    if (!card->handle)
        dt_cuda_dnn_set(g, heur, DT_DNN_ENGINEHEUR_DEVICEPROP, DT_DNN_T_DESCRIPTOR, 1,
                        &card->properties);
    if (g->status != DT_DNN_SUCCESS || g->fn->BackendFinalize(heur) != DT_DNN_SUCCESS)
        return NULL;
    for (int i = 0; i < CONFIGURATIONS; i++)
        config[i] = dt_cuda_dnn_new(g, DT_DNN_ENGINECFG);
    if (g->status != DT_DNN_SUCCESS ||
        g->fn->BackendGetAttribute(heur, DT_DNN_ENGINEHEUR_RESULTS, DT_DNN_T_DESCRIPTOR,
                                   CONFIGURATIONS, &n, config) != DT_DNN_SUCCESS)
        return NULL;
    for (int64_t i = 0; i < n && i < CONFIGURATIONS && !plan; i++, ++*tried)
        if (!changes(g, config[i]))
            plan = plan_of(g, card, &config[i], room, workspace);
    return plan;
}

void *dt_cuda_dnn_plan(struct dt_cuda_dnn_graph *g, const struct dt_cuda_dnn_card *card,
                       int64_t room, int64_t *workspace, int *tried)
{
    void *graph = dt_cuda_dnn_new(g, DT_DNN_OPERATIONGRAPH), *plan;

    *tried = 0;
    dt_cuda_dnn_set(g, graph, DT_DNN_GRAPH_OPS, DT_DNN_T_DESCRIPTOR, g->n_ops, g->ops);
    if (card->handle)
        dt_cuda_dnn_set(g, graph, DT_DNN_GRAPH_HANDLE, DT_DNN_T_HANDLE, 1, &card->handle);
    dt_cuda_dnn_finalize(g, graph);
    if (g->status != DT_DNN_SUCCESS)
        return NULL;
    plan = plan_by(g, card, graph, DT_DNN_HEUR_A, room, workspace, tried);
    return plan ? plan : plan_by(g, card, graph, DT_DNN_HEUR_FALLBACK, room, workspace, tried);
}
