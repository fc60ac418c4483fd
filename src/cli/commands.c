/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The command table. */
#include "cli/cli.h"

enum dt_status dt_cmd_completion(struct dt_cli *cli, struct dt_error *err)
{
    (void)cli;
    (void)err;
    dt_cli_print_completion(stdout);
    return DT_OK;
}

const struct dt_cli_command dt_cli_commands[] = {
    {"plan", "JOB [KEY=VALUE...]", "search the layouts of a job and print the best plans",
     dt_cmd_plan_options, 1, -1, dt_cmd_plan, NULL},
    {"simulate", "JOB [KEY=VALUE...]", "predict iteration time, MFU and memory of a job",
     dt_cmd_simulate_options, 1, -1, dt_cmd_simulate, NULL},
    {"train", "JOB [KEY=VALUE...]", "execute the job: train its model on this machine",
     dt_cmd_train_options, 1, -1, dt_cmd_train, NULL},
    {"eval", "JOB [KEY=VALUE...]", "measure a trained model on held-out data", dt_cmd_eval_options,
     1, -1, dt_cmd_eval, NULL},
    {"sample", "JOB [KEY=VALUE...]", "caption images and draw captions with a trained model",
     dt_cmd_sample_options, 1, -1, dt_cmd_sample, NULL},
    {"loop", "JOB [KEY=VALUE...]", "profile, predict, train and compare many small layouts",
     dt_cmd_loop_options, 1, -1, dt_cmd_loop, NULL},
    {"compare", "RUN RUN", "two runs side by side, simulated or executed", dt_cmd_compare_options,
     2, 2, dt_cmd_compare, NULL},
    {"trace", "export RUN", "write a run as a trace for Perfetto and Chrome", dt_cmd_trace_options,
     2, 2, dt_cmd_trace, NULL},
    {"reproduce", "", "run the published DistTrain evaluation: published, recalled, ours",
     dt_cmd_reproduce_options, 0, 0, dt_cmd_reproduce, NULL},
    {"data", "ACTION [FILE...]", "pack training data into shards, scan shards, show token ids",
     dt_cmd_data_options, 1, -1, dt_cmd_data, NULL},
    {"accuracy", "", "predict measured training runs and print the errors", dt_cmd_accuracy_options,
     0, 0, dt_cmd_accuracy, NULL},
    {"profile", "JOB [KEY=VALUE...]", "measure this machine for the blocks of a job",
     dt_cmd_profile_options, 1, -1, dt_cmd_profile, NULL},
    {"db", "ACTION [FILE...]", "import, fit, show and export kernel profiles", dt_cmd_db_options, 1,
     -1, dt_cmd_db, NULL},
    {"completion", "", "print the bash completion script", NULL, 0, 0, dt_cmd_completion,
     "it prints a bash script"},
    {NULL, NULL, NULL, NULL, 0, 0, NULL, NULL},
};
