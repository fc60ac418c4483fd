/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/file.h"
#include "base/doc.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the build says that the shipped files are: the source tree, and the installed copy. */
#ifndef DT_SRC_TRACES
#define DT_SRC_TRACES "traces"
#endif
#ifndef DT_PKGDATADIR
#define DT_PKGDATADIR "/usr/local/share/disttrain"
#endif

#define READ_CHUNK ((size_t)1 << 16)

/* Reads all of fd; takes no ownership of it. */
static enum dt_status read_all(int fd, const char *path, size_t limit, struct dt_error *err,
                               char **out, size_t *len)
{
    void *buf = NULL;
    size_t cap = 0, n = 0;

    for (;;) {
        ssize_t got;

        if (dt_grow(&buf, &cap, n + READ_CHUNK + 1, 1)) {
            dt_free(buf);
            return dt_error_nomem(err, "a file's contents");
        }
        got = read(fd, (char *)buf + n, READ_CHUNK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int saved = errno;

            dt_free(buf);
            return dt_error_at(err, saved == EISDIR ? DT_ERR_INPUT : DT_ERR_IO, path, 0, 0,
                               "cannot read: %s", strerror(saved));
        }
        if (got == 0)
            break;
        n += (size_t)got;
        if (n > limit) {
            dt_free(buf);
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "larger than the limit of %zu bytes",
                               limit);
        }
    }
    ((char *)buf)[n] = '\0';
    *out = buf;
    if (len)
        *len = n;
    return DT_OK;
}

/* ---- which files are read ---- */

/* Names by which this process has files open already. */
static bool is_own_descriptor(const char *path)
{
    return strcmp(path, "/dev/stdin") == 0 || strncmp(path, "/dev/fd/", 8) == 0 ||
           strncmp(path, "/proc/self/fd/", 14) == 0;
}

bool dt_file_is_stream(const char *path)
{
    return strcmp(path, "-") == 0 || is_own_descriptor(path);
}

static enum dt_status refuse_mode(const char *path, mode_t mode, struct dt_error *err)
{
    const char *kind = S_ISDIR(mode)    ? "a directory"
                       : S_ISFIFO(mode) ? "a pipe"
                       : S_ISSOCK(mode) ? "a socket"
                                        : "a device";

    return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "this is %s, not a regular file", kind);
}

enum dt_status dt_file_check(const char *path, struct dt_error *err)
{
    struct stat sb;

    if (stat(path, &sb) == 0 && !S_ISREG(sb.st_mode))
        return refuse_mode(path, sb.st_mode, err);
    return DT_OK;
}

enum dt_status dt_file_open(const char *path, bool stream, struct dt_error *err, int *out)
{
    bool own = stream && is_own_descriptor(path);
    struct stat sb;
    int fd;

    /* before it is opened, which does something to a pipe's writer and to some devices ... */
    if (stat(path, &sb) != 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "cannot open: %s", strerror(errno));
    if (!S_ISREG(sb.st_mode) && !(own && (S_ISFIFO(sb.st_mode) || S_ISCHR(sb.st_mode))))
        return refuse_mode(path, sb.st_mode, err);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &sb) != 0) {
        int saved = errno;

        if (fd >= 0)
            close(fd);
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "cannot open: %s", strerror(saved));
    }
    if (S_ISREG(sb.st_mode)) {
        *out = fd;
        return DT_OK;
    }
    if (!own) { /* ... and after, since it may have changed */
        close(fd);
        return refuse_mode(path, sb.st_mode, err);
    }
    (void)!fcntl(fd, F_SETFL, 0); /* its data may take its time */
    *out = fd;
    return DT_OK;
}

enum dt_status dt_file_read(const char *path, size_t limit, struct dt_error *err, char **out,
                            size_t *len)
{
    enum dt_status st;
    int fd;

    if (strcmp(path, "-") == 0)
        return read_all(STDIN_FILENO, "standard input", limit, err, out, len);
    DT_TRY(dt_file_open(path, true, err, &fd));
    st = read_all(fd, path, limit, err, out, len);
    close(fd);
    return st;
}

static int write_all(int fd, const char *text, size_t len)
{
    while (len > 0) {
        ssize_t put = write(fd, text, len);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return -1;
        text += put;
        len -= (size_t)put;
    }
    return 0;
}

