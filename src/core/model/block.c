/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Blocks as kernels: the one list that FLOPs, times and activations derive from.
 * A kind of block is a file block_KIND.c, which says what it has of each, and a row of DT_BLOCK_KINDS. */
#include "core/model/block_ops.h"

#include <math.h>

#define NAME(id, name, kind) name,
#define ROW(id, name, kind) &dt_block_##kind,
static const char *const kind_names[DT_BLOCK_KIND_N] = {DT_BLOCK_KINDS(NAME)};
static const struct dt_block_row *const rows[DT_BLOCK_KIND_N] = {DT_BLOCK_KINDS(ROW)};

const char *dt_block_kind_name(enum dt_block_kind k)
{
    return (unsigned)k < DT_BLOCK_KIND_N ? kind_names[k] : "unknown";
}

const struct dt_block_row *dt_block_row_of(const struct dt_block *b)
{
    return rows[b->kind];
}

const char *const dt_kop_family_names[DT_KOP_FAMILY_N + 1] = {
    "gemm",      "attn_causal", "attn_full",  "attn_cross",     "conv2d",     "norm",
    "groupnorm", "act",         "add",        "rope",           "embed",      "xent",
    "adamw",     "all_reduce",  "all_gather", "reduce_scatter", "all_to_all", "send_recv",
    "block",     "cpu_prep",    "carry",
};

double dt_block_level_scale(int level)
{
    double f = 1;

    while (level-- > 0)
        f /= 4;
    return f;
}

void dt_block_share_init(struct dt_block_share *w, const struct dt_block *b,
                         const struct dt_block_shard *s, const struct dt_work *work)
{
    double part = 1.0;

    if (s->ip > 1) {
        part = 1.0 / s->ip;
        if (work->tokens > 0 && (double)work->tokens_max / (double)work->tokens > part)
            part = (double)work->tokens_max / (double)work->tokens;
        if (part > 1)
            part = 1;
    }
    w->tp = s->tp > 1 ? s->tp : 1;
    w->cp = s->cp > 1 ? s->cp : 1;
    w->ep = s->ep > 1 ? s->ep : 1;
    w->ahead = s->ahead;
    w->seqpar = s->seqpar && w->tp > 1 && !b->no_seqpar;
    w->any_routing = s->any_routing;
    w->n = (double)work->n * part;
    if (work->n > 0 && w->n < 1)
        w->n = 1;
    w->tokens_all = (double)work->tokens * part;
    w->tokens = w->tokens_all / w->cp;
    w->tokens_sq = (double)work->tokens_sq * part;
    w->seq = work->tokens > 0 ? (double)work->tokens_sq / (double)work->tokens : 0;
    w->norm_tokens = w->seqpar ? w->tokens / w->tp : w->tokens;
}

static struct dt_kop *push(struct dt_kop_list *o, enum dt_kop_family f, double count)
{
    static struct dt_kop
        sink; /* never reached: every block's list is far below DT_MAX_KOPS (tested) */
    struct dt_kop *k = o->n < DT_MAX_KOPS ? &o->k[o->n++] : &sink;

    *k = (struct dt_kop){.family = f, .count = count, .by_sq = o->by_sq};
    return k;
}

/* The kernel that would come next is in the list already. */
static bool stays(struct dt_kop_list *o)
{
    if (!o->again || o->by_sq)
        return false;
    o->n += o->n < DT_MAX_KOPS;
    return true;
}

static int64_t dim(double v)
{
    int64_t i = llround(v);

    return i > 0 ? i : 1;
}

void dt_kop_emit_gemm(struct dt_kop_list *o, double m, double n, double k, double count)
{
    struct dt_kop *op;

    if (stays(o))
        return;
    op = push(o, DT_KOP_GEMM, count);
    op->d[0] = dim(m);
    op->d[1] = dim(n);
    op->d[2] = dim(k);
    op->flops = 2 * m * n * k;
    op->bytes = DT_ELEM_BYTES * (m * k + k * n + m * n);
    op->has_weight = true;
}

void dt_kop_emit_pointwise(struct dt_kop_list *o, enum dt_kop_family f, double tokens, double width,
                           int64_t extra, double passes, bool has_weight, double count)
{
    struct dt_kop *op;

    if (stays(o))
        return;
    op = push(o, f, count);
    op->d[0] = dim(tokens);
    op->d[1] = dim(width);
    op->d[2] = extra;
    op->bytes = passes * DT_ELEM_BYTES * tokens * width;
    op->has_weight = has_weight;
}

void dt_kop_emit_coll_apart(struct dt_kop_list *o, enum dt_kop_family f, double gpus, double stride,
                            double ahead, double bytes, double count)
{
    struct dt_kop *op;

    if (gpus <= 1 || stays(o))
        return;
    op = push(o, f, count);
    op->d[0] = (int64_t)gpus;
    op->d[1] = (int64_t)gpus;
    op->d[2] = dim(bytes);
    op->d[3] = (int64_t)stride;
    op->d[4] = (int64_t)ahead;
    op->bytes = bytes;
}

