#include "model/stack_reader.h"

#include "model/load_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const tsr_tensor *tsr_stack_tensor(const tsr_layout_stack *stack, uint64_t matrix)
{
    return stack->source[stack->fused ? 0 : matrix].weight;
}

tsr_status tsr_stack_reader_open(tsr_stack_reader *out, const tsr_layout_stack *stack)
{
    *out =
        (tsr_stack_reader){.stack = stack, .dtype = stack->source->dtype, .expert_at = UINT64_MAX};
    if (!stack->transposed)
        return TSR_OK;
    out->expert = malloc(stack->out * stack->in * tsr_dtype_bytes(out->dtype));
    return out->expert ? TSR_OK
                       : tsr_fail(TSR_ENOMEM, "out of memory for an expert of %s", stack->path);
}

void tsr_stack_reader_close(tsr_stack_reader *reader)
{
    free(reader->expert);
    reader->expert = NULL;
}

/* Where a matrix begins in its tensor, and the distances of its rows and columns there, in elements. */
typedef struct {
    uint64_t first, row, column;
} place;

static place place_of(const tsr_layout_stack *stack, uint64_t matrix)
{
    uint64_t parts = (uint64_t)stack->parts, expert = matrix / parts, part = matrix % parts;
    if (!stack->fused)
        return (place){0, stack->in, 1};
    if (!stack->transposed)
        return (place){matrix * tsr_layout_stack_elements(stack), stack->in, 1};
    return (place){expert * stack->in * stack->out + part, parts, stack->out};
}

/* Rows of a transposed matrix, from the expert as it is stored. */
typedef struct {
    char *out;
    const char *expert;
    place at; /* in the expert */
    uint64_t in, first, count, element;
} turning;

static void turn_row(void *context, int index)
{
    const turning *t = context;
    uint64_t row = t->first / t->in + (uint64_t)index;
    uint64_t from = row * t->in > t->first ? row * t->in : t->first;
    uint64_t end = (row + 1) * t->in, last = t->first + t->count;
    for (uint64_t i = from; i < (end < last ? end : last); i++) {
        uint64_t at = t->at.first + row * t->at.row + i % t->in * t->at.column;
        memcpy(t->out + (i - t->first) * t->element, t->expert + at * t->element, t->element);
    }
}

static tsr_status read_transposed(void *out, tsr_stack_reader *reader, uint64_t matrix,
                                  uint64_t first, uint64_t count, tsr_pool *pool)
{
    const tsr_layout_stack *stack = reader->stack;
    uint64_t element = tsr_dtype_bytes(reader->dtype), elements = stack->in * stack->out;
    uint64_t expert = matrix / (uint64_t)stack->parts;
    if (reader->expert_at != expert)
        TSR_TRY(tsr_load_read(pool, reader->expert, tsr_stack_tensor(stack, matrix),
                              expert * elements * element, elements * element));
    reader->expert_at = expert;
    place at = place_of(stack, matrix);
    at.first -= expert * elements;
    turning t = {out, reader->expert, at, stack->in, first, count, element};
    uint64_t rows = (first + count - 1) / stack->in - first / stack->in + 1;
    tsr_pool_run(pool, (int)rows, turn_row, &t);
    return TSR_OK;
}

tsr_status tsr_stack_reader_read(void *out, tsr_stack_reader *reader, uint64_t matrix,
                                 uint64_t first, uint64_t count, tsr_pool *pool)
{
    uint64_t element = tsr_dtype_bytes(reader->dtype);
    if (!count)
        return TSR_OK;
    if (reader->stack->transposed)
        return read_transposed(out, reader, matrix, first, count, pool);
    place at = place_of(reader->stack, matrix);
    return tsr_load_read(pool, out, tsr_stack_tensor(reader->stack, matrix),
                         (at.first + first) * element, count * element);
}

static tsr_status refuse(const tsr_stack_reader *reader, uint64_t matrix, uint64_t element)
{
    float value;
    const tsr_layout_stack *stack = reader->stack;
    const tsr_tensor *tensor = tsr_stack_tensor(stack, matrix);
    place at = place_of(stack, matrix);
    at.first += element / stack->in * at.row + element % stack->in * at.column;
    TSR_TRY(tsr_safetensors_read_f32(&value, tensor, at.first, 1));
    return tsr_fail(TSR_EDATA, "%s: tensor '%s' is being changed",
                    tsr_safetensors_path(tensor->file), tensor->name);
}

tsr_status tsr_stack_reader_read_f32(float *out, tsr_stack_reader *reader, uint64_t matrix,
                                     uint64_t first, uint64_t count, tsr_pool *pool)
{
    /* From the end on: a narrow value is read before what it is widened to overwrites it. */
    char *narrow = (char *)out + count * (sizeof *out - tsr_dtype_bytes(reader->dtype));
    TSR_TRY(tsr_stack_reader_read(narrow, reader, matrix, first, count, pool));
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half;
        if (reader->dtype != TSR_F32) {
            memcpy(&half, narrow + 2 * i, sizeof half);
            out[i] = reader->dtype == TSR_BF16 ? tsr_bf16_to_f32(half) : tsr_f16_to_f32(half);
        }
        if (!isfinite(out[i]))
            return refuse(reader, matrix, first + i);
    }
    return TSR_OK;
}
