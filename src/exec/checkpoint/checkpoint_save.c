/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Saving: which tensors go to which file, then one after the other. */
#include "base/finite.h"
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_impl.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const dt_ckpt_prefixes[DT_PARAM_WHAT_N] = {"", "exp_avg/", "exp_avg_sq/"};

struct entry {
    char name[DT_CKPT_NAME_MAX];
    int part, param;
    enum dt_param_what what;
    bool tied; /* a copy: left out where the original is there */
    uint32_t crc;
};

struct saver {
    const struct dt_ckpt_part *parts;
    int n_parts;
    bool copies;
    struct dt_ckpt_manifest *manifest;
    const char *dir;
    struct dt_tensor_meta meta[2];
    char step[24];
};

struct list {
    struct entry *e;
    struct dt_tensor *x;
    size_t n;
};

static void free_list(struct list *l)
{
    dt_free(l->e);
    dt_free(l->x);
}

/* By name, originals before their copies, then as given. */
static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = strcmp(x->name, y->name);

    if (c)
        return c;
    if (x->tied != y->tied)
        return x->tied - y->tied;
    return x->part != y->part ? (x->part > y->part) - (x->part < y->part)
                              : (x->param > y->param) - (x->param < y->param);
}

static void add(struct list *l, const struct dt_ckpt_part *part, int part_index, int i,
                enum dt_param_what what)
{
    struct entry *e = &l->e[l->n++];

    snprintf(e->name, sizeof(e->name), "%s%s.%s", dt_ckpt_prefixes[what], part->module,
             part->params[i].name);
    e->part = part_index;
    e->param = i;
    e->what = what;
    e->tied = part->params[i].tied;
}

/* All tensors from `from` to `to` of what is kept, in the order of names. */
static enum dt_status make_list(const struct saver *s, enum dt_param_what from,
                                enum dt_param_what to, struct dt_error *err, struct list *l)
{
    size_t n = 0, kept = 0;

    memset(l, 0, sizeof(*l));
    for (int p = 0; p < s->n_parts; p++)
        n += (size_t)s->parts[p].n_params * (size_t)(to - from + 1);
    l->e = dt_calloc(n ? n : 1, sizeof(*l->e));
    l->x = dt_calloc(n ? n : 1, sizeof(*l->x));
    if (!l->e || !l->x) {
        free_list(l);
        return dt_error_nomem(err, "a list of tensors");
    }
    for (int p = 0; p < s->n_parts; p++)
        for (int i = 0; i < s->parts[p].n_params; i++)
            for (int w = (int)from; w <= (int)to; w++)
                if ((w == DT_PARAM_VALUE || dt_ckpt_has_moments(&s->parts[p], i)) &&
                    (s->copies || !s->parts[p].params[i].tied))
                    add(l, &s->parts[p], p, i, (enum dt_param_what)w);
    if (l->n > 1)
        qsort(l->e, l->n, sizeof(*l->e), by_name);
    for (size_t i = 0; i < l->n; i++)
        if (kept == 0 || !l->e[i].tied || strcmp(l->e[kept - 1].name, l->e[i].name) != 0)
            l->e[kept++] = l->e[i];
    l->n = kept;
    for (size_t i = 0; i < l->n; i++) {
        const struct dt_param *q = &s->parts[l->e[i].part].params[l->e[i].param];

        l->x[i].name = l->e[i].name;
        l->x[i].type = DT_TENSOR_F32;
        l->x[i].n_dims = q->n_dims;
        for (int k = 0; k < q->n_dims; k++)
            l->x[i].shape[k] = q->shape[k];
    }
    return DT_OK;
}

/* What a run that is lost would leave behind must not take the place of a checkpoint. */
static enum dt_status all_finite(const struct entry *e, const float *v, size_t n,
                                 struct dt_error *err)
{
    struct dt_nonfinite bad = {.nan = 0};
    char text[128];

