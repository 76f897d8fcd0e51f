/*
 * head.cu: begin and chunks of contract head.h on a GPU; head_finish.cu ends them.
 *
 * A chunk runs in blocks of up to 2048 label rows: logits = h W^T into fp32 by cuBLASLt, one kernel
 * that turns a row of them into softmax weights where it stands, and acc += weights W by cuBLASLt.
 *
 * weigh_rows  One block of threads a row of up to 16384 logits, which stay in registers between the
 *             maximum and the exponentials: read once, and written once as weights of the compute
 *             dtype over the first part of the row. 6 bytes a logit with bf16 weights: 6.3 GB for
 *             8192 rows of 128256, 1.5 ms beside 24.6 ms of matmuls. Label rows of W are copied in
 *             passing.
 * Reference   max is any reference point of the sums, so it follows the row's maximum only when that
 *             has grown by more than GROWTH: weights then stay below 2^29, and rescaling acc,
 *             32 KB a row, almost never happens after the first chunk. With F16 weights it follows
 *             at once: they stay below 1.
 * Report      spread is summed where the exponentials are made: a multiplication more a logit, and a sum more a row;
 *             rival comes of the row's maximum without the label. Nothing is read again.
 * Smoothing   W's rows are summed in a run's first pass alone; then it costs a product of h with their mean a row.
 * 2048        rows make 8 tiles of 256 by 64 of 256: 7.8 waves of 132 multiprocessors in the first
 *             matmul, 1.9 in the second, 3 % lost, and 134 MB of workspace.
 * W           of another dtype than the matmul's is converted a tile at a time into the workspace.
 */
#include "kernels/cuda.cuh"

#define BLOCK_ROWS     2048 /* label rows */
#define ROW_THREADS    512
#define ROW_VECTORS    8                               /* a thread's, of 4 logits */
#define TILE_VOCAB     (ROW_THREADS * ROW_VECTORS * 4) /* 16384 */
#define LEAST_CONVERT  256                             /* vocabulary rows of a converted tile */
#define GROWTH         20.0f                           /* exp(20) = 4.9e8 */
#define LEAST_EXPONENT (-104.0f)                       /* its exp is 0 */
#define THREADS        256

static int64_t rounded(int64_t count, int64_t step)
{
    return (count + step - 1) / step * step;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- begin ---- */

static __global__ void begin_rows(tsr_head_state state, int64_t rows)
{
    tsr_kernel_begin();
    int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows)
        return;
    state.max[row] = -INFINITY;
    state.sum[row] = 0;
    state.label_logit[row] = NAN;
    if (state.rival) {
        state.rival[row] = -INFINITY;
        state.spread[row] = 0;
    }
    if (state.squares)
        state.squares[row] = 0;
}

extern "C" tsr_status tsr_head_begin_cuda(tsr_stream *stream, const tsr_head_begin_args *args)
{
    TSR_TRY(tsr_head_begin_check(args));
    if (args->rows == 0)
        return TSR_OK;
    cudaStream_t cuda = tsr_stream_cuda(stream);
    size_t bytes = (size_t)(args->rows * args->d) * sizeof(float);
    TSR_LAUNCH(begin_rows, tsr_blocks(args->rows, THREADS), THREADS, stream, args->state,
               args->rows);
    if (args->state.row_parts)
        TSR_TRY(tsr_cuda_status(cudaMemsetAsync(args->state.row_parts, 0,
                                                (size_t)(TSR_HEAD_PARTS * args->d) * sizeof(float),
                                                cuda),
                                "head_begin"));
    if (args->state.acc) {
        TSR_TRY(tsr_cuda_status(cudaMemsetAsync(args->state.acc, 0, bytes, cuda), "head_begin"));
        bytes = bytes / sizeof(float) * tsr_dtype_bytes(args->state.wy_dtype);
        TSR_TRY(tsr_cuda_status(cudaMemsetAsync(args->state.wy, 0, bytes, cuda), "head_begin"));
    }
    return tsr_launched("head_begin");
}

