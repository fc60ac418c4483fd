/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Documents and JSON: values, positions, messages, limits, overrides, out of memory. */
#include "base/doc.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct dt_error err;

static struct dt_doc *parse(const char *text)
{
    struct dt_doc *doc;

    dt_assert_ok(dt_doc_parse("t.yaml", text, strlen(text), &err, &doc), err);
    return doc;
}

/* The text is refused at line:col with a message that holds `part`. */
static void refuse(const char *text, size_t len, int line, int col, const char *part)
{
    struct dt_doc *doc = (struct dt_doc *)&err;

    memset(&err, 0, sizeof(err));
    ck_assert_int_eq(dt_doc_parse("t.yaml", text, len, &err, &doc), DT_ERR_INPUT);
    ck_assert_ptr_eq(doc, (struct dt_doc *)&err); /* outputs only on success */
    ck_assert_str_eq(err.file, "t.yaml");
    dt_assert_has(err.message, part);
    ck_assert_msg(err.line == line && err.col == col, "%s: at %d:%d, not %d:%d", text, err.line,
                  err.col, line, col);
}

static void assert_json(const struct dt_doc *doc, const char *expected)
{
    char *json, *p, *q;

    dt_assert_ok(dt_doc_to_json(doc, &err, &json), err);
    for (p = q = json; *p; p++) /* layout is tested elsewhere */
        if (*p != '\n' && *p != ' ')
            *q++ = *p;
    *q = '\0';
    ck_assert_str_eq(json, expected);
    dt_free(json);
}

/* ---- reading ---- */

START_TEST(values)
{
    struct dt_doc *doc = parse("model: mllm-72b\n"
                               "train: {batch: 1920, lr: 2.5e-4, on: true, none: ~}\n"
                               "list: [1, two, '3', [4]]\n"
                               "text: |\n  a\n  b\n");
    struct dt_node root = dt_doc_root(doc), train = dt_map_get(root, "train"), n;
    const char *key, *file;
    int line, col;

    ck_assert_str_eq(dt_doc_name(doc), "t.yaml");
    ck_assert(dt_node_is_map(root));
    ck_assert_uint_eq(dt_map_size(root), 4);
    ck_assert_str_eq(dt_node_text(dt_map_get(root, "model")), "mllm-72b");
    ck_assert_ptr_null(dt_node_text(train));
    dt_map_at(train, 1, &key, &n);
    ck_assert_str_eq(key, "lr");
    dt_node_where(n, &file, &line, &col);
    ck_assert_str_eq(file, "t.yaml");
    ck_assert_int_eq(line, 2);
    ck_assert_int_eq(col, 26);
    ck_assert(dt_node_is_null(dt_map_get(train, "none")));
    ck_assert(!dt_node_is_null(dt_map_get(train, "on")));
    ck_assert(!dt_node_present(dt_map_get(train, "absent")));
    ck_assert(!dt_node_is_null(dt_map_get(train, "absent")));
    n = dt_map_get(root, "list");
    ck_assert(dt_node_is_seq(n));
    ck_assert_uint_eq(dt_seq_size(n), 4);
    ck_assert_str_eq(dt_node_text(dt_seq_at(n, 2)), "3");
    ck_assert(!dt_node_present(dt_seq_at(n, 4)));
    dt_map_at(train, 99, &key, &n);
    ck_assert_ptr_null(key);
    ck_assert(!dt_node_present(n));
    ck_assert_str_eq(dt_node_text(dt_map_get(root, "text")), "a\nb\n");
    dt_doc_free(doc);
    dt_doc_free(NULL);
}
END_TEST

START_TEST(json_is_yaml)
{
    struct dt_doc *doc = parse("{\n\t\"a\": [1, -2.5e+3, true, null, \"\\u00e9\\ud83d\\ude00\"],\n"
                               "\t\"b\\/c\": {}, \"d\": []}\n");

    assert_json(doc, "{\"a\":[1,-2.5e+3,true,null,\"\xc3\xa9\xf0\x9f\x98\x80\"],"
                     "\"b/c\":{},\"d\":[]}");
    dt_doc_free(doc);
}
END_TEST

