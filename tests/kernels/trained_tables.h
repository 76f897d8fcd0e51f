/*
 * tests/kernels/trained_tables.h: what the tests of head_weight and of table_rows share.
 */
#ifndef TSR_TESTS_KERNELS_TRAINED_TABLES_H
#define TSR_TESTS_KERNELS_TRAINED_TABLES_H

#include "kernels/copy_columns.h"
#include "kernels/head_weight.h"
#include "kernels/kernel_test.h"
#include "kernels/table_rows.h"

typedef struct {
    int64_t rows, d, vocabulary, chunk;
    float softcap;
} weight_case;

static const weight_case weight_cases[] = {
    {1, 8, 8, 8, 0},   {7, 16, 100, 33, 0},     {130, 24, 1200, 1030, 0}, {300, 32, 600, 512, 30},
    {0, 8, 16, 16, 0}, {65, 16, 5000, 4999, 5}, {2100, 8, 520, 520, 0},   {33, 64, 17001, 16384, 0},
};

#define WEIGHT_CASES (sizeof weight_cases / sizeof *weight_cases)

/* What head_finish leaves of each row, and the gradient of the whole table, in fp64. */
static inline void exact_weight(double *dw, float *state, const weight_case *c, const float *h,
                                const float *w, const int32_t *labels, double scale)
{
    double *logit = new_doubles(NULL, c->vocabulary), *slope = new_doubles(NULL, c->vocabulary);
    memset(dw, 0, (size_t)(c->vocabulary * c->d) * sizeof *dw);
    for (int64_t i = 0; i < c->rows; i++) {
        double max = -INFINITY, others = 0;
        for (int64_t v = 0; v < c->vocabulary; v++) {
            double dot = 0, cap = (double)c->softcap;
            for (int64_t j = 0; j < c->d; j++)
                dot += (double)h[i * c->d + j] * (double)w[v * c->d + j];
            logit[v] = cap > 0 ? cap * tanh(dot / cap) : dot;
            slope[v] = cap > 0 ? 1 - logit[v] / cap * (logit[v] / cap) : 1;
            if (v != labels[i])
                max = fmax(max, logit[v]);
        }
        for (int64_t v = 0; v < c->vocabulary; v++)
            others += v == labels[i] ? 0 : exp(logit[v] - max);
        double all = others + exp(logit[labels[i]] - max);
        for (int64_t v = 0; v < c->vocabulary; v++) {
            double pull = v == labels[i] ? -others : exp(logit[v] - max);
            for (int64_t j = 0; j < c->d; j++)
                dw[v * c->d + j] += scale * slope[v] * pull / all * (double)h[i * c->d + j];
        }
        state[i] = (float)max;
        state[c->rows + i] = (float)others;
        state[2 * c->rows + i] = (float)logit[labels[i]];
    }
    free(logit);
    free(slope);
}

static inline int32_t *new_ids(int64_t count, int64_t vocabulary)
{
    int32_t *ids = malloc((size_t)(count + 1) * sizeof *ids);
    assert_non_null(ids);
    for (int64_t i = 0; i < count; i++) /* the same one often */
        ids[i] = i % 3 ? (int32_t)(tsr_mix((uint64_t)i) % (uint64_t)vocabulary)
                       : (int32_t)(vocabulary / 2);
    return ids;
}

/* The chains of ids, as kernels/table_rows.h has them: next [tokens], then leads; returns the number of leads. */
static inline int64_t chain(int32_t *next, int32_t *leads, const int32_t *ids, int64_t tokens)
{
    int64_t count = 0;
    for (int64_t t = 0; t < tokens; t++) {
        bool first = true;
        next[t] = -1;
        for (int64_t s = 0; s < t; s++)
            if (ids[s] == ids[t]) {
                first = false;
                if (next[s] < 0)
                    next[s] = (int32_t)t;
            }
        if (first)
            leads[count++] = (int32_t)t;
    }
    return count;
}

#endif
