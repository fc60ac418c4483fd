/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "report/run_log.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/number.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { LIMIT_BYTES = 1 << 30, DEPTH_MAX = 32, KEY_SIZE = 32, WORD_SIZE = 16, ID_SIZE = 128 };

#define NAME(name) #name,
const char *const dt_run_log_names[] = {DT_RUN_LOG_VALUES(NAME) NULL};
#undef NAME

/* ---- one line: an object of JSON, of which only what is one of ours is kept ---- */

struct cursor {
    const char *p, *end;
};

static void blanks(struct cursor *c)
{
    while (c->p < c->end && isspace((unsigned char)*c->p))
        c->p++;
}

static bool take(struct cursor *c, char what)
{
    blanks(c);
    if (c->p == c->end || *c->p != what)
        return false;
    c->p++;
    return true;
}

/* Without its escapes' meaning: our names and words have none.  What does not go in is cut. */
static bool string(struct cursor *c, char *out, size_t size)
{
    size_t n = 0;

    if (!take(c, '"'))
        return false;
    for (; c->p < c->end && *c->p != '"'; c->p++) {
        if (*c->p == '\\' && ++c->p == c->end)
            return false;
        if (n + 1 < size)
            out[n++] = *c->p;
    }
    if (size > 0)
        out[n] = '\0';
    return take(c, '"');
}

static bool literal(struct cursor *c, const char *word)
{
    size_t n = strlen(word);

    blanks(c);
    if ((size_t)(c->end - c->p) < n || strncmp(c->p, word, n) != 0)
        return false;
    c->p += n;
    return true;
}

/* Any value, passed over. */
static bool skip(struct cursor *c)
{
    char open[DEPTH_MAX];
    int depth = 0;
    double v;
    size_t n;

    do {
        blanks(c);
        if (c->p == c->end)
            return false;
        if (*c->p == '{' || *c->p == '[') {
            if (depth == DEPTH_MAX)
                return false;
            open[depth++] = *c->p++ == '{' ? '}' : ']';
        } else if (*c->p == '"') {
            if (!string(c, NULL, 0))
                return false;
        } else if (depth > 0 && *c->p == open[depth - 1]) {
            depth--;
            c->p++;
        } else if (depth > 0 && (*c->p == ',' || *c->p == ':')) {
            c->p++;
        } else if (!literal(c, "true") && !literal(c, "false") && !literal(c, "null")) {
            n = dt_number_scan(c->p, &v);
            if (n == 0 || n > (size_t)(c->end - c->p))
                return false;
            c->p += n;
        }
    } while (depth > 0);
    return true;
}

static bool number(struct cursor *c, double *out)
{
    size_t n;

    *out = NAN;
    if (literal(c, "null"))
        return true;
    blanks(c);
    n = dt_number_scan(c->p, out);
    if (n == 0 || n > (size_t)(c->end - c->p) || !isfinite(*out))
        return false;
    c->p += n;
    return true;
}

struct line {
    struct dt_run_log_step step;
    struct dt_run_log_event event;
    bool has_step, has_event;
};

static uint64_t run_of(const char *id)
{
    return id[0] ? dt_hash_text(DT_HASH_START, id) : 0;
}

static bool member(struct cursor *c, const char *key, struct line *l)
{
    char id[ID_SIZE];
    double v;

    if (strcmp(key, "step") == 0) {
        if (!number(c, &v) || !(v >= 0) || v > 0x1p53)
            return false;
        l->step.step = l->event.step = (int64_t)v;
        l->has_step = true;
        return true;
    }
    if (strcmp(key, "run_id") == 0) {
        if (!string(c, id, sizeof(id)))
            return false;
        l->step.run = run_of(id);
        return true;
    }
    if (strcmp(key, "event") == 0) {
        l->has_event = true;
        return string(c, l->event.event, sizeof(l->event.event));
    }
    if (strcmp(key, "action") == 0)
        return string(c, l->event.action, sizeof(l->event.action));
    for (int k = 0; k < DT_RUN_LOG_N; k++)
        if (strcmp(key, dt_run_log_names[k]) == 0)
            return number(c, &l->step.v[k]);
    return skip(c);
}

