/*
 * data/tokenize.h: rows to tokens by several threads, taken back in the order in which they were given. Private to
 * data/dataset.h.
 *
 * Order    tsr_tokenize_slot, fill it, tsr_tokenize_put; where there is no slot, tsr_tokenize_take first. At the end
 *          tsr_tokenize_take until it gives NULL.
 * Memory   A fixed number of rows is under way, as JSON or as tokens, whatever the threads' speeds.
 * Threads  One thread gives and takes rows; it tokenizes them itself where it is the only one. Each of the others has a
 *          tokenizer and a chat of its own (tsr_tokenizer_share, tsr_chat_share).
 */
#ifndef TSR_DATA_TOKENIZE_H
#define TSR_DATA_TOKENIZE_H

#include "data/rows.h"

typedef struct tsr_tokenize tsr_tokenize;

/* What max_length did to a row. */
typedef enum {
    TSR_ROW_KEPT,
    TSR_ROW_CUT,
    TSR_ROW_SPLIT,
    TSR_ROW_TOO_LONG,
    TSR_ROW_EMPTIED
} tsr_row_fate;

/* A sample of a row: all of it, or a part. */
typedef struct {
    int32_t number; /* of a part, from 1; 0: all of it */
    int32_t token_count, document_count, label_count;
} tsr_tokenized_part;

/* A row on its way. */
typedef struct {
    /* Given: zero but for the text of `place`, which is to be cleared first. */
    json_t *object; /* taken */
    tsr_text place; /* for messages */
    int32_t file;
    int64_t line;
    /* Made; of one that was given without an object, status and error are the giver's. */
    tsr_status status;
    tsr_error *error; /* of a negative status; NULL: no memory for it */
    tsr_row_fate fate;
    size_t length; /* tokens before it was cut */
    tsr_tokenized_part *parts;
    int32_t part_count, empty_parts; /* that are there, and those without a label, which are not */
    int32_t desirable;
    float margin;
    unsigned findings; /* a bit for each tsr_finding */
    tsr_text keys;     /* as tsr_row's */
    int32_t
        *words; /* ids, labels, lengths of each part; NULL: status is negative, or it was dropped */
    uint64_t word_count;
} tsr_tokenized;

/* options->threads of them; all of `options` is borrowed until the end. On success the caller owns *out. */
tsr_status tsr_tokenize_create(tsr_tokenize **out, tsr_data_format format,
                               const tsr_dataset_options *options);

/* Stops the threads; what is under way is dropped. */
void tsr_tokenize_destroy(tsr_tokenize *t);

/* Where the next row is put; NULL: too many are under way. Borrowed until tsr_tokenize_put. */
tsr_tokenized *tsr_tokenize_slot(tsr_tokenize *t);
void tsr_tokenize_put(tsr_tokenize *t);

/* The oldest row that was not taken yet, borrowed until the next call of these functions. NULL: it is under way, or with
 * `wait` none is. A row takes as long as its own limits allow (base/regex.h, jinja/template.h). */
tsr_tokenized *tsr_tokenize_take(tsr_tokenize *t, bool wait);

/* Keeps this thread's last error for the row. */
void tsr_tokenized_fail(tsr_tokenized *row, tsr_status status);

#endif
