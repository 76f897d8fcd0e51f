/*
 * delta_rule_forward.cu: contract delta_rule.h; reference delta_rule_ref.c. What a chunk does to the state, the states, the
 * output; the backward begins with the first two as well.
 *
 * Split    solve: a block has a chunk of a value head. states: a block has 32 columns of the state of a head, in registers,
 *          and walks the chunks of a document. output: as solve.
 * Cost     of a chunk and head, L 64: solve 2 L^2 (dk + dk + dv), states 4 L dk dv, output 2 L dk dv + 2 L^2 (dk + dv)
 *          FLOPs; W, U, T and the states are written and read, 6 L D + D^2 elements.
 */
#include "kernels/delta_rule.cuh"

#define PART   16 /* rows of the triangle that one step inverts */
#define TILE_T tile_of<E, CHUNK>::stride
#define TILE_D tile_of<E, D>::stride
#define TILE_S tile_of<E, SLICE>::stride

/* ---- (1 + A)^-1, W and the first U ---- */

/* The inverse X is a triangle with ones on its diagonal, as 1 + A: below the diagonal of `a` is A, above it X, turned. */
template <typename E, int D> struct solve_memory {
    E k[CHUNK * TILE_D], v[CHUNK * TILE_D];
    union {
        E t[CHUNK * TILE_T];
        float z[PART][CHUNK - PART + 1];
    };
    float a[CHUNK][CHUNK + 1];
    delta_gates gates;
};

/* X of the parts on the diagonal, a column a thread. */
template <typename M> static __device__ __forceinline__ void invert_parts(M *m)
{
    int first = (int)threadIdx.x / PART * PART, j = (int)threadIdx.x;
    if (threadIdx.x >= CHUNK)
        return;
    for (int i = j + 1; i < first + PART; i++) {
        float sum = -m->a[i][j];
        for (int k = j + 1; k < i; k++)
            sum -= m->a[i][k] * m->a[j][k];
        m->a[j][i] = sum;
    }
}

template <typename M> static __device__ __forceinline__ float inverse_at(const M *m, int i, int j)
{
    return j < i ? m->a[j][i] : j == i ? 1.0f : 0.0f;
}

/* The rest of it, a row of parts after the other: X_IJ = -X_II sum over M of A_IM X_MJ. z: that sum. */
template <int D>
static __device__ __forceinline__ void invert_row(solve_memory<float, D> *m, int first)
{
    for (int at = (int)threadIdx.x; at < PART * first; at += SOLVERS) {
        int i = at / first, j = at % first;
        float sum = m->a[first + i][j];
        for (int k = j + 1; k < first; k++)
            sum += m->a[first + i][k] * m->a[j][k];
        m->z[i][j] = sum;
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < PART * first; at += SOLVERS) {
        int i = at / first, j = at % first;
        float sum = m->z[i][j];
        for (int k = 0; k < i; k++)
            sum += m->a[first + k][first + i] * m->z[k][j];
        m->a[j][first + i] = -sum;
    }
}

