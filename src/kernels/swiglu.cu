/*
 * swiglu.cu: contract swiglu.h; reference swiglu_ref.c.
 *
 * Split    Tiles of column_sum.cuh: a lane keeps g and bias of both projections and both sums of its
 *          eight columns in registers over the chunk's tokens. A thread reads all its inputs before
 *          it writes, so that outputs may be inputs.
 * e4m3     Where rows go into e4m3 as well, a block has a row, whose results wait in shared memory, each
 *          where the thread that made it finds it again, until the largest is known. Backward the
 *          columns have factors, 4 bytes of each read twice, which from L2 cost as much as the rest: there
 *          blocks stay, one row after the other, and keep the factors in shared memory as well. Sums of
 *          columns would be spread over as many blocks: with a dm, g or bias e4m3 takes a second pass.
 * Cost     forward 3 tokens f elements, backward 5; about 25 and 40 instructions an element.
 */
#include "kernels/column_sum.cuh"
#include "kernels/fp8.cuh"
#include "kernels/swiglu_parts.cuh"

#define FORWARD_TURNS  2
#define BACKWARD_TURNS 2
#define ROW_THREADS    256
#define ROW_STEP       (ROW_THREADS * TSR_VECTOR) /* columns of a turn of a row */
/* Of a block that stays: two vectors each of 14336 columns, 72 registers. */
#define STAY_THREADS 896

typedef struct {
    float g_gate[8], g_up[8], bias_gate[8], bias_up[8];
} swiglu_vectors;

static __device__ __forceinline__ void load_vectors(swiglu_vectors *v, const float *g_gate,
                                                    const float *g_up, tsr_frozen bias_gate,
                                                    tsr_frozen bias_up, int64_t column, int count,
                                                    bool whole)
{
    tsr_float8(v->g_gate, g_gate, column, count, 1, whole);
    tsr_float8(v->g_up, g_up, column, count, 1, whole);
    tsr_frozen8(v->bias_gate, bias_gate, column, count, 0, whole);
    tsr_frozen8(v->bias_up, bias_up, column, count, 0, whole);
}

template <tsr_activation F>
static __device__ __forceinline__ void forward_eight(float *act, tsr_raw8 gate_raw, tsr_raw8 up_raw,
                                                     const swiglu_vectors *v, tsr_dtype dtype)
{
    float z_up[8];
    tsr_raw_widen(act, gate_raw, dtype);
    tsr_raw_widen(z_up, up_raw, dtype);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float gate = v->g_gate[j] * act[j] + v->bias_gate[j];
        float up = v->g_up[j] * z_up[j] + v->bias_up[j];
        float unused;
        bool kept;
        act[j] = swiglu_activate<F>(gate, &unused) * swiglu_up_factor<F>(up, &kept);
    }
}

template <tsr_activation F>
static __device__ __forceinline__ void
forward_of(const tsr_swiglu_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    int64_t column = tsr_place_column(&place);
    int count = tsr_column_count(column, a->f);
    if (count == 0)
        return;
    swiglu_vectors v;
    load_vectors(&v, a->g_gate, a->g_up, a->bias_gate, a->bias_up, column, count, whole);
    for (int64_t t = place.token; t < place.end; t += TSR_TILE_WARPS * FORWARD_TURNS) {
        tsr_raw8 gate_raw[FORWARD_TURNS], up_raw[FORWARD_TURNS];
#pragma unroll
        for (int u = 0; u < FORWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS, at = token * a->stride + column;
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
            float act[8];
            forward_eight<F>(act, gate_raw[u], up_raw[u], &v, dtype);
            tsr_raw_store(a->act, token * a->f + column, count, act, dtype, whole);
        }
    }
}

TSR_TILE_KERNELS(forward_tile, forward_of<TSR_SILU>, tsr_swiglu_args, 3)
TSR_TILE_KERNELS(gelu_tile, forward_of<TSR_GELU_TANH>, tsr_swiglu_args, 3)
TSR_TILE_KERNELS(clamped_tile, forward_of<TSR_SILU_CLAMPED>, tsr_swiglu_args, 3)

