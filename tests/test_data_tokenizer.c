/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tokenizers: published ids, splitting, NFC, refusals, round trips, out of memory. */
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "exec/data/loader.h"
#include "exec/data/tokenizer.h"
#include "exec/data/unicode.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>
#include <utf8proc.h>

static struct dt_error err;

static struct dt_tokenizer *open_fixture(const char *name)
{
    const char *srcdir = getenv("srcdir");
    struct dt_tokenizer *t;
    char path[4096];

    snprintf(path, sizeof path, "%s/tests/data/tokenizer/%s", srcdir ? srcdir : ".", name);
    dt_assert_ok(dt_tokenizer_open(path, &err, &t), err);
    return t;
}

/* With the first `from` in it made `to`. */
static struct dt_tokenizer *open_changed(const char *name, const char *from, const char *to)
{
    const char *srcdir = getenv("srcdir");
    char path[4096], *json, *at, *changed;
    struct dt_tokenizer *t;
    size_t n;

    snprintf(path, sizeof path, "%s/tests/data/tokenizer/%s", srcdir ? srcdir : ".", name);
    dt_assert_ok(dt_file_read(path, 1 << 20, &err, &json, &n), err);
    at = strstr(json, from);
    ck_assert_ptr_nonnull(at);
    n += strlen(to) + 1;
    changed = dt_malloc(n);
    ck_assert_ptr_nonnull(changed);
    snprintf(changed, n, "%.*s%s%s", (int)(at - json), json, to, at + strlen(from));
    dt_assert_ok(dt_tokenizer_parse("t.json", changed, strlen(changed), &err, &t), err);
    dt_free(changed);
    dt_free(json);
    return t;
}

static void assert_ids(const struct dt_tokenizer *t, const char *text, const char *expected)
{
    struct dt_tokenizer_ids ids = {0};
    char got[4096] = "";
    size_t n = 0;

    dt_assert_ok(dt_tokenizer_encode(t, text, strlen(text), true, &err, &ids), err);
    for (size_t i = 0; i < ids.n; i++)
        n += (size_t)snprintf(got + n, sizeof got - n, i ? " %d" : "%d", (int)ids.id[i]);
    ck_assert_msg(strcmp(got, expected) == 0, "\"%s\": %s, not %s", text, got, expected);
    dt_tokenizer_ids_free(&ids);
}

/* Published: the test strings of GPT-3-Encoder and of tiktoken for GPT-2. */
START_TEST(gpt2_published)
{
    struct dt_tokenizer *t = open_fixture("gpt2-subset.json");

    assert_ids(t, "", "");
    assert_ids(t, " ", "220");
    assert_ids(t, "\t", "197");
    assert_ids(t, "Hello world", "15496 995");
    assert_ids(t, "hello world", "31373 995");
    assert_ids(t, "This is some text", "1212 318 617 2420");
    assert_ids(t, "indivisible", "521 452 12843");
    assert_ids(t, "hello \xf0\x9f\x91\x8b world \xf0\x9f\x8c\x8d",
               "31373 50169 233 995 12520 234 235");
    assert_ids(t, "toString constructor hasOwnProperty valueOf",
               "1462 10100 23772 468 23858 21746 1988 5189");
    ck_assert_int_eq(dt_tokenizer_vocab(t), 50257);
    ck_assert_int_eq(dt_tokenizer_find(t, "<|endoftext|>"), 50256);
    ck_assert_int_eq(dt_tokenizer_find(t, "no such token"), -1);
    ck_assert_int_eq(dt_tokenizer_special(t).eos, 50256);
    ck_assert_int_eq(dt_tokenizer_special(t).bos, 50256);
    dt_tokenizer_free(t);
}
END_TEST

/* Published: the strings and ids with which llama.cpp tests its vocabulary of Llama 3
 * (ggml-vocab-llama-bpe). */
