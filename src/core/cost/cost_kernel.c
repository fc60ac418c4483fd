/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The time of one kernel: units of work / efficiency from the profile, never below the device's
 * roofline. Constants: doc/calibration.md. */
#include "core/cost/cost_internal.h"
#include "core/model/plan.h"

const char *const dt_cost_prov_names[DT_PROV_N + 1] = {"measured", "interpolated", "extrapolated",
                                                       "computed", "assumed",      NULL};

struct family_model {
    double eff; /* flat efficiency of the roofline estimate: of peak flop/s, for flop families */
    /* time of the input gradient / forward, when the profile has no row of that phase */
    double dgrad;
    double wgrad;       /* the same for the weight gradient */
    double dgrad_flops; /* floor: flops of the input gradient / forward */
    int stand_in;       /* family whose efficiency is taken when this one has no rows; -1 = none */
};

/* eff: GEMM 0.75 = middle of 73-82 % of peak for large GEMMs (aiconfigurator A100 SGLang 0.5.10,
 * published table); causal attention 0.44 (the same tables, seq 8192, 32 heads); full attention
 * 0.42 (H100 ViT-like, seq 4096); cross attention and convolution: assumed, no bf16 source at hand.
 * GEMM dgrad, wgrad: mean efficiencies .718 / .716 / .681 of SimuMax's A100 PCIe table (published;
 * ratio derived). Attention dgrad: 5 matrix products instead of 2, times the forward/backward
 * efficiency ratio 1.15 of SimuMax's flash-attention table at head size 128, seq 4096 (published;
 * ratio derived). Convolution: backward/forward 3.7 in TrioSim's H100 VGG-13 step, halved (TF32,
 * NCHW: an upper bound). Norms: 1.7 in NeuSight's per-op table (fp32): input gradient 1.5 (three
 * passes instead of two), rest 0.2. Activations 1.4-1.7: NeuSight gelu 1.4, gated by bytes
 * 5/3: 1.5.  Others by bytes moved. */
static const struct family_model models[DT_KOP_FAMILY_N] = {
    [DT_KOP_GEMM] = {0.75, 1.003, 1.054, 1, -1},
    [DT_KOP_ATTN_CAUSAL] = {0.44, 2.88, 0, 2.5, -1},
    [DT_KOP_ATTN_FULL] = {0.42, 2.88, 0, 2.5, -1},
    [DT_KOP_ATTN_CROSS] = {0.30, 2.88, 0, 2.5, DT_KOP_ATTN_FULL},
    [DT_KOP_CONV2D] = {0.50, 1.85, 1.85, 1, -1},
    [DT_KOP_NORM] = {0, 1.5, 0.2, 0, -1},
    [DT_KOP_GROUPNORM] = {0, 1.5, 0.2, 0, DT_KOP_NORM},
    [DT_KOP_ACT] = {0, 1.5, 0, 0, -1},
    [DT_KOP_ADD] = {0, 1.0, 0, 0, -1},
    [DT_KOP_ROPE] = {0, 1.0, 0, 0, -1},
    [DT_KOP_EMBED] = {0, 0, 2.5, 0, -1},
    [DT_KOP_XENT] = {0, 1.0, 0, 0, DT_KOP_ACT},
    [DT_KOP_ADAMW] = {0, 0, 0, 0, -1},
    [DT_KOP_BLOCK] = {0, 0, 0, 0, -1}, /* measured or not asked for */
    [DT_KOP_CPU_PREP] = {0, 0, 0, 0, -1},
    [DT_KOP_CARRY] = {0, 0, 0, 0, -1}, /* the same */
};
/* HBM share of the roofline estimate: assumed (STREAM-like kernels reach 80-90 % of peak). */
#define HBM_EFFICIENCY 0.80
/* Fastest kernel of the A100 GEMM table (m 1, n 32, k 32): 2.48 us; the launch floor of estimates.
 */
#define LAUNCH_FLOOR_NS 2480.0

bool dt_cost_is_collective(int family)
{
    return family >= DT_KOP_ALL_REDUCE && family <= DT_KOP_SEND_RECV;
}

