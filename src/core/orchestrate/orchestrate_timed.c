/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Timelines that searches have run, for those that come after them: neighbours of a sweep rank many of the same plans. */
#include "base/hash.h"
#include "base/mem.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <string.h>

enum { ENTRIES = 8192 }; /* a power of two; a search has some tens */

struct print { /* no two things share both */
    uint64_t a, b;
};
struct entry {
    struct print of;
    struct dt_orch_timeline line;
    bool used;
};
struct dt_orch_timed {
    const struct dt_cost *cost;
    const struct dt_samples *samples;
    uint64_t cost_number, samples_number;
    struct entry at[ENTRIES];
};

enum dt_status dt_orch_timed_new(struct dt_error *err, struct dt_orch_timed **out)
{
    struct dt_orch_timed *t = dt_calloc(1, sizeof(*t));

    if (!t)
        return dt_error_nomem(err, "timelines");
    *out = t;
    return DT_OK;
}

void dt_orch_timed_free(struct dt_orch_timed *t)
{
    dt_free(t);
}

void dt_orch_timed_on(struct dt_orch_timed *t, const struct dt_cost *cost, uint64_t cost_number,
                      const struct dt_samples *samples, uint64_t samples_number)
{
    t->cost = cost;
    t->cost_number = cost_number;
    t->samples = samples;
    t->samples_number = samples_number;
}

/* ---- what a timeline depends on ---- */

static void mix(struct print *x, uint64_t word)
{
    x->a = dt_hash_word(x->a, word);
    x->b = dt_hash_spread(x->b ^ word);
}

static void mix_number(struct print *x, double v)
{
    uint64_t word;

    memcpy(&word, &v, sizeof(word));
    mix(x, word);
}

static void mix_text(struct print *x, const char *text)
{
    mix(x, dt_hash_text(DT_HASH_START, text));
}

/* How many nodes there are matters to the choice of plans, not to a plan's timeline without contention. */
static void mix_cluster(struct print *x, const struct dt_cluster *c)
{
    mix_text(x, c->device);
    mix(x, (uint64_t)c->gpus_per_node);
    mix(x, (uint64_t)c->cores_per_node);
    mix(x, (uint64_t)c->nics_per_node);
    mix_number(x, c->peak_flops);
    mix_number(x, c->mem_bytes);
    mix_number(x, c->host_mem_bytes);
    mix_number(x, c->host_bytes_per_s);
    mix_number(x, c->host_mem_bytes_per_s);
    mix_number(x, c->mem_reserve_bytes);
    mix_number(x, c->hbm_bytes_per_s);
    mix_number(x, c->nvlink_bytes_per_s);
    mix_number(x, c->nvlink_latency_s);
    mix_number(x, c->nic_bytes_per_s);
    mix_number(x, c->nic_efficiency);
    mix_number(x, c->nic_latency_s);
    mix_number(x, c->fabric_oversubscription);
}

static void mix_module(struct print *x, const struct dt_plan_module *m)
{
    const struct dt_plan_layout *l = &m->layout;

    mix(x, (uint64_t)l->tp << 32 | (uint32_t)l->cp);
    mix(x, (uint64_t)l->ep << 32 | (uint32_t)l->ip);
    mix(x, (uint64_t)l->pp << 32 | (uint32_t)m->phases << 16 | (uint32_t)l->vpp);
    mix(x, (uint64_t)l->dp << 32 | (uint32_t)l->first_gpu);
    mix(x, (uint64_t)m->recompute << 32 | (uint32_t)m->zero << 16 | (uint32_t)m->frozen << 8 |
               m->with);
    mix(x, (uint64_t)(int64_t)m->window);
    mix(x, (uint64_t)m->offload << 32 | (uint32_t)m->zero_group);
    for (int v = 0; v <= l->pp * l->vpp; v++)
        mix(x, m->split[v]);
    for (int s = 0; s < l->pp && m->ahead[0] > 0; s++)
        mix(x, m->ahead[s]);
}

static void mix_plan(struct print *x, const struct dt_plan *p)
{
    const struct dt_plan_policy *y = &p->policy;

    mix(x, (uint64_t)y->global_batch);
    mix(x, (uint64_t)y->cp_comm << 32 | (uint64_t)y->stepccl_chunks << 16 |
               (uint32_t)y->warmup << 8 | (uint32_t)y->assignment);
    mix(x, (uint64_t)y->microbatch << 32 | (uint32_t)y->seq_len);
    mix(x, (uint64_t)y->schedule << 32 | (uint32_t)p->n_modules << 16 |
               (uint32_t)p->colocated << 8 | (uint32_t)y->intra_reorder << 7 |
               (uint32_t)y->inter_reorder << 6 | (uint32_t)y->stepccl << 5 |
               (uint32_t)y->bf16_grads << 9 | (uint32_t)y->half_grads << 4 |
               (uint32_t)y->fp32 << 3 | (uint32_t)y->exact_vectors << 2 |
               (uint32_t)y->overlap_grad << 1 | (uint32_t)y->overlap_param);
    if (p->stands_for > 0) {
        mix(x, (uint64_t)p->stands_for << 32 | (uint32_t)p->first_group);
        mix(x, (uint64_t)p->in_place);
    }
    for (int m = 0; m < p->n_modules; m++)
        mix_module(x, &p->modules[m]);
}

/* ---- the table ---- */

/* Searches on other costs or samples than was said remember nothing. */
static struct entry *entry_of(const struct dt_search_input *in, const struct dt_plan *p,
                              const struct dt_plan *run, enum dt_orch_look look,
                              int64_t first_sample, struct print *x)
{
    struct dt_orch_timed *t = in->timed;
    struct print stands;

    if (!t || in->cost != t->cost || in->samples != t->samples)
        return NULL;
    *x = (struct print){1, 2};
    mix(x, t->cost_number);
    mix(x, t->samples_number);
    mix(x, (uint64_t)first_sample << 1 | (uint64_t)look);
    mix_cluster(x, in->cluster);
    stands = *x;
    mix_plan(x, p);
    if (run == p)
        return &t->at[dt_hash_finish(x->a) & (ENTRIES - 1)];
    mix_plan(&stands, run);
    if (stands.a != x->a || stands.b != x->b) { /* not the same plan in another place */
        mix(x, stands.a);
        mix(x, stands.b);
    }
    return &t->at[dt_hash_finish(x->a) & (ENTRIES - 1)];
}

/* What would be said without this table: beyond rough_ns (0: none) that is the first rule's time. */
bool dt_orch_timed_find(const struct dt_search_input *in, const struct dt_plan *p,
                        const struct dt_plan *run, enum dt_orch_look look, int64_t rough_ns,
                        int64_t first_sample, double *seconds, double *mem_bytes_max)
{
    struct print x;
    const struct entry *e = entry_of(in, p, run, look, first_sample, &x);
    bool rough;

    if (!e || !e->used || e->of.a != x.a || e->of.b != x.b)
        return false;
    rough = rough_ns > 0 && e->line.first_ns > rough_ns;
    if (e->line.rough && !rough)
        return false;
    *seconds = rough ? 1e-9 * (double)e->line.first_ns : e->line.seconds;
    *mem_bytes_max = e->line.mem_bytes_max;
    return true;
}

void dt_orch_timed_add(const struct dt_search_input *in, const struct dt_plan *p,
                       const struct dt_plan *run, enum dt_orch_look look, int64_t first_sample,
                       const struct dt_orch_timeline *line)
{
    struct print x;
    struct entry *e = entry_of(in, p, run, look, first_sample, &x);

    if (e)
        *e = (struct entry){x, *line, true};
}
