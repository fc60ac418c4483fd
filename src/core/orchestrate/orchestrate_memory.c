/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The planner's memory questions: asked of the memory model once per distinct situation and
 * remembered. */
#include "base/number.h"
#include "core/orchestrate/orchestrate_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MEM_LEAST = 4096, REGIONS_LEAST = 1024 }; /* entries that the tables begin with */

void dt_orch_largest_work(const struct dt_orch_work_stats *s, double samples, double sigmas,
                          struct dt_work *out)
{
    double k = fmax(1, samples), tokens, ratio;

    memset(out, 0, sizeof(*out));
    if (s->tokens <= 0)
        return;
    tokens = fmin(k * s->tokens_max, k * s->tokens + sigmas * s->tokens_sd * sqrt(k));
    ratio = tokens / s->tokens; /* in mean samples */
    out->tokens = llround(tokens);
    out->tokens_sq = llround(fmin(k * s->tokens_sq_max, ratio * s->tokens_sq));
    out->n = llround(ceil(fmin(k * s->n_max, ratio * s->n)));
    out->tokens_max = s->longest;
}

/* The share of the fullest of so many replicas, to which LPT deals items the longest of which is `longest` of all of them.  Its last
 * item came when it had no more than the mean of the others; where that is one of two or more, it is half of what is there at
 * most: load <= mean + (1 - 1/replicas) load / 2 (Graham 1969). */
static double lpt_share(double longest, double replicas)
{
    double by_last = 1 / replicas + (1 - 1 / replicas) * longest;

    return fmin(1, fmin(by_last, fmax(longest, 2 / (replicas + 1))));
}

/* Replicas share the items of a window.  Samples are drawn from a set without being put back: a window that takes all of them has
 * no spread. */
static void largest_share(const struct dt_orch_work_stats *s, double samples, double replicas,
                          double sigmas, struct dt_work *out)
{
    double rest = s->samples > 1 ? fmax(0, (s->samples - samples) / (s->samples - 1)) : 0, share;

    dt_orch_largest_work(s, samples, sigmas * sqrt(fmin(1, rest)), out);
    if (out->tokens <= 0 || replicas <= 1)
        return;
    share = lpt_share(fmin(1, (double)s->longest / (double)out->tokens), replicas);
    out->tokens = llround(ceil(share * (double)out->tokens));
    out->tokens_sq = llround(ceil(share * (double)out->tokens_sq));
    out->n = llround(ceil(share * fmax(1, (double)out->n)));
}

void dt_orch_expected_work(const struct dt_orch_work_stats *s, const struct dt_plan *p, int llm,
                           int m, double sigmas, struct dt_work *out)
{
    int64_t slot = dt_plan_slot_samples(p, llm), window = dt_plan_window(p, llm, m);
    int dp = p->modules[m].layout.dp, groups;

    if (p->modules[m].phases) { /* it holds all at a time: their mean */
        int64_t slots = dt_plan_slots(p, llm), k = dt_orch_samples_per_replica(slot, dp);

        dt_orch_largest_work(s, (double)(k * slots), sigmas, out);
        out->n = (out->n + slots - 1) / slots;
        out->tokens = (out->tokens + slots - 1) / slots;
        out->tokens_sq = (out->tokens_sq + slots - 1) / slots;
        return;
    }
    if (window == 0) {
        dt_orch_largest_work(s, (double)dt_orch_samples_per_replica(slot, dp), sigmas, out);
        return;
    }
    groups = dt_number_gcd(dp, p->modules[llm].layout.dp);
    largest_share(s, (double)window * (double)slot / groups, (double)dp / groups, sigmas, out);
}

void dt_search_largest_work(const struct dt_search_input *in, const struct dt_plan *p,
                            struct dt_work *work)
{
    for (int m = 0; m < in->model->n_modules; m++) {
        struct dt_orch_work_stats s;

        dt_orch_work_stats(in, m, &s);
        dt_orch_expected_work(&s, p, in->model->llm, m, 3, &work[m]);
    }
}

/* Bytes per parameter that no split avoids: bf16 weights; where trained, fp32 gradients and the
 * fp32 master copy and two Adam moments; over dp those under ZeRO 1, gradients too under 2, weights
 * too under 3.  On CPUs the master copy is
 * the weights. */
