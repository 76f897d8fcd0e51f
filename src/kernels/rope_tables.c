/*
 * rope_tables.c: the tables of rope_qkv.h. Frequencies as Hugging Face's modeling_rope_utils
 * (default, linear, llama3), angles in fp64.
 */
#include "kernels/rope_qkv.h"

#include <math.h>

/* Llama 3.1's smoothing between unscaled short waves and long waves divided by the factor. */
static double llama3_frequency(double frequency, const tsr_rope_scaling *s)
{
    double wavelength = 2 * 3.14159265358979323846 / frequency;
    double low = s->original_max_positions / s->low_frequency_factor;
    double high = s->original_max_positions / s->high_frequency_factor;
    if (wavelength < high)
        return frequency;
    if (wavelength > low)
        return frequency / s->factor;
    double smooth = (s->original_max_positions / wavelength - s->low_frequency_factor) /
                    (s->high_frequency_factor - s->low_frequency_factor);
    return (1 - smooth) * frequency / s->factor + smooth * frequency;
}

static tsr_status check_scaling(int32_t position_count, int32_t head_dim, const tsr_rope_scaling *s)
{
    if (head_dim < 2 || head_dim % 2 || position_count < 0)
        return tsr_fail(TSR_EINVAL, "rope tables: head_dim %d (must be even), %d positions",
                        head_dim, position_count);
    if (!(s->theta > 0))
        return tsr_fail(TSR_EINVAL, "rope tables: theta %g is not above 0", s->theta);
    if (s->type != TSR_ROPE_DEFAULT && !(s->factor > 0))
        return tsr_fail(TSR_EINVAL, "rope tables: factor %g is not above 0", s->factor);
    if (s->type == TSR_ROPE_LLAMA3 &&
        !(s->low_frequency_factor > 0 && s->high_frequency_factor > s->low_frequency_factor &&
          s->original_max_positions > 0))
        return tsr_fail(TSR_EINVAL,
                        "rope tables: llama3 scaling with frequency factors %g and %g and %g "
                        "original positions",
                        s->low_frequency_factor, s->high_frequency_factor,
                        s->original_max_positions);
    return TSR_OK;
}

tsr_status tsr_rope_tables(float *cosine, float *sine, int32_t position_count, int32_t head_dim,
                           const tsr_rope_scaling *scaling)
{
    TSR_TRY(check_scaling(position_count, head_dim, scaling));
    int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = pow(scaling->theta, -2.0 * (double)i / head_dim);
        if (scaling->type == TSR_ROPE_LINEAR)
            frequency /= scaling->factor;
        if (scaling->type == TSR_ROPE_LLAMA3)
            frequency = llama3_frequency(frequency, scaling);
        for (int64_t p = 0; p < position_count; p++) {
            cosine[p * half + i] = (float)cos((double)p * frequency);
            sine[p * half + i] = (float)sin((double)p * frequency);
        }
    }
    return TSR_OK;
}
