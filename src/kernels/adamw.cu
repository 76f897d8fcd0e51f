/*
 * adamw.cu: the gradient's norm and the AdamW pass over all that a rank owns. Contract adamw.h;
 * reference adamw_ref.c, the same bits: every operation is rounded by itself, fma where the contract
 * has one.
 *
 * adamw      One pass; blocks stride over the elements, 4 a thread and turn, so that every access is
 *            16 bytes (8 of a bf16 copy). blockIdx.y is the span. t is known on the device only:
 *            two threads of a block make 1 - b^t while the others' loads are on their way.
 *            Cost: 36 bytes an element with an fp32 copy, 34 with a bf16 one, 32 with none; 4 less of rounded
 *            gradients.
 * grad_norm  4 threads for every 64 elements; each adds two of the reference's eight sums in its
 *            order. The sums of 64 are added exactly: a thread keeps three limbs in registers for as
 *            long as the magnitude stays in them, a block keeps all limbs in shared memory. Integer
 *            additions commute, so the limbs are those of the reference.
 *            Cost: 8 bytes an element, 4 of a rounded one.
 */
#include "kernels/adamw.cuh"
#include "kernels/fixed_point.h"

#define THREADS      256
#define QUAD         4  /* elements of a thread and turn */
#define SPANS        32 /* of a launch: its argument is 3 KB */
#define ADAMW_BLOCKS 5  /* of a multiprocessor: 48 registers a thread */
#define NORM_BLOCKS  4  /* 8 loads of 16 bytes in flight take 64 registers */

/* ---- the pass ---- */

/* The step's double scalars, each rounded once to fp32; what does not depend on t is made by the
 * host. */
typedef struct {
    double beta1_exact, beta2_exact;
    tsr_adamw_mean mean;
    float beta2, one_minus_beta2; /* f(b2), f(1 - b2) */
    float epsilon;
    float unit; /* 2^-shift */
} adamw_scalars;

typedef struct {
    tsr_adamw_span span[SPANS];
    double rate[SPANS];  /* lr */
    float decay[SPANS];  /* f(1 - lr wd) */
    bool vectors[SPANS]; /* all pointers on 16 bytes */
} adamw_spans;

typedef struct {
    float p, m, v;
} adamw_element;

/* minus_rate: -f(lr / (1 - b1^t)); correction: f(sqrt(1 - b2^t)). */
static __device__ __forceinline__ adamw_element update(adamw_element old, float g,
                                                       const adamw_scalars *k, float decay,
                                                       float minus_rate, float correction)
{
    adamw_element e;
    e.m = __fmaf_rn(__fsub_rn(g, old.m), k->mean.weight, k->mean.from_gradient ? g : old.m);
    e.v = __fmaf_rn(__fmul_rn(k->one_minus_beta2, g), g, __fmul_rn(k->beta2, old.v));
    float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(e.v), correction), k->epsilon);
    e.p = __fadd_rn(__fmul_rn(old.p, decay), __fdiv_rn(__fmul_rn(minus_rate, e.m), denominator));
    return e;
}

typedef struct {
    float p[QUAD], m[QUAD], v[QUAD];
    int64_t loaded[QUAD]; /* gradients */
} adamw_quad;

static __device__ __forceinline__ void load_quad(adamw_quad *q, const tsr_adamw_span *span,
                                                 uint64_t i, int count, bool vectors)
{
    if (vectors && count == QUAD) {
        tsr_load_gradients(q->loaded, span, i);
        tsr_load_floats(q->m, (const float *)span->m + i);
        tsr_load_floats(q->v, (const float *)span->v + i);
        tsr_load_floats(q->p, span->master + i);
        return;
    }
#pragma unroll
    for (int j = 0; j < QUAD; j++)
        if (j < count) {
            q->loaded[j] = tsr_load_gradient(span, i + j);
            q->m[j] = ((const float *)span->m)[i + j], q->v[j] = ((const float *)span->v)[i + j];
            q->p[j] = span->master[i + j];
        }
}

