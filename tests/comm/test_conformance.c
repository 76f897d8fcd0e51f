/* The suite on communicators whose ranks are threads of this program. */
#include "base/clock.h"
#include "comm/comm_parts.h"
#include "comm/conformance.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MOST 8

struct thread_arg {
    const tsr_case *test;
    tsr_comm *comm; /* NULL: made by the thread from the bootstrap */
    tsr_bootstrap bootstrap;
    int ranks_per_node;
    double timeout_seconds;
};

static void *run_rank(void *argument)
{
    struct thread_arg *arg = argument;
    tsr_case_rank rank = {.rank = arg->bootstrap.rank}, *me = &rank;
    if (!arg->comm)
        OK(tsr_comm_create_callback_with(&arg->comm, &arg->bootstrap, arg->timeout_seconds,
                                         arg->ranks_per_node));
    tsr_conformance_run(arg->test, arg->comm);
    return NULL;
}

static void run_ranks(struct thread_arg *args, int size)
{
    pthread_t threads[MOST];
    for (int i = 0; i < size; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &args[i]), 0);
    for (int i = 0; i < size; i++)
        pthread_join(threads[i], NULL);
}

static double timeout_of(const tsr_case *test)
{
    return test->timeout_seconds ? test->timeout_seconds : 60;
}

static void test_self(void **state)
{
    (void)state;
    for (int i = 0; i < tsr_conformance_count; i++) {
        tsr_comm *comm;
        if (tsr_conformance[i].ranks > 1)
            continue;
        assert_int_equal(tsr_comm_create_self(&comm), TSR_OK);
        assert_string_equal(tsr_comm_name(comm), "thread");
        tsr_conformance_run(&tsr_conformance[i], comm);
    }
}

/* Ranks that wait are slow under ThreadSanitizer: there the largest number of them is left out. */
#ifdef __SANITIZE_THREAD__
#define LEFT_OUT 1
#else
#define LEFT_OUT 0
#endif

static void test_thread(void **state)
{
    static const int sizes[] = {1, 2, 3, 5, 8};
    (void)state;
    for (int s = 0; s < 5 - LEFT_OUT; s++)
        for (int i = 0; i < tsr_conformance_count; i++) {
            const tsr_case *test = &tsr_conformance[i];
            tsr_comm *comms[MOST];
            struct thread_arg args[MOST] = {0};
            if (sizes[s] < test->ranks)
                continue;
            assert_int_equal(tsr_comm_create_threads(comms, sizes[s], timeout_of(test)), TSR_OK);
            for (int r = 0; r < sizes[s]; r++)
                args[r] = (struct thread_arg){.test = test, .comm = comms[r]};
            run_ranks(args, sizes[s]);
        }
}

/* What an embedder might give: threads that copy through a common table. */
struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, arrived;
    unsigned round;
    const void *send[MOST];
};

struct seat {
    struct meeting *meeting;
    int rank;
};

static void arrive(struct meeting *m)
{
    pthread_mutex_lock(&m->lock);
    unsigned round = m->round;
    if (++m->arrived == m->size) {
        m->arrived = 0;
        m->round++;
        pthread_cond_broadcast(&m->changed);
    }
    while (m->round == round)
        pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

static int gather_by_table(void *user, const void *send, void *receive, uint64_t bytes)
{
    struct seat *seat = user;
    struct meeting *m = seat->meeting;
    m->send[seat->rank] = send;
    arrive(m);
    for (int i = 0; i < m->size; i++)
        if (bytes)
            memcpy((char *)receive + (uint64_t)i * bytes, m->send[i], bytes);
    arrive(m);
    return 0;
}

static void run_callback(const tsr_case *test, int size, int ranks_per_node)
{
    struct meeting meeting = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .size = size};
    struct seat seats[MOST];
    struct thread_arg args[MOST] = {0};
    for (int r = 0; r < size; r++) {
        seats[r] = (struct seat){&meeting, r};
        args[r] = (struct thread_arg){.test = test,
                                      .bootstrap = {r, size, gather_by_table, &seats[r]},
                                      .ranks_per_node = ranks_per_node,
                                      .timeout_seconds = timeout_of(test)};
    }
    run_ranks(args, size);
}

