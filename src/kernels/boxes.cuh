/*
 * kernels/boxes.cuh: maps of boxes for copies of sm_90 (wgmma.cuh), of a stack of matrices of bf16.
 */
#ifndef TSR_KERNELS_BOXES_CUH
#define TSR_KERNELS_BOXES_CUH

#include "kernels/cuda.cuh"

#include <cudaTypedefs.h>
#include <string.h>

/* Boxes of `height` rows of 64 elements; a box is of one matrix, with zeros for what that does not have. row, matrix:
 * elements from one to the next. False: the driver makes none. */
static inline bool tsr_map_boxes_at(CUtensorMap *out, void *boxes, const void *data, int64_t count,
                                    int64_t rows, int64_t columns, int64_t row, int64_t matrix,
                                    unsigned height)
{
    PFN_cuTensorMapEncodeTiled_v12000 make;
    const cuuint64_t extent[3] = {(cuuint64_t)columns, (cuuint64_t)rows, (cuuint64_t)count};
    const cuuint64_t pitch[2] = {(cuuint64_t)row * 2, (cuuint64_t)matrix * 2};
    const cuuint32_t box[3] = {64, height, 1}, step[3] = {1, 1, 1};
    memcpy(&make, &boxes, sizeof make);
    return make(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)data, extent, pitch, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Of [count, rows, columns]. */
static inline bool tsr_map_boxes(CUtensorMap *out, void *boxes, const void *data, int64_t count,
                                 int64_t rows, int64_t columns, unsigned height)
{
    return tsr_map_boxes_at(out, boxes, data, count, rows, columns, columns, rows * columns,
                            height);
}

/* Of the heads of [rows, heads, columns]. */
static inline bool tsr_map_heads(CUtensorMap *out, void *boxes, const void *data, int64_t heads,
                                 int64_t rows, int64_t columns, unsigned height)
{
    return tsr_map_boxes_at(out, boxes, data, heads, rows, columns, heads * columns, columns,
                            height);
}

#endif
