/*
 * delta_rule.cu: contract delta_rule.h; reference delta_rule_ref.c. The call: its workspace, the list of chunks, normed
 * queries and keys, the gates, padding. The rest: delta_rule_forward.cu, delta_rule_backward.cu.
 *
 * Cost     queries and keys are read and written once, the gates of a token and head twice.
 */
#include "kernels/delta_rule.cuh"

#define THREADS  256
#define NORM_EPS 1e-6f /* of q and k */

/* ---- workspace ---- */

typedef struct {
    uint64_t bytes;
    char *base; /* NULL: only counted */
} room;

static void *take(room *r, uint64_t count, uint64_t element)
{
    void *out = r->base ? r->base + r->bytes : NULL;
    r->bytes += (count * element + 255) / 256 * 256;
    return out;
}

/* Everything of a call of so many tokens and documents; with `train` what the backward has too. */
static void place(delta_call *c, room *r)
{
    uint64_t element = c->dtype == TSR_BF16 ? 2 : 4, d = c->dk > 64 || c->dv > 64 ? 128 : 64;
    uint64_t tokens = (uint64_t)c->tokens, hk = (uint64_t)c->key_heads;
    uint64_t hv = (uint64_t)c->value_heads, chunks = (uint64_t)c->chunks;
    c->start = (int32_t *)take(r, chunks, sizeof(int32_t));
    c->length = (int32_t *)take(r, chunks, sizeof(int32_t));
    c->first_chunk = (int32_t *)take(r, (uint64_t)c->documents + 1, sizeof(int32_t));
    c->beta = (float *)take(r, tokens * hv, sizeof(float));
    c->sum = (float *)take(r, tokens * hv, sizeof(float));
    c->q_rstd = (float *)take(r, tokens * hk, sizeof(float));
    c->k_rstd = (float *)take(r, tokens * hk, sizeof(float));
    c->q = take(r, tokens * hk * d, element);
    c->k = take(r, tokens * hk * d, element);
    c->w = take(r, tokens * hv * d, element);
    c->u = take(r, tokens * hv * d, element);
    c->state = take(r, chunks * hv * d * d, element);
    if (!c->train)
        return;
    c->inverse = take(r, chunks * hv * CHUNK * CHUNK, element);
    c->du = take(r, tokens * hv * d, element);
    c->d_state = take(r, chunks * hv * d * d, element);
}

/* A document has at most one chunk that is not full. */
static int most_chunks(int64_t tokens, int64_t documents)
{
    return (int)(tokens / CHUNK + documents);
}

extern "C" uint64_t tsr_delta_rule_workspace_bytes_cuda(const tsr_delta_rule_bounds *bounds)
{
    delta_call c = {};
    room r = {};
    c.tokens = (int)bounds->tokens;
    c.documents = (int)bounds->documents;
    c.key_heads = bounds->key_heads;
    c.value_heads = bounds->value_heads;
    c.dk = bounds->key_dim;
    c.dv = bounds->value_dim;
    c.chunks = most_chunks(bounds->tokens, bounds->documents);
    c.dtype = bounds->dtype;
    c.train = bounds->train;
    place(&c, &r);
    return r.bytes;
}

static tsr_status make_call(delta_call *out, const char *op, const tsr_delta_rule_inputs *in,
                            const tsr_delta_rule_shape *s, const void *rows, const void *more,
                            bool train)
{
    delta_call c = {};
    room r = {0, (char *)s->workspace};
    c.in = *in;
    c.cu_seqlens = s->cu_seqlens;
    c.tokens = (int)s->tokens;
    c.documents = s->documents;
    c.key_heads = s->key_heads;
    c.value_heads = s->value_heads;
    c.dk = s->key_dim;
    c.dv = s->value_dim;
    c.chunks = most_chunks(s->tokens, s->documents);
    c.dtype = s->dtype;
    c.train = train;
    c.whole = tsr_vectors(tsr_delta_rule_columns(s), in->mixed, rows, more) &&
              c.dk % TSR_VECTOR == 0 && c.dv % TSR_VECTOR == 0;
    place(&c, &r);
    *out = c;
    if (!s->workspace || r.bytes > s->workspace_bytes)
        return tsr_fail(TSR_EINVAL, "%s: a workspace of %llu bytes, %llu are needed", op,
                        (unsigned long long)s->workspace_bytes, (unsigned long long)r.bytes);
    if (s->tokens > INT32_MAX / 2 || s->value_heads > 65535)
        return tsr_fail(TSR_EUNSUPPORTED, "%s: %lld tokens, %d heads", op, (long long)s->tokens,
                        s->value_heads);
    return TSR_OK;
}

