/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The job's map simulate.  disttrain-job(5) documents every key and default. */
#include "core/job/job_internal.h"
#include "core/model/shape.h"

#include <string.h>

enum { ITERATIONS_MAX = 1 << 20 };

static enum dt_status read_batch_s(struct dt_node map, const struct dt_key *key, void *into,
                                   struct dt_error *err)
{
    struct dt_job *j = into;

    DT_TRY(dt_get_quantity(map, key->name, key->unit, key->min, key->max, &j->sim.batch_s, err));
    if (j->sim.batch_s > 0 && j->cluster.cores_per_node == 0)
        return dt_node_error(dt_map_get(map, key->name), err,
                             "batch_s: time of cores that ranks share with their batches; cluster "
                             "%s has no cores_per_node",
                             j->cluster.name);
    return DT_OK;
}

static enum dt_status read_failures(struct dt_node map, const struct dt_key *key, void *into,
                                    struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct dt_job *j = into;

    DT_TRY(dt_keys_read(n, key->name, key->keys, j, err));
    if (!dt_node_present(dt_map_get(n, "enabled"))) /* who says how they are met wants them */
        for (const struct dt_key *k = key->keys; k->name; k++)
            j->sim.failures |= dt_node_present(dt_map_get(n, k->name));
    if (j->sim.failures && j->cluster.mtbf_gpu_hours <= 0)
        return dt_node_error(n, err,
                             "failures: the cluster states no mtbf_gpu_hours; add it, such as "
                             "cluster.mtbf_gpu_hours=50000");
    return DT_OK;
}

static enum dt_status read_slow(struct dt_node map, const struct dt_key *key, void *into,
                                struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);

    DT_TRY(dt_keys_read(n, key->name, key->keys, into, err));
    if (dt_node_present(dt_map_get(n, "factor")) && !dt_node_present(dt_map_get(n, "fraction")))
        return dt_node_error(
            dt_map_get(n, "factor"), err,
            "factor counts only with fraction, which is not stated; add fraction: 0.01");
    return DT_OK;
}

/* ---- preprocess ---- */

static enum dt_status read_rates(struct dt_node map, const struct dt_key *key, void *into,
                                 struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct dt_job *j = into;
    char path[sizeof j->sim.preprocess_profile];
    struct dt_profile *p;
    enum dt_status st;

    DT_TRY(dt_get_string(map, key->name, path, sizeof path, err));
    if (!path[0])
        return dt_node_error(n, err, "%s: an empty path; leave the key out to do without",
                             key->name);
    memcpy(j->sim.preprocess_profile, path, sizeof path);
    if (j->shallow)
        return DT_OK;
    if (strpbrk(path, "/."))
        DT_TRY(dt_preset_relative(n, path, err, j->sim.preprocess_profile, sizeof path));
    st = dt_profile_load(j->sim.preprocess_profile, "", DT_SCHED_SUPPLY_DTYPE, err, &p);
    if (st == DT_OK) {
        st = dt_sched_supply_rates(p, j->model, err, &j->sim.preprocess);
        dt_profile_free(p);
    }
    return dt_preset_error_place(n, st, err);
}

/* The keys of a mode: each is of one mode, and that mode needs the first ones. */
static const struct {
    const char *name;
    enum dt_sched_supply_mode mode;
    bool needed;
} of_mode[] = {
    {"cores_per_node", DT_SCHED_SUPPLY_COLOCATED, true},
    {"reads", DT_SCHED_SUPPLY_COLOCATED, false},
    {"cpu_nodes", DT_SCHED_SUPPLY_DISAGGREGATED, true},
    {"cores_per_cpu_node", DT_SCHED_SUPPLY_DISAGGREGATED, true},
    {"slow_nodes", DT_SCHED_SUPPLY_DISAGGREGATED, false},
    {"slow_factor", DT_SCHED_SUPPLY_DISAGGREGATED, false},
    {"rpc_latency", DT_SCHED_SUPPLY_DISAGGREGATED, false},
    {"rpc_bandwidth", DT_SCHED_SUPPLY_DISAGGREGATED, false},
};
static const char *const of_any[] = {"prefetch", "profile"}; /* keys of both */

static enum dt_status check_mode(struct dt_node n, const struct dt_sched_supply *s,
                                 struct dt_error *err)
{
    const char *mode = dt_sched_supply_names[s->mode];

