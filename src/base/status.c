/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/status.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int exit_code;
    const char *text;
} status_table[] = {
#define X(name, code, text) [DT_##name] = {code, text},
    DT_STATUS_LIST(X)
#undef X
};

#define STATUS_COUNT ((int)(sizeof(status_table) / sizeof(status_table[0])))

/* Would it change what a terminal does, or what is seen to stand where?  Control characters but
 * line ends and tabs, line separators, marks of writing direction. */
static bool misleads(const unsigned char *s, size_t len)
{
    if (len == 1)
        return (s[0] < ' ' && s[0] != '\n' && s[0] != '\t') || s[0] == 127;
    if (len == 2)
        return s[0] == 0xc2 && s[1] < 0xa0;
    return len == 3 && s[0] == 0xe2 &&
           ((s[1] == 0x80 && (s[2] == 0x8e || s[2] == 0x8f || (s[2] >= 0xa8 && s[2] <= 0xae))) ||
            (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9));
}

/* Messages quote what files hold, and are cut off at the end of their buffer: what is no plain
 * UTF-8 text becomes '?'. */
static void make_plain(char *s)
{
    size_t left = strlen(s), to = 0, len;

    for (size_t i = 0; left > 0; i += len, left -= len) {
        size_t ok = dt_utf8_length(s + i, left);

        len = ok ? ok : 1;
        if (ok && !misleads((const unsigned char *)s + i, ok)) {
            memmove(s + to, s + i, len);
            to += len;
        } else {
            s[to++] = '?';
        }
    }
    s[to] = '\0';
}

static enum dt_status fill(struct dt_error *err, enum dt_status status, const char *file, int line,
                           int col, const char *fmt, va_list ap)
{
    if (!err)
        return status;
    err->status = status;
    err->line = line;
    err->col = col;
    snprintf(err->file, sizeof(err->file), "%s", file ? file : "");
    vsnprintf(err->message, sizeof(err->message), fmt, ap);
    make_plain(err->message);
    return status;
}

enum dt_status dt_error_set(struct dt_error *err, enum dt_status status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill(err, status, NULL, 0, 0, fmt, ap);
    va_end(ap);
    return status;
}

enum dt_status dt_error_pass(struct dt_error *err, const struct dt_error *why)
{
    if (err)
        *err = *why;
    return why->status;
}

enum dt_status dt_error_at(struct dt_error *err, enum dt_status status, const char *file, int line,
                           int col, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill(err, status, file, line, col, fmt, ap);
    va_end(ap);
    return status;
}

enum dt_status dt_error_nomem(struct dt_error *err, const char *what)
{
    return dt_error_set(err, DT_ERR_NOMEM, "out of memory while allocating %s", what);
}

void dt_warn(const struct dt_warn *w, const char *fmt, ...)
{
    char line[4096];
    va_list ap;

    if (!w || !w->say)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    w->say(w->ctx, line);
}

int dt_status_exit_code(enum dt_status status)
{
    if ((int)status < 0 || (int)status >= STATUS_COUNT)
        return 1;
    return status_table[status].exit_code;
}

const char *dt_status_text(enum dt_status status)
{
    if ((int)status < 0 || (int)status >= STATUS_COUNT)
        return "unknown status";
    return status_table[status].text;
}

void dt_error_format(const struct dt_error *err, char *buf, unsigned long size)
{
    if (size == 0)
        return;
    if (err->file[0] == '\0')
        snprintf(buf, size, "%s", err->message);
    else if (err->line == 0)
        snprintf(buf, size, "%s: %s", err->file, err->message);
    else if (err->col == 0)
        snprintf(buf, size, "%s:%d: %s", err->file, err->line, err->message);
    else
        snprintf(buf, size, "%s:%d:%d: %s", err->file, err->line, err->col, err->message);
    make_plain(buf); /* the file's name may be anything */
}
