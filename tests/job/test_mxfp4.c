/*
 * test_mxfp4.c: trainings of gpt-oss whose experts are MXFP4: the bits of one on the same values in bf16, on any number of
 * ranks, offloaded and recomputed; on an NF4 base of all other linears; and files that are damaged.
 *
 *     test_job_mxfp4                        on the CPU
 *     test_job_mxfp4 BACKEND DTYPE RANKS    on at most RANKS ranks
 */
#include "io/checkpoint.h"
#include "job/fixture.h"
#include "quant/mxfp4_stack.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GOLDEN       TSR_SOURCE_DIR "/tests/golden/families/gpt_oss_mxfp4/checkpoint"
#define MOST_TENSORS 64

/* ---- checkpoints ---- */

typedef struct {
    char name[MOST_TENSORS][128];
    tsr_tensor_source source[MOST_TENSORS];
    uint64_t count;
} tensors;

static void succeed(tsr_status status)
{
    if (status < 0)
        fail_msg("%s", tsr_last_error());
}

static void add(tensors *all, const char *name, tsr_dtype dtype, int ndim, const uint64_t *shape,
                void *data)
{
    uint64_t i = all->count++;
    assert_true(i < MOST_TENSORS);
    snprintf(all->name[i], sizeof all->name[i], "%s", name);
    all->source[i] =
        (tsr_tensor_source){.name = all->name[i], .dtype = dtype, .ndim = ndim, .data = data};
    memcpy(all->source[i].shape, shape, (size_t)ndim * sizeof *shape);
}