START_TEST(llama3_published)
{
    static const struct {
        const char *text, *ids;
    } published[] = {
        {"", ""},
        {" ", "220"},
        {"  ", "256"},
        {"   ", "262"},
        {"\t", "197"},
        {"\n", "198"},
        {"\n\n", "271"},
        {"\n\n\n", "1432"},
        {"\t\n", "1602"},
        {"Hello world", "9906 1917"},
        {" Hello world", "22691 1917"},
        {"Hello World", "9906 4435"},
        {" Hello World!", "22691 4435 0"},
        {"Hello, world!", "9906 11 1917 0"},
        {"ied 4 \xc2\xbd months", "1142 220 19 220 27154 4038"},
        {"F\xc3\xbchrer", "37 51853 261"},
        {" this is \xf0\x9f\xa6\x99.cpp", "420 374 11410 99 247 13 11055"},
        {"w048 7tuijk dsdfhu", "86 23904 220 22 83 2005 42908 11729 3013 17156"},
        {"    Hello\n    Hello", "262 22691 198 262 22691"},
        {" (", "320"},
        {"\n =", "198 284"},
        {"' era", "6 11639"},
        {"333", "8765"},
        {"3333", "8765 18"},
        {"333333333", "8765 8765 8765"},
        {"\xe1\x9e\x80\xe1\x9e\xb6\xe1\x9e\x93\xe1\x9f\x8b\xe1\x9e\x8f\xe1\x9f\x82\xe1\x9e\x96\xe1"
         "\x9e\xb7\xe1\x9e\x9f\xe1\x9f\x81\xe1\x9e\x9f\xe1\x9e\xa2\xe1\x9e\xb6\xe1\x9e\x85\xe1\x9e"
         "\x81\xe1\x9e\x9b\xe1\x9e\x85\xe1\x9f\x81\xe1\x9e\x89",
         "21549 222 98629 241 45358 233 21549 237 45358 224 21549 244 21549 115 21549 253 45358 "
         "223 21549 253 21549 95 98629 227 21549 223 21549 249 21549 227 45358 223 21549 231"},
    };
    struct dt_tokenizer *t = open_fixture("llama3-subset.json");

    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++)
        assert_ids(t, published[i].text, published[i].ids);
    ck_assert_int_eq(dt_tokenizer_special(t).bos, 128000);
    ck_assert_int_eq(dt_tokenizer_special(t).eos, 128001);
    dt_tokenizer_free(t);
}
END_TEST

/* The ids that the Python package tokenizers 0.23 gives with these files. */
START_TEST(splits)
{
    struct dt_tokenizer *t = open_fixture("gpt2-subset.json");
    const char *lines = "line\n\n  next \r\n\tend  ", *digits = "12345 1234567";
    const char *mixed = "don't they'll  two   spaces 12345";

    assert_ids(t, mixed, "9099 470 484 1183 220 734 220 220 9029 17031 2231");
    assert_ids(t, digits, "1065 27712 17031 2231 21 22");
    assert_ids(t, lines, "75 259 68 198 198 220 220 77 68 742 220 201 198 197 68 358 220 220");
    assert_ids(t,
               "a\xc2\xa0"
               "b  c",
               "64 126 254 65 220 269");
    assert_ids(t, "x<|endoftext|> y", "87 50256 220 88");
    dt_tokenizer_free(t);

    t = open_fixture("llama3-style.json");
    assert_ids(t, mixed, "9099 470 484 1183 220 734 220 220 9029 220 1065 18 2231");
    assert_ids(t, digits, "1065 18 2231 220 1065 18 2231 21 22");
    assert_ids(t, "cafe\xcc\x81", "66 64 69 68 136 223");
    ck_assert_int_eq(dt_tokenizer_special(t).bos, 50257);
    ck_assert_int_eq(dt_tokenizer_special(t).eos, 50256);
    dt_tokenizer_free(t);

    t = open_fixture("qwen2-style.json");
    assert_ids(t, digits, "16 17 18 19 20 220 16 17 18 19 20 21 22");
    assert_ids(t, "cafe\xcc\x81", "66 64 69 127 102");
    assert_ids(t, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "169 243 250");
    dt_tokenizer_free(t);
}
END_TEST

