#include "data/adapter_schedule_parts.h"

#include <stdlib.h>
#include <string.h>

/* Why no step overtakes another. `next` is as it was packed: of each adapter it has rows of one step, which is later than
 * all that `window` has of that adapter.
 *   Ahead  The last micro-batch of `window` goes into `next`: a row of adapter a into a micro-batch before the first that has a later
 *          step of a. What `window` keeps of a is in micro-batches before, and of the same step or an earlier one.
 *   Back   The last micro-batch of `next` goes into `window`: a row of adapter a behind the last that has a, and only if
 *          nothing of a went ahead, for that stands behind `window`. */

tsr_status tsr_schedule_merger_create(tsr_schedule_merger *merger, int adapters)
{
    *merger = (tsr_schedule_merger){.fence = calloc((size_t)adapters, sizeof *merger->fence)};
    return merger->fence
               ? TSR_OK
               : tsr_fail(TSR_ENOMEM, "no memory to merge micro-batches of %d adapters", adapters);
}

void tsr_schedule_merger_free(tsr_schedule_merger *merger)
{
    free(merger->fence);
    free(merger->rows);
    *merger = (tsr_schedule_merger){0};
}

/* Copies the rows of the last micro-batch, the longest first. */
static tsr_status take_last(int64_t *count, tsr_schedule_merger *merger,
                            const tsr_schedule_window *window)
{
    if (window->count > merger->rows_held) {
        int64_t held = window->count + window->count / 2;
        tsr_schedule_row *rows = realloc(merger->rows, (size_t)held * sizeof *rows);
        if (!rows)
            return tsr_fail(TSR_ENOMEM, "no memory to merge micro-batches of %lld rows",
                            (long long)held);
        merger->rows = rows;
        merger->rows_held = held;
    }
    *count = 0;
    for (int64_t i = 0; i < window->count; i++)
        if (window->rows[i].micro == window->micros - 1)
            merger->rows[(*count)++] = window->rows[i];
    qsort(merger->rows, (size_t)*count, sizeof *merger->rows, tsr_schedule_by_length);
    return TSR_OK;
}

/* The fullest of load[from .. to) that has room for this many tokens; -1: none. */
static int64_t fullest(const int64_t *load, int64_t from, int64_t to, int64_t tokens,
                       int64_t capacity)
{
    int64_t best = -1;
    for (int64_t m = from; m < to; m++)
        if (load[m] + tokens <= capacity && (best < 0 || load[m] > load[best]))
            best = m;
    return best;
}

static int64_t choose(const tsr_schedule_merger *merger, const tsr_schedule_row *row,
                      const tsr_schedule_window *to, bool ahead, int64_t capacity)
{
    const tsr_schedule_fence *fence = &merger->fence[row->piece.adapter];
    if (!ahead)
        return fullest(to->load, fence->bound + 1, to->micros, row->tokens, capacity);
    int64_t end = row->piece.step < fence->step ? fence->nearest : fence->bound;
    return fullest(to->load, 0, end, row->tokens, capacity);
}

/* Finds a micro-batch of `to` for each of the taken rows, and adds them to its load; if one finds none, nothing is changed. */
static bool place(tsr_schedule_merger *merger, int64_t count, tsr_schedule_window *to, bool ahead,
                  int64_t capacity)
{
    int64_t placed = 0;
    for (; placed < count; placed++) {
        tsr_schedule_row *row = &merger->rows[placed];
        int64_t micro = choose(merger, row, to, ahead, capacity);
        if (micro < 0)
            break;
        row->micro = (int32_t)micro;
        to->load[micro] += row->tokens;
    }
    if (placed == count)
        return true;
    while (placed-- > 0)
        to->load[merger->rows[placed].micro] -= merger->rows[placed].tokens;
    return false;
}

/* Rows went ahead, all those of an adapter of one step. */
static void move_fences(tsr_schedule_merger *merger, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const tsr_schedule_row *row = &merger->rows[i];
        tsr_schedule_fence *fence = &merger->fence[row->piece.adapter];
        if (row->piece.step < fence->step)
            *fence = (tsr_schedule_fence){fence->nearest, row->piece.step, row->micro};
        else if (row->micro < fence->nearest)
            fence->nearest = row->micro;
    }
}

