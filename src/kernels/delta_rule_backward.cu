/*
 * delta_rule_backward.cu: contract delta_rule.h; formulas and reference delta_rule_ref.c. After solve and states of
 * delta_rule_forward.cu.
 *
 *     local      P^T dO of each chunk, the part of dU that needs no other chunk
 *     walk       from the last chunk of a document to its first: dU = P^T dO + K' D, and D becomes
 *                grow_last D + (diag(grow) Q)^T dO - W^T dU
 *     finish     everything else of a chunk, of all value heads of a key head
 *
 * dbeta_i is Y_i.U_i / beta_i, since beta_i rest_i = U_i + sum over j of A_ij U_j: so the gradient of g_b b is Y_i.U_i (1 - beta_i).
 *
 * Split    local: a block has a chunk of a value head. walk: a block has 32 columns of D of a head, in registers. finish: a
 *          block has a chunk of a key head, so that no gradient of q and k is added up in memory.
 * Cost     of a chunk and value head, L 64: local 2 L^2 (dk + dv), walk 6 L dk dv, finish 6 L dk dv + 2 L^2 (5 dk + 2 dv) FLOPs.
 */
#include "kernels/delta_rule.cuh"

#define TILE_T tile_of<E, CHUNK>::stride
#define TILE_D tile_of<E, D>::stride
#define TILE_S tile_of<E, SLICE>::stride

/* ---- dU within a chunk ---- */

template <typename E, int D> struct local_memory {
    E q[CHUNK * TILE_D], k[CHUNK * TILE_D], d_o[CHUNK * TILE_D], p[CHUNK * TILE_T];
    delta_gates gates;
};

template <typename E, int D>
static __global__ void __launch_bounds__(SOLVERS)
    local(const __grid_constant__ delta_call c, const void *d_o)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    local_memory<E, D> *m = (local_memory<E, D> *)memory;
    delta_chunk chunk = chunk_of(&c, (int)blockIdx.x);
    int head = (int)blockIdx.y, key_head = head / (c.value_heads / c.key_heads);
    int m0 = (int)threadIdx.x / TSR_WARP * 16;
    if (chunk.length == 0)
        return;
    copy_head<E, D, SOLVERS>(m->q, c.q, chunk, c.key_heads, key_head);
    copy_head<E, D, SOLVERS>(m->k, c.k, chunk, c.key_heads, key_head);
    tsr_copy_commit();
    load_gates(&m->gates, &c, chunk, head);
    read_rows<E, D, SOLVERS>(m->d_o, d_o, (int64_t)head * c.dv, (int64_t)c.value_heads * c.dv,
                             chunk, c.dv, c.dtype, c.whole);
    tsr_copy_wait();
    __syncthreads();
    float p[1][CHUNK / 8][4], y[1][D / 8][4];
    clear<1, CHUNK / 8>(p);
    multiply<1, CHUNK / 8, false, true>(p, m->q, TILE_D, m0, m->k, TILE_D, 0, D);
    decay_scores<CHUNK / 8>(p, &m->gates, m0, 0, true);
    put_tile<E, 1, CHUNK / 8>(m->p, TILE_T, p, m0, 0);
    __syncthreads();
    clear<1, D / 8>(y);
    multiply<1, D / 8, true, false>(y, m->p, TILE_T, m0, m->d_o, TILE_D, 0, CHUNK);
    put_head<E>(c.du, y, chunk, ((int64_t)chunk.start * c.value_heads + head) * D,
                (int64_t)c.value_heads * D, m0, 0);
}

/* ---- D from chunk to chunk ---- */

template <typename E, int D> struct walk_memory {
    E q[CHUNK * TILE_D], k[CHUNK * TILE_D], w[CHUNK * TILE_D];
    E d[D * TILE_S], du[CHUNK * TILE_S], d_o[CHUNK * TILE_S];
    delta_gates gates;
};

