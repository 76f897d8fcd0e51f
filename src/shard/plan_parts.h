/*
 * shard/plan_parts.h: shared by the files that make a plan.
 */
#ifndef TSR_SHARD_PLAN_PARTS_H
#define TSR_SHARD_PLAN_PARTS_H

#include "shard/plan.h"

/* The stream that records an event. */
tsr_stream_id tsr_event_stream(int event);

/* Compiles every program that can be reached from the empty state into plan->program, ->state and
 * ->program_at. plan->options is complete. */
tsr_status tsr_plan_close(tsr_plan *plan);

/* Compiles one program. *state: in, what it is entered with; out, what it leaves. */
tsr_status tsr_program_compile(tsr_program *out, const tsr_plan *plan, tsr_program_kind kind,
                               tsr_plan_state *state);

uint64_t tsr_plan_hash(const tsr_plan *plan);

#endif
