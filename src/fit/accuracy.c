/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tables of measured runs: reading, and the job that a row stands for. */
#include "fit/accuracy.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "core/profile/profile_csv.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { TABLE_MAX = 16 << 20, ROWS_MAX = 1 << 16 };
enum { DEFAULT_VOCAB = 51200, DEFAULT_SEQ = 2048 }; /* GPT-2's vocabulary as Megatron-LM pads it */

enum field {
    F_LAYERS,
    F_HIDDEN,
    F_FFN,
    F_HEADS,
    F_KV,
    F_VOCAB,
    F_SEQ,
    F_GPUS,
    F_TP,
    F_PP,
    F_DP,
    F_VPP,
    F_CP,
    F_MB,
    F_GB,
    F_INTS,
    F_GPU_TYPE = F_INTS,
    F_RECOMPUTE,
    F_PRECISION,
    F_LABEL,
    F_SOURCE,
    F_TIME,
    F_N
};
struct names {
    const char *of[F_N];
    double unit_s; /* of the time column */
};
static const struct names own = {{"layers",   "hidden",      "ffn",
                                  "heads",    "kv_groups",   "vocab",
                                  "seq",      "gpus",        "tp",
                                  "pp",       "dp",          "vpp",
                                  "cp",       "micro_batch", "global_batch",
                                  "gpu_type", "recompute",   "precision",
                                  "name",     "source",      "measured_iter_s"},
                                 1};
static const struct names vtrain = {{"layers",
                                     "hidden size",
                                     NULL,
                                     "attention heads",
                                     NULL,
                                     NULL,
                                     "sequence length",
                                     "GPUs",
                                     "tensor parallelism",
                                     "pipeline parallelism",
                                     "data parallelism",
                                     NULL,
                                     NULL,
                                     "micro batch",
                                     "global batch",
                                     NULL,
                                     NULL,
                                     NULL,
                                     NULL,
                                     NULL,
                                     "iteration time (ms)"},
                                    1e-3};
static const struct names megatron = {
    {"layers", "hidden", NULL,        "heads", NULL,         NULL, "seq",
     "gpus",   "tp",     "pp",        "dp",    "interleave", NULL, "microbatch",
     "batch",  NULL,     "recompute", NULL,    "model",      NULL, "iteration_s"},
    1};

static const char *const assumed_text[] = {
    [DT_MEASURED_CSV] = "what a column leaves out: disttrain-accuracy(1)",
    [DT_MEASURED_VTRAIN] = "no recompute, fp16, unfused attention, no sequence parallelism, "
                           "gradients reduced after the backward, vocabulary 51,200",
    [DT_MEASURED_VTRAIN_MULTI] =
        "full recompute, fp16, unfused attention, no sequence parallelism, gradients reduced after "
        "the backward, vocabulary 51,200, 4 x 200 Gb/s",
    [DT_MEASURED_MEGATRON] = "fp16, unfused attention, sequence parallelism with selective "
                             "recompute only, gradients reduced after the backward, vocabulary "
                             "51,200, 8 x 200 Gb/s",
};

/* As stated by their authors or by who ran them; none was run again here. */
static const char *const peers_text[] = {
    [DT_MEASURED_VTRAIN] = "vTrain 8.37 % (its authors' claim, recalled)",
    [DT_MEASURED_VTRAIN_MULTI] =
        "vTrain 14.73 % (its authors' claim, recalled); Calculon 15.3 %, 12.9 % without the rows "
        "whose TP 16 crosses nodes (recalled)",
    [DT_MEASURED_MEGATRON] = NULL,
};

/* vTrain writes "# GPUs", "# layers": the sign is dropped. */
static int column(const struct dt_profile_csv *c, const char *name)
{
    for (int i = 0; name && i < c->n_cols; i++) {
        const char *head = c->head[i];

        if (strncmp(head, "# ", 2) == 0)
            head += 2;
        if (strcasecmp(head, name) == 0)
            return i;
    }
    return -1;
}

static bool all_columns(const struct dt_profile_csv *c, const struct names *n)
{
    for (int f = 0; f < F_N; f++)
        if (n->of[f] && column(c, n->of[f]) < 0)
            return false;
    return true;
}

struct reader {
    struct dt_profile_csv csv;
    const struct names *names;
    enum dt_accuracy_measured_format format;
    int col[F_N];
};

static const char *cell(const struct reader *r, int f)
{
    return r->col[f] >= 0 ? r->csv.cell[r->col[f]] : "";
}

/* Whole numbers may be written "8.0"; an absent or empty cell keeps what is there. */
static enum dt_status get(const struct reader *r, int f, int64_t *out, struct dt_error *err)
{
    const char *text = cell(r, f);
    double v;

    if (!*text)
        return DT_OK;
    if (!dt_number_double(text, &v) || v < 1 || v > 1e9 || v != (double)(int64_t)v)
        return dt_error_at(err, DT_ERR_INPUT, r->csv.name, r->csv.line, r->col[f] + 1,
                           "%s: \"%.40s\" is not a positive whole number", r->names->of[f], text);
    *out = (int64_t)v;
    return DT_OK;
}

