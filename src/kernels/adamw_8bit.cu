/*
 * adamw_8bit.cu: the pass of adamw_8bit.h; reference adamw_8bit_ref.c, the same bits: every operation is rounded
 * by itself.
 *
 * A warp has a block of 256 elements, a thread two times four that lie together, so that a warp's accesses
 * are whole lines and the block's largest magnitude is ten shuffles away. Maps and midpoints are in shared
 * memory; a code is found by halves, eight reads. blockIdx.y is the span.
 * Cost: 22.1 bytes an element with codes and a bf16 copy, 18.1 of rounded gradients.
 */
#include "kernels/adamw.cuh"

#define THREADS 256
#define EACH    8  /* elements of a thread */
#define QUAD    4  /* of them lie together */
#define SPANS   16 /* of a launch: its argument is 3.5 KB with the maps */
#define BLOCKS  3  /* of a multiprocessor */
#define BLOCK   TSR_ADAMW_BLOCK
#define STRIDE  (BLOCK / (EACH / QUAD)) /* from a thread's four to its next four */

typedef struct {
    double beta1_exact, beta2_exact;
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float epsilon; /* f(eps) */
    float unit;    /* 2^-shift */
    float of_signed[BLOCK], of_unsigned[BLOCK];
} coded_scalars;

typedef struct {
    tsr_adamw_span span[SPANS];
    double rate[SPANS];  /* lr */
    float decay[SPANS];  /* f(1 - lr wd) */
    bool vectors[SPANS]; /* all pointers on 16 bytes */
} coded_spans;

/* In shared memory. */
typedef struct {
    float of_signed[BLOCK], of_unsigned[BLOCK];
    float signed_middle[BLOCK], unsigned_middle[BLOCK];
    float rate, epsilon; /* -f(lr c2 / c1), f(c2) f(eps) */
} coded_tables;

typedef struct {
    float p[EACH], m[EACH], v[EACH];
    int64_t loaded[EACH]; /* gradients */
} octet;

/* For all threads of a block, which is BLOCK of them. */
static __device__ __forceinline__ void make_tables(coded_tables *out, const coded_scalars *k,
                                                   double rate, uint64_t t)
{
    int i = (int)threadIdx.x, next = i + 1 < BLOCK ? i + 1 : i;
    out->of_signed[i] = k->of_signed[i];
    out->of_unsigned[i] = k->of_unsigned[i];
    out->signed_middle[i] = __fmul_rn(__fadd_rn(k->of_signed[i], k->of_signed[next]), 0.5f);
    out->unsigned_middle[i] = __fmul_rn(__fadd_rn(k->of_unsigned[i], k->of_unsigned[next]), 0.5f);
    if (i == 0) {
        double c1 = __dsub_rn(1, tsr_power(k->beta1_exact, t));
        double c2 = __dsqrt_rn(__dsub_rn(1, tsr_power(k->beta2_exact, t)));
        out->rate = -(float)__ddiv_rn(__dmul_rn(rate, c2), c1);
        out->epsilon = __fmul_rn((float)c2, k->epsilon);
    }
    __syncthreads();
}

/* ---- codes ---- */

static __device__ __forceinline__ float decode(const float *map, uint8_t code, float absmax)
{
    return absmax == 0 ? 0 : __fmul_rn(map[code], absmax);
}

static __device__ __forceinline__ uint8_t encode(const float *middle, float x, float absmax)
{
    float value = absmax == 0 ? 0 : __fdiv_rn(x, absmax);
    int below = 0;
#pragma unroll
    for (int half = BLOCK / 2; half; half /= 2)
        below += middle[below + half - 1] < value ? half : 0;
    return (uint8_t)below;
}

/* Of the whole warp; in all its threads. */
static __device__ __forceinline__ float largest(const float *x)
{
    float most = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++)
        most = fmaxf(most, fabsf(x[j]));
#pragma unroll
    for (int offset = TSR_WARP / 2; offset; offset /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    return most;
}

/* ---- a thread's elements: four from i on, four from i + STRIDE on ---- */

static __device__ __forceinline__ void load_plain(octet *o, const tsr_adamw_span *span, uint64_t i,
                                                  bool vectors)
{
#pragma unroll
    for (int j = 0; j < EACH; j += QUAD, i += STRIDE) {
        if (vectors && i + QUAD <= span->count) {
            tsr_load_gradients(o->loaded + j, span, i);
            tsr_load_floats(o->p + j, span->master + i);
            continue;
        }
#pragma unroll
        for (int q = 0; q < QUAD; q++) {
            bool there = i + q < span->count;
            o->loaded[j + q] = there ? tsr_load_gradient(span, i + q) : 0;
            o->p[j + q] = there ? span->master[i + q] : 0;
        }
    }
}

