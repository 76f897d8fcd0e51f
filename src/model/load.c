#include "model/load.h"

#include "adapters/init.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void tsr_plain_range(uint64_t *first, uint64_t *count, const tsr_layout_segment *segment, int rank,
                     int ranks)
{
    uint64_t part = tsr_ceil_div(segment->granule_count, (uint64_t)ranks) * 64;
    uint64_t begin = part * (uint64_t)rank;
    *first = begin < segment->element_count ? begin : segment->element_count;
    *count = segment->element_count - *first < part ? segment->element_count - *first : part;
}

/* Elements of a plain tensor as they are kept: BF16 as it is, F32, or F16 widened. */
static tsr_status read_plain(void *out, const tsr_tensor *tensor, tsr_dtype dtype, uint64_t first,
                             uint64_t count)
{
    if (tensor->dtype == dtype)
        return tsr_safetensors_read(out, tensor, first * tsr_dtype_bytes(dtype),
                                    count * tsr_dtype_bytes(dtype));
    return tsr_safetensors_read_f32(out, tensor, first, count);
}

/* What the quantization of one weight needs on the way. */
typedef struct {
    void *values;    /* own elements as the file has them */
    float *absmax;   /* own blocks */
    float *gathered; /* all blocks */
} quantize_buffers;

static void free_buffers(quantize_buffers *b)
{
    free(b->values);
    free(b->absmax);
    free(b->gathered);
}

typedef struct {
    tsr_model *model;
    const tsr_model_loader *loader;
    int unit;
    int rank, ranks;
} job;

static tsr_status agree(const job *j, tsr_status status)
{
    return tsr_comm_agree(j->loader->comm, j->loader->stream, status, NULL);
}

static tsr_status read_and_quantize(const job *j, const tsr_layout_linear *linear,
                                    const tsr_nf4_layout *cut, quantize_buffers *b)
{
    const tsr_tensor *tensor = linear->source.weight;
    uint32_t element = tsr_dtype_bytes(tensor->dtype);
    tsr_nf4_range range = tsr_nf4_rank_range(cut, (uint64_t)j->rank);
    b->values = malloc(range.element_count * element + 1);
    b->absmax = malloc(cut->blocks_per_rank * sizeof(float) + 1);
    b->gathered = malloc(cut->blocks_per_rank * (uint64_t)j->ranks * sizeof(float) + 1);
    if (!b->values || !b->absmax || !b->gathered)
        return tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", tensor->name);
    TSR_TRY(tsr_safetensors_read(b->values, tensor, range.first_element * element,
                                 range.element_count * element));
    char *codes = j->loader->frozen(j->loader->user, j->unit, linear->codes);
    float *absmax = b->absmax;
    if (!cut->nested)
        absmax = (float *)(void *)j->loader->frozen(j->loader->user, j->unit, linear->absmax);
    return tsr_nf4_shard_quantize((uint8_t *)codes, absmax, cut, (uint64_t)j->rank, b->values,
                                  tensor->dtype, tensor->name);
}

static tsr_status quantize(const job *j, tsr_linear_kind kind, const tsr_layout_linear *linear,
                           const tsr_nf4_layout *cut)
{
    quantize_buffers b = {0};
    float offset = 0;
    tsr_status status = agree(j, read_and_quantize(j, linear, cut, &b));
    if (status < 0 || !cut->nested)
        goto out;
    tsr_gather_range range = {b.absmax, b.gathered, cut->blocks_per_rank * sizeof(float)};
    status = tsr_comm_all_gather(j->loader->comm, j->loader->stream, &range, 1);
    if (status == TSR_OK)
        status = tsr_stream_synchronize(j->loader->stream);
    if (status == TSR_OK)
        status = tsr_nf4_shard_nest(
            (uint8_t *)j->loader->frozen(j->loader->user, j->unit, linear->absmax),
            tsr_model_nested_absmax(j->model, j->unit, kind), &offset, cut, (uint64_t)j->rank,
            b.gathered, linear->source.weight->name);
    memcpy(tsr_model_nested_map(j->model, j->unit, kind), tsr_nf4_nested_map,
           sizeof tsr_nf4_nested_map);
    tsr_model_set_offset(j->model, j->unit, kind, offset);
out:
    free_buffers(&b);
    return status;
}

