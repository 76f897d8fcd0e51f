#include "base/hash.h"
#include "base/philox.h"
#include "data/adapter_schedule_parts.h"

#include <stdlib.h>
#include <string.h>

/* A model that says for each row in which micro-batch it is knows nothing of symmetry, and CBC gets nowhere with thirty
 * rows. So it chooses among whole micro-batches (set covering: Gilmore and Gomory 1961), of which those that it could need are made
 * first: the window is packed some dozens of times, each micro-batch as full as a short search makes it, the longest rows
 * first but for some noise. Often one of these packings already is at the bound; then CBC is not asked. */

#define MOST_ROWS    256  /* of a window; greedy keeps a longer one */
#define MOST_COLUMNS 512  /* of a model: its integer variables, beside one for each length of row */
#define ROUNDS       32   /* packings that columns are taken from */
#define VISITS       2000 /* rows that the search for one micro-batch tries */
#define ALL_VISITS   20000 /* and the search for all of them */
#define NODES        16    /* of CBC's tree, for each model */

/* Micro-batch i has kind[end[i - 1] .. end[i]). */
typedef struct {
    int32_t micros;
    int64_t last; /* tokens of the least filled */
    int32_t end[MOST_ROWS], kind[MOST_ROWS];
} packing;

typedef struct {
    uint64_t key;
    int32_t kind;
} ranked;

struct tsr_schedule_milp {
    int64_t capacity;
    /* the window: rows of one length are one kind, the longest first */
    int32_t kinds, row_count, tokens[MOST_ROWS], rows[MOST_ROWS];
    int64_t sum;
    int32_t least_micros; /* a bound */
    packing best, tried;
    /* the search for the fullest micro-batch */
    ranked order[MOST_ROWS];
    int32_t left[MOST_ROWS]; /* rows of each kind that are not packed yet */
    int32_t now[MOST_ROWS], now_count, full[MOST_ROWS], full_count, visits;
    int64_t room; /* that the fullest leaves */
    /* micro-batches to choose among */
    int32_t columns, first[MOST_COLUMNS + 1], kind[(ROUNDS + MOST_COLUMNS) * MOST_ROWS];
    uint64_t hash[MOST_COLUMNS];
    int32_t times[MOST_COLUMNS]; /* that each is chosen */
};

tsr_status tsr_schedule_milp_create(tsr_schedule_milp **out, int64_t capacity)
{
    TSR_TRY(tsr_schedule_cbc_load());
    tsr_schedule_milp *milp = calloc(1, sizeof *milp);
    if (!milp)
        return tsr_fail(TSR_ENOMEM, "no memory for a solver's columns");
    milp->capacity = capacity;
    *out = milp;
    return TSR_OK;
}

void tsr_schedule_milp_destroy(tsr_schedule_milp *milp)
{
    free(milp);
}

/* ---- the bound ---- */

/* No packing into this many micro-batches leaves less in the last, nor less than the shortest row. */
static int64_t least_last(const tsr_schedule_milp *m, int64_t micros)
{
    int64_t rest = m->sum - (micros - 1) * m->capacity, shortest = m->tokens[m->kinds - 1];
    return rest > shortest ? rest : shortest;
}

static bool at_bound(const tsr_schedule_milp *m)
{
    return m->best.micros == m->least_micros && m->best.last == least_last(m, m->best.micros);
}

static void take_window(tsr_schedule_milp *m, const tsr_schedule_window *window)
{
    int32_t halves = 0;
    m->kinds = 0;
    m->columns = 0;
    m->sum = 0;
    m->row_count = (int32_t)window->count;
    for (int64_t i = 0; i < window->count; i++) {
        int32_t tokens = window->rows[i].tokens;
        if (!m->kinds || m->tokens[m->kinds - 1] != tokens) {
            m->tokens[m->kinds] = tokens;
            m->rows[m->kinds++] = 0;
        }
        m->rows[m->kinds - 1]++;
        m->sum += tokens;
        halves += tokens > m->capacity / 2; /* no two of these fit together */
    }
    m->least_micros = (int32_t)((m->sum + m->capacity - 1) / m->capacity);
    if (m->least_micros < halves)
        m->least_micros = halves;
    m->best.micros = (int32_t)window->micros;
    m->best.last = window->load[window->micros - 1];
}

static bool keep_if_better(tsr_schedule_milp *m)
{
    const packing *t = &m->tried, *b = &m->best;
    if (t->micros > b->micros || (t->micros == b->micros && t->last >= b->last))
        return false;
    m->best = m->tried;
    return true;
}

/* ---- columns ---- */

