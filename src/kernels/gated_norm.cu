/*
 * gated_norm.cu: contract gated_norm.h; reference gated_norm_ref.c.
 *
 * Split    A warp has a row, a lane eight columns of it at a time, all of them in registers.
 * Cost     3 elements a column forward, 5 backward.
 */
#include "kernels/column_sum.cuh"

#define WARPS 8
#define TURNS (TSR_GATED_NORM_MOST / (TSR_WARP * TSR_VECTOR))

/* What a lane has of a row in a turn. */
typedef struct {
    int64_t at, head; /* the row's first element; that of its head in g */
    int lane;
} warp_row;

static __device__ __forceinline__ bool row_of(warp_row *row, int64_t rows, int heads, int width)
{
    int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / TSR_WARP;
    row->at = index * width;
    row->head = index % heads * width;
    row->lane = (int)threadIdx.x % TSR_WARP;
    return index < rows;
}

static __device__ __forceinline__ int columns_of(int *column, const warp_row *row, int turn,
                                                 int width)
{
    *column = (turn * TSR_WARP + row->lane) * TSR_VECTOR;
    return max(0, min(width - *column, TSR_VECTOR));
}

/* x and y = g z of the row; returns its rstd. */
static __device__ __forceinline__ float load_row(float x[TURNS][8], float y[TURNS][8],
                                                 const void *from, const void *z, const float *g,
                                                 const warp_row *row, int width, float eps,
                                                 tsr_dtype dtype, bool whole)
{
    float squares = 0;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int column, count = columns_of(&column, row, turn, width);
        float gain[8];
        tsr_zero8(x[turn]);
        tsr_zero8(y[turn]);
        if (!count)
            continue;
        tsr_raw_widen(x[turn], tsr_raw_load(from, row->at + column, count, dtype, whole), dtype);
        tsr_raw_widen(y[turn], tsr_raw_load(z, row->at + column, count, dtype, whole), dtype);
        tsr_float8(gain, g, row->head + column, count, 1, whole);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            y[turn][j] *= gain[j];
            squares += j < count ? x[turn][j] * x[turn][j] : 0;
        }
    }
    return 1.0f / sqrtf(tsr_warp_sum(squares) / (float)width + eps);
}

static __global__ void __launch_bounds__(WARPS *TSR_WARP)
    forward_rows(const __grid_constant__ tsr_gated_norm_args a, bool whole)
{
    tsr_kernel_begin();
    warp_row row;
    float x[TURNS][8], y[TURNS][8];
    if (!row_of(&row, a.tokens * a.heads, a.heads, a.width))
        return;
    float rstd = load_row(x, y, a.x, a.z, a.g, &row, a.width, a.eps, a.dtype, whole);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int column, count = columns_of(&column, &row, turn, a.width);
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

static __global__ void __launch_bounds__(WARPS *TSR_WARP)
    back_rows(const __grid_constant__ tsr_gated_norm_backward_args a, bool whole)
{
    tsr_kernel_begin();
    warp_row row;
    float x[TURNS][8], y[TURNS][8], d[TURNS][8], projection = 0;
    if (!row_of(&row, a.tokens * a.heads, a.heads, a.width))
        return;
    float rstd = load_row(x, y, a.x, a.z, a.g, &row, a.width, a.eps, a.dtype, whole);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int column, count = columns_of(&column, &row, turn, a.width);
        float w[8];
        tsr_zero8(d[turn]);
        if (!count)
            continue;
        tsr_frozen8(w, a.w, column, count, 1, whole);
        tsr_raw_widen(d[turn], tsr_raw_load(a.dout, row.at + column, count, a.dtype, whole),
                      a.dtype);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float s = 1.0f / (1.0f + expf(-y[turn][j]));
            float part = j < count ? d[turn][j] * w[j] : 0;
            d[turn][j] = part * (y[turn][j] * s);
            projection += d[turn][j] * x[turn][j];
            y[turn][j] = part * x[turn][j] * rstd * s * (1.0f + y[turn][j] * (1.0f - s));
        }
    }
    float shift = tsr_warp_sum(projection) / (float)a.width * rstd * rstd;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int column, count = columns_of(&column, &row, turn, a.width);
        if (!count)
            continue;
#pragma unroll
        for (int j = 0; j < 8; j++)
            d[turn][j] = rstd * (d[turn][j] - x[turn][j] * shift);
        tsr_raw_store(a.dx, row.at + column, count, d[turn], a.dtype, whole);
        tsr_raw_store(a.dy, row.at + column, count, y[turn], a.dtype, whole);
    }
}

extern "C" tsr_status tsr_gated_norm_cuda(tsr_stream *stream, const tsr_gated_norm_args *args)
{
    TSR_TRY(tsr_gated_norm_check(args));
    bool whole = tsr_vectors(args->width, args->x, args->z, args->out, args->w.data, args->g);
    if (args->tokens == 0)
        return TSR_OK;
    TSR_LAUNCH(forward_rows, tsr_blocks(args->tokens * args->heads, WARPS), WARPS * TSR_WARP,
               stream, *args, whole);
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
    TSR_LAUNCH(back_rows, tsr_blocks(args->tokens * args->heads, WARPS), WARPS * TSR_WARP, stream,
               *args, whole);
    return tsr_launched("gated_norm_backward");
}
