/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * plan.json: read through the document layer, so that every unknown key, wrong type and impossible value is
 * reported at its line and column.  plan_write.c writes it. */
#include "base/mem.h"
#include "core/model/plan.h"

#include <string.h>

/* Widest degrees a plan may state; dt_plan_validate() then holds them against model and cluster. */
enum { DEGREE_MAX = 1 << 20 };

/* ---- keys ---- */

static const struct dt_key module_keys[] = {
    {.name = "name", .type = DT_KEY_OWN},
    {.name = "tp",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, layout.tp),
     .min = 1,
     .max = DEGREE_MAX,
     .help = "tensor parallelism"},
    {.name = "cp",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, layout.cp),
     .min = 1,
     .max = DEGREE_MAX,
     .help = "context parallelism"},
    {.name = "ep",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, layout.ep),
     .min = 1,
     .max = DEGREE_MAX,
     .help = "expert parallelism"},
    {.name = "ip",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, layout.ip),
     .min = 1,
     .max = DEGREE_MAX,
     .help = "image parallelism: whole images dealt to the ranks of a lane"},
    {.name = "pp",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, layout.pp),
     .min = 1,
     .max = DT_MAX_VSTAGES,
     .help = "pipeline stages"},
    {.name = "vpp",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, layout.vpp),
     .min = 1,
     .max = DT_MAX_VSTAGES,
     .help = "virtual stages per stage"},
    {.name = "dp",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, layout.dp),
     .min = 1,
     .max = DEGREE_MAX,
     .help = "replicas"},
    {.name = "first_gpu",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, layout.first_gpu),
     .min = 0,
     .max = DT_PLAN_GPUS_MAX,
     .fallback = "the first ones that no other module has",
     .help = "the module has this GPU and those that follow"},
    {.name = "with",
     .type = DT_KEY_OWN,
     .form = "module",
     .fallback = "GPUs of its own",
     .help = "it lies on the GPUs of this module, and they take turns"},
    {.name = "window",
     .type = DT_KEY_OWN,
     .form = "all or number of slots",
     .fallback = "whole samples, slot by slot",
     .help = "replicas share the items of so many slots, each as one microbatch; a generator's: 1"},
    {.name = "phases",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_plan_module, phases),
     .help =
         "of an encoder on GPUs of others: all forwards before their work, all backwards behind"},
    {.name = "frozen",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_plan_module, frozen),
     .fallback = "as train.frozen says",
     .help = "its body is not trained"},
    {.name = "recompute",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_plan_module, recompute),
     .words = dt_block_recompute_names,
     .fallback = "as train.recompute says",
     .help = "which of its activations are computed again instead of kept"},
    {.name = "zero",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, zero),
     .min = 0,
     .max = DT_ZERO_MAX,
     .fallback = "as train.zero says",
     .help = "what its replicas shard: 1 optimizer states, 2 gradients too, 3 parameters too"},
    {.name = "zero_group",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_plan_module, zero_group),
     .min = 0,
     .max = DT_PLAN_GPUS_MAX,
     .help = "ranks that shard optimizer states together, with zero 1; 0: all that hold the same"},
    {.name = "offload",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_plan_module, offload),
     .words = dt_plan_offload_names,
     .fallback = "as train.offload says",
     .help = "what of it lies in the host's memory: its optimizer's states, or a guest's "
             "parameters between phases"},
    {.name = "split",
     .type = DT_KEY_OWN,
     .form = "list of blocks",
     .fallback = "balanced by FLOPs",
     .help = "first block of each virtual stage, and the number of blocks"},
    {.name = "ahead",
     .type = DT_KEY_OWN,
     .form = "list of numbers",
     .fallback = "as memory allows with train.warmup eager, else none",
     .help = "microbatches that each stage holds beyond what the schedule asks for"},
    {.name = NULL},
};
enum { MODULE_KEYS = sizeof(module_keys) / sizeof(module_keys[0]) - 1 };
/* A job's `plan:` map names the module by its key. */
static const struct dt_key *const layout_keys = module_keys + 1;
static const struct dt_plan_module layout_defaults = {
    .layout = {.tp = 1, .cp = 1, .ep = 1, .pp = 1, .vpp = 1, .dp = 1, .ip = 1}};
