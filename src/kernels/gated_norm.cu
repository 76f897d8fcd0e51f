/*
 * gated_norm.cu: contract gated_norm.h; reference gated_norm_ref.c.
 *
 * Split    LANES lanes have a row, or ROWS of them one after the other whose loads are under way together; a lane has eight
 *          columns of it, TURNS times, all of them in registers.
 * Cost     3 elements a column forward, 5 backward.
 */
#include "kernels/column_sum.cuh"

#define THREADS 256

/* Where a lane is: the row's first element, and that of its head in g. */
typedef struct {
    int64_t at, head;
    bool there;
} lane_row;

template <int LANES, int ROWS>
static __device__ __forceinline__ lane_row row_of(int turn, int64_t rows, int heads, int width)
{
    int64_t group = (int64_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    int64_t index = group * ROWS + turn;
    lane_row row = {index * width, index % heads * width, index < rows};
    return row;
}

template <int LANES>
static __device__ __forceinline__ int columns_of(int *column, int turn, int width, bool there)
{
    *column = (turn * LANES + (int)threadIdx.x % LANES) * TSR_VECTOR;
    return there ? max(0, min(width - *column, TSR_VECTOR)) : 0;
}

/* Over the lanes of a row. */
template <int LANES> static __device__ __forceinline__ float row_sum(float value)
{
#pragma unroll
    for (int offset = LANES / 2; offset; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* All that is read of a row, before any of it is used. */
template <int TURNS> struct row_bits {
    tsr_raw8 x[TURNS], z[TURNS], d[TURNS];
};

template <int LANES, int TURNS>
static __device__ __forceinline__ void read_row(row_bits<TURNS> *bits, const void *x, const void *z,
                                                const void *d, const lane_row *row, int width,
                                                tsr_dtype dtype, bool whole)
{
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int column, count = columns_of<LANES>(&column, turn, width, row->there);
        const tsr_raw8 none = {};
        bits->x[turn] = bits->z[turn] = bits->d[turn] = none;
        if (!count)
            continue;
        bits->x[turn] = tsr_raw_load(x, row->at + column, count, dtype, whole);
        bits->z[turn] = tsr_raw_load(z, row->at + column, count, dtype, whole);
        if (d)
            bits->d[turn] = tsr_raw_load(d, row->at + column, count, dtype, whole);
    }
}

/* x and y = g z of the row; returns its rstd. */
template <int LANES, int TURNS>
static __device__ __forceinline__ float
widen_row(float x[TURNS][8], float y[TURNS][8], const row_bits<TURNS> *bits, const float *g,
          const lane_row *row, int width, float eps, tsr_dtype dtype, bool whole)
{
    float squares = 0;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int column, count = columns_of<LANES>(&column, turn, width, row->there);
        float gain[8];
        tsr_raw_widen(x[turn], bits->x[turn], dtype);
        tsr_raw_widen(y[turn], bits->z[turn], dtype);
        if (count && g) {
            tsr_float8(gain, g, row->head + column, count, 1, whole);
#pragma unroll
            for (int j = 0; j < 8; j++)
                y[turn][j] *= gain[j];
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            squares += x[turn][j] * x[turn][j];
    }
    return 1.0f / sqrtf(row_sum<LANES>(squares) / (float)width + eps);
}

template <int LANES, int TURNS, int ROWS>
static __global__ void __launch_bounds__(THREADS)
    forward_rows(const __grid_constant__ tsr_gated_norm_args a, bool whole)
{
    tsr_kernel_begin();
    row_bits<TURNS> bits[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        lane_row row = row_of<LANES, ROWS>(r, a.tokens * a.heads, a.heads, a.width);
        read_row<LANES, TURNS>(&bits[r], a.x, a.z, NULL, &row, a.width, a.dtype, whole);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        lane_row row = row_of<LANES, ROWS>(r, a.tokens * a.heads, a.heads, a.width);
        float x[TURNS][8], y[TURNS][8];
        float rstd =
            widen_row<LANES, TURNS>(x, y, &bits[r], a.g, &row, a.width, a.eps, a.dtype, whole);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int column, count = columns_of<LANES>(&column, turn, a.width, row.there);
            float w[8];
            if (!count)
                continue;
            tsr_frozen8(w, a.w, column, count, 1, whole);
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[turn][j] *= rstd * w[j] * (y[turn][j] / (1.0f + expf(-y[turn][j])));
            tsr_raw_store(a.out, row.at + column, count, x[turn], a.dtype, whole);
        }
    }
}

/* Of one row: its gradients in the place of y and d. */
template <int LANES, int TURNS>
static __device__ __forceinline__ void back_row(float y[TURNS][8], float d[TURNS][8],
                                                const row_bits<TURNS> *bits, const lane_row *row,
                                                const tsr_gated_norm_backward_args *a, bool whole)
{
    float x[TURNS][8], projection = 0;
    float rstd = widen_row<LANES, TURNS>(x, y, bits, a->g, row, a->width, a->eps, a->dtype, whole);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int column, count = columns_of<LANES>(&column, turn, a->width, row->there);
        float w[8];
        tsr_raw_widen(d[turn], bits->d[turn], a->dtype);
        tsr_frozen8(w, a->w, count ? column : 0, count, 1, whole && count);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float s = 1.0f / (1.0f + expf(-y[turn][j]));
            float part = j < count ? d[turn][j] * w[j] : 0;
            d[turn][j] = part * (y[turn][j] * s);
            projection += d[turn][j] * x[turn][j];
            y[turn][j] = part * x[turn][j] * rstd * s * (1.0f + y[turn][j] * (1.0f - s));
        }
    }
    float shift = row_sum<LANES>(projection) / (float)a->width * rstd * rstd;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            d[turn][j] = rstd * (d[turn][j] - x[turn][j] * shift);
}

