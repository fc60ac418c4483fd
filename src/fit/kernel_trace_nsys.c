/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Nsight Systems exports.  Which columns there are differs between versions, so they are read from
 * the file; names are texts or ids of StringIds.  The file is opened read-only and an authorizer
 * lets nothing but reading run. */
#include "fit/kernel_trace.h"

#include "base/file.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_LIMIT_BYTES = 512 << 20 };

struct string {
    int64_t id;
    const char *text;
};
struct launch {
    int64_t process, correlation, thread, at_ns; /* correlations count per process */
};
struct reading {
    sqlite3 *db;
    const char *path;
    struct dt_error *err;
    struct dt_import_trace *t;
    struct string *strings;
    struct launch *launches;
    size_t n_strings, cap_strings, n_launches, cap_launches;
    bool by_process;        /* launches and kernels both say of which process they are */
    const char *fixed_name; /* of what the table being read holds, if it has no names */
    bool unnamed;           /* kernels ran on a GPU that has no name */
};

/* globalTid and globalPid hold the process above 24 bits of thread (Nsight Systems user guide,
 * "Common SQLite examples"). */
static int64_t process_of(sqlite3_stmt *st, int col)
{
    return (int64_t)((uint64_t)sqlite3_column_int64(st, col) >> 24);
}

static int allow(void *unused, int action, const char *a, const char *b, const char *db,
                 const char *trigger)
{
    (void)unused;
    (void)db;
    if (trigger)
        return SQLITE_DENY;
    if (action == SQLITE_PRAGMA)
        return a && strcmp(a, "table_info") == 0 ? SQLITE_OK : SQLITE_DENY;
    if (action == SQLITE_FUNCTION)
        return b && strcmp(b, "coalesce") == 0 ? SQLITE_OK : SQLITE_DENY;
    return action == SQLITE_SELECT || action == SQLITE_READ ? SQLITE_OK : SQLITE_DENY;
}

static enum dt_status db_error(struct reading *rd)
{
    return dt_error_at(rd->err, DT_ERR_INPUT, rd->path, 0, 0,
                       "not a readable Nsight Systems export: %s", sqlite3_errmsg(rd->db));
}

/* Which of the wanted columns a table has; false if there is no such table. */
static enum dt_status columns(struct reading *rd, const char *table, const char *const *want,
                              bool *has, bool *there)
{
    sqlite3_stmt *st;
    char sql[128];
    int rc;

    *there = false;
    for (int i = 0; want[i]; i++)
        has[i] = false;
    snprintf(sql, sizeof(sql), "PRAGMA table_info(%s)", table);
    if (sqlite3_prepare_v2(rd->db, sql, -1, &st, NULL) != SQLITE_OK)
        return db_error(rd);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(st, 1);

        *there = true;
        for (int i = 0; want[i]; i++)
            has[i] |= name && strcmp(name, want[i]) == 0;
    }
    sqlite3_finalize(st);
    return rc == SQLITE_DONE ? DT_OK : db_error(rd);
}

typedef enum dt_status row_fn(struct reading *rd, sqlite3_stmt *st);

static enum dt_status each_row(struct reading *rd, const char *sql, row_fn *row)
{
    enum dt_status status = DT_OK;
    sqlite3_stmt *st;
    int rc = SQLITE_DONE;

    if (sqlite3_prepare_v2(rd->db, sql, -1, &st, NULL) != SQLITE_OK)
        return db_error(rd);
    while (status == DT_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        status = row(rd, st);
    if (status == DT_OK && rc != SQLITE_DONE)
        status = db_error(rd);
    sqlite3_finalize(st);
    return status;
}

/* ---- StringIds ---- */

static int by_id(const void *x, const void *y)
{
    const struct string *a = x, *b = y;

    return (a->id > b->id) - (a->id < b->id);
}

static enum dt_status string_row(struct reading *rd, sqlite3_stmt *st)
{
    const char *text = (const char *)sqlite3_column_text(st, 1);
    struct string s = {sqlite3_column_int64(st, 0), NULL};