/* ---- the chunks ---- */

static __device__ __forceinline__ int chunks_of(const delta_call *c, int document)
{
    return (c->cu_seqlens[document + 1] - c->cu_seqlens[document] + CHUNK - 1) / CHUNK;
}

/* One block; a thread has consecutive documents. */
static __global__ void __launch_bounds__(THREADS) list_chunks(const __grid_constant__ delta_call c)
{
    tsr_kernel_begin();
    __shared__ int before[THREADS + 1];
    int thread = (int)threadIdx.x, each = (c.documents + THREADS - 1) / THREADS, count = 0;
    int first = min(c.documents, thread * each), end = min(c.documents, first + each);
    for (int document = first; document < end; document++)
        count += chunks_of(&c, document);
    before[thread + 1] = count;
    __syncthreads();
    if (thread == 0) {
        before[0] = 0;
        for (int i = 0; i < THREADS; i++)
            before[i + 1] += before[i];
        c.first_chunk[c.documents] = before[THREADS];
    }
    __syncthreads();
    int index = before[thread];
    for (int document = first; document < end; document++) {
        c.first_chunk[document] = index;
        for (int at = c.cu_seqlens[document]; at < c.cu_seqlens[document + 1]; at += CHUNK) {
            c.start[index] = at;
            c.length[index++] = min(CHUNK, c.cu_seqlens[document + 1] - at);
        }
    }
    for (int i = before[THREADS] + thread; i < c.chunks; i += THREADS)
        c.length[i] = 0;
}

/* ---- what a token gives ---- */

/* A thread has a chunk of a head. */
static __global__ void __launch_bounds__(SOLVERS) read_gates(const __grid_constant__ delta_call c)
{
    tsr_kernel_begin();
    delta_chunk chunk = chunk_of(&c, (int)blockIdx.x);
    for (int head = (int)threadIdx.x; head < c.value_heads; head += SOLVERS) {
        float rate = -expf(tsr_load(c.in.a_log.data, head, c.in.a_log.dtype));
        float shift = tsr_load(c.in.dt_bias.data, head, c.in.dt_bias.dtype), total = 0;
        float g_a = c.in.g_a ? c.in.g_a[head] : 1.0f, g_b = c.in.g_b ? c.in.g_b[head] : 1.0f;
#pragma unroll 4
        for (int i = 0; i < chunk.length; i++) {
            int64_t at = (int64_t)(chunk.start + i) * c.value_heads + head;
            float x = g_a * tsr_load(c.in.a, at, c.dtype) + shift;
            total += rate * (x > 20.0f ? x : log1pf(expf(x)));
            c.beta[at] = 1.0f / (1.0f + expf(-g_b * tsr_load(c.in.b, at, c.dtype)));
            c.sum[at] = total;
        }
    }
}

/* A warp has a head of queries or keys of a token. */
template <typename E, int D>
static __global__ void __launch_bounds__(THREADS) norm_heads(const __grid_constant__ delta_call c)
{
    tsr_kernel_begin();
    const int each = D / TSR_WARP;
    int64_t warp = (int64_t)blockIdx.x * (THREADS / TSR_WARP) + threadIdx.x / TSR_WARP;
    int lane = (int)threadIdx.x % TSR_WARP, heads = 2 * c.key_heads;
    int64_t token = warp / heads, head = warp % heads;
    int64_t columns = (int64_t)heads * c.dk + (int64_t)c.value_heads * c.dv;
    bool key = head >= c.key_heads;
    if (token >= (c.documents ? c.cu_seqlens[c.documents] : 0))
        return;
    float x[each], squares = 0;
#pragma unroll
    for (int j = 0; j < each; j++) {
        int column = j * TSR_WARP + lane;
        x[j] = column < c.dk ? tsr_load(c.in.mixed, token * columns + head * c.dk + column, c.dtype)
                             : 0;
        squares += x[j] * x[j];
    }
    float rstd = 1.0f / sqrtf(tsr_warp_sum(squares) + NORM_EPS);
    float scale = key ? rstd : rstd * rsqrtf((float)c.dk);
    int64_t at = token * c.key_heads + (key ? head - c.key_heads : head);
    E *out = (E *)(key ? c.k : c.q) + at * D;
#pragma unroll
    for (int j = 0; j < each; j++)
        put(out + j * TSR_WARP + lane, x[j] * scale);
    if (lane == 0)
        (key ? c.k_rstd : c.q_rstd)[at] = rstd;
}