START_TEST(specials_in_text)
{
    struct dt_tokenizer *t = open_fixture("gpt2-subset.json");
    const char *text = "x<|endoftext|>";
    struct dt_tokenizer_ids ids = {0};
    char *back;

    dt_assert_ok(dt_tokenizer_encode(t, text, strlen(text), false, &err, &ids), err);
    for (size_t i = 0; i < ids.n; i++)
        ck_assert_int_ne(ids.id[i], 50256);
    ck_assert_uint_gt(ids.n, 2);
    dt_assert_ok(dt_tokenizer_decode(t, ids.id, ids.n, true, &err, &back, NULL), err);
    ck_assert_str_eq(back, text);
    dt_free(back);
    ids.n = 0;
    dt_assert_ok(dt_tokenizer_encode(t, text, strlen(text), true, &err, &ids), err);
    ck_assert_uint_eq(ids.n, 2);
    dt_assert_ok(dt_tokenizer_decode(t, ids.id, ids.n, true, &err, &back, NULL), err);
    ck_assert_str_eq(back, "x");
    dt_free(back);
    dt_assert_ok(dt_tokenizer_decode(t, ids.id, ids.n, false, &err, &back, NULL), err);
    ck_assert_str_eq(back, text);
    dt_free(back);
    dt_tokenizer_ids_free(&ids);
    dt_tokenizer_free(t);
}
END_TEST

/* As in Qwen's vocabulary, "<s>" and "</s>" are text; they are special where the file names no special tokens. */
START_TEST(special_names_in_the_vocabulary)
{
#define END_OF_TEXT                                                                                \
    "{\"id\":50256,\"content\":\"<|endoftext|>\",\"single_word\":false,\"lstrip\":false,"          \
    "\"rstrip\":"                                                                                  \
    "false,\"normalized\":true,\"special\":true}"
    static const struct {
        const char *from, *to;
        int bos, eos, pad;
        bool moved;
    } v[] = {{"[" END_OF_TEXT, "[" END_OF_TEXT, 50256, 50256, 50256, true},
             {END_OF_TEXT, "", 50257, 50258, 50258, false},
             {"\"special\":true", "\"special\":false", 50257, 50256, 50256, true},
             {"\"</s>\":50258", "\"</t>\":50258", 50256, 50256, 50256, true},
             {"\"<s>\":50257,\"</s>\":50258", "\"x</s>\":50258", 50256, 50256, 50256, false},
             {"[" END_OF_TEXT, "[{\"id\":50259,\"content\":\"</s>\",\"special\":true}," END_OF_TEXT,
              50259, 50259, 50259, true}};

    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        struct dt_tokenizer *t = open_changed("qwen2-style.json", v[i].from, v[i].to);
        struct dt_tokenizer_special_ids s = dt_tokenizer_special(t);

        ck_assert_msg(s.bos == v[i].bos && s.eos == v[i].eos && s.pad == v[i].pad,
                      "%zu: bos %d, eos %d, pad %d", i, (int)s.bos, (int)s.eos, (int)s.pad);
        ck_assert_int_eq(s.image, s.pad);
        ck_assert_int_eq(dt_tokenizer_special_moved(t), v[i].moved);
        dt_tokenizer_free(t);
    }
}
END_TEST

