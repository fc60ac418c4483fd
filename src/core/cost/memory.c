/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Microbatches in flight and messages that wait, and the check of a plan's memory (the bytes of a
 * stage: memory_stage.c). */
#include "core/cost/memory_impl.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>

#define GIB 1073741824.0

/* ---- microbatches in flight ---- */

static int behind(const struct dt_plan *p, const struct dt_model *m, int module, bool stages);
static int chunks_held(const struct dt_plan *p, const struct dt_model *m, int module, int stage);

/* Microbatches under way behind a module's last stage: the same for all of its stages. */
static int under_way(const struct dt_plan *p, const struct dt_model *m, int module)
{
    return dt_pipe_of(p->policy.schedule)->bounded ? behind(p, m, module, false) : 0;
}

static struct dt_pipe_lane lane_of(const struct dt_plan *p, int module, int stage, int64_t n,
                                   int after)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;

    return (struct dt_pipe_lane){
        .pp = l->pp, .vpp = l->vpp, .stage = stage, .behind = after, .n = n};
}

struct dt_pipe_lane dt_memory_pipe_lane(const struct dt_plan *p, const struct dt_model *m,
                                        int module, int stage, int64_t n)
{
    return lane_of(p, module, stage, n, under_way(p, m, module));
}

/* The largest of the schedule's depths (or of the number of stages) over the paths that leave the module. */
static int behind(const struct dt_plan *p, const struct dt_model *m, int module, bool stages)
{
    int most = 0;

    for (int e = 0; e < m->n_edges; e++) {
        int dst = m->edges[e].dst, d;
        struct dt_pipe_lane l;

        if (m->edges[e].src != module)
            continue;
        if (stages) {
            d = p->modules[dst].layout.pp + behind(p, m, dst, true);
        } else {
            l = dt_memory_pipe_lane(p, m, dst, 0, 0);
            d = dt_pipe_of(p->policy.schedule)->depth(&l);
        }
        /* its first stage may take turns with our last instead of overlapping */
        d -= dt_plan_takes_turns(p, module, dst);
        most = d > most ? d : most;
    }
    return most;
}

int dt_memory_stages_after(const struct dt_plan *p, const struct dt_model *m, int module, int stage)
{
    return p->modules[module].layout.pp - 1 - stage + behind(p, m, module, true);
}

/* A window is taken up when the first of its slots is needed and left when the last is done, so `slots` in a row lie in
 * so many windows at most. */
static int64_t windows_of(int64_t slots, int64_t window)
{
    return slots > 0 ? (slots - 1 + window - 1) / window + 1 : 0;
}

/* `after`: under_way() of the module. */
static int in_flight(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                     int64_t n_microbatches, int after)
{
    int64_t window = dt_plan_window(p, m->llm, module), want;
    struct dt_pipe_lane l =
        lane_of(p, module, stage, n_microbatches * (window > 0 ? window : 1), after);

    l.behind += p->modules[module].ahead[stage];
    if (p->modules[module].phases)
        return (int)n_microbatches;
    want = dt_pipe_of(p->policy.schedule)->in_flight(&l);
    if (window > 0) {
        want = windows_of(want, window);
        want = want < n_microbatches ? want : n_microbatches;
    }
    /* a position is held until what it has deferred is back, too: one slot longer */
    if (dt_plan_defers(p, m, module) && want < n_microbatches)
        want++;
    return want > INT32_MAX ? INT32_MAX : (int)want;
}

int dt_memory_in_flight(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                        int64_t n_microbatches)
{
    return in_flight(p, m, module, stage, n_microbatches, under_way(p, m, module));
}

/* ---- weight gradients that are put off ---- */

/* Stages in front of (module, stage) that run a backward, on the longest path. */
static int before(const struct dt_plan *p, const struct dt_model *m, int module, int stage)
{
    int most = 0, n = 0;

    for (int e = 0; e < m->n_edges; e++) {
        int src = m->edges[e].src, d;

        if (m->edges[e].dst != module)
            continue;
        d = before(p, m, src, p->modules[src].layout.pp);
        d -= d > 0 && dt_plan_takes_turns(p, src, module);
        most = d > most ? d : most;
    }
    /* nearly always all of them: below a trained block every stage runs a backward */
    if (!p->modules[module].frozen && p->modules[module].split[1] > 0)
        return most + stage;
    for (int k = 0; k < stage; k++)
        n += chunks_held(p, m, module, k) > 0;
    return most + n;
}

