/*
 * peft_experts.c: PEFT's layout of an adapter on a parameter that has a matrix for each expert (target_parameters).
 *
 * lora_A [experts r, in] has one expert's A behind the other; lora_B [out, r experts] has B of expert e in columns e,
 * experts + e, 2 experts + e, and so on.
 */
#include "io/peft.h"

#include "base/auto.h"

#include <stdlib.h>

/* The row of the file that row i is. */
static uint64_t file_row(const tsr_peft_expert_b *shape, uint64_t i)
{
    uint64_t half = shape->rows / 2;
    if (!shape->by_turns)
        return i;
    return i < half ? 2 * i : 2 * (i - half) + 1;
}

tsr_status tsr_peft_read_expert_b(float *out, const tsr_tensor *stored,
                                  const tsr_peft_expert_b *shape, uint64_t first, uint64_t count)
{
    uint64_t rows = shape->rows, experts = shape->experts, r = shape->r, columns = experts * r;
    TSR_AUTO_FREE float *row = malloc(columns * sizeof *row);
    if (!row)
        return tsr_fail(TSR_ENOMEM, "out of memory for %s", stored->name);
    if (!count)
        return TSR_OK;
    uint64_t end_expert = (first + count - 1) / (rows * r) + 1;
    for (uint64_t i = 0; i < rows; i++) {
        TSR_TRY(tsr_safetensors_read_f32(row, stored, file_row(shape, i) * columns, columns));
        for (uint64_t e = first / (rows * r); e < end_expert; e++)
            for (uint64_t k = 0; k < r; k++) {
                uint64_t at = (e * rows + i) * r + k;
                if (at >= first && at < first + count)
                    out[at - first] = row[k * experts + e];
            }
    }
    return TSR_OK;
}

void tsr_peft_put_expert_b(float *file, const float *values, const tsr_peft_expert_b *shape,
                           uint64_t first, uint64_t count)
{
    uint64_t rows = shape->rows, experts = shape->experts, r = shape->r;
    for (uint64_t j = 0; j < count; j++) {
        uint64_t at = first + j, row = at / r, k = at % r;
        uint64_t e = row / rows, i = row % rows;
        file[(file_row(shape, i) * r + k) * experts + e] = values[j];
    }
}
