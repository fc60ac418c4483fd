/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Charts: committed pictures byte for byte (DT_UPDATE=1 writes them anew: look at them before committing), ticks, places
 * and what must hold of any picture. */
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "report/chart_impl.h"
#include "report/html.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

static struct dt_error err;

/* ---- committed pictures ---- */

static void compare(const char *name, char *text)
{
    const char *srcdir = getenv("srcdir");
    char path[512], *want = NULL;
    size_t n;

    snprintf(path, sizeof path, "%s/tests/golden/chart-%s", srcdir ? srcdir : ".", name);
    if (getenv("DT_UPDATE"))
        dt_assert_ok(dt_file_write(path, text, strlen(text), &err), err);
    dt_assert_ok(dt_file_read(path, 1 << 20, &err, &want, &n), err);
    ck_assert_msg(strcmp(want, text) == 0, "%s differs; it is now:\n%s", path, text);
    dt_free(want);
    dt_free(text);
}

static void compare_both(const char *name, const struct dt_chart *c)
{
    const struct dt_chart_terminal plain = {.width = 72};
    char file[64], *text;

    snprintf(file, sizeof file, "%s.svg", name);
    dt_assert_ok(dt_chart_svg(c, DT_CHART_FILE, NULL, &err, &text), err);
    compare(file, text);
    snprintf(file, sizeof file, "%s.txt", name);
    dt_assert_ok(dt_chart_text(c, &plain, &err, &text), err);
    compare(file, text);
}

START_TEST(points_with_whiskers_and_a_front)
{
    static const double gpus[] = {96, 192, 384, 768, 1296, 2048, 4096};
    static const double days[] = {412.4, 209.1, 107.3, 56.2, 35.9, NAN, 14.6};
    static const double low[] = {398, 201, 103, 53.9, 34.2, NAN, 13.7};
    static const double high[] = {431, 219, 112, 59.1, 38.3, NAN, 16.0};
    static const double more[] = {520.4, 260.8, 133.3, 71.0, 49.7, 35.4, 30.6};
    static const bool best[] = {true, true, true, true, true, false, true};
    static const char *const label[] = {NULL, NULL, NULL, NULL, "1,296 GPUs: 35.9 d", NULL, NULL};
    const struct dt_chart_series s[] = {
        {.name = "DistTrain",
         .n = 7,
         .x = gpus,
         .y = days,
         .low = low,
         .high = high,
         .front = best,
         .label = label},
        {.name = "Megatron-LM", .mark = DT_CHART_POINTS, .n = 7, .x = gpus, .y = more},
    };
    const struct dt_chart_rule deadline = {"deadline: 60 days", 60, false};
    const struct dt_chart c = {
        .title = "Time to train MLLM-72B on 1 T tokens",
        .summary = "The time falls from 412 days on 96 GPUs to 15 days on 4,096.",
        .x = {.label = "GPUs", .log = true},
        .y = {.label = "time", .unit = "days", .log = true},
        .series = s,
        .n_series = 2,
        .rules = &deadline,
        .n_rules = 1,
        .front_name = "Pareto front: no less of both",
    };

    compare_both("points", &c);
}
END_TEST

START_TEST(lines_of_many_points)
{
    enum { N = 5000 };
    static double step[N], text[N], image[N];
    struct dt_chart_series s[] = {
        {.name = "text: nats per token", .mark = DT_CHART_LINE, .n = N, .x = step, .y = text},
        {.name = "images", .mark = DT_CHART_LINE, .n = N, .x = step, .y = image},
    };
    const struct dt_chart c = {.title = "Losses of run 7",
                               .x = {.label = "step"},
                               .y = {.label = "loss", .zero = true},
                               .series = s,
                               .n_series = 2};
    char *svg;

    for (int i = 0; i < N; i++) {
        step[i] = i;
        text[i] = 1.2 + 4.4 / (1 + i / 300.0) + 0.01 * ((i * 37) % 11);
        image[i] = i > 2000 && i < 2200 ? NAN : 0.4 + 1 / (1 + i / 900.0);
    }
    compare_both("lines", &c);
    dt_assert_ok(dt_chart_svg(&c, DT_CHART_FILE, NULL, &err, &svg), err);
    ck_assert_msg(strlen(svg) < 80000, "10,000 points take %zu bytes", strlen(svg));
    dt_free(svg);
}
END_TEST

