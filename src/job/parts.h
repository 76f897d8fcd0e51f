/*
 * job/parts.h: a job's state, shared by job.c (its life), start.c (memory and weights),
 * matmuls.c (how the matmuls are done), step.c (steps and evaluation), preference.c (objectives), save.c (what is
 * written into output_dir), adapter.c, checkpoint.c and resume.c. Inside src/job, and
 * for tests that look inside.
 */
#ifndef TSR_JOB_PARTS_H
#define TSR_JOB_PARTS_H

#include "base/aside.h"
#include "base/log.h"
#include "base/phase.h"
#include "config/keys.h"
#include "io/folder.h"
#include "io/snapshot.h"
#include "job/mixer.h"
#include "job/trace.h"
#include "model/load.h"
#include "optim/schedule.h"
#include "planner/decide.h"
#include "report/events.h"
#include "report/metrics.h"
#include "shard/executor.h"
#include "shard/load.h"
#include "tessera.h"

#include <stdatomic.h>
#include <stddef.h>

_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "a signal handler sets one");

/* The run's few words of device memory. */
typedef struct {
    int64_t loss, gradient_overflow;
    int32_t loss_overflow;
    int64_t correct, entropy, aux, dropped;
    int64_t seen[2]; /* what loss_overflow and gradient_overflow were in the last step */
    tsr_adamw_control control;
} tsr_run_sums;

_Static_assert(TSR_WORD_DROPPED == TSR_WORD_CORRECT + TSR_REPORTED_SUMS - 1 &&
                   offsetof(tsr_run_sums, dropped) ==
                       offsetof(tsr_run_sums, correct) + (TSR_REPORTED_SUMS - 1) * sizeof(int64_t),
               "what is reported beside the loss is summed as one array");
_Static_assert(sizeof(tsr_run_sums) <= TSR_RUN_SUMS_BYTES, "the plan has room for the sums");

/* Zero: as long as before. */
typedef struct {
    int64_t total_before; /* steps of the whole run, when its checkpoint was written */
    bool jumps;           /* the next step's learning rate is another than it would have been */
    double last, next;    /* learning rates: of the checkpoint's step, of the one after it */
} tsr_job_longer;

/* Of the evaluations of this run, but that before step 1. */
typedef struct {
    int64_t step; /* of the least loss; -1: none yet */
    double loss;  /* that loss */
    int64_t
        worse; /* evaluations in a row since one was better by more than early_stopping_threshold */
} tsr_job_best;

typedef enum { TSR_JOB_CREATED, TSR_JOB_PLANNED, TSR_JOB_STARTED, TSR_JOB_FAILED } tsr_job_state;