/* ---- chunk: logits to weights ---- */

/* A block of label rows against a tile of the vocabulary. */
typedef struct {
    float *logits; /* [rows, stride]; the weights of a row lie at its beginning */
    int64_t stride;
    tsr_head_state state; /* of the first row */
    const int32_t *labels;
    const void *w; /* the tile, [count, d] of dtype */
    int64_t first, count, d;
    tsr_dtype dtype;
    bool vectors; /* rows of w, acc and wy can be read in vectors */
    float growth;
    float softcap; /* 0: none */
} weigh_args;

static __device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int offset = TSR_WARP / 2; offset; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

/* As tsr_block_sum. */
static __device__ __forceinline__ float block_max(float value, float *shared)
{
    int lane = threadIdx.x % TSR_WARP, warp = threadIdx.x / TSR_WARP;
    value = warp_max(value);
    if (lane == 0)
        shared[warp] = value;
    __syncthreads();
    value = warp_max(lane < (int)blockDim.x / TSR_WARP ? shared[lane] : -INFINITY);
    __syncthreads();
    return value;
}

/* Logits from `at` on, a multiple of 4; beyond the row they weigh nothing. */
static __device__ __forceinline__ void load_logits(float *out, const float *row, int64_t at,
                                                   int64_t count)
{
    if (at + 4 <= count) {
        float4 four = *(const float4 *)(row + at);
        out[0] = four.x, out[1] = four.y, out[2] = four.z, out[3] = four.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = at + i < count ? row[at + i] : -INFINITY;
}

/* The row has room up to a multiple of 4. */
static __device__ __forceinline__ void store_weights(void *row, int64_t at, const float *in,
                                                     tsr_dtype dtype)
{
    if (dtype == TSR_F32) {
        *(float4 *)((float *)row + at) = make_float4(in[0], in[1], in[2], in[3]);
        return;
    }
    uint32_t word[2]; /* tsr_pack2 here makes the compiler spill */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (dtype == TSR_BF16) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(in[2 * i], in[2 * i + 1]);
            word[i] = *(uint32_t *)&pair;
        } else {
            __half2 pair = __floats2half2_rn(in[2 * i], in[2 * i + 1]);
            word[i] = *(uint32_t *)&pair;
        }
    }
    *(uint2 *)((uint16_t *)row + at) = make_uint2(word[0], word[1]);
}

static __device__ void copy_label_row(const weigh_args *a, int64_t row, int64_t label, float slope)
{
    int64_t from = label * a->d, to = row * a->d;
    if (a->vectors) {
        float value[TSR_VECTOR];
        for (int64_t i = (int64_t)threadIdx.x * TSR_VECTOR; i < a->d;
             i += (int64_t)blockDim.x * TSR_VECTOR) {
            tsr_load8(value, a->w, from + i, a->dtype);
#pragma unroll
            for (int j = 0; j < TSR_VECTOR; j++)
                value[j] *= slope;
            tsr_store8(a->state.wy, to + i, value, a->state.wy_dtype);
        }
        return;
    }
    for (int64_t i = threadIdx.x; i < a->d; i += blockDim.x)
        tsr_store(a->state.wy, to + i, slope * tsr_load(a->w, from + i, a->dtype),
                  a->state.wy_dtype);
}

static __device__ void shrink_acc(const weigh_args *a, int64_t row, float factor)
{
    float *acc = a->state.acc + row * a->d;
    if (a->vectors) {
        for (int64_t i = (int64_t)threadIdx.x * 4; i < a->d; i += (int64_t)blockDim.x * 4) {
            float4 *at = (float4 *)(acc + i);
            float4 v = *at;
            *at = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
        }
        return;
    }
    for (int64_t i = threadIdx.x; i < a->d; i += blockDim.x)
        acc[i] *= factor;
}

