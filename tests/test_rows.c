/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows that are described once: as a table, as JSON and as comma-separated values. */
#include "base/mem.h"
#include "cli/rows.h"
#include "test_util.h"

#include <math.h>
#include <stdio.h>

struct run {
    const char *name;
    int64_t ranks;
    double s, error;
};
static const struct run runs[] = {{"first", 4, 1.5, 0.25}, {"second, longer", 16, 12, NAN}};

static void add(struct dt_cli_rows *r, const struct run *x)
{
    dt_cli_row(r);
    dt_cli_row_text(r, "name", "run", x ? x->name : NULL);
    dt_cli_row_int(r, "ranks", NULL, x ? x->ranks : 0);
    dt_cli_row_number(r, "time_s", "time [ms]", "%.1f", 1e3, x ? x->s : 0);
    dt_cli_row_number(r, "error", "error [%]", "%+.1f", 100, x ? x->error : 0);
    dt_cli_row_bool(r, "large", x && x->ranks > 8);
    dt_cli_row_cell(r, "on", "%d ranks", x ? (int)x->ranks : 0);
}

static void table_is(struct dt_cli_rows *r, const char *expected)
{
    char text[1000] = {0};
    FILE *f = fmemopen(text, sizeof(text), "w");

    ck_assert_ptr_nonnull(f);
    dt_cli_rows_end(r, f);
    fclose(f);
    ck_assert_str_eq(text, expected);
}

START_TEST(table)
{
    static const int order[] = {3, 0, 1, 2};
    struct dt_cli_rows r;

    dt_cli_rows_table(&r);
    for (int i = 0; i < 2; i++)
        add(&r, &runs[i]);
    table_is(&r, "run             time [ms]  error [%]        on\n"
                 "first              1500.0      +25.0   4 ranks\n"
                 "second, longer    12000.0          -  16 ranks\n");
    dt_cli_rows_table(&r);
    r.order = order;
    add(&r, &runs[0]);
    table_is(&r, "     on  run    time [ms]  error [%]\n"
                 "4 ranks  first     1500.0      +25.0\n");
}
END_TEST

START_TEST(csv)
{
    static const struct run quoted = {"say \"a,b\"\n", 1, 0.1, -INFINITY};
    struct dt_error err = {0};
    struct dt_text out = {0};
    struct dt_cli_rows r;
    char *text;

    dt_cli_rows_csv(&r, &out);
    for (int i = 0; i < 2; i++)
        add(&r, &runs[i]);
    add(&r, &quoted);
    dt_cli_rows_end(&r, NULL);
    dt_assert_ok(dt_text_finish(&out, &err, &text), err);
    ck_assert_str_eq(text, "name,ranks,time_s,error,large\n"
                           "first,4,1.5,0.25,false\n"
                           "\"second, longer\",16,12,,true\n"
                           "\"say \"\"a,b\"\"\n\",1,0.1,,false\n");
    dt_free(text);
    dt_cli_rows_csv(&r, &out); /* no rows: no heads either */
    dt_cli_rows_end(&r, NULL);
    dt_assert_ok(dt_text_finish(&out, &err, &text), err);
    ck_assert_str_eq(text, "\n");
    dt_free(text);
}
END_TEST

START_TEST(table_without_rows)
{
    struct dt_cli_rows r;

    dt_cli_rows_table(&r);
    add(&r, NULL);
    dt_cli_rows_none(&r);
    table_is(&r, "run  time [ms]  error [%]  on\n");
    dt_cli_rows_table(&r);
    table_is(&r, "");
}
END_TEST

START_TEST(json)
{
    struct dt_cli_rows r;
    struct dt_error err;
    struct dt_json j;
    char *text;

    dt_json_init(&j, false);
    dt_json_begin_object(&j);
    dt_cli_rows_json(&r, &j, "runs");
    for (int i = 0; i < 2; i++)
        add(&r, &runs[i]);
    dt_cli_rows_end(&r, NULL);
    dt_cli_rows_json(&r, &j, "none");
    dt_cli_rows_end(&r, NULL);
    dt_json_end_object(&j);
    dt_assert_ok(dt_json_finish(&j, &err, &text), err);
    ck_assert_str_eq(text,
                     "{\"runs\":[{\"name\":\"first\",\"ranks\":4,\"time_s\":1.5,\"error\":0.25,"
                     "\"large\":false},{\"name\":\"second, longer\",\"ranks\":16,\"time_s\":12,"
                     "\"error\":null,\"large\":true}],\"none\":[]}");
    dt_free(text);
}
END_TEST

/* Whatever allocation fails, what there is is printed, and freed. */
START_TEST(out_of_memory)
{
    for (uint64_t k = 1; k < 40; k++) {
        struct dt_cli_rows r;
        char text[1000] = {0};
        FILE *f = fmemopen(text, sizeof(text), "w");

        dt_mem_fail_at(k);
        dt_cli_rows_table(&r);
        add(&r, &runs[0]);
        dt_cli_rows_end(&r, f);
        dt_mem_fail_at(0);
        fclose(f);
        if (!strstr(text, "out of memory")) {
            ck_assert_uint_gt(k, 10);
            return;
        }
    }
    ck_abort_msg("never whole");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rows");
    TCase *c = dt_test_case(s, "rows", 0);

    tcase_add_test(c, table);
    tcase_add_test(c, table_without_rows);
    tcase_add_test(c, json);
    tcase_add_test(c, csv);
    tcase_add_test(c, out_of_memory);
    return dt_test_run(s);
}
