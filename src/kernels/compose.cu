/*
 * compose.cu: contract compose.h; reference compose_ref.c.
 *
 * Split    Tiles of column_sum.cuh: a lane keeps g, bias and the sum of its eight columns in
 *          registers over the chunk's tokens. A thread reads all its inputs before it writes, so that
 *          outputs may be inputs.
 * Cost     forward tokens d elements of base, base_dropped (where it is not base), lora, y and inner
 *          (where wanted); merged of base, inner and y; backward of dy, inner (with dm), d_base_dropped and
 *          d_lora (where wanted).
 */
#include "kernels/column_sum.cuh"

#define FORWARD_TURNS  2
#define MERGED_TURNS   4
#define BACKWARD_TURNS 4

typedef struct {
    tsr_raw8 base, dropped, lora;
} compose_input;

typedef struct {
    float g[8], bias[8];
} compose_vectors;

static __device__ __forceinline__ void compose_eight(const tsr_compose_args *a, int64_t at,
                                                     int count, const compose_input *in,
                                                     const compose_vectors *v, tsr_dtype dtype,
                                                     bool whole)
{
    float base[8], dropped[8], lora[8], inner[8];
    tsr_raw_widen(base, in->base, dtype);
    tsr_raw_widen(dropped, a->base_dropped ? in->dropped : in->base, dtype);
    tsr_raw_widen(lora, in->lora, dtype);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float scaled = a->scale * lora[j];
        inner[j] = scaled + dropped[j];
        base[j] = (base[j] + v->bias[j]) + ((v->g[j] - 1.0f) * dropped[j] + v->g[j] * scaled);
    }
    tsr_raw_store(a->y, at, count, base, dtype, whole);
    if (a->inner)
        tsr_raw_store(a->inner, at, count, inner, dtype, whole);
}

static __device__ __forceinline__ void
compose_tile(const tsr_compose_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    int64_t column = tsr_place_column(&place);
    int count = tsr_column_count(column, a->d);
    if (count == 0)
        return;
    compose_vectors v;
    tsr_float8(v.g, a->g, column, count, 1, whole);
    tsr_frozen8(v.bias, a->bias, column, count, 0, whole);
    for (int64_t t = place.token; t < place.end; t += TSR_TILE_WARPS * FORWARD_TURNS) {
        compose_input in[FORWARD_TURNS];
#pragma unroll
        for (int u = 0; u < FORWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS, at = token * a->d + column;
            if (token >= place.end)
                break;
            in[u].base = tsr_raw_load(a->base, at, count, dtype, whole);
            if (a->base_dropped)
                in[u].dropped = tsr_raw_load(a->base_dropped, at, count, dtype, whole);
            in[u].lora = tsr_raw_load(a->lora, at, count, dtype, whole);
        }
#pragma unroll
        for (int u = 0; u < FORWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token < place.end)
                compose_eight(a, token * a->d + column, count, &in[u], &v, dtype, whole);
        }
    }
}

TSR_TILE_KERNELS(compose_tile, compose_tile, tsr_compose_args, 3)

extern "C" tsr_status tsr_compose_cuda(tsr_stream *stream, const tsr_compose_args *args)
{
    TSR_TRY(tsr_compose_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    int64_t d = args->d;
    bool whole = tsr_vectors(d, args->base, args->base_dropped, args->lora, args->g,
                             args->bias.data, args->y, args->inner);
    tsr_tiling tiling = tsr_tiling_make(args->tokens, tsr_tile_strips(d), false, whole);
    TSR_TILE_LAUNCH(compose_tile, args, tiling, stream);
    return tsr_launched("compose");
}

/* ---- merged ---- */

static __device__ __forceinline__ void
merged_tile(const tsr_compose_merged_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    int64_t column = tsr_place_column(&place);
    int count = tsr_column_count(column, a->d);
    if (count == 0)
        return;
    compose_vectors v;
    tsr_float8(v.g, a->g, column, count, 1, whole);
    tsr_frozen8(v.bias, a->bias, column, count, 0, whole);
    for (int64_t t = place.token; t < place.end; t += TSR_TILE_WARPS * MERGED_TURNS) {
        tsr_raw8 base_raw[MERGED_TURNS], inner_raw[MERGED_TURNS];
#pragma unroll
        for (int u = 0; u < MERGED_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS, at = token * a->d + column;
            if (token >= place.end)
                break;
            base_raw[u] = tsr_raw_load(a->base, at, count, dtype, whole);
            inner_raw[u] = tsr_raw_load(a->inner, at, count, dtype, whole);
        }
#pragma unroll
        for (int u = 0; u < MERGED_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token >= place.end)
                break;
            float base[8], inner[8];
            tsr_raw_widen(base, base_raw[u], dtype);
            tsr_raw_widen(inner, inner_raw[u], dtype);
#pragma unroll
            for (int j = 0; j < 8; j++)
                base[j] = (base[j] + v.bias[j]) + v.g[j] * inner[j];
            tsr_raw_store(a->y, token * a->d + column, count, base, dtype, whole);
        }
    }
}

