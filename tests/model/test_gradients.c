/*
 * Losses, hidden states and adapter gradients of small random models of every kind against a model
 * in double precision: directional derivatives along random directions and single elements, by
 * central differences.
 * Tolerances: losses and hidden states 5e-6 of the largest; a directional derivative 5e-6 of the
 * gradient's norm, an element 5e-6 of the tensor's largest.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log.h"
#include "model/fixture.h"
#include "support/golden.h"
#include "support/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORWARD_TOLERANCE  5e-6
#define GRADIENT_TOLERANCE 5e-6
#define STEP               1e-4

/* The model in double is slow under a sanitizer, and it is not what a sanitizer is for. */
#ifdef TSR_SANITIZED
enum { ALL = 127, DIRECTIONS = 1, ELEMENTS = 0 };
#else
enum { ALL = 127, DIRECTIONS = 2, ELEMENTS = 2 };
#endif

/* The derivative of the mean loss along `direction`, in double. */
static double slope(const fixture *f, model_tensor *tensor, const double *direction, uint64_t count)
{
    reference_batch batch = fixture_batch(f, true);
    double side[2];
    double *saved = malloc(count * sizeof *saved);
    memcpy(saved, tensor->data, count * sizeof *saved);
    for (int i = 0; i < 2; i++) {
        for (uint64_t k = 0; k < count; k++)
            tensor->data[k] = saved[k] + (i ? -STEP : STEP) * direction[k];
        side[i] = reference_loss(&f->model, &batch, NULL, NULL);
    }
    memcpy(tensor->data, saved, count * sizeof *saved);
    free(saved);
    return (side[0] - side[1]) / (2 * STEP) / f->labels;
}

typedef struct {
    double along, element; /* worst, relative */
    int tensors;
} gradient_check;

static void check_tensor(gradient_check *worst, const fixture *f, model_tensor *tensor,
                         const double *gradient, uint64_t count)
{
    double norm = 0, largest = 0;
    double *direction = malloc(count * sizeof *direction);
    assert_int_equal(count, (tensor->rows ? tensor->rows : 1) * tensor->columns);
    for (uint64_t i = 0; i < count; i++) {
        norm += gradient[i] * gradient[i];
        largest = fmax(largest, fabs(gradient[i]));
    }
    norm = sqrt(norm);
    assert_true(norm > 0);
    for (int k = 0; k < DIRECTIONS; k++) {
        double length = 0, along = 0;
        for (uint64_t i = 0; i < count; i++) {
            direction[i] = model_uniform((uint64_t)k + 77, i);
            length += direction[i] * direction[i];
        }
        for (uint64_t i = 0; i < count; i++) {
            direction[i] /= sqrt(length);
            along += direction[i] * gradient[i];
        }
        worst->along = worse(fabs(along - slope(f, tensor, direction, count)) / norm, worst->along);
    }
    for (int k = 0; k < ELEMENTS; k++) {
        uint64_t i = k ? count - 1 : count / 3;
        memset(direction, 0, count * sizeof *direction);
        direction[i] = 1;
        worst->element =
            worse(fabs(gradient[i] - slope(f, tensor, direction, count)) / largest, worst->element);
    }
    worst->tensors++;
    free(direction);
}

static double largest_difference(const double *a, const double *b, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = worse(fabs(a[i] - b[i]), most);
    return most;
}

static void check_forward(const fixture *f, const fixture_result *got)
{
    reference_batch batch = fixture_batch(f, false);
    uint64_t d = (uint64_t)f->model.spec.d;
    double nll[FIXTURE_TOKENS], difference = 0, largest = 0, most_nll = 0;
    double *hidden = malloc((size_t)f->labels * d * sizeof *hidden);
    double loss = reference_loss(&f->model, &batch, nll, hidden);
    assert_int_equal(got->evaluated.rows.count, f->labels);
    assert_int_equal(got->evaluated.evaluation.label_tokens, f->labels);
    for (uint64_t i = 0; i < (uint64_t)f->labels * d; i++) {
        difference = worse(fabs((double)got->evaluated.rows.rows[i] - hidden[i]), difference);
        largest = fmax(largest, fabs(hidden[i]));
    }
    for (int i = 0; i < f->labels; i++)
        most_nll = fmax(most_nll, fabs(nll[i]));
    judge("hidden / largest", difference / largest, FORWARD_TOLERANCE);
    judge("nll / largest", largest_difference(nll, got->evaluated.rows.nll, f->labels) / most_nll,
          FORWARD_TOLERANCE);
    judge("loss", fabs(loss / f->labels - got->evaluated.evaluation.loss), FORWARD_TOLERANCE);
    batch = fixture_batch(f, true);
    reference_loss(&f->model, &batch, nll, NULL);
    assert_int_equal(got->labels, f->labels);
    judge("nll in training / largest", largest_difference(nll, got->nll, f->labels) / most_nll,
          FORWARD_TOLERANCE);
    free(hidden);
}

