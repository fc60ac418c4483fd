/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/checkpoint/checkpoint_own.h"

#include "base/mem.h"
#include "exec/checkpoint/checkpoint_impl.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "disttrain-checkpoint 1\n"
enum { MARKER_MAX = 512 };

/* ---- names of files ---- */

static bool digits(const char **at, int n)
{
    for (int i = 0; i < n; i++, (*at)++)
        if (**at < '0' || **at > '9')
            return false;
    return true;
}

static bool word(const char **at, const char *what)
{
    size_t n = strlen(what);

    if (strncmp(*at, what, n) != 0)
        return false;
    *at += n;
    return true;
}

/* KIND.safetensors, KIND-00001-of-00002.safetensors, KIND.safetensors.index.json */
static bool tensors(const char **at, const char *kind)
{
    const char *p = *at;

    if (!word(&p, kind))
        return false;
    if (word(&p, "-") && !(digits(&p, 5) && word(&p, "-of-") && digits(&p, 5)))
        return false;
    if (!word(&p, ".safetensors"))
        return false;
    word(&p, ".index.json");
    *at = p;
    return true;
}

/* What dt_file_temp puts behind a name: ".tmp.PID" or ".tmp.PID.N". */
static bool temp_suffix(const char *p)
{
    if (!word(&p, ".tmp.") || !digits(&p, 1))
        return false;
    p += strspn(p, "0123456789");
    if (word(&p, ".") && !digits(&p, 1))
        return false;
    return p[strspn(p, "0123456789")] == '\0';
}

/* A name that a save gives a file in a checkpoint's folder; the one list of them. */
static bool written_by_us(const char *name)
{
    const char *p = name;

    if (!(word(&p, "manifest.json") || word(&p, "state.json") || word(&p, "data.json") ||
          word(&p, "job.json") || word(&p, DT_CKPT_MARKER) || word(&p, DT_CKPT_KEPT) ||
          tensors(&p, "model") || tensors(&p, "optimizer") ||
          (word(&p, "share-") && digits(&p, 5) && word(&p, ".json"))))
        return false;
    return *p == '\0' || temp_suffix(p);
}

/* ---- markers ---- */

long dt_ckpt_slurp(int dir, const char *name, char *buf, size_t max)
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat sb;
    size_t n = 0;
    ssize_t got = 1;

    if (fd < 0)
        return -1;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode))
        got = -1;
    while (got > 0 && n < max) {
        got = read(fd, buf + n, max - n);
        n += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    buf[n] = '\0';
    return got < 0 ? -1 : (long)n;
}

static enum dt_status mark(int fd, const char *folder, const char *run_id, struct dt_error *err)
{
    struct dt_ckpt_process me;
    char text[MARKER_MAX], process[256];
    int n, file = openat(fd, DT_CKPT_MARKER, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                         0666);
    bool failed;

    if (file < 0)
        return dt_error_at(err, DT_ERR_IO, folder, 0, 0, "cannot create " DT_CKPT_MARKER ": %s",
                           strerror(errno));
    dt_ckpt_this_process(&me);
    dt_ckpt_process_text(&me, process, sizeof(process));
    n = snprintf(text, sizeof(text), MAGIC "run %s\nprocess %s\n", run_id, process);
    failed = write(file, text, (size_t)n) != n;
    if (failed) { /* half a marker says nothing */
        dt_error_at(err, DT_ERR_IO, folder, 0, 0, "cannot write " DT_CKPT_MARKER ": %s",
                    strerror(errno));
        unlinkat(fd, DT_CKPT_MARKER, 0);
    }
    close(file);
    return failed ? DT_ERR_IO : DT_OK;
}

enum dt_status dt_ckpt_mark(const char *folder, const char *run_id, struct dt_error *err)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    enum dt_status st;

    if (fd < 0)
        return dt_error_at(err, DT_ERR_IO, folder, 0, 0, "cannot open: %s", strerror(errno));
    st = mark(fd, folder, run_id, err);
    close(fd);
    return st;
}

/* An empty one is of a process that was killed while it wrote it. */
static bool read_marker(int fd, struct dt_ckpt_owner *out)
{
    char text[MARKER_MAX + 1], *line;
    long n = dt_ckpt_slurp(fd, DT_CKPT_MARKER, text, MARKER_MAX);

    memset(out, 0, sizeof(*out));
    snprintf(out->run_id, sizeof(out->run_id), "%s", DT_RUN_UNNAMED);
    if (n <= 0)
        return n == 0;
    if (strncmp(text, MAGIC "run ", strlen(MAGIC "run ")) != 0)
        return false;
    line = text + strlen(MAGIC "run ");
    n = (long)strcspn(line, "\n");
    if (n <= 0 || n >= DT_RUN_ID_SIZE || line[n] != '\n')
        return false;
    memcpy(out->run_id, line, (size_t)n);
    out->run_id[n] = '\0';
    line += n + 1;
    return strncmp(line, "process ", 8) == 0 && dt_ckpt_process_parse(line + 8, &out->process);
}

