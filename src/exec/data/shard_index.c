/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Where the samples of a list of shards lie: one pass over the headers, data skipped. */
#include "exec/data/shard_impl.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, OPEN_MAX_FDS = 256 };

struct stream { /* what libarchive reads from */
    int fd;
    uint64_t at, size;
    uint8_t buf[BUFFER];
};

static la_ssize_t on_read(struct archive *a, void *arg, const void **out)
{
    struct stream *s = arg;
    size_t want = s->size - s->at < BUFFER ? (size_t)(s->size - s->at) : BUFFER;
    ssize_t n;
    do
        n = pread(s->fd, s->buf, want, (off_t)s->at);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        archive_set_error(a, errno, "cannot read: %s", strerror(errno));
        return ARCHIVE_FATAL;
    }
    *out = s->buf;
    s->at += (uint64_t)n;
    return n;
}

/* Never beyond the end, so that a truncated member is noticed. */
static la_int64_t on_skip(struct archive *a, void *arg, la_int64_t n)
{
    struct stream *s = arg;
    (void)a;
    if ((uint64_t)n > s->size - s->at)
        n = (la_int64_t)(s->size - s->at);
    s->at += (uint64_t)n;
    return n;
}

static enum dt_status end_sample(struct dt_shard_index *ix, uint32_t shard, uint64_t begin,
                                 uint64_t end, struct dt_error *err)
{
    void *p = ix->samples;
    uint64_t span[2] = {begin, end};
    if (dt_grow(&p, &ix->cap, ix->n + 1, sizeof *ix->samples))
        return dt_error_nomem(err, "the index of shards");
    ix->samples = p;
    ix->samples[ix->n++] = (struct dt_shard_place){begin, end - begin, shard};
    ix->fingerprint = dt_hash_bytes(ix->fingerprint, span, sizeof span);
    return DT_OK;
}

static enum dt_status damage(struct dt_data_report *r, const char *path, uint64_t at,
                             const char *what, struct dt_error *err)
{
    struct dt_error why;
    if (at == 0) /* not even a first member */
        dt_error_at(&why, DT_ERR_INPUT, path, 0, 0, "not a tar archive: %s",
                    what ? what : "unknown format");
    else
        dt_error_at(&why, DT_ERR_INPUT, path, 0, 0, "damaged after byte %llu: %s",
                    (unsigned long long)at, what ? what : "unknown format");
    if (dt_data_bad(r, DT_BAD_SHARD, &why) == DT_OK)
        return DT_OK;
    if (err)
        *err = why;
    return why.status;
}

/* A sample of too long a name is counted and skipped; those around it are whole. */
static enum dt_status long_name(struct dt_data_report *r, const char *path, uint64_t at, size_t n,
                                struct dt_error *err)
{
    struct dt_error why;

    dt_error_at(&why, DT_ERR_INPUT, path, 0, 0,
                "the sample at byte %llu has a name of %zu bytes; the limit is %d",
                (unsigned long long)at, n, (int)DT_SHARD_NAME_MAX - 1);
    if (dt_data_bad(r, DT_BAD_SAMPLE, &why) == DT_OK)
        return DT_OK;
    if (err)
        *err = why;
    return why.status;
}

/* Is what libarchive would not read the header of a long name?  It ends at a MiB. */
static bool is_name_header(const struct stream *s, uint64_t at)
{
    char head[512];

    return pread(s->fd, head, sizeof(head), (off_t)at) == (ssize_t)sizeof(head) &&
           memcmp(head + 257, "ustar", 5) == 0 && (head[156] == 'L' || head[156] == 'x');
}

static enum dt_status walk(struct dt_shard_index *ix, uint32_t shard, struct archive *a,
                           struct stream *s, struct dt_data_report *r, struct dt_error *err)
{
    const char *path = ix->paths[shard];
    char key[DT_SHARD_NAME_MAX] = "";
    struct archive_entry *e;
    uint64_t begin = 0, at = 0, next = 0, skipped = 0; /* skipped: digest of a name */
    bool open = false;
    int rc;
    while ((rc = archive_read_next_header(a, &e)) == ARCHIVE_OK || rc == ARCHIVE_WARN) {
        const char *name = dt_shard_member_path(e);
        size_t n = name ? dt_shard_key_length(name) : 0;
        at = (uint64_t)archive_read_header_position(a);
        next = (uint64_t)archive_filter_bytes(a, 0) +
               ((uint64_t)archive_entry_size(e) + 511) / 512 * 512;
        if (n == 0)
            continue;
        if (n >= sizeof key) {
            uint64_t digest = n;

            digest = dt_hash_bytes(digest, name, n);
            if (open)
                DT_TRY(end_sample(ix, shard, begin, at, err));
            open = false;
            if (digest != skipped)
                DT_TRY(long_name(r, path, at, n, err));
            skipped = digest;
            continue;
        }
        skipped = 0;
        if (open && strlen(key) == n && memcmp(key, name, n) == 0)
            continue;
        if (open)
            DT_TRY(end_sample(ix, shard, begin, at, err));
        memcpy(key, name, n);
        key[n] = '\0';
        begin = at;
        open = true;
    }
    if (rc != ARCHIVE_EOF) { /* the last sample may be without its end */
        if (open && is_name_header(s, next))
            DT_TRY(end_sample(ix, shard, begin, next, err));
        return damage(r, path, at, archive_error_string(a), err);
    }
    at = (uint64_t)archive_read_header_position(a);
    if (open)
        DT_TRY(end_sample(ix, shard, begin, at, err));
    return at + 512 > s->size ? damage(r, path, at, "no end-of-archive mark", err) : DT_OK;
}

