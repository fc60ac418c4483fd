/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain data index: make the indexes of shards that training keeps, before it begins. */
#include "cli/data.h"
#include "cli/session.h"
#include "base/mem.h"
#include "base/text.h"
#include "exec/data/pack.h"
#include "exec/data/shard.h"

#include <string.h>

static enum dt_status print(const struct dt_cli *cli, const struct dt_shard_index *ix,
                            const struct dt_shard_keep *k, const struct dt_data_report *r,
                            struct dt_error *err)
{
    struct dt_json j;

    if (!cli->json) {
        printf("%zu sample%s in %d shard%s: %d found in an index, %d passed over, %d index%s "
               "written\n",
               ix->n, dt_plural((int64_t)ix->n), ix->n_shards, dt_plural(ix->n_shards), k->found,
               k->passed, k->written, k->written == 1 ? "" : "es");
        if (k->where[0])
            printf("  in %s\n", k->where);
        if (k->replaced)
            printf("  %d index%s damaged, or of a shard that has changed\n", k->replaced,
                   k->replaced == 1 ? " was" : "es were");
        dt_cli_data_report(stdout, "  ", r);
        return DT_OK;
    }
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_int(&j, "shards", ix->n_shards);
    dt_json_kv_int(&j, "samples", (int64_t)ix->n);
    dt_json_kv_int(&j, "found", k->found);
    dt_json_kv_int(&j, "passed", k->passed);
    dt_json_kv_int(&j, "replaced", k->replaced);
    dt_json_kv_int(&j, "written", k->written);
    dt_json_kv_string(&j, "folder", k->where[0] ? k->where : NULL);
    dt_data_report_json(r, &j);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status make(struct dt_cli *cli, const char *const *shards, int n,
                           struct dt_error *err)
{
    struct dt_shard_keep k = {.always = true};
    struct dt_data_report r = {0};
    struct dt_shard_index *ix;
    enum dt_status st;
    bool keep;

    DT_TRY(dt_cli_data_on_bad(cli, err, &r.fatal));
    dt_cli_data_keep(cli, &keep, &k.folder);
    if (!keep)
        return dt_error_set(err, DT_ERR_USAGE,
                            "data index with --index none would do nothing; auto or a folder");
    DT_TRY(dt_shard_index_open(shards, n, &k, &r, err, &ix));
    st = k.why[0] ? dt_error_set(err, DT_ERR_IO, "cannot keep the index: %s", k.why)
                  : print(cli, ix, &k, &r, err);
    dt_shard_index_close(ix);
    return st;
}

enum dt_status dt_cli_data_index(struct dt_cli *cli, struct dt_error *err)
{
    enum dt_status st;
    char **shards;
    int n;

    if (cli->n_args < 2)
        return dt_error_set(err, DT_ERR_USAGE, "data index needs shards: data index SHARDS...");
    DT_TRY(dt_shard_list(cli->args + 1, cli->n_args - 1, err, &shards, &n));
    st = make(cli, (const char *const *)shards, n, err);
    dt_free(shards);
    return st;
}
