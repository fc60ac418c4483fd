/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#include "base/mem.h"
#include "base/number.h"
#include "exec/data/pack.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SHARDS_MAX = 1 << 20 };

struct list {
    char *text; /* names, each with its NUL */
    size_t len, cap;
    int n;
};

static enum dt_status add(struct list *l, const char *name, struct dt_error *err)
{
    size_t n = strlen(name) + 1;
    void *p = l->text;
    if (l->n == SHARDS_MAX)
        return dt_error_set(err, DT_ERR_INPUT, "more than %d shards", (int)SHARDS_MAX);
    if (dt_grow(&p, &l->cap, l->len + n, 1))
        return dt_error_nomem(err, "names of shards");
    l->text = p;
    memcpy(l->text + l->len, name, n);
    l->len += n;
    l->n++;
    return DT_OK;
}

static int is_tar(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 4 && e->d_name[0] != '.' && strcmp(e->d_name + n - 4, ".tar") == 0;
}

static enum dt_status add_folder(struct list *l, const char *dir, struct dt_error *err)
{
    struct dirent **e = NULL;
    enum dt_status st = DT_OK;
    int n = scandir(dir, &e, is_tar, alphasort);
    if (n < 0)
        return dt_error_at(err, DT_ERR_INPUT, dir, 0, 0, "cannot read the folder: %s",
                           strerror(errno));
    if (n == 0)
        st = dt_error_at(err, DT_ERR_INPUT, dir, 0, 0, "no *.tar in this folder");
    for (int i = 0; i < n && st == DT_OK; i++) {
        char path[PATH_MAX];
        size_t len = strlen(dir);
        snprintf(path, sizeof path, "%s%s%s", dir, len && dir[len - 1] == '/' ? "" : "/",
                 e[i]->d_name);
        st = add(l, path, err);
    }
    for (int i = 0; i < n; i++)
        free(e[i]);
    free(e);
    return st;
}

/* "{000..012}": reads the two numbers; false if it is not one. */
static bool range(const char *open, const char **close, int64_t *first, int64_t *last, int *width)
{
    char number[24];
    const char *dots = strstr(open, "..");
    *close = strchr(open, '}');
    if (!dots || !*close || dots > *close || dots - open > 20 || *close - dots > 20)
        return false;
    *width = (int)(dots - open) - 1;
    snprintf(number, sizeof number, "%.*s", *width, open + 1);
    if (!dt_number_int(number, first))
        return false;
    snprintf(number, sizeof number, "%.*s", (int)(*close - dots) - 2, dots + 2);
    return dt_number_int(number, last) && *first >= 0 && *last >= *first &&
           *last - *first < SHARDS_MAX;
}

static enum dt_status add_name(struct list *l, const char *name, struct dt_error *err)
{
    const char *open = strchr(name, '{'), *close;
    int64_t first, last;
    int width;
    struct stat sb;
    if (stat(name, &sb) == 0)
        return S_ISDIR(sb.st_mode) ? add_folder(l, name, err) : add(l, name, err);
    if (!open || !range(open, &close, &first, &last, &width))
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0, "cannot open: %s", strerror(ENOENT));
    for (int64_t i = first; i <= last; i++) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.*s%0*lld%s", (int)(open - name), name, width, (long long)i,
                 close + 1);
        DT_TRY(add(l, path, err));
    }
    return DT_OK;
}

enum dt_status dt_shard_list(const char *const *names, int n, struct dt_error *err, char ***out,
                             int *n_out)
{
    struct list l = {0};
    enum dt_status st = DT_OK;
    char **v = NULL, *text;
    for (int i = 0; i < n && st == DT_OK; i++)
        st = add_name(&l, names[i], err);
    if (st == DT_OK) {
        v = dt_malloc(((size_t)l.n + 1) * sizeof *v + l.len);
        if (!v)
            st = dt_error_nomem(err, "names of shards");
    }
    if (st == DT_OK) {
        text = (char *)(v + l.n + 1);
        if (l.len)
            memcpy(text, l.text, l.len);
        for (int i = 0; i < l.n; i++) {
            v[i] = text;
            text += strlen(text) + 1;
        }
        v[l.n] = NULL;
        *out = v;
        *n_out = l.n;
    }
    dt_free(l.text);
    return st;
}
