/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The tree behind dt_doc, for doc.c (which builds it) and docget.c (which reads it). */
#ifndef DT_CORE_DOCIMPL_H
#define DT_CORE_DOCIMPL_H

#include "core/doc.h"
#include "core/mem.h"

enum dt_value_kind { DT_VALUE_SCALAR, DT_VALUE_SEQ, DT_VALUE_MAP };

struct dt_place {
    const char *file;
    int line, col; /* 1-based */
};

struct dt_pair {
    const char *key; /* NULL in a sequence */
    struct dt_place at;
    const struct dt_value *value;
};

/* Values are immutable once built and may be shared (aliases): the tree is a DAG. */
struct dt_value {
    enum dt_value_kind kind;
    bool plain; /* scalar without quotes: may be a number, a truth value or null */
    unsigned char height;
    uint32_t n;      /* children */
    uint64_t weight; /* values in the tree below, itself included, shared ones counted each time */
    struct dt_place at;
    const char *text;            /* scalar */
    const struct dt_pair *child; /* sequence, map */
};

struct dt_doc {
    struct dt_arena arena;
    const char *name;
    const struct dt_value *root;
};

bool dt_value_is_null(const struct dt_value *v);
/* 1 true, 0 false, -1 neither */
int dt_value_truth(const struct dt_value *v);

#endif
