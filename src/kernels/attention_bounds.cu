/*
 * attention_bounds.cu: the largest keys and values of each key head, which bound the sums of dq that attention_mma_backward.cu
 * and attention_wgmma.cu keep as integers: of every so many rows by a block, then of the blocks.
 *
 * Cost     k and v once
 */
#include "kernels/attention_own.cuh"

#define THREADS 256
#define BLOCKS  64 /* of a key head */
#define WIDEST  (TSR_WARP * TSR_VECTOR)

/* Floats that are not negative have the order of their bits, NaN the last. */
static __device__ __forceinline__ unsigned float_bits(float value)
{
    return __float_as_uint(value) & 0x7fffffffu;
}

/* Block (x, h): every so many rows of key head h, LANES threads of 8 columns each. */
template <int LANES>
static __global__ void __launch_bounds__(THREADS)
    bound_keys(attention_call c, const void *k, const void *v, unsigned *bound)
{
    tsr_kernel_begin();
    __shared__ unsigned block[WIDEST + 1];
    const int rows = THREADS / LANES;
    int head = blockIdx.y, x = threadIdx.x % LANES * TSR_VECTOR, used = used_tokens(&c);
    unsigned column[TSR_VECTOR] = {}, square = 0;
    for (int i = threadIdx.x; i <= c.dim; i += THREADS)
        block[i] = 0;
    __syncthreads();
    for (int first = blockIdx.x * rows; first < used; first += BLOCKS * rows) {
        int row = first + threadIdx.x / LANES;
        int64_t at = (int64_t)row * c.kv_heads + head;
        float key[TSR_VECTOR] = {}, value[TSR_VECTOR] = {}, sum = 0;
        if (row < used && x < c.dim)
            tsr_load8(key, k, at * c.dim + x, TSR_BF16);
        if (row < used && x < c.v_dim)
            tsr_load8(value, v, at * c.v_dim + x, TSR_BF16);
#pragma unroll
        for (int i = 0; i < TSR_VECTOR; i++) {
            column[i] = max(column[i], float_bits(key[i]));
            sum += value[i] * value[i];
        }
#pragma unroll
        for (int offset = LANES / 2; offset; offset /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        square = max(square, float_bits(sum));
    }
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        if (x < c.dim)
            atomicMax(block + x + i, column[i]);
    if (x == 0)
        atomicMax(block + c.dim, square);
    __syncthreads();
    for (int i = threadIdx.x; i <= c.dim; i += THREADS)
        bound[(blockIdx.x * c.kv_heads + head) * (c.dim + 1) + i] = block[i];
}

/* most[i] of the blocks' bounds, which come after it. */
static __global__ void __launch_bounds__(THREADS) join_bounds(unsigned *most, int count)
{
    tsr_kernel_begin();
    int i = blockIdx.x * THREADS + threadIdx.x;
    unsigned largest = 0;
    if (i >= count)
        return;
#pragma unroll 8
    for (int block = 1; block <= BLOCKS; block++)
        largest = max(largest, most[block * count + i]);
    most[i] = largest;
}

uint64_t attention_bounds_bytes(int kv_heads, int dim)
{
    return (BLOCKS + 1) * (uint64_t)kv_heads * (uint64_t)(dim + 1) * sizeof(unsigned);
}

tsr_status attention_bound_keys(tsr_stream *stream, const attention_call *c, const void *k,
                                const void *v, unsigned *most)
{
    int count = c->kv_heads * (c->dim + 1);
    dim3 blocks(BLOCKS, (unsigned)c->kv_heads);
    if (c->dim <= WIDEST / 2 && c->v_dim <= WIDEST / 2)
        TSR_LAUNCH(bound_keys<TSR_WARP / 2>, blocks, THREADS, stream, *c, k, v, most + count);
    else
        TSR_LAUNCH(bound_keys<TSR_WARP>, blocks, THREADS, stream, *c, k, v, most + count);
    TSR_LAUNCH(join_bounds, tsr_blocks(count, THREADS), THREADS, stream, most, count);
    return tsr_launched("attention_backward");
}
