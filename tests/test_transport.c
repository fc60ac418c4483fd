/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The suite over ranks that are threads; started by an MPI launcher, the suite over MPI. */
#include "test_util.h"
#include "transport_suite.h"

#include "base/mem.h"
#include "comm/transport_impl.h"

#include <pthread.h>
#include <stdio.h>

struct thread {
    struct dt_transport *t;
    uint64_t seed;
    int rounds;
    struct verdict v;
};

static void *rank_main(void *arg)
{
    struct thread *x = arg;

    transport_suite(x->t, x->seed, x->rounds, &x->v);
    x->t->close(x->t);
    return NULL;
}

static void over_threads(int n, int rounds)
{
    struct dt_transport *t[8];
    struct thread x[8];
    pthread_t id[8];
    struct dt_error err = {0};
    uint64_t seed = dt_test_seed();

    dt_assert_ok(dt_transport_open_threads(n, &err, t), err);
    for (int k = 0; k < n; k++) {
        x[k] = (struct thread){.t = t[k], .seed = seed, .rounds = rounds};
        ck_assert_int_eq(pthread_create(&id[k], NULL, rank_main, &x[k]), 0);
    }
    for (int k = 0; k < n; k++)
        pthread_join(id[k], NULL);
    for (int k = 0; k < n; k++)
        ck_assert_msg(x[k].v.text[0] == '\0', "%s (DT_TEST_SEED=%" PRIu64 ")", x[k].v.text, seed);
}

START_TEST(ranks_as_threads)
{
    static const int sizes[] = {1, 2, 3, 4, 7};

    over_threads(sizes[_i], 6);
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

static int under_check(void)
{
    Suite *s = suite_create("transport");
    TCase *c = tcase_create("threads");
    SRunner *sr;
    int failed;

    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, ranks_as_threads, 0, 5);
    tcase_add_test(c, one_rank_alone);
    tcase_add_test(c, out_of_memory);
    tcase_add_test(c, limit_of_the_environment);
    suite_add_tcase(s, c);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}

/* As one rank of several: no Check, which forks. */
static int over_mpi(void)
{
    const char *s = getenv("SUITE_ROUNDS"), *piece = getenv("SUITE_PIECE_BYTES");
    struct dt_error err = {0};
    struct dt_transport *t;
    struct verdict v;

    if (piece) /* long messages in short pieces */
        dt_transport_mpi_piece_bytes = strtoull(piece, NULL, 10);
    if (dt_transport_open_mpi(&err, &t) != DT_OK) {
        fprintf(stderr, "test_transport: %s\n", err.message);
        return 1;
    }
    if (!transport_suite(t, dt_test_seed(), s ? atoi(s) : 6, &v)) {
        fprintf(stderr, "test_transport: %s (DT_TEST_SEED=%" PRIu64 ")\n", v.text, dt_test_seed());
        t->abort(t, 1);
    }
    if (t->rank == 0)
        printf("%d checks over MPI, %d ranks, %d of them on %s\n", transport_checks_n, t->size,
               t->local_size, t->host);
    t->close(t);
    return 0;
}

int main(void)
{
    if (dt_transport_mpi_launched(NULL))
        return over_mpi();
    return under_check();
}
