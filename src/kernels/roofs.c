#include "kernels/roofs.h"

#include "base/clock.h"
#include "base/phase.h"
#include "base/philox.h"

#include <stdlib.h>

#define FILL_BYTES    ((uint64_t)32 << 20)  /* random bytes, repeated over the operands */
#define PINNED_BYTES  ((uint64_t)256 << 20) /* of a transfer */
#define SCRATCH_BYTES ((uint64_t)64 << 20)  /* for choosing a GPU's kernels */
#define SAMPLE_S      0.02                  /* how it begins and ends costs nothing then */
#define MOST_SAMPLES  1024
#define LEAST_SAMPLES 3
#define MOST_CALLS    1000 /* of a sample: about what a GPU's queue holds */

struct tsr_roofs {
    const tsr_kernels *kernels;
    tsr_device *device;
    tsr_stream *stream;
    tsr_event *begin, *end; /* of a sample */
    tsr_arena *arena, *pinned;
    char *memory, *scratch, *host;
    uint64_t bytes, scratch_bytes; /* scratch: none on the CPU, where nothing is chosen */
};

/* N(0, 1) about, as bf16: such bytes are harmless fp32 numbers too. */
static tsr_status fill(tsr_roofs *roofs)
{
    uint64_t bytes = roofs->bytes < FILL_BYTES ? roofs->bytes : FILL_BYTES;
    uint16_t *values = malloc(bytes + 1);
    tsr_status status = TSR_OK;
    if (!values)
        return tsr_fail(TSR_ENOMEM, "out of memory for a measurement");
    for (uint64_t i = 0; i < bytes / 2; i++) {
        uint64_t bits = tsr_mix(i);
        float sum = -2;
        for (int part = 0; part < 4; part++)
            sum += (float)((bits >> (16 * part)) & 0xffff) * 0x1p-16f;
        values[i] = tsr_f32_to_bf16(1.732f * sum);
    }
    for (uint64_t done = 0; done < roofs->bytes && status == TSR_OK; done += bytes) {
        uint64_t some = roofs->bytes - done < bytes ? roofs->bytes - done : bytes;
        status = tsr_device_write(roofs->device, roofs->memory + done, values, some);
    }
    free(values);
    return status;
}

static tsr_status open_memory(tsr_roofs *roofs)
{
    bool chooses = tsr_device_kind_of(roofs->device) != TSR_DEVICE_CPU;
    roofs->scratch_bytes = chooses ? SCRATCH_BYTES : 0;
    uint64_t all = roofs->bytes + roofs->scratch_bytes;
    TSR_TRY(tsr_stream_create(&roofs->stream, roofs->device, "measure"));
    TSR_TRY(tsr_event_create_timed(&roofs->begin, roofs->device));
    TSR_TRY(tsr_event_create_timed(&roofs->end, roofs->device));
    TSR_TRY(tsr_arena_create(&roofs->arena, roofs->device, TSR_MEMORY_DEVICE, all));
    TSR_TRY(
        tsr_arena_take((void **)&roofs->scratch, roofs->arena, "scratch", roofs->scratch_bytes));
    TSR_TRY(tsr_arena_take((void **)&roofs->memory, roofs->arena, "operands", roofs->bytes));
    return fill(roofs);
}

tsr_status tsr_roofs_open(tsr_roofs **out, const tsr_kernels *kernels, tsr_device *device,
                          uint64_t bytes)
{
    tsr_roofs *roofs = calloc(1, sizeof *roofs);
    if (!roofs)
        return tsr_fail(TSR_ENOMEM, "out of memory for a measurement");
    roofs->kernels = kernels;
    roofs->device = device;
    roofs->bytes = (bytes + TSR_ALIGNMENT - 1) / TSR_ALIGNMENT * TSR_ALIGNMENT;
    tsr_status status = open_memory(roofs);
    if (status < 0) {
        tsr_roofs_close(roofs);
        return status;
    }
    *out = roofs;
    return TSR_OK;
}

