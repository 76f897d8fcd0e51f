/*
 * test_peers.c: ranks whose programs, libraries or GPUs differ are told of it, with both sides.
 */
#include "job/peers.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS 3

static _Thread_local const char *gpu; /* of this rank; "": the CPU */

static tsr_status prepare(tsr_device *device, const tsr_prepare_args *args)
{
    (void)device;
    tsr_text_puts(args->chosen, gpu);
    return TSR_OK;
}

typedef struct {
    tsr_comm *comm;
    const char *text, *gpu;
    tsr_status compared, checked;
    char message[2][2048];
} rank_run;

static void *run_rank(void *user)
{
    rank_run *run = user;
    tsr_device *device;
    tsr_stream *stream;
    tsr_kernels kernels = *tsr_kernels_cpu();
    kernels.prepare = prepare;
    gpu = run->gpu;
    if (tsr_device_create_cpu(&device, &(tsr_device_options){.thread_count = 1}) < 0 ||
        tsr_stream_create(&stream, device, "comm") < 0)
        abort();
    run->compared = tsr_peers_compare(run->text, "things", "mend it", run->comm, stream);
    snprintf(run->message[0], sizeof run->message[0], "%s", tsr_last_error());
    run->checked = tsr_peers_check_program(run->comm, stream);
    if (run->checked == TSR_OK)
        run->checked = tsr_peers_check_kernels(&kernels, device, run->comm, stream);
    snprintf(run->message[1], sizeof run->message[1], "%s", tsr_last_error());
    tsr_stream_destroy(stream);
    tsr_device_destroy(device);
    return NULL;
}

static void run_all(rank_run *run)
{
    tsr_comm *comm[RANKS];
    pthread_t thread[RANKS];
    assert_int_equal(tsr_comm_create_threads(comm, RANKS, 60), TSR_OK);
    for (int i = 0; i < RANKS; i++) {
        run[i].comm = comm[i];
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &run[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < RANKS; i++)
        tsr_comm_destroy(comm[i]);
}

static void test_same(void **state)
{
    (void)state;
    static const char *const gpus[] = {"", "a GPU\n"};
    for (int i = 0; i < 2; i++) {
        rank_run run[RANKS] = {{.text = "a", .gpu = gpus[i]},
                               {.text = "a", .gpu = gpus[i]},
                               {.text = "a", .gpu = gpus[i]}};
        run_all(run);
        for (int rank = 0; rank < RANKS; rank++) {
            assert_int_equal(run[rank].compared, TSR_OK);
            assert_int_equal(run[rank].checked, TSR_OK);
        }
    }
}

static void test_different(void **state)
{
    (void)state;
    char host[64] = "", words[2][512];
    rank_run run[RANKS] = {{.text = "a", .gpu = "one GPU\nand choices\n"},
                           {.text = "a", .gpu = "one GPU\n"},
                           {.text = "another", .gpu = "another\n"}};
    gethostname(host, sizeof host - 1);
    snprintf(
        words[0], sizeof words[0],
        "the ranks have different things: rank 0 on %s has a, rank 2 on %s has another; mend it",
        host, host);
    snprintf(words[1], sizeof words[1],
             "the ranks have different GPUs or libraries: rank 0 on %s has one GPU, ", host);
    run_all(run);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_int_equal(run[rank].compared, TSR_ERANKS);
        assert_string_equal(run[rank].message[0], words[0]);
        assert_int_equal(run[rank].checked, TSR_ERANKS);
        assert_non_null(strstr(run[rank].message[1], words[1]));
        assert_non_null(strstr(run[rank].message[1], "rank 2 on "));
        assert_non_null(strstr(run[rank].message[1], " has another, "));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_different),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
