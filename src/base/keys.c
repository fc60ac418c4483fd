/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/keys.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { KEYS_MAX = 64, PATH_SIZE = 256 };

static int64_t whole(double limit)
{
    return limit >= DT_KEY_NO_LIMIT ? INT64_MAX : (int64_t)limit;
}

/* ---- values in structs ---- */

static int64_t load_int(const struct dt_key *k, const void *in)
{
    const char *p = (const char *)in + k->at;
    int64_t v64;
    bool flag;
    int v;

    if (k->size == sizeof(v64)) {
        memcpy(&v64, p, sizeof(v64));
        return v64;
    }
    if (k->size == sizeof(flag)) {
        memcpy(&flag, p, sizeof(flag));
        return flag;
    }
    memcpy(&v, p, sizeof(v));
    return v;
}

static void store_int(const struct dt_key *k, void *into, int64_t v64)
{
    char *p = (char *)into + k->at;
    bool flag = v64 != 0;
    int v = (int)v64;

    if (k->size == sizeof(v64))
        memcpy(p, &v64, sizeof(v64));
    else if (k->size == sizeof(flag))
        memcpy(p, &flag, sizeof(flag));
    else
        memcpy(p, &v, sizeof(v));
}

static double load_double(const struct dt_key *k, const void *in)
{
    double v;

    memcpy(&v, (const char *)in + k->at, sizeof(v));
    return k->scale > 0 ? v / k->scale : v;
}

static void store_double(const struct dt_key *k, void *into, double v)
{
    if (k->scale > 0)
        v *= k->scale;
    memcpy((char *)into + k->at, &v, sizeof(v));
}

/* ---- reading ---- */

static enum dt_status read_int(struct dt_node map, const struct dt_key *k, void *into,
                               struct dt_error *err)
{
    int64_t v = load_int(k, into);

    DT_TRY(dt_get_int(map, k->name, whole(k->min), whole(k->max), &v, err));
    store_int(k, into, v);
    return DT_OK;
}

static enum dt_status read_double(struct dt_node map, const struct dt_key *k, void *into,
                                  struct dt_error *err)
{
    double v;

    if (k->type == DT_KEY_QUANTITY)
        DT_TRY(dt_get_quantity(map, k->name, k->unit, k->min, k->max, &v, err));
    else
        DT_TRY(dt_get_double(map, k->name, k->min, k->max, &v, err));
    store_double(k, into, v);
    return DT_OK;
}

static enum dt_status read_bool(struct dt_node map, const struct dt_key *k, void *into,
                                struct dt_error *err)
{
    bool v = load_int(k, into) != 0;

    DT_TRY(dt_get_bool(map, k->name, &v, err));
    store_int(k, into, v);
    return DT_OK;
}

static enum dt_status read_word(struct dt_node map, const struct dt_key *k, void *into,
                                struct dt_error *err)
{
    int v = (int)load_int(k, into);

    DT_TRY(dt_get_enum(map, k->name, k->words, &v, err));
    store_int(k, into, v);
    return DT_OK;
}

static enum dt_status read_key(struct dt_node map, const struct dt_key *k, void *into,
                               struct dt_error *err)
{
    struct dt_node n = dt_map_get(map, k->name);

    if (!dt_node_present(n))
        return DT_OK;
    if (k->read)
        return k->read(map, k, into, err);
    switch (k->type) {
    case DT_KEY_INTEGER:
        return read_int(map, k, into, err);
    case DT_KEY_NUMBER:
    case DT_KEY_QUANTITY:
        return read_double(map, k, into, err);
    case DT_KEY_BOOL:
        return read_bool(map, k, into, err);
    case DT_KEY_STRING:
        return dt_get_string(map, k->name, (char *)into + k->at, k->size, err);
    case DT_KEY_WORD:
        return read_word(map, k, into, err);
    case DT_KEY_MAP:
        return dt_keys_read(n, k->name, k->keys, (char *)into + k->at, err);
    case DT_KEY_OWN:
        break;
    }
    return DT_OK;
}

enum dt_status dt_keys_check(struct dt_node map, const char *what, const struct dt_key *keys,
                             struct dt_error *err)
{
    const char *names[KEYS_MAX + 1];
    int n = 0;

    for (const struct dt_key *k = keys; k->name && n < KEYS_MAX; k++)
        names[n++] = k->name;
    names[n] = NULL;
    return dt_map_check(map, what, names, err);
}

enum dt_status dt_keys_read(struct dt_node map, const char *what, const struct dt_key *keys,
                            void *into, struct dt_error *err)
{
    DT_TRY(dt_keys_check(map, what, keys, err));
    for (const struct dt_key *k = keys; k->name; k++)
        DT_TRY(read_key(map, k, into, err));
    return DT_OK;
}

