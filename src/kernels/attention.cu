/*
 * attention.cu: contract attention.h: which kernel runs a call (attention_cudnn.h), and the lists that
 * cuDNN's kernels read.
 *
 * The lists are made before every call: a few kilobytes from cu_seqlens. The same launch clears the
 * tokens of no document, which cuDNN never writes.
 *
 * cuDNN knows no sinks. They are put into what its forward wrote: with l its lse, o shrinks by
 * 1 / (1 + exp(sink - l)) and exp(sink) is added under the logarithm: 4 bytes an element of o more. Its
 * backward makes the weights from lse and <do, o> from o, and so needs nothing else.
 */
#include "kernels/cuda.cuh"

#include "kernels/attention_cudnn.h"
#include "kernels/attention_wgmma.h"

#define THREADS    256
#define MIN_BLOCKS 64 /* for clearing, whose extent is known on the device only */

#ifdef TSR_CUDNN

/* ---- with cuDNN ---- */

/* What a list says of entry n: tokens [from, to) of queries, and where their document begins. */
static __device__ __forceinline__ void write_entry(const tsr_sdpa_lists *l, int32_t *list,
                                                   int64_t n, int start, int from, int to)
{
    int64_t next = TSR_SDPA_LIST_AT(l->documents, l->kinds, 0, 1);
    list += n;
    if (n < l->documents) {
        list[TSR_SDPA_LENGTH * next] = to - from;
        if (tsr_spans_shared(&l->spans))
            list[(l->kinds - 1) * next] = to - start;
    }
    list[TSR_SDPA_Q * next] = from * l->q_row;
    list[TSR_SDPA_KV * next] = start * l->kv_row;
    list[TSR_SDPA_STATS * next] = from * l->stats_row;
    if (l->kinds - tsr_spans_shared(&l->spans) == TSR_SDPA_SAME_LISTS)
        return;
    list[TSR_SDPA_O * next] = from * l->o_row;
    list[TSR_SDPA_V * next] = start * l->v_row;
}

/* Of a shared micro-batch: what documents have in own spans, by document + span of the rank; others are empty. A block. */
static __device__ void write_parts(const tsr_sdpa_lists *l, int used)
{
    const tsr_spans *s = &l->spans;
    for (int n = threadIdx.x; n <= l->documents; n += THREADS)
        write_entry(l, l->lists, n, used, used, used);
    __syncthreads();
    for (int document = threadIdx.x; document < l->document_count; document += THREADS) {
        int64_t start = l->cu_seqlens[document], end = l->cu_seqlens[document + 1];
        for (int64_t span = start / s->rows; span * s->rows < end; span++) {
            int64_t from = max(start, span * s->rows), to = min(end, (span + 1) * s->rows);
            if (tsr_span_owner(s, span) == s->rank && from < to)
                write_entry(l, l->lists, document + span / s->ranks, (int)start, (int)from,
                            (int)to);
        }
    }
}

/* Lists, then the tokens of no document, then the statistics by groups of heads. */
static __global__ void __launch_bounds__(THREADS) write_lists(tsr_sdpa_lists l)
{
    tsr_kernel_begin();
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t threads = (int64_t)gridDim.x * THREADS, used = 0;
    if (l.document_count)
        used = l.cu_seqlens[l.document_count];
    int64_t each = l.documents + 1;
    bool shared = tsr_spans_shared(&l.spans);
    if (shared && blockIdx.x == 0)
        write_parts(&l, (int)used);
    for (int64_t i = thread; !shared && i < l.pieces * each; i += threads) {
        int64_t piece = i / each, n = i % each, at = piece * l.documents + n;
        int from = 0, to = 0;
        if (l.document_count) {
            from = l.cu_seqlens[min(at, (int64_t)l.document_count)];
            to = l.cu_seqlens[min(at + 1, (int64_t)l.document_count)];
        }
        write_entry(&l, l.lists + TSR_SDPA_LIST_AT(l.documents, l.kinds, piece, 0), n, from, from,
                    to);
    }
    for (int k = 0; k < 3; k++) {
        int64_t words = l.clear_bytes[k] / 4;
        if (l.clear[k])
            for (int64_t i = used * words + thread; i < l.tokens * words; i += threads)
                ((uint32_t *)l.clear[k])[i] = 0;
    }
    if (l.grouped)
        for (int64_t i = thread; i < used * l.q_heads; i += threads) {
            int64_t token = i / l.q_heads, head = i % l.q_heads;
            int64_t to = (head / l.heads * l.tokens + token) * l.heads + head % l.heads;
            l.grouped[to] = l.stats[i];
        }
}

