/*
 * job/trace_memory.h: memory over time, from the operations that a rank has logged: how much of what is planned for
 * each purpose (planner/purposes.h) holds something that is still to be read.
 *
 * What     A buffer counts whole from the start of the operation that begins to fill it to the end of the last one that
 *          needs what it holds: slots and stages of gathered units, gradients that are to be reduced, activations on
 *          the device and on the host, chunks of the optimizer's state. (A slot whose unit goes in a later program than
 *          that of its last use counts until it is filled again.) Of other purposes only what is planned is
 *          known: they hold something all the time, or inside one operation.
 * Order    create, then begin and next until it is false, with the streams idle.
 * Memory   Nothing allocates after creation.
 */
#ifndef TSR_JOB_TRACE_MEMORY_H
#define TSR_JOB_TRACE_MEMORY_H

#include "shard/executor.h"

typedef struct tsr_trace_memory tsr_trace_memory;

typedef struct {
    const char *name; /* of the purpose; borrowed */
    double time;      /* seconds of tsr_now; from then on */
    uint64_t planned_bytes, used_bytes;
    bool used_known;
} tsr_trace_counter;

/* Plan and memory are borrowed. On success the caller owns *out. */
tsr_status tsr_trace_memory_create(tsr_trace_memory **out, const tsr_plan *plan,
                                   const tsr_memory_plan *memory);
void tsr_trace_memory_destroy(tsr_trace_memory *memory); /* NULL is fine */

/* The log's operations are gone through in the order of time; counters are told from `from` on, first all of them. */
void tsr_trace_memory_begin(tsr_trace_memory *memory, tsr_executor *executor, double from);

/* The next counter that has another value; false: there is none. */
bool tsr_trace_memory_next(tsr_trace_memory *memory, tsr_trace_counter *out);

#endif
