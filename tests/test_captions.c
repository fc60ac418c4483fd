/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Files of captions for packing: quoting as RFC 4180 has it, JSON lines, and where what is wrong is. */
#include "base/mem.h"
#include "exec/data/pack_captions.h"
#include "test_util.h"

#include <stdio.h>
#include <string.h>

static struct dt_error err;
static struct dt_data_report report;
static char bytes[4096];

static enum dt_status parse(const char *text, size_t len, struct dt_pack_captions **out)
{
    memset(&report, 0, sizeof report);
    memset(&err, 0, sizeof err);
    ck_assert_uint_lt(len, sizeof bytes);
    memcpy(bytes, text, len + 1);
    return dt_pack_captions_parse("c.csv", bytes, len, "file_name", "text", &report, &err, out);
}

/* name, caption, name, caption ..., NULL; what is counted as bad */
static void is(const char *text, const char *const *want, int bad)
{
    struct dt_pack_captions *c;
    size_t n = 0;

    dt_assert_ok(parse(text, strlen(text), &c), err);
    for (; want[2 * n]; n++) {
        const struct dt_pack_caption *row = dt_pack_captions_find(c, want[2 * n]);

        ck_assert_msg(row != NULL, "%s: no %s", text, want[2 * n]);
        ck_assert_str_eq(row->text, want[2 * n + 1]);
        ck_assert_uint_eq(row->len, strlen(want[2 * n + 1]));
        ck_assert_ptr_eq(dt_pack_captions_at(c, n), row);
    }
    ck_assert_uint_eq(dt_pack_captions_count(c), n);
    ck_assert_ptr_null(dt_pack_captions_find(c, "none.png"));
    ck_assert_int_eq(dt_data_bad_total(&report), bad);
    dt_pack_captions_free(c);
}

static void fails(const char *text, int line, int col, const char *what)
{
    struct dt_pack_captions *c;

    ck_assert_msg(parse(text, strlen(text), &c) == DT_ERR_INPUT, "%s", text);
    dt_assert_has(err.message, what);
    ck_assert_msg(err.line == line && err.col == col, "%s: %s at %d:%d", text, err.message,
                  err.line, err.col);
    ck_assert_str_eq(err.file, "c.csv");
}

#define WANT(...) ((const char *const[]){__VA_ARGS__, NULL})

START_TEST(csv)
{
    is("file_name,text\na.png,a cat\nb/c.png,two dogs\n",
       WANT("a.png", "a cat", "b/c.png", "two dogs"), 0);
    is("\xef\xbb\xbf"
       "id,text,file_name\r\n1,\"a \"\"big\"\" cat, it is\",a.png\r\n\r\n2,,\"b,c.png\"",
       WANT("a.png", "a \"big\" cat, it is", "b,c.png", ""), 0);
    is("text,file_name\n\"two\r\nlines\",./a.png\n\"\"\"\",\"q\"\"q.png\"\n",
       WANT("a.png", "two\r\nlines", "q\"q.png", "\""), 0);
    is("file_name,text\n", WANT(NULL), 0);
    is("file_name,text\na.png, spaced \n", WANT("a.png", " spaced "), 0);
    is("file_name,text\na.png,\xff\nb.png,fine\n", WANT("b.png", "fine"), 1);
    dt_assert_has(report.example[DT_BAD_CAPTION],
                  "c.csv:2:1: the caption in this line is not UTF-8");
    is("file_name,text\n\xc3,x\nb.png,fine\n", WANT("b.png", "fine"), 1);
}
END_TEST

START_TEST(csv_errors)
{
    fails("", 1, 1, "empty");
    fails("name,text\na,b\n", 1, 1, "no column \"file_name\"; the first line names name, text");
    fails("\"na\nme\",text\na,b\n", 1, 1, "the first line names na?me, text");
    fails("file_name,text\n\"a\nb\",1\n\"a\nb\",2\n", 4, 1,
          "a second caption for a?b; the first is in line 2");
    fails("file_name,text\na.png\n", 2, 1, "1 fields; the first line has 2");
    fails("file_name,text\na.png,b,c\n", 2, 9, "3 fields; the first line has 2");
    fails("file_name,text\na.png,\"open\nstill\n", 2, 7, "not closed");
    fails("file_name,text\na.png,say \"hi\"\n", 2, 11, "quote the whole field");
    fails("file_name,text\na.png,\"x\"y\n", 2, 10, "after a quoted field");
    fails("file_name,text\n\"a\nb.png\",x\nc.png,\"d\"e\n", 4, 10, "after a quoted field");
    fails("file_name,text\na.png,b\nc.png,d\n./a.png,e\n", 4, 1, "the first is in line 2");
    fails("file_name,text\n,b\n", 2, 1, "empty");
    fails("file_name,text\n././,b\n", 2, 1, "empty");
}
END_TEST

