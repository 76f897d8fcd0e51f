/*
 * data/dataset.h: files of rows (table/table.h), or rows that a callback gives, as tokens: every row becomes one
 * sample, all held in one flat array of 32-bit ids and labels.
 *
 * Formats   messages {messages}, sharegpt {conversations: [{from, value}]}, prompt_completion
 *           {prompt, completion} (two strings, or two lists of messages), preference {prompt, chosen, rejected}, preference_ids,
 *           unpaired {prompt, completion, label}, alpaca {instruction,
 *           input, output}, input_output {segments: [{label, text}]}, text {text}, pretokenized {input_ids, labels, seq_lengths}. Chats go
 *           through data/chat.h, plain text is tokenised with the special tokens that the tokenizer
 *           adds and ends with the end of sequence token, segments as they are. docs/data.md has them all.
 * Labels    Hugging Face's: not shifted, -100 is ignored. The first token of a document is never a
 *           label: the loader writes -100 there, so the labels of a sample count what is trained.
 * Pairs     a sample of two documents, the prompt with the chosen and with the rejected answer; of KTO the row's own, and
 *           that of tsr_dataset_mismatch. The labels are those of the answers, up to the end of a document; of a reward model's
 *           pairs only the last token of each document is one, even of a document of one token.
 * Samples   keep the order of the files and of their lines. A row that truncation leaves without
 *           tokens or without labels is dropped; one that had no labels from the start is kept.
 * Parts     TSR_TRUNCATE_SPLIT makes several samples of a longer row, its parts, in order: each but the first of a document
 *           begins with the last token of the part before, so that the label of its first own token has a token that
 *           predicts it. All labels of the row are there, each once. Parts without a label are dropped as rows are.
 * Memory    8 bytes a token, 48 a sample, 4 a document; up to twice that while loading. With a
 *           cache they are a file that is mapped; making it takes memory for the samples alone.
 * Threads   A loaded dataset never changes: any number of threads may read it.
 */
#ifndef TSR_DATA_DATASET_H
#define TSR_DATA_DATASET_H

#include "base/text.h"
#include "data/chat.h"
#include "data/columns.h"

#include <limits.h>

#define TSR_LABEL_IGNORED (-100)

typedef struct tsr_dataset tsr_dataset;

typedef enum {
    TSR_TRUNCATE_ERROR,
    TSR_TRUNCATE_RIGHT,
    TSR_TRUNCATE_DROP,
    TSR_TRUNCATE_SPLIT /* not of preferences; max_length must be at least 2 */
} tsr_truncation;

/* Whether a part of a row alone is trained; AUTO: where the row has such a part. */
typedef enum { TSR_LOSS_AUTO, TSR_LOSS_YES, TSR_LOSS_NO } tsr_loss_choice;

/* What rows are of, beside text with labels: preferences, which DPO and KTO, or ORPO and CPO, tokenize as TRL does. */
typedef enum {
    TSR_PAIRS_NONE,
    TSR_PAIRS_DPO,
    TSR_PAIRS_ORPO,
    TSR_PAIRS_KTO,
    TSR_PAIRS_REWARD /* whole documents, of which the last token is scored */
} tsr_pairs;

/* Rows that are asked for, not read (tessera.h: tsr_job_options.row). next NULL: they are in files. */
typedef struct {
    int (*next)(void *user, const char *name, int64_t index, const char **row, size_t *bytes);
    void *user;
} tsr_row_source;

/* Where tokens are kept between runs (data/token_cache.h); of all data sets of a run. */
typedef struct {
    char directory[PATH_MAX]; /* made if it is not there; "": none is known */
    uint64_t least_bytes;     /* files that are less together are tokenized each time */
    uint64_t most_bytes;      /* of all caches in it; 0: 10 GiB */
    bool failed;              /* it was said that nothing can be kept: it is not tried again */
} tsr_token_place;

/* Zero-initialise; everything is borrowed during the load only, but the strings of `files` are
 * copied. */
typedef struct {
    const char *const *files; /* with rows.next: names that it is asked for */
    tsr_row_source rows;
    int file_count;
    const char *key;            /* what messages call the list; NULL: "dataset" */
    tsr_data_format format;     /* AUTO: by the keys of the first row */
    const char *text_field;     /* the key of text rows; NULL: "text" */
    const tsr_columns *columns; /* what the rows call their parts; NULL: as the format does */
    tsr_chat *chat;             /* needed for conversations only */
    tsr_tokenizer *tokenizer;   /* needed for plain text only, */
    int32_t eos_id;             /* and so is the token that ends it */
    int32_t pad;                /* of a reward model: 1 + the token that is not scored at the end
                                       of a document; 0: none is */
    tsr_loss_choice assistant_only; /* of conversations, the assistant's turns */
    tsr_chat_training
        training; /* of conversations, roles and ends; assistant_only is set by that above */
    tsr_loss_choice completion_only; /* of prompt_completion and alpaca, the completion */
    bool drop_system;                /* of chats, a system turn that they begin with goes */
    const char *default_system;      /* of chats without a system turn; NULL: they have none */
    const char *
        response_template; /* what follows its last place in a row's text is trained, and no more; NULL: as above */
    tsr_pairs pairs;
    const char *
        answer_begin; /* ends the prompt of a pair of texts without one; NULL: the prompt is what both begin with */
    bool bare_conversations; /* of ORPO and CPO: no BOS or EOS but the template's */
    int64_t max_length;      /* tokens of a sample, or of a document of a pair; 0: no limit */
    tsr_truncation truncation;
    int64_t vocab_size; /* ids must be below it; 0: not checked */
    int64_t skip_rows;  /* the first rows of the files, which are not even looked at */
    int64_t max_rows;   /* only so many rows, dropped ones counted; 0: all */
    int threads;        /* that tokenize; 0: the caller's alone */
    tsr_token_place
        *cache; /* NULL: none. What changes tokens belongs into its key (token_cache.c) */
} tsr_dataset_options;

