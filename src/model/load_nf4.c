/*
 * load_nf4.c: the rank's part of an NF4 weight: quantized on the device as it is read, or taken from a
 * bitsandbytes checkpoint as it is.
 *
 * On a GPU the scratch is the activations' memory, which is unused until the first micro-batch and is
 * left zero: absmax of all ranks, then codes and values of one chunk. The CPU's ops work where the
 * bytes are.
 */
#include "model/load_parts.h"

#include "base/checked.h"
#include "quant/nf4_stored.h"

#include <math.h>
#include <stdlib.h>

/* ---- quantized here ---- */

/* One weight on its way. */
typedef struct {
    tsr_load_job *job;
    const tsr_tensor *tensor;
    const tsr_nf4_layout *cut;
    tsr_nf4_range range;
    float *absmax; /* host: of all ranks, blocks_per_rank each; the padding is 0 */
    uint64_t bad;
    float offset;
    bool apart; /* the device does not compute in host memory */
    struct {    /* where the ops work: in the above, unless apart */
        uint64_t *bad;
        float *offset, *absmax;
        int64_t *words; /* scratch of nf4_nest */
        char *rest;     /* of the scratch, apart only */
        uint64_t rest_bytes;
    } on;
} weight;

static tsr_stream *stream_of(const weight *w)
{
    return w->job->model->compute;
}

/* This rank's absmax, on the host or where the ops work. */
static float *own(const weight *w, float *absmax)
{
    return absmax + (uint64_t)w->job->rank * w->cut->blocks_per_rank;
}

static void *cut_scratch(weight *w, uint64_t bytes)
{
    char *out = w->on.rest;
    uint64_t aligned = tsr_align_up(bytes, TSR_ALIGNMENT);
    w->on.rest += aligned;
    w->on.rest_bytes -= aligned < w->on.rest_bytes ? aligned : w->on.rest_bytes;
    return out;
}

static tsr_status prepare(weight *w)
{
    const tsr_model *model = w->job->model;
    uint64_t bytes = w->cut->blocks_per_rank * w->cut->rank_count * sizeof *w->absmax;
    w->absmax = calloc(1, bytes + 1);
    if (!w->absmax)
        return tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", w->tensor->name);
    w->bad = UINT64_MAX;
    w->on.bad = &w->bad;
    w->on.offset = &w->offset;
    w->on.absmax = w->absmax;
    if (!w->apart)
        return TSR_OK;
    w->on.rest = model->activation_begin;
    w->on.rest_bytes = (uint64_t)(model->activation_end - model->activation_begin);
    w->on.bad = cut_scratch(w, sizeof *w->on.bad);
    w->on.offset = cut_scratch(w, sizeof *w->on.offset);
    w->on.words = cut_scratch(w, TSR_NF4_NEST_WORDS * sizeof *w->on.words);
    w->on.absmax = cut_scratch(w, bytes);
    uint64_t enough = 2 * tsr_load_chunk_bytes(w->job) + w->range.block_count + TSR_ALIGNMENT;
    w->on.rest_bytes = w->on.rest_bytes < enough ? w->on.rest_bytes : enough;
    if (w->on.rest_bytes < w->range.block_count + TSR_ALIGNMENT)
        return tsr_fail(TSR_EINTERNAL, "the activations' memory is too small to quantize %s in it",
                        w->tensor->name);
    return tsr_stream_fill(stream_of(w), w->on.bad, 0xff, sizeof *w->on.bad);
}

/* Elements of a chunk: whole blocks, the values of which fit into the staging and, apart, with their
 * codes into the scratch. */
static tsr_status chunk_elements(uint64_t *out, const weight *w)
{
    uint64_t element = tsr_dtype_bytes(w->tensor->dtype);
    uint64_t most = tsr_load_chunk_bytes(w->job) / element;
    if (w->apart) {
        uint64_t room = (w->on.rest_bytes - TSR_ALIGNMENT) * 2 / (2 * element + 1);
        most = room < most ? room : most;
    }
    *out = most / TSR_NF4_BLOCK * TSR_NF4_BLOCK;
    if (*out > 0)
        return TSR_OK;
    return tsr_fail(TSR_EINTERNAL, "the staging of a micro-batch cannot hold %d values of %s",
                    TSR_NF4_BLOCK, w->tensor->name);
}

