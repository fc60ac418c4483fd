/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Loading: our own checkpoints, all or nothing and checked; and weights of others, by name. */
#include "base/finite.h"
#include "base/mem.h"
#include "base/text.h"
#include "exec/checkpoint/checkpoint_impl.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct loader {
    const struct dt_ckpt_part *part;
    struct dt_ckpt_io io;
    const struct dt_tensors *t;
    const struct dt_ckpt_manifest *manifest; /* NULL: foreign, without checksums */
    unsigned char *used;                     /* per tensor of the file */
    struct dt_ckpt_names missing, shapes;
};

static size_t index_of(const struct dt_tensors *t, const struct dt_tensor *x)
{
    return (size_t)(x - dt_tensors_at(t, 0));
}

/* A model with such a value computes nothing else from then on. */
static enum dt_status all_finite(struct loader *l, const struct dt_tensor *x, struct dt_error *err)
{
    struct dt_nonfinite bad = {.nan = 0};
    char text[128];

    dt_nonfinite_count(dt_ckpt_buffer(&l->io), (size_t)x->n, &bad);
    if (dt_nonfinite_all(&bad) == 0)
        return DT_OK;
    return dt_error_at(err, DT_ERR_INPUT, dt_tensors_file_name(l->t, x->file), 0, 0,
                       "tensor \"%s\": %s; take %s", x->name,
                       dt_nonfinite_text(&bad, x->n, text, sizeof(text)),
                       l->manifest ? "an older checkpoint, or start a new run"
                                   : "weights from before that happened, or repair the file");
}

/* One tensor of the file into one parameter's place. */
static enum dt_status take(struct loader *l, enum dt_param_what what, int i,
                           const struct dt_tensor *x, struct dt_error *err)
{
    const struct dt_param *p = &l->part->params[i];
    char ours[128], theirs[128];
    uint32_t crc;

    l->used[index_of(l->t, x)] = 1;
    if (!dt_ckpt_same_shape(p, x)) {
        dt_ckpt_names_add(&l->shapes, "%s is %s, should be %s", x->name,
                          dt_tensor_shape_text(x->n_dims, x->shape, theirs, sizeof(theirs)),
                          dt_tensor_shape_text(p->n_dims, p->shape, ours, sizeof(ours)));
        return DT_OK;
    }
    DT_TRY(dt_tensors_read_f32(l->t, x, err, dt_ckpt_buffer(&l->io), &crc));
    if (l->manifest && dt_ckpt_manifest_find(l->manifest, x->name)->crc != crc)
        return dt_error_at(err, DT_ERR_INPUT, dt_tensors_file_name(l->t, x->file), 0, 0,
                           "damaged: the checksum of tensor \"%s\" is wrong", x->name);
    DT_TRY(all_finite(l, x, err));
    return dt_ckpt_put(&l->io, l->part, what, i, err);
}

/* ---- our own ---- */

static enum dt_status load_part(struct loader *l, enum dt_param_what what, struct dt_error *err)
{
    for (int i = 0; i < l->part->n_params; i++) {
        char name[DT_CKPT_NAME_MAX];
        const struct dt_tensor *x;

        if (what != DT_PARAM_VALUE && !dt_ckpt_has_moments(l->part, i))
            continue;
        snprintf(name, sizeof(name), "%s%s.%s", dt_ckpt_prefixes[what], l->part->module,
                 l->part->params[i].name);
        x = dt_tensors_find(l->t, name);
        if (x)
            DT_TRY(take(l, what, i, x, err));
        else
            dt_ckpt_names_add(&l->missing, "%s", name);
    }
    return DT_OK;
}

/* Tensors of the given modules that no parameter took; other modules are not our business. */
static void list_unexpected(const struct loader *l, const struct dt_ckpt_part *parts, int n_parts,
                            struct dt_ckpt_names *out)
{
    for (size_t i = 0; i < dt_tensors_count(l->t); i++) {
        const char *name = dt_tensors_at(l->t, i)->name, *slash = strchr(name, '/');
        bool ours = false;

        for (int p = 0; p < n_parts && !l->used[i]; p++) {
            const char *from = slash ? slash + 1 : name;
            size_t n = strlen(parts[p].module);

            ours |= strncmp(from, parts[p].module, n) == 0 && from[n] == '.';
        }
        if (ours)
            dt_ckpt_names_add(out, "%s", name);
    }
}

static enum dt_status verdict(struct loader *l, const struct dt_ckpt_part *parts, int n_parts,
                              const char *path, struct dt_error *err)
{
    struct dt_ckpt_names unexpected = {.n = 0};

    list_unexpected(l, parts, n_parts, &unexpected);
    if (l->missing.n + l->shapes.n + unexpected.n == 0)
        return DT_OK;
    return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "does not fit the model%s%s%s%s%s%s",
                       l->missing.n ? "; missing: " : "", dt_ckpt_names_end(&l->missing),
                       unexpected.n ? "; unexpected: " : "", dt_ckpt_names_end(&unexpected),
                       l->shapes.n ? "; of another shape: " : "", dt_ckpt_names_end(&l->shapes));
}