void tsr_roofs_close(tsr_roofs *roofs)
{
    if (!roofs)
        return;
    tsr_stream_destroy(roofs->stream);
    tsr_event_destroy(roofs->begin);
    tsr_event_destroy(roofs->end);
    tsr_arena_destroy(roofs->pinned);
    tsr_arena_destroy(roofs->arena);
    free(roofs);
}

/* ---- timing ---- */

typedef struct {
    tsr_roofs *roofs;
    tsr_status (*call)(tsr_roofs *roofs, const void *args);
    const void *args;
    double work; /* of a call */
} measured;

static tsr_status time_calls(double *seconds, const measured *m, int calls)
{
    tsr_roofs *r = m->roofs;
    TSR_TRY(tsr_event_record(r->begin, r->stream));
    for (int i = 0; i < calls; i++)
        TSR_TRY(m->call(r, m->args));
    TSR_TRY(tsr_event_record(r->end, r->stream));
    TSR_TRY(tsr_stream_synchronize(r->stream));
    *seconds = (tsr_event_time(r->end) - tsr_event_time(r->begin)) / calls;
    return TSR_OK;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static tsr_status measure(tsr_roof *out, const measured *m, double seconds)
{
    double sample[MOST_SAMPLES], once, start;
    int count = 0;
    TSR_TRY(time_calls(&once, m, 2));
    TSR_TRY(time_calls(&once, m, 2));
    int calls = once * MOST_CALLS < SAMPLE_S ? MOST_CALLS : (int)(SAMPLE_S / once) + 1;
    for (start = tsr_now(); tsr_now() - start < seconds / 4;) /* the clock settles */
        TSR_TRY(time_calls(&once, m, calls));
    for (start = tsr_now();
         count < LEAST_SAMPLES || (count < MOST_SAMPLES && tsr_now() - start < seconds); count++) {
        tsr_phase_at("measuring", tsr_now() - start, seconds);
        TSR_TRY(time_calls(&sample[count], m, calls));
    }
    tsr_phase_at("measuring", seconds, seconds);
    qsort(sample, (size_t)count, sizeof *sample, compare);
    *out = (tsr_roof){m->work / sample[count / 2], m->work / sample[0]};
    return TSR_OK;
}

/* ---- matmuls ---- */

static uint64_t aligned(int64_t rows, int64_t columns, tsr_dtype dtype)
{
    uint64_t bytes = (uint64_t)(rows * columns) * tsr_dtype_bytes(dtype);
    return (bytes + TSR_ALIGNMENT - 1) / TSR_ALIGNMENT * TSR_ALIGNMENT;
}

/* Where everything lies in the operands' memory; of e4m3 with scales, and with the values that they are
 * quantized from, behind them. */
typedef struct {
    uint64_t x, w, y, x_scale, w_scale, from, end;
} matmul_places;

static bool in_e4m3(const tsr_roofs_matmul_shape *s)
{
    return s->dtype == TSR_F8_E4M3;
}

static matmul_places place_matmul(const tsr_roofs_matmul_shape *s)
{
    matmul_places p = {.w = aligned(s->m, s->k, s->dtype)};
    p.y = p.w + aligned(s->k, s->n, s->dtype);
    p.x_scale = p.end = p.y + aligned(s->m, s->n, in_e4m3(s) ? TSR_F32 : s->dtype);
    if (!in_e4m3(s))
        return p;
    p.w_scale = p.x_scale + aligned(s->m, 1, TSR_F32);
    p.from = p.w_scale + aligned(s->n, 1, TSR_F32);
    p.end = p.from + aligned(s->m > s->n ? s->m : s->n, s->k, TSR_F32);
    return p;
}

uint64_t tsr_roofs_matmul_bytes(const tsr_roofs_matmul_shape *s)
{
    return place_matmul(s).end;
}

static tsr_status call_matmul(tsr_roofs *roofs, const void *args)
{
    return roofs->kernels->gemm(roofs->stream, args);
}

static tsr_status call_fp8_matmul(tsr_roofs *roofs, const void *args)
{
    return roofs->kernels->fp8_gemm(roofs->stream, args);
}

static tsr_status choose_matmul(tsr_roofs *roofs, const tsr_gemm_args *shape)
{
    const tsr_prepare_args prepare = {.gemm = shape,
                                      .gemm_count = 1,
                                      .stream = roofs->stream,
                                      .scratch = roofs->scratch,
                                      .scratch_bytes = roofs->scratch_bytes};
    return roofs->kernels->prepare(roofs->device, &prepare);
}

static tsr_status quantize(tsr_roofs *roofs, uint64_t out, uint64_t scale, uint64_t from,
                           int64_t rows, int64_t columns, tsr_dtype dtype)
{
    const tsr_fp8_quantize_args args = {.out = (uint8_t *)roofs->memory + out,
                                        .scale = (float *)(void *)(roofs->memory + scale),
                                        .x = roofs->memory + from,
                                        .tokens = rows,
                                        .d = columns,
                                        .dtype = dtype};
    return roofs->kernels->fp8_quantize(roofs->stream, &args);
}

static tsr_status measure_fp8(tsr_roof *out, tsr_roofs *roofs, const tsr_roofs_matmul_shape *s,
                              const matmul_places *p, double seconds)
{
    bool cpu = tsr_device_kind_of(roofs->device) == TSR_DEVICE_CPU;
    char *memory = roofs->memory;
    tsr_dtype dtype = cpu ? TSR_F32 : TSR_BF16;
    const tsr_fp8_gemm_args args = {.m = s->m,
                                    .n = s->n,
                                    .k = s->k,
                                    .a = (uint8_t *)memory + p->x,
                                    .b = (uint8_t *)memory + p->w,
                                    .scale_a = (float *)(void *)(memory + p->x_scale),
                                    .scale_b = (float *)(void *)(memory + p->w_scale),
                                    .c = memory + p->y,
                                    .alpha = 1,
                                    .c_dtype = dtype};
    TSR_TRY(tsr_kernels_fp8_supported(roofs->device));
    TSR_TRY(quantize(roofs, p->x, p->x_scale, p->from, s->m, s->k, dtype));
    TSR_TRY(quantize(roofs, p->w, p->w_scale, p->from, s->n, s->k, dtype));
    const tsr_gemm_args shape = tsr_fp8_gemm_shape(&args);
    TSR_TRY(tsr_stream_synchronize(roofs->stream));
    TSR_TRY(choose_matmul(roofs, &shape));
    const measured m = {roofs, call_fp8_matmul, &args,
                        2.0 * (double)s->m * (double)s->n * (double)s->k};
    TSR_TRY(measure(out, &m, seconds));
    return fill(roofs); /* codes and sums are no harmless values of other types */
}

tsr_status tsr_roofs_matmul(tsr_roof *out, tsr_roofs *roofs, const tsr_roofs_matmul_shape *s,
                            double seconds)
{
    const matmul_places p = place_matmul(s);
    if (p.end > roofs->bytes)
        return tsr_fail(
            TSR_EINVAL, "a matmul of %lld x %lld x %lld needs more memory than %llu bytes",
            (long long)s->m, (long long)s->n, (long long)s->k, (unsigned long long)roofs->bytes);
    if (in_e4m3(s))
        return measure_fp8(out, roofs, s, &p, seconds);
    const tsr_gemm_args args = {.m = s->m,
                                .n = s->n,
                                .k = s->k,
                                .a = roofs->memory,
                                .b = roofs->memory + p.w,
                                .c = roofs->memory + p.y,
                                .trans_b = s->transposed,
                                .alpha = 1,
                                .dtype = s->dtype,
                                .c_dtype = s->dtype};
    TSR_TRY(choose_matmul(roofs, &args));
    const measured m = {roofs, call_matmul, &args,
                        2.0 * (double)s->m * (double)s->n * (double)s->k};
    return measure(out, &m, seconds);
}

/* ---- copies ---- */

typedef struct {
    void *out;
    const void *in;
    uint64_t bytes;
} copy;

static tsr_status call_stream_copy(tsr_roofs *roofs, const void *args)
{
    const copy *c = args;
    return tsr_stream_copy(roofs->stream, c->out, c->in, c->bytes);
}

static tsr_status call_op_copy(tsr_roofs *roofs, const void *args)
{
    const copy *c = args;
    const tsr_widen_args widen = {.out = c->out,
                                  .in = c->in,
                                  .count = (int64_t)(c->bytes / sizeof(float)),
                                  .in_dtype = TSR_F32,
                                  .dtype = TSR_F32};
    return roofs->kernels->widen(roofs->stream, &widen);
}

static tsr_status need_host(tsr_roofs *roofs)
{
    if (roofs->host)
        return TSR_OK;
    TSR_TRY(tsr_arena_create(&roofs->pinned, roofs->device, TSR_MEMORY_HOST, PINNED_BYTES));
    return tsr_arena_take((void **)&roofs->host, roofs->pinned, "pinned", PINNED_BYTES);
}

tsr_status tsr_roofs_copy(tsr_roof *out, tsr_roofs *roofs, tsr_roof_copy kind, double seconds)
{
    uint64_t half = roofs->bytes / 2 / TSR_ALIGNMENT * TSR_ALIGNMENT;
    copy c = {roofs->memory, roofs->memory + half, half};
    bool crosses = kind == TSR_ROOF_HOST_TO_DEVICE || kind == TSR_ROOF_DEVICE_TO_HOST;
    if (crosses) {
        TSR_TRY(need_host(roofs));
        c.bytes = half < PINNED_BYTES ? half : PINNED_BYTES;
        c.in = kind == TSR_ROOF_HOST_TO_DEVICE ? roofs->host : roofs->memory;
        c.out = kind == TSR_ROOF_HOST_TO_DEVICE ? roofs->memory : roofs->host;
    }
    const measured m = {roofs, kind == TSR_ROOF_COPY_OP ? call_op_copy : call_stream_copy, &c,
                        (crosses ? 1.0 : 2.0) * (double)c.bytes};
    return measure(out, &m, seconds);
}

/* ---- attention ---- */

static tsr_attention_bounds attention_bounds(const tsr_roofs_attention_shape *s)
{
    return (tsr_attention_bounds){.tokens = s->rows * s->length,
                                  .documents = s->rows,
                                  .longest = s->length,
                                  .q_heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .dtype = s->dtype,
                                  .train = true,
                                  .atomics = s->atomics,
                                  .wider = s->wider};
}

/* Where everything lies in the operands' memory, from 0 on. */
typedef struct {
    uint64_t q[4], kv[4], lse, documents, workspace, workspace_bytes,
        end; /* q, o, d_o, dq; k, v, dk, dv */
} attention_places;

static attention_places place_attention(const tsr_roofs_attention_shape *s, uint64_t workspace)
{
    attention_places p = {.workspace_bytes = workspace};
    int64_t tokens = s->rows * s->length;
    for (int i = 0; i < 4; i++) {
        p.q[i] = p.end;
        p.end += aligned(tokens, (int64_t)s->heads * s->head_dim, s->dtype);
        p.kv[i] = p.end;
        p.end += aligned(tokens, (int64_t)s->kv_heads * s->head_dim, s->dtype);
    }
    p.lse = p.end;
    p.documents = p.lse + aligned(tokens, s->heads, TSR_F32);
    p.workspace = p.documents + aligned(1, s->rows + 1, TSR_F32);
    p.end = p.workspace + (workspace + TSR_ALIGNMENT - 1) / TSR_ALIGNMENT * TSR_ALIGNMENT;
    return p;
}

tsr_status tsr_roofs_attention_bytes(uint64_t *out, const tsr_kernels *kernels, tsr_device *device,
                                     const tsr_roofs_attention_shape *shape)
{
    tsr_attention_bounds bounds = attention_bounds(shape);
    TSR_TRY(kernels->prepare(device, &(tsr_prepare_args){.attention = &bounds}));
    *out = place_attention(shape, kernels->attention_workspace_bytes(&bounds)).end;
    return TSR_OK;
}

static tsr_status write_documents(tsr_roofs *roofs, uint64_t at, const tsr_roofs_attention_shape *s)
{
    int32_t *begin = malloc((size_t)(s->rows + 1) * sizeof *begin);
    if (!begin)
        return tsr_fail(TSR_ENOMEM, "out of memory for a measurement");
    for (int64_t i = 0; i <= s->rows; i++)
        begin[i] = (int32_t)(i * s->length);
    tsr_status status = tsr_device_write(roofs->device, roofs->memory + at, begin,
                                         (uint64_t)(s->rows + 1) * sizeof *begin);
    free(begin);
    return status;
}

static tsr_status call_attention(tsr_roofs *roofs, const void *args)
{
    return roofs->kernels->attention(roofs->stream, args);
}

static tsr_status call_attention_backward(tsr_roofs *roofs, const void *args)
{
    return roofs->kernels->attention_backward(roofs->stream, args);
}

static tsr_attention_shape attention_shape(char *memory, const attention_places *p,
                                           const tsr_roofs_attention_shape *s)
{
    return (tsr_attention_shape){.cu_seqlens = (const int32_t *)(void *)(memory + p->documents),
                                 .workspace = memory + p->workspace,
                                 .workspace_bytes = p->workspace_bytes,
                                 .tokens = s->rows * s->length,
                                 .documents = (int32_t)s->rows,
                                 .q_heads = s->heads,
                                 .kv_heads = s->kv_heads,
                                 .head_dim = s->head_dim,
                                 .dtype = s->dtype};
}

tsr_status tsr_roofs_attention(tsr_roof *forward, tsr_roof *backward, tsr_roofs *roofs,
                               const tsr_roofs_attention_shape *s, double seconds)
{
    uint64_t bytes;
    TSR_TRY(tsr_roofs_attention_bytes(&bytes, roofs->kernels, roofs->device, s));
    if (bytes > roofs->bytes)
        return tsr_fail(TSR_EINVAL, "attention over %lld rows of %lld needs more than %llu bytes",
                        (long long)s->rows, (long long)s->length, (unsigned long long)roofs->bytes);
    tsr_attention_bounds bounds = attention_bounds(s);
    attention_places p = place_attention(s, roofs->kernels->attention_workspace_bytes(&bounds));
    TSR_TRY(write_documents(roofs, p.documents, s));
    char *m = roofs->memory;
    const tsr_attention_args f = {.q = m + p.q[0],
                                  .k = m + p.kv[0],
                                  .v = m + p.kv[1],
                                  .o = m + p.q[1],
                                  .lse = (float *)(void *)(m + p.lse),
                                  .shape = attention_shape(m, &p, s)};
    const tsr_attention_backward_args b = {.q = f.q,
                                           .k = f.k,
                                           .v = f.v,
                                           .o = f.o,
                                           .d_o = m + p.q[2],
                                           .lse = f.lse,
                                           .dq = m + p.q[3],
                                           .dk = m + p.kv[2],
                                           .dv = m + p.kv[3],
                                           .shape = f.shape};
    double pairs = (double)(s->rows * s->length) * (double)(s->length + 1) / 2;
    double one = 2 * pairs * (double)s->heads * (double)s->head_dim;
    TSR_TRY(measure(forward, &(measured){roofs, call_attention, &f, 2 * one}, seconds));
    return measure(backward, &(measured){roofs, call_attention_backward, &b, 5 * one}, seconds);
}
