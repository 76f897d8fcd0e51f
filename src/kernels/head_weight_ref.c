/*
 * head_weight_ref.c: contract head_weight.h. A task owns tiles of 512 vocabulary rows and goes over all label rows, so
 * that each sum has one order.
 */
#include "kernels/head_weight.h"

#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#define TILE_ROWS  128 /* as in head_ref.c, whose workspace this is */
#define TILE_VOCAB 512
#define TILE_TASKS 16

tsr_status tsr_head_weight_check(const tsr_head_weight_args *args)
{
    static const char op[] = "head_weight";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_EXPECT(args->rows >= 0 && args->d > 0, op, "rows < 0 or d < 1");
    TSR_EXPECT(args->first >= 0 && args->count >= 0 && args->first + args->count <= INT32_MAX, op,
               "vocabulary rows out of range");
    TSR_EXPECT(args->count == 0 || (args->w && args->dw), op, "w or dw is NULL");
    if (args->rows == 0 || args->count == 0)
        return TSR_OK;
    TSR_EXPECT(args->max && args->sum && args->label_logit, op, "max, sum or label_logit is NULL");
    TSR_EXPECT(args->h && args->labels && args->workspace, op, "h, labels or workspace is NULL");
    return TSR_OK;
}

/* Logits of label row `row` against the tile from vocabulary row `first` on become what they pull. */
TSR_INLINE void pull_row(const tsr_head_weight_args *args, int64_t row, int64_t first,
                         int64_t vocab, float *logits)
{
    float max = args->max[row], cap = args->softcap;
    float inverse = 1.0f / (args->sum[row] + tsr_expf(args->label_logit[row] - max));
    int64_t label = args->labels[row] - first;
    for (int64_t i = 0; i < vocab; i++) {
        float slope = 1, logit = logits[i];
        if (cap > 0) {
            float share = 1.0f - 2.0f / (1.0f + tsr_expf(2.0f * logit / cap));
            logit = cap * share;
            slope = 1.0f - share * share;
        }
        float pull = i == label ? -args->sum[row] : tsr_expf(logit - max);
        logits[i] = args->scale * slope * (pull * inverse);
    }
}

TSR_CLONES static void pull_rows(const tsr_head_weight_args *args, int64_t row, int64_t count,
                                 int64_t first, int64_t vocab, float *logits)
{
    for (int64_t i = 0; i < count; i++)
        pull_row(args, row + i, first, vocab, logits + i * TILE_VOCAB);
}

static void run_tile(const tsr_head_weight_args *args, int64_t at, float *logits)
{
    int64_t vocab = tsr_min(TILE_VOCAB, args->count - at), d = args->d;
    const float *w = (const float *)args->w + at * d;
    tsr_gemm_block_args gemm = {.n = vocab,
                                .k = d,
                                .trans_b = true,
                                .lda = d,
                                .b = w,
                                .ldb = d,
                                .c = logits,
                                .ldc = TILE_VOCAB,
                                .alpha = 1};
    const float *z = args->z ? args->z : args->h;
    int64_t columns = args->z ? args->z_columns : d, stride = args->z ? args->z_stride : d;
    tsr_gemm_block_args sum = {.m = vocab,
                               .n = columns,
                               .trans_a = true,
                               .a = logits,
                               .lda = TILE_VOCAB,
                               .ldb = stride,
                               .c = args->dw + at * columns,
                               .ldc = columns,
                               .alpha = 1};
    for (int64_t row = 0; row < args->rows; row += TILE_ROWS) {
        gemm.m = sum.k = tsr_min(TILE_ROWS, args->rows - row);
        gemm.a = (const float *)args->h + row * d;
        sum.b = z + row * stride;
        tsr_gemm_block(&gemm);
        pull_rows(args, row, gemm.m, args->first + at, vocab, logits);
        tsr_gemm_block(&sum);
        sum.beta = 1;
    }
}

static void run_task(void *context, int index)
{
    const tsr_head_weight_args *args = context;
    float *logits = (float *)args->workspace + (int64_t)index * TILE_ROWS * TILE_VOCAB;
    for (int64_t at = (int64_t)index * TILE_VOCAB; at < args->count; at += TILE_TASKS * TILE_VOCAB)
        run_tile(args, at, logits);
}

tsr_status tsr_head_weight_ref(const tsr_head_weight_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_head_weight_check(args));
    TSR_TRY(tsr_expect_f32("head_weight", args->dtype));
    uint64_t need = tsr_head_workspace_bytes(&(tsr_head_bounds){.d = args->d});
    if (args->rows == 0) {
        int64_t columns = args->z ? args->z_columns : args->d;
        memset(args->dw, 0, (size_t)(args->count * columns) * sizeof(float));
        return TSR_OK;
    }
    if (args->workspace_bytes < need)
        return tsr_fail(TSR_EINVAL, "head_weight: a workspace of %llu bytes, %llu are needed",
                        (unsigned long long)args->workspace_bytes, (unsigned long long)need);
    int tiles = tsr_block_count(args->count, TILE_VOCAB);
    tsr_pool_run(pool, tiles < TILE_TASKS ? tiles : TILE_TASKS, run_task, (void *)args);
    return TSR_OK;
}
