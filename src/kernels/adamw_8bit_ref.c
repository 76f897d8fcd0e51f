#include "kernels/adamw_8bit.h"

#include "kernels/adamw_parts.h"
#include "kernels/loops.h"

#include <math.h>

#define BLOCK TSR_ADAMW_BLOCK

/* The step's scalars of one span, each rounded once to fp32, and the tables. */
typedef struct {
    float beta1, beta2, one_minus_beta1, one_minus_beta2;
    float rate;    /* -f(lr c2 / c1) */
    float epsilon; /* f(c2) * f(eps) */
    float decay;   /* f(1 - lr wd) */
    float unit, clip;
    float signed_middle[255], unsigned_middle[255];
} scalars;

static void set_rate(scalars *s, const tsr_adamw_step *step, double rate)
{
    double t = (double)step->step;
    double c1 = 1 - pow(step->beta1, t), c2 = sqrt(1 - pow(step->beta2, t));
    s->rate = -(float)(rate * c2 / c1);
    s->epsilon = (float)c2 * (float)step->epsilon;
    s->decay = (float)(1 - rate * step->weight_decay);
}

static scalars make_scalars(const tsr_adamw_step *step, int shift, float clip)
{
    scalars s = {.beta1 = (float)step->beta1,
                 .beta2 = (float)step->beta2,
                 .one_minus_beta1 = 1 - (float)step->beta1,
                 .one_minus_beta2 = 1 - (float)step->beta2,
                 .unit = ldexpf(1, -shift),
                 .clip = clip};
    tsr_dynamic_midpoints(s.signed_middle, tsr_dynamic_signed);
    tsr_dynamic_midpoints(s.unsigned_middle, tsr_dynamic_unsigned);
    return s;
}

/* ---- codes ---- */

TSR_CLONES static void decode(float *restrict out, const uint8_t *restrict code, const float *map,
                              float absmax)
{
    for (int i = 0; i < BLOCK; i++)
        out[i] = absmax == 0 ? 0 : map[code[i]] * absmax;
}

static float largest(const float *x)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* How many midpoints are below x, by halves. */
TSR_CLONES static void encode(uint8_t *restrict code, const float *restrict x, const float *middle,
                              float absmax)
{
    for (int i = 0; i < BLOCK; i++) {
        float value = absmax == 0 ? 0 : x[i] / absmax;
        int below = 0;
        for (int half = 128; half; half /= 2)
            below += middle[below + half - 1] < value ? half : 0;
        code[i] = (uint8_t)below;
    }
}

/* No entry of the map stands for a number of the other sign bit. */
static void keep_signs(uint8_t *code, const float *m)
{
    for (int i = 0; i < BLOCK; i++)
        if (!signbit(tsr_dynamic_signed[code[i]]) != !signbit(m[i]))
            code[i] = (uint8_t)(m[i] > 0 ? code[i] + 1 : code[i] - 1);
}

/* ---- the update ---- */

TSR_CLONES static void update(float *restrict p, float *restrict m, float *restrict v,
                              const float *restrict gradient, uint64_t count, const scalars *s)
{
    const float beta1 = s->beta1, beta2 = s->beta2, rate = s->rate, epsilon = s->epsilon;
    const float rest1 = s->one_minus_beta1, rest2 = s->one_minus_beta2, decay = s->decay;
    for (uint64_t i = 0; i < count; i++) {
        float g = gradient[i];
        v[i] = v[i] * beta2 + rest2 * g * g;
        m[i] = m[i] * beta1 + rest1 * g;
        p[i] = (p[i] + rate * (m[i] / (sqrtf(v[i]) + epsilon))) * decay;
    }
}

static void run_block(const tsr_adamw_span *span, uint64_t first, const scalars *s)
{
    float gradient[BLOCK], m[BLOCK], v[BLOCK];
    float *absmax = span->absmax + first / BLOCK * 2;
    uint8_t *m_code = (uint8_t *)span->m + first, *v_code = (uint8_t *)span->v + first;
    tsr_adamw_gradient(gradient, span, first, BLOCK, s->unit, s->clip);
    decode(m, m_code, tsr_dynamic_signed, absmax[0]);
    decode(v, v_code, tsr_dynamic_unsigned, absmax[1]);
    update(span->master + first, m, v, gradient, BLOCK, s);
    absmax[0] = largest(m);
    absmax[1] = largest(v);
    encode(m_code, m, s->signed_middle, absmax[0]);
    keep_signs(m_code, m);
    encode(v_code, v, s->unsigned_middle, absmax[1]);
}

static void run_range(const tsr_adamw_span *span, uint64_t first, uint64_t end, const scalars *s)
{
    for (; first < end; first += BLOCK) {
        uint64_t count = end - first < BLOCK ? end - first : BLOCK;
        float gradient[BLOCK];
        if (span->absmax) {
            run_block(span, first, s);
        } else {
            tsr_adamw_gradient(gradient, span, first, count, s->unit, s->clip);
            update(span->master + first, (float *)span->m + first, (float *)span->v + first,
                   gradient, count, s);
        }
        if (span->work)
            tsr_adamw_put_work(span->work, span->work_dtype, span->master, first, count);
    }
}

#define TASK (64 * BLOCK) /* elements, about 100 microseconds */

typedef struct {
    const tsr_adamw_span *span;
    const scalars *s;
} span_work;

static void run_task(void *context, int index)
{
    const span_work *work = context;
    uint64_t first = (uint64_t)index * TASK, left = work->span->count - first;
    run_range(work->span, first, first + (left < TASK ? left : TASK), work->s);
}

tsr_status tsr_adamw_8bit_check(const tsr_adamw_8bit_args *args)
{
    TSR_EXPECT(args->control && (args->spans || !args->span_count), "adamw_8bit",
               "a pointer is NULL");
    for (uint64_t i = 0; i < args->span_count; i++) {
        const tsr_adamw_span *span = &args->spans[i];
        TSR_EXPECT(!span->absmax || span->count % BLOCK == 0, "adamw_8bit",
                   "a span with codes is no multiple of 256 elements");
        TSR_TRY(tsr_adamw_check_work(span->work, span->work_dtype));
    }
    tsr_adamw_step step = args->step;
    step.step = 1; /* that of the control is known when the op runs */
    return tsr_adamw_check_step(&step);
}

tsr_status tsr_adamw_8bit_ref(const tsr_adamw_8bit_args *args, tsr_pool *pool)
{
    TSR_TRY(tsr_adamw_8bit_check(args));
    if (args->control->skip)
        return TSR_OK;
    tsr_adamw_step step = args->step;
    step.step = args->control->step;
    TSR_TRY(tsr_adamw_check_step(&step));
    scalars s = make_scalars(&step, args->shift, args->control->clip);
    for (uint64_t i = 0; i < args->span_count; i++) {
        const tsr_adamw_span *span = &args->spans[i];
        set_rate(&s, &step, tsr_adamw_rate(span, &step));
        tsr_pool_run(pool, (int)tsr_ceil_div(span->count, TASK), run_task, &(span_work){span, &s});
    }
    return TSR_OK;
}
