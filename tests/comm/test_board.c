#include "comm/board.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS  8
#define ROUNDS 400

static tsr_board *board;
static pthread_barrier_t start;
static _Atomic int wrong;

/* When all fail at the same moment, one's record counts, and nobody goes on as if nothing were. */
static void *kill_and_look(void *argument)
{
    int rank = *(int *)argument;
    char message[2000];
    memset(message, 'm', sizeof message - 1);
    message[sizeof message - 1] = 0;
    pthread_barrier_wait(&start);
    tsr_board_kill(board, rank, TSR_EIO, message);
    if (tsr_board_check(board, rank) == TSR_OK || !strstr(tsr_last_error(), "mmm"))
        atomic_fetch_add(&wrong, 1);
    return NULL;
}

/* The same at a gate where the last rank is missing: every deadline ends as a failure. */
static void *wait_in_vain(void *argument)
{
    static const int members[RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    int rank = *(int *)argument;
    tsr_board_gate gate = {.board = board,
                           .rank = rank,
                           .members = members,
                           .member_count = RANKS,
                           .timeout_seconds = 0.002};
    pthread_barrier_wait(&start);
    if (rank < RANKS - 1 && tsr_board_pass(&gate, NULL, "barrier", 1) != TSR_ETIMEOUT)
        atomic_fetch_add(&wrong, 1);
    return NULL;
}

static void run_rounds(void *(*function)(void *))
{
    pthread_t threads[RANKS];
    int ranks[RANKS];
    pthread_barrier_init(&start, NULL, RANKS);
    atomic_store(&wrong, 0);
    for (int round = 0; round < ROUNDS; round++) {
        assert_int_equal(tsr_board_create(&board, RANKS), TSR_OK);
        for (int i = 0; i < RANKS; i++) {
            ranks[i] = i;
            assert_int_equal(pthread_create(&threads[i], NULL, function, &ranks[i]), 0);
        }
        for (int i = 0; i < RANKS; i++)
            pthread_join(threads[i], NULL);
        free(board);
    }
    pthread_barrier_destroy(&start);
    assert_int_equal(atomic_load(&wrong), 0);
}

static void test_all_fail_at_once(void **state)
{
    (void)state;
    run_rounds(kill_and_look);
}

static void test_all_time_out_at_once(void **state)
{
    (void)state;
    run_rounds(wait_in_vain);
}

static void test_describe(void **state)
{
    (void)state;
    char text[128];
    assert_int_equal(tsr_board_create(&board, 2), TSR_OK);
    tsr_board_describe(board, 1, text, sizeof text);
    assert_string_equal(text, "rank 1");
    tsr_board_publish(board, 1, 12, "an operation with a very long name", 3);
    tsr_board_describe(board, 1, text, sizeof text);
    assert_int_equal(
        strncmp(text, "rank 1 (last seen at step 12, an operation with a ver, unit 3, 0.", 64), 0);
    tsr_board_publish(board, 1, 12, "LOAD", -1);
    tsr_board_describe(board, 1, text, sizeof text);
    assert_non_null(strstr(text, "step 12, LOAD, 0."));
    free(board);
}

/* What another process has left there, its host's name say, is shown as what no terminal obeys. */
static void test_foreign_words(void **state)
{
    (void)state;
    assert_int_equal(tsr_board_create(&board, 2), TSR_OK);
    tsr_board_kill(board, 1, TSR_EDATA, "on host\033[2J\302\233:\n  line 2");
    assert_int_equal(tsr_board_check(board, 0), TSR_ECOMM);
    assert_string_equal(tsr_last_error(), "rank 1 failed: on host\\x1b[2J\\u{009b}:\n  line 2");
    free(board);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_fail_at_once),
        cmocka_unit_test(test_all_time_out_at_once),
        cmocka_unit_test(test_describe),
        cmocka_unit_test(test_foreign_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
