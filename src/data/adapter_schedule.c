#include "data/adapter_schedule.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/phase.h"
#include "data/adapter_schedule_parts.h"

#include <stdlib.h>

/* The adapters of one group that have a step left, by number. */
typedef struct {
    int32_t adapter[TSR_SCHEDULE_GROUP];
    int count;
} group;

typedef struct {
    const tsr_adapter_rows *adapters;
    int adapter_count;
    int64_t capacity;
    group *groups; /* those that have a step left */
    int64_t live, rows;
    tsr_schedule_milp *milp; /* NULL: greedy */
    tsr_schedule_merger merger;
    tsr_schedule_window held[2], *window, *next; /* the one that is merged with the next */
    tsr_adapter_schedule *out;
    int64_t micros_held;
} maker;

/* ---- checks ---- */

static tsr_status check_row(const tsr_adapter_rows *rows, int adapter, int64_t step, int64_t row,
                            int64_t capacity)
{
    int32_t tokens = rows->tokens[row];
    if (tokens < 1)
        return tsr_fail(TSR_EINVAL, "adapter schedule: adapter %d, step %lld, row %lld: %d tokens",
                        adapter, (long long)step, (long long)(row - rows->first_row[step]), tokens);
    if (tokens > capacity)
        return tsr_fail(TSR_ECONFIG,
                        "adapter %d, step %lld, row %lld: %d tokens; a micro-batch that adapters "
                        "share has room for %lld; give it more tokens, or shorten the rows",
                        adapter, (long long)step, (long long)(row - rows->first_row[step]), tokens,
                        (long long)capacity);
    return TSR_OK;
}

static tsr_status check_adapter(const tsr_adapter_rows *rows, int adapter, int64_t capacity)
{
    if (rows->steps < 0)
        return tsr_fail(TSR_EINVAL, "adapter schedule: adapter %d: %lld steps", adapter,
                        (long long)rows->steps);
    for (int64_t s = 0; s < rows->steps; s++) {
        int64_t count = rows->first_row[s + 1] - rows->first_row[s];
        if (count < 1 || count > INT32_MAX / TSR_SCHEDULE_GROUP)
            return tsr_fail(TSR_EINVAL, "adapter schedule: adapter %d, step %lld: %lld rows",
                            adapter, (long long)s, (long long)count);
        for (int64_t r = rows->first_row[s]; r < rows->first_row[s + 1]; r++)
            TSR_TRY(check_row(rows, adapter, s, r, capacity));
    }
    return TSR_OK;
}

static tsr_status check(const tsr_adapter_rows *adapters, int count, int64_t capacity)
{
    if (count < 1 || capacity < 1)
        return tsr_fail(TSR_EINVAL, "adapter schedule: %d adapters, micro-batches of %lld tokens",
                        count, (long long)capacity);
    for (int a = 0; a < count; a++)
        TSR_TRY(check_adapter(&adapters[a], a, capacity));
    return TSR_OK;
}

/* ---- groups ---- */

typedef struct {
    int64_t tokens, rows;
    int32_t adapter;
} mean;

/* Compares fractions as whole numbers, so that every machine sorts alike. */
static int by_mean(const void *a, const void *b)
{
    const mean *x = a, *y = b;
    __int128 left = (__int128)x->tokens * y->rows, right = (__int128)y->tokens * x->rows;
    if (left != right)
        return left < right ? -1 : 1;
    return (x->adapter > y->adapter) - (x->adapter < y->adapter);
}

/* Sets rows too. */
static tsr_status sort_by_mean(mean **out, maker *m)
{
    mean *means = calloc((size_t)m->adapter_count, sizeof *means);
    if (!means)
        return tsr_fail(TSR_ENOMEM, "no memory to schedule %d adapters", m->adapter_count);
    for (int a = 0; a < m->adapter_count; a++) {
        const tsr_adapter_rows *rows = &m->adapters[a];
        means[a] = (mean){.rows = 1, .adapter = a}; /* one without rows: mean 0 */
        if (!rows->steps)
            continue;
        means[a].rows = rows->first_row[rows->steps] - rows->first_row[0];
        m->rows += means[a].rows;
        for (int64_t r = rows->first_row[0]; r < rows->first_row[rows->steps]; r++)
            means[a].tokens += rows->tokens[r];
    }
    qsort(means, (size_t)m->adapter_count, sizeof *means, by_mean);
    *out = means;
    return TSR_OK;
}

