#include "kernels/rope_tables.h"

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

#define TAU 6.28318530717958647693

/* The pair, as a fraction, that turns `times` in the original length. */
static double pair_that_turns(double times, int32_t head_dim, const tsr_rope_scaling *s)
{
    return head_dim * log(s->original_max_positions / (TAU * times)) / (2 * log(s->theta));
}

static double yarn_frequency(double frequency, int64_t pair, int32_t head_dim,
                             const tsr_rope_scaling *s)
{
    double low = pair_that_turns(s->beta_fast, head_dim, s);
    double high = pair_that_turns(s->beta_slow, head_dim, s);
    if (!s->exact_ends) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, head_dim - 1);
    if (low == high)
        high += 0.001;
    double ramp = fmin(fmax(((double)pair - low) / (high - low), 0), 1);
    return frequency * ((1 - ramp) + ramp / s->factor);
}

static double frequency_of(int64_t pair, int32_t head_dim, const tsr_rope_scaling *s,
                           tsr_rope_table_kind kind)
{
    double frequency = pow(s->theta, -2.0 * (double)pair / head_dim);
    switch (s->type) {
    case TSR_ROPE_DEFAULT:
        return frequency;
    case TSR_ROPE_LINEAR:
        return frequency / s->factor;
    case TSR_ROPE_LLAMA3:
        return llama3_frequency(frequency, s);
    case TSR_ROPE_YARN:
        return yarn_frequency(frequency, pair, head_dim, s);
    case TSR_ROPE_LONG:
        return frequency / (double)(kind == TSR_ROPE_TABLE_OF_LONG ? s->long_factor[pair]
                                                                   : s->short_factor[pair]);
    case TSR_ROPE_PROPORTIONAL:
        return pair < floor(s->share * head_dim / 2) ? frequency / s->factor : 0;
    case TSR_ROPE_NONE:
        break;
    }
    return 0;
}

static tsr_status check_scaling(int32_t position_count, int32_t head_dim, const tsr_rope_scaling *s)
{
    if (head_dim < 2 || head_dim % 2 || position_count < 0)
        return tsr_fail(TSR_EINVAL, "rope tables: head_dim %d (must be even), %d positions",
                        head_dim, position_count);
    if (!(s->theta > 0))
        return tsr_fail(TSR_EINVAL, "rope tables: theta %g is not above 0", s->theta);
    if (s->type != TSR_ROPE_DEFAULT && s->type != TSR_ROPE_NONE && s->type != TSR_ROPE_LONG &&
        !(s->factor > 0))
        return tsr_fail(TSR_EINVAL, "rope tables: factor %g is not above 0", s->factor);
    if (s->type == TSR_ROPE_LLAMA3 &&
        !(s->low_frequency_factor > 0 && s->high_frequency_factor > s->low_frequency_factor &&
          s->original_max_positions > 0))
        return tsr_fail(TSR_EINVAL,
                        "rope tables: llama3 scaling with frequency factors %g and %g and %g "
                        "original positions",
                        s->low_frequency_factor, s->high_frequency_factor,
                        s->original_max_positions);
    if (s->type == TSR_ROPE_YARN &&
        !(s->theta > 1 && s->beta_slow > 0 && s->beta_fast >= s->beta_slow &&
          s->original_max_positions > 0 && s->attention_factor > 0))
        return tsr_fail(TSR_EINVAL,
                        "rope tables: yarn scaling with beta %g and %g, %g original positions and "
                        "the attention factor %g",
                        s->beta_fast, s->beta_slow, s->original_max_positions, s->attention_factor);
    return TSR_OK;
}

/* What both tables of a position are multiplied by. */
static double scale_at(int64_t position, const tsr_rope_scaling *s, tsr_rope_table_kind kind)
{
    double scale = s->type == TSR_ROPE_YARN || s->type == TSR_ROPE_LONG ? s->attention_factor : 1;
    if (kind == TSR_ROPE_TABLE_OF_QUERIES)
        scale *= 1 + s->query_beta * log(1 + floor((double)position / s->original_max_positions));
    return scale;
}

tsr_status tsr_rope_tables(float *cosine, float *sine, int32_t position_count, int32_t head_dim,
                           const tsr_rope_scaling *scaling, tsr_rope_table_kind kind)
{
    TSR_TRY(check_scaling(position_count, head_dim, scaling));
    int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = frequency_of(i, head_dim, scaling, kind);
        for (int64_t p = 0; p < position_count; p++) {
            double scale = scale_at(p, scaling, kind);
            cosine[p * half + i] = (float)(scale * cos((double)p * frequency));
            sine[p * half + i] = (float)(scale * sin((double)p * frequency));
        }
    }
    return TSR_OK;
}
