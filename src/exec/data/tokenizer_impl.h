/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tokenizers, the inside.  Shared by tokenizer*.c, bpe.c and pretoken.c only. */
#ifndef DT_EXEC_DATA_TOKENIZER_IMPL_H
#define DT_EXEC_DATA_TOKENIZER_IMPL_H

#include "base/mem.h"
#include "exec/data/tokenizer.h"

enum dt_data_split {                /* how text is cut into words before merging */
                     DT_SPLIT_NONE, /* the whole text is one word */
                     DT_SPLIT_GPT2, /* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+|
                                    ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
                     DT_SPLIT_CL100K, /* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,D}|
                                    ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
};

struct dt_tokenizer_token {
    const char *written; /* as in the file */
    const char *bytes;   /* what it stands for */
    uint32_t len;        /* of bytes */
    bool special;
};

struct dt_tokenizer_added_token {
    const char *text;
    uint32_t len;
    int32_t id;
    bool normalized, lstrip, rstrip;
};

struct dt_tokenizer_merge { /* an entry of a table with open addressing; rank < 0 = empty */
    int32_t left, right, rank, id;
};

struct dt_tokenizer {
    struct dt_arena arena;
    bool bpe; /* else plain bytes */
    enum dt_data_split split;
    int digits; /* D of DT_SPLIT_CL100K */
    bool nfc, prefix_space, ignore_merges;
    int vocab;
    struct dt_tokenizer_token *token; /* [vocab]; written NULL = no such id */
    int32_t byte_id[256];
    struct dt_tokenizer_merge *merge; /* [merge_mask + 1] */
    uint32_t merge_mask;
    int32_t *words; /* hash of token bytes -> id, -1 = empty: [word_mask + 1] */
    uint32_t word_mask;
    struct dt_tokenizer_added_token *added;
    int n_added;
    bool added_begin[256]; /* first bytes of added tokens */
    struct dt_tokenizer_special_ids special;
    bool special_moved;
};

/* pretoken.c: length of the word at s (left > 0). */
size_t dt_tokenizer_pretoken_length(enum dt_data_split split, int digits, const char *s,
                                    size_t left);

/* bpe.c */
struct dt_tokenizer_bpe_scratch {
    struct dt_tokenizer_bpe_symbol *symbol;
    struct dt_tokenizer_bpe_entry *heap;
    size_t cap_symbol, cap_heap;
};
void dt_tokenizer_bpe_scratch_free(struct dt_tokenizer_bpe_scratch *s);
/* Appends the ids of one word; 0, or -1 out of memory. */
int dt_tokenizer_bpe_word(const struct dt_tokenizer *t, struct dt_tokenizer_bpe_scratch *scratch,
                          const char *word, size_t len, struct dt_tokenizer_ids *ids);
/* Id of the token that stands for these bytes, or -1. */
int32_t dt_tokenizer_bpe_find(const struct dt_tokenizer *t, const char *bytes, size_t len);
int dt_tokenizer_ids_push(struct dt_tokenizer_ids *ids, int32_t id);
uint64_t dt_tokenizer_bpe_hash(const char *bytes, size_t len);
uint32_t dt_tokenizer_merge_entry(const struct dt_tokenizer *t, int32_t left, int32_t right);

/* tokenizer_read.c: fills in special, vocab and the rest are set. */
void dt_tokenizer_pick_special(struct dt_tokenizer *t);

#endif
