/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Where the samples of a list of shards lie: one pass over the headers, data skipped. */
#include "exec/data/shard_impl.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "exec/data/shard_kept.h"

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
    /* libarchive's position of what is no header need not be that of a block */
    at = next > 0 && next <= s->size ? next : (uint64_t)archive_read_header_position(a);
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

/* One pass over the headers of an open shard. */
static enum dt_status pass(struct dt_shard_index *ix, uint32_t shard, struct stream *s,
                           struct dt_data_report *r, struct dt_error *err)
{
    struct archive *a;
    enum dt_status st;

    DT_TRY(refuse_compressed(s, ix->paths[shard], err));
    a = archive_read_new();
    if (!a)
        return dt_error_nomem(err, "a tar reader");
    archive_read_support_format_tar(a);
    if (archive_read_open2(a, s, NULL, on_read, on_skip, NULL) != ARCHIVE_OK)
        st = damage(r, ix->paths[shard], 0, archive_error_string(a), err);
    else
        st = walk(ix, shard, a, s, r, err);
    archive_read_free(a);
    return st;
}

/* What a kept index says, if there is one that is right. */
static enum dt_status recall(struct dt_shard_index *ix, uint32_t shard, int fd,
                             struct dt_shard_keep *keep, struct dt_error *err, bool *found)
{
    struct dt_shard_kept k;
    enum dt_status st = dt_shard_kept_find(keep, ix->paths[shard], fd, err, &k);

    *found = st == DT_OK;
    if (st == DT_ERR_INPUT)
        return DT_OK;
    DT_TRY(st);
    for (size_t i = 0; i < k.n && st == DT_OK; i++)
        st = end_sample(ix, shard, k.samples[i].offset, k.samples[i].offset + k.samples[i].bytes,
                        err);
    dt_free(k.samples);
    return st;
}

/* How the places of a shard became known. */
enum known_by { BY_INDEX, BY_PASS, INSTEAD_OF_INDEX /* which was not right */, WITH_DAMAGE };
struct known {
    enum known_by by;
    struct stat seen; /* the shard then */
};

/* An open shard. */
static enum dt_status index_open(struct dt_shard_index *ix, uint32_t shard, struct stream *s,
                                 struct dt_shard_keep *keep, struct dt_data_report *r,
                                 struct dt_error *err, struct known *known)
{
    const char *path = ix->paths[shard], *base = strrchr(path, '/');
    int64_t bad = dt_data_bad_total(r);
    int replaced = keep ? keep->replaced : 0;
    bool found = false;
    struct stat sb;

    if (fstat(s->fd, &sb) != 0)
        return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot read: %s", strerror(errno));
    s->at = 0;
    s->size = (uint64_t)sb.st_size;
    base = base ? base + 1 : path;
    ix->fingerprint = dt_hash_bytes(ix->fingerprint, base, strlen(base));
    ix->fingerprint = dt_hash_bytes(ix->fingerprint, &s->size, sizeof s->size);
    if (keep)
        DT_TRY(recall(ix, shard, s->fd, keep, err, &found));
    if (!found)
        DT_TRY(pass(ix, shard, s, r, err));
    known->seen = sb;
    known->by = found                                ? BY_INDEX
                : dt_data_bad_total(r) != bad        ? WITH_DAMAGE
                : keep && keep->replaced != replaced ? INSTEAD_OF_INDEX
                                                     : BY_PASS;
    return DT_OK;
}

static enum dt_status index_shard(struct dt_shard_index *ix, uint32_t shard, struct stream *s,
                                  struct dt_shard_keep *keep, struct dt_data_report *r,
                                  struct dt_error *err, struct known *known)
{
    enum dt_status st;

    DT_TRY(dt_file_open(ix->paths[shard], false, err, &s->fd));
    st = index_open(ix, shard, s, keep, r, err, known);
    if (st == DT_OK && ix->n_shards <= OPEN_MAX_FDS)
        ix->fds[shard] = s->fd;
    else
        close(s->fd);
    return st;
}

