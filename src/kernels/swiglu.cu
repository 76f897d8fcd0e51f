/*
 * swiglu.cu: contract swiglu.h; reference swiglu_ref.c.
 *
 * Split    Tiles of column_sum.cuh: a lane keeps g and bias of both projections and both sums of its
 *          eight columns in registers over the chunk's tokens. A thread reads all its inputs before
 *          it writes, so that outputs may be inputs.
 * Cost     forward 3 tokens f elements, backward 5; about 25 and 40 instructions an element.
 */
#include "kernels/column_sum.cuh"

#define FORWARD_TURNS  2
#define BACKWARD_TURNS 2

typedef struct {
    float g_gate[8], g_up[8], bias_gate[8], bias_up[8];
} swiglu_vectors;

/* 1 / (1 + e^-x). The reciprocal is within an ulp; of what overflows it is 0, as it should be. */
static __device__ __forceinline__ float sigmoid(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + expf(-x)));
    return y;
}

static __device__ __forceinline__ void
forward_tile(const tsr_swiglu_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    int64_t column = tsr_place_column(&place);
    int count = tsr_column_count(column, a->f);
    if (count == 0)
        return;
    swiglu_vectors v;
    tsr_float8(v.g_gate, a->g_gate, column, count, 1, whole);
    tsr_float8(v.g_up, a->g_up, column, count, 1, whole);
    tsr_frozen8(v.bias_gate, a->bias_gate, column, count, 0, whole);
    tsr_frozen8(v.bias_up, a->bias_up, column, count, 0, whole);
    for (int64_t t = place.token; t < place.end; t += TSR_TILE_WARPS * FORWARD_TURNS) {
        tsr_raw8 gate_raw[FORWARD_TURNS], up_raw[FORWARD_TURNS];
#pragma unroll
        for (int u = 0; u < FORWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS, at = token * a->f + column;
            if (token >= place.end)
                break;
            gate_raw[u] = tsr_raw_load(a->z_gate, at, count, dtype, whole);
            up_raw[u] = tsr_raw_load(a->z_up, at, count, dtype, whole);
        }
#pragma unroll
        for (int u = 0; u < FORWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token >= place.end)
                break;
            float z_gate[8], z_up[8];
            tsr_raw_widen(z_gate, gate_raw[u], dtype);
            tsr_raw_widen(z_up, up_raw[u], dtype);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float gate = v.g_gate[j] * z_gate[j] + v.bias_gate[j];
                float up = v.g_up[j] * z_up[j] + v.bias_up[j];
                z_gate[j] = gate * sigmoid(gate) * up;
            }
            tsr_raw_store(a->act, token * a->f + column, count, z_gate, dtype, whole);
        }
    }
}

TSR_TILE_KERNELS(forward_tile, tsr_swiglu_args, 3)

extern "C" tsr_status tsr_swiglu_cuda(tsr_stream *stream, const tsr_swiglu_args *args)
{
    TSR_TRY(tsr_swiglu_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    int64_t f = args->f;
    bool whole = tsr_vectors(args->z_gate, f) && tsr_vectors(args->z_up, f) &&
                 tsr_vectors(args->act, f) && tsr_vectors(args->g_gate, f) &&
                 tsr_vectors(args->g_up, f) && tsr_vectors(args->bias_gate.data, f) &&
                 tsr_vectors(args->bias_up.data, f);
    tsr_tiling tiling = tsr_tiling_make(args->tokens, tsr_tile_strips(f), false, whole);
    TSR_TILE_LAUNCH(forward_tile, args, tiling, stream);
    return tsr_launched("swiglu");
}

/* ---- backward ---- */

typedef struct {
    float gate[8], up[8];
} swiglu_sums;

typedef struct {
    tsr_raw8 gate, up, dact;
} swiglu_input;

/* dz of eight elements at `at`, and their part of the sums. */
static __device__ __forceinline__ void
back_eight(swiglu_sums *sum, const tsr_swiglu_backward_args *a, int64_t at, int count,
           const swiglu_input *in, const swiglu_vectors *v, tsr_dtype dtype, bool whole)
{
    float z_gate[8], z_up[8], dact[8];
    tsr_raw_widen(z_gate, in->gate, dtype);
    tsr_raw_widen(z_up, in->up, dtype);
    tsr_raw_widen(dact, in->dact, dtype);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float gate = v->g_gate[j] * z_gate[j] + v->bias_gate[j];
        float up = v->g_up[j] * z_up[j] + v->bias_up[j];
        float s = sigmoid(gate);
        float dy_up = dact[j] * (gate * s);
        float dy_gate = dact[j] * up * (s * (1.0f + gate * (1.0f - s)));
        sum->gate[j] += dy_gate * z_gate[j];
        sum->up[j] += dy_up * z_up[j];
        z_gate[j] = v->g_gate[j] * dy_gate;
        z_up[j] = v->g_up[j] * dy_up;
    }
    tsr_raw_store(a->dz_gate, at, count, z_gate, dtype, whole);
    tsr_raw_store(a->dz_up, at, count, z_up, dtype, whole);
}

