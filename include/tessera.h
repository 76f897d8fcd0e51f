/*
 * tessera.h: the public interface of libtessera, QLoRA and DoRA fine-tuning of language models,
 * sharded over ranks.
 *
 * A job is created from the text of a configuration (the same job.yaml that the program reads),
 * planned, started, stepped and saved:
 *
 *     create -> plan (optional) -> start -> step ... -> save -> destroy
 *                                  (evaluate and checkpoint in between, as a step's report asks)
 *
 * Ranks    Every rank creates the same job and makes the same calls in the same order. All calls
 *          but create with one rank are collective.
 * Manners  The library never exits, prints, installs a signal handler, or changes the working
 *          directory or the locale, and leaves no thread behind after tsr_job_destroy.  Jobs may
 *          live at the same time in one process, each on a thread of its own, and have the bits
 *          that they have alone. A call has the default rounding, no traps and the
 *          C locale, whatever its caller's thread has, which has them back afterwards.
 * Threads  One thread at a time uses a job; the stop flag may be set, and tsr_job_request_stop
 *          called, from anywhere (a signal handler too).
 * Errors   Every call returns TSR_OK or a negative status (tessera_status.h); tsr_last_error() has the message for this
 *          thread. On several ranks all return the same status. A failed job can only be destroyed.
 * Text     Messages and log lines hold nothing that a terminal obeys: what they quote is escaped. The texts of
 *          tsr_job_print_*, tsr_inspect and the like quote paths and JSON as they are; escape them before a terminal.
 */
#ifndef TESSERA_H
#define TESSERA_H

#include "tessera_status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TSR_API __attribute__((visibility("default")))
#else
#define TSR_API
#endif

typedef struct tsr_job tsr_job;

/* How ranks find each other when use_mpi is 0. Zero-initialised: one rank. */
typedef struct {
    int rank, size; /* size 0 or 1: one rank */
    /* Every rank's `bytes` bytes, gathered in rank order into `receive`; blocking; 0 on success.
     * Called by one thread at a time, not always the caller's. It must end with a failure when a rank
     * never comes, or is gone in the middle of it: timeout_seconds ends no call of it. */
    int (*all_gather)(void *user, const void *send, void *receive, uint64_t bytes);
    void *user;
} tsr_job_bootstrap;

/* The phase of tsr_job_options.progress inside a step, after each of its micro-batches was given to the device. */
#define TSR_JOB_TRAINING "training"

/* Severities of tsr_job_options.log. */
enum { TSR_JOB_ERROR, TSR_JOB_WARNING, TSR_JOB_INFO, TSR_JOB_DEBUG };

/* What one optimizer step did; every rank gets the same figures but device_bytes and exposed_s. */
typedef struct {
    int64_t step;        /* from 1 */
    int64_t total_steps; /* of the whole run */
    double epoch;        /* samples seen / samples of the data set */
    double loss;         /* mean over all label tokens of the step; NaN: skipped */
    double grad_norm;    /* before clipping; NaN: skipped */
    double learning_rate;
    int64_t label_tokens, input_tokens;
    double step_s, tokens_per_s; /* input tokens of all ranks a second */
    uint64_t device_bytes;       /* arena high-water mark of this rank */
    double exposed_s;            /* compute waited this long for transfers, on this rank */
    int skipped;                 /* 1: the loss or a gradient was not finite: nothing was updated */
    int64_t skipped_steps;       /* of the whole run until now */
    int last;                    /* 1: no further step will run (the end, a stop, the time limit) */
    int stopped;  /* 1: it is the last one because of the stop flag or the time limit */
    int evaluate; /* 1: eval_strategy asks for an evaluation now */
    int save;     /* 1: save_strategy asks for a checkpoint now, or the run was stopped */
} tsr_job_report;

