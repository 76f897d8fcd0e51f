/*
 * rows.cu: contract rows.h; reference rows_ref.c, the same bits: whole rows are moved as they are.
 *
 * Split    A block has 8 consecutive rows of `out`, moved in units of 16 bytes (or of an element,
 *          where rows are not on 16 bytes); a thread has a unit of 4 rows in flight.
 * Scatter  The rows of `in` that belong to 8 consecutive tokens lie together, for index increases:
 *          each warp finds the first by a search with 32 probes a step (3 steps up to 32,768 rows),
 *          and every token then knows its row or that it has none.
 * Cost     gather 2 rows d elements, scatter (rows + tokens) d.
 *
 * An index that breaks the contract stops the kernel (and so the device), before anything outside
 * `in` is read.
 */
#include "kernels/cuda.cuh"

#define THREADS 256
#define ROWS    8
#define TURNS   4
#define ALL     0xffffffffu

typedef struct {
    void *out;
    const void *in;
    const int32_t *index;
    int64_t rows, tokens;
    int64_t units;  /* of a row */
    int unit_bytes; /* 16, 4 or 2 */
} row_move;

static __device__ __forceinline__ uint4 load_unit(const row_move *m, int64_t at)
{
    if (m->unit_bytes == 16)
        return ((const uint4 *)m->in)[at];
    uint32_t value =
        m->unit_bytes == 4 ? ((const uint32_t *)m->in)[at] : ((const uint16_t *)m->in)[at];
    return make_uint4(value, 0, 0, 0);
}

static __device__ __forceinline__ void store_unit(const row_move *m, int64_t at, uint4 value)
{
    if (m->unit_bytes == 16)
        ((uint4 *)m->out)[at] = value;
    else if (m->unit_bytes == 4)
        ((uint32_t *)m->out)[at] = value.x;
    else
        ((uint16_t *)m->out)[at] = (uint16_t)value.x;
}

/* Rows [first, first + count) of out from rows source[] of in; -1: zeros. A thread has the same
 * unit of TURNS rows in flight. */
static __device__ __forceinline__ void move_rows(const row_move *m, const int *source,
                                                 int64_t first, int count)
{
    for (int row = 0; row < count; row += TURNS) {
        for (int64_t u = threadIdx.x; u < m->units; u += THREADS) {
            uint4 value[TURNS];
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++) {
                int64_t from = row + turn < count ? source[row + turn] : -1;
                value[turn] =
                    from >= 0 ? load_unit(m, from * m->units + u) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int turn = 0; turn < TURNS; turn++)
                if (row + turn < count)
                    store_unit(m, (first + row + turn) * m->units + u, value[turn]);
        }
    }
}

static __global__ void __launch_bounds__(THREADS) gather(const __grid_constant__ row_move m)
{
    tsr_kernel_begin();
    __shared__ int source[ROWS];
    int64_t first = (int64_t)blockIdx.x * ROWS, i = first + threadIdx.x;
    if (threadIdx.x < ROWS && i < m.rows) {
        int token = m.index[i];
        if (token < 0 || token >= m.tokens || (i > 0 && token <= m.index[i - 1]))
            __trap();
        source[threadIdx.x] = token;
    }
    __syncthreads();
    move_rows(&m, source, first, (int)min((int64_t)ROWS, m.rows - first));
}

/* The first i with index[i] >= token, or rows; the same in all lanes. */
static __device__ __forceinline__ int64_t lower_bound(const int32_t *index, int64_t rows,
                                                      int64_t token)
{
    int lane = threadIdx.x % TSR_WARP;
    int64_t low = 0, high = rows; /* all before low are below, none from high on */
    while (low < high) {
        int64_t step = (high - low + TSR_WARP - 1) / TSR_WARP;
        int64_t probe = low + (lane + 1) * step - 1;
        int below = __popc(__ballot_sync(ALL, probe < high && index[probe] < token));
        high = min(high, low + (below + 1) * step - 1);
        low += below * step;
    }
    return low;
}

static __global__ void __launch_bounds__(THREADS) scatter(const __grid_constant__ row_move m)
{
    tsr_kernel_begin();
    __shared__ int source[ROWS];
    int64_t first = (int64_t)blockIdx.x * ROWS;
    if (threadIdx.x < ROWS)
        source[threadIdx.x] = -1;
    __syncthreads();
    if (threadIdx.x < TSR_WARP) {
        int64_t i = lower_bound(m.index, m.rows, first) + threadIdx.x;
        int64_t token = threadIdx.x < ROWS && i < m.rows ? m.index[i] : first + ROWS;
        if (token < first)
            __trap();
        if (token < first + ROWS)
            source[token - first] = (int)i;
    }
    __syncthreads();
    move_rows(&m, source, first, (int)min((int64_t)ROWS, m.tokens - first));
}

static row_move plan(void *out, const void *in, int64_t d, tsr_dtype dtype)
{
    row_move m = {};
    int64_t bytes = d * tsr_dtype_bytes(dtype);
    bool vectors = bytes % 16 == 0 && (uintptr_t)out % 16 == 0 && (uintptr_t)in % 16 == 0;
    m.out = out;
    m.in = in;
    m.unit_bytes = vectors ? 16 : (int)tsr_dtype_bytes(dtype);
    m.units = bytes / m.unit_bytes;
    return m;
}

extern "C" tsr_status tsr_gather_rows_cuda(tsr_stream *stream, const tsr_gather_rows_args *args)
{
    TSR_TRY(tsr_gather_rows_check(args));
    if (args->rows == 0)
        return TSR_OK;
    row_move m = plan(args->out, args->in, args->d, args->dtype);
    m.index = args->index;
    m.rows = args->rows;
    m.tokens = args->tokens;
    TSR_LAUNCH(gather, tsr_blocks(args->rows, ROWS), THREADS, stream, m);
    return tsr_launched("gather_rows");
}

extern "C" tsr_status tsr_scatter_rows_cuda(tsr_stream *stream, const tsr_scatter_rows_args *args)
{
    TSR_TRY(tsr_scatter_rows_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    row_move m = plan(args->out, args->in, args->d, args->dtype);
    m.index = args->index;
    m.rows = args->rows;
    m.tokens = args->tokens;
    TSR_LAUNCH(scatter, tsr_blocks(args->tokens, ROWS), THREADS, stream, m);
    return tsr_launched("scatter_rows");
}
