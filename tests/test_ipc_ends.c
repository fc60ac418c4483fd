/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Memory and events that another process has: who waits for whom to map them, who frees them when, and what is said of
 * them when the other one is lost.  Between processes, on the fake device or the module of cards built for a CPU. */
#include "ipc_fixture.h"

#include "base/clock.h"

#include <stdatomic.h>

enum { LARGE = 9 << 20, FEW = 1000 }; /* of the driver's blocks of 16 MiB one each */

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* Ranks tell each other how far they are, beside the transport. */
static void say_step(struct if_rank *r, uint64_t step)
{
    __atomic_store_n(&if_shared->number[r->k], step, __ATOMIC_RELEASE);
}

static void wait_step(int rank, uint64_t step)
{
    uint64_t begin = dt_clock_ns();

    while (__atomic_load_n(&if_shared->number[rank], __ATOMIC_ACQUIRE) < step) {
        ck_assert_msg(dt_clock_ns() - begin < UINT64_C(10000000000),
                      "rank %d does not come to step %d", rank, (int)step);
        pause_ms(1);
    }
}

static struct dt_req *post(struct if_rank *r, bool sends, int tag, void *p)
{
    struct dt_transport *t = r->t;
    struct dt_req *req;

    dt_assert_ok(sends ? t->post_send(t, 1 - r->k, tag, p, FEW, r->q[0], &r->err, &req)
                       : t->post_recv(t, 1 - r->k, tag, p, FEW, r->q[0], &r->err, &req),
                 r->err);
    return req;
}

static void wait_for(struct if_rank *r, struct dt_req *req)
{
    dt_assert_ok(dt_transport_wait(r->t, req, 0, "a message", &r->err), r->err);
}

static bool is_over(struct if_rank *r, struct dt_req *req)
{
    bool done;

    dt_assert_ok(r->t->test(r->t, req, &done, &r->err), r->err);
    return done;
}

/* ---- mapping holds up nobody ---- */

static const struct dt_device *real; /* what stands behind a device that takes its time */
static atomic_bool holds, held;

static enum dt_status slow_map(const struct dt_device *dev, const struct dt_device_handle *block,
                               struct dt_error *err, void **out)
{
    uint64_t begin = dt_clock_ns();

    (void)dev;
    while (atomic_load(&holds) && dt_clock_ns() - begin < UINT64_C(3000000000)) {
        atomic_store(&held, true);
        pause_ms(1);
    }
    atomic_store(&holds, false);
    return real->ipc_map(real, block, err, out);
}

/* Rank 0 sends into two blocks of rank 1's, one of which it has mapped. */
static void beside_a_mapping(struct if_rank *r)
{
    struct dt_device slow = *r->dev;
    char *old = if_alloc(r, LARGE), *fresh;
    struct dt_req *into_fresh, *into_old;
    uint64_t begin;

    real = r->dev;
    slow.ipc_map = slow_map;
    dt_assert_ok(dt_transport_open_ipc(r->control, &slow, &r->err, &r->t), r->err);
    fresh = if_alloc(r, LARGE); /* not in the block that is looked at when it opens */
    wait_for(r, post(r, r->k == 0, 1, old));
    atomic_store(&holds, r->k == 0);
    into_fresh = post(r, r->k == 0, 2, fresh);
    begin = dt_clock_ns();
    while (r->k == 0 && !atomic_load(&held) && dt_clock_ns() - begin < UINT64_C(5000000000))
        ck_assert(!is_over(r, into_fresh));
    into_old = post(r, r->k == 0, 3, old);
    while (!is_over(r, into_old))
        pause_ms(1);
    if (r->k == 0)
        ck_assert_msg(atomic_load(&held) && atomic_load(&holds),
                      "a message into what is mapped waited for a mapping");
    atomic_store(&holds, false);
    wait_for(r, into_fresh);
    r->t->close(r->t); /* before the device that it has seen goes */
    r->t = NULL;
    r->dev->free(r->dev, old);
    r->dev->free(r->dev, fresh);
}

START_TEST(mapping_holds_up_no_other_message)
{
    if_ranks(2, beside_a_mapping);
    if_all_well(2);
}
END_TEST

/* ---- who frees when ---- */

/* Rank 0 has mapped memory of rank 1's, which ends while rank 0 takes its time. */
static void part_late(struct if_rank *r)
{
    char *p = if_alloc(r, FEW);

    dt_transport_ipc_part_ns = UINT64_C(100000000);
    dt_assert_ok(dt_transport_open_ipc(r->control, r->dev, &r->err, &r->t), r->err);
    wait_for(r, post(r, r->k == 0, 1, p));
    r->dev->free(r->dev, p);
    if (r->k == 0)
        wait_step(1, 1);
    r->t->close(r->t);
    r->t = NULL;
    if (r->k == 1) { /* rank 0 has said nothing: the device must leave what it may have mapped */
        for (int i = 0; i < IF_QUEUES; i++) {
            r->dev->queue_free(r->q[i]);
            r->q[i] = NULL;
        }
        r->dev->close(r->dev);
        dt_assert_ok((if_is_fake() ? dt_fake_device_open : dt_test_device_open)(
                         &(struct dt_device_options){.threads = 1}, &r->err, &r->dev),
                     r->err); /* one for the fixture to close */
        say_step(r, 1);
        wait_step(0, 1);
    } else {
        say_step(r, 1);
    }
}

