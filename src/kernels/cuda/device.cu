/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A card as a device, and the module that disttrain loads. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/dnn.h"
#include "kernels/cuda/products.h"

extern "C" {
#include "base/mem.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill_kernels(struct dt_kernels *k)
{
    dt_cuda_act(k);
    dt_cuda_attention(k);
    dt_cuda_conv(k);
    dt_cuda_elementwise(k);
    dt_cuda_embedding(k);
    dt_cuda_groupnorm(k);
    dt_cuda_image(k);
    dt_cuda_linear(k);
    dt_cuda_linear_act(k);
    dt_cuda_loss(k);
    dt_cuda_norm(k);
    dt_cuda_optimizer(k);
    dt_cuda_random(k);
    dt_cuda_route(k);
    dt_cuda_rows(k);
}

static void close_device(struct dt_device *dev)
{
    struct dt_cuda *c;

    if (!dev)
        return;
    c = dt_cuda_of(dev);
    dt_cuda_use(dev);
    if (c->memory)
        dt_cuda_memory_close(c);
    dt_cuda_queues_close(c);
    dt_cuda_dnn_plans_free(c->dnn);
    pthread_mutex_destroy(&c->lock);
    if (dev->notes)
        dev->notes->close(dev->notes->arg);
    dt_free(c);
}

/* What the table says about the card.  Kernels are built for compute capability 8.0 and newer ones. */
static enum dt_status describe(struct dt_cuda *c, const struct dt_device_options *opt,
                               struct dt_error *err)
{
    struct dt_device_info *info = &c->dev.info;
    cudaDeviceProp p;
    cudaError_t e = dt_cuda_said(cudaGetDeviceProperties(&p, c->index));

    if (e != cudaSuccess)
        return dt_error_set(err, DT_ERR_INPUT, "cuda:%d cannot be asked about itself: %s", c->index,
                            cudaGetErrorString(e));
    if (p.major < 8)
        return dt_error_set(err, DT_ERR_INPUT,
                            "cuda:%d is a %s of compute capability %d.%d; 8.0 is needed (A100 and "
                            "newer)",
                            c->index, p.name, p.major, p.minor);
    snprintf(info->name, sizeof(info->name), "%.60s", p.name);
    snprintf(info->isa, sizeof(info->isa), "sm_%d%d", p.major, p.minor);
    snprintf(info->id, sizeof(info->id), "%04x:%02x:%02x.0", (unsigned)p.pciDomainID,
             (unsigned)p.pciBusID, (unsigned)p.pciDeviceID);
    info->bf16 = !(opt && opt->no_bf16);
    info->fast = info->bf16 ? DT_BF16 : DT_F32;
    info->threads = 1;
    info->memory_bytes = (int64_t)p.totalGlobalMem;
    c->processors = p.multiProcessorCount;
    c->capability = 10 * p.major + p.minor;
    c->shared = p.sharedMemPerBlockOptin;
    return DT_OK;
}

/* The version of the driver itself, as its kernel module tells it: "NVRM version: NVIDIA UNIX x86_64 Kernel Module
 * 580.65.06 ..."; CUDA's calls know only what it supports. */
static void driver_version(char *out, size_t size)
{
    char line[256] = "", *word, *rest = line;
    FILE *f = fopen("/proc/driver/nvidia/version", "r");

    snprintf(out, size, "unknown");
    if (f && fgets(line, sizeof(line), f))
        while ((word = strtok_r(rest, " \t\n", &rest)) != NULL)
            if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.')) {
                snprintf(out, size, "%.32s", word);
                break;
            }
    if (f)
        fclose(f);
}

