/*
 * data/held_out.h: samples of the training data that are evaluated instead.
 *
 * Which ones follows from the seed and the number of samples alone: the same on every rank, on any number of ranks, and when
 * the run is resumed. The parts of a row that was split stay together: then rows are counted, not samples.
 */
#ifndef TSR_DATA_HELD_OUT_H
#define TSR_DATA_HELD_OUT_H

#include "data/dataset.h"

typedef struct {
    double
        split; /* samples to hold out; below 1: a share of all, rounded up as scikit-learn and `datasets` do */
    int64_t most;      /* that are evaluated, in the order of the data; 0: all that are held out */
    uint64_t seed;     /* of the choice */
    const char *where; /* the key's place, for messages */
} tsr_held_out_options;

/* Takes the held-out samples out of *data, as tsr_dataset_divide does. TSR_ECONFIG: no sample would be left to train.
 * TSR_EDATA: one of the two parts has no token to train. */
tsr_status tsr_dataset_hold_out(tsr_dataset **out, tsr_dataset *data,
                                const tsr_held_out_options *options);

#endif
