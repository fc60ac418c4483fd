/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tests over the NCCL of tests (fake_nccl.h), whose streams are queues of the fake device. */
#ifndef DT_TESTS_NCCL_FIXTURE_H
#define DT_TESTS_NCCL_FIXTURE_H

#include "fake_device_impl.h"
#include "fake_nccl.h"
#include "test_util.h"

#include "comm/transport.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The folder of the library, which is built beside the tests. */
static inline const char *nf_dir(void)
{
    static char dir[4096];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 32);

    ck_assert_int_gt(n, 0);
    dir[n] = '\0';
    strcpy(strrchr(dir, '/'), "/modules/NCCL");
    return dir;
}

struct nf_task {
    void (*fn)(void *);
    void *arg;
};

static inline void nf_run(struct dt_device_queue *cpu, const struct dt_device *dev, void *arg)
{
    const struct nf_task *t = arg;

    (void)cpu;
    (void)dev;
    t->fn(t->arg);
}

static inline void nf_submit(void *stream, const char *what, void (*fn)(void *), void *arg)
{
    struct nf_task *t = dt_fake_task(what, nf_run, sizeof(*t));

    *t = (struct nf_task){fn, arg};
    dt_fake_submit(stream, t);
}

/* Nobody's memory of a device. */
static inline void *nf_alloc(size_t bytes)
{
    return dt_fake_block_new(NULL, (bytes + 4095) / 4096 * 4096);
}

static inline void nf_free(void *p)
{
    struct dt_fake_block *b = dt_fake_block_of(p);

    dt_fake_block_retire(b);
    dt_fake_block_drop(b);
}

/* A function of the library, which is the one that the transport finds. */
static inline void nf_find(const char *name, void *fn, size_t size)
{
    char path[4200];
    void *so, *p;

    snprintf(path, sizeof(path), "%s/libnccl.so.2", nf_dir());
    so = dlopen(path, RTLD_NOW);
    p = so ? dlsym(so, name) : NULL;
    ck_assert_msg(p != NULL, "%s: %s", name, dlerror());
    memcpy(fn, &p, size); /* POSIX allows it, C has no cast */
}

static inline int nf_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;

    ck_assert_ptr_nonnull(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Makes it the NCCL of this process.  Before there are threads: one that reads the environment while it is changed
 * may crash (thread sanitizer has one of its own, which does not). */
static inline void nf_use(void)
{
    static const struct fake_nccl_hooks hooks = {dt_fake_alias, nf_submit, nf_alloc, nf_free};
    fake_nccl_hooks_fn *set;

#ifndef __SANITIZE_THREAD__
    ck_assert_int_eq(nf_threads(), 1);
#endif
    setenv("DISTTRAIN_CUDA_LIBS", nf_dir(), 1);
    nf_find("fake_nccl_hooks", &set, sizeof(set));
    set(&hooks);
}

static inline int nf_living(void)
{
    fake_nccl_living_fn *living;

    nf_find("fake_nccl_living", &living, sizeof(living));
    return living();
}

static inline void nf_fail_at(uint64_t n)
{
    fake_nccl_fail_at_fn *fail_at;

    nf_find("fake_nccl_fail_at", &fail_at, sizeof(fail_at));
    fail_at(n);
}

static inline uint64_t nf_calls(void)
{
    fake_nccl_calls_fn *calls;

    nf_find("fake_nccl_calls", &calls, sizeof(calls));
    return calls();
}

static inline struct fake_nccl_memory nf_memory(void)
{
    fake_nccl_memory_fn *f;

    nf_find("fake_nccl_memory", &f, sizeof(f));
    return f();
}

static inline int nf_callers(uint64_t *order)
{
    fake_nccl_callers_fn *f;

    nf_find("fake_nccl_callers", &f, sizeof(f));
    return f(order);
}

static inline void nf_break(int members)
{
    fake_nccl_break_fn *f;

    nf_find("fake_nccl_break", &f, sizeof(f));
    f(members);
}

/* What is collective is done by a thread for each rank. */
enum { NF_RANKS = 8 };
struct nf_rank {
    int k, n;
    void (*fn)(struct nf_rank *r);
    void *arg;
    pthread_t thread;
};

static inline void *nf_thread(void *arg)
{
    struct nf_rank *r = arg;

    r->fn(r);
    return NULL;
}

static inline void nf_together(int n, void (*fn)(struct nf_rank *r), void *arg)
{
    struct nf_rank r[NF_RANKS];

    for (int k = 0; k < n; k++) {
        r[k] = (struct nf_rank){.k = k, .n = n, .fn = fn, .arg = arg};
        ck_assert_int_eq(pthread_create(&r[k].thread, NULL, nf_thread, &r[k]), 0);
    }
    for (int k = 0; k < n; k++)
        pthread_join(r[k].thread, NULL);
}

#endif
