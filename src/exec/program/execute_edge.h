/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Rows that cross an edge between modules: who has them on either side, and what one member sends to another.  A part of
 * execute_impl.h. */
#ifndef DT_EXEC_PROGRAM_EXECUTE_EDGE_H
#define DT_EXEC_PROGRAM_EXECUTE_EDGE_H

#include "core/schedule/assign.h"
#include "core/schedule/program.h"
#include "kernels/device.h"

struct dt_exec_env;
struct dt_exec_iteration;
struct dt_exec_stages;

/* Rows that cross an edge between modules, in pieces, and where they lie on both sides (execute_edge.c).  A unit is a sample
 * or, where a module shares items, one of its items.  A piece is consecutive rows of a unit that one member has on either
 * side; members have the rows of their shares, side by side (exec/modules/module.h). */
enum { DT_EXEC_SRC, DT_EXEC_DST, DT_EXEC_SIDES };
struct dt_exec_rows {
    int64_t n;
    int64_t at[DT_EXEC_SIDES];  /* among those of its owner in the microbatch */
    int owner[DT_EXEC_SIDES];   /* member of the lane */
    uint32_t mb[DT_EXEC_SIDES]; /* microbatch over all replicas */
};
struct dt_exec_chunk {
    int member;         /* of context parallelism */
    int64_t first, end; /* rows of the sequence */
    int64_t at;         /* the first one among its member's in the microbatch */
};
struct dt_exec_edge {
    int src, dst; /* modules; src -1 = no such edge */
    int64_t *unit,
        *first; /* units unit[s] .. unit[s + 1] - 1 of sample s; pieces first[u] .. of unit u */
    struct dt_exec_rows *piece;
    int64_t n;    /* pieces */
    size_t width; /* bytes of a row */
    /* what pieces are cut by: tables, and the chunks of a sample's sequence */
    int64_t *places;
    struct dt_exec_chunk *chunk;
    int64_t n_chunks;
    size_t cap_unit, cap_first, cap_piece, cap_places, cap_chunk;
};
/* Pieces [first, end) of entry k of a module's list. */
static inline int64_t dt_exec_pieces(const struct dt_exec_edge *e,
                                     const struct dt_assignment_module *a, uint32_t k, int64_t *end)
{
    int64_t s = a->samples[k], u = e->unit[s] + (a->items ? a->items[k] : 0);

    *end = e->first[a->items ? u + 1 : e->unit[s + 1]];
    return e->first[u];
}
enum { DT_EDGE_IN, DT_EDGE_COND, DT_EDGES };

/* execute_edge.c */
enum dt_status dt_exec_edges(struct dt_exec_iteration *it, const struct dt_exec_env *env,
                             struct dt_error *err);
void dt_exec_edge_free(struct dt_exec_edge *e);

/* execute_move.c */
/* What a RECV takes of its SEND's microbatch. */
struct dt_exec_link {
    const struct dt_exec_edge *edge; /* NULL: all of the tensor, which both sides hold alike */
    int from_side, to_side;          /* DT_EXEC_SRC, DT_EXEC_DST */
    int from_member, to_member;
    const struct dt_assignment_module *to;
    const struct dt_microbatch *mb; /* the receiver's */
    uint32_t from_global, to_global;
    int64_t n, to_rows;           /* rows in common; all rows of the receiving member */
    int64_t from_first, to_first; /* where the rows in common begin */
    bool from_runs, to_runs;      /* they lie side by side there */
    size_t width, to_bytes;       /* of a row; of the receiver's tensor */
};
/* From member s of the sending lane to member t of the receiving one. */
void dt_exec_link(const struct dt_exec_iteration *it, const struct dt_exec_stages *stages,
                  const struct dt_op *recv, int s, int t, struct dt_exec_link *out);
/* Between `tensor` (of the sender, or of the receiver) and `packed` rows. */
void dt_exec_pack(const struct dt_device *dev, struct dt_device_queue *q,
                  const struct dt_exec_link *l, const char *tensor, char *packed);
void dt_exec_unpack(const struct dt_device *dev, struct dt_device_queue *q,
                    const struct dt_exec_link *l, const char *packed, char *tensor);

#endif
