#include "model/load_parts.h"

#include "adapters/init.h"
#include "base/auto.h"
#include "base/checked.h"
#include "base/phase.h"
#include "io/fp8_blocks.h"
#include "kernels/low_rank_residual.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((uint64_t)8 << 20)   /* a third of a millisecond over PCIe */
#define PIECE_BYTES ((uint64_t)512 << 10) /* that one thread reads at a time */

static uint64_t per_rank(const tsr_layout_segment *segment, int ranks)
{
    uint64_t granule = segment->granule_bytes / tsr_dtype_bytes(segment->dtype);
    return tsr_ceil_div(segment->granule_count, (uint64_t)ranks) * granule;
}

void tsr_plain_range(uint64_t *first, uint64_t *count, const tsr_layout_segment *segment, int rank,
                     int ranks)
{
    uint64_t part = per_rank(segment, ranks);
    uint64_t begin = part * (uint64_t)rank;
    *first = begin < segment->element_count ? begin : segment->element_count;
    *count = segment->element_count - *first < part ? segment->element_count - *first : part;
}

/* ---- chunks ---- */

uint64_t tsr_load_chunk_bytes(const tsr_load_job *job)
{
    uint64_t bytes = tsr_model_stage_bytes(&job->model->options);
    return bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES;
}

static stage *chunk_stage(const tsr_load_job *job)
{
    return &job->model->stage[job->chunks % STAGES];
}

tsr_status tsr_load_chunk_begin(char **out, tsr_load_job *job)
{
    tsr_event *staged = chunk_stage(job)->staged;
    *out = chunk_stage(job)->host;
    uint64_t last = tsr_event_recorded(staged);
    return last ? tsr_event_wait_host(staged, last) : TSR_OK;
}

tsr_status tsr_load_chunk_end(tsr_load_job *job)
{
    TSR_TRY(tsr_event_record(chunk_stage(job)->staged, job->model->compute));
    job->chunks++;
    return TSR_OK;
}

typedef struct {
    const tsr_tensor *tensor;
    char *out;
    uint64_t first, bytes;
    bool finite;
    _Atomic bool failed;
} reading;

static tsr_status read_part(const reading *r, uint64_t at, uint64_t bytes)
{
    uint64_t element = tsr_dtype_bytes(r->tensor->dtype);
    if (!r->finite)
        return tsr_safetensors_read(r->out + at, r->tensor, r->first + at, bytes);
    return tsr_safetensors_read_finite(r->out + at, r->tensor, (r->first + at) / element,
                                       bytes / element);
}

static void read_piece(void *context, int index)
{
    reading *r = context;
    uint64_t at = (uint64_t)index * PIECE_BYTES;
    uint64_t bytes = r->bytes - at < PIECE_BYTES ? r->bytes - at : PIECE_BYTES;
    if (read_part(r, at, bytes) < 0)
        atomic_store(&r->failed, true);
}

static tsr_status read_pieces(tsr_pool *pool, reading *r)
{
    tsr_pool_run(pool, (int)tsr_ceil_div(r->bytes, PIECE_BYTES), read_piece, r);
    if (!atomic_load(&r->failed))
        return TSR_OK;
    return read_part(r, 0, r->bytes); /* again, for this thread's message */
}

tsr_status tsr_load_read(tsr_pool *pool, void *out, const tsr_tensor *tensor, uint64_t first,
                         uint64_t bytes)
{
    return read_pieces(pool,
                       &(reading){.tensor = tensor, .out = out, .first = first, .bytes = bytes});
}

tsr_status tsr_load_read_finite(tsr_pool *pool, void *out, const tsr_tensor *tensor, uint64_t first,
                                uint64_t count)
{
    uint64_t element = tsr_dtype_bytes(tensor->dtype);
    return read_pieces(pool, &(reading){.tensor = tensor,
                                        .out = out,
                                        .first = first * element,
                                        .bytes = count * element,
                                        .finite = true});
}

/* ---- without the principal part ---- */

