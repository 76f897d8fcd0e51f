/*
 * data/adapter_schedule.h: which rows of which adapters share a micro-batch, where several adapters are trained on one base
 * at once. As LoRAFusion (Zhu et al., EuroSys 2026) does, in two stages: adapters are grouped so that each group has short and
 * long rows, and the rows of a group's next steps are packed into as few micro-batches as possible; then half-empty
 * micro-batches of neighbouring windows are merged.
 *
 * Groups     Adapters sorted by mean tokens of a row and dealt from both ends (shortest, longest, second shortest, ...) into
 *            groups of at most TSR_SCHEDULE_GROUP, as equal in size as possible.
 * Windows    Group after group in turns: a window holds the next step of every adapter of its group that still has one.
 * Packing    A window's rows go to as few micro-batches as possible, and the last of these is as empty as possible. GREEDY: best
 *            fit, the longest first; or each adapter into micro-batches of its own, by best fit or in its order, where these are
 *            fewer, so that sharing never costs one. MILP: where a bound says that greedy may not be the best, other packings are tried, and
 *            CBC chooses among all their micro-batches together; greedy stays where nothing strictly better is found.
 * Merging    The last micro-batch of a window is dissolved into the next window's, and the next window's last into this
 *            one's, where all its rows fit and the order of steps allows it.
 *
 * What holds of every schedule:
 *   - every row is in one micro-batch, and none of these has more than `capacity` tokens;
 *   - all rows of an adapter's step are in micro-batches strictly before any row of its next step, so that the adapter can be
 *     updated between the two; a micro-batch never has two steps of one adapter;
 *   - no row of any adapter's step s is in or after a micro-batch with a row of another's step s + 2, so that adapters can be
 *     stepped in turns;
 *   - the pieces of a micro-batch are sorted by adapter, then row: an adapter's are neighbours.
 *
 * A schedule depends on the arguments alone: no clock, rank or address decides, the solver is bounded by nodes. GREEDY computes in
 * integers, and is the same everywhere. CBC computes in floating point, and its LAPACK rounds otherwise on another kind of
 * processor, so that CBC may choose other micro-batches, as good or not: with MILP one rank makes the schedule for all, or
 * all compare `hash`; so does who resumes a run.
 *
 * Cost       GREEDY O(n log n) in the rows of a window, for each window: about three million rows a second. Merging can add the rows
 *            times the micro-batches of a window. MILP: for each window that the bound does not settle a millisecond (some ten
 *            rows) to a second (256 rows of a third of a micro-batch each); greedy keeps windows of more than 256 rows.
 * Threads    Any. CBC works for one at a time; SIGINT waits while it does.
 */
#ifndef TSR_DATA_ADAPTER_SCHEDULE_H
#define TSR_DATA_ADAPTER_SCHEDULE_H

#include "base/status.h"

#include <stdint.h>

#define TSR_SCHEDULE_GROUP 4 /* adapters of a group at most */

typedef enum { TSR_ADAPTER_SCHEDULE_GREEDY, TSR_ADAPTER_SCHEDULE_MILP } tsr_adapter_schedule_kind;

/* The rows of one adapter: its steps in order; rows of step s are [first_row[s], first_row[s + 1]), at least one. Borrowed. */
typedef struct {
    int64_t steps;            /* 0: it has no rows */
    const int64_t *first_row; /* [steps + 1]; not read where steps is 0 */
    const int32_t *tokens;    /* of each row, 1 .. capacity */
} tsr_adapter_rows;

/* A row in a micro-batch. */
typedef struct {
    int32_t adapter;
    int32_t row; /* in its step, from 0 */
    int64_t step;
} tsr_schedule_piece;

/* Its pieces are [first_piece, first_piece of the next). */
typedef struct {
    int64_t first_piece;
    int64_t tokens;
} tsr_schedule_micro;

typedef struct {
    tsr_schedule_micro *micro; /* [count + 1]; the last is an end without tokens */
    tsr_schedule_piece *pieces;
    int64_t count; /* micro-batches */
    int64_t piece_count;
    int64_t capacity;
    int64_t groups, windows;
    int64_t greedy;   /* micro-batches of greedy alone, before merging */
    int64_t unmerged; /* micro-batches before merging */
    int64_t improved; /* windows where MILP was better than greedy */
    double fill;      /* all tokens over count * capacity; 0 where there is no row */
    uint64_t hash;    /* of capacity, micro and pieces: equal for equal schedules */
} tsr_adapter_schedule;

/* Whether this build knows MILP. */
bool tsr_adapter_schedule_has_milp(void);

/* Fills *out, which is then freed with tsr_adapter_schedule_free; on failure there is nothing to free.
 * TSR_ECONFIG: a row is longer than capacity (the message counts adapters, steps and rows from 0), or MILP in a build without CBC.
 * TSR_EDEVICE: CBC's library cannot be loaded. TSR_EINVAL: an empty step, a row without tokens, no adapter, no capacity. */
tsr_status tsr_adapter_schedule_make(tsr_adapter_schedule *out, const tsr_adapter_rows *adapters,
                                     int adapter_count, int64_t capacity,
                                     tsr_adapter_schedule_kind kind);

/* Of a zeroed or an already freed schedule: nothing. */
void tsr_adapter_schedule_free(tsr_adapter_schedule *schedule);

#endif
