/*
 * test_expert_weight.c: experts of a stack, each bit by bit as nf4_dequant makes it of its
 * matrices, whose blocks do not fill a granule; plain weights against fp64.
 */
#include "kernels/expert_weight.h"
#include "kernels/nf4_dequant.h"

#include "kernels/kernel_test.h"

#define EXPERTS 5

static const float levels[16] = {-1.0f, -0.7f, -0.53f, -0.4f, -0.28f, -0.18f, -0.09f, 0,
                                 0.08f, 0.16f, 0.25f,  0.34f, 0.44f,  0.56f,  0.72f,  1};

static tsr_status run(void *context, tsr_pool *pool)
{
    return tsr_expert_weight_ref(context, pool);
}

typedef struct {
    uint8_t *codes, *absmax_codes;
    float *absmax, *nested_absmax, *map, *offset;
    int64_t granules, groups; /* of a matrix */
} stack;

static uint8_t *new_bytes(int64_t count, uint64_t seed)
{
    uint8_t *bytes = malloc((size_t)count + 1);
    assert_non_null(bytes);
    for (int64_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)tsr_mix(seed + (uint64_t)i);
    return bytes;
}

static stack new_stack(int64_t parts, int64_t rows, int64_t columns)
{
    int64_t matrices = EXPERTS * parts;
    stack s = {.granules = tsr_expert_granules(rows / parts, columns),
               .groups = tsr_expert_groups(rows / parts, columns)};
    s.codes = new_bytes(matrices * s.granules * 512, 1);
    s.absmax_codes = new_bytes(matrices * s.granules * 16, 2);
    s.absmax = new_gain(matrices * s.granules * 16, 3);
    s.nested_absmax = new_gain(matrices * s.groups, 4);
    s.map = new_random(256, 5, 0.1f);
    s.offset = new_gain(matrices, 6);
    return s;
}

static void free_stack(stack *s)
{
    free(s->codes), free(s->absmax_codes), free(s->absmax), free(s->nested_absmax);
    free(s->map), free(s->offset);
}

/* Matrix i of the stack. */
static void expect_matrix(const tsr_expert_weight_args *args, const stack *s, int64_t i,
                          const float *got)
{
    int64_t count = args->rows / args->parts * args->columns;
    float *want = new_floats(count);
    const void *absmax = args->nested ? (const void *)(s->absmax_codes + i * s->granules * 16)
                                      : (const void *)(s->absmax + i * s->granules * 16);
    tsr_nf4_dequant_args w = {.out = want,
                              .codes = s->codes + i * s->granules * 512,
                              .absmax = absmax,
                              .nested_absmax = s->nested_absmax + i * s->groups,
                              .nested_map = s->map,
                              .level = levels,
                              .count = count,
                              .columns = args->columns,
                              .offset = s->offset[i],
                              .nested = args->nested};
    assert_int_equal(tsr_nf4_dequant_ref(&w, test_pool(1)), TSR_OK);
    assert_memory_equal(got, want, (size_t)count * sizeof(float));
    free(want);
}

static void one_stack(int64_t parts, int64_t rows, int64_t columns, int64_t first, int64_t count)
{
    stack s = new_stack(parts, rows, columns);
    int64_t each = rows * columns;
    for (int nested = 0; nested < 2; nested++) {
        float *out = new_floats(count * each);
        tsr_expert_weight_args args = {.out = out,
                                       .codes = s.codes,
                                       .absmax = nested ? (void *)s.absmax_codes : (void *)s.absmax,
                                       .nested_absmax = s.nested_absmax,
                                       .nested_map = s.map,
                                       .offset = s.offset,
                                       .level = levels,
                                       .first = first,
                                       .count = count,
                                       .parts = parts,
                                       .rows = rows,
                                       .columns = columns,
                                       .nested = nested};
        run_on_pools(run, &args, out, count * each);
        for (int64_t i = 0; i < count * parts; i++)
            expect_matrix(&args, &s, first * parts + i, out + i * (each / parts));
        free(out);
    }
    free_stack(&s);
}

static void each_matrix_has_its_bits(void **state)
{
    (void)state;
    one_stack(1, 6, 64, 0, EXPERTS);   /* blocks that fill no granule */
    one_stack(2, 14, 100, 0, EXPERTS); /* a last block that is short */
    one_stack(2, 32, 64, 1, 3);        /* whole granules */
    one_stack(1, 300, 64, 4, 1);       /* more than one group of nested scales */
    one_stack(2, 2, 7, 2, 2);          /* less than a block */
    one_stack(1, 8, 64, 3, 0);         /* none */
}

static void plain_weights_are_widened(void **state)
{
    (void)state;
    const int64_t rows = 10, columns = 37, first = 1, count = 3, each = rows * columns;
    float *w = new_random(EXPERTS * each, 1, 1), *out = new_floats(count * each);
    uint16_t *half = new_bf16(w, EXPERTS * each);
    for (int way = 0; way < 2; way++) {
        tsr_expert_weight_args args = {
            .out = out,
            .plain = {way ? (void *)half : (void *)w, way ? TSR_BF16 : TSR_F32},
            .first = first,
            .count = count,
            .parts = 2,
            .rows = rows,
            .columns = columns,
            .format = TSR_EXPERTS_PLAIN};
        run_on_pools(run, &args, out, count * each);
        assert_memory_equal(out, w + first * each, (size_t)(count * each) * sizeof(float));
    }
    free(w), free(out), free(half);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    float x[4] = {0};
    uint8_t codes[512] = {0};
    const tsr_expert_weight_args good = {.out = x,
                                         .codes = codes,
                                         .absmax = x,
                                         .level = levels,
                                         .count = 1,
                                         .parts = 1,
                                         .rows = 2,
                                         .columns = 2};
    assert_int_equal(tsr_expert_weight_check(&good), TSR_OK);
    tsr_expert_weight_args bad = good;
    bad.parts = 3;
    assert_int_equal(tsr_expert_weight_check(&bad), TSR_EINVAL);
    bad = good;
    bad.nested = true;
    assert_int_equal(tsr_expert_weight_check(&bad), TSR_EINVAL);
    bad = good;
    bad.first = -1;
    assert_int_equal(tsr_expert_weight_check(&bad), TSR_EINVAL);
    bad = good;
    bad.codes = NULL;
    assert_int_equal(tsr_expert_weight_check(&bad), TSR_EINVAL);
    bad = good;
    bad.format = TSR_EXPERTS_PLAIN;
    assert_int_equal(tsr_expert_weight_check(&bad), TSR_EINVAL);
    bad.plain = (tsr_frozen){x, TSR_F16};
    assert_int_equal(tsr_expert_weight_check(&bad), TSR_EINVAL);
    bad = good;
    bad.format = 7;
    assert_int_equal(tsr_expert_weight_check(&bad), TSR_EINVAL);
    bad = good;
    bad.dtype = TSR_BF16;
    assert_int_equal(tsr_expert_weight_ref(&bad, test_pool(0)), TSR_EUNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_matrix_has_its_bits),
        cmocka_unit_test(plain_weights_are_widened),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, pools_teardown);
}