/* Whether one of a thread's logits before the label is `value`. */
static __device__ __forceinline__ bool is_before(const float *v, int label, float value)
{
    bool found = false;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int place = label - (j * (int)blockDim.x + (int)threadIdx.x) * 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            found = found || (place > i && v[4 * j + i] == value);
    }
    return found;
}

/* Of a thread's logits that of the label, if it is among them. */
static __device__ __forceinline__ void leave_out(float *v, int label)
{
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int place = label - (j * (int)blockDim.x + (int)threadIdx.x) * 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[4 * j + i] = place == i ? -INFINITY : v[4 * j + i];
    }
}

/* Logits that count become capped ones. */
static __device__ __forceinline__ void cap_logits(float *v, float cap)
{
#pragma unroll
    for (int j = 0; j < 4 * ROW_VECTORS; j++)
        v[j] = v[j] > -INFINITY ? cap * tanhf(v[j] / cap) : v[j];
}

/* The slope of a capped logit; of what does not count 0. */
static __device__ __forceinline__ float slope_of(float capped, float cap)
{
    float share = capped / cap;
    return capped > -INFINITY ? 1 - share * share : 0;
}

template <bool CAPPED, bool SQUARES>
static __global__ void __launch_bounds__(ROW_THREADS, 2) weigh_rows(weigh_args a)
{
    tsr_kernel_begin();
    __shared__ float shared[TSR_WARP + 1];
    int64_t row = blockIdx.x;
    float *logits = a.logits + row * a.stride;
    float v[4 * ROW_VECTORS], most = -INFINITY, sum = 0, spread = 0, squares = 0;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++)
        load_logits(v + 4 * j, logits, ((int64_t)j * blockDim.x + threadIdx.x) * 4, a.count);
    /* After the row, for the label is waited for. */
    int64_t label = (int64_t)a.labels[row] - a.first;
    bool here = label >= 0 && label < a.count;
    float old = a.state.max[row], label_logit = here ? logits[label] : 0, slope = 1;
    if (CAPPED) {
        cap_logits(v, a.softcap);
        label_logit = a.softcap * tanhf(label_logit / a.softcap);
        slope = slope_of(label_logit, a.softcap);
    }
    leave_out(v, here ? (int)label : -1);
#pragma unroll
    for (int j = 0; j < 4 * ROW_VECTORS; j++)
        most = fmaxf(most, v[j]);
    most = block_max(most, shared); /* from here on the row may be overwritten */
    /* Of equal logits the first counts: one before the label must be exceeded. */
    bool before = label >= a.count;
    if (here && a.state.rival && most == label_logit)
        before = __syncthreads_or(is_before(v, (int)label, most));
    float max = most > old + a.growth ? most : old, from = max > -INFINITY ? max : 0;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int64_t at = ((int64_t)j * blockDim.x + threadIdx.x) * 4;
        float slopes[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            slopes[i] = CAPPED ? slope_of(v[4 * j + i], a.softcap) : 1;
            float distance = v[4 * j + i] - from;
            v[4 * j + i] = expf(distance);
            spread += v[4 * j + i] * fmaxf(distance, LEAST_EXPONENT);
            if (SQUARES)
                squares += v[4 * j + i] * v[4 * j + i];
        }
        sum += (v[4 * j] + v[4 * j + 1]) + (v[4 * j + 2] + v[4 * j + 3]);