START_TEST(bars_beside_each_other)
{
    static const char *const what[] = {"forward", "backward", "collectives", "data"};
    static const double a[] = {3.1, 6.4, 0.8, 0.05}, b[] = {3.3, 6.1, 1.9, NAN};
    static const double low[] = {2.9, 6.0, 0.7, NAN}, high[] = {3.3, 6.9, 0.95, NAN};
    const struct dt_chart_series s[] = {
        {.name = "before", .n = 4, .y = a, .low = low, .high = high},
        {.name = "after", .n = 4, .y = b},
    };
    const struct dt_chart c = {.title = "Where the time goes",
                               .y = {.label = "time", .unit = "s"},
                               .series = s,
                               .n_series = 2,
                               .categories = what,
                               .n_categories = 4};

    compare_both("bars", &c);
}
END_TEST

START_TEST(stacks_that_lie)
{
    static const char *const stage[] = {"encoder", "llm stage 0", "llm stage 1", "generator"};
    static const double params[] = {1.5, 18.2, 17.9, 4}, optimizer[] = {3, 22.5, 22.1, 9},
                        activations[] = {12, 28.5, 14.2, 21.7};
    const struct dt_chart_series s[] = {
        {.name = "parameters", .n = 4, .y = params},
        {.name = "optimizer", .n = 4, .y = optimizer},
        {.name = "activations", .colour = DT_CHART_SKY, .n = 4, .y = activations},
    };
    const struct dt_chart_rule capacity = {"capacity 80 GiB", 80, false};
    const struct dt_chart c = {.title = "Memory of a GPU",
                               .y = {.label = "memory", .unit = "GiB"},
                               .series = s,
                               .n_series = 3,
                               .rules = &capacity,
                               .n_rules = 1,
                               .categories = stage,
                               .n_categories = 4,
                               .stacked = true,
                               .horizontal = true};

    compare_both("stacks", &c);
}
END_TEST

START_TEST(changes_both_ways)
{
    static const char *const input[] = {"matrix products", "NIC bandwidth",
                                        "a name that is much longer than any column of a chart"};
    static const double less[] = {8.1, -1.6, 0}, more[] = {-7.2, 2.1, 0};
    const struct dt_chart_series s[] = {
        {.name = "10 % less", .colour = DT_CHART_ORANGE, .n = 3, .y = less},
        {.name = "10 % more", .colour = DT_CHART_BLUE, .n = 3, .y = more},
    };
    const struct dt_chart c = {.title = "Change of the iteration",
                               .y = {.unit = "%"},
                               .series = s,
                               .n_series = 2,
                               .categories = input,
                               .n_categories = 3,
                               .stacked = true,
                               .horizontal = true};

    compare_both("changes", &c);
}
END_TEST

/* ---- rules of any picture ---- */

