/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Where kept indexes are found and written. */
#include "exec/data/shard_kept.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a whole index, besides its samples; generous. */
enum { AROUND_BYTES = 4096, BLOCK_BYTES = 512, PLACE_BYTES = 16 };

struct place { /* where a shard's index may be */
    char folder[PATH_MAX - NAME_MAX - 2];
    char file[PATH_MAX];
};
enum place_kind { BESIDE, CACHE, NAMED };

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* The folder, and the file in it; false if there is no such place, or no room for its name.  In a
 * folder that is not the shards' own two shards may have one name: their whole paths tell them
 * apart. */
static bool place_of(const struct dt_shard_keep *keep, enum place_kind kind, const char *path,
                     struct place *p)
{
    const char *base = base_of(path), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char whole[PATH_MAX], tag[24] = "";
    int n = 0, dir = (int)(base - path);

    if (kind == BESIDE)
        n = snprintf(p->folder, sizeof p->folder, "%.*s" DT_SHARD_KEPT_FOLDER, dir, path);
    else if (kind == NAMED)
        n = snprintf(p->folder, sizeof p->folder, "%s", keep->folder);
    else if (cache && cache[0] == '/')
        n = snprintf(p->folder, sizeof p->folder, "%s/disttrain/index", cache);
    else if (home && home[0] == '/')
        n = snprintf(p->folder, sizeof p->folder, "%s/.cache/disttrain/index", home);
    if (n <= 0 || n >= (int)sizeof p->folder)
        return false;
    if (kind != BESIDE) {
        if (!realpath(path, whole))
            return false;
        snprintf(tag, sizeof tag, ".%016" PRIx64, dt_hash_text(DT_HASH_START, whole));
    }
    n = snprintf(p->file, sizeof p->file, "%s/%s%s.index", p->folder, base, tag);
    return n < (int)sizeof p->file && strlen(base) + strlen(tag) + 32 < NAME_MAX;
}

/* The kinds of places in the order in which they are tried. */
static int kinds(const struct dt_shard_keep *keep, enum place_kind kind[2])
{
    kind[0] = keep->folder ? NAMED : BESIDE;
    kind[1] = CACHE;
    return keep->folder ? 1 : 2;
}

static void note_place(struct dt_shard_keep *keep, const struct place *p)
{
    snprintf(keep->where, sizeof keep->where, "%.1023s", p->folder);
}

/* ---- finding ---- */

/* DT_ERR_INPUT: none there.  *is: what the shard's print is now. */
static enum dt_status look(const char *file, const char *path, int fd, struct dt_error *err,
                           struct dt_shard_kept *k, struct dt_shard_print *is, bool *there)
{
    struct dt_error why = {.status = DT_OK};
    int64_t read_bytes = 0;
    enum dt_status st;
    struct stat sb;
    char *bytes;
    size_t len;

    *there = false;
    if (fstat(fd, &sb) != 0 ||
        dt_file_read(file, AROUND_BYTES + (size_t)sb.st_size / BLOCK_BYTES * PLACE_BYTES, &why,
                     &bytes, &len) != DT_OK) {
        *there = access(file, F_OK) == 0;
        return dt_error_set(err, DT_ERR_INPUT, "none kept");
    }
    *there = true;
    st = dt_shard_kept_decode((const uint8_t *)bytes, len, err, k);
    dt_free(bytes);
    DT_TRY(st);
    if (k->print.bytes != (int64_t)sb.st_size || strcmp(k->print.name, base_of(path)) != 0)
        st = dt_error_set(err, DT_ERR_INPUT, "the index of another shard");
    if (st == DT_OK)
        st = dt_shard_print_take(fd, path, &k->print, true, err, is, &read_bytes);
    if (st == DT_OK && (is->bytes != k->print.bytes || is->crc != k->print.crc))
        st = dt_error_set(err, DT_ERR_INPUT, "the shard has changed");
    if (st != DT_OK)
        dt_free(k->samples);
    return st;
}

