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
 * Split    local: a block has a chunk of a value head. walk: a block has 64 columns of D of a head, in registers. finish: a
 *          block has a chunk of a key head, so that no gradient of q and k is added up in memory.
 * Cost     of a chunk and value head, L 64: local 2 L^2 (dk + dv), walk 6 L dk dv, finish 6 L dk dv + 2 L^2 (5 dk + 2 dv) FLOPs.
 */
#include "kernels/delta_rule.cuh"

#define SIDES                                                                                      \
    (DIFFERENTIATORS / SOLVERS) /* warps that share 16 rows, each with columns of its own */
#define TILE_T       tile_of<E, CHUNK>::stride
#define TILE_D       tile_of<E, D>::stride
#define WALKERS      256
#define WALK_COLUMNS 64 /* of D, of a block; a warp has 32 of them */
#define TILE_S       tile_of<E, WALK_COLUMNS>::stride

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
    multiply<1, CHUNK / 8, false, true, D, D>(p, m->q, m0, m->k, 0, D);
    decay_scores<CHUNK / 8>(p, &m->gates, m0, 0, true);
    put_tile<E, CHUNK, 1, CHUNK / 8>(m->p, p, m0, 0);
    __syncthreads();
    clear<1, D / 8>(y);
    multiply<1, D / 8, true, false, CHUNK, D>(y, m->p, m0, m->d_o, 0, CHUNK);
    put_head<E>(c.du, y, chunk, ((int64_t)chunk.start * c.value_heads + head) * D,
                (int64_t)c.value_heads * D, m0, 0);
}

/* ---- D from chunk to chunk ---- */

template <typename E, int D> struct walk_memory {
    E q[CHUNK * TILE_D], k[CHUNK * TILE_D], w[CHUNK * TILE_D];
    E d[D * TILE_S], du[CHUNK * TILE_S], d_o[CHUNK * TILE_S];
    delta_gates gates;
};

/* What a warp is of: its first of 64 rows, and of the columns. */
typedef struct {
    int m0, n0;
} walk_part;

static __device__ __forceinline__ walk_part walk_of(void)
{
    int warp = (int)threadIdx.x / TSR_WARP;
    walk_part part = {warp / 2 * 16, warp % 2 * SLICE};
    return part;
}

/* Columns `column` and the next one of a row of dtype; zeros from `width` on. */
static __device__ __forceinline__ float2 load2(const void *p, int64_t row, int column, int width,
                                               tsr_dtype dtype, bool whole)
{
    if (whole && dtype == TSR_BF16 && column < width)
        return get2((const __nv_bfloat16 *)p + row + column);
    return make_float2(column < width ? tsr_load(p, row + column, dtype) : 0,
                       column + 1 < width ? tsr_load(p, row + column + 1, dtype) : 0);
}

/* dU of the block's columns, in workspace, and less than 0 as a tile; with it a tile of diag(grow) dO. */
template <typename E, int D>
static __device__ __forceinline__ void add_later(walk_memory<E, D> *m, const delta_call *c,
                                                 delta_chunk chunk, int head, int column,
                                                 const void *d_o)
{
    walk_part part = walk_of();
    float y[1][SLICE / 8][4];
    clear<1, SLICE / 8>(y);
    multiply<1, SLICE / 8, false, false, D, WALK_COLUMNS>(y, m->k, part.m0, m->d, part.n0, D);
#pragma unroll
    for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            int i = row_at(part.m0, 0, e), j = column_at(part.n0, n, e);
            float2 du = make_float2(0, 0), out = make_float2(0, 0);
            if (i < chunk.length) {
                int64_t row = (int64_t)(chunk.start + i) * c->value_heads + head;
                E *at = (E *)c->du + row * D + column + j;
                du = get2(at);
                du.x += m->gates.left[i] * y[0][n][e];
                du.y += m->gates.left[i] * y[0][n][e + 1];
                put2(at, du.x, du.y);
                out = load2(d_o, row * c->dv, column + j, c->dv, c->dtype, c->whole);
            }
            float grow = m->gates.grow[i];
            put2(m->du + tile_at<E, WALK_COLUMNS>(i, j), -du.x, -du.y);
            put2(m->d_o + tile_at<E, WALK_COLUMNS>(i, j), grow * out.x, grow * out.y);
        }
}