START_TEST(what_others_may_have_mapped_is_not_freed)
{
    if_ranks(2, part_late);
    if_all_well(2);
}
END_TEST

/* ---- events of others ---- */

static void open_no_event(struct if_rank *r)
{
    char *p = if_alloc(r, FEW);
    struct dt_req *req;

    dt_transport_ipc_part_ns = UINT64_C(100000000);
    dt_assert_ok(dt_transport_open_ipc(r->control, r->dev, &r->err, &r->t), r->err);
    req = post(r, r->k == 1, 1, p);
    if (r->k == 0)
        setenv("DISTTRAIN_FAKE_IPC", "open", 1);
    if_say(r, dt_transport_wait(r->t, req, 0, "a message", &r->err));
    r->dev->free(r->dev, p);
}

/* Nobody knows when the copy is over. */
START_TEST(a_receive_without_its_event_has_failed)
{
    if_ranks(2, open_no_event);
    if_all_well(2);
    ck_assert_int_eq(if_shared->status[1], DT_OK);
    ck_assert_int_eq(if_shared->status[0], DT_ERR_INPUT);
    dt_assert_has(if_shared->text[0], "told to refuse: open");
}
END_TEST

/* What rank 0 hears of events: that nothing is over, then that all is, as a card says of events whose process has ended. */
static enum { TRUE, NOTHING, ALL } told;
static bool opened;

static bool told_done(struct dt_device_event *e)
{
    return told == ALL || (told == TRUE && real->event_done(e));
}

static enum dt_status open_told(const struct dt_device *dev, const struct dt_device_handle *handle,
                                struct dt_error *err, struct dt_device_event **out)
{
    (void)dev;
    opened = told == NOTHING;
    return real->ipc_event_open(real, handle, err, out);
}

/* Rank 1 says that the copy is on its queue, and is lost. */
static void lose_the_copy(struct if_rank *r)
{
    struct dt_device d = *r->dev;
    char *p = if_alloc(r, FEW);
    struct dt_req *req;

    real = r->dev;
    d.event_done = told_done;
    d.ipc_event_open = open_told;
    dt_assert_ok(dt_transport_open_ipc(r->control, &d, &r->err, &r->t), r->err);
    req = post(r, r->k == 1, 1, p);
    if (r->k == 1) {
        wait_for(r, req);
        wait_step(0, 1);
        raise(SIGKILL);
    }
    dt_assert_ok(r->dev->queue_sync(r->q[0], &r->err), r->err); /* so the first test offers it */
    while (!is_over(r, req) && !opened)
        told = NOTHING;
    say_step(r, 1);
    pause_ms(300); /* that rank 1 is lost can be known */
    told = ALL;
    if_say(r, dt_transport_wait(r->t, req, 0, "a message", &r->err));
    told = TRUE;
    r->t->give_up(r->t);
    r->t->close(r->t);
    r->t = NULL;
    r->dev->free(r->dev, p);
}

START_TEST(a_lost_ranks_event_says_nothing)
{
    if_ranks(2, lose_the_copy);
    if_all_well(1);
    ck_assert_int_eq(if_shared->status[0], DT_ERR_PEER);
    dt_assert_has(if_shared->text[0], "rank 1");
}
END_TEST

static enum dt_status late_open(const struct dt_device *dev, const struct dt_device_handle *handle,
                                struct dt_error *err, struct dt_device_event **out)
{
    (void)dev;
    wait_step(1, 1);
    return real->ipc_event_open(real, handle, err, out);
}

/* Rank 1 gives up before rank 0 has looked at the event that it has shown. */
static void look_late(struct if_rank *r)
{
    struct dt_device slow = *r->dev;

    real = r->dev;
    if (r->k == 0)
        slow.ipc_event_open = late_open;
    else
        r->control->limit_s = 0.3;
    if_say(r, dt_transport_open_ipc(r->control, &slow, &r->err, &r->t));
    if (r->k == 1) {
        say_step(r, 1);
        wait_step(0, 1);
    } else {
        say_step(r, 1);
    }
    if (r->t) { /* rank 1 may be seen as lost only later */
        r->t->give_up(r->t);
        r->t->close(r->t);
        r->t = NULL;
    }
}

/* The imitations end a process that asks an event which its maker has freed. */
START_TEST(an_event_that_was_shown_stays)
{
    if_ranks(2, look_late);
    if_all_well(2);
    ck_assert_int_ne(if_shared->status[1], DT_OK);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ipc_ends");
    TCase *c = dt_test_case(s, "memory and events", 60);

    setenv("DISTTRAIN_CUDA_ARENA", "16", 1); /* MiB, as those of the fake device */
    tcase_add_test(c, mapping_holds_up_no_other_message);
    tcase_add_test(c, what_others_may_have_mapped_is_not_freed);
    tcase_add_test(c, an_event_that_was_shown_stays);
    tcase_add_test(c, a_lost_ranks_event_says_nothing);
    if (if_is_fake())
        tcase_add_test(c, a_receive_without_its_event_has_failed);
    return dt_test_run(s);
}
