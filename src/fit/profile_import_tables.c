/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One function per table family turns a CSV row into rows of the profile. */
#include "fit/profile_import_priv.h"

#include <stdio.h>
#include <string.h>

static const double ns_per_ms = 1e6, ns_per_us = 1e3;
static const int64_t dim_max = INT64_C(1) << 40;

/* Meta-Llama-3-8B and Llama-2-7b-hf config.json. */
const struct dt_import_shape dt_import_shapes[] = {
    {"llama-3-8b", 4096, 14336, 32, 8, 128},
    {"llama-2-7b", 4096, 11008, 32, 32, 128},
    {NULL, 0, 0, 0, 0, 0},
};

static enum dt_status get_int(struct dt_import *im, int i, int64_t *out)
{
    return dt_profile_csv_int(&im->csv, im->col[i], 0, dim_max, im->err, out);
}

static enum dt_status get_time(struct dt_import *im, int i, double unit_ns, double *ns)
{
    double v;
    DT_TRY(dt_profile_csv_double(&im->csv, im->col[i], 1e-9, 1e9, im->err, &v));
    *ns = v * unit_ns;
    return DT_OK;
}

static const char *get_text(const struct dt_import *im, int i)
{
    return im->csv.cell[im->col[i]];
}

static enum dt_status at_row(struct dt_import *im, enum dt_status status)
{
    if (status != DT_OK && im->err && !im->err->file[0]) {
        snprintf(im->err->file, sizeof im->err->file, "%s", im->csv.name);
        im->err->line = im->csv.line;
    }
    return status;
}

static enum dt_status emit(struct dt_import *im, int family, int phase, const int64_t *d,
                           int n_dims, double ns)
{
    struct dt_profile_table_row row = im->proto;

    row.r.family = family;
    row.r.phase = phase;
    row.r.n = 1;
    for (int i = 0; i < n_dims; i++)
        row.r.d[i] = d[i];
    row.r.median_ns = row.r.p10_ns = row.r.p90_ns = ns;
    return at_row(im, dt_profile_table_add(im->t, &row, im->err));
}

static enum dt_status bad_word(struct dt_import *im, int i, const char *what)
{
    return dt_error_at(im->err, DT_ERR_INPUT, im->csv.name, im->csv.line, im->col[i] + 1,
                       "unknown %s '%.40s'", what, get_text(im, i));
}

static enum dt_status get_dims(struct dt_import *im, int first, int n, int64_t *d)
{
    for (int i = 0; i < n; i++)
        DT_TRY(get_int(im, first + i, &d[i]));
    return DT_OK;
}

static enum dt_status aic_gemm(struct dt_import *im)
{
    int64_t d[3];
    double ns;
    DT_TRY(get_dims(im, 0, 3, d));
    DT_TRY(get_time(im, 3, ns_per_ms, &ns));
    return emit(im, DT_KOP_GEMM, DT_PHASE_FWD, d, 3, ns);
}

static enum dt_status aic_causal(struct dt_import *im)
{
    int64_t d[5];
    double ns;
    DT_TRY(get_dims(im, 0, 5, d));
    DT_TRY(get_time(im, 5, ns_per_ms, &ns));
    return emit(im, DT_KOP_ATTN_CAUSAL, DT_PHASE_FWD, d, 5, ns);
}

static enum dt_status aic_full(struct dt_import *im)
{
    int64_t v[4];
    double ns;
    DT_TRY(get_dims(im, 0, 4, v));
    DT_TRY(get_time(im, 4, ns_per_ms, &ns));
    int64_t d[5] = {v[0], v[1], v[2], v[2], v[3]};
    return emit(im, DT_KOP_ATTN_FULL, DT_PHASE_FWD, d, 5, ns);
}

static enum dt_status aic_nccl(struct dt_import *im)
{
    static const struct {
        const char *word;
        int family;
    } names[] = {
        {"all_reduce", DT_KOP_ALL_REDUCE},         {"all_gather", DT_KOP_ALL_GATHER},
        {"reduce_scatter", DT_KOP_REDUCE_SCATTER}, {"alltoall", DT_KOP_ALL_TO_ALL},
        {"all_to_all", DT_KOP_ALL_TO_ALL},
    };
    int64_t v[2];
    double ns;
    DT_TRY(get_dims(im, 1, 2, v));
    DT_TRY(get_time(im, 3, ns_per_ms, &ns));
    int64_t d[3] = {v[0], v[0], v[1]}; /* the tables are of one node */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].word, get_text(im, 0)) == 0)
            return emit(im, names[i].family, DT_PHASE_FWD, d, 3, ns);
    return bad_word(im, 0, "collective");
}

