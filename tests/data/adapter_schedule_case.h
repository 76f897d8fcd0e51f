/*
 * tests/data/adapter_schedule_case.h: rows of several adapters, the rules that hold of every schedule, and packings of one window by
 * their definitions.
 */
#ifndef TSR_TESTS_DATA_ADAPTER_SCHEDULE_CASE_H
#define TSR_TESTS_DATA_ADAPTER_SCHEDULE_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/philox.h"
#include "data/adapter_schedule.h"

#include <stdlib.h>
#include <string.h>

#define ADAPTERS 16
#define STEPS    8
#define ROWS     1024 /* of an adapter */

typedef struct {
    tsr_adapter_rows adapters[ADAPTERS];
    int64_t first_row[ADAPTERS][STEPS + 1];
    int32_t tokens[ADAPTERS][ROWS];
    int count;
    int64_t capacity;
} input;

static inline uint64_t next_random(uint64_t *state)
{
    return *state = tsr_mix(*state);
}

static inline int64_t below(uint64_t *state, int64_t end)
{
    return (int64_t)(next_random(state) % (uint64_t)end);
}

/* One without steps; begin_step and add_row fill it. */
static inline void begin_adapter(input *in)
{
    int a = in->count++;
    in->first_row[a][0] = 0;
    in->adapters[a] = (tsr_adapter_rows){0, in->first_row[a], in->tokens[a]};
}

static inline void add_row(input *in, int32_t tokens)
{
    int a = in->count - 1;
    int64_t *end = &in->first_row[a][in->adapters[a].steps];
    assert_true(*end < ROWS);
    in->tokens[a][(*end)++] = tokens;
}

/* The next rows are of another step. */
static inline void begin_step(input *in)
{
    int a = in->count - 1;
    int64_t step = ++in->adapters[a].steps;
    assert_true(step <= STEPS);
    in->first_row[a][step] = in->first_row[a][step - 1];
}

static inline void draw(input *in, uint64_t seed)
{
    static const int64_t capacities[] = {1, 7, 10, 100, 1000, 8192};
    uint64_t state = seed;
    in->count = 0;
    in->capacity = capacities[below(&state, 6)];
    int count = (int)below(&state, ADAPTERS) + 1, most_rows = (int)below(&state, 10) + 1;
    int64_t share = below(&state, 4) + 1; /* of a micro-batch that the longest row takes */
    for (int a = 0; a < count; a++) {
        int64_t steps = below(&state, STEPS + 1), longest = in->capacity / share;
        if (below(&state, 2))
            longest = longest / (below(&state, 8) + 1);
        begin_adapter(in);
        for (int64_t s = 0; s < steps; s++) {
            begin_step(in);
            for (int64_t r = below(&state, most_rows) + 1; r > 0; r--)
                add_row(in, (int32_t)below(&state, longest > 0 ? longest : 1) + 1);
        }
    }
}

static inline void make(tsr_adapter_schedule *out, const input *in, tsr_adapter_schedule_kind kind)
{
    memset(out, 0, sizeof *out);
    if (tsr_adapter_schedule_make(out, in->adapters, in->count, in->capacity, kind) < 0)
        fail_msg("%s", tsr_last_error());
}

static inline int64_t tokens_of(const input *in, tsr_schedule_piece p)
{
    return in->tokens[p.adapter][in->first_row[p.adapter][p.step] + p.row];
}

static inline int64_t all_tokens(const input *in)
{
    int64_t sum = 0;
    for (int a = 0; a < in->count; a++)
        for (int64_t r = 0; r < in->first_row[a][in->adapters[a].steps]; r++)
            sum += in->tokens[a][r];
    return sum;
}

/* ---- the rules ---- */

static inline void has_every_row_once(const tsr_adapter_schedule *s, const input *in)
{
    static bool seen[ADAPTERS][ROWS];
    int64_t rows = 0;
    memset(seen, 0, sizeof seen);
    for (int64_t i = 0; i < s->piece_count; i++) {
        tsr_schedule_piece p = s->pieces[i];
        assert_in_range(p.adapter, 0, in->count - 1);
        assert_true(p.step >= 0 && p.step < in->adapters[p.adapter].steps);
        const int64_t *first = &in->first_row[p.adapter][p.step];
        assert_true(p.row >= 0 && p.row < first[1] - first[0]);
        assert_false(seen[p.adapter][first[0] + p.row]);
        seen[p.adapter][first[0] + p.row] = true;
    }
    for (int a = 0; a < in->count; a++)
        rows += in->first_row[a][in->adapters[a].steps];
    assert_int_equal(s->piece_count, rows);
}

static inline void fits_and_is_sorted(const tsr_adapter_schedule *s, const input *in)
{
    assert_int_equal(s->micro[0].first_piece, 0);
    assert_int_equal(s->micro[s->count].first_piece, s->piece_count);
    for (int64_t m = 0; m < s->count; m++) {
        int64_t tokens = 0, from = s->micro[m].first_piece, to = s->micro[m + 1].first_piece;
        assert_true(from < to);
        for (int64_t i = from; i < to; i++) {
            tsr_schedule_piece p = s->pieces[i], before = s->pieces[i > from ? i - 1 : i];
            tokens += tokens_of(in, p);
            if (i == from)
                continue;
            assert_true(
                before.adapter < p.adapter ||
                (before.adapter == p.adapter && before.step == p.step && before.row < p.row));
        }
        assert_int_equal(tokens, s->micro[m].tokens);
        assert_true(tokens <= s->capacity);
    }
}