#pragma unroll
        for (int i = 0; CAPPED && i < 4; i++)
            v[4 * j + i] *= slopes[i];
        if (a.state.acc && at < a.count)
            store_weights(logits, at, v + 4 * j, a.dtype);
    }
    sum = tsr_block_sum(sum, shared);
    if (a.state.spread)
        spread = tsr_block_sum(spread, shared);
    if (SQUARES)
        squares = tsr_block_sum(squares, shared);
    float shrink = max != old ? expf(old - max) : 1; /* 0 at first: exp(-inf) */
    if (threadIdx.x == 0 && a.state.rival) {
        float rival = before ? nextafterf(most, INFINITY) : most;
        float moved = a.state.spread[row];
        if (max != old) /* also from -inf, where there is nothing yet */
            moved = shrink > 0 ? shrink * (moved + (old - max) * a.state.sum[row]) : 0;
        a.state.rival[row] = fmaxf(rival, a.state.rival[row]);
        a.state.spread[row] = moved + spread;
    }
    if (threadIdx.x == 0) {
        a.state.max[row] = max;
        a.state.sum[row] = a.state.sum[row] * shrink + sum;
        if (SQUARES)
            a.state.squares[row] = a.state.squares[row] * shrink * shrink + squares;
        if (here)
            a.state.label_logit[row] = label_logit;
    }
    if (a.state.acc && max != old && old != -INFINITY)
        shrink_acc(&a, row, shrink);
    if (a.state.wy && here)
        copy_label_row(&a, row, label, slope);
}

/* ---- chunk: sums of W's rows ---- */

/* As sum_rows of head_ref.c, the same bits: a thread a column, a row of blocks a part. Once a run: microseconds a
 * tile. */
static __global__ void __launch_bounds__(THREADS)
    sum_rows(float *parts, const void *w, int64_t first, int64_t count, int64_t d, tsr_dtype dtype)
{
    tsr_kernel_begin();
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x, part = blockIdx.y;
    int64_t begin = part - first % TSR_HEAD_PARTS;
    if (column >= d)
        return;
    float sum = parts[part * d + column];
    for (int64_t v = begin < 0 ? begin + TSR_HEAD_PARTS : begin; v < count; v += TSR_HEAD_PARTS)
        sum += tsr_load(w, v * d + column, dtype);
    parts[part * d + column] = sum;
}

static tsr_status add_row_parts(tsr_stream *stream, float *parts, const void *w, int64_t first,
                                int64_t count, int64_t d, tsr_dtype dtype)
{
    dim3 grid(tsr_blocks(d, THREADS), TSR_HEAD_PARTS);
    TSR_LAUNCH(sum_rows, grid, THREADS, stream, parts, w, first, count, d, dtype);
    return tsr_launched("head_chunk");
}

/* ---- chunk: tiles ---- */

/* Bytes for a tile of the vocabulary: logits of a block of rows, and W where it is converted. */
static uint64_t tile_bytes(int64_t rows, int64_t d, int64_t vocab, bool convert)
{
    int64_t block = rounded(rows < BLOCK_ROWS ? rows : BLOCK_ROWS, 128);
    uint64_t logits = (uint64_t)block * (uint64_t)rounded(vocab, 64) * sizeof(float);
    uint64_t weight = (uint64_t)rounded(vocab * d * (int64_t)sizeof(float), TSR_ALIGNMENT);
    return convert ? logits + weight : logits;
}

extern "C" uint64_t tsr_head_workspace_bytes_cuda(const tsr_head_bounds *bounds)
{
    int64_t chunk = bounds->chunk;
    if (bounds->rows == 0)
        return 0;
    uint64_t most = tile_bytes(bounds->rows, bounds->d, least(chunk, TILE_VOCAB), false);
    uint64_t small = tile_bytes(bounds->rows, bounds->d, least(chunk, LEAST_CONVERT), true);
    return most > small ? most : small;
}

typedef struct {
    tsr_stream *stream;
    const tsr_head_chunk_args *args;
    const void *w; /* [vocab, d] of the compute dtype */
    int64_t first, vocab;
    float *logits;
} head_tile;

/* Vocabulary rows of a tile: what the shape's workspace holds, whatever was given. */
static int64_t tile_vocab(const tsr_head_chunk_args *args, uint64_t bytes)
{
    if (args->w.dtype == args->dtype)
        return least(args->count, TILE_VOCAB);
    int64_t most = TILE_VOCAB;
    while (most > 64 && tile_bytes(args->rows, args->d, most, true) > bytes)
        most -= 64;
    return least(args->count, most);
}