static void check_model(const char *name, const model_spec *spec, double dropout, int epoch)
{
    fixture f;
    fixture_result got = {.step = epoch};
    gradient_check worst = {0};
    fixture_make(&f, name, spec, dropout);
    f.epoch = epoch;
    job_spec job = fixture_job(&f, "out");
    job_run(&job, fixture_compute, &got);
    check_forward(&f, &got);
    for (int layer = 0; layer < spec->layers; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++) {
            const model_linear *linear = &f.model.linear[layer][kind];
            model_tensor *const tensor[3] = {linear->a, linear->b, linear->m};
            for (int part = 0; part < 3; part++) {
                assert_true(!tensor[part] == !got.gradient[layer][kind][part]);
                if (tensor[part])
                    check_tensor(&worst, &f, tensor[part], got.gradient[layer][kind][part],
                                 got.count[layer][kind][part]);
            }
        }
    print_message("    %d tensors\n", worst.tensors);
    judge("derivative / norm", worst.along, GRADIENT_TOLERANCE);
    judge("element / largest", worst.element, GRADIENT_TOLERANCE);
    fixture_result_free(&got);
    fixture_free(&f);
}

static void test_llama_lora(void **state)
{
    (void)state;
    model_spec spec = {.type = "llama",
                       .d = 64,
                       .f = 100,
                       .layers = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .vocab = 300,
                       .theta = 10000,
                       .eps = 1e-5,
                       .dtype = TSR_BF16,
                       .r = 4,
                       .alpha = 8,
                       .targets = ALL,
                       .seed = 1};
    check_model("llama", &spec, 0, 0);
}

static void test_qwen2_dora(void **state)
{
    (void)state;
    model_spec spec = {.type = "qwen2",
                       .d = 64,
                       .f = 96,
                       .layers = 2,
                       .heads = 4,
                       .kv_heads = 1,
                       .head_dim = 16,
                       .vocab = 300,
                       .tied = true,
                       .theta = 1e6,
                       .eps = 1e-6,
                       .dtype = TSR_BF16,
                       .r = 4,
                       .alpha = 6,
                       .dora = true,
                       .targets = ALL,
                       .seed = 2};
    check_model("qwen2", &spec, 0, 0);
}

static void test_qwen3_dora_dropout(void **state)
{
    (void)state;
    model_spec spec = {.type = "qwen3",
                       .d = 64,
                       .f = 80,
                       .layers = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 24,
                       .vocab = 300,
                       .theta = 1e6,
                       .eps = 1e-6,
                       .dtype = TSR_F16,
                       .r = 3,
                       .alpha = 6,
                       .dora = true,
                       .targets = ALL,
                       .seed = 3};
    check_model("qwen3", &spec, 0.25, 0);
}

static void test_mistral_window_lora_dropout(void **state)
{
    (void)state;
    model_spec spec = {.type = "mistral",
                       .d = 64,
                       .f = 100,
                       .layers = 2,
                       .heads = 2,
                       .kv_heads = 2,
                       .head_dim = 32,
                       .vocab = 300,
                       .window = 4,
                       .theta = 10000,
                       .eps = 1e-5,
                       .dtype = TSR_F32,
                       .r = 5,
                       .alpha = 5,
                       .targets = ALL,
                       .seed = 4};
    check_model("mistral", &spec, 0.3, 1);
}

/* Biases of all of attention's linears are left unscaled by g. */
static void test_biases_dora(void **state)
{
    (void)state;
    model_spec spec = {.type = "llama",
                       .d = 48,
                       .f = 64,
                       .layers = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 12,
                       .vocab = 200,
                       .attention_bias = true,
                       .theta = 10000,
                       .eps = 1e-5,
                       .dtype = TSR_BF16,
                       .r = 12,
                       .alpha = 8,
                       .rslora = true,
                       .dora = true,
                       .targets = ALL,
                       .seed = 5};
    check_model("biases", &spec, 0, 0);
    spec.seed = 6;
    check_model("biases-dropout", &spec, 0.2, 0);
}

/* The lowest layers do not train; some linears have no adapter; llama3 frequencies. */
static void test_upper_layers_llama3(void **state)
{
    (void)state;
    model_spec spec = {.type = "llama",
                       .d = 64,
                       .f = 64,
                       .layers = 4,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .vocab = 300,
                       .rope = ROPE_LLAMA3,
                       .theta = 5e5,
                       .eps = 1e-5,
                       .dtype = TSR_BF16,
                       .r = 4,
                       .alpha = 8,
                       .dora = true,
                       .targets = 1u << LLAMA_Q | 1u << LLAMA_V | 1u << LLAMA_DOWN,
                       .first_layer = 2,
                       .seed = 7};
    check_model("llama3", &spec, 0, 0);
}

