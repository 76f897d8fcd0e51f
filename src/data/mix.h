/*
 * data/mix.h: several data sets as one.
 *
 * Concatenated  One behind the other. A weight is how much of a set is used: 0.5 the first half of its samples, 2 all of them
 *               twice.
 * Interleaved   As `datasets.interleave_datasets`: with weights a draw decides each sample's set, its probability the weight's
 *               share of all; without, the sets take turns. It ends when one is used up.
 *
 * The order follows from the seed, the weights and the numbers of samples: it is the same on every rank.
 */
#ifndef TSR_DATA_MIX_H
#define TSR_DATA_MIX_H

#include "data/dataset.h"

typedef struct {
    bool interleave;
    const double *weights; /* [count]; 0: not given, which counts as 1 */
    uint64_t seed;
    int64_t most; /* samples of the mix, its first; 0: all */
} tsr_mix_options;

/* Takes parts[0..count) on success, as tsr_dataset_join does. TSR_ECONFIG: no sample would be left. */
tsr_status tsr_dataset_mix(tsr_dataset **out, tsr_dataset *const *parts, int count,
                           const tsr_mix_options *options);

#endif
