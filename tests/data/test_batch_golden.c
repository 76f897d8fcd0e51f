/*
 * Chats to batches as the peers made them: the traces' jsonl through tiny-llama's tokenizer and
 * template give the tokens, labels and documents of batches.safetensors and the label counts of the
 * traces; the evaluation rows give the token counts of eval_tiny_llama.json.
 * Golden: tests/golden/traces, tests/golden/eval_tiny_llama.json. Tolerance: none.
 */
#include "data/golden_lines.h"

#include "data/batch.h"
#include "io/safetensors.h"

#define MODEL  TSR_SOURCE_DIR "/examples/tiny-llama"
#define TRACES TSR_SOURCE_DIR "/tests/golden/traces/"

static tsr_tokenizer *tokenizer;
static tsr_chat *chat;
static tsr_safetensors *golden;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(tsr_tokenizer_open(&tokenizer, MODEL, false), TSR_OK);
    assert_int_equal(tsr_chat_create(&chat, tokenizer, NULL), TSR_OK);
    return tsr_safetensors_open(&golden, TRACES "batches.safetensors");
}

static int teardown(void **state)
{
    (void)state;
    tsr_safetensors_close(golden);
    tsr_chat_destroy(chat);
    tsr_tokenizer_destroy(tokenizer);
    return 0;
}

static tsr_dataset *load(const char *path, int64_t rows, bool full)
{
    tsr_dataset *data;
    tsr_dataset_options options = {.files = &path,
                                   .file_count = 1,
                                   .chat = chat,
                                   .assistant_only = full ? TSR_LOSS_NO : TSR_LOSS_AUTO,
                                   .max_length = 2048,
                                   .vocab_size = 4096,
                                   .max_rows = rows};
    if (tsr_dataset_load(&data, &options) != TSR_OK)
        fail_msg("%s", tsr_last_error());
    return data;
}

/* Tensor "<set>.step<i>.micro<j>.<name>", I32. */
static int32_t *tensor(int64_t *count, int64_t *columns, const char *set, int64_t step,
                       int64_t micro, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s.step%d.micro%d.%s", set, (int)step, (int)micro, name);
    const tsr_tensor *found = tsr_safetensors_find(golden, full);
    if (!found)
        fail_msg("no tensor %s", full);
    int32_t *values = malloc(found->bytes);
    assert_int_equal(found->bytes, 4 * found->element_count);
    assert_int_equal(tsr_safetensors_read(values, found, 0, found->bytes), TSR_OK);
    *count = (int64_t)found->element_count;
    if (columns)
        *columns = (int64_t)found->shape[found->ndim - 1];
    return values;
}

static void check_document(const tsr_micro_batch *m, int32_t document, const int32_t *ids,
                           const int32_t *labels, int32_t length)
{
    int32_t begin = m->cu_seqlens[document];
    assert_int_equal(m->cu_seqlens[document + 1] - begin, length);
    for (int32_t t = 0; t < length; t++) {
        assert_int_equal(m->ids[begin + t], ids[t]);
        assert_int_equal(m->positions[begin + t], t);
        assert_int_equal(m->targets[begin + t], t + 1 < length ? labels[t + 1] : -100);
    }
}

static void check_micro(const tsr_micro_batch *m, const char *set, int64_t step, int64_t micro,
                        bool packed)
{
    int64_t count, columns, documents;
    int32_t *ids = tensor(&count, &columns, set, step, micro, "input_ids");
    int32_t *labels = tensor(&count, NULL, set, step, micro, "labels");
    int32_t *rows = tensor(&documents, NULL, set, step, micro, packed ? "cu_seqlens" : "lengths");
    documents -= packed;
    assert_int_equal(m->document_count, documents);
    for (int32_t d = 0; d < documents; d++) {
        int64_t at = packed ? rows[d] : d * columns;
        check_document(m, d, ids + at, labels + at, packed ? rows[d + 1] - rows[d] : rows[d]);
    }
    free(ids);
    free(labels);
    free(rows);
}

/* Four epochs of five steps, as the traces ran. */
static void check_set(const char *set, const char *trace, int64_t per_device, int64_t micro_count,
                      bool packed)
{
    char path[512];
    snprintf(path, sizeof path, "tests/golden/traces/%s/trace.json", trace);
    size_t bytes;
    char *text = golden_file(path, &bytes);
    json_t *steps = json_loads(text, 0, NULL);
    free(text);
    assert_non_null(steps);
    snprintf(path, sizeof path, TRACES "%s.jsonl", set);
    tsr_dataset *data = load(path, 0, false);
    tsr_batch_options options = {.dataset = data,
                                 .per_device = per_device,
                                 .total_batch = per_device * micro_count,
                                 .max_steps = 20};
    tsr_batch *batch;
    assert_int_equal(tsr_batch_create(&batch, &options), TSR_OK);
    tsr_micro_batch m;
    assert_int_equal(tsr_micro_batch_create(&m, tsr_batch_run_of(batch)), TSR_OK);
    assert_int_equal(tsr_batch_run_of(batch)->steps_per_epoch, 5);
    for (int64_t step = 0; step < 20; step++) {
        tsr_batch_step_info info;
        const json_t *row = json_array_get(json_object_get(steps, "steps"), (size_t)step);
        assert_int_equal(tsr_batch_step(batch, step, &info), TSR_OK);
        assert_int_equal(info.micro_count, micro_count);
        assert_int_equal(info.label_tokens,
                         json_integer_value(json_object_get(row, "label_tokens")));
        for (int64_t k = 0; k < micro_count; k++) {
            assert_int_equal(tsr_batch_fill(&m, batch, step, k), TSR_OK);
            check_micro(&m, set, step % 5, k, packed);
        }
    }
    tsr_micro_batch_free(&m);
    tsr_batch_destroy(batch);
    tsr_dataset_destroy(data);
    json_decref(steps);
}

static void padded(void **state)
{
    (void)state;
    check_set("padded", "a_lora", 4, 1, false);
}

static void accumulated(void **state)
{
    (void)state;
    check_set("accumulated", "e_lora_accumulated", 2, 4, false);
}

static void packed(void **state)
{
    (void)state;
    check_set("packed", "g_lora_packed", 2, 1, true);
}

static void evaluation_counts(void **state)
{
    (void)state;
    size_t bytes;
    char *text = golden_file("tests/golden/eval_tiny_llama.json", &bytes);
    json_t *expected = json_loads(text, 0, NULL), *results = json_object_get(expected, "results");
    free(text);
    for (int full = 0; full < 2; full++) {
        json_t *result = json_object_get(results, full ? "nf4.full" : "nf4.assistant");
        tsr_dataset *data = load(TSR_SOURCE_DIR "/examples/data/gsm8k_eval.jsonl", 64, full);
        assert_int_equal(tsr_dataset_stats_of(data)->label_tokens,
                         json_integer_value(json_object_get(result, "tokens")));
        assert_int_equal(tsr_dataset_sample_count(data), 64);
        for (int64_t i = 0; i < 64; i++) {
            tsr_sample s = tsr_dataset_sample(data, i);
            json_t *tokens = json_object_get(expected, "row_tokens");
            json_t *labels = json_object_get(result, "row_tokens");
            assert_int_equal(s.token_count, json_integer_value(json_array_get(tokens, (size_t)i)));
            assert_int_equal(s.label_count, json_integer_value(json_array_get(labels, (size_t)i)));
        }
        tsr_dataset_destroy(data);
    }
    json_decref(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padded),
        cmocka_unit_test(accumulated),
        cmocka_unit_test(packed),
        cmocka_unit_test(evaluation_counts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