/* Streams and devices cannot be replaced by a rename. */
static enum dt_status write_direct(const char *path, int fd, const char *text, size_t len,
                                   struct dt_error *err)
{
    int failed = write_all(fd, text, len), saved = errno;

    if (fd != STDOUT_FILENO && close(fd) != 0 && !failed) {
        failed = -1;
        saved = errno;
    }
    if (failed)
        return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot write: %s", strerror(saved));
    return DT_OK;
}

/* The new name must survive a crash as well as the bytes do; a file system that cannot sync a
 * directory is not an error. */
static void sync_directory_of(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int fd;

    if (slash)
        snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    else
        snprintf(dir, sizeof(dir), ".");
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!fsync(fd);
        close(fd);
    }
}

enum dt_status dt_file_temp(const char *target, struct dt_error *err, char *temp, size_t size,
                            int *fd)
{
    enum { TRIES = 1000 };
    int got = -1;

    for (int k = 0; k < TRIES && got < 0; k++) {
        char number[16] = "";

        if (k > 0)
            snprintf(number, sizeof(number), ".%d", k);
        if ((size_t)snprintf(temp, size, "%s.tmp.%ld%s", target, (long)getpid(), number) >= size)
            return dt_error_at(err, DT_ERR_INPUT, target, 0, 0, "file name too long");
        got = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (got < 0 && errno != EEXIST)
            break;
    }
    if (got < 0)
        return dt_error_at(err, DT_ERR_IO, target, 0, 0, "cannot create: %s", strerror(errno));
    *fd = got;
    return DT_OK;
}

enum dt_status dt_file_write(const char *path, const char *text, size_t len, struct dt_error *err)
{
    char target[PATH_MAX], temp[PATH_MAX];
    struct stat sb;
    mode_t mode = 0;
    int fd, saved;

    if (strcmp(path, "-") == 0) {
        fflush(stdout); /* keep the order of what was printed before */
        return write_direct("standard output", STDOUT_FILENO, text, len, err);
    }
    /* Replace what a symbolic link points to, not the link. */
    if (!realpath(path, target) &&
        snprintf(target, sizeof(target), "%s", path) >= (int)sizeof(target))
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "file name too long");
    if (stat(target, &sb) == 0) {
        if (S_ISDIR(sb.st_mode))
            return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot write: is a directory");
        if (!S_ISREG(sb.st_mode)) {
            fd = open(target, O_WRONLY | O_CLOEXEC);
            if (fd < 0)
                return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot open for writing: %s",
                                   strerror(errno));
            return write_direct(path, fd, text, len, err);
        }
        mode = sb.st_mode & 07777;
    }
    DT_TRY(dt_file_temp(target, err, temp, sizeof(temp), &fd));
    if (write_all(fd, text, len) != 0 || (mode && fchmod(fd, mode) != 0) || fsync(fd) != 0) {
        saved = errno;
        close(fd);
        goto remove_temp;
    }
    if (close(fd) != 0 || rename(temp, target) != 0) {
        saved = errno;
        goto remove_temp;
    }
    sync_directory_of(target);
    return DT_OK;

remove_temp:
    unlink(temp);
    return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot write: %s", strerror(saved));
}

/* ---- shipped files ---- */

#define PRESETS_MAX 256

struct preset_list {
    char *name[PRESETS_MAX + 1]; /* NULL-terminated */
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool listed(const struct preset_list *list, const char *name, size_t len)
{
    for (size_t i = 0; i < list->n; i++)
        if (strlen(list->name[i]) == len && memcmp(list->name[i], name, len) == 0)
            return true;
    return false;
}

/* Adds the names of dir/kind/NAME.ext; a directory that is not there adds none. */
static void list_presets(const char *dir, const char *kind, const char *ext,
                         struct preset_list *list)
{
    char path[PATH_MAX];
    struct dirent *e;
    DIR *d;

