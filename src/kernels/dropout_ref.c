#include "kernels/dropout.h"

#include "base/philox.h"
#include "kernels/loops.h"

#include <math.h>
#include <string.h>

#define DROPOUT_TAG 0x44u /* sets these numbers apart from the initial values' */
#define LANES       32 /* Philox calls side by side: more than the compiler unrolls, so it vectorizes */
#define COLUMNS     (8 * LANES)
#define MOST        0xffffu /* of 2^16: something is kept */

tsr_dropout tsr_dropout_make(double p, uint64_t seed, uint64_t epoch, uint64_t module_key)
{
    uint64_t key = tsr_mix(tsr_mix(tsr_mix(seed) ^ epoch) ^ module_key);
    double threshold = fmin(round(p * 0x1p16), MOST);
    return (tsr_dropout){
        .key = tsr_mix(key ^ DROPOUT_TAG),
        .threshold = (uint32_t)threshold,
        .scale = 1 / (float)(1 - threshold * 0x1p-16), /* of a number of 16 bits: one rounding */
    };
}

/* What decides over columns [column, column + COLUMNS), 16 bits each, of tsr_philox_at(key, sample,
 * position << 32 | column / 8), LANES at once. Inlined into each clone. */
TSR_INLINE void draw(uint16_t drawn[COLUMNS], uint64_t key, uint64_t sample, uint32_t position,
                     uint64_t column)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
    for (int l = 0; l < LANES; l++) {
        a[l] = (uint32_t)(column / 8) + (uint32_t)l;
        b[l] = position;
        c[l] = (uint32_t)sample;
        d[l] = (uint32_t)(sample >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int l = 0; l < LANES; l++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * a[l], p1 = (uint64_t)0xCD9E8D57u * c[l];
            a[l] = (uint32_t)(p1 >> 32) ^ b[l] ^ k0;
            c[l] = (uint32_t)(p0 >> 32) ^ d[l] ^ k1;
            b[l] = (uint32_t)p1;
            d[l] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int l = 0; l < LANES; l++) {
        const uint32_t word[4] = {a[l], b[l], c[l], d[l]};
        for (int w = 0; w < 4; w++) {
            drawn[8 * l + 2 * w] = (uint16_t)word[w];
            drawn[8 * l + 2 * w + 1] = (uint16_t)(word[w] >> 16);
        }
    }
}

static inline uint64_t columns_left(uint64_t columns, uint64_t column)
{
    return columns - column < COLUMNS ? columns - column : COLUMNS;
}

TSR_INLINE void drop_row(float *out, const float *x, uint64_t columns, const tsr_dropout *dropout,
                         uint64_t sample, uint32_t position, bool add)
{
    const tsr_dropout d = *dropout;
    uint16_t drawn[COLUMNS];
    for (uint64_t column = 0; column < columns; column += COLUMNS) {
        uint64_t n = columns_left(columns, column);
        draw(drawn, d.key, sample, position, column);
        for (uint64_t i = 0; i < n; i++) {
            float kept = x[column + i] * d.scale;
            float dropped = drawn[i] >= d.threshold ? kept : 0;
            out[column + i] = add ? out[column + i] + dropped : dropped;
        }
    }
}

TSR_CLONES void tsr_dropout_row(float *out, const float *x, uint64_t columns,
                                const tsr_dropout *dropout, uint64_t sample, uint32_t position)
{
    drop_row(out, x, columns, dropout, sample, position, false);
}

TSR_CLONES void tsr_dropout_add_row(float *out, const float *x, uint64_t columns,
                                    const tsr_dropout *dropout, uint64_t sample, uint32_t position)
{
    drop_row(out, x, columns, dropout, sample, position, true);
}

TSR_CLONES void tsr_dropout_mask_row(uint8_t *mask, uint64_t columns, const tsr_dropout *dropout,
                                     uint64_t sample, uint32_t position)
{
    uint16_t drawn[COLUMNS];
    for (uint64_t column = 0; column < columns; column += COLUMNS) {
        uint64_t n = columns_left(columns, column);
        draw(drawn, dropout->key, sample, position, column);
        for (uint64_t i = 0; i < n; i++)
            mask[column + i] = drawn[i] >= dropout->threshold;
    }
}

tsr_status tsr_dropout_check(const tsr_dropout_args *args)
{
    TSR_EXPECT(args->tokens >= 0 && args->columns >= 0, "dropout", "a count is negative");
    TSR_EXPECT(!args->tokens || (args->out && args->x && args->samples && args->positions),
               "dropout", "a buffer is NULL");
    TSR_EXPECT(!args->left || (!args->add && args->left != args->out), "dropout",
               "left is out, or beside add");
    return tsr_expect_dtype("dropout", args->dtype);
}

/* Of x what out has not: x is gone where out was written over it, so it comes first. */
static void drop_and_leave(float *out, float *left, const float *x, const tsr_dropout_args *a,
                           int64_t token)
{
    memmove(left, x, (size_t)a->columns * sizeof *left);
    tsr_dropout_row(out, x, (uint64_t)a->columns, &a->dropout, (uint64_t)a->samples[token],
                    (uint32_t)a->positions[token]);
    for (int64_t i = 0; i < a->columns; i++)
        left[i] -= out[i];
}

#define TOKENS_PER_BLOCK 16

static void drop_block(void *context, int index)
{
    const tsr_dropout_args *a = context;
    int64_t first = (int64_t)index * TOKENS_PER_BLOCK;
    int64_t end = first + TOKENS_PER_BLOCK < a->tokens ? first + TOKENS_PER_BLOCK : a->tokens;
    for (int64_t t = first; t < end; t++) {
        float *out = (float *)a->out + t * a->columns;
        const float *x = (const float *)a->x + t * a->columns;
        uint64_t columns = (uint64_t)a->columns, sample = (uint64_t)a->samples[t];
        uint32_t position = (uint32_t)a->positions[t];
        if (a->left)
            drop_and_leave(out, (float *)a->left + t * a->columns, x, a, t);
        else if (a->add)
            tsr_dropout_add_row(out, x, columns, &a->dropout, sample, position);
        else
            tsr_dropout_row(out, x, columns, &a->dropout, sample, position);
    }
}

tsr_status tsr_dropout_ref(const tsr_dropout_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_dropout_check(args));
    TSR_TRY(tsr_expect_f32("dropout", args->dtype));
    tsr_dropout_args copy = *args;
    tsr_pool_run(pool, (int)tsr_ceil_div((uint64_t)args->tokens, TOKENS_PER_BLOCK), drop_block,
                 &copy);
    return TSR_OK;
}