START_TEST(bytes)
{
    struct dt_tokenizer *t;
    struct dt_tokenizer_ids ids = {0};
    struct dt_tokenizer_special_ids s;
    int32_t strange[] = {-1, 72, 1 << 30, 105, 259};
    char *back;
    size_t len;

    dt_assert_ok(dt_tokenizer_open("bytes", &err, &t), err);
    s = dt_tokenizer_special(t);
    ck_assert_int_eq(dt_tokenizer_vocab(t), 260);
    ck_assert(s.bos == 256 && s.eos == 257 && s.pad == 258 && s.image == 259);
    assert_ids(t, "hi <eos>", "104 105 32 257");
    dt_assert_ok(dt_tokenizer_encode(t, "\0\xff<", 3, true, &err, &ids), err);
    ck_assert(ids.n == 3 && ids.id[0] == 0 && ids.id[1] == 255 && ids.id[2] == '<');
    dt_tokenizer_ids_free(&ids);
    dt_assert_ok(dt_tokenizer_decode(t, strange, 5, true, &err, &back, &len), err);
    ck_assert_str_eq(back, "Hi");
    ck_assert_uint_eq(len, 2);
    dt_free(back);
    dt_tokenizer_free(t);
}
END_TEST

/* Any bytes come back; a long word (heap) and a short one (plain search) are merged alike. */
START_TEST(round_trips)
{
    static const char *const files[] = {"gpt2-subset.json", "llama3-style.json"};
    uint64_t seed = dt_test_seed();
    struct dt_rng r;

    printf("seed %" PRIu64 "\n", seed);
    dt_rng_init(&r, seed, 1);
    for (int f = 0; f < 2; f++) {
        struct dt_tokenizer *t = open_fixture(files[f]);

        for (int k = 0; k < 300; k++) {
            static const char atoms[] =
                "aeinorst  ''\r\n\t019.,!\xc3\xa9\xe2\x80\xa8\xf0\x9f\x91\x8b\xff";
            char text[600], *back;
            size_t n = dt_rng_below(&r, sizeof text), len;
            struct dt_tokenizer_ids ids = {0};

            for (size_t i = 0; i < n; i++)
                text[i] = k % 3 == 0 ? (char)dt_rng_u32(&r)
                                     : atoms[dt_rng_below(&r, k % 3 == 1 ? sizeof atoms - 1 : 8)];
            dt_assert_ok(dt_tokenizer_encode(t, text, n, false, &err, &ids), err);
            ck_assert_uint_le(ids.n, n);
            dt_assert_ok(dt_tokenizer_decode(t, ids.id, ids.n, false, &err, &back, &len), err);
            ck_assert_uint_eq(len, n);
            ck_assert_mem_eq(back, text, n);
            dt_free(back);
            dt_tokenizer_ids_free(&ids);
        }
        dt_tokenizer_free(t);
    }
}
END_TEST

/* A short word takes the plain search, a long one the heap; no merge of the subset crosses from o
 * to h, so both give "hello" over and over. */
START_TEST(long_words)
{
    struct dt_tokenizer *t = open_fixture("gpt2-subset.json");
    char text[5 * 400];
    struct dt_tokenizer_ids one = {0}, all = {0};

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "hello"[i % 5];
    dt_assert_ok(dt_tokenizer_encode(t, text, 30, false, &err, &one), err);
    dt_assert_ok(dt_tokenizer_encode(t, text, sizeof text, false, &err, &all), err);
    ck_assert_uint_eq(one.n, 6);
    ck_assert_uint_eq(all.n, 400);
    for (size_t i = 0; i < all.n; i++)
        ck_assert_int_eq(all.id[i], 31373);
    for (size_t i = 0; i < one.n; i++)
        ck_assert_int_eq(one.id[i], 31373);
    dt_tokenizer_ids_free(&one);
    dt_tokenizer_ids_free(&all);
    dt_tokenizer_free(t);
}
END_TEST

/* ---- NFC: rows of Unicode's NormalizationTest (published), and its invariants ---- */

static void assert_nfc(const char *text, const char *expected)
{
    char *out;
    size_t n;

    dt_assert_ok(dt_unicode_nfc(text, strlen(text), &err, &out, &n), err);
    ck_assert_str_eq(out ? out : text, expected);
    dt_free(out);
}

