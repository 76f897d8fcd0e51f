/*
 * fixture.h: whole jobs on ranks that are threads of one process, and what they did; on the CPU, or
 * on GPUs, one for each rank.
 */
#ifndef TESTS_TRAIN_JOB_FIXTURE_H
#define TESTS_TRAIN_JOB_FIXTURE_H

#include "job/parts.h"
#include "support/scratch.h"

#define JOB_RANKS_MAX 8
#define JOB_STEPS_MAX 8
#define JOB_MODEL     TSR_SOURCE_DIR "/examples/tiny-llama"
/* JOB_MODEL's first three layers (CMakeLists.txt): a first, a last and one between, for what needs no more of them. */
#define JOB_SHALLOW TSR_SHALLOW_MODEL
#define JOB_TRACES  TSR_SOURCE_DIR "/tests/golden/traces"

/* A program's arguments: none, or BACKEND DTYPE RANKS ("cuda bfloat16 2"), with which documents are 16
 * times as long: some kernels are for many tokens. Ends the program with 77 (skipped) where there are
 * fewer GPUs than ranks. Before anything else. */
void job_choose_backend(int argc, char **argv);

/* The overrides that choose it. */
#define JOB_BACKEND_KEYS 2
void job_backend_keys(const char *out[JOB_BACKEND_KEYS]);

/* `wanted` ranks, or as many as there may be. */
int job_ranks(int wanted);

/* Whether the backend is CUDA's: what a test writes into a job's device memory by its pointers, it cannot there. */
bool job_on_gpu(void);

/* Whether the ranks have a card each, of several: what a test says of one card or of the CPU's ranks as
 * well need not be said there again, where a job takes seconds to connect its cards. */
bool job_on_cards(void);

/* Whether this backend has matmuls in e4m3; says why not. */
bool job_has_fp8(void);

/* The tokens of a document that has `few` without arguments. */
int job_tokens(int few);

/* In the scratch directory: documents of unequal length as pretokenized rows of ids below `vocab`, some with several documents
 * or without all labels. */
void job_write_documents(const char *name, int rows, unsigned vocab, unsigned seed);

/* In the scratch directory: JOB_MODEL as `name`, of whose first shard `change` had the bytes. */
void job_write_model(const char *name, void (*change)(const tsr_safetensors *shard, char *bytes));

/* What one rank measured. */
typedef struct {
    uint64_t planned_device, planned_host, node, device_high, host_high, reported;
    uint64_t read_before_start, described; /* described: bytes that say how weights are stored */
    int live_most, slots;
    bool has_slots, watched; /* watched: live_most was counted, as on the CPU alone */
    tsr_job_plan_info info;
} job_rank_memory;

/* What a run did; numbers that all ranks must agree on are rank 0's after the check that they do.
 */
typedef struct {
    int status;
    int reporters; /* ranks that were told to report the failure */
    bool stopped;
    int64_t resumed;    /* the step that it went on from; 0: none */
    char message[4096]; /* of the last one of these; otherwise rank 0's last */
    int step_count, eval_count;
    tsr_job_report step[JOB_STEPS_MAX];
    tsr_job_evaluation eval[JOB_STEPS_MAX + 1];
    job_rank_memory memory[JOB_RANKS_MAX];
    uint8_t *adapter; /* bytes of adapter_model.safetensors; job_result_free */
    size_t adapter_bytes;
} job_result;

/* Trains a whole job: create, plan, start, steps with evaluations as the configuration asks, save.
 * config: "key: value" lines; output_dir is added. ranks: that many threads. Fails the test if the
 * ranks disagree on a number; a status below 0 is left in the result. */
void job_run(job_result *out, int ranks, const char *config);

/* What happens to one rank on the way. */
typedef struct {
    int rank;
    const char *override; /* "key=value" that only this rank was given */
    int stop_after;       /* its stop flag is set after this step */
    int stop_evaluating;  /* or before this evaluation, from 1 */
    int fail_after;       /* it fails after this step */
    int overflow_after;   /* a gradient of its step after this one counts as not finite */
    int spoil_token; /* before the first step its row of the embedding becomes NaN, on all ranks */
    int spoil_after; /* after this step its first master becomes NaN */
} job_event;

void job_run_with(job_result *out, int ranks, const char *config, const job_event *event);

/* The same in `output` of the scratch directory, which is not emptied before. */
void job_run_in(job_result *out, int ranks, const char *config, const char *output,
                const job_event *event);
void job_result_free(job_result *result);

/* Fails unless step `i` of `part` is, bit for bit, step `i + after` of `whole`, for all of part's
 * steps, and, with `adapter`, unless the adapters are the same. */
void job_assert_part(const job_result *whole, const job_result *part, int after, bool adapter,
                     const char *what);

/* A job of many kinds, each in a directory of its own below `output`. */
typedef void job_run_kind(job_result *out, int ranks, size_t kind, const char *more,
                          const char *output, const job_event *event);

/* Stopped after a step on two ranks, and gone on with on one: the bits of no stop. */
void job_check_resumed(const job_result *whole, size_t kind, const char *name, job_run_kind *run);

/* Sanitizers are slow: there one kind has the one half of what is checked, the next one the other. */
#ifdef TSR_SANITIZED
#define HAS_HALF(kind, half) ((kind) % 2 == (half))
#else
#define HAS_HALF(kind, half) true
#endif

/* Stops `before` after step 3 of 6 on `saved` ranks and resumes it with `after` on `resumed`: together they must have the bits of
 * `whole`. */
void job_assert_resumed(const job_result *whole, int saved, const char *before, int resumed,
                        const char *after);

/* Fails unless both runs have the same bits: losses, norms, evaluations, adapter file. */
void job_assert_same(const job_result *a, const job_result *b, const char *what);

/* Fails unless each rank's plan is what was measured, and no more slots than allowed lived. */
void job_assert_plan(const job_result *result, int ranks, const char *what);

/* Threads of this process. */
int job_thread_count(void);

#endif
