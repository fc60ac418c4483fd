/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain devices: what can compute here, and why the rest cannot. */
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/rows.h"
#include "kernels/device_open.h"

#include <math.h>

static void row(struct dt_cli_rows *r, const struct dt_device_listed *d)
{
    const struct dt_device_info *i = &d->info;
    bool ok = d->usable;

    dt_cli_row(r);
    dt_cli_row_text(r, "device", "device", d->name);
    dt_cli_row_bool(r, "usable", ok);
    dt_cli_row_text(r, "name", "name", i->name);
    dt_cli_row_text(r, "isa", "instructions", i->isa);
    dt_cli_row_text(r, "precision", "auto computes in",
                    !ok                  ? ""
                    : i->fast == DT_BF16 ? "bf16"
                                         : "fp32");
    dt_cli_row_bool(r, "bf16", ok && i->bf16);
    dt_cli_row_number(r, "memory_bytes", "memory [GiB]", "%.1f", 0x1p-30,
                      ok ? (double)i->memory_bytes : NAN);
    dt_cli_row_text(r, "library", "convolutions, attention", i->library);
    dt_cli_row_text(r, "module", NULL, d->from);
    dt_cli_row_text(r, "why_not", NULL, d->why);
}

static enum dt_status print_json(const struct dt_device_listed *d, int n, struct dt_error *err)
{
    struct dt_cli_rows rows;
    struct dt_json json;
    char *text;

    dt_json_init(&json, true);
    dt_json_begin_object(&json);
    dt_cli_rows_json(&rows, &json, "devices");
    for (int i = 0; i < n; i++)
        row(&rows, &d[i]);
    dt_cli_rows_end(&rows, NULL);
    dt_json_end_object(&json);
    DT_TRY(dt_json_finish(&json, err, &text));
    printf("%s\n", text);
    dt_free(text);
    return DT_OK;
}

/* The usable ones, then why there are no others. */
static void print_text(const struct dt_device_listed *d, int n)
{
    struct dt_cli_rows rows;
    bool first = true;

    dt_cli_rows_table(&rows);
    for (int i = 0; i < n; i++)
        if (d[i].usable)
            row(&rows, &d[i]);
    dt_cli_rows_end(&rows, stdout);
    for (int i = 0; i < n; i++) {
        if (d[i].usable)
            continue;
        printf("%snot usable: %s\n", first ? "\n" : "", d[i].why);
        first = false;
    }
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    struct dt_device_listed *d;
    enum dt_status st = DT_OK;
    int n;

    DT_TRY(dt_device_list(err, &d, &n));
    if (cli->json)
        st = print_json(d, n, err);
    else
        print_text(d, n);
    dt_free(d);
    return st;
}

const struct dt_cli_command dt_cmd_devices = {
    .name = "devices",
    .args = "",
    .summary = "list what can train here, and why the rest cannot",
    .run = command,
};