    if (snprintf(path, sizeof(path), "%s/%s", dir, kind) >= (int)sizeof(path))
        return;
    d = opendir(path);
    if (!d)
        return;
    while ((e = readdir(d)) && list->n < PRESETS_MAX) {
        size_t n = strlen(e->d_name), m = strlen(ext);

        if (n <= m || e->d_name[0] == '.' || strcmp(e->d_name + n - m, ext) != 0 ||
            listed(list, e->d_name, n - m))
            continue;
        list->name[list->n] = dt_strdup(e->d_name);
        if (list->name[list->n])
            list->name[list->n++][n - m] = '\0';
    }
    closedir(d);
}

enum { PRESET_DIRS = 3 };
/* Where presets are looked for, the first first. */
static size_t preset_dirs(const char *dirs[PRESET_DIRS])
{
    const char *env = getenv("DISTTRAIN_TRACES");
    size_t n = 0;

    if (env && *env)
        dirs[n++] = env;
    dirs[n++] = DT_SRC_TRACES;
    dirs[n++] = DT_PKGDATADIR "/traces";
    return n;
}

enum dt_status dt_file_presets(const char *kind, const char *ext, struct dt_error *err, char ***out,
                               size_t *n)
{
    struct preset_list list = {.n = 0};
    const char *dirs[PRESET_DIRS];
    size_t n_dirs = preset_dirs(dirs);
    char **names;

    for (size_t i = 0; i < n_dirs; i++)
        list_presets(dirs[i], kind, ext, &list);
    qsort(list.name, list.n, sizeof(list.name[0]), by_name);
    names = dt_malloc((list.n + 1) * sizeof(*names));
    if (!names) {
        for (size_t i = 0; i < list.n; i++)
            dt_free(list.name[i]);
        return dt_error_nomem(err, "presets");
    }
    memcpy(names, list.name, list.n * sizeof(*names));
    *out = names;
    *n = list.n;
    return DT_OK;
}

static enum dt_status not_found(const char *kind, const char *name, const char *ext,
                                const char *const *dirs, size_t n_dirs, struct dt_error *err)
{
    struct preset_list list = {.n = 0};
    char names[3072] = "";
    size_t used = 0;
    const char *near;
    char one[32]; /* "job" of the folder "jobs" */
    enum dt_status st;

    snprintf(one, sizeof(one), "%.*s", (int)(strlen(kind) - (kind[strlen(kind) - 1] == 's')), kind);
    if (!*name)
        return dt_error_set(err, DT_ERR_INPUT,
                            "an empty name; the name of a file or of a %s preset is needed", one);
    DT_TRY(dt_file_check(name, err));
    for (size_t i = 0; i < n_dirs; i++)
        list_presets(dirs[i], kind, ext, &list);
    qsort(list.name, list.n, sizeof(list.name[0]), by_name);
    list.name[list.n] = NULL;
    for (size_t i = 0; i < list.n && used < sizeof(names); i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "",
                                 list.name[i]);
    near = dt_suggest(name, (const char *const *)list.name);
    if (list.n == 0)
        st = dt_error_set(err, DT_ERR_INPUT,
                          "\"%s\" is neither a file nor a preset; no %s presets were found (set "
                          "DISTTRAIN_TRACES to the directory that holds %s/)",
                          name, one, kind);
    else
        st = dt_error_set(
            err, DT_ERR_INPUT, "\"%s\" is neither a file nor a %s preset%s%s%s (presets: %s)", name,
            one, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "", names);
    for (size_t i = 0; i < list.n; i++)
        dt_free(list.name[i]);
    return st;
}

static bool is_file(const char *path)
{
    struct stat sb;

    return stat(path, &sb) == 0 && !S_ISDIR(sb.st_mode);
}

enum dt_status dt_file_find(const char *kind, const char *name, const char *ext,
                            struct dt_error *err, char *path, size_t size)
{
    const char *dirs[PRESET_DIRS];
    char found[PATH_MAX];
    size_t n_dirs = preset_dirs(dirs);

    if (strpbrk(name, "/.") && is_file(name)) {
        if (snprintf(found, sizeof(found), "%s", name) >= (int)sizeof(found))
            return dt_error_set(err, DT_ERR_INPUT, "file name too long");
        goto copy;
    }
    /* a preset's name is one file name, never a path */
    for (size_t i = 0; *name && !strchr(name, '/') && i < n_dirs; i++) {
        int n = snprintf(found, sizeof(found), "%s/%s/%s%s", dirs[i], kind, name, ext);

        if (n > 0 && n < (int)sizeof(found) && is_file(found))
            goto copy;
    }
    return not_found(kind, name, ext, dirs, n_dirs, err);

copy:
    if (strlen(found) + 1 > size)
        return dt_error_set(err, DT_ERR_INPUT, "file name too long: %s", found);
    memcpy(path, found, strlen(found) + 1);
    return DT_OK;
}