tsr_status tsr_load_residual_open(tsr_load_residual *residual, const tsr_load_job *job, int linear)
{
    const tsr_layout *layout = tsr_model_layout(job->model);
    const tsr_layout_unit *unit = &layout->unit[job->unit];
    *residual = (tsr_load_residual){.linear = &unit->linear[linear]};
    if (!job->loader->factors || !unit->linear[linear].r)
        return TSR_OK;
    residual->factors = tsr_factors_at(job->loader->factors, layout, job->unit, linear);
    residual->r = tsr_factors_rank(unit, linear);
    return tsr_weight_reader_open(&residual->reader, &unit->linear[linear].source);
}

void tsr_load_residual_close(tsr_load_residual *residual)
{
    tsr_weight_reader_close(residual->reader);
    residual->reader = NULL;
}

tsr_status tsr_load_residual_read(float *out, const tsr_load_residual *residual, tsr_pool *pool,
                                  uint64_t first, uint64_t count)
{
    const tsr_low_rank_residual_args args = {.a = residual->factors.a,
                                             .b = residual->factors.b,
                                             .r = (int64_t)residual->r,
                                             .in = (int64_t)residual->linear->in,
                                             .scale = (float)residual->linear->scale};
    TSR_TRY(tsr_weight_reader_read(out, residual->reader, first, count, pool));
    tsr_low_rank_residual(out, &args, (int64_t)first, (int64_t)count, pool);
    return TSR_OK;
}

/* ---- frozen parts ---- */

tsr_status tsr_load_agree(const tsr_load_job *job, tsr_status status)
{
    return tsr_comm_agree(job->loader->comm, job->loader->stream, status, NULL);
}

/* Values of the segment's dtype, as the tensor has them. */
static tsr_status read_values(tsr_load_job *job, char *out, const tsr_layout_segment *segment,
                              uint64_t first, uint64_t count)
{
    const tsr_tensor *tensor = segment->source;
    if (tensor->dtype == segment->dtype)
        TSR_TRY(
            tsr_load_read_finite(tsr_device_pool(job->loader->device), out, tensor, first, count));
    else
        TSR_TRY(tsr_safetensors_read_f32((float *)(void *)out, tensor, first, count));
    return segment->kind == TSR_SEGMENT_FP8_SCALE
               ? tsr_fp8_check_scales((const float *)(void *)out, count, tensor)
               : TSR_OK;
}

/* The same of rows whose halves are there by turns. */
static tsr_status read_turns(tsr_load_job *job, char *out, const tsr_layout_segment *segment,
                             uint64_t first, uint64_t count)
{
    uint64_t element = tsr_dtype_bytes(segment->dtype), width = segment->turns;
    uint64_t row = first / width, rows = tsr_ceil_div(first + count, width) - row;
    TSR_AUTO_FREE char *stored = malloc(rows * width * element + 1);
    if (!stored)
        return tsr_fail(TSR_ENOMEM, "out of memory while loading %s", segment->name);
    TSR_TRY(read_values(job, stored, segment, row * width, rows * width));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = first + i, column = at % width, half = width / 2;
        uint64_t from = at - column - row * width + column % half * 2 + column / half;
        memcpy(out + i * element, stored + from * element, element);
    }
    return TSR_OK;
}

/* Elements [first, first + count) of a plain segment as they are kept, to `out`. */
static tsr_status put_plain(tsr_load_job *job, char *out, const tsr_layout_segment *segment,
                            uint64_t first, uint64_t count)
{
    uint64_t element = tsr_dtype_bytes(segment->dtype);
    const tsr_tensor *tensor = segment->source;
    char *staged;
    TSR_TRY(tsr_load_chunk_begin(&staged, job));
    if (segment->one) {
        TSR_TRY(tsr_safetensors_read_f32((float *)(void *)staged, tensor, 0, 1));
        for (uint64_t i = 1; i < count; i++)
            ((float *)(void *)staged)[i] = ((float *)(void *)staged)[0];
    } else if (segment->turns)
        TSR_TRY(read_turns(job, staged, segment, first, count));
    else
        TSR_TRY(read_values(job, staged, segment, first, count));
    for (uint64_t i = 0; i < count && segment->divisor != 0; i++)
        ((float *)(void *)staged)[i] =
            (((float *)(void *)staged)[i] + segment->plus) / segment->divisor;
    TSR_TRY(tsr_stream_copy(job->model->compute, out, staged, count * element));
    return tsr_load_chunk_end(job);
}

