/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The job's maps train and search.  disttrain-job(5) documents every key and default. */
#include "core/job/job_internal.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>

enum {
    TP_BITS = 7, /* TP up to 64 */
    TOP_K_MAX = 256,
    BUDGET_MAX = 1 << 30,
};

void dt_job_defaults(struct dt_job *j)
{
    memset(j, 0, sizeof(*j));
    j->cluster = dt_cluster_defaults;
    dt_job_run_defaults(&j->run);
    j->policy = (struct dt_plan_policy){
        .microbatch = 1,
        .schedule = DT_SCHED_1F1B,
        .intra_reorder = true,
        .inter_reorder = true,
        .reorder_budget_s = DT_REORDER_BUDGET_S,
        .stepccl = true,
        .overlap_grad = true,
        .overlap_param = true,
    };
    for (int m = 0; m < DT_MAX_MODULES; m++) {
        j->recompute[m] = DT_RECOMPUTE_SELECTIVE;
        j->zero[m] = 1;
    }
    j->strategy = DT_STRATEGY_DISTTRAIN;
    j->search = (struct dt_search_options){.k = 8,
                                           .rank = true,
                                           .tp_mask = 0xf,
                                           .confidence = 0.95,
                                           .p_error = 0.05,
                                           .free_intra = true,
                                           .free_inter = true};
    j->sim = (struct dt_job_simulate_options){
        .iterations = 1,
        .contention = true,
        .slow_gpu_factor = 1.1,
        .checkpoint_interval_s = 1800, /* assumed, as the two below */
        .checkpoint_write_s = 30,
        .restart_s = 600,
        .seed = 1,
    };
    dt_sched_supply_defaults(&j->sim.preprocess);
}

/* ---- train ---- */

static enum dt_status read_frozen(struct dt_node map, const struct dt_key *key, void *into,
                                  struct dt_error *err)
{
    struct dt_job *j = into;
    struct dt_node list = dt_map_get(map, key->name);
    const char *names[DT_MAX_MODULES + 1] = {NULL}, *near;
    bool frozen[DT_MAX_MODULES] = {false};

    for (int i = 0; i < j->model->n_modules; i++)
        names[i] = j->model->modules[i].name;
    if (!dt_node_is_seq(list))
        return dt_node_error(list, err, "frozen: expected a list of module names, such as [%s]",
                             names[0]);
    for (size_t i = 0; i < dt_seq_size(list); i++) {
        struct dt_node n = dt_seq_at(list, i);
        const char *name = dt_node_text(n);
        int m = name ? dt_model_find(j->model, name) : -1;

        if (m < 0) {
            near = name ? dt_suggest(name, names) : NULL;
            return dt_node_error(n, err,
                                 "frozen: \"%.60s\" is not a module of the model; %s \"%s\"?",
                                 name ? name : "(not a name)", near ? "did you mean" : "perhaps",
                                 near ? near : names[0]);
        }
        frozen[m] = true;
    }
    memcpy(j->frozen, frozen, sizeof(frozen));
    return DT_OK;
}

/* ---- keys that may be left to the search (job_auto.c) ---- */

static const char *const auto_words[] = {"auto", NULL};
#define NAME(id, name, pipe, help) name,
#define HELP(id, name, pipe, help) help,
static const char *const schedule_words[] = {"auto", DT_SCHEDULES(NAME) NULL};
static const char *const schedule_glosses[] = {"as the search finds", DT_SCHEDULES(HELP) NULL};
#undef NAME
#undef HELP
#define NAME(id, name, help) name,
#define HELP(id, name, help) help,
static const char *const offload_words[] = {"auto", DT_OFFLOADS(NAME) NULL};
static const char *const offload_glosses[] = {"as the search finds", DT_OFFLOADS(HELP) NULL};
#undef NAME
#undef HELP
/* in the order of enum dt_block_recompute */
static const char *const recompute_words[] = {"auto", "none", "selective", "full", NULL};

static enum dt_status read_schedule(struct dt_node map, const struct dt_key *key, void *into,
                                    struct dt_error *err)
{
    struct dt_job *j = into;
    int v = (int)j->policy.schedule + 1; /* as a word */

