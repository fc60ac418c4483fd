/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Profiles and samples that jobs share: reading a profile takes longer than a small simulation. */
#include "core/job/job_internal.h"

#include "base/mem.h"

#include <string.h>

enum { IDLE_SAMPLES = 4 }; /* kept without a user; profiles are few, and cost models rest on them */

struct input {
    enum dt_job_input kind;
    char *key;
    void *thing;
    int users;
    uint64_t number, used; /* used: when last, for who goes first */
};
struct dt_job_inputs {
    struct input *at;
    size_t n, cap;
    uint64_t clock, made;
};

enum dt_status dt_job_inputs_new(struct dt_error *err, struct dt_job_inputs **out)
{
    struct dt_job_inputs *in = dt_calloc(1, sizeof(*in));

    if (!in)
        return dt_error_nomem(err, "the inputs of jobs");
    *out = in;
    return DT_OK;
}

static void free_thing(enum dt_job_input kind, void *thing)
{
    switch (kind) {
    case DT_JOB_PROFILE:
        dt_profile_free(thing);
        break;
    case DT_JOB_SAMPLES:
    case DT_JOB_DRAWN:
        dt_samples_free(thing);
        break;
    }
}

static void remove_at(struct dt_job_inputs *in, size_t i)
{
    free_thing(in->at[i].kind, in->at[i].thing);
    dt_free(in->at[i].key);
    in->at[i] = in->at[--in->n];
}

void dt_job_inputs_free(struct dt_job_inputs *in)
{
    if (!in)
        return;
    while (in->n > 0)
        remove_at(in, in->n - 1);
    dt_free(in->at);
    dt_free(in);
}

void *dt_job_input_find(struct dt_job_inputs *in, enum dt_job_input kind, const char *key)
{
    for (size_t i = 0; i < in->n; i++) {
        struct input *e = &in->at[i];

        if (e->kind == kind && strcmp(e->key, key) == 0) {
            e->users++;
            e->used = ++in->clock;
            return e->thing;
        }
    }
    return NULL;
}

/* Samples of a kind that nobody uses, beyond a few of the latest. */
static void forget_idle(struct dt_job_inputs *in, enum dt_job_input kind)
{
    size_t idle = 0, oldest = 0;

    if (kind == DT_JOB_PROFILE)
        return;
    for (size_t i = 0; i < in->n; i++) {
        if (in->at[i].kind != kind || in->at[i].users > 0)
            continue;
        if (idle++ == 0 || in->at[i].used < in->at[oldest].used)
            oldest = i;
    }
    if (idle > IDLE_SAMPLES)
        remove_at(in, oldest);
}

enum dt_status dt_job_input_add(struct dt_job_inputs *in, enum dt_job_input kind, const char *key,
                                void *thing, struct dt_error *err)
{
    char *copy = dt_strdup(key);
    void *grown = in->at;

    if (!copy || dt_grow(&grown, &in->cap, in->n + 1, sizeof(*in->at)) != 0) {
        dt_free(copy);
        free_thing(kind, thing);
        return dt_error_nomem(err, "the inputs of jobs");
    }
    in->at = grown;
    in->at[in->n++] = (struct input){kind, copy, thing, 1, ++in->made, ++in->clock};
    return DT_OK;
}

uint64_t dt_job_inputs_number(const struct dt_job_inputs *in, const void *thing)
{
    for (size_t i = 0; i < in->n; i++)
        if (in->at[i].thing == thing)
            return in->at[i].number;
    return 0;
}

void dt_job_input_drop(struct dt_job_inputs *in, const void *thing)
{
    for (size_t i = 0; thing && i < in->n; i++)
        if (in->at[i].thing == thing) {
            in->at[i].users--;
            forget_idle(in, in->at[i].kind);
            return;
        }
}

void dt_job_input_forget(struct dt_job_inputs *in, const void *thing)
{
    for (size_t i = 0; i < in->n; i++)
        if (in->at[i].thing == thing) {
            remove_at(in, i);
            return;
        }
}
