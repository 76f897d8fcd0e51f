/*
 * Plans of published models with experts, from their config.json alone: how many parameters they have and a token uses
 * (as their model cards round it), what an adapter trains, and the screen.
 */
#include "tessera.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#define SHAPES TSR_SOURCE_DIR "/examples/shapes/"

typedef struct {
    const char *name; /* in examples/shapes */
    uint64_t layers, hidden, width, experts, chosen, q, kv, head_norms, vocabulary;
    const char *line; /* of the screen, as one */
} published;

static const published models[] = {
    {"qwen3-30b-a3b", 48, 2048, 768, 128, 8, 4096, 512, 2 * 128, 151936,
     "experts  128 a layer, 8 of a token: 3.353 of 30.53 billion parameters are active"},
    {"mixtral-8x7b", 32, 4096, 14336, 8, 2, 4096, 1024, 0, 32000,
     "experts  8 a layer, 2 of a token: 12.88 of 46.7 billion parameters are active"},
};

#define COUNT (sizeof models / sizeof *models)

/* With so many experts a layer. */
static uint64_t parameters(const published *m, uint64_t experts)
{
    uint64_t attention = m->hidden * (2 * m->q + 2 * m->kv) + m->head_norms;
    uint64_t layer =
        attention + 2 * m->hidden + m->experts * m->hidden + experts * 3 * m->hidden * m->width;
    return m->layers * layer + 2 * m->vocabulary * m->hidden + m->hidden;
}

static char *planned(const char *name, const char *more, int form)
{
    char config[2048], *text = NULL;
    snprintf(config, sizeof config,
             "model_name_or_path: " SHAPES "%s\nbackend: cpu\nmax_length: 2048\n%s", name, more);
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = config,
                               .purpose = TSR_JOB_PLAN,
                               .plan_ranks = 1,
                               .threads = 1};
    tsr_job *job;
    if (tsr_job_create(&job, &options) < 0 || tsr_job_print_plan(job, form, &text) < 0)
        fail_msg("%s", tsr_last_error());
    tsr_job_destroy(job);
    return text;
}

static json_t *plan(const char *name, const char *more)
{
    json_error_t error;
    char *text = planned(name, more, TSR_PLAN_JSON);
    json_t *out = json_loads(text, 0, &error);
    if (!out)
        fail_msg("%s in: %s", error.text, text);
    free(text);
    return out;
}

static uint64_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value))
        fail_msg("no %s", key);
    return (uint64_t)json_integer_value(value);
}

static void test_parameters(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        const published *m = &models[i];
        json_t *p = plan(m->name, "memory_budget: 200GiB\nlora_target_modules: [q_proj, v_proj]\n");
        assert_int_equal(number(p, "parameters"), parameters(m, m->experts));
        assert_int_equal(number(p, "active_parameters"), parameters(m, m->chosen));
        assert_int_equal(number(p, "experts"), m->experts);
        assert_int_equal(number(p, "experts_of_a_token"), m->chosen);
        assert_int_equal(number(p, "trainable_parameters"),
                         m->layers * 16 * (2 * m->hidden + m->q + m->kv));
        json_decref(p);
    }
    /* As the model cards say: 30.5 billion, of which 3.3 billion, and 46.7, of which 12.9. */
    assert_int_equal(parameters(&models[0], 128) / 100000000, 305);
    assert_int_equal(parameters(&models[0], 8) / 100000000, 33);
    assert_int_equal(parameters(&models[1], 8) / 100000000, 467);
    assert_int_equal((parameters(&models[1], 2) + 50000000) / 100000000, 129);
}