/* The same of a weight that gives up its principal part. */
static tsr_status put_residual(tsr_load_job *job, char *out, const tsr_layout_segment *segment,
                               const tsr_load_residual *residual, uint64_t first, uint64_t count)
{
    tsr_pool *pool = tsr_device_pool(job->loader->device);
    char *staged;
    TSR_TRY(tsr_load_chunk_begin(&staged, job));
    TSR_AUTO_FREE float *wide = segment->dtype == TSR_F32 ? NULL : malloc(count * sizeof *wide + 1);
    if (segment->dtype != TSR_F32 && !wide)
        return tsr_fail(TSR_ENOMEM, "out of memory while loading %s", segment->name);
    float *values = wide ? wide : (float *)(void *)staged;
    TSR_TRY(tsr_load_residual_read(values, residual, pool, first, count));
    for (uint64_t i = 0; wide && i < count; i++)
        ((uint16_t *)(void *)staged)[i] = tsr_f32_to_bf16(wide[i]);
    TSR_TRY(
        tsr_stream_copy(job->model->compute, out, staged, count * tsr_dtype_bytes(segment->dtype)));
    return tsr_load_chunk_end(job);
}

/* What pads the part in its place is zero already. */
static tsr_status load_range(tsr_load_job *job, const tsr_layout_segment *segment, int index,
                             const tsr_load_residual *residual)
{
    uint64_t first, count, element = tsr_dtype_bytes(segment->dtype);
    uint64_t most = tsr_load_chunk_bytes(job) / element;
    char *out = job->loader->frozen(job->loader->user, job->unit, index);
    tsr_plain_range(&first, &count, segment, job->rank, job->ranks);
    first += segment->first_element;
    for (uint64_t done = 0; done < count; done += most) {
        uint64_t some = count - done < most ? count - done : most;
        char *to = out + done * element;
        TSR_TRY(residual->reader ? put_residual(job, to, segment, residual, first + done, some)
                                 : put_plain(job, to, segment, first + done, some));
    }
    return TSR_OK;
}

static tsr_status load_plain(tsr_load_job *job, const tsr_layout_segment *segment, int index)
{
    const tsr_layout_unit *unit = &tsr_model_layout(job->model)->unit[job->unit];
    tsr_load_residual residual = {0};
    tsr_status status = TSR_OK;
    if (segment->of_stack && unit->stack[segment->stack_index].plain == index)
        return tsr_load_plain_stack(job, segment, index);
    if (segment->linear >= 0 && unit->linear[segment->linear].plain == index)
        status = tsr_load_residual_open(&residual, job, segment->linear);
    if (status == TSR_OK)
        status = load_range(job, segment, index, &residual);
    tsr_load_residual_close(&residual);
    return status;
}

/* Whether the checkpoint has these codes and scales; not where the base gives up a part. */
static bool is_stored_int8(const tsr_load_job *job, const tsr_layout_segment *segment)
{
    const tsr_layout_linear *linear =
        &tsr_model_layout(job->model)->unit[job->unit].linear[segment->linear];
    return linear->source.int8_scale && !(job->loader->factors && linear->r);
}

/* But those of NF4, whose codes and scales come together. */
static tsr_status load_segment(tsr_load_job *job, const tsr_layout_segment *segment, int index)
{
    const tsr_load_residual whole = {0};
    switch (segment->kind) {
    case TSR_SEGMENT_PLAIN:
        return load_plain(job, segment, index);
    case TSR_SEGMENT_FP8:
    case TSR_SEGMENT_FP8_SCALE:
        return load_range(job, segment, index, &whole);
    case TSR_SEGMENT_INT8:
    case TSR_SEGMENT_INT8_SCALE:
        return is_stored_int8(job, segment) ? load_range(job, segment, index, &whole)
                                            : tsr_load_int8(job, index);
    default:
        return TSR_OK;
    }
}

