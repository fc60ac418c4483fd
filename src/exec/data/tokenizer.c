/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Encoding and decoding.  Reading tokenizer.json is in tokenizer_read.c. */
#include "exec/data/tokenizer.h"

#include "base/file.h"
#include "base/hash.h"
#include "exec/data/tokenizer_impl.h"
#include "exec/data/unicode.h"

#include <string.h>

enum { TEXT_MAX = 64 << 20 }; /* bytes of a tokenizer.json, and of a text to encode */

void dt_tokenizer_ids_free(struct dt_tokenizer_ids *ids)
{
    dt_free(ids->id);
    *ids = (struct dt_tokenizer_ids){0};
}

enum dt_status dt_tokenizer_bytes(struct dt_error *err, struct dt_tokenizer **out)
{
    static const char *const names[] = {"<bos>", "<eos>", "<pad>", "<image>"};
    struct dt_tokenizer *t = dt_calloc(1, sizeof *t);
    char *bytes;
    if (!t)
        return dt_error_nomem(err, "a tokenizer");
    t->vocab = 260;
    t->n_added = 4;
    t->token = DT_ARENA_NEW(&t->arena, struct dt_tokenizer_token, t->vocab);
    t->added = DT_ARENA_NEW(&t->arena, struct dt_tokenizer_added_token, 4);
    bytes = dt_arena_alloc(&t->arena, 512, 1);
    if (!t->token || !t->added || !bytes) {
        dt_tokenizer_free(t);
        return dt_error_nomem(err, "a tokenizer");
    }
    for (int i = 0; i < 256; i++) {
        bytes[2 * i] = (char)i;
        t->token[i] = (struct dt_tokenizer_token){bytes + 2 * i, bytes + 2 * i, 1, false};
        t->byte_id[i] = i;
    }
    for (int i = 0; i < 4; i++) {
        uint32_t n = (uint32_t)strlen(names[i]);
        t->token[256 + i] = (struct dt_tokenizer_token){names[i], names[i], n, true};
        t->added[i] = (struct dt_tokenizer_added_token){names[i], n, 256 + i, false, false, false};
    }
    t->added_begin['<'] = true;
    t->special = (struct dt_tokenizer_special_ids){256, 257, 258, 259};
    *out = t;
    return DT_OK;
}

enum dt_status dt_tokenizer_open(const char *name, struct dt_error *err, struct dt_tokenizer **out)
{
    enum dt_status st;
    char *text;
    size_t len;
    if (strcmp(name, "bytes") == 0)
        return dt_tokenizer_bytes(err, out);
    DT_TRY(dt_file_read(name, TEXT_MAX, err, &text, &len));
    st = dt_tokenizer_parse(name, text, len, err, out);
    dt_free(text);
    return st;
}

void dt_tokenizer_free(struct dt_tokenizer *t)
{
    if (!t)
        return;
    dt_arena_free(&t->arena);
    dt_free(t);
}

int dt_tokenizer_vocab(const struct dt_tokenizer *t)
{
    return t->vocab;
}

int32_t dt_tokenizer_find(const struct dt_tokenizer *t, const char *token)
{
    for (int i = 0; i < t->vocab; i++)
        if (t->token[i].written && strcmp(t->token[i].written, token) == 0)
            return i;
    return -1;
}

static uint64_t add_text(uint64_t h, const char *text, size_t len)
{
    return dt_hash_bytes(dt_hash_number(h, len), text, len);
}

/* Their places in the table depend on their order in the file, the sum does not. */
static uint64_t merges_digest(const struct dt_tokenizer *t)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; t->merge && i <= t->merge_mask; i++) {
        const struct dt_tokenizer_merge *m = &t->merge[i];
        uint64_t h = dt_hash_number(DT_HASH_START, (uint64_t)m->left);

        if (m->rank < 0)
            continue;
        h = dt_hash_number(dt_hash_number(h, (uint64_t)m->right), (uint64_t)m->rank);
        sum += dt_hash_finish(h);
    }
    return sum;
}