struct tsr_job {
    tsr_job_options options;
    tsr_job_state state;
    tsr_log_level log_level;
    tsr_aside aside;
    bool
        listens; /* the former listeners are the caller's, who may be inside another job's callback */
    tsr_log_listener former_log;
    tsr_phase_listener former_phase;
    bool train;        /* false: evaluation only */
    bool without_data; /* a plan: whatever data the configuration names are not read */
    /* base.c: the job whose base this one shares (NULL: it has its own), the next that shares it, and of a job with a base
     * the one that used it last. What belongs to `base`: ranks, device, streams, tables and scratch. */
    tsr_job *base, *sharer, *active;
    int turn, turns;  /* this one's number among them, and of a base the largest */
    tsr_mixer *mixer; /* of a base whose adapters share micro-batches (mixer.h); NULL: none do */
    bool orphaned;    /* destroyed by its caller, but its base is still shared */
    tsr_arena *scratch_device, *scratch_host;
    /* The ranks, and collectives of host memory: start-up, agreements, saving. */
    tsr_device *host;
    tsr_stream *control;
    tsr_comm *world, *shard, *replica, *node;
    tsr_comm *sharers; /* of this rank's micro-batches; NULL: nobody shares them */
    /* Where the model is: on the CPU backend all these are the host's. */
    tsr_device *device;
    tsr_streams streams;
    tsr_comm *device_world, *device_shard, *device_replica, *device_sharers;
    tsr_context *context; /* of the sharers */
    const tsr_kernels *kernels;
    tsr_topology_view view;
    tsr_inputs inputs;
    tsr_speeds speeds; /* rank 0's, on all */
    tsr_decision decision;
    tsr_arena *device_arena, *host_arena;
    tsr_run_buffers buffers;
    tsr_run_sums *sums;
    int64_t *word;                /* [tsr_store_words]: the control word that was read last */
    int64_t *eval_word;           /* of an evaluation's words the sum */
    char *embedding, *layer_rows; /* tables that the ranks of a node share */
    float *factors; /* PiSSA's first A and B (model/factors.h), shared likewise; NULL: none */
    tsr_model *model;
    /* Benchmarks: fills the frozen parts and the embedding instead of reading them; NULL: reads. */
    tsr_status (*fill)(tsr_job *job);
    tsr_text matmuls; /* of rank 0: how they are done; empty on the CPU */
    tsr_executor *executor;
    tsr_micro_batch micro, eval_micro;
    /* Of an objective with a reference: of each sample of the training and of the evaluation the sums of its documents,
     * [samples, 2, TSR_PARTS] (NULL: there is none), and room for those of a micro-batch. */
    double *reference[2], *staged_reference;
    bool staged_ahead; /* the next round's micro-batch is on its way already */
    bool staged_empty; /* the one staged last has no tokens */
    /* optimizer */
    tsr_schedule schedule;
    tsr_adamw_span *spans; /* of everything owned, in order: where a working copy goes on */
    /* [chunks + 1]: the first span of each chunk, and how many there are; without chunks all spans are
     * of one. */
    uint64_t *chunk_spans;
    tsr_adamw_step adamw;
    /* progress of the run */
    int64_t total_steps, issued, done;
    int64_t skipped, skipped_steps; /* in a row until now; of the whole run */
    int64_t last_step; /* no step after it is issued: total_steps, or less after a stop */
    double word_time, exposed_before, started_at;
    double issue_s; /* what it took to give the last step to the streams, for benchmarks */
    bool stopped;
    atomic_int asked;     /* tsr_job_request_stop */
    tsr_metrics *metrics; /* rank 0, while training */
    tsr_events *events;   /* likewise, with report_to: tensorboard */
    tsr_trace *trace;     /* NULL: none */
    bool evaluated;       /* since the last step */
    tsr_job_best best;
    bool over;  /* the adapter in memory is that of best.step, whatever `done` says */
    bool ended; /* metrics.jsonl has its last line */
    /* checkpoints */
    tsr_snapshot *resume;     /* what the run goes on from; NULL: it starts */
    bool continues;           /* in output_dir itself, with its metrics.jsonl */
    int64_t resumed, saved;   /* steps; saved -1: none is in output_dir */
    uint64_t metrics_bytes;   /* of metrics.jsonl that belong to `resume` */
    int64_t ended_steps;      /* of the run in output_dir, if it came to its end; 0: not */
    tsr_job_longer longer;    /* of a run that goes on longer than it was to be */
    int64_t newest;           /* of output_dir when it was looked at last; rank 0 */
    tsr_folder *output;       /* output_dir, held open; NULL: not yet, or not there yet */
    int output_lock;          /* of output_dir, rank 0's; -1: not taken */
    tsr_snapshot_file *files; /* [ranks + the adapter's files]: of the one being written */
};

/* Jobs that share a base (base.c). check: whether one more may share it; join, leave: its list; check_config,
 * check_inputs: that they can. bytes: of a place, all of them together; taken: of device memory, so far; scratch:
 * of the largest. decide: for all of them,
 * collective. enter: before the executor is used, the one that used the base last being another. */
tsr_job *tsr_job_base_of(const tsr_job *job);
/* Of all jobs that share the base, with those of the state if one of them has it in host memory. */
tsr_streams *tsr_job_streams(const tsr_job *job);
bool tsr_job_is_shared(const tsr_job *job);
tsr_status tsr_job_base_check(const tsr_job *base, int purpose);
void tsr_job_base_join(tsr_job *job, tsr_job *base);
void tsr_job_base_leave(tsr_job *job);
tsr_status tsr_job_base_check_config(const tsr_job *job);
tsr_status tsr_job_base_check_inputs(const tsr_job *job);
uint64_t tsr_job_base_bytes(const tsr_job *job, tsr_place place);
uint64_t tsr_job_base_taken(const tsr_job *job);
uint64_t tsr_job_base_scratch(const tsr_job *base, tsr_place place);
tsr_status tsr_job_base_decide(tsr_job *job, const tsr_room *room);
tsr_status tsr_job_base_enter(tsr_job *job);