START_TEST(numbers_become_json)
{
    struct dt_doc *doc = parse("[+5, .5, 007, 1., -0, 12345678901234567890, 0.1000, -.5e3, 1e999,"
                               " '5', 0x1f, 1_000, no, True, NULL, -007.50]");

    assert_json(doc, "[5,0.5,7,1,-0,12345678901234567890,0.1000,-0.5e3,\"1e999\",\"5\",\"0x1f\","
                     "\"1_000\",\"no\",true,null,-7.50]");
    dt_doc_free(doc);
}
END_TEST

START_TEST(aliases_share)
{
    struct dt_doc *doc = parse("a: &x {t: 1, u: [2]}\nb: *x\nc: [*x, &y z, *y]\n");

    assert_json(doc, "{\"a\":{\"t\":1,\"u\":[2]},\"b\":{\"t\":1,\"u\":[2]},"
                     "\"c\":[{\"t\":1,\"u\":[2]},\"z\",\"z\"]}");
    /* changing one does not change the other */
    dt_assert_ok(dt_doc_override(doc, "b.u=9", &err), err);
    assert_json(doc, "{\"a\":{\"t\":1,\"u\":[2]},\"b\":{\"t\":1,\"u\":9},"
                     "\"c\":[{\"t\":1,\"u\":[2]},\"z\",\"z\"]}");
    dt_doc_free(doc);
}
END_TEST

START_TEST(refused)
{
#define REFUSE(text, line, col, part) refuse(text, sizeof(text) - 1, line, col, part)
    REFUSE("", 1, 1, "empty");
    REFUSE("# nothing\n", 1, 1, "empty");
    REFUSE("a: 1\nb: 2\na: 3\n", 3, 1, "\"a\" appears twice");
    REFUSE("x: {b: 1, c: 2, b: 3}\n", 1, 17, "\"b\" appears twice");
    REFUSE("a: [1, 2\n", 2, 1, "without a closing bracket");
    REFUSE("a: b: c\n", 1, 5, "");
    REFUSE("a:\n\tb: 1\n", 2, 1, "tab");
    REFUSE("a: 1\n--- \nb: 2\n", 2, 1, "second document");
    REFUSE("? [a]\n: 1\n", 1, 3, "key must be a word");
    REFUSE("a: !!int 3\n", 1, 4, "tags");
    REFUSE("a: *nope\n", 1, 5, "names no anchor");
    REFUSE("a: &x [*x]\n", 1, 9, "inside the value");
    REFUSE("a: \"\\0\"\n", 1, 4, "NUL");
    REFUSE("a: \0\n", 1, 4, "not UTF-8");
    REFUSE("a: 1\nb: \xff\n", 2, 4, "0xff");
    REFUSE("a: \xc3", 1, 4, "0xc3");
    /* libfyaml frees the key before the second colon twice */
    REFUSE("? a:\t:p", 1, 5, "a tab between");
    REFUSE("x: 1\n? a: \t- b\n", 2, 5, "a tab between");
    REFUSE("\xff\xfe"
           "a",
           1, 1, "0xff");
#undef REFUSE
}
END_TEST

START_TEST(limits)
{
    enum { N = 200000, LEVELS = 9 };
    char *text = malloc(N + 1), *p = text;
    struct dt_doc *doc;

    ck_assert_ptr_nonnull(text);
    memset(text, '[', N);
    refuse(text, N, 1, 61, "nested too deeply");
    /* a "billion laughs": each level names the one before eight times */
    p += sprintf(p, "l0: &l0 [x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < LEVELS; i++) {
        p += sprintf(p, "l%d: &l%d [", i, i);
        for (int k = 0; k < 8; k++)
            p += sprintf(p, "%s*l%d", k ? ", " : "", i - 1);
        p += sprintf(p, "]\n");
    }
    memset(&err, 0, sizeof(err));
    ck_assert_int_eq(dt_doc_parse("t.yaml", text, (size_t)(p - text), &err, &doc), DT_ERR_INPUT);
    dt_assert_has(err.message, "aliases");
    /* depth through aliases: 8 levels written, 8 times */
    p = text + sprintf(text, "d0: &d0 [[[[[[[x]]]]]]]\n");
    for (int i = 1; i < LEVELS; i++)
        p += sprintf(p, "d%d: &d%d [[[[[[[[*d%d]]]]]]]]\n", i, i, i - 1);
    ck_assert_int_eq(dt_doc_parse("t.yaml", text, (size_t)(p - text), &err, &doc), DT_ERR_INPUT);
    dt_assert_has(err.message, "nested too deeply");
    p = text; /* empty values have no place of their own */
    for (int i = 0; i < 257; i++)
        p += sprintf(p, "k%d: &a\n", i);
    refuse(text, (size_t)(p - text), 257, 1, "too many anchors");
    free(text);
}
END_TEST