enum dt_status dt_keys_get(struct dt_node map, const struct dt_key *keys, const char *name,
                           void *into, struct dt_error *err)
{
    while (strcmp(keys->name, name) != 0)
        keys++;
    return read_key(map, keys, into, err);
}

enum dt_status dt_keys_require(struct dt_node map, const char *what, const struct dt_key *keys,
                               struct dt_error *err)
{
    for (; keys->name; keys++)
        if (keys->needed)
            DT_TRY(dt_map_require(map, what, keys->name, err));
    return DT_OK;
}

const struct dt_key *dt_keys_missing(const struct dt_key *keys, const void *in)
{
    for (; keys->name; keys++) {
        const char *p = (const char *)in + keys->at;
        size_t i = 0;

        while (i < keys->size && p[i] == 0)
            i++;
        if (keys->needed && i == keys->size)
            return keys;
    }
    return NULL;
}

/* ---- all of them ---- */

static void walk(const struct dt_key *keys, const char *prefix, const void *defaults, dt_key_fn *fn,
                 void *ctx)
{
    char path[PATH_SIZE];

    for (; keys->name; keys++) {
        const void *inner = defaults ? (const char *)defaults + keys->at : NULL;

        snprintf(path, sizeof(path), "%s%s", prefix, keys->name);
        fn(ctx, path, keys, defaults);
        if (!keys->keys)
            continue;
        snprintf(path, sizeof(path), "%s%s.", prefix, keys->name);
        walk(keys->keys, path, keys->base ? keys->base : inner, fn, ctx);
    }
}

void dt_keys_walk(const struct dt_key *keys, const void *defaults, dt_key_fn *fn, void *ctx)
{
    walk(keys, "", defaults, fn, ctx);
}

const struct dt_key *dt_keys_at(const struct dt_key *keys, const char *path)
{
    size_t n = strcspn(path, ".");

    for (; keys && keys->name; keys++) {
        const struct dt_key *found = keys;

        if (!keys->any && (strlen(keys->name) != n || strncmp(keys->name, path, n) != 0))
            continue;
        if (path[n])
            found = dt_keys_at(keys->keys, path + n + 1);
        if (found || !keys->any) /* several kinds of modules may have a name */
            return found;
    }
    return NULL;
}

/* The one name that `part` adds a word to, as "gpu_memory" does to "memory" and "global_batch_size" to
 * "global_batch". */
static const char *without_a_word(const char *part, const char *const *names)
{
    const char *found = NULL;
    size_t n = strlen(part);

    for (; *names; names++) {
        size_t m = strlen(*names);

        if (m + 1 >= n || !((part[m] == '_' && strncmp(part, *names, m) == 0) ||
                            (part[n - m - 1] == '_' && strcmp(part + n - m, *names) == 0)))
            continue;
        if (found)
            return NULL;
        found = *names;
    }
    return found;
}

/* `path` with its part at `from`, or one behind it, replaced by a name of `keys` that is near. */
static bool set_right(const struct dt_key *all, const struct dt_key *keys, const char *path,
                      size_t from, char *buf, size_t size)
{
    const char *names[KEYS_MAX + 1], *near;
    char part[PATH_SIZE];
    size_t n = strcspn(path + from, ".");
    int count = 0;

    snprintf(part, sizeof(part), "%.*s", (int)n, path + from);
    for (const struct dt_key *k = keys; k && k->name && count < KEYS_MAX; k++) {
        bool here = k->any || strcmp(k->name, part) == 0;

        if (here && path[from + n] && set_right(all, k->keys, path, from + n + 1, buf, size))
            return true;
        if (!k->any)
            names[count++] = k->name;
    }
    names[count] = NULL;
    near = dt_suggest(part, names);
    if (!near)
        near = without_a_word(part, names);
    if (!near)
        return false;
    snprintf(buf, size, "%.*s%s%s", (int)from, path, near, path + from + n);
    return dt_keys_at(all, buf) != NULL;
}

struct ending {
    const char *with;
    int n;
    char path[PATH_SIZE];
};

static void ends(void *ctx, const char *path, const struct dt_key *key, const void *defaults)
{
    struct ending *e = ctx;
    size_t n = strlen(path), m = strlen(e->with);

    (void)key;
    (void)defaults;
    if (n > m && path[n - m - 1] == '.' && strcmp(path + n - m, e->with) == 0 &&
        !dt_keys_open(path) && e->n++ == 0)
        snprintf(e->path, sizeof(e->path), "%s", path);
}

