/*
 * kernels/mxfp4_dequant.h: matrices in MXFP4 (OCP Microscaling Formats 1.0) to values, exact but for the rounding to
 * F16.
 *
 * A block is 32 elements of a row: 16 bytes of codes and a scale. Element 2j is the LOW nibble of byte j (NF4 is the
 * other way round). A code is E2M1: 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6, and 8 more are their negatives; a scale s is
 * 2^(s - 127). The scale 255, which is NaN, is no scale: whoever reads a file refuses it (quant/mxfp4.h).
 *
 * Matrices lie in a stack, each from a whole granule on: 1024 elements, which are 512 bytes of codes and 32 scales. What
 * pads the last granule of a matrix is not read.
 *
 * Cost     per element 17/32 bytes read, one element written.
 */
#ifndef TSR_KERNELS_MXFP4_DEQUANT_H
#define TSR_KERNELS_MXFP4_DEQUANT_H

#include "kernels/types.h"

#define TSR_MXFP4_BLOCK               32
#define TSR_MXFP4_BLOCK_BYTES         16
#define TSR_MXFP4_NO_SCALE            255
#define TSR_MXFP4_GRANULE             1024 /* elements */
#define TSR_MXFP4_GRANULE_CODE_BYTES  512
#define TSR_MXFP4_GRANULE_SCALE_BYTES 32

typedef struct {
    void *out;             /* [count, rows, columns] */
    const uint8_t *codes;  /* of the stack's first matrix, on 4 bytes */
    const uint8_t *scales; /* the same */
    int64_t first, count;  /* matrices of the stack */
    int64_t rows, columns; /* of a matrix; columns are a multiple of 32 */
    /* Rows are gate and up by turns, as files have them, and become all of gate, then all of up: rows are even. */
    bool by_turns;
    tsr_dtype dtype; /* of out */
} tsr_mxfp4_dequant_args;

/* Granules of a matrix. */
static inline int64_t tsr_mxfp4_granules(int64_t rows, int64_t columns)
{
    return (rows * columns + TSR_MXFP4_GRANULE - 1) / TSR_MXFP4_GRANULE;
}

tsr_status tsr_mxfp4_dequant_check(const tsr_mxfp4_dequant_args *args);
tsr_status tsr_mxfp4_dequant_ref(const tsr_mxfp4_dequant_args *args, tsr_pool *pool);

#endif