typedef struct {
    double loss, perplexity; /* over all label tokens together; NaN: not finite, or stopped */
    int64_t label_tokens, rows;
    int stopped; /* 1: the stop flag or the time limit ended it, and the run: save a checkpoint, which
                    knows that this evaluation is due */
    int save;    /* 1: load_best_model_at_end or the run's end asks for a checkpoint now */
    int last;    /* 1: no further step will run; early_stopping_patience may have ended the run */
    int64_t best_step; /* of the least loss so far; 0: none yet. Step 0 does not count. */
    double best_loss;  /* NaN: none yet */
} tsr_job_evaluation;

/* What a job is created for: training (which may evaluate too), evaluation alone (where config_path
 * is a run's own job.yaml: of that run's adapter), a plan alone, a look at the data alone (which reads
 * of the model config.json and the tokenizer). */
enum { TSR_JOB_TRAIN, TSR_JOB_EVALUATE, TSR_JOB_PLAN, TSR_JOB_DATA };

/* How tsr_job_print_data writes: trained tokens between brackets, or in ANSI colour, or JSON. */
enum { TSR_JOB_PLAIN, TSR_JOB_COLOUR, TSR_JOB_JSON };

/* One rank's memory, known before anything is read. */
typedef struct {
    uint64_t device_peak_bytes, host_peak_bytes;
    uint64_t parameter_count, trainable_count;
    uint64_t plan_hash;
    int unit_count, resident_count, recompute_full_count, recompute_selective_count;
    int activations_offloaded, optimizer_offloaded; /* 1: they live in host memory */
    int shard_group_size;
    int64_t rounds; /* micro-batches of a step, of one rank */
    /* Of a step, from what was measured on such a machine; 0: nothing was. exposed: compute waits. */
    double expected_step_s, expected_exposed_s, expected_tokens_per_s;
} tsr_job_plan_info;

/* Begin with TSR_JOB_OPTIONS_INIT, or with .size = sizeof(tsr_job_options) and the rest zero: later versions have more
 * members behind these, which a caller that does not know them has not set. Everything is borrowed during tsr_job_create, but callbacks, their users and
 * `stop` until tsr_job_destroy. */
typedef struct {
    size_t size;                  /* of the struct that the caller knows; 0 is refused */
    const char *config_path;      /* a job.yaml; NULL: config_text */
    const char *config_text;      /* its text; NULL with no path: overrides alone */
    const char *const *overrides; /* "key=value" */
    int override_count;
    int purpose;            /* TSR_JOB_TRAIN, TSR_JOB_EVALUATE, TSR_JOB_PLAN, TSR_JOB_DATA */
    int plan_ranks;         /* TSR_JOB_PLAN: for how many ranks; 0: 1 */
    int plan_node;          /* TSR_JOB_PLAN: ranks of a node; 0: all */
    const char *plan_roofs; /* TSR_JOB_PLAN: a file with what its machines sustain; NULL: what was
                               saved here by tsr_environment */
    int use_mpi; /* 1: ranks are those of MPI_COMM_WORLD (initialised here if the program has not,
                       then ended at exit), `bootstrap` is ignored; a communicator of your own:
                       tessera_mpi.h */
    tsr_job_bootstrap bootstrap;
    int threads; /* of this rank; 0: its share of the cores */
    /* Of every wait for another rank but those inside all_gather and MPI_Init; 0: the configuration's
     * ddp_timeout. */
    double timeout_seconds;
    /* Rank 0's messages, and how far a long call has come (done == total ends a phase); called on the
     * thread that is inside a call, before it returns. NULL: none. */
    void (*log)(void *user, int severity, const char *line);
    void (*progress)(void *user, const char *phase, double done, double total);
    void *user;
    const volatile int *stop; /* not 0: the step under way, or the next, is the last one; an
                                 evaluation between two steps ends early */
    /* Rows instead of files; NULL: dataset and eval_dataset are files. Otherwise their entries are names, each asked for
     * its rows: index 0, 1, 2, .., until *row stays NULL, which is the end. Index 0 begins again at the first, and comes
     * at least twice. *row [*bytes] is what a line of a .jsonl file holds (one JSON object in UTF-8, of any of the
     * formats; no newline or 0 is needed), the caller's, and read until the next call or the end of tsr_job_create.
     * Called by tsr_job_create alone (and tsr_plan_scale), on its thread, on every rank, and every rank must be given
     * the same rows each time: TSR_ERANKS otherwise. Messages name a row NAME:NUMBER, from 1. Not 0: the job ends with
     * TSR_EIO. A run's job.yaml has the names: who resumes or evaluates it gives the rows again. */
    int (*row)(void *user, const char *name, int64_t index, const char **row, size_t *bytes);
    /* The adapter's files, beside those in output_dir and with the same bytes, piece by piece: `bytes` at `data`, borrowed
     * during the call; `last` 1: they end the file `name`. README.md (unless a person's is in output_dir),
     * adapter_config.json, adapter_model.safetensors, which ends them all. Called by tsr_job_save, on rank 0 and its
     * thread, once they are complete in output_dir. Not 0: tsr_job_save ends with TSR_EIO. NULL: nobody wants them. */
    int (*adapter)(void *user, const char *name, const void *data, size_t bytes, int last);
} tsr_job_options;

