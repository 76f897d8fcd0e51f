/*
 * kernels/delta_rule.cuh: what the CUDA kernels of the gated delta rule share. Contract and formulas: delta_rule.h;
 * reference: delta_rule_ref.c.
 *
 * Elements   E is what tiles in shared memory and in the workspace hold: BF16, multiplied on tensor cores, for BF16;
 *            float for the other dtypes, multiplied one by one. Sums and the state are fp32 in either case.
 * Columns    Heads have D columns in tiles and workspace, 64 or 128; those beyond dk and dv are 0.
 * Rows       A tile has the 64 tokens of a chunk; those beyond its length are 0 and are never stored.
 * Fragments  Thread 4 g + t of a warp has of each 16 x 8 part of a product rows g and g + 8, columns 2t and 2t + 1
 *            (kernels/mma.cuh); so where E is float.
 * Bits       Every sum has an order that follows from shapes alone. No atomics.
 */
#ifndef TSR_KERNELS_DELTA_RULE_CUH
#define TSR_KERNELS_DELTA_RULE_CUH

#include "kernels/mma.cuh"
#include "kernels/vectors.cuh"

#define CHUNK           TSR_DELTA_CHUNK
#define SLICE           32 /* columns of a state that a block carries from chunk to chunk */
#define SOLVERS         128
#define DIFFERENTIATORS 512

/* A call, and where its workspace is. */
typedef struct {
    tsr_delta_rule_inputs in;
    const int32_t *cu_seqlens;
    int tokens, documents, key_heads, value_heads, dk, dv;
    int chunks; /* at most */
    tsr_dtype dtype;
    bool whole; /* rows can be read in vectors */
    bool train;
    /* Of each chunk its first token and length, 0 where there is none; of each document its first chunk. */
    int32_t *start, *length, *first_chunk;
    float *beta, *sum;      /* [tokens, Hv]: beta, and c of the contract */
    float *q_rstd, *k_rstd; /* [tokens, Hk] */
    void *q, *k;            /* [tokens, Hk, D] of E: normed; q with its scale */
    void *w;                /* [tokens, Hv, D]: (1 + A)^-1 diag(beta exp c) K */
    void *u;                /* [tokens, Hv, D]: (1 + A)^-1 diag(beta) V, then U */
    void *state;            /* [chunks, Hv, D, D]: S before each chunk */
    void *inverse;          /* [chunks, Hv, 64, 64]: (1 + A)^-1 */
    void *du;               /* [tokens, Hv, D] */
    void *d_state;          /* [chunks, Hv, D, D]: the gradient of S after each chunk */
} delta_call;

/* TSR_EUNSUPPORTED: the card gives a block less. */
tsr_status delta_check_shared(tsr_stream *stream, uint64_t bytes);

/* delta_rule_forward.cu, delta_rule_backward.cu: all after what delta_rule.cu prepares. */
tsr_status delta_run_states(tsr_stream *stream, const delta_call *c);
tsr_status delta_run_output(tsr_stream *stream, const delta_call *c, void *o);
tsr_status delta_run_backward(tsr_stream *stream, const delta_call *c,
                              const tsr_delta_rule_backward_args *args);

/* ---- elements ---- */

static __device__ __forceinline__ void put(float *p, float value)
{
    *p = value;
}

static __device__ __forceinline__ void put(__nv_bfloat16 *p, float value)
{
    *p = __float2bfloat16_rn(value);
}

static __device__ __forceinline__ float get(const float *p)
{
    return *p;
}

static __device__ __forceinline__ float get(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}

/* Two elements side by side, the first at an even place. */
static __device__ __forceinline__ void put2(float *p, float first, float second)
{
    *(float2 *)p = make_float2(first, second);
}

static __device__ __forceinline__ void put2(__nv_bfloat16 *p, float first, float second)
{
    *(uint32_t *)p = tsr_pack_bf16(first, second);
}

static __device__ __forceinline__ float2 get2(const float *p)
{
    return *(const float2 *)p;
}

