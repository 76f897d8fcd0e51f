/*
 * A run that goes on from its checkpoint has the bits of one that never stopped, whatever ranks
 * wrote it and whatever ranks go on; what does not fit is refused in words.
 *
 *     test_job_resume                        on the CPU
 *     test_job_resume BACKEND DTYPE RANKS    on at most RANKS ranks
 */
#include "base/log.h"
#include "job/fixture.h"
#include "support/folder.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char *config_text(const char *more)
{
    static char text[4096];
    int used = snprintf(text, sizeof text, "max_steps: 6\nlearning_rate: 1e-2\n%s", more);
    if (!strstr(more, "model_name_or_path"))
        used += snprintf(text + used, sizeof text - (size_t)used, "model_name_or_path: %s\n",
                         strstr(more, JOB_TRACES) ? JOB_MODEL : JOB_SHALLOW);
    if (!strstr(more, "total_batch_size"))
        used += snprintf(text + used, sizeof text - (size_t)used, "total_batch_size: 4\n");
    if (!strstr(more, "\ndataset"))
        snprintf(text + used, sizeof text - (size_t)used, "dataset: %s\n",
                 scratch_path("train.jsonl"));
    return text;
}

static void run(job_result *out, int ranks, const char *config, const char *output,
                const job_event *event)
{
    job_run_in(out, ranks, config, output, event);
    if (out->status != 0)
        fail_msg("%s on %d ranks: %s", output, ranks, out->message);
}

static bool is_there(const char *name)
{
    return access(scratch_path(name), F_OK) == 0;
}

/* ---- the same bits ---- */

#ifdef __SANITIZE_THREAD__
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

/* Sanitizers are slow, as several cards are to connect: there each number of ranks is gone on with by
 * one other. */
static bool is_few(void)
{
#ifdef TSR_SANITIZED
    return true;
#else
    return job_on_cards();
#endif
}

/* What does not depend on where the ranks compute. */
static void not_on_cards(void)
{
    if (job_on_cards())
        skip();
}

#define DORA "use_dora: true\nlora_r: 3\nlora_dropout: 0.1\n"

static const char *resuming(const char *more)
{
    char text[2048];
    snprintf(text, sizeof text, "%sresume_from_checkpoint: true\n", more);
    return config_text(text);
}

/* Stopped on `saved` ranks, resumed on `resumed`. */
static void check_ranks(const job_result *whole, int saved, int resumed, const char *keys,
                        const char *more)
{
    char before[4096], both[512];
    snprintf(before, sizeof before, "%s", config_text(keys));
    snprintf(both, sizeof both, "%s%s", keys, more);
    job_assert_resumed(whole, saved, before, resumed, resuming(both));
}

static void test_ranks(void **state)
{
    (void)state;
    job_result whole;
    int most = job_ranks(3);
    run(&whole, 1, config_text(DORA), "whole", NULL);
    for (int saved = 1; saved <= most; saved++)
        for (int resumed = 1; resumed <= most; resumed++)
            if (!is_few() || resumed == saved % most + 1)
                check_ranks(&whole, saved, resumed, DORA, "");
    job_result_free(&whole);
}

static void test_fp8(void **state)
{
    (void)state;
    static const char keys[] = "base_compute: fp8\n" DORA;
    job_result whole;
    if (!job_has_fp8())
        skip();
    run(&whole, 1, config_text(keys), "whole", NULL);
    check_ranks(&whole, job_ranks(2), job_ranks(3), keys, "");
    job_result_free(&whole);
}

/* Replicas, and another use of memory when it goes on. */
static void test_groups(void **state)
{
    (void)state;
    static const char keys[] = "weight_decay: 0.1\nmax_grad_norm: 0.1\nlora_r: 5\n";
    static const struct {
        int saved, resumed;
        const char *more;
    } runs[] = {{4, 2, "offload: sharded\ngradient_checkpointing: true\n"},
                {2, 4, "shard_group_size: 2\n"},
                {1, 5, "slots: 3\n"},
                {2, 1, "offload: full\ngradient_checkpointing: selective\n"},
                {1, 2, "shard_group_size: 1\noptimizer_offload: true\n"}};
    job_result whole;
    run(&whole, 1, config_text(keys), "whole", NULL);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        int most = runs[i].saved > runs[i].resumed ? runs[i].saved : runs[i].resumed;
        /* On cards the test on fewer of them has the others. */
        if (job_on_cards() ? most == job_ranks(JOB_RANKS_MAX) : most == job_ranks(most))
            check_ranks(&whole, runs[i].saved, runs[i].resumed, keys, runs[i].more);
    }
    job_result_free(&whole);
}

