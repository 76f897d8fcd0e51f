#include "kernels/adamw_parts.h"

#include "kernels/fixed_point.h"
#include "kernels/loops.h"

#include <math.h>

#define CHUNK 1024 /* elements widened at a time: 4 KiB of gradient stay in L1 */

/* The step's double scalars, each rounded once to fp32. */
typedef struct {
    tsr_adamw_mean mean;
    float beta2, one_minus_beta2; /* f(b2), f(1 - b2) */
    float decay;                  /* f(1 - lr wd) */
    float minus_rate;             /* -f(lr / (1 - b1^t)) */
    float correction;             /* f(sqrt(1 - b2^t)) */
    float epsilon;
} scalars;

tsr_status tsr_adamw_check_step(const tsr_adamw_step *s)
{
    if (s->step == 0 || !(s->beta1 >= 0 && s->beta1 < 1) || !(s->beta2 >= 0 && s->beta2 < 1) ||
        !((float)s->epsilon > 0) || !isfinite(s->epsilon) || !isfinite(s->learning_rate) ||
        !isfinite(s->weight_decay))
        return tsr_fail(TSR_EINVAL,
                        "AdamW: step %llu (from 1), betas %g and %g (in [0, 1)), epsilon %g "
                        "(positive), learning rate %g and weight decay %g (finite)",
                        (unsigned long long)s->step, s->beta1, s->beta2, s->epsilon,
                        s->learning_rate, s->weight_decay);
    return TSR_OK;
}

static scalars round_scalars(const tsr_adamw_step *s, double learning_rate)
{
    double t = (double)s->step;
    return (scalars){
        .mean = tsr_adamw_mean_of(s->beta1),
        .beta2 = (float)s->beta2,
        .one_minus_beta2 = (float)(1 - s->beta2),
        .decay = (float)(1 - learning_rate * s->weight_decay),
        .minus_rate = -(float)(learning_rate / (1 - pow(s->beta1, t))),
        .correction = (float)sqrt(1 - pow(s->beta2, t)),
        .epsilon = (float)s->epsilon,
    };
}

/* The contract's arithmetic, an operation a rounding. */
TSR_CLONES static void update(float *restrict p, float *restrict m, float *restrict v,
                              const float *restrict gradient, uint64_t count, const scalars *s)
{
    const scalars k = *s;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i];
        float mean = fmaf(g - m[i], k.mean.weight, k.mean.from_gradient ? g : m[i]);
        float square = fmaf(k.one_minus_beta2 * g, g, k.beta2 * v[i]);
        float denominator = sqrtf(square) / k.correction + k.epsilon;
        p[i] = p[i] * k.decay + k.minus_rate * mean / denominator;
        m[i] = mean;
        v[i] = square;
    }
}

TSR_CLONES static void clip_sums(float *restrict g, const int64_t *restrict acc, uint64_t count,
                                 float unit, float clip)
{
    for (uint64_t i = 0; i < count; i++)
        g[i] = (float)acc[i] * unit * clip;
}

TSR_CLONES static void clip_rounded(float *restrict g, const float *restrict rounded,
                                    uint64_t count, float clip)
{
    for (uint64_t i = 0; i < count; i++)
        g[i] = rounded[i] * clip;
}

void tsr_adamw_gradient(float *g, const tsr_adamw_span *span, uint64_t first, uint64_t count,
                        float unit, float clip)
{
    if (span->rounded)
        clip_rounded(g, span->rounded + first, count, clip);
    else
        clip_sums(g, span->gradient + first, count, unit, clip);
}

TSR_CLONES static void copy_f32(float *restrict out, const float *restrict p, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = p[i];
}

TSR_CLONES static void copy_bf16(uint16_t *restrict out, const float *restrict p, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = tsr_f32_to_bf16(p[i]);
}

void tsr_adamw_put_work(void *work, tsr_dtype dtype, const float *master, uint64_t first,
                        uint64_t count)
{
    if (dtype == TSR_F32)
        copy_f32((float *)work + first, master + first, count);
    else
        copy_bf16((uint16_t *)work + first, master + first, count);
}

tsr_status tsr_adamw_check_work(const void *work, tsr_dtype dtype)
{
    if (work && dtype != TSR_F32 && dtype != TSR_BF16)
        return tsr_fail(TSR_EINVAL, "a working copy in %s: F32 or BF16 is expected",
                        tsr_dtype_name(dtype));
    return TSR_OK;
}

static void run_span(const tsr_adamw_span *span, const scalars *s, float unit, float clip)
{
    float gradient[CHUNK];
    for (uint64_t first = 0; first < span->count; first += CHUNK) {
        uint64_t n = span->count - first < CHUNK ? span->count - first : CHUNK;
        tsr_adamw_gradient(gradient, span, first, n, unit, clip);
        update(span->master + first, (float *)span->m + first, (float *)span->v + first, gradient,
               n, s);
        if (span->work)
            tsr_adamw_put_work(span->work, span->work_dtype, span->master, first, n);
    }
}

