/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * A module of devices for tests, built in several ways:
 *
 *   (nothing)            two devices, which can be listed; FAKE_MODULE_DEVICES=N says how many there are
 *   (FAKE_MODULE_ASKED=PATH: see leave_word)
 *   FAKE_MODULE_OLD      speaks the version before this one
 *   FAKE_MODULE_OTHER    says that it is the module of others */
#include "kernels/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef FAKE_MODULE_OLD
#define ABI (DT_DEVICE_ABI - 1)
#else
#define ABI DT_DEVICE_ABI
#endif
#ifdef FAKE_MODULE_OTHER
#define NAME "other"
#else
#define NAME "cuda"
#endif

dt_device_module_fn dt_device_module;

static enum dt_status fail(struct dt_error *err, const char *text, int n)
{
    if (err) {
        err->status = DT_ERR_INPUT;
        snprintf(err->message, sizeof(err->message), text, n);
    }
    return DT_ERR_INPUT;
}

static int count(struct dt_error *err)
{
    const char *n = getenv("FAKE_MODULE_DEVICES");

    if (n && strcmp(n, "0") == 0)
        fail(err, "cuda: the driver is too old", 0);
    return n ? atoi(n) : 2;
}

static void close_device(struct dt_device *dev)
{
    free(dev);
}

/* Leaves a file PATH.INDEX behind, and gives the other rank of two 20 s to leave its own. */
static void leave_word(const char *path, int index)
{
    const struct timespec pause = {0, 10000000};
    char mine[1024], others[1024];
    FILE *f;

    snprintf(mine, sizeof(mine), "%s.%d", path, index);
    snprintf(others, sizeof(others), "%s.%d", path, 1 - index);
    f = fopen(mine, "w");
    if (f)
        fclose(f);
    for (int i = 0; i < 2000 && access(others, F_OK) != 0; i++)
        nanosleep(&pause, NULL);
}

/* Enough of a device to be listed.  A caller that wants to compute says how many threads it may use. */
static enum dt_status open_device(const struct dt_device_options *opt, struct dt_error *err,
                                  struct dt_device **out)
{
    struct dt_device *d;

    if (opt->threads != 0 && getenv("FAKE_MODULE_ASKED"))
        leave_word(getenv("FAKE_MODULE_ASKED"), opt->index);
    if (opt->threads != 0)
        return fail(err, "the fake module was asked for device %d", opt->index);
    d = calloc(1, sizeof(*d));
    if (!d)
        return fail(err, "no memory", 0);
    d->abi = ABI;
    snprintf(d->info.name, sizeof(d->info.name), "Fake GPU %d", opt->index);
    snprintf(d->info.isa, sizeof(d->info.isa), "sm_00");
    d->info.fast = DT_BF16;
    d->info.bf16 = true;
    d->info.memory_bytes = (int64_t)80 << 30;
    d->close = close_device;
    *out = d;
    return DT_OK;
}

static const struct dt_device_module module = {ABI, NAME, count, open_device};

const struct dt_device_module *dt_device_module(uint32_t abi)
{
    return abi == ABI ? &module : NULL;
}
