#include "commands/merger.h"

#include "adapters/merge.h"
#include "model/stack_reader.h"
#include "quant/nf4_stored.h"

#include <stdlib.h>

#define CHUNK_ELEMENTS ((uint64_t)4 << 20)

/* Of the stack that was asked for last among those of as many parts: an expert's tensors of both follow each other in a file. */
typedef struct {
    const tsr_layout_stack *of; /* NULL: of none */
    tsr_stack_reader reader;
    float *a, *b; /* [experts, r, in], [experts, out, r]; NULL: it has no adapter */
    uint64_t r;
    uint8_t *codes, *scales; /* of MXFP4: a chunk's granules */
} stack_parts;

struct tsr_merger {
    const tsr_inputs *inputs;
    tsr_pool *pool;
    uint64_t chunk_elements;
    float *w, *a, *b, *m;
    /* The linear that a and stored belong to. */
    const tsr_layout_linear *linear;
    const tsr_peft_module *module; /* NULL: it has no adapter */
    tsr_nf4_stored *stored;        /* NULL: its weight is plain */
    const tsr_weight *stored_of;
    stack_parts stack[2];
};

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* At least one. */
static uint64_t chunk_rows(uint64_t chunk_elements, uint64_t out, uint64_t in)
{
    uint64_t rows = larger(chunk_elements / in, 1);
    return rows < out ? rows : out;
}

static uint64_t matrix_rows(const tsr_layout_stack *stack)
{
    return stack->out / (uint64_t)stack->parts;
}

tsr_status tsr_merger_create(tsr_merger **out, const tsr_inputs *inputs, tsr_pool *pool,
                             uint64_t chunk_elements)
{
    const tsr_layout *layout = &inputs->layout;
    uint64_t w = 1, a = 1, b = 1, m = 1;
    uint64_t elements = chunk_elements ? chunk_elements : CHUNK_ELEMENTS;
    for (int i = 0; i < layout->layer_count; i++) {
        for (int j = 0; j < tsr_layout_linears(&layout->unit[i]); j++) {
            const tsr_layout_linear *l = &layout->unit[i].linear[j];
            uint64_t rows = chunk_rows(elements, l->out, l->in);
            w = larger(w, rows * l->in);
            a = larger(a, l->r * l->in);
            b = larger(b, rows * l->r);
            m = larger(m, rows);
        }
        for (int j = 0; j < tsr_layout_stacks(&layout->unit[i]); j++) {
            const tsr_layout_stack *s = &layout->unit[i].stack[j];
            w = larger(w, chunk_rows(elements, matrix_rows(s), s->in) * s->in);
        }
    }
    tsr_merger *merger = calloc(1, sizeof *merger);
    if (merger) {
        merger->inputs = inputs;
        merger->pool = pool;
        merger->chunk_elements = elements;
        merger->w = malloc(w * sizeof(float));
        merger->a = malloc(a * sizeof(float));
        merger->b = malloc(b * sizeof(float));
        merger->m = malloc(m * sizeof(float));
    }
    if (!merger || !merger->w || !merger->a || !merger->b || !merger->m) {
        tsr_merger_destroy(merger);
        return tsr_fail(TSR_ENOMEM, "out of memory for merging");
    }
    *out = merger;
    return TSR_OK;
}

static void leave_stack(stack_parts *parts)
{
    tsr_stack_reader_close(&parts->reader);
    free(parts->a);
    free(parts->b);
    free(parts->codes);
    free(parts->scales);
    *parts = (stack_parts){0};
}

void tsr_merger_destroy(tsr_merger *merger)
{
    if (!merger)
        return;
    for (int i = 0; i < 2; i++)
        leave_stack(&merger->stack[i]);
    tsr_nf4_stored_close(merger->stored);
    free(merger->w);
    free(merger->a);
    free(merger->b);
    free(merger->m);
    free(merger);
}

