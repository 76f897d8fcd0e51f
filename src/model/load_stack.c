/*
 * load_stack.c: the rank's part of a stack of experts: quantized on the device as it is read, each matrix with its own
 * scales, taken from a bitsandbytes checkpoint as it is, or plain.
 *
 * The cut is by granules over the whole stack, and every matrix begins with one of its own. On a GPU the scratch is the
 * activations' memory, as in load_nf4.c: the rank's absmax, those of one matrix, codes and values of one chunk.
 */
#include "model/load_parts.h"

#include "base/checked.h"
#include "model/stack_reader.h"
#include "quant/nf4_stored.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    tsr_load_job *job;
    const tsr_layout_stack *stack;
    int index;
    tsr_stack_reader reader;
    uint64_t elements, granules; /* of a matrix */
    uint64_t per_rank, own, end; /* granules: of a rank's part; the rank's are [own, end) */
    uint8_t *codes;
    char *scales;  /* their places */
    float *absmax; /* host: of all ranks, per_rank granules each; the padding is 0 */
    uint64_t bad;
    bool apart;
    struct { /* where the ops work */
        uint64_t *bad;
        float *absmax, *matrix; /* the rank's; those of one matrix */
        int64_t *words;
        char *rest;
        uint64_t rest_bytes;
    } on;
} stack_load;

/* Elements [first, first + count) of a matrix that are the rank's. */
typedef struct {
    uint64_t matrix, first, count;
} piece;

static tsr_stream *stream_of(const stack_load *l)
{
    return l->job->model->compute;
}

static piece piece_of(const stack_load *l, uint64_t matrix)
{
    uint64_t begin = matrix * l->granules, from = l->own > begin ? l->own : begin;
    uint64_t until = l->end < begin + l->granules ? l->end : begin + l->granules;
    if (from >= until)
        return (piece){matrix, 0, 0};
    uint64_t first = (from - begin) * TSR_NF4_GRANULE, last = (until - begin) * TSR_NF4_GRANULE;
    first = first < l->elements ? first : l->elements;
    last = last < l->elements ? last : l->elements;
    return (piece){matrix, first, last - first};
}

/* Elements of the stack in memory before element `first` of a matrix, in the rank's part. */
static uint64_t offset_of(const stack_load *l, uint64_t matrix, uint64_t first)
{
    return (matrix * l->granules - l->own) * TSR_NF4_GRANULE + first;
}

static uint64_t blocks_of(uint64_t elements)
{
    return tsr_ceil_div(elements, TSR_NF4_BLOCK);
}

static uint64_t rank_blocks(const stack_load *l)
{
    return l->per_rank * TSR_NF4_GRANULE_BLOCKS;
}

/* This rank's absmax, on the host. */
static float *own_absmax(const stack_load *l)
{
    return l->absmax + (uint64_t)l->job->rank * rank_blocks(l);
}

static void *cut_scratch(stack_load *l, uint64_t bytes)
{
    char *out = l->on.rest;
    uint64_t aligned = tsr_align_up(bytes, TSR_ALIGNMENT);
    l->on.rest += aligned;
    l->on.rest_bytes -= aligned < l->on.rest_bytes ? aligned : l->on.rest_bytes;
    return out;
}

static tsr_status open_load(stack_load *l, tsr_load_job *job, int index)
{
    const tsr_layout_unit *unit = &tsr_model_layout(job->model)->unit[job->unit];
    const tsr_layout_stack *stack = &unit->stack[index];
    *l = (stack_load){.job = job,
                      .stack = stack,
                      .index = index,
                      .elements = tsr_layout_stack_elements(stack),
                      .granules = tsr_layout_stack_granules(stack),
                      .bad = UINT64_MAX,
                      .apart = tsr_device_kind_of(job->loader->device) != TSR_DEVICE_CPU};
    uint64_t all = tsr_layout_stack_matrices(stack) * l->granules;
    l->per_rank = tsr_granule_per_rank(all, (uint64_t)job->ranks);
    uint64_t count;
    tsr_granule_range(&l->own, &count, all, (uint64_t)job->ranks, (uint64_t)job->rank);
    l->end = l->own + count;
    l->codes = (uint8_t *)job->loader->frozen(job->loader->user, job->unit, stack->codes);
    l->scales = job->loader->frozen(job->loader->user, job->unit, stack->absmax);
    l->absmax = calloc(rank_blocks(l) * (uint64_t)job->ranks + 1, sizeof *l->absmax);
    return l->absmax ? TSR_OK : tsr_fail(TSR_ENOMEM, "out of memory while loading %s", stack->path);
}