static void test_callback(void **state)
{
    static const int sizes[] = {1, 2, 3, 5};
    (void)state;
    for (int s = 0; s < 4 - LEFT_OUT; s++)
        for (int i = 0; i < tsr_conformance_count; i++)
            if (sizes[s] >= tsr_conformance[i].ranks)
                run_callback(&tsr_conformance[i], sizes[s], 0);
}

/* Two nodes: without the failures, which only the given all-gather could end. */
static void test_callback_nodes(void **state)
{
    (void)state;
    for (int i = 0; i < tsr_conformance_count; i++)
        if (!tsr_conformance[i].dies)
            run_callback(&tsr_conformance[i], 4, 2);
}

/* ---- two ranks, each with a call of its own ---- */

struct one_of_two {
    tsr_bootstrap bootstrap;
    int ranks_per_node;
    void (*call)(struct one_of_two *me, tsr_comm *comm);
    tsr_status status;
    char message[512];
};

static _Thread_local bool no_memory; /* for this thread's communicator */

/* In its place (CMakeLists.txt). */
tsr_status __real_tsr_comm_new(tsr_comm **out, const tsr_comm_ops *ops, void *backend,
                               tsr_board *board, tsr_comm *root, int slot, int rank, int size,
                               const int *members, const int *nodes, double timeout_seconds);
tsr_status __wrap_tsr_comm_new(tsr_comm **out, const tsr_comm_ops *ops, void *backend,
                               tsr_board *board, tsr_comm *root, int slot, int rank, int size,
                               const int *members, const int *nodes, double timeout_seconds);
tsr_status __wrap_tsr_comm_new(tsr_comm **out, const tsr_comm_ops *ops, void *backend,
                               tsr_board *board, tsr_comm *root, int slot, int rank, int size,
                               const int *members, const int *nodes, double timeout_seconds)
{
    if (no_memory)
        return tsr_fail(TSR_ENOMEM, "no memory for a communicator of %d ranks", size);
    return __real_tsr_comm_new(out, ops, backend, board, root, slot, rank, size, members, nodes,
                               timeout_seconds);
}

static void *run_one_of_two(void *argument)
{
    struct one_of_two *me = argument;
    tsr_comm *comm = NULL;
    no_memory = !me->call;
    me->status = tsr_comm_create_callback_with(&comm, &me->bootstrap, 60, me->ranks_per_node);
    if (me->status == TSR_OK)
        me->call(me, comm);
    snprintf(me->message, sizeof me->message, "%s", tsr_last_error());
    tsr_comm_destroy(comm);
    return NULL;
}

static void run_two(struct one_of_two ranks[2])
{
    struct meeting meeting = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .size = 2};
    struct seat seats[2];
    pthread_t threads[2];
    for (int r = 0; r < 2; r++) {
        seats[r] = (struct seat){&meeting, r};
        ranks[r].bootstrap = (tsr_bootstrap){r, 2, gather_by_table, &seats[r]};
        assert_int_equal(pthread_create(&threads[r], NULL, run_one_of_two, &ranks[r]), 0);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(threads[r], NULL);
}

static void agree(struct one_of_two *me, tsr_comm *comm)
{
    me->status = tsr_comm_agree(comm, NULL, TSR_OK, NULL);
}

static void gather_much(struct one_of_two *me, tsr_comm *comm)
{
    char *words = calloc(2, 4096);
    assert_non_null(words);
    me->status = tsr_comm_gather_now(comm, NULL, words, words, 4096, TSR_COMM_CREATE);
    free(words);
}

static void gather_little(struct one_of_two *me, tsr_comm *comm)
{
    char words[2] = {0};
    me->status = tsr_comm_gather_now(comm, NULL, words, words, 1, TSR_COMM_CREATE);
}