double dt_cost_units(int family, const int64_t *d)
{
    double a = (double)d[0], b = (double)d[1], x = (double)d[2], y = (double)d[3], z = (double)d[4];

    switch ((enum dt_kop_family)family) {
    case DT_KOP_GEMM:
        return 2 * a * b * x;
    case DT_KOP_ATTN_CAUSAL: /* batch seq heads kv_heads head_dim; half of the square counted */
        return 2 * a * b * b * x * z;
    case DT_KOP_ATTN_FULL:
        return 4 * a * b * b * x * z;
    case DT_KOP_ATTN_CROSS: /* batch seq heads kv_len head_dim */
        return 4 * a * b * y * x * z;
    case DT_KOP_CONV2D:
        return 2 * a * b * x * y * y;
    case DT_KOP_NORM: /* bytes at 2 per element: read and write */
    case DT_KOP_GROUPNORM:
    case DT_KOP_ROPE:
    case DT_KOP_EMBED:
    case DT_KOP_XENT:
        return 4 * a * b;
    case DT_KOP_ACT: /* a gated activation reads two inputs */
        return a * b * (x > 0 ? 6 : 4);
    case DT_KOP_ADD:
        return 6 * a * b;
    case DT_KOP_ADAMW:
    case DT_KOP_BLOCK:
        return a;
    case DT_KOP_CPU_PREP:
        return b;
    case DT_KOP_SEND_RECV:
        return b;
    case DT_KOP_CARRY:
        return x;
    case DT_KOP_ALL_REDUCE:
    case DT_KOP_ALL_GATHER:
    case DT_KOP_REDUCE_SCATTER:
    case DT_KOP_ALL_TO_ALL:
    case DT_KOP_FAMILY_N:
        break;
    }
    /* collectives: gpus gpus_per_node bytes */
    return x * dt_cost_bus_factor(family, (int)d[0]);
}

/* d of a kernel as the stand-in family counts its dims. */
static void stand_in_dims(const struct dt_kop *op, int64_t *d)
{
    for (int i = 0; i < 6; i++)
        d[i] = op->d[i];
    if (op->family == DT_KOP_ATTN_CROSS)
        d[3] = op->d[2]; /* kv_len -> kv_heads = heads */
    if (op->family == DT_KOP_XENT)
        d[2] = 0; /* not gated */
}

int dt_cost_family_source(struct dt_cost *c, int family)
{
    int other = dt_cost_is_collective(family) ? -1 : models[family].stand_in;

    if (dt_cost_groups(c, family, DT_PHASE_FWD)->n_groups > 0)
        return family;
    if (other >= 0 && dt_cost_groups(c, other, DT_PHASE_FWD)->n_groups > 0)
        return other;
    return -1;
}

struct dt_cost_surface *dt_cost_kernel_surface(struct dt_cost *c, const struct dt_kop *op,
                                               enum dt_kop_phase phase)
{
    int64_t d[6];
    int src;

    if (dt_cost_groups(c, (int)op->family, phase)->n_groups > 0)
        return dt_cost_surface(c, (int)op->family, phase, op->d);
    src = dt_cost_family_source(c, (int)op->family);
    if (src < 0)
        return NULL;
    stand_in_dims(op, d);
    if (src == (int)op->family)
        return dt_cost_surface(c, src, DT_PHASE_FWD, op->d);
    if (dt_cost_groups(c, src, phase)->n_groups > 0)
        return dt_cost_surface(c, src, phase, d);
    return dt_cost_surface(c, src, DT_PHASE_FWD, d);
}

/* What of the phase this kernel has at all. */
static double phase_ratio(const struct dt_kop *op, enum dt_kop_phase phase)
{
    const struct family_model *m = &models[op->family];

    if (phase == DT_PHASE_FWD)
        return 1;
    if (phase == DT_PHASE_WGRAD)
        return op->has_weight ? m->wgrad : 0;
    /* a GEMM of two activations has two input gradients */
    return op->family == DT_KOP_GEMM && !op->has_weight ? 2 * m->dgrad : m->dgrad;
}

static double roofline_ns(const struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                          double eff_flops, double eff_bytes)
{
    const struct dt_cluster *cl = c->cluster;
    double flops = op->flops, bytes = op->bytes, t, u;

    if (phase == DT_PHASE_DGRAD && models[op->family].dgrad_flops > 0)
        flops *= models[op->family].dgrad_flops;
    /* the weight gradient of a norm rides on the pass of its input gradient */
    if (phase == DT_PHASE_WGRAD && (op->family == DT_KOP_NORM || op->family == DT_KOP_GROUPNORM))
        bytes = 0;
    t = flops > 0 ? flops / (cl->peak_flops * eff_flops) : 0;
    u = bytes > 0 ? bytes / (cl->hbm_bytes_per_s * eff_bytes) : 0;
    return (t > u ? t : u) * 1e9;
}

