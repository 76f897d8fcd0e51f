/*
 * data/batch_bucket.h: at most TSR_BATCH_BUCKETS listed shapes for the micro-batches of a run,
 * chosen so that rounding token counts up adds as few tokens as possible. Private to data/batch.h.
 */
#ifndef TSR_DATA_BATCH_BUCKET_H
#define TSR_DATA_BATCH_BUCKET_H

#include "data/batch.h"

#define TSR_BUCKET_CELLS 512

/* Micro-batches by their tokens, `width` counts to a cell; width doubles when it must. Start with
 * width 1 and the rest zero. */
typedef struct {
    int64_t width;
    struct {
        int64_t count;
        int32_t most_tokens, most_labels;
    } cell[TSR_BUCKET_CELLS];
} tsr_bucket_histogram;

void tsr_bucket_add(tsr_bucket_histogram *histogram, int32_t tokens, int32_t labels);

/* Writes the shapes to run->bucket: exact where the run has no more different counts than that. */
tsr_status tsr_bucket_choose(tsr_batch_run *run, const tsr_bucket_histogram *histogram);

/* The smallest bucket that holds `tokens`. */
int32_t tsr_batch_bucket_of(const tsr_batch_run *run, int32_t tokens);

#endif
