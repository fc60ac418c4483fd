/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Getters for Hugging Face configs: absent or null takes a default, and says so.  Inside hf*.c
 * only. */
#ifndef DT_CORE_HF_H
#define DT_CORE_HF_H

#include "core/shape.h"

struct dt_hf {
    struct dt_node map;
    const char *type;
    char *assumed;
    size_t size;
    struct dt_error *err;
};

bool dt_hf_has(struct dt_node map, const char *key); /* present and not null */
enum dt_status dt_hf_need(const struct dt_hf *hf, const char *key, int max, int *out);
enum dt_status dt_hf_int(const struct dt_hf *hf, const char *key, int max, int fallback, int *out);
enum dt_status dt_hf_bool(const struct dt_hf *hf, const char *key, bool fallback, bool *out);
/* A switch that only has one supported position. */
enum dt_status dt_hf_only(const struct dt_hf *hf, const char *key, bool expected, const char *why);
/* One "key: value" line. */
void dt_hf_assume(char *assumed, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
enum dt_status dt_hf_unet(const struct dt_hf *hf, struct dt_shape *s);

#endif
