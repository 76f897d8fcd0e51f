/*
 * data/batch.h: which samples every step of a run trains, as micro-batches ready for the kernels.
 *
 * An epoch's order is a permutation of the units (samples, or rows of packed samples), fixed by
 * (seed, epoch) alone. Micro-batch k of a step is `per_device` consecutive units of it, or with
 * `balance` as many as have an even share of its tokens, and goes to rank k mod N; a rank without one takes part empty. Nothing here depends on the rank, and with
 * total_batch given nothing but the number of rounds depends on N.
 *
 * Order     tsr_batch_create, then any step in any order; walking on through the steps is cheap, a
 *           jump back by more than one epoch computes an epoch's order again.
 * Memory    All at creation: O(units) for two epochs. tsr_batch_step and tsr_batch_fill allocate
 *           nothing.
 * Threads   One thread at a time.
 */
#ifndef TSR_DATA_BATCH_H
#define TSR_DATA_BATCH_H

#include "data/dataset.h"

typedef struct tsr_batch tsr_batch;

/* Zero-initialise. The dataset is borrowed and must outlive the schedule. */
typedef struct {
    const tsr_dataset *dataset;
    const char *name; /* what messages call the data; NULL: "dataset" */
    bool shuffle;     /* false: file order in every epoch */
    uint64_t seed;    /* data_seed */
    bool packing;
    int64_t max_length;   /* of a packed row; needed with packing */
    int64_t per_device;   /* units in a micro-batch; 0: 1 */
    int64_t accumulation; /* 0: 1 */
    int64_t total_batch;  /* units of a step; 0: per_device x accumulation x ranks */
    int64_t ranks;        /* 0: 1 */
    bool group_by_length; /* without packing: steps of samples of nearly one length */
    bool
        balance; /* a step's samples are dealt to micro-batches by tokens; not with packing or evaluation */
    bool drop_last;    /* an epoch's smaller last step is left out */
    double epochs;     /* 0: 1 */
    int64_t max_steps; /* above 0: instead of epochs */
    bool evaluation;   /* one epoch in file order, all of it one step */
    tsr_pairs pairs; /* samples have two documents, and micro-batches say where their parts begin */
    bool whole_chosen; /* of a pair the first document's prompt is trained too */
    bool split_beyond; /* what an answer has beyond the pair's shorter one is a part of its own */
    bool marks_ties;   /* pairs of the same tokens are marked in `desirable` */
} tsr_batch_options;

/* One of the listed shapes that token and label-row counts are rounded up to. */
typedef struct {
    int32_t tokens, label_rows;
} tsr_batch_bucket;

#define TSR_BATCH_BUCKETS 16

/* The whole run, exact; the same on all ranks. */
typedef struct {
    int64_t steps, steps_per_epoch;
    int64_t samples;          /* of the dataset */
    int64_t units;            /* of an epoch: samples, or packed rows */
    int64_t epochs;           /* that are begun */
    int64_t step_micro;       /* micro-batches of a full step */
    int64_t rounds;           /* the most that a rank runs in a step */
    int64_t label_tokens;     /* of all steps */
    int64_t input_tokens;     /* of all steps */
    int64_t most_step_labels; /* label tokens of the largest step */
    int32_t most_tokens;      /* of a micro-batch */
    int32_t most_documents;   /* of a micro-batch */
    int32_t most_label_rows;  /* of a micro-batch */
    int32_t longest_document; /* of any micro-batch */
    int32_t bucket_count;     /* at least 1; tokens ascending, the last covers all */
    tsr_batch_bucket bucket[TSR_BATCH_BUCKETS];
    uint64_t hash; /* of the order of the first epoch and of all counts */
} tsr_batch_run;

