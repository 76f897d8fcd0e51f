/*
 * One rank has no memory for something that the communicator of GPUs is made of, whatever it is: all
 * ranks are told, by the rank's name, before any deadline, and nothing is left behind. CUDA and NCCL
 * are made up.
 */
#include "base/clock.h"
#include "comm/conformance.h"
#include "fake_cuda.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS   2
#define SECONDS 30 /* the deadline, which nothing comes near */

typedef struct {
    tsr_comm *host;
    int fail_at;     /* of this rank */
    int allocations; /* what it came to */
    tsr_status status;
    char message[1024];
} rank_run;

static void *run_rank(void *argument)
{
    rank_run *run = argument;
    tsr_case_rank rank = {.rank = tsr_comm_rank(run->host)}, *me = &rank;
    tsr_device_options options = {.thread_count = 1,
                                  .no_pinning = true,
                                  .timeout_seconds = SECONDS,
                                  .local_rank = tsr_comm_local_rank(run->host),
                                  .local_rank_count = tsr_comm_local_size(run->host)};
    tsr_device *host_device, *device;
    tsr_stream *host_stream;
    tsr_comm *comm = NULL;
    OK(tsr_device_create_cpu(&host_device, &options));
    OK(tsr_stream_create(&host_stream, host_device, "host"));
    OK(tsr_device_create_cuda(&device, &options));
    fake_cuda = (struct fake_cuda){.fail_at = run->fail_at};
    run->status = tsr_comm_create_nccl(&comm, run->host, host_stream, device);
    run->allocations = fake_cuda.allocations;
    snprintf(run->message, sizeof run->message, "%s", tsr_last_error());
    tsr_comm_destroy(comm);
    tsr_device_destroy(device);
    tsr_stream_destroy(host_stream);
    tsr_device_destroy(host_device);
    tsr_comm_destroy(run->host);
    return NULL;
}

static void create(rank_run *run, int rank, int fail_at)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    tsr_comm *host[RANKS];
    pthread_t thread[RANKS];
    double start = tsr_now();
    OK(tsr_comm_create_threads(host, RANKS, SECONDS));
    for (int i = 0; i < RANKS; i++) {
        run[i] = (rank_run){.host = host[i], .fail_at = i == rank ? fail_at : 0};
        CHECK(pthread_create(&thread[i], NULL, run_rank, &run[i]) == 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    CHECK(tsr_now() - start < SECONDS / 2.0);
    CHECK(fake_cuda_live == 0);
}

int main(void)
{
    tsr_case_rank none = {.rank = -1}, *me = &none;
    rank_run run[RANKS];
    create(run, 0, 0);
    CHECK(run[0].status == TSR_OK && run[1].status == TSR_OK);
    /* Each of the first, of the communicator; some of the many that its watchdog has. */
    for (int rank = 0, all = run[0].allocations; rank < RANKS; rank++)
        for (int n = 1; n <= all; n = n < 8 ? n + 1 : n < all ? (n + all + 1) / 2 : n + 1) {
            char who[32];
            create(run, rank, n);
            snprintf(who, sizeof who, "rank %d", rank);
            for (int i = 0; i < RANKS; i++) {
                CHECK(run[i].status < 0 && tsr_status_exit_code(run[i].status) == 71);
                if (!strstr(run[i].message, who) || !strstr(run[i].message, "CUDA: "))
                    fprintf(stderr, "allocation %d of rank %d: rank %d says: %s\n", n, rank, i,
                            run[i].message);
                CHECK(strstr(run[i].message, who) && strstr(run[i].message, "CUDA: "));
            }
        }
    printf("%s\n", run[0].message);
    return 0;
}