/* ---- rows that go into e4m3 as well ---- */

extern __shared__ __align__(16) char memory[];

/* Writes eight results of a row, in bf16, and holds them; `most` becomes the largest with its factor. */
static __device__ __forceinline__ void hold_eight(uint4 *held, void *out, tsr_fp8_rows rows,
                                                  int64_t row, int column, const float *result,
                                                  uint32_t *most)
{
    tsr_raw8 raw = tsr_raw_narrow(result, TSR_BF16);
    uint4 quad = make_uint4(raw.word[0], raw.word[1], raw.word[2], raw.word[3]);
    float value[8];
    __stwb((uint4 *)((uint16_t *)out + row + column), quad);
    held[column / TSR_VECTOR] = quad;
    tsr_fp8_values(value, quad, rows.column_factor, column);
    *most = max(*most, tsr_magnitude8(value));
}

static __device__ __forceinline__ void write_codes(const uint4 *held, tsr_fp8_rows rows, int64_t f,
                                                   uint32_t most)
{
    float value[8], scale = tsr_e4m3_scale(__uint_as_float(most)), inverse = __frcp_rn(scale);
    if (threadIdx.x == 0)
        rows.scale[blockIdx.x] = scale;
    for (int64_t column = threadIdx.x * TSR_VECTOR; column < f; column += ROW_STEP) {
        tsr_fp8_values(value, held[column / TSR_VECTOR], rows.column_factor, column);
        *(uint2 *)(rows.out + blockIdx.x * f + column) = tsr_e4m3x8(value, inverse);
    }
}

static __global__ void __launch_bounds__(ROW_THREADS, 4)
    forward_row(const __grid_constant__ tsr_swiglu_args a)
{
    tsr_kernel_begin();
    uint4 *held = (uint4 *)memory;
    int64_t row = blockIdx.x * a.f;
    int f = (int)a.f;
    uint32_t most = 0;
    for (int at = (int)threadIdx.x * TSR_VECTOR; at < f; at += FORWARD_TURNS * ROW_STEP) {
        tsr_raw8 gate[FORWARD_TURNS], up[FORWARD_TURNS];
#pragma unroll
        for (int u = 0; u < FORWARD_TURNS; u++) {
            int column = at + u * ROW_STEP;
            if (column >= f)
                break;
            gate[u] = tsr_raw_load(a.z_gate, row + column, 8, TSR_BF16, true);
            up[u] = tsr_raw_load(a.z_up, row + column, 8, TSR_BF16, true);
        }
#pragma unroll
        for (int u = 0; u < FORWARD_TURNS; u++) {
            int column = at + u * ROW_STEP;
            if (column >= f)
                break;
            swiglu_vectors v;
            float act[8];
            load_vectors(&v, a.g_gate, a.g_up, a.bias_gate, a.bias_up, column, 8, true);
            forward_eight<TSR_SILU>(act, gate[u], up[u], &v, TSR_BF16);
            hold_eight(held, a.act, a.act8, row, column, act, &most);
        }
    }
    write_codes(held, a.act8, a.f, tsr_block_max(most));
}

/* What a block can have beside 1 KiB of its own. A kernel may ask for all of it, whatever its shapes: how much it may is set for the
 * process, and another job on the card must not find less than it needs. */
static int64_t most_shared(tsr_stream *stream)
{
    const tsr_cuda_properties *p = tsr_device_cuda_properties(tsr_stream_device(stream));
    return (int64_t)p->shared_bytes - 1024;
}

static bool fits(tsr_stream *stream, int64_t bytes)
{
    return bytes <= most_shared(stream);
}

