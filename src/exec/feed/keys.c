/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "exec/feed/net.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 1 << 16 };

/* ---- addresses ---- */

static bool is_loopback(const char *host, size_t n)
{
    static const char *const own[] = {"localhost", "[::1]", "::1"};

    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strlen(own[i]) == n && memcmp(own[i], host, n) == 0)
            return true;
    if (n < 9 || memcmp(host, "127.", 4) != 0)
        return false;
    return strspn(host, "0123456789.") >= n; /* numbers only: a name may lead anywhere */
}

enum dt_status dt_feed_address(const char *text, struct dt_error *err,
                               char out[DT_FEED_ADDRESS_SIZE], bool *loopback)
{
    const char *host = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text;
    const char *colon = strrchr(host, ':');
    int64_t port = -1;

    if (!colon || colon == host || strlen(host) > DT_FEED_ADDRESS_SIZE - 16 ||
        strpbrk(host, "/ \t\n;") || !dt_number_int(colon + 1, &port) || port < 0 || port > 65535)
        return dt_error_set(err, DT_ERR_INPUT,
                            "\"%.200s\" is no address; one is HOST:PORT, such as tcp://cpu7:7070",
                            text);
    snprintf(out, DT_FEED_ADDRESS_SIZE, "tcp://%s", host);
    *loopback = is_loopback(host, (size_t)(colon - host));
    return DT_OK;
}

/* ---- key files ---- */

static enum dt_status add_line(const char *path, int number, const char *line,
                               struct dt_feed_keys *k, struct dt_error *err)
{
    char word[16] = "", key[64] = "", more[2] = "";
    int n = sscanf(line, "%15s %63s %1s", word, key, more);

    if (n < 1 || word[0] == '#')
        return DT_OK;
    if (n != 2 || strlen(key) != DT_FEED_KEY_SIZE - 1)
        return dt_error_at(err, DT_ERR_INPUT, path, number, 0,
                           "a line is \"public\", \"secret\" or \"peer\" and a key of %d letters",
                           DT_FEED_KEY_SIZE - 1);
    if (strcmp(word, "public") == 0) {
        memcpy(k->own, key, DT_FEED_KEY_SIZE);
    } else if (strcmp(word, "secret") == 0) {
        memcpy(k->secret, key, DT_FEED_KEY_SIZE);
    } else if (strcmp(word, "peer") == 0 && k->n_peers < DT_FEED_PEERS_MAX) {
        memcpy(k->peer[k->n_peers++], key, DT_FEED_KEY_SIZE);
    } else {
        return dt_error_at(err, DT_ERR_INPUT, path, number, 0,
                           "\"%s\" is not \"public\", \"secret\" or one of at most %d lines "
                           "\"peer\"",
                           word, DT_FEED_PEERS_MAX);
    }
    return DT_OK;
}

static enum dt_status read_lines(const char *path, char *text, struct dt_feed_keys *k,
                                 struct dt_error *err)
{
    int number = 1;

    for (char *line = text; line && *line; number++) {
        char *next = strchr(line, '\n');

        if (next)
            *next++ = '\0';
        DT_TRY(add_line(path, number, line, k, err));
        line = next;
    }
    if (!k->own[0] || !k->secret[0] || k->n_peers < 1)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "lines \"public\", \"secret\" and \"peer\" are needed; "
                           "\"disttrain preprocess --keygen\" makes such files");
    return DT_OK;
}

enum dt_status dt_feed_keys_read(const char *path, struct dt_error *err, struct dt_feed_keys *out)
{
    struct dt_feed_keys k = {.n_peers = 0};
    struct stat s;
    size_t n;
    char *text;
    enum dt_status st;

    DT_TRY(dt_file_read(path, FILE_BYTES_MAX, err, &text, &n));
    st = read_lines(path, text, &k, err);
    memset(text, 0, n);
    dt_free(text);
    if (st == DT_OK && stat(path, &s) == 0 && s.st_mode & (S_IRGRP | S_IROTH))
        st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                         "others can read this file of secret keys; chmod 600 makes it yours");
    if (st == DT_OK)
        *out = k;
    return st;
}

static enum dt_status write_keys(const char *path, const char *who, const char *own,
                                 const char *secret, const char *peer, struct dt_error *err)
{
    char text[512];
    int n =
        snprintf(text, sizeof text, "# keys of disttrain, for %s\npublic %s\nsecret %s\npeer %s\n",
                 who, own, secret, peer);
    mode_t before = umask(077);
    enum dt_status st = dt_file_write(path, text, (size_t)n, err);

    umask(before);
    memset(text, 0, sizeof text);
    return st;
}

enum dt_status dt_feed_keys_make(const char *path, struct dt_error *err)
{
    char own[2][DT_FEED_KEY_SIZE], secret[2][DT_FEED_KEY_SIZE], train[4096];

    if (snprintf(train, sizeof train, "%s.train", path) >= (int)sizeof train)
        return dt_error_set(err, DT_ERR_INPUT, "that name is too long");
    if (access(path, F_OK) == 0 || access(train, F_OK) == 0)
        return dt_error_set(err, DT_ERR_INPUT, "%s or %s is there already; keys are not replaced",
                            path, train);
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_feed_net_keypair(err, own[i], secret[i]));
    DT_TRY(write_keys(path, "producers (disttrain preprocess --keys)", own[0], secret[0], own[1],
                      err));
    return write_keys(train, "training (run.data_keys)", own[1], secret[1], own[0], err);
}