/* The same in tf32: what becomes of it has eight bits. */
template <int D>
static __device__ __forceinline__ void invert_row(solve_memory<__nv_bfloat16, D> *m, int first)
{
    int lane = (int)threadIdx.x % TSR_WARP, warp = (int)threadIdx.x / TSR_WARP;
    int g = lane / 4, t = lane % 4;
    for (int left = 8 * warp; left < first; left += 8 * (SOLVERS / TSR_WARP)) {
        float c[4] = {0, 0, 0, 0};
        for (int k = left; k < first; k += 8) {
            const uint32_t a[4] = {
                tsr_tf32(m->a[first + g][k + t]), tsr_tf32(m->a[first + g + 8][k + t]),
                tsr_tf32(m->a[first + g][k + t + 4]), tsr_tf32(m->a[first + g + 8][k + t + 4])};
            tsr_mma_tf32(c, a, tsr_tf32(inverse_at(m, k + t, left + g)),
                         tsr_tf32(inverse_at(m, k + t + 4, left + g)));
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            m->z[g + e / 2 * 8][left + 2 * t + e % 2] = c[e];
    }
    __syncthreads();
    for (int left = 8 * warp; left < first; left += 8 * (SOLVERS / TSR_WARP)) {
        float c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k < PART; k += 8) {
            const uint32_t a[4] = {tsr_tf32(inverse_at(m, first + g, first + k + t)),
                                   tsr_tf32(inverse_at(m, first + g + 8, first + k + t)),
                                   tsr_tf32(inverse_at(m, first + g, first + k + t + 4)),
                                   tsr_tf32(inverse_at(m, first + g + 8, first + k + t + 4))};
            tsr_mma_tf32(c, a, tsr_tf32(m->z[k + t][left + g]),
                         tsr_tf32(m->z[k + t + 4][left + g]));
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            m->a[left + 2 * t + e % 2][first + g + e / 2 * 8] = -c[e];
    }
}

template <typename E, int D>
static __device__ __forceinline__ void invert_rest(solve_memory<E, D> *m)
{
    for (int first = PART; first < CHUNK; first += PART) {
        __syncthreads();
        invert_row<D>(m, first);
    }
    __syncthreads();
}

/* X with its columns scaled by beta, and by `grow` where that is wanted, as a tile. */
template <typename E, int D>
static __device__ __forceinline__ void scale_inverse(solve_memory<E, D> *m, bool grow)
{
    for (int at = (int)threadIdx.x; at < CHUNK * CHUNK; at += SOLVERS) {
        int i = at / CHUNK, j = at % CHUNK;
        float scale = m->gates.beta[j] * (grow ? m->gates.grow[j] : 1.0f);
        put(m->t + tile_at<E, CHUNK>(i, j), inverse_at(m, i, j) * scale);
    }
}

/* T times a tile, to the head's rows of `to`. */
template <typename E, int D>
static __device__ __forceinline__ void put_product(void *to, const solve_memory<E, D> *m,
                                                   const E *tile, const delta_call *c,
                                                   delta_chunk chunk, int head)
{
    int m0 = (int)threadIdx.x / TSR_WARP * 16;
    float y[1][D / 8][4];
    clear<1, D / 8>(y);
    multiply<1, D / 8, false, false, CHUNK, D>(y, m->t, m0, tile, 0, CHUNK);
    put_head<E>(to, y, chunk, ((int64_t)chunk.start * c->value_heads + head) * D,
                (int64_t)c->value_heads * D, m0, 0);
}

template <typename E, int D>
static __global__ void __launch_bounds__(SOLVERS) solve(const __grid_constant__ delta_call c)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    solve_memory<E, D> *m = (solve_memory<E, D> *)memory;
    delta_chunk chunk = chunk_of(&c, (int)blockIdx.x);
    int head = (int)blockIdx.y, key_head = head / (c.value_heads / c.key_heads);
    int m0 = (int)threadIdx.x / TSR_WARP * 16;
    int64_t columns = 2 * (int64_t)c.key_heads * c.dk + (int64_t)c.value_heads * c.dv;
    if (chunk.length == 0)
        return;
    copy_head<E, D, SOLVERS>(m->k, c.k, chunk, c.key_heads, key_head);
    tsr_copy_commit();
    load_gates(&m->gates, &c, chunk, head);
    read_rows<E, D, SOLVERS>(m->v, c.in.mixed, 2 * (int64_t)c.key_heads * c.dk + head * c.dv,
                             columns, chunk, c.dv, c.dtype, c.whole);
    tsr_copy_wait();
    __syncthreads();
    float a[1][CHUNK / 8][4];
    clear<1, CHUNK / 8>(a);
    multiply<1, CHUNK / 8, false, true, D, D>(a, m->k, m0, m->k, 0, D);
    decay_scores<CHUNK / 8>(a, &m->gates, m0, 0, false);
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = row_at(m0, 0, e), j = column_at(0, n, e);
            if (j < i)
                m->a[i][j] = m->gates.beta[i] * a[0][n][e];
        }
    __syncthreads();
    invert_parts(m);
    invert_rest<E, D>(m);
    scale_inverse<E, D>(m, false);
    __syncthreads();
    put_product<E, D>(c.u, m, m->v, &c, chunk, head);
    __syncthreads();
    scale_inverse<E, D>(m, true);
    __syncthreads();
    put_product<E, D>(c.w, m, m->k, &c, chunk, head);
    if (!c.train)
        return;
    E *inverse = (E *)c.inverse + ((int64_t)blockIdx.x * c.value_heads + head) * CHUNK * CHUNK;
    for (int at = (int)threadIdx.x; at < CHUNK * CHUNK; at += SOLVERS)
        put(inverse + at, inverse_at(m, at / CHUNK, at % CHUNK));
}