/* dU of 32 columns, in workspace, and less than 0 as a tile; with it a tile of diag(grow) dO. */
template <typename E, int D>
static __device__ __forceinline__ void add_later(walk_memory<E, D> *m, const delta_call *c,
                                                 delta_chunk chunk, int head, int column,
                                                 const void *d_o)
{
    int m0 = (int)threadIdx.x / TSR_WARP * 16;
    float y[1][SLICE / 8][4];
    clear<1, SLICE / 8>(y);
    multiply<1, SLICE / 8, false, false>(y, m->k, TILE_D, m0, m->d, TILE_S, 0, D);
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int i = row_at(m0, 0, e), j = column_at(0, n, e);
            float du = 0, out = 0;
            if (i < chunk.length) {
                int64_t row = (int64_t)(chunk.start + i) * c->value_heads + head;
                E *at = (E *)c->du + row * D + column + j;
                du = get(at) + m->gates.left[i] * y[0][n][e];
                put(at, du);
                if (column + j < c->dv)
                    out = tsr_load(d_o, row * c->dv + column + j, c->dtype);
            }
            put(m->du + i * TILE_S + j, -du);
            put(m->d_o + i * TILE_S + j, m->gates.grow[i] * out);
        }
}

template <typename E, int D>
static __device__ __forceinline__ void store_slice(void *to, const E *d, int64_t index, int column)
{
    const int each = 16 / (int)sizeof(E), across = SLICE / each;
    E *out = (E *)to + index * D * D + column;
    for (int i = (int)threadIdx.x; i < D * across; i += SOLVERS) {
        int row = i / across, at = i % across * each;
        *(uint4 *)(out + row * D + at) = *(const uint4 *)(d + row * TILE_S + at);
    }
}

template <typename E, int D>
static __global__ void __launch_bounds__(SOLVERS)
    walk(const __grid_constant__ delta_call c, const void *d_o)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    walk_memory<E, D> *m = (walk_memory<E, D> *)memory;
    const int parts = D / 64;
    int head = (int)blockIdx.y, column = (int)blockIdx.z * SLICE;
    int key_head = head / (c.value_heads / c.key_heads);
    int first = c.first_chunk[blockIdx.x], end = c.first_chunk[blockIdx.x + 1];
    int m0 = (int)threadIdx.x / TSR_WARP * 16 * parts;
    float d[parts][SLICE / 8][4];
    clear<parts, SLICE / 8>(d);
    for (int index = end - 1; index >= first; index--) {
        delta_chunk chunk = chunk_of(&c, index);
        copy_head<E, D, SOLVERS>(m->k, c.k, chunk, c.key_heads, key_head);
        tsr_copy_commit();
        copy_head<E, D, SOLVERS>(m->q, c.q, chunk, c.key_heads, key_head);
        copy_head<E, D, SOLVERS>(m->w, c.w, chunk, c.value_heads, head);
        tsr_copy_commit();
        put_tile<E, parts, SLICE / 8>(m->d, TILE_S, d, m0, 0);
        load_gates(&m->gates, &c, chunk, head);
        tsr_copy_wait_but_one();
        __syncthreads();
        store_slice<E, D>(c.d_state, m->d, (int64_t)index * c.value_heads + head, column);
        add_later<E, D>(m, &c, chunk, head, column, d_o);
        float keep = m->gates.grow[CHUNK - 1];
        tsr_copy_wait();
        __syncthreads();
#pragma unroll
        for (int p = 0; p < parts; p++)
#pragma unroll
            for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    d[p][n][e] *= keep;
        multiply<parts, SLICE / 8, true, false>(d, m->q, TILE_D, m0, m->d_o, TILE_S, 0, CHUNK);
        multiply<parts, SLICE / 8, true, false>(d, m->w, TILE_D, m0, m->du, TILE_S, 0, CHUNK);
        __syncthreads();
    }
}

/* ---- the gradients ---- */

template <typename E, int D> struct finish_memory {
    E one[CHUNK * TILE_D]; /* dO, then K */
    E two[CHUNK * TILE_D]; /* dU, Y, then Q */
    E u[CHUNK * TILE_D];
    E state[D * TILE_D];  /* S, then D */
    E da[CHUNK * TILE_T]; /* (1 + A)^-1, then dA_ij beta_i E_ij */
    E dp[CHUNK * TILE_T]; /* dP_ij E_ij */
    delta_gates gates;
    float half[2][CHUNK]; /* sums over half of the columns of a row */
    float warp[TSR_WARP + 1];
};

/* What a thread is of: 16 rows, and half of the columns. */
typedef struct {
    int m0, side;
} finish_part;

static __device__ __forceinline__ finish_part part_of(void)
{
    int warp = (int)threadIdx.x / TSR_WARP;
    finish_part part = {warp / 2 * 16, warp % 2};
    return part;
}