START_TEST(large_documents_are_linear)
{
    enum { N = 50000 };
    char *text = malloc(N * 16), *p = text;
    struct dt_doc *doc;
    struct dt_node seq;
    int64_t sum = 0;

    ck_assert_ptr_nonnull(text);
    *p++ = '[';
    for (int i = 0; i < N; i++)
        p += sprintf(p, "%s{\"v\": %d}", i ? ", " : "", i % 10);
    *p++ = ']';
    dt_assert_ok(dt_doc_parse("t.json", text, (size_t)(p - text), &err, &doc), err);
    seq = dt_doc_root(doc);
    ck_assert_uint_eq(dt_seq_size(seq), N);
    for (size_t i = 0; i < N; i++) {
        int64_t v = 0;

        if (dt_get_int(dt_seq_at(seq, i), "v", 0, 9, &v, &err) == DT_OK)
            sum += v;
    }
    ck_assert_int_eq(sum, N / 10 * 45);
    dt_doc_free(doc);
    free(text);
}
END_TEST

START_TEST(read_file)
{
    char name[] = "/tmp/dt-doc-XXXXXX";
    struct dt_doc *doc;
    int fd = mkstemp(name);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "tp: 8\n", 6), 6);
    close(fd);
    dt_assert_ok(dt_doc_read(name, &err, &doc), err);
    ck_assert_str_eq(dt_doc_name(doc), name);
    dt_doc_free(doc);
    unlink(name);
    ck_assert_int_eq(dt_doc_read(name, &err, &doc), DT_ERR_INPUT);
    dt_assert_has(err.message, "cannot open");
    ck_assert_str_eq(err.file, name);
}
END_TEST

/* ---- getters ---- */