/* What is read of a 4-bit weight is this one's. */
static tsr_status open_stored(tsr_merger *merger, const tsr_weight *weight)
{
    if (merger->stored_of == weight)
        return TSR_OK;
    tsr_nf4_stored_close(merger->stored);
    merger->stored = NULL;
    merger->stored_of = NULL;
    merger->linear = NULL;
    if (!weight->prequantized)
        return TSR_OK;
    TSR_TRY(tsr_nf4_stored_open(&merger->stored, weight));
    merger->stored_of = weight;
    return TSR_OK;
}

static tsr_status begin(tsr_merger *merger, const tsr_layout_linear *linear)
{
    merger->module = NULL;
    merger->linear = NULL;
    TSR_TRY(open_stored(merger, &linear->source));
    if (linear->r) {
        merger->module = tsr_peft_module_find(merger->inputs->adapter.init, linear->path);
        TSR_TRY(tsr_safetensors_read_f32(merger->a, merger->module->a, 0,
                                         merger->module->r * linear->in));
    }
    merger->linear = linear;
    return TSR_OK;
}

static tsr_status add_adapter(tsr_merger *merger, uint64_t first, uint64_t rows)
{
    const tsr_layout_linear *linear = merger->linear;
    const tsr_peft_module *module = merger->module;
    TSR_TRY(tsr_safetensors_read_f32(merger->b, module->b, first * module->r, rows * module->r));
    if (linear->dora)
        TSR_TRY(tsr_safetensors_read_f32(merger->m, module->magnitude, first, rows));
    const tsr_adapter_merge_args args = {.rows = rows,
                                         .in = linear->in,
                                         .r = module->r,
                                         .a = merger->a,
                                         .b = merger->b,
                                         .m = linear->dora ? merger->m : NULL,
                                         .scale = linear->scale};
    return tsr_adapter_merge(merger->w, &args, merger->pool);
}

tsr_status tsr_merger_rows(const float **rows, uint64_t *count, tsr_merger *merger,
                           const tsr_layout_linear *linear, uint64_t first)
{
    uint64_t most = chunk_rows(merger->chunk_elements, linear->out, linear->in);
    uint64_t left = linear->out - first;
    uint64_t some = left < most ? left : most, element = first * linear->in;
    if (merger->linear != linear)
        TSR_TRY(begin(merger, linear));
    if (merger->stored)
        TSR_TRY(tsr_nf4_stored_read(merger->w, merger->stored, element, some * linear->in));
    else
        TSR_TRY(
            tsr_safetensors_read_f32(merger->w, linear->source.weight, element, some * linear->in));
    if (merger->module)
        TSR_TRY(add_adapter(merger, first, some));
    *rows = merger->w;
    *count = some;
    return TSR_OK;
}

/* ---- experts ---- */

static float *floats(uint64_t count)
{
    return malloc(count * sizeof(float));
}

/* A and B of all experts. */
static tsr_status read_low(stack_parts *parts, const tsr_peft *init)
{
    const tsr_layout_stack *stack = parts->of;
    const tsr_peft_module *module = tsr_peft_module_find(init, stack->path);
    parts->r = module->r / stack->experts;
    uint64_t a = module->r * stack->in, b = module->r * stack->out;
    parts->a = floats(a);
    parts->b = floats(b);
    if (!parts->a || !parts->b)
        return tsr_fail(TSR_ENOMEM, "out of memory while merging %s", stack->path);
    if (module->one) {
        TSR_TRY(tsr_peft_read_joined(parts->a, module, false, 0, a));
        return tsr_peft_read_joined(parts->b, module, true, 0, b);
    }
    TSR_TRY(tsr_safetensors_read_f32(parts->a, module->a, 0, a));
    const tsr_peft_expert_b shape = {stack->experts, stack->out, parts->r,
                                     tsr_layout_stack_by_turns(stack)};
    return tsr_peft_read_expert_b(parts->b, module->b, &shape, 0, b);
}