const char *dt_keys_suggest(const struct dt_key *keys, const char *path, char *buf, size_t size)
{
    struct ending end = {.with = path};

    if (strlen(path) >= PATH_SIZE)
        return NULL;
    if (set_right(keys, keys, path, 0, buf, size))
        return buf;
    dt_keys_walk(keys, NULL, ends, &end);
    if (end.n != 1)
        return NULL;
    snprintf(buf, size, "%s", end.path);
    return buf;
}

bool dt_keys_open(const char *path)
{
    while (*path && !isupper((unsigned char)*path))
        path++;
    return *path;
}

bool dt_keys_inside(const char *path, const char *asked)
{
    for (;;) {
        size_t n = strcspn(path, "."), m = strcspn(asked, ".");
        bool any = isupper((unsigned char)*path);

        if (!any && (n != m || strncmp(path, asked, n) != 0))
            return false;
        if (!asked[m])
            return true;
        if (!path[n])
            return false;
        path += n + 1;
        asked += m + 1;
    }
}

/* ---- for people ---- */

static size_t add(char *buf, size_t size, size_t used, const char *a, const char *b)
{
    int n = used < size ? snprintf(buf + used, size - used, "%s%s", a, b) : 0;

    return used + (size_t)(n > 0 ? n : 0);
}

const char *dt_key_type_name(const struct dt_key *key)
{
    static const char *const names[] = {
        [DT_KEY_INTEGER] = "integer", [DT_KEY_NUMBER] = "number", [DT_KEY_BOOL] = "bool",
        [DT_KEY_STRING] = "string",   [DT_KEY_WORD] = "word",     [DT_KEY_QUANTITY] = "quantity",
        [DT_KEY_MAP] = "map",         [DT_KEY_OWN] = "own",
    };

    return names[key->type];
}

const char *dt_key_type_text(const struct dt_key *key, char *buf, size_t size)
{
    static const char *const names[] = {
        [DT_KEY_INTEGER] = "integer", [DT_KEY_NUMBER] = "number", [DT_KEY_BOOL] = "true or false",
        [DT_KEY_STRING] = "string",   [DT_KEY_WORD] = "one of ",  [DT_KEY_QUANTITY] = "quantity",
        [DT_KEY_MAP] = "map",         [DT_KEY_OWN] = "value",
    };
    const char *form = key->form ? key->form : key->type == DT_KEY_OWN && key->keys ? "map" : NULL;
    size_t used = add(buf, size, 0, form ? form : names[key->type], "");

    if (key->words && key->type != DT_KEY_WORD)
        used = add(buf, size, used, ", or ", "");
    for (int i = 0; key->words && key->words[i]; i++)
        used = add(buf, size, used, i ? ", " : "", key->words[i]);
    return buf;
}

const char *dt_key_range_text(const struct dt_key *key, char *buf, size_t size)
{
    const char *unit = key->unit ? key->unit : "";
    bool open = key->max >= DT_KEY_NO_LIMIT || key->max == INT_MAX;

    buf[0] = '\0';
    if (key->type != DT_KEY_INTEGER && key->type != DT_KEY_NUMBER && key->type != DT_KEY_QUANTITY)
        return buf;
    if (open)
        snprintf(buf, size, "at least %.15g%s%s", key->min, *unit ? " " : "", unit);
    else
        snprintf(buf, size, "%.15g to %.15g%s%s", key->min, key->max, *unit ? " " : "", unit);
    return buf;
}

const char *dt_key_default_text(const struct dt_key *key, const void *defaults, char *buf,
                                size_t size)
{
    buf[0] = '\0';
    if (key->fallback)
        snprintf(buf, size, "%s", key->fallback);
    else if (defaults && !key->needed)
        dt_key_value_text(key, defaults, buf, size);
    return buf;
}

const char *dt_key_value_text(const struct dt_key *key, const void *in, char *buf, size_t size)
{
    buf[0] = '\0';
    if (key->size == 0) /* has no place of its own */
        return buf;
    switch (key->type) {
    case DT_KEY_INTEGER:
        snprintf(buf, size, "%lld", (long long)load_int(key, in));
        break;
    case DT_KEY_NUMBER:
        snprintf(buf, size, "%.15g", load_double(key, in));
        break;
    case DT_KEY_QUANTITY:
        snprintf(buf, size, "%.15g %s", load_double(key, in), key->unit);
        break;
    case DT_KEY_BOOL:
        snprintf(buf, size, "%s", load_int(key, in) ? "true" : "false");
        break;
    case DT_KEY_WORD:
        snprintf(buf, size, "%s", key->words[load_int(key, in)]);
        break;
    case DT_KEY_STRING:
        snprintf(buf, size, "%s", (const char *)in + key->at);
        break;
    case DT_KEY_MAP:
    case DT_KEY_OWN:
        break;
    }
    return buf;
}
