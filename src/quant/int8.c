#include "quant/int8.h"

#include "base/auto.h"
#include "base/dtype.h"
#include "kernels/byte_decode.h"

#include <math.h>
#include <stdlib.h>

bool tsr_int8_quantize_row(int8_t *codes, float *scale, const float *row, uint64_t columns)
{
    float most = 0;
    bool finite = true;
    for (uint64_t i = 0; i < columns; i++) {
        float value = fabsf(tsr_f16_to_f32(tsr_f32_to_f16(row[i])));
        finite &= value <= 65504;
        most = value > most ? value : most;
    }
    *scale = most;
    if (!finite || !codes)
        return finite;
    float factor = most > 0 ? TSR_INT8_MOST * (1 / most) : 0;
    for (uint64_t i = 0; i < columns; i++)
        codes[i] = (int8_t)nearbyintf(tsr_f16_to_f32(tsr_f32_to_f16(row[i])) * factor);
    return true;
}

tsr_status tsr_int8_stored_read(float *out, const tsr_weight *source, uint64_t first,
                                uint64_t count)
{
    uint64_t columns = source->shape[1], row = first / columns;
    if (!count)
        return TSR_OK;
    uint64_t rows = (first + count - 1) / columns + 1 - row;
    TSR_AUTO_FREE int8_t *codes = malloc(count);
    TSR_AUTO_FREE float *scale = malloc(rows * sizeof *scale);
    if (!codes || !scale)
        return tsr_fail(TSR_ENOMEM, "out of memory while reading %s", source->weight->name);
    TSR_TRY(tsr_safetensors_read(codes, source->weight, first, count));
    TSR_TRY(tsr_safetensors_read_finite(scale, source->int8_scale, row, rows));
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)codes[i] * scale[(first + i) / columns - row] / TSR_INT8_MOST;
    return TSR_OK;
}