static __device__ __forceinline__ float2 get2(const __nv_bfloat16 *p)
{
    uint32_t pair = *(const uint32_t *)p;
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/* A tile's rows. No bank is met twice by what a warp reads at once: 16 bytes of eight rows in the same column lie in other
 * columns, turned by their row, where rows have 128 bytes or more; narrower rows lie 16 bytes further apart. */
template <typename E, int COLUMNS> struct tile_of {
    static const int granule = 16 / (int)sizeof(E);
    static const bool turned = COLUMNS >= 8 * granule;
    static const int stride = turned ? COLUMNS : COLUMNS + granule;
};

/* row and column are not negative, which the compiler need not find out. */
template <typename E, int COLUMNS>
static __device__ __forceinline__ int tile_at(unsigned row, unsigned column)
{
    const unsigned granule = tile_of<E, COLUMNS>::granule;
    if (tile_of<E, COLUMNS>::turned)
        column ^= row % 8 * granule;
    return (int)(row * tile_of<E, COLUMNS>::stride + column);
}

/* ---- where a block works ---- */

typedef struct {
    int start, length;
} delta_chunk;

static __device__ __forceinline__ delta_chunk chunk_of(const delta_call *c, int index)
{
    delta_chunk chunk = {c->start[index], c->length[index]};
    return chunk;
}

/* beta and what follows from c, of a chunk's tokens; beyond its length as if nothing came. */
typedef struct {
    float beta[CHUNK], sum[CHUNK], grow[CHUNK], left[CHUNK];
} delta_gates;

static __device__ __forceinline__ void load_gates(delta_gates *gates, const delta_call *c,
                                                  delta_chunk chunk, int head)
{
    int i = (int)threadIdx.x;
    if (i >= CHUNK)
        return;
    int64_t last = (int64_t)(chunk.start + chunk.length - 1) * c->value_heads + head;
    int64_t at = (int64_t)(chunk.start + i) * c->value_heads + head;
    bool there = i < chunk.length;
    float end = c->sum[last], sum = there ? c->sum[at] : end;
    gates->beta[i] = there ? c->beta[at] : 0;
    gates->sum[i] = sum;
    gates->grow[i] = expf(sum);
    gates->left[i] = expf(end - sum);
}

/* ---- tiles ---- */

/* Rows of D elements from workspace, `stride` elements apart, in copies that arrive later (tsr_copy_wait). */
template <typename E, int D, int THREADS>
static __device__ __forceinline__ void copy_rows(E *tile, const void *from, int64_t first,
                                                 int64_t stride, int rows, int valid)
{
    const int each = 16 / (int)sizeof(E), across = D / each;
    for (int i = (int)threadIdx.x; i < rows * across; i += THREADS) {
        int row = i / across, column = i % across * each;
        bool there = row < valid;
        const E *p = (const E *)from + first + (there ? row : 0) * stride + column;
        tsr_copy16(tile + tile_at<E, D>(row, column), p, there);
    }
}

/* The heads' columns of a chunk, from [tokens, heads, D]. */
template <typename E, int D, int THREADS>
static __device__ __forceinline__ void copy_head(E *tile, const void *from, delta_chunk chunk,
                                                 int heads, int head)
{
    copy_rows<E, D, THREADS>(tile, from, ((int64_t)chunk.start * heads + head) * D,
                             (int64_t)heads * D, CHUNK, chunk.length);
}

/* Eight elements of a row, as they were read; those that do not exist are 0 in any dtype. */
template <int D>
static __device__ __forceinline__ void put8(float *tile, int row, int column, const tsr_raw8 *raw,
                                            tsr_dtype dtype)
{
    float value[TSR_VECTOR];
    tsr_raw_widen(value, *raw, dtype);
#pragma unroll
    for (int j = 0; j < TSR_VECTOR; j += 2)
        put2(tile + tile_at<float, D>(row, column + j), value[j], value[j + 1]);
}

/* Here dtype is BF16. */
template <int D>
static __device__ __forceinline__ void put8(__nv_bfloat16 *tile, int row, int column,
                                            const tsr_raw8 *raw, tsr_dtype dtype)
{
    (void)dtype;
    *(uint4 *)(tile + tile_at<__nv_bfloat16, D>(row, column)) =
        make_uint4(raw->word[0], raw->word[1], raw->word[2], raw->word[3]);
}

/* `width` columns of a chunk from `first` on, of rows of dtype. */
template <typename E, int D, int THREADS>
static __device__ __forceinline__ void read_rows(E *tile, const void *from, int64_t first,
                                                 int64_t stride, delta_chunk chunk, int width,
                                                 tsr_dtype dtype, bool whole)
{
    const int across = D / TSR_VECTOR;
    for (int i = (int)threadIdx.x; i < CHUNK * across; i += THREADS) {
        int row = i / across, column = i % across * TSR_VECTOR;
        int count = row < chunk.length ? min(max(width - column, 0), TSR_VECTOR) : 0;
        tsr_raw8 raw = {};
        if (count)
            raw = tsr_raw_load(from, (chunk.start + row) * stride + first + column, count, dtype,
                               whole);
        put8<D>(tile, row, column, &raw, dtype);
    }
}

/* ---- products ---- */

/* c[m, n] += sum over `depth` of a[m, k] b[k, n], of the warp's 16 M rows from m0 and 8 N columns from n0 on. a and b are
 * tiles of A and B columns. A_TURNED: a is stored as [k, m]; B_TURNED: b as [n, k]. */
template <int M, int N, bool A_TURNED, bool B_TURNED, int A, int B>
static __device__ __forceinline__ void multiply(float c[M][N][4], const __nv_bfloat16 *a, int m0,
                                                const __nv_bfloat16 *b, int n0, int depth)
{
    int lane = (int)threadIdx.x % TSR_WARP, quarter = lane / 8, row = lane % 8;
#pragma unroll(N <= 4 ? 2 : 1) /* more costs registers, for what lies where */
    for (int k = 0; k < depth; k += 16) {
        uint32_t fa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            int top = m0 + 16 * m;
            if (A_TURNED)
                tsr_ldmatrix_t(fa[m], a + tile_at<__nv_bfloat16, A>(k + quarter / 2 * 8 + row,
                                                                    top + quarter % 2 * 8));
            else
                tsr_ldmatrix(fa[m], a + tile_at<__nv_bfloat16, A>(top + quarter % 2 * 8 + row,
                                                                  k + quarter / 2 * 8));
        }
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            int left = n0 + 8 * n;
            uint32_t fb[4];
            if (B_TURNED)
                tsr_ldmatrix(fb, b + tile_at<__nv_bfloat16, B>(left + quarter / 2 * 8 + row,
                                                               k + quarter % 2 * 8));
            else
                tsr_ldmatrix_t(fb, b + tile_at<__nv_bfloat16, B>(k + quarter % 2 * 8 + row,
                                                                 left + quarter / 2 * 8));
#pragma unroll
            for (int m = 0; m < M; m++) {
                tsr_mma(c[m][n], fa[m], fb[0], fb[1]);
                tsr_mma(c[m][n + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}

/* Where element e of part (m, n) is. */
static __device__ __forceinline__ int row_at(int m0, int m, int e)
{
    return m0 + 16 * m + (int)threadIdx.x % TSR_WARP / 4 + e / 2 * 8;
}

static __device__ __forceinline__ int column_at(int n0, int n, int e)
{
    return n0 + 8 * n + (int)threadIdx.x % 4 * 2 + e % 2;
}

template <int M, int N, bool A_TURNED, bool B_TURNED, int A, int B>
static __device__ __forceinline__ void multiply(float c[M][N][4], const float *a, int m0,
                                                const float *b, int n0, int depth)
{
    for (int k = 0; k < depth; k++)
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int i = row_at(m0, m, e), j = column_at(n0, n, e);
                    float x = a[A_TURNED ? tile_at<float, A>(k, i) : tile_at<float, A>(i, k)];
                    float y = b[B_TURNED ? tile_at<float, B>(j, k) : tile_at<float, B>(k, j)];
                    c[m][n][e] += x * y;
                }
}

template <int M, int N> static __device__ __forceinline__ void clear(float c[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[m][n][e] = 0;
}

template <int M, int N> static __device__ __forceinline__ void scale_all(float c[M][N][4], float by)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[m][n][e] *= by;
}

/* Scores of queries or keys by keys become P, or k.k below the diagonal, with their decay. */
template <int N>
static __device__ __forceinline__ void decay_scores(float c[1][N][4], const delta_gates *gates,
                                                    int m0, int n0, bool diagonal)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = row_at(m0, 0, e), j = column_at(n0, n, e);
            bool seen = diagonal ? j <= i : j < i;
            c[0][n][e] = seen ? c[0][n][e] * expf(gates->sum[i] - gates->sum[j]) : 0;
        }
}

/* A product to a tile. */
template <typename E, int COLUMNS, int M, int N>
static __device__ __forceinline__ void put_tile(E *tile, const float c[M][N][4], int m0, int n0)
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                put2(tile + tile_at<E, COLUMNS>(row_at(m0, m, e), column_at(n0, n, e)), c[m][n][e],
                     c[m][n][e + 1]);
}

