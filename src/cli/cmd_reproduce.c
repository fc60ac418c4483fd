/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * disttrain reproduce: run the published evaluation and print published, recalled and ours side by
 * side. */
#include "cli/reproduce.h"
#include "cli/progress.h"
#include "cli/rows.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static const struct dt_cli_option options[] = {
    {"only", 0, DT_OPT_STRING, "LETTERS", "run only these parts, e.g. 'ac' (default: all)"},
    {NULL, 0, DT_OPT_FLAG, NULL, NULL},
};

static const struct {
    char letter;
    const char *title;
    enum dt_status (*run)(struct dt_cli_results *r, struct dt_error *err);
} parts[] = {
    {'a', "overall, 1,296 A800 GPUs, global batch 1,920", dt_cmd_reproduce_overall},
    {'b', "orchestration alone (no reordering, no StepCCL), up to 96 GPUs",
     dt_cmd_reproduce_orchestration},
    {'c', "reordering alone, up to 96 GPUs", dt_cmd_reproduce_reordering},
    {'d', "frozen modules (projectors always train), up to 96 GPUs", dt_cmd_reproduce_freezing},
    {'e', "StepCCL on one LLM pipeline stage", dt_cmd_reproduce_stepccl},
    {'f', "time of the plan search, MLLM-72B", dt_cmd_reproduce_search},
    {'g', "how unlike modules are, MLLM-72B", dt_cmd_reproduce_modules},
    {'h', "waiting for data: 16 images of 1,024² a sequence, 1,296 A800 GPUs",
     dt_cmd_reproduce_data},
    {'i', "Entrain: Qwen2.5-VL's encoder and Llama 3, 64 A40", dt_cmd_reproduce_entrain},
    {'j', "Megatron MIMO: colocated encoders (C) and homogeneous layouts (H), 8K, H100",
     dt_cmd_reproduce_colocated},
    {'k', "Megatron MIMO: long context", dt_cmd_reproduce_long_context},
    {'l', "Megatron MIMO: encoders on GPUs of their own (N), LLM of 120B",
     dt_cmd_reproduce_noncolocated},
    {'m', "Megatron MIMO: bytes between encoder and LLM", dt_cmd_reproduce_boundary},
    {'o', "Megatron MIMO: the best of H, C and N, 8K", dt_cmd_reproduce_modes},
    {'n', "how unlike samples are", dt_cmd_reproduce_samples},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

/* Of what was published, 0 to 2.2 is "up to 2.2"; of what is accepted, both ends count. */
static void range_text(struct dt_cli_range g, bool accepted, char *buf, size_t size)
{
    if (g.hi == 0 && g.lo == 0)
        snprintf(buf, size, "-");
    else if (g.lo == g.hi)
        snprintf(buf, size, "%.4g", g.lo);
    else if (g.lo < 0)
        snprintf(buf, size, "%.4g to %.4g", g.lo, g.hi);
    else if (g.lo == 0 && !accepted)
        snprintf(buf, size, "<= %g", g.hi);
    else
        snprintf(buf, size, "%.4g-%.4g", g.lo, g.hi);
}

/* ours / the nearest end of the reported range; 1 inside it; 0 when nothing was reported. */
static double ratio(const struct dt_cli_result_row *r)
{
    struct dt_cli_range g = r->published.hi > 0 ? r->published : r->recalled;
    if (g.hi == 0)
        return 0;
    if (r->ours > g.hi)
        return r->ours / g.hi;
    return r->ours < g.lo ? r->ours / g.lo : 1;
}

static void add_range(struct dt_cli_rows *o, const char *key, struct dt_cli_range g)
{
    char text[32];

    range_text(g, strcmp(key, "accepted") == 0, text, sizeof text);
    dt_cli_row_cell(o, key, "%s", text);
    if (!o->json)
        return;
    dt_json_key(o->json, key);
    if (g.hi == 0 && g.lo == 0) {
        dt_json_null(o->json);
        return;
    }
    dt_json_begin_object(o->json);
    dt_json_kv_double(o->json, "low", g.lo);
    dt_json_kv_double(o->json, "high", g.hi);
    dt_json_end_object(o->json);
}

static bool holds(const struct dt_cli_result_row *row)
{
    return row->ours >= row->accept.lo && row->ours <= row->accept.hi;
}

static const char *because_of(const struct dt_cli_result_row *row)
{
    return !row->judged || holds(row) ? "" : row->because ? row->because : "not known why";
}

/* People see what is accepted instead of a ratio in a part with rows that are judged; programs get all of it. */
static void add_verdict(struct dt_cli_rows *o, const struct dt_cli_result_row *row, bool judged)
{
    if (judged || o->json) {
        add_range(o, "accepted", row->accept);
        dt_cli_row_cell(o, "holds", "%s", !row->judged ? "-" : holds(row) ? "yes" : "no");
    }
    if (!judged)
        dt_cli_row_number(o, NULL, "ratio", "%.2f", 1, ratio(row) > 0 ? ratio(row) : NAN);
    if (o->json && row->judged)
        dt_cli_row_bool(o, "holds", holds(row));
    if (o->json)
        dt_cli_row_text(o, "because", NULL, because_of(row));
}

/* `judged`: some row of its part is. */
static void add_result(struct dt_cli_rows *o, const struct dt_cli_result_row *row, bool judged)
{
    char section[2] = {row->section, 0}, detail[512];
    const char *because = because_of(row);

    dt_cli_row(o);
    dt_cli_row_text(o, "section", NULL, section);
    dt_cli_row_text(o, "what", "what", row->what);
    dt_cli_row_text(o, "unit", "unit", row->unit);
    add_range(o, "published", row->published);
    if (!judged || o->json)
        add_range(o, "recalled", row->recalled);
    dt_cli_row_number(o, "ours", "ours", row->ours >= 100 ? "%.0f" : "%.2f", 1, row->ours);
    add_verdict(o, row, judged);
    snprintf(detail, sizeof detail, "%s%s%s", row->detail, *row->detail && *because ? "; " : "",
             because);
    dt_cli_row_text(o, "detail", "detail", o->json ? row->detail : detail);
}

static void print_part(const struct dt_cli_results *r, int part)
{
    struct dt_cli_rows o;
    bool judged = false;

    for (size_t i = 0; i < r->n; i++)
        judged |= r->rows[i].section == parts[part].letter && r->rows[i].judged;
    printf("\n(%c) %s\n", parts[part].letter, parts[part].title);
    dt_cli_rows_table(&o);
    for (size_t i = 0; i < r->n; i++)
        if (r->rows[i].section == parts[part].letter)
            add_result(&o, &r->rows[i], judged);
    dt_cli_rows_end(&o, stdout);
}

static enum dt_status print_json(const struct dt_cli_results *r, struct dt_error *err)
{
    struct dt_cli_rows o;
    struct dt_json j;

    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_cli_rows_json(&o, &j, "results");
    for (size_t i = 0; i < r->n; i++)
        add_result(&o, &r->rows[i], r->rows[i].judged);
    dt_cli_rows_end(&o, NULL);
    dt_json_end_object(&j);
    return dt_cli_json_emit(&j, err);
}

static enum dt_status run(struct dt_cli *cli, const char *only, struct dt_cli_results *r,
                          struct dt_error *err)
{
    if (!cli->json)
        printf("published: checked figures of DistTrain (SIGCOMM'25); recalled: remembered from "
               "its body, not re-checked;\n"
               "ours: simulated here; ratio: ours / nearest end of the published (else recalled) "
               "range, 1.00 inside it;\n"
               "accepted: where ours may lie, stated before the comparison.\n");
    for (int i = 0; i < N_PARTS; i++) {
        if (!strchr(only, parts[i].letter))
            continue;
        DT_TRY(parts[i].run(r, err));
        dt_cli_progress_end();
        if (!cli->json) {
            print_part(r, i);
            fflush(stdout);
        }
    }
    return cli->json ? print_json(r, err) : DT_OK;
}

static enum dt_status command(struct dt_cli *cli, struct dt_error *err)
{
    char all[N_PARTS + 1];
    const char *only;
    struct dt_cli_results r = {0};

    for (int i = 0; i < N_PARTS; i++)
        all[i] = parts[i].letter;
    all[N_PARTS] = '\0';
    only = dt_cli_string(cli, "only", all);
    for (const char *p = only; *p; p++)
        if (!strchr(all, *p))
            return dt_error_set(err, DT_ERR_USAGE, "--only: '%c' is not a part; parts are %s", *p,
                                all);
    enum dt_status st = run(cli, only, &r, err);
    dt_cli_progress_end();
    dt_free(r.rows);
    return st;
}

const struct dt_cli_command dt_cmd_reproduce = {
    .name = "reproduce",
    .args = "",
    .summary = "run the published evaluations: published, recalled, ours",
    .options = options,
    .min_args = 0,
    .max_args = 0,
    .run = command,
};