void dt_orch_table_static_bytes(struct dt_orch_table *t, int m)
{
    const struct dt_model *model = t->in->model;
    const struct dt_orch_modes *o = &t->space.of[m];
    bool cpu = dt_cluster_is_cpu(t->in->cluster), here = !o->on_host[0];
    int states = 12; /* bytes of a parameter's masters and moments, where they take the least */

    if (cpu) /* of a CPU, the same memory, with another copy of the parameters if they are offloaded */
        states = here ? 8 : 12;
    else if (o->on_host[o->n_zero - 1])
        states = 0;
    for (int b = 0; b < model->modules[m].n_blocks; b++) {
        double params = (double)dt_block_params(&model->modules[m].blocks[b]);

        if (model->modules[m].blocks[b].n_experts > 0)
            continue; /* experts may lie elsewhere (ep) */
        t->static_bytes[m] += params * (cpu ? 4 : 2);
        if (dt_plan_trained(&t->scratch, model, m, b)) {
            t->grad_bytes[m] += params * (t->in->policy.bf16_grads ? 2 : 4);
            t->optimizer_bytes[m] += params * states;
        }
    }
}

double dt_orch_table_min_gpus(const struct dt_orch_table *t, int m, int lane, int dp)
{
    const struct dt_cluster *c = t->in->cluster;
    const struct dt_orch_modes *o = &t->space.of[m];
    int zero = 0;
    double bytes, lanes;

    for (int i = 0; i < o->n_zero; i++)
        zero = o->zero[i] > zero ? o->zero[i] : zero;
    bytes = t->static_bytes[m] / (zero > 2 ? dp : 1) + t->grad_bytes[m] / (zero > 1 ? dp : 1) +
            t->optimizer_bytes[m] / (zero > 0 ? dp : 1);
    lanes = bytes / (c->mem_bytes - c->mem_reserve_bytes);
    return fmax(lane, lanes) * (m == t->in->model->llm ? dp : 1);
}

/* ---- questions ---- */

void dt_orch_note_reject(struct dt_orch_table *t, const struct dt_plan *p, int m, int stage,
                         const struct dt_memory *mem)
{
    struct dt_orch_rejects *r = &t->rejects;
    const struct dt_plan_layout *l = &p->modules[m].layout;
    double over = mem->total - dt_memory_limit(t->in->cluster);
    const double gib = 1024.0 * 1024 * 1024;

    if (r->memory++ > 0 && over >= r->memory_least_over_bytes)
        return;
    r->memory_least_over_bytes = over;
    snprintf(r->memory_least, sizeof(r->memory_least),
             "%s tp %d pp %d dp %d stage %d needs %.1f GiB, %.1f of them activations of %d "
             "microbatches",
             p->module_names[m], l->tp, l->pp, l->dp, stage, mem->total / gib,
             mem->activations / gib, mem->in_flight);
}

/* First stage that does not fit decides; stage 0 holds the most microbatches, so it is asked first.
 */
static double stages_over(struct dt_orch_table *t, int m, int64_t slots, int64_t slot_samples)
{
    const struct dt_plan_layout *l = &t->scratch.modules[m].layout;
    double limit = dt_memory_limit(t->in->cluster), worst = -HUGE_VAL;
    struct dt_work work;

    dt_orch_largest_work(&t->work[m], (double)dt_orch_samples_per_replica(slot_samples, l->dp),
                         t->sigmas, &work);
    for (int s = 0; s < l->pp; s++) {
        struct dt_memory mem;

        dt_memory_stage_again(t->acts, &t->scratch, t->in->model, t->in->cluster, m, s, &work,
                              slots, &mem);
        worst = fmax(worst, mem.total - limit);
        if (worst > 0) {
            dt_orch_note_reject(t, &t->scratch, m, s, &mem);
            break;
        }
    }
    return worst;
}

static const struct dt_orch_times *times_of(struct dt_orch_table *t, int m,
                                            const struct dt_orch_choice *c, int microbatch,
                                            const struct dt_orch_pipe *pipe)
{
    return dt_orch_times_of(t, m, c->lane, c->recompute, m == t->in->model->llm ? microbatch : 0,
                            pipe->split);
}

