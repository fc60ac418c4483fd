/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain profile --data JOB: what a core of this machine preprocesses in a second, of the job's own data. */
#include "cli/facts.h"
#include "cli/profile.h"
#include "cli/ranks.h"
#include "cli/session.h"
#include "base/file.h"
#include "base/text.h"
#include "exec/train/profiler_data.h"
#include "exec/train/setup.h"

#include <string.h>

static void facts(const struct dt_cli_facts *f, const struct dt_profiler_data_report *r)
{
    dt_cli_fact_int(f, "images", "measured", "%lld images", r->images);
    dt_cli_fact_int(f, "sounds", "", ", %lld sounds", r->sounds);
    dt_cli_fact_int(f, "captions", "", ", %lld captions\n", r->captions);
    dt_cli_fact_number(f, "decode_px_per_s", "decoding", "%10.1f Mpixel/s a core\n", 1e-6,
                       r->per_s[DT_CPU_PREP_DECODE]);
    dt_cli_fact_number(f, "resize_px_per_s", "resizing", "%10.1f Mpixel/s a core\n", 1e-6,
                       r->per_s[DT_CPU_PREP_RESIZE]);
    dt_cli_fact_number(f, "tokenize_bytes_per_s", "tokenizing", "%10.1f MB/s a core\n", 1e-6,
                       r->per_s[DT_CPU_PREP_TOKENIZE]);
    dt_cli_fact_number(f, "sound_s_per_s", "hearing", "%10.1f s of sound/s a core\n", 1,
                       1e-3 * r->per_s[DT_CPU_PREP_SOUND]);
    dt_cli_fact_number(f, "reference_s", "at the speed of", "reference kernels of %.3f ms\n", 1e3,
                       r->reference_s);
}

static enum dt_status show(const struct dt_cli *cli, const char *output,
                           const struct dt_profiler_data_report *r, struct dt_error *err)
{
    struct dt_cli_facts f = {.width = 12};
    struct dt_json j;

    if (!cli->json) {
        if (strcmp(output, "-") != 0)
            facts(&f, r);
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "output", output);
    f.json = &j;
    facts(&f, r);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status measure(struct dt_cli *cli, const struct dt_setup *s, struct dt_error *err)
{
    const char *output = dt_cli_string(cli, "output", "cpu-prep.sql");
    struct dt_profiler_data_options o = {.loader = &s->loader,
                                         .device = dt_cli_string(cli, "device", "cpu")};
    struct dt_profile_table t = {0};
    struct dt_profiler_data_report r;
    enum dt_status st;
    int64_t n;

    DT_TRY(dt_cli_one_stdout(cli, output, err));
    DT_TRY(dt_cli_int(cli, "samples", 1, DT_PROFILER_DATA_SAMPLES_MAX, DT_PROFILER_DATA_SAMPLES, &n,
                      err));
    if (s->n_producers > 0)
        return dt_error_set(err, DT_ERR_INPUT,
                            "run.data names producers; rates are measured where the shards are: "
                            "run.data=PATH");
    o.samples = (int)n;
    DT_TRY(dt_cli_double(cli, "reference", 1e-6, 1, 0, &o.reference_s, err));
    st = dt_profiler_data(&o, err, &t, &r);
    if (st == DT_OK)
        st = dt_profile_table_write(&t, output, err);
    if (st == DT_OK)
        st = show(cli, output, &r, err);
    dt_profile_table_free(&t);
    return st;
}

enum dt_status dt_cmd_profile_data(struct dt_cli *cli, struct dt_error *err)
{
    const char *path = cli->args[0];
    char found[4096];
    struct dt_job *job;
    enum dt_status st;

    if (strcmp(path, "-") != 0) {
        DT_TRY(dt_file_find("jobs", path, ".yaml", err, found, sizeof found));
        path = found;
    }
    DT_TRY(dt_job_read(path, cli->args + 1, cli->n_args - 1, err, &job));
    st = dt_cli_on_setup(cli, job, "what data to measure with", measure, err);
    dt_job_free(job);
    return st;
}
