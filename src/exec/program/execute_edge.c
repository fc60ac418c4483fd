/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows that cross an edge between modules: the features of images that the LLM reads, the states of images that are
 * drawn; who has them, and where they lie on both sides.  A row goes from the member that has it to the member that
 * needs it, once.
 *
 *   encoder's rows of a microbatch, tp 2    | member 0        | member 1        |
 *   images                                  [ a     |     b        |     c      ]
 *   the LLM's rows, tp 2                 | text   a    text | b     text   c    |
 *                                        | member 0         | member 1          |
 *   pieces                                  a (0 to 0), b (0 to 1), b (1 to 1), c (1 to 1)
 *
 * The LLM's rows are cut twice: documents by context parallelism (batching_chunks.c), a member's rows of a microbatch by
 * tensor parallelism. */
#include "exec/program/execute_impl.h"

#include <string.h>

/* Where things are in the microbatches of both sides. */
struct places {
    int n, tp; /* cp and tp of the LLM */
    int64_t *
        half_at; /* [sample 2n + 2 member + half]: the first of a cp member's early or late rows among all that it has */
    int64_t *rows;   /* [microbatch n + cp member] */
    int64_t *mb;     /* [sample] */
    int64_t *own_at; /* [member]: rows so far */
    /* the other module */
    int other_tp;
    int64_t *unit_at;    /* [unit]: its first row in its microbatch */
    int64_t *unit_mb;    /* [unit] */
    int64_t *other_rows; /* [microbatch] */
};

/* ---- the LLM's rows ---- */

static int64_t half_rows(const struct places *w, const struct dt_sequence *q, int member, int half)
{
    if (w->n > 1)
        return dt_batching_cut_rows(q, w->n, member, half);
    return half == 0 ? q->n_tokens : 0;
}

/* Early halves of all samples of a microbatch, then late ones, for each member. */
static void place_halves(const struct dt_exec_iteration *it, int llm, struct places *w)
{
    const struct dt_assignment_module *a = &it->p->assignment->m[llm];

    for (uint32_t mb = 0; mb < a->mb_first[a->n_replicas]; mb++)
        for (int member = 0; member < w->n; member++) {
            int64_t at = 0;

            for (int half = 0; half < 2; half++)
                for (uint32_t i = 0; i < a->mb[mb].n; i++) {
                    int64_t s = a->samples[a->mb[mb].first + i];

                    w->half_at[2 * (s * w->n + member) + half] = at;
                    w->mb[s] = mb;
                    at += half_rows(w, it->in->seqs[s], member, half);
                }
            w->rows[(int64_t)mb * w->n + member] = at;
        }
}

/* The chunks of sample s.  Its halves' places are used up. */
static enum dt_status list_chunks(struct dt_exec_edge *e, const struct places *w, int64_t s,
                                  const struct dt_sequence *q, struct dt_error *err)
{
    struct dt_batching_chunks c;

    e->n_chunks = 0;
    dt_batching_chunks_begin(&c, w->n, q);
    while (dt_batching_chunks_next(&c)) {
        int64_t *at = &w->half_at[2 * (s * w->n + c.member) + c.half];

        if (dt_grow((void **)&e->chunk, &e->cap_chunk, (size_t)e->n_chunks + 1, sizeof(*e->chunk)))
            return dt_error_nomem(err, "rows of samples");
        e->chunk[e->n_chunks++] = (struct dt_exec_chunk){c.member, c.first, c.end, *at};
        *at += c.end - c.first;
    }
    return DT_OK;
}

/* The one that has the row, from chunk k on. */
static int64_t find_chunk(const struct dt_exec_edge *e, int64_t k, int64_t row)
{
    while (k > 0 && row < e->chunk[k].first)
        k--;
    while (k + 1 < e->n_chunks && row >= e->chunk[k].end)
        k++;
    return k;
}

/* ---- units ---- */

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

static int64_t all_rows(const struct unit_rows *u)
{
    int64_t n = 0;

    for (int i = u->item; i < u->last; i++)
        n += rows_of(u, &u->q->items[i]);
    return n;
}

/* What items the edge is for. */
static uint32_t flag_of(int context_len)
{
    return context_len > 0 ? DT_ITEM_GENERATE : DT_ITEM_ENCODE;
}

/* Numbers units: a sample, or each of its items that cross the edge. */
static enum dt_status number_units(const struct dt_exec_iteration *it, struct dt_exec_edge *e,
                                   bool by_item, int context_len, struct dt_error *err)
{
    int64_t units = 0;

    if (dt_grow((void **)&e->unit, &e->cap_unit, (size_t)it->in->n + 1, sizeof(*e->unit)))
        return dt_error_nomem(err, "rows of samples");
    for (int64_t s = 0; s < it->in->n; s++) {
        const struct dt_sequence *q = it->in->seqs[s];

        e->unit[s] = units;
        units += by_item ? 0 : 1;
        for (int i = 0; by_item && i < q->n_items; i++)
            units += (q->items[i].flags & flag_of(context_len)) != 0;
    }
    e->unit[it->in->n] = units;
    if (dt_grow((void **)&e->first, &e->cap_first, (size_t)units + 1, sizeof(*e->first)))
        return dt_error_nomem(err, "rows of samples");
    return DT_OK;
}

