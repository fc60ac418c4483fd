/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What goes between ranks: lengths, order, and a rank that does not come. */
#include "execute_ranks.h"
#include "nccl_fixture.h"
#include "comm/supervisor.h"
#include "kernels/kernels.h"

#include <stdatomic.h>
#include <stdio.h>

/* ---- lengths of messages ---- */

/* The transport of a rank, but it counts. */
struct counting {
    struct dt_transport t, *real;
    uint64_t sent_bytes, gathered_bytes, hops_bytes;
    uint64_t
        rows; /* of all sequences, over members of the LLM's context parallelism, rounded up for each */
};
static struct counting counting[RANKS_MAX];

static enum dt_status count_send(struct dt_transport *t, int to, int tag, const void *buf,
                                 size_t bytes, struct dt_device_queue *q, struct dt_error *err,
                                 struct dt_req **out)
{
    struct counting *c = &counting[t->rank];

    c->sent_bytes += tag < DT_SUPERVISOR_TAG / 2 ? bytes : 0; /* no tokens */
    return c->real->post_send(c->real, to, tag, buf, bytes, q, err, out);
}

static enum dt_status count_gather(struct dt_comm *comm, void *buf, const size_t *bytes,
                                   struct dt_device_queue *q, struct dt_error *err,
                                   struct dt_req **out)
{
    struct counting *c = &counting[dt_comm_rank(comm, dt_comm_member(comm))];

    for (int k = 0; k < dt_comm_size(comm); k++)
        c->gathered_bytes += bytes[k];
    return c->real->post_all_gather(comm, buf, bytes, q, err, out);
}

static enum dt_status count_hop(struct dt_comm *comm, const void *send, const size_t *send_bytes,
                                void *recv, const size_t *recv_bytes, struct dt_device_queue *q,
                                struct dt_error *err, struct dt_req **out)
{
    struct counting *c = &counting[dt_comm_rank(comm, dt_comm_member(comm))];

    for (int k = 0; k < dt_comm_size(comm); k++)
        c->hops_bytes += send_bytes[k];
    return c->real->post_all_to_all(comm, send, send_bytes, recv, recv_bytes, q, err, out);
}

