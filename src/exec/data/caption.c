/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * The rule, measured on the training pictures of Fashion-MNIST so that no word is rare
 * (doc/data.md). */
#include "exec/data/caption.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The data set's names: T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag,
 * Ankle boot.  "top" and not "t-shirt", which holds "shirt". */
const char *const dt_caption_fashion_words[DT_FASHION_CLASSES + 1] = {
    "top",   "trouser", "pullover", "dress",      "coat", "sandal",
    "shirt", "sneaker", "bag",      "ankle boot", NULL};

enum {
    GROUND = 32,      /* a pixel below this belongs to the black ground */
    DARK_BELOW = 112, /* mean of the object's pixels */
    LIGHT_FROM = 168
};

const char *dt_caption_tone(const uint8_t *grey, int w, int h)
{
    uint64_t sum = 0, n = 0;
    for (size_t i = 0; i < (size_t)w * (size_t)h; i++)
        if (grey[i] >= GROUND) {
            sum += grey[i];
            n++;
        }
    return sum < DARK_BELOW * n || n == 0 ? "dark" : sum < LIGHT_FROM * n ? "grey" : "light";
}

const char *dt_caption_shape(const uint8_t *grey, int w, int h)
{
    int x0 = w, x1 = 0, y0 = h, y1 = 0;
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            if (grey[(size_t)y * (size_t)w + (size_t)x] >= GROUND) {
                x0 = x < x0 ? x : x0;
                x1 = x + 1 > x1 ? x + 1 : x1;
                y0 = y < y0 ? y : y0;
                y1 = y + 1 > y1 ? y + 1 : y1;
            }
    if (x1 == 0) /* nothing there */
        return "compact";
    /* 4:3 and 3:4 of the box around the object */
    if (3 * (x1 - x0) > 4 * (y1 - y0))
        return "wide";
    if (3 * (y1 - y0) > 4 * (x1 - x0))
        return "tall";
    return "compact";
}

int dt_caption_write(const uint8_t *grey, int w, int h, const char *word, char *buf, size_t size)
{
    return snprintf(buf, size, "a photo of a %s %s, %s", dt_caption_tone(grey, w, h), word,
                    dt_caption_shape(grey, w, h));
}

static bool word_char(char c)
{
    return isalnum((unsigned char)c) || c == '-';
}

/* Times that `word` stands in the text as whole words. */
static int times(const char *text, const char *word)
{
    size_t n = strlen(word);
    int count = 0;
    if (n == 0)
        return 0;
    for (const char *p = text; (p = strstr(p, word)); p++)
        if ((p == text || !word_char(p[-1])) && !word_char(p[n]))
            count++;
    return count;
}

int dt_caption_class(const char *text, const char *const *words)
{
    int found = -1;
    for (int i = 0; words[i]; i++) {
        int n = times(text, words[i]);
        if (n > 1 || (n == 1 && found >= 0))
            return -1;
        if (n == 1)
            found = i;
    }
    return found;
}