/* Magnitudes that were fresh at the start are the checkpoint's when it goes on; an evaluation that
 * was due at the stop is made up for. */
static void check_evaluations(const char *rows, const char *a, const char *b)
{
    char keys[512];
    snprintf(keys, sizeof keys,
             "use_dora: true\ninit_adapter: " JOB_TRACES
             "/init/lora_r8\neval_strategy: steps\neval_steps: 3\n%s\n",
             rows);
    job_event stop = {.rank = 0, .stop_after = 2};
    job_result whole, first, second;
    run(&whole, job_ranks(2), config_text(keys), a, NULL);
    run(&first, job_ranks(2), config_text(keys), b, &stop);
    run(&second, job_ranks(3), resuming(keys), b, NULL);
    assert_int_equal(whole.eval_count, 3);
    assert_int_equal(first.eval_count, 1);
    assert_int_equal(second.eval_count, 2);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(&whole.eval[1 + i].loss, &second.eval[i].loss, sizeof(double));
    job_assert_part(&whole, &second, 3, true, "with evaluations");
    job_result_free(&whole);
    job_result_free(&first);
    job_result_free(&second);
}

static void test_evaluations(void **state)
{
    (void)state;
    char rows[256];
    snprintf(rows, sizeof rows, "eval_dataset: %s", scratch_path("eval.jsonl"));
    check_evaluations(rows, "eval-whole", "evaluated");
    check_evaluations("validation_split: 0.3", "held-out-whole", "held-out");
}

/* A stop that comes while an evaluation of many micro-batches is under way, of the last step too, ends it; it is
 * made up for. Before the first step there is nothing to save yet, and where a step was the last one because of the
 * stop, what evaluates nevertheless wants it whole. */
static void test_stopped_evaluation(void **state)
{
    (void)state;
    static const struct {
        int evaluation, steps;
    } stops[] = {{2, 3}, {3, 6}, {1, 1}};
    char keys[512];
    job_result whole;
    job_write_documents("many.jsonl", 40, 4096, 7);
    snprintf(keys, sizeof keys,
             "lora_r: 3\neval_strategy: steps\neval_steps: 3\neval_dataset: %s\n",
             scratch_path("many.jsonl"));
    run(&whole, job_ranks(2), config_text(keys), "whole-evaluations", NULL);
    assert_int_equal(whole.eval_count, 3);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        job_event stop = {.rank = 0, .stop_evaluating = stops[i].evaluation};
        job_result first, second;
        char output[32];
        int done = stops[i].evaluation == 1 ? 1 : stops[i].evaluation - 1;
        snprintf(output, sizeof output, "stopped-evaluation-%zu", i);
        run(&first, job_ranks(2), config_text(keys), output, &stop);
        assert_true(first.stopped);
        assert_int_equal(first.step_count, stops[i].steps);
        assert_int_equal(first.eval_count, done);
        run(&second, job_ranks(3), resuming(keys), output, NULL);
        assert_int_equal(second.resumed, stops[i].steps);
        assert_int_equal(second.eval_count, 3 - done);
        for (int e = 0; e < 3; e++)
            assert_memory_equal(&whole.eval[e].loss,
                                e < done ? &first.eval[e].loss : &second.eval[e - done].loss,
                                sizeof(double));
        job_assert_part(&whole, &second, stops[i].steps, true, output);
        job_result_free(&first);
        job_result_free(&second);
    }
    job_result_free(&whole);
}

/* A skipped step is none of AdamW's t, before the checkpoint and after it. The fault is written into the memory
 * of the CPU's device; the state and what is made of it are the same on cards. */