/* All of an adapter's step before any of the next. */
static inline void keeps_steps_apart(const tsr_adapter_schedule *s, const input *in)
{
    int64_t begins[ADAPTERS][STEPS], ends[ADAPTERS][STEPS];
    memset(ends, 0xff, sizeof ends);
    for (int64_t m = 0; m < s->count; m++)
        for (int64_t i = s->micro[m].first_piece; i < s->micro[m + 1].first_piece; i++) {
            tsr_schedule_piece p = s->pieces[i];
            if (ends[p.adapter][p.step] < 0)
                begins[p.adapter][p.step] = m;
            ends[p.adapter][p.step] = m;
        }
    for (int a = 0; a < in->count; a++)
        for (int64_t step = 1; step < in->adapters[a].steps; step++)
            assert_true(ends[a][step - 1] < begins[a][step]);
}

/* Whoever steps the adapters in turns never needs more than one step of another first. */
static inline void keeps_adapters_together(const tsr_adapter_schedule *s)
{
    int64_t most = 0;
    for (int64_t m = 0; m < s->count; m++) {
        for (int64_t i = s->micro[m].first_piece; i < s->micro[m + 1].first_piece; i++)
            most = s->pieces[i].step > most ? s->pieces[i].step : most;
        for (int64_t i = s->micro[m].first_piece; i < s->micro[m + 1].first_piece; i++)
            assert_true(s->pieces[i].step >= most - 1);
    }
}

static inline void counts_are_right(const tsr_adapter_schedule *s, const input *in)
{
    int64_t tokens = all_tokens(in);
    assert_int_equal(s->capacity, in->capacity);
    assert_int_equal(s->groups, (in->count + TSR_SCHEDULE_GROUP - 1) / TSR_SCHEDULE_GROUP);
    assert_true(s->count * s->capacity >= tokens);
    assert_true(s->count <= s->unmerged && s->unmerged <= s->greedy);
    assert_true(s->improved <= s->windows);
    if (s->count)
        assert_true(s->fill == (double)tokens / (double)(s->count * s->capacity));
    if (s->groups > 1)
        return;
    /* Of one group a window is a step. */
    int64_t windows = 0, least = 0;
    for (int64_t step = 0; step < STEPS; step++) {
        int64_t sum = 0;
        for (int a = 0; a < in->count; a++)
            for (int64_t r = in->first_row[a][step];
                 step < in->adapters[a].steps && r < in->first_row[a][step + 1]; r++)
                sum += in->tokens[a][r];
        windows += sum > 0;
        least += (sum + s->capacity - 1) / s->capacity;
    }
    assert_int_equal(s->windows, windows);
    assert_true(s->unmerged >= least);
}

static inline void follows_the_rules(const tsr_adapter_schedule *s, const input *in)
{
    has_every_row_once(s, in);
    fits_and_is_sorted(s, in);
    keeps_steps_apart(s, in);
    keeps_adapters_together(s);
    counts_are_right(s, in);
}

/* ---- one window ---- */

static inline int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Best fit decreasing by its definition: loads, the fullest first. */
static inline int64_t best_fit(int64_t *load, const int32_t *tokens, int count, int64_t capacity)
{
    int64_t sorted[ROWS], micros = 0;
    for (int i = 0; i < count; i++)
        sorted[i] = tokens[i];
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    for (int i = 0; i < count; i++) {
        int64_t best = -1;
        for (int64_t m = 0; m < micros; m++)
            if (load[m] + sorted[i] <= capacity && (best < 0 || load[m] > load[best]))
                best = m;
        if (best < 0)
            load[best = micros++] = 0;
        load[best] += sorted[i];
    }
    qsort(load, (size_t)micros, sizeof *load, by_value);
    return micros;
}

/* Rows in their order, a new micro-batch for each that does not fit. */
static inline int64_t next_fit(int64_t *load, const int32_t *tokens, int count, int64_t capacity)
{
    int64_t micros = 0;
    for (int i = 0; i < count; i++) {
        if (!micros || load[micros - 1] + tokens[i] > capacity)
            load[micros++] = 0;
        load[micros - 1] += tokens[i];
    }
    qsort(load, (size_t)micros, sizeof *load, by_value);
    return micros;
}

/* Of one adapter alone the better of the two. */
static inline int64_t plain(int64_t *load, const int32_t *tokens, int count, int64_t capacity)
{
    int64_t other[ROWS], micros = best_fit(load, tokens, count, capacity);
    int64_t in_order = next_fit(other, tokens, count, capacity);
    if (in_order >= micros)
        return micros;
    memcpy(load, other, (size_t)in_order * sizeof *load);
    return in_order;
}

#endif
