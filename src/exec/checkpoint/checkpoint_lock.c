/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/checkpoint/checkpoint_lock.h"

#include "base/doc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_impl.h"
#include "exec/checkpoint/checkpoint_own.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FORMAT "disttrain-lock"
#define RUN_FORMAT "disttrain-run"
#define GUARD DT_CKPT_LOCK ".break"
enum { TEXT_MAX = 4096, STALE_S = 120, RENEWALS = 12, ORPHAN_WAIT_S = 20, GUARD_S = 10 };

struct holder { /* what a lock says */
    struct dt_ckpt_process process;
    char run_id[DT_RUN_ID_SIZE], since[32], nonce[20];
};

struct dt_ckpt_lock {
    char *dir;
    struct holder own;
    double stale_s;
    pthread_t thread;
    bool threaded, stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

/* ---- what it says ---- */

static enum dt_status write_text(const struct holder *h, const char *format, struct dt_error *err,
                                 char **out)
{
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "format", format);
    dt_json_kv_int(&j, "version", 1);
    dt_json_kv_string(&j, "run_id", h->run_id);
    dt_json_kv_string(&j, "since", h->since);
    dt_json_kv_string(&j, "host", h->process.host);
    dt_json_kv_int(&j, "pid", h->process.pid);
    dt_json_kv_int(&j, "start", (int64_t)h->process.start);
    dt_json_kv_string(&j, "machine", h->process.machine);
    dt_json_kv_string(&j, "nonce", h->nonce);
    dt_json_end_object(&j);
    return dt_json_finish(&j, err, out);
}

static bool parse(const char *text, size_t len, const char *want, struct holder *out)
{
    struct holder h = {.run_id = ""};
    int64_t pid = 0, start = 0;
    struct dt_node root;
    struct dt_doc *doc;
    const char *format;
    bool good;

    if (dt_doc_parse(DT_CKPT_LOCK, text, len, NULL, &doc) != DT_OK)
        return false;
    root = dt_doc_root(doc);
    format = dt_node_text(dt_map_get(root, "format"));
    good = format && strcmp(format, want) == 0 &&
           dt_get_string(root, "run_id", h.run_id, sizeof(h.run_id), NULL) == DT_OK &&
           dt_get_string(root, "since", h.since, sizeof(h.since), NULL) == DT_OK &&
           dt_get_string(root, "nonce", h.nonce, sizeof(h.nonce), NULL) == DT_OK && h.nonce[0] &&
           dt_get_string(root, "host", h.process.host, sizeof(h.process.host), NULL) == DT_OK &&
           dt_get_string(root, "machine", h.process.machine, sizeof(h.process.machine), NULL) ==
               DT_OK &&
           dt_get_int(root, "pid", 1, INT32_MAX, &pid, NULL) == DT_OK && pid > 0 &&
           dt_get_int(root, "start", 0, INT64_MAX, &start, NULL) == DT_OK;
    dt_doc_free(doc);
    h.process.pid = (long)pid;
    h.process.start = (uint64_t)start;
    if (good)
        *out = h;
    return good;
}

/* Begins as what this program writes there, as far as it goes; a file of somebody else's does not.
 */
static bool begins_as(const char *text, long n, const char *format)
{
    char begin[64];
    int len = snprintf(begin, sizeof(begin), "{\n  \"format\": \"%s\"", format);

    return n >= 0 && strncmp(text, begin, (size_t)(n < len ? n : len)) == 0;
}

/* ---- looking at one ---- */

struct seen {
    bool there, ours_to_read; /* a regular file that says what a lock says */
    struct holder h;
    struct stat sb;
};

static enum dt_status look(const char *dir, int fd, struct dt_error *err, struct seen *s)
{
    char text[TEXT_MAX + 1];
    int file;
    long n;

