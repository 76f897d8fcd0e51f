/*
 * step.cu: the few words that tie a step together; contract adamw.h, reference step_ref.c, the same
 * bits.
 *
 * A warp each: a step's scalars stay on the device, so that nothing waits for them. Microseconds.
 */
#include "kernels/cuda.cuh"

#define DIGITS (TSR_EXACT_LIMBS + 2)
#define BIAS   1088 /* the weight of bit 0 of limb 0 is 2^-BIAS */

static __global__ void step_sums(const tsr_step_sums_args a)
{
    tsr_kernel_begin();
    *a.word_loss += *a.loss;
    *a.word_non_finite += *a.loss_overflow || *a.gradient_overflow;
    if (a.seen) {
        a.seen[0] = *a.loss_overflow;
        a.seen[1] = *a.gradient_overflow;
    }
    for (int i = 0; i < TSR_REPORTED_SUMS && a.reported; i++) {
        a.word_reported[i] += a.reported[i];
        a.reported[i] = 0;
    }
    *a.loss = 0;
    *a.loss_overflow = 0;
    *a.gradient_overflow = 0;
}

/* ---- tsr_exact_round (base/exact_sum.h) ---- */

/* The magnitude in 32-bit digits, in place of the limbs; returns the sign. A carry fits: the limbs
 * of a sum of fewer than 2^30 summands are below 2^62. */
static __device__ int normalize(int64_t *digit)
{
    int64_t carry = 0;
    for (int i = 0; i < DIGITS; i++) {
        int64_t value = carry + (i < TSR_EXACT_LIMBS ? digit[i] : 0);
        digit[i] = (uint32_t)value;
        carry = value >> 32;
    }
    if (carry >= 0)
        return 1;
    uint64_t borrow = 1; /* two's complement of a negative number */
    for (int i = 0; i < DIGITS; i++) {
        uint64_t value = (uint64_t)(uint32_t) ~(uint32_t)digit[i] + borrow;
        digit[i] = (uint32_t)value;
        borrow = value >> 32;
    }
    return -1;
}

/* The magnitude rounded to 53 bits, but to no bit below 2^-1074; ties to even. */
static __device__ double round_digits(const int64_t *digit)
{
    int high = DIGITS - 1;
    while (high >= 0 && !digit[high])
        high--;
    if (high < 0)
        return 0;
    int top = 32 * high + 31 - __clz((int)digit[high]);
    int last = max(top - 52, BIAS - 1074), half = last - 1;
    uint64_t mantissa = 0;
    for (int i = top; i >= last; i--)
        mantissa = mantissa << 1 | ((digit[i / 32] >> i % 32) & 1);
    int64_t rest = digit[half / 32] & ((1ll << half % 32) - 1);
    for (int i = 0; i < half / 32; i++)
        rest |= digit[i];
    if (((digit[half / 32] >> half % 32) & 1) && (rest || (mantissa & 1)))
        mantissa++;
    return ldexp((double)mantissa, last - BIAS);
}

static __global__ void step_control(const tsr_step_control_args a)
{
    tsr_kernel_begin();
    __shared__ int64_t digit[DIGITS];
    for (int i = threadIdx.x; i < TSR_EXACT_LIMBS; i += TSR_WARP)
        digit[i] = a.squares->limb[i];
    __syncwarp();
    if (threadIdx.x != 0)
        return;
    int sign = normalize(digit);
    double norm = a.squares->nonfinite_count ? nan("") : __dsqrt_rn(sign * round_digits(digit));
    double factor = 1;
    if (a.max_norm > 0)
        factor = __ddiv_rn(a.max_norm, __dadd_rn(norm, 1e-6));
    a.control->clip = (float)(factor < 1 ? factor : 1);
    bool skip = *a.error || *a.non_finite || !isfinite(norm);
    a.control->skip = skip;
    a.control->step += !skip;
}

extern "C" tsr_status tsr_step_sums_cuda(tsr_stream *stream, const tsr_step_sums_args *args)
{
    TSR_TRY(tsr_step_sums_check(args));
    TSR_LAUNCH(step_sums, 1, 1, stream, *args);
    return tsr_launched("step_sums");
}

extern "C" tsr_status tsr_step_control_cuda(tsr_stream *stream, const tsr_step_control_args *args)
{
    TSR_TRY(tsr_step_control_check(args));
    TSR_LAUNCH(step_control, 1, TSR_WARP, stream, *args);
    return tsr_launched("step_control");
}