/* The unit of sample s whose number among its units is k. */
static struct unit_rows unit_of(const struct dt_exec_iteration *it, int64_t s, int64_t k,
                                bool by_item, int context_len)
{
    const struct dt_sequence *q = it->in->seqs[s];
    int i = 0;

    if (!by_item)
        return (struct unit_rows){q, 0, q->n_items, context_len};
    while (!(q->items[i].flags & flag_of(context_len)) || k-- > 0)
        i++;
    return (struct unit_rows){q, i, i + 1, context_len};
}

/* In the other module's microbatches. */
static void place_units(const struct dt_exec_iteration *it, const struct dt_exec_edge *e, int other,
                        int context_len, struct places *w)
{
    const struct dt_assignment_module *a = &it->p->assignment->m[other];
    bool by_item = a->items != NULL;

    for (uint32_t mb = 0; mb < a->mb_first[a->n_replicas]; mb++) {
        int64_t at = 0;

        for (uint32_t i = 0; i < a->mb[mb].n; i++) {
            uint32_t k = a->mb[mb].first + i;
            int64_t s = a->samples[k], first = a->items ? a->items[k] : 0;
            int64_t last = a->items ? first + 1 : e->unit[s + 1] - e->unit[s];

            for (int64_t u = first; u < last; u++) {
                struct unit_rows r = unit_of(it, s, u, by_item, context_len);

                w->unit_at[e->unit[s] + u] = at;
                w->unit_mb[e->unit[s] + u] = mb;
                at += all_rows(&r);
            }
        }
        w->other_rows[mb] = at;
    }
}

/* ---- pieces ---- */

/* The share of `members` that row `at` of `rows` is in: its number and rows. */
static int share_of(int members, int64_t rows, int64_t at, int64_t *lo, int64_t *hi)
{
    struct dt_batch_cut c = {.tp = members};

    do
        dt_batch_own(&c, rows, lo, hi);
    while (at >= *hi && ++c.part < members);
    return c.part;
}

/* Of the piece that is being made: until where its members stay the same. */
struct reach {
    int64_t chunk;
    int64_t lo, hi; /* rows of the sequence */
    int64_t end;    /* rows of the other module's microbatch */
};

static enum dt_status begin_piece(struct dt_exec_edge *e, const struct places *w, int llm_side,
                                  int64_t s, int64_t unit, int64_t row, int64_t at, struct reach *r,
                                  struct dt_error *err)
{
    const struct dt_exec_chunk *c;
    int64_t lo, hi, other_lo;
    struct dt_exec_rows *p;

    if (dt_grow((void **)&e->piece, &e->cap_piece, (size_t)e->n + 1, sizeof(*e->piece)))
        return dt_error_nomem(err, "rows of samples");
    p = &e->piece[e->n++];
    *p = (struct dt_exec_rows){0};
    r->chunk = find_chunk(e, r->chunk, row);
    c = &e->chunk[r->chunk];
    p->owner[llm_side] = c->member * w->tp + share_of(w->tp, w->rows[w->mb[s] * w->n + c->member],
                                                      c->at + row - c->first, &lo, &hi);
    p->mb[llm_side] = (uint32_t)w->mb[s];
    r->lo = lo > c->at ? c->first + lo - c->at : c->first;
    r->hi = c->first + hi - c->at < c->end ? c->first + hi - c->at : c->end;
    p->owner[!llm_side] =
        share_of(w->other_tp, w->other_rows[w->unit_mb[unit]], at, &other_lo, &r->end);
    p->mb[!llm_side] = (uint32_t)w->unit_mb[unit];
    p->at[!llm_side] = at - other_lo;
    return DT_OK;
}

static enum dt_status cut_unit(struct dt_exec_edge *e, const struct places *w, int llm_side,
                               int64_t s, int64_t unit, const struct unit_rows *u,
                               struct dt_error *err)
{
    struct reach r = {0, 0, -1, -1};
    int64_t at = w->unit_at[unit];

    e->first[unit] = e->n;
    for (int i = u->item; i < u->last; i++) {
        const struct dt_sequence_item *it = &u->q->items[i];

        for (int64_t j = 0; j < rows_of(u, it); j++, at++) {
            int64_t row = row_at(u, it, j);

            if (row < r.lo || row >= r.hi || at >= r.end)
                DT_TRY(begin_piece(e, w, llm_side, s, unit, row, at, &r, err));
            e->piece[e->n - 1].n++;
        }
    }
    return DT_OK;
}