    memset(s, 0, sizeof(*s));
    /* opened, so that NFS asks its server for the time */
    file = openat(fd, DT_CKPT_LOCK, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && errno == ENOENT)
        return DT_OK;
    if (file < 0 || fstat(file, &s->sb) != 0 || !S_ISREG(s->sb.st_mode)) {
        if (file >= 0)
            close(file);
        return dt_error_at(
            err, DT_ERR_INPUT, dir, 0, 0,
            "%s/" DT_CKPT_LOCK
            " should be the lock of a training, but is not a readable regular file; move it away",
            dir);
    }
    close(file);
    n = dt_ckpt_slurp(fd, DT_CKPT_LOCK, text, TEXT_MAX);
    s->there = n >= 0;
    if (s->there && !begins_as(text, n, FORMAT))
        return dt_error_at(err, DT_ERR_INPUT, dir, 0, 0,
                           "%s/" DT_CKPT_LOCK
                           " should be the lock of a training, but is something else; move it away",
                           dir);
    s->ours_to_read = n > 0 && parse(text, (size_t)n, FORMAT, &s->h);
    return DT_OK;
}

static bool same(const struct seen *a, const struct seen *b)
{
    return a->sb.st_ino == b->sb.st_ino && strcmp(a->h.nonce, b->h.nonce) == 0;
}

/* ---- taking it ---- */

struct take {
    struct dt_ckpt_lock *l;
    const struct dt_ckpt_lock_options *o;
    int fd, file;       /* the folder, and our own lock under another name */
    char own[PATH_MAX]; /* that name */
    char *text;         /* what it says */
    struct seen first;  /* a lock of another host, as it was when we began to wait */
    uint64_t began_ns;
};

static enum dt_status make_own(struct take *t, struct dt_error *err)
{
    char path[PATH_MAX];
    enum dt_status st;
    size_t n;

    DT_TRY(dt_ckpt_path(path, sizeof(path), t->l->dir, DT_CKPT_LOCK, err));
    if (!t->text)
        DT_TRY(write_text(&t->l->own, FORMAT, err, &t->text));
    st = dt_file_temp(path, err, t->own, sizeof(t->own), &t->file);
    n = strlen(t->text);
    if (st == DT_OK && (write(t->file, t->text, n) != (ssize_t)n || fsync(t->file) != 0)) {
        st = dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot write: %s", strerror(errno));
        close(t->file);
        t->file = -1;
        unlink(t->own);
    }
    return st;
}

static void drop_own(struct take *t)
{
    if (t->file >= 0) {
        close(t->file);
        unlink(t->own);
    }
    t->file = -1;
}

/* Without hard links; what is written a moment later is a lock of nobody until then. */
static bool create_in_place(struct take *t)
{
    int file =
        openat(t->fd, DT_CKPT_LOCK, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool good;
    int why;

    if (file < 0)
        return false;
    good = write(file, t->text, strlen(t->text)) == (ssize_t)strlen(t->text) && fsync(file) == 0;
    why = errno;
    close(file);
    if (!good)
        unlinkat(t->fd, DT_CKPT_LOCK, 0);
    errno = why;
    return good;
}

/* True: it is ours.  Errno says why not. */
static bool put_in_place(struct take *t)
{
    struct stat sb;

    if (linkat(AT_FDCWD, t->own, t->fd, DT_CKPT_LOCK, 0) == 0)
        return true;
    if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK)
        return create_in_place(t);
    if (errno == EEXIST) {
        /* an answer of NFS that was lost: the link is there although it says otherwise */
        if (fstat(t->file, &sb) == 0 && sb.st_nlink == 2)
            return true;
        errno = EEXIST;
    }
    return false;
}

static double seconds(const struct timespec *a)
{
    return (double)a->tv_sec + 1e-9 * (double)a->tv_nsec;
}

/* How long ago a lock was renewed, by the clock that renewed it: the file system's. */
static double age_s(const struct take *t, const struct seen *s)
{
    struct stat sb;

    if (futimens(t->file, NULL) != 0 || fstat(t->file, &sb) != 0)
        return 0;
    return seconds(&sb.st_mtim) - seconds(&s->sb.st_mtim);
}

static void pause_s(double s)
{
    struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)(1e9 * (s - floor(s)))};

    nanosleep(&t, NULL);
}

/* ---- breaking a stale one ---- */

