/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Entrain's assignment (assign_entrain.c) as microbatches of modules.
 *
 *   slot         |   0     |      1      |
 *   encoder      | [a b]   |  [c] [d e]  |   [a b] and [c] are position 0: they are encoded one after the other
 *   LLM          | [a b]   |   [c d e]   |   c is deferred
 *   generator    | [a b]   |   [c d e]   |
 *
 * What is deferred is a microbatch of the encoder's own, in the slot of the LLM that takes it, so no transfer leaves its
 * slot, and its gradients come back a slot later than those of the other part: each part has a backward of its own. */
#include "core/schedule/assign_build.h"
#include "core/schedule/assign_entrain.h"

#include <math.h>
#include <string.h>

static enum dt_status loads(const struct dt_assign_job *j, struct dt_assign_loads *in)
{
    double *enc = DT_ARENA_NEW(j->scratch, double, j->batch);
    double *llm = DT_ARENA_NEW(j->scratch, double, j->batch);

    if (!enc || !llm)
        return DT_ERR_NOMEM;
    for (int m = 0; m < j->model->n_modules; m++) {
        const struct dt_assign_module *am = &j->m[m];
        bool encoder = dt_plan_feeds_llm(j->model, m);

        /* several encoders count as one; a generator works behind the LLM on the same microbatches, side by side */
        for (int i = 0; i < j->batch; i++)
            if (encoder)
                enc[i] += am->fwd[i] + am->bwd[i];
            else
                llm[i] = fmax(llm[i], am->fwd[i] + am->bwd[i]);
    }
    *in = (struct dt_assign_loads){.n = j->batch, .enc = enc, .llm = llm};
    return DT_OK;
}

/* What a module has in common with the others while it is written. */
struct writing {
    const struct dt_assign_job *j;
    const struct dt_assign_entrained *e;
    bool encoder;
    const double *enc; /* load of the encoders */
    uint32_t
        *place; /* [dp * slots * 2] microbatch of (replica, slot, part) + 1; 0: there is none */
};

/* Samples that no encoder sees stand where the LLM has them. */
static int part_of(const struct writing *w, int i, int *slot)
{
    bool late = w->e->deferred[i];

    *slot = w->e->position[i] + late;
    return w->encoder && !(late && w->enc[i] > 0);
}

static uint32_t *place_of(const struct writing *w, int replica, int slot, int part)
{
    return &w->place[((size_t)replica * (size_t)w->j->slots + (size_t)slot) * 2 + (size_t)part];
}

/* Microbatches in their order: of an encoder what slot k - 1 has deferred to k before the rest of k. */
static uint32_t list_microbatches(const struct writing *w, struct dt_assignment_module *out)
{
    uint32_t n = 0;

    for (int i = 0; i < w->j->batch; i++) {
        int slot, part = part_of(w, i, &slot);

        *place_of(w, w->e->replica[i], slot, part) = 1;
    }
    for (int r = 0; r < out->n_replicas; r++) {
        out->mb_first[r] = n;
        for (int k = 0; k < w->e->of[r].positions; k++)
            for (int part = 0; part < 2; part++) {
                uint32_t *at = place_of(w, r, k, part);

                /* the rest of a slot is there even if nothing is in it, so that slots follow each other */
                if (*at == 0 && part != (w->encoder ? 1 : 0))
                    continue;
                out->mb[n].slot = (uint32_t)k;
                *at = ++n;
            }
    }
    out->mb_first[out->n_replicas] = n;
    return n;
}

static void write_samples(const struct writing *w, const struct dt_assign_module *am, uint32_t n,
                          struct dt_assignment_module *out)
{
    uint32_t at = 0;

    for (int i = 0; i < w->j->batch; i++) {
        int slot, part = part_of(w, i, &slot);

        out->mb[*place_of(w, w->e->replica[i], slot, part) - 1].n++;
    }
    for (uint32_t b = 0; b < n; b++) {
        out->mb[b].first = at;
        at += out->mb[b].n;
        out->mb[b].n = 0;
    }
    for (int i = 0; i < w->j->batch; i++) {
        int slot, part = part_of(w, i, &slot);
        uint32_t b = *place_of(w, w->e->replica[i], slot, part) - 1;

        out->samples[out->mb[b].first + out->mb[b].n] = w->j->first + i;
        out->sample_work[out->mb[b].first + out->mb[b].n++] = am->work[i];
        dt_work_add(&out->work[b], &am->work[i]);
    }
}

static enum dt_status write_module(struct writing *w, int m, struct dt_assignment *a)
{
    const struct dt_assign_job *j = w->j;
    struct dt_assignment_module *out = &a->m[m];
    size_t n = (size_t)j->m[m].dp * (size_t)j->slots * 2, k;

    w->encoder = dt_plan_feeds_llm(j->model, m);
    memset(w->place, 0, n * sizeof(*w->place));
    out->n_replicas = j->m[m].dp;
    out->parts = w->encoder;
    out->mb_first = DT_ARENA_NEW(&a->arena, uint32_t, j->m[m].dp + 1);
    out->mb = DT_ARENA_NEW(&a->arena, struct dt_microbatch, n);
    out->samples = DT_ARENA_NEW(&a->arena, int64_t, j->batch);
    out->sample_work = DT_ARENA_NEW(&a->arena, struct dt_work, j->batch);
    if (!out->mb_first || !out->mb || !out->samples || !out->sample_work)
        return DT_ERR_NOMEM;
    k = list_microbatches(w, out);
    out->work = DT_ARENA_NEW(&a->arena, struct dt_work, k + 1);
    if (!out->work)
        return DT_ERR_NOMEM;
    write_samples(w, &j->m[m], (uint32_t)k, out);
    return DT_OK;
}

enum dt_status dt_assign_shift(struct dt_assign_job *j, struct dt_error *err,
                               struct dt_assignment *a)
{
    struct dt_assign_loads in;
    struct dt_assign_entrained e;
    struct writing w = {.j = j, .e = &e};
    int dp = j->m[j->model->llm].dp;
    enum dt_status st = loads(j, &in);

    DT_TRY(dt_plan_check_entrain(j->plan, j->model, err));
    if (st == DT_OK)
        st = dt_assign_entrain(&in, dp, j->slots, j->scratch, &e);
    w.enc = in.enc;
    w.place = DT_ARENA_NEW(j->scratch, uint32_t, (size_t)dp * (size_t)j->slots * 2 + 1);
    if (!w.place)
        st = DT_ERR_NOMEM;
    for (int m = 0; m < j->model->n_modules && st == DT_OK; m++)
        st = write_module(&w, m, a);
    return st == DT_OK ? DT_OK : dt_error_nomem(err, "assignment");
}
