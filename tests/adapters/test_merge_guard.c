/*
 * test_merge_guard.c: how much of an update survives where W + s B A is rounded to bf16 and multiplied with, and how far off
 * the product is beside W x + s B A x: the guard behind tsr_graph_allowed. W of NF4 is rounded anyway, and merging costs
 * nothing; a plain bf16 W is exact, and merging loses small updates and is further off for all.
 */
#include "base/dtype.h"
#include "base/philox.h"
#include "kernels/nf4_quantize.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define OUT   96
#define IN    512
#define T     48
#define SIZE  0.02 /* of W's elements */
#define BLOCK 64

static double w[OUT][IN], x[T][IN], update[OUT][IN];

static double round_bf16(double value)
{
    return (double)tsr_bf16_to_f32(tsr_f32_to_bf16((float)value));
}

/* About normal: the sum of twelve uniform numbers. */
static double normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)(tsr_mix((*state)++) >> 11) * 0x1p-53;
    return sum;
}

/* Each block of W as NF4 has it. */
static void quantize(void)
{
    for (int i = 0; i < OUT * IN; i += BLOCK) {
        double *block = &w[0][0] + i, most = 0;
        for (int j = 0; j < BLOCK; j++)
            most = fmax(most, fabs(block[j]));
        for (int j = 0; j < BLOCK; j++) {
            double best = tsr_nf4_level[0] * most;
            for (int l = 1; l < 16; l++)
                if (fabs(tsr_nf4_level[l] * most - block[j]) < fabs(best - block[j]))
                    best = tsr_nf4_level[l] * most;
            block[j] = (double)(float)best;
        }
    }
}

static void make(bool nf4, double size)
{
    uint64_t state = 7;
    for (int i = 0; i < OUT * IN; i++)
        (&w[0][0])[i] = SIZE * normal(&state);
    if (nf4)
        quantize();
    for (int i = 0; i < OUT * IN && !nf4; i++)
        (&w[0][0])[i] = round_bf16((&w[0][0])[i]);
    for (int i = 0; i < T * IN; i++)
        (&x[0][0])[i] = round_bf16(normal(&state));
    for (int i = 0; i < OUT * IN; i++)
        (&update[0][0])[i] = size * SIZE * normal(&state);
}

typedef struct {
    double remains; /* of the update, in what the merged weight gives */
    double farther; /* the merged product's distance over the other's */
} guard;

/* All sums in double: what differs is what is rounded to bf16. */
static guard measure(bool nf4, double size)
{
    double kept = 0, wanted = 0, merged_apart = 0, plain_apart = 0;
    make(nf4, size);
    for (int t = 0; t < T; t++)
        for (int o = 0; o < OUT; o++) {
            double base = 0, decoded = 0, added = 0, merged = 0;
            for (int i = 0; i < IN; i++) {
                base += x[t][i] * w[o][i];
                decoded += x[t][i] * round_bf16(w[o][i]);
                added += x[t][i] * update[o][i];
                merged += x[t][i] * round_bf16(w[o][i] + update[o][i]);
            }
            double plain = round_bf16(decoded + round_bf16(added)), exact = base + added;
            kept += (merged - base) * added;
            wanted += added * added;
            merged_apart += pow(round_bf16(merged) - exact, 2);
            plain_apart += pow(plain - exact, 2);
        }
    return (guard){kept / wanted, sqrt(merged_apart / plain_apart)};
}

static void test_guard(void **state)
{
    static const double sizes[] = {1e-3, 3e-3, 1e-2, 3e-2};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        guard nf4 = measure(true, sizes[i]), plain = measure(false, sizes[i]);
        printf("update of %g of W: NF4 %.2f remains, %.2f as far off; bf16 %.2f, %.2f\n", sizes[i],
               nf4.remains, nf4.farther, plain.remains, plain.farther);
        assert_true(fabs(nf4.remains - 1) < 0.05 && nf4.farther < 1.05);
        assert_true(plain.farther > 1.05);
        assert_true(sizes[i] > 2e-3 ? plain.remains > 0.85 : plain.remains < 0.6);
    }
    assert_true(measure(false, 1e-4).remains < 0.15);
    assert_true(measure(false, 1e-2).farther > 1.3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_guard)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
