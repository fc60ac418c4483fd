/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A picture of a timeline: one row per lane, forward, backward, step and collectives in colour,
 * bubbles blank. */
#ifndef DT_REPORT_TIMELINE_SVG_H
#define DT_REPORT_TIMELINE_SVG_H

#include "core/schedule/timeline.h"

/* Draws the stages of replica 0 of every module, in pipeline order (at most 64 lanes).  *out is SVG
 * text for the caller to dt_free.  Byte-stable for the same input. */
enum dt_status dt_report_timeline_svg(const struct dt_program *p, const struct dt_model *m,
                                      const struct dt_timeline *t, struct dt_error *err,
                                      char **out);

#endif