/* Adds kinds from order[at] on to what is in `now`, and remembers the fullest. */
static void search(tsr_schedule_milp *m, int32_t at, int64_t room)
{
    if (room < m->room) {
        m->room = room;
        m->full_count = m->now_count;
        memcpy(m->full, m->now, (size_t)m->now_count * sizeof *m->now);
    }
    for (int32_t i = at; i < m->kinds && m->room > 0 && m->visits > 0; i++) {
        int32_t kind = m->order[i].kind;
        if (!m->left[kind] || m->tokens[kind] > room)
            continue;
        m->visits--;
        m->left[kind]--;
        m->now[m->now_count++] = kind;
        search(m, i, room - m->tokens[kind]);
        m->now_count--;
        m->left[kind]++;
    }
}

/* The fullest that is found of what is left, around the first of the order. */
static void fill_micro(tsr_schedule_milp *m, int32_t *leader)
{
    while (!m->left[m->order[*leader].kind])
        ++*leader;
    int32_t kind = m->order[*leader].kind;
    m->now[0] = kind;
    m->now_count = 1;
    m->left[kind]--;
    m->room = m->capacity;
    m->visits = VISITS;
    search(m, *leader, m->capacity - m->tokens[kind]);
    m->left[kind]++;
    for (int32_t i = 0; i < m->full_count; i++)
        m->left[m->full[i]]--;
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Unless it is there. Two columns of one hash would be one column less to choose among. */
static void add_column(tsr_schedule_milp *m, const int32_t *kind, int32_t count)
{
    if (m->columns == MOST_COLUMNS)
        return;
    uint64_t hash = tsr_hash(TSR_HASH_START, kind, (uint64_t)count * sizeof *kind);
    for (int32_t i = 0; i < m->columns; i++)
        if (m->hash[i] == hash)
            return;
    int32_t at = m->first[m->columns];
    memcpy(&m->kind[at], kind, (size_t)count * sizeof *kind);
    m->hash[m->columns++] = hash;
    m->first[m->columns] = at + count;
}

static int by_key(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return (x->kind > y->kind) - (x->kind < y->kind);
}

/* The longest first: in round 0 exactly, then lengths count up to a quarter more, or up to twice. */
static void make_order(tsr_schedule_milp *m, int round)
{
    for (int32_t k = 0; k < m->kinds; k++) {
        uint64_t noise = tsr_mix(tsr_mix((uint64_t)round) ^ (uint64_t)k) % (round % 2 ? 1024 : 256);
        m->order[k] = (ranked){(uint64_t)m->tokens[k] * (1024 + (round ? noise : 0)), k};
    }
    qsort(m->order, (size_t)m->kinds, sizeof *m->order, by_key);
}

/* Packs the window once; its micro-batches become columns. */
static void pack_round(tsr_schedule_milp *m, int round)
{
    packing *p = &m->tried;
    int32_t leader = 0, packed = 0;
    make_order(m, round);
    memcpy(m->left, m->rows, (size_t)m->kinds * sizeof *m->left);
    p->micros = 0;
    p->last = m->capacity;
    while (packed < m->row_count) {
        fill_micro(m, &leader);
        int32_t *kind = &p->kind[packed];
        memcpy(kind, m->full, (size_t)m->full_count * sizeof *kind);
        qsort(kind, (size_t)m->full_count, sizeof *kind, by_number);
        add_column(m, kind, m->full_count);
        packed += m->full_count;
        p->end[p->micros++] = packed;
        if (m->capacity - m->room < p->last)
            p->last = m->capacity - m->room;
    }
}

/* Adds all micro-batches that `now` can be filled up to with kinds from `at` on. Those that would take a shorter row too are
 * left out: with it they do as well. False: they are too many. */
static bool add_all(tsr_schedule_milp *m, int32_t at, int64_t room)
{
    bool full = true;
    for (int32_t k = 0; k < m->kinds; k++)
        full &= !m->left[k] || m->tokens[k] > room;
    if (full) {
        add_column(m, m->now, m->now_count);
        return m->columns < MOST_COLUMNS;
    }
    for (int32_t k = at; k < m->kinds; k++) {
        if (!m->left[k] || m->tokens[k] > room)
            continue;
        if (m->visits-- == 0)
            return false;
        m->left[k]--;
        m->now[m->now_count++] = k;
        bool fits = add_all(m, k, room - m->tokens[k]);
        m->now_count--;
        m->left[k]++;
        if (!fits)
            return false;
    }
    return true;
}

/* A small window's columns are all that there are: its best packing is among them. Of a larger one those of the rounds stay. */
static void complete_columns(tsr_schedule_milp *m)
{
    int32_t columns = m->columns;
    memcpy(m->left, m->rows, (size_t)m->kinds * sizeof *m->left);
    m->now_count = 0;
    m->visits = ALL_VISITS;
    if (!add_all(m, 0, m->capacity))
        m->columns = columns;
}

/* ---- the choice ---- */

static void close_micro(packing *p, int32_t end, int64_t load)
{
    if (end == (p->micros ? p->end[p->micros - 1] : 0))
        return;
    p->end[p->micros++] = end;
    if (load < p->last)
        p->last = load;
}

/* Those of a column's rows that are not packed yet. */
static void unpack_column(tsr_schedule_milp *m, int32_t column, int32_t *packed)
{
    int64_t load = 0;
    for (int32_t i = m->first[column]; i < m->first[column + 1]; i++) {
        int32_t kind = m->kind[i];
        if (!m->left[kind])
            continue;
        m->left[kind]--;
        m->tried.kind[(*packed)++] = kind;
        load += m->tokens[kind];
    }
    close_micro(&m->tried, *packed, load);
}

/* The packing that the chosen columns say: each row where it is first, what is left in one micro-batch more. False: that
 * is too much for one. So whatever CBC answers, a packing has every row once and no more than fits. */
static bool unpack_choice(tsr_schedule_milp *m)
{
    packing *p = &m->tried;
    int32_t packed = 0;
    memcpy(m->left, m->rows, (size_t)m->kinds * sizeof *m->left);
    p->micros = 0;
    p->last = m->capacity;
    for (int32_t j = 0; j < m->columns; j++)
        for (int32_t i = 0; i < m->times[j]; i++)
            unpack_column(m, j, &packed);
    int64_t rest = 0;
    for (int32_t k = 0; k < m->kinds; k++)
        for (; m->left[k] > 0; m->left[k]--) {
            p->kind[packed++] = k;
            rest += m->tokens[k];
        }
    close_micro(p, packed, rest);
    return rest <= m->capacity;
}

static tsr_status choose(bool *better, tsr_schedule_milp *m, int32_t micros, int64_t limit)
{
    bool found = false;
    tsr_schedule_columns columns = {m->kinds, m->tokens, m->rows, m->columns, m->first, m->kind};
    TSR_TRY(tsr_schedule_cbc_choose(&found, m->times, &columns, micros - 1, least_last(m, micros),
                                    limit, NODES));
    *better = found && unpack_choice(m) && keep_if_better(m);
    return TSR_OK;
}

/* The count first: one micro-batch less as long as that works. What is found so has the emptiest last one too; else it is
 * asked for by itself. */
static tsr_status choose_best(bool *better, tsr_schedule_milp *m)
{
    bool fewer = false;
    while (m->best.micros > m->least_micros) {
        bool one_less = false;
        TSR_TRY(choose(&one_less, m, m->best.micros - 1, m->capacity));
        if (!one_less)
            break;
        fewer = true;
    }
    *better |= fewer;
    if (fewer || m->best.last <= least_last(m, m->best.micros))
        return TSR_OK;
    bool emptier = false;
    TSR_TRY(choose(&emptier, m, m->best.micros, m->best.last - 1));
    *better |= emptier;
    return TSR_OK;
}

/* ---- the window ---- */

/* Rows are sorted by length, so those of a kind are neighbours. */
static void write_window(tsr_schedule_milp *m, tsr_schedule_window *window)
{
    const packing *p = &m->best;
    int32_t at = 0;
    for (int32_t k = 0; k < m->kinds; k++) { /* from here on the next row of each kind */
        m->left[k] = at;
        at += m->rows[k];
    }
    for (int32_t i = 0, entry = 0; i < p->micros; i++) {
        window->load[i] = 0;
        for (; entry < p->end[i]; entry++) {
            tsr_schedule_row *row = &window->rows[m->left[p->kind[entry]]++];
            row->micro = i;
            window->load[i] += row->tokens;
        }
    }
    window->micros = p->micros;
    tsr_schedule_window_order(window);
}

tsr_status tsr_schedule_milp_improve(bool *better, tsr_schedule_milp *milp,
                                     tsr_schedule_window *window)
{
    *better = false;
    if (window->count > MOST_ROWS)
        return TSR_OK;
    take_window(milp, window);
    for (int round = 0; round < ROUNDS && !at_bound(milp); round++) {
        pack_round(milp, round);
        *better |= keep_if_better(milp);
    }
    if (!at_bound(milp)) {
        complete_columns(milp);
        TSR_TRY(choose_best(better, milp));
    }
    if (*better)
        write_window(milp, window);
    return TSR_OK;
}
