/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * One function per table family turns a CSV row into rows of the profile. */
#include "core/profile_import.h"

#include "core/doc.h"
#include "core/mem.h"
#include "core/profile_csv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NEEDED = 16 };
static const double ns_per_ms = 1e6, ns_per_us = 1e3;
static const int64_t dim_max = INT64_C(1) << 40;

struct shape { /* a transformer layer whose ops a table times */
    const char *name;
    int64_t hidden, ffn, heads, kv_heads, head_dim;
};
/* Meta-Llama-3-8B and Llama-2-7b-hf config.json. */
static const struct shape shapes[] = {
    {"llama-3-8b", 4096, 14336, 32, 8, 128},
    {"llama-2-7b", 4096, 11008, 32, 32, 128},
    {NULL, 0, 0, 0, 0, 0},
};

struct import {
    struct dt_csv csv;
    int col[MAX_NEEDED]; /* of importer->needed */
    const struct shape *shape;
    struct dt_error *err;
    struct dt_ptable *t; /* rows of this table, ungrouped */
    struct dt_ptable_row proto;
    size_t skipped;
};

struct dt_importer {
    const char *name, *dtype, *summary;
    const char *needed[MAX_NEEDED]; /* columns, NULL-terminated */
    enum dt_status (*row)(struct import *im);
    bool has_stats; /* rows carry their own n, p10, p90 */
};

static enum dt_status get_int(struct import *im, int i, int64_t *out)
{
    return dt_csv_int(&im->csv, im->col[i], 0, dim_max, im->err, out);
}

static enum dt_status get_time(struct import *im, int i, double unit_ns, double *ns)
{
    double v;
    DT_TRY(dt_csv_double(&im->csv, im->col[i], 1e-9, 1e9, im->err, &v));
    *ns = v * unit_ns;
    return DT_OK;
}

static const char *get_text(const struct import *im, int i)
{
    return im->csv.cell[im->col[i]];
}

static enum dt_status at_row(struct import *im, enum dt_status status)
{
    if (status != DT_OK && im->err && !im->err->file[0]) {
        snprintf(im->err->file, sizeof im->err->file, "%s", im->csv.name);
        im->err->line = im->csv.line;
    }
    return status;
}

static enum dt_status emit(struct import *im, int family, int phase, const int64_t *d, int n_dims,
                           double ns)
{
    struct dt_ptable_row row = im->proto;

    row.r.family = family;
    row.r.phase = phase;
    row.r.n = 1;
    for (int i = 0; i < n_dims; i++)
        row.r.d[i] = d[i];
    row.r.median_ns = row.r.p10_ns = row.r.p90_ns = ns;
    return at_row(im, dt_ptable_add(im->t, &row, im->err));
}

static enum dt_status bad_word(struct import *im, int i, const char *what)
{
    return dt_error_at(im->err, DT_ERR_INPUT, im->csv.name, im->csv.line, im->col[i] + 1,
                       "unknown %s '%.40s'", what, get_text(im, i));
}

static enum dt_status get_dims(struct import *im, int first, int n, int64_t *d)
{
    for (int i = 0; i < n; i++)
        DT_TRY(get_int(im, first + i, &d[i]));
    return DT_OK;
}

static enum dt_status aic_gemm(struct import *im)
{
    int64_t d[3];
    double ns;
    DT_TRY(get_dims(im, 0, 3, d));
    DT_TRY(get_time(im, 3, ns_per_ms, &ns));
    return emit(im, DT_OP_GEMM, DT_PHASE_FWD, d, 3, ns);
}

static enum dt_status aic_causal(struct import *im)
{
    int64_t d[5];
    double ns;
    DT_TRY(get_dims(im, 0, 5, d));
    DT_TRY(get_time(im, 5, ns_per_ms, &ns));
    return emit(im, DT_OP_ATTN_CAUSAL, DT_PHASE_FWD, d, 5, ns);
}