START_TEST(nfc)
{
    assert_nfc("plain", "plain");
    assert_nfc("\xe1\xb8\x8a", "\xe1\xb8\x8a");                         /* 1E0A */
    assert_nfc("D\xcc\x87", "\xe1\xb8\x8a");                            /* D 0307 */
    assert_nfc("D\xcc\xa3\xcc\x87", "\xe1\xb8\x8c\xcc\x87");            /* D 0323 0307: 1E0C 0307 */
    assert_nfc("D\xcc\x87\xcc\xa3", "\xe1\xb8\x8c\xcc\x87");            /* reordered */
    assert_nfc("\xe2\x84\xab", "\xc3\x85");                             /* 212B angstrom: 00C5 */
    assert_nfc("\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc");             /* 0958: excluded */
    assert_nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* Hangul 1100 1161 11A8 */
    assert_nfc("\xea\xb0\x80\xe1\x86\xa8", "\xea\xb0\x81");             /* AC00 11A8: AC01 */
    assert_nfc("\xea\xb0\x80\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7"); /* AC00 11A7: a vowel */
    assert_nfc("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa7", "\xea\xb0\x80\xe1\x86\xa7");
    assert_nfc("\xcc\x81x", "\xcc\x81x");       /* nothing before it */
    assert_nfc("\xff\xcc\x81", "\xff\xcc\x81"); /* malformed stays */
}
END_TEST

START_TEST(classes)
{
    ck_assert(dt_unicode_letter('a') && dt_unicode_letter(0xe9) && dt_unicode_letter(0x4e00));
    ck_assert(!dt_unicode_letter('_') && !dt_unicode_letter(0x301) && !dt_unicode_letter(0x1f44b));
    ck_assert(dt_unicode_number('7') && dt_unicode_number(0xbd) && dt_unicode_number(0x2160));
    ck_assert(!dt_unicode_number('a') && !dt_unicode_number(0x110000));
    ck_assert(dt_unicode_space(0xa0) && dt_unicode_space(0x3000) && !dt_unicode_space(0x200b));
}
END_TEST

