/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Hugging Face tokenizer.json: byte-level BPE as GPT-2, Llama-3 and Qwen2 have it.  Not used:
 * truncation, padding and post_processor (the packer puts bos and eos where they belong), decoder
 * (always byte-level). */
#include "exec/data/tokenizer_impl.h"

#include "base/doc.h"
#include "exec/data/unicode.h"

#include <stdio.h>
#include <string.h>

enum { VOCAB_MAX = 1 << 22, ADDED_MAX = 1 << 16, PRETOKENIZERS_MAX = 8 };

#define CL100K_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define CL100K_REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const struct {
    const char *regex;
    enum dt_data_split split;
    int digits;
} patterns[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     DT_SPLIT_GPT2, 0},
    {CL100K_CONTRACTIONS "\\p{N}{1,3}" CL100K_REST, DT_SPLIT_CL100K, 3}, /* cl100k, Llama-3 */
    {CL100K_CONTRACTIONS "\\p{N}" CL100K_REST, DT_SPLIT_CL100K, 1},      /* Qwen2 */
};

struct reader {
    struct dt_tokenizer *t;
    struct dt_error *err;
    struct dt_node root, model;
    int16_t byte_of[0x180]; /* code point of the byte alphabet -> byte, or -1 */
};

static const char *type_of(struct dt_node n)
{
    const char *s = dt_node_text(dt_map_get(n, "type"));
    return s ? s : "";
}

static bool given(struct dt_node n)
{
    return dt_node_present(n) && !dt_node_is_null(n);
}

/* ---- the byte alphabet ---- */

/* GPT-2 writes a byte as the character of its number where that is printable, else as U+0100,
 * U+0101, ... in turn. */
static uint32_t char_of_byte(int byte)
{
    uint32_t next = 0x100;
    for (int b = 0;; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte)
            return printable ? (uint32_t)b : next;
        next += !printable;
    }
}

/* The bytes that a written token stands for; false if it is not in the byte alphabet. */
static bool token_bytes(const struct reader *r, const char *written, size_t len, char *out,
                        uint32_t *n_out)
{
    uint32_t n = 0, c;
    for (size_t i = 0; i < len;) {
        i += dt_unicode_get(written + i, len - i, &c);
        if (c >= 0x180 || r->byte_of[c] < 0)
            return false;
        out[n++] = (char)r->byte_of[c];
    }
    *n_out = n;
    return true;
}

/* ---- vocabulary ---- */

static enum dt_status read_id(const struct reader *r, struct dt_node n, const char *what,
                              int32_t *out)
{
    const char *s = dt_node_text(n);
    int64_t v = 0;
    size_t i = 0;
    for (; s && s[i] >= '0' && s[i] <= '9' && i < 9; i++)
        v = v * 10 + (s[i] - '0');
    if (!s || i == 0 || s[i] || v >= VOCAB_MAX)
        return dt_node_error(n, r->err, "the id of %s must be a whole number below %d", what,
                             (int)VOCAB_MAX);
    *out = (int32_t)v;
    return DT_OK;
}

/* Sets t->vocab and makes the table. */
static enum dt_status size_vocab(struct reader *r, struct dt_node vocab, struct dt_node added)
{
    int32_t id, max = -1;
    const char *key;
    struct dt_node v;
    for (size_t i = 0; i < dt_map_size(vocab); i++) {
        dt_map_at(vocab, i, &key, &v);
        DT_TRY(read_id(r, v, "a token", &id));
        max = id > max ? id : max;
    }
    for (size_t i = 0; i < dt_seq_size(added); i++) {
        DT_TRY(read_id(r, dt_map_get(dt_seq_at(added, i), "id"), "an added token", &id));
        max = id > max ? id : max;
    }
    r->t->vocab = max + 1;
    r->t->token = DT_ARENA_NEW(&r->t->arena, struct dt_tokenizer_token, max + 1);
    for (r->t->word_mask = 1; r->t->word_mask < 2 * ((uint32_t)max + 1);)
        r->t->word_mask = 2 * r->t->word_mask + 1;
    r->t->words = DT_ARENA_NEW(&r->t->arena, int32_t, (size_t)r->t->word_mask + 1);
    if (!r->t->token || !r->t->words)
        return dt_error_nomem(r->err, "a vocabulary");
    memset(r->t->words, 0xff, ((size_t)r->t->word_mask + 1) * sizeof *r->t->words);
    return DT_OK;
}