const struct dt_key dt_plan_map_keys[] = {
    {.name = "colocated",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_plan, colocated),
     .help = "all modules take turns on the same GPUs; with: MODULE says it of one"},
    {.name = "MODULE",
     .type = DT_KEY_OWN,
     .any = true,
     .keys = module_keys + 1,
     .base = &layout_defaults,
     .help = "the layout of this module"},
    {.name = NULL},
};

/* ---- reading ---- */

/* A file as it is read. */
struct file {
    struct dt_plan p;
    int64_t version;
    struct dt_plan_module all; /* what version 1 says of all modules */
};

/* Version 1 has the first ones in its policy; later versions in each module. */
enum { OF_ALL_MODULES = 2 };
static const struct dt_key policy_keys[] = {
    {.name = "recompute",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct file, all.recompute),
     .words = dt_block_recompute_names,
     .needed = "selective"},
    {.name = "zero",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct file, all.zero),
     .min = 0,
     .max = 1,
     .needed = "1"},
    {.name = "global_batch",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct file, p.policy.global_batch),
     .min = 1,
     .max = DT_BATCH_MAX,
     .needed = "1920"},
    {.name = "microbatch",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct file, p.policy.microbatch),
     .min = 1,
     .max = DT_MICROBATCH_MAX,
     .needed = "1"},
    {.name = "seq_len",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct file, p.policy.seq_len),
     .min = 1,
     .max = DT_SEQ_MAX,
     .needed = "8192"},
    {.name = "schedule",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct file, p.policy.schedule),
     .words = dt_pipe_schedule_names,
     .needed = "1f1b"},
    {.name = "intra_reorder",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct file, p.policy.intra_reorder),
     .needed = "true"},
    {.name = "inter_reorder",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct file, p.policy.inter_reorder),
     .needed = "true"},
    {.name = "stepccl",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct file, p.policy.stepccl),
     .needed = "true"},
    {.name = "overlap_grad",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct file, p.policy.overlap_grad),
     .needed = "true"},
    {.name = "overlap_param",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct file, p.policy.overlap_param),
     .needed = "true"},
    /* these came later: absent means 0, false or the first word */
    {.name = "assignment",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct file, p.policy.assignment),
     .words = dt_plan_assignment_names},
    {.name = "warmup",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct file, p.policy.warmup),
     .words = dt_plan_warmup_names},
    {.name = "cp_comm",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct file, p.policy.cp_comm),
     .words = dt_plan_cp_comm_names},
    {.name = "stepccl_chunks",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct file, p.policy.stepccl_chunks),
     .min = 0,
     .max = DT_STEPCCL_CHUNKS_MAX},
    {.name = "batch_reorder",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct file, p.policy.batch_reorder)},
    {.name = "reorder_budget_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct file, p.policy.reorder_budget_s),
     .min = 0,
     .max = 3600},
    {.name = "half_grads", .type = DT_KEY_BOOL, DT_KEY_INTO(struct file, p.policy.half_grads)},
    {.name = "bf16_grads", .type = DT_KEY_BOOL, DT_KEY_INTO(struct file, p.policy.bf16_grads)},
    {.name = "fp32", .type = DT_KEY_BOOL, DT_KEY_INTO(struct file, p.policy.fp32)},
    {.name = "exact_vectors",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct file, p.policy.exact_vectors)},
    {.name = NULL},
};
static const struct dt_key predicted_keys[] = {
    {.name = "warmup_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_plan_prediction, warmup_s),
     .min = 0,
     .max = 1e18},
    {.name = "steady_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_plan_prediction, steady_s),
     .min = 0,
     .max = 1e18},
    {.name = "total_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_plan_prediction, total_s),
     .min = 0,
     .max = 1e18},
    {.name = "staged_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_plan_prediction, staged_s),
     .min = 0,
     .max = 1e18},
    {.name = "lower_bound_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_plan_prediction, lower_bound_s),
     .min = 0,
     .max = 1e18},
    {.name = "timeline_s",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_plan_prediction, timeline_s),
     .min = 0,
     .max = 1e18},
    {.name = "mem_bytes_max",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_plan_prediction, mem_bytes_max),
     .min = 0,
     .max = 1e18},
    {.name = NULL},
};

