/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 *   #  Rank  0 Group  0 Pid  4711 on   hosta device  0 [0000:07:00] NVIDIA A100-SXM4-80GB
 *   #       size         count    type   redop    root     time   algbw   busbw  #wrong     time ...
 *           1024           256   float     sum      -1    13.02    0.08    0.14       0    12.71 ...
 *
 * Columns, as in src/common.cu and src/util.cu of nccl-tests from 2019 to 2.19: size, count, type,
 * redop and root (older versions leave out what the operation has none of), then for out of place
 * and again for in place: time, algbw, busbw, #wrong or error and, with the report of iterations,
 * i_min, i_max, i_p99, i_cv%; then date and time if asked for.  The version of 2017 wrote
 * milliseconds. */
#include "fit/profile_nccl_text.h"

#include "base/mem.h"
#include "base/number.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WORDS = 32,
    HOSTS = 4096,
    HOST_NAME = 256,
    LINE_MAX_BYTES = 65536, /* command lines and NCCL's messages are long */
    NO_OP = -1,             /* nobody has named the program yet */
    OTHER_OP = -2,          /* a program whose operation no profile has */
};

static const struct {
    const char *word;
    int family;
} programs[] = {
    {"all_reduce_perf", DT_KOP_ALL_REDUCE},
    {"all_gather_perf", DT_KOP_ALL_GATHER},
    {"reduce_scatter_perf", DT_KOP_REDUCE_SCATTER},
    {"alltoall_perf", DT_KOP_ALL_TO_ALL},
    {"sendrecv_perf", DT_KOP_SEND_RECV},
};

struct host {
    char name[HOST_NAME];
    int ranks;
};
struct nccl {
    const char *name;
    struct dt_error *err;
    struct dt_profile_table *t;
    struct dt_profile_table_row row; /* device, dtype, source */
    int family;
    bool family_used;         /* a run with times had it: the next one must be named anew */
    int ranks, gpus, threads; /* "# Rank" lines; "nGpus", "nThread" */
    int group;                /* of all ranks */
    bool times;               /* there are some since the last "# nThread" */
    struct host *host;
    int n_hosts, line;
    char *text; /* the line */
    struct dt_import_nccl_counts counts;
};

static enum dt_status refuse(const struct nccl *n, const char *why)
{
    return dt_error_at(n->err, DT_ERR_INPUT, n->name, n->line, 0, "%s", why);
}

static bool in_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* The operation of the program that a text names; NO_OP if it names none or several. */
static int family_in(const char *s)
{
    static const char suffix[] = "_perf";
    int found = NO_OP;

    for (const char *at = s; (at = strstr(at, suffix)); at += sizeof(suffix) - 1) {
        const char *from = at, *end = at + sizeof(suffix) - 1;
        int family = OTHER_OP;

        while (from > s && in_name(from[-1]))
            from--;
        if (in_name(*end) || from == at)
            continue; /* all_reduce_performance */
        for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
            if ((size_t)(end - from) == strlen(programs[i].word) &&
                strncmp(from, programs[i].word, (size_t)(end - from)) == 0)
                family = programs[i].family;
        if (found != NO_OP && found != family)
            return NO_OP;
        found = family;
    }
    return found;
}

static void note_program(struct nccl *n, const char *line)
{
    int family = family_in(line);

    if (family == NO_OP || strstr(line, "concluded"))
        return;
    n->family = family;
    n->family_used = false;
}

/* ---- the head ---- */

static enum dt_status note_host(struct nccl *n, const char *name)
{
    int i = 0;

    while (i < n->n_hosts && strcmp(n->host[i].name, name) != 0)
        i++;
    if (i == HOSTS)
        return refuse(n, "too many hosts");
    if (i == n->n_hosts) {
        snprintf(n->host[i].name, HOST_NAME, "%s", name);
        n->host[n->n_hosts++].ranks = 0;
    }
    n->host[i].ranks++;
    return DT_OK;
}

/* "Rank  0 Group  0 Pid  4711 on  hosta device ...", in the order of the ranks. */
static enum dt_status rank_line(struct nccl *n, const char *line)
{
    const char *on = strstr(line, " on "), *at = strstr(line, " Group ");
    char host[HOST_NAME];
    int rank, group = 0;