/* The white space of the Unicode Character Database (PropList.txt), unchanged since Unicode 6.3. */
static bool white(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Check's own assertions report where they are each time, which takes a minute for all of Unicode. */
static void hold(bool holds, uint32_t c, const char *what)
{
    if (!holds)
        ck_abort_msg("U+%04X: %s", c, what);
}

static void nfc_of(const char *text, size_t n, uint32_t c)
{
    char *out, *again;
    size_t len, len_again;

    hold(dt_unicode_nfc(text, n, &err, &out, &len) == DT_OK, c, "NFC");
    if (!out)
        return;
    hold(len <= 3 * n, c, "NFC is longer than three times the text");
    hold(dt_unicode_nfc(out, len, &err, &again, &len_again) == DT_OK, c, "NFC of NFC");
    hold(!again || (len == len_again && memcmp(out, again, len) == 0), c, "NFC of NFC differs");
    dt_free(again);
    dt_free(out);
}

/* What holds of every code point in every version of Unicode; tests/test_python.sh compares class
 * and NFC of each with Python's. */
START_TEST(every_code_point)
{
    for (uint32_t c = 0; c < 0x110000; c++) {
        bool letter = dt_unicode_letter(c), number = dt_unicode_number(c);
        bool surrogate = c >= 0xd800 && c <= 0xdfff;
        char text[8] = {0};
        size_t n = dt_unicode_put(c, text);
        uint32_t got;

        hold(dt_unicode_space(c) == white(c), c, "white space");
        hold(letter + number + white(c) <= 1, c, "of two classes");
        if ((c >= 0x4e00 && c <= 0x9fa5) || (c >= 0xac00 && c <= 0xd7a3))
            hold(letter, c, "an ideograph or a syllable is a letter");
        if (surrogate) { /* no characters, nor well-formed */
            hold(!letter && !number, c, "a surrogate has a class");
            hold(dt_unicode_get(text, n, &got) == 1 && got == 0x110000, c, "a surrogate is read");
            continue;
        }
        hold(n == (c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4), c, "length");
        hold(dt_unicode_get(text, n, &got) == n && got == c, c, "written and read");
        nfc_of(text, n, c);
    }
    ck_assert(!dt_unicode_letter(0x110000) && !dt_unicode_number(0x110000));
    ck_assert(!dt_unicode_space(0x110000));
}
END_TEST

/* Syllables from their parts by the arithmetic of the Unicode Standard, section 3.12. */
START_TEST(every_hangul_syllable)
{
    for (uint32_t l = 0; l < 19; l++)
        for (uint32_t v = 0; v < 21; v++)
            for (uint32_t t = 0; t < 28; t++) {
                char parts[16] = {0}, whole[8] = {0};
                size_t n = dt_unicode_put(0x1100 + l, parts);

                n += dt_unicode_put(0x1161 + v, parts + n);
                if (t > 0)
                    dt_unicode_put(0x11a7 + t, parts + n);
                dt_unicode_put(0xac00 + (l * 21 + v) * 28 + t, whole);
                assert_nfc(parts, whole);
                assert_nfc(whole, whole);
            }
}
END_TEST

static char *marks(size_t n)
{
    char *s = dt_malloc(2 * n + 2);
    size_t at = 1;

    ck_assert_ptr_nonnull(s);
    s[0] = 'a';
    for (size_t i = 0; i < n; i++) /* of classes 230 and 220 */
        at += dt_unicode_put(i % 2 ? 0x316 : 0x30d, s + at);
    s[at] = '\0';
    return s;
}

/* A run of marks is put in order in time that grows as its length does: sorting 16 times as many by
 * exchanging neighbours would take 256 times as long. */
START_TEST(long_runs_of_marks)
{
    double s[2] = {1e9, 1e9};

    for (int k = 0; k < 2; k++) {
        size_t n = k ? 320000 : 20000;
        char *text = marks(n), *out;
        size_t len;

        for (int round = 0; round < 3; round++) {
            uint64_t begin = dt_clock_ns();

            dt_assert_ok(dt_unicode_nfc(text, strlen(text), &err, &out, &len), err);
            s[k] = fmin(s[k], (double)(dt_clock_ns() - begin));
            ck_assert_uint_eq(len, 2 * n + 1);
            ck_assert_mem_eq(out + 1, "\xcc\x96\xcc\x96", 4); /* class 220 first */
            ck_assert_mem_eq(out + len - 4, "\xcc\x8d\xcc\x8d", 4);
            dt_free(out);
        }
        dt_free(text);
    }
    ck_assert_msg(s[1] < 100 * s[0], "16 times as many marks took %.0f times as long", s[1] / s[0]);
}
END_TEST

/* For tests/test_python.sh: a line with the class of each code point ('?' where it is not assigned),
 * then the NFC of each text on standard input; texts end with a zero byte. */
static int print_unicode(void)
{
    char text[4096];
    size_t n = 0;
    int b;

    for (uint32_t c = 0; c < 0x110000; c++)
        putchar(utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_CN ? '?'
                : dt_unicode_letter(c)                                         ? 'L'
                : dt_unicode_number(c)                                         ? 'N'
                : dt_unicode_space(c)                                          ? 'S'
                                                                               : '-');
    putchar('\n');
    while ((b = getchar()) != EOF) {
        char *out = NULL;
        size_t len = n;

        if (b != 0) {
            text[n++] = (char)b;
            if (n == sizeof text)
                return 1;
            continue;
        }
        if (dt_unicode_nfc(text, n, &err, &out, &len) != DT_OK)
            return 1;
        fwrite(out ? out : text, 1, out ? len : n, stdout);
        putchar(0);
        dt_free(out);
        n = 0;
    }
    return 0;
}

/* ---- refusals ---- */

static void refuse(const char *text, const char *part)
{
    struct dt_tokenizer *t = (struct dt_tokenizer *)&err;

    memset(&err, 0, sizeof err);
    ck_assert_int_eq(dt_tokenizer_parse("t.json", text, strlen(text), &err, &t), DT_ERR_INPUT);
    ck_assert_ptr_eq(t, (struct dt_tokenizer *)&err);
    dt_assert_has(err.message, part);
    ck_assert_str_eq(err.file, "t.json");
}

#define BL "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"
#define BPE(more) "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]" more "}"

START_TEST(refusals)
{
    refuse("[]", "model");
    refuse("{" BL "}", "model");
    refuse("{" BL "," BPE("") "}", "byte 0");
    refuse("{" BL ",\"model\":{\"type\":\"WordPiece\"}}", "WordPiece");
    refuse("{" BL ",\"model\":{\"vocab\":{}}}", "merges");
    refuse("{" BPE("") "}", "byte-level");
    refuse("{\"normalizer\":{\"type\":\"Lowercase\"}," BL "," BPE("") "}", "Lowercase");
    refuse("{\"pre_tokenizer\":{\"type\":\"Metaspace\"}," BPE("") "}", "Metaspace");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x\"},\"behavior\":"
           "\"Isolated\"}," BPE("") "}",
           "pattern");
    refuse("{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x\"},\"behavior\":"
           "\"Removed\"}," BPE("") "}",
           "Isolated");
    refuse("{" BL "," BPE(",\"byte_fallback\":true") "}", "byte_fallback");
    refuse("{" BL "," BPE(",\"dropout\":0.1") "}", "dropout");
    refuse("{" BL "," BPE(",\"end_of_word_suffix\":\"</w>\"") "}", "end_of_word_suffix");
    refuse("{" BL ",\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "id");
    refuse("{" BL ",\"model\":{\"vocab\":{\"a\":99999999},\"merges\":[]}}", "id");
    refuse("{" BL ",\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", "two tokens");
    refuse("{" BL ",\"decoder\":{\"type\":\"WordPiece\"}," BPE("") "}", "decoder");
}
END_TEST

/* The digest of a tokenizer with two merges, and of a loader that uses it. */
static uint64_t digest_of(const char *before, const char *merges, const char *model,
                          const char *added, uint64_t *job)
{
    struct dt_loader_options o = {.seq_len = 16};
    struct dt_tokenizer *t;
    struct dt_text text = {.s = NULL};
    uint64_t digest;
    char *json;

    dt_text_add(&text, "{%s" BL ",\"model\":{\"type\":\"BPE\",\"vocab\":{", before);
    for (int c = '!'; c <= '~'; c++)
        dt_text_add(&text, c == '"' || c == '\\' ? "\"\\%c\":%d," : "\"%c\":%d,", c, c);
    for (int b = 0, high = 0; b < 256; b++) /* the others, as GPT-2 writes them: from U+0100 on */
        if (b <= ' ' || (b > '~' && b < 0xa1) || b == 0xad) {
            int c = 0x100 + high++;

            dt_text_add(&text, "\"%c%c\":%d,", 0xc0 | c >> 6, 0x80 | (c & 63), b);
        } else if (b > '~') {
            dt_text_add(&text, "\"%c%c\":%d,", 0xc0 | b >> 6, 0x80 | (b & 63), b);
        }
    dt_text_add(&text, "\"aa\":256,\"ab\":257},\"merges\":[%s]%s},\"added_tokens\":[%s]}", merges,
                model, added);
    dt_assert_ok(dt_text_finish(&text, &err, &json), err);
    dt_assert_ok(dt_tokenizer_parse("t.json", json, strlen(json), &err, &t), err);
    dt_free(json);
    digest = dt_tokenizer_digest(t);
    o.tokenizer = t;
    dt_assert_ok(dt_loader_job_digest(&o, &err, job), err);
    dt_tokenizer_free(t);
    return digest;
}

START_TEST(digests)
{
#define MERGES "\"a a\",\"a b\""
#define EOS(strip) "{\"id\":258,\"content\":\"<eos>\",\"lstrip\":" strip "}"
    static const struct {
        const char *before, *merges, *model, *added;
        bool same; /* as the first */
    } v[] = {{"", MERGES, "", EOS("false"), true},
             {"\n ", "[\"a\",\"a\"],[\"a\",\"b\"]", "", EOS("false"), true},
             {"\"version\":\"1.0\",\"truncation\":null,", MERGES, "", EOS("false"), true},
             {"", "\"a b\",\"a a\"", "", EOS("false"), false},
             {"", "\"a a\"", "", EOS("false"), false},
             {"", MERGES, ",\"ignore_merges\":true", EOS("false"), false},
             {"", MERGES, "", EOS("true"), false},
             {"\"normalizer\":{\"type\":\"NFC\"},", MERGES, "", EOS("false"), false}};
    uint64_t d[sizeof v / sizeof v[0]], job[sizeof v / sizeof v[0]];

    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        d[i] = digest_of(v[i].before, v[i].merges, v[i].model, v[i].added, &job[i]);
        ck_assert_msg((d[i] == d[0]) == v[i].same, "tokenizer %zu", i);
        ck_assert_msg((job[i] == job[0]) == v[i].same, "job of tokenizer %zu", i);
        for (size_t k = 0; k < i; k++)
            ck_assert_msg(d[i] != d[k] || (v[i].same && v[k].same), "%zu is %zu", i, k);
    }
}
END_TEST

