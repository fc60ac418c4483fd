/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain runs show --json. */
#include "cli/runs.h"

#include "cli/session.h"

static void document(struct dt_json *j, const char *key, const char *text)
{
    dt_json_key(j, key);
    if (text)
        dt_json_raw(j, text);
    else
        dt_json_null(j);
}

enum dt_status dt_cli_runs_show_json(const struct dt_cli_compared *c, const struct dt_run_ref *run,
                                     struct dt_error *err)
{
    const struct dt_run_summary *s = &c->run[0];
    struct dt_run_documents d;
    struct dt_json j;

    DT_TRY(dt_run_documents_read(run, err, &d));
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "file", s->file);
    dt_cli_run_json_members(&j, s);
    dt_json_kv_int(&j, "size_bytes", s->about.bytes);
    dt_json_key(&j, "facts");
    dt_json_begin_object(&j);
    for (int i = 0; i < s->facts.n; i++)
        dt_json_kv_string(&j, s->facts.fact[i].name, s->facts.fact[i].value);
    dt_json_end_object(&j);
    dt_cli_compared_json_rows(&j, c);
    document(&j, "job_document", d.job);
    document(&j, "plan", d.plan);
    document(&j, "report", d.report);
    dt_json_end_object(&j);
    dt_run_documents_free(&d);
    return dt_cli_json_emit(&j, err);
}
