/*
 * step_ref.c: the few words that tie a step together; contract in adamw.h.
 */
#include "kernels/adamw.h"
#include "kernels/loops.h"

#include <math.h>

tsr_status tsr_step_sums_check(const tsr_step_sums_args *args)
{
    TSR_EXPECT(args->loss && args->loss_overflow && args->gradient_overflow && args->word_loss &&
                   args->word_non_finite,
               "step_sums", "a pointer is NULL");
    TSR_EXPECT(!args->reported == !args->word_reported, "step_sums",
               "reported and word_reported belong together");
    return TSR_OK;
}

tsr_status tsr_step_sums_ref(const tsr_step_sums_args *args, tsr_pool *pool)
{
    (void)pool;
    TSR_TRY(tsr_step_sums_check(args));
    *args->word_loss += *args->loss;
    *args->word_non_finite += *args->loss_overflow || *args->gradient_overflow;
    if (args->seen) {
        args->seen[0] = *args->loss_overflow;
        args->seen[1] = *args->gradient_overflow;
    }
    for (int i = 0; i < TSR_REPORTED_SUMS && args->reported; i++) {
        args->word_reported[i] += args->reported[i];
        args->reported[i] = 0;
    }
    *args->loss = 0;
    *args->loss_overflow = 0;
    *args->gradient_overflow = 0;
    return TSR_OK;
}

tsr_status tsr_step_control_check(const tsr_step_control_args *args)
{
    TSR_EXPECT(args->control && args->squares && args->error && args->non_finite, "step_control",
               "a pointer is NULL");
    return TSR_OK;
}

tsr_status tsr_step_control_ref(const tsr_step_control_args *args, tsr_pool *pool)
{
    (void)pool;
    TSR_TRY(tsr_step_control_check(args));
    double norm = tsr_grad_norm(args->squares);
    args->control->clip = tsr_clip_factor(norm, args->max_norm);
    args->control->skip = *args->error || *args->non_finite || !isfinite(norm);
    args->control->step += !args->control->skip;
    return TSR_OK;
}