/* Every allocation of reading and encoding fails once: an error, nothing lost, nothing crashes. */
START_TEST(out_of_memory)
{
    bool done = false;

    for (uint64_t k = 1; !done; k += 1 + k / 8) {
        struct dt_tokenizer *t = NULL;
        struct dt_tokenizer_ids ids = {0};
        const char *srcdir = getenv("srcdir");
        char path[4096];
        enum dt_status st;

        snprintf(path, sizeof path, "%s/tests/data/tokenizer/qwen2-style.json",
                 srcdir ? srcdir : ".");
        dt_mem_fail_at(k);
        st = dt_tokenizer_open(path, &err, &t);
        if (st == DT_OK)
            st = dt_tokenizer_encode(t, "cafe\xcc\x81 hello", 12, true, &err, &ids);
        done = dt_mem_count() < k;
        dt_mem_fail_at(0);
        ck_assert(done ? st == DT_OK : st == DT_ERR_NOMEM || st == DT_OK);
        dt_tokenizer_ids_free(&ids);
        dt_tokenizer_free(t);
    }
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s;
    TCase *c;

    if (argc == 2 && strcmp(argv[1], "--unicode") == 0)
        return print_unicode();
    s = suite_create("data_tokenizer");
    c = dt_test_case(s, "all", 120);
    tcase_add_test(c, gpt2_published);
    tcase_add_test(c, llama3_published);
    tcase_add_test(c, splits);
    tcase_add_test(c, specials_in_text);
    tcase_add_test(c, special_names_in_the_vocabulary);
    tcase_add_test(c, bytes);
    tcase_add_test(c, round_trips);
    tcase_add_test(c, long_words);
    tcase_add_test(c, nfc);
    tcase_add_test(c, classes);
    tcase_add_test(c, every_code_point);
    tcase_add_test(c, every_hangul_syllable);
    tcase_add_test(c, long_runs_of_marks);
    tcase_add_test(c, refusals);
    tcase_add_test(c, digests);
    tcase_add_test(c, out_of_memory);
    return dt_test_run(s);
}
