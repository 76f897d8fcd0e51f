/*
 * rms_norm.cu: contract rms_norm.h; reference rms_norm_ref.c.
 *
 * Split    A block has one token. Its row is held in registers, HELD vectors of eight a thread, from
 *          the loads to the stores, so that every element is read once; one reduction, one barrier.
 *          With 2 vectors a thread a row of 4096 is a block of 256, and eight of those on a
 *          multiprocessor hide each other's barrier.
 *          Rows above 16,384 columns, or not on 16 bytes, are walked twice instead.
 * e4m3     Of rows that are held: h or dx stays in the registers until its largest is known, one more
 *          barrier.
 * Alias    A thread writes elements that itself has read, after it has read them.
 * Cost     forward tokens d elements of x, z, x_out and h, each where it is there; backward of dh, x
 *          and dx, and dx once more where it is added to. g, w and bias come from L1.
 */
#include "kernels/fp8.cuh"
#include "kernels/vectors.cuh"

#define HELD        2
#define MOST        1024 /* threads of a row */
#define EACH        256
#define MOST_VECTOR (HELD * MOST)

/* Rows of the most threads that a multiprocessor holds: some have 1536 threads, the others 2048. */
#if defined(__CUDA_ARCH__) &&                                                                      \
    ((__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900) || __CUDA_ARCH__ >= 1200)
#define NORM_BLOCKS 1
#else
#define NORM_BLOCKS 2
#endif

/* The block's sum, in all threads. Once in a kernel. */
static __device__ __forceinline__ float row_sum(float value)
{
    __shared__ float shared[TSR_WARP];
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    int warps = (int)blockDim.x / TSR_WARP;
    value = tsr_warp_sum(value);
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    return tsr_warp_sum(lane < warps ? shared[lane] : 0);
}

static __device__ __forceinline__ float dot8(const float *a, const float *b)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
        sum += a[j] * b[j];
    return sum;
}

/* x + scale (g z + bias) of eight columns, in place, as it is stored: h is that of x_out, so that a layer that
 * recomputes it from there has the same one. */
static __device__ __forceinline__ tsr_raw8 add_residual(float *x, const tsr_rms_norm_args *a,
                                                        const float *z, int64_t column, int count,
                                                        tsr_dtype dtype, bool whole)
{
    float g[8], bias[8];
    tsr_float8(g, a->g, column, count, 1, whole);
    tsr_frozen8(bias, a->bias, column, count, 0, whole);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] += a->scale * (g[j] * z[j] + bias[j]);
    tsr_raw8 sum = tsr_raw_narrow(x, dtype);
    tsr_raw_widen(x, sum, dtype);
    return sum;
}

static __device__ __forceinline__ float rstd_of(const tsr_rms_norm_args *a, float squares)
{
    float rstd = 1.0f / sqrtf(squares / (float)a->d + a->eps);
    if (a->rstd && threadIdx.x == 0)
        a->rstd[blockIdx.x] = rstd;
    return rstd;
}

/* Returns h as it is stored. */
static __device__ __forceinline__ tsr_raw8 normalize(const tsr_rms_norm_args *a, float *x,
                                                     float rstd, int64_t column, int count,
                                                     tsr_dtype dtype, bool whole)
{
    float w[8];
    tsr_frozen8(w, a->w, column, count, 1, whole);
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = x[j] * rstd * w[j];
    tsr_raw_store(a->h, blockIdx.x * a->d + column, count, x, dtype, whole);
    return tsr_raw_narrow(x, dtype);
}

static __device__ __forceinline__ void held_values(float *out, const tsr_raw8 *raw,
                                                   const float *factor, int64_t column)
{
    const uint32_t *w = raw->word;
    tsr_fp8_values(out, make_uint4(w[0], w[1], w[2], w[3]), factor, column);
}

