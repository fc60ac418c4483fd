/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The transport over NCCL, that of tests: what goes wrong.  (tests/test_on_queue.c: what goes right.) */
#include "nccl_fixture.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>

enum { N = 16 };

static struct dt_device *dev;
static struct dt_device card[NF_RANKS];
static struct dt_transport *control[NF_RANKS], *t[NF_RANKS];
static struct dt_comm *all[NF_RANKS];
static struct dt_device_queue *queue[NF_RANKS];
static float *x[NF_RANKS];
static void *known[NF_RANKS];         /* memory that is registered */
static struct dt_error why[NF_RANKS]; /* the first that a rank was told */

static void begin(int n, const char *limit_s)
{
    const struct dt_device_options o = {.threads = 1};
    struct dt_error err;

    nf_use();
    setenv("DISTTRAIN_OP_TIMEOUT_S", limit_s, 1);
    dt_assert_ok(dt_fake_device_open(&o, &err, &dev), err);
    dt_assert_ok(dt_transport_open_threads(n, &err, control), err);
    for (int k = 0; k < n; k++) {
        void *p;

        card[k] = *dev;
        snprintf(card[k].info.id, sizeof(card[k].info.id), "card %d", k);
        dt_assert_ok(dev->queue_new(dev, false, &err, &queue[k]), err);
        dt_assert_ok(dev->alloc(dev, N * sizeof(float), &err, &p), err);
        x[k] = p;
        dev->zero(queue[k], p, N * sizeof(float));
        dt_assert_ok(dev->queue_sync(queue[k], &err), err);
        t[k] = NULL;
        all[k] = NULL;
        why[k] = (struct dt_error){0};
    }
}

static void leave(struct nf_rank *r)
{
    if (t[r->k])
        t[r->k]->memory_free(t[r->k], known[r->k]);
    known[r->k] = NULL;
    if (all[r->k])
        t[r->k]->comm_free(all[r->k]);
    if (t[r->k])
        t[r->k]->close(t[r->k]);
}

static void finish(int n)
{
    for (int k = 0; k < n; k++)
        dev->queue_free(queue[k]); /* waits for it */
    nf_together(n, leave, NULL);
    for (int k = 0; k < n; k++) {
        dev->free(dev, x[k]);
        control[k]->close(control[k]);
    }
    dev->close(dev);
    ck_assert_int_eq(nf_living(), 0);
    ck_assert_int_eq(nf_memory().living, 0);
}

static enum dt_status join(struct nf_rank *r)
{
    const struct dt_transport_edge edge = {0, 1, 5};
    struct dt_error *e = &why[r->k];
    int who[NF_RANKS];

    for (int k = 0; k < r->n; k++)
        who[k] = k;
    DT_TRY(dt_transport_open_nccl(control[r->k], &card[r->k], e, &t[r->k]));
    DT_TRY(t[r->k]->comm_new(t[r->k], who, r->n, e, &all[r->k]));
    return t[r->k]->connect(t[r->k], &edge, 1, e);
}

static void join_well(struct nf_rank *r)
{
    ck_assert_msg(join(r) == DT_OK, "%s", why[r->k].message);
}

/* ---- every call of NCCL fails once ---- */

static enum dt_status work(struct nf_rank *r)
{
    struct dt_transport *m;
    struct dt_error *e = &why[r->k];
    struct dt_req *req;
    size_t odd[] = {1, 2, 3};

    DT_TRY(join(r));
    m = t[r->k];
    DT_TRY(m->post_all_reduce(all[r->k], DT_REDUCE_F32, x[r->k], N, queue[r->k], e, NULL));
    DT_TRY(m->post_reduce_scatter(all[r->k], DT_REDUCE_F32, x[r->k], odd, queue[r->k], e, NULL));
    if (r->k == 0)
        DT_TRY(m->post_send(m, 1, 5, x[0], 8, queue[0], e, &req));
    else
        DT_TRY(m->post_recv(m, 0, 5, x[r->k], 8, queue[r->k], e, &req));
    DT_TRY(dt_transport_wait(m, req, 0, "the last message", e));
    DT_TRY(m->memory_new(m, N, e, &known[r->k]));
    return m->memory_share(all[r->k], known[r->k], e);
}

static void work_or_give_up(struct nf_rank *r)
{
    if (work(r) != DT_OK && t[r->k])
        t[r->k]->give_up(t[r->k]);
}

START_TEST(every_call_fails)
{
    uint64_t step = getenv("DT_CHECK_FULL") ? 1 : 5;
    bool failed = true, may_be_well;
    int failures = 0;

    for (uint64_t at = 1 + dt_test_seed() % step; failed; at += step) {
        struct fake_nccl_memory m;

        begin(2, "0.2");
        nf_fail_at(at);
        nf_together(2, work_or_give_up, NULL);
        failed = nf_calls() >= at;
        failures += failed;
        /* a rank does without the library's memory; or the watch asked when all was done */
        m = nf_memory();
        may_be_well = m.living < 2 || m.failed_questions > 0;
        ck_assert_msg(!failed || may_be_well || why[0].status != DT_OK || why[1].status != DT_OK,
                      "call %d", (int)at);
        for (int k = 0; k < 2; k++)
            ck_assert(why[k].status == DT_OK || why[k].message[0]);
        nf_fail_at(0);
        finish(2);
    }
    ck_assert_int_gt(failures, step == 1 ? 30 : 5);
}
END_TEST

