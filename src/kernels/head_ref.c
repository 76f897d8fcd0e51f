/*
 * head_ref.c: contract head.h. For each tile of 512 vocabulary rows (widened once if bf16): tasks
 * own tiles of label rows; a task's logits [128, 512] stay in its core's cache between the two
 * matmuls.
 */
#include "kernels/head.h"

#include "kernels/gemm_block.h"
#include "kernels/loops.h"

#include <math.h>

#define TILE_ROWS  128 /* label rows */
#define TILE_VOCAB 512 /* vocabulary rows: 256 KiB of logits */
#define TILE_TASKS 16  /* logit tiles in the workspace */
#define WIDEN_ROWS 32
#define LOSS_LIMIT 536870912.0 /* 2^29: sums of a step's micro-batches stay below 2^31 */

uint64_t tsr_head_workspace_bytes(const tsr_head_bounds *bounds)
{
    uint64_t logits = (uint64_t)TILE_TASKS * TILE_ROWS * TILE_VOCAB;
    return (logits + (uint64_t)TILE_VOCAB * (uint64_t)bounds->d) * sizeof(float);
}

static tsr_status check_state(const char *op, const tsr_head_state *state, int64_t rows, int64_t d)
{
    TSR_EXPECT(rows >= 0 && d > 0, op, "rows < 0 or d < 1");
    TSR_EXPECT(rows == 0 || (state->max && state->sum && state->label_logit), op,
               "max, sum or label_logit is NULL");
    TSR_EXPECT(!state->acc == !state->wy, op, "acc and wy belong together");
    TSR_TRY(tsr_expect_dtype(op, state->wy_dtype));
    TSR_EXPECT(!state->rival == !state->spread, op, "rival and spread belong together");
    return TSR_OK;
}

tsr_status tsr_head_begin_check(const tsr_head_begin_args *args)
{
    return check_state("head_begin", &args->state, args->rows, args->d);
}

tsr_status tsr_head_chunk_check(const tsr_head_chunk_args *args)
{
    TSR_TRY(tsr_expect_dtype("head_chunk", args->dtype));
    TSR_TRY(check_state("head_chunk", &args->state, args->rows, args->d));
    TSR_EXPECT(args->first >= 0 && args->count >= 0 && args->first + args->count <= INT32_MAX,
               "head_chunk", "vocabulary rows out of range");
    if (args->rows == 0 || args->count == 0)
        return TSR_OK;
    TSR_EXPECT(args->h && args->w.data && args->labels, "head_chunk", "h, w or labels is NULL");
    TSR_EXPECT(tsr_frozen_valid(args->w), "head_chunk", "w is not F32 or BF16");
    TSR_EXPECT(args->workspace, "head_chunk", "workspace is NULL");
    TSR_EXPECT(args->skip_count == 0 || args->skip, "head_chunk", "skip is NULL");
    TSR_EXPECT(args->state.wy_dtype == TSR_F32 ||
                   (args->state.wy_dtype == args->dtype && !(args->softcap > 0)),
               "head_chunk", "wy is rounded");
    TSR_EXPECT(!args->state.row_parts || !(args->softcap > 0), "head_chunk",
               "labels are not smoothed with a softcap");
    return TSR_OK;
}

tsr_status tsr_head_finish_check(const tsr_head_finish_args *args)
{
    TSR_TRY(tsr_expect_dtype("head_finish", args->dtype));
    TSR_TRY(check_state("head_finish", &args->state, args->rows, args->d));
    TSR_EXPECT(args->loss && args->loss_overflow, "head_finish", "loss or loss_overflow is NULL");
    TSR_EXPECT(args->rows == 0 || args->nll, "head_finish", "nll is NULL");
    TSR_EXPECT(!args->dh || args->state.acc, "head_finish", "dh needs acc");
    TSR_EXPECT(args->state.wy_dtype == TSR_F32 || args->state.wy_dtype == args->dtype,
               "head_finish", "wy is of another dtype");
    TSR_EXPECT(args->rows == 0 ||
                   (!args->correct == !args->state.rival && !args->entropy == !args->state.rival),
               "head_finish", "correct and entropy belong to rival");
    TSR_EXPECT(args->rows == 0 || !args->log_squares == !args->state.squares, "head_finish",
               "log_squares belongs to squares");
    TSR_EXPECT(args->rows == 0 || !(args->row_entropy || args->row_correct) || args->state.rival,
               "head_finish", "row_entropy and row_correct need rival");
    TSR_EXPECT(args->rows == 0 || !(args->smoothing > 0 || args->row_logit) ||
                   (args->h && args->mean_row && args->vocabulary > 0),
               "head_finish", "smoothing needs h, mean_row and the vocabulary");
    return TSR_OK;
}