    DT_TRY(dt_get_enum(map, key->name, schedule_words, &v, err));
    if (v > 0)
        j->policy.schedule = (enum dt_pipe_schedule)(v - 1);
    return DT_OK;
}

/* What was said of a value that is no number or truth: the words that it may be, too. */
static enum dt_status or_words(enum dt_status st, const char *words, struct dt_error *err)
{
    size_t n = st == DT_ERR_INPUT && err ? strlen(err->message) : 0;

    if (n > 0)
        snprintf(err->message + n, sizeof(err->message) - n, "; also possible: %s", words);
    return st;
}

static enum dt_status read_microbatch(struct dt_node map, const struct dt_key *key, void *into,
                                      struct dt_error *err)
{
    struct dt_job *j = into;

    if (dt_job_is_auto(dt_map_get(map, key->name)))
        return DT_OK;
    return or_words(dt_get_i32(map, key->name, 1, DT_MICROBATCH_MAX, &j->policy.microbatch, err),
                    "auto", err);
}

/* A key that is one value for all modules, or a map of modules: reads each by `one`, from the map that holds it. */
static enum dt_status of_modules(struct dt_node map, const struct dt_key *key, struct dt_job *j,
                                 enum dt_status (*one)(struct dt_node map, const char *name,
                                                       struct dt_job *j, int module,
                                                       struct dt_error *err),
                                 struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    const char *names[DT_MAX_MODULES + 1] = {NULL};

    for (int m = 0; m < j->model->n_modules; m++)
        names[m] = j->model->modules[m].name;
    if (dt_node_is_map(n))
        DT_TRY(dt_map_check(n, key->name, names, err));
    for (int m = 0; m < j->model->n_modules; m++)
        DT_TRY(dt_node_is_map(n) ? one(n, names[m], j, m, err) : one(map, key->name, j, m, err));
    return DT_OK;
}

static enum dt_status one_recompute(struct dt_node map, const char *name, struct dt_job *j,
                                    int module, struct dt_error *err)
{
    int v = (int)j->recompute[module] + 1; /* as a word */

    DT_TRY(dt_get_enum(map, name, recompute_words, &v, err));
    if (v > 0)
        j->recompute[module] = (enum dt_block_recompute)(v - 1);
    return DT_OK;
}

static enum dt_status read_recompute(struct dt_node map, const struct dt_key *key, void *into,
                                     struct dt_error *err)
{
    return of_modules(map, key, into, one_recompute, err);
}

static enum dt_status one_zero(struct dt_node map, const char *name, struct dt_job *j, int module,
                               struct dt_error *err)
{
    int64_t v = j->zero[module];

    if (dt_job_is_auto(dt_map_get(map, name)))
        return DT_OK;
    DT_TRY(or_words(dt_get_int(map, name, 0, DT_ZERO_MAX, &v, err), "auto", err));
    if (v > 1 && dt_cluster_is_cpu(&j->cluster))
        return dt_node_error(
            dt_map_get(map, name), err,
            "zero: %d: on CPUs gradients and parameters are not sharded; use 0 or 1", (int)v);
    j->zero[module] = (int)v;
    return DT_OK;
}

static enum dt_status read_zero(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    return of_modules(map, key, into, one_zero, err);
}

static enum dt_status one_offload(struct dt_node map, const char *name, struct dt_job *j,
                                  int module, struct dt_error *err)
{
    int v = (int)j->offload[module] + 1; /* as a word */

    DT_TRY(dt_get_enum(map, name, offload_words, &v, err));
    if (v > 0)
        j->offload[module] = (enum dt_plan_offload)(v - 1);
    return DT_OK;
}

static enum dt_status read_offload(struct dt_node map, const struct dt_key *key, void *into,
                                   struct dt_error *err)
{
    return of_modules(map, key, into, one_offload, err);
}

