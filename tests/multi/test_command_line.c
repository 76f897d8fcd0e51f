/*
 * A golden trace through `tessera train` under mpirun: metrics.jsonl at every step and the adapter that
 * is written; and on several numbers of ranks, over its first steps, the same text and the same bytes.
 *
 *     test_multi_command_line LAUNCH_RUN TESSERA TRACE BACKEND[:bfloat16] RANKS ...
 *
 * RANKS begins with 1; those after it may end in ":offload", with which activations and optimizer state
 * are in host memory. With the backend cuda, numbers above that of the GPUs are left out; where only
 * the first would be left of several, it ends with 77 (skipped). In bfloat16 the losses are judged by
 * traces_bf16.c, and the adapter is not; without PEFT's losses to judge by it ends with 77 too.
 */
#include "io/json.h"
#include "support/golden.h"
#include "support/scratch.h"
#include "traces.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *launch, *program, *backend;
static char **rank_counts; /* ends with NULL */
static const trace_case *run;
static bool bf16;

/* On several ranks: the first begins with what is read, the others with what ranks made of an adapter and its moments. */
#define SHARED_STEPS 5

/* What a run wrote. */
typedef struct {
    char *metrics, *adapter, *config;
    uint64_t metrics_bytes, adapter_bytes, config_bytes;
    int steps;
    trace_step step[TRACE_STEPS];
    char line[TRACE_STEPS][400]; /* of a step, up to what depends on time and ranks */
} written;

static void free_written(written *w)
{
    free(w->metrics);
    free(w->adapter);
    free(w->config);
}

static void write_job(const char *path)
{
    job_spec spec = {0};
    trace_configure(&spec, run, scratch_path("not_used"));
    job_set(&spec, "backend=%s", backend);
    if (bf16)
        job_set(&spec, "dtype=bfloat16");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < spec.count; i++) {
        const char *value = strchr(spec.key[i], '=');
        fprintf(file, "%.*s: %s\n", (int)(value - spec.key[i]), spec.key[i], value + 1);
    }
    assert_int_equal(fclose(file), 0);
}

/* Fails the test with what the program printed, unless it ends with 0. */
static void train(int ranks, const char *offload, int steps, const char *job,
                  const char *output_dir)
{
    char count[16], output[600], activations[64], state[64], length[32];
    const char *log = scratch_path("log");
    int status;
    snprintf(count, sizeof count, "%d", ranks);
    snprintf(output, sizeof output, "output_dir=%s", output_dir);
    snprintf(activations, sizeof activations, "activation_offloading=%s", offload);
    snprintf(state, sizeof state, "optimizer_offload=%s", offload);
    snprintf(length, sizeof length, "max_steps=%d", steps);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int file = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(file, 1);
        dup2(file, 2);
        execl(launch, launch, "-n", count, program, "train", job, output, activations, state,
              length, (char *)NULL);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    uint64_t bytes;
    char *text = read_whole(&bytes, log);
    fail_msg("%d ranks end with wait status %#x:\n%s", ranks, (unsigned)status, text);
}

static double number(const json_t *object, const char *key)
{
    double value = 0;
    if (tsr_json_number(&value, object, key, -1e300, 1e300, "metrics.jsonl") < 0)
        fail_msg("%s", tsr_last_error());
    return value;
}

static void check_event(const char *line, const char *event, const char *key, const char *value)
{
    json_t *root = NULL;
    assert_int_equal(tsr_json_parse(&root, line, strlen(line), "metrics.jsonl"), TSR_OK);
    assert_string_equal(json_string_value(json_object_get(root, "event")), event);
    if (key)
        assert_string_equal(json_string_value(json_object_get(root, key)), value);
    json_decref(root);
}

static void read_step(written *out, int i, const char *line)
{
    json_t *root = NULL;
    const char *end = strstr(line, ",\"tokens_per_s\"");
    assert_non_null(end);
    assert_true((size_t)(end - line) < sizeof out->line[i]);
    snprintf(out->line[i], sizeof out->line[i], "%.*s", (int)(end - line), line);
    if (tsr_json_parse(&root, line, strlen(line), "metrics.jsonl") < 0)
        fail_msg("%s", tsr_last_error());
    assert_int_equal((int)number(root, "step"), i + 1);
    out->step[i] =
        (trace_step){number(root, "loss"), number(root, "grad_norm"), number(root, "learning_rate"),
                     (int64_t)number(root, "label_tokens")};
    json_decref(root);
}

/* A first line, one for each step, a last line. */
static void read_metrics(written *out)
{
    char *rest = out->metrics, *line;
    int count = 0;
    while ((line = strsep(&rest, "\n")) && *line) {
        if (count == 0)
            check_event(line, "start", NULL, NULL);
        else if (count <= out->steps)
            read_step(out, count - 1, line);
        else
            check_event(line, "end", "status", "done");
        count++;
    }
    assert_int_equal(count, out->steps + 2);
}