static void tell_versions(struct dt_cuda *c)
{
    const struct dt_cuda_lt *lt = dt_cuda_lt_load(NULL);
    size_t v = lt ? lt->GetVersion() : 0, n;
    char driver[40], *out = c->dev.info.versions;
    int cuda = 0;

    driver_version(driver, sizeof(driver));
    dt_cuda_said(cudaDriverGetVersion(&cuda));
    n = (size_t)snprintf(out, sizeof(c->dev.info.versions),
                         "driver %s for CUDA %d.%d, runtime %d.%d", driver, cuda / 1000,
                         cuda % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (v > 0)
        n += (size_t)snprintf(out + n, sizeof(c->dev.info.versions) - n, ", cuBLASLt %zu.%zu.%zu",
                              v / 10000, v / 100 % 100, v % 100);
    if (c->dev.info.library[0])
        snprintf(out + n, sizeof(c->dev.info.versions) - n, ", %s", c->dev.info.library);
}

static void settle(const struct dt_device *dev)
{
    dt_cuda_dnn_settle(dt_cuda_of(dev));
}

/* A card without cuDNN does the same by our own kernels. */
static void find_library(struct dt_cuda *c, const struct dt_device_options *opt)
{
    const char *env = getenv("DISTTRAIN_CUDNN");
    bool at_once = env && strcmp(env, "at-once") == 0;
    int often = at_once ? 1 : env ? atoi(env) : 0;
    struct dt_error why;
    size_t v;

    if ((opt && opt->own_kernels) || (env && strcmp(env, "no") == 0))
        return;
    c->dnn = dt_cuda_dnn_plans_new(often > 0 ? (unsigned)often : DT_KERNEL_SETTLES, at_once, &why);
    if (!c->dnn) {
        dt_warn(opt ? opt->warn : NULL, "%s; our own kernels do convolutions and attention",
                why.message);
        return;
    }
    v = dt_cuda_dnn_version(c->dnn);
    snprintf(c->dev.info.library, sizeof(c->dev.info.library), "cuDNN %zu.%zu.%zu", v / 10000,
             v / 100 % 100, v % 100);
}

static enum dt_status open_device(const struct dt_device_options *opt, struct dt_error *err,
                                  struct dt_device **out)
{
    struct dt_cuda *c = (struct dt_cuda *)dt_calloc(1, sizeof(*c));
    enum dt_status st;

    if (!c)
        return dt_error_nomem(err, "a card");
    pthread_mutex_init(&c->lock, NULL);
    c->index = opt ? opt->index : 0;
    c->dev.abi = DT_DEVICE_ABI;
    c->dev.k = &c->k;
    c->dev.impl = c;
    c->dev.close = close_device;
    c->dev.settle = settle;
    fill_kernels(&c->k);
    dt_cuda_weights(&c->dev);
    dt_cuda_use(&c->dev);
    st = describe(c, opt, err);
    if (st == DT_OK)
        st = dt_cuda_memory_new(c, err);
    if (st == DT_OK)
        st = dt_cuda_queues(c, err);
    if (st != DT_OK) {
        close_device(&c->dev);
        return st;
    }
    dt_cuda_ipc(c);
    find_library(c, opt);
    tell_versions(c);
    c->dev.notes = opt ? opt->notes : NULL;
    *out = &c->dev;
    return DT_OK;
}

static int count(struct dt_error *err)
{
    int n = 0;
    cudaError_t e = dt_cuda_said(cudaGetDeviceCount(&n));

    if (e == cudaSuccess && n > 0)
        return n;
    if (e == cudaErrorInsufficientDriver)
        dt_error_set(err, DT_ERR_INPUT,
                     "cuda: there is no NVIDIA driver, or one too old for CUDA %d.%d",
                     CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else
        dt_error_set(err, DT_ERR_INPUT, "cuda: %s",
                     e == cudaSuccess ? "there is no card" : cudaGetErrorString(e));
    return 0;
}

#ifndef DT_CUDA_MODULE_NAME
#define DT_CUDA_MODULE_NAME "cuda"
#endif

extern "C" {
dt_device_module_fn dt_device_module;

__attribute__((visibility("default"))) const struct dt_device_module *dt_device_module(uint32_t abi)
{
    static const struct dt_device_module module = {DT_DEVICE_ABI, DT_CUDA_MODULE_NAME, count,
                                                   open_device};

    return abi == DT_DEVICE_ABI ? &module : NULL;
}
}