static int deferred(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                    int64_t n_microbatches, int after)
{
    const struct dt_pipe *pipe = dt_pipe_of(p->policy.schedule);
    struct dt_pipe_lane l;
    int64_t want;

    if (!pipe->put_off || !dt_plan_splits_backward(p, m, module, stage))
        return 0;
    l = lane_of(p, module, stage, n_microbatches, after);
    l.before = before(p, m, module, stage);
    want = (int64_t)pipe->put_off(&l) + 1;
    return (int)(want < n_microbatches ? want : n_microbatches);
}

int dt_memory_deferred(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                       int64_t n_microbatches)
{
    return deferred(p, m, module, stage, n_microbatches, under_way(p, m, module));
}

/* `here` in flight, and what is put off beside them. */
static int held_beside(const struct dt_plan *p, const struct dt_model *m, int module, int here,
                       int64_t n_microbatches, int put_off)
{
    if (put_off == 0)
        return here;
    /* one part of a position may wait for its weight gradient, and the other for its backward */
    here += dt_plan_defers(p, m, module);
    return here + put_off - 1 < n_microbatches ? here + put_off - 1 : (int)n_microbatches;
}

int dt_memory_held(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                   int64_t n_microbatches)
{
    int after = under_way(p, m, module);

    return held_beside(p, m, module, in_flight(p, m, module, stage, n_microbatches, after),
                       n_microbatches, deferred(p, m, module, stage, n_microbatches, after));
}

/* Of `here` chunks of microbatches in flight those of the last chunk.  Each of them holds the other chunks, too; with nothing
 * behind it, its backward comes at once. */
static int at_the_end(const struct dt_plan *p, int module, int stage, int after, int here)
{
    const struct dt_plan_module *mp = &p->modules[module];
    int n = here / mp->layout.vpp;

    if (mp->layout.vpp == 1 || after + mp->ahead[stage] > 0)
        return n > 1 ? n : 1;
    return 1;
}

static int beside_guests(const struct dt_plan *p, int module, int held)
{
    return dt_plan_hosts_offload(p, module) ? held / 2 : held;
}

int dt_memory_beside_guests(const struct dt_plan *p, const struct dt_model *m, int module,
                            int stage, int64_t n_microbatches)
{
    return beside_guests(p, module, dt_memory_held(p, m, module, stage, n_microbatches));
}

/* ---- messages that wait at a stage ----
 *
 * A lane with backwards has a message under way or unread only for what it holds itself: the
 * backward that frees it comes after the consumer's.  Of those the consumer holds its own share, so
 * at worst (its own share full) the difference waits.  A lane without backwards may run until its
 * bound is unread (its credits), whatever the consumer holds. */

static int chunks_held(const struct dt_plan *p, const struct dt_model *m, int module, int stage)
{
    const struct dt_plan_module *mp = &p->modules[module];
    int n = 0;

    if (!mp->frozen && mp->split[1] > 0) /* as in before() */
        return mp->layout.vpp;
    for (int v = stage; v < mp->layout.pp * mp->layout.vpp; v += mp->layout.pp) {
        bool backward = dt_plan_upstream_trained(p, m, module, mp->split[v]);

        for (int b = mp->split[v]; b < mp->split[v + 1] && !backward; b++)
            backward = dt_plan_trained(p, m, module, b);
        n += backward;
    }
    return n;
}

bool dt_memory_forward_only(const struct dt_plan *p, const struct dt_model *m, int module,
                            int stage)
{
    return chunks_held(p, m, module, stage) == 0;
}

/* Messages of (u, stage), behind which `after` are under way, that may wait at a consumer that holds `here` microbatches. */
static int waiting(const struct dt_plan *p, const struct dt_model *m, int u, int stage, bool last,
                   int64_t n, int after, int here)
{
    int held = chunks_held(p, m, u, stage), bound = in_flight(p, m, u, stage, n, after);

    if (held == 0)
        return bound;
    /* before the backward of its last chunk a microbatch holds all of them */
    return (last ? bound / held : bound) - here;
}

