/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Writing shards.  All are written under temporary names and synced; at the end they are renamed. */
#include "exec/data/shard_impl.h"

#include "base/file.h"
#include "base/mem.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct dt_shard_writer {
    char prefix[PATH_MAX - 64];
    int64_t samples_max, bytes_max;
    struct archive *a; /* NULL = no shard open */
    int fd;
    char **temp; /* [shards]: names until all are complete; the last may be open */
    size_t cap_temp;
    int64_t samples, bytes; /* in this shard */
    int shards;
};

static void final_name(const struct dt_shard_writer *w, int shard, char final[PATH_MAX])
{
    snprintf(final, PATH_MAX, "%s-%06d.tar", w->prefix, shard);
}

/* ---- shards that are there already ---- */

/* The number of the shard of this prefix that a file of this name is; -1: none. */
static long number_of(const char *name, const char *base)
{
    size_t n = strlen(base), digits = 0;

    if (strncmp(name, base, n) != 0 || name[n] != '-')
        return -1;
    name += n + 1;
    while (isdigit((unsigned char)name[digits]))
        digits++;
    return digits >= 6 && digits <= 9 && strcmp(name + digits, ".tar") == 0 ? strtol(name, NULL, 10)
                                                                            : -1;
}

/* Calls `fn` for each shard of the prefix from number `first` on. */
static enum dt_status each_old(const struct dt_shard_writer *w, int first,
                               enum dt_status (*fn)(const char *path, struct dt_error *err),
                               struct dt_error *err)
{
    const char *slash = strrchr(w->prefix, '/'), *base = slash ? slash + 1 : w->prefix;
    char dir[PATH_MAX], path[PATH_MAX + 256];
    enum dt_status st = DT_OK;
    struct dirent *e;
    DIR *d;

    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(base - w->prefix) : 1, slash ? w->prefix : ".");
    d = opendir(dir);
    while (d && st == DT_OK && (e = readdir(d)))
        if (number_of(e->d_name, base) >= first) {
            snprintf(path, sizeof path, "%.*s%s", (int)(base - w->prefix), w->prefix, e->d_name);
            st = fn(path, err);
        }
    if (d)
        closedir(d);
    return st;
}

static enum dt_status refuse_old(const char *path, struct dt_error *err)
{
    return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                       "there are shards of this prefix, which would be read with the new ones; "
                       "take another prefix, or replace them (--replace)");
}

static enum dt_status refuse_folder(const char *path, struct dt_error *err)
{
    struct stat sb;

    if (lstat(path, &sb) == 0 && S_ISDIR(sb.st_mode))
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "this is a folder, not a shard");
    return DT_OK;
}

static enum dt_status remove_old(const char *path, struct dt_error *err)
{
    if (unlink(path) != 0)
        return dt_error_at(err, DT_ERR_IO, path, 0, 0,
                           "cannot remove this shard, which the new ones have no place for: %s",
                           strerror(errno));
    return DT_OK;
}

/* ---- writing ---- */

enum dt_status dt_shard_writer_open(const char *prefix, int64_t samples_max, int64_t bytes_max,
                                    bool replace, struct dt_error *err,
                                    struct dt_shard_writer **out)
{
    struct dt_shard_writer *w;
    enum dt_status st;
    if (strlen(prefix) >= sizeof w->prefix)
        return dt_error_set(err, DT_ERR_INPUT, "file name too long: %s", prefix);
    w = dt_calloc(1, sizeof *w);
    if (!w)
        return dt_error_nomem(err, "a shard writer");
    memcpy(w->prefix, prefix, strlen(prefix) + 1);
    w->samples_max = samples_max;
    w->bytes_max = bytes_max;
    w->fd = -1;
    st = each_old(w, 0, replace ? refuse_folder : refuse_old, err);
    if (st != DT_OK) {
        dt_free(w);
        return st;
    }
    *out = w;
    return DT_OK;
}

static enum dt_status failed(struct dt_shard_writer *w, struct dt_error *err)
{
    char final[PATH_MAX];
    const char *why = w->a ? archive_error_string(w->a) : NULL;
    final_name(w, w->shards - 1, final);
    return dt_error_at(err, DT_ERR_IO, final, 0, 0, "cannot write: %s",
                       why ? why : strerror(errno));
}

/* With what has no final name yet. */
static void drop(struct dt_shard_writer *w)
{
    if (w->a)
        archive_write_free(w->a);
    if (w->fd >= 0)
        close(w->fd);
    for (int i = 0; i < w->shards; i++) {
        if (w->temp[i])
            unlink(w->temp[i]);
        dt_free(w->temp[i]);
    }
    dt_free(w->temp);
    dt_free(w);
}

static enum dt_status begin(struct dt_shard_writer *w, struct dt_error *err)
{
    char final[PATH_MAX], temp[PATH_MAX];
    void *grown = w->temp;
    if (dt_grow(&grown, &w->cap_temp, (size_t)w->shards + 1, sizeof *w->temp))
        return dt_error_nomem(err, "names of shards");
    w->temp = grown;
    final_name(w, w->shards, final);
    DT_TRY(dt_file_temp(final, err, temp, sizeof temp, &w->fd));
    w->temp[w->shards] = dt_strdup(temp);
    if (!w->temp[w->shards++]) {
        unlink(temp);
        return dt_error_nomem(err, "the name of a shard");
    }
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
    if (archive_write_close(w->a) != ARCHIVE_OK)
        return failed(w, err);
    archive_write_free(w->a);
    w->a = NULL;
    if (fsync(w->fd) != 0)
        return failed(w, err);
    close(w->fd);
    w->fd = -1;
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

/* All are complete. */
static enum dt_status rename_all(struct dt_shard_writer *w, struct dt_error *err)
{
    char final[PATH_MAX];

    for (int i = 0; i < w->shards; i++) {
        final_name(w, i, final);
        if (rename(w->temp[i], final) != 0)
            return dt_error_at(err, DT_ERR_IO, final, 0, 0, "cannot write: %s", strerror(errno));
        dt_free(w->temp[i]);
        w->temp[i] = NULL;
    }
    return each_old(w, w->shards, remove_old, err);
}

enum dt_status dt_shard_writer_close(struct dt_shard_writer *w, struct dt_error *err, int *n_shards)
{
    enum dt_status st = w->a ? finish(w, err) : DT_OK;
    if (st == DT_OK)
        st = rename_all(w, err);
    if (st == DT_OK && n_shards)
        *n_shards = w->shards;
    drop(w);
    return st;
}

void dt_shard_writer_abort(struct dt_shard_writer *w)
{
    if (w)
        drop(w);
}