static enum dt_status vidur_all_reduce(struct dt_import *im)
{
    int64_t d[3];
    double ns;
    DT_TRY(get_dims(im, 0, 3, d));
    DT_TRY(get_time(im, 3, ns_per_ms, &ns));
    return emit(im, DT_KOP_ALL_REDUCE, DT_PHASE_FWD, d, 3, ns);
}

static enum dt_status vidur_send_recv(struct dt_import *im)
{
    int64_t d[2];
    double ns;
    DT_TRY(get_dims(im, 0, 2, d));
    DT_TRY(get_time(im, 2, ns_per_ms, &ns));
    return emit(im, DT_KOP_SEND_RECV, DT_PHASE_FWD, d, 2, ns);
}

/* One row times every op of one tensor-parallel shard of a layer. */
static enum dt_status vidur_layer(struct dt_import *im)
{
    const struct dt_import_shape *s = im->shape;
    int64_t v[2];
    DT_TRY(get_dims(im, 0, 2, v));
    int64_t tp = v[0], t = v[1];
    if (tp < 1 || s->kv_heads % tp || s->ffn % tp)
        return dt_error_at(im->err, DT_ERR_INPUT, im->csv.name, im->csv.line, im->col[0] + 1,
                           "tp %lld does not divide the layer of %s", (long long)tp, s->name);
    int64_t q = s->heads * s->head_dim / tp, kv = s->kv_heads * s->head_dim / tp, f = s->ffn / tp;
    const struct {
        int family, n_dims;
        int64_t d[3];
    } ops[] = {
        {DT_KOP_EMBED, 2, {t, s->hidden, 0}},         {DT_KOP_NORM, 2, {t, s->hidden, 0}},
        {DT_KOP_GEMM, 3, {t, q + 2 * kv, s->hidden}}, {DT_KOP_ROPE, 2, {t, q + kv, 0}},
        {DT_KOP_GEMM, 3, {t, s->hidden, q}},          {DT_KOP_NORM, 2, {t, s->hidden, 0}},
        {DT_KOP_GEMM, 3, {t, 2 * f, s->hidden}},      {DT_KOP_ACT, 3, {t, f, 1}},
        {DT_KOP_GEMM, 3, {t, s->hidden, f}},          {DT_KOP_ADD, 2, {t, s->hidden, 0}},
    };
    for (int i = 0; i < 10; i++) {
        double ns;
        DT_TRY(get_time(im, 2 + i, ns_per_ms, &ns));
        DT_TRY(emit(im, ops[i].family, DT_PHASE_FWD, ops[i].d, ops[i].n_dims, ns));
    }
    return DT_OK;
}

/* Efficiencies are fractions of the dense bf16 peak of the A100 (312 TFLOP/s, FACTS: published). */
static const double a100_flops_per_ns = 312e12 * 1e-9;

/* Rows are keyed by the forward GEMM they belong to: y[m,n] = x[m,k] w[k,n]; the input gradient
 * multiplies [m,n][n,k], the weight gradient [n,m][m,k]. */
static enum dt_status simumax_gemm(struct dt_import *im)
{
    static const char *const stages[] = {"fwd", "dgrad", "wgrad", NULL};
    int64_t g[3];
    double eff;
    int phase = -1;
    for (int i = 0; stages[i]; i++)
        if (strcmp(stages[i], get_text(im, 0)) == 0)
            phase = i;
    if (phase < 0)
        return bad_word(im, 0, "stage");
    DT_TRY(get_dims(im, 1, 3, g));
    DT_TRY(dt_profile_csv_double(&im->csv, im->col[4], 1e-6, 1.0, im->err, &eff));
    double ns = 2.0 * (double)g[0] * (double)g[1] * (double)g[2] / (eff * a100_flops_per_ns);
    int64_t d[3] = {g[0], g[1], g[2]};
    if (phase == DT_PHASE_DGRAD)
        d[1] = g[2], d[2] = g[1];
    else if (phase == DT_PHASE_WGRAD)
        d[0] = g[2], d[1] = g[0], d[2] = g[1];
    return emit(im, DT_KOP_GEMM, phase, d, 3, ns);
}