/* A window is sent as a whole: all of its slots may wait. */
static int waiting_of_windows(const struct dt_plan *p, const struct dt_model *m, int u, int64_t n,
                              int here)
{
    int64_t window = dt_plan_window(p, m->llm, u), windows = (n + window - 1) / window;
    int64_t slots = window * dt_memory_in_flight(p, m, u, p->modules[u].layout.pp - 1, windows);

    return (int)((slots < n ? slots : n) - here);
}

/* Of a stage with `here` in flight. */
static int queue_of(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                    int64_t n_microbatches, int after, int here)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    int held = chunks_held(p, m, module, stage), most = DT_MEMORY_BUFFERS, w;

    if (l->pp > 1 && (stage > 0 || l->vpp > 1)) {
        w = waiting(p, m, module, (stage + l->pp - 1) % l->pp, false, n_microbatches, after,
                    held > 0 ? here : 0);
        most = w > most ? w : most;
    }
    for (int e = 0; stage == 0 && e < m->n_edges; e++) {
        int u = m->edges[e].src;

        if (m->edges[e].dst != module)
            continue;
        w = dt_plan_window(p, m->llm, u) > 0
                ? waiting_of_windows(p, m, u, n_microbatches, held > 0 ? here / held : 0)
                : waiting(p, m, u, p->modules[u].layout.pp - 1, true, n_microbatches,
                          under_way(p, m, u), held > 0 ? here / held : 0) +
                      dt_plan_defers(p, m, u); /* what is deferred waits a slot longer */
        most = w > most ? w : most;
    }
    return most;
}

int dt_memory_queue(const struct dt_plan *p, const struct dt_model *m, int module, int stage,
                    int64_t n_microbatches)
{
    int after = under_way(p, m, module);

    return queue_of(p, m, module, stage, n_microbatches, after,
                    in_flight(p, m, module, stage, n_microbatches, after));
}

struct dt_memory_flow dt_memory_flow_of(const struct dt_plan *p, const struct dt_model *m,
                                        int module, int stage, int64_t n_microbatches)
{
    int after = under_way(p, m, module);
    int here = in_flight(p, m, module, stage, n_microbatches, after);
    struct dt_memory_flow f = {.queue = queue_of(p, m, module, stage, n_microbatches, after, here),
                               .deferred = deferred(p, m, module, stage, n_microbatches, after)};

    f.held = held_beside(p, m, module, here, n_microbatches, f.deferred);
    f.beside_guests = beside_guests(p, module, f.held);
    f.losses = at_the_end(p, module, stage, after, here);
    return f;
}

double dt_memory_limit(const struct dt_cluster *c)
{
    return dt_cluster_is_cpu(c) ? c->mem_bytes - c->mem_reserve_bytes : c->mem_bytes;
}

/* ---- the check ---- */

static double gib(double bytes)
{
    return bytes / GIB;
}

struct place {
    int module, stage;
    const struct dt_work *work; /* [modules] */
    int64_t n;
};

/* `host`: what hosts would need, if they have not got it. */
static int tell_change(const struct dt_plan *p, const struct dt_model *m,
                       const struct dt_cluster *c, const struct place *at, const char *what,
                       const struct dt_memory_host *host, char *text, size_t size)
{
    struct dt_memory mem;
    char why[96] = "";
    int n;

    dt_memory_stage(p, m, c, at->module, at->stage, &at->work[at->module], at->n, &mem);
    if (host)
        snprintf(why, sizeof(why), " (and %.1f GiB of a node's host, which has %.1f GiB)",
                 gib(host->node_bytes), gib(c->host_mem_bytes));
    else if (mem.total <= dt_memory_limit(c))
        snprintf(why, sizeof(why), " (fits)");
    n = snprintf(text, size, "%s%s: %.1f GiB%s", text[-1] == ' ' ? "" : ", ", what, gib(mem.total),
                 why);
    return n > 0 && (size_t)n < size ? n : 0;
}

static int try_change(const struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                      const struct place *at, const char *what, char *text, size_t size)
{
    return tell_change(p, m, c, at, what, NULL, text, size);
}

/* The module's masters and moments on hosts, which have to have the memory. */
static int try_offload(const struct dt_plan *p, const struct dt_model *m,
                       const struct dt_cluster *c, const struct place *at, char *text, size_t size)
{
    struct dt_memory_host h;

    if (dt_memory_host(p, m, c, at->work, NULL, &h) != DT_OK)
        return 0;
    return tell_change(p, m, c, at, "offload optimizer",
                       c->host_mem_bytes > 0 && h.node_bytes > c->host_mem_bytes ? &h : NULL, text,
                       size);
}