/* One process breaks at a time; a guard of one that died while it did is soon passed over. */
static bool guard(const struct take *t)
{
    int file = openat(t->fd, GUARD, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    struct seen s = {.there = true};

    if (file >= 0) {
        close(file);
        return true;
    }
    if (fstatat(t->fd, GUARD, &s.sb, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.sb.st_mode) &&
        s.sb.st_size == 0 && age_s(t, &s) > GUARD_S)
        unlinkat(t->fd, GUARD, 0);
    pause_s(0.01);
    return false;
}

static void put_back(int fd, const char *name)
{
    struct stat sb;

    if (linkat(fd, name, fd, DT_CKPT_LOCK, 0) == 0 || errno == EEXIST)
        unlinkat(fd, name, 0);
    else if (fstatat(fd, DT_CKPT_LOCK, &sb, AT_SYMLINK_NOFOLLOW) != 0) /* without hard links */
        (void)!renameat(fd, name, fd, DT_CKPT_LOCK);
}

/* Renamed first and looked at again: what comes away is the one that was judged, or goes back. */
static void move_away(const struct take *t, const struct seen *judged)
{
    char name[64], text[TEXT_MAX + 1];
    struct seen now;
    long n;

    snprintf(name, sizeof(name), DT_CKPT_LOCK ".tmp.%ld.%" PRIu64, (long)getpid(),
             dt_ckpt_random() >> 16);
    if (look(t->l->dir, t->fd, NULL, &now) != DT_OK || !now.there || !same(&now, judged) ||
        renameat(t->fd, DT_CKPT_LOCK, t->fd, name) != 0)
        return;
    memset(&now, 0, sizeof(now));
    n = dt_ckpt_slurp(t->fd, name, text, TEXT_MAX);
    now.ours_to_read = n > 0 && parse(text, (size_t)n, FORMAT, &now.h);
    if (fstatat(t->fd, name, &now.sb, AT_SYMLINK_NOFOLLOW) == 0 && !same(&now, judged))
        put_back(t->fd, name);
    else
        unlinkat(t->fd, name, 0);
}

static void break_lock(const struct take *t, const struct seen *judged)
{
    if (!guard(t))
        return;
    move_away(t, judged);
    unlinkat(t->fd, GUARD, 0);
}

/* ---- who has it ---- */

static enum dt_status refuse(const struct take *t, const struct seen *s, struct dt_error *err)
{
    const struct holder *h = &s->h;
    const char *dir = t->l->dir;

    if (!s->ours_to_read)
        return dt_error_at(
            err, DT_ERR_INPUT, dir, 0, 0,
            "another training uses this folder: its lock was renewed %.0f s ago, but does not say "
            "by which process; wait for it or, if there certainly is none, remove %s/" DT_CKPT_LOCK,
            fmax(0, age_s(t, s)), dir);
    return dt_error_at(err, DT_ERR_INPUT, dir, 0, 0,
                       "another training uses this folder: process %ld on %s, run %s, since %s "
                       "(lock renewed %.0f s ago); wait for it or stop it, or, when it is certain "
                       "that it is gone, remove %s/" DT_CKPT_LOCK,
                       h->process.pid, h->process.host, h->run_id[0] ? h->run_id : "not known yet",
                       h->since, fmax(0, age_s(t, s)), dir);
}

/* Somebody has it.  DT_OK: try again. */
static enum dt_status judge(struct take *t, const struct seen *s, struct dt_error *err)
{
    enum dt_ckpt_life life = s->ours_to_read ? dt_ckpt_lives(&s->h.process) : DT_CKPT_ELSEWHERE;
    double waited_s = 1e-9 * (double)(dt_clock_ns() - t->began_ns);
    bool own_run = t->o->run_id && strcmp(t->o->run_id, s->h.run_id) == 0;

    if (life == DT_CKPT_DEAD || (life == DT_CKPT_ELSEWHERE && age_s(t, s) >= t->l->stale_s)) {
        break_lock(t, s);
        return DT_OK;
    }
    if (t->o->stop && *t->o->stop)
        return refuse(t, s, err);
    if (life == DT_CKPT_LIVES) {
        if (!own_run || waited_s >= ORPHAN_WAIT_S)
            return refuse(t, s, err);
    } else if (!t->first.there || !same(&t->first, s)) {
        t->first = *s;
        if (s->ours_to_read)
            dt_warn(t->o->warn,
                    "%s: process %ld on %s uses this folder; waiting to see whether it is still "
                    "running, at most %.0f s",
                    t->l->dir, s->h.process.pid, s->h.process.host[0] ? s->h.process.host : "?",
                    t->l->stale_s);
    } else if (s->sb.st_mtim.tv_sec != t->first.sb.st_mtim.tv_sec ||
               s->sb.st_mtim.tv_nsec != t->first.sb.st_mtim.tv_nsec) {
        return refuse(t, s, err); /* renewed meanwhile */
    }
    pause_s(t->l->stale_s / (RENEWALS * 20));
    return DT_OK;
}

static enum dt_status take(struct take *t, struct dt_error *err)
{
    for (;;) {
        struct seen s;

        if (put_in_place(t))
            return DT_OK;
        if (errno == ENOENT) { /* somebody took it for a rest of the dead */
            drop_own(t);
            DT_TRY(make_own(t, err));
            continue;
        }
        if (errno != EEXIST)
            return dt_error_at(err, DT_ERR_IO, t->l->dir, 0, 0, "cannot make the lock: %s",
                               strerror(errno));
        DT_TRY(look(t->l->dir, t->fd, err, &s));
        if (s.there)
            DT_TRY(judge(t, &s, err));
    }
}

static enum dt_status take_folder(struct dt_ckpt_lock *l, const struct dt_ckpt_lock_options *o,
                                  struct dt_error *err)
{
    struct take t = {.l = l, .o = o, .file = -1, .began_ns = dt_clock_ns()};
    enum dt_status st;

    t.fd = open(l->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t.fd < 0)
        return dt_error_at(err, DT_ERR_IO, l->dir, 0, 0, "cannot open: %s", strerror(errno));
    st = make_own(&t, err);
    if (st == DT_OK)
        st = take(&t, err);
    drop_own(&t);
    dt_free(t.text);
    close(t.fd);
    return st;
}

/* ---- keeping it ---- */

/* 1: ours, 0: not there, -1: somebody else's. */
static int mine(const struct dt_ckpt_lock *l, bool renew)
{
    char path[PATH_MAX], text[TEXT_MAX + 1];
    struct holder h;
    int got = -1, file;
    ssize_t n;

    if (dt_ckpt_path(path, sizeof(path), l->dir, DT_CKPT_LOCK, NULL) != DT_OK)
        return -1;
    file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT ? 0 : -1;
    n = read(file, text, TEXT_MAX);
    if (n > 0 && parse(text, (size_t)n, FORMAT, &h) && strcmp(h.nonce, l->own.nonce) == 0)
        got = 1;
    if (got == 1 && renew)
        futimens(file, NULL); /* the server's clock on NFS */
    close(file);
    return got;
}

static void *renewer(void *arg)
{
    struct dt_ckpt_lock *l = arg;

    pthread_mutex_lock(&l->mutex);
    while (!l->stop) {
        struct timespec until = dt_clock_in((int64_t)(1e9 * l->stale_s / RENEWALS));

        pthread_cond_timedwait(&l->wake, &l->mutex, &until);
        if (!l->stop)
            mine(l, true);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static void start_renewing(struct dt_ckpt_lock *l)
{
    sigset_t all, was;

    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &was);
    l->threaded = pthread_create(&l->thread, NULL, renewer, l) == 0;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
}

static double stale_s(void)
{
    const char *text = getenv("DISTTRAIN_LOCK_STALE_S");
    double s = text ? strtod(text, NULL) : 0;

    return s >= 0.5 && s <= 1e6 ? s : STALE_S;
}

static void free_lock(struct dt_ckpt_lock *l)
{
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->wake);
    dt_free(l->dir);
    dt_free(l);
}

enum dt_status dt_ckpt_lock(const char *dir, const struct dt_ckpt_lock_options *o,
                            struct dt_error *err, struct dt_ckpt_lock **out)
{
    struct dt_ckpt_lock *l;
    pthread_condattr_t attr;
    enum dt_status st;

    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot create: %s", strerror(errno));
    l = dt_calloc(1, sizeof(*l));
    if (!l || !(l->dir = dt_strdup(dir))) {
        dt_free(l);
        return dt_error_nomem(err, "the lock of a checkpoint folder");
    }
    pthread_mutex_init(&l->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* renewed whatever the wall's clock does */
    pthread_cond_init(&l->wake, &attr);
    pthread_condattr_destroy(&attr);
    l->stale_s = stale_s();
    dt_ckpt_this_process(&l->own.process);
    dt_clock_utc(l->own.since, sizeof(l->own.since));
    snprintf(l->own.nonce, sizeof(l->own.nonce), "n%016" PRIx64, dt_ckpt_random());
    snprintf(l->own.run_id, sizeof(l->own.run_id), "%s", o->run_id ? o->run_id : "");
    st = take_folder(l, o, err);
    if (st != DT_OK) {
        free_lock(l);
        return st;
    }
    start_renewing(l);
    *out = l;
    return DT_OK;
}

enum dt_status dt_ckpt_lock_check(struct dt_ckpt_lock *l, struct dt_error *err)
{
    static const struct dt_ckpt_lock_options at_once = {.run_id = NULL};
    int got = mine(l, true);

    if (got == 0 && (mkdir(l->dir, 0777) == 0 || errno == EEXIST))
        return take_folder(l, &at_once, err);
    if (got == 1)
        return DT_OK;
    return dt_error_at(err, DT_ERR_INPUT, l->dir, 0, 0,
                       "another training has taken this folder meanwhile; nothing more is saved "
                       "there");
}

static enum dt_status write_file(const struct dt_ckpt_lock *l, const char *name, const char *format,
                                 struct dt_error *err)
{
    char path[PATH_MAX], *text;
    enum dt_status st;

    DT_TRY(dt_ckpt_path(path, sizeof(path), l->dir, name, err));
    DT_TRY(write_text(&l->own, format, err, &text));
    st = dt_file_write(path, text, strlen(text), err);
    dt_free(text);
    return st;
}

enum dt_status dt_ckpt_lock_run(struct dt_ckpt_lock *l, const char *run_id, struct dt_error *err)
{
    char path[PATH_MAX], text[TEXT_MAX + 1];
    enum dt_status st;
    long n;

    DT_TRY(dt_ckpt_lock_check(l, err));
    DT_TRY(dt_ckpt_path(path, sizeof(path), l->dir, DT_CKPT_RUN, err));
    n = dt_ckpt_slurp(AT_FDCWD, path, text, TEXT_MAX);
    if (n > 0 && !begins_as(text, n, RUN_FORMAT))
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "this file should say which run the folder belongs to, but is something "
                           "else; move it away");
    pthread_mutex_lock(&l->mutex); /* the other thread reads what is replaced */
    snprintf(l->own.run_id, sizeof(l->own.run_id), "%s", run_id);
    st = write_file(l, DT_CKPT_LOCK, FORMAT, err);
    if (st == DT_OK)
        st = write_file(l, DT_CKPT_RUN, RUN_FORMAT, err);
    pthread_mutex_unlock(&l->mutex);
    return st;
}

bool dt_ckpt_last_run(const char *dir, char run_id[DT_RUN_ID_SIZE], char since[32])
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char text[TEXT_MAX + 1];
    struct holder h;
    bool got = false;
    long n;

    if (fd < 0)
        return false;
    n = dt_ckpt_slurp(fd, DT_CKPT_RUN, text, TEXT_MAX);
    if (n > 0 && parse(text, (size_t)n, RUN_FORMAT, &h) && dt_ckpt_run_id_valid(h.run_id)) {
        memcpy(run_id, h.run_id, sizeof(h.run_id));
        memcpy(since, h.since, sizeof(h.since));
        got = true;
    }
    close(fd);
    return got;
}

void dt_ckpt_unlock(struct dt_ckpt_lock *l)
{
    char path[PATH_MAX];

    if (!l)
        return;
    if (l->threaded) {
        pthread_mutex_lock(&l->mutex);
        l->stop = true;
        pthread_cond_signal(&l->wake);
        pthread_mutex_unlock(&l->mutex);
        pthread_join(l->thread, NULL);
    }
    if (mine(l, false) == 1 &&
        dt_ckpt_path(path, sizeof(path), l->dir, DT_CKPT_LOCK, NULL) == DT_OK)
        unlink(path);
    free_lock(l);
}
