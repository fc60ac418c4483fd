/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Measured training runs as jobs: a table row states a model, a layout and a measured iteration; it
 * becomes the text of a job with a manual plan, so that the predictor that is judged is the one
 * that everybody uses.  What a table leaves unsaid is assumed once for the whole table. */
#ifndef DT_FIT_ACCURACY_H
#define DT_FIT_ACCURACY_H

#include "core/model/model.h"
#include "base/status.h"

struct dt_accuracy_measured_row {
    char label[64];  /* what the table calls it, or a short form of shape and layout */
    char source[16]; /* whose word the time is: "published", "recalled", ...; "" = not said */
    char gpu_type[DT_NAME_MAX];
    int layers, hidden, ffn, heads, kv_groups, vocab, seq;
    int gpus, tp, pp, dp, vpp, cp;
    int micro_batch;
    int64_t global_batch;
    enum dt_block_recompute recompute;
    bool fp16;         /* else bf16 with fp32 gradients */
    bool unfused;      /* attention before flash attention */
    bool seqpar;       /* sequence parallelism */
    bool distributed;  /* distributed optimizer (ZeRO-1), gradients and parameters overlapped */
    int nics;          /* NICs per node; 0 = the cluster preset's */
    double measured_s; /* 0 = not measured: predict only */
    int line;          /* in the file */
};
enum dt_accuracy_measured_format {
    DT_MEASURED_CSV,
    DT_MEASURED_VTRAIN,
    DT_MEASURED_VTRAIN_MULTI,
    DT_MEASURED_MEGATRON
};
struct dt_accuracy_measured_table {
    char name[64];                           /* file name without folder and .csv */
    enum dt_accuracy_measured_format format; /* told apart by the header */
    const char *assumed;                     /* what was assumed for every row, one line */
    const char *peers; /* what others are said to reach on the whole table; NULL = nothing known */
    int n;
    struct dt_accuracy_measured_row *rows;
};
/* Reads a CSV with the columns of disttrain-accuracy(1), or vTrain's or the Megatron table's own
 * header. */
enum dt_status dt_accuracy_measured_read(const char *path, struct dt_error *err,
                                         struct dt_accuracy_measured_table *out);
enum dt_status dt_accuracy_measured_parse(const char *name, const char *text, size_t len,
                                          struct dt_error *err,
                                          struct dt_accuracy_measured_table *out);
void dt_accuracy_measured_free(struct dt_accuracy_measured_table *t);

/* Host time per kernel of a training step in eager PyTorch, us: fitted with the constants of cost_tuning.c; with flash
 * attention assumed. */
enum { DT_DISPATCH_UNFUSED_US = 115, DT_DISPATCH_FUSED_US = 12 };
/* The row as a job (YAML), strategy manual; `profile` preset name in *profile (static text). */
enum { DT_MEASURED_JOB_MAX = 4096 };
enum dt_status dt_accuracy_measured_job(const struct dt_accuracy_measured_row *r,
                                        struct dt_error *err, char *text, size_t size,
                                        const char **profile);

/* ---- errors of a table ---- */

struct dt_accuracy_row {
    double measured_s, predicted_s, p10_s, p90_s;
};
struct dt_accuracy {
    int n;
    double mape, median, p90, max; /* of |predicted / measured - 1| */
    double bias;                   /* mean of predicted / measured - 1 */
    double cover80;                /* share of rows inside [p10, p90] */
};
enum dt_status dt_accuracy_summary(const struct dt_accuracy_row *rows, int n, struct dt_error *err,
                                   struct dt_accuracy *out);

#endif