/* A product [64, D] to the rows of a head in workspace. */
template <typename E, int N>
static __device__ __forceinline__ void put_head(void *to, const float c[1][N][4], delta_chunk chunk,
                                                int64_t first, int64_t stride, int m0, int n0)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int row = row_at(m0, 0, e);
            if (row < chunk.length)
                put2((E *)to + first + row * stride + column_at(n0, n, e), c[0][n][e],
                     c[0][n][e + 1]);
        }
}

static __device__ __forceinline__ void store2(void *p, int64_t i, float first, float second,
                                              tsr_dtype dtype)
{
    if (dtype == TSR_F32)
        *(float2 *)((float *)p + i) = make_float2(first, second);
    else
        *(uint32_t *)((uint16_t *)p + i) = tsr_pack2(first, second, dtype);
}

/* The same to rows of dtype, of `width` columns; `whole`: which is even, as all that is before. */
template <int N>
static __device__ __forceinline__ void
store_rows(void *to, const float c[1][N][4], delta_chunk chunk, int64_t first, int64_t stride,
           int width, int m0, int n0, tsr_dtype dtype, bool whole)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int row = row_at(m0, 0, e), column = column_at(n0, n, e);
            int64_t at = (chunk.start + row) * stride + first + column;
            if (row >= chunk.length || column >= width)
                continue;
            if (whole) {
                store2(to, at, c[0][n][e], c[0][n][e + 1], dtype);
                continue;
            }
            tsr_store(to, at, c[0][n][e], dtype);
            if (column + 1 < width)
                tsr_store(to, at + 1, c[0][n][e + 1], dtype);
        }
}