static const char *const grads[] = {"fp32", "bf16", NULL};      /* false, true of bf16_grads */
static const char *const precisions[] = {"bf16", "fp16", NULL}; /* false, true of half_grads */
/* true, false or auto, which is true while layouts are compared. */
static enum dt_status read_way(struct dt_node map, const char *name, bool *on, bool *open,
                               struct dt_error *err)
{
    *open = dt_job_is_auto(dt_map_get(map, name));
    *on = *open;
    return *open ? DT_OK : or_words(dt_get_bool(map, name, on, err), "auto", err);
}

static enum dt_status read_intra(struct dt_node map, const struct dt_key *key, void *into,
                                 struct dt_error *err)
{
    struct dt_job *j = into;

    return read_way(map, key->name, &j->policy.intra_reorder, &j->search.free_intra, err);
}

static enum dt_status read_inter(struct dt_node map, const struct dt_key *key, void *into,
                                 struct dt_error *err)
{
    struct dt_job *j = into;

    return read_way(map, key->name, &j->policy.inter_reorder, &j->search.free_inter, err);
}

static const char *const automatic[] = {"auto", NULL};
static const struct dt_key reorder_keys[] = {
    {.name = "intra",
     .type = DT_KEY_OWN,
     .form = "true or false",
     .words = automatic,
     .read = read_intra,
     .fallback = "auto",
     .help = "of samples across replicas"},
    {.name = "inter",
     .type = DT_KEY_OWN,
     .form = "true or false",
     .words = automatic,
     .read = read_inter,
     .fallback = "auto",
     .help = "of microbatches in time"},
    {.name = NULL},
};

/* A map of the two, or one word for both; batch is another matter for each batch. */
static const char *const reorder_words[] = {"auto", "none",  "inter", "intra",
                                            "both", "batch", NULL};
enum { REORDER_BATCH = 5 };
static enum dt_status read_reorder(struct dt_node map, const struct dt_key *key, void *into,
                                   struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct dt_job *j = into;
    int word = 0;

    j->policy.batch_reorder = false;
    if (!dt_node_is_scalar(n))
        return dt_keys_read(n, key->name, key->keys, j, err);
    DT_TRY(or_words(dt_get_enum(map, key->name, reorder_words, &word, err),
                    "{intra: true, inter: false}", err));
    j->search.free_intra = j->search.free_inter = word == 0;
    j->policy.batch_reorder = word == REORDER_BATCH; /* plans are compared with both */
    j->policy.inter_reorder = word == 0 || word == REORDER_BATCH || (word - 1) & DT_REORDER_INTER;
    j->policy.intra_reorder = word == 0 || word == REORDER_BATCH || (word - 1) & DT_REORDER_INTRA;
    return DT_OK;
}

