/*
 * toy.h: a toy model over the executor, and the same computed serially.
 *
 * Compute mixes every gathered byte into a running hash; backward makes integer gradients of it (of a
 * wide unit in several contributions), the optimizer updates masters from the exact sums. A layer with saved_bytes leaves a pattern in its
 * region, of a length that depends on the micro-batch; its backward and the layer above it read it.
 * So a byte that is late, stale or from another unit changes the end result, and the right result does
 * not depend on ranks, homes, offload or order.
 */
#ifndef TEST_SHARD_TOY_H
#define TEST_SHARD_TOY_H

#include "shard/executor.h"
#include "shard/random_plan.h"

#define TOY_STEPS 16

typedef struct {
    const random_model *model; /* options.ranks x options.replicas ranks */
    int steps;
    int micro_batches;      /* of a step, over all ranks */
    int eval_micro_batches; /* after every second step; 0: none */
    uint64_t delay_seed;    /* 0: no delays */
    double timeout_seconds; /* 0: 60 */
    tsr_executor_debug debug;
    int fault_rank;                 /* debug.fault is this rank's only */
    int discard_step;               /* rank 0 reports an error in it; 0: none */
    int lost_step;                  /* toy_lost; 0: none */
    int restart_step;               /* the prologue runs again before it; 0: none */
    bool misuse;                    /* calls out of order in between, which must be refused */
    void (*tamper)(tsr_plan *plan); /* after the ranks have agreed; NULL: not */
    uint32_t log_count;             /* records of the trace; 0: 64 */
} toy_job;

/* Everything that is compared. */
typedef struct {
    int64_t word[TOY_STEPS * 2][TSR_WORD_COUNT];
    int word_count;
    float *master[2]; /* [element of all trainable segments]: masters, and m */
    uint64_t element_count;
} toy_outcome;

typedef struct {
    tsr_status status;
    char message[1024];
    int live_most;
    int updates; /* OPTIMs that ran, in whole or in part */
    tsr_exposed exposed;
    uint64_t logged; /* records in the trace */
    uint64_t logged_of_kind[TSR_OP_COUNT];
    uint64_t disorders;       /* ops that begin before the one before them on their stream ends */
    double logged_exposed[6]; /* h2d, gather, reduce, load, save, other */
} toy_report;

void toy_outcome_make(toy_outcome *out, const random_model *model);
void toy_outcome_free(toy_outcome *outcome);
bool toy_outcome_equal(const toy_outcome *a, const toy_outcome *b);

/* On one thread, without a plan. */
void toy_run_serial(toy_outcome *out, const toy_job *job);

/* One rank; `world` has ranks x replicas ranks. `out` (shared by the ranks of one replica) may be
 * NULL. */
void toy_run_rank(toy_report *report, toy_outcome *out, const toy_job *job, tsr_comm *world);

/* All ranks as threads. out: [replicas]; report: [ranks x replicas]. */
void toy_run_threads(toy_report *report, toy_outcome *out, const toy_job *job);

#endif
