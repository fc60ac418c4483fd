/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "kernels/device_open.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef DT_BUILD_MODULES
#define DT_BUILD_MODULES "."
#endif
#ifndef DT_PKGLIBEXECDIR
#define DT_PKGLIBEXECDIR "/usr/local/libexec/disttrain"
#endif

void dt_device_environment(void)
{
    /* Queues that wait for other ranks must not have others behind them, as streams have that share a connection (8
     * by default, of 32); and a kernel must not be loaded when it is first launched, since that waits for kernels which
     * may wait for other ranks. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

/* In the order in which "auto" tries them. */
static const char *const modules[] = {"cuda"};
enum { MODULES = sizeof(modules) / sizeof(modules[0]), PATH = 4096 };

/* ---- finding a module ---- */

static bool is_there(const char *dir, size_t n, const char *name, char path[PATH])
{
    return snprintf(path, PATH, "%.*s/disttrain-%s.so", (int)n, dir, name) < PATH &&
           access(path, F_OK) == 0;
}

static bool find_file(const char *name, char path[PATH])
{
    const char *env = getenv("DISTTRAIN_MODULES");

    while (env && *env) {
        size_t n = strcspn(env, ":");

        if (n > 0 && is_there(env, n, name, path))
            return true;
        env += n + (env[n] == ':');
    }
    return is_there(DT_BUILD_MODULES, strlen(DT_BUILD_MODULES), name, path) ||
           is_there(DT_PKGLIBEXECDIR, strlen(DT_PKGLIBEXECDIR), name, path);
}

static enum dt_status not_found(const char *name, struct dt_error *err)
{
    const char *env = getenv("DISTTRAIN_MODULES");

    return dt_error_set(err, DT_ERR_INPUT,
                        "%s: there is no disttrain-%s.so in %s%s%s or %s; DISTTRAIN_MODULES names "
                        "further folders",
                        name, name, env && *env ? env : "", env && *env ? ", " : "",
                        DT_BUILD_MODULES, DT_PKGLIBEXECDIR);
}

/* ---- loading it ---- */

/* The module stays loaded: devices point into it. */
static enum dt_status load(const char *name, const char *path, struct dt_error *err,
                           const struct dt_device_module **out)
{
    const struct dt_device_module *m;
    dt_device_module_fn *entry;
    void *symbol, *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (!so)
        return dt_error_set(err, DT_ERR_INPUT, "%s: %s cannot be loaded: %s", name, path,
                            dlerror());
    symbol = dlsym(so, DT_DEVICE_MODULE_SYMBOL);
    if (!symbol) {
        dlclose(so);
        return dt_error_set(err, DT_ERR_INPUT, "%s: %s is no module of disttrain: it lacks %s",
                            name, path, DT_DEVICE_MODULE_SYMBOL);
    }
    memcpy(&entry, &symbol, sizeof(entry)); /* POSIX allows it, C has no cast */
    m = entry(DT_DEVICE_ABI);
    if (!m || m->abi != DT_DEVICE_ABI) {
        dlclose(so);
        return dt_error_set(err, DT_ERR_INPUT,
                            "%s: %s was built for another version of the device table than %u; "
                            "build program and module from the same source",
                            name, path, DT_DEVICE_ABI);
    }
    if (strcmp(m->name, name) != 0)
        return dt_error_set(err, DT_ERR_INPUT, "%s: %s is the module of %s devices", name, path,
                            m->name);
    *out = m;
    return DT_OK;
}

static enum dt_status open_index(const struct dt_device_module *m, int index,
                                 const struct dt_device_options *opt, struct dt_error *err,
                                 struct dt_device **out)
{
    struct dt_device_options o = {0};
    struct dt_device *d;

    if (opt)
        o = *opt;
    o.index = index;
    DT_TRY(m->open(&o, err, &d));
    if (d->abi != DT_DEVICE_ABI) {
        d->close(d);
        return dt_error_set(err, DT_ERR_INTERNAL, "%s: a device of another version than %u",
                            m->name, DT_DEVICE_ABI);
    }
    *out = d;
    return DT_OK;
}

/* ---- one device ---- */

/* *n: devices of the module; 0 with `err` filled. */
static enum dt_status open_module(const struct dt_device_module *m,
                                  const struct dt_device_choice *c,
                                  const struct dt_device_options *opt, struct dt_error *err, int *n,
                                  struct dt_device **out)
{
    int index;

    if (err)
        err->message[0] = '\0';
    *n = m->count(err);
    if (*n <= 0)
        return err && err->message[0]
                   ? DT_ERR_INPUT
                   : dt_error_set(err, DT_ERR_INPUT, "%s: there is no device", m->name);
    index = c->index >= 0 ? c->index : c->local_rank % *n;
    if (index >= *n)
        return dt_error_set(err, DT_ERR_INPUT, "%s:%d: this host has %d, counted from 0", m->name,
                            index, *n);
    return open_index(m, index, opt, err, out);
}

/* The first module that has devices; *out stays where none has. */
static enum dt_status open_any(const struct dt_device_choice *c,
                               const struct dt_device_options *opt, struct dt_error *err,
                               struct dt_device **out)
{
    char path[PATH];

    for (int i = 0; i < MODULES; i++) {
        const struct dt_device_module *m;
        struct dt_error none;
        int n;

        if (!find_file(modules[i], path))
            continue;
        DT_TRY(load(modules[i], path, err, &m));
        if (m->count(&none) > 0)
            return open_module(m, c, opt, err, &n, out);
    }
    return DT_OK;
}

static enum dt_status open_chosen(const struct dt_device_choice *c,
                                  const struct dt_device_options *opt, struct dt_error *err,
                                  struct dt_device **out)
{
    const struct dt_device_module *m;
    struct dt_device *d = NULL;
    char path[PATH];
    int n;

    if (strcmp(c->name, "auto") == 0) {
        DT_TRY(open_any(c, opt, err, &d));
        if (d) {
            *out = d;
            return DT_OK;
        }
    }
    if (strcmp(c->name, "auto") == 0 || strcmp(c->name, "cpu") == 0)
        return dt_device_open_cpu(opt, err, out);
    if (!find_file(c->name, path))
        return not_found(c->name, err);
    DT_TRY(load(c->name, path, err, &m));
    return open_module(m, c, opt, err, &n, out);
}

enum dt_status dt_device_open(const struct dt_device_choice *c, const struct dt_device_options *opt,
                              struct dt_error *err, struct dt_device **out)
{
    enum dt_status st = open_chosen(c, opt, err, out);

    if (opt && opt->notes && (st != DT_OK || (*out)->notes != opt->notes))
        opt->notes->close(opt->notes->arg);
    return st;
}

/* ---- all of them ---- */

struct list {
    struct dt_device_listed *row;
    size_t cap;
    int n;
};

static enum dt_status add(struct list *l, struct dt_error *err, struct dt_device_listed **out)
{
    if (dt_grow((void **)&l->row, &l->cap, (size_t)l->n + 1, sizeof(*l->row)) != 0)
        return dt_error_nomem(err, "the list of devices");
    *out = &l->row[l->n++];
    memset(*out, 0, sizeof(**out));
    return DT_OK;
}

/* Opens it to ask it about itself. */
static void look_at(enum dt_status st, struct dt_device *d, const struct dt_error *why,
                    struct dt_device_listed *row)
{
    row->usable = st == DT_OK;
    if (st != DT_OK) {
        snprintf(row->why, sizeof(row->why), "%s", why->message);
        return;
    }
    row->info = d->info;
    d->close(d);
}

static enum dt_status list_module(struct list *l, const char *name, struct dt_error *err)
{
    const struct dt_device_module *m = NULL;
    struct dt_device_listed *row;
    struct dt_error why = {0};
    enum dt_status st;
    char path[PATH] = "";
    int n = 0;

    if (!find_file(name, path)) {
        path[0] = '\0';
        not_found(name, &why);
    } else if (load(name, path, &why, &m) == DT_OK) {
        n = m->count(&why);
        if (n <= 0 && !why.message[0])
            snprintf(why.message, sizeof(why.message), "%s: there is no device", name);
    }
    for (int i = 0; i < (n > 0 ? n : 1); i++) {
        struct dt_device *d = NULL;

        DT_TRY(add(l, err, &row));
        snprintf(row->from, sizeof(row->from), "%s", path);
        if (n > 0) {
            snprintf(row->name, sizeof(row->name), "%s:%d", name, i);
            st = open_index(m, i, NULL, &why, &d);
            look_at(st, d, &why, row);
        } else {
            snprintf(row->name, sizeof(row->name), "%s", name);
            snprintf(row->why, sizeof(row->why), "%s", why.message);
        }
    }
    return DT_OK;
}

static enum dt_status list_all(struct list *l, struct dt_error *err)
{
    struct dt_device_listed *row;
    struct dt_device *d = NULL;
    struct dt_error why = {0};
    enum dt_status st;

    DT_TRY(add(l, err, &row));
    snprintf(row->name, sizeof(row->name), "cpu");
    st = dt_device_open_cpu(NULL, &why, &d);
    look_at(st, d, &why, row);
    for (int i = 0; i < MODULES; i++)
        DT_TRY(list_module(l, modules[i], err));
    return DT_OK;
}

enum dt_status dt_device_list(struct dt_error *err, struct dt_device_listed **out, int *n)
{
    struct list l = {0};
    enum dt_status st = list_all(&l, err);

    if (st != DT_OK) {
        dt_free(l.row);
        return st;
    }
    *out = l.row;
    *n = l.n;
    return DT_OK;
}
