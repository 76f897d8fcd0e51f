/* Schedules of several adapters against the rules that hold of every one of them, and small windows against all packings. */

#include "adapter_schedule_case.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void are_equal(const tsr_adapter_schedule *a, const tsr_adapter_schedule *b)
{
    assert_true(a->hash == b->hash);
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->micro, b->micro, (size_t)(a->count + 1) * sizeof *a->micro);
    if (a->piece_count)
        assert_memory_equal(a->pieces, b->pieces, (size_t)a->piece_count * sizeof *a->pieces);
}

static void check_random(tsr_adapter_schedule_kind kind, uint64_t seeds, int64_t *merged,
                         int64_t *improved)
{
    static input in;
    for (uint64_t seed = 0; seed < seeds; seed++) {
        tsr_adapter_schedule s, again;
        draw(&in, seed);
        make(&s, &in, kind);
        follows_the_rules(&s, &in);
        make(&again, &in, kind);
        are_equal(&s, &again);
        *merged += s.unmerged - s.count;
        *improved += s.improved;
        tsr_adapter_schedule_free(&again);
        tsr_adapter_schedule_free(&s);
    }
}

static void greedy_follows_the_rules(void **state)
{
    (void)state;
    int64_t merged = 0, improved = 0;
    check_random(TSR_ADAPTER_SCHEDULE_GREEDY, 1000, &merged, &improved);
    assert_true(merged > 1000); /* the rules were tried on what moves */
    assert_int_equal(improved, 0);
}

static void milp_follows_the_rules(void **state)
{
    (void)state;
    int64_t merged = 0, improved = 0;
    if (!tsr_adapter_schedule_has_milp())
        skip();
    check_random(TSR_ADAPTER_SCHEDULE_MILP, 200, &merged, &improved);
    assert_true(improved > 100);
}

/* ---- the hash ---- */

