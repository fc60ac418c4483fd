/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "exec/train/prefetch_decode.h"

#include "exec/data/loader.h"
#include "exec/data/shard.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS_MAX = 256 };

struct work {
    const struct dt_loader *loader;
    struct dt_feed_fetch *f;
    int n;
    atomic_int next;
};

static void *decode(void *arg)
{
    struct work *w = arg;
    struct dt_shard_sample scratch = {0};

    for (int k; (k = atomic_fetch_add(&w->next, 1)) < w->n;)
        dt_loader_document(w->loader, w->f[k].place, &scratch, &w->f[k].doc);
    dt_shard_sample_free(&scratch);
    return NULL;
}

/* One by one a thread each: an image takes far longer than a thread takes to begin. */
enum dt_status dt_prefetch_decode(const struct dt_loader *l, int threads, struct dt_feed_fetch *f,
                                  int n, struct dt_error *err)
{
    struct work w = {.loader = l, .f = f, .n = n};
    pthread_t thread[THREADS_MAX];
    int others = (threads < n ? threads : n) - 1, begun = 0;

    others = others < THREADS_MAX ? others : THREADS_MAX;
    while (begun < others && pthread_create(&thread[begun], NULL, decode, &w) == 0)
        begun++;
    decode(&w);
    while (begun > 0)
        pthread_join(thread[--begun], NULL);
    for (int k = 0; k < n; k++)
        if (f[k].doc.status != DT_OK && f[k].doc.status != DT_ERR_INPUT)
            return dt_error_set(err, f[k].doc.status, "%s", f[k].doc.why);
    return DT_OK;
}