uint64_t dt_tokenizer_digest(const struct dt_tokenizer *t)
{
    const uint64_t how[] = {
        t->bpe,          t->split,         (uint64_t)t->digits,  t->nfc,
        t->prefix_space, t->ignore_merges, (uint64_t)t->n_added, merges_digest(t)};
    uint64_t h = DT_HASH_START;

    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++)
        h = dt_hash_number(h, how[i]);
    for (int i = 0; i < t->vocab; i++) {
        const struct dt_tokenizer_token *k = &t->token[i];

        h = dt_hash_number(h, k->written ? 1 + k->special : 0);
        if (k->written)
            h = add_text(h, k->bytes, k->len);
    }
    for (int i = 0; i < t->n_added; i++) {
        const struct dt_tokenizer_added_token *a = &t->added[i];

        h = dt_hash_number(add_text(h, a->text, a->len), (uint64_t)a->id);
        h = dt_hash_number(h, (uint64_t)a->normalized << 2 | (uint64_t)a->lstrip << 1 | a->rstrip);
    }
    return h;
}

struct dt_tokenizer_special_ids dt_tokenizer_special(const struct dt_tokenizer *t)
{
    return t->special;
}

bool dt_tokenizer_special_moved(const struct dt_tokenizer *t)
{
    return t->special_moved;
}

/* ---- encoding ---- */

struct encoder {
    const struct dt_tokenizer *t;
    struct dt_tokenizer_bpe_scratch scratch;
    struct dt_tokenizer_ids *ids;
    struct dt_error *err;
};

static enum dt_status words(struct encoder *e, const char *s, size_t len)
{
    const struct dt_tokenizer *t = e->t;
    for (size_t i = 0; i < len;) {
        size_t n = dt_tokenizer_pretoken_length(t->split, t->digits, s + i, len - i);
        if (dt_tokenizer_bpe_word(t, &e->scratch, s + i, n, e->ids))
            return dt_error_nomem(e->err, "token ids");
        i += n;
    }
    return DT_OK;
}

/* Text without added tokens. */
static enum dt_status plain(struct encoder *e, const char *s, size_t len)
{
    enum dt_status st;
    char *spaced;
    if (len == 0)
        return DT_OK;
    if (!e->t->bpe) {
        for (size_t i = 0; i < len; i++)
            if (dt_tokenizer_ids_push(e->ids, e->t->byte_id[(unsigned char)s[i]]))
                return dt_error_nomem(e->err, "token ids");
        return DT_OK;
    }
    if (!e->t->prefix_space || s[0] == ' ')
        return words(e, s, len);
    spaced = dt_malloc(len + 1);
    if (!spaced)
        return dt_error_nomem(e->err, "a text");
    spaced[0] = ' ';
    memcpy(spaced + 1, s, len);
    st = words(e, spaced, len + 1);
    dt_free(spaced);
    return st;
}

/* The longest added token (of those `normalized` or not) at s, or NULL. */
static const struct dt_tokenizer_added_token *added_at(const struct dt_tokenizer *t,
                                                       bool normalized, const char *s, size_t left)
{
    const struct dt_tokenizer_added_token *best = NULL;
    if (!t->added_begin[(unsigned char)s[0]])
        return NULL;
    for (int i = 0; i < t->n_added; i++) {
        const struct dt_tokenizer_added_token *a = &t->added[i];
        if (a->normalized == normalized && a->len <= left && (!best || a->len > best->len) &&
            memcmp(a->text, s, a->len) == 0)
            best = a;
    }
    return best;
}

static size_t spaces_before(const char *s, size_t begin, size_t end)
{
    while (end > begin) {
        size_t at = end - 1;
        uint32_t c;
        while (at > begin && end - at < 4 && ((unsigned char)s[at] & 0xc0) == 0x80)
            at--;
        if (dt_unicode_get(s + at, end - at, &c) != end - at || !dt_unicode_space(c))
            break;
        end = at;
    }
    return end;
}

