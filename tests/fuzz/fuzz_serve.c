/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Requests to disttrain serve: lines METHOD, TARGET, HOST, ORIGIN, SITE, and the rest is the body ("-" = the header is
 * absent).  Nothing is admitted without token and name; forms keep their limits; what is allowed names no file. */
#include "base/mem.h"
#include "core/job/job.h"
#include "serve/allowed.h"
#include "serve/request.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)
#define TOKEN "0123456789abcdef0123456789abcdef"

/* The names of keys that name files, each where it does ("" = at the root); written down here once more. */
static bool opens(const char *section, const char *key)
{
    static const char *const names[][2] = {
        {"model", "hf"},      {"model", "config"}, {"model", "modules"}, {"samples", "csv"},
        {"run", "data"},      {"run", "dir"},      {"run", "tokenizer"}, {"run", "eval_data"},
        {"run", "init_from"}, {"run", "log_dir"},  {"", "plan"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i][0], section) == 0 && strcmp(names[i][1], key) == 0)
            return true;
    return false;
}

/* A shipped one by a plain name, or a file. */
static bool names_preset(const char *section, const char *key)
{
    const char *what = strcmp(key, "preset") == 0 ? section : section[0] ? "" : key;

    return strcmp(what, "model") == 0 || strcmp(what, "cluster") == 0 ||
           strcmp(what, "samples") == 0 || strcmp(what, "profile") == 0;
}

/* `section`: the key at the root that it is in, "" of the root's own. */
static void names_no_file(struct dt_node n, const char *section, const char *key)
{
    if (dt_node_is_map(n))
        for (size_t i = 0; i < dt_map_size(n); i++) {
            struct dt_node child;
            const char *name;

            dt_map_at(n, i, &name, &child);
            names_no_file(child, section[0] ? section : key, name);
        }
    for (size_t i = 0; dt_node_is_seq(n) && i < dt_seq_size(n); i++)
        names_no_file(dt_seq_at(n, i), section, key);
    if (!dt_node_is_scalar(n) || dt_node_is_null(n))
        return;
    REQUIRE(!opens(section, key));
    if (names_preset(section, key))
        REQUIRE(!strpbrk(dt_node_text(n), "/.~"));
}

static void check_override(const char *override)
{
    struct dt_error err = {0};
    struct dt_doc *doc = NULL;

    if (dt_serve_allowed(dt_job_keys, override, &err) != DT_OK) {
        REQUIRE(err.message[0]);
        return;
    }
    /* as the job would get it */
    REQUIRE(dt_doc_parse("x", "{}", 2, &err, &doc) == DT_OK);
    if (dt_doc_override(doc, override, &err) == DT_OK)
        names_no_file(dt_doc_root(doc), "", "");
    dt_doc_free(doc);
}

static void check_form(const char *text, size_t len)
{
    struct dt_error err = {0};
    struct dt_serve_form f;

    if (dt_serve_form_read(text, len, &err, &f) != DT_OK) {
        REQUIRE(err.message[0]);
        return;
    }
    REQUIRE(f.n_keys <= DT_SERVE_KEYS_MAX && (f.side == 0 || f.side == 1) && f.turn >= 0);
    for (int i = 0; i < f.n_keys; i++) {
        for (const char *p = f.key[i]; *p; p++)
            REQUIRE((unsigned char)*p >= ' ');
        check_override(f.key[i]);
    }
    dt_serve_form_free(&f);
}

static char *next_line(char **rest)
{
    char *line = *rest, *end = strchr(line, '\n');

    *rest = end ? end + 1 : line + strlen(line);
    if (end)
        *end = '\0';
    return strcmp(line, "-") == 0 ? NULL : line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct dt_serve_gate gate = {TOKEN, NULL};
    char *text = dt_malloc(size + 1), *rest = text;
    struct dt_error err = {0};
    enum dt_serve_path path = DT_SERVE_PATH_N;
    struct dt_serve_head head;

    memcpy(text, data, size);
    text[size] = '\0';
    head.method = next_line(&rest);
    head.target = next_line(&rest);
    head.host = next_line(&rest);
    head.origin = next_line(&rest);
    head.site = next_line(&rest);
    if (head.method && head.target) {
        int http = dt_serve_admit(&gate, &head, &err, &path);

        REQUIRE((http == 0) == (path != DT_SERVE_PATH_N));
        REQUIRE(http == 0 || http == 403 || http == 404 || http == 405);
        REQUIRE(http == 0 ? strncmp(head.target, "/" TOKEN "/", 34) == 0 && head.host
                          : err.message[0] != '\0');
        if (http == 0 && head.origin)
            REQUIRE(strlen(head.origin) == strlen(head.host) + 7);
        check_form(dt_serve_query(head.target), strlen(dt_serve_query(head.target)));
    }
    check_form(rest, strlen(rest));
    dt_free(text);
    return 0;
}