/* The backend (backend.c). choose: from the configuration and the GPUs that are there, the same
 * on all ranks. open: the device and its streams. connect: its communicators, after the host's were
 * split. expose: the memory that copies and peers reach, once it is there. disconnect: before that
 * memory goes; close: the rest. Both are fine at any stage. */
tsr_status tsr_job_backend_choose(tsr_job *job);
tsr_status tsr_job_backend_open(tsr_job *job);
tsr_status tsr_job_backend_connect(tsr_job *job);
tsr_status tsr_job_backend_expose(tsr_job *job);
void tsr_job_backend_disconnect(tsr_job *job);
void tsr_job_backend_close(tsr_job *job);

/* What the machines sustain, as rank 0 knows it: the same on all ranks; collective. */
tsr_status tsr_job_backend_speeds(tsr_job *job);

/* Device memory that one rank may take; collective. */
tsr_status tsr_job_backend_room(tsr_room *out, tsr_job *job);

/* Chooses how the matmuls are done, the same on all ranks (matmuls.c); before the first use of
 * the activations. */
tsr_status tsr_job_choose_matmuls(tsr_job *job);

/* Ends a phase that may have failed on some ranks only: every rank returns the lowest failing
 * rank's status. */
tsr_status tsr_job_agree(tsr_job *job, tsr_status status);

/* job->factors, where the adapter starts from principal parts (factors.c); collective. */
tsr_status tsr_job_make_factors(tsr_job *job);

/* Some ranks do `work`, the others wait and hear that these are alive wherever they tell how far they are (base/phase.h).
 * Returns this rank's status, or that of the meetings; collective. */
tsr_status tsr_job_let_work(tsr_job *job, bool works, tsr_status (*work)(void *user), void *user);

/* TSR_EINVAL where the job's update is issued and not yet read: what it is called for would be of another step. */
tsr_status tsr_job_check_stepped(const tsr_job *job, const char *function);

/* Reads the data of inputs on every rank; collective. */
tsr_status tsr_job_read_data(tsr_job *job);

/* A call begins or ends: meanwhile the caller's locale and arithmetic are put aside, and rank 0's caller hears what the
 * job has to say (base/log.h) and how far it has come (base/phase.h). */
void tsr_job_listen(tsr_job *job, bool begins);

/* tsr_job_create over ranks that the caller made: world (owned by the job from then on, NULL: as
 * the options say). */
tsr_status tsr_job_create_on(tsr_job **out, const tsr_job_options *options, tsr_comm *world);

/* tsr_job_create of a plan as if its configuration named no data. */
tsr_status tsr_job_create_without_data(tsr_job **out, const tsr_job_options *options);

/* Reads all inputs and decides the memory; used by tsr_job_create and by `plan`, which has no
 * ranks. */
tsr_status tsr_job_decide(tsr_job *job);

#define TSR_MATMULS_FILE "matmuls.txt" /* in output_dir and in checkpoints */

/* output_dir, which is reached through job->output alone. On rank 0: opened, if it is there, refused if
 * another job writes there or something else has a name of the run's files; checked: refused if it holds
 * a run that is neither gone on with nor to be replaced, and then if there is no room for what the run
 * will write; written: made if need be, taken until it is
 * closed, looked at again, cleared where that is asked for. Then the other ranks follow. Closing is fine
 * anywhere. */
tsr_status tsr_job_open_output(tsr_job *job);
tsr_status tsr_job_check_output(const tsr_job *job);
tsr_status tsr_job_check_space(const tsr_job *job);
tsr_status tsr_job_write_output(tsr_job *job);
tsr_status tsr_job_follow_output(tsr_job *job);
void tsr_job_close_output(tsr_job *job);

#define TSR_JOB_CONFIG_FILE "job.yaml"

/* The tokenizer's files there (tokenizer.c). clear: those that the job.yaml there says were written with it.
 * write: this run's, which *yaml then says. */
#define TSR_JOB_TOKENIZER_FILES 4
extern const char *const tsr_job_tokenizer_files[TSR_JOB_TOKENIZER_FILES];
tsr_status tsr_job_tokenizer_clear(const tsr_folder *folder);
tsr_status tsr_job_tokenizer_write(tsr_text *yaml, tsr_job *job);

