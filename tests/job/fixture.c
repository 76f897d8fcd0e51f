#include "job/fixture.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- where ---- */

static char backend_key[32] = "backend=cpu", dtype_key[32] = "dtype=auto";
static int most_ranks = JOB_RANKS_MAX, times = 1;

void job_choose_backend(int argc, char **argv)
{
    int gpus = 0;
    if (argc < 4)
        return;
    snprintf(backend_key, sizeof backend_key, "backend=%s", argv[1]);
    snprintf(dtype_key, sizeof dtype_key, "dtype=%s", argv[2]);
    most_ranks = atoi(argv[3]);
    times = 16;
    if (strcmp(argv[1], "cuda") != 0)
        return;
    if (tsr_device_cuda_count(&gpus) != TSR_OK)
        gpus = 0;
    if (gpus < most_ranks) {
        printf("skipped: %d GPUs\n", gpus);
        exit(77);
    }
}

void job_backend_keys(const char *out[JOB_BACKEND_KEYS])
{
    out[0] = backend_key;
    out[1] = dtype_key;
}

int job_ranks(int wanted)
{
    return wanted < most_ranks ? wanted : most_ranks;
}

bool job_on_gpu(void)
{
    return strstr(backend_key, "cuda") != NULL;
}

bool job_on_cards(void)
{
    return job_on_gpu() && most_ranks > 1;
}

bool job_has_fp8(void)
{
    tsr_device *device;
    if (!job_on_gpu())
        return true;
    if (tsr_device_create_cuda(&device, &(tsr_device_options){.local_rank_count = 1}) < 0)
        fail_msg("%s", tsr_last_error());
    bool has = tsr_kernels_fp8_supported(device) == TSR_OK;
    if (!has)
        print_message("%s\n", tsr_last_error());
    tsr_device_destroy(device);
    return has;
}

int job_tokens(int few)
{
    return few * times;
}

/* ---- files ---- */

static unsigned random_below(unsigned *state, unsigned bound)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % bound;
}

/* masked: of three ids one is -100. */
static void write_ids(FILE *file, const char *name, unsigned *state, unsigned count, unsigned vocab,
                      bool masked)
{
    fprintf(file, "\"%s\": [", name);
    for (unsigned i = 0; i < count; i++) {
        unsigned id = random_below(state, vocab);
        if (masked && random_below(state, 3) == 0)
            fprintf(file, "%s-100", i ? ", " : "");
        else
            fprintf(file, "%s%u", i ? ", " : "", id);
    }
    fputs("]", file);
}

void job_write_documents(const char *name, int rows, unsigned vocab, unsigned seed)
{
    FILE *file = fopen(scratch_path(name), "w");
    if (!file)
        fail_msg("cannot write %s", name);
    for (int i = 0; i < rows; i++) {
        unsigned count = (unsigned)job_tokens(3 + (int)random_below(&seed, i % 3 ? 12 : 34));
        fputs("{", file);
        write_ids(file, "input_ids", &seed, count, vocab, false);
        if (i % 2) {
            fputs(", ", file);
            write_ids(file, "labels", &seed, count, vocab, true);
        }
        if (i % 4 == 2)
            fprintf(file, ", \"seq_lengths\": [2, %u]", count - 2);
        fputs("}\n", file);
    }
    fclose(file);
}

void job_write_model(const char *name, void (*change)(const tsr_safetensors *shard, char *bytes))
{
    static const char *const names[] = {
        "config.json", "model.safetensors.index.json", "model-00002-of-00004.safetensors",
        "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors"};
    static const char first[] = "model-00001-of-00004.safetensors";
    char path[512], copy[512];
    uint64_t bytes;
    tsr_safetensors *shard;
    assert_int_equal(mkdir(scratch_path(name), 0777), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, JOB_MODEL "/%s", names[i]);
        snprintf(copy, sizeof copy, "%s/%s", name, names[i]);
        assert_int_equal(symlink(path, scratch_path(copy)), 0);
    }
    snprintf(path, sizeof path, JOB_MODEL "/%s", first);
    snprintf(copy, sizeof copy, "%s/%s", name, first);
    assert_int_equal(tsr_safetensors_open(&shard, path), TSR_OK);
    char *data = read_whole(&bytes, path);
    change(shard, data);
    write_bytes(scratch_path(copy), data, bytes);
    free(data);
    tsr_safetensors_close(shard);
}

int job_thread_count(void)
{
    return count_entries("/proc/self/task");
}

/* ---- a run ---- */

typedef struct {
    tsr_comm *comm;
    const char *config, *output;
    bool overwrite;
    const job_event *event;     /* of this rank; NULL: none */
    pthread_barrier_t *started; /* of all ranks, where the event is before the first step */
    int rank, status, reports;
    volatile int stop;
    job_result result;
} rank_run;