static void test_skipped_step(void **state)
{
    (void)state;
    if (job_on_gpu())
        skip();
    job_event bad = {.overflow_after = 1}, stop = {.overflow_after = 1, .stop_after = 2};
    job_result whole, first, second;
    run(&whole, job_ranks(2), config_text(""), "whole", &bad);
    run(&first, job_ranks(2), config_text(""), "skipped", &stop);
    assert_int_equal(first.step_count, 3);
    assert_int_equal(first.step[1].skipped, 1);
    run(&second, job_ranks(1), resuming(""), "skipped", NULL);
    assert_int_equal(second.resumed, 3);
    assert_int_equal(second.step[0].skipped_steps, 1);
    job_assert_part(&whole, &second, 3, true, "after a skipped step");
    job_result_free(&whole);
    job_result_free(&first);
    job_result_free(&second);
}

/* Two steps are skipped, then a stop: the next one is the third in a row. */
static void test_skipped_in_a_row(void **state)
{
    (void)state;
    static const char keys[] = "lora_alpha: 1e9\nmax_skipped_steps: 2\n";
    job_event stop = {.stop_after = 1};
    job_result result;
    run(&result, job_ranks(2), config_text(keys), "in-a-row", &stop);
    assert_int_equal(result.step_count, 2);
    assert_int_equal(result.step[1].skipped_steps, 2);
    job_result_free(&result);
    job_run_in(&result, 1, resuming(keys), "in-a-row", NULL);
    assert_int_equal(tsr_status_exit_code(result.status), 71);
    assert_int_equal(result.step_count, 0);
    if (!strstr(result.message,
                "step 3: the loss or a gradient was not finite in 3 steps in a row"))
        fail_msg("%s", result.message);
}

/* ---- which checkpoint ---- */

/* The lines of metrics.jsonl that hold `words`. */
static int metrics_lines(const char *output, const char *words)
{
    uint64_t bytes;
    char name[64], *state = NULL;
    int count = 0;
    snprintf(name, sizeof name, "%s/metrics.jsonl", output);
    char *text = read_whole(&bytes, scratch_path(name));
    for (char *line = strtok_r(text, "\n", &state); line; line = strtok_r(NULL, "\n", &state))
        count += strstr(line, words) != NULL;
    free(text);
    return count;
}

static void test_steps_and_limit(void **state)
{
    (void)state;
    job_result whole, again;
    static const char keys[] = "save_steps: 0.3\nsave_total_limit: 2\n"; /* which saves at all */
    run(&whole, job_ranks(2), config_text(keys), "limited", NULL);
    assert_false(is_there("limited/checkpoint-2"));
    assert_true(is_there("limited/checkpoint-4"));
    assert_true(is_there("limited/checkpoint-6"));
    /* The named one, though there is a newer one, which goes; metrics.jsonl goes on behind step 4. */
    char named[1024];
    snprintf(named, sizeof named, "%sresume_from_checkpoint: %s\n", keys,
             scratch_path("limited/checkpoint-4"));
    run(&again, 1, config_text(named), "limited", NULL);
    assert_int_equal(again.resumed, 4);
    job_assert_part(&whole, &again, 4, true, "from step 4");
    for (int step = 1; step <= 6; step++) {
        char words[32];
        snprintf(words, sizeof words, "{\"step\":%d,", step);
        assert_int_equal(metrics_lines("limited", words), 1);
    }
    assert_int_equal(metrics_lines("limited", "\"event\":\"start\""), 2);
    assert_int_equal(metrics_lines("limited", "\"resumed_step\":4"), 1);
    assert_int_equal(metrics_lines("limited", "\"event\":\"end\""), 1);
    job_result_free(&again);
    /* Into another directory: its metrics.jsonl begins there. */
    run(&again, job_ranks(3), config_text(named), "elsewhere", NULL);
    job_assert_part(&whole, &again, 4, true, "from step 4, elsewhere");
    assert_int_equal(metrics_lines("elsewhere", "\"step\":"), 2);
    assert_true(is_there("limited/checkpoint-4"));
    job_result_free(&again);
    /* Nothing is left to do: the adapter is written again. */
    run(&again, 1, resuming(keys), "limited", NULL);
    assert_int_equal(again.step_count, 0);
    job_assert_part(&whole, &again, 6, true, "from the end");
    job_result_free(&again);
    job_result_free(&whole);
}

static void keep_line(void *user, tsr_log_level level, const char *line)
{
    assert_int_equal(level, TSR_LOG_WARNING);
    snprintf(user, 2048, "%s", line);
}

