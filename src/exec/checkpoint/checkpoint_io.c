/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parameters between devices and files, and lists of names for messages. */
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum dt_status dt_ckpt_io_open(struct dt_ckpt_io *io, const struct dt_ckpt_part *part,
                               struct dt_error *err)
{
    enum dt_status st;
    size_t most = 1;

    memset(io, 0, sizeof(*io));
    for (int i = 0; i < part->n_params; i++)
        most = part->params[i].n > most ? part->params[i].n : most;
    io->dev = part->device;
    io->floats = most;
    io->host = dt_malloc(most * sizeof(float));
    io->turned = dt_malloc(most * sizeof(float));
    st = io->host && io->turned ? DT_OK : dt_error_nomem(err, "a tensor's values");
    if (st == DT_OK && io->dev)
        st = io->dev->queue_new(io->dev, false, err, &io->q);
    if (st != DT_OK)
        dt_ckpt_io_close(io);
    return st;
}

void dt_ckpt_io_close(struct dt_ckpt_io *io)
{
    if (io->q)
        io->dev->queue_free(io->q);
    dt_free(io->host);
    dt_free(io->turned);
    memset(io, 0, sizeof(*io));
}

/* to[c][r] = from[r][c] */
static void transpose(const float *from, size_t rows, size_t cols, float *to)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            to[c * rows + r] = from[r * cols + c];
}

enum dt_status dt_ckpt_get(struct dt_ckpt_io *io, const struct dt_param *p, const float *flat,
                           struct dt_error *err, const float **out)
{
    const float *lies = flat + p->at;

    if (io->dev) {
        io->dev->copy(io->q, io->host, lies, p->n * sizeof(float), DT_COPY_TO_HOST);
        DT_TRY(io->dev->queue_sync(io->q, err));
        lies = io->host;
    }
    *out = lies;
    if (p->transpose) { /* [out][in] here, shape says [in][out] */
        transpose(lies, (size_t)p->shape[1], (size_t)p->shape[0], io->turned);
        *out = io->turned;
    }
    return DT_OK;
}

float *dt_ckpt_buffer(struct dt_ckpt_io *io)
{
    return io->host;
}

enum dt_status dt_ckpt_put(struct dt_ckpt_io *io, const struct dt_param *p, float *flat,
                           struct dt_error *err)
{
    const float *from = io->host;

    if (p->transpose) {
        transpose(io->host, (size_t)p->shape[0], (size_t)p->shape[1], io->turned);
        from = io->turned;
    }
    io->dev->copy(io->q, flat + p->at, from, p->n * sizeof(float), DT_COPY_TO_DEVICE);
    return io->dev->queue_sync(io->q, err);
}

/* A 1 x 1 filter [out, in, 1, 1] is a matrix [out, in]: diffusers has both (use_linear_projection).
 */
bool dt_ckpt_same_shape(const struct dt_param *p, const struct dt_tensor *x)
{
    int most = p->n_dims > x->n_dims ? p->n_dims : x->n_dims;

    if (p->n != x->n)
        return false;
    for (int i = 0; i < most; i++)
        if ((i < p->n_dims ? p->shape[i] : 1) != (i < x->n_dims ? x->shape[i] : 1))
            return false;
    return true;
}

bool dt_ckpt_has_moments(const struct dt_ckpt_part *part, int i)
{
    return part->exp_avg && part->exp_avg_sq && (!part->trained || part->trained[i]);
}

/* ---- names ---- */

void dt_ckpt_names_add(struct dt_ckpt_names *l, const char *fmt, ...)
{
    char name[512];
    size_t n;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(name, sizeof(name), fmt, ap);
    va_end(ap);
    n = strlen(name);
    l->n++;
    if (l->left_out || l->used + n + 40 > sizeof(l->text)) { /* 40: ", " and the words of the end */
        l->left_out++;
        return;
    }
    l->used += (size_t)snprintf(l->text + l->used, sizeof(l->text) - l->used, "%s%s",
                                l->used ? ", " : "", name);
}

const char *dt_ckpt_names_end(struct dt_ckpt_names *l)
{
    if (l->left_out)
        snprintf(l->text + l->used, sizeof(l->text) - l->used, " and %" PRId64 " more",
                 l->left_out);
    return l->text;
}
