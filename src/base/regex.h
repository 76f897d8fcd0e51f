/*
 * base/regex.h: regular expressions out of files (tokenizers, adapters, job.yaml), within a budget. The one place that
 * calls Oniguruma.
 *
 * An expression may backtrack without end, or look at the whole rest of a text at each of its places. A budget, of a text
 * or of several that are as long, counts the steps back, so that the same text always fares the same; what they
 * do not count ends by the processor's time, far above what any expression of a published tokenizer takes.
 */
#ifndef TSR_BASE_REGEX_H
#define TSR_BASE_REGEX_H

#include "base/status.h"

#include <stdint.h>

typedef struct tsr_regex tsr_regex;

typedef enum { TSR_REGEX_RUBY, TSR_REGEX_PYTHON } tsr_regex_syntax;

#define TSR_REGEX_REASON_BYTES 200

/* On success the caller destroys *out. TSR_EDATA: `reason` says what is wrong with the expression, for the caller's message;
 * TSR_ENOMEM. */
tsr_status tsr_regex_create(tsr_regex **out, char reason[TSR_REGEX_REASON_BYTES],
                            const char *expression, size_t bytes, tsr_regex_syntax syntax);
void tsr_regex_destroy(tsr_regex *regex);

/* The same expression for another thread, compiled once; `origin` must outlive it. On success the caller destroys
 * *out. TSR_ENOMEM. */
tsr_status tsr_regex_share(tsr_regex **out, const tsr_regex *origin);

typedef struct {
    uint64_t steps; /* back, that are left */
    unsigned searches;
    double seconds, begun,
        looked; /* of this thread's processor: the limit, the start, the last look */
    char reason[TSR_REGEX_REASON_BYTES];
} tsr_regex_budget;

/* For a text of `bytes`, which `expressions` search one after the other. */
void tsr_regex_budget_begin(tsr_regex_budget *budget, size_t bytes, size_t expressions);

/* The first match in text[at..end), of which the expression sees text[begin..end). TSR_EDATA: the budget is used up, and its
 * `reason` says by what, for the caller's message; TSR_ENOMEM. One thread at a time uses a regex. */
tsr_status tsr_regex_search(bool *found, size_t match[2], const tsr_regex *regex,
                            tsr_regex_budget *budget, const char *text, size_t begin, size_t at,
                            size_t end);

/* Whether the expression matches where the text begins; as above. */
tsr_status tsr_regex_match(bool *found, const tsr_regex *regex, tsr_regex_budget *budget,
                           const char *text, size_t bytes);

/* Oniguruma's version. Borrowed. */
const char *tsr_regex_library(void);

#endif