/* Of a row of bf16 that is held as it was stored; factor: rows.column_factor, or NULL. */
static __device__ __forceinline__ void write_codes(tsr_fp8_rows rows, const float *factor,
                                                   int64_t d, const tsr_raw8 *held)
{
    float value[8];
    uint32_t most = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t column = (threadIdx.x + k * blockDim.x) * TSR_VECTOR;
        if (column >= d)
            break;
        held_values(value, &held[k], factor, column);
        most = max(most, tsr_magnitude8(value));
    }
    float scale = tsr_e4m3_scale(__uint_as_float(tsr_block_max(most)));
    float inverse = __frcp_rn(scale);
    if (threadIdx.x == 0)
        rows.scale[blockIdx.x] = scale;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t column = (threadIdx.x + k * blockDim.x) * TSR_VECTOR;
        if (column >= d)
            break;
        held_values(value, &held[k], factor, column);
        *(uint2 *)(rows.out + blockIdx.x * d + column) = tsr_e4m3x8(value, inverse);
    }
}

/* A row held in registers, as it is stored. Where nothing is ADDed, what is held is x as it was loaded, widened once
 * for the sum and once for h, so that 32 registers do and a multiprocessor holds all its threads. */
template <bool ADD, bool CODES>
static __device__ __forceinline__ void forward_held(const tsr_rms_norm_args *a, tsr_dtype dtype)
{
    int64_t row = blockIdx.x * a->d;
    tsr_raw8 x_raw[HELD], z_raw[HELD];
    float x[8], squares = 0;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t column = (threadIdx.x + k * blockDim.x) * TSR_VECTOR;
        if (ADD)
            x_raw[k] = (tsr_raw8){{0}};
        if (column < a->d && (!ADD || a->x))
            x_raw[k] = tsr_raw_load(a->x, row + column, 8, dtype, true);
        if (ADD && column < a->d && a->z)
            z_raw[k] = tsr_raw_load(a->z, row + column, 8, dtype, true);
    }
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t column = (threadIdx.x + k * blockDim.x) * TSR_VECTOR;
        if (column >= a->d)
            break;
        tsr_raw_widen(x, x_raw[k], dtype);
        if (ADD && a->z) {
            float z[8];
            tsr_raw_widen(z, z_raw[k], dtype);
            x_raw[k] = add_residual(x, a, z, column, 8, dtype, true);
        }
        squares += dot8(x, x);
        if (ADD && a->x_out && (a->z || a->x_out != a->x))
            tsr_raw_store(a->x_out, row + column, 8, x, dtype, true);
    }
    if (ADD && !a->h)
        return;
    float rstd = rstd_of(a, row_sum(squares));
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t column = (threadIdx.x + k * blockDim.x) * TSR_VECTOR;
        if (column >= a->d)
            break;
        tsr_raw_widen(x, x_raw[k], dtype);
        x_raw[k] = normalize(a, x, rstd, column, 8, dtype, true);
    }
    if (CODES)
        write_codes(a->h8, NULL, a->d, x_raw);
}

/* What there is of eight columns before it is normalized; the first walk leaves memory as it is. */
static __device__ __forceinline__ void sum_each(float *x, const tsr_rms_norm_args *a,
                                                int64_t column, int count, tsr_dtype dtype)
{
    int64_t at = blockIdx.x * a->d + column;
#pragma unroll
    for (int j = 0; j < 8; j++)
        x[j] = 0;
    if (a->x)
        tsr_raw_widen(x, tsr_raw_each(a->x, at, count, dtype), dtype);
    if (a->z) {
        float z[8];
        tsr_raw_widen(z, tsr_raw_each(a->z, at, count, dtype), dtype);
        add_residual(x, a, z, column, count, dtype, false);
    }
}

static __device__ __forceinline__ void forward_walked(const tsr_rms_norm_args *a, tsr_dtype dtype)
{
    float squares = 0, x[8], rstd = 0;
    int64_t step = blockDim.x * TSR_VECTOR;
    for (int64_t i = threadIdx.x * TSR_VECTOR; i < a->d && a->h; i += step) {
        sum_each(x, a, i, (int)min((int64_t)8, a->d - i), dtype);
        squares += dot8(x, x);
    }
    if (a->h)
        rstd = rstd_of(a, row_sum(squares));
    for (int64_t i = threadIdx.x * TSR_VECTOR; i < a->d; i += step) {
        int count = (int)min((int64_t)8, a->d - i);
        sum_each(x, a, i, count, dtype);
        if (a->x_out)
            tsr_raw_store(a->x_out, blockIdx.x * a->d + i, count, x, dtype, false);
        if (a->h)
            normalize(a, x, rstd, i, count, dtype, false);
    }
}

