/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "serve/request.h"

#include "base/mem.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- the gate ---- */

enum dt_status dt_serve_token(struct dt_error *err, char token[DT_SERVE_TOKEN_SIZE])
{
    unsigned char bits[(DT_SERVE_TOKEN_SIZE - 1) / 2];

    if (getentropy(bits, sizeof(bits)) != 0)
        return dt_error_set(err, DT_ERR_IO, "no random bits for the token: %s", strerror(errno));
    for (size_t i = 0; i < sizeof(bits); i++)
        snprintf(token + 2 * i, 3, "%02x", bits[i]);
    return DT_OK;
}

/* Every character is looked at whatever the others are. */
static bool same_token(const char *token, const char *given, size_t len)
{
    volatile unsigned char differs = len != DT_SERVE_TOKEN_SIZE - 1;

    for (size_t i = 0; i < DT_SERVE_TOKEN_SIZE - 1; i++)
        differs |= (unsigned char)(token[i] ^ (i < len ? given[i] : '\0'));
    return differs == 0;
}

/* An address in figures cannot be a name that somebody else's DNS has led here. */
static bool is_address(const char *host, size_t len)
{
    unsigned char bytes[sizeof(struct in6_addr)];
    char text[INET6_ADDRSTRLEN];
    bool v6 = len >= 2 && host[0] == '[' && host[len - 1] == ']';

    if (v6) {
        host++;
        len -= 2;
    }
    if (len >= sizeof(text))
        return false;
    memcpy(text, host, len);
    text[len] = '\0';
    return inet_pton(v6 ? AF_INET6 : AF_INET, text, bytes) == 1;
}

static bool is_word(const char *s, size_t len, const char *word)
{
    return strlen(word) == len && strncasecmp(s, word, len) == 0;
}

/* "HOST" or "HOST:PORT"; any port, for a tunnel may have another. */
static bool may_be_called(const struct dt_serve_gate *gate, const char *host)
{
    const char *end = strrchr(host, ':'), *bracket = strrchr(host, ']');
    size_t len;

    if (end && bracket && end < bracket) /* a colon of the address */
        end = NULL;
    if (end && end[1 + strspn(end + 1, "0123456789")] != '\0')
        return false;
    len = end ? (size_t)(end - host) : strlen(host);
    if (is_word(host, len, "localhost") || is_word(host, len, "127.0.0.1") ||
        is_word(host, len, "[::1]"))
        return true;
    return gate->host && (is_address(host, len) || is_word(host, len, gate->host));
}

/* A page of another site that asks through the user's browser. */
static bool is_foreign(const struct dt_serve_head *head)
{
    static const char scheme[] = "http://";

    if (head->site && strcmp(head->site, "same-origin") != 0 && strcmp(head->site, "none") != 0)
        return true;
    return head->origin && (strncmp(head->origin, scheme, sizeof(scheme) - 1) != 0 ||
                            strcasecmp(head->origin + sizeof(scheme) - 1, head->host) != 0);
}

static const struct {
    const char *name;
    bool post, asks;
} paths[DT_SERVE_PATH_N] = {
    [DT_SERVE_PAGE] = {"", false, false},
    [DT_SERVE_STYLE] = {"page.css", false, false},
    [DT_SERVE_SCRIPT] = {"page.js", false, false},
    [DT_SERVE_KEYS] = {"keys.json", false, false},
    [DT_SERVE_ANSWER] = {"answer", true, true},
    [DT_SERVE_RESULT] = {"simulate.json", false, true},
    [DT_SERVE_REPORT] = {"report.html", false, true},
    [DT_SERVE_PLAN] = {"plan.json", false, true},
};

bool dt_serve_path_asks(enum dt_serve_path path)
{
    return paths[path].asks;
}

static int refuse(struct dt_error *err, int status, const char *why)
{
    dt_error_set(err, DT_ERR_INPUT, "%s", why);
    return status;
}

int dt_serve_admit(const struct dt_serve_gate *gate, const struct dt_serve_head *head,
                   struct dt_error *err, enum dt_serve_path *path)
{
    const char *token, *name;
    size_t len;

    if (!head->host || !may_be_called(gate, head->host))
        return refuse(err, 403, "this server does not go by that name (header Host)");
    if (is_foreign(head))
        return refuse(err, 403, "another site may not ask (headers Origin, Sec-Fetch-Site)");
    if (head->target[0] != '/')
        return refuse(err, 403, "the path of an address begins with '/'");
    token = head->target + 1;
    len = strcspn(token, "/?");
    if (!same_token(gate->token, token, len))
        return refuse(err, 403,
                      "the address lacks the right token; open the one that disttrain serve "
                      "printed when it started");
    if (token[len] != '/')
        return refuse(err, 404, "the address ends in '/' behind the token");
    name = token + len + 1;
    len = strcspn(name, "?");
    for (int i = 0; i < DT_SERVE_PATH_N; i++) {
        if (strlen(paths[i].name) != len || strncmp(paths[i].name, name, len) != 0)
            continue;
        if (strcmp(head->method, paths[i].post ? "POST" : "GET") != 0)
            return refuse(err, 405, paths[i].post ? "only POST" : "only GET");
        *path = (enum dt_serve_path)i;
        return 0;
    }
    return refuse(err, 404, "there is no such page");
}