static __device__ __forceinline__ void load_moments(octet *o, const tsr_adamw_span *span,
                                                    uint64_t i)
{
    const float *m = (const float *)span->m, *v = (const float *)span->v;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        uint64_t at = i + (uint64_t)(j / QUAD * STRIDE + j % QUAD);
        o->m[j] = at < span->count ? m[at] : 0;
        o->v[j] = at < span->count ? v[at] : 0;
    }
}

static __device__ __forceinline__ void store_moments(const octet *o, const tsr_adamw_span *span,
                                                     uint64_t i)
{
    float *m = (float *)span->m, *v = (float *)span->v;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        uint64_t at = i + (uint64_t)(j / QUAD * STRIDE + j % QUAD);
        if (at < span->count)
            m[at] = o->m[j], v[at] = o->v[j];
    }
}

static __device__ __forceinline__ void load_codes(octet *o, const tsr_adamw_span *span, uint64_t i,
                                                  const coded_tables *tables)
{
    float2 absmax = *(const float2 *)(span->absmax + i / BLOCK * 2);
#pragma unroll
    for (int j = 0; j < EACH; j += QUAD, i += STRIDE) {
        uchar4 m = *(const uchar4 *)((const uint8_t *)span->m + i);
        uchar4 v = *(const uchar4 *)((const uint8_t *)span->v + i);
        const uint8_t m_code[QUAD] = {m.x, m.y, m.z, m.w}, v_code[QUAD] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int q = 0; q < QUAD; q++) {
            o->m[j + q] = decode(tables->of_signed, m_code[q], absmax.x);
            o->v[j + q] = decode(tables->of_unsigned, v_code[q], absmax.y);
        }
    }
}

static __device__ __forceinline__ void store_codes(const octet *o, const tsr_adamw_span *span,
                                                   uint64_t i, const coded_tables *tables)
{
    float2 absmax = make_float2(largest(o->m), largest(o->v));
    if (threadIdx.x % TSR_WARP == 0)
        *(float2 *)(span->absmax + i / BLOCK * 2) = absmax;
#pragma unroll
    for (int j = 0; j < EACH; j += QUAD, i += STRIDE) {
        uint8_t m[QUAD], v[QUAD];
#pragma unroll
        for (int q = 0; q < QUAD; q++) {
            m[q] = encode(tables->signed_middle, o->m[j + q], absmax.x);
            v[q] = encode(tables->unsigned_middle, o->v[j + q], absmax.y);
            if (signbit(tables->of_signed[m[q]]) != signbit(o->m[j + q]))
                m[q] = (uint8_t)(o->m[j + q] > 0 ? m[q] + 1 : m[q] - 1);
        }
        *(uchar4 *)((uint8_t *)span->m + i) = make_uchar4(m[0], m[1], m[2], m[3]);
        *(uchar4 *)((uint8_t *)span->v + i) = make_uchar4(v[0], v[1], v[2], v[3]);
    }
}

static __device__ __forceinline__ void store_plain(const octet *o, const tsr_adamw_span *span,
                                                   uint64_t i, bool vectors)
{
#pragma unroll
    for (int j = 0; j < EACH; j += QUAD, i += STRIDE) {
        if (vectors && i + QUAD <= span->count) {
            __stcs((float4 *)(span->master + i), tsr_quad(o->p + j));
            if (span->work && span->work_dtype == TSR_F32)
                __stcs((float4 *)((float *)span->work + i), tsr_quad(o->p + j));
            else if (span->work)
                __stcs((uint2 *)((uint16_t *)span->work + i),
                       make_uint2(tsr_pack2(o->p[j], o->p[j + 1], TSR_BF16),
                                  tsr_pack2(o->p[j + 2], o->p[j + 3], TSR_BF16)));
            continue;
        }
#pragma unroll
        for (int q = 0; q < QUAD; q++)
            if (i + q < span->count) {
                span->master[i + q] = o->p[j + q];
                if (span->work)
                    tsr_store(span->work, (int64_t)(i + q), o->p[j + q], span->work_dtype);
            }
    }
}

/* ---- the pass ---- */

