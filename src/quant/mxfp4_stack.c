/*
 * mxfp4_stack.c: contract mxfp4_stack.h. An expert's rows are read from the file some at a time, in its order, and each
 * goes to the matrix of its part: a range that has both parts of an expert reads its bytes once.
 */
#include "quant/mxfp4_stack.h"

#include "base/auto.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES     ((uint64_t)1 << 20) /* of codes at a time */
#define GRANULE_BLOCKS TSR_MXFP4_GRANULE_SCALE_BYTES
#define MOST_PARTS     2

static tsr_status expect(const tsr_tensor *tensor, int ndim, const uint64_t shape[4])
{
    char found[TSR_SHAPE_TEXT_BYTES], wanted[TSR_SHAPE_TEXT_BYTES];
    bool same = tensor->ndim == ndim;
    for (int i = 0; i < ndim && same; i++)
        same = tensor->shape[i] == shape[i];
    if (!same)
        return tsr_fail(TSR_EDATA,
                        "%s: tensor '%s' has the shape %s, but by config.json it should be %s",
                        tsr_safetensors_path(tensor->file), tensor->name,
                        tsr_shape_text(found, tensor->shape, tensor->ndim),
                        tsr_shape_text(wanted, shape, ndim));
    if (tensor->dtype != TSR_U8)
        return tsr_fail(TSR_EDATA, "%s: tensor '%s' has the dtype %s; MXFP4 is U8",
                        tsr_safetensors_path(tensor->file), tensor->name,
                        tsr_dtype_name(tensor->dtype));
    return TSR_OK;
}

tsr_status tsr_mxfp4_stack_make(tsr_mxfp4_stack *stack, const tsr_tensor *blocks,
                                const tsr_tensor *scales, uint64_t experts, uint64_t out,
                                uint64_t in, int parts)
{
    if (parts < 1 || parts > MOST_PARTS || experts == 0 || out == 0 || in == 0 ||
        out % (uint64_t)parts || in % TSR_MXFP4_BLOCK)
        return tsr_fail(TSR_EINVAL,
                        "%s: %" PRIu64 " experts of %" PRIu64 " x %" PRIu64
                        " in %d parts are no MXFP4: rows are blocks of %d",
                        blocks->name, experts, out, in, parts, TSR_MXFP4_BLOCK);
    const uint64_t shape[4] = {experts, out, in / TSR_MXFP4_BLOCK, TSR_MXFP4_BLOCK_BYTES};
    TSR_TRY(expect(blocks, 4, shape));
    TSR_TRY(expect(scales, 3, shape));
    uint64_t rows = out / (uint64_t)parts;
    *stack =
        (tsr_mxfp4_stack){.blocks = blocks,
                          .scales = scales,
                          .experts = experts,
                          .rows = rows,
                          .columns = in,
                          .parts = parts,
                          .granules = (uint64_t)tsr_mxfp4_granules((int64_t)rows, (int64_t)in)};
    return TSR_OK;
}

/* ---- reading ---- */

/* Blocks [first, end) of a matrix are wanted, and go to these addresses; none: first is end. */
typedef struct {
    uint64_t first, end;
    uint8_t *codes, *scales;
} wanted;

/* Rows of a file, of all parts, and where they are read to. */
typedef struct {
    const tsr_mxfp4_stack *stack;
    uint64_t expert, row, rows, row_blocks; /* rows of a matrix */
    uint8_t *codes, *scales;
} file_rows;

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What of matrix `matrix` is in granules [first, first + count); what pads it is cleared. */
static wanted wanted_of(uint8_t *codes, uint8_t *scales, const tsr_mxfp4_stack *stack,
                        uint64_t matrix, uint64_t first, uint64_t count)
{
    uint64_t begin = matrix * stack->granules, from = larger(first, begin);
    uint64_t to = smaller(first + count, begin + stack->granules);
    if (from >= to)
        return (wanted){0};
    uint64_t all = stack->rows * (stack->columns / TSR_MXFP4_BLOCK);
    uint64_t end = (to - begin) * GRANULE_BLOCKS;
    wanted w = {(from - begin) * GRANULE_BLOCKS, smaller(end, all),
                codes + (from - first) * TSR_MXFP4_GRANULE_CODE_BYTES,
                scales + (from - first) * TSR_MXFP4_GRANULE_SCALE_BYTES};
    memset(w.codes + (w.end - w.first) * TSR_MXFP4_BLOCK_BYTES, 0,
           (end - w.end) * TSR_MXFP4_BLOCK_BYTES);
    memset(w.scales + (w.end - w.first), 0, end - w.end);
    return w;
}