static enum dt_status load_file(const char *path, const char *name,
                                const struct dt_ckpt_manifest *m, const struct dt_ckpt_part *parts,
                                int n_parts, bool moments, struct dt_error *err)
{
    struct loader l = {.manifest = m};
    struct dt_tensors *t = NULL;
    enum dt_status st;

    DT_TRY(dt_ckpt_manifest_open_tensors(path, name, m, err, &t));
    l.t = t;
    l.used = dt_calloc(dt_tensors_count(t) + 1, 1);
    st = l.used ? DT_OK : dt_error_nomem(err, "a list of tensors");
    for (int p = 0; p < n_parts && st == DT_OK; p++) {
        l.part = &parts[p];
        st = dt_ckpt_io_open(&l.io, l.part, err);
        if (st != DT_OK)
            break;
        st = load_part(&l, moments ? DT_PARAM_AVG : DT_PARAM_VALUE, err);
        if (moments && st == DT_OK)
            st = load_part(&l, DT_PARAM_AVG_SQ, err);
        dt_ckpt_io_close(&l.io);
    }
    if (st == DT_OK)
        st = verdict(&l, parts, n_parts, dt_tensors_file_name(t, 0), err);
    dt_free(l.used);
    dt_tensors_close(t);
    return st;
}

static bool lists(const struct dt_ckpt_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->n_files; i++)
        if (strcmp(m->files[i].name, name) == 0)
            return true;
    return false;
}

/* What says that the file is not there names the file of a small model. */
static const char *one_or_index(const struct dt_ckpt_manifest *m, const char *one,
                                const char *index)
{
    return !lists(m, one) && lists(m, index) ? index : one;
}

static enum dt_status read_state(const char *path, const struct dt_ckpt_manifest *m,
                                 struct dt_error *err, struct dt_ckpt_state *out)
{
    if (!lists(m, "state.json"))
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "the manifest has no state.json");
    DT_TRY(dt_ckpt_state_read(path, err, out));
    if (out->step != m->step)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                           "state.json is of step %" PRId64 ", the manifest of step %" PRId64,
                           out->step, m->step);
    memcpy(out->run_id, m->run_id, sizeof(out->run_id));
    return DT_OK;
}

enum dt_status dt_ckpt_read_state(const char *path, struct dt_error *err, struct dt_ckpt_state *out)
{
    struct dt_ckpt_state state;
    struct dt_ckpt_manifest m;
    enum dt_status st;

    DT_TRY(dt_ckpt_manifest_read(path, "manifest.json", err, &m));
    st = read_state(path, &m, err, &state);
    dt_ckpt_manifest_free(&m);
    if (st == DT_OK)
        *out = state;
    return st;
}

enum dt_status dt_ckpt_read_data(const char *path, const struct dt_warn *warn, struct dt_error *err,
                                 struct dt_shard_prints *out)
{
    struct dt_ckpt_manifest m;
    enum dt_status st = DT_OK;
    int version;
    bool there;

    memset(out, 0, sizeof(*out));
    DT_TRY(dt_ckpt_manifest_read(path, "manifest.json", err, &m));
    there = lists(&m, "data.json");
    version = m.version;
    dt_ckpt_manifest_free(&m);
    if (there)
        st = dt_ckpt_data_read(path, err, out);
    else if (version >= 2)
        st = dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                         "this checkpoint has no data.json, which says what data it was trained "
                         "on; --changed-data resumes with the present data");
    else
        dt_warn(warn,
                "%s is from before checkpoints recorded the contents of the data: only names and "
                "sizes of the shards can be compared",
                path);
    return st;
}

enum dt_status dt_ckpt_read_job(const char *path, struct dt_error *err, struct dt_ckpt_job *out)
{
    struct dt_ckpt_manifest m;
    bool there;

    memset(out, 0, sizeof(*out));
    DT_TRY(dt_ckpt_manifest_read(path, "manifest.json", err, &m));
    there = lists(&m, "job.json");
    dt_ckpt_manifest_free(&m);
    return there ? dt_ckpt_job_read(path, err, out) : DT_OK;
}