static enum dt_status read_vocab(struct reader *r, struct dt_node vocab)
{
    struct dt_tokenizer *t = r->t;
    for (size_t i = 0; i < dt_map_size(vocab); i++) {
        struct dt_node v;
        const char *key;
        struct dt_tokenizer_token *k;
        char *written, *bytes;
        size_t len;
        int32_t id;
        dt_map_at(vocab, i, &key, &v);
        DT_TRY(read_id(r, v, "a token", &id));
        k = &t->token[id];
        if (k->written)
            return dt_node_error(v, r->err, "id %d is given to two tokens", (int)id);
        len = strlen(key);
        written = dt_arena_alloc(&t->arena, 2 * (len + 1), 1);
        if (!written)
            return dt_error_nomem(r->err, "a vocabulary");
        bytes = written + len + 1;
        memcpy(written, key, len + 1);
        *k = (struct dt_tokenizer_token){written, written, (uint32_t)len, false};
        if (len && token_bytes(r, written, len, bytes, &k->len)) {
            uint32_t at;
            k->bytes = bytes;
            at = (uint32_t)dt_tokenizer_bpe_hash(bytes, k->len) & t->word_mask;
            while (t->words[at] >= 0)
                at = (at + 1) & t->word_mask;
            t->words[at] = id;
        }
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        t->byte_id[b] = dt_tokenizer_bpe_find(t, &byte, 1);
        if (t->byte_id[b] < 0)
            return dt_node_error(
                vocab, r->err, "the vocabulary has no token for byte %d: not a byte-level one", b);
    }
    return DT_OK;
}

/* ---- merges ---- */

/* Id of a part of a merge, as written. */
static int32_t part_id(const struct reader *r, const char *written, size_t len, char *bytes,
                       uint32_t *n)
{
    return len && token_bytes(r, written, len, bytes, n) ? dt_tokenizer_bpe_find(r->t, bytes, *n)
                                                         : -1;
}

static enum dt_status read_merge(struct reader *r, struct dt_node m, int32_t rank, char *buf)
{
    const char *a = dt_node_text(m), *b = NULL;
    uint32_t na, nb;
    int32_t left, right, id;
    size_t alen = 0;
    if (a) { /* "Ġ t"; later files have ["Ġ", "t"] */
        b = strchr(a, ' ');
        alen = b ? (size_t)(b++ - a) : 0;
    } else if (dt_node_is_seq(m) && dt_seq_size(m) == 2) {
        a = dt_node_text(dt_seq_at(m, 0));
        b = dt_node_text(dt_seq_at(m, 1));
        alen = a ? strlen(a) : 0;
    }
    if (!a || !b)
        return dt_node_error(m, r->err, "a merge must be two tokens");
    left = part_id(r, a, alen, buf, &na);
    right = left < 0 ? -1 : part_id(r, b, strlen(b), buf + na, &nb);
    id = right < 0 ? -1 : dt_tokenizer_bpe_find(r->t, buf, na + nb);
    if (id < 0)
        return dt_node_error(m, r->err, "merge %d: %s is not in the vocabulary", (int)rank,
                             left < 0    ? "the first token"
                             : right < 0 ? "the second token"
                                         : "what it makes");
    struct dt_tokenizer_merge *entry = &r->t->merge[dt_tokenizer_merge_entry(r->t, left, right)];
    if (entry->rank >= 0)
        return dt_node_error(m, r->err, "this merge appears twice");
    *entry = (struct dt_tokenizer_merge){left, right, rank, id};
    return DT_OK;
}

static enum dt_status read_merges(struct reader *r, struct dt_node merges)
{
    struct dt_tokenizer *t = r->t;
    size_t n = dt_seq_size(merges), longest = 0;
    enum dt_status st = DT_OK;
    char *buf;
    for (t->merge_mask = 1; t->merge_mask < 2 * n;)
        t->merge_mask = 2 * t->merge_mask + 1;
    t->merge = DT_ARENA_NEW(&t->arena, struct dt_tokenizer_merge, (size_t)t->merge_mask + 1);
    if (!t->merge)
        return dt_error_nomem(r->err, "merges");
    for (size_t i = 0; i <= t->merge_mask; i++)
        t->merge[i].rank = -1;
    for (size_t i = 0; i < n; i++) {
        struct dt_node m = dt_seq_at(merges, i);
        const char *a = dt_node_text(m), *b = NULL;
        if (!a && dt_node_is_seq(m) && dt_seq_size(m) == 2) {
            a = dt_node_text(dt_seq_at(m, 0));
            b = dt_node_text(dt_seq_at(m, 1));
        }
        size_t len = (a ? strlen(a) : 0) + (b ? strlen(b) : 0);
        longest = len > longest ? len : longest;
    }
    buf = dt_malloc(longest + 1);
    if (!buf)
        return dt_error_nomem(r->err, "merges");
    for (size_t i = 0; i < n && st == DT_OK; i++)
        st = read_merge(r, dt_seq_at(merges, i), (int32_t)i, buf);
    dt_free(buf);
    return st;
}

