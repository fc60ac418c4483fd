/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Modules of module_util.c on a device: the microbatch in stages, on members side by side. */
#include "module_util.h"

#include "comm/transport.h"

#include <pthread.h>

#define NEW(u, type, n) DT_ARENA_NEW(&(u)->arena, type, (n) + 1)

struct exec {
    struct mu *u;
    const struct mu_run *run;
    struct dt_device *dev;
    struct dt_device_queue *q;
    struct dt_batch *batch;
    int n;
    struct dt_stage *stage[8];
    struct dt_nn_run r[8];
    void *flow[9], *grad[9];
    struct dt_transport *transport; /* of this member; NULL = there are no others */
    struct dt_transport *data;      /* the same for the device's memory */
    struct dt_tp tp;
};

static void *device_alloc(struct exec *e, size_t bytes)
{
    struct dt_error err;
    void *p = NULL;

    dt_assert_ok(e->dev->alloc(e->dev, bytes + 64, &err, &p), err);
    memset(dt_test_host(p), 0xff,
           bytes + 64); /* NaN in both precisions: nothing may be read before it is written */
    return p;
}

/* Rows [*first, *end) of n are this member's: equal shares, the first ones a row larger. */
static void share(const struct exec *e, int64_t n, int64_t *first, int64_t *end)
{
    int64_t size = e->tp.size > 1 ? e->tp.size : 1, k = e->tp.rank;

    *first = *end = 0;
    for (int64_t j = 0; j <= k; j++) {
        *first = *end;
        *end += n / size + (j < n % size);
    }
}

/* Of n places in the LLM's batch those that are in the member's share of its rows; how many. */
static int64_t own_rows(const struct exec *e, const int *place, int n, int32_t *out)
{
    int64_t first, end, own = 0;

    share(e, e->u->llm.rows, &first, &end);
    for (int i = 0; i < n; i++)
        if (place[i] >= first && place[i] < end)
            out[own++] = place[i];
    return own;
}

/* Where row `row` of what goes into the module (or comes out) lies in this member's flow; -1: another's. */
static int64_t place_of(const struct exec *e, bool out, int64_t row)
{
    const struct mu *u = e->u;
    int64_t first, end, at = 0;

    if (u->m.role != DT_ROLE_LLM) {
        share(e, out ? e->batch->rows / dt_module_merged(&u->m) : 3 * u->n_images, &first, &end);
        return row >= first && row < end ? row - first : -1;
    }
    share(e, u->llm.rows, &first, &end);
    for (int64_t i = 0; i <= row; i++) {
        int place = out ? u->llm.cond_row[i] : u->llm.in_row[i];

        if (place >= first && place < end)
            at++;
        else if (i == row)
            return -1;
    }
    return at - 1;
}

/* The same of element i of n. */
static int64_t element_of(const struct exec *e, bool out, int64_t i, int64_t n)
{
    const struct mu *u = e->u;
    int64_t rows = u->m.role == DT_ROLE_LLM ? (out ? u->llm.n_cond : u->llm.n_in)
                   : out                    ? e->batch->rows / dt_module_merged(&u->m)
                                            : 3 * u->n_images;
    int64_t width = n / rows, at = place_of(e, out, i / width);

    return at < 0 ? -1 : at * width + i % width;
}

static void fill_batch(struct exec *e)
{
    struct mu *u = e->u;
    struct dt_batch *b;
    struct dt_error err;
    int at = 0;

    dt_assert_ok(dt_batch_new(e->dev, &u->m, &u->max, &err, &e->batch), err);
    b = e->batch;
    b->train = true;
    b->loss_scale = (float)(u->m.role == DT_ROLE_LLM ? u->llm.scale : u->gen.scale);
    b->noise_seed = u->seed;
    b->balance_scale = (float)u->ref.balance_scale;
    if (u->m.role == DT_ROLE_LLM) {
        dt_assert_ok(dt_batch_documents(b, u->llm.doc, u->llm.rows, &err), err);
        for (int i = 0; i < u->llm.rows; i++) {
            b->host.ids[i] = u->llm.ids[i];
            b->host.target[i] = u->llm.target[i];
        }
        b->n_in = own_rows(e, u->llm.in_row, u->llm.n_in, b->host.in_row);
        b->n_cond = own_rows(e, u->llm.cond_row, u->llm.n_cond, b->host.cond_row);
        b->n_cond_all = u->llm.n_cond;
    }
    for (int i = 0; i < u->n_images; i++) {
        float x0[1024];
        int n = 3 * u->sizes[i][0] * u->sizes[i][1];

        if (u->m.role == DT_ROLE_ENCODER) {
            dt_assert_ok(dt_batch_patches(b, u->px[i], u->sizes[i][0], u->sizes[i][1], &err), err);
            continue;
        }
        for (int k = 0; k < n; k++)
            x0[k] = (float)u->gen.x0[at++];
        dt_assert_ok(
            dt_batch_latents(b, x0, u->sizes[i][1], u->sizes[i][0], (uint64_t)(500 + i), &err),
            err);
        b->host.t[i] = (float)u->gen.t[i];
        b->host.alpha[i] = (float)u->gen.alpha[i];
        b->host.sigma[i] = (float)u->gen.sigma[i];
    }
    for (int64_t i = 0; i < b->n_seq; i++)
        b->host.stream[i] = (uint64_t)(MU_STREAM + i);
    dt_assert_ok(dt_batch_upload(e->q, b, &err), err);
}

