/*
 * kernels/expert_weight.h: the weights of a range of experts, in the compute dtype.
 *
 * The stored weights of all experts are a stack of experts * parts matrices [rows / parts, columns]: expert e has
 * matrices e parts to (e + 1) parts - 1, one below the other (gate above up, where parts is 2). Experts
 * [first, first + count) are written to `out`, each as nf4_dequant.h has it, bit for bit.
 *
 * NF4      Each matrix is quantized on its own: its blocks of 64 begin with it, and where scales are nested so
 *          do groups of 256 blocks; `offset` is of the matrix. In memory each matrix begins at a whole granule of
 *          1024 elements: 512 bytes of codes, 16 scales. nested_absmax [matrices, ceil(blocks / 256)] has no gaps.
 * PLAIN    [experts, rows, columns], BF16 or F32.
 *
 * Cost     per element: what is stored of it, read, and one element written.
 */
#ifndef TSR_KERNELS_EXPERT_WEIGHT_H
#define TSR_KERNELS_EXPERT_WEIGHT_H

#include "kernels/nf4_dequant.h"
#include "kernels/nf4_quantize.h"

#ifdef __CUDACC__
#define TSR_EXPERT_INLINE static __host__ __device__ __forceinline__
#else
#define TSR_EXPERT_INLINE static inline
#endif

typedef enum {
    TSR_EXPERTS_NF4,
    TSR_EXPERTS_PLAIN,
} tsr_expert_format;

#define TSR_EXPERT_GRANULE 1024 /* elements */

typedef struct {
    void *out;        /* [count, rows, columns] */
    tsr_frozen plain; /* PLAIN: [experts, rows, columns] */
    /* NF4: of all matrices; nf4_dequant.h says what each is. */
    const uint8_t *codes;
    const void *absmax;         /* uint8_t if nested, else float */
    const float *nested_absmax; /* if nested */
    const float *nested_map;    /* [256], if nested */
    const float *offset;        /* [experts * parts], if nested */
    const float *level;         /* [16] */
    int64_t first, count;       /* of the experts */
    int64_t parts, rows, columns;
    tsr_expert_format format;
    bool nested;
    bool settled; /* as nf4_dequant.h has it, of the stored weights */
    tsr_dtype dtype;
} tsr_expert_weight_args;

tsr_status tsr_expert_weight_check(const tsr_expert_weight_args *args);
tsr_status tsr_expert_weight_ref(const tsr_expert_weight_args *args, tsr_pool *pool);

/* Whether matrices leave no gaps between each other. Then a GPU's kernels take all of them as one, at the speed of
 * nf4_dequant. Other shapes take longer there. */
bool tsr_expert_weight_whole(const tsr_expert_weight_args *args);

/* Granules of one matrix; and groups of 256 blocks. */
TSR_EXPERT_INLINE int64_t tsr_expert_granules(int64_t rows, int64_t columns)
{
    return (rows * columns + TSR_EXPERT_GRANULE - 1) / TSR_EXPERT_GRANULE;
}

TSR_EXPERT_INLINE int64_t tsr_expert_groups(int64_t rows, int64_t columns)
{
    return (rows * columns + 64 * 256 - 1) / (64 * 256);
}

/* Matrix i of the stack, of `rows` rows, as nf4_dequant takes it; out is left to the caller. */
TSR_EXPERT_INLINE tsr_nf4_dequant_args tsr_expert_weight_matrix(const tsr_expert_weight_args *args,
                                                                int64_t i, int64_t rows)
{
    int64_t granule = i * tsr_expert_granules(rows, args->columns);
    int64_t block = granule * (TSR_EXPERT_GRANULE / TSR_NF4_BLOCK);
    tsr_nf4_dequant_args w = {0};
    w.codes = args->codes + granule * (TSR_EXPERT_GRANULE / 2);
    w.absmax = (const char *)args->absmax + block * (args->nested ? 1 : (int64_t)sizeof(float));
    if (args->nested) {
        w.nested_absmax = args->nested_absmax + i * tsr_expert_groups(rows, args->columns);
        w.offset = args->offset[i];
    }
    w.nested_map = args->nested_map;
    w.level = args->level;
    w.count = rows * args->columns;
    w.columns = args->columns;
    w.nested = args->nested;
    w.settled = args->settled;
    w.dtype = args->dtype;
    return w;
}

#endif