/* ---- added tokens ---- */

static enum dt_status read_added(struct reader *r, struct dt_node list)
{
    struct dt_tokenizer *t = r->t;
    size_t n = dt_seq_size(list);
    if (n > ADDED_MAX)
        return dt_node_error(list, r->err, "more than %d added tokens", (int)ADDED_MAX);
    t->added = DT_ARENA_NEW(&t->arena, struct dt_tokenizer_added_token, n + 1);
    if (!t->added)
        return dt_error_nomem(r->err, "added tokens");
    for (size_t i = 0; i < n; i++) {
        struct dt_node e = dt_seq_at(list, i), c = dt_map_get(e, "content");
        const char *text = dt_node_text(c);
        struct dt_tokenizer_added_token *a = &t->added[t->n_added];
        bool special = false, word = false;
        if (!text || !*text)
            return dt_node_error(e, r->err, "an added token needs content");
        DT_TRY(read_id(r, dt_map_get(e, "id"), "an added token", &a->id));
        DT_TRY(dt_get_bool(e, "special", &special, r->err));
        a->normalized = !special;
        DT_TRY(dt_get_bool(e, "normalized", &a->normalized, r->err));
        DT_TRY(dt_get_bool(e, "lstrip", &a->lstrip, r->err));
        DT_TRY(dt_get_bool(e, "rstrip", &a->rstrip, r->err));
        DT_TRY(dt_get_bool(e, "single_word", &word, r->err));
        if (word)
            return dt_node_error(e, r->err, "added tokens with single_word are not supported");
        a->text = dt_arena_strdup(&t->arena, text);
        if (!a->text)
            return dt_error_nomem(r->err, "added tokens");
        a->len = (uint32_t)strlen(text);
        struct dt_tokenizer_token *k = &t->token[a->id];
        if (k->written && strcmp(k->written, text) != 0)
            return dt_node_error(e, r->err, "id %d is also the token \"%s\"", (int)a->id,
                                 k->written);
        *k = (struct dt_tokenizer_token){a->text, a->text, a->len, special};
        t->added_begin[(unsigned char)text[0]] = true;
        t->n_added++;
    }
    return DT_OK;
}

static int32_t find_added(const struct dt_tokenizer *t, const char *token)
{
    for (int i = 0; i < t->n_added; i++)
        if (strcmp(t->added[i].text, token) == 0)
            return t->added[i].id;
    return -1;
}

/* The usual names, among added tokens or among all. */
static struct dt_tokenizer_special_ids pick(const struct dt_tokenizer *t, bool added, bool all)
{
    static const char *const bos[] = {"<|begin_of_text|>", "<bos>", "<s>", "<|startoftext|>", NULL};
    static const char *const eos[] = {"<|end_of_text|>", "<eos>",      "</s>",
                                      "<|endoftext|>",   "<|im_end|>", NULL};
    static const char *const pad[] = {"<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>",
                                      NULL};
    static const char *const image[] = {"<image>", "<|image|>", "<|image_pad|>", NULL};
    const char *const *const names[] = {bos, eos, pad, image};
    int32_t id[4];
    for (int k = 0; k < 4; k++) {
        id[k] = -1;
        for (int i = 0; added && names[k][i] && id[k] < 0; i++)
            id[k] = find_added(t, names[k][i]);
        for (int i = 0; all && names[k][i] && id[k] < 0; i++)
            id[k] = dt_tokenizer_find(t, names[k][i]);
    }
    if (id[1] < 0)
        id[1] = id[0] >= 0 ? id[0] : 0;
    if (id[0] < 0)
        id[0] = id[1];
    if (id[2] < 0)
        id[2] = id[1];
    if (id[3] < 0)
        id[3] = id[2];
    return (struct dt_tokenizer_special_ids){id[0], id[1], id[2], id[3]};
}

