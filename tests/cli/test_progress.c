/*
 * Progress as a bar and as lines, and the text before and after a run.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "cli/progress.h"
#include "report/summary.h"

static void collect(void *user, const char *text, size_t bytes)
{
    tsr_text_append(user, text, bytes);
}

static tsr_job_report at(int64_t step)
{
    return (tsr_job_report){.step = step,
                            .epoch = 0.5,
                            .loss = 2.34567,
                            .grad_norm = 0.91,
                            .learning_rate = 2e-4,
                            .tokens_per_s = 3100.4,
                            .step_s = 2,
                            .device_bytes = 300 << 20};
}

static void begins(const char *text, const char *start)
{
    if (strncmp(text, start, strlen(start)))
        fail_msg("'%s' does not begin with '%s'", text, start);
}

static int lines_of(const char *text)
{
    int lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

static tsr_progress *create(tsr_text *text, tsr_progress_options options, int64_t total_steps)
{
    tsr_progress *progress;
    options.write = collect;
    options.user = text;
    assert_int_equal(tsr_progress_create(&progress, &options), TSR_OK);
    tsr_progress_expect(progress, total_steps, 0, false);
    return progress;
}

static void test_lines(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_progress *p = create(&text, (tsr_progress_options){0}, 25);
    tsr_progress_expect(p, 25, 10, true);
    for (int i = 1; i <= 25; i++) {
        tsr_job_report step = at(i);
        tsr_progress_step(p, &step);
    }
    tsr_progress_eval(p, 25, 1.23456, 99);
    tsr_progress_line(p, "a warning");
    tsr_progress_destroy(p);
    assert_int_equal(lines_of(text.data), 6); /* steps 1, 10, 20 and the last; eval; warning */
    begins(text.data, "step 1/25  epoch 0.50  loss 2.3457  lr 0.0002  3100 tokens/s  300 MiB  "
                      "0:48 left  grad_norm 0.91\n");
    assert_non_null(strstr(text.data, "\nstep 20/25  "));
    assert_non_null(strstr(text.data, "\nstep 25/25  epoch 0.50  loss 2.3457"));
    assert_non_null(
        strstr(text.data, "\nstep 25  eval_loss 1.2346 over 99 label tokens\na warning\n"));
    assert_null(strchr(text.data, '\r'));
    assert_null(strchr(text.data, '\033'));
    tsr_text_free(&text);
}

static void test_experts(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_progress *p = create(&text, (tsr_progress_options){0}, 2);
    tsr_progress_expect(p, 2, 1, true);
    tsr_job_report step = at(1);
    step.has_experts = 1;
    step.expert_load_over_mean = 2.3456;
    step.aux_loss = NAN;
    tsr_progress_step(p, &step);
    step.step = 2;
    step.aux_loss = 3.02588;
    tsr_progress_step(p, &step);
    tsr_progress_destroy(p);
    assert_non_null(strstr(text.data, "grad_norm 0.91  expert_load 2.35\nstep 2/2"));
    assert_non_null(strstr(text.data, "grad_norm 0.91  expert_load 2.35  aux_loss 3.026\n"));
    tsr_text_free(&text);
}

static void test_bar(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_progress *p = create(&text, (tsr_progress_options){.terminal = true, .columns = 200}, 4);
    tsr_job_report step = at(1);
    tsr_progress_step(p, &step);
    assert_string_equal(text.data,
                        "\r\033[Kstep 1/4 [====>           ]  25%  loss 2.3457  lr 0.0002  "
                        "3100 tokens/s  300 MiB  0:06 left");
    tsr_text_clear(&text);
    tsr_progress_line(p, "hello"); /* above the bar, which comes back */
    begins(text.data, "\r\033[Khello\n\r\033[Kstep 1/4");
    step = at(4);
    tsr_text_clear(&text);
    tsr_progress_step(p, &step);
    assert_non_null(strstr(text.data, "[================] 100%"));
    tsr_progress_destroy(p);
    assert_int_equal(text.data[text.length - 1], '\n');
    tsr_text_free(&text);
}

static void test_bar_fits_and_is_not_flooded(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_progress *p = create(&text, (tsr_progress_options){.terminal = true, .columns = 30}, 1000);
    for (int i = 1; i <= 1000; i++) {
        tsr_job_report step = at(i);
        step.step_s = 0.001;
        tsr_progress_step(p, &step);
    }
    tsr_progress_destroy(p);
    int drawn = 0;
    for (const char *c = strchr(text.data, '\r'); c; c = strchr(c + 1, '\r')) {
        const char *end = strchr(c + 1, '\r');
        size_t shown = (end ? (size_t)(end - c) : strcspn(c, "\n")) - strlen("\r\033[K");
        assert_true(shown < 30);
        drawn++;
    }
    assert_true(drawn > 5 && drawn < 20);
    tsr_text_free(&text);
}

