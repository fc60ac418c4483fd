/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows that cross an edge between modules: the features of images that the LLM reads, the states of images that are
 * drawn; who has them, and where they lie on both sides.
 *
 *   document of the LLM, cp 2    | 0      | 1      | 1      | 0      |   owners of its chunks (batching_chunks.c)
 *   an image's rows                    [ a  |    b   | c ]               pieces a (1 row of 0), b, c (of 1): two of one owner
 */
#include "exec/program/execute_impl.h"

/* ---- pieces ---- */

static enum dt_status room(struct dt_exec_edge *e, struct dt_error *err)
{
    size_t most = (size_t)e->n + 1;

    if (dt_grow((void **)&e->rows, &e->cap_rows, most, sizeof(*e->rows)) ||
        dt_grow((void **)&e->owner, &e->cap_owner, most, sizeof(*e->owner)))
        return dt_error_nomem(err, "rows of samples");
    return DT_OK;
}

static enum dt_status add_piece(struct dt_exec_edge *e, int64_t rows, int owner,
                                struct dt_error *err)
{
    DT_TRY(room(e, err));
    e->rows[e->n] = rows;
    e->owner[e->n++] = owner;
    return DT_OK;
}

/* The rows of a unit of an edge, as rows of its sequence, in order. */
struct unit_rows {
    const struct dt_sequence *q;
    int item, last;  /* its items [item, last) */
    int context_len; /* 0: their features; else the conditioning states of those that are drawn */
};

static int64_t rows_of(const struct unit_rows *u, const struct dt_sequence_item *it)
{
    if (u->context_len > 0)
        return it->flags & DT_ITEM_GENERATE ? u->context_len : 0;
    return it->flags & DT_ITEM_ENCODE ? (int64_t)it->n : 0;
}

static int64_t row_at(const struct unit_rows *u, const struct dt_sequence_item *it, int64_t j)
{
    if (u->context_len > 0)
        return dt_batching_cond_row(&u->q->docs[it->doc], u->context_len, (int)j);
    return (int64_t)it->first + j;
}

/* The chunk that has the row, from c on, which is that of another row or in front of the first chunk. */
static void find_chunk(struct dt_batching_chunks *c, int n, const struct dt_sequence *q,
                       int64_t row)
{
    if (row < c->first)
        dt_batching_chunks_begin(c, n, q);
    while (row >= c->end && dt_batching_chunks_next(c))
        ;
}

/* One piece for every run of rows of one chunk. */
static enum dt_status cut_unit(struct dt_exec_edge *e, int n, const struct unit_rows *u,
                               struct dt_error *err)
{
    struct dt_batching_chunks c;
    int64_t rows = 0;

    dt_batching_chunks_begin(&c, n, u->q);
    for (int i = u->item; i < u->last; i++) {
        const struct dt_sequence_item *it = &u->q->items[i];

        for (int64_t j = 0; j < rows_of(u, it); j++, rows++) {
            int64_t row = row_at(u, it, j);

            if (row >= c.first && row < c.end)
                continue;
            if (rows > 0)
                DT_TRY(add_piece(e, rows, c.member, err));
            rows = 0;
            find_chunk(&c, n, u->q, row);
        }
    }
    return rows > 0 ? add_piece(e, rows, c.member, err) : DT_OK;
}

/* One piece of all of them. */
static enum dt_status keep_unit(struct dt_exec_edge *e, const struct unit_rows *u,
                                struct dt_error *err)
{
    int64_t rows = 0;

    for (int i = u->item; i < u->last; i++)
        rows += rows_of(u, &u->q->items[i]);
    return add_piece(e, rows, 0, err);
}

static enum dt_status add_unit(struct dt_exec_edge *e, int64_t *units, int n,
                               const struct unit_rows *u, struct dt_error *err)
{
    if (dt_grow((void **)&e->first, &e->cap_first, (size_t)*units + 2, sizeof(*e->first)))
        return dt_error_nomem(err, "rows of samples");
    e->first[(*units)++] = e->n;
    return n > 1 ? cut_unit(e, n, u, err) : keep_unit(e, u, err);
}

