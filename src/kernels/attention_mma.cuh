/*
 * kernels/attention_mma.cuh: what both directions of attention_mma.cu share: tiles of a head in shared
 * memory, and the fragments that tensor cores take of them.
 *
 * A tile's rows are WIDTH elements, a multiple of 16, without gaps. The parts of 16 bytes of a row change places
 * within groups of 128 bytes (of 64 where a row is no multiple of 128): eight rows that are read at once then lie
 * in different banks. A tile begins on 128 bytes.
 */
#ifndef TSR_KERNELS_ATTENTION_MMA_CUH
#define TSR_KERNELS_ATTENTION_MMA_CUH

#include "kernels/attention_own.cuh"
#include "kernels/mma.cuh"

#define LN_2 0.6931471805599453f

typedef __nv_bfloat16 bf16;

/* Rows of one head in global memory. */
typedef struct {
    const bf16 *data; /* row 0 */
    int stride, dim;  /* elements; from row to row */
} rows;

static __device__ __forceinline__ rows rows_of(const void *data, int head, int heads, int dim)
{
    rows r = {(const bf16 *)data + (int64_t)head * dim, heads * dim, dim};
    return r;
}

/* ---- where a part of a tile lies ---- */

template <int WIDTH> static __device__ __forceinline__ constexpr int group_parts(void)
{
    return WIDTH % 64 == 0 ? 8 : 4;
}

/* What the number of a part is changed by in a row. */
template <int WIDTH> static __device__ __forceinline__ int swizzle(int row)
{
    return WIDTH % 64 == 0 ? row % 8 : row / 2 % 4;
}

/* Bytes from a tile's begin to part `part` of a row. */
template <int WIDTH> static __device__ __forceinline__ int part_at(int row, int part)
{
    return row * WIDTH * 2 + (part ^ swizzle<WIDTH>(row)) * 16;
}

/* Where a lane's address of ldmatrix moves to, `row` rows (a multiple of 8) and x columns (of 16) on. */
template <int WIDTH> static __device__ __forceinline__ uint32_t moved(uint32_t at, int row, int x)
{
    const int group = group_parts<WIDTH>();
    return (at ^ (x / 8 % group * 16)) + row * WIDTH * 2 + x / (8 * group) * (group * 16);
}

/* A lane's address in 16 rows of two parts: down the rows first; or eight rows of both parts, then the others. */
template <int WIDTH> static __device__ __forceinline__ uint32_t down_rows(uint32_t tile)
{
    int lane = threadIdx.x % TSR_WARP;
    return tile + part_at<WIDTH>(lane % 16, lane / 16);
}

template <int WIDTH> static __device__ __forceinline__ uint32_t along_rows(uint32_t tile)
{
    int lane = threadIdx.x % TSR_WARP;
    return tile + part_at<WIDTH>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

static __device__ __forceinline__ void load_matrices(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* ---- copies ---- */

/* Threads that copy one row of a tile, a part each. */
template <int WIDTH> static __device__ __forceinline__ constexpr int row_lanes(void)
{
    return WIDTH <= 32 ? 4 : WIDTH <= 64 ? 8 : WIDTH <= 128 ? 16 : 32;
}

/* Copies rows [first, first + COUNT) to a tile; zeros from row `end` and column dim on. */
template <int WIDTH, int COUNT, int THREADS>
static __device__ __forceinline__ void load_tile(uint32_t tile, const rows *r, int first, int end)
{
    const int lanes = row_lanes<WIDTH>(), step = THREADS / lanes;
    int part = threadIdx.x % lanes, row = threadIdx.x / lanes;
    const bf16 *from = r->data + (int64_t)(first + row) * r->stride + part * 8;
    if (part >= WIDTH / 8)
        return;
#pragma unroll
    for (int i = 0; i < (COUNT + step - 1) / step; i++, from += step * r->stride) {
        int at = row + i * step;
        if (COUNT % step == 0 || at < COUNT)
            tsr_copy16_at(tile + part_at<WIDTH>(at, part), from,
                          first + at < end && part * 8 < r->dim);
    }
}

/* ---- numbers ---- */

/* 2^x; 0 below the normal floats. */
static __device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 16 x 16 of a product as the left operand of the next, rounded to bf16. */
static __device__ __forceinline__ void as_left(uint32_t a[4], const float low[4],
                                               const float high[4])
{
    a[0] = tsr_pack_bf16(low[0], low[1]);
    a[1] = tsr_pack_bf16(low[2], low[3]);
    a[2] = tsr_pack_bf16(high[0], high[1]);
    a[3] = tsr_pack_bf16(high[2], high[3]);
}

/* out = BLOCKS x 16 rows of a times COUNT rows of b; a: this lane's address down_rows, b: along_rows. */
template <int WIDTH, int BLOCKS, int COUNT>
static __device__ __forceinline__ void multiply(float (*out)[COUNT / 8][4], uint32_t a, uint32_t b)
{
#pragma unroll
    for (int x = 0; x < WIDTH; x += 16) {
        uint32_t left[BLOCKS][4];
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
            load_matrices(left[i], moved<WIDTH>(a, i * 16, x));
#pragma unroll
        for (int n = 0; n < COUNT / 16; n++) {
            uint32_t right[4];
            load_matrices(right, moved<WIDTH>(b, n * 16, x));
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                tsr_mma(out[i][2 * n], left[i], right[0], right[1]);
                tsr_mma(out[i][2 * n + 1], left[i], right[2], right[3]);
            }
        }
    }
}

/* sum += left (BLOCKS x 16 rows) times 16 rows of b: of every STEP columns the first 16; b: this lane's address
 * down_rows. */
template <int WIDTH, int BLOCKS, int COUNT, int STEP>
static __device__ __forceinline__ void accumulate(float (*sum)[COUNT / 8][4],
                                                  const uint32_t (*left)[4], uint32_t b)
{
#pragma unroll
    for (int x = 0; x < COUNT / 16; x++) {
        uint32_t right[4];
        load_transposed(right, moved<WIDTH>(b, 0, x * STEP));
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            tsr_mma(sum[i][2 * x], left[i], right[0], right[1]);
            tsr_mma(sum[i][2 * x + 1], left[i], right[2], right[3]);
        }
    }
}

/* 16 rows from `row` on of columns [x, x + 8 COUNT): a warp's product times `factor`, of rows below `end`. */
template <int COUNT>
static __device__ __forceinline__ void store_rows(const rows *r, const float (*sum)[4], int row,
                                                  int x, int end, const float factor[2])
{
    row += threadIdx.x % TSR_WARP / 4, x += threadIdx.x % 4 * 2;
    bf16 *to = (bf16 *)r->data + (int64_t)row * r->stride + x;
#pragma unroll
    for (int n = 0; n < COUNT; n++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row + 8 * half < end && x + n * 8 < r->dim)
                *(uint32_t *)(to + 8 * half * r->stride + n * 8) = tsr_pack_bf16(
                    sum[n][2 * half] * factor[half], sum[n][2 * half + 1] * factor[half]);
}

#endif
