/*
 * io/fp8_blocks.h: weights of a checkpoint in e4m3 with one scale for each block of 128 x 128, as DeepSeek-V3 is
 * published: F8_E4M3 `<name>` [out, in] and `<name>_scale_inv` [ceil(out / 128), ceil(in / 128)].
 *
 * They are read as the BF16 tensor that DeepSeek's own fp8_cast_bf16.py makes of them: e4m3 times its block's scale in
 * fp32, rounded to bf16. So a model that is quantized from either file has the same bits.
 */
#ifndef TSR_IO_FP8_BLOCKS_H
#define TSR_IO_FP8_BLOCKS_H

#include "io/safetensors.h"

#define TSR_FP8_BLOCK        128
#define TSR_FP8_SCALE_SUFFIX "_scale_inv"

/* *out is the BF16 view of both, which are borrowed. TSR_EDATA: codes are no matrix, or scales are not one F32 (or BF16,
 * as some write them) for each block. */
tsr_status tsr_fp8_view(tsr_tensor *out, const tsr_tensor *codes, const tsr_tensor *scales);

/* As tsr_safetensors_read, of a view; whole elements. TSR_EDATA: a scale is not finite. */
tsr_status tsr_fp8_view_read(void *dst, const tsr_tensor *view, uint64_t byte_offset,
                             uint64_t bytes);

/* Scales of the tensor `scales`. TSR_EDATA: with one of them a weight would not be finite in bf16. */
tsr_status tsr_fp8_check_scales(const float *values, uint64_t count, const tsr_tensor *scales);

#endif