/* word: "2" or "2:offload" */
static void run_ranks(written *out, const char *word, int steps, const char *job)
{
    char directory[300], path[400];
    snprintf(directory, sizeof directory, "%s_%s_%d", scratch_path("out"), word, steps);
    train(atoi(word), strchr(word, ':') ? "true" : "false", steps, job, directory);
    out->steps = steps;
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    out->metrics = read_whole(&out->metrics_bytes, path);
    snprintf(path, sizeof path, "%s/adapter_config.json", directory);
    out->config = read_whole(&out->config_bytes, path);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", directory);
    out->adapter = read_whole(&out->adapter_bytes, path);
    read_metrics(out);
}

static void judge_adapter(const trace_golden *golden)
{
    char path[400];
    snprintf(path, sizeof path, "%s_1_%d/adapter_model.safetensors", scratch_path("out"),
             TRACE_STEPS);
    tsr_safetensors *file = golden_open(path);
    assert_int_equal(tsr_safetensors_count(file), golden->tensor_count);
    float *all = malloc(golden->begin[golden->tensor_count] * sizeof *all);
    assert_non_null(all);
    for (int i = 0; i < golden->tensor_count; i++) {
        uint64_t count;
        float *values = golden_f32(&count, file, "%s", golden->tensor[i]);
        assert_int_equal(count, golden->begin[i + 1] - golden->begin[i]);
        memcpy(all + golden->begin[i], values, count * sizeof *all);
        free(values);
    }
    trace_judge_final(golden, all);
    free(all);
    tsr_safetensors_close(file);
}

static void assert_same(const written *a, const written *b, const char *ranks)
{
    assert_int_equal(a->steps, b->steps);
    for (int i = 0; i < a->steps; i++)
        if (strcmp(a->line[i], b->line[i]) != 0)
            fail_msg("%s ranks write %s, one rank %s", ranks, b->line[i], a->line[i]);
    if (a->adapter_bytes != b->adapter_bytes ||
        memcmp(a->adapter, b->adapter, a->adapter_bytes) != 0)
        fail_msg("the adapter of %s ranks is not that of one", ranks);
    assert_int_equal(a->config_bytes, b->config_bytes);
    assert_memory_equal(a->config, b->config, a->config_bytes);
}

static void test_trace(void **state)
{
    (void)state;
    char job[300];
    trace_golden golden;
    written one = {0};
    snprintf(job, sizeof job, "%s", scratch_path("job.yaml"));
    trace_open(&golden, run);
    write_job(job);
    run_ranks(&one, "1", TRACE_STEPS, job);
    print_message("  %s by the command line, 1 rank:\n", run->name);
    if (bf16) {
        trace_judge_bf16(&golden, one.step);
    } else {
        trace_judge_steps(&golden, one.step);
        judge_adapter(&golden);
    }
    free_written(&one);
    one = (written){0};
    if (rank_counts[1])
        run_ranks(&one, "1", SHARED_STEPS, job);
    for (char **count = rank_counts + 1; *count; count++) {
        written more = {0};
        run_ranks(&more, *count, SHARED_STEPS, job);
        assert_same(&one, &more, *count);
        free_written(&more);
        print_message("  %s ranks: the same text and bytes\n", *count);
    }
    free_written(&one);
    trace_close(&golden);
}

/* Cuts `wanted` rank counts to those that there are GPUs for; false if too few are left. */
static bool keep_gpus(int wanted)
{
    int gpus = 0, kept = 0;
    if (tsr_device_cuda_count(&gpus) != TSR_OK)
        gpus = 0;
    while (kept < wanted && atoi(rank_counts[kept]) <= gpus)
        kept++;
    rank_counts[kept] = NULL;
    if (kept > 1 || (kept == 1 && wanted == 1))
        return true;
    printf("skipped: %d GPUs\n", gpus);
    return false;
}

/* Splits "cuda:bfloat16"; false where there is nothing to judge it by. */
static bool choose_backend(char *word)
{
    char *dtype = strchr(word, ':');
    backend = word;
    if (!dtype)
        return true;
    *dtype = 0;
    bf16 = !strcmp(dtype + 1, "bfloat16");
    if (!bf16)
        exit(64);
    if (!trace_has_bf16(run))
        printf("skipped: no %s/%s/bf16.json; tools/bf16_traces.py makes it on a GPU\n", TRACES,
               run->directory);
    return trace_has_bf16(run);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace)};
    if (argc < 6 || strcmp(argv[5], "1") != 0)
        return 64;
    launch = argv[1];
    program = argv[2];
    run = trace_find(argv[3]);
    if (!choose_backend(argv[4]))
        return 77;
    rank_counts = argv + 5;
    if (!strcmp(backend, "cuda") && !keep_gpus(argc - 5))
        return 77;
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
