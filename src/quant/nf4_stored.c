#include "quant/nf4_stored.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>

#define READ_BYTES ((uint64_t)1 << 20) /* of codes at a time */

static tsr_status read_nested(tsr_nf4_state *state, tsr_nf4_checkpoint *stored,
                              const tsr_weight *source, const tsr_nf4_layout *cut)
{
    if (source->nested_count != cut->nested_count || source->nested_quant_map->element_count != 256)
        return tsr_fail(TSR_EDATA,
                        "%s: %" PRIu64 " nested scales and a map of %" PRIu64 " values; %" PRIu64
                        " and 256 are expected",
                        source->weight->name, source->nested_count,
                        source->nested_quant_map->element_count, cut->nested_count);
    state->nested = malloc(cut->nested_count * sizeof(float) + 1);
    if (!state->nested)
        return tsr_fail(TSR_ENOMEM, "out of memory while loading %s", source->weight->name);
    TSR_TRY(
        tsr_safetensors_read_finite(state->nested, source->nested_absmax, 0, cut->nested_count));
    TSR_TRY(tsr_safetensors_read_finite(state->map, source->nested_quant_map, 0, 256));
    stored->nested_absmax = state->nested;
    stored->nested_absmax_count = source->nested_count;
    stored->nested_map = state->map;
    stored->nested_map_count = 256;
    return TSR_OK;
}

static tsr_status read_state(tsr_nf4_state *state, const tsr_weight *source,
                             const tsr_nf4_layout *cut)
{
    float map[16];
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
    if (cut->nested)
        TSR_TRY(read_nested(state, &stored, source, cut));
    return tsr_nf4_check_checkpoint(&state->scales, cut, &stored, source->weight->name);
}

tsr_status tsr_nf4_state_read(tsr_nf4_state *out, const tsr_weight *source,
                              const tsr_nf4_layout *cut)
{
    out->nested = NULL;
    tsr_status status = read_state(out, source, cut);
    if (status < 0)
        tsr_nf4_state_free(out);
    return status;
}

void tsr_nf4_state_free(tsr_nf4_state *state)
{
    free(state->nested);
    state->nested = NULL;
}

/* ---- values ---- */

struct tsr_nf4_stored {
    const tsr_tensor *codes;
    float *absmax; /* [blocks], decoded */
};

static tsr_status decode_scales(tsr_nf4_stored *stored, const tsr_weight *source,
                                const tsr_nf4_layout *cut)
{
    tsr_nf4_state state;
    TSR_TRY(tsr_nf4_state_read(&state, source, cut));
    tsr_status status;
    if (cut->nested) {
        uint8_t *q = malloc(cut->block_count);
        status = q ? tsr_safetensors_read(q, source->absmax, 0, cut->block_count)
                   : tsr_fail(TSR_ENOMEM, "out of memory while reading %s", source->weight->name);
        if (status == TSR_OK)
            tsr_nf4_decode_absmax(stored->absmax, q, 0, cut->block_count, &state.scales);
        free(q);
    } else {
        status = tsr_safetensors_read_finite(stored->absmax, source->absmax, 0, cut->block_count);
    }
    tsr_nf4_state_free(&state);
    return status;
}

tsr_status tsr_nf4_stored_open(tsr_nf4_stored **out, const tsr_weight *source)
{
    tsr_nf4_layout cut;
    TSR_TRY(tsr_nf4_layout_make(&cut, source->element_count, 1, source->nested));
    tsr_nf4_stored *stored = calloc(1, sizeof *stored);
    if (stored)
        stored->absmax = malloc(cut.block_count * sizeof *stored->absmax);
    tsr_status status =
        stored && stored->absmax
            ? decode_scales(stored, source, &cut)
            : tsr_fail(TSR_ENOMEM, "out of memory while reading %s", source->weight->name);
    if (status < 0) {
        tsr_nf4_stored_close(stored);
        return status;
    }
    stored->codes = source->weight;
    *out = stored;
    return TSR_OK;
}

void tsr_nf4_stored_close(tsr_nf4_stored *stored)
{
    if (!stored)
        return;
    free(stored->absmax);
    free(stored);
}

/* `first` is a block's first element, and the piece is no longer than the buffer of codes. */
static tsr_status read_piece(float *out, const tsr_nf4_stored *stored, uint8_t *codes,
                             uint64_t first, uint64_t skip, uint64_t count)
{
    const tsr_nf4_scales plain = {.nested = false};
    const tsr_nf4_view view = {codes, stored->absmax + first / TSR_NF4_BLOCK, &plain};
    uint64_t bytes = tsr_ceil_div(skip + count, 2);
    TSR_TRY(tsr_safetensors_read(codes, stored->codes, first / 2, bytes));
    return tsr_nf4_dequantize(out, TSR_F32, &view, skip, count, NULL, 0);
}

tsr_status tsr_nf4_stored_read(float *out, const tsr_nf4_stored *stored, uint64_t first,
                               uint64_t count)
{
    uint8_t *codes = malloc(READ_BYTES);
    tsr_status status = TSR_OK;
    if (!codes)
        return tsr_fail(TSR_ENOMEM, "out of memory while reading %s", stored->codes->name);
    for (uint64_t done = 0, some; done < count && status == TSR_OK; done += some) {
        uint64_t skip = (first + done) % TSR_NF4_BLOCK, most = 2 * READ_BYTES - TSR_NF4_BLOCK;
        some = count - done < most ? count - done : most;
        status = read_piece(out + done, stored, codes, first + done - skip, skip, some);
    }
    free(codes);
    return status;
}