/* Units and pieces of all samples. */
static enum dt_status cut(const struct dt_exec_iteration *it, struct dt_exec_edge *e, int n,
                          int context_len, bool by_item, struct dt_error *err)
{
    int64_t units = 0;

    e->n = 0;
    if (dt_grow((void **)&e->unit, &e->cap_unit, (size_t)it->in->n + 1, sizeof(*e->unit)) ||
        dt_grow((void **)&e->first, &e->cap_first, 1, sizeof(*e->first)))
        return dt_error_nomem(err, "rows of samples");
    for (int64_t s = 0; s < it->in->n; s++) {
        const struct dt_sequence *q = it->in->seqs[s];

        e->unit[s] = units;
        if (!by_item)
            DT_TRY(add_unit(e, &units, n, &(struct unit_rows){q, 0, q->n_items, context_len}, err));
        for (int i = 0; by_item && i < q->n_items; i++)
            if (q->items[i].flags & DT_ITEM_ENCODE)
                DT_TRY(add_unit(e, &units, n, &(struct unit_rows){q, i, i + 1, context_len}, err));
    }
    e->unit[it->in->n] = units;
    e->first[units] = e->n;
    return DT_OK;
}

/* ---- where they lie ---- */

static void place_rows(const struct dt_program *p, const struct dt_exec_edge *e, int module,
                       int64_t *at_of, uint32_t *mb_of)
{
    const struct dt_assignment_module *a = &p->assignment->m[module];

    for (uint32_t mb = 0; mb < a->mb_first[a->n_replicas]; mb++) {
        int64_t at = 0;

        for (uint32_t i = 0; i < a->mb[mb].n; i++) {
            int64_t end, k = dt_exec_pieces(e, a, a->mb[mb].first + i, &end);

            for (; k < end; k++) {
                at_of[k] = at;
                mb_of[k] = mb;
                at += e->rows[k];
            }
        }
    }
}

/* In the LLM's microbatches, each owner's rows by themselves. */
static void place_own(const struct dt_program *p, const struct dt_exec_edge *e, int llm, int n)
{
    const struct dt_assignment_module *a = &p->assignment->m[llm];

    for (uint32_t mb = 0; mb < a->mb_first[a->n_replicas]; mb++)
        for (int owner = 0; owner < n; owner++) {
            int64_t at = 0;

            for (uint32_t i = 0; i < a->mb[mb].n; i++) {
                int64_t end, k = dt_exec_pieces(e, a, a->mb[mb].first + i, &end);

                for (; k < end; k++) {
                    if (e->owner[k] != owner)
                        continue;
                    e->own_at[k] = at;
                    at += e->rows[k];
                }
            }
        }
}

enum dt_status dt_exec_edges(struct dt_exec_iteration *it, const struct dt_exec_env *env,
                             struct dt_error *err)
{
    int llm = env->o.model->llm, n = env->o.plan->modules[llm].layout.cp;

    for (int k = 0; k < DT_EDGES; k++) {
        struct dt_exec_edge *e = &it->edge[k];
        int context_len = k == DT_EDGE_COND ? dt_batching_context_len(env->o.model) : 0;
        size_t most;

        if (e->src < 0)
            continue;
        DT_TRY(cut(it, e, n, context_len, it->p->assignment->m[e->src].items, err));
        most = (size_t)e->n + 1;
        if (dt_grow((void **)&e->src_at, &e->cap_src_at, most, sizeof(*e->src_at)) ||
            dt_grow((void **)&e->dst_at, &e->cap_dst_at, most, sizeof(*e->dst_at)) ||
            dt_grow((void **)&e->own_at, &e->cap_own_at, most, sizeof(*e->own_at)) ||
            dt_grow((void **)&e->src_mb, &e->cap_src_mb, most, sizeof(*e->src_mb)) ||
            dt_grow((void **)&e->dst_mb, &e->cap_dst_mb, most, sizeof(*e->dst_mb)))
            return dt_error_nomem(err, "rows of samples");
        place_rows(it->p, e, e->src, e->src_at, e->src_mb);
        place_rows(it->p, e, e->dst, e->dst_at, e->dst_mb);
        if (n > 1)
            place_own(it->p, e, llm, n);
    }
    return DT_OK;
}

void dt_exec_edge_free(struct dt_exec_edge *e)
{
    dt_free(e->unit);
    dt_free(e->first);
    dt_free(e->rows);
    dt_free(e->owner);
    dt_free(e->src_at);
    dt_free(e->dst_at);
    dt_free(e->own_at);
    dt_free(e->src_mb);
    dt_free(e->dst_mb);
}