/* A file that names its special tokens names them all: "</s>" in Qwen's vocabulary is a piece of text. */
void dt_tokenizer_pick_special(struct dt_tokenizer *t)
{
    struct dt_tokenizer_special_ids before = pick(t, false, true);
    bool named = false;

    for (int i = 0; i < t->n_added; i++)
        named |= t->token[t->added[i].id].special;
    t->special = pick(t, true, !named);
    t->special_moved = memcmp(&before, &t->special, sizeof before) != 0;
}

/* ---- how text is cut and normalised ---- */

static enum dt_status read_normalizer(struct reader *r, struct dt_node n)
{
    const char *type = type_of(n);
    if (!given(n))
        return DT_OK;
    if (strcmp(type, "NFC") == 0) {
        r->t->nfc = true;
        return DT_OK;
    }
    if (strcmp(type, "Sequence") == 0) {
        struct dt_node list = dt_map_get(n, "normalizers");
        for (size_t i = 0; i < dt_seq_size(list); i++)
            if (strcmp(type_of(dt_seq_at(list, i)), "NFC") != 0)
                return dt_node_error(dt_seq_at(list, i), r->err,
                                     "normalizer \"%s\" is not supported (only NFC)",
                                     type_of(dt_seq_at(list, i)));
        r->t->nfc = dt_seq_size(list) > 0;
        return DT_OK;
    }
    return dt_node_error(n, r->err, "normalizer \"%s\" is not supported (only NFC)", type);
}

static enum dt_status set_split(struct reader *r, struct dt_node n, enum dt_data_split split,
                                int digits)
{
    if (r->t->split != DT_SPLIT_NONE)
        return dt_node_error(n, r->err, "splitting text twice is not supported");
    r->t->split = split;
    r->t->digits = digits;
    return DT_OK;
}

static enum dt_status read_split(struct reader *r, struct dt_node n)
{
    struct dt_node regex = dt_map_get(dt_map_get(n, "pattern"), "Regex");
    const char *text = dt_node_text(regex), *how = dt_node_text(dt_map_get(n, "behavior"));
    bool invert = false;
    DT_TRY(dt_get_bool(n, "invert", &invert, r->err));
    if (!how || strcmp(how, "Isolated") != 0 || invert)
        return dt_node_error(n, r->err,
                             "only Split with behavior Isolated, not inverted, "
                             "is supported");
    for (size_t i = 0; text && i < sizeof patterns / sizeof patterns[0]; i++)
        if (strcmp(text, patterns[i].regex) == 0)
            return set_split(r, n, patterns[i].split, patterns[i].digits);
    return dt_node_error(given(regex) ? regex : n, r->err,
                         "this Split pattern is none of those of GPT-2, cl100k/Llama-3 and Qwen2");
}

static enum dt_status read_pretokenizer(struct reader *r, struct dt_node n, bool *byte_level)
{
    const char *type = type_of(n);
    if (strcmp(type, "Sequence") == 0) {
        struct dt_node list = dt_map_get(n, "pretokenizers");
        if (dt_seq_size(list) > PRETOKENIZERS_MAX)
            return dt_node_error(list, r->err, "more than %d pre-tokenizers",
                                 (int)PRETOKENIZERS_MAX);
        for (size_t i = 0; i < dt_seq_size(list); i++) {
            if (strcmp(type_of(dt_seq_at(list, i)), "Sequence") == 0)
                return dt_node_error(n, r->err, "a Sequence in a Sequence is not supported");
            DT_TRY(read_pretokenizer(r, dt_seq_at(list, i), byte_level));
        }
        return DT_OK;
    }
    if (*byte_level)
        return dt_node_error(n, r->err, "nothing may follow ByteLevel");
    if (strcmp(type, "Split") == 0)
        return read_split(r, n);
    if (strcmp(type, "ByteLevel") == 0) {
        bool prefix = true, regex = true; /* the format's defaults */
        DT_TRY(dt_get_bool(n, "add_prefix_space", &prefix, r->err));
        DT_TRY(dt_get_bool(n, "use_regex", &regex, r->err));
        if (prefix && r->t->split != DT_SPLIT_NONE)
            return dt_node_error(n, r->err, "add_prefix_space after Split is not supported");
        r->t->prefix_space = prefix;
        *byte_level = true;
        return regex ? set_split(r, n, DT_SPLIT_GPT2, 0) : DT_OK;
    }
    return dt_node_error(n, r->err,
                         "pre-tokenizer \"%s\" is not supported (only ByteLevel, alone or after a "
                         "known Split)",
                         type);
}