static void widen(int64_t *least, int64_t *most, const tsr_schedule_row *rows, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        *least = rows[i].piece.step < *least ? rows[i].piece.step : *least;
        *most = rows[i].piece.step > *most ? rows[i].piece.step : *most;
    }
}

/* Whether adapters would be more than a step apart: whoever trains them takes a step of each in turns. */
static bool stretches(const tsr_schedule_merger *merger, int64_t count,
                      const tsr_schedule_window *to)
{
    int64_t least = INT64_MAX, most = 0;
    widen(&least, &most, merger->rows, count);
    widen(&least, &most, to->rows, to->count);
    return most - least > 1;
}

/* Dissolves the last micro-batch of `from` into those of `to`, whole or not at all. */
static tsr_status dissolve(bool *done, tsr_schedule_merger *merger, tsr_schedule_window *from,
                           tsr_schedule_window *to, bool ahead, int64_t capacity)
{
    int64_t room = 0, count = 0, kept = 0;
    *done = false;
    for (int64_t m = 0; m < to->micros; m++)
        room += capacity - to->load[m];
    if (!from->micros || from->load[from->micros - 1] > room)
        return TSR_OK;
    TSR_TRY(take_last(&count, merger, from));
    TSR_TRY(tsr_schedule_window_reserve(to, to->count + count, to->micros));
    if (stretches(merger, count, to) || !place(merger, count, to, ahead, capacity))
        return TSR_OK;
    if (ahead)
        move_fences(merger, count);
    memcpy(to->rows + to->count, merger->rows, (size_t)count * sizeof *to->rows);
    to->count += count;
    for (int64_t i = 0; i < from->count; i++)
        if (from->rows[i].micro != from->micros - 1)
            from->rows[kept++] = from->rows[i];
    from->count = kept;
    from->micros--;
    *done = true;
    return TSR_OK;
}

/* Before the first micro-batch of `next` that has the adapter, anywhere where none has. */
static void fence_ahead(tsr_schedule_fence *fence, const tsr_schedule_window *window,
                        const tsr_schedule_window *next)
{
    tsr_schedule_fence open = {next->micros, INT64_MAX, next->micros};
    for (int64_t i = 0; i < window->count; i++)
        fence[window->rows[i].piece.adapter] = open;
    for (int64_t i = 0; i < next->count; i++)
        fence[next->rows[i].piece.adapter] = open;
    for (int64_t i = 0; i < next->count; i++) {
        const tsr_schedule_row *row = &next->rows[i];
        if (row->micro < fence[row->piece.adapter].nearest)
            fence[row->piece.adapter].nearest = row->micro;
    }
}

/* Behind the last micro-batch of `window` that has the adapter, anywhere where none has; nowhere where rows of it went ahead: the
 * rows of `next` from `packed` on. */
static void fence_back(tsr_schedule_fence *fence, const tsr_schedule_window *window,
                       const tsr_schedule_window *next, int64_t packed)
{
    for (int64_t i = 0; i < next->count; i++)
        fence[next->rows[i].piece.adapter].bound = -1;
    for (int64_t i = 0; i < window->count; i++)
        fence[window->rows[i].piece.adapter].bound = -1;
    for (int64_t i = 0; i < window->count; i++) {
        const tsr_schedule_row *row = &window->rows[i];
        if (row->micro > fence[row->piece.adapter].bound)
            fence[row->piece.adapter].bound = row->micro;
    }
    for (int64_t i = packed; i < next->count; i++)
        fence[next->rows[i].piece.adapter].bound = window->micros;
}

tsr_status tsr_schedule_merge(tsr_schedule_merger *merger, tsr_schedule_window *window,
                              tsr_schedule_window *next, int64_t capacity)
{
    int64_t packed = next->count;
    bool more = true;
    fence_ahead(merger->fence, window, next);
    while (more)
        TSR_TRY(dissolve(&more, merger, window, next, true, capacity));
    fence_back(merger->fence, window, next, packed);
    more = true;
    while (more)
        TSR_TRY(dissolve(&more, merger, next, window, false, capacity));
    return TSR_OK;
}