/* Rounds of an evaluation, or of a reference, between two looks at whether a rank is asked to stop. */
#define TSR_JOB_ROUNDS_AT_ONCE 16

static inline bool tsr_job_is_asked(const tsr_job *job)
{
    return atomic_load(&job->asked) || (job->options.stop && *job->options.stop);
}

/* The tokens, documents and labels of a micro-batch, for the model (step.c). */
tsr_model_batch tsr_job_rows_of(const tsr_micro_batch *micro);

/* Which of a step's micro-batches this rank, and those that share it, have in a round (step.c): those of the groups of ranks
 * by turns. */
int64_t tsr_job_micro_of(const tsr_job *job, int64_t round);

/* Stages one micro-batch of a step, and issues the one that was staged first (step.c). */
tsr_status tsr_job_stage_micro(tsr_job *job, const tsr_micro_batch *micro,
                               const tsr_batch_step_info *info, bool train);
tsr_status tsr_job_issue_micro(tsr_job *job, bool train);
/* The same of one whose documents' sums alone are wanted. */
tsr_status tsr_job_stage_reference(tsr_job *job, const tsr_micro_batch *micro,
                                   const tsr_batch_step_info *info);

/* start.c. Memory, model and tables of a job that is planned; and its executor, `owner` as its options have it. Both
 * collective. */
tsr_model_sums tsr_job_model_sums(tsr_run_sums *sums); /* where they go: the words of a step */
tsr_status tsr_job_start_model(tsr_job *job);
tsr_status tsr_job_start_executor(tsr_job *job, const tsr_executor_owner *owner, int owner_count);

/* step.c: all rows of the job's step are in its sums: the update is issued. Then one more step is issued than done. */
tsr_status tsr_job_end_micro_batches(tsr_job *job);

/* start.c. Puts this rank's values of a trainable segment into its working copy; tsr_job_put_trainable into the masters, too. */
tsr_status tsr_job_put_work(tsr_job *job, int unit, int segment, const float *values);

/* An objective (preference.c). The reference's sums: of a new run made, with the model as it is then, or without its
 * adapter (collective); written into a checkpoint's folder, by rank 0, and read. Those of a micro-batch, for the model; and
 * what words behind TSR_WORD_COUNT say of a step or an evaluation. */
#define TSR_JOB_REFERENCE_FILE "reference.safetensors" /* in checkpoints */
tsr_status tsr_job_make_reference(tsr_job *job);
tsr_status tsr_job_write_reference(const tsr_job *job, const tsr_folder *folder);
tsr_status tsr_job_read_reference(tsr_job *job, const tsr_snapshot *snapshot);
void tsr_job_stage_preference(tsr_job *job, tsr_model_batch *batch, const tsr_micro_batch *micro,
                              const tsr_batch_step_info *info, bool train);
/* As TRL has them of DPO and KTO: means over micro-batches of each one's answers. */
void tsr_job_take_tokens(double *accuracy, double *entropy, const tsr_job *job, const int64_t *word,
                         int64_t micro_count);
void tsr_job_take_preference(tsr_job_preference *out, const tsr_job *job, const int64_t *word,
                             int64_t micro_count);

/* Too many steps in a row changed nothing, or all of the run: says where the last one broke. Collective. */
tsr_status tsr_job_give_up(tsr_job *job);

/* ---- the adapter, checkpoints ---- */

/* What is to be saved: elements `first` and on of a tensor. TSR_EDEVICE names the first that is not finite:
 * such a state is never saved. */
tsr_status tsr_job_check_finite(const tsr_job *job, const char *tensor, const float *values,
                                uint64_t first, uint64_t count);

/* One trainable tensor, or a chunk of one that is trained whole. */
typedef struct {
    int unit, segment;
    tsr_peft_part part;
    const char *path; /* of its module */
    int chunk;        /* of a WHOLE tensor; else 0 */
} tsr_job_part;

/* How many there are at most. */
uint64_t tsr_job_part_count(const tsr_job *job);

/* All of them, in the order of the units; `phase` says what takes its time, NULL: nothing does. */
typedef tsr_status tsr_job_part_call(void *user, const tsr_job_part *part);
tsr_status tsr_job_each_part(tsr_job *job, const char *phase, tsr_job_part_call *call, void *user);

/* Waits until the streams are idle; collective. */
tsr_status tsr_job_quiet(tsr_job *job);