TSR_TILE_KERNELS(merged_tile, merged_tile, tsr_compose_merged_args, 3)

extern "C" tsr_status tsr_compose_merged_cuda(tsr_stream *stream,
                                              const tsr_compose_merged_args *args)
{
    TSR_TRY(tsr_compose_merged_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    int64_t d = args->d;
    bool whole = tsr_vectors(d, args->base, args->inner, args->g, args->bias.data, args->y);
    tsr_tiling tiling = tsr_tiling_make(args->tokens, tsr_tile_strips(d), false, whole);
    TSR_TILE_LAUNCH(merged_tile, args, tiling, stream);
    return tsr_launched("compose_merged");
}

/* ---- backward ---- */

/* BOTH: d_base_dropped and d_lora; otherwise d_lora = g dy alone. */
template <bool BOTH>
static __device__ __forceinline__ void back_eight(const tsr_compose_backward_args *a, int64_t at,
                                                  int count, const float *dy, const float *g,
                                                  tsr_dtype dtype, bool whole)
{
    float out[8];
    if (BOTH && a->d_base_dropped) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            out[j] = (g[j] - 1.0f) * dy[j];
        tsr_raw_store(a->d_base_dropped, at, count, out, dtype, whole);
    }
    if (BOTH && !a->d_lora)
        return;
#pragma unroll
    for (int j = 0; j < 8; j++)
        out[j] = (BOTH ? g[j] * a->scale : g[j]) * dy[j];
    if (a->d_lora)
        tsr_raw_store(a->d_lora, at, count, out, dtype, whole);
}

template <bool BOTH>
static __device__ __forceinline__ void
back_of(const tsr_compose_backward_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    int64_t column = tsr_place_column(&place);
    int count = tsr_column_count(column, a->d);
    float g[8], sum[8];
    tsr_zero8(sum);
    if (count)
        tsr_float8(g, a->g, column, count, 1, whole);
    for (int64_t t = place.token; t < place.end && count; t += TSR_TILE_WARPS * BACKWARD_TURNS) {
        tsr_raw8 dy_raw[BACKWARD_TURNS], inner_raw[BACKWARD_TURNS];
#pragma unroll
        for (int u = 0; u < BACKWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token < place.end)
                dy_raw[u] = tsr_raw_load(a->dy, token * a->d + column, count, dtype, whole);
            if (token < place.end && a->dm)
                inner_raw[u] = tsr_raw_load(a->inner, token * a->d + column, count, dtype, whole);
        }
#pragma unroll
        for (int u = 0; u < BACKWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token >= place.end)
                break;
            float dy[8], inner[8];
            /* So that g - 1 is made here: before the loop it would be waited for with nothing asked for. */
#pragma unroll
            for (int j = 0; BOTH && j < 8; j++)
                asm volatile("" : "+f"(g[j]));
            tsr_raw_widen(dy, dy_raw[u], dtype);
            if (a->dm) {
                tsr_raw_widen(inner, inner_raw[u], dtype);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sum[j] += dy[j] * inner[j];
            }
            back_eight<BOTH>(a, token * a->d + column, count, dy, g, dtype, whole);
        }
    }
    if (a->dm)
        tsr_column_partial(a->partials + place.chunk * a->d, sum, &place, a->d);
}

/* With 3 blocks of scale_tile on a multiprocessor it is 5 % slower. */
TSR_TILE_KERNELS(back_tile, back_of<true>, tsr_compose_backward_args, 3)
TSR_TILE_KERNELS(scale_tile, back_of<false>, tsr_compose_backward_args, 2)

extern "C" tsr_status tsr_compose_backward_cuda(tsr_stream *stream,
                                                const tsr_compose_backward_args *args)
{
    TSR_TRY(tsr_compose_backward_check(args));
    tsr_column_sums sums = {};
    tsr_column_sums_add(&sums, 0, args->dm, args->n, args->d);
    TSR_TRY(tsr_column_sums_check(&sums, args->partials, "compose_backward"));
    int64_t d = args->d;
    bool whole = tsr_vectors(d, args->dy, args->inner, args->g, args->d_base_dropped, args->d_lora);
    tsr_tiling tiling = tsr_tiling_make(args->tokens, tsr_tile_strips(d), args->dm != NULL, whole);
    if (tiling.chunks) {
        if (args->d_base_dropped || args->scale != 1)
            TSR_TILE_LAUNCH(back_tile, args, tiling, stream);
        else
            TSR_TILE_LAUNCH(scale_tile, args, tiling, stream);
        TSR_TRY(tsr_launched("compose_backward"));
    }
    return tsr_column_sums_finish(&sums, args->partials, tiling.chunks, stream);
}