/* By number: a window's rows are gathered in the order in which equally long ones are packed. */
static void add_member(group *g, int32_t adapter)
{
    int at = g->count++;
    for (; at > 0 && g->adapter[at - 1] > adapter; at--)
        g->adapter[at] = g->adapter[at - 1];
    g->adapter[at] = adapter;
}

static tsr_status make_groups(maker *m)
{
    mean *means = NULL;
    int count = m->adapter_count;
    TSR_TRY(sort_by_mean(&means, m));
    m->live = (int64_t)tsr_ceil_div((uint64_t)count, TSR_SCHEDULE_GROUP);
    m->out->groups = m->live;
    m->groups = calloc((size_t)m->live, sizeof *m->groups);
    if (!m->groups) {
        free(means);
        return tsr_fail(TSR_ENOMEM, "no memory to schedule %d adapters", count);
    }
    int dealt = 0;
    for (int64_t g = 0; g < m->live; g++) {
        int64_t size = count / m->live + (g < count % m->live);
        for (int64_t i = 0; i < size; i++, dealt++)
            add_member(&m->groups[g], means[dealt % 2 ? count - 1 - dealt / 2 : dealt / 2].adapter);
    }
    free(means);
    return TSR_OK;
}

/* Those that have ended before this step leave. */
static void drop_ended(group *g, const maker *m, int64_t step)
{
    int kept = 0;
    for (int i = 0; i < g->count; i++)
        if (m->adapters[g->adapter[i]].steps > step)
            g->adapter[kept++] = g->adapter[i];
    g->count = kept;
}

/* ---- windows ---- */

static tsr_status gather(tsr_schedule_window *window, const maker *m, const group *g, int64_t step)
{
    int64_t count = 0;
    for (int i = 0; i < g->count; i++) {
        const int64_t *first = &m->adapters[g->adapter[i]].first_row[step];
        count += first[1] - first[0];
    }
    TSR_TRY(tsr_schedule_window_reserve(window, count, 0));
    window->count = 0;
    for (int i = 0; i < g->count; i++) {
        const tsr_adapter_rows *rows = &m->adapters[g->adapter[i]];
        for (int64_t r = rows->first_row[step]; r < rows->first_row[step + 1]; r++)
            window->rows[window->count++] = (tsr_schedule_row){
                {g->adapter[i], (int32_t)(r - rows->first_row[step]), step}, rows->tokens[r], 0};
    }
    return TSR_OK;
}

static int by_place(const void *a, const void *b)
{
    const tsr_schedule_row *x = a, *y = b;
    if (x->micro != y->micro)
        return x->micro < y->micro ? -1 : 1;
    if (x->piece.adapter != y->piece.adapter)
        return x->piece.adapter < y->piece.adapter ? -1 : 1;
    return (x->piece.row > y->piece.row) - (x->piece.row < y->piece.row);
}

static tsr_status reserve_micros(maker *m, int64_t count)
{
    if (count <= m->micros_held)
        return TSR_OK;
    int64_t held = count + count / 2;
    tsr_schedule_micro *micro = realloc(m->out->micro, (size_t)held * sizeof *micro);
    if (!micro)
        return tsr_fail(TSR_ENOMEM, "no memory for a schedule of %lld micro-batches",
                        (long long)count);
    m->out->micro = micro;
    m->micros_held = held;
    return TSR_OK;
}

/* Writes a window that no row will leave or join any more. */
static tsr_status emit(maker *m, tsr_schedule_window *window)
{
    tsr_adapter_schedule *out = m->out;
    TSR_TRY(reserve_micros(m, out->count + window->micros + 1));
    if (window->count)
        qsort(window->rows, (size_t)window->count, sizeof *window->rows, by_place);
    int64_t at = 0;
    for (int64_t i = 0; i < window->micros; i++) {
        out->micro[out->count++] = (tsr_schedule_micro){out->piece_count, window->load[i]};
        for (; at < window->count && window->rows[at].micro == i; at++)
            out->pieces[out->piece_count++] = window->rows[at].piece;
    }
    tsr_phase_at("scheduling", (double)out->piece_count, (double)m->rows);
    return TSR_OK;
}