    dt_nonfinite_count(v, n, &bad);
    if (dt_nonfinite_all(&bad) == 0)
        return DT_OK;
    return dt_error_set(err, DT_ERR_DIVERGED,
                        "no checkpoint is written, because it could not be used: tensor \"%s\": %s",
                        e->name, dt_nonfinite_text(&bad, n, text, sizeof(text)));
}

/* Tensors [first, last) of the list into one file. */
static enum dt_status write_file(struct saver *s, const struct list *l, size_t first, size_t last,
                                 const char *name, struct dt_error *err)
{
    struct dt_tensor_writer *w;
    struct dt_ckpt_io io = {0};
    char path[PATH_MAX];
    uint64_t bytes = 0;
    uint32_t header = 0;
    enum dt_status st = DT_OK;
    int open_part = -1;

    DT_TRY(dt_ckpt_path(path, sizeof(path), s->dir, name, err));
    DT_TRY(dt_tensor_writer_new(path, l->x + first, last - first, s->meta, 2, err, &w));
    for (size_t i = first; i < last && st == DT_OK; i++) {
        struct entry *e = &l->e[i];
        const struct dt_ckpt_part *part = &s->parts[e->part];
        const float *v = NULL;

        if (e->part != open_part) {
            if (open_part >= 0)
                dt_ckpt_io_close(&io);
            open_part = e->part;
            st = dt_ckpt_io_open(&io, part, err);
        }
        if (st == DT_OK) {
            v = dt_ckpt_get(&io, &part->params[e->param], dt_ckpt_flat(part, e->what));
            st = all_finite(e, v, part->params[e->param].n, err);
        }
        if (st == DT_OK)
            st = dt_tensor_writer_put_f32(w, v, err, &e->crc);
        if (st == DT_OK)
            st = dt_ckpt_manifest_add_tensor(s->manifest, e->name, e->crc, err);
    }
    if (open_part >= 0)
        dt_ckpt_io_close(&io);
    if (st != DT_OK) {
        dt_tensor_writer_abort(w);
        return st;
    }
    DT_TRY(dt_tensor_writer_finish(w, err, &bytes, &header));
    return dt_ckpt_manifest_add_file(s->manifest, name, (int64_t)bytes, header, true, err);
}

/* ---- files of a large model ---- */

static int64_t bytes_of(const struct saver *s, const struct entry *e)
{
    return (int64_t)(s->parts[e->part].params[e->param].n * sizeof(float));
}

/* Sets every tensor's file, each as full as it may be; returns how many there are. */
static int cut(const struct saver *s, struct list *l, int64_t bytes_max)
{
    int64_t used = 0;
    int file = 0;

    for (size_t i = 0; i < l->n; i++) {
        int64_t bytes = bytes_of(s, &l->e[i]);

        if (used > 0 && used + bytes > bytes_max) {
            file++;
            used = 0;
        }
        used += bytes;
        l->x[i].file = file;
    }
    return file + 1;
}

void dt_ckpt_file_name(const char *kind, int k, int total, char *buf, size_t size)
{
    if (total == 1)
        snprintf(buf, size, "%s.safetensors", kind);
    else
        snprintf(buf, size, "%s-%05d-of-%05d.safetensors", kind, k + 1, total);
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const struct dt_tensor *)a)->name, ((const struct dt_tensor *)b)->name);
}

/* What the files have, as their headers say. */
static enum dt_status list_files(struct dt_tensors *const *t, int n_files, struct dt_error *err,
                                 struct dt_tensor **out, size_t *n_out)
{
    struct dt_tensor *x;
    size_t n = 0;

    for (int k = 0; k < n_files; k++)
        n += dt_tensors_count(t[k]);
    x = dt_calloc(n ? n : 1, sizeof(*x));
    if (!x)
        return dt_error_nomem(err, "a list of tensors");
    *n_out = n;
    n = 0;
    for (int k = 0; k < n_files; k++)
        for (size_t i = 0; i < dt_tensors_count(t[k]); i++) {
            x[n] = *dt_tensors_at(t[k], i);
            x[n++].file = k;
        }
    if (n > 1)
        qsort(x, n, sizeof(*x), by_tensor_name);
    *out = x;
    return DT_OK;
}