bool dt_orch_table_set(struct dt_orch_table *t, int m, const struct dt_orch_choice *c,
                       int microbatch, const struct dt_orch_pipe *pipe)
{
    bool llm = m == t->in->model->llm;
    struct dt_orch_times *x =
        dt_orch_times_of(t, m, c->lane, c->recompute, llm ? microbatch : 0, pipe->split);
    const struct dt_orch_stage_entry *e =
        x ? dt_orch_stage_of(t, m, x, c->pp, llm ? pipe->vpp : 1) : NULL;

    if (!e)
        return false;
    dt_orch_choice_apply(t, m, c, pipe->vpp, &t->scratch);
    memcpy(t->scratch.modules[m].split, e->split,
           (size_t)(c->pp * (llm ? pipe->vpp : 1) + 1) * sizeof(*e->split));
    return true;
}

/* One stage of everything: what a module that was asked about leaves behind would count for others. */
static void reset_module(struct dt_orch_table *t, int m)
{
    struct dt_plan_module *mp = &t->scratch.modules[m];

    mp->layout = (struct dt_plan_layout){1, 1, 1, 1, 1, 1, 1, 0};
    mp->split[0] = 0;
    mp->split[1] = (uint16_t)t->in->model->modules[m].n_blocks;
}

static void set_llm(struct dt_orch_table *t, const struct dt_orch_question *q, bool alone)
{
    const struct dt_model *model = t->in->model;
    const struct dt_orch_pipe *pipe = &t->space.pipe[q->pipe];
    struct dt_plan_layout *llm = &t->scratch.modules[model->llm].layout;

    t->scratch.policy.microbatch = t->space.microbatch[q->microbatch];
    t->scratch.policy.schedule = pipe->schedule;
    for (int i = 0; i < model->n_modules && !alone; i++)
        if (model->modules[i].role == DT_ROLE_GENERATOR)
            t->scratch.modules[i].layout.pp = q->gen_pp;
    llm->pp = alone ? 1 : q->pp_lm;
    llm->vpp = alone ? 1 : pipe->vpp;
    llm->dp = q->dp_lm;
    /* which of its stages run backwards matters to what waits around it; any split into stages that hold something does */
    for (int v = 0; v <= llm->pp * llm->vpp; v++)
        t->scratch.modules[model->llm].split[v] =
            (uint16_t)(v * model->modules[model->llm].n_blocks / (llm->pp * llm->vpp));
}

/* dt_plan_validate refuses ZeRO 3 with split backwards; where both are stated it is to say so. */
static bool refused(const struct dt_orch_table *t, const struct dt_orch_question *q)
{
    const struct dt_orch_modes *modes = &t->space.of[q->m];

    return t->space.pipe[q->pipe].split && modes->zero[q->of.zero] > 2 &&
           (modes->n_zero > 1 || t->space.whole);
}

static double ask(struct dt_orch_table *t, const struct dt_orch_question *q)
{
    const struct dt_model *model = t->in->model;
    const struct dt_plan_policy stated = t->scratch.policy;
    double over = HUGE_VAL;
    int64_t slot;

    set_llm(t, q, q->alone);
    slot = (int64_t)q->dp_lm * t->scratch.policy.microbatch;
    if (dt_orch_table_set(t, q->m, &q->of, q->microbatch, &t->space.pipe[q->pipe]))
        over = stages_over(t, q->m, stated.global_batch / slot, slot);
    if (over > 0 && t->uneven &&
        dt_orch_split_module(t, &t->scratch, q->m,
                             times_of(t, q->m, &q->of, q->microbatch, &t->space.pipe[q->pipe])) ==
            DT_ORCH_FIT_CHANGED)
        over = 0;
    for (int i = 0; i < model->n_modules; i++)
        reset_module(t, i);
    t->scratch.policy = stated;
    return over;
}

int dt_orch_behind(struct dt_orch_table *t, const struct dt_orch_question *q)
{
    const struct dt_model *model = t->in->model;
    const struct dt_plan_policy stated = t->scratch.policy;
    int behind;

    set_llm(t, q, false);
    behind = dt_memory_pipe_lane(&t->scratch, model, q->m, 0, 1).behind;
    for (int i = 0; i < model->n_modules; i++)
        reset_module(t, i);
    t->scratch.policy = stated;
    return behind;
}

