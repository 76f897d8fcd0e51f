/*
 * tokenizer/bpe.h: byte pair encoding of one word, over a vocabulary of bytes or of characters.
 *
 * The pair of least rank is merged first, the leftmost of equals, until no pair of neighbours has a
 * rank: what `tokenizers` computes. Words that were seen are remembered.
 */
#ifndef TSR_TOKENIZER_BPE_H
#define TSR_TOKENIZER_BPE_H

#include "tokenizer/map.h"
#include "tokenizer/tokenizer.h"

typedef struct {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* -1: empty */
    int32_t id;    /* of the two together */
} tsr_bpe_merge;

typedef struct {
    int32_t id;
    uint32_t end; /* in bytes of the word */
} tsr_bpe_piece;

/* Zero-initialise, then fill: byte_ids, words, merges. */
typedef struct {
    int32_t byte_ids[256]; /* -1: a byte without a token, which is dropped */
    tsr_map words;         /* bytes of every token of the model to its id */
    bool characters;       /* begin with the characters that are tokens, and the bytes of others */
    bool ignore_merges;    /* a word that is a token is that token */
    tsr_bpe_merge *merges;
    size_t merge_capacity, merge_count;

    tsr_map cache; /* word to its place in `cached` */
    tsr_bpe_piece *cached;
    size_t cached_count, cached_capacity;
    void *scratch;
    size_t scratch_bytes;
} tsr_bpe;

/* Adds a merge; a pair that is there already takes the later rank. TSR_ENOMEM. */
tsr_status tsr_bpe_add_merge(tsr_bpe *bpe, int32_t left, int32_t right, int32_t rank, int32_t id);

/* Appends the tokens of one word to *out. Byte i of the word is byte source + i of the text; its
 * first `inserted` bytes are not in the text. */
tsr_status tsr_bpe_encode(tsr_tokens *out, tsr_bpe *bpe, const char *word, size_t bytes,
                          size_t source, size_t inserted);

/* Makes room for `more` tokens. */
tsr_status tsr_tokens_reserve(tsr_tokens *tokens, size_t more);

/* The same for another thread, which remembers words of its own: freed by tsr_bpe_forget alone. */
tsr_bpe tsr_bpe_share(const tsr_bpe *origin);

/* Frees what encoding took. */
void tsr_bpe_forget(tsr_bpe *bpe);
void tsr_bpe_free(tsr_bpe *bpe);

#endif