struct index {
    struct dt_tensors **t;
    char (*names)[64];
    const char **pointers;
};

static enum dt_status write_index(const char *dir, const char *kind, int total, struct index *x,
                                  struct dt_ckpt_manifest *m, struct dt_error *err)
{
    struct dt_tensor *list = NULL;
    char name[64], path[PATH_MAX];
    enum dt_status st = DT_OK;
    size_t n = 0;

    for (int k = 0; k < total && st == DT_OK; k++) {
        dt_ckpt_file_name(kind, k, total, x->names[k], sizeof(x->names[k]));
        x->pointers[k] = x->names[k];
        st = dt_ckpt_manifest_open_tensors(dir, x->names[k], m, err, &x->t[k]);
    }
    if (st == DT_OK)
        st = list_files(x->t, total, err, &list, &n);
    snprintf(name, sizeof(name), "%s.safetensors.index.json", kind);
    if (st == DT_OK)
        st = dt_ckpt_path(path, sizeof(path), dir, name, err);
    if (st == DT_OK)
        st = dt_tensor_index_write(path, list, n, x->pointers, total, err);
    dt_free(list);
    return st == DT_OK ? dt_ckpt_manifest_add_json(m, dir, name, err) : st;
}

enum dt_status dt_ckpt_index(const char *dir, const char *kind, int total,
                             struct dt_ckpt_manifest *m, struct dt_error *err)
{
    struct index x = {.t = dt_calloc((size_t)total, sizeof(*x.t)),
                      .names = dt_calloc((size_t)total, sizeof(*x.names)),
                      .pointers = dt_calloc((size_t)total, sizeof(*x.pointers))};
    enum dt_status st;

    st = x.t && x.names && x.pointers ? write_index(dir, kind, total, &x, m, err)
                                      : dt_error_nomem(err, "names of files");
    for (int k = 0; x.t && k < total; k++)
        if (x.t[k])
            dt_tensors_close(x.t[k]);
    dt_free(x.t);
    dt_free(x.names);
    dt_free(x.pointers);
    return st;
}

static enum dt_status write_model(struct saver *s, const struct dt_ckpt_share *share,
                                  struct dt_error *err)
{
    struct list l;
    enum dt_status st;
    size_t first = 0;

    DT_TRY(make_list(s, DT_PARAM_VALUE, DT_PARAM_VALUE, err, &l));
    cut(s, &l, share->shard_bytes_max);
    st = DT_OK;
    for (int i = 0; i < share->model.n && st == DT_OK; i++) {
        size_t last = first;
        char name[64];

        while (last < l.n && l.x[last].file == i)
            last++;
        dt_ckpt_file_name("model", share->model.first + i, share->model.total, name, sizeof(name));
        st = write_file(s, &l, first, last, name, err);
        first = last;
    }
    free_list(&l);
    return st;
}

static enum dt_status write_optimizer(struct saver *s, const struct dt_ckpt_share *share,
                                      struct dt_error *err)
{
    char name[64];
    struct list l;
    enum dt_status st;

    if (share->optimizer.n == 0)
        return DT_OK;
    dt_ckpt_file_name("optimizer", share->optimizer.first, share->optimizer.total, name,
                      sizeof(name));
    DT_TRY(make_list(s, DT_PARAM_AVG, DT_PARAM_AVG_SQ, err, &l));
    st = write_file(s, &l, 0, l.n, name, err);
    free_list(&l);
    return st;
}

enum dt_status dt_ckpt_count(struct dt_ckpt_share *share, struct dt_error *err)
{
    struct saver s = {.parts = share->parts, .n_parts = share->n_parts, .copies = share->copies};
    struct list l;