static void hash_knows_the_input(void **state)
{
    (void)state;
    static input in;
    for (uint64_t seed = 0; seed < 50; seed++) {
        tsr_adapter_schedule s, other;
        draw(&in, seed);
        make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
        in.capacity++;
        make(&other, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
        assert_true(s.hash != other.hash);
        tsr_adapter_schedule_free(&other);
        in.capacity--;
        if (s.count) { /* a row that is shorter or longer */
            tsr_schedule_piece p = s.pieces[s.piece_count / 2];
            int32_t *tokens = &in.tokens[p.adapter][in.first_row[p.adapter][p.step] + p.row];
            *tokens += *tokens < in.capacity ? 1 : -1;
            if (*tokens > 0) {
                make(&other, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
                assert_true(s.hash != other.hash);
                tsr_adapter_schedule_free(&other);
            }
        }
        tsr_adapter_schedule_free(&s);
    }
}

/* ---- one window ---- */

static void one_window(input *in, int64_t capacity, const int32_t *tokens, int count)
{
    in->count = 0;
    in->capacity = capacity;
    begin_adapter(in);
    begin_step(in);
    for (int i = 0; i < count; i++)
        add_row(in, tokens[i]);
}

static void greedy_equals_the_definition(void **state)
{
    (void)state;
    static input in;
    for (uint64_t seed = 0; seed < 200; seed++) {
        uint64_t random = seed;
        int32_t tokens[ROWS];
        int64_t load[ROWS], capacity = below(&random, 2) ? 20 : 4096;
        int count = (int)below(&random, 300) + 1;
        for (int i = 0; i < count; i++)
            tokens[i] = (int32_t)below(&random, capacity / (1 + (int64_t)seed % 4)) + 1;
        tsr_adapter_schedule s;
        one_window(&in, capacity, tokens, count);
        make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
        assert_int_equal(s.count, plain(load, tokens, count, capacity));
        for (int64_t m = 0; m < s.count; m++)
            assert_int_equal(s.micro[m].tokens, load[m]);
        tsr_adapter_schedule_free(&s);
    }
}

typedef struct {
    const int32_t *tokens;
    int count;
    int64_t capacity, load[16], micros, best, last;
} packings;

/* All packings of tokens[at ..) beside what is loaded. */
static void try_all(packings *p, int at)
{
    if (at == p->count) {
        int64_t last = p->capacity;
        for (int64_t m = 0; m < p->micros; m++)
            last = p->load[m] < last ? p->load[m] : last;
        if (p->micros < p->best || (p->micros == p->best && last < p->last)) {
            p->best = p->micros;
            p->last = last;
        }
        return;
    }
    for (int64_t m = 0; m <= p->micros && m < p->best; m++) {
        bool opens = m == p->micros;
        if (opens)
            p->load[m] = 0;
        if (p->load[m] + p->tokens[at] > p->capacity)
            continue;
        p->load[m] += p->tokens[at];
        p->micros += opens;
        try_all(p, at + 1);
        p->load[m] -= p->tokens[at];
        p->micros -= opens;
        if (opens)
            break;
    }
}

static void milp_equals_the_best_of_all(void **state)
{
    (void)state;
    static input in;
    int64_t fewer = 0, improved = 0;
    if (!tsr_adapter_schedule_has_milp())
        skip();
    for (uint64_t seed = 0; seed < 300; seed++) {
        uint64_t random = seed;
        int32_t tokens[16];
        packings p = {.tokens = tokens, .capacity = seed % 3 ? 100 : 15, .best = 16};
        p.count = (int)below(&random, 8) + 6;
        for (int i = 0; i < p.count; i++)
            tokens[i] = (int32_t)(below(&random, p.capacity / (seed % 2 ? 2 : 3)) + p.capacity / 6);
        tsr_adapter_schedule s;
        one_window(&in, p.capacity, tokens, p.count);
        make(&s, &in, TSR_ADAPTER_SCHEDULE_MILP);
        follows_the_rules(&s, &in);
        try_all(&p, 0);
        assert_int_equal(s.count, p.best);
        assert_int_equal(s.micro[s.count - 1].tokens, p.last);
        fewer += s.count < s.greedy;
        improved += s.improved;
        tsr_adapter_schedule_free(&s);
    }
    assert_true(fewer > 10);
    assert_true(improved > fewer);
}

/* 4 + 4 leaves a room of 2, which nothing fills: greedy needs a third micro-batch. */
static void milp_needs_one_less(void **state)
{
    (void)state;
    static input in;
    const int32_t tokens[] = {4, 4, 3, 3, 3, 3};
    tsr_adapter_schedule s;
    one_window(&in, 10, tokens, 6);
    make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
    assert_int_equal(s.count, 3);
    tsr_adapter_schedule_free(&s);
    if (!tsr_adapter_schedule_has_milp())
        skip();
    make(&s, &in, TSR_ADAPTER_SCHEDULE_MILP);
    follows_the_rules(&s, &in);
    assert_int_equal(s.count, 2);
    assert_int_equal(s.greedy, 3);
    assert_int_equal(s.improved, 1);
    tsr_adapter_schedule_free(&s);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info, (void)context;
}

/* No three fit together: the bound says two, so CBC is asked. */
static void milp_leaves_the_process_as_it_was(void **state)
{
    (void)state;
    static input in;
    const int32_t tokens[] = {4, 4, 4, 4, 4};
    struct sigaction mine = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO}, before, after;
    tsr_adapter_schedule s;
    if (!tsr_adapter_schedule_has_milp())
        skip();
    sigaction(SIGINT, &mine, &before);
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), end[2];
    assert_int_equal(pipe2(end, O_NONBLOCK), 0);
    dup2(end[1], STDOUT_FILENO);
    one_window(&in, 10, tokens, 5);
    tsr_status status = tsr_adapter_schedule_make(&s, in.adapters, in.count, in.capacity,
                                                  TSR_ADAPTER_SCHEDULE_MILP);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    char said;
    assert_int_equal(read(end[0], &said, 1), -1); /* nothing is printed */
    sigaction(SIGINT, &before, &after);
    assert_true(after.sa_sigaction == on_signal && (after.sa_flags & SA_SIGINFO));
    assert_int_equal(status, TSR_OK);
    assert_int_equal(s.count, 3);
    assert_int_equal(s.improved, 0);
    tsr_adapter_schedule_free(&s);
    close(kept);
    close(end[0]);
    close(end[1]);
}

