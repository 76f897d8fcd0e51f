/*
 * expert_weight.cu: contract expert_weight.h; reference expert_weight_ref.c. Which way is taken; and the kernel
 * of any format, dtype and shape, an element a thread.
 *
 * Where matrices leave no gaps, a range of experts is one tall matrix, which one launch of nf4_dequant's kernels
 * decodes (nf4_stack.cuh).
 */
#include "kernels/nf4_stack.cuh"

#define THREADS 256

/* Of a matrix of the stack. */
typedef struct {
    int64_t granules, groups;
} stack_steps;

/* Element `at` of matrix i of the stack. */
static __device__ __forceinline__ float decode(const tsr_expert_weight_args *a, stack_steps steps,
                                               int64_t i, int64_t at)
{
    int64_t granules = steps.granules;
    int64_t block = i * granules * (TSR_EXPERT_GRANULE / TSR_NF4_BLOCK) + at / TSR_NF4_BLOCK;
    uint8_t byte = a->codes[i * granules * (TSR_EXPERT_GRANULE / 2) + at / 2];
    float level = a->level[at % 2 ? byte & 15 : byte >> 4];
    if (!a->nested)
        return __fmul_rn(level, ((const float *)a->absmax)[block]);
    int64_t group = i * steps.groups + at / TSR_NF4_BLOCK / TSR_NF4_NESTED_BLOCK;
    float scale =
        __fmul_rn(a->nested_map[((const uint8_t *)a->absmax)[block]], a->nested_absmax[group]);
    return __fmul_rn(level, __fadd_rn(scale, a->offset[i]));
}

static __global__ void __launch_bounds__(THREADS)
    decode_each(const __grid_constant__ tsr_expert_weight_args a, stack_steps steps)
{
    tsr_kernel_begin();
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, each = a.rows * a.columns;
    if (at >= a.count * each)
        return;
    int64_t e = a.first + at / each, row = at % each / a.columns;
    int64_t part = row / (a.rows / a.parts), part_elements = each / a.parts;
    float value = a.format == TSR_EXPERTS_PLAIN
                      ? tsr_load(a.plain.data, e * each + at % each, a.plain.dtype)
                      : decode(&a, steps, e * a.parts + part, at % each - part * part_elements);
    tsr_store(a.out, at, value, a.dtype);
}

static tsr_status decode_plainly(tsr_stream *stream, const tsr_expert_weight_args *args)
{
    stack_steps steps = {tsr_expert_granules(args->rows / args->parts, args->columns),
                         tsr_expert_groups(args->rows / args->parts, args->columns)};
    TSR_LAUNCH(decode_each, tsr_blocks(args->count * args->rows * args->columns, THREADS), THREADS,
               stream, *args, steps);
    return tsr_launched("expert_weight");
}

/* ---- all as one ---- */

/* The range of experts as one matrix. */
static tsr_nf4_dequant_args tall_of(const tsr_expert_weight_args *a)
{
    int64_t before = a->first * a->rows * a->columns, blocks = before / TSR_NF4_BLOCK;
    tsr_nf4_dequant_args w = {};
    w.out = a->out;
    w.codes = a->codes + before / 2;
    w.absmax = (const char *)a->absmax + blocks * (a->nested ? 1 : (int64_t)sizeof(float));
    w.nested_absmax = a->nested ? a->nested_absmax + blocks / TSR_NF4_NESTED_BLOCK : NULL;
    w.nested_map = a->nested_map;
    w.level = a->level;
    w.count = a->count * a->rows * a->columns;
    w.columns = a->columns;
    w.nested = a->nested;
    w.settled = a->settled;
    w.dtype = a->dtype;
    return w;
}

static bool is_tall(const tsr_expert_weight_args *args, const tsr_nf4_dequant_args *w)
{
    return tsr_expert_weight_whole(args) && w->count / TSR_NF4_BLOCK <= INT32_MAX &&
           (uintptr_t)w->codes % 8 == 0 && (uintptr_t)w->out % 16 == 0;
}

static tsr_status decode_tall(tsr_stream *stream, const tsr_expert_weight_args *args,
                              const tsr_nf4_dequant_args *tall)
{
    tsr_nf4_stack stack = {};
    stack.offset = args->nested ? args->offset + args->first * args->parts : NULL;
    stack.matrix_rows = (int)(args->rows / args->parts);
    tsr_nf4_dequant_stack(stream, tall, &stack);
    return tsr_launched("expert_weight");
}

extern "C" tsr_status tsr_expert_weight_cuda(tsr_stream *stream, const tsr_expert_weight_args *args)
{
    TSR_TRY(tsr_expert_weight_check(args));
    if (args->count == 0)
        return TSR_OK;
    tsr_nf4_dequant_args tall = tall_of(args);
    return is_tall(args, &tall) ? decode_tall(stream, args, &tall) : decode_plainly(stream, args);
}