/* Two chunks of the head, the second smaller; linear frequencies. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    model_spec spec = {.type = "llama",
                       .d = 16,
                       .f = 24,
                       .layers = 2,
                       .heads = 2,
                       .kv_heads = 1,
                       .head_dim = 8,
                       .vocab = 20000,
                       .rope = ROPE_LINEAR,
                       .theta = 10000,
                       .eps = 1e-5,
                       .dtype = TSR_BF16,
                       .r = 2,
                       .alpha = 4,
                       .targets = 1u << LLAMA_O | 1u << LLAMA_GATE,
                       .first_layer = 1,
                       .seed = 8};
    check_model("vocabulary", &spec, 0, 0);
}

/* Packed rows hold the same samples in other places: the gradients of the epoch's one step are the
 * same but for rounding, dropout included, and its loss too. */
static void test_packing(void **state)
{
    (void)state;
    model_spec spec = {.type = "llama",
                       .d = 64,
                       .f = 64,
                       .layers = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .vocab = 300,
                       .theta = 10000,
                       .eps = 1e-5,
                       .dtype = TSR_BF16,
                       .r = 4,
                       .alpha = 8,
                       .dora = true,
                       .targets = ALL,
                       .seed = 9};
    fixture f;
    fixture_result alone = {0}, packed = {0};
    double loss[2] = {0}, worst = 0;
    fixture_make(&f, "packing", &spec, 0.25);
    job_spec job = fixture_job(&f, "alone");
    job_run(&job, fixture_compute, &alone);
    job = fixture_job(&f, "packed");
    job_set(&job, "packing=true");
    job_set(&job, "max_length=24");
    job_run(&job, fixture_compute, &packed);
    assert_true(alone.labels == f.labels && packed.labels == f.labels);
    for (int i = 0; i < f.labels; i++) {
        loss[0] += alone.nll[i];
        loss[1] += packed.nll[i];
    }
    assert_true(memcmp(alone.nll, packed.nll, (size_t)f.labels * sizeof *alone.nll) != 0);
    judge("loss / it", fabs(loss[1] / loss[0] - 1), 1e-6);
    for (int layer = 0; layer < spec.layers; layer++)
        for (int kind = 0; kind < LLAMA_LINEARS; kind++)
            for (int part = 0; part < 3; part++) {
                const double *a = alone.gradient[layer][kind][part];
                const double *b = packed.gradient[layer][kind][part];
                uint64_t count = alone.count[layer][kind][part];
                double largest = 0;
                for (uint64_t i = 0; i < count; i++)
                    largest = fmax(largest, fabs(a[i]));
                worst = worse(largest_difference(a, b, (int64_t)count) / largest, worst);
            }
    judge("gradient / largest", worst, GRADIENT_TOLERANCE);
    fixture_result_free(&alone);
    fixture_result_free(&packed);
    fixture_free(&f);
}

static void check_head(const char *directory, const char *name, uint64_t parameters)
{
    tsr_model_config config;
    tsr_checkpoint *checkpoint;
    tsr_layout layout;
    const tsr_layout_options options = {.compute = TSR_F32};
    assert_int_equal(tsr_model_config_load(&config, directory), TSR_OK);
    assert_true(config.tie_word_embeddings);
    assert_int_equal(tsr_checkpoint_open(&checkpoint, directory), TSR_OK);
    if (tsr_layout_make(&layout, &config, checkpoint, NULL, &options) < 0)
        fail_msg("%s", tsr_last_error());
    assert_string_equal(layout.head->name, name);
    assert_string_equal(layout.unit[layout.layer_count].frozen[0].name, name);
    assert_int_equal(layout.parameter_count, parameters);
    tsr_layout_free(&layout);
    tsr_checkpoint_close(checkpoint);
}

