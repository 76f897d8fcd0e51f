/*
 * layer_inputs.cu: contract layer_inputs.h; reference layer_inputs_ref.c.
 *
 * Split    A warp has a layer's part of a token, a lane eight columns of it at a time, all of them in registers.
 * Cost     3 tokens layers width elements each way.
 */
#include "kernels/column_sum.cuh"

#define WARPS 8
#define TURNS (TSR_LAYER_INPUTS_MOST / (TSR_WARP * TSR_VECTOR))

/* What a warp works on, and a lane of it. */
typedef struct {
    int64_t wide, own; /* the row's first element, layers side by side and one behind the other */
    int64_t first;     /* and in a vector of all layers */
    int lane;
} warp_row;

static __device__ __forceinline__ bool row_of(warp_row *row, int64_t tokens, int layers,
                                              int64_t width)
{
    int64_t index = (int64_t)blockIdx.x * WARPS + threadIdx.x / TSR_WARP;
    int64_t token = index / layers, layer = index % layers;
    row->wide = index * width;
    row->own = (layer * tokens + token) * width;
    row->first = layer * width;
    row->lane = threadIdx.x % TSR_WARP;
    return token < tokens;
}

/* Columns of a lane in a turn. */
static __device__ __forceinline__ int columns_of(int64_t *column, const warp_row *row, int turn,
                                                 int64_t width)
{
    *column = (turn * TSR_WARP + row->lane) * (int64_t)TSR_VECTOR;
    return *column < width ? tsr_column_count(*column, width) : 0;
}

/* y = scale (g z + bias), zeros beyond the row; returns its rstd. */
static __device__ __forceinline__ float linear_row(float y[TURNS][8], const void *z, const float *g,
                                                   tsr_frozen bias, const warp_row *row,
                                                   int64_t width, float scale, float eps,
                                                   tsr_dtype dtype, bool whole)
{
    float squares = 0;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t column;
        float gain[8], shift[8];
        int count = columns_of(&column, row, turn, width);
        tsr_zero8(y[turn]);
        if (!count)
            continue;
        tsr_raw_widen(y[turn], tsr_raw_load(z, row->wide + column, count, dtype, whole), dtype);
        tsr_float8(gain, g, row->first + column, count, 1, whole);
        tsr_frozen8(shift, bias, row->first + column, count, 0, whole);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            y[turn][j] = j < count ? scale * (gain[j] * y[turn][j] + shift[j]) : 0;
            squares += y[turn][j] * y[turn][j];
        }
    }
    return 1.0f / sqrtf(tsr_warp_sum(squares) / (float)width + eps);
}

static __global__ void __launch_bounds__(WARPS *TSR_WARP)
    forward_rows(const __grid_constant__ tsr_layer_inputs_args a, bool whole)
{
    tsr_kernel_begin();
    warp_row row;
    float y[TURNS][8];
    if (!row_of(&row, a.tokens, a.layers, a.width))
        return;
    float rstd = linear_row(y, a.z, a.g, a.bias, &row, a.width, a.scale, a.eps, a.dtype, whole);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t column;
        float w[8], in[8];
        int count = columns_of(&column, &row, turn, a.width);
        if (!count)
            continue;
        tsr_frozen8(w, a.w, column, count, 1, whole);
        tsr_raw_widen(in, tsr_raw_load(a.rows, row.wide + column, count, a.rows_dtype, whole),
                      a.rows_dtype);
#pragma unroll
        for (int j = 0; j < 8; j++)
            in[j] = a.sum_scale * (y[turn][j] * rstd * w[j] + a.row_scale * in[j]);
        tsr_raw_store(a.out, row.own + column, count, in, a.dtype, whole);
    }
}

static __global__ void __launch_bounds__(WARPS *TSR_WARP)
    back_rows(const __grid_constant__ tsr_layer_inputs_backward_args a, bool whole)
{
    tsr_kernel_begin();
    warp_row row;
    float y[TURNS][8], d[TURNS][8], projection = 0;
    if (!row_of(&row, a.tokens, a.layers, a.width))
        return;
    float rstd = linear_row(y, a.z, a.g, a.bias, &row, a.width, a.scale, a.eps, a.dtype, whole);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t column;
        float w[8];
        int count = columns_of(&column, &row, turn, a.width);
        tsr_zero8(d[turn]);
        if (!count)
            continue;
        tsr_frozen8(w, a.w, column, count, 1, whole);
        tsr_raw_widen(d[turn], tsr_raw_load(a.dout, row.own + column, count, a.dtype, whole),
                      a.dtype);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            d[turn][j] = j < count ? w[j] * a.sum_scale * d[turn][j] : 0;
            projection += d[turn][j] * y[turn][j];
        }
    }
    float shift = tsr_warp_sum(projection) / (float)a.width * rstd * rstd;
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
        int64_t column;
        int count = columns_of(&column, &row, turn, a.width);
        if (!count)
            continue;
#pragma unroll
        for (int j = 0; j < 8; j++)
            d[turn][j] = a.scale * rstd * (d[turn][j] - y[turn][j] * shift);
        tsr_raw_store(a.dy, row.wide + column, count, d[turn], a.dtype, whole);
    }
}

extern "C" tsr_status tsr_layer_inputs_cuda(tsr_stream *stream, const tsr_layer_inputs_args *args)
{
    TSR_TRY(tsr_layer_inputs_check(args));
    int64_t width = args->width;
    bool whole =
        tsr_vectors(width, args->z, args->rows, args->out, args->w.data, args->g, args->bias.data);
    if (args->tokens == 0)
        return TSR_OK;
    TSR_LAUNCH(forward_rows, tsr_blocks(args->tokens * args->layers, WARPS), WARPS * TSR_WARP,
               stream, *args, whole);
    return tsr_launched("layer_inputs");
}

extern "C" tsr_status tsr_layer_inputs_backward_cuda(tsr_stream *stream,
                                                     const tsr_layer_inputs_backward_args *args)
{
    TSR_TRY(tsr_layer_inputs_backward_check(args));
    int64_t width = args->width;
    bool whole =
        tsr_vectors(width, args->z, args->dout, args->dy, args->w.data, args->g, args->bias.data);
    if (args->tokens == 0)
        return TSR_OK;
    TSR_LAUNCH(back_rows, tsr_blocks(args->tokens * args->layers, WARPS), WARPS * TSR_WARP, stream,
               *args, whole);
    return tsr_launched("layer_inputs_backward");
}