    if (!text)
        return DT_OK;
    s.text = dt_arena_strdup(&rd->t->arena, text);
    if (!s.text || dt_grow((void **)&rd->strings, &rd->cap_strings, rd->n_strings + 1, sizeof(s)))
        return dt_error_nomem(rd->err, "names of a trace");
    rd->strings[rd->n_strings++] = s;
    return DT_OK;
}

static enum dt_status read_strings(struct reading *rd)
{
    static const char *const want[] = {"id", "value", NULL};
    bool has[2], there;

    DT_TRY(columns(rd, "StringIds", want, has, &there));
    if (!has[0] || !has[1])
        return DT_OK;
    DT_TRY(each_row(rd, "SELECT id, value FROM StringIds", string_row));
    if (rd->n_strings)
        qsort(rd->strings, rd->n_strings, sizeof(*rd->strings), by_id);
    return DT_OK;
}

/* A name is a text, or the id of one; NULL if it is neither. */
static enum dt_status name_at(struct reading *rd, sqlite3_stmt *st, int col, const char **out)
{
    struct string key = {0}, *s;

    *out = NULL;
    if (sqlite3_column_type(st, col) == SQLITE_TEXT) {
        *out = dt_arena_strdup(&rd->t->arena, (const char *)sqlite3_column_text(st, col));
        return *out ? DT_OK : dt_error_nomem(rd->err, "names of a trace");
    }
    if (sqlite3_column_type(st, col) != SQLITE_INTEGER || rd->n_strings == 0)
        return DT_OK;
    key.id = sqlite3_column_int64(st, col);
    s = bsearch(&key, rd->strings, rd->n_strings, sizeof(*s), by_id);
    if (s)
        *out = s->text;
    return DT_OK;
}

/* ---- launches: CUPTI_ACTIVITY_KIND_RUNTIME ---- */

static int by_correlation(const void *x, const void *y)
{
    const struct launch *a = x, *b = y;

    if (a->process != b->process)
        return a->process < b->process ? -1 : 1;
    if (a->correlation != b->correlation)
        return a->correlation < b->correlation ? -1 : 1;
    return (a->at_ns > b->at_ns) - (a->at_ns < b->at_ns);
}

/* The first of this correlation. */
static const struct launch *find_launch(const struct reading *rd, int64_t process, int64_t id)
{
    size_t lo = 0, hi = rd->n_launches;

    while (lo < hi) {
        const struct launch *l = &rd->launches[lo + (hi - lo) / 2];

        if (l->process < process || (l->process == process && l->correlation < id))
            lo = (size_t)(l - rd->launches) + 1;
        else
            hi = (size_t)(l - rd->launches);
    }
    return lo < rd->n_launches && rd->launches[lo].process == process &&
                   rd->launches[lo].correlation == id
               ? &rd->launches[lo]
               : NULL;
}

static enum dt_status launch_row(struct reading *rd, sqlite3_stmt *st)
{
    struct launch l = {.correlation = sqlite3_column_int64(st, 0),
                       .at_ns = sqlite3_column_int64(st, 1),
                       .thread = sqlite3_column_int64(st, 2)};

    l.process = rd->by_process ? process_of(st, 2) : 0;
    if (dt_grow((void **)&rd->launches, &rd->cap_launches, rd->n_launches + 1, sizeof(l)))
        return dt_error_nomem(rd->err, "launches of a trace");
    rd->launches[rd->n_launches++] = l;
    return DT_OK;
}

static enum dt_status read_launches(struct reading *rd)
{
    static const char *const want[] = {"correlationId", "start", "globalTid", NULL};
    static const char *const pid[] = {"globalPid", NULL};
    bool has[3], there, kernels_too;

