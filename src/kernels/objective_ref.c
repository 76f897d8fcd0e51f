/*
 * objective_ref.c: contract objective.h. A few thousand numbers: on one thread.
 */
#include "kernels/objective_math.h"

#include "kernels/loops.h"

#include <math.h>

static bool known_loss(const tsr_objective *o, tsr_prefer loss)
{
    switch (o->kind) {
    case TSR_OBJECTIVE_DPO:
        return loss <= TSR_PREFER_SFT;
    case TSR_OBJECTIVE_CPO:
        return loss <= TSR_PREFER_IPO || loss == TSR_PREFER_SIMPO;
    case TSR_OBJECTIVE_KTO:
        return loss == TSR_PREFER_KTO || loss == TSR_PREFER_APO_ZERO_UNPAIRED;
    default:
        return o->kind == TSR_OBJECTIVE_ORPO;
    }
}

static bool known(const tsr_objective *o)
{
    bool fine = o->count == 1 || (o->kind == TSR_OBJECTIVE_DPO && o->count > 1);
    fine = fine && o->count <= TSR_PREFER_LOSSES && o->beta > 0;
    for (int i = 0; i < o->count && fine; i++)
        fine = known_loss(o, o->loss[i]);
    return fine;
}

tsr_status tsr_objective_check(const tsr_objective_args *args)
{
    static const char op[] = "objective";
    TSR_EXPECT(args->rows >= 0 && args->documents >= 0 && args->documents % 2 == 0, op,
               "rows or documents is out of range");
    TSR_EXPECT(args->part && args->sums && (args->rows == 0 || args->nll), op,
               "part, sums or nll is NULL");
    if (!args->weight)
        return TSR_OK;
    TSR_EXPECT(args->objective && known(args->objective), op, "no such objective or loss");
    TSR_EXPECT(args->loss && args->loss_overflow && args->words, op,
               "loss, loss_overflow or words is NULL");
    TSR_EXPECT(!args->objective->weighting || args->log_squares, op, "weighting needs log_squares");
    TSR_EXPECT(args->objective->kind != TSR_OBJECTIVE_KTO || args->desirable, op,
               "KTO needs desirable");
    return TSR_OK;
}

static tsr_status check_parts(const tsr_objective_args *args)
{
    int64_t count = TSR_PARTS * args->documents;
    bool fine = args->part[0] == 0 && args->part[count] == args->rows;
    for (int64_t p = 0; p < count && fine; p++)
        fine = args->part[p] <= args->part[p + 1];
    TSR_EXPECT(fine, "objective", "the parts of documents are not in order");
    return TSR_OK;
}

static void sum_parts(const tsr_objective_args *args)
{
    for (int64_t p = 0; p < TSR_PARTS * args->documents; p++) {
        double sum = 0;
        for (int32_t i = args->part[p]; i < args->part[p + 1]; i++)
            sum -= args->nll[i];
        args->sums[p] = sum;
    }
}

/* q of each document. */
static void take_confidence(double *out, const tsr_objective_args *args)
{
    for (int64_t d = 0; d < args->documents; d++) {
        const int32_t *part = args->part + TSR_PARTS * d;
        double sum = 0;
        for (int32_t i = part[TSR_PART_COMPLETION]; i < part[TSR_PARTS]; i++)
            sum -= args->nll[i] + (double)args->log_squares[i];
        out[d] = sum / (double)(part[TSR_PARTS] - part[TSR_PART_COMPLETION]);
    }
}

static double sum_rows(const float *values, int32_t first, int32_t end)
{
    double sum = 0;
    for (int32_t i = first; i < end && values; i++)
        sum += (double)values[i];
    return sum;
}

/* What is reported of the tokens of each document's completion. */
static void take_tokens(double *out, const tsr_objective_args *args)
{
    for (int64_t d = 0; d < args->documents; d++, out += TSR_OF_DOCUMENT) {
        int32_t first = args->part[TSR_PARTS * d + TSR_PART_COMPLETION];
        int32_t end = args->part[TSR_PARTS * (d + 1)];
        out[TSR_DOCUMENT_ENTROPY] = sum_rows(args->row_entropy, first, end);
        out[TSR_DOCUMENT_CORRECT] = sum_rows(args->row_correct, first, end);
        out[TSR_DOCUMENT_LOGIT] = sum_rows(args->row_logit, first, end);
    }
}

/* A row has the weight of its part, negated because nll is -log p; 0 if the loss is not finite. */
static void weigh_rows(const tsr_objective_args *args, const double *weights, bool fine)
{
    for (int64_t p = 0; p < TSR_PARTS * args->documents; p++)
        for (int32_t i = args->part[p]; i < args->part[p + 1]; i++)
            args->weight[i] = fine ? (float)(-args->scale * weights[p]) : 0;
}

tsr_status tsr_objective_ref(const tsr_objective_args *args, tsr_pool *pool)
{
    (void)pool;
    int64_t sums = TSR_PARTS * args->documents;
    double words[TSR_PREFERENCE_WORDS + 1], *weights = args->sums + sums, *of = weights + sums;
    TSR_TRY(tsr_objective_check(args));
    if (args->documents == 0)
        return TSR_OK;
    TSR_TRY(check_parts(args));
    sum_parts(args);
    if (!args->weight)
        return TSR_OK;
    double *tokens = of + TSR_PREFERENCE_OF_PAIR * (args->documents / 2);
    double *confidence =
        args->objective->weighting ? tokens + TSR_OF_DOCUMENT * args->documents : NULL;
    take_tokens(tokens, args);
    if (confidence)
        take_confidence(confidence, args);
    const tsr_prefer_batch batch = {.o = args->objective,
                                    .part = args->part,
                                    .sums = args->sums,
                                    .reference = args->reference,
                                    .desirable = args->desirable,
                                    .confidence = confidence,
                                    .tokens = tokens,
                                    .documents = args->documents};
    const tsr_prefer_pool pooled = tsr_prefer_pooled(&batch);
    for (int64_t i = 0; i < args->documents / 2; i++)
        tsr_prefer_pair(of + TSR_PREFERENCE_OF_PAIR * i, weights, &batch, &pooled, i);
    tsr_prefer_words(words, &batch, &pooled, of);
    weigh_rows(args, weights, tsr_prefer_add(args, words));
    return TSR_OK;
}

/* ---- scale_rows ---- */

tsr_status tsr_scale_rows_check(const tsr_scale_rows_args *args)
{
    TSR_TRY(tsr_expect_dtype("scale_rows", args->dtype));
    TSR_EXPECT(args->rows >= 0 && args->d > 0, "scale_rows", "rows or d is out of range");
    TSR_EXPECT(args->rows == 0 || (args->x && args->weight), "scale_rows", "x or weight is NULL");
    return TSR_OK;
}

static void scale_block(void *context, int index)
{
    const tsr_scale_rows_args *args = context;
    int64_t rows = tsr_block_rows(args->d), first = index * rows;
    int64_t end = tsr_min(args->rows, first + rows);
    for (int64_t i = first; i < end; i++) {
        float *x = (float *)args->x + i * args->d;
        for (int64_t j = 0; j < args->d; j++)
            x[j] *= args->weight[i];
    }
}

tsr_status tsr_scale_rows_ref(const tsr_scale_rows_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_scale_rows_check(args));
    return tsr_run_f32("scale_rows", args->dtype, pool,
                       tsr_block_count(args->rows, tsr_block_rows(args->d)), scale_block, args);
}
