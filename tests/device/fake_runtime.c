/*
 * fake_runtime.c: as much of the CUDA runtime as the CUDA device uses, on the host's memory. Work runs
 * at once. What is made is counted until it is given back, and a call can be told to fail.
 *
 * The linker puts these functions before those of the library.
 */
#include "fake_runtime.h"

#include "device/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fake_runtime fake;

struct CUstream_st {
    int unused;
};

struct CUevent_st {
    int recorded;
};

static cudaError_t fault(enum fake_calls kind)
{
    fake.count[FAKE_ANY]++;
    fake.count[FAKE_ALLOCATIONS] += kind == FAKE_ALLOCATIONS;
    if (fake.fail_at && fake.count[fake.fails] == fake.fail_at &&
        (fake.fails == FAKE_ANY || kind == FAKE_ALLOCATIONS)) {
        fake.failed++;
        return fake.error;
    }
    return cudaSuccess;
}

#define FAULT(kind)                                                                                \
    do {                                                                                           \
        cudaError_t error_ = fault(kind);                                                          \
        if (error_ != cudaSuccess)                                                                 \
            return error_;                                                                         \
    } while (0)

static void *made(size_t bytes)
{
    fake.live++;
    void *memory = calloc(1, bytes);
    assert_non_null(memory);
    return memory;
}

static cudaError_t gone(void *memory)
{
    fake.live -= memory != NULL;
    free(memory);
    return cudaSuccess;
}

/* ---- the device ---- */

cudaError_t tsr_cuda_probe(int *arch)
{
    *arch = fake.arch ? fake.arch : 90;
    FAULT(FAKE_ANY);
    return fake.probe;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    FAULT(FAKE_ANY);
    *count = fake.cards == cudaSuccess ? 1 + fake.more_cards : 0;
    return fake.cards;
}

/* The first one makes a context, which takes memory. */
cudaError_t cudaSetDevice(int device)
{
    FAULT(fake.entered ? FAKE_ANY : FAKE_ALLOCATIONS);
    fake.entered = true;
    return device <= fake.more_cards ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    FAULT(FAKE_ANY);
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "a made-up GPU");
    properties->major = fake.major ? fake.major : 9;
    properties->totalGlobalMem = FAKE_TOTAL;
    return device <= fake.more_cards ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    FAULT(FAKE_ANY);
    (void)device;
    strncpy(text, "0000:00:00.0", (size_t)bytes);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    FAULT(FAKE_ANY);
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation ? "out of memory" : "unknown error";
}

/* ---- memory ---- */

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    FAULT(FAKE_ANY);
    *left = FAKE_FREE;
    *all = FAKE_TOTAL;
    return cudaSuccess;
}

#undef cudaMalloc
cudaError_t cudaMalloc(void **out, size_t bytes)
{
    FAULT(FAKE_ALLOCATIONS);
    *out = made(bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    return gone(memory);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    FAULT(FAKE_ALLOCATIONS);
    (void)memory, (void)bytes, (void)flags;
    fake.live++;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    (void)memory;
    fake.live--;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    FAULT(FAKE_ANY);
    (void)kind, (void)stream;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    FAULT(FAKE_ANY);
    (void)stream;
    memset(memory, value, bytes);
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    FAULT(FAKE_ALLOCATIONS);
    (void)flags, (void)priority;
    *out = made(sizeof **out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return gone(stream);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    FAULT(FAKE_ANY);
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    FAULT(FAKE_ANY);
    (void)stream, (void)event, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    FAULT(FAKE_ANY);
    (void)stream;
    function(user);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    FAULT(FAKE_ALLOCATIONS);
    (void)flags;
    *out = made(sizeof **out);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return gone(event);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    FAULT(FAKE_ANY);
    (void)stream;
    event->recorded++;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    FAULT(FAKE_ANY);
    (void)event;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    FAULT(FAKE_ANY);
    (void)from, (void)to;
    *ms = 0;
    return cudaSuccess;
}
