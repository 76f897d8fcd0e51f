/*
 * load_int8.c: the rank's part of a weight that becomes LLM.int8, quantized row by row on all threads. A part may begin inside a
 * row, whose scale is that of the whole row.
 */
#include "base/auto.h"
#include "model/load_parts.h"

#include "quant/int8.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Bytes in host memory to the rank's place. */
static tsr_status put(tsr_load_job *job, char *to, const void *from, uint64_t bytes)
{
    uint64_t most = tsr_load_chunk_bytes(job);
    for (uint64_t done = 0; done < bytes; done += most) {
        uint64_t some = bytes - done < most ? bytes - done : most;
        char *staged;
        TSR_TRY(tsr_load_chunk_begin(&staged, job));
        memcpy(staged, (const char *)from + done, some);
        TSR_TRY(tsr_stream_copy(job->model->compute, to + done, staged, some));
        TSR_TRY(tsr_load_chunk_end(job));
    }
    return TSR_OK;
}

#define BATCH_ELEMENTS ((uint64_t)4 << 20) /* that are widened at a time */

typedef struct {
    const float *values;
    uint64_t columns;
    int8_t *codes; /* NULL: scales alone */
    float *scale;
    _Atomic int64_t bad; /* a row that cannot be; -1: none */
} row_batch;

static void quantize_row(void *context, int index)
{
    row_batch *b = context;
    uint64_t at = (uint64_t)index * b->columns;
    if (!tsr_int8_quantize_row(b->codes ? b->codes + at : NULL, &b->scale[index], b->values + at,
                               b->columns))
        atomic_store(&b->bad, index);
}

typedef struct {
    tsr_load_job *job;
    const tsr_layout_linear *linear;
    tsr_load_residual residual;
    tsr_weight_reader *reader; /* of a weight that gives nothing up */
    float *values, *scale;
    int8_t *codes;
    uint64_t rows; /* of a batch, at most */
} quantizer;

static void end_quantizer(quantizer *q)
{
    tsr_load_residual_close(&q->residual);
    tsr_weight_reader_close(q->reader);
    free(q->values);
    free(q->scale);
    free(q->codes);
}

static tsr_status begin_quantizer(quantizer *q, tsr_load_job *job, int index)
{
    *q = (quantizer){.job = job,
                     .linear = &tsr_model_layout(job->model)->unit[job->unit].linear[index]};
    uint64_t columns = q->linear->in;
    q->rows = BATCH_ELEMENTS / columns ? BATCH_ELEMENTS / columns : 1;
    q->rows = q->rows < q->linear->out ? q->rows : q->linear->out;
    q->values = malloc(q->rows * columns * sizeof *q->values);
    q->scale = malloc(q->rows * sizeof *q->scale);
    q->codes = malloc(q->rows * columns);
    if (!q->values || !q->scale || !q->codes)
        return tsr_fail(TSR_ENOMEM, "out of memory while quantizing %s", q->linear->path);
    TSR_TRY(tsr_load_residual_open(&q->residual, job, index));
    return q->residual.reader ? TSR_OK : tsr_weight_reader_open(&q->reader, &q->linear->source);
}

/* Rows [row, row + count), at most a batch. */
static tsr_status quantize_rows(quantizer *q, uint64_t row, uint64_t count, bool codes)
{
    uint64_t columns = q->linear->in;
    tsr_pool *pool = tsr_device_pool(q->job->loader->device);
    TSR_TRY(q->reader
                ? tsr_weight_reader_read(q->values, q->reader, row * columns, count * columns, pool)
                : tsr_load_residual_read(q->values, &q->residual, pool, row * columns,
                                         count * columns));
    row_batch batch = {q->values, columns, codes ? q->codes : NULL, q->scale, -1};
    tsr_pool_run(pool, (int)count, quantize_row, &batch);
    int64_t bad = atomic_load(&batch.bad);
    return bad < 0 ? TSR_OK
                   : tsr_fail(TSR_EDATA,
                              "%s: row %llu has a value beyond what fp16 holds (65504), which int8 "
                              "weights go through; write load_in_8bit: false",
                              q->linear->path, (unsigned long long)(row + (uint64_t)bad));
}

/* Elements [first, first + count) of the codes. */
static tsr_status make_codes(quantizer *q, char *to, uint64_t first, uint64_t count)
{
    uint64_t columns = q->linear->in, end = first + count;
    for (uint64_t at = first; at < end;) {
        uint64_t row = at / columns, rows = (end - 1) / columns + 1 - row;
        rows = rows < q->rows ? rows : q->rows;
        uint64_t stop = (row + rows) * columns < end ? (row + rows) * columns : end;
        TSR_TRY(quantize_rows(q, row, rows, true));
        TSR_TRY(put(q->job, to + (at - first), q->codes + (at - row * columns), stop - at));
        at = stop;
    }
    return TSR_OK;
}

static tsr_status make_scales(quantizer *q, char *to, uint64_t first, uint64_t count)
{
    for (uint64_t done = 0; done < count; done += q->rows) {
        uint64_t rows = count - done < q->rows ? count - done : q->rows;
        TSR_TRY(quantize_rows(q, first + done, rows, false));
        TSR_TRY(put(q->job, to + done * sizeof(float), q->scale, rows * sizeof(float)));
    }
    return TSR_OK;
}

tsr_status tsr_load_int8(tsr_load_job *job, int index)
{
    const tsr_layout_segment *segment =
        &tsr_model_layout(job->model)->unit[job->unit].frozen[index];
    char *to = job->loader->frozen(job->loader->user, job->unit, index);
    uint64_t first, count;
    quantizer q;
    tsr_plain_range(&first, &count, segment, job->rank, job->ranks);
    tsr_status status = begin_quantizer(&q, job, segment->linear);
    if (status == TSR_OK)
        status = segment->kind == TSR_SEGMENT_INT8 ? make_codes(&q, to, first, count)
                                                   : make_scales(&q, to, first, count);
    end_quantizer(&q);
    return status;
}
