/* SPDX-License-Identifier: GPL-3.0-or-later WITH an additional permission, see COPYING.
 *
 * Tokenizers: bytes, and byte-level BPE from a Hugging Face tokenizer.json (GPT-2, Llama-3, Qwen2).
 *
 * Immutable once made: threads may share one. */
#ifndef DT_EXEC_DATA_TOKENIZER_H
#define DT_EXEC_DATA_TOKENIZER_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_tokenizer;

/* A growing list of token ids; zeros are an empty one; dt_tokenizer_ids_free. */
struct dt_tokenizer_ids {
    int32_t *id;
    size_t n, cap;
};
void dt_tokenizer_ids_free(struct dt_tokenizer_ids *ids);

/* 256 bytes, then <bos> 256, <eos> 257, <pad> 258, <image> 259. */
enum dt_status dt_tokenizer_bytes(struct dt_error *err, struct dt_tokenizer **out);
/* "bytes", or the path of a tokenizer.json. */
enum dt_status dt_tokenizer_open(const char *name, struct dt_error *err, struct dt_tokenizer **out);
/* A tokenizer.json in memory.  What it asks for and we do not have is refused, never ignored. */
enum dt_status dt_tokenizer_parse(const char *name, const char *text, size_t len,
                                  struct dt_error *err, struct dt_tokenizer **out);
void dt_tokenizer_free(struct dt_tokenizer *t);

/* Largest id + 1. */
int dt_tokenizer_vocab(const struct dt_tokenizer *t);
/* Of all that encoding and decoding go by: the same whatever the file is called and however it is laid out. */
uint64_t dt_tokenizer_digest(const struct dt_tokenizer *t);
/* Id of the token with this text as written in the file (specials: "<eos>"), or -1. */
int32_t dt_tokenizer_find(const struct dt_tokenizer *t, const char *token);
/* Ids that the packer needs: added tokens; ordinary ones only of a file that names no special ones.
 * bos, eos and pad always exist (one stands for another where the tokenizer has fewer); image is pad
 * where there is no such token: its embedding is replaced by the image's anyhow. */
struct dt_tokenizer_special_ids {
    int32_t bos, eos, pad, image;
};
struct dt_tokenizer_special_ids dt_tokenizer_special(const struct dt_tokenizer *t);
/* They are others than those of versions that looked among all tokens. */
bool dt_tokenizer_special_moved(const struct dt_tokenizer *t);

/* Appends the ids of `text` (any bytes; malformed UTF-8 is taken byte by byte).  With `specials`
 * the added tokens in the text become their ids, as Hugging Face does; without, they are plain
 * text, which is right for data of others.  Nothing is put before or after.  Linear, but for n log
 * n in the longest word. */
enum dt_status dt_tokenizer_encode(const struct dt_tokenizer *t, const char *text, size_t len,
                                   bool specials, struct dt_error *err,
                                   struct dt_tokenizer_ids *ids);
/* Bytes of the ids, NUL-terminated (dt_free); ids out of range and, with skip_specials, special
 * tokens are left out.  A cut in the middle of a character gives malformed UTF-8. */
enum dt_status dt_tokenizer_decode(const struct dt_tokenizer *t, const int32_t *ids, size_t n,
                                   bool skip_specials, struct dt_error *err, char **out,
                                   size_t *len);

#endif
