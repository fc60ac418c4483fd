/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * manifest.json. */
#include "base/doc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#define FORMAT "disttrain-checkpoint"

uint32_t dt_ckpt_crc(const char *text, size_t len)
{
    return (uint32_t)crc32(0, (const unsigned char *)text, (uInt)len);
}

void dt_ckpt_digest(const char *text, size_t len, char *buf, size_t size)
{
    uint32_t crc = 0;

    for (size_t at = 0; at < len; at += INT_MAX)
        crc = (uint32_t)crc32(crc, (const unsigned char *)text + at,
                              len - at > INT_MAX ? INT_MAX : (uInt)(len - at));
    snprintf(buf, size, "%08" PRIx32 "-%zx", crc, len);
}

/* ---- hexadecimal numbers: JSON's have only 53 bits everywhere ---- */

void dt_ckpt_put_hex(struct dt_json *j, const char *key, uint64_t v, int digits)
{
    char text[20];

    snprintf(text, sizeof(text), "%0*" PRIx64, digits, v);
    dt_json_kv_string(j, key, text);
}

static enum dt_status hex_value(struct dt_node n, const char *what, int digits,
                                struct dt_error *err, uint64_t *out)
{
    const char *text = dt_node_text(n);

    if (!text || strlen(text) != (size_t)digits ||
        strspn(text, "0123456789abcdef") != (size_t)digits)
        return dt_node_error(n, err, "%s must be %d hexadecimal digits", what, digits);
    *out = strtoull(text, NULL, 16);
    return DT_OK;
}

enum dt_status dt_ckpt_get_hex(struct dt_node map, const char *key, int digits,
                               struct dt_error *err, uint64_t *out)
{
    DT_TRY(dt_map_require(map, key, key, err));
    return hex_value(dt_map_get(map, key), key, digits, err, out);
}

enum dt_status dt_ckpt_identity(const char *path, struct dt_error *err, char *buf, size_t size)
{
    char file[PATH_MAX], *text;
    size_t len;

    DT_TRY(dt_ckpt_path(file, sizeof(file), path, "manifest.json", err));
    DT_TRY(dt_file_read(file, DT_CKPT_JSON_MAX, err, &text, &len));
    dt_ckpt_digest(text, len, buf, size);
    dt_free(text);
    return DT_OK;
}

/* ---- building a manifest ---- */

void dt_ckpt_manifest_free(struct dt_ckpt_manifest *m)
{
    dt_free(m->files);
    dt_free(m->tensors);
    memset(m, 0, sizeof(*m));
}

enum dt_status dt_ckpt_manifest_add_file(struct dt_ckpt_manifest *m, const char *name,
                                         int64_t bytes, uint32_t crc, bool tensors,
                                         struct dt_error *err)
{
    struct dt_ckpt_manifest_file *f;
    void *p = m->files;

    if (dt_grow(&p, &m->cap_files, m->n_files + 1, sizeof(*f)))
        return dt_error_nomem(err, "a checkpoint's manifest");
    m->files = p;
    f = &m->files[m->n_files++];
    snprintf(f->name, sizeof(f->name), "%s", name);
    f->bytes = bytes;
    f->crc = crc;
    f->tensors = tensors;
    return DT_OK;
}

enum dt_status dt_ckpt_manifest_add_tensor(struct dt_ckpt_manifest *m, const char *name,
                                           uint32_t crc, struct dt_error *err)
{
    struct dt_ckpt_manifest_tensor *t;
    void *p = m->tensors;

    if (dt_grow(&p, &m->cap_tensors, m->n_tensors + 1, sizeof(*t)))
        return dt_error_nomem(err, "a checkpoint's manifest");
    m->tensors = p;
    t = &m->tensors[m->n_tensors++];
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->crc = crc;
    return DT_OK;
}

enum dt_status dt_ckpt_manifest_add_text(struct dt_ckpt_manifest *m, const char *dir,
                                         const char *name, char *text, struct dt_error *err)
{
    size_t len = strlen(text);
    char path[PATH_MAX];
    enum dt_status st = dt_ckpt_path(path, sizeof(path), dir, name, err);

    if (st == DT_OK)
        st = dt_file_write(path, text, len, err);
    if (st == DT_OK)
        st = dt_ckpt_manifest_add_file(m, name, (int64_t)len, dt_ckpt_crc(text, len), false, err);
    dt_free(text);
    return st;
}