/* With base = b s^2 h (d_qk + d_v) the table's efficiencies count 2 base flops forward and 5 base
 * backward (2.5 x: five matrix products for two), causality not halved.  Checked in the benchmark
 * that wrote the table, simu_tools/efficency_test/test_fa_efficency.py of MooreThreads/SimuMax
 * @6ffbd74d. */
static enum dt_status simumax_attn(struct dt_import *im)
{
    bool bwd = strcmp(get_text(im, 0), "sdp_bwd") == 0;
    int64_t d[5], v_dim;
    double eff;
    if (!bwd && strcmp(get_text(im, 0), "sdp_fwd") != 0)
        return bad_word(im, 0, "stage");
    DT_TRY(get_dims(im, 1, 5, d));
    DT_TRY(get_int(im, 6, &v_dim));
    DT_TRY(dt_profile_csv_double(&im->csv, im->col[7], 1e-6, 2.0, im->err, &eff));
    if (d[4] != v_dim) { /* unequal query and value widths have no name in a profile */
        im->skipped++;
        return DT_OK;
    }
    double base =
        (double)d[0] * (double)d[1] * (double)d[1] * (double)d[2] * (double)(d[4] + v_dim);
    double ns = (bwd ? 5.0 : 2.0) * base / (eff * a100_flops_per_ns);
    return emit(im, DT_KOP_ATTN_CAUSAL, bwd ? DT_PHASE_DGRAD : DT_PHASE_FWD, d, 5, ns);
}

/* Output pixels over the batch; 0, which no row may have, when there are absurdly many. */
static int64_t pixels(int64_t batch, int64_t height, int64_t width)
{
    double n = (double)batch * (double)height * (double)width;

    return n <= (double)dim_max ? batch * height * width : 0;
}

static enum dt_status neusight_conv(struct dt_import *im)
{
    int64_t v[7];
    double ns;
    DT_TRY(get_dims(im, 0, 7, v));
    DT_TRY(get_time(im, 7, ns_per_ms, &ns));
    int64_t kernel = v[3], size = v[4], stride = v[5], pad = v[6];
    if (stride < 1 || kernel < 1 || size + 2 * pad < kernel || size > 1 << 20 || pad > 1 << 20)
        return dt_error_at(im->err, DT_ERR_INPUT, im->csv.name, im->csv.line, 0,
                           "no such convolution: size %lld kernel %lld stride %lld pad %lld",
                           (long long)size, (long long)kernel, (long long)stride, (long long)pad);
    int64_t out = (size + 2 * pad - kernel) / stride + 1;
    int64_t d[5] = {pixels(v[0], out, out), v[1], v[2], kernel, stride};
    return emit(im, DT_KOP_CONV2D, DT_PHASE_FWD, d, 5, ns);
}

/* "128x64x224x224|64x3x3x3|64" -> the i-th shape's four numbers; false when it is not there. */
static bool shape4(const char *s, int index, int64_t out[4])
{
    for (; index > 0; index--) {
        s = strchr(s, '|');
        if (!s)
            return false;
        s++;
    }
    for (int i = 0; i < 4; i++) {
        int64_t v = 0;
        int digits = 0;
        for (; *s >= '0' && *s <= '9' && digits < 9; s++, digits++)
            v = v * 10 + (*s - '0');
        if (!digits || v < 1 || (i < 3 && *s != 'x'))
            return false;
        out[i] = v;
        s += i < 3;
    }
    return *s == '\0' || *s == '|';
}

/* Backward calls time both gradients together, save the first layer's, which has no input gradient.
 */
static enum dt_status triosim_conv(struct dt_import *im)
{
    bool fwd = strcmp(get_text(im, 0), "aten::conv2d") == 0;
    const char *in = get_text(im, 1), *out = get_text(im, 2);
    int64_t x[4], w[4], y[4];
    double ns;
    int phase = fwd ? DT_PHASE_FWD : *out == '|' ? DT_PHASE_WGRAD : DT_PHASE_BWD;
    if (!fwd && strcmp(get_text(im, 0), "ConvolutionBackward0") != 0) {
        im->skipped++;
        return DT_OK;
    }
    if (!shape4(in, fwd ? 0 : 1, x) || !shape4(in, fwd ? 1 : 2, w) ||
        !shape4(fwd ? out : in, 0, y) || x[2] < y[2])
        return dt_error_at(im->err, DT_ERR_INPUT, im->csv.name, im->csv.line, im->col[1] + 1,
                           "shapes '%.60s' -> '%.40s' are not of a convolution", in, out);
    DT_TRY(get_time(im, 3, ns_per_us, &ns));
    int64_t d[5] = {pixels(y[0], y[2], y[3]), w[1], w[0], w[2], x[2] / y[2]};
    return emit(im, DT_KOP_CONV2D, phase, d, 5, ns);
}