static void analytical(const struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                       struct dt_cost_time *out)
{
    double eff = models[op->family].eff > 0 ? models[op->family].eff : 1;
    double ns = roofline_ns(c, op, DT_PHASE_FWD, eff, HBM_EFFICIENCY);

    if (ns < LAUNCH_FLOOR_NS)
        ns = LAUNCH_FLOOR_NS;
    dt_cost_time_set(out, ns * phase_ratio(op, phase), DT_PROV_COMPUTED);
}

static double from_surface(const struct dt_kop *op, struct dt_cost_surface *s, double units,
                           enum dt_cost_prov *prov)
{
    bool attention = op->family >= DT_KOP_ATTN_CAUSAL && op->family <= DT_KOP_ATTN_CROSS;
    double z, ns;
    bool below;

    z = dt_cost_surface_eval(s, dt_cost_log_dim(op->d[0]),
                             attention ? dt_cost_log_dim(op->d[1]) : 0, prov, &below);
    /* the dims of a mean sequence are rounded, its flops are not */
    if (dt_cost_family[op->family].flops && op->flops > 0)
        units = op->flops;
    ns = units / exp(z);
    return below && ns < s->min_ns ? s->min_ns : ns;
}

/* A group of GPUs `stride` apart: where it leaves the node, as many such groups share the node's NICs as lie
 * between two neighbours (all of one lane run together). */
static struct dt_cost_members members_of(const struct dt_cost *c, const struct dt_kop *op)
{
    int node = c->cluster->gpus_per_node;
    int stride = op->d[3] > 1 ? (int)(op->d[3] < node ? op->d[3] : node) : 1;

    return (struct dt_cost_members){
        .n = (int)op->d[0], .per_node = node / stride, .ahead = (int)op->d[4], .share = stride};
}

bool dt_cost_leaves_node(const struct dt_cost *c, const struct dt_kop *op)
{
    struct dt_cost_members m = members_of(c, op);

    return m.ahead + m.n > m.per_node;
}

/* What was measured on a processor with caches may well be faster than its memory, whose bandwidth is assumed
 * (traces/clusters/local.yaml).  GPUs' rows are of repeated kernels: what lies in a cache then does not in training. */
static bool stands(const struct dt_cost *c, enum dt_cost_prov prov)
{
    return dt_cluster_is_cpu(c->cluster) &&
           (prov == DT_PROV_MEASURED || prov == DT_PROV_INTERPOLATED);
}

static void kernel_one(struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                       struct dt_cost_surface *s, struct dt_cost_time *out)
{
    double ratio, ns, floor_ns, units;
    enum dt_cost_prov prov;

    if (dt_cost_is_collective((int)op->family)) {
        const struct dt_cost_members m = members_of(c, op);

        if (op->family == DT_KOP_SEND_RECV)
            dt_cost_p2p(c, op->d[0] > 1, 1, (double)op->d[1], out, NULL, NULL);
        else
            dt_cost_collective_of(c, op->family, &m, (double)op->d[2], out);
        return;
    }
    ratio = phase_ratio(op, phase);
    units = dt_cost_units((int)op->family, op->d);
    if (ratio <= 0 || units <= 0) {
        *out = (struct dt_cost_time){0};
        return;
    }
    if (!s)
        s = dt_cost_kernel_surface(c, op, phase);
    if (!s) {
        analytical(c, op, phase, out);
        return;
    }
    ns = from_surface(op, s, units, &prov);
    if (s->phase != (int)phase) {
        ns *= ratio;
        prov = DT_PROV_ASSUMED;
    } else if (phase == DT_PHASE_DGRAD && op->family == DT_KOP_GEMM && !op->has_weight) {
        ns *= 2;
    }
    if (s->family != (int)op->family)
        prov = DT_PROV_ASSUMED;
    floor_ns = roofline_ns(c, op, phase, 1, 1);
    if (ns < floor_ns && !stands(c, prov)) {
        ns = floor_ns;
        prov = DT_PROV_COMPUTED;
    }
    dt_cost_time_set(out, ns, prov);
}

void dt_cost_scale(const struct dt_cost *c, int family, struct dt_cost_time *t)
{
    double k = c->opt.scale[family];

    if (k <= 0 || k == 1)
        return;
    t->ns *= k;
    for (int i = 0; i < DT_PROV_N; i++)
        t->prov[i] *= k;
}

void dt_cost_kernel_one(struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                        struct dt_cost_surface *s, struct dt_cost_time *out)
{
    kernel_one(c, op, phase, s, out);
    if (!dt_cost_is_collective((int)op->family)) /* those are scaled where they are computed */
        dt_cost_scale(c, (int)op->family, out);
}

void dt_cost_kernel(struct dt_cost *c, const struct dt_kop *op, enum dt_kop_phase phase,
                    struct dt_cost_time *out)
{
    struct dt_cost_time one;