/* Is the file the one that was passed over, as it was then? */
static bool is_untouched(int fd, const struct stat *seen)
{
    struct stat sb;

    return fstat(fd, &sb) == 0 && sb.st_dev == seen->st_dev && sb.st_ino == seen->st_ino &&
           sb.st_size == seen->st_size && sb.st_mtim.tv_sec == seen->st_mtim.tv_sec &&
           sb.st_mtim.tv_nsec == seen->st_mtim.tv_nsec;
}

/* `at`: where the shard's samples begin.  A shard that has changed since it was passed over gets none. */
static enum dt_status keep_index(const struct dt_shard_index *ix, uint32_t shard,
                                 const struct stat *seen, size_t at, size_t n,
                                 struct dt_shard_keep *keep, struct dt_error *err)
{
    struct dt_shard_kept k = {.samples = ix->samples + at, .n = n};
    int64_t read_bytes = 0;
    enum dt_status st;
    bool untouched;
    int fd;

    DT_TRY(dt_file_open(ix->paths[shard], false, err, &fd));
    st = dt_shard_print_take(fd, ix->paths[shard], NULL, true, err, &k.print, &read_bytes);
    untouched = is_untouched(fd, seen);
    close(fd);
    DT_TRY(st);
    if (!untouched)
        return DT_OK;
    return dt_shard_kept_write(keep, ix->paths[shard], &k, err);
}

/* One that was there and not right is replaced in any case. */
static enum dt_status keep_all(const struct dt_shard_index *ix, const struct known *known,
                               struct dt_shard_keep *keep, struct dt_error *err)
{
    bool enough = keep->always || ix->n >= DT_SHARD_KEEP_MIN;

    for (size_t at = 0, end; at < ix->n; at = end) {
        uint32_t shard = ix->samples[at].shard;

        for (end = at; end < ix->n && ix->samples[end].shard == shard; end++)
            ;
        if (known[shard].by == INSTEAD_OF_INDEX || (enough && known[shard].by == BY_PASS))
            DT_TRY(keep_index(ix, shard, &known[shard].seen, at, end - at, keep, err));
    }
    return DT_OK;
}

static struct dt_shard_index *new_index(int n)
{
    struct dt_shard_index *ix = dt_calloc(1, sizeof *ix);

    if (!ix)
        return NULL;
    ix->paths = dt_calloc((size_t)n + 1, sizeof *ix->paths);
    ix->fds = dt_calloc((size_t)n + 1, sizeof *ix->fds);
    ix->fingerprint = DT_HASH_START;
    if (!ix->paths || !ix->fds) {
        dt_shard_index_close(ix);
        return NULL;
    }
    ix->n_shards = n;
    for (int i = 0; i < n; i++)
        ix->fds[i] = -1;
    return ix;
}

enum dt_status dt_shard_index_open(const char *const *paths, int n, struct dt_shard_keep *keep,
                                   struct dt_data_report *report, struct dt_error *err,
                                   struct dt_shard_index **out)
{
    struct dt_shard_index *ix = new_index(n);
    struct stream *s = dt_malloc(sizeof *s);
    struct known *known = dt_calloc((size_t)n + 1, sizeof *known);
    enum dt_status st = ix && s && known ? DT_OK : dt_error_nomem(err, "the index of shards");

    for (int i = 0; i < n && st == DT_OK; i++) {
        ix->paths[i] = dt_strdup(paths[i]);
        st = ix->paths[i] ? index_shard(ix, (uint32_t)i, s, keep, report, err, &known[i])
                          : dt_error_nomem(err, "the index of shards");
        if (keep)
            keep->passed += known[i].by != BY_INDEX;
    }
    if (st == DT_OK && keep)
        st = keep_all(ix, known, keep, err);
    dt_free(known);
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