/* Around an LLM all that counts of it is how many microbatches are under way behind a module and how many samples a
 * slot has: different pipes, depths and microbatches share their answers. */
static void make_key(const struct dt_orch_table *t, const struct dt_orch_question *q,
                     uint64_t key[2])
{
    enum { ALONE = 0x80 };
    const struct dt_orch_pipe *pipe = &t->space.pipe[q->pipe];
    bool encoder = t->in->model->modules[q->m].role == DT_ROLE_ENCODER;
    bool llm = q->m == t->in->model->llm, few = encoder || q->alone;
    uint64_t kind =
        !few ? (uint64_t)q->pipe
             : ALONE | (uint64_t)pipe->split | (dt_pipe_of(pipe->schedule)->bounded ? 2U : 0U);
    uint64_t slot = (uint64_t)q->dp_lm * (uint64_t)t->space.microbatch[q->microbatch];
    uint64_t around = encoder    ? (uint64_t)q->behind
                      : q->alone ? 0
                                 : (uint64_t)q->gen_pp | (llm ? 0 : (uint64_t)q->pp_lm << 8);

    key[0] = (uint64_t)q->m | (uint64_t)q->of.lane << 8 | (uint64_t)q->of.recompute << 16 |
             (uint64_t)q->of.zero << 20 | kind << 24 | (uint64_t)(llm ? q->microbatch : 0) << 32 |
             (uint64_t)q->of.pp << 40 | UINT64_C(1) << 63;
    /* replicas and samples of a slot are below 2^24 (DT_PLAN_GPUS_MAX, DT_BATCH_MAX), depths below 2^8, and what is
     * under way behind below 2^16 */
    key[1] = (uint64_t)q->of.dp | slot << 24 | around << 48;
}

/* Of one situation; NULL when out of memory.  Valid until the next call. */
static struct dt_orch_mem_entry *look_up(struct dt_orch_table *t, const uint64_t key[2])
{
    struct dt_orch_mem_entry *e = dt_hash_table_of(&t->mem, sizeof(*e), MEM_LEAST, key, NULL);

    t->nomem |= !e;
    return e;
}

/* The same but for the replicas, with as many samples of a slot for the fullest of them; one alone is apart, as it exchanges
 * nothing.  How many slots there are counts only where a stage could hold all of them. */
static void make_share_key(const struct dt_orch_table *t, const struct dt_orch_question *q,
                           const uint64_t key[2], uint64_t share[2])
{
    int64_t slot = (int64_t)q->dp_lm * t->space.microbatch[q->microbatch];
    int64_t n = t->in->policy.global_batch / slot;
    int64_t most = 2 * (q->of.pp + DT_MAX_MODULES) + q->behind + 2 * q->pp_lm + q->gen_pp;

    if (n > most && dt_pipe_of(t->space.pipe[q->pipe].schedule)->bounded)
        n = most;
    share[0] = key[0] | UINT64_C(1) << 62 | (uint64_t)(q->of.dp == 1) << 61;
    share[1] = (uint64_t)dt_orch_samples_per_replica(slot, q->of.dp) | (uint64_t)n << 24 |
               (key[1] >> 48) << 48;
}

/* Under ZeRO each of more replicas holds less, and without it as much. */
static bool known_of_share(const struct dt_orch_mem_entry *e, uint32_t dp, bool *fits)
{
    *fits = e->fits_dp > 0 && dp >= e->fits_dp;
    return *fits || dp <= e->over_dp;
}

static void note_share(struct dt_orch_mem_entry *e, uint32_t dp, bool fits)
{
    if (fits && (e->fits_dp == 0 || dp < e->fits_dp))
        e->fits_dp = dp;
    if (!fits && dp > e->over_dp)
        e->over_dp = dp;
}

static bool table_fits(struct dt_orch_table *t, const struct dt_orch_question *q);

/* The question of the same layout with the recomputation and the level of ZeRO that hold least: where it does not fit, none
 * does. */
static struct dt_orch_question leanest(const struct dt_orch_table *t,
                                       const struct dt_orch_question *q)
{
    const struct dt_orch_modes *modes = &t->space.of[q->m];
    struct dt_orch_question lean = *q;

    lean.of.recompute = (uint8_t)(modes->n_recompute - 1);
    lean.of.zero = (uint8_t)(modes->n_zero - 1);
    while (lean.of.zero > q->of.zero && refused(t, &lean))
        lean.of.zero--;
    return lean;
}