static enum dt_status read_numbers(const struct reader *r, struct dt_accuracy_measured_row *m,
                                   struct dt_error *err)
{
    static const int needed[] = {F_LAYERS, F_HIDDEN, F_HEADS, F_GPUS, F_MB, F_GB};
    int64_t v[F_INTS] = {0};

    v[F_VOCAB] = r->format == DT_MEASURED_VTRAIN ? 50257 : DEFAULT_VOCAB;
    v[F_SEQ] = DEFAULT_SEQ;
    v[F_TP] = v[F_PP] = v[F_VPP] = v[F_CP] = 1;
    for (int f = 0; f < F_INTS; f++)
        DT_TRY(get(r, f, &v[f], err));
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (v[needed[i]] == 0)
            return dt_error_at(err, DT_ERR_INPUT, r->csv.name, r->csv.line, 1,
                               "%s is empty; it has no default", r->names->of[needed[i]]);
    if (v[F_FFN] == 0)
        v[F_FFN] = 4 * v[F_HIDDEN];
    if (v[F_KV] == 0)
        v[F_KV] = v[F_HEADS];
    if (v[F_DP] == 0)
        v[F_DP] = v[F_GPUS] / (v[F_TP] * v[F_PP] * v[F_CP]);
    if (v[F_DP] * v[F_TP] * v[F_PP] * v[F_CP] != v[F_GPUS])
        return dt_error_at(err, DT_ERR_INPUT, r->csv.name, r->csv.line, 1,
                           "tp %lld x cp %lld x pp %lld x dp %lld are not %lld GPUs",
                           (long long)v[F_TP], (long long)v[F_CP], (long long)v[F_PP],
                           (long long)v[F_DP], (long long)v[F_GPUS]);
    if (r->format == DT_MEASURED_VTRAIN && v[F_TP] > 1)
        v[F_VOCAB] = DEFAULT_VOCAB;
    m->layers = (int)v[F_LAYERS];
    m->hidden = (int)v[F_HIDDEN];
    m->ffn = (int)v[F_FFN];
    m->heads = (int)v[F_HEADS];
    m->kv_groups = (int)v[F_KV];
    m->vocab = (int)v[F_VOCAB];
    m->seq = (int)v[F_SEQ];
    m->gpus = (int)v[F_GPUS];
    m->tp = (int)v[F_TP];
    m->pp = (int)v[F_PP];
    m->dp = (int)v[F_DP];
    m->vpp = (int)v[F_VPP];
    m->cp = (int)v[F_CP];
    m->micro_batch = (int)v[F_MB];
    m->global_batch = v[F_GB];
    return DT_OK;
}

/* Words of a column; an empty cell keeps *out. */
static enum dt_status get_word(const struct reader *r, int f, const char *const *words, int *out,
                               struct dt_error *err)
{
    const char *text = cell(r, f), *near;

    if (!*text)
        return DT_OK;
    for (int i = 0; words[i]; i++)
        if (strcasecmp(words[i], text) == 0) {
            *out = i;
            return DT_OK;
        }
    near = dt_suggest(text, words);
    return dt_error_at(err, DT_ERR_INPUT, r->csv.name, r->csv.line, r->col[f] + 1,
                       "%s: \"%.40s\"; did you mean \"%s\"?", r->names->of[f], text,
                       near ? near : words[0]);
}

/* What no column says.  A100 runs of the GPT tables predate flash attention and the distributed
 * optimizer; Hopper runs have both, and so have Llamas, which came after them. */
static void assume(const struct reader *r, struct dt_accuracy_measured_row *m)
{
    bool gpt = m->ffn == 4 * m->hidden && m->kv_groups == m->heads;
    bool modern = strncasecmp(m->gpu_type, "H", 1) == 0 || !gpt;

    m->unfused = !modern;
    m->distributed = modern;
    m->seqpar = modern || m->recompute == DT_RECOMPUTE_SELECTIVE;
    m->nics = r->format == DT_MEASURED_VTRAIN_MULTI ? 4 : 0;
}

static enum dt_status read_row(const struct reader *r, struct dt_accuracy_measured_row *m,
                               struct dt_error *err)
{
    static const char *const recomputes[] = {"none", "selective", "full", "seqsel", NULL};
    static const char *const precisions[] = {"fp16", "bf16", NULL};
    int recompute = r->format == DT_MEASURED_VTRAIN_MULTI ? DT_RECOMPUTE_FULL : DT_RECOMPUTE_NONE;
    int precision = r->format == DT_MEASURED_CSV;
    const char *time = cell(r, F_TIME);

