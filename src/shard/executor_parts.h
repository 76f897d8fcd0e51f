/*
 * shard/executor_parts.h: the executor's inside, shared by executor.c (calls of the host),
 * executor_issue.c (one op onto its stream) and executor_calls.c (what runs on the streams).
 */
#ifndef TSR_SHARD_EXECUTOR_PARTS_H
#define TSR_SHARD_EXECUTOR_PARTS_H

#include "shard/executor.h"

#include <pthread.h>
#include <stdatomic.h>

/* Which fill of a slot's part: the unit and the serial number of the op. */
typedef struct {
    int unit;
    uint64_t serial;
} tsr_slot_stamp;

enum { TSR_PART_FROZEN, TSR_PART_TRAINABLE, TSR_PART_COUNT };

/* Why the compute stream waited. */
typedef enum {
    TSR_CAUSE_H2D,
    TSR_CAUSE_GATHER,
    TSR_CAUSE_REDUCE,
    TSR_CAUSE_OTHER,
    TSR_CAUSE_COUNT
} tsr_wait_cause;

struct tsr_executor {
    tsr_executor_options options;
    const tsr_plan *plan;
    bool watched; /* calls of the host run around every op: always on the CPU; on a GPU they would
                     halt its streams, so only for faults and checks */
    tsr_event *event[TSR_EVENT_COUNT]; /* NULL where the plan never uses it */
    uint64_t base[TSR_EVENT_COUNT];    /* records before the current program */
    tsr_gather_range *range;           /* of all gathers, from all places to all slots */
    uint64_t *range_at;                /* [unit * TSR_PART_COUNT + part]: first of them */
    bool failed;
    tsr_error error; /* of the first failure */
    /* The host's view, as of what was issued. */
    int state;       /* of the plan */
    uint64_t serial; /* ops issued */
    uint64_t of_kind[TSR_OP_COUNT];
    uint64_t micro_batch;   /* of the step or evaluation */
    uint64_t train_batches; /* since the last STEP_END */
    bool norm_due;          /* the next micro-batch is a _FIRST */
    bool train, empty;      /* the current micro-batch */
    tsr_host_flags flags;   /* of the current end */
    uint64_t updates;       /* OPTIMs issued */
    uint64_t words_made, words_read;
    uint64_t word_generation[2];
    tsr_slot_stamp issued[TSR_SLOTS_MAX][TSR_PART_COUNT];
    uint64_t issued_update[TSR_SLOTS_MAX]; /* OPTIMs before the trainable part was gathered */
    /* Written on streams; ordered by the plan's events, so TSan checks the plan through them. */
    tsr_slot_stamp stamp[TSR_SLOTS_MAX][TSR_PART_COUNT];
    double stage_wait[TSR_SLOTS_MAX][2]; /* when GATHER began and ended to wait for its stage */
    double wait_start;                   /* compute's */
    double stage_wait_start;             /* comm's */
    double op_start[TSR_STREAM_COUNT];   /* each its own stream's */
    _Atomic uint64_t exposed_ns[TSR_CAUSE_COUNT];
    _Atomic unsigned live; /* bit s: slot s holds a unit that is still to be used */
    _Atomic int live_most;
    pthread_mutex_t log_lock;
    tsr_op_record *log;
    uint64_t log_count;
};

/* What the calls around an op need to know. */
typedef struct {
    tsr_executor *executor;
    tsr_plan_op op; /* by value: no matter how long the plan lives */
    uint64_t step, serial, expected[TSR_PART_COUNT];
    double issue;
    tsr_fault fault;
} tsr_op_call;

/* Runs on a stream; args are tsr_op_call. */
tsr_status tsr_op_call_begin(void *args, tsr_pool *pool);
tsr_status tsr_op_call_end(void *args, tsr_pool *pool);

/* Around the compute stream's waits, and between comm's waits for slot and stage. */
typedef struct {
    tsr_executor *executor;
    int slot;
    tsr_wait_cause cause;
} tsr_wait_call;

tsr_status tsr_wait_call_begin(void *args, tsr_pool *pool);
tsr_status tsr_wait_call_end(void *args, tsr_pool *pool);
tsr_status tsr_wait_call_stage(void *args, tsr_pool *pool);

/* Issues one op of the current program. */
tsr_status tsr_op_issue(tsr_executor *executor, const tsr_plan_op *op);

#endif