static enum dt_status refuse_compressed(const struct stream *s, const char *path,
                                        struct dt_error *err)
{
    static const struct {
        const char *magic, *name;
        size_t n;
    } known[] = {{"\x1f\x8b", "gzip", 2},
                 {"\x28\xb5\x2f\xfd", "zstd", 4},
                 {"BZh", "bzip2", 3},
                 {"\xfd"
                  "7zXZ",
                  "xz", 5}};
    uint8_t head[8] = {0};
    if (pread(s->fd, head, sizeof head, 0) < 0)
        return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot read: %s", strerror(errno));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (memcmp(head, known[i].magic, known[i].n) == 0)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                               "this shard is %s-compressed; samples are read in random order, so "
                               "decompress it first",
                               known[i].name);
    return DT_OK;
}

static enum dt_status index_shard(struct dt_shard_index *ix, uint32_t shard, struct stream *s,
                                  struct dt_data_report *r, struct dt_error *err)
{
    const char *path = ix->paths[shard], *base = strrchr(path, '/');
    struct stat sb;
    struct archive *a;
    enum dt_status st;
    DT_TRY(dt_file_open(path, false, err, &s->fd));
    if (fstat(s->fd, &sb) != 0) {
        st = dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot read: %s", strerror(errno));
        goto close_file;
    }
    s->at = 0;
    s->size = (uint64_t)sb.st_size;
    base = base ? base + 1 : path;
    ix->fingerprint = dt_hash_bytes(ix->fingerprint, base, strlen(base));
    ix->fingerprint = dt_hash_bytes(ix->fingerprint, &s->size, sizeof s->size);
    if ((st = refuse_compressed(s, path, err)) != DT_OK)
        goto close_file;
    a = archive_read_new();
    if (!a) {
        st = dt_error_nomem(err, "a tar reader");
        goto close_file;
    }
    archive_read_support_format_tar(a);
    if (archive_read_open2(a, s, NULL, on_read, on_skip, NULL) != ARCHIVE_OK)
        st = damage(r, path, 0, archive_error_string(a), err);
    else
        st = walk(ix, shard, a, s, r, err);
    archive_read_free(a);
    if (st == DT_OK && ix->n_shards <= OPEN_MAX_FDS) {
        ix->fds[shard] = s->fd;
        return DT_OK;
    }
close_file:
    close(s->fd);
    return st;
}

enum dt_status dt_shard_index_open(const char *const *paths, int n, struct dt_data_report *report,
                                   struct dt_error *err, struct dt_shard_index **out)
{
    struct dt_shard_index *ix = dt_calloc(1, sizeof *ix);
    struct stream *s = dt_malloc(sizeof *s);
    enum dt_status st = DT_OK;
    if (ix) {
        ix->paths = dt_calloc((size_t)n + 1, sizeof *ix->paths);
        ix->fds = dt_calloc((size_t)n + 1, sizeof *ix->fds);
    }
    if (!ix || !s || !ix->paths || !ix->fds) {
        st = dt_error_nomem(err, "the index of shards");
        goto done;
    }
    ix->n_shards = n;
    ix->fingerprint = DT_HASH_START;
    for (int i = 0; i < n; i++)
        ix->fds[i] = -1;
    for (int i = 0; i < n && st == DT_OK; i++) {
        ix->paths[i] = dt_strdup(paths[i]);
        st = ix->paths[i] ? index_shard(ix, (uint32_t)i, s, report, err)
                          : dt_error_nomem(err, "the index of shards");
    }
done:
    dt_free(s);
    if (st != DT_OK)
        dt_shard_index_close(ix);
    else
        *out = ix;
    return st;
}

void dt_shard_index_close(struct dt_shard_index *ix)
{
    if (!ix)
        return;
    for (int i = 0; i < ix->n_shards; i++) {
        dt_free(ix->paths[i]);
        if (ix->fds[i] >= 0)
            close(ix->fds[i]);
    }
    dt_free(ix->paths);
    dt_free(ix->fds);
    dt_free(ix->samples);
    dt_free(ix);
}
