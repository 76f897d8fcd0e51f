/*
 * quant/nf4_tensor.h: an NF4 tensor cut over ranks, for its two-phase quantization.
 *
 * The cut is by flat index in granules of 1024 elements = 512 bytes of codes + 16 blocks' scales.
 * Rank i holds granules [i c, (i + 1) c), c = ceil(G / N); only the tail is padded, with zeros. So
 * the ranks' parts one after the other are the whole tensor, and no block or nibble is split.
 * Offset, nested scales and the nested map belong to the whole tensor and are replicated.
 *
 * Order    1. tsr_nf4_layout_make
 *          2. the rank's own elements, in pieces of whole blocks, to own codes and own fp32 absmax by
 *             the op nf4_quantize (kernels/nf4_quantize.h), which finds a value that is not finite
 *          3. with double quantization: the caller all-gathers the absmax of all ranks
 *             (layout.blocks_per_rank floats each), then the op nf4_nest over block_count of them
 *             gives the rank's own 8-bit codes and the replicated offset and nested scales
 *          or, from a bitsandbytes checkpoint: tsr_nf4_shard_codes, tsr_nf4_shard_absmax with the
 *          rank's own bytes of the file, and tsr_nf4_check_checkpoint.
 * Memory   Nothing is allocated here: all buffers are the caller's.
 */
#ifndef TSR_QUANT_NF4_TENSOR_H
#define TSR_QUANT_NF4_TENSOR_H

#include "quant/nf4.h"

#define TSR_NF4_GRANULE              1024 /* elements */
#define TSR_NF4_GRANULE_CODE_BYTES   512
#define TSR_NF4_GRANULE_BLOCKS       16
#define TSR_NF4_GRANULE_ABSMAX_BYTES 16 /* nested; 64 with fp32 scales */

typedef struct {
    uint64_t element_count, block_count, granule_count, nested_count; /* of the whole tensor */
    uint64_t rank_count, granules_per_rank;
    uint64_t blocks_per_rank; /* with padding */
    uint64_t code_bytes;      /* one rank's codes segment, with padding */
    uint64_t absmax_bytes;    /* one rank's scales segment, with padding */
    bool nested;
} tsr_nf4_layout;

/* What one rank holds of it, without padding. Counts may be 0. */
typedef struct {
    uint64_t first_element, element_count;
    uint64_t first_block, block_count;
    uint64_t first_code_byte, code_byte_count;
} tsr_nf4_range;

/* TSR_EINVAL: no element or rank, more than 2^35 elements or 2^20 ranks. */
tsr_status tsr_nf4_layout_make(tsr_nf4_layout *out, uint64_t element_count, uint64_t rank_count,
                               bool nested);

tsr_nf4_range tsr_nf4_rank_range(const tsr_nf4_layout *layout, uint64_t rank);

/* The rank's segment from the bytes of its range as they are in a checkpoint, tail padded:
 * `bytes` holds range.code_byte_count bytes; `scales` range.block_count bytes (nested) or floats.
 * The source may be the segment itself. */
void tsr_nf4_shard_codes(uint8_t *codes, const tsr_nf4_layout *layout, uint64_t rank,
                         const void *bytes);
void tsr_nf4_shard_absmax(void *absmax, const tsr_nf4_layout *layout, uint64_t rank,
                          const void *scales);

/* What a checkpoint says of one of its NF4 tensors. Strings and arrays are borrowed. */
typedef struct {
    const char *quant_type;     /* "nf4" */
    uint64_t blocksize;         /* 64 */
    uint64_t nested_blocksize;  /* 256, if nested */
    const float *quant_map;     /* [quant_map_count] */
    uint64_t quant_map_count;   /* 16 */
    uint64_t code_byte_count;   /* of the weight */
    uint64_t absmax_count;      /* elements of .absmax */
    const float *nested_absmax; /* [nested_absmax_count], if nested */
    uint64_t nested_absmax_count;
    const float *nested_map;   /* [nested_map_count], if nested: authoritative */
    uint64_t nested_map_count; /* 256 */
    double nested_offset;
} tsr_nf4_checkpoint;

/* Holds a checkpoint's tensor against the layout: fp4 or another map, other block sizes, wrong
 * counts and values that are not finite are TSR_EDATA naming the tensor `name`. On success *out
 * decodes the scales with the checkpoint's own map and nested scales (borrowed). */
tsr_status tsr_nf4_check_checkpoint(tsr_nf4_scales *out, const tsr_nf4_layout *layout,
                                    const tsr_nf4_checkpoint *stored, const char *name);

#endif
