/*
 * fake_cuda.c: as much of CUDA and NCCL as the NCCL communicator uses, on a CPU device.
 *
 * With it test_nccl.c runs where there is no GPU, the ranks as threads: whether the communicator
 * comes and goes in order, names the right rank, and never hangs does not depend on a card. A CUDA
 * stream is a stream of the CPU device; "NCCL" is as asynchronous as the real one, and ends the
 * program when two threads are in it or a group is left open.
 *
 * The linker puts these functions before those of the libraries; what the device folder defines for
 * both kinds of device is replaced by --wrap (CMakeLists.txt).
 */
#include "fake_cuda.h"

#include "device/cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS    8
#define DEVICES 64

static _Noreturn void wrong(const char *what)
{
    fprintf(stderr, "fake_cuda.c: %s\n", what);
    _Exit(4);
}

/* ---- devices: those of the CPU, listed here as CUDA's ---- */

tsr_status __wrap_tsr_device_create_cuda(tsr_device **out, const tsr_device_options *options);
tsr_status __wrap_tsr_device_cuda_count(int *count);
tsr_device_kind __wrap_tsr_device_kind_of(const tsr_device *device);
void __wrap_tsr_device_destroy(tsr_device *device);
void __real_tsr_device_destroy(tsr_device *device);

static struct {
    pthread_mutex_t lock;
    tsr_device *device[DEVICES];
    tsr_cuda_properties properties[DEVICES];
} cards = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* -1: no device of CUDA's; NULL finds a free place. */
static int find(const tsr_device *device)
{
    int found = -1;
    pthread_mutex_lock(&cards.lock);
    for (int i = 0; i < DEVICES && found < 0; i++)
        if (cards.device[i] == device)
            found = i;
    pthread_mutex_unlock(&cards.lock);
    return found;
}

static void put(int at, tsr_device *device)
{
    pthread_mutex_lock(&cards.lock);
    cards.device[at] = device;
    pthread_mutex_unlock(&cards.lock);
}

tsr_status __wrap_tsr_device_create_cuda(tsr_device **out, const tsr_device_options *options)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    TSR_TRY(tsr_device_create_cpu(out, options));
    pthread_mutex_lock(&one);
    int at = find(NULL);
    if (at < 0)
        wrong("too many devices");
    cards.properties[at].index = options->local_rank;
    put(at, *out);
    pthread_mutex_unlock(&one);
    return TSR_OK;
}

void __wrap_tsr_device_destroy(tsr_device *device)
{
    int at = device ? find(device) : -1;
    if (at >= 0)
        put(at, NULL);
    __real_tsr_device_destroy(device);
}

tsr_status __wrap_tsr_device_cuda_count(int *count)
{
    *count = GPUS;
    return TSR_OK;
}

tsr_device_kind __wrap_tsr_device_kind_of(const tsr_device *device)
{
    return find(device) < 0 ? TSR_DEVICE_CPU : TSR_DEVICE_CUDA;
}

const tsr_cuda_properties *tsr_device_cuda_properties(const tsr_device *device)
{
    return &cards.properties[find(device)];
}

cudaStream_t tsr_stream_cuda(const tsr_stream *stream)
{
    return (cudaStream_t)stream;
}

tsr_status tsr_cuda_status(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return TSR_OK;
    return tsr_fail(error == cudaErrorMemoryAllocation ? TSR_ENOMEM : TSR_EDEVICE, "CUDA: %s: %d",
                    what, (int)error);
}

/* ---- the runtime; a stream that was made here, not of a device, is NULL: it runs at once, or on the
 * stream that it has waited for, until an event is recorded on it ---- */

struct CUevent_st {
    _Atomic int recorded, completed;
    cudaStream_t stream; /* it was recorded on last */
};

static _Thread_local cudaStream_t followed;
static _Atomic int waiting; /* streams for a value */

_Thread_local struct fake_cuda fake_cuda;
_Atomic int fake_cuda_live;

/* Of what was asked for: it is there, or the call that is to fail. */
static bool allows(void)
{
    bool fails = ++fake_cuda.allocations == fake_cuda.fail_at;
    fake_cuda_live += !fails;
    return !fails;
}

struct transfer {
    void *to;
    const void *from;
    size_t bytes;
};

static tsr_status complete_event(void *args, tsr_pool *pool)
{
    (void)pool;
    cudaEvent_t event = *(cudaEvent_t *)args;
    atomic_fetch_add(&event->completed, 1);
    return TSR_OK;
}

static tsr_status run_transfer(void *args, tsr_pool *pool)
{
    (void)pool;
    const struct transfer *transfer = args;
    memcpy(transfer->to, transfer->from, transfer->bytes);
    return TSR_OK;
}

#define FULL_SECONDS 20 /* by then a test has failed */

static void wait_for_room(void)
{
    for (int i = 0; fake_cuda.full && atomic_load(&waiting) && i < FULL_SECONDS * 1000; i++)
        usleep(1000);
}

