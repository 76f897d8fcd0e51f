/*
 * test_cuda_low_rank_stack.c: low_rank_stack on a GPU moves the same bytes, low_rank_mask has the C reference's values,
 * rounded once to the dtype; also off the alignment.
 */
#include "cuda_case.h"

#include "low_rank_stack_case.h"

/* The parts' numbers into the stacked ones, or the other way. */
static void one_stack(const stack_case *c, tsr_dtype dtype, bool apart)
{
    if (!cuda_turn())
        return;
    int64_t ranks = ranks_of(c), rows = ranks * c->in, columns = ranks * c->out, before = 0;
    uint64_t element = tsr_dtype_bytes(dtype);
    float *parts_a = copy_of(keep(new_random(rows, 1, 1)), rows);
    float *parts_b = copy_of(keep(new_random(columns, 2, 1)), columns);
    float *stacked_a = want_of(rows + 1), *stacked_b = want_of(columns + 1);
    stack_plainly(stacked_a, stacked_b, parts_a, parts_b, c);
    float *from_a = apart ? stacked_a : parts_a, *from_b = apart ? stacked_b : parts_b;
    float *to_a = apart ? parts_a : stacked_a, *to_b = apart ? parts_b : stacked_b;
    char *in_a = cuda_values(from_a, rows, dtype), *in_b = cuda_values(from_b, columns, dtype);
    output out_a = blank(rows, dtype), out_b = blank(columns, dtype);
    tsr_low_rank_stack_args args = {.a = apart ? in_a : out_a.device,
                                    .b = apart ? in_b : out_b.device,
                                    .count = c->count,
                                    .apart = apart,
                                    .in = c->in,
                                    .out = c->out,
                                    .dtype = dtype};
    char *part_a = apart ? out_a.device : in_a, *part_b = apart ? out_b.device : in_b;
    for (int i = 0; i < c->count; before += c->r[i++])
        args.part[i] = (tsr_low_rank_part){part_a + (uint64_t)(before * c->in) * element,
                                           part_b + (uint64_t)(before * c->out) * element, c->r[i]};
    RUN(rig.kernels->low_rank_stack(rig.stream, &args));
    expect("A", out_a, to_a, 0);
    expect("B", out_b, to_b, 0);
    end_case();
}

static void stack_matches(void **state)
{
    (void)state;
    for (size_t n = 0; n < STACK_CASES; n++)
        for (int k = 0; k < 3; k++)
            for (shift = 0; shift < 2; shift++)
                for (int apart = 0; apart < 2; apart++)
                    one_stack(&stack_cases[n], all_dtypes[k], apart);
    shift = 0;
}

static void one_mask(const stack_case *c, tsr_dtype dtype)
{
    if (!cuda_turn())
        return;
    int64_t count = c->tokens * ranks_of(c);
    input low = random_input(count, 3, 1, dtype);
    float *want = copy_of(low.host, count);
    tsr_low_rank_mask_args args = {.dtype = dtype};
    own_tokens(&args, c);
    mask_plainly(want, &args);
    args.low = low.device;
    RUN(rig.kernels->low_rank_mask(rig.stream, &args));
    expect("low", over(low, count, dtype), want, 0);
    end_case();
}

static void mask_matches(void **state)
{
    (void)state;
    for (size_t n = 0; n < STACK_CASES; n++)
        for (int k = 0; k < 3; k++)
            for (shift = 0; shift < 2; shift++)
                one_mask(&stack_cases[n], all_dtypes[k]);
    shift = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stack_matches),
        cmocka_unit_test(mask_matches),
    };
    return cmocka_run_group_tests(tests, cuda_setup, cuda_teardown);
}