tsr_status tsr_model_load_unit(tsr_model *model, int unit, int part, const tsr_model_loader *loader)
{
    const tsr_layout *layout = tsr_model_layout(model);
    const tsr_layout_unit *parts = &layout->unit[unit];
    tsr_load_job job = {.model = model,
                        .loader = loader,
                        .unit = unit,
                        .rank = tsr_comm_rank(loader->comm),
                        .ranks = tsr_comm_size(loader->comm)};
    for (int i = 0; i < tsr_layout_linears(parts); i++)
        if (parts->linear[i].quantized && /* else it is a plain segment */
            parts->frozen[parts->linear[i].codes].unit == parts->first_unit + part)
            TSR_TRY(tsr_load_nf4(&job, i));
    for (int i = 0; i < tsr_layout_stacks(parts); i++)
        if (parts->stack[i].quantized &&
            parts->frozen[parts->stack[i].codes].unit == parts->first_unit + part)
            TSR_TRY(parts->stack[i].mxfp4 ? tsr_load_mxfp4_stack(&job, i)
                                          : tsr_load_stack(&job, i));
    tsr_status status = TSR_OK;
    for (int i = 0; i < parts->frozen_count && status == TSR_OK; i++)
        if (parts->frozen[i].unit == parts->first_unit + part)
            status = load_segment(&job, &parts->frozen[i], i);
    tsr_status ended = tsr_stream_synchronize(model->compute);
    TSR_TRY(tsr_load_agree(&job, status < 0 ? status : ended));
    tsr_phase_at("reading and quantizing", unit + 1, layout->unit_count);
    return TSR_OK;
}

/* What an adapter starts from. */
typedef struct {
    const tsr_layout *layout;
    const tsr_peft *init;
    uint64_t seed;
    const tsr_model_loader *loader;
} beginning;

/* What init_adapter has of a module; NULL: nothing, or there is none. */
static const tsr_peft_module *stored_of(const beginning *begin, const char *path)
{
    return begin->init ? tsr_peft_module_find(begin->init, path) : NULL;
}

/* Elements [from, from + count), as files have them, of a fresh A or B. */
static void draw(float *out, const beginning *begin, const tsr_layout_linear *linear, bool is_b,
                 uint64_t r, uint64_t from, uint64_t count)
{
    uint64_t seed = begin->seed;
    switch (begin->loader->start) {
    case TSR_START_RANDOM:
        if (is_b)
            tsr_adapter_init_b(out, from, count, r, seed, linear->module_key);
        else
            tsr_adapter_init_a(out, from, count, linear->in, seed, linear->module_key);
        break;
    case TSR_START_NORMAL:
        if (!is_b)
            tsr_adapter_init_normal(out, from, count, 1 / (double)r, seed, linear->module_key);
        break;
    case TSR_START_KAIMING:
    case TSR_START_PRINCIPAL:
        if (!is_b)
            tsr_adapter_init_a(out, from, count, linear->in, seed, linear->module_key);
        break;
    }
}

/* This rank's part of a trainable segment: elements [from, from + count) as files have them, for `read`, which is zero at
 * first; and, with what pads them, the values as they are kept, which `read` is where files have the same columns. */
typedef struct {
    const tsr_layout_segment *segment;
    uint64_t first, end; /* in memory */
    uint64_t from, count;
    float *read, *values;
} owned_part;

static void free_part(owned_part *part)
{
    if (part->read != part->values)
        free(part->read);
    free(part->values);
}

static tsr_status open_part(owned_part *out, const tsr_layout_segment *s,
                            const tsr_model_loader *loader)
{
    int rank = tsr_comm_rank(loader->comm), ranks = tsr_comm_size(loader->comm);
    owned_part part = {.segment = s};
    tsr_plain_range(&part.first, &part.end, s, rank, ranks);
    part.end += part.first;
    for (tsr_stored_run run = {0}; tsr_stored_next(&run, s, part.first, part.end);) {
        part.from = part.count ? part.from : run.stored;
        part.count += run.count;
    }
    part.values = calloc(per_rank(s, ranks) + 1, sizeof(float));
    bool same = s->columns == s->stored_columns && !s->stack;
    part.read = same ? part.values : calloc(part.count + 1, sizeof(float));
    if (!part.values || !part.read) {
        free_part(&part);
        return tsr_fail(TSR_ENOMEM, "out of memory while loading %s", s->name);
    }
    *out = part;
    return TSR_OK;
}

