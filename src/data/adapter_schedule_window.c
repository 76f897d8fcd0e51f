#include "data/adapter_schedule_parts.h"

#include <stdlib.h>

static tsr_status reserve_micros(tsr_schedule_window *window, int64_t micros)
{
    int64_t *load = realloc(window->load, (size_t)micros * sizeof *load);
    if (load)
        window->load = load;
    int32_t *open = realloc(window->open, (size_t)micros * sizeof *open);
    if (open)
        window->open = open;
    int32_t *number = realloc(window->number, (size_t)micros * sizeof *number);
    if (number)
        window->number = number;
    if (!load || !open || !number)
        return tsr_fail(TSR_ENOMEM, "no memory to schedule a window of %lld micro-batches",
                        (long long)micros);
    window->micros_held = micros;
    return TSR_OK;
}

tsr_status tsr_schedule_window_reserve(tsr_schedule_window *window, int64_t rows, int64_t micros)
{
    if (rows > window->rows_held) {
        int64_t held = rows + rows / 2;
        tsr_schedule_row *grown = realloc(window->rows, (size_t)held * sizeof *grown);
        if (!grown)
            return tsr_fail(TSR_ENOMEM, "no memory to schedule a window of %lld rows",
                            (long long)rows);
        window->rows = grown;
        window->rows_held = held;
    }
    return micros <= window->micros_held ? TSR_OK : reserve_micros(window, micros);
}

void tsr_schedule_window_free(tsr_schedule_window *window)
{
    free(window->rows);
    free(window->load);
    free(window->open);
    free(window->number);
    *window = (tsr_schedule_window){0};
}

int tsr_schedule_by_length(const void *a, const void *b)
{
    const tsr_schedule_row *x = a, *y = b;
    if (x->tokens != y->tokens)
        return x->tokens > y->tokens ? -1 : 1;
    if (x->piece.adapter != y->piece.adapter)
        return x->piece.adapter < y->piece.adapter ? -1 : 1;
    return (x->piece.row > y->piece.row) - (x->piece.row < y->piece.row);
}

static int by_load(const void *a, const void *b, void *loads)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const int64_t *load = loads;
    if (load[x] != load[y])
        return load[x] > load[y] ? -1 : 1;
    return (x > y) - (x < y);
}

void tsr_schedule_window_order(tsr_schedule_window *window)
{
    for (int64_t i = 0; i < window->micros; i++)
        window->open[i] = (int32_t)i;
    qsort_r(window->open, (size_t)window->micros, sizeof *window->open, by_load, window->load);
    for (int64_t i = 0; i < window->micros; i++) {
        window->number[window->open[i]] = (int32_t)i;
        window->load[i] = 0;
    }
    for (int64_t i = 0; i < window->count; i++) {
        tsr_schedule_row *row = &window->rows[i];
        row->micro = window->number[row->micro];
        window->load[row->micro] += row->tokens;
    }
}