static int evaluate(rank_run *run, tsr_job *job)
{
    tsr_job_evaluation *evaluation = &run->result.eval[run->result.eval_count];
    if (run->event && run->event->stop_evaluating == run->result.eval_count + 1)
        run->stop = 1;
    evaluation->size = sizeof *evaluation;
    int status = tsr_job_evaluate(job, evaluation);
    if (status == 0 && evaluation->stopped)
        run->result.stopped = true;
    else
        run->result.eval_count++;
    return status == 0 && evaluation->save ? tsr_job_checkpoint(job) : status;
}

/* Of a quantized checkpoint the quant_state tensors say how the others are stored; they are read
 * before the plan is made. */
static uint64_t described_bytes(const tsr_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < tsr_checkpoint_count(checkpoint); i++)
        if (strstr(tsr_checkpoint_at(checkpoint, i)->name, "quant_state"))
            bytes += tsr_checkpoint_at(checkpoint, i)->bytes;
    return bytes;
}

static bool has_slots(const tsr_memory_plan *memory)
{
    for (int i = 0; i < memory->count; i++)
        if (!strcmp(memory->buffer[i].name, "slot[0]"))
            return true;
    return false;
}

static void measure(rank_run *run, tsr_job *job)
{
    job_rank_memory *m = &run->result.memory[run->rank];
    m->planned_device = m->info.device_peak_bytes;
    m->node = job->decision.memory.total[TSR_PLACE_NODE];
    m->planned_host = m->info.host_peak_bytes - m->node;
    m->device_high = tsr_arena_high_water(job->device_arena);
    m->host_high = tsr_arena_high_water(job->host_arena);
    m->described = described_bytes(job->inputs.checkpoint);
    m->has_slots = has_slots(&job->decision.memory);
    m->slots = (int)job->inputs.config.slots;
    m->watched = !job->inputs.cuda;
    tsr_executor_live_slots(job->executor, &m->live_most);
}

static void happen(rank_run *run, tsr_job *job, int step)
{
    if (run->event && run->event->stop_after == step)
        run->stop = 1;
    if (run->event && run->event->fail_after == step)
        tsr_executor_fail(job->executor, tsr_fail(TSR_EDATA, "row 9 is bad"));
    if (run->event && run->event->overflow_after == step)
        job->sums->gradient_overflow = 1;
    if (run->event && run->event->spoil_after == step) {
        const tsr_trainable *t = &job->decision.store.trainable;
        tsr_streams_synchronize(tsr_job_streams(job));
        t->master[tsr_trainable_at(t, 0, 0).begin] = NAN;
    }
}

static void spoil_embedding(const rank_run *run, tsr_job *job)
{
    const tsr_tensor *table = job->inputs.layout.embedding;
    uint64_t bytes = table->shape[1] * tsr_dtype_bytes(table->dtype);
    if (run->event && run->event->spoil_token)
        memset(job->embedding + (uint64_t)run->event->spoil_token * bytes, 0xff, bytes);
    pthread_barrier_wait(run->started); /* the others read it in their first step */
}

static int steps(rank_run *run, tsr_job *job)
{
    job_result *r = &run->result;
    bool evaluates = tsr_config_evaluates(&job->inputs.config);
    tsr_job_report report = TSR_JOB_REPORT_INIT;
    bool resumed = tsr_job_resumed(job, &report) == 1;
    int status = evaluates && (!resumed || report.evaluate) ? evaluate(run, job) : 0;
    r->resumed = report.step;
    while (status == 0 && !report.last && !r->stopped && r->step_count < JOB_STEPS_MAX) {
        status = tsr_job_step(job, &report);
        if (status != 0)
            break;
        r->step[r->step_count++] = report;
        r->memory[run->rank].reported = report.device_bytes;
        r->stopped = report.stopped;
        happen(run, job, r->step_count);
        if (report.evaluate && !report.stopped)
            status = evaluate(run, job);
        if (status == 0 && (report.save || r->stopped))
            status = tsr_job_checkpoint(job);
    }
    if (status == 0 && tsr_job_step(job, &report) != TSR_JOB_DONE)
        status = tsr_fail(TSR_EINTERNAL, "a step after the last one");
    return status == TSR_JOB_DONE ? 0 : status;
}