/* Granules that a chunk of rows is in. */
static tsr_status open_mxfp4(stack_parts *parts, const tsr_merger *merger)
{
    const tsr_layout_stack *stack = parts->of;
    uint64_t rows = chunk_rows(merger->chunk_elements, matrix_rows(stack), stack->in);
    uint64_t granules = rows * stack->in / TSR_NF4_GRANULE + 2;
    parts->codes = malloc(granules * TSR_MXFP4_GRANULE_CODE_BYTES);
    parts->scales = malloc(granules * TSR_MXFP4_GRANULE_SCALE_BYTES);
    return parts->codes && parts->scales
               ? TSR_OK
               : tsr_fail(TSR_ENOMEM, "out of memory while merging %s", stack->path);
}

/* Elements [first, first + count) of a matrix. */
static tsr_status read_mxfp4(float *out, const stack_parts *parts, uint64_t matrix, uint64_t first,
                             uint64_t count)
{
    const tsr_mxfp4_stack *stored = &parts->of->stored;
    uint64_t granule = first / TSR_NF4_GRANULE;
    uint64_t end = (first + count - 1) / TSR_NF4_GRANULE + 1;
    TSR_TRY(tsr_mxfp4_stack_read(parts->codes, parts->scales, stored,
                                 matrix * stored->granules + granule, end - granule));
    return tsr_mxfp4_dequantize(out, TSR_F32, parts->codes, parts->scales,
                                first - granule * TSR_NF4_GRANULE, count);
}

static tsr_status begin_stack(stack_parts **out, tsr_merger *merger, const tsr_layout_stack *stack)
{
    stack_parts *parts = &merger->stack[stack->parts - 1]; /* gate and up, or down */
    *out = parts;
    if (parts->of == stack)
        return TSR_OK;
    leave_stack(parts);
    parts->of = stack;
    tsr_status status = stack->source->prequantized ? TSR_OK
                        : stack->mxfp4              ? open_mxfp4(parts, merger)
                                                    : tsr_stack_reader_open(&parts->reader, stack);
    if (status == TSR_OK && stack->r)
        status = read_low(parts, merger->inputs->adapter.init);
    if (status < 0)
        leave_stack(parts);
    return status;
}

static tsr_status add_low(tsr_merger *merger, const stack_parts *parts, uint64_t expert,
                          uint64_t row, uint64_t rows)
{
    const tsr_layout_stack *stack = parts->of;
    const tsr_adapter_merge_args args = {.rows = rows,
                                         .in = stack->in,
                                         .r = parts->r,
                                         .a = parts->a + expert * parts->r * stack->in,
                                         .b = parts->b + (expert * stack->out + row) * parts->r,
                                         .scale = stack->scale};
    return tsr_adapter_merge(merger->w, &args, merger->pool);
}

tsr_status tsr_merger_expert_rows(const float **rows, uint64_t *count, tsr_merger *merger,
                                  const tsr_layout_stack *stack, uint64_t matrix, uint64_t first)
{
    uint64_t own = matrix_rows(stack), part = matrix % (uint64_t)stack->parts;
    uint64_t most = chunk_rows(merger->chunk_elements, own, stack->in), left = own - first;
    uint64_t some = left < most ? left : most, element = first * stack->in;
    stack_parts *parts;
    TSR_TRY(begin_stack(&parts, merger, stack));
    if (stack->source->prequantized) {
        TSR_TRY(open_stored(merger, &stack->source[matrix]));
        TSR_TRY(tsr_nf4_stored_read(merger->w, merger->stored, element, some * stack->in));
    } else if (stack->mxfp4) {
        TSR_TRY(read_mxfp4(merger->w, parts, matrix, element, some * stack->in));
    } else {
        TSR_TRY(tsr_stack_reader_read_f32(merger->w, &parts->reader, matrix, element,
                                          some * stack->in, merger->pool));
    }
    if (parts->a)
        TSR_TRY(add_low(merger, parts, matrix / (uint64_t)stack->parts, part * own + first, some));
    *rows = merger->w;
    *count = some;
    return TSR_OK;
}
