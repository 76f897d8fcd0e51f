/*
 * tokenizer/split.h: the pre-tokenizer: a text cut into words by patterns, as `tokenizers` does.
 */
#ifndef TSR_TOKENIZER_SPLIT_H
#define TSR_TOKENIZER_SPLIT_H

#include "base/regex.h"
#include "tokenizer/tokenizer.h"

typedef enum {
    TSR_SPLIT_REMOVED,
    TSR_SPLIT_ISOLATED,
    TSR_SPLIT_MERGED_WITH_PREVIOUS,
    TSR_SPLIT_MERGED_WITH_NEXT,
    TSR_SPLIT_CONTIGUOUS
} tsr_split_behavior;

typedef struct tsr_split tsr_split; /* one pattern and what becomes of its matches */

/* A pattern is Oniguruma's (Ruby syntax, UTF-8), or with `literal` a plain string. `place` is named
 * in messages. TSR_EDATA: the pattern is not valid. */
tsr_status tsr_split_create(tsr_split **out, const char *pattern, size_t bytes, bool literal,
                            tsr_split_behavior behavior, bool invert, const char *place);
void tsr_split_destroy(tsr_split *split);

/* The same for another thread; `origin` must outlive it. TSR_ENOMEM. */
tsr_status tsr_split_share(tsr_split **out, const tsr_split *origin);

/* Growing array; zero-initialise. */
typedef struct {
    tsr_span *spans;
    size_t count, capacity;
} tsr_pieces;

/* Cuts text[begin..end) and appends its pieces, none of them empty. The pattern sees nothing of the
 * text outside. TSR_EDATA: the budget, which is the text's, is used up. */
tsr_status tsr_split_apply(tsr_pieces *out, const tsr_split *split, tsr_regex_budget *budget,
                           const char *text, size_t begin, size_t end);
tsr_status tsr_pieces_add(tsr_pieces *pieces, size_t begin, size_t end);

#endif