/* ---- quantized here ---- */

static tsr_status prepare(stack_load *l)
{
    const tsr_model *model = l->job->model;
    l->on.bad = &l->bad;
    l->on.absmax = own_absmax(l);
    if (!l->apart)
        return TSR_OK;
    l->on.rest = model->activation_begin;
    l->on.rest_bytes = (uint64_t)(model->activation_end - model->activation_begin);
    l->on.bad = cut_scratch(l, sizeof *l->on.bad);
    l->on.words = cut_scratch(l, TSR_NF4_NEST_WORDS * sizeof *l->on.words);
    l->on.absmax = cut_scratch(l, rank_blocks(l) * sizeof *l->on.absmax);
    l->on.matrix = cut_scratch(l, blocks_of(l->elements) * sizeof *l->on.matrix);
    uint64_t least = blocks_of(l->elements) + 2 * TSR_ALIGNMENT;
    uint64_t enough = 2 * tsr_load_chunk_bytes(l->job) + least;
    l->on.rest_bytes = l->on.rest_bytes < enough ? l->on.rest_bytes : enough;
    if (l->on.rest_bytes < least)
        return tsr_fail(TSR_EINTERNAL, "the activations' memory is too small to quantize %s in it",
                        l->stack->path);
    return tsr_stream_fill(stream_of(l), l->on.bad, 0xff, sizeof *l->on.bad);
}

static tsr_status chunk_elements(uint64_t *out, const stack_load *l)
{
    uint64_t element = tsr_dtype_bytes(l->reader.dtype);
    uint64_t most = tsr_load_chunk_bytes(l->job) / element;
    if (l->apart) {
        uint64_t room = (l->on.rest_bytes - TSR_ALIGNMENT) * 2 / (2 * element + 1);
        most = room < most ? room : most;
    }
    *out = most / TSR_NF4_BLOCK * TSR_NF4_BLOCK;
    if (*out > 0)
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL, "the staging of a micro-batch cannot hold %d values of %s",
                    TSR_NF4_BLOCK, l->stack->path);
}

static tsr_status quantize_chunk(stack_load *l, uint64_t matrix, uint64_t first, uint64_t count)
{
    tsr_stream *stream = stream_of(l);
    uint64_t element = tsr_dtype_bytes(l->reader.dtype), at = offset_of(l, matrix, first);
    char *staged;
    TSR_TRY(tsr_load_chunk_begin(&staged, l->job));
    TSR_TRY(tsr_stack_reader_read(staged, &l->reader, matrix, first, count,
                                  tsr_device_pool(l->job->loader->device)));
    uint8_t *codes = l->codes + at / 2;
    tsr_nf4_quantize_args args = {.codes = codes,
                                  .absmax = l->on.absmax + at / TSR_NF4_BLOCK,
                                  .bad = l->on.bad,
                                  .values = staged,
                                  .first = at,
                                  .count = (int64_t)count,
                                  .dtype = l->reader.dtype};
    if (l->apart) {
        char *values = l->on.rest + tsr_align_up((count + 1) / 2, TSR_ALIGNMENT);
        TSR_TRY(tsr_stream_copy(stream, values, staged, count * element));
        args.values = values;
        args.codes = (uint8_t *)l->on.rest;
    }
    TSR_TRY(l->job->model->options.kernels->nf4_quantize(stream, &args));
    if (l->apart)
        TSR_TRY(tsr_stream_copy(stream, codes, args.codes, (count + 1) / 2));
    return tsr_load_chunk_end(l->job);
}

