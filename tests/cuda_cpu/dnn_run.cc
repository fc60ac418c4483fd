// SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
//
// What cuDNN's operations mean, by the definitions in its documentation ("Operations", Graph API), element by element
// in double.
#include "dnn.h"
#include "kernels/cuda/dnn_graph.h"

#include <cmath>
#include <unordered_map>

namespace
{

typedef cucpu_dnn_descriptor descriptor;

struct tensor {
    int64_t id, dim[4], stride[4];
    int type;
    bool kept; // between operations only
};

tensor tensor_of(const descriptor *d)
{
    tensor t;

    t.id = d->get<int64_t>(DT_DNN_TENSOR_UNIQUE_ID);
    t.type = d->get<int>(DT_DNN_TENSOR_DATA_TYPE);
    t.kept = d->is(DT_DNN_TENSOR_IS_VIRTUAL);
    if (d->has.at(DT_DNN_TENSOR_DIMENSIONS).n != 4)
        cucpu_dnn_stop("a tensor of other than four dimensions");
    for (int i = 0; i < 4; i++) {
        t.dim[i] = d->get<int64_t>(DT_DNN_TENSOR_DIMENSIONS, i);
        t.stride[i] = d->get<int64_t>(DT_DNN_TENSOR_STRIDES, i);
    }
    return t;
}

// Calls fn(index, number of the element in order).
template <typename F> void each(const int64_t dim[4], F fn)
{
    int64_t i[4], at = 0;

    for (i[0] = 0; i[0] < dim[0]; i[0]++)
        for (i[1] = 0; i[1] < dim[1]; i[1]++)
            for (i[2] = 0; i[2] < dim[2]; i[2]++)
                for (i[3] = 0; i[3] < dim[3]; i[3]++)
                    fn(i, at++);
}

int64_t offset(const tensor &t, const int64_t i[4])
{
    return i[0] * t.stride[0] + i[1] * t.stride[1] + i[2] * t.stride[2] + i[3] * t.stride[3];
}

double rounded(int type, double x)
{
    float f = float(x);
    uint32_t u;

    if (type == DT_DNN_INT32 || type == DT_DNN_BOOL)
        return x;
    if (type == DT_DNN_BF16 && f == f) {
        memcpy(&u, &f, 4);
        u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
        memcpy(&f, &u, 4);
    }
    return double(f);
}

double load(const void *p, int type, int64_t i)
{
    if (type == DT_DNN_FLOAT)
        return double(static_cast<const float *>(p)[i]);
    uint32_t u = uint32_t(static_cast<const uint16_t *>(p)[i]) << 16;
    float f;

    memcpy(&f, &u, 4);
    return double(f);
}

void store(void *p, int type, int64_t i, double x)
{
    float f = float(rounded(type, x));
    uint32_t u;

    if (type == DT_DNN_FLOAT) {
        static_cast<float *>(p)[i] = f;
        return;
    }
    memcpy(&u, &f, 4);
    static_cast<uint16_t *>(p)[i] = uint16_t(u >> 16);
}

// The elements of a tensor in the order of its indices.
struct value {
    tensor t;
    std::vector<double> x;

    // With dimensions of 1 for as many as there are, and heads that share one.
    double at(const int64_t i[4], int64_t heads) const
    {
        int64_t j[4];

        for (int k = 0; k < 4; k++)
            j[k] = t.dim[k] == 1 ? 0 : i[k];
        if (t.dim[1] > 1 && t.dim[1] < heads)
            j[1] = i[1] / (heads / t.dim[1]);
        return x[size_t(((j[0] * t.dim[1] + j[1]) * t.dim[2] + j[2]) * t.dim[3] + j[3])];
    }
};

struct run {
    const cucpu_dnn_places &at;
    std::map<int64_t, value> known;

    const value &read(const descriptor *d)
    {
        tensor t = tensor_of(d);
        auto it = known.find(t.id);

        if (it != known.end())
            return it->second;
        value &v = known[t.id];

        v.t = t;
        each(t.dim, [&](const int64_t *i, int64_t) {
            v.x.push_back(load(at.at(t.id), t.type, offset(t, i)));
        });
        return v;
    }