START_TEST(jsonl)
{
    is("{\"file_name\": \"a.png\", \"text\": \"a \\\"big\\\" cat\\n\\u00e9 \\ud83d\\ude00\"}\n\n"
       "{\"text\":\"two, dogs\",\"more\":[1,{\"x\":null}],\"file_name\":\"b/c.png\"}",
       WANT("a.png", "a \"big\" cat\n\xc3\xa9 \xf0\x9f\x98\x80", "b/c.png", "two, dogs"), 0);
    is("{\"file_name\": \"a.png\", \"text\": \"\xff\"}\r\n{\"file_name\": \"b.png\", \"text\": "
       "\"b\"}\r\n",
       WANT("b.png", "b"), 1);
    dt_assert_has(report.example[DT_BAD_CAPTION], "c.csv:1:1: this line is not UTF-8");
}
END_TEST

START_TEST(jsonl_errors)
{
    fails("{\"file_name\": \"a.png\", \"text\": \"a\"}\n{\"file_name\": \"b.png\"}\n", 2, 1,
          "no text \"text\"");
    fails("{\"file_name\": \"a.png\", \"text\": \"a\"}\n{\"file_name\": [1], \"text\": \"b\"}\n", 2,
          15, "no text \"file_name\"");
    fails("{\"file_name\": \"a.png\", \"text\": null}\n", 1, 32, "no text \"text\"");
    fails("{\"file_name\": \"a.png\", \"text\": \"a\"}\n\n[1, 2]\n", 3, 1,
          "a JSON object in each line");
    fails("{\"file_name\": \"a.png\", \"text\": \"a\"}\n{\"file_name\": \"a.png\", \"text\": "
          "\"b\"}\n",
          2, 15, "the first is in line 1");
    fails("{\"file_name\": \"a.png\", \"text\": \"a\"}\n|0\"0\n", 2, 1, "not well-formed");
}
END_TEST

/* A NUL ends no name early, and no caption. */
START_TEST(nul)
{
    static const char text[] = "file_name,text\na.png\0.jpg,x\nb.png,a\0b\nc.png,c\n";
    struct dt_pack_captions *c;

    dt_assert_ok(parse(text, sizeof text - 1, &c), err);
    ck_assert_uint_eq(dt_pack_captions_count(c), 1);
    ck_assert_int_eq(report.bad[DT_BAD_CAPTION], 2);
    ck_assert_ptr_nonnull(dt_pack_captions_find(c, "c.png"));
    dt_pack_captions_free(c);
}
END_TEST

START_TEST(many)
{
    enum { N = 5000 };
    char *text = dt_malloc(N * 32), name[32];
    struct dt_pack_captions *c;
    size_t n = (size_t)sprintf(text, "file_name,text\n");

    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(text + n, "%d.png,%d\n", i, i * 7);
    memset(&report, 0, sizeof report);
    dt_assert_ok(dt_pack_captions_parse("c", text, n, "file_name", "text", &report, &err, &c), err);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "%d.png", i);
        ck_assert_int_eq(atoi(dt_pack_captions_find(c, name)->text), i * 7);
        ck_assert_int_eq(dt_pack_captions_at(c, (size_t)i)->line, i + 2);
    }
    dt_pack_captions_free(c);
    dt_free(text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("captions in a file");
    TCase *c = dt_test_case(s, "files", 60);

    tcase_add_test(c, csv);
    tcase_add_test(c, csv_errors);
    tcase_add_test(c, jsonl);
    tcase_add_test(c, jsonl_errors);
    tcase_add_test(c, nul);
    tcase_add_test(c, many);
    return dt_test_run(s);
}