/* What each remedy would bring, computed with the same model. */
static void remedies(const struct dt_plan *p, const struct dt_model *m, const struct dt_cluster *c,
                     const struct place *at, char *text, size_t size)
{
    struct dt_plan q;
    struct dt_plan_layout *l = &q.modules[at->module].layout;
    int k = snprintf(text, size, "this stage with ");

    if (p->modules[at->module].recompute != DT_RECOMPUTE_FULL) {
        q = *p;
        q.modules[at->module].recompute = DT_RECOMPUTE_FULL;
        k += try_change(&q, m, c, at, "recompute full", text + k, size - (size_t)k);
    }
    for (int zero = p->modules[at->module].zero + 1;
         zero <= (dt_cluster_is_cpu(c) ? 1 : DT_ZERO_MAX); zero++) {
        char what[32];

        q = *p;
        q.modules[at->module].zero = zero;
        snprintf(what, sizeof(what), "zero %d", zero);
        k += try_change(&q, m, c, at, what, text + k, size - (size_t)k);
    }
    if (!dt_plan_offloads_optimizer(&p->modules[at->module]) && !dt_cluster_is_cpu(c) &&
        c->host_bytes_per_s > 0) {
        q = *p;
        q.modules[at->module].offload = dt_plan_offloads_params(&p->modules[at->module])
                                            ? DT_OFFLOAD_ALL
                                            : DT_OFFLOAD_OPTIMIZER;
        k += try_offload(&q, m, c, at, text + k, size - (size_t)k);
    }
    q = *p;
    if (l->tp * 2 <= c->gpus_per_node) {
        l->tp *= 2;
        k += try_change(&q, m, c, at, "twice the tp", text + k, size - (size_t)k);
    }
    q = *p;
    if (l->pp * l->vpp * 2 <= DT_MAX_VSTAGES && l->vpp == 1 &&
        q.modules[at->module].split[at->stage + 1] - q.modules[at->module].split[at->stage] > 1) {
        uint16_t *split = q.modules[at->module].split;

        l->pp *= 2; /* a stage with the first half of these blocks, twice as deep a pipeline */
        split[at->stage + 1] = (uint16_t)((split[at->stage] + split[at->stage + 1] + 1) / 2);
        try_change(&q, m, c, at, "twice the pp", text + k, size - (size_t)k);
    }
}

static enum dt_status too_large(const struct dt_plan *p, const struct dt_model *m,
                                const struct dt_cluster *c, const struct place *at,
                                const struct dt_memory *mem, struct dt_error *err)
{
    char help[512], whole[48] = "";

    if (!err)
        return DT_ERR_INFEASIBLE;
    remedies(p, m, c, at, help, sizeof(help));
    if (mem->whole > 0) /* ZeRO 2 and 3 */
        snprintf(whole, sizeof(whole), " (of both, %.1f in whole buckets)", gib(mem->whole));
    if (dt_cluster_is_cpu(c))
        return dt_error_set(
            err, DT_ERR_INFEASIBLE,
            "%s stage %d needs %.3f GiB per process, which has %.3f GiB after its reserve: "
            "parameters and their packed copies %.3f, gradients %.3f, moments %.3f, activations "
            "%.3f (%d in flight), scratch %.3f, messages and batches %.3f; %s",
            m->modules[at->module].name, at->stage, gib(mem->total), gib(dt_memory_limit(c)),
            gib(mem->params), gib(mem->grads), gib(mem->optimizer), gib(mem->activations),
            mem->in_flight, gib(mem->logits_workspace), gib(mem->broker), help);
    return dt_error_set(
        err, DT_ERR_INFEASIBLE,
        "%s stage %d needs %.1f GiB per GPU, the GPU has %.1f GiB: parameters %.1f, gradients "
        "%.1f%s, "
        "optimizer %.1f, activations %.1f (%d in flight), logits %.1f, transfer buffers %.1f, "
        "reserve %.1f; %s",
        m->modules[at->module].name, at->stage, gib(mem->total), gib(c->mem_bytes),
        gib(mem->params), gib(mem->grads), whole, gib(mem->optimizer), gib(mem->activations),
        mem->in_flight, gib(mem->logits_workspace), gib(mem->broker), gib(mem->reserve), help);
}

