/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Opening tensor files, one or many, and reading from them. */
#include "base/file.h"
#include "base/mem.h"
#include "exec/checkpoint/safetensors_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_BYTES_MAX ((size_t)DT_TENSOR_HEADER_MAX)

enum dt_status dt_tensor_file_read(const struct dt_tensor_file *f, uint64_t at, size_t n,
                                   struct dt_error *err, void *out)
{
    uint8_t *to = out;

    if (n > f->bytes || at > f->bytes - n)
        return dt_error_at(err, DT_ERR_INTERNAL, f->name, 0, 0, "read beyond the file's end");
    if (f->memory) {
        if (n > 0)
            memcpy(to, f->memory + at, n);
        return DT_OK;
    }
    while (n > 0) {
        ssize_t got = pread(f->fd, to, n > (size_t)INT_MAX ? (size_t)INT_MAX : n, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return dt_error_at(err, DT_ERR_IO, f->name, 0, 0, "cannot read: %s", strerror(errno));
        if (got == 0)
            return dt_error_at(err, DT_ERR_INPUT, f->name, 0, 0,
                               "became shorter while it was read");
        to += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return DT_OK;
}

/* ---- opening ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dt_tensor *)a)->name, ((const struct dt_tensor *)b)->name);
}

static enum dt_status add_file(struct dt_tensors *t, const char *name, struct dt_error *err)
{
    void *p = t->files;
    struct dt_tensor_file *f;

    if (t->n_files >= DT_TENSOR_FILES_MAX)
        return dt_error_at(err, DT_ERR_INPUT, name, 0, 0, "more than %d files in one set",
                           DT_TENSOR_FILES_MAX);
    if (dt_grow(&p, &t->cap_files, t->n_files + 1, sizeof(*t->files)))
        return dt_error_nomem(err, "a list of tensor files");
    t->files = p;
    f = &t->files[t->n_files];
    memset(f, 0, sizeof(*f));
    f->fd = -1;
    f->name = dt_strdup(name);
    if (!f->name)
        return dt_error_nomem(err, "a file name");
    t->n_files++;
    return DT_OK;
}

static enum dt_status open_file(struct dt_tensors *t, const char *path, struct dt_error *err)
{
    struct dt_tensor_file *f;
    struct stat sb;

    DT_TRY(add_file(t, path, err));
    f = &t->files[t->n_files - 1];
    DT_TRY(dt_file_open(path, false, err, &f->fd));
    if (fstat(f->fd, &sb) != 0)
        return dt_error_at(err, DT_ERR_IO, path, 0, 0, "cannot read: %s", strerror(errno));
    f->bytes = (uint64_t)sb.st_size;
    return dt_tensors_add_header(t, (int)t->n_files - 1, err);
}

/* The files of an index, in the order in which it names them; `file_of` tells which it says of each
 * of its names. */
static enum dt_status open_shard(struct dt_tensors *t, const char *index, const char *name,
                                 int *file, struct dt_error *err)
{
    const char *slash = strrchr(index, '/');
    char path[PATH_MAX];

    if (!*name || strchr(name, '/') || name[0] == '.')
        return dt_error_at(
            err, DT_ERR_INPUT, index, 0, 0,
            "weight_map: \"%s\" is not the name of a file in the folder of the index", name);
    if (snprintf(path, sizeof(path), "%.*s%s", slash ? (int)(slash + 1 - index) : 0, index, name) >=
        (int)sizeof(path))
        return dt_error_at(err, DT_ERR_INPUT, index, 0, 0, "file name too long");
    for (size_t i = t->n_files; i-- > 0;)
        if (strcmp(t->files[i].name, path) == 0) {
            *file = (int)i;
            return DT_OK;
        }
    *file = (int)t->n_files;
    return open_file(t, path, err);
}

static enum dt_status finish(struct dt_tensors *t, struct dt_error *err)
{
    if (t->n > 1)
        qsort(t->x, t->n, sizeof(*t->x), by_name);
    for (size_t i = 1; i < t->n; i++)
        if (strcmp(t->x[i - 1].name, t->x[i].name) == 0)
            return dt_error_at(err, DT_ERR_INPUT, t->files[t->x[i].file].name, 0, 0,
                               "tensor \"%s\" is also in %s", t->x[i].name,
                               t->files[t->x[i - 1].file].name);
    return DT_OK;
}

static enum dt_status open_index(struct dt_tensors *t, const char *path, const struct dt_doc *doc,
                                 struct dt_error *err)
{
    struct dt_node map = dt_map_get(dt_doc_root(doc), "weight_map"), node;
    const char *name;
    int *file_of;
    size_t n;
    enum dt_status st = DT_OK;

    if (!dt_node_is_map(map) || dt_map_size(map) == 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "an index needs a map \"weight_map\" of names to files");
    n = dt_map_size(map);
    file_of = dt_calloc(n, sizeof(*file_of));
    if (!file_of)
        return dt_error_nomem(err, "an index of tensors");
    for (size_t i = 0; i < n && st == DT_OK; i++) {
        const char *file;

        dt_map_at(map, i, &name, &node);
        file = dt_node_text(node);
        st = file ? open_shard(t, path, file, &file_of[i], err)
                  : dt_node_error(node, err, "tensor \"%s\": its file must be a text", name);
    }
    if (st == DT_OK)
        st = finish(t, err);
    for (size_t i = 0; i < n && st == DT_OK; i++) {
        const struct dt_tensor *x;

        dt_map_at(map, i, &name, &node);
        x = dt_tensors_find(t, name);
        if (!x || x->file != file_of[i])
            st = dt_error_at(err, DT_ERR_INPUT, t->files[file_of[i]].name, 0, 0,
                             "tensor \"%s\" is not there, but the index names this file", name);
    }
    dt_free(file_of);
    if (st == DT_OK && n != t->n)
        st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "names %zu tensors, but its files hold %zu",
                         n, t->n);
    return st;
}

static enum dt_status open_any(struct dt_tensors *t, const char *path, struct dt_error *err)
{
    size_t len = strlen(path);
    struct dt_doc *doc;
    enum dt_status st;
    char *text;

