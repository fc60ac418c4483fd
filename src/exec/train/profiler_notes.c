/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/profiler_notes.h"

#include "base/mem.h"
#include "core/profile/profile_notes.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

struct known {
    int64_t library;
    char *device, *what; /* one piece of memory, of device */
    size_t bytes;
    unsigned char value[DT_PROFILE_NOTE_BYTES];
};

struct notes {
    struct dt_device_notes is;
    const char *path;
    const struct dt_warn *warn;
    pthread_mutex_t lock;          /* of what follows */
    struct dt_profile_notes *file; /* NULL: it is not there yet */
    struct known *known;
    size_t n, cap;
    bool told;
};

static struct known *look_up(const struct notes *s, const char *device, int64_t library,
                             const char *what)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->known[i].library == library && strcmp(s->known[i].what, what) == 0 &&
            strcmp(s->known[i].device, device) == 0)
            return &s->known[i];
    return NULL;
}

static bool remember(void *arg, const struct dt_profile_note *note)
{
    struct notes *s = arg;
    struct known *t = look_up(s, note->device, note->library, note->what);
    size_t n = strlen(note->device) + 1, m = strlen(note->what) + 1;
    char *text;

    if (!t) {
        if (dt_grow((void **)&s->known, &s->cap, s->n + 1, sizeof(*s->known)) != 0 ||
            !(text = dt_malloc(n + m)))
            return false;
        t = &s->known[s->n++];
        t->library = note->library;
        t->device = memcpy(text, note->device, n);
        t->what = memcpy(text + n, note->what, m);
    }
    t->bytes = note->bytes;
    memcpy(t->value, note->value, note->bytes);
    return true;
}

static bool find(void *arg, const char *device, int64_t library, const char *what, void *value,
                 size_t bytes)
{
    struct notes *s = arg;
    const struct known *t;

    pthread_mutex_lock(&s->lock);
    t = look_up(s, device, library, what);
    if (t && t->bytes == bytes)
        memcpy(value, t->value, bytes);
    else
        t = NULL;
    pthread_mutex_unlock(&s->lock);
    return t != NULL;
}

static void write_note(struct notes *s, const struct dt_profile_note *note)
{
    enum dt_status st = DT_OK;
    struct dt_error err;
    char text[2048];

    if (s->told)
        return;
    if (!s->file)
        st = dt_profile_notes_open(s->path, &err, &s->file);
    if (st == DT_OK)
        st = dt_profile_notes_write(s->file, note, &err);
    if (st == DT_OK)
        return;
    dt_error_format(&err, text, sizeof(text));
    dt_warn(s->warn, "%s; what is found for %s is not noted", text, note->device);
    s->told = true;
}

static void keep(void *arg, const char *device, int64_t library, const char *what,
                 const void *value, size_t bytes, double ns, double first_ns)
{
    const struct dt_profile_note note = {device, what, library, value, bytes, ns, first_ns};
    struct notes *s = arg;

    if (bytes == 0 || bytes >= DT_PROFILE_NOTE_BYTES || strlen(what) >= DT_PROFILE_NOTE_TEXT ||
        strlen(device) >= DT_PROFILE_NOTE_TEXT)
        return;
    pthread_mutex_lock(&s->lock);
    write_note(s, &note);
    if (s->is.at_once)
        (void)remember(s, &note); /* or it is looked for once more */
    pthread_mutex_unlock(&s->lock);
}

static void close_notes(void *arg)
{
    struct notes *s = arg;

    dt_profile_notes_close(s->file);
    for (size_t i = 0; i < s->n; i++)
        dt_free(s->known[i].device);
    dt_free(s->known);
    pthread_mutex_destroy(&s->lock);
    dt_free(s);
}

enum dt_status dt_profiler_notes_open(const char *path, bool at_once, const struct dt_warn *warn,
                                      struct dt_error *err, const struct dt_device_notes **out)
{
    struct notes *s = dt_calloc(1, sizeof(*s));
    enum dt_status st = DT_OK;

    if (!s)
        return dt_error_nomem(err, "notes of devices");
    pthread_mutex_init(&s->lock, NULL);
    s->is = (struct dt_device_notes){s, at_once, find, keep, close_notes};
    s->path = path;
    s->warn = warn;
    if (access(path, F_OK) == 0) {
        st = dt_profile_notes_open(path, err, &s->file);
        if (st == DT_OK)
            st = dt_profile_notes_read(s->file, remember, s, err);
    }
    if (st != DT_OK) {
        close_notes(s);
        return st;
    }
    *out = &s->is;
    return DT_OK;
}