/* What the device found is read again, for the message. */
static tsr_status refuse(stack_load *l)
{
    float value;
    uint64_t at = l->own * TSR_NF4_GRANULE + l->bad, whole = l->granules * TSR_NF4_GRANULE;
    TSR_TRY(tsr_stack_reader_read_f32(&value, &l->reader, at / whole, at % whole, 1,
                                      tsr_device_pool(l->job->loader->device)));
    return tsr_fail(TSR_EDATA, "%s is being changed", l->stack->path);
}

/* Phase 1: codes in their place, the rank's absmax on the host. */
static tsr_status quantize_own(stack_load *l)
{
    tsr_device *device = l->job->loader->device;
    uint64_t most;
    TSR_TRY(prepare(l));
    TSR_TRY(chunk_elements(&most, l));
    for (uint64_t m = 0; m < tsr_layout_stack_matrices(l->stack); m++) {
        piece own = piece_of(l, m);
        for (uint64_t done = 0; done < own.count; done += most) {
            uint64_t left = own.count - done;
            TSR_TRY(quantize_chunk(l, m, own.first + done, left < most ? left : most));
        }
    }
    TSR_TRY(tsr_stream_synchronize(stream_of(l)));
    if (l->apart) {
        TSR_TRY(tsr_device_read(device, &l->bad, l->on.bad, sizeof l->bad));
        TSR_TRY(tsr_device_read(device, own_absmax(l), l->on.absmax,
                                rank_blocks(l) * sizeof *l->absmax));
    }
    return l->bad == UINT64_MAX ? TSR_OK : refuse(l);
}

/* Phase 2, of one matrix: every rank has its absmax; its offset and nested scales, and the rank's codes. */
static tsr_status nest(stack_load *l, uint64_t matrix)
{
    tsr_load_job *job = l->job;
    const tsr_model_stack_state *state = tsr_model_stack(job->model, job->unit, l->index);
    piece own = piece_of(l, matrix);
    uint64_t blocks = blocks_of(l->elements);
    float *absmax = l->absmax + matrix * l->granules * TSR_NF4_GRANULE_BLOCKS;
    uint8_t *place =
        (uint8_t *)l->scales + (own.count ? offset_of(l, matrix, own.first) / TSR_NF4_BLOCK : 0);
    tsr_nf4_nest_args args = {.q = l->apart ? (uint8_t *)l->on.rest : place,
                              .nested_absmax =
                                  state->nested_absmax + matrix * tsr_layout_stack_nested(l->stack),
                              .offset = state->offset + matrix,
                              .absmax = absmax,
                              .map = state->nested_map,
                              .scratch = l->on.words,
                              .blocks = (int64_t)blocks,
                              .first = (int64_t)(own.first / TSR_NF4_BLOCK),
                              .count = (int64_t)blocks_of(own.count)};
    if (l->apart) {
        args.absmax = l->on.matrix;
        TSR_TRY(tsr_stream_synchronize(stream_of(l))); /* the one before is read from it */
        TSR_TRY(
            tsr_device_write(job->loader->device, l->on.matrix, absmax, blocks * sizeof *absmax));
    }
    TSR_TRY(job->model->options.kernels->nf4_nest(stream_of(l), &args));
    return l->apart ? tsr_stream_copy(stream_of(l), place, args.q, blocks_of(own.count)) : TSR_OK;
}

static tsr_status check_offsets(const stack_load *l)
{
    const tsr_model_stack_state *state = tsr_model_stack(l->job->model, l->job->unit, l->index);
    for (uint64_t m = 0; m < tsr_layout_stack_matrices(l->stack); m++) {
        float offset;
        TSR_TRY(tsr_device_read(l->job->loader->device, &offset, state->offset + m, sizeof offset));
        if (!isfinite(offset))
            return tsr_fail(TSR_EDATA, "tensor %s: the mean of its scales is %f",
                            tsr_stack_tensor(l->stack, m)->name, (double)offset);
    }
    return TSR_OK;
}