static void make_checkpoint(const char *name, const char *inside)
{
    char path[128];
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
    snprintf(path, sizeof path, "%s/manifest.json", name);
    write_text(scratch_path(path), "{}");
    if (!inside)
        return;
    snprintf(path, sizeof path, "%s/%s", name, inside);
    assert_int_equal(mkdir(scratch_path(path), 0777), 0);
}

/* What somebody keeps in a checkpoint is never removed, and no training ends because of it. */
static void test_directory_inside(void **state)
{
    (void)state;
    char warning[2048] = "";
    not_on_cards();
    assert_int_equal(mkdir(scratch_path("kept"), 0777), 0);
    tsr_folder *folder = open_folder(scratch_path("kept"));
    make_checkpoint("kept/checkpoint-1", NULL);
    make_checkpoint("kept/checkpoint-2", "merged");
    make_checkpoint("kept/checkpoint-3", NULL);
    make_checkpoint("kept/.checkpoint-3.removed", "merged");
    make_checkpoint("kept/.checkpoint-4.tmp", "merged");
    tsr_log_set(keep_line, warning, TSR_LOG_WARNING);
    assert_int_equal(tsr_snapshot_tidy(folder), TSR_OK);
    assert_non_null(strstr(warning, "kept/.checkpoint-3.removed/merged"));
    assert_true(is_there("kept/.checkpoint-3.removed/merged"));
    assert_false(is_there("kept/.checkpoint-3.removed/manifest.json"));
    assert_int_equal(tsr_snapshot_prune(folder, 3, 0, -1), TSR_OK);
    assert_non_null(strstr(warning, "kept/checkpoint-2/merged"));
    assert_false(is_there("kept/checkpoint-1"));
    assert_true(is_there("kept/checkpoint-2/merged"));
    assert_true(is_there("kept/checkpoint-2/manifest.json"));
    assert_int_equal(tsr_snapshot_begin(folder, 4), TSR_OK);
    assert_int_equal(tsr_snapshot_prune(folder, 4, 0, -1), TSR_OK);
    tsr_log_set(NULL, NULL, TSR_LOG_ERROR);
    assert_true(is_there("kept/checkpoint-3/manifest.json")); /* its other name is taken */
    /* Where the names are needed it is said before anything goes. */
    check_error(
        "names are needed", tsr_snapshot_drop_after(folder, -1), TSR_ECONFIG,
        (const char *const[MOST_WORDS]){"checkpoint-3.removed/merged", "move it elsewhere"});
    assert_true(is_there("kept/checkpoint-3/manifest.json"));
    assert_int_equal(rmdir(scratch_path("kept/.checkpoint-3.removed/merged")), 0);
    assert_int_equal(rmdir(scratch_path("kept/checkpoint-2/merged")), 0);
    assert_int_equal(tsr_snapshot_drop_after(folder, -1), TSR_OK);
    assert_int_equal(count_entries(scratch_path("kept")), 1); /* the attempt at checkpoint-4 */
    tsr_folder_close(folder);
}

/* Hugging Face's trainer names its checkpoints alike: they are not this program's to remove. */
static void test_foreign_checkpoint(void **state)
{
    (void)state;
    char warning[2048] = "";
    assert_int_equal(mkdir(scratch_path("trl"), 0777), 0);
    tsr_folder *folder = open_folder(scratch_path("trl"));
    assert_int_equal(mkdir(scratch_path("trl/checkpoint-1"), 0777), 0);
    write_text(scratch_path("trl/checkpoint-1/optimizer.pt"), "x");
    make_checkpoint("trl/checkpoint-2", NULL);
    assert_int_equal(mkdir(scratch_path("trl/checkpoint-3"), 0777), 0); /* empty: nobody's */
    tsr_log_set(keep_line, warning, TSR_LOG_WARNING);
    assert_int_equal(tsr_snapshot_prune(folder, 4, 0, -1), TSR_OK);
    tsr_log_set(NULL, NULL, TSR_LOG_ERROR);
    assert_non_null(strstr(warning, "trl/checkpoint-1: a directory, without a manifest.json"));
    assert_int_equal(count_entries(scratch_path("trl")), 1);
    check_error("another program's", tsr_snapshot_drop_after(folder, -1), TSR_ECONFIG,
                (const char *const[MOST_WORDS]){"trl/checkpoint-1 is a directory, without a "
                                                "manifest.json, so another program's",
                                                "move it elsewhere"});
    assert_true(is_there("trl/checkpoint-1/optimizer.pt"));
    tsr_folder_close(folder);
}

