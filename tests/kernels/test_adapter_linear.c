/*
 * test_adapter_linear.c: PEFT's linear with a bias, forward and backward, put together from the
 * device operations: LoRA, DoRA, and DoRA with dropout (golden/adapter_linear).
 */
#include "kernels/compose.h"
#include "kernels/dora_norm.h"
#include "kernels/gemm.h"
#include "kernels/row_square_norm.h"

#include "kernels/kernel_test.h"
#include "support/golden_plain.h"

#define F32_TOLERANCE 5e-6 /* of the largest value */

enum { T = 24, IN = 64, OUT = 48, R = 4 };

static const float s = 1.5f, keep = 0.75f;

typedef struct {
    golden_file file;
    float *x, *dy, *w, *bias, *a, *b, *m;
    uint8_t *mask;
} golden_linear;

/* C = alpha op(A) op(B) + beta C, dense. */
static void multiply(float *c, const float *a, bool trans_a, const float *b, bool trans_b,
                     int64_t m, int64_t n, int64_t k, float alpha, float beta)
{
    tsr_gemm_args args = {.m = m,
                          .n = n,
                          .k = k,
                          .a = a,
                          .b = b,
                          .c = c,
                          .trans_a = trans_a,
                          .trans_b = trans_b,
                          .alpha = alpha,
                          .beta = beta};
    assert_int_equal(tsr_gemm_ref(&args, test_pool(1)), TSR_OK);
}

static void expect_golden(const golden_linear *g, const char *name, const char *tensor,
                          const float *got, int64_t count)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", name, tensor);
    float *want = golden_copy(&g->file, key, NULL);
    double *want64 = new_doubles(want, count);
    expect_close(key, got, want64, count, F32_TOLERANCE);
    free(want), free(want64);
}

static int open_golden(void **state)
{
    golden_linear *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->file = golden_open(TSR_SOURCE_DIR "/tests/golden/adapter_linear.safetensors");
    g->x = golden_copy(&g->file, "x", NULL);
    g->dy = golden_copy(&g->file, "dy", NULL);
    g->w = golden_copy(&g->file, "weight", NULL);
    g->bias = golden_copy(&g->file, "bias", NULL);
    g->a = golden_copy(&g->file, "lora_A", NULL);
    g->b = golden_copy(&g->file, "lora_B", NULL);
    g->m = golden_copy(&g->file, "magnitude", NULL);
    g->mask = golden_copy(&g->file, "dropout_mask", NULL);
    *state = g;
    return 0;
}

static int close_golden(void **state)
{
    golden_linear *g = *state;
    free(g->x), free(g->dy), free(g->w), free(g->bias), free(g->a), free(g->b), free(g->m);
    free(g->mask);
    golden_close(&g->file);
    free(g);
    return pools_teardown(NULL);
}

/* n of W + s B A by the factored norm, and g = m / n. */
static void norm_and_gain(const golden_linear *l, float *n, float *g)
{
    float u[OUT * R], gram[R * R], bg[OUT * R], squares[OUT];
    multiply(u, l->w, false, l->a, true, OUT, R, IN, 1, 0);
    multiply(gram, l->a, false, l->a, true, R, R, IN, 1, 0);
    multiply(bg, l->b, false, gram, false, OUT, R, R, 1, 0);
    tsr_row_square_norm_args square = {squares, l->w, OUT, IN, TSR_F32};
    assert_int_equal(tsr_row_square_norm_ref(&square, test_pool(1)), TSR_OK);
    tsr_dora_norm_args norm = {.n = n,
                               .g = g,
                               .m = l->m,
                               .squares = squares,
                               .u = u,
                               .bg = bg,
                               .b = l->b,
                               .rows = OUT,
                               .r = R,
                               .scale = (double)s};
    assert_int_equal(tsr_dora_norm_ref(&norm, test_pool(1)), TSR_OK);
}

/* dB = s dz^T (x A^T), dA = s (dz B)^T x, dx = dz W + s (dz B) A: z = W x + s B A x. */
static void linear_backward(const golden_linear *l, const float *x, const float *dz, float *da,
                            float *db, float *dx)
{
    float h[T * R], dh[T * R];
    multiply(h, x, false, l->a, true, T, R, IN, 1, 0);
    multiply(db, dz, true, h, false, OUT, R, T, s, 0);
    multiply(dh, dz, false, l->b, false, T, R, OUT, s, 0);
    multiply(da, dh, true, x, false, R, IN, T, 1, 0);
    multiply(dx, dz, false, l->w, false, T, IN, OUT, 1, 0);
    multiply(dx, dh, false, l->a, false, T, IN, R, 1, 1);
}

