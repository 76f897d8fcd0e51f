/*
 * kernels/expert_weight.h: the weights of a range of experts, with their adapters: W_e + s B_e A_e.
 *
 * The stored weights of all experts are a stack of experts * parts matrices [rows / parts, columns]: expert e has
 * matrices e parts to (e + 1) parts - 1, one below the other (gate above up, where parts is 2). Experts
 * [first, first + count) are written to `out`, each as nf4_merge.h has it, bit for bit:
 * out[e - first, i, j] = RN_dtype(w_e[i, j] + scale sum_k b[e, i, k] a[e, k, j]), sums in fp32.
 *
 * NF4      Each matrix is quantized on its own: its blocks of 64 begin with it, and where scales are nested so
 *          do groups of 256 blocks; `offset` is of the matrix. In memory each matrix begins at a whole granule of
 *          1024 elements: 512 bytes of codes, 16 scales. nested_absmax [matrices, ceil(blocks / 256)] has no gaps.
 * PLAIN    [experts, rows, columns], BF16 or F32; without adapters: merged, small updates of an exact weight would be lost.
 *
 * Cost     per element: what is stored of it, read, and one element written; 2 r FLOPs. On an H100 128 experts of
 *          1536 x 2048 take 0.44 ms at r 8 and 32, 0.47 at 16 (2.2 TB/s); of 2048 x 768 half of that.
 */
#ifndef TSR_KERNELS_EXPERT_WEIGHT_H
#define TSR_KERNELS_EXPERT_WEIGHT_H

#include "kernels/types.h"

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
    const void *a;              /* [experts, r, columns] of dtype */
    const void *b;              /* [experts, rows, r] of dtype */
    int64_t first, count;       /* of the experts */
    int64_t parts, rows, columns;
    int64_t r; /* 0: no adapter; always 0 with PLAIN */
    float scale;
    tsr_expert_format format;
    bool nested;
    bool settled; /* as nf4_dequant.h has it, of the stored weights */
    tsr_dtype dtype;
} tsr_expert_weight_args;

tsr_status tsr_expert_weight_check(const tsr_expert_weight_args *args);
tsr_status tsr_expert_weight_ref(const tsr_expert_weight_args *args, tsr_pool *pool);

/* Whether matrices leave no gaps between each other, and end where the tiles of a GPU's kernels end. Then
 * these take all of them as one, at the speed of nf4_merge, and with its bits. Other shapes take longer there;
 * with an adapter in 16 bits, an element may be rounded otherwise. */
bool tsr_expert_weight_whole(const tsr_expert_weight_args *args);

/* Granules of one matrix; and groups of 256 blocks. */
static inline int64_t tsr_expert_granules(int64_t rows, int64_t columns)
{
    return (rows * columns + TSR_EXPERT_GRANULE - 1) / TSR_EXPERT_GRANULE;
}

static inline int64_t tsr_expert_groups(int64_t rows, int64_t columns)
{
    return (rows * columns + 64 * 256 - 1) / (64 * 256);
}

#endif