static enum dt_status read_policy(struct dt_node map, const struct dt_key *key, void *into,
                                  struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct file *f = into;
    const struct dt_key *keys = f->version == 1 ? policy_keys : policy_keys + OF_ALL_MODULES;

    DT_TRY(dt_keys_check(n, key->name, keys, err));
    DT_TRY(dt_keys_require(n, key->name, keys, err));
    DT_TRY(dt_keys_read(n, key->name, keys, f, err));
    if (dt_node_present(dt_map_get(n, "reorder_budget_s")) && !f->p.policy.batch_reorder)
        return dt_node_error(dt_map_get(n, "reorder_budget_s"), err,
                             "reorder_budget_s goes with batch_reorder: true");
    if (f->p.policy.batch_reorder && f->p.policy.reorder_budget_s == 0)
        f->p.policy.reorder_budget_s = DT_REORDER_BUDGET_S;
    return DT_OK;
}

/* A scalar list element as an integer in [min, max]. */
static enum dt_status seq_int(struct dt_node seq, const char *key, size_t i, long min, long max,
                              long *out, struct dt_error *err)
{
    struct dt_node n = dt_seq_at(seq, i);
    const char *text = dt_node_text(n);
    long v = 0;
    size_t digits = 0;

    for (; text && text[digits] >= '0' && text[digits] <= '9' && digits < 7; digits++)
        v = v * 10 + (text[digits] - '0');
    if (!text || digits == 0 || text[digits] || v < min || v > max)
        return dt_node_error(n, err, "%s: expected an integer from %ld to %ld", key, min, max);
    *out = v;
    return DT_OK;
}

static enum dt_status get_split(struct dt_node map, struct dt_error *err, struct dt_plan_module *mp)
{
    struct dt_node seq = dt_map_get(map, "split");
    int v = mp->layout.pp * mp->layout.vpp;
    long last = -1;

    if (!dt_node_is_seq(seq) || dt_seq_size(seq) != (size_t)v + 1)
        return dt_node_error(dt_node_present(seq) ? seq : map, err,
                             "split must list the %d block boundaries of %d virtual stages", v + 1,
                             v);
    for (int i = 0; i <= v; i++) {
        long min = i == 0 ? 0 : last + 1, max = i == 0 ? 0 : UINT16_MAX;

        DT_TRY(seq_int(seq, "split", (size_t)i, min, max, &last, err));
        mp->split[i] = (uint16_t)last;
    }
    return DT_OK;
}

static enum dt_status get_ahead(struct dt_node map, struct dt_error *err, struct dt_plan_module *mp)
{
    struct dt_node seq = dt_map_get(map, "ahead");
    long ahead;

    if (!dt_node_present(seq))
        return DT_OK;
    if (!dt_node_is_seq(seq) || dt_seq_size(seq) != (size_t)mp->layout.pp)
        return dt_node_error(seq, err, "ahead must list a number for each of %d stages",
                             mp->layout.pp);
    for (int s = 0; s < mp->layout.pp; s++) {
        DT_TRY(seq_int(seq, "ahead", (size_t)s, 0, UINT16_MAX, &ahead, err));
        mp->ahead[s] = (uint16_t)ahead;
    }
    return DT_OK;
}

static enum dt_status get_window(struct dt_node map, struct dt_error *err, int *window)
{
    struct dt_node n = dt_map_get(map, "window");
    char word[8];
    int64_t slots;

    if (!dt_node_present(n))
        return DT_OK;
    if (dt_get_string(map, "window", word, sizeof(word), NULL) == DT_OK &&
        strcmp(word, "all") == 0) {
        *window = DT_PLAN_WINDOW_ALL;
        return DT_OK;
    }
    if (dt_get_int(map, "window", 1, DT_BATCH_MAX, &slots, NULL) != DT_OK)
        return dt_node_error(n, err, "window must be all or a number of slots from 1 to %d",
                             DT_BATCH_MAX);
    *window = (int)slots;
    return DT_OK;
}

/* The keys of a layout, except for its split. */
static enum dt_status get_layout(struct dt_node n, const char *what, const struct dt_key *keys,
                                 struct dt_error *err, struct dt_plan_module *mp)
{
    const struct dt_plan_layout *l = &mp->layout;
    int64_t gpus = 1;