static void test_epochs(void **state)
{
    (void)state;
    job_result result;
    not_on_cards();
    run(&result, 1, config_text("save_strategy: epoch\n"), "epochs", NULL);
    assert_true(is_there("epochs/checkpoint-3")); /* 10 samples, 4 a step */
    assert_true(is_there("epochs/checkpoint-6"));
    assert_false(is_there("epochs/checkpoint-2"));
    job_result_free(&result);
}

/* `true` in a directory without checkpoints begins; not over a run that has ended. */
static void test_nothing_to_resume(void **state)
{
    (void)state;
    job_result result;
    not_on_cards();
    run(&result, job_ranks(2), resuming(""), "begun", NULL);
    assert_int_equal(result.resumed, 0);
    assert_int_equal(result.step_count, 6);
    job_result_free(&result);
    job_run_in(&result, job_ranks(2), resuming(""), "begun", NULL);
    assert_int_equal(result.status, TSR_ECONFIG);
    if (!strstr(result.message, "holds a run that has ended"))
        fail_msg("%s", result.message);
    assert_int_equal(unlink(scratch_path("begun/adapter_model.safetensors")), 0);
    assert_int_equal(unlink(scratch_path("begun/adapter_config.json")), 0);
    run(&result, job_ranks(2), resuming(""), "begun", NULL);
    assert_int_equal(metrics_lines("begun", "\"event\":\"start\""), 1);
    job_result_free(&result);
}

/* ---- what is refused ---- */

static void check_refused(const char *more, int ranks, int status, const char *const *words)
{
    job_result result;
    job_run_in(&result, job_ranks(ranks), resuming(more), "refused", NULL);
    assert_int_equal(result.status, status);
    assert_int_equal(result.reporters, 1);
    for (; *words; words++)
        if (!strstr(result.message, *words))
            fail_msg("{%s}: expected '%s' in: %s", more, *words, result.message);
}

static void remove_refused(void)
{
    char command[700];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch_path("refused"));
    assert_int_equal(system(command), 0);
}

static void test_other_job(void **state)
{
    (void)state;
    char other[512];
    job_event stop = {.rank = 0, .stop_after = 1};
    job_result result;
    not_on_cards();
    run(&result, job_ranks(2), config_text("lora_r: 4\n"), "refused", &stop);
    job_result_free(&result);
    check_refused("lora_r: 5\nseed: 7\n", 2, TSR_ECONFIG,
                  (const char *const[]){"lora_r: found 5, the checkpoint was made with 4",
                                        "seed: found 7, the checkpoint was made with 42",
                                        "data_seed", "init_adapter=", NULL});
    check_refused("", 1, TSR_ECONFIG,
                  (const char *const[]){"lora_r: found 16, the checkpoint was made with 4", NULL});
    check_refused("lora_r: 4\ntotal_batch_size: 6\n", 2, TSR_ECONFIG,
                  (const char *const[]){"total_batch_size: a step of this run has 6 samples",
                                        "had 4; write total_batch_size: 4", NULL});
    if (job_has_fp8())
        check_refused("lora_r: 4\nbase_compute: fp8\n", 2, TSR_ECONFIG,
                      (const char *const[]){
                          "base_compute: found fp8, the checkpoint was made with dtype", NULL});
    snprintf(other, sizeof other, "lora_r: 4\ndataset: %s\n", scratch_path("eval.jsonl"));
    check_refused(other, 3, TSR_ECONFIG, (const char *const[]){"a dataset of other content", NULL});
    /* Another use of memory is no other job. */
    run(&result, job_ranks(2), resuming("lora_r: 4\noffload: sharded\nlogging_steps: 3\n"),
        "refused", NULL);
    job_result_free(&result);
}

