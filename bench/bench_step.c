/*
 * bench_step.c: training steps of this program and of Hugging Face PEFT on the same CPU, in turns.
 *
 *     bench_step TESSERA PYTHON TOOLS MODEL RESULT.json [PAIRS [STEPS]]
 *
 * Both read the same pretokenized rows (16 of 256 random tokens, all of them labels), 4 a step, and
 * the same NF4 base, in fp32; LoRA and DoRA with r = 8 on all seven linears. A pair is one run of
 * each, one right after the other, so that what else the machine does weighs on both. The ratio of a
 * pair is PEFT's median step time over ours. Both losses of the first step must agree: else the work
 * was not the same. Beside it stands the floor: FLOPs of the step (model/work.h) at the rate of a matmul
 * measured in the same run.
 */
#include "base/philox.h"
#include "kernels/roofs.h"
#include "llama_layer.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROWS       16
#define ROW_TOKENS 256
#define BATCH      4
#define RANK       8
#define WARMUP     3
#define MAX_PAIRS  32
#define LOSS_MOST  1e-3
#define PATH_BYTES 4096

typedef struct {
    const char *tessera, *python, *tools, *model, *result;
    int pairs, steps;
    int threads; /* all cores of this machine, for both */
    char cpu[192];
    char directory[PATH_BYTES / 4]; /* rows, job and output; removed at the end */
    llama_layer layer;              /* all alike */
    double layers, vocabulary;
} bench;

typedef struct {
    double step_s, loss; /* median of a step; the first step's loss */
} measured;

static _Noreturn void die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs("bench_step: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static FILE *create(const bench *b, const char *name, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%s", b->directory, name);
    FILE *file = fopen(path, "w");
    if (!file)
        die("%s cannot be written", path);
    return file;
}

/* ---- input ---- */

static double number(const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    if (!json_is_integer(value))
        die("config.json: %s is missing", key);
    return json_number_value(value);
}

#define UP_PROJ 5 /* of the block's linears */

static void read_shape(bench *b)
{
    char path[PATH_BYTES];
    json_error_t error;
    snprintf(path, sizeof path, "%s/config.json", b->model);
    json_t *config = json_load_file(path, 0, &error);
    if (!config)
        die("%s: %s", path, error.text);
    double heads = number(config, "num_attention_heads"), d = number(config, "hidden_size");
    bool explicit_dim = json_is_integer(json_object_get(config, "head_dim"));
    double tokens = ROW_TOKENS * BATCH;
    double head_dim = explicit_dim ? number(config, "head_dim") : d / heads;
    const tsr_model_config shape = {
        .hidden_size = (uint64_t)d,
        .intermediate_size = (uint64_t)number(config, "intermediate_size"),
        .head_count = (uint64_t)heads,
        .kv_head_count = (uint64_t)number(config, "num_key_value_heads"),
        .head_dim = (uint64_t)head_dim};
    b->layers = number(config, "num_hidden_layers");
    b->vocabulary = number(config, "vocab_size");
    if (llama_layer_make(&b->layer, &shape, 0, (tsr_work_linear){.r = RANK}, sizeof(float), false) <
        0)
        die("%s", tsr_last_error());
    b->layer.layer.tokens = tokens;
    b->layer.layer.pairs = tokens * (ROW_TOKENS + 1) / 2;
    json_decref(config);
}

static void write_inputs(const bench *b)
{
    char path[PATH_BYTES];
    FILE *rows = create(b, "rows.jsonl", path);
    uint64_t count = 0;
    for (int row = 0; row < ROWS; row++) {
        fputs("{\"input_ids\": [", rows);
        for (int i = 0; i < ROW_TOKENS; i++)
            fprintf(rows, "%s%d", i ? "," : "", (int)(tsr_mix(++count) % (uint64_t)b->vocabulary));
        fputs("]}\n", rows);
    }
    fclose(rows);
    FILE *job = create(b, "job.yaml", path);
    fprintf(job,
            "model_name_or_path: \"%s\"\ndataset: \"%s/rows.jsonl\"\n"
            "dataset_format: pretokenized\nshuffle: false\ndtype: float32\n"
            "lora_r: %d\nlora_alpha: %d\nlora_target_modules: all-linear\n"
            "per_device_train_batch_size: %d\ntotal_batch_size: %d\nmax_steps: %d\n"
            "lr_scheduler_type: constant\nlogging_steps: 1000000\n"
            "output_dir: \"%s/out\"\noverwrite_output_dir: true\n",
            b->model, b->directory, RANK, 2 * RANK, BATCH, BATCH, WARMUP + b->steps, b->directory);
    fclose(job);
}