    DT_TRY(dt_keys_read(n, what, keys, mp, err));
    for (int i = 0; i < 5; i++) { /* step by step, lest the product be more than 64 bits hold */
        gpus *= (const int[]){l->tp, l->cp, l->ip, l->pp, l->dp}[i];
        if (gpus > DT_PLAN_GPUS_MAX)
            return dt_node_error(n, err, "tp*cp*ip*pp*dp asks for more than %d GPUs",
                                 DT_PLAN_GPUS_MAX);
    }
    if (l->pp * l->vpp > DT_MAX_VSTAGES)
        return dt_node_error(n, err, "pp*vpp = %d, at most %d", l->pp * l->vpp, DT_MAX_VSTAGES);
    mp->pinned = dt_node_present(dt_map_get(n, "first_gpu"));
    DT_TRY(get_ahead(n, err, mp));
    return get_window(n, err, &mp->window);
}

/* `with` of module m of a plan whose names are known. */
static enum dt_status get_with(struct dt_node map, int m, struct dt_error *err, struct dt_plan *p)
{
    struct dt_node n = dt_map_get(map, "with");
    char host[DT_NAME_MAX];

    if (!dt_node_present(n))
        return DT_OK;
    if (p->colocated)
        return dt_node_error(n, err,
                             "with cannot be combined with colocated: true, which says it of every "
                             "module");
    DT_TRY(dt_get_string(map, "with", host, sizeof(host), err));
    p->modules[m].with = 0;
    for (int h = 0; h < p->n_modules; h++)
        if (strcmp(p->module_names[h], host) == 0)
            p->modules[m].with = (uint8_t)(h + 1);
    if (p->modules[m].with == 0)
        return dt_node_error(n, err, "with: the plan has no module '%s'", host);
    if (p->modules[dt_plan_host(p, m)].with != 0)
        return dt_node_error(n, err,
                             "module %s would lie with itself: one module of a chain of with must "
                             "have GPUs of its own",
                             p->module_names[m]);
    return DT_OK;
}

static bool is_later(const char *name) /* keys that came with version 2 and may be absent */
{
    return strcmp(name, "with") == 0 || strcmp(name, "window") == 0 ||
           strcmp(name, "phases") == 0 || strcmp(name, "ahead") == 0 ||
           strcmp(name, "zero_group") == 0 || strcmp(name, "offload") == 0;
}

static bool of_all_modules(const char *name)
{
    for (int i = 0; i < OF_ALL_MODULES; i++)
        if (strcmp(policy_keys[i].name, name) == 0)
            return true;
    return false;
}

/* Nothing is left to defaults, except that a module has GPUs of its own; version 1 has the keys of all modules in its
 * policy, and no guests. */
static enum dt_status check_module(struct dt_node n, int64_t version, struct dt_error *err)
{
    const char *names[MODULE_KEYS + 1] = {NULL};
    int n_names = 0;

    for (const struct dt_key *k = module_keys; k->name; k++)
        if (version > 1 || !(of_all_modules(k->name) || is_later(k->name)))
            names[n_names++] = k->name;
    DT_TRY(dt_map_check(n, "module", names, err));
    for (int i = 0; i < n_names; i++)
        if (!is_later(names[i]))
            DT_TRY(dt_map_require(n, "module", names[i], err));
    return DT_OK;
}

static enum dt_status get_module(struct dt_node n, int m, struct file *f, struct dt_error *err)
{
    struct dt_plan *p = &f->p;
    struct dt_plan_module *mp = &p->modules[m];

    DT_TRY(check_module(n, f->version, err));
    DT_TRY(dt_get_string(n, "name", p->module_names[m], sizeof(p->module_names[m]), err));
    for (int o = 0; o < m; o++)
        if (strcmp(p->module_names[o], p->module_names[m]) == 0)
            return dt_node_error(dt_map_get(n, "name"), err, "module %s is listed twice",
                                 p->module_names[m]);
    mp->recompute = f->all.recompute;
    mp->zero = f->all.zero;
    DT_TRY(get_layout(n, "module", module_keys, err, mp));
    return get_split(n, err, mp);
}

static enum dt_status read_modules(struct dt_node map, const struct dt_key *key, void *into,
                                   struct dt_error *err)
{
    struct dt_node seq = dt_map_get(map, key->name);
    struct file *f = into;
    size_t n = dt_node_is_seq(seq) ? dt_seq_size(seq) : 0;

