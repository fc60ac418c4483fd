/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The MPI transport against the MPI library's own blocking calls, on the same ranks in the same
 * run, turn by turn.  Without a launcher it starts itself as 2 ranks. */
#include "base/clock.h"
#include "base/quantile.h"
#include "comm/transport.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURNS = 25 };

static struct dt_transport *t;
static struct dt_comm *comm;
static struct dt_error err;
static char *a, *b;

static void must(enum dt_status st)
{
    if (st == DT_OK)
        return;
    fprintf(stderr, "bench_transport: %s\n", err.message);
    exit(1);
}

static void wait_for(struct dt_req *r)
{
    must(dt_transport_wait(t, r, 60, "the benchmark", &err));
}

static void ours_ping(size_t n)
{
    struct dt_req *r;

    if (t->rank == 0) {
        must(t->post_send(t, 1, 1, a, n, NULL, &err, &r));
        wait_for(r);
        must(t->post_recv(t, 1, 1, b, n, NULL, &err, &r));
        wait_for(r);
    } else if (t->rank == 1) {
        must(t->post_recv(t, 0, 1, b, n, NULL, &err, &r));
        wait_for(r);
        must(t->post_send(t, 0, 1, a, n, NULL, &err, &r));
        wait_for(r);
    }
}

static void mpi_ping(size_t n)
{
    if (t->rank == 0) {
        MPI_Send(a, (int)n, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(b, (int)n, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (t->rank == 1) {
        MPI_Recv(b, (int)n, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(a, (int)n, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

static void ours_sum(size_t n)
{
    struct dt_req *r;

    must(t->post_all_reduce(comm, DT_REDUCE_F32, a, n / 4, NULL, &err, &r));
    wait_for(r);
}

static void mpi_sum(size_t n)
{
    MPI_Allreduce(MPI_IN_PLACE, a, (int)(n / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static double turn_us(void (*f)(size_t), size_t n, int times)
{
    uint64_t begin;

    MPI_Barrier(MPI_COMM_WORLD);
    begin = dt_clock_ns();
    for (int k = 0; k < times; k++)
        f(n);
    return (double)(dt_clock_ns() - begin) * 1e-3 / times;
}

static void measure(const char *name, void (*ours)(size_t), void (*theirs)(size_t), size_t n)
{
    double own[TURNS], mpi[TURNS], ratio[TURNS];
    int times = n <= 4096 ? 2000 : n <= 1 << 20 ? 100 : n <= 16 << 20 ? 6 : 2;
    const char *unit = n < 1024 ? "B" : n < 1 << 20 ? "KiB" : "MiB";
    size_t count = n < 1024 ? n : n < 1 << 20 ? n >> 10 : n >> 20;

    memset(a, 0, n); /* sums stay 0 */
    turn_us(ours, n, 2);
    turn_us(theirs, n, 2);
    for (int k = 0; k < TURNS; k++) {
        own[k] = turn_us(ours, n, times);
        mpi[k] = turn_us(theirs, n, times);
        ratio[k] = own[k] / mpi[k];
    }
    dt_sort_numbers(own, TURNS);
    dt_sort_numbers(ratio, TURNS);
    if (t->rank == 0)
        printf("bench: transport_%s_%zu%s %.2f us ratio %.2f of the MPI library's own\n", name,
               count, unit, own[TURNS / 2], ratio[TURNS / 2]);
    fflush(stdout);
}

static void launch(char **argv)
{
    char *args[] = {"mpirun", "-np", "2", "--bind-to", "none", argv[0], NULL};

    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    setenv("OMPI_MCA_btl_base_warn_component_unused", "0", 0);
    fflush(stdout);
    execvp(args[0], args);
    fprintf(stderr, "bench_transport: there is no mpirun: nothing measured\n");
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {8, 4096, 65536, 1 << 20, 16 << 20, 64 << 20};
    int ranks[64];

    (void)argc;
    if (!dt_transport_mpi_launched(NULL)) {
        launch(argv);
        return 0;
    }
    must(dt_transport_open_mpi(&err, &t));
    if (t->size > 64)
        return 1;
    for (int k = 0; k < t->size; k++)
        ranks[k] = k;
    must(t->comm_new(t, ranks, t->size, &err, &comm));
    a = calloc(64 << 20, 1);
    b = calloc(64 << 20, 1);
    if (!a || !b)
        return 1;
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
        measure("ping_pong", ours_ping, mpi_ping, sizes[k]);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
        measure("all_reduce", ours_sum, mpi_sum, sizes[k]);
    free(a);
    free(b);
    t->comm_free(comm);
    t->close(t);
    return 0;
}