static void without_dropout(const golden_linear *l, const char *name, bool dora)
{
    float z[T * OUT], y[T * OUT], h[T * R], n[OUT], g[OUT], dz[T * OUT], dm[OUT];
    float da[R * IN], db[OUT * R], dx[T * IN];
    norm_and_gain(l, n, g);
    multiply(z, l->x, false, l->w, true, T, OUT, IN, 1, 0);
    multiply(h, l->x, false, l->a, true, T, R, IN, 1, 0);
    multiply(z, h, false, l->b, true, T, OUT, R, s, 1);
    for (int i = 0; i < T * OUT; i++)
        y[i] = (dora ? g[i % OUT] : 1.0f) * z[i] + l->bias[i % OUT];
    expect_golden(l, name, "y", y, T * OUT);
    tsr_compose_backward_args args = {.dy = l->dy,
                                      .inner = z,
                                      .g = dora ? g : NULL,
                                      .n = dora ? n : NULL,
                                      .d_lora = dz,
                                      .scale = 1,
                                      .dm = dora ? dm : NULL,
                                      .tokens = T,
                                      .d = OUT};
    assert_int_equal(tsr_compose_backward_ref(&args, test_pool(1)), TSR_OK);
    linear_backward(l, l->x, dz, da, db, dx);
    if (dora)
        expect_golden(l, name, "dmagnitude", dm, OUT);
    expect_golden(l, name, "dlora_A", da, R * IN);
    expect_golden(l, name, "dlora_B", db, OUT * R);
    expect_golden(l, name, "dx", dx, T * IN);
}

static void lora_is_pefts(void **state)
{
    without_dropout(*state, "lora", false);
}

static void dora_is_pefts(void **state)
{
    without_dropout(*state, "dora", true);
}

static void dora_with_dropout_is_pefts(void **state)
{
    const golden_linear *l = *state;
    float xd[T * IN], base[T * OUT], dropped[T * OUT], lora[T * OUT], h[T * R], n[OUT], g[OUT];
    float y[T * OUT], inner[T * OUT], d_dropped[T * OUT], d_lora[T * OUT], dm[OUT];
    norm_and_gain(l, n, g);
    for (int i = 0; i < T * IN; i++)
        xd[i] = l->mask[i] ? l->x[i] / keep : 0;
    multiply(base, l->x, false, l->w, true, T, OUT, IN, 1, 0);
    multiply(dropped, xd, false, l->w, true, T, OUT, IN, 1, 0);
    multiply(h, xd, false, l->a, true, T, R, IN, 1, 0);
    multiply(lora, h, false, l->b, true, T, OUT, R, 1, 0);
    tsr_compose_args forward = {.base = base,
                                .base_dropped = dropped,
                                .lora = lora,
                                .g = g,
                                .bias = {l->bias, TSR_F32},
                                .y = y,
                                .inner = inner,
                                .tokens = T,
                                .d = OUT,
                                .scale = s};
    assert_int_equal(tsr_compose_ref(&forward, test_pool(1)), TSR_OK);
    expect_golden(l, "dora_dropout", "y", y, T * OUT);
    tsr_compose_backward_args backward = {.dy = l->dy,
                                          .inner = inner,
                                          .g = g,
                                          .n = n,
                                          .d_base_dropped = d_dropped,
                                          .d_lora = d_lora,
                                          .dm = dm,
                                          .tokens = T,
                                          .d = OUT,
                                          .scale = s};
    assert_int_equal(tsr_compose_backward_ref(&backward, test_pool(1)), TSR_OK);
    expect_golden(l, "dora_dropout", "dmagnitude", dm, OUT);
    float dh[T * R], da[R * IN], db[OUT * R], dx[T * IN], dxd[T * IN];
    multiply(db, d_lora, true, h, false, OUT, R, T, 1, 0);
    multiply(dh, d_lora, false, l->b, false, T, R, OUT, 1, 0);
    multiply(da, dh, true, xd, false, R, IN, T, 1, 0);
    multiply(dxd, d_dropped, false, l->w, false, T, IN, OUT, 1, 0);
    multiply(dxd, dh, false, l->a, false, T, IN, R, 1, 1);
    multiply(dx, l->dy, false, l->w, false, T, IN, OUT, 1, 0);
    for (int i = 0; i < T * IN; i++)
        dx[i] += l->mask[i] ? dxd[i] / keep : 0;
    expect_golden(l, "dora_dropout", "dlora_A", da, R * IN);
    expect_golden(l, "dora_dropout", "dlora_B", db, OUT * R);
    expect_golden(l, "dora_dropout", "dx", dx, T * IN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lora_is_pefts),
        cmocka_unit_test(dora_is_pefts),
        cmocka_unit_test(dora_with_dropout_is_pefts),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
