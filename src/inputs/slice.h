/*
 * inputs/slice.h: a part of a data set's rows, as `datasets` writes it: "train[:10%]", "train[100:200]", "train[-50:]".
 *
 * A share is rounded to the nearest row, halves to the even one. Private to inputs.
 */
#ifndef TSR_INPUTS_SLICE_H
#define TSR_INPUTS_SLICE_H

#include "data/dataset.h"

typedef struct {
    char name[256]; /* of the split */
    bool sliced;
    bool has_from, has_to, percent;
    int64_t from, to; /* below 0: from the end */
} tsr_slice;

/* TSR_ECONFIG: not of this form; `where` and `key` begin the message. */
tsr_status tsr_slice_parse(tsr_slice *out, const char *text, const char *where, const char *key);

/* Sets options->skip_rows and max_rows (of which the lower counts). Where it takes their number, all rows of the files are
 * read. TSR_ECONFIG: no row is left, or the rows are asked for and cannot be counted. */
tsr_status tsr_slice_apply(tsr_dataset_options *options, const tsr_slice *slice, const char *where);

#endif
