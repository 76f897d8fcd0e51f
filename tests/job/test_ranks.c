/*
 * Jobs give the same bits for any number of ranks and any use of memory, and take exactly the
 * memory that was planned.
 *
 *     test_job_ranks                        on the CPU
 *     test_job_ranks BACKEND DTYPE RANKS    on the ranks that a machine has GPUs for (`cards`)
 */
#include "base/clock.h"
#include "job/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* How a run uses ranks and memory; none of it may change a bit. */
typedef struct {
    int ranks;
    const char *config;
} variant;

/* What is trained; the first variant is the one that the others are compared with. */
typedef struct {
    const char *name, *config, *model;
    const variant *variants;
    size_t count;
} subject;

static const char base[] = "max_steps: 3\nlearning_rate: 1e-2\n";

static const char unequal[] = "eval_strategy: steps\neval_steps: 1\n"
                              "lora_r: 4\nlora_dropout: 0.1\ntotal_batch_size: 4\n";

#define ACTIVATIONS "activation_offloading: true\n"
#define STATE       "optimizer_offload: true\n"

/* Every home, every way to recompute, 2 and 3 slots, replicas, more ranks than micro-batches;
 * activations and optimizer state in host memory with each of them. */
static const variant all[] = {
    {1, "gradient_checkpointing: false\noffload: none\n"},
    {1, "gradient_checkpointing: true\noffload: full\nslots: 3\n" STATE},
    {2, "gradient_checkpointing: selective\noffload: sharded\n"},
    {3, "gradient_checkpointing: auto\noffload: auto\nresident_units: 2\n" ACTIVATIONS STATE},
    /* Room for all: the gathered adapter is kept, and gradients are reduced late. */
    {3, "gradient_checkpointing: false\noffload: none\nmemory_budget: 4GiB\n" STATE},
    {4, "gradient_checkpointing: false\noffload: none\nmemory_budget: 4GiB\n"},
    {4, "gradient_checkpointing: false\noffload: full\nshard_group_size: 2\n" ACTIVATIONS},
    {4,
     "gradient_checkpointing: true\noffload: sharded\nshard_group_size: 1\nslots: 3\n" ACTIVATIONS
         STATE},
    {8, "gradient_checkpointing: selective\noffload: none\n" ACTIVATIONS},
    {5, "gradient_checkpointing: sqrt\noffload: sharded\n" STATE},
    {8, "offload: sharded\nresident_units: 3\nshard_group_size: 4\nslots: 3\n"},
};

static const variant few[] = {
    {1, ""},
    {2, "gradient_checkpointing: sqrt\noffload: full\n"},
    {3, "gradient_checkpointing: selective\noffload: sharded\nresident_units: 1\n" ACTIVATIONS},
    {4,
     "shard_group_size: 2\nslots: 3\nresident_units: 7\ngradient_checkpointing: false\n" ACTIVATIONS
         STATE},
    {6, "shard_group_size: 2\n" STATE},
    {6, "shard_group_size: 3\noffload: sharded\n"},
};

/* Without total_batch_size a step grows with the ranks: accumulation over two rounds. */
static const variant accumulated[] = {
    {1, "gradient_accumulation_steps: 4\n"},
    {2, "gradient_accumulation_steps: 2\n"},
    {4, "gradient_accumulation_steps: 1\n"},
};

/* On a machine with few GPUs: the same, none of 7 units resident and all, replicas of one rank. Not `full` on
 * several: threads share the node's copy, which processes each pin (bench/bench_soak.c has it). */
static const variant cards[] = {
    {1, "gradient_checkpointing: false\noffload: none\n"},
    {1, "gradient_checkpointing: selective\noffload: none\n" ACTIVATIONS},
    {1, "gradient_checkpointing: sqrt\noffload: none\n" STATE},
    {1, "gradient_checkpointing: true\noffload: full\nresident_units: 0\n" ACTIVATIONS STATE},
    {1,
     "gradient_checkpointing: false\noffload: sharded\nresident_units: 3\nslots: 3\n" ACTIVATIONS},
    {1, "gradient_checkpointing: selective\noffload: full\nresident_units: 7\n"},
    {2, "gradient_checkpointing: false\noffload: none\nresident_units: 0\n"},
    {2, "gradient_checkpointing: true\noffload: none\nresident_units: 7\n" ACTIVATIONS},
    {2,
     "gradient_checkpointing: selective\noffload: sharded\nresident_units: 0\n" ACTIVATIONS STATE},
    {2, "gradient_checkpointing: true\noffload: sharded\nresident_units: 2\nslots: 3\n" STATE},
    {2, "gradient_checkpointing: false\noffload: none\nshard_group_size: 1\n"},
    {2, "gradient_checkpointing: selective\noffload: sharded\nshard_group_size: 1\n" ACTIVATIONS
            STATE},
    {4, "gradient_checkpointing: true\noffload: none\nshard_group_size: 2\n" STATE},
    {4, "gradient_checkpointing: auto\noffload: sharded\nresident_units: 0\n" ACTIVATIONS},
};
static bool on_cards;

