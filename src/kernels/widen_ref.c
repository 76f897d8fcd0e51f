/*
 * widen_ref.c: contract widen.h.
 */
#include "kernels/widen.h"

#include "kernels/fp8.h"
#include "kernels/loops.h"

#define TASK_ELEMENTS 65536

tsr_status tsr_widen_check(const tsr_widen_args *args)
{
    if (args->in_dtype != TSR_F8_E4M3)
        TSR_TRY(tsr_expect_dtype("widen", args->in_dtype));
    TSR_TRY(tsr_expect_dtype("widen", args->dtype));
    TSR_EXPECT(args->count >= 0, "widen", "count is negative");
    TSR_EXPECT(args->count == 0 || (args->out && args->in), "widen", "out or in is NULL");
    return TSR_OK;
}

TSR_CLONES static void widen_block(void *context, int index)
{
    const tsr_widen_args *args = context;
    int64_t first = (int64_t)index * TASK_ELEMENTS;
    int64_t count = tsr_min(TASK_ELEMENTS, args->count - first);
    float *out = (float *)args->out + first;
    if (args->in_dtype == TSR_F8_E4M3) {
        for (int64_t i = 0; i < count; i++)
            out[i] = tsr_e4m3_to_f32(((const uint8_t *)args->in)[first + i]);
        return;
    }
    if (args->in_dtype == TSR_F16) {
        for (int64_t i = 0; i < count; i++)
            out[i] = tsr_f16_to_f32(((const uint16_t *)args->in)[first + i]);
        return;
    }
    if (args->in != args->out)
        tsr_frozen_copy(out, (tsr_frozen){args->in, args->in_dtype}, first, count);
}

TSR_CLONES static void scale_block(void *context, int index)
{
    const tsr_widen_args *args = context;
    int64_t first = (int64_t)index * TASK_ELEMENTS;
    int64_t count = tsr_min(TASK_ELEMENTS, args->count - first);
    float *out = (float *)args->out + first;
    widen_block(context, index);
    for (int64_t i = 0; i < count; i++)
        out[i] *= args->scale;
}

tsr_status tsr_widen_ref(const tsr_widen_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_widen_check(args));
    TSR_TRY(tsr_expect_f32("widen", args->dtype));
    tsr_pool_run(pool, tsr_block_count(args->count, TASK_ELEMENTS),
                 args->scale != 0 && args->scale != 1 ? scale_block : widen_block, (void *)args);
    return TSR_OK;
}