/* ---- the states ---- */

template <typename E, int D> struct states_memory {
    E w[CHUNK * TILE_D], k[CHUNK * TILE_D];
    E s[D * TILE_S], u[CHUNK * TILE_S];
    delta_gates gates;
};

template <typename E, int D>
static __device__ __forceinline__ void copy_w(states_memory<E, D> *m, const delta_call *c,
                                              int index, int head)
{
    copy_head<E, D, SOLVERS>(m->w, c->w, chunk_of(c, index), c->value_heads, head);
    tsr_copy_commit();
}

template <typename E, int D>
static __device__ __forceinline__ void copy_k(states_memory<E, D> *m, const delta_call *c,
                                              int index, int head)
{
    copy_head<E, D, SOLVERS>(m->k, c->k, chunk_of(c, index), c->key_heads,
                             head / (c->value_heads / c->key_heads));
    tsr_copy_commit();
}

/* A slice of a state, from shared memory to its place. */
template <typename E, int D>
static __device__ __forceinline__ void store_state(void *to, const E *s, int64_t index, int column)
{
    const int each = 16 / (int)sizeof(E), across = SLICE / each;
    E *out = (E *)to + index * D * D + column;
    for (int i = (int)threadIdx.x; i < D * across; i += SOLVERS) {
        int row = i / across, at = i % across * each;
        *(uint4 *)(out + row * D + at) = *(const uint4 *)(s + tile_at<E, SLICE>(row, at));
    }
}

/* U = U - W S in workspace, of 32 columns; scaled by what is left of it at the end of the chunk, as a tile. */
template <typename E, int D>
static __device__ __forceinline__ void correct(states_memory<E, D> *m, const delta_call *c,
                                               delta_chunk chunk, int head, int column)
{
    int m0 = (int)threadIdx.x / TSR_WARP * 16;
    float y[1][SLICE / 8][4];
    clear<1, SLICE / 8>(y);
    multiply<1, SLICE / 8, false, false, D, SLICE>(y, m->w, m0, m->s, 0, D);
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int i = row_at(m0, 0, e), j = column_at(0, n, e);
            float2 u = make_float2(0, 0);
            if (i < chunk.length) {
                E *at = (E *)c->u + ((int64_t)(chunk.start + i) * c->value_heads + head) * D +
                        column + j;
                u = get2(at);
                u.x -= y[0][n][e], u.y -= y[0][n][e + 1];
                put2(at, u.x, u.y);
            }
            float left = m->gates.left[i];
            put2(m->u + tile_at<E, SLICE>(i, j), left * u.x, left * u.y);
        }
}

/* Tiles of the next chunk are asked for as soon as nobody reads those of this one. */
template <typename E, int D>
static __global__ void __launch_bounds__(SOLVERS) states(const __grid_constant__ delta_call c)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    states_memory<E, D> *m = (states_memory<E, D> *)memory;
    const int parts = D / 64; /* of 16 rows, of a warp */
    int head = (int)blockIdx.y, column = (int)blockIdx.z * SLICE;
    int first = c.first_chunk[blockIdx.x], end = c.first_chunk[blockIdx.x + 1];
    int m0 = (int)threadIdx.x / TSR_WARP * 16 * parts;
    float s[parts][SLICE / 8][4];
    clear<parts, SLICE / 8>(s);
    if (first == end)
        return;
    copy_w<E, D>(m, &c, first, head);
    copy_k<E, D>(m, &c, first, head);
    for (int index = first; index < end; index++) {
        delta_chunk chunk = chunk_of(&c, index);
        put_tile<E, SLICE, parts, SLICE / 8>(m->s, s, m0, 0);
        load_gates(&m->gates, &c, chunk, head);
        tsr_copy_wait_but_one();
        __syncthreads();
        store_state<E, D>(c.state, m->s, (int64_t)index * c.value_heads + head, column);
        correct<E, D>(m, &c, chunk, head, column);
        float keep = m->gates.grow[CHUNK - 1];
        tsr_copy_wait();
        __syncthreads();
        if (index + 1 < end)
            copy_w<E, D>(m, &c, index + 1, head);
        scale_all<parts, SLICE / 8>(s, keep);
        multiply<parts, SLICE / 8, true, false, D, SLICE>(s, m->k, m0, m->u, 0, CHUNK);
        __syncthreads();
        if (index + 1 < end)
            copy_k<E, D>(m, &c, index + 1, head);
    }
}