    if (sscanf(line, "Rank %d", &rank) != 1 || !on || sscanf(on + 4, " %255s", host) != 1)
        return DT_OK;
    if (at && at < on)
        sscanf(at + 7, "%d", &group);
    if (rank == 0 && n->ranks > 0)
        return refuse(n, "a second rank 0: these processes did not know of each other (was "
                         "nccl-tests built with MPI=1?), so nothing says who took part");
    if (rank != n->ranks)
        return refuse(n, "not all ranks are listed, so nothing says how many took part");
    if (n->ranks > 0 && group != n->group)
        return refuse(n, "several groups ran side by side: their times are not those of one group "
                         "alone");
    n->group = group;
    n->ranks++;
    return note_host(n, host);
}

static enum dt_status parameters(struct nccl *n, const char *line)
{
    const char *at;

    if (n->ranks > 0 && !n->times)
        return refuse(n, "a second run before the first one's times: these processes did not know "
                         "of each other (was nccl-tests built with MPI=1?)");
    n->ranks = n->n_hosts = n->gpus = n->threads = 0;
    n->times = false;
    if (n->family_used)
        n->family = NO_OP;
    if ((at = strstr(line, "nThread")))
        sscanf(at + 7, "%d", &n->threads);
    if ((at = strstr(line, "nGpus")))
        sscanf(at + 5, "%d", &n->gpus);
    return DT_OK;
}

static enum dt_status comment(struct nccl *n, const char *line)
{
    const char *p = line + strspn(line, "# \t");
    int wrong;

    if (strncmp(p, "Rank ", 5) == 0)
        return rank_line(n, p);
    if (strncmp(p, "nThread ", 8) == 0)
        return parameters(n, p);
    if (strncmp(p, "Out of bounds values", 20) == 0 && (p = strchr(p, ':')) &&
        sscanf(p + 1, "%d", &wrong) == 1 && wrong > 0)
        return refuse(n, "nccl-tests found wrong results; do not use these times");
    if (p && strstr(p, " cputime "))
        return refuse(n, "cputime is how long the calls took the host, not how long the operation "
                         "took: run without -C");
    if (p && strncmp(p, "bytes ", 6) == 0)
        return refuse(n, "the columns of the version of 2017: its times are in milliseconds and "
                         "are not read");
    note_program(n, line);
    return DT_OK;
}

/* ---- times ---- */

/* gpus gpus_per_node bytes, or for point-to-point 1 between and 2 inside nodes, bytes. */
static enum dt_status set_dims(struct nccl *n, int64_t bytes, int *gpus)
{
    int hosts = n->n_hosts > 0 ? n->n_hosts : 1;
    int64_t *d = n->row.r.d, alone = n->threads > 0 ? n->threads : 1;

    alone = n->gpus > 0 && n->gpus <= 65536 && alone <= 65536 ? alone * n->gpus : 0;
    *gpus = n->ranks > 0 ? n->ranks : (int)alone;
    if (*gpus < 2)
        return refuse(n, "no line before this one says how many GPUs took part: \"# Rank\" "
                         "lines, or nGpus of 2 or more");
    for (int i = 1; i < n->n_hosts; i++)
        if (n->host[i].ranks != n->host[0].ranks)
            return refuse(n, "hosts with different numbers of GPUs");
    memset(d, 0, sizeof(n->row.r.d));
    if (n->family == DT_KOP_SEND_RECV) {
        d[0] = hosts > 1 ? 1 : 2;
        d[1] = bytes;
    } else {
        d[0] = *gpus;
        d[1] = *gpus / hosts;
        d[2] = bytes;
    }
    return DT_OK;
}

/* nccl-tests' doc/PERFORMANCE.md: algbw = size / time, busbw = algbw x this.  Until 2019 gathers
 * and reduce-scatters had busbw in both columns. */
static double bus_factor(int family, int gpus)
{
    if (family == DT_KOP_ALL_REDUCE)
        return 2.0 * (gpus - 1) / gpus;
    if (family == DT_KOP_SEND_RECV)
        return 1;
    return (double)(gpus - 1) / gpus;
}

/* Equal up to what printing loses: times have four digits, bandwidths two decimals or, when they
 * are large, fewer. */
static bool agree(double printed, double computed)
{
    return fabs(printed - computed) <= 0.011 + 0.02 * fabs(computed);
}

