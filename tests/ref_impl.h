/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * What ref_modules.c and ref_unet.c share: pieces of layers in doubles, on the arena of one evaluation. */
#ifndef DT_TESTS_REF_IMPL_H
#define DT_TESTS_REF_IMPL_H

#include "ref_modules.h"

#include "base/rng.h"
#include "exec/modules/module.h"

#define NEW(r, n) DT_ARENA_NEW(&(r)->arena, double, n)

const double *ref_must(struct ref_module *r, const char *prefix, const char *name);
double *ref_named(struct ref_module *r, const char *prefix, const char *name, int rows, int in,
                  int out, const double *x);
double *ref_layer_norm(struct ref_module *r, const char *prefix, const char *name, int rows,
                       int width, double eps, const double *x);
double ref_gelu(double x);
double ref_silu(double x);
double *ref_map(struct ref_module *r, int n, const double *x, double (*f)(double));
double *ref_plus(struct ref_module *r, int n, const double *a, const double *b);
double *ref_attend(struct ref_module *r, int nq, int nk, const int *of_q, const int *of_k,
                   int heads, int kv_heads, int dim, bool causal, double scale, const double *q,
                   const double *k, const double *v);
double *ref_project(struct ref_module *r, const struct dt_block *b, const char *prefix, int rows,
                    const double *x);

#endif
