#include "matmuls.h"

#define MOST 256

static struct {
    tsr_kernels table;
    tsr_gemm_args item[MOST];
    int count;
} noted;

static tsr_status note(tsr_stream *on, const tsr_gemm_args *args)
{
    (void)on;
    if (noted.count < MOST)
        noted.item[noted.count++] = *args;
    return TSR_OK;
}

static tsr_status note_low_rank_backward(tsr_stream *on, const tsr_low_rank_backward_args *args)
{
    tsr_gemm_args product[2];
    if (tsr_low_rank_backward_fused(args))
        return TSR_OK;
    tsr_low_rank_backward_products(product, args);
    note(on, &product[0]);
    return note(on, &product[1]);
}

const tsr_kernels *bench_matmuls_note(void)
{
    noted.table = tsr_kernels_none;
    noted.table.gemm = note;
    noted.table.low_rank_backward = note_low_rank_backward;
    noted.count = 0;
    return &noted.table;
}

tsr_status bench_matmuls_prepare(const tsr_kernels *kernels, tsr_stream *stream, void *scratch,
                                 uint64_t scratch_bytes)
{
    TSR_TRY(tsr_stream_fill(stream, scratch, 0, scratch_bytes));
    return kernels->prepare(tsr_stream_device(stream),
                            &(tsr_prepare_args){.gemm = noted.item,
                                                .gemm_count = noted.count,
                                                .stream = stream,
                                                .scratch = scratch,
                                                .scratch_bytes = scratch_bytes});
}
