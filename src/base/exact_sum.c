#include "base/exact_sum.h"

#include <math.h>
#include <string.h>

#define BIAS 1088 /* the weight of bit 0 of limb 0 is 2^-BIAS */

void tsr_exact_clear(tsr_exact_sum *sum)
{
    memset(sum, 0, sizeof *sum);
}

void tsr_exact_add(tsr_exact_sum *sum, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)((bits >> 52) & 2047);
    uint64_t mantissa = bits & 0xfffffffffffffu;
    if (exponent == 2047) {
        sum->nonfinite_count++;
        return;
    }
    if (exponent)
        mantissa |= 1ull << 52;
    else
        exponent = 1;
    int shift = exponent - 1075 + BIAS; /* of the mantissa's bit 0, counted from limb 0; >= 14 */
    unsigned __int128 wide = (unsigned __int128)mantissa << (shift & 31);
    int64_t *limb = sum->limb + (shift >> 5);
    int64_t sign = (bits >> 63) ? -1 : 1;
    limb[0] += sign * (int64_t)(uint32_t)wide;
    limb[1] += sign * (int64_t)(uint32_t)(wide >> 32);
    limb[2] += sign * (int64_t)(uint32_t)(wide >> 64);
}

void tsr_exact_merge(tsr_exact_sum *sum, const tsr_exact_sum *other)
{
    for (int i = 0; i < TSR_EXACT_LIMBS; i++)
        sum->limb[i] += other->limb[i];
    sum->nonfinite_count += other->nonfinite_count;
}

/* The magnitude in 32-bit digits with carries resolved; returns its sign. */
static int normalize(uint32_t digit[TSR_EXACT_LIMBS + 2], const tsr_exact_sum *sum)
{
    int64_t carry = 0;
    for (int i = 0; i < TSR_EXACT_LIMBS + 2; i++) {
        __int128 value = (__int128)carry + (i < TSR_EXACT_LIMBS ? sum->limb[i] : 0);
        digit[i] = (uint32_t)value;
        carry = (int64_t)((value - (__int128)digit[i]) / ((__int128)1 << 32));
    }
    if (carry >= 0)
        return 1;
    uint64_t borrow = 1; /* two's complement of a negative number */
    for (int i = 0; i < TSR_EXACT_LIMBS + 2; i++) {
        uint64_t value = (uint64_t)(uint32_t)~digit[i] + borrow;
        digit[i] = (uint32_t)value;
        borrow = value >> 32;
    }
    return -1;
}

/* Long division of the magnitude by `divisor` in place; returns the remainder. */
static uint64_t divide(uint32_t digit[TSR_EXACT_LIMBS + 2], uint64_t divisor)
{
    unsigned __int128 rest = 0;
    for (int i = TSR_EXACT_LIMBS + 1; i >= 0; i--) {
        unsigned __int128 value = (rest << 32) | digit[i];
        digit[i] = (uint32_t)(value / divisor);
        rest = value % divisor;
    }
    return (uint64_t)rest;
}

/* Bit `index` of the magnitude; bits below bit 0 are zero. */
static unsigned bit_at(const uint32_t *digit, int index)
{
    return index < 0 ? 0 : (digit[index >> 5] >> (index & 31)) & 1u;
}

/* Rounds the magnitude (plus `sticky`, something below its last bit) to `precision` bits, but to no
 * bit below 2^lowest: ties to even. */
static double round_bits(const uint32_t digit[TSR_EXACT_LIMBS + 2], uint64_t sticky, int precision,
                         int lowest)
{
    int top = (TSR_EXACT_LIMBS + 2) * 32 - 1;
    while (top >= 0 && !bit_at(digit, top))
        top--;
    if (top < 0)
        return 0;
    int last = top - precision + 1;
    if (last < lowest + BIAS)
        last = lowest + BIAS;
    uint64_t mantissa = 0;
    for (int i = top; i >= last; i--)
        mantissa = mantissa << 1 | bit_at(digit, i);
    unsigned half = bit_at(digit, last - 1);
    uint64_t rest = sticky;
    for (int i = last - 2; i >= 0 && !rest; i--)
        rest = bit_at(digit, i);
    if (half && (rest || (mantissa & 1)))
        mantissa++;
    return ldexp((double)mantissa, last - BIAS);
}

double tsr_exact_round(const tsr_exact_sum *sum)
{
    uint32_t digit[TSR_EXACT_LIMBS + 2];
    if (sum->nonfinite_count)
        return NAN;
    int sign = normalize(digit, sum);
    return sign * round_bits(digit, 0, 53, -1074);
}

float tsr_exact_mean_f32(const tsr_exact_sum *sum, uint64_t count)
{
    uint32_t digit[TSR_EXACT_LIMBS + 2];
    if (sum->nonfinite_count)
        return NAN;
    int sign = normalize(digit, sum);
    uint64_t rest = divide(digit, count);
    return (float)(sign * round_bits(digit, rest, 24, -149));
}
