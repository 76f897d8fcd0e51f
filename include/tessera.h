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
 * Ranks    Every rank creates the same job and makes the same calls in the same order: create, plan,
 *          print_plan, start, step, evaluate, save, checkpoint and destroy wait for the other ranks.
 *          The rest answers at once and may be called on some ranks only.
 * Errors   A call returns TSR_OK, a positive answer, or a negative status (tessera_status.h); then
 *          tsr_last_error() has the message for this thread, and what the call would have given is
 *          untouched. On several ranks all return the same status, except for a caller's mistake
 *          (TSR_EINVAL), which only the rank that made it sees. After any other failure the job can
 *          only be destroyed.
 * Threads  One thread at a time uses a job, not always the same one; only tsr_job_request_stop and
 *          the stop flag may be used from anywhere, a signal handler too. Callbacks run on the thread
 *          that is inside a call (all_gather: on others too); they may run other jobs, not their own.
 * Process  The library never exits, prints, installs a signal handler, or changes the working
 *          directory, the locale or umask, and leaves no thread behind after tsr_job_destroy. A call
 *          has the default rounding, no traps and the C locale, and restores its caller's before it
 *          returns. Jobs may live at the same time in one process, each on a thread of its own, and
 *          have the bits that they have alone. What they share is listed in docs/cluster.md, "Several
 *          jobs in a process": loaded libraries, one environment variable on several GPUs, MPI, which serves
 *          one job at a time, and GPUs, which serve several jobs only if each of these has one GPU.
 * Loading  Nothing of Tessera's runs before the first call. OpenBLAS, which is inside, looks at the
 *          processor and at OPENBLAS_CORETYPE when it is loaded, and chooses its kernels; it starts
 *          no thread and allocates no buffer (tests/library/test_library_load.c).
 * Versions Structs begin with their size, set by the caller (TSR_..._INIT), so that later versions can
 *          add members at their end: the library reads and fills what the caller's header knows.
 *          tsr_job_bootstrap, inside the options, never grows.
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

/* An initialiser of a struct that says how large it is: that size, and zeros. */
#ifdef __cplusplus
#define TSR_SIZED(type)                                                                            \
    [] {                                                                                           \
        type made = {};                                                                            \
        made.size = sizeof made;                                                                   \
        return made;                                                                               \
    }()
#else
#define TSR_SIZED(type)                                                                            \
    {                                                                                              \
        .size = sizeof(type)                                                                       \
    }
#endif

/* How ranks find each other when use_mpi is 0. Zero-initialised: one rank. It lies inside tsr_job_options, so it never
 * gets more members. */
typedef struct tsr_job_bootstrap {
    int rank, size; /* size 0 or 1: one rank */
    /* Gathers every rank's `bytes` bytes in rank order into `receive`; blocking; 0 on success, anything else ends the
     * job with TSR_ECOMM. Called by one thread at a time, not always the caller's, and only while the caller is inside a
     * call of the library. It must fail by itself when a rank never comes, or dies in the middle: timeout_seconds does not
     * interrupt it. */
    int (*all_gather)(void *user, const void *send, void *receive, uint64_t bytes);
    void *user;
} tsr_job_bootstrap;

/* The phase that tsr_job_options.progress names inside a step: once after each micro-batch has been given to the device. */
#define TSR_JOB_TRAINING "training"

/* Severities of tsr_job_options.log. */
enum tsr_job_severity { TSR_JOB_ERROR, TSR_JOB_WARNING, TSR_JOB_INFO, TSR_JOB_DEBUG };

/* Of an objective over preferences (dpo, orpo, cpo, kto, reward), by TRL's names (docs/objectives.md): means over the step's
 * micro-batches of what each has; NaN: not of this objective, of no micro-batch, or skipped. present 0: the objective is sft,
 * and all of these are 0. */
typedef struct tsr_job_preference {
    int present;
    double reward_chosen, reward_rejected, reward_margin;
    double reward_accuracy; /* share of pairs whose chosen answer has the larger reward */
    double logp_chosen, logp_rejected; /* log-probabilities of answers */
    double nll_loss, log_odds_ratio, log_odds_chosen, kl;
    double logit_chosen, logit_rejected; /* means over the vocabulary and the answers' tokens */
    double min_reward, mean_reward,
        max_reward; /* of a reward model, which has margin and accuracy too */
} tsr_job_preference;

/* What one optimizer step did. Every rank gets the same figures, except for step_s, tokens_per_s, device_bytes and
 * exposed_s. Begin with TSR_JOB_REPORT_INIT. Members that this library does not know are set to 0. */
