/*
 * expert_rows.c: contract expert_rows.h.
 */
#include "kernels/expert_rows.h"

#include "kernels/loops.h"

tsr_status tsr_expert_rows_check(const char *op, const tsr_expert_rows *rows)
{
    TSR_EXPECT(rows->most >= 0 && rows->most <= INT32_MAX, op, "the most rows are no int32");
    TSR_EXPECT(rows->experts > 0 && rows->experts <= INT32_MAX, op, "there are no experts");
    TSR_EXPECT(rows->offset, op, "offset is NULL");
    TSR_EXPECT(!rows->slot || (rows->k > 0 && rows->most % rows->k == 0), op,
               "the most rows are not k of each token");
    return TSR_OK;
}

tsr_status tsr_expert_rows_read(const char *op, const tsr_expert_rows *rows)
{
    const int32_t *offset = rows->offset;
    int64_t all = offset[rows->experts];
    for (int64_t e = 0; e < rows->experts; e++)
        if (offset[e] < 0 || offset[e + 1] < offset[e] || all > rows->most)
            return tsr_fail(TSR_EINTERNAL,
                            "%s: expert %lld has rows [%d, %d), which are not among %lld", op,
                            (long long)e, offset[e], offset[e + 1], (long long)rows->most);
    for (int64_t i = offset[0]; rows->slot && i < all; i++)
        if (rows->slot[i] < 0 || rows->slot[i] >= rows->most)
            return tsr_fail(TSR_EINTERNAL, "%s: slot[%lld] = %d is not below %lld", op,
                            (long long)i, rows->slot[i], (long long)rows->most);
    return TSR_OK;
}

bool tsr_expert_block_at(tsr_expert_block *out, const tsr_expert_rows *rows, int64_t first,
                         int64_t count, int64_t height, int64_t *index)
{
    for (int64_t e = first; e < first + count; e++) {
        int64_t start = rows->offset[e], end = rows->offset[e + 1];
        int64_t blocks = (end - start + height - 1) / height;
        if (*index < blocks) {
            int64_t row = start + *index * height;
            *out = (tsr_expert_block){e, row, tsr_min(end, row + height)};
            return true;
        }
        *index -= blocks;
    }
    return false;
}

void tsr_expert_rows_gather(float *out, const tsr_expert_rows *rows, int64_t row, int64_t row_end,
                            const float *x, int64_t stride, int64_t column, int64_t width)
{
    for (int64_t i = row; i < row_end; i++)
        memcpy(out + (i - row) * width, x + tsr_expert_row_from(rows, i) * stride + column,
               (size_t)width * sizeof(float));
}
