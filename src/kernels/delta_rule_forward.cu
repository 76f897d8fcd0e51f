/*
 * delta_rule_forward.cu: contract delta_rule.h; reference delta_rule_ref.c. What a chunk does to the state, the states, the
 * output; the backward begins with the first two as well.
 *
 * Split    solve: a block has a chunk of a value head. states: a block has 32 columns of the state of a head, in registers,
 *          and walks the chunks of a document; the next chunk's tiles are copied meanwhile. output: as solve.
 * Cost     of a chunk and head, L 64: solve 2 L^2 (dk + dk + dv), states 4 L dk dv, output 2 L dk dv + 2 L^2 (dk + dv)
 *          FLOPs; W, U, T and the states are written and read, 6 L D + D^2 elements.
 */
#include "kernels/delta_rule.cuh"

#define PART   16 /* rows of the triangle that one step inverts */
#define TILE_T tile_of<E, CHUNK>::stride
#define TILE_D tile_of<E, D>::stride
#define TILE_S tile_of<E, SLICE>::stride

/* ---- (1 + A)^-1, W and the first U ---- */

template <typename E, int D> struct solve_memory {
    E k[CHUNK * TILE_D], v[CHUNK * TILE_D], t[CHUNK * TILE_T];
    float a[CHUNK][CHUNK + 1], x[CHUNK][CHUNK + 1], z[PART][CHUNK - PART + 1];
    delta_gates gates;
};

/* x = (1 + a)^-1 of the parts on the diagonal, a column a thread. */
template <typename M> static __device__ __forceinline__ void invert_parts(M *m)
{
    int first = (int)threadIdx.x / PART * PART, j = (int)threadIdx.x % PART;
    if (threadIdx.x >= CHUNK)
        return;
    for (int i = 0; i < PART; i++) {
        float sum = i == j ? 1.0f : 0.0f;
        for (int k = j; k < i; k++)
            sum -= m->a[first + i][first + k] * m->x[first + k][first + j];
        m->x[first + i][first + j] = i < j ? 0.0f : sum;
    }
}

/* The rest of x, a row of parts after the other: x_IJ = -x_II sum over M of a_IM x_MJ. */
template <typename M> static __device__ __forceinline__ void invert_rest(M *m)
{
    for (int first = PART; first < CHUNK; first += PART) {
        __syncthreads();
        for (int at = (int)threadIdx.x; at < PART * first; at += SOLVERS) {
            int i = at / first, j = at % first;
            float sum = 0;
            for (int k = j / PART * PART; k < first; k++)
                sum += m->a[first + i][k] * m->x[k][j];
            m->z[i][j] = sum;
        }
        __syncthreads();
        for (int at = (int)threadIdx.x; at < PART * first; at += SOLVERS) {
            int i = at / first, j = at % first;
            float sum = 0;
            for (int k = 0; k <= i; k++)
                sum -= m->x[first + i][first + k] * m->z[k][j];
            m->x[first + i][j] = sum;
        }
    }
    __syncthreads();
}

/* x with its columns scaled by beta, and by `grow` where that is wanted, as a tile. */
template <typename E, int D>
static __device__ __forceinline__ void scale_inverse(solve_memory<E, D> *m, bool grow)
{
    for (int at = (int)threadIdx.x; at < CHUNK * CHUNK; at += SOLVERS) {
        int i = at / CHUNK, j = at % CHUNK;
        float scale = m->gates.beta[j] * (grow ? m->gates.grow[j] : 1.0f);
        put(m->t + i * TILE_T + j, j <= i ? m->x[i][j] * scale : 0.0f);
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
    multiply<1, D / 8, false, false>(y, m->t, TILE_T, m0, tile, TILE_D, 0, CHUNK);
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
    multiply<1, CHUNK / 8, false, true>(a, m->k, TILE_D, m0, m->k, TILE_D, 0, D);
    decay_scores<CHUNK / 8>(a, &m->gates, m0, 0, false);
#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = row_at(m0, 0, e);
            m->a[i][column_at(0, n, e)] = m->gates.beta[i] * a[0][n][e];
        }
    __syncthreads();
    invert_parts(m);
    invert_rest(m);
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
        put(inverse + at, at % CHUNK <= at / CHUNK ? m->x[at / CHUNK][at % CHUNK] : 0.0f);
}