/* The small replicated tensors of a pre-quantized weight, and whether they are what we understand.
 */
static tsr_status read_state(const job *j, tsr_linear_kind kind, const tsr_layout_linear *linear,
                             const tsr_nf4_layout *cut)
{
    const tsr_weight *source = &linear->source;
    float map[16];
    tsr_nf4_scales scales;
    tsr_nf4_checkpoint stored = {.quant_type = "nf4",
                                 .blocksize = source->blocksize,
                                 .nested_blocksize = source->nested_blocksize,
                                 .quant_map = map,
                                 .quant_map_count = source->quant_map->element_count,
                                 .code_byte_count = source->weight->bytes,
                                 .absmax_count = source->absmax->element_count,
                                 .nested_offset = source->nested_offset};
    if (stored.quant_map_count != 16)
        return tsr_fail(TSR_EDATA, "%s: %" PRIu64 " levels; NF4 has 16", source->quant_map->name,
                        stored.quant_map_count);
    TSR_TRY(tsr_safetensors_read(map, source->quant_map, 0, sizeof map));
    if (cut->nested) {
        float *nested = tsr_model_nested_absmax(j->model, j->unit, kind);
        float *nested_map = tsr_model_nested_map(j->model, j->unit, kind);
        if (source->nested_count != cut->nested_count ||
            source->nested_quant_map->element_count != 256)
            return tsr_fail(TSR_EDATA,
                            "%s: %" PRIu64 " nested scales and a map of %" PRIu64
                            " values; %" PRIu64 " and 256 are expected",
                            source->weight->name, source->nested_count,
                            source->nested_quant_map->element_count, cut->nested_count);
        TSR_TRY(
            tsr_safetensors_read(nested, source->nested_absmax, 0, source->nested_absmax->bytes));
        TSR_TRY(tsr_safetensors_read(nested_map, source->nested_quant_map, 0, 256 * sizeof(float)));
        stored.nested_absmax = nested;
        stored.nested_absmax_count = source->nested_count;
        stored.nested_map = nested_map;
        stored.nested_map_count = 256;
    }
    TSR_TRY(tsr_nf4_check_checkpoint(&scales, cut, &stored, source->weight->name));
    tsr_model_set_offset(j->model, j->unit, kind, scales.offset);
    return TSR_OK;
}

/* A pre-quantized weight is taken as it is, never quantized again. */
static tsr_status copy_quantized(const job *j, tsr_linear_kind kind,
                                 const tsr_layout_linear *linear, const tsr_nf4_layout *cut)
{
    const tsr_weight *source = &linear->source;
    uint64_t rank = (uint64_t)j->rank, scale_bytes = cut->nested ? 1 : sizeof(float);
    tsr_nf4_range range = tsr_nf4_rank_range(cut, rank);
    char *codes = j->loader->frozen(j->loader->user, j->unit, linear->codes);
    char *absmax = j->loader->frozen(j->loader->user, j->unit, linear->absmax);
    TSR_TRY(read_state(j, kind, linear, cut));
    TSR_TRY(
        tsr_safetensors_read(codes, source->weight, range.first_code_byte, range.code_byte_count));
    TSR_TRY(tsr_safetensors_read(absmax, source->absmax, range.first_block * scale_bytes,
                                 range.block_count * scale_bytes));
    tsr_nf4_shard_codes((uint8_t *)codes, cut, rank, codes);
    tsr_nf4_shard_absmax(absmax, cut, rank, absmax);
    return TSR_OK;
}

static tsr_status load_linear(const job *j, tsr_linear_kind kind, const tsr_layout_linear *linear)
{
    tsr_nf4_layout cut;
    if (!linear->quantized)
        return TSR_OK; /* a plain segment */
    TSR_TRY(
        tsr_nf4_layout_make(&cut, linear->out * linear->in, (uint64_t)j->ranks, linear->nested));
    if (linear->source.prequantized)
        return agree(j, copy_quantized(j, kind, linear, &cut));
    return quantize(j, kind, linear, &cut);
}