/* time algbw busbw #wrong */
static enum dt_status read_times(struct nccl *n, char *const *w, int64_t bytes, int gpus,
                                 double *us)
{
    double alg, bus, deviation, size_per_time, factor;
    int64_t wrong = 0;

    if (!dt_number_double(w[0], us) || !dt_number_double(w[1], &alg) ||
        !dt_number_double(w[2], &bus))
        return refuse(n, "time, algbw and busbw are not numbers");
    if (!(*us > 0))
        return refuse(n, "a time that is not above 0");
    size_per_time = (double)bytes / (1e3 * *us);
    factor = bus_factor(n->family, gpus);
    if (!agree(alg, size_per_time) && !agree(alg, size_per_time * factor))
        return refuse(n, "algbw is not size / time in microseconds: other columns, or another "
                         "unit, than those of nccl-tests");
    if (!agree(bus, size_per_time * factor))
        return refuse(n, "busbw / algbw is that of another operation or number of GPUs");
    /* versions before 2.13 print the largest deviation instead of a count, 0e+00 or 2e-07, and take
     * up to 1e-2, that of fp16, for right (recalled); those from 2.17 print large counts as 1e+06
     */
    if (strcmp(w[3], "N/A") == 0 || (strchr(w[3], 'e') && dt_number_double(w[3], &deviation) &&
                                     deviation >= 0 && deviation <= 1e-2))
        return DT_OK;
    if (!dt_number_int(w[3], &wrong) || wrong)
        return refuse(n, "nccl-tests found wrong results here; do not use these times");
    return DT_OK;
}

static enum dt_status add(struct nccl *n, double a_us, double b_us)
{
    double low = a_us < b_us ? a_us : b_us, high = a_us < b_us ? b_us : a_us;

    n->row.r.family = n->family;
    n->row.r.phase = DT_PHASE_FWD;
    n->row.r.kind = DT_ROW_MEASURED;
    n->row.r.n = 2;
    n->row.r.p10_ns = 1e3 * low;
    n->row.r.median_ns = 1e3 * (low + high) / 2;
    n->row.r.p90_ns = 1e3 * high;
    n->counts.rows++;
    n->times = n->family_used = true;
    return dt_profile_table_add(n->t, &n->row, n->err);
}

static int split(char *line, char *word[WORDS])
{
    char *save = NULL;
    int n = 0;

    for (char *p = strtok_r(line, " \t\r", &save); p; p = strtok_r(NULL, " \t\r", &save)) {
        if (n == WORDS)
            return WORDS + 1;
        word[n++] = p;
    }
    return n;
}

static bool is_date_and_time(const char *date, const char *time)
{
    int y, m, d, h, min, s, end = 0;

    return sscanf(date, "%4d-%2d-%2d%n", &y, &m, &d, &end) == 3 && date[end] == '\0' &&
           sscanf(time, "%2d:%2d:%2d%n", &h, &min, &s, &end) == 3 && time[end] == '\0';
}

/* Of the columns after size: where the two times are. */
static bool find_times(char *const *w, int words, int *first, int *second)
{
    if (words >= 2 && is_date_and_time(w[words - 2], w[words - 1]))
        words -= 2;
    if (words >= 3 + 8 && words <= 5 + 8) {
        *first = words - 8;
        *second = words - 4;
    } else if (words >= 3 + 16 && words <= 5 + 16) {
        *first = words - 16;
        *second = words - 8;
    } else {
        return false;
    }
    return true;
}

static enum dt_status data(struct nccl *n)
{
    int first, second, gpus;
    char *w[WORDS];
    int64_t bytes;
    int words;
    double a, b;