static double number(const void *p, int64_t i, enum dt_dtype t)
{
    uint32_t bits;
    float f;

    if (t == DT_F32)
        return (double)((const float *)p)[i];
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&f, &bits, 4);
    return (double)f;
}

/* NaN: another member's. */
static double number_at(const void *p, int64_t i, enum dt_dtype t)
{
    return i < 0 ? (double)NAN : number(p, i, t);
}

static void set_number(void *p, int64_t i, enum dt_dtype t, double x)
{
    float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, 4);
    if (t == DT_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
}

static struct mu_tensor *find(struct mu *u, const char *name, int *at)
{
    for (*at = 0; *at < u->n; (*at)++)
        if (strcmp(u->t[*at].name, name) == 0)
            return &u->t[*at];
    ck_abort_msg("no tensor %s", name);
    return NULL;
}

/* Hugging Face's index of what lies at i of the whole tensor. */
static int64_t index_of(const struct mu_tensor *t, int64_t i)
{
    return t->transpose ? i % t->cols * t->rows + i / t->cols : i;
}

static void load(struct exec *e, struct dt_stage *s)
{
    const struct dt_param *p;
    float *master = dt_test_host(dt_stage_master(s));
    int n, at;

    p = dt_stage_params(s, &n);
    memset(master, 0, dt_stage_param_floats(s) * 4);
    for (int i = 0; i < n; i++) {
        struct mu_tensor *t = find(e->u, p[i].name, &at);

        for (int64_t r = 0; r < dt_param_runs(&p[i]); r++) {
            struct dt_param_run run = dt_param_run(&p[i], r);

            for (size_t k = 0; k < run.n; k++)
                master[p[i].at + run.at + k] = (float)t->v[index_of(t, (int64_t)(run.whole + k))];
        }
    }
    dt_stage_changed(e->q, s, 0, e->u->m.n_blocks);
}

static void make_stages(struct exec *e)
{
    struct mu *u = e->u;
    const struct mu_run *run = e->run;
    unsigned char trained[128];
    bool above = run->upstream;
    struct dt_error err;

    for (int i = 0; i < u->m.n_blocks; i++)
        trained[i] = !(run->frozen && i >= run->freeze_from && i < run->freeze_to);
    e->n = run->n_cuts + 1;
    for (int i = 0; i < e->n; i++) {
        struct dt_stage_spec spec = {.module = &u->m,
                                     .first = i > 0 ? run->cuts[i - 1] : 0,
                                     .last = i < run->n_cuts ? run->cuts[i] : u->m.n_blocks,
                                     .dtype = run->dtype,
                                     .recompute = run->recompute,
                                     .trained = trained,
                                     .upstream_trained = above,
                                     .split_backward = run->split_backward,
                                     .max = u->max,
                                     .dropout = run->dropout,
                                     .tp = e->transport ? &e->tp : NULL,
                                     .chunks = run->chunks};
        struct dt_nn_run *r = &e->r[i];

        for (int k = spec.first; k < spec.last; k++)
            above |= trained[k];
        dt_assert_ok(dt_stage_new(e->dev, &spec, &err, &e->stage[i]), err);
        load(e, e->stage[i]);
        dt_stage_grads_begin(e->stage[i]);
        if (i == 0) {
            e->flow[0] = device_alloc(e, dt_stage_in_bytes(e->stage[0], e->batch));
            e->grad[0] = device_alloc(e, dt_stage_in_bytes(e->stage[0], e->batch));
        } else {
            ck_assert_uint_eq(dt_stage_in_bytes(e->stage[i], e->batch),
                              dt_stage_out_bytes(e->stage[i - 1], e->batch));
        }
        e->flow[i + 1] = device_alloc(e, dt_stage_out_bytes(e->stage[i], e->batch));
        e->grad[i + 1] = device_alloc(e, dt_stage_out_bytes(e->stage[i], e->batch));
        r->batch = e->batch;
        r->saved = dt_stage_has_backward(e->stage[i])
                       ? device_alloc(e, dt_stage_saved_bytes(e->stage[i], e->batch))
                       : NULL;
        r->stash = run->split_backward
                       ? device_alloc(e, dt_stage_stash_bytes(e->stage[i], e->batch))
                       : NULL;
    }
    for (int i = 0; i < e->n; i++) {
        e->r[i].in = e->flow[i];
        e->r[i].out = e->flow[i + 1];
        e->r[i].dout = e->grad[i + 1];
        e->r[i].din = dt_stage_sends_gradient(e->stage[i]) ? e->grad[i] : NULL;
    }
}

