/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The little of Unicode that tokenizers need: letters, numbers, white space, and NFC. */
#ifndef DT_EXEC_DATA_UNICODE_H
#define DT_EXEC_DATA_UNICODE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool dt_unicode_letter(uint32_t c); /* general category L* */
bool dt_unicode_number(uint32_t c); /* general category N* */
bool dt_unicode_space(uint32_t c);  /* property White_Space */

/* The character at s (left > 0); *c is its code point, or 0x110000 for a byte that begins no
 * well-formed sequence.  Returns the bytes used. */
size_t dt_unicode_get(const char *s, size_t left, uint32_t *c);
/* Writes 1 to 4 bytes; returns how many. */
size_t dt_unicode_put(uint32_t c, char *out);

/* Normalisation form C.  Malformed bytes are kept as they are.  *out is NULL if the text is in this
 * form as far as a quick look tells (use the text itself), else a new one (dt_free). */
enum dt_status dt_unicode_nfc(const char *text, size_t len, struct dt_error *err, char **out,
                              size_t *out_len);

#endif
