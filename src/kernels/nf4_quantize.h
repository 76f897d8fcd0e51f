/*
 * kernels/nf4_quantize.h: values to NF4 codes with fp32 scales, and those scales to 8-bit codes, bit
 * for bit as bitsandbytes stores them (docs: FORMATS 1). One rule, here; the cut over ranks is
 * quant/nf4_tensor.h.
 *
 *     quantize  absmax = the largest |x| of 64 elements (the last block may be short);
 *               code = thresholds below x * (1 / absmax), the reciprocal correctly rounded, a tie takes
 *               the lower code. A block of zeros has code 7 and absmax 0.
 *     nest      offset = the mean of all absmax, exact and rounded once; d = absmax - offset;
 *               nested = the largest |d| of 256; code = midpoints of the map below d * (1 / nested).
 *
 * A NaN is below no threshold. Element 2j is the HIGH nibble of byte j.
 *
 * Cost     quantize: an element is read, 1/2 + 1/16 bytes written. nest: 8 bytes read for 64 elements
 *          (absmax twice), 1 + 1/64 written.
 */
#ifndef TSR_KERNELS_NF4_QUANTIZE_H
#define TSR_KERNELS_NF4_QUANTIZE_H

#include "kernels/types.h"

#define TSR_NF4_BLOCK        64  /* elements that share a scale */
#define TSR_NF4_NESTED_BLOCK 256 /* scales that share a nested scale */

/* The 16 levels, codes 0..15, and the fp32 midpoints of neighbours. */
extern const float tsr_nf4_level[16];
extern const float tsr_nf4_threshold[15];

/* The 8-bit dynamic map of the nested scales (torch's linspace; not computable otherwise). */
extern const float tsr_nf4_nested_map[256];

/* `values` is F32, BF16 or F16 on every backend. A NaN or an infinity lowers *bad to its index plus
 * `first`; what is written for its block is then unspecified. */
typedef struct {
    uint8_t *codes;     /* [(count + 1) / 2]; a missing last element is code 7 */
    float *absmax;      /* [ceil(count / 64)] */
    uint64_t *bad;      /* [1]: UINT64_MAX before the first call of a tensor */
    const void *values; /* [count], from a block's first on */
    uint64_t first;     /* index of values[0], for *bad */
    int64_t count;
    tsr_dtype dtype;
} tsr_nf4_quantize_args;

/* absmax is that of the whole tensor, none below 0; if one is not finite, *offset is NaN. The codes
 * are those of blocks [first, first + count). At most 2^29 blocks (the exact sum). */
typedef struct {
    uint8_t *q;           /* [count] */
    float *nested_absmax; /* [ceil(blocks / 256)] */
    float *offset;        /* [1] */
    const float *absmax;  /* [blocks] */
    const float *map;     /* [256], increasing */
    int64_t *scratch;     /* [TSR_NF4_NEST_WORDS]; the CPU needs none */
    int64_t blocks, first, count;
} tsr_nf4_nest_args;

#define TSR_NF4_NEST_WORDS  16
#define TSR_NF4_NEST_BLOCKS ((int64_t)1 << 29)

tsr_status tsr_nf4_quantize_check(const tsr_nf4_quantize_args *args);
tsr_status tsr_nf4_quantize_ref(const tsr_nf4_quantize_args *args, tsr_pool *pool);
tsr_status tsr_nf4_nest_check(const tsr_nf4_nest_args *args);
tsr_status tsr_nf4_nest_ref(const tsr_nf4_nest_args *args, tsr_pool *pool);

/* The rules as plain functions, on the calling thread. Returns the index of the first value that is
 * not finite, and stops there; `count` if all are. */
uint64_t tsr_nf4_quantize_values(uint8_t *codes, float *absmax, const void *values, tsr_dtype dtype,
                                 uint64_t count);

/* With a given offset: nested_absmax [ceil(blocks / 256)] of absmax [blocks], and the codes of
 * blocks [first, first + count) into q [count]. */
void tsr_nf4_nest_values(uint8_t *q, float *nested_absmax, const float *absmax, const float *map,
                         uint64_t blocks, uint64_t first, uint64_t count, float offset);

#endif