static void bounds(const struct exec *e, int i, int *first, int *mid, int *last)
{
    *first = i > 0 ? e->run->cuts[i - 1] : 0;
    *last = i < e->run->n_cuts ? e->run->cuts[i] : e->u->m.n_blocks;
    *mid = e->run->parts ? (*first + *last) / 2 : *last;
}

static void pass(struct exec *e)
{
    struct mu *u = e->u;
    int first, mid, last;
    void *dout;

    for (int i = 0; i < e->n; i++) {
        bounds(e, i, &first, &mid, &last);
        dt_stage_forward(e->q, e->stage[i], &e->r[i], first, mid);
        if (mid < last)
            dt_stage_forward(e->q, e->stage[i], &e->r[i], mid, last);
    }
    dout = dt_test_host(e->grad[e->n]);
    for (int64_t i = 0; i < u->n_out; i++)
        if (element_of(e, true, i, u->n_out) >= 0)
            set_number(dout, element_of(e, true, i, u->n_out), e->run->dtype, u->weights[i]);
    for (int i = e->n - 1; i >= 0; i--) {
        int what = e->run->split_backward ? DT_BACKWARD_INPUT : DT_BACKWARD_BOTH;

        if (!dt_stage_has_backward(e->stage[i]))
            continue;
        bounds(e, i, &first, &mid, &last);
        if (mid < last)
            dt_stage_backward(e->q, e->stage[i], &e->r[i], mid, last, what);
        dt_stage_backward(e->q, e->stage[i], &e->r[i], first, mid, what);
    }
    for (int i = 0; e->run->split_backward && i < e->n; i++) { /* weights in another order */
        bounds(e, i, &first, &mid, &last);
        dt_stage_backward(e->q, e->stage[i], &e->r[i], first, last, DT_BACKWARD_WEIGHT);
    }
}

/* A tied table's copies add up. */
static void collect_gradient(const struct exec *e, struct dt_stage *s, const struct dt_param *p,
                             int tensor, struct mu_result *out)
{
    const float *grads = dt_test_host(dt_stage_grads(s));

    for (int64_t r = 0; r < dt_param_runs(p); r++) {
        struct dt_param_run run = dt_param_run(p, r);

        for (size_t k = 0; k < run.n; k++) {
            int64_t i = index_of(&e->u->t[tensor], (int64_t)(run.whole + k));

            out->g[tensor][i] += (double)grads[p->at + run.at + k];
            out->copies[tensor][i]++;
        }
    }
}

