/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 *   #  Rank  0 Group  0 Pid  4711 on   hosta device  0 [0x07] NVIDIA A100-SXM4-80GB
 *   #       size         count    type   redop    root     time   algbw   busbw #wrong     time ...
 *           1024           256   float     sum      -1    13.02    0.08    0.14      0    12.71 ...
 *
 * (layout recalled from versions 2.0 to 2.13; older ones leave out redop or root where the
 * operation has none, so times are found behind the last column that is no number or is root). */
#include "core/profile_nccl_text.h"

#include "core/mem.h"
#include "core/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 16, HOSTS = 512, HOST_NAME = 64, LINE_MAX_BYTES = 1024 };

static const struct {
    const char *word;
    int family;
} programs[] = {
    {"all_reduce", DT_OP_ALL_REDUCE},
    {"all_gather", DT_OP_ALL_GATHER},
    {"reduce_scatter", DT_OP_REDUCE_SCATTER},
    {"alltoall", DT_OP_ALL_TO_ALL},
    {"sendrecv", DT_OP_SEND_RECV},
};

struct nccl {
    const char *name;
    struct dt_ptable *t;
    struct dt_ptable_row row; /* device, dtype, source */
    int family;               /* -1: not known yet */
    int ranks, gpus;          /* "# Rank" lines; "nGpus" */
    char (*host)[HOST_NAME];
    int n_hosts, line;
    size_t rows;
};

static int family_in(const char *s)
{
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        const char *at = strstr(s, programs[i].word);

        if (at && strstr(at, "perf"))
            return programs[i].family;
    }
    return -1;
}

static void note_host(struct nccl *n, const char *host)
{
    for (int i = 0; i < n->n_hosts; i++)
        if (strcmp(n->host[i], host) == 0)
            return;
    if (n->n_hosts < HOSTS)
        snprintf(n->host[n->n_hosts++], HOST_NAME, "%s", host);
}

static void comment(struct nccl *n, const char *line)
{
    char host[HOST_NAME];
    const char *at;
    int rank;

    if (sscanf(line, "# Rank %d", &rank) == 1 && (at = strstr(line, " on ")) &&
        sscanf(at + 4, " %63s", host) == 1) {
        n->ranks++;
        note_host(n, host);
    }
    if ((at = strstr(line, "nGpus")))
        sscanf(at + 5, "%d", &n->gpus);
    if (n->family < 0)
        n->family = family_in(line);
}

static enum dt_status refuse(const struct nccl *n, struct dt_error *err, const char *why)
{
    return dt_error_at(err, DT_ERR_INPUT, n->name, n->line, 0, "%s", why);
}

/* gpus gpus_per_node bytes, or for point-to-point 1 between and 2 inside nodes, bytes. */
static enum dt_status set_dims(struct nccl *n, int64_t bytes, struct dt_error *err)
{
    int gpus = n->ranks > 0 ? n->ranks : n->gpus, hosts = n->n_hosts > 0 ? n->n_hosts : 1;
    int64_t *d = n->row.r.d;

    if (gpus < 2)
        return refuse(n, err,
                      "no line before this one says how many GPUs took part: \"# Rank\" "
                      "lines, or nGpus of 2 or more");
    if (gpus % hosts != 0)
        return refuse(n, err, "hosts with different numbers of GPUs");
    memset(d, 0, sizeof(n->row.r.d));
    if (n->family == DT_OP_SEND_RECV) {
        d[0] = hosts > 1 ? 1 : 2;
        d[1] = bytes;
    } else {
        d[0] = gpus;
        d[1] = gpus / hosts;
        d[2] = bytes;
    }
    return DT_OK;
}

static int split(char *line, char *word[WORDS])
{
    int n = 0;

    for (char *p = strtok(line, " \t\r"); p && n < WORDS; p = strtok(NULL, " \t\r"))
        word[n++] = p;
    return n;
}

