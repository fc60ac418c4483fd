/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * NCCL with one rank on a card, for gpu-check: does the library load, begin, put a sum on a queue in its order, end, and
 * let itself be given up?  77 where there is no card. */
#include "base/clock.h"
#include "comm/nccl.h"
#include "kernels/device_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N = 1 << 20, LIMIT_S = 60 };

static struct dt_error err;
static const struct dt_nccl *f;

static void is_ok(enum dt_status st)
{
    if (st == DT_OK)
        return;
    fprintf(stderr, "nccl_card: %s\n", err.message);
    exit(EXIT_FAILURE);
}

/* What a call has come to, in the end. */
static void is_done(struct dt_nccl_comm *c, int result, const char *what)
{
    const struct timespec pause = {.tv_nsec = 100000};
    uint64_t begin_ns = dt_clock_ns();

    while (result == DT_NCCL_IN_PROGRESS &&
           dt_clock_ns() - begin_ns < LIMIT_S * UINT64_C(1000000000)) {
        nanosleep(&pause, NULL);
        if (f->CommGetAsyncError(c, &result) != DT_NCCL_SUCCESS)
            break;
    }
    if (result == DT_NCCL_SUCCESS)
        return;
    fprintf(stderr, "nccl_card: %s: %s\n", what, f->GetErrorString(result));
    exit(EXIT_FAILURE);
}

static struct dt_nccl_comm *join(void)
{
    struct dt_nccl_config config = dt_nccl_config(f->version);
    struct dt_nccl_comm *c = NULL;
    struct dt_nccl_id id;
    int result;

    is_done(NULL, f->GetUniqueId(&id), "an id");
    result = f->CommInitRankConfig(&c, 1, id, 0, &config);
    is_done(c, result, "a communicator");
    return c;
}

/* A sum in place, behind a copy and in front of another one. */
static void add_up(const struct dt_device *dev, struct dt_device_queue *q, struct dt_nccl_comm *c)
{
    void *host, *card;
    float *x;

    is_ok(dev->host_alloc(dev, N * sizeof(*x), &err, &host));
    is_ok(dev->alloc(dev, N * sizeof(*x), &err, &card));
    x = host;
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    dev->copy(q, card, host, N * sizeof(*x), DT_COPY_TO_DEVICE);
    is_done(c, f->AllReduce(card, card, N, DT_NCCL_FLOAT32, DT_NCCL_SUM, c, dev->queue_stream(q)),
            "an all-reduce");
    dev->call(q, free, malloc(1)); /* a host function between them, as the executor has */
    dev->copy(q, host, card, N * sizeof(*x), DT_COPY_TO_HOST);
    is_ok(dev->queue_sync(q, &err));
    for (int i = 0; i < N; i++)
        if (x[i] != (float)i) {
            fprintf(stderr, "nccl_card: element %d is %g\n", i, (double)x[i]);
            exit(EXIT_FAILURE);
        }
    dev->free(dev, card);
    dev->host_free(dev, host);
}

int main(void)
{
    const struct dt_device_choice choice = {.name = "cuda", .index = 0};
    struct dt_device_queue *q;
    struct dt_nccl_comm *c;
    struct dt_device *dev;

    if (dt_device_open(&choice, NULL, &err, &dev) != DT_OK) {
        printf("skipped: %s\n", err.message);
        return 77;
    }
    is_ok(dev->queue_new(dev, true, &err, &q));
    f = dt_nccl_load(&err);
    if (!f || !dev->queue_stream(q)) {
        fprintf(stderr, "nccl_card: %s\n", f ? "the queue has no stream" : err.message);
        return EXIT_FAILURE;
    }
    c = join();
    add_up(dev, q, c);
    is_done(c, f->CommFinalize(c), "the end of a communicator");
    is_done(NULL, f->CommDestroy(c), "what is left of it");
    c = join();
    is_done(NULL, f->CommAbort(c), "giving one up");
    printf("NCCL %d.%d.%d on %s (%s): one rank, a sum of %d floats\n", f->version / 10000,
           f->version / 100 % 100, f->version % 100, dev->info.name, dev->info.id, N);
    dev->queue_free(q);
    dev->close(dev);
    return EXIT_SUCCESS;
}
