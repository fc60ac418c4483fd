/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What plan, simulate and reproduce share: a job with its cost model, the search, and the JSON of a
 * result. */
#ifndef DT_CLI_SESSION_H
#define DT_CLI_SESSION_H

#include "cli/cli.h"
#include "cli/facts.h"
#include "core/job/job.h"
#include "base/json.h"
#include "report/outliers.h"
#include "sim/simulate.h"

struct dt_session {
    struct dt_job *job;
    struct dt_cost *cost;
    struct dt_orch_timed
        *timed; /* timelines of its searches, and of other sessions' where they share it */
    struct dt_search_result search; /* plans, best first; [0] is the one to use */
    double search_wall_s;
    char
        *overrides; /* as the command line has them, one a line, with the plan's file; NULL: none */
};

/* Reads the job at `path` (a file, "-", or the name of a shipped job) with KEY=VALUE overrides, and the plan
 * beside it (NULL: none), and builds its cost model (missing profile rows listed at once). */
enum dt_status dt_session_open(const char *path, const char *plan_file,
                               const char *const *overrides, int n_overrides, struct dt_error *err,
                               struct dt_session *s);
/* What the job's plans may need of the cost model: DT_ERR_MISSING_PROFILE lists all that the profile lacks. */
enum dt_status dt_session_survey(const struct dt_job *job, struct dt_cost *cost,
                                 struct dt_error *err);
/* --plan and another --strategy than manual exclude each other. */
enum dt_status dt_session_check(const struct dt_cli *cli, struct dt_error *err);
/* Runs the job's strategy; a plan is checked against model, cluster, memory. */
enum dt_status dt_session_plan(struct dt_session *s, struct dt_error *err);
/* A line where the job's policies are not those of its plan file, and one of keys that are not used; else nothing. */
void dt_cli_print_plan_changes(const struct dt_session *s);
enum dt_status dt_session_simulate(struct dt_session *s, const char *label, struct dt_error *err,
                                   struct dt_sim_result *out);
/* The JSON object of `simulate --json`, the caller's. */
enum dt_status dt_session_report_json(const struct dt_session *s, const struct dt_sim_result *r,
                                      bool explain, double wall_s, struct dt_error *err,
                                      char **out);
/* Adds the run (of the first iteration) to the runs file; `ops`: each op, too. */
enum dt_status dt_session_keep_run(const struct dt_session *s, const struct dt_sim_result *res,
                                   const char *report, const char *file, bool ops,
                                   struct dt_error *err);
/* Where runs are kept: --runs, or $DISTTRAIN_RUNS, or disttrain-runs.db here. */
const char *dt_cli_runs_file(const struct dt_cli *cli);
/* The name of this machine; "" if it has none.  Returns buf. */
char *dt_cli_host(char *buf, size_t size);
/* KEY=VALUE, one a line, for dt_free; *out NULL of none.  `plan` (may be NULL): the file of --plan. */
enum dt_status dt_cli_overrides_text(const char *const *list, int n, const char *plan,
                                     struct dt_error *err, char **out);
/* A result is there although its run could not be kept: flushes the result and says so on stderr.
 */
void dt_cli_warn_not_kept(const struct dt_error *err);
void dt_session_close(struct dt_session *s);

/* The search's input for this job, as the planners see it. */
void dt_session_search_input(const struct dt_session *s, struct dt_search_input *in);
/* "llm tp8 pp10 dp12 (960)" for one module. */
void dt_cli_layout_text(const struct dt_plan *p, int module, char *buf, size_t size);
/* All modules on one line: "encoder tp2 pp1 dp5 = 10; llm tp8 pp2 dp5 vpp10 = 80". */
void dt_cli_plan_text(const struct dt_plan *p, char *buf, size_t size);

/* The numbers of a simulation: lines of its report, members of its JSON. */
void dt_cli_report_facts(const struct dt_cli_facts *f, const struct dt_session *s,
                         const struct dt_sim_result *res);
/* What preprocessing takes, and how many cores keep the GPUs fed: of a simulation, and of the best plan, where the job's
 * simulate.preprocess has a mode (data_facts.c). */
void dt_cli_data_facts(const struct dt_cli_facts *f, const struct dt_session *s,
                       const struct dt_sim_data *d);
enum dt_status dt_cli_data_plan(const struct dt_cli_facts *f, const struct dt_session *s,
                                struct dt_error *err);
/* The members that `simulate --json` documents, into an open object. */
void dt_cli_json_report(struct dt_json *j, const struct dt_session *s, const struct dt_plan *p,
                        const struct dt_sim_result *r);
