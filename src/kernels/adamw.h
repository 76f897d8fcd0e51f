/*
 * kernels/adamw.h: AdamW in PyTorch's arithmetic, one pass over everything a rank owns; the norm of
 * the gradient and its clip factor.
 *
 * With f() rounding a double to fp32 and every operation rounded once:
 *     g = RN(acc 2^-shift) * clip, or rounded * clip
 *     m = fma(g - m, f(1 - b1), m), or where b1 <= 1/2 fma(g - m, f(1 - b1) - 1, g)
 *     v = fma(f(1 - b2) * g, g, f(b2) * v)
 *     p = p * f(1 - lr wd) + (-f(lr / (1 - b1^t)) * m) / (sqrt(v) / f(sqrt(1 - b2^t)) + f(eps))
 * lr is the step's, times the span's rate.
 * The order of operations is part of the contract (it is torch.optim.AdamW's, decay first).
 *
 * Padding (zeros at the end of an owner's part) stays zero. Elementwise, so spans may be split
 * over threads in any way; every instruction set gives the same bits.
 */
#ifndef TSR_KERNELS_ADAMW_H
#define TSR_KERNELS_ADAMW_H

#include "base/exact_sum.h"
#include "kernels/types.h"

/* The owned elements of one parameter (or of several that lie one after the other). */
typedef struct {
    float *master;           /* [count] */
    void *m, *v;             /* [count] fp32; with absmax the codes of adamw_8bit.h */
    const int64_t *gradient; /* [count] fixed point, summed over micro-batches and ranks */
    const float *rounded;    /* [count] not NULL: the sums as fixed_point.h rounds them, instead */
    void *work;              /* [count] the copy that is gathered; NULL: none */
    tsr_dtype work_dtype;    /* F32 or BF16 (rounded to nearest even) */
    uint64_t count;
    double rate;   /* of learning, over the step's; 0: the same */
    float *absmax; /* [count / 256][2]: of each block's m and v; NULL: they are fp32 */
} tsr_adamw_span;

/* One step's settings. */
typedef struct {
    double learning_rate; /* of this step, after the schedule */
    double beta1, beta2, epsilon, weight_decay;
    uint64_t step; /* t, from 1: optimizer steps taken, this one included; skipped ones not */
} tsr_adamw_step;

/* Written once per step by the control word, read by the pass: nothing is known when it is issued.
 */
typedef struct {
    float clip;    /* multiplies every gradient; 1: unclipped */
    uint32_t skip; /* not 0: the pass changes nothing */
    uint64_t step; /* t of this pass: steps applied so far, this one included */
} tsr_adamw_control;

/* How m goes to g, as torch.lerp does: from the end that it comes to lie nearer to. From m a weight of 1
 * would not give g where m was much larger. */
typedef struct {
    float weight;
    bool from_gradient;
} tsr_adamw_mean;

static inline tsr_adamw_mean tsr_adamw_mean_of(double beta1)
{
    float weight = (float)(1 - beta1);
    tsr_adamw_mean from_m = {weight, false}, from_gradient = {weight - 1, true};
    return weight < 0.5f ? from_m : from_gradient;
}

/* lr of a span. */
static inline double tsr_adamw_rate(const tsr_adamw_span *span, const tsr_adamw_step *step)
{
    return span->rate != 0 ? span->rate * step->learning_rate : step->learning_rate;
}

/* TSR_EINVAL: a step that is 0, an epsilon that is not positive in fp32, a beta outside [0, 1), a
 * value that is not finite, or a work dtype other than F32 and BF16; nothing is changed. */
tsr_status tsr_adamw_run(const tsr_adamw_span *spans, uint64_t span_count,
                         const tsr_adamw_step *step, int shift, const tsr_adamw_control *control);

/* The same arithmetic on plain fp32 gradients, already clipped. */
tsr_status tsr_adamw_run_f32(float *master, float *m, float *v, const float *gradient,
                             uint64_t count, const tsr_adamw_step *step);

