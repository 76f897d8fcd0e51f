#include "kernels/noise.h"

#include "base/philox.h"
#include "kernels/loops.h"

#include <math.h>

#define NOISE_TAG 0x4E45u /* sets these numbers apart from dropout's and the initial values' */
#define COLUMNS   4       /* of a call of Philox */

uint64_t tsr_noise_key(uint64_t seed, uint64_t epoch)
{
    return tsr_mix(tsr_mix(tsr_mix(seed) ^ epoch) ^ NOISE_TAG);
}

tsr_status tsr_noise_check(const tsr_noise_args *args)
{
    TSR_EXPECT(args->tokens >= 0 && args->columns >= 0, "noise", "a count is negative");
    TSR_EXPECT(!args->tokens || (args->x && args->samples && args->positions), "noise",
               "a buffer is NULL");
    TSR_EXPECT(isfinite(args->size), "noise", "size is not finite");
    return tsr_expect_dtype("noise", args->dtype);
}

static void add_block(void *context, int index)
{
    const tsr_noise_args *a = context;
    int64_t rows = tsr_block_rows(a->columns), end = tsr_min(a->tokens, (index + 1) * rows);
    for (int64_t t = index * rows; t < end; t++) {
        float *x = (float *)a->x + t * a->columns;
        uint64_t high = (uint64_t)a->samples[t], low = (uint64_t)(uint32_t)a->positions[t] << 32;
        for (int64_t column = 0; column < a->columns; column += COLUMNS) {
            tsr_philox p = tsr_philox_at(a->key, high, low | (uint64_t)(column / COLUMNS));
            for (int64_t i = 0; i < tsr_min(COLUMNS, a->columns - column); i++)
                x[column + i] += a->size * ((float)((int32_t)p.word[i] >> 8) * 0x1p-23f);
        }
    }
}

tsr_status tsr_noise_ref(const tsr_noise_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_noise_check(args));
    return tsr_run_f32("noise", args->dtype, pool,
                       tsr_block_count(args->tokens, tsr_block_rows(args->columns)), add_block,
                       args);
}