void dt_cli_json_modules(struct dt_json *j, const struct dt_plan *p, const struct dt_report *r);
void dt_cli_print_modules(const struct dt_plan *p, const struct dt_report *r, bool cpu);
/* The same of both, and of the cost model's note, as members. */
void dt_cli_json_notes(struct dt_json *j, const struct dt_session *s);
/* Which reordering of samples was chosen and why: a line, and members of an object "reorder", if any was. */
void dt_cli_print_reorder(const struct dt_session *s);
void dt_cli_json_reorder(struct dt_json *j, const struct dt_session *s);
/* Where each batch is ordered in a way of its own: how many in which; the member "orders", a word for each. */
void dt_cli_print_ways(const struct dt_session *s, const struct dt_sim_result *r);
void dt_cli_json_ways(struct dt_json *j, const struct dt_session *s, const struct dt_sim_result *r);
/* What one change of the job would bring, of the best plan or where none fits: text, and the members "hints" or
 * "would_fit" (advice.c). */
enum dt_status dt_session_advise(const struct dt_session *s, bool fits, struct dt_error *err,
                                 struct dt_orch_advice *out);
void dt_cli_print_advice(const struct dt_orch_advice *a);
void dt_cli_json_advice(struct dt_json *j, const struct dt_orch_advice *a);
/* Where no plan fits (the error says so): what would, printed before the error is.  Returns st. */
enum dt_status dt_cli_say_what_fits(const struct dt_session *s, bool json, enum dt_status st,
                                    struct dt_error *err);
/* What the cost model makes do with: a line, if anything. */
void dt_cli_print_cost_note(const struct dt_session *s);
/* What an import took for granted ("llm: rope_theta: 10000"), one indented line each; nothing when
 * nothing was. */
void dt_cli_print_assumed(const struct dt_model *m);
/* The largest contributions to the first iteration: a table; the member "explain". */
void dt_cli_print_explanation(const struct dt_explanation *e, const struct dt_model *m);
void dt_cli_json_explanation(struct dt_json *j, const struct dt_explanation *e,
                             const struct dt_model *m);
/* What was decided per dimension of the search (plan_decisions.c); `out` is for dt_free().  May find a faster plan, and puts
 * it first. */
enum dt_status dt_cli_plan_decisions(struct dt_session *s, struct dt_error *err,
                                     struct dt_orch_decisions **out);
void dt_cli_plan_decisions_print(const struct dt_session *s, const struct dt_orch_decisions *x);
void dt_cli_plan_decisions_json(const struct dt_session *s, const struct dt_orch_decisions *x,
                                struct dt_json *j);
/* Plans side by side, and what the search did, as text and as the members "plans" and "search" (plan_table.c). */
void dt_cli_plans_print(const struct dt_search_result *found);
void dt_cli_plans_json(const struct dt_search_result *found, struct dt_json *j);
/* What was asked for: plans of best have the strategy of their class. */
const char *dt_cli_strategy(const struct dt_search_result *found);
/* Of strategy best; nothing of others (plan_classes.c). */
void dt_cli_classes_print(const struct dt_search_result *found);
void dt_cli_classes_json(const struct dt_search_result *found, struct dt_json *j);
void dt_cli_search_print(const struct dt_session *s);
void dt_cli_search_json(const struct dt_session *s, struct dt_json *j);
/* `plan --explain` of the best plan, as text and as the member "explain" (plan_explain.c). */
enum dt_status dt_cli_plan_explanation_print(const struct dt_session *s,
                                             const struct dt_orch_decisions *decided,
                                             struct dt_error *err);
enum dt_status dt_cli_plan_explanation_json(const struct dt_session *s,
                                            const struct dt_orch_decisions *decided,
                                            struct dt_json *j, struct dt_error *err);
/* What stands out in a run: lines under one heading, if there are any; an array.  `rank` of each
 * lane, NULL = not told; `host` of each rank, NULL = not known. */
void dt_cli_print_outliers(const char *heading, const struct dt_program *p,
                           const struct dt_model *m, const struct dt_outliers *o, const int *rank,
                           const char *const *host);
void dt_cli_json_outliers(struct dt_json *j, const struct dt_program *p, const struct dt_model *m,
                          const struct dt_outliers *o, const int *rank, const char *const *host);
/* The first iteration's timeline (timeline.c): as SVG, a file's text or, with an `id`, a fragment of a page, for dt_free();
 * an SVG file; characters on standard output. */
enum dt_status dt_cli_timeline_svg(const struct dt_session *s, const struct dt_sim_result *r,
                                   const char *id, struct dt_error *err, char **out);
enum dt_status dt_cli_timeline_write(const char *path, const struct dt_session *s,
                                     const struct dt_sim_result *r, struct dt_error *err);
enum dt_status dt_cli_timeline_print(const struct dt_session *s, const struct dt_sim_result *r,
                                     struct dt_error *err);
/* Prints finished JSON on stdout and frees it. */
enum dt_status dt_cli_json_emit(struct dt_json *j, struct dt_error *err);

#endif