START_TEST(map_check)
{
    static const char *const keys[] = {"global_batch", "microbatch", "seq_len", NULL};
    struct dt_doc *doc = parse("train:\n  global_batch: 8\n  micro_bach: 1\nx: [1]\n"
                               "odd: {zzz: 1}\n");
    struct dt_node root = dt_doc_root(doc);

    ck_assert_int_eq(dt_map_check(dt_map_get(root, "train"), "train", keys, &err), DT_ERR_INPUT);
    ck_assert_int_eq(err.line, 3);
    ck_assert_int_eq(err.col, 3);
    ck_assert_str_eq(err.message,
                     "unknown key \"micro_bach\" in train; did you mean \"microbatch\"?");
    ck_assert_int_eq(dt_map_check(dt_map_get(root, "odd"), "odd", keys, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "global_batch, microbatch, seq_len");
    ck_assert_int_eq(dt_map_check(dt_map_get(root, "x"), "x", keys, &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "expected a map");
    dt_assert_ok(dt_map_check(dt_map_get(root, "absent"), "absent", keys, &err), err);
    ck_assert_int_eq(dt_map_require(root, "the job", "model", &err), DT_ERR_INPUT);
    dt_assert_has(err.message, "\"model\" is missing");
    ck_assert_int_eq(err.line, 1);
    dt_assert_ok(dt_map_require(root, "the job", "x", &err), err);
    dt_doc_free(doc);
}
END_TEST

#define WRONG(call, line_, col_, part)                                                             \
    do {                                                                                           \
        ck_assert_int_eq(call, DT_ERR_INPUT);                                                      \
        ck_assert_int_eq(err.line, line_);                                                         \
        ck_assert_int_eq(err.col, col_);                                                           \
        dt_assert_has(err.message, part);                                                          \
    } while (0)

START_TEST(typed_getters)
{
    static const char *const words[] = {"none", "selective", "full", NULL};
    struct dt_doc *doc = parse("i: 1920\nq: '5'\nf: 2.5\nw: 8e3\nb: true\ns: some words\n"
                               "e: selectve\nn:\nm: {}\ng: full\nbig: 99999999999999999999\n");
    struct dt_node r = dt_doc_root(doc);
    int64_t i = 42;
    int i32 = 42, e = 42;
    double d = 42;
    bool b = false;
    char s[11] = "unset";

    dt_assert_ok(dt_get_int(r, "absent", 0, 1, &i, &err), err);
    ck_assert_int_eq(i, 42);
    WRONG(dt_get_int(r, "q", 0, 9, &i, &err), 2, 4, "found the string \"5\"");
    WRONG(dt_get_int(r, "f", 0, 9, &i, &err), 3, 4, "f: expected an integer from 0 to 9");
    WRONG(dt_get_int(r, "i", 0, 1919, &i, &err), 1, 4, "found \"1920\"");
    WRONG(dt_get_int(r, "i", 1921, INT64_MAX, &i, &err), 1, 4, "at least 1921");
    WRONG(dt_get_int(r, "n", 0, 9, &i, &err), 8, 1, "found null");
    WRONG(dt_get_int(r, "m", 0, 9, &i, &err), 9, 4, "found a map");
    WRONG(dt_get_int(r, "big", 0, INT64_MAX, &i, &err), 11, 6, "integer");
    ck_assert_int_eq(i, 42);
    dt_assert_ok(dt_get_int(r, "i", 1920, 1920, &i, &err), err);
    ck_assert_int_eq(i, 1920);
    dt_assert_ok(dt_get_i32(r, "w", 0, 8000, &i32, &err), err);
    ck_assert_int_eq(i32, 8000);
    dt_assert_ok(dt_get_double(r, "f", 2.5, 2.5, &d, &err), err);
    ck_assert_double_eq(d, 2.5);
    WRONG(dt_get_double(r, "f", 3, 4.5, &d, &err), 3, 4, "a number from 3 to 4.5");
    WRONG(dt_get_double(r, "b", 0, INFINITY, &d, &err), 5, 4, "a number of at least 0");
    WRONG(dt_get_double(r, "s", -INFINITY, INFINITY, &d, &err), 6, 4, "expected a number");
    dt_assert_ok(dt_get_bool(r, "b", &b, &err), err);
    ck_assert(b);
    WRONG(dt_get_bool(r, "i", &b, &err), 1, 4, "true or false");
    dt_assert_ok(dt_get_string(r, "s", s, sizeof(s), &err), err);
    ck_assert_str_eq(s, "some words");
    WRONG(dt_get_string(r, "s", s, 10, &err), 6, 4, "longer than 9");
    WRONG(dt_get_string(r, "n", s, 10, &err), 8, 1, "a string");
    WRONG(dt_get_enum(r, "e", words, &e, &err), 7, 4, "did you mean \"selective\"");
    WRONG(dt_get_enum(r, "i", words, &e, &err), 1, 4, "one of none, selective, full");
    ck_assert_int_eq(e, 42);
    dt_assert_ok(dt_get_enum(r, "g", words, &e, &err), err);
    ck_assert_int_eq(e, 2);
    dt_doc_free(doc);
}
END_TEST

START_TEST(quantities)
{
    static const struct {
        const char *text, *dimension;
        double value;
    } good[] = {{"80 GB", "bytes", 80e9},
                {"80GiB", "bytes", 80 * 0x1p30},
                {"400 Gb/s", "bytes/s", 50e9},
                {"24.5 GB/s", "bytes/s", 24.5e9},
                {"21 us", "s", 21e-6},
                {"21 \xC2\xB5s", "s", 21e-6},
                {"1.5 h", "s", 5400},
                {"312 TFLOP/s", "flop/s", 312e12},
                {"7", "bytes", 7},
                {"-0", "s", 0}};
    struct dt_doc *doc;
    double d = 42;
    char text[64];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(text, sizeof(text), "x: %s", good[i].text);
        doc = parse(text);
        dt_assert_ok(dt_get_quantity(dt_doc_root(doc), "x", good[i].dimension, 0, 1e18, &d, &err),
                     err);
        ck_assert_double_eq_tol(d, good[i].value, 1e-12 * good[i].value + 1e-300);
        dt_doc_free(doc);
    }
    doc = parse("a: 400 Gbs\nb: fast\nc: 5 GB\nd: [1]\n");
    d = 42;
    WRONG(dt_get_quantity(dt_doc_root(doc), "a", "bytes/s", 0, 1e18, &d, &err), 1, 4,
          "did you mean");
    WRONG(dt_get_quantity(dt_doc_root(doc), "b", "s", 0, 1e18, &d, &err), 2, 4, "21 us");
    WRONG(dt_get_quantity(dt_doc_root(doc), "c", "bytes", 6e9, 7e9, &d, &err), 3, 4, "6e+09");
    WRONG(dt_get_quantity(dt_doc_root(doc), "d", "bytes", 0, 1, &d, &err), 4, 4, "a sequence");
    WRONG(dt_get_quantity(dt_doc_root(doc), "c", "flop/s", 0, 1, &d, &err), 3, 4, "not a unit");
    ck_assert_int_eq(dt_get_quantity(dt_doc_root(doc), "c", "furlongs", 0, 1, &d, &err),
                     DT_ERR_INTERNAL);
    ck_assert_double_eq(d, 42);
    dt_doc_free(doc);
}
END_TEST

START_TEST(suggestions)
{
    static const char *const words[] = {"microbatch", "global_batch", "recompute", "tp",
                                        "pp",         "megatron-lm",  "",          NULL};

    ck_assert_str_eq(dt_suggest("micro_batch", words), "microbatch");
    ck_assert_str_eq(dt_suggest("mircobatch", words), "microbatch");
    ck_assert_str_eq(dt_suggest("Global-Batch", words), "global_batch");
    ck_assert_str_eq(dt_suggest("megatron", words), "megatron-lm"); /* a beginning */
    ck_assert_str_eq(dt_suggest("tpp", words), "tp");
    ck_assert_ptr_null(dt_suggest("zzzzzz", words));
    ck_assert_ptr_null(dt_suggest("", words));
    ck_assert_ptr_null(dt_suggest("x", words));
}
END_TEST

/* ---- overrides ---- */

START_TEST(overrides)
{
    struct dt_doc *doc = parse("model: a\ntrain: {batch: 1}\nlist: [1, {x: 2}]\nnone:\n");
    int64_t v = 0;

    dt_assert_ok(dt_doc_override(doc, "train.batch=960", &err), err);
    dt_assert_ok(dt_doc_override(doc, "train.frozen=[vit, {llm: true}]", &err), err);
    dt_assert_ok(dt_doc_override(doc, "plan.llm.tp=8", &err), err);
    dt_assert_ok(dt_doc_override(doc, "list.1.x=b=c", &err), err);
    dt_assert_ok(dt_doc_override(doc, "none.deep=~", &err), err);
    assert_json(doc, "{\"model\":\"a\",\"train\":{\"batch\":960,\"frozen\":[\"vit\",{\"llm\":true}]"
                     "},\"list\":[1,{\"x\":\"b=c\"}],\"none\":{\"deep\":null},"
                     "\"plan\":{\"llm\":{\"tp\":8}}}");
    /* places inside the value are places in the argument */
    WRONG(dt_get_int(dt_map_get(dt_doc_root(doc), "train"), "batch", 0, 9, &v, &err), 1, 13, "960");
    ck_assert_str_eq(err.file, "command line");
    dt_doc_free(doc);
}
END_TEST

START_TEST(keeping_keys)
{
    static const char *const keys[] = {"b", "d", NULL}, *const none[] = {NULL};
    struct dt_doc *doc = parse("model: a\ntrain: {a: 1, b: 2, c: {b: 3}, e: 4}\n");
    int64_t v = 0;

    dt_assert_ok(dt_doc_keep(doc, "plan", keys, &err), err);
    dt_assert_ok(dt_doc_keep(doc, "model", none, &err), err);
    assert_json(doc, "{\"model\":\"a\",\"train\":{\"a\":1,\"b\":2,\"c\":{\"b\":3},\"e\":4}}");
    dt_assert_ok(dt_doc_keep(doc, "train", keys, &err), err);
    assert_json(doc, "{\"model\":\"a\",\"train\":{\"b\":2}}");
    WRONG(dt_get_int(dt_map_get(dt_doc_root(doc), "train"), "b", 0, 1, &v, &err), 2, 18, "2");
    dt_assert_ok(dt_doc_keep(doc, "train", none, &err), err);
    assert_json(doc, "{\"model\":\"a\",\"train\":{}}");
    dt_doc_free(doc);
}
END_TEST

START_TEST(bad_overrides_change_nothing)
{
    struct dt_doc *doc = parse("a: {b: 1}\nlist: [1]\nw: word\n");

    ck_assert_int_eq(dt_doc_override(doc, "a.b", &err), DT_ERR_USAGE);
    ck_assert_int_eq(dt_doc_override(doc, "=1", &err), DT_ERR_USAGE);
    WRONG(dt_doc_override(doc, "a.b=", &err), 1, 5, "a value must follow");
    WRONG(dt_doc_override(doc, "a.b=[1", &err), 2, 1, "");
    WRONG(dt_doc_override(doc, "a..b=1", &err), 1, 3, "is not a key");
    WRONG(dt_doc_override(doc, "w.x=1", &err), 1, 3, "not a map");
    WRONG(dt_doc_override(doc, "list.x=1", &err), 1, 6, "index");
    WRONG(dt_doc_override(doc, "list.1=1", &err), 1, 6, "past the end");
    for (uint64_t k = 1;; k++) {
        enum dt_status st;

        dt_mem_fail_at(k);
        st = dt_doc_override(doc, "a.c.d=[1, 2]", &err);
        dt_mem_fail_at(0);
        if (st == DT_OK)
            break;
        ck_assert_int_eq(st, DT_ERR_NOMEM);
        assert_json(doc, "{\"a\":{\"b\":1},\"list\":[1],\"w\":\"word\"}");
        ck_assert_uint_lt(k, 100);
    }
    assert_json(doc, "{\"a\":{\"b\":1,\"c\":{\"d\":[1,2]}},\"list\":[1],\"w\":\"word\"}");
    dt_doc_free(doc);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    static const char text[] = "a: &x {b: [1, 2, 3], c: 'd'}\ne: *x\nf: {g: [[[]]]}\n";

    for (uint64_t k = 1;; k++) {
        struct dt_doc *doc = NULL;
        char *json = NULL;
        enum dt_status st;

        dt_mem_fail_at(k);
        st = dt_doc_parse("t", text, sizeof(text) - 1, &err, &doc);
        if (st == DT_OK)
            st = dt_doc_to_json(doc, &err, &json);
        dt_mem_fail_at(0);
        dt_free(json);
        dt_doc_free(doc);
        if (st == DT_OK)
            return;
        ck_assert_int_eq(st, DT_ERR_NOMEM);
        ck_assert_uint_lt(k, 100);
    }
}
END_TEST

/* ---- the JSON writer ---- */

static char *finish(struct dt_json *j)
{
    char *text;

    dt_assert_ok(dt_json_finish(j, &err, &text), err);
    return text;
}

START_TEST(json_text)
{
    struct dt_json j;
    char *text;

    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "s", "q\"\\\n\t\x01\x7f\xc3\xa9\xff");
    dt_json_kv_string(&j, "null", NULL);
    dt_json_kv_int(&j, "i", INT64_MIN);
    dt_json_kv_double(&j, "d", 0.125);
    dt_json_kv_bool(&j, "b", false);
    dt_json_key(&j, "a");
    dt_json_begin_array(&j);
    dt_json_double(&j, 1e15);
    dt_json_double(&j, 1.0 / 3);
    dt_json_double(&j, NAN);
    dt_json_double(&j, -INFINITY);
    dt_json_double(&j, -2.0);
    dt_json_double(&j, 1e300);
    dt_json_raw(&j, "1.50");
    dt_json_end_array(&j);
    dt_json_key(&j, "empty");
    dt_json_begin_object(&j);
    dt_json_end_object(&j);
    dt_json_end_object(&j);
    text = finish(&j);
    ck_assert_str_eq(text, "{\"s\":\"q\\\"\\\\\\n\\t\\u0001\\u007f\xc3\xa9\xef\xbf\xbd\","
                           "\"null\":null,\"i\":-9223372036854775808,\"d\":0.125,\"b\":false,"
                           "\"a\":[1000000000000000,0.333333333,null,null,-2,"
                           "1.0000000000000001e+300,1.50],\"empty\":{}}");
    dt_free(text);

    dt_json_init(&j, true);
    dt_json_begin_array(&j);
    dt_json_int(&j, 1);
    dt_json_begin_object(&j);
    dt_json_kv_int(&j, "k", 2);
    dt_json_end_object(&j);
    dt_json_begin_array(&j);
    dt_json_end_array(&j);
    dt_json_end_array(&j);
    text = finish(&j);
    ck_assert_str_eq(text, "[\n  1,\n  {\n    \"k\": 2\n  },\n  []\n]\n");
    dt_free(text);
}
END_TEST