static const struct dt_key overlap_keys[] = {
    {.name = "grad",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, policy.overlap_grad),
     .help = "gradient synchronisation"},
    {.name = "param",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, policy.overlap_param),
     .help = "parameter gathering"},
    {.name = NULL},
};
const struct dt_key dt_job_train_keys[] = {
    {.name = "global_batch",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, policy.global_batch),
     .min = 1,
     .max = DT_BATCH_MAX,
     .needed = "1920",
     .help = "samples per iteration, a multiple of microbatch"},
    {.name = "microbatch",
     .type = DT_KEY_OWN,
     .form = "integer",
     .words = auto_words,
     .read = read_microbatch,
     .fallback = "auto where plans are searched for on GPUs, else 1",
     .help = "samples per LLM microbatch"},
    {.name = "seq_len",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, policy.seq_len),
     .min = 1,
     .max = DT_SEQ_MAX,
     .needed = "8192",
     .help = "tokens per sample"},
    {.name = "precision",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, policy.half_grads),
     .words = precisions,
     .help = "of parameters and activations; fp16: of reduced gradients too"},
    {.name = "grads",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, policy.bf16_grads),
     .words = grads,
     .help = "in what gradients are kept and summed; bf16: on GPUs alone"},
    {.name = "recompute",
     .type = DT_KEY_OWN,
     .form = "map of modules",
     .words = recompute_words,
     .read = read_recompute,
     .fallback = "auto where plans are searched for on GPUs, else selective",
     .help = "which activations are computed again instead of kept"},
    {.name = "schedule",
     .type = DT_KEY_OWN,
     .form = "word",
     .words = schedule_words,
     .glosses = schedule_glosses,
     .read = read_schedule,
     .fallback = "auto where plans are searched for on GPUs, else 1f1b",
     .help = "pipeline schedule: order of forwards and backwards on a stage"},
    {.name = "zero",
     .type = DT_KEY_OWN,
     .form = "integer from 0 to 3, or map of modules",
     .words = auto_words,
     .read = read_zero,
     .fallback = "auto where plans are searched for on GPUs, else 1",
     .help = "what replicas shard: 1 optimizer states, 2 gradients too, 3 parameters too"},
    {.name = "offload",
     .type = DT_KEY_OWN,
     .form = "map of modules",
     .words = offload_words,
     .glosses = offload_glosses,
     .read = read_offload,
     .fallback = "none",
     .help = "what of a module lies in the host's memory"},
    {.name = "cp_comm",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, policy.cp_comm),
     .words = dt_plan_cp_comm_names,
     .glosses = dt_job_cp_comm_help,
     .help = "how keys and values come to the ranks of context parallelism"},
    {.name = "stepccl",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, policy.stepccl),
     .help = "tensor-parallel collectives chunked against their products"},
    {.name = "stepccl_chunks",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, policy.stepccl_chunks),
     .min = 0,
     .max = DT_STEPCCL_CHUNKS_MAX,
     .help = "into how many chunks stepccl cuts each of them; 0: the best number for each"},
    {.name = "dispatch",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_job, cost_opt.dispatch_ns),
     .min = 0,
     .max = 1e-2,
     .scale = 1e9,
     .unit = "s",
     .help = "host time per forward kernel"},
    {.name = "reorder",
     .type = DT_KEY_OWN,
     .words = reorder_words,
     .keys = reorder_keys,
     .read = read_reorder,
     .fallback = "auto",
     .help = "reordering of samples"},
    {.name = "reorder_budget",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_job, policy.reorder_budget_s),
     .min = 1e-6,
     .max = 3600,
     .unit = "s",
     .help = "of a core, for the timelines of each batch with reorder: batch"},
    {.name = "assignment",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, policy.assignment),
     .words = dt_plan_assignment_names,
     .glosses = dt_job_assignment_help,
     .fallback = "entrain where search.strategy is entrain, else slots",
     .help = "how samples become microbatches"},
    {.name = "warmup",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, policy.warmup),
     .words = dt_plan_warmup_names,
     .glosses = dt_job_warmup_help,
     .help = "how many forwards a stage runs before its first backward"},
    {.name = "overlap",
     .type = DT_KEY_MAP,
     .keys = overlap_keys,
     .help = "collectives that overlap with computation"},
    {.name = "frozen",
     .type = DT_KEY_OWN,
     .form = "list of modules",
     .read = read_frozen,
     .fallback = "none",
     .help = "modules whose bodies are not trained"},
    {.name = NULL},
};

static enum dt_status check_policy(struct dt_node map, const struct dt_job *j, struct dt_error *err)
{
    const struct dt_plan_policy *p = &j->policy;
    const struct dt_block *b = j->model->modules[j->model->llm].blocks;
    struct dt_node seq = dt_map_get(map, "seq_len");

    if (p->global_batch % p->microbatch != 0)
        return dt_node_error(dt_map_get(map, "global_batch"), err,
                             "global_batch: %lld is not a multiple of microbatch %d; use %lld",
                             (long long)p->global_batch, p->microbatch,
                             (long long)(p->global_batch / p->microbatch + 1) * p->microbatch);
    if (p->bf16_grads && dt_cluster_is_cpu(&j->cluster) &&
        dt_node_present(dt_map_get(map, "grads"))) /* not the plan's, which says it itself */
        return dt_node_error(dt_map_get(map, "grads"), err,
                             "grads: on CPUs gradients are fp32; leave this key out");
    if (b->max_pos > 0 && p->seq_len > b->max_pos)
        return dt_node_error(seq, err,
                             "seq_len: %d is longer than the model's %d learned positions; use "
                             "at most %d",
                             p->seq_len, b->max_pos, b->max_pos);
    return DT_OK;
}