/* The routers' biases (router_bias.c), where the model has its own: as they are before the first step, and as they were
 * in a checkpoint; moved after a step, `word` its control word on the device; and on the host to be written, the streams
 * idle. */
typedef struct {
    tsr_peft_beside beside; /* nothing: the model has none */
    tsr_tensor_source *sources;
    float *values;
} tsr_job_router_bias;

tsr_status tsr_job_load_router_bias(tsr_job *job);
tsr_status tsr_job_restore_router_bias(tsr_job *job, const tsr_snapshot *snapshot);
tsr_status tsr_job_move_router_bias(tsr_job *job, const int64_t *word);
tsr_status tsr_job_take_router_bias(tsr_job_router_bias *out, const tsr_job *job);
void tsr_job_router_bias_free(tsr_job_router_bias *bias);

/* The adapter's files into `folder`, of rank 0; collective, the streams idle. */
tsr_status tsr_job_write_adapter(tsr_job *job, const tsr_folder *folder);

/* This rank's range of a trainable segment of the layout. */
tsr_trainable_span tsr_job_trainable(const tsr_job *job, int unit, int segment);
/* Its values: the masters (an evaluation has none) and the working copy. */
tsr_status tsr_job_put_trainable(tsr_job *job, int unit, int segment, const float *values);

/* A step or an evaluation goes into metrics.jsonl and, with report_to: tensorboard, its event file.
 * Nothing to do on ranks that write none. */
tsr_status tsr_job_record_step(tsr_job *job, const tsr_job_report *step);
tsr_status tsr_job_record_eval(tsr_job *job, const tsr_job_evaluation *evaluation);

/* The last line of metrics.jsonl, once. */
tsr_status tsr_job_end(tsr_job *job, tsr_metrics_status status);

#define TSR_JOB_NAME_BYTES 256
/* The name in a checkpoint of what it holds of a tensor, and of a rank's file. */
tsr_status tsr_job_state_name(char out[TSR_JOB_NAME_BYTES], const tsr_job_part *part,
                              const tsr_state_buffer *buffer);
void tsr_job_state_file(char out[TSR_SNAPSHOT_NAME_BYTES], int rank, int ranks);

/* A key's value as it was resolved; samples of a full step on all ranks. */
void tsr_job_key_text(tsr_text *out, const tsr_job *job, const tsr_key *key);
int64_t tsr_job_step_samples(const tsr_job *job);
/* What the bits of a run depend on beside its keys: the device's model, or the CPU's kernel set. */
const char *tsr_job_bits_device(const tsr_job *job);

/* resume_from_checkpoint: finds it and checks that it is whole, from the configuration alone; collective. */
tsr_status tsr_job_find_resume(tsr_job *job);
/* That what was found is of this job, once its inputs are read. */
tsr_status tsr_job_check_resume(const tsr_job *job);
/* total_steps of the run that wrote the checkpoint. */
tsr_status tsr_job_resumed_total(int64_t *out, const tsr_job *job);
/* Its state into memory, instead of an adapter's first values. */
tsr_status tsr_job_restore(tsr_job *job);

/* Compares the hashes of a checkpoint's files, this rank's share of them; and reads what is trained, with its
 * moments. */
tsr_status tsr_job_verify(const tsr_job *job, const tsr_snapshot *snapshot);
tsr_status tsr_job_restore_trainable(tsr_job *job, const tsr_snapshot *snapshot);

/* The best evaluation (best.c). note: one more was made; fills what an evaluation says of it. describe and
 * resume: of a checkpoint's state; *the caller's. take: at the run's end. */
void tsr_job_note_evaluation(tsr_job *job, tsr_job_evaluation *evaluation);
json_t *tsr_job_describe_best(const tsr_job *job);
tsr_status tsr_job_resume_best(tsr_job *job);
tsr_status tsr_job_take_best(tsr_job *job);

/* Whether the configuration asks for one after the step that was done last. */
bool tsr_job_evaluation_due(const tsr_job *job, const tsr_batch_step_info *info);

/* Seconds that compute has waited for transfers so far. */
double tsr_job_exposed(const tsr_job *job);

/* executor callbacks (step.c) */
extern const tsr_executor_callbacks tsr_job_callbacks;

/* One line about the plan, for whoever wants details. */
void tsr_job_log_plan(const tsr_job *job);

#endif
