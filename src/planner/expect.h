/*
 * planner/expect.h: how long a step of a decided plan is expected to take: the plan's simulation
 * (shard/simulate.h) with a time for each op from its work (model/work.h), its bytes and what the
 * machines sustain (planner/speeds.h). docs/time.md says what is counted and how well it holds.
 */
#ifndef TSR_PLANNER_EXPECT_H
#define TSR_PLANNER_EXPECT_H

#include "model/ladder.h"
#include "planner/decide.h"
#include "shard/simulate.h"

/* Of an average step: without a data set of one micro-batch as large as is assumed, times
 * gradient_accumulation_steps. */
tsr_status tsr_expect(tsr_expectation *out, const tsr_inputs *inputs, const tsr_decision *decision,
                      const tsr_topology_view *view, const tsr_speeds *speeds);

/* What a layer may keep, by what memory costs in an average micro-batch; *byte_seconds: of a byte that a kernel reads
 * or writes. decision->programs keep everything. */
tsr_status tsr_expect_ladder(tsr_ladder *out, double *byte_seconds, const tsr_inputs *inputs,
                             const tsr_decision *decision, const tsr_topology_view *view,
                             const tsr_speeds *speeds, int layer);

#endif