    DT_TRY(columns(rd, "CUPTI_ACTIVITY_KIND_RUNTIME", want, has, &there));
    if (!has[0] || !has[1])
        return DT_OK;
    DT_TRY(columns(rd, "CUPTI_ACTIVITY_KIND_KERNEL", pid, &kernels_too, &there));
    rd->by_process = has[2] && kernels_too;
    DT_TRY(each_row(rd,
                    has[2]
                        ? "SELECT correlationId, start, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME"
                        : "SELECT correlationId, start, 0 FROM CUPTI_ACTIVITY_KIND_RUNTIME",
                    launch_row));
    if (rd->n_launches)
        qsort(rd->launches, rd->n_launches, sizeof(*rd->launches), by_correlation);
    return DT_OK;
}

/* ---- ranges: NVTX_EVENTS ---- */

static enum dt_status range_row(struct reading *rd, sqlite3_stmt *st)
{
    struct dt_import_trace_range r = {0};

    if (sqlite3_column_type(st, 1) != SQLITE_INTEGER) /* a mark, or never closed */
        return DT_OK;
    r.start_ns = sqlite3_column_int64(st, 0);
    r.end_ns = sqlite3_column_int64(st, 1);
    r.thread = rd->n_launches ? sqlite3_column_int64(st, 2) : 0; /* else: by time alone */
    DT_TRY(name_at(rd, st, 3, &r.text));
    if (!r.text)
        DT_TRY(name_at(rd, st, 4, &r.text));
    return r.text && r.end_ns >= r.start_ns ? dt_import_trace_add_range(rd->t, &r, rd->err) : DT_OK;
}

static enum dt_status read_ranges(struct reading *rd)
{
    static const char *const want[] = {"start", "end", "globalTid", "text", "textId", NULL};
    bool has[5], there;
    char sql[128];

    DT_TRY(columns(rd, "NVTX_EVENTS", want, has, &there));
    if (!has[0] || !has[1] || (!has[3] && !has[4]))
        return DT_OK;
    snprintf(sql, sizeof(sql), "SELECT start, \"end\", %s, %s, %s FROM NVTX_EVENTS",
             has[2] ? "globalTid" : "0", has[3] ? "text" : "NULL", has[4] ? "textId" : "NULL");
    return each_row(rd, sql, range_row);
}

/* ---- kernels, copies ---- */

/* CUpti_ActivityMemcpyKind, from 1 (recalled) */
static const char *copy_name(int64_t kind)
{
    static const char *const names[] = {
        "[memcpy HtoD]", "[memcpy DtoH]", "[memcpy HtoA]", "[memcpy AtoH]", "[memcpy AtoA]",
        "[memcpy AtoD]", "[memcpy DtoA]", "[memcpy DtoD]", "[memcpy HtoH]", "[memcpy PtoP]"};

    return kind >= 1 && kind <= (int64_t)(sizeof(names) / sizeof(names[0])) ? names[kind - 1]
                                                                            : "[memcpy]";
}

/* start, end, correlationId, globalPid, then three places for a name, or the kind of copy */
static enum dt_status kernel_row(struct reading *rd, sqlite3_stmt *st)
{
    struct dt_import_trace_kernel k = {.at_ns = sqlite3_column_int64(st, 0)};
    const struct launch *l = NULL;

    if (__builtin_sub_overflow(sqlite3_column_int64(st, 1), k.at_ns, &k.duration_ns) ||
        k.duration_ns < 0 || k.duration_ns > DT_KTRACE_DURATION_MAX_NS)
        return dt_error_at(rd->err, DT_ERR_INPUT, rd->path, 0, 0,
                           "the kernel that starts at %lld ns ends before it starts or takes over "
                           "100 s",
                           (long long)k.at_ns);
    if (rd->fixed_name)
        k.name = *rd->fixed_name ? rd->fixed_name : copy_name(sqlite3_column_int64(st, 4));
    for (int col = 4; col <= 6 && !k.name; col++)
        DT_TRY(name_at(rd, st, col, &k.name));
    if (!k.name)
        k.name = "(no name)";
    if (sqlite3_column_type(st, 2) == SQLITE_INTEGER)
        l = find_launch(rd, rd->by_process ? process_of(st, 3) : 0, sqlite3_column_int64(st, 2));
    if (l) {
        k.thread = l->thread;
        k.at_ns = l->at_ns;
    } else if (rd->n_launches) {
        k.thread = -1; /* of no known thread: in no range */
    }
    return dt_import_trace_add_kernel(rd->t, &k, rd->err);
}

enum { START, END, CORRELATION, PROCESS, DEMANGLED, SHORT, NAME, KIND, KERNEL_COLUMNS };
static const char *const kernel_columns[] = {"start",     "end",           "correlationId",
                                             "globalPid", "demangledName", "shortName",
                                             "name",      "copyKind",      NULL};

static enum dt_status select_kernels(struct reading *rd, const char *table, const bool *has)
{
    char sql[256];