/* ---- ranks that do not come ---- */

static double seconds_until_it_goes_on(int k, struct dt_error *err)
{
    uint64_t begin_ns = dt_clock_ns();

    dt_assert_ok(dev->queue_sync(queue[k], err), *err);
    return (double)(dt_clock_ns() - begin_ns) * 1e-9;
}

/* Queues go on by themselves, when an operation has taken as long as one may. */
START_TEST(nobody_sends)
{
    struct dt_error err;
    struct dt_req *req;
    bool done = false;

    begin(2, "0.4");
    nf_together(2, join_well, NULL);
    dt_assert_ok(t[1]->post_recv(t[1], 0, 5, x[1], 8, queue[1], &err, &req), err);
    ck_assert(seconds_until_it_goes_on(1, &err) > 0.2);
    ck_assert_int_eq(t[1]->test(t[1], req, &done, &err), DT_ERR_TIMEOUT);
    dt_assert_has(err.message, "rank 1 waited 0.4 s for an operation among 2 ranks");
    ck_assert_int_eq(t[1]->post_all_reduce(all[1], DT_REDUCE_F32, x[1], N, queue[1], &err, NULL),
                     DT_ERR_TIMEOUT);
    finish(2);
}
END_TEST

/* A rank whose group and whose edge both wait for others, each on a queue of its own. */
static struct dt_device_queue *stuck_twice(void)
{
    struct dt_device_queue *other;
    struct dt_error err;

    dt_assert_ok(dev->queue_new(dev, false, &err, &other), err);
    dt_assert_ok(t[1]->post_recv(t[1], 0, 5, x[1], 8, queue[1], &err, NULL), err);
    dt_assert_ok(t[1]->post_all_reduce(all[1], DT_REDUCE_F32, x[1], N, other, &err, NULL), err);
    return other;
}

/* An abort waits for the card, so it must not come before those of the others that are stuck there. */
static const char *const abort_versions[] = {"21805", "22203", "22809"};

START_TEST(two_are_stuck)
{
    struct dt_device_queue *other;
    struct dt_error err;

    setenv("FAKE_NCCL_VERSION", abort_versions[_i], 1);
    begin(2, "0.4");
    nf_together(2, join_well, NULL);
    other = stuck_twice();
    ck_assert(seconds_until_it_goes_on(1, &err) < 15);
    dt_assert_ok(dev->queue_sync(other, &err), err);
    ck_assert_int_eq(t[1]->state(t[1], &err), DT_ERR_TIMEOUT);
    dev->queue_free(other);
    finish(2);
}
END_TEST

/* The same at the end, before it has been noticed. */
START_TEST(two_are_stuck_at_the_end)
{
    struct dt_device_queue *other;

    setenv("FAKE_NCCL_VERSION", abort_versions[_i], 1);
    begin(2, "2");
    nf_together(2, join_well, NULL);
    other = stuck_twice();
    nf_together(2, leave, NULL);
    t[0] = t[1] = NULL;
    all[0] = all[1] = NULL;
    dev->queue_free(other);
    finish(2);
}
END_TEST

/* NCCL says that a rank is lost: all who wait for it go on, long before the limit. */
START_TEST(a_rank_is_lost)
{
    struct dt_error err;

    begin(3, "300");
    nf_together(3, join_well, NULL);
    for (int k = 0; k < 2; k++)
        dt_assert_ok(t[k]->post_all_reduce(all[k], DT_REDUCE_F32, x[k], N, queue[k], &err, NULL),
                     err);
    nf_break(3);
    for (int k = 0; k < 2; k++) {
        ck_assert(seconds_until_it_goes_on(k, &err) < 60);
        ck_assert_int_eq(
            t[k]->post_all_reduce(all[k], DT_REDUCE_F32, x[k], N, queue[k], &err, NULL),
            DT_ERR_PEER);
        dt_assert_has(err.message, "NCCL: an operation under way: remote error");
    }
    t[2]->give_up(t[2]);
    finish(3);
}
END_TEST

START_TEST(an_edge_that_nobody_named)
{
    struct dt_error err;

    begin(2, "300");
    nf_together(2, join_well, NULL);
    ck_assert_int_eq(t[0]->post_send(t[0], 1, 6, x[0], 8, queue[0], &err, NULL), DT_ERR_INTERNAL);
    dt_assert_has(err.message, "rank 0 sends to rank 1 with tag 6");
    finish(2);
}
END_TEST