enum dt_status dt_ckpt_manifest_add_json(struct dt_ckpt_manifest *m, const char *dir,
                                         const char *name, struct dt_error *err)
{
    char path[PATH_MAX], *text;
    uint32_t crc;
    size_t len;

    DT_TRY(dt_ckpt_path(path, sizeof(path), dir, name, err));
    DT_TRY(dt_file_read(path, DT_CKPT_JSON_MAX, err, &text, &len));
    crc = dt_ckpt_crc(text, len);
    dt_free(text);
    return dt_ckpt_manifest_add_file(m, name, (int64_t)len, crc, false, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dt_ckpt_manifest_tensor *)a)->name,
                  ((const struct dt_ckpt_manifest_tensor *)b)->name);
}

static void sort(struct dt_ckpt_manifest *m)
{
    if (m->n_tensors > 1)
        qsort(m->tensors, m->n_tensors, sizeof(*m->tensors), by_name);
}

enum dt_status dt_ckpt_manifest_merge(struct dt_ckpt_manifest *m,
                                      const struct dt_ckpt_manifest *more, struct dt_error *err)
{
    for (size_t i = 0; i < more->n_files; i++) {
        const struct dt_ckpt_manifest_file *f = &more->files[i];

        DT_TRY(dt_ckpt_manifest_add_file(m, f->name, f->bytes, f->crc, f->tensors, err));
    }
    for (size_t i = 0; i < more->n_tensors; i++)
        DT_TRY(dt_ckpt_manifest_add_tensor(m, more->tensors[i].name, more->tensors[i].crc, err));
    sort(m);
    return DT_OK;
}

enum dt_status dt_ckpt_manifest_write(const char *dir, const char *name,
                                      const struct dt_ckpt_manifest *m, struct dt_error *err)
{
    char path[PATH_MAX], *text;
    enum dt_status st;
    struct dt_json j;

    DT_TRY(dt_ckpt_path(path, sizeof(path), dir, name, err));
    dt_json_init(&j, true);
    dt_json_begin_object(&j);
    dt_json_kv_string(&j, "format", FORMAT);
    dt_json_kv_int(&j, "version", DT_CKPT_VERSION);
    dt_json_kv_string(&j, "run_id", m->run_id[0] ? m->run_id : DT_RUN_UNNAMED);
    dt_json_kv_int(&j, "step", m->step);
    dt_json_key(&j, "files");
    dt_json_begin_array(&j);
    for (size_t i = 0; i < m->n_files; i++) {
        dt_json_begin_object(&j);
        dt_json_kv_string(&j, "name", m->files[i].name);
        dt_json_kv_int(&j, "bytes", m->files[i].bytes);
        dt_ckpt_put_hex(&j, m->files[i].tensors ? "header_crc32" : "crc32", m->files[i].crc, 8);
        dt_json_end_object(&j);
    }
    dt_json_end_array(&j);
    dt_json_key(&j, "tensors_crc32");
    dt_json_begin_object(&j);
    for (size_t i = 0; i < m->n_tensors; i++)
        dt_ckpt_put_hex(&j, m->tensors[i].name, m->tensors[i].crc, 8);
    dt_json_end_object(&j);
    dt_json_end_object(&j);
    DT_TRY(dt_json_finish(&j, err, &text));
    st = dt_file_write(path, text, strlen(text), err);
    dt_free(text);
    return st;
}

/* ---- reading one ---- */

enum dt_status dt_ckpt_read_doc(const char *dir, const char *name, struct dt_error *err,
                                struct dt_doc **out)
{
    char path[PATH_MAX], *text;
    enum dt_status st;
    size_t len;

    DT_TRY(dt_ckpt_path(path, sizeof(path), dir, name, err));
    DT_TRY(dt_file_read(path, DT_CKPT_JSON_MAX, err, &text, &len));
    st = dt_doc_parse(path, text, len, err, out);
    dt_free(text);
    return st;
}

