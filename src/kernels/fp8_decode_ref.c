/*
 * fp8_decode_ref.c: contract fp8_decode.h. The 16 codes that a block's values become are made once for each
 * row that the block has a part in.
 */
#include "kernels/fp8_decode.h"

#include "kernels/fp8.h"
#include "kernels/loops.h"
#include "kernels/nf4_quantize.h"

tsr_status tsr_fp8_decode_check(const tsr_fp8_decode_args *args)
{
    tsr_nf4_dequant_args codes = args->weight;
    TSR_EXPECT(codes.dtype == TSR_F8_E4M3, "fp8_decode", "dtype is not F8_E4M3");
    TSR_EXPECT(!args->scaled || (args->transposed && codes.out), "fp8_decode",
               "scaled is for a weight that is transposed");
    codes.dtype = TSR_F32;
    codes.out = codes.out ? codes.out : args->scale;
    TSR_TRY(tsr_nf4_dequant_check(&codes));
    TSR_EXPECT(!codes.row_factor, "fp8_decode", "row_factor is not for e4m3: a row has its scale");
    TSR_EXPECT(codes.columns > 0 && codes.count % codes.columns == 0, "fp8_decode",
               "count is not whole rows of columns");
    TSR_EXPECT(codes.count == 0 || args->scale, "fp8_decode", "scale is NULL");
    return TSR_OK;
}

static float block_scale(const tsr_nf4_dequant_args *w, int64_t block)
{
    if (!w->nested)
        return ((const float *)w->absmax)[block];
    float residual = w->nested_map[((const uint8_t *)w->absmax)[block]] *
                     w->nested_absmax[block / TSR_NF4_NESTED_BLOCK];
    return residual + w->offset;
}

/* Compared as bits, so that a NaN is the largest. */
static uint32_t magnitude(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

uint32_t tsr_fp8_decode_most(const tsr_nf4_dequant_args *w, int64_t first, int64_t end)
{
    uint32_t most = 0;
    for (int64_t block = first; block < end; block++) {
        uint32_t bits = magnitude(block_scale(w, block));
        most = bits > most ? bits : most;
    }
    return most;
}

float tsr_fp8_decode_scale(uint32_t most, const float level[16])
{
    uint32_t most_level = 0;
    for (int i = 0; i < 16; i++) {
        uint32_t bits = magnitude(level[i]);
        most_level = bits > most_level ? bits : most_level;
    }
    float absmax, largest;
    memcpy(&absmax, &most, sizeof absmax);
    memcpy(&largest, &most_level, sizeof largest);
    return tsr_e4m3_scale(absmax * largest);
}

static float row_scale(const tsr_nf4_dequant_args *w, int64_t row)
{
    int64_t first = row * w->columns / TSR_NF4_BLOCK;
    int64_t last = ((row + 1) * w->columns - 1) / TSR_NF4_BLOCK;
    return tsr_fp8_decode_scale(tsr_fp8_decode_most(w, first, last + 1), w->level);
}

void tsr_fp8_decode_block(uint8_t out[16], const tsr_nf4_dequant_args *w, int64_t block,
                          float scale)
{
    float absmax = block_scale(w, block), inverse = 1 / scale;
    for (int i = 0; i < 16; i++) {
        float value = w->level[i] * absmax;
        out[i] = isnan(scale) ? TSR_E4M3_NAN : tsr_f32_to_e4m3(value * inverse);
    }
}

/* Elements first to first + count, which are of one block; `out` is where the first goes, and the others `stride` apart. */
static void decode_part(uint8_t *out, int64_t stride, const uint8_t *codes, int64_t first,
                        int64_t count, const uint8_t table[16])
{
    for (int64_t i = 0, e = first; i < count; i++, e++)
        out[i * stride] = table[e % 2 ? codes[e / 2] & 15 : codes[e / 2] >> 4];
}

void tsr_fp8_decode_row(uint8_t *out, int64_t stride, const tsr_nf4_dequant_args *w, int64_t row,
                        float scale)
{
    int64_t first = row * w->columns, end = first + w->columns;
    uint8_t table[16];
    for (int64_t e = first, count; e < end; e += count) {
        count = tsr_min(TSR_NF4_BLOCK - e % TSR_NF4_BLOCK, end - e);
        tsr_fp8_decode_block(table, w, e / TSR_NF4_BLOCK, scale);
        decode_part(out + (e - first) * stride, stride, w->codes, e, count, table);
    }
}

static void decode_row(void *context, int index)
{
    const tsr_fp8_decode_args *args = context;
    const tsr_nf4_dequant_args *w = &args->weight;
    int64_t row = index, rows = w->count / w->columns;
    uint8_t *out = w->out;
    float scale = args->scaled ? args->scale[row] : row_scale(w, row);
    if (!args->scaled)
        args->scale[row] = scale;
    if (out)
        tsr_fp8_decode_row(out + (args->transposed ? row : row * w->columns),
                           args->transposed ? rows : 1, w, row, scale);
}

tsr_status tsr_fp8_decode_ref(const tsr_fp8_decode_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_fp8_decode_check(args));
    tsr_pool_run(pool, (int)(args->weight.count / args->weight.columns), decode_row, (void *)args);
    return TSR_OK;
}