/* Sanitizers are slow: there a subject has the first of the variants and a quarter of the others, the next
 * one another quarter. Several cards take seconds to connect: a third of
 * what two have, half of what four have. */
static size_t stride(void)
{
#ifdef TSR_SANITIZED
    return 4;
#else
    int ranks = job_ranks(JOB_RANKS_MAX);
    return !on_cards || ranks == 1 ? 1 : ranks == 2 ? 3 : 2;
#endif
}

/* Of several cards' variants those that use all of them: the test on fewer has the others. */
static bool fits(const variant *v, bool replaced)
{
    return replaced ? v->ranks == job_ranks(JOB_RANKS_MAX) : v->ranks == job_ranks(v->ranks);
}

static void run_subject(const subject *s, const char *documents, const char *evaluation)
{
    static size_t turn;
    job_result reference = {0};
    bool replaced = on_cards && s->variants != accumulated;
    size_t count = replaced ? COUNT(cards) : s->count, fitting = turn++;
    for (size_t i = 0; i < count; i++) {
        const variant *v = replaced ? &cards[i] : &s->variants[i];
        char config[4096], what[512];
        job_result result;
        if (i > 0 && (!fits(v, replaced) || ++fitting % stride()))
            continue;
        int length = snprintf(config, sizeof config, "%smodel_name_or_path: %s\ndataset: %s\n%s%s",
                              base, s->model ? s->model : JOB_MODEL, scratch_path(documents),
                              s->config, v->config);
        if (evaluation)
            snprintf(config + length, sizeof config - (size_t)length, "eval_dataset: %s\n",
                     scratch_path(evaluation));
        snprintf(what, sizeof what, "%s on %d ranks with {%s}", s->name, v->ranks, v->config);
        double begin = tsr_now();
        job_run(&result, v->ranks, config);
        if (on_cards) { /* A test that is stopped has said which job it was at, and how long others took. */
            printf("%6.2f s: %s\n", tsr_now() - begin, what);
            fflush(stdout);
        }
        if (result.status != 0)
            fail_msg("%s: %s", what, result.message);
        job_assert_plan(&result, v->ranks, what);
        if (i == 0) {
            /* It learns something: a comparison of nothing would pass too. */
            assert_int_equal(result.step_count, 3);
            assert_true(result.step[0].grad_norm > 0);
            assert_true(result.step[0].loss != result.step[1].loss);
            reference = result;
            continue;
        }
        job_assert_same(&reference, &result, what);
        job_result_free(&result);
    }
    job_result_free(&reference);
}

static void test_lora(void **state)
{
    (void)state;
    run_subject(&(subject){"LoRA", unequal, NULL, all, COUNT(all)}, "train.jsonl", "eval.jsonl");
}

/* Under ThreadSanitizer, which is slow, not of every kind of rows and base: the threads are the same. */
#ifdef __SANITIZE_THREAD__
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

/* Every rank holds the same rows out. */
static void test_held_out(void **state)
{
    (void)state;
    char config[512];
    snprintf(config, sizeof config, "%svalidation_split: 3\ndata_seed: 5\n", unequal);
    run_subject(&(subject){"validation_split", config, JOB_SHALLOW, few, COUNT(few)}, "train.jsonl",
                NULL);
}

static void test_dora_with_fresh_magnitudes(void **state)
{
    (void)state;
    char config[512];
    snprintf(config, sizeof config, "%suse_dora: true\n", unequal);
    run_subject(&(subject){"DoRA", config, NULL, all, COUNT(all)}, "train.jsonl", "eval.jsonl");
}

/* Magnitudes, A and B of an adapter; several rows a micro-batch, packed. */
static void test_dora_packed(void **state)
{
    (void)state;
    char config[512];
    snprintf(config, sizeof config,
             "init_adapter: " JOB_TRACES "/init/dora_r8\npacking: true\nmax_length: %d\n"
             "per_device_train_batch_size: 2\ntotal_batch_size: 4\n",
             job_tokens(40));
    run_subject(&(subject){"packed DoRA", config, NULL, few, COUNT(few)}, "train.jsonl",
                "eval.jsonl");
}

