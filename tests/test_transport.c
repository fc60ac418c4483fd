/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The suite over ranks that are threads; started by a launcher, the suite over MPI or TCP. */
#include "config.h"

#include "test_util.h"
#include "transport_suite.h"

#include "base/mem.h"
#include "comm/cores.h"
#include "comm/transport_impl.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

struct thread {
    struct dt_transport *t;
    uint64_t seed;
    int rounds;
    bool staged;
    const struct dt_device *device; /* where ranks share one */
    struct verdict v;
};

static void *rank_main(void *arg)
{
    struct thread *x = arg;

    transport_suite(x->t, x->seed, x->rounds, &x->v);
    x->t->close(x->t);
    return NULL;
}

/* The suite over the memory of a device: the CPU's, or (`staged`) that of a device which says that the
 * host may not touch it. */
static void *rank_on_device(void *arg)
{
    const struct dt_device_options o = {.threads = 1};
    struct thread *x = arg;
    struct dt_device *cpu, dev;
    struct dt_transport *t;
    struct dt_error err = {0};

    dt_assert_ok(dt_device_open_cpu(&o, &err, &cpu), err);
    dev = *cpu;
    dev.info.host_memory = !x->staged;
    dt_assert_ok(dev.queue_new(&dev, false, &err, &suite_queue[x->t->rank]), err);
    dt_assert_ok(dt_transport_open_staged(x->t, &dev, &err, &t), err);
    ck_assert_int_eq(dt_transport_open_staged(t, &dev, &err, &t), DT_ERR_INTERNAL);
    transport_suite(t, x->seed, x->rounds, &x->v);
    dev.queue_free(suite_queue[t->rank]);
    t->close(t);
    x->t->close(x->t);
    cpu->close(cpu);
    return NULL;
}

/* What a rank's lanes own is counted while it posts: what the transport keeps until it is closed,
 * after the lanes, is not theirs. */
static void *rank_with_owner(void *arg)
{
    struct thread *x = arg;
    const struct dt_device *dev = x->device;
    struct dt_device_memory_owner mine = {0};

    dev->memory_for(dev, &mine);
    transport_suite(x->t, x->seed, x->rounds, &x->v);
    dev->memory_for(dev, NULL);
    ck_assert_int_eq(mine.now_bytes, 0);
    x->t->close(x->t);
    ck_assert_int_eq(mine.now_bytes, 0);
    return NULL;
}

/* device NULL: over host memory. */
static void over_threads(int n, int rounds, const struct dt_device *device,
                         void *main_of_rank(void *), bool staged)
{
    const struct dt_device *devices[8];
    struct dt_transport *t[8];
    struct thread x[8];
    pthread_t id[8];
    struct dt_error err = {0};
    uint64_t seed = dt_test_seed();

    if (device) {
        for (int k = 0; k < n; k++)
            devices[k] = device;
        dt_assert_ok(dt_transport_open_threads_on(n, devices, &err, t), err);
    } else {
        dt_assert_ok(dt_transport_open_threads(n, &err, t), err);
    }
    for (int k = 0; k < n; k++) {
        x[k] = (struct thread){
            .t = t[k], .seed = seed, .rounds = rounds, .staged = staged, .device = device};
        ck_assert_int_eq(pthread_create(&id[k], NULL, main_of_rank, &x[k]), 0);
    }
    for (int k = 0; k < n; k++)
        pthread_join(id[k], NULL);
    for (int k = 0; k < n; k++)
        ck_assert_msg(x[k].v.text[0] == '\0', "%s (DT_TEST_SEED=%" PRIu64 ")", x[k].v.text, seed);
}

START_TEST(ranks_as_threads)
{
    static const int sizes[] = {1, 2, 3, 4, 7};

    over_threads(sizes[_i], 6, NULL, rank_main, false);
}
END_TEST

START_TEST(ranks_on_a_device)
{
    static const int sizes[] = {1, 2, 3, 7};

    over_threads(sizes[_i / 2], 3, NULL, rank_on_device, _i % 2);
}
END_TEST

/* Ranks that share a device, in its memory. */
START_TEST(ranks_on_one_device)
{
    static const int sizes[] = {1, 2, 3, 7};
    const struct dt_device_options o = {.threads = 1};
    struct dt_device *cpu;
    struct dt_error err = {0};
    int64_t now, max;

    dt_assert_ok(dt_device_open_cpu(&o, &err, &cpu), err);
    for (int k = 0; k < sizes[_i]; k++)
        dt_assert_ok(cpu->queue_new(cpu, false, &err, &suite_queue[k]), err);
    over_threads(sizes[_i], 3, cpu, rank_with_owner, false);
    for (int k = 0; k < sizes[_i]; k++)
        cpu->queue_free(suite_queue[k]);
    cpu->memory_used(cpu, &now, &max);
    ck_assert_int_eq(now, 0);
    ck_assert(sizes[_i] == 1 || max > 0); /* parts to be summed lie on the device */
    cpu->close(cpu);
}
END_TEST

