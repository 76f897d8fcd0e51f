/*
 * low_rank_backward_ref.c: contract low_rank_backward.h; and how a GPU cuts it.
 */
#include "kernels/low_rank_backward.h"

#include "kernels/loops.h"

tsr_status tsr_low_rank_backward_check(const tsr_low_rank_backward_args *args)
{
    const char *op = "low_rank_backward";
    TSR_EXPECT(args->tokens >= 0 && args->out >= 0 && args->r >= 0, op, "a count is negative");
    bool tokens = args->tokens && args->r, columns = args->out && args->r;
    TSR_EXPECT(!tokens || (args->low && args->d_low), op, "low or d_low is NULL");
    TSR_EXPECT(!columns || (args->b && args->db), op, "b or db is NULL");
    TSR_EXPECT(!tokens || !columns || args->dy, op, "dy is NULL");
    return TSR_OK;
}

void tsr_low_rank_backward_products(tsr_gemm_args product[2],
                                    const tsr_low_rank_backward_args *args)
{
    product[0] = (tsr_gemm_args){.m = args->out,
                                 .n = args->r,
                                 .k = args->tokens,
                                 .a = args->dy,
                                 .b = args->low,
                                 .c = args->db,
                                 .trans_a = true,
                                 .alpha = args->scale,
                                 .dtype = args->dtype,
                                 .c_dtype = TSR_F32};
    product[1] = (tsr_gemm_args){.m = args->tokens,
                                 .n = args->r,
                                 .k = args->out,
                                 .a = args->dy,
                                 .b = args->b,
                                 .c = args->d_low,
                                 .alpha = args->scale,
                                 .dtype = args->dtype,
                                 .c_dtype = args->dtype};
}

tsr_status tsr_low_rank_backward_ref(const tsr_low_rank_backward_args *args, tsr_pool *pool)
{
    tsr_gemm_args product[2];
    TSR_TRY(tsr_low_rank_backward_check(args));
    tsr_low_rank_backward_products(product, args);
    TSR_TRY(tsr_gemm_ref(&product[0], pool));
    return tsr_gemm_ref(&product[1], pool);
}

/* ---- one kernel ---- */

#define BLOCKS 132 /* a block has a multiprocessor to itself */
#define BUSY   80  /* of them, fed by boxes, can take what memory gives */

static int64_t parts(int64_t total, int64_t each)
{
    return (total + each - 1) / each;
}

/* Strips of so many columns, chunks of a multiple of `step` tokens. */
static tsr_low_rank_tiling tiling_of(int64_t tokens, int64_t out, int64_t columns, int64_t step)
{
    tsr_low_rank_tiling tiling = {.columns = columns, .strips = parts(out, columns)};
    int64_t splits = tiling.strips < BLOCKS ? BLOCKS / tiling.strips : 1;
    tiling.chunk = parts(parts(tokens, splits), step) * step;
    tiling.splits = parts(tokens, tiling.chunk);
    return tiling;
}

/* Elements of both partial sums, for each rank. */
static int64_t partial_sums(const tsr_low_rank_tiling *tiling, int64_t tokens, int64_t out)
{
    return tiling->splits * out + tiling->strips * tokens;
}

/* Bytes that pass: what `blocks` read if each reads as much as the largest; and partial sums, written and
 * read. */
static int64_t traffic(const tsr_low_rank_tiling *tiling, int64_t tokens, int64_t out, int64_t r,
                       int64_t blocks)
{
    return 2 * blocks * tiling->chunk * tiling->columns + 8 * r * partial_sums(tiling, tokens, out);
}

tsr_low_rank_tiling tsr_low_rank_tiling_make(int64_t tokens, int64_t out, int64_t r)
{
    tsr_low_rank_tiling best = {0};
    for (int warps = TSR_LOW_RANK_WARPS; warps >= 2; warps /= 2) {
        tsr_low_rank_tiling tiling = tiling_of(tokens, out, (int64_t)warps * TSR_LOW_RANK_STRIP,
                                               TSR_LOW_RANK_WARPS / warps * TSR_LOW_RANK_TILE);
        if (!best.columns ||
            traffic(&tiling, tokens, out, r, BLOCKS) < traffic(&best, tokens, out, r, BLOCKS))
            best = tiling;
    }
    return best;
}

/* The same where fewer blocks can take all that memory gives. */
static int64_t boxes_traffic(const tsr_low_rank_tiling *tiling, int64_t tokens, int64_t out,
                             int64_t r)
{
    int64_t busiest = BUSY * tiling->chunk * tiling->columns, dy = tokens * out;
    return 2 * (busiest > dy ? busiest : dy) + 8 * r * partial_sums(tiling, tokens, out);
}

tsr_low_rank_tiling tsr_low_rank_boxes_make(int64_t tokens, int64_t out, int64_t r)
{
    tsr_low_rank_tiling best = {0};
    for (int pieces = r > TSR_LOW_RANK_MMA ? 2 : 4; pieces >= 1; pieces /= 2) {
        tsr_low_rank_tiling tiling =
            tiling_of(tokens, out, (int64_t)pieces * TSR_LOW_RANK_PIECE, TSR_LOW_RANK_TURN);
        if (!best.columns ||
            boxes_traffic(&tiling, tokens, out, r) < boxes_traffic(&best, tokens, out, r))
            best = tiling;
    }
    return best;
}

uint64_t tsr_low_rank_backward_bytes(tsr_dtype dtype, int64_t tokens, int64_t out, int64_t r)
{
    if (dtype != TSR_BF16 || tokens <= 0 || out <= 0 || r <= 0 || out % 8 || r % 8 ||
        r > TSR_LOW_RANK_MOST)
        return 0;
    tsr_low_rank_tiling tiling = tsr_low_rank_boxes_make(tokens, out, r);
    int64_t most = partial_sums(&tiling, tokens, out);
    if (r <= TSR_LOW_RANK_MMA) {
        tiling = tsr_low_rank_tiling_make(tokens, out, r);
        int64_t sums = partial_sums(&tiling, tokens, out);
        most = sums > most ? sums : most;
    }
    return (uint64_t)(most * r) * sizeof(float);
}

bool tsr_low_rank_backward_fused(const tsr_low_rank_backward_args *args)
{
    uint64_t bytes = tsr_low_rank_backward_bytes(args->dtype, args->tokens, args->out, args->r);
    return bytes && args->scratch_bytes >= bytes;
}
