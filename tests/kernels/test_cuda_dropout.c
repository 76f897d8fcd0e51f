/*
 * test_cuda_dropout.c: dropout on a GPU against the C reference, bit for bit, rounded once to the dtype: over x,
 * added to, and with what is left of x.
 */
#include "cuda_test.h"

#include "kernels/dropout.h"
#include "kernels/kernels_cuda.h"

static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_F16};
static const float extreme[] = {0,        -0.0f, 1e-40f, -1e-38f, 3e38f,
                                INFINITY, NAN,   65504,  1e-7f,   6e-8f};
#define EXTREMES ((int64_t)(sizeof extreme / sizeof *extreme))

/* What the op does beside dropping x into out. */
typedef enum { PLAIN, ADDED, OVER_X, SPLIT, SPLIT_OVER_X, WAYS } way;

typedef struct {
    int64_t tokens, columns;
    double p;
    way way;
    int offset; /* elements that all arrays are off their alignment */
} dropout_case;

static void expect_dropped(const dropout_case *c, const char *what, const float *got,
                           const float *want, tsr_dtype dtype)
{
    for (int64_t i = 0; i < c->tokens * c->columns; i++)
        if (bits_of(got[i], dtype) != bits_of(want[i], dtype) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("dropout %g of %lld x %lld, %s, way %d: %s[%lld] is %a, want %a", c->p,
                     (long long)c->tokens, (long long)c->columns, tsr_dtype_name(dtype), c->way,
                     what, (long long)i, (double)got[i], (double)want[i]);
}

static void one_dropout(const dropout_case *c, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    int64_t count = c->tokens * c->columns, all = count + c->offset;
    uint32_t offset = (uint32_t)c->offset, away = offset * tsr_dtype_bytes(dtype);
    bool over_x = c->way == OVER_X || c->way == SPLIT_OVER_X;
    bool split = c->way == SPLIT || c->way == SPLIT_OVER_X;
    float *x = new_random(all, 1, 3), *out = new_random(all, 2, 1);
    int64_t *samples = malloc((size_t)c->tokens * 8);
    int32_t *positions = malloc((size_t)c->tokens * 4);
    assert_true(samples && positions);
    for (int64_t i = 0; i < EXTREMES && i * 9 < all; i++)
        x[i * 9] = extreme[i];
    for (int64_t t = 0; t < c->tokens; t++) {
        samples[t] = (int64_t)(tsr_mix((uint64_t)t) >> 2);
        positions[t] = (int32_t)(t * 7);
    }
    char *device_x = cuda_values(x, all, dtype), *device_out = cuda_values(out, all, dtype);
    char *device_left = cuda_values(out, all, dtype);
    float *whole = new_floats(count); /* x, which may be written over */
    memcpy(whole, x + offset, (size_t)count * sizeof *whole);
    float *want = over_x ? x : out;
    tsr_dropout_args args = {.out = want + offset,
                             .x = x + offset,
                             .samples = samples,
                             .positions = positions,
                             .dropout = tsr_dropout_make(c->p, 7, 3, 0x123456789abcdefu),
                             .tokens = c->tokens,
                             .columns = c->columns,
                             .add = c->way == ADDED};
    RUN(tsr_dropout_ref(&args, rig.pool));
    args.x = device_x + away;
    args.out = (over_x ? device_x : device_out) + away;
    args.left = split ? device_left + away : NULL;
    args.samples = cuda_copy(samples, (uint64_t)c->tokens * 8);
    args.positions = cuda_copy(positions, (uint64_t)c->tokens * 4);
    args.dtype = dtype;
    RUN(rig.kernels->dropout(rig.stream, &args));
    float *got = cuda_floats(args.out, count, dtype), *left = NULL;
    expect_dropped(c, "out", got, want + offset, dtype);
    if (split) { /* of x as it was, what is not in the out that was written */
        left = cuda_floats(args.left, count, dtype);
        for (int64_t i = 0; i < count; i++)
            whole[i] -= got[i];
        expect_dropped(c, "left", left, whole, dtype);
    }
    free(x), free(out), free(whole), free(samples), free(positions), free(got);
    free(left);
    cuda_free_all();
}

static void dropout_gives_the_references_bits(void **state)
{
    static const int64_t tokens[] = {1, 3, 9, 130};
    static const int64_t columns[] = {1, 4, 7, 8, 63, 104, 256, 520, 1032, 4096};
    static const double p[] = {0, 0.05, 0.1, 0.5, 0.97};
    (void)state;
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
            for (way w = PLAIN; w < WAYS; w++) {
                dropout_case one = {tokens[t], columns[c], p[(t + c + w) % 5], w, (int)(t % 2)};
                one_dropout(&one, dtypes[(c + w) % 3]);
            }
    one_dropout(&(dropout_case){300, 4096, 0.1, PLAIN, 0}, TSR_F32);
    one_dropout(&(dropout_case){300, 4096, 0.3, ADDED, 0}, TSR_BF16);
    one_dropout(&(dropout_case){40, 14336, 1 - 1e-9, PLAIN, 0}, TSR_F32);
    one_dropout(&(dropout_case){40, 14336, 0.05, OVER_X, 0}, TSR_BF16);
    one_dropout(&(dropout_case){40, 14336, 0.05, SPLIT, 0}, TSR_BF16);
    one_dropout(&(dropout_case){40, 14336, 0.05, ADDED, 0}, TSR_F16);
    one_dropout(&(dropout_case){40, 520, 1 - 1e-8, PLAIN, 0}, TSR_BF16);
    one_dropout(&(dropout_case){40, 520, 1 - 1e-8, ADDED, 0}, TSR_F16);
    RUN(rig.kernels->dropout(rig.stream, &(tsr_dropout_args){.columns = 8}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropout_gives_the_references_bits),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