/* In the LLM's microbatches, each owner's rows by themselves, in the order in which a batch lists them. */
static void place_own(const struct dt_program *p, struct dt_exec_edge *e, int llm, int llm_side,
                      const struct places *w)
{
    const struct dt_assignment_module *a = &p->assignment->m[llm];

    for (uint32_t mb = 0; mb < a->mb_first[a->n_replicas]; mb++) {
        memset(w->own_at, 0, (size_t)(w->n * w->tp) * sizeof(*w->own_at));
        for (uint32_t i = 0; i < a->mb[mb].n; i++) {
            int64_t end, k = dt_exec_pieces(e, a, a->mb[mb].first + i, &end);

            for (; k < end; k++) {
                struct dt_exec_rows *r = &e->piece[k];

                r->at[llm_side] = w->own_at[r->owner[llm_side]];
                w->own_at[r->owner[llm_side]] += r->n;
            }
        }
    }
}

/* ---- all ---- */

static int64_t *part(int64_t **rest, size_t n)
{
    int64_t *p = *rest;

    *rest += n;
    return p;
}

static enum dt_status make_places(const struct dt_exec_iteration *it, const struct dt_exec_env *env,
                                  struct dt_exec_edge *e, int other, struct places *w,
                                  struct dt_error *err)
{
    const struct dt_assignment_module *a = it->p->assignment->m;
    int llm = env->o.model->llm;
    size_t samples = (size_t)it->in->n, units = (size_t)e->unit[it->in->n], n, all;
    size_t mbs = a[llm].mb_first[a[llm].n_replicas],
           others = a[other].mb_first[a[other].n_replicas];
    int64_t *rest;

    w->n = env->o.plan->modules[llm].layout.cp;
    w->tp = env->o.plan->modules[llm].layout.tp;
    w->other_tp = env->o.plan->modules[other].layout.tp;
    n = (size_t)w->n;
    all = samples * (2 * n + 1) + mbs * n + n * (size_t)w->tp + 2 * units + others;
    if (dt_grow((void **)&e->places, &e->cap_places, all + 1, sizeof(*e->places)))
        return dt_error_nomem(err, "rows of samples");
    memset(e->places, 0, all * sizeof(*e->places));
    rest = e->places;
    w->half_at = part(&rest, 2 * samples * n);
    w->mb = part(&rest, samples);
    w->rows = part(&rest, mbs * n);
    w->own_at = part(&rest, n * (size_t)w->tp);
    w->unit_at = part(&rest, units);
    w->unit_mb = part(&rest, units);
    w->other_rows = part(&rest, others);
    return DT_OK;
}

static enum dt_status cut(const struct dt_exec_iteration *it, const struct dt_exec_env *env,
                          struct dt_exec_edge *e, int context_len, struct dt_error *err)
{
    int llm = env->o.model->llm, other = e->dst == llm ? e->src : e->dst;
    int llm_side = e->dst == llm ? DT_EXEC_DST : DT_EXEC_SRC;
    bool by_item = it->p->assignment->m[other].items != NULL;
    struct places w = {0};

    DT_TRY(number_units(it, e, by_item, context_len, err));
    DT_TRY(make_places(it, env, e, other, &w, err));
    place_halves(it, llm, &w);
    place_units(it, e, other, context_len, &w);
    e->n = 0;
    for (int64_t s = 0; s < it->in->n; s++) {
        DT_TRY(list_chunks(e, &w, s, it->in->seqs[s], err));
        for (int64_t u = e->unit[s]; u < e->unit[s + 1]; u++) {
            struct unit_rows r = unit_of(it, s, u - e->unit[s], by_item, context_len);

            DT_TRY(cut_unit(e, &w, llm_side, s, u, &r, err));
        }
    }
    e->first[e->unit[it->in->n]] = e->n;
    place_own(it->p, e, llm, llm_side, &w);
    return DT_OK;
}

enum dt_status dt_exec_edges(struct dt_exec_iteration *it, const struct dt_exec_env *env,
                             struct dt_error *err)
{
    const struct dt_model *m = env->o.model;

    for (int k = 0; k < DT_EDGES; k++) {
        struct dt_exec_edge *e = &it->edge[k];

        if (e->src < 0)
            continue;
        e->width = (size_t)m->modules[e->src].out_width * dt_dtype_bytes(env->o.dtype);
        DT_TRY(cut(it, env, e, k == DT_EDGE_COND ? dt_batching_context_len(m) : 0, err));
    }
    return DT_OK;
}

void dt_exec_edge_free(struct dt_exec_edge *e)
{
    dt_free(e->unit);
    dt_free(e->first);
    dt_free(e->piece);
    dt_free(e->chunk);
    dt_free(e->places);
}