/* Plain vector stores would be merged with the single ones below, as single ones. */
static __device__ __forceinline__ void store_quad(const adamw_quad *q, const tsr_adamw_span *span,
                                                  uint64_t i, int count, bool vectors)
{
    if (vectors && count == QUAD) {
        __stcs((float4 *)((float *)span->m + i), tsr_quad(q->m));
        __stcs((float4 *)((float *)span->v + i), tsr_quad(q->v));
        __stcs((float4 *)(span->master + i), tsr_quad(q->p));
        if (span->work && span->work_dtype == TSR_F32) {
            __stcs((float4 *)((float *)span->work + i), tsr_quad(q->p));
        } else if (span->work) {
            __nv_bfloat162 low = __floats2bfloat162_rn(q->p[0], q->p[1]);
            __nv_bfloat162 high = __floats2bfloat162_rn(q->p[2], q->p[3]);
            uint2 bits = make_uint2(*(uint32_t *)&low, *(uint32_t *)&high);
            __stcs((uint2 *)((uint16_t *)span->work + i), bits);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < QUAD; j++)
        if (j < count) {
            ((float *)span->m)[i + j] = q->m[j], ((float *)span->v)[i + j] = q->v[j];
            span->master[i + j] = q->p[j];
            if (span->work)
                tsr_store(span->work, (int64_t)i + j, q->p[j], span->work_dtype);
        }
}

/* The two scalars that hang on t, in all threads. */
static __device__ __forceinline__ float2 corrections(const adamw_scalars *k, double rate,
                                                     uint64_t t)
{
    __shared__ float shared[2];
    if (threadIdx.x == 0)
        shared[0] = -(float)__ddiv_rn(rate, __dsub_rn(1, tsr_power(k->beta1_exact, t)));
    if (threadIdx.x == TSR_WARP)
        shared[1] = (float)__dsqrt_rn(__dsub_rn(1, tsr_power(k->beta2_exact, t)));
    __syncthreads();
    return make_float2(shared[0], shared[1]);
}

static __global__ void __launch_bounds__(THREADS, ADAMW_BLOCKS)
    adamw(const __grid_constant__ adamw_spans a, const __grid_constant__ adamw_scalars k,
          const tsr_adamw_control *control)
{
    tsr_kernel_begin();
    const tsr_adamw_span *span = &a.span[blockIdx.y];
    bool vectors = a.vectors[blockIdx.y];
    uint64_t stride = (uint64_t)gridDim.x * THREADS * QUAD;
    uint64_t i = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD;
    int count = i < span->count ? (int)min(span->count - i, (uint64_t)QUAD) : 0;
    adamw_quad q;
    load_quad(&q, span, i, count, vectors);
    if (control->skip) /* after the loads, which need not wait for it */
        return;
    float clip = control->clip;
    float decay = a.decay[blockIdx.y];
    float2 of_t = corrections(&k, a.rate[blockIdx.y], control->step);
    while (count > 0) {
#pragma unroll
        for (int j = 0; j < QUAD; j++)
            if (j < count) {
                adamw_element old = {q.p[j], q.m[j], q.v[j]};
                float g = tsr_gradient_of(q.loaded[j], span, k.unit, clip);
                adamw_element e = update(old, g, &k, decay, of_t.x, of_t.y);
                q.p[j] = e.p, q.m[j] = e.m, q.v[j] = e.v;
            }
        store_quad(&q, span, i, count, vectors);
        i += stride;
        count = i < span->count ? (int)min(span->count - i, (uint64_t)QUAD) : 0;
        load_quad(&q, span, i, count, vectors);
    }
}

static adamw_scalars make_scalars(const tsr_adamw_args *args)
{
    const tsr_adamw_step *s = &args->step;
    adamw_scalars k = {};
    k.beta1_exact = s->beta1;
    k.beta2_exact = s->beta2;
    k.mean = tsr_adamw_mean_of(s->beta1);
    k.beta2 = (float)s->beta2;
    k.one_minus_beta2 = (float)(1 - s->beta2);
    k.epsilon = (float)s->epsilon;
    k.unit = ldexpf(1, -args->shift);
    return k;
}

static bool on_vectors(const tsr_adamw_span *s)
{
    uintptr_t all = (uintptr_t)s->master | (uintptr_t)s->m | (uintptr_t)s->v |
                    (uintptr_t)s->gradient | (uintptr_t)s->rounded | (uintptr_t)s->work;
    return all % 16 == 0;
}

/* What tsr_adamw_run refuses; with `skip` it does no more than judge. */
static tsr_status judge(const tsr_adamw_args *args)
{
    TSR_TRY(tsr_adamw_check(args));
    tsr_adamw_step step = args->step;
    tsr_adamw_control skipped = {1, 1, 1};
    step.step = 1; /* t is known on the device only */
    return tsr_adamw_run(args->spans, args->span_count, &step, args->shift, &skipped);
}

extern "C" tsr_status tsr_adamw_cuda(tsr_stream *stream, const tsr_adamw_args *args)
{
    TSR_TRY(judge(args));
    adamw_scalars k = make_scalars(args);
    for (uint64_t first = 0; first < args->span_count; first += SPANS) {
        adamw_spans a = {};
        uint64_t left = args->span_count - first, most = 0;
        unsigned spans = (unsigned)(left < SPANS ? left : SPANS);
        for (unsigned i = 0; i < spans; i++) {
            a.span[i] = args->spans[first + i];
            a.vectors[i] = on_vectors(&a.span[i]);
            a.rate[i] = tsr_adamw_rate(&a.span[i], &args->step);
            a.decay[i] = (float)(1 - a.rate[i] * args->step.weight_decay);
            most = a.span[i].count > most ? a.span[i].count : most;
        }
        if (!most)
            continue;
        dim3 grid(tsr_filling_blocks(stream, most, THREADS * QUAD, ADAMW_BLOCKS), spans);
        TSR_LAUNCH(adamw, grid, THREADS, stream, a, k, args->control);
    }
    return tsr_launched("adamw");
}

/* ---- grad_norm ---- */

#define TEAM 4 /* threads of 64 elements */
#define ALL  0xffffffffu
#define BIAS 1088 /* base/exact_sum.h: the weight of bit 0 of limb 0 is 2^-BIAS */

/* Three limbs from `first` on, held back. */
typedef struct {
    int64_t limb[3];
    int first;
} held_limbs;

static __device__ __forceinline__ void add_limb(int64_t *limb, int64_t value)
{
    if (value)
        atomicAdd((unsigned long long *)limb, (unsigned long long)value);
}

static __device__ __forceinline__ void flush(held_limbs *held, int64_t *limb)
{
    for (int i = 0; i < 3; i++) {
        add_limb(limb + held->first + i, held->limb[i]);
        held->limb[i] = 0;
    }
}

/* tsr_exact_add of a value that is finite and not negative: a sum of 64 squares of fp32 numbers. */
static __device__ __forceinline__ void add_exactly(held_limbs *held, int64_t *limb, double value)
{
    uint64_t bits = (uint64_t)__double_as_longlong(value);
    int exponent = (int)(bits >> 52);
    uint64_t mantissa = bits & 0xfffffffffffffu;
    if (value == 0)
        return;
    if (exponent)
        mantissa |= 1ull << 52;
    else
        exponent = 1;
    int shift = exponent - 1075 + BIAS, low = shift & 31;
    if (shift >> 5 != held->first) {
        flush(held, limb);
        held->first = shift >> 5;
    }
    uint64_t upper = mantissa >> (32 - low); /* bits 32 and up of mantissa << low */
    held->limb[0] += (uint32_t)(mantissa << low);
    held->limb[1] += (uint32_t)upper;
    held->limb[2] += upper >> 32;
}

static __device__ __forceinline__ float rounded(long long sum, float unit)
{
    return __fmul_rn(__ll2float_rn(sum), unit);
}

static __device__ __forceinline__ float rounded(float gradient, float)
{
    return gradient;
}

/* The pair of lanes 2 i and 2 i + 1 of the reference's eight, i the thread of the team; then its
 * tree. All threads of a team get the sum. */
template <typename PAIR>
static __device__ __forceinline__ double granule_squares(const PAIR *pair, float unit)
{
    double even = 0, odd = 0;
#pragma unroll
    for (int row = 0; row < TSR_GRANULE / 8; row++) {
        double x = (double)rounded(pair[row].x, unit);
        double y = (double)rounded(pair[row].y, unit);
        even = __fma_rn(x, x, even); /* squares of fp32 numbers are exact */
        odd = __fma_rn(y, y, odd);
    }
    even = __dadd_rn(even, __shfl_xor_sync(ALL, even, 2));
    odd = __dadd_rn(odd, __shfl_xor_sync(ALL, odd, 2));
    double sum = __dadd_rn(even, odd);
    return __dadd_rn(sum, __shfl_xor_sync(ALL, sum, 1));
}

template <typename PAIR, typename ELEMENT>
static __device__ __forceinline__ void load_granule(PAIR *pair, const ELEMENT *at, bool vectors)
{
#pragma unroll
    for (int row = 0; row < TSR_GRANULE / 8; row++) {
        const ELEMENT *from = at + 8 * row;
        if (vectors)
            pair[row] = __ldcs((const PAIR *)from);
        else
            pair[row].x = from[0], pair[row].y = from[1];
    }
}

template <typename PAIR, typename ELEMENT>
static __global__ void __launch_bounds__(THREADS, NORM_BLOCKS)
    grad_norm(tsr_exact_sum *out, const ELEMENT *gradient, uint64_t granules, float unit,
              bool vectors)
{
    tsr_kernel_begin();
    __shared__ int64_t limb[TSR_EXACT_LIMBS];
    for (int i = threadIdx.x; i < TSR_EXACT_LIMBS; i += THREADS)
        limb[i] = 0;
    __syncthreads();
    int member = threadIdx.x % TEAM;
    uint64_t teams = THREADS / TEAM;
    held_limbs held = {{0, 0, 0}, 0};
    /* The same number of turns for all threads of a block: the sums are exchanged by whole warps. */
    for (uint64_t first = blockIdx.x * teams; first < granules; first += gridDim.x * teams) {
        uint64_t granule = first + threadIdx.x / TEAM;
        bool has = granule < granules;
        PAIR pair[TSR_GRANULE / 8];
        load_granule(pair, gradient + (has ? granule : 0) * TSR_GRANULE + 2 * member, vectors);
        double sum = granule_squares(pair, unit);
        if (has && member == 0)
            add_exactly(&held, limb, sum);
    }
    flush(&held, limb);
    __syncthreads();
    for (int i = threadIdx.x; i < TSR_EXACT_LIMBS; i += THREADS)
        add_limb(out->limb + i, limb[i]);
}

extern "C" tsr_status tsr_grad_norm_cuda(tsr_stream *stream, const tsr_grad_norm_args *args)
{
    TSR_TRY(tsr_grad_norm_check(args));
    if (args->shift < 0 || args->shift > 62)
        return tsr_fail(TSR_EINVAL, "grad_norm: shift %d, 0 to 62 is expected", args->shift);
    if (args->count == 0)
        return TSR_OK;
    uint64_t granules = args->count / TSR_GRANULE;
    unsigned blocks = tsr_filling_blocks(stream, granules, THREADS / TEAM, NORM_BLOCKS);
    if (args->rounded)
        TSR_LAUNCH((grad_norm<float2, float>), blocks, THREADS, stream, args->sum, args->rounded,
                   granules, 1.0f, (uintptr_t)args->rounded % 8 == 0);
    else
        TSR_LAUNCH((grad_norm<longlong2, int64_t>), blocks, THREADS, stream, args->sum,
                   args->gradient, granules, ldexpf(1, -args->shift),
                   (uintptr_t)args->gradient % 16 == 0);
    return tsr_launched("grad_norm");
}