static void *run_counted(void *arg)
{
    struct rank *r = arg;
    struct counting *c = &counting[r->t->rank];
    struct exec_fixture *f = calloc(1, sizeof(*f));

    ck_assert_ptr_nonnull(f);
    *c = (struct counting){.t = *r->t, .real = r->t};
    c->t.post_send = count_send;
    c->t.post_all_gather = count_gather;
    c->t.post_all_to_all = count_hop;
    open_case(f, r->w->c);
    for (int i = 0; r->w->c->cp > 1 && i < f->n_seqs; i++)
        c->rows += (uint64_t)((f->seqs[i]->n_tokens + r->w->c->cp - 1) / r->w->c->cp);
    f->transport = &c->t;
    ef_open(f);
    ef_step(f, 1);
    r->sends_bytes = f->sends_bytes;
    r->gathers_bytes = f->gathers_bytes;
    c->t.post_send = r->t->post_send;
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

static bool keeps_rounded_copies(void)
{
    const struct dt_device_options o = {.threads = 1};
    struct dt_device *dev;
    struct dt_error err;
    bool keeps;

    dt_assert_ok(dt_test_device_open(&o, &err, &dev), err);
    keeps = !dev->info.packs;
    dev->close(dev);
    return keeps;
}

enum { LENGTHS = 11 };

/* What goes between ranks is as long as the program, which the simulator walks too, says.  Under tensor and context
 * parallelism every row goes once, from the member that has it to the one that needs it, whatever crosses the LLM's ends. */
START_TEST(messages_have_their_planned_length)
{
    static const char *const names[LENGTHS] = {"fan-in 4/2/1",
                                               "cp 2, dp 2",
                                               "cp 4, pp 2",
                                               "cp 2, encoder dp 4",
                                               "cp 4, ring, pp 2",
                                               "cp 2, ring, tp 2",
                                               "cp 2, tp 2, dp 2",
                                               "fan-in, dp 4 to tp 2 pp 2",
                                               "tp 2, dp 2, 1 to 4",
                                               "encoder tp 2 pp 2 to LLM dp 4",
                                               "tp 1/2/4"};
    struct ranks_case c;
    struct rank ranks[RANKS_MAX];
    uint64_t sent = 0, gathered = 0, hopped = 0;
    double most = 1.02;
    int i = 0;

    for (read_layout(0, &c); strcmp(c.name, names[_i / 2]) != 0; read_layout(++i, &c))
        ck_assert_int_lt(i, n_layouts());
    c.bf16 = _i % 2;
    if (c.bf16 && !dt_test_has_bf16())
        return;
    run_ranks(&(struct world){.c = &c, .ranks = ranks_of(&c)}, ranks, run_counted);
    for (int k = 0; k < ranks_of(&c); k++) {
        sent += counting[k].sent_bytes;
        gathered += counting[k].gathered_bytes;
        hopped += counting[k].hops_bytes;
    }
    ck_assert_uint_gt(sent, 0);
    ck_assert_uint_eq(sent, ranks[0].sends_bytes);
    if (c.ring && c.microbatch == 1) {
        /* three layers' keys and values of 2 heads of 8, of each sequence at each member: cp - 1 hops forward, and again
         * backward, where cp of gradients follow */
        uint64_t row = 2 * 2 * 8 * (c.bf16 ? 2 : 4), hops = 3 * (3 * (uint64_t)c.cp - 2);

        ck_assert_uint_eq(hopped, hops * counting[0].rows * (uint64_t)c.cp * row);
    }
    if (c.cp > 1 || c.tp[0] > 1 || c.tp[1] > 1 || c.tp[2] > 1) /* they gather rows, too */
        return;
    if (c.bf16 && !keeps_rounded_copies())
        ck_assert_uint_eq(gathered, ranks[0].gathers_bytes);
    else if (c.bf16) /* and the vectors between matrices, which are many in so small a model */
        most = 1.06;
    /* whole tensors are aligned in memory, and the gaps between them travel with what is gathered in place */
    ck_assert_uint_ge(gathered, ranks[0].gathers_bytes);
    ck_assert_double_lt((double)gathered, most * (double)ranks[0].gathers_bytes);
}
END_TEST

/* ---- groups of replicas ---- */

static size_t moments[RANKS_MAX];
static int gathered_among[RANKS_MAX];

static enum dt_status note_gather(struct dt_comm *comm, void *buf, const size_t *bytes,
                                  struct dt_device_queue *q, struct dt_error *err,
                                  struct dt_req **out)
{
    int rank = dt_comm_rank(comm, dt_comm_member(comm)), n = dt_comm_size(comm);

    gathered_among[rank] = n > gathered_among[rank] ? n : gathered_among[rank];
    return counting[rank].real->post_all_gather(comm, buf, bytes, q, err, out);
}

static void *run_noted(void *arg)
{
    struct rank *r = arg;
    struct counting *c = &counting[r->t->rank];
    struct exec_fixture *f = calloc(1, sizeof(*f));

    ck_assert_ptr_nonnull(f);
    *c = (struct counting){.t = *r->t, .real = r->t};
    c->t.post_all_gather = note_gather;
    open_case(f, r->w->c);
    f->transport = &c->t;
    ef_open(f);
    ef_step(f, 1);
    ef_step(f, 2);
    for (int k = 0; k < f->plan.modules[1].layout.dp; k++)
        if (dt_exec_stage(f->x, 1, k, 0))
            moments[r->t->rank] += dt_exec_optimizer(f->x, 1, k, 0)->moments;
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

/* Of four replicas of the LLM two have the whole of its states, and parameters come from the other one. */
START_TEST(groups_hold_whole_states)
{
    static struct exec_fixture one;
    struct rank ranks[RANKS_MAX];
    struct ranks_case c;
    float *grads[MODULES] = {0};
    struct curve alone;
    size_t all, sum = 0;
    int i = 0;

    for (read_layout(0, &c); strcmp(c.name, "dp 4 in groups of 2") != 0; read_layout(++i, &c))
        ck_assert_int_lt(i, n_layouts());
    run_alone(&one, &c, 1, &alone, grads);
    all = dt_exec_optimizer(one.x, 1, 0, 0)->moments;
    run_ranks(&(struct world){.c = &c, .ranks = ranks_of(&c)}, ranks, run_noted);
    for (int k = 0; k < ranks_of(&c); k++) {
        sum += moments[k];
        if (moments[k] == 0)
            continue;
        ck_assert_double_eq_tol((double)moments[k], (double)all / 2, 0.02 * (double)all);
        ck_assert_int_eq(gathered_among[k], 2);
    }
    ck_assert_double_eq_tol((double)sum, 2 * (double)all, 0.02 * (double)all);
    for (int m = 0; m < MODULES; m++)
        free(grads[m]);
    ef_free(&one);
}
END_TEST

/* ---- under compute ---- */

static void *run_until_overlapped(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    double seen_both = 0;

    ck_assert_ptr_nonnull(f);
    open_rank(f, r);
    ef_open(f);
    for (int i = 0; i < STEPS_MAX && seen_both == 0; i++) {
        ef_step(f, i + 1);
        seen_both = f->syncs_under > 0 && f->gathers_under > 0; /* rank 0 knows */
        dt_assert_ok(dt_exec_sum(f->x, &seen_both, 1, &f->err), f->err);
    }
    if (r->t->rank == 0) {
        printf("under compute: %d of %d reductions, %d of %d gathers\n", f->syncs_under, f->syncs,
               f->gathers_under, f->gathers);
        ck_assert_int_gt(f->syncs_under, 0);
        ck_assert_int_gt(f->gathers_under, 0);
    }
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

/* Gradients are reduced while the backward goes on, parameters gathered while the forward does:
 * seen at least once in the order of what was measured. */
START_TEST(collectives_run_under_compute)
{
    static const struct ranks_case c = {
        .name = "dp 2",
        .l = {{1, 2, 1}},
        .tp = {1, 1, 1},
        .frozen = "ttt",
        .zero = {1, 1, 1},
        .microbatch = 2,
        .model = "llm: {kind: llm, layers: 8, hidden: 192, ffn: 512, heads: 4, vocab: 61}"};
    struct rank ranks[2];

    run_ranks(&(struct world){.c = &c, .ranks = 2}, ranks, run_until_overlapped);
}
END_TEST

/* ---- whatever carries them ---- */

static void (*real_reduce)(struct dt_device_queue *q, enum dt_reduce_type type, int64_t n,
                           int members, int me, void *x, const void *const *others);
static atomic_int reduces;

static void count_reduce(struct dt_device_queue *q, enum dt_reduce_type type, int64_t n,
                         int members, int me, void *x, const void *const *others)
{
    atomic_fetch_add(&reduces, 1);
    real_reduce(q, type, n, members, me, x, others);
}

static void *run_steps(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));

    ck_assert_ptr_nonnull(f);
    open_rank(f, r);
    ef_open(f);
    for (int i = 0; i < 3; i++)
        r->curve.r[i] = ef_step(f, i + 1);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

/* Ranks on CPUs of their own, which reach each other's memory; sums are counted. */
static void run_between_cpus(struct world *w, struct rank *ranks)
{
    const struct dt_device_options o = {.threads = 1, .no_bf16 = true};
    const struct dt_device *devices[RANKS_MAX];
    struct dt_device *dev, counting_device;
    struct dt_kernels kernels;
    struct dt_error err;

    dt_assert_ok(dt_device_open_cpu(&o, &err, &dev), err);
    kernels = *dev->k;
    real_reduce = dev->k->reduce;
    kernels.reduce = count_reduce;
    counting_device = *dev;
    counting_device.k = &kernels;
    for (int k = 0; k < w->ranks; k++)
        devices[k] = &counting_device;
    dt_assert_ok(dt_transport_open_threads_on(w->ranks, devices, &err, w->data), err);
    ck_assert(!w->data[0]->on_queue);
    run_ranks(w, ranks, run_steps);
    ck_assert_int_gt(atomic_load(&reduces), 0); /* the device summed */
    for (int k = 0; k < w->ranks; k++)
        w->data[k]->close(w->data[k]);
    dev->close(dev);
}

/* Of all steps. */
static void assert_equal_bits(const struct rank *x, const struct rank *y)
{
    for (int k = 0; k < 3; k++) {
        const struct dt_exec_result *a = &x->curve.r[k], *b = &y->curve.r[k];

        ck_assert_double_gt(a->loss, 0);
        ck_assert(a->loss == b->loss && a->loss_text == b->loss_text);
        ck_assert(a->loss_image == b->loss_image && a->grad_norm == b->grad_norm);
    }
}

static bool has_gates(void)
{
    struct dt_device *dev;
    struct dt_error err;
    bool gates;

    dt_assert_ok(dt_test_device_open(NULL, &err, &dev), err);
    gates = dev->info.gates;
    dev->close(dev);
    return gates;
}

/* Staged over messages of the host, or from device to device with the device's own sums, or where the device has
 * gates on its queues: the same bits. */
START_TEST(devices_train_to_the_same_bits)
{
    static const char *const names[] = {"generator dp 4 with LLM tp 2 pp 2",
                                        "encoder dp 4 with LLM pp 2 dp 2"};
    struct rank ranks[2][RANKS_MAX];
    struct ranks_case c;
    struct world w;
    int i = 0;

    for (read_layout(0, &c); strcmp(c.name, names[_i]) != 0; read_layout(++i, &c))
        ck_assert_int_lt(i, n_layouts());
    w = (struct world){.c = &c, .ranks = ranks_of(&c)};
    run_ranks(&w, ranks[0], run_steps);
    if (has_gates()) {
        share_device(&w);
        run_ranks(&w, ranks[1], run_steps);
        unshare_device(&w);
    } else {
        run_between_cpus(&w, ranks[1]);
    }
    assert_equal_bits(&ranks[0][0], &ranks[1][0]);
}
END_TEST

static void *run_on_fake_device(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    const struct dt_device_options o = {.threads = 1, .no_bf16 = true};

    ck_assert_ptr_nonnull(f);
    open_rank(f, r);
    f->dev->close(f->dev);
    dt_assert_ok(dt_fake_device_open(&o, &f->err, &f->dev), f->err);
    if (r->w->way == 1)
        use_nccl(f, r);
    ef_open(f);
    for (int i = 0; i < 3; i++)
        r->curve.r[i] = ef_step(f, i + 1);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

/* Over NCCL, whose sums are formed in the order of members in tests, the bits are those of messages of the host.
 * Each rank has a device of its own, and edges that are known when the iteration begins.  One thread of a rank calls
 * NCCL, in an order that does not depend on how fast queues and threads are. */
START_TEST(nccl_trains_to_the_same_bits)
{
    static const char *const names[] = {"generator dp 4 with LLM tp 2 pp 2",
                                        "encoder dp 4 with LLM pp 2 dp 2", "fan-in 4/2/1"};
    static const char *const seeds[] = {"1", "1", "2", "3"};
    struct rank ranks[2][RANKS_MAX];
    struct ranks_case c;
    struct fake_nccl_memory seen;
    uint64_t order[4];
    int i = 0;

    nf_use();
    for (read_layout(0, &c); strcmp(c.name, names[_i]) != 0; read_layout(++i, &c))
        ck_assert_int_lt(i, n_layouts());
    for (int run = 0; run < 4; run++) {
        int way = run > 0;

        setenv("DISTTRAIN_FAKE_SEED", seeds[run], 1);
        setenv("DISTTRAIN_FAKE_SHARE", run == 2 ? "8" : "1000000", 1);
        setenv("DISTTRAIN_FAKE_DELAY_US", "300", 1);
        run_ranks(&(struct world){.c = &c, .ranks = ranks_of(&c), .way = way, .own_devices = true},
                  ranks[way], run_on_fake_device);
        if (way == 0)
            continue;
        assert_equal_bits(&ranks[0][0], &ranks[1][0]);
        ck_assert_int_eq(nf_living(), 0);
        ck_assert_int_eq(nf_callers(&order[run]), ranks_of(&c));
        seen = nf_memory();
        ck_assert_int_eq(seen.living, 0);
        ck_assert_int_gt(seen.zero_cta_gathers, 0);
        ck_assert_int_gt(seen.registered_sums, 0); /* gradients, where they lie */
        ck_assert_int_gt(seen.messages, 0);
        ck_assert_int_eq(seen.registered_messages, seen.messages);
        ck_assert_msg(order[run] == order[1], "run %d calls NCCL in another order", run);
    }
}
END_TEST

/* ---- failures ---- */

static void *wait_for_nothing(void *arg)
{
    struct rank *r = arg;
    struct exec_fixture *f = calloc(1, sizeof(*f));
    struct dt_error err;
    struct dt_comm *both;
    struct dt_req *req;
    double x = 0;

    ck_assert_ptr_nonnull(f);
    open_rank(f, r);
    f->limit_s = 0.3;
    ef_open(f);
    dt_assert_ok(r->t->comm_new(r->t, (int[]){0, 1}, 2, &err, &both), err);
    if (r->t->rank == 0) { /* the other rank never begins the step */
        f->expected = DT_ERR_TIMEOUT;
        ef_step(f, 1);
        dt_assert_has(f->err.message, "rank 0 on ");
        dt_assert_has(f->err.message, "llm/0.0 ");
        dt_assert_has(f->err.message, "of microbatch 0");
    }
    dt_assert_ok(r->t->post_all_reduce(both, DT_REDUCE_F64, &x, 1, NULL, &err, &req), err);
    dt_assert_ok(dt_transport_wait(r->t, req, 30, NULL, &err), err);
    r->t->comm_free(both);
    ef_free(f);
    free(f);
    r->t->close(r->t);
    return NULL;
}

/* A step that another rank does not take part in ends in time and names what it waits for. */
START_TEST(a_missing_rank_is_named)
{
    static const struct ranks_case two = {.name = "two ranks",
                                          .l = {{2, 1, 1}},
                                          .tp = {1, 1, 1},
                                          .frozen = "ttt",
                                          .zero = {1, 1, 1},
                                          .microbatch = 1,
                                          .model = EF_LLM};
    struct rank ranks[2];
    struct world w = {.c = &two, .ranks = 2};
    struct dt_transport *t[2];
    struct dt_error err;

    dt_assert_ok(dt_transport_open_threads(2, &err, t), err);
    for (int i = 0; i < 2; i++) {
        ranks[i] = (struct rank){.w = &w, .t = t[i]};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, wait_for_nothing, &ranks[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(ranks[i].thread, NULL);
}
END_TEST

void add_comm_tests(TCase *t)
{
    tcase_add_test(t, a_missing_rank_is_named);
    tcase_add_loop_test(t, devices_train_to_the_same_bits, 0, 2);
    tcase_add_loop_test(t, nccl_trains_to_the_same_bits, 0, 3);
    tcase_add_loop_test(t, messages_have_their_planned_length, 0, 2 * LENGTHS);
    tcase_add_test(t, groups_hold_whole_states);
    tcase_add_test(t, collectives_run_under_compute);
}
