/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The cost model's life, and the survey of what a profile lacks. */
#include "core/cost/cost_internal.h"

#include <stdio.h>
#include <string.h>

/* Identical blocks of a module share a class: the index of the first one. */
static bool find_classes(struct dt_cost *c)
{
    for (int m = 0; m < c->model->n_modules; m++) {
        const struct dt_module *mod = &c->model->modules[m];
        uint16_t *class_of = DT_ARENA_NEW(&c->arena, uint16_t, mod->n_blocks);
        uint16_t *alike = DT_ARENA_NEW(&c->arena, uint16_t, mod->n_blocks);

        if (!class_of || !alike)
            return false;
        for (int b = 0; b < mod->n_blocks; b++) {
            class_of[b] = (uint16_t)b;
            for (int a = 0; a < b; a++) {
                if (class_of[a] == a &&
                    !memcmp(&mod->blocks[a], &mod->blocks[b], sizeof(mod->blocks[a]))) {
                    class_of[b] = (uint16_t)a;
                    break;
                }
            }
        }
        for (int b = mod->n_blocks - 1; b >= 0; b--)
            alike[b] = b + 1 < mod->n_blocks && class_of[b + 1] == class_of[b]
                           ? (uint16_t)(alike[b + 1] + 1)
                           : 1;
        c->class_of[m] = class_of;
        c->alike[m] = alike;
    }
    return true;
}

enum dt_status dt_cost_new(const struct dt_model *model, const struct dt_cluster *cluster,
                           const struct dt_profile *profile, const struct dt_cost_options *opt,
                           struct dt_error *err, struct dt_cost **out)
{
    struct dt_cost *c;

    if (!(cluster->peak_flops > 0) || !(cluster->hbm_bytes_per_s > 0) ||
        !(cluster->nvlink_bytes_per_s > 0) || cluster->gpus_per_node < 1)
        return dt_error_set(err, DT_ERR_INPUT,
                            "cluster '%s' states no peak flop/s, HBM or NVLink bandwidth",
                            cluster->name);
    c = dt_calloc(1, sizeof(*c));
    if (!c)
        return dt_error_nomem(err, "cost model");
    c->model = model;
    c->cluster = cluster;
    c->profile = profile;
    c->opt = *opt;
    c->tuning = opt->tuning ? *opt->tuning : dt_cost_tuning_default;
    c->opt.tuning = NULL;
    c->link_ratio = dt_cost_link_ratio(profile, cluster);
    c->message_ns[0] = c->message_ns[1] = -1;
    c->blocks = dt_calloc(BLOCK_ENTRIES, sizeof(*c->blocks));
    c->recipes = dt_calloc(RECIPES, sizeof(*c->recipes));
    if (!c->blocks || !c->recipes || !dt_cost_sheet_sums_init(&c->sheet_sums) ||
        !dt_memo_init(&c->stages, STAGE_BITS, sizeof(struct dt_cost_stage_entry)) ||
        !find_classes(c)) {
        dt_cost_free(c);
        return dt_error_nomem(err, "cost model tables");
    }
    *out = c;
    return DT_OK;
}

void dt_cost_free(struct dt_cost *c)
{
    if (!c)
        return;
    dt_cost_surfaces_free(c);
    dt_free(c->blocks);
    dt_memo_free(&c->stages);
    dt_free(c->recipes);
    dt_memo_free(&c->sheet_sums);
    dt_arena_free(&c->arena);
    dt_free(c);
}

const struct dt_cost_options *dt_cost_opts(const struct dt_cost *c)
{
    return &c->opt;
}

const struct dt_cluster *dt_cost_cluster(const struct dt_cost *c)
{
    return c->cluster;
}

enum dt_status dt_cost_status(const struct dt_cost *c, struct dt_error *err)
{
    return c->oom ? dt_error_nomem(err, "interpolation tables") : DT_OK;
}

/* ---- survey ---- */

struct need { /* who asks for a family */
    bool asked;
    const char *module;
    int block, tp;
};

/* In all of the modes, so that none needs its kernels. */
static bool measured(struct dt_cost *c, const struct dt_block *b, struct dt_block_shard shard,
                     unsigned recompute)
{
    for (int r = 0; r <= DT_RECOMPUTE_FULL; r++) {
        shard.recompute = (enum dt_block_recompute)r;
        if ((recompute >> r & 1) && !dt_cost_block_measured(c, b, &shard))
            return false;
    }
    return true;
}

static void survey_blocks(struct dt_cost *c, int module, int tp, unsigned recompute,
                          struct need *need)
{
    const struct dt_module *mod = &c->model->modules[module];
    struct dt_block_shard shard = {.tp = tp, .cp = 1, .ep = 1, .ip = 1, .seqpar = tp > 1};
    struct dt_work work = {.n = 1, .tokens = 4096, .tokens_sq = 4096 * 4096, .tokens_max = 4096};
    struct dt_kop k[DT_MAX_KOPS];

    for (int b = 0; b < mod->n_blocks; b++) {
        int n;

        if (c->class_of[module][b] != b || measured(c, &mod->blocks[b], shard, recompute))
            continue;
        n = dt_block_kops(&mod->blocks[b], &shard, &work, k);
        for (int i = 0; i < n; i++) {
            struct need *w = &need[k[i].family];

            if (!w->asked)
                *w = (struct need){true, mod->name, (int)mod->blocks[b].kind, tp};
        }
    }
}

enum dt_status dt_cost_survey(struct dt_cost *c, const struct dt_cost_modes *modes,
                              struct dt_error *err)
{
    struct need need[DT_KOP_FAMILY_N] = {{0}};
    char list[2048] = "";
    size_t at = 0;
    int missing = 0;

    for (int bit = 0; bit < 16; bit++) {
        for (int m = 0; (modes->tp >> bit & 1) && m < c->model->n_modules; m++)
            survey_blocks(c, m, 1 << bit, modes->recompute[m], need);
    }
    for (int f = 0; f < DT_KOP_FAMILY_N; f++) {
        int n;

        if (!need[f].asked || dt_cost_family_source(c, f) >= 0)
            continue;
        missing++;
        n = snprintf(list + at, sizeof(list) - at,
                     "\n  %s: first needed by %s, a %s block at tp %d", dt_kop_family_names[f],
                     need[f].module, dt_block_kind_name((enum dt_block_kind)need[f].block),
                     need[f].tp);
        if (n > 0 && (size_t)n < sizeof(list) - at)
            at += (size_t)n;
    }
    DT_TRY(dt_cost_status(c, err));
    if (missing == 0 || c->opt.allow_analytical)
        return DT_OK;
    return dt_error_set(err, DT_ERR_MISSING_PROFILE,
                        "profile '%s' has no rows for %d of the kernels this model needs:%s\n"
                        "import measurements of them (disttrain db import), or allow roofline "
                        "estimates (search.allow_analytical=true), which reports count as computed",
                        c->profile->device, missing, list);
}