static bool object(struct cursor *c, struct line *l)
{
    char key[KEY_SIZE];

    memset(l, 0, sizeof(*l));
    for (int k = 0; k < DT_RUN_LOG_N; k++)
        l->step.v[k] = NAN;
    if (!take(c, '{'))
        return false;
    do {
        if (!string(c, key, sizeof(key)) || !take(c, ':') || !member(c, key, l))
            return false;
    } while (take(c, ','));
    if (!take(c, '}'))
        return false;
    blanks(c);
    return c->p == c->end && l->has_step;
}

/* ---- all of them ---- */

static enum dt_status keep(struct dt_run_log *log, const struct line *l, struct dt_error *err)
{
    if (l->has_event) {
        if (dt_grow((void **)&log->event, &log->cap_events, (size_t)log->n_events + 1,
                    sizeof(*log->event)))
            return dt_error_nomem(err, "a log");
        log->event[log->n_events++] = l->event;
        return DT_OK;
    }
    if (dt_grow((void **)&log->step, &log->cap, (size_t)log->n + 1, sizeof(*log->step)))
        return dt_error_nomem(err, "a log");
    log->step[log->n++] = l->step;
    return DT_OK;
}

enum dt_status dt_run_log_parse(const char *name, const char *text, size_t len,
                                struct dt_error *err, struct dt_run_log *out)
{
    struct dt_run_log log = {0};
    enum dt_status st = DT_OK;
    const char *p = text, *end = text + len;

    for (int n = 1; p < end && st == DT_OK; n++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        struct cursor c = {p, stop ? stop : end};
        struct line l;

        blanks(&c);
        if (!stop) /* being written */
            break;
        if (c.p < c.end)
            st = object(&c, &l)
                     ? keep(&log, &l, err)
                     : dt_error_at(err, DT_ERR_INPUT, name, n, (int)(c.p - p) + 1,
                                   "not a line of metrics.jsonl: an object with \"step\" and "
                                   "numbers is expected");
        p = stop + 1;
    }
    if (st == DT_OK && log.n == 0)
        st = dt_error_at(err, DT_ERR_INPUT, name, 0, 0, "has no step of a training");
    if (st == DT_OK)
        *out = log;
    else
        dt_run_log_free(&log);
    return st;
}

enum dt_status dt_run_log_read(const char *path, struct dt_error *err, struct dt_run_log *out)
{
    char inside[4096], *text;
    enum dt_status st;
    struct stat sb;
    size_t len;

    if (stat(path, &sb) == 0 && S_ISDIR(sb.st_mode)) {
        if (snprintf(inside, sizeof(inside), "%s/metrics.jsonl", path) >= (int)sizeof(inside))
            return dt_error_set(err, DT_ERR_INPUT, "file name too long: %s", path);
        path = inside;
    }
    DT_TRY(dt_file_read(path, LIMIT_BYTES, err, &text, &len));
    st = dt_run_log_parse(path, text, len, err, out);
    dt_free(text);
    return st;
}

void dt_run_log_free(struct dt_run_log *l)
{
    dt_free(l->step);
    dt_free(l->event);
    memset(l, 0, sizeof(*l));
}

int64_t dt_run_log_select(struct dt_run_log *l, const char *run_id)
{
    uint64_t run = run_id ? run_of(run_id) : 0;
    int64_t n = 0, all = l->n;

    for (int64_t i = l->n; !run_id && run == 0 && i > 0; i--)
        run = l->step[i - 1].run;
    for (int64_t i = 0; i < all; i++)
        if (l->step[i].run == run || l->step[i].run == 0)
            l->step[n++] = l->step[i];
    l->n = n;
    return all - n;
}

/* What comes back to a step number begins anew there. */
void dt_run_log_settle(struct dt_run_log *l)
{
    int64_t n = 0;

    for (int64_t i = 0; i < l->n; i++) {
        while (n > 0 && l->step[n - 1].step >= l->step[i].step)
            n--;
        l->step[n++] = l->step[i];
    }
    l->n = n;
}
