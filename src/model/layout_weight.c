/*
 * layout_weight.c: how a linear's weight lies in memory: as plain numbers, NF4, LLM.int8 or e4m3 in blocks.
 */
#include "model/layout_parts.h"

#include "quant/nf4.h"

#include <inttypes.h>

/* Whether the source can be stored as the options say. */
static tsr_status check_source(const tsr_layout_builder *b, const tsr_layout_linear *linear,
                               const char *name)
{
    const tsr_weight *source = &linear->source;
    const char *directory = tsr_checkpoint_directory(b->checkpoint);
    char found[TSR_SHAPE_TEXT_BYTES];
    if (source->ndim != 2 || source->shape[0] != linear->out || source->shape[1] != linear->in)
        return tsr_fail(TSR_EDATA,
                        "%s: %s has the shape %s, but config.json needs [%" PRIu64 ", %" PRIu64 "]",
                        directory, name, tsr_shape_text(found, source->shape, source->ndim),
                        linear->out, linear->in);
    if (source->dtype != TSR_BF16 && source->dtype != TSR_F16 && source->dtype != TSR_F32)
        return tsr_fail(TSR_EDATA, "%s: %s has the dtype %s; BF16, F16 and F32 are read", directory,
                        name, tsr_dtype_name(source->dtype));
    if (source->prequantized && b->layout->config.int8)
        return tsr_fail(TSR_EDATA,
                        "%s: %s is stored as NF4, but quantization_config in config.json says "
                        "load_in_8bit",
                        directory, name);
    if (source->prequantized && b->options.load_in_8bit)
        return tsr_fail(TSR_ECONFIG,
                        "%s: %s is stored as NF4; load_in_8bit needs a checkpoint that is not in 4 "
                        "bits",
                        directory, name);
    if (source->prequantized && !b->options.load_in_4bit)
        return tsr_fail(TSR_ECONFIG,
                        "%s: %s is stored as NF4; load_in_4bit: false needs a checkpoint that is "
                        "not quantized",
                        directory, name);
    if (source->int8_scale && !b->options.load_in_8bit)
        return tsr_fail(TSR_ECONFIG,
                        "%s: %s is stored as int8; write load_in_8bit: true, or use the original "
                        "model",
                        directory, name);
    return TSR_OK;
}

static void add_nf4(tsr_layout_unit *unit, tsr_layout_linear *linear, tsr_layout_segment segment)
{
    segment.kind = TSR_SEGMENT_CODES;
    segment.dtype = TSR_U8;
    segment.granule_bytes = TSR_NF4_GRANULE_CODE_BYTES;
    linear->codes = tsr_layout_add_frozen(unit, segment);
    segment.kind = TSR_SEGMENT_ABSMAX;
    segment.dtype = linear->nested ? TSR_U8 : TSR_F32;
    segment.granule_bytes = linear->nested ? TSR_NF4_GRANULE_ABSMAX_BYTES
                                           : TSR_NF4_GRANULE_BLOCKS * (uint64_t)sizeof(float);
    linear->absmax = tsr_layout_add_frozen(unit, segment);
}

static void add_int8(tsr_layout_unit *unit, tsr_layout_linear *linear, tsr_layout_segment segment)
{
    segment.kind = TSR_SEGMENT_INT8;
    segment.dtype = TSR_I8;
    linear->plain = tsr_layout_add_frozen(unit, segment);
    segment.kind = TSR_SEGMENT_INT8_SCALE;
    segment.dtype = TSR_F32;
    segment.source = linear->source.int8_scale;
    segment.element_count = linear->out;
    linear->code_scale = tsr_layout_add_frozen(unit, segment);
}

/* The checkpoint's own, whose BF16 view the source is. */
static void add_fp8(tsr_layout_unit *unit, tsr_layout_linear *linear, tsr_layout_segment segment)
{
    segment.kind = TSR_SEGMENT_FP8;
    segment.dtype = TSR_F8_E4M3;
    segment.source = linear->source.weight->codes;
    linear->plain = tsr_layout_add_frozen(unit, segment);
    segment.kind = TSR_SEGMENT_FP8_SCALE;
    segment.dtype = TSR_F32;
    segment.source = linear->source.weight->scales;
    segment.element_count = segment.source->element_count;
    linear->code_scale = tsr_layout_add_frozen(unit, segment);
}

tsr_status tsr_layout_weight(const tsr_layout_builder *b, tsr_layout_unit *unit, int index,
                             const char *name)
{
    tsr_layout_linear *linear = &unit->linear[index];
    const tsr_weight *source = &linear->source;
    TSR_TRY(tsr_checkpoint_weight(&linear->source, b->checkpoint, name));
    TSR_TRY(check_source(b, linear, name));
    linear->nested = source->prequantized ? source->nested : b->options.nested;
    linear->codes = linear->absmax = linear->plain = linear->code_scale = TSR_NO_SEGMENT;
    tsr_layout_segment segment = {.name = source->weight->name,
                                  .source = source->weight,
                                  .linear = index,
                                  .element_count = linear->out * linear->in};
    /* A 4-bit checkpoint that has a weight as plain numbers left it out (llm_int8_skip_modules); likewise an 8-bit one. */
    linear->quantized = b->options.load_in_4bit && (source->prequantized || !b->in_4bit);
    if (linear->quantized)
        add_nf4(unit, linear, segment);
    else if (b->options.load_in_8bit && (source->int8_scale || !b->in_8bit))
        add_int8(unit, linear, segment);
    else if (b->options.keeps_fp8 && source->weight->codes)
        add_fp8(unit, linear, segment);
    else {
        segment.dtype = source->dtype == TSR_BF16 ? TSR_BF16 : TSR_F32;
        linear->plain = tsr_layout_add_frozen(unit, segment);
    }
    b->layout->parameter_count += linear->out * linear->in;
    return TSR_OK;
}