/* ---- the states ---- */

template <typename E, int D> struct states_memory {
    E w[2][CHUNK * TILE_D], k[2][CHUNK * TILE_D];
    E s[D * TILE_S], u[CHUNK * TILE_S];
    delta_gates gates;
};

template <typename E, int D>
static __device__ __forceinline__ void copy_chunk(states_memory<E, D> *m, int turn,
                                                  const delta_call *c, int index, int head)
{
    delta_chunk chunk = chunk_of(c, index);
    copy_head<E, D, SOLVERS>(m->w[turn], c->w, chunk, c->value_heads, head);
    copy_head<E, D, SOLVERS>(m->k[turn], c->k, chunk, c->key_heads,
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
        *(uint4 *)(out + row * D + at) = *(const uint4 *)(s + row * TILE_S + at);
    }
}

/* U = U - W S in workspace, of 32 columns; scaled by what is left of it at the end of the chunk, as a tile. */
template <typename E, int D>
static __device__ __forceinline__ void correct(states_memory<E, D> *m, const E *w,
                                               const delta_call *c, delta_chunk chunk, int head,
                                               int column)
{
    int m0 = (int)threadIdx.x / TSR_WARP * 16;
    float y[1][SLICE / 8][4];
    clear<1, SLICE / 8>(y);
    multiply<1, SLICE / 8, false, false>(y, w, TILE_D, m0, m->s, TILE_S, 0, D);
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = row_at(m0, 0, e), j = column_at(0, n, e);
            float u = 0;
            if (i < chunk.length) {
                E *at = (E *)c->u + ((int64_t)(chunk.start + i) * c->value_heads + head) * D +
                        column + j;
                u = get(at) - y[0][n][e];
                put(at, u);
            }
            put(m->u + i * TILE_S + j, m->gates.left[i] * u);
        }
}

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
    if (first < end)
        copy_chunk<E, D>(m, 0, &c, first, head);
    for (int index = first; index < end; index++) {
        int turn = (index - first) % 2;
        delta_chunk chunk = chunk_of(&c, index);
        put_tile<E, parts, SLICE / 8>(m->s, TILE_S, s, m0, 0);
        load_gates(&m->gates, &c, chunk, head);
        if (index + 1 < end) {
            copy_chunk<E, D>(m, 1 - turn, &c, index + 1, head);
            tsr_copy_wait_but_one();
        } else {
            tsr_copy_wait();
        }
        __syncthreads();
        store_state<E, D>(c.state, m->s, (int64_t)index * c.value_heads + head, column);
        correct<E, D>(m, m->w[turn], &c, chunk, head, column);
        float keep = m->gates.grow[CHUNK - 1];
        __syncthreads();
#pragma unroll
        for (int p = 0; p < parts; p++)
#pragma unroll
            for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[p][n][e] *= keep;
        multiply<parts, SLICE / 8, true, false>(s, m->k[turn], TILE_D, m0, m->u, TILE_S, 0, CHUNK);
        __syncthreads();
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
    multiply<1, CHUNK / 8, false, true>(p, m->q, TILE_D, m0, m->k, TILE_D, 0, D);
    decay_scores<CHUNK / 8>(p, &m->gates, m0, 0, true);
    put_tile<E, 1, CHUNK / 8>(m->p, TILE_T, p, m0, 0);
    tsr_copy_wait();
    __syncthreads(); /* k is free */
    copy_head<E, D, SOLVERS>(m->k, c.u, chunk, c.value_heads, head);
    tsr_copy_commit();
    clear<1, D / 8>(y);
    multiply<1, D / 8, false, false>(y, m->q, TILE_D, m0, m->s, TILE_D, 0, D);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[0][n][e] *= m->gates.grow[row_at(m0, 0, e)];
    tsr_copy_wait();
    __syncthreads();
    multiply<1, D / 8, false, false>(y, m->p, TILE_T, m0, m->k, TILE_D, 0, CHUNK);
    store_rows(o, y, chunk, head * (int64_t)c.dv, (int64_t)c.value_heads * c.dv, c.dv, m0, 0,
               c.dtype);
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