/* Hands it over, unless filling it failed. */
static tsr_status close_part(owned_part *part, tsr_status status, const tsr_model_loader *loader,
                             int unit, int segment)
{
    tsr_stored_run run = {0};
    while (part->read != part->values &&
           tsr_stored_next(&run, part->segment, part->first, part->end))
        memcpy(part->values + (run.memory - part->first), part->read + (run.stored - part->from),
               run.count * sizeof *part->read);
    if (status == TSR_OK)
        status = loader->trainable(loader->user, unit, segment, part->values);
    free_part(part);
    return status;
}

/* The owned elements of one trainable tensor: stored ones, or fresh A and B; m is left 0. */
static tsr_status load_tensor(const beginning *begin, int unit, int linear, int segment,
                              const tsr_tensor *stored)
{
    const tsr_layout_unit *parts = &begin->layout->unit[unit];
    const tsr_layout_linear *l = &parts->linear[linear];
    float *factors = begin->loader->factors;
    tsr_status status = TSR_OK;
    owned_part part;
    TSR_TRY(open_part(&part, &parts->trainable[segment], begin->loader));
    if (stored) {
        status = tsr_safetensors_read_f32(part.read, stored, part.from, part.count);
    } else if (segment != l->m && factors) {
        tsr_factors f = tsr_factors_at(factors, begin->layout, unit, linear);
        memcpy(part.read, (segment == l->a ? f.a : f.b) + part.from,
               part.count * sizeof *part.read);
    } else if (segment != l->m) {
        draw(part.read, begin, l, segment == l->b, tsr_factors_rank(parts, linear), part.from,
             part.count);
    }
    return close_part(&part, status, begin->loader, unit, segment);
}

/* A chunk of a table that is trained whole: as init has it, else the checkpoint. */
static tsr_status load_chunk(const beginning *begin, int unit)
{
    const tsr_layout_segment *s = &begin->layout->unit[unit].trainable[0];
    const tsr_peft_module *stored = stored_of(begin, s->module);
    owned_part part;
    TSR_TRY(open_part(&part, s, begin->loader));
    tsr_status status = tsr_safetensors_read_f32(part.read, stored ? stored->whole : s->source,
                                                 s->first_element + part.from, part.count);
    return close_part(&part, status, begin->loader, unit, 0);
}

/* A reward model's score: as init has it, else normal, as Transformers draws what a checkpoint does not have. */
static tsr_status load_score(const beginning *begin, int unit)
{
    const tsr_layout_segment *s = &begin->layout->unit[unit].trainable[0];
    const tsr_peft_module *stored = stored_of(begin, s->module);
    tsr_status status = TSR_OK;
    owned_part part;
    TSR_TRY(open_part(&part, s, begin->loader));
    if (stored)
        status = tsr_safetensors_read_f32(part.read, stored->whole, part.from, part.count);
    else
        tsr_adapter_init_normal(part.read, part.from, part.count,
                                begin->layout->config.initializer_range, begin->seed,
                                tsr_adapter_module_key(s->module));
    return close_part(&part, status, begin->loader, unit, 0);
}

/* Rows of a table: as init has them, else the checkpoint. */
static tsr_status fill_rows(const owned_part *part, const tsr_layout_rows *rows,
                            const tsr_tensor *stored)
{
    uint64_t d = part->segment->stored_columns, end = part->from + part->count;
    for (uint64_t at = part->from, some; at < end; at += some) {
        uint64_t row = at / d, column = at % d;
        uint64_t from = stored ? at : (uint64_t)rows->id[row] * d + column;
        some = d - column < end - at ? d - column : end - at;
        TSR_TRY(tsr_safetensors_read_f32(part->read + (at - part->from),
                                         stored ? stored : part->segment->source, from, some));
    }
    return TSR_OK;
}