    snprintf(sql, sizeof(sql), "SELECT start, \"end\", %s, %s, %s, %s, %s FROM %s",
             has[CORRELATION] ? "correlationId" : "NULL", has[PROCESS] ? "globalPid" : "0",
             has[KIND]        ? "copyKind"
             : has[DEMANGLED] ? "demangledName"
                              : "NULL",
             has[SHORT] ? "shortName" : "NULL", has[NAME] ? "name" : "NULL", table);
    return each_row(rd, sql, kernel_row);
}

static enum dt_status read_kernels(struct reading *rd)
{
    static const char table[] = "CUPTI_ACTIVITY_KIND_KERNEL";
    bool has[KERNEL_COLUMNS], there;

    DT_TRY(columns(rd, table, kernel_columns, has, &there));
    if (!there)
        return dt_error_at(rd->err, DT_ERR_INPUT, rd->path, 0, 0,
                           "no table %s: not an Nsight Systems export, or no kernel was traced "
                           "(nsys profile -t cuda,nvtx; nsys export --type sqlite)",
                           table);
    if (!has[START] || !has[END] || (!has[DEMANGLED] && !has[SHORT] && !has[NAME]))
        return dt_error_at(rd->err, DT_ERR_INPUT, rd->path, 0, 0, "%s has no column %s", table,
                           !has[START] ? "start"
                           : !has[END] ? "end"
                                       : "demangledName, shortName or name");
    has[KIND] = false;
    DT_TRY(select_kernels(rd, table, has));
    if (rd->t->n_kernels == 0)
        return dt_error_at(rd->err, DT_ERR_INPUT, rd->path, 0, 0, "%s is empty", table);
    return DT_OK;
}

/* Time of the GPU that no kernel has; the tables are there if anything was copied. */
static enum dt_status read_copies(struct reading *rd, const char *table, const char *name)
{
    bool has[KERNEL_COLUMNS], there;

    DT_TRY(columns(rd, table, kernel_columns, has, &there));
    if (!has[START] || !has[END])
        return DT_OK;
    rd->fixed_name = has[KIND] ? "" : name;
    return select_kernels(rd, table, has);
}

static enum dt_status gpu_row(struct reading *rd, sqlite3_stmt *st)
{
    const char *name = (const char *)sqlite3_column_text(st, 0);

    rd->unnamed |= !name;
    dt_import_trace_add_device(rd->t, name);
    return DT_OK;
}

/* Of the GPUs that kernels ran on.  deviceId is CUDA's number, in each process of those that it sees, and
 * TARGET_INFO_CUDA_DEVICE says which GPU that is; NULL for one that is not listed. */
static enum dt_status read_used_gpus(struct reading *rd)
{
    static const char *const kernel[] = {"deviceId", "globalPid", NULL};
    static const char *const cuda[] = {"cudaId", "gpuId", "pid", NULL};
    bool k[2], c[3], there;
    char sql[512];