static size_t spaces_after(const char *s, size_t at, size_t len)
{
    uint32_t c;
    while (at < len) {
        size_t n = dt_unicode_get(s + at, len - at, &c);
        if (!dt_unicode_space(c))
            break;
        at += n;
    }
    return at;
}

static enum dt_status normalise(struct encoder *e, const char *s, size_t len);

/* Cuts the text at added tokens; first those that stand in the text as given, then, in what lies
 * between, those that stand in the normalised text. */
static enum dt_status cut(struct encoder *e, bool normalized, const char *s, size_t len)
{
    enum dt_status (*rest)(struct encoder *, const char *, size_t) = normalized ? plain : normalise;
    size_t begin = 0;
    for (size_t i = 0; i < len;) {
        const struct dt_tokenizer_added_token *a = added_at(e->t, normalized, s + i, len - i);
        size_t end = i;
        if (!a) {
            i++;
            continue;
        }
        if (a->lstrip)
            end = spaces_before(s, begin, i);
        DT_TRY(rest(e, s + begin, end - begin));
        if (dt_tokenizer_ids_push(e->ids, a->id))
            return dt_error_nomem(e->err, "token ids");
        i += a->len;
        if (a->rstrip)
            i = spaces_after(s, i, len);
        begin = i;
    }
    return rest(e, s + begin, len - begin);
}

static enum dt_status normalise(struct encoder *e, const char *s, size_t len)
{
    char *text = NULL;
    size_t n = len;
    enum dt_status st;
    if (len == 0)
        return DT_OK;
    if (e->t->nfc)
        DT_TRY(dt_unicode_nfc(s, len, e->err, &text, &n));
    st = cut(e, true, text ? text : s, n);
    dt_free(text);
    return st;
}

static enum dt_status encode(struct encoder *e, const char *text, size_t len, bool specials)
{
    char *nfc = NULL;
    size_t n = len;
    enum dt_status st;
    if (specials)
        return cut(e, false, text, len);
    if (e->t->nfc && len)
        DT_TRY(dt_unicode_nfc(text, len, e->err, &nfc, &n));
    st = plain(e, nfc ? nfc : text, n);
    dt_free(nfc);
    return st;
}

enum dt_status dt_tokenizer_encode(const struct dt_tokenizer *t, const char *text, size_t len,
                                   bool specials, struct dt_error *err,
                                   struct dt_tokenizer_ids *ids)
{
    struct encoder e = {t, {0}, ids, err};
    size_t before = ids->n;
    enum dt_status st;
    if (len > TEXT_MAX)
        return dt_error_set(err, DT_ERR_INPUT, "a text of %zu bytes is too long to encode", len);
    st = encode(&e, text, len, specials);
    dt_tokenizer_bpe_scratch_free(&e.scratch);
    if (st != DT_OK)
        ids->n = before;
    return st;
}

enum dt_status dt_tokenizer_decode(const struct dt_tokenizer *t, const int32_t *ids, size_t n,
                                   bool skip_specials, struct dt_error *err, char **out,
                                   size_t *len)
{
    size_t used = 0, total = 0;
    char *buf = NULL;
    for (int pass = 0; pass < 2; pass++) { /* sizes, then bytes */
        for (size_t i = 0; i < n; i++) {
            const struct dt_tokenizer_token *k;
            if (ids[i] < 0 || ids[i] >= t->vocab)
                continue;
            k = &t->token[ids[i]];
            if (!k->written || (skip_specials && k->special))
                continue;
            if (pass)
                memcpy(buf + used, k->bytes, k->len);
            used += k->len;
        }
        if (pass)
            break;
        total = used;
        used = 0;
        buf = dt_malloc(total + 1);
        if (!buf)
            return dt_error_nomem(err, "a text");
    }
    buf[total] = '\0';
    *out = buf;
    if (len)
        *len = total;
    return DT_OK;
}
