/*
 * What a configuration can say and nobody can mean is a warning, once, when a job is created: to train and
 * to be planned.
 */
#include "support/scratch.h"
#include "tessera.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL TSR_SOURCE_DIR "/examples/tiny-llama"

static char warnings[8192];

static void add_warning(void *user, int severity, const char *line)
{
    (void)user;
    if (severity != TSR_JOB_WARNING)
        return;
    strncat(warnings, line, sizeof warnings - strlen(warnings) - 2);
    strcat(warnings, "\n");
}

static void create(int purpose, const char *keys)
{
    char config[2048];
    tsr_job *job;
    snprintf(config, sizeof config,
             "model_name_or_path: " MODEL "\noutput_dir: %s\nbackend: cpu\ntotal_batch_size: 2\n%s",
             scratch_path("out"), keys);
    const tsr_job_options options = {.size = sizeof(tsr_job_options),
                                     .config_text = config,
                                     .purpose = purpose,
                                     .threads = 1,
                                     .log = add_warning};
    warnings[0] = 0;
    if (tsr_job_create(&job, &options) < 0)
        fail_msg("%s: %s", keys, tsr_last_error());
    tsr_job_destroy(job);
}

/* Exactly one line, that has the words; none with NULL. */
static void warns(const char *keys, const char *words)
{
    const char *found = words ? strstr(warnings, words) : NULL, *end = strchr(warnings, '\n');
    if (words ? !found || !end || end[1] : *warnings)
        fail_msg("%s: expected one warning with '%s', found:\n%s", keys, words ? words : "",
                 warnings);
}

static const char *with_data(const char *eval, const char *more)
{
    static char keys[1024];
    snprintf(keys, sizeof keys, "dataset: %s\neval_dataset: %s\n%s", scratch_path("train.jsonl"),
             eval ? scratch_path(eval) : "null", more);
    return keys;
}

static void test_doubts(void **state)
{
    (void)state;
    static const struct {
        const char *eval, *keys, *warning;
    } cases[] = {
        /* 5 rows, 2 a step: 3 steps */
        {"eval.jsonl", "warmup_steps: 2\nlora_r: 128\nexclude_modules: [k_proj]\n", NULL},
        {NULL, "warmup_steps: 3\n",
         "configuration:7: warmup_steps: a warm-up of 3 steps does not end within this run's 3: "
         "the "
         "learning rate rises to 0.000133 at the last step, and never reaches 0.0002"},
        {NULL, "warmup_ratio: 0.9\n", "a warm-up of 3 steps does not end within this run's 3"},
        {NULL, "warmup_steps: 3\nmax_steps: 4\n", NULL},
        {NULL, "warmup_steps: 3\nlr_scheduler_type: constant\n", NULL},
        {NULL, "exclude_modules: [k_porj, q_proj]\n",
         "exclude_modules: \"k_porj\" matches no module"},
        {NULL, "rank_pattern: {q_porj: 4}\n", "rank_pattern: the key \"q_porj\" matches no module"},
        {NULL, "alpha_pattern: {q_porj: 4}\n",
         "alpha_pattern: the key \"q_porj\" matches no module"},
        {NULL, "lora_r: 200\n",
         "a rank of 200 is more than the smaller side of 12 linears, such as "
         "model.layers.0.self_attn.k_proj (128 x 256)"},
        {"train.jsonl", "", "is trained on too (dataset, configuration:5)"},
        {"linked.jsonl", "", "linked.jsonl is trained on too"},
    };
    assert_int_equal(symlink(scratch_path("train.jsonl"), scratch_path("linked.jsonl")), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *keys = with_data(cases[i].eval, cases[i].keys);
        create(TSR_JOB_TRAIN, keys);
        warns(keys, cases[i].warning);
        create(TSR_JOB_PLAN, keys);
        warns(keys, cases[i].warning);
    }
}

/* A look at the data warns of data, and a plan without data of what it knows. */
static void test_others(void **state)
{
    (void)state;
    const char *keys = with_data("train.jsonl", "lora_r: 200\n");
    create(TSR_JOB_DATA, keys);
    warns(keys, "is trained on too");
    create(TSR_JOB_PLAN, "max_steps: 10\nwarmup_steps: 10\n");
    warns("a plan", "a warm-up of 10 steps does not end within this run's 10");
    create(TSR_JOB_PLAN, "warmup_steps: 10\n");
    warns("a plan", NULL);
    keys = with_data("train.jsonl", "");
    create(TSR_JOB_EVALUATE, keys); /* who evaluates the training data asks for it */
    warns(keys, NULL);
}

static int setup(void **state)
{
    static const char row[] = "{\"input_ids\": [10, 11, 12]}\n";
    char rows[5 * sizeof row] = "";
    scratch_setup(state);
    for (int i = 0; i < 5; i++)
        strcat(rows, row);
    write_text(scratch_path("train.jsonl"), rows);
    write_text(scratch_path("eval.jsonl"), row);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_doubts),
                                       cmocka_unit_test(test_others)};
    return cmocka_run_group_tests(tests, setup, scratch_teardown);
}