    if (n < 1 || n > DT_MAX_MODULES)
        return dt_node_error(seq, err, "modules must be a list of 1 to %d modules", DT_MAX_MODULES);
    f->p.n_modules = (int)n;
    for (int m = 0; m < f->p.n_modules; m++)
        DT_TRY(get_module(dt_seq_at(seq, (size_t)m), m, f, err));
    for (int m = 0; m < f->p.n_modules; m++)
        DT_TRY(get_with(dt_seq_at(seq, (size_t)m), m, err, &f->p));
    return DT_OK;
}

static const struct dt_key plan_keys[] = {
    {.name = "format", .type = DT_KEY_OWN, .needed = DT_PLAN_FORMAT},
    {.name = "version", .type = DT_KEY_OWN, .needed = "2"},
    {.name = "model",
     .type = DT_KEY_STRING,
     DT_KEY_INTO(struct file, p.model),
     .needed = "mllm-9b"},
    {.name = "cluster",
     .type = DT_KEY_STRING,
     DT_KEY_INTO(struct file, p.cluster),
     .needed = "a800-96"},
    {.name = "strategy",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct file, p.strategy),
     .words = dt_plan_strategy_names,
     .needed = "disttrain"},
    {.name = "colocated", .type = DT_KEY_BOOL, DT_KEY_INTO(struct file, p.colocated)},
    {.name = "policy", .type = DT_KEY_OWN, .read = read_policy, .needed = "{...}"},
    {.name = "modules", .type = DT_KEY_OWN, .read = read_modules, .needed = "[...]"},
    {.name = "predicted",
     .type = DT_KEY_MAP,
     .at = offsetof(struct file, p.predicted),
     .keys = predicted_keys},
    {.name = NULL},
};

static enum dt_status get_plan(struct dt_node root, struct dt_error *err, struct file *f)
{
    char format[32] = "";

    DT_TRY(dt_keys_check(root, "plan", plan_keys, err));
    DT_TRY(dt_keys_require(root, "plan", plan_keys, err));
    DT_TRY(dt_get_string(root, "format", format, sizeof(format), err));
    if (strcmp(format, DT_PLAN_FORMAT) != 0)
        return dt_node_error(dt_map_get(root, "format"), err, "format is '%s', expected '%s'",
                             format, DT_PLAN_FORMAT);
    DT_TRY(dt_get_int(root, "version", 0, INT32_MAX, &f->version, err));
    if (f->version < 1 || f->version > DT_PLAN_VERSION)
        return dt_node_error(dt_map_get(root, "version"), err,
                             "plan version %lld, this program reads versions 1 to %d",
                             (long long)f->version, DT_PLAN_VERSION);
    return dt_keys_read(root, "plan", plan_keys, f, err);
}

static enum dt_status from_doc(struct dt_doc *doc, struct dt_error *err, struct dt_plan *out)
{
    struct file f;
    enum dt_status st;

    memset(&f, 0, sizeof(f));
    st = get_plan(dt_doc_root(doc), err, &f);
    dt_doc_free(doc);
    if (st == DT_OK)
        *out = f.p;
    return st;
}

enum dt_status dt_plan_parse(const char *name, const char *text, size_t len, struct dt_error *err,
                             struct dt_plan *out)
{
    struct dt_doc *doc;

    DT_TRY(dt_doc_parse(name, text, len, err, &doc));
    return from_doc(doc, err, out);
}

enum dt_status dt_plan_read(const char *path, struct dt_error *err, struct dt_plan *out)
{
    struct dt_doc *doc;

    DT_TRY(dt_doc_read(path, err, &doc));
    return from_doc(doc, err, out);
}

/* ---- the `plan:` map of a job ---- */

/* Blocks divided by forward FLOPs of a nominal sample: seq_len tokens for the LLM; for the others
 * one item of 1,024 tokens (a 512 x 512 image in 16-pixel patches), since shares, not sizes, matter
 * here. */
static enum dt_status flop_split(const struct dt_module *mod, int seq_len, struct dt_error *err,
                                 struct dt_plan_module *mp)
{
    int64_t tokens = mod->role == DT_ROLE_LLM ? seq_len : 1024;
    const struct dt_work w = {1, tokens, tokens * tokens, tokens};
    double *cost = dt_malloc((size_t)mod->n_blocks * sizeof(*cost));

