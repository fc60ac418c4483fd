/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Measured training runs as jobs: a table row states a model, a layout and a measured iteration; it
 * becomes the text of a job with a manual plan, so that the predictor that is judged is the one
 * that everybody uses.  What a table leaves unsaid is assumed once for the whole table. */
#ifndef DT_CORE_ACCURACY_H
#define DT_CORE_ACCURACY_H

#include "core/model.h"
#include "core/status.h"

struct dt_measured_row {
    char label[64]; /* what the table calls it, or a short form of shape and layout */
    char gpu_type[DT_NAME_MAX];
    int layers, hidden, ffn, heads, kv_groups, vocab, seq;
    int gpus, tp, pp, dp, vpp, cp;
    int micro_batch;
    int64_t global_batch;
    enum dt_recompute recompute;
    bool fp16;         /* else bf16 with fp32 gradients */
    bool unfused;      /* attention before flash attention */
    bool seqpar;       /* sequence parallelism */
    bool distributed;  /* distributed optimizer (ZeRO-1), gradients and parameters overlapped */
    int nics;          /* NICs per node; 0 = the cluster preset's */
    double measured_s; /* 0 = not measured: predict only */
    int line;          /* in the file */
};
enum dt_measured_format {
    DT_MEASURED_CSV,
    DT_MEASURED_VTRAIN,
    DT_MEASURED_VTRAIN_MULTI,
    DT_MEASURED_MEGATRON
};
struct dt_measured_table {
    char name[64];                  /* file name without folder and .csv */
    enum dt_measured_format format; /* told apart by the header */
    const char *assumed;            /* what was assumed for every row, one line */
    int n;
    struct dt_measured_row *rows;
};
/* Reads a CSV with the columns of disttrain-accuracy(1), or vTrain's or the Megatron table's own
 * header. */
enum dt_status dt_measured_read(const char *path, struct dt_error *err,
                                struct dt_measured_table *out);
enum dt_status dt_measured_parse(const char *name, const char *text, size_t len,
                                 struct dt_error *err, struct dt_measured_table *out);
void dt_measured_free(struct dt_measured_table *t);

/* The row as a job (YAML), strategy manual; `profile` preset name in *profile (static text). */
enum { DT_MEASURED_JOB_MAX = 4096 };
enum dt_status dt_measured_job(const struct dt_measured_row *r, struct dt_error *err, char *text,
                               size_t size, const char **profile);

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

/* ---- intervals ---- */

/* Families whose errors are taken as one: everything of a family is too fast or too slow together.
 */
enum dt_error_family {
    DT_ERRF_GEMM,
    DT_ERRF_ATTENTION,
    DT_ERRF_MEMORY_BOUND,
    DT_ERRF_COLLECTIVE,
    DT_ERRF_P2P,
    DT_ERRF_HOST,
    DT_ERRF_N
};
extern const char *const dt_error_family_names[DT_ERRF_N + 1];
/* Standard deviation of the logarithm of a family's time. */
extern const double dt_error_sigma[DT_ERRF_N];
enum dt_error_family dt_error_family_of(int op_family);
/* 10th and 90th percentile of a time whose logarithm moves by elasticity[f] per unit of the
 * logarithm of family f, families independent and log-normal: Monte Carlo (GSL), `draws` of them.
 */
enum dt_status dt_accuracy_interval(double time_s, const double *elasticity, uint64_t seed,
                                    int draws, struct dt_error *err, double *p10_s, double *p90_s);

#endif