enum dt_status dt_ckpt_load(const char *path, const struct dt_ckpt_part *parts, int n_parts,
                            bool moments, struct dt_error *err, struct dt_ckpt_state *out)
{
    struct dt_ckpt_state state;
    struct dt_ckpt_manifest m;
    enum dt_status st;

    DT_TRY(dt_ckpt_manifest_read(path, "manifest.json", err, &m));
    st = read_state(path, &m, err, &state);
    if (st == DT_OK)
        st = load_file(path, one_or_index(&m, "model.safetensors", "model.safetensors.index.json"),
                       &m, parts, n_parts, false, err);
    if (st == DT_OK && moments)
        st = load_file(
            path, one_or_index(&m, "optimizer.safetensors", "optimizer.safetensors.index.json"), &m,
            parts, n_parts, true, err);
    dt_ckpt_manifest_free(&m);
    if (st == DT_OK && out)
        *out = state;
    return st;
}

/* ---- weights of others ---- */

/* What the base models of LlamaForCausalLM, GPT2LMHeadModel, ViTForImageClassification,
 * CLIPVisionModel and SiglipVisionModel are called inside of them; their own files lack it. */
static const char *const base_prefixes[] = {"model.", "transformer.", "vit.", "vision_model."};

static const struct dt_tensor *find_foreign(const struct dt_tensors *t, const char *module,
                                            const char *name)
{
    char full[2 * DT_CKPT_NAME_MAX];
    const struct dt_tensor *x;

    snprintf(full, sizeof(full), "%s.%s", module, name);
    x = dt_tensors_find(t, full);
    if (!x)
        x = dt_tensors_find(t, name);
    for (size_t i = 0; i < sizeof(base_prefixes) / sizeof(base_prefixes[0]) && !x; i++) {
        size_t n = strlen(base_prefixes[i]);

        snprintf(full, sizeof(full), "%s%s", base_prefixes[i], name);
        x = dt_tensors_find(t, full);
        if (!x && strncmp(name, base_prefixes[i], n) == 0)
            x = dt_tensors_find(t, name + n);
    }
    return x;
}

static struct dt_ckpt_init_module *module_of(struct dt_ckpt_init_report *r, const char *name)
{
    int i = 0;

    while (i < r->n_modules && strcmp(r->modules[i].name, name) != 0)
        i++;
    if (i == r->n_modules && i < DT_MAX_MODULES)
        snprintf(r->modules[r->n_modules++].name, sizeof(r->modules[i].name), "%s", name);
    return &r->modules[i < DT_MAX_MODULES ? i : 0];
}

static void note_missing(struct dt_ckpt_init_module *m, const char *name)
{
    enum { FIRST_FEW = 3 };
    size_t used = strlen(m->expected);

    if (m->missing++ < FIRST_FEW)
        snprintf(m->expected + used, sizeof(m->expected) - used, "%s%s", used ? ", " : "", name);
}

/* The matrices and tables of one block. */
struct block {
    int number;
    int64_t found, missing;
    const char *lacks; /* the first of the missing */
};

static void end_block(struct dt_ckpt_init_module *m, const struct block *b)
{
    if (b->found > 0 && b->missing > 0 && m->halves++ == 0)
        snprintf(m->half, sizeof(m->half), "%s", b->lacks);
}

static void note_matrix(struct dt_ckpt_init_module *m, struct block *b, const struct dt_param *p,
                        bool found)
{
    if (p->block != b->number) {
        end_block(m, b);
        *b = (struct block){.number = p->block};
    }
    if (!p->decay)
        return;
    if (!found && b->missing == 0)
        b->lacks = p->name;
    b->found += found;
    b->missing += !found;
}

static enum dt_status init_part(struct loader *l, struct dt_ckpt_init_report *r,
                                struct dt_error *err)
{
    struct dt_ckpt_init_module *m = module_of(r, l->part->module);
    struct block b = {.number = -1};

    m->asked += l->part->n_params;
    for (int i = 0; i < l->part->n_params; i++) {
        const struct dt_param *p = &l->part->params[i];
        const struct dt_tensor *x = find_foreign(l->t, l->part->module, p->name);

        note_matrix(m, &b, p, x != NULL);
        if (!x) {
            note_missing(m, p->name);
            dt_ckpt_names_add(&l->missing, "%s.%s", l->part->module, p->name);
            continue;
        }
        DT_TRY(take(l, DT_PARAM_VALUE, i, x, err));
        m->found++;
        r->loaded++;
    }
    end_block(m, &b);
    return DT_OK;
}

static void count_unused(const struct loader *l, struct dt_ckpt_init_report *r)
{
    for (size_t i = 0; i < dt_tensors_count(l->t); i++)
        for (int k = 0; k < r->n_modules && !l->used[i]; k++) {
            const char *name = dt_tensors_at(l->t, i)->name;
            size_t n = strlen(r->modules[k].name);

            r->modules[k].unused += strncmp(name, r->modules[k].name, n) == 0 && name[n] == '.';
        }
}

enum dt_status dt_ckpt_init_check_modules(const struct dt_ckpt_init_report *r, const char *path,
                                          struct dt_error *err)
{
    static const char accept[] = "to accept that, use --init-partial (run.init_partial: true)";
    const char *has = r->unexpected ? r->unexpected_names : "nothing else";