/* Magnitudes are added to an adapter whose B is 0. */
static void test_dora_over_lora(void **state)
{
    (void)state;
    static const char config[] = "init_adapter: " JOB_TRACES "/init/lora_r8\n"
                                 "use_dora: true\ntotal_batch_size: 3\n";
    run_subject(&(subject){"DoRA over LoRA", config, NULL, few, COUNT(few)}, "train.jsonl", NULL);
}

static void test_bf16_base(void **state)
{
    (void)state;
    static const char config[] =
        "load_in_4bit: false\nuse_rslora: true\ntotal_batch_size: 6\nlora_dropout: 0.2\n"
        "weight_decay: 0.1\nmax_grad_norm: 0.1\nlr_scheduler_type: cosine\n"
        "rank_pattern: {q_proj: 3, layers.1.mlp.up_proj: 7}\nalpha_pattern: {v_proj: 5}\n"
        "lora_target_modules: [q_proj, v_proj, up_proj]\nlayers_to_transform: [1, 4]\n";
    run_subject(&(subject){"bf16 base", config, NULL, few, COUNT(few)}, "train.jsonl", NULL);
}

static void test_plain_nf4(void **state)
{
    (void)state;
    static const char config[] = "use_bnb_nested_quant: false\nlora_r: 2\nuse_dora: true\n"
                                 "lora_target_modules: '.*\\.(k_proj|down_proj)'\n"
                                 "total_batch_size: 4\nper_device_train_batch_size: 2\n"
                                 "balance: tokens\n";
    run_subject(&(subject){"NF4 without nested scales", config, JOB_SHALLOW, few, COUNT(few)},
                "train.jsonl", "eval.jsonl");
}

#define PREQUANTIZED TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama"

static void test_prequantized(void **state)
{
    (void)state;
    static const char config[] = "lora_r: 32\ntotal_batch_size: 4\n";
    run_subject(&(subject){"prequantized base", config, PREQUANTIZED, few, COUNT(few)},
                "small.jsonl", NULL);
}

/* The linears that a 4-bit checkpoint left as they were (llm_int8_skip_modules). */
static const struct {
    const char *name;
    uint64_t rows, columns;
} left[] = {{"model.layers.0.self_attn.q_proj.weight", 256, 256},
            {"model.layers.1.mlp.up_proj.weight", 704, 256}};

static bool is_left(const char *name)
{
    for (size_t i = 0; i < COUNT(left); i++)
        if (!strncmp(name, left[i].name, strlen(left[i].name)))
            return true;
    return false;
}

static void *copy_of(const tsr_tensor *tensor)
{
    void *data = malloc(tensor->bytes);
    assert_int_equal(tsr_safetensors_read(data, tensor, 0, tensor->bytes), TSR_OK);
    return data;
}

static void *any_bf16(uint64_t count)
{
    uint16_t *data = malloc(count * sizeof *data);
    for (uint64_t i = 0; i < count; i++)
        data[i] = tsr_f32_to_bf16((float)(i * 2654435761u >> 7 & 1023) / 16384 - 1.0f / 32);
    return data;
}

/* The checkpoint in 4 bits, but for the linears that are left, in the scratch directory. */
static void write_mixed(const char *name)
{
    char path[400], command[1000];
    tsr_checkpoint *all_packed;
    tsr_tensor_source source[128];
    uint64_t count = 0;
    snprintf(command, sizeof command, "mkdir '%s' && cp '%s/config.json' '%s'", scratch_path(name),
             PREQUANTIZED, scratch_path(name));
    assert_int_equal(system(command), 0);
    assert_int_equal(tsr_checkpoint_open(&all_packed, PREQUANTIZED), TSR_OK);
    assert_true(tsr_checkpoint_count(all_packed) <= COUNT(source));
    for (uint64_t i = 0; i < tsr_checkpoint_count(all_packed); i++) {
        const tsr_tensor *t = tsr_checkpoint_at(all_packed, i);
        if (is_left(t->name))
            continue;
        source[count] = (tsr_tensor_source){
            .name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = copy_of(t)};
        memcpy(source[count++].shape, t->shape, sizeof t->shape);
    }
    for (size_t i = 0; i < COUNT(left); i++)
        source[count++] = (tsr_tensor_source){.name = left[i].name,
                                              .dtype = TSR_BF16,
                                              .ndim = 2,
                                              .shape = {left[i].rows, left[i].columns},
                                              .data = any_bf16(left[i].rows * left[i].columns)};
    snprintf(path, sizeof path, "%s/model.safetensors", scratch_path(name));
    assert_int_equal(tsr_safetensors_write(path, source, count), TSR_OK);
    while (count)
        free((void *)source[--count].data);
    tsr_checkpoint_close(all_packed);
}