enum dt_status dt_shard_kept_find(struct dt_shard_keep *keep, const char *path, int fd,
                                  struct dt_error *err, struct dt_shard_kept *out)
{
    enum dt_status st = DT_ERR_INPUT;
    bool there, any = false;
    enum place_kind kind[2];
    struct dt_shard_print is;
    struct dt_shard_kept k;
    int n = kinds(keep, kind);

    for (int i = 0; i < n && st == DT_ERR_INPUT; i++) {
        struct place p;

        if (!place_of(keep, kind[i], path, &p))
            continue;
        st = look(p.file, path, fd, err, &k, &is, &there);
        any = any || there;
        if (st == DT_OK)
            note_place(keep, &p);
    }
    keep->replaced += st == DT_ERR_INPUT && any;
    DT_TRY(st);
    keep->found++;
    /* Its times are others, as those of a copy are: next time they are looked at alone.  Those of a
     * shard that is too young say nothing yet. */
    if (is.changed_ns != 0 && is.changed_ns != k.print.changed_ns) {
        k.print = is;
        st = dt_shard_kept_write(keep, path, &k, err);
    }
    if (st == DT_OK)
        *out = k;
    else
        dt_free(k.samples);
    return st;
}

/* ---- writing ---- */

/* With all that is above it. */
static bool make_folder(const char *folder)
{
    char part[PATH_MAX];

    snprintf(part, sizeof part, "%s", folder);
    for (char *c = part + 1; *c; c++)
        if (*c == '/') {
            *c = '\0';
            if (mkdir(part, 0777) != 0 && errno != EEXIST)
                return false;
            *c = '/';
        }
    return mkdir(part, 0777) == 0 || errno == EEXIST;
}

/* A folder beside the shards came with the data: what lies in it may lead anywhere.  Only a file that is no link is
 * replaced. */
static bool may_replace(const struct place *p, enum place_kind kind)
{
    struct stat sb;

    if (kind == BESIDE && (lstat(p->folder, &sb) != 0 || !S_ISDIR(sb.st_mode)))
        return false;
    return lstat(p->file, &sb) != 0 ? errno == ENOENT : S_ISREG(sb.st_mode);
}

static enum dt_status write_at(const struct place *p, enum place_kind kind,
                               const struct dt_shard_kept *k, struct dt_error *err)
{
    enum dt_status st;
    uint8_t *bytes;
    size_t len;

    if (kind == BESIDE ? mkdir(p->folder, 0777) != 0 && errno != EEXIST : !make_folder(p->folder))
        return dt_error_at(err, DT_ERR_IO, p->folder, 0, 0, "cannot make this folder: %s",
                           strerror(errno));
    if (!may_replace(p, kind))
        return dt_error_at(err, DT_ERR_IO, p->file, 0, 0,
                           "a link, a pipe or the like, which is left alone; remove it, or use "
                           "--index or run.data_index");
    DT_TRY(dt_shard_kept_encode(k, err, &bytes, &len));
    st = dt_file_write(p->file, (const char *)bytes, len, err);
    dt_free(bytes);
    return st;
}

enum dt_status dt_shard_kept_write(struct dt_shard_keep *keep, const char *path,
                                   const struct dt_shard_kept *k, struct dt_error *err)
{
    struct dt_error why = {.status = DT_OK};
    enum place_kind kind[2];
    int n = kinds(keep, kind);
    struct place p;

    dt_error_set(&why, DT_ERR_IO, "there is no folder for it");
    for (int i = 0; i < n; i++)
        if (place_of(keep, kind[i], path, &p) && write_at(&p, kind[i], k, &why) == DT_OK) {
            keep->written++;
            note_place(keep, &p);
            return DT_OK;
        }
    dt_error_format(&why, keep->why, sizeof keep->why);
    if (!keep->folder)
        return DT_OK;
    if (err)
        *err = why;
    return why.status;
}