/* ---- the two programs ---- */

/* Runs a program to its end; its stdout goes to `output`, its stderr to a file that is shown if it
 * fails. */
static void run(const bench *b, char *const arguments[], const char *output)
{
    char errors[PATH_BYTES];
    snprintf(errors, sizeof errors, "%s/errors", b->directory);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0)
        die("no process can be started");
    if (child == 0) {
        if (!freopen(output, "w", stdout) || !freopen(errors, "w", stderr))
            _Exit(126);
        execv(arguments[0], arguments);
        perror(arguments[0]);
        _Exit(127);
    }
    int status;
    if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    FILE *file = fopen(errors, "r");
    for (int c; file && (c = fgetc(file)) != EOF;)
        fputc(c, stderr);
    die("%s failed", arguments[0]);
}

static measured run_tessera(const bench *b, bool dora, json_t *about)
{
    char job[PATH_BYTES], path[PATH_BYTES], line[65536];
    snprintf(job, sizeof job, "%s/job.yaml", b->directory);
    char *arguments[] = {(char *)b->tessera, "train", job,
                         dora ? "use_dora=true" : "use_dora=false", NULL};
    run(b, arguments, "/dev/null");
    snprintf(path, sizeof path, "%s/out/metrics.jsonl", b->directory);
    FILE *file = fopen(path, "r");
    if (!file)
        die("%s is missing", path);
    double *seconds = calloc((size_t)b->steps, sizeof *seconds);
    measured m = {0};
    while (fgets(line, sizeof line, file)) {
        json_t *object = json_loads(line, 0, NULL);
        json_int_t step = json_integer_value(json_object_get(object, "step"));
        if (step == 1)
            m.loss = json_number_value(json_object_get(object, "loss"));
        if (step > WARMUP && step <= WARMUP + b->steps)
            seconds[step - WARMUP - 1] = json_number_value(json_object_get(object, "step_s"));
        if (json_object_get(object, "event") && json_object_get(object, "version"))
            json_object_update_missing(about, object);
        json_decref(object);
    }
    fclose(file);
    m.step_s = median(seconds, b->steps);
    free(seconds);
    return m;
}

static measured run_peft(const bench *b, bool dora, json_t *about)
{
    char script[PATH_BYTES], rows[PATH_BYTES], output[PATH_BYTES], steps[16], threads[16];
    char batch[16], r[16], warmup[16];
    snprintf(script, sizeof script, "%s/peft_speed.py", b->tools);
    snprintf(rows, sizeof rows, "%s/rows.jsonl", b->directory);
    snprintf(output, sizeof output, "%s/peft.json", b->directory);
    snprintf(steps, sizeof steps, "%d", b->steps);
    snprintf(threads, sizeof threads, "%d", b->threads);
    snprintf(batch, sizeof batch, "%d", BATCH);
    snprintf(r, sizeof r, "%d", RANK);
    snprintf(warmup, sizeof warmup, "%d", WARMUP);
    char *arguments[] = {(char *)b->python,
                         script,
                         "--model",
                         (char *)b->model,
                         "--data",
                         rows,
                         "--batch",
                         batch,
                         "--r",
                         r,
                         "--steps",
                         steps,
                         "--warmup",
                         warmup,
                         "--threads",
                         threads,
                         dora ? "--dora" : NULL,
                         NULL};
    run(b, arguments, output);
    json_error_t error;
    json_t *object = json_load_file(output, 0, &error);
    if (!object)
        die("%s printed no JSON: %s", script, error.text);
    measured m = {json_number_value(json_object_get(object, "step_s")),
                  json_number_value(json_array_get(json_object_get(object, "losses"), 0))};
    json_object_update_missing(about, json_object_get(object, "versions"));
    json_decref(object);
    return m;
}

/* ---- the floor ---- */

