/*
 * table_rows.cu: contract table_rows.h; reference table_rows_ref.c. A sum follows its chain as there, in fp32: the same
 * order of the same numbers.
 *
 * Split    table_rows: a block a token; table_sum: a block a chain, each thread columns of its own, so that no sum is
 *          shared. A token that every row has (a separator) is one long chain: its rows are read one after the other,
 *          32 KB of 4096 columns at a time.
 */
#include "kernels/cuda.cuh"

#define THREADS 256

static __global__ void __launch_bounds__(THREADS)
    copy_rows(const __grid_constant__ tsr_table_rows_args a)
{
    tsr_kernel_begin();
    int64_t t = blockIdx.x, row = (int64_t)a.ids[t] - a.first;
    if (row < 0 || row >= a.count)
        return;
    for (int64_t i = threadIdx.x; i < a.d; i += THREADS)
        tsr_store(a.out, t * a.d + i,
                  a.scale * tsr_load(a.table, row * a.row_stride + i * a.column_stride, a.dtype),
                  a.dtype);
}

extern "C" tsr_status tsr_table_rows_cuda(tsr_stream *stream, const tsr_table_rows_args *args)
{
    TSR_TRY(tsr_table_rows_check(args));
    if (args->tokens == 0)
        return TSR_OK;
    tsr_table_rows_args all = *args;
    all.row_stride = args->row_stride ? args->row_stride : args->d;
    all.column_stride = args->row_stride ? args->column_stride : 1;
    TSR_LAUNCH(copy_rows, (unsigned)args->tokens, THREADS, stream, all);
    return tsr_launched("table_rows");
}

static __global__ void __launch_bounds__(THREADS)
    sum_rows(const __grid_constant__ tsr_table_sum_args a)
{
    tsr_kernel_begin();
    int64_t lead = a.leads[blockIdx.x], row = (int64_t)a.ids[lead] - a.first;
    if (row < 0 || row >= a.count)
        return;
    for (int64_t i = threadIdx.x; i < a.d; i += THREADS) {
        float sum = 0;
        for (int64_t t = lead; t >= 0; t = a.next[t])
            sum += tsr_load(a.dout, t * a.d + i, a.dtype);
        /* as two roundings, which the reference has */
        float *at = a.dtable + row * a.row_stride + i * a.column_stride;
        *at = __fadd_rn(*at, __fmul_rn(a.scale, sum));
    }
}

extern "C" tsr_status tsr_table_sum_cuda(tsr_stream *stream, const tsr_table_sum_args *args)
{
    TSR_TRY(tsr_table_sum_check(args));
    size_t bytes = (size_t)(args->count * args->d) * sizeof(float);
    if (args->plus)
        TSR_TRY(tsr_stream_copy(stream, args->dtable, args->plus, bytes));
    else
        TSR_TRY(tsr_cuda_status(cudaMemsetAsync(args->dtable, 0, bytes, tsr_stream_cuda(stream)),
                                "table_sum"));
    if (args->lead_count == 0)
        return TSR_OK;
    tsr_table_sum_args all = *args;
    all.row_stride = args->row_stride ? args->row_stride : args->d;
    all.column_stride = args->row_stride ? args->column_stride : 1;
    TSR_LAUNCH(sum_rows, (unsigned)args->lead_count, THREADS, stream, all);
    return tsr_launched("table_sum");
}
