/*
 * kernels/loops.h: what the CPU kernels share: judging arguments, splitting work into blocks that
 * depend on shapes only, frozen vectors as fp32, column sums. Inside src/kernels only.
 */
#ifndef TSR_KERNELS_LOOPS_H
#define TSR_KERNELS_LOOPS_H

#include "base/checked.h"
#include "kernels/types.h"
#include "kernels/vector_math.h"

#define TSR_STRIP      64     /* columns of a strip: 256 bytes of a row */
#define TSR_SUM_TOKENS 16     /* products added in fp32 before they go to fp64 */
#define TSR_BLOCK_WORK 0x8000 /* elements of a block of rows, about 10 microseconds */

/* TSR_EINVAL unless the condition holds; names the op and what is wrong. */
#define TSR_EXPECT(condition, op, what)                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return tsr_fail(TSR_EINVAL, "%s: %s", op, what);                                       \
    } while (0)

/* Activations: F32, BF16 or F16; which of them runs is the backend's. */
static inline tsr_status tsr_expect_dtype(const char *op, tsr_dtype dtype)
{
    if (dtype == TSR_F32 || dtype == TSR_BF16 || dtype == TSR_F16)
        return TSR_OK;
    return tsr_fail(TSR_EINVAL, "%s: dtype %d is not F32, BF16 or F16", op, (int)dtype);
}

/* The CPU computes in fp32. */
static inline tsr_status tsr_expect_f32(const char *op, tsr_dtype dtype)
{
    if (dtype == TSR_F32)
        return TSR_OK;
    return tsr_fail(TSR_EUNSUPPORTED, "%s: dtype %s; the CPU backend computes in F32 only", op,
                    dtype < TSR_DTYPE_COUNT ? tsr_dtype_name(dtype) : "?");
}

/* What most references end with: `tasks` of `task`, which reads the op's `args`, in F32. */
static inline tsr_status tsr_run_f32(const char *op, tsr_dtype dtype, tsr_pool *pool, int tasks,
                                     void (*task)(void *args, int index), const void *args)
{
    TSR_TRY(tsr_expect_f32(op, dtype));
    tsr_pool_run(pool, tasks, task, (void *)args);
    return TSR_OK;
}

static inline bool tsr_frozen_valid(tsr_frozen f)
{
    return !f.data || f.dtype == TSR_F32 || f.dtype == TSR_BF16;
}

/* Rows of `width` elements in one block, at least one. */
static inline int64_t tsr_block_rows(int64_t width)
{
    int64_t rows = TSR_BLOCK_WORK / (width > 0 ? width : 1);
    return rows > 0 ? rows : 1;
}

static inline int64_t tsr_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Even blocks of at most `most`, rounded up to a multiple of `step` (that `most` is one of). */
static inline int64_t tsr_even_block(int64_t total, int64_t most, int64_t step)
{
    int64_t count = (total + most - 1) / most;
    int64_t block = count ? (total + count - 1) / count : 0;
    return (block + step - 1) / step * step;
}

/* Blocks of `per_block` in `total`, for tsr_pool_run. */
static inline int tsr_block_count(int64_t total, int64_t per_block)
{
    return (int)((total + per_block - 1) / per_block);
}

/* `count` elements of a frozen vector from `first` on: the vector itself, or widened in `buffer`;
 * `fill` where there is none. */
TSR_INLINE const float *tsr_frozen_load(float *buffer, tsr_frozen f, int64_t first, int64_t count,
                                        float fill)
{
    if (f.data && f.dtype == TSR_F32)
        return (const float *)f.data + first;
    const uint16_t *bits = f.data ? (const uint16_t *)f.data + first : NULL;
    for (int64_t i = 0; i < count; i++)
        buffer[i] = bits ? tsr_bf16_to_f32(bits[i]) : fill;
    return buffer;
}

TSR_INLINE const float *tsr_vector_load(float *buffer, const float *vector, int64_t first,
                                        int64_t count, float fill)
{
    if (vector)
        return vector + first;
    for (int64_t i = 0; i < count; i++)
        buffer[i] = fill;
    return buffer;
}

/* out[i] = the value of element i of a frozen table. */
TSR_INLINE void tsr_frozen_copy(float *out, tsr_frozen f, int64_t first, int64_t count)
{
    if (f.dtype == TSR_F32) {
        memcpy(out, (const float *)f.data + first, (size_t)count * sizeof(float));
        return;
    }
    const uint16_t *bits = (const uint16_t *)f.data + first;
    for (int64_t i = 0; i < count; i++)
        out[i] = tsr_bf16_to_f32(bits[i]);
}

/* Work over [tokens, columns] by strips of columns. A task is one strip of all tokens where a
 * column's sum is wanted (`whole_columns`), and otherwise a block of tokens, strip by strip. */
typedef struct {
    int64_t column, columns; /* of the strip */
    int64_t token, token_end;
} tsr_tile;

static inline int tsr_tile_tasks(int64_t tokens, int64_t columns, bool whole_columns)
{
    return whole_columns ? tsr_block_count(columns, TSR_STRIP)
                         : tsr_block_count(tokens, tsr_block_rows(columns));
}

/* The strips that one task walks. */
TSR_INLINE int tsr_task_strips(int64_t columns, bool whole_columns)
{
    return whole_columns ? 1 : tsr_block_count(columns, TSR_STRIP);
}

TSR_INLINE tsr_tile tsr_tile_at(int task, int strip, int64_t tokens, int64_t columns,
                                bool whole_columns)
{
    int64_t column = (int64_t)(whole_columns ? task : strip) * TSR_STRIP;
    int64_t rows = whole_columns ? tokens : tsr_block_rows(columns);
    int64_t token = whole_columns ? 0 : task * rows;
    return (tsr_tile){column, tsr_min(TSR_STRIP, columns - column), token,
                      tsr_min(tokens, token + rows)};
}

/* A task that runs `run`, which takes the op's arguments and a tile, over all of its strips. */
#define TSR_STRIP_TASK(name, args_type, width, whole_columns, run)                                 \
    TSR_CLONES static void name(void *context, int task)                                           \
    {                                                                                              \
        const args_type *args = context;                                                           \
        bool whole = whole_columns;                                                                \
        for (int strip = 0; strip < tsr_task_strips(args->width, whole); strip++)                  \
            run(args, tsr_tile_at(task, strip, args->tokens, args->width, whole));                 \
    }

/* A column sum of a strip: fp32 over TSR_SUM_TOKENS tokens, then fp64. */
typedef struct {
    _Alignas(64) float part[TSR_STRIP];
    double total[TSR_STRIP];
    int held;
} tsr_strip_sum;

TSR_INLINE void tsr_strip_flush(tsr_strip_sum *sum)
{
    for (int i = 0; i < TSR_STRIP; i++) {
        sum->total[i] += (double)sum->part[i];
        sum->part[i] = 0;
    }
    sum->held = 0;
}

/* After the products of one token were added to `part`. */
TSR_INLINE void tsr_strip_next(tsr_strip_sum *sum)
{
    if (++sum->held == TSR_SUM_TOKENS)
        tsr_strip_flush(sum);
}

/* dm = RN(total) / n. */
TSR_INLINE void tsr_strip_divide(float *dm, tsr_strip_sum *sum, const float *n, int64_t count)
{
    tsr_strip_flush(sum);
    for (int64_t i = 0; i < count; i++)
        dm[i] = (float)sum->total[i] / n[i];
}

#endif