    dt_cost_kernel_one(c, op, phase, NULL, &one);
    *out = (struct dt_cost_time){0};
    dt_cost_time_add(out, &one, op->count);
}

/* Of a chunk's three parts the longest sets the pace; the others are seen once. */
static double in_chunks(const double part[3], double chunks)
{
    double sum = part[0] + part[1] + part[2], most = fmax(part[0], fmax(part[1], part[2]));

    return sum / chunks + most * (chunks - 1) / chunks;
}

/* A CPU copies gradients to a room and from there what was stepped: reads and writes each. */
static void step_on_cpus(struct dt_cost *c, double params, struct dt_cost_time *out)
{
    const double copied_bytes = 2 * 4 + 2 * 4 + 2 * 4;
    struct dt_cost_time copies = {0};

    dt_cost_optimizer(c, params, out);
    dt_cost_time_set(&copies, copied_bytes * params / c->cluster->hbm_bytes_per_s * 1e9,
                     DT_PROV_COMPUTED);
    dt_cost_time_add(out, &copies, 1);
}

void dt_cost_optimizer_host(struct dt_cost *c, double params, int ranks, double grad_bytes,
                            double elem_bytes, struct dt_cost_time *out)
{
    const struct dt_cluster *cl = c->cluster;
    /* What the host's memory carries of a parameter: the gradient arrives, is read, master, m and v are read and written,
     * and the parameter is written and fetched. */
    double bytes = 2 * grad_bytes + 24 + 2 * elem_bytes;
    double part[3], sum, ns;

    *out = (struct dt_cost_time){0};
    if (params <= 0)
        return;
    if (dt_cluster_is_cpu(cl)) {
        step_on_cpus(c, params, out);
        return;
    }
    part[0] = 1e9 * grad_bytes * params / cl->host_bytes_per_s;
    part[1] = 1e9 * bytes * params * ranks / cl->host_mem_bytes_per_s;
    part[2] = 1e9 * elem_bytes * params / cl->host_bytes_per_s;
    ns = in_chunks(part, ceil(params / DT_PLAN_OFFLOAD_CHUNK));
    sum = part[0] + part[1] + part[2];
    out->ns = ns;
    out->prov[DT_PROV_COMPUTED] = ns * (part[0] + part[2]) / sum;
    out->prov[DT_PROV_ASSUMED] = ns * part[1] / sum;
    dt_cost_scale(c, DT_KOP_ADAMW, out);
}

void dt_cost_host_copy(struct dt_cost *c, double bytes, int ranks, struct dt_cost_time *out)
{
    const struct dt_cluster *cl = c->cluster;
    double link_s, memory_s;

    *out = (struct dt_cost_time){0};
    if (bytes <= 0)
        return;
    if (dt_cluster_is_cpu(cl)) { /* the host's memory is theirs: it is read and written */
        dt_cost_time_set(out, 2e9 * bytes / cl->hbm_bytes_per_s, DT_PROV_COMPUTED);
        return;
    }
    link_s = bytes / cl->host_bytes_per_s;
    memory_s = bytes * ranks / cl->host_mem_bytes_per_s;
    if (link_s >= memory_s)
        dt_cost_time_set(out, 1e9 * link_s, DT_PROV_COMPUTED);
    else
        dt_cost_time_set(out, 1e9 * memory_s, DT_PROV_ASSUMED);
}

void dt_cost_optimizer(struct dt_cost *c, double params, struct dt_cost_time *out)
{
    /* AdamW, mixed precision: read fp32 gradient 4, read and write fp32 master, m, v 24, write
     * bf16 2. */
    const double bytes_per_param = 30;
    struct dt_kop op = {.family = DT_KOP_ADAMW, .count = 1};
    double ns;

    *out = (struct dt_cost_time){0};
    if (params <= 0)
        return;
    op.d[0] = (int64_t)ceil(params);
    op.bytes = bytes_per_param * params;
    if (dt_cost_groups(c, DT_KOP_ADAMW, DT_PHASE_FWD)->n_groups > 0) {
        dt_cost_kernel_one(c, &op, DT_PHASE_FWD, NULL, out);
        return;
    }
    ns = op.bytes / (c->cluster->hbm_bytes_per_s * HBM_EFFICIENCY) * 1e9;
    dt_cost_time_set(out, ns > LAUNCH_FLOOR_NS ? ns : LAUNCH_FLOOR_NS, DT_PROV_COMPUTED);
    dt_cost_scale(c, DT_KOP_ADAMW, out);
}