static bool leanest_fits(struct dt_orch_table *t, const struct dt_orch_question *q)
{
    struct dt_orch_question lean = leanest(t, q);

    if (lean.of.recompute == q->of.recompute && lean.of.zero == q->of.zero)
        return true; /* it is the question */
    return table_fits(t, &lean);
}

/* As far as the replica with most samples goes; that of the leanest layout first. */
static bool fits_of_share(struct dt_orch_table *t, const struct dt_orch_question *q,
                          const uint64_t share[2])
{
    struct dt_orch_mem_entry *e;
    bool fits;

    e = look_up(t, share);
    if (!e)
        return false;
    if (known_of_share(e, (uint32_t)q->of.dp, &fits))
        return fits;
    fits = leanest_fits(t, q) && ask(t, q) <= 0;
    e = t->nomem ? NULL : look_up(t, share); /* the table may have moved */
    if (e)
        note_share(e, (uint32_t)q->of.dp, fits);
    return e && fits;
}

/* ---- what follows from other answers ----
 *
 * A stage holds no less with more samples of a slot for a replica, more slots, or more under way behind it, and no more with
 * more replicas to share it (but for one alone, which exchanges nothing).  So an answer holds for all situations that are
 * easier, or harder, in each of these: nearly all that is asked follows from a few answers. */

enum { ANSWERS = 8 };

struct situation {
    uint32_t samples, slots, behind, dp;
};

struct region {                      /* of one module in one mode and depth, in all situations */
    uint32_t n[2], next;             /* answers kept; the one that gives way to a newcomer */
    struct situation at[2][ANSWERS]; /* where it did not fit, and where it did */
};
struct region_entry { /* regions are large, and this moves when its table grows */
    uint64_t key[2];
    struct region *region;
};

static bool is_harder(const struct situation *a, const struct situation *b)
{
    return a->samples >= b->samples && a->slots >= b->slots && a->behind >= b->behind &&
           a->dp <= b->dp;
}

/* The region of the key; NULL when out of memory. */
static struct region *region_of(struct dt_orch_table *t, const uint64_t key[2])
{
    struct region_entry *e = dt_hash_table_of(&t->regions, sizeof(*e), REGIONS_LEAST, key, NULL);

    if (e && !e->region)
        e->region = DT_ARENA_NEW(&t->region_arena, struct region, 1);
    t->nomem |= !e || !e->region;
    return e ? e->region : NULL;
}

/* Messages of an LLM of this depth that may wait for a generator, beyond those that the generator holds itself
 * (core/pipeline/interleaved.c; 1F1B is the same with one chunk).  More of them take more room, and nothing else of the LLM
 * matters to a generator unless backwards are split or some of its chunks run none. */
static uint32_t waiting(int pp, int vpp)
{
    return (uint32_t)(((vpp - 1) * (2 * pp - 1) + 1) / vpp);
}

/* Of the keys of the question what does not order situations, and the situation. */
static void place_in_region(const struct dt_orch_table *t, const struct dt_orch_question *q,
                            const uint64_t key[2], const uint64_t share[2], uint64_t region[2],
                            struct situation *at)
{
    const struct dt_orch_pipe *pipe = &t->space.pipe[q->pipe];
    bool encoder = t->in->model->modules[q->m].role == DT_ROLE_ENCODER;
    bool llm = q->m == t->in->model->llm;
    uint64_t around = key[1] >> 48;
    uint32_t most;

    *at = (struct situation){(uint32_t)(share[1] & 0xffffff), (uint32_t)(share[1] >> 24 & 0xffffff),
                             llm || encoder ? (uint32_t)around : 0, (uint32_t)q->of.dp};
    region[0] = share[0];
    region[1] = llm || encoder ? 0 : around;
    if (llm || encoder || pipe->split || !dt_pipe_of(pipe->schedule)->bounded ||
        t->scratch.modules[t->in->model->llm].frozen)
        return;
    at->behind = q->alone ? waiting(1, 1) : waiting(q->pp_lm, pipe->vpp);
    region[0] = (share[0] & ~(UINT64_C(0xff) << 24)) | UINT64_C(0xff) << 24;
    region[1] = (uint64_t)(q->gen_pp > q->of.pp ? q->gen_pp : q->of.pp);
    most = at->behind + (uint32_t)region[1] + 1; /* more slots than may be under way are as many */
    at->slots = at->slots < most ? at->slots : most;
}