    DT_TRY(make_list(&s, DT_PARAM_VALUE, DT_PARAM_VALUE, err, &l));
    share->model.n = l.n ? cut(&s, &l, share->shard_bytes_max) : 0;
    free_list(&l);
    DT_TRY(make_list(&s, DT_PARAM_AVG, DT_PARAM_AVG_SQ, err, &l));
    share->optimizer.n = l.n > 0;
    free_list(&l);
    return DT_OK;
}

enum dt_status dt_ckpt_write(const char *dir, const struct dt_ckpt_share *share,
                             struct dt_ckpt_manifest *m, struct dt_error *err)
{
    struct saver s = {.parts = share->parts,
                      .n_parts = share->n_parts,
                      .copies = share->copies,
                      .manifest = m,
                      .dir = dir};

    snprintf(s.step, sizeof(s.step), "%" PRId64, share->step);
    /* "pt" is what Hugging Face's loaders want to see: rows first, as PyTorch has them */
    s.meta[0] = (struct dt_tensor_meta){"format", "pt"};
    s.meta[1] = (struct dt_tensor_meta){"disttrain_step", s.step};
    DT_TRY(write_model(&s, share, err));
    return write_optimizer(&s, share, err);
}

/* ---- one process alone ---- */

static enum dt_status write_all(const char *temp, struct dt_ckpt_share *s,
                                const struct dt_ckpt_state *state, struct dt_error *err)
{
    struct dt_ckpt_manifest own = {.step = state->step}, m = {.step = state->step};
    enum dt_status st = dt_ckpt_count(s, err);

    memcpy(m.run_id, state->run_id, sizeof(m.run_id));
    s->model.n = s->model.total = s->model.n ? s->model.n : 1;
    s->optimizer.n = s->optimizer.total = 1; /* also of no tensors */
    if (st == DT_OK && s->model.n > DT_TENSOR_FILES_MAX)
        st = dt_error_set(err, DT_ERR_INPUT, "a checkpoint of %d files; at most %d", s->model.n,
                          DT_TENSOR_FILES_MAX);
    if (st == DT_OK)
        st = dt_ckpt_write(temp, s, &own, err);
    if (st == DT_OK)
        st = dt_ckpt_manifest_merge(&m, &own, err);
    if (st == DT_OK && s->model.total > 1)
        st = dt_ckpt_index(temp, "model", s->model.total, &m, err);
    if (st == DT_OK)
        st = dt_ckpt_state_write(temp, state, &m, err);
    if (st == DT_OK)
        st = dt_ckpt_data_write(temp, state, &m, err);
    if (st == DT_OK)
        st = dt_ckpt_job_write(temp, state, &m, err);
    if (st == DT_OK)
        st = dt_ckpt_manifest_write(temp, "manifest.json", &m, err);
    dt_ckpt_manifest_free(&own);
    dt_ckpt_manifest_free(&m);
    return st;
}

enum dt_status dt_ckpt_save(const char *dir, const struct dt_ckpt_part *parts, int n_parts,
                            const struct dt_ckpt_state *state, const struct dt_ckpt_options *opt,
                            struct dt_error *err, char *path, size_t path_size)
{
    struct dt_ckpt_share s = {.parts = parts,
                              .n_parts = n_parts,
                              .copies = true,
                              .step = state->step,
                              .shard_bytes_max = opt->shard_bytes_max > 0
                                                     ? opt->shard_bytes_max
                                                     : DT_CKPT_SHARD_BYTES_MAX};
    char temp[PATH_MAX], final[PATH_MAX];
    enum dt_status st;
    uint64_t tag;

    DT_TRY(dt_ckpt_begin(dir, state->step, state->run_id, err, &tag, temp, sizeof(temp)));
    st = write_all(temp, &s, state, err);
    if (st == DT_OK)
        st = dt_ckpt_commit(dir, temp, state, opt, err, final, sizeof(final));
    if (st != DT_OK) {
        dt_ckpt_drop(temp);
        return st;
    }
    if (path && snprintf(path, path_size, "%s", final) >= (int)path_size)
        return dt_error_at(err, DT_ERR_INPUT, final, 0, 0, "file name too long");
    return DT_OK;
}