static tsr_status load_plain(const job *j, const tsr_layout_segment *segment, int index)
{
    uint64_t first, count;
    char *out = j->loader->frozen(j->loader->user, j->unit, index);
    tsr_plain_range(&first, &count, segment, j->rank, j->ranks);
    uint64_t part =
        tsr_ceil_div(segment->granule_count, (uint64_t)j->ranks) * segment->granule_bytes;
    uint64_t bytes = count * tsr_dtype_bytes(segment->dtype);
    TSR_TRY(
        read_plain(out, segment->source, segment->dtype, segment->first_element + first, count));
    memset(out + bytes, 0, part - bytes);
    return TSR_OK;
}

tsr_status tsr_model_load_unit(tsr_model *model, int unit, const tsr_model_loader *loader)
{
    const tsr_layout *layout = tsr_model_layout(model);
    const tsr_layout_unit *parts = &layout->unit[unit];
    job j = {model, loader, unit, tsr_comm_rank(loader->comm), tsr_comm_size(loader->comm)};
    for (tsr_linear_kind kind = 0; parts->linear && kind < TSR_LINEAR_COUNT; kind++)
        TSR_TRY(load_linear(&j, kind, &parts->linear[kind]));
    tsr_status status = TSR_OK;
    for (int i = 0; i < parts->frozen_count && status == TSR_OK; i++)
        if (parts->frozen[i].kind == TSR_SEGMENT_PLAIN)
            status = load_plain(&j, &parts->frozen[i], i);
    TSR_TRY(agree(&j, status));
    if (loader->progress)
        loader->progress(loader->user, unit);
    return TSR_OK;
}

/* The owned elements of one trainable tensor: stored ones, or fresh A and zeros. */
static tsr_status load_tensor(const tsr_layout_unit *unit, int segment, const tsr_tensor *stored,
                              int index, uint64_t in, uint64_t seed, uint64_t module_key,
                              const tsr_model_loader *loader)
{
    const tsr_layout_segment *s = &unit->trainable[segment];
    uint64_t first, count;
    int rank = tsr_comm_rank(loader->comm), ranks = tsr_comm_size(loader->comm);
    float *out = loader->trainable(loader->user, index, segment);
    uint64_t part = tsr_ceil_div(s->granule_count, (uint64_t)ranks) * 64;
    tsr_plain_range(&first, &count, s, rank, ranks);
    memset(out, 0, part * sizeof *out);
    if (stored)
        return tsr_safetensors_read_f32(out, stored, first, count);
    if (in)
        tsr_adapter_init_a(out, first, count, in, seed, module_key);
    return TSR_OK;
}

tsr_status tsr_model_load_trainable(const tsr_layout *layout, int unit, const tsr_peft *init,
                                    uint64_t seed, const tsr_model_loader *loader)
{
    const tsr_layout_unit *parts = &layout->unit[unit];
    for (int kind = 0; parts->linear && kind < TSR_LINEAR_COUNT; kind++) {
        const tsr_layout_linear *l = &parts->linear[kind];
        const tsr_peft_module *stored = NULL;
        if (!l->r)
            continue;
        if (init)
            stored = tsr_peft_module_find(init, l->path);
        TSR_TRY(load_tensor(parts, l->a, stored ? stored->a : NULL, unit, l->in, seed,
                            l->module_key, loader));
        TSR_TRY(load_tensor(parts, l->b, stored ? stored->b : NULL, unit, 0, seed, 0, loader));
        if (l->dora)
            TSR_TRY(load_tensor(parts, l->m, stored ? stored->magnitude : NULL, unit, 0, seed, 0,
                                loader));
    }
    return TSR_OK;
}

tsr_status tsr_model_load_embedding(char *table, const tsr_layout *layout, uint64_t first,
                                    uint64_t count)
{
    const tsr_tensor *tensor = layout->embedding;
    tsr_dtype dtype = tensor->dtype == TSR_BF16 ? TSR_BF16 : TSR_F32;
    uint64_t d = layout->config.hidden_size;
    return read_plain(table + first * d * tsr_dtype_bytes(dtype), tensor, dtype, first * d,
                      count * d);
}
