/*
 * row_square_norm.cu: contract row_square_norm.h; reference row_square_norm_ref.c, which adds in
 * another order: both sums are fp64 and rounded once.
 *
 * Split    A block a row, for some rows are few (1024 of a key projection) and long. A thread takes
 *          8 elements at a time, 4 loads in flight; what it adds up depends on the row's length
 *          only, also where rows are not on 16 bytes and elements are read one by one.
 * Cost     rows columns elements read; a conversion to fp64 and an fp64 multiply-add each, at 16 and
 *          64 a clock and multiprocessor (compute capability 9.0) below the 10 that memory gives.
 */
#include "kernels/vectors.cuh"

#define THREADS 128
#define WARPS   (THREADS / TSR_WARP)
#define TURNS   4

static __device__ __forceinline__ void add_squares(double *even, double *odd, tsr_raw8 raw,
                                                   tsr_dtype dtype)
{
    float x[TSR_VECTOR];
    tsr_raw_widen(x, raw, dtype);
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i += 2) {
        *even = fma((double)x[i], (double)x[i], *even);
        *odd = fma((double)x[i + 1], (double)x[i + 1], *odd);
    }
}

/* groups: of TSR_VECTOR columns, in a row. */
static __device__ __forceinline__ void
square_norms(const tsr_row_square_norm_args *a, const int64_t *groups, tsr_dtype dtype, bool whole)
{
    __shared__ double part[WARPS];
    int64_t start = blockIdx.x * a->columns;
    double even = 0, odd = 0;
    for (int64_t group = threadIdx.x; group < *groups; group += THREADS * TURNS) {
        tsr_raw8 raw[TURNS];
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int64_t k = (group + turn * THREADS) * TSR_VECTOR;
            if (k < a->columns)
                raw[turn] = tsr_raw_load(
                    a->w, start + k, (int)min((int64_t)TSR_VECTOR, a->columns - k), dtype, whole);
        }
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++)
            if (group + turn * THREADS < *groups)
                add_squares(&even, &odd, raw[turn], dtype);
    }
    double sum = tsr_warp_sum_double(even + odd);
    if (threadIdx.x % TSR_WARP == 0)
        part[threadIdx.x / TSR_WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        a->out[blockIdx.x] = (float)((part[0] + part[1]) + (part[2] + part[3]));
}

TSR_KERNELS_OF(square_norms, square_norms, tsr_row_square_norm_args, int64_t, THREADS, 8)

extern "C" tsr_status tsr_row_square_norm_cuda(tsr_stream *stream,
                                               const tsr_row_square_norm_args *args)
{
    TSR_TRY(tsr_row_square_norm_check(args));
    if (args->rows == 0)
        return TSR_OK;
    int64_t groups = (args->columns + TSR_VECTOR - 1) / TSR_VECTOR;
    TSR_LAUNCH_OF(square_norms, tsr_vectors(args->columns, args->w), args->dtype,
                  (unsigned)args->rows, THREADS, stream, *args, groups);
    return tsr_launched("row_square_norm");
}