/* However long a run, its numbers and its lines are: the step and the time left are there. */
static void test_time_left_is_always_there(void **state)
{
    static const int columns[] = {80, 79, 60, 40, 30};
    (void)state;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int64_t total = 10; total <= 1000000; total *= 10) {
            tsr_text text = {0};
            tsr_progress *p = create(
                &text, (tsr_progress_options){.terminal = true, .columns = columns[i]}, total);
            tsr_job_report step = at(total - 5);
            step.tokens_per_s = 1234567;
            step.step_s = 36000;
            step.learning_rate = 1.23e-5;
            step.device_bytes = 100ull << 30;
            tsr_progress_step(p, &step);
            const char *line = text.data + strlen("\r\033[K");
            char begin[32];
            snprintf(begin, sizeof begin, "step %lld", (long long)step.step);
            begins(line, begin);
            if (strlen(line) >= (size_t)columns[i] || !strstr(line, "  50:00:00 left"))
                fail_msg("%d columns: '%s'", columns[i], line);
            if (columns[i] >= 79 && (!strstr(line, "loss 2.3457") || !strchr(line, '[')))
                fail_msg("%d columns have room for more than '%s'", columns[i], line);
            tsr_progress_phase(p, "reading the checkpoint", 1, 4, 30);
            text.length = 0;
            tsr_progress_phase(p, "reading the checkpoint", 2, 4, 3630);
            if (columns[i] >= 40 && !strstr(text.data, "1:00:00 left"))
                fail_msg("%d columns: '%s'", columns[i], text.data);
            tsr_progress_resize(p, 200); /* the terminal is wider now */
            tsr_text_clear(&text);
            tsr_progress_phase(p, "reading the checkpoint", 4, 4, 3640);
            assert_non_null(strstr(text.data, "1234567 tokens/s  100.00 GiB  50:00:00 left"));
            tsr_progress_destroy(p);
            tsr_text_free(&text);
        }
}

/* At once, in place of the bar; elsewhere a line. */
static void test_announcements(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_progress *p = create(&text, (tsr_progress_options){.terminal = true}, 4);
    tsr_job_report step = at(2);
    assert_true(tsr_progress_is_bar(p));
    tsr_progress_step(p, &step);
    tsr_text_clear(&text);
    tsr_progress_announce(p, "saving checkpoint-2");
    assert_string_equal(text.data, "\r\033[Kstep 2/4  saving checkpoint-2");
    tsr_text_clear(&text);
    tsr_progress_line(p, "a warning"); /* above it */
    begins(text.data, "\r\033[Ka warning\n\r\033[Kstep 2/4 [");
    tsr_progress_announce(p, "saving checkpoint-2");
    tsr_text_clear(&text);
    tsr_progress_announced(p);
    begins(text.data, "\r\033[Kstep 2/4 [");
    tsr_progress_destroy(p);
    tsr_text_clear(&text);
    p = create(&text, (tsr_progress_options){0}, 4);
    assert_false(tsr_progress_is_bar(p));
    tsr_progress_announce(p, "saving checkpoint-2");
    tsr_progress_announced(p);
    assert_string_equal(text.data, "saving checkpoint-2\n");
    tsr_progress_destroy(p);
    tsr_text_free(&text);
}

