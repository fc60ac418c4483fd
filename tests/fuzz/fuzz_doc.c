/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Documents: any text is either refused with a message or becomes a tree that can be walked,
 * changed and written as JSON, which reads back as the same JSON. */
#include "base/doc.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

/* Calls every getter on every key; what they say is their business, that they return is ours. */
static void walk(struct dt_node n, unsigned *budget)
{
    static const char *const words[] = {"disttrain", "megatron-lm", "true", NULL};
    struct dt_error err;
    const char *file;
    int line, col;

    if (*budget == 0)
        return;
    --*budget;
    REQUIRE(dt_node_present(n));
    REQUIRE(dt_node_is_map(n) + dt_node_is_seq(n) + dt_node_is_scalar(n) == 1);
    dt_node_where(n, &file, &line, &col);
    REQUIRE(line >= 1 && col >= 1);
    for (size_t i = 0; i < dt_seq_size(n); i++)
        walk(dt_seq_at(n, i), budget);
    dt_map_check(n, "the map", words, &err);
    for (size_t i = 0; i < dt_map_size(n); i++) {
        struct dt_node v;
        const char *key;
        int64_t whole;
        double real;
        bool truth;
        char text[16];
        int word;

        dt_map_at(n, i, &key, &v);
        REQUIRE(dt_map_get(n, key).value == v.value);
        if (dt_get_int(n, key, -5, 8192, &whole, &err) == DT_OK)
            REQUIRE(whole >= -5 && whole <= 8192);
        if (dt_get_double(n, key, -1.5, 1e10, &real, &err) == DT_OK)
            REQUIRE(real >= -1.5 && real <= 1e10);
        if (dt_get_quantity(n, key, "bytes/s", 0, 1e18, &real, &err) == DT_OK)
            REQUIRE(real >= 0 && real <= 1e18);
        dt_get_bool(n, key, &truth, &err);
        dt_get_enum(n, key, words, &word, &err);
        if (dt_get_string(n, key, text, sizeof(text), &err) == DT_OK)
            REQUIRE(strlen(text) < sizeof(text));
        walk(v, budget);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_doc *doc, *again;
    struct dt_error err;
    char *json, *json_again, *assignment;
    unsigned budget = 10000;

    err.message[0] = '\0';
    if (dt_doc_parse("fuzz", (const char *)data, size, &err, &doc) != DT_OK) {
        REQUIRE(err.message[0] != '\0');
        return 0;
    }
    walk(dt_doc_root(doc), &budget);
    REQUIRE(dt_doc_to_json(doc, &err, &json) == DT_OK);
    REQUIRE(dt_doc_parse("json", json, strlen(json), &err, &again) == DT_OK);
    REQUIRE(dt_doc_to_json(again, &err, &json_again) == DT_OK);
    REQUIRE(strcmp(json, json_again) == 0);
    dt_free(json);
    dt_free(json_again);
    dt_doc_free(again);

    dt_doc_override(doc, "train.new.key=[1, {a: b}]", &err);
    assignment = dt_malloc(size + 1);
    if (assignment) { /* the input as an assignment */
        memcpy(assignment, data, size);
        assignment[size] = '\0';
        dt_doc_override(doc, assignment, &err);
        dt_free(assignment);
    }
    budget = 10000;
    walk(dt_doc_root(doc), &budget);
    dt_doc_free(doc);
    return 0;
}
