/*
 * NCCL as this machine has it: test_comm_nccl_library loads it, and 77 says that it is not here. With
 * an argument the loader finds a file first that is none (CMakeLists.txt): ranks of several GPUs all
 * hear of it and none waits, and one rank goes without. CUDA is fake_cuda.c's.
 */
#include "comm/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                \
    ((what) ? (void)0                                                                              \
            : (fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, tsr_last_error()), exit(1)))

/* Creates and destroys; what creating gave. */
static tsr_status create(tsr_comm *host, char *message)
{
    tsr_device_options options = {.thread_count = 1,
                                  .no_pinning = true,
                                  .timeout_seconds = 10,
                                  .local_rank = tsr_comm_local_rank(host),
                                  .local_rank_count = tsr_comm_local_size(host)};
    tsr_device *host_device, *device;
    tsr_stream *host_stream;
    tsr_comm *comm = NULL;
    CHECK(tsr_device_create_cpu(&host_device, &options) == TSR_OK);
    CHECK(tsr_stream_create(&host_stream, host_device, "host") == TSR_OK);
    CHECK(tsr_device_create_cuda(&device, &options) == TSR_OK);
    tsr_status status = tsr_comm_create_nccl(&comm, host, host_stream, device);
    snprintf(message, 1024, "%s", tsr_last_error());
    tsr_comm_destroy(comm);
    tsr_device_destroy(device);
    tsr_stream_destroy(host_stream);
    tsr_device_destroy(host_device);
    tsr_comm_destroy(host);
    return status;
}

static void *run_rank(void *host)
{
    char message[1024];
    CHECK(create(host, message) == TSR_EDEVICE);
    CHECK(strstr(message, "libnccl.so.2: file too short") && strstr(message, "backend: cpu"));
    return NULL;
}

static int without(void)
{
    enum { RANKS = 3 };
    tsr_comm *hosts[RANKS], *alone;
    pthread_t thread[RANKS];
    char message[1024];
    tsr_library_version v;
    CHECK(tsr_comm_nccl_version(&v) == TSR_EDEVICE);
    printf("%s\n", tsr_last_error());
    CHECK(tsr_comm_create_threads(hosts, RANKS, 10) == TSR_OK);
    for (int i = 0; i < RANKS; i++)
        CHECK(pthread_create(&thread[i], NULL, run_rank, hosts[i]) == 0);
    for (int i = 0; i < RANKS; i++)
        pthread_join(thread[i], NULL);
    CHECK(tsr_comm_create_self(&alone) == TSR_OK);
    CHECK(create(alone, message) == TSR_OK);
    return 0;
}

int main(int argc, char **argv)
{
    tsr_library_version v;
    (void)argv;
    if (argc > 1)
        return without();
    if (tsr_comm_nccl_version(&v) < 0) {
        printf("%s\n", tsr_last_error());
        return 77;
    }
    printf("NCCL %d.%d.%d\n", v.major, v.minor, v.patch);
    CHECK(v.major == 2 && v.minor >= 18);
    return 0;
}