/* ---- who may not open it ---- */

static void refused(struct nf_rank *r)
{
    ck_assert_int_eq(dt_transport_open_nccl(control[r->k], &card[r->k], &why[r->k], &t[r->k]),
                     DT_ERR_INPUT);
}

START_TEST(cards_are_not_shared)
{
    begin(3, "300");
    snprintf(card[2].info.id, sizeof(card[2].info.id), "card 1");
    nf_together(3, refused, NULL);
    for (int k = 0; k < 3; k++)
        dt_assert_has(why[k].message, "ranks 1 and 2 share the card card 1");
    finish(3);
}
END_TEST

START_TEST(one_has_no_card)
{
    begin(2, "300");
    card[1].info.id[0] = '\0';
    nf_together(2, refused, NULL);
    for (int k = 0; k < 2; k++)
        dt_assert_has(why[k].message, "by rank 1: fake is no device of NVIDIA's");
    finish(2);
}
END_TEST

/* ---- memory that is registered ---- */

enum { SHARED = 3000 };
static char note[NF_RANKS][160];

static void gather_in_place(struct nf_rank *r)
{
    size_t bytes[] = {SHARED / 2, SHARED / 2};
    struct dt_transport *m;
    struct dt_error err;
    int64_t before, now, max;
    void *p;

    join_well(r);
    m = t[r->k];
    dev->memory_used(dev, &before, &max);
    dt_assert_ok(m->memory_new(m, SHARED, &err, &p), err);
    dev->memory_used(dev, &now, &max);
    ck_assert_int_ge(now, before + SHARED); /* of the other rank as well */
    dt_assert_ok(m->memory_share(all[r->k], p, &err), err);
    dev->zero(queue[r->k], p, SHARED);
    dt_assert_ok(m->post_all_gather(all[r->k], p, bytes, queue[r->k], &err, NULL), err);
    dt_assert_ok(dev->queue_sync(queue[r->k], &err), err);
    memcpy(note[r->k], m->note, sizeof(note[r->k]));
    if (r->k == 0) /* the other rank frees it first */
        m->memory_unshare(all[r->k], p);
    m->memory_free(m, p);
}

START_TEST(gathers_where_memory_lies)
{
    static const struct {
        const char *version, *refuses, *note;
        struct fake_nccl_memory want;
    } is[] = {
        {"22809", "", "", {0, 2, 0, 2, 2, 2, 0, 0, 0, 0, 0}},
        {"22703",
         "",
         "NCCL 2.27.3 gathers by way of thread blocks: 2.28 is the first",
         {0, 2, 0, 2, 2, 0, 0, 0, 0, 0, 0}},
        {"22809",
         "windows",
         "NCCL 2.28.9 registers no buffers: it cannot",
         {0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}},
        {"22809",
         "memory",
         "NCCL 2.28.9 gives no memory for buffers: unhandled cuda error",
         {0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}},
        /* one rank gets none: the other one does not wait for it */
        {"22809", "memory-once", "NCCL 2.28.9 ", {0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}},
    };
    struct fake_nccl_memory seen;

    setenv("FAKE_NCCL_VERSION", is[_i].version, 1);
    setenv("FAKE_NCCL_REFUSES", is[_i].refuses, 1);
    begin(2, "300");
    nf_together(2, gather_in_place, NULL);
    for (int k = 0; k < 2; k++) {
        dt_assert_has(note[k], is[_i].note);
        ck_assert(note[k][0] || !is[_i].note[0]);
        ck_assert(!note[k][0] || is[_i].note[0]);
    }
    seen = nf_memory();
    ck_assert_mem_eq(&seen, &is[_i].want, sizeof(seen));
    finish(2);
}
END_TEST

/* The imitation notices what NCCL would not: it ends the program. */
START_TEST(members_differ)
{
    struct dt_error err;

    begin(2, "300");
    nf_together(2, join_well, NULL);
    for (int k = 0; k < 2; k++)
        dt_assert_ok(t[k]->post_all_reduce(all[k], DT_REDUCE_F32, x[k], (size_t)(8 + k), queue[k],
                                           &err, NULL),
                     err);
    finish(2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("NCCL");
    TCase *c = dt_test_case(s, "NCCL", 300);

    tcase_add_test(c, every_call_fails);
    tcase_add_test(c, nobody_sends);
    tcase_add_loop_test(c, two_are_stuck, 0, 3);
    tcase_add_loop_test(c, two_are_stuck_at_the_end, 0, 3);
    tcase_add_test(c, a_rank_is_lost);
    tcase_add_test(c, an_edge_that_nobody_named);
    tcase_add_test(c, cards_are_not_shared);
    tcase_add_test(c, one_has_no_card);
    tcase_add_loop_test(c, gathers_where_memory_lies, 0, 5);
    tcase_add_test_raise_signal(c, members_differ, SIGABRT);
    return dt_test_run(s);
}