static bool follows(const struct region *r, const struct situation *at, bool *fits)
{
    for (uint32_t i = 0; i < r->n[0]; i++)
        if (is_harder(at, &r->at[0][i])) {
            *fits = false;
            return true;
        }
    for (uint32_t i = 0; i < r->n[1]; i++)
        if (is_harder(&r->at[1][i], at)) {
            *fits = true;
            return true;
        }
    return false;
}

/* Keeps an answer in place of those that follow from it. */
static void keep_answer(struct region *r, const struct situation *at, bool fits)
{
    struct situation *x = r->at[fits];
    uint32_t kept = 0;

    for (uint32_t i = 0; i < r->n[fits]; i++)
        if (!(fits ? is_harder(at, &x[i]) : is_harder(&x[i], at)))
            x[kept++] = x[i];
    if (kept == ANSWERS)
        x[r->next++ % ANSWERS] = *at;
    else
        x[kept++] = *at;
    r->n[fits] = kept;
}

/* Where a question lies. */
struct asked {
    uint64_t share[2], region[2];
    struct situation at;
};

static struct asked place(const struct dt_orch_table *t, const struct dt_orch_question *q)
{
    uint64_t key[2];
    struct asked a;

    make_key(t, q, key);
    make_share_key(t, q, key, a.share);
    place_in_region(t, q, key, a.share, a.region, &a.at);
    return a;
}

static bool table_fits(struct dt_orch_table *t, const struct dt_orch_question *q)
{
    struct asked a = place(t, q);
    struct region *r = region_of(t, a.region);
    bool fits;

    if (!r)
        return false;
    if (follows(r, &a.at, &fits))
        return fits;
    fits = fits_of_share(t, q, a.share);
    if (t->nomem)
        return false;
    keep_answer(r, &a.at, fits);
    return fits;
}

bool dt_orch_table_fits(struct dt_orch_table *t, const struct dt_orch_question *q)
{
    return !refused(t, q) && table_fits(t, q);
}

bool dt_orch_table_hopeless(struct dt_orch_table *t, const struct dt_orch_question *q)
{
    struct dt_orch_question lean = leanest(t, q);
    struct asked a = place(t, &lean);
    struct region *r = region_of(t, a.region);
    bool fits = true;

    return r && follows(r, &a.at, &fits) && !fits;
}

bool dt_orch_cand_fits(struct dt_orch_table *t, const struct dt_orch_cand *c)
{
    const struct dt_orch_pipe *pipe = &t->space.pipe[c->pipe];
    const struct dt_plan_policy stated = t->scratch.policy;
    const struct dt_model *model = t->in->model;
    int64_t slot = (int64_t)c->of[model->llm].dp * t->space.microbatch[c->microbatch];
    bool fits = true, deep = false;

    t->scratch.policy.microbatch = t->space.microbatch[c->microbatch];
    t->scratch.policy.schedule = pipe->schedule;
    for (int m = 0; m < model->n_modules && fits; m++) {
        fits = dt_orch_table_set(t, m, &c->of[m], c->microbatch, pipe);
        deep |= model->modules[m].role == DT_ROLE_ENCODER && c->of[m].pp > 1;
    }
    for (int m = 0; m < model->n_modules && fits; m++)
        if (model->modules[m].role == DT_ROLE_GENERATOR || (m == model->llm && deep && pipe->split))
            fits = stages_over(t, m, stated.global_batch / slot, slot) <= 0 ||
                   (t->uneven && dt_orch_split_module(t, &t->scratch, m,
                                                      times_of(t, m, &c->of[m], c->microbatch,
                                                               pipe)) == DT_ORCH_FIT_CHANGED);
    for (int m = 0; m < model->n_modules; m++)
        reset_module(t, m);
    t->scratch.policy = stated;
    return fits;
}

void dt_orch_table_forget(struct dt_orch_table *t)
{
    dt_hash_table_free(&t->mem);
    dt_hash_table_free(&t->regions);
    dt_arena_free(&t->region_arena);
    dt_hash_table_free(&t->refused);
}