/* The sign of every number. */
static void negate(const tsr_safetensors *shard, char *bytes)
{
    for (uint64_t i = 0; i < tsr_safetensors_count(shard); i++) {
        const tsr_tensor *tensor = tsr_safetensors_at(shard, i);
        assert_int_equal(tensor->dtype, TSR_BF16);
        for (uint64_t at = 1; at < tensor->bytes; at += 2)
            bytes[tensor->file_offset + at] ^= (char)0x80;
    }
}

static void leave(const tsr_safetensors *shard, char *bytes)
{
    (void)shard;
    (void)bytes;
}

/* The checkpoint as one of a version that said nothing of the weights. */
static void forget_weights(const char *output, int64_t step)
{
    tsr_snapshot *snapshot;
    char name[64], staged[TSR_SNAPSHOT_NAME_BYTES], from[PATH_MAX], to[PATH_MAX];
    tsr_folder *folder = open_folder(scratch_path(output));
    snprintf(name, sizeof name, "%s/checkpoint-%d", output, (int)step);
    assert_int_equal(tsr_snapshot_open(&snapshot, scratch_path(name)), TSR_OK);
    int count = tsr_snapshot_file_count(snapshot);
    tsr_snapshot_file *files = calloc((size_t)count, sizeof *files);
    json_t *state = json_deep_copy(tsr_snapshot_state(snapshot));
    assert_int_equal(json_object_del(state, "weights"), 0);
    assert_int_equal(tsr_snapshot_begin(folder, step), TSR_OK);
    tsr_snapshot_staged_name(staged, step);
    for (int i = 0; i < count; i++) {
        files[i] = *tsr_snapshot_file_at(snapshot, i);
        snprintf(from, sizeof from, "%s/%s", scratch_path(name), files[i].name);
        snprintf(to, sizeof to, "%s/%s/%s", scratch_path(output), staged, files[i].name);
        assert_int_equal(link(from, to), 0);
    }
    assert_int_equal(rename(scratch_path(name), scratch_path("forgotten")), 0);
    assert_int_equal(tsr_snapshot_commit(folder, step, state, files, count), TSR_OK);
    tsr_folder_close(folder);
    json_decref(state);
    free(files);
    tsr_snapshot_close(snapshot);
}

/* The weights are compared and not where they are. */
static void test_other_weights(void **state)
{
    (void)state;
    char same[512], other[512];
    job_event stop = {.rank = 0, .stop_after = 1};
    job_result result;
    not_on_cards();
    job_write_model("same", leave);
    job_write_model("negated", negate);
    snprintf(same, sizeof same, "model_name_or_path: %s\n", scratch_path("same"));
    snprintf(other, sizeof other, "model_name_or_path: %s\n", scratch_path("negated"));
    remove_refused();
    run(&result, job_ranks(2), config_text("model_name_or_path: " JOB_MODEL "\n"), "refused",
        &stop);
    job_result_free(&result);
    check_refused(other, 1, TSR_ECONFIG,
                  (const char *const[]){"a model (model_name_or_path) of other content", NULL});
    forget_weights("refused", 2);
    run(&result, 1, resuming(same), "refused", &stop);
    assert_int_equal(result.resumed, 2);
    job_result_free(&result);
    check_refused(other, 1, TSR_ECONFIG,
                  (const char *const[]){"a model (model_name_or_path) of other content", NULL});
    run(&result, 1, resuming(same), "refused", NULL);
    job_result_free(&result);
}

