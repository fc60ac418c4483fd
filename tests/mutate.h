/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * For tests/mutate.c: changing valid files, and judging what a command printed. */
#ifndef DT_TESTS_MUTATE_H
#define DT_TESTS_MUTATE_H

#include "base/rng.h"

#include <stdbool.h>
#include <stddef.h>

struct bytes {
    unsigned char *at;
    size_t n, cap;
};

enum { MUTANT_MAX = 8 << 20 };

void bytes_free(struct bytes *b);
bool bytes_read(const char *path, struct bytes *b); /* replaces what is in b */
bool bytes_write(const char *path, const struct bytes *b);
/* Puts [from, from + n) in place of [at, at + len); does nothing if it would grow beyond
 * MUTANT_MAX. */
void bytes_replace(struct bytes *b, size_t at, size_t len, const void *from, size_t n);

/* One to three changes of a file; `other` is another valid file, for splices.  *what: a name of the
 * last change. */
void mutate(struct dt_rng *r, struct bytes *b, const struct bytes *other, const char **what);

/* One JSON text (RFC 8259), up to white space around it. */
bool is_json(const unsigned char *s, size_t n);
/* UTF-8 (RFC 3629) without control characters but tabs and line ends. */
bool is_plain_text(const unsigned char *s, size_t n);

#endif