static tsr_status nest_all(stack_load *l)
{
    const tsr_model_loader *loader = l->job->loader;
    const tsr_model_stack_state *state = tsr_model_stack(l->job->model, l->job->unit, l->index);
    tsr_gather_range range = {own_absmax(l), l->absmax, rank_blocks(l) * sizeof *l->absmax};
    TSR_TRY(tsr_comm_all_gather(loader->comm, loader->stream, &range, 1));
    TSR_TRY(tsr_stream_synchronize(loader->stream));
    TSR_TRY(tsr_device_write(loader->device, state->nested_map, tsr_nf4_nested_map,
                             sizeof tsr_nf4_nested_map));
    for (uint64_t m = 0; m < tsr_layout_stack_matrices(l->stack); m++)
        TSR_TRY(nest(l, m));
    TSR_TRY(tsr_stream_synchronize(stream_of(l)));
    return check_offsets(l);
}

static tsr_status leave_zero(const stack_load *l)
{
    char *begin = l->job->model->activation_begin, *end = l->on.rest + l->on.rest_bytes;
    return l->apart ? tsr_stream_fill(stream_of(l), begin, 0, (uint64_t)(end - begin)) : TSR_OK;
}

static tsr_status quantize(stack_load *l)
{
    tsr_status status = quantize_own(l);
    if (status < 0) /* what was enqueued before works in l */
        (void)tsr_stream_synchronize(stream_of(l));
    TSR_TRY(tsr_load_agree(l->job, status));
    if (l->stack->nested)
        TSR_TRY(nest_all(l));
    else
        TSR_TRY(tsr_device_write(l->job->loader->device, l->scales, own_absmax(l),
                                 rank_blocks(l) * sizeof *l->absmax));
    return leave_zero(l);
}

/* ---- quantized before ---- */

/* The replicated state of one matrix, and the rank's part of it to `codes` and `scales`. */
static tsr_status copy_matrix(stack_load *l, uint64_t matrix, uint8_t *codes, char *scales)
{
    const tsr_model_stack_state *to = tsr_model_stack(l->job->model, l->job->unit, l->index);
    const tsr_weight *source = &l->stack->source[matrix];
    tsr_device *device = l->job->loader->device;
    tsr_pool *pool = tsr_device_pool(device);
    piece own = piece_of(l, matrix);
    tsr_nf4_layout cut;
    tsr_nf4_state state;
    TSR_TRY(tsr_nf4_layout_make(&cut, l->elements, 1, l->stack->nested));
    TSR_TRY(tsr_nf4_state_read(&state, source, &cut));
    tsr_status status = TSR_OK;
    if (l->stack->nested && matrix == 0)
        status = tsr_device_write(device, to->nested_map, state.map, sizeof state.map);
    if (status == TSR_OK && l->stack->nested) {
        uint64_t nested = tsr_layout_stack_nested(l->stack);
        status = tsr_device_write(device, to->nested_absmax + matrix * nested, state.nested,
                                  nested * sizeof(float));
        if (status == TSR_OK)
            status =
                tsr_device_write(device, to->offset + matrix, &state.scales.offset, sizeof(float));
        if (status == TSR_OK && memcmp(state.map, l->absmax, sizeof state.map) && matrix)
            status = tsr_fail(TSR_EDATA,
                              "tensor %s has another nested_quant_map than the first expert's: the "
                              "experts of a layer share one",
                              source->weight->name);
        memcpy(l->absmax, state.map, sizeof state.map);
    }
    tsr_nf4_state_free(&state);
    if (status < 0 || !own.count)
        return status;
    uint64_t at = offset_of(l, matrix, own.first);
    uint64_t scale = l->stack->nested ? 1 : sizeof(float);
    TSR_TRY(
        tsr_load_read(pool, codes + at / 2, source->weight, own.first / 2, (own.count + 1) / 2));
    return tsr_load_read_finite(pool, scales + at / TSR_NF4_BLOCK * scale, source->absmax,
                                own.first / TSR_NF4_BLOCK, blocks_of(own.count));
}