    // fn(index) is the element there.
    template <typename F> void write(const descriptor *d, F fn)
    {
        value v;

        v.t = tensor_of(d);
        each(v.t.dim, [&](const int64_t *i, int64_t) {
            double x = rounded(v.t.type, fn(i));

            v.x.push_back(x);
            if (!v.t.kept)
                store(at.at(v.t.id), v.t.type, offset(v.t, i), x);
        });
        known[v.t.id] = std::move(v);
    }
};

double combined(int mode, double x, double b, double t)
{
    switch (mode) {
    case DT_DNN_ADD:
        return x + b;
    case DT_DNN_MUL:
        return x * b;
    case DT_DNN_DIV:
        return x / b;
    case DT_DNN_SUB:
        return x - b;
    case DT_DNN_EXP:
        return std::exp(x);
    case DT_DNN_LOG:
        return std::log(x);
    case DT_DNN_IDENTITY:
        return x;
    case DT_DNN_CMP_GE:
        return x >= b;
    case DT_DNN_SELECT:
        return t != 0 ? x : b;
    default:
        cucpu_dnn_stop("a pointwise operation that there is not");
    }
}

void pointwise(run &r, const descriptor *op)
{
    const descriptor *how = op->of(DT_DNN_POINTWISE_DESCRIPTOR);
    int mode = how->get<int>(DT_DNN_POINTWISE_MODE);
    const value *x = &r.read(op->of(DT_DNN_POINTWISE_X)), *b = nullptr, *t = nullptr;

    if (mode == DT_DNN_GEN_INDEX) {
        int64_t axis = how->get<int64_t>(DT_DNN_POINTWISE_AXIS);

        r.write(op->of(DT_DNN_POINTWISE_Y), [&](const int64_t *i) { return double(i[axis]); });
        return;
    }
    if (op->has.count(DT_DNN_POINTWISE_B))
        b = &r.read(op->of(DT_DNN_POINTWISE_B));
    if (op->has.count(DT_DNN_POINTWISE_T))
        t = &r.read(op->of(DT_DNN_POINTWISE_T));
    r.write(op->of(DT_DNN_POINTWISE_Y), [&](const int64_t *i) {
        return combined(mode, x->at(i, 0), b ? b->at(i, 0) : 0, t ? t->at(i, 0) : 0);
    });
}

void matmul(run &r, const descriptor *op)
{
    const value &a = r.read(op->of(DT_DNN_MATMUL_A)), &b = r.read(op->of(DT_DNN_MATMUL_B));
    int64_t k = a.t.dim[3], heads = tensor_of(op->of(DT_DNN_MATMUL_C)).dim[1];

    r.write(op->of(DT_DNN_MATMUL_C), [&](const int64_t *i) {
        double sum = 0;

        for (int64_t l = 0; l < k; l++) {
            int64_t in_a[4] = {i[0], i[1], i[2], l}, in_b[4] = {i[0], i[1], l, i[3]};

            sum += a.at(in_a, heads) * b.at(in_b, heads);
        }
        return sum;
    });
}

// Over the dimensions that the result has fewer of: consecutive ones, as many as go into one.
void reduction(run &r, const descriptor *op)
{
    bool max = op->of(DT_DNN_REDUCTION_DESCRIPTOR)->get<int>(DT_DNN_REDUCTION_OPERATOR) ==
               DT_DNN_REDUCE_MAX;
    const value &x = r.read(op->of(DT_DNN_REDUCTION_X));
    tensor y = tensor_of(op->of(DT_DNN_REDUCTION_Y));
    int64_t part[4];

    for (int k = 0; k < 4; k++)
        part[k] = x.t.dim[k] / y.dim[k];
    r.write(op->of(DT_DNN_REDUCTION_Y), [&](const int64_t *i) {
        double s = max ? -INFINITY : 0;

        each(part, [&](const int64_t *j, int64_t) {
            int64_t at[4];

            for (int k = 0; k < 4; k++)
                at[k] = i[k] * part[k] + j[k];
            s = max ? std::fmax(s, x.at(at, 0)) : s + x.at(at, 0);
        });
        return s;
    });
}

// The same memory, read with other dimensions and strides.
void reshape(run &r, const descriptor *op)
{
    const value &x = r.read(op->of(DT_DNN_RESHAPE_X));
    tensor y = tensor_of(op->of(DT_DNN_RESHAPE_Y));
    std::unordered_map<int64_t, double> memory;

    each(x.t.dim, [&](const int64_t *i, int64_t n) { memory[offset(x.t, i)] = x.x[size_t(n)]; });
    r.write(op->of(DT_DNN_RESHAPE_Y), [&](const int64_t *i) { return memory.at(offset(y, i)); });
}

int first_of(const descriptor *op)
{
    return op->kind == DT_DNN_OPERATION_CONVOLUTION_FORWARD         ? DT_DNN_FORWARD_ALPHA
           : op->kind == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA ? DT_DNN_DATA_ALPHA
                                                                    : DT_DNN_FILTER_ALPHA;
}

struct conv {
    const descriptor *dw, *dx, *dy;
    tensor w, x, y;
    int64_t step, pad;