static enum dt_status check_model(struct reader *r)
{
    static const char *const empty[] = {"continuing_subword_prefix", "end_of_word_suffix", NULL};
    struct dt_node m = r->model, n;
    const char *s;
    bool fallback = false;
    if (given(dt_map_get(m, "type")) && strcmp(type_of(m), "BPE") != 0)
        return dt_node_error(dt_map_get(m, "type"), r->err,
                             "model \"%s\" is not supported (only BPE)", type_of(m));
    for (int i = 0; empty[i]; i++) {
        n = dt_map_get(m, empty[i]);
        s = dt_node_text(n);
        if (given(n) && (!s || *s))
            return dt_node_error(n, r->err, "%s is not supported", empty[i]);
    }
    n = dt_map_get(m, "dropout");
    s = dt_node_text(n);
    if (given(n) && (!s || strcspn(s, "123456789") < strlen(s)))
        return dt_node_error(n, r->err, "dropout is not supported");
    if (given(dt_map_get(m, "byte_fallback")))
        DT_TRY(dt_get_bool(m, "byte_fallback", &fallback, r->err));
    if (fallback)
        return dt_node_error(m, r->err, "byte_fallback is not supported");
    if (given(dt_map_get(m, "ignore_merges")))
        DT_TRY(dt_get_bool(m, "ignore_merges", &r->t->ignore_merges, r->err));
    if (!dt_node_is_map(dt_map_get(m, "vocab")) || !dt_node_is_seq(dt_map_get(m, "merges")))
        return dt_node_error(m, r->err,
                             "the model must have a map \"vocab\" and a list "
                             "\"merges\"");
    return DT_OK;
}

static enum dt_status read_all(struct reader *r)
{
    struct dt_node added = dt_map_get(r->root, "added_tokens");
    struct dt_node pre = dt_map_get(r->root, "pre_tokenizer"), decoder;
    bool byte_level = false;
    r->model = dt_map_get(r->root, "model");
    if (!dt_node_is_map(r->root) || !dt_node_is_map(r->model))
        return dt_node_error(r->root, r->err, "not a tokenizer.json: it has no map \"model\"");
    if (given(added) && !dt_node_is_seq(added))
        return dt_node_error(added, r->err, "added_tokens must be a list");
    DT_TRY(check_model(r));
    DT_TRY(read_normalizer(r, dt_map_get(r->root, "normalizer")));
    if (given(pre))
        DT_TRY(read_pretokenizer(r, pre, &byte_level));
    if (!byte_level)
        return dt_node_error(given(pre) ? pre : r->root, r->err,
                             "only byte-level tokenizers are supported (pre_tokenizer ByteLevel)");
    decoder = dt_map_get(r->root, "decoder");
    if (given(decoder) && strcmp(type_of(decoder), "ByteLevel") != 0)
        return dt_node_error(decoder, r->err, "decoder \"%s\" is not supported (only ByteLevel)",
                             type_of(decoder));
    DT_TRY(size_vocab(r, dt_map_get(r->model, "vocab"), added));
    DT_TRY(read_vocab(r, dt_map_get(r->model, "vocab")));
    DT_TRY(read_merges(r, dt_map_get(r->model, "merges")));
    return given(added) ? read_added(r, added) : DT_OK;
}

enum dt_status dt_tokenizer_parse(const char *name, const char *text, size_t len,
                                  struct dt_error *err, struct dt_tokenizer **out)
{
    struct reader r = {.err = err};
    struct dt_doc *doc;
    enum dt_status st;
    DT_TRY(dt_doc_parse(name, text, len, err, &doc));
    r.root = dt_doc_root(doc);
    r.t = dt_calloc(1, sizeof *r.t);
    if (!r.t) {
        dt_doc_free(doc);
        return dt_error_nomem(err, "a tokenizer");
    }
    r.t->bpe = true;
    memset(r.byte_of, 0xff, sizeof r.byte_of);
    for (int b = 0; b < 256; b++)
        r.byte_of[char_of_byte(b)] = (int16_t)b;
    st = read_all(&r);
    dt_doc_free(doc);
    if (st != DT_OK) {
        dt_tokenizer_free(r.t);
        return st;
    }
    dt_tokenizer_pick_special(r.t);
    *out = r.t;
    return DT_OK;
}