static void *run_rank(void *user)
{
    rank_run *run = user;
    job_rank_memory *memory = &run->result.memory[run->rank];
    char output[600];
    snprintf(output, sizeof output, "output_dir=%s", scratch_path(run->output));
    const char *overrides[] = {output, backend_key, dtype_key,
                               run->overwrite ? "overwrite_output_dir=true" : "defaults=tessera",
                               run->event ? run->event->override : NULL};
    tsr_job_options options = {.size = sizeof(tsr_job_options),
                               .config_text = run->config,
                               .overrides = overrides,
                               .override_count = overrides[4] ? 5 : 4,
                               .threads = 1,
                               .timeout_seconds = 60,
                               .stop = &run->stop};
    tsr_job *job = NULL;
    memory->info.size = sizeof memory->info;
    int status = tsr_job_create_on(&job, &options, run->comm);
    if (status == 0)
        status = tsr_job_plan(job, &memory->info);
    if (status == 0) {
        memory->read_before_start = tsr_checkpoint_bytes_read(job->inputs.checkpoint);
        status = tsr_job_start(job);
    }
    if (status == 0 && run->started)
        spoil_embedding(run, job);
    if (status == 0)
        status = steps(run, job);
    if (status == 0) {
        status = tsr_job_save(job);
        measure(run, job);
    }
    run->status = status;
    run->reports = tsr_job_reports();
    snprintf(run->result.message, sizeof run->result.message, "%s", tsr_last_error());
    tsr_job_destroy(job);
    return NULL;
}

static void read_adapter(job_result *out, const char *output)
{
    uint64_t bytes;
    char name[600];
    snprintf(name, sizeof name, "%s/adapter_model.safetensors", output);
    out->adapter = (uint8_t *)read_whole(&bytes, scratch_path(name));
    out->adapter_bytes = bytes;
}

static void assert_bits(double a, double b, const char *what, const char *name, int index)
{
    if (memcmp(&a, &b, sizeof a) != 0)
        fail_msg("%s: %s %d is %.17g and %.17g", what, name, index, a, b);
}

static void assert_step(const tsr_job_report *p, const tsr_job_report *q, const char *what)
{
    int step = (int)p->step;
    assert_bits(p->loss, q->loss, what, "loss of step", step);
    assert_bits(p->grad_norm, q->grad_norm, what, "grad_norm of step", step);
    assert_bits(p->mean_token_accuracy, q->mean_token_accuracy, what, "accuracy of step", step);
    assert_bits(p->entropy, q->entropy, what, "entropy of step", step);
    assert_bits(p->expert_load_over_mean, q->expert_load_over_mean, what, "load of step", step);
    assert_bits(p->expert_empty_share, q->expert_empty_share, what, "empty experts of step", step);
    assert_bits(p->aux_loss, q->aux_loss, what, "aux_loss of step", step);
    assert_bits(p->learning_rate, q->learning_rate, what, "learning_rate of step", step);
    assert_bits(p->epoch, q->epoch, what, "epoch of step", step);
    if (p->step != q->step || p->label_tokens != q->label_tokens ||
        p->input_tokens != q->input_tokens || p->skipped != q->skipped ||
        p->expert_dropped != q->expert_dropped ||
        (p->last != q->last && !p->stopped && !q->stopped))
        fail_msg("%s: step %d differs in its counts", what, step);
}

static void assert_numbers(const job_result *a, const job_result *b, const char *what)
{
    if (a->step_count != b->step_count || a->eval_count != b->eval_count)
        fail_msg("%s: %d and %d steps, %d and %d evaluations", what, a->step_count, b->step_count,
                 a->eval_count, b->eval_count);
    for (int i = 0; i < a->step_count; i++)
        assert_step(&a->step[i], &b->step[i], what);
    for (int i = 0; i < a->eval_count; i++) {
        const tsr_job_evaluation *p = &a->eval[i], *q = &b->eval[i];
        assert_bits(p->loss, q->loss, what, "evaluation", i);
        assert_bits(p->mean_token_accuracy, q->mean_token_accuracy, what, "its accuracy", i);
        assert_bits(p->entropy, q->entropy, what, "its entropy", i);
    }
}

static void run_all(job_result *out, int ranks, rank_run prototype, const job_event *event)
{
    tsr_comm *comms[JOB_RANKS_MAX] = {0};
    pthread_t threads[JOB_RANKS_MAX];
    rank_run *runs = calloc((size_t)ranks, sizeof *runs);
    assert_non_null(runs);
    assert_int_equal(tsr_comm_create_threads(comms, ranks, 60), TSR_OK);
    pthread_barrier_t started;
    pthread_barrier_init(&started, NULL, (unsigned)ranks);
    if (event && event->spoil_token)
        prototype.started = &started;
    for (int i = 0; i < ranks; i++) {
        runs[i] = prototype;
        runs[i].comm = comms[i];
        runs[i].rank = i;
        runs[i].event = event && event->rank == i ? event : NULL;
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &runs[i]), 0);
    }
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&started);
    for (int i = 1; i < ranks; i++) {
        if (runs[i].status != runs[0].status)
            fail_msg("rank 0 ended with %d (%s), rank %d with %d (%s)", runs[0].status,
                     runs[0].result.message, i, runs[i].status, runs[i].result.message);
        if (runs[0].status == 0)
            assert_numbers(&runs[0].result, &runs[i].result, "ranks of one run");
        runs[0].result.memory[i] = runs[i].result.memory[i];
    }
    *out = runs[0].result;
    out->status = runs[0].status;
    out->reporters = 0;
    for (int i = 0; i < ranks && out->status < 0; i++)
        if (runs[i].reports) {
            out->reporters++;
            memcpy(out->message, runs[i].result.message, sizeof out->message);
        }
    free(runs);
    if (out->status == 0)
        read_adapter(out, prototype.output);
}

