/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * DistTrain's other technique, preprocessing on machines of its own: how long GPUs wait for data.
 *
 * Published is that preprocessing takes seconds of an iteration where training does it, and milliseconds elsewhere; the
 * setting is not.  Assumed: sequences of 16 images of 1,024 x 1,024 pixels with 315 tokens of text each, which a frozen
 * encoder gets with 224 x 224 pixels, modules on GPUs of their own, 8 cores of a GPU node for its loaders, one batch
 * made ahead.  The smaller the encoder's share of the GPUs, the fewer nodes have to decode all images; the LLM's size
 * decides how long they have for it.  What is accepted is for 15B, where the encoder gets two nodes. */
#include "cli/reproduce.h"

#include <stdio.h>
#include <string.h>

static const char *const base[] = {
    "samples={distribution: {image_side: {kind: constant, value: 1024}, aspect_sigma: 0, "
    "text_tokens: {kind: constant, value: 315, max: 315}, min_side: 1024, max_side: 1024, "
    "generate: 0}}",
    "model.encoder.resize=224",
    "train.frozen=[encoder]",
    "search.placement=own",
    "simulate.preprocess={mode: colocated, cores_per_node: 8}",
};
enum { N_BASE = sizeof base / sizeof base[0], CPU_NODES = 4, CPU_CORES = 64 };

static const struct {
    const char *job, *name;
    bool judged;
} jobs[] = {{"mllm-9b-1296", "MLLM-9B", false},
            {"mllm-15b-1296", "MLLM-15B", true},
            {"mllm-72b-1296", "MLLM-72B", false}};
enum { N_JOBS = sizeof jobs / sizeof jobs[0] };

static enum dt_status add(struct dt_cli_results *r, const char *name, const char *what, double s,
                          struct dt_cli_range accept, const char *detail, struct dt_error *err)
{
    struct dt_cli_result_row row = {
        .section = 'h', .unit = "s", .ours = s, .accept = accept, .judged = accept.hi > 0};

    snprintf(row.what, sizeof row.what, "%s, exposed with cores %s", name, what);
    snprintf(row.detail, sizeof row.detail, "%s", detail);
    return dt_cli_results_add(r, &row, err);
}

static enum dt_status simulate(struct dt_session *s, struct dt_error *err, struct dt_sim_data *out)
{
    struct dt_sim_result sim;

    DT_TRY(dt_session_simulate(s, "data", err, &sim));
    *out = sim.data;
    dt_sim_result_free(&sim);
    return DT_OK;
}

static enum dt_status both(struct dt_cli_results *r, struct dt_session *s, const char *name,
                           bool judged, struct dt_error *err)
{
    static const struct dt_cli_range none = {0, 0}, seconds = {1, 1000}, milliseconds = {0, 0.05};
    struct dt_sched_supply *y = &s->job->sim.preprocess;
    struct dt_sim_data d;
    char text[160];

    DT_TRY(dt_session_plan(s, err));
    DT_TRY(simulate(s, err, &d));
    snprintf(text, sizeof text,
             "%.3f s with all data there; %d cores of %d nodes for %.0f s of a core", d.fed_s,
             d.made.cores, d.made.nodes, d.made.core_s);
    DT_TRY(add(r, name, "of GPU nodes", d.exposed_s, judged ? seconds : none, text, err));
    y->mode = DT_SCHED_SUPPLY_DISAGGREGATED;
    y->cpu_nodes = CPU_NODES;
    y->cores_per_cpu_node = CPU_CORES;
    y->latency_s = 20e-6; /* of an RPC over RDMA, assumed */
    DT_TRY(simulate(s, err, &d));
    snprintf(text, sizeof text, "%d nodes of %d cores; %.1f keep %d GPUs fed", CPU_NODES, CPU_CORES,
             d.made.core_s / d.fed_s / CPU_CORES, dt_plan_gpus(&s->search.plans[0]));
    return add(r, name, "of CPU nodes", d.exposed_s, judged ? milliseconds : none, text, err);
}

enum dt_status dt_cmd_reproduce_data(struct dt_cli_results *r, struct dt_error *err)
{
    for (int i = 0; i < N_JOBS; i++) {
        struct dt_session s;
        enum dt_status st;

        DT_TRY(dt_session_open(jobs[i].job, NULL, base, N_BASE, err, &s));
        st = both(r, &s, jobs[i].name, jobs[i].judged, err);
        dt_session_close(&s);
        DT_TRY(st);
    }
    return DT_OK;
}