    for (size_t k = 0; k < sizeof of_mode / sizeof of_mode[0]; k++) {
        struct dt_node value = dt_map_get(n, of_mode[k].name);
        bool there = dt_node_present(value), its = s->mode == of_mode[k].mode;

        if (there && !its)
            return dt_node_error(value, err, "%s counts with mode: %s; the mode is %s",
                                 of_mode[k].name, dt_sched_supply_names[of_mode[k].mode], mode);
        if (!there && its && of_mode[k].needed)
            return dt_node_error(n, err, "preprocess: mode %s needs %s", mode, of_mode[k].name);
    }
    for (size_t k = 0; k < sizeof of_any / sizeof of_any[0]; k++)
        if (s->mode == DT_SCHED_SUPPLY_NONE && dt_node_present(dt_map_get(n, of_any[k])))
            return dt_node_error(dt_map_get(n, of_any[k]), err,
                                 "%s counts with mode: %s or %s; the mode is %s", of_any[k],
                                 dt_sched_supply_names[DT_SCHED_SUPPLY_COLOCATED],
                                 dt_sched_supply_names[DT_SCHED_SUPPLY_DISAGGREGATED], mode);
    return DT_OK;
}

/* Both or neither, and no more slow nodes than there are. */
static enum dt_status check_slow_nodes(struct dt_node n, const struct dt_sched_supply *s,
                                       struct dt_error *err)
{
    struct dt_node nodes = dt_map_get(n, "slow_nodes"), factor = dt_map_get(n, "slow_factor");

    if (dt_node_present(nodes) && !dt_node_present(factor))
        return dt_node_error(nodes, err,
                             "slow_nodes needs slow_factor, how many times as long "
                             "their cores take");
    if (dt_node_present(factor) && !dt_node_present(nodes))
        return dt_node_error(factor, err,
                             "slow_factor needs slow_nodes, how many CPU nodes it is of");
    if (s->slow_nodes > s->cpu_nodes)
        return dt_node_error(nodes, err, "slow_nodes: %d of %d CPU nodes", s->slow_nodes,
                             s->cpu_nodes);
    return DT_OK;
}

static enum dt_status read_preprocess(struct dt_node map, const struct dt_key *key, void *into,
                                      struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, key->name);
    struct dt_job *j = into;
    struct dt_sched_supply *s = &j->sim.preprocess;
    const struct dt_cluster *c = &j->cluster;

    DT_TRY(dt_keys_read(n, key->name, key->keys, into, err));
    DT_TRY(check_mode(n, s, err));
    DT_TRY(check_slow_nodes(n, s, err));
    if (s->mode == DT_SCHED_SUPPLY_COLOCATED && c->cores_per_node > 0 &&
        s->cores_per_node > c->cores_per_node)
        return dt_node_error(dt_map_get(n, "cores_per_node"), err,
                             "cores_per_node: %d for preprocessing, but a node of cluster %s has "
                             "%d cores",
                             s->cores_per_node, c->name, c->cores_per_node);
    if (s->mode == DT_SCHED_SUPPLY_DISAGGREGATED &&
        (int64_t)s->cpu_nodes * s->cores_per_cpu_node > DT_SCHED_SUPPLY_CORES_MAX)
        return dt_node_error(dt_map_get(n, "cpu_nodes"), err,
                             "cpu_nodes: more than %d cores in all are not simulated",
                             DT_SCHED_SUPPLY_CORES_MAX);
    if (s->bw_bytes_per_s == 0)
        s->bw_bytes_per_s = c->nics_per_node * c->nic_bytes_per_s * c->nic_efficiency;
    if (s->mode == DT_SCHED_SUPPLY_DISAGGREGATED && !(s->bw_bytes_per_s > 0))
        return dt_node_error(n, err,
                             "preprocess: mode disaggregated needs rpc_bandwidth, as cluster %s "
                             "states no NICs",
                             c->name);
    return DT_OK;
}

static const struct dt_key preprocess_keys[] = {
    {.name = "mode",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, sim.preprocess.mode),
     .words = dt_sched_supply_names,
     .help = "where images are decoded and texts tokenized: none takes no time"},
    {.name = "cores_per_node",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, sim.preprocess.cores_per_node),
     .min = 1,
     .max = 4096,
     .fallback = "none; needed for mode colocated",
     .help = "cores of a GPU node that preprocess what the node fetches"},
    {.name = "reads",
     .type = DT_KEY_WORD,
     DT_KEY_INTO(struct dt_job, sim.preprocess.reads),
     .words = dt_sched_supply_reads_names,
     .help =
         "what a lane decodes: its own samples, or those of all replicas' microbatches of a slot"},
    {.name = "cpu_nodes",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, sim.preprocess.cpu_nodes),
     .min = 1,
     .max = 65536,
     .fallback = "none; needed for mode disaggregated",
     .help = "nodes that do nothing else"},
    {.name = "cores_per_cpu_node",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, sim.preprocess.cores_per_cpu_node),
     .min = 1,
     .max = 4096,
     .fallback = "none; needed for mode disaggregated",
     .help = "cores of each of them"},
    {.name = "slow_nodes",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, sim.preprocess.slow_nodes),
     .min = 0,
     .max = 65536,
     .help = "of them, whose cores take slow_factor times as long"},
    {.name = "slow_factor",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, sim.preprocess.slow_factor),
     .min = 1,
     .max = 1000,
     .help = "how much slower they are"},
    {.name = "prefetch",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, sim.preprocess.prefetch),
     .min = 0,
     .max = DT_SCHED_SUPPLY_PREFETCH_MAX,
     .help = "global batches that may be made ahead of the one in training"},
    {.name = "rpc_latency",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_job, sim.preprocess.latency_s),
     .min = 0,
     .max = 60,
     .unit = "s",
     .help = "from a CPU node to a GPU node"},
    {.name = "rpc_bandwidth",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_job, sim.preprocess.bw_bytes_per_s),
     .min = 1,
     .max = 1e15,
     .unit = "bytes/s",
     .fallback = "that of the node's NICs",
     .help = "into a GPU node"},
    {.name = "profile",
     .type = DT_KEY_OWN,
     .form = "path",
     .file = DT_KEY_PRESET,
     DT_KEY_INTO(struct dt_job, sim.preprocess_profile),
     .read = read_rates,
     .fallback = "none: assumed rates of a core",
     .help = "measured rates of a core, by disttrain profile --data"},
    {.name = NULL},
};