/* On a terminal: nothing for what is over at once, then a line that moves, then nothing again. */
static void test_phase_on_a_terminal(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_progress *p = create(&text, (tsr_progress_options){.terminal = true}, 4);
    tsr_progress_phase(p, "packing", 1, 2, 0);
    tsr_progress_phase(p, "packing", 2, 2, 0.05);
    assert_int_equal(text.length, 0);
    tsr_progress_phase(p, "hashing", 0, 8, 10);
    tsr_progress_phase(p, "hashing", 1, 8, 10.05);
    assert_int_equal(text.length, 0);
    tsr_progress_phase(p, "hashing", 2, 8, 20);
    assert_string_equal(text.data, "\r\033[Khashing [====>           ]  25%  0:30 left");
    tsr_text_clear(&text);
    tsr_progress_phase(p, "hashing", 3, 8, 20.01); /* not flooded */
    assert_int_equal(text.length, 0);
    tsr_progress_line(p, "a warning");
    assert_string_equal(text.data, "\r\033[Ka warning\n");
    tsr_text_clear(&text);
    tsr_progress_phase(p, "hashing", 4, 8, 21);
    assert_non_null(strstr(text.data, "50%"));
    tsr_text_clear(&text);
    tsr_progress_phase(p, "hashing", 8, 8, 22);
    assert_string_equal(text.data, "\r\033[K");
    tsr_text_clear(&text);
    tsr_job_report step = at(2);
    tsr_progress_step(p, &step);
    tsr_text_clear(&text);
    /* How fast it is belongs to the phase: the time left goes on. */
    tsr_progress_phase(p, "reading", 1, 8, 24);
    tsr_progress_phase(p, "reading (120 rows/s)", 2, 8, 26);
    assert_string_equal(text.data,
                        "\r\033[Kreading (120 rows/s) [====>           ]  25%  0:06 left");
    tsr_text_clear(&text);
    tsr_progress_phase(p, "reading", 8, 8, 27);
    begins(text.data, "\r\033[Kstep 2/4 [");
    tsr_text_clear(&text);
    tsr_progress_phase(p, "writing", 1, 4, 30);
    tsr_progress_phase(p, "writing", 2, 4, 31);
    begins(text.data, "\r\033[Kwriting [========>");
    tsr_text_clear(&text);
    tsr_progress_phase(p, "writing", 4, 4, 32); /* the bar comes back */
    begins(text.data, "\r\033[Kstep 2/4 [");
    tsr_text_clear(&text);
    tsr_progress_phase(p, "evaluating", 1, 4, 40);
    tsr_progress_phase(p, "evaluating", 1, 4, 41); /* and is broken off */
    tsr_progress_destroy(p);
    assert_int_equal(text.data[text.length - 1], '\n');
    assert_null(strstr(strrchr(text.data, '\r'), "evaluating"));
    tsr_text_free(&text);
}

/* Elsewhere: a line every five seconds, none for what is short. */
static void test_phase_in_lines(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_progress *p = create(&text, (tsr_progress_options){0}, 4);
    for (int i = 0; i <= 40; i++)
        tsr_progress_phase(p, "packing", i, 40, 0.1 * i);
    assert_int_equal(text.length, 0);
    for (int i = 0; i <= 160; i++)
        tsr_progress_phase(p, "hashing", i, 160, 10 + 0.1 * i);
    assert_string_equal(text.data, "hashing  31%  0:11 left\nhashing  62%  0:06 left\n"
                                   "hashing  93%  0:01 left\n");
    tsr_progress_destroy(p);
    tsr_text_free(&text);
}

static void test_none(void **state)
{
    (void)state;
    tsr_text text = {0};
    tsr_progress *p = create(
        &text, (tsr_progress_options){.mode = TSR_CONFIG_PROGRESS_NONE, .terminal = true}, 0);
    tsr_job_report step = at(1);
    step.loss = NAN;
    tsr_progress_step(p, &step);
    tsr_progress_eval(p, 1, 1, 1);
    for (int i = 0; i < 100; i++)
        tsr_progress_phase(p, "hashing", i, 100, i);
    assert_int_equal(text.length, 0);
    tsr_progress_line(p, "but messages are");
    assert_string_equal(text.data, "but messages are\n");
    tsr_progress_destroy(p);
    tsr_progress_destroy(NULL);
    tsr_text_free(&text);
    const tsr_progress_options silent = {.mode = TSR_CONFIG_PROGRESS_LINES};
    assert_int_equal(tsr_progress_create(&p, &silent), TSR_OK);
    tsr_progress_step(p, &step); /* no callback */
    tsr_progress_destroy(p);
}

