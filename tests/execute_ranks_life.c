/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The life of a rank of a layout, and of the one process that it is compared with. */
#include "execute_ranks.h"
#include "nccl_fixture.h"

void open_case(struct exec_fixture *f, const struct ranks_case *c)
{
    ef_init(f, c->model, 1);
    ef_seqs_of(f, c->batch ? c->batch : 12, 9, c->data);
    ef_plan(f, c->microbatch, c->l, c->colocated, c->schedule);
    for (int m = 0; m < f->model->n_modules; m++) {
        f->plan.modules[m].layout.tp = c->tp[m];
        f->plan.modules[m].with = (uint8_t)c->with[m];
        f->plan.modules[m].window = m < f->model->llm   ? c->window
                                    : m > f->model->llm ? c->drawn
                                                        : 0;
    }
    if (c->cp > 1)
        f->plan.modules[f->model->llm].layout.cp = c->cp;
    if (c->ep > 1)
        f->plan.modules[f->model->llm].layout.ep = c->ep;
    dt_assert_ok(dt_plan_place(&f->plan, &f->cluster, &f->err), f->err);
    dt_assert_ok(dt_plan_validate(&f->plan, f->model, &f->cluster, &f->err), f->err);
    f->dropout = c->dropout;
    f->dtype = c->bf16 ? DT_BF16 : DT_F32;
    f->plan.policy.fp32 = !c->bf16;
    f->plan.policy.exact_vectors = true;
    f->plan.policy.overlap_grad = f->plan.policy.overlap_param = !c->apart;
    f->plan.policy.cp_comm = c->ring ? DT_CP_COMM_RING : DT_CP_COMM_GATHER;
    f->plan.policy.stepccl = c->chunks > 0;
    f->plan.policy.stepccl_chunks = c->chunks;
    for (int m = 0; m < f->model->n_modules; m++) {
        f->plan.modules[m].frozen = c->frozen[m] == 'f';
        f->plan.modules[m].recompute = c->recompute[m];
        f->plan.modules[m].zero = c->zero[m];
        f->plan.modules[m].offload = c->offload[m];
        f->plan.modules[m].zero_group = c->zero[m] == 1 ? c->zero_group[m] : 0;
    }
    if (c->reorder)
        ef_reorder(f);
    else if (c->bubbles)
        ef_cost(f);
    if (c->entrain)
        f->plan.policy.assignment = DT_ASSIGNMENT_ENTRAIN;
    for (int m = 0; m < f->model->n_modules; m++)
        f->plan.modules[m].phases = c->phases[m] == 'p';
    f->plan.policy.warmup = c->ahead ? DT_WARMUP_EAGER : DT_WARMUP_1F1B;
    for (int m = 0; m < f->model->n_modules; m++)
        for (int s = 0; s < f->plan.modules[m].layout.pp; s++)
            f->plan.modules[m].ahead[s] = (uint16_t)c->ahead;
    dt_assert_ok(dt_plan_validate(&f->plan, f->model, &f->cluster, &f->err), f->err);
}

static bool nccl_asked(void)
{
    const char *nccl = getenv("DT_TEST_NCCL");

    return nccl && *nccl && *nccl != '0';
}

void use_environment(void)
{
    if (nccl_asked())
        nf_use();
}

void use_nccl(struct exec_fixture *f, const struct rank *r)
{
    snprintf(f->dev->info.id, sizeof(f->dev->info.id), "card %d", r->t->rank);
    f->over = DT_TRANSPORT_OVER_NCCL;
}

void open_rank(struct exec_fixture *f, struct rank *r)
{
    const char *ipc = getenv("DT_TEST_IPC");

    open_case(f, r->w->c);
    f->transport = r->t;
    f->data = r->w->data[r->t->rank];
    if (nccl_asked() && !f->data && !r->w->own_devices)
        use_nccl(f, r);
    if (ipc && *ipc && *ipc != '0' && !f->data) /* ranks are processes */
        f->over = DT_TRANSPORT_OVER_IPC;
    if (!r->w->device)
        return;
    f->dev->close(f->dev);
    f->dev = r->w->device;
    f->shared = true;
    f->together = &r->w->together;
}

/* What the rank owns of n floats from `at`. */
static void keep_owned(const struct dt_optimizer *o, size_t at, size_t n, const float *g, float *to)
{
    for (int k = 0; k < o->n_segments; k++) {
        const struct dt_optimizer_segment *x = &o->segments[k];
        size_t lo = x->at > at ? x->at : at;
        size_t hi = x->at + x->n < at + n ? x->at + x->n : at + n;

        if (lo < hi)
            memcpy(to + (lo - at), g + lo, (hi - lo) * sizeof(float));
    }
}

/* What this rank owns of the gradients of a virtual stage. */
static void keep_stage(struct world *w, int m, struct dt_stage *s, const struct dt_optimizer *o)
{
    struct dt_stage *whole = dt_exec_stage(w->one->x, m, 0, 0);
    const float *g = dt_test_host(dt_stage_grads(s));
    int n;
    const struct dt_param *p = dt_stage_params(s, &n);

    for (int i = 0; i < n; i++) {
        const struct dt_param *to = p[i].tied ? NULL : param_named(whole, p[i].name);

        if (p[i].tied)
            continue;
        ck_assert_ptr_nonnull(to);
        for (int64_t k = 0; k < dt_param_runs(&p[i]); k++) {
            struct dt_param_run run = dt_param_run(&p[i], k);

            keep_owned(o, p[i].at + run.at, run.n, g, w->grads[m] + to->at + run.whole);
        }
    }
}