static const struct dt_key slow_keys[] = {
    {.name = "fraction",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, sim.slow_gpu_fraction),
     .min = 0,
     .max = 1,
     .help = "share of the lanes"},
    {.name = "factor",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, sim.slow_gpu_factor),
     .min = 1,
     .max = 100,
     .help = "how many times as long they take"},
    {.name = NULL},
};
static const struct dt_key failure_keys[] = {
    {.name = "enabled",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, sim.failures),
     .fallback = "true where another key of failures is stated, else false",
     .help = "simulate failures by the cluster's mtbf_gpu_hours"},
    {.name = "checkpoint_interval",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_job, sim.checkpoint_interval_s),
     .min = 1,
     .max = 1e9,
     .unit = "s",
     .help = "from one checkpoint to the next"},
    {.name = "checkpoint_write",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_job, sim.checkpoint_write_s),
     .min = 0,
     .max = 1e9,
     .unit = "s",
     .help = "time to write one"},
    {.name = "restart",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_job, sim.restart_s),
     .min = 0,
     .max = 1e9,
     .unit = "s",
     .help = "time from a failure to the first step after it"},
    {.name = NULL},
};
const struct dt_key dt_job_simulate_keys[] = {
    {.name = "iterations",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, sim.iterations),
     .min = 1,
     .max = ITERATIONS_MAX,
     .help = "iterations, each on its own global batch"},
    {.name = "contention",
     .type = DT_KEY_BOOL,
     DT_KEY_INTO(struct dt_job, sim.contention),
     .help = "transfers share links max-min fairly"},
    {.name = "batch_s",
     .type = DT_KEY_QUANTITY,
     DT_KEY_INTO(struct dt_job, sim.batch_s),
     .min = 0,
     .max = 3600,
     .unit = "s",
     .read = read_batch_s,
     .help = "time of a core that each rank needs for its next batch"},
    {.name = "jitter",
     .type = DT_KEY_NUMBER,
     DT_KEY_INTO(struct dt_job, sim.jitter),
     .min = 0,
     .max = 1,
     .help = "sigma of log-normal jitter of every computation"},
    {.name = "seed",
     .type = DT_KEY_INTEGER,
     DT_KEY_INTO(struct dt_job, sim.seed),
     .min = 0,
     .max = DT_KEY_NO_LIMIT,
     .help = "seed of everything random"},
    {.name = "slow_gpu",
     .type = DT_KEY_OWN,
     .keys = slow_keys,
     .read = read_slow,
     .help = "a share of the lanes is slower by a factor"},
    {.name = "failures",
     .type = DT_KEY_OWN,
     .keys = failure_keys,
     .read = read_failures,
     .help = "failures with checkpoint and restart, reported as goodput"},
    {.name = "preprocess",
     .type = DT_KEY_OWN,
     .keys = preprocess_keys,
     .read = read_preprocess,
     .help = "cores that make the input, which microbatches wait for"},
    {.name = NULL},
};

/* Ranks that share cores with what makes their data are simulated without noise. */
static enum dt_status check_cores(struct dt_node map, const struct dt_job *j, struct dt_error *err)
{
    const char *noise = j->sim.jitter > 0              ? "jitter"
                        : j->sim.slow_gpu_fraction > 0 ? "slow_gpu"
                                                       : NULL;

    if (j->sim.preprocess.mode != DT_SCHED_SUPPLY_COLOCATED || j->cluster.cores_per_node <= 0 ||
        !noise)
        return DT_OK;
    return dt_node_error(dt_map_get(map, noise), err,
                         "%s: not with preprocess mode colocated on cluster %s, whose ranks share "
                         "its cores with that work; leave out one of the two",
                         noise, j->cluster.name);
}

enum dt_status dt_job_simulate(struct dt_node map, struct dt_job *j, struct dt_error *err)
{
    DT_TRY(dt_keys_read(map, "simulate", dt_job_simulate_keys, j, err));
    return check_cores(map, j, err);
}