/* Some linears of a base in NF4, others in bf16: which are merged with their adapters, decoded and
 * sharded in which dtype is another question for each. */
static void test_mixed_base(void **state)
{
    (void)state;
    static const char dora[] = "use_dora: true\nlora_r: 4\ntotal_batch_size: 4\n";
    static const char dropout[] = "lora_dropout: 0.1\nlora_r: 32\ntotal_batch_size: 4\n";
    char model[400];
    snprintf(model, sizeof model, "%s", scratch_path("mixed"));
    run_subject(&(subject){"DoRA, mixed base", dora, model, few, COUNT(few)}, "small.jsonl", NULL);
    run_subject(&(subject){"mixed base", dropout, model, few, COUNT(few)}, "small.jsonl", NULL);
}

static void test_mixed_base_in_e4m3(void **state)
{
    (void)state;
    char config[1024];
    job_result result;
    if (!job_has_fp8())
        skip();
    snprintf(config, sizeof config, "%smodel_name_or_path: %s\ndataset: %s\nbase_compute: fp8\n",
             base, scratch_path("mixed"), scratch_path("small.jsonl"));
    job_run(&result, 1, config);
    assert_true(result.status < 0);
    assert_non_null(strstr(result.message, "base_compute: fp8 is made from a base in NF4"));
    assert_non_null(strstr(result.message, "layers.0.self_attn.q_proj"));
    assert_non_null(strstr(result.message, "llm_int8_skip_modules"));
    job_result_free(&result);
}

/* The base's matmuls in e4m3, with an input that is quantized once for q, k and v, and once more where
 * it is dropped. */
static void test_fp8(void **state)
{
    (void)state;
    static const char lora[] = "base_compute: fp8\nlora_r: 4\ntotal_batch_size: 4\n";
    static const char dora[] =
        "base_compute: fp8\nuse_dora: true\nlora_r: 8\nlora_dropout: 0.1\ntotal_batch_size: 4\n";
    if (!job_has_fp8())
        skip();
    run_subject(&(subject){"LoRA, fp8 base", lora, JOB_SHALLOW, few, COUNT(few)}, "train.jsonl",
                "eval.jsonl");
    run_subject(&(subject){"DoRA with dropout, fp8 base", dora, JOB_SHALLOW, few, COUNT(few)},
                "train.jsonl", NULL);
}

/* Conversations through the tokenizer, cut so that it stays short. */
static void test_messages(void **state)
{
    (void)state;
    static const char config[] = "max_length: 48\ntruncation: right\nlora_r: 32\nuse_dora: true\n"
                                 "assistant_only_loss: false\ntotal_batch_size: 4\n";
    run_subject(&(subject){"conversations", config, JOB_SHALLOW, few, COUNT(few)}, "chat.jsonl",
                NULL);
}

static void test_accumulation(void **state)
{
    (void)state;
    run_subject(&(subject){"accumulation", "num_train_epochs: 2\nlora_r: 4\n", JOB_SHALLOW,
                           accumulated, COUNT(accumulated)},
                "train.jsonl", NULL);
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("train.jsonl", 10, 4096, 1);
    job_write_documents("eval.jsonl", 5, 4096, 2);
    job_write_documents("small.jsonl", 9, 384, 3);
    write_mixed("mixed");
    FILE *in = fopen(JOB_TRACES "/accumulated.jsonl", "r");
    FILE *out = fopen(scratch_path("chat.jsonl"), "w");
    char line[8192];
    for (int i = 0; in && out && i < 9 && fgets(line, sizeof line, in); i++)
        fputs(line, out);
    if (!in || !out || fclose(out) != 0)
        return -1;
    fclose(in);
    return 0;
}

int main(int argc, char **argv)
{
    job_choose_backend(argc, argv);
    on_cards = argc > 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lora),
        cmocka_unit_test(test_dora_with_fresh_magnitudes),
        cmocka_unit_test(test_dora_packed),
        cmocka_unit_test(test_accumulation),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_dora_over_lora),
        cmocka_unit_test(test_bf16_base),
        cmocka_unit_test(test_plain_nf4),
        cmocka_unit_test(test_prequantized),
        cmocka_unit_test(test_mixed_base),
        cmocka_unit_test(test_mixed_base_in_e4m3),
#endif
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