enum dt_status dt_job_train(struct dt_node map, struct dt_job *j, struct dt_error *err)
{
    const struct dt_key *missing;

    DT_TRY(dt_keys_read(map, "train", dt_job_train_keys, j, err));
    missing = dt_keys_missing(dt_job_train_keys, j); /* not what a plan file states */
    return missing ? dt_map_require(map, "train", missing->name, err) : check_policy(map, j, err);
}

/* ---- search ---- */

static enum dt_status tp_bit(struct dt_node n, int gpus_per_node, unsigned *mask,
                             struct dt_error *err)
{
    const char *text = dt_node_text(n);
    int64_t v = 0;

    if (text && dt_number_int(text, &v))
        for (int bit = 0; bit < TP_BITS; bit++)
            if (v == 1 << bit && (v <= gpus_per_node || v % gpus_per_node == 0)) {
                *mask |= 1u << bit;
                return DT_OK;
            }
    return dt_node_error(n, err,
                         "tp: \"%.20s\" is not a tensor-parallel degree here; use powers of two up "
                         "to the %d GPUs of a node or multiples of them, such as [1, 2, 4, 8]",
                         text ? text : "(not a number)", gpus_per_node);
}

static enum dt_status read_tp(struct dt_node map, const struct dt_key *key, void *into,
                              struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct dt_job *j = into;
    unsigned mask = 0;

    if (dt_node_is_scalar(n))
        DT_TRY(tp_bit(n, j->cluster.gpus_per_node, &mask, err));
    for (size_t i = 0; i < dt_seq_size(n); i++)
        DT_TRY(tp_bit(dt_seq_at(n, i), j->cluster.gpus_per_node, &mask, err));
    if (mask == 0)
        return dt_node_error(n, err, "tp: expected a list of degrees, such as [1, 2, 4, 8]");
    j->search.tp_mask = mask;
    return DT_OK;
}

static enum dt_status read_gpus(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    struct dt_job *j = into;

    return dt_get_i32(map, key->name, 1, dt_cluster_gpus(&j->cluster), &j->search.gpus, err);
}

static const char *const megatron_words[] = {"auto", "published", NULL};

static enum dt_status read_megatron_pp(struct dt_node map, const struct dt_key *key, void *into,
                                       struct dt_error *err)
{
    const char *text = dt_node_text(dt_map_get(map, key->name));
    struct dt_job *j = into;
    int *pp = &j->search.megatron_pp;

    if (dt_job_is_auto(dt_map_get(map, key->name)))
        *pp = DT_MEGATRON_AUTO;
    else if (text && strcmp(text, "published") == 0)
        *pp = DT_MEGATRON_PUBLISHED;
    else
        return or_words(dt_get_i32(map, key->name, 1, DT_MAX_VSTAGES, pp, err), "auto, published",
                        err);
    return DT_OK;
}

static enum dt_status read_placement(struct dt_node map, const struct dt_key *key, void *into,
                                     struct dt_error *err)
{
    static const char *const words[] = {"own", "auto", NULL};
    struct dt_job *j = into;
    int word = 0;

    DT_TRY(dt_get_enum(map, key->name, words, &word, err));
    j->search.guests = word == 1 ? ~0u : 0;
    return DT_OK;
}

