/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain keys: what a job may say, from the rows that its readers go by. */
#include "base/doc.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/rows.h"
#include "core/job/job.h"

#include <string.h>

enum { TEXT = 512 };

struct listing {
    const struct dt_cli *cli;
    struct dt_cli_rows rows;
    struct dt_json json;
};

/* Is it asked for: itself, or a map that it is in; without arguments all are. */
static bool asked(const struct dt_cli *cli, const char *path)
{
    for (int i = 0; i < cli->n_args; i++)
        if (dt_keys_inside(path, cli->args[i]))
            return true;
    return cli->n_args == 0;
}

static enum dt_status check(const struct dt_cli *cli, struct dt_error *err)
{
    for (int i = 0; i < cli->n_args; i++) {
        const char *path = cli->args[i], *near;
        char text[TEXT];

        if (dt_keys_at(dt_job_keys, path))
            continue;
        near = dt_keys_suggest(dt_job_keys, path, text, sizeof(text));
        return dt_error_set(err, DT_ERR_USAGE, "unknown key \"%.100s\"%s%s%s", path,
                            near ? "; did you mean \"" : " (see 'disttrain keys')",
                            near ? near : "", near ? "\"?" : "");
    }
    return DT_OK;
}

static void row(void *ctx, const char *path, const struct dt_key *key, const void *defaults)
{
    struct listing *l = ctx;
    struct dt_cli_rows *o = &l->rows;
    char type[TEXT], range[TEXT], plain[TEXT];

    if (!asked(l->cli, path))
        return;
    dt_key_type_text(key, type, sizeof(type));
    dt_key_default_text(key, defaults, plain, sizeof(plain));
    dt_key_range_text(key, range, sizeof(range));
    dt_cli_row(o);
    dt_cli_row_text(o, "key", "key", path);
    dt_cli_row_cell(o, "value", "%s%s%s", type, *range ? ", " : "", range);
    dt_cli_row_text(o, "type", NULL, dt_key_type_name(key));
    dt_cli_row_text(o, "range", NULL, range);
    dt_cli_row_text(o, "unit", NULL, key->unit);
    if (o->json) {
        dt_json_key(o->json, "words");
        dt_json_begin_array(o->json);
        for (int i = 0; key->words && key->words[i]; i++)
            dt_json_string(o->json, key->words[i]);
        dt_json_end_array(o->json);
    }
    dt_cli_row_text(o, "default", NULL, plain);
    dt_cli_row_cell(o, "default", "%s", key->needed ? "must be stated" : plain);
    dt_cli_row_bool(o, "needed", key->needed != NULL);
    dt_cli_row_text(o, "meaning", "meaning", key->help);
}

/* Words with a line each, of keys that were asked for by their whole name. */
static void print_glosses(const struct dt_cli *cli)
{
    for (int i = 0; i < cli->n_args; i++) {
        const struct dt_key *k = dt_keys_at(dt_job_keys, cli->args[i]);

        for (int w = 0; k->glosses && k->words[w]; w++)
            printf("%s  %-12s %s\n", w == 0 ? "\n" : "", k->words[w], k->glosses[w]);
    }
}

static enum dt_status print_json(struct listing *l, const struct dt_job *defaults,
                                 struct dt_error *err)
{
    char *text;

    dt_json_init(&l->json, true);
    dt_json_begin_object(&l->json);
    dt_cli_rows_json(&l->rows, &l->json, "keys");
    dt_keys_walk(dt_job_keys, defaults, row, l);
    dt_cli_rows_end(&l->rows, NULL);
    dt_json_end_object(&l->json);
    DT_TRY(dt_json_finish(&l->json, err, &text));
    printf("%s\n", text);
    dt_free(text);
    return DT_OK;
}

static enum dt_status list(struct listing *l, const struct dt_job *defaults, struct dt_error *err)
{
    DT_TRY(check(l->cli, err));
    if (l->cli->json)
        return print_json(l, defaults, err);
    dt_cli_rows_table(&l->rows);
    dt_keys_walk(dt_job_keys, defaults, row, l);
    dt_cli_rows_end(&l->rows, stdout);
    print_glosses(l->cli);
    return DT_OK;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_job *defaults = dt_calloc(1, sizeof(*defaults));
    struct listing l = {.cli = cli};
    enum dt_status st;

    if (!defaults)
        return dt_error_nomem(err, "the list of keys");
    dt_job_defaults(defaults);
    st = list(&l, defaults, err);
    dt_free(defaults);
    return st;
}

const struct dt_cli_command dt_cmd_keys = {
    .name = "keys",
    .args = "[KEY...]",
    .summary = "list what a job may say: keys, values, defaults",
    .max_args = -1,
    .run = command,
};
