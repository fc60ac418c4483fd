/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Facts of a result, described once: the lines of a report for people and the members of an object in
 * JSON are both made of them (results that are rows: cli/rows.h).
 *
 *     dt_cli_fact_number(f, "mfu", "MFU", "%10.2f %%", 100, r->mfu);
 *     dt_cli_fact_note(f, "   of %d GPUs used\n", r->gpus_used);
 *     dt_cli_fact_number(f, "samples_per_s", "throughput", "%10.1f samples/s\n", 1, r->samples_per_s);
 *
 * A fact has the key of its member, or NULL where programs do not get it, and the label that begins its
 * line ("" goes on with the line), or NULL where people do not. The format has the unit and what explains
 * the value, and "\n" where the line ends; it is "" where a note writes the value. */
#ifndef DT_CLI_FACTS_H
#define DT_CLI_FACTS_H

#include "base/json.h"

struct dt_cli_facts {
    struct dt_json *json; /* members of the object that is open; NULL = lines on standard output */
    int width;            /* of the labels */
};

/* The text is scale * v in that format. */
void dt_cli_fact_number(const struct dt_cli_facts *f, const char *key, const char *label,
                        const char *format, double scale, double v);
/* The format takes an int64_t as %lld. */
void dt_cli_fact_int(const struct dt_cli_facts *f, const char *key, const char *label,
                     const char *format, int64_t v);
void dt_cli_fact_text(const struct dt_cli_facts *f, const char *key, const char *label,
                      const char *format, const char *v);
/* For programs only. */
void dt_cli_fact_bool(const struct dt_cli_facts *f, const char *key, bool v);
/* For people only. */
void dt_cli_fact_note(const struct dt_cli_facts *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