/* acc += weights W. cuBLASLt's fast kernels want k, here the vocabulary, in 16-byte steps: what is
 * over is multiplied apart. */
static tsr_status add_weighted(const head_tile *tile, int64_t row, int64_t rows)
{
    const tsr_head_chunk_args *args = tile->args;
    int64_t bytes = tsr_dtype_bytes(args->dtype), step = 16 / bytes;
    int64_t stride = rounded(tile->vocab, 64) * (int64_t)sizeof(float) / bytes;
    int64_t even = tile->vocab / step * step, count;
    for (int64_t at = 0; at < tile->vocab; at += count) {
        count = at < even ? even : tile->vocab - at;
        tsr_gemm_args gemm = {.m = rows, .n = args->d, .k = count};
        gemm.a = (const char *)tile->logits + at * bytes;
        gemm.b = (const char *)tile->w + at * args->d * bytes;
        gemm.c = args->state.acc + row * args->d;
        gemm.lda = stride;
        gemm.alpha = gemm.beta = 1;
        gemm.dtype = args->dtype;
        gemm.c_dtype = TSR_F32;
        TSR_TRY(tsr_gemm_cuda(tile->stream, &gemm));
    }
    return TSR_OK;
}

/* Logits of rows that do not count, a thread each. */
static __global__ void __launch_bounds__(THREADS)
    skip_logits(float *logits, int64_t stride, const int32_t *skip, int64_t count, int64_t first,
                int64_t vocab)
{
    tsr_kernel_begin();
    int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    int64_t at = i < count ? skip[i] - first : -1;
    if (at >= 0 && at < vocab)
        logits[(int64_t)blockIdx.x * stride + at] = -INFINITY;
}

static tsr_status run_rows(const head_tile *tile, int64_t row, int64_t rows)
{
    const tsr_head_chunk_args *args = tile->args;
    const tsr_head_state *s = &args->state;
    int64_t d = args->d, bytes = tsr_dtype_bytes(args->dtype), stride = rounded(tile->vocab, 64);
    tsr_gemm_args gemm = {.m = rows, .n = tile->vocab, .k = d};
    gemm.a = (const char *)args->h + row * d * bytes;
    gemm.b = tile->w;
    gemm.c = tile->logits;
    gemm.ldc = stride;
    gemm.trans_b = true;
    gemm.alpha = 1;
    gemm.dtype = args->dtype;
    gemm.c_dtype = TSR_F32;
    TSR_TRY(tsr_gemm_cuda(tile->stream, &gemm));
    if (args->skip_count) {
        dim3 grid((unsigned)rows, tsr_blocks(args->skip_count, THREADS));
        TSR_LAUNCH(skip_logits, grid, THREADS, tile->stream, tile->logits, stride, args->skip,
                   args->skip_count, tile->first, tile->vocab);
    }
    weigh_args weigh = {tile->logits, stride};
    weigh.state.max = s->max + row;
    weigh.state.sum = s->sum + row;
    weigh.state.label_logit = s->label_logit + row;
    if (s->rival) {
        weigh.state.rival = s->rival + row;
        weigh.state.spread = s->spread + row;
    }
    if (s->squares)
        weigh.state.squares = s->squares + row;
    if (s->acc) {
        weigh.state.acc = s->acc + row * d;
        weigh.state.wy = (char *)s->wy + row * d * tsr_dtype_bytes(s->wy_dtype);
        weigh.state.wy_dtype = s->wy_dtype;
    }
    weigh.labels = args->labels + row;
    weigh.w = tile->w;
    weigh.first = tile->first;
    weigh.count = tile->vocab;
    weigh.d = d;
    weigh.dtype = args->dtype;
    weigh.vectors = tsr_vectors(d, tile->w, s->acc, s->wy);
    weigh.softcap = args->softcap;
    weigh.growth = args->dtype == TSR_F16 ? 0 : GROWTH;
    unsigned threads =
        (unsigned)rounded((tile->vocab + 4 * ROW_VECTORS - 1) / (4 * ROW_VECTORS), TSR_WARP);
    if (s->squares)
        TSR_LAUNCH((args->softcap > 0 ? weigh_rows<true, true> : weigh_rows<false, true>),
                   (unsigned)rows, threads, tile->stream, weigh);
    else
        TSR_LAUNCH((args->softcap > 0 ? weigh_rows<true, false> : weigh_rows<false, false>),
                   (unsigned)rows, threads, tile->stream, weigh);
    TSR_TRY(tsr_launched("head_chunk"));
    return s->acc ? add_weighted(tile, row, rows) : TSR_OK;
}

