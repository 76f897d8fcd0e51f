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

/* One rank's part of an NF4 weight on its way to the device. */
typedef struct {
    void *values;    /* own elements as the file has them */
    float *absmax;   /* own blocks */
    float *gathered; /* all blocks */
    uint8_t *codes, *scales;
    float *nested, map[256];
    float offset;
} weight_part;

static void free_part(weight_part *p)
{
    free(p->values);
    free(p->absmax);
    free(p->gathered);
    free(p->codes);
    free(p->scales);
    free(p->nested);
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

static tsr_status make_part(weight_part *p, const tsr_nf4_layout *cut, const char *name)
{
    p->absmax = malloc(cut->blocks_per_rank * sizeof(float) + 1);
    p->gathered = malloc(cut->blocks_per_rank * cut->rank_count * sizeof(float) + 1);
    p->codes = malloc(cut->code_bytes + 1);
    p->scales = malloc(cut->absmax_bytes + 1);
    p->nested = malloc(cut->nested_count * sizeof(float) + 1);
    if (!p->absmax || !p->gathered || !p->codes || !p->scales || !p->nested)
        return tsr_fail(TSR_ENOMEM, "out of memory while loading %s", name);
    return TSR_OK;
}

/* To where the plan keeps it. */
static tsr_status deliver(const job *j, tsr_linear_kind kind, const tsr_layout_linear *linear,
                          const tsr_nf4_layout *cut, const weight_part *p)
{
    const tsr_model_loader *loader = j->loader;
    tsr_device *device = loader->device;
    TSR_TRY(tsr_device_write(device, loader->frozen(loader->user, j->unit, linear->codes), p->codes,
                             cut->code_bytes));
    TSR_TRY(tsr_device_write(device, loader->frozen(loader->user, j->unit, linear->absmax),
                             p->scales, cut->absmax_bytes));
    if (!cut->nested)
        return TSR_OK;
    tsr_model_set_offset(j->model, j->unit, kind, p->offset);
    TSR_TRY(tsr_device_write(device, tsr_model_nested_absmax(j->model, j->unit, kind), p->nested,
                             cut->nested_count * sizeof(float)));
    return tsr_device_write(device, tsr_model_nested_map(j->model, j->unit, kind), p->map,
                            sizeof p->map);
}

static tsr_status read_and_quantize(const job *j, const tsr_layout_linear *linear,
                                    const tsr_nf4_layout *cut, weight_part *p)
{
    const tsr_tensor *tensor = linear->source.weight;
    uint32_t element = tsr_dtype_bytes(tensor->dtype);
    tsr_nf4_range range = tsr_nf4_rank_range(cut, (uint64_t)j->rank);
    TSR_TRY(make_part(p, cut, tensor->name));
    p->values = malloc(range.element_count * element + 1);
    if (!p->values)
        return tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", tensor->name);
    TSR_TRY(tsr_safetensors_read(p->values, tensor, range.first_element * element,
                                 range.element_count * element));
    float *absmax = cut->nested ? p->absmax : (float *)(void *)p->scales;
    return tsr_nf4_shard_quantize(p->codes, absmax, cut, (uint64_t)j->rank, p->values,
                                  tensor->dtype, tensor->name);
}

static tsr_status quantize(const job *j, tsr_linear_kind kind, const tsr_layout_linear *linear,
                           const tsr_nf4_layout *cut)
{
    weight_part p = {0};
    tsr_status status = agree(j, read_and_quantize(j, linear, cut, &p));
    if (status == TSR_OK && cut->nested) {
        tsr_gather_range range = {p.absmax, p.gathered, cut->blocks_per_rank * sizeof(float)};
        status = tsr_comm_all_gather(j->loader->comm, j->loader->stream, &range, 1);
        if (status == TSR_OK)
            status = tsr_stream_synchronize(j->loader->stream);
        if (status == TSR_OK)
            status = tsr_nf4_shard_nest(p.scales, p.nested, &p.offset, cut, (uint64_t)j->rank,
                                        p.gathered, linear->source.weight->name);
        memcpy(p.map, tsr_nf4_nested_map, sizeof p.map);
    }
    if (status == TSR_OK)
        status = deliver(j, kind, linear, cut, &p);
    free_part(&p);
    return status;
}

/* The small replicated tensors of a pre-quantized weight, and whether they are what we understand.
 */
static tsr_status read_state(const tsr_layout_linear *linear, const tsr_nf4_layout *cut,
                             weight_part *p)
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
        if (source->nested_count != cut->nested_count ||
            source->nested_quant_map->element_count != 256)
            return tsr_fail(TSR_EDATA,
                            "%s: %" PRIu64 " nested scales and a map of %" PRIu64
                            " values; %" PRIu64 " and 256 are expected",
                            source->weight->name, source->nested_count,
                            source->nested_quant_map->element_count, cut->nested_count);
        TSR_TRY(tsr_safetensors_read(p->nested, source->nested_absmax, 0,
                                     source->nested_absmax->bytes));
        TSR_TRY(tsr_safetensors_read(p->map, source->nested_quant_map, 0, sizeof p->map));
        stored.nested_absmax = p->nested;
        stored.nested_absmax_count = source->nested_count;
        stored.nested_map = p->map;
        stored.nested_map_count = 256;
    }
    TSR_TRY(tsr_nf4_check_checkpoint(&scales, cut, &stored, source->weight->name));
    p->offset = scales.offset;
    return TSR_OK;
}