static void add_flops(void *user, const tsr_work_op *op)
{
    double *flops = user;
    flops[op->term] += op->least.flops;
}

/* FLOPs of a step by term, every token a label; their sum. */
static double count_flops(double flops[TSR_WORK_TERMS], bench *b)
{
    const tsr_work_layer *layer = &b->layer.layer;
    double sum = 0;
    for (int i = 0; i < b->layers; i++) {
        llama_layer_program(&b->layer, i == 0, TSR_KEEP_ALL);
        tsr_work_forward(layer, add_flops, flops);
        tsr_work_backward(layer, add_flops, flops);
    }
    const tsr_work_head head = {layer->tokens, (double)b->layer.block.width, b->vocabulary,
                                layer->element, true};
    tsr_work_chunk(&head, add_flops, flops);
    for (int i = 0; i < TSR_WORK_TERMS; i++)
        sum += flops[i];
    return sum;
}

/* The roof: the largest linear of a layer, or a square matmul where that is faster. */
static double measure_roof(bench *b)
{
    const tsr_roofs_matmul_shape shapes[2] = {
        {BATCH * ROW_TOKENS, (int64_t)b->layer.layer.linear[UP_PROJ].out,
         (int64_t)b->layer.layer.linear[UP_PROJ].in, true, TSR_F32},
        {1024, 1024, 1024, true, TSR_F32}};
    tsr_device *device;
    tsr_roofs *roofs;
    double most = 0;
    uint64_t bytes = tsr_roofs_matmul_bytes(&shapes[0]),
             square = tsr_roofs_matmul_bytes(&shapes[1]);
    if (tsr_device_create_cpu(&device, NULL) < 0 ||
        tsr_roofs_open(&roofs, tsr_kernels_cpu(), device, bytes > square ? bytes : square) < 0)
        die("%s", tsr_last_error());
    snprintf(b->cpu, sizeof b->cpu, "%s", tsr_device_description(device));
    b->threads = tsr_pool_thread_count(tsr_device_pool(device));
    for (int i = 0; i < 2; i++) {
        tsr_roof roof;
        if (tsr_roofs_matmul(&roof, roofs, &shapes[i], 2) < 0)
            die("%s", tsr_last_error());
        most = roof.rate > most ? roof.rate : most;
    }
    tsr_roofs_close(roofs);
    tsr_device_destroy(device);
    return most;
}

/* ---- the report ---- */

static json_t *list(const double *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(array, json_real(values[i]));
    return array;
}

static json_t *compare_adapter(const bench *b, bool dora, double floor_flops, double rate,
                               json_t *about)
{
    double ours[MAX_PAIRS], theirs[MAX_PAIRS], ratio[MAX_PAIRS];
    const char *name = dora ? "dora" : "lora";
    for (int i = 0; i < b->pairs; i++) {
        measured us = run_tessera(b, dora, json_object_get(about, "tessera"));
        measured peer = run_peft(b, dora, json_object_get(about, "peft"));
        if (!(fabs(us.loss - peer.loss) <= LOSS_MOST))
            die("%s: the losses of the first step are %.6f and %.6f: not the same work", name,
                us.loss, peer.loss);
        ours[i] = us.step_s;
        theirs[i] = peer.step_s;
        ratio[i] = peer.step_s / us.step_s;
        printf("%s  pair %d  tessera %.1f ms  peft %.1f ms  ratio %.3f\n", name, i + 1,
               1e3 * ours[i], 1e3 * theirs[i], ratio[i]);
        fflush(stdout);
    }
    json_t *pairs = json_pack("{so so so}", "tessera_step_s", list(ours, b->pairs), "peft_step_s",
                              list(theirs, b->pairs), "ratio", list(ratio, b->pairs));
    double our = median(ours, b->pairs), their = median(theirs, b->pairs);
    double middle = median(ratio, b->pairs), tokens = BATCH * ROW_TOKENS;
    printf("%s  tessera %.1f ms (%.0f tokens/s)  peft %.1f ms  ratio %.3f (%.3f to %.3f)  "
           "of the floor %.2f\n",
           name, 1e3 * our, tokens / our, 1e3 * their, middle, ratio[0], ratio[b->pairs - 1],
           floor_flops / rate / our);
    return json_pack("{sf sf sf sf sf sf sf sf so}", "tessera_step_s", our, "peft_step_s", their,
                     "tessera_tokens_per_s", tokens / our, "peft_tokens_per_s", tokens / their,
                     "ratio", middle, "ratio_min", ratio[0], "ratio_max", ratio[b->pairs - 1],
                     "sol", floor_flops / rate / our, "pairs", pairs);
}