START_TEST(ticks_are_round_and_span_the_data)
{
    struct dt_rng r;
    struct dt_chart_scale s;

    printf("seed %" PRIu64 "\n", dt_test_seed());
    dt_rng_init(&r, dt_test_seed(), 0);
    for (int n = 0; n < 20000; n++) {
        const struct dt_chart_axis a = {.log = n % 2};
        double least = pow(10, 24 * dt_rng_uniform(&r) - 12), most = least;
        char label[64], last[64] = "";

        most *= n % 3 == 0 ? 1 + dt_rng_uniform(&r) : pow(10, 9 * dt_rng_uniform(&r));
        if (!a.log && n % 4 == 0)
            least = -least;
        dt_chart_scale_fit(&s, &a, least, most, 3 + n % 8);
        ck_assert(s.from <= least + 1e-6 * (s.to - s.from) &&
                  s.to >= most - 1e-6 * (s.to - s.from));
        ck_assert_int_ge(s.n_ticks, 2);
        ck_assert_int_lt(s.n_ticks, DT_CHART_TICKS_MAX);
        for (int k = 0; k < s.n_ticks; k++) {
            double at = dt_chart_scale_at(&s, s.tick[k]);
            double digits =
                s.tick[k] == 0 ? 1 : fabs(s.tick[k]) / pow(10, floor(log10(fabs(s.tick[k]))) - 3);

            ck_assert_msg(at > -1e-9 && at < 1 + 1e-9, "tick %g lies at %g", s.tick[k], at);
            ck_assert_msg(a.log || s.n_ticks > 20 || fabs(digits - round(digits)) < 1e-3 ||
                              fabs(s.tick[k]) > 100 * s.step,
                          "%g is not round", s.tick[k]);
            dt_chart_scale_label(&s, s.tick[k], label, sizeof label);
            ck_assert_msg(strcmp(label, last) != 0, "two ticks are named %s", label);
            memcpy(last, label, sizeof last);
        }
    }
}
END_TEST

START_TEST(numbers_read_as_people_write_them)
{
    static const struct {
        double v;
        const char *unit, *text;
    } table[] = {{1296, NULL, "1,296"},
                 {35.94, "days", "35.94 days"},
                 {0.25, NULL, "0.25"},
                 {123456, NULL, "123,456"},
                 {-2500.5, "s", "-2,500.5 s"},
                 {0, "s", "0 s"},
                 {3.12e14, "FLOP/s", "312 TFLOP/s"},
                 {2.5e6, NULL, "2.5 M"},
                 {1e-5, NULL, "1e-05"}};

    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        char text[64];

        dt_chart_value(table[k].v, table[k].unit, text, sizeof text);
        ck_assert_str_eq(text, table[k].text);
    }
}
END_TEST

START_TEST(texts_cannot_break_out)
{
    static const double x[] = {1, 2}, y[] = {-1, 2};
    static const char *const label[] = {"</title><script>", "\xff\x01"};
    static const bool front[] = {true, true};
    const struct dt_chart_series s = {
        .name = "<b>&\"'", .n = 2, .x = x, .y = y, .label = label, .front = front};
    const struct dt_chart c = {.title = "a < b & \x1b[31m",
                               .x = {.label = "]]>"},
                               .y = {.label = "\xc3", .log = true},
                               .series = &s,
                               .n_series = 1};
    const struct dt_chart_terminal plain = {0};
    char *text;

    for (int form = 0; form < 2; form++) {
        dt_assert_ok(dt_chart_svg(&c, (enum dt_chart_form)form, "x", &err, &text), err);
        ck_assert_ptr_null(strstr(text, "<script"));
        ck_assert_ptr_null(strstr(text, "<b>"));
        ck_assert_ptr_null(strchr(text, '\x1b'));
        ck_assert_ptr_null(strchr(text, '\xff'));
        dt_assert_has(text, "&lt;b&gt;&amp;&quot;&#39;");
        dt_assert_has(text, "1 value not shown");
        ck_assert_msg((strstr(text, "#0072b2") != NULL) == (form == DT_CHART_FILE),
                      "colours are written out in a file and not in a page");
        dt_free(text);
    }
    dt_assert_ok(dt_chart_text(&c, &plain, &err, &text), err);
    ck_assert_ptr_null(strchr(text, '\x1b'));
    dt_free(text);
}
END_TEST

static int widest_line(const char *s)
{
    int most = 0, n = 0;

    for (; *s; s++) {
        n = *s == '\n' ? 0 : n + (((unsigned char)*s & 0xc0) != 0x80);
        most = n > most ? n : most;
    }
    return most;
}

