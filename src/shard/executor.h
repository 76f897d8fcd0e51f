/*
 * shard/executor.h: follows the plan.
 *
 * The executor issues the ops of one program after the other on its streams; the callbacks enqueue
 * the work of NORM, COMPUTE, GRAD_NORM, TALLY and OPTIM. Everything returns as soon as it is
 * enqueued, but tsr_executor_prologue and tsr_executor_wait_word, which wait.
 *
 *     prologue
 *     per step:        micro_batch(train) ...  step_end      then wait_word (of the step before)
 *     per evaluation:  micro_batch(eval) ...   eval_end      then wait_word
 *
 * Words     step_end and eval_end each make one control word; words are read in order. Two may be
 *           unread, and nothing of a step is issued while two are: no op of step n + 1 before the
 *           host has read word n - 1.
 * Empty     A rank without a micro-batch of its own runs the same program with an empty one.
 * Errors    The first error aborts the communicator, poisons the device and stops all issuing;
 *           every later call returns it. An OPTIM whose control word was not reduced by all never runs.
 * Memory    Nothing allocates after creation.
 * Threads   One thread calls; tsr_executor_live_slots may be called by any.
 */
#ifndef TSR_SHARD_EXECUTOR_H
#define TSR_SHARD_EXECUTOR_H

#include "comm/comm.h"
#include "kernels/kernels.h"
#include "shard/store.h"

typedef struct tsr_executor tsr_executor;

/* Number `number` of the uses of a layer's forward or backward (tsr_layer_uses). Chunks of the head count on
 * as layers. */
typedef struct {
    tsr_use_phase phase;
    int layer, number;
    uint64_t micro_batch; /* of the step or of the evaluation, from 0 */
    bool train, empty;
    bool first, last; /* use of its micro-batch */
} tsr_use;

/* All enqueue and return. */
typedef struct {
    void *user;
    /* On compute, of what the unit has of the layer. NULL where no unit has a norm. */
    tsr_status (*norm)(void *user, int layer, const tsr_unit_view *view);
    /* On compute. `gradient`: of B(u) with a trainable part, to be written (zeros of an empty
     * micro-batch too) but for its padding, in the gradient layout: float, or of a wide unit int64_t,
     * sums of fixed_accumulate; else NULL. */
    tsr_status (*compute)(void *user, const tsr_use *use, const tsr_unit_view *view,
                          void *gradient);
    /* On optim. The word holds the host's flags; add losses and the squared norm of the
     * sums. With several replicas only the first one's norm counts; the others' is cleared
     * here. */
    tsr_status (*grad_norm)(void *user, int64_t *word);
    /* On optim, after an evaluation: the same without a norm. */
    tsr_status (*tally)(void *user, int64_t *word);
    /* On optim. `word` is reduced when it runs; nothing may change if tsr_word_discards it. Once a
     * step for all (chunk -1), or for each chunk in order, whose range and place are
     * tsr_store_part's. */
    tsr_status (*optim)(void *user, const int64_t *word, int chunk);
    /* What `layer` saves of the micro-batch that is being issued: what SAVE and LOAD copy. NULL where
     * no layer has saved_bytes. */
    tsr_saved (*saved)(void *user, int layer);
} tsr_executor_callbacks;

typedef enum {
    TSR_FAULT_NONE,
    TSR_FAULT_FAIL,
    TSR_FAULT_STOP,
    TSR_FAULT_DELAY,
    TSR_FAULT_KILL
} tsr_fault;

/* For tests. Zero: none. */
typedef struct {
    tsr_fault fault;  /* FAIL: an error; STOP: hangs until the device is poisoned; KILL: SIGKILL */
    tsr_op_kind kind; /* at op number `index` (from 0) of this kind */
    uint64_t index;
    uint32_t delay_ms; /* DELAY */
    bool poison_slots; /* 0xff over every part of a slot before it is filled again; likewise over
                          regions and buffers of optimizer state */
    bool check;        /* I6: unit and generation on the device before each compute */
    bool timed;        /* times from timed events, as on a GPU, on the CPU too */
} tsr_executor_debug;

typedef enum {
    TSR_RECORD_OP,
    TSR_RECORD_KERNEL, /* an op of the kernel table, inside an op of the plan */
    TSR_RECORD_EXPOSED /* compute stood waiting, before an op */
} tsr_record_type;