typedef struct tsr_job_report {
    size_t size;         /* of the struct that the caller knows; 0 is refused */
    int64_t step;        /* from 1 */
    int64_t total_steps; /* of the whole run */
    double epoch;        /* samples seen / samples in the data set */
    double loss;      /* mean over all label tokens of the step, or the objective's; NaN: skipped */
    double grad_norm; /* before clipping; NaN: skipped */
    double learning_rate;
    int64_t label_tokens, input_tokens;
    double step_s, tokens_per_s; /* input tokens of all ranks a second */
    uint64_t device_bytes;       /* the most device memory that this rank has used */
    double exposed_s;            /* how long compute waited for transfers, on this rank */
    int skipped;                 /* 1: the loss or a gradient was not finite: nothing was updated */
    int64_t skipped_steps;       /* of the whole run so far */
    int last;                    /* 1: no further step will run (the end, a stop, the time limit) */
    int stopped;  /* 1: it is the last one because a stop was requested, or of time_limit */
    int evaluate; /* 1: eval_strategy asks for an evaluation now */
    int save;     /* 1: save_strategy asks for a checkpoint now, or the run was stopped */
    /* Means over all label tokens of the step; NaN: skipped. Labels that have the largest logit (of equal ones the first);
     * entropy of the distribution over the vocabulary, in nats. */
    double mean_token_accuracy, entropy;
    /* For a model with experts (has_experts 1; otherwise all of these are 0), over the tokens of the whole step. An expert's
     * load is how often its layer's router chose it. */
    int has_experts;
    double
        expert_load_over_mean; /* the largest of any layer, divided by that layer's mean; NaN: skipped */
    double
        expert_empty_share; /* share of all layers' experts that no token went to; NaN: skipped */
    double
        aux_loss; /* without router_aux_loss_coef; not part of `loss`; NaN: not computed, or skipped */
    int64_t expert_dropped; /* choices that moe_capacity_factor left out */
    tsr_job_preference preference;
} tsr_job_report;

#define TSR_JOB_REPORT_INIT TSR_SIZED(tsr_job_report)

/* The same on every rank. Begin with TSR_JOB_EVALUATION_INIT; as tsr_job_report. */
typedef struct tsr_job_evaluation {
    size_t size;
    /* Over all label tokens together, or the objective's, which has no perplexity; NaN: not finite, or stopped. */
    double loss, perplexity;
    int64_t label_tokens, rows;
    int64_t best_step; /* of the least loss so far; 0: none yet. Step 0 does not count. */
    double best_loss;  /* NaN: none yet */
    int stopped; /* 1: a stop or time_limit ended it, and the run: write a checkpoint, which knows that
                    this evaluation is due */
    int save;    /* 1: load_best_model_at_end or the run's end asks for a checkpoint now */
    int last;    /* 1: no further step will run; early_stopping_patience may have ended the run */
    double mean_token_accuracy, entropy; /* as of a step; NaN: not finite, or stopped */
    tsr_job_preference preference;
} tsr_job_evaluation;

#define TSR_JOB_EVALUATION_INIT TSR_SIZED(tsr_job_evaluation)

/* What a job is created for: training (which may evaluate too); evaluation alone (if config_path is a
 * run's own job.yaml: of that run's adapter); a plan alone; a look at the data alone (which reads only
 * config.json and the tokenizer of the model). */
enum tsr_job_purpose { TSR_JOB_TRAIN, TSR_JOB_EVALUATE, TSR_JOB_PLAN, TSR_JOB_DATA };

/* How tsr_job_print_data writes: trained tokens in brackets, or in ANSI colour, or all as JSON, or as a page of HTML that
 * loads nothing. */
enum tsr_job_form { TSR_JOB_PLAIN, TSR_JOB_COLOUR, TSR_JOB_JSON, TSR_JOB_HTML };

/* One rank's memory, known before any weight is read. Begin with TSR_JOB_PLAN_INFO_INIT; as tsr_job_report. */
typedef struct tsr_job_plan_info {
    size_t size;
    uint64_t device_peak_bytes, host_peak_bytes;
    uint64_t parameter_count, trainable_count;
    uint64_t plan_hash;
    int unit_count, resident_count, recompute_full_count, recompute_selective_count;
    int activations_offloaded, optimizer_offloaded; /* 1: they, or some, live in host memory */
    int shard_group_size;
    int64_t rounds; /* micro-batches of a step on one rank */
    /* Of a step, from what was measured on such a machine; 0: nothing was. exposed: compute waits for transfers. */
    double expected_step_s, expected_exposed_s, expected_tokens_per_s;
    /* Micro-batches that adapters share (adapter_mixing: tokens), of the whole run, 0: none are, or there are no data; tokens of
     * one at most, and how full they are, from 0 to 1; seconds that training all of them is expected to take, 0 if not known,
     * and that packing them took rank 0. */
    int64_t mixed_count, mixed_capacity;
    double mixed_fill, mixed_expected_s, mixed_packing_s;
} tsr_job_plan_info;