void dt_kop_emit_coll(struct dt_kop_list *o, enum dt_kop_family f, double gpus, double bytes,
                      double count)
{
    dt_kop_emit_coll_apart(o, f, gpus, 1, 0, bytes, count);
}

void dt_kop_emit_attention(struct dt_kop_list *o, bool causal, double seq, double tokens_sq,
                           double heads, double kv_heads, double head_dim, double count)
{
    double flops_per_pair = (causal ? 2 : 4) * heads * head_dim;
    int64_t s = dim(seq);
    int64_t batch = dim(tokens_sq / ((double)s * (double)s));
    double pairs = (double)batch * (double)s * (double)s;
    struct dt_kop *op;

    o->by_sq = true;
    op = push(o, causal ? DT_KOP_ATTN_CAUSAL : DT_KOP_ATTN_FULL, 0);
    o->by_sq = false;
    op->d[0] = batch;
    op->d[1] = s;
    op->d[2] = (int64_t)heads;
    op->d[3] = (int64_t)kv_heads;
    op->d[4] = (int64_t)head_dim;
    op->flops = flops_per_pair * pairs;
    op->bytes = DT_ELEM_BYTES * (double)batch * (double)s * head_dim * (2 * heads + 2 * kv_heads);
    /* batch and seq are whole numbers; the multiplicity carries what rounding lost, so that work is
     * exact */
    op->count = count * tokens_sq / pairs;
}

void dt_kop_emit_cross(struct dt_kop_list *o, double items, double tokens, double heads,
                       double kv_len, double head_dim, double count)
{
    struct dt_kop *op;

    if (stays(o))
        return;
    op = push(o, DT_KOP_ATTN_CROSS, count);
    op->d[0] = dim(items);
    op->d[1] = dim(tokens / (double)op->d[0]);
    op->d[2] = (int64_t)heads;
    op->d[3] = (int64_t)kv_len;
    op->d[4] = (int64_t)head_dim;
    op->flops = 4 * tokens * kv_len * heads * head_dim;
    op->bytes = DT_ELEM_BYTES * heads * head_dim * (2 * tokens + 2 * items * kv_len);
}

void dt_kop_emit_conv(struct dt_kop_list *o, double pixels, double c_in, double c_out, int kernel,
                      int stride)
{
    struct dt_kop *op;
    double taps = (double)kernel * kernel;

    if (stays(o))
        return;
    op = push(o, DT_KOP_CONV2D, 1);
    op->d[0] = dim(pixels);
    op->d[1] = (int64_t)c_in;
    op->d[2] = (int64_t)c_out;
    op->d[3] = kernel;
    op->d[4] = stride;
    op->flops = 2 * pixels * c_in * c_out * taps;
    op->bytes =
        DT_ELEM_BYTES * (pixels * stride * stride * c_in + pixels * c_out + taps * c_in * c_out);
    op->has_weight = true;
}

void dt_kop_emit_tp_enter(struct dt_kop_list *o, double tokens, double width)
{
    if (o->w.seqpar)
        dt_kop_emit_coll(o, DT_KOP_ALL_GATHER, o->w.tp, DT_ELEM_BYTES * tokens * width, 1);
}

void dt_kop_emit_tp_leave(struct dt_kop_list *o, double tokens, double width)
{
    dt_kop_emit_coll(o, o->w.seqpar ? DT_KOP_REDUCE_SCATTER : DT_KOP_ALL_REDUCE, o->w.tp,
                     DT_ELEM_BYTES * tokens * width, 1);
}

void dt_kop_emit_all_reduce(struct dt_kop_list *o, double bytes, double forward, double backward)
{
    int n = o->n;

    dt_kop_emit_coll(o, DT_KOP_ALL_REDUCE, o->w.tp, bytes, forward);
    if (o->n == n || o->again)
        return;
    o->k[n].own_back = true;
    o->k[n].back = backward;
}

bool dt_block_never(const struct dt_block *b)
{
    (void)b;
    return false;
}

bool dt_block_always(const struct dt_block *b)
{
    (void)b;
    return true;
}

bool dt_block_by_items(const struct dt_block *b)
{
    return dt_block_row_of(b)->by_items(b);
}

static int kops(const struct dt_block *b, const struct dt_block_shard *s,
                const struct dt_work *work, bool again, struct dt_kop *out)
{
    struct dt_kop_list o = {.k = out, .again = again};

    if (work->n <= 0 || work->tokens <= 0)
        return 0;
    dt_block_share_init(&o.w, b, s, work);
    dt_block_row_of(b)->kernels(b, &o);
    return o.n;
}

int dt_block_kops(const struct dt_block *b, const struct dt_block_shard *s,
                  const struct dt_work *work, struct dt_kop *out)
{
    return kops(b, s, work, false, out);
}

int dt_block_kops_again(const struct dt_block *b, const struct dt_block_shard *s,
                        const struct dt_work *work, struct dt_kop *list)
{
    return kops(b, s, work, true, list);
}
