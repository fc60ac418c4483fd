/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Captions for labelled pictures on a black ground, as Fashion-MNIST's: "a photo of a dark ankle
 * boot, wide".  The rule is in doc/data.md; it uses the label and two measured attributes and
 * nothing random. */
#ifndef DT_EXEC_DATA_CAPTION_H
#define DT_EXEC_DATA_CAPTION_H

#include <stddef.h>
#include <stdint.h>

enum { DT_FASHION_CLASSES = 10, DT_CAPTION_TONES = 7 };
/* One word (or two) per class, in the order of the labels; none is a part of another or of the rest
 * of a caption. */
extern const char *const dt_caption_fashion_words[DT_FASHION_CLASSES + 1]; /* NULL-terminated */

/* Of dt_pack_tones: the notes of a scale. */
extern const char *const dt_caption_tone_words[DT_CAPTION_TONES + 1];

/* "dark", "grey" or "light" / "wide", "tall" or "compact" of the w x h grey picture. */
const char *dt_caption_tone(const uint8_t *grey, int w, int h);
const char *dt_caption_shape(const uint8_t *grey, int w, int h);
/* Writes the caption; returns its length as snprintf does. */
int dt_caption_write(const uint8_t *grey, int w, int h, const char *word, char *buf, size_t size);
/* Index of the class whose word the text holds, as whole words; -1 if none or more than one. */
int dt_caption_class(const char *text, const char *const *words);

#endif