extern "C" tsr_status tsr_swiglu_cuda(tsr_stream *stream, const tsr_swiglu_args *args)
{
    TSR_TRY(tsr_swiglu_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    tsr_swiglu_args all = *args;
    all.stride = args->stride ? args->stride : args->f;
    args = &all;
    int64_t f = args->f;
    bool plain = args->activation == TSR_SILU && args->stride == f;
    bool whole = args->stride % TSR_VECTOR == 0 &&
                 tsr_vectors(f, args->z_gate, args->z_up, args->act, args->g_gate, args->g_up,
                             args->bias_gate.data, args->bias_up.data);
    int64_t bytes = f * (int64_t)sizeof(uint16_t);
    if (whole && plain && tsr_fp8_rows_fit(args->act8, f, args->dtype) && fits(stream, bytes)) {
        TSR_TRY(tsr_allow_shared(stream, (const void *)forward_row, most_shared(stream), "swiglu"));
        TSR_LAUNCH_SHARED(forward_row, (unsigned)args->tokens, ROW_THREADS, (size_t)bytes, stream,
                          *args);
        return tsr_launched("swiglu");
    }
    tsr_tiling tiling = tsr_tiling_make(args->tokens, tsr_tile_strips(f), false, whole);
    if (args->activation == TSR_SILU)
        TSR_TILE_LAUNCH(forward_tile, args, tiling, stream);
    else if (args->activation == TSR_GELU_TANH)
        TSR_TILE_LAUNCH(gelu_tile, args, tiling, stream);
    else
        TSR_TILE_LAUNCH(clamped_tile, args, tiling, stream);
    TSR_TRY(tsr_fp8_rows_cuda(stream, args->act8, args->act, args->tokens, f, args->dtype));
    return tsr_launched("swiglu");
}

/* ---- backward ---- */

typedef struct {
    float gate[8], up[8];
} swiglu_sums;

typedef struct {
    tsr_raw8 gate, up, dact;
} swiglu_input;

/* dz of eight elements, and their part of the sums. */
template <tsr_activation F>
static __device__ __forceinline__ void back_eight(float *dz_gate, float *dz_up, swiglu_sums *sum,
                                                  const swiglu_input *in, const swiglu_vectors *v,
                                                  tsr_dtype dtype)
{
    float dact[8];
    tsr_raw_widen(dz_gate, in->gate, dtype);
    tsr_raw_widen(dz_up, in->up, dtype);
    tsr_raw_widen(dact, in->dact, dtype);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float gate = v->g_gate[j] * dz_gate[j] + v->bias_gate[j];
        float up = v->g_up[j] * dz_up[j] + v->bias_up[j];
        bool kept;
        float slope, f = swiglu_activate<F>(gate, &slope), factor = swiglu_up_factor<F>(up, &kept);
        float dy_up = kept ? dact[j] * f : 0;
        float dy_gate = dact[j] * factor * slope;
        sum->gate[j] += dy_gate * dz_gate[j];
        sum->up[j] += dy_up * dz_up[j];
        dz_gate[j] = v->g_gate[j] * dy_gate;
        dz_up[j] = v->g_up[j] * dy_up;
    }
}

static __device__ __forceinline__ swiglu_input load_input(const tsr_swiglu_backward_args *a,
                                                          int64_t row, int64_t column, int count,
                                                          tsr_dtype dtype, bool whole)
{
    swiglu_input in;
    int64_t at = row * a->stride + column;
    in.gate = tsr_raw_load(a->z_gate, at, count, dtype, whole);
    in.up = tsr_raw_load(a->z_up, at, count, dtype, whole);
    in.dact = tsr_raw_load(a->dact, row * a->f + column, count, dtype, whole);
    return in;
}