    // Of x, at an output pixel and a place of the filter.
    int64_t pixel(int64_t o, int64_t place) const { return o * step - pad + place; }
    bool inside(int64_t py, int64_t px) const
    {
        return py >= 0 && py < x.dim[2] && px >= 0 && px < x.dim[3];
    }
};

void conv_forward(run &r, const conv &c)
{
    const value &vx = r.read(c.dx), &vw = r.read(c.dw);
    int64_t over[4] = {1, c.w.dim[1], c.w.dim[2], c.w.dim[3]};

    r.write(c.dy, [&](const int64_t *i) {
        double s = 0;

        each(over, [&](const int64_t *j, int64_t) {
            int64_t py = c.pixel(i[2], j[2]), px = c.pixel(i[3], j[3]);
            int64_t in_x[4] = {i[0], j[1], py, px}, in_w[4] = {i[1], j[1], j[2], j[3]};

            if (c.inside(py, px))
                s += vx.at(in_x, 0) * vw.at(in_w, 0);
        });
        return s;
    });
}

void conv_filter(run &r, const conv &c)
{
    const value &vy = r.read(c.dy), &vx = r.read(c.dx);
    int64_t over[4] = {c.x.dim[0], 1, c.y.dim[2], c.y.dim[3]};

    r.write(c.dw, [&](const int64_t *i) {
        double s = 0;

        each(over, [&](const int64_t *j, int64_t) {
            int64_t py = c.pixel(j[2], i[2]), px = c.pixel(j[3], i[3]);
            int64_t in_x[4] = {j[0], i[1], py, px}, in_y[4] = {j[0], i[0], j[2], j[3]};

            if (c.inside(py, px))
                s += vx.at(in_x, 0) * vy.at(in_y, 0);
        });
        return s;
    });
}

void conv_data(run &r, const conv &c)
{
    const value &vy = r.read(c.dy), &vw = r.read(c.dw);
    int64_t over[4] = {1, c.w.dim[0], c.w.dim[2], c.w.dim[3]};

    r.write(c.dx, [&](const int64_t *i) {
        double s = 0;

        each(over, [&](const int64_t *j, int64_t) {
            int64_t oy = i[2] + c.pad - j[2], ox = i[3] + c.pad - j[3];
            int64_t in_w[4] = {j[1], i[1], j[2], j[3]},
                    in_y[4] = {i[0], j[1], oy / c.step, ox / c.step};

            if (oy >= 0 && ox >= 0 && oy % c.step == 0 && ox % c.step == 0 &&
                oy / c.step < c.y.dim[2] && ox / c.step < c.y.dim[3])
                s += vy.at(in_y, 0) * vw.at(in_w, 0);
        });
        return s;
    });
}

void convolution(run &r, const descriptor *op)
{
    int first = first_of(op);
    const descriptor *how = op->of(first + 2), *dw = op->of(first + 3), *dx = op->of(first + 4),
                     *dy = op->of(first + 5);
    conv c = {dw,
              dx,
              dy,
              tensor_of(dw),
              tensor_of(dx),
              tensor_of(dy),
              how->get<int64_t>(DT_DNN_CONVOLUTION_FILTER_STRIDES),
              how->get<int64_t>(DT_DNN_CONVOLUTION_PRE_PADDINGS)};

    if (op->kind == DT_DNN_OPERATION_CONVOLUTION_FORWARD)
        conv_forward(r, c);
    else if (op->kind == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER)
        conv_filter(r, c);
    else
        conv_data(r, c);
}

// ---- what goes together ----

void check_conv(const descriptor *op)
{
    int first = first_of(op);
    const descriptor *how = op->of(first + 2);
    tensor w = tensor_of(op->of(first + 3)), x = tensor_of(op->of(first + 4)),
           y = tensor_of(op->of(first + 5));

    if (op->get<float>(first) != 1 || op->get<float>(first + 1) != 0)
        cucpu_dnn_stop("factors of a convolution");
    if (how->get<int>(DT_DNN_CONVOLUTION_CONV_MODE) != DT_DNN_CROSS_CORRELATION)
        cucpu_dnn_stop("a convolution with its filter turned round");
    if (w.dim[0] % 8 != 0 || w.dim[1] % 8 != 0)
        cucpu_dnn_stop("channels that engines of bf16 do not take, or take and get wrong");
    if (x.dim[0] != y.dim[0] || w.dim[0] != y.dim[1] || w.dim[1] != x.dim[1])
        cucpu_dnn_stop("images or channels that do not go together");
    for (int i = 0; i < 2; i++) {
        int64_t out = x.dim[2 + i] + how->get<int64_t>(DT_DNN_CONVOLUTION_PRE_PADDINGS, i) +
                      how->get<int64_t>(DT_DNN_CONVOLUTION_POST_PADDINGS, i) - w.dim[2 + i];

        if (how->get<int64_t>(DT_DNN_CONVOLUTION_DILATIONS, i) != 1 ||
            out / how->get<int64_t>(DT_DNN_CONVOLUTION_FILTER_STRIDES, i) + 1 != y.dim[2 + i])
            cucpu_dnn_stop("pixels that do not go together");
    }
}

void check_pointwise(const descriptor *op)
{
    tensor y = tensor_of(op->of(DT_DNN_POINTWISE_Y));

    for (int name : {DT_DNN_POINTWISE_X, DT_DNN_POINTWISE_B, DT_DNN_POINTWISE_T})
        if (op->has.count(name))
            for (int i = 0; i < 4; i++) {
                int64_t n = tensor_of(op->of(name)).dim[i];

                if (n != y.dim[i] && n != 1)
                    cucpu_dnn_stop("a pointwise operation of tensors that do not go together");
            }
}

void check_matmul(const descriptor *op)
{
    tensor a = tensor_of(op->of(DT_DNN_MATMUL_A)), b = tensor_of(op->of(DT_DNN_MATMUL_B)),
           c = tensor_of(op->of(DT_DNN_MATMUL_C));

    if (a.dim[3] != b.dim[2] || a.dim[2] != c.dim[2] || b.dim[3] != c.dim[3] ||
        a.dim[0] != c.dim[0] || b.dim[0] != c.dim[0] || a.dim[1] != c.dim[1] ||
        c.dim[1] % b.dim[1] != 0)
        cucpu_dnn_stop("a product of matrices that do not go together");
}

void check_reduction(const descriptor *op)
{
    tensor x = tensor_of(op->of(DT_DNN_REDUCTION_X)), y = tensor_of(op->of(DT_DNN_REDUCTION_Y));

    for (int i = 0; i < 4; i++)
        if (x.dim[i] % y.dim[i] != 0)
            cucpu_dnn_stop("a sum over tensors that do not go together");
}

} // namespace