void job_run(job_result *out, int ranks, const char *config)
{
    job_run_with(out, ranks, config, NULL);
}

void job_run_with(job_result *out, int ranks, const char *config, const job_event *event)
{
    run_all(out, ranks, (rank_run){.config = config, .output = "output", .overwrite = true}, event);
}

void job_run_in(job_result *out, int ranks, const char *config, const char *output,
                const job_event *event)
{
    run_all(out, ranks, (rank_run){.config = config, .output = output}, event);
}

void job_result_free(job_result *result)
{
    free(result->adapter);
    result->adapter = NULL;
}

void job_assert_part(const job_result *whole, const job_result *part, int after, bool adapter,
                     const char *what)
{
    if (part->step_count + after > whole->step_count)
        fail_msg("%s: %d steps after %d, %d in the whole run", what, part->step_count, after,
                 whole->step_count);
    for (int i = 0; i < part->step_count; i++)
        assert_step(&whole->step[i + after], &part->step[i], what);
    if (adapter && (whole->adapter_bytes != part->adapter_bytes ||
                    memcmp(whole->adapter, part->adapter, whole->adapter_bytes) != 0))
        fail_msg("%s: the adapter files differ", what);
}

void job_check_resumed(const job_result *whole, size_t kind, const char *name, job_run_kind *run)
{
    static const char saves[] = "save_strategy: steps\nsave_steps: 1\n";
    static const char again[] =
        "save_strategy: steps\nsave_steps: 1\nresume_from_checkpoint: true\n";
    job_result first, second;
    run(&first, job_ranks(2), kind, saves, "parts", &(job_event){.stop_after = 1});
    assert_true(first.stopped);
    run(&second, 1, kind, again, "parts", NULL);
    assert_true(second.resumed > 0);
    job_assert_part(whole, &second, (int)second.resumed, true, name);
    job_result_free(&first);
    job_result_free(&second);
}

void job_assert_resumed(const job_result *whole, int saved, const char *before, int resumed,
                        const char *after)
{
    static int number;
    const job_event stop = {.rank = saved - 1, .stop_after = 2};
    job_result first, second;
    char output[32], what[64];
    snprintf(output, sizeof output, "stopped-%d", ++number);
    snprintf(what, sizeof what, "saved on %d ranks, resumed on %d", saved, resumed);
    job_run_in(&first, saved, before, output, &stop);
    if (first.status != 0 || !first.stopped)
        fail_msg("%s: not stopped: %s", what, first.message);
    assert_int_equal(first.step_count, 3);
    job_run_in(&second, resumed, after, output, NULL);
    if (second.status != 0)
        fail_msg("%s: %s", what, second.message);
    assert_int_equal(second.resumed, 3);
    assert_int_equal(second.step_count, 3);
    job_assert_part(whole, &first, 0, false, what);
    job_assert_part(whole, &second, 3, true, what);
    job_result_free(&first);
    job_result_free(&second);
}

void job_assert_same(const job_result *a, const job_result *b, const char *what)
{
    assert_numbers(a, b, what);
    if (a->adapter_bytes != b->adapter_bytes ||
        memcmp(a->adapter, b->adapter, a->adapter_bytes) != 0)
        fail_msg("%s: the adapter files differ", what);
}

static void assert_bytes(const char *what, int rank, const char *name, uint64_t planned,
                         uint64_t measured)
{
    if (planned != measured)
        fail_msg("%s: rank %d: %s: planned %llu bytes, measured %llu", what, rank, name,
                 (unsigned long long)planned, (unsigned long long)measured);
}

void job_assert_plan(const job_result *result, int ranks, const char *what)
{
    for (int i = 0; i < ranks; i++) {
        const job_rank_memory *m = &result->memory[i];
        assert_bytes(what, i, "device", m->planned_device, m->device_high);
        assert_bytes(what, i, "device, as reported", m->planned_device, m->reported);
        assert_bytes(what, i, "host", m->planned_host, m->host_high);
        assert_bytes(what, i, "weights read before the start", m->described, m->read_before_start);
        if (m->watched && (m->live_most > m->slots || (m->live_most > 0) != m->has_slots))
            fail_msg("%s: rank %d: %d slots lived at once, %d are allowed", what, i, m->live_most,
                     m->slots);
    }
}