template <tsr_activation F>
static __device__ __forceinline__ void
back_of(const tsr_swiglu_backward_args *a, const tsr_tiling *tiling, tsr_dtype dtype, bool whole)
{
    tsr_place place = tsr_place_of(tiling);
    int64_t column = tsr_place_column(&place);
    int count = tsr_column_count(column, a->f);
    swiglu_vectors v;
    swiglu_sums sum;
    tsr_zero8(sum.gate);
    tsr_zero8(sum.up);
    if (count)
        load_vectors(&v, a->g_gate, a->g_up, a->bias_gate, a->bias_up, column, count, whole);
    for (int64_t t = place.token; t < place.end && count; t += TSR_TILE_WARPS * BACKWARD_TURNS) {
        swiglu_input in[BACKWARD_TURNS];
#pragma unroll
        for (int u = 0; u < BACKWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS;
            if (token >= place.end)
                break;
            in[u] = load_input(a, token, column, count, dtype, whole);
        }
#pragma unroll
        for (int u = 0; u < BACKWARD_TURNS; u++) {
            int64_t token = t + u * TSR_TILE_WARPS, at = token * a->stride + column;
            if (token >= place.end)
                break;
            float dz_gate[8], dz_up[8];
            back_eight<F>(dz_gate, dz_up, &sum, &in[u], &v, dtype);
            tsr_raw_store(a->dz_gate, at, count, dz_gate, dtype, whole);
            tsr_raw_store(a->dz_up, at, count, dz_up, dtype, whole);
        }
    }
    float *row = a->partials + place.chunk * 2 * a->f;
    if (a->dm_gate)
        tsr_column_partial(row, sum.gate, &place, a->f);
    if (a->dm_up)
        tsr_column_partial(row + a->f, sum.up, &place, a->f);
}

TSR_TILE_KERNELS(back_tile, back_of<TSR_SILU>, tsr_swiglu_backward_args, 2)
TSR_TILE_KERNELS(back_gelu_tile, back_of<TSR_GELU_TANH>, tsr_swiglu_backward_args, 2)
TSR_TILE_KERNELS(back_clamped_tile, back_of<TSR_SILU_CLAMPED>, tsr_swiglu_backward_args, 2)

/* Both largest of a block; `shared` is another one for the next row, so that one barrier is enough. */
static __device__ __forceinline__ uint2 block_max2(uint2 *shared, uint2 own)
{
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    uint2 most = make_uint2(tsr_warp_max(own.x), tsr_warp_max(own.y));
    if (lane == 0)
        shared[warp] = most;
    __syncthreads();
    most = lane < (int)blockDim.x / TSR_WARP ? shared[lane] : make_uint2(0, 0);
    return make_uint2(tsr_warp_max(most.x), tsr_warp_max(most.y));
}

/* What a block keeps of one of the two: its row as it was stored, and the factors of its columns, STAGED the
 * first four of all eights and then the others, so that the reads of a warp meet no bank twice. */
typedef struct {
    uint4 *held;
    float4 *factor;
} row_store;

/* A thread stages what it reads itself. */
static __device__ __forceinline__ void stage_factors(float4 *out, const float *factor, int vectors)
{
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
        float4 ones = make_float4(1, 1, 1, 1);
        out[i] = factor ? ((const float4 *)factor)[2 * i] : ones;
        out[vectors + i] = factor ? ((const float4 *)factor)[2 * i + 1] : ones;
    }
}

template <bool STAGED>
static __device__ __forceinline__ void row_values(float *out, row_store store, tsr_fp8_rows rows,
                                                  int vectors, int i)
{
    tsr_fp8_values(out, store.held[i], STAGED ? NULL : rows.column_factor, i * TSR_VECTOR);
    if (!STAGED)
        return;
    float4 low = store.factor[i], high = store.factor[vectors + i];
    out[0] = __fmul_rn(out[0], low.x), out[1] = __fmul_rn(out[1], low.y);
    out[2] = __fmul_rn(out[2], low.z), out[3] = __fmul_rn(out[3], low.w);
    out[4] = __fmul_rn(out[4], high.x), out[5] = __fmul_rn(out[5], high.y);
    out[6] = __fmul_rn(out[6], high.z), out[7] = __fmul_rn(out[7], high.w);
}

/* Writes eight of a row, holds them, and returns the largest with its factor. */
template <bool STAGED>
static __device__ __forceinline__ uint32_t store_eight(void *out, const float *result,
                                                       row_store store, tsr_fp8_rows rows,
                                                       int vectors, int i)
{
    float value[8];
    tsr_raw8 raw = tsr_raw_narrow(result, TSR_BF16);
    store.held[i] = make_uint4(raw.word[0], raw.word[1], raw.word[2], raw.word[3]);
    __stwb((uint4 *)out + i, store.held[i]);
    row_values<STAGED>(value, store, rows, vectors, i);
    return tsr_magnitude8(value);
}