static void collect(struct exec *e, struct mu_result *out)
{
    struct mu *u = e->u;
    const struct dt_batch *b = e->batch;
    const void *flow = dt_test_host(e->flow[e->n]), *grad = dt_test_host(e->grad[0]);
    const float *nll = dt_test_host(b->dev.nll), *pred = dt_test_host(b->dev.pred);
    const float *sse = dt_test_host(b->dev.sse);
    const int32_t *best = dt_test_host(b->dev.best);
    int at = 0;

    memset(out, 0, sizeof(*out));
    out->out = NEW(u, double, u->n_out);
    out->d_in = NEW(u, double, u->n_in);
    out->sends = e->r[0].din != NULL;
    out->g = NEW(u, double *, u->n);
    out->has = NEW(u, bool, u->n);
    out->copies = NEW(u, int *, u->n);
    for (int64_t i = 0; i < u->n_out; i++)
        out->out[i] = number_at(flow, element_of(e, true, i, u->n_out), e->run->dtype);
    for (int64_t i = 0; e->r[0].din && i < u->n_in; i++)
        out->d_in[i] = number_at(grad, element_of(e, false, i, u->n_in), e->run->dtype);
    for (int i = 0; i < u->n; i++)
        out->g[i] = NEW(u, double, u->t[i].n), out->copies[i] = NEW(u, int, u->t[i].n);
    for (int i = 0; i < e->n; i++) {
        struct dt_stage *s = e->stage[i];
        const struct dt_param *p;
        int n;

        dt_stage_load_take(s, &out->load);
        p = dt_stage_params(s, &n);
        for (int k = 0; k < n; k++) {
            find(u, p[k].name, &at);
            if (!dt_stage_trained(s, p[k].block))
                continue;
            out->has[at] = true;
            collect_gradient(e, s, &p[k], at, out);
        }
    }
    if (u->m.role == DT_ROLE_LLM) {
        out->nll = NEW(u, double, b->rows);
        out->best = NEW(u, int, b->rows);
        for (int64_t i = 0; i < b->rows; i++) {
            out->nll[i] = (double)nll[i];
            out->best[i] = best[i];
            out->loss += u->llm.scale * out->nll[i];
        }
    } else if (u->m.role == DT_ROLE_GENERATOR) {
        out->pred = NEW(u, double, b->rows * 3);
        for (int64_t i = 0; i < b->rows * 3; i++)
            out->pred[i] = (double)pred[i];
        for (int64_t i = 0; i < b->n_seq; i++)
            out->loss +=
                u->gen.scale * (double)sse[i] / (3.0 * b->host.hw[i][0] * b->host.hw[i][1]);
    }
}

/* With the other members, over the device's memory. */
static void join(struct exec *e)
{
    struct dt_error err;
    int ranks[16];

    if (!e->transport)
        return;
    dt_assert_ok(dt_transport_open_staged(e->transport, e->dev, &err, &e->data), err);
    for (int i = 0; i < e->data->size; i++)
        ranks[i] = i;
    dt_assert_ok(e->data->comm_new(e->data, ranks, e->data->size, &err, &e->tp.comm), err);
    e->tp.rank = dt_comm_member(e->tp.comm);
    e->tp.size = e->data->size;
    e->tp.limit_s = 60;
    if (e->run->chunks > 0)
        dt_assert_ok(dt_tp_beside_new(&e->tp, e->dev, &err), err);
}

static void leave(struct exec *e)
{
    if (!e->data)
        return;
    dt_tp_beside_free(&e->tp);
    e->data->comm_free(e->tp.comm);
    e->data->close(e->data);
}

static void execute(struct exec *e)
{
    const struct mu_run *run = e->run;
    struct dt_device_options opt = {.threads = run->threads > 0 ? run->threads : 1};
    struct dt_error err;
    void *in;

    dt_assert_ok(dt_test_device_open(&opt, &err, &e->dev), err);
    dt_assert_ok(e->dev->queue_new(e->dev, false, &err, &e->q), err);
    join(e);
    fill_batch(e);
    make_stages(e);
    in = dt_test_host(e->flow[0]);
    for (int64_t i = 0; i < e->u->n_in; i++)
        if (element_of(e, false, i, e->u->n_in) >= 0)
            set_number(in, element_of(e, false, i, e->u->n_in), run->dtype, e->u->in[i]);
    if (run->before)
        run->before(e->dev, dt_tp_rank(&e->tp));
    for (int i = 0; i < (run->microbatches > 0 ? run->microbatches : 1); i++) {
        if (!e->transport)
            dt_mem_fail_at(0); /* counts anew */
        pass(e);
        dt_assert_ok(e->dev->queue_sync(e->q, &err), err);
        if (i > 1 && !e->transport) /* the first sized workspaces and made products, the second
                                       those that add */
            ck_assert_uint_eq(dt_mem_count(), 0);
    }
    if (run->after)
        run->after(e->dev, dt_tp_rank(&e->tp));
    for (int i = 0; i < e->n; i++) {
        dt_stage_grads_finish(e->q, e->stage[i], 0, e->u->m.n_blocks);
        dt_stage_grads_reduce(e->q, e->stage[i], 0, e->u->m.n_blocks);
    }
    dt_assert_ok(e->dev->queue_sync(e->q, &err), err);
    dt_assert_ok(dt_tp_state(&e->tp, &err), err);
    leave(e);
}