static enum dt_status read_file_entry(struct dt_ckpt_manifest *m, struct dt_node node,
                                      struct dt_error *err)
{
    static const char *const keys[] = {"name", "bytes", "crc32", "header_crc32", NULL};
    bool tensors;
    char name[64];
    int64_t bytes = -1;
    uint64_t crc = 0;

    if (!dt_node_is_map(node))
        return dt_node_error(node, err, "a file must be a map");
    DT_TRY(dt_map_check(node, "file", keys, err));
    DT_TRY(dt_map_require(node, "file", "name", err));
    DT_TRY(dt_map_require(node, "file", "bytes", err));
    DT_TRY(dt_get_string(node, "name", name, sizeof(name), err));
    DT_TRY(dt_get_int(node, "bytes", 0, INT64_MAX, &bytes, err));
    if (!*name || *name == '.' || strchr(name, '/'))
        return dt_node_error(node, err, "\"%s\" is not the name of a file in this folder", name);
    tensors = dt_node_present(dt_map_get(node, "header_crc32"));
    DT_TRY(dt_ckpt_get_hex(node, tensors ? "header_crc32" : "crc32", 8, err, &crc));
    return dt_ckpt_manifest_add_file(m, name, bytes, (uint32_t)crc, tensors, err);
}

/* What of it is the same in all versions, of which the first knew no runs. */
static enum dt_status parse_head(struct dt_node root, struct dt_error *err, int *version,
                                 char run_id[DT_RUN_ID_SIZE])
{
    const char *format = dt_node_text(dt_map_get(root, "format"));

    if (!format || strcmp(format, FORMAT) != 0)
        return dt_node_error(root, err, "not a checkpoint's manifest");
    DT_TRY(dt_map_require(root, "manifest", "version", err));
    DT_TRY(dt_get_i32(root, "version", 1, DT_CKPT_VERSION, version, err));
    snprintf(run_id, DT_RUN_ID_SIZE, "%s", DT_RUN_UNNAMED);
    if (*version == 1)
        return DT_OK;
    DT_TRY(dt_map_require(root, "manifest", "run_id", err));
    DT_TRY(dt_get_string(root, "run_id", run_id, DT_RUN_ID_SIZE, err));
    if (!dt_ckpt_run_id_valid(run_id))
        return dt_node_error(dt_map_get(root, "run_id"), err,
                             "run_id must be 1 to 64 letters, digits, \".\", \"_\" or \"-\"");
    return DT_OK;
}

enum dt_status dt_ckpt_manifest_run_id(const char *name, const char *text, size_t len,
                                       struct dt_error *err, char out[DT_RUN_ID_SIZE])
{
    char run_id[DT_RUN_ID_SIZE];
    struct dt_doc *doc;
    enum dt_status st;
    int version = 0;

    DT_TRY(dt_doc_parse(name, text, len, err, &doc));
    st = parse_head(dt_doc_root(doc), err, &version, run_id);
    dt_doc_free(doc);
    if (st == DT_OK)
        memcpy(out, run_id, sizeof(run_id));
    return st;
}

static enum dt_status parse(struct dt_ckpt_manifest *m, struct dt_node root, struct dt_error *err)
{
    static const char *const keys[] = {
        "format",        "version", "step", "files",
        "tensors_crc32", "run_id",  NULL}; /* the last not in version 1 */
    struct dt_node files = dt_map_get(root, "files"), sums = dt_map_get(root, "tensors_crc32");

    DT_TRY(parse_head(root, err, &m->version, m->run_id));
    DT_TRY(dt_map_check(root, "manifest", keys, err));
    for (int i = 0; i < 5; i++)
        DT_TRY(dt_map_require(root, "manifest", keys[i], err));
    DT_TRY(dt_get_int(root, "step", 0, INT64_MAX, &m->step, err));
    if (!dt_node_is_seq(files) || !dt_node_is_map(sums))
        return dt_node_error(root, err, "files must be a list, tensors_crc32 a map");
    for (size_t i = 0; i < dt_seq_size(files); i++)
        DT_TRY(read_file_entry(m, dt_seq_at(files, i), err));
    for (size_t i = 0; i < dt_map_size(sums); i++) {
        struct dt_node v;
        const char *name;
        uint64_t crc = 0;

        dt_map_at(sums, i, &name, &v);
        if (strlen(name) >= DT_CKPT_NAME_MAX)
            return dt_node_error(v, err, "a tensor's name is too long");
        DT_TRY(hex_value(v, name, 8, err, &crc));
        DT_TRY(dt_ckpt_manifest_add_tensor(m, name, (uint32_t)crc, err));
    }
    sort(m);
    return DT_OK;
}

