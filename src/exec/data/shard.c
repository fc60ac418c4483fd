/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Reading the members of one sample.  The index is in shard_index.c, writing in shard_write.c.
 *
 * libarchive reads the tar format (ustar, pax, GNU); it sees memory of known size only. */
#include "exec/data/shard_impl.h"

#include "base/file.h"
#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

size_t dt_shard_key_length(const char *path)
{
    const char *base = strrchr(path, '/'), *dot;
    base = base ? base + 1 : path;
    dot = strchr(base, '.');
    if (!*base || dot == base)
        return 0;
    return dot ? (size_t)(dot - path) : strlen(path);
}

const char *dt_shard_member_path(struct archive_entry *e)
{
    const char *path = archive_entry_pathname(e);
    if (archive_entry_filetype(e) != AE_IFREG || archive_entry_hardlink(e))
        return NULL;
    return path ? path : archive_entry_pathname_utf8(e); /* no name in this locale */
}

void dt_shard_sample_free(struct dt_shard_sample *s)
{
    dt_free(s->buf);
    memset(s, 0, sizeof *s);
}

static enum dt_status damaged(struct archive *a, struct dt_error *err)
{
    const char *why = archive_error_string(a);
    return dt_error_set(err, DT_ERR_INPUT, "tar: %s", why ? why : "damaged");
}

/* Adds a member whose data is at `data`. */
static enum dt_status add_member(struct dt_shard_sample *s, const char *ext, const uint8_t *data,
                                 size_t len, struct dt_error *err)
{
    size_t n = strlen(ext) + 1;
    char *to = s->ext_text + s->text_used;
    if (s->n_members == DT_SHARD_MEMBERS_MAX || n > sizeof s->ext_text - s->text_used)
        return dt_error_set(err, DT_ERR_INPUT,
                            "a sample of more than %d members, or with too long "
                            "names",
                            (int)DT_SHARD_MEMBERS_MAX);
    for (size_t i = 0; i < n; i++)
        to[i] = (char)tolower((unsigned char)ext[i]);
    s->text_used += n;
    s->member[s->n_members++] = (struct dt_shard_member){to, data, len};
    return DT_OK;
}

struct tar { /* a tar file in memory */
    const uint8_t *bytes;
    size_t len;
    struct archive *a;
};

/* All data of the current entry: a pointer into the tar file. */
static enum dt_status entry_data(const struct tar *t, int64_t size, struct dt_error *err,
                                 const uint8_t **data)
{
    const void *block;
    size_t n;
    la_int64_t at;
    int rc;
    static const uint8_t none;
    *data = &none;
    if (size == 0)
        return DT_OK;
    rc = archive_read_data_block(t->a, &block, &n, &at);
    if (rc != ARCHIVE_OK && rc != ARCHIVE_EOF)
        return damaged(t->a, err);
    if (rc == ARCHIVE_EOF || at != 0 || (int64_t)n != size || (const uint8_t *)block < t->bytes ||
        (const uint8_t *)block + n > t->bytes + t->len)
        return dt_error_set(err, DT_ERR_INPUT, "tar: a member is truncated or sparse");
    *data = block;
    return DT_OK;
}

static void begin_sample(struct dt_shard_sample *s, const char *key, size_t n)
{
    memcpy(s->key, key, n);
    s->key[n] = '\0';
    s->n_members = 0;
    s->text_used = 0;
}

static enum dt_status members(const struct tar *t, struct dt_shard_sample *s, dt_shard_fn fn,
                              void *arg, struct dt_error *err)
{
    struct archive *a = t->a;
    struct archive_entry *e;
    bool open = false;
    int rc;
    while ((rc = archive_read_next_header(a, &e)) == ARCHIVE_OK || rc == ARCHIVE_WARN) {
        const char *path = dt_shard_member_path(e);
        size_t n = path ? dt_shard_key_length(path) : 0;
        const uint8_t *data;
        if (n == 0)
            continue;
        if (n >= DT_SHARD_NAME_MAX) { /* no sample, as in the index */
            if (open)
                DT_TRY(fn(arg, s, err));
            open = false;
            continue;
        }
        if (open && (strlen(s->key) != n || memcmp(s->key, path, n) != 0)) {
            DT_TRY(fn(arg, s, err));
            open = false;
        }
        if (!open)
            begin_sample(s, path, n);
        open = true;
        /* the path is gone once the data is read */
        DT_TRY(add_member(s, path[n] ? path + n + 1 : "", NULL, 0, err));
        DT_TRY(entry_data(t, archive_entry_size(e), err, &data));
        s->member[s->n_members - 1].data = data;
        s->member[s->n_members - 1].len = (size_t)archive_entry_size(e);
    }
    if (rc != ARCHIVE_EOF)
        return damaged(a, err);
    return open ? fn(arg, s, err) : DT_OK;
}