/* What the trace holds. Times in seconds of tsr_now. */
typedef struct {
    int64_t step; /* as tsr_executor_trace said */
    tsr_record_type type;
    uint8_t kind, stream, phase; /* of the op */
    bool empty;                  /* of an empty micro-batch */
    int unit;
    const tsr_plan_op *op; /* of the plan; a KERNEL is inside it */
    uint64_t bytes;        /* OP */
    const char *name;      /* KERNEL: "gemm"; EXPOSED: the cause, a field of tsr_exposed */
    double issue, start, end;
} tsr_op_record;

/* Who has the sums of one adapter's gradients, of a mixed plan (shard/plan.h). Its plan has the units of this one, of whose
 * trainable parts it has the segments with its number, in their order. */
typedef struct {
    const tsr_store *store;     /* with its memory; borrowed */
    int64_t *gradient_overflow; /* as in the options, in the numbers of that store */
    uint64_t contributions;     /* likewise */
    const bool *begins; /* read when a micro-batch is issued: its sums overwrite what there is */
} tsr_executor_owner;

typedef struct {
    tsr_store *store;                /* with its memory; borrowed */
    const tsr_executor_owner *owner; /* [owner_count], of a mixed plan; borrowed */
    int owner_count;
    tsr_device *device;
    const tsr_streams *streams;        /* borrowed */
    tsr_comm *world, *shard, *replica; /* of the device's memory; borrowed; replica may be NULL with
                                          one replica */
    const tsr_kernels *kernels;        /* borrowed */
    /* Of the fixed point that gradients are summed in (kernels/fixed_point.h). */
    int gradient_shift;
    /* To one gradient in a step, at most: micro-batches, or where a unit is wide what their sums are of.
     * 0: 1. */
    uint64_t contributions;
    int64_t *gradient_overflow; /* device memory, not 0: a gradient is not finite or too large,
                                   tsr_trainable_marked; NULL without training */
    tsr_executor_callbacks callbacks;
    tsr_executor_debug debug;
    uint32_t log_count; /* records the trace holds (the last ones); 0: no trace */
} tsr_executor_options;

/* Seconds the compute stream stood waiting, by cause: load and save are activations that come back
 * and that have still to go before their region is written again, exchange is within an op for the ranks that share a
 * micro-batch. On a GPU a wait that was over
 * before it began counts the one or two microseconds that its two timed events take. */
typedef struct {
    double h2d, gather, reduce, load, save, exchange, other;
} tsr_exposed;

/* On success the caller owns *out. */
tsr_status tsr_executor_create(tsr_executor **out, const tsr_executor_options *options);
/* Waits for what was issued. NULL is fine. */
void tsr_executor_destroy(tsr_executor *executor);

/* Waits until the streams are idle and begins with empty slots: at the start, and after the host
 * has changed masters and working copies. */
tsr_status tsr_executor_prologue(tsr_executor *executor);

/* TSR_EINVAL: two control words are unread, or a step that was planned with one micro-batch has had it. */
tsr_status tsr_executor_micro_batch(tsr_executor *executor, bool train, bool empty);
tsr_status tsr_executor_step_end(tsr_executor *executor, const tsr_host_flags *flags);
tsr_status tsr_executor_eval_end(tsr_executor *executor, const tsr_host_flags *flags);

/* For tsr_context_watch: compute begins to wait within the op that is issued, or no longer waits. */
tsr_status tsr_executor_exchange(void *executor, bool over);

/* Copies the oldest unread word to `word` [tsr_store_words]. TSR_EINVAL: there is none. */
tsr_status tsr_executor_wait_word(tsr_executor *executor, int64_t *word);

/* Passes on an error of the caller (a data error, say): aborts the communicator and poisons the
 * device with this thread's last message. Returns `status`. */
tsr_status tsr_executor_fail(tsr_executor *executor, tsr_status status);

/* Since creation: of all steps whose words were read; on the CPU as far as the compute stream has
 * got. */
tsr_exposed tsr_executor_exposed(const tsr_executor *executor);
/* Slots in use now and at most so far, where ops are watched. */
int tsr_executor_live_slots(const tsr_executor *executor, int *most);

/* The caller's number of the step that is issued from now on, for the messages about a rank that is
 * behind; without it the words made so far. */
void tsr_executor_name_step(tsr_executor *executor, uint64_t step);

/* What is issued from now on goes into the trace under this number; negative: it does not, as after
 * creation. Kernels do where options.kernels is a watched table (kernels/watch.h). */
void tsr_executor_trace(tsr_executor *executor, int64_t step);

/* The trace: record i of the `*count` last ones, each stream's in order; after the streams are idle.
 */
const tsr_op_record *tsr_executor_log(tsr_executor *executor, uint64_t i, uint64_t *count);

#endif
