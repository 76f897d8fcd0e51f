/*
 * kernels/route_parts.cuh: what the kernels of the router share: scores of a warp's token, and products
 * of tiles in fp32 for what tensor cores do not take.
 */
#ifndef TSR_KERNELS_ROUTE_PARTS_CUH
#define TSR_KERNELS_ROUTE_PARTS_CUH

#include "kernels/cuda.cuh"

#define ROUTE_ALL     0xffffffffu
#define ROUTE_THREADS 256
#define ROUTE_WARPS   (ROUTE_THREADS / TSR_WARP)

/* As route_scores.h says. */
static __host__ __device__ __forceinline__ bool route_over_chosen(const tsr_routing *how)
{
    return how->scoring == TSR_ROUTE_CHOSEN ||
           (how->scoring == TSR_ROUTE_SOFTMAX && how->normalise);
}

static __device__ __forceinline__ float route_sigmoid(float s)
{
    return 1.0f / (1.0f + expf(-s));
}

static __device__ __forceinline__ float route_factor(const tsr_routing *how, int id)
{
    float scale = how->scale != 0 ? how->scale : 1;
    return how->expert_scale.data
               ? scale * tsr_load(how->expert_scale.data, id, how->expert_scale.dtype)
               : scale;
}

static __device__ __forceinline__ float route_warp_max(float value)
{
#pragma unroll
    for (int offset = TSR_WARP / 2; offset; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(ROUTE_ALL, value, offset));
    return value;
}

/* Softmax over a token's experts is expf(s - *most) *inverse; the same in all lanes. */
static __device__ __forceinline__ void route_softmax(float *most, float *inverse, const float *s,
                                                     int experts)
{
    int lane = threadIdx.x % TSR_WARP;
    float largest = -INFINITY, total = 0;
    for (int e = lane; e < experts; e += TSR_WARP)
        largest = fmaxf(largest, s[e]);
    *most = route_warp_max(largest);
    for (int e = lane; e < experts; e += TSR_WARP)
        total += expf(s[e] - *most);
    *inverse = 1.0f / tsr_warp_sum(total);
}

/* ---- products in fp32: C[64, 64] of a block of ROUTE_THREADS, 4 x 4 a thread ---- */

#define ROUTE_TILE  64
#define ROUTE_DEPTH 16

/* Element (row, k) of a matrix is at row `row_stride` + k `k_stride`. */
typedef struct {
    const void *data;
    tsr_dtype dtype;
    int64_t rows, row_stride, k_stride;
} route_matrix;

/* Rows [first, first + 64) of products [k, k + 16), k major; 0 beyond the matrix. */
static __device__ __forceinline__ void route_load_tile(float (*tile)[ROUTE_TILE + 4],
                                                       const route_matrix *m, int64_t first,
                                                       int64_t k, int64_t depth)
{
    for (int i = threadIdx.x; i < ROUTE_TILE * ROUTE_DEPTH; i += ROUTE_THREADS) {
        int row = m->k_stride == 1 ? i / ROUTE_DEPTH : i % ROUTE_TILE;
        int of = m->k_stride == 1 ? i % ROUTE_DEPTH : i / ROUTE_TILE;
        bool there = first + row < m->rows && k + of < depth;
        tile[of][row] =
            there ? tsr_load(m->data, (first + row) * m->row_stride + (k + of) * m->k_stride,
                             m->dtype)
                  : 0;
    }
}

/* sum[i][j] of row a_first + 4 (thread / 16) + i of a, row b_first + 4 (thread % 16) + j of b: over
 * `depth` products in their order. */
static __device__ __forceinline__ void route_multiply(float sum[4][4], const route_matrix *a,
                                                      int64_t a_first, const route_matrix *b,
                                                      int64_t b_first, int64_t depth)
{
    __shared__ __align__(16) float a_tile[ROUTE_DEPTH][ROUTE_TILE + 4];
    __shared__ __align__(16) float b_tile[ROUTE_DEPTH][ROUTE_TILE + 4];
    int at = threadIdx.x / 16 * 4, to = threadIdx.x % 16 * 4;
#pragma unroll
    for (int i = 0; i < 16; i++)
        sum[i / 4][i % 4] = 0;
    for (int64_t k = 0; k < depth; k += ROUTE_DEPTH) {
        __syncthreads(); /* the last products have been read */
        route_load_tile(a_tile, a, a_first, k, depth);
        route_load_tile(b_tile, b, b_first, k, depth);
        __syncthreads();
#pragma unroll
        for (int of = 0; of < ROUTE_DEPTH; of++) {
            float4 left = *(const float4 *)&a_tile[of][at];
            float4 right = *(const float4 *)&b_tile[of][to];
            float x[4] = {left.x, left.y, left.z, left.w};
            float y[4] = {right.x, right.y, right.z, right.w};
#pragma unroll
            for (int i = 0; i < 16; i++)
                sum[i / 4][i % 4] = fmaf(x[i / 4], y[i % 4], sum[i / 4][i % 4]);
        }
    }
}

#endif