/* ---- GPUs that several modules share ---- */

/* Of a stage: bytes, and those of them that stages of one GPU need once (the reserve; in a process the scratch of
 * kernels). */
struct share {
    double total, once;
    double away, beside; /* as in struct dt_memory */
};

/* The stage of a module that a GPU runs, or -1. */
static int stage_on(const struct dt_plan *p, int module, int gpu)
{
    const struct dt_plan_layout *l = &p->modules[module].layout;
    int at = gpu - l->first_gpu;

    return at < 0 || at >= dt_plan_layout_gpus(l) ? -1 : at / (dt_plan_layout_lane_gpus(l) * l->dp);
}

/* "llm stage 2 41.3, encoder stage 0 8.0" */
static void names_on(const struct dt_plan *p, struct share *const *share, int gpu, char *text,
                     size_t size)
{
    size_t n = 0;

    for (int m = 0; m < p->n_modules && n < size; m++) {
        int stage = stage_on(p, m, gpu);

        if (stage >= 0)
            n += (size_t)snprintf(text + n, size - n, "%s%s stage %d %.2f", n ? ", " : "",
                                  p->module_names[m], stage, gib(share[m][stage].total));
    }
}

/* What all stages on a GPU need together. */
static double gpu_bytes(const struct dt_plan *p, struct share *const *share, int gpu)
{
    double sum = 0, shared = 0, away = 0, beside = 0;

    for (int m = 0; m < p->n_modules; m++) {
        int stage = stage_on(p, m, gpu);

        if (stage < 0)
            continue;
        sum += share[m][stage].total - fmin(share[m][stage].once, shared);
        shared = fmax(share[m][stage].once, shared);
        away += share[m][stage].away;
        beside += share[m][stage].beside;
    }
    /* either the guests' parameters are on the GPU or all activations of their host */
    return sum - fmin(away, beside);
}

static enum dt_status check_gpu(const struct dt_plan *p, const struct dt_cluster *c,
                                struct share *const *share, int gpu, double *most,
                                struct dt_error *err)
{
    bool cpu = dt_cluster_is_cpu(c);
    double sum = gpu_bytes(p, share, gpu);
    char names[512] = "";

    *most = fmax(*most, sum);
    if (sum <= dt_memory_limit(c))
        return DT_OK;
    if (!err) /* the search asks for thousands */
        return DT_ERR_INFEASIBLE;
    names_on(p, share, gpu, names, sizeof(names));
    return dt_error_set(err, DT_ERR_INFEASIBLE,
                        "colocated modules need %.2f GiB of %s %d, cluster %s has %.2f GiB: %s%s; "
                        "more %s, a smaller microbatch or recomputation would help",
                        gib(sum), cpu ? "process" : "GPU", gpu, c->name, gib(dt_memory_limit(c)),
                        names, cpu ? "" : " (the reserve counts once)", cpu ? "processes" : "GPUs");
}

/* Which stages meet changes only where a stage begins, so one GPU there stands for those that follow. */
static enum dt_status check_shared(const struct dt_plan *p, const struct dt_cluster *c,
                                   struct share *const *share, double *most, struct dt_error *err)
{
    for (int m = 0; m < p->n_modules; m++)
        for (int stage = 0; stage < p->modules[m].layout.pp; stage++)
            DT_TRY(check_gpu(p, c, share, dt_plan_lane_gpu(p, m, 0, stage), most, err));
    return DT_OK;
}

/* ---- the check of a plan ---- */

static struct share share_of(const struct dt_cluster *c, const struct dt_memory *mem)
{
    return (struct share){mem->total, dt_cluster_is_cpu(c) ? mem->logits_workspace : mem->reserve,
                          mem->away, mem->beside};
}

/* Room for what each stage needs; NULL when out of memory.  All of it is freed at once. */
static struct share *shares_new(const struct dt_plan *p, struct share **share)
{
    size_t stages = 0;
    struct share *all;

