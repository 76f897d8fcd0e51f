/*
 * comm_nccl_meet.c: the streams of a node's ranks meet without a kernel and without the hosts.
 *
 * Each rank has a row of words in host memory that all of them see, one for each rank. Its stream
 * writes into its word of every other row how many meetings it has come to, which makes visible what
 * it did before, and waits until the words of its own row say as much: stream memory operations of
 * the driver, which take no multiprocessor. So memory that does
 * change can be taken from other ranks by copy engines: between two meetings nobody writes it.
 *
 * Only ranks that are processes of their own meet. CUDA does not see the order that such waits make,
 * and may put work of one process's streams behind each other, on whatever card (CUDA driver API,
 * "Stream Memory Operations"): what one rank must do before a meeting may come to stand behind the
 * wait of another, for that very rank, and with four ranks in one process a gather did hang now and
 * then. Within a process that has one rank no such order closes a circle: who has not come to a
 * meeting is past all meetings before, so nothing of its own waits.
 *
 * Whether all of it works is tried out once, and decided for all ranks alike. Nothing waits for ever:
 * once the communicator is dead the watchdog writes its rank's row itself, after it has poisoned the
 * device; so no stream goes on as if it had met.
 */
#include "base/clock.h"
#include "comm/nccl_parts.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORD_BYTES    128        /* from one rank's word to the next: a cache line each */
#define TRIAL_SECONDS 5          /* a meeting takes microseconds */
#define RELEASED      (1u << 24) /* far beyond what is enqueued; words are compared as a circle */

enum { WRITE_ORDERED = 0, WAIT_AT_LEAST = 0 }; /* as cuda.h has them */

typedef int stream_value(cudaStream_t stream, uint64_t address, uint32_t value, unsigned flags);

static struct {
    stream_value *write, *wait;
} driver;

static void find_functions(void)
{
    void *write = tsr_cuda_driver("cuStreamWriteValue32");
    void *wait = tsr_cuda_driver("cuStreamWaitValue32");
    memcpy(&driver.write, &write, sizeof write);
    memcpy(&driver.wait, &wait, sizeof wait);
}

/* Where `from` writes what `waiter` waits for. */
static uint64_t offset_of(const tsr_nccl *n, int waiter, int from)
{
    return (uint64_t)(waiter * n->comm->size + from) * WORD_BYTES;
}

tsr_status tsr_meet_enqueue(tsr_nccl *n, cudaStream_t stream)
{
    int rank = n->comm->rank, size = n->comm->size;
    uint32_t number = atomic_fetch_add(&n->meetings, 1) + 1;
    int error = 0;
    for (int k = 1; k < size && error == 0; k++)
        error = driver.write(stream, n->device_words + offset_of(n, (rank + k) % size, rank),
                             number, WRITE_ORDERED);
    for (int k = 1; k < size && error == 0; k++)
        error = driver.wait(stream, n->device_words + offset_of(n, rank, (rank + k) % size), number,
                            WAIT_AT_LEAST);
    if (error == 0)
        return TSR_OK;
    return tsr_fail(TSR_EDEVICE, "CUDA: a meeting of streams: the driver's error %d", error);
}

void tsr_meet_release(tsr_nccl *n)
{
    if (!n->words)
        return;
    for (int from = 0; from < n->comm->size; from++) {
        char *word = n->words + offset_of(n, n->comm->rank, from);
        atomic_store((_Atomic uint32_t *)(void *)word, atomic_load(&n->meetings) + RELEASED);
    }
}

/* ---- trying out ---- */

/* Whether the stream has come to the event in time. If not it is released. */
static bool ends(tsr_nccl *n, cudaEvent_t event)
{
    double end = tsr_now() + TRIAL_SECONDS;
    while (cudaEventQuery(event) == cudaErrorNotReady) {
        if (tsr_now() >= end || tsr_board_is_dead(n->comm->gate.board)) {
            tsr_meet_release(n);
            return false;
        }
        usleep(20);
    }
    return true;
}

static bool try_out(tsr_nccl *n)
{
    tsr_stream *stream;
    if (tsr_stream_create(&stream, n->device, "meetings") < 0)
        return false;
    bool good = true;
    for (int i = 0; i < 3 && good; i++) {
        good = tsr_meet_enqueue(n, tsr_stream_cuda(stream)) == TSR_OK &&
               cudaEventRecord(n->fork, tsr_stream_cuda(stream)) == cudaSuccess;
        good = good && ends(n, n->fork);
    }
    good = tsr_stream_synchronize(stream) == TSR_OK && good;
    tsr_stream_destroy(stream);
    return good;
}

/* ---- creation ---- */

static bool pin(tsr_nccl *n, uint64_t bytes)
{
    void *seen = NULL;
    if (cudaHostRegister(n->words, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) !=
        cudaSuccess)
        return false;
    n->words_pinned = true;
    if (cudaHostGetDevicePointer(&seen, n->words, 0) != cudaSuccess)
        return false;
    n->device_words = (uint64_t)(uintptr_t)seen;
    return true;
}

tsr_status tsr_meet_create(tsr_nccl *n, tsr_stream *host_stream)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    tsr_status status = TSR_OK;
    void *words;
    uint64_t bytes = offset_of(n, n->comm->size, 0);
    if (n->words || n->comm->node_count > 1 || (n->threads && !n->meets_in_process))
        return TSR_OK;
    pthread_once(&once, find_functions);
    TSR_TRY(tsr_comm_share(&words, n->host, host_stream, bytes));
    n->words = words;
    bool good = driver.write && driver.wait && pin(n, bytes);
    good = tsr_nccl_all_good(&status, n, good);
    if (good)
        good = tsr_nccl_all_good(&status, n, try_out(n));
    cudaGetLastError(); /* what does not work here is no error */
    n->meets = good;
    return status;
}

void tsr_meet_destroy(tsr_nccl *n)
{
    if (n->words_pinned)
        cudaHostUnregister(n->words);
}