static void test_summary(void **state)
{
    (void)state;
    tsr_config config;
    tsr_config_source source = {
        .text = "model_name_or_path: ./models/tiny\ndataset: [a.jsonl, b.jsonl]\n"
                "output_dir: \"my run's\"\nuse_dora: true\n"
                "eval_dataset: e.jsonl\n"};
    assert_int_equal(tsr_config_load(&config, &source), TSR_OK);
    tsr_summary summary = {.architecture = "llama, 6 layers",
                           .parameter_count = 8000000000u,
                           .trainable_count = 42000000,
                           .sample_count = 100,
                           .row_count = 40,
                           .token_count = 5000,
                           .label_count = 2000,
                           .eval_sample_count = 10,
                           .ranks = 4,
                           .device = "cpu, 2 cores",
                           .device_peak_bytes = 3u << 30,
                           .host_peak_bytes = 100 << 20,
                           .unit_count = 7,
                           .resident_count = 1,
                           .recompute_full_count = 2,
                           .recompute_selective_count = 3,
                           .total_steps = 20,
                           .step_samples = 4,
                           .base_read_bytes = 5 << 20};
    tsr_text text = {0};
    tsr_summary_start(&text, &config, &summary);
    assert_int_equal(lines_of(text.data), 6);
    static const char *const words[] = {
        "./models/tiny: llama, 6 layers, 8 billion parameters, base NF4 with double quantization",
        "DoRA r 16, alpha 32, dropout 0, on all-linear; 42 million trainable (0.525 %)",
        "a.jsonl and 1 more: 100 samples in 40 rows, 5000 tokens, 2000 labels; 10 held out",
        "device   4 ranks, cpu, 2 cores; peak 3 GiB, 100 MiB on the host, each rank\n",
        "20, 4 samples each, learning rate 0.0002 linear\n"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(text.data, words[i]))
            fail_msg("'%s' is not in\n%s", words[i], text.data);
    tsr_text_clear(&text);
    tsr_summary_plan(&text, &summary);
    assert_string_equal(text.data, "plan: 7 units, 1 resident; recomputed: 2 in full, 3 in part; "
                                   "each rank reads 5 MiB of the base");
    tsr_text_clear(&text);
    config.trl_differences = 2;
    tsr_summary_start(&text, &config, &summary);
    assert_non_null(strstr(text.data, "; 2 defaults are not TRL's (tessera train --help; defaults: "
                                      "trl)\n"));
    config.trl_differences = 0;
    tsr_text_clear(&text);
    config.packing = true;
    tsr_summary_start(&text, &config, &summary);
    config.context_parallel_size = 2;
    assert_non_null(strstr(text.data, "20, 4 rows each, "));
    tsr_text_clear(&text);
    tsr_summary_start(&text, &config, &summary);
    assert_non_null(strstr(text.data, "device   4 ranks, 2 share a long micro-batch, cpu, "));
    tsr_text_clear(&text);
    config.packing = false;
    config.context_parallel_size = 1;
    summary.step_samples = 1;
    config.save_strategy = TSR_CONFIG_EVERY_STEPS;
    config.save_steps = 0.2;
    config.eval_strategy = TSR_CONFIG_EVERY_EPOCH;
    tsr_summary_start(&text, &config, &summary);
    assert_non_null(strstr(text.data, "20, 1 sample each, learning rate 0.0002 linear; evaluation "
                                      "every epoch; checkpoint every 4\n"));
    tsr_text_clear(&text);
    const tsr_summary_call two = {"build/tessera", "launch/run -n 2", "/a b/c", false};
    tsr_summary_end(&text, &config, &two, 2.5, 2.25);
    static const char *const last[] = {
        "eval_loss 2.5000 before, 2.2500 after\n", "my run's/adapter_model.safetensors\n",
        "\nevaluate (cd '/a b/c' && launch/run -n 2 build/tessera eval 'my run'\\''s/job.yaml')\n",
        "AutoModelForCausalLM.from_pretrained(\"/a b/c/./models/tiny\"), \"/a b/c/my run's\")\n"};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++)
        if (!strstr(text.data, last[i]))
            fail_msg("'%s' is not in\n%s", last[i], text.data);
    tsr_text_clear(&text);
    const tsr_summary_call one = {"tessera", "", "/c", true};
    config.output_dir = "/-x";
    config.model_name_or_path = "/m\"\\\n";
    tsr_summary_end(&text, &config, &one, NAN, NAN);
    assert_null(strstr(text.data, "eval_loss"));
    assert_non_null(strstr(text.data, "\nevaluate (cd /c && tessera eval /-x/job.yaml)\n"));
    assert_non_null(strstr(text.data, "import AutoModelForImageTextToText; model = "));
    assert_non_null(strstr(text.data, "from_pretrained(\"/m\\\"\\\\\\x0a\"), \"/-x\")\n"));
    tsr_text_free(&text);
    tsr_config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_bar),
        cmocka_unit_test(test_bar_fits_and_is_not_flooded),
        cmocka_unit_test(test_time_left_is_always_there),
        cmocka_unit_test(test_announcements),
        cmocka_unit_test(test_phase_on_a_terminal),
        cmocka_unit_test(test_phase_in_lines),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_summary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
