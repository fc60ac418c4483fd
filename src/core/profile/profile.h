/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Profiles: measured times of kernels and collectives on a named device, in SQLite, each row with its source.
 *
 * Schema: doc/formats.md.  A profile file is either an SQLite database (.db) or its SQL text (.sql). */
#ifndef DT_CORE_PROFILE_PROFILE_H
#define DT_CORE_PROFILE_PROFILE_H

#include "core/model/model.h"
#include "base/status.h"

enum { DT_PROFILE_SCHEMA = 1 };
enum dt_profile_row_kind {
    DT_ROW_MEASURED,
    DT_ROW_FITTED,
    DT_ROW_DERIVED,
    DT_ROW_ASSUMED,
    DT_ROW_KIND_N
};
extern const char *const dt_profile_row_kind_names[DT_ROW_KIND_N + 1];

struct dt_profile_row {
    int family;   /* enum dt_kop_family */
    int phase;    /* enum dt_kop_phase */
    int kind;     /* enum dt_profile_row_kind */
    int source;   /* index into sources */
    int64_t d[6]; /* dims as documented at enum dt_kop_family; unused 0 */
    int64_t n;    /* observations behind the row */
    double median_ns, p10_ns, p90_ns;
};
struct dt_profile_source {
    int64_t id;
    char name[64], origin[256], licence[64], date[32], note[256];
};
struct dt_profile { /* all rows of one device and dtype, sorted by (family, phase, d[]) */
    char device[DT_NAME_MAX], dtype[16];
    int64_t n_rows;
    struct dt_profile_row *rows;
    int n_sources;
    struct dt_profile_source *sources;
    int64_t first[DT_KOP_FAMILY_N]
                 [DT_PHASE_N + 1]; /* rows of (family, phase): [first[f][p], first[f][p+1]) */
};

/* `name`: preset (traces/profiles/NAME.sql) or path to .sql/.db.  `device` "" = the only device in the file.
 * Rejects wrong schema version, negative times, unknown ops, truncated files. */
enum dt_status dt_profile_load(const char *name, const char *device, const char *dtype,
                               struct dt_error *err, struct dt_profile **out);
void dt_profile_free(struct dt_profile *p);

#endif