/* Writes the working copy of masters without a step (start-up). dtype F32 or BF16, else
 * TSR_EINVAL. */
tsr_status tsr_adamw_copy_work(void *work, tsr_dtype dtype, const float *master, uint64_t count);

/* Adds the squares of owned gradients, rounded to fp32, to *sum, which depends on the set of granules only: every
 * 64 elements are summed in fp64 in a fixed order, and their sums exactly. Merged over ranks (an
 * integer all-reduce of TSR_EXACT_WORDS words) it has the same bits for any number of ranks.
 * `count` is a multiple of 64. */
void tsr_grad_norm_add(tsr_exact_sum *sum, const int64_t *gradient, uint64_t count, int shift);
void tsr_grad_norm_add_rounded(tsr_exact_sum *sum, const float *gradient, uint64_t count);

/* sqrt of the merged sum; not finite if a summand was not. */
double tsr_grad_norm(const tsr_exact_sum *sum);

/* f(min(1, max_norm / (norm + 1e-6))); 1 where max_norm <= 0 or is NaN (no clipping). */
float tsr_clip_factor(double norm, double max_norm);

/* The op: as tsr_adamw_run, with t read from the control when it runs (whether the step before was
 * skipped is not known when this one is issued). Cost: 36 bytes moved for each element with an fp32
 * working copy, 32 of rounded gradients. */
typedef struct {
    const tsr_adamw_span *spans; /* borrowed until the op has run */
    uint64_t span_count;
    tsr_adamw_step step; /* step.step is ignored */
    const tsr_adamw_control *control;
    int shift;
} tsr_adamw_args;

tsr_status tsr_adamw_check(const tsr_adamw_args *args);
tsr_status tsr_adamw_ref(const tsr_adamw_args *args, tsr_pool *pool);

/* The op: tsr_grad_norm_add, or of rounded gradients. */
typedef struct {
    tsr_exact_sum *sum;
    const int64_t *gradient; /* [count] */
    const float *rounded;    /* [count], instead; shift is not used */
    uint64_t count;
    int shift;
} tsr_grad_norm_args;

tsr_status tsr_grad_norm_check(const tsr_grad_norm_args *args);
tsr_status tsr_grad_norm_ref(const tsr_grad_norm_args *args, tsr_pool *pool);

#define TSR_REPORTED_SUMS 4 /* of what is reported of a step beside its loss */

/* The op: what the micro-batches of a step left, added to the words that all ranks will sum, and
 * cleared. */
typedef struct {
    int64_t *loss;          /* fixed point */
    int32_t *loss_overflow; /* flags */
    int64_t *gradient_overflow;
    int64_t *word_loss;       /* added to */
    int64_t *word_non_finite; /* one more if a flag was set */
    int64_t *seen;            /* [2]: both flags as they were; may be NULL */
    int64_t *reported;        /* [TSR_REPORTED_SUMS] that add up as the loss does; may be NULL */
    int64_t *word_reported;   /* [TSR_REPORTED_SUMS], added to; NULL without reported */
} tsr_step_sums_args;

tsr_status tsr_step_sums_check(const tsr_step_sums_args *args);
tsr_status tsr_step_sums_ref(const tsr_step_sums_args *args, tsr_pool *pool);

/* The op: the control of the AdamW pass from the words as summed over all ranks. A step that is not
 * skipped makes control->step one larger. */
typedef struct {
    tsr_adamw_control *control;
    const tsr_exact_sum *squares;
    const int64_t *error, *non_finite; /* not 0: the step is skipped */
    double max_norm;                   /* 0: none */
} tsr_step_control_args;

tsr_status tsr_step_control_check(const tsr_step_control_args *args);
tsr_status tsr_step_control_ref(const tsr_step_control_args *args, tsr_pool *pool);

#endif