const char *dt_serve_query(const char *target)
{
    const char *mark = strchr(target, '?');

    return mark ? mark + 1 : "";
}

/* ---- forms ---- */

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes [*s, end) in place and ends it by a NUL; false if it is no such text. */
static bool decode(char *s, const char *end)
{
    char *out = s;

    for (; s < end; s++) {
        char c = *s;

        if (c == '+') {
            c = ' ';
        } else if (c == '%') {
            if (end - s < 3 || hex(s[1]) < 0 || hex(s[2]) < 0)
                return false;
            c = (char)(hex(s[1]) << 4 | hex(s[2]));
            s += 2;
        }
        if ((unsigned char)c < ' ' || c == 0x7f) /* no override has any */
            return false;
        *out++ = c;
    }
    *out = '\0';
    return true;
}

static bool read_number(const char *text, int base, uint64_t max, uint64_t *out)
{
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, base);
    if (errno || !isxdigit((unsigned char)*text) || *end || v > max)
        return false;
    *out = v;
    return true;
}

static enum dt_status read_field(struct dt_serve_form *f, const char *name, const char *value,
                                 struct dt_error *err)
{
    uint64_t v = 0;
    bool fine = true;

    if (strcmp(name, "set") == 0) {
        if (f->n_keys == DT_SERVE_KEYS_MAX)
            return dt_error_set(err, DT_ERR_INPUT, "more than %d keys are set", DT_SERVE_KEYS_MAX);
        f->key[f->n_keys++] = value;
    } else if (strcmp(name, "effort") == 0) {
        f->effort = strcmp(value, "quick") == 0 ? DT_SERVE_QUICK : DT_SERVE_NORMAL;
        fine = f->effort == DT_SERVE_QUICK || strcmp(value, "normal") == 0;
    } else if (strcmp(name, "side") == 0) {
        f->side = strcmp(value, "b") == 0;
        fine = f->side == 1 || strcmp(value, "a") == 0;
    } else if (strcmp(name, "client") == 0) {
        fine = read_number(value, 16, UINT64_MAX, &f->client);
    } else if (strcmp(name, "turn") == 0) {
        fine = read_number(value, 10, INT64_MAX, &v);
        f->turn = (int64_t)v;
    } else {
        return dt_error_set(err, DT_ERR_INPUT, "a form has no field \"%.40s\"", name);
    }
    return fine ? DT_OK
                : dt_error_set(err, DT_ERR_INPUT, "field %s of the form: not \"%.40s\"", name,
                               value);
}

/* One NAME=VALUE in [s, end). */
static enum dt_status read_pair(struct dt_serve_form *f, char *s, char *end, struct dt_error *err)
{
    char *equals = memchr(s, '=', (size_t)(end - s));

    if (!equals || !decode(s, equals) || !decode(equals + 1, end))
        return dt_error_set(err, DT_ERR_INPUT, "the form is not NAME=VALUE&..., URL-encoded");
    return read_field(f, s, equals + 1, err);
}

enum dt_status dt_serve_form_read(const char *text, size_t len, struct dt_error *err,
                                  struct dt_serve_form *out)
{
    struct dt_serve_form f = {.effort = DT_SERVE_NORMAL};
    enum dt_status st = DT_OK;

    if (len > DT_SERVE_FORM_MAX)
        return dt_error_set(err, DT_ERR_INPUT, "a form has at most %d bytes", DT_SERVE_FORM_MAX);
    f.text = dt_malloc(len + 1);
    if (!f.text)
        return dt_error_nomem(err, "a form");
    memcpy(f.text, text, len);
    f.text[len] = '\0';
    for (char *s = f.text, *end = f.text + len; st == DT_OK && s < end;) {
        char *next = memchr(s, '&', (size_t)(end - s));

        if (!next)
            next = end;
        st = read_pair(&f, s, next, err);
        s = next + 1;
    }
    if (st == DT_OK)
        *out = f;
    else
        dt_serve_form_free(&f);
    return st;
}

void dt_serve_form_free(struct dt_serve_form *f)
{
    dt_free(f->text);
    *f = (struct dt_serve_form){0};
}
