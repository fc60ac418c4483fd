/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The tree behind dt_doc, for doc.c (which builds it) and docget.c (which reads it). */
#ifndef DT_BASE_DOCIMPL_H
#define DT_BASE_DOCIMPL_H

#include "base/doc.h"
#include "base/mem.h"

#define DT_DOC_VALUES_MAX ((uint64_t)4 << 20)
#define DT_DOC_DEPTH_MAX 60 /* also fits the JSON writer's depth */

enum dt_value_kind { DT_VALUE_SCALAR, DT_VALUE_SEQ, DT_VALUE_MAP };

struct dt_doc_place {
    const char *file;
    int line, col; /* 1-based */
};

struct dt_doc_pair {
    const char *key; /* NULL in a sequence */
    struct dt_doc_place at;
    const struct dt_value *value;
};

/* Values are immutable once built and may be shared (aliases): the tree is a DAG. */
struct dt_value {
    enum dt_value_kind kind;
    bool plain; /* scalar without quotes: may be a number, a truth value or null */
    unsigned char height;
    uint32_t n;      /* children */
    uint64_t weight; /* values in the tree below, itself included, shared ones counted each time */
    struct dt_doc_place at;
    const char *text;                /* scalar */
    const struct dt_doc_pair *child; /* sequence, map */
};

struct dt_doc {
    struct dt_arena arena;
    const char *name;
    const struct dt_value *root;
};

/* Parses text into values of `arena`; columns of line 1 are reported `col_offset` further right. */
enum dt_status dt_doc_build(struct dt_arena *arena, const char *file, int col_offset,
                            const char *text, size_t len, struct dt_error *err,
                            const struct dt_value **out);
/* Gives v its children and derives its size; false when a limit is passed. */
bool dt_value_finish(struct dt_value *v, const struct dt_doc_pair *child, size_t n);

bool dt_value_is_null(const struct dt_value *v);
/* 1 true, 0 false, -1 neither */
int dt_value_truth(const struct dt_value *v);

#endif
