/*
 * kernels/expert_rows.h: which rows belong to which expert, for the ops of a mixture of experts.
 *
 * A token is computed by k experts. Each of these is a slot: slot t k + j is expert j of token t. Rows are
 * slots sorted by expert. How many rows an expert has is known on the device alone: ops take a bound, and
 * read `offset` when they run.
 */
#ifndef TSR_KERNELS_EXPERT_ROWS_H
#define TSR_KERNELS_EXPERT_ROWS_H

#include "kernels/types.h"

typedef struct {
    const int32_t *offset; /* [experts + 1]: expert e has rows [offset[e], offset[e + 1]) */
    const int32_t *slot;   /* [most]: row i takes row slot[i] / k of x; NULL: row i takes row i */
    int64_t most;          /* the most rows, tokens times k */
    int64_t k;             /* experts of a token; used with slot only */
    int64_t experts;
} tsr_expert_rows;

/* What can be judged before the op runs. */
tsr_status tsr_expert_rows_check(const char *op, const tsr_expert_rows *rows);

/* TSR_EINTERNAL: offsets or slots that point elsewhere. For memory that the CPU reads. */
tsr_status tsr_expert_rows_read(const char *op, const tsr_expert_rows *rows);

/* The row of x that row i takes. */
static inline int64_t tsr_expert_row_from(const tsr_expert_rows *rows, int64_t i)
{
    return rows->slot ? rows->slot[i] / rows->k : i;
}

/* Finds block `*index` among those of `height` rows of experts [first, first + count), each cut on its
 * own, without an end after fewer: false, and *index is how many blocks further it lies. */
typedef struct {
    int64_t expert, row, row_end;
} tsr_expert_block;

bool tsr_expert_block_at(tsr_expert_block *out, const tsr_expert_rows *rows, int64_t first,
                         int64_t count, int64_t height, int64_t *index);

/* Copies columns [column, column + width) of what rows [row, row_end) take from x, whose rows are
 * `stride` apart, to `out`, dense. */
void tsr_expert_rows_gather(float *out, const tsr_expert_rows *rows, int64_t row, int64_t row_end,
                            const float *x, int64_t stride, int64_t column, int64_t width);

#endif
