/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What one core of this machine does for a job's data in a second: rows of cpu_prep (doc/formats.md). */
#ifndef DT_EXEC_TRAIN_PROFILER_DATA_H
#define DT_EXEC_TRAIN_PROFILER_DATA_H

#include "core/profile/profile_schema.h"
#include "exec/data/loader.h"

enum { DT_PROFILER_DATA_SAMPLES = 400, DT_PROFILER_DATA_SAMPLES_MAX = 1 << 20 };

struct dt_profiler_data_options {
    const struct dt_loader_options *loader;
    int samples;        /* at most so many, evenly spread over the shards */
    const char *device; /* name of the device in the rows */
    double reference_s; /* the speed of all times, by the reference kernel; 0 = its first time */
};
struct dt_profiler_data_report {
    int64_t samples, images, captions, sounds; /* looked at; measured */
    double reference_s;                        /* the kernel's time at the rates' speed */
    double
        per_s[DT_CPU_PREP_N]; /* pixels as stored, the same, bytes, ms of sound; 0: not measured */
};
/* Decodes the samples' images, resizes them as the loader is told to, makes spectrograms of their sounds (where the model
 * hears) and tokenizes their captions (of a json member, all of its text), each as often as takes a while, by the
 * processor's time, so that other work of the machine counts little, and at one speed of the core (comm/reference.h).  What
 * cannot be decoded is passed over.  DT_ERR_INPUT where there is nothing to measure. */
enum dt_status dt_profiler_data(const struct dt_profiler_data_options *o, struct dt_error *err,
                                struct dt_profile_table *out,
                                struct dt_profiler_data_report *report);

#endif