static __device__ __forceinline__ void update(octet *o, const tsr_adamw_span *span,
                                              const coded_scalars *k, float clip, float decay,
                                              float rate, float epsilon)
{
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        float g = tsr_gradient_of(o->loaded[j], span, k->unit, clip);
        float square = __fmul_rn(__fmul_rn(k->one_minus_beta2, g), g);
        o->v[j] = __fadd_rn(__fmul_rn(o->v[j], k->beta2), square);
        o->m[j] = __fadd_rn(__fmul_rn(o->m[j], k->beta1), __fmul_rn(k->one_minus_beta1, g));
        float step = __fdiv_rn(o->m[j], __fadd_rn(__fsqrt_rn(o->v[j]), epsilon));
        o->p[j] = __fmul_rn(__fadd_rn(o->p[j], __fmul_rn(rate, step)), decay);
    }
}

static __global__ void __launch_bounds__(THREADS, BLOCKS)
    adamw_8bit(const __grid_constant__ coded_spans a, const __grid_constant__ coded_scalars k,
               const tsr_adamw_control *control)
{
    tsr_kernel_begin();
    __shared__ coded_tables tables;
    if (control->skip)
        return;
    const tsr_adamw_span *span = &a.span[blockIdx.y];
    bool vectors = a.vectors[blockIdx.y];
    float clip = control->clip, decay = a.decay[blockIdx.y];
    make_tables(&tables, &k, a.rate[blockIdx.y], control->step);
    uint64_t stride = (uint64_t)gridDim.x * THREADS * EACH;
    uint64_t first = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) / TSR_WARP * BLOCK;
    for (; first < span->count; first += stride) {
        uint64_t i = first + threadIdx.x % TSR_WARP * QUAD;
        octet o;
        load_plain(&o, span, i, vectors);
        if (span->absmax)
            load_codes(&o, span, i, &tables);
        else
            load_moments(&o, span, i);
        update(&o, span, &k, clip, decay, tables.rate, tables.epsilon);
        if (span->absmax)
            store_codes(&o, span, i, &tables);
        else
            store_moments(&o, span, i);
        store_plain(&o, span, i, vectors);
    }
}

static coded_scalars make_scalars(const tsr_adamw_args *args)
{
    const tsr_adamw_step *s = &args->step;
    coded_scalars k = {};
    k.beta1_exact = s->beta1;
    k.beta2_exact = s->beta2;
    k.beta1 = (float)s->beta1;
    k.beta2 = (float)s->beta2;
    k.one_minus_beta1 = 1 - k.beta1;
    k.one_minus_beta2 = 1 - k.beta2;
    k.epsilon = (float)s->epsilon;
    k.unit = ldexpf(1, -args->shift);
    memcpy(k.of_signed, tsr_dynamic_signed, sizeof k.of_signed);
    memcpy(k.of_unsigned, tsr_dynamic_unsigned, sizeof k.of_unsigned);
    return k;
}

/* Codes are read four at a time, absmax by twos. */
static tsr_status check_places(const tsr_adamw_span *s)
{
    if (s->absmax && (((uintptr_t)s->m | (uintptr_t)s->v) % 4 || (uintptr_t)s->absmax % 8))
        return tsr_fail(TSR_EINVAL, "adamw_8bit: codes that do not begin on 4 bytes, absmax on 8");
    return TSR_OK;
}

static tsr_status fill_span(coded_spans *a, unsigned i, const tsr_adamw_span *span,
                            const tsr_adamw_step *step)
{
    TSR_TRY(check_places(span));
    a->span[i] = *span;
    a->vectors[i] = ((uintptr_t)span->master | (uintptr_t)span->gradient |
                     (uintptr_t)span->rounded | (uintptr_t)span->work) %
                        16 ==
                    0;
    a->rate[i] = tsr_adamw_rate(span, step);
    a->decay[i] = (float)(1 - a->rate[i] * step->weight_decay);
    return TSR_OK;
}

extern "C" tsr_status tsr_adamw_8bit_cuda(tsr_stream *stream, const tsr_adamw_8bit_args *args)
{
    TSR_TRY(tsr_adamw_8bit_check(args));
    coded_scalars k = make_scalars(args);
    for (uint64_t first = 0; first < args->span_count; first += SPANS) {
        coded_spans a = {};
        uint64_t left = args->span_count - first, most = 0;
        unsigned spans = (unsigned)(left < SPANS ? left : SPANS);
        for (unsigned i = 0; i < spans; i++) {
            const tsr_adamw_span *span = &args->spans[first + i];
            TSR_TRY(fill_span(&a, i, span, &args->step));
            most = span->count > most ? span->count : most;
        }
        if (!most)
            continue;
        dim3 grid(tsr_filling_blocks(stream, most, THREADS * EACH, BLOCKS), spans);
        TSR_LAUNCH(adamw_8bit, grid, THREADS, stream, a, k, args->control);
    }
    return tsr_launched("adamw_8bit");
}
