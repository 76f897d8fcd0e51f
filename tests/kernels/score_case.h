/*
 * tests/kernels/score_case.h: pairs of made-up rows, and their rewards, loss and gradients in fp64.
 */
#ifndef TSR_TESTS_KERNELS_SCORE_CASE_H
#define TSR_TESTS_KERNELS_SCORE_CASE_H

#include "kernel_test.h"

#include "kernels/head.h"
#include "kernels/score.h"

/* A case's arguments, on the host; free with score_end. */
typedef struct {
    tsr_score_args args;
    float *h, *w, *margin, *dh, *dw;
    int32_t *tie, overflow;
    double *reward, *slope;
    int64_t loss, words[TSR_SCORE_WORDS];
} score_run;

static inline void score_begin(score_run *r, int64_t rows, int64_t d, double center)
{
    *r = (score_run){.h = new_random(rows * d, 21, 1), .w = new_random(d, 22, 1)};
    r->margin = new_random(rows / 2, 23, 1);
    r->dh = new_floats(rows * d);
    r->dw = new_floats(d);
    r->tie = calloc((size_t)rows + 1, sizeof *r->tie);
    r->reward = calloc((size_t)rows + 1, sizeof *r->reward);
    r->slope = calloc((size_t)rows + 1, sizeof *r->slope);
    assert_true(r->tie && r->reward && r->slope);
    r->tie[0] = 1;
    r->args = (tsr_score_args){.h = r->h,
                               .w = {r->w, TSR_F32},
                               .margin = r->margin,
                               .tie = r->tie,
                               .reward = r->reward,
                               .slope = r->slope,
                               .dh = r->dh,
                               .dw = r->dw,
                               .rows = rows,
                               .d = d,
                               .center = center,
                               .scale = 0.5,
                               .loss = &r->loss,
                               .loss_overflow = &r->overflow,
                               .words = r->words,
                               .dtype = TSR_F32};
}

static inline void score_end(score_run *r)
{
    free(r->h), free(r->w), free(r->margin), free(r->dh), free(r->dw), free(r->tie);
    free(r->reward), free(r->slope);
}

#endif
