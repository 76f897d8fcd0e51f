/*
 * tests/kernels/expert_rows_test.h: rows of experts, and the loads that find a wrong block. Include
 * kernel_test.h first.
 */
#ifndef TSR_TESTS_KERNELS_EXPERT_ROWS_TEST_H
#define TSR_TESTS_KERNELS_EXPERT_ROWS_TEST_H

#include "kernels/expert_rows.h"
#include "kernels/kernel_test.h"

typedef enum {
    LOAD_EVEN,    /* nearly the same for each */
    LOAD_ZIPF,    /* expert e gets 1 / (e + 1) of what the first gets */
    LOAD_ONE,     /* the last but one gets all, others nothing */
    LOAD_HOLES,   /* every third gets nothing, and of the others some a single row */
    LOAD_DROPPED, /* Zipf, but a quarter of the rows was left out */
    LOAD_KINDS,
} expert_load;

static const char *const expert_load_name[] = {"even", "Zipf", "one", "holes", "dropped"};

typedef struct {
    tsr_expert_rows rows;
    int32_t *offset, *slot;
    int64_t tokens, used;
} expert_case;

static inline double expert_share(expert_load load, int64_t e, int64_t experts)
{
    switch (load) {
    case LOAD_EVEN:
        return 1;
    case LOAD_ONE:
        return e == (experts > 1 ? experts - 2 : 0);
    case LOAD_HOLES:
        return e % 3 == 1 ? 0 : e % 3 == 2 ? 1e-6 : 1;
    default:
        return 1 / (double)(e + 1);
    }
}

/* Slots in random order, cut by the shares and sorted within an expert; those left out are -1. */
static inline expert_case new_expert_case(int64_t tokens, int64_t k, int64_t experts,
                                          expert_load load)
{
    int64_t all = tokens * k, used = load == LOAD_DROPPED ? all - all / 4 : all, at = 0;
    expert_case c = {.tokens = tokens, .used = used};
    c.offset = malloc((size_t)(experts + 1) * sizeof *c.offset);
    c.slot = malloc((size_t)(all + 1) * sizeof *c.slot);
    assert_true(c.offset && c.slot);
    for (int64_t i = 0; i < all; i++) {
        int64_t j = (int64_t)(tsr_mix((uint64_t)(i + 31)) % (uint64_t)(i + 1));
        c.slot[i] = c.slot[j];
        c.slot[j] = (int32_t)i;
    }
    double total = 0, sum = 0;
    for (int64_t e = 0; e < experts; e++)
        total += expert_share(load, e, experts);
    for (int64_t e = 0; e <= experts; e++) {
        int64_t end = (int64_t)(sum / total * (double)used + 0.5);
        end = end < at ? at : end > used || e == experts ? used : end;
        c.offset[e] = (int32_t)(e ? end : 0);
        at = c.offset[e];
        sum += e < experts ? expert_share(load, e, experts) : 0;
    }
    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = c.offset[e] + 1; i < c.offset[e + 1]; i++)
            for (int64_t j = i; j > c.offset[e] && c.slot[j - 1] > c.slot[j]; j--) {
                int32_t other = c.slot[j];
                c.slot[j] = c.slot[j - 1];
                c.slot[j - 1] = other;
            }
    for (int64_t i = used; i < all; i++)
        c.slot[i] = -1;
    c.rows = (tsr_expert_rows){
        .offset = c.offset, .slot = c.slot, .most = all, .k = k, .experts = experts};
    return c;
}

static inline void free_expert_case(expert_case *c)
{
    free(c->offset), free(c->slot);
}

#endif
