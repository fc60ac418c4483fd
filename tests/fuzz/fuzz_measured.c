/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: measured values from CSV, and the metrics.jsonl of trainings.  What is accepted holds finite numbers only, or
 * none, under names that can be found again; what is refused says why and where. */
#include "report/measured.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x))                                                                                  \
            abort();                                                                               \
    } while (0)

static void check_summary(const struct dt_run_summary *s)
{
    char name[128];
    double v;

    for (int k = 0; k < DT_RUN_METRICS_N; k++)
        REQUIRE(isnan(s->v[k]) || (isfinite(s->v[k]) && s->v[k] >= 0));
    REQUIRE(isfinite(s->peak_flops) && s->n_modules <= DT_MAX_MODULES);
    for (int i = 0; i < s->n_modules; i++) {
        REQUIRE(s->module[i].name[0] && strlen(s->module[i].name) < DT_NAME_MAX);
        snprintf(name, sizeof(name), "%s.model_flops", s->module[i].name);
        REQUIRE(dt_run_summary_find(s, name, &v));
        for (int k = 0; k < DT_RUN_MODULE_METRICS_N; k++)
            REQUIRE(isnan(s->module[i].v[k]) || isfinite(s->module[i].v[k]));
    }
}

static void read_csv(const char *text, size_t size)
{
    struct dt_run_summary s;
    struct dt_error err = {0};

    if (dt_run_measured_parse("fuzz.csv", text, size, &err, &s) == DT_OK)
        check_summary(&s);
    else
        REQUIRE(err.message[0] && err.line > 0 && err.col > 0);
}

static void read_log(const char *text, size_t size)
{
    struct dt_run_summary s;
    struct dt_error err = {0};
    struct dt_run_log log;
    int64_t n;

    if (dt_run_log_parse("fuzz.jsonl", text, size, &err, &log) != DT_OK) {
        REQUIRE(err.message[0]);
        return;
    }
    n = log.n;
    REQUIRE(dt_run_log_select(&log, NULL) + log.n == n);
    dt_run_log_settle(&log);
    REQUIRE(log.n > 0 && log.n <= n);
    for (int64_t i = 1; i < log.n; i++)
        REQUIRE(log.step[i].step > log.step[i - 1].step);
    REQUIRE(dt_run_measured_log(&log, "fuzz.jsonl", &err, &s) == DT_OK);
    dt_run_log_free(&log);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    REQUIRE(text);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    read_csv(text, size);
    read_log(text, size);
    free(text);
    return 0;
}
