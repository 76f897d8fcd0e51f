#include "data/adapter_schedule_parts.h"

#include <stdlib.h>
#include <string.h>

/* Where in open[0..count), the fullest first and of equally filled ones the lower number, a micro-batch of this load and number
 * stands or would stand. */
static int64_t place_of(const tsr_schedule_window *w, int64_t count, int64_t load, int32_t number)
{
    int64_t from = 0, to = count;
    while (from < to) {
        int64_t middle = from + (to - from) / 2, other = w->load[w->open[middle]];
        if (other > load || (other == load && w->open[middle] < number))
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

tsr_status tsr_schedule_greedy(tsr_schedule_window *window, int64_t capacity)
{
    TSR_TRY(tsr_schedule_window_reserve(window, window->count, window->count));
    qsort(window->rows, (size_t)window->count, sizeof *window->rows, tsr_schedule_by_length);
    window->micros = 0;
    for (int64_t i = 0; i < window->count; i++) {
        tsr_schedule_row *row = &window->rows[i];
        /* The fullest with room enough is the first that holds no more than this. */
        int64_t at = place_of(window, window->micros, capacity - row->tokens, -1);
        if (at == window->micros) {
            window->load[at] = 0;
            window->open[at] = (int32_t)at;
            window->micros++;
        }
        int32_t number = window->open[at];
        int64_t to = place_of(window, at, window->load[number] + row->tokens, number);
        memmove(&window->open[to + 1], &window->open[to], (size_t)(at - to) * sizeof *window->open);
        window->open[to] = number;
        window->load[number] += row->tokens;
        row->micro = number;
    }
    tsr_schedule_window_order(window);
    return TSR_OK;
}
