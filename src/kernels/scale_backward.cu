/*
 * scale_backward.cu: contract scale_backward.h; reference scale_backward_ref.c.
 *
 * Split    Tiles of column_sum.cuh: a lane keeps g and the sum of its eight columns in registers over
 *          the chunk's tokens, and has TURNS tokens under way.
 * Cost     3 tokens d elements with dm (dy, z, dz), 2 without (dy, dz), 2 where only dm is wanted.
 */
#include "kernels/column_sum.cuh"

#define TURNS 4

static __device__ __forceinline__ void
scale_tile(const tsr_scale_backward_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    int64_t column = tsr_place_column(&place);
    int count = tsr_column_count(column, a->d);
    float g[8], sum[8];
    tsr_zero8(sum);
    if (count)
        tsr_float8(g, a->g, column, count, 1, whole);
    for (int64_t t = place.token; t < place.end && count; t += TSR_TILE_WARPS * TURNS) {
        tsr_raw8 dy_raw[TURNS], z_raw[TURNS];
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token < place.end)
                dy_raw[u] = tsr_raw_load(a->dy, token * a->d + column, count, dtype, whole);
            if (token < place.end && a->dm)
                z_raw[u] = tsr_raw_load(a->z, token * a->d + column, count, dtype, whole);
        }
#pragma unroll
        for (int u = 0; u < TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token >= place.end)
                break;
            float dy[8], z[8];
            tsr_raw_widen(dy, dy_raw[u], dtype);
            if (a->dm) {
                tsr_raw_widen(z, z_raw[u], dtype);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    sum[j] += dy[j] * z[j];
            }
#pragma unroll
            for (int j = 0; j < 8; j++)
                dy[j] *= g[j];
            if (a->dz)
                tsr_raw_store(a->dz, token * a->d + column, count, dy, dtype, whole);
        }
    }
    if (a->dm)
        tsr_column_partial(a->partials + place.chunk * a->d, sum, &place, a->d);
}

TSR_TILE_KERNELS(scale_tile, tsr_scale_backward_args, 2)

extern "C" tsr_status tsr_scale_backward_cuda(tsr_stream *stream,
                                              const tsr_scale_backward_args *args)
{
    TSR_TRY(tsr_scale_backward_check(args));
    tsr_column_sums sums = {};
    tsr_column_sums_add(&sums, 0, args->dm, args->n, args->d);
    TSR_TRY(tsr_column_sums_check(&sums, args->partials, "scale_backward"));
    int64_t d = args->d;
    bool whole = tsr_vectors(args->dy, d) && tsr_vectors(args->z, d) && tsr_vectors(args->dz, d) &&
                 tsr_vectors(args->g, d);
    tsr_tiling tiling = tsr_tiling_make(args->tokens, tsr_tile_strips(d), args->dm != NULL, whole);
    if (tiling.chunks) {
        TSR_TILE_LAUNCH(scale_tile, args, tiling, stream);
        TSR_TRY(tsr_launched("scale_backward"));
    }
    return tsr_column_sums_finish(&sums, args->partials, tiling.chunks, stream);
}