    for (int k = 0; k < r->n_modules; k++) {
        const struct dt_ckpt_init_module *m = &r->modules[k];

        if (m->found == 0 && m->asked > 0)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                               "none of the %" PRId64 " parameters of module \"%s\" is there, so "
                               "that it would start at random; looked for %s%s; the file also has "
                               "%.300s; %s",
                               m->asked, m->name, m->expected, m->missing > 3 ? " and others" : "",
                               has, accept);
        if (m->halves > 0)
            return dt_error_at(err, DT_ERR_INPUT, path, 0, 0,
                               "%" PRId64
                               " layer%s of module \"%s\" %s there in part, and the rest "
                               "would start at random; looked for %s, for one; the file also has "
                               "%.300s; %s",
                               m->halves, dt_plural(m->halves), m->name,
                               m->halves == 1 ? "is" : "are", m->half, has, accept);
    }
    return DT_OK;
}

static enum dt_status init_verdict(struct loader *l, bool partial, const char *path,
                                   struct dt_error *err, struct dt_ckpt_init_report *r)
{
    struct dt_ckpt_names unexpected = {.n = 0};

    for (size_t i = 0; i < dt_tensors_count(l->t); i++)
        if (!l->used[i])
            dt_ckpt_names_add(&unexpected, "%s", dt_tensors_at(l->t, i)->name);
    count_unused(l, r);
    r->missing = l->missing.n;
    r->unexpected = unexpected.n;
    snprintf(r->missing_names, sizeof(r->missing_names), "%s", dt_ckpt_names_end(&l->missing));
    snprintf(r->unexpected_names, sizeof(r->unexpected_names), "%s",
             dt_ckpt_names_end(&unexpected));
    if (l->shapes.n)
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "tensors of another shape: %s",
                           dt_ckpt_names_end(&l->shapes));
    if (r->loaded == 0 || (l->missing.n && !partial))
        return dt_error_at(err, DT_ERR_INPUT, path, 0, 0, "%s: %s%s%s",
                           r->loaded ? "tensors are missing" : "none of the tensors is there",
                           r->missing_names, unexpected.n ? "; it has: " : "", r->unexpected_names);
    return DT_OK;
}

static enum dt_status init_all(struct loader *l, const struct dt_ckpt_part *parts, int n_parts,
                               bool partial, const char *path, struct dt_error *err,
                               struct dt_ckpt_init_report *r)
{
    enum dt_status st = DT_OK;

    for (int p = 0; p < n_parts && st == DT_OK; p++) {
        l->part = &parts[p];
        st = dt_ckpt_io_open(&l->io, l->part, err);
        if (st != DT_OK)
            break;
        st = init_part(l, r, err);
        dt_ckpt_io_close(&l->io);
    }
    return st == DT_OK ? init_verdict(l, partial, path, err, r) : st;
}

/* A checkpoint of ours, or a folder of them, is checked like any of ours. */
static enum dt_status open_source(const char *path, struct dt_error *err, struct dt_tensors **t,
                                  struct dt_ckpt_manifest *m, bool *checked)
{
    char found[PATH_MAX];
    struct stat sb;
    bool ours = false;

    *checked = false;
    if (stat(path, &sb) == 0 && S_ISDIR(sb.st_mode))
        DT_TRY(dt_ckpt_find(path, err, &ours, found, sizeof(found)));
    if (!ours)
        return dt_tensors_open(path, err, t);
    DT_TRY(dt_ckpt_manifest_read(found, "manifest.json", err, m));
    *checked = true;
    return dt_ckpt_manifest_open_tensors(
        found, lists(m, "model.safetensors") ? "model.safetensors" : "model.safetensors.index.json",
        m, err, t);
}

enum dt_status dt_ckpt_init_from(const char *path, const struct dt_ckpt_part *parts, int n_parts,
                                 bool partial, struct dt_error *err,
                                 struct dt_ckpt_init_report *out)
{
    struct dt_ckpt_manifest m = {.step = 0};
    struct dt_ckpt_init_report r = {.loaded = 0};
    struct dt_tensors *t = NULL;
    struct loader l = {.part = NULL};
    enum dt_status st;
    bool checked;

    st = open_source(path, err, &t, &m, &checked);
    if (st == DT_OK) {
        l.t = t;
        l.manifest = checked ? &m : NULL;
        l.used = dt_calloc(dt_tensors_count(t) + 1, 1);
        st = l.used ? init_all(&l, parts, n_parts, partial, path, err, &r)
                    : dt_error_nomem(err, "a list of tensors");
    }
    dt_free(l.used);
    dt_tensors_close(t);
    dt_ckpt_manifest_free(&m);
    if (st == DT_OK)
        *out = r;
    return st;
}