static void finish(struct exec *e)
{
    int64_t now, max;

    for (int i = 0; i <= e->n; i++) {
        e->dev->free(e->dev, e->flow[i]);
        e->dev->free(e->dev, e->grad[i]);
    }
    for (int i = 0; i < e->n; i++) {
        e->dev->free(e->dev, e->r[i].saved);
        e->dev->free(e->dev, e->r[i].stash);
        dt_stage_free(e->stage[i]);
    }
    dt_batch_free(e->batch);
    e->dev->queue_free(e->q);
    e->dev->memory_used(e->dev, &now, &max);
    ck_assert_int_eq(now, 0);
    e->dev->close(e->dev);
}

static void *member_runs(void *arg)
{
    struct exec *e = arg;

    execute(e);
    e->transport->close(e->transport);
    return NULL;
}

static void agree(const struct mu *u, const char *what, int member, double a, double b)
{
    ck_assert_msg(memcmp(&a, &b, sizeof(a)) == 0, "%s: member %d has %.17g as %s, member 0 %.17g",
                  mu_names[u->kind], member, b, what, a);
}

/* A row at the module's ends is one member's. */
static void take_share(const struct mu *u, const char *what, int member, double *all, double one)
{
    ck_assert_msg(isnan(*all) || isnan(one), "%s: member %d and one before it have %s",
                  mu_names[u->kind], member, what);
    if (isnan(*all))
        *all = one;
}

/* What member k brings to the whole. */
static void merge(const struct mu *u, struct mu_result *out, const struct mu_result *m, int k,
                  const struct dt_batch *b)
{
    agree(u, "loss", k, out->loss, m->loss);
    for (int64_t i = 0; i < u->n_out; i++)
        take_share(u, "output", k, &out->out[i], m->out[i]);
    for (int64_t i = 0; m->sends && i < u->n_in; i++)
        take_share(u, "gradient of the input", k, &out->d_in[i], m->d_in[i]);
    for (int64_t i = 0; out->nll && i < b->rows; i++) {
        agree(u, "loss of a row", k, out->nll[i], m->nll[i]);
        ck_assert_int_eq(out->best[i], m->best[i]);
    }
    for (int64_t i = 0; out->pred && i < b->rows * 3; i++)
        agree(u, "prediction", k, out->pred[i], m->pred[i]);
    for (int i = 0; i < u->n; i++)
        for (int64_t j = 0; j < u->t[i].n; j++) {
            if (out->copies[i][j] > 0 && m->copies[i][j] > 0)
                agree(u, u->t[i].name, k, out->g[i][j], m->g[i][j]);
            else if (m->copies[i][j] > 0)
                out->g[i][j] = m->g[i][j], out->copies[i][j] = m->copies[i][j];
        }
}

static void execute_members(struct mu *u, const struct mu_run *run, struct mu_result *out)
{
    struct dt_transport *transport[16];
    struct exec e[16] = {{0}};
    pthread_t thread[16];
    struct dt_error err;

    dt_assert_ok(dt_transport_open_threads(run->tp, &err, transport), err);
    for (int k = 0; k < run->tp; k++) {
        e[k].u = u;
        e[k].run = run;
        e[k].transport = transport[k];
        ck_assert_int_eq(pthread_create(&thread[k], NULL, member_runs, &e[k]), 0);
    }
    for (int k = 0; k < run->tp; k++)
        pthread_join(thread[k], NULL);
    collect(&e[0], out);
    for (int k = 1; k < run->tp; k++) {
        struct mu_result m;

        collect(&e[k], &m);
        merge(u, out, &m, k, e[k].batch);
    }
    for (int i = 0; i < u->n; i++)
        for (int64_t j = 0; out->has[i] && j < u->t[i].n; j++)
            ck_assert_msg(out->copies[i][j] > 0, "%s: nobody has %s[%lld]", mu_names[u->kind],
                          u->t[i].name, (long long)j);
    for (int k = 0; k < run->tp; k++)
        finish(&e[k]);
}

void mu_execute(struct mu *u, const struct mu_run *run, struct mu_result *out)
{
    struct exec e = {.u = u, .run = run};

    if (run->tp > 1) {
        execute_members(u, run, out);
        return;
    }
    execute(&e);
    collect(&e, out);
    finish(&e);
}