template <int LANES, int TURNS, int ROWS>
static __global__ void __launch_bounds__(THREADS)
    back_rows(const __grid_constant__ tsr_gated_norm_backward_args a, bool whole)
{
    tsr_kernel_begin();
    row_bits<TURNS> bits[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        lane_row row = row_of<LANES, ROWS>(r, a.tokens * a.heads, a.heads, a.width);
        read_row<LANES, TURNS>(&bits[r], a.x, a.z, a.dout, &row, a.width, a.dtype, whole);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        lane_row row = row_of<LANES, ROWS>(r, a.tokens * a.heads, a.heads, a.width);
        float y[TURNS][8], d[TURNS][8];
        back_row<LANES, TURNS>(y, d, &bits[r], &row, &a, whole);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            int column, count = columns_of<LANES>(&column, turn, a.width, row.there);
            if (!count)
                continue;
            tsr_raw_store(a.dx, row.at + column, count, d[turn], a.dtype, whole);
            tsr_raw_store(a.dy, row.at + column, count, y[turn], a.dtype, whole);
        }
    }
}

/* Rows of up to 128 columns, and of up to 512. */
#define LAUNCH_ROWS(kernel, args, whole, stream)                                                   \
    do {                                                                                           \
        int64_t rows_ = (args)->tokens * (args)->heads;                                            \
        auto narrow_ = kernel<16, 1, 2>;                                                           \
        auto wide_ = kernel<32, 2, 1>;                                                             \
        if ((args)->width <= 16 * TSR_VECTOR)                                                      \
            TSR_LAUNCH(narrow_, tsr_blocks(rows_, 2 * THREADS / 16), THREADS, stream, *(args),     \
                       whole);                                                                     \
        else                                                                                       \
            TSR_LAUNCH(wide_, tsr_blocks(rows_, THREADS / 32), THREADS, stream, *(args), whole);   \
    } while (0)

extern "C" tsr_status tsr_gated_norm_cuda(tsr_stream *stream, const tsr_gated_norm_args *args)
{
    TSR_TRY(tsr_gated_norm_check(args));
    bool whole = tsr_vectors(args->width, args->x, args->z, args->out, args->w.data, args->g);
    if (args->tokens == 0)
        return TSR_OK;
    LAUNCH_ROWS(forward_rows, args, whole, stream);
    return tsr_launched("gated_norm");
}

extern "C" tsr_status tsr_gated_norm_backward_cuda(tsr_stream *stream,
                                                   const tsr_gated_norm_backward_args *args)
{
    TSR_TRY(tsr_gated_norm_backward_check(args));
    bool whole = tsr_vectors(args->width, args->x, args->z, args->dout, args->dx, args->dy,
                             args->w.data, args->g);
    if (args->tokens == 0)
        return TSR_OK;
    LAUNCH_ROWS(back_rows, args, whole, stream);
    return tsr_launched("gated_norm_backward");
}