template <typename E, int D>
static __device__ __forceinline__ void store_columns(void *to, const E *d, int64_t index,
                                                     int column)
{
    const int each = 16 / (int)sizeof(E), across = WALK_COLUMNS / each;
    E *out = (E *)to + index * D * D + column;
    for (int i = (int)threadIdx.x; i < D * across; i += WALKERS) {
        int row = i / across, at = i % across * each;
        *(uint4 *)(out + row * D + at) = *(const uint4 *)(d + tile_at<E, WALK_COLUMNS>(row, at));
    }
}

template <typename E, int D>
static __device__ __forceinline__ void copy_keys(walk_memory<E, D> *m, const delta_call *c,
                                                 int index, int key_head)
{
    copy_head<E, D, WALKERS>(m->k, c->k, chunk_of(c, index), c->key_heads, key_head);
    tsr_copy_commit();
}

template <typename E, int D>
static __device__ __forceinline__ void copy_rest(walk_memory<E, D> *m, const delta_call *c,
                                                 int index, int key_head, int head)
{
    delta_chunk chunk = chunk_of(c, index);
    copy_head<E, D, WALKERS>(m->q, c->q, chunk, c->key_heads, key_head);
    copy_head<E, D, WALKERS>(m->w, c->w, chunk, c->value_heads, head);
    tsr_copy_commit();
}

/* Tiles of the chunk before are asked for as soon as nobody reads those of this one. */
template <typename E, int D>
static __global__ void __launch_bounds__(WALKERS, 2)
    walk(const __grid_constant__ delta_call c, const void *d_o)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    walk_memory<E, D> *m = (walk_memory<E, D> *)memory;
    const int parts = D / 64; /* of 16 rows, of a warp */
    walk_part part = walk_of();
    int head = (int)blockIdx.y, column = (int)blockIdx.z * WALK_COLUMNS;
    int key_head = head / (c.value_heads / c.key_heads), m0 = part.m0 * parts;
    int first = c.first_chunk[blockIdx.x], end = c.first_chunk[blockIdx.x + 1];
    float d[parts][SLICE / 8][4];
    clear<parts, SLICE / 8>(d);
    if (first == end)
        return;
    copy_keys<E, D>(m, &c, end - 1, key_head);
    copy_rest<E, D>(m, &c, end - 1, key_head, head);
    for (int index = end - 1; index >= first; index--) {
        delta_chunk chunk = chunk_of(&c, index);
        put_tile<E, WALK_COLUMNS, parts, SLICE / 8>(m->d, d, m0, part.n0);
        load_gates(&m->gates, &c, chunk, head);
        tsr_copy_wait_but_one();
        __syncthreads();
        store_columns<E, D>(c.d_state, m->d, (int64_t)index * c.value_heads + head, column);
        add_later<E, D>(m, &c, chunk, head, column, d_o);
        float keep = m->gates.grow[CHUNK - 1];
        tsr_copy_wait();
        __syncthreads();
        if (index > first)
            copy_keys<E, D>(m, &c, index - 1, key_head);
        scale_all<parts, SLICE / 8>(d, keep);
        multiply<parts, SLICE / 8, true, false, D, WALK_COLUMNS>(d, m->q, m0, m->d_o, part.n0,
                                                                 CHUNK);
        multiply<parts, SLICE / 8, true, false, D, WALK_COLUMNS>(d, m->w, m0, m->du, part.n0,
                                                                 CHUNK);
        __syncthreads();
        if (index > first)
            copy_rest<E, D>(m, &c, index - 1, key_head, head);
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
    float sum[SIDES][CHUNK]; /* of a row over the columns of a side */
    float warp[TSR_WARP + 1];
};

/* What a thread is of: 16 rows, and the columns of a side. */
typedef struct {
    int m0, side;
} finish_part;

static __device__ __forceinline__ finish_part part_of(void)
{
    int warp = (int)threadIdx.x / TSR_WARP;
    finish_part part = {warp / SIDES * 16, warp % SIDES};
    return part;
}

/* Of two rows of a thread its sums, over the quad. */
static __device__ __forceinline__ void put_sums(float to[SIDES][CHUNK], finish_part part,
                                                float sum[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
        if (threadIdx.x % 4 == 0)
            to[part.side][part.m0 + (int)threadIdx.x % TSR_WARP / 4 + 8 * i] = sum[i];
    }
}

/* Of a row over all columns. */
static __device__ __forceinline__ float row_sum(const float sum[SIDES][CHUNK], int row)
{
    float all = 0;
#pragma unroll
    for (int side = 0; side < SIDES; side++)
        all += sum[side][row];
    return all;
}

