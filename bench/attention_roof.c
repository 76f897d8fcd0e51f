/*
 * attention_roof.c: attention alone at a run's shape: the roof of the floor's attention terms, with
 * the same library and the same determinism as in the run.
 */
#include "base/clock.h"
#include "base/philox.h"
#include "kernels/kernels.h"
#include "model.h"

#include <stdlib.h>

#define LAUNCHES 8 /* between two looks at the clock */
#define SAMPLES  9

typedef struct {
    tsr_device *device;
    tsr_stream *stream;
    tsr_arena *arena;
    const tsr_kernels *kernels;
    tsr_attention_args forward;
    tsr_attention_backward_args backward;
} rig;

static tsr_status take_random(void **out, rig *r, uint64_t count, tsr_dtype dtype)
{
    uint64_t bytes = count * tsr_dtype_bytes(dtype);
    TSR_TRY(tsr_arena_take(out, r->arena, "random", bytes));
    char *values = malloc(bytes);
    if (!values)
        return tsr_fail(TSR_ENOMEM, "out of memory for attention's input");
    for (uint64_t i = 0; i < count; i++) {
        float value = 3.4f * (tsr_philox_uniform((uint32_t)tsr_mix(i)) - 0.5f);
        if (dtype == TSR_BF16)
            ((uint16_t *)(void *)values)[i] = tsr_f32_to_bf16(value);
        else
            ((float *)(void *)values)[i] = value;
    }
    tsr_status status = tsr_device_write(r->device, *out, values, bytes);
    free(values);
    return status;
}

static tsr_status take(void **out, rig *r, uint64_t bytes)
{
    return tsr_arena_take(out, r->arena, "buffer", bytes);
}

static tsr_status take_documents(void **out, rig *r, const bench_run *run)
{
    int32_t *begin = malloc((size_t)(run->batch + 1) * sizeof *begin);
    if (!begin)
        return tsr_fail(TSR_ENOMEM, "out of memory for attention's documents");
    for (int64_t i = 0; i <= run->batch; i++)
        begin[i] = (int32_t)(i * run->length);
    uint64_t bytes = (uint64_t)(run->batch + 1) * sizeof *begin;
    tsr_status status = take(out, r, bytes);
    if (status == TSR_OK)
        status = tsr_device_write(r->device, *out, begin, bytes);
    free(begin);
    return status;
}