/* ---- groups and merging ---- */

/* Rows of which no two fit together: a micro-batch each, the longest of a window first. */
static void groups_are_dealt_from_both_ends(void **state)
{
    (void)state;
    static input in;
    static const int32_t expected[] = {7, 6, 1, 0, 5, 4, 3, 2};
    in.count = 0;
    in.capacity = 100;
    for (int a = 0; a < 8; a++) {
        begin_adapter(&in);
        for (int step = 0; step < 2; step++) {
            begin_step(&in);
            add_row(&in, 51 + a);
        }
    }
    tsr_adapter_schedule s;
    make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
    assert_int_equal(s.groups, 2);
    assert_int_equal(s.windows, 4);
    assert_int_equal(s.count, 16);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(s.pieces[i].adapter, expected[i % 8]);
        assert_int_equal(s.pieces[i].step, i / 8);
    }
    tsr_adapter_schedule_free(&s);
}

/* Two groups, of three adapters and of two: a window alone fills a third of its one micro-batch. */
static void merges_ahead(void **state)
{
    (void)state;
    static input in;
    in.count = 0;
    in.capacity = 9;
    for (int a = 0; a < 5; a++) {
        begin_adapter(&in);
        for (int step = 0; step < 2; step++) {
            begin_step(&in);
            add_row(&in, 1);
        }
    }
    tsr_adapter_schedule s;
    make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
    follows_the_rules(&s, &in);
    assert_int_equal(s.windows, 4);
    assert_int_equal(s.unmerged, 4);
    assert_int_equal(s.count, 2); /* one for each step: no fewer keep these apart */
    tsr_adapter_schedule_free(&s);
}

/* The first window has 16 and 8 + 6, the second 20, 12 + 8 and 6 + 4. Of 8 and 6 only 8 finds room ahead; 6 and 4 do back. */
static void merges_back(void **state)
{
    (void)state;
    static input in;
    static const int32_t alone[] = {16, 8, 6}, shared[2][3] = {{20, 6, 4}, {12, 8}};
    in.count = 0;
    in.capacity = 20;
    for (int a = 0; a < 3; a++) {
        begin_adapter(&in);
        begin_step(&in);
        add_row(&in, alone[a]);
    }
    for (int a = 0; a < 2; a++) {
        begin_adapter(&in);
        begin_step(&in);
        for (int r = 0; r < 3 && shared[a][r]; r++)
            add_row(&in, shared[a][r]);
    }
    tsr_adapter_schedule s;
    make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
    follows_the_rules(&s, &in);
    assert_int_equal(s.unmerged, 5);
    assert_int_equal(s.count, 4);
    for (int m = 0; m < 4; m++)
        assert_int_equal(s.micro[m].tokens, 20);
    tsr_adapter_schedule_free(&s);
}

/* Adapter 0's step 0 goes ahead twice, into the window of its step 1. All of that window would fit into the one behind it, but
 * its two steps would then come in the wrong order. */
static void steps_that_go_ahead_together_keep_their_order(void **state)
{
    (void)state;
    static input in;
    static const int32_t rows[5][2][7] = {
        {{1}, {2}}, {{10}, {6, 6, 6, 6}}, {{10, 10, 10, 10, 10, 10}, {3, 3, 3}}, {{0}}, {{2}}};
    in.count = 0;
    in.capacity = 10;
    for (int a = 0; a < 5; a++) {
        begin_adapter(&in);
        for (int step = 0; step < 2 && rows[a][step][0]; step++) {
            begin_step(&in);
            for (int r = 0; rows[a][step][r]; r++)
                add_row(&in, rows[a][step][r]);
        }
    }
    tsr_adapter_schedule s;
    make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
    follows_the_rules(&s, &in);
    assert_int_equal(s.unmerged, 7 + 2 + 2 + 4);
    assert_int_equal(s.count, 6 + 1 + 1 + 4);
    tsr_adapter_schedule_free(&s);
}