tsr_status tsr_sdpa_lists_cuda(tsr_stream *stream, const tsr_sdpa_lists *lists)
{
    int64_t work = lists->grouped ? lists->tokens * lists->q_heads : 0;
    unsigned blocks = tsr_blocks(work, 4 * THREADS);
    if (blocks < MIN_BLOCKS)
        blocks = MIN_BLOCKS;
    TSR_LAUNCH(write_lists, blocks, THREADS, stream, *lists);
    return tsr_launched("attention");
}

#define ROW_LANES 16 /* of a token and head: 8 columns each, up to 128 */

/* A row of o and its lse, [tokens, Hq], take their sink in. */
static __global__ void __launch_bounds__(THREADS) add_sinks(const tsr_attention_args a)
{
    tsr_kernel_begin();
    const tsr_attention_shape *s = &a.shape;
    int64_t row = (int64_t)blockIdx.x * (THREADS / ROW_LANES) + threadIdx.x / ROW_LANES;
    int lane = (int)threadIdx.x % ROW_LANES, head = (int)(row % s->q_heads);
    int64_t used = s->documents ? s->cu_seqlens[s->documents] : 0;
    bool in_document = row < used * s->q_heads && tsr_row_is_own(&s->spans, row / s->q_heads);
    float lse = in_document ? a.lse[row] : 0;
    float sink = tsr_load(s->sinks.data, head, s->sinks.dtype), factor = 1 / (1 + expf(sink - lse));
    __syncwarp(); /* lse is overwritten */
    if (!in_document || lane * TSR_VECTOR >= s->head_dim)
        return;
    int64_t at = row * s->head_dim + lane * TSR_VECTOR;
    float o[TSR_VECTOR];
    tsr_load8(o, a.o, at, TSR_BF16);
#pragma unroll
    for (int i = 0; i < TSR_VECTOR; i++)
        o[i] *= factor;
    tsr_store8(a.o, at, o, TSR_BF16);
    if (lane == 0)
        a.lse[row] = fmaxf(lse, sink) + log1pf(expf(-fabsf(lse - sink)));
}

static tsr_status take_sinks_in(tsr_stream *stream, const tsr_attention_args *args)
{
    int64_t rows = args->shape.tokens * args->shape.q_heads;
    if (!args->shape.sinks.data || rows == 0)
        return TSR_OK;
    TSR_LAUNCH(add_sinks, tsr_blocks(rows, THREADS / ROW_LANES), THREADS, stream, *args);
    return tsr_launched("attention");
}

#else

static tsr_status take_sinks_in(tsr_stream *stream, const tsr_attention_args *args)
{
    (void)stream, (void)args;
    return TSR_OK;
}

/* ---- a build without cuDNN: nothing is open, nothing is planned ---- */

tsr_status tsr_sdpa_open(tsr_sdpa **out, tsr_device *device)
{
    (void)device;
    *out = NULL;
    return TSR_OK;
}

void tsr_sdpa_close(tsr_sdpa *sdpa)
{
    (void)sdpa;
}

void tsr_sdpa_turn(tsr_sdpa *sdpa, int job)
{
    (void)sdpa, (void)job;
}

tsr_status tsr_sdpa_prepare(tsr_sdpa *sdpa, const tsr_attention_bounds *bounds)
{
    (void)sdpa, (void)bounds;
    return TSR_OK;
}

tsr_status tsr_sdpa_prepare_within(tsr_sdpa *sdpa, const tsr_attention_bounds *bounds, uint64_t cap)
{
    (void)sdpa, (void)bounds, (void)cap;
    return TSR_OK;
}

bool tsr_sdpa_cut_for(tsr_sdpa_cut *cut, const tsr_attention_bounds *bounds, uint64_t cap)
{
    (void)cut, (void)bounds, (void)cap;
    return false;
}

uint64_t tsr_sdpa_workspace_bytes(const tsr_sdpa_cut *cut)
{
    (void)cut;
    return 0;
}

const tsr_sdpa_plans *tsr_sdpa_find(const tsr_sdpa *sdpa, const tsr_attention_shape *shape)
{
    (void)sdpa, (void)shape;
    return NULL;
}

tsr_status tsr_sdpa_forward(const tsr_sdpa *sdpa, const tsr_sdpa_plans *plans, tsr_stream *stream,
                            const tsr_attention_args *args)
{
    (void)sdpa, (void)plans, (void)stream, (void)args;
    return tsr_fail(TSR_EINTERNAL, "attention: no cuDNN in this build");
}

tsr_status tsr_sdpa_backward(const tsr_sdpa *sdpa, const tsr_sdpa_plans *plans, tsr_stream *stream,
                             const tsr_attention_backward_args *args)
{
    (void)sdpa, (void)plans, (void)stream, (void)args;
    return tsr_fail(TSR_EINTERNAL, "attention_backward: no cuDNN in this build");
}

tsr_status tsr_kernels_cudnn_version(tsr_library_version *out)
{
    (void)out;
    return tsr_fail(TSR_EUNSUPPORTED, "this build has no cuDNN: attention runs in the own kernel");
}

