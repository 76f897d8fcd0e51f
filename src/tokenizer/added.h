/*
 * tokenizer/added.h: the added tokens of a tokenizer, which are found in the text before anything is split: the leftmost,
 * and of those that begin there the longest. Finding them takes one pass over the text, however many there are
 * (Aho and Corasick 1975, from the end of the text to its beginning).
 */
#ifndef TSR_TOKENIZER_ADDED_H
#define TSR_TOKENIZER_ADDED_H

#include "base/status.h"

#include <stdint.h>

typedef struct {
    char *match; /* what is searched; normalized if the tokens of its set are */
    size_t match_bytes;
    int32_t id;
    bool lstrip, rstrip, normalized;
} tsr_added_token;

/* A token that begins at a byte of the text. */
typedef struct {
    size_t begin;
    int32_t token;
} tsr_added_hit;

/* Zero-initialise. */
typedef struct {
    tsr_added_token *tokens; /* with their matches, the set's */
    size_t count, capacity, bytes;
    struct tsr_added_node *nodes; /* NULL: without tokens */
    tsr_added_hit *hits;          /* of the text that was searched last, from its end */
    size_t hit_count, hit_capacity;
} tsr_added_set;

/* Appends a token, whose match the set owns from then on. TSR_ENOMEM; TSR_EDATA: the tokens have too many bytes. */
tsr_status tsr_added_append(tsr_added_set *set, const tsr_added_token *token);
/* After the last token, once. TSR_EDATA: two have one match. */
tsr_status tsr_added_finish(tsr_added_set *set);

/* Searches text[begin..end). */
tsr_status tsr_added_search(tsr_added_set *set, const char *text, size_t begin, size_t end);
/* The next token in the text that was searched, from byte `at` on; NULL if there is none. `at` never goes back. */
const tsr_added_token *tsr_added_next(size_t *where, tsr_added_set *set, size_t at);

/* The same for another thread, with hits of its own: freed by tsr_added_forget alone. */
tsr_added_set tsr_added_share(const tsr_added_set *origin);

/* Frees the hits. */
void tsr_added_forget(tsr_added_set *set);
void tsr_added_free(tsr_added_set *set);

#endif