/* Even blocks of label rows. */
static int64_t block_rows(int64_t rows)
{
    int64_t count = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    return rounded((rows + count - 1) / count, 128);
}

extern "C" tsr_status tsr_head_chunk_cuda(tsr_stream *stream, const tsr_head_chunk_args *args)
{
    TSR_TRY(tsr_head_chunk_check(args));
    if (args->rows == 0 || args->count == 0)
        return TSR_OK;
    tsr_head_bounds bounds = {args->rows, args->d, args->count, args->dtype, true};
    uint64_t need = tsr_head_workspace_bytes_cuda(&bounds);
    if (args->workspace_bytes < need)
        return tsr_fail(TSR_EINVAL, "head_chunk: a workspace of %llu bytes, %llu are needed",
                        (unsigned long long)args->workspace_bytes, (unsigned long long)need);
    int64_t step = tile_vocab(args, need), block = block_rows(args->rows);
    uint32_t w_bytes = tsr_dtype_bytes(args->w.dtype);
    head_tile tile = {stream, args};
    for (int64_t at = 0; at < args->count; at += step) {
        tile.first = args->first + at;
        tile.vocab = least(step, args->count - at);
        tile.w = (const char *)args->w.data + at * args->d * w_bytes;
        tile.logits = (float *)args->workspace;
        if (args->w.dtype != args->dtype) {
            tsr_widen_args convert = {args->workspace, tile.w, tile.vocab * args->d, args->w.dtype,
                                      args->dtype};
            TSR_TRY(tsr_widen_cuda(stream, &convert));
            tile.w = args->workspace;
            tile.logits += rounded(step * args->d, TSR_ALIGNMENT / (int64_t)sizeof(float));
        }
        if (args->state.row_parts)
            TSR_TRY(add_row_parts(stream, args->state.row_parts, tile.w, tile.first, tile.vocab,
                                  args->d, args->dtype));
        for (int64_t row = 0; row < args->rows; row += block)
            TSR_TRY(run_rows(&tile, row, least(block, args->rows - row)));
    }
    return TSR_OK;
}

extern "C" int tsr_head_matmuls_cuda(tsr_gemm_args *out, const tsr_head_bounds *bounds)
{
    int64_t bytes = tsr_dtype_bytes(bounds->dtype), step = 16 / bytes;
    int64_t vocab = least(bounds->chunk, TILE_VOCAB), even = vocab / step * step;
    if (bounds->rows == 0 || even == 0)
        return 0;
    int64_t rows = least(block_rows(bounds->rows), bounds->rows);
    tsr_gemm_args logits = {.m = rows, .n = vocab, .k = bounds->d};
    logits.ldc = rounded(vocab, 64);
    logits.trans_b = true;
    tsr_gemm_args sum = {.m = rows, .n = bounds->d, .k = even};
    sum.lda = rounded(vocab, 64) * (int64_t)sizeof(float) / bytes;
    sum.beta = 1;
    logits.alpha = sum.alpha = 1;
    logits.dtype = sum.dtype = bounds->dtype;
    logits.c_dtype = sum.c_dtype = TSR_F32;
    out[0] = logits;
    out[1] = sum;
    return bounds->train ? 2 : 1;
}