/* Elements [first, first + count) of the rank's part, into `codes`, its segment. */
static tsr_status quantize_chunk(weight *w, uint8_t *codes, uint64_t first, uint64_t count)
{
    tsr_stream *stream = stream_of(w);
    uint64_t element = tsr_dtype_bytes(w->tensor->dtype);
    char *staged;
    TSR_TRY(tsr_load_chunk_begin(&staged, w->job));
    TSR_TRY(tsr_load_read(tsr_device_pool(w->job->loader->device), staged, w->tensor,
                          (w->range.first_element + first) * element, count * element));
    tsr_nf4_quantize_args args = {.codes = codes + first / 2,
                                  .absmax = own(w, w->on.absmax) + first / TSR_NF4_BLOCK,
                                  .bad = w->on.bad,
                                  .values = staged,
                                  .first = first,
                                  .count = (int64_t)count,
                                  .dtype = w->tensor->dtype};
    if (w->apart) {
        char *values = w->on.rest + tsr_align_up((count + 1) / 2, TSR_ALIGNMENT);
        TSR_TRY(tsr_stream_copy(stream, values, staged, count * element));
        args.values = values;
        args.codes = (uint8_t *)w->on.rest;
    }
    TSR_TRY(w->job->model->options.kernels->nf4_quantize(stream, &args));
    if (w->apart) /* the place may be host memory */
        TSR_TRY(tsr_stream_copy(stream, codes + first / 2, args.codes, (count + 1) / 2));
    return tsr_load_chunk_end(w->job);
}

/* What the device found is read again, for the message. */
static tsr_status refuse(const weight *w)
{
    float value;
    TSR_TRY(tsr_safetensors_read_f32(&value, w->tensor, w->range.first_element + w->bad, 1));
    return tsr_fail(TSR_EDATA, "%s: tensor '%s' is being changed",
                    tsr_safetensors_path(w->tensor->file), w->tensor->name);
}

/* Phase 1: codes in their place, the rank's absmax on the host (and where the ops work). */
static tsr_status quantize_own(weight *w, uint8_t *codes)
{
    tsr_device *device = w->job->loader->device;
    uint64_t most = 0;
    TSR_TRY(prepare(w));
    TSR_TRY(chunk_elements(&most, w));
    for (uint64_t first = 0; first < w->range.element_count; first += most) {
        uint64_t left = w->range.element_count - first;
        TSR_TRY(quantize_chunk(w, codes, first, left < most ? left : most));
    }
    TSR_TRY(tsr_stream_synchronize(stream_of(w)));
    if (w->apart) {
        TSR_TRY(tsr_device_read(device, &w->bad, w->on.bad, sizeof w->bad));
        TSR_TRY(tsr_device_read(device, own(w, w->absmax), own(w, w->on.absmax),
                                w->range.block_count * sizeof *w->absmax));
    }
    return w->bad == UINT64_MAX ? TSR_OK : refuse(w);
}

/* Phase 2: every rank has all absmax; offset and nested scales, and the rank's codes to `place`. */
static tsr_status nest(weight *w, int index, uint8_t *place)
{
    tsr_load_job *job = w->job;
    tsr_device *device = job->loader->device;
    tsr_nf4_nest_args args = {.q = w->apart ? (uint8_t *)w->on.rest : place,
                              .nested_absmax =
                                  tsr_model_nested_absmax(job->model, job->unit, index),
                              .offset = w->on.offset,
                              .absmax = w->on.absmax,
                              .map = tsr_model_nested_map(job->model, job->unit, index),
                              .scratch = w->on.words,
                              .blocks = (int64_t)w->cut->block_count,
                              .first = (int64_t)w->range.first_block,
                              .count = (int64_t)w->range.block_count};
    TSR_TRY(tsr_device_write(device, tsr_model_nested_map(job->model, job->unit, index),
                             tsr_nf4_nested_map, sizeof tsr_nf4_nested_map));
    if (w->apart && job->ranks > 1)
        TSR_TRY(tsr_device_write(device, w->on.absmax, w->absmax,
                                 w->cut->block_count * sizeof *w->absmax));
    TSR_TRY(job->model->options.kernels->nf4_nest(stream_of(w), &args));
    if (w->apart)
        TSR_TRY(tsr_stream_copy(stream_of(w), place, args.q, w->range.block_count));
    TSR_TRY(tsr_stream_synchronize(stream_of(w)));
    if (w->apart)
        TSR_TRY(tsr_device_read(device, &w->offset, w->on.offset, sizeof w->offset));
    if (!isfinite(w->offset))
        return tsr_fail(TSR_EDATA, "tensor %s: the mean of its scales is %f", w->tensor->name,
                        (double)w->offset);
    tsr_model_set_offset(job->model, job->unit, index, w->offset);
    return TSR_OK;
}

/* Between the phases, with double quantization: the absmax of all ranks, in place. */
static tsr_status gather(weight *w)
{
    const tsr_model_loader *loader = w->job->loader;
    tsr_gather_range range = {own(w, w->absmax), w->absmax,
                              w->cut->blocks_per_rank * sizeof *w->absmax};
    TSR_TRY(tsr_comm_all_gather(loader->comm, loader->stream, &range, 1));
    return tsr_stream_synchronize(loader->stream);
}

static tsr_status leave_zero(const weight *w)
{
    char *begin = w->job->model->activation_begin, *end = w->on.rest + w->on.rest_bytes;
    return w->apart ? tsr_stream_fill(stream_of(w), begin, 0, (uint64_t)(end - begin)) : TSR_OK;
}