    if (len < 5 || strcmp(path + len - 5, ".json") != 0) {
        DT_TRY(open_file(t, path, err));
        return finish(t, err);
    }
    DT_TRY(dt_file_read(path, INDEX_BYTES_MAX, err, &text, &len));
    st = dt_doc_parse(path, text, len, err, &doc);
    dt_free(text);
    if (st != DT_OK)
        return st;
    st = open_index(t, path, doc, err);
    dt_doc_free(doc);
    return st;
}

/* In a folder, what Hugging Face's libraries would look for. */
static enum dt_status find_file(const char *path, struct dt_error *err, char *out, size_t size)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                        "diffusion_pytorch_model.safetensors",
                                        "diffusion_pytorch_model.safetensors.index.json"};
    struct stat sb;

    if (stat(path, &sb) != 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "cannot open: %s", strerror(errno));
    if (!S_ISDIR(sb.st_mode)) {
        if (snprintf(out, size, "%s", path) >= (int)size)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "file name too long");
        return DT_OK;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (snprintf(out, size, "%s/%s", path, names[i]) >= (int)size)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "file name too long");
        if (stat(out, &sb) == 0)
            return DT_OK;
    }
    return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                       "the folder has neither %s nor %s nor diffusers' files of that kind",
                       names[0], names[1]);
}

enum dt_status dt_tensors_open(const char *path, struct dt_error *err, struct dt_tensors **out)
{
    char file[PATH_MAX];
    struct dt_tensors *t;
    enum dt_status st;

    DT_TRY(find_file(path, err, file, sizeof(file)));
    t = dt_calloc(1, sizeof(*t));
    if (!t)
        return dt_error_nomem(err, "a set of tensors");
    st = open_any(t, file, err);
    if (st != DT_OK) {
        dt_tensors_close(t);
        return st;
    }
    *out = t;
    return DT_OK;
}

enum dt_status dt_tensors_open_memory(const char *name, const void *bytes, size_t len,
                                      struct dt_error *err, struct dt_tensors **out)
{
    struct dt_tensors *t = dt_calloc(1, sizeof(*t));
    enum dt_status st;

    if (!t)
        return dt_error_nomem(err, "a set of tensors");
    st = add_file(t, name, err);
    if (st == DT_OK) {
        t->files[0].memory = bytes;
        t->files[0].bytes = len;
        st = dt_tensors_add_header(t, 0, err);
    }
    if (st == DT_OK)
        st = finish(t, err);
    if (st != DT_OK) {
        dt_tensors_close(t);
        return st;
    }
    *out = t;
    return DT_OK;
}

void dt_tensors_close(struct dt_tensors *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_files; i++) {
        if (t->files[i].fd >= 0)
            close(t->files[i].fd);
        if (t->files[i].doc)
            dt_doc_free(t->files[i].doc);
        dt_free(t->files[i].name);
    }
    dt_free(t->files);
    dt_free(t->x);
    dt_free(t);
}

/* ---- looking ---- */

size_t dt_tensors_count(const struct dt_tensors *t)
{
    return t->n;
}

const struct dt_tensor *dt_tensors_at(const struct dt_tensors *t, size_t i)
{
    return &t->x[i];
}

const struct dt_tensor *dt_tensors_find(const struct dt_tensors *t, const char *name)
{
    struct dt_tensor key = {.name = name};

    return t->n ? bsearch(&key, t->x, t->n, sizeof(*t->x), by_name) : NULL;
}

int dt_tensors_files(const struct dt_tensors *t)
{
    return (int)t->n_files;
}

const char *dt_tensors_file_name(const struct dt_tensors *t, int file)
{
    return t->files[file].name;
}

uint64_t dt_tensors_header_bytes(const struct dt_tensors *t, int file)
{
    return t->files[file].header_bytes;
}

uint32_t dt_tensors_header_crc(const struct dt_tensors *t, int file)
{
    return t->files[file].header_crc;
}

const char *dt_tensors_meta(const struct dt_tensors *t, const char *key)
{
    for (size_t i = 0; i < t->n_files; i++) {
        struct dt_node meta = dt_map_get(dt_doc_root(t->files[i].doc), "__metadata__");

        if (dt_node_present(meta) && dt_node_present(dt_map_get(meta, key)))
            return dt_node_text(dt_map_get(meta, key));
    }
    return NULL;
}