START_TEST(one_rank_alone)
{
    struct dt_error err = {0};
    struct dt_transport *t;
    struct verdict v;

    dt_assert_ok(dt_transport_open_self(&err, &t), err);
    ck_assert_str_eq(t->name, "self");
    ck_assert_int_eq(t->size, 1);
    ck_assert_msg(transport_suite(t, dt_test_seed(), 6, &v), "%s", v.text);
    t->close(t);
}
END_TEST

START_TEST(out_of_memory)
{
    struct dt_transport *t[3];
    struct dt_error err = {0};

    for (uint64_t k = 1; k < 100; k++) {
        enum dt_status st;

        dt_mem_fail_at(k);
        st = dt_transport_open_threads(3, &err, t);
        dt_mem_fail_at(0);
        if (st == DT_OK) {
            ck_assert_uint_gt(k, 3);
            for (int i = 0; i < 3; i++)
                t[i]->close(t[i]);
            return;
        }
        ck_assert_int_eq(st, DT_ERR_NOMEM);
    }
    ck_abort_msg("opening never succeeded");
}
END_TEST

START_TEST(limit_of_the_environment)
{
    struct dt_transport *t;
    struct dt_error err = {0};

    setenv("DISTTRAIN_OP_TIMEOUT_S", "2.5", 1);
    dt_assert_ok(dt_transport_open_self(&err, &t), err);
    ck_assert_double_eq(t->limit_s, 2.5);
    t->close(t);
    setenv("DISTTRAIN_OP_TIMEOUT_S", "soon", 1);
    ck_assert_int_eq(dt_transport_open_self(&err, &t), DT_ERR_USAGE);
    dt_assert_has(err.message, "\"soon\"");
    unsetenv("DISTTRAIN_OP_TIMEOUT_S");
}
END_TEST

/* Ranks are crowded where they have fewer cores than there are of them, however many the host has. */
START_TEST(crowded_is_more_ranks_than_cores)
{
    struct dt_cores here;
    int cores = dt_cores_here(&here), first = 0;
    struct dt_transport *t[64];
    struct dt_error err = {0};
    cpu_set_t all, one;

    if (cores > 63)
        return;
    for (int n = 1; n <= cores + 1; n++) {
        dt_assert_ok(dt_transport_open_threads(n, &err, t), err);
        for (int k = 0; k < n; k++) {
            ck_assert_int_eq(dt_transport_crowded(t[k]), n > cores);
            t[k]->close(t[k]);
        }
    }
    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    dt_assert_ok(dt_transport_open_threads(2, &err, t), err);
    for (int k = 0; k < 2; k++) {
        ck_assert(dt_transport_crowded(t[k]));
        ck_assert_int_eq(dt_cores_take(t[k]), 1);
        t[k]->close(t[k]);
    }
}
END_TEST

/* Ranks share cores if they may use just the same ones. */
START_TEST(sharers_have_the_same_cores)
{
    const struct dt_cores ranks[] = {{{3}}, {{3}}, {{12}}, {{3}}, {{1}}};
    static const int should[][2] = {{0, 3}, {1, 3}, {0, 1}, {2, 3}, {0, 1}};
    int sharer, sharers;

    dt_cores_sharers(ranks, 5, _i, &sharer, &sharers);
    ck_assert_int_eq(sharer, should[_i][0]);
    ck_assert_int_eq(sharers, should[_i][1]);
}
END_TEST

static int under_check(void)
{
    Suite *s = suite_create("transport");
    TCase *c = dt_test_case(s, "threads", 120);

    tcase_add_loop_test(c, ranks_as_threads, 0, 5);
    tcase_add_loop_test(c, ranks_on_a_device, 0, 8);
    tcase_add_loop_test(c, ranks_on_one_device, 0, 4);
    tcase_add_test(c, one_rank_alone);
    tcase_add_test(c, out_of_memory);
    tcase_add_test(c, limit_of_the_environment);
    tcase_add_test(c, crowded_is_more_ranks_than_cores);
    tcase_add_loop_test(c, sharers_have_the_same_cores, 0, 5);
    return dt_test_run(s);
}

/* As one rank of several: no Check, which forks. */
static int over_launched(void)
{
    const char *s = getenv("SUITE_ROUNDS"), *piece = getenv("SUITE_PIECE_BYTES");
    struct dt_error err = {0};
    struct dt_transport *t;
    struct verdict v;

    if (piece) /* long messages in short pieces */
        dt_transport_mpi_piece_bytes = strtoull(piece, NULL, 10);
    if (dt_transport_open_launched(&err, &t) != DT_OK) {
        fprintf(stderr, "test_transport: %s\n", err.message);
        return 1;
    }
    if (!transport_suite(t, dt_test_seed(), s ? atoi(s) : 6, &v)) {
        fprintf(stderr, "test_transport: %s (DT_TEST_SEED=%" PRIu64 ")\n", v.text, dt_test_seed());
        t->abort(t, 1);
    }
    if (t->rank == 0)
        printf("%d checks over %s, %d ranks, %d of them on %s\n", transport_checks_n, t->name,
               t->size, t->local_size, t->host);
    t->close(t);
    return 0;
}

int main(void)
{
    if (dt_transport_mpi_launched(NULL) || dt_transport_tcp_launched(NULL))
        return over_launched();
    return under_check();
}