#ifdef __cplusplus
static inline tsr_job_options tsr_job_options_init(void)
{
    tsr_job_options options = {};
    options.size = sizeof options;
    return options;
}
#define TSR_JOB_OPTIONS_INIT tsr_job_options_init()
#else
#define TSR_JOB_OPTIONS_INIT                                                                       \
    {                                                                                              \
        .size = sizeof(tsr_job_options)                                                            \
    }
#endif

/* Reads and checks the configuration, the model's config.json, tokenizer and data; reads no
 * weights. On success the caller owns *out. */
TSR_API tsr_status tsr_job_create(tsr_job **out, const tsr_job_options *options);

/* Decides every buffer. A job that does not fit its memory_budget is refused here (and by start).
 */
TSR_API tsr_status tsr_job_plan(tsr_job *job, tsr_job_plan_info *info);

/* The plan as text: every buffer (place, bytes, type and shape, what it is for), the peaks, the largest that
 * would fit, the expected time, what was compared; as one JSON object with json 1. *text is
 * the caller's (tsr_free). */
TSR_API tsr_status tsr_job_print_plan(tsr_job *job, int json, char **text);

/* The plans of a TSR_JOB_PLAN for one rank and for each of `ranks` [count] side by side: memory, expected
 * time of a step, what is lost to others; plan_ranks is not used, plan_node is the ranks of a node. It
 * needs figures of such machines (plan_roofs). *text is the caller's (tsr_free). */
TSR_API tsr_status tsr_plan_scale(const tsr_job_options *options, const int *ranks, int count,
                                  int json, char **text);

/* Statistics of the data of a TSR_JOB_DATA, and its first `show` samples with the trained tokens
 * marked. *text is the caller's (tsr_free). */
TSR_API tsr_status tsr_job_print_data(tsr_job *job, int64_t show, int form, char **text);

/* Up to ten lines that describe the job; after tsr_job_start. *text is the caller's (tsr_free). */
TSR_API tsr_status tsr_job_print_summary(tsr_job *job, char **text);

/* Takes all memory, reads this rank's part of the weights and quantizes it. Nothing allocates
 * afterwards. */
TSR_API tsr_status tsr_job_start(tsr_job *job);

/* One optimizer step. TSR_JOB_DONE (1) without a step when there is none left. */
TSR_API tsr_status tsr_job_step(tsr_job *job, tsr_job_report *report);

/* Mean loss over eval_dataset. */
TSR_API tsr_status tsr_job_evaluate(tsr_job *job, tsr_job_evaluation *evaluation);

/* Writes the adapter into output_dir; its files appear under their names only when complete. After
 * the last step, or a stop, this is the run's end; before, steps may follow. With load_best_model_at_end
 * the end takes the adapter back to its best evaluation first, from the checkpoint that was saved then: evaluations
 * that follow are of that one. */