/* ---- the output ---- */

template <typename E, int D> struct output_memory {
    E q[CHUNK * TILE_D], k[CHUNK * TILE_D], s[D * TILE_D], p[CHUNK * TILE_T];
    delta_gates gates;
};

template <typename E, int D>
static __global__ void __launch_bounds__(SOLVERS)
    output(const __grid_constant__ delta_call c, void *o)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    output_memory<E, D> *m = (output_memory<E, D> *)memory;
    delta_chunk chunk = chunk_of(&c, (int)blockIdx.x);
    int head = (int)blockIdx.y, key_head = head / (c.value_heads / c.key_heads);
    int m0 = (int)threadIdx.x / TSR_WARP * 16;
    if (chunk.length == 0)
        return;
    copy_head<E, D, SOLVERS>(m->q, c.q, chunk, c.key_heads, key_head);
    copy_head<E, D, SOLVERS>(m->k, c.k, chunk, c.key_heads, key_head);
    tsr_copy_commit();
    copy_rows<E, D, SOLVERS>(m->s, c.state, ((int64_t)blockIdx.x * c.value_heads + head) * D * D, D,
                             D, D);
    tsr_copy_commit();
    load_gates(&m->gates, &c, chunk, head);
    tsr_copy_wait_but_one();
    __syncthreads();
    float p[1][CHUNK / 8][4], y[1][D / 8][4];
    clear<1, CHUNK / 8>(p);
    multiply<1, CHUNK / 8, false, true, D, D>(p, m->q, m0, m->k, 0, D);
    decay_scores<CHUNK / 8>(p, &m->gates, m0, 0, true);
    put_tile<E, CHUNK, 1, CHUNK / 8>(m->p, p, m0, 0);
    tsr_copy_wait();
    __syncthreads(); /* k is free */
    copy_head<E, D, SOLVERS>(m->k, c.u, chunk, c.value_heads, head);
    tsr_copy_commit();
    clear<1, D / 8>(y);
    multiply<1, D / 8, false, false, D, D>(y, m->q, m0, m->s, 0, D);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[0][n][e] *= m->gates.grow[row_at(m0, 0, e)];
    tsr_copy_wait();
    __syncthreads();
    multiply<1, D / 8, false, false, CHUNK, D>(y, m->p, m0, m->k, 0, CHUNK);
    store_rows(o, y, chunk, head * (int64_t)c.dv, (int64_t)c.value_heads * c.dv, c.dv, m0, 0,
               c.dtype, c.whole);
}

/* ---- launches ---- */

DELTA_LAUNCHER(solve, solve_memory, SOLVERS)
DELTA_LAUNCHER(states, states_memory, SOLVERS)
DELTA_LAUNCHER(output, output_memory, SOLVERS)

tsr_status delta_run_states(tsr_stream *stream, const delta_call *c)
{
    unsigned heads = (unsigned)c->value_heads,
             slices = (c->dk > 64 || c->dv > 64 ? 128 : 64) / SLICE;
    DELTA_LAUNCH(solve, c, stream, dim3((unsigned)c->chunks, heads), *c);
    DELTA_LAUNCH(states, c, stream, dim3((unsigned)c->documents, heads, slices), *c);
    return TSR_OK;
}

tsr_status delta_run_output(tsr_stream *stream, const delta_call *c, void *o)
{
    DELTA_LAUNCH(output, c, stream, dim3((unsigned)c->chunks, (unsigned)c->value_heads), *c, o);
    return TSR_OK;
}