static __device__ __forceinline__ void
back_tile(const tsr_swiglu_backward_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    int64_t column = tsr_place_column(&place);
    int count = tsr_column_count(column, a->f);
    swiglu_vectors v;
    swiglu_sums sum;
    tsr_zero8(sum.gate);
    tsr_zero8(sum.up);
    if (count) {
        tsr_float8(v.g_gate, a->g_gate, column, count, 1, whole);
        tsr_float8(v.g_up, a->g_up, column, count, 1, whole);
        tsr_frozen8(v.bias_gate, a->bias_gate, column, count, 0, whole);
        tsr_frozen8(v.bias_up, a->bias_up, column, count, 0, whole);
    }
    for (int64_t t = place.token; t < place.end && count; t += TSR_TILE_WARPS * BACKWARD_TURNS) {
        swiglu_input in[BACKWARD_TURNS];
#pragma unroll
        for (int u = 0; u < BACKWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS, at = token * a->f + column;
            if (token >= place.end)
                break;
            in[u].gate = tsr_raw_load(a->z_gate, at, count, dtype, whole);
            in[u].up = tsr_raw_load(a->z_up, at, count, dtype, whole);
            in[u].dact = tsr_raw_load(a->dact, at, count, dtype, whole);
        }
#pragma unroll
        for (int u = 0; u < BACKWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token < place.end)
                back_eight(&sum, a, token * a->f + column, count, &in[u], &v, dtype, whole);
        }
    }
    float *row = a->partials + place.chunk * 2 * a->f;
    if (a->dm_gate)
        tsr_column_partial(row, sum.gate, &place, a->f);
    if (a->dm_up)
        tsr_column_partial(row + a->f, sum.up, &place, a->f);
}

TSR_TILE_KERNELS(back_tile, tsr_swiglu_backward_args, 2)

static bool back_whole(const tsr_swiglu_backward_args *a)
{
    int64_t f = a->f;
    return tsr_vectors(a->dact, f) && tsr_vectors(a->z_gate, f) && tsr_vectors(a->z_up, f) &&
           tsr_vectors(a->g_gate, f) && tsr_vectors(a->g_up, f) &&
           tsr_vectors(a->bias_gate.data, f) && tsr_vectors(a->bias_up.data, f) &&
           tsr_vectors(a->dz_gate, f) && tsr_vectors(a->dz_up, f);
}

extern "C" tsr_status tsr_swiglu_backward_cuda(tsr_stream *stream,
                                               const tsr_swiglu_backward_args *args)
{
    TSR_TRY(tsr_swiglu_backward_check(args));
    tsr_column_sums sums = {};
    tsr_column_sums_add(&sums, 0, args->dm_gate, args->n_gate, args->f);
    tsr_column_sums_add(&sums, 1, args->dm_up, args->n_up, args->f);
    TSR_TRY(tsr_column_sums_check(&sums, args->partials, "swiglu_backward"));
    tsr_tiling tiling = tsr_tiling_make(args->tokens, tsr_tile_strips(args->f),
                                        tsr_column_sums_wanted(&sums), back_whole(args));
    if (tiling.chunks) {
        TSR_TILE_LAUNCH(back_tile, args, tiling, stream);
        TSR_TRY(tsr_launched("swiglu_backward"));
    }
    return tsr_column_sums_finish(&sums, args->partials, tiling.chunks, stream);
}
