#include "data/adapter_schedule_parts.h"

#include <stdlib.h>
#include <string.h>

#define ALL (-1) /* adapters */

/* Where in open[0..count), the fullest first and of equally filled ones the lower number, a micro-batch of this load and number
 * stands or would stand. */
static int64_t place_of(const tsr_schedule_window *w, const int32_t *open, int64_t count,
                        int64_t load, int32_t number)
{
    int64_t from = 0, to = count;
    while (from < to) {
        int64_t middle = from + (to - from) / 2, other = w->load[open[middle]];
        if (other > load || (other == load && open[middle] < number))
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Best fit of an adapter's rows, or of all, into micro-batches behind those that there are. */
static void best_fit(tsr_schedule_window *window, int32_t adapter, int64_t capacity)
{
    const int64_t first = window->micros;
    int32_t *open = window->open + first;
    for (int64_t i = 0; i < window->count; i++) {
        tsr_schedule_row *row = &window->rows[i];
        if (adapter != ALL && row->piece.adapter != adapter)
            continue;
        /* The fullest with room enough is the first that holds no more than this. */
        int64_t count = window->micros - first;
        int64_t at = place_of(window, open, count, capacity - row->tokens, -1);
        if (at == count) {
            open[at] = (int32_t)window->micros++;
            window->load[open[at]] = 0;
        }
        int32_t number = open[at];
        int64_t to = place_of(window, open, at, window->load[number] + row->tokens, number);
        memmove(&open[to + 1], &open[to], (size_t)(at - to) * sizeof *open);
        open[to] = number;
        window->load[number] += row->tokens;
        row->micro = number;
    }
}

/* Rows in their order, a new micro-batch for each that does not fit into the last. With `write` they go there. Returns how
 * many. */
static int64_t next_fit(tsr_schedule_window *window, const int32_t *order, int64_t rows,
                        int64_t first, int64_t capacity, bool write)
{
    int64_t count = 0, load = 0;
    for (int64_t i = 0; i < rows; i++) {
        tsr_schedule_row *row = &window->rows[order[i]];
        if (count == 0 || load + row->tokens > capacity) {
            count++;
            load = 0;
        }
        load += row->tokens;
        if (write)
            row->micro = (int32_t)(first + count - 1);
    }
    return count;
}

/* Micro-batches of one adapter: no more than if its rows went into them in their order, as in a run of its own. */
static void pack_alone(tsr_schedule_window *window, int32_t adapter, int64_t capacity)
{
    int64_t first = window->micros, rows = 0;
    int32_t *order = window->number;
    for (int64_t i = 0; i < window->count; i++)
        if (window->rows[i].piece.adapter == adapter) {
            order[window->rows[i].piece.row] = (int32_t)i;
            rows++;
        }
    best_fit(window, adapter, capacity);
    int64_t in_order = next_fit(window, order, rows, first, capacity, false);
    if (in_order >= window->micros - first)
        return;
    next_fit(window, order, rows, first, capacity, true);
    window->micros = first + in_order;
}

/* The lowest adapter above `adapter` that has rows; ALL: there is none. */
static int32_t next_adapter(const tsr_schedule_window *window, int32_t adapter)
{
    int32_t next = ALL;
    for (int64_t i = 0; i < window->count; i++) {
        int32_t its = window->rows[i].piece.adapter;
        if (its > adapter && (next == ALL || its < next))
            next = its;
    }
    return next;
}

static int64_t least_micros(const tsr_schedule_window *window, int64_t capacity)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < window->count; i++)
        tokens += window->rows[i].tokens;
    return (tokens + capacity - 1) / capacity;
}

tsr_status tsr_schedule_greedy(tsr_schedule_window *window, int64_t capacity)
{
    TSR_TRY(tsr_schedule_window_reserve(window, window->count, window->count));
    qsort(window->rows, (size_t)window->count, sizeof *window->rows, tsr_schedule_by_length);
    window->micros = 0;
    best_fit(window, ALL, capacity);
    int64_t mixed = window->micros;
    if (mixed > least_micros(window, capacity)) {
        window->micros = 0;
        for (int32_t a = next_adapter(window, ALL); a != ALL; a = next_adapter(window, a))
            pack_alone(window, a, capacity);
        if (window->micros >= mixed) {
            window->micros = 0;
            best_fit(window, ALL, capacity);
        }
    }
    tsr_schedule_window_order(window);
    return TSR_OK;
}