tsr_status tsr_adamw_run(const tsr_adamw_span *spans, uint64_t span_count,
                         const tsr_adamw_step *step, int shift, const tsr_adamw_control *control)
{
    TSR_TRY(tsr_adamw_check_step(step));
    for (uint64_t i = 0; i < span_count; i++)
        TSR_TRY(tsr_adamw_check_work(spans[i].work, spans[i].work_dtype));
    if (control->skip)
        return TSR_OK;
    for (uint64_t i = 0; i < span_count; i++) {
        scalars s = round_scalars(step, tsr_adamw_rate(&spans[i], step));
        run_span(&spans[i], &s, ldexpf(1, -shift), control->clip);
    }
    return TSR_OK;
}

tsr_status tsr_adamw_run_f32(float *master, float *m, float *v, const float *gradient,
                             uint64_t count, const tsr_adamw_step *step)
{
    TSR_TRY(tsr_adamw_check_step(step));
    scalars s = round_scalars(step, step->learning_rate);
    update(master, m, v, gradient, count, &s);
    return TSR_OK;
}

tsr_status tsr_adamw_copy_work(void *work, tsr_dtype dtype, const float *master, uint64_t count)
{
    TSR_TRY(tsr_adamw_check_work(work, dtype));
    tsr_adamw_put_work(work, dtype, master, 0, count);
    return TSR_OK;
}

/* Eight sums of every eighth element, then a tree: the order is the same on every instruction set.
 */
TSR_CLONES static double granule_squares(const float *gradient)
{
    double lane[8] = {0};
    for (int row = 0; row < TSR_GRANULE; row += 8)
        for (int i = 0; i < 8; i++) {
            double g = (double)gradient[row + i];
            lane[i] += g * g;
        }
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
           ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

void tsr_grad_norm_add(tsr_exact_sum *sum, const int64_t *gradient, uint64_t count, int shift)
{
    float rounded[TSR_GRANULE];
    for (uint64_t first = 0; first < count; first += TSR_GRANULE) {
        tsr_fixed_to_f32(rounded, gradient + first, TSR_GRANULE, shift);
        tsr_exact_add(sum, granule_squares(rounded));
    }
}

void tsr_grad_norm_add_rounded(tsr_exact_sum *sum, const float *gradient, uint64_t count)
{
    for (uint64_t first = 0; first < count; first += TSR_GRANULE)
        tsr_exact_add(sum, granule_squares(gradient + first));
}

double tsr_grad_norm(const tsr_exact_sum *sum)
{
    return sqrt(tsr_exact_round(sum));
}

float tsr_clip_factor(double norm, double max_norm)
{
    if (!(max_norm > 0))
        return 1;
    double factor = max_norm / (norm + 1e-6);
    return (float)(factor < 1 ? factor : 1);
}

tsr_status tsr_adamw_check(const tsr_adamw_args *args)
{
    TSR_EXPECT(args->control && (args->spans || !args->span_count), "adamw", "a pointer is NULL");
    return TSR_OK;
}

#define SPAN_BLOCK 65536 /* elements of a block of work: about 50 microseconds */

typedef struct {
    const tsr_adamw_span *span;
    const scalars *s;
    float unit, clip;
} span_work;

static void span_block(void *context, int index)
{
    const span_work *work = context;
    uint64_t first = (uint64_t)index * SPAN_BLOCK, left = work->span->count - first;
    tsr_adamw_span part = *work->span;
    part.master += first;
    part.m = (float *)part.m + first;
    part.v = (float *)part.v + first;
    part.gradient = part.rounded ? NULL : part.gradient + first;
    part.rounded = part.rounded ? part.rounded + first : NULL;
    part.count = left < SPAN_BLOCK ? left : SPAN_BLOCK;
    if (part.work)
        part.work = (char *)part.work + first * tsr_dtype_bytes(part.work_dtype);
    run_span(&part, work->s, work->unit, work->clip);
}

tsr_status tsr_adamw_ref(const tsr_adamw_args *args, tsr_pool *pool)
{
    tsr_adamw_step step = args->step;
    TSR_TRY(tsr_adamw_check(args));
    if (args->control->skip)
        return TSR_OK;
    step.step = args->control->step;
    TSR_TRY(tsr_adamw_check_step(&step));
    for (uint64_t i = 0; i < args->span_count; i++) {
        scalars s = round_scalars(&step, tsr_adamw_rate(&args->spans[i], &step));
        span_work work = {&args->spans[i], &s, ldexpf(1, -args->shift), args->control->clip};
        TSR_TRY(tsr_adamw_check_work(work.span->work, work.span->work_dtype));
        tsr_pool_run(pool, (int)tsr_ceil_div(work.span->count, SPAN_BLOCK), span_block, &work);
    }
    return TSR_OK;
}

tsr_status tsr_grad_norm_check(const tsr_grad_norm_args *args)
{
    TSR_EXPECT(args->sum && (args->gradient || args->rounded || !args->count), "grad_norm",
               "a pointer is NULL");
    TSR_EXPECT(args->count % TSR_GRANULE == 0, "grad_norm", "count is no multiple of 64");
    return TSR_OK;
}

tsr_status tsr_grad_norm_ref(const tsr_grad_norm_args *args, tsr_pool *pool)
{
    (void)pool;
    TSR_TRY(tsr_grad_norm_check(args));
    if (args->rounded)
        tsr_grad_norm_add_rounded(args->sum, args->rounded, args->count);
    else
        tsr_grad_norm_add(args->sum, args->gradient, args->count, args->shift);
    return TSR_OK;
}