/* The values of blocks and scales as gpt-oss has them in bf16: transposed, gate and up in columns by turns. */
static void add_values(tensors *all, const tsr_safetensors *file, const tsr_tensor *blocks)
{
    char name[128];
    uint64_t experts = blocks->shape[0], out = blocks->shape[1], in = blocks->shape[2] * 32;
    uint64_t length = strlen(blocks->name) - strlen("_blocks");
    snprintf(name, sizeof name, "%.*s_scales", (int)length, blocks->name);
    const tsr_tensor *powers = tsr_safetensors_find(file, name);
    assert_non_null(powers);
    uint8_t *codes = malloc(blocks->bytes), *scales = malloc(powers->bytes);
    uint16_t *values = malloc(experts * out * in * 2), *turned = malloc(experts * out * in * 2);
    assert_true(codes && scales && values && turned);
    succeed(tsr_safetensors_read(codes, blocks, 0, blocks->bytes));
    succeed(tsr_safetensors_read(scales, powers, 0, powers->bytes));
    succeed(tsr_mxfp4_dequantize(values, TSR_BF16, codes, scales, 0, experts * out * in));
    for (uint64_t e = 0; e < experts; e++)
        for (uint64_t i = 0; i < in; i++)
            for (uint64_t o = 0; o < out; o++)
                turned[(e * in + i) * out + o] = values[(e * out + o) * in + i];
    snprintf(name, sizeof name, "%.*s", (int)length, blocks->name);
    add(all, name, TSR_BF16, 3, (const uint64_t[]){experts, in, out}, turned);
    free(codes), free(scales), free(values);
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

/* The golden model as `name`: with its values in bf16, or with one byte of a tensor changed. */
static void write_model(const char *name, bool plain, const char *changed, uint64_t at,
                        uint8_t byte)
{
    static tensors all;
    char path[256];
    tsr_safetensors *file;
    json_t *config = json_load_file(GOLDEN "/config.json", 0, NULL);
    assert_non_null(config);
    all.count = 0;
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
    if (plain)
        json_object_del(config, "quantization_config");
    snprintf(path, sizeof path, "%s/config.json", name);
    assert_int_equal(json_dump_file(config, scratch_path(path), 0), 0);
    json_decref(config);
    succeed(tsr_safetensors_open(&file, GOLDEN "/model.safetensors"));
    for (uint64_t i = 0; i < tsr_safetensors_count(file); i++) {
        const tsr_tensor *t = tsr_safetensors_at(file, i);
        if (plain && ends_with(t->name, "_blocks"))
            add_values(&all, file, t);
        if (plain && (ends_with(t->name, "_blocks") || ends_with(t->name, "_scales")))
            continue;
        uint8_t *data = malloc(t->bytes);
        assert_non_null(data);
        succeed(tsr_safetensors_read(data, t, 0, t->bytes));
        if (changed && !strcmp(changed, t->name))
            data[at] = byte;
        add(&all, t->name, t->dtype, t->ndim, t->shape, data);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", name);
    succeed(tsr_safetensors_write(scratch_path(path), all.source, all.count));
    for (uint64_t i = 0; i < all.count; i++)
        free((void *)all.source[i].data);
    tsr_safetensors_close(file);
}

/* ---- runs ---- */

static void run(job_result *out, int ranks, const char *model, const char *keys)
{
    char config[4096];
    snprintf(config, sizeof config,
             "model_name_or_path: %s\ndataset: %s\neval_dataset: %s\nmax_steps: 3\n"
             "learning_rate: 1e-2\ntotal_batch_size: 6\nlora_r: 4\n"
             "lora_target_modules: [q_proj, k_proj, v_proj, o_proj]\n%s",
             model, scratch_path("train.jsonl"), scratch_path("eval.jsonl"), keys);
    job_run(out, ranks, config);
}

static void run_well(job_result *out, int ranks, const char *model, const char *keys)
{
    run(out, ranks, model, keys);
    if (out->status != 0)
        fail_msg("%s on %d ranks: %s", model, ranks, out->message);
    job_assert_plan(out, job_ranks(ranks), keys);
}

static void bits_are_those_of_the_values_in_bf16(void **state)
{
    (void)state;
    static const char plain[] = "load_in_4bit: false\n";
    job_result want, got;
    write_model("plain", true, NULL, 0, 0);
    run_well(&want, 1, scratch_path("plain"), plain);
    for (int ranks = 1; ranks <= 5; ranks += 2) {
        run_well(&got, job_ranks(ranks), GOLDEN, plain);
        job_assert_same(&want, &got, "MXFP4");
        job_result_free(&got);
    }
    run_well(&got, job_ranks(2), GOLDEN,
             "load_in_4bit: false\ngradient_checkpointing: true\noffload: "
             "sharded\nactivation_offloading: true\n");
    job_assert_same(&want, &got, "recomputed, from host memory");
    job_result_free(&got);
    job_result_free(&want);
}

/* Experts stay what they are; the other linears become NF4. */
static void other_linears_may_be_nf4(void **state)
{
    (void)state;
    job_result plain, one, three;
    run_well(&plain, 1, GOLDEN, "load_in_4bit: false\n");
    run_well(&one, 1, GOLDEN, "load_in_4bit: true\n");
    run_well(&three, job_ranks(3), GOLDEN, "load_in_4bit: true\n");
    job_assert_same(&one, &three, "NF4 beside MXFP4");
    assert_true(one.step[0].loss != plain.step[0].loss);
    assert_true(one.memory[0].planned_device < plain.memory[0].planned_device);
    job_result_free(&plain), job_result_free(&one), job_result_free(&three);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    static const char scales[] = "model.layers.1.mlp.experts.gate_up_proj_scales";
    job_result got;
    write_model("damaged", false, scales, (5 * 64 + 63) * 2 + 1, 255);
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        run(&got, job_ranks(ranks), scratch_path("damaged"), "");
        assert_int_equal(got.status, TSR_EDATA);
        if (!strstr(got.message, scales) || !strstr(got.message, "[5, 63, 1] is 255"))
            fail_msg("%s", got.message);
        job_result_free(&got);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_the_values_in_bf16),
        cmocka_unit_test(other_linears_may_be_nf4),
        cmocka_unit_test(damaged_files_are_refused),
    };
    job_choose_backend(argc, argv);
    scratch_make();
    job_write_documents("train.jsonl", 18, 256, 5);
    job_write_documents("eval.jsonl", 5, 256, 6);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove();
    return failed;
}
