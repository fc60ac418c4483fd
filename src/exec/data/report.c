/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/data/report.h"

#include <stdio.h>
#include <string.h>

static const char *const keys[] = {
#define X(name, key, text) key,
    DT_BAD_LIST(X)
#undef X
};
static const char *const texts[] = {
#define X(name, key, text) text,
    DT_BAD_LIST(X)
#undef X
};

const char *dt_data_bad_text(enum dt_data_bad_kind kind)
{
    return texts[kind];
}

enum dt_status dt_data_bad(struct dt_data_report *r, enum dt_data_bad_kind kind,
                           const struct dt_error *why)
{
    if (r->bad[kind]++ == 0) {
        char text[sizeof why->message + sizeof why->file + 64];
        dt_error_format(why, text, sizeof text);
        snprintf(r->example[kind], sizeof r->example[kind], "%.*s",
                 (int)sizeof r->example[kind] - 1, text);
    }
    return r->fatal ? why->status : DT_OK;
}

int64_t dt_data_bad_total(const struct dt_data_report *r)
{
    int64_t sum = 0;
    for (int i = 0; i < DT_BAD_COUNT; i++)
        sum += r->bad[i];
    return sum;
}

void dt_data_report_add(struct dt_data_report *to, const struct dt_data_report *from)
{
    for (int i = 0; i < DT_BAD_COUNT; i++) {
        if (to->bad[i] == 0)
            memcpy(to->example[i], from->example[i], sizeof to->example[i]);
        to->bad[i] += from->bad[i];
    }
    to->documents += from->documents;
    to->captions_cut += from->captions_cut;
    to->clips_cut += from->clips_cut;
}

void dt_data_report_json(const struct dt_data_report *r, struct dt_json *j)
{
    dt_json_kv_int(j, "documents", r->documents);
    dt_json_kv_int(j, "captions_cut", r->captions_cut);
    dt_json_kv_int(j, "clips_cut", r->clips_cut);
    dt_json_key(j, "bad");
    dt_json_begin_object(j);
    for (int i = 0; i < DT_BAD_COUNT; i++)
        dt_json_kv_int(j, keys[i], r->bad[i]);
    dt_json_end_object(j);
    dt_json_key(j, "examples");
    dt_json_begin_array(j);
    for (int i = 0; i < DT_BAD_COUNT; i++)
        if (r->bad[i])
            dt_json_string(j, r->example[i]);
    dt_json_end_array(j);
}