template <bool STAGED>
static __device__ __forceinline__ uint2 back_one(const tsr_swiglu_backward_args *a, int64_t row,
                                                 row_store gate, row_store up)
{
    int vectors = (int)a->f / TSR_VECTOR;
    uint2 most = make_uint2(0, 0);
    for (int at = threadIdx.x; at < vectors; at += BACKWARD_TURNS * (int)blockDim.x) {
        swiglu_input in[BACKWARD_TURNS];
#pragma unroll
        for (int u = 0; u < BACKWARD_TURNS; u++) {
            int i = at + u * (int)blockDim.x;
            if (i < vectors)
                in[u] = load_input(a, row, i * TSR_VECTOR, 8, TSR_BF16, true);
        }
#pragma unroll
        for (int u = 0; u < BACKWARD_TURNS; u++) {
            int i = at + u * (int)blockDim.x;
            if (i >= vectors)
                break;
            const swiglu_vectors none = {{1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}};
            swiglu_sums unused = {};
            float dz_gate[8], dz_up[8];
            back_eight<TSR_SILU>(dz_gate, dz_up, &unused, &in[u], &none, TSR_BF16);
            most.x = max(most.x, store_eight<STAGED>((uint16_t *)a->dz_gate + row * a->f, dz_gate,
                                                     gate, a->dz_gate8, vectors, i));
            most.y = max(most.y, store_eight<STAGED>((uint16_t *)a->dz_up + row * a->f, dz_up, up,
                                                     a->dz_up8, vectors, i));
        }
    }
    return most;
}

template <bool STAGED>
static __device__ __forceinline__ void back_codes(row_store store, tsr_fp8_rows rows, int64_t row,
                                                  int vectors, uint32_t most)
{
    float value[8], scale = tsr_e4m3_scale(__uint_as_float(most)), inverse = __frcp_rn(scale);
    if (threadIdx.x == 0)
        rows.scale[row] = scale;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
        row_values<STAGED>(value, store, rows, vectors, i);
        *((uint2 *)rows.out + row * vectors + i) = tsr_e4m3x8(value, inverse);
    }
}

/* Blocks that stay, with rows gridDim.x apart; of neither g nor bias, for which there are no registers. */
template <bool STAGED>
static __device__ __forceinline__ void back_stay(const tsr_swiglu_backward_args *a)
{
    __shared__ uint2 shared[2][TSR_WARP];
    int vectors = (int)a->f / TSR_VECTOR, parity = 0;
    row_store gate = {(uint4 *)memory, (float4 *)memory + 2 * vectors};
    row_store up = {gate.held + vectors, gate.factor + 2 * vectors};
    if (STAGED) {
        stage_factors(gate.factor, a->dz_gate8.column_factor, vectors);
        stage_factors(up.factor, a->dz_up8.column_factor, vectors);
    }
    for (int64_t row = blockIdx.x; row < a->tokens; row += gridDim.x, parity ^= 1) {
        uint2 most = block_max2(shared[parity], back_one<STAGED>(a, row, gate, up));
        back_codes<STAGED>(gate, a->dz_gate8, row, vectors, most.x);
        back_codes<STAGED>(up, a->dz_up8, row, vectors, most.y);
    }
}

static __global__ void __launch_bounds__(STAY_THREADS, 1)
    back_staged(const __grid_constant__ tsr_swiglu_backward_args a)
{
    tsr_kernel_begin();
    back_stay<true>(&a);
}

static __global__ void __launch_bounds__(STAY_THREADS, 1)
    back_wide(const __grid_constant__ tsr_swiglu_backward_args a)
{
    tsr_kernel_begin();
    back_stay<false>(&a);
}

