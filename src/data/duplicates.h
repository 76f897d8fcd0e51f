/*
 * data/duplicates.h: samples that have exactly the tokens of an earlier one.
 *
 * Found by a hash of their tokens, and compared. Memory does not grow with the data: beyond `at_once` samples they are taken in
 * several passes, each over those whose hash falls into its part. A sample that a weight repeats is none.
 */
#ifndef TSR_DATA_DUPLICATES_H
#define TSR_DATA_DUPLICATES_H

#include "data/dataset.h"

#define TSR_DUPLICATES_NAMED 10

typedef struct {
    int64_t first, again; /* samples */
} tsr_duplicate;

typedef struct {
    int64_t samples;                           /* that an earlier one equals */
    tsr_duplicate pairs[TSR_DUPLICATES_NAMED]; /* those that are found again first */
    int pair_count;
} tsr_duplicates;

/* at_once 0: four million, for which it takes 128 MiB. TSR_ENOMEM. */
tsr_status tsr_duplicates_find(tsr_duplicates *out, const tsr_dataset *data, int64_t at_once);

#endif
