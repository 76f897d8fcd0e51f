/* PEFT's order of lora_B of experts, against where it says each element is. */
#include "support/folder.h"

#include "io/peft.h"

#include <stdlib.h>
#include <string.h>

#define EXPERTS 3
#define ROWS    4
#define RANK    2
#define COUNT   (EXPERTS * ROWS * RANK)

/* Rank k of expert e, row i: 100 e + 10 i + k. Column k EXPERTS + e of the file; rows alternate between the halves where
 * they go by turns. */
static float at(uint64_t file_row, uint64_t column, bool by_turns)
{
    uint64_t i = by_turns ? file_row / 2 + (file_row % 2) * (ROWS / 2) : file_row;
    return (float)(100 * (column % EXPERTS) + 10 * i + column / EXPERTS);
}

static void fill(float file[COUNT], bool by_turns)
{
    for (uint64_t i = 0; i < ROWS; i++)
        for (uint64_t c = 0; c < EXPERTS * RANK; c++)
            file[i * EXPERTS * RANK + c] = at(i, c, by_turns);
}

static void fill_memory(float memory[COUNT])
{
    for (uint64_t j = 0; j < COUNT; j++)
        memory[j] = (float)(100 * (j / (ROWS * RANK)) + 10 * (j / RANK % ROWS) + j % RANK);
}

static void write_file(const float *data)
{
    const tsr_peft_config config = {.r = RANK, .lora_alpha = 4};
    const tsr_peft_tensor tensors[] = {
        {"base_model.model.m.lora_A.weight", 2, {EXPERTS * RANK, ROWS}, data},
        {"base_model.model.m.lora_B.weight", 2, {ROWS, EXPERTS * RANK}, data},
    };
    char *names[] = {"m.w"};
    tsr_peft_config with = config;
    with.parameter = (tsr_peft_match){names, 1, NULL};
    tsr_folder *folder = open_folder(scratch_path("."));
    assert_int_equal(tsr_peft_write(folder, &with, tensors, 2), TSR_OK);
    tsr_folder_close(folder);
}

/* Every range of elements, out of a file and into one. */
static void test_order(void **state)
{
    for (int by_turns = 0; by_turns < 2; by_turns++) {
        const tsr_peft_expert_b shape = {EXPERTS, ROWS, RANK, by_turns};
        float file[COUNT], memory[COUNT], got[COUNT + 1], put[COUNT] = {0};
        tsr_peft *peft;
        fill(file, by_turns);
        fill_memory(memory);
        write_file(file);
        assert_int_equal(tsr_peft_open(&peft, *state), TSR_OK);
        const tsr_peft_module *m = tsr_peft_module_find(peft, "m");
        assert_non_null(m);
        for (uint64_t first = 0; first <= COUNT; first++)
            for (uint64_t count = 0; first + count <= COUNT; count++) {
                got[count] = -1;
                assert_int_equal(tsr_peft_read_expert_b(got, m->b, &shape, first, count), TSR_OK);
                assert_memory_equal(got, memory + first, count * sizeof *got);
                assert_true(got[count] == -1);
            }
        tsr_peft_put_expert_b(put, memory, &shape, 0, 5);
        tsr_peft_put_expert_b(put, memory + 5, &shape, 5, COUNT - 5);
        assert_memory_equal(put, file, sizeof put);
        tsr_peft_close(peft);
    }
}

static void test_rename(void **state)
{
    float file[COUNT];
    tsr_peft *peft;
    fill(file, false);
    write_file(file);
    assert_int_equal(tsr_peft_open(&peft, *state), TSR_OK);
    assert_int_equal(tsr_peft_rename_module(peft, "none", "x"), TSR_OK);
    assert_int_equal(tsr_peft_rename_module(peft, "m", "m.w"), TSR_OK);
    assert_null(tsr_peft_module_find(peft, "m"));
    assert_non_null(tsr_peft_module_find(peft, "m.w"));
    tsr_peft_close(peft);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_order, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_rename, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
