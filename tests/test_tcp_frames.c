/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The transport over TCP told nonsense: a connection that says what no rank says is lost, with a reason.
 * (tests/test_tcp.sh: ranks that are processes.) */
#include "test_util.h"

#include "comm/transport_tcp_impl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct dt_transport *rank[2];

static void *open_rank(void *arg)
{
    struct dt_transport **out = arg;
    struct dt_transport_launch l = {.rank = (int)(out - rank), .size = 2, .address = "127.0.0.1"};
    struct dt_error err = {0};

    snprintf(l.port, sizeof(l.port), "%d", 20000 + (int)(getpid() % 12000));
    if (dt_transport_open_tcp(&l, &err, out) != DT_OK)
        fprintf(stderr, "rank %d: %s\n", l.rank, err.message);
    return NULL;
}

static void open_two(void)
{
    pthread_t other;

    setenv("DISTTRAIN_OP_TIMEOUT_S", "20", 1);
    ck_assert_int_eq(pthread_create(&other, NULL, open_rank, &rank[1]), 0);
    open_rank(&rank[0]);
    pthread_join(other, NULL);
    ck_assert_ptr_nonnull(rank[0]);
    ck_assert_ptr_nonnull(rank[1]);
}

static const struct dt_tcp_frame nonsense[] = {
    {.kind = 0x47455420, .key = 1, .bytes = 16},
    {.kind = DT_TCP_MESSAGE, .key = 1, .bytes = UINT64_MAX},
    {.kind = DT_TCP_MESSAGE, .key = 1, .bytes = UINT64_C(1) << 60},
};

START_TEST(what_is_no_message_ends_the_connection)
{
    struct dt_tcp *s;
    struct dt_error err = {0};
    struct dt_req *r;
    char byte;

    open_two();
    s = rank[1]->impl;
    ck_assert_int_eq(send(s->peer[0].fd, &nonsense[_i], sizeof(nonsense[_i]), MSG_NOSIGNAL),
                     sizeof(nonsense[_i]));
    dt_assert_ok(rank[0]->post_recv(rank[0], 1, 7, &byte, 1, NULL, &err, &r), err);
    ck_assert_int_eq(dt_transport_wait(rank[0], r, 10, "nonsense", &err), DT_ERR_PEER);
    dt_assert_has(err.message, "it sent what is no message");
    rank[0]->close(rank[0]);
    rank[1]->close(rank[1]);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tcp_frames");
    TCase *c = dt_test_case(s, "frames", 60);

    tcase_add_loop_test(c, what_is_no_message_ends_the_connection, 0,
                        (int)(sizeof(nonsense) / sizeof(*nonsense)));
    return dt_test_run(s);
}