static tsr_status add_window(maker *m, const group *g, int64_t step)
{
    bool better = false;
    TSR_TRY(gather(m->next, m, g, step));
    TSR_TRY(tsr_schedule_greedy(m->next, m->capacity));
    m->out->windows++;
    m->out->greedy += m->next->micros;
    if (m->milp)
        TSR_TRY(tsr_schedule_milp_improve(&better, m->milp, m->next));
    m->out->improved += better;
    m->out->unmerged += m->next->micros;
    TSR_TRY(tsr_schedule_merge(&m->merger, m->window, m->next, m->capacity));
    if (!m->next->micros) /* this one's neighbour is the window after that */
        return TSR_OK;
    TSR_TRY(emit(m, m->window));
    tsr_schedule_window *done = m->window;
    m->window = m->next;
    m->next = done;
    return TSR_OK;
}

static tsr_status add_windows(maker *m)
{
    int64_t most = 0;
    for (int a = 0; a < m->adapter_count; a++)
        most = m->adapters[a].steps > most ? m->adapters[a].steps : most;
    for (int64_t step = 0; m->live > 0; step++) {
        int64_t kept = 0;
        tsr_phase_at("packing rows", (double)step, (double)most);
        for (int64_t i = 0; i < m->live; i++) {
            group g = m->groups[i];
            drop_ended(&g, m, step);
            if (!g.count)
                continue;
            m->groups[kept++] = g;
            TSR_TRY(add_window(m, &g, step));
        }
        m->live = kept;
    }
    return emit(m, m->window);
}

/* ---- the schedule ---- */

static void finish(tsr_adapter_schedule *out)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < out->count; i++)
        tokens += out->micro[i].tokens;
    out->micro[out->count] = (tsr_schedule_micro){out->piece_count, 0};
    if (out->count)
        out->fill = (double)tokens / ((double)out->count * (double)out->capacity);
    uint64_t hash = tsr_hash(TSR_HASH_START, &out->capacity, sizeof out->capacity);
    hash = tsr_hash(hash, out->micro, (uint64_t)(out->count + 1) * sizeof *out->micro);
    out->hash = tsr_hash(hash, out->pieces, (uint64_t)out->piece_count * sizeof *out->pieces);
}

static tsr_status make(maker *m)
{
    TSR_TRY(make_groups(m));
    TSR_TRY(tsr_schedule_merger_create(&m->merger, m->adapter_count));
    m->out->pieces = calloc((size_t)m->rows + 1, sizeof *m->out->pieces);
    if (!m->out->pieces)
        return tsr_fail(TSR_ENOMEM, "no memory for a schedule of %lld rows", (long long)m->rows);
    TSR_TRY(add_windows(m));
    if (m->out->piece_count != m->rows)
        return tsr_fail(TSR_EINTERNAL, "adapter schedule: %lld of %lld rows are in it",
                        (long long)m->out->piece_count, (long long)m->rows);
    finish(m->out);
    return TSR_OK;
}

tsr_status tsr_adapter_schedule_make(tsr_adapter_schedule *out, const tsr_adapter_rows *adapters,
                                     int adapter_count, int64_t capacity,
                                     tsr_adapter_schedule_kind kind)
{
    tsr_adapter_schedule schedule = {.capacity = capacity};
    maker m = {.adapters = adapters,
               .adapter_count = adapter_count,
               .capacity = capacity,
               .out = &schedule};
    m.window = &m.held[0];
    m.next = &m.held[1];
    TSR_TRY(check(adapters, adapter_count, capacity));
    if (kind == TSR_ADAPTER_SCHEDULE_MILP)
        TSR_TRY(tsr_schedule_milp_create(&m.milp, capacity));
    tsr_status status = make(&m);
    tsr_schedule_milp_destroy(m.milp);
    tsr_schedule_merger_free(&m.merger);
    tsr_schedule_window_free(&m.held[0]);
    tsr_schedule_window_free(&m.held[1]);
    free(m.groups);
    if (status < 0)
        tsr_adapter_schedule_free(&schedule);
    else
        *out = schedule;
    return status;
}

void tsr_adapter_schedule_free(tsr_adapter_schedule *schedule)
{
    free(schedule->micro);
    free(schedule->pieces);
    *schedule = (tsr_adapter_schedule){0};
}
