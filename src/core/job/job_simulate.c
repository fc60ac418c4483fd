/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The job's map simulate.  disttrain-job(5) documents every key and default. */
#include "core/job/job_internal.h"

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
    {.name = NULL},
};

enum dt_status dt_job_simulate(struct dt_node map, struct dt_job *j, struct dt_error *err)
{
    return dt_keys_read(map, "simulate", dt_job_simulate_keys, j, err);
}