/* The sum over the row of dy x and what is made of it; dy is w dh. */
static __device__ __forceinline__ void project(float *dy, const float *x, float rstd, float shift)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
        dy[j] = rstd * (dy[j] - x[j] * shift);
}

static __device__ __forceinline__ void weigh(float *dy, const tsr_rms_norm_backward_args *a,
                                             tsr_raw8 dh, int64_t column, int count,
                                             tsr_dtype dtype, bool whole)
{
    float w[8];
    tsr_frozen8(w, a->w, column, count, 1, whole);
    tsr_raw_widen(dy, dh, dtype);
#pragma unroll
    for (int j = 0; j < 8; j++)
        dy[j] *= w[j];
}

template <bool CODES>
static __device__ __forceinline__ void backward_held(const tsr_rms_norm_backward_args *a,
                                                     tsr_dtype dtype)
{
    int64_t row = blockIdx.x * a->d;
    tsr_raw8 dh[HELD], x_raw[HELD], old[HELD];
    float dy[HELD][8], x[8], sum = 0, rstd = a->rstd[blockIdx.x];
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t column = (threadIdx.x + k * blockDim.x) * TSR_VECTOR;
        if (column >= a->d)
            break;
        dh[k] = tsr_raw_load(a->dh, row + column, 8, dtype, true);
        x_raw[k] = tsr_raw_load(a->x, row + column, 8, dtype, true);
        if (!a->overwrite)
            old[k] = tsr_raw_load(a->dx, row + column, 8, dtype, true);
    }
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t column = (threadIdx.x + k * blockDim.x) * TSR_VECTOR;
        if (column >= a->d)
            break;
        weigh(dy[k], a, dh[k], column, 8, dtype, true);
        tsr_raw_widen(x, x_raw[k], dtype);
        sum += dot8(dy[k], x);
    }
    float shift = row_sum(sum) / (float)a->d * rstd * rstd;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t column = (threadIdx.x + k * blockDim.x) * TSR_VECTOR;
        if (column >= a->d)
            break;
        tsr_raw_widen(x, x_raw[k], dtype);
        project(dy[k], x, rstd, shift);
        if (!a->overwrite) {
            tsr_raw_widen(x, old[k], dtype);
#pragma unroll
            for (int j = 0; j < 8; j++)
                dy[k][j] += x[j];
        }
        tsr_raw_store(a->dx, row + column, 8, dy[k], dtype, true);
        dh[k] = tsr_raw_narrow(dy[k], dtype);
    }
    if (CODES)
        write_codes(a->dx8, a->dx8.column_factor, a->d, dh);
}

static __device__ __forceinline__ void backward_walked(const tsr_rms_norm_backward_args *a,
                                                       tsr_dtype dtype)
{
    int64_t row = blockIdx.x * a->d, step = blockDim.x * TSR_VECTOR;
    float sum = 0, dy[8], x[8], rstd = a->rstd[blockIdx.x];
    for (int64_t i = threadIdx.x * TSR_VECTOR; i < a->d; i += step) {
        int count = (int)min((int64_t)8, a->d - i);
        weigh(dy, a, tsr_raw_each(a->dh, row + i, count, dtype), i, count, dtype, false);
        tsr_raw_widen(x, tsr_raw_each(a->x, row + i, count, dtype), dtype);
        sum += dot8(dy, x);
    }
    float shift = row_sum(sum) / (float)a->d * rstd * rstd;
    for (int64_t i = threadIdx.x * TSR_VECTOR; i < a->d; i += step) {
        int count = (int)min((int64_t)8, a->d - i);
        weigh(dy, a, tsr_raw_each(a->dh, row + i, count, dtype), i, count, dtype, false);
        tsr_raw_widen(x, tsr_raw_each(a->x, row + i, count, dtype), dtype);
        project(dy, x, rstd, shift);
        if (!a->overwrite) {
            tsr_raw_widen(x, tsr_raw_each(a->dx, row + i, count, dtype), dtype);
#pragma unroll
            for (int j = 0; j < 8; j++)
                dy[j] += x[j];
        }
        tsr_raw_store(a->dx, row + i, count, dy, dtype, false);
    }
}

/* ---- kernels and launches ---- */

