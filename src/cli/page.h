/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What a page about a run says beside what the run keeps: worked out from its job. */
#ifndef DT_CLI_PAGE_H
#define DT_CLI_PAGE_H

#include "cli/session.h"
#include "report/page.h"

/* From a job that is planned and simulated: memory of stages, contributions, assumptions, the plans of the search; with
 * `deep` also sensitivity and stragglers, which take some twenty more timelines.  Arrays and texts go into r->arena. */
enum dt_status dt_cli_page_fill(struct dt_report_page_run *r, const struct dt_session *s,
                                const struct dt_sim_result *res, bool deep, struct dt_error *err);
/* Opens the job that the run keeps, searches and simulates it, then its own plan.  What cannot be worked out (files that
 * are gone, a profile that lacks rows) is said on the page: r->worked.why_not, .why_no_next. */
enum dt_status dt_cli_page_work_out(struct dt_report_page_run *r, struct dt_error *err);

/* ---- the parts of it ---- */

/* Texts of the page's arena, up to 1 KiB; that memory ran out for one is asked once, at the end: r->no_memory. */
const char *dt_cli_page_keep(struct dt_report_page_run *r, const char *s);
const char *dt_cli_page_print(struct dt_report_page_run *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Where the job's value of this key of the cluster comes from, with what the file of a preset says of it. */
const char *dt_cli_page_cluster_source(struct dt_report_page_run *r, const struct dt_job *job,
                                       const char *key);
void dt_cli_page_assume(struct dt_report_page_run *r, const struct dt_session *s);
enum dt_status dt_cli_page_sensitivity(struct dt_report_page_run *r, const struct dt_session *s,
                                       struct dt_error *err);
/* The first global batch as its samples come, and as the plan reorders them. */
enum dt_status dt_cli_page_order(struct dt_report_page_run *r, const struct dt_session *s,
                                 struct dt_error *err);

#endif