#define TSR_JOB_PLAN_INFO_INIT TSR_SIZED(tsr_job_plan_info)

/* Begin with TSR_JOB_OPTIONS_INIT; zero means default. Everything is borrowed: the texts and paths until tsr_job_create
 * (or tsr_merge, ...) returns, callbacks, `user`, bootstrap.user and `stop` until tsr_job_destroy. A member that is set and
 * that this library does not know is refused (TSR_EINVAL). */
typedef struct tsr_job_options {
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
    int use_mpi; /* 1: ranks are those of MPI_COMM_WORLD and `bootstrap` is ignored. MPI is initialised
                       here if the program has not done so, and then finalized at exit. One such job at
                       a time: TSR_EINVAL while another lives. A communicator of your own: tessera_mpi.h */
    tsr_job_bootstrap bootstrap;
    int threads; /* of this rank; 0: its share of the cores */
    /* The deadline of every wait for another rank, except inside all_gather and MPI_Init; 0: the configuration's
     * ddp_timeout. */
    double timeout_seconds;
    /* Rank 0's messages (without a newline; borrowed during the call), and how far a long call has come: done == total
     * ends a phase, whose name may be followed by how fast it is: "reading (120 rows/s)". Both are called on the thread that
     * is inside a call of the library, before it returns. NULL: none. */
    void (*log)(void *user, int severity, const char *line);
    void (*progress)(void *user, const char *phase, double done, double total);
    void *user;
    const volatile int
        *stop; /* not 0: the step under way, or the next, is the last one; an evaluation between
                                 two steps, and the wait for output_dir, end early. NULL: tsr_job_request_stop alone */
    /* Rows instead of files; NULL: dataset and eval_dataset are files. Otherwise their entries are names, and each is
     * asked for its rows: index 0, 1, 2, .., until *row is left NULL, which ends it. Index 0 begins again with the first
     * row, and comes at least twice. *row [*bytes] is one line of a .jsonl file (one JSON object in UTF-8, of any of the
     * formats; no newline or 0 is needed); it is the caller's, and is read until the next call or the end of
     * tsr_job_create. Called only by tsr_job_create (and tsr_plan_scale), on its thread, on every rank; every rank must
     * give the same rows each time (TSR_ERANKS otherwise). Messages name a row NAME:NUMBER, from 1. Returns 0, else the
     * job ends with TSR_EIO. A run's job.yaml has the names: to resume or evaluate it, give the rows again. */
    int (*row)(void *user, const char *name, int64_t index, const char **row, size_t *bytes);
    /* Is given the adapter's files, which are in output_dir too, with the same bytes, piece by piece: `bytes` at `data`,
     * borrowed during the call; `last` 1: they end the file `name`. README.md (unless output_dir holds one of a person's),
     * router_bias.safetensors (only with router_bias_update_rate, or if init_adapter has one), adapter_config.json, and
     * adapter_model.safetensors as the last. Called by tsr_job_save, on rank 0 and its
     * thread, once they are complete in output_dir. Returns 0, else tsr_job_save ends with TSR_EIO. NULL: files alone. */
    int (*adapter)(void *user, const char *name, const void *data, size_t bytes, int last);
    /* Rank i of a machine computes on GPU first_gpu + i of those that CUDA shows to the process, modulo their number: for
     * several jobs in one process. 0: the first. */
    int first_gpu;
    /* A job whose base (weights, ranks, device, scratch memory) this one shares: several adapters on one base that take turns,
     * each with the bits of a job of its own (docs/adapters.md). Both jobs are for training, or both for planning. Create all jobs
     * before the first is planned or started, and start the one that owns the base first. The base is freed with the last of
     * them. Keys of the base must be equal; bootstrap, use_mpi, threads and first_gpu are taken from the owner. NULL: this job
     * has a base of its own. */
    tsr_job *base;
    int entry; /* which entry of `adapters:` this job is, from 0; ignored without that list */
} tsr_job_options;