/* A head that is stored counts, whatever config.json says of ties, unless it is the embedding. */
static void test_tied_with_a_head(void **state)
{
    (void)state;
    model_spec spec = {.type = "llama",
                       .d = 64,
                       .f = 96,
                       .layers = 1,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .vocab = 3000,
                       .theta = 10000,
                       .eps = 1e-5,
                       .dtype = TSR_BF16,
                       .r = 4,
                       .alpha = 8,
                       .targets = ALL,
                       .seed = 10};
    const uint64_t table = 3000 * 64, layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64;
    fixture f;
    fixture_result untied = {0}, tied = {0};
    char other[320];
    fixture_make(&f, "untied", &spec, 0);
    job_spec job = fixture_job(&f, "untied-out");
    job_run(&job, fixture_compute, &untied);
    f.model.spec.tied = true;
    snprintf(other, sizeof other, "%s-tied", f.checkpoint);
    model_write(&f.model, other, TSR_BF16);
    check_head(other, "lm_head.weight", 2 * table + layer + 64);
    job = fixture_job(&f, "tied-out");
    job_set(&job, "model_name_or_path=%s", other);
    job_run(&job, fixture_compute, &tied);
    assert_memory_equal(tied.nll, untied.nll, (size_t)f.labels * sizeof *tied.nll);
    for (int kind = 0; kind < LLAMA_LINEARS; kind++)
        assert_memory_equal(tied.gradient[0][kind][0], untied.gradient[0][kind][0],
                            untied.count[0][kind][0] * sizeof(double));
    memcpy(f.model.head->data, f.model.embedding->data, table * sizeof(double));
    snprintf(other, sizeof other, "%s-same", f.checkpoint);
    model_write(&f.model, other, TSR_BF16);
    check_head(other, "model.embed_tokens.weight", table + layer + 64);
    f.model.head->data[table - 1] += 1; /* the last value alone */
    snprintf(other, sizeof other, "%s-last", f.checkpoint);
    model_write(&f.model, other, TSR_F32);
    check_head(other, "lm_head.weight", 2 * table + layer + 64);
    fixture_result_free(&untied);
    fixture_result_free(&tied);
    fixture_free(&f);
}

static char warnings[1024];

static void add_warning(void *user, tsr_log_level level, const char *line)
{
    (void)user;
    (void)level;
    strncat(warnings, line, sizeof warnings - strlen(warnings) - 1);
}

static void make_layout(const char *directory)
{
    tsr_model_config config;
    tsr_checkpoint *checkpoint;
    tsr_layout layout;
    const tsr_layout_options options = {.load_in_4bit = true, .compute = TSR_F32};
    warnings[0] = 0;
    tsr_log_set(add_warning, NULL, TSR_LOG_WARNING);
    assert_int_equal(tsr_model_config_load(&config, directory), TSR_OK);
    assert_int_equal(tsr_checkpoint_open(&checkpoint, directory), TSR_OK);
    if (tsr_layout_make(&layout, &config, checkpoint, NULL, &options) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_layout_free(&layout);
    tsr_checkpoint_close(checkpoint);
    tsr_log_set(NULL, NULL, TSR_LOG_WARNING);
}

/* What of a checkpoint config.json leaves out is said: biases, a layer. */
static void test_unused_tensors(void **state)
{
    (void)state;
    model_spec spec = {.type = "llama",
                       .d = 64,
                       .f = 96,
                       .layers = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .vocab = 300,
                       .attention_bias = true,
                       .theta = 10000,
                       .eps = 1e-5,
                       .dtype = TSR_BF16,
                       .seed = 11};
    random_model model;
    model_make(&model, &spec);
    model_write(&model, scratch_path("all"), TSR_BF16);
    make_layout(scratch_path("all"));
    assert_string_equal(warnings, "");
    model.spec.attention_bias = false;
    model_write(&model, scratch_path("no-biases"), TSR_BF16);
    make_layout(scratch_path("no-biases"));
    assert_non_null(strstr(warnings, ": 8 tensors are not used"));
    assert_non_null(strstr(warnings, ": model.layers.0.self_attn.k_proj.bias, "
                                     "model.layers.0.self_attn.o_proj.bias, "
                                     "model.layers.0.self_attn.q_proj.bias, ..."));
    model.spec.attention_bias = true;
    model.spec.layers = 1;
    model_write(&model, scratch_path("no-layer"), TSR_BF16);
    model.spec.layers = 2;
    make_layout(scratch_path("no-layer"));
    assert_non_null(strstr(warnings, ": 13 tensors are not used"));
    assert_non_null(strstr(warnings, ": model.layers.1.input_layernorm.weight, "));
    model_free(&model);
    make_layout(TSR_SOURCE_DIR "/tests/golden/prequantized-tiny-llama"); /* its states are used */
    assert_string_equal(warnings, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_lora),
        cmocka_unit_test(test_qwen2_dora),
        cmocka_unit_test(test_qwen3_dora_dropout),
        cmocka_unit_test(test_mistral_window_lora_dropout),
        cmocka_unit_test(test_biases_dora),
        cmocka_unit_test(test_upper_layers_llama3),
        cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_tied_with_a_head),
        cmocka_unit_test(test_unused_tensors),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
