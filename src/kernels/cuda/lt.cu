/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Loading cuBLASLt and cuDNN: from the folders of DISTTRAIN_CUDA_LIBS (separated by ':'), else where the system finds
 * them. */
#include "kernels/cuda/dnn.h"
#include "kernels/cuda/products.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dt_cuda_lt lt;
static struct dt_cuda_dnn dnn;
static struct dt_error why, dnn_why;
static bool there, dnn_there;

static void *open_library(const char *name)
{
    const char *env = getenv("DISTTRAIN_CUDA_LIBS");
    char path[4096];

    while (env && *env) {
        size_t n = strcspn(env, ":");
        int len = snprintf(path, sizeof(path), "%.*s/%s", (int)n, env, name);
        void *so = n > 0 && len < (int)sizeof(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

        if (so)
            return so;
        env += n + (env[n] == ':');
    }
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

static void load(void)
{
    char name[64];
    void *so, *p;

    snprintf(name, sizeof(name), "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    so = open_library(name);
    if (!so) {
        dt_error_set(&why, DT_ERR_INPUT,
                     "cuda: %s cannot be loaded (%s); DISTTRAIN_CUDA_LIBS names folders to look in",
                     name, dlerror());
        return;
    }
#define X(fn)                                                                                      \
    p = dlsym(so, "cublasLt" #fn);                                                                 \
    if (!p) {                                                                                      \
        dt_error_set(&why, DT_ERR_INPUT, "cuda: %s lacks cublasLt%s", name, #fn);                  \
        return;                                                                                    \
    }                                                                                              \
    memcpy(&lt.fn, &p, sizeof(p)); /* POSIX allows it, C has no cast */
    DT_CUDA_LT_FUNCTIONS(X)
#undef X
    there = true;
}

const struct dt_cuda_lt *dt_cuda_lt_load(struct dt_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    if (!there && err)
        *err = why;
    return there ? &lt : NULL;
}

#ifdef DT_WITHOUT_CUDNN
static void load_dnn(void)
{
    dt_error_set(&dnn_why, DT_ERR_INPUT, "cuda: built without cuDNN");
}
#else
/* The first version that clears the sums of dq by itself (cudnn-frontend, scaled_dot_product_flash_attention.h). */
enum { DNN_FIRST = 90600 };

static void load_dnn(void)
{
    char name[64];
    void *so, *p;

    snprintf(name, sizeof(name), "libcudnn.so.%d", DT_DNN_MAJOR);
    so = open_library(name);
    if (!so) {
        dt_error_set(&dnn_why, DT_ERR_INPUT, "cuda: %s cannot be loaded (%s)", name, dlerror());
        return;
    }
#define X(fn, result, args)                                                                        \
    p = dlsym(so, "cudnn" #fn);                                                                    \
    if (!p) {                                                                                      \
        dt_error_set(&dnn_why, DT_ERR_INPUT, "cuda: %s lacks cudnn%s", name, #fn);                 \
        return;                                                                                    \
    }                                                                                              \
    memcpy(&dnn.fn, &p, sizeof(p));
    DT_CUDA_DNN_FUNCTIONS(X)
#undef X
    if (dnn.GetVersion() < DNN_FIRST)
        dt_error_set(&dnn_why, DT_ERR_INPUT, "cuda: cuDNN %zu is older than %d", dnn.GetVersion(),
                     (int)DNN_FIRST);
    else
        dnn_there = true;
}
#endif

const struct dt_cuda_dnn *dt_cuda_dnn_load(struct dt_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load_dnn);
    if (!dnn_there && err)
        *err = dnn_why;
    return dnn_there ? &dnn : NULL;
}