static enum dt_status add(struct nccl *n, int64_t bytes, double a_us, double b_us,
                          struct dt_error *err)
{
    double low = a_us < b_us ? a_us : b_us, high = a_us < b_us ? b_us : a_us;

    if (bytes == 0)
        return DT_OK; /* the first lines of all-gathers over many ranks */
    if (!(low > 0))
        return refuse(n, err, "a time that is not above 0");
    DT_TRY(set_dims(n, bytes, err));
    n->row.r.family = n->family;
    n->row.r.phase = DT_PHASE_FWD;
    n->row.r.kind = DT_ROW_MEASURED;
    n->row.r.n = 2;
    n->row.r.p10_ns = 1e3 * low;
    n->row.r.median_ns = 1e3 * (low + high) / 2;
    n->row.r.p90_ns = 1e3 * high;
    n->rows++;
    return dt_ptable_add(n->t, &n->row, err);
}

static enum dt_status data(struct nccl *n, char *line, struct dt_error *err)
{
    char *w[WORDS];
    int words = split(line, w), first;
    double a, b;
    int64_t bytes;

    if (words == 0)
        return DT_OK;
    if (n->family < 0 && words > 3 && strcmp(w[3], "sum") == 0)
        n->family = DT_OP_ALL_REDUCE;
    if (n->family < 0)
        return refuse(n, err,
                      "which operation was timed? No line before this one names it, nor "
                      "does the file's name (such as all_gather_perf.txt)");
    first = words - 8; /* time algbw busbw #wrong, twice */
    if (first < 3 || !dt_number_int(w[0], &bytes) || bytes < 0 || !dt_number_double(w[first], &a) ||
        !dt_number_double(w[first + 4], &b))
        return refuse(n, err,
                      "no line of nccl-tests: expected size, count, type, ..., then time, "
                      "algbw, busbw, #wrong twice");
    for (int k = 3; k <= 7; k += 4) {
        int64_t wrong = 0;
        double deviation;

        /* versions before 2.13 print the largest deviation instead of a count, 0e+00 or 2e-07, and
         * take up to 1e-2, that of fp16, for right (recalled) */
        if (strcmp(w[first + k], "N/A") == 0 ||
            (strchr(w[first + k], 'e') && dt_number_double(w[first + k], &deviation) &&
             deviation >= 0 && deviation <= 1e-2))
            continue;
        if (!dt_number_int(w[first + k], &wrong) || wrong)
            return refuse(n, err, "nccl-tests found wrong results here; do not use these times");
    }
    return add(n, bytes, a, b, err);
}

static enum dt_status lines(struct nccl *n, const char *text, size_t len, struct dt_error *err)
{
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t m = end ? (size_t)(end - text) - at : len - at;
        char line[LINE_MAX_BYTES];

        n->line++;
        if (m >= sizeof(line))
            return refuse(n, err, "a line too long for nccl-tests");
        memcpy(line, text + at, m);
        line[m] = '\0';
        at += m + 1;
        if (line[strspn(line, " \t")] == '#')
            comment(n, line + strspn(line, " \t"));
        else
            DT_TRY(data(n, line, err));
    }
    if (n->rows == 0)
        return dt_error_at(err, DT_ERR_INPUT, n->name, 0, 0, "no line with times of nccl-tests");
    return DT_OK;
}

enum dt_status dt_nccl_text_import(const char *name, const char *text, size_t len,
                                   struct dt_ptable *t, int device, int dtype, int source,
                                   struct dt_error *err, size_t *rows)
{
    const char *base = strrchr(name, '/');
    struct nccl n = {.name = name, .t = t, .family = -1};
    enum dt_status st;

    n.row.device = device;
    n.row.dtype = dtype;
    n.row.r.source = source;
    n.family = family_in(base ? base + 1 : name);
    n.host = dt_calloc(HOSTS, sizeof(*n.host));
    st = n.host ? lines(&n, text, len, err) : dt_error_nomem(err, "hosts");
    dt_free(n.host);
    if (st == DT_OK)
        *rows = n.rows;
    return st;
}
