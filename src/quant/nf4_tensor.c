#include "quant/nf4_tensor.h"

#include "base/checked.h"

#include <math.h>
#include <string.h>

typedef unsigned long long ull; /* for %llu */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

tsr_status tsr_nf4_layout_make(tsr_nf4_layout *out, uint64_t element_count, uint64_t rank_count,
                               bool nested)
{
    if (element_count == 0 || element_count > 1ull << 35 || rank_count == 0 ||
        rank_count > 1u << 20)
        return tsr_fail(TSR_EINVAL, "an NF4 tensor of %llu elements over %llu ranks",
                        (ull)element_count, (ull)rank_count);
    tsr_nf4_layout l = {.element_count = element_count, .rank_count = rank_count, .nested = nested};
    l.block_count = tsr_ceil_div(element_count, TSR_NF4_BLOCK);
    l.granule_count = tsr_ceil_div(element_count, TSR_NF4_GRANULE);
    l.nested_count = nested ? tsr_ceil_div(l.block_count, TSR_NF4_NESTED_BLOCK) : 0;
    l.granules_per_rank = tsr_ceil_div(l.granule_count, rank_count);
    l.blocks_per_rank = l.granules_per_rank * TSR_NF4_GRANULE_BLOCKS;
    l.code_bytes = l.granules_per_rank * TSR_NF4_GRANULE_CODE_BYTES;
    l.absmax_bytes = l.blocks_per_rank * (nested ? 1 : sizeof(float));
    *out = l;
    return TSR_OK;
}

tsr_nf4_range tsr_nf4_rank_range(const tsr_nf4_layout *layout, uint64_t rank)
{
    uint64_t per_rank = layout->granules_per_rank * TSR_NF4_GRANULE;
    tsr_nf4_range r;
    r.first_element = least(rank * per_rank, layout->element_count);
    r.element_count = least(layout->element_count - r.first_element, per_rank);
    r.first_block = least(rank * layout->blocks_per_rank, layout->block_count);
    r.block_count = tsr_ceil_div(r.element_count, TSR_NF4_BLOCK);
    r.first_code_byte = tsr_ceil_div(r.first_element, 2);
    r.code_byte_count = tsr_ceil_div(r.element_count, 2);
    return r;
}

/* `bytes` of a segment of `segment_bytes`, the rest zero. */
static void place(void *segment, uint64_t segment_bytes, const void *source, uint64_t bytes)
{
    if (bytes && segment != source)
        memcpy(segment, source, bytes);
    memset((char *)segment + bytes, 0, segment_bytes - bytes);
}

void tsr_nf4_shard_codes(uint8_t *codes, const tsr_nf4_layout *layout, uint64_t rank,
                         const void *bytes)
{
    place(codes, layout->code_bytes, bytes, tsr_nf4_rank_range(layout, rank).code_byte_count);
}

void tsr_nf4_shard_absmax(void *absmax, const tsr_nf4_layout *layout, uint64_t rank,
                          const void *scales)
{
    uint64_t bytes = tsr_nf4_rank_range(layout, rank).block_count;
    place(absmax, layout->absmax_bytes, scales, layout->nested ? bytes : bytes * sizeof(float));
}

static tsr_status check_count(const char *name, const char *what, uint64_t found, uint64_t expected)
{
    if (found == expected)
        return TSR_OK;
    return tsr_fail(TSR_EDATA, "tensor %s: %s is %llu, expected %llu", name, what, (ull)found,
                    (ull)expected);
}

static tsr_status check_finite(const char *name, const char *what, const float *value,
                               uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(value[i]))
            return tsr_fail(TSR_EDATA, "tensor %s: entry %llu of its %s is %f", name, (ull)i, what,
                            (double)value[i]);
    return TSR_OK;
}

static float largest(const float *value, uint64_t count)
{
    float most = 0;
    for (uint64_t i = 0; i < count; i++)
        most = fabsf(value[i]) > most ? fabsf(value[i]) : most;
    return most;
}

static tsr_status check_nested(tsr_nf4_scales *scales, const tsr_nf4_layout *layout,
                               const tsr_nf4_checkpoint *stored, const char *name)
{
    TSR_TRY(
        check_count(name, "the nested_blocksize", stored->nested_blocksize, TSR_NF4_NESTED_BLOCK));
    TSR_TRY(check_count(name, "the length of nested_absmax", stored->nested_absmax_count,
                        layout->nested_count));
    TSR_TRY(check_count(name, "the length of nested_quant_map", stored->nested_map_count, 256));
    TSR_TRY(check_finite(name, "nested_absmax", stored->nested_absmax, layout->nested_count));
    TSR_TRY(check_finite(name, "nested_quant_map", stored->nested_map, 256));
    float offset = (float)stored->nested_offset;
    TSR_TRY(check_finite(name, "nested_offset", &offset, 1));
    float scale =
        largest(stored->nested_absmax, layout->nested_count) * largest(stored->nested_map, 256) +
        fabsf(offset);
    if (!isfinite(scale))
        return tsr_fail(TSR_EDATA,
                        "tensor %s: its nested_absmax, nested_quant_map and nested_offset are so "
                        "large that scales decoded from them would not be finite",
                        name);
    scales->offset = offset;
    scales->nested_absmax = stored->nested_absmax;
    scales->nested_map = stored->nested_map;
    return TSR_OK;
}

tsr_status tsr_nf4_check_checkpoint(tsr_nf4_scales *out, const tsr_nf4_layout *layout,
                                    const tsr_nf4_checkpoint *stored, const char *name)
{
    if (!stored->quant_type || strcmp(stored->quant_type, "nf4"))
        return tsr_fail(TSR_EDATA,
                        "tensor %s is quantized as \"%s\"; only bitsandbytes' \"nf4\" is "
                        "supported: quantize the unquantized checkpoint again",
                        name, stored->quant_type ? stored->quant_type : "");
    TSR_TRY(check_count(name, "the blocksize", stored->blocksize, TSR_NF4_BLOCK));
    TSR_TRY(check_count(name, "the number of code bytes", stored->code_byte_count,
                        tsr_ceil_div(layout->element_count, 2)));
    TSR_TRY(check_count(name, "the length of absmax", stored->absmax_count, layout->block_count));
    TSR_TRY(check_count(name, "the length of quant_map", stored->quant_map_count, 16));
    for (int i = 0; i < 16; i++)
        if (!(stored->quant_map[i] == tsr_nf4_level[i]))
            return tsr_fail(TSR_EDATA,
                            "tensor %s: entry %d of its quant_map is %.9g, NF4 has %.9g: this is "
                            "not an NF4 checkpoint",
                            name, i, (double)stored->quant_map[i], (double)tsr_nf4_level[i]);
    tsr_nf4_scales scales = {.nested = layout->nested};
    if (layout->nested)
        TSR_TRY(check_nested(&scales, layout, stored, name));
    *out = scales;
    return TSR_OK;
}