    if (strstr(n->text, "NCCL "))
        return refuse(n, "times broken by a message of NCCL: run without NCCL_DEBUG, or with "
                         "NCCL_DEBUG_FILE");
    words = split(n->text, w);
    if (words > WORDS || !find_times(w, words, &first, &second) || !dt_number_int(w[0], &bytes) ||
        bytes < 0)
        return refuse(n, "no line of nccl-tests: expected size, count, type, redop, root, then "
                         "time, algbw, busbw, #wrong twice, each with i_min, i_max, i_p99, i_cv% "
                         "or without");
    if (n->family == OTHER_OP)
        return refuse(n, "no op of a profile; those are all_reduce, all_gather, reduce_scatter, "
                         "alltoall and sendrecv");
    if (n->family == NO_OP)
        return refuse(n, "which operation was timed? No line before this one names it alone, nor "
                         "does the file's name (such as all_gather_perf.txt)");
    if (bytes == 0)
        return DT_OK; /* the first lines of all-gathers over many ranks */
    DT_TRY(set_dims(n, bytes, &gpus));
    DT_TRY(read_times(n, w + first, bytes, gpus, &a));
    DT_TRY(read_times(n, w + second, bytes, gpus, &b));
    return add(n, a, b);
}

/* ---- lines ---- */

static size_t digits(const char *s)
{
    return strspn(s, "0123456789");
}

/* Past the tag of a launcher: "[1,0]<stdout>:" (mpirun --tag-output), "[0] " (mpiexec
 * -prepend-rank), "12: " (srun -l). */
static char *skip_tag(char *s)
{
    char *p = s + strspn(s, " \t"), *q;

    if (*p == '[' && (q = strchr(p, ']'))) {
        if (strncmp(q, "]<stdout>:", 10) == 0 || strncmp(q, "]<stderr>:", 10) == 0)
            return q + 10;
        return p + 1 + digits(p + 1) == q && q[1] == ' ' ? q + 2 : s;
    }
    if (digits(p) > 0 && p[digits(p)] == ':')
        return p + digits(p) + 1;
    return s;
}

/* A number, and then nothing or another: a line of times, or what is left of one. */
static bool begins_like_times(const char *s)
{
    size_t n = digits(s), m;

    if (n == 0 || (s[n] && !isspace((unsigned char)s[n])))
        return false;
    s += n + strspn(s + n, " \t\r");
    m = digits(s);
    return *s == '\0' || (m > 0 && (s[m] == '\0' || isspace((unsigned char)s[m])));
}

static enum dt_status other(struct nccl *n, const char *line)
{
    static const char *const failures[] = {"Test NCCL failure", "Test CUDA failure", "Test failure",
                                           "Test timeout"};

    for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++)
        if (strstr(line, failures[i]))
            return refuse(n, "the run failed here; do not use its times");
    n->counts.left_out++;
    if (!strstr(line, "NCCL "))
        note_program(n, line); /* the command line */
    return DT_OK;
}

static enum dt_status one_line(struct nccl *n)
{
    char *s = skip_tag(n->text);

    s += strspn(s, " \t\r");
    n->text = s;
    if (*s == '\0')
        return DT_OK;
    if (*s == '#')
        return comment(n, s);
    return begins_like_times(s) ? data(n) : other(n, s);
}

static enum dt_status lines(struct nccl *n, const char *text, size_t len, char *buf)
{
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t m = end ? (size_t)(end - text) - at : len - at;

        n->line++;
        if (m >= LINE_MAX_BYTES)
            return refuse(n, "a line of over 65535 bytes");
        if (memchr(text + at, '\0', m))
            return refuse(n, "a NUL byte: no text");
        memcpy(buf, text + at, m);
        buf[m] = '\0';
        at += m + 1;
        n->text = buf;
        DT_TRY(one_line(n));
    }
    if (n->counts.rows == 0)
        return dt_error_at(n->err, DT_ERR_INPUT, n->name, 0, 0, "no line with times of nccl-tests");
    return DT_OK;
}

enum dt_status dt_import_nccl_text(const char *name, const char *text, size_t len,
                                   struct dt_profile_table *t, int device, int dtype, int source,
                                   struct dt_error *err, struct dt_import_nccl_counts *counts)
{
    const char *base = strrchr(name, '/');
    struct nccl n = {.name = name, .err = err, .t = t};
    char *buf = dt_malloc(LINE_MAX_BYTES);
    enum dt_status st;

    n.row.device = device;
    n.row.dtype = dtype;
    n.row.r.source = source;
    n.family = family_in(base ? base + 1 : name);
    n.host = dt_calloc(HOSTS, sizeof(*n.host));
    st = n.host && buf ? lines(&n, text, len, buf) : dt_error_nomem(err, "lines of nccl-tests");
    dt_free(n.host);
    dt_free(buf);
    if (st == DT_OK)
        *counts = n.counts;
    return st;
}