static enum dt_status aic_full(struct import *im)
{
    int64_t v[4];
    double ns;
    DT_TRY(get_dims(im, 0, 4, v));
    DT_TRY(get_time(im, 4, ns_per_ms, &ns));
    int64_t d[5] = {v[0], v[1], v[2], v[2], v[3]};
    return emit(im, DT_OP_ATTN_FULL, DT_PHASE_FWD, d, 5, ns);
}

static enum dt_status aic_nccl(struct import *im)
{
    static const struct {
        const char *word;
        int family;
    } names[] = {
        {"all_reduce", DT_OP_ALL_REDUCE},         {"all_gather", DT_OP_ALL_GATHER},
        {"reduce_scatter", DT_OP_REDUCE_SCATTER}, {"alltoall", DT_OP_ALL_TO_ALL},
        {"all_to_all", DT_OP_ALL_TO_ALL},
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

static enum dt_status vidur_all_reduce(struct import *im)
{
    int64_t d[3];
    double ns;
    DT_TRY(get_dims(im, 0, 3, d));
    DT_TRY(get_time(im, 3, ns_per_ms, &ns));
    return emit(im, DT_OP_ALL_REDUCE, DT_PHASE_FWD, d, 3, ns);
}

static enum dt_status vidur_send_recv(struct import *im)
{
    int64_t d[2];
    double ns;
    DT_TRY(get_dims(im, 0, 2, d));
    DT_TRY(get_time(im, 2, ns_per_ms, &ns));
    return emit(im, DT_OP_SEND_RECV, DT_PHASE_FWD, d, 2, ns);
}

/* One row times every op of one tensor-parallel shard of a layer. */
static enum dt_status vidur_layer(struct import *im)
{
    const struct shape *s = im->shape;
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
        {DT_OP_EMBED, 2, {t, s->hidden, 0}},         {DT_OP_NORM, 2, {t, s->hidden, 0}},
        {DT_OP_GEMM, 3, {t, q + 2 * kv, s->hidden}}, {DT_OP_ROPE, 2, {t, q + kv, 0}},
        {DT_OP_GEMM, 3, {t, s->hidden, q}},          {DT_OP_NORM, 2, {t, s->hidden, 0}},
        {DT_OP_GEMM, 3, {t, 2 * f, s->hidden}},      {DT_OP_ACT, 3, {t, f, 1}},
        {DT_OP_GEMM, 3, {t, s->hidden, f}},          {DT_OP_ADD, 2, {t, s->hidden, 0}},
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
static enum dt_status simumax_gemm(struct import *im)
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
    DT_TRY(dt_csv_double(&im->csv, im->col[4], 1e-6, 1.0, im->err, &eff));
    double ns = 2.0 * (double)g[0] * (double)g[1] * (double)g[2] / (eff * a100_flops_per_ns);
    int64_t d[3] = {g[0], g[1], g[2]};
    if (phase == DT_PHASE_DGRAD)
        d[1] = g[2], d[2] = g[1];
    else if (phase == DT_PHASE_WGRAD)
        d[0] = g[2], d[1] = g[0], d[2] = g[1];
    return emit(im, DT_OP_GEMM, phase, d, 3, ns);
}

/* With base = b s^2 h (d_qk + d_v) the table's efficiencies count 2 base flops forward and 5 base
 * backward (2.5 x: five matrix products for two), causality not halved.  Checked in the benchmark
 * that wrote the table, simu_tools/efficency_test/test_fa_efficency.py of MooreThreads/SimuMax
 * @6ffbd74d. */
static enum dt_status simumax_attn(struct import *im)
{
    bool bwd = strcmp(get_text(im, 0), "sdp_bwd") == 0;
    int64_t d[5], v_dim;
    double eff;
    if (!bwd && strcmp(get_text(im, 0), "sdp_fwd") != 0)
        return bad_word(im, 0, "stage");
    DT_TRY(get_dims(im, 1, 5, d));
    DT_TRY(get_int(im, 6, &v_dim));
    DT_TRY(dt_csv_double(&im->csv, im->col[7], 1e-6, 2.0, im->err, &eff));
    if (d[4] != v_dim) { /* unequal query and value widths have no name in a profile */
        im->skipped++;
        return DT_OK;
    }
    double base =
        (double)d[0] * (double)d[1] * (double)d[1] * (double)d[2] * (double)(d[4] + v_dim);
    double ns = (bwd ? 5.0 : 2.0) * base / (eff * a100_flops_per_ns);
    return emit(im, DT_OP_ATTN_CAUSAL, bwd ? DT_PHASE_DGRAD : DT_PHASE_FWD, d, 5, ns);
}

static enum dt_status neusight_conv(struct import *im)
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
    int64_t d[5] = {v[0] * out * out, v[1], v[2], kernel, stride};
    return emit(im, DT_OP_CONV2D, DT_PHASE_FWD, d, 5, ns);
}

/* "128x64x224x224|64x3x3x3|64" -> the i-th shape's four numbers; false when it is not there. */
static bool shape4(const char *s, int index, int64_t out[4])
{
    for (; index > 0; index--) {
        s = strchr(s, '|');
        if (!s++)
            return false;
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
static enum dt_status triosim_conv(struct import *im)
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
    int64_t d[5] = {y[0] * y[2] * y[3], w[1], w[0], w[2], x[2] / y[2]};
    return emit(im, DT_OP_CONV2D, phase, d, 5, ns);
}

static enum dt_status generic(struct import *im)
{
    struct dt_ptable_row row = im->proto;
    double *const times[] = {&row.r.median_ns, &row.r.p10_ns, &row.r.p90_ns};
    row.r.family = row.r.phase = -1;
    for (int f = 0; f < DT_OP_FAMILY_N; f++)
        if (strcmp(dt_op_family_names[f], get_text(im, 0)) == 0)
            row.r.family = f;
    for (int p = 0; p < DT_PTABLE_PHASE_N; p++)
        if (strcmp(dt_ptable_phase_names[p], get_text(im, 1)) == 0)
            row.r.phase = p;
    if (row.r.family < 0)
        return bad_word(im, 0, "op");
    if (row.r.phase < 0)
        return bad_word(im, 1, "phase");
    DT_TRY(at_row(im, dt_ptable_dtype(im->t, get_text(im, 2), im->err, &row.dtype)));
    DT_TRY(get_dims(im, 3, 6, row.r.d));
    DT_TRY(get_int(im, 9, &row.r.n));
    for (int i = 0; i < 3; i++)
        DT_TRY(get_time(im, 10 + i, 1.0, times[i]));
    return at_row(im, dt_ptable_add(im->t, &row, im->err));
}

static const struct dt_importer dt_importers[] = {
    {"aic-gemm",
     "bf16",
     "aiconfigurator: GEMM forward",
     {"m", "n", "k", "latency_ms"},
     aic_gemm,
     false},
    {"aic-causal-attn",
     "bf16",
     "aiconfigurator: causal attention forward",
     {"batch", "seq", "q_heads", "kv_heads", "head_dim", "latency_ms"},
     aic_causal,
     false},
    {"aic-full-attn",
     "bf16",
     "aiconfigurator: bidirectional attention forward",
     {"batch", "seq", "heads", "head_dim", "latency_ms"},
     aic_full,
     false},
    {"aic-nccl",
     "any",
     "aiconfigurator: NCCL collectives of one node",
     {"collective", "num_gpus", "bytes", "latency_ms"},
     aic_nccl,
     false},
    {"vidur-layer",
     "bf16",
     "Vidur: ops of one transformer layer (needs --shape)",
     {"tp", "tokens", "emb_ms", "input_layernorm_ms", "attn_pre_proj_ms", "attn_rope_ms",
      "attn_post_proj_ms", "post_attention_layernorm_ms", "mlp_up_proj_ms", "mlp_act_ms",
      "mlp_down_proj_ms", "add_ms"},
     vidur_layer,
     false},
    {"vidur-all-reduce",
     "any",
     "Vidur: all-reduce",
     {"num_gpus", "gpus_per_node", "bytes", "median_ms"},
     vidur_all_reduce,
     false},
    {"vidur-send-recv",
     "any",
     "Vidur: send/recv inside and between nodes",
     {"gpus_per_node", "bytes", "median_ms"},
     vidur_send_recv,
     false},
    {"simumax-gemm",
     "bf16",
     "SimuMax: GEMM forward and both gradients, as efficiencies",
     {"stage", "m", "n", "k", "eff_of_312TF"},
     simumax_gemm,
     false},
    {"simumax-attn",
     "bf16",
     "SimuMax: causal flash attention, as efficiencies",
     {"stage", "batch", "seq", "q_heads", "kv_heads", "qk_dim", "v_dim",
      "eff_of_312TF_uncausal_flops"},
     simumax_attn,
     false},
    {"neusight-conv",
     "fp32",
     "NeuSight: convolution forward",
     {"batch", "c_in", "c_out", "kernel", "size", "stride", "pad", "latency_ms"},
     neusight_conv,
     false},
    {"triosim-conv",
     "tf32",
     "TrioSim: convolutions of a training step, forward and backward",
     {"op", "input_shapes", "output_shapes", "cuda_us"},
     triosim_conv,
     false},
    {"generic",
     "bf16",
     "one row per shape with its statistics; columns in doc/formats.md",
     {"op", "phase", "dtype", "d0", "d1", "d2", "d3", "d4", "d5", "n", "median_ns", "p10_ns",
      "p90_ns"},
     generic,
     true},
    {NULL, NULL, NULL, {NULL}, NULL, false},
};

const char *dt_importer_name(int i, const char **summary)
{
    *summary = dt_importers[i].summary;
    return dt_importers[i].name;
}

/* ---- grouping and merging ---- */

static int compare_key(const void *x, const void *y)
{
    const struct dt_ptable_row *a = x, *b = y;
#define CMP(f)                                                                                     \
    if (a->f != b->f)                                                                              \
        return a->f < b->f ? -1 : 1;
    CMP(device)
    CMP(dtype)
    CMP(r.family)
    CMP(r.phase)
    CMP(r.kind)
    CMP(r.source)
    for (int i = 0; i < 6; i++)
        CMP(r.d[i])
    return 0;
}

static int compare_time(const void *x, const void *y)
{
    const struct dt_ptable_row *a = x, *b = y;
    int c = compare_key(a, b);
    if (c)
        return c;
    CMP(r.median_ns)
#undef CMP
    return 0;
}

/* Quantile of the sorted run rows[0..n), linear between order statistics. */
static double quantile(const struct dt_ptable_row *rows, size_t n, double q)
{
    double at = q * (double)(n - 1), lo = floor(at);
    double a = rows[(size_t)lo].r.median_ns;
    double b = rows[(size_t)lo + (at > lo)].r.median_ns;
    return a + (at - lo) * (b - a);
}

static void group(struct dt_ptable *t)
{
    size_t w = 0;

    qsort(t->rows, t->n_rows, sizeof *t->rows, compare_time);
    for (size_t i = 0, j; i < t->n_rows; i = j) {
        for (j = i + 1; j < t->n_rows && compare_key(&t->rows[i], &t->rows[j]) == 0; j++)
            ;
        struct dt_ptable_row row = t->rows[i];
        row.r.n = (int64_t)(j - i);
        row.r.median_ns = quantile(&t->rows[i], j - i, 0.5);
        row.r.p10_ns = quantile(&t->rows[i], j - i, 0.1);
        row.r.p90_ns = quantile(&t->rows[i], j - i, 0.9);
        t->rows[w++] = row;
    }
    t->n_rows = w;
}

static enum dt_status merge(struct dt_ptable *t, const struct import *im, struct dt_error *err)
{
    size_t old = t->n_rows, w = 0;
    struct dt_ptable *add = im->t;

    /* Reserve first: after this nothing fails. */
    if (dt_grow((void **)&t->rows, &t->cap_rows, old + add->n_rows, sizeof *t->rows))
        return dt_error_nomem(err, "profile rows");
    qsort(add->rows, add->n_rows, sizeof *add->rows, compare_key);
    for (size_t i = 0; i < old; i++)
        if (!bsearch(&t->rows[i], add->rows, add->n_rows, sizeof *add->rows, compare_key))
            t->rows[w++] = t->rows[i];
    memcpy(t->rows + w, add->rows, add->n_rows * sizeof *add->rows);
    t->n_rows = w + add->n_rows;
    return DT_OK;
}

/* The new table shares the target's name indices: take the target's names, then hand back what was
 * added. */
static enum dt_status prepare(struct import *im, struct dt_ptable *t, const struct dt_importer *who,
                              const struct dt_import_options *opt)
{
    DT_TRY(dt_ptable_device(t, opt->device, im->err, &im->proto.device));
    DT_TRY(dt_ptable_dtype(t, opt->dtype ? opt->dtype : who->dtype, im->err, &im->proto.dtype));
    DT_TRY(dt_ptable_source(t, &opt->source, im->err, &im->proto.r.source));
    im->proto.r.kind = DT_ROW_MEASURED;
    memcpy(im->t->devices, t->devices, sizeof t->devices);
    memcpy(im->t->dtypes, t->dtypes, sizeof t->dtypes);
    im->t->n_devices = t->n_devices;
    im->t->n_dtypes = t->n_dtypes;
    im->t->n_sources = t->n_sources; /* only its count is looked at while rows are added */
    return DT_OK;
}

static enum dt_status find_family(const char *family, const struct dt_import_options *opt,
                                  struct import *im, const struct dt_importer **who)
{
    const char *names[sizeof dt_importers / sizeof dt_importers[0]];
    const char *near;

    *who = NULL;
    for (int i = 0; (names[i] = dt_importers[i].name); i++)
        if (strcmp(names[i], family) == 0)
            *who = &dt_importers[i];
    if (!*who) {
        near = dt_suggest(family, names);
        return dt_error_set(im->err, DT_ERR_USAGE, "unknown table family '%.60s'%s%s%s", family,
                            near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    if ((*who)->row != vidur_layer)
        return DT_OK;
    for (im->shape = shapes; im->shape->name; im->shape++)
        if (opt->shape && strcmp(im->shape->name, opt->shape) == 0)
            return DT_OK;
    return dt_error_set(im->err, DT_ERR_USAGE,
                        "vidur-layer needs --shape llama-3-8b or --shape llama-2-7b");
}

static enum dt_status read_rows(struct import *im, const struct dt_importer *who, size_t *n)
{
    bool more = true;

    for (int i = 0; i < MAX_NEEDED && who->needed[i]; i++)
        DT_TRY(dt_csv_column(&im->csv, who->needed[i], im->err, &im->col[i]));
    for (*n = 0;; ++*n) {
        DT_TRY(dt_csv_next(&im->csv, im->err, &more));
        if (!more)
            break;
        DT_TRY(who->row(im));
    }
    if (im->t->n_rows == 0)
        return dt_error_at(im->err, DT_ERR_INPUT, im->csv.name, 0, 0,
                           "no row of this table can be imported");
    return DT_OK;
}

enum dt_status dt_profile_import(const char *family, const char *name, const char *text, size_t len,
                                 const struct dt_import_options *opt, struct dt_error *err,
                                 struct dt_ptable *t, struct dt_import_result *result)
{
    const struct dt_importer *who;
    struct dt_ptable add = {0};
    struct import im = {.err = err, .t = &add};
    size_t lines = 0;
    enum dt_status status;

    DT_TRY(find_family(family, opt, &im, &who));
    DT_TRY(prepare(&im, t, who, opt));
    status = dt_csv_open(&im.csv, name, text, len, err);
    if (status == DT_OK)
        status = read_rows(&im, who, &lines);
    if (status == DT_OK && !who->has_stats)
        group(&add);
    if (status == DT_OK) { /* the generic table may have brought dtypes of its own */
        memcpy(t->dtypes, add.dtypes, sizeof t->dtypes);
        t->n_dtypes = add.n_dtypes;
        status = merge(t, &im, err);
    }
    if (status == DT_OK)
        *result = (struct dt_import_result){
            .rows = add.n_rows, .measurements = lines, .skipped = im.skipped};
    dt_csv_close(&im.csv);
    add.n_sources = 0;
    dt_ptable_free(&add);
    return status;
}