/* Adds to the sums of rows the products with a tile. */
template <typename E, int D, int N>
static __device__ __forceinline__ void add_dots(float sum[2], const float c[1][N][4], const E *tile,
                                                finish_part part, float sign)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            float2 x = get2(
                tile + tile_at<E, D>(row_at(part.m0, 0, e), column_at(part.side * N * 8, n, e)));
            sum[e / 2] += sign * (c[0][n][e] * x.x + c[0][n][e + 1] * x.y);
        }
}

/* Y, as a tile; dV, stored; the gradient of g_b b. */
template <typename E, int D>
static __device__ __forceinline__ void back_solve(finish_memory<E, D> *m, const delta_call *c,
                                                  delta_chunk chunk, int head,
                                                  const tsr_delta_rule_backward_args &a)
{
    const int across = D / 8 / SIDES;
    finish_part part = part_of();
    int64_t keys = 2 * (int64_t)c->key_heads * c->dk;
    float y[1][across][4], sum[2] = {0, 0};
    clear<1, across>(y);
    multiply<1, across, true, false, CHUNK, D>(y, m->da, part.m0, m->two, part.side * D / SIDES,
                                               CHUNK);
    add_dots<E, D, across>(sum, y, m->u, part, 1);
    put_sums(m->sum, part, sum);
    __syncthreads(); /* dU and the inverse are read */
    put_tile<E, D, 1, across>(m->two, y, part.m0, part.side * D / SIDES);
#pragma unroll
    for (int n = 0; n < across; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[0][n][e] *= m->gates.beta[row_at(part.m0, 0, e)];
    store_rows(a.d_mixed, y, chunk, keys + head * c->dv, keys + (int64_t)c->value_heads * c->dv,
               c->dv, part.m0, part.side * D / SIDES, c->dtype, c->whole);
    int i = (int)threadIdx.x;
    if (i < chunk.length)
        tsr_store(a.d_b, (int64_t)(chunk.start + i) * c->value_heads + head,
                  row_sum(m->sum, i) * (1.0f - m->gates.beta[i]), c->dtype);
    __syncthreads();
}

/* dA_ij beta_i E_ij below the diagonal and dP_ij E_ij, as tiles. */
template <typename E, int D>
static __device__ __forceinline__ void back_scores(finish_memory<E, D> *m)
{
    const int across = CHUNK / 8 / SIDES;
    finish_part part = part_of();
    int n0 = part.side * CHUNK / SIDES;
    float x[1][across][4];
    clear<1, across>(x);
    multiply<1, across, false, true, D, D>(x, m->two, part.m0, m->u, n0, D);
    decay_scores<across>(x, &m->gates, part.m0, n0, false);
#pragma unroll
    for (int n = 0; n < across; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[0][n][e] *= -m->gates.beta[row_at(part.m0, 0, e)];
    put_tile<E, CHUNK, 1, across>(m->da, x, part.m0, n0);
    clear<1, across>(x);
    multiply<1, across, false, true, D, D>(x, m->one, part.m0, m->u, n0, D);
    decay_scores<across>(x, &m->gates, part.m0, n0, true);
    put_tile<E, CHUNK, 1, across>(m->dp, x, part.m0, n0);
}

/* D in the place of S; returns the thread's part of S.D. */
template <typename E, int D>
static __device__ __forceinline__ float replace_state(E *state, const void *d, int64_t index)
{
    const E *from = (const E *)d + index * D * D;
    const int each = 16 / (int)sizeof(E), across = D / each;
    float sum = 0;
    for (int i = (int)threadIdx.x; i < D * across; i += DIFFERENTIATORS) {
        E *to = state + tile_at<E, D>(i / across, i % across * each), in[each];
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

template <int N>
static __device__ __forceinline__ void add_product(float to[1][N][4], const float c[1][N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[0][n][e] += c[0][n][e];
}

/* The gradient of g_a a: dc by sides, summed from the end of the chunk, `last` beside. One warp. */
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
        own[i] = low + i < chunk.length ? row_sum(m->sum, low + i) : 0;
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
          float d[1][D / 8 / SIDES][4], const float *rstd, int key_head, float scale,
          int64_t column, void *d_mixed)
{
    const int across = D / 8 / SIDES;
    finish_part part = part_of();
    int64_t columns = 2 * (int64_t)c->key_heads * c->dk + (int64_t)c->value_heads * c->dv;
    float sum[2] = {0, 0};
    __syncthreads(); /* sums are read */
    add_dots<E, D, across>(sum, d, tile, part, 1);
    put_sums(m->sum, part, sum);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < across; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = row_at(part.m0, 0, e), at = column_at(part.side * D / SIDES, n, e);
            float along = row_sum(m->sum, row) / (scale * scale);
            float r = row < chunk.length
                          ? rstd[(int64_t)(chunk.start + row) * c->key_heads + key_head]
                          : 0;
            d[0][n][e] = scale * r * (d[0][n][e] - get(tile + tile_at<E, D>(row, at)) * along);
        }
    store_rows(d_mixed, d, chunk, column, columns, c->dk, part.m0, part.side * D / SIDES, c->dtype,
               c->whole);
}

/* What queries and keys get of S, as they are read. */
template <typename E, int D>
static __device__ __forceinline__ void back_reads(const finish_memory<E, D> *m,
                                                  float q[1][D / 8 / SIDES][4],
                                                  float read[1][D / 8 / SIDES][4])
{
    const int across = D / 8 / SIDES;
    finish_part part = part_of();
    int n0 = part.side * D / SIDES;
    clear<1, across>(q);
    clear<1, across>(read);
    multiply<1, across, false, true, D, D>(q, m->one, part.m0, m->state, n0, D);
    multiply<1, across, false, true, D, D>(read, m->two, part.m0, m->state, n0, D);
    scale_rows<across>(q, m->gates.grow, part.m0, 1);
    scale_rows<across>(read, m->gates.grow, part.m0, -1);
    scale_rows<across>(read, m->gates.beta, part.m0, 1);
}

/* And of the chunk, with K and Q as tiles: all of it to dq and dk, and to dc. */
template <typename E, int D>
static __device__ __forceinline__ void
add_reads(float dq[1][D / 8 / SIDES][4], float dk[1][D / 8 / SIDES][4], float dc[2],
          const finish_memory<E, D> *m, float q[1][D / 8 / SIDES][4],
          float read[1][D / 8 / SIDES][4])
{
    const int across = D / 8 / SIDES;
    finish_part part = part_of();
    int n0 = part.side * D / SIDES;
    multiply<1, across, false, false, CHUNK, D>(q, m->dp, part.m0, m->one, n0, CHUNK);
    multiply<1, across, false, false, CHUNK, D>(read, m->da, part.m0, m->one, n0, CHUNK);
    add_dots<E, D, across>(dc, q, m->two, part, 1);
    add_dots<E, D, across>(dc, read, m->one, part, 1);
    add_product<across>(dq, q);
    add_product<across>(dk, read);
}

/* The same of keys as they are written, with D as a tile; returns the thread's part of what the last c gets of D. */
template <typename E, int D>
static __device__ __forceinline__ float add_writes(float dk[1][D / 8 / SIDES][4], float dc[2],
                                                   const finish_memory<E, D> *m)
{
    const int across = D / 8 / SIDES;
    finish_part part = part_of();
    int n0 = part.side * D / SIDES;
    float wrote[1][across][4], last[2] = {0, 0};
    clear<1, across>(wrote);
    multiply<1, across, false, true, D, D>(wrote, m->u, part.m0, m->state, n0, D);
    scale_rows<across>(wrote, m->gates.left, part.m0, 1);
    add_dots<E, D, across>(last, wrote, m->one, part, 1);
    multiply<1, across, true, false, CHUNK, D>(wrote, m->dp, part.m0, m->two, n0, CHUNK);
    multiply<1, across, true, false, CHUNK, D>(wrote, m->da, part.m0, m->one, n0, CHUNK);
    add_dots<E, D, across>(dc, wrote, m->one, part, -1);
    add_product<across>(dk, wrote);
    return last[0] + last[1];
}

/* One value head: all but d_b and dV to sums. */
template <typename E, int D>
static __device__ __forceinline__ void
finish_head(float dq[1][D / 8 / SIDES][4], float dk[1][D / 8 / SIDES][4], finish_memory<E, D> *m,
            const delta_call *c, delta_chunk chunk, int head, const tsr_delta_rule_backward_args &a)
{
    int64_t index = (int64_t)blockIdx.x * c->value_heads + head;
    int key_head = (int)blockIdx.y;
    float q[1][D / 8 / SIDES][4], read[1][D / 8 / SIDES][4], dc[2] = {0, 0};
    load_gates(&m->gates, c, chunk, head);
    copy_head<E, D, DIFFERENTIATORS>(m->two, c->du, chunk, c->value_heads, head);
    copy_head<E, D, DIFFERENTIATORS>(m->u, c->u, chunk, c->value_heads, head);
    copy_rows<E, CHUNK, DIFFERENTIATORS>(m->da, c->inverse, index * CHUNK * CHUNK, CHUNK, CHUNK,
                                         CHUNK);
    tsr_copy_commit();
    copy_rows<E, D, DIFFERENTIATORS>(m->state, c->state, index * D * D, D, D, D);
    tsr_copy_commit();
    read_rows<E, D, DIFFERENTIATORS>(m->one, a.d_o, (int64_t)head * c->dv,
                                     (int64_t)c->value_heads * c->dv, chunk, c->dv, c->dtype,
                                     c->whole);
    tsr_copy_wait_but_one();
    __syncthreads();
    back_solve<E, D>(m, c, chunk, head, a);
    back_scores<E, D>(m);
    tsr_copy_wait();
    __syncthreads();
    back_reads<E, D>(m, q, read);
    __syncthreads();
    copy_head<E, D, DIFFERENTIATORS>(m->one, c->k, chunk, c->key_heads, key_head);
    copy_head<E, D, DIFFERENTIATORS>(m->two, c->q, chunk, c->key_heads, key_head);
    tsr_copy_commit();
    float last = m->gates.grow[CHUNK - 1] * replace_state<E, D>(m->state, c->d_state, index);
    tsr_copy_wait();
    __syncthreads();
    add_reads<E, D>(dq, dk, dc, m, q, read);
    last = tsr_block_sum(last + add_writes<E, D>(dk, dc, m), m->warp);
    put_sums(m->sum, part_of(), dc);
    __syncthreads();
    back_decay<E, D>(m, c, chunk, head, last, a);
}

template <typename E, int D>
static __global__ void __launch_bounds__(DIFFERENTIATORS)
    finish(const __grid_constant__ delta_call c,
           const __grid_constant__ tsr_delta_rule_backward_args a)
{
    tsr_kernel_begin();
    extern __shared__ __align__(16) char memory[];
    finish_memory<E, D> *m = (finish_memory<E, D> *)memory;
    delta_chunk chunk = chunk_of(&c, (int)blockIdx.x);
    int key_head = (int)blockIdx.y, group = c.value_heads / c.key_heads;
    float dq[1][D / 8 / SIDES][4], dk[1][D / 8 / SIDES][4];
    if (chunk.length == 0)
        return;
    clear<1, D / 8 / SIDES>(dq);
    clear<1, D / 8 / SIDES>(dk);
    for (int head = key_head * group; head < (key_head + 1) * group; head++) {
        __syncthreads();
        finish_head<E, D>(dq, dk, m, &c, chunk, head, a);
    }
    back_norm<E, D>(m, &c, chunk, m->two, dq, c.q_rstd, key_head, rsqrtf((float)c.dk),
                    (int64_t)key_head * c.dk, a.d_mixed);
    back_norm<E, D>(m, &c, chunk, m->one, dk, c.k_rstd, key_head, 1.0f,
                    (int64_t)(c.key_heads + key_head) * c.dk, a.d_mixed);
}

/* ---- launches ---- */

DELTA_LAUNCHER(local, local_memory, SOLVERS)
DELTA_LAUNCHER(walk, walk_memory, WALKERS)
DELTA_LAUNCHER(finish, finish_memory, DIFFERENTIATORS)

tsr_status delta_run_backward(tsr_stream *stream, const delta_call *c,
                              const tsr_delta_rule_backward_args *args)
{
    unsigned chunks = (unsigned)c->chunks, heads = (unsigned)c->value_heads;
    unsigned parts = (c->dk > 64 || c->dv > 64 ? 128 : 64) / WALK_COLUMNS;
    DELTA_LAUNCH(local, c, stream, dim3(chunks, heads), *c, args->d_o);
    DELTA_LAUNCH(walk, c, stream, dim3((unsigned)c->documents, heads, parts), *c, args->d_o);
    DELTA_LAUNCH(finish, c, stream, dim3(chunks, (unsigned)c->key_heads), *c, *args);
    return TSR_OK;
}
