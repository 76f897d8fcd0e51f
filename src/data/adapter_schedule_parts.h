/*
 * data/adapter_schedule_parts.h: what the files of data/adapter_schedule.h share. Private to them.
 */
#ifndef TSR_DATA_ADAPTER_SCHEDULE_PARTS_H
#define TSR_DATA_ADAPTER_SCHEDULE_PARTS_H

#include "data/adapter_schedule.h"

typedef struct {
    tsr_schedule_piece piece;
    int32_t tokens;
    int32_t micro; /* of its window */
} tsr_schedule_row;

/* One window on its way: a few of them are reused for all of a schedule, and grow to the largest. */
typedef struct {
    tsr_schedule_row *rows;
    int64_t count, rows_held;
    int64_t *load;          /* [micros] tokens of each micro-batch, none of which is empty */
    int32_t *open, *number; /* [micros] scratch */
    int64_t micros, micros_held;
} tsr_schedule_window;

tsr_status tsr_schedule_window_reserve(tsr_schedule_window *window, int64_t rows, int64_t micros);
void tsr_schedule_window_free(tsr_schedule_window *window);

/* Numbers a window's micro-batches by load, the least filled last; of equally filled ones the lower number stays first. */
void tsr_schedule_window_order(tsr_schedule_window *window);

/* The longest first, of equally long ones by adapter and row. For qsort. */
int tsr_schedule_by_length(const void *a, const void *b);

/* ---- greedy ---- */

/* Packs a window's rows, each of at most `capacity` tokens: best fit, the longest first, of equally long ones by adapter and row;
 * or each adapter alone, where that takes fewer. Leaves the rows in that order, and the micro-batches ordered. */
tsr_status tsr_schedule_greedy(tsr_schedule_window *window, int64_t capacity);

/* ---- MILP ---- */

typedef struct tsr_schedule_milp tsr_schedule_milp;

/* Owned by the caller on success. TSR_ECONFIG, TSR_EDEVICE: CBC is not there. */
tsr_status tsr_schedule_milp_create(tsr_schedule_milp **out, int64_t capacity);
void tsr_schedule_milp_destroy(tsr_schedule_milp *milp);

/* A window as tsr_schedule_greedy has left it; packs it otherwise where that is strictly better: fewer micro-batches, or
 * as many and the last less filled. */
tsr_status tsr_schedule_milp_improve(bool *better, tsr_schedule_milp *milp,
                                     tsr_schedule_window *window);

/* Micro-batches that a window could have, to be chosen among: column c takes kind[first[c] .. first[c + 1]), a kind (all rows of one
 * length) once for each of its rows. */
typedef struct {
    int32_t kinds;
    const int32_t *tokens, *rows; /* [kinds] of a row; how many there are */
    int32_t columns;
    const int32_t *first, *kind; /* equal kinds of a column are neighbours */
} tsr_schedule_columns;

tsr_status tsr_schedule_cbc_load(void);

/* Asks CBC how many times each column is taken, `most` in all, such that the rows that are in none of them have as few tokens as
 * possible, between `least` and `limit`; a row may be in several. The answer is not to be trusted. *found false: there is none, or
 * none was found within `nodes`. */
tsr_status tsr_schedule_cbc_choose(bool *found, int32_t *times, const tsr_schedule_columns *columns,
                                   int64_t most, int64_t least, int64_t limit, int nodes);

/* ---- merging ---- */

/* Where the rows of an adapter may go. */
typedef struct {
    int64_t bound; /* a micro-batch that they must stay before, or behind */
    int64_t step;  /* of those that went last */
    int64_t
        nearest; /* the first micro-batch that these went to: those of a step before must stay before it */
} tsr_schedule_fence;

/* Scratch. */
typedef struct {
    tsr_schedule_fence *fence; /* [adapters] */
    tsr_schedule_row *rows;    /* of the micro-batch that is dissolved */
    int64_t rows_held;
} tsr_schedule_merger;

tsr_status tsr_schedule_merger_create(tsr_schedule_merger *merger, int adapters);
void tsr_schedule_merger_free(tsr_schedule_merger *merger);

/* `window` comes before `next` with nothing between them, and `next` is as it was packed. Takes micro-batches out of
 * either as long as the other has room; one of them may have none in the end. */
tsr_status tsr_schedule_merge(tsr_schedule_merger *merger, tsr_schedule_window *window,
                              tsr_schedule_window *next, int64_t capacity);

#endif