static tsr_status load_rows(const beginning *begin, int unit, const tsr_layout_rows *rows)
{
    const tsr_layout_segment *s = &begin->layout->unit[unit].trainable[rows->segment];
    const tsr_peft_module *stored = stored_of(begin, s->module);
    owned_part part;
    TSR_TRY(open_part(&part, s, begin->loader));
    tsr_status status = fill_rows(&part, rows, stored ? stored->rows : NULL);
    return close_part(&part, status, begin->loader, unit, rows->segment);
}

/* A or B of the embedding's LoRA: as init has it, else A = 0 and B normal, as PEFT draws them. */
static tsr_status load_embedding_part(const beginning *begin, int unit, int segment,
                                      const tsr_tensor *stored)
{
    const tsr_layout_table_lora *lora = &begin->layout->embedding_lora;
    bool is_b = segment == lora->b, drawn = is_b || begin->loader->start == TSR_START_RANDOM;
    tsr_status status = TSR_OK;
    owned_part part;
    TSR_TRY(open_part(&part, &begin->layout->unit[unit].trainable[segment], begin->loader));
    if (stored)
        status = tsr_safetensors_read_f32(part.read, stored, part.from, part.count);
    else if (drawn)
        tsr_adapter_init_normal(part.read, part.from, part.count, 1, begin->seed, lora->key + is_b);
    return close_part(&part, status, begin->loader, unit, segment);
}

static tsr_status load_embedding_lora(const beginning *begin, int unit)
{
    const tsr_layout_table_lora *lora = &begin->layout->embedding_lora;
    const tsr_peft_module *stored = stored_of(begin, begin->layout->embedding_path);
    TSR_TRY(load_embedding_part(begin, unit, lora->a, stored ? stored->a : NULL));
    return load_embedding_part(begin, unit, lora->b, stored ? stored->b : NULL);
}

/* A, of the first chunk, or a chunk's rows of B: as init has them, else as those of a linear begin. */
static tsr_status load_head_part(const beginning *begin, int unit, int segment,
                                 const tsr_tensor *stored)
{
    const tsr_layout_unit *parts = &begin->layout->unit[unit];
    const tsr_layout_segment *s = &parts->trainable[segment];
    const tsr_layout_linear as_linear = {.in = begin->layout->config.hidden_size,
                                         .module_key = begin->layout->head_lora.key};
    bool is_b = segment == parts->trainable_count - 1;
    uint64_t r = is_b ? s->stored_columns : s->stored_rows,
             before = is_b ? parts->first_row * r : 0;
    tsr_status status = TSR_OK;
    owned_part part;
    TSR_TRY(open_part(&part, s, begin->loader));
    if (stored)
        status = tsr_safetensors_read_f32(part.read, stored, before + part.from, part.count);
    else
        draw(part.read, begin, &as_linear, is_b, r, before + part.from, part.count);
    return close_part(&part, status, begin->loader, unit, segment);
}

static tsr_status load_head_lora(const beginning *begin, int unit)
{
    const tsr_layout_unit *parts = &begin->layout->unit[unit];
    const tsr_peft_module *stored = stored_of(begin, "lm_head");
    for (int i = 0; i < parts->trainable_count; i++) {
        bool is_b = i == parts->trainable_count - 1;
        TSR_TRY(load_head_part(begin, unit, i, !stored ? NULL : is_b ? stored->b : stored->a));
    }
    return TSR_OK;
}

/* What is trained of the head's chunks or the embedding's. */
static tsr_status load_table(const beginning *begin, int unit)
{
    const tsr_layout *layout = begin->layout;
    bool embedding = unit >= tsr_layout_head_end(layout);
    if (!layout->unit[unit].trainable_count)
        return TSR_OK;
    if (!embedding && layout->scores)
        return load_score(begin, unit);
    if (!embedding && layout->head_lora.r)
        return load_head_lora(begin, unit);
    if (!embedding || layout->embedding_whole)
        return load_chunk(begin, unit);
    if (layout->embedding_rows.count)
        TSR_TRY(load_rows(begin, unit, &layout->embedding_rows));
    if (layout->head_rows.count && !layout->rows_tied)
        TSR_TRY(load_rows(begin, unit, &layout->head_rows));
    return layout->embedding_lora.r ? load_embedding_lora(begin, unit) : TSR_OK;
}

