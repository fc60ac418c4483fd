/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Fuzz target: tokenizer.json.  A file that begins with 'T' is text for the shipped byte tokenizer
 * and the pre-split; any other is a tokenizer, which must encode every byte and give it back. */
#include "base/mem.h"
#include "exec/data/tokenizer.h"
#include "exec/data/tokenizer_impl.h"
#include "exec/data/unicode.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encode_all(const struct dt_tokenizer *t, bool exact)
{
    char text[300], *back;
    struct dt_tokenizer_ids ids = {0};
    struct dt_error err;
    size_t len;
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    memcpy(text + 256, "it's  12345 \n\n caf\xc3\xa9 <|endoftext|> aaaaaaaaaaaa", 44);
    if (dt_tokenizer_encode(t, text, sizeof text, false, &err, &ids) != DT_OK)
        abort();
    for (size_t i = 0; i < ids.n; i++)
        if (ids.id[i] < 0 || ids.id[i] >= dt_tokenizer_vocab(t))
            abort();
    if (dt_tokenizer_decode(t, ids.id, ids.n, false, &err, &back, &len) != DT_OK)
        abort();
    if (exact && (len != sizeof text || memcmp(back, text, len) != 0))
        abort();
    dt_free(back);
    ids.n = 0;
    if (dt_tokenizer_encode(t, text, sizeof text, true, &err, &ids) != DT_OK)
        abort();
    dt_tokenizer_ids_free(&ids);
}

static void split_text(const char *s, size_t n)
{
    struct dt_error err;
    size_t out_len, again_len;
    char *out = NULL, *again = NULL;
    for (int split = DT_SPLIT_NONE; split <= DT_SPLIT_CL100K; split++)
        for (size_t i = 0; i < n;) {
            size_t k = dt_tokenizer_pretoken_length((enum dt_data_split)split, 1 + (int)(n % 3),
                                                    s + i, n - i);
            if (k == 0 || k > n - i)
                abort();
            i += k;
        }
    if (dt_unicode_nfc(s, n, &err, &out, &out_len) != DT_OK)
        abort();
    /* twice is as good as once */
    if (out && dt_unicode_nfc(out, out_len, &err, &again, &again_len) != DT_OK)
        abort();
    if (again && (again_len != out_len || memcmp(out, again, out_len) != 0))
        abort();
    dt_free(out);
    dt_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_tokenizer *t = NULL;
    struct dt_error err = {0};
    if (size > 0 && data[0] == 'T') {
        split_text((const char *)data + 1, size - 1);
        return 0;
    }
    if (dt_tokenizer_parse("fuzz.json", (const char *)data, size, &err, &t) != DT_OK) {
        if (t || !err.message[0])
            abort();
        return 0;
    }
    encode_all(t, !t->nfc && !t->prefix_space);
    dt_tokenizer_free(t);
    return 0;
}