static tsr_status read_quantized(const job *j, const tsr_layout_linear *linear,
                                 const tsr_nf4_layout *cut, weight_part *p)
{
    const tsr_weight *source = &linear->source;
    uint64_t rank = (uint64_t)j->rank, scale_bytes = cut->nested ? 1 : sizeof(float);
    tsr_nf4_range range = tsr_nf4_rank_range(cut, rank);
    TSR_TRY(make_part(p, cut, source->weight->name));
    TSR_TRY(read_state(linear, cut, p));
    TSR_TRY(tsr_safetensors_read(p->codes, source->weight, range.first_code_byte,
                                 range.code_byte_count));
    TSR_TRY(tsr_safetensors_read(p->scales, source->absmax, range.first_block * scale_bytes,
                                 range.block_count * scale_bytes));
    tsr_nf4_shard_codes(p->codes, cut, rank, p->codes);
    tsr_nf4_shard_absmax(p->scales, cut, rank, p->scales);
    return TSR_OK;
}

/* A pre-quantized weight is taken as it is, never quantized again. */
static tsr_status copy_quantized(const job *j, tsr_linear_kind kind,
                                 const tsr_layout_linear *linear, const tsr_nf4_layout *cut)
{
    weight_part p = {0};
    tsr_status status = read_quantized(j, linear, cut, &p);
    if (status == TSR_OK)
        status = deliver(j, kind, linear, cut, &p);
    free_part(&p);
    return status;
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
    return agree(j, quantize(j, kind, linear, &cut));
}

static tsr_status load_plain(const job *j, const tsr_layout_segment *segment, int index)
{
    uint64_t first, count;
    char *out = j->loader->frozen(j->loader->user, j->unit, index);
    tsr_plain_range(&first, &count, segment, j->rank, j->ranks);
    uint64_t bytes =
        tsr_ceil_div(segment->granule_count, (uint64_t)j->ranks) * segment->granule_bytes;
    char *part = calloc(1, bytes + 1);
    if (!part)
        return tsr_fail(TSR_ENOMEM, "out of memory while loading %s", segment->name);
    tsr_status status =
        read_plain(part, segment->source, segment->dtype, segment->first_element + first, count);
    if (status == TSR_OK)
        status = tsr_device_write(j->loader->device, out, part, bytes);
    free(part);
    return status;
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
    uint64_t part = tsr_ceil_div(s->granule_count, (uint64_t)ranks) * 64;
    float *values = calloc(part + 1, sizeof *values);
    if (!values)
        return tsr_fail(TSR_ENOMEM, "out of memory while loading the adapter of %s", s->name);
    tsr_status status = TSR_OK;
    tsr_plain_range(&first, &count, s, rank, ranks);
    if (stored)
        status = tsr_safetensors_read_f32(values, stored, first, count);
    else if (in)
        tsr_adapter_init_a(values, first, count, in, seed, module_key);
    if (status == TSR_OK)
        status = loader->trainable(loader->user, index, segment, values);
    free(values);
    return status;
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