START_TEST(characters_keep_to_the_terminal)
{
    static const double x[] = {1, 1e6}, y[] = {0.001, 123456789};
    const struct dt_chart_series s = {.name = "a series", .n = 2, .x = x, .y = y};
    const struct dt_chart c = {.title = "t",
                               .x = {.label = "x", .log = true},
                               .y = {.unit = "s"},
                               .series = &s,
                               .n_series = 1};

    for (int width = 40; width < 200; width += 13)
        for (int colour = 0; colour < 2; colour++) {
            const struct dt_chart_terminal t = {.width = width, .colour = colour};
            char *text;

            dt_assert_ok(dt_chart_text(&c, &t, &err, &text), err);
            ck_assert_msg((strchr(text, '\x1b') != NULL) == colour, "colour only where asked for");
            if (!colour)
                ck_assert_int_le(widest_line(text), width);
            dt_free(text);
        }
}
END_TEST

START_TEST(nothing_to_draw_and_contradictions)
{
    static const double x[] = {1};
    const struct dt_chart none = {.title = "none", .y = {.log = true}};
    const struct dt_chart_series half = {.n = 1, .x = x, .y = x, .low = x},
                                 nowhere = {.n = 1, .y = x};
    const struct dt_chart_terminal plain = {0};
    struct dt_chart c = {.series = &half, .n_series = 1};
    char *text;

    dt_assert_ok(dt_chart_svg(&none, DT_CHART_FILE, NULL, &err, &text), err);
    dt_assert_has(text, "no data");
    dt_free(text);
    dt_assert_ok(dt_chart_text(&none, &plain, &err, &text), err);
    dt_assert_has(text, "no data");
    dt_free(text);
    ck_assert_int_eq(dt_chart_svg(&c, DT_CHART_FILE, NULL, &err, &text), DT_ERR_INTERNAL);
    c.series = &nowhere;
    ck_assert_int_eq(dt_chart_text(&c, &plain, &err, &text), DT_ERR_INTERNAL);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    static const double x[] = {1, 2, 3};
    static const bool front[] = {true, true, false};
    const struct dt_chart_series s = {.name = "s", .n = 3, .x = x, .y = x, .front = front};
    const struct dt_chart c = {.title = "t", .series = &s, .n_series = 1};
    const struct dt_chart_terminal plain = {0};

    for (uint64_t k = 1; k < 1000; k++) {
        char *text = NULL;
        enum dt_status a, b;

        dt_mem_fail_at(k);
        a = dt_chart_svg(&c, DT_CHART_FILE, NULL, &err, &text);
        dt_free(text);
        text = NULL;
        b = a == DT_OK ? dt_chart_text(&c, &plain, &err, &text) : DT_OK;
        dt_mem_fail_at(0);
        dt_free(text);
        if (a == DT_OK && b == DT_OK) {
            ck_assert_int_gt(k, 3);
            return;
        }
        ck_assert_int_eq(a == DT_OK ? b : a, DT_ERR_NOMEM);
    }
    ck_abort_msg("an allocation fails without end");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("chart");
    TCase *c = dt_test_case(s, "pictures", 0);

    tcase_add_test(c, points_with_whiskers_and_a_front);
    tcase_add_test(c, lines_of_many_points);
    tcase_add_test(c, bars_beside_each_other);
    tcase_add_test(c, stacks_that_lie);
    tcase_add_test(c, changes_both_ways);
    c = dt_test_case(s, "rules", 60);
    tcase_add_test(c, ticks_are_round_and_span_the_data);
    tcase_add_test(c, numbers_read_as_people_write_them);
    tcase_add_test(c, texts_cannot_break_out);
    tcase_add_test(c, characters_keep_to_the_terminal);
    tcase_add_test(c, nothing_to_draw_and_contradictions);
    tcase_add_test(c, every_allocation_may_fail);
    return dt_test_run(s);
}
