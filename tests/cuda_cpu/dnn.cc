// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// cuDNN's backend interface on a CPU: descriptors with their attributes, which are held to what cudnn_graph.h says of
// their types and numbers; graphs whose tensors go together and come before they are read; plans.  It is there with
// CUCPU_DNN=yes only.  CUCPU_DNN_REFUSES=conv, attention: it has no plan for those.  CUCPU_DNN_VERSION=N: version N (91900),
// with what that is known to do wrong.
//
// It names three configurations for a graph: one that adds in any order, one that cannot be planned after all, and the
// third, which wants 4,096 bytes of workspace.  Only that one may be run.
#include "dnn.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>

extern "C" {
#include "base/status.h"
}
#include "kernels/cuda/dnn.h"

void cucpu_dnn_stop(const char *what)
{
    fprintf(stderr, "cuDNN on the cpu: %s\n", what);
    abort();
}

size_t cucpu_dnn_version()
{
    const char *env = getenv("CUCPU_DNN_VERSION");

    return env ? size_t(atoi(env)) : 91900;
}

namespace
{

typedef cucpu_dnn_descriptor descriptor;
enum { ROOM = 4096, FAILED = 5000 };

struct handle {
    cudaStream_t stream = nullptr;
};

std::atomic<unsigned>
    ran[5]; // forward, data, filter of convolutions; forward, backward of attention
std::atomic<int> alive;

bool is_op(int kind)
{
    return (kind >= DT_DNN_OPERATION_CONVOLUTION_FORWARD && kind <= DT_DNN_OPERATION_POINTWISE) ||
           kind == DT_DNN_OPERATION_MATMUL || kind == DT_DNN_OPERATION_REDUCTION ||
           kind == DT_DNN_OPERATION_RESHAPE;
}

// What descriptors have: their attributes, of which type, and how many elements at most.  Where `needed`, it is an error
// to finalize without.
struct rule {
    int kind, name, type;
    int64_t most;
    bool needed;
};
const rule rules[] = {
    {DT_DNN_TENSOR, DT_DNN_TENSOR_BYTE_ALIGNMENT, DT_DNN_T_INT64, 1, true},
    {DT_DNN_TENSOR, DT_DNN_TENSOR_DATA_TYPE, DT_DNN_T_DATA_TYPE, 1, true},
    {DT_DNN_TENSOR, DT_DNN_TENSOR_DIMENSIONS, DT_DNN_T_INT64, 4, true},
    {DT_DNN_TENSOR, DT_DNN_TENSOR_STRIDES, DT_DNN_T_INT64, 4, true},
    {DT_DNN_TENSOR, DT_DNN_TENSOR_UNIQUE_ID, DT_DNN_T_INT64, 1, true},
    {DT_DNN_TENSOR, DT_DNN_TENSOR_IS_VIRTUAL, DT_DNN_T_BOOLEAN, 1, false},
    {DT_DNN_TENSOR, DT_DNN_TENSOR_IS_BY_VALUE, DT_DNN_T_BOOLEAN, 1, false},
    {DT_DNN_POINTWISE, DT_DNN_POINTWISE_MODE, DT_DNN_T_POINTWISE_MODE, 1, true},
    {DT_DNN_POINTWISE, DT_DNN_POINTWISE_MATH_PREC, DT_DNN_T_DATA_TYPE, 1, true},
    {DT_DNN_POINTWISE, DT_DNN_POINTWISE_AXIS, DT_DNN_T_INT64, 1, false},
    {DT_DNN_CONVOLUTION, DT_DNN_CONVOLUTION_COMP_TYPE, DT_DNN_T_DATA_TYPE, 1, true},
    {DT_DNN_CONVOLUTION, DT_DNN_CONVOLUTION_CONV_MODE, DT_DNN_T_CONVOLUTION_MODE, 1, true},
    {DT_DNN_CONVOLUTION, DT_DNN_CONVOLUTION_SPATIAL_DIMS, DT_DNN_T_INT64, 1, true},
    {DT_DNN_CONVOLUTION, DT_DNN_CONVOLUTION_DILATIONS, DT_DNN_T_INT64, 2, true},
    {DT_DNN_CONVOLUTION, DT_DNN_CONVOLUTION_FILTER_STRIDES, DT_DNN_T_INT64, 2, true},
    {DT_DNN_CONVOLUTION, DT_DNN_CONVOLUTION_PRE_PADDINGS, DT_DNN_T_INT64, 2, true},
    {DT_DNN_CONVOLUTION, DT_DNN_CONVOLUTION_POST_PADDINGS, DT_DNN_T_INT64, 2, true},
    {DT_DNN_MATMUL, DT_DNN_MATMUL_COMP_TYPE, DT_DNN_T_DATA_TYPE, 1, true},
    {DT_DNN_REDUCTION, DT_DNN_REDUCTION_OPERATOR, DT_DNN_T_REDUCTION_OPERATOR, 1, true},
    {DT_DNN_REDUCTION, DT_DNN_REDUCTION_COMP_TYPE, DT_DNN_T_DATA_TYPE, 1, true},
    {DT_DNN_OPERATION_POINTWISE, DT_DNN_POINTWISE_DESCRIPTOR, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_POINTWISE, DT_DNN_POINTWISE_X, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_POINTWISE, DT_DNN_POINTWISE_B, DT_DNN_T_DESCRIPTOR, 1, false},
    {DT_DNN_OPERATION_POINTWISE, DT_DNN_POINTWISE_T, DT_DNN_T_DESCRIPTOR, 1, false},
    {DT_DNN_OPERATION_POINTWISE, DT_DNN_POINTWISE_Y, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_MATMUL, DT_DNN_MATMUL_A, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_MATMUL, DT_DNN_MATMUL_B, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_MATMUL, DT_DNN_MATMUL_C, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_MATMUL, DT_DNN_MATMUL_DESCRIPTOR, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_REDUCTION, DT_DNN_REDUCTION_X, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_REDUCTION, DT_DNN_REDUCTION_Y, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_REDUCTION, DT_DNN_REDUCTION_DESCRIPTOR, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_RESHAPE, DT_DNN_RESHAPE_X, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATION_RESHAPE, DT_DNN_RESHAPE_Y, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_OPERATIONGRAPH, DT_DNN_GRAPH_OPS, DT_DNN_T_DESCRIPTOR, 32, true},
    {DT_DNN_OPERATIONGRAPH, DT_DNN_GRAPH_HANDLE, DT_DNN_T_HANDLE, 1, true},
    {DT_DNN_ENGINEHEUR, DT_DNN_ENGINEHEUR_OPERATION_GRAPH, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_ENGINEHEUR, DT_DNN_ENGINEHEUR_MODE, DT_DNN_T_HEUR_MODE, 1, true},
    {DT_DNN_EXECUTION_PLAN, DT_DNN_PLAN_HANDLE, DT_DNN_T_HANDLE, 1, true},
    {DT_DNN_EXECUTION_PLAN, DT_DNN_PLAN_ENGINE_CONFIG, DT_DNN_T_DESCRIPTOR, 1, true},
    {DT_DNN_VARIANT_PACK, DT_DNN_PACK_UNIQUE_IDS, DT_DNN_T_INT64, 32, true},
    {DT_DNN_VARIANT_PACK, DT_DNN_PACK_DATA_POINTERS, DT_DNN_T_VOID_PTR, 32, true},
    {DT_DNN_VARIANT_PACK, DT_DNN_PACK_WORKSPACE, DT_DNN_T_VOID_PTR, 1, true},
};

// The three operations of convolutions: factors, then the convolution and three tensors.
bool conv_rule(int kind, int name, rule *r)
{
    int first = kind == DT_DNN_OPERATION_CONVOLUTION_FORWARD           ? DT_DNN_FORWARD_ALPHA
                : kind == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA   ? DT_DNN_DATA_ALPHA
                : kind == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER ? DT_DNN_FILTER_ALPHA
                                                                       : 1 << 20;

    *r = {kind, name, name < first + 2 ? DT_DNN_T_FLOAT : DT_DNN_T_DESCRIPTOR, 1, true};
    return name >= first && name < first + 6;
}

rule rule_of(int kind, int name)
{
    rule r;

    for (const rule &x : rules)
        if (x.kind == kind && x.name == name)
            return x;
    if (!conv_rule(kind, name, &r))
        cucpu_dnn_stop("an attribute that the descriptor does not have");
    return r;
}

size_t bytes_of(int type)
{
    switch (type) {
    case DT_DNN_T_BOOLEAN:
    case DT_DNN_T_CHAR:
        return 1;
    case DT_DNN_T_INT64:
    case DT_DNN_T_HANDLE:
    case DT_DNN_T_VOID_PTR:
    case DT_DNN_T_DESCRIPTOR:
        return 8;
    default:
        return 4;
    }
}

descriptor *of(void *d)
{
    return static_cast<descriptor *>(d);
}

// ---- graphs ----

// Tensors that are read have been written before, or are the caller's; none is written twice; one id is one tensor.
void check_graph(descriptor *g)
{
    std::map<int64_t, const descriptor *> known;
    std::set<int64_t> written;
    auto meet = [&](const descriptor *t) {
        int64_t id = t->get<int64_t>(DT_DNN_TENSOR_UNIQUE_ID);
        auto it = known.emplace(id, t).first;

        if (it->second != t)
            cucpu_dnn_stop("two tensors have the same id");
        return id;
    };

    for (int64_t i = 0; i < g->has.at(DT_DNN_GRAPH_OPS).n; i++) {
        const descriptor *op = g->of(DT_DNN_GRAPH_OPS, i);

        if (!is_op(op->kind) || !op->ready)
            cucpu_dnn_stop("a graph of something else than finalized operations");
        for (const descriptor *t : cucpu_dnn_reads(op)) {
            int64_t id = meet(t);

            if (t->is(DT_DNN_TENSOR_IS_VIRTUAL) && !written.count(id))
                cucpu_dnn_stop("an operation reads what nobody has written");
            if (!t->is(DT_DNN_TENSOR_IS_VIRTUAL) && !written.count(id))
                g->reads.push_back(id);
        }
        const descriptor *to = cucpu_dnn_writes(op);
        int64_t id = meet(to);

        if (!written.insert(id).second || to->is(DT_DNN_TENSOR_IS_BY_VALUE))
            cucpu_dnn_stop("a tensor is written twice, or is a number of the host");
        if (!to->is(DT_DNN_TENSOR_IS_VIRTUAL))
            g->writes.push_back(id);
    }
}

int what_is(const descriptor *g)
{
    int kind = g->of(DT_DNN_GRAPH_OPS)->kind, products = 0;

    if (kind == DT_DNN_OPERATION_CONVOLUTION_FORWARD)
        return 0;
    if (kind == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA)
        return 1;
    if (kind == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER)
        return 2;
    for (int64_t i = 0; i < g->has.at(DT_DNN_GRAPH_OPS).n; i++)
        products += g->of(DT_DNN_GRAPH_OPS, i)->kind == DT_DNN_OPERATION_MATMUL;
    return products == 2 ? 3 : 4;
}

bool refuses(const descriptor *g)
{
    const char *env = getenv("CUCPU_DNN_REFUSES");

    return env && strcmp(env, what_is(g) < 3 ? "conv" : "attention") == 0;
}

// ---- the interface ----

void last_error(char *text, size_t size)
{
    snprintf(text, size, "what a test has asked for");
}
int create(void **h)
{
    if (cucpu_fails("cudnnCreate"))
        return FAILED;
    *h = new handle;
    alive++;
    return DT_DNN_SUCCESS;
}
// With CUCPU_DNN_TELLS=FILE: how often graphs of each kind have run until then.
int destroy(void *h)
{
    const char *file = getenv("CUCPU_DNN_TELLS");

    if (FILE *f = file ? fopen(file, "a") : nullptr) {
        fprintf(f, "%u %u %u %u %u\n", ran[0].load(), ran[1].load(), ran[2].load(), ran[3].load(),
                ran[4].load());
        fclose(f);
    }
    delete static_cast<handle *>(h);
    alive--;
    return DT_DNN_SUCCESS;
}
int set_stream(void *h, void *s)
{
    if (cucpu_fails("cudnnSetStream"))
        return FAILED;
    static_cast<handle *>(h)->stream = static_cast<cudaStream_t>(s);
    return DT_DNN_SUCCESS;
}
int new_descriptor(int kind, void **d)
{
    if (cucpu_fails("cudnnBackendCreateDescriptor"))
        return FAILED;
    *d = new descriptor{kind};
    alive++;
    return DT_DNN_SUCCESS;
}
int end_descriptor(void *d)
{
    delete of(d);
    alive--;
    return DT_DNN_SUCCESS;
}

int set(void *p, int name, int type, int64_t n, const void *from)
{
    if (cucpu_fails("cudnnBackendSetAttribute"))
        return FAILED;
    descriptor *d = of(p);
    rule r = rule_of(d->kind, name);
    const unsigned char *bytes = static_cast<const unsigned char *>(from);

    if (d->ready)
        cucpu_dnn_stop("an attribute is set after its descriptor was finalized");
    if (r.type != type || n < 1 || n > r.most)
        cucpu_dnn_stop("an attribute of another type, or of too many elements");
    d->has[name] = {type, n, std::vector<unsigned char>(bytes, bytes + size_t(n) * bytes_of(type))};
    return DT_DNN_SUCCESS;
}

void check_tensor(const descriptor *d)
{
    if (d->has.at(DT_DNN_TENSOR_DIMENSIONS).n != d->has.at(DT_DNN_TENSOR_STRIDES).n)
        cucpu_dnn_stop("dimensions and strides of another number");
    for (int64_t i = 0; i < d->has.at(DT_DNN_TENSOR_DIMENSIONS).n; i++)
        if (d->get<int64_t>(DT_DNN_TENSOR_DIMENSIONS, i) < 1 ||
            d->get<int64_t>(DT_DNN_TENSOR_STRIDES, i) < 1)
            cucpu_dnn_stop("a dimension or a stride below 1");
}

int finalize(void *p)
{
    if (cucpu_fails("cudnnBackendFinalize"))
        return FAILED;
    descriptor *d = of(p);

    for (const rule &r : rules)
        if (r.kind == d->kind && r.needed && !d->has.count(r.name))
            cucpu_dnn_stop("a descriptor is finalized without an attribute that it needs");
    for (const auto &a : d->has)
        for (int64_t i = 0; a.second.type == DT_DNN_T_DESCRIPTOR && i < a.second.n; i++)
            if (!d->of(a.first, i)->ready)
                cucpu_dnn_stop("a descriptor is made of one that is not finalized");
    if (d->kind == DT_DNN_TENSOR)
        check_tensor(d);
    if (is_op(d->kind))
        cucpu_dnn_check(d);
    if (d->kind == DT_DNN_OPERATIONGRAPH)
        check_graph(d);
    if (d->kind == DT_DNN_EXECUTION_PLAN)
        cucpu_loads("a plan of cuDNN's");
    if (d->kind == DT_DNN_EXECUTION_PLAN && d->of(DT_DNN_PLAN_ENGINE_CONFIG)->number == 1)
        return DT_DNN_NOT_SUPPORTED;
    d->ready = true;
    return DT_DNN_SUCCESS;
}

// Configurations for a graph, to descriptors that the caller has made.
int results(const descriptor *d, int64_t most, int64_t *n, void *p)
{
    const descriptor *g = d->of(DT_DNN_ENGINEHEUR_OPERATION_GRAPH);
    void **to = static_cast<void **>(p);

    if (refuses(g) || d->get<int>(DT_DNN_ENGINEHEUR_MODE) != DT_DNN_HEUR_A) {
        *n = 0;
        return DT_DNN_NOT_SUPPORTED;
    }
    *n = most < 3 ? most : 3;
    for (int i = 0; i < *n; i++) {
        descriptor *c = of(to[i]);

        if (c->kind != DT_DNN_ENGINECFG)
            cucpu_dnn_stop("configurations go to descriptors of another kind");
        c->number = i;
        c->has[DT_DNN_ENGINEHEUR_OPERATION_GRAPH] = d->has.at(DT_DNN_ENGINEHEUR_OPERATION_GRAPH);
        c->ready = true;
    }
    return DT_DNN_SUCCESS;
}

int get(void *p, int name, int type, int64_t most, int64_t *n, void *to)
{
    if (cucpu_fails("cudnnBackendGetAttribute"))
        return FAILED;
    descriptor *d = of(p);

    if (d->kind == DT_DNN_ENGINEHEUR && name == DT_DNN_ENGINEHEUR_RESULTS &&
        type == DT_DNN_T_DESCRIPTOR && d->ready)
        return results(d, most, n, to);
    *n = 1;
    if (d->kind == DT_DNN_ENGINECFG && name == DT_DNN_ENGINECFG_ENGINE) {
        descriptor *e = of(*static_cast<void **>(to));

        e->number = d->number;
        return DT_DNN_SUCCESS;
    }
    if (d->kind == DT_DNN_ENGINE && name == DT_DNN_ENGINE_NUMERICAL_NOTE && most >= DT_DNN_NOTES) {
        int notes[] = {0, DT_DNN_NOTE_NONDETERMINISTIC};

        *n = d->number == 0 ? 2 : 1;
        memcpy(to, notes, size_t(*n) * sizeof(int));
        return DT_DNN_SUCCESS;
    }
    if (d->kind == DT_DNN_EXECUTION_PLAN && name == DT_DNN_PLAN_WORKSPACE_SIZE) {
        *static_cast<int64_t *>(to) = ROOM;
        return DT_DNN_SUCCESS;
    }
    cucpu_dnn_stop("an attribute is asked for that the descriptor does not have");
}

// Does the pack name all that the graph reads and writes, and nothing is written where something is read?
cucpu_dnn_places places_of(const descriptor *g, const descriptor *pack, bool captured)
{
    cucpu_dnn_places at;

    for (int64_t i = 0; i < pack->has.at(DT_DNN_PACK_UNIQUE_IDS).n; i++)
        at[pack->get<int64_t>(DT_DNN_PACK_UNIQUE_IDS, i)] =
            pack->get<void *>(DT_DNN_PACK_DATA_POINTERS, i);
    for (int64_t id : g->reads)
        if (!at.count(id) || !at[id])
            cucpu_dnn_stop("a pack without a tensor that is read");
    for (int64_t id : g->writes) {
        if (!at.count(id) || reinterpret_cast<uintptr_t>(at[id]) % 16 != 0)
            cucpu_dnn_stop("a pack without a tensor that is written, or one that is not aligned");
        for (int64_t other : g->reads)
            if (at[other] == at[id] && !captured)
                cucpu_dnn_stop("a graph writes what it reads");
    }
    return at;
}

int execute(void *h, void *plan, void *packed)
{
    if (cucpu_fails("cudnnBackendExecute"))
        return FAILED;
    const descriptor *config = of(plan)->of(DT_DNN_PLAN_ENGINE_CONFIG), *pack = of(packed);
    const descriptor *g = config->of(DT_DNN_ENGINEHEUR_OPERATION_GRAPH);
    void *room = cucpu_seen(pack->get<void *>(DT_DNN_PACK_WORKSPACE), "cuDNN's workspace");
    cudaStream_t s = static_cast<handle *>(h)->stream;
    bool captured = cucpu_capturing(s);
    cucpu_dnn_places at = places_of(g, pack, captured);
    std::map<int64_t, float> numbers; // of the host: read now

    if (config->number != 2 || !of(plan)->ready || !pack->ready || !s || !room)
        cucpu_dnn_stop("a plan that should not be run");
    if (!of(plan)->ran)
        cucpu_loads("the first run of a plan of cuDNN's");
    of(plan)->ran = true;
    for (int64_t i = 0; i < g->has.at(DT_DNN_GRAPH_OPS).n; i++)
        for (const descriptor *t : cucpu_dnn_reads(g->of(DT_DNN_GRAPH_OPS, i))) {
            int64_t id = t->get<int64_t>(DT_DNN_TENSOR_UNIQUE_ID);

            if (t->is(DT_DNN_TENSOR_IS_BY_VALUE))
                numbers[id] = *static_cast<float *>(at.at(id));
            else if (reinterpret_cast<uintptr_t>(at[id]) % 16 != 0)
                cucpu_dnn_stop("a tensor that is not aligned");
        }
    for (auto &p : at)
        if (!numbers.count(p.first))
            p.second = cucpu_seen(p.second, "cuDNN");
    if (captured)
        return DT_DNN_SUCCESS;
    ran[what_is(g)]++;
    if (cucpu_dry())
        return DT_DNN_SUCCESS;
    // The plan lives as long as its device: what runs later may look at it.
    cucpu_task(s, "cuDNN", [g, at, numbers, room]() mutable {
        memset(room, 0xff, ROOM);
        for (auto &x : numbers)
            at[x.first] = &x.second;
        cucpu_dnn_run(g, at);
    });
    return DT_DNN_SUCCESS;
}

} // namespace

// How often graphs of a kind have run: the three of convolutions, the two of attention.
extern "C" __attribute__((visibility("default"))) void cucpu_dnn_ran(unsigned out[5])
{
    for (int i = 0; i < 5; i++)
        out[i] = ran[i];
}

// Handles and descriptors that there are.
extern "C" __attribute__((visibility("default"))) int cucpu_dnn_left()
{
    return alive;
}

// In place of lt.cu.
const struct dt_cuda_dnn *dt_cuda_dnn_load(struct dt_error *err)
{
    static const struct dt_cuda_dnn dnn = {
        cucpu_dnn_version, last_error, create, destroy,  set_stream, new_descriptor,
        end_descriptor,    set,        get,    finalize, execute};
    const char *env = getenv("CUCPU_DNN");

    if (env && strcmp(env, "yes") == 0)
        return &dnn;
    dt_error_set(err, DT_ERR_INPUT, "cuda: there is no cuDNN (CUCPU_DNN=yes: there is)");
    return NULL;
}
