/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Writing shards.  A shard is written under a temporary name, synced and renamed. */
#include "exec/data/shard_impl.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct dt_shard_writer {
    char prefix[PATH_MAX - 64];
    int64_t samples_max, bytes_max;
    struct archive *a; /* NULL = no shard open */
    int fd;
    char temp[PATH_MAX];    /* its name until it is complete */
    int64_t samples, bytes; /* in this shard */
    int shards;
};

static void final_name(const struct dt_shard_writer *w, char *final)
{
    snprintf(final, PATH_MAX, "%s-%06d.tar", w->prefix, w->shards);
}

enum dt_status dt_shard_writer_open(const char *prefix, int64_t samples_max, int64_t bytes_max,
                                    struct dt_error *err, struct dt_shard_writer **out)
{
    struct dt_shard_writer *w;
    if (strlen(prefix) >= sizeof w->prefix)
        return dt_error_set(err, DT_ERR_INPUT, "file name too long: %s", prefix);
    w = dt_calloc(1, sizeof *w);
    if (!w)
        return dt_error_nomem(err, "a shard writer");
    memcpy(w->prefix, prefix, strlen(prefix) + 1);
    w->samples_max = samples_max;
    w->bytes_max = bytes_max;
    w->fd = -1;
    *out = w;
    return DT_OK;
}

static enum dt_status failed(struct dt_shard_writer *w, struct dt_error *err)
{
    char final[PATH_MAX];
    const char *why = w->a ? archive_error_string(w->a) : NULL;
    final_name(w, final);
    return dt_error_at(err, DT_ERR_IO, final, 0, 0, "cannot write: %s",
                       why ? why : strerror(errno));
}

static void drop(struct dt_shard_writer *w)
{
    if (w->a)
        archive_write_free(w->a);
    w->a = NULL;
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->temp);
    }
    w->fd = -1;
}

static enum dt_status begin(struct dt_shard_writer *w, struct dt_error *err)
{
    char final[PATH_MAX];
    final_name(w, final);
    DT_TRY(dt_file_temp(final, err, w->temp, sizeof w->temp, &w->fd));
    w->a = archive_write_new();
    if (!w->a)
        return dt_error_nomem(err, "a tar writer");
    archive_write_set_format_pax_restricted(w->a); /* ustar, pax only where ustar cannot */
    archive_write_add_filter_none(w->a);
    archive_write_set_bytes_in_last_block(w->a, 1024);
    w->samples = w->bytes = 0;
    return archive_write_open_fd(w->a, w->fd) == ARCHIVE_OK ? DT_OK : failed(w, err);
}

static enum dt_status finish(struct dt_shard_writer *w, struct dt_error *err)
{
    char final[PATH_MAX];
    final_name(w, final);
    if (archive_write_close(w->a) != ARCHIVE_OK)
        return failed(w, err);
    archive_write_free(w->a);
    w->a = NULL;
    if (fsync(w->fd) != 0 || rename(w->temp, final) != 0)
        return failed(w, err);
    close(w->fd);
    w->fd = -1;
    w->shards++;
    return DT_OK;
}

static enum dt_status write_member(struct dt_shard_writer *w, const char *key,
                                   const struct dt_shard_member *m, struct dt_error *err)
{
    char path[DT_SHARD_NAME_MAX + 64];
    struct archive_entry *e = archive_entry_new();
    enum dt_status st = DT_OK;
    if (!e)
        return dt_error_nomem(err, "a member of a shard");
    snprintf(path, sizeof path, "%s.%.60s", key, m->ext);
    archive_entry_set_pathname(e, path);
    archive_entry_set_size(e, (la_int64_t)m->len);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0644);
    archive_entry_set_mtime(e, 0, 0);
    if (archive_write_header(w->a, e) < ARCHIVE_WARN ||
        (m->len && archive_write_data(w->a, m->data, m->len) != (la_ssize_t)m->len))
        st = failed(w, err);
    archive_entry_free(e);
    w->bytes += 512 + (int64_t)((m->len + 511) / 512 * 512);
    return st;
}

enum dt_status dt_shard_write(struct dt_shard_writer *w, const char *key,
                              const struct dt_shard_member *members, int n, struct dt_error *err)
{
    if (!*key || strlen(key) >= DT_SHARD_NAME_MAX || dt_shard_key_length(key) != strlen(key))
        return dt_error_set(err, DT_ERR_INPUT,
                            "\"%.80s\" cannot be a key: it is empty, too long, or has a dot in its "
                            "last part",
                            key);
    if (w->a && (w->samples >= w->samples_max || w->bytes >= w->bytes_max))
        DT_TRY(finish(w, err));
    if (!w->a)
        DT_TRY(begin(w, err));
    for (int i = 0; i < n; i++)
        DT_TRY(write_member(w, key, &members[i], err));
    w->samples++;
    return DT_OK;
}

enum dt_status dt_shard_writer_close(struct dt_shard_writer *w, struct dt_error *err, int *n_shards)
{
    enum dt_status st = w->a ? finish(w, err) : DT_OK;
    if (st == DT_OK && n_shards)
        *n_shards = w->shards;
    drop(w);
    dt_free(w);
    return st;
}

void dt_shard_writer_abort(struct dt_shard_writer *w)
{
    if (!w)
        return;
    drop(w);
    dt_free(w);
}
