/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain profile fit: two constants per curve of a profile, and pictures of what they miss. */
#include "cli/profile.h"
#include "cli/session.h"
#include "cli/rows.h"
#include "fit/cost_curve.h"
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

/* "all_reduce 8 GPUs, 8 in a node" */
static char *curve_name(const struct dt_curve *c, char *buf, size_t size)
{
    if (c->family == DT_KOP_SEND_RECV)
        snprintf(buf, size, "%s %s", dt_kop_family_names[c->family],
                 c->gpus_per_node > 1 ? "inside a node" : "between nodes");
    else if (c->gpus > 0)
        snprintf(buf, size, "%s %lld GPUs, %lld a node", dt_kop_family_names[c->family],
                 (long long)c->gpus, (long long)c->gpus_per_node);
    else
        snprintf(buf, size, "%s %s", dt_kop_family_names[c->family],
                 dt_profile_table_phase_names[c->phase]);
    return buf;
}

/* rate is per ns: 1 = 1 G/s */
static const char *rate_unit(const struct dt_curve *c)
{
    return c->flops                       ? "GFLOP/s"
           : c->family == DT_KOP_ADAMW    ? "Gparameters/s"
           : c->family == DT_KOP_BLOCK    ? "Gtokens/s"
           : c->family == DT_KOP_CPU_PREP ? "Gunits/s"
                                          : "GB/s";
}

/* DIR/NNN-DEVICE-OP-PHASE.svg; a device's name may hold anything, and leads to no other folder. */
static void picture_path(const struct dt_profile_table *t, const struct dt_curve *c,
                         const char *dir, int number, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "%s/%03d-", dir, number);

    for (const char *d = t->devices[c->device]; *d && n + 1 < size; d++)
        buf[n++] = *d == '/' || (unsigned char)*d < 0x20 || *d == 0x7f ? '_' : *d;
    if (n < size)
        snprintf(buf + n, size - n, "-%s-%s.svg", dt_kop_family_names[c->family],
                 dt_profile_table_phase_names[c->phase]);
}

static enum dt_status write_pictures(const struct dt_profile_table *t, const struct dt_curves *c,
                                     const char *dir, struct dt_error *err)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return dt_error_at(err, DT_ERR_IO, dir, 0, 0, "cannot make the folder: %s",
                           strerror(errno));
    for (int i = 0; i < c->n; i++) {
        const struct dt_curve *k = &c->curve[i];
        char path[4096], *text;
        enum dt_status st;

        picture_path(t, k, dir, i + 1, path, sizeof(path));
        DT_TRY(dt_curve_svg(t, k, err, &text));
        st = dt_file_write(path, text, strlen(text), err);
        dt_free(text);
        DT_TRY(st);
    }
    return DT_OK;
}

static void curves(struct dt_cli_rows *r, const struct dt_profile_table *t,
                   const struct dt_curves *c)
{
    for (int i = 0; i < c->n; i++) {
        const struct dt_curve *k = &c->curve[i];
        char name[96];

        dt_cli_row(r);
        dt_cli_row_text(r, "device", "device", t->devices[k->device]);
        dt_cli_row_text(r, "dtype", "type", t->dtypes[k->dtype]);
        dt_cli_row_text(r, NULL, "curve", curve_name(k, name, sizeof(name)));
        dt_cli_row_text(r, "op", NULL, dt_kop_family_names[k->family]);
        dt_cli_row_text(r, "phase", NULL, dt_profile_table_phase_names[k->phase]);
        dt_cli_row_int(r, "gpus", NULL, k->gpus);
        dt_cli_row_int(r, "gpus_per_node", NULL, k->gpus_per_node);
        dt_cli_row_int(r, "sizes", "sizes", k->n);
        dt_cli_row_number(r, "t0_s", NULL, NULL, 1, k->t0_ns * 1e-9);
        dt_cli_row_number(r, NULL, "t0 [us]", "%.2f", 1e-3, k->t0_ns);
        dt_cli_row_number(r, "rate_per_s", NULL, NULL, 1, isfinite(k->rate) ? k->rate * 1e9 : 0);
        dt_cli_row_number(r, NULL, "rate", "%.4g", 1, k->rate);
        dt_cli_row_text(r, "unit", NULL, rate_unit(k) + 1);
        dt_cli_row_text(r, NULL, "unit", rate_unit(k));
        dt_cli_row_number(r, "median_error", "median |error| [%]", "%.1f", 100, k->median_error);
        dt_cli_row_number(r, "p90_error", "p90 [%]", "%.1f", 100, k->p90_error);
    }
}

static void print_table(const struct dt_profile_table *t, const struct dt_curves *c)
{
    struct dt_cli_rows r;

    dt_cli_rows_table(&r);
    curves(&r, t, c);
    dt_cli_rows_end(&r, stdout);
    printf("\ntime = t0 + x / rate; x: bytes on the bus, flop, bytes moved, by the unit of the "
           "rate\n");
}

static enum dt_status print_json(const struct dt_profile_table *t, const struct dt_curves *c,
                                 struct dt_error *err)
{
    struct dt_cli_rows r;
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_cli_rows_json(&r, &j, "curves");
    curves(&r, t, c);
    dt_cli_rows_end(&r, NULL);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

enum dt_status dt_cmd_profile_fit(struct dt_cli *cli, struct dt_error *err)
{
    const char *dir = dt_cli_string(cli, "svg", NULL);
    char found[4096];
    const char *path;
    struct dt_profile_table t = {0};
    struct dt_curves c = {0};
    enum dt_status st;

    if (cli->n_args != 2)
        return dt_error_set(err, DT_ERR_USAGE,
                            "profile fit takes one profile: a name of a shipped "
                            "one (a100), or a .sql or .db file");
    path = cli->args[1];
    DT_TRY(dt_file_find("profiles", path, ".sql", err, found, sizeof(found)));
    DT_TRY(dt_profile_table_read(found, err, &t));
    st = dt_curves_fit(&t, err, &c);
    if (st == DT_OK && c.n == 0)
        st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                         "no op has %d sizes, the least that a curve is fitted to",
                         DT_CURVE_POINTS_MIN);
    if (st == DT_OK && dir)
        st = write_pictures(&t, &c, dir, err);
    if (st == DT_OK && cli->json)
        st = print_json(&t, &c, err);
    else if (st == DT_OK)
        print_table(&t, &c);
    dt_curves_free(&c);
    dt_profile_table_free(&t);
    return st;
}