/* Taken as it is, never quantized again. */
static tsr_status copy_stored(stack_load *l)
{
    tsr_device *device = l->job->loader->device;
    uint64_t code_bytes = l->per_rank * TSR_NF4_GRANULE_CODE_BYTES;
    uint64_t scale_bytes = rank_blocks(l) * (l->stack->nested ? 1 : sizeof(float));
    uint8_t *codes = calloc(1, code_bytes + 1);
    char *scales = calloc(1, scale_bytes + 1);
    float *map = calloc(256 + 1, sizeof *map); /* of the matrix before */
    tsr_status status =
        codes && scales && map
            ? TSR_OK
            : tsr_fail(TSR_ENOMEM, "out of memory while loading %s", l->stack->path);
    free(l->absmax);
    l->absmax = map;
    for (uint64_t m = 0; status == TSR_OK && m < tsr_layout_stack_matrices(l->stack); m++)
        status = copy_matrix(l, m, codes, scales);
    if (status == TSR_OK)
        status = tsr_device_write(device, l->codes, codes, code_bytes);
    if (status == TSR_OK)
        status = tsr_device_write(device, l->scales, scales, scale_bytes);
    free(codes);
    free(scales);
    return status;
}

tsr_status tsr_load_stack(tsr_load_job *job, int index)
{
    stack_load l;
    tsr_status status = open_load(&l, job, index);
    bool stored = l.stack->source->prequantized;
    if (status == TSR_OK && !stored)
        status = tsr_stack_reader_open(&l.reader, l.stack);
    status = tsr_load_agree(job, status);
    if (status == TSR_OK)
        status = stored ? copy_stored(&l) : quantize(&l);
    tsr_stack_reader_close(&l.reader);
    free(l.absmax);
    return tsr_load_agree(job, status);
}

/* ---- plain ---- */

/* Elements [first, first + count) of the stack as it is kept, to `out`, which is of the segment's dtype. */
static tsr_status read_plain(char *out, tsr_stack_reader *reader, const tsr_layout_segment *segment,
                             uint64_t first, uint64_t count, tsr_pool *pool)
{
    uint64_t elements = tsr_layout_stack_elements(reader->stack);
    uint64_t element = tsr_dtype_bytes(segment->dtype);
    for (uint64_t done = 0, some; done < count; done += some) {
        uint64_t matrix = (first + done) / elements, at = (first + done) % elements;
        char *to = out + done * element;
        some = elements - at < count - done ? elements - at : count - done;
        if (segment->dtype == TSR_F32) {
            TSR_TRY(tsr_stack_reader_read_f32((float *)(void *)to, reader, matrix, at, some, pool));
            continue;
        }
        TSR_TRY(tsr_stack_reader_read(to, reader, matrix, at, some, pool));
        for (uint64_t i = 0; i < some; i++)
            if (!isfinite(tsr_bf16_to_f32(((uint16_t *)(void *)to)[i]))) {
                float value;
                TSR_TRY(tsr_stack_reader_read_f32(&value, reader, matrix, at + i, 1, pool));
            }
    }
    return TSR_OK;
}

tsr_status tsr_load_plain_stack(tsr_load_job *job, const tsr_layout_segment *segment, int index)
{
    const tsr_layout_unit *unit = &tsr_model_layout(job->model)->unit[job->unit];
    uint64_t first, count, element = tsr_dtype_bytes(segment->dtype);
    uint64_t most = tsr_load_chunk_bytes(job) / element;
    char *out = job->loader->frozen(job->loader->user, job->unit, index);
    tsr_stack_reader reader;
    tsr_status status = tsr_stack_reader_open(&reader, &unit->stack[segment->stack_index]);
    tsr_plain_range(&first, &count, segment, job->rank, job->ranks);
    for (uint64_t done = 0; status == TSR_OK && done < count; done += most) {
        uint64_t some = count - done < most ? count - done : most;
        char *staged;
        status = tsr_load_chunk_begin(&staged, job);
        if (status == TSR_OK)
            status = read_plain(staged, &reader, segment, first + done, some,
                                tsr_device_pool(job->loader->device));
        if (status == TSR_OK)
            status =
                tsr_stream_copy(job->model->compute, out + done * element, staged, some * element);
        if (status == TSR_OK)
            status = tsr_load_chunk_end(job);
    }
    tsr_stack_reader_close(&reader);
    return status;
}
