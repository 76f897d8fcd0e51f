/*
 * low_rank_stack.cu: contract low_rank_stack.h; reference low_rank_stack_ref.c: stack the same bytes, mask the same fp32
 * values, rounded once to dtype.
 *
 * Split    stack: of the grid's rows each adapter has two, of A and of B; a thread copies 16 bytes, or one element where
 *          rows or buffers are not on 16 bytes. mask: a thread has 8 columns of a token, or one.
 * Cost     A launch, some microseconds: there are few bytes.
 */
#include "kernels/cuda.cuh"

#define THREADS 256

/* ---- stack ---- */

/* Rows of a matrix here and there. */
typedef struct {
    char *stacked, *part;
    int64_t rows, bytes, pitch; /* of a row of the part; from row to row of the stacked one */
} stack_copy;

static __device__ __forceinline__ stack_copy copy_of(const tsr_low_rank_stack_args *a, int which,
                                                     int64_t element)
{
    int64_t ranks = 0, before = 0;
    const tsr_low_rank_part *part = &a->part[which / 2];
    for (int i = 0; i < a->count; i++) {
        before = i == which / 2 ? ranks : before;
        ranks += a->part[i].r;
    }
    if (which % 2 == 0)
        return {(char *)a->a + before * a->in * element, (char *)part->a, 1,
                part->r * a->in * element, 0};
    return {(char *)a->b + before * element, (char *)part->b, a->out, part->r * element,
            ranks * element};
}

template <typename word>
static __device__ __forceinline__ void copy_words(const stack_copy *c, bool apart)
{
    unsigned across = (unsigned)(c->bytes / (int64_t)sizeof(word));
    unsigned count = (unsigned)c->rows * across, step = gridDim.x * THREADS;
    for (unsigned i = blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        word *stacked = (word *)(c->stacked + i / across * c->pitch) + i % across;
        word *part = (word *)c->part + i;
        if (apart)
            *part = *stacked;
        else
            *stacked = *part;
    }
}

static __global__ void __launch_bounds__(THREADS)
    stack(const __grid_constant__ tsr_low_rank_stack_args a, int element)
{
    tsr_kernel_begin();
    stack_copy c = copy_of(&a, (int)blockIdx.y, element);
    if (((uintptr_t)c.stacked | (uintptr_t)c.part | c.bytes | c.pitch) % 16 == 0)
        copy_words<uint4>(&c, a.apart);
    else if (element == 4)
        copy_words<uint32_t>(&c, a.apart);
    else
        copy_words<uint16_t>(&c, a.apart);
}

extern "C" tsr_status tsr_low_rank_stack_cuda(tsr_stream *stream,
                                              const tsr_low_rank_stack_args *args)
{
    TSR_TRY(tsr_low_rank_stack_check(args));
    int64_t most = 0, wider = args->in > args->out ? args->in : args->out;
    int element = (int)tsr_dtype_bytes(args->dtype);
    for (int i = 0; i < args->count; i++)
        most = args->part[i].r * wider > most ? args->part[i].r * wider : most;
    if (most == 0)
        return TSR_OK;
    if (most > INT32_MAX)
        return tsr_fail(TSR_EUNSUPPORTED, "low_rank_stack: %lld elements of an adapter",
                        (long long)most);
    dim3 grid(tsr_blocks(most * element, 16 * THREADS), 2 * (unsigned)args->count);
    TSR_LAUNCH(stack, grid, THREADS, stream, *args, element);
    return tsr_launched("low_rank_stack");
}

/* ---- mask ---- */

static __device__ __forceinline__ tsr_low_rank_owner owner_of(const tsr_low_rank_mask_args *a,
                                                              int64_t token)
{
    tsr_low_rank_owner own = {};
    for (int i = 0; i < a->count; i++)
        if (token >= a->owner[i].first && token < a->owner[i].end)
            own = a->owner[i];
    return own;
}

static __device__ __forceinline__ float masked(const tsr_low_rank_owner *own, int column,
                                               float value)
{
    bool its = column >= own->column && column < own->column + own->columns;
    return its ? __fmul_rn(own->scale, value) : 0;
}

static __global__ void __launch_bounds__(THREADS)
    mask(const __grid_constant__ tsr_low_rank_mask_args a, int each)
{
    tsr_kernel_begin();
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * each;
    if (at >= a.tokens * a.columns)
        return;
    int column = (int)(at % a.columns);
    tsr_low_rank_owner own = owner_of(&a, at / a.columns);
    if (each == 1) {
        tsr_store(a.low, at, masked(&own, column, tsr_load(a.low, at, a.dtype)), a.dtype);
        return;
    }
    float value[TSR_VECTOR];
    tsr_load8(value, a.low, at, a.dtype);
#pragma unroll
    for (int k = 0; k < TSR_VECTOR; k++)
        value[k] = masked(&own, column + k, value[k]);
    tsr_store8(a.low, at, value, a.dtype);
}

extern "C" tsr_status tsr_low_rank_mask_cuda(tsr_stream *stream, const tsr_low_rank_mask_args *args)
{
    TSR_TRY(tsr_low_rank_mask_check(args));
    if (args->tokens == 0 || args->columns == 0)
        return TSR_OK;
    int each = tsr_vectors(args->columns, args->low) ? TSR_VECTOR : 1;
    TSR_LAUNCH(mask, tsr_blocks(args->tokens * args->columns, (int64_t)THREADS * each), THREADS,
               stream, *args, each);
    return tsr_launched("low_rank_mask");
}
