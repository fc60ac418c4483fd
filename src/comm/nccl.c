/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "comm/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnccl.so.2"

static struct dt_nccl nccl;
static struct dt_error why;
static bool there;

/* The functions of one that is loaded; it stays loaded either way. */
static enum dt_status take(void *so, struct dt_error *err)
{
    void *p;

#define X(type, name, args)                                                                        \
    p = dlsym(so, "nccl" #name);                                                                   \
    if (!p)                                                                                        \
        return dt_error_set(err, DT_ERR_INPUT, "%s lacks nccl%s: version 2.18 is needed", LIBRARY, \
                            #name);                                                                \
    memcpy(&nccl.name, &p, sizeof(p)); /* POSIX allows it, C has no cast */
    DT_NCCL_FUNCTIONS(X)
#undef X
#define X(type, name, args)                                                                        \
    p = dlsym(so, "nccl" #name);                                                                   \
    memcpy(&nccl.name, &p, sizeof(p));
    DT_NCCL_LATER_FUNCTIONS(X)
#undef X
    if (nccl.GetVersion(&nccl.version) != DT_NCCL_SUCCESS || nccl.version < DT_NCCL_VERSION_2_18)
        return dt_error_set(err, DT_ERR_INPUT, "%s is of version %d.%d; 2.18 is needed", LIBRARY,
                            nccl.version / 10000, nccl.version / 100 % 100);
    return DT_OK;
}

struct dt_nccl_config dt_nccl_config(int version)
{
    struct dt_nccl_config c = {.size = sizeof(c),
                               .magic = DT_NCCL_MAGIC,
                               .version = DT_NCCL_VERSION_2_28,
                               .cga_cluster_size = DT_NCCL_UNDEFINED,
                               .min_ctas = DT_NCCL_UNDEFINED,
                               .max_ctas = DT_NCCL_UNDEFINED,
                               .split_share = DT_NCCL_UNDEFINED,
                               .traffic_class = DT_NCCL_UNDEFINED,
                               .collnet_enable = DT_NCCL_UNDEFINED,
                               .cta_policy = DT_NCCL_UNDEFINED,
                               .shrink_share = DT_NCCL_UNDEFINED,
                               .nvls_ctas = DT_NCCL_UNDEFINED,
                               .channels_per_net_peer = DT_NCCL_UNDEFINED,
                               .nvlink_centric_sched = DT_NCCL_UNDEFINED};

    if (version < DT_NCCL_VERSION_2_28) {
        c.version = DT_NCCL_VERSION_2_18;
        c.size = offsetof(struct dt_nccl_config, comm_name);
    }
    return c;
}

void dt_nccl_environment(void)
{
    /* all connections of a group are made when it is: a post must not wait for the others */
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

void dt_nccl_deterministic(void)
{
    /* sums in the switch (H100) are not in the same order in every run (nccl#1497) */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
}

static void *open_library(void)
{
    const char *env = getenv("DISTTRAIN_CUDA_LIBS");
    char path[4096];

    while (env && *env) {
        size_t n = strcspn(env, ":");
        int len = snprintf(path, sizeof(path), "%.*s/%s", (int)n, env, LIBRARY);
        void *so = n > 0 && len < (int)sizeof(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

        if (so)
            return so;
        env += n + (env[n] == ':');
    }
    return dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static void load(void)
{
    void *so = open_library();

    if (so)
        there = take(so, &why) == DT_OK;
    else
        dt_error_set(&why, DT_ERR_INPUT,
                     "%s cannot be loaded (%s); DISTTRAIN_CUDA_LIBS names folders to look in",
                     LIBRARY, dlerror());
}

const struct dt_nccl *dt_nccl_load(struct dt_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    if (!there && err)
        *err = why;
    return there ? &nccl : NULL;
}
