/*
 * peft_experts.c: PEFT's layout of an adapter on a parameter that has a matrix for each expert (target_parameters).
 *
 * lora_A [experts r, in] has one expert's A behind the other; lora_B [out, r experts] has B of expert e in columns e,
 * experts + e, 2 experts + e, and so on.
 */
#include "io/peft.h"

#include "base/auto.h"

#include <stdlib.h>

tsr_status tsr_peft_read_expert_b(float *out, const tsr_tensor *stored, uint64_t experts,
                                  uint64_t first, uint64_t count)
{
    uint64_t rows = stored->shape[0], columns = stored->shape[1], r = columns / experts;
    TSR_AUTO_FREE float *row = malloc(columns * sizeof *row);
    if (!row)
        return tsr_fail(TSR_ENOMEM, "out of memory for %s", stored->name);
    for (uint64_t i = 0; i < rows && count; i++) {
        TSR_TRY(tsr_safetensors_read_f32(row, stored, i * columns, columns));
        for (uint64_t e = first / (rows * r); e < experts; e++)
            for (uint64_t k = 0; k < r; k++) {
                uint64_t at = (e * rows + i) * r + k;
                if (at >= first && at < first + count)
                    out[at - first] = row[k * experts + e];
            }
    }
    return TSR_OK;
}