static bool back_whole(const tsr_swiglu_backward_args *a)
{
    int64_t f = a->f;
    return tsr_vectors(f, a->dact, a->z_gate, a->z_up, a->g_gate, a->g_up, a->bias_gate.data,
                       a->bias_up.data, a->dz_gate, a->dz_up) &&
           a->stride % TSR_VECTOR == 0;
}

#define HELD_BYTES   (2 * (int64_t)sizeof(uint16_t)) /* a column, of both */
#define STAGED_BYTES (HELD_BYTES + 2 * (int64_t)sizeof(float))

/* Whether rows go into e4m3 while they are made. */
static bool one_pass(tsr_stream *stream, const tsr_swiglu_backward_args *args)
{
    bool plain = !args->dm_gate && !args->dm_up && !args->g_gate && !args->g_up &&
                 !args->bias_gate.data && !args->bias_up.data;
    plain = plain && args->activation == TSR_SILU && args->stride == args->f;
    return args->tokens && plain && back_whole(args) &&
           tsr_fp8_rows_fit(args->dz_gate8, args->f, args->dtype) &&
           tsr_fp8_rows_fit(args->dz_up8, args->f, args->dtype) &&
           fits(stream, HELD_BYTES * args->f);
}

static tsr_status back_rows(tsr_stream *stream, const tsr_swiglu_backward_args *args)
{
    bool staged = fits(stream, STAGED_BYTES * args->f);
    int64_t bytes = (staged ? STAGED_BYTES : HELD_BYTES) * args->f;
    int64_t threads =
        tsr_blocks(args->f / TSR_VECTOR, BACKWARD_TURNS * TSR_WARP) * (int64_t)TSR_WARP;
    threads = threads < STAY_THREADS ? threads : STAY_THREADS;
    int64_t blocks =
        tsr_device_cuda_properties(tsr_stream_device(stream))->sm_count * (STAY_THREADS / threads);
    blocks = blocks < args->tokens ? blocks : args->tokens;
    void (*kernel)(const tsr_swiglu_backward_args) = staged ? back_staged : back_wide;
    TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, most_shared(stream), "swiglu_backward"));
    TSR_LAUNCH_SHARED(kernel, (unsigned)blocks, (unsigned)threads, (size_t)bytes, stream, *args);
    return tsr_launched("swiglu_backward");
}

extern "C" tsr_status tsr_swiglu_backward_cuda(tsr_stream *stream,
                                               const tsr_swiglu_backward_args *args)
{
    TSR_TRY(tsr_swiglu_backward_check(args));
    tsr_swiglu_backward_args all = *args;
    all.stride = args->stride ? args->stride : args->f;
    args = &all;
    if (one_pass(stream, args))
        return back_rows(stream, args);
    tsr_column_sums sums = {};
    tsr_column_sums_add(&sums, 0, args->dm_gate, args->n_gate, args->f);
    tsr_column_sums_add(&sums, 1, args->dm_up, args->n_up, args->f);
    TSR_TRY(tsr_column_sums_check(&sums, args->partials, "swiglu_backward"));
    tsr_tiling tiling = tsr_tiling_make(args->tokens, tsr_tile_strips(args->f),
                                        tsr_column_sums_wanted(&sums), back_whole(args));
    if (tiling.chunks) {
        if (args->activation == TSR_SILU)
            TSR_TILE_LAUNCH(back_tile, args, tiling, stream);
        else if (args->activation == TSR_GELU_TANH)
            TSR_TILE_LAUNCH(back_gelu_tile, args, tiling, stream);
        else
            TSR_TILE_LAUNCH(back_clamped_tile, args, tiling, stream);
        TSR_TRY(tsr_launched("swiglu_backward"));
    }
    TSR_TRY(tsr_column_sums_finish(&sums, args->partials, tiling.chunks, stream));
    TSR_TRY(tsr_fp8_rows_cuda(stream, args->dz_gate8, args->dz_gate, args->tokens, args->f,
                              args->dtype));
    return tsr_fp8_rows_cuda(stream, args->dz_up8, args->dz_up, args->tokens, args->f, args->dtype);
}