    memset(m, 0, sizeof *m);
    m->line = r->csv.line;
    snprintf(m->gpu_type, sizeof m->gpu_type, "%.40s",
             *cell(r, F_GPU_TYPE) ? cell(r, F_GPU_TYPE) : "A100");
    DT_TRY(read_numbers(r, m, err));
    DT_TRY(get_word(r, F_RECOMPUTE, recomputes, &recompute, err));
    DT_TRY(get_word(r, F_PRECISION, precisions, &precision, err));
    m->recompute = recompute == 3 ? DT_RECOMPUTE_SELECTIVE : (enum dt_block_recompute)recompute;
    m->fp16 = precision == 0;
    assume(r, m);
    if (*time) {
        if (!dt_number_double(time, &m->measured_s) || !(m->measured_s > 0))
            return dt_error_at(err, DT_ERR_INPUT, r->csv.name, r->csv.line, r->col[F_TIME] + 1,
                               "%s: \"%.40s\" is not a positive number", r->names->of[F_TIME],
                               time);
        m->measured_s *= r->names->unit_s;
    }
    snprintf(m->source, sizeof m->source, "%.15s", cell(r, F_SOURCE));
    snprintf(m->label, sizeof m->label, "%.20s%sL%d h%d s%d tp%d pp%d dp%d b%lld/%d",
             cell(r, F_LABEL), *cell(r, F_LABEL) ? " " : "", m->layers, m->hidden, m->seq, m->tp,
             m->pp, m->dp, (long long)m->global_batch, m->micro_batch);
    return DT_OK;
}

static enum dt_status read_all(struct reader *r, struct dt_error *err,
                               struct dt_accuracy_measured_table *t)
{
    int cap = 0;
    bool more;

    for (;;) {
        DT_TRY(dt_profile_csv_next(&r->csv, err, &more));
        if (!more)
            break;
        if (t->n == ROWS_MAX)
            return dt_error_at(err, DT_ERR_INPUT, r->csv.name, r->csv.line, 1, "more than %d rows",
                               ROWS_MAX);
        if (t->n == cap) {
            struct dt_accuracy_measured_row *bigger;

            cap = cap ? 2 * cap : 64;
            bigger = dt_realloc(t->rows, (size_t)cap * sizeof *bigger);
            if (!bigger)
                return dt_error_nomem(err, "measured rows");
            t->rows = bigger;
        }
        DT_TRY(read_row(r, &t->rows[t->n], err));
        t->n++;
    }
    if (t->n == 0)
        return dt_error_at(err, DT_ERR_INPUT, r->csv.name, r->csv.line, 1, "the table has no rows");
    return DT_OK;
}

static void table_name(const char *path, char *out, size_t size)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n = strlen(base);

    if (n > 4 && strcmp(base + n - 4, ".csv") == 0)
        n -= 4;
    snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), base);
}

enum dt_status dt_accuracy_measured_parse(const char *name, const char *text, size_t len,
                                          struct dt_error *err,
                                          struct dt_accuracy_measured_table *out)
{
    static const enum field required[] = {F_LAYERS, F_HIDDEN, F_HEADS, F_GPUS, F_MB, F_GB};
    struct dt_accuracy_measured_table t = {.n = 0};
    struct reader r = {.names = &own};
    enum dt_status st;
    if (len > 2 && strncmp(text, "# GPUs,", 7) == 0) { /* a header that looks like a comment */
        text += 2;
        len -= 2;
    }
    DT_TRY(dt_profile_csv_open(&r.csv, name, text, len, err));
    if (all_columns(&r.csv, &vtrain)) {
        r.names = &vtrain;
        r.format = column(&r.csv, "Parameters (billion)") < 0 ? DT_MEASURED_VTRAIN
                                                              : DT_MEASURED_VTRAIN_MULTI;
    } else if (all_columns(&r.csv, &megatron)) {
        r.names = &megatron;
        r.format = DT_MEASURED_MEGATRON;
    }
    for (int f = 0; f < F_N; f++)
        r.col[f] = column(&r.csv, r.names->of[f]);
    st = DT_OK;
    for (size_t i = 0; st == DT_OK && i < sizeof required / sizeof required[0]; i++)
        if (r.col[required[i]] < 0)
            st = dt_error_at(err, DT_ERR_INPUT, name, 1, 1,
                             "no column \"%s\"; disttrain-accuracy(1) says which there are",
                             r.names->of[required[i]]);
    if (st == DT_OK)
        st = read_all(&r, err, &t);
    dt_profile_csv_close(&r.csv);
    if (st != DT_OK) {
        dt_free(t.rows);
        return st;
    }
    table_name(name, t.name, sizeof t.name);
    t.format = r.format;
    t.assumed = assumed_text[r.format];
    t.peers = peers_text[r.format];
    *out = t;
    return DT_OK;
}

enum dt_status dt_accuracy_measured_read(const char *path, struct dt_error *err,
                                         struct dt_accuracy_measured_table *out)
{
    char *text = NULL;
    size_t len = 0;
    enum dt_status st;

    DT_TRY(dt_file_read(path, TABLE_MAX, err, &text, &len));
    st = dt_accuracy_measured_parse(path, text, len, err, out);
    dt_free(text);
    return st;
}

void dt_accuracy_measured_free(struct dt_accuracy_measured_table *t)
{
    dt_free(t->rows);
    memset(t, 0, sizeof *t);
}
