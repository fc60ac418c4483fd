/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/shard_print.h"

#include "base/mem.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* A file that was changed this recently may be changed again without its times telling. */
#define YOUNG_S 2.0

void dt_shard_prints_free(struct dt_shard_prints *s)
{
    dt_free(s->p);
    memset(s, 0, sizeof(*s));
}

/* ---- taking them ---- */

static int64_t ns_of(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

static enum dt_status crc_of_range(int fd, const char *path, int64_t at, int64_t n, uint8_t *buf,
                                   struct dt_error *err, uint32_t *crc)
{
    while (n > 0) {
        size_t want = n < DT_PRINT_BLOCK ? (size_t)n : (size_t)DT_PRINT_BLOCK;
        ssize_t got = pread(fd, buf, want, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot read: %s",
                               got < 0 ? strerror(errno) : "it has become shorter");
        *crc = (uint32_t)crc32(*crc, buf, (uInt)got);
        at += got;
        n -= got;
    }
    return DT_OK;
}

static enum dt_status crc_of_file(int fd, const char *path, struct dt_shard_print *p,
                                  struct dt_error *err, int64_t *read_bytes)
{
    uint8_t *buf = dt_malloc(DT_PRINT_BLOCK);
    enum dt_status st = DT_OK;

    if (!buf)
        return dt_error_nomem(err, "a shard's fingerprint");
    p->crc = 0;
    if (!p->sampled || p->bytes <= (int64_t)DT_PRINT_BLOCKS * DT_PRINT_BLOCK) {
        st = crc_of_range(fd, path, 0, p->bytes, buf, err, &p->crc);
        *read_bytes += p->bytes;
    } else {
        for (int64_t k = 0; k < DT_PRINT_BLOCKS && st == DT_OK; k++) {
            int64_t room = p->bytes - DT_PRINT_BLOCK, each = room / (DT_PRINT_BLOCKS - 1);

            st = crc_of_range(fd, path, k == DT_PRINT_BLOCKS - 1 ? room : k * each, DT_PRINT_BLOCK,
                              buf, err, &p->crc);
        }
        *read_bytes += (int64_t)DT_PRINT_BLOCKS * DT_PRINT_BLOCK;
    }
    dt_free(buf);
    return st;
}

static bool untouched(const struct dt_shard_print *was, const struct dt_shard_print *is)
{
    return was->changed_ns > 0 && was->changed_ns == is->changed_ns &&
           was->modified_ns == is->modified_ns && was->inode == is->inode &&
           was->bytes == is->bytes;
}

static void describe(const char *path, const struct stat *sb, struct dt_shard_print *p)
{
    const char *slash = strrchr(path, '/');

    snprintf(p->name, sizeof(p->name), "%s", slash ? slash + 1 : path);
    p->bytes = (int64_t)sb->st_size;
    p->inode = (int64_t)(sb->st_ino & INT64_MAX);
    p->modified_ns = ns_of(&sb->st_mtim);
    p->changed_ns = ns_of(&sb->st_ctim);
    if (dt_clock_wall_s() - 1e-9 * (double)p->changed_ns < YOUNG_S)
        p->changed_ns = 0;
}

enum dt_status dt_shard_print_take(int fd, const char *path, const struct dt_shard_print *known,
                                   bool sampled, struct dt_error *err, struct dt_shard_print *out,
                                   int64_t *read_bytes)
{
    struct dt_shard_print p = {.bytes = 0};
    struct stat sb;

    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode))
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "cannot open: not a regular file");
    describe(path, &sb, &p);
    p.sampled = known && known->bytes == p.bytes ? known->sampled : sampled;
    if (known && untouched(known, &p))
        p.crc = known->crc;
    else
        DT_TRY(crc_of_file(fd, path, &p, err, read_bytes));
    *out = p;
    return DT_OK;
}

static enum dt_status take(const char *path, const struct dt_shard_print *known, bool sampled,
                           struct dt_error *err, struct dt_shard_print *p, int64_t *read_bytes)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    enum dt_status st;

    if (fd < 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "cannot open: %s", strerror(errno));
    st = dt_shard_print_take(fd, path, known, sampled, err, p, read_bytes);
    close(fd);
    return st;
}

static int64_t total_bytes(const char *const *paths, int n)
{
    int64_t sum = 0;
    struct stat sb;

    for (int i = 0; i < n; i++)
        if (stat(paths[i], &sb) == 0)
            sum += (int64_t)sb.st_size;
    return sum;
}

enum dt_status dt_shard_prints_take(const char *const *paths, int n,
                                    const struct dt_shard_prints *known, int64_t whole_max,
                                    struct dt_error *err, struct dt_shard_prints *out,
                                    int64_t *read_bytes)
{
    bool sampled = total_bytes(paths, n) > (whole_max > 0 ? whole_max : DT_PRINT_WHOLE_MAX);
    struct dt_shard_prints got = {.p = dt_calloc((size_t)n + 1, sizeof(*got.p)), .n = n};
    enum dt_status st = got.p ? DT_OK : dt_error_nomem(err, "fingerprints of shards");
    int64_t bytes = 0;

    for (int i = 0; i < n && st == DT_OK; i++)
        st = take(paths[i], known && i < known->n ? &known->p[i] : NULL, sampled, err, &got.p[i],
                  &bytes);
    if (st != DT_OK) {
        dt_shard_prints_free(&got);
        return st;
    }
    *out = got;
    if (read_bytes)
        *read_bytes = bytes;
    return DT_OK;
}