/* Billions, as the plan prints them. gpt-oss's card counts 3.6 active ones, without the embedding's 0.58. */
static void test_others(void **state)
{
    static const struct {
        const char *name, *line;
    } others[] = {
        {"gpt-oss-20b",
         "experts  32 a layer, 4 of a token: 4.187 of 20.91 billion parameters are active\n"},
        {"glm-4.5-air",
         "experts  128 a layer, 8 of a token: 13.42 of 106.9 billion parameters are active\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char *text =
            planned(others[i].name, "memory_budget: 400GiB\nlora_target_modules: [o_proj]\n",
                    TSR_PLAN_SCREEN);
        if (!strstr(text, others[i].line))
            fail_msg("no '%s' in: %s", others[i].line, text);
        free(text);
    }
}

/* Of NF4 with nested scales: half a byte, 1/64 byte of scales, and what experts have each. */
static void test_base_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        const published *m = &models[i];
        json_t *p = plan(m->name, "memory_budget: 200GiB\nlora_target_modules: [q_proj, v_proj]\n");
        uint64_t quantized =
            m->hidden * (2 * m->q + 2 * m->kv) + m->experts * 3 * m->hidden * m->width;
        double expected =
            (double)quantized * (0.5 + 1 / 64.0) + 2.0 * (double)(m->experts * m->hidden);
        double found =
            (double)number(json_array_get(json_object_get(p, "units"), 1), "frozen_bytes");
        assert_true(found > expected && found < 1.001 * expected);
        json_decref(p);
    }
}

static void test_trainable(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        const published *m = &models[i];
        json_t *p = plan(m->name, "memory_budget: 400GiB\nlora_r: 4\n"); /* all-linear */
        /* gate and up share one A */
        uint64_t expert = m->hidden + 2 * m->width + m->width + m->hidden;
        uint64_t attention = 4 * m->hidden + 2 * m->q + 2 * m->kv;
        assert_int_equal(number(p, "trainable_parameters"),
                         m->layers * 4 * (m->experts * expert + attention));
        json_decref(p);
    }
}

/* At most 24 lines of 80 columns. */
static void test_screen(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT; i++) {
        char flat[8192];
        size_t used = 0;
        int lines = 0, column = 0;
        char *text = planned(models[i].name, "memory_budget: 200GiB\n", TSR_PLAN_SCREEN);
        for (const char *t = text; *t && used + 1 < sizeof flat; t++) { /* as one line */
            bool broken = *t == '\n' && !strncmp(t + 1, "         ", 9);
            lines += *t == '\n';
            column = *t == '\n' ? 0 : column + 1;
            assert_in_range(column, 0, 80);
            flat[used++] = broken ? ' ' : *t;
            t += broken ? 9 : 0;
            column += broken ? 9 : 0;
        }
        flat[used] = 0;
        assert_in_range(lines, 10, 24);
        if (!strstr(flat, models[i].line))
            fail_msg("no '%s' in: %s", models[i].line, flat);
        free(text);
    }
}

/* A layer has 128 experts of 3 matrices, in fp32 here; where they do not fit, the key is what to change. */
static void test_decoded(void **state)
{
    static const char config[] = "model_name_or_path: " SHAPES "qwen3-30b-a3b\nbackend: cpu\n"
                                 "lora_target_modules: [q_proj]\nmemory_budget: 60GiB\n"
                                 "decoded_layers: 48\n";
    const published *m = &models[0];
    const tsr_job_options options = {.size = sizeof options,
                                     .config_text = config,
                                     .purpose = TSR_JOB_PLAN,
                                     .plan_ranks = 1,
                                     .threads = 1};
    uint64_t bytes[2];
    tsr_job *job;
    (void)state;
    for (int i = 0; i < 2; i++) {
        json_t *p = plan(m->name, i ? "memory_budget: 400GiB\ndecoded_layers: 3\n"
                                    : "memory_budget: 400GiB\ndecoded_layers: 0\n");
        assert_int_equal(number(p, "decoded_layers"), 3 * i);
        bytes[i] = number(p, "device_peak_bytes");
        json_decref(p);
    }
    assert_int_equal(bytes[1] - bytes[0], 3 * 4 * 3 * m->experts * m->hidden * m->width);
    assert_true(tsr_job_create(&job, &options) < 0 || tsr_job_print_plan(job, 0, NULL) < 0);
    if (!strstr(tsr_last_error(), "smallest change that fits: decoded_layers: auto"))
        fail_msg("%s", tsr_last_error());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters), cmocka_unit_test(test_others),
        cmocka_unit_test(test_base_bytes), cmocka_unit_test(test_trainable),
        cmocka_unit_test(test_screen),     cmocka_unit_test(test_decoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
