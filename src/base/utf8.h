/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING. */
#ifndef DT_BASE_UTF8_H
#define DT_BASE_UTF8_H

#include <stddef.h>

/* Length of the well-formed UTF-8 sequence at s, or 0 (RFC 3629: no overlong forms, surrogates, or
 * code points above U+10FFFF).  Reads at most `left` bytes; left > 0. */
size_t dt_utf8_length(const char *s, size_t left);

#endif