static tsr_status refuse(const file_rows *f, uint64_t block)
{
    const tsr_mxfp4_stack *s = f->stack;
    bool scale = f->scales[block] == TSR_MXFP4_NO_SCALE;
    const tsr_tensor *tensor = scale ? s->scales : s->blocks;
    uint64_t row = f->row * (uint64_t)s->parts + block / f->row_blocks;
    return tsr_fail(TSR_EDATA,
                    "%s: tensor '%s': [%" PRIu64 ", %" PRIu64 ", %" PRIu64
                    "] %s, and every value must be finite: the file is damaged, copy it again",
                    tsr_safetensors_path(tensor->file), tensor->name, f->expert, row,
                    block % f->row_blocks,
                    scale ? "is 255, which is no scale" : "holds a value beyond fp32");
}

/* One row of a part, as far as it is wanted. */
static tsr_status take_row(const wanted *w, const file_rows *f, uint64_t row, uint64_t part)
{
    uint64_t begin = (f->row + row) * f->row_blocks;
    uint64_t from = larger(w->first, begin), to = smaller(w->end, begin + f->row_blocks);
    if (from >= to)
        return TSR_OK;
    uint64_t at = (row * (uint64_t)f->stack->parts + part) * f->row_blocks + from - begin;
    const uint8_t *codes = f->codes + at * TSR_MXFP4_BLOCK_BYTES;
    uint64_t count = to - from, bad = tsr_mxfp4_first_bad(codes, f->scales + at, count);
    if (bad < count)
        return refuse(f, at + bad);
    memcpy(w->codes + (from - w->first) * TSR_MXFP4_BLOCK_BYTES, codes,
           count * TSR_MXFP4_BLOCK_BYTES);
    memcpy(w->scales + (from - w->first), f->scales + at, count);
    return TSR_OK;
}

static tsr_status take_rows(const wanted *w, const file_rows *f)
{
    const tsr_mxfp4_stack *s = f->stack;
    uint64_t parts = (uint64_t)s->parts, blocks = f->rows * parts * f->row_blocks;
    uint64_t first = (f->expert * s->rows + f->row) * parts * f->row_blocks;
    bool any = false;
    for (uint64_t part = 0; part < parts; part++)
        any |= larger(w[part].first, f->row * f->row_blocks) <
               smaller(w[part].end, (f->row + f->rows) * f->row_blocks);
    if (!any)
        return TSR_OK;
    TSR_TRY(tsr_safetensors_read(f->codes, s->blocks, first * TSR_MXFP4_BLOCK_BYTES,
                                 blocks * TSR_MXFP4_BLOCK_BYTES));
    TSR_TRY(tsr_safetensors_read(f->scales, s->scales, first, blocks));
    for (uint64_t row = 0; row < f->rows; row++)
        for (uint64_t part = 0; part < parts; part++)
            TSR_TRY(take_row(&w[part], f, row, part));
    return TSR_OK;
}

tsr_status tsr_mxfp4_stack_read(uint8_t *codes, uint8_t *scales, const tsr_mxfp4_stack *stack,
                                uint64_t first, uint64_t count)
{
    uint64_t parts = (uint64_t)stack->parts, expert_granules = parts * stack->granules;
    uint64_t all = tsr_mxfp4_stack_granules(stack);
    if (first > all || count > all - first)
        return tsr_fail(TSR_EINVAL,
                        "%s: %" PRIu64 " granules from %" PRIu64 " on; there are %" PRIu64,
                        stack->blocks->name, count, first, all);
    if (count == 0)
        return TSR_OK;
    file_rows f = {.stack = stack, .row_blocks = stack->columns / TSR_MXFP4_BLOCK};
    uint64_t row_bytes = parts * f.row_blocks * TSR_MXFP4_BLOCK_BYTES;
    uint64_t most = smaller(stack->rows, larger(1, READ_BYTES / row_bytes));
    TSR_AUTO_FREE uint8_t *memory = malloc(most * (row_bytes + parts * f.row_blocks));
    if (!memory)
        return tsr_fail(TSR_ENOMEM, "out of memory while loading %s", stack->blocks->name);
    f.codes = memory;
    f.scales = memory + most * row_bytes;
    uint64_t last = (first + count - 1) / expert_granules;
    for (f.expert = first / expert_granules; f.expert <= last; f.expert++) {
        wanted w[MOST_PARTS];
        for (uint64_t part = 0; part < parts; part++)
            w[part] = wanted_of(codes, scales, stack, f.expert * parts + part, first, count);
        for (f.row = 0; f.row < stack->rows; f.row += f.rows) {
            f.rows = smaller(most, stack->rows - f.row);
            TSR_TRY(take_rows(w, &f));
        }
    }
    return TSR_OK;
}