static tsr_status take_all(rig *r, const bench_run *run, tsr_dtype dtype, uint64_t workspace_bytes)
{
    uint64_t tokens = (uint64_t)(run->batch * run->length);
    uint64_t q = tokens * (uint64_t)(run->shape.heads * run->shape.head_dim);
    uint64_t kv = tokens * (uint64_t)(run->shape.kv_heads * run->shape.head_dim);
    uint32_t element = tsr_dtype_bytes(dtype);
    void *in[4], *out[5], *documents, *workspace;
    const uint64_t in_count[4] = {q, kv, kv, q}, out_count[4] = {q, q, kv, kv};
    for (int i = 0; i < 4; i++) {
        TSR_TRY(take_random(&in[i], r, in_count[i], dtype));
        TSR_TRY(take(&out[i], r, out_count[i] * element));
    }
    TSR_TRY(take(&out[4], r, tokens * (uint64_t)run->shape.heads * sizeof(float)));
    TSR_TRY(take(&workspace, r, workspace_bytes));
    TSR_TRY(take_documents(&documents, r, run));
    r->forward = (tsr_attention_args){.q = in[0],
                                      .k = in[1],
                                      .v = in[2],
                                      .o = out[0],
                                      .lse = out[4],
                                      .cu_seqlens = documents,
                                      .workspace = workspace,
                                      .workspace_bytes = workspace_bytes,
                                      .tokens = (int64_t)tokens,
                                      .documents = (int32_t)run->batch,
                                      .q_heads = (int32_t)run->shape.heads,
                                      .kv_heads = (int32_t)run->shape.kv_heads,
                                      .head_dim = (int32_t)run->shape.head_dim,
                                      .dtype = dtype};
    r->backward = (tsr_attention_backward_args){.q = in[0],
                                                .k = in[1],
                                                .v = in[2],
                                                .o = out[0],
                                                .d_o = in[3],
                                                .lse = out[4],
                                                .dq = out[1],
                                                .dk = out[2],
                                                .dv = out[3],
                                                .cu_seqlens = documents,
                                                .workspace = workspace,
                                                .workspace_bytes = workspace_bytes,
                                                .tokens = (int64_t)tokens,
                                                .documents = (int32_t)run->batch,
                                                .q_heads = (int32_t)run->shape.heads,
                                                .kv_heads = (int32_t)run->shape.kv_heads,
                                                .head_dim = (int32_t)run->shape.head_dim,
                                                .dtype = dtype};
    return TSR_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tsr_status launch(rig *r, bool backward)
{
    if (backward)
        return r->kernels->attention_backward(r->stream, &r->backward);
    return r->kernels->attention(r->stream, &r->forward);
}

/* Median seconds of one. */
static tsr_status time_one(double *out, rig *r, bool backward)
{
    double sample[SAMPLES];
    for (int i = -2; i < SAMPLES; i++) {
        double before = tsr_now();
        for (int j = 0; j < LAUNCHES; j++)
            TSR_TRY(launch(r, backward));
        TSR_TRY(tsr_stream_synchronize(r->stream));
        if (i >= 0)
            sample[i] = (tsr_now() - before) / LAUNCHES;
    }
    qsort(sample, SAMPLES, sizeof *sample, compare);
    *out = sample[SAMPLES / 2];
    return TSR_OK;
}

static tsr_status measure(double *forward, double *backward, rig *r, const bench_run *run,
                          tsr_dtype dtype)
{
    const bench_shape *s = &run->shape;
    int64_t tokens = run->batch * run->length;
    TSR_TRY(tsr_device_create_cuda(&r->device, NULL));
    TSR_TRY(tsr_kernels_open(&r->kernels, r->device));
    TSR_TRY(tsr_stream_create(&r->stream, r->device, "roof"));
    tsr_attention_bounds bounds = {.tokens = tokens,
                                   .documents = run->batch,
                                   .longest = run->length,
                                   .q_heads = (int32_t)s->heads,
                                   .kv_heads = (int32_t)s->kv_heads,
                                   .head_dim = (int32_t)s->head_dim,
                                   .dtype = dtype,
                                   .train = true};
    TSR_TRY(r->kernels->prepare(r->device, &(tsr_prepare_args){.attention = &bounds}));
    uint64_t workspace = r->kernels->attention_workspace_bytes(&bounds);
    uint64_t width = (uint64_t)((s->heads * 4 + s->kv_heads * 4) * s->head_dim);
    uint64_t bytes = (uint64_t)tokens * (width * tsr_dtype_bytes(dtype) + (uint64_t)s->heads * 4);
    bytes += workspace + (uint64_t)run->batch * 4 + 64 * TSR_ALIGNMENT;
    TSR_TRY(tsr_arena_create(&r->arena, r->device, TSR_MEMORY_DEVICE, bytes));
    TSR_TRY(take_all(r, run, dtype, workspace));
    double pairs = (double)tokens * (double)(run->length + 1) / 2;
    double one = 2 * pairs * (double)(s->heads * s->head_dim), seconds = 0;
    TSR_TRY(time_one(&seconds, r, false));
    *forward = 2 * one / seconds;
    TSR_TRY(time_one(&seconds, r, true));
    *backward = 5 * one / seconds;
    return TSR_OK;
}

tsr_status bench_attention_roof(double *forward, double *backward, const bench_run *run,
                                tsr_dtype dtype)
{
    rig r = {0};
    tsr_status status = measure(forward, backward, &r, run, dtype);
    tsr_arena_destroy(r.arena);
    if (r.stream)
        tsr_stream_destroy(r.stream);
    tsr_device_destroy(r.device);
    return status;
}
