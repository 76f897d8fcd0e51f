/*
 * adapters/merge.h: an adapter into the weight it belongs to (FORMATS 2), a range of rows at a time:
 *
 *     LoRA    W' = W + s B A
 *     DoRA    W' = (m / n) (W + s B A), n the norms of its rows
 *
 * in fp32, as PEFT's merge. Rows are independent: memory is that of the rows given.
 */
#ifndef TSR_ADAPTERS_MERGE_H
#define TSR_ADAPTERS_MERGE_H

#include "device/device.h"

#include <stdint.h>

typedef struct {
    uint64_t rows, in, r;
    const float *a; /* [r, in] */
    const float *b; /* [rows, r]: of these rows */
    const float *m; /* [rows], or NULL: LoRA */
    double scale;
} tsr_adapter_merge_args;

/* w [rows, in] in place. A row of zeros with a magnitude gives what the division gives. */
tsr_status tsr_adapter_merge(float *w, const tsr_adapter_merge_args *args, tsr_pool *pool);

#endif