void cucpu_dnn_check(const cucpu_dnn_descriptor *op)
{
    if (op->kind == DT_DNN_OPERATION_POINTWISE)
        check_pointwise(op);
    else if (op->kind == DT_DNN_OPERATION_MATMUL)
        check_matmul(op);
    else if (op->kind == DT_DNN_OPERATION_REDUCTION)
        check_reduction(op);
    else if (op->kind != DT_DNN_OPERATION_RESHAPE)
        check_conv(op);
}

std::vector<const descriptor *> cucpu_dnn_reads(const descriptor *op)
{
    std::vector<const descriptor *> r;
    int first = first_of(op);

    if (op->kind == DT_DNN_OPERATION_POINTWISE) {
        for (int name : {DT_DNN_POINTWISE_X, DT_DNN_POINTWISE_B, DT_DNN_POINTWISE_T})
            if (op->has.count(name))
                r.push_back(op->of(name));
    } else if (op->kind == DT_DNN_OPERATION_MATMUL) {
        r = {op->of(DT_DNN_MATMUL_A), op->of(DT_DNN_MATMUL_B)};
    } else if (op->kind == DT_DNN_OPERATION_REDUCTION) {
        r = {op->of(DT_DNN_REDUCTION_X)};
    } else if (op->kind == DT_DNN_OPERATION_RESHAPE) {
        r = {op->of(DT_DNN_RESHAPE_X)};
    } else if (op->kind == DT_DNN_OPERATION_CONVOLUTION_FORWARD) {
        r = {op->of(first + 3), op->of(first + 4)};
    } else if (op->kind == DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA) {
        r = {op->of(first + 3), op->of(first + 5)};
    } else {
        r = {op->of(first + 4), op->of(first + 5)};
    }
    return r;
}