/* ---- begin ---- */

static void begin_block(void *context, int index)
{
    const tsr_head_begin_args *args = context;
    int64_t rows = tsr_block_rows(args->d), first = index * rows;
    int64_t count = tsr_min(rows, args->rows - first);
    for (int64_t i = first; i < first + count; i++) {
        args->state.max[i] = -INFINITY;
        args->state.sum[i] = 0;
        args->state.label_logit[i] = NAN;
        if (args->state.rival) {
            args->state.rival[i] = -INFINITY;
            args->state.spread[i] = 0;
        }
        if (args->state.squares)
            args->state.squares[i] = 0;
    }
    if (index == 0 && args->state.row_parts)
        memset(args->state.row_parts, 0, (size_t)(TSR_HEAD_PARTS * args->d) * sizeof(float));
    if (args->state.acc) {
        size_t bytes = (size_t)(count * args->d) * sizeof(float);
        memset(args->state.acc + first * args->d, 0, bytes);
        memset((float *)args->state.wy + first * args->d, 0, bytes);
    }
}

tsr_status tsr_head_begin_ref(const tsr_head_begin_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_head_begin_check(args));
    tsr_pool_run(pool, tsr_block_count(args->rows, tsr_block_rows(args->d)), begin_block,
                 (void *)args);
    return TSR_OK;
}

/* ---- chunk ---- */

typedef struct {
    const tsr_head_chunk_args *args;
    const float *w;       /* the vocabulary tile, [vocab, d] */
    int64_t first, vocab; /* of the tile */
    int64_t tile_rows;
    int tasks;
} chunk_tile;

/* What the label must reach to be the argmax of a tile whose other logits are at most `most`: of equal ones the
 * first counts. */
TSR_INLINE float rival_of(const float *logits, int64_t vocab, float most, int64_t label,
                          float label_logit)
{
    bool before = label >= vocab;
    for (int64_t i = 0; i < label && label < vocab && most == label_logit && !before; i++)
        before = logits[i] == most;
    return before ? nextafterf(most, INFINITY) : most;
}

/* As tsr_row_exp, the same bits; and of the weights with their logits' distances from max, the sum of products, in
 * lanes that are spelt out: GCC makes scalars of two sums in one loop. What weighs nothing adds nothing. */
TSR_INLINE float weigh_row(float *row, int64_t count, float max, float *spread)
{
    float lane[TSR_LANES] = {0}, distance[TILE_VOCAB];
    tsr_lanes far = {0};
    int64_t i = 0;
    for (int64_t j = 0; j < count; j++) {
        float x = row[j] - max;
        row[j] = tsr_expf(x);
        distance[j] = x < -86.0f ? 0.0f : x;
    }
    for (; i + TSR_LANES <= count; i += TSR_LANES)
        for (int l = 0; l < TSR_LANES; l++)
            lane[l] += row[i + l];
    for (int64_t j = 0; j < i; j += TSR_LANES)
        far += *(const tsr_lanes *)(row + j) * *(const tsr_lanes *)(distance + j);
    float sum = tsr_lanes_sum(lane), products[TSR_LANES];
    memcpy(products, &far, sizeof far);
    *spread = tsr_lanes_sum(products);
    for (; i < count; i++) {
        sum += row[i];
        *spread += row[i] * distance[i];
    }
    return sum;
}

/* Of weights, in lanes. */
TSR_INLINE float sum_squares(const float *row, int64_t count)
{
    float lane[TSR_LANES] = {0};
    int64_t i = 0;
    for (; i + TSR_LANES <= count; i += TSR_LANES)
        for (int l = 0; l < TSR_LANES; l++)
            lane[l] += row[i + l] * row[i + l];
    float sum = tsr_lanes_sum(lane);
    for (; i < count; i++)
        sum += row[i] * row[i];
    return sum;
}