/* One step. */
typedef struct {
    int64_t epoch;        /* from 0 */
    int64_t micro_count;  /* micro-batches of the step, over all ranks */
    int64_t rounds;       /* ceil(micro_count / ranks): what every rank runs, empty ones included */
    int64_t first_micro;  /* the index in its epoch of the step's micro-batch 0 */
    int64_t label_tokens; /* of the whole step, over all ranks */
    int64_t input_tokens; /* of the whole step, without padding */
    int64_t samples_seen; /* this step included; what drop_last left out counts */
    double progress;      /* epochs done after this step: 1.0 at the end of the first */
    bool ends_epoch;
} tsr_batch_step_info;

/* One micro-batch. Arrays belong to whoever made it with tsr_micro_batch_create. The arrays of
 * tokens are filled up to bucket's tokens with id 0, position 0, target -100; label_rows and labels
 * up to bucket's label_rows with 0. Documents end at token_count. */
typedef struct {
    int32_t token_count, document_count, label_count; /* all 0 in an empty micro-batch */
    int32_t bucket;                                   /* 0 in an empty one */
    int64_t epoch;
    int32_t *ids;            /* [tokens] */
    int32_t *positions;      /* [tokens] from 0 in each document */
    int32_t *targets;        /* [tokens] label of the next token in the same document, or -100; of a
                                document that is scored that of its last token itself */
    int32_t *cu_seqlens;     /* [documents + 1] from 0 */
    int32_t *label_rows;     /* [label_rows] the tokens with a target, ascending */
    int32_t *labels;         /* [label_rows] their targets */
    int64_t *sample;         /* [documents] index in the dataset: what dropout is keyed by */
    int32_t *first_position; /* [documents] of the document in its sample: dropout's position */
    /* Of pairs (kernels/objective.h): the first label row of the prompt, of the answer and of what is beyond, of each document,
     * [3 documents + 1], and [documents / 2] KTO's labels, or with marks_ties 1 where both documents are the same. */
    int32_t *part, *desirable;
    float *margin; /* [documents / 2] of pairs that a reward model scores, which have no parts */
    void *memory;  /* private */
} tsr_micro_batch;

/* Checks the options and walks the whole run once. On success the caller owns *out. TSR_ECONFIG:
 * total_batch is not a multiple of per_device, no step is left, a micro-batch above 2^31 - 1
 * tokens. TSR_EDATA: a step without any label; its rows are named. */
tsr_status tsr_batch_create(tsr_batch **out, const tsr_batch_options *options);
void tsr_batch_destroy(tsr_batch *batch);

const tsr_batch_run *tsr_batch_run_of(const tsr_batch *batch);

/* What step `step` (from 0, below steps) trains. TSR_EINVAL: no such step. */
tsr_status tsr_batch_step(tsr_batch *batch, int64_t step, tsr_batch_step_info *info);

/* Fills *out with micro-batch `index` of a step: of round j on rank r, j x ranks + r. From
 * micro_count on it is empty. TSR_EINVAL: no such step. */
tsr_status tsr_batch_fill(tsr_micro_batch *out, tsr_batch *batch, int64_t step, int64_t index);

/* A row of a step: a sample, or a packed row. Micro-batches that hold rows of several schedules are made of these. */
typedef struct {
    int32_t tokens, documents, label_rows;
} tsr_batch_row;

/* Rows of a step, 0 of one that there is not; and row `row` of them. */
int64_t tsr_batch_rows(tsr_batch *batch, int64_t step);
tsr_batch_row tsr_batch_row_of(tsr_batch *batch, int64_t step, int64_t row);

/* Empties *out, and puts a row behind what it holds, for which it has room. Nothing is padded; the bucket stays 0. */
void tsr_micro_batch_clear(tsr_micro_batch *out);
void tsr_batch_append(tsr_micro_batch *out, tsr_batch *batch, int64_t step, int64_t row);

/* Arrays for any micro-batch of the run: the capacities of *run. */
tsr_status tsr_micro_batch_create(tsr_micro_batch *out, const tsr_batch_run *run);
void tsr_micro_batch_free(tsr_micro_batch *micro);

#endif