static enum dt_status parse(const uint8_t *bytes, size_t len, struct dt_shard_sample *s,
                            dt_shard_fn fn, void *arg, struct dt_error *err)
{
    struct tar t = {bytes, len, archive_read_new()};
    enum dt_status st;
    if (!t.a)
        return dt_error_nomem(err, "a tar reader");
    archive_read_support_format_tar(t.a);
    if (archive_read_open_memory(t.a, bytes, len) != ARCHIVE_OK)
        st = damaged(t.a, err);
    else
        st = members(&t, s, fn, arg, err);
    archive_read_free(t.a);
    return st;
}

enum dt_status dt_shard_parse(const uint8_t *bytes, size_t len, dt_shard_fn fn, void *arg,
                              struct dt_error *err)
{
    struct dt_shard_sample *s = dt_calloc(1, sizeof *s);
    enum dt_status st;
    if (!s)
        return dt_error_nomem(err, "a sample");
    st = parse(bytes, len, s, fn, arg, err);
    dt_free(s);
    return st;
}

/* ---- one sample of an index ---- */

static enum dt_status one(void *arg, const struct dt_shard_sample *s, struct dt_error *err)
{
    int *n = arg;
    (void)s;
    return ++*n == 1 ? DT_OK : dt_error_set(err, DT_ERR_INPUT, "tar: the shard has changed");
}

static enum dt_status read_at(const struct dt_shard_index *ix, const struct dt_shard_place *p,
                              uint8_t *buf, struct dt_error *err)
{
    const char *path = ix->paths[p->shard];
    int fd = ix->fds[p->shard], failed = 0;
    size_t got = 0;
    if (fd < 0) /* too many shards to keep them open */
        DT_TRY(dt_file_open(path, false, err, &fd));
    while (got < p->bytes) {
        ssize_t k = pread(fd, buf + got, (size_t)p->bytes - got, (off_t)(p->offset + got));
        if (k < 0 && errno == EINTR)
            continue;
        failed = k < 0 ? errno : 0;
        if (k <= 0)
            break;
        got += (size_t)k;
    }
    if (ix->fds[p->shard] < 0)
        close(fd);
    if (failed)
        return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot read: %s", strerror(failed));
    if (got < p->bytes)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "the shard became shorter");
    return DT_OK;
}

enum dt_status dt_shard_read(const struct dt_shard_index *ix, size_t i, size_t bytes_max,
                             struct dt_error *err, struct dt_shard_sample *out)
{
    const struct dt_shard_place *p = &ix->samples[i];
    const char *path = ix->paths[p->shard];
    struct dt_error why;
    void *buf = out->buf;
    int n = 0;
    enum dt_status st;
    if (p->bytes > bytes_max)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "the sample at byte %llu has %llu bytes; the limit is %zu",
                           (unsigned long long)p->offset, (unsigned long long)p->bytes, bytes_max);
    if (dt_grow(&buf, &out->buf_cap, (size_t)p->bytes, 1))
        return dt_error_nomem(err, "a sample");
    out->buf = buf;
    DT_TRY(read_at(ix, p, out->buf, err));
    st = parse(out->buf, (size_t)p->bytes, out, one, &n, &why);
    if (st == DT_OK && n == 0)
        st = dt_error_set(&why, DT_ERR_INPUT, "tar: the shard has changed");
    if (st != DT_OK)
        return dt_error_at(err, st, path, 0, 0, "the sample at byte %llu: %.200s",
                           (unsigned long long)p->offset, why.message);
    return DT_OK;
}