const descriptor *cucpu_dnn_writes(const descriptor *op)
{
    switch (op->kind) {
    case DT_DNN_OPERATION_POINTWISE:
        return op->of(DT_DNN_POINTWISE_Y);
    case DT_DNN_OPERATION_MATMUL:
        return op->of(DT_DNN_MATMUL_C);
    case DT_DNN_OPERATION_REDUCTION:
        return op->of(DT_DNN_REDUCTION_Y);
    case DT_DNN_OPERATION_RESHAPE:
        return op->of(DT_DNN_RESHAPE_Y);
    case DT_DNN_OPERATION_CONVOLUTION_FORWARD:
        return op->of(first_of(op) + 5);
    case DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA:
        return op->of(first_of(op) + 4);
    default:
        return op->of(first_of(op) + 3);
    }
}

// ---- what the library does wrong ----

namespace
{

// Of attention; `there` is false for a tensor that the graph does not have.
struct shown {
    tensor t;
    bool there = false;
};
struct attention {
    shown q, k, lse, o, dq, dk, dv;
    bool causal = false;
};

attention attention_of(const descriptor *graph)
{
    attention a;
    auto see = [&](const descriptor *d) {
        tensor t = tensor_of(d);

        for (auto x : {std::pair<int, shown *>{DT_DNN_UID_Q, &a.q},
                       {DT_DNN_UID_K, &a.k},
                       {DT_DNN_UID_LSE, &a.lse},
                       {DT_DNN_UID_O, &a.o},
                       {DT_DNN_UID_DQ, &a.dq},
                       {DT_DNN_UID_DK, &a.dk},
                       {DT_DNN_UID_DV, &a.dv}})
            if (t.id == x.first)
                *x.second = {t, true};
    };

    for (int64_t i = 0; i < graph->has.at(DT_DNN_GRAPH_OPS).n; i++) {
        const descriptor *op = graph->of(DT_DNN_GRAPH_OPS, i);

        for (const descriptor *d : cucpu_dnn_reads(op))
            see(d);
        see(cucpu_dnn_writes(op));
        a.causal =
            a.causal || (op->kind == DT_DNN_OPERATION_POINTWISE &&
                         op->of(DT_DNN_POINTWISE_DESCRIPTOR)->get<int>(DT_DNN_POINTWISE_MODE) ==
                             DT_DNN_GEN_INDEX);
    }
    return a;
}

void make_nan(const cucpu_dnn_places &at, const shown &x)
{
    each(x.t.dim,
         [&](const int64_t *i, int64_t) { store(at.at(x.t.id), x.t.type, offset(x.t, i), NAN); });
}

// As users and NVIDIA reported of an H100's (cudnn-frontend: issues 160 and 1072, pull request 628).
void spoil(const descriptor *graph, const cucpu_dnn_places &at)
{
    attention a = attention_of(graph);
    size_t version = cucpu_dnn_version();
    bool low = false;

    if (!a.q.there)
        return;
    if (version == 91000 || version == 91001)
        make_nan(at, a.dq.there ? a.dq : a.o);
    if (!a.dq.there)
        return;
    each(a.lse.t.dim, [&](const int64_t *i, int64_t) {
        low = low || load(at.at(a.lse.t.id), a.lse.t.type, offset(a.lse.t, i)) < -88.7;
    });
    int64_t rest = a.k.t.dim[3] % 128;

    if ((version <= 91500 && rest != 0) || (rest == 64 && !a.causal && low))
        make_nan(at, a.dq);
    if (a.q.t.dim[2] == 1 && low) {
        make_nan(at, a.dk);
        make_nan(at, a.dv);
    }
}

} // namespace

void cucpu_dnn_run(const cucpu_dnn_descriptor *graph, const cucpu_dnn_places &at)
{
    run r = {at, {}};

    for (int64_t i = 0; i < graph->has.at(DT_DNN_GRAPH_OPS).n; i++) {
        const descriptor *op = graph->of(DT_DNN_GRAPH_OPS, i);

        if (op->kind == DT_DNN_OPERATION_POINTWISE)
            pointwise(r, op);
        else if (op->kind == DT_DNN_OPERATION_MATMUL)
            matmul(r, op);
        else if (op->kind == DT_DNN_OPERATION_REDUCTION)
            reduction(r, op);
        else if (op->kind == DT_DNN_OPERATION_RESHAPE)
            reshape(r, op);
        else
            convolution(r, op);
    }
    spoil(graph, at);
}