/* Streams of a poisoned device refuse what comes; CUDA, which knows nothing of that, does not. */
static cudaError_t enqueue(cudaStream_t stream, tsr_call *function, void *args, uint32_t bytes)
{
    stream = stream ? stream : followed;
    wait_for_room();
    if (!stream)
        return function(args, NULL) == TSR_OK ? cudaSuccess : cudaErrorUnknown;
    if (tsr_stream_call((tsr_stream *)stream, function, args, bytes) < 0 &&
        function == complete_event)
        return function(args, NULL) == TSR_OK ? cudaSuccess : cudaErrorUnknown;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device < GPUS && !fake_cuda.no_device ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    *out = allows() ? malloc(bytes) : NULL;
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    fake_cuda_live -= memory != NULL;
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)kind;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    struct transfer transfer = {to, from, bytes};
    (void)kind;
    return enqueue(stream, run_transfer, &transfer, sizeof transfer);
}

#if CUDART_VERSION >= 13000
/* Every other call fails, as it does with an old driver. */
cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *bytes,
                                 size_t count, struct cudaMemcpyAttributes *attributes,
                                 size_t *first, size_t kinds, cudaStream_t stream)
{
    static _Thread_local bool old;
    if (kinds != 1 || *first != 0 || attributes->srcAccessOrder != cudaMemcpySrcAccessOrderStream)
        wrong("copies of other kinds");
    old = !old;
    for (size_t i = 0; i < count && !old; i++)
        cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream);
    return old ? cudaErrorNotSupported : cudaSuccess;
}
#endif

#undef cudaGetDeviceProperties
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    memset(properties, 0, sizeof *properties);
    memcpy(&properties->uuid, &device, sizeof device);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = allows() ? calloc(1, sizeof **out) : NULL;
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

/* A stream may still complete it: as with CUDA that is no mistake, so it is kept. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    static _Atomic(cudaEvent_t) kept; /* reachable, for the search for leaks */
    atomic_store(&kept, event);
    fake_cuda_live--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    atomic_fetch_add(&event->recorded, 1);
    event->stream = stream;
    cudaError_t error = enqueue(stream, complete_event, &event, sizeof event);
    if (!stream)
        followed = NULL;
    return error;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return atomic_load(&event->recorded) == atomic_load(&event->completed) ? cudaSuccess
                                                                           : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    (void)flags;
    (void)priority;
    *out = NULL;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    if (!stream)
        followed = event->stream;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)memory;
    (void)bytes;
    (void)flags;
    return allows() ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaHostUnregister(void *memory)
{
    (void)memory;
    fake_cuda_live--;
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *memory, unsigned flags)
{
    (void)flags;
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}

/* Rank 3 and the others cannot reach each other: then pulls are gathers, on all ranks. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != 3 && peer != 3;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags)
{
    (void)device;
    (void)flags;
    return cudaErrorPeerAccessAlreadyEnabled;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
    (void)handle;
    (void)memory;
    return cudaErrorNotSupported;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    (void)out;
    (void)handle;
    (void)flags;
    return cudaErrorNotSupported;
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    (void)memory;
    return cudaErrorNotSupported;
}

/* ---- the driver's stream memory operations ---- */

/* Every rank has the words at an address of its own: for ThreadSanitizer the order of what one writes
 * and another has seen goes through one that they have in common. */
static _Atomic int seen;

struct value {
    _Atomic uint32_t *word;
    uint32_t value;
};

static tsr_status write_value(void *args, tsr_pool *pool)
{
    const struct value *v = args;
    (void)pool;
    atomic_fetch_add(&seen, 1);
    atomic_store(v->word, v->value);
    return TSR_OK;
}

static tsr_status wait_for_value(void *args, tsr_pool *pool)
{
    const struct value *v = args;
    (void)pool;
    while ((int32_t)(atomic_load(v->word) - v->value) < 0)
        usleep(20);
    atomic_fetch_add(&seen, 1);
    atomic_fetch_sub(&waiting, 1);
    return TSR_OK;
}

static int write_stream(cudaStream_t stream, uint64_t address, uint32_t value, unsigned flags)
{
    struct value v = {(_Atomic uint32_t *)(uintptr_t)address, value};
    return flags || enqueue(stream, write_value, &v, sizeof v) != cudaSuccess;
}

static int wait_stream(cudaStream_t stream, uint64_t address, uint32_t value, unsigned flags)
{
    struct value v = {(_Atomic uint32_t *)(uintptr_t)address, value};
    if (flags)
        return 1;
    atomic_fetch_add(&waiting, 1);
    if (tsr_stream_call((tsr_stream *)stream, wait_for_value, &v, sizeof v) < 0) /* poisoned */
        atomic_fetch_sub(&waiting, 1);
    return 0;
}

typedef int stream_value(cudaStream_t stream, uint64_t address, uint32_t value, unsigned flags);

#if CUDART_VERSION >= 12050
#undef cudaGetDriverEntryPointByVersion
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    (void)version;
#else
#undef cudaGetDriverEntryPoint
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **out, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result)
{
#endif
    (void)flags;
    stream_value *found = !strcmp(symbol, "cuStreamWriteValue32")  ? write_stream
                          : !strcmp(symbol, "cuStreamWaitValue32") ? wait_stream
                                                                   : NULL;
    memcpy(out, &found, sizeof found);
    *result = cudaDriverEntryPointSuccess;
    return found ? cudaSuccess : cudaErrorNotSupported;
}