static enum dt_status generic(struct dt_import *im)
{
    struct dt_profile_table_row row = im->proto;
    double *const times[] = {&row.r.median_ns, &row.r.p10_ns, &row.r.p90_ns};
    row.r.family = row.r.phase = -1;
    for (int f = 0; f < DT_KOP_FAMILY_N; f++)
        if (strcmp(dt_kop_family_names[f], get_text(im, 0)) == 0)
            row.r.family = f;
    for (int p = 0; p < DT_PTABLE_PHASE_N; p++)
        if (strcmp(dt_profile_table_phase_names[p], get_text(im, 1)) == 0)
            row.r.phase = p;
    if (row.r.family < 0)
        return bad_word(im, 0, "op");
    if (row.r.phase < 0)
        return bad_word(im, 1, "phase");
    DT_TRY(at_row(im, dt_profile_table_dtype(im->t, get_text(im, 2), im->err, &row.dtype)));
    DT_TRY(get_dims(im, 3, 6, row.r.d));
    DT_TRY(get_int(im, 9, &row.r.n));
    for (int i = 0; i < 3; i++)
        DT_TRY(get_time(im, 10 + i, 1.0, times[i]));
    return at_row(im, dt_profile_table_add(im->t, &row, im->err));
}

const struct dt_import_format dt_import_formats[] = {
    {"aic-gemm",
     "bf16",
     "aiconfigurator: GEMM forward",
     {"m", "n", "k", "latency_ms"},
     .row = aic_gemm},
    {"aic-causal-attn",
     "bf16",
     "aiconfigurator: causal attention forward",
     {"batch", "seq", "q_heads", "kv_heads", "head_dim", "latency_ms"},
     .row = aic_causal},
    {"aic-full-attn",
     "bf16",
     "aiconfigurator: bidirectional attention forward",
     {"batch", "seq", "heads", "head_dim", "latency_ms"},
     .row = aic_full},
    {"aic-nccl",
     "any",
     "aiconfigurator: NCCL collectives of one node",
     {"collective", "num_gpus", "bytes", "latency_ms"},
     .row = aic_nccl},
    {"vidur-layer",
     "bf16",
     "Vidur: ops of one transformer layer (needs --shape)",
     {"tp", "tokens", "emb_ms", "input_layernorm_ms", "attn_pre_proj_ms", "attn_rope_ms",
      "attn_post_proj_ms", "post_attention_layernorm_ms", "mlp_up_proj_ms", "mlp_act_ms",
      "mlp_down_proj_ms", "add_ms"},
     .row = vidur_layer,
     .wants_shape = true},
    {"vidur-all-reduce",
     "any",
     "Vidur: all-reduce",
     {"num_gpus", "gpus_per_node", "bytes", "median_ms"},
     .row = vidur_all_reduce},
    {"vidur-send-recv",
     "any",
     "Vidur: send/recv inside and between nodes",
     {"gpus_per_node", "bytes", "median_ms"},
     .row = vidur_send_recv},
    {"simumax-gemm",
     "bf16",
     "SimuMax: GEMM forward and both gradients, as efficiencies",
     {"stage", "m", "n", "k", "eff_of_312TF"},
     .row = simumax_gemm},
    {"simumax-attn",
     "bf16",
     "SimuMax: causal flash attention, as efficiencies",
     {"stage", "batch", "seq", "q_heads", "kv_heads", "qk_dim", "v_dim",
      "eff_of_312TF_uncausal_flops"},
     .row = simumax_attn},
    {"neusight-conv",
     "fp32",
     "NeuSight: convolution forward",
     {"batch", "c_in", "c_out", "kernel", "size", "stride", "pad", "latency_ms"},
     .row = neusight_conv},
    {"triosim-conv",
     "tf32",
     "TrioSim: convolutions of a training step, forward and backward",
     {"op", "input_shapes", "output_shapes", "cuda_us"},
     .row = triosim_conv},
    {"generic",
     "bf16",
     "one row per shape with its statistics; columns in doc/formats.md",
     {"op", "phase", "dtype", "d0", "d1", "d2", "d3", "d4", "d5", "n", "median_ns", "p10_ns",
      "p90_ns"},
     .row = generic,
     .has_stats = true},
    {.name = NULL},
};
