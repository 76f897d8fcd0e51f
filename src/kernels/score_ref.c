/*
 * score_ref.c: contract score.h.
 */
#include "kernels/score_math.h"

#include "kernels/loops.h"

tsr_status tsr_score_check(const tsr_score_args *args)
{
    static const char op[] = "score";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_EXPECT(args->rows >= 0 && args->rows % 2 == 0 && args->d > 0, op,
               "rows or d is out of range");
    TSR_EXPECT(args->w.data && tsr_frozen_valid(args->w), op, "w is NULL or neither F32 nor BF16");
    TSR_EXPECT(!args->dh == !args->dw, op, "one of dh and dw is NULL");
    TSR_EXPECT(args->loss && args->loss_overflow && args->words, op,
               "loss, loss_overflow or words is NULL");
    TSR_EXPECT(args->rows == 0 || (args->h && args->reward && args->slope), op,
               "h, reward or slope is NULL");
    return TSR_OK;
}

static double weight_at(const tsr_score_args *args, int64_t i)
{
    return args->w.dtype == TSR_BF16 ? (double)tsr_bf16_to_f32(((const uint16_t *)args->w.data)[i])
                                     : (double)((const float *)args->w.data)[i];
}

static void score_row(void *context, int index)
{
    const tsr_score_args *args = context;
    const float *h = (const float *)args->h + index * args->d;
    double sum = 0;
    for (int64_t j = 0; j < args->d; j++)
        sum += (double)h[j] * weight_at(args, j);
    args->reward[index] = sum;
}

/* A strip of columns: dw, and dh, which may be in the place of h. */
static void score_columns(void *context, int index)
{
    const tsr_score_args *args = context;
    int64_t first = (int64_t)index * TSR_STRIP, end = tsr_min(args->d, first + TSR_STRIP);
    for (int64_t j = first; j < end; j++) {
        const float w = (float)weight_at(args, j);
        double sum = 0;
        for (int64_t i = 0; i < args->rows; i++) {
            sum += args->slope[i] * (double)((const float *)args->h)[i * args->d + j];
            ((float *)args->dh)[i * args->d + j] = (float)args->slope[i] * w;
        }
        args->dw[j] = (float)sum;
    }
}

tsr_status tsr_score_ref(const tsr_score_args *args, tsr_pool *pool)
{
    double word[TSR_SCORE_WORDS + 1];
    TSR_TRY(tsr_score_check(args));
    TSR_TRY(tsr_expect_f32("score", args->dtype));
    if (args->rows) {
        tsr_pool_run(pool, (int)args->rows, score_row, (void *)args);
        tsr_score_words(word, args);
        tsr_score_add(args, word);
    }
    if (args->dw)
        tsr_pool_run(pool, tsr_block_count(args->d, TSR_STRIP), score_columns, (void *)args);
    return TSR_OK;
}