/* ---- comparing them ---- */

#define WHAT_TO_DO                                                                                 \
    "; restore the original data, or use --changed-data to resume with the present data"

enum dt_status dt_shard_prints_compare(const struct dt_shard_prints *was,
                                       const struct dt_shard_prints *is, const char *const *paths,
                                       struct dt_error *err)
{
    int both = was->n < is->n ? was->n : is->n;

    for (int i = 0; i < both; i++) {
        const struct dt_shard_print *a = &was->p[i], *b = &is->p[i];

        if (strcmp(a->name, b->name) != 0)
            return dt_error_at(err, DT_ERR_INPUT, paths[i], 0, 0,
                               "shard %d of this training was %s" WHAT_TO_DO, i + 1, a->name);
        if (a->bytes != b->bytes)
            return dt_error_at(err, DT_ERR_INPUT, paths[i], 0, 0,
                               "this shard has changed: it has %" PRId64 " bytes and had %" PRId64
                               " when the checkpoint was written" WHAT_TO_DO,
                               b->bytes, a->bytes);
        if (a->crc != b->crc)
            return dt_error_at(err, DT_ERR_INPUT, paths[i], 0, 0,
                               "this shard has changed: the CRC-32 of its %s is %08" PRIx32
                               " and was %08" PRIx32 " when the checkpoint was written" WHAT_TO_DO,
                               a->sampled ? "sampled blocks" : "contents", b->crc, a->crc);
    }
    if (was->n != is->n)
        return dt_error_set(err, DT_ERR_INPUT,
                            "run.data names %d shard%s, and the checkpoint was trained on %d; the "
                            "first one %s is %s" WHAT_TO_DO,
                            is->n, is->n == 1 ? "" : "s", was->n,
                            is->n > was->n ? "too many" : "missing",
                            is->n > was->n ? paths[both] : was->p[both].name);
    return DT_OK;
}

/* ---- text ---- */

void dt_shard_prints_write(const struct dt_shard_prints *s, struct dt_json *j)
{
    dt_json_begin_array(j);
    for (int i = 0; i < s->n; i++) {
        const struct dt_shard_print *p = &s->p[i];
        char crc[16];

        snprintf(crc, sizeof(crc), "%08" PRIx32, p->crc);
        dt_json_begin_object(j);
        dt_json_kv_string(j, "name", p->name);
        dt_json_kv_int(j, "bytes", p->bytes);
        dt_json_kv_string(j, "crc32", crc);
        dt_json_kv_bool(j, "sampled", p->sampled);
        dt_json_kv_int(j, "inode", p->inode);
        dt_json_kv_int(j, "modified_ns", p->modified_ns);
        dt_json_kv_int(j, "changed_ns", p->changed_ns);
        dt_json_end_object(j);
    }
    dt_json_end_array(j);
}

static enum dt_status read_one(struct dt_node n, struct dt_error *err, struct dt_shard_print *p)
{
    static const char *const keys[] = {"name",  "bytes",       "crc32",      "sampled",
                                       "inode", "modified_ns", "changed_ns", NULL};
    const char *crc;

    DT_TRY(dt_map_check(n, "shard", keys, err));
    for (int i = 0; keys[i]; i++)
        DT_TRY(dt_map_require(n, "shard", keys[i], err));
    DT_TRY(dt_get_string(n, "name", p->name, sizeof(p->name), err));
    DT_TRY(dt_get_int(n, "bytes", 0, INT64_MAX, &p->bytes, err));
    DT_TRY(dt_get_bool(n, "sampled", &p->sampled, err));
    DT_TRY(dt_get_int(n, "inode", 0, INT64_MAX, &p->inode, err));
    DT_TRY(dt_get_int(n, "modified_ns", INT64_MIN, INT64_MAX, &p->modified_ns, err));
    DT_TRY(dt_get_int(n, "changed_ns", INT64_MIN, INT64_MAX, &p->changed_ns, err));
    crc = dt_node_text(dt_map_get(n, "crc32"));
    if (!crc || strlen(crc) != 8 || strspn(crc, "0123456789abcdef") != 8)
        return dt_node_error(dt_map_get(n, "crc32"), err, "crc32 must be 8 hexadecimal digits");
    p->crc = (uint32_t)strtoul(crc, NULL, 16);
    return DT_OK;
}

enum dt_status dt_shard_prints_read(struct dt_node list, struct dt_error *err,
                                    struct dt_shard_prints *out)
{
    struct dt_shard_prints got = {.p = NULL};
    size_t n = dt_seq_size(list);
    enum dt_status st = DT_OK;

    if (!dt_node_is_seq(list) || n > INT_MAX)
        return dt_node_error(list, err, "shards must be a list");
    got.p = dt_calloc(n + 1, sizeof(*got.p));
    if (!got.p)
        return dt_error_nomem(err, "fingerprints of shards");
    got.n = (int)n;
    for (size_t i = 0; i < n && st == DT_OK; i++)
        st = read_one(dt_seq_at(list, i), err, &got.p[i]);
    if (st == DT_OK)
        *out = got;
    else
        dt_shard_prints_free(&got);
    return st;
}