static json_t *report_floor(const double *flops, double sum, double rate)
{
    json_t *terms = json_object();
    for (tsr_work_term i = 0; i < TSR_WORK_TERMS; i++) {
        if (flops[i] <= 0)
            continue;
        printf("%-20s %7.3f GFLOP  %6.1f ms\n", tsr_work_term_name(i), 1e-9 * flops[i],
               1e3 * flops[i] / rate);
        json_object_set_new(terms, tsr_work_term_name(i), json_real(1e-9 * flops[i]));
    }
    printf("%-20s %7.3f GFLOP  %6.1f ms at %.1f GFLOP/s\n", "floor", 1e-9 * sum, 1e3 * sum / rate,
           1e-9 * rate);
    return json_pack("{so sf sf sf}", "terms_gflop", terms, "gflop", 1e-9 * sum, "gemm_gflops",
                     1e-9 * rate, "step_s", sum / rate);
}

static void measure(bench *b)
{
    double term[TSR_WORK_TERMS] = {0}, load = 0;
    if (getloadavg(&load, 1) == 1 && load > 0.5)
        fprintf(stderr, "bench_step: the machine is busy (load %.1f): the ratios will be rough\n",
                load);
    double flops = count_flops(term, b), rate = measure_roof(b);
    printf("%s, %s\n", b->cpu, tsr_kernels_cpu_set());
    json_t *floor = report_floor(term, flops, rate);
    json_t *about = json_pack("{s{} s{}}", "tessera", "peft");
    json_t *lora = compare_adapter(b, false, flops, rate, about);
    json_t *dora = compare_adapter(b, true, flops, rate, about);
    const json_t *start = json_object_get(about, "tessera");
    json_t *all = json_pack(
        "{ss sO* sO* sO ss ss sf si si si si so so so}", "model", strrchr(b->model, '/') + 1,
        "version", json_object_get(start, "version"), "commit", json_object_get(start, "commit"),
        "peer_versions", json_object_get(about, "peft"), "cpu", b->cpu, "kernel_set",
        tsr_kernels_cpu_set(), "load_before", load, "threads", b->threads, "rows_per_step", BATCH,
        "tokens_per_row", ROW_TOKENS, "r", RANK, "floor", floor, "lora", lora, "dora", dora);
    if (!all || json_dump_file(all, b->result, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) != 0)
        die("%s cannot be written", b->result);
    printf("written: %s\n", b->result);
    json_decref(about);
    json_decref(all);
}

static int argument(int count, char **arguments, int index, int otherwise, int most)
{
    int value = count > index ? atoi(arguments[index]) : otherwise;
    if (value < 1 || value > most)
        die("argument %d is out of range: 1 to %d", index, most);
    return value;
}

int main(int count, char **arguments)
{
    if (count < 6)
        die("TESSERA PYTHON TOOLS MODEL RESULT.json [PAIRS [STEPS]]");
    bench b = {.tessera = arguments[1],
               .python = arguments[2],
               .tools = arguments[3],
               .result = arguments[5],
               .pairs = argument(count, arguments, 6, 5, MAX_PAIRS),
               .steps = argument(count, arguments, 7, 12, 10000)};
    b.model = realpath(arguments[4], NULL);
    if (!b.model)
        die("%s: no such directory", arguments[4]);
    const char *temporary = getenv("TMPDIR");
    snprintf(b.directory, sizeof b.directory, "%s/bench_step.XXXXXX",
             temporary ? temporary : "/tmp");
    if (!mkdtemp(b.directory))
        die("%s cannot be created", b.directory);
    read_shape(&b);
    write_inputs(&b);
    measure(&b);
    char *remove[] = {"/bin/rm", "-r", b.directory, NULL};
    run(&b, remove, "/dev/null");
    free((void *)b.model);
    return 0;
}
