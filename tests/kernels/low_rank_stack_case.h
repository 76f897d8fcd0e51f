/*
 * tests/kernels/low_rank_stack_case.h: adapters of several ranks, stacked element by element, and who owns which tokens.
 */
#ifndef TSR_TESTS_KERNELS_LOW_RANK_STACK_CASE_H
#define TSR_TESTS_KERNELS_LOW_RANK_STACK_CASE_H

#include "kernel_test.h"

#include "kernels/low_rank_stack.h"

typedef struct {
    int64_t in, out, tokens;
    int count;
    int64_t r[TSR_LOW_RANK_STACK];
} stack_case;

static const stack_case stack_cases[] = {
    {64, 48, 40, 2, {8, 16}},
    {128, 1000, 700, 4, {16, 16, 16, 16}},
    {4104, 24, 33, 3, {8, 0, 24}},
    {30, 7, 129, 3, {3, 5, 1}}, /* nothing on 16 bytes */
    {512, 2056, 1031, 16, {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}},
    {64, 0, 9, 1, {8}},
    {0, 64, 0, 2, {8, 8}},
    {16, 16, 5, 0, {0}},
};
#define STACK_CASES (sizeof stack_cases / sizeof *stack_cases)

static inline int64_t ranks_of(const stack_case *c)
{
    int64_t ranks = 0;
    for (int i = 0; i < c->count; i++)
        ranks += c->r[i];
    return ranks;
}

/* What the stacked A and B are of those of the parts, which lie one behind the other. */
static inline void stack_plainly(float *a, float *b, const float *parts_a, const float *parts_b,
                                 const stack_case *c)
{
    int64_t ranks = ranks_of(c), before = 0;
    for (int i = 0; i < c->count; before += c->r[i++])
        for (int64_t k = 0; k < c->r[i]; k++) {
            for (int64_t j = 0; j < c->in; j++)
                a[(before + k) * c->in + j] = parts_a[(before + k) * c->in + j];
            for (int64_t j = 0; j < c->out; j++)
                b[j * ranks + before + k] = parts_b[before * c->out + j * c->r[i] + k];
        }
}

/* Adapter i has the tokens behind those of i - 1, some none, and the last tokens are of nobody. */
static inline void own_tokens(tsr_low_rank_mask_args *args, const stack_case *c)
{
    int64_t first = 0, column = 0, each = c->tokens / (c->count + 1);
    args->tokens = c->tokens;
    args->columns = ranks_of(c);
    args->count = c->count;
    for (int i = 0; i < c->count; i++) {
        int64_t end = first + (i % 3 == 1 ? 0 : each + i % 2);
        end = end < c->tokens ? end : c->tokens;
        args->owner[i] = (tsr_low_rank_owner){(int32_t)first, (int32_t)end, (int32_t)column,
                                              (int32_t)c->r[i], 0.75f + (float)i};
        first = end;
        column += c->r[i];
    }
}

static inline void mask_plainly(float *low, const tsr_low_rank_mask_args *args)
{
    for (int64_t t = 0; t < args->tokens; t++)
        for (int64_t j = 0; j < args->columns; j++) {
            float value = 0;
            for (int i = 0; i < args->count; i++) {
                const tsr_low_rank_owner *o = &args->owner[i];
                if (t >= o->first && t < o->end && j >= o->column && j < o->column + o->columns)
                    value = o->scale * low[t * args->columns + j];
            }
            low[t * args->columns + j] = value;
        }
}

#endif