/* One sample, borrowed from the dataset. ids, labels [token_count]; lengths [document_count], all
 * positive, add up to token_count. */
typedef struct {
    const int32_t *ids, *labels, *lengths;
    int32_t token_count, document_count, label_count;
    int32_t desirable; /* of KTO: 1 or 0; of a pair, and of all others, 0 */
    float margin;      /* of a reward model's pair, else 0 */
    int32_t file;      /* which of the files */
    int32_t part;      /* of a row that was split, from 1; 0: it is a whole row */
    int64_t line;      /* or the row, of a file that has no lines; from 1 */
} tsr_sample;

typedef struct {
    int64_t rows;             /* read from the files */
    int64_t samples;          /* kept */
    int64_t documents;        /* of the kept samples */
    int64_t tokens;           /* input tokens */
    int64_t label_tokens;     /* labels that are trained */
    int64_t longest_sample;   /* tokens */
    int64_t longest_document; /* tokens: positions are below it */
    int64_t unlabelled;       /* samples that never had a label: kept */
    int64_t truncated;        /* samples cut to max_length */
    int64_t too_long;         /* rows dropped because they are longer than max_length */
    int64_t emptied;          /* rows dropped because cutting took all that was trained */
    int64_t split;            /* rows that became several samples */
    int64_t parts;            /* these samples */
    int64_t empty_parts;      /* not among them: dropped because nothing of them is trained */
    tsr_found first_cut, first_split, first_too_long, first_emptied; /* rows: as above */
    tsr_found found[TSR_FINDING_COUNT];
} tsr_dataset_stats;

/* The format of the data (never AUTO): options->format, or what the keys of the first row of the
 * first file say, which is logged. *is_chat: whether that row is a conversation, which needs a chat
 * template; otherwise it is text or tokens. TSR_EDATA: no such file, no row, invalid JSON, keys of
 * no known format (they are listed). */
tsr_status tsr_dataset_detect(tsr_data_format *out, bool *is_chat,
                              const tsr_dataset_options *options);

/* "messages", "pretokenized" and so on: the words of dataset_format. */
const char *tsr_data_format_name(tsr_data_format format);

/* Reads all files; the caller owns *out. TSR_EDATA: the first bad row with its file and line, and
 * how many more there are; no row; no label in the whole data. TSR_ECONFIG: a choice of what is
 * trained that the format does not have. Samples without labels, rows that were dropped, and each finding are
 * logged as one warning. */
tsr_status tsr_dataset_load(tsr_dataset **out, const tsr_dataset_options *options);
void tsr_dataset_destroy(tsr_dataset *dataset);

/* One sample of several data sets. */
typedef struct {
    int32_t part; /* which of them */
    int64_t sample;
} tsr_sample_ref;

/* A data set of samples of others, in the order of refs[0..count), each as often as it is named. On success *out, which the
 * caller owns, owns the parts; on failure they are still the caller's. TSR_ENOMEM. */
tsr_status tsr_dataset_join(tsr_dataset **out, tsr_dataset *const *parts, int part_count,
                            const tsr_sample_ref *refs, int64_t count);

/* Takes the samples i with leaves[i], of so many rows, out of *data, as the data set *out, which the caller owns: it has their
 * order, and borrows their tokens from *data. Both must have samples left. TSR_ENOMEM leaves *data as it was. */
tsr_status tsr_dataset_divide(tsr_dataset **out, tsr_dataset *data, const bool *leaves,
                              int64_t rows);

/* Samples of KTO, in the place of *data, which the new one owns: pairs become two, all chosen answers of 1000 rows before the
 * rejected ones, and each sample gets a second document, its prompt with the answer of the sample before it in its group of
 * `group`, the first one with that of the last. Documents are cut to max_length (0: no limit). As TRL 1.16's KTOTrainer.
 * TSR_ENOMEM leaves *data as it was. */
tsr_status tsr_dataset_mismatch(tsr_dataset **data, int64_t group, int64_t max_length);

int64_t tsr_dataset_sample_count(const tsr_dataset *dataset);
tsr_sample tsr_dataset_sample(const tsr_dataset *dataset, int64_t index);
/* The format of its first file's rows; several data sets that were joined may have several. */
tsr_data_format tsr_dataset_format(const tsr_dataset *dataset);
tsr_data_format tsr_dataset_file_format(const tsr_dataset *dataset, int index);
int tsr_dataset_file_count(const tsr_dataset *dataset);
const tsr_dataset_stats *tsr_dataset_stats_of(const tsr_dataset *dataset);

/* The path of file `index`, as it was given. Borrowed. */
const char *tsr_dataset_file(const tsr_dataset *dataset, int index);

/* The keys that TSR_FINDING_KEYS is about: "loss_weight", "is_masked". Borrowed. */
const char *tsr_dataset_unread_keys(const tsr_dataset *dataset);

/* A hash of all tokens, labels, documents and samples: equal on all ranks, or they were given
 * different files. */
uint64_t tsr_dataset_hash(const tsr_dataset *dataset);

/* Bytes of host memory that the samples take, or of the file that is mapped. */
uint64_t tsr_dataset_bytes(const tsr_dataset *dataset);

#endif