static tsr_status quantize(tsr_load_job *job, int index, const tsr_layout_linear *linear,
                           const tsr_nf4_layout *cut)
{
    const tsr_model_loader *loader = job->loader;
    weight w = {.job = job,
                .tensor = linear->source.weight,
                .cut = cut,
                .range = tsr_nf4_rank_range(cut, (uint64_t)job->rank),
                .apart = tsr_device_kind_of(loader->device) != TSR_DEVICE_CPU};
    char *codes = loader->frozen(loader->user, job->unit, linear->codes);
    char *scales = loader->frozen(loader->user, job->unit, linear->absmax);
    tsr_status status = quantize_own(&w, (uint8_t *)codes);
    if (status < 0) /* what was enqueued before works in w */
        (void)tsr_stream_synchronize(stream_of(&w));
    status = tsr_load_agree(job, status);
    if (status == TSR_OK && cut->nested)
        status = gather(&w);
    if (status == TSR_OK && cut->nested)
        status = nest(&w, index, (uint8_t *)scales);
    else if (status == TSR_OK)
        status = tsr_device_write(loader->device, scales, own(&w, w.absmax),
                                  w.range.block_count * sizeof *w.absmax);
    if (status == TSR_OK)
        status = leave_zero(&w);
    free(w.absmax);
    return status;
}

/* ---- quantized before ---- */

/* One rank's part of a checkpoint's NF4 weight. */
typedef struct {
    uint8_t *codes, *scales;
    tsr_nf4_state state;
} stored_part;

static void free_part(stored_part *p)
{
    free(p->codes);
    free(p->scales);
    tsr_nf4_state_free(&p->state);
}

static tsr_status read_stored(const tsr_load_job *job, const tsr_layout_linear *linear,
                              const tsr_nf4_layout *cut, stored_part *p)
{
    const tsr_weight *source = &linear->source;
    tsr_pool *pool = tsr_device_pool(job->loader->device);
    uint64_t rank = (uint64_t)job->rank;
    tsr_nf4_range range = tsr_nf4_rank_range(cut, rank);
    p->codes = malloc(cut->code_bytes + 1);
    p->scales = malloc(cut->absmax_bytes + 1);
    if (!p->codes || !p->scales)
        return tsr_fail(TSR_ENOMEM, "out of memory while loading %s", source->weight->name);
    TSR_TRY(tsr_nf4_state_read(&p->state, source, cut));
    TSR_TRY(tsr_load_read(pool, p->codes, source->weight, range.first_code_byte,
                          range.code_byte_count));
    TSR_TRY(tsr_load_read_finite(pool, p->scales, source->absmax, range.first_block,
                                 range.block_count));
    tsr_nf4_shard_codes(p->codes, cut, rank, p->codes);
    tsr_nf4_shard_absmax(p->scales, cut, rank, p->scales);
    return TSR_OK;
}

/* To where the plan keeps it. */
static tsr_status deliver(const tsr_load_job *job, int index, const tsr_layout_linear *linear,
                          const tsr_nf4_layout *cut, const stored_part *p)
{
    const tsr_model_loader *loader = job->loader;
    tsr_device *device = loader->device;
    TSR_TRY(tsr_device_write(device, loader->frozen(loader->user, job->unit, linear->codes),
                             p->codes, cut->code_bytes));
    TSR_TRY(tsr_device_write(device, loader->frozen(loader->user, job->unit, linear->absmax),
                             p->scales, cut->absmax_bytes));
    if (!cut->nested)
        return TSR_OK;
    tsr_model_set_offset(job->model, job->unit, index, p->state.scales.offset);
    TSR_TRY(tsr_device_write(device, tsr_model_nested_absmax(job->model, job->unit, index),
                             p->state.nested, cut->nested_count * sizeof(float)));
    return tsr_device_write(device, tsr_model_nested_map(job->model, job->unit, index),
                            p->state.map, sizeof p->state.map);
}

/* Taken as it is, never quantized again. */
static tsr_status copy_stored(const tsr_load_job *job, int index, const tsr_layout_linear *linear,
                              const tsr_nf4_layout *cut)
{
    stored_part p = {0};
    tsr_status status = read_stored(job, linear, cut, &p);
    if (status == TSR_OK)
        status = deliver(job, index, linear, cut, &p);
    free_part(&p);
    return status;
}

tsr_status tsr_load_nf4(tsr_load_job *job, int index)
{
    const tsr_layout_linear *linear = &tsr_model_layout(job->model)->unit[job->unit].linear[index];
    tsr_nf4_layout cut;
    TSR_TRY(
        tsr_nf4_layout_make(&cut, linear->out * linear->in, (uint64_t)job->ranks, linear->nested));
    if (linear->source.prequantized)
        return tsr_load_agree(job, copy_stored(job, index, linear, &cut));
    return tsr_load_agree(job, quantize(job, index, linear, &cut));
}