/* One byte of one file: named, and the one before only when it is asked for. */
static void test_damage(void **state)
{
    (void)state;
    static const struct {
        const char *name, *words;
        long at; /* -1: cut off; -2: removed */
    } damage[] = {
        {"state-00002-of-00002.safetensors", "the hash of its content is", 20000},
        {"state-00001-of-00002.safetensors", "bytes, its manifest says", -1},
        {"adapter_model.safetensors", "the hash of its content is", 5000},
        {"adapter_config.json", "the file is missing", -2},
        {"manifest.json", "does not match its own hash",
         138}, /* a digit of the first file's bytes */
        {"manifest.json", "manifest.json", -1},
        {"manifest.json", "No such file", -2},
    };
    static const char keys[] = "save_steps: 4\n"; /* and at the end */
    job_result whole, result;
    not_on_cards();
    if (job_ranks(3) < 2) /* the parts of two ranks are damaged */
        skip();
    run(&whole, 2, config_text(keys), "damaged", NULL);
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        char name[128], named[1024];
        uint64_t bytes;
        snprintf(name, sizeof name, "damaged/checkpoint-6/%s", damage[i].name);
        char *text = read_whole(&bytes, scratch_path(name));
        char *copy = malloc(bytes);
        memcpy(copy, text, bytes);
        if (damage[i].at >= 0)
            copy[damage[i].at] ^= 1;
        if (damage[i].at == -2)
            assert_int_equal(unlink(scratch_path(name)), 0);
        else
            write_bytes(scratch_path(name), copy, damage[i].at == -1 ? bytes - 1 : bytes);
        job_run_in(&result, job_ranks(1 + (int)i % 3), resuming(keys), "damaged", NULL);
        assert_int_equal(result.status, TSR_EDATA);
        assert_int_equal(result.reporters, 1);
        if (!strstr(result.message, damage[i].words) || !strstr(result.message, name + 8))
            fail_msg("%s: %s", name, result.message);
        if (i == 0) {
            snprintf(named, sizeof named, "%sresume_from_checkpoint: %s\n", keys,
                     scratch_path("damaged/checkpoint-4"));
            run(&result, 2, config_text(named), "damaged", NULL);
            job_assert_part(&whole, &result, 4, true, "the one before");
            job_result_free(&result);
        }
        write_bytes(scratch_path(name), text, bytes);
        free(text);
        free(copy);
    }
    job_result_free(&whole);
}

/* Older checkpoints have a key's default where init_adapter had decided it. */
static void test_older_adapter(void **state)
{
    (void)state;
    static const char keys[] =
        "init_adapter: " JOB_TRACES "/init/dora_patterns\nsave_strategy: steps\nsave_steps: 2\n";
    char output[600];
    const char *const overrides[] = {output};
    tsr_job *job;
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    job_result result;
    snprintf(output, sizeof output, "output_dir=%s", scratch_path("older"));
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = config_text(keys),
                               .overrides = overrides,
                               .override_count = 1};
    assert_int_equal(tsr_job_create(&job, &options), 0);
    tsr_config *config = &job->inputs.config;
    assert_int_equal(config->lora_target_modules.names.count, 4);
    assert_int_equal(config->rank_pattern.count, 3);
    config->lora_target_modules = (tsr_config_modules){.kind = TSR_CONFIG_MODULES_ALL_LINEAR};
    config->rank_pattern = config->alpha_pattern = (tsr_config_patterns){0};
    assert_int_equal(tsr_job_start(job), 0);
    assert_int_equal(tsr_job_step(job, &report), 0);
    assert_int_equal(tsr_job_checkpoint(job), 0);
    tsr_job_destroy(job);
    run(&result, 1, resuming(keys), "older", NULL);
    assert_int_equal(result.resumed, 1);
    job_result_free(&result);
}

static int set_up(void **state)
{
    (void)state;
    scratch_make();
    job_write_documents("train.jsonl", 10, 4096, 7);
    job_write_documents("eval.jsonl", 5, 4096, 2);
    return 0;
}

static int remove_output(void **state)
{
    (void)state;
    char command[700];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch_path("whole"));
    return system(command);
}

int main(int argc, char **argv)
{
    job_choose_backend(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_evaluations, remove_output),
#ifndef __SANITIZE_THREAD__ /* which is slow; that one is on 2 and 3 ranks */
        cmocka_unit_test_teardown(test_ranks, remove_output),
        cmocka_unit_test_teardown(test_fp8, remove_output),
        cmocka_unit_test_teardown(test_groups, remove_output),
        cmocka_unit_test(test_stopped_evaluation),
        cmocka_unit_test_teardown(test_skipped_step, remove_output),
        cmocka_unit_test(test_skipped_in_a_row),
        cmocka_unit_test(test_steps_and_limit),
        cmocka_unit_test(test_directory_inside),
        cmocka_unit_test(test_foreign_checkpoint),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_nothing_to_resume),
        cmocka_unit_test(test_other_job),
        cmocka_unit_test(test_older_adapter),
        cmocka_unit_test(test_other_weights),
        cmocka_unit_test(test_damage),
#endif
    };
    return cmocka_run_group_tests(tests, set_up, scratch_teardown);
}