    DT_TRY(columns(rd, "CUPTI_ACTIVITY_KIND_KERNEL", kernel, k, &there));
    DT_TRY(columns(rd, "TARGET_INFO_CUDA_DEVICE", cuda, c, &there));
    rd->unnamed = !k[0];
    if (!k[0])
        return DT_OK;
    snprintf(sql, sizeof(sql),
             "SELECT DISTINCT g.name FROM (SELECT DISTINCT deviceId%s FROM "
             "CUPTI_ACTIVITY_KIND_KERNEL) k %s%s LEFT JOIN TARGET_INFO_GPU g ON g.id = %s",
             k[1] ? ", globalPid" : "",
             c[0] && c[1] ? "LEFT JOIN TARGET_INFO_CUDA_DEVICE c ON c.cudaId = k.deviceId" : "",
             c[0] && c[1] && c[2] && k[1]
                 ? " AND (c.pid IS NULL OR c.pid = 0 OR c.pid = k.globalPid >> 24 & 16777215)"
                 : "",
             c[0] && c[1] ? "c.gpuId" : "k.deviceId");
    return each_row(rd, sql, gpu_row);
}

/* All that are listed where a kernel's may be any of them. */
static enum dt_status read_gpu(struct reading *rd)
{
    static const char *const want[] = {"name", "id", NULL};
    bool has[2], there;

    DT_TRY(columns(rd, "TARGET_INFO_GPU", want, has, &there));
    rd->unnamed = true;
    if (has[0] && has[1])
        DT_TRY(read_used_gpus(rd));
    return has[0] && rd->unnamed ? each_row(rd, "SELECT name FROM TARGET_INFO_GPU", gpu_row)
                                 : DT_OK;
}

static enum dt_status read_all(struct reading *rd)
{
    int was;

    sqlite3_db_config(rd->db, SQLITE_DBCONFIG_DEFENSIVE, 1, &was);
    sqlite3_db_config(rd->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, &was);
    sqlite3_db_config(rd->db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, &was);
    sqlite3_limit(rd->db, SQLITE_LIMIT_LENGTH, 1 << 20);
    sqlite3_set_authorizer(rd->db, allow, NULL);
    DT_TRY(read_strings(rd));
    DT_TRY(read_launches(rd));
    DT_TRY(read_ranges(rd));
    rd->t->by_time = rd->n_launches == 0 && rd->t->n_ranges > 0;
    DT_TRY(read_kernels(rd));
    DT_TRY(read_copies(rd, "CUPTI_ACTIVITY_KIND_MEMCPY", "[memcpy]"));
    DT_TRY(read_copies(rd, "CUPTI_ACTIVITY_KIND_MEMSET", "[memset]"));
    return read_gpu(rd);
}

/* SQLite reads a file that was cut inside its last page as if it went on with zeros. */
static enum dt_status check_size(const char *path, struct dt_error *err)
{
    unsigned char head[18];
    struct stat sb;
    ssize_t got;
    size_t page;
    int fd;

    DT_TRY(dt_file_open(path, false, err, &fd));
    got = pread(fd, head, sizeof(head), 0);
    if (fstat(fd, &sb) != 0)
        sb.st_size = 0;
    close(fd);
    page = (size_t)head[16] << 8 | head[17]; /* of the header; 1 stands for 65536 */
    page = page == 1 ? 65536 : page;
    if (got < (ssize_t)sizeof(head) || page == 0 || (size_t)sb.st_size % page != 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "not a whole SQLite database: truncated or damaged");
    if (sb.st_size > FILE_LIMIT_BYTES)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "larger than %d MiB: trace fewer iterations", FILE_LIMIT_BYTES >> 20);
    return DT_OK;
}

enum dt_status dt_import_trace_read_nsys(const char *path, struct dt_error *err,
                                         struct dt_import_trace *out)
{
    struct dt_import_trace t = {0};
    struct reading rd = {.path = path, .err = err, .t = &t};
    enum dt_status st;

    DT_TRY(check_size(path, err));
    if (sqlite3_open_v2(path, &rd.db, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK)
        st = db_error(&rd);
    else
        st = read_all(&rd);
    sqlite3_close(rd.db);
    dt_free(rd.strings);
    dt_free(rd.launches);
    if (st == DT_OK)
        *out = t;
    else
        dt_import_trace_free(&t);
    return st;
}