/* One row of logits: the label, the running maximum and sum, and the logits become weights. */
TSR_INLINE void update_row(const chunk_tile *tile, int64_t row, float *logits)
{
    const tsr_head_chunk_args *args = tile->args;
    const tsr_head_state *s = &args->state;
    int64_t d = args->d, label = args->labels[row] - tile->first;
    float cap = args->softcap, slope[TILE_VOCAB];
    for (int64_t i = 0; i < tile->vocab && cap > 0; i++) {
        float share = 1.0f - 2.0f / (1.0f + tsr_expf(2.0f * logits[i] / cap));
        logits[i] = cap * share;
        slope[i] = 1.0f - share * share;
    }
    for (int64_t i = 0; i < args->skip_count; i++) {
        int64_t skipped = args->skip[i] - tile->first;
        if (skipped >= 0 && skipped < tile->vocab)
            logits[skipped] = -INFINITY;
    }
    if (label >= 0 && label < tile->vocab) {
        const float *w = tile->w + label * d;
        s->label_logit[row] = logits[label];
        float *wy = s->wy;
        for (int64_t j = 0; j < d && wy; j++)
            wy[row * d + j] = cap > 0 ? slope[label] * w[j] : w[j];
        logits[label] = -INFINITY;
    }
    float old = s->max[row], most = tsr_row_max(logits, tile->vocab);
    float max = most > old ? most : old, spread;
    if (s->rival) {
        float rival = rival_of(logits, tile->vocab, most, label, s->label_logit[row]);
        s->rival[row] = rival > s->rival[row] ? rival : s->rival[row];
    }
    if (max > old) {
        float shrink = tsr_expf(old - max); /* 0 at first: exp(-inf) */
        s->max[row] = max;
        if (s->spread)
            s->spread[row] = shrink > 0 ? shrink * (s->spread[row] + (old - max) * s->sum[row]) : 0;
        s->sum[row] *= shrink;
        if (s->squares)
            s->squares[row] *= shrink * shrink;
        if (s->acc)
            for (int64_t j = 0; j < d; j++)
                s->acc[row * d + j] *= shrink;
    }
    s->sum[row] += weigh_row(logits, tile->vocab, max > -INFINITY ? max : 0, &spread);
    if (s->spread)
        s->spread[row] += spread;
    if (s->squares)
        s->squares[row] += sum_squares(logits, tile->vocab);
    for (int64_t i = 0; i < tile->vocab && cap > 0; i++)
        logits[i] *= slope[i];
}

TSR_CLONES static void update_rows(const chunk_tile *tile, int64_t first, int64_t count,
                                   float *logits)
{
    for (int64_t i = 0; i < count; i++)
        update_row(tile, first + i, logits + i * TILE_VOCAB);
}

static void run_rows(void *context, int index)
{
    const chunk_tile *tile = context;
    const tsr_head_chunk_args *args = tile->args;
    float *logits = (float *)args->workspace + (int64_t)index * TILE_ROWS * TILE_VOCAB;
    int64_t d = args->d, step = tile->tasks * tile->tile_rows;
    for (int64_t row = index * tile->tile_rows; row < args->rows; row += step) {
        int64_t count = tsr_min(tile->tile_rows, args->rows - row);
        tsr_gemm_block(&(tsr_gemm_block_args){.m = count,
                                              .n = tile->vocab,
                                              .k = d,
                                              .trans_b = true,
                                              .a = (const float *)args->h + row * d,
                                              .lda = d,
                                              .b = tile->w,
                                              .ldb = d,
                                              .c = logits,
                                              .ldc = TILE_VOCAB,
                                              .alpha = 1});
        update_rows(tile, row, count, logits);
        if (args->state.acc)
            tsr_gemm_block(&(tsr_gemm_block_args){.m = count,
                                                  .n = d,
                                                  .k = tile->vocab,
                                                  .a = logits,
                                                  .lda = TILE_VOCAB,
                                                  .b = tile->w,
                                                  .ldb = d,
                                                  .c = args->state.acc + row * d,
                                                  .ldc = d,
                                                  .alpha = 1,
                                                  .beta = 1});
    }
}

