/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What one core of this machine does for a job's data in a second: rows of cpu_prep (doc/formats.md). */
#ifndef DT_EXEC_TRAIN_PROFILER_DATA_H
#define DT_EXEC_TRAIN_PROFILER_DATA_H

#include "core/profile/profile_schema.h"
#include "exec/data/loader.h"

enum { DT_PROFILER_DATA_SAMPLES = 400, DT_PROFILER_DATA_SAMPLES_MAX = 1 << 20 };

struct dt_profiler_data_report {
    int64_t samples, images, captions, sounds; /* looked at; measured */
    double
        per_s[DT_CPU_PREP_N]; /* pixels as stored, the same, bytes, ms of sound; 0: not measured */
};
/* Decodes images of up to `samples` samples, evenly spread over the shards, resizes them as the loader is told to, and
 * makes spectrograms of their sounds (where the model hears), tokenizes their captions (of a json member, all of its
 * text), each as often as takes a while, by the processor's
 * time: other work of the machine counts little.  What cannot be decoded is passed over.  Rows are those of `device`
 * in *out; DT_ERR_INPUT where there is nothing to measure. */
enum dt_status dt_profiler_data(const struct dt_loader_options *o, int samples, const char *device,
                                struct dt_error *err, struct dt_profile_table *out,
                                struct dt_profiler_data_report *report);

#endif