template <bool ADD>
static __device__ __forceinline__ void any_row(const tsr_rms_norm_args *a, const bool *held,
                                               tsr_dtype dtype, bool whole)
{
    (void)held;
    if (whole)
        forward_held<ADD, false>(a, dtype);
    else
        forward_walked(a, dtype);
}

static __device__ __forceinline__ void backward_row(const tsr_rms_norm_backward_args *a,
                                                    const bool *held, tsr_dtype dtype, bool whole)
{
    (void)held;
    if (whole)
        backward_held<false>(a, dtype);
    else
        backward_walked(a, dtype);
}

TSR_KERNELS_OF(forward_row, any_row<true>, tsr_rms_norm_args, bool, MOST, 1)
TSR_KERNELS_OF(norm_row, any_row<false>, tsr_rms_norm_args, bool, MOST, NORM_BLOCKS)
TSR_KERNELS_OF(backward_row, backward_row, tsr_rms_norm_backward_args, bool, MOST, 1)

/* With h8 or dx8, of bf16. */
static __global__ void __launch_bounds__(MOST, 1)
    forward_codes(const __grid_constant__ tsr_rms_norm_args a)
{
    tsr_kernel_begin();
    forward_held<true, true>(&a, TSR_BF16);
}

static __global__ void __launch_bounds__(MOST, NORM_BLOCKS)
    norm_codes(const __grid_constant__ tsr_rms_norm_args a)
{
    tsr_kernel_begin();
    forward_held<false, true>(&a, TSR_BF16);
}

static __global__ void __launch_bounds__(MOST, 1)
    backward_codes(const __grid_constant__ tsr_rms_norm_backward_args a)
{
    tsr_kernel_begin();
    backward_held<true>(&a, TSR_BF16);
}

static unsigned row_threads(int64_t d, bool held)
{
    if (!held)
        return EACH;
    int64_t vectors = d / TSR_VECTOR;
    return tsr_blocks(vectors, HELD * TSR_WARP) * TSR_WARP;
}

extern "C" tsr_status tsr_rms_norm_cuda(tsr_stream *stream, const tsr_rms_norm_args *args)
{
    TSR_TRY(tsr_rms_norm_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    int64_t d = args->d;
    tsr_rms_norm_args scaled = *args;
    scaled.scale = args->scale != 0 ? args->scale : 1;
    args = &scaled;
    bool held =
        d <= MOST_VECTOR * TSR_VECTOR && tsr_vectors(d, args->x, args->z, args->g, args->bias.data,
                                                     args->w.data, args->x_out, args->h);
    bool adds = args->z || !args->h || (args->x_out && args->x_out != args->x);
    bool codes = held && !args->h8.column_factor && tsr_fp8_rows_fit(args->h8, d, args->dtype);
    unsigned threads = row_threads(d, held), rows = (unsigned)args->tokens;
    if (codes)
        TSR_LAUNCH(adds ? forward_codes : norm_codes, rows, threads, stream, *args);
    else if (adds)
        TSR_LAUNCH_OF(forward_row, held, args->dtype, rows, threads, stream, *args, held);
    else
        TSR_LAUNCH_OF(norm_row, held, args->dtype, rows, threads, stream, *args, held);
    if (!codes)
        TSR_TRY(tsr_fp8_rows_cuda(stream, args->h8, args->h, args->tokens, d, args->dtype));
    return tsr_launched("rms_norm");
}

extern "C" tsr_status tsr_rms_norm_backward_cuda(tsr_stream *stream,
                                                 const tsr_rms_norm_backward_args *args)
{
    TSR_TRY(tsr_rms_norm_backward_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    int64_t d = args->d;
    bool held =
        d <= MOST_VECTOR * TSR_VECTOR && tsr_vectors(d, args->dh, args->x, args->w.data, args->dx);
    bool codes = held && tsr_fp8_rows_fit(args->dx8, d, args->dtype);
    unsigned threads = row_threads(d, held), rows = (unsigned)args->tokens;
    if (codes)
        TSR_LAUNCH(backward_codes, rows, threads, stream, *args);
    else
        TSR_LAUNCH_OF(backward_row, held, args->dtype, rows, threads, stream, *args, held);
    if (!codes)
        TSR_TRY(tsr_fp8_rows_cuda(stream, args->dx8, args->dx, args->tokens, d, args->dtype));
    return tsr_launched("rms_norm_backward");
}