/* The rows of one part; its first is that of the tile which is congruent to it. */
TSR_CLONES static void sum_rows(void *context, int part)
{
    const chunk_tile *tile = context;
    int64_t d = tile->args->d, begin = part - tile->first % TSR_HEAD_PARTS;
    float *sum = tile->args->state.row_parts + part * d;
    for (int64_t v = begin < 0 ? begin + TSR_HEAD_PARTS : begin; v < tile->vocab;
         v += TSR_HEAD_PARTS)
        for (int64_t j = 0; j < d; j++)
            sum[j] += tile->w[v * d + j];
}

typedef struct {
    float *out;
    tsr_frozen w;
    int64_t first, rows, d;
} widen_tile;

TSR_CLONES static void widen_rows(void *context, int index)
{
    const widen_tile *tile = context;
    int64_t row = (int64_t)index * WIDEN_ROWS, rows = tsr_min(WIDEN_ROWS, tile->rows - row);
    tsr_frozen_copy(tile->out + row * tile->d, tile->w, (tile->first + row) * tile->d,
                    rows * tile->d);
}

tsr_status tsr_head_chunk_ref(const tsr_head_chunk_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_head_chunk_check(args));
    TSR_TRY(tsr_expect_f32("head_chunk", args->dtype));
    if (args->rows == 0 || args->count == 0)
        return TSR_OK;
    uint64_t need = tsr_head_workspace_bytes(&(tsr_head_bounds){.d = args->d});
    if (args->workspace_bytes < need)
        return tsr_fail(TSR_EINVAL, "head_chunk: a workspace of %llu bytes, %llu are needed",
                        (unsigned long long)args->workspace_bytes, (unsigned long long)need);
    /* Even tiles of 64 to 128 rows: fewer would pack the vocabulary tile too often. */
    int64_t tiles = args->rows >= 8 * TILE_ROWS ? tsr_block_count(args->rows, TILE_ROWS)
                                                : tsr_block_count(args->rows, TILE_ROWS / 2);
    int64_t tile_rows = ((args->rows + tiles - 1) / tiles + 7) / 8 * 8;
    float *widened = (float *)args->workspace + (int64_t)TILE_TASKS * TILE_ROWS * TILE_VOCAB;
    for (int64_t at = 0; at < args->count; at += TILE_VOCAB) {
        chunk_tile tile = {.args = args,
                           .first = args->first + at,
                           .vocab = tsr_min(TILE_VOCAB, args->count - at),
                           .tile_rows = tile_rows};
        tile.tasks = (int)tsr_min(TILE_TASKS, tsr_block_count(args->rows, tile_rows));
        if (args->w.dtype == TSR_F32) {
            tile.w = (const float *)args->w.data + at * args->d;
        } else {
            widen_tile widen = {widened, args->w, at, tile.vocab, args->d};
            tsr_pool_run(pool, tsr_block_count(tile.vocab, WIDEN_ROWS), widen_rows, &widen);
            tile.w = widened;
        }
        tsr_pool_run(pool, tile.tasks, run_rows, &tile);
        if (args->state.row_parts)
            tsr_pool_run(pool, TSR_HEAD_PARTS, sum_rows, &tile);
    }
    return TSR_OK;
}

/* ---- finish ---- */

/* Whichever is the larger, the label's weight or that of all others. */
static double nll_of(double max, double sum, double label_logit)
{
    double lead = label_logit - max; /* infinite where there are no others */
    if (!isfinite(label_logit))
        return NAN;
    return lead > 0 ? log1p(sum * exp(-lead)) : log(sum + exp(lead)) - lead;
}

/* As nll_of, of the larger weight. */
static double entropy_of(double max, double sum, double spread, double label_logit)
{
    double lead = label_logit - max, weight, total;
    if (!(sum > 0)) /* there are no others */
        return isfinite(label_logit) && sum == 0 ? 0 : NAN;
    if (lead > 0) {
        weight = exp(-lead);
        return log1p(sum * weight) - (spread - lead * sum) * weight / (1 + sum * weight);
    }
    weight = exp(lead);
    total = sum + weight;
    return log(total) - (spread + weight * lead) / total;
}