static void keep_grads(struct world *w, struct exec_fixture *f)
{
    pthread_mutex_lock(&w->lock);
    for (int m = 0; m < f->model->n_modules; m++) {
        const struct dt_plan_layout *l = &f->plan.modules[m].layout;

        for (int r = 0; r < l->dp; r++)
            for (int v = 0; v < l->pp * l->vpp; v++) {
                struct dt_stage *s = dt_exec_stage(f->x, m, r, v);

                if (s && dt_stage_grads(s))
                    keep_stage(w, m, s, dt_exec_optimizer(f->x, m, r, v));
            }
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- the life of a rank ---- */

void walk(struct rank *r, struct exec_fixture *f)
{
    open_rank(f, r);
    ef_open(f);
    for (int i = 0; i < r->w->steps; i++) {
        r->curve.r[i] = ef_step(f, i + 1);
        if (i == 0)
            keep_grads(r->w, f);
    }
    if (r->w->c->entrain && r->w->c->data == EF_PICTURED)
        ck_assert_int_gt(f->deferred, 0);
    if (r->w->c->bubbles)
        ck_assert_int_gt(f->moved, 0);
    check_whole(r->w, f);
}

void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));

    ck_assert_ptr_nonnull(f);
    walk(r, f);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

/* One process, everything on one device; its gradients of step 1. */
void run_alone(struct exec_fixture *f, const struct ranks_case *c, int steps, struct curve *out,
               float *grads[MODULES])
{
    struct ranks_case one = *c;

    for (int m = 0; m < MODULES; m++) {
        one.l[m] = (struct ef_layout){1, 1, 1};
        one.tp[m] = 1;
        one.recompute[m] = DT_RECOMPUTE_NONE;
        one.zero_group[m] = 0;
    }
    one.cp = one.ep = 1;
    one.microbatch = 1;
    one.colocated = true;
    memset(one.with, 0, sizeof(one.with));
    one.window = 0;
    one.schedule = DT_SCHED_1F1B;
    one.reorder = one.entrain = one.bubbles = false;
    one.ahead = 0;
    memset(one.phases, 0, sizeof(one.phases));
    open_case(f, &one);
    ef_open(f);
    for (int i = 0; i < steps; i++) {
        out->r[i] = ef_step(f, i + 1);
        for (int m = 0; i == 0 && m < f->model->n_modules; m++) {
            struct dt_stage *s = dt_exec_stage(f->x, m, 0, 0);
            size_t bytes = dt_stage_param_floats(s) * sizeof(float);

            grads[m] = dt_stage_grads(s) ? malloc(bytes) : NULL;
            if (grads[m])
                memcpy(grads[m], dt_test_host(dt_stage_grads(s)), bytes);
        }
    }
}

static bool on_queue_asked(const struct world *w)
{
    const char *s = getenv("DT_TEST_ON_QUEUE");

    return s && *s && *s != '0' && !w->own_devices && !w->device && !w->data[0];
}

void share_device(struct world *w)
{
    const struct dt_device_options o = {.threads = 1, .no_bf16 = true};
    const struct dt_device *devices[RANKS_MAX];
    struct dt_error err;

    dt_assert_ok(dt_test_device_open(&o, &err, &w->device), err);
    for (int k = 0; k < w->ranks; k++)
        devices[k] = w->device;
    dt_assert_ok(dt_transport_open_threads_on(w->ranks, devices, &err, w->data), err);
    ck_assert(w->data[0]->on_queue);
    dt_fake_share(w->device);
    pthread_barrier_init(&w->together, NULL, (unsigned)w->ranks);
}

void unshare_device(struct world *w)
{
    for (int k = 0; k < w->ranks; k++) {
        w->data[k]->close(w->data[k]);
        w->data[k] = NULL;
    }
    w->device->close(w->device);
    w->device = NULL;
    pthread_barrier_destroy(&w->together);
}

void run_ranks(struct world *w, struct rank *ranks, void *(*life)(void *))
{
    struct dt_transport *t[RANKS_MAX];
    struct dt_error err;
    bool share = on_queue_asked(w);

    if (share)
        share_device(w);
    dt_assert_ok(dt_transport_open_threads(w->ranks, &err, t), err);
    for (int i = 0; i < w->ranks; i++) {
        ranks[i] = (struct rank){.w = w, .t = t[i]};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, life, &ranks[i]), 0);
    }
    for (int i = 0; i < w->ranks; i++)
        pthread_join(ranks[i].thread, NULL);
    if (share)
        unshare_device(w);
}

static int gpus_of(const struct ranks_case *c)
{
    int sum = 0, max = 0;

    for (int m = 0; m < MODULES; m++) {
        bool llm = c->l[1].pp > 0 ? m == 1 : m == 0; /* beside others, or alone */
        int n = c->l[m].pp * c->l[m].dp * c->tp[m] * (llm && c->cp > 1 ? c->cp : 1);

        sum += c->with[m] ? 0 : n;
        max = n > max ? n : max;
    }
    return c->colocated ? max : sum;
}

int ranks_of(const struct ranks_case *c)
{
    return c->ranks > 0 ? c->ranks : gpus_of(c);
}