TSR_API tsr_status tsr_job_save(tsr_job *job);

/* Writes output_dir/checkpoint-<step> (the adapter, the optimizer's state, the position in the
 * data), from which a job with resume_from_checkpoint goes on with the same bits, on any number of
 * ranks; it is there when it is complete. Then removes what save_total_limit says. After a failure
 * the checkpoints of before are as they were. */
TSR_API tsr_status tsr_job_checkpoint(tsr_job *job);

/* After tsr_job_create with resume_from_checkpoint: true: 1 if the run in output_dir came to its end at this
 * job's last step, so that there is nothing to do; 0 otherwise. */
TSR_API int tsr_job_finished(const tsr_job *job);

/* After tsr_job_start: 1 if the job goes on from a checkpoint, and how far it is (the report's step,
 * epoch, last; evaluate: an evaluation of that step is still due); 0 if it starts at step 1. */
TSR_API int tsr_job_resumed(tsr_job *job, tsr_job_report *report);

/* The step under way, or the next, is the last one, as by the stop flag. Only sets a word: from any thread, and from a
 * signal handler; between tsr_job_create and tsr_job_destroy. */
TSR_API void tsr_job_request_stop(tsr_job *job);

/* NULL is fine. tsr_last_error() stays what it was. */
TSR_API void tsr_job_destroy(tsr_job *job);

/* ---- without ranks: each is one call of one process, and *text its report, the caller's (tsr_free) ---- */

/* Merges init_adapter (of a run's own job.yaml: the run's adapter) into model_name_or_path: a
 * checkpoint in bf16 in output_dir, complete or not there. Of the options it takes the
 * configuration, threads, log, progress and stop. */
TSR_API tsr_status tsr_merge(const tsr_job_options *options, int json, char **text);

/* Writes model_name_or_path to output_dir as bitsandbytes stores it in NF4; as tsr_merge. */
TSR_API tsr_status tsr_quantize(const tsr_job_options *options, int json, char **text);

/* What `path` holds: a safetensors file, a trace, or the directory of a model, an adapter, a run or a checkpoint of
 * one, which is read as a whole. Of the options (NULL: none) it takes progress. */
TSR_API tsr_status tsr_inspect(const char *path, const tsr_job_options *options, int json,
                               char **text);

/* What differs between one step each of two traces, files of the key trace. Options as for tsr_inspect. */
TSR_API tsr_status tsr_inspect_traces(const char *path, const char *other,
                                      const tsr_job_options *options, int json, char **text);

/* Draws a run's loss, evaluation loss and learning rate from its metrics.jsonl into an SVG file. */
TSR_API tsr_status tsr_plot(const char *run_directory, const char *file);

/* Backends, processor, GPUs, libraries, limits, and what is missing for what; with measure 1 also
 * what this machine sustains, which takes seconds and is kept in ~/.cache/tessera for plans. Options
 * as for tsr_inspect. */
TSR_API tsr_status tsr_environment(const tsr_job_options *options, int measure, int json,
                                   char **text);

/* This thread's last error message; "" if there was none. */
TSR_API const char *tsr_last_error(void);

/* "TSR_EDATA" and the like. */
TSR_API const char *tsr_status_name(tsr_status status);

/* Frees a text that a call has given; NULL is fine. */
TSR_API void tsr_free(void *text);

/* 1 if this rank is the one to report this thread's last failure: the lowest rank that failed. */
TSR_API int tsr_job_reports(void);

/* This rank, and the ranks of the job. */
TSR_API int tsr_job_rank(const tsr_job *job);
TSR_API int tsr_job_ranks(const tsr_job *job);

/* Steps of the whole run; after tsr_job_create. */
TSR_API int64_t tsr_job_total_steps(const tsr_job *job);

/* The program's exit code for a status: 0, 64, 65, 70, 71, 75, 76 or 78. */
TSR_API int tsr_job_exit_code(int status);

TSR_API const char *tsr_version(void);

#ifdef __cplusplus
}
#endif

#endif