/* ---- refusals ---- */

static void refused(const input *in, tsr_status status, const char *const *words)
{
    tsr_adapter_schedule s = {0};
    assert_int_equal(tsr_adapter_schedule_make(&s, in->adapters, in->count, in->capacity,
                                               TSR_ADAPTER_SCHEDULE_GREEDY),
                     status);
    for (; *words; words++)
        if (!strstr(tsr_last_error(), *words))
            fail_msg("\"%s\" does not say \"%s\"", tsr_last_error(), *words);
    assert_null(s.micro);
    tsr_adapter_schedule_free(&s);
}

static void refuses_what_does_not_fit(void **state)
{
    (void)state;
    static input in;
    const int32_t tokens[] = {4, 10, 3};
    const char *const place[] = {"adapter 1, step 1, row 2: ", NULL};
    const char *const all[] = {"adapter 1, step 1, row 2: 11 tokens", "room for 10", NULL};
    one_window(&in, 10, tokens, 3);
    begin_adapter(&in);
    for (int step = 0; step < 2; step++) {
        begin_step(&in);
        for (int r = 0; r < 3; r++)
            add_row(&in, tokens[r]);
    }
    in.tokens[1][5] = 11;
    refused(&in, TSR_ECONFIG, all);
    in.tokens[1][5] = 0;
    refused(&in, TSR_EINVAL, place);
    in.tokens[1][5] = 10;
    begin_step(&in);
    refused(&in, TSR_EINVAL, (const char *[]){"adapter 1, step 2: 0 rows", NULL});
    in.capacity = 0;
    refused(&in, TSR_EINVAL, (const char *[]){"of 0 tokens", NULL});
    in.count = 0;
    in.capacity = 10;
    refused(&in, TSR_EINVAL, (const char *[]){"0 adapters", NULL});
}

static void adapters_without_rows_give_nothing(void **state)
{
    (void)state;
    static input in;
    tsr_adapter_schedule s;
    in.count = 0;
    in.capacity = 10;
    begin_adapter(&in);
    make(&s, &in, TSR_ADAPTER_SCHEDULE_GREEDY);
    follows_the_rules(&s, &in);
    assert_int_equal(s.count, 0);
    assert_true(s.fill == 0);
    tsr_adapter_schedule_free(&s);
    tsr_adapter_schedule_free(&s);
}

static void milp_without_cbc_says_what_to_do(void **state)
{
    (void)state;
    static input in;
    const int32_t tokens[] = {1};
    tsr_adapter_schedule s;
    if (tsr_adapter_schedule_has_milp())
        skip();
    one_window(&in, 10, tokens, 1);
    assert_int_equal(tsr_adapter_schedule_make(&s, in.adapters, 1, 10, TSR_ADAPTER_SCHEDULE_MILP),
                     TSR_ECONFIG);
    assert_non_null(strstr(tsr_last_error(), "coinor-libcbc-dev"));
    assert_non_null(strstr(tsr_last_error(), "adapter_schedule: greedy"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_follows_the_rules),
        cmocka_unit_test(milp_follows_the_rules),
        cmocka_unit_test(hash_knows_the_input),
        cmocka_unit_test(greedy_equals_the_definition),
        cmocka_unit_test(milp_equals_the_best_of_all),
        cmocka_unit_test(milp_needs_one_less),
        cmocka_unit_test(milp_leaves_the_process_as_it_was),
        cmocka_unit_test(groups_are_dealt_from_both_ends),
        cmocka_unit_test(merges_ahead),
        cmocka_unit_test(merges_back),
        cmocka_unit_test(steps_that_go_ahead_together_keep_their_order),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(adapters_without_rows_give_nothing),
        cmocka_unit_test(milp_without_cbc_says_what_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