const struct dt_key dt_job_search_keys[] = {
    {.name = "strategy",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, strategy),
     .words = dt_plan_strategy_names,
     .glosses = dt_plan_strategy_help,
     .help = "how the layouts of the modules are chosen"},
    {.name = "gpus",
     .type = DT_KEY_OWN,
     .form = "integer",
     .read = read_gpus,
     .fallback = "all of the cluster",
     .help = "GPUs to use at most"},
    {.name = "top_k",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, search.k),
     .min = 1,
     .max = TOP_K_MAX,
     .help = "plans kept"},
    {.name = "tp",
     .type = DT_KEY_OWN,
     .form = "list of degrees",
     .read = read_tp,
     .fallback = "[1, 2, 4, 8], as far as a node is wide",
     .help = "tensor-parallel degrees to try"},
    {.name = "placement",
     .type = DT_KEY_OWN,
     .form = "own or auto",
     .read = read_placement,
     .fallback = "auto on GPUs, own on CPUs",
     .help = "auto: encoders and generators also on the GPUs of the LLM; own: never"},
    {.name = "max_vpp",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, search.max_vpp),
     .min = 0,
     .max = DT_MAX_VSTAGES,
     .help =
         "largest interleaving degree tried for the LLM; 0: as many as its blocks allow, up to 16"},
    {.name = "max_cp",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, search.max_cp),
     .min = 0,
     .max = DT_MAX_VSTAGES,
     .help = "largest context parallelism tried for the LLM; 0: while a rank has 8192 tokens of a "
             "sequence"},
    {.name = "max_ep",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, search.max_ep),
     .min = 0,
     .max = 1 << 10,
     .help = "largest expert parallelism tried for an LLM with experts; 0: whatever divides them"},
    {.name = "effort",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, search.effort),
     .words = dt_search_effort_names,
     .glosses = dt_search_effort_help,
     .help = "how long to look for a plan"},
    {.name = "budget",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, search.budget),
     .min = 1,
     .max = BUDGET_MAX,
     .fallback = "by effort: normal 800000, quick 100000, thorough 20000000",
     .help = "operations of programs that ranking may time"},
    {.name = "rank",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, search.rank),
     .help = "rank the kept plans by their timeline on real samples"},
    {.name = "uniform",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, search.uniform),
     .help = "minimise the published formula itself"},
    {.name = "megatron_pp",
     .type = DT_KEY_OWN,
     .form = "integer",
     .words = megatron_words,
     .min = 1,
     .max = DT_MAX_VSTAGES,
     .read = read_megatron_pp,
     .fallback = "auto",
     .help = "pipeline stages of the LLM for megatron-lm, or its published configuration"},
    {.name = "confidence",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, search.confidence),
     .min = 0.5,
     .max = 0.999,
     .help = "entrain: confidence that another draw of the same size would divide the GPUs alike"},
    {.name = "p_error",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, search.p_error),
     .min = 0.001,
     .max = 0.5,
     .help = "entrain: how seldom, as a probability"},
    {.name = "profile_samples",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, search.profile_samples),
     .min = 0,
     .max = DT_BATCH_MAX,
     .help = "entrain: samples that modules are sized by; 0: as many as it takes (b_min)"},
    {.name = "dp",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, search.dp),
     .min = 0,
     .max = DT_BATCH_MAX,
     .help = "entrain, dip: replicas of every module; 0: as many as are fastest"},
    {.name = "allow_analytical",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, cost_opt.allow_analytical),
     .help = "estimate kernels that the profile lacks from the roofline"},
    {.name = NULL},
};

static enum dt_status check_vpp(struct dt_node map, const struct dt_job *j, struct dt_error *err)
{
    char names[64];

    if (j->search.max_vpp <= 1 || j->search.schedules != 0 ||
        dt_pipe_of(j->policy.schedule)->chunks)
        return DT_OK;
    return dt_node_error(dt_map_get(map, "max_vpp"), err,
                         "max_vpp: schedule %s has one chunk of blocks per stage; chunks need "
                         "train.schedule: %s",
                         dt_pipe_schedule_names[j->policy.schedule],
                         dt_pipe_chunked_names(names, (int)sizeof(names)));
}

enum dt_status dt_job_search(struct dt_node map, struct dt_node train, struct dt_job *j,
                             struct dt_error *err)
{
    struct dt_search_options *s = &j->search;

    while (s->tp_mask > 1 &&
           1u << (31 - __builtin_clz(s->tp_mask)) > (unsigned)j->cluster.gpus_per_node)
        s->tp_mask &= ~(1u << (31 - __builtin_clz(s->tp_mask)));
    s->guests = dt_cluster_is_cpu(&j->cluster) ? 0 : ~0u;
    DT_TRY(dt_keys_read(map, "search", dt_job_search_keys, j, err));
    if (j->searched)
        j->strategy = DT_STRATEGY_DISTTRAIN;
    dt_job_open_search(train, j);
    DT_TRY(dt_job_assignment(map, train, j, err));
    return check_vpp(map, j, err);
}