static enum dt_status check_file(const char *dir, const struct dt_ckpt_manifest_file *f,
                                 struct dt_error *err)
{
    char path[PATH_MAX], *text;
    struct stat sb;
    uint32_t crc;
    size_t len;

    DT_TRY(dt_ckpt_path(path, sizeof(path), dir, f->name, err));
    if (stat(path, &sb) != 0)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "the checkpoint's file is missing: %s",
                           strerror(errno));
    if ((int64_t)sb.st_size != f->bytes)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "damaged: it has %" PRId64 " bytes, the manifest says %" PRId64,
                           (int64_t)sb.st_size, f->bytes);
    if (f->tensors)
        return DT_OK;
    DT_TRY(dt_file_read(path, DT_CKPT_JSON_MAX, err, &text, &len));
    crc = dt_ckpt_crc(text, len);
    dt_free(text);
    if (crc != f->crc)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "damaged: its checksum is wrong");
    return DT_OK;
}

enum dt_status dt_ckpt_manifest_read(const char *dir, const char *name, struct dt_error *err,
                                     struct dt_ckpt_manifest *m)
{
    struct dt_doc *doc;
    enum dt_status st;

    memset(m, 0, sizeof(*m));
    DT_TRY(dt_ckpt_read_doc(dir, name, err, &doc));
    st = parse(m, dt_doc_root(doc), err);
    dt_doc_free(doc);
    for (size_t i = 0; i < m->n_files && st == DT_OK; i++)
        st = check_file(dir, &m->files[i], err);
    if (st != DT_OK)
        dt_ckpt_manifest_free(m);
    return st;
}

const struct dt_ckpt_manifest_tensor *dt_ckpt_manifest_find(const struct dt_ckpt_manifest *m,
                                                            const char *name)
{
    struct dt_ckpt_manifest_tensor key;

    snprintf(key.name, sizeof(key.name), "%s", name);
    return m->n_tensors ? bsearch(&key, m->tensors, m->n_tensors, sizeof(key), by_name) : NULL;
}

static enum dt_status check_tensors(const struct dt_tensors *t, const struct dt_ckpt_manifest *m,
                                    struct dt_error *err)
{
    for (int i = 0; i < dt_tensors_files(t); i++) {
        const char *path = dt_tensors_file_name(t, i), *slash = strrchr(path, '/');
        const struct dt_ckpt_manifest_file *f = NULL;

        for (size_t k = 0; k < m->n_files; k++)
            if (strcmp(m->files[k].name, slash ? slash + 1 : path) == 0)
                f = &m->files[k];
        if (!f)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "the manifest has no such file");
        if (!f->tensors || f->crc != dt_tensors_header_crc(t, i))
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                               "damaged: the checksum of its header is wrong");
    }
    for (size_t i = 0; i < dt_tensors_count(t); i++)
        if (!dt_ckpt_manifest_find(m, dt_tensors_at(t, i)->name))
            return dt_error_at(err, DT_ERR_INPUT,
                               dt_tensors_file_name(t, dt_tensors_at(t, i)->file), 0, 0,
                               "the manifest has no tensor \"%s\"", dt_tensors_at(t, i)->name);
    return DT_OK;
}

enum dt_status dt_ckpt_manifest_open_tensors(const char *dir, const char *name,
                                             const struct dt_ckpt_manifest *m, struct dt_error *err,
                                             struct dt_tensors **out)
{
    char path[PATH_MAX];
    struct dt_tensors *t;
    enum dt_status st;

    DT_TRY(dt_ckpt_path(path, sizeof(path), dir, name, err));
    DT_TRY(dt_tensors_open(path, err, &t));
    st = check_tensors(t, m, err);
    if (st != DT_OK) {
        dt_tensors_close(t);
        return st;
    }
    *out = t;
    return DT_OK;
}