#endif

/* ---- the table's ---- */

uint64_t tsr_attention_workspace_bytes_cuda(const tsr_attention_bounds *bounds)
{
    /* Whatever the card, so that plans do not depend on it. */
    uint64_t own = tsr_attention_own_workspace_bytes(bounds);
    uint64_t wgmma =
        tsr_attention_wgmma_fits(bounds) ? tsr_attention_wgmma_workspace_bytes(bounds) : 0;
    own = wgmma > own ? wgmma : own;
    tsr_sdpa_cut cut;
    if (!tsr_sdpa_cut_for(&cut, bounds, TSR_SDPA_CAP(bounds)))
        return own;
    uint64_t bytes = tsr_sdpa_workspace_bytes(&cut);
    return bytes > own ? bytes : own;
}

/* Of a rank's key heads as few as have so many blocks of its rows: the fewer there are, the less of the exchange is not hidden,
 * and the less memory it takes. The earlier a block's keys, the longer it takes, so all rows want more blocks. */
static int32_t heads_at_once(int32_t heads, int64_t rows, int64_t blocks)
{
    for (int32_t few = 1; few < heads; few++)
        if (heads % few == 0 && rows / TSR_WGMMA_KEYS * few >= blocks)
            return few;
    return heads;
}

/* cuDNN's backward makes delta of o itself; and its launches depend on the heads that it is given. What it would take is
 * asked of the bounds, which are the same on every card. */
tsr_attention_sharing tsr_attention_sharing_cuda(const tsr_attention_bounds *bounds)
{
    tsr_attention_sharing sharing = {};
    tsr_sdpa_cut cut;
    int32_t ranks = tsr_spans_shared(&bounds->spans) ? bounds->spans.ranks : 1;
    sharing.needs_o =
        bounds->train && tsr_sdpa_cut_for(&cut, bounds, TSR_SDPA_CAP(bounds)) && !cut.own_bytes;
    sharing.by_heads = !sharing.needs_o && ranks > 1 && bounds->kv_heads % ranks == 0;
    sharing.kv_heads = bounds->kv_heads;
    if (sharing.by_heads)
        sharing.kv_heads =
            heads_at_once(bounds->kv_heads / ranks, bounds->tokens, 2 * TSR_WGMMA_BLOCKS);
    else if (!sharing.needs_o)
        sharing.kv_heads =
            heads_at_once(bounds->kv_heads, bounds->tokens / ranks, TSR_WGMMA_BLOCKS);
    return sharing;
}

/* Every block of rows of a kernel lies in one span. */
static tsr_status check_spans(const char *op, const tsr_attention_shape *s)
{
    if (tsr_spans_shared(&s->spans) && s->spans.rows % TSR_SPAN_STEP)
        return tsr_fail(TSR_EINVAL, "%s: spans of %lld tokens; GPUs take multiples of %d", op,
                        (long long)s->spans.rows, TSR_SPAN_STEP);
    return TSR_OK;
}

static const tsr_sdpa *sdpa_of(const tsr_stream *stream)
{
    const tsr_kernels_context *context = tsr_kernels_kept(stream);
    return context ? context->sdpa : NULL;
}

bool tsr_attention_lse_by_token_cuda(const tsr_stream *stream, const tsr_attention_shape *shape)
{
    return tsr_sdpa_find(sdpa_of(stream), shape);
}

tsr_status tsr_attention_cuda(tsr_stream *stream, const tsr_attention_args *args)
{
    TSR_TRY(tsr_attention_check(args));
    TSR_TRY(check_spans("attention", &args->shape));
    const tsr_sdpa *sdpa = sdpa_of(stream);
    const tsr_sdpa_plans *plans = tsr_sdpa_find(sdpa, &args->shape);
    if (!plans)
        return tsr_attention_wgmma_takes_forward(stream, args)
                   ? tsr_attention_forward_wgmma(stream, args)
                   : tsr_attention_own(stream, args);
    TSR_TRY(tsr_sdpa_forward(sdpa, plans, stream, args));
    return take_sinks_in(stream, args);
}

tsr_status tsr_attention_backward_cuda(tsr_stream *stream, const tsr_attention_backward_args *args)
{
    TSR_TRY(tsr_attention_backward_check(args));
    TSR_TRY(check_spans("attention_backward", &args->shape));
    const tsr_sdpa *sdpa = sdpa_of(stream);
    const tsr_sdpa_plans *plans = tsr_sdpa_find(sdpa, &args->shape);
    if (plans)
        return tsr_sdpa_backward(sdpa, plans, stream, args); /* of cuDNN, with o */
    return tsr_attention_wgmma_takes(stream, args)
               ? tsr_attention_backward_wgmma(stream, args, false)
               : tsr_attention_backward_own(stream, args);
}