/* Kernels of both kinds of elements and both widths: `name`_launch<E, D> launches name<E, D>, whose shared memory is a
 * `memory`<E, D>. */
#define DELTA_LAUNCHER(name, memory, threads)                                                      \
    template <typename E, int D, typename... A>                                                    \
    static tsr_status name##_launch(tsr_stream *stream, dim3 blocks, const A &...args)             \
    {                                                                                              \
        auto kernel = name<E, D>;                                                                  \
        size_t bytes = sizeof(memory<E, D>);                                                       \
        TSR_TRY(delta_check_shared(stream, bytes));                                                \
        TSR_TRY(tsr_allow_shared(stream, (const void *)kernel, (int64_t)bytes, "delta_rule"));     \
        TSR_LAUNCH_SHARED(kernel, blocks, threads, bytes, stream, args...);                        \
        return tsr_launched("delta_rule");                                                         \
    }
#define DELTA_LAUNCH(name, c, ...)                                                                 \
    do {                                                                                           \
        bool wide_ = (c)->dk > 64 || (c)->dv > 64;                                                 \
        if ((c)->dtype == TSR_BF16 && wide_)                                                       \
            TSR_TRY((name##_launch<__nv_bfloat16, 128>(__VA_ARGS__)));                             \
        else if ((c)->dtype == TSR_BF16)                                                           \
            TSR_TRY((name##_launch<__nv_bfloat16, 64>(__VA_ARGS__)));                              \
        else if (wide_)                                                                            \
            TSR_TRY((name##_launch<float, 128>(__VA_ARGS__)));                                     \
        else                                                                                       \
            TSR_TRY((name##_launch<float, 64>(__VA_ARGS__)));                                      \
    } while (0)

#endif
