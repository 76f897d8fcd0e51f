/*
 * expert_weight_ref.c: contract expert_weight.h. One matrix of the stack after the other, each by the
 * reference of nf4_dequant.
 */
#include "kernels/expert_weight.h"

#include "kernels/loops.h"

tsr_status tsr_expert_weight_check(const tsr_expert_weight_args *args)
{
    const char *op = "expert_weight";
    TSR_TRY(tsr_expect_dtype(op, args->dtype));
    TSR_EXPECT(args->format == TSR_EXPERTS_NF4 || args->format == TSR_EXPERTS_PLAIN, op,
               "no such format");
    TSR_EXPECT(args->first >= 0 && args->count >= 0, op, "a count is negative");
    TSR_EXPECT(args->rows > 0 && args->columns > 0 && args->parts > 0 &&
                   args->rows % args->parts == 0,
               op, "rows and columns are not those of whole parts");
    if (args->count == 0)
        return TSR_OK;
    TSR_EXPECT(args->out, op, "out is NULL");
    if (args->format == TSR_EXPERTS_PLAIN) {
        TSR_EXPECT(args->plain.data && tsr_frozen_valid(args->plain), op,
                   "the plain weight is neither BF16 nor F32");
        return TSR_OK;
    }
    TSR_EXPECT(args->codes && args->absmax && args->level, op, "codes, absmax or level is NULL");
    TSR_EXPECT(!args->nested || (args->nested_absmax && args->nested_map && args->offset), op,
               "nested scales need nested_absmax, nested_map and offset");
    return TSR_OK;
}

bool tsr_expert_weight_whole(const tsr_expert_weight_args *args)
{
    int64_t rows = args->rows / args->parts, elements = rows * args->columns;
    int64_t whole = args->nested ? TSR_NF4_BLOCK * TSR_NF4_NESTED_BLOCK : TSR_EXPERT_GRANULE;
    return args->format == TSR_EXPERTS_NF4 && elements % whole == 0;
}

static void widen_rows(void *context, int index)
{
    const tsr_expert_weight_args *args = context;
    int64_t rows = tsr_block_rows(args->columns), all = args->count * args->rows;
    int64_t row = index * rows, last = tsr_min(all, row + rows);
    tsr_frozen_copy((float *)args->out + row * args->columns, args->plain,
                    (args->first * args->rows + row) * args->columns, (last - row) * args->columns);
}

tsr_status tsr_expert_weight_ref(const tsr_expert_weight_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_expert_weight_check(args));
    TSR_TRY(tsr_expect_f32("expert_weight", args->dtype));
    if (args->format == TSR_EXPERTS_PLAIN) {
        tsr_pool_run(pool, tsr_block_count(args->count * args->rows, tsr_block_rows(args->columns)),
                     widen_rows, (void *)args);
        return TSR_OK;
    }
    int64_t rows = args->rows / args->parts;
    for (int64_t i = 0; i < args->count * args->parts; i++) {
        tsr_nf4_dequant_args w =
            tsr_expert_weight_matrix(args, args->first * args->parts + i, rows);
        w.out = (float *)args->out + i * w.count;
        TSR_TRY(tsr_nf4_dequant_ref(&w, pool));
    }
    return TSR_OK;
}
