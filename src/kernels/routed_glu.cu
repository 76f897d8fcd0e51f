/*
 * routed_glu.cu: contract routed_glu.h; reference routed_glu_ref.c.
 *
 * Split    A warp has a slot, TURNS vectors a lane of dact, gate and up under way.
 * Sums     dp by lanes, then over the warp, as the width alone says.
 * Cost     as in routed_glu.h. Rows of a token lie apart, each in one piece.
 */
#include "kernels/swiglu_parts.cuh"
#include "kernels/vectors.cuh"

#define THREADS 256
#define WARPS   (THREADS / TSR_WARP)
#define BLOCKS  3 /* on a multiprocessor */
#define TURNS   3 /* vectors of a row under way */

typedef struct {
    tsr_raw8 gate, up, dact;
} routed_input;

/* A unit is eight columns; of the last there may be fewer. */
static __device__ __forceinline__ int columns_of(int64_t f, int64_t unit)
{
    return (int)min((int64_t)TSR_VECTOR, f - unit * TSR_VECTOR);
}

static __device__ __forceinline__ routed_input load_unit(const tsr_routed_glu_backward_args *a,
                                                         int64_t row, int64_t unit, tsr_dtype dtype,
                                                         bool whole)
{
    int64_t column = unit * TSR_VECTOR, at = row * 2 * a->f + column;
    int count = columns_of(a->f, unit);
    routed_input in;
    in.dact = tsr_raw_load(a->dact, row * a->f + column, count, dtype, whole);
    in.gate = tsr_raw_load(a->z, at, count, dtype, whole);
    in.up = tsr_raw_load(a->z, at + a->f, count, dtype, whole);
    return in;
}

/* Eight columns' part of <act, dact>, and their dz. */
template <tsr_activation F>
static __device__ __forceinline__ float back_eight(float *dz_gate, float *dz_up,
                                                   const routed_input *in, float p, tsr_dtype dtype)
{
    float dact[8], sum = 0;
    tsr_raw_widen(dz_gate, in->gate, dtype);
    tsr_raw_widen(dz_up, in->up, dtype);
    tsr_raw_widen(dact, in->dact, dtype);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        bool kept;
        float slope, f = swiglu_activate<F>(dz_gate[j], &slope);
        float factor = swiglu_up_factor<F>(dz_up[j], &kept), d = p * dact[j];
        sum = fmaf(f * factor, dact[j], sum);
        dz_up[j] = kept ? d * f : 0;
        dz_gate[j] = d * factor * slope;
    }
    return sum;
}

/* A lane's part of a row. */
template <tsr_activation F>
static __device__ __forceinline__ float back_row(const tsr_routed_glu_backward_args *a, int64_t row,
                                                 float p, tsr_dtype dtype, bool whole)
{
    int64_t units = (a->f + TSR_VECTOR - 1) / TSR_VECTOR;
    float sum = 0;
    for (int64_t unit = threadIdx.x % TSR_WARP; unit < units; unit += TURNS * TSR_WARP) {
        routed_input in[TURNS];
#pragma unroll
        for (int i = 0; i < TURNS; i++)
            if (unit + i * TSR_WARP < units)
                in[i] = load_unit(a, row, unit + i * TSR_WARP, dtype, whole);
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            int64_t of = unit + i * TSR_WARP, at = row * 2 * a->f + of * TSR_VECTOR;
            float dz_gate[8], dz_up[8];
            if (of >= units)
                break;
            sum += back_eight<F>(dz_gate, dz_up, &in[i], p, dtype);
            tsr_raw_store(a->dz, at, columns_of(a->f, of), dz_gate, dtype, whole);
            tsr_raw_store(a->dz, at + a->f, columns_of(a->f, of), dz_up, dtype, whole);
        }
    }
    return sum;
}

template <tsr_activation F>
static __device__ __forceinline__ void back_slot(const tsr_routed_glu_backward_args *a,
                                                 const int64_t *slots, tsr_dtype dtype, bool whole)
{
    int64_t slot = (int64_t)blockIdx.x * WARPS + threadIdx.x / TSR_WARP;
    if (slot >= *slots)
        return;
    int64_t row = a->row[slot];
    float sum = row < 0 ? 0 : tsr_warp_sum(back_row<F>(a, row, a->p[slot], dtype, whole));
    if (threadIdx.x % TSR_WARP == 0)
        a->dp[slot] = a->add ? a->dp[slot] + sum : sum;
}

TSR_KERNELS_OF(silu, back_slot<TSR_SILU>, tsr_routed_glu_backward_args, int64_t, THREADS, BLOCKS)
TSR_KERNELS_OF(gelu, back_slot<TSR_GELU_TANH>, tsr_routed_glu_backward_args, int64_t, THREADS,
               BLOCKS)
TSR_KERNELS_OF(clamped, back_slot<TSR_SILU_CLAMPED>, tsr_routed_glu_backward_args, int64_t, THREADS,
               BLOCKS)

extern "C" tsr_status tsr_routed_glu_backward_cuda(tsr_stream *stream,
                                                   const tsr_routed_glu_backward_args *args)
{
    TSR_TRY(tsr_routed_glu_backward_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    bool whole = tsr_vectors(args->f, args->dact, args->z, args->dz);
    int64_t slots = args->tokens * args->k;
    unsigned blocks = tsr_blocks(slots, WARPS);
    if (args->activation == TSR_SILU)
        TSR_LAUNCH_OF(silu, whole, args->dtype, blocks, THREADS, stream, *args, slots);
    else if (args->activation == TSR_GELU_TANH)
        TSR_LAUNCH_OF(gelu, whole, args->dtype, blocks, THREADS, stream, *args, slots);
    else
        TSR_LAUNCH_OF(clamped, whole, args->dtype, blocks, THREADS, stream, *args, slots);
    return tsr_launched("routed_glu_backward");
}