/* Of a checkpoint from before there were markers, or that was copied without hidden files. */
static bool read_manifest(int fd, char run_id[DT_RUN_ID_SIZE])
{
    struct stat sb;
    char *text;
    bool ours;
    long n;

    if (fstatat(fd, "manifest.json", &sb, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(sb.st_mode) ||
        sb.st_size > DT_CKPT_JSON_MAX || !(text = dt_malloc((size_t)sb.st_size + 1)))
        return false;
    n = dt_ckpt_slurp(fd, "manifest.json", text, (size_t)sb.st_size);
    ours =
        n > 0 && dt_ckpt_manifest_run_id("manifest.json", text, (size_t)n, NULL, run_id) == DT_OK;
    dt_free(text);
    return ours;
}

static int open_folder(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool dt_ckpt_owned(int dir, const char *name, struct dt_ckpt_owner *out)
{
    int fd = open_folder(dir, name);
    bool ours = false;

    if (fd < 0)
        return false;
    ours = read_marker(fd, out);
    if (!ours) {
        memset(out, 0, sizeof(*out));
        ours = read_manifest(fd, out->run_id);
    }
    close(fd);
    return ours;
}

bool dt_ckpt_complete(int dir, const char *name, char run_id[DT_RUN_ID_SIZE])
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* reading may follow links */
    bool complete = fd >= 0 && faccessat(fd, "manifest.json", R_OK, 0) == 0;
    struct dt_ckpt_owner owner;

    if (complete && read_marker(fd, &owner))
        memcpy(run_id, owner.run_id, DT_RUN_ID_SIZE);
    else if (complete)
        complete = read_manifest(fd, run_id);
    if (fd >= 0)
        close(fd);
    return complete;
}

/* ---- emptying ---- */

struct left {
    int ours, passing, others;
};

/* NFS keeps a file that somebody still reads under such a name, until nobody does. */
static bool passing(const char *name)
{
    return strncmp(name, ".nfs", 4) == 0;
}

static void each_file(DIR *d, bool remove, struct left *left)
{
    struct dirent *e;
    struct stat sb;
    int fd = dirfd(d);

    memset(left, 0, sizeof(*left));
    rewinddir(d);
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            strcmp(e->d_name, DT_CKPT_MARKER) == 0)
            continue;
        if (passing(e->d_name))
            left->passing++;
        else if (!written_by_us(e->d_name) ||
                 fstatat(fd, e->d_name, &sb, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(sb.st_mode))
            left->others++;
        else if (!remove || unlinkat(fd, e->d_name, 0) != 0)
            left->ours++;
    }
}

/* The manifest goes first, so that half a checkpoint never looks like one, and the marker last, so
 * that what a crash leaves is still known to be ours. */
enum dt_ckpt_removed dt_ckpt_empty(int dir, const char *name)
{
    enum dt_ckpt_removed got = DT_CKPT_LATER;
    struct dt_ckpt_owner owner;
    struct left left;
    struct stat sb;
    int fd;
    DIR *d;

    if (!dt_ckpt_owned(dir, name, &owner) || (fd = open_folder(dir, name)) < 0)
        return DT_CKPT_NOT_OURS;
    d = fdopendir(fd);
    if (!d) {
        close(fd);
        return DT_CKPT_LATER;
    }
    if (fstatat(fd, DT_CKPT_MARKER, &sb, AT_SYMLINK_NOFOLLOW) != 0)
        mark(fd, name, owner.run_id, NULL);
    if (fstatat(fd, "manifest.json", &sb, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(sb.st_mode))
        unlinkat(fd, "manifest.json", 0);
    each_file(d, true, &left);
    each_file(d, false, &left);
    if (left.others > 0 && left.ours + left.passing == 0) {
        unlinkat(fd, DT_CKPT_MARKER, 0);
        got = DT_CKPT_OTHERS_INSIDE;
    } else if (left.ours + left.passing == 0) {
        unlinkat(fd, DT_CKPT_MARKER, 0);
        got = unlinkat(dir, name, AT_REMOVEDIR) == 0 ? DT_CKPT_GONE : DT_CKPT_LATER;
    }
    closedir(d);
    return got;
}

/* ---- files beside the folders ---- */

/* By name and by how it begins. */
bool dt_ckpt_temp_file(int dir, const char *name)
{
    static const struct {
        const char *name, *begins;
    } files[] = {{DT_CKPT_POINTER, "step-"},
                 {DT_CKPT_RUN, "{\n  \"format\": \"disttrain-run\""},
                 {DT_CKPT_LOCK, "{\n  \"format\": \"disttrain-lock\""}};
    char text[65];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        const char *p = name;
        size_t n = strlen(files[i].begins);
        long got;

        if (!word(&p, files[i].name) || !temp_suffix(p))
            continue;
        got = dt_ckpt_slurp(dir, name, text, sizeof(text) - 1);
        return got >= 0 && strncmp(text, files[i].begins, (size_t)got < n ? (size_t)got : n) == 0;
    }
    return false;
}