#define TSR_JOB_OPTIONS_INIT TSR_SIZED(tsr_job_options)

/* Reads and checks the configuration, the model's config.json, tokenizer and data; reads no
 * weights, writes nothing. On success the caller owns *out (tsr_job_destroy). TSR_ECONFIG, TSR_EDATA: refused;
 * TSR_ERANKS: ranks differ; TSR_EINVAL: the options. */
TSR_API tsr_status tsr_job_create(tsr_job **out, const tsr_job_options *options);

/* Decides every buffer, once; later calls give the same. A job that does not fit its memory_budget is
 * refused here (and by start) with TSR_ECONFIG. */
TSR_API tsr_status tsr_job_plan(tsr_job *job, tsr_job_plan_info *info);

/* How tsr_job_print_plan writes: every buffer (place, bytes, type and shape, what it is for), the peaks, the largest that
 * would fit, the expected time, what was compared; the same as one JSON object; or at most 24 lines of 80 columns:
 * whether it fits, the ten largest purposes, the expected time, what was chosen. */
enum tsr_plan_form { TSR_PLAN_BUFFERS, TSR_PLAN_JSON, TSR_PLAN_SCREEN };

/* The plan as text, decided as by tsr_job_plan. *text is the caller's (tsr_free). TSR_PLAN_SCREEN fills it where a
 * TSR_JOB_PLAN does not fit (TSR_ECONFIG), too: with what needs the memory and the smallest change that would fit; after
 * any other failure it is then NULL. */
TSR_API tsr_status tsr_job_print_plan(tsr_job *job, int form, char **text);

/* The plans of a TSR_JOB_PLAN for one rank and for each of `ranks` [count] side by side: memory, expected
 * time of a step, what is lost to others; plan_ranks is not used, plan_node is the ranks of a node. It
 * needs figures of such machines (plan_roofs). *text is the caller's (tsr_free). */
TSR_API tsr_status tsr_plan_scale(const tsr_job_options *options, const int *ranks, int count,
                                  int json, char **text);

/* The longest row that fits the memory of a TSR_JOB_PLAN, and what plan that takes (enum tsr_plan_form): the largest max_length,
 * a multiple of 256 or all positions of the model, at per_device_train_batch_size 1. Data are not read. What fits is what
 * tsr_job_plan of a job with these two keys takes. *text is the caller's (tsr_free). TSR_ECONFIG: no row fits, or the device's
 * memory is not known. */
TSR_API tsr_status tsr_plan_longest(const tsr_job_options *options, int form, char **text);

/* Statistics of the data of a TSR_JOB_DATA, and its first `show` samples with the trained tokens
 * marked (enum tsr_job_form). *text is the caller's (tsr_free). */
TSR_API tsr_status tsr_job_print_data(tsr_job *job, int64_t show, int form, char **text);

/* Up to six lines that describe the job; after tsr_job_start. *text is the caller's (tsr_free). */
TSR_API tsr_status tsr_job_print_summary(tsr_job *job, char **text);

/* Takes all memory, reads this rank's part of the weights and quantizes it; of a training, rank 0 takes
 * output_dir and begins the run's files there. Nothing allocates afterwards. A killed job may still hold
 * output_dir: rank 0 waits up to 30 seconds for it; a stop requested there ends that wait (TSR_ESTOPPED_UNSAVED). */
TSR_API tsr_status tsr_job_start(tsr_job *job);

/* One optimizer step; fills *report. TSR_JOB_DONE (1): none is left, *report is untouched. */
TSR_API tsr_status tsr_job_step(tsr_job *job, tsr_job_report *report);

/* Mean loss over eval_dataset, or over the rows that validation_split holds out; fills *evaluation. After tsr_job_start, between any two steps.
 * TSR_ECONFIG: neither is set; the job can go on. */
TSR_API tsr_status tsr_job_evaluate(tsr_job *job, tsr_job_evaluation *evaluation);

/* Writes the adapter into output_dir; its files appear under their names only when complete. After
 * the last step, or a stop, this is the run's end; before, steps may follow. With load_best_model_at_end
 * the end takes the adapter back to its best evaluation first, from the checkpoint that was saved then: evaluations
 * that follow are of that one. */
TSR_API tsr_status tsr_job_save(tsr_job *job);

/* Writes output_dir/checkpoint-<step> (the adapter, the optimizer's state, the position in the
 * data), from which a job with resume_from_checkpoint goes on with the same bits, on any number of
 * ranks; it appears when it is complete. Then removes older ones as save_total_limit says. After a
 * failure earlier checkpoints are as they were. */