/* As nll_of, of the larger weight. */
static double log_squares_of(double max, double sum, double squares, double label_logit)
{
    double lead = label_logit - max, weight = exp(-fabs(lead));
    if (!isfinite(label_logit))
        return NAN;
    if (!(sum > 0)) /* there are no others */
        return 0;
    return lead > 0 ? log1p(squares * weight * weight) - 2 * log1p(sum * weight)
                    : log(squares + weight * weight) - 2 * log(sum + weight);
}

/* The mean logit of a row, over the vocabulary. */
TSR_INLINE double mean_logit(const tsr_head_finish_args *args, int64_t row)
{
    const float *h = (const float *)args->h + row * args->d;
    double sum = 0;
    for (int64_t j = 0; j < args->d; j++)
        sum += (double)h[j] * (double)args->mean_row[j];
    return sum;
}

static void take_mean_row(const tsr_head_finish_args *args)
{
    for (int64_t j = 0; j < args->d; j++) {
        double sum = 0;
        for (int64_t part = 0; part < TSR_HEAD_PARTS; part++)
            sum += (double)args->state.row_parts[part * args->d + j];
        args->mean_row[j] = (float)(sum / (double)args->vocabulary);
    }
}

TSR_CLONES static void finish_block(void *context, int index)
{
    const tsr_head_finish_args *args = context;
    const tsr_head_state *s = &args->state;
    float smooth = args->scale * (float)args->smoothing;
    int64_t rows = tsr_block_rows(args->d), d = args->d;
    int64_t last = tsr_min(args->rows, (index + 1) * rows);
    for (int64_t i = index * rows; i < last; i++) {
        args->nll[i] = nll_of(s->max[i], s->sum[i], s->label_logit[i]);
        if (s->squares)
            args->log_squares[i] =
                (float)log_squares_of(s->max[i], s->sum[i], s->squares[i], s->label_logit[i]);
        if (args->row_logit)
            args->row_logit[i] = (float)mean_logit(args, i);
        if (args->smoothing > 0)
            args->nll[i] += args->smoothing * ((double)s->label_logit[i] - mean_logit(args, i));
        if (!args->dh)
            continue;
        float *dh = (float *)args->dh + i * d;
        const float *acc = s->acc + i * d, *wy = (const float *)s->wy + i * d;
        float inverse = 1.0f / (s->sum[i] + tsr_expf(s->label_logit[i] - s->max[i]));
        float others = s->sum[i] * inverse;
        for (int64_t j = 0; j < d; j++)
            dh[j] = args->smoothing > 0 ? args->scale * (acc[j] * inverse - others * wy[j]) +
                                              smooth * (wy[j] - args->mean_row[j])
                                        : args->scale * (acc[j] * inverse - others * wy[j]);
    }
}

tsr_status tsr_head_finish_ref(const tsr_head_finish_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_head_finish_check(args));
    if (args->rows > 0 && args->state.row_parts)
        take_mean_row(args);
    TSR_TRY(tsr_run_f32("head_finish", args->dtype, pool,
                        tsr_block_count(args->rows, tsr_block_rows(args->d)), finish_block, args));
    const tsr_head_state *s = &args->state;
    double sum = 0, entropy = 0;
    int64_t correct = 0;
    for (int64_t i = 0; i < args->rows; i++)
        sum += args->nll[i];
    for (int64_t i = 0; i < args->rows && s->rival; i++) {
        double own = entropy_of(s->max[i], s->sum[i], s->spread[i], s->label_logit[i]);
        bool right = s->label_logit[i] >= s->rival[i];
        entropy += own;
        correct += right;
        if (args->row_entropy)
            args->row_entropy[i] = (float)own;
        if (args->row_correct)
            args->row_correct[i] = right;
    }
    if (!(sum < LOSS_LIMIT && sum > -LOSS_LIMIT)) {
        *args->loss_overflow = 1;
        return TSR_OK;
    }
    *args->loss += llrint(ldexp(sum, TSR_LOSS_SHIFT));
    if (args->rows > 0 && s->rival) {
        *args->correct += correct;
        *args->entropy += llrint(ldexp(entropy, TSR_LOSS_SHIFT));
    }
    return TSR_OK;
}
