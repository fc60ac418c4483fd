/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: the profile importers.  The first byte picks the table family, the rest is its CSV;
 * what is accepted must survive a trip through SQL text, and the text reader itself gets the input
 * too. */
#include "base/mem.h"
#include "fit/profile_import.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(enum dt_status st, const struct dt_error *err)
{
    if (st != DT_OK && !err->message[0])
        abort();
}

static void round_trip(struct dt_profile_table *t)
{
    struct dt_profile_table back = {0};
    struct dt_error err = {0};
    char *text;
    size_t len;

    if (dt_profile_table_to_sql(t, &err, &text, &len) != DT_OK)
        abort();
    if (dt_profile_table_parse_sql("back", text, &err, &back) != DT_OK || back.n_rows != t->n_rows)
        abort();
    dt_free(text);
    dt_profile_table_free(&back);
}

static void read_sql(const uint8_t *data, size_t size)
{
    struct dt_profile_table t = {0};
    struct dt_error err = {0};
    char *text = malloc(size + 1);
    enum dt_status st;

    if (!text)
        return;
    memcpy(text, data, size);
    text[size] = '\0';
    st = dt_profile_table_parse_sql("fuzz.sql", text, &err, &t);
    check_error(st, &err);
    dt_profile_table_free(&t);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_import_options o = {
        .device = "dev", .shape = "llama-3-8b", .source = {.name = "fuzz"}};
    struct dt_import_result r;
    struct dt_profile_table t = {0};
    struct dt_error err = {0};
    const char *summary;
    int families = 0;
    enum dt_status st;

    if (size == 0)
        return 0;
    while (dt_import_format_name(families, &summary))
        families++;
    /* letters name the families, so that seeds are text: 'a' = the first */
    st = dt_import_profile(
        dt_import_format_name((data[0] + families * 12 - 'a') % families, &summary), "fuzz.csv",
        (const char *)data + 1, size - 1, &o, &err, &t, &r);
    check_error(st, &err);
    if (st == DT_OK)
        round_trip(&t);
    dt_profile_table_free(&t);
    read_sql(data, size);
    return 0;
}
