/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The samples of a job.  Sample i of a distribution does not depend on how many are drawn, so jobs that share their
 * inputs take the first of what was drawn before; the first draw is of twice as many as are asked for, as batches
 * are among the keys that such jobs differ in. */
#include "core/job/job_internal.h"

#include "base/mem.h"
#include "core/model/shape.h"

#include <stdio.h>
#include <string.h>

enum {
    PATH_SIZE = 4096,
    SAMPLES_MAX = 1 << 20,
    AHEAD_MAX =
        1 << 14 /* above it no more are drawn than are asked for: 40 ms on one core, measured */
};

static int64_t count_of(const struct dt_job *j)
{
    int64_t count = j->policy.global_batch * j->sim.iterations;

    if (count <= SAMPLES_MAX)
        return count;
    /* samples repeat after this many; at least one batch is all different */
    return j->policy.global_batch > SAMPLES_MAX ? j->policy.global_batch : SAMPLES_MAX;
}

/* The file's path as the job states it, or NULL. */
static const char *csv_of(struct dt_node n, struct dt_node *where, bool *listed)
{
    static const char *const of_csv[] = {"csv", "patch", NULL};
    const char *text, *dot;

    *listed = dt_node_is_map(n) && dt_map_check(n, "samples", of_csv, NULL) == DT_OK;
    *where = *listed ? dt_map_get(n, "csv") : n;
    text = dt_node_text(*where);
    dot = text ? strrchr(text, '.') : NULL;
    return dot && strcmp(dot, ".csv") == 0 ? text : NULL;
}

static enum dt_status draw(struct dt_node n, const struct dt_job *j, int64_t count,
                           struct dt_error *err, struct dt_samples **out)
{
    struct dt_samples_image image = dt_samples_image_of(j->model);

    return dt_preset_error_place(
        n, dt_samples_read(n, j->policy.seq_len, count, j->sim.seed, &image, err, out), err);
}

/* A CSV path is relative to the job; everything else goes to the samples' own reader. */
static enum dt_status make_alone(struct dt_node n, const struct dt_job *j, struct dt_error *err,
                                 struct dt_samples **out)
{
    struct dt_samples_image image = dt_samples_image_of(j->model);
    struct dt_node where;
    char path[PATH_SIZE];
    bool listed;
    const char *csv = csv_of(n, &where, &listed);

    if (!csv)
        return draw(n, j, count_of(j), err, out);
    DT_TRY(dt_preset_relative(where, csv, err, path, sizeof(path)));
    if (listed)
        DT_TRY(dt_samples_patch(n, &image, err));
    return dt_samples_read_csv(path, j->policy.seq_len, &image, err, out);
}

/* ---- shared ---- */

/* All that draw() looks at but the count; for dt_free(). */
static enum dt_status key_of(struct dt_node n, const struct dt_job *j, int64_t count,
                             struct dt_error *err, char **out)
{
    struct dt_samples_image image = dt_samples_image_of(j->model);
    char *samples, *key;
    size_t size;

    DT_TRY(dt_node_to_json(n, err, &samples));
    size = strlen(samples) + strlen(dt_doc_name(j->doc)) + 256;
    key = dt_malloc(size);
    if (key)
        snprintf(key, size, "%s beside %s: %d tokens, %lld, seed %llu, images %d %d, sound %d %d",
                 samples, dt_doc_name(j->doc), j->policy.seq_len, (long long)count,
                 (unsigned long long)j->sim.seed, image.patch, image.resize, image.mel_bins,
                 image.sound_patch);
    dt_free(samples);
    if (!key)
        return dt_error_nomem(err, "samples");
    *out = key;
    return DT_OK;
}

/* As many samples as draw() is asked for: neither a file's nor a number that is stated. */
static bool is_drawn(struct dt_node n)
{
    struct dt_node where;
    bool listed;

    return !csv_of(n, &where, &listed) && !dt_node_present(dt_map_get(n, "csv")) &&
           !dt_node_present(dt_map_get(n, "count"));
}

/* The first of what was drawn under the key; more are drawn where that are too few.  *out NULL: this road does not
 * lead there, which the other one will say. */
static enum dt_status take_first(struct dt_node n, const struct dt_job *j, const char *key,
                                 struct dt_error *err, struct dt_samples **out)
{
    int64_t count = count_of(j), most = count <= AHEAD_MAX / 2 ? 2 * count : count;
    struct dt_samples *drawn = dt_job_input_find(j->inputs, DT_JOB_DRAWN, key);
    enum dt_status st = DT_OK;
    struct dt_error ignored;

    if (drawn && drawn->n < count) {
        dt_job_input_forget(j->inputs, drawn);
        drawn = NULL;
    }
    if (!drawn) {
        if (draw(n, j, most, &ignored, &drawn) != DT_OK)
            return DT_OK;
        DT_TRY(dt_job_input_add(j->inputs, DT_JOB_DRAWN, key, drawn, err));
    }
    st = dt_samples_prefix(drawn, count, err, out);
    dt_job_input_drop(j->inputs, drawn);
    return st;
}

static enum dt_status make_shared(struct dt_node n, struct dt_job *j, struct dt_error *err,
                                  struct dt_samples **out)
{
    char *key = NULL;
    enum dt_status st = DT_OK;

    *out = NULL;
    if (is_drawn(n)) {
        DT_TRY(key_of(n, j, 0, err, &key));
        st = take_first(n, j, key, err, out);
        dt_free(key);
    }
    if (st == DT_OK && !*out)
        st = make_alone(n, j, err, out);
    return st;
}

enum dt_status dt_job_samples(struct dt_node root, struct dt_job *j, struct dt_error *err)
{
    struct dt_node n = dt_map_get(root, "samples");
    struct dt_samples *made = NULL;
    char *key = NULL;

    if (!j->inputs)
        return make_alone(n, j, err, &j->samples);
    DT_TRY(key_of(n, j, count_of(j), err, &key));
    j->samples = dt_job_input_find(j->inputs, DT_JOB_SAMPLES, key);
    enum dt_status st = j->samples ? DT_OK : make_shared(n, j, err, &made);
    if (st == DT_OK && made)
        st = dt_job_input_add(j->inputs, DT_JOB_SAMPLES, key, made, err);
    if (st == DT_OK && made)
        j->samples = made;
    dt_free(key);
    return st;
}