/* Each rank is a node of its own, so no board compares their calls: they are told apart all the same,
 * and nothing is written beyond what was given. */
static void test_callback_nodes_out_of_step(void **state)
{
    struct one_of_two ranks[2] = {{.ranks_per_node = 1, .call = agree},
                                  {.ranks_per_node = 1, .call = gather_much}};
    (void)state;
    run_two(ranks);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, TSR_ERANKS);
        assert_non_null(strstr(ranks[r].message, "agreement"));
        assert_non_null(strstr(ranks[r].message, "creation"));
    }
    ranks[0].call = gather_little;
    run_two(ranks);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, TSR_ERANKS);
        assert_non_null(strstr(ranks[r].message, "creation with different sizes"));
    }
}

/* The other one is told, long before its deadline. */
static void test_callback_without_memory(void **state)
{
    struct one_of_two ranks[2] = {{.call = agree}, {.call = NULL}};
    (void)state;
    double start = tsr_now();
    run_two(ranks);
    assert_true(tsr_now() - start < 3); /* 60 is the deadline, 5 a dead rank's for its last words */
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, TSR_ENOMEM);
        assert_non_null(strstr(ranks[r].message, "no memory for a communicator"));
    }
    assert_non_null(strstr(ranks[0].message, "rank 1"));
}

static int fail_gather(void *user, const void *send, void *receive, uint64_t bytes)
{
    int *calls = user;
    if (--*calls < 0)
        return 5;
    memcpy(receive, send, bytes);
    return 0;
}

static int gather_zeros(void *user, const void *send, void *receive, uint64_t bytes)
{
    int *calls = user;
    if (--*calls < 0)
        memset(receive, 0, bytes);
    else
        memcpy(receive, send, bytes);
    return 0;
}

/* An all-gather that mixes up what it is given is found out. */
static void test_callback_lies(void **state)
{
    int left = 1 << 30;
    tsr_bootstrap bootstrap = {0, 1, gather_zeros, &left};
    tsr_comm *comm = NULL;
    (void)state;
    assert_int_equal(tsr_comm_create_callback(&comm, &bootstrap, 10), TSR_OK);
    assert_int_equal(tsr_comm_agree(comm, NULL, TSR_OK, NULL), TSR_OK);
    left = 0;
    assert_int_equal(tsr_comm_agree(comm, NULL, TSR_OK, NULL), TSR_ECOMM);
    assert_non_null(strstr(tsr_last_error(), "other bytes than rank 0 sent"));
    tsr_comm_destroy(comm);
}

/* An embedder's failure is reported at creation and later. */
static void test_callback_fails(void **state)
{
    (void)state;
    for (int calls = 0; calls < 8; calls++) {
        int left = calls;
        tsr_bootstrap bootstrap = {0, 1, fail_gather, &left};
        tsr_comm *comm = NULL;
        tsr_status status = tsr_comm_create_callback(&comm, &bootstrap, 10);
        if (status == TSR_OK) {
            left = 0;
            status = tsr_comm_agree(comm, NULL, TSR_OK, NULL);
            assert_int_equal(tsr_comm_agree(comm, NULL, TSR_OK, NULL), TSR_ECOMM);
            tsr_comm_destroy(comm);
        }
        assert_int_equal(status, TSR_ECOMM);
    }
    tsr_comm *comm;
    tsr_bootstrap bad = {2, 2, fail_gather, NULL};
    assert_int_equal(tsr_comm_create_callback(&comm, &bad, 10), TSR_EINVAL);
    assert_int_equal(tsr_comm_create_threads(&comm, 0, 10), TSR_EINVAL);
    tsr_comm_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_thread),
        cmocka_unit_test(test_callback),
        cmocka_unit_test(test_callback_nodes),
        cmocka_unit_test(test_callback_nodes_out_of_step),
        cmocka_unit_test(test_callback_without_memory),
        cmocka_unit_test(test_callback_lies),
        cmocka_unit_test(test_callback_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