    for (int module = 0; module < p->n_modules; module++)
        stages += (size_t)p->modules[module].layout.pp;
    all = dt_malloc((stages + 1) * sizeof(*all));
    stages = 0;
    for (int module = 0; all && module < p->n_modules; module++) {
        share[module] = all + stages;
        stages += (size_t)p->modules[module].layout.pp;
    }
    return all;
}

static enum dt_status check_stages(struct dt_memory_memo *memo, const struct dt_plan *p,
                                   const struct dt_model *m, const struct dt_cluster *c,
                                   const struct dt_work *work, struct share *const *share,
                                   double *most, struct dt_error *err)
{
    for (int module = 0; module < p->n_modules; module++) {
        int64_t n = dt_plan_microbatches(p, m->llm, module);

        for (int stage = 0; stage < p->modules[module].layout.pp; stage++) {
            struct place at = {module, stage, work, n > 0 ? n : 1};
            struct dt_memory mem;

            dt_memory_stage_again(memo, p, m, c, module, stage, &work[module], at.n, &mem);
            if (mem.total > dt_memory_limit(c))
                return too_large(p, m, c, &at, &mem, err);
            *most = fmax(*most, mem.total);
            share[module][stage] = share_of(c, &mem);
        }
    }
    return DT_OK;
}

/* Nothing is held against what the cluster does not say. */
static enum dt_status check_hosts(const struct dt_plan *p, const struct dt_model *m,
                                  const struct dt_cluster *c, const struct dt_work *work,
                                  struct dt_error *err)
{
    struct dt_memory_host h;

    if (c->host_mem_bytes <= 0)
        return DT_OK;
    DT_TRY(dt_memory_host(p, m, c, work, err, &h));
    if (h.node_bytes <= c->host_mem_bytes)
        return DT_OK;
    return dt_error_set(err, DT_ERR_INFEASIBLE,
                        "offload: what a node's GPUs have there needs %.1f GiB of its host's "
                        "memory, cluster %s has %.1f GiB; fewer modules with offload, "
                        "or more replicas that share masters and moments (zero), would help",
                        gib(h.node_bytes), c->name, gib(c->host_mem_bytes));
}

enum dt_status dt_memory_check_again(struct dt_memory_memo *memo, const struct dt_plan *p,
                                     const struct dt_model *m, const struct dt_cluster *c,
                                     const struct dt_work *work, double *max_bytes,
                                     struct dt_error *err)
{
    struct share *share[DT_MAX_MODULES], *all = shares_new(p, share);
    double most = 0;
    enum dt_status st;

    if (!all)
        return dt_error_nomem(err, "memory of stages");
    st = check_stages(memo, p, m, c, work, share, &most, err);
    if (st == DT_OK && dt_plan_shares(p))
        st = check_shared(p, c, share, &most, err);
    if (st == DT_OK)
        st = check_hosts(p, m, c, work, err);
    dt_free(all);
    if (st == DT_OK && max_bytes)
        *max_bytes = most;
    return st;
}

enum dt_status dt_memory_fullest(const struct dt_plan *p, const struct dt_model *m,
                                 const struct dt_cluster *c, const struct dt_work *work,
                                 const int64_t *n_microbatches, struct dt_error *err, double *bytes)
{
    struct share *share[DT_MAX_MODULES], *all = shares_new(p, share);

    if (!all)
        return dt_error_nomem(err, "memory of stages");
    *bytes = 0;
    for (int module = 0; module < p->n_modules; module++)
        for (int stage = 0; stage < p->modules[module].layout.pp; stage++) {
            struct dt_memory mem;

            dt_memory_stage(p, m, c, module, stage, &work[module], n_microbatches[module], &mem);
            *bytes = fmax(*bytes, mem.total);
            share[module][stage] = share_of(c, &mem);
        }
    for (int module = 0; dt_plan_shares(p) && module < p->n_modules; module++)
        for (int stage = 0; stage < p->modules[module].layout.pp; stage++)
            *bytes = fmax(*bytes, gpu_bytes(p, share, dt_plan_lane_gpu(p, module, 0, stage)));
    dt_free(all);
    return DT_OK;
}

enum dt_status dt_memory_check(const struct dt_plan *p, const struct dt_model *m,
                               const struct dt_cluster *c, const struct dt_work *work,
                               double *max_bytes, struct dt_error *err)
{
    return dt_memory_check_again(NULL, p, m, c, work, max_bytes, err);
}