/* Of two rows of a thread its sums, over the quad, to `half`. */
static __device__ __forceinline__ void put_halves(float half[2][CHUNK], finish_part part,
                                                  float sum[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
        if (threadIdx.x % 4 == 0)
            half[part.side][part.m0 + (int)threadIdx.x % TSR_WARP / 4 + 8 * i] = sum[i];
    }
}

/* Adds to the sums of rows the products with a tile. */
template <typename E, int N>
static __device__ __forceinline__ void add_dots(float sum[2], const float c[1][N][4], const E *tile,
                                                int stride, finish_part part, float sign)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e / 2] +=
                sign * c[0][n][e] *
                get(tile + row_at(part.m0, 0, e) * stride + column_at(part.side * N * 8, n, e));
}

/* Y, as a tile; dV, stored; the gradient of g_b b. */
template <typename E, int D>
static __device__ __forceinline__ void back_solve(finish_memory<E, D> *m, const delta_call *c,
                                                  delta_chunk chunk, int head,
                                                  const tsr_delta_rule_backward_args &a)
{
    const int across = D / 16;
    finish_part part = part_of();
    int64_t keys = 2 * (int64_t)c->key_heads * c->dk;
    float y[1][across][4], sum[2] = {0, 0};
    clear<1, across>(y);
    multiply<1, across, true, false>(y, m->da, TILE_T, part.m0, m->two, TILE_D, part.side * D / 2,
                                     CHUNK);
    add_dots<E, across>(sum, y, m->u, TILE_D, part, 1);
    put_halves(m->half, part, sum);
    __syncthreads(); /* dU and the inverse are read */
    put_tile<E, 1, across>(m->two, TILE_D, y, part.m0, part.side * D / 2);
#pragma unroll
    for (int n = 0; n < across; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[0][n][e] *= m->gates.beta[row_at(part.m0, 0, e)];
    store_rows(a.d_mixed, y, chunk, keys + head * c->dv, keys + (int64_t)c->value_heads * c->dv,
               c->dv, part.m0, part.side * D / 2, c->dtype);
    int i = (int)threadIdx.x;
    if (i < chunk.length)
        tsr_store(a.d_b, (int64_t)(chunk.start + i) * c->value_heads + head,
                  (m->half[0][i] + m->half[1][i]) * (1.0f - m->gates.beta[i]), c->dtype);
    __syncthreads();
}

/* dA_ij beta_i E_ij below the diagonal and dP_ij E_ij, as tiles. */
template <typename E, int D>
static __device__ __forceinline__ void back_scores(finish_memory<E, D> *m)
{
    const int across = CHUNK / 16;
    finish_part part = part_of();
    int n0 = part.side * CHUNK / 2;
    float x[1][across][4];
    clear<1, across>(x);
    multiply<1, across, false, true>(x, m->two, TILE_D, part.m0, m->u, TILE_D, n0, D);
    decay_scores<across>(x, &m->gates, part.m0, n0, false);
#pragma unroll
    for (int n = 0; n < across; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[0][n][e] *= -m->gates.beta[row_at(part.m0, 0, e)];
    put_tile<E, 1, across>(m->da, TILE_T, x, part.m0, n0);
    clear<1, across>(x);
    multiply<1, across, false, true>(x, m->one, TILE_D, part.m0, m->u, TILE_D, n0, D);
    decay_scores<across>(x, &m->gates, part.m0, n0, true);
    put_tile<E, 1, across>(m->dp, TILE_T, x, part.m0, n0);
}

/* D in the place of S; returns the thread's part of S.D. */
template <typename E, int D>
static __device__ __forceinline__ float replace_state(E *state, const void *d, int64_t index)
{
    const E *from = (const E *)d + index * D * D;
    const int each = 16 / (int)sizeof(E), across = D / each;
    float sum = 0;
    for (int i = (int)threadIdx.x; i < D * across; i += DIFFERENTIATORS) {
        E *to = state + i / across * TILE_D + i % across * each, in[each];
        *(uint4 *)in = *(const uint4 *)(from + i * each);
#pragma unroll
        for (int j = 0; j < each; j++)
            sum += get(to + j) * get(in + j);
        *(uint4 *)to = *(const uint4 *)in;
    }
    return sum;
}

/* Scales each row of a product. */
template <int N>
static __device__ __forceinline__ void scale_rows(float c[1][N][4], const float *by, int m0,
                                                  float sign)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[0][n][e] *= sign * by[row_at(m0, 0, e)];
}

/* The gradient of g_a a: dc in halves, summed from the end of the chunk, `last` beside. One warp. */
template <typename E, int D>
static __device__ __forceinline__ void back_decay(const finish_memory<E, D> *m, const delta_call *c,
                                                  delta_chunk chunk, int head, float last,
                                                  const tsr_delta_rule_backward_args &a)
{
    int lane = (int)threadIdx.x;
    if (lane >= TSR_WARP)
        return;
    /* Lane l has tokens 62 - 2 l and 63 - 2 l; lanes before it those behind. */
    int low = CHUNK - 2 - 2 * lane;
    float own[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        own[i] = low + i < chunk.length ? m->half[0][low + i] + m->half[1][low + i] : 0;
    float before = own[0] + own[1];
#pragma unroll
    for (int step = 1; step < TSR_WARP; step *= 2) {
        float other = __shfl_up_sync(0xffffffffu, before, step);
        before += lane >= step ? other : 0;
    }
    before += last - (own[0] + own[1]);
    float rate = -expf(tsr_load(c->in.a_log.data, head, c->in.a_log.dtype));
    float shift = tsr_load(c->in.dt_bias.data, head, c->in.dt_bias.dtype);
    float gain = c->in.g_a ? c->in.g_a[head] : 1.0f;
#pragma unroll
    for (int i = 1; i >= 0; i--) {
        before += own[i];
        if (low + i >= chunk.length)
            continue;
        int64_t at = (int64_t)(chunk.start + low + i) * c->value_heads + head;
        float x = gain * tsr_load(c->in.a, at, c->dtype) + shift;
        tsr_store(a.d_a, at, before * rate / (1.0f + expf(-x)), c->dtype);
    }
}

/* The gradients of a key head's normed queries or keys become those of what they are normed from. */
template <typename E, int D>
static __device__ __forceinline__ void
back_norm(finish_memory<E, D> *m, const delta_call *c, delta_chunk chunk, const E *tile,
          float d[1][D / 16][4], const float *rstd, int key_head, float scale, int64_t column,
          void *d_mixed)
{
    const int across = D / 16;
    finish_part part = part_of();
    int64_t columns = 2 * (int64_t)c->key_heads * c->dk + (int64_t)c->value_heads * c->dv;
    float sum[2] = {0, 0};
    __syncthreads(); /* halves are read */
    add_dots<E, across>(sum, d, tile, TILE_D, part, 1);
    put_halves(m->half, part, sum);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < across; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = row_at(part.m0, 0, e), at = column_at(part.side * D / 2, n, e);
            float along = (m->half[0][row] + m->half[1][row]) / (scale * scale);
            float r = row < chunk.length
                          ? rstd[(int64_t)(chunk.start + row) * c->key_heads + key_head]
                          : 0;
            d[0][n][e] = scale * r * (d[0][n][e] - get(tile + row * TILE_D + at) * along);
        }
    store_rows(d_mixed, d, chunk, column, columns, c->dk, part.m0, part.side * D / 2, c->dtype);
}

template <typename E, int D>
static __global__ void __launch_bounds__(DIFFERENTIATORS)
    finish(const __grid_constant__ delta_call c,
           const __grid_constant__ tsr_delta_rule_backward_args a)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    finish_memory<E, D> *m = (finish_memory<E, D> *)memory;
    const int across = D / 16;
    delta_chunk chunk = chunk_of(&c, (int)blockIdx.x);
    finish_part part = part_of();
    int key_head = (int)blockIdx.y, group = c.value_heads / c.key_heads, n0 = part.side * D / 2;
    float dq[1][across][4], dk[1][across][4];
    if (chunk.length == 0)
        return;
    clear<1, across>(dq);
    clear<1, across>(dk);
    for (int head = key_head * group; head < (key_head + 1) * group; head++) {
        int64_t index = (int64_t)blockIdx.x * c.value_heads + head;
        __syncthreads();
        load_gates(&m->gates, &c, chunk, head);
        copy_head<E, D, DIFFERENTIATORS>(m->two, c.du, chunk, c.value_heads, head);
        copy_head<E, D, DIFFERENTIATORS>(m->u, c.u, chunk, c.value_heads, head);
        copy_rows<E, CHUNK, DIFFERENTIATORS>(m->da, c.inverse, index * CHUNK * CHUNK, CHUNK, CHUNK,
                                             CHUNK);
        tsr_copy_commit();
        copy_rows<E, D, DIFFERENTIATORS>(m->state, c.state, index * D * D, D, D, D);
        tsr_copy_commit();
        read_rows<E, D, DIFFERENTIATORS>(m->one, a.d_o, (int64_t)head * c.dv,
                                         (int64_t)c.value_heads * c.dv, chunk, c.dv, c.dtype,
                                         c.whole);
        tsr_copy_wait_but_one();
        __syncthreads();
        back_solve<E, D>(m, &c, chunk, head, a);
        back_scores<E, D>(m);
        tsr_copy_wait();
        __syncthreads();
        float q[1][across][4], read[1][across][4], wrote[1][across][4];
        clear<1, across>(q);
        clear<1, across>(read);
        clear<1, across>(wrote);
        multiply<1, across, false, true>(q, m->one, TILE_D, part.m0, m->state, TILE_D, n0, D);
        multiply<1, across, false, true>(read, m->two, TILE_D, part.m0, m->state, TILE_D, n0, D);
        scale_rows<across>(q, m->gates.grow, part.m0, 1);
        scale_rows<across>(read, m->gates.grow, part.m0, -1);
        scale_rows<across>(read, m->gates.beta, part.m0, 1);
        __syncthreads();
        copy_head<E, D, DIFFERENTIATORS>(m->one, c.k, chunk, c.key_heads, key_head);
        copy_head<E, D, DIFFERENTIATORS>(m->two, c.q, chunk, c.key_heads, key_head);
        tsr_copy_commit();
        float last = m->gates.grow[CHUNK - 1] * replace_state<E, D>(m->state, c.d_state, index);
        tsr_copy_wait();
        __syncthreads();
        multiply<1, across, false, true>(wrote, m->u, TILE_D, part.m0, m->state, TILE_D, n0, D);
        scale_rows<across>(wrote, m->gates.left, part.m0, 1);
        float sum[2] = {0, 0};
        add_dots<E, across>(sum, wrote, m->one, TILE_D, part, 1);
        last = tsr_block_sum(last + sum[0] + sum[1], m->warp);
        multiply<1, across, false, false>(q, m->dp, TILE_T, part.m0, m->one, TILE_D, n0, CHUNK);
        multiply<1, across, false, false>(read, m->da, TILE_T, part.m0, m->one, TILE_D, n0, CHUNK);
        multiply<1, across, true, false>(wrote, m->dp, TILE_T, part.m0, m->two, TILE_D, n0, CHUNK);
        multiply<1, across, true, false>(wrote, m->da, TILE_T, part.m0, m->one, TILE_D, n0, CHUNK);
        sum[0] = sum[1] = 0;
        add_dots<E, across>(sum, q, m->two, TILE_D, part, 1);
        add_dots<E, across>(sum, read, m->one, TILE_D, part, 1);
        add_dots<E, across>(sum, wrote, m->one, TILE_D, part, -1);
        put_halves(m->half, part, sum);
        __syncthreads();
        back_decay<E, D>(m, &c, chunk, head, last, a);
#pragma unroll
        for (int n = 0; n < across; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                dq[0][n][e] += q[0][n][e];
                dk[0][n][e] += read[0][n][e] + wrote[0][n][e];
            }
    }
    back_norm<E, D>(m, &c, chunk, m->two, dq, c.q_rstd, key_head, rsqrtf((float)c.dk),
                    (int64_t)key_head * c.dk, a.d_mixed);
    back_norm<E, D>(m, &c, chunk, m->one, dk, c.k_rstd, key_head, 1.0f,
                    (int64_t)(c.key_heads + key_head) * c.dk, a.d_mixed);
}

/* ---- launches ---- */

DELTA_LAUNCHER(local, local_memory, SOLVERS)
DELTA_LAUNCHER(walk, walk_memory, SOLVERS)
DELTA_LAUNCHER(finish, finish_memory, DIFFERENTIATORS)

tsr_status delta_run_backward(tsr_stream *stream, const delta_call *c,
                              const tsr_delta_rule_backward_args *args)
{
    unsigned chunks = (unsigned)c->chunks, heads = (unsigned)c->value_heads;
    unsigned slices = (c->dk > 64 || c->dv > 64 ? 128 : 64) / SLICE;
    DELTA_LAUNCH(local, c, stream, dim3(chunks, heads), *c, args->d_o);
    DELTA_LAUNCH(walk, c, stream, dim3((unsigned)c->documents, heads, slices), *c, args->d_o);
    DELTA_LAUNCH(finish, c, stream, dim3(chunks, (unsigned)c->key_heads), *c, *args);
    return TSR_OK;
}
