/*
 * data/rows.h: one row of a file as tokens, labels and documents. Private to
 * data/dataset.h.
 */
#ifndef TSR_DATA_ROWS_H
#define TSR_DATA_ROWS_H

#include "data/dataset.h"

/* Growing arrays, used again for every row. Zero-initialise; free with tsr_row_free. */
typedef struct {
    int32_t *ids, *labels, *lengths; /* labels of first tokens are -100 */
    size_t token_count, document_count;
    size_t token_capacity, document_capacity;
    int64_t label_count;
    int32_t desirable; /* of KTO */
    float margin;      /* of a reward model's pair */
    int32_t *prompt;   /* of a pair, while it is read */
    size_t prompt_count, prompt_capacity;
    unsigned findings; /* a bit for each tsr_finding */
    tsr_text keys;     /* of TSR_FINDING_KEYS, each with its zero: loss_weight, is_masked */
    tsr_chat_row chat;
} tsr_row;

void tsr_row_free(tsr_row *row);

/* Whether rows of such data have the format. */
bool tsr_row_may_be(tsr_data_format format, const tsr_dataset_options *options);

/* The format that the keys of a row belong to; AUTO: none that is known. */
tsr_data_format tsr_row_detect(const json_t *object, const tsr_dataset_options *options);

/* Appends the keys that rows of a format have: "instruction" and "output". */
void tsr_row_keys(tsr_text *out, tsr_data_format format, const tsr_dataset_options *options);

/* Appends the keys that a row has, and which of them count as missing: "text" (null), "id". */
void tsr_row_own_keys(tsr_text *out, const json_t *object);

/* Fills *row from an object of the given format. TSR_EDATA: the row, named by `place`, is of another
 * format or cannot be read. */
tsr_status tsr_row_read(tsr_row *row, const json_t *object, tsr_data_format format,
                        const tsr_dataset_options *options, const char *place);

/* Appends the keys that are not there yet: "loss_weight", "is_masked". */
void tsr_row_merge_keys(tsr_text *all, const tsr_text *keys);

/* One of the samples that a row is split into. Zero-initialise. */
typedef struct {
    size_t begin, end; /* its tokens */
    size_t document,
        document_begin; /* the document that it begins in, and that document's first token */
    int32_t document_count, label_count; /* its first token is no label */
} tsr_row_part;

/* The part of at most `most` tokens behind *part; false: there is none. A document that fits into what is left of a part
 * goes there whole, any other begins a part. What is left of a document begins with its last token before: `most` is at
 * least 2. */
bool tsr_row_next_part(tsr_row_part *part, const tsr_row *row, int64_t most);

/* Cuts *row to its first `most` tokens; of preferences each document. */
void tsr_row_cut(tsr_row *row, int64_t most);
void tsr_row_cut_documents(tsr_row *row, int64_t most);

/* The fewest labels of a document; the longest document. */
int32_t tsr_row_least_labels(const tsr_row *row);
int32_t tsr_row_longest(const tsr_row *row);

#endif