TSR_API tsr_status tsr_job_checkpoint(tsr_job *job);

/* After tsr_job_create with resume_from_checkpoint: true: 1 if the run in output_dir has already done this
 * job's last step and saved, so that there is nothing to do; 0 otherwise. */
TSR_API int tsr_job_finished(const tsr_job *job);

/* After tsr_job_start: 1 if the job goes on from a checkpoint; fills of *report how far it is (step, total_steps,
 * epoch, skipped_steps, last; evaluate: an evaluation of that step is still due). 0, *report untouched: it starts
 * at step 1. Negative: a tsr_status. */
TSR_API int tsr_job_resumed(tsr_job *job, tsr_job_report *report);

/* Requests a stop, as `stop` does: the step under way, or the next, is the last one, on all ranks. Only sets a word: from
 * any thread, and from a signal handler; between the end of tsr_job_create and tsr_job_destroy. */
TSR_API void tsr_job_request_stop(tsr_job *job);

/* Ends the job's threads and frees all that it has; what is not saved is lost. In any state; NULL is fine.
 * tsr_last_error() keeps its message. */
TSR_API void tsr_job_destroy(tsr_job *job);

/* ---- without ranks: each is one call of one process, and *text its report, the caller's (tsr_free) ---- */

/* Merges init_adapter (of a run's own job.yaml: the run's adapter) into model_name_or_path: a
 * checkpoint in bf16 in output_dir, complete or not there. Of the options it uses the
 * configuration, threads, log, progress, user and stop. TSR_ESTOPPED_UNSAVED: stopped. */
TSR_API tsr_status tsr_merge(const tsr_job_options *options, int json, char **text);

/* Writes model_name_or_path to output_dir as bitsandbytes stores it in NF4; as tsr_merge. */
TSR_API tsr_status tsr_quantize(const tsr_job_options *options, int json, char **text);

/* What `path` holds: a safetensors file, a trace, or the directory of a model, an adapter, a run or one of
 * its checkpoints, which is read as a whole; of another directory, the runs in it. Of the options (NULL: none) it uses progress and user. */
TSR_API tsr_status tsr_inspect(const char *path, const tsr_job_options *options, int json,
                               char **text);

/* What differs between two runs (their directories: keys, losses), or between one step each of two traces, files of
 * the key trace. Options as for tsr_inspect. */
TSR_API tsr_status tsr_inspect_traces(const char *path, const char *other,
                                      const tsr_job_options *options, int json, char **text);

/* Draws a run's loss, evaluation loss and learning rate from its metrics.jsonl into an SVG file, which it replaces. */
TSR_API tsr_status tsr_plot(const char *run_directory, const char *file);

/* Backends, processor, GPUs, libraries, limits, and what is missing for what; with measure 1 also
 * what this machine sustains, which takes seconds and is kept in ~/.cache/tessera for plans. Options
 * as for tsr_inspect. */
TSR_API tsr_status tsr_environment(const tsr_job_options *options, int measure, int json,
                                   char **text);

/* ---- answers at once ---- */

/* This thread's last error message; "" if there was none. Borrowed until the thread's next call of the library. */
TSR_API const char *tsr_last_error(void);

/* "TSR_EDATA" and the like. Static. */
TSR_API const char *tsr_status_name(tsr_status status);

/* Frees a text that a call has given; NULL is fine. */
TSR_API void tsr_free(void *text);

/* 1 if this rank is the one to report this thread's last failure: the lowest rank that failed. */
TSR_API int tsr_job_reports(void);

/* This rank, and the ranks of the job (of a TSR_JOB_PLAN: those that plan, not plan_ranks). */
TSR_API int tsr_job_rank(const tsr_job *job);
TSR_API int tsr_job_ranks(const tsr_job *job);

/* Steps of the whole run; 0 if no training data was read. */
TSR_API int64_t tsr_job_total_steps(const tsr_job *job);

/* The number of entries in the configuration's list `adapters:`, and the name of this job's entry; 0 and NULL without that list. */
TSR_API int tsr_job_adapters(const tsr_job *job);
TSR_API const char *tsr_job_adapter_name(const tsr_job *job);

/* The program's exit code for a status: 0, 64, 65, 70, 71, 75, 76 or 78. */
TSR_API int tsr_job_exit_code(int status);

/* "0.2.0". Static. */
TSR_API const char *tsr_version(void);

#ifdef __cplusplus
}
#endif

#endif