    if (!cost)
        return dt_error_nomem(err, "block costs");
    for (int b = 0; b < mod->n_blocks; b++)
        cost[b] = dt_block_flops(&mod->blocks[b], &w);
    dt_plan_split_blocks(cost, mod->n_blocks, mp->layout.pp * mp->layout.vpp, mp->split);
    dt_free(cost);
    return DT_OK;
}

/* `divided`: the blocks are divided among the stages that it had. */
static enum dt_status node_module(struct dt_node n, const struct dt_module *mod, int seq_len,
                                  bool divided, struct dt_error *err, struct dt_plan_module *mp)
{
    int v, had = divided ? mp->layout.pp * mp->layout.vpp : 0;

    DT_TRY(get_layout(n, mod->name, layout_keys, err, mp));
    v = mp->layout.pp * mp->layout.vpp;
    if (divided && !dt_node_present(dt_map_get(n, "ahead")))
        memset(mp->ahead, 0, sizeof(mp->ahead)); /* it was of what the module was */
    if (v > mod->n_blocks)
        return dt_node_error(n, err, "pp*vpp = %d stages but module %s has %d blocks", v, mod->name,
                             mod->n_blocks);
    if (!dt_node_present(dt_map_get(n, "split")))
        return v == had ? DT_OK : flop_split(mod, seq_len, err, mp);
    DT_TRY(get_split(n, err, mp));
    if (mp->split[v] != mod->n_blocks)
        return dt_node_error(dt_map_get(n, "split"), err,
                             "split ends at block %d, module %s has %d", mp->split[v], mod->name,
                             mod->n_blocks);
    return DT_OK;
}

/* The keys are modules of the model, and those of all of them. */
static enum dt_status read_all(struct dt_node node, const struct dt_model *m, struct dt_error *err,
                               struct dt_plan *p)
{
    const char *names[DT_MAX_MODULES + 2] = {NULL};

    for (int i = 0; i < m->n_modules; i++)
        names[i] = m->modules[i].name;
    names[m->n_modules] = "colocated";
    DT_TRY(dt_map_check(node, "plan", names, err));
    return dt_keys_get(node, dt_plan_map_keys, "colocated", p, err);
}

enum dt_status dt_plan_from_node(struct dt_node node, const struct dt_model *m,
                                 const struct dt_plan *base, struct dt_error *err,
                                 struct dt_plan *out)
{
    struct dt_plan p = *base;

    DT_TRY(read_all(node, m, err, &p));
    for (int i = 0; i < m->n_modules; i++) {
        struct dt_node n = dt_map_get(node, m->modules[i].name);

        if (dt_node_present(n))
            DT_TRY(node_module(n, &m->modules[i], p.policy.seq_len, false, err, &p.modules[i]));
        else if (!p.colocated) /* a colocated module that is not named has one lane */
            return dt_node_error(node, err,
                                 "plan: module \"%s\" is missing: a plan states every module, or "
                                 "changes a plan.json (--plan FILE)",
                                 m->modules[i].name);
    }
    for (int i = 0; i < m->n_modules; i++)
        DT_TRY(get_with(dt_map_get(node, m->modules[i].name), i, err, &p));
    *out = p;
    return DT_OK;
}

/* Where a module has other GPUs than it had, all find their places anew that have none stated. */
enum dt_status dt_plan_change(struct dt_node node, const struct dt_model *m, struct dt_error *err,
                              struct dt_plan *plan)
{
    struct dt_plan p = *plan;
    bool stays[DT_MAX_MODULES], moved = false;

    DT_TRY(read_all(node, m, err, &p));
    for (int i = 0; i < m->n_modules; i++) {
        struct dt_node n = dt_map_get(node, m->modules[i].name);
        struct dt_plan_module *mp = &p.modules[i];

        stays[i] = mp->pinned;
        if (!dt_node_present(n))
            continue;
        DT_TRY(node_module(n, &m->modules[i], p.policy.seq_len, true, err, mp));
        DT_TRY(get_with(n, i, err, &p));
        moved = moved || mp->with != plan->modules[i].with ||
                dt_plan_layout_gpus(&mp->layout) != dt_plan_layout_gpus(&plan->modules[i].layout);
    }
    for (int i = 0; i < m->n_modules; i++)
        p.modules[i].pinned = p.modules[i].pinned || (stays[i] && !moved);
    memset(&p.predicted, 0, sizeof(p.predicted));
    *plan = p;
    return DT_OK;
}