static void as_json(double v, char *buf, size_t size)
{
    struct dt_json j;
    char *text;

    dt_json_init(&j, false);
    dt_json_double(&j, v);
    text = finish(&j);
    snprintf(buf, size, "%s", text);
    dt_free(text);
}

/* What was read from a file and is written again is the same text. */
START_TEST(json_numbers_are_stable)
{
    static const double fixed[] = {1495942065.25, 999999999.4, 999999999.5, 999999999.9,
                                   99999999.99};
    uint64_t seed = dt_test_seed();
    char once[64], twice[64];
    struct dt_rng r;

    dt_rng_init(&r, seed, 1);
    for (int i = 0; i < 20000; i++) {
        double v =
            i < 5 ? fixed[i] : ldexp(dt_rng_uniform(&r) - 0.5, (int)dt_rng_below(&r, 140) - 60);

        as_json(v, once, sizeof(once));
        as_json(strtod(once, NULL), twice, sizeof(twice));
        ck_assert_msg(strcmp(once, twice) == 0, "%.17g: %s, then %s (seed %" PRIu64 ")", v, once,
                      twice, seed);
    }
}
END_TEST

START_TEST(json_misuse)
{
    struct dt_json j;
    char *text;

    dt_json_init(&j, false); /* nothing written */
    ck_assert_int_eq(dt_json_finish(&j, &err, &text), DT_ERR_INTERNAL);
    dt_json_init(&j, false); /* left open */
    dt_json_begin_array(&j);
    ck_assert_int_eq(dt_json_finish(&j, &err, &text), DT_ERR_INTERNAL);
    dt_json_init(&j, false); /* too deep */
    for (int i = 0; i < 100; i++)
        dt_json_begin_array(&j);
    ck_assert_int_eq(dt_json_finish(&j, &err, &text), DT_ERR_INTERNAL);
    for (uint64_t k = 1; k <= 2; k++) {
        dt_json_init(&j, true);
        dt_mem_fail_at(k);
        dt_json_string(&j, "0123456789012345678901234567890123456789");
        ck_assert_int_eq(dt_json_finish(&j, &err, &text), DT_ERR_NOMEM);
        dt_mem_fail_at(0);
    }
    dt_json_init(&j, true);
    dt_json_begin_array(&j);
    dt_json_discard(&j);
    ck_assert_ptr_null(j.buf);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("doc");
    TCase *read = dt_test_case(s, "read", 60), *get = dt_test_case(s, "get", 0);
    TCase *override = dt_test_case(s, "override", 0), *json = dt_test_case(s, "json", 0);

    tcase_add_test(read, values);
    tcase_add_test(read, json_is_yaml);
    tcase_add_test(read, numbers_become_json);
    tcase_add_test(read, aliases_share);
    tcase_add_test(read, refused);
    tcase_add_test(read, limits);
    tcase_add_test(read, large_documents_are_linear);
    tcase_add_test(read, read_file);
    tcase_add_test(read, every_allocation_may_fail);
    tcase_add_test(get, map_check);
    tcase_add_test(get, typed_getters);
    tcase_add_test(get, quantities);
    tcase_add_test(get, suggestions);
    tcase_add_test(override, overrides);
    tcase_add_test(override, keeping_keys);
    tcase_add_test(override, bad_overrides_change_nothing);
    tcase_add_test(json, json_text);
    tcase_add_test(json, json_numbers_are_stable);
    tcase_add_test(json, json_misuse);
    return dt_test_run(s);
}
