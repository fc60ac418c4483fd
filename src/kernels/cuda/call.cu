/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Functions of the host in a queue's order.
 *
 * CUDA may run host functions of all streams one after another, in any order, and those of ours wait: a collective for
 * other ranks, whose own may stand behind another function there.  So what CUDA calls only wakes a thread of the queue,
 * which does the work, and the stream waits for a word of page-locked memory that the thread writes behind it:
 *
 *   stream   ... | host function: it is its turn | wait until word >= n | ...
 *   thread                 the n-th function  --> word = n
 *
 * A driver whose streams cannot wait for a word calls the function itself. */
#include "kernels/cuda/device.h"

extern "C" {
#include "base/mem.h"
}

struct call {
    struct dt_cuda_caller *caller;
    void (*fn)(void *);
    void *arg;
    uint64_t number;
    struct call *next; /* whose turn it is, or that are free */
};

struct dt_cuda_caller {
    pthread_t thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, rest;
    struct call *first, **last, *free;
    bool busy, ends;
    uint64_t *word, issued; /* the host's memory for copies; the last number */
};

/* What CUDA calls. */
static void wake(void *arg)
{
    struct call *c = (struct call *)arg;
    struct dt_cuda_caller *k = c->caller;

    pthread_mutex_lock(&k->lock);
    c->next = NULL;
    *k->last = c;
    k->last = &c->next;
    pthread_cond_signal(&k->work);
    pthread_mutex_unlock(&k->lock);
}

static void *serve(void *arg)
{
    struct dt_cuda_caller *k = (struct dt_cuda_caller *)arg;

    pthread_mutex_lock(&k->lock);
    for (;;) {
        struct call *c = k->first;

        if (!c && k->ends)
            break;
        if (!c) {
            pthread_cond_wait(&k->work, &k->lock);
            continue;
        }
        k->first = c->next;
        if (!k->first)
            k->last = &k->first;
        k->busy = true;
        pthread_mutex_unlock(&k->lock);
        c->fn(c->arg);
        __atomic_store_n(k->word, c->number, __ATOMIC_RELEASE);
        pthread_mutex_lock(&k->lock);
        c->next = k->free;
        k->free = c;
        k->busy = false;
        pthread_cond_signal(&k->rest);
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

static struct dt_cuda_caller *caller_new(struct dt_device_queue *q)
{
    struct dt_cuda_caller *k = (struct dt_cuda_caller *)dt_calloc(1, sizeof(*k));
    struct dt_error err;
    void *word = NULL;

    if (k && q->dev->host_alloc(q->dev, sizeof(*k->word), &err, &word) == DT_OK) {
        k->word = (uint64_t *)word;
        *k->word = 0;
        k->last = &k->first;
        pthread_mutex_init(&k->lock, NULL);
        pthread_cond_init(&k->work, NULL);
        pthread_cond_init(&k->rest, NULL);
        if (pthread_create(&k->thread, NULL, serve, k) == 0)
            return k;
        pthread_cond_destroy(&k->work);
        pthread_cond_destroy(&k->rest);
        pthread_mutex_destroy(&k->lock);
    }
    if (k)
        q->dev->host_free(q->dev, word);
    dt_free(k);
    return NULL;
}

/* A stream that has failed has not waited. */
void dt_cuda_caller_sync(struct dt_device_queue *q)
{
    struct dt_cuda_caller *k = q->caller;

    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    while (k->first || k->busy)
        pthread_cond_wait(&k->rest, &k->lock);
    pthread_mutex_unlock(&k->lock);
}

void dt_cuda_caller_free(struct dt_device_queue *q)
{
    struct dt_cuda_caller *k = q->caller;

    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->ends = true;
    pthread_cond_signal(&k->work);
    pthread_mutex_unlock(&k->lock);
    pthread_join(k->thread, NULL);
    while (k->free) {
        struct call *c = k->free;

        k->free = c->next;
        dt_free(c);
    }
    pthread_cond_destroy(&k->work);
    pthread_cond_destroy(&k->rest);
    pthread_mutex_destroy(&k->lock);
    q->dev->host_free(q->dev, k->word);
    dt_free(k);
    q->caller = NULL;
}

static struct call *call_new(struct dt_cuda_caller *k)
{
    struct call *c;

    pthread_mutex_lock(&k->lock);
    c = k->free;
    if (c)
        k->free = c->next;
    pthread_mutex_unlock(&k->lock);
    return c ? c : (struct call *)dt_calloc(1, sizeof(*c));
}

void dt_cuda_call(struct dt_device_queue *q, void (*fn)(void *), void *arg)
{
    struct call *c;

    if (!dt_cuda_ready(q))
        return;
    if (!q->dev->info.gates) {
        dt_cuda_ok(q, cudaLaunchHostFunc(q->stream, fn, arg), "a call of the host");
        return;
    }
    if (!q->caller)
        q->caller = caller_new(q);
    c = q->caller ? call_new(q->caller) : NULL;
    if (!c) {
        dt_cuda_fail(q, DT_ERR_NOMEM, "out of memory for a call of the host");
        return;
    }
    c->caller = q->caller;
    c->fn = fn;
    c->arg = arg;
    c->number = q->caller->issued + 1;
    if (!dt_cuda_ok(q, cudaLaunchHostFunc(q->stream, wake, c), "a call of the host")) {
        dt_free(c);
        return;
    }
    q->caller->issued++;
    dt_cuda_wait_word(q, q->caller->word, c->number);
}