/* Rows of tokens that are in no document become 0. */
static __global__ void __launch_bounds__(THREADS)
    clear_padding(const __grid_constant__ delta_call c, void *rows, int64_t width)
{
    tsr_kernel_begin();
    int64_t used = c.documents ? c.cu_seqlens[c.documents] : 0;
    for (int64_t token = used + blockIdx.x; token < c.tokens; token += gridDim.x)
        for (int64_t column = threadIdx.x; column < width; column += THREADS)
            tsr_store(rows, token * width + column, 0, c.dtype);
}

/* ---- calls ---- */

tsr_status delta_check_shared(tsr_stream *stream, uint64_t bytes)
{
    const tsr_cuda_properties *card = tsr_device_cuda_properties(tsr_stream_device(stream));
    if (bytes <= card->shared_bytes)
        return TSR_OK;
    return tsr_fail(
        TSR_EUNSUPPORTED,
        "delta_rule: heads this wide need %llu bytes of shared memory in this dtype, the "
        "card has %llu; use dtype: bfloat16",
        (unsigned long long)bytes, (unsigned long long)card->shared_bytes);
}

template <typename E, int D>
static tsr_status norm_heads_launch(tsr_stream *stream, const delta_call &c)
{
    int64_t warps = (int64_t)c.tokens * 2 * c.key_heads;
    auto kernel = norm_heads<E, D>;
    TSR_LAUNCH(kernel, tsr_blocks(warps, THREADS / TSR_WARP), THREADS, stream, c);
    return tsr_launched("delta_rule");
}

/* What both directions begin with. */
static tsr_status prepare(tsr_stream *stream, const delta_call *c)
{
    TSR_LAUNCH(list_chunks, 1, THREADS, stream, *c);
    TSR_LAUNCH(read_gates, (unsigned)c->chunks, SOLVERS, stream, *c);
    TSR_TRY(tsr_launched("delta_rule"));
    DELTA_LAUNCH(norm_heads, c, stream, *c);
    return delta_run_states(stream, c);
}

static tsr_status clear_rows(tsr_stream *stream, const delta_call *c, void *rows, int64_t width)
{
    TSR_LAUNCH(clear_padding, 64, THREADS, stream, *c, rows, width);
    return tsr_launched("delta_rule");
}

extern "C" tsr_status tsr_delta_rule_cuda(tsr_stream *stream, const tsr_delta_rule_args *args)
{
    delta_call c;
    TSR_TRY(tsr_delta_rule_check(args));
    if (args->shape.tokens == 0)
        return TSR_OK;
    TSR_TRY(make_call(&c, "delta_rule", &args->in, &args->shape, args->o, NULL, false));
    TSR_TRY(clear_rows(stream, &c, args->o, (int64_t)c.value_heads * c.dv));
    if (c.documents == 0)
        return TSR_OK;
    TSR_TRY(prepare(stream, &c));
    return delta_run_output(stream, &c, args->o);
}

extern "C" tsr_status tsr_delta_rule_backward_cuda(tsr_stream *stream,
                                                   const tsr_delta_rule_backward_args *args)
{
    delta_call c;
    TSR_TRY(tsr_delta_rule_backward_check(args));
    if (args->shape.tokens == 0)
        return TSR_OK;
    TSR_TRY(make_call(&c, "delta_rule_backward", &args->in, &args->shape, args->d_mixed, args->d_o,
                      true));
    TSR_TRY(clear_rows(stream, &c, args->d_mixed, tsr_delta_rule_columns(&args->shape)));
    TSR_TRY(clear_rows(stream, &c, args->d_b, c.value_heads));
    TSR_TRY(clear_rows(stream, &c, args->d_a, c.value_heads));
    if (c.documents == 0)
        return TSR_OK;
    TSR_TRY(prepare(stream, &c));
    return delta_run_backward(stream, &c, args);
}
