/*
 * shard/executor_parts.h: the executor's inside, shared by executor.c (calls of the host),
 * executor_issue.c (one op onto its stream), executor_calls.c (what runs on the streams) and
 * executor_marks.c (times of places in the streams).
 */
#ifndef TSR_SHARD_EXECUTOR_PARTS_H
#define TSR_SHARD_EXECUTOR_PARTS_H

#include "kernels/watch.h"
#include "shard/executor.h"

#include <pthread.h>
#include <stdatomic.h>

/* Which fill of a slot's part: the unit and the serial number of the op. */
typedef struct {
    int unit;
    uint64_t serial;
} tsr_slot_stamp;

enum { TSR_PART_FROZEN, TSR_PART_TRAINABLE, TSR_PART_COUNT };

/* ---- executor_marks.c ---- */

/* A place in a stream whose time is wanted. */
typedef enum {
    TSR_MARK_WAIT,   /* compute is about to wait */
    TSR_MARK_WAITED, /* it has, and why */
    TSR_MARK_STAGE,  /* a gather is about to wait for its stage */
    TSR_MARK_STAGED, /* it has */
    TSR_MARK_BEGIN,  /* of an op, or of a kernel in it */
    TSR_MARK_END
} tsr_mark_kind;

typedef struct {
    tsr_executor *executor;
    tsr_mark_kind kind;
    tsr_wait_cause cause; /* WAITED */
    int slot;             /* WAITED, STAGED; -1: none */
    tsr_op_record record; /* of what, less its times; step negative: not for the trace */
    tsr_event *event;
} tsr_mark;

/* The timed events of one stream, used in turns. */
typedef struct {
    tsr_event **event;
    uint64_t count, made, read;
    double last; /* time read */
} tsr_mark_timer;

/* Where marks are timed by events; nothing where calls of the host do it. */
tsr_status tsr_marks_create(tsr_executor *executor);
void tsr_marks_destroy(tsr_executor *executor);

/* Enqueues a mark on record.stream. With events, waits on the host for an old one if too many are
 * under way. */
tsr_status tsr_mark_place(tsr_executor *executor, const tsr_mark *mark);

/* Reads the times of marks [.., until), waiting on the host for each. */
tsr_status tsr_marks_read(tsr_executor *executor, uint64_t until);

/* ---- the executor ---- */

/* Segments of a unit that follow each other and whose sums are in the same store. */
typedef struct {
    int owner;      /* of options.owner; -1: it is this executor's store */
    uint64_t first; /* of executor->part, which have their places in that store */
    int count;
    uint64_t offset, elements; /* of one rank, in this unit's gradient layout */
} tsr_sum_run;

struct tsr_executor {
    tsr_executor_options options;
    const tsr_plan *plan;
    bool watched; /* calls of the host run around every op: always on the CPU; on a GPU they would
                     halt its streams, so only for faults and checks */
    bool timed;   /* marks are timed by events, not by calls of the host */
    bool ranges;  /* a profiler may want to know which op launches what */
    tsr_event *event[TSR_EVENT_COUNT]; /* NULL where the plan never uses it */
    uint64_t base[TSR_EVENT_COUNT];    /* records before the current program */
    tsr_gather_range *range;           /* of all gathers, from all places to all slots */
    uint64_t *range_at;                /* [unit * TSR_PART_COUNT + part]: first of them */
    tsr_fixed_part *part;              /* of all trainable segments, unit after unit */
    tsr_exchange_range *piece;         /* [gradient_buffers] for each of these, by unit */
    uint64_t *part_at;                 /* [unit_count + 1]: first of a unit's parts */
    tsr_sum_run *run;                  /* of all units, in their order */
    uint64_t *run_at;                  /* [unit_count + 1] */
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
    uint64_t named_step; /* 0: words_made */
    uint64_t word_generation[2];
    tsr_slot_stamp issued[TSR_SLOTS_MAX][TSR_PART_COUNT];
    uint64_t issued_update[TSR_SLOTS_MAX]; /* OPTIMs before the trainable part was gathered */
    uint64_t *kept_update;                 /* [unit_count]: the same of what is kept, plus 1 */
    int issued_region[TSR_REGIONS];        /* the layer that a region holds */
    /* Written on streams; ordered by the plan's events, so TSan checks the plan through them. */
    tsr_slot_stamp stamp[TSR_SLOTS_MAX][TSR_PART_COUNT];
    _Atomic unsigned live; /* bit s: slot s holds a unit that is still to be used */
    _Atomic int live_most;
    /* What the marks say: on the streams too, or on the host where events time them. */
    double stage_wait[TSR_SLOTS_MAX][2]; /* when GATHER began and ended to wait for its stage */
    double wait_start;                   /* compute's */
    double stage_wait_start;             /* comm's */
    double began[TSR_STREAM_COUNT][2];   /* each its own stream's: op, kernel */
    _Atomic uint64_t exposed_ns[TSR_CAUSE_COUNT];
    pthread_mutex_t log_lock;
    tsr_op_record *log;
    uint64_t log_count;
    /* Marks timed by events. */
    tsr_mark *mark; /* a ring: [marks_read, marks_made) are under way */
    uint64_t marks_made, marks_read;
    uint64_t marks_waits;   /* up to the last that is a wait's */
    uint64_t word_marks[2]; /* these are to be read with the word */
    tsr_mark_timer timer[TSR_STREAM_COUNT];
    /* The trace. */
    int64_t trace_step;          /* negative: none */
    const tsr_plan_op *op;       /* being issued */
    tsr_op_record kernel_record; /* of the kernel being issued */
    tsr_kernel_watcher watcher;
};

/* What the calls around an op need to know. */
typedef struct {
    tsr_executor *executor;
    tsr_plan_op op; /* by value: no matter how long the plan lives */
    uint64_t step, serial, expected[TSR_PART_COUNT];
    tsr_fault fault;
} tsr_op_call;

/* Runs on a stream; args are tsr_op_call. */
tsr_status tsr_op_call_begin(void *args, tsr_pool *pool);
tsr_status tsr_op_call_end(void *args, tsr_pool *pool);

/* Issues one op of the current program. */
tsr_status tsr_op_issue(tsr_executor *executor, const tsr_plan_op *op);

#endif