/* A fresh A or B of a stack: each expert's is drawn as that of a linear of its own. */
static void draw_stack(float *out, const beginning *begin, const tsr_layout_stack *stack,
                       const tsr_layout_segment *s, uint64_t from, uint64_t count)
{
    uint64_t size = s->stored_rows * s->stored_columns;
    bool is_b = s->stored_rows == stack->out;
    for (uint64_t done = 0, some; done < count; done += some) {
        uint64_t expert = (from + done) / size, at = (from + done) % size;
        some = size - at < count - done ? size - at : count - done;
        const tsr_layout_linear one = {
            .in = stack->in, .module_key = tsr_adapter_expert_key(stack->module_key, expert)};
        draw(out + done, begin, &one, is_b, is_b ? s->stored_columns : s->stored_rows, at, some);
    }
}

/* A or B of a stack: stored ones, in the order of files (io/peft.h), or fresh ones. */
static tsr_status load_stack_part(const beginning *begin, int unit, int stack, int segment,
                                  const tsr_peft_module *stored)
{
    const tsr_layout_unit *parts = &begin->layout->unit[unit];
    const tsr_layout_stack *s = &parts->stack[stack];
    tsr_status status = TSR_OK;
    owned_part part;
    TSR_TRY(open_part(&part, &parts->trainable[segment], begin->loader));
    if (stored && stored->one)
        status = tsr_peft_read_joined(part.read, stored, segment == s->b, part.from, part.count);
    else if (stored && segment == s->a)
        status = tsr_safetensors_read_f32(part.read, stored->a, part.from, part.count);
    else if (stored)
        status = tsr_peft_read_expert_b(part.read, stored->b,
                                        &(tsr_peft_expert_b){s->experts, s->out,
                                                             part.segment->stored_columns,
                                                             tsr_layout_stack_by_turns(s)},
                                        part.from, part.count);
    else
        draw_stack(part.read, begin, s, part.segment, part.from, part.count);
    return close_part(&part, status, begin->loader, unit, segment);
}

tsr_status tsr_model_load_trainable(const tsr_layout *layout, int unit, const tsr_peft *init,
                                    uint64_t seed, const tsr_model_loader *loader)
{
    const tsr_layout_unit *parts = &layout->unit[unit];
    const beginning begin = {layout, init, seed, loader};
    if (!parts->block)
        return load_table(&begin, unit);
    for (int i = 0; i < tsr_layout_linears(parts); i++) {
        const tsr_layout_linear *l = &parts->linear[i];
        const tsr_peft_module *stored = stored_of(&begin, l->path);
        if (!l->r)
            continue;
        TSR_TRY(load_tensor(&begin, unit, i, l->a, stored ? stored->a : NULL));
        TSR_TRY(load_tensor(&begin, unit, i, l->b, stored ? stored->b : NULL));
        if (l->dora)
            TSR_TRY(load_tensor(&begin, unit, i, l->m, stored ? stored->magnitude : NULL));
    }
    for (int i = 0; i < tsr_layout_stacks(parts); i++) {
        const tsr_layout_stack *s = &parts->stack[i];
        const tsr_peft_module *stored = stored_of(&begin, s->path);
        if (!s->r)
            continue;
        TSR_TRY(load_stack_part(&begin, unit, i, s->a, stored));
        TSR_TRY(load_stack_part(&begin, unit, i, s->b, stored));
    }
    return TSR_OK;
}

tsr_status tsr_model_load_table(char *table, const tsr_tensor *tensor, uint64_t first,
                                uint64_t count, tsr_pool *pool)
{
    uint64_t d = tensor->shape[1];
    uint64_t element = tsr_dtype_bytes(tensor->dtype == TSR_BF16 ? TSR_BF16 : TSR_F32);
    char *out = table + first * d * element;
    if (tensor->dtype == TSR_F16)
        return tsr_safetensors_read_f32((float *)(void *)out, tensor, first * d, count * d);
    return tsr_load_read_finite(pool, out, tensor, first * d, count * d);
}
