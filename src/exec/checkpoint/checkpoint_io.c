/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Parameters between parts and files, and lists of names for messages. */
#include "base/mem.h"
#include "exec/checkpoint/checkpoint_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum dt_status dt_ckpt_io_open(struct dt_ckpt_io *io, const struct dt_ckpt_part *part,
                               struct dt_error *err)
{
    size_t most = 1;

    for (int i = 0; i < part->n_params; i++)
        most = part->params[i].n > most ? part->params[i].n : most;
    io->host = dt_malloc(most * sizeof(float));
    io->turned = dt_malloc(most * sizeof(float));
    if (io->host && io->turned)
        return DT_OK;
    dt_ckpt_io_close(io);
    return dt_error_nomem(err, "a tensor's values");
}

void dt_ckpt_io_close(struct dt_ckpt_io *io)
{
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

const float *dt_ckpt_get(struct dt_ckpt_io *io, const struct dt_param *p, const float *flat)
{
    if (!p->transpose)
        return flat + p->at;
    /* [out][in] here, shape says [in][out] */
    transpose(flat + p->at, (size_t)p->shape[1], (size_t)p->shape[0], io->turned);
    return io->turned;
}

float *dt_ckpt_buffer(struct dt_ckpt_io *io)
{
    return io->host;
}

float *dt_ckpt_flat(const struct dt_ckpt_part *part, enum dt_param_what what)
{
    return what == DT_PARAM_VALUE ? part->master
           : what == DT_PARAM_AVG ? part->exp_avg
                                  : part->exp_avg_sq;
}

enum dt_status dt_ckpt_put(struct dt_ckpt_io *io, const struct dt_ckpt_part *part,
                           enum dt_param_what what, int i, struct dt_error *err)
{
    const struct dt_param *p = &part->params[i];
    const float *from = io->host;

    if (p->transpose) {
        transpose(io->host, (size_t)p->shape[0], (size_t)p->shape[1], io->turned);
        from = io->turned;
    }
    if (part->put)
        return part->put(part->arg, what, i, from, err);
    memcpy(dt_ckpt_flat(part, what) + p->at, from, p->n * sizeof(float));
    return DT_OK;
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
    return (part->put || (part->exp_avg && part->exp_avg_sq)) &&
           (!part->trained || part->trained[i]);
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
